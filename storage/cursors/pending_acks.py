"""What is out: which consumer of a subscription holds which entry that is not acknowledged.

One number per entry and ledger: the seat of its holder, NOBODY, or AGAIN when it was given back, or passed over, and is to be given out
again.  Two bytes each as long as something of the ledger is out, nothing at rest.

    entries of ledger 7      0 1 2 3 4 5 6
    seats                    0 0 1 1 A 2 0      0, 1: acknowledged; 2, 3: at seat 1; 4: given back; 5: at seat 2; 6: not read yet
"""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NOBODY, AGAIN = 0, 0xFFFF
SEATS_MAX = CONSUMERS_MAX = AGAIN - 1      # of one subscription
NEVER_MS = 1 << 62
_PIECE = 1 << 14              # entries looked through in one go
_RUN = 32                     # entries of a run that is worth to be given out by itself
Entries = range | NDArray[np.int64]     # ascending, of one ledger


@dataclass(slots=True)
class _Held:
    seats: NDArray[np.uint16]     # one per entry; grows
    out: int = 0                  # entries at a seat
    again: int = 0                # entries to be given out again
    lowest: int = 0               # none of those lies before


class Pending:
    """Seats are 1 .. SEATS_MAX."""

    def __init__(self) -> None:
        self._ledgers: dict[int, _Held] = {}
        self.again = 0            # entries, of all ledgers

    def give(self, ledger_id: int, entries: Entries, seat: int, *, is_again: bool) -> None:
        """The seat has them now; is_again: they were to be given out again."""
        held = self._held(ledger_id, entries[-1])
        held.seats[_index(entries)] = seat
        held.out += len(entries)
        if is_again:
            held.again -= len(entries)
            self.again -= len(entries)

    def withhold(self, ledger_id: int, entries: Entries) -> None:
        """They were passed over, and are to be given out when that is possible."""
        held = self._held(ledger_id, entries[-1])
        held.seats[_index(entries)] = AGAIN
        self._count_again(held, int(entries[0]), len(entries))

    def settle(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.uint16]:
        """They are acknowledged; returns the seats (n,) that had them."""
        held = self._ledgers.get(ledger_id)
        if held is None:
            return np.zeros(len(entries), np.uint16)
        seats = np.zeros(len(entries), np.uint16)
        known = entries[:np.searchsorted(entries, len(held.seats))]
        seats[:len(known)] = held.seats[known]
        held.seats[known] = NOBODY
        again = int(np.count_nonzero(seats == AGAIN))
        held.out -= int(np.count_nonzero(seats)) - again
        held.again -= again
        self.again -= again
        self._drop_if_idle(ledger_id, held)
        return seats

    def seat(self, ledger_id: int, entry_id: int) -> int:
        """Who has it, NOBODY or AGAIN."""
        held = self._ledgers.get(ledger_id)
        return int(held.seats[entry_id]) if held is not None and entry_id < len(held.seats) else NOBODY

    def seats(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Who has each of them (n,), NOBODY or AGAIN."""
        found, held = np.zeros(len(entries), np.uint16), self._ledgers.get(ledger_id)
        if held is not None:
            known = entries[:np.searchsorted(entries, len(held.seats))]
            found[:len(known)] = held.seats[known]
        return found

    def settle_up_to(self, ledger_id: int, entry_id: int) -> list[tuple[int, NDArray[np.int64], NDArray[np.uint16]]]:
        """Everything up to there is acknowledged; returns [(ledger id, entries, seats)] of what was out."""
        found = []
        for other in [other for other in self._ledgers if other <= ledger_id]:
            seats = self._ledgers[other].seats[:entry_id + 1] if other == ledger_id else self._ledgers[other].seats
            entries = np.flatnonzero(seats)
            if len(entries):
                found.append((other, entries, self.settle(other, entries)))
        return found

    def take_back(self, seat: int) -> list[tuple[int, NDArray[np.int64]]]:
        """All that the seat has is to be given out again; returns [(ledger id, entries)]."""
        found = []
        for ledger_id, held in self._ledgers.items():
            if held.out and len(entries := np.flatnonzero(held.seats == seat)):
                self._again(held, entries)
                found.append((ledger_id, entries))
        return found

    def take_back_some(self, seat: int, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of these entries that the seat has are to be given out again; returns them."""
        held = self._ledgers.get(ledger_id)
        if held is None:
            return entries[:0]
        known = entries[:np.searchsorted(entries, len(held.seats))]
        mine = known[held.seats[known] == seat]
        if len(mine):
            self._again(held, mine)
        return mine

    def to_give_again(self, limit: int | None = None) -> Iterator[tuple[int, Entries]]:
        """(ledger id, entries) that are to be given out again, in order, all or at most so many; runs apart where they are long."""
        limit = self.again if limit is None else limit
        for ledger_id in sorted(self._ledgers) if min(limit, self.again) > 0 else ():
            held = self._ledgers[ledger_id]
            if not held.again:
                continue
            at, left, is_first = held.lowest, min(limit, held.again), True
            limit -= left
            while left > 0 and at < len(held.seats):        # in pieces: there may be a million, and few are taken
                entries = np.flatnonzero(held.seats[at:at + _PIECE] == AGAIN)[:left] + at
                if len(entries) and is_first:
                    held.lowest, is_first = int(entries[0]), False
                at, left = at + _PIECE, left - len(entries)
                for run in _runs(entries) if len(entries) else ():
                    yield ledger_id, run
            if limit <= 0:
                return

    def out(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint16]]]:
        """(ledger id, entries, their seats) of all that is at a seat."""
        for ledger_id, held in self._ledgers.items():
            entries = np.flatnonzero((held.seats != NOBODY) & (held.seats != AGAIN))
            if len(entries):
                yield ledger_id, entries, held.seats[entries]

    def knows(self, ledger_id: int) -> bool:
        """Whether anything of the ledger is out, or to be given out again."""
        return ledger_id in self._ledgers

    def _held(self, ledger_id: int, last: int) -> _Held:
        held = self._ledgers.get(ledger_id)
        if held is None:
            held = self._ledgers[ledger_id] = _Held(np.zeros(max(1024, last + 1), np.uint16))
        elif last >= len(held.seats):
            grown = np.zeros(2 * (int(last) + 1), np.uint16)
            grown[:len(held.seats)] = held.seats
            held.seats = grown
        return held

    def _again(self, held: _Held, entries: NDArray[np.int64]) -> None:
        held.seats[entries] = AGAIN
        held.out -= len(entries)
        self._count_again(held, int(entries[0]), len(entries))

    def _count_again(self, held: _Held, first: int, count: int) -> None:
        held.lowest = min(held.lowest, first) if held.again else first
        held.again += count
        self.again += count

    def _drop_if_idle(self, ledger_id: int, held: _Held) -> None:
        if not held.out and not held.again:
            del self._ledgers[ledger_id]


def _runs(entries: NDArray[np.int64]) -> list[Entries]:
    """The same entries as ranges, if those are few for so many."""
    edges = np.flatnonzero(np.diff(entries) != 1) + 1
    if (len(edges) + 1) * _RUN > len(entries) and len(edges):
        return [entries]
    firsts = entries[np.append(0, edges)].tolist()
    return [range(first, last + 1) for first, last in zip(firsts, entries[np.append(edges, len(entries)) - 1].tolist(), strict=True)]


def _index(entries: Entries) -> slice | NDArray[np.int64]:
    return slice(entries.start, entries.stop) if isinstance(entries, range) else entries
