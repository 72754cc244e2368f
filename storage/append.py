"""SENDs of one pass -> ledgers: one table for all partitions it touches, sorted by partition.

`plan` decides where every entry goes and changes nothing but the room that is reserved; the journal makes the plan
durable; `apply` writes it into the ledgers.  The entries' bytes stay in the pieces that came from the workers: the journal
writes them as they are, and each stretch that is also in one piece in its ledger is copied there at once.
"""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.proto.sends import SEND_ROW
from geminga.storage import format
from geminga.storage.journal import Record
from geminga.storage.ledger import Ledger
from geminga.storage.partition import Partition

_NO_OPS = np.empty(0, format.OP_ROW)


@dataclass(slots=True)
class Batch:
    """The SENDs of a pass as they came: rows (n,) SEND_ROW with offsets into pieces laid end to end, and who sent each."""

    rows: NDArray
    workers: NDArray[np.uint32]
    pieces: list[memoryview]
    bases: NDArray[np.int64]          # where each piece begins

    @property
    def size(self) -> int:
        return int(self.bases[-1]) + len(self.pieces[-1])


@dataclass(slots=True)
class Plan:
    """Where the rows go.  groups: (partition, ledger, first row, row behind the last), in the order of rows."""

    batch: Batch                      # rows sorted by partition, in order of arrival within each
    groups: list[tuple[Partition, Ledger, int, int]]
    index: NDArray                    # (n,) INDEX_ROW
    ledger_ids: NDArray[np.uint64]    # (n,)
    entry_ids: NDArray[np.int64]      # (n,)

    def record(self, ops: NDArray) -> Record:
        table = np.array([(partition.partition_id, ledger.ledger_id, ledger.entries, end - start)
                          for partition, ledger, start, end in self.groups], format.GROUP_ROW)
        return Record(table, self.index, self.batch.rows["offset"].astype(format.SOURCE), ops, self.batch.pieces, self.batch.size)


def gather(sends: list[tuple[int, NDArray, memoryview]]) -> Batch:
    """One batch of what (worker, rows, entries) brought."""
    if len(sends) == 1:
        worker, rows, data = sends[0]
        return Batch(rows, np.full(len(rows), worker, np.uint32), [data], np.zeros(1, np.int64))
    sizes = np.array([len(data) for _, _, data in sends], np.int64)
    bases = np.cumsum(sizes) - sizes
    rows = np.concatenate([rows for _, rows, _ in sends])
    counts = [len(found) for _, found, _ in sends]
    rows["offset"] += np.repeat(bases, counts).astype(np.uint64)
    workers = np.repeat(np.array([worker for worker, _, _ in sends], np.uint32), counts)
    return Batch(rows, workers, [data for _, _, data in sends], bases)


def sort_by_slot(batch: Batch, slots: NDArray[np.int64]) -> tuple[Batch, NDArray[np.int64], NDArray[np.intp]]:
    """The rows with a slot >= 0, those of one slot together and in order; their slots; and where each slot begins."""
    order = np.argsort(slots, kind="stable")
    order = order[np.searchsorted(slots[order], 0):]
    slots = slots[order]
    starts = np.flatnonzero(np.diff(slots, prepend=-1))
    return Batch(batch.rows[order], batch.workers[order], batch.pieces, batch.bases), slots, starts


def plan(batch: Batch, places: list[tuple[Partition, Ledger, int, int]], now_ms: int) -> Plan:
    """Where each row of batch goes, when rows first .. end-1 go behind the last entry of each place."""
    rows, count = batch.rows, len(batch.rows)
    index = np.empty(count, format.INDEX_ROW)
    for name in ("publish_time", "deliver_at", "size", "messages", "key_hash", "flags", "crc32c"):
        index[name] = rows[name]
    index["broker_time"] = now_ms
    if len(places) == 1:
        partition, ledger, _, _ = places[0]
        index["offset"] = _before(rows["size"]) + ledger.size
        index["message_index"] = _before(rows["messages"]) + partition.next_message
        entry_ids = np.arange(ledger.entries, ledger.entries + count)
        ledger_ids = np.full(count, ledger.ledger_id, np.uint64)
    else:
        starts = np.array([first for _, _, first, _ in places])
        lengths = np.array([end - first for _, _, first, end in places])
        index["offset"] = _running(rows["size"], starts, lengths, [ledger.size for _, ledger, _, _ in places])
        index["message_index"] = _running(rows["messages"], starts, lengths, [partition.next_message for partition, _, _, _ in places])
        first_entries = np.array([ledger.entries for _, ledger, _, _ in places], np.int64)
        entry_ids = np.arange(count) + np.repeat(first_entries - starts, lengths)
        ledger_ids = np.repeat(np.array([ledger.ledger_id for _, ledger, _, _ in places], np.uint64), lengths)
    index["checksum"] = format.row_checksums(index, ledger_ids, entry_ids)
    return Plan(batch, places, index, ledger_ids, entry_ids)


def _before(values: NDArray) -> NDArray[np.int64]:
    """For each value the sum of those before it."""
    return np.cumsum(values, dtype=np.int64) - values


def _running(values: NDArray, starts: NDArray[np.intp], lengths: NDArray[np.intp], bases: list[int]) -> NDArray[np.int64]:
    """For each group: its base, then its base and the sum of the values before."""
    before = _before(values)
    return before + np.repeat(np.array(bases, np.int64) - before[starts], lengths)


def apply(planned: Plan) -> None:
    """Write the entries and their index rows into the ledgers."""
    batch, index, groups = planned.batch, planned.index, planned.groups
    lasts = np.array([end - 1 for _, _, _, end in groups])
    sizes = (index["offset"][lasts] + index["size"][lasts]).tolist()
    messages = (index["message_index"][lasts] + index["messages"][lasts]).tolist()
    is_whole = len(groups) == 1 and sizes[0] - groups[0][1].size == batch.size      # nothing left out, nothing moved
    pieces = [batch.pieces] if is_whole else _pieces_by_group(planned)
    for (partition, ledger, first, end), found, size, next_message in zip(groups, pieces, sizes, messages, strict=True):
        ledger.write(found, ledger.size)
        ledger.append(index[first:end], size)
        partition.next_message = next_message


def _pieces_by_group(planned: Plan) -> Iterator[list[memoryview]]:
    """For each group the bytes of its entries, in order, in as few pieces as they came."""
    batch = planned.batch
    sources = batch.rows["offset"].astype(np.int64)
    sizes = batch.rows["size"].astype(np.int64)
    owners = np.searchsorted(batch.bases, sources, side="right") - 1
    # A stretch goes on as long as its source does, within one group and one piece.
    breaks = np.ones(len(sources), bool)
    breaks[1:] = (sources[1:] != sources[:-1] + sizes[:-1]) | (owners[1:] != owners[:-1])
    breaks[[first for _, _, first, _ in planned.groups]] = True
    starts = np.flatnonzero(breaks)
    ends = np.append(starts[1:], len(sources)) - 1
    at = sources[starts] - batch.bases[owners[starts]]
    lengths = sources[ends] + sizes[ends] - sources[starts]
    stretches = [batch.pieces[owner][start:start + size]
                 for owner, start, size in zip(owners[starts].tolist(), at.tolist(), lengths.tolist(), strict=True)]
    borders = np.searchsorted(starts, [end for _, _, _, end in planned.groups]).tolist()
    for first, end in zip([0, *borders], borders, strict=False):
        yield stretches[first:end]


assert SEND_ROW["size"] == format.INDEX_ROW["size"]
