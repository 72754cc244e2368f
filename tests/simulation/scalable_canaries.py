"""Owners that break a promise about scalable topics on purpose: a world of a scalable topic must find each one.

See canaries.py for what a canary is.
"""
from collections.abc import Callable

from geminga.storage.admin import queries, segments
from geminga.storage.admin.segment_questions import IsSpent, Seal
from geminga.storage.dispatch.key_shared import KeyShared
from geminga.storage.scalable import assignment, drained, stream_consumers
from geminga.storage.scalable.drained import SealedSegments
from geminga.storage.scalable.inheritance import Inheritance
from geminga.storage.scalable.stream_consumers import StreamConsumers

from .canaries import nothing, patched, without

SCALABLE_CANARIES: dict[str, tuple[Callable, set[str]]] = {}

_INHERITED = "segments inherit all subscriptions"
_LOST = "everything is delivered in the end", "only what all have is deleted", "sealed segments are deleted"
_PARENTS = "a segment waits until its parents are acknowledged"
_KEYS = "a key's messages are delivered in order"


def canary(*promises: str):
    """Register a canary: the decorated function yields (object, name, replacement)."""
    def add(how):
        SCALABLE_CANARIES[how.__name__] = lambda: patched(how()), set(promises)
        return how
    return add


# -- changes of layouts

@canary(_INHERITED)
def children_get_no_subscriptions():
    yield queries.FUNCTIONS, Seal, without(segments, "seal", "return questions.Sealed(missing=missing")[2]


@canary(_INHERITED)
def late_subscriptions_are_on_the_sealed_segment_only():
    yield Inheritance, "park", lambda *_: False


@canary(_PARENTS, _KEYS, *_LOST)
def sealed_segments_take_messages():
    yield without(segments, "_end", "partition.is_terminated = True")


@canary(*_LOST)
def segments_are_deleted_with_messages():
    def is_spent(decisions: segments.Decisions, topics: segments.TopicTable, question: IsSpent) -> bool:
        partition = topics.find(question.topic)
        return partition is None or partition.is_terminated
    yield queries.FUNCTIONS, IsSpent, is_spent


# -- stream consumers

@canary(_PARENTS, _KEYS, *_LOST)
def children_do_not_wait():
    def deal(layout, names, drained=(), **more):
        return assignment.deal(layout, names, [segment.number for segment in layout.segments], **more)
    yield stream_consumers, "deal", deal


@canary(_PARENTS, _KEYS, *_LOST)
def everything_counts_as_drained():
    yield drained, "drained", lambda partition: {
        subscription.name: True for subscription in partition.subscriptions.values()}


@canary(*_LOST)
def owners_are_not_asked_again_what_is_drained():
    yield StreamConsumers, "_ask", nothing
    yield SealedSegments, "owner_is_up", nothing


@canary("a bucket waits for its former consumer", _KEYS)
def buckets_move_at_once():
    def find_draining(dispatcher):
        dispatcher._draining = {}
    yield KeyShared, "_find_draining", find_draining
    yield KeyShared, "check", nothing      # else it finds this first
