"""Layouts: the segments into which a topic's keys are divided, each with a range of hashes.

Clients of Pulsar 5 know no partitions.  A scalable topic has a layout of its own, which changes when segments split or
merge: a sealed segment takes no messages any more, and its children take those of its hashes.  For any other topic
clients are told a layout with a segment for each partition, which they produce to and consume from under the
partition's own name.  They choose the partition that an older client would choose, whatever the ranges say.
"""
from collections.abc import Iterable
from typing import Any, NamedTuple

from mmh3 import mmh3_32_uintdigest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName

HASHES = 1 << 16          # hashes 0 to HASHES - 1 are divided among the segments
BUCKETS_MAX = 1_024       # of a segment
MANAGED = "__pulsar.v5.managed"      # "true" in the metadata of a producer or consumer on a regular topic: of Pulsar 5
_BUCKETS = 4              # of a new topic, as in Pulsar: so many stream consumers share it if it has fewer segments
SEGMENTS_MAX = 1_024      # of a layout, sealed ones included: an update of a watch has them all, some 60 bytes each


def hash_of(key: str) -> int:
    """Hash a key as clients of Pulsar 5 do, to 16 bits: the high ones, and the highest bit is kept."""
    return mmh3_32_uintdigest(key.encode()) >> 16


class Segment(NamedTuple):
    """A part of a topic: the topic by whose name it is used, its hashes `first` to `last`, and its history."""

    number: int
    first: int
    last: int
    topic: str
    created_ms: int = 0
    created_epoch: int = 0
    sealed_ms: int | None = None             # None: it is active, and takes messages
    sealed_epoch: int = 0
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    splits: tuple[int, ...] = ()             # first hashes of its entry buckets but the first
    is_legacy: bool = False                  # a partition, or a topic without partitions

    @property
    def is_active(self) -> bool:
        return self.sealed_ms is None

    def buckets(self) -> list[api.IntRange]:
        """Return the bounds of the entry buckets, as clients subscribe with them."""
        firsts, ends = (0, *self.splits), (*self.splits, HASHES)
        return [api.IntRange(start=first, end=end - 1) for first, end in zip(firsts, ends, strict=True)]

    def to_wire(self) -> api.SegmentInfoProto:
        """Return the segment as clients are told it."""
        told = api.SegmentInfoProto(
            segment_id=self.number, hash_start=self.first, hash_end=self.last,
            state=api.ACTIVE if self.is_active else api.SEALED, parent_ids=self.parents, child_ids=self.children,
            created_at_epoch=self.created_epoch, created_at_ms=self.created_ms, entry_bucket_splits=self.splits)
        if self.sealed_ms is not None:
            told.sealed_at_epoch, told.sealed_at_ms = self.sealed_epoch, self.sealed_ms
        if self.is_legacy:
            told.legacy_topic_name = self.topic
        return told


class Share(NamedTuple):
    """A segment that a stream consumer gets, whole or some of its entry buckets."""

    segment: Segment
    is_shared: bool = False


class Mark(NamedTuple):
    """The part of a layout by which a later one is known to differ, in a few bytes."""

    is_scalable: bool                        # False: of a regular topic, or of one that has no segments
    epoch: int
    next_number: int
    created_ms: int                          # of the first segment of a scalable topic, else 0

    def is_gone(self, now: "Mark | None") -> bool:
        """Whether a scalable topic of this mark was deleted, and maybe created again since.  now: its present mark.

        Of one that is still there numbers of segments only rise, and so does the epoch with each change.  One that was
        created again has its first segment at another time.
        """
        if not self.is_scalable:
            return False
        return now is None or not now.is_scalable or now.next_number < self.next_number or (
            now.epoch == self.epoch and now.created_ms != self.created_ms)


class Layout(NamedTuple):
    """The segments of a topic, and the number of changes that led to them."""

    epoch: int
    segments: tuple[Segment, ...]            # those that still exist, by number
    next_number: int                         # of the next segment: no number is used twice

    @property
    def active(self) -> list[Segment]:
        """The segments that take messages."""
        return [segment for segment in self.segments if segment.is_active]

    @property
    def mark(self) -> Mark:
        """The mark by which a later layout is known to differ.

        The time of a regular topic's creation does not count: one that does not exist has the present time.
        """
        is_scalable = not all(segment.is_legacy for segment in self.segments)
        return Mark(is_scalable, self.epoch, self.next_number, self.segments[0].created_ms if is_scalable else 0)

    def takes(self, key: str) -> Segment:
        """Return the segment to which clients publish messages of a key."""
        return next(segment for segment in self.active if segment.first <= hash_of(key) <= segment.last)

    def numbered(self, number: int) -> Segment | None:
        """Return the segment of that number, None if the layout has none."""
        return next((segment for segment in self.segments if segment.number == number), None)

    def behind(self, number: int) -> list[Segment]:
        """Return the segments that have taken over hashes of one, and those behind them."""
        found: dict[int, Segment] = {}
        left = [number]
        while left:
            segment = self.numbered(left.pop())
            for child in [] if segment is None else map(self.numbered, segment.children):
                if child is not None and child.number not in found:
                    found[child.number] = child
                    left.append(child.number)
        return list(found.values())

    def later(self, changes: int) -> "Layout":
        """Return the same layout as if it had come after so many changes more."""
        return self._replace(epoch=self.epoch + changes, segments=tuple(segment._replace(
            created_epoch=segment.created_epoch + changes, sealed_epoch=segment.sealed_epoch + changes)
            for segment in self.segments))

    def to_wire(self, urls: tuple[str, str] = ("", "")) -> api.ScalableTopicDAG:
        """Return the layout as clients are told it.

        urls: without and with TLS, at which all clients reach the broker; "": none.  A client that is told none stays
        with the broker to which it is connected.
        """
        told = api.ScalableTopicDAG(epoch=self.epoch, segments=[segment.to_wire() for segment in self.segments])
        plain, tls = urls
        if plain:
            told.controller_broker_url = plain
            told.segment_brokers.extend(
                api.SegmentBrokerAddress(segment_id=segment.number, broker_url=plain, broker_url_tls=tls or None)
                for segment in self.active if not segment.is_legacy)
        if tls:
            told.controller_broker_url_tls = tls
        return told

    # -- as the catalogue keeps it

    def to_row(self) -> list[list[Any]]:
        """Return the segments as JSON values.  Their names are made of the topic's."""
        return [[*segment[:3], *segment[4:11], segment.topic if segment.is_legacy else ""] for segment in self.segments]


def from_row(topic: TopicName, epoch: int, next_number: int, rows: Iterable[list[Any]]) -> Layout:
    """Return the layout that `Layout.to_row` has made JSON values of."""
    return Layout(epoch, tuple(_segment_of(topic, *row) for row in rows), next_number)


def _segment_of(topic: TopicName, number: int, first: int, last: int, created_ms: int, created_epoch: int,
                sealed_ms: int | None, sealed_epoch: int, parents: list[int], children: list[int], splits: list[int],
                legacy: str) -> Segment:
    return Segment(number, first, last, legacy or str(topic.segment_name(number, first, last)), created_ms,
                   created_epoch, sealed_ms, sealed_epoch, tuple(parents), tuple(children), tuple(splits), bool(legacy))


def of_segments(topic: TopicName, count: int, created_ms: int, epoch: int = 0) -> Layout:
    """Return the layout with which a scalable topic begins: as many segments of equal size as wanted."""
    splits = equal_splits(max(1, _BUCKETS // count))
    return Layout(epoch, tuple(
        Segment(number, first, last, str(topic.segment_name(number, first, last)), created_ms, epoch, splits=splits)
        for number, (first, last) in enumerate(_ranges(count))), count)


def equal_splits(buckets: int) -> tuple[int, ...]:
    """Return the first hashes of so many entry buckets of equal size, but of the first one."""
    return tuple(HASHES * number // buckets for number in range(1, buckets))


def of_partitions(topic: TopicName, count: int, created_ms: int = 0) -> Layout:
    """Return the layout of a topic that is not scalable.  count: its partitions, 0 if it is not partitioned."""
    used = [str(topic.partition_name(number)) for number in range(count)] or [str(topic)]
    return Layout(0, tuple(Segment(number, *bounds, name, created_ms, is_legacy=True)
                           for number, (name, bounds) in enumerate(zip(used, _ranges(len(used)), strict=True))),
                  len(used))


def _ranges(count: int) -> list[tuple[int, int]]:
    """Return (first, last) hash of `count` equal parts; the last has the remainder.  More parts than hashes are empty.
    """
    width = HASHES // count
    borders = [width * number for number in range(count)] + [HASHES]
    return [(borders[number], borders[number + 1] - 1) for number in range(count)]


def assignment(layout: Layout, shares: Iterable[Share]) -> api.ScalableConsumerAssignment:
    """Return the assignment of these shares to a stream consumer."""
    return api.ScalableConsumerAssignment(layout_epoch=layout.epoch, segments=[
        api.ScalableAssignedSegment(segment_id=segment.number, hash_start=segment.first, hash_end=segment.last,
                                    segment_topic=segment.topic, bucket_ranges=segment.buckets() if is_shared else ())
        for segment, is_shared in shares])
