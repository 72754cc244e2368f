"""Clients that lose their rights: their producers and consumers are closed, and no others."""
from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import NO_REQUEST

T = api.BaseCommand.Type


def expel(rig, handle, kind):
    return rig.run(rig.happened(kind, connection=handle.connection, data=b"%d" % handle.object_id))


def test_a_producer_is_told_to_go_and_what_it_sends_after_that_is_not_stored(rig):
    topic = "persistent://public/default/orders"
    outcast, other = (
        rig.producer(topic, connection=connection, producer_name=f"p{connection}") for connection in (1, 2)
    )
    answers = expel(rig, outcast, envelope.PRODUCER_EXPELLED)
    assert [(connection, action) for connection, action, *_ in answers.replies] == [(1, envelope.PRODUCER_GONE)]
    [close] = answers.commands(T.CLOSE_PRODUCER)
    assert close.close_producer.request_id == NO_REQUEST
    assert rig.publish(outcast, b"late") == []
    rig.publish(other, b"fine")
    assert [payload for _, payload in rig.everything(topic)] == [b"fine"]
    rig.producer(topic, connection=3, producer_name="p1")          # its name is free


def test_who_waits_for_an_exclusive_producer_has_its_turn(rig):
    topic = "persistent://public/default/orders"
    outcast = rig.producer(topic, connection=1, producer_access_mode=api.Exclusive)
    rig.run(
        rig.command(
            "producer",
            connection=2,
            topic=topic,
            producer_id=77,
            request_id=77,
            producer_access_mode=api.WaitForExclusive,
        )
    )
    answers = expel(rig, outcast, envelope.PRODUCER_EXPELLED)
    assert (2, envelope.PRODUCER_READY, 77) in [
        (connection, action, number) for connection, action, number, *_ in answers.replies
    ]


def test_a_consumer_is_told_to_go_and_the_others_get_what_it_had(rig):
    topic = "persistent://public/default/orders"
    outcast, other = (rig.consumer(topic, connection=connection, subType=1) for connection in (1, 2))
    rig.run(rig.flow(outcast, 10))
    rig.publish(rig.producer(topic, connection=3), b"a", b"b")
    rig.run(rig.flow(other, 10))
    answers = expel(rig, outcast, envelope.CONSUMER_EXPELLED)
    assert (1, envelope.CONSUMER_GONE) in [(connection, action) for connection, action, *_ in answers.replies]
    assert len(answers.commands(T.CLOSE_CONSUMER)) == 1
    assert [payload for _, payload in rig.delivered(answers, other)] == [b"a", b"b"]


def test_what_is_gone_already_is_as_good_as_expelled(rig):
    topic = "persistent://public/default/orders"
    producer, consumer = rig.producer(topic), rig.consumer(topic)
    for handle, kind in ((producer, envelope.PRODUCER_EXPELLED), (consumer, envelope.CONSUMER_EXPELLED)):
        assert expel(rig, handle, kind).replies
        assert not expel(rig, handle, kind).replies


def test_a_topic_that_keeps_nothing_goes_with_the_last_that_used_it(rig):
    topic = "non-persistent://public/default/ticks"
    expel(rig, rig.producer(topic), envelope.PRODUCER_EXPELLED)
    assert not rig.owner.topics.non_persistent
    expel(rig, rig.consumer(topic), envelope.CONSUMER_EXPELLED)
    assert not rig.owner.topics.non_persistent
