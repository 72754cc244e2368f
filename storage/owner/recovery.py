"""Recovery: journal -> ledgers and cursors.  A start applies changes that a crash kept out of ledgers and state
files.

The recovery is complete before any client is served.  Applying the same records several times has the same result.  A
ledger without files was deleted later, unless a record says that it was opened.

The recovery syncs the journal's segments only, before it changes a file.  They are kept, and the next checkpoint brings
the changes to disk.  So the cost of a start after a kill depends on the records in the journal, without a sync for each
file.

A record for a file that is corrupt, or of a newer version, ends the recovery with CorruptFile.  The journal stays
unchanged, and its owner does not start: otherwise data that is only in the journal would be lost.  Corrupt files that
no record needs are not read; they are reported when their partition is opened.
"""
import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Rows, as_words, from_words
from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.cursors import state_file
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.state_file import State, StateFile
from geminga.storage.disk.files import sync, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import checkpoints, journal_reader, ledger_files, ledger_headers
from geminga.storage.ledgers.checkpoints import FileSnapshot
from geminga.storage.ledgers.journal_reader import Replay, StoredRecord, Told
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.owner import replayed_ops
from geminga.storage.runtime.routing import PLACEMENT
from geminga.storage.topics.partition import Partition
from geminga.storage.transactions import transaction_table
from geminga.storage.transactions.transaction_table import TransactionTable

_ROWS_AT_ONCE = 1_000_000      # entries that are sorted by ledger at a time
_KEPT_MAX = 32         # segments; a broker that is killed repeatedly would otherwise replay ever more
# The file that says which owners the journals belong to: their number, and the version of placement.  Programs that
# know one placement only compare the text with their number, and find that partitions have moved.
_OWNERS = "owners"


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of one ledger, in the order in which records have them, which is ascending but for gaps and repeats."""

    ids: NDArray[np.int64]         # (n,)
    rows: Rows                     # (n,) INDEX_ROW
    records: NDArray[np.int64]     # (n,) index in `data` of each entry's record
    sources: NDArray[np.int64]     # (n,) offset of each entry there
    data: list[memoryview]         # of each record: the bytes of its entries

    def __len__(self) -> int:
        return len(self.ids)

    def pick(self, which: slice | NDArray[np.bool_]) -> "_Entries":
        """Return the entries that a slice of their indexes, or a mask (n,), chooses."""
        return _Entries(self.ids[which], self.rows[which], self.records[which], self.sources[which], self.data)

    def runs(self) -> Iterator["_Entries"]:
        """Yield runs of consecutive entries, which are adjacent in their ledger's data file."""
        breaks = np.flatnonzero(np.diff(self.ids) != 1) + 1
        for first, end in pairwise([0, *breaks.tolist(), len(self)]) if len(self) else ():
            yield self.pick(slice(first, end))

    def pieces(self) -> list[memoryview]:
        """Return the entries' bytes, joined wherever they are adjacent in a record."""
        ends = self.sources + self.rows["size"]
        is_apart = (self.sources[1:] != ends[:-1]) | (self.records[1:] != self.records[:-1])
        firsts = np.append(0, np.flatnonzero(is_apart) + 1)
        lasts = np.append(firsts[1:], len(self)) - 1
        return [self.data[record][start:end] for record, start, end in zip(
            self.records[firsts].tolist(), self.sources[firsts].tolist(), ends[lasts].tolist(), strict=True)]

    def write_but(self, discarded: Cursor, target: Ledger) -> None:
        """Write consecutive entries into the ledger's data file, except discarded ones."""
        is_discarded = discarded.acknowledged(target.ledger_id, int(self.ids[0]), int(self.ids[-1]) + 1)
        for run in self.pick(~is_discarded).runs():
            target.write(run.pieces(), int(run.rows["offset"][0]))


def by_ledger(records: list[StoredRecord], gone: set[int]) -> Iterator[tuple[tuple[int, int], _Entries]]:
    """Yield ((partition id, ledger id), its entries) for all entries of records.  gone: partitions to leave out."""
    groups = np.frombuffer(b"".join([record.groups for record in records]), format.GROUP_ROW)
    rows = np.frombuffer(b"".join([record.rows for record in records]), format.INDEX_ROW)
    counts = groups["count"].astype(np.int64)
    assert int(counts.sum()) == len(rows), records
    sources = np.concatenate([record.sources for record in records])
    record_of_row = np.repeat(np.arange(len(records)), [len(record.rows) for record in records])
    firsts = np.cumsum(counts) - counts                 # index of each group's first row
    order = np.lexsort((groups["ledger_id"], groups["partition_id"]))      # groups of one ledger stay in their order
    order = order[~np.isin(groups["partition_id"][order], list(gone))]
    groups, counts, firsts = groups[order], counts[order], firsts[order]
    ends = np.cumsum(counts)
    within = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)      # each row's place in its group
    chosen = within + np.repeat(firsts, counts)
    entries = _Entries(within + np.repeat(groups["first_entry"].astype(np.int64), counts),
                       from_words(as_words(rows)[chosen], format.INDEX_ROW), record_of_row[chosen],
                       sources[chosen].astype(np.int64), [record.data for record in records])
    keys = groups[["partition_id", "ledger_id"]]
    lasts = np.flatnonzero(np.append(keys[1:] != keys[:-1], True)[:len(keys)])
    start = 0
    for key, end in zip(keys[lasts].tolist(), ends[lasts].tolist(), strict=True):
        yield key, entries.pick(slice(start, end))
        start = end


class Recovery:
    """A recovery in progress: ledgers and states that replayed records change, each opened when first needed.

    `apply` applies the ops of all records, `finish` then writes their entries.  Afterwards this object holds the
    changes that are not on disk, until a checkpoint of the journal or an opened partition takes them over.
    """

    def __init__(self, data_dir: Path, gone: Iterable[int] = ()):
        """Prepare a recovery.  gone: ids of deleted partitions, whose records are ignored."""
        self.data_dir, self.gone = data_dir, set(gone)
        self.entries = 0                                                 # that were written
        self.damage: list[str] = []
        self._ledgers: dict[tuple[int, int], Ledger | None] = {}         # None: deleted
        self._states: dict[int, State] = {}                              # of partitions that are not opened yet
        self._files: dict[int, StateFile] = {}
        self._folders: dict[int, Path] = {}      # making a path costs as much as applying an op
        self._opened: dict[int, Partition] = {}
        self.coordinators: dict[int, TransactionTable] = {}              # by number, those that some op changes
        self._to_unlink: list[Ledger] = []

    def __repr__(self) -> str:
        return (f"<Recovery {self.data_dir} ledgers={len(self._ledgers)} states={len(self._states)} "
                f"opened={len(self._opened)} entries={self.entries}>")

    def apply(self, records: list[StoredRecord], told: Told) -> None:
        """Apply the ops of all records: first those that open ledgers.  Raises CorruptFile."""
        ops = from_words(np.concatenate([as_words(record.ops) for record in records]), format.OP_ROW)
        if self.gone:
            ops = ops[~np.isin(ops["partition_id"], list(self.gone))]
        is_opened = ops["kind"] == format.LEDGER_OPENED
        # A ledger without files counts as deleted, so all of them are made before any op asks for one.
        replayed_ops.apply(self, ops[is_opened], partial(told, "ledgers"))
        replayed_ops.apply(self, replayed_ops.by_object(ops[~is_opened]), partial(told, "changes"))

    def finish(self, records: list[StoredRecord], told: Told) -> None:
        """Write the entries of all records, ledger by ledger, and index headers.  Raises CorruptFile, OSError."""
        sizes = np.array([len(record.rows) for record in records], np.int64)
        starts = np.flatnonzero(np.diff(np.cumsum(sizes) // _ROWS_AT_ONCE, prepend=-1))
        for first, end in pairwise([*starts.tolist(), len(records)]):
            for key, entries in by_ledger(records[first:end], self.gone):
                told("entries", self.entries, int(sizes.sum()))
                if (target := self.ledger(*key)) is not None:
                    self.entries += _put(target, entries, self._discarded(target))
        for written in self._ledgers.values():
            if written is not None:
                written.write_header()      # of a sealed one too: its header may not have reached the disk
                written.close()
                self.damage += written.damage

    # -- changes that are not on disk

    def checkpoint(self) -> tuple[list[Path], list[FileSnapshot]]:
        """Return (files to sync, snapshots to write) that bring all recovered changes to disk."""
        files = [path for written in self._ledgers.values() if written is not None for path in written.files()]
        snapshots: list[FileSnapshot] = [
            self._files[partition_id].take(state) for partition_id, state in self._states.items()]
        snapshots += [snapshot for partition in self._opened.values() for snapshot in partition.checkpoint()[1]]
        snapshots += [snapshot for table in self.coordinators.values() for snapshot in table.checkpoint()[1]]
        return files, snapshots

    def is_durable(self) -> None:
        """Delete the files of ledgers that replayed records deleted, and files of interrupted deletions.

        Call this only when no start needs these records again, or when they are synced.
        """
        for deleted in self._to_unlink:
            deleted.unlink()
        self._to_unlink.clear()

    def state_of(self, partition_id: int) -> tuple[State, StateFile] | None:
        """Return a partition's recovered state and its state file, if the state is not in the file yet.

        Return None if the file is up to date, or if the partition was opened.
        """
        return (self._states[partition_id], self._files[partition_id]) if partition_id in self._states else None

    @property
    def unopened(self) -> dict[int, State]:
        """{partition id: recovered state} of partitions that were not opened, and whose state files are out of date."""
        return self._states

    def opened(self, partition: Partition) -> None:
        """Hand a partition's recovered state over to the partition, which was opened with it."""
        if self._states.pop(partition.partition_id, None) is not None:
            self._opened[partition.partition_id] = partition

    def delete(self, partition_id: int) -> StateFile:
        """Drop a deleted partition's state and ledgers.

        Return its state file, with which the caller removes the folder.
        """
        self._states.pop(partition_id, None)
        self._opened.pop(partition_id, None)
        for key in [key for key in self._ledgers if key[0] == partition_id]:
            self._ledgers[key] = None
        return self._files.get(partition_id) or StateFile(self.folder(partition_id), partition_id)

    def _discarded(self, target: Ledger) -> Cursor | None:
        """Return the cursor that has acknowledged a ledger's discarded entries, None if the state cannot be read.

        Discarded entries are not written, because the holes in their place must stay.  Nothing would free blocks again
        that a replay has filled, and a file that a backup shares must not change.

        A state that no op has changed is only looked at.  In `_states` it would be written again by the checkpoint.
        """
        partition_id = target.partition_id
        if (state := self._states.get(partition_id)) is None:
            with contextlib.suppress(CorruptFile):
                state = state_file.read(self.folder(partition_id), partition_id)
        return state.discarded if state is not None else None

    # -- partitions for ops, see replayed_ops.Target

    def folder(self, partition_id: int) -> Path:
        """Return the partition's folder."""
        folder = self._folders.get(partition_id)
        if folder is None:
            folder = self._folders[partition_id] = format.partition_folder(self.data_dir, partition_id)
        return folder

    def state(self, partition_id: int) -> State:
        """Return the partition's durable state, except its ledgers, for ops to change.  Raises CorruptFile."""
        state = self._states.get(partition_id)
        if state is None:
            folder = self.folder(partition_id)
            state = self._states[partition_id] = state_file.read(folder, partition_id)
            self._files[partition_id] = StateFile(folder, partition_id)
            self.damage += state.damage
        return state

    def ledger(self, partition_id: int, ledger_id: int) -> Ledger | None:
        """Return a ledger of the partition; None if it was deleted.  Raises CorruptFile."""
        key = partition_id, ledger_id
        if key not in self._ledgers:
            folder, is_there = self.folder(partition_id), ledger_headers.exists(self.folder(partition_id), ledger_id)
            self._ledgers[key] = ledger_files.open_ledger(folder, partition_id, ledger_id) if is_there else None
        return self._ledgers[key]

    def open_ledger(self, partition_id: int, ledger_id: int, *, created_ms: int, first_message: int) -> None:
        """Create the ledger, unless it exists.  Raises StorageFull."""
        if (known := self.ledger(partition_id, ledger_id)) is not None:
            ledger_files.write_ledger_header(known)      # after a crash only the index may be on disk
        else:
            self._ledgers[partition_id, ledger_id] = ledger_files.create(
                self.folder(partition_id), partition_id, ledger_id, first_message=first_message,
                created_ms=created_ms)

    def delete_ledger(self, partition_id: int, ledger_id: int) -> None:
        """Delete the ledger's files later, when everything that was replayed is durable."""
        self._to_unlink.append(Ledger(self.folder(partition_id), partition_id, ledger_id))
        self._ledgers[partition_id, ledger_id] = None

    def delete_partition(self, partition_id: int) -> None:
        """Ignore all further records and ops for the partition."""
        self.gone.add(partition_id)

    def transactions(self, coordinator: int) -> TransactionTable:
        """Return a coordinator's transactions, for ops to change."""
        if coordinator not in self.coordinators:
            self.coordinators[coordinator] = transaction_table.read(self.data_dir, coordinator)
            self.damage += self.coordinators[coordinator].damage
        return self.coordinators[coordinator]


def _put(target: Ledger, entries: _Entries, discarded: Cursor | None) -> int:
    """Write entries and their rows into a ledger, even if it already has them; return how many.

    discarded: cursor with entries to leave out, None for none.

    Raises CorruptFile, StorageFull, OSError.
    """
    known, known_size = target.entries, target.size
    _check_beginning(target, entries)
    for run in entries.runs():
        rows = run.rows
        target.entries, target.size = int(run.ids[0]), int(rows["offset"][0])
        target.reserve(len(rows), int(rows["size"].sum(dtype=np.int64)))
        end = int(run.ids[-1]) + 1
        if discarded is None or not discarded.acknowledged(target.ledger_id, target.entries, end).any():
            target.write(run.pieces(), target.size)
        else:
            run.write_but(discarded, target)
        target.append(rows, int(rows["offset"][-1]) + int(rows["size"][-1]))
    # A ledger that went on after this journal's last record has more entries than were written again.
    if known > target.entries:
        target.entries, target.size = known, known_size
    return len(entries)


def _check_beginning(target: Ledger, entries: _Entries) -> None:
    """Check that the ledger's files have everything before the first entry: a gap would never be noticed later.

    Raises CorruptFile.
    """
    rows_end = format.index_size(int(entries.ids[0]))
    for path, needed in ((target.index_path, rows_end), (target.ledger_path, int(entries.rows["offset"][0]))):
        if (size := path.stat().st_size) < needed:
            raise CorruptFile(path, size, f"{needed} bytes before what the journal has for it", "the end of the file")


@dataclass(slots=True)
class Recovered:
    """Result of recovering from one or more journals."""

    entries: int = 0                                        # that were written
    damage: list[str] = field(default_factory=list)         # one line for each damaged place
    kept: Replay | None = None                              # the replay whose changes are not on disk, if any
    recovery: Recovery | None = None                        # the changes that `kept` made

    def add(self, other: "Recovered") -> None:
        """Add the result for another journal, whose changes must be on disk."""
        assert other.kept is None, other
        self.entries += other.entries
        self.damage += other.damage


def _tell_nobody(step: str, done: int, of: int) -> None:
    pass


def recover(data_dir: Path, folder: Path, told: Told = _tell_nobody, *, is_put_on_disk: bool = False) -> Recovered:
    """Apply the records of the journal in a folder.

    is_put_on_disk: sync all changes now; otherwise a later checkpoint of the journal syncs them.

    Raises CorruptFile, StorageFull, OSError.
    """
    if folder.exists():
        journal_reader.rescue(folder)
    found = journal_reader.replay(folder, told) if folder.exists() else Replay([], [], [], 0)
    if not found.records:
        return Recovered(damage=found.damage)
    # Before their changes are in any file: a power cut could leave such a file, and not the record that explains it.
    journal_reader.make_sure(found)
    if gone := deleted_in(found.records):
        # First, because the rows name partitions whose folders the replay removes.
        _delete_rows(data_dir, gone)
    recovery = replay(data_dir, found.records, told)
    recovered = Recovered(recovery.entries, found.damage + recovery.damage)
    if is_put_on_disk or len(found.segments) > _KEPT_MAX:
        # Before the folders are synced, because only the journal, which is retired next, has the deletions.
        recovery.is_durable()
        checkpoints.write_checkpoint(*checkpoints.collect_checkpoint({recovery}))
    else:
        recovered.kept, recovered.recovery = found, recovery
        found.records = []
    return recovered


def deleted_in(records: list[StoredRecord]) -> set[int]:
    """Return the ids of partitions that records delete."""
    return {partition_id for record in records
            for partition_id in record.ops["partition_id"][record.ops["kind"] == format.PARTITION_DELETED].tolist()}


def replay(data_dir: Path, records: list[StoredRecord], told: Told = _tell_nobody) -> Recovery:
    """Apply records to the files of partitions, not synced, and return the recovery, whose checkpoint does the rest.

    The catalogue is not touched.  Folders of partitions that records delete are removed.

    Raises CorruptFile, StorageFull, OSError.
    """
    gone = deleted_in(records)
    for partition_id in gone:
        StateFile(format.partition_folder(data_dir, partition_id), partition_id).remove()
    if gone and (folder := data_dir / "partitions").exists():
        sync(folder, os.fsync)
    recovery = Recovery(data_dir, gone)
    recovery.apply(records, told)
    recovery.finish(records, told)
    return recovery


def _delete_rows(data_dir: Path, gone: set[int]) -> None:
    """Complete the deletion of partitions that a kill interrupted: delete their rows in the catalogue."""
    catalogue = open_catalogue(data_dir / "catalogue.sqlite")
    try:
        for partition_id in gone:
            catalogue.partitions.delete(partition_id)
        catalogue.commit()
    finally:
        catalogue.close()


def journal_folder(data_dir: Path, owner: int) -> Path:
    """Return the folder of an owner's journal."""
    return data_dir / "journal" / str(owner)


def recover_owner(data_dir: Path, index: int, owners: int, told: Told = _tell_nobody, *, has_moved: bool) -> Recovered:
    """Recover from the journal of the owner with this index.  Raises CorruptFile, StorageFull, OSError.

    has_moved: as the function of that name says, so records may belong to another owner's partitions.  Then
    all changes are synced, and no owner serves before all owners have recovered.  A journal of an owner that no longer
    exists is recovered and removed by one of the current owners.
    """
    folder = journal_folder(data_dir, index)
    found = recover(data_dir, folder, told, is_put_on_disk=has_moved)
    for folder in (data_dir / "journal").glob("*") if has_moved else ():
        if folder.name.isdigit() and int(folder.name) >= owners and int(folder.name) % owners == index:
            found.add(recover(data_dir, folder, told, is_put_on_disk=True))
            journal_reader.retire(folder)
    return found


def has_moved(data_dir: Path, owners: int) -> bool:
    """Whether the journals may have records of partitions that other owners have now.

    So it is if another number of owners wrote them, or a program that placed partitions by another rule.
    """
    if not (data_dir / "journal").exists():
        return False
    try:
        return (data_dir / "journal" / _OWNERS).read_text() != _placed(owners)
    except FileNotFoundError:
        return True


def settle(data_dir: Path, owners: int) -> None:
    """Store the number of owners and their placement, after all of them have recovered.  Raises OSError."""
    if not has_moved(data_dir, owners):
        return
    path = data_dir / "journal" / _OWNERS
    write_anew(path, _placed(owners).encode())
    sync(path.parent, os.fsync)


def _placed(owners: int) -> str:
    return f"{owners} placement {PLACEMENT}\n"
