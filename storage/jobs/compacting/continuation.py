"""Continue a compacted view: look only at new messages, and at the messages that they replace.

A compaction finds the newest message of each key among the new ones (key_scan.py).  This module then looks for the
hashes of these keys among those of the view's messages (view_files.py), and makes the new view out of the old one's
files.

    nothing is removed from a part         its files are hard-linked
    messages are removed from a part       its files are hard-linked, and a mask says which messages
    much is removed, or messages come      its files are written anew
    nothing is left of a part              the new view does not have it

Only a part that is written anew has its entries read.
"""
import bisect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Rows
from geminga.proto.sends import IS_CHUNK
from geminga.storage import format
from geminga.storage.disk.files import write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.jobs.compacting import compaction, key_scan, view_writer
from geminga.storage.jobs.compacting.view_writer import Written
from geminga.storage.ledgers import compacted_ledgers, view_files
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers, Part
from geminga.storage.ledgers.view_files import CUT_ROW, SLOT, KeyFile, Mask

# A part is written anew when it has lost more than half of its messages.  From a quarter on, parts are written anew as
# long as their bytes are not more than three times those of the new messages: as many bytes then come back as come.
_LOST_MAX, _LOST_MIN, _WRITTEN_ANEW = 0.5, 0.25, 3
_FILTER_BITS = 22                # of a word: a table of so many bits tells most words that are not looked for


class CannotContinue(Exception):
    """Error: a view cannot be continued.  The text says why; the whole view has to be read."""


@dataclass(slots=True)
class _HeldPart:
    """One part of the view in force, and what the compaction removes from it."""

    part: Part
    keys: KeyFile
    has_key: NDArray[np.bool_]       # (slots,)
    batches: NDArray[np.int64] | None      # (rows,) first slot of each row; None: each row is one slot
    mask: Mask | None
    removed: NDArray[np.bool_]       # (slots,) by the mask, and by this compaction
    # (slots (n,), numbers of the messages in their entries (n,)) that this compaction removes from batches.
    cut: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    messages: int = 0                # that this compaction removes

    def remove(self, slots: NDArray[np.int64], messages: int | None = None) -> None:
        """Remove slots (n,), which are all different.  messages: that they are, if not one each."""
        slots = slots[~self.removed[slots]]
        self.removed[slots] = True
        self.messages += len(slots) if messages is None else messages

    @property
    def lost(self) -> float:
        """Share of the part's messages that are removed."""
        return float(np.count_nonzero(self.removed)) / max(1, len(self.removed))

    @property
    def keyed(self) -> int:
        """The number of keys that are left."""
        return int(np.count_nonzero(self.has_key & ~self.removed))

    def rows_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row (n,) of each slot (n,)."""
        return slots if self.batches is None else np.searchsorted(self.batches, slots, side="right") - 1

    def slots_of(self, row: int) -> NDArray[np.int64]:
        """Return the slots (n,) of a row."""
        if self.batches is None:
            return np.array([row])
        return np.arange(*np.append(self.batches, len(self.removed))[row:row + 2])


class Continuation:
    """One compaction that continues a view."""

    def __init__(self, job: compaction.Job):
        """Open the view in force, which the job continues.  Raises CorruptFile, OSError."""
        self._job = job
        self.size_read = 0
        # Places of chunks of which a message is whole, or may still become whole.
        self._whole_chunks = {*job.unfinished, *job.chunks, *(place for some in job.chunks.values() for place in some)}
        self._chunk_places = frozenset(job.chunk_places)
        view = compacted_ledgers.open_view(job.folder, job.view)
        assert view is not None and job.behind is not None, job
        self._view: CompactedLedgers = view

    def __repr__(self) -> str:
        return f"<Continuation {self._view}>"

    def _count(self, size: int) -> None:
        self.size_read += size

    def written(self, news: Rows, check: Callable[[], None]) -> Iterator[Written]:
        """Make the parts of the new view; yield the result for each ledger.

        news: SLOT (n,) of the newest message of each key among the new messages, and of keyless ones that are kept.
        check: called between parts; it may raise an error that ends the compaction.

        Raises CannotContinue, CannotCompact.
        """
        try:
            yield from self._written(news, check)
        except (CorruptFile, OSError, ValueError) as error:      # ValueError: an empty file cannot be mapped
            if not (self._view.folder / compacted_ledgers.MANIFEST).exists():
                raise compaction.CannotCompact(compaction.reason(error)) from error
            raise CannotContinue(compaction.reason(error)) from error
        except compaction.CannotCompact as error:
            if isinstance(error.__cause__, CorruptFile):      # a damaged entry, which is left out if all is read
                raise CannotContinue(str(error)) from error
            raise

    def _written(self, news: Rows, check: Callable[[], None]) -> Iterator[Written]:
        job = self._job
        looked_for = _LookedFor(news, by_event_time=job.by_event_time)
        held: dict[int, _HeldPart] = {}
        for part in self._view.manifest.parts:
            check()
            words, held_part = self._open(part)
            held[part.ledger_id] = held_part
            self._remove_cancelled(held_part)
            chunks = self._chunks(held_part)
            held_part.remove(np.array(
                [slot for place, slot in chunks.items() if place not in self._whole_chunks], np.int64))
            looked_for.find(held_part, words)
        news = news[~looked_for.lost]
        extra = self._remove_chunks(held, news)
        gained = dict(key_scan.by_ledger(np.concatenate((news, key_scan.keyless_slots(extra)))))
        anew = self._to_write_anew(held)
        for number, slots in gained.items():
            check()
            source = job.source(number)
            if source.ledger_id in held and (slots["place"] & compaction.IS_TOMBSTONE == 0).any():
                slots = np.concatenate((slots, self._left(held.pop(source.ledger_id), source, number)))
            yield self._counted(view_writer.write(job, number, slots))
        for source in job.sources:      # one with new entries of which none is kept
            if source.ledger_id in held:
                part = held[source.ledger_id].part
                held[source.ledger_id].part = replace(part, entries=max(part.entries, source.end))
        for ledger_id, held_part in held.items():
            check()
            if held_part.removed.all():
                continue
            if ledger_id in anew:
                yield self._written_anew(held_part)
            else:
                yield Written(self._linked(held_part), held_part.keyed)

    def _counted(self, written: Written) -> Written:
        self._count(written.size)
        return written

    def _open(self, part: Part) -> tuple[NDArray[np.uint32], _HeldPart]:
        """Return the words of a part's keys, and the part."""
        keys = KeyFile(self._view.folder, part.ledger_id, self._count)
        words, firsts = keys.words()
        if len(firsts) != part.kept:
            raise CorruptFile(keys.path, 0, f"hashes of {part.kept} entries", f"those of {len(firsts)}")
        mask = view_files.read_mask(self._view.folder, part.ledger_id, part.kept, self._count) if part.mask else None
        if mask is not None and len(mask.slots) != keys.slots:
            raise CorruptFile(view_files.mask_path(self._view.folder, part.ledger_id), 0,
                              f"a mask of {keys.slots} messages", f"one of {len(mask.slots)}")
        removed = np.zeros(keys.slots, bool) if mask is None else mask.slots.copy()
        return words, _HeldPart(part, keys, words != 0, firsts if keys.has_batches else None, mask, removed)

    # -- what goes

    def _remove_cancelled(self, part: _HeldPart) -> None:
        """Remove entries that were cancelled since the view was made."""
        cancelled = self._job.cancelled.get(part.part.ledger_id)
        if not cancelled:
            return
        rows = self._rows(part)
        ids = rows["entry_id"]
        for entry_id in set(cancelled):
            row = bisect.bisect_left(ids, entry_id)      # numpy's search would copy the column, and so read all rows
            self._count(len(rows).bit_length() * format.COMPACTED_ROW.itemsize)
            if row == len(rows) or ids[row] != entry_id:
                continue
            slots = part.slots_of(row)
            is_whole = not part.has_key[slots[0]] and not part.removed[slots[0]] and (
                part.keys.items_of(slots)["more"][0] == view_files.STAYS_WHOLE[1])
            part.remove(slots, int(rows["messages"][row]) if is_whole else None)

    def _rows(self, part: _HeldPart) -> Rows:
        rows = compacted_ledgers.read_rows(format.index_path(self._view.folder, part.part.ledger_id), part.part.kept)
        if len(rows) != part.part.kept:
            raise CorruptFile(format.index_path(self._view.folder, part.part.ledger_id), 0, f"{part.part.kept} rows",
                              f"{len(rows)}")
        return rows

    def _whole_rows(self, part: _HeldPart) -> Rows:
        """Return all rows of a part, which are read and checked.  Raises CorruptFile if one is damaged."""
        rows = self._rows(part)
        self._count(rows.nbytes)
        if not compacted_ledgers.is_valid(rows, part.part.ledger_id).all():
            path = format.index_path(self._view.folder, part.part.ledger_id)
            raise CorruptFile(path, format.HEADER_SIZE, "whole rows", "a damaged one")
        return rows

    def _chunks(self, part: _HeldPart) -> dict[int, int]:
        """Return {place of a message: its slot in the part} for those entries of a part that are chunks."""
        if not part.keys.chunks:
            return {}
        number, source = self._source(part.part.ledger_id)
        rows = self._whole_rows(part)
        chunk_rows = np.flatnonzero(rows["flags"] & IS_CHUNK)
        places = compaction.place_of(number, source, rows["message_index"][chunk_rows].astype(np.int64)).tolist()
        slots = chunk_rows if part.batches is None else part.batches[chunk_rows]
        return {place: slot for place, slot in zip(places, slots.tolist(), strict=True)
                if place in self._chunk_places}

    def _source(self, ledger_id: int) -> tuple[int, compaction.Source]:
        """Return (number, source) of a ledger among the job's sources."""
        if (numbered := self._job.numbered(ledger_id)) is None:
            raise CorruptFile(format.index_path(self._view.folder, ledger_id), format.HEADER_SIZE, "rows", "none")
        return numbered

    def _remove_chunks(self, held: dict[int, _HeldPart], news: Rows) -> NDArray[np.int64]:
        """Remove chunks of messages that are gone from the parts.  Return the places of new chunks that are kept."""
        job = self._job
        if not job.chunk_places:
            return np.empty(0, np.int64)
        chunks = {place: (part, slot) for part in held.values() for place, slot in self._chunks(part).items()}
        kept_lasts = [last for last in job.chunks if last in chunks and not chunks[last][0].removed[chunks[last][1]]]
        places = np.concatenate((news["place"], np.array(kept_lasts, np.int64)))
        extra = key_scan.kept_chunks(job, places)
        kept = {*kept_lasts, *extra.tolist()}
        for place, (one, slot) in chunks.items():
            if place not in kept:
                one.remove(np.array([slot]))
        return np.array([place for place in extra.tolist() if place not in chunks], np.int64)

    # -- what stays

    def _to_write_anew(self, held: dict[int, _HeldPart]) -> set[int]:
        """Return the ids of ledgers whose parts are written anew, because they have lost much."""
        parts = {part.ledger_id: part for part in self._view.manifest.parts}
        room = _WRITTEN_ANEW * sum(source.size - (parts[source.ledger_id].size if source.ledger_id in parts else 0)
                                   for source in self._job.sources)
        chosen = set()
        for ledger_id, held_part in sorted(held.items(), key=lambda item: item[1].lost, reverse=True):
            if held_part.lost <= _LOST_MIN:
                break
            size = held_part.part.size + held_part.part.kept * format.COMPACTED_ROW.itemsize
            if held_part.lost > _LOST_MAX or size <= room:
                chosen.add(ledger_id)
                room -= size
        return chosen

    def _left(self, part: _HeldPart, source: compaction.Source, number: int) -> Rows:
        """Return the SLOTs (n,) of the messages that are left of a part.  Raises CorruptFile."""
        part.keys.check()
        slots = np.flatnonzero(~part.removed)
        items, rows = part.keys.items_of(slots), self._whole_rows(part)
        kept = np.zeros(len(slots), SLOT)
        kept["word"] = part.keys.words()[0][slots]
        for name in ("more", "time"):
            kept[name] = items[name]
        firsts = rows["message_index"].astype(np.int64)[part.rows_of(slots)]
        is_whole = (kept["word"] == view_files.STAYS_WHOLE[0]) & (kept["more"] == view_files.STAYS_WHOLE[1])
        kept["place"] = compaction.place_of(number, source, firsts + items["index"]) \
            + compaction.HAS_KEY * (kept["word"] != 0) + compaction.STAYS_WHOLE * is_whole
        return kept

    def _written_anew(self, part: _HeldPart) -> Written:
        """Write a part anew without what was removed from it."""
        job, ledger_id = self._job, part.part.ledger_id
        rows = self._rows(part)
        source = compaction.Source(ledger_id, int(rows["message_index"][0]), part.part.entries, part.part.entries,
                        part.part.messages, part.part.size)
        alone = replace(job, sources=(source,), first_ledger=0)
        return self._counted(view_writer.write(alone, 0, self._left(part, source, 0)))

    def _linked(self, part: _HeldPart) -> Part:
        """Link a part's files into the new view, with a mask of what is removed.  Return the new view's part."""
        folder, target, ledger_id = self._view.folder, self._job.target, part.part.ledger_id
        # Both views share the files, since no program writes into a view's files once it is complete.  Whatever changes
        # goes into a mask of the new view: a reader of the old one goes on with what it was given before.
        for path in (format.ledger_path, format.index_path, view_files.keys_path):
            os.link(path(folder, ledger_id), path(target, ledger_id))
        before = 0 if part.mask is None else int(np.count_nonzero(part.mask.slots))
        if (count := int(np.count_nonzero(part.removed))) == before:
            if part.mask is not None:
                os.link(view_files.mask_path(folder, ledger_id), view_files.mask_path(target, ledger_id))
            return part.part
        assert count > before, part
        mask = self._mask(part)
        data = mask.encode(ledger_id)
        write_anew(view_files.mask_path(target, ledger_id), data)
        return replace(part.part, messages=part.part.messages - part.messages, gone=int(np.count_nonzero(mask.rows)),
                       mask=len(data))

    def _mask(self, part: _HeldPart) -> Mask:
        """Return the mask of everything that is removed from a part."""
        is_gone = part.removed
        if part.batches is not None:
            is_gone = np.add.reduceat((~part.removed).astype(np.int64), part.batches) == 0
        pieces = [] if part.mask is None else [part.mask.cut]
        for slots, indexes in part.cut:
            pieces.append(np.zeros(len(slots), CUT_ROW))
            pieces[-1]["row"], pieces[-1]["index"] = part.rows_of(slots), indexes
        cut = np.concatenate(pieces) if pieces else np.empty(0, CUT_ROW)
        cut = cut[~is_gone[cut["row"]]]
        return Mask(part.removed, is_gone, cut[np.argsort(cut, order=("row", "index"))])


class _LookedFor:
    """The keys of the new messages, whose hashes are looked for in the parts of a view."""

    def __init__(self, news: Rows, *, by_event_time: bool):
        self._by_event_time = by_event_time
        self.lost = np.zeros(len(news), bool)      # (n,) new messages that are older than one of the view
        order = np.argsort(news["word"], kind="stable")
        self._order = order[news["word"][order] != 0]
        self._news = news[self._order]
        self._words = np.ascontiguousarray(self._news["word"])
        self._table = np.zeros(1 << _FILTER_BITS, bool)
        self._table[self._words >> np.uint32(32 - _FILTER_BITS)] = True

    def __repr__(self) -> str:
        return f"<_LookedFor {len(self._news)} keys>"

    def find(self, part: _HeldPart, words: NDArray[np.uint32]) -> None:
        """Remove the messages from a part that new ones replace, or note new messages as lost.

        words: of the part's keys (slots,).  Raises CorruptFile if an item of the part is damaged.
        """
        slots = np.flatnonzero(self._table[words >> np.uint32(32 - _FILTER_BITS)])
        slots = slots[part.has_key[slots] & ~part.removed[slots]]
        first, end = (np.searchsorted(self._words, words[slots], side=side) for side in ("left", "right"))
        slots, first, end = slots[end > first], first[end > first], end[end > first]
        if not len(slots):
            return
        items = part.keys.items_of(slots)
        is_same = np.zeros(len(slots), bool)
        for number in range(int((end - first).max())):
            number_of = np.flatnonzero((first + number < end) & ~is_same)
            news = self._news[first[number_of] + number]
            same = news["more"] == items["more"][number_of]
            is_same[number_of] |= same
            number_of, news = number_of[same], news[same]
            if self._by_event_time:
                is_older = news["time"] < items["time"][number_of]
                self.lost[self._order[(first[number_of] + number)[is_older]]] = True
                number_of = number_of[~is_older]
            part.remove(slots[number_of])
            if part.keys.has_batches:
                part.cut.append((slots[number_of], items["index"][number_of]))
        if not is_same.all():      # by chance, or because an item is damaged
            part.keys.check(slots[~is_same])
