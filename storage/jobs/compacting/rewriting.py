"""Rewrite batches from which some messages are removed.

Each removed message leaves a placeholder, empty and marked `compacted_out`, so that kept messages keep their batch
indexes and ids. Everything else stays as the producer made it: the kept messages byte for byte, the codec, and the
metadata but for the uncompressed size.
"""
import itertools
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from geminga.proto import batches, compression
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.batch_parts import UNCOMPRESSED_SIZE, Unreadable, boundaries, with_numbers
from geminga.proto.frames import CHECKSUM_END, MAGIC, SIZE
from geminga.proto.metadata import PAD

_GONE = api.SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
PLACEHOLDER = SIZE.pack(len(_GONE)) + _GONE
_MAGIC = MAGIC.to_bytes(2, "big")
_TOGETHER_SIZE = 8 << 20         # bytes of batches that are unpacked together; a larger batch is alone


def cut(entries: list[bytes], kept: list[NDArray[np.bool_]]) -> list[bytes | Unreadable]:
    """Return batch entries rewritten without removed messages, or the error of an entry that cannot be read.

    kept: for each entry, which of its messages (n,) are kept.
    """
    rewritten: list[bytes | Unreadable] = []
    gathered: list[_Batch | Unreadable] = []
    size = 0
    for entry, mask in zip(entries, kept, strict=True):
        try:
            opened = _open(entry, mask)
            size += len(opened.body)
            gathered.append(opened)
        except Unreadable as error:
            gathered.append(error)
        if size >= _TOGETHER_SIZE:
            rewritten += _cut(gathered)
            gathered, size = [], 0
    return rewritten + _cut(gathered)


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


def _cut(gathered: list[_Batch | Unreadable]) -> list[bytes | Unreadable]:
    """Rewrite batches, whose messages are located for all of them together where possible."""
    opened = [batch for batch in gathered if isinstance(batch, _Batch)]
    if not opened:
        return [batch for batch in gathered if isinstance(batch, Unreadable)]
    data = np.frombuffer(b"".join([*(batch.body for batch in opened), bytes(PAD)]), np.uint8)
    ends = np.cumsum([len(batch.body) for batch in opened])
    begins = ends - [len(batch.body) for batch in opened]
    counts = np.array([len(batch.kept) for batch in opened])
    unpacked = batches.unpack(data, begins, ends, counts)
    done, bounds = 0, {}
    for number, (batch, begin, is_odd) in enumerate(zip(opened, begins.tolist(), unpacked.odd.tolist(), strict=True)):
        if not is_odd:
            bounds[number] = [0, *(unpacked.payload_ends[done:done + len(batch.kept)] - begin).tolist()]
        if len(unpacked.batches) and done < len(unpacked.batches) and unpacked.batches[done] == number:
            done += len(batch.kept)
    rewritten: list[bytes | Unreadable] = []
    numbers = itertools.count()
    for batch_or_error in gathered:
        if isinstance(batch_or_error, Unreadable):
            rewritten.append(batch_or_error)
            continue
        batch, number = batch_or_error, next(numbers)
        try:
            known_bounds = bounds.get(number)
            rewritten.append(_rewritten(batch, known_bounds or boundaries(bytes(batch.body), len(batch.kept))))
        except Unreadable as error:
            rewritten.append(error)
    return rewritten


def _rewritten(batch: _Batch, bounds: Sequence[int]) -> bytes:
    """Return a batch as an entry without its removed messages.

    bounds: (n + 1) where the batch's messages begin, and where the last ends.
    """
    edges = np.flatnonzero(batch.kept[1:] != batch.kept[:-1]) + 1
    fresh, is_kept = bytearray(), bool(batch.kept[0])
    for first, stop in pairwise((0, *edges.tolist(), len(batch.kept))):
        fresh += batch.body[bounds[first]:bounds[stop]] if is_kept else PLACEHOLDER * (stop - first)
        is_kept = not is_kept
    head = batch.head
    if batch.metadata.HasField("uncompressed_size"):
        head = with_numbers(head, {UNCOMPRESSED_SIZE: len(fresh)})
    content = b"".join((SIZE.pack(len(head)), head, compression.compress(batch.metadata.compression, bytes(fresh))))
    return _MAGIC + SIZE.pack(crc32c(content)) + content


def words_of(kept: NDArray[np.bool_]) -> bytes:
    """Return the ack-set words of a batch as bytes: a bit for each message, 1 if the message is kept."""
    return np.packbits(kept, bitorder="little").tobytes().ljust(8 * -(-len(kept) // 64), b"\0")
