"""Batches of which only some messages are wanted: where each message is, and the batch without the others."""
import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise

from crc32c import crc32c
from google.protobuf.message import DecodeError

from geminga.proto import compression, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, MAGIC_BYTES, SIZE

UNCOMPRESSED_SIZE, MESSAGES = 9 << 3, 11 << 3      # tags of MessageMetadata


class Unreadable(Exception):
    """Error: the entry is not a batch with the expected number of messages.  The text gives the reason."""


def boundaries(body: bytes | memoryview, count: int) -> Sequence[int]:
    """Return (count + 1) offsets: where each message of a batch begins, and where the last ends.

    A message begins with the size of its metadata. Raises Unreadable.
    """
    offset, bounds, read = 0, array("q", [0]), api.SingleMessageMetadata.FromString
    try:
        for _ in range(count):
            start = offset + 4
            offset = start + SIZE.unpack_from(body, offset)[0]
            single = read(bytes(body[start:offset]))
            if single.payload_size < 0:
                raise ValueError
            offset += single.payload_size
            bounds.append(offset)
    except (DecodeError, ValueError, OverflowError, struct.error):
        raise Unreadable(f"message {len(bounds) - 1} of {count} cannot be read") from None
    if offset > len(body):
        raise Unreadable(f"it ends within one of its {count} messages")
    return bounds


def with_numbers(head: bytes, numbers: Mapping[int, int]) -> bytes:
    """Return the bytes of MessageMetadata with other values of some numbers, where it has them.

    numbers: {tag: value}.  Raises Unreadable.
    """
    pieces: list[bytes] = []
    copied = offset = 0
    while offset < len(head):
        tag, offset = varints.decode(head, offset)
        start = offset
        match tag & 7:
            case 0:
                _, offset = varints.decode(head, offset)
            case 1:
                offset += 8
            case 2:
                length, offset = varints.decode(head, offset)
                offset += length
            case 5:
                offset += 4
            case _:      # a group, whose end this function cannot find; no client writes one
                raise Unreadable("its metadata has a group")
        if tag in numbers:
            pieces += head[copied:start], varints.encode(numbers[tag])
            copied = offset
    return b"".join((*pieces, head[copied:]))


def chosen(entry: bytes, bits: int) -> bytes:
    """Return a batch as an entry with some of its messages only, in their order, and compressed as it was.

    entry: begins with its checksum.  bits: one for each message, 1 = it stays.  A client takes the messages that stay
    for all of the batch, and acknowledges the whole entry once it is done with them.  Raises Unreadable.
    """
    try:
        payload = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
        head = entry[CHECKSUM_END + 4:payload]
        metadata = api.MessageMetadata.FromString(head)
        body = compression.decompress(metadata.compression, entry[payload:], metadata.uncompressed_size)
    except (DecodeError, struct.error):
        raise Unreadable("its metadata cannot be read") from None
    except compression.CannotDecompress as error:
        raise Unreadable(f"its payload {error}") from None
    bounds = boundaries(body, metadata.num_messages_in_batch)
    fresh = b"".join([body[begin:end] for number, (begin, end) in enumerate(pairwise(bounds)) if bits >> number & 1])
    head = with_numbers(head, {MESSAGES: bits.bit_count(), UNCOMPRESSED_SIZE: len(fresh)})
    content = b"".join((SIZE.pack(len(head)), head, compression.compress(metadata.compression, fresh)))
    return MAGIC_BYTES + SIZE.pack(crc32c(content)) + content


def narrowed(bits: int, mask: int) -> int:
    """Return the bits of a batch's messages as those of a batch that has the messages of the mask only."""
    narrow = place = 0
    while mask:
        lowest = mask & -mask
        if bits & lowest:
            narrow |= 1 << place
        place += 1
        mask ^= lowest
    return narrow


def widened(bits: int, mask: int) -> int:
    """Return the bits of a batch that has the messages of the mask only as those of the whole batch."""
    wide = place = 0
    while mask:
        lowest = mask & -mask
        if bits >> place & 1:
            wide |= lowest
        place += 1
        mask ^= lowest
    return wide
