"""Statistics of topics, subscriptions, consumers and producers: exact counters since the topic was loaded, and rates
by windows.
"""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.sends import IS_CHUNK
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.statistics.columns import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS
from geminga.storage.statistics.statistics import SUBSCRIPTIONS_EACH, unpack

from .rig import entry_of

SubType = api.CommandSubscribe.SubType
WINDOW_MS = 60_000
ALL = {"earliest": True, "publishers": True, "consumers": True}


def stats(rig, topic="t", **arguments):
    return rig.shown("stats", topic, **(ALL | arguments))


def end_window(rig):
    """Let a whole window pass, so that the statistics show its rates."""
    rig.run(after_ms=WINDOW_MS)


def measured(rig, most=1_000, **arguments):
    """Measure with rows for `most` topics and subscriptions. Return (head, tables), each table a list of {column:
    value}.

    The tables are those of topics, of their subscriptions, of rolled up topics by namespace, of the latter's
    subscriptions, and of replication cursors.
    """
    found = 1
    while isinstance(found, int):
        found = rig.owner.statistics.measure(most, **({"consumers": False, "producers": False} | arguments))
    head, tables = unpack(found)
    kinds = (*(TOPIC_COLUMNS, SUBSCRIPTION_COLUMNS) * 2, SUBSCRIPTION_COLUMNS)
    return head, [[dict(zip(columns, row, strict=True)) for row in table.tolist()]
                  for columns, table in zip(kinds, tables, strict=True)]


# -- counters

@pytest.mark.parametrize("passes", [1, 20])
def test_what_comes_and_goes_is_counted_to_the_message(rig, passes):
    """Messages in and out are counted exactly, whether few or many come in a pass. A batch counts as its messages,
    and as one entry.
    """
    first, second = rig.producer("t", producer_name="first"), rig.producer("t", producer_name="second")
    consumer = rig.consumer("t")
    for _ in range(passes):
        rig.run(
            rig.sends(*[(first, b"x" * 10)] * 3, (second, b"y" * 50, {"batch": 7}), *[(second, b"z")] * (40 // passes))
        )
    rig.receive(consumer, 1_000)
    found, many = stats(rig), passes * (3 + 7 + 40 // passes)
    of = {one["producerName"]: one for one in found["publishers"]}
    assert found["msgInCounter"] == found["msgOutCounter"] == many
    assert found["bytesInCounter"] == found["bytesOutCounter"] == found["storageSize"] == found["backlogSize"]
    assert (
        rig.shown("internal", "t")["entriesAddedCounter"]
        == passes * (4 + 40 // passes)
        == found["subscriptions"]["sub"]["msgBacklog"]
    )
    end_window(rig)
    of = {one["producerName"]: one for one in stats(rig)["publishers"]}
    assert of["first"]["msgRateIn"] == passes * 3 / 60
    assert of["second"]["msgRateIn"] == passes * (7 + 40 // passes) / 60
    assert sum(one["msgThroughputIn"] for one in of.values()) == pytest.approx(found["bytesInCounter"] / 60)


def test_published_is_what_became_of_it(rig):
    """Published messages are the sum of acknowledged, expired, skipped and evicted ones and the backlog."""
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = rig.publish(producer, *[b"%d" % n for n in range(10)])
    rig.receive(consumer)
    rig.run(rig.acks(consumer, positions[1], positions[4]))
    rig.asked("skip", "t", subscription="sub", entries=3)
    found = stats(rig)["subscriptions"]["sub"]
    assert found["messages"] == {
        "published": 10,
        "acknowledged": 2,
        "expired": 0,
        "skipped": 3,
        "evicted": 0,
        "backlog": 5,
    }
    assert (found["msgBacklog"], found["unackedMessages"]) == (5, 5)
    # counted one by one
    assert rig.partition("t").subscriptions["sub", True].cursor.backlog_messages(rig.partition("t").ledgers) == 5
    _, (topics, [of_subscription], *_) = measured(rig)
    assert (of_subscription["backlog"], of_subscription["backlog_messages"], topics[0]["backlog"]) == (5, 5, 5)


def test_what_who_has_left_was_given_stays_counted(rig):
    """Messages delivered to a consumer that has left stay in its subscription's counter, and those of a deleted
    subscription in its topic's.
    """
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    rig.publish(producer, b"a", b"b")
    rig.receive(consumer)
    rig.close_consumer(consumer)
    found = stats(rig)
    left = found["subscriptions"]["sub"]
    assert (left["msgOutCounter"], left["type"], left["consumers"], left["lastConsumedTimestamp"]) == (
        2,
        "Shared",
        [],
        rig.now_ms,
    )
    rig.receive(rig.consumer("t", "reader", durable=False))
    before = stats(rig)
    rig.run(rig.command("unsubscribe", consumer_id=rig.consumer("t").object_id, request_id=1))
    after = stats(rig)
    assert "sub" not in after["subscriptions"]
    assert (
        after["msgOutCounter"] == before["msgOutCounter"] == 4 and after["bytesOutCounter"] == before["bytesOutCounter"]
    )


def test_redeliveries_and_acknowledgements_are_counted_by_consumer(rig):
    producer = rig.producer("t")
    one, other = (rig.consumer("t", subType=SubType.Shared, consumer_name=name) for name in ("one", "other"))
    rig.publish(producer, *[b"%d" % n for n in range(8)])
    mine, theirs = (rig.receive(consumer, 4) for consumer in (one, other))
    rig.run(rig.acks(one, *[position for position, _ in mine]))
    rig.run(rig.redeliver(other, *[position for position, _ in theirs[:2]]))
    end_window(rig)
    of = {consumer["consumerName"]: consumer for consumer in stats(rig)["subscriptions"]["sub"]["consumers"]}
    assert [of[name]["messageAckRate"] for name in ("one", "other")] == [4 / 60, 0]
    assert [of[name]["msgRateRedeliver"] for name in ("one", "other")] == [0, 2 / 60]
    assert of["one"]["lastAckedTimestamp"] == rig.now_ms - WINDOW_MS and of["other"]["lastAckedTimestamp"] == 0


def test_who_is_exclusive_has_acknowledged_what_the_subscription_has(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    [*_, last] = rig.publish(producer, b"a", b"b", b"c")
    rig.receive(consumer)
    rig.run(rig.acks(consumer, last, cumulative=True))
    end_window(rig)
    found = stats(rig)["subscriptions"]["sub"]
    assert found["messageAckRate"] == found["consumers"][0]["messageAckRate"] == 3 / 60
    assert found["lastMarkDeleteAdvancedTimestamp"] == found["lastAckedTimestamp"] == rig.now_ms - WINDOW_MS


def test_chunks_are_told(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    kind, rows, data = rig.sends((producer, b"x"), (producer, b"x"), (producer, b"y"))
    rows["flags"][:2] |= IS_CHUNK
    rig.run((kind, rows, data))
    rig.receive(consumer)
    end_window(rig)
    found = stats(rig)
    assert found["msgChunkPublished"] and found["publishers"][0]["chunkedMessageRate"] == 2 / 60
    assert found["subscriptions"]["sub"]["chunkedMessageRate"] == 2 / 60


def test_a_topic_that_keeps_nothing_counts_too(rig):
    topic = "non-persistent://public/default/live"
    producer, hungry, sated = rig.producer(topic), rig.consumer(topic, "hungry"), rig.consumer(topic, "sated")
    rig.run(rig.flow(sated, 10))
    rig.run(rig.sends((producer, b"x"), (producer, b"y", {"batch": 4})))
    end_window(rig)
    found = stats(rig, topic)
    assert (found["msgInCounter"], found["msgOutCounter"], found["msgDropRate"]) == (5, 5, 5 / 60)
    assert (
        found["subscriptions"]["hungry"]["msgDropRate"] == 5 / 60
        and found["subscriptions"]["sated"]["msgOutCounter"] == 5
    )
    assert hungry.number


def test_a_connection_has_so_many_live_messages_under_way_and_its_publisher_tells_what_was_dropped(rigs):
    rig = rigs(max_live_messages_per_connection=3)
    topic, stored = "non-persistent://public/default/live", rig.producer("t")
    producer, other = rig.producer(topic), rig.producer(topic, connection=2)
    consumer = rig.consumer(topic)
    rig.run(rig.flow(consumer, 100))
    answers = rig.run(
        rig.sends(*[(producer, b"%d" % number, {"batch": 2}) for number in range(5)], (stored, b"x"), (other, b"y"))
    )
    assert [payload for *_, payload in answers.passed] == [b"0", b"1", b"2", b"y"]
    nowhere = (1 << 64) - 1, (1 << 64) - 1
    its = [
        (sequence_id, place)
        for _, _, producer_id, sequence_id, place in answers.receipts
        if producer_id == producer.object_id
    ]
    assert [place == nowhere for _, place in its] == [False, False, False, True, True] and its == sorted(its)
    assert nowhere not in [
        place for _, _, producer_id, _, place in answers.receipts if producer_id != producer.object_id
    ]
    end_window(rig)
    found = stats(rig, topic)
    rates = {one["producerId"]: (one["msgDropRate"], one["msgRateIn"]) for one in found["publishers"]}
    assert rates == {producer.object_id: (4 / 60, 6 / 60), other.object_id: (0, 1 / 60)}
    assert (found["msgDropRate"], found["msgInCounter"]) == (4 / 60, 7)
    assert stats(rig, topic, publishers=False)["msgDropRate"] == 4 / 60
    assert rig.counters.read()["entries_dropped"] == 2


def test_what_is_published_to_system_topics_is_told_apart(rig):
    system = "persistent://pulsar/system/healthcheck"
    for topic in (system, "t"):
        rig.publish(rig.producer(topic), b"x")
    assert stats(rig, system)["systemTopicBytesInCounter"] == stats(rig, system)["bytesInCounter"] > 0
    assert stats(rig, "t")["systemTopicBytesInCounter"] == 0 < stats(rig, "t")["bytesInCounter"]


# -- rates

def test_rates_are_those_of_the_last_complete_window(rig):
    """Rates are those of the last complete window: 0 before the first one has ended, and after one without messages."""
    producer, consumer = rig.producer("t"), rig.consumer("t")
    rig.publish(producer, *[b"x"] * 30)
    rig.receive(consumer)
    assert stats(rig)["msgRateIn"] == 0
    end_window(rig)
    found = stats(rig)
    assert (found["msgRateIn"], found["msgRateOut"], found["msgThroughputIn"]) == (
        0.5,
        0.5,
        found["bytesInCounter"] / 60,
    )
    assert found["averageMsgSize"] == found["bytesInCounter"] / 30
    rig.publish(producer, *[b"x"] * 60)
    assert stats(rig)["msgRateIn"] == 0.5
    end_window(rig)
    assert stats(rig)["msgRateIn"] == 1
    end_window(rig)
    assert (stats(rig)["msgRateIn"], stats(rig)["publishers"][0]["msgRateIn"], stats(rig)["msgInCounter"]) == (0, 0, 90)


def test_a_cursor_that_begins_anew_makes_no_negative_rates(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    positions = rig.publish(producer, b"a", b"b")
    rig.receive(consumer)
    rig.run(rig.acks(consumer, *positions))
    end_window(rig)
    rig.asked("reset", "t", subscription="sub", time_ms=0)
    end_window(rig)
    assert stats(rig)["subscriptions"]["sub"]["messageAckRate"] == 0


# -- all that is open

def test_columns_say_what_stats_say(rig):
    """The tables for metrics agree with each topic's statistics, also after more messages on some topics."""
    for number in range(5):
        producer, consumer = rig.producer(f"t{number}"), rig.consumer(f"t{number}", "sub", subType=SubType.Shared)
        rig.publish(producer, *[b"x" * 100] * (number + 1))
        rig.receive(consumer, number)
    for _ in range(2):
        head, (topics, subscriptions, *_) = measured(rig)
        of = dict(zip(head["topics"], topics, strict=True))
        assert head["loaded"] == [5] and len(of) == len(subscriptions) == 5
        for (number, name), row in zip(head["subscriptions"], subscriptions, strict=True):
            found = stats(rig, head["topics"][number])
            columns = "messages_in", "bytes_in", "messages_out", "storage_bytes", "rate_in"
            fields = "msgInCounter", "bytesInCounter", "msgOutCounter", "storageSize", "msgRateIn"
            assert [of[head["topics"][number]][column] for column in columns] == [found[field] for field in fields]
            told = found["subscriptions"][name]
            assert [row[column] for column in ("backlog", "messages_out", "unacknowledged", "consumers")] == [
                told["msgBacklog"], told["msgOutCounter"], told["unackedMessages"], len(told["consumers"])]
        rig.publish(rig.producer("t3"), b"more")
        end_window(rig)


def test_what_is_rolled_up_is_in_its_namespaces_sum(rig):
    """Topics without a row of their own are in the sums of their namespace: totals over all are the same for every
    bound.
    """
    for number in range(6):
        rig.publish(rig.producer(f"t{number}"), *[b"x"] * (number + 1))
        rig.consumer(f"t{number}")
    _, (topics, subscriptions, *_) = measured(rig)
    for most in (0, 1, 4):
        head, (chosen, theirs, others, of_others, _) = measured(rig, most)
        assert (len(chosen), head["rolled_up"], head["rolled_up_subscriptions"], head["loaded"]) == (
            most,
            6 - most,
            6 - most,
            [6],
        )
        for column in ("messages_in", "backlog", "producers", "storage_bytes"):
            assert sum(row[column] for row in topics) == sum(row[column] for row in [*chosen, *others])
        assert sum(row["backlog"] for row in subscriptions) == sum(row["backlog"] for row in [*theirs, *of_others])


def test_a_topic_with_too_many_subscriptions_is_rolled_up(rig):
    """A topic with more subscriptions than have room is rolled up, so that the number of series is bounded."""
    rig.publish(rig.producer("many"), *[b"x"] * 9)
    rig.publish(rig.producer("few"), b"x")
    for number in range(SUBSCRIPTIONS_EACH * 2 + 1):
        rig.consumer("many", f"sub-{number}")
    rig.consumer("few")
    head, (_, _, [others], [of_others], _) = measured(rig, 2)
    assert [name[-3:] for name in head["topics"]] == ["few"] and head[
        "rolled_up_subscriptions"
    ] == SUBSCRIPTIONS_EACH * 2 + 1
    assert (others["messages_in"], of_others["backlog"]) == (9, 9 * (SUBSCRIPTIONS_EACH * 2 + 1))
    assert len(measured(rig, 3)[0]["topics"]) == 2


def test_topics_are_chosen_as_long_as_their_subscriptions_fit(rig):
    """Topics get rows, busiest first, while their subscriptions fit: with room for 20, those with 15 and 5 get rows,
    and the one with 10 between them does not.
    """
    for topic, messages, subscriptions in (("large", 9, 15), ("middle", 5, 10), ("small", 1, 5)):
        rig.publish(rig.producer(topic), *[b"x"] * messages)
        for number in range(subscriptions):
            rig.consumer(topic, f"sub-{number}")
    head, _ = measured(rig, 2)
    assert [name.rpartition("/")[2] for name in head["topics"]] == ["large", "small"] and head[
        "rolled_up_subscriptions"
    ] == 10


def test_what_has_gone_is_in_no_sum(rig):
    """A deleted subscription is subtracted from the sums of its namespace."""
    rig.publish(rig.producer("t"), *[b"x"] * 7)
    for name in ("stays", "goes"):
        consumer = rig.consumer("t", name)
    _, (_, _, _, [of_others], _) = measured(rig, 0)
    assert of_others["backlog"] == 14
    rig.run(rig.command("unsubscribe", consumer_id=consumer.object_id, request_id=9))
    _, (_, _, _, [of_others], _) = measured(rig, 0)
    assert (of_others["backlog"], of_others["consumers"]) == (7, 1)


def test_rates_last_for_the_whole_next_window(rig):
    """A window's rates are shown for the whole next window, at whichever second of the minute the topic's windows
    end.
    """
    rig.publish(rig.producer("t"), *[b"x"] * 30)
    rates = []
    for _ in range(3 * WINDOW_MS // 1_000):
        rig.run(after_ms=1_000)
        rates.append(stats(rig)["msgRateIn"])
    first = next(at for at, rate in enumerate(rates) if rate)
    assert (
        first < WINDOW_MS // 1_000
        and [rate > 0 for rate in rates[first:]].index(False) == sum(map(bool, rates)) == WINDOW_MS // 1_000
    )


def test_of_two_subscriptions_of_one_name_the_durable_one_is_told(rig):
    """A durable subscription has a row, and a reader of the same name has none: messages to the reader count for the
    topic only.
    """
    rig.publish(rig.producer("t"), b"a", b"b")
    rig.consumer("t", "same")
    rig.receive(rig.consumer("t", "same", durable=False))
    head, (topics, [row], *_) = measured(rig)
    assert (head["subscriptions"], row["messages_out"], topics[0]["messages_out"]) == ([[0, "same"]], 0, 2)
    found = stats(rig)
    assert found["subscriptions"]["same"]["isDurable"] and found["msgOutCounter"] == 2


def test_topics_that_move_come_before_those_that_rest(rig):
    """Topics with messages in the last window get rows before idle ones. A topic keeps its row until a busier one
    needs it.
    """
    producers = [rig.producer(f"t{number}") for number in range(4)]
    for number, producer in enumerate(producers):
        rig.publish(producer, *[b"x"] * (number + 1))
    end_window(rig)
    assert [name[-1] for name in measured(rig, 2)[0]["topics"]] == ["3", "2"]
    rig.publish(producers[0], *[b"x"] * 100)
    end_window(rig)      # only t0 had messages in this window
    assert {name[-1] for name in measured(rig, 2)[0]["topics"]} == {"0", "3"}
    rig.publish(producers[1], *[b"x"] * 50)
    assert {name[-1] for name in measured(rig, 2)[0]["topics"]} == {"0", "3"}


def test_what_is_closed_has_no_row(rig):
    rig.publish(rig.producer("t"), b"a")
    rig.consumer("t")
    assert measured(rig)[0]["loaded"] == [1]
    rig.asked("unload", "t")
    head, (topics, subscriptions, *_) = measured(rig)
    assert (head["loaded"], head["topics"], topics, subscriptions) == ([0], [], [], [])
    rig.consumer("t", "other")      # opened anew
    head, (topics, subscriptions, *_) = measured(rig)
    assert [name for _, name in head["subscriptions"]] == ["sub", "other"] and topics[0]["messages_in"] == 0


def test_entries_are_told_by_size_and_time_of_the_last_window(rig):
    producer = rig.producer("t")
    rig.publish(producer, b"x", b"x" * 300, *[b"x" * 300] * 2, b"x" * 5_000)
    rig.publish(producer, *[b"x"] * 40)
    end_window(rig)
    _, ([row], *_) = measured(rig)
    assert {name: row[f"size_{name}"] for name in ("le_128", "le_512", "le_1_kb", "le_16_kb")} == {
        "le_128": 41, "le_512": 3, "le_1_kb": 0, "le_16_kb": 1}
    for which in ("latency", "journal"):
        assert sum(value for name, value in row.items() if name.startswith((f"{which}_le", f"{which}_over"))) == 45
    assert row["size_sum"] == row["bytes_in"] and row["latency_sum"] >= row["journal_sum"]
    end_window(rig)
    _, ([row], *_) = measured(rig)
    assert row["size_sum"] == row["latency_sum"] == 0


def test_age_and_times_of_the_oldest(rig):
    producer = rig.producer("t")
    rig.consumer("t", "slow")
    fast = rig.consumer("t", "fast")
    rig.run(rig.sends((producer, b"a", {"publish_time": 77})))
    rig.run(after_ms=5_000)
    rig.run(rig.acks(fast, *[position for position, _ in rig.receive(fast)]))
    found = stats(rig)
    assert (found["oldestBacklogMessageAgeSeconds"], found["oldestBacklogMessageSubscriptionName"]) == (5, "slow")
    assert (
        found["earliestMsgPublishTimeInBacklogs"]
        == found["subscriptions"]["slow"]["earliestMsgPublishTimeInBacklog"]
        == 77
    )
    assert found["subscriptions"]["fast"]["earliestMsgPublishTimeInBacklog"] == 0
    assert stats(rig, earliest=False)["earliestMsgPublishTimeInBacklogs"] == 0
    assert found["lastPublishTimeStamp"] == rig.now_ms - 5_000


def test_of_several_backlogs_the_largest_and_the_oldest_are_told(rigs):
    """A topic's backlog size is that of its slowest subscription, and its oldest message that of any backlog, over
    several ledgers.
    """
    rig = rigs(roll_over_entries=2)
    producer, slow, fast = rig.producer("t"), rig.consumer("t", "slow"), rig.consumer("t", "fast")
    for time_ms in (77, 88, 99):
        rig.run(rig.sends((producer, b"x", {"publish_time": time_ms})), after_ms=5_000)
    rig.run(rig.acks(fast, *[position for position, _ in rig.receive(fast)][:2]))
    found = stats(rig)
    sizes = {name: one["backlogSize"] for name, one in found["subscriptions"].items()}
    assert found["backlogSize"] == sizes["slow"] > sizes["fast"] > 0
    assert (
        found["earliestMsgPublishTimeInBacklogs"]
        == 77
        == found["subscriptions"]["slow"]["earliestMsgPublishTimeInBacklog"]
    )
    assert found["subscriptions"]["fast"]["earliestMsgPublishTimeInBacklog"] == 99
    assert measured(rig)[1][0][0]["backlog_bytes"] == sizes["slow"] == found["storageSize"]
    assert len(rig.partition("t").ledgers) == 2 and found["lastPublishTimeStamp"] == rig.now_ms
    assert slow.number


def test_what_waits_for_its_time_is_in_the_backlog_and_told_apart(rig):
    producer, shared = rig.producer("t"), rig.consumer("t", "shared", subType=SubType.Shared)
    exclusive = rig.consumer("t", "exclusive")
    rig.run(rig.sends((producer, b"a"), *[(producer, b"b", {"deliver_at_time": rig.now_ms + 60_000})] * 2))
    found = stats(rig)["subscriptions"]
    assert [
        (one["msgBacklog"], one["msgBacklogNoDelayed"], one["msgDelayed"])
        for one in (found["shared"], found["exclusive"])
    ] == [(3, 1, 2), (3, 3, 0)]
    assert measured(rig)[1][0][0]["backlog_bytes"] == stats(rig)["storageSize"] and shared.number != exclusive.number


def test_a_consumer_out_of_order_makes_its_subscription_so_and_nobody_makes_none_so(rig):
    loose = {"keySharedMode": "AUTO_SPLIT", "allowOutOfOrderDelivery": True}
    rig.consumer("t", "loose", subType=SubType.Key_Shared, keySharedMeta=loose)
    for name in ("strict", "left"):
        consumer = rig.consumer("t", name, subType=SubType.Key_Shared)
    rig.close_consumer(consumer)
    found = stats(rig)["subscriptions"]
    assert {name: one["allowOutOfOrderDelivery"] for name, one in found.items()} == {
        "loose": True,
        "strict": False,
        "left": False,
    }


def test_a_consumers_average_is_rounded(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t")
    rig.run(rig.sends((producer, b"a", {"batch": 3}), (producer, b"b", {"batch": 2})))
    rig.receive(consumer)
    rig.publish(producer, b"c", b"d")      # 7 messages of 4 entries
    assert stats(rig)["subscriptions"]["sub"]["consumers"][0]["avgMessagesPerEntry"] == 2


def test_an_entry_of_just_so_many_bytes_is_in_the_bucket_up_to_there(rig):
    producer = rig.producer("t")
    least = len(entry_of(b"", sequence_id=100))
    rig.publish(producer, *[b"x" * (size - least) for size in (128, 129, 512)])
    sizes = rig.partition("t").ledgers[0].column("size").tolist()[:3]
    assert sizes == [128, 129, 512]
    end_window(rig)
    _, ([row], *_) = measured(rig)
    assert (row["size_le_128"], row["size_le_512"], row["size_le_1_kb"]) == (1, 2, 0)


# -- how it is stored

def test_a_cursor_waits_for_more_while_somebody_is_there_who_has_all(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = rig.publish(producer, b"a", b"b")

    def cursor():
        found = rig.shown("internal", "t")
        told = found["cursors"]["sub"]
        assert told["waitingReadOp"] == told["subscriptionHavePendingRead"] == (found["waitingCursorsCount"] == 1)
        return (
            told["waitingReadOp"],
            told["subscriptionHavePendingReplayRead"],
            told["numberOfEntriesSinceFirstNotAckedMessage"],
        )

    assert cursor() == (False, False, 1)
    rig.receive(consumer, 2)
    assert cursor() == (True, False, 3)
    rig.run(rig.redeliver(consumer, positions[1]))
    assert cursor() == (True, True, 3)      # one entry is to be redelivered, without permits
    rig.run(rig.acks(consumer, positions[0]))
    assert cursor() == (True, True, 2)
    rig.close_consumer(consumer)
    assert cursor()[0] is False


def test_internal_stats_tell_ledgers_and_positions(rig):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    positions = rig.publish(producer, *[b"x" * 10] * 8)
    rig.receive(consumer, 6)
    rig.run(rig.acks(consumer, positions[0], positions[2], positions[3], positions[5]))
    [ledger] = {ledger for ledger, _ in positions}
    found = rig.shown("internal", "t")
    assert (found["numberOfEntries"], found["lastConfirmedEntry"], found["state"]) == (8, f"{ledger}:7", "LedgerOpened")
    assert found["ledgers"] == [{"ledgerId": ledger, "entries": 8, "size": found["totalSize"], "offloaded": False,
                                 "underReplicated": False}]
    cursor = found["cursors"]["sub"]
    assert (cursor["markDeletePosition"], cursor["readPosition"]) == (f"{ledger}:0", f"{ledger}:6")
    assert cursor["individuallyDeletedMessages"] == f"[({ledger}:1..{ledger}:3],({ledger}:4..{ledger}:5]]"
    assert (
        cursor["totalNonContiguousDeletedMessagesRange"],
        cursor["messagesConsumedCounter"],
        cursor["waitingReadOp"],
    ) == (2, 4, False)
    rig.asked("terminate", "t")
    assert rig.shown("internal", "t")["state"] == "Terminated"


def test_bytes_behind_a_position(rig):
    producer = rig.producer("t")
    positions = rig.publish(producer, b"a" * 10, b"b" * 20, b"c" * 30)
    whole = stats(rig)["storageSize"]
    behind = [
        rig.asked("behind", "t", ledger=ledger, entry=entry) for ledger, entry in [(-1, -1), *positions, (1 << 62, 0)]
    ]
    assert behind[0] == whole and behind[-2:] == [0, 0]
    ledger, last = positions[-1]
    assert [rig.asked("behind", "t", ledger=ledger, entry=last + more) for more in (1, 2)] == [0, 0]
    assert behind[0] - behind[1] == behind[1] - behind[2] - 10 == behind[2] - behind[3] - 20


@given(st.lists(st.integers(0, 99), unique=True), st.integers(-1, 98))
def test_acknowledged_entries_beyond_the_position_are_counted_by_bits(entries, done):
    class Ledger:
        ledger_id = 7

    Ledger.entries = 100
    cursor = Cursor(1, (7, -1), is_durable=True)
    cursor.acknowledge(Ledger, np.array(sorted(entries), np.int64))
    cursor.mark_delete = (7, done)
    assert cursor.acknowledged_beyond(Ledger) == sum(entry > done for entry in entries)
