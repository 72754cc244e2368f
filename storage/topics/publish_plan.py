"""SENDs of one pass -> ledgers: where every entry goes, for all partitions that the pass touches.

    sort     rows by partition, without those that came before      -> a Batch, with its Demands
    (the owner fills in each demand: a ledger with room, or why there is none)
    place    entry ids, offsets, index rows, receipts               -> a Plan, which the journal makes durable
    apply    entries and index rows into the ledgers

`sort` and `place` change nothing.  The entries' bytes stay in the pieces that came from the workers: the journal writes them as they
are, and each stretch that is also in one piece in its ledger is copied there at once.

On a partition that deduplicates, an entry that came before gets a receipt without a position; producer_sequences.py says how it is known.

Many rows are planned as arrays, one table for all partitions; few one by one (proto/rows.py says why).
"""
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress, repeat
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from geminga.proto.deliveries import RECEIPT, RECEIPT_ROW
from geminga.proto.rows import Rows, as_words, from_words
from geminga.proto.sends import IS_CHUNK, SEND_ROW
from geminga.storage import format
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.producer_sequences import NOWHERE, Progress
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

# The places of a SEND_ROW's fields in the tuple that `tolist` makes of it.
_PRODUCER, _CONNECTION, _, _PRODUCER_ID, _SEQUENCE_ID, _HIGHEST = range(6)
_MESSAGE_INDEX, _SIZE, _MESSAGES, _, _FLAGS, _CRC32C = range(12, 18)
assert SEND_ROW.names == ("producer", "connection", "worker", "producer_id", "sequence_id", "highest_sequence_id", "ledger_id", "entry_id",
                          "offset", "publish_time", "broker_time", "deliver_at", "message_index", "size", "messages", "key_hash", "flags",
                          "crc32c", "checksum")

Sends = list[tuple[int, Rows, memoryview]]             # [(worker, rows (n,) SEND_ROW, their entries)]
Producers = Mapping[int, Producer]                        # by handle


@dataclass(slots=True)
class Demand:
    """Room that a pass wants behind a partition's last entry, and what became of that."""

    partition: Partition
    count: int                        # entries
    size: int                         # bytes of them all
    messages: int
    ledger: Ledger | None = None      # the open one, with room for them
    refusal: str = ""                 # why there is none, for clients


class Batch(Protocol):
    """SENDs of a pass, sorted by partition."""

    demands: list[Demand]

    def place(self, now_ms: int) -> "Plan":
        """Where each entry goes, when all demands are filled in; entries of a demand without a ledger are refused."""


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
    index: Rows | bytes            # (n,) INDEX_ROW
    sources: Rows | bytes          # (n,) SOURCE: offset of each entry in the data laid end to end
    receipts: list[tuple[int, Rows | bytes]]     # [(worker, its RECEIPT_ROWs)]
    refused: list[tuple[int, int, int, int, str]]   # (worker, connection, producer id, sequence id, why)
    progress: list[tuple[Producer, Progress]] = field(default_factory=list)     # how far producers have come then
    duplicates: int = 0
    handles: Rows | None = None    # of the producers (n,) of what is stored, ...
    few: list[tuple[Producer, int, int, int]] = field(default_factory=list)      # ... or, one by one, with size, messages and flags
    latest_ms: int = 0                # of the times before which some are not to be delivered

    def record(self, ops: bytes) -> Record:
        ops += b"".join([producer.partition.sequences.ops(producer.partition.partition_id, producer.identity, progress)
                         for producer, progress in self.progress])
        table = b"".join([format.GROUP.pack(group.partition.partition_id, group.ledger.ledger_id, group.ledger.entries, group.count)
                          for group in self.groups])
        return Record(table, self.index, self.sources, ops, self.data, sum(map(len, self.data)))


def sort(sends: Sends, producers: Producers) -> Batch:
    """Sort by partition; entries of a producer that is gone, or waits for its turn, are left out: its client has been told."""
    how = sort_few if sum(len(rows) for _, rows, _ in sends) <= FEW_MAX else sort_many
    return how(sends, producers)


def apply(planned: Plan, now_ms: int) -> None:
    """Write the entries and their index rows into the ledgers, and know how far their producers have come."""
    for group in planned.groups:
        group.partition.append(group.pieces, _slice(planned.index, group.first, group.count), group.size, group.next_message)
    for producer, progress in planned.progress:
        producer.partition.sequences.learn(producer.identity, progress, now_ms)


def deliver_at(planned: Plan, group: Group) -> NDArray[np.int64]:
    """Of the group's entries (n,), ms; 0 for at once."""
    index = np.frombuffer(planned.index, format.INDEX_ROW) if isinstance(planned.index, bytes) else planned.index
    return index["deliver_at"][group.first:group.first + group.count]


def _slice(index: Rows | bytes, first: int, count: int) -> Rows | bytes:
    width = format.INDEX_ROW.itemsize
    return index[first * width:(first + count) * width] if isinstance(index, bytes) else index[first:first + count]


# -- one by one

@dataclass(slots=True)
class _Few:
    """Entries of one partition, in order."""

    entries: list[tuple[int, int, memoryview, tuple, Producer]]      # (worker, where its data begin in all data, these data, row, producer)
    stored: list[tuple[int, int, memoryview, tuple, Producer]]       # those of them that did not come before
    is_new: Iterable[bool]                                           # which of the entries these are
    progress: dict[Producer, Progress]                               # of their producers, with these
    demand: Demand | None                                            # None: nothing is new


class FewSends:
    """A Batch of few rows, as tuples."""

    def __init__(self, data: list[memoryview], by_partition: list[_Few]):
        self._data, self._by_partition = data, by_partition
        self.demands = [few.demand for few in by_partition if few.demand is not None]

    def place(self, now_ms: int) -> Plan:
        planned = Plan(self._data, [], b"", b"", [], [])
        index, sources, receipts, placed = [], [], {}, planned.few
        for few in self._by_partition:
            demand, ledger = few.demand, few.demand and few.demand.ledger
            if demand is not None and ledger is None:
                planned.refused += [(worker, row[_CONNECTION], row[_PRODUCER_ID], row[_SEQUENCE_ID], demand.refusal)
                                    for worker, _, _, row, _ in few.stored]
            else:
                planned.progress += few.progress.items()
            planned.duplicates += len(few.entries) - len(few.stored)
            if ledger is not None:
                ledger_id, entry_id, pieces = ledger.ledger_id, ledger.entries, []
                offset, message_index = ledger.size, demand.partition.next_message
            for (worker, base, data, row, producer), is_stored in zip(few.entries, few.is_new, strict=False):
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
                placed.append((producer, size, messages, flags))
                if deliver_at > planned.latest_ms:
                    planned.latest_ms = deliver_at
                pieces.append(data[at:at + size])
                receipts.setdefault(worker, []).append(
                    RECEIPT.pack(connection, worker, producer_id, sequence_id, highest, ledger_id, entry_id))
                entry_id += 1
                offset += size
                message_index += messages
            if ledger is not None:
                count = len(few.stored)
                planned.groups.append(Group(demand.partition, ledger, len(index) - count, count, offset, message_index, pieces))
        planned.index, planned.sources = b"".join(index), b"".join(sources)
        planned.receipts = [(worker, b"".join(rows)) for worker, rows in receipts.items()]
        return planned


def sort_few(sends: Sends, producers: Producers) -> FewSends:
    base, by_partition = 0, {}
    for worker, rows, data in sends:
        for row in rows.tolist():
            producer = producers.get(row[_PRODUCER])
            if producer is not None and producer.is_ready:
                by_partition.setdefault(producer.partition, []).append((worker, base, data, row, producer))
        base += len(data)
    found = []
    for partition, entries in sorted(by_partition.items(), key=_slot):
        stored, is_new, progress = entries, repeat(True), {}
        if partition.deduplicates:
            is_new, progress = _take(entries)
            stored = entries if all(is_new) else list(compress(entries, is_new))
        demand = Demand(partition, len(stored), sum(row[_SIZE] for *_, row, _ in stored), 0) if stored else None
        found.append(_Few(entries, stored, is_new, progress, demand))
    return FewSends([data for _, _, data in sends], found)


def _take(entries: list[tuple]) -> tuple[list[bool], dict[Producer, Progress]]:
    """(which entries are new, how far their producers have come with those) on a partition that deduplicates."""
    is_new, by_producer = [], {}
    for _, _, _, row, producer in entries:
        if (progress := by_producer.get(producer)) is None:
            progress = by_producer[producer] = producer.partition.sequences.of(producer.identity).copy()
        sequence_id, highest, flags = row[_SEQUENCE_ID], row[_HIGHEST], row[_FLAGS]
        if progress.last < sequence_id < _SIGN and not (highest or flags & IS_CHUNK or progress.under_way):      # nearly always
            progress.last = sequence_id
            is_new.append(True)
        else:
            checksum = row[_MESSAGE_INDEX] & 0xFFFFFFFF if row[_MESSAGE_INDEX] else row[_CRC32C]      # as its producer sent it
            is_new.append(progress.take(*producer_sequences.span(sequence_id, highest), flags, checksum))
    return is_new, by_producer


def _slot(item: tuple[Partition, list]) -> int:
    return item[0].slot


# -- as arrays

class ManySends:
    """A Batch of many rows, as one table in the order of partitions."""

    def __init__(self, sends: Sends, rows: Rows, starts: list[int], partitions: list[Partition], is_new: NDArray[np.bool_] | None,
                 progress: list[tuple[Producer, Progress]]):
        """rows: (n,) SEND_ROW.  starts: where each partition's begin.  is_new: (n,), None where all are; progress: of the producers."""
        self._sends, self._rows, self._starts, self._is_new, self._progress = sends, rows, starts, is_new, progress
        self._of_partitions = _demands(rows, starts, partitions, is_new)
        self.demands = [demand for demand in self._of_partitions if demand.count]

    def place(self, now_ms: int) -> Plan:
        sends, rows, is_new = self._sends, self._rows, self._is_new
        planned = Plan([data for _, _, data in sends], [], b"", b"", [], [], self._progress)
        if not len(rows):
            return planned
        is_stored = _group(planned, rows, self._starts, self._of_partitions, is_new)
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


def sort_many(sends: Sends, producers: Producers) -> ManySends:
    rows, starts, partitions = _by_partition(_gather(sends), producers)
    is_new, progress = None, []
    if any(partition.deduplicates for partition in partitions):
        is_new, progress = _take_many(rows, producers)
    return ManySends(sends, rows, starts, partitions, is_new, progress)


def _gather(sends: Sends) -> Rows:
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


def _by_partition(rows: Rows, producers: Producers) -> tuple[Rows, list[int], list[Partition]]:
    """(the rows of each partition together and in order, where each partition's begin, the partitions)."""
    handles = rows["producer"]
    first = handles.item(0)
    if (handles == first).all():
        producer = producers.get(first)
        return (rows, [0], [producer.partition]) if producer is not None and producer.is_ready else (rows[:0], [], [])
    distinct, inverse = np.unique(handles, return_inverse=True)
    connected = [producers.get(handle) for handle in distinct.tolist()]
    partitions = [producer.partition if producer is not None and producer.is_ready else None for producer in connected]
    by_slot = {partition.slot: partition for partition in partitions if partition is not None}
    slots = np.array([partition.slot if partition is not None else -1 for partition in partitions])[inverse]
    order = np.argsort(slots, kind="stable")
    order = order[np.searchsorted(slots[order], 0):]
    slots = slots[order]
    starts = np.flatnonzero(np.diff(slots, prepend=-1))
    return from_words(as_words(rows)[order], SEND_ROW), starts.tolist(), [by_slot[slot] for slot in slots[starts].tolist()]


def _take_many(rows: Rows, producers: Producers) -> tuple[NDArray[np.bool_] | None, list[tuple[Producer, Progress]]]:
    """(which rows are new, how far their producers have come with those), as far as their partitions deduplicate; None: all are new."""
    order, handles, starts = _by_producer(rows["producer"])
    sequence_ids, highest, flags = (rows[name] if order is None else rows[name][order]
                                    for name in ("sequence_id", "highest_sequence_id", "flags"))
    first, last = producer_sequences.spans(sequence_ids, highest)
    before = np.empty_like(last)      # the sequence id that each row has to exceed, if nothing is out of the ordinary
    before[1:] = last[:-1]
    runs: list[tuple[Producer, Progress] | None] = []
    for handle, start in zip(handles, starts.tolist(), strict=True):
        producer = producers[handle]
        if producer.partition.deduplicates:
            progress = producer.partition.sequences.of(producer.identity).copy()
            before[start] = progress.last
            runs.append((producer, progress))
        else:
            runs.append(None)
    is_rising = np.logical_and.reduceat((first > before) & (flags & IS_CHUNK == 0), starts).tolist()
    is_new = None
    for run, is_plain, start, end in zip(runs, is_rising, starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        if run is None:
            continue
        progress = run[1]
        if is_plain and not progress.under_way:       # nearly always
            progress.last = last.item(end - 1)
            continue
        places = slice(start, end) if order is None else order[start:end]
        rewritten = rows["message_index"][places]
        checksums = np.where(rewritten & SENT_OTHERWISE, rewritten & 0xFFFFFFFF, rows["crc32c"][places])      # as producers sent them
        taken = [progress.take(*each) for each in zip(first[start:end].tolist(), last[start:end].tolist(), flags[start:end].tolist(),
                                                      checksums.tolist(), strict=True)]
        if not all(taken):
            is_new = np.ones(len(rows), bool) if is_new is None else is_new
            is_new[places] = taken
    return is_new, [run for run in runs if run is not None]


def _by_producer(handles: NDArray[np.uint64]) -> tuple[NDArray[np.intp] | None, list[int], NDArray[np.intp]]:
    """(order (n,) that sorts rows by producer, None: they are of one; the producers' handles; where the rows (k,) of each begin)."""
    if (handles == handles[0]).all():
        return None, handles[:1].tolist(), np.zeros(1, np.intp)
    order = np.argsort(handles, kind="stable")
    handles = handles[order]
    starts = np.flatnonzero(np.append(True, handles[1:] != handles[:-1]))
    return order, handles[starts].tolist(), starts


def _demands(rows: Rows, starts: list[int], partitions: list[Partition], is_new: NDArray[np.bool_] | None) -> list[Demand]:
    """The room that the new rows of each partition want."""
    if not partitions:
        return []
    sizes, messages, counts = rows["size"], rows["messages"], np.diff(np.array([*starts, len(rows)]))
    if is_new is not None:
        sizes, messages, counts = sizes * is_new, messages * is_new, np.add.reduceat(is_new, starts, dtype=np.int64)
    sizes, messages = (np.add.reduceat(column, starts, dtype=np.int64).tolist() for column in (sizes, messages))
    return [Demand(*each) for each in zip(partitions, counts.tolist(), sizes, messages, strict=True)]


def _group(planned: Plan, rows: Rows, starts: list[int], demands: list[Demand], is_new: NDArray[np.bool_] | None,
           ) -> NDArray[np.bool_] | None:
    """Fill in the groups; returns which rows (n,) are stored, None when all are: new ones without room are refused."""
    keep, first = is_new, 0
    for start, end, demand in zip(starts, [*starts[1:], len(rows)], demands, strict=True):
        partition, ledger, count = demand.partition, demand.ledger, demand.count
        if not count:
            continue
        if ledger is None:
            keep = np.ones(len(rows), bool) if keep is None else keep.copy()
            asked = rows[["worker", "connection", "producer_id", "sequence_id"]][start:end][keep[start:end]].tolist()
            planned.refused += [(worker, connection, producer_id, sequence_id, demand.refusal)
                                for worker, connection, producer_id, sequence_id in asked]
            planned.progress = [one for one in planned.progress if one[0].partition is not partition]
            keep[start:end] = False
            continue
        planned.groups.append(Group(partition, ledger, first, count, ledger.size + demand.size, partition.next_message + demand.messages))
        first += count
    return keep


def _with_duplicates(rows: Rows, is_new: NDArray[np.bool_], is_stored: NDArray[np.bool_], stored: Rows) -> Rows:
    """What is answered with a receipt, in order: what is stored, where its place has been filled in, and what is not new."""
    rows["ledger_id"] = rows["entry_id"] = NOWHERE
    for name in ("ledger_id", "entry_id"):
        rows[name][is_stored] = stored[name]
    return from_words(as_words(rows)[is_stored | ~is_new], SEND_ROW)


def _place(planned: Plan, rows: Rows, now_ms: int) -> None:
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


def _running(values: Rows, groups: list[Group], bases: list[int]) -> NDArray[np.int64]:
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
