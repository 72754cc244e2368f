"""Pending entries: which consumer of a subscription has which entry that is not acknowledged.

Each entry has a slot: the number of the consumer that has the entry, NOBODY, TO_REDELIVER if the entry was given back
or passed over, or WAITING if only a consumer without permits may get it.  A slot takes two bytes while any entry of its
ledger is pending; nothing is kept for other ledgers, or on disk.

    entries of ledger 7      0 1 2 3 4 5 6
    slots                    0 0 1 1 R 2 0      0, 1: acknowledged; 2, 3: consumer 1; 4: given back;
                                                5: consumer 2; 6: not read yet
"""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOBODY, WAITING, TO_REDELIVER = 0, 0xFFFE, 0xFFFF
SLOTS_MAX = CONSUMERS_MAX = WAITING - 1      # of one subscription
NEVER_MS = 1 << 62
_PIECE = 1 << 14              # entries searched at once
_RUN = 32                     # entries of a run that is worth a range of its own
Entries = range | NDArray[np.int64]     # ascending, of one ledger


@dataclass(slots=True)
class _Held:
    """The pending entries of one ledger."""

    slots: NDArray[np.uint16]     # (entries,), grows
    out: int = 0                  # entries that consumers have
    to_redeliver: int = 0
    waiting: int = 0
    lowest: int = 0               # no entry to be redelivered lies before this one


class PendingAcks:
    """Pending entries of one subscription, each with the slot of its consumer.

    Consumers have numbers 1 .. SLOTS_MAX.
    """

    def __init__(self) -> None:
        self._ledgers: dict[int, _Held] = {}
        self.to_redeliver = 0            # entries to be redelivered, of all ledgers

    def __repr__(self) -> str:
        out = sum(held.out for held in self._ledgers.values())
        return f"<PendingAcks ledgers={sorted(self._ledgers)} out={out} to_redeliver={self.to_redeliver}>"

    def check(self) -> None:
        """Assert that the counts of pending entries and of entries to redeliver agree with the slots."""
        assert self.to_redeliver == sum(held.to_redeliver for held in self._ledgers.values()), self
        for ledger_id, held in self._ledgers.items():
            back = np.flatnonzero(held.slots == TO_REDELIVER)
            assert held.to_redeliver == len(back), (self, ledger_id)
            assert held.waiting == np.count_nonzero(held.slots == WAITING), (self, ledger_id)
            assert held.out == np.count_nonzero(held.slots) - len(back) - held.waiting, (self, ledger_id)
            assert held.out or held.to_redeliver or held.waiting, (self, ledger_id)
            assert not len(back) or held.lowest <= back[0], (self, ledger_id)

    def adopt(self, other: "PendingAcks") -> None:
        """Take over the pending entries of another object, which is not used any more."""
        self._ledgers, self.to_redeliver = other._ledgers, other.to_redeliver

    def give(self, ledger_id: int, entries: Entries, slot: int, *, is_again: bool) -> None:
        """Record that entries are delivered to a consumer.

        slot: the consumer's number.  is_again: the entries were waiting for redelivery.
        """
        held = self._held(ledger_id, entries[-1])
        held.slots[_index(entries)] = slot
        held.out += len(entries)
        if is_again:
            held.to_redeliver -= len(entries)
            self.to_redeliver -= len(entries)
            assert held.to_redeliver >= 0, (self, ledger_id)

    def withhold(self, ledger_id: int, entries: Entries) -> None:
        """Mark entries that no consumer can take now, and that the dispatcher passes over, to be redelivered."""
        held = self._held(ledger_id, entries[-1])
        held.slots[_index(entries)] = TO_REDELIVER
        self._count_to_redeliver(ledger_id, held, entries)

    def set_aside(self, ledger_id: int, entries: Entries, *, is_again: bool) -> None:
        """Mark entries that wait for one consumer; is_again: they were waiting for redelivery."""
        self.give(ledger_id, entries, WAITING, is_again=is_again)
        held = self._ledgers[ledger_id]
        held.out -= len(entries)
        held.waiting += len(entries)

    def recall(self, ledger_id: int, entries: NDArray[np.int64]) -> None:
        """Mark those of the entries (n,), ascending, that wait for one consumer, to be redelivered."""
        held = self._ledgers.get(ledger_id)
        entries = entries[self.slots(ledger_id, entries) == WAITING]
        if held is not None and len(entries):
            held.slots[entries] = TO_REDELIVER
            held.waiting -= len(entries)
            self._count_to_redeliver(ledger_id, held, entries)

    def settle(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Forget acknowledged entries (n,) of a ledger; return the slots (n,) that they had."""
        held = self._ledgers.get(ledger_id)
        if held is None:
            return np.zeros(len(entries), np.uint16)
        slots = self.slots(ledger_id, entries)
        held.slots[_known(held, entries)] = NOBODY
        again = int(np.count_nonzero(slots == TO_REDELIVER)) if held.to_redeliver else 0
        waiting = int(np.count_nonzero(slots == WAITING)) if held.waiting else 0
        held.out -= int(np.count_nonzero(slots)) - again - waiting
        held.to_redeliver -= again
        self.to_redeliver -= again
        held.waiting -= waiting
        assert held.out >= 0 and held.to_redeliver >= 0 and held.waiting >= 0, (self, ledger_id)
        self._drop_if_idle(ledger_id, held)
        return slots

    def slot(self, ledger_id: int, entry_id: int) -> int:
        """Return the slot of an entry: its consumer's number, NOBODY, WAITING or TO_REDELIVER."""
        held = self._ledgers.get(ledger_id)
        return int(held.slots[entry_id]) if held is not None and entry_id < len(held.slots) else NOBODY

    def slots(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Return the slots (n,) of a ledger's entries (n,), ascending."""
        held = self._ledgers.get(ledger_id)
        if held is None:
            return np.zeros(len(entries), np.uint16)
        slots = held.slots[_known(held, entries)]
        return slots if len(slots) == len(entries) else np.pad(slots, (0, len(entries) - len(slots)))

    def settle_up_to(self, ledger_id: int, entry_id: int) -> list[tuple[int, NDArray[np.int64], NDArray[np.uint16]]]:
        """Forget all entries up to a position, which are acknowledged.

        Returns [(ledger id, entries, slots)] of the entries that had a slot.
        """
        settled = []
        for other in [other for other in self._ledgers if other <= ledger_id]:
            slots = self._ledgers[other].slots[:entry_id + 1] if other == ledger_id else self._ledgers[other].slots
            entries = np.flatnonzero(slots)
            if len(entries):
                settled.append((other, entries, self.settle(other, entries)))
        return settled

    def take_back(self, slot: int) -> list[tuple[int, NDArray[np.int64]]]:
        """Mark all entries of a consumer to be redelivered; return [(ledger id, entries)]."""
        taken = []
        for ledger_id, held in self._ledgers.items():
            if held.out and len(entries := np.flatnonzero(held.slots == slot)):
                self._return(ledger_id, held, entries)
                taken.append((ledger_id, entries))
        return taken

    def take_back_some(self, slot: int, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Mark the entries that a consumer has, among `entries` of a ledger, to be redelivered; return them."""
        held = self._ledgers.get(ledger_id)
        if held is None:
            return entries[:0]
        known = _known(held, entries)
        mine: NDArray[np.int64] = known[held.slots[known] == slot]
        if len(mine):
            self._return(ledger_id, held, mine)
        return mine

    def entries_to_redeliver(self, limit: int | None = None) -> Iterator[tuple[int, Entries]]:
        """Yield (ledger id, entries) to be redelivered, in order, at most `limit` entries.

        Long runs come as ranges.
        """
        limit = self.to_redeliver if limit is None else limit
        for ledger_id in sorted(self._ledgers) if min(limit, self.to_redeliver) > 0 else ():
            held = self._ledgers[ledger_id]
            if not held.to_redeliver:
                continue
            at, left, is_first = held.lowest, min(limit, held.to_redeliver), True
            limit -= left
            # piece by piece: a million entries may wait, and callers take few
            while left > 0 and at < len(held.slots):
                entries = np.flatnonzero(held.slots[at:at + _PIECE] == TO_REDELIVER)[:left] + at
                if len(entries) and is_first:
                    held.lowest, is_first = int(entries[0]), False
                at, left = at + _PIECE, left - len(entries)
                for run in _runs(entries) if len(entries) else ():
                    yield ledger_id, run
            if limit <= 0:
                return

    def out(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint16]]]:
        """Yield (ledger id, entries, slots) of all entries that consumers have."""
        for ledger_id, held in self._ledgers.items():
            entries = np.flatnonzero((held.slots != NOBODY) & (held.slots < WAITING))
            if len(entries):
                yield ledger_id, entries, held.slots[entries]

    def knows(self, ledger_id: int) -> bool:
        """Whether any entry of the ledger has a slot."""
        return ledger_id in self._ledgers

    def _held(self, ledger_id: int, last: int) -> _Held:
        held = self._ledgers.get(ledger_id)
        if held is None:
            held = self._ledgers[ledger_id] = _Held(np.zeros(max(1024, last + 1), np.uint16))
        elif last >= len(held.slots):
            grown = np.zeros(2 * (int(last) + 1), np.uint16)
            grown[:len(held.slots)] = held.slots
            held.slots = grown
        return held

    def _return(self, ledger_id: int, held: _Held, entries: NDArray[np.int64]) -> None:
        held.slots[entries] = TO_REDELIVER
        held.out -= len(entries)
        assert held.out >= 0, self
        self._count_to_redeliver(ledger_id, held, entries)

    def _count_to_redeliver(self, ledger_id: int, held: _Held, entries: Entries) -> None:
        first, count = int(entries[0]), len(entries)
        held.lowest = min(held.lowest, first) if held.to_redeliver else first
        held.to_redeliver += count
        self.to_redeliver += count

    def _drop_if_idle(self, ledger_id: int, held: _Held) -> None:
        if not (held.out or held.to_redeliver or held.waiting):
            del self._ledgers[ledger_id]


def _known(held: _Held, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of the entries (n,), ascending, that have a place among the slots."""
    if not len(entries) or entries[-1] < len(held.slots):      # nearly always
        return entries
    return entries[:np.searchsorted(entries, len(held.slots))]


def _runs(entries: NDArray[np.int64]) -> list[Entries]:
    """Return entries as one range for each run, or as one array if runs are short."""
    edges = np.flatnonzero(np.diff(entries) != 1) + 1
    if (len(edges) + 1) * _RUN > len(entries) and len(edges):
        return [entries]
    firsts = entries[np.append(0, edges)].tolist()
    return [
        range(first, last + 1)
        for first, last in zip(firsts, entries[np.append(edges, len(entries)) - 1].tolist(), strict=True)
    ]


def _index(entries: Entries) -> slice | NDArray[np.int64]:
    return slice(entries.start, entries.stop) if isinstance(entries, range) else entries
