"""Entries -> the same entries with another delivery time, as if their producers had sent them so.

    0e01 CRC32C metadata-size METADATA payload       METADATA: ... 98 01 TIME ...   ->   ... ... 98 01 ANOTHER

The time that the metadata has, if it has one, is taken out, and the new one stands at its end, as any decoder reads it; every other
byte stays.  Entries of one size are mostly laid out alike, and are rewritten as arrays; others go one by one.  Both ways give the same
bytes, and a test holds them to it.
"""
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto import checksums, varints
from geminga.proto.frames import CHECKSUM_END, MAGIC, SIZE
from geminga.proto.sends import SEND_ROW

_TAG = varints.encode(19 << 3)       # deliver_at_time, an int64
_METADATA = CHECKSUM_END + SIZE.size
_MAGIC = MAGIC.to_bytes(2, "big")
_ALIKE_MIN = 32                      # entries of one size that are worth arrays


def stamped(rows: NDArray, data: memoryview, times: NDArray[np.int64]) -> tuple[NDArray, memoryview]:
    """(rows (n,) SEND_ROW, their entries without gaps) of the entries in data, delivered at these times (n,) > 0."""
    rows = rows.view(np.uint64).copy().view(SEND_ROW)       # words copy ten times faster than fields
    sizes, sources = rows["size"].astype(np.int64), rows["offset"].astype(np.int64)
    blocks, singles = _as_arrays(rows, sizes, sources, data, times)
    for at in singles:
        source = int(sources[at])
        entry, rows["crc32c"][at] = _stamp(data[source:source + int(sizes[at])], int(times[at]))
        blocks.append((np.array([at]), np.frombuffer(entry, np.uint8).reshape(1, -1)))
    for where, block in blocks:
        rows["size"][where] = block.shape[1]
    rows["deliver_at"] = times
    ends = np.cumsum(rows["size"], dtype=np.int64)
    rows["offset"] = ends - rows["size"]
    if len(blocks) == 1:
        return rows, memoryview(blocks[0][1]).cast("B")
    out = np.empty(int(ends[-1]), np.uint8)
    for where, block in blocks:
        _at_each(out, block.shape[1])[rows["offset"][where].astype(np.int64)] = block.view(f"V{block.shape[1]}").ravel()
    return rows, memoryview(out)


def _at_each(data: NDArray[np.uint8], size: int) -> NDArray:
    """Item n is the `size` bytes that begin at n."""
    return np.ndarray(len(data) - size + 1, f"V{size}", data, 0, (1,))


# -- as arrays

def _as_arrays(rows: NDArray, sizes: NDArray[np.int64], sources: NDArray[np.int64], data: memoryview,
               times: NDArray[np.int64]) -> tuple[list[tuple[NDArray[np.int64], NDArray[np.uint8]]], list[int]]:
    """([(which, their new bytes (n, size))], which are left)"""
    if len(rows) < _ALIKE_MIN or varints.length(int(times.min())) != varints.length(int(times.max())):
        return [], list(range(len(rows)))
    whole, blocks, left = np.frombuffer(data, np.uint8), [], []
    distinct, counts = (sizes[:1], [len(sizes)]) if (sizes == sizes[0]).all() else np.unique(sizes, return_counts=True)
    for size, count in zip(distinct.tolist(), counts, strict=True):
        where = np.flatnonzero(sizes == size)
        if count >= _ALIKE_MIN:
            if sources[where[-1]] - sources[where[0]] == (count - 1) * size and (np.diff(sources[where]) == size).all():
                entries = whole[sources[where[0]]:sources[where[-1]] + size].reshape(count, size)
            else:
                entries = _at_each(whole, size)[sources[where]].view(np.uint8).reshape(count, size)
            found = _stamp_alike(entries, times[where])
            if found is not None:
                is_like, block, sums = found
                left += where[~is_like].tolist()
                where = where[is_like]
                rows["crc32c"][where] = sums
                blocks.append((where, block))
                continue
        left += where.tolist()
    return blocks, left


def _stamp_alike(entries: NDArray[np.uint8],
                 times: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.uint8], NDArray[np.uint32]] | None:
    """(which entries (n, size) are laid out as the first, their new bytes, their checksums); None when that one is not simple."""
    first = entries[0].tobytes()
    end = _METADATA + SIZE.unpack_from(first, CHECKSUM_END)[0]
    shape = _shape(first[_METADATA:end])
    if shape is None:
        return None
    tight, cuts = shape
    mask = np.frombuffer(b"\xff" * SIZE.size + tight, np.uint8)
    unlike = (entries[:, CHECKSUM_END:end] ^ entries[0, CHECKSUM_END:end]) & mask
    is_like = ~unlike.any(axis=1)
    if not is_like.all():
        entries, times = entries[is_like], times[is_like]
    cut_from, cut_to = (_METADATA + cuts[0][0], _METADATA + cuts[0][1]) if cuts else (end, end)
    width = varints.length(int(times[0]))
    field_at = end - (cut_to - cut_from)
    new_end = field_at + len(_TAG) + width
    out = np.empty((len(entries), entries.shape[1] - end + new_end), np.uint8)
    out[:, CHECKSUM_END:_METADATA] = np.frombuffer(SIZE.pack(new_end - _METADATA), np.uint8)
    out[:, _METADATA:cut_from] = entries[:, _METADATA:cut_from]
    out[:, cut_from:field_at] = entries[:, cut_to:end]
    out[:, field_at:field_at + len(_TAG)] = np.frombuffer(_TAG, np.uint8)
    varints.stamp(out, field_at + len(_TAG), times.view(np.uint64), width)
    out[:, new_end:] = entries[:, end:]
    sums = checksums.of_each(out[:, CHECKSUM_END:])
    out[:, :len(_MAGIC)] = np.frombuffer(_MAGIC, np.uint8)
    out[:, len(_MAGIC):CHECKSUM_END] = sums.astype(">u4").view(np.uint8).reshape(-1, SIZE.size)
    return is_like, out, sums


def _shape(metadata: bytes) -> tuple[bytes, list[tuple[int, int]]] | None:
    """(which bits of metadata that is laid out like this are the same, where its delivery time stands); None when that is not simple.

    What a field holds may differ, where it stands and how long it is may not.
    """
    tight, cuts, at = bytearray(b"\xff" * len(metadata)), [], 0
    while at < len(metadata):
        start = at
        tag, at = varints.decode(metadata, at)
        held = at
        at = _end_of(metadata, at, tag)
        if tag & 7 == 0:
            tight[held:at] = b"\x80" * (at - held)
            if metadata[start:held] == _TAG:
                cuts.append((start, at))
        elif tag & 7 == 3:
            return None
        else:
            held = varints.decode(metadata, held)[1] if tag & 7 == 2 else held      # behind its length
            tight[held:at] = bytes(at - held)
    return (bytes(tight), cuts) if len(cuts) <= 1 else None


# -- one by one

def _stamp(entry: memoryview, time: int) -> tuple[bytes, int]:
    """(its new bytes, their checksum)"""
    end = _METADATA + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    metadata = _without_time(bytes(entry[_METADATA:end])) + _TAG + varints.encode(time)
    body = b"".join((SIZE.pack(len(metadata)), metadata, entry[end:]))
    checksum = crc32c(body)
    return b"".join((_MAGIC, SIZE.pack(checksum), body)), checksum


def _without_time(metadata: bytes) -> bytes:
    if _TAG not in metadata:      # nearly always
        return metadata
    kept, since, at = [], 0, 0
    while at < len(metadata):
        start = at
        tag, at = varints.decode(metadata, at)
        is_time = metadata[start:at] == _TAG
        at = _end_of(metadata, at, tag)
        if is_time:
            kept.append(metadata[since:start])
            since = at
    return b"".join([*kept, metadata[since:]])


def _end_of(data: bytes, at: int, tag: int) -> int:
    """Behind the value at `at` of a field with that tag, in a message that the protobuf library has read."""
    kind = tag & 7
    if kind == 0:
        return varints.decode(data, at)[1]
    if kind == 2:
        size, at = varints.decode(data, at)
        return at + size
    if kind == 3:      # a group, with fields in it
        while True:
            inner, at = varints.decode(data, at)
            if inner & 7 == 4:
                return at
            at = _end_of(data, at, inner)
    return at + (8 if kind == 1 else 4)
