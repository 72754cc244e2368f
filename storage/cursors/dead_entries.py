"""Dead entries of a subscription: no consumer gets them any more, and they are to go to the dead letter topic.

A byte for each entry, up to the last dead one of its ledger, says why the entry is dead.  Nothing of it is on disk:
counts of deliveries are, and an expired entry is found again by its age.  An entry stays here until it is acknowledged.
"""
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import Entries

DELIVERIES, EXPIRED, TAKEN_BACK = 1, 2, 3      # the last: a redrive is being undone
REASONS = {DELIVERIES: "deliveries", EXPIRED: "expired", TAKEN_BACK: "taken back"}
REASON_SHIFT = 24         # above the count in the field for redeliveries, when a mover gets an entry
_TAKEN = 0x80             # beside the reason: whoever moves the entries has this one
_PIECE = 1 << 16          # entries searched at once
LeftOf = Callable[[int, NDArray[np.int64]], NDArray[np.int64]]


class DeadEntries:
    """Dead entries of one subscription, by ledger."""

    def __init__(self) -> None:
        self._states: dict[int, NDArray[np.uint8]] = {}      # ledger id -> a byte for each entry
        self._lowest: dict[int, int] = {}                    # ledger id -> no entry before this one can be taken

    def __repr__(self) -> str:
        return f"<DeadEntries {({ledger_id: np.count_nonzero(each) for ledger_id, each in self._states.items()})}>"

    def __bool__(self) -> bool:
        return bool(self._states)

    def add(self, ledger_id: int, entries: NDArray[np.int64], reason: int) -> NDArray[np.int64]:
        """Add entries (n,) of a ledger, ascending; return those that were not dead before."""
        if not len(entries):
            return entries
        states, end = self._states.get(ledger_id), int(entries[-1]) + 1
        if states is None or len(states) < end:
            grown = np.zeros(max(64, end + (end >> 1)), np.uint8)
            if states is not None:
                grown[:len(states)] = states
            states = self._states[ledger_id] = grown
        fresh: NDArray[np.int64] = entries[states[entries] == 0]
        states[fresh] = reason
        if len(fresh):
            self._lowest[ledger_id] = min(int(fresh[0]), self._lowest.get(ledger_id, int(fresh[0])))
        return fresh

    def among(self, ledger_id: int, entries: Entries) -> NDArray[np.int64]:
        """Return the dead entries among these of a ledger, ascending."""
        states, numbers = self._states.get(ledger_id), np.asarray(entries, np.int64)
        if states is None:
            return numbers[:0]
        known = numbers[:np.searchsorted(numbers, len(states))]
        dead: NDArray[np.int64] = known[states[known] != 0]
        return dead

    def alive(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the entries (n,) of a ledger, ascending, that are not dead."""
        states = self._states.get(ledger_id)
        if states is None:
            return entries
        known = int(np.searchsorted(entries, len(states)))
        is_alive = np.ones(len(entries), bool)
        is_alive[:known] = states[entries[:known]] == 0
        left: NDArray[np.int64] = entries[is_alive]
        return left

    def all(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield (ledger id, entries (n,)) of all dead entries, ascending; acknowledged ones may be among them."""
        for ledger_id in sorted(self._states):
            if len(entries := np.flatnonzero(self._states[ledger_id])):
                yield ledger_id, entries

    def take(self, most: int, left_of: LeftOf) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint8]]]:
        """Yield (ledger id, entries (n,), their reasons (n,)), at most `most` entries, which count as taken then.

        left_of: returns those entries (n,) of a ledger that are not acknowledged.  The others are dropped.
        """
        for ledger_id in sorted(self._lowest):
            states, at = self._states[ledger_id], self._lowest[ledger_id]
            while most > 0 and at < len(states):
                piece = states[at:at + _PIECE]
                entries = np.flatnonzero((piece != 0) & (piece < _TAKEN))[:most] + at
                at = min(at + _PIECE, len(states)) if len(entries) < most else int(entries[-1]) + 1
                if not len(entries):
                    continue
                left = left_of(ledger_id, entries)
                reasons = states[left].copy()
                states[entries] = 0
                states[left] = reasons | _TAKEN
                most -= len(left)
                if len(left):
                    yield ledger_id, left, reasons
            self._lowest[ledger_id] = at
            if most <= 0:
                return
        self._lowest.clear()

    def give_back(self, left_of: LeftOf) -> None:
        """Let all taken entries be taken once more, and drop those that are acknowledged.  left_of: as of `take`."""
        for ledger_id, states in list(self._states.items()):
            dead = np.flatnonzero(states)
            left = left_of(ledger_id, dead) if len(dead) else dead
            if not len(left):
                self.forget(ledger_id)
                continue
            reasons = states[left] & np.uint8(_TAKEN - 1)
            states[:] = 0
            states[left], self._lowest[ledger_id] = reasons, int(left[0])

    def drop_waiting(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Drop all entries that are not taken; return them as [(ledger id, entries (n,))]."""
        dropped = []
        for ledger_id, states in list(self._states.items()):
            entries = np.flatnonzero((states != 0) & (states < _TAKEN))
            states[entries] = 0
            if len(entries):
                dropped.append((ledger_id, entries))
            if not states.any():
                self.forget(ledger_id)
        self._lowest.clear()
        return dropped

    def drop(self, reason: int) -> list[tuple[int, NDArray[np.int64]]]:
        """Drop the entries that are dead for a reason and not taken; return them as [(ledger id, entries (n,))]."""
        dropped = []
        for ledger_id, states in list(self._states.items()):
            entries = np.flatnonzero(states == reason)
            states[entries] = 0
            if len(entries):
                dropped.append((ledger_id, entries))
            if not states.any():
                self.forget(ledger_id)
        return dropped

    def forget(self, ledger_id: int) -> None:
        """Drop the entries of a deleted ledger."""
        self._states.pop(ledger_id, None)
        self._lowest.pop(ledger_id, None)

    def clear(self) -> None:
        self._states.clear()
        self._lowest.clear()
