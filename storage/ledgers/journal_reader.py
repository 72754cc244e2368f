"""Read the journal: find records whose changes a crash may have kept out of ledgers, indexes and states.

    segments, oldest first -> the unbroken chain that ends with the newest -> its records, and the damage found in them

journal.py explains segments and records, and writes them.
"""
import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.frames import CHECKSUM_END, MAGIC
from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.disk.files import sync, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.bit_errors import wrong_bit

# Suffixes of segments whose sync failed: before and after they were copied.
BAD, ASIDE = ".bad", ".aside"
_BLOCK = 4096                    # a device fails in units of this many bytes
_AT_ONCE = 1 << 20               # bytes that are copied at a time
_BEGIN = struct.Struct(">HI")    # the begin of an entry: magic, checksum
_BIT_MADE_GOOD = "at byte 0: the header of the segment has a bit that is wrong, and was made good"

Told = Callable[[str, int, int], None]      # (name of a step, how many are done, how many there are)


@dataclass(slots=True)
class StoredRecord:
    """A record that was read from a segment; journal.Record is a record to be written."""

    groups: Rows                  # (g,) GROUP_ROW: runs of rows that go to one ledger
    rows: Rows                    # (n,) INDEX_ROW
    sources: NDArray[np.uint32]   # (n,) offset of each row's entry in `data`
    ops: Rows                     # (o,) OP_ROW
    data: memoryview              # the entries' bytes

    @property
    def size(self) -> int:
        """The size of the entries in bytes."""
        return len(self.data)


@dataclass(slots=True)
class Replay:
    """Records whose changes may be missing from ledgers and states, with the damage found while reading them."""

    records: list[StoredRecord]
    damage: list[str]                 # one line for each damaged place
    segments: list[Path]              # files that the records are in, newest first
    last: int                         # number of the last record


class _Found(NamedTuple):
    """A record with its number and its offset in the segment."""

    number: int
    at: int                           # offset in the segment
    record: StoredRecord


def _tell_nobody(step: str, done: int, of: int) -> None:
    pass


def replay(folder: Path, told: Told = _tell_nobody) -> Replay:
    """Read all records that may have to be replayed, in order.  told: reports progress.

    Segments are retired oldest first.  So the records are in the unbroken chain of segments that ends with the newest
    one. Records at the end of the chain may be incomplete: no client got an answer for anything in them.

    A record that was synced and fails its checksum is damaged.  If one bit is wrong, the bit is corrected.  Otherwise
    the record counts without its damaged entries; if its tables are damaged, the whole record is left out.

    Raises OSError, CorruptFile for a newer version.
    """
    segments = []
    damage: list[str] = []
    for path in sorted(_segments(folder)):
        raw, unreadable = _read(path)
        damage += unreadable
        head, is_whole = _segment_header(path, raw)
        if not is_whole:
            damage.append(f"{path}: {_BIT_MADE_GOOD}")
        if head is not None and not head["is_retired"]:
            segments.append((int(head["sequence"]), int(head["first_record"]), path, raw))
    chain: list[list[StoredRecord]] = []
    paths: list[Path] = []
    last = 0
    # First record number and sequence of the segment read in the previous round, which is the next newer one.
    following, newer = None, None
    newest_first = sorted(segments, key=lambda segment: segment[0], reverse=True)
    for number, (sequence, first, path, raw) in enumerate(newest_first):
        told("segments", number, len(segments))
        if newer is not None and sequence != newer - 1:
            break
        records, end, wrong = _records(raw, sequence, first, following)
        chain.append([found.record for found in records])
        paths.append(path)
        damage += [f"{path}: {text}" for text in wrong]
        last = max(last, end - 1)
        following, newer = first, sequence
    return Replay([record for records in reversed(chain) for record in records], damage, paths, last)


def read_segment(path: Path) -> tuple[Any, list[_Found], list[str]]:
    """Read one segment and return (its SEGMENT_HEADER row, its records, lines about damage).

    The header is None if the file was never written.  Raises OSError, CorruptFile for a newer version.
    """
    raw, damage = _read(path)
    head, is_whole = _segment_header(path, raw)
    if head is None:
        return None, [], damage
    if not is_whole:
        damage.append(_BIT_MADE_GOOD)
    first = int(head["first_record"])
    if head["is_retired"]:      # the header of a retired segment has no number of its first record
        if len(raw) < 2 * format.HEADER_SIZE:
            return head, [], damage
        first = int(np.frombuffer(raw, format.RECORD_HEADER, 1, format.HEADER_SIZE)["number"][0])
    records, _, wrong = _records(raw, int(head["sequence"]), first, None)
    return head, records, damage + wrong


def whole_records(raw: memoryview, sequence: int, number: int) -> tuple[list[StoredRecord], int]:
    """Return (the undamaged records at the beginning of `raw`, their size in bytes), numbered from `number` on.

    raw: bytes of a segment, from the begin of a record on.  A record that its owner is still writing ends the list.
    """
    records: list[StoredRecord] = []
    at = 0
    while True:
        record, end, is_whole = _read_record(raw, at, sequence, number + len(records))
        if record is None or not is_whole:
            return records, at
        records.append(record)
        at = end


def record_size(raw: memoryview, sequence: int, number: int) -> int:
    """Return the size in bytes of record `number`, whose header begins `raw`, unchecked; 0 if it does not."""
    if len(raw) < format.HEADER_SIZE:
        return 0
    head = np.frombuffer(raw, format.RECORD_HEADER, 1)[0]
    is_it = (head["magic"], head["segment"], head["number"]) == (format.RECORD_MAGIC, sequence, number)
    return format.HEADER_SIZE + int(head["size"]) if is_it else 0


def heads(folder: Path) -> dict[int, tuple[Path, Any]]:
    """Return {sequence: (path, SEGMENT_HEADER row)} of all segments with a header.  Raises OSError, CorruptFile."""
    found = {}
    for path in _segments(folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            raw = file.read(format.HEADER_SIZE)
            head = _segment_header(path, raw)[0] if any(raw) else None      # zeros: it was not used yet
            if head is not None:
                found[int(head["sequence"])] = path, head
    return found


def last_number(folder: Path) -> int:
    """Return the number of a journal's last record, 0 if that is not known.  Raises OSError, CorruptFile."""
    if not (found := heads(folder)):
        return 0
    head = found[max(found)][1]
    return max(0, int(head["first_record"]) - 1) if head["is_retired"] else replay(folder).last


def rescue(folder: Path) -> None:
    """Copy segments whose sync failed, as far as they can be read.  The failed files are never used again.

    This must come before the replay.  Otherwise a start could apply records that the journal does not have on disk.

    Raises OSError.
    """
    for bad in folder.glob(f"*{BAD}"):
        copy = bad.with_suffix(".journal")
        if not copy.exists():      # else the copy is complete, and by now less may be readable
            write_anew(copy, _read(bad)[0])
            sync(folder, os.fsync)
        bad.rename(bad.with_suffix(ASIDE))
        sync(folder, os.fsync)


def make_sure(found: Replay) -> None:
    """Sync the segments of a replay, because the former owner may have died before its sync.

    It may also have died because a sync of the newest segment failed.  What the kernel could not write then, it would
    not write now either, so that segment is written again.

    Raises OSError.
    """
    for path in found.segments:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if path == found.segments[0]:
                write_again(fd)
            os.fdatasync(fd)
        finally:
            os.close(fd)


def _segments(folder: Path) -> list[Path]:
    """Return the paths of a journal's files that may have records to replay."""
    return [*folder.glob("*.journal"), *folder.glob(f"*{BAD}")]


def _read(path: Path) -> tuple[memoryview, list[str]]:
    """Read a file and return (its bytes, at most one line about damage).

    Blocks that cannot be read become zeros, and are counted in the line.

    Raises OSError.
    """
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
    """Return (SEGMENT_HEADER row, whether it needed no correction).

    The row is None if the file is not a segment, or was never written.  Raises CorruptFile for a newer version.
    """
    if len(raw) < format.HEADER_SIZE:
        return None, True
    stored = np.frombuffer(raw, format.SEGMENT_HEADER, 1)
    is_whole = bool(stored["version"][0] == 1) or format.is_whole(stored)
    head = stored if is_whole else _corrected(stored)
    if head is None or head["magic"][0] != format.SEGMENT_MAGIC:
        return None, True
    if head["version"][0] > format.VERSION:
        raise CorruptFile(path, 8, f"format version {format.VERSION} or older", int(head["version"][0]))
    return head[0], is_whole


def _corrected(head: Rows) -> Rows | None:
    """Return a SEGMENT_HEADER (1,) with its single wrong bit corrected; None if more bits are wrong."""
    raw = bytearray(head.tobytes())
    for bit in range(8 * len(raw)):
        raw[bit // 8] ^= 1 << bit % 8
        if format.is_whole(found := np.frombuffer(bytes(raw), head.dtype, 1)):
            return found
        raw[bit // 8] ^= 1 << bit % 8
    return None


# -- records

def _records(raw: memoryview, sequence: int, number: int,
             following: int | None) -> tuple[list[_Found], int, list[str]]:
    """Read a segment and return (its records, the number after that of its last record, lines about damage).

    number: of the segment's first record.  following: number of the next segment's first record; None for the newest
    segment.

    A record was synced if a later record says so, or if there is a next segment.  Damage is reported only in records
    that were synced.  At any other damaged record the segment ends: no client got an answer for anything in it or
    behind it.
    """
    found: list[_Found] = []
    damage: list[str] = []
    at = format.HEADER_SIZE
    while True:
        record, end, is_whole = _read_record(raw, at, sequence, number)
        if record is not None and is_whole:
            found.append(_Found(number, at, record))
            at, number = end, number + 1
            continue
        if (corrected := _correct_record(raw, at, sequence, number)) is not None:
            damage.append(f"at byte {at}: record {number} has a bit that is wrong, and was made good")
            found.append(_Found(number, at, corrected[0]))
            at, number = at + corrected[1], number + 1
            continue
        wrong = _wrong_entries(record) if record is not None else []
        is_written = record is not None and not wrong      # only the header's own checksum is wrong
        later = _next_record(raw, at, sequence, number)
        was_synced = later is not None or following == number + 1
        if record is not None and (was_synced or is_written):
            damage.append(f"at byte {at}: record {number} is damaged, entries {wrong} of its {len(record.rows)}")
            found.append(_Found(number, at, record))
            at, number = end, number + 1
        elif later is not None:
            damage.append(_lost(at, number, later[1] - 1))
            at, number = later
        else:
            if following is not None and number < following:
                damage.append(_lost(at, number, following - 1))
            return found, following or number, damage


def _lost(at: int, first: int, last: int) -> str:
    return f"at byte {at}: records {first} to {last} are damaged, and what was decided in them is lost"


def _read_record(raw: memoryview, at: int, sequence: int, number: int) -> tuple[StoredRecord | None, int, bool]:
    """Read the record at an offset; return (the record, the offset behind it, whether all of it is undamaged).

    The record is None if there is none at the offset, or if its tables are damaged.
    """
    if (bounds := _bounds(raw, at, sequence, number)) is None:
        return None, at, False
    checksum = _checksum_of_tables(raw, at, bounds.data)
    claimed = int(bounds.head["tables"][0])
    is_right = crc32c(raw[bounds.data:bounds.end], checksum) == bounds.head["checksum"][0]
    if not is_right and checksum != claimed:
        return None, at, False
    tables: list[NDArray[Any]] = []
    start = at + format.HEADER_SIZE
    for dtype, count in bounds.tables:
        tables.append(np.frombuffer(raw, dtype, count, start))
        start += count * dtype.itemsize
    groups, rows, sources, ops = tables
    record = StoredRecord(groups, rows, sources, ops, raw[bounds.data:bounds.end])
    return record, bounds.end, is_right and claimed in (checksum, 0)


class _Bounds(NamedTuple):
    """Place of each part of a record in its segment."""

    head: Rows                                  # RECORD_HEADER (1,)
    tables: list[tuple[np.dtype[Any], int]]     # dtype and number of rows of each table
    data: int                                   # offset behind the tables, where the entries begin
    end: int                                    # offset behind the entries


def _bounds(raw: memoryview, at: int, sequence: int, number: int) -> _Bounds | None:
    """Return the places of the parts of record `number`; None if its header is not at that offset.

    No checksum is checked.
    """
    if at + format.HEADER_SIZE > len(raw):
        return None
    head = np.frombuffer(raw, format.RECORD_HEADER, 1, at)
    start = at + format.HEADER_SIZE
    end = start + int(head["size"][0])
    name = head["magic"][0], head["segment"][0], head["number"][0]
    if name != (format.RECORD_MAGIC, sequence, number) or end > len(raw):
        return None
    groups, rows, ops = (int(head[field][0]) for field in ("groups", "rows", "ops"))
    tables: list[tuple[np.dtype[Any], int]] = [
        (format.GROUP_ROW, groups), (format.INDEX_ROW, rows), (format.SOURCE, rows), (format.OP_ROW, ops)]
    data = start + sum(dtype.itemsize * count for dtype, count in tables)
    return _Bounds(head, tables, data, end) if data <= end else None


def _checksum_of_tables(raw: memoryview, at: int, data: int) -> int:
    """Return the CRC32-C of a record's header and tables, to compare with the header's field `tables`.

    data: offset at which the tables end.
    """
    head = np.frombuffer(raw, format.RECORD_HEADER, 1, at).copy()
    head["tables"] = 0
    return crc32c(raw[at + format.HEADER_SIZE:data], crc32c(head.tobytes()[format.CHECKED_FROM:]))


def _wrong_entries(record: StoredRecord) -> list[int]:
    """Return the indices of a record's entries that are damaged."""
    claims = zip(record.sources.tolist(), record.rows["size"].tolist(), record.rows["crc32c"].tolist(), strict=True)
    return [number for number, (source, size, claimed) in enumerate(claims)
            if record.data[source:source + CHECKSUM_END] != _BEGIN.pack(MAGIC, claimed)
            or crc32c(record.data[source + CHECKSUM_END:source + size]) != claimed]


def _next_record(raw: memoryview, at: int, sequence: int, number: int) -> tuple[int, int] | None:
    """Find the first undamaged record behind offset `at` that proves record `number` to have been synced.

    Return (its offset, its number); None if there is no such record.
    """
    rest, magic = bytes(raw[at:]), format.RECORD_MAGIC.to_bytes(4, "little")
    segment = sequence.to_bytes(8, "little")
    place = 0
    while (place := rest.find(magic, place + 1)) >= 0:
        start = at + place
        if not rest.startswith(segment, place + format.CHECKED_FROM) or start + format.HEADER_SIZE > len(raw):
            continue
        head = np.frombuffer(raw, format.RECORD_HEADER, 1, start)[0]
        if head["synced"] >= number and _read_record(raw, start, sequence, int(head["number"]))[2]:
            return start, int(head["number"])
    return None


# -- one wrong bit

def _correct_record(raw: memoryview, at: int, sequence: int, number: int) -> tuple[StoredRecord, int] | None:
    """Return (record `number`, its size) with its single wrong bit corrected.

    Return None if correcting one bit does not make the record match its checksums.  So an incomplete record is never
    mistaken for a damaged one.
    """
    expected = format.record_header(segment=sequence, number=number, synced=0, size=0, groups=0, rows=0, ops=0)
    found = bytes(raw[at:at + format.HEADER_SIZE])
    if len(found) < format.HEADER_SIZE or (_name(expected) ^ _name(found)).bit_count() > 1:
        return None
    copy = memoryview(bytearray(raw[at:]))
    for bit in _suspects(copy, sequence, number):
        copy[bit // 8] ^= 1 << bit % 8
        record, end, is_whole = _read_record(copy, 0, sequence, number)
        if record is not None and is_whole:
            return record, end
        copy[bit // 8] ^= 1 << bit % 8
    return None


def _name(head: bytes) -> int:
    """Return the bytes that identify a record's header (magic, segment, number) as an integer."""
    return int.from_bytes(head[:4] + head[format.CHECKED_FROM:24], "little")


def _suspects(raw: memoryview, sequence: int, number: int) -> Iterator[int]:
    """Iterate over the bits that may be the single wrong one of the record at offset 0.

    Checksums point to one bit of the tables or entries.  In the header any bit may be wrong.
    """
    if (bounds := _bounds(raw, 0, sequence, number)) is not None:
        difference = _checksum_of_tables(raw, 0, bounds.data) ^ int(bounds.head["tables"][0])
        if not difference:      # the header and the tables are right
            record, _, _ = _read_record(raw, 0, sequence, number)
            assert record is not None, bounds
            yield from _suspects_in_entry(raw, bounds.data, record)
            return
        if (bit := wrong_bit(bounds.data - format.HEADER_SIZE, difference)) is not None:
            yield 8 * format.HEADER_SIZE + bit
    yield from range(8 * format.HEADER_SIZE)


def _suspects_in_entry(raw: memoryview, data: int, record: StoredRecord) -> Iterator[int]:
    """Iterate over the bits of entries that may be the single wrong one of a record whose tables are undamaged.

    data: offset of the record's entries.  Nothing is yielded unless exactly one entry is damaged.
    """
    if len(wrong := _wrong_entries(record)) != 1:
        return
    [at] = wrong
    start, size = int(record.sources[at]) + data, int(record.rows["size"][at])
    yield from range(8 * start, 8 * (start + CHECKSUM_END))
    start, size = start + CHECKSUM_END, size - CHECKSUM_END
    difference = crc32c(raw[start:start + size]) ^ int(record.rows["crc32c"][at])
    if (bit := wrong_bit(size, difference)) is not None:
        yield 8 * start + bit


# -- files

def retire(folder: Path) -> None:
    """Remove the journal of an owner that no longer exists, after all of its records have been applied and synced.

    Segments are removed oldest first, each durably before the next.  Otherwise a power cut could leave only older
    segments, and their replay would bring back entries that were acknowledged since.
    """
    for _, path in by_age(folder):
        path.unlink()
        sync(folder, os.fsync)
    for path in folder.glob("*"):
        path.unlink()
    folder.rmdir()


def by_age(folder: Path) -> list[tuple[int, Path]]:
    """Return [(sequence, path)] of the segments that have a header, oldest first."""
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
    """Overwrite a file with its own content, so that the next sync writes all of it.

    After a failed sync the kernel may keep content in memory, mark it clean, and not write it at the next sync.
    """
    for at in range(0, os.fstat(fd).st_size, _AT_ONCE):
        os.pwrite(fd, os.pread(fd, _AT_ONCE, at), at)
