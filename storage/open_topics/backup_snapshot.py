"""The part of an owner in a backup: a cut, which is the state of all its partitions between two passes.

    begin()      From now on ledgers and views that are new get a second name, a hard link, in the backup's folder.
    (The backup itself links the files that were there before.)
    cut()        Write down, for each partition that was open since begin(): its ledgers, where the last of them ends,
                 its view, and the state that a checkpoint would write.  Then the tables of coordinators of
                 transactions, without those that are not committed.

For a partition that was not open meanwhile, the backup uses the files. Bytes behind the recorded end of a ledger do not
count, and a file that is deleted has its second name by then. So an owner stands still only while it writes the cut,
and for one sync.
"""
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypedDict

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage import format
from geminga.storage.catalogue.kept_topics import BacklogRows
from geminga.storage.cursors import state_file
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers
from geminga.storage.ledgers.journal import Journal
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.recovered import Recovered
from geminga.storage.topics.partition import Partition


class PartitionCut(TypedDict, total=False):
    """A partition in a cut, as JSON.  One that was not open since the start has only the first two keys."""

    id: int
    state: int                  # bytes of its state
    sealed: list[int]           # ids of its sealed ledgers
    open: list[int]             # of its open ledger: id, entries, size, first message, ms of creation
    view: int                   # number of the compacted view; 0: none
    amended: int                # bytes of the file `amended`; 0: none


Row = tuple[PartitionCut, bytes]      # with the bytes of its state


class BackupSnapshots:
    """The part of one owner in backups.  Only one backup is taken at a time."""

    def __init__(self, data_dir: Path, durability: Durability, journal: Journal, recovery: Recovered | None):
        self._data_dir, self._durability, self._journal, self._recovery = data_dir, durability, journal, recovery
        self._folder: Path | None = None          # for links to new files; None: no backup is between begin() and cut()
        self._released: dict[int, Row] = {}       # partitions that were open since begin(), and are not any more

    def __repr__(self) -> str:
        return f"<BackupSnapshots folder={self._folder} released={len(self._released)}>"

    def begin(self) -> None:
        """Begin to hard-link the files of new ledgers and views into the backup's folder."""
        self._folder, self._released = format.linked_folder(self._data_dir), {}

    def cut(self, partitions: Iterable[Partition], coordinators: Callable[[], dict[int, bytes]],
            backlogs: Callable[[], BacklogRows]) -> tuple[str, float]:
        """Write the state of all partitions into a file of the backup's folder, and stop linking new files.

        partitions: those that are open.  coordinators: returns the content of each coordinator's table, by number.
        backlogs: returns what the catalogue has now of cleared backlogs.  It is copied later, when one that is in the
        states may have been taken back.

        Returns the file's name and the seconds taken. Raises Refusal, OSError.
        """
        began, folder = time.perf_counter(), self._folder
        if folder is None:
            raise Refusal(api.MetadataError, "the owner was started again since the backup began")
        tables = coordinators()
        self._folder = None
        self._durability.commit_and_sync()
        self._journal.sync()      # the cut refers to bytes that must not change any more, not even after a crash
        rows = {partition.partition_id: _row(partition) for partition in partitions}
        for partition_id, row in [*self._released.items(), *self._recovered()]:
            rows.setdefault(partition_id, row)
        self._released = {}
        name = f"cut-{self._journal.folder.name}"
        with open(folder / name, "wb") as file:
            about = {"partitions": [row for row, _ in rows.values()], "backlogs": backlogs(),
                     "tables": [[number, len(data)] for number, data in tables.items()]}
            file.write(json.dumps(about).encode() + b"\n")
            file.writelines(data for _, data in rows.values())
            file.writelines(tables.values())
        return name, time.perf_counter() - began

    def _recovered(self) -> Iterator[tuple[int, Row]]:
        """Yield (id, row of the cut) of partitions that recovery restored, and that were not opened since."""
        for partition_id, state in self._recovery.unopened.items() if self._recovery else ():
            data = state_file.encode(partition_id, state)
            yield partition_id, ({"id": partition_id, "state": len(data)}, data)

    # -- called by the owner from begin() to cut()

    def opened(self, partition: Partition) -> None:
        """Drop the state kept for a partition that is open again: the cut takes its state from memory."""
        self._released.pop(partition.partition_id, None)

    def released(self, partition: Partition) -> None:
        """Keep the state of a partition that the owner gives up, for the cut."""
        if self._folder is not None:
            self._released[partition.partition_id] = _row(partition)

    def ledger_added(self, partition: Partition) -> None:
        """Link the files of a partition's new ledger into the backup's folder, if a backup is in progress."""
        if self._folder is not None:
            self._link(self._folder, partition, partition.open_ledger.files())

    def view_taken(self, partition: Partition, view: CompactedLedgers) -> None:
        """Link the files of a partition's new compacted view into the backup's folder, if a backup is in progress."""
        if self._folder is not None:
            self._link(self._folder, partition, view.folder.iterdir())

    def _link(self, folder: Path, partition: Partition, paths: Iterable[Path]) -> None:
        """Hard-link a partition's files into the backup's folder, or give the backup up if that fails."""
        try:
            folder.stat()
            for path in paths:
                link(path, folder / str(partition.partition_id) / path.relative_to(partition.folder))
        except OSError:
            self._folder = None


def link(path: Path, name: Path) -> None:
    """Give the file `name` as a second name, a hard link, unless something of that name exists.  Raises OSError."""
    name.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.link(path, name)


def _row(partition: Partition) -> Row:
    """Return an open partition's row of the cut: a JSON object, and the bytes of its state."""
    last, data = partition.open_ledger, state_file.encode(partition.partition_id, partition.state())
    amended = partition.schedule.amended.size if partition.schedule is not None else 0
    return {"id": partition.partition_id, "sealed": [ledger.ledger_id for ledger in partition.ledgers[:-1]],
            "open": [last.ledger_id, last.entries, last.size, last.first_message, last.created_ms],
            "view": 0 if partition.view is None else partition.view.number,
            "amended": amended, "state": len(data)}, data
