"""Non-persistent topics: messages go at once to consumers that can take them, or are dropped and counted."""
import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.topics.subscription import SubType

TOPIC = "non-persistent://public/default/live"


def taken(answers, consumer):
    return [payload for number, _, payload in answers.passed if number == consumer.number]


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover, SubType.Shared, SubType.Key_Shared])
def test_what_is_published_is_answered_and_passed_on_in_the_same_pass(rig, kind):
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=kind)
    rig.run(rig.flow(consumer, 10))
    answers = rig.run(rig.sends((producer, b"a"), (producer, b"b")))
    assert taken(answers, consumer) == [b"a", b"b"]
    assert answers.positions == [(0, 0), (0, 1)]
    assert not rig.partitions and not (rig.data_dir / "partitions").exists()


def test_without_permits_it_is_dropped_and_counted(rig):
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC)
    rig.run(rig.flow(consumer, 2))
    answers = rig.run(rig.sends(*[(producer, b"%d" % n) for n in range(5)]))
    assert taken(answers, consumer) == [b"0", b"1"] and len(answers.positions) == 5
    assert rig.counters.read()["entries_dropped"] == 3
    answers = rig.run(rig.flow(consumer, 9))
    assert not answers.passed                              # what was dropped is gone
    assert taken(rig.run(rig.sends((producer, b"next"))), consumer) == [b"next"]


def test_every_subscription_gets_its_own(rig):
    """Each subscription gets all messages.  Shared consumers take turns, and a key stays with its Key_Shared consumer.
    """
    producer = rig.producer(TOPIC)
    shared = [rig.consumer(TOPIC, "shared", subType=SubType.Shared) for _ in range(2)]
    alone = rig.consumer(TOPIC, "alone")
    for consumer in (*shared, alone):
        rig.run(rig.flow(consumer, 100))
    got = {consumer.number: [] for consumer in (*shared, alone)}
    for n in range(6):
        for number, _, payload in rig.run(rig.sends((producer, b"%d" % n))).passed:
            got[number].append(payload)
    assert got[alone.number] == [b"%d" % n for n in range(6)]
    assert sorted(map(len, (got[one.number] for one in shared))) == [3, 3]


def test_stored_and_live_topics_may_meet_in_one_pass(rig):
    stored, live = rig.producer("stored"), rig.producer(TOPIC)
    consumers = rig.consumer("stored"), rig.consumer(TOPIC)
    for consumer in consumers:
        rig.run(rig.flow(consumer, 10))
    answers = rig.run(rig.sends((stored, b"a"), (live, b"b"), (stored, b"c")))
    assert [payload for _, payload in rig.delivered(answers, consumers[0])] == [b"a", b"c"]
    assert taken(answers, consumers[1]) == [b"b"]
    assert sorted(answers.positions) == [(0, 0), (1, 0), (1, 1)]


def test_acknowledgements_are_answered_and_change_nothing(rig):
    """Acknowledgements on a non-persistent topic change nothing, but are answered if they ask for it, because
    clients wait for that.
    """
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=SubType.Shared)
    rig.run(rig.flow(consumer, 10))
    rig.run(rig.sends((producer, b"a")))
    [answer] = rig.run(rig.acks(consumer, (0, 0), request_id=77)).commands(api.BaseCommand.ACK_RESPONSE)
    assert answer.ackResponse.request_id == 77 and not answer.ackResponse.HasField("error")
    rig.run(rig.command("redeliverUnacknowledgedMessages", consumer_id=consumer.object_id))
    assert not rig.run(rig.flow(consumer, 10)).passed


@pytest.mark.parametrize(("kind", "fields"), [("seek", {"message_publish_time": 1}), ("getLastMessageId", {})])
def test_positions_are_refused(rig, kind, fields):
    consumer = rig.consumer(TOPIC)
    [answer] = rig.run(rig.command(kind, consumer_id=consumer.object_id, request_id=5, **fields)).commands()
    assert (answer.error.error, answer.error.request_id) == (api.NotAllowedError, 5)


def test_it_is_there_as_long_as_somebody_uses_it(rig):
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC)
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    assert rig.owner.catalogue.topics.complete_names("public/default") == [TOPIC]
    rig.close_consumer(consumer)
    assert rig.owner.catalogue.topics.complete_names("public/default") == []
    assert names.parse(TOPIC) not in rig.owner.topics.non_persistent


def test_it_may_be_switched_off(rigs):
    rig = rigs(non_persistent_topics=False)
    section, _ = rig.subscribe(TOPIC, "sub")
    [answer] = rig.run(section).commands()
    assert answer.error.error == api.NotAllowedError


def test_ids_go_on_whatever_came_together(rig):
    producer = rig.producer(TOPIC)
    first = rig.run(rig.sends(*[(producer, b"x")] * 3))
    assert first.positions == [(0, 0), (0, 1), (0, 2)]
    assert rig.run(rig.sends(*[(producer, b"x")] * 2)).positions == [(0, 3), (0, 4)]


def test_a_subscription_has_dropped_what_it_was_not_given(rig):
    """A subscription counts dropped messages, those of batches too, and one that took all counts none."""
    producer, slow, quick = rig.producer(TOPIC), rig.consumer(TOPIC, "slow"), rig.consumer(TOPIC, "quick")
    rig.run(rig.flow(slow, 1), rig.flow(quick, 100))
    rig.run(rig.sends((producer, b"a"), (producer, b"b", {"batch": 5}), (producer, b"c")))
    [topic] = rig.owner.topics.non_persistent.values()
    dropped = {name: subscription.dropped for (name, _), subscription in topic.subscriptions.items()}
    assert dropped == {"slow": 6, "quick": 0}
    assert topic.dropped == 2


def test_a_topic_where_a_producer_waits_is_not_idle(rig):
    rig.producer(TOPIC)
    rig.run(rig.command("producer", topic=TOPIC, producer_id=99, request_id=99,
                        producer_access_mode=api.WaitForExclusive))
    [topic] = rig.owner.topics.non_persistent.values()
    assert len(topic.producers.waiting) == 1
    topic.producers.live.clear()
    assert not topic.is_idle
    topic.producers.waiting.clear()
    assert topic.is_idle


def test_nothing_is_read_compacted_where_nothing_is_kept(rig):
    [answer] = rig.run(rig.subscribe(TOPIC, "sub", read_compacted=True)[0]).commands()
    assert (answer.type, answer.error.error) == (api.BaseCommand.ERROR, api.NotAllowedError)
    assert not rig.owner.topics.non_persistent
