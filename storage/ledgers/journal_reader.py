"""What a journal has when it is read: the records that a crash may have kept from where they belong.

    segments, oldest first -> the unbroken chain that ends with the newest -> records, and what of them is damaged

storage/ledgers/journal.py says what a segment is, and writes them.
"""
import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.frames import CHECKSUM_END, MAGIC
from geminga.storage import format
from geminga.storage.disk.files import sync, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.bit_errors import wrong_bit

BAD, ASIDE = ".bad", ".aside"    # suffixes of segments that failed: to be replayed, and done with
_BLOCK = 4096                    # a device fails in units of this
_AT_ONCE = 1 << 20               # bytes that are copied at a time
_BEGIN = struct.Struct(">HI")    # of an entry: magic, checksum


@dataclass(slots=True)
class Record:
    """What one pass decided: groups (g,) GROUP_ROW over rows (n,) INDEX_ROW, their sources (n,) in data, and ops (o,) OP_ROW.

    Arrays, or, to be written, their bytes.
    """

    groups: NDArray | bytes
    rows: NDArray | bytes
    sources: NDArray | bytes
    ops: NDArray | bytes
    data: list            # pieces of bytes, to be read as one
    size: int             # bytes of data together


@dataclass(slots=True)
class Replay:
    """What a journal has that may not be where it belongs."""

    records: list[Record]
    damage: list[str]
    segments: set[Path]               # that the records are in
    last: int                         # number of the last of them


def replay(folder: Path, told: Callable[[str, int, int], None] = lambda what, done, of: None) -> Replay:
    """All records that a crash may have kept from where they belong, in order.  told: how far it is, see recovery.py.

    Segments are retired oldest first, so what counts is the unbroken chain that ends with the newest.  It may end in records that
    were not written whole: nothing in them was answered.  One that was synced and is not whole is damaged: where one bit
    is wrong it is made good, else its entries count without those that are damaged, or it is left out.
    """
    segments = []
    damage: list[str] = []
    for path in sorted(_segments(folder)):
        raw, unreadable = _read(path)
        damage += unreadable
        head, is_whole = _segment_header(path, raw)
        if not is_whole:
            damage.append(f"{path}: at byte 0: the header of the segment has a bit that is wrong, and was made good")
        if head is not None and not head["is_retired"]:
            segments.append((int(head["sequence"]), int(head["first_record"]), path, raw))
    chain: list[list[Record]] = []
    paths: set[Path] = set()
    last = 0
    following, newer = None, None                      # number of the first record behind those read so far; sequence of its segment
    for number, (sequence, first, path, raw) in enumerate(sorted(segments, key=lambda segment: segment[0], reverse=True)):
        told("segments", number, len(segments))
        if newer is not None and sequence != newer - 1:
            break
        records, end, wrong = _records(raw, sequence, first, following)
        chain.append([record for *_, record in records])
        paths.add(path)
        damage += [f"{path}: {text}" for text in wrong]
        last = max(last, end - 1)
        following, newer = first, sequence
    return Replay([record for records in reversed(chain) for record in records], damage, paths, last)


def read_segment(path: Path) -> tuple[NDArray | None, list[tuple[int, int, Record]], list[str]]:
    """(SEGMENT_HEADER, or None of a file that was never begun; (number, offset, record) of those in it; what is damaged) of one segment.

    Raises OSError, CorruptFile for one of a newer version.
    """
    raw, damage = _read(path)
    head, is_whole = _segment_header(path, raw)
    if head is None:
        return None, [], damage
    if not is_whole:
        damage.append("at byte 0: the header of the segment has a bit that is wrong, and was made good")
    first = int(head["first_record"])
    if head["is_retired"]:      # its header does not say any more with which it began
        if len(raw) < 2 * format.HEADER_SIZE:
            return head, [], damage
        first = int(np.frombuffer(raw, format.RECORD_HEADER, 1, format.HEADER_SIZE)["number"][0])
    records, _, wrong = _records(raw, int(head["sequence"]), first, None)
    return head, records, damage + wrong


def rescue(folder: Path) -> None:
    """What can be read of segments whose sync failed is written elsewhere; they themselves are never used again.

    Before anything is replayed: what a start puts in place must not be ahead of what the journal has on disk.
    """
    for bad in folder.glob(f"*{BAD}"):
        copy = bad.with_suffix(".journal")
        if not copy.exists():      # else it was made, and by now less may be left to read
            write_anew(copy, _read(bad)[0])
            sync(folder, os.fsync)
        bad.rename(bad.with_suffix(ASIDE))
        sync(folder, os.fsync)


def make_sure(found: Replay) -> None:
    """What was replayed is on disk: a kill may have come before its sync."""
    for path in found.segments:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            write_again(fd)
            os.fdatasync(fd)
        finally:
            os.close(fd)


def _segments(folder: Path) -> list[Path]:
    """Files that may have something to be replayed."""
    return [*folder.glob("*.journal"), *folder.glob(f"*{BAD}")]


def _read(path: Path) -> tuple[memoryview, list[str]]:
    """(the file, what of it cannot be read: there it is zeros).  Raises OSError."""
    try:
        return memoryview(path.read_bytes()), []
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    raw, lost = bytearray(path.stat().st_size), 0
    with open(path, "rb", buffering=0) as file:
        for at in range(0, len(raw), _BLOCK):
            try:
                raw[at:at + _BLOCK] = os.pread(file.fileno(), min(_BLOCK, len(raw) - at), at)
            except OSError:
                lost += 1
    return memoryview(raw), [f"{path}: {lost} of its blocks of {_BLOCK} bytes cannot be read"]


def _segment_header(path: Path, raw: memoryview | bytes) -> tuple[Any, bool]:
    """(the header, whether it is whole as it lies there); None for a file that is not a segment, or was never begun.

    Raises CorruptFile for one of a newer version.
    """
    if len(raw) < format.HEADER_SIZE:
        return None, True
    head, is_whole = np.frombuffer(raw, format.SEGMENT_HEADER, 1), True
    if head["version"][0] != 1 and not format.is_whole(head):
        head, is_whole = _with_one_bit_less_wrong(head), False
    if head is None or head["magic"][0] != format.SEGMENT_MAGIC:
        return None, True
    if head["version"][0] > format.VERSION:
        raise CorruptFile(path, 8, f"format version {format.VERSION} or older", int(head["version"][0]))
    return head[0], is_whole


def _with_one_bit_less_wrong(head: NDArray) -> NDArray | None:
    raw = bytearray(head.tobytes())
    for bit in range(8 * len(raw)):
        raw[bit // 8] ^= 1 << bit % 8
        if format.is_whole(found := np.frombuffer(bytes(raw), head.dtype, 1)):
            return found
        raw[bit // 8] ^= 1 << bit % 8
    return None


def _records(raw: memoryview, sequence: int, number: int, following: int | None) -> tuple[list[tuple[int, int, Record]], int, list[str]]:
    """((number, offset, record) of those of a segment, numbered from `number` on, the number behind the last, what is damaged).

    following: number of the first record of the next segment, None when this is the newest.
    """
    found: list[tuple[int, int, Record]] = []
    damage: list[str] = []
    at = format.HEADER_SIZE
    while True:
        record, end, is_whole = _read_record(raw, at, sequence, number)
        if is_whole:
            found.append((number, at, record))
            at, number = end, number + 1
            continue
        if (mended := _mended(raw, at, sequence, number)) is not None:
            damage.append(f"at byte {at}: record {number} has a bit that is wrong, and was made good")
            found.append((number, at, mended[0]))
            at, number = at + mended[1], number + 1
            continue
        wrong = _wrong_entries(record) if record is not None else []
        is_written = record is not None and not wrong                 # what of it is wrong says nothing about it
        later = _next_record(raw, at, sequence, number)
        was_synced = later is not None or following == number + 1
        if record is not None and (was_synced or is_written):
            damage.append(f"at byte {at}: record {number} is damaged, entries {wrong} of its {len(record.rows)}")
            found.append((number, at, record))
            at, number = end, number + 1
        elif later is not None:
            damage.append(f"at byte {at}: records {number} to {later[1] - 1} are damaged, and what was decided in them is lost")
            at, number = later
        else:
            if following is not None and number < following:
                damage.append(f"at byte {at}: records {number} to {following - 1} are damaged, and what was decided in them is lost")
            return found, following or number, damage


def _read_record(raw: memoryview, at: int, sequence: int, number: int) -> tuple[Record | None, int, bool]:
    """(the record there if its tables are whole, the offset behind it, whether all else of it is whole too)"""
    if (bounds := _bounds(raw, at, sequence, number)) is None:
        return None, at, False
    head, shapes, data, end = bounds
    start, claimed = at + format.HEADER_SIZE, int(head["tables"][0])
    checksum = _checksum_of_tables(raw, at, data)
    is_right = crc32c(raw[data:end], checksum) == head["checksum"][0]
    if not is_right and checksum != claimed:
        return None, at, False
    tables = []
    for dtype, count in shapes:
        tables.append(np.frombuffer(raw, dtype, count, start))
        start += count * dtype.itemsize
    return Record(*tables, [raw[data:end]], end - data), end, is_right and claimed in (checksum, 0)


def _bounds(raw: memoryview, at: int, sequence: int, number: int) -> tuple[NDArray, list, int, int] | None:
    """(header (1,), [(dtype, rows) of each table], offset behind the tables, offset behind the entries) of that record, if it is there."""
    if at + format.HEADER_SIZE > len(raw):
        return None
    head = np.frombuffer(raw, format.RECORD_HEADER, 1, at)
    start = at + format.HEADER_SIZE
    end = start + int(head["size"][0])
    if (head["magic"][0], head["segment"][0], head["number"][0]) != (format.RECORD_MAGIC, sequence, number) or end > len(raw):
        return None
    shapes = [(dtype, int(head[name][0])) for dtype, name in
              ((format.GROUP_ROW, "groups"), (format.INDEX_ROW, "rows"), (format.SOURCE, "rows"), (format.OP_ROW, "ops"))]
    data = start + sum(dtype.itemsize * count for dtype, count in shapes)
    return (head, shapes, data, end) if data <= end else None


def _checksum_of_tables(raw: memoryview, at: int, data: int) -> int:
    """Of the record there, whose tables end at `data`."""
    head = np.frombuffer(raw, format.RECORD_HEADER, 1, at).copy()
    head["tables"] = 0
    return crc32c(raw[at + format.HEADER_SIZE:data], crc32c(head.tobytes()[format.CHECKED_FROM:]))


def _mended(raw: memoryview, at: int, sequence: int, number: int) -> tuple[Record, int] | None:
    """(the record of that number there, its size), if one bit of it is wrong and it is whole otherwise.

    That is not a record which was not written to its end: no single bit makes up for what is missing there.
    """
    expected = format.record_header(segment=sequence, number=number, synced=0, size=0, groups=0, rows=0, ops=0)
    found = bytes(raw[at:at + format.HEADER_SIZE])
    if len(found) < format.HEADER_SIZE or (_name(expected) ^ _name(found)).bit_count() > 1:
        return None
    copy = memoryview(bytearray(raw[at:]))
    for bit in _suspects(copy, sequence, number):
        copy[bit // 8] ^= 1 << bit % 8
        record, end, is_whole = _read_record(copy, 0, sequence, number)
        if is_whole:
            return record, end
        copy[bit // 8] ^= 1 << bit % 8
    return None


def _name(head: bytes) -> int:
    """What tells a record's header from all others: magic, segment, number."""
    return int.from_bytes(head[:4] + head[format.CHECKED_FROM:24], "little")


def _suspects(raw: memoryview, sequence: int, number: int) -> Iterator[int]:
    """Which bits of the record may be the wrong one: of its tables and entries those that checksums point to, of its header each."""
    if (bounds := _bounds(raw, 0, sequence, number)) is not None:
        head, _, data, _ = bounds
        difference = _checksum_of_tables(raw, 0, data) ^ int(head["tables"][0])
        if not difference:
            return (yield from _suspects_in_entry(raw, data, _read_record(raw, 0, sequence, number)[0]))
        if (bit := wrong_bit(data - format.HEADER_SIZE, difference)) is not None:
            yield 8 * format.HEADER_SIZE + bit
    yield from range(8 * format.HEADER_SIZE)


def _suspects_in_entry(raw: memoryview, data: int, record: Record) -> Iterator[int]:
    """Likewise where only an entry of it is damaged; its entries begin at `data`."""
    if len(wrong := _wrong_entries(record)) != 1:
        return
    start, size, claimed = int(record.sources[wrong[0]]) + data, int(record.rows["size"][wrong[0]]), int(record.rows["crc32c"][wrong[0]])
    yield from range(8 * start, 8 * (start + CHECKSUM_END))
    start, size = start + CHECKSUM_END, size - CHECKSUM_END
    if (bit := wrong_bit(size, crc32c(raw[start:start + size]) ^ claimed)) is not None:
        yield 8 * start + bit


def _next_record(raw: memoryview, at: int, sequence: int, number: int) -> tuple[int, int] | None:
    """(offset, number) of the first whole record behind `at` that was written when the one of that number was on disk."""
    found, magic, named = bytes(raw[at:]), format.RECORD_MAGIC.to_bytes(4, "little"), sequence.to_bytes(8, "little")
    place = 0
    while (place := found.find(magic, place + 1)) >= 0:
        start = at + place
        if not found.startswith(named, place + format.CHECKED_FROM) or start + format.HEADER_SIZE > len(raw):
            continue
        head = np.frombuffer(raw, format.RECORD_HEADER, 1, start)[0]
        if head["synced"] >= number and _read_record(raw, start, sequence, int(head["number"]))[2]:
            return start, int(head["number"])
    return None


def _wrong_entries(record: Record) -> list[int] | None:
    """Which of its entries are damaged."""
    [data] = record.data
    return [number for number, (source, size, claimed) in
             enumerate(zip(record.sources.tolist(), record.rows["size"].tolist(), record.rows["crc32c"].tolist(), strict=True))
             if data[source:source + CHECKSUM_END] != _BEGIN.pack(MAGIC, claimed)
             or crc32c(data[source + CHECKSUM_END:source + size]) != claimed]


def retire(folder: Path) -> None:
    """Remove the journal of an owner that no longer exists, after all of its records have been applied and synced.

    Segments go oldest first, each durably before the next: a power cut could otherwise leave older segments alone, and their replay
    would bring back what was acknowledged since.
    """
    for _, path in by_age(folder):
        path.unlink()
        sync(folder, os.fsync)
    for path in folder.glob("*"):
        path.unlink()
    folder.rmdir()


def by_age(folder: Path) -> list[tuple[int, Path]]:
    """(sequence, path) of the segments that have a header, oldest first."""
    found = []
    for path in _segments(folder):
        try:
            with open(path, "rb") as file:
                head, _ = _segment_header(path, file.read(format.HEADER_SIZE))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            continue
        if head is not None:
            found.append((int(head["sequence"]), path))
    return sorted(found)


def write_again(fd: int) -> None:
    """What a sync that failed has left in memory only, the next sync would say nothing of and not write either."""
    for at in range(0, os.fstat(fd).st_size, _AT_ONCE):
        os.pwrite(fd, os.pread(fd, _AT_ONCE, at), at)
