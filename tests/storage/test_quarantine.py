"""Quarantine: a message whose consumers die again and again is parked if the subscription asks for that, and all
others are delivered.
"""
import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.commands.consumers import QUARANTINE
from geminga.storage.topics.subscription import SubType

KINDS = [SubType.Exclusive, SubType.Failover, SubType.Shared, SubType.Key_Shared]


def careful(rig, kind, *, connection, deaths="2"):
    return rig.consumer("t", subType=kind, connection=connection, metadata=[api.KeyValue(key=QUARANTINE, value=deaths)])


def die(rig, connection):
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=connection))


def given(answers):
    return [(ledger_id, entry) for _, _, ledger_id, entries in answers.gifts for entry, *_ in entries]


@pytest.mark.parametrize("kind", KINDS)
def test_what_two_consumers_died_over_goes_to_no_third(rig, kind):
    """A message that two consumers died over is parked: it stays in the backlog, is reported to administration, and
    can be released.
    """
    poison, *others = rig.publish(rig.producer("t"), *[b"%d" % n for n in range(4)])
    for connection in (2, 3):
        consumer = careful(rig, kind, connection=connection)
        assert given(rig.run(rig.flow(consumer, 1))) == [poison]
        die(rig, connection)
    consumer = careful(rig, kind, connection=4)
    assert given(rig.run(rig.flow(consumer, 100))) == others
    rig.run(rig.acks(consumer, *others))
    told = rig.asked("why", "t", subscription="sub")
    assert (
        told["backlog"] == 1 and {"cause": "parked", "message": "{}:{}".format(*poison), "deaths": 2} in told["causes"]
    )
    assert rig.counters.read()["entries_parked"] == (kind in (SubType.Shared, SubType.Key_Shared) or 1)
    answers = rig.run(rig.question("release", "t", subscription="sub"))
    assert answers.answered == [{"answer": {"entries": 1}}] and given(answers) == [poison]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_deaths_are_remembered_over_a_crash_of_the_broker_and_a_worker_s_end_is_none(rig, tmp_path, kind):
    [poison, other] = rig.publish(rig.producer("t"), b"poison", b"other")
    rig.run(rig.flow(careful(rig, kind, connection=2), 1))
    die(rig, 2)
    after = rig.crashed(tmp_path / "next")
    after.run(after.flow(careful(after, kind, connection=2), 1))
    after.owner.worker_gone(1)
    consumer = careful(after, kind, connection=3)
    assert given(after.run(after.flow(consumer, 1))) == [poison]
    die(after, 3)
    assert given(after.run(after.flow(careful(after, kind, connection=4), 9))) == [other]
    after.close()


@pytest.mark.parametrize("kind", KINDS)
def test_who_does_not_ask_for_it_gets_everything_again_and_again(rig, kind):
    [poison] = rig.publish(rig.producer("t"), b"x")
    for connection in range(2, 9):
        consumer = rig.consumer("t", subType=kind, connection=connection)
        assert given(rig.run(rig.flow(consumer, 1))) == [poison]
        die(rig, connection)


def test_closing_is_not_dying(rig):
    [poison] = rig.publish(rig.producer("t"), b"x")
    for connection in range(2, 9):
        consumer = careful(rig, SubType.Shared, connection=connection)
        assert given(rig.run(rig.flow(consumer, 1))) == [poison]
        rig.close_consumer(consumer)


@pytest.mark.parametrize("value", ["0", "-1", "many", "", "99999999999"])
def test_nonsense_is_refused(rig, value):
    section, _ = rig.subscribe("t", "sub", metadata=[api.KeyValue(key=QUARANTINE, value=value)])
    [answer] = rig.run(section).commands()
    assert answer.error.error == api.NotAllowedError and QUARANTINE in answer.error.message


def test_a_consumer_that_does_not_ask_for_it_leaves_it_on_for_those_that_do(rig):
    poison, *_ = rig.publish(rig.producer("t"), b"poison", b"other")
    careful(rig, SubType.Shared, connection=4)
    rig.consumer("t", subType=SubType.Shared, connection=5)
    for connection in (2, 3):
        consumer = careful(rig, SubType.Shared, connection=connection)
        assert given(rig.run(rig.flow(consumer, 1))) == [poison]
        die(rig, connection)
    assert {"cause": "parked", "message": "{}:{}".format(*poison), "deaths": 2} in rig.asked(
        "why", "t", subscription="sub"
    )["causes"]


def test_what_is_released_before_it_was_read_is_given_once(rig):
    """A parked message that is released before the dispatcher reads it is delivered once, in its turn."""
    [poison, other] = rig.publish(rig.producer("t"), b"poison", b"other")
    rig.run(rig.flow(careful(rig, SubType.Shared, connection=2, deaths="1"), 1))
    die(rig, 2)
    consumer = careful(rig, SubType.Shared, connection=3, deaths="1")
    assert rig.asked("release", "t", subscription="sub") == {"entries": 1}
    assert given(rig.run(rig.flow(consumer, 100))) == [poison, other]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seek_forgives(rig, kind):
    """A seek forgets all deaths, so that parked messages behind the new position are delivered again."""
    [poison] = rig.publish(rig.producer("t"), b"poison")
    rig.run(rig.flow(careful(rig, kind, connection=2, deaths="1"), 1))
    die(rig, 2)
    consumer = careful(rig, kind, connection=3, deaths="1")
    assert given(rig.run(rig.flow(consumer, 9))) == []
    rig.run(rig.command("seek", connection=3, consumer_id=consumer.object_id, request_id=1, message_publish_time=0))
    assert given(rig.run(rig.flow(careful(rig, kind, connection=3, deaths="1"), 9))) == [poison]
