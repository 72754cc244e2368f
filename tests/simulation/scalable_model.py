"""What owners have promised about a scalable topic: who gets which message in which order, whatever its segments do.

A message is stored in the segment that has its key's hash.  It may be stored again, there or behind a split, if its
producer got no receipt and sent it again: each of these copies is an entry of its own.
"""
from collections import Counter
from dataclasses import dataclass, field

import mmh3

from geminga.proto.layouts import HASHES, Layout, Segment
from geminga.proto.names import parse

from .model import Position, demand

Copy = tuple[str, Position]       # segment's name, position there


@dataclass(eq=False)
class Message:
    """An entry that a producer has sent: one message, or a batch of one key."""

    number: int
    key: str
    producer: str
    entry: dict[str, object]      # arguments of rig.entry_of
    # As it was sent to each segment, where its client may have given it another sequence id.
    numbers: dict[str, int] = field(default_factory=dict)
    datas: dict[str, bytes] = field(default_factory=dict)
    attempts: int = 0
    attempts_as: Counter[int] = field(default_factory=Counter)      # by sequence id
    copies: set[Copy] = field(default_factory=set)       # those that are known
    is_receipted: bool = False

    def __str__(self) -> str:
        return f"message {self.number} of {self.producer} with {self.key}"

    def is_at(self, copy: Copy, copies_max: int) -> None:
        """Note that it is stored there.  copies_max: 1 if sequence ids are looked at, over all segments.

        A client that counts by itself gives it another one on each segment.
        """
        copies_max = max(copies_max, len(set(self.numbers.values())))
        if copy not in self.copies:
            text = f"{self} {self.copies} {copy}"
            demand(len(self.copies) < min(self.attempts, copies_max), "what is sent again is stored once", text)
            self.copies.add(copy)


def hash_of(key: str) -> int:
    """Return the hash of a key as Pulsar 5's client has it: its high half chooses the segment, its low one the bucket.
    """
    return mmh3.mmh3_32_uintdigest(key.encode())


def segment_for(layout: Layout, hash_: int) -> Segment:
    """Return the segment that takes messages of a hash."""
    return next(segment for segment in layout.active if segment.first <= hash_ <= segment.last)


@dataclass(eq=False)
class Consumer:
    """A consumer of one segment: a part of what an application's consumer is."""

    handle: int                          # 0: its SUBSCRIBE is not answered
    object_id: int
    connection: int
    segment: str
    group: "Group | None"                # None: a reader's
    is_shared: bool = False              # it shares the segment's buckets with others
    held: dict[Copy, Message] = field(default_factory=dict)      # what it has not acknowledged

    @property
    def number(self) -> int:
        """The number that the rig gave the consumer."""
        return self.handle


@dataclass(eq=False)
class Group:
    """A subscription over all segments."""

    name: str
    is_stream: bool
    since: int | None = None             # it is to get messages from this number on; None: it is not answered yet
    consumers: list[Consumer] = field(default_factory=list)
    asked: set[Copy] = field(default_factory=set)        # acknowledged, durably or not
    sure: set[Copy] = field(default_factory=set)         # acknowledged with an answer
    cleared: int = 0                     # messages below this number were cleared, or will be
    begun: set[int] = field(default_factory=set)         # numbers of segments of which anything was delivered

    def has(self, message: Message) -> bool:
        """Whether a client has acknowledged a copy of the message."""
        return not message.copies.isdisjoint(self.asked)

    def is_due(self, message: Message) -> bool:
        """Whether the subscription is to get the message, surely."""
        return self.since is not None and message.number >= max(self.since, self.cleared) and message.is_receipted


@dataclass(eq=False)
class Lineage:
    """All segments that there ever were, by number."""

    segments: dict[int, Segment] = field(default_factory=dict)

    def learn(self, layout: Layout) -> None:
        """Note segments that are new, and check that the active ones have each hash once."""
        for segment in layout.segments:
            self.segments.setdefault(segment.number, segment)
        active = sorted(layout.active, key=lambda segment: segment.first)
        bounds = [(segment.first, segment.last + 1) for segment in active]
        demand([first for first, _ in bounds] == [0, *(end for _, end in bounds)][:-1] and bounds[-1][1] == HASHES,
               "the active segments have each hash once", bounds)

    def behind(self, number: int) -> set[int]:
        """Return the numbers of the segments that came of a segment."""
        found = {number}
        for other in sorted(self.segments):
            if not found.isdisjoint(self.segments[other].parents):
                found.add(other)
        return found - {number}

    def bucket(self, segment: str, message: Message) -> int:
        """Return the entry bucket of a message in a segment."""
        splits = self.segments[number_of(segment)].splits
        return sum(first <= hash_of(message.key) & (HASHES - 1) for first in splits)


def number_of(segment: str) -> int:
    """Return the number of a segment by its name."""
    return parse(segment).segment_number


# -- deliveries

def given(consumer: Consumer, copy: Copy, message: Message, sent: list[Message], lineage: Lineage) -> None:
    """Check that a subscription's consumer may be given a message now, and note that it has it.

    sent: all messages of the topic in their order.
    """
    group = consumer.group
    text = f"{group.name} {message} at {copy}"
    demand(copy not in group.sure, "nothing is delivered that is acknowledged", text)
    for other in group.consumers:
        demand(copy not in other.held, "nothing is delivered twice", text)
    group.asked.discard(copy)
    if group.is_stream:
        _in_order(consumer, copy, message, sent, lineage)
    consumer.held[copy] = message


def _in_order(consumer: Consumer, copy: Copy, message: Message, sent: list[Message], lineage: Lineage) -> None:
    """Check what stream consumers are promised: a key's order, over consumers and over segments."""
    group, segment = consumer.group, consumer.segment
    text, number = f"{group.name} {message} at {copy}", number_of(segment)
    group.begun.add(number)
    overtaken = lineage.behind(number) & group.begun
    demand(not overtaken, "a segment waits until its parents are acknowledged", f"{text}: {overtaken} came before")
    for other in group.consumers:
        if other is not consumer and other.segment == segment:
            same = [each for each in other.held.values()
                    if not consumer.is_shared or lineage.bucket(segment, each) == lineage.bucket(segment, message)]
            demand(not same, "a bucket waits for its former consumer", f"{text}: {same and str(same[0])}")
    for earlier in sent[:message.number]:
        if (earlier.producer, earlier.key) == (message.producer, message.key) and group.is_due(earlier):
            is_held = any(each is earlier for each in consumer.held.values())
            demand(is_held or group.has(earlier), "a key's messages are delivered in order", f"{text}: not {earlier}")


def pruned(segment: str, groups: list[Group], sent: list[Message]) -> None:
    """Check that a segment that is deleted has nothing that anybody is still to get."""
    for message in sent:
        for copy in message.copies:
            if copy[0] == segment:
                for group in groups:
                    demand(copy in group.asked or not group.is_due(message), "only what all have is deleted",
                           f"{group.name} {message} at {copy}")


def ended(groups: list[Group], sent: list[Message]) -> None:
    """Check that every subscription has got everything."""
    for group in groups:
        for message in sent:
            demand(group.has(message) or not group.is_due(message), "everything is delivered in the end",
                   f"{group.name} {message} at {message.copies}")
