"""The journal of an owner: each pass writes its decisions in one record, and syncs once.

    segment     SEGMENT_HEADER | record | record | ... | bytes of an earlier use of the file
    record      RECORD_HEADER | groups | rows | sources | ops | entries' bytes, as they came from the workers

A pass that writes to 500 ledgers would need 500 syncs; with the journal it needs one.  The record is written and synced
first.  Ledgers, indexes and cursors are written afterwards, and reach the disk when the kernel or a checkpoint sees to
it.  After a crash the records are applied again, in order; applying them twice changes nothing.

Segments are files of one size that are used over and over.  Overwriting blocks that were written before syncs four
times faster than writing new blocks (1 MiB: 0.6 ms against 2.9 ms, ext4 on a virtual disk).  That is also why entries
are written twice rather than synced in their ledgers.

A full segment may be used again after a checkpoint: a thread has synced all files that changed while the segment was
filled.  Checkpoints are put off until segments run short.  So ledgers that are consumed and deleted meanwhile are
never written to the disk at all.

A write or sync that fails is never tried again: the kernel forgets what it could not write, and reports that once.
The segment is set aside under another name, `.bad`, and its owner ends.  The next owner copies what can be read of the
segment.  From then on the file is called `.aside`, and only keeps its place on the disk from being used.
"""
import contextlib
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.disk.files import IOV_MAX, FileSystem, sync
from geminga.storage.errors import NotDurable, StorageFull, is_full, text_of
from geminga.storage.ledgers import journal_reader
from geminga.storage.ledgers.checkpoints import Changed, Checkpoint, TooMuch, collect_checkpoint, write_checkpoint
from geminga.storage.ledgers.journal_reader import BAD, Replay, by_age
from geminga.storage.ledgers.journal_segments import Segment, header_of_segment, make_segment, retire
from geminga.storage.runtime.log import log

_GROUP, _ROW, _OP = format.GROUP_ROW.itemsize, format.INDEX_ROW.itemsize, format.OP_ROW.itemsize
_SEGMENTS_MIN = 2                # one is written while another is checkpointed, even on a full disk
_FREE_MIN = 2                    # free segments below which a checkpoint is begun
_COLLECTED_MAX = 16              # objects of a checkpoint that are collected at once: about 2 ms

Piece = bytes | memoryview


@dataclass(slots=True)
class Record:
    """A record to be written; journal_reader.StoredRecord describes its tables.

    Each table may also be given as bytes, which costs less for few rows (proto/rows.py).
    """

    groups: Rows | bytes
    rows: Rows | bytes
    sources: NDArray[np.uint32] | Rows | bytes
    ops: Rows | bytes
    data: Sequence[Piece]         # pieces of the entries' bytes, to be read as one
    size: int                     # bytes of the entries


@dataclass(slots=True)
class _Collecting:
    """A checkpoint of which some objects are still to be collected, and the segments that it will free."""

    left: list[Changed]
    segments: list[Segment]
    checkpoint: Checkpoint = field(default_factory=lambda: Checkpoint(set(), []))


@dataclass(slots=True)
class _UnderWay:
    """A checkpoint that a thread is writing, with the segments that it will free."""

    checkpoint: Checkpoint
    segments: list[Segment]         # segments that the checkpoint frees
    done: Future[None]


class Journal:
    """The write side of an owner's journal; `open_journal` makes one.

    A segment is free, then written, then full, then waits for its checkpoint, then free again.
    """

    def __init__(self, folder: Path, *, segment_bytes: int, segments_max: int, sequence: int, number: int,
                 free: list[Path], full: list[tuple[Segment, Collection[Changed]]], disk: FileSystem):
        """Begin a segment.  number: of the last record.

        full: segments to be checkpointed, oldest first, each with the objects that changed while it was written.
        disk: the file system of partitions, which the journal closes.
        """
        self.folder, self._segment_bytes = folder, segment_bytes
        self.segments_max = segments_max                  # files; surplus ones are removed after their checkpoint
        self._number = number                             # of the last record
        self._begun_with = number                         # at the start
        self._synced = number                             # of the last record that is surely on disk
        free = free or [make_segment(folder / f"{sequence}.journal", segment_bytes)]
        if len(free) + len(full) < _SEGMENTS_MIN:
            free.append(make_segment(folder / f"{sequence}-next.journal", segment_bytes))
        self._segments = len(free) + len(full)            # files that exist, or are being made
        self._dirty: dict[Changed, None] = {}             # changed since this segment was begun, in order
        self._full = full                                 # not checkpointed yet, oldest first
        self._collecting: _Collecting | None = None       # the next checkpoint
        self._checkpoints: list[_UnderWay] = []           # oldest first
        self._disk = disk
        self._early: Future[None] | None = None           # the last write before a checkpoint had to make it
        self._is_checkpoint_due = bool(full)              # so that the next start need not replay the same records
        self.spare: Callable[[], int] = lambda: 1 << 62   # bytes that one more segment may take
        self._threads = ThreadPoolExecutor(2, "checkpoint")     # the second makes the next segment's file
        self._closed_by = math.inf                        # time.monotonic() at which unfinished checkpoints give up
        self._free: list[Future[Path]] = [_done(path) for path in free]
        self._segment = self._begin(sequence)
        self._at = format.HEADER_SIZE

    def __repr__(self) -> str:
        return (f"<Journal {self.folder} segment={self._segment.sequence} at={self._at} record={self._number} "
                f"synced={self._synced} free={len(self._free)} full={len(self._full)} "
                f"checkpoints={len(self._checkpoints)}>")

    @property
    def size_max(self) -> int:
        """The largest size of a record, in bytes."""
        return self._segment_bytes - format.HEADER_SIZE

    @property
    def appended(self) -> int:
        """Number of records that were appended since this process opened the journal."""
        return self._number - self._begun_with

    def segments(self) -> list[tuple[int, int, int]]:
        """Return (sequence, records, bytes) of each segment that a start would read, oldest first.  Raises OSError.

        The bytes are those of the file, and of the segment that is being written those of its records.
        """
        held = self._held()
        heads = [np.frombuffer(os.pread(one.fd, format.HEADER_SIZE, 0), format.SEGMENT_HEADER)[0] for one in held]
        read = [(one, int(head["first_record"])) for one, head in zip(held, heads, strict=True)
                if not head["is_retired"]]      # by the thread of a checkpoint
        behind = [first for _, first in read[1:]] + [self._number + 1]
        return [(one.sequence, end - first, self._at if one is self._segment else os.fstat(one.fd).st_size)
                for (one, first), end in zip(read, behind, strict=True)]

    def append(self, record: Record) -> None:
        """Write a record, which is durable after `sync`.

        Raises StorageFull, after which nothing of the record is written; NotDurable.
        """
        tables = [record.groups, record.rows, record.sources, record.ops]
        groups, rows, sources, ops = map(_size, tables)
        size = groups + rows + sources + ops + record.size
        whole = format.HEADER_SIZE + size
        assert whole <= self.size_max, (whole, self.size_max)
        if self._at + whole > self._segment_bytes:
            self._roll()
        head = format.record_header(
            segment=self._segment.sequence, number=self._number + 1, synced=self._synced, size=size,
            groups=groups // _GROUP, rows=rows // _ROW, ops=ops // _OP)
        of_tables = _checksum(tables, crc32c(head[format.CHECKED_FROM:]))
        head = format.with_checksums(head, _checksum(record.data, of_tables), of_tables)
        try:
            self._write([head, *tables, *record.data], whole)
        except OSError as error:
            if is_full(error):      # a copy-on-write file system needs room even to overwrite
                raise StorageFull(f"{self._segment.path}: {error.strerror}") from error
            self._set_aside(error)
        # Only now: a record whose write failed has no number and no place, so the next one is written over it.
        self._number += 1
        if self._is_checkpoint_due:
            self._checkpoint()
        if self._collecting is not None:
            self._collect(self._collecting)
        elif self._checkpoints and self._checkpoints[0].done.done():
            try:
                self._collect_checkpoints(wait=False)
            except OSError as error:
                raise NotDurable(text_of(error)) from error

    def _write(self, pieces: list[Piece | NDArray[np.void] | NDArray[np.uint32]], size: int) -> None:
        if len(pieces) > IOV_MAX:
            pieces = [b"".join(pieces)]
        written = os.pwritev(self._segment.fd, pieces, self._at)
        if written != size:   # cut short by a signal, which is rare: copied and written bit by bit
            rest = b"".join(pieces)
            while written < size:
                written += os.pwrite(self._segment.fd, rest[written:], self._at + written)
        self._at += size

    def sync(self) -> None:
        """Sync all appended records to disk.  Raises NotDurable."""
        if self._synced == self._number:
            return
        try:
            os.fdatasync(self._segment.fd)
        except OSError as error:
            self._set_aside(error)
        self._synced = self._number

    def _set_aside(self, error: OSError) -> NoReturn:
        """Rename the current segment, so that it is never written again.  Always raises NotDurable."""
        bad = self._segment.path.with_suffix(BAD)
        try:
            self._segment.path.rename(bad)
            sync(self.folder, os.fsync)
            what = f"it is set aside as {bad.name}"
        except OSError as again:      # the file system fails too
            what = f"nor can it be set aside: {again.strerror}"
        raise NotDurable(f"{self._segment.path}: {error.strerror}; {what}") from error

    def check(self) -> None:
        """Raise NotDurable if the current segment's file was removed or replaced: a crash would lose its records."""
        try:
            is_there = self._segment.path.stat().st_ino == os.fstat(self._segment.fd).st_ino
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise NotDurable(f"{self._segment.path}: it was removed or replaced")

    def mark_dirty(self, changed: Changed) -> None:
        """Include an object in the checkpoint of the current segment, because its files lack changes made in memory."""
        self._dirty[changed] = None

    def write_early(self, changed: Changed) -> bool:
        """Have a thread bring an object's own files up to date, before a checkpoint has to.

        Returns False while a thread still writes the last such object.  A write that fails costs nothing, because the
        object stays dirty.  Called between two passes.  Raises OSError.
        """
        if self._early is not None and not self._early.done():
            return False
        self._early = self._threads.submit(write_checkpoint, *collect_checkpoint({changed}))
        return True

    def _roll(self) -> None:
        """Continue in a new segment.

        If no segment is free, this waits for a checkpoint: a slow disk slows publishing down.

        Raises StorageFull, after which the call may be repeated; NotDurable.
        """
        # `sync` only knows the segment that is written: nobody would sync the last records of this one later.
        if not self._is_between:
            self.sync()
            self._full.append((self._segment, self._dirty))
            self._dirty, self._at = {}, self._segment_bytes + 1
        try:
            self._collect_checkpoints(wait=False)
            if not self._has_free():
                self._collect_checkpoints(wait=True)
            self._segment = self._begin(self._segment.sequence + 1)
        except OSError as error:
            raise (StorageFull if is_full(error) else NotDurable)(text_of(error)) from error
        self._at = format.HEADER_SIZE

    @property
    def _is_between(self) -> bool:
        """Whether the last segment is full and, for lack of disk space, no new one was begun."""
        return self._at > self._segment_bytes

    def _has_free(self) -> bool:
        """Whether a segment is free.  Files of segments whose creation failed are dropped from the list."""
        while self._free and isinstance(self._free[0].exception(), (StorageFull, OSError)):
            self._free.pop(0)
            self._segments -= 1
        return bool(self._free)

    def _grown(self, made: Future[Path]) -> None:
        """Request a checkpoint if there was no disk space for one more segment.  Called by a thread."""
        if made.exception() is not None:
            self._is_checkpoint_due = True

    def _begin(self, sequence: int) -> Segment:
        """Begin a free segment, and arrange for the next free one: create a new file, or request a checkpoint.

        Raises StorageFull, OSError.
        """
        path = self._free[0].result()
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # The segment stays among the free ones until this has been written, so a failure can be tried again.
            os.pwrite(fd, header_of_segment(sequence, first_record=self._number + 1), 0)
        except OSError:
            os.close(fd)
            raise
        self._free.pop(0)
        if not self._free and self._can_grow():
            self._segments += 1
            fresh = self.folder / f"{sequence}-next.journal"
            self._free.append(self._threads.submit(make_segment, fresh, self._segment_bytes))
            self._free[0].add_done_callback(self._grown)
        if len(self._free) < _FREE_MIN and not self._can_grow() and self._full and not self._checkpoints:
            self._is_checkpoint_due = True
        return Segment(path, fd, sequence)

    def _can_grow(self) -> bool:
        """Whether another segment's file may be made: there are fewer than allowed, and the disk has room."""
        return self._segments < self.segments_max and self.spare() >= self._segment_bytes

    # -- checkpoints

    def _checkpoint(self) -> None:
        """Begin a checkpoint of everything that changed while the older half of the full segments was written."""
        self._is_checkpoint_due = False
        if self._checkpoints or self._collecting is not None or not self._full:
            return
        # The newer half waits: most ledgers that changed in it will be consumed and deleted before they are its turn.
        oldest, self._full = self._full[:len(self._full) // 2 + 1], self._full[len(self._full) // 2 + 1:]
        changed = dict.fromkeys(each for _, changed in oldest for each in changed)
        self._collecting = _Collecting([*changed], [segment for segment, _ in oldest])

    def _collect(self, collecting: _Collecting) -> None:
        """Collect some of what a checkpoint is of, so that no pass waits for all of it; a thread writes it at the end.

        All is collected if the next record might need the segments.
        """
        self.sync()           # snapshots include this record, so a replay must find it
        some = _COLLECTED_MAX if self._has_free() else len(collecting.left)
        collecting.checkpoint.add(collect_checkpoint(collecting.left[:some]))
        del collecting.left[:some]
        if not collecting.left:
            self._collecting = None
            done = self._submit(collecting.checkpoint, collecting.segments)
            self._checkpoints.append(_UnderWay(collecting.checkpoint, collecting.segments, done))

    def _submit(self, checkpoint: Checkpoint, segments: list[Segment]) -> Future[None]:
        return self._threads.submit(self._write_and_retire, checkpoint, segments)

    def _write_and_retire(self, checkpoint: Checkpoint, segments: list[Segment]) -> None:
        """Write a checkpoint, then retire its segments, synced.  Called by a thread.  Raises OSError, TooMuch.

        Without the sync a power cut could leave a segment's old header with parts of the records of its next use.
        """
        began = time.monotonic()
        write_checkpoint(*checkpoint, self._is_over, self._disk)
        log.debug("a checkpoint was made", segments=len(segments), files=len(checkpoint.files),
                  seconds=round(time.monotonic() - began, 3))
        # The oldest first.  If a start found only older segments, it would undo what the newer ones had changed.
        for segment in segments:
            retire(segment)
            os.fdatasync(segment.fd)

    def _collect_checkpoints(self, *, wait: bool) -> None:
        """Free the segments of completed checkpoints, oldest first.  wait: block until at least one segment is free.

        A checkpoint that found no disk space is written again as it was collected.  Collecting it anew would include
        changes by records that are not synced yet.

        Raises OSError.  With wait also StorageFull, if there was no disk space; NotDurable, if no checkpoint is in
        progress that could free a segment.
        """
        while self._checkpoints and (self._checkpoints[0].done.done() or wait):
            oldest = self._checkpoints[0]
            error = oldest.done.exception()
            if error is not None and is_full(error):
                oldest.done = self._submit(oldest.checkpoint, oldest.segments)
                if wait:
                    raise StorageFull(text_of(error) if isinstance(error, OSError) else str(error)) from error
                return
            oldest.done.result()      # raises another error
            while oldest.segments:
                self._free_segment(oldest.segments.pop(0))
            self._checkpoints.pop(0)
            wait = wait and not self._free
        if wait:
            raise NotDurable(f"{self.folder}: there is no room for a segment that could be written")

    def _free_segment(self, segment: Segment) -> None:
        """Return a retired segment to the free ones, or remove its file.

        The file is removed if there are too many segments, or if the configured size has changed.
        """
        is_one_too_many = self._free and self._segments > self.segments_max
        is_of_use = os.fstat(segment.fd).st_size == self._segment_bytes and not is_one_too_many
        os.close(segment.fd)
        if is_of_use:
            self._free.append(_done(segment.path))
        else:
            self._segments -= 1
            segment.path.unlink()

    def _is_over(self) -> bool:
        """Whether the time for the last checkpoint has passed."""
        return time.monotonic() > self._closed_by

    def close(self, until: float = math.inf) -> None:
        """Write a last checkpoint, and retire all segments, so that the next start has nothing to replay.

        until: time.monotonic() after which segments stay for the next start.  Raises NotDurable if segments stay for
        another reason.
        """
        self.sync()
        self._closed_by = until
        segments = self._held()
        try:
            for checkpoint in self._checkpoints:
                checkpoint.done.result()
            changed = self._dirty | dict.fromkeys(each for _, some in self._full for each in some)
            last = collect_checkpoint(changed, self._is_over)
            if self._collecting is not None:
                last.add(self._collecting.checkpoint)
                last.add(collect_checkpoint(self._collecting.left, self._is_over))
            write_checkpoint(*last, self._is_over, self._disk)
            for segment in segments:
                retire(segment, self._number + 1)
                os.fdatasync(segment.fd)
        except TooMuch:
            log.info("too much has changed to be put in place before a stop; the next start does it", code="G105")
        except OSError as error:
            raise NotDurable(f"{text_of(error)}; what the journal has is put in place at the next start") from error
        finally:
            for segment in segments:
                os.close(segment.fd)
            self._threads.shutdown()
            self._disk.close()

    def _held(self) -> list[Segment]:
        """Return the segments that a start would read, oldest first."""
        held = [segment for checkpoint in self._checkpoints for segment in checkpoint.segments]
        held += [] if self._collecting is None else self._collecting.segments
        return held + [segment for segment, _ in self._full] + [self._segment] * (not self._is_between)


def _checksum(pieces: Iterable[Piece | NDArray[np.void] | NDArray[np.uint32]], checksum: int) -> int:
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return checksum


def _size(table: NDArray[np.void] | NDArray[np.uint32] | bytes) -> int:
    return len(table) if isinstance(table, bytes) else table.nbytes


def _done(path: Path) -> Future[Path]:
    future: Future[Path] = Future()
    future.set_result(path)
    return future


# -- opening

class Replayed(Changed, Protocol):
    """Changes that a start has applied from the journal, and that are not synced."""

    def is_durable(self) -> None:
        """Delete files of ledgers that replayed records deleted, once no start needs these records again."""


def open_journal(folder: Path, *, segment_bytes: int, segments_max: int, kept: Replay | None = None,
                 changed: Replayed | None = None) -> Journal:
    """Open a journal whose records have all been applied, and reuse its files.

    kept: a replay whose changes are not on disk, while its segments are (`journal_reader.make_sure`); the first
    checkpoint includes these changes as `changed`.  Without `kept` all
    segments are retired, oldest first.  If this process is killed meanwhile, the newest segments stay, and replaying
    them changes nothing.  A replay of only older segments would bring back entries that were acknowledged since.

    Raises StorageFull, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # `recovery.settle` syncs the name only after a move.  A move that a power cut ends may have removed this folder,
    # and a start with the former number of owners makes it anew: without its name the next cut would lose its records.
    for above in (folder.parent, folder.parent.parent):
        sync(above, os.fsync)
    used = by_age(folder)
    last = used[-1][0] if used else 0
    number = kept.last if kept else journal_reader.last_number(folder)
    full: list[tuple[Segment, Collection[Changed]]] = []
    with contextlib.ExitStack() as opened:
        disk = FileSystem(folder.parent.parent)
        opened.callback(disk.close)
        for sequence, path in used:
            segment = Segment(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), sequence)
            if kept is not None and path in kept.segments:
                assert changed is not None, kept
                opened.callback(os.close, segment.fd)
                full.append((segment, {changed}))
            else:
                retire(segment, number + 1)
                os.fdatasync(segment.fd)
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
                              number=number, free=free, full=full, disk=disk)
            opened.pop_all()
            return journal
        except (StorageFull, OSError) as error:
            if not (full and is_full(error)):
                raise
    # There is no disk space for another segment: kept segments are checkpointed now, and reused.
    assert changed is not None
    write_checkpoint(*collect_checkpoint({changed}))
    return open_journal(folder, segment_bytes=segment_bytes, segments_max=segments_max)
