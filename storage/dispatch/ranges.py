"""Which consumer of a Key_Shared subscription a key belongs to: the hash of the key lies in somebody's range.

Hashes are 0 .. 65535.  Each of these maps all of them, or some, to slots; `slots` looks many up at once.
"""
import bisect
from itertools import pairwise
from typing import NamedTuple

import mmh3
import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.sends import HAS_KEY
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.subscription import Consumer

HASHES = 1 << 16
_NOTHING = np.zeros(0, np.int64)
_RING_POINTS = 100      # of each consumer
_SPREAD = 0x9E3779B1    # odd: keyless entries in a row get hashes far apart


def hashes_of(ledger: Ledger, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the entries' keys, 1 .. 65535 as Apache Pulsar has them; entries without a key are spread by their place."""
    index = ledger.index
    hashes = index["key_hash"][entries].astype(np.int64)
    keyless = (index["flags"][entries] & HAS_KEY) == 0
    hashes[keyless] = entries[keyless] * _SPREAD >> 8
    hashes &= HASHES - 1
    hashes[hashes == 0] = 1
    return hashes


class Range(NamedTuple):
    first: int
    last: int


class _Bounds:
    """Neighbouring regions: _ends[n] is where the one of _slots[n] ends; slot 0 is nobody's.

    Whoever comes or goes changes its own regions; the others are copied, as arrays.
    """

    def __init__(self) -> None:
        self._set(_NOTHING, _NOTHING)

    def _set(self, ends: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        self._ends, self._slots = np.append(ends, HASHES), np.append(slots, 0).astype(np.uint16)

    def _lay_out(self) -> None:
        """The regions are to be looked at."""

    def slots(self, hashes: NDArray[np.int64]) -> NDArray[np.uint16]:
        """The slot (n,) to which each hash belongs."""
        self._lay_out()
        return self._slots[np.searchsorted(self._ends, hashes, side="right")]

    def of(self, slot: int) -> list[Range]:
        return self.all().get(slot, [])

    def all(self) -> dict[int, list[Range]]:
        """Everybody's, by slot."""
        self._lay_out()
        found: dict[int, list[Range]] = {}
        firsts = [0, *self._ends[:-1].tolist()]
        for first, end, slot in zip(firsts, self._ends.tolist(), self._slots.tolist(), strict=True):
            if end > first:
                found.setdefault(slot, []).append(Range(first, end - 1))
        return found


class AutoSplit(_Bounds):
    """A newcomer gets the lower half of the largest region; what somebody leaves goes to the region on its right."""

    def add(self, consumer: Consumer) -> None:
        ends, slots = self._ends[:-1], self._slots[:-1]
        if not len(ends):
            return self._set(np.array([HASHES]), np.array([consumer.slot]))
        sizes = np.diff(ends, prepend=0)
        largest = int(sizes.argmax())
        size = int(sizes[largest])
        if size > 1:
            middle = ends[largest] - size + size // 2
            self._set(np.insert(ends, largest, middle), np.insert(slots, largest, consumer.slot))

    def remove(self, consumer: Consumer) -> None:
        ends, slots = self._ends[:-1], self._slots[:-1]
        at = np.flatnonzero(slots == consumer.slot)
        if len(at):      # the last has nothing on its right
            is_last = at[0] == len(slots) - 1 and len(slots) > 1
            self._set(np.delete(ends, at[0] - 1 if is_last else at[0]), np.delete(slots, at[0]))


class Consistent(_Bounds):
    """Each consumer has points on a ring; a hash belongs to the next one.  Those that share a point take turns by their number."""

    def __init__(self) -> None:
        super().__init__()
        self._at: dict[int, list[tuple[str, int]]] = {}      # point -> [(name, slot)]
        self._points = self._holders = _NOTHING              # those of the points that have any, ascending, and whose they are
        self._changed: set[int] = set()                      # points to which somebody came, or that somebody left, since

    def add(self, consumer: Consumer) -> None:
        points, whose = self._points_of(consumer), (consumer.name, consumer.slot)
        for point in points:
            bisect.insort(self._at.setdefault(point, []), whose)
        self._changed.update(points)

    def remove(self, consumer: Consumer) -> None:
        points = self._points_of(consumer)
        for point in points:
            self._at[point].remove((consumer.name, consumer.slot))
            if not self._at[point]:
                del self._at[point]
        self._changed.update(points)

    @staticmethod
    def _points_of(consumer: Consumer) -> list[int]:
        """Consumers of one name need points of their own, or one of them would get nothing: so the slot is part of what is hashed."""
        return list({mmh3.hash(f"{consumer.name}\0{consumer.slot}\0{n}", signed=False) % HASHES for n in range(_RING_POINTS)})

    def _lay_out(self) -> None:
        if not self._changed:
            return
        changed, self._changed = sorted(self._changed), set()
        points, holders = np.array(changed, np.int64), np.array([self._holder(point) for point in changed], np.int64)
        at = np.searchsorted(self._points, points)
        is_known = self._points[np.minimum(at, len(self._points) - 1)] == points if len(self._points) else np.zeros(len(points), bool)
        self._holders[at[is_known]] = holders[is_known]
        self._points, self._holders = (np.insert(column, at[~is_known], some[~is_known])
                                       for column, some in ((self._points, points), (self._holders, holders)))
        if not holders.all():
            is_there = self._holders != 0
            self._points, self._holders = self._points[is_there], self._holders[is_there]
        if not len(self._points):
            return self._set(_NOTHING, _NOTHING)
        self._set(np.append(self._points + 1, HASHES), np.append(self._holders, self._holders[0]))

    def _holder(self, point: int) -> int:
        there = self._at.get(point)
        return there[point % len(there)][1] if there else 0


def check(wanted: list[tuple[int, int]]) -> None:
    """Of a consumer that brings its ranges: raises Refusal when these are none, or overlap."""
    if not wanted:
        raise Refusal(api.ConsumerAssignError, "Ranges for KeyShared policy must not be empty.")
    for first, last in wanted:
        if not 0 <= first <= last < HASHES:
            raise Refusal(api.ConsumerAssignError, f"Range [{first}, {last}] does not lie within [0, {HASHES - 1}]")
    for (_, last), (first, _) in pairwise(sorted(wanted)):
        if first <= last:
            raise Refusal(api.ConsumerAssignError, f"Ranges with overlap between [.., {last}] and [{first}, ..]")


class Sticky(_Bounds):
    """Consumers bring their ranges; what nobody has waits."""

    def __init__(self) -> None:
        super().__init__()
        self._consumers: dict[int, Consumer] = {}                     # by slot
        self._firsts = self._lasts = self._takers = _NOTHING          # of the ranges, ascending, and the slots that have them

    def conflict(self, consumer: Consumer) -> Consumer | None:
        """Who has part of what this consumer wants."""
        if not len(self._firsts):
            return None
        firsts, lasts = np.array(consumer.ranges, np.int64).T
        at = np.searchsorted(self._lasts, firsts)      # the first range that ends there or behind
        taken = (at < len(self._firsts)) & (self._firsts[np.minimum(at, len(self._firsts) - 1)] <= lasts)
        return self._consumers[int(self._takers[at[taken.argmax()]])] if taken.any() else None

    def add(self, consumer: Consumer) -> None:
        firsts, lasts = np.array(sorted(consumer.ranges), np.int64).T
        at = np.searchsorted(self._firsts, firsts)
        self._consumers[consumer.slot] = consumer
        self._firsts, self._lasts = np.insert(self._firsts, at, firsts), np.insert(self._lasts, at, lasts)
        self._takers = np.insert(self._takers, at, consumer.slot)
        self._put()

    def remove(self, consumer: Consumer) -> None:
        if self._consumers.pop(consumer.slot, None) is not None:
            stays = self._takers != consumer.slot
            self._firsts, self._lasts, self._takers = self._firsts[stays], self._lasts[stays], self._takers[stays]
            self._put()

    def _put(self) -> None:
        """A region for each range, and one of nobody's before it, which may be empty."""
        ends = np.stack((self._firsts, self._lasts + 1), 1).ravel()
        slots = np.stack((np.zeros(len(self._takers), np.int64), self._takers), 1).ravel()
        self._set(ends, slots)
