"""SENDs of one pass -> ledgers: one table for all partitions it touches, sorted by partition.

`plan` decides where every entry goes and changes nothing but the room that is reserved; the journal makes the plan
durable; `apply` writes it into the ledgers.  The entries' bytes stay in the pieces that came from the workers: the journal
writes them as they are, and each stretch that is also in one piece in its ledger is copied there at once.
"""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.sends import SEND_ROW
from geminga.storage import format
from geminga.storage.journal import Record
from geminga.storage.ledger import Ledger
from geminga.storage.partition import Partition

# A SEND_ROW taken apart: its own fields in the order and with the offsets of the two rows that are made of them.
_PARTS = np.dtype([("producer", "<u8"), ("receipt", RECEIPT_ROW), ("index", format.INDEX_ROW)])
assert [(name, SEND_ROW.fields[name]) for name in SEND_ROW.names[1:]] == [
    (name, (dtype, _PARTS.fields[part][1] + offset))
    for part in ("receipt", "index") for name, (dtype, offset) in _PARTS[part].fields.items()]


@dataclass(slots=True)
class Batch:
    """The SENDs of a pass: rows (n,) SEND_ROW, to be filled in, with offsets into pieces laid end to end."""

    rows: NDArray
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
    sources: NDArray[np.uint32]       # (n,) offset of each entry in the batch's pieces
    index: NDArray                    # (n,) INDEX_ROW
    sizes: list[int]                  # of each group's ledger, afterwards
    next_messages: list[int]          # of each group's partition, afterwards

    @property
    def receipts(self) -> NDArray:
        """(n,) RECEIPT_ROW."""
        return self.batch.rows.view(_PARTS)["receipt"]

    def record(self, ops: NDArray) -> Record:
        table = np.array([(partition.partition_id, ledger.ledger_id, ledger.entries, end - start)
                          for partition, ledger, start, end in self.groups], format.GROUP_ROW)
        return Record(table, self.index, self.sources, ops, self.batch.pieces, self.batch.size)


def gather(sends: list[tuple[int, NDArray, memoryview]]) -> Batch:
    """One batch of what (worker, rows, entries) brought."""
    if len(sends) == 1:
        worker, rows, data = sends[0]
        rows = rows.copy()
        rows["worker"] = worker
        return Batch(rows, [data], np.zeros(1, np.int64))
    sizes = np.array([len(data) for _, _, data in sends], np.int64)
    bases = np.cumsum(sizes) - sizes
    rows = np.concatenate([rows for _, rows, _ in sends])
    counts = [len(found) for _, found, _ in sends]
    rows["offset"] += np.repeat(bases, counts).astype(np.uint64)
    rows["worker"] = np.repeat(np.array([worker for worker, _, _ in sends], np.uint32), counts)
    return Batch(rows, [data for _, _, data in sends], bases)


def sort_by_slot(batch: Batch, slots: NDArray[np.int64]) -> tuple[Batch, NDArray[np.int64], NDArray[np.intp]]:
    """The rows with a slot >= 0, those of one slot together and in order; their slots; and where each slot begins."""
    order = np.argsort(slots, kind="stable")
    order = order[np.searchsorted(slots[order], 0):]
    slots = slots[order]
    starts = np.flatnonzero(np.diff(slots, prepend=-1))
    return Batch(batch.rows[order], batch.pieces, batch.bases), slots, starts


def plan(batch: Batch, places: list[tuple[Partition, Ledger, int, int]], now_ms: int) -> Plan:
    """Where each row of batch goes, when rows first .. end-1 go behind the last entry of each place; fills the rows in."""
    rows, count = batch.rows, len(batch.rows)
    sources = rows["offset"].astype(format.SOURCE)
    index = np.ascontiguousarray(rows.view(_PARTS)["index"])
    index["broker_time"] = now_ms
    index["offset"], sizes = _running(index["size"], places, [ledger.size for _, ledger, _, _ in places])
    index["message_index"], next_messages = _running(index["messages"], places, [partition.next_message for partition, _, _, _ in places])
    if len(places) == 1:
        ledger = places[0][1]
        ledger_ids, entry_ids = ledger.ledger_id, np.arange(ledger.entries, ledger.entries + count, dtype=np.uint64)
    else:
        lengths = [end - first for _, _, first, end in places]
        firsts = np.array([ledger.entries - first for _, ledger, first, _ in places])
        entry_ids = (np.arange(count) + np.repeat(firsts, lengths)).astype(np.uint64)
        ledger_ids = np.repeat(np.array([ledger.ledger_id for _, ledger, _, _ in places], np.uint64), lengths)
    index["checksum"] = format.row_checksums(index, ledger_ids, entry_ids)
    rows["ledger_id"], rows["entry_id"] = ledger_ids, entry_ids
    return Plan(batch, places, sources, index, sizes, next_messages)


def _running(values: NDArray, places: list[tuple[Partition, Ledger, int, int]], bases: list[int]) -> tuple[NDArray[np.int64], list[int]]:
    """(for each value its place's base and the values before it there, for each place its base and all its values)."""
    ends = np.cumsum(values, dtype=np.int64)
    if len(places) == 1:
        ends += bases[0]
        return ends - values, [ends.item(-1)]
    before = ends - values
    moved = np.array(bases, np.int64) - before[[first for _, _, first, _ in places]]
    before += np.repeat(moved, [end - first for _, _, first, end in places])
    return before, (ends[[end - 1 for _, _, _, end in places]] + moved).tolist()


def apply(planned: Plan) -> None:
    """Write the entries and their index rows into the ledgers."""
    groups, sizes = planned.groups, planned.sizes
    is_whole = len(groups) == 1 and sizes[0] - groups[0][1].size == planned.batch.size      # nothing left out, nothing moved
    pieces = [planned.batch.pieces] if is_whole else _pieces_by_group(planned)
    for (partition, ledger, first, end), found, size, next_message in zip(groups, pieces, sizes, planned.next_messages, strict=True):
        ledger.write(found, ledger.size)
        ledger.append(planned.index[first:end], size)
        partition.next_message = next_message


def _pieces_by_group(planned: Plan) -> Iterator[list[memoryview]]:
    """For each group the bytes of its entries, in order, in as few pieces as they came."""
    batch = planned.batch
    sources, sizes = planned.sources.astype(np.int64), planned.index["size"].astype(np.int64)
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
