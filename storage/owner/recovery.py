"""journal -> ledgers and cursors: what a crash kept from where it belongs is put there.

Done before anything is served, and idempotent: the same records may be applied any number of times.  A ledger that has no files
has been deleted since, unless a record says that it was opened.

What was applied is not synced then: the segments of the journal are kept, and the next checkpoint puts it on disk.  So a start after
a kill costs what was in flight, and no sync for each file of it.

A record for a file that is corrupt, or of a newer version, ends the recovery with CorruptFile: nothing of the journal is
retired, and its owner does not start, because what only the journal has would be lost.  Corrupt files that no record needs are
not looked at here; whoever opens their partition is told.
"""
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.cursors import state_file, state_v1
from geminga.storage.cursors.batch_acks import by_batch
from geminga.storage.cursors.cursor import Cursor, entries_of
from geminga.storage.cursors.state_file import Snapshot, State, StateFile
from geminga.storage.disk.files import sync, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import journal, journal_reader, ledger, ledger_headers
from geminga.storage.ledgers.journal_reader import Record, Replay
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.partition import Partition

_KEPT_MAX = 32         # segments: a broker that is killed again and again does not replay more and more
_OWNERS = "owners"     # file that says of how many owners the journals are

Told = Callable[[str, int, int], None]      # (of what, so many are done, of so many): a recovery has come further


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Entries of one record that follow each other in their ledger."""

    first_entry: int
    rows: NDArray
    sources: NDArray
    data: memoryview

    def pieces(self) -> list[memoryview]:
        """Their bytes, in as few pieces as they are in the record."""
        found, start = [], int(self.sources[0])
        end = start
        for source, size in zip(self.sources.tolist(), self.rows["size"].tolist(), strict=True):
            if source != end:
                found.append(self.data[start:end])
                start = source
            end = source + size
        return [*found, self.data[start:end]]

    def write_but(self, gone: Cursor, found: Ledger) -> None:
        """Put those of them that are not gone where they belong."""
        is_gone = gone.acknowledged(found.ledger_id, self.first_entry, self.first_entry + len(self.rows))
        for at in np.flatnonzero(~is_gone).tolist():
            source, row = int(self.sources[at]), self.rows[at]
            found.write([self.data[source:source + int(row["size"])]], int(row["offset"]))


class Recovery:
    """The files that records being replayed belong to, opened when first needed."""

    def __init__(self, data_dir: Path, gone: Iterable[int] = ()):
        """gone: partitions that were deleted, and of which nothing is put back."""
        self.data_dir, self.gone = data_dir, set(gone)
        self.entries = 0
        self.damage: list[str] = []
        self._ledgers: dict[tuple[int, int], Ledger | None] = {}
        self._stretches: dict[tuple[int, int], list[_Stretch]] = {}      # what is to be written into each
        self._states: dict[int, State] = {}                      # of partitions that nobody has opened
        self._files: dict[int, StateFile] = {}
        self._opened: dict[int, Partition] = {}
        self._to_unlink: list[Ledger] = []

    def apply(self, record: Record) -> None:
        self._apply_ops(record.ops, opened=True)
        start = 0
        for partition_id, ledger_id, first_entry, count in record.groups.tolist():
            if partition_id not in self.gone:
                stretch = _Stretch(first_entry, record.rows[start:start + count], record.sources[start:start + count], record.data[0])
                self._stretches.setdefault((partition_id, ledger_id), []).append(stretch)
            start += count
        self._apply_ops(record.ops, opened=False)

    def finish(self, told: Told) -> None:
        """The entries are written, ledger by ledger; whoever opens a partition finds its ledgers as they are now."""
        for number, (key, stretches) in enumerate(self._stretches.items()):
            told("ledgers", number, len(self._stretches))
            if (found := self._ledger(*key)) is not None:
                self.entries += _put(found, stretches, self._gone(found) if found.is_shared else None)
        self._stretches.clear()
        for found in self._ledgers.values():
            if found is not None:
                found.write_header()      # also of one that says it is sealed: that may be from a roll that never got to disk
                found.close()
                self.damage += found.damage

    def checkpoint(self) -> tuple[list[Path], list[Snapshot]]:
        """(files to be synced, snapshots to be written)"""
        files = [path for found in self._ledgers.values() if found is not None for path in found.files()]
        snapshots = [self._files[partition_id].take(found) for partition_id, found in self._states.items()]
        return files, snapshots + [snapshot for partition in self._opened.values() for snapshot in partition.checkpoint()[1]]

    def is_durable(self) -> None:
        """What was replayed is on disk, here or there: ledgers that were deleted go, also what is left of a deletion cut short."""
        for found in self._to_unlink:
            found.unlink()
        self._to_unlink.clear()

    def state_of(self, partition_id: int) -> tuple[State, StateFile] | None:
        """What is known of the partition, and not in its file yet; None when the file has it, or the partition was opened."""
        return (self._states[partition_id], self._files[partition_id]) if partition_id in self._states else None

    @property
    def unopened(self) -> dict[int, State]:
        """By partition id what is known of those that nobody has opened."""
        return self._states

    def opened(self, partition: Partition) -> None:
        """The partition knows from now on what has become of it."""
        if self._states.pop(partition.partition_id, None) is not None:
            self._opened[partition.partition_id] = partition

    def delete(self, partition_id: int) -> StateFile:
        """Nothing is known of it any more.  Where its state was; the folder is the caller's to remove."""
        self._states.pop(partition_id, None)
        self._opened.pop(partition_id, None)
        for key in [key for key in self._ledgers if key[0] == partition_id]:
            self._ledgers[key] = None
        return self._files.get(partition_id) or StateFile(self._folder(partition_id), partition_id)

    def _gone(self, found: Ledger) -> Cursor | None:
        """What of a ledger that is a backup's too is there for nobody any more: where it lay there may be a hole, which stays."""
        with contextlib.suppress(CorruptFile):
            return self._state(found.partition_id).discarded
        return None

    def _folder(self, partition_id: int) -> Path:
        return format.partition_folder(self.data_dir, partition_id)

    def _cursor(self, partition_id: int, subscription_id: int) -> Cursor:
        return self._state(partition_id).cursor(subscription_id)

    def _state(self, partition_id: int) -> State:
        if partition_id not in self._states:
            self._states[partition_id] = state_file.read(self._folder(partition_id), partition_id)
            self._files[partition_id] = StateFile(self._folder(partition_id), partition_id)
            self.damage += self._states[partition_id].damage
        return self._states[partition_id]

    def _ledger(self, partition_id: int, ledger_id: int) -> Ledger | None:
        key = partition_id, ledger_id
        if key not in self._ledgers:
            folder = self._folder(partition_id)
            self._ledgers[key] = ledger.open_ledger(folder, partition_id, ledger_id) if ledger_headers.exists(folder, ledger_id) else None
        return self._ledgers[key]

    def _apply_ops(self, ops: NDArray, *, opened: bool) -> None:
        """Those that open ledgers come before the record's entries, all others after them."""
        ops = ops[(ops["kind"] == format.LEDGER_OPENED) == opened]
        if self.gone:
            ops = ops[~np.isin(ops["partition_id"], list(self.gone))]
        if not len(ops):
            return
        if len(ops) == 1:        # as of the records of small passes: how far one producer has come
            return self._apply_run(ops)
        same = np.ones(len(ops), bool)
        same[0] = False
        kinds = np.where(ops["kind"] & format.KIND == format.PART_ACKNOWLEDGED, format.PART_ACKNOWLEDGED, ops["kind"])      # of any word
        for column in (kinds, ops["partition_id"], ops["subscription_id"], ops["ledger_id"]):
            same[1:] &= column[1:] == column[:-1]
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
            self._to_unlink.append(Ledger(self._folder(partition_id), partition_id, position[0]))
            self._ledgers[partition_id, position[0]] = None
            for cursor in self._state(partition_id).cursors.values():
                cursor.forget(position[0])
        elif kind == format.MARK_DELETE:
            self._cursor(partition_id, subscription_id).mark_delete = position
        elif kind == format.CURSOR_RESET:
            cursor = self._cursor(partition_id, subscription_id)
            if self._state(partition_id).is_uncounted:
                state_v1.reset(cursor, position)
            else:
                cursor.move(position, int(last["value"]))
        elif kind == format.ACKNOWLEDGED:
            found = self._ledger(partition_id, position[0]) or Ledger(self._folder(partition_id), partition_id, position[0])
            self._cursor(partition_id, subscription_id).acknowledge(found, _entries(ops))      # perhaps what only a compacted view has
        elif kind == format.PART_ACKNOWLEDGED:
            cursor, numbers = self._cursor(partition_id, subscription_id), ops["kind"].astype(np.int64) >> format.KIND_WORD
            for first, end in by_batch(ops, numbers):
                cursor.set_parts(position[0], int(ops["entry_id"][first]), numbers[first:end], ops["value"][first:end].astype(np.uint64))
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
        elif kind == format.DELAYED:
            self._state(partition_id).delays = format.SCHEDULED


def _entries(ops: NDArray) -> NDArray[np.int64]:
    """Of the runs that ops of ACKNOWLEDGED are about: all, sorted, each once."""
    return np.unique(entries_of(np.stack((ops["entry_id"], ops["entry_id"] + ops["value"] + 1), 1)))


def _put(found: Ledger, stretches: list[_Stretch], gone: Cursor | None) -> int:
    """Write entries, but for those that are gone, and their rows, whether or not they were there before; returns how many."""
    known, known_size, at = found.entries, found.size, 0
    _check_beginning(found, stretches[0])
    while at < len(stretches):
        first, end = at, stretches[at].first_entry
        while at < len(stretches) and stretches[at].first_entry == end:      # they follow each other
            end += len(stretches[at].rows)
            at += 1
        rows = np.frombuffer(b"".join([stretch.rows for stretch in stretches[first:at]]), format.INDEX_ROW)
        found.entries, found.size = stretches[first].first_entry, int(rows["offset"][0])
        found.reserve(len(rows), int(rows["size"].sum(dtype=np.int64)))
        if gone is None or not gone.acknowledged(found.ledger_id, stretches[first].first_entry, end).any():
            found.write([piece for stretch in stretches[first:at] for piece in stretch.pieces()], found.size)
        else:
            for stretch in stretches[first:at]:
                stretch.write_but(gone, found)
        found.append(rows, int(rows["offset"][-1]) + int(rows["size"][-1]))
    if known > found.entries:
        found.entries, found.size = known, known_size
    return sum(len(stretch.rows) for stretch in stretches)


def _check_beginning(found: Ledger, first: _Stretch) -> None:
    """What comes before the first of them is there.  Raises CorruptFile: behind a hole it would never be missed."""
    for path, needed in ((found.index_path, format.HEADER_SIZE + first.first_entry * format.INDEX_ROW.itemsize),
                         (found.ledger_path, int(first.rows["offset"][0]))):
        if (size := path.stat().st_size) < needed:
            raise CorruptFile(path, size, f"{needed} bytes before what the journal has for it", "the end of the file")


@dataclass(slots=True)
class Recovered:
    """What a recovery did."""

    entries: int = 0                                        # put where they belong
    damage: list[str] = field(default_factory=list)         # found on the way, a line each
    kept: Replay | None = None                              # what is not on disk yet where it belongs, if it was left so
    recovery: Recovery | None = None                        # stands for that

    def add(self, other: "Recovered") -> None:
        self.entries += other.entries
        self.damage += other.damage


def _quietly(what: str, done: int, of: int) -> None:
    """Nobody asks how far it is."""


def recover(data_dir: Path, folder: Path, told: Told = _quietly, *, is_put_on_disk: bool = False) -> Recovered:
    """Apply what the journal in folder holds.  Raises CorruptFile."""
    if folder.exists():
        journal_reader.rescue(folder)
    found = journal_reader.replay(folder, told) if folder.exists() else Replay([], [], set(), 0)
    if not found.records:
        return Recovered(damage=found.damage)
    gone = {partition_id for record in found.records
            for partition_id in record.ops["partition_id"][record.ops["kind"] == format.PARTITION_DELETED].tolist()}
    if gone:
        _finish_deletions(data_dir, gone)
    recovery = Recovery(data_dir, gone)
    for number, record in enumerate(found.records):
        told("records", number, len(found.records))
        recovery.apply(record)
    recovery.finish(told)
    recovered = Recovered(recovery.entries, found.damage + recovery.damage)
    if is_put_on_disk or len(found.segments) > _KEPT_MAX:
        journal_reader.make_sure(found)
        # Before their folders are synced: the journal, which is retired soon, alone says that they are deleted.
        recovery.is_durable()
        journal.put_on_disk(*journal.to_put({recovery}))
    else:
        recovered.kept, recovered.recovery = found, recovery
        found.records = []
    return recovered


def _finish_deletions(data_dir: Path, gone: set[int]) -> None:
    """Whatever of these partitions a kill left."""
    catalogue = open_catalogue(data_dir / "catalogue.sqlite")
    try:
        for partition_id in gone:
            catalogue.delete_partition(partition_id)
        catalogue.commit()
    finally:
        catalogue.close()
    for partition_id in gone:
        StateFile(format.partition_folder(data_dir, partition_id), partition_id).remove()
    if (folder := data_dir / "partitions").exists():
        sync(folder, os.fsync)


def journal_folder(data_dir: Path, owner: int) -> Path:
    return data_dir / "journal" / str(owner)


def recover_owner(data_dir: Path, index: int, owners: int, told: Told = _quietly, *, has_moved: bool) -> Recovered:
    """Recover from the journal of this owner.

    has_moved: there were more or fewer owners when the journals were written, so what is in them may be of another's partitions.  It
    is put on disk then, and nobody serves before all owners have recovered.  Each journal left over is one owner's business.
    """
    folder = journal_folder(data_dir, index)
    found = recover(data_dir, folder, told, is_put_on_disk=has_moved)
    for folder in (data_dir / "journal").glob("*") if has_moved else ():
        if folder.name.isdigit() and int(folder.name) >= owners and int(folder.name) % owners == index:
            found.add(recover(data_dir, folder, told, is_put_on_disk=True))
            journal_reader.retire(folder)
    return found


def has_moved(data_dir: Path, owners: int) -> bool:
    """Whether the journals were, or may have been, written by another number of owners."""
    if not (data_dir / "journal").exists():
        return False
    try:
        return (data_dir / "journal" / _OWNERS).read_text().strip() != str(owners)
    except FileNotFoundError:
        return True


def settle(data_dir: Path, owners: int) -> None:
    """All of so many owners have recovered: the journals are theirs from now on."""
    if not has_moved(data_dir, owners):
        return
    path = data_dir / "journal" / _OWNERS
    write_anew(path, b"%d\n" % owners)
    sync(path.parent, os.fsync)
