"""The journal of an owner: what a pass decided, in one record, synced once.

    segment     SEGMENT_HEADER | record | record | ... | what an earlier use of the file left behind
    record      RECORD_HEADER | groups | rows | sources | ops | entries' bytes, as they came from the workers

A pass that touches 500 ledgers would pay 500 syncs; here it pays one.  The record is written and synced first; ledgers,
indexes and cursors are then written through their mappings and reach the disk when the kernel or a checkpoint sees to it.
After a crash the records are applied again, in order; that is idempotent.

Segments are files of one size that are used over and over: overwriting blocks that were written before syncs four times
faster than writing new ones (1 MiB: 0.6 ms against 2.9 ms, ext4 on a virtual disk), which is also why entries are written twice
rather than synced in their ledgers.  A full segment may be used again after a checkpoint: a thread has synced all files that
were written while it was filled.  That is put off until segments run short, so that ledgers that are consumed and deleted
meanwhile are never written at all.

What fails to be written or synced is never tried again: the kernel forgets what it could not write, and says so once.  The segment is
set aside under another name, `.bad`, its owner ends, and the next one copies what can be read of it; from then on it is
`.aside`, and only keeps its place on the disk from being used.
"""
import contextlib
import errno
import math
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.frames import CHECKSUM_END, MAGIC
from geminga.storage import format
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, is_full, text_of
from geminga.storage.ledger import allocate, write_anew
from geminga.storage.mending import wrong_bit

_ZEROS = 1 << 20
_BLOCK = 4096                    # a device fails in units of this
_SEGMENTS_MIN = 2                # one is written while the others are checkpointed, also where there is no room for more
_FREE_MIN = 2                    # free segments below which a checkpoint is begun
_BAD, _ASIDE = ".bad", ".aside"   # suffixes of segments that failed: to be replayed, and done with
_CLOSE_SECONDS = 2.5             # a stop is over after five, whatever there is to put in place
_IOV_MAX = 1000                  # pieces of one write; the kernel takes 1024
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
class _Segment:
    path: Path
    fd: int
    sequence: int


@dataclass(slots=True)
class _Checkpoint:
    what: tuple[set[Path], list]     # files, snapshots
    segments: list[_Segment]         # that are not needed any more when these are on disk
    done: Future


class Journal:
    """The journal while it is written; `open_journal` makes one, `replay` reads one."""

    def __init__(self, folder: Path, *, segment_bytes: int, segments_max: int, sequence: int, number: int, free: list[Path],
                 full: list[tuple["_Segment", set]]):
        self.folder, self._segment_bytes, self._segments_max = folder, segment_bytes, segments_max
        self._number = number                             # of the last record
        self._synced = number                             # of the last that is surely on disk
        free = free or [_write_zeros(folder / f"{sequence}.journal", segment_bytes)]
        if len(free) + len(full) < _SEGMENTS_MIN:
            free.append(_write_zeros(folder / f"{sequence}-next.journal", segment_bytes))
        self._segments = len(free) + len(full)            # files there are, or are being made
        self._dirty: set = set()                          # what has changed since this segment was begun
        self._full = full                                 # not checkpointed yet, with what changed meanwhile, oldest first
        self._checkpoints: list[_Checkpoint] = []         # under way, oldest first
        self._is_checkpoint_due = bool(full)              # what a start has put in place need not be replayed by the next
        self.spare: Callable[[], int] = lambda: 1 << 62   # bytes that one more segment may take
        self._threads = ThreadPoolExecutor(2, "checkpoint")     # one may be making the next segment's file
        self._closed_by = math.inf                        # checkpoints under way give up then
        self._free: list[Future] = [_done(path) for path in free]
        self._segment = self._begin(sequence)
        self._at = format.HEADER_SIZE

    @property
    def size_max(self) -> int:
        """Bytes that a record can have."""
        return self._segment_bytes - format.HEADER_SIZE

    def append(self, record: Record) -> None:
        """Write the record; durable after `sync`.  Raises StorageFull, and nothing of it is written then; NotDurable."""
        tables = [record.groups, record.rows, record.sources, record.ops]
        groups, rows, sources, ops = map(_size, tables)
        size = groups + rows + sources + ops + record.size
        whole = format.HEADER_SIZE + size
        assert whole <= self.size_max, (whole, self.size_max)
        if self._at + whole > self._segment_bytes:
            self._roll()
        head = partial(format.record_header, segment=self._segment.sequence, number=self._number + 1, synced=self._synced, size=size,
                       groups=groups // format.GROUP_ROW.itemsize, rows=rows // format.INDEX_ROW.itemsize,
                       ops=ops // format.OP_ROW.itemsize)
        of_tables = checksum = _checksum(tables, crc32c(head()[format.CHECKED_FROM:]))
        checksum = _checksum(record.data, checksum)
        try:
            self._write([head(checksum=checksum, tables=of_tables), *tables, *record.data], whole)
        except OSError as error:
            if is_full(error):      # a file system that writes elsewhere what is overwritten
                raise StorageFull(f"{self._segment.path}: {error.strerror}") from error
            self._set_aside(error)
        self._number += 1
        if self._is_checkpoint_due:
            self.sync()           # what is in memory includes this record, and what a snapshot has a replay must get to
            self._checkpoint()
        elif self._checkpoints and self._checkpoints[0].done.done():
            try:
                self._collect_checkpoints(wait=False)
            except OSError as error:
                raise NotDurable(text_of(error)) from error

    def _write(self, pieces: list, size: int) -> None:
        if len(pieces) > _IOV_MAX:
            pieces = [b"".join(pieces)]
        written = os.pwritev(self._segment.fd, pieces, self._at)
        if written != size:   # a signal, or a file system that takes less: rare enough to do it the plain way
            rest = b"".join(pieces)
            while written < size:
                written += os.pwrite(self._segment.fd, rest[written:], self._at + written)
        self._at += size

    def sync(self) -> None:
        """What was appended is on disk.  Raises NotDurable."""
        try:
            os.fdatasync(self._segment.fd)
        except OSError as error:
            self._set_aside(error)
        self._synced = self._number

    def _set_aside(self, error: OSError) -> NoReturn:
        """The segment is never written again."""
        bad = self._segment.path.with_suffix(_BAD)
        try:
            self._segment.path.rename(bad)
            sync(self.folder, os.fsync)
            what = f"it is set aside as {bad.name}"
        except OSError as again:      # no file system any more
            what = f"nor can it be set aside: {again.strerror}"
        raise NotDurable(f"{self._segment.path}: {error.strerror}; {what}") from error

    def check(self) -> None:
        """Raises NotDurable when the file that is written has no name any more: what goes there would be lost."""
        try:
            is_there = self._segment.path.stat().st_ino == os.fstat(self._segment.fd).st_ino
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise NotDurable(f"{self._segment.path}: it was removed or replaced")

    def touched(self, written) -> None:
        """It is not on disk as it is: the next checkpoint asks `written.checkpoint()` for (files to sync, snapshots to write)."""
        self._dirty.add(written)

    def _roll(self) -> None:
        """Go on in another segment.  Raises StorageFull, and may be called again then; NotDurable."""
        if not self._is_between:
            self.sync()
            self._full.append((self._segment, self._dirty))
            self._dirty, self._at = set(), self._segment_bytes + 1
        try:
            self._collect_checkpoints(wait=False)
            if not self._has_free():
                self._collect_checkpoints(wait=True)      # this is how a slow disk slows publishing
            self._segment = self._begin(self._segment.sequence + 1)
        except OSError as error:
            raise (StorageFull if is_full(error) else NotDurable)(text_of(error)) from error
        self._at = format.HEADER_SIZE

    @property
    def _is_between(self) -> bool:
        """A segment is full, and there was no room yet for what makes another one free."""
        return self._at > self._segment_bytes

    def _has_free(self) -> bool:
        """Whether there is a segment to go on in; those that could not be made are forgotten."""
        while self._free and isinstance(self._free[0].exception(), (StorageFull, OSError)):
            self._free.pop(0)
            self._segments -= 1
        return bool(self._free)

    def _grown(self, made: Future) -> None:
        """There may not have been room for one segment more."""
        if made.exception() is not None:
            self._is_checkpoint_due = True

    def _begin(self, sequence: int) -> _Segment:
        """Take a free segment; see to it that there will be another."""
        path = self._free[0].result()
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.pwrite(fd, _header_of_segment(sequence=sequence, first_record=self._number + 1), 0)
        except OSError:
            os.close(fd)
            raise
        self._free.pop(0)
        if not self._free and self._segments < self._segments_max and self.spare() >= self._segment_bytes:
            self._segments += 1
            self._free.append(self._threads.submit(_write_zeros, self.folder / f"{sequence}-next.journal", self._segment_bytes))
            self._free[0].add_done_callback(self._grown)
        elif len(self._free) < _FREE_MIN and self._full and not self._checkpoints:
            self._is_checkpoint_due = True
        return _Segment(path, fd, sequence)

    def _checkpoint(self) -> None:
        """Have all that changed during the older half of the full segments put on disk, each thing once."""
        self._is_checkpoint_due = False
        if self._checkpoints or not self._full:
            return
        oldest, self._full = self._full[:len(self._full) // 2 + 1], self._full[len(self._full) // 2 + 1:]
        what, segments = to_put(set().union(*(changed for _, changed in oldest))), [segment for segment, _ in oldest]
        self._checkpoints.append(_Checkpoint(what, segments, self._submit(what, segments)))

    def _submit(self, what: tuple[set[Path], list], segments: list[_Segment]) -> Future:
        return self._threads.submit(self._put_and_retire, what, segments)

    def _put_and_retire(self, what: tuple[set[Path], list], segments: list[_Segment]) -> None:
        """Retired on disk, and not in memory only: a power cut would leave what a segment was with parts of what it is to be."""
        put_on_disk(*what, lambda: time.monotonic() > self._closed_by)
        for segment in segments:
            _retire(segment)
            os.fdatasync(segment.fd)

    def _collect_checkpoints(self, *, wait: bool) -> None:
        """Segments whose checkpoint is done are free; with wait, at least one is.  Raises OSError.

        A checkpoint for which there was no room is made again, as it was: what is in memory now may not be in the journal yet.
        With wait that raises StorageFull; NotDurable when nothing is under way that could make one free.
        """
        while self._checkpoints and (self._checkpoints[0].done.done() or wait):
            oldest = self._checkpoints[0]
            if is_full(error := oldest.done.exception()):
                oldest.done = self._submit(oldest.what, oldest.segments)
                if wait:
                    raise StorageFull(text_of(error)) from error
                return
            oldest.done.result()
            while oldest.segments:
                segment = oldest.segments.pop(0)
                is_of_use = os.fstat(segment.fd).st_size == self._segment_bytes
                os.close(segment.fd)
                if is_of_use:
                    self._free.append(_done(segment.path))
                else:
                    self._segments -= 1
                    segment.path.unlink()
            self._checkpoints.pop(0)
            wait = wait and not self._free
        if wait:
            raise NotDurable(f"{self.folder}: there is no room for a segment that could be written")

    def close(self) -> None:
        """Everything is synced where it belongs and nothing is left to replay, unless that takes longer than a stop may.

        Raises NotDurable when something is left for another reason.
        """
        self.sync()
        self._closed_by = time.monotonic() + _CLOSE_SECONDS
        segments = [segment for checkpoint in self._checkpoints for segment in checkpoint.segments]
        segments += [segment for segment, _ in self._full] + [self._segment] * (not self._is_between)
        try:
            for checkpoint in self._checkpoints:
                checkpoint.done.result()
            put_on_disk(*to_put(self._dirty.union(*(changed for _, changed in self._full))), lambda: time.monotonic() > self._closed_by)
            for segment in segments:
                _retire(segment)
                os.fdatasync(segment.fd)
        except TooMuch:
            print("geminga: too much has changed to be put in place before a stop; the next start does it", file=sys.stderr, flush=True)
        except OSError as error:
            raise NotDurable(f"{text_of(error)}; what the journal has is put in place at the next start") from error
        finally:
            for segment in segments:
                os.close(segment.fd)
            self._threads.shutdown()


def _checksum(pieces: list, checksum: int) -> int:
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return checksum


def to_put(changed: set) -> tuple[set[Path], list]:
    """(files, snapshots) of all of them."""
    found = [written.checkpoint() for written in changed]
    return {path for files, _ in found for path in files}, [snapshot for _, snapshots in found for snapshot in snapshots]


def _size(table: NDArray | bytes) -> int:
    return len(table) if isinstance(table, bytes) else table.nbytes


def _done(path: Path) -> Future:
    future: Future = Future()
    future.set_result(path)
    return future


def _write_zeros(path: Path, size: int) -> Path:
    """A segment's file whose blocks have all been written: what syncs fast is overwriting them.  Raises StorageFull, OSError."""
    try:
        allocate(path, size)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            zeros = bytes(_ZEROS)
            for at in range(0, size, _ZEROS):
                os.pwrite(fd, zeros[:size - at], at)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        sync(path.parent, os.fsync)      # a file has a name after a power cut only if its folder was synced
    except (OSError, StorageFull):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return path


def _retire(segment: _Segment) -> None:
    os.pwrite(segment.fd, _header_of_segment(is_retired=1, sequence=segment.sequence), 0)


def _header_of_segment(**fields) -> bytes:
    return format.checked_header(format.SEGMENT_HEADER, magic=format.SEGMENT_MAGIC, **fields)


def _write_again(fd: int) -> None:
    """What a sync that failed has left in memory only, the next sync would say nothing of and not write either."""
    for at in range(0, os.fstat(fd).st_size, _ZEROS):
        os.pwrite(fd, os.pread(fd, _ZEROS, at), at)


class TooMuch(Exception):
    """Not all was put on disk in the time there was."""


def put_on_disk(paths: set[Path], snapshots: list, is_over: Callable[[], bool] = lambda: False) -> None:
    """Write the snapshots, fdatasync each file that is still there, and sync the folders that name them.

    Raises TooMuch when that is over before it is done.
    """
    def one_by_one(things: Iterable) -> Iterator:
        for thing in things:
            if is_over():
                raise TooMuch
            yield thing

    for snapshot in one_by_one(snapshots):
        snapshot.write()
    for path in one_by_one(paths):
        with contextlib.suppress(FileNotFoundError):      # deleted since: fully acknowledged
            sync(path, os.fdatasync)
    paths = paths | {snapshot.file.path for snapshot in snapshots}
    for folder in one_by_one({path.parent for path in paths}):
        with contextlib.suppress(FileNotFoundError):      # deleted since
            sync(folder, os.fsync)
    for folder in {above for path in paths for above in path.parents[1:3]}:      # the one above all was made with the first partition
        sync(folder, os.fsync)


def sync(path: Path, how) -> None:
    """how: os.fsync, for folders, or os.fdatasync."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        how(fd)
    finally:
        os.close(fd)


@dataclass(slots=True)
class Replay:
    """What a journal has that may not be where it belongs."""

    records: list[Record]
    damage: list[str]
    segments: set[Path]               # that the records are in
    last: int                         # number of the last of them


def replay(folder: Path) -> Replay:
    """All records that a crash may have kept from where they belong, in order.

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
    for sequence, first, path, raw in sorted(segments, key=lambda segment: segment[0], reverse=True):
        if newer is not None and sequence != newer - 1:
            break
        records, end, wrong = _records(raw, sequence, first, following)
        chain.append(records)
        paths.add(path)
        damage += [f"{path}: {text}" for text in wrong]
        last = max(last, end - 1)
        following, newer = first, sequence
    return Replay([record for records in reversed(chain) for record in records], damage, paths, last)


def rescue(folder: Path) -> None:
    """What can be read of segments whose sync failed is written elsewhere; they themselves are never used again.

    Before anything is replayed: what a start puts in place must not be ahead of what the journal has on disk.
    """
    for bad in folder.glob(f"*{_BAD}"):
        copy = bad.with_suffix(".journal")
        if not copy.exists():      # else it was made, and by now less may be left to read
            write_anew(copy, _read(bad)[0])
            sync(folder, os.fsync)
        bad.rename(bad.with_suffix(_ASIDE))
        sync(folder, os.fsync)


def make_sure(found: Replay) -> None:
    """What was replayed is on disk: a kill may have come before its sync."""
    for path in found.segments:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _write_again(fd)
            os.fdatasync(fd)
        finally:
            os.close(fd)


def _segments(folder: Path) -> list[Path]:
    """Files that may have something to be replayed."""
    return [*folder.glob("*.journal"), *folder.glob(f"*{_BAD}")]


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


def _records(raw: memoryview, sequence: int, number: int, following: int | None) -> tuple[list[Record], int, list[str]]:
    """(the records of a segment, numbered from `number` on, the number behind the last of them, what is damaged).

    following: number of the first record of the next segment, None when this is the newest.
    """
    found: list[Record] = []
    damage: list[str] = []
    at = format.HEADER_SIZE
    while True:
        record, end, is_whole = _read_record(raw, at, sequence, number)
        if is_whole:
            found.append(record)
            at, number = end, number + 1
            continue
        if (mended := _mended(raw, at, sequence, number)) is not None:
            damage.append(f"at byte {at}: record {number} has a bit that is wrong, and was made good")
            found.append(mended[0])
            at, number = at + mended[1], number + 1
            continue
        wrong = _wrong_entries(record) if record is not None else []
        is_written = record is not None and not wrong                 # what of it is wrong says nothing about it
        later = _next_record(raw, at, sequence, number)
        was_synced = later is not None or following == number + 1
        if record is not None and (was_synced or is_written):
            damage.append(f"at byte {at}: record {number} is damaged, entries {wrong} of its {len(record.rows)}")
            found.append(record)
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
    """Remove a journal whose owner there is no more, when all that was in it has been applied and synced; oldest first."""
    for _, path in _by_age(folder):
        path.unlink()
    for path in folder.glob("*"):
        path.unlink()
    folder.rmdir()
    sync(folder.parent, os.fsync)


def _by_age(folder: Path) -> list[tuple[int, Path]]:
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


def open_journal(folder: Path, *, segment_bytes: int, segments_max: int, kept: Replay | None = None, changed=None) -> Journal:
    """A journal to write, when all that was in it has been applied; its files are used again.

    kept: what was replayed and is not on disk yet where it belongs; `changed` stands for that at a checkpoint.  Without it
    everything is, and all segments are retired, oldest first: should this process be killed meanwhile, those left are the newest,
    and say once more what holds.  Older ones alone would bring back what was acknowledged since.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for above in (folder.parent, folder.parent.parent):
        sync(above, os.fsync)
    used = _by_age(folder)
    last = used[-1][0] if used else 0
    full: list[tuple[_Segment, set]] = []
    with contextlib.ExitStack() as opened:
        for sequence, path in used:
            segment = _Segment(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), sequence)
            if is_kept := kept is not None and path in kept.segments:
                opened.callback(os.close, segment.fd)
                full.append((segment, {changed}))
                if sequence == last:
                    _write_again(segment.fd)
            else:
                _retire(segment)
            os.fdatasync(segment.fd)           # also one that is kept: what follows it must not be there without its end
            if not is_kept:
                os.close(segment.fd)
        if changed is not None:
            changed.is_durable()
        keeps = {segment.path for segment, _ in full}
        free = [path for _, path in used if path not in keeps and path.stat().st_size == segment_bytes]
        free = free[:max(1, segments_max - len(full))]
        for path in set(folder.glob("*.journal")) - set(free) - keeps:
            path.unlink()
        try:
            journal = Journal(folder, segment_bytes=segment_bytes, segments_max=segments_max, sequence=last + 1,
                              number=kept.last if kept else 0, free=free, full=full)
            opened.pop_all()
            return journal
        except (StorageFull, OSError) as error:
            if not (full and is_full(error)):
                raise
    # There is no room for one segment more: what those that are kept have goes where it belongs now, and they are used again.
    put_on_disk(*to_put({changed}))
    return open_journal(folder, segment_bytes=segment_bytes, segments_max=segments_max)
