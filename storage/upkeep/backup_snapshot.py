"""What an owner tells a backup of its partitions: all of them as they are between two passes.

    begin()         from here on what comes new has a second name: ledgers, and views that come into force
    (the backup sees to what there is, by itself)
    cut()           what counts of all that: for each partition that was open since, its ledgers, where the last of them ends, its view,
                    and the state that a checkpoint would write; nothing is held after that

A partition that nobody has opened meanwhile is as its files say.  What is written behind where a ledger ended does not matter to what lies
before; what is deleted has another name by then.  So an owner stands still for as long as it takes to write down the cut, and for one sync.
"""
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage import format
from geminga.storage.cursors import state_file
from geminga.storage.ledgers.compacted_ledgers import View
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition

Row = tuple[dict, bytes]      # what a cut says of a partition, and its state's bytes


class Recovered(Protocol):
    """A start's recovery, as far as a backup needs it."""

    @property
    def unopened(self) -> dict[int, state_file.State]:
        """States put together from the journal, of partitions that nobody has opened yet, by id."""


class BackupSnapshots:
    """Backups' view of one owner."""

    def __init__(self, owner: OwnerContext, recovery: Recovered | None):
        self._owner, self._recovery = owner, recovery
        self._folder: Path | None = None          # of second names, as long as a backup gets ready
        self._released: dict[int, Row] = {}       # partitions that were open since it began, and are not any more

    def begin(self) -> None:
        self._folder, self._released = format.linked_folder(self._owner.data_dir), {}

    def cut(self) -> dict:
        """{"file": what is written down in that folder, "seconds": how long that took}.  Raises Refusal, OSError."""
        began, folder = time.perf_counter(), self._folder
        if folder is None:
            raise Refusal(api.MetadataError, "the owner was started again since the backup began")
        self._folder = None
        self._owner.commit()
        self._owner.journal.sync()      # nothing that the backup has is ever written otherwise where it lies
        rows = {partition.partition_id: _row(partition) for partition in self._owner.by_name.values()}
        for partition_id, row in [*self._released.items(), *self._recovered()]:
            rows.setdefault(partition_id, row)
        self._released = {}
        name = f"cut-{self._owner.journal.folder.name}"
        with open(folder / name, "wb") as file:
            file.write(json.dumps([row for row, _ in rows.values()]).encode() + b"\n")
            file.writelines(data for _, data in rows.values())
        return {"file": name, "seconds": time.perf_counter() - began}

    def _recovered(self) -> Iterator[tuple[int, Row]]:
        """Partitions whose state a start has put together, and nobody has opened or written yet."""
        for partition_id, found in self._recovery.unopened.items() if self._recovery else ():
            data = state_file.encode(partition_id, found)
            yield partition_id, ({"id": partition_id, "state": len(data)}, data)

    # -- what becomes of partitions until the cut

    def opened(self, partition: Partition) -> None:
        self._released.pop(partition.partition_id, None)

    def released(self, partition: Partition) -> None:
        if self._folder is not None:
            self._released[partition.partition_id] = _row(partition)

    def ledger_added(self, partition: Partition) -> None:
        if self._folder is not None:
            self._link(partition, partition.open_ledger.files())

    def view_taken(self, partition: Partition, view: View) -> None:
        if self._folder is not None:
            self._link(partition, view.folder.iterdir())

    def _link(self, partition: Partition, paths: Iterator[Path] | list[Path]) -> None:
        try:
            self._folder.stat()
            for path in paths:
                link(path, self._folder / str(partition.partition_id) / path.relative_to(partition.folder))
        except OSError:               # whoever made the backup is gone
            self._folder = None


def link(path: Path, name: Path) -> None:
    """The file has that name too, if it was not given it before.  Raises OSError."""
    name.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.link(path, name)


def _row(partition: Partition) -> Row:
    last, data = partition.open_ledger, state_file.encode(partition.partition_id, partition.state())
    amended = partition.schedule.amended_size if partition.schedule is not None else 0
    return {"id": partition.partition_id, "sealed": [found.ledger_id for found in partition.ledgers[:-1]],
            "open": [last.ledger_id, last.entries, last.size, last.first_message, last.created_ms],
            "view": 0 if partition.view is None else partition.view.number, "amended": amended, "state": len(data)}, data
