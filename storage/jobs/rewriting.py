"""Batches of which some messages are gone.

Each message that is gone leaves a placeholder, empty and marked `compacted_out`: so those that are left keep their batch indexes, and
their ids.  All else is as its producer made it: the messages byte for byte, the codec, the metadata but for the size before compression.
"""
import struct

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import compression, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, MAGIC, SIZE

_GONE = api.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
PLACEHOLDER = SIZE.pack(len(_GONE)) + _GONE
_MAGIC = MAGIC.to_bytes(2, "big")
_UNCOMPRESSED_SIZE = 9 << 3      # a tag


class Unreadable(Exception):
    """The entry is not a batch of so many messages; its text says why."""


def cut(entry: bytes | memoryview, kept: NDArray[np.bool_]) -> bytes:
    """The entry of a batch, with those of its messages (n,) that are kept.  Raises Unreadable."""
    end = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    head = bytes(entry[CHECKSUM_END + 4:end])
    try:
        metadata = api.MessageMetadata.FromString(head)
        body = bytes(compression.decompress(metadata.compression, entry[end:], metadata.uncompressed_size))
    except (DecodeError, compression.Incompressible) as error:
        raise Unreadable(f"its {'metadata' if isinstance(error, DecodeError) else 'payload'} cannot be read") from None
    bounds = boundaries(body, len(kept))
    edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)).tolist()      # runs of those that are kept
    pieces, done = [], 0
    for first, stop in zip(edges[0::2], edges[1::2], strict=True):
        pieces += PLACEHOLDER * (first - done), body[bounds[first]:bounds[stop]]
        done = stop
    fresh = b"".join([*pieces, PLACEHOLDER * (len(kept) - done)])
    head = with_uncompressed_size(head, len(fresh))
    content = b"".join((SIZE.pack(len(head)), head, compression.compress(metadata.compression, fresh)))
    return _MAGIC + SIZE.pack(crc32c(content)) + content


def words_of(kept: NDArray[np.bool_]) -> bytes:
    """The words of an ack set: a bit per message, 1 = there."""
    return np.packbits(np.pad(kept, (0, -len(kept) % 64)), bitorder="little").tobytes()


def boundaries(body: bytes, count: int) -> list[int]:
    """(count + 1): where each message of a batch begins, its metadata's size first; the last is the end of them all.  Raises Unreadable."""
    at, bounds, read = 0, [0], api.SingleMessageMetadata.FromString
    try:
        for _ in range(count):
            start = at + 4
            at = start + SIZE.unpack_from(body, at)[0]
            found = read(body[start:at])
            if found.payload_size < 0:
                raise ValueError
            at += found.payload_size
            bounds.append(at)
    except (DecodeError, ValueError, OverflowError, struct.error):
        raise Unreadable(f"message {len(bounds) - 1} of {count} cannot be read") from None
    if at > len(body):
        raise Unreadable(f"it ends within one of its {count} messages")
    return bounds


def with_uncompressed_size(head: bytes, size: int) -> bytes:
    """The bytes of MessageMetadata, with another size before compression where it has one."""
    pieces, copied, at = [], 0, 0
    while at < len(head):
        tag, at = varints.decode(head, at)
        start = at
        match tag & 7:
            case 0:
                _, at = varints.decode(head, at)
            case 1:
                at += 8
            case 2:
                length, at = varints.decode(head, at)
                at += length
            case 5:
                at += 4
            case _:      # a group: no metadata has one, and what is in it stays as it is
                raise Unreadable("its metadata has a group")
        if tag == _UNCOMPRESSED_SIZE:
            pieces += head[copied:start], varints.encode(size)
            copied = at
    return b"".join((*pieces, head[copied:]))
