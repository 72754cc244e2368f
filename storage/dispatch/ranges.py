"""Hash ranges of Key_Shared subscriptions: the hash of a key lies in a range, and the range belongs to a consumer.

Hashes are 0 .. 65535.  There are four ways to assign them: AutoSplit, Consistent, Sticky, and Buckets for segments of
scalable topics.  Each keeps the assignment as arrays, so that the slots of many hashes are looked up at once.
"""
import bisect
from itertools import pairwise
from typing import NamedTuple

import mmh3
import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.layouts import BUCKETS_MAX
from geminga.proto.sends import HAS_KEY, HASH_BITS, IS_CHUNK, STAMPED
from geminga.storage.ledgers.readable import ReadableLedger
from geminga.storage.topics.subscription import Consumer

HASHES = 1 << HASH_BITS
_NOTHING = np.zeros(0, np.int64)
_RING_POINTS = 100      # of each consumer
_SPREAD = 0x9E3779B1    # odd: consecutive entries without a key get hashes far apart


def hashes_of(ledger: ReadableLedger, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hashes (n,) of the entries' keys, 1 .. 65535 as in Apache Pulsar; entry ids spread those without a key.

    Chunks without a key have a hash of producer and sequence id, which all chunks of a message share.  Compacted
    ledgers do not keep hashes: consumers with ranges of hashes cannot read them.
    """
    hashes: NDArray[np.int64] = ledger.column("key_hash")[entries].astype(np.int64)
    keyless = (ledger.column("flags")[entries] & (HAS_KEY | IS_CHUNK)) == 0
    hashes[keyless] = entries[keyless] * _SPREAD >> 8
    hashes &= HASHES - 1
    hashes[hashes == 0] = 1
    return hashes


class Range(NamedTuple):
    """A range of key hashes, from `first` to `last`, both included."""

    first: int
    last: int


class _Regions:
    """All hashes as neighbouring regions: region n ends before _ends[n] and belongs to _slots[n]; slot 0 is nobody's.

    A consumer that comes or goes changes its own regions.  All others are copied, as arrays.
    """

    def __init__(self) -> None:
        self._set(_NOTHING, _NOTHING)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} regions={len(self._ends)} slots={sorted(set(self._slots.tolist()))}>"

    def _set(self, ends: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Set the regions; hashes behind the last one are nobody's."""
        self._ends, self._slots = np.append(ends, HASHES), np.append(slots, 0).astype(np.uint16)
        assert len(self._ends) == len(self._slots), self

    def _lay_out(self) -> None:
        """Compute the regions, before they are read, if that was put off."""

    def hashes_of(self, ledger: ReadableLedger, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """The hashes (n,) by which the entries are assigned, and by which they drain."""
        return hashes_of(ledger, entries)

    def slots(self, hashes: NDArray[np.int64]) -> NDArray[np.uint16]:
        """The slot (n,) that each hash belongs to."""
        self._lay_out()
        return self._slots[np.searchsorted(self._ends, hashes, side="right")]

    def of(self, slot: int) -> list[Range]:
        """The ranges of a slot, ascending."""
        return self.all().get(slot, [])

    def all(self) -> dict[int, list[Range]]:
        """{slot: its ranges, ascending}"""
        self._lay_out()
        ranges: dict[int, list[Range]] = {}
        firsts = [0, *self._ends[:-1].tolist()]
        for first, end, slot in zip(firsts, self._ends.tolist(), self._slots.tolist(), strict=True):
            if end > first:
                ranges.setdefault(slot, []).append(Range(first, end - 1))
        return ranges


class AutoSplit(_Regions):
    """A new consumer gets the lower half of the largest region; one that leaves gives its region to the one behind."""

    def add(self, consumer: Consumer) -> None:
        """Give the consumer a region."""
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
        """Give the consumer's region to a neighbour."""
        ends, slots = self._ends[:-1], self._slots[:-1]
        at = np.flatnonzero(slots == consumer.slot)
        if len(at):      # the last region has none on its right: it joins the one on its left
            is_last = at[0] == len(slots) - 1 and len(slots) > 1
            self._set(np.delete(ends, at[0] - 1 if is_last else at[0]), np.delete(slots, at[0]))


class Consistent(_Regions):
    """Consistent hashing: each consumer has points on a ring, and a hash belongs to the next point's consumer.

    Consumers that share a point take turns by the point's number.
    """

    def __init__(self) -> None:
        super().__init__()
        self._at: dict[int, list[tuple[str, int]]] = {}      # point -> [(name, slot)] of its consumers
        self._points = self._holders = _NOTHING              # points that have consumers, ascending, and their slots
        self._changed: set[int] = set()                      # points whose consumers changed since the last layout

    def add(self, consumer: Consumer) -> None:
        """Give the consumer its points."""
        points, its = self._points_of(consumer), (consumer.name, consumer.slot)
        for point in points:
            bisect.insort(self._at.setdefault(point, []), its)
        self._changed.update(points)

    def remove(self, consumer: Consumer) -> None:
        """Take the consumer's points away."""
        points = self._points_of(consumer)
        for point in points:
            self._at[point].remove((consumer.name, consumer.slot))
            if not self._at[point]:
                del self._at[point]
        self._changed.update(points)

    @staticmethod
    def _points_of(consumer: Consumer) -> list[int]:
        """The consumer's points on the ring.

        The slot is hashed too: consumers of one name must have different points, or one of them would get nothing.
        """
        return list({mmh3.hash(f"{consumer.name}\0{consumer.slot}\0{n}", signed=False) % HASHES
                     for n in range(_RING_POINTS)})

    def _lay_out(self) -> None:
        """Merge changed points into the arrays, and make regions of all points."""
        if not self._changed:
            return
        changed, self._changed = sorted(self._changed), set()
        points = np.array(changed, np.int64)
        holders = np.array([self._holder(point) for point in changed], np.int64)
        at = np.searchsorted(self._points, points)
        is_known = np.zeros(len(points), bool)
        if len(self._points):
            is_known = self._points[np.minimum(at, len(self._points) - 1)] == points
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
        """The slot to which a point belongs; 0: no consumer has it."""
        there = self._at.get(point)
        return there[point % len(there)][1] if there else 0


def check(wanted: list[tuple[int, int]]) -> None:
    """Raise Refusal unless these ranges, which a sticky consumer asks for, are valid and do not overlap."""
    if not wanted:
        raise Refusal(api.ConsumerAssignError, "Ranges for KeyShared policy must not be empty.")
    for first, last in wanted:
        if not 0 <= first <= last < HASHES:
            text = f"Range [{first}, {last}] does not lie within [0, {HASHES - 1}]"
            raise Refusal(api.ConsumerAssignError, text)
    for (_, last), (first, _) in pairwise(sorted(wanted)):
        if first <= last:
            raise Refusal(api.ConsumerAssignError, f"Ranges with overlap between [.., {last}] and [{first}, ..]")


class Sticky(_Regions):
    """Consumers bring their ranges.  Entries whose hash is in nobody's range wait."""

    def __init__(self) -> None:
        super().__init__()
        self._consumers: dict[int, Consumer] = {}                     # by slot
        self._firsts = self._lasts = self._takers = _NOTHING          # ranges, ascending, and the slots that have them

    def conflict(self, consumer: Consumer) -> Consumer | None:
        """Return a consumer whose ranges overlap with those that this one asks for, or None."""
        if not len(self._firsts):
            return None
        firsts, lasts = np.array(consumer.ranges, np.int64).T
        at = np.searchsorted(self._lasts, firsts)      # the first range that ends there or behind
        taken = (at < len(self._firsts)) & (self._firsts[np.minimum(at, len(self._firsts) - 1)] <= lasts)
        return self._consumers[int(self._takers[at[taken.argmax()]])] if taken.any() else None

    def add(self, consumer: Consumer) -> None:
        """Give the consumer its ranges, which conflict with no other's."""
        assert consumer.ranges is not None, consumer
        firsts, lasts = np.array(sorted(consumer.ranges), np.int64).T
        at = np.searchsorted(self._firsts, firsts)
        self._consumers[consumer.slot] = consumer
        self._firsts, self._lasts = np.insert(self._firsts, at, firsts), np.insert(self._lasts, at, lasts)
        self._takers = np.insert(self._takers, at, consumer.slot)
        self._update()

    def remove(self, consumer: Consumer) -> None:
        """Take the consumer's ranges away."""
        if self._consumers.pop(consumer.slot, None) is not None:
            stays = self._takers != consumer.slot
            self._firsts, self._lasts, self._takers = self._firsts[stays], self._lasts[stays], self._takers[stays]
            self._update()

    def _update(self) -> None:
        """Make a region of each range, and one of nobody's before it, which may be empty."""
        ends = np.stack((self._firsts, self._lasts + 1), 1).ravel()
        assert (np.diff(ends) >= 0).all(), self      # no ranges overlap
        slots = np.stack((np.zeros(len(self._takers), np.int64), self._takers), 1).ravel()
        self._set(ends, slots)


class Buckets(_Regions):
    """Entry buckets of a segment: ranges that follow each other, which the broker spreads over consumers.

    An entry belongs to a bucket whole.  Its client has stamped it with the lowest hash of its messages' keys, and puts
    messages of one bucket only into an entry.  So a hash stands for its bucket, and buckets drain as hashes do.
    """

    def __init__(self, bounds: list[tuple[int, int]]):
        """bounds: (first, last) of each bucket, as `check_buckets` accepts them."""
        super().__init__()
        self.bounds = bounds
        self._firsts = np.array([first for first, _ in bounds], np.int64)
        self._ends_of_all = np.array([last + 1 for _, last in bounds], np.int64)
        self._owners = np.zeros(len(bounds), np.int64)      # slot of each bucket's consumer; 0: nobody's

    def bucket_of(self, hashes: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the numbers (n,) of the entry buckets to which hashes belong."""
        return np.searchsorted(self._firsts, hashes, side="right") - 1

    def hashes_of(self, ledger: ReadableLedger, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first hash (n,) of each entry's bucket.

        An entry without a stamp has the hash of its first key; entry ids spread those without either.
        """
        hashes = ledger.column("key_hash")[entries].astype(np.int64)
        keyless = (hashes & STAMPED | ledger.column("flags")[entries] & (HAS_KEY | IS_CHUNK)) == 0
        hashes[keyless] = entries[keyless] * _SPREAD >> 8
        firsts: NDArray[np.int64] = self._firsts[self.bucket_of(hashes & HASHES - 1)]
        return firsts

    def straddling(self, ledger: ReadableLedger, entries: NDArray[np.int64]) -> int:
        """How many of the entries (n,) have messages of several buckets, as their stamps say."""
        stamps = ledger.column("key_hash")[entries].astype(np.int64)
        stamps = stamps[stamps & STAMPED != 0]
        lowest = stamps & HASHES - 1
        highest = np.minimum(lowest + (stamps >> HASH_BITS & (STAMPED >> HASH_BITS) - 1), HASHES - 1)
        return int(np.count_nonzero(self.bucket_of(lowest) != self.bucket_of(highest)))

    def spread(self, slots: list[int], *, keeps_share: bool = False) -> None:
        """Give each of these consumers as many buckets as any other, or one more; move no bucket that may stay.

        keeps_share: as many are nobody's, for a consumer that is to come.
        """
        held: dict[int, list[int]] = {slot: [] for slot in (slots if not keeps_share else [0, *slots])}
        free: list[int] = []
        for bucket, slot in enumerate(self._owners.tolist()):
            held.get(slot, free).append(bucket)
        while held:
            most, least = max(held, key=lambda slot: len(held[slot])), min(held, key=lambda slot: len(held[slot]))
            if not free and len(held[most]) - len(held[least]) <= 1:
                break
            held[least].append(free.pop(0) if free else held[most].pop())
        for slot, buckets in (held or {0: free}).items():
            self._owners[buckets] = slot
        self._set(self._ends_of_all, self._owners)

    def give_kept(self, slot: int) -> None:
        """Give a consumer the buckets that are nobody's."""
        self._owners[self._owners == 0] = slot


def check_buckets(bounds: list[tuple[int, int]]) -> None:
    """Raise Refusal unless these are the bounds of a segment's entry buckets: ascending, without gap or overlap."""
    if not 0 < len(bounds) <= BUCKETS_MAX:
        raise Refusal(api.ConsumerAssignError, f"A segment has 1 to {BUCKETS_MAX} entry buckets, not {len(bounds)}")
    expected = 0
    for first, last in bounds:
        if first != expected or last < first:
            text = f"Entry buckets follow each other from 0 on: [{first}, {last}] does not begin at {expected}"
            raise Refusal(api.ConsumerAssignError, text)
        expected = last + 1
    if expected != HASHES:
        raise Refusal(api.ConsumerAssignError, f"The last entry bucket ends at {expected - 1}, not at {HASHES - 1}")
