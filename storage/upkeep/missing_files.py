"""Files that somebody removes, or puts others in the place of, while they are used.

An owner goes on with what it has open, so nothing shows until it ends; what such a file held is gone then.  So the names of what open
partitions have are looked at, some of them each second, and each file that is missing is told of once, as damage.
"""
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from geminga.storage import format
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.watcher import Watcher

_EACH_TICK = 1_000   # partitions and ledgers looked at, about: some milliseconds
GONE = "it was removed or replaced while it is used; what it holds is lost when the broker ends"


class MissingFiles(Watcher):
    """Of one owner."""

    def __init__(self, owner: OwnerContext):
        self._owner = owner
        self._left: Iterator[Partition] = iter(())
        self._states: set[int] = set()      # partitions whose state was there
        self._told: set[Path] = set()

    def tick(self, now_ms: int) -> None:
        looked = 0
        while looked < _EACH_TICK:
            if (partition := next(self._left, None)) is None:
                self._left = iter(list(self._owner.by_name.values()))
                return
            looked += 1
            if self._owner.by_name.get(partition.name) is partition:
                looked += len(partition.ledgers)
                self._look(partition)

    def _look(self, partition: Partition) -> None:
        try:
            with os.scandir(partition.folder) as found:
                there = {entry.name: entry.inode() for entry in found}
        except FileNotFoundError:
            there = {}
        for ledger in partition.ledgers:
            if not ledger.is_unlinked:
                for path, inode in zip(ledger.files(), ledger.inodes() or (None, None), strict=True):
                    if path.name not in there or (inode is not None and inode != there[path.name]):
                        self._tell(path)
        state = format.state_path(partition.folder)
        if state.name in there:
            self._states.add(partition.partition_id)
        elif partition.partition_id in self._states:
            self._tell(state)

    def _tell(self, path: Path) -> None:
        if path not in self._told:
            self._told.add(path)
            self._owner.report_damage(f"{path}: {GONE}", code="G126")


class WatchedFiles:
    """Files of a data folder that stay the same ones as long as it is served."""

    def __init__(self, paths: list[Path], tell: Callable[[str], None]):
        self._tell, self._inodes = tell, {path: _inode(path) for path in paths}

    def look(self) -> None:
        for path, before in self._inodes.items():
            if before and _inode(path) != before:
                self._inodes[path] = 0
                self._tell(f"{path}: {GONE}")


def _inode(path: Path) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_ino
    except OSError:
        return 0
