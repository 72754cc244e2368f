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

from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.cursors import state_file
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.state_file import Snapshot, State, StateFile
from geminga.storage.disk.files import sync, write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import journal, journal_reader, ledger, ledger_headers
from geminga.storage.ledgers.journal_reader import Record, Replay
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.owner import replayed_ops
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
        """Apply a record: its ops that open ledgers, its entries, then all other ops."""
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
            if (found := self.ledger(*key)) is not None:
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
        return self._files.get(partition_id) or StateFile(self.folder(partition_id), partition_id)

    def _gone(self, found: Ledger) -> Cursor | None:
        """What of a ledger that is a backup's too is there for nobody any more: where it lay there may be a hole, which stays."""
        with contextlib.suppress(CorruptFile):
            return self.state(found.partition_id).discarded
        return None

    # -- what ops are applied to, see replayed_ops.Target

    def folder(self, partition_id: int) -> Path:
        return format.partition_folder(self.data_dir, partition_id)

    def state(self, partition_id: int) -> State:
        """The partition's durable state but for its ledgers, to be changed.  Raises CorruptFile."""
        if partition_id not in self._states:
            self._states[partition_id] = state_file.read(self.folder(partition_id), partition_id)
            self._files[partition_id] = StateFile(self.folder(partition_id), partition_id)
            self.damage += self._states[partition_id].damage
        return self._states[partition_id]

    def ledger(self, partition_id: int, ledger_id: int) -> Ledger | None:
        """A ledger of the partition; None: it has been deleted.  Raises CorruptFile."""
        key = partition_id, ledger_id
        if key not in self._ledgers:
            folder = self.folder(partition_id)
            self._ledgers[key] = ledger.open_ledger(folder, partition_id, ledger_id) if ledger_headers.exists(folder, ledger_id) else None
        return self._ledgers[key]

    def open_ledger(self, partition_id: int, ledger_id: int, *, created_ms: int, first_message: int) -> None:
        """Make the ledger, unless it is there.  Raises StorageFull."""
        if (known := self.ledger(partition_id, ledger_id)) is not None:
            known.write_ledger_header()      # its index may have reached the disk alone
        else:
            self._ledgers[partition_id, ledger_id] = ledger.create(
                self.folder(partition_id), partition_id, ledger_id, first_message=first_message, created_ms=created_ms)

    def delete_ledger(self, partition_id: int, ledger_id: int) -> None:
        """Have the ledger's files deleted, once all that was replayed is durable."""
        self._to_unlink.append(Ledger(self.folder(partition_id), partition_id, ledger_id))
        self._ledgers[partition_id, ledger_id] = None

    def delete_partition(self, partition_id: int) -> None:
        """Ignore all that the journal has of the partition from now on."""
        self.gone.add(partition_id)

    def _apply_ops(self, ops: Rows, *, opened: bool) -> None:
        """Apply OP_ROWs (n,) that open ledgers, or all others."""
        ops = ops[(ops["kind"] == format.LEDGER_OPENED) == opened]
        if self.gone:
            ops = ops[~np.isin(ops["partition_id"], list(self.gone))]
        replayed_ops.apply(self, ops)


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
        journal.write_checkpoint(*journal.collect_checkpoint({recovery}))
    else:
        recovered.kept, recovered.recovery = found, recovery
        found.records = []
    return recovered


def _finish_deletions(data_dir: Path, gone: set[int]) -> None:
    """Whatever of these partitions a kill left."""
    catalogue = open_catalogue(data_dir / "catalogue.sqlite")
    try:
        for partition_id in gone:
            catalogue.partitions.delete(partition_id)
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
