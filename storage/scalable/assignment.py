"""Assignment of a layout's segments to the stream consumers of one subscription."""
from collections.abc import Collection, Iterable

from geminga.proto.layouts import Layout, Segment, Share


def deal(layout: Layout, names: Iterable[str], drained: Collection[int] = (), *,
         may_share: bool = True) -> dict[str, list[Share]]:
    """Deal the segments in turn, in the order of their hashes, to consumers in the order of their names.

    Each segment has one consumer as long as there are enough segments.  If there are more consumers, segments have
    neighbouring ones, and each of these gets some of the segment's entry buckets; the broker decides which.  Either way
    messages of a key keep their order.  Consumers beyond the number of buckets get none.  The same names always get the
    same segments, so a consumer that comes back finds its own again.

    drained: numbers of sealed segments on which the subscription has acknowledged everything.  may_share: whether the
    consumers can share a segment.
    """
    dealt: dict[str, list[Share]] = {name: [] for name in sorted(names)}
    segments, hands = assignable(layout, drained), list(dealt.values())
    if len(hands) <= len(segments) or not may_share:
        for turn, segment in enumerate(segments if hands else ()):
            hands[turn % len(hands)].append(Share(segment))
        return dealt
    takers = iter(hands)
    for segment, count in zip(segments, _sharers(segments, len(hands)), strict=True):
        for _ in range(count):
            next(takers).append(Share(segment, count > 1))
    return dealt


def _sharers(segments: list[Segment], consumers: int) -> list[int]:
    """Return how many consumers each segment has: one or more, as evenly as their buckets allow."""
    counts, left = [1] * len(segments), consumers - len(segments)
    while left > 0:
        growing = [place for place, segment in enumerate(segments) if counts[place] <= len(segment.splits)][:left]
        if not growing:
            break
        for place in growing:
            counts[place] += 1
        left -= len(growing)
    return counts


def assignable(layout: Layout, drained: Collection[int]) -> list[Segment]:
    """Return the segments that a subscription consumes now, in the order of their hashes.

    A sealed segment is consumed until it is drained, and its children only from then on: otherwise messages of a key
    would overtake the older ones in the parent.  The same holds for all segments behind these: one that was sealed
    before it got a message is drained, although its parent is not.  A parent that the layout has no more was drained by
    all.
    """
    found: list[Segment] = []
    holding: set[int] = set()      # segments whose children wait
    for segment in layout.segments:      # parents have lower numbers than their children
        is_left, waits = segment.is_active or segment.number not in drained, not holding.isdisjoint(segment.parents)
        if is_left and not waits:
            found.append(segment)
        if waits or (is_left and not segment.is_active):
            holding.add(segment.number)
    return sorted(found, key=lambda segment: (segment.first, segment.number))
