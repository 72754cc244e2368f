"""A cursor: the durable part of a subscription.

All entries up to and including the mark-delete position are acknowledged, and so is every entry whose bit is set in its
ledger's bitmap.  A bitmap has one bit for each entry and is made when the first acknowledgement leaves a hole.  So any
number of holes is kept, and none costs an object.  Acknowledgements in order only move the mark-delete position.

    entries of ledger 7      0 1 2 3 4 5 6 7 8
    acknowledged             x x x . x . . x x      mark-delete (7, 2); bits 4, 7, 8

`parts` has the batches that are acknowledged in part, with one bit for each message, 1 = not acknowledged.  An entry is
acknowledged once all its messages are.

`totals` count the messages published since the cursor was created or reset, by what became of them.  At every moment

    messages published since = acknowledged + expired + skipped + evicted + unacknowledged

The journal has every change of a cursor, and the state file all of the cursor as of a checkpoint.  A reader's cursor is
in memory only.
"""
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors import batch_acks
from geminga.storage.cursors.dead_entries import DeadEntries
from geminga.storage.cursors.entry_counts import EntryCounts
from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger

NOBODY = 0                     # subscription id of the cursor that marks discarded entries
ACKNOWLEDGED, EXPIRED, SKIPPED, EVICTED = range(4)               # why a message needs no delivery any more
_STRETCH = 1 << 15             # entries of a ledger with holes that are examined at once
_FEW_RUNS = 8                  # with more runs than this, a stretch comes as an array
REASONS = "acknowledged", "expired", "skipped", "evicted"


class Cursor:
    """The cursor of one subscription: its mark-delete position, and the entries acknowledged individually beyond it.

    Positions are compared as tuples: ledger ids grow along a partition. Invariant: the entry behind `mark_delete`, if
    there is one, is not acknowledged.
    """

    def __init__(self, subscription_id: int, mark_delete: Position, *, is_durable: bool, since: int = 0):
        self.subscription_id, self.is_durable = subscription_id, is_durable
        self.mark_delete = mark_delete
        self.bitmaps: dict[int, NDArray[np.uint8]] = {}    # ledger id -> bits, as far as any is set
        self.parts: batch_acks.Parts = {}
        self.redeliveries, self.deaths = EntryCounts(), EntryCounts()
        self.dead = DeadEntries()
        # messages of the partition published before the first one that the totals count
        self.since = since
        self.totals = [0] * len(REASONS)                   # messages
        # Type (SubType) of the consumers that attached last; None: there were none, or an older program served them.
        self.last_type: int | None = None

    def __repr__(self) -> str:
        held = f"bitmaps={sorted(self.bitmaps)} parts={self.parts}"
        return f"<Cursor {self.subscription_id} mark_delete={self.mark_delete} {held}>"

    def check(self) -> None:
        """Assert the invariants between passes.

        The entry behind the mark-delete position is unacknowledged, totals are not negative, and no acknowledged batch
        has bits.
        """
        ledger_id, entry_id = self.mark_delete
        assert not self.is_acknowledged(ledger_id, entry_id + 1), self
        assert all(total >= 0 for total in self.totals), (self, self.totals)
        for part_ledger_id, entries in self.parts.items():
            for part_entry_id, bits in entries.items():
                assert bits > 0, (self, part_ledger_id, part_entry_id)
                assert not self.is_acknowledged(part_ledger_id, part_entry_id), (self, part_ledger_id, part_entry_id)

    def acknowledge(self, ledger: ReadableLedger, entry_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Acknowledge existing entries (n,) of one ledger, sorted and unique; return the newly acknowledged ones.

        Does not move the mark-delete position; `advance` does.
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
        new: NDArray[np.int64] = entry_ids[fresh]
        return new

    def acknowledge_part(self, ledger: ReadableLedger, entry_id: int, messages: int, left: int) -> int:
        """Acknowledge the messages of a batch whose bits in `left` are 0; return the bits of unacknowledged ones.

        left: bits of this batch's messages only, 1 = not acknowledged.  The caller acknowledges the whole entry when 0
        is returned.
        """
        before = self.parts.get(ledger.ledger_id, {}).get(entry_id)
        remains = left if before is None else before & left
        if remains and remains != before and (before is not None or remains.bit_count() < messages):
            self.parts.setdefault(ledger.ledger_id, {})[entry_id] = remains
        return remains

    def set_parts(self, ledger_id: int, entry_id: int, numbers: NDArray[np.int64], words: NDArray[np.uint64]) -> None:
        """Replace some of the 64-bit words that hold a batch's bits.

        numbers: (n,) which words, ascending.  words: (n,) their new values.
        """
        entries = self.parts.setdefault(ledger_id, {})
        entries[entry_id] = batch_acks.put(entries.get(entry_id, 0), numbers, words)

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        if (ledger_id, entry_id) <= self.mark_delete:
            return True
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and entry_id >> 3 < len(bitmap) and bool(bitmap[entry_id >> 3] >> (entry_id & 7) & 1)

    def parts_of(self, ledger_id: int, entries: Entries) -> list[tuple[int, int]]:
        """Return [(index into entries, bits)] of the entries that are acknowledged in part, ascending."""
        parts = self.parts.get(ledger_id)
        return batch_acks.among(parts, entries) if parts else []

    def messages_of(self, ledger: ReadableLedger, entries: Entries) -> NDArray[np.uint32]:
        """Return the number (n,) of unacknowledged messages of each entry."""
        column = ledger.column("messages")
        messages: NDArray[np.uint32] = (
            column[entries.start:entries.stop] if isinstance(entries, range) else column[entries])
        if self.parts.get(ledger.ledger_id):
            messages = messages.copy()
            for at, bits in self.parts_of(ledger.ledger_id, entries):
                messages[at] = bits.bit_count()
        return messages

    def parts_of_view(self, ledger: CompactedLedger, entries: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return [(index into entries, bits)] of the entries that are acknowledged or compacted in part, ascending.

        bits: 1 = the message is neither acknowledged nor removed by the compaction.
        """
        left = dict(ledger.cut_of(entries))
        for at, bits in self.parts_of(ledger.ledger_id, entries):
            left[at] = left.get(at, bits) & bits
        return sorted(left.items())

    def forget_parts(self, ledger_id: int, acknowledged: NDArray[np.int64] | list[int]) -> None:
        """Drop the bits of batches of one ledger whose entries are acknowledged as a whole."""
        entries = self.parts.get(ledger_id)
        if entries is not None:
            for entry_id in entries.keys() & set(np.asarray(acknowledged).tolist()):
                del entries[entry_id]
            if not entries:
                del self.parts[ledger_id]

    def forget_acknowledged_parts(self) -> None:
        """Drop the bits of all partly acknowledged batches that have since been acknowledged as a whole."""
        for ledger_id, entries in list(self.parts.items()):
            self.forget_parts(
                ledger_id, [entry_id for entry_id in entries if self.is_acknowledged(ledger_id, entry_id)]
            )

    def acknowledge_in_order(self, ledger: ReadableLedger, entry_ids: list[int] | NDArray[np.int64]) -> bool:
        """Move the mark-delete position over entries that follow it without a gap; return whether that was possible.

        Not possible if the position is in another ledger, or if the ledger has a bitmap.
        """
        if self.mark_delete[0] != ledger.ledger_id or ledger.ledger_id in self.bitmaps or not len(entry_ids):
            return False
        follows = self.mark_delete[1]
        if int(entry_ids[0]) != follows + 1 or int(entry_ids[-1]) != follows + len(entry_ids):
            return False
        self.mark_delete = (ledger.ledger_id, int(entry_ids[-1]))
        assert self.mark_delete[1] < ledger.entries, (self, ledger)
        return True

    def advance(self, ledgers: Sequence[StoredLedger]) -> None:
        """Move the mark-delete position over the acknowledged entries that follow it, into later ledgers too."""
        for ledger in ledgers:
            if ledger.ledger_id < self.mark_delete[0]:
                continue
            done = self.mark_delete[1] if ledger.ledger_id == self.mark_delete[0] else -1
            done = self.first_hole(ledger, done + 1) - 1
            # (id, -1) if its first entry is a hole: the ledgers before are done
            self.mark_delete = (ledger.ledger_id, done)
            if done < ledger.last_entry or not ledger.is_sealed:
                return

    def move(self, position: Position, since: int = 0) -> None:
        """Reset the cursor: entries up to `position` are acknowledged, no later one is, and all counts are 0.

        since: how many messages of the partition were published before the totals' first one.
        """
        self.mark_delete = position
        self.since, self.totals = since, [0] * len(REASONS)
        for kept in (self.bitmaps, self.parts, self.redeliveries, self.deaths, self.dead):
            kept.clear()

    def copy(self, subscription_id: int) -> "Cursor":
        """Return a durable cursor of another id that has acknowledged and counted the same."""
        other = Cursor(subscription_id, self.mark_delete, is_durable=True, since=self.since)
        other.take_over(self)
        return other

    def take_over(self, other: "Cursor") -> None:
        """Acknowledge and count exactly what another cursor does; the totals stay."""
        self.mark_delete = other.mark_delete
        self.bitmaps = {ledger_id: bitmap.copy() for ledger_id, bitmap in other.bitmaps.items()}
        self.parts = {ledger_id: dict(entries) for ledger_id, entries in other.parts.items()}
        for mine, its in ((self.redeliveries, other.redeliveries), (self.deaths, other.deaths)):
            mine.arrays = {ledger_id: counts.copy() for ledger_id, counts in its.arrays.items()}
        self.dead.clear()

    def forget(self, ledger_id: int) -> None:
        """Forget the acknowledgements and counts of a deleted ledger."""
        self.bitmaps.pop(ledger_id, None)
        self.parts.pop(ledger_id, None)
        self.redeliveries.forget(ledger_id)
        self.deaths.forget(ledger_id)
        self.dead.forget(ledger_id)

    def acknowledged(self, ledger_id: int, first: int, end: int) -> NDArray[np.bool_]:
        """Return whether each of the entries first .. end - 1 of a ledger is acknowledged, (end - first,)."""
        settled = np.full(end - first, ledger_id < self.mark_delete[0])
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is not None and ledger_id >= self.mark_delete[0]:      # the bitmap may be shorter than the ledger
            bits = np.unpackbits(bitmap[first >> 3:(end + 7) >> 3], bitorder="little")[first & 7:][:end - first]
            settled[:len(bits)] = bits
        if ledger_id == self.mark_delete[0]:
            settled[:max(0, self.mark_delete[1] + 1 - first)] = True
        return settled

    def unacknowledged(self, ledger: ReadableLedger, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of each run of unacknowledged entries among a ledger's entries first .. end - 1."""
        if ledger.ledger_id < self.mark_delete[0]:
            return
        if ledger.ledger_id == self.mark_delete[0]:
            first = max(first, self.mark_delete[1] + 1)
        if first >= end:
            return
        if ledger.ledger_id not in self.bitmaps:
            yield first, end
            return
        settled = np.ones(end - first + 2, bool)       # True on either side, so that every run has two edges
        settled[1:-1] = self.acknowledged(ledger.ledger_id, first, end)
        edges = (np.flatnonzero(np.diff(settled)) + first).tolist()
        yield from zip(edges[0::2], edges[1::2], strict=True)

    def unacknowledged_batches(self, ledger: ReadableLedger, first: int, end: int) -> Iterator[Entries]:
        """Yield the unacknowledged entries among a ledger's entries first .. end - 1.

        Each run comes as a range; a stretch of the ledger with many runs comes as one array.
        """
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

    def all_unacknowledged(self, ledger: ReadableLedger, end: int) -> NDArray[np.int64]:
        """Return the unacknowledged entries (n,) of a ledger before `end`, ascending."""
        runs = list(self.unacknowledged(ledger, 0, end))
        return entries_of(np.array(runs)) if runs else np.zeros(0, np.int64)

    def unacknowledged_messages(self, ledger: Ledger, first: int, end: int) -> int:
        """Return the number of unacknowledged messages in a ledger's entries first .. end - 1."""
        count = sum(ledger.messages_in(start, stop) for start, stop in self.unacknowledged(ledger, first, end))
        for entry_id, bits in self.parts.get(ledger.ledger_id, {}).items():
            if first <= entry_id < end and not self.is_acknowledged(ledger.ledger_id, entry_id):
                count -= int(ledger.messages[entry_id]) - bits.bit_count()
        return count

    def backlog_messages(self, ledgers: list[Ledger]) -> int:
        """Return the number of unacknowledged messages in some ledgers."""
        return sum(self.unacknowledged_messages(ledger, 0, ledger.entries) for ledger in ledgers)

    def acknowledged_beyond(self, ledger: ReadableLedger) -> int:
        """Return the number of a ledger's entries that are acknowledged beyond the mark-delete position."""
        if ledger.ledger_id not in self.bitmaps or ledger.ledger_id < self.mark_delete[0]:
            return 0
        bitmap = self.bitmaps[ledger.ledger_id]
        first = self.mark_delete[1] + 1 if ledger.ledger_id == self.mark_delete[0] else 0
        return _bits_before(bitmap, ledger.entries) - _bits_before(bitmap, first)

    def backlog(self, ledgers: Iterable[StoredLedger]) -> int:
        """Return the number of unacknowledged entries in some ledgers."""
        count = 0
        for ledger in ledgers:
            if ledger.ledger_id > self.mark_delete[0]:
                count += ledger.entries - self.acknowledged_beyond(ledger)
            elif ledger.ledger_id == self.mark_delete[0]:
                count += ledger.last_entry - self.mark_delete[1] - self.acknowledged_beyond(ledger)
        return count

    def first_hole(self, ledger: ReadableLedger, entry_id: int) -> int:
        """Return a ledger's first unacknowledged entry from `entry_id` on, or ledger.entries if there is none.

        Only the bitmap counts here, not the mark-delete position.
        """
        bitmap = self.bitmaps.get(ledger.ledger_id)
        if bitmap is None or entry_id >= min(ledger.entries, len(bitmap) * 8):
            return min(entry_id, ledger.entries)
        partial = (
            ~bitmap[entry_id >> 3 :]
            if not entry_id & 7
            else np.concatenate(
                (
                    ~bitmap[entry_id >> 3 : (entry_id >> 3) + 1] & np.uint8(0xFF << (entry_id & 7) & 0xFF),
                    ~bitmap[(entry_id >> 3) + 1 :],
                )
            )
        )
        holes = partial != 0
        if not holes.any():
            return min(ledger.entries, len(bitmap) * 8)
        byte = int(holes.argmax())
        low = int(partial[byte])
        return min(ledger.entries, ((entry_id >> 3) + byte) * 8 + (low & -low).bit_length() - 1)

    def _bitmap(self, ledger: ReadableLedger, entry_id: int) -> NDArray[np.uint8]:
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
    """Return the number of bits set among the first `end` bits of a bitmap."""
    count = int(np.bitwise_count(bitmap[:end >> 3]).sum(dtype=np.int64))
    if end & 7 and end >> 3 < len(bitmap):
        count += (int(bitmap[end >> 3]) & ((1 << (end & 7)) - 1)).bit_count()
    return count


def entries_of(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the entry ids (m,) that runs (n, 2), each (first, end), contain."""
    firsts, ends = runs.T
    counts = ends - firsts
    return np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(int(counts.sum()))


def load_parts(cursors: Mapping[int, Cursor], rows: NDArray[np.void]) -> None:
    """Set the bits of partly acknowledged batches that PART_ROWs (n,) hold in cursors, by subscription id.

    Rows of other subscriptions are ignored.
    """
    numbers = rows["number"].astype(np.int64)
    for first, end in batch_acks.by_batch(rows, numbers):
        subscription_id, ledger_id, entry_id = (
            int(rows[name][first]) for name in ("subscription_id", "ledger_id", "entry_id"))
        if subscription_id in cursors:
            cursors[subscription_id].set_parts(ledger_id, entry_id, numbers[first:end], rows["word"][first:end])
