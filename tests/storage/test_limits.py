"""Limits: what policies forbid or delete, whichever level has them."""
import json

import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import parse

from .rig import entry_of

T = api.BaseCommand.Type
TOPIC, NAMESPACE = "persistent://public/default/t", "public/default"
LIVE = "non-persistent://public/default/t"
SHARED, EXCLUSIVE, FAILOVER, KEY_SHARED = (api.CommandSubscribe.SubType.Value(name) for name in (
    "Shared", "Exclusive", "Failover", "Key_Shared"))

both = pytest.mark.parametrize("topic", [TOPIC, LIVE])


def set_policy(rig, name, value, scope=NAMESPACE):
    """Set a policy as administration does: in the catalogue, then with a question to the owner."""
    rig.owner.catalogue.policies.set(scope, name, value)
    rig.owner.catalogue.commit()
    return rig.run(rig.tell("policies", scope=scope))


def error_of(answers):
    [found] = answers.commands(T.ERROR)
    return found.error.error, found.error.message


def ask_producer(rig, topic, number, *, connection=1, **fields):
    command = rig.command("producer", connection=connection, topic=topic, producer_id=number, request_id=number,
                          **fields)
    return rig.run(command)


def ask_consumer(rig, topic, subscription, **fields):
    return rig.run(rig.subscribe(topic, subscription, **fields)[0])


def tick(rig, seconds):
    """Let seconds pass, with a tick of the owner in each."""
    for _ in range(seconds):
        rig.run(after_ms=1_000)


# -- how many

@both
def test_a_topic_has_so_many_producers_and_one_more_when_one_has_gone(rigs, topic):
    rig = rigs()
    first = rig.producer(topic)
    set_policy(rig, "maxProducers", 2)
    rig.producer(topic)
    assert error_of(ask_producer(rig, topic, 77)) == (api.ProducerBusy, f"Topic '{topic}' reached max producers limit")
    rig.run(rig.command("close_producer", producer_id=first.object_id, request_id=9))
    rig.producer(topic)
    set_policy(rig, "maxProducers", 0)
    rig.producer(topic)


@both
def test_a_topic_has_so_many_consumers_whatever_their_subscriptions(rigs, topic):
    rig = rigs()
    set_policy(rig, "maxConsumers", 2)
    first = rig.consumer(topic, "a", subType=SHARED)
    rig.consumer(topic, "b", subType=SHARED)
    for name in ("a", "c"):
        error = error_of(ask_consumer(rig, topic, name, subType=SHARED))
        assert error == (api.ConsumerBusy, "Topic reached max consumers limit")
    rig.close_consumer(first)
    rig.consumer(topic, "b", subType=SHARED)
    name = rig.topic(topic)
    topics = rig.owner.topics
    assert ("c", True) not in topics.by_name.get(name, topics.non_persistent.get(name)).subscriptions


def introduced(rig, connection, address):
    """Have the connection's client say from which host it comes."""
    rig.run(rig.happened(envelope.INTRODUCED, connection=connection, data=json.dumps(
        {"address": address, "version": "", "partial": False, "positions": False, "superuser": False,
         "replicator": False, "role": "",
         "connected_ms": 0}).encode()))


@both
def test_a_topic_has_so_many_producers_and_consumers_of_one_address(rigs, topic):
    rig = rigs(max_same_address_producers_per_topic=1, max_same_address_consumers_per_topic=2)
    for connection, address in ((1, "/10.0.0.1:1000"), (2, "/10.0.0.1:1001"), (3, "/10.0.0.2:1000")):
        introduced(rig, connection, address)
    first = rig.producer(topic)
    for connection in (1, 2):
        refused = ask_producer(rig, topic, 77, connection=connection)
        assert error_of(refused) == (api.ProducerBusy, f"Topic '{topic}' reached max same address producers limit")
    rig.producer(topic, connection=3)
    rig.run(rig.command("close_producer", producer_id=first.object_id, request_id=9))
    rig.producer(topic, connection=2)
    rig.consumer(topic, "a", connection=1)
    rig.consumer(topic, "b", connection=2)
    error = error_of(ask_consumer(rig, topic, "c"))
    assert error == (api.ConsumerBusy, "Topic reached max same address consumers limit")
    rig.consumer(topic, "c", connection=3)


def test_system_topics_have_as_many_of_one_address_as_want(rigs):
    rig = rigs(max_same_address_producers_per_topic=1)
    for _ in range(2):
        rig.producer("persistent://pulsar/system/healthcheck")


def test_a_subscription_has_so_many_consumers(rigs):
    rig = rigs(max_consumers_per_subscription=1)
    rig.consumer(TOPIC, "a", subType=SHARED)
    error = error_of(ask_consumer(rig, TOPIC, "a", subType=SHARED))
    assert error == (api.ConsumerBusy, "Subscription reached max consumers limit")
    rig.consumer(TOPIC, "b", subType=SHARED)
    set_policy(rig, "maxConsumersPerSubscription", 2)
    rig.consumer(TOPIC, "a", subType=SHARED)


def test_a_topic_has_so_many_subscriptions_however_they_are_made(rigs):
    rig = rigs()
    rig.consumer(TOPIC, "a")
    set_policy(rig, "maxSubscriptionsPerTopic", 1, TOPIC)
    refused = api.NotAllowedError, f"Exceed the maximum number of subscriptions of the topic: {TOPIC}"
    assert error_of(ask_consumer(rig, TOPIC, "b")) == refused
    assert error_of(ask_consumer(rig, TOPIC, "reader", durable=False)) == refused
    assert error_of(ask_producer(rig, TOPIC, 77, initial_subscription_name="c")) == refused
    for looks in (False, True):
        [answer] = rig.run(rig.question("subscribe", TOPIC, subscription="d", looks=looks)).answered
        assert (answer["refused"], answer["text"]) == refused
    assert set(rig.partition(TOPIC).subscriptions) == {("a", True)}
    [refused] = ask_consumer(rig, TOPIC, "a", subType=EXCLUSIVE).commands(T.ERROR)
    assert refused.error.error == api.ConsumerBusy      # the subscription exists, and has a consumer
    set_policy(rig, "maxSubscriptionsPerTopic", 2, TOPIC)
    assert rig.asked("subscribe", TOPIC, subscription="d", looks=True) is True
    assert set(rig.partition(TOPIC).subscriptions) == {("a", True)}


def test_a_namespace_has_so_many_topics_and_partitions(rigs):
    rig = rigs()
    rig.owner.catalogue.topics.create(rig.topic("persistent://public/default/parts"), 2)
    system_topic = rig.topic("persistent://public/default/__change_events")      # which does not count
    rig.owner.catalogue.topics.create(system_topic, 0)
    set_policy(rig, "maxTopicsPerNamespace", 3)
    rig.producer(TOPIC)
    refused = api.NotAllowedError, "Exceed maximum number of topics in namespace."
    assert error_of(ask_producer(rig, TOPIC + "2", 77)) == error_of(ask_consumer(rig, LIVE + "3", "sub")) == refused
    rig.producer("persistent://public/default/parts-partition-1")      # the partition counts already
    rig.producer(TOPIC)
    set_policy(rig, "maxTopicsPerNamespace", 4)
    rig.producer(TOPIC + "2")


# -- what

@both
def test_messages_larger_than_the_topic_takes_are_refused_one_by_one(rigs, topic):
    """A message of exactly the maximum size is accepted. A larger one is refused, and the producer's later messages
    are accepted.
    """
    rig = rigs()
    producer = rig.producer(topic)
    set_policy(rig, "maxMessageSize", len(entry_of(b"x" * 100, sequence_id=1)), topic)
    payloads = b"x" * 100, b"x" * 101, b"y", b"z" * 5_000
    answers = rig.run(rig.sends(*[(producer, payload) for payload in payloads]))
    assert len(answers.receipts) == 2
    assert [(one.send_error.error, one.send_error.message) for one in answers.commands(T.SEND_ERROR)] == [
        (api.NotAllowedError, "Exceed maximum message size")] * 2
    set_policy(rig, "maxMessageSize", None, topic)
    assert len(rig.publish(producer, b"z" * 5_000)) == 1


@both
def test_producers_encrypt_where_they_must(rigs, topic):
    rig = rigs()
    old = rig.producer(topic)
    answers = set_policy(rig, "encryptionRequired", True)
    assert [(action, number) for _, action, number, _, command in answers.replies if command is not None] == [
        (envelope.PRODUCER_GONE, old.object_id)]
    assert error_of(ask_producer(rig, topic, 77)) == (api.MetadataError, f"Encryption is required in {topic}")
    producer = rig.producer(topic, encrypted=True)
    answers = rig.run(rig.sends((producer, b"open")))
    assert [(one.send_error.error, one.send_error.message) for one in answers.commands(T.SEND_ERROR)] == [
        (api.MetadataError, "Messages must be encrypted")]
    keys = [api.EncryptionKeys(key="k", value=b"v")]
    assert len(rig.run(rig.sends((producer, b"closed", {"encryption_keys": keys}))).receipts) == 1
    set_policy(rig, "encryptionRequired", False)
    assert len(rig.publish(producer, b"open")) == 1


@both
def test_only_the_enabled_types_of_subscriptions_are_made(rigs, topic):
    rig = rigs(subscription_types=("Shared", "Exclusive"))
    assert error_of(ask_consumer(rig, topic, "a", subType=KEY_SHARED))[0] == api.NotAllowedError
    rig.consumer(topic, "a", subType=EXCLUSIVE)
    set_policy(rig, "subscriptionTypesEnabled", ["Failover"])
    assert error_of(ask_consumer(rig, topic, "b", subType=SHARED)) == (
        api.NotAllowedError, f"Topic[{{{topic}}}] doesn't support Shared sub type!")
    rig.consumer(topic, "b", subType=FAILOVER)
    set_policy(rig, "subscriptionTypesEnabled", [])      # an empty list leaves the broker's types in force
    rig.consumer(topic, "c", subType=SHARED)


# -- what comes to be

def test_topics_are_not_made_where_that_is_off(rigs):
    rig = rigs()
    set_policy(rig, "autoTopicCreation", {"allowAutoTopicCreation": False})
    for topic in (TOPIC, LIVE):
        assert error_of(ask_producer(rig, topic, 77))[0] == api.TopicNotFound
        assert error_of(ask_consumer(rig, topic, "sub"))[0] == api.TopicNotFound
    rig.owner.catalogue.topics.create(rig.topic(TOPIC), 0)
    rig.producer(TOPIC)


def test_topics_are_made_where_the_namespace_says_so_though_the_broker_does_not(rigs):
    rig = rigs(auto_create_topics=False)
    assert error_of(ask_producer(rig, TOPIC, 77))[0] == api.TopicNotFound
    set_policy(rig, "autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "non-partitioned"})
    rig.producer(TOPIC)


def test_subscriptions_are_not_made_where_that_is_off(rigs):
    """A new subscription is refused where automatic creation is off. Readers may subscribe, because their
    subscriptions are not stored.
    """
    rig = rigs()
    rig.producer(TOPIC)
    set_policy(rig, "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}, TOPIC)
    assert error_of(ask_consumer(rig, TOPIC, "a")) == (api.SubscriptionNotFound, "Subscription does not exist")
    assert error_of(ask_producer(rig, TOPIC, 77, initial_subscription_name="a"))[0] == api.NotAllowedError
    rig.consumer(TOPIC, "reader", durable=False)
    assert rig.asked("subscribe", TOPIC, subscription="a")
    rig.consumer(TOPIC, "a")


# -- how much is out

def test_the_bound_of_unacknowledged_messages_changes_at_once(rigs):
    rig = rigs()
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=SHARED)
    positions = rig.publish(producer, *[b"%d" % number for number in range(20)])
    set_policy(rig, "maxUnackedMessagesPerConsumer", 5)
    assert len(rig.receive(consumer, 100)) == 5
    assert len(rig.delivered(set_policy(rig, "maxUnackedMessagesPerConsumer", 8), consumer)) == 3
    assert rig.delivered(set_policy(rig, "maxUnackedMessagesPerSubscription", 6), consumer) == []
    rig.run(rig.acks(consumer, *positions[:4]))
    answers = set_policy(rig, "maxUnackedMessagesPerSubscription", None)
    assert len(rig.delivered(answers, consumer)) == 4
    assert len(rig.delivered(set_policy(rig, "maxUnackedMessagesPerConsumer", 0), consumer)) == 8


def test_subscriptions_with_most_wait_while_the_broker_has_too_many_unacknowledged_messages(rigs):
    """When the bound of 20 is reached, no subscription gets more than 5, until fewer than 10 are unacknowledged."""
    rig = rigs(max_unacked_messages_per_broker=20, max_unacked_percent_when_blocked=25)
    producer = rig.producer(TOPIC)
    large, small = (rig.consumer(TOPIC, name, subType=SHARED) for name in ("large", "small"))
    exclusive = rig.consumer(TOPIC, "exclusive")
    positions = rig.publish(producer, *[b"%d" % number for number in range(60)])
    assert len(rig.receive(large, 20)) == 20 and len(rig.receive(small, 3)) == 3
    tick(rig, 1)
    assert rig.receive(large, 30) == [] and len(rig.receive(small, 30)) == 2 and len(rig.receive(exclusive, 60)) == 60
    [cause] = rig.asked("why", TOPIC, subscription="large")["causes"]
    assert (cause["cause"], cause["messages"], cause["limit"]) == ("unacknowledged messages of the broker", 20, 5)
    answers = rig.run(rig.acks(large, *positions[:15]))
    assert rig.delivered(answers, large) == []
    tick(rig, 1)      # 10 are left, half of the bound
    assert rig.delivered(rig.run(), large) == []
    rig.run(rig.acks(large, positions[15]))
    answers = rig.run(after_ms=1_000)
    assert len(rig.delivered(answers, large)) > 0 < len(rig.delivered(answers, small))


def test_a_broker_without_that_bound_holds_nobody_up(rigs):
    rig = rigs(max_unacked_percent_when_blocked=1)
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=SHARED)
    rig.publish(producer, *[b"x"] * 50)
    assert len(rig.receive(consumer, 20)) == 20
    tick(rig, 1)
    assert len(rig.receive(consumer, 100)) == 30


def test_messages_wait_for_their_time_only_where_that_is_on(rigs):
    rig = rigs()
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=SHARED)
    rig.run(rig.flow(consumer, 100))
    later = {"deliver_at_time": rig.now_ms + 60_000}
    assert rig.delivered(rig.run(rig.sends((producer, b"later", later))), consumer) == []
    answers = set_policy(rig, "delayedDelivery", {"active": False, "tickTime": 1_000})
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"later"]
    answers = rig.run(rig.sends((producer, b"now", later)))
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"now"]
    set_policy(rig, "delayedDelivery", None)
    assert rig.delivered(rig.run(rig.sends((producer, b"later", later))), consumer) == []


# -- what nobody uses

INACTIVE = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 10,
            "deleteWhileInactive": True}


def test_a_topic_that_nobody_uses_is_deleted_in_time_and_not_before(rigs):
    rig = rigs(discovery_grace_s=0)
    set_policy(rig, "inactiveTopicPolicies", INACTIVE)
    producer = rig.producer(TOPIC)
    rig.publish(producer, b"first")
    tick(rig, 30)
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=9))
    folder = rig.partition(TOPIC).folder
    tick(rig, 9)
    assert rig.owner.catalogue.topics.exists(rig.topic(TOPIC))
    tick(rig, 3)
    assert not rig.owner.catalogue.topics.exists(rig.topic(TOPIC))
    rig.run(after_ms=1_000)
    assert not list(folder.glob("*.ledger"))
    assert rig.publish(rig.producer(TOPIC), b"anew")


def test_a_segment_that_nobody_uses_stays_with_its_topic(rigs):
    rig = rigs(discovery_grace_s=0)
    topic = parse("topic://public/default/scaled")
    rig.owner.catalogue.scalable_topics.create(topic, 1)
    set_policy(rig, "inactiveTopicPolicies", INACTIVE)
    [segment] = map(str, rig.owner.catalogue.topics.parts(topic))
    producer = rig.producer(segment)
    rig.publish(producer, b"first")
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=9))
    tick(rig, 15)
    consumer = rig.consumer(segment, initialPosition=api.CommandSubscribe.Earliest)
    assert [payload for _, payload in rig.delivered(rig.run(rig.flow(consumer, 10)), consumer)] == [b"first"]


def test_a_topic_with_a_subscription_stays_unless_the_mode_is_caught_up(rigs):
    rig = rigs(discovery_grace_s=0)
    set_policy(rig, "inactiveTopicPolicies", INACTIVE)
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC)
    [position] = rig.publish(producer, b"first")
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=9))
    tick(rig, 15)
    rig.run(rig.flow(consumer, 10))
    rig.close_consumer(consumer)
    tick(rig, 15)
    policy = INACTIVE | {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"}
    set_policy(rig, "inactiveTopicPolicies", policy)
    tick(rig, 15)
    assert rig.owner.catalogue.topics.exists(rig.topic(TOPIC))
    consumer = rig.consumer(TOPIC)
    rig.run(rig.acks(consumer, position))
    tick(rig, 15)
    assert rig.owner.catalogue.topics.exists(rig.topic(TOPIC))      # a client uses the topic
    rig.close_consumer(consumer)
    tick(rig, 12)
    assert not rig.owner.catalogue.topics.exists(rig.topic(TOPIC))


@pytest.mark.parametrize(("minutes", "seconds"), [(1, 70), (-1, 200)])
def test_a_topic_stays_as_long_as_it_is_retained(rigs, minutes, seconds):
    rig = rigs(discovery_grace_s=0)
    set_policy(rig, "inactiveTopicPolicies", INACTIVE)
    set_policy(rig, "retention", {"retentionTimeInMinutes": minutes, "retentionSizeInMB": 10})
    rig.run(rig.command("close_producer", producer_id=rig.producer(TOPIC).object_id, request_id=9))
    tick(rig, 55)
    assert rig.owner.catalogue.topics.exists(rig.topic(TOPIC))
    tick(rig, seconds - 55)
    assert rig.owner.catalogue.topics.exists(rig.topic(TOPIC)) == (minutes < 0)


def test_a_topic_that_nobody_has_opened_since_the_start_is_deleted_too(rigs, tmp_path):
    rig = rigs(discovery_grace_s=0, delete_inactive_topics=True, inactive_topic_s=10)
    rig.producer(TOPIC)
    after = rig.crashed(tmp_path / "after")
    tick(after, 15)
    assert not after.owner.catalogue.topics.exists(after.topic(TOPIC))
    after.close()


def test_a_subscription_that_nobody_uses_is_deleted_in_time(rigs):
    rig = rigs(subscription_expiration_s=120)
    consumer, other = rig.consumer(TOPIC, "a"), rig.consumer(TOPIC, "b")
    rig.close_consumer(consumer)
    set_policy(rig, "subscriptionExpirationTime", 1)
    tick(rig, 59)
    assert set(rig.partition(TOPIC).subscriptions) == {("a", True), ("b", True)}
    tick(rig, 3)
    assert set(rig.partition(TOPIC).subscriptions) == {("b", True)}
    assert set(rig.owner.catalogue.subscriptions.ids(rig.partition(TOPIC).partition_id)) == {"b"}
    set_policy(rig, "subscriptionExpirationTime", 0)
    rig.close_consumer(other)
    tick(rig, 150)
    assert set(rig.partition(TOPIC).subscriptions) == {("b", True)}


def test_a_topic_may_have_a_time_of_its_own_and_a_segment_has_none(rigs):
    """A subscription may have no consumer on one segment while others are consumed, and would lose its messages."""
    rig = rigs(subscription_expiration_s=60)
    topic = parse("topic://public/default/scaled")
    rig.owner.catalogue.scalable_topics.create(topic, 1)
    [segment] = map(str, rig.owner.catalogue.topics.parts(topic))
    rig.owner.catalogue.policies.set(TOPIC, "subscriptionExpirationTime", 5)
    used = (TOPIC, f"{TOPIC}-other", segment)
    for name in used:
        rig.close_consumer(rig.consumer(name, "a"))
    tick(rig, 90)
    assert [set(rig.partition(name).subscriptions) for name in used] == [{("a", True)}, set(), {("a", True)}]
    tick(rig, 240)
    assert [set(rig.partition(name).subscriptions) for name in used] == [set(), set(), {("a", True)}]


def test_a_topic_stays_while_one_of_its_subscriptions_lags(rigs):
    """The topic is deleted when the last of its subscriptions has caught up."""
    rig = rigs(discovery_grace_s=0, delete_inactive_topics=True, inactive_topic_s=10,
               inactive_topic_mode="delete_when_subscriptions_caught_up")
    producer, ahead, behind = rig.producer(TOPIC), rig.consumer(TOPIC, "ahead"), rig.consumer(TOPIC, "behind")
    [position] = rig.publish(producer, b"x")
    rig.run(rig.acks(ahead, position))
    for consumer in (ahead, behind):
        rig.close_consumer(consumer)
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=9))
    tick(rig, 30)
    assert rig.owner.catalogue.topics.exists(rig.topic(TOPIC))
    late = rig.consumer(TOPIC, "behind")
    rig.run(rig.acks(late, position))
    rig.close_consumer(late)
    tick(rig, 30)
    assert not rig.owner.catalogue.topics.exists(rig.topic(TOPIC))
