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
