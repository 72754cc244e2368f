"""Pending entries that are found by their priorities: those to be redelivered of the highest one, in order.

Beside the slots of all entries, which PendingAcks has, an entry costs a byte for its priority, because the rows of an
index lie too far apart to be searched again and again.  A ledger costs three numbers for each priority: the first and
the last entry among which those of the priority lie that are to be redelivered, and how many these are.  So a priority
that nothing waits for costs nothing, and one for which little waits costs a search between two entries.
"""
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.proto.job_properties import PRIORITIES
from geminga.storage.cursors.pending_acks import TO_REDELIVER, Entries, PendingAcks, _Held

_PIECE = 1 << 14              # entries searched at once
_NONE = np.iinfo(np.int64).max
_NOTHING = np.zeros(PRIORITIES, np.int64)


@dataclass(slots=True)
class _Levels:
    """What is known of a ledger's entries that are to be redelivered, by priority."""

    priorities: NDArray[np.uint8]     # (entries,), grows; of entries that are to be redelivered
    first: NDArray[np.int64]          # (PRIORITIES,): none of the priority lies before this entry, ...
    last: NDArray[np.int64]           # ... nor behind this one
    counts: NDArray[np.int64]         # (PRIORITIES,)


class LevelledAcks(PendingAcks):
    """Pending entries of one subscription, of which those to be redelivered are found by priority."""

    def __init__(self, priorities: Callable[[int, NDArray[np.int64]], NDArray[np.uint8]]):
        """priorities: (ledger id, entries (n,)) -> their priorities (n,); asked when they are to be redelivered."""
        super().__init__()
        self._priorities = priorities
        self._levels: dict[int, _Levels] = {}      # by ledger id

    def check(self) -> None:
        super().check()
        assert self._levels.keys() <= self._ledgers.keys(), self
        for ledger_id, held in self._ledgers.items():
            entries = np.flatnonzero(held.slots == TO_REDELIVER)
            levels = self._levels.get(ledger_id)
            assert levels is not None or not len(entries), (self, ledger_id)
            if levels is None:
                continue
            priorities = self._priorities(ledger_id, entries)
            assert (levels.priorities[entries] == priorities).all(), (self, ledger_id)
            assert (levels.counts == np.bincount(priorities, minlength=PRIORITIES)).all(), (self, ledger_id, levels)
            assert (entries >= levels.first[priorities]).all(), (self, ledger_id, levels)
            assert (entries <= levels.last[priorities]).all(), (self, ledger_id, levels)

    @property
    def counts(self) -> list[int]:
        """Entries to be redelivered of each priority."""
        counts: list[int] = sum((levels.counts for levels in self._levels.values()), _NOTHING).tolist()
        return counts

    def adopt(self, other: PendingAcks) -> None:
        super().adopt(other)
        self._levels = {}
        for ledger_id, entries in self.entries_to_redeliver():
            self._note(ledger_id, self._ledgers[ledger_id], entries)

    def first(self, limit: int) -> tuple[int, NDArray[np.int64]] | None:
        """Return (ledger id, entries (n,)), the first ones of the highest priority that are to be redelivered.

        None: there are none.  limit: how many at most, more than 0.  They are of one ledger, so those of the next
        ledger may have the same priority.
        """
        waiting = np.flatnonzero(self.counts)
        if not len(waiting):
            return None
        priority = int(waiting[-1])
        ledger_id = min(ledger_id for ledger_id, levels in self._levels.items() if levels.counts[priority])
        found = list(self._search(self._ledgers[ledger_id], self._levels[ledger_id], priority, limit))
        return ledger_id, found[0] if len(found) == 1 else np.concatenate(found)

    def _search(self, held: _Held, levels: _Levels, priority: int, limit: int) -> Iterator[NDArray[np.int64]]:
        """Yield entries of the priority, at most `limit`, of a ledger that has some."""
        at, end = int(levels.first[priority]), int(levels.last[priority]) + 1
        left, is_first = min(limit, int(levels.counts[priority])), True
        while left > 0:
            assert at < end, (self, priority, levels)
            stop = min(at + _PIECE, end)
            is_next = (levels.priorities[at:stop] == priority) & (held.slots[at:stop] == TO_REDELIVER)
            entries = np.flatnonzero(is_next)[:left] + at
            if len(entries):
                if is_first:
                    levels.first[priority], is_first = entries[0], False
                yield entries
            at, left = stop, left - len(entries)

    def give(self, ledger_id: int, entries: Entries, slot: int, *, is_again: bool) -> None:
        super().give(ledger_id, entries, slot, is_again=is_again)
        if is_again:
            self._forget(ledger_id, entries)

    def settle(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.uint16]:
        slots = super().settle(ledger_id, entries)
        if ledger_id not in self._ledgers:
            self._levels.pop(ledger_id, None)
        elif ledger_id in self._levels and len(waited := entries[slots == TO_REDELIVER]):
            self._forget(ledger_id, waited)
        return slots

    def _count_to_redeliver(self, ledger_id: int, held: _Held, entries: Entries) -> None:
        super()._count_to_redeliver(ledger_id, held, entries)
        self._note(ledger_id, held, entries)

    def _note(self, ledger_id: int, held: _Held, entries: Entries) -> None:
        """Note entries that are to be redelivered from now on."""
        levels = self._levels.get(ledger_id)
        ids = np.arange(entries.start, entries.stop) if isinstance(entries, range) else entries
        if levels is None:
            levels = self._levels[ledger_id] = _Levels(
                np.zeros(len(held.slots), np.uint8), np.full(PRIORITIES, _NONE), np.full(PRIORITIES, -1),
                np.zeros(PRIORITIES, np.int64))
        elif len(levels.priorities) < len(held.slots):
            grown = np.zeros(len(held.slots), np.uint8)
            grown[:len(levels.priorities)] = levels.priorities
            levels.priorities = grown
        is_idle = levels.counts == 0
        levels.first[is_idle], levels.last[is_idle] = _NONE, -1
        priorities = levels.priorities[ids] = self._priorities(ledger_id, ids)
        levels.counts += np.bincount(priorities, minlength=PRIORITIES)
        first, last = np.full(PRIORITIES, _NONE), np.full(PRIORITIES, -1)
        first[priorities[::-1]], last[priorities] = ids[::-1], ids      # what is assigned last counts
        np.minimum(levels.first, first, out=levels.first)
        np.maximum(levels.last, last, out=levels.last)

    def _forget(self, ledger_id: int, entries: Entries) -> None:
        """Note entries that are to be redelivered no more."""
        levels = self._levels[ledger_id]
        priorities = levels.priorities[entries.start:entries.stop] if isinstance(entries, range) \
            else levels.priorities[entries]
        levels.counts -= np.bincount(priorities, minlength=PRIORITIES)
        assert (levels.counts >= 0).all(), (self, ledger_id, levels)
