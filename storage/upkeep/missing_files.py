"""Files that are removed or replaced while the broker uses them.

An owner continues to use the files that it has open. So a missing file shows only when the owner ends, and its bytes
are lost then. Therefore the owner checks that the files of open partitions still have their names, some files each
second. It reports each missing file once, as damage.
"""
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from geminga.storage import format
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition

_EACH_TICK = 50      # partitions and ledgers checked in a tick, roughly, which takes some milliseconds
GONE = "it was removed or replaced while it is used; what it holds is lost when the broker ends"


class MissingFiles(Watcher):
    """Check of one owner's open partitions for files that were removed or replaced."""

    def __init__(self, topics: TopicTable, reports: Reports):
        self._topics, self._reports = topics, reports
        self._left: Iterator[Partition] = iter(())      # partitions still to look at in this round
        self._states: set[int] = set()                  # ids of partitions whose state file has existed
        self._told: set[Path] = set()                   # files that were reported

    def __repr__(self) -> str:
        return f"<MissingFiles reported={len(self._told)}>"

    def tick(self, now_ms: int) -> None:
        """Check the next partitions; after the last one, a new round begins with the next tick."""
        looked = 0
        while looked < _EACH_TICK:
            if (partition := next(self._left, None)) is None:
                self._left = iter(list(self._topics.by_name.values()))
                return
            looked += 1
            if self._topics.by_name.get(partition.name) is partition:
                looked += len(partition.ledgers)
                self._look(partition)

    def _look(self, partition: Partition) -> None:
        """Report files of the partition's ledgers and state that are not in its folder any more, or were replaced."""
        try:
            with os.scandir(partition.folder) as entries:
                inodes = {entry.name: entry.inode() for entry in entries}
        except FileNotFoundError:
            inodes = {}
        for ledger in partition.ledgers:
            if not ledger.is_unlinked:
                for path, inode in zip(ledger.files(), ledger.inodes() or (None, None), strict=True):
                    if path.name not in inodes or (inode is not None and inode != inodes[path.name]):
                        self._tell(path)
        state = format.state_path(partition.folder)
        if state.name in inodes:
            self._states.add(partition.partition_id)
        elif partition.partition_id in self._states:
            self._tell(state)

    def _tell(self, path: Path) -> None:
        """Report a missing file once."""
        if path not in self._told:
            self._told.add(path)
            self._reports.damage(f"{path}: {GONE}", code="G126")


class WatchedFiles:
    """Check of files that no process may remove or replace while the data folder is served."""

    def __init__(self, paths: list[Path], tell: Callable[[str], None]):
        """Remember the inodes of the files.

        tell: called with a line of text for each file that goes missing, once.
        """
        self._tell, self._inodes = tell, {path: _inode(path) for path in paths}

    def __repr__(self) -> str:
        return f"<WatchedFiles n={len(self._inodes)}>"

    def look(self) -> None:
        """Report files that were removed or replaced since the start."""
        for path, before in self._inodes.items():
            if before and _inode(path) != before:
                self._inodes[path] = 0
                self._tell(f"{path}: {GONE}")


def _inode(path: Path) -> int:
    """Return the file's inode number, 0 if there is no file."""
    try:
        return os.stat(path, follow_symlinks=False).st_ino
    except OSError:
        return 0
