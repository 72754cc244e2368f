"""Second pass of a compaction: write a view's part of one ledger."""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from geminga.proto.batch_parts import Unreadable
from geminga.proto.frames import CHECKSUM_END, with_checksum
from geminga.proto.rows import Rows
from geminga.proto.sends import KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.jobs.compacting import compaction, rewriting
from geminga.storage.jobs.compacting.part_writer import KeysWriter, PartWriter
from geminga.storage.ledgers.compacted_ledgers import IS_MASKED, Part

_STRETCHES_MAX = 64          # of a file, that are cheaper to copy one by one


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a compaction's second pass for one ledger."""

    part: Part | None                # None: nothing is left of the ledger
    keys: int = 0                    # keys whose newest message lies in the ledger
    tombstones: int = 0              # of these
    damage: tuple[str, ...] = ()
    size: int = 0                    # bytes read


def write(job: compaction.Job, number: int, slots: Rows) -> Written:
    """Write the view's part of one ledger, synced.

    number: of the ledger in the run.  slots: SLOT (n,) of the newest message of each key, and of keyless messages that
    are kept, in any order.

    Raises CannotCompact, after removing the files of this ledger.
    """
    source = job.source(number)
    damage: list[str] = []
    keyed = slots["place"] & compaction.HAS_KEY != 0
    is_tombstone = slots["place"] & compaction.IS_TOMBSTONE != 0
    counted = int(keyed.sum()), int((keyed & is_tombstone).sum())
    slots = slots[~is_tombstone]
    slots = slots[np.argsort(slots["place"], kind="stable")]
    if not len(slots):
        return Written(None, *counted)
    read = 0
    try:
        keys = KeysWriter(source.ledger_id)
        with PartWriter(job.target, job.partition_id, source.ledger_id) as writer:
            for some in compaction.entries(job, source):
                read += some.rows.nbytes + _copy(writer, keys, some, source, slots, damage)
            part = writer.finish(source.end)
        if part.kept:
            keys.finish(job.target, job.seed, has_times=job.by_event_time, keeps_keyless=job.retains_keyless)
    except (OSError, CorruptFile) as error:
        compaction.remove(job, source.ledger_id)
        raise compaction.CannotCompact(compaction.reason(error, job.target)) from error
    if not part.kept:
        compaction.remove(job, source.ledger_id)
    return Written(part if part.kept else None, *counted, tuple(damage), read)


def _copy(writer: PartWriter, keys: KeysWriter, block: compaction.Entries, source: compaction.Source, slots: Rows,
          damage: list[str]) -> int:
    """Copy the entries with kept messages into the view, and rewrite batches that lose messages.

    slots: SLOT (n,) of kept messages in the ledger, ascending.  Returns how many bytes of entries were read.
    """
    if not len(block.rows):
        return 0
    firsts = block.rows["message_index"].astype(np.int64) - source.first_message
    slots, rows_of, indexes = _locate(firsts, block.rows["messages"].astype(np.int64), slots)
    chosen, starts, slot_counts = np.unique(rows_of, return_index=True, return_counts=True)
    if not len(chosen):
        return 0
    rows = block.rows[chosen].view(format.COMPACTED_ROW)
    rows["entry_id"] = block.ids[chosen]
    there, behind = _left(block, rows)
    counts = np.where(slots["place"][starts] & compaction.STAYS_WHOLE != 0, there, slot_counts)
    # The bytes of a masked entry still have the messages that the mask removes.
    is_whole = (counts == there) & (rows["flags"] & IS_MASKED == 0)
    begins, masks = rows["offset"].astype(np.int64), []
    ends, cut = begins + rows["size"], np.flatnonzero(~is_whole).tolist()
    read = int((ends + behind - begins).sum())
    rows["flags"] &= ~np.uint32(IS_MASKED)
    for row_number in cut:
        masks.append(np.zeros(rows["messages"][row_number], bool))
        masks[-1][indexes[starts[row_number]:starts[row_number] + slot_counts[row_number]]] = True
    rewritten = rewriting.cut(
        [with_checksum(bytes(block.data[begins[row_number]:ends[row_number]])) for row_number in cut], masks)
    fresh, bad = {}, []
    for row_number, entry, mask in zip(cut, rewritten, masks, strict=True):
        if isinstance(entry, Unreadable):
            bad.append(row_number)
            damage.append(f"entry {source.ledger_id}:{rows['entry_id'][row_number]}: {entry}")
            continue
        fresh[row_number] = entry, rewriting.words_of(mask)
        rows["size"][row_number], rows["crc32c"][row_number] = len(entry), int.from_bytes(entry[2:CHECKSUM_END], "big")
        rows["flags"][row_number] |= format.IS_CUT | KEPT_CHECKSUM
    pieces = _pieces(block.data, begins, ends + behind, is_whole, fresh)
    behind[list(fresh)] = [len(words) for _, words in fresh.values()]
    if bad:
        is_good = np.repeat(~np.isin(np.arange(len(rows)), bad), slot_counts)
        slots, indexes, slot_counts = slots[is_good], indexes[is_good], np.delete(slot_counts, bad)
        rows, behind, counts = np.delete(rows, bad), np.delete(behind, bad), np.delete(counts, bad)
    writer.add(rows, behind, pieces, int(counts.sum()))
    keys.add(rows, slots, slot_counts, indexes)
    return read


def _locate(firsts: NDArray[np.int64], messages: NDArray[np.int64],
            slots: Rows) -> tuple[Rows, NDArray[np.intp], NDArray[np.int64]]:
    """Return (slot, entry, message within the entry) for each kept message that lies in a block's entries, ascending.
    """
    kept = (slots["place"] & (1 << compaction.LEDGER_BIT) - 1) >> compaction.MESSAGE_BIT
    first, end = np.searchsorted(kept, [firsts[0], firsts[-1] + messages[-1]])
    slots, here = slots[first:end], kept[first:end]
    rows_of = np.searchsorted(firsts, here, side="right") - 1
    indexes = here - firsts[rows_of]
    is_there = indexes < messages[rows_of]
    return slots[is_there], rows_of[is_there], indexes[is_there]


def _left(some: compaction.Entries, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (messages that an entry still has, bytes of its ack-set words) for each row of a block.

    An entry that an earlier compaction has cut has fewer messages than its column `messages` says.
    """
    there, behind = rows["messages"].astype(np.int64), np.zeros(len(rows), np.int64)
    if some.of_view is not None:
        has_words = rows["flags"] & format.IS_CUT != 0
        behind[has_words] = 8 * -(-there[has_words] // 64)
        for at, bits in some.of_view.cut_of(rows["entry_id"].astype(np.int64)):
            there[at] = bits.bit_count()
    return there, behind


def _pieces(data: memoryview, begins: NDArray[np.int64], ends: NDArray[np.int64], is_whole: NDArray[np.bool_],
            fresh: dict[int, tuple[bytes, bytes]]) -> list[bytes | memoryview]:
    """Return the bytes of a view's entries as pieces to write.

    Unchanged neighbours are one piece; `fresh` has rewritten entries with their ack-set words.
    """
    is_run = np.zeros(len(begins), bool)          # it begins where the entry before ends, and both are unchanged
    is_run[1:] = is_whole[1:] & is_whole[:-1] & (begins[1:] == ends[:-1])
    starts = np.flatnonzero(~is_run)
    stops = np.append(starts[1:], len(begins))
    pieces: list[bytes | memoryview] = []
    changed = np.flatnonzero(~is_whole[starts])
    for first, end in zip([0, *(changed + 1).tolist()], [*changed.tolist(), len(starts)], strict=True):
        pieces += _copied(data, begins[starts[first:end]], ends[stops[first:end] - 1])
        if end < len(starts):
            pieces += fresh.get(int(starts[end]), ())
    return pieces


def _copied(data: memoryview, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of stretches of a file, in order; many stretches in one copy of them."""
    if len(begins) > _STRETCHES_MAX and (begins[1:] >= ends[:-1]).all():
        borders = np.column_stack((begins, ends)).ravel()       # of stretches and of what lies between them
        all_of_them = pa.Array.from_buffers(pa.large_binary(), len(borders) - 1,
                                            [None, pa.py_buffer(borders), pa.py_buffer(data)])
        yield memoryview(all_of_them.take(pa.array(np.arange(0, len(borders), 2))).buffers()[2])
    else:
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            yield data[begin:end]
