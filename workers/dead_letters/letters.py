"""An entry of a topic -> the messages of a dead letter topic that take its place.

A message keeps its payload, key, ordering key, properties, event time and schema.  Properties are added: those that
Pulsar's Java client writes, of which a letter that was dead before keeps what it has, and Geminga's own.

    batch                        each message that is not acknowledged becomes an entry; compression stays
    encrypted, or unreadable     the entry goes as it is; the properties are the entry's, as a batch has none of its own
"""
from typing import NamedTuple

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import compress
from geminga.storage.cursors.dead_entries import REASON_SHIFT, REASONS, TAKEN_BACK
from geminga.storage.jobs import one_by_one
from geminga.workers.pulsar_client.entries import Entry

_COUNT = (1 << REASON_SHIFT) - 1      # mask of the count in the field for redeliveries


class Letter(NamedTuple):
    """A message, or a batch that cannot be taken apart, without what its new producer gives it."""

    metadata: api.MessageMetadata
    payload: bytes

    @property
    def messages(self) -> int:
        return max(1, self.metadata.num_messages_in_batch)

    @property
    def origin(self) -> str:
        """The topic or partition in which it first was dead."""
        return next(one.value for one in self.metadata.properties if one.key == "REAL_TOPIC")


def letters_of(entry: Entry, topic: str, subscription: str) -> list[Letter]:
    """Return what takes an entry's place.  topic: of the entry, a partition's name."""
    outer = entry.metadata
    if outer.HasField("num_messages_in_batch") and not one_by_one.is_encrypted(outer):
        try:
            return [Letter(_described(metadata, entry, topic, subscription, index), payload)
                    for index, metadata, payload in _singles(entry)]
        except (one_by_one.Damaged, ValueError, TypeError):      # or a text that is not UTF-8
            pass
    whole = api.MessageMetadata()
    whole.CopyFrom(outer)
    for field in ("deliver_at_time", "replicated_from", "txnid_most_bits", "txnid_least_bits", "highest_sequence_id"):
        whole.ClearField(field)
    return [Letter(_described(whole, entry, topic, subscription, -1), entry.payload)]


def _singles(entry: Entry) -> list[tuple[int, api.MessageMetadata, bytes]]:
    """Return (index, metadata, payload) of each message of a batch that is left.  Raises Damaged."""
    outer, left = entry.metadata, []
    stored = bytes(one_by_one.undone(outer, memoryview(entry.payload)))
    for index, own, payload in one_by_one.singles(outer, memoryview(stored)):
        word = index >> 6
        if own.compacted_out or (entry.ack_set and not (
                word < len(entry.ack_set) and entry.ack_set[word] >> (index & 63) & 1)):
            continue
        metadata = api.MessageMetadata(properties=own.properties)
        for name in ("partition_key", "partition_key_b64_encoded", "ordering_key", "event_time", "null_value",
                     "null_partition_key"):
            if own.HasField(name):
                setattr(metadata, name, getattr(own, name))
        for name in ("schema_version", "schema_id", "compression"):
            if outer.HasField(name):      # type: ignore[arg-type]
                setattr(metadata, name, getattr(outer, name))
        data = bytes(payload)
        if outer.compression:
            metadata.uncompressed_size, data = len(data), compress(outer.compression, data)
        left.append((index, metadata, data))
    return left


def _described(metadata: api.MessageMetadata, entry: Entry, topic: str, subscription: str, index: int
               ) -> api.MessageMetadata:
    """Add the properties of a dead letter to metadata.  index: of its message in the entry; -1: the entry."""
    known = {one.key for one in metadata.properties}
    origin = f"{entry.ledger_id}:{entry.entry_id}:{names.parse(topic).partition}" + (f":{index}" if index >= 0 else "")
    of_clients = {"REAL_TOPIC": topic, "REAL_SUBSCRIPTION": subscription, "ORIGIN_MESSAGE_ID": origin,
                  "ORIGIN_MESSAGE_IDY_TIME": origin}
    own = dict(zip(names.DEAD_LETTER_PROPERTIES, (REASONS[entry.redelivery_count >> REASON_SHIFT], subscription,
                                str(entry.redelivery_count & _COUNT)), strict=True))
    # Of an earlier death, and of a redrive that is undone.
    gone = own.keys() | ({names.REDRIVEN_FROM} if entry.redelivery_count >> REASON_SHIFT == TAKEN_BACK else set())
    for at in reversed([at for at, one in enumerate(metadata.properties) if one.key in gone]):
        del metadata.properties[at]
    for key, value in [*((key, value) for key, value in of_clients.items() if key not in known), *own.items()]:
        metadata.properties.add(key=key, value=value)
    return metadata
