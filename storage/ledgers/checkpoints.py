"""Checkpoints: how changes that only the journal has on disk get to their own files.

A checkpoint is collected between two passes, so that it has no half of a pass, and written by a thread.
"""
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from geminga.storage.disk.files import sync

_T = TypeVar("_T")


class Snapshot(Protocol):
    """New content of a file, as of one moment."""

    @property
    def path(self) -> Path:
        """The file, whose folder is synced afterwards."""

    def write(self) -> None:
        """Replace the file's content, synced.  Called by a thread of the journal.  Raises OSError."""


class Changed(Protocol):
    """A thing of which not all is on disk: a ledger, a partition, a recovery."""

    def checkpoint(self) -> tuple[Iterable[Path], Sequence[Snapshot]]:
        """(files to be synced, snapshots to be written) that bring all of it to disk.  Raises OSError."""


class Checkpoint(NamedTuple):
    """What has to get to disk before segments may be used again."""

    files: set[Path]              # to be synced
    snapshots: list[Snapshot]     # to be written


def collect_checkpoint(changed: Iterable[Changed]) -> Checkpoint:
    """Ask everything that has changed for its files and snapshots.  Raises OSError."""
    parts = [each.checkpoint() for each in changed]
    return Checkpoint({path for files, _ in parts for path in files},
                      [snapshot for _, snapshots in parts for snapshot in snapshots])


class TooMuch(Exception):
    """A checkpoint was not written in the time that it had."""


def write_checkpoint(files: set[Path], snapshots: list[Snapshot], is_over: Callable[[], bool] = lambda: False) -> None:
    """Write the snapshots, fdatasync each file that still exists, and sync the folders that name them.

    Raises OSError; TooMuch as soon as `is_over()`.
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
