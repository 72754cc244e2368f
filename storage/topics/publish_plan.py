"""SENDs of one pass -> ledgers: where every entry goes, for all partitions the pass touches.

`plan` decides and changes nothing but the room that is reserved; the journal makes the plan durable; `apply` writes it into
the ledgers.  The entries' bytes stay in the pieces that came from the workers: the journal writes them as they are, and each
stretch that is also in one piece in its ledger is copied there at once.

What has come before, on a partition that deduplicates, gets a receipt and no place; producer_sequences.py says what that is.

Many rows are planned as arrays, one table for all partitions; few one by one (proto/rows.py says why).
"""
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import compress, repeat

import numpy as np
from numpy.typing import NDArray

from geminga.proto.deliveries import RECEIPT, RECEIPT_ROW
from geminga.proto.rows import as_words, from_words
from geminga.proto.sends import IS_CHUNK, SEND_ROW
from geminga.storage import format
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.producer_sequences import NOWHERE, Progress
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers.journal_reader import Record
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.producers import Producer

FEW_MAX = 32       # rows
_SOURCE = 4        # bytes of one, see format.SOURCE
_SIGN = 1 << 63    # where sequence ids become negative
SENT_OTHERWISE = 1 << 32     # in message_index, until that is filled in: the entry was rewritten; beside it its checksum before
# A SEND_ROW is a producer's handle, a RECEIPT_ROW and an INDEX_ROW: their fields in their order.  numpy copies rows field by
# field, and ten times faster as words of 8 bytes.
_RECEIPT, _INDEX = slice(1, 7), slice(7, 15)
assert [(name, SEND_ROW.fields[name]) for name in SEND_ROW.names[1:]] == [
    (name, (field, 8 * words.start + offset))
    for words, dtype in ((_RECEIPT, RECEIPT_ROW), (_INDEX, format.INDEX_ROW)) for name, (field, offset) in dtype.fields.items()]

Sends = list[tuple[int, NDArray, memoryview]]             # [(worker, rows (n,) SEND_ROW, their entries)]
ProducerOf = Callable[[int], Producer | None]             # of its handle; None when it is gone
Room = Callable[[Partition, int, int], Ledger]            # where so many entries of so many bytes go; raises StorageFull


@dataclass(slots=True)
class Group:
    """What goes behind the last entry of one ledger: rows first .. first + count - 1 of the plan."""

    partition: Partition
    ledger: Ledger
    first: int
    count: int
    size: int                         # of the ledger, afterwards
    next_message: int                 # of the partition, afterwards
    pieces: list = field(default_factory=list)      # the entries' bytes, in order


@dataclass(slots=True)
class Plan:
    """Where the entries go.  Rows stand in the order of the groups."""

    data: list[memoryview]            # what came
    groups: list[Group]
    index: NDArray | bytes            # (n,) INDEX_ROW
    sources: NDArray | bytes          # (n,) SOURCE: offset of each entry in the data laid end to end
    receipts: list[tuple[int, NDArray | bytes]]     # [(worker, its RECEIPT_ROWs)]
    refused: list[tuple[int, int, int, int, str]]   # (worker, connection, producer id, sequence id, why)
    progress: list[tuple[Producer, Progress]] = field(default_factory=list)     # how far producers have come then
    duplicates: int = 0
    handles: NDArray | None = None    # of the producers (n,) of what is stored, ...
    few: list[tuple[Producer, int, int, int]] = field(default_factory=list)      # ... or, one by one, with size, messages and flags
    latest_ms: int = 0                # of the times before which some are not to be delivered

    def record(self, ops: bytes) -> Record:
        ops += b"".join([producer.partition.sequences.ops(producer.partition.partition_id, producer.identity, progress)
                         for producer, progress in self.progress])
        table = b"".join([format.GROUP.pack(group.partition.partition_id, group.ledger.ledger_id, group.ledger.entries, group.count)
                          for group in self.groups])
        return Record(table, self.index, self.sources, ops, self.data, sum(map(len, self.data)))


def plan(sends: Sends, producer_of: ProducerOf, room: Room, now_ms: int) -> Plan:
    """Where each entry goes.  What comes from a producer that is gone is left out: its client has been told."""
    how = plan_few if sum(len(rows) for _, rows, _ in sends) <= FEW_MAX else plan_many
    return how(sends, producer_of, room, now_ms)


def apply(planned: Plan, now_ms: int) -> None:
    """Write the entries and their index rows into the ledgers, and know how far their producers have come."""
    for group in planned.groups:
        ledger = group.ledger
        ledger.write(group.pieces, ledger.size)
        ledger.append(_slice(planned.index, group.first, group.count), group.size)
        group.partition.next_message = group.next_message
    for producer, progress in planned.progress:
        producer.partition.sequences.learn(producer.identity, progress, now_ms)


def deliver_at(planned: Plan, group: Group) -> NDArray[np.int64]:
    """Of the group's entries (n,), ms; 0 for at once."""
    index = np.frombuffer(planned.index, format.INDEX_ROW) if isinstance(planned.index, bytes) else planned.index
    return index["deliver_at"][group.first:group.first + group.count]


def _slice(index: NDArray | bytes, first: int, count: int) -> NDArray | bytes:
    width = format.INDEX_ROW.itemsize
    return index[first * width:(first + count) * width] if isinstance(index, bytes) else index[first:first + count]


# -- one by one

def plan_few(sends: Sends, producer_of: ProducerOf, room: Room, now_ms: int) -> Plan:
    planned = Plan([data for _, _, data in sends], [], b"", b"", [], [])
    base, found = 0, {}
    for worker, rows, data in sends:
        for row in rows.tolist():
            producer = producer_of(row[0])
            if producer is not None:
                found.setdefault(producer.partition, []).append((worker, base, data, row, producer))
        base += len(data)
    index, sources, receipts, few = [], [], {}, planned.few
    for partition, entries in sorted(found.items(), key=_slot):
        stored, is_new, progress = entries, repeat(True), {}
        if partition.deduplicates:
            is_new, progress = _take(entries)
            stored = entries if all(is_new) else list(compress(entries, is_new))
        ledger = None
        try:
            if stored:
                ledger = room(partition, len(stored), sum(row[13] for *_, row, _ in stored))
        except StorageFull as error:
            planned.refused += [(worker, row[1], row[3], row[4], str(error)) for worker, _, _, row, _ in stored]
        else:
            planned.progress += progress.items()
        planned.duplicates += len(entries) - len(stored)
        if ledger is not None:
            ledger_id, entry_id, pieces = ledger.ledger_id, ledger.entries, []
            offset, message_index = ledger.size, partition.next_message
        for (worker, base, data, row, producer), is_stored in zip(entries, is_new, strict=False):
            (_, connection, _, producer_id, sequence_id, highest, _, _,
             at, publish_time, _, deliver_at, _, size, messages, key_hash, flags, crc32c, _) = row
            if not is_stored:
                receipts.setdefault(worker, []).append(
                    RECEIPT.pack(connection, worker, producer_id, sequence_id, highest, NOWHERE, NOWHERE))
                continue
            if ledger is None:
                continue
            index.append(format.index_row(
                ledger_id, entry_id, offset=offset, publish_time=publish_time, broker_time=now_ms, deliver_at=deliver_at,
                message_index=message_index, size=size, messages=messages, key_hash=key_hash, flags=flags, crc32c=crc32c))
            sources.append((base + at).to_bytes(_SOURCE, "little"))
            few.append((producer, size, messages, flags))
            if deliver_at > planned.latest_ms:
                planned.latest_ms = deliver_at
            pieces.append(data[at:at + size])
            receipts.setdefault(worker, []).append(
                RECEIPT.pack(connection, worker, producer_id, sequence_id, highest, ledger_id, entry_id))
            entry_id += 1
            offset += size
            message_index += messages
        if ledger is not None:
            planned.groups.append(Group(partition, ledger, len(index) - len(stored), len(stored), offset, message_index, pieces))
    planned.index, planned.sources = b"".join(index), b"".join(sources)
    planned.receipts = [(worker, b"".join(rows)) for worker, rows in receipts.items()]
    return planned


def _take(entries: list[tuple]) -> tuple[list[bool], dict[Producer, Progress]]:
    """(which of them are new, how far their producers have come with those) on a partition that deduplicates."""
    is_new, progress = [], {}
    for _, _, _, row, producer in entries:
        if (found := progress.get(producer)) is None:
            found = progress[producer] = producer.partition.sequences.of(producer.identity).copy()
        sequence_id, highest, flags = row[4], row[5], row[16]
        if found.last < sequence_id < _SIGN and not (highest or flags & IS_CHUNK or found.under_way):      # nearly always
            found.last = sequence_id
            is_new.append(True)
        else:
            is_new.append(found.take(*producer_sequences.span(sequence_id, highest), flags, row[12] & 0xFFFFFFFF if row[12] else row[17]))
    return is_new, progress


def _slot(item: tuple[Partition, list]) -> int:
    return item[0].slot


# -- as arrays

def plan_many(sends: Sends, producer_of: ProducerOf, room: Room, now_ms: int) -> Plan:
    planned = Plan([data for _, _, data in sends], [], b"", b"", [], [])
    rows, starts, partitions = _by_partition(_gather(sends), producer_of)
    if not partitions:
        return planned
    is_new = _take_many(planned, rows, producer_of) if any(partition.deduplicates for partition in partitions) else None
    is_stored = _find_room(planned, rows, starts, partitions, room, is_new)
    stored = answered = rows if is_stored is None else from_words(as_words(rows)[is_stored], SEND_ROW)
    if planned.groups:
        planned.handles = stored["producer"]
        _place(planned, stored, now_ms)
    if is_new is not None:
        answered = _with_duplicates(rows, is_new, is_stored, stored)
        planned.duplicates = len(answered) - len(stored)
    if not len(answered):
        return planned
    for worker in [sends[0][0]] if len(sends) == 1 else np.unique(answered["worker"]).tolist():
        words = as_words(answered) if len(sends) == 1 else as_words(answered)[answered["worker"] == worker]
        planned.receipts.append((worker, from_words(words[:, _RECEIPT], RECEIPT_ROW)))
    is_whole = len(planned.groups) == 1 and int(planned.index["size"].sum(dtype=np.int64)) == sum(map(len, planned.data))
    if is_whole:                                     # nothing left out, nothing moved
        planned.groups[0].pieces = planned.data
    elif planned.groups:
        _cut(planned)
    return planned


def _gather(sends: Sends) -> NDArray:
    """One table, with offsets into all data laid end to end."""
    if len(sends) == 1:
        worker, rows, _ = sends[0]
        rows = as_words(rows).copy().view(SEND_ROW).ravel()
        rows["worker"] = worker
        return rows
    counts = [len(rows) for _, rows, _ in sends]
    sizes = np.array([len(data) for _, _, data in sends], np.int64)
    rows = np.concatenate([as_words(rows) for _, rows, _ in sends]).view(SEND_ROW).ravel()
    rows["worker"] = np.repeat(np.array([worker for worker, _, _ in sends], np.uint32), counts)
    rows["offset"] += np.repeat(np.cumsum(sizes) - sizes, counts).astype(np.uint64)
    return rows


def _by_partition(rows: NDArray, producer_of: ProducerOf) -> tuple[NDArray, list[int], list[Partition]]:
    """(the rows of each partition together and in order, where each partition's begin, the partitions)."""
    handles = rows["producer"]
    first = handles.item(0)
    if (handles == first).all():
        producer = producer_of(first)
        return (rows, [0], [producer.partition]) if producer is not None else (rows[:0], [], [])
    distinct, inverse = np.unique(handles, return_inverse=True)
    producers = [producer_of(handle) for handle in distinct.tolist()]
    partitions = [producer.partition if producer is not None else None for producer in producers]
    by_slot = {partition.slot: partition for partition in partitions if partition is not None}
    slots = np.array([partition.slot if partition is not None else -1 for partition in partitions])[inverse]
    order = np.argsort(slots, kind="stable")
    order = order[np.searchsorted(slots[order], 0):]
    slots = slots[order]
    starts = np.flatnonzero(np.diff(slots, prepend=-1))
    return from_words(as_words(rows)[order], SEND_ROW), starts.tolist(), [by_slot[slot] for slot in slots[starts].tolist()]


def _take_many(planned: Plan, rows: NDArray, producer_of: ProducerOf) -> NDArray[np.bool_] | None:
    """Which rows are new, as far as their partitions deduplicate, None when all are; planned.progress says what follows from them."""
    handles, columns = rows["producer"], [rows[name] for name in ("sequence_id", "highest_sequence_id", "flags")]
    order, starts = None, np.zeros(1, np.intp)
    if (handles != handles[0]).any():
        order = np.argsort(handles, kind="stable")
        handles, *columns = (column[order] for column in (handles, *columns))
        starts = np.flatnonzero(np.append(True, handles[1:] != handles[:-1]))
    sequence_ids, highest, flags = columns
    first, last = producer_sequences.spans(sequence_ids, highest)
    before, found = np.empty_like(last), []
    before[1:] = last[:-1]
    for handle, start in zip(handles[starts].tolist(), starts.tolist(), strict=True):
        producer = producer_of(handle)
        if producer.partition.deduplicates:
            progress = producer.partition.sequences.of(producer.identity).copy()
            before[start] = progress.last
            found.append((producer, progress))
        else:
            found.append(None)
    is_plain = np.logical_and.reduceat((first > before) & (flags & IS_CHUNK == 0), starts).tolist()
    is_new = None
    for one, is_rising, start, end in zip(found, is_plain, starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        if one is None:
            continue
        planned.progress.append(one)
        progress = one[1]
        if is_rising and not progress.under_way:       # nearly always
            progress.last = last.item(end - 1)
            continue
        run = slice(start, end) if order is None else order[start:end]
        came_with = np.where(rows["message_index"][run] & SENT_OTHERWISE, rows["message_index"][run] & 0xFFFFFFFF, rows["crc32c"][run])
        taken = [progress.take(*each) for each in zip(first[start:end].tolist(), last[start:end].tolist(), flags[start:end].tolist(),
                                                      came_with.tolist(), strict=True)]
        if not all(taken):
            is_new = np.ones(len(rows), bool) if is_new is None else is_new
            is_new[run] = taken
    return is_new


def _find_room(planned: Plan, rows: NDArray, starts: list[int], partitions: list[Partition], room: Room,
               is_new: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Fill in the groups; returns which rows have a place, None when all have: new ones for which there is no room are refused."""
    sizes, messages = rows["size"], rows["messages"]
    counts = np.diff(np.array([*starts, len(rows)]))
    if is_new is not None:
        sizes, messages, counts = sizes * is_new, messages * is_new, np.add.reduceat(is_new, starts, dtype=np.int64)
    sizes, messages = (np.add.reduceat(column, starts, dtype=np.int64).tolist() for column in (sizes, messages))
    keep, first = is_new, 0
    for start, end, partition, count, size, many in zip(starts, [*starts[1:], len(rows)], partitions, counts.tolist(), sizes, messages,
                                                        strict=True):
        if not count:
            continue
        try:
            ledger = room(partition, count, size)
        except StorageFull as error:
            keep = np.ones(len(rows), bool) if keep is None else keep.copy()
            asked = rows[["worker", "connection", "producer_id", "sequence_id"]][start:end][keep[start:end]].tolist()
            planned.refused += [(worker, connection, producer_id, sequence_id, str(error))
                                for worker, connection, producer_id, sequence_id in asked]
            planned.progress = [one for one in planned.progress if one[0].partition is not partition]
            keep[start:end] = False
            continue
        planned.groups.append(Group(partition, ledger, first, count, ledger.size + size, partition.next_message + many))
        first += count
    return keep


def _with_duplicates(rows: NDArray, is_new: NDArray[np.bool_], is_stored: NDArray[np.bool_], stored: NDArray) -> NDArray:
    """What is answered with a receipt, in order: what is stored, where its place has been filled in, and what is not new."""
    rows["ledger_id"] = rows["entry_id"] = NOWHERE
    for name in ("ledger_id", "entry_id"):
        rows[name][is_stored] = stored[name]
    return from_words(as_words(rows)[is_stored | ~is_new], SEND_ROW)


def _place(planned: Plan, rows: NDArray, now_ms: int) -> None:
    """Fill in what the place of each entry says: in the rows for the receipts, in a copy of their other half for the index."""
    groups = planned.groups
    planned.sources = rows["offset"].astype(format.SOURCE)
    index = planned.index = from_words(as_words(rows)[:, _INDEX], format.INDEX_ROW)
    index["broker_time"] = now_ms
    planned.latest_ms = int(rows["deliver_at"].max())
    index["offset"] = _running(index["size"], groups, [group.ledger.size for group in groups])
    index["message_index"] = _running(index["messages"], groups, [group.partition.next_message for group in groups])
    if len(groups) == 1:
        ledger = groups[0].ledger
        ledger_ids, entry_ids = ledger.ledger_id, np.arange(ledger.entries, ledger.entries + len(rows), dtype=np.uint64)
    else:
        counts = [group.count for group in groups]
        firsts = np.array([group.ledger.entries - group.first for group in groups])
        entry_ids = (np.arange(len(rows)) + np.repeat(firsts, counts)).astype(np.uint64)
        ledger_ids = np.repeat(np.array([group.ledger.ledger_id for group in groups], np.uint64), counts)
    index["checksum"] = format.row_checksums(index, ledger_ids, entry_ids)
    rows["ledger_id"], rows["entry_id"] = ledger_ids, entry_ids


def _running(values: NDArray, groups: list[Group], bases: list[int]) -> NDArray[np.int64]:
    """For each value its group's base and the values before it in the group."""
    before = np.cumsum(values, dtype=np.int64) - values
    if len(groups) == 1:
        return before + bases[0]
    moved = np.array(bases, np.int64) - before[[group.first for group in groups]]
    return before + np.repeat(moved, [group.count for group in groups])


def _cut(planned: Plan) -> None:
    """Give each group the bytes of its entries, in order, in as few pieces as they came."""
    data, groups = planned.data, planned.groups
    ends = np.cumsum([len(piece) for piece in data])
    sources, sizes = planned.sources.astype(np.int64), planned.index["size"].astype(np.int64)
    owners = np.searchsorted(ends, sources, side="right")
    # A stretch goes on as long as its source does, within one group and one piece.
    breaks = np.ones(len(sources), bool)
    breaks[1:] = (sources[1:] != sources[:-1] + sizes[:-1]) | (owners[1:] != owners[:-1])
    breaks[[group.first for group in groups]] = True
    starts = np.flatnonzero(breaks)
    lasts = np.append(starts[1:], len(sources)) - 1
    at = sources[starts] - (ends - [len(piece) for piece in data])[owners[starts]]
    lengths = sources[lasts] + sizes[lasts] - sources[starts]
    stretches = [data[owner][start:start + size]
                 for owner, start, size in zip(owners[starts].tolist(), at.tolist(), lengths.tolist(), strict=True)]
    borders = np.searchsorted(starts, [group.first + group.count for group in groups]).tolist()
    for group, first, end in zip(groups, [0, *borders], borders, strict=False):
        group.pieces = stretches[first:end]
