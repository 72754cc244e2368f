"""Entries -> the same entries with another delivery time, as if their producers had sent it.

    0e01 CRC32C metadata-size METADATA payload       METADATA: ... 98 01 TIME ...   ->   ... ... 98 01 ANOTHER

A delivery time in the metadata is cut out, and the new one is put at the end, where any decoder reads it.  Every other
byte stays.  The head of an entry is all before its payload.  Heads of one size mostly have one layout and are rewritten
as arrays, others one by one.  Both ways give the same bytes, and a test holds them to it.

Checksums are linear: the change of a checksum depends on the changed bytes of the head, and on the number of bytes that
follow them.  So payloads are not read, and of heads only the few columns in which they differ.
"""
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto import checksums, varints
from geminga.proto.frames import CHECKSUM_END, MAGIC, SIZE
from geminga.proto.rows import Rows, as_words, from_words
from geminga.proto.sends import SEND_ROW

_TAG = varints.encode(19 << 3)       # deliver_at_time, an int64
_WIDTH = 6                           # bytes of a time from 1971 to 2109: the field is then one word
_FIRST, _LAST = 1 << 7 * (_WIDTH - 1), (1 << 7 * _WIDTH) - 1
_FIELD = len(_TAG) + _WIDTH
_METADATA = CHECKSUM_END + SIZE.size
_MAGIC = MAGIC.to_bytes(2, "big")
_ALIKE_MIN = 32                      # heads of one size; fewer are cheaper one by one
_COLUMNS_MAX = 16                    # columns in which heads differ; with more, a call for each checksum is cheaper
_WORD = 8
# Column -> (bits in which any head differs from the first, bits (n,) in which each head does).
_Differing: TypeAlias = dict[int, tuple[int, NDArray[np.uint8]]]
_Pieces: TypeAlias = list[bytes | memoryview]


def stamp(rows: Rows, data: memoryview, times: NDArray[np.int64]) -> tuple[Rows, memoryview]:
    """Write delivery times (n,), in ms since 1970, each > 0, into the metadata of the entries in `data`.

    Return (rows (n,) SEND_ROW, the new entries without gaps).  The given rows are not changed.
    """
    rows = from_words(as_words(rows).copy(), SEND_ROW)
    sizes, sources = rows["size"].astype(np.int64), rows["offset"].astype(np.int64)
    rows["deliver_at"] = times
    are_many = len(rows) >= _ALIKE_MIN and times.min() >= _FIRST and times.max() <= _LAST
    if are_many and (sizes == sizes[0]).all():
        whole, size = np.frombuffer(data, np.uint8), sizes.item(0)
        if (np.diff(sources) == size).all():
            entries = whole[sources[0]:sources[-1] + size].reshape(len(rows), size)
        else:
            entries = _at_each(whole, size)[sources].view(np.uint8).reshape(len(rows), size)
        if (out := _stamp_alike(rows, entries, times)) is not None:
            rows["size"], rows["offset"] = out.shape[1], np.arange(0, out.size, out.shape[1])
            return rows, memoryview(out).cast("B")
    pieces: _Pieces = []
    pieces += [b""] * 2 * len(rows)
    is_left = np.ones(len(rows), bool)
    if are_many:
        _stamp_most(rows, sizes, sources, data, times, pieces, is_left)
    for at in np.flatnonzero(is_left).tolist():
        source = int(sources[at])
        head, payload, checksum = _stamp_one(data[source:source + int(sizes[at])], int(times[at]))
        pieces[2 * at:2 * at + 2] = head, payload
        rows["size"][at], rows["crc32c"][at] = len(head) + len(payload), checksum
    rows["offset"] = np.cumsum(rows["size"], dtype=np.int64) - rows["size"]
    return rows, memoryview(b"".join(pieces))


# -- as arrays

def _stamp_alike(rows: Rows, entries: NDArray[np.uint8], times: NDArray[np.int64]) -> NDArray[np.uint8] | None:
    """Stamp entries (n, size) that all have the layout of the first one, and write their checksums into `rows`.

    Return the new entries (n, new size); None if an entry has another layout.
    """
    size = _METADATA + int.from_bytes(entries[0, CHECKSUM_END:_METADATA].tobytes(), "big")
    payload = entries.shape[1] - size
    if payload >= checksums.LAID_OUT_MAX or (shape := _shape(entries[0, _METADATA:size].tobytes())) is None:
        return None
    tight, cut = shape
    differing = _differing(entries[:, :size])
    if _is_unlike(differing, tight):
        return None
    out = np.empty((len(entries), size - (cut[1] - cut[0]) + _FIELD + payload), np.uint8)
    out[:, out.shape[1] - payload:] = entries[:, size:]
    rows["crc32c"] = _fill(out[:, :out.shape[1] - payload], entries[:, :size], cut, times, differing, rows["crc32c"],
                           np.array([payload]))
    return out


def _stamp_most(rows: Rows, sizes: NDArray[np.int64], sources: NDArray[np.int64], data: memoryview,
                times: NDArray[np.int64], pieces: _Pieces, is_left: NDArray[np.bool_]) -> None:
    """Stamp the entries that share a layout with at least _ALIKE_MIN others: set their pieces, sizes and checksums.

    pieces: head and payload of each entry.  is_left: stays True for all other entries.
    """
    whole = np.frombuffer(data, np.uint8)
    ends = _METADATA + _at_each(whole, SIZE.size)[sources + CHECKSUM_END].view(">u4").astype(np.int64)
    for size in np.unique(ends).tolist():
        where = np.flatnonzero((ends == size) & (sizes - size < checksums.LAID_OUT_MAX))
        if len(where) < _ALIKE_MIN:
            continue
        heads = _at_each(whole, size)[sources[where]].view(np.uint8).reshape(len(where), size)
        if (shape := _shape(heads[0, _METADATA:].tobytes())) is None:
            continue
        tight, cut = shape
        differing = _differing(heads)
        if _is_unlike(differing, tight):
            is_like = ~((heads[:, CHECKSUM_END:] ^ heads[0, CHECKSUM_END:]) & tight).any(axis=1)
            where, heads = where[is_like], heads[is_like]
            differing = _differing(heads)
        new = np.empty((len(where), size - (cut[1] - cut[0]) + _FIELD), np.uint8)
        sums, payloads = rows["crc32c"][where], sizes[where] - size
        rows["crc32c"][where] = _fill(new, heads, cut, times[where], differing, sums, payloads)
        rows["size"][where] = sizes[where] + (new.shape[1] - size)
        is_left[where] = False
        new_heads = new.view(f"V{new.shape[1]}").ravel().tolist()
        for at, head, source, end in zip(where.tolist(), new_heads, sources[where].tolist(),
                                         (sources + sizes)[where].tolist(), strict=True):
            pieces[2 * at:2 * at + 2] = head, data[source + size:end]


def _at_each(data: NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """View bytes (n,) as pieces of `size` bytes, one of which begins at every byte."""
    return np.ndarray(len(data) - size + 1, f"V{size}", data, 0, (1,))


def _differing(heads: NDArray[np.uint8]) -> _Differing:
    """Return the columns behind the checksum in which some heads (n, size) differ from the first one.

    {column: (bits that differ in any head, bits that differ in each head (n,))}
    """
    found: _Differing = {}
    for at in {*range(CHECKSUM_END, heads.shape[1] - _WORD + 1, _WORD), heads.shape[1] - _WORD}:
        words = heads[:, at:at + _WORD].view("<u8")[:, 0]
        found |= {at + byte: bits for byte, bits in _bytes_differing(words ^ words[0]) if at + byte >= CHECKSUM_END}
    return found


def _bytes_differing(words: NDArray[np.uint64]) -> Iterator[tuple[int, tuple[int, NDArray[np.uint8]]]]:
    """Yield (byte, (bits set in that byte of any word, that byte of each word (n,))) for bytes not 0 in all words
    (n,).
    """
    for byte, bits in enumerate(int(np.bitwise_or.reduce(words)).to_bytes(_WORD, "little")):
        if bits:
            yield byte, (bits, words.view(np.uint8)[byte::_WORD])


def _is_unlike(differing: _Differing, tight: NDArray[np.uint8]) -> bool:
    return any(tight[column - CHECKSUM_END] & bits for column, (bits, _) in differing.items())


def _fill(new: NDArray[np.uint8], heads: NDArray[np.uint8], cut: tuple[int, int], times: NDArray[np.int64],
          differing: _Differing, sums: NDArray[np.uint32], payloads: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Write new heads, which are the old heads (n, size) without the bytes of `cut`, and with times (n,) at their
    end.

    sums: the entries' old checksums (n,).  payloads: bytes behind each head (n,), or behind all heads (1,).  Return the
    entries' new checksums (n,).
    """
    cut_from, cut_to = cut
    tag = np.uint64(int.from_bytes(_TAG, "little"))
    words = varints.to_words(times.view(np.uint64), _WIDTH) << np.uint64(8 * len(_TAG)) | tag
    new[:, :cut_from] = heads[:, :cut_from]
    new[:, cut_from:-_FIELD] = heads[:, cut_to:]
    new[:, -_FIELD:].view("<u8")[:, 0] = words
    new[:, CHECKSUM_END:_METADATA] = np.frombuffer(SIZE.pack(new.shape[1] - _METADATA), np.uint8)
    sums = sums ^ _changes(new, heads, cut, differing, words, payloads)
    new[:, len(_MAGIC):CHECKSUM_END] = sums.astype(">u4").view(np.uint8).reshape(-1, SIZE.size)
    return sums


def _changes(new: NDArray[np.uint8], heads: NDArray[np.uint8], cut: tuple[int, int], differing: _Differing,
             words: NDArray[np.uint64], payloads: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return how the checksum of each entry changes (n,) when its head is replaced.

    A CRC is linear.  The change of an entry is the one of the first entry, xored with a table's value for each column
    in which the heads differ.
    """
    if len(differing) > _COLUMNS_MAX:
        changes = checksums.crc32c_of_each(heads[:, CHECKSUM_END:]) ^ checksums.crc32c_of_each(new[:, CHECKSUM_END:])
        return checksums.change_before(changes, payloads)
    (cut_from, cut_to), size = cut, heads.shape[1]
    first = crc32c(heads[0, CHECKSUM_END:].tobytes()) ^ crc32c(new[0, CHECKSUM_END:].tobytes())
    parts, columns = [np.array([first], np.uint32)], []
    for column, (_, bits) in differing.items():
        table = checksums.change_of_byte(size - column)
        if not cut_from <= column < cut_to:      # it is in the new head, too
            removed = (cut_to - cut_from if column < cut_from else 0)
            table = table ^ checksums.change_of_byte(size - column + _FIELD - removed)
        parts.append(table)
        columns.append(bits)
    for byte, (_, bits) in _bytes_differing(words ^ words[0]):
        parts.append(checksums.change_of_byte(_FIELD - byte))
        columns.append(bits)
    tables = np.concatenate(parts)
    if len(payloads) == 1:
        tables = checksums.change_before(tables, payloads)
    changes = np.full(len(heads), tables[0])
    for number, bits in enumerate(columns):
        changes ^= tables[1 + 256 * number:257 + 256 * number].take(bits)
    return changes if len(payloads) == 1 else checksums.change_before(changes, payloads)


def _shape(metadata: bytes) -> tuple[NDArray[np.uint8], tuple[int, int]] | None:
    """Return (mask of the bits that all heads of this layout share, (begin, end) of their delivery time); None if
    malformed.

    The mask begins behind the checksum.  Heads of one layout may differ in the values of fields, not in their places
    and lengths.  A head without a delivery time has an empty place for it at the end.  Metadata with a group or with
    two delivery times count as malformed.
    """
    tight, cuts, at = bytearray(b"\xff" * len(metadata)), [], 0
    while at < len(metadata):
        start = at
        tag, held = varints.decode(metadata, at)
        at = _end_of(metadata, held, tag)
        if tag & 7 == 0:
            tight[held:at] = b"\x80" * (at - held)
            if metadata[start:held] == _TAG:
                cuts.append((_METADATA + start, _METADATA + at))
        elif tag & 7 == 3:
            return None
        else:
            held = varints.decode(metadata, held)[1] if tag & 7 == 2 else held      # behind its length
            tight[held:at] = bytes(at - held)
    if len(cuts) > 1:
        return None
    return np.frombuffer(b"\xff" * SIZE.size + tight, np.uint8), cuts[0] if cuts else (_METADATA + len(metadata),) * 2


# -- one by one

def _stamp_one(entry: memoryview, time: int) -> tuple[bytes, memoryview, int]:
    """Return (new head, payload, new checksum) of one entry with that delivery time."""
    end = _METADATA + SIZE.unpack_from(entry, CHECKSUM_END)[0]
    metadata, payload = _without_time(bytes(entry[_METADATA:end])) + _TAG + varints.encode(time), entry[end:]
    covered = SIZE.pack(len(metadata)) + metadata
    checksum = crc32c(payload, crc32c(covered))
    return b"".join((_MAGIC, SIZE.pack(checksum), covered)), payload, checksum


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
    """Return the offset behind the value at `at` of a field with that tag, in a message that the library has read."""
    kind = tag & 7
    if kind == 0:
        return varints.decode(data, at)[1]
    if kind == 2:
        size, at = varints.decode(data, at)
        return at + size
    if kind == 3:      # a group of fields
        while True:
            inner, at = varints.decode(data, at)
            if inner & 7 == 4:
                return at
            at = _end_of(data, at, inner)
    return at + (8 if kind == 1 else 4)
