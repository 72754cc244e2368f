"""Duplicates among the SENDs of a pass, on partitions that deduplicate, and of replicators that name positions.

cursors/producer_sequences.py has the rules; here they are applied to few SENDs one by one, or to many as arrays.

Replicators that name no positions are of Pulsar before 4.0.7.  Their messages are never taken for duplicates: sequence
ids of many producers are mixed in them, and do not rise.
"""
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Row, Rows, field_names
from geminga.proto.sends import HAS_KEY, IS_CHUNK, SEND_ROW
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.missing_ids import GAPS_MAX, Gap
from geminga.storage.cursors.producer_sequences import NONE, Progress
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Producer

_SIGN = 1 << 63    # unsigned sequence ids from here on stand for negative ones
# A flag in message_index, a field that the plan fills in: the broker has rewritten the entry.  The low 32 bits hold the
# CRC32-C of the entry as its producer sent it, by which a chunk that was sent again is recognised.
IS_REWRITTEN = 1 << 32

# Places of a SEND_ROW's fields in the tuple that `tolist` makes of it.
_SEQUENCE_ID, _HIGHEST, _ENTRY_ID, _MESSAGE_INDEX, _MESSAGES, _FLAGS, _CRC32C = map(
    field_names(SEND_ROW).index,
    ("sequence_id", "highest_sequence_id", "entry_id", "message_index", "messages", "flags", "crc32c"))

ByHandle = Mapping[int, Producer]                # connected producers of partitions
# (worker, offset of its buffer in all buffers laid end to end, this buffer, the SEND_ROW, its producer)
Send: TypeAlias = tuple[int, int, memoryview, Row, Producer]
Progresses = list[tuple[Partition, Producer, Progress]]      # how far producers have come once a plan is durable


def take_few(partition: Partition, sends: list[Send]) -> tuple[list[bool], Progresses]:
    """Return (whether each SEND is new, [(partition, producer, its sequence ids behind these SENDs)]).

    The partition must track sequences.
    """
    is_new: list[bool] = []
    by_producer: dict[Producer, Progress] = {}
    deduplicates = partition.deduplicates
    for _, _, _, row, producer in sends:
        if not (producer.sends_positions or (deduplicates and producer.source is None)):
            is_new.append(True)
            continue
        if (progress := by_producer.get(producer)) is None:
            progress = by_producer[producer] = partition.sequences.of(producer.identity).copy()
        if producer.sends_positions:
            is_new.append(progress.take_position(row[_ENTRY_ID] - 1 if row[_ENTRY_ID] else NONE))
            continue
        sequence_id, highest, messages, flags = row[_SEQUENCE_ID], row[_HIGHEST], row[_MESSAGES], row[_FLAGS]
        reach = progress.last if progress.supposed == NONE else progress.supposed
        if sequence_id == reach + 1 < _SIGN and not (highest or flags & IS_CHUNK or progress.under_way):
            progress.last = sequence_id      # nearly always
            if messages > 1 and not flags & HAS_KEY:
                progress.suppose(sequence_id + messages - 1)
            elif progress.supposed != NONE:
                progress.supposed = NONE
            is_new.append(True)
        else:
            checksum = row[_MESSAGE_INDEX] & 0xFFFFFFFF if row[_MESSAGE_INDEX] else row[_CRC32C]      # see IS_REWRITTEN
            first, last = producer_sequences.span(sequence_id, highest)
            end = producer_sequences.supposed_end(first, last, messages, highest, flags)
            is_new.append(progress.take(first, last, end, flags, checksum))
    return is_new, [(partition, producer, progress) for producer, progress in by_producer.items()]


def _is_tracked(producer: Producer) -> bool:
    """Whether the producer's SENDs may be duplicates."""
    partition = producer.partition
    assert isinstance(partition, Partition), partition
    return producer.sends_positions or (partition.deduplicates and producer.source is None)


@dataclass(slots=True)
class _Ids:
    """What SENDs (n,) say of their ids, one producer's behind the other's."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    supposed: NDArray[np.int64]      # the last ones as if messages of batches had ids too; `last` itself without any
    flags: NDArray[np.uint32]
    is_chunk: NDArray[np.bool_]      # to be taken one by one


def take_many(rows: Rows, producers: ByHandle) -> tuple[NDArray[np.bool_] | None, Progresses]:
    """Return (mask (n,) of the rows that are new, [(partition, producer, its sequence ids behind these rows)]).

    Some partition must track sequences.  None instead of the mask: no row is a duplicate.  Each producer's rows are one
    run, in order.  If all sequence ids of a run rise, which is the rule, its last one is stored.  Other runs are taken
    row by row.
    """
    order, handles, starts = _by_producer(rows["producer"])
    ids = _ids_of(rows, order)
    edges = [*starts.tolist(), len(rows)]
    if any(producers[handle].sends_positions for handle in handles):
        _take_positions(ids, rows["entry_id"] if order is None else rows["entry_id"][order],
                        [producers[handle].sends_positions for handle in handles], edges)
    runs, is_rising, is_dense = _compare(ids, starts, [producers[handle] for handle in handles])
    is_new: NDArray[np.bool_] | None = None
    for number, run in enumerate(runs):
        if run is None:
            continue
        start, end = edges[number], edges[number + 1]
        if is_rising[number] and not run[2].under_way:       # nearly always
            _rise(run[1], run[2], ids, start, end, is_dense=is_dense[number])
            continue
        places = slice(start, end) if order is None else order[start:end]
        taken = _take_each(run[1], run[2], ids, slice(start, end), rows[places])
        if not all(taken):
            is_new = np.ones(len(rows), bool) if is_new is None else is_new
            is_new[places] = taken
    return is_new, [run for run in runs if run is not None]


def _ids_of(rows: Rows, order: NDArray[np.intp] | None) -> _Ids:
    sequence_ids, highest, flags, messages = (
        rows[name] if order is None else rows[name][order]
        for name in ("sequence_id", "highest_sequence_id", "flags", "messages"))
    first, last = producer_sequences.spans(sequence_ids, highest)
    supposed = producer_sequences.supposed_ends(first, last, messages, highest, flags)
    return _Ids(first, last, supposed, flags, flags & IS_CHUNK != 0)


def _take_positions(ids: _Ids, positions: NDArray[np.uint64], send_positions: list[bool], edges: list[int]) -> None:
    """Put positions (n,) into the place of sequence ids, of chunks as well, for the producers that send them."""
    has_one = np.repeat(send_positions, np.diff(edges))
    signed = np.where(positions == 0, NONE, positions.astype(np.int64) - 1)
    ids.first, ids.last, ids.supposed = (
        np.where(has_one, signed, each) for each in (ids.first, ids.last, ids.supposed))
    ids.is_chunk &= ~has_one


def _compare(ids: _Ids, starts: NDArray[np.intp], producers: list[Producer],
             ) -> tuple[list[tuple[Partition, Producer, Progress] | None], list[bool], list[bool]]:
    """Return, a list each: progress before each run, None if it is not tracked; whether its ids rise, and without gaps.
    """
    before, reach = _shifted(ids.last), _shifted(ids.supposed)      # the ids that each row has to exceed, and to follow
    runs: list[tuple[Partition, Producer, Progress] | None] = []
    for producer, start in zip(producers, starts.tolist(), strict=True):
        partition = producer.partition
        assert isinstance(partition, Partition), partition
        if _is_tracked(producer):
            progress = partition.sequences.of(producer.identity).copy()
            before[start], reach[start] = progress.last, progress.reach
            runs.append((partition, producer, progress))
        else:
            runs.append(None)
    is_rising = np.logical_and.reduceat((ids.first > before) & ~ids.is_chunk, starts)
    return runs, is_rising.tolist(), np.logical_and.reduceat(ids.first - 1 <= reach, starts).tolist()


def _rise(producer: Producer, progress: Progress, ids: _Ids, start: int, end: int, *, is_dense: bool) -> None:
    """Take the rows start .. end - 1, whose ids rise, for a producer at once."""
    highest_id = ids.last.item(end - 1)
    if producer.sends_positions:
        progress.last = highest_id
        return
    gaps = [] if is_dense else _gaps(progress.reach, ids.first[start:end], ids.supposed[start:end])
    progress.rise(gaps, highest_id, highest_id if ids.supposed is ids.last else int(ids.supposed[start:end].max()))


def _take_each(producer: Producer, progress: Progress, ids: _Ids, run: slice, rows: Rows) -> list[bool]:
    """Take the rows (n,) of a run one by one; return whether each is new."""
    if producer.sends_positions:
        return list(map(progress.take_position, ids.first[run].tolist()))
    rewritten = rows["message_index"]
    checksums = np.where(rewritten & IS_REWRITTEN, rewritten & 0xFFFFFFFF, rows["crc32c"])
    columns = ids.first[run], ids.last[run], ids.supposed[run], ids.flags[run], checksums
    return [progress.take(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]


def _shifted(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each row (n,) the id of the row before it; the first one is left to the caller."""
    before = np.empty_like(ids)
    before[1:] = ids[:-1]
    return before


def _gaps(reach: int, first: NDArray[np.int64], ends: NDArray[np.int64]) -> list[Gap]:
    """Return the newest gaps that rising SENDs (n,) leave between each other, and above `reach`."""
    reached = np.maximum(np.maximum.accumulate(np.concatenate(([reach], ends[:-1]))), reach)
    places = np.flatnonzero(first - 1 > reached)[-GAPS_MAX:]
    return list(zip((reached[places] + 1).tolist(), (first[places] - 1).tolist(), strict=True))


def _by_producer(handles: NDArray[np.uint64]) -> tuple[NDArray[np.intp] | None, list[int], NDArray[np.intp]]:
    """(order (n,) that sorts rows by producer, None: they are; distinct handles (k,); the first row (k,) of each)"""
    if (handles == handles[0]).all():
        return None, handles[:1].tolist(), np.zeros(1, np.intp)
    order = np.argsort(handles, kind="stable")
    handles = handles[order]
    starts = np.flatnonzero(np.append(True, handles[1:] != handles[:-1]))
    return order, handles[starts].tolist(), starts
