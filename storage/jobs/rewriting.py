"""Batches of which some messages are gone.

Each message that is gone leaves a placeholder, empty and marked `compacted_out`: so those that are left keep their batch indexes, and
their ids.  All else is as its producer made it: the messages byte for byte, the codec, the metadata but for the size before compression.
"""
import struct
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import batches, compression, varints
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import CHECKSUM_END, MAGIC, SIZE
from geminga.proto.metadata import PAD

_GONE = api.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
PLACEHOLDER = SIZE.pack(len(_GONE)) + _GONE
_MAGIC = MAGIC.to_bytes(2, "big")
_UNCOMPRESSED_SIZE = 9 << 3      # a tag
_TOGETHER_SIZE = 8 << 20         # bytes of batches that are looked at together; or one


class Unreadable(Exception):
    """The entry is not a batch of so many messages; its text says why."""


def cut(entries: list[bytes], kept: list[NDArray[np.bool_]]) -> list[bytes | Unreadable]:
    """The entries of batches, with those of their messages (n,) that are kept."""
    found: list[bytes | Unreadable] = []
    some, size = [], 0
    for entry, mask in zip(entries, kept, strict=True):
        try:
            opened = _open(entry, mask)
            size += len(opened.body)
        except Unreadable as error:
            opened = error
        some.append(opened)
        if size >= _TOGETHER_SIZE:
            found += _cut(some)
            some, size = [], 0
    return found + _cut(some)


class _Batch(NamedTuple):
    head: bytes                      # its metadata
    metadata: api.MessageMetadata
    body: bytes                      # decompressed
    kept: NDArray[np.bool_]


def _open(entry: bytes, kept: NDArray[np.bool_]) -> _Batch:
    end = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    head = entry[CHECKSUM_END + 4:end]
    try:
        metadata = api.MessageMetadata.FromString(head)
        return _Batch(head, metadata, compression.decompress(metadata.compression, entry[end:], metadata.uncompressed_size), kept)
    except DecodeError:
        raise Unreadable("its metadata cannot be read") from None
    except compression.CannotDecompress as error:
        raise Unreadable(f"its payload {error}") from None


def _cut(some: list[_Batch | Unreadable]) -> list[bytes | Unreadable]:
    """Where their messages begin is found together, where that is possible."""
    opened = [one for one in some if isinstance(one, _Batch)]
    if not opened:
        return some
    data = np.frombuffer(b"".join([*(one.body for one in opened), bytes(PAD)]), np.uint8)
    ends = np.cumsum([len(one.body) for one in opened])
    begins = ends - [len(one.body) for one in opened]
    counts = np.array([len(one.kept) for one in opened])
    unpacked = batches.unpack(data, begins, ends, counts)
    done, bounds = 0, {}
    for number, (one, begin, is_odd) in enumerate(zip(opened, begins.tolist(), unpacked.odd.tolist(), strict=True)):
        if not is_odd:
            bounds[number] = [0, *(unpacked.payload_ends[done:done + len(one.kept)] - begin).tolist()]
        if len(unpacked.batches) and done < len(unpacked.batches) and unpacked.batches[done] == number:
            done += len(one.kept)
    found, at = [], 0
    for one in some:
        if isinstance(one, Unreadable):
            found.append(one)
            continue
        try:
            found.append(_rewritten(one, bounds.get(at) or boundaries(bytes(one.body), len(one.kept))))
        except Unreadable as error:
            found.append(error)
        at += 1
    return found


def _rewritten(one: _Batch, bounds: Sequence[int]) -> bytes:
    """bounds (n + 1): where its messages begin, and the last ends."""
    edges = np.flatnonzero(one.kept[1:] != one.kept[:-1]) + 1
    fresh, is_kept = bytearray(), bool(one.kept[0])
    for first, stop in pairwise((0, *edges.tolist(), len(one.kept))):
        fresh += one.body[bounds[first]:bounds[stop]] if is_kept else PLACEHOLDER * (stop - first)
        is_kept = not is_kept
    head = with_uncompressed_size(one.head, len(fresh)) if one.metadata.HasField("uncompressed_size") else one.head
    content = b"".join((SIZE.pack(len(head)), head, compression.compress(one.metadata.compression, bytes(fresh))))
    return _MAGIC + SIZE.pack(crc32c(content)) + content


def words_of(kept: NDArray[np.bool_]) -> bytes:
    """The words of an ack set: a bit per message, 1 = there."""
    return np.packbits(kept, bitorder="little").tobytes().ljust(8 * -(-len(kept) // 64), b"\0")


def boundaries(body: bytes, count: int) -> Sequence[int]:
    """(count + 1): where each message of a batch begins, its metadata's size first; the last is the end of them all.  Raises Unreadable."""
    at, bounds, read = 0, array("q", [0]), api.SingleMessageMetadata.FromString
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
