"""Policies about delays, on a clock of the tests' own: a maximum, and a fixed delay for all messages of a topic
(PIP-437).

tests/supervisor/test_delay_policies.py is about REST, the command line and metrics.
"""
import itertools
import random

import numpy as np
import pytest

from geminga.proto import envelope, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.enforcement import delay_policy
from geminga.storage.topics.subscription import SubType

from .files import read_mapped
from .rig import START_MS, T, entry_of, payload_of

TOPIC, NAMESPACE = "persistent://public/default/t", "public/default"
LIVE = "non-persistent://public/default/t"
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
FIXED, MAX = "fixedDeliveryDelayInMillis", "maxDeliveryDelayInMillis"
SPREAD = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
COUNTS = pytest.mark.parametrize("count", [1, 100], ids=["few", "many"])


def set_delays(rig, scope=TOPIC, **fields):
    """Set the delay policy of a topic or a namespace as an administrator's POST does.  Without fields it is removed."""
    value = {"active": True, "tickTime": 0} | fields if fields else None
    rig.owner.catalogue.policies.set(scope, "delayedDelivery", value)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope=scope))


def fixed(rig, ms, scope=TOPIC):
    set_delays(rig, scope, fixedDeliveryDelayInMillis=ms)


def most(rig, ms, scope=TOPIC):
    set_delays(rig, scope, maxDeliveryDelayInMillis=ms)


def stored(rig, topic=TOPIC):
    """Return [(metadata, payload)] of all entries, after a check that the index rows have the same times."""
    partition, found = rig.partition(topic), []
    for ledger in partition.ledgers:
        rows = ledger.index[:ledger.entries]
        assert format.is_valid(rows, ledger.ledger_id).all()
        assert (np.diff(rows["offset"]) == rows["size"][:-1]).all()
        entries = read_mapped(partition.folder, ledger.ledger_id, 0, ledger.entries) if ledger.entries else []
        for entry, row in zip(entries, rows, strict=True):
            metadata = metadata_of(entry)
            fresh = sends.read_one(api.CommandSend(producer_id=1, sequence_id=1), bytes(entry))
            for name in ("size", "publish_time", "deliver_at", "messages", "key_hash", "crc32c"):
                assert int(row[name]) == fresh[sends.SEND_ROW.names.index(name)], name
            found.append((metadata, bytes(payload_of(entry))))
    return found


def metadata_of(entry):
    return api.MessageMetadata.FromString(bytes(entry[10:10 + int.from_bytes(entry[6:10], "big")]))


def times(rig, topic=TOPIC):
    return [metadata.deliver_at_time for metadata, _ in stored(rig, topic)]


def sent(rig, *messages):
    """Publish (producer, payload, {metadata}) in one pass, with the publish time now by default.  Return (positions,
    errors).
    """
    answers = rig.run(rig.sends(*[(handle, payload, {"publish_time": rig.now_ms} | (more[0] if more else {}))
                                  for handle, payload, *more in messages]))
    assert all(one.send_error.error == api.NotAllowedError for one in answers.commands(T.SEND_ERROR))
    return answers.positions, [one.send_error.message for one in answers.commands(T.SEND_ERROR)]


def refused(ms, count=1):
    return [], [f"Exceeds max allowed delivery delay of {ms} milliseconds"] * count


def given(rig, answers, consumer):
    return [payload for _, payload in rig.delivered(answers, consumer)]


def later(rig, ms):
    return {"deliver_at_time": rig.now_ms + ms}


# -- fixed

@SPREAD
@COUNTS
def test_f182_a_fixed_delay_is_for_messages_with_and_without_a_time_of_their_own(rig, kind, count):
    """A fixed delay replaces a message's own time, be it earlier or later, and the maximum does not apply."""
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=kind)
    set_delays(rig, fixedDeliveryDelayInMillis=10_000, maxDeliveryDelayInMillis=1_000)
    rig.run(rig.flow(consumer, 1_000))
    asked = itertools.cycle(({}, {"deliver_at_time": START_MS + HOUR_MS}, {"deliver_at_time": START_MS + 1}))
    positions, errors = sent(rig, *[(producer, b"%d" % n, next(asked)) for n in range(count)])
    assert len(positions) == count and not errors
    assert times(rig) == [START_MS + 10_000] * count
    assert given(rig, rig.run(after_ms=9_999), consumer) == []
    assert sorted(given(rig, rig.run(after_ms=1_001), consumer)) == sorted(b"%d" % n for n in range(count))


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover], ids=SubType.Name)
def test_f163_whoever_is_alone_gets_them_at_once(rig, kind):
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=kind)
    fixed(rig, 10_000)
    rig.run(rig.flow(consumer, 9))
    answers = rig.run(rig.sends((producer, b"a"), (producer, b"b")))
    assert given(rig, answers, consumer) == [b"a", b"b"]


@COUNTS
def test_f182_times_count_from_the_producers_clock_and_ours_where_that_is_ahead_and_ascend(rig, count):
    """Delivery times ascend in the order of the topic, whatever producers' clocks say."""
    producer = rig.producer(TOPIC)
    fixed(rig, 10_000)
    ahead = delay_policy.FIXED_AHEAD_MS
    for published, found in (
        (START_MS - 300, -300),
        (START_MS + 7, 7),
        (START_MS + HOUR_MS, ahead),
        (START_MS - 5_000, ahead),
        (1, ahead),
        (0, ahead),
        (1 << 63, ahead),
    ):
        sent(rig, *[(producer, b"x", {"publish_time": published})] * count)
        assert times(rig)[-count:] == [START_MS + 10_000 + found] * count
    rig.now_ms += 5_000
    mixed = [rig.now_ms - 100, rig.now_ms + 7, rig.now_ms - 300, 3]
    sent(rig, *[(producer, b"x", {"publish_time": mixed[n % 4]}) for n in range(4 * count)])
    assert times(rig)[-4 * count:] == [rig.now_ms + 9_900] + [rig.now_ms + 10_007] * (4 * count - 1)


def test_f182_what_was_published_long_ago_waits_that_much_less(rig):
    """A first message published long ago, by a producer held back or with a slow clock, waits that much less."""
    producer = rig.producer(TOPIC)
    fixed(rig, HOUR_MS)
    sent(rig, (producer, b"x", {"publish_time": START_MS - MINUTE_MS}))
    assert times(rig) == [START_MS + HOUR_MS - MINUTE_MS]


def test_f182_a_clock_that_is_set_back_a_little_keeps_the_order_and_more_does_not_hold_messages_up(rig):
    producer = rig.producer(TOPIC)
    fixed(rig, 10_000)
    for now_ms, found in ((0, 10_000), (-50, 10_000), (-60_000, 10_000), (-HOUR_MS, 10_000 - HOUR_MS), (1, 10_001)):
        rig.now_ms = START_MS + now_ms
        sent(rig, (producer, b"x"))
        assert times(rig)[-1] == START_MS + found


def test_f182_a_shorter_delay_holds_at_once(rig):
    """A shorter delay applies to the next message: the times of older messages do not hold it back."""
    producer = rig.producer(TOPIC)
    for ms in (HOUR_MS, 10_000, 1, HOUR_MS, 20):
        fixed(rig, ms)
        sent(rig, (producer, b"x"))
        assert times(rig)[-1] == START_MS + ms
        set_delays(rig, NAMESPACE, maxDeliveryDelayInMillis=7)      # another policy changes
        sent(rig, (producer, b"x"))
        assert times(rig)[-1] == START_MS + ms


@COUNTS
def test_f186_metadata_are_rewritten_before_they_are_stored_and_all_else_stays(rig, count):
    """Payloads, keys and properties of all kinds of messages are stored as published, with another delivery time; after
    a kill too.
    """
    producer = rig.producer(TOPIC)
    kinds = [
        {"batch": 3},
        {"batch": 1},
        {"compression": 1, "uncompressed_size": 99},
        {"partition_key": "k"},
        {"ordering_key": b"o"},
        {"encryption_keys": [api.EncryptionKeys(key="k", value=b"v")], "encryption_algo": "a"},
        {"null_value": True},
        {"properties": [api.KeyValue(key="a", value="b")], "event_time": 5},
        {"deliver_at_time": START_MS + 5},
        {"marker_type": 0},
    ]
    fixed(rig, 10_000)
    messages = [(producer, b"%05d" % n, {"publish_time": START_MS, **kinds[n % len(kinds)]})
                for n in range(count * len(kinds))]
    section = rig.sends(*messages)
    rig.run(section)
    found = stored(rig)
    at = 0
    for (metadata, payload), size in zip(found, section[1]["size"].tolist(), strict=True):
        came = metadata_of(section[2][at:at + size])
        came.deliver_at_time = START_MS + 10_000
        assert (metadata, payload) == (came, bytes(payload_of(section[2][at:at + size])))
        at += size
    messages = [0 if metadata.HasField("marker_type") else max(1, metadata.num_messages_in_batch)
                for metadata, _ in found]
    assert sum(messages) == rig.partition(TOPIC).next_message


def test_f186_a_kill_changes_nothing_of_it(rigs):
    """After a kill, stored messages and policies are the same, and times go on ascending from the last one."""
    rig = rigs()
    producer = rig.producer(TOPIC)
    fixed(rig, 10_000)
    sent(rig, *[(producer, b"%d" % n, {"deliver_at_time": 1 + n}) for n in range(50)])
    before = stored(rig)
    for again in (rigs.crash, rigs.restart):
        rig = again(rig)
        rig.now_ms -= 20      # and the clock is put back
        producer = rig.producer(TOPIC)
        assert stored(rig)[:50] == before
        sent(rig, (producer, b"x"))
        assert times(rig)[-1] >= rig.now_ms + 10_000 - 20
        rig.now_ms += 1_000
        sent(rig, (producer, b"y"))
        assert times(rig)[-1] == rig.now_ms + 10_000
        consumer = rig.consumer(TOPIC, f"after-{rig.number()}", subType=SubType.Shared)
        assert given(rig, rig.run(rig.flow(consumer, 100)), consumer) == []


def chunk(rig, producer, sequence_id, number, of, publish_time, payload=b"part"):
    """Return a section with one chunk of a message."""
    entry = entry_of(
        payload,
        sequence_id=sequence_id,
        publish_time=publish_time,
        uuid="u",
        chunk_id=number,
        num_chunks_from_msg=of,
        total_chunk_msg_size=4 * of,
    )
    row = np.array(
        [
            sends.read_one(
                api.CommandSend(producer_id=producer.object_id, sequence_id=sequence_id, is_chunk=True), entry
            )
        ],
        sends.SEND_ROW,
    )
    row["producer"], row["connection"] = producer.number, producer.connection
    return envelope.SENDS, row, entry


@pytest.mark.parametrize("are_many", [False, True], ids=["few", "many"])
def test_f186_chunks_are_delayed_alike_and_come_once_where_they_are_deduplicated(rigs, are_many):
    """Deduplication compares a chunk sent again with the received bytes. The stored ones have a delivery time, which
    would differ now.
    """
    rig = rigs(deduplication=True)
    producer, other = rig.producer(TOPIC, producer_name="p"), rig.producer(TOPIC, producer_name="q")
    fixed(rig, 10_000)
    plain = [rig.sends(*[(other, b"x", {"publish_time": START_MS + 99})] * (40 if are_many else 1)) for _ in range(6)]
    published, ids = START_MS - 1_000, [7, 8]

    def publish(number, filler, sequence_id=7):
        rig.now_ms += 100
        return rig.run(plain[filler], chunk(rig, producer, sequence_id, number, 3, published)).positions[-1]

    first, second = publish(0, 0), publish(1, 1)
    nowhere = ((1 << 64) - 1,) * 2
    assert publish(0, 2) == nowhere and publish(1, 3) == nowhere
    third = publish(2, 4)
    assert first < second < third < nowhere
    assert publish(2, 5) == nowhere
    found = [metadata for metadata, _ in stored(rig) if metadata.uuid]
    assert [metadata.chunk_id for metadata in found] == [0, 1, 2]
    assert all(START_MS + 9_000 <= metadata.deliver_at_time <= rig.now_ms + 10_000 for metadata in found)
    rig.run(chunk(rig, producer, ids[1], 0, 3, published))
    rig = rigs.crash(rig)
    producer = rig.producer(TOPIC, producer_name="p")
    assert rig.run(chunk(rig, producer, ids[1], 0, 3, published)).positions == [nowhere]
    # another first chunk begins the message anew
    assert rig.run(chunk(rig, producer, ids[1], 0, 3, published, b"cut otherwise")).positions != [nowhere]


def test_f186_what_is_sent_again_is_not_stored_again(rigs):
    rig = rigs(deduplication=True)
    producer = rig.producer(TOPIC)
    fixed(rig, 10_000)
    section = rig.sends(*[(producer, b"%d" % n, {"publish_time": START_MS}) for n in range(100)])
    rig.run(section)
    rig.now_ms += 500
    assert set(rig.run(section).positions) == {((1 << 64) - 1,) * 2}
    assert len(stored(rig)) == 100


def test_f186_next_to_rates_what_is_held_back_gets_its_time_when_it_came(rig):
    """A message that a publish rate holds back gets its delivery time when it arrives, not when it is stored."""
    producer = rig.producer(TOPIC)
    fixed(rig, 10_000)
    rig.owner.catalogue.policies.set(TOPIC, "publishRate",
                                     {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1})
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope=TOPIC))
    made = rig.sends(*[(producer, b"%d" % n, {"publish_time": START_MS}) for n in range(30)])
    came = len(rig.run(made).positions)
    while came < 30:
        found = rig.run(after_ms=100).positions
        came += len(found)
        assert rig.now_ms < START_MS + 10_000
    assert times(rig) == [START_MS + 10_000] * 30


def test_f186_a_send_in_a_transaction_asks_for_its_delay_as_any_other():
    """The row of a SEND in a transaction differs in the transaction only, so it cannot evade the policies."""
    entry, names = entry_of(b"x", deliver_at_time=5), sends.SEND_ROW.names
    said = [api.CommandSend(producer_id=1, sequence_id=1, txnid_least_bits=least) for least in (0, 1)]
    plain, in_transaction = (sends.read_one(one, entry) for one in said)
    assert [name for name, one, other in zip(names, plain, in_transaction, strict=True) if one != other] == [
        "message_index", "flags"]


def test_f186_topics_that_keep_nothing_know_no_delays(rig):
    producer, consumer = rig.producer(LIVE), rig.consumer(LIVE, subType=SubType.Shared)
    rig.run(rig.flow(consumer, 9))
    set_delays(rig, NAMESPACE, fixedDeliveryDelayInMillis=10_000)
    answers = rig.run(rig.sends((producer, b"a"), (producer, b"b", later(rig, HOUR_MS))))
    assert [payload for _, _, payload in answers.passed] == [b"a", b"b"]
    most(rig, 1_000, NAMESPACE)
    assert not rig.run(rig.sends((producer, b"b", later(rig, HOUR_MS)))).commands(T.SEND_ERROR)


@pytest.mark.slow
def test_f196_a_fixed_delay_needs_no_index(rig):
    """Messages with a fixed delay need no bitmaps, rows or files. The delayed index only has its limit, the first
    position that is not indexed.
    """
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=SubType.Shared)
    fixed(rig, HOUR_MS)
    rig.run(rig.flow(consumer, 1 << 20))
    for _ in range(20):
        rig.now_ms += 1_000
        sent(rig, *[(producer, b"x", {"publish_time": rig.now_ms - n % 70}) for n in range(500)])
    schedule = rig.partition(TOPIC).schedule
    assert schedule.limit is not None and not schedule.memory_bytes and not schedule.windows
    assert not list((rig.partition(TOPIC).folder / "delayed").glob("*.window*"))
    came = 0
    rig.now_ms += HOUR_MS - 20_000
    for _ in range(21):
        came += len(given(rig, rig.run(after_ms=1_000), consumer))
    assert came == 10_000


# -- maximum

@COUNTS
def test_f183_what_is_to_be_delivered_later_than_the_maximum_is_refused_alone(rig, count):
    producer = rig.producer(TOPIC)
    most(rig, 10_000)
    assert sent(rig, *[(producer, b"late", later(rig, 10_001))] * count) == refused(10_000, count)
    positions, errors = sent(
        rig,
        (producer, b"a"),
        (producer, b"late", later(rig, HOUR_MS)),
        (producer, b"b", later(rig, 10_000)),
        (producer, b"late", {"deliver_at_time": (1 << 63) - 1}),
        (producer, b"c", {"deliver_at_time": 1}),
    )
    assert (len(positions), errors) == (3, refused(10_000, 2)[1])
    assert [payload for _, payload in stored(rig)] == [b"a", b"b", b"c"]
    assert len(sent(rig, *[(producer, b"ok", later(rig, 9_999))] * count)[0]) == count


def test_f183_answers_come_in_the_order_of_what_was_sent(rig):
    """Receipts and refusals come in the order of the messages, as clients expect."""
    producer, other = rig.producer(TOPIC), rig.producer(TOPIC, connection=2)
    most(rig, 10_000)
    section = rig.sends(
        *[
            (producer if n % 3 else other, b"x", {"publish_time": START_MS} | ({} if n % 4 else later(rig, HOUR_MS)))
            for n in range(60)
        ]
    )
    rig.owner.passes.begin(rig.now_ms)
    rig.owner.passes.receive(1, envelope.unseal([bytes(part) for part in envelope.seal([section])])[1])
    [(_, frames)] = rig.owner.passes.end()
    order = {1: [], 2: []}
    for kind, rows, data in envelope.unseal([bytes(part) for part in frames])[1]:
        if kind == envelope.RECEIPTS:
            for row in rows:
                order[int(row["connection"])].append(int(row["sequence_id"]))
        elif kind == envelope.REPLIES:
            at = 0
            for row in rows:
                command = api.BaseCommand.FromString(bytes(data[at + 8:at + int(row["size"])]))
                order[int(row["connection"])].append(command.send_error.sequence_id)
                at += int(row["size"])
    sequence_ids = section[1][["connection", "sequence_id"]].tolist()
    assert order == {number: [sequence_id for connection, sequence_id in sequence_ids if connection == number]
                     for number in (1, 2)}


def test_f183_an_honest_producers_clock_may_be_wrong_and_a_liars_is_no_way_past(rig):
    """The maximum counts from the producer's publish time, which may be minutes ahead of the broker's clock, but no
    more.
    """
    producer = rig.producer(TOPIC)
    most(rig, 10_000)
    for skew_ms in (0, -HOUR_MS, delay_policy.AHEAD_MS, 1_000):
        clock = {"publish_time": START_MS + skew_ms}
        assert len(sent(rig, (producer, b"ok", clock | {"deliver_at_time": START_MS + skew_ms + 10_000}))[0]) == 1
    for skew_ms in (0, -HOUR_MS + 20_000, 100):
        clock = {"publish_time": START_MS + skew_ms}
        if skew_ms + 10_001 > 0:
            fields = clock | {"deliver_at_time": START_MS + skew_ms + 10_001}
            assert sent(rig, (producer, b"late", fields)) == refused(10_000)
    for lie in (START_MS + HOUR_MS, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        fields = {"publish_time": lie, "deliver_at_time": START_MS + HOUR_MS}
        assert sent(rig, (producer, b"late", fields)) == refused(10_000)


def test_f183_what_is_due_already_is_no_delay(rig):
    """A message that is due when it arrives is no delayed message, even if its publish time is long ago."""
    producer = rig.producer(TOPIC)
    most(rig, 10_000)
    for deliver_at in (START_MS, START_MS - 1, 1, -5):
        assert len(sent(rig, (producer, b"x", {"publish_time": 1, "deliver_at_time": deliver_at}))[0]) == 1


def test_f183_batches_and_chunks_are_refused_whole(rig):
    producer = rig.producer(TOPIC)
    most(rig, 10_000)
    assert sent(rig, (producer, b"batch", {"batch": 5} | later(rig, HOUR_MS))) == refused(10_000)
    assert rig.partition(TOPIC).delays_refused == 5
    for number in range(3):
        message = {"uuid": "u", "chunk_id": number, "num_chunks_from_msg": 3, "total_chunk_msg_size": 9,
                   **later(rig, HOUR_MS)}
        assert sent(rig, (producer, b"chunk", message)) == refused(10_000)
    assert stored(rig) == []


def test_f184_without_either_a_message_is_delayed_as_its_producer_says(rig):
    producer = rig.producer(TOPIC)
    century = START_MS + 100 * 365 * 24 * HOUR_MS
    sent(rig, (producer, b"a"), (producer, b"b", {"deliver_at_time": century}), (producer, b"c", later(rig, 5)))
    assert times(rig) == [0, century, START_MS + 5]
    assert not rig.owner.delays.watched


def test_f159_where_delayed_delivery_is_off_nothing_is_demanded(rig):
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=SubType.Shared)
    rig.run(rig.flow(consumer, 9))
    set_delays(rig, active=False, fixedDeliveryDelayInMillis=10_000, maxDeliveryDelayInMillis=5)
    answers = rig.run(rig.sends((producer, b"a"), (producer, b"b", later(rig, HOUR_MS))))
    assert given(rig, answers, consumer) == [b"a", b"b"]
    assert times(rig) == [0, START_MS + HOUR_MS]


# -- levels

@pytest.mark.parametrize("what", ["fixed", "max"])
def test_f185_f200_a_topic_is_stronger_than_its_namespace_and_that_than_the_broker(rigs, what):
    """0 switches a policy off at its level; without a value, the level above counts."""
    rig = rigs(**{f"delayed_delivery_{what}_ms": 4_000})
    name = {"fixed": FIXED, "max": MAX}[what]
    producer, elsewhere = rig.producer(TOPIC), rig.producer(TOPIC + "2")

    def holds(handle, ms):
        if what == "fixed":
            sent(rig, (handle, b"x", later(rig, HOUR_MS)))
            return times(rig, handle.topic)[-1] == (rig.now_ms + (ms or HOUR_MS))
        found = sent(rig, (handle, b"x", later(rig, (ms or HOUR_MS) + 1)), (handle, b"x", later(rig, ms or HOUR_MS)))
        return found[1] == (refused(ms)[1] if ms else []) and len(found[0]) == (1 if ms else 2)

    for scope, ms, here, there in (
        (None, 4_000, 4_000, 4_000),
        (NAMESPACE, 3_000, 3_000, 3_000),
        (TOPIC, 2_000, 2_000, 3_000),
        (TOPIC, 0, 0, 3_000),
        (TOPIC, 5_000, 5_000, 3_000),
        (NAMESPACE, 0, 5_000, 0),
        (TOPIC, None, 0, 0),
        (NAMESPACE, None, 4_000, 4_000),
    ):
        if scope is not None:
            set_delays(rig, scope, **({} if ms is None else {name: ms}))
        assert holds(producer, here) and holds(elsewhere, there), (scope, ms)
        rig.now_ms += 10_000


def test_f185_fields_that_a_topic_leaves_open_are_as_further_up(rig):
    """A topic that sets only its tick keeps the namespace's fixed delay."""
    rig.producer(TOPIC)
    set_delays(rig, NAMESPACE, fixedDeliveryDelayInMillis=10_000, timePartitionGranularityInMillis=60_000, tickTime=500)
    for fields, tick_ms in (({"maxDeliveryDelayInMillis": 1}, 500), ({"tickTime": 20}, 20)):
        set_delays(rig, **fields)
        found = rig.partition(TOPIC).policies
        assert (found.delay_fixed_ms, found.delay_window_ms, found.delay_tick_ms) == (10_000, 60_000, tick_ms)
    fixed(rig, 0)
    assert rig.partition(TOPIC).policies.delay_fixed_ms == 0


def test_f198_what_is_set_holds_for_the_next_send(rig):
    """A policy that changes between two SENDs of a connection applies to the second one."""
    producer = rig.producer(TOPIC)
    for n in range(20):
        if n % 2:
            fixed(rig, 1_000 * n)
        else:
            most(rig, 1_000)
        found = sent(rig, (producer, b"x", later(rig, HOUR_MS)))
        assert found[1] == ([] if n % 2 else refused(1_000)[1])
        if n % 2:
            assert times(rig)[-1] == START_MS + 1_000 * n
    set_delays(rig)
    sent(rig, (producer, b"x"))
    assert times(rig)[-1] == 0


# -- counted

def test_f192_f193_messages_are_counted_that_were_refused_and_whose_own_time_was_overridden(rig):
    """Messages that had no time of their own do not count as overridden."""
    producer, partition = rig.producer(TOPIC), rig.partition(TOPIC)
    most(rig, 1_000)
    sent(rig, (producer, b"a"), (producer, b"b", later(rig, 2_000)),
         (producer, b"c", {"batch": 10} | later(rig, 2_000)))
    assert (partition.delays_refused, partition.delays_overridden) == (11, 0)
    fixed(rig, 1_000)
    sent(rig, *[(producer, b"a")] * 50, *[(producer, b"b", {"batch": 2} | later(rig, 2_000))] * 50)
    assert (partition.delays_refused, partition.delays_overridden) == (11, 100)


# -- what it was made for

@pytest.mark.slow
def test_f195_what_is_acknowledged_in_any_order_does_not_come_again_after_a_kill(rigs):
    """20,000 messages with a fixed delay, every second one acknowledged alone: more holes than Pulsar's cursors keep.
    """
    rig = rigs()
    producer, consumer = rig.producer(TOPIC), rig.consumer(TOPIC, subType=SubType.Shared)
    fixed(rig, 10_000)
    for _ in range(20):
        rig.run(rig.sends(*[(producer, b"x", {"publish_time": START_MS})] * 1_000))
    rig.now_ms += 11_000
    positions = [position for position, _ in rig.delivered(rig.run(rig.flow(consumer, 20_000)), consumer)]
    assert len(positions) == 20_000
    done = positions[::2]
    random.Random(1).shuffle(done)
    rig.run(rig.acks(consumer, *done, request_id=1))
    rig = rigs.crash(rig)
    consumer = rig.consumer(TOPIC, subType=SubType.Shared)
    again = [position for position, _ in rig.delivered(rig.run(rig.flow(consumer, 20_000)), consumer)]
    assert sorted(again) == sorted(positions[1::2])


@pytest.mark.slow
@COUNTS
def test_f182_f183_topics_with_and_without_policies_come_together(rig, count):
    """Messages of several topics are mixed in one pass: each topic applies its own policies, and keeps its order."""
    topics = [TOPIC + str(number) for number in range(5)]
    demands = [{FIXED: 5_000}, {MAX: 1_000}, {}, {FIXED: 7_000}, {MAX: 3_000}]
    producers = [(number, rig.producer(topic)) for number, topic in enumerate(topics) for _ in range(2)]
    for topic, demand in zip(topics, demands, strict=True):
        set_delays(rig, topic, **demand)
    random_, expected, errors = random.Random(3), [[] for _ in topics], 0
    for _ in range(3):
        rig.now_ms += 100
        messages = []
        for n in range(10 * count):
            number, producer = random_.choice(producers)
            payload, ahead = b"%05d" % n, random_.choice((0, 0, 500, 2_000, 9_000))
            fields = {"publish_time": rig.now_ms - random_.choice((0, 0, 7, 30))} | (later(rig, ahead) if ahead else {})
            messages.append((producer, payload, fields))
            demand, found = demands[number], expected[number]
            if FIXED in demand:
                found.append((max([fields["publish_time"] + demand[FIXED], *(at for at, _ in found[-1:])]), payload))
            elif MAX in demand and ahead and fields["deliver_at_time"] > fields["publish_time"] + demand[MAX]:
                errors += 1
            else:
                found.append((fields.get("deliver_at_time", 0), payload))
        sent(rig, *messages)
    for topic, found in zip(topics, expected, strict=True):
        assert [(metadata.deliver_at_time, payload) for metadata, payload in stored(rig, topic)] == found
    partitions = [rig.partition(topic) for topic in topics]
    assert errors == sum(partition.delays_refused for partition in partitions) > 0
    assert [partition.delays_overridden > 0 for partition in partitions] == [True, False, False, True, False]


def in_force(scopes, name):
    return next((scopes[scope][name] for scope in (TOPIC, NAMESPACE) if name in scopes[scope]), 0)


@pytest.mark.slow
def test_any_policies_and_messages(rigs):
    """Random policies, clocks, kills and numbers of messages, against a model of a few lines."""
    random_ = random.Random(20)
    for _ in range(4):
        rig, expected, scopes = rigs(), [], {TOPIC: {}, NAMESPACE: {}}
        producer = rig.producer(TOPIC)
        for _ in range(40):
            rig.now_ms += random_.choice((0, 1, 700))
            what = random_.random()
            if what < 0.2:
                scope = random_.choice((TOPIC, NAMESPACE))
                scopes[scope] = random_.choice((
                    {}, {FIXED: random_.choice((0, 5_000, 9_000))}, {MAX: random_.choice((0, 5_000))}))
                set_delays(rig, scope, **scopes[scope])
            elif what < 0.25:
                rig = rigs.crash(rig)
                producer = rig.producer(TOPIC)
            fixed_ms, max_ms, errors = in_force(scopes, FIXED), in_force(scopes, MAX), 0
            made = [{"publish_time": rig.now_ms - random_.choice((0, 3, 40))}
                    | (later(rig, random_.choice((1, 4_000, 6_000))) if random_.random() < 0.4 else {})
                    for _ in range(random_.choice((1, 3, 90)))]
            made = [(producer, b"x" * random_.choice((5, 9)), fields) for fields in made]
            for _, payload, fields in made:
                at = fields.get("deliver_at_time", 0)
                if fixed_ms:
                    before = expected[-1][0] if expected else 0
                    at = max(fields["publish_time"] + fixed_ms, before if before <= rig.now_ms + fixed_ms else 0)
                elif max_ms and at > fields["publish_time"] + max_ms:
                    errors += 1
                    continue
                expected.append((at, payload))
            positions, found = sent(rig, *made)
            assert (len(positions), len(found)) == (len(made) - errors, errors)
        assert [(metadata.deliver_at_time, payload) for metadata, payload in stored(rig)] == expected
