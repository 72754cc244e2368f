"""Questions to owners about segments of scalable topics, which changes of their layouts ask; see `segments.py`."""
from dataclasses import dataclass

from geminga.storage.admin.questions import Question, TopicQuestion


@dataclass(frozen=True, kw_only=True)
class MakeSegment(TopicQuestion[None], name="make_segment"):
    """A request to make a segment that the change of its topic's layout names, with subscriptions at its beginning.

    What is there already stays.
    """

    subscriptions: dict[str, dict[str, str]]      # name -> properties


@dataclass(frozen=True)
class Sequence:
    """The sequence ids that a producer has stored in a segment; see `cursors/producer_sequences.py`."""

    producer: str                      # its identity, in hex
    last: int
    supposed: int
    missing: list[tuple[int, int]]
    contents: str                      # (n,) CONTENT_ROW of messages that are known, in base 64


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """The answer to `Seal`."""

    missing: dict[str, dict[str, str]]      # durable subscriptions that its children lack; if any, it is not sealed
    sequences: list[Sequence]               # of all its producers, if it deduplicates


@dataclass(frozen=True, kw_only=True)
class Seal(TopicQuestion[Sealed], name="seal"):
    """A request to seal a segment for good, as the change of its topic's layout wants it."""

    inherited: list[str]               # subscriptions that all children have
    is_last: bool                      # of the parents: the new layout comes into force with it
    hands_over: bool                   # whether a parent before had sequence ids, which the children get behind this


@dataclass(frozen=True, kw_only=True)
class TakeSequences(TopicQuestion[None], name="take_sequences"):
    """A request to take over the sequence ids of the segments before this one, for which its producers wait."""

    parents: list[list[Sequence]]


@dataclass(frozen=True)
class IsSpent(TopicQuestion[bool], name="is_spent"):
    """A question whether nobody needs a sealed segment any more, so that it may be deleted."""


@dataclass(frozen=True)
class LayoutsChanged(Question[None], name="layouts_changed"):
    """A request to tell workers, stream consumers and schedules of layouts that have changed."""


@dataclass(frozen=True)
class SegmentLoads:
    """What an owner knows of scalable topics that may have to change."""

    # Of segments that carry anything, and of the other topic that carries the most messages: messages in, bytes in,
    # messages out and bytes out, a second.
    rates: dict[str, tuple[float, float, float, float]]
    consumers: dict[str, int]          # topic -> consumers of its largest stream subscription, if there are several


@dataclass(frozen=True, kw_only=True)
class GetSegmentLoads(Question[SegmentLoads], name="segment_loads"):
    """A question of what segments carry, and of how many consumers share topics."""

    with_rates: bool                   # False: only the consumers are asked for


@dataclass(frozen=True)
class Registered:
    """A consumer that has registered for segments of a scalable topic."""

    name: str
    is_connected: bool
    segments: list[int]                # numbers of those that it is assigned


@dataclass(frozen=True)
class GetRegistered(TopicQuestion[dict[str, list[Registered]]], name="registered"):
    """A question for the consumers that have registered for segments of a scalable topic, by subscription."""
