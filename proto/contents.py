"""The contents of an entry's messages, to tell a message that is sent again from another one with its number."""
from hashlib import blake2b
from typing import NamedTuple

from google.protobuf.message import DecodeError

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import UNPACKED_MAX, CannotDecompress, decompress
from geminga.proto.frames import CHECKSUM_END, SIZE
from geminga.proto.varints import signed


class Contents(NamedTuple):
    """What an entry holds, as far as deduplication over segments needs it."""

    producer: str                           # its name; "" if it came from another cluster
    messages: list[tuple[int, int]]         # (sequence id, digest of the key and the payload), both signed


def contents_of(entry: bytes | memoryview) -> Contents:
    """Return the sequence ids and the digests of an entry's messages.

    A message has the same ones however a batch is cut and compressed.  An encrypted message has another digest each
    time it is sent.  A batch that cannot be read counts as one message.  The entry is one that `sends.read_one` has
    read.
    """
    behind = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    metadata = api.MessageMetadata.FromString(bytes(entry[CHECKSUM_END + 4:behind]))
    number, payload, messages = signed(metadata.sequence_id), bytes(entry[behind:]), None
    if not metadata.encryption_keys:
        payload = _unpacked(metadata, payload)
        if metadata.HasField("num_messages_in_batch"):
            messages = _in_batch(number, metadata.num_messages_in_batch, payload)
    if messages is None:
        messages = [(number, _digest(metadata.partition_key, payload))]
    return Contents("" if metadata.replicated_from else metadata.producer_name, messages)


def _digest(key: str, payload: bytes) -> int:
    name = key.encode()
    digest = blake2b(SIZE.pack(len(name)) + name + payload, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _unpacked(metadata: api.MessageMetadata, payload: bytes) -> bytes:
    """Decompress a payload, if it can be: one chunk of a compressed message cannot."""
    if metadata.compression == api.NONE or metadata.uncompressed_size > UNPACKED_MAX:
        return payload
    try:
        return bytes(decompress(metadata.compression, payload, metadata.uncompressed_size))
    except CannotDecompress:
        return payload


def _in_batch(number: int, count: int, payload: bytes) -> list[tuple[int, int]] | None:
    """Return the messages of a batch whose first sequence id is `number`; None if it cannot be read."""
    messages, at = [], 0
    for place in range(count):
        behind = at + 4 + (SIZE.unpack_from(payload, at)[0] if at + 4 <= len(payload) else len(payload))
        if behind > len(payload):
            return None
        try:
            own = api.SingleMessageMetadata.FromString(payload[at + 4:behind])
        except DecodeError:
            return None
        at = behind + max(own.payload_size, 0)
        own_number = signed(own.sequence_id) if own.HasField("sequence_id") else number + place
        messages.append((own_number, _digest(own.partition_key, payload[behind:at])))
    return messages
