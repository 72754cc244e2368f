"""Duplicates among the SENDs of a pass, on partitions that deduplicate, and of replicators that name positions.

cursors/producer_sequences.py has the rules; here they are applied to few SENDs one by one, or to many as arrays.

Replicators that name no positions are of Pulsar before 4.0.7.  Their messages are never taken for duplicates: sequence
ids of many producers are mixed in them, and do not rise.
"""
from collections.abc import Mapping
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


def take_many(rows: Rows, producers: ByHandle) -> tuple[NDArray[np.bool_] | None, Progresses]:
    """Return (mask (n,) of the rows that are new, [(partition, producer, its sequence ids behind these rows)]).

    Some partition must track sequences.  None instead of the mask: no row is a duplicate.  Each producer's rows are one
    run, in order.  If all sequence ids of a run rise, which is the rule, its last one is stored.  Other runs are taken
    row by row.
    """
    order, handles, starts = _by_producer(rows["producer"])
    sequence_ids, highest, flags, messages = (
        rows[name] if order is None else rows[name][order]
        for name in ("sequence_id", "highest_sequence_id", "flags", "messages"))
    first, last = producer_sequences.spans(sequence_ids, highest)
    supposed = producer_sequences.supposed_ends(first, last, messages, highest, flags)
    is_chunk = flags & IS_CHUNK != 0
    ends = [*starts[1:].tolist(), len(rows)]
    if any(producers[handle].sends_positions for handle in handles):
        # Positions take the place of sequence ids, those of chunks as well.
        positions = rows["entry_id"] if order is None else rows["entry_id"][order]
        has_one = np.zeros(len(rows), bool)
        for handle, start, end in zip(handles, starts.tolist(), ends, strict=True):
            has_one[start:end] = producers[handle].sends_positions
        signed = np.where(positions == 0, NONE, positions.astype(np.int64) - 1)
        first, last, supposed = (np.where(has_one, signed, ids) for ids in (first, last, supposed))
        is_chunk &= ~has_one
    before, reach = _shifted(last), _shifted(supposed)      # the ids that each row has to exceed, and to follow
    runs: list[tuple[Partition, Producer, Progress] | None] = []      # None: there are no duplicates
    for handle, start in zip(handles, starts.tolist(), strict=True):
        producer = producers[handle]
        partition = producer.partition
        assert isinstance(partition, Partition), partition
        if _is_tracked(producer):
            progress = partition.sequences.of(producer.identity).copy()
            before[start], reach[start] = progress.last, progress.reach
            runs.append((partition, producer, progress))
        else:
            runs.append(None)
    is_rising = np.logical_and.reduceat((first > before) & ~is_chunk, starts).tolist()
    is_dense = np.logical_and.reduceat(first - 1 <= reach, starts).tolist()
    is_new: NDArray[np.bool_] | None = None
    for number, (run, is_plain, start, end) in enumerate(zip(runs, is_rising, starts.tolist(), ends, strict=True)):
        if run is None:
            continue
        progress = run[2]
        if is_plain and not progress.under_way:       # nearly always
            if run[1].sends_positions:
                progress.last = last.item(end - 1)
            else:
                gaps = [] if is_dense[number] else _gaps(progress.reach, first[start:end], supposed[start:end])
                highest_id = last.item(end - 1)
                progress.rise(gaps, highest_id, highest_id if supposed is last else int(supposed[start:end].max()))
            continue
        places = slice(start, end) if order is None else order[start:end]
        if run[1].sends_positions:
            taken = list(map(progress.take_position, first[start:end].tolist()))
        else:
            spans = first[start:end].tolist(), last[start:end].tolist(), supposed[start:end].tolist()
            rewritten = rows["message_index"][places]
            checksums = np.where(rewritten & IS_REWRITTEN, rewritten & 0xFFFFFFFF, rows["crc32c"][places])
            taken = [progress.take(*each)
                     for each in zip(*spans, flags[start:end].tolist(), checksums.tolist(), strict=True)]
        if not all(taken):
            is_new = np.ones(len(rows), bool) if is_new is None else is_new
            is_new[places] = taken
    return is_new, [run for run in runs if run is not None]


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
