"""Tables of topics, subscriptions and clients, as one owner answers them; and rates over the last seconds."""
import json

import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin.table_questions import Scope
from geminga.storage.statistics.recent import PERIOD_MS

SubType = api.CommandSubscribe.SubType
PREFIX = "persistent://public/default/"


def listing(rig, table, **arguments):
    if table != "clients":
        arguments = {"sort": "topic", "ascending": True, "most": 100} | arguments
    told = {"stale": 1}
    while told["stale"]:
        [answer] = rig.run(rig.tell(f"list-{table}", **arguments)).answered
        told = answer["answer"]
    return told


def rows(rig, table, *keys, **arguments):
    """Return the values of some keys of each row."""
    told = [[row[key] for key in keys] for row in listing(rig, table, **arguments)["rows"]]
    return [one for [one] in told] if len(keys) == 1 else told


def test_topics_come_in_the_asked_order_and_number(rig):
    for number, name in enumerate(("b", "c", "a")):
        rig.consumer(name)
        rig.publish(rig.producer(name), *[b"x"] * (number + 1))
    assert rows(rig, "topics", "topic") == [PREFIX + name for name in "abc"]
    assert rows(rig, "topics", "topic", "backlog", sort="backlog", ascending=False, most=2) == [
        [PREFIX + "a", 3], [PREFIX + "c", 2]]
    assert rows(rig, "topics", "backlog", sort="backlog") == [1, 2, 3]
    told = listing(rig, "topics", most=1)
    assert (told["total"], len(told["rows"])) == (3, 1)


def test_the_backlog_of_a_topic_is_that_of_its_slowest_subscription(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t", "fast")
    rig.consumer("t", "slow")
    positions = rig.publish(producer, b"a" * 100, b"b" * 100, b"c" * 100)
    rig.run(rig.acks(consumer, *positions[:2]), after_ms=7_000)
    [row] = listing(rig, "topics")["rows"]
    one = row["storage_bytes"] // 3
    assert (row["backlog"], row["backlog_bytes"], row["oldest_seconds"]) == (3, 3 * one, 7)
    assert rows(rig, "subscriptions", "subscription", "backlog", "backlog_bytes", "oldest_seconds",
                sort="backlog", ascending=False) == [["slow", 3, 3 * one, 7], ["fast", 1, one, 7]]
    rig.run(rig.acks(consumer, positions[2]))
    assert rows(rig, "subscriptions", "subscription", "oldest_seconds", sort="subscription") == [
        ["fast", None], ["slow", 7]]


def test_a_subscription_keeps_the_type_of_its_last_consumers(rig):
    rig.consumer("t", subType=SubType.Shared)
    rig.asked("subscribe", "t", subscription="new")
    consumer = rig.consumer("t", "other", subType=SubType.Key_Shared)
    assert rows(rig, "subscriptions", "type", sort="subscription") == [None, "Key_Shared", "Shared"]
    rig.close_consumer(consumer)
    assert rows(rig, "subscriptions", "type", "consumers", sort="subscription")[1] == ["Key_Shared", 0]
    assert rig.asked("why", "t", subscription="other")["type"] == "Key_Shared"
    assert rig.asked("why", "t", subscription="new")["type"] == "None"


def test_a_client_is_told_with_what_it_has_open(rig):
    for connection in (1, 2):
        rig.run(rig.happened(envelope.INTRODUCED, connection=connection, data=json.dumps(
            {"address": f"/10.0.0.{connection}:1", "version": "lib 1", "partial": False, "positions": False,
             "superuser": False, "replicator": False, "role": "ops", "connected_ms": rig.now_ms}).encode()))
    rig.producer("a", connection=1)
    rig.producer("b", connection=1)
    rig.consumer("a", connection=1)
    told = rows(rig, "clients", "address", "library", "role", "producers", "consumers", "topics")
    assert told == [["10.0.0.1:1", "lib 1", "ops", 2, 1, 2]]
    assert rows(rig, "clients", "address", "producers", "consumers", within=PREFIX + "b") == [["10.0.0.1:1", 1, 0]]


@pytest.mark.parametrize("within, match, inside", [
    ("", "", "a/b/c persistent a/b/c-partition-0 d/e/c"), ("a/b", "", "a/b/c a/b/c-partition-0"),
    ("a/b", "*-0", "a/b/c-partition-0"), ("persistent://a/b/c", "", "a/b/c a/b/c-partition-0"),
    ("persistent://a/b/c-partition-0", "", "a/b/c-partition-0"), ("", "*/e/*", "d/e/c"),
])
def test_a_scope_is_everything_a_namespace_a_topic_or_a_pattern(within, match, inside):
    test = Scope(within=within, match=match).test()
    names = ("a/b/c", "a/b/c-partition-0", "d/e/c")
    assert [name for name in names if test(f"persistent://{name}")] == [
        name for name in names if name in inside.split()]


# -- rates

def rates(rig):
    return rows(rig, "topics", "rate_in", "rate_out")


def test_rates_are_those_of_the_last_seconds(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    rig.run(rig.flow(consumer, 1_000))
    for _ in range(PERIOD_MS // 1_000):
        rig.publish(producer, *[b"x"] * 10)
        rig.run(after_ms=1_000)
    assert rates(rig) == [[pytest.approx(10, rel=0.3), pytest.approx(10, rel=0.3)]]
    assert rows(rig, "subscriptions", "rate_out") == [pytest.approx(10, rel=0.3)]
    for _ in range(2 * PERIOD_MS // 1_000 + 2):
        rig.run(after_ms=1_000)
    assert rates(rig) == [[0, 0]]


def test_acknowledgements_of_former_days_are_no_rate(rigs):
    """A subscription knows how many messages were ever acknowledged; its rate has only those of the last seconds."""
    rig = rigs()
    consumer = rig.consumer("t")
    rig.run(rig.acks(consumer, *rig.publish(rig.producer("t"), *[b"x"] * 500)))
    again = rigs.crash(rig)
    consumer = again.consumer("t")
    again.run(again.acks(consumer, *again.publish(again.producer("t"), b"x")))
    for _ in range(PERIOD_MS // 1_000 + 1):
        again.run(after_ms=1_000)
    [rate] = rows(again, "subscriptions", "acknowledge_rate", sort="subscription")
    assert rate <= 1


def test_rates_begin_anew_after_a_pause(rig):
    """A long pause before new messages does not lower their rate."""
    producer = rig.producer("t")
    rig.publish(producer, b"x")
    for _ in range(60):
        rig.run(after_ms=1_000)
    rig.publish(producer, *[b"x"] * 40)
    for _ in range(4):
        rig.run(after_ms=1_000)
    [[rate_in, _]] = rates(rig)
    assert rate_in == pytest.approx(10, rel=0.3)


def test_a_topic_that_was_closed_has_no_rates_left(rig):
    rig.publish(rig.producer("t"), b"x")
    rig.run(after_ms=1_000)
    assert list(rig.owner.statistics.recent.moving)
    rig.asked("delete", "t", force=True)
    assert not list(rig.owner.statistics.recent.moving)
    assert rows(rig, "topics", "topic") == []
