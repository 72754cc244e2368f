"""Test content for a data folder of any format version: `fill` writes it, and `check` asserts that it can be read.

These functions do not change once the archive of a version was made with them. Content that later versions add goes
into further functions, fill_2, fill_3 and so on.
"""
from geminga.proto import envelope, layout_changes, names, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.commands.consumers import QUARANTINE
from geminga.storage.topics.subscription import SubType

from ..rig import START_MS
from ..test_compacted import Topic
from ..test_deduplication import Message, send

OPTIONS = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 2, "roll_over_entries": 50}
KEY = {"partition_key": "k", "properties": [api.KeyValue(key="a", value="b")]}


def fill(rig):
    """Write three topics: one with three ledgers and four subscriptions, a terminated one, and one written after the
    last checkpoint.
    """
    producer = rig.producer("many")
    shared = rig.consumer("many", "shared", subType=SubType.Shared)
    in_order = rig.consumer("many", "in-order")
    rig.consumer("many", "untouched")
    gone = rig.consumer("many", "gone")
    positions = [
        position
        for first in range(0, 120, 10)
        for position in rig.run(rig.sends(*[(producer, b"%d" % n, KEY) for n in range(first, first + 10)])).positions
    ]
    [batch] = rig.run(rig.sends((producer, b"batch", {"batch": 70}))).positions
    rig.run(rig.flow(shared, 1_000), rig.flow(in_order, 60))
    rig.run(rig.acks(shared, *positions[1:120:2]), rig.ack_part(shared, batch, (1 << 64) - 2, 0b111110))
    rig.run(rig.acks(in_order, positions[59], cumulative=True, request_id=1))
    rig.run(rig.redeliver(shared, positions[0], positions[2]))
    rig.run(rig.flow(shared, 1_000))
    rig.run(rig.redeliver(shared, positions[2]))
    rig.run(rig.command("unsubscribe", consumer_id=gone.object_id, request_id=9))
    ended = rig.producer("ended")
    rig.publish(ended, b"last")
    rig.asked("terminate", "ended")
    late = rig.producer("late")
    rig.consumer("late", "sub")
    rig.publish(late, *[b"%d" % n for n in range(20)])


def check(rig):
    """Assert that all that `fill` wrote is there: entries, cursors, holes, batches acknowledged in part, redelivery
    counts.
    """
    assert [int(payload) for _, payload in rig.everything("many")[:-1]] == list(range(120))
    assert set(rig.owner.topics.find(rig.topic("many")).subscriptions) == {
        (name, True) for name in ("shared", "in-order", "untouched")
    }
    shared = rig.consumer("many", "shared", subType=SubType.Shared)
    answers = rig.run(rig.flow(shared, 1_000))
    assert [payload for _, payload in rig.delivered(answers, shared)] == [b"%d" % n for n in range(0, 120, 2)] + [
        b"batch"
    ]
    given = rig.given(answers, shared)
    assert [count for _, count, _ in given] == [1, 2] + [0] * 59
    assert given[-1][2] == [(1 << 64) - 2, 0b111110]
    in_order = rig.consumer("many", "in-order")
    assert rig.receive(in_order)[0][1] == b"60"
    assert [payload for _, payload in rig.receive(rig.consumer("late", "sub"))] == [b"%d" % n for n in range(20)]
    assert rig.owner.topics.find(rig.topic("ended")).is_terminated
    [position] = rig.publish(rig.producer("late"), b"new")
    assert position > rig.everything("late")[0][0]


# -- since version 2

def set_policy(rig, topic, name, value):
    rig.owner.catalogue.policies.set(f"persistent://public/default/{topic}", name, value)
    rig.owner.durability.commit_and_sync()
    rig.asked("policies", None, scope=f"persistent://public/default/{topic}")


def fill_2(rig):
    """Write the content of format version 2. It has sequence ids, a chunked message without its last chunk, an
    expired and a skipped message, punched ledgers, a consumer that died over an entry, and policies.
    """
    once = rig.producer("once", producer_name="p")
    set_policy(rig, "once", "deduplication", True)
    send(
        rig,
        once,
        1,
        2,
        Message(3, highest=7),
        Message(9, b"first", chunk=0, chunks=3, more={"publish_time": 1}),
        Message(9, b"second", chunk=1, chunks=3, more={"publish_time": 1}),
    )
    rig.consumer("short", "sub")
    short = rig.producer("short")
    rig.publish(short, b"old")
    set_policy(rig, "short", "messageTTL", 60)
    rig.run(after_ms=61_000)
    rig.publish(short, b"skipped", b"left")
    rig.asked("skip", "short", subscription="sub", entries=1)
    poison = rig.consumer("deadly", "sub", connection=7, metadata=[api.KeyValue(key=QUARANTINE, value="2")])
    rig.publish(rig.producer("deadly"), b"x")
    rig.run(rig.flow(poison, 1))
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=7))
    large = rig.consumer("large", "sub", subType=SubType.Shared)
    producer = rig.producer("large")
    positions = [rig.publish(producer, b"%04d" % n * 2_000)[0] for n in range(40)]
    rig.run(rig.acks(large, *positions[5:35], request_id=1))
    rig.run(after_ms=2_000)


def check_2(rig):
    once = rig.producer("once", producer_name="p")
    # A first chunk is known again by its bytes, and those in the archives were published at 1 ms.
    first = Message(9, b"first", chunk=0, chunks=3, more={"publish_time": 1})
    assert send(rig, once, 2, Message(5, highest=7), first) == [True, True, True]
    assert send(rig, once, Message(9, b"third", chunk=2, chunks=3), 9, 10) == [False, True, False]
    told = rig.asked("why", "short", subscription="sub")
    assert told["messages"] == {
        "published": 3,
        "acknowledged": 0,
        "expired": 1,
        "skipped": 1,
        "evicted": 0,
        "backlog": 1,
    }
    poison = rig.consumer("deadly", "sub", connection=7, metadata=[api.KeyValue(key=QUARANTINE, value="2")])
    rig.run(rig.flow(poison, 1))
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=7))
    assert rig.receive(rig.consumer("deadly", "sub", metadata=[api.KeyValue(key=QUARANTINE, value="2")])) == []
    expected = [b"%04d" % n * 2_000 for n in (*range(5), *range(35, 40))]
    assert [payload for _, payload in rig.everything("large")] == expected


# -- since format 1 of the folder

HOUR_MS = 3_600_000


def fill_3(rig):
    """Write the content of format 1 of the data folder: a compacted view, and delayed messages in a saved index. One
    delayed message is cancelled and one rescheduled.
    """
    topic = Topic(rig)
    topic.publish(*[(f"k{n % 4}", b"v%d" % n) for n in range(8)], [("a", b"1"), ("b", b"2")])
    topic.compact()
    topic.publish(("a", b"3"))
    rig.consumer("wait", "sub", subType=SubType.Shared)
    producer = rig.producer("wait")
    hours = (2_000, 901, 900, 902, 901)
    waiting = rig.run(
        rig.sends(*[(producer, b"%d" % n, {"deliver_at_time": START_MS + n * HOUR_MS}) for n in hours])
    ).positions
    assert rig.asked("cancel", "wait", position=waiting[2])
    rig.run(after_ms=20_000)
    rig.settle()
    rig.run(after_ms=20_000)
    assert rig.asked("reschedule", "wait", position=waiting[1], deliver_at_ms=START_MS + 903 * HOUR_MS)


def check_3(rig):
    reading = rig.consumer(
        "t", "reading", durable=False, read_compacted=True, initialPosition=api.CommandSubscribe.Earliest
    )
    given = [payload for _, payload in rig.delivered(rig.run(rig.flow(reading, 100)), reading)]
    assert [payload for payload in given if payload[:1] == b"v"] == [b"v4", b"v5", b"v6", b"v7"]
    assert given[-1] == b"3"
    consumer = rig.consumer("wait", "sub", subType=SubType.Shared)
    assert rig.delivered(rig.run(rig.flow(consumer, 100)), consumer) == []
    for hour, expected in ((900, []), (901, [b"901"]), (902, [b"902"]), (903, [b"901"])):
        answers = rig.run(after_ms=START_MS + hour * HOUR_MS - rig.now_ms)
        assert [payload for _, payload in rig.delivered(answers, consumer)] == expected, hour


# -- since format 2 of the folder

def fill_4(rig):
    """Write the content of format 2: an open transaction with messages and acknowledgements, and one that ended."""
    producer, consumer = rig.producer("exact"), rig.consumer("exact", "sub", subType=SubType.Shared)
    [position] = rig.publish(producer, b"acknowledged in it")
    rig.run(rig.flow(consumer, 10))
    for least in (1, 2):
        bits = {"txnid_least_bits": least}
        rig.run(rig.command("newTxn", request_id=1, txn_ttl_millis=1 << 50))
        rig.run(rig.command("addPartitionToTxn", request_id=1, partitions=["exact"], **bits))
        _publish_in(rig, producer, least, b"in %d" % least)
    rig.run(rig.command("addSubscriptionToTxn", request_id=1, txnid_least_bits=2,
                        subscription=[api.Subscription(topic="exact", subscription="sub")]))
    rig.run(rig.command(
        "ack", request_id=1, consumer_id=consumer.object_id, ack_type=api.CommandAck.Individual, txnid_least_bits=2,
        message_id=[api.MessageIdData(ledgerId=position[0], entryId=position[1])]))
    rig.run(rig.command("endTxn", request_id=1, txnid_least_bits=1, txn_action=api.COMMIT))
    rig.publish(producer, b"behind")


def _publish_in(rig, producer, transaction, payload):
    _, rows, data = rig.sends((producer, payload))
    rows["flags"] |= sends.IN_TRANSACTION
    rows["message_index"] = transaction
    assert rig.run((envelope.SENDS_IN_TRANSACTIONS, rows, data)).positions


def check_4(rig):
    first = [b"acknowledged in it", b"in 1"]
    assert [payload for _, payload in rig.everything("exact")] == first
    for least, error in ((1, True), (2, False), (3, True)):      # the first ended hours ago
        [answer] = rig.run(
            rig.command("endTxn", request_id=1, txnid_least_bits=least, txn_action=api.COMMIT)).commands()
        assert answer.endTxnResponse.HasField("error") == error, answer
    assert [payload for _, payload in rig.everything("exact")] == [*first, b"in 2", b"behind"]
    left = rig.receive(rig.consumer("exact", "sub", subType=SubType.Shared))
    assert [payload for _, payload in left] == [b"in 1", b"in 2", b"behind"]


# -- since format 3 of the folder

SCALABLE = names.parse("topic://public/default/scalable")


def fill_5(rig):
    """Write the content of format 3: a scalable topic of two segments with messages, of which some are acknowledged.

    One of the segments is about to split.
    """
    catalogue = rig.owner.catalogue
    catalogue.scalable_topics.create(SCALABLE, 2, {"team": "a"})
    catalogue.commit()
    first, second = map(str, catalogue.topics.parts(SCALABLE))
    consumer = rig.consumer(first, "sub")
    position, _ = rig.publish(rig.producer(first), b"1", b"2")
    rig.publish(rig.producer(second), b"3")
    rig.run(rig.flow(consumer, 10))
    rig.run(rig.acks(consumer, position, request_id=1))
    layout = catalogue.scalable_topics.layout(SCALABLE)
    catalogue.scalable_topics.begin_change(SCALABLE, layout_changes.split(SCALABLE, layout, 1, 7))
    catalogue.commit()


def check_5(rig):
    catalogue = rig.owner.catalogue
    change = catalogue.scalable_topics.change_of(SCALABLE)
    assert [child.topic.rpartition("/")[2] for child in change.children] == ["8000-bfff-2", "c000-ffff-3"]
    assert (change.operation, change.parents, change.began_ms) == (layout_changes.SPLIT, (1,), 7)
    layout = catalogue.scalable_topics.layout(SCALABLE)
    first, second = [segment.topic for segment in layout.segments]
    assert (layout.epoch, layout.next_number, first) == (0, 2, "segment://public/default/scalable/0000-7fff-0")
    assert catalogue.properties.of(str(SCALABLE)) == {"team": "a"}
    assert [payload for _, payload in rig.everything(first)] == [b"1", b"2"]
    assert [payload for _, payload in rig.everything(second)] == [b"3"]
    assert [payload for _, payload in rig.receive(rig.consumer(first, "sub"))] == [b"2"]
