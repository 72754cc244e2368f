"""Checkpoints: bring changes that are on disk only in the journal to their own files.

A checkpoint is collected between two passes, so that it never contains half of a pass, and written by a thread.
"""
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from geminga.storage.disk.files import sync, write_anew

_T = TypeVar("_T")


class Snapshot(Protocol):
    """New content of a whole file, taken at one moment and written later by a checkpoint."""

    @property
    def path(self) -> Path:
        """The file to replace; its folder is synced after the write."""

    def write(self) -> None:
        """Replace the file's content, synced.  Called by a thread of the journal.  Raises OSError."""


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

    def write(self, number: int, data: bytes) -> None:
        """Replace the file, synced, unless a newer snapshot was written.  The caller syncs the folder.

        Called by any thread.  Raises OSError.
        """
        with self._lock:
            if number > self._written:
                self._replace(data)
                self._written = number

    def _replace(self, data: bytes) -> None:
        write_anew(self.path, data)


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """The content of a SnapshotFile as of one moment."""

    file: SnapshotFile
    number: int
    data: bytes

    @property
    def path(self) -> Path:
        return self.file.path

    def write(self) -> None:
        self.file.write(self.number, self.data)


class Changed(Protocol):
    """An object with changes that are not yet in its own files: a ledger, a partition, a recovery."""

    def checkpoint(self) -> tuple[Iterable[Path], Sequence[Snapshot]]:
        """Return (files to sync, snapshots to write), which bring all changes of this object to disk.

        Raises OSError.
        """


class Checkpoint(NamedTuple):
    """Files and snapshots that must be on disk before the journal may reuse some full segments."""

    files: set[Path]              # to be synced
    snapshots: list[Snapshot]     # to be written


def collect_checkpoint(changed: Iterable[Changed]) -> Checkpoint:
    """Collect a checkpoint from the files and snapshots of all changed objects.  Raises OSError."""
    parts = [each.checkpoint() for each in changed]
    return Checkpoint({path for files, _ in parts for path in files},
                      [snapshot for _, snapshots in parts for snapshot in snapshots])


class TooMuch(Exception):
    """Exception for a checkpoint that could not be written before its deadline."""


def write_checkpoint(files: set[Path], snapshots: list[Snapshot], is_over: Callable[[], bool] = lambda: False) -> None:
    """Write the snapshots, fdatasync each file that still exists, and sync the folders of all these files.

    is_over: returns whether the deadline has passed.  Raises OSError; TooMuch as soon as `is_over()` is true.
    """
    def one_by_one(things: Iterable[_T]) -> Iterator[_T]:
        for thing in things:
            if is_over():
                raise TooMuch
            yield thing

    for snapshot in one_by_one(snapshots):
        snapshot.write()
    for path in one_by_one(files):
        with contextlib.suppress(FileNotFoundError):      # deleted since: fully acknowledged
            sync(path, os.fdatasync)
    named = files | {snapshot.path for snapshot in snapshots}
    for folder in one_by_one({path.parent for path in named}):
        with contextlib.suppress(FileNotFoundError):      # deleted since
            sync(folder, os.fsync)
    # `partitions`, which names partitions' folders, and the data folder: these are never deleted.
    for folder in {above for path in named for above in path.parents[1:3]}:
        sync(folder, os.fsync)
