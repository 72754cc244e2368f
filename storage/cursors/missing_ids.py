"""Sequence ids that a producer has passed over: gaps below its highest id, of which nothing was stored.

A client may send a later message first.  A producer that batches sends a delayed message alone and at once, so that
message overtakes the batch which is still being filled.  An id in a gap is late and is stored; any other id up to the
highest one was stored, and comes again.

The gaps are one ascending array of bounds: first id of a gap, first id behind it, and so on.  So an id lies in a gap if
an odd number of bounds is not above it.  Gaps never touch each other.  Instances are never changed.
"""
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

GAPS_MAX = 1_024              # of one producer; a client's default batch holds 1,000 messages
# Ids at the upper end of a gap that are kept, as many as an op of the journal can count.
GAP_IDS_MAX = (1 << 56) - 1

Gap = tuple[int, int]         # (first id, last id)


class MissingIds:
    """The gaps of one producer, at most GAPS_MAX."""

    __slots__ = ("_bounds",)

    def __init__(self, gaps: Iterable[Gap] = ()):
        """Hold these gaps, which ascend and do not touch each other."""
        self._bounds = array("q", [bound for first, last in gaps for bound in (first, last + 1)])

    def __repr__(self) -> str:
        return f"<MissingIds {list(self)}>"

    def __len__(self) -> int:
        return len(self._bounds) // 2

    def __iter__(self) -> Iterator[Gap]:
        """Iterate over the gaps, which ascend."""
        return ((first, end - 1) for first, end in zip(self._bounds[::2], self._bounds[1::2], strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MissingIds) and self._bounds == other._bounds

    def __hash__(self) -> int:
        return hash(self._bounds.tobytes())

    @property
    def top(self) -> Gap | None:
        """The highest gap, if there is one."""
        return (self._bounds[-2], self._bounds[-1] - 1) if self._bounds else None

    def touches(self, first: int, last: int) -> bool:
        """Whether any id of first .. last is in a gap."""
        place = bisect_right(self._bounds, first)
        return bool(place & 1) or (place < len(self._bounds) and self._bounds[place] <= last)

    def with_gaps(self, gaps: list[Gap]) -> "MissingIds":
        """Return these gaps and more, which ascend, lie above all others and touch none.

        If that makes too many, the lower half is forgotten.  Forgetting one at a time would cost as much for each.
        """
        made = MissingIds()
        made._bounds = self._bounds + MissingIds(
            (max(first, last - GAP_IDS_MAX + 1), last) for first, last in gaps[-GAPS_MAX:])._bounds
        made._bound()
        return made

    def with_missing(self, first: int, last: int) -> "MissingIds":
        """Return the gaps once first .. last are missing as well, and one gap with any that they touch."""
        bounds, first = self._bounds, max(first, last - GAP_IDS_MAX + 1)
        low, high = bisect_left(bounds, first), bisect_right(bounds, last + 1)
        made = MissingIds()
        made._bounds = bounds[:low] + array("q", ([] if low & 1 else [first]) + ([] if high & 1 else [last + 1])) \
            + bounds[high:]
        made._bound()
        return made

    def without(self, first: int, last: int) -> "MissingIds":
        """Return what is left of the gaps once first .. last are stored."""
        if not self.touches(first, last):
            return self
        bounds = self._bounds
        low, high = bisect_left(bounds, first), bisect_right(bounds, last + 1)
        made = MissingIds()
        made._bounds = bounds[:low] + array("q", ([first] if low & 1 else []) + ([last + 1] if high & 1 else [])) \
            + bounds[high:]
        made._bound()
        return made

    def nth(self, first: int, count: int) -> tuple[int, int]:
        """Return (the last of the first `count` missing ids from `first` on, how many of `count` there are not)."""
        last = first
        for gap_first, gap_last in self.behind(first):
            size = gap_last - gap_first + 1
            if size >= count:
                return gap_first + count - 1, 0
            last, count = gap_last, count - size
        return last, count

    def behind(self, first: int) -> Iterator[Gap]:
        """Iterate over the gaps from id `first` on; the first of them may be the rest of one."""
        place = bisect_right(self._bounds, first)
        begin = [first] if place & 1 else []
        rest = begin + self._bounds[place:].tolist()
        return ((low, end - 1) for low, end in zip(rest[::2], rest[1::2], strict=True))

    def changes(self, before: "MissingIds") -> Iterator[Gap]:
        """Yield (first, last) of each gap that was not there before, and (first, first - 1) of each that is gone.

        A first id stands for its gap: one that became shorter or longer is not gone.
        """
        if before is self:
            return
        old, new = before._bounds, self._bounds
        if old == new[:len(old)]:      # nearly always only the highest is new
            yield from self._pairs(len(old))
            return
        known, here = dict(before), dict(self)
        for first in known.keys() - here.keys():
            yield first, first - 1
        for first, last in here.items():
            if known.get(first) != last:
                yield first, last

    def _pairs(self, place: int) -> Iterator[Gap]:
        return ((first, end - 1) for first, end in zip(self._bounds[place::2], self._bounds[place + 1::2], strict=True))

    def _bound(self) -> None:
        """Forget the lower half of too many gaps."""
        if len(self) > GAPS_MAX:
            del self._bounds[:-GAPS_MAX]      # a gap has two bounds
