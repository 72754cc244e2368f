"""Which consumer of a Key_Shared subscription a key belongs to: the hash of the key lies in somebody's range.

Hashes are 0 .. 65535.  Each of these maps all of them, or some, to seats; `seats` looks many up at once.
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
from geminga.storage.ledger import Ledger
from geminga.storage.subscription import Consumer

HASHES = 1 << 16
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
    """Neighbouring regions: _ends[n] is where the one of _seats[n] ends; seat 0 is nobody's."""

    def __init__(self) -> None:
        self._set([], [])

    def _set(self, ends: list[int], seats: list[int]) -> None:
        self._ends, self._seats = np.array([*ends, HASHES], np.int64), np.array([*seats, 0], np.uint16)

    def seats(self, hashes: NDArray[np.int64]) -> NDArray[np.uint16]:
        """The seat (n,) to which each hash belongs."""
        return self._seats[np.searchsorted(self._ends, hashes, side="right")]

    def of(self, seat: int) -> list[Range]:
        firsts = [0, *self._ends[:-1].tolist()]
        return [Range(first, end - 1) for first, end, other in zip(firsts, self._ends.tolist(), self._seats.tolist(), strict=True)
                if other == seat and end > first]


class AutoSplit(_Bounds):
    """A newcomer gets the lower half of the largest region; what somebody leaves goes to the region on its right."""

    def add(self, consumer: Consumer) -> None:
        ends, seats = self._ends[:-1].tolist(), self._seats[:-1].tolist()
        if not ends:
            return self._set([HASHES], [consumer.seat])
        sizes = [end - first for first, end in zip([0, *ends], ends, strict=False)]
        largest = sizes.index(max(sizes))
        middle = ends[largest] - sizes[largest] + sizes[largest] // 2
        if sizes[largest] > 1:
            ends.insert(largest, middle)
            seats.insert(largest, consumer.seat)
        self._set(ends, seats)

    def remove(self, consumer: Consumer) -> None:
        ends, seats = self._ends[:-1].tolist(), self._seats[:-1].tolist()
        if consumer.seat not in seats:
            return
        at = seats.index(consumer.seat)
        del seats[at]
        if at == len(seats) and seats:      # the last has nothing on its right
            del ends[at - 1]
        else:
            del ends[at]
        self._set(ends, seats)


class Consistent(_Bounds):
    """Each consumer has points on a ring; a hash belongs to the next one.  Those that share a point take turns by their number."""

    def __init__(self) -> None:
        super().__init__()
        self._points: dict[int, list[tuple[str, int]]] = {}      # point -> [(name, seat)]

    def add(self, consumer: Consumer) -> None:
        for point in self._points_of(consumer):
            bisect.insort(self._points.setdefault(point, []), (consumer.name, consumer.seat))
        self._lay_out()

    def remove(self, consumer: Consumer) -> None:
        for point in self._points_of(consumer):
            self._points[point].remove((consumer.name, consumer.seat))
            if not self._points[point]:
                del self._points[point]
        self._lay_out()

    @staticmethod
    def _points_of(consumer: Consumer) -> list[int]:
        """Consumers of one name need points of their own, or one of them would get nothing: so the seat is part of what is hashed."""
        return sorted({mmh3.hash(f"{consumer.name}\0{consumer.seat}\0{n}", signed=False) % HASHES for n in range(_RING_POINTS)})

    def _lay_out(self) -> None:
        points = sorted(self._points)
        if not points:
            return self._set([], [])
        seats = [self._points[point][point % len(self._points[point])][1] for point in points]
        self._set([*(point + 1 for point in points), HASHES], [*seats, seats[0]])


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
        self._taken: list[tuple[Range, Consumer]] = []

    def conflict(self, consumer: Consumer) -> Consumer | None:
        """Who has part of what this consumer wants."""
        for taken, holder in self._taken:
            if any(first <= taken.last and taken.first <= last for first, last in consumer.ranges):
                return holder
        return None

    def add(self, consumer: Consumer) -> None:
        self._taken += [(Range(*wanted), consumer) for wanted in consumer.ranges]
        self._lay_out()

    def remove(self, consumer: Consumer) -> None:
        self._taken = [(taken, holder) for taken, holder in self._taken if holder is not consumer]
        self._lay_out()

    def _lay_out(self) -> None:
        ends, seats, at = [], [], 0
        for taken, holder in sorted(self._taken, key=lambda found: found[0]):
            if taken.first > at:
                ends.append(taken.first)
                seats.append(0)
            ends.append(taken.last + 1)
            seats.append(holder.seat)
            at = taken.last + 1
        self._set(ends, seats)
