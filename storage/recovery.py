"""journal -> ledgers and cursors: what a crash kept from where it belongs is put there.

Works on files alone, before anything is served, and is idempotent: the same records may be applied any number of times.  A
ledger that has no files has been deleted since, unless a record says that it was opened.

A record for a file that is corrupt, or of a newer version, ends the recovery with CorruptFile: nothing of the journal is
retired, and its owner does not start, because what only the journal has would be lost.  Corrupt files that no record needs are
not looked at here; whoever opens their partition is told.
"""
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format, journal, ledger, state, version1
from geminga.storage.cursor import Cursor
from geminga.storage.journal import Record
from geminga.storage.ledger import Ledger
from geminga.storage.state import State, StateFile


class Recovery:
    """The files that records being replayed belong to, opened when first needed."""

    def __init__(self, data_dir: Path):
        self.data_dir = data_dir
        self.entries = 0
        self.damage: list[str] = []
        self._ledgers: dict[tuple[int, int], Ledger | None] = {}
        self._states: dict[int, State] = {}

    def apply(self, record: Record) -> None:
        self._apply_ops(record.ops, opened=True)
        start = 0
        for group in record.groups:
            end = start + int(group["count"])
            found = self._ledger(int(group["partition_id"]), int(group["ledger_id"]))
            if found is not None:
                _put(found, int(group["first_entry"]), record.rows[start:end], record.sources[start:end], record.data[0])
                self.entries += end - start
            start = end
        self._apply_ops(record.ops, opened=False)

    def finish(self) -> None:
        """Everything applied is on disk."""
        snapshots = [StateFile(self._folder(partition_id), partition_id).take(found) for partition_id, found in self._states.items()]
        files: set[Path] = set()
        for found in self._ledgers.values():
            if found is not None:
                files.update(found.checkpoint()[0])
                self.damage += found.damage
        journal.put_on_disk(files, snapshots)

    def _folder(self, partition_id: int) -> Path:
        return format.partition_folder(self.data_dir, partition_id)

    def _cursor(self, partition_id: int, subscription_id: int) -> Cursor:
        return self._state(partition_id).cursor(subscription_id)

    def _state(self, partition_id: int) -> State:
        if partition_id not in self._states:
            self._states[partition_id] = state.read(self._folder(partition_id), partition_id)
            self.damage += self._states[partition_id].damage
        return self._states[partition_id]

    def _ledger(self, partition_id: int, ledger_id: int) -> Ledger | None:
        key = partition_id, ledger_id
        if key not in self._ledgers:
            folder = self._folder(partition_id)
            self._ledgers[key] = ledger.open_ledger(folder, partition_id, ledger_id) if ledger.exists(folder, ledger_id) else None
        return self._ledgers[key]

    def _apply_ops(self, ops: NDArray, *, opened: bool) -> None:
        """Those that open ledgers come before the record's entries, all others after them."""
        ops = ops[(ops["kind"] == format.LEDGER_OPENED) == opened]
        if not len(ops):
            return
        same = np.ones(len(ops), bool)
        same[0] = False
        for name in ("kind", "partition_id", "subscription_id", "ledger_id"):
            same[1:] &= ops[name][1:] == ops[name][:-1]
        for run in np.split(ops, np.flatnonzero(~same)[1:]):
            self._apply_run(run)

    def _apply_run(self, ops: NDArray) -> None:
        """Ops (n,) of one kind about one ledger or subscription."""
        last = ops[-1]
        kind, partition_id = int(last["kind"]) & format.KIND, int(last["partition_id"])
        subscription_id, position = int(last["subscription_id"]), (int(last["ledger_id"]), int(last["entry_id"]))
        if kind == format.LEDGER_OPENED:
            if (found := self._ledger(partition_id, position[0])) is not None:
                found.write_ledger_header()      # its index may have reached the disk alone
            else:
                self._ledgers[partition_id, position[0]] = ledger.create(
                    self._folder(partition_id), partition_id, position[0], first_message=int(last["value"]), created_ms=position[1])
        elif kind == format.LEDGER_DELETED:
            Ledger(self._folder(partition_id), partition_id, position[0]).unlink()      # also what is left of a deletion cut short
            self._ledgers[partition_id, position[0]] = None
            for cursor in self._state(partition_id).cursors.values():
                cursor.forget(position[0])
        elif kind == format.MARK_DELETE:
            self._cursor(partition_id, subscription_id).mark_delete = position
        elif kind == format.CURSOR_RESET:
            cursor = self._cursor(partition_id, subscription_id)
            if self._state(partition_id).is_uncounted:
                version1.reset(cursor, position)
            else:
                cursor.move(position, int(last["value"]))
        elif kind == format.ACKNOWLEDGED:
            if (found := self._ledger(partition_id, position[0])) is not None:
                self._cursor(partition_id, subscription_id).acknowledge(found, _entries(ops))
        elif kind == format.PART_ACKNOWLEDGED:
            self._cursor(partition_id, subscription_id).set_parts(
                position[0], int(last["kind"]) >> format.KIND_WORD, ops["entry_id"].tolist(), ops["value"].tolist())
        elif kind in (format.REDELIVERED, format.DIED):
            cursor = self._cursor(partition_id, subscription_id)
            counts = cursor.redeliveries if kind == format.REDELIVERED else cursor.deaths
            for first, more in zip(ops["entry_id"].tolist(), ops["value"].tolist(), strict=True):
                if first < 0:
                    counts.clear()
                else:
                    counts.put(position[0], first, first + more + 1, int(last["kind"]) >> format.KIND_WORD)
        elif kind == format.TOTAL:
            self._cursor(partition_id, subscription_id).totals[int(last["kind"]) >> format.KIND_WORD] = int(last["value"])
        elif kind in (format.PRODUCED, format.CHUNKED):
            for kind_, beginning, _, low, sequence_id, high in ops.tolist():
                self._state(partition_id).sequences.apply(kind_, beginning, low, sequence_id, high)
        elif kind == format.SEQUENCES_FORGOTTEN:
            self._state(partition_id).sequences.clear()
        elif kind == format.SUBSCRIPTION_DELETED:
            self._state(partition_id).cursors.pop(subscription_id, None)


def _entries(ops: NDArray) -> NDArray[np.int64]:
    """Of the runs that ops of ACKNOWLEDGED are about: all, sorted, each once."""
    counts = ops["value"] + 1
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.unique(np.repeat(ops["entry_id"], counts) + within)


def _put(found: Ledger, first_entry: int, rows: NDArray, sources: NDArray, data: memoryview) -> None:
    """Write rows and their bytes from first_entry on, whether or not they were there before."""
    known, known_size = found.entries, found.size
    found.entries, found.size = first_entry, int(rows["offset"][0])
    found.reserve(len(rows), int(rows["size"].sum(dtype=np.int64)))
    breaks = np.flatnonzero(sources[1:].astype(np.int64) != sources[:-1].astype(np.int64) + rows["size"][:-1]) + 1
    for start, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
        size = int(rows["offset"][end - 1]) + int(rows["size"][end - 1]) - int(rows["offset"][start])
        offset, source = int(rows["offset"][start]), int(sources[start])
        found.write([data[source:source + size]], offset)
    found.append(rows, int(rows["offset"][-1]) + int(rows["size"][-1]))
    if known > found.entries:
        found.entries, found.size = known, known_size


@dataclass(slots=True)
class Recovered:
    """What a recovery did."""

    entries: int = 0                                        # put where they belong
    damage: list[str] = field(default_factory=list)         # found on the way, a line each

    def add(self, other: "Recovered") -> None:
        self.entries += other.entries
        self.damage += other.damage


def recover(data_dir: Path, folder: Path) -> Recovered:
    """Apply what the journal in folder holds.  Raises CorruptFile."""
    found = journal.replay(folder) if folder.exists() else journal.Replay([], [])
    recovery = Recovery(data_dir)
    for record in found.records:
        recovery.apply(record)
    if found.records:
        recovery.finish()
    return Recovered(recovery.entries, found.damage + recovery.damage)


def journal_folder(data_dir: Path, owner: int) -> Path:
    return data_dir / "journal" / str(owner)


def recover_owner(data_dir: Path, index: int, owners: int) -> Recovered:
    """Recover from the journal of this owner, and from those that a start with more owners left behind.

    Each left-over journal is one owner's business.  Its partitions may be another's now, which is why nobody serves before all
    owners have recovered.
    """
    found = recover(data_dir, journal_folder(data_dir, index))
    for folder in (data_dir / "journal").glob("*"):
        if folder.name.isdigit() and int(folder.name) >= owners and int(folder.name) % owners == index:
            found.add(recover(data_dir, folder))
            journal.retire(folder)
    return found
