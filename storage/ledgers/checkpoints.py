"""Checkpoints: bring changes that are on disk only in the journal to their own files.

Parts of a checkpoint are collected between two passes, so that none contains half of a pass.  A thread writes it.  Few
files are synced one by one.  Many are synced with the whole file system, twice, which takes as long as a few of them.
"""
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from geminga.storage.disk.files import FileSystem, sync
from geminga.storage.errors import is_full

_MANY = 64      # files that take longer to sync one by one than the whole file system does
_T = TypeVar("_T")


class SnapshotFile:
    """A file that snapshots replace as a whole.  A late checkpoint thread never overwrites a newer snapshot."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._taken = self._written = 0      # numbers of the newest snapshot, and of the newest on disk

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} taken={self._taken} written={self._written}>"

    def snapshot(self, data: bytes) -> "FileSnapshot":
        """Return a snapshot with this content, newer than all before, to be written by any thread."""
        self._taken += 1
        return FileSnapshot(self, self._taken, data)

    def fresh(self, number: int) -> Path:
        """Return where the content of a snapshot is written before it replaces the file's."""
        return self.path.with_name(f"{self.path.name}.{number}.new")

    def prepare(self, number: int, data: bytes) -> None:
        """Write the content beside the file, unless a newer snapshot was written.  Called by any thread.

        Raises OSError.
        """
        with self._lock:
            if number > self._written:
                self._make_folder()
                with open(self.fresh(number), "wb") as file:
                    file.write(data)

    def put(self, number: int) -> None:
        """Replace the file by the prepared content, which is dropped if a newer snapshot was written.

        The caller syncs the folder.  Called by any thread.  Raises OSError.
        """
        with self._lock:
            if number <= self._written:
                return self.drop(number)
            self.fresh(number).replace(self.path)
            self._written = number
            self._replaced()

    def drop(self, number: int) -> None:
        """Remove content that was prepared, if it is there."""
        with contextlib.suppress(OSError):
            self.fresh(number).unlink()

    def _make_folder(self) -> None:
        """Make the file's folder if nobody else does.  Raises OSError."""

    def _replaced(self) -> None:
        """Follow the replacement of the file.  Raises OSError."""


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """New content of a whole SnapshotFile, taken at one moment and written later by a checkpoint."""

    file: SnapshotFile
    number: int
    data: bytes

    @property
    def path(self) -> Path:
        """The file to replace; its folder is synced after the write."""
        return self.file.path

    @property
    def fresh(self) -> Path:
        return self.file.fresh(self.number)

    def write(self) -> None:
        """Replace the file's content, synced.  Called by a thread of the journal.  Raises OSError."""
        try:
            self.prepare()
            with contextlib.suppress(FileNotFoundError):      # a newer snapshot was written, or the file was removed
                sync(self.fresh, os.fsync)
            self.put()
        except OSError:
            self.drop()      # frees its blocks, as the disk may be full
            raise

    def prepare(self) -> None:
        """Write the new content beside the file, not synced.  `put` or `drop` follows.  Raises OSError."""
        self.file.prepare(self.number, self.data)

    def put(self) -> None:
        """Replace the file by the content that `prepare` wrote, and that is synced by now.  Raises OSError."""
        self.file.put(self.number)

    def drop(self) -> None:
        """Remove what `prepare` wrote."""
        self.file.drop(self.number)


class Changed(Protocol):
    """An object with changes that are not yet in its own files: a ledger, a partition, a recovery."""

    def checkpoint(self) -> tuple[Iterable[Path], Sequence[FileSnapshot]]:
        """Return (files to sync, snapshots to write), which bring all changes of this object to disk.

        Raises OSError.
        """


class Checkpoint(NamedTuple):
    """Files and snapshots that must be on disk before the journal may reuse some full segments."""

    files: set[Path]              # to be synced
    snapshots: list[FileSnapshot]     # to be written

    def add(self, other: "Checkpoint") -> None:
        """Add the files and snapshots of another checkpoint to this one."""
        self.files.update(other.files)
        self.snapshots.extend(other.snapshots)


class TooMuch(Exception):
    """Exception for a checkpoint that could not be written before its deadline."""


def in_time(is_over: Callable[[], bool], things: Iterable[_T]) -> Iterator[_T]:
    """Yield the things.  Raises TooMuch instead of the next one as soon as `is_over()` is true."""
    for thing in things:
        if is_over():
            raise TooMuch
        yield thing


def collect_checkpoint(changed: Iterable[Changed], is_over: Callable[[], bool] = lambda: False) -> Checkpoint:
    """Collect a checkpoint from the files and snapshots of all changed objects.

    is_over: as in `write_checkpoint`.  Raises OSError, TooMuch.
    """
    parts = [each.checkpoint() for each in in_time(is_over, changed)]
    return Checkpoint({path for files, _ in parts for path in files},
                      [snapshot for _, snapshots in parts for snapshot in snapshots])


def write_checkpoint(files: set[Path], snapshots: list[FileSnapshot], is_over: Callable[[], bool] = lambda: False,
                     disk: FileSystem | None = None) -> None:
    """Write the snapshots, sync each file that still exists, and the names of all.

    is_over: returns whether the deadline has passed.  disk: the file system of partitions; None if nobody has kept it
    open.  Raises OSError; TooMuch as soon as `is_over()` is true.
    """
    named = files | {snapshot.path for snapshot in snapshots}
    if disk is not None and len(named) > _MANY and disk.has({path.parent for path in named}):
        try:
            return _write_together(snapshots, disk, is_over)
        except OSError as error:
            if not is_full(error):      # one by one, fewer files are there twice
                raise
    for snapshot in in_time(is_over, snapshots):
        snapshot.write()
    for path in in_time(is_over, files):
        with contextlib.suppress(FileNotFoundError):      # deleted since: fully acknowledged
            sync(path, os.fdatasync)
    # A file has its name, and a replaced one its new content, only when its folder is synced as well.
    for folder in in_time(is_over, {path.parent for path in named}):
        with contextlib.suppress(FileNotFoundError):      # deleted since
            sync(folder, os.fsync)
    # `partitions` and `transactions`, which name these folders, and the data folder: these are never deleted.
    for folder in {above for path in named for above in path.parents[1:3]}:
        sync(folder, os.fsync)


def _write_together(snapshots: list[FileSnapshot], disk: FileSystem, is_over: Callable[[], bool]) -> None:
    """Write the snapshots, and sync everything in the file system before their content is put in place, and after.

    Raises OSError, TooMuch.
    """
    prepared = []
    try:
        for snapshot in in_time(is_over, snapshots):
            prepared.append(snapshot)
            snapshot.prepare()
        disk.sync()      # else a power cut could leave a name with a file that has no content yet
        for snapshot in in_time(is_over, snapshots):
            snapshot.put()
    except (OSError, TooMuch):
        for snapshot in prepared:      # no others: after a deadline there is no time to look for thousands of files
            snapshot.drop()
        raise
    disk.sync()      # else a power cut could bring the former files back, whose journal is about to be written over
