"""Compute in memory the state that a data folder will have after the next start, without writing anything."""
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from geminga.storage import format
from geminga.storage.cursors.state_file import State
from geminga.storage.ledgers import ledger_headers
from geminga.storage.ledgers.journal_reader import StoredRecord, Told
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.owner.recovery import Recovery, by_ledger

if TYPE_CHECKING:
    from geminga.proto.rows import Rows

_OF_COORDINATORS = format.COORDINATED, format.ADDED_TO_TRANSACTION


class Rehearsal(Recovery):
    """A recovery in memory, which records the changes of the next start instead of making them.

    `state`, `rows`, `opened_ledgers` and `deleted` describe the result.
    """

    def __init__(self, data_dir: Path):
        super().__init__(data_dir)
        # By (partition, ledger): (first message, created, ms) of ledgers that the journal opens.
        self.opened_ledgers: dict[tuple[int, int], tuple[int, int]] = {}
        self.deleted: set[tuple[int, int]] = set()
        # By (partition, ledger): (first entry, INDEX_ROW (n,)) for each run of entries that records have.
        self.rows: dict[tuple[int, int], list[tuple[int, Rows]]] = {}
        self.touched: set[int] = set()             # partitions that some op changes
        self.stateless: set[int] = set()           # partitions without a state file

    def __repr__(self) -> str:
        return f"<Rehearsal {self.data_dir} partitions={len(self._states)} touched={len(self.touched)}>"

    def know(self, partition_id: int, state: State) -> None:
        """Set a partition's state to the content of its state file."""
        self._states[partition_id] = state

    def apply(self, records: list[StoredRecord], told: Told) -> None:
        """Apply journal records: their ops to the states of partitions, their index rows to `rows`."""
        super().apply(records, told)
        for record in records:
            self.touched.update(record.ops["partition_id"][~np.isin(record.ops["kind"], _OF_COORDINATORS)].tolist())
        for key, entries in by_ledger(records, set()):
            if self.ledger(*key) is not None:
                self.rows.setdefault(key, []).extend((int(run.ids[0]), run.rows) for run in entries.runs())

    def state(self, partition_id: int) -> State:
        """Return the partition's state after the next start; an empty State if it has no readable state file."""
        if partition_id not in self._states:
            self._states[partition_id] = State()
        return self._states[partition_id]

    def ledger(self, partition_id: int, ledger_id: int) -> Ledger | None:
        """Return a ledger of the partition without opening its files; None if the ledger does not exist."""
        key = partition_id, ledger_id
        if key not in self._ledgers:
            folder = self.folder(partition_id)
            is_there = ledger_headers.exists(folder, ledger_id)
            self._ledgers[key] = Ledger(folder, partition_id, ledger_id) if is_there else None
        return self._ledgers[key]

    def open_ledger(self, partition_id: int, ledger_id: int, *, created_ms: int, first_message: int) -> None:
        """Record that the next start creates the ledger."""
        key = partition_id, ledger_id
        self.opened_ledgers[key] = first_message, created_ms
        self.deleted.discard(key)
        self._ledgers[key] = Ledger(self.folder(partition_id), *key)

    def delete_ledger(self, partition_id: int, ledger_id: int) -> None:
        """Record that the next start deletes the ledger."""
        key = partition_id, ledger_id
        self.opened_ledgers.pop(key, None)
        self.rows.pop(key, None)
        self.deleted.add(key)
        self._ledgers[key] = None
