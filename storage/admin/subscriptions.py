"""Answers to questions about subscriptions: create and delete them, their properties, and why one stands still."""
from typing import Any

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin import delayed_messages, positions
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.questions import (
    Properties,
    Release,
    Released,
    Replicated,
    Standstill,
    Subscribe,
    Subscriptions,
    Unsubscribe,
    Why,
)
from geminga.storage.commands import subscriptions, topics
from geminga.storage.commands.topic_lookup import has_subscription, stored, subscription_of, topic_of
from geminga.storage.cursors.cursor import REASONS
from geminga.storage.enforcement import rate_limiter
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.managed_ledger import EARLIEST
from geminga.storage.topics import acknowledge
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

_CAUSES_MAX = 100      # parked entries in one answer


def names(owner: AdministeredOwner, question: Subscriptions) -> list[str]:
    """Return the names of all subscriptions of a topic, sorted."""
    return sorted({name for name, _ in topic_of(owner, question.topic).subscriptions})


def subscribe(owner: AdministeredOwner, question: Subscribe) -> bool:
    """Create a durable subscription.  Returns False if it exists already."""
    name = question.topic
    if question.new and owner.catalogue.partitions.find(name) is None:
        owner.create_partition(name)
    if question.may_create:
        topics.find_or_create(owner, name)
    partition = stored(owner, name)
    if (question.subscription, True) in partition.subscriptions:
        return False
    subscriptions.check_name(question.subscription)
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


# -- standstills

def why(owner: AdministeredOwner, question: Why) -> Standstill:
    """Return the state of a subscription, with the causes that keep its consumers from receiving more."""
    topic = topic_of(owner, question.topic)
    subscription = subscription_of(topic, question.subscription)
    topic.now_ms = owner.now_ms
    return Standstill(str(question.topic), subscription.name, subscription.kind_name,
                      subscription.cursor.backlog(topic.ledgers), _messages(subscription), _causes(owner, subscription))


def _messages(subscription: Subscription) -> dict[str, int]:
    """Return how many messages were published since the subscription began, and what became of them.

    The value of `published` is the sum of all other values. A non-persistent topic gives {}.
    """
    partition, cursor = subscription.partition, subscription.cursor
    if not isinstance(partition, Partition):
        return {}
    return {"published": partition.next_message - cursor.since, **dict(zip(REASONS, cursor.totals, strict=True)),
            "backlog": cursor.backlog_messages(partition.ledgers)}


def _causes(owner: AdministeredOwner, subscription: Subscription) -> list[dict[str, object]]:
    """Return {"cause": ..., and details} for each cause that keeps the subscription's consumers from receiving more."""
    topic = subscription.partition
    throttled, waiting = rate_limiter.causes(owner, subscription), owner.rates.causes(topic)
    if isinstance(topic, Partition) and not subscription.cursor.backlog(topic.ledgers):
        return [{"cause": "end of topic" if topic.is_terminated else "no backlog"}, *waiting]
    parked = [{"cause": "parked", "message": "{}:{}".format(*position), "deaths": subscription.deaths_max}
              for position in subscription.all_parked()[:_CAUSES_MAX]]
    others: list[dict[str, Any]] = [{"cause": "no consumer"}]
    if subscription.dispatcher is not None:
        others = subscription.dispatcher.causes()
    for cause in others:
        if cause["cause"] == "delayed messages" and topic.schedule is not None:
            cause["until_ms"] = delayed_messages.next_due_ms(topic.schedule, cause["until_ms"])
    if throttled:
        # The dispatcher sees nothing in the way and blames its consumers; a rate is in the way.
        others = [cause for cause in others if cause["cause"] != "no acknowledgements"]
    return parked + throttled + others + waiting


def release(owner: AdministeredOwner, question: Release) -> Released:
    """Deliver the parked entries of a subscription's quarantine again, and set its counts of deaths to 0."""
    partition = stored(owner, question.topic)
    subscription = subscription_of(partition, question.subscription)
    parked = subscription.all_parked()
    subscription.cursor.deaths.clear()
    owner.note(partition, journal_ops.deaths_forgotten(partition.partition_id, subscription.cursor.subscription_id))
    owner.answer_needs_sync()
    if parked and subscription.dispatcher is not None:
        subscription.dispatcher.released(parked)
        owner.wake(partition)
    return Released(len(parked))
