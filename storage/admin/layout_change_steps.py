"""The steps of a layout's change: questions to owners, in their order.

    children are made           with all subscriptions of the parents, at their beginning
    a parent is sealed          unless it has got another subscription meanwhile, which the children are given first
    the last parent is sealed   in the same transaction the new layout comes into force
    sequence ids are handed     from parents that deduplicate to children, whose producers wait for them

Segments are pruned in two: the new layout comes into force without them, and they are deleted.

Each step may be repeated.  A change that was cut short, by the end of any process, is carried out from its first step
again, and finds what is done already.  It never goes back: clients may have been told that a segment is sealed.
"""
from collections.abc import Generator
from typing import Any

from geminga.proto import names
from geminga.proto.layout_changes import PRUNE, LayoutChange
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import Delete, TopicQuestion
from geminga.storage.admin.segment_questions import MakeSegment, Seal, Sealed, Sequence, TakeSequences
from geminga.storage.catalogue.catalogue import Catalogue

Steps = Generator[TopicQuestion[Any], Any, None]


def steps_of(catalogue: Catalogue, topic: TopicName) -> Steps:
    """Yield the questions that carry out the change of a topic's layout, if one is under way; each is sent its answer.

    A question goes to the owner of its topic.  Raises StorageFull.
    """
    change = catalogue.scalable_topics.change_of(topic)
    if change is not None and change.operation == PRUNE:
        yield from _prune(catalogue, topic, change)
    elif change is not None:
        yield from _replace(catalogue, topic, change)


def _prune(catalogue: Catalogue, topic: TopicName, change: LayoutChange) -> Steps:
    """Delete segments after the layout lacks them: while it has them, a client could make them anew."""
    catalogue.scalable_topics.put_in_force(topic)
    catalogue.commit()
    for segment in catalogue.scalable_topics.stored_segments(topic):
        if segment.segment_number in change.parents:
            yield Delete(segment, force=True, gone=True)
    catalogue.scalable_topics.end_change(topic)
    catalogue.commit()


def _replace(catalogue: Catalogue, topic: TopicName, change: LayoutChange) -> Steps:
    children = [names.parse(child.topic) for child in change.children]
    for child in children:      # before a parent is sealed, so that producers need not wait for files
        yield MakeSegment(child, subscriptions={})
    inherited: list[str] = []
    sequences: list[list[Sequence]] = []
    for number in change.parents:
        parent = change.layout.numbered(number)
        assert parent is not None, change
        is_last = number == change.parents[-1]
        while True:
            sealed: Sealed = yield Seal(names.parse(parent.topic), inherited=inherited, is_last=is_last,
                                        hands_over=bool(sequences))
            if not sealed.missing:
                break
            for child in children:
                yield MakeSegment(child, subscriptions=sealed.missing)
            inherited = [*inherited, *sealed.missing]
        sequences += [sealed.sequences] if sealed.sequences else []
    if sequences:
        for child in children:
            yield TakeSequences(child, parents=sequences)
        catalogue.scalable_topics.end_change(topic)
        catalogue.commit()
