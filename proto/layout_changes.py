"""Changes of layouts: segments split, merge, or get other entry buckets, and those that nobody needs disappear.

A regular topic that is made scalable gets its first layout by a change too.

In a change, parents are sealed and children take their hashes:

    split       one parent    two children, each with half of its hashes
    merge       two parents   one child, with the hashes of both
    rebucket    one parent    one child with the same hashes and other entry buckets
    migrate     partitions    as many children; the parents are the regular topic's partitions, or the topic itself
    prune       no parent     sealed segments leave the layout

A change makes a new layout of an old one, with the next epoch.  Numbers of segments count up and are used once.
"""
from collections.abc import Collection
from typing import Any, NamedTuple

from geminga.proto.layouts import (
    BUCKETS_MAX,
    HASHES,
    SEGMENTS_MAX,
    Layout,
    Segment,
    equal_splits,
    from_row,
    of_partitions,
    of_segments,
)
from geminga.proto.names import TopicName

# Of a topic that is made scalable: producers wait until the last one is sealed, 1.6 s with so many, while a client of
# Pulsar 5 gives a message up after some 4 s.  And each segment has them all as parents.
PARTITIONS_MAX = 256
SPLIT, MERGE, REBUCKET, PRUNE, MIGRATE = "split", "merge", "rebucket", "prune", "migrate"


class CannotChange(Exception):
    """Error: a layout cannot be changed in that way."""


class LayoutChange(NamedTuple):
    """A change of a topic's layout, as the catalogue keeps it until it is carried out."""

    operation: str                       # SPLIT and its like
    parents: tuple[int, ...]             # numbers of the segments that are sealed, or pruned
    layout: Layout                       # which comes into force
    began_ms: int
    trigger: str = "manual"              # or "auto"

    @property
    def children(self) -> list[Segment]:
        """The segments that take the parents' hashes."""
        if self.operation == PRUNE:
            return []
        parents = set(self.parents)
        return [segment for segment in self.layout.segments if segment.created_epoch == self.layout.epoch
                and not parents.isdisjoint(segment.parents)]

    def to_row(self) -> list[Any]:
        """Return the change as JSON values."""
        layout = [self.layout.epoch, self.layout.next_number, self.layout.to_row()]
        return [self.operation, list(self.parents), layout, self.began_ms, self.trigger]


def change_from_row(topic: TopicName, row: list[Any]) -> LayoutChange:
    """Return the change that `LayoutChange.to_row` has made JSON values of."""
    operation, parents, layout, began_ms, trigger = row
    return LayoutChange(operation, tuple(parents), from_row(topic, *layout), began_ms, trigger)


def split(topic: TopicName, layout: Layout, number: int, now_ms: int) -> LayoutChange:
    """Return the change that divides a segment in the middle of its hashes, and its entry buckets.

    Raises CannotChange.
    """
    parent = _active(layout, number)
    if parent.first == parent.last:
        raise CannotChange(f"Segment {number} has one hash, and cannot be split")
    middle, buckets = (parent.first + parent.last) // 2, max(1, (len(parent.splits) + 1) // 2)
    bounds = (parent.first, middle), (middle + 1, parent.last)
    return _replacing(SPLIT, topic, layout, [parent], [(*its, buckets) for its in bounds], now_ms)


def merge(topic: TopicName, layout: Layout, numbers: tuple[int, int], now_ms: int) -> LayoutChange:
    """Return the change that joins two segments whose hashes are neighbours.  Raises CannotChange."""
    low, high = sorted((_active(layout, number) for number in numbers), key=lambda segment: segment.first)
    if low.last + 1 != high.first:
        raise CannotChange(f"Segments {numbers[0]} and {numbers[1]} are not neighbours")
    buckets = min(BUCKETS_MAX, len(low.splits) + len(high.splits) + 2)
    return _replacing(MERGE, topic, layout, [low, high], [(low.first, high.last, buckets)], now_ms)


def rebucket(topic: TopicName, layout: Layout, number: int, buckets: int, now_ms: int) -> LayoutChange:
    """Return the change that gives a segment so many entry buckets of equal size.  Raises CannotChange."""
    if not 1 <= buckets <= BUCKETS_MAX:
        raise CannotChange(f"A segment has 1 to {BUCKETS_MAX} entry buckets")
    parent = _active(layout, number)
    return _replacing(REBUCKET, topic, layout, [parent], [(parent.first, parent.last, buckets)], now_ms)


def migrate(topic: TopicName, partitions: int, now_ms: int, epoch: int = 0) -> LayoutChange:
    """Return the change that makes a scalable topic of the regular one of its name.

    Raises CannotChange: it has too many partitions.

    Clients choose partitions in another way than segments, so each partition may have had any key, and is a parent of
    all segments.

    partitions: 0 if the topic is not partitioned.  epoch: of the new layout.
    """
    if partitions > PARTITIONS_MAX:
        raise CannotChange(f"A topic of more than {PARTITIONS_MAX} partitions cannot be made scalable")
    parents = [segment._replace(first=0, last=HASHES - 1, created_epoch=epoch, created_ms=now_ms)
               for segment in of_partitions(topic.regular, partitions).segments]
    wanted = [(segment.first, segment.last, len(segment.splits) + 1)
              for segment in of_segments(topic, len(parents), now_ms).segments]
    return _replacing(MIGRATE, topic, Layout(epoch - 1, tuple(parents), len(parents)), parents, wanted, now_ms)


def prune(layout: Layout, numbers: Collection[int], now_ms: int) -> LayoutChange:
    """Return the change that removes sealed segments, and their traces in what is left."""
    assert all(not segment.is_active for segment in layout.segments if segment.number in numbers), numbers
    left = tuple(segment._replace(
        parents=tuple(parent for parent in segment.parents if parent not in numbers),
        children=tuple(child for child in segment.children if child not in numbers))
        for segment in layout.segments if segment.number not in numbers)
    after = Layout(layout.epoch + 1, left, layout.next_number)
    return LayoutChange(PRUNE, tuple(sorted(numbers)), after, now_ms, "auto")


def _active(layout: Layout, number: int) -> Segment:
    segment = layout.numbered(number)
    if segment is None:
        raise CannotChange(f"Segment {number} does not exist")
    if not segment.is_active:
        raise CannotChange(f"Segment {number} is sealed already")
    return segment


def _replacing(operation: str, topic: TopicName, layout: Layout, parents: list[Segment],
               wanted: list[tuple[int, int, int]], now_ms: int) -> LayoutChange:
    """Return the change that seals parents and makes children.  wanted: (first, last hash, entry buckets) of each."""
    if len(layout.segments) + len(wanted) > SEGMENTS_MAX:
        raise CannotChange(f"The topic would have more than {SEGMENTS_MAX} segments, sealed ones included")
    numbers, epoch = tuple(parent.number for parent in parents), layout.epoch + 1
    made = tuple(Segment(
        number, first, last, str(topic.segment_name(number, first, last)), now_ms, epoch, parents=numbers,
        splits=equal_splits(buckets)) for number, (first, last, buckets) in enumerate(wanted, layout.next_number))
    children = tuple(segment.number for segment in made)
    kept = tuple(segment._replace(sealed_ms=now_ms, sealed_epoch=epoch, children=children)
                 if segment.number in numbers else segment for segment in layout.segments)
    return LayoutChange(operation, numbers, Layout(epoch, kept + made, layout.next_number + len(made)), now_ms)
