"""What administration says of priorities: how much waits of each, and where each message is."""
import pytest

from geminga.storage.statistics.columns import BY_PRIORITY, subscription_row

from .test_priority import SHARED, publish, take


@pytest.fixture
def owner(rigs):
    return rigs(message_priority=True)


def waiting(rig):
    return {int(each): count for each, count in rig.asked("why", "a", subscription="sub")["waiting"].items() if count}


def shown(rig):
    return rig.shown("stats", "a", earliest=False, publishers=False, consumers=False)


def test_why_says_what_waits_of_each_priority(owner):
    """Not what consumers have, and not what is delayed; with and without consumers."""
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    publish(owner, producer, 9, 1, None, 9, 1, 0)
    publish(owner, producer, 7, deliver_at_time=owner.now_ms + 60_000)
    assert waiting(owner) == {9: 2, 4: 1, 1: 2, 0: 1}
    assert len(take(owner, consumer, 3)) == 3
    assert waiting(owner) == {1: 2, 0: 1}
    publish(owner, producer, 5, 5)
    assert waiting(owner) == {5: 2, 1: 2, 0: 1}
    owner.close_consumer(consumer)
    assert waiting(owner) == {9: 2, 5: 2, 4: 1, 1: 2, 0: 1}


def test_topics_without_the_policy_say_nothing(rig):
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    publish(rig, producer, 9, 1)
    assert rig.asked("why", "a", subscription="sub")["waiting"] == {}
    assert "waitingByPriority" not in shown(rig)["subscriptions"]["sub"]
    row = subscription_row(rig.partition("a").subscriptions["sub", True])
    assert row[-len(BY_PRIORITY):] == (0,) * len(BY_PRIORITY) and consumer


def test_statistics_say_what_waits_of_each_priority(owner):
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    publish(owner, producer, 9, 1, 1)
    assert len(take(owner, consumer, 1)) == 1
    told = shown(owner)["subscriptions"]["sub"]
    assert told["waitingByPriority"]["1"] == 2 == sum(told["waitingByPriority"].values())
    row = subscription_row(owner.partition("a").subscriptions["sub", True])
    assert row[-len(BY_PRIORITY):] == (1, 0, 2, *[0] * 8)


def test_the_map_of_a_cursor_tells_what_was_given_back_from_what_waits(owner):
    producer, consumer = owner.producer("a"), owner.consumer("a", **SHARED)
    positions = publish(owner, producer, 9, 1, 1, 3)
    assert take(owner, consumer, 2) == [positions[0], positions[3]]
    owner.run(owner.redeliver(consumer, positions[3]))
    counts = owner.asked("cursor-map", "a", subscription="sub", segments=4)["counts"]
    assert {state: count for state, count in counts.items() if count} == {"out": 1, "again": 1, "waiting": 2}
