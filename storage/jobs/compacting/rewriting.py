"""Rewrite batches from which some messages are removed.

Each removed message leaves a placeholder, empty and marked `compacted_out`, so that kept messages keep their batch
indexes and ids. Everything else stays as the producer made it: the kept messages byte for byte, the codec, and the
metadata but for the uncompressed size.
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
_TOGETHER_SIZE = 8 << 20         # bytes of batches that are unpacked together; a larger batch is alone


class Unreadable(Exception):
    """Error: the entry is not a batch with the expected number of messages.  The text gives the reason."""


def cut(entries: list[bytes], kept: list[NDArray[np.bool_]]) -> list[bytes | Unreadable]:
    """Return batch entries rewritten without removed messages, or the error of an entry that cannot be read.

    kept: for each entry, which of its messages (n,) are kept.
    """
    rewritten: list[bytes | Unreadable] = []
    some: list[_Batch | Unreadable] = []
    size = 0
    for entry, mask in zip(entries, kept, strict=True):
        try:
            opened = _open(entry, mask)
            size += len(opened.body)
            some.append(opened)
        except Unreadable as error:
            some.append(error)
        if size >= _TOGETHER_SIZE:
            rewritten += _cut(some)
            some, size = [], 0
    return rewritten + _cut(some)


class _Batch(NamedTuple):
    head: bytes                      # its metadata
    metadata: api.MessageMetadata
    body: bytes | memoryview         # decompressed
    kept: NDArray[np.bool_]


def _open(entry: bytes, kept: NDArray[np.bool_]) -> _Batch:
    end = CHECKSUM_END + 4 + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    head = entry[CHECKSUM_END + 4:end]
    try:
        metadata = api.MessageMetadata.FromString(head)
        body = compression.decompress(metadata.compression, entry[end:], metadata.uncompressed_size)
        return _Batch(head, metadata, body, kept)
    except DecodeError:
        raise Unreadable("its metadata cannot be read") from None
    except compression.CannotDecompress as error:
        raise Unreadable(f"its payload {error}") from None


def _cut(some: list[_Batch | Unreadable]) -> list[bytes | Unreadable]:
    """Rewrite batches, whose messages are located for all of them together where possible."""
    opened = [one for one in some if isinstance(one, _Batch)]
    if not opened:
        return [one for one in some if isinstance(one, Unreadable)]
    data = np.frombuffer(b"".join([*(one.body for one in opened), bytes(PAD)]), np.uint8)
    ends = np.cumsum([len(one.body) for one in opened])
    begins = ends - [len(one.body) for one in opened]
    counts = np.array([len(one.kept) for one in opened])
    unpacked = batches.unpack(data, begins, ends, counts)
    done, bounds = 0, {}
    for number, (batch, begin, is_odd) in enumerate(zip(opened, begins.tolist(), unpacked.odd.tolist(), strict=True)):
        if not is_odd:
            bounds[number] = [0, *(unpacked.payload_ends[done:done + len(batch.kept)] - begin).tolist()]
        if len(unpacked.batches) and done < len(unpacked.batches) and unpacked.batches[done] == number:
            done += len(batch.kept)
    rewritten: list[bytes | Unreadable] = []
    at = 0
    for one in some:
        if isinstance(one, Unreadable):
            rewritten.append(one)
            continue
        try:
            rewritten.append(_rewritten(one, bounds.get(at) or boundaries(bytes(one.body), len(one.kept))))
        except Unreadable as error:
            rewritten.append(error)
        at += 1
    return rewritten


def _rewritten(one: _Batch, bounds: Sequence[int]) -> bytes:
    """Return a batch as an entry without its removed messages.

    bounds: (n + 1) where the batch's messages begin, and where the last ends.
    """
    edges = np.flatnonzero(one.kept[1:] != one.kept[:-1]) + 1
    fresh, is_kept = bytearray(), bool(one.kept[0])
    for first, stop in pairwise((0, *edges.tolist(), len(one.kept))):
        fresh += one.body[bounds[first]:bounds[stop]] if is_kept else PLACEHOLDER * (stop - first)
        is_kept = not is_kept
    head = with_uncompressed_size(one.head, len(fresh)) if one.metadata.HasField("uncompressed_size") else one.head
    content = b"".join((SIZE.pack(len(head)), head, compression.compress(one.metadata.compression, bytes(fresh))))
    return _MAGIC + SIZE.pack(crc32c(content)) + content


def words_of(kept: NDArray[np.bool_]) -> bytes:
    """Return the ack-set words of a batch as bytes: a bit for each message, 1 if the message is kept."""
    return np.packbits(kept, bitorder="little").tobytes().ljust(8 * -(-len(kept) // 64), b"\0")


def boundaries(body: bytes, count: int) -> Sequence[int]:
    """Return (count + 1) offsets: where each message of a batch begins, and where the last ends.

    A message begins with the size of its metadata. Raises Unreadable.
    """
    at, bounds, read = 0, array("q", [0]), api.SingleMessageMetadata.FromString
    try:
        for _ in range(count):
            start = at + 4
            at = start + SIZE.unpack_from(body, at)[0]
            single = read(body[start:at])
            if single.payload_size < 0:
                raise ValueError
            at += single.payload_size
            bounds.append(at)
    except (DecodeError, ValueError, OverflowError, struct.error):
        raise Unreadable(f"message {len(bounds) - 1} of {count} cannot be read") from None
    if at > len(body):
        raise Unreadable(f"it ends within one of its {count} messages")
    return bounds


def with_uncompressed_size(head: bytes, size: int) -> bytes:
    """Return the bytes of MessageMetadata with another value of uncompressed_size, if it has that field."""
    pieces: list[bytes] = []
    copied = at = 0
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
            case _:      # a group, whose end this function cannot find; no client writes one
                raise Unreadable("its metadata has a group")
        if tag == _UNCOMPRESSED_SIZE:
            pieces += head[copied:start], varints.encode(size)
            copied = at
    return b"".join((*pieces, head[copied:]))
