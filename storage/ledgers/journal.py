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
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from crc32c import crc32c
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.disk.files import IOV_MAX, allocate, sync
from geminga.storage.errors import NotDurable, StorageFull, is_full, text_of
from geminga.storage.ledgers.journal_reader import BAD, Record, Replay, by_age, write_again
from geminga.storage.runtime.log import log

_ZEROS = 1 << 20
_SEGMENTS_MIN = 2                # one is written while the others are checkpointed, also where there is no room for more
_FREE_MIN = 2                    # free segments below which a checkpoint is begun
_CLOSE_SECONDS = 2.5             # a stop is over after five, whatever there is to put in place


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
        self.folder, self._segment_bytes = folder, segment_bytes
        self.segments_max = segments_max                  # files there may be; those beyond go when they have been checkpointed
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
        if len(pieces) > IOV_MAX:
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
        bad = self._segment.path.with_suffix(BAD)
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

    def mark_dirty(self, written) -> None:
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
        if not self._free and self._segments < self.segments_max and self.spare() >= self._segment_bytes:
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
        what, segments = collect_checkpoint(set().union(*(changed for _, changed in oldest))), [segment for segment, _ in oldest]
        self._checkpoints.append(_Checkpoint(what, segments, self._submit(what, segments)))

    def _submit(self, what: tuple[set[Path], list], segments: list[_Segment]) -> Future:
        return self._threads.submit(self._write_and_retire, what, segments)

    def _write_and_retire(self, what: tuple[set[Path], list], segments: list[_Segment]) -> None:
        """Retired on disk, and not in memory only: a power cut would leave what a segment was with parts of what it is to be."""
        began = time.monotonic()
        write_checkpoint(*what, lambda: time.monotonic() > self._closed_by)
        log.debug("a checkpoint was made", segments=len(segments), files=len(what[0]), seconds=round(time.monotonic() - began, 3))
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
                is_one_too_many = self._free and self._segments > self.segments_max
                is_of_use = os.fstat(segment.fd).st_size == self._segment_bytes and not is_one_too_many
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
            write_checkpoint(*collect_checkpoint(self._dirty.union(*(changed for _, changed in self._full))), lambda: time.monotonic() > self._closed_by)
            for segment in segments:
                _retire(segment)
                os.fdatasync(segment.fd)
        except TooMuch:
            log.info("too much has changed to be put in place before a stop; the next start does it", code="G105")
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


def collect_checkpoint(changed: set) -> tuple[set[Path], list]:
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


class TooMuch(Exception):
    """Not all was put on disk in the time there was."""


def write_checkpoint(paths: set[Path], snapshots: list, is_over: Callable[[], bool] = lambda: False) -> None:
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


def open_journal(folder: Path, *, segment_bytes: int, segments_max: int, kept: Replay | None = None, changed=None) -> Journal:
    """A journal to write, when all that was in it has been applied; its files are used again.

    kept: what was replayed and is not on disk yet where it belongs; `changed` stands for that at a checkpoint.  Without it
    everything is, and all segments are retired, oldest first: should this process be killed meanwhile, those left are the newest,
    and say once more what holds.  Older ones alone would bring back what was acknowledged since.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for above in (folder.parent, folder.parent.parent):
        sync(above, os.fsync)
    used = by_age(folder)
    last = used[-1][0] if used else 0
    full: list[tuple[_Segment, set]] = []
    with contextlib.ExitStack() as opened:
        for sequence, path in used:
            segment = _Segment(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), sequence)
            if is_kept := kept is not None and path in kept.segments:
                opened.callback(os.close, segment.fd)
                full.append((segment, {changed}))
                if sequence == last:
                    write_again(segment.fd)
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
    write_checkpoint(*collect_checkpoint({changed}))
    return open_journal(folder, segment_bytes=segment_bytes, segments_max=segments_max)
