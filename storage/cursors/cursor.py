"""A cursor: all that is durable about a subscription.

Everything up to and with the mark-delete position is acknowledged, and so is every entry whose bit is set in its ledger's
bitmap.  The bitmap is one bit per entry, made when the first acknowledgement leaves a hole, so any number of holes is
kept and none costs an object.  In-order acknowledgements only move the position.

    entries of ledger 7      0 1 2 3 4 5 6 7 8
    acknowledged             x x x . x . . x x      mark-delete (7, 2); bits 4, 7, 8

Of a batch some messages may be acknowledged and others not: `parts` has a bit for each, 1 = not acknowledged.  The entry is
acknowledged when none is left.

`totals` say what became of the messages that have come since the cursor began: at every moment

    messages published since = acknowledged + expired + skipped + evicted + those that are not acknowledged

The journal has every change of a cursor, and state_file.py all of it as of a checkpoint; that of a reader is in memory only.
"""
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors import batch_acks
from geminga.storage.cursors.entry_counts import EntryCounts
from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.ledgers.ledger import Ledger

Position = tuple[int, int]     # (ledger id, entry id); entry -1 is before the first
NOWHERE: Position = (-1, -1)   # before everything
NOBODY = 0                     # subscription id of the cursor that knows what a partition has for nobody any more
ACKNOWLEDGED, EXPIRED, SKIPPED, EVICTED = range(4)               # why a message does not have to be delivered any more
_STRETCH = 1 << 15             # entries of a ledger with holes that are looked at together
_FEW_RUNS = 8                  # that are dealt with one by one
REASONS = "acknowledged", "expired", "skipped", "evicted"


class Cursor:
    """Positions are compared as tuples: ledger ids grow along a partition.

    Invariant: the entry behind `mark_delete` is not acknowledged (when there is one).
    """

    def __init__(self, subscription_id: int, mark_delete: Position, *, is_durable: bool, since: int = 0):
        self.subscription_id, self.is_durable = subscription_id, is_durable
        self.mark_delete = mark_delete
        self.bitmaps: dict[int, NDArray[np.uint8]] = {}    # ledger id -> bits, as far as any is set
        self.parts: batch_acks.Parts = {}
        self.redeliveries, self.deaths = EntryCounts(), EntryCounts()
        self.since = since                                 # messages of the partition before those that the totals are about
        self.totals = [0] * len(REASONS)                   # messages

    def acknowledge(self, ledger: Ledger, entry_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Mark entries (n,) sorted, unique, existing, of one ledger; returns those that were not acknowledged before.

        The mark-delete position is not moved; call `advance` then.
        """
        if ledger.ledger_id < self.mark_delete[0]:
            return entry_ids[:0]
        if ledger.ledger_id == self.mark_delete[0]:
            entry_ids = entry_ids[entry_ids > self.mark_delete[1]]
        if not len(entry_ids):
            return entry_ids
        bitmap = self._bitmap(ledger, int(entry_ids[-1]))
        bits = np.uint8(1) << (entry_ids & 7).astype(np.uint8)
        fresh = (bitmap[entry_ids >> 3] & bits) == 0
        np.bitwise_or.at(bitmap, entry_ids >> 3, bits)
        return entry_ids[fresh]

    def acknowledge_part(self, ledger: Ledger, entry_id: int, messages: int, left: int) -> int:
        """Of the messages of a batch only those with a bit in `left`, one of its own, are not acknowledged; returns the bits that remain.

        When that is 0 the whole entry is to be acknowledged.
        """
        before = self.parts.get(ledger.ledger_id, {}).get(entry_id)
        remains = left if before is None else before & left
        if remains and remains != before and (before is not None or remains.bit_count() < messages):
            self.parts.setdefault(ledger.ledger_id, {})[entry_id] = remains
        return remains

    def set_parts(self, ledger_id: int, entry_id: int, numbers: NDArray[np.int64], words: NDArray[np.uint64]) -> None:
        """The words (n,) of these numbers (n,), ascending, are these of that batch."""
        entries = self.parts.setdefault(ledger_id, {})
        entries[entry_id] = batch_acks.put(entries.get(entry_id, 0), numbers, words)

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        if (ledger_id, entry_id) <= self.mark_delete:
            return True
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and entry_id >> 3 < len(bitmap) and bool(bitmap[entry_id >> 3] >> (entry_id & 7) & 1)

    def forget_parts(self, ledger_id: int, acknowledged: NDArray[np.int64] | list[int]) -> None:
        """Of batches that are acknowledged now."""
        entries = self.parts.get(ledger_id)
        if entries is not None:
            for entry_id in entries.keys() & set(np.asarray(acknowledged).tolist()):
                del entries[entry_id]
            if not entries:
                del self.parts[ledger_id]

    def forget_acknowledged_parts(self) -> None:
        """Of all batches that are acknowledged by now."""
        for ledger_id, entries in list(self.parts.items()):
            self.forget_parts(ledger_id, [entry_id for entry_id in entries if self.is_acknowledged(ledger_id, entry_id)])

    def acknowledge_in_order(self, ledger: Ledger, entry_ids: list[int] | NDArray[np.int64]) -> bool:
        """Move the position over entry_ids when they follow it without a gap and nothing beyond has a bit: no bitmap needed.

        Only within the ledger that the position is in: whether those before are done is for `advance` to find out.
        """
        if self.mark_delete[0] != ledger.ledger_id or ledger.ledger_id in self.bitmaps or not len(entry_ids):
            return False
        follows = self.mark_delete[1]
        if int(entry_ids[0]) != follows + 1 or int(entry_ids[-1]) != follows + len(entry_ids):
            return False
        self.mark_delete = (ledger.ledger_id, int(entry_ids[-1]))
        return True

    def advance(self, ledgers: list[Ledger]) -> None:
        """Move the mark-delete position over what is acknowledged behind it, also across ledgers' borders."""
        for ledger in ledgers:
            if ledger.ledger_id < self.mark_delete[0]:
                continue
            done = self.mark_delete[1] if ledger.ledger_id == self.mark_delete[0] else -1
            done = self.first_hole(ledger, done + 1) - 1
            self.mark_delete = (ledger.ledger_id, done)      # also before its first entry: everything before it is done
            if done < ledger.last_entry or not ledger.is_sealed:
                return

    def move(self, position: Position, since: int = 0) -> None:
        """Everything up to position is acknowledged, nothing beyond it is, and nothing has happened yet."""
        self.mark_delete = position
        self.since, self.totals = since, [0] * len(REASONS)
        for kept in (self.bitmaps, self.parts, self.redeliveries, self.deaths):
            kept.clear()

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        self.bitmaps.pop(ledger_id, None)
        self.parts.pop(ledger_id, None)
        self.redeliveries.forget(ledger_id)
        self.deaths.forget(ledger_id)

    def acknowledged(self, ledger_id: int, first: int, end: int) -> NDArray[np.bool_]:
        """Of each entry first .. end - 1 of the ledger whether it is."""
        found = np.full(end - first, ledger_id < self.mark_delete[0])
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is not None and ledger_id >= self.mark_delete[0]:      # it may be shorter than the ledger
            bits = np.unpackbits(bitmap[first >> 3:(end + 7) >> 3], bitorder="little")[first & 7:][:end - first]
            found[:len(bits)] = bits
        if ledger_id == self.mark_delete[0]:
            found[:max(0, self.mark_delete[1] + 1 - first)] = True
        return found

    def unacknowledged(self, ledger: Ledger, first: int, end: int) -> Iterator[tuple[int, int]]:
        """(first, end) of each run of entries in [first, end) that are not acknowledged."""
        if ledger.ledger_id < self.mark_delete[0]:
            return
        if ledger.ledger_id == self.mark_delete[0]:
            first = max(first, self.mark_delete[1] + 1)
        if first >= end:
            return
        if ledger.ledger_id not in self.bitmaps:
            yield first, end
            return
        settled = np.ones(end - first + 2, bool)       # an acknowledged entry on either side, so that every run has two edges
        settled[1:-1] = self.acknowledged(ledger.ledger_id, first, end)
        edges = (np.flatnonzero(np.diff(settled)) + first).tolist()
        yield from zip(edges[0::2], edges[1::2], strict=True)

    def left(self, ledger: Ledger, first: int, end: int) -> Iterator[Entries]:
        """The same entries: a range for each run, an array for a stretch where many of them lie apart."""
        if ledger.ledger_id < self.mark_delete[0]:
            return
        if ledger.ledger_id == self.mark_delete[0]:
            first = max(first, self.mark_delete[1] + 1)
        stretch = _STRETCH if ledger.ledger_id in self.bitmaps else max(1, end - first)
        for start in range(first, end, stretch):
            runs = list(self.unacknowledged(ledger, start, min(end, start + stretch)))
            if len(runs) <= _FEW_RUNS:
                yield from (range(*run) for run in runs)
            else:
                yield entries_of(np.array(runs))

    def all_left(self, ledger: Ledger, end: int) -> NDArray[np.int64]:
        """The entries before `end` that are not acknowledged, ascending."""
        runs = list(self.unacknowledged(ledger, 0, end))
        return entries_of(np.array(runs)) if runs else np.zeros(0, np.int64)

    def unacknowledged_messages(self, ledger: Ledger, first: int, end: int) -> int:
        """How many messages of the entries in [first, end) are not acknowledged."""
        count = sum(ledger.messages_in(start, stop) for start, stop in self.unacknowledged(ledger, first, end))
        for entry_id, bits in self.parts.get(ledger.ledger_id, {}).items():
            if first <= entry_id < end and not self.is_acknowledged(ledger.ledger_id, entry_id):
                count -= int(ledger.messages[entry_id]) - bits.bit_count()
        return count

    def backlog_messages(self, ledgers: list[Ledger]) -> int:
        """Messages that are not acknowledged."""
        return sum(self.unacknowledged_messages(ledger, 0, ledger.entries) for ledger in ledgers)

    def acknowledged_beyond(self, ledger: Ledger) -> int:
        """How many entries of the ledger are acknowledged beyond the mark-delete position."""
        if ledger.ledger_id not in self.bitmaps or ledger.ledger_id < self.mark_delete[0]:
            return 0
        bitmap = self.bitmaps[ledger.ledger_id]
        first = self.mark_delete[1] + 1 if ledger.ledger_id == self.mark_delete[0] else 0
        return _bits_before(bitmap, ledger.entries) - _bits_before(bitmap, first)

    def backlog(self, ledgers: list[Ledger]) -> int:
        """Entries that are not acknowledged."""
        count = 0
        for ledger in ledgers:
            if ledger.ledger_id > self.mark_delete[0]:
                count += ledger.entries - self.acknowledged_beyond(ledger)
            elif ledger.ledger_id == self.mark_delete[0]:
                count += ledger.last_entry - self.mark_delete[1] - self.acknowledged_beyond(ledger)
        return count

    def first_hole(self, ledger: Ledger, entry_id: int) -> int:
        """The first entry from entry_id on that is not acknowledged; ledger.entries when there is none."""
        bitmap = self.bitmaps.get(ledger.ledger_id)
        if bitmap is None or entry_id >= min(ledger.entries, len(bitmap) * 8):
            return min(entry_id, ledger.entries)
        partial = ~bitmap[entry_id >> 3:] if not entry_id & 7 else np.concatenate((
            ~bitmap[entry_id >> 3:(entry_id >> 3) + 1] & np.uint8(0xFF << (entry_id & 7) & 0xFF), ~bitmap[(entry_id >> 3) + 1:]))
        holes = partial != 0
        if not holes.any():
            return min(ledger.entries, len(bitmap) * 8)
        byte = int(holes.argmax())
        low = int(partial[byte])
        return min(ledger.entries, ((entry_id >> 3) + byte) * 8 + (low & -low).bit_length() - 1)

    def _bitmap(self, ledger: Ledger, entry_id: int) -> NDArray[np.uint8]:
        bitmap = self.bitmaps.get(ledger.ledger_id)
        if bitmap is None or len(bitmap) <= entry_id >> 3:
            bitmap = self.bitmaps[ledger.ledger_id] = self._grow(bitmap, (max(entry_id, ledger.entries) >> 3) + 1)
        return bitmap

    def _grow(self, bitmap: NDArray[np.uint8] | None, size: int) -> NDArray[np.uint8]:
        grown = np.zeros(-(-3 * size // 2 // 64) * 64, np.uint8)
        if bitmap is not None:
            grown[:len(bitmap)] = bitmap
        return grown


def _bits_before(bitmap: NDArray[np.uint8], end: int) -> int:
    """How many of the first `end` bits are set."""
    count = int(np.bitwise_count(bitmap[:end >> 3]).sum(dtype=np.int64))
    if end & 7 and end >> 3 < len(bitmap):
        count += (int(bitmap[end >> 3]) & ((1 << (end & 7)) - 1)).bit_count()
    return count


def entries_of(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """All entries of runs (n, 2): first, and the one behind the last, of each."""
    firsts, ends = runs.T
    counts = ends - firsts
    return np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))
