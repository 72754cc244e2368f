"""SENDs of one pass -> ledgers: a ledger, an entry id and an offset for each entry, in all partitions at once.

    sort     rows by partition, without duplicates       -> a Batch with its Demands
    (the owner fills in each demand: a ledger with room, or the reason why there is none)
    place    entry ids, offsets, index rows, receipts    -> a Plan, which the journal makes durable
    apply    entries and index rows into the ledgers

`sort` and `place` change nothing.  The entries' bytes stay in the buffers that came from the workers.  The journal
writes these buffers as they are, and a stretch that stays together in its ledger is written to the ledger at once.

On a partition that deduplicates, a duplicate gets a receipt without a position; duplicates.py finds duplicates.

Many rows are planned as arrays, in one table for all partitions; few rows one by one (proto/rows.py has the reason).
"""
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress, repeat
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from geminga.proto.deliveries import RECEIPT, RECEIPT_ROW
from geminga.proto.rows import Rows, as_words, field_names, from_words, struct_of
from geminga.proto.sends import IN_TRANSACTION, IS_MARKER, SEND_ROW, Columns
from geminga.storage import format
from geminga.storage.cursors.producer_sequences import NOWHERE
from geminga.storage.ledgers.journal import Record
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.duplicates import ByHandle, Progresses, Send, take_few, take_many
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Producer, Topic

FEW_MAX = 32       # rows
_SOURCE = 4        # bytes of one, see format.SOURCE

# A SEND_ROW is a producer's handle, a RECEIPT_ROW and an INDEX_ROW, each with its fields in their order.  So receipts
# and index rows are copied out of it as words of 8 bytes, which is ten times faster than field by field.
_RECEIPT, _INDEX = slice(1, 7), slice(7, 15)


def _layout(dtype: np.dtype[np.void], start: int = 0) -> list[tuple[str, np.dtype[np.void], int]]:
    """[(name, dtype, offset behind start)] of a dtype's fields."""
    assert dtype.fields is not None
    return [(name, dtype.fields[name][0], start + dtype.fields[name][1]) for name in field_names(dtype)]


assert _layout(SEND_ROW)[1:] == [
    *_layout(RECEIPT_ROW, 8 * _RECEIPT.start), *_layout(format.INDEX_ROW, 8 * _INDEX.start)]

# Places of a SEND_ROW's fields in the tuple that `tolist` makes of it.
_PRODUCER, _CONNECTION, _PRODUCER_ID, _SEQUENCE_ID, _SIZE = map(
    field_names(SEND_ROW).index, ("producer", "connection", "producer_id", "sequence_id", "size"))
assert field_names(SEND_ROW) == (
    "producer", "connection", "worker", "producer_id", "sequence_id", "highest_sequence_id", "ledger_id", "entry_id",
    "offset", "publish_time", "broker_time", "deliver_at", "message_index", "size", "messages", "key_hash", "flags",
    "crc32c", "checksum")      # FewSends.place takes them apart

_SEND = struct_of(SEND_ROW)
Sends = list[tuple[int, Rows, memoryview]]       # [(worker, rows (n,) SEND_ROW, their entries' bytes)]
Refused = tuple[int, int, int, int, str]         # (worker, connection, producer id, sequence id, reason)


@dataclass(slots=True)
class Demand:
    """The room that a pass needs behind a partition's last entry, and the owner's answer: a ledger or a refusal."""

    partition: Partition
    count: int                        # entries
    size: int                         # bytes of these
    messages: int                     # in these
    ledger: Ledger | None = None      # the open one, with room for the entries
    refusal: str = ""                 # why there is no room, for clients


class Batch(Protocol):
    """SENDs of a pass, sorted by partition."""

    demands: list[Demand]

    def place(self, now_ms: int, *, has_transactions: bool = False) -> "Plan":
        """Give each entry its place.  All demands are filled in; entries of one without a ledger are refused.

        has_transactions: entries may be in transactions, whose ids are in the rows' ledger_id.
        """


@dataclass(slots=True)
class Group:
    """Entries that go behind the last one of one ledger: rows first .. first + count - 1 of the plan."""

    partition: Partition
    ledger: Ledger
    first: int
    count: int
    size: int                         # of the ledger, with the entries
    next_message: int                 # of the partition, with the entries
    pieces: list[memoryview] = field(default_factory=list)      # the entries' bytes, in order


@dataclass(slots=True)
class Plan:
    """A place for each entry.  Rows stand in the order of the groups, as an array or packed."""

    data: list[memoryview]            # the buffers that came from workers
    groups: list[Group]
    index: Rows | bytes               # (n,) INDEX_ROW
    sources: NDArray[np.uint32] | bytes     # (n,) SOURCE: offset of each entry in `data` laid end to end
    receipts: list[tuple[int, Rows | bytes]]     # [(worker, its RECEIPT_ROWs)]
    refused: list[Refused]
    progress: Progresses = field(default_factory=list)      # of producers, once the plan is durable
    duplicates: int = 0
    # Stored entries for statistics, in order: columns (n,) of many, or (producer, size, messages, flags) of few.
    many: Columns | None = None
    few: list[tuple[Producer, int, int, int]] = field(default_factory=list)
    latest_ms: int = 0                # the latest due time of a delayed entry; 0: no entry is delayed
    has_markers: bool = False
    is_own: bool = False              # the broker wrote all entries, which are markers
    # If some entries are in transactions: that of each (n,), 0 for none, the SEND_ROWs (n,), and ops for the record.
    transactions: NDArray[np.uint64] | None = None
    stored: Rows | None = None
    ops: bytes = b""

    def __repr__(self) -> str:
        counts = f"refused={len(self.refused)} duplicates={self.duplicates}"
        return f"<Plan groups={len(self.groups)} buffers={len(self.data)} {counts}>"

    def record(self, ops: bytes) -> Record:
        """Return the journal's record of the plan, with these ops and the plan's own.

        The latter name what the plan stores: a crash must not leave them without the entries.
        """
        ops += b"".join([partition.sequences.ops(partition.partition_id, producer.identity, progress)
                         for partition, producer, progress in self.progress]) + self.ops
        table = b"".join([
            format.GROUP.pack(group.partition.partition_id, group.ledger.ledger_id, group.ledger.entries, group.count)
            for group in self.groups])
        return Record(table, self.index, self.sources, ops, self.data, sum(map(len, self.data)))


def sort(sends: Sends, producers: ByHandle) -> Batch:
    """Sort by partition.  Entries of a producer that has closed or waits for access are left out: its client knows."""
    how = sort_few if sum(len(rows) for _, rows, _ in sends) <= FEW_MAX else sort_many
    return how(sends, producers)


def apply(planned: Plan, now_ms: int) -> None:
    """Write the entries and their index rows into the ledgers, and store the last sequence id of each producer."""
    for group in planned.groups:
        rows = _slice(planned.index, group.first, group.count)
        group.partition.append(group.pieces, rows, group.size, group.next_message)
    for partition, producer, progress in planned.progress:
        partition.sequences.learn(producer.identity, progress, now_ms)


def deliver_at(planned: Plan, group: Group) -> NDArray[np.int64]:
    """Due times (n,) of the group's entries, in ms since 1970; 0: not delayed."""
    index = np.frombuffer(planned.index, format.INDEX_ROW) if isinstance(planned.index, bytes) else planned.index
    times: NDArray[np.int64] = index["deliver_at"][group.first:group.first + group.count]
    return times


def markers(planned: Plan, group: Group) -> NDArray[np.int64]:
    """Entries (n,) of the group's ledger, to which the plan was not applied yet, that are markers."""
    index = np.frombuffer(planned.index, format.INDEX_ROW) if isinstance(planned.index, bytes) else planned.index
    flags = index["flags"][group.first:group.first + group.count]
    return np.flatnonzero(flags & IS_MARKER) + group.ledger.entries


def _find_transactions(planned: Plan, stored: Rows) -> None:
    """Take the transactions of a plan's entries out of their rows (n,) SEND_ROW, before these get their places."""
    transactions: NDArray[np.uint64] = np.where(stored["flags"] & IN_TRANSACTION != 0, stored["ledger_id"], 0)
    if transactions.any():
        planned.transactions, planned.stored = transactions, stored


def _slice(index: Rows | bytes, first: int, count: int) -> Rows | bytes:
    width = format.INDEX_ROW.itemsize
    return index[first * width:(first + count) * width] if isinstance(index, bytes) else index[first:first + count]


# -- one by one

@dataclass(slots=True)
class _Few:
    """The SENDs of a pass to one partition, in order."""

    partition: Partition
    sends: list[Send]
    stored: list[Send]                # those of them that are no duplicates
    is_stored: Iterable[bool]          # which of the SENDs these are
    progress: Progresses        # of their producers, once these are stored
    demand: Demand | None              # None: all SENDs are duplicates


class FewSends:
    """A Batch of few rows, as tuples."""

    def __init__(self, data: list[memoryview], by_partition: list[_Few]):
        """Sort the SENDs of a small pass.  data: the buffers that came from workers."""
        self._data, self._by_partition = data, by_partition
        self.demands = [few.demand for few in by_partition if few.demand is not None]

    def __repr__(self) -> str:
        return f"<FewSends of {len(self._by_partition)} partitions>"

    def place(self, now_ms: int, *, has_transactions: bool = False) -> Plan:
        """Give each entry its place, row by row; see Batch.place."""
        planned = Plan(self._data, [], b"", b"", [], [])
        index: list[bytes] = []
        sources: list[bytes] = []
        receipts: dict[int, list[bytes]] = {}
        for few in self._by_partition:
            demand, ledger = few.demand, None
            if demand is not None and (ledger := demand.ledger) is None:
                planned.refused += [(worker, row[_CONNECTION], row[_PRODUCER_ID], row[_SEQUENCE_ID], demand.refusal)
                                    for worker, _, _, row, _ in few.stored]
            else:
                planned.progress += few.progress
            planned.duplicates += len(few.sends) - len(few.stored)
            pieces: list[memoryview] = []
            if ledger is not None:      # the place of the next entry
                ledger_id, entry_id, offset = ledger.ledger_id, ledger.entries, ledger.size
                message_index = few.partition.next_message
            for (worker, base, data, row, producer), is_stored in zip(few.sends, few.is_stored, strict=False):
                (_, connection, _, producer_id, sequence_id, highest, _, _, at, publish_time, _, deliver_at_ms, _,
                 size, messages, key_hash, flags, crc32c, _) = row      # in the order of field_names(SEND_ROW)
                if not is_stored:
                    receipts.setdefault(worker, []).append(
                        RECEIPT.pack(connection, worker, producer_id, sequence_id, highest, NOWHERE, NOWHERE))
                    continue
                if ledger is None:
                    continue
                index.append(format.index_row(
                    ledger_id, entry_id, offset=offset, publish_time=publish_time, broker_time=now_ms,
                    deliver_at=deliver_at_ms, message_index=message_index, size=size, messages=messages,
                    key_hash=key_hash, flags=flags, crc32c=crc32c))
                sources.append((base + at).to_bytes(_SOURCE, "little"))
                pieces.append(data[at:at + size])
                planned.few.append((producer, size, messages, flags))
                if deliver_at_ms > planned.latest_ms:
                    planned.latest_ms = deliver_at_ms
                if not messages:
                    planned.has_markers = True
                receipts.setdefault(worker, []).append(
                    RECEIPT.pack(connection, worker, producer_id, sequence_id, highest, ledger_id, entry_id))
                entry_id, offset, message_index = entry_id + 1, offset + size, message_index + messages
            if ledger is not None:
                count = len(few.stored)
                planned.groups.append(
                    Group(few.partition, ledger, len(index) - count, count, offset, message_index, pieces))
        planned.index, planned.sources = b"".join(index), b"".join(sources)
        if has_transactions:
            _find_transactions(planned, np.array([
                row for few in self._by_partition if few.demand is not None and few.demand.ledger is not None
                for _, _, _, row, _ in few.stored], SEND_ROW))
        planned.receipts = [(worker, b"".join(rows)) for worker, rows in receipts.items()]
        return planned


def sort_few(sends: Sends, producers: ByHandle) -> FewSends:
    """Sort the SENDs of a small pass by partition, row by row; see `sort`."""
    base = 0
    by_topic: dict[Topic, list[Send]] = {}
    for worker, rows, data in sends:
        for row in _SEND.iter_unpack(rows):
            producer = producers.get(row[_PRODUCER])
            if producer is not None and producer.is_ready:
                by_topic.setdefault(producer.partition, []).append((worker, base, data, row, producer))
        base += len(data)
    by_partition = []
    for partition, all_sends in by_topic.items():
        assert isinstance(partition, Partition), partition      # SENDs to non-persistent topics were taken out before
        stored = all_sends
        is_stored: Iterable[bool] = repeat(True)
        progress: Progresses = []
        if partition.tracks_sequences:
            is_new, progress = take_few(partition, all_sends)
            if not all(is_new):
                stored, is_stored = list(compress(all_sends, is_new)), is_new
        demand = Demand(partition, len(stored), sum(row[_SIZE] for *_, row, _ in stored), 0) if stored else None
        by_partition.append(_Few(partition, all_sends, stored, is_stored, progress, demand))
    by_partition.sort(key=_slot)
    return FewSends([data for _, _, data in sends], by_partition)


def _slot(few: _Few) -> int:
    return few.partition.slot


# -- as arrays

class ManySends:
    """A Batch of many rows, as one table in the order of partitions."""

    def __init__(self, sends: Sends, rows: Rows, starts: list[int], partitions: list[Partition],
                 is_new: NDArray[np.bool_] | None, progress: Progresses):
        """rows: (n,) SEND_ROW.  starts: the first row of each partition.  is_new: (n,); None: no row is a duplicate."""
        self._sends, self._rows, self._starts, self._is_new, self._progress = sends, rows, starts, is_new, progress
        self._of_partitions = _demands(rows, starts, partitions, is_new)
        self.demands = [demand for demand in self._of_partitions if demand.count]

    def __repr__(self) -> str:
        return f"<ManySends {len(self._rows)} of {len(self._starts)} partitions>"

    def place(self, now_ms: int, *, has_transactions: bool = False) -> Plan:
        """Give each entry its place, as arrays; see Batch.place."""
        sends, rows, is_new = self._sends, self._rows, self._is_new
        planned = Plan([data for _, _, data in sends], [], b"", b"", [], [], self._progress)
        if not len(rows):
            return planned
        is_stored = _group(planned, rows, self._starts, self._of_partitions, is_new)
        stored = answered = rows if is_stored is None else from_words(as_words(rows)[is_stored], SEND_ROW)
        if planned.groups:
            columns = planned.many = Columns.of(stored)
            if has_transactions:
                _find_transactions(planned, stored)
            planned.latest_ms = int(stored["deliver_at"].max())
            planned.has_markers = not columns.messages.all()
            sources: NDArray[np.uint32] = stored["offset"].astype(format.SOURCE)
            index = _place(planned.groups, stored, columns, now_ms)
            planned.index, planned.sources = index, sources
            is_whole = len(planned.groups) == 1 and \
                int(columns.sizes.sum(dtype=np.int64)) == sum(map(len, planned.data))
            if is_whole:                                     # no entry was left out, so the buffers are the entries
                planned.groups[0].pieces = planned.data
            else:
                _cut(planned.groups, planned.data, sources.astype(np.int64), columns.sizes.astype(np.int64))
        if is_new is not None and is_stored is not None:
            answered = _with_duplicates(rows, is_new, is_stored, stored)
            planned.duplicates = len(answered) - len(stored)
        if not len(answered):
            return planned
        for worker in [sends[0][0]] if len(sends) == 1 else np.unique(answered["worker"]).tolist():
            words = as_words(answered) if len(sends) == 1 else as_words(answered)[answered["worker"] == worker]
            planned.receipts.append((worker, from_words(words[:, _RECEIPT], RECEIPT_ROW)))
        return planned


def sort_many(sends: Sends, producers: ByHandle) -> ManySends:
    """Sort the SENDs of a large pass by partition, as arrays; see `sort`."""
    rows, starts, partitions = _by_partition(_gather(sends), producers)
    is_new: NDArray[np.bool_] | None = None
    progress: Progresses = []
    if any(partition.tracks_sequences for partition in partitions):
        is_new, progress = take_many(rows, producers)
    return ManySends(sends, rows, starts, partitions, is_new, progress)


def _gather(sends: Sends) -> Rows:
    """All SENDs as one table (n,) SEND_ROW, whose offsets are into all buffers laid end to end."""
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


def _by_partition(rows: Rows, producers: ByHandle) -> tuple[Rows, list[int], list[Partition]]:
    """(rows sorted by partition, stably; the first row of each partition; the partitions)."""
    handles = rows["producer"]
    first = handles.item(0)
    distinct, inverse = ([first], None) if (handles == first).all() else _distinct(handles)
    slots: list[int] = []      # for each distinct producer: its partition's slot, or -1 to leave out its rows
    by_slot: dict[int, Partition] = {}
    for handle in distinct:
        producer = producers.get(handle)
        if producer is None or not producer.is_ready:
            slots.append(-1)
            continue
        partition = producer.partition
        assert isinstance(partition, Partition), partition      # SENDs to non-persistent topics were taken out before
        slots.append(partition.slot)
        by_slot[partition.slot] = partition
    if inverse is None:
        return (rows, [0], list(by_slot.values())) if by_slot else (rows[:0], [], [])
    slot_of_row = np.array(slots)[inverse]
    order = np.argsort(slot_of_row, kind="stable")
    order = order[np.searchsorted(slot_of_row[order], 0):]
    slot_of_row = slot_of_row[order]
    starts = np.flatnonzero(np.diff(slot_of_row, prepend=-1))
    partitions = [by_slot[slot] for slot in slot_of_row[starts].tolist()]
    return from_words(as_words(rows)[order], SEND_ROW), starts.tolist(), partitions


def _distinct(handles: NDArray[np.uint64]) -> tuple[list[int], NDArray[np.intp]]:
    """(the distinct handles, which of them each row (n,) has)"""
    distinct, inverse = np.unique(handles, return_inverse=True)
    return distinct.tolist(), inverse


def _demands(
    rows: Rows, starts: list[int], partitions: list[Partition], is_new: NDArray[np.bool_] | None
) -> list[Demand]:
    """The room that the new rows of each partition need."""
    if not partitions:
        return []
    sizes, messages, counts = rows["size"], rows["messages"], np.diff(np.array([*starts, len(rows)]))
    if is_new is not None:
        sizes, messages = sizes * is_new, messages * is_new
        counts = np.add.reduceat(is_new, starts, dtype=np.int64)
    sizes, messages = (np.add.reduceat(column, starts, dtype=np.int64).tolist() for column in (sizes, messages))
    return [Demand(*each) for each in zip(partitions, counts.tolist(), sizes, messages, strict=True)]


def _group(
    planned: Plan, rows: Rows, starts: list[int], demands: list[Demand], is_new: NDArray[np.bool_] | None
) -> NDArray[np.bool_] | None:
    """Fill in the plan's groups and refuse new rows without room.  Return which rows (n,) are stored; None: all are."""
    is_stored, first = is_new, 0
    for start, end, demand in zip(starts, [*starts[1:], len(rows)], demands, strict=True):
        partition, ledger, count = demand.partition, demand.ledger, demand.count
        if not count:
            continue
        if ledger is None:
            is_stored = np.ones(len(rows), bool) if is_stored is None else is_stored.copy()
            names = ["worker", "connection", "producer_id", "sequence_id"]
            refused = rows[names][start:end][is_stored[start:end]].tolist()
            planned.refused += [(worker, connection, producer_id, sequence_id, demand.refusal)
                                for worker, connection, producer_id, sequence_id in refused]
            planned.progress = [one for one in planned.progress if one[0] is not partition]
            is_stored[start:end] = False
            continue
        size, next_message = ledger.size + demand.size, partition.next_message + demand.messages
        planned.groups.append(Group(partition, ledger, first, count, size, next_message))
        first += count
    return is_stored


def _with_duplicates(rows: Rows, is_new: NDArray[np.bool_], is_stored: NDArray[np.bool_], stored: Rows) -> Rows:
    """The rows that get a receipt, in order: stored ones, with their places, and duplicates, without a place."""
    rows["ledger_id"] = rows["entry_id"] = NOWHERE
    for name in ("ledger_id", "entry_id"):
        rows[name][is_stored] = stored[name]
    return from_words(as_words(rows)[is_stored | ~is_new], SEND_ROW)


def _place(groups: list[Group], rows: Rows, columns: Columns, now_ms: int) -> Rows:
    """Give each SEND its position and offset in its ledger; return the entries' index rows (n,) INDEX_ROW.

    rows: (n,) SEND_ROW, in the order of the groups.  columns: fields of these rows.

    The ledger and entry ids are filled in in `rows` too, for the receipts.
    """
    index = from_words(as_words(rows)[:, _INDEX], format.INDEX_ROW)
    index["broker_time"] = now_ms
    index["offset"] = _running(columns.sizes, groups, [group.ledger.size for group in groups])
    index["message_index"] = _running(columns.messages, groups, [group.partition.next_message for group in groups])
    ledger_ids: NDArray[np.uint64] | int
    if len(groups) == 1:
        ledger = groups[0].ledger
        ledger_ids, entry_ids = ledger.ledger_id, np.arange(ledger.entries, ledger.entries + len(rows), dtype=np.uint64)
    else:
        counts = [group.count for group in groups]
        firsts = np.array([group.ledger.entries - group.first for group in groups])
        ledger_ids = np.repeat(np.array([group.ledger.ledger_id for group in groups], np.uint64), counts)
        entry_ids = (np.arange(len(rows)) + np.repeat(firsts, counts)).astype(np.uint64)
    index["checksum"] = format.row_checksums(index, ledger_ids, entry_ids)
    rows["ledger_id"], rows["entry_id"] = ledger_ids, entry_ids
    return index


def _running(values: NDArray[np.uint32], groups: list[Group], bases: list[int]) -> NDArray[np.int64]:
    """For each value (n,): the base of its group, plus all values before it in the group."""
    before: NDArray[np.int64] = np.cumsum(values, dtype=np.int64) - values
    if len(groups) == 1:
        return before + bases[0]
    moved = np.array(bases, np.int64) - before[[group.first for group in groups]]
    return before + np.repeat(moved, [group.count for group in groups])


def _cut(
    groups: list[Group], data: list[memoryview], sources: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    """Give each group the bytes of its entries, in order, in as few pieces as possible.

    sources, sizes: (n,) offset of each entry in the buffers `data` laid end to end, and its bytes.
    """
    ends = np.cumsum([len(piece) for piece in data])
    buffers = np.searchsorted(ends, sources, side="right")
    # A piece goes on as long as the next entry is behind the last one, in the same group and the same buffer.
    breaks = np.ones(len(sources), bool)
    breaks[1:] = (sources[1:] != sources[:-1] + sizes[:-1]) | (buffers[1:] != buffers[:-1])
    breaks[[group.first for group in groups]] = True
    starts = np.flatnonzero(breaks)
    lasts = np.append(starts[1:], len(sources)) - 1
    at = sources[starts] - (ends - [len(piece) for piece in data])[buffers[starts]]
    lengths = sources[lasts] + sizes[lasts] - sources[starts]
    pieces = [data[buffer][start:start + size]
              for buffer, start, size in zip(buffers[starts].tolist(), at.tolist(), lengths.tolist(), strict=True)]
    borders = np.searchsorted(starts, [group.first + group.count for group in groups]).tolist()
    for group, first, end in zip(groups, [0, *borders], borders, strict=False):
        group.pieces = pieces[first:end]
