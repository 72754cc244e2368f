"""Topics and subscriptions that a question of administration names."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName, remote_of
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription, Topic


def topic_of(topics: TopicTable, name: TopicName) -> Partition | NonPersistentTopic:
    """Return the topic of that name, also if it was created but never used.  Raises Refusal."""
    topic = topics.find(name) if name.is_persistent else topics.non_persistent.get(name)
    if topic is None:
        if not topics.catalogue.topics.exists(name):
            raise Refusal(api.TopicNotFound, f"Topic {name} not found")
        topic = topics.find_or_create(name, may_create=False)
    return topic


def stored(topics: TopicTable, name: TopicName) -> Partition:
    """Return the partition of that name.  Raises Refusal if there is none, or for a non-persistent topic."""
    topic = topic_of(topics, name) if name.is_persistent else None
    if not isinstance(topic, Partition):
        raise Refusal(api.NotAllowedError, f"{name} keeps nothing")
    return topic


def has_subscription(topic: Topic, name: str) -> bool:
    """Whether the topic has a subscription of that name, durable or not, or a replication cursor."""
    return (name, True) in topic.subscriptions or (name, False) in topic.subscriptions


def subscription_of(topic: Topic, name: str) -> Subscription:
    """Return the topic's subscription of that name; the durable one, if there are two of that name.

    Raises Refusal if there is none, and for a replication cursor.
    """
    subscription = cursor_of(topic, name)
    if remote_of(name) is not None:
        raise _not_found(topic, name)
    return subscription


def cursor_of(topic: Topic, name: str) -> Subscription:
    """Return the topic's subscription or replication cursor of that name.  Raises Refusal if there is none."""
    subscription = topic.subscriptions.get((name, True)) or topic.subscriptions.get((name, False))
    if subscription is None:
        raise _not_found(topic, name)
    return subscription


def _not_found(topic: Topic, name: str) -> Refusal:
    return Refusal(api.SubscriptionNotFound, f"Subscription {name} not found for topic {topic.name}")
