"""Delayed messages on Shared and Key_Shared subscriptions: none is delivered early, and none waits behind a delayed
one.
"""
import pytest

from geminga.storage.topics.subscription import SubType

from .rig import START_MS

SPREAD = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared], ids=SubType.Name)


def at(producer, payload, ms=0):
    return producer, payload, {"deliver_at_time": START_MS + ms} if ms else {}


def given(rig, answers, consumer):
    return [payload for _, payload in rig.delivered(answers, consumer)]


@SPREAD
def test_each_comes_when_its_time_has_come(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 100))
    sent = at(producer, b"late", 5_000), at(producer, b"now"), at(producer, b"soon", 1_000), at(producer, b"past", -9)
    answers = rig.run(rig.sends(*sent))
    assert sorted(given(rig, answers, consumer)) == [b"now", b"past"]
    assert rig.owner.passes.due_ms() <= START_MS + 1_000
    assert given(rig, rig.run(after_ms=999), consumer) == []
    assert given(rig, rig.run(after_ms=1), consumer) == [b"soon"]
    assert given(rig, rig.run(after_ms=3_999), consumer) == []
    assert given(rig, rig.run(after_ms=1), consumer) == [b"late"]
    assert rig.owner.passes.due_ms() > START_MS + 5_000


@SPREAD
def test_who_is_told_why_is_told_until_when(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 100))
    rig.run(rig.sends(at(producer, b"a", 3_000), at(producer, b"b", 2_000)))
    told = rig.asked("why", "t", subscription="sub")
    assert told["causes"] == [{"cause": "delayed messages", "until_ms": START_MS + 2_000, "messages": 2}]


@SPREAD
def test_they_wait_over_a_crash_and_for_a_new_consumer(rig, tmp_path, kind):
    producer = rig.producer("t")
    rig.run(rig.sends(at(producer, b"later", 2_000), at(producer, b"now")))
    rig.run(rig.flow(rig.consumer("t", subType=kind), 100))
    after = rig.crashed(tmp_path / "next")
    consumer = after.consumer("t", subType=kind)
    assert given(after, after.run(after.flow(consumer, 100)), consumer) == [b"now"]
    assert given(after, after.run(after_ms=2_000), consumer) == [b"later"]
    after.close()


@SPREAD
def test_they_take_no_permits_while_they_wait(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 2))
    answers = rig.run(rig.sends(*[at(producer, b"later", 1_000)] * 5, at(producer, b"now")))
    assert given(rig, answers, consumer) == [b"now"]
    assert given(rig, rig.run(after_ms=1_000), consumer) == [b"later"]
    assert len(given(rig, rig.run(rig.flow(consumer, 9)), consumer)) == 4


@SPREAD
def test_what_is_acknowledged_before_its_time_does_not_come(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 9))
    first, second = rig.run(rig.sends(at(producer, b"a", 1_000), at(producer, b"b", 1_000))).positions
    rig.run(rig.acks(consumer, first))
    assert given(rig, rig.run(after_ms=1_000), consumer) == [b"b"]
    rig.run(rig.acks(consumer, second))
    assert rig.asked("why", "t", subscription="sub")["causes"] == [{"cause": "no backlog"}]


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover], ids=SubType.Name)
def test_a_single_consumer_gets_everything_at_once_and_in_order(rig, kind):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 9))
    assert given(rig, rig.run(rig.sends(at(producer, b"a", 9_000), at(producer, b"b"))), consumer) == [b"a", b"b"]


@SPREAD
def test_it_may_be_switched_off(rigs, kind):
    rig = rigs(delayed_delivery=False)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 9))
    assert given(rig, rig.run(rig.sends(at(producer, b"a", 9_000))), consumer) == [b"a"]


def test_many_that_wait_come_in_any_order_of_their_times_a_tick_late_at_most(rigs):
    rig = rigs(delayed_delivery_tick_ms=100)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.run(rig.flow(consumer, 10_000))
    rig.run(rig.sends(*[at(producer, b"%d" % n, 1 + n * 7919 % 1_000) for n in range(1_000)]))
    came = []
    for now in range(0, 1_200, 50):
        came += [(now, int(payload)) for payload in given(rig, rig.run(after_ms=50 if now else 0), consumer)]
    assert len(came) == 1_000
    assert all(1 + n * 7919 % 1_000 <= now <= 1 + n * 7919 % 1_000 + 100 + 50 for now, n in came)
