"""The entry that a schedule publishes for a planned time."""
from geminga.proto import frames, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import SIZE
from geminga.storage.runtime.units import instant

PRODUCER_PREFIX = "geminga.schedule."      # of the producer name in a schedule's messages


def entry_of(name: str, planned_ms: int, now_ms: int, metadata: bytes, payload: bytes) -> bytes:
    """Return the entry of a schedule for a planned time, with its checksum.

    metadata: MessageMetadata with what the schedule says about its message, such as a key.
    """
    full = api.MessageMetadata()
    full.MergeFromString(metadata)
    full.producer_name, full.sequence_id, full.publish_time = PRODUCER_PREFIX + name, planned_ms, now_ms
    for key, value in ((names.SCHEDULE, name), (names.SCHEDULED_FOR, instant(planned_ms))):
        full.properties.add(key=key, value=value)
    raw = full.SerializeToString()
    return frames.with_checksum(SIZE.pack(len(raw)) + raw + payload)
