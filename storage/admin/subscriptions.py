"""Answers to questions about subscriptions: create and delete them, their properties, and their quarantine."""
from itertools import groupby

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import remote_of
from geminga.storage.admin import positions, questions
from geminga.storage.commands import subscriptions
from geminga.storage.commands.topic_lookup import has_subscription, stored, subscription_of, topic_of
from geminga.storage.filters.sieve import FILTER
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics import acknowledge, dead_letters, filtering
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.topics.subscription import Subscription, SubType


def names(topics: TopicTable, question: questions.Subscriptions) -> list[str]:
    """Return the names of all subscriptions of a topic, sorted, without replication cursors."""
    return sorted({name for name, _ in topic_of(topics, question.topic).subscriptions if remote_of(name) is None})


def subscribe(decisions: Decisions, topics: TopicTable, question: questions.Subscribe) -> bool:
    """Create a durable subscription.  Returns False if it exists already."""
    name = question.topic
    subscriptions.check_name(question.subscription)
    if question.new and topics.catalogue.partitions.find(name) is None:
        topics.create(name)
    if question.may_create:
        topics.find_or_create(name)
    partition = stored(topics, name)
    if (question.subscription, True) in partition.subscriptions:
        return False
    subscriptions.check_new_name(question.subscription)
    filtering.refuse(partition, None, (question.properties or {}).get(FILTER))
    if question.looks:
        subscriptions.refuse_one_too_many(partition)
        return True
    position, words = positions.start_of(partition, question.position or EARLIEST, question)
    made = subscriptions.create_subscription(
        decisions, topics.catalogue, partition, question.subscription, partition.mark_delete_before(position),
        question.properties)
    acknowledge.begin_within(decisions, made, position, words)
    if question.replicated:
        subscriptions.set_replicated(decisions, topics.catalogue, made, True)
    if question.shared:
        subscriptions.keep_type(decisions, made, SubType.Shared)
    return True


def unsubscribe(decisions: Decisions, clients: Clients, topics: TopicTable, question: questions.Unsubscribe) -> None:
    topic = topic_of(topics, question.topic)
    if question.everywhere and not has_subscription(topic, question.subscription):
        return
    subscription = subscription_of(topic, question.subscription)
    if subscription.consumers and not question.force:
        raise Refusal(api.ConsumerBusy, "Subscription has active connected consumers")
    if not question.looks:
        subscriptions.delete_subscription(decisions, clients, topics.catalogue, subscription)


def properties(decisions: Decisions, topics: TopicTable, question: questions.Properties) -> dict[str, str]:
    topic = topic_of(topics, question.topic)
    subscription = subscription_of(topic, question.subscription)
    if question.properties is not None:
        text = question.properties.get(FILTER)
        filtering.refuse_change(subscription, text)
        if text != subscription.properties.get(FILTER):
            filtering.refuse(topic, None, text)
        if not question.looks:
            subscriptions.set_properties(decisions, topics.catalogue, subscription, question.properties)
    return subscription.properties


def replicated(decisions: Decisions, topics: TopicTable, question: questions.Replicated) -> dict[str, bool]:
    subscription = subscription_of(stored(topics, question.topic), question.subscription)
    if question.replicated is not None:
        subscriptions.set_replicated(decisions, topics.catalogue, subscription, question.replicated)
    return {str(question.topic): subscription.is_replicated}


def take_back(decisions: Decisions, topics: TopicTable, question: questions.TakeBack) -> questions.TakenBack:
    partition = stored(topics, question.topic)
    subscription = subscription_of(partition, question.subscription)
    if not question.looks and not dead_letters.is_undone(subscription):
        raise Refusal(api.ConsumerNotFound, "The connection that takes messages back has ended")
    if not subscription.is_spread and subscription.consumers:
        raise Refusal(api.ConsumerBusy, "The subscription has a consumer that may acknowledge cumulatively: only "
                                        "Shared and Key_Shared ones may be connected meanwhile")
    [ledger_id] = {ledger_id for ledger_id, _ in question.positions}
    entries = np.array([entry_id for _, entry_id in question.positions], np.int64)
    ledger = partition.find(ledger_id)
    if not isinstance(ledger, Ledger):
        return questions.TakenBack(0, 0, 0)
    return questions.TakenBack(*dead_letters.take_back(
        decisions, subscription, ledger, entries[entries < ledger.entries], looks=question.looks))


def all_parked(subscription: Subscription) -> list[Position]:
    """Return the positions of all unacknowledged entries of a subscription's quarantine, ascending."""
    cursor = subscription.cursor
    reached = cursor.deaths.at_least(subscription.deaths_max) if subscription.deaths_max else {}
    return [(ledger_id, entry_id) for ledger_id, entries in sorted(reached.items()) for entry_id in entries.tolist()
            if not cursor.is_acknowledged(ledger_id, entry_id)]


def release(decisions: Decisions, topics: TopicTable, question: questions.Release) -> questions.Released:
    """Deliver the parked entries of a subscription's quarantine again, and set its counts of deaths to 0."""
    partition = stored(topics, question.topic)
    subscription = subscription_of(partition, question.subscription)
    parked = all_parked(subscription)
    subscription.cursor.deaths.clear()
    decisions.note(partition, journal_ops.deaths_forgotten(partition.partition_id, subscription.cursor.subscription_id))
    decisions.answer_needs_sync()
    if parked and subscription.dispatcher is not None:
        by_ledger = groupby(parked, key=lambda position: position[0])
        subscription.dispatcher.released(      # without those that open transactions acknowledge
            [(ledger_id, subscription.left_of(ledger_id, np.array([entry_id for _, entry_id in positions])))
             for ledger_id, positions in by_ledger])
        decisions.wake(partition)
    return questions.Released(len(parked))
