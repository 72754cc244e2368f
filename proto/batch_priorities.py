"""The priority of a batch, the highest of its messages', and its time to live, the longest: they stand in its payload.
"""
from google.protobuf.message import DecodeError

from geminga.proto import job_properties
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import CannotDecompress, decompress
from geminga.proto.frames import CHECKSUM_END, SIZE

_NAMES = job_properties.PRIORITY_PROPERTY.encode(), job_properties.TTL_PROPERTY.encode()


def batch_flags(entry: bytes | memoryview, unpacked_max: int) -> tuple[int, int]:
    """Return (bits of SEND_ROW's `flags` for a batch, bytes that were decompressed for it).

    They say the highest priority in the batch and its longest time to live; 0: no message has any that can be read.
    Messages without a priority count as PRIORITY_DEFAULT beside others that have one.  If any has no time to live, the
    batch has none.  Encrypted batches, and those of more than unpacked_max bytes before compression, are not read.  The
    entry is one that `sends.read_one` has read.
    """
    behind = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    metadata = api.MessageMetadata.FromString(bytes(entry[CHECKSUM_END + 4:behind]))
    size = metadata.uncompressed_size if metadata.compression != api.NONE else 0
    if metadata.encryption_keys or size > unpacked_max:
        return 0, 0
    try:
        payload = bytes(decompress(metadata.compression, entry[behind:], size))
    except CannotDecompress:
        return 0, size
    if not any(name in payload for name in _NAMES):      # mostly, and a hundred times faster than reading all messages
        return 0, size
    return _of_all(payload, metadata.num_messages_in_batch), size


def _of_all(payload: bytes, count: int) -> int:
    """Return the bits for the messages in a payload; 0 if none has any, or one is damaged."""
    flags, at, parse, size_at = 0, 0, api.SingleMessageMetadata.FromString, SIZE.unpack_from
    has_plain, shortest, longest = False, job_properties.TTL_BITS, 0
    for _ in range(count):
        if at + 4 > len(payload) or (behind := at + 4 + size_at(payload, at)[0]) > len(payload):
            return 0
        try:
            own = parse(payload[at + 4:behind])
        except DecodeError:
            return 0
        at = behind + own.payload_size
        if own.payload_size < 0 or at > len(payload):
            return 0
        its = job_properties.priority_flags(own.properties) if own.properties else 0
        flags, has_plain = max(flags, its), has_plain or not its
        ttl = job_properties.ttl_flags(own.properties) if own.properties else 0
        shortest, longest = min(shortest, ttl), max(longest, ttl)
    plain = job_properties.flags_of(job_properties.PRIORITY_DEFAULT)
    return (max(flags, plain) if flags and has_plain else flags) | (longest if shortest else 0)
