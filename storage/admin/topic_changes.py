"""Answers to questions about whole topics: terminate, unload, delete, truncate, trim, and apply changed policies."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.questions import (
    ApplyOptions,
    ApplyPolicies,
    Delete,
    IsUsed,
    OpenTopics,
    Terminate,
    Trim,
    Truncate,
    Unload,
)
from geminga.storage.commands import commands, producers, topics
from geminga.storage.commands.topic_lookup import stored, topic_of
from geminga.storage.ledgers.position import Position
from geminga.storage.topics import acknowledge
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition


def terminate(owner: AdministeredOwner, question: Terminate) -> Position:
    """Terminate a topic: close its producers, and refuse new ones.  Returns the position of the last entry."""
    partition = stored(owner, question.topic)
    if not partition.is_terminated:
        owner.catalogue.partitions.terminate(partition.partition_id)
        partition.is_terminated = True
        owner.answer_needs_sync()
    for producer in partition.producers.expel_all():
        producers.expel_producer(owner, producer)
    owner.wake(partition)
    return partition.last_confirmed


def unload(owner: AdministeredOwner, question: Unload) -> None:
    """Unload a topic.  A non-persistent topic is forgotten unless a client uses it."""
    topic = topic_of(owner, question.topic)
    commands.expel_all(owner, topic)
    if isinstance(topic, Partition):
        owner.release(topic)
    else:
        topics.forget_if_idle(owner, topic)


def open_topics(owner: AdministeredOwner, question: OpenTopics) -> list[str]:
    """Return the open topics of a namespace."""
    return [str(name) for name in [*owner.by_name, *owner.non_persistent] if name.namespace == question.namespace]


def delete(owner: AdministeredOwner, question: Delete) -> None:
    """Delete a topic or partition without opening it, so that a damaged one can be deleted too."""
    name = question.topic
    if not name.is_persistent:
        return _delete_non_persistent(owner, question)
    if owner.catalogue.partitions.find(name) is None and not owner.catalogue.topics.exists(name):
        if question.gone:
            return
        raise Refusal(api.TopicNotFound, f"Topic {name} not found")
    if (partition := owner.by_name.get(name)) is not None:
        _refuse_used(partition, question.force)
        commands.expel_all(owner, partition)
    owner.delete(name)


def _delete_non_persistent(owner: AdministeredOwner, question: Delete) -> None:
    name = question.topic
    if (topic := owner.non_persistent.get(name)) is not None:
        _refuse_used(topic, question.force)
        commands.expel_all(owner, topic)
        owner.forget_topic(topic)
    elif not (owner.catalogue.topics.exists(name) or question.gone):
        raise Refusal(api.TopicNotFound, f"Topic {name} not found")
    owner.catalogue.topics.delete(name)
    owner.answer_needs_sync()


def is_used(owner: AdministeredOwner, question: IsUsed) -> bool:
    """Whether the topic has producers or consumers; a topic that is not open has none."""
    topic = owner.by_name.get(question.topic) or owner.non_persistent.get(question.topic)
    return topic is not None and bool(_connected(topic))


def _refuse_used(topic: Partition | NonPersistentTopic, force: bool) -> None:
    if not force and (connected := _connected(topic)):
        raise Refusal(api.ConsumerBusy, f"Topic has {connected} connected producers/consumers")


def _connected(topic: Partition | NonPersistentTopic) -> int:
    """Return the number of the topic's producers and consumers, without the consumers of replication cursors."""
    subscriptions = [one for one in topic.subscriptions.values() if one.remote is None]
    return len(topic.producers.live) + sum(len(subscription.consumers) for subscription in subscriptions)


def truncate(owner: AdministeredOwner, question: Truncate) -> None:
    """Acknowledge all entries of a topic for all subscriptions, and delete all its ledgers."""
    partition = stored(owner, question.topic)
    for subscription in partition.subscriptions.values():
        acknowledge.skip_to(owner, subscription, partition.last_confirmed)
    owner.truncate(partition)


def trim(owner: AdministeredOwner, question: Trim) -> None:
    """Have the ledgers that no subscription and no policy needs deleted at the end of the pass."""
    owner.wake_trimming(stored(owner, question.topic))


def apply_policies(owner: AdministeredOwner, question: ApplyPolicies) -> None:
    """Apply changed policies to open topics, and begin a new scan of closed partitions."""
    open_topics: list[Partition | NonPersistentTopic] = [*owner.by_name.values(), *owner.non_persistent.values()]
    for topic in open_topics:
        if question.scope in (topic.name.namespace, str(topic.name.base)):
            owner.apply_policies(topic)
    owner.closed_scan.begin()


def apply_options(owner: AdministeredOwner, question: ApplyOptions) -> None:
    """Apply options that were changed in the catalogue while the broker runs."""
    owner.apply_options()
