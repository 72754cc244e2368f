"""Answers to questions about subscriptions: create and delete them, their properties, and their quarantine."""
from itertools import groupby

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import remote_of
from geminga.storage.admin import positions
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.questions import (
    Properties,
    Release,
    Released,
    Replicated,
    Subscribe,
    Subscriptions,
    Unsubscribe,
)
from geminga.storage.commands import subscriptions, topics
from geminga.storage.commands.topic_lookup import has_subscription, stored, subscription_of, topic_of
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.ledgers.position import Position
from geminga.storage.topics import acknowledge
from geminga.storage.topics.subscription import Subscription


def names(owner: AdministeredOwner, question: Subscriptions) -> list[str]:
    """Return the names of all subscriptions of a topic, sorted, without replication cursors."""
    return sorted({name for name, _ in topic_of(owner, question.topic).subscriptions if remote_of(name) is None})


def subscribe(owner: AdministeredOwner, question: Subscribe) -> bool:
    """Create a durable subscription.  Returns False if it exists already."""
    name = question.topic
    subscriptions.check_name(question.subscription)
    if question.new and owner.catalogue.partitions.find(name) is None:
        owner.create_partition(name)
    if question.may_create:
        topics.find_or_create(owner, name)
    partition = stored(owner, name)
    if (question.subscription, True) in partition.subscriptions:
        return False
    subscriptions.check_new_name(question.subscription)
    position, words = positions.start_of(partition, question.position or EARLIEST, question)
    made = subscriptions.create_subscription(
        owner, partition, question.subscription, partition.mark_delete_before(position), question.properties)
    acknowledge.begin_within(owner, made, position, words)
    if question.replicated:
        subscriptions.set_replicated(owner, made, True)
    return True


def unsubscribe(owner: AdministeredOwner, question: Unsubscribe) -> None:
    """Delete a subscription.  Raises Refusal if it has consumers, unless the question has `force`."""
    topic = topic_of(owner, question.topic)
    if question.everywhere and not has_subscription(topic, question.subscription):
        return
    subscription = subscription_of(topic, question.subscription)
    if subscription.consumers and not question.force:
        raise Refusal(api.ConsumerBusy, "Subscription has active connected consumers")
    subscriptions.delete_subscription(owner, subscription)


def properties(owner: AdministeredOwner, question: Properties) -> dict[str, str]:
    """Return the properties of a subscription, after replacing them if the question has new ones."""
    subscription = subscription_of(topic_of(owner, question.topic), question.subscription)
    if question.properties is not None:
        subscriptions.set_properties(owner, subscription, question.properties)
    return subscription.properties


def replicated(owner: AdministeredOwner, question: Replicated) -> dict[str, bool]:
    """Return {topic: whether the subscription is marked as replicated}, after setting the mark if one is given."""
    subscription = subscription_of(stored(owner, question.topic), question.subscription)
    if question.replicated is not None:
        subscriptions.set_replicated(owner, subscription, question.replicated)
    return {str(question.topic): subscription.is_replicated}


def all_parked(subscription: Subscription) -> list[Position]:
    """Return the positions of all unacknowledged entries of a subscription that are parked, ascending."""
    cursor = subscription.cursor
    reached = cursor.deaths.at_least(subscription.deaths_max) if subscription.deaths_max else {}
    return [(ledger_id, entry_id) for ledger_id, entries in sorted(reached.items()) for entry_id in entries.tolist()
            if not cursor.is_acknowledged(ledger_id, entry_id)]


def release(owner: AdministeredOwner, question: Release) -> Released:
    """Deliver the parked entries of a subscription's quarantine again, and set its counts of deaths to 0."""
    partition = stored(owner, question.topic)
    subscription = subscription_of(partition, question.subscription)
    parked = all_parked(subscription)
    subscription.cursor.deaths.clear()
    owner.note(partition, journal_ops.deaths_forgotten(partition.partition_id, subscription.cursor.subscription_id))
    owner.answer_needs_sync()
    if parked and subscription.dispatcher is not None:
        by_ledger = groupby(parked, key=lambda position: position[0])
        subscription.dispatcher.released(      # without those that open transactions acknowledge
            [(ledger_id, subscription.left_of(ledger_id, np.array([entry_id for _, entry_id in positions])))
             for ledger_id, positions in by_ledger])
        owner.wake(partition)
    return Released(len(parked))
