"""What a question of administration names: a topic, a subscription.  Raises Refusal for what is not there."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.commands import topics
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription


def topic_of(owner, name: TopicName) -> Partition | NonPersistentTopic:
    """A topic that was made and never used is there too."""
    found = owner.partition(name) if name.is_persistent else owner.live.get(name)
    if found is None:
        if not owner.catalogue.topics.exists(name):
            raise Refusal(api.TopicNotFound, f"Topic {name} not found")
        found = topics.find_or_create(owner, name, may_create=False)
    return found


def stored(owner, name: TopicName) -> Partition:
    if not name.is_persistent:
        raise Refusal(api.NotAllowedError, f"{name} keeps nothing")
    return topic_of(owner, name)


def has_subscription(found: Partition | NonPersistentTopic, name: str) -> bool:
    return (name, True) in found.subscriptions or (name, False) in found.subscriptions


def subscription_of(found: Partition | NonPersistentTopic, name: str) -> Subscription:
    """The durable one, when there are two of that name."""
    subscription = found.subscriptions.get((name, True)) or found.subscriptions.get((name, False))
    if subscription is None:
        raise Refusal(api.SubscriptionNotFound, f"Subscription {name} not found for topic {found.name}")
    return subscription
