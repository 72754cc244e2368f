"""Answers to questions about segments of scalable topics, which split and merge: make them, seal them, tell of them.

A layout comes into force in the pass that seals its last parent, so no client finds a segment sealed that has no
children yet.  A merge has two parents: the first one is sealed some milliseconds earlier.
"""
import itertools
from base64 import b64decode
from typing import TYPE_CHECKING

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.layout_changes import LayoutChange
from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.admin import segment_questions as questions
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.inherited_contents import InheritedRow
from geminga.storage.commands import producers, subscriptions
from geminga.storage.commands.topic_lookup import stored
from geminga.storage.cursors.missing_ids import MissingIds
from geminga.storage.cursors.producer_sequences import NONE, Progress, identity_of_schedule, united
from geminga.storage.disk import locks
from geminga.storage.enforcement import retention
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.recurring.recurring import RecurringMessages
from geminga.storage.runtime.log import log
from geminga.storage.scalable import recounting
from geminga.storage.scalable.drained import SealedSegments
from geminga.storage.scalable.inheritance import Inheritance
from geminga.storage.scalable.stream_consumers import StreamConsumers
from geminga.storage.statistics import columns
from geminga.storage.topics.partition import Partition
from geminga.storage.transactions.publishing import half_of

if TYPE_CHECKING:
    from geminga.storage.topics.non_persistent import NonPersistentTopic

_TERMINATED = "Topic was already terminated"      # clients look for "already terminated"


def make_segment(decisions: Decisions, topics: TopicTable, question: questions.MakeSegment) -> None:
    name, catalogue = question.topic, topics.catalogue
    # A deletion either finds the partition, or is found here: both change the catalogue.
    with catalogue.topics.transaction():
        if str(name) not in [child.topic for child in _change_of(catalogue, name).children]:
            raise Refusal(api.TopicNotFound, f"No change makes segment {name}")
        partition = topics.find(name) or topics.create(name)
        decisions.answer_needs_sync()
        for subscription, properties in question.subscriptions.items():
            if (subscription, True) not in partition.subscriptions:
                subscriptions.create_subscription(
                    decisions, catalogue, partition, subscription, partition.mark_delete_before(EARLIEST), properties)


def seal(decisions: Decisions, clients: Clients, topics: TopicTable, consumers: StreamConsumers,
         sealed: SealedSegments, question: questions.Seal) -> questions.Sealed:
    """Seal a segment, unless its children lack a subscription of it.

    Nothing comes between the look at its subscriptions and its end, so a subscription is on all children before one of
    them takes a message, whoever made it.  Where there are sequence ids to hand over, the change is under way until the
    children have them.
    """
    name, catalogue = question.topic, topics.catalogue
    topic = name.base.scalable
    if str(name) not in [segment.topic for segment in _change_of(catalogue, name).layout.segments]:
        raise Refusal(api.TopicNotFound, f"No change seals segment {name}")
    partition = stored(topics, name)
    missing = {subscription.name: subscription.properties for subscription in partition.subscriptions.values()
               if subscription.is_durable and subscription.name not in question.inherited}
    if missing:
        return questions.Sealed(missing=missing, sequences=[])
    _refuse_in_backup(topics)
    sequences = _sequences_of(partition, catalogue)
    with catalogue.topics.transaction():
        catalogue.schedules.seal(name, lambda number: partition.sequences.of(identity_of_schedule(number)).last)
        if question.is_last:
            is_done = not (sequences or question.hands_over)
            layout = (catalogue.scalable_topics.end_change if is_done
                      else catalogue.scalable_topics.put_in_force)(topic)
            log.info("the layout of a scalable topic has changed", topic=topic, epoch=layout.epoch)
        catalogue.partitions.terminate(partition.partition_id)
    _end(decisions, clients, partition)
    sealed.watch(partition)
    decisions.acknowledged[partition] = None      # subscriptions that have nothing left have drained it
    if question.is_last:
        _tell(decisions, clients, consumers)
    return questions.Sealed(missing={}, sequences=sequences)


def _refuse_in_backup(topics: TopicTable) -> None:
    """Raise Refusal while the cuts of a backup may be older than its copy of the catalogue; the change is tried again.

    The new segments may lack what they get in the course of the change.
    """
    if locks.is_held(format.linked_folder(topics.data_dir).with_name(locks.LAYOUTS)):
        raise Refusal(api.ServiceNotReady, "A backup is being made; try again")


def _sequences_of(partition: Partition, catalogue: Catalogue) -> list[questions.Sequence]:
    """Return the sequence ids of all producers; those that open transactions have used may yet be sent again."""
    if not partition.deduplicates:
        return []
    found = {identity: progress.copy() for identity, progress in partition.sequences.by_producer.items()}
    opened = partition.transactions.by_id.values() if partition.transactions is not None else ()
    for identity, progress in found.items():
        for transaction in opened:
            for first, last in transaction.sequences.get(half_of(identity), {}).items():
                progress.give_back(first, last)
    contents = recounting.contents_to_hand_on(partition, catalogue)
    return [questions.Sequence(
        identity.hex(), progress.last, progress.supposed, list(progress.missing), contents.get(identity, ""))
            for identity, progress in found.items()]


def take_sequences(decisions: Decisions, topics: TopicTable, inheritance: Inheritance,
                   question: questions.TakeSequences) -> None:
    """Give a segment the sequence ids of those before it, but no producer that has some here: it may count anew."""
    partition, catalogue = stored(topics, question.topic), topics.catalogue
    _change_of(catalogue, question.topic)
    _refuse_in_backup(topics)
    found: dict[bytes, list[Progress]] = {}
    contents: dict[bytes, bytes] = {}
    for one in itertools.chain.from_iterable(question.parents if partition.deduplicates else ()):
        identity = bytes.fromhex(one.producer)
        if partition.sequences.of(identity).last != NONE:
            continue
        found.setdefault(identity, []).append(
            Progress(one.last, missing=MissingIds(one.missing), supposed=one.supposed))
        contents[identity] = contents.get(identity, b"") + b64decode(one.contents)
    for identity, progresses in found.items():
        progress = united(progresses)
        progress.under_way = partition.sequences.of(identity).under_way
        if ops := partition.sequences.ops(partition.partition_id, identity, progress):
            catalogue.inherited_contents.put(      # it is committed before the journal is
                partition.partition_id, identity, InheritedRow(
                    progress.last, np.array(list(progress.missing), format.GAP_ROW).tobytes(), contents[identity]))
            decisions.note(partition, ops)
            partition.sequences.learn(identity, progress, decisions.now_ms)
    decisions.answer_needs_sync()
    inheritance.has_sequences(partition)


def is_spent(decisions: Decisions, topics: TopicTable, question: questions.IsSpent) -> bool:
    """Whether all subscriptions have acknowledged everything, readers have read it, and no policy keeps it.

    Messages that no durable subscription has ever been there for are kept: as of a dead letter topic, whose consumer
    often comes much later.  So are cleared backlogs that can be taken back, messages of its compacted view, and those
    that the next compaction is to read.
    """
    partition = topics.find(question.topic)
    if partition is None:      # never used
        return True
    if any(backlog.is_left for backlog in partition.cleared):
        return False
    has_messages = any(ledger.entries for ledger in partition.ledgers)
    if has_messages and not any(subscription.is_durable for subscription in partition.subscriptions.values()):
        return False
    last = partition.last_stored
    is_read = all(subscription.cursor.mark_delete >= last for subscription in partition.subscriptions.values())
    kept = partition.ledgers[retention.disposable(partition, decisions.now_ms):]
    if partition.view_number and (partition.view is None or partition.view.manifest.messages):
        return False
    if partition.compacts and has_messages and partition.horizon < last:
        return False
    return (partition.is_terminated and is_read and partition.first_unexported() is None
            and not any(ledger.entries for ledger in kept))


def _change_of(catalogue: Catalogue, name: TopicName) -> LayoutChange:
    """Return the change of layout that is under way.  Raises Refusal: there is none, as its topic was deleted."""
    topic = name.base.scalable
    change = catalogue.scalable_topics.change_of(topic)
    if change is None:
        raise Refusal(api.TopicNotFound, f"No change of {topic} is under way")
    return change


def _end(decisions: Decisions, clients: Clients, partition: Partition) -> None:
    """Let nothing be published to a segment any more, and tell its producers.

    Everything of a producer that was stored has its receipt already, so its client sends again just what was not.
    """
    partition.is_terminated = True
    decisions.answer_needs_sync()
    for producer in partition.producers.expel_all():
        producers.expel_producer(
            decisions, clients, producer, Refusal(api.TopicTerminatedError, _TERMINATED), is_sealed=True)
    decisions.wake(partition)


def segment_loads(topics: TopicTable, consumers: StreamConsumers,
                  question: questions.GetSegmentLoads) -> questions.SegmentLoads:
    rates: dict[str, tuple[float, float, float, float]] = {}
    busiest, most = "", 0.0
    carrying: list[Partition | NonPersistentTopic] = [*topics.by_name.values(), *topics.non_persistent.values()]
    for topic in carrying if question.with_rates else ():
        messages_in, bytes_in, _, messages_out, bytes_out, _ = columns.rates_of(topic, 6)
        if topic.name.is_segment and topic.rates:
            rates[str(topic.name)] = messages_in, bytes_in, messages_out, bytes_out
        elif messages_in + messages_out > most:
            rates.pop(busiest, None)
            busiest, most = str(topic.name), messages_in + messages_out
            rates[busiest] = messages_in, bytes_in, messages_out, bytes_out
    return questions.SegmentLoads(rates, consumers.counts())


def registered(consumers: StreamConsumers,
               question: questions.GetRegistered) -> dict[str, list[questions.Registered]]:
    found = consumers.registered(question.topic)
    return {subscription: [questions.Registered(*one) for one in some] for subscription, some in found.items()}


def layouts_changed(decisions: Decisions, clients: Clients, consumers: StreamConsumers, recurring: RecurringMessages,
                    question: questions.LayoutsChanged) -> None:
    recurring.tick(decisions.now_ms)
    _tell(decisions, clients, consumers)


def _tell(decisions: Decisions, clients: Clients, consumers: StreamConsumers) -> None:
    """Tell workers with clients here, and stream consumers, of changed layouts.

    Workers and owners look at the catalogue from time to time too.  But a producer of the sealed segment sends nothing
    until it is told where, and its worker has it connected here.
    """
    for worker in clients.sessions.workers:
        decisions.outbox(worker).layouts_changed()
    consumers.layouts_changed()
