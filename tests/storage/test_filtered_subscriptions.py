"""A subscription with a filter: its consumers get what matches and nothing else, and the rest is acknowledged."""
import struct

import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.filters import sieve
from geminga.storage.filters.sieve import FILTER
from geminga.storage.open_topics import filtering
from geminga.storage.topics.subscription import SubType

from .rig import CONNECTION, T
from .test_compacted import Reading, Topic
from .test_replication_cursors import set_policy
from .transactional import TransactionalRig

EVEN = "parity = 'even'"
KINDS = [SubType.Exclusive, SubType.Failover, SubType.Shared, SubType.Key_Shared]


@pytest.fixture(params=KINDS, ids=SubType.Name)
def kind(request):
    return request.param


@pytest.fixture
def rig(rigs):
    return rigs(subscription_filters=True)


def asking(text):
    return {"subscription_properties": [api.KeyValue(key=FILTER, value=text)]}


def filtered(rig, text=EVEN, **fields):
    return rig.consumer("t", **asking(text) | fields)


def properties(number):
    return {"parity": "odd" if number % 2 else "even", "n": str(number)}


def message(number, **fields):
    pairs = [api.KeyValue(key=key, value=value) for key, value in properties(number).items()]
    return b"%d" % number, {"properties": pairs, "partition_key": str(number)} | fields


def batch(*numbers):
    body = b""
    for number in numbers:
        own = api.SingleMessageMetadata(payload_size=4)
        for key, value in properties(number).items():
            own.properties.add(key=key, value=value)
        head = own.SerializeToString()
        body += struct.pack(">I", len(head)) + head + b"%4d" % number
    return body, {"batch": len(numbers)}


def publish(rig, *messages):
    producer = rig.producer("t")
    return rig.run(rig.sends(*[(producer, *one) for one in messages])).positions


def numbers(rig, consumer, permits=1_000):
    return [int(payload) for _, payload in rig.receive(consumer, permits)]


def stats(rig):
    return rig.shown("stats", "t", earliest=False, publishers=False, consumers=False)["subscriptions"]["sub"]


# -- what is delivered

def test_only_what_matches_is_delivered_in_order_and_the_rest_is_acknowledged(rig, kind):
    consumer = filtered(rig, subType=kind)
    positions = publish(rig, *map(message, range(20)))
    assert numbers(rig, consumer) == list(range(0, 20, 2))
    told = stats(rig)
    assert (told["filterProcessedMsgCount"], told["filterAcceptedMsgCount"], told["filterRejectedMsgCount"]) == (
        20, 10, 10)
    assert told["msgBacklog"] == 10 and told["messages"]["skipped"] == 10
    rig.run(rig.acks(consumer, *positions[::2]))
    assert stats(rig)["msgBacklog"] == 0
    assert rig.counters.read()["messages_filtered"] == 10


def test_what_does_not_match_uses_no_permits_and_is_looked_for_only_with_permits(rig, kind):
    consumer = filtered(rig, subType=kind)
    publish(rig, *map(message, range(20)))
    rig.run()
    assert stats(rig)["filterProcessedMsgCount"] == 0
    assert numbers(rig, consumer, 3) == [0, 2, 4]
    assert numbers(rig, consumer, 7) == [6, 8, 10, 12, 14, 16, 18]


def test_a_message_behind_many_that_do_not_match_comes_in_bounded_passes(rig, kind, monkeypatch):
    """Consumers of other subscriptions are served in between."""
    monkeypatch.setattr(filtering, "_ENTRIES_MAX", 10)
    other = rig.consumer("t", "all", connection=CONNECTION + 1)
    consumer = filtered(rig, subType=kind)
    publish(rig, *[message(1)] * 200, message(2))
    answers = rig.run(rig.flow(consumer, 5), rig.flow(other, 1_000))
    assert len(rig.delivered(answers, other)) == 201 and not rig.delivered(answers, consumer)
    passes, found = 1, []
    while not found:
        assert rig.owner.passes.due_ms() <= rig.now_ms, "the next pass is not due"
        found, passes = rig.delivered(rig.run(), consumer), passes + 1
    assert [payload for _, payload in found] == [b"2"]
    assert passes == -(-201 // (10 * filtering.TURNS_MAX))
    assert rig.owner.passes.due_ms() > rig.now_ms


def test_what_was_delivered_comes_again_and_what_did_not_match_does_not(rig, kind):
    consumer = filtered(rig, subType=kind)
    publish(rig, *map(message, range(10)))
    assert numbers(rig, consumer) == [0, 2, 4, 6, 8]
    answers = rig.run(rig.redeliver(consumer), rig.flow(consumer, 100))
    assert sorted(int(payload) for _, payload in rig.delivered(answers, consumer)) == [0, 2, 4, 6, 8]
    assert stats(rig)["messages"]["skipped"] == 5


def test_an_entry_that_ends_a_ledger_and_a_rollover_are_looked_over(rigs):
    rig = rigs(subscription_filters=True, roll_over_entries=3)
    consumer, producer = filtered(rig), rig.producer("t")
    for number in range(12):
        rig.run(rig.sends((producer, *message(number))))
    assert numbers(rig, consumer) == [0, 2, 4, 6, 8, 10]


def test_after_a_crash_the_same_is_delivered_and_what_is_acknowledged_stays_so(rig, kind, tmp_path):
    consumer = filtered(rig, subType=kind)
    positions = publish(rig, *map(message, range(10)), batch(10, 11, 12))
    assert numbers(rig, consumer, 2) == [0, 2]
    rig.run(rig.acks(consumer, positions[0], request_id=1))
    after = rig.crashed(tmp_path / "next", subscription_filters=True)
    consumer = filtered(after, subType=kind)
    answers = after.run(after.flow(consumer, 100))
    assert [position for position, _, _ in after.given(answers, consumer)] == [*positions[2:10:2], positions[10]]
    assert answers.chosen == {positions[10]: [0b101]}


def test_a_subscription_without_a_filter_gets_everything(rig):
    consumer = rig.consumer("t", connection=CONNECTION + 1)
    filtered(rig, subscription="other")
    publish(rig, *map(message, range(4)))
    assert numbers(rig, consumer) == [0, 1, 2, 3]


def test_a_reader_has_a_filter(rig):
    publish(rig, *map(message, range(6)))
    assert numbers(rig, filtered(rig, durable=False)) == [0, 2, 4]


def test_a_filter_looks_at_the_key(rig):
    consumer = filtered(rig, "key IN ('1', '4')")
    publish(rig, *map(message, range(6)))
    assert numbers(rig, consumer) == [1, 4]


def test_delayed_messages_are_looked_at_once_and_come_at_their_time(rig):
    consumer = filtered(rig, subType=SubType.Shared)
    publish(rig, *[message(number, deliver_at_time=rig.now_ms + 5_000) for number in range(4)], message(4))
    assert numbers(rig, consumer) == [4]
    answers = rig.run(after_ms=10_000)
    assert sorted(payload for _, payload in rig.delivered(answers, consumer)) == [b"0", b"2"]
    assert stats(rig)["filterProcessedMsgCount"] == 5


def test_chunks_come_all_or_none(rig, kind):
    def chunks(number):
        return [message(number, uuid=str(number), chunk_id=chunk, num_chunks_from_msg=3, total_chunk_msg_size=9)
                for chunk in range(3)]

    consumer = filtered(rig, subType=kind)
    publish(rig, *chunks(1), *chunks(2), *chunks(3))
    assert numbers(rig, consumer) == [2, 2, 2]


# -- batches

def test_of_a_batch_the_messages_that_match_are_delivered(rig, kind):
    consumer = filtered(rig, subType=kind)
    mixed, _, whole, _ = publish(rig, batch(0, 1, 2, 3), batch(1, 3), batch(4, 6), message(5))
    answers = rig.run(rig.flow(consumer, 4))
    assert [position for position, _, _ in rig.given(answers, consumer)] == [mixed, whole]
    assert answers.chosen == {mixed: [0b0101]}
    told = stats(rig)
    assert (told["filterAcceptedMsgCount"], told["filterRejectedMsgCount"]) == (4, 5)
    rig.run(rig.acks(consumer, mixed, whole))
    assert stats(rig)["msgBacklog"] == 0


def test_an_ack_set_of_a_client_is_about_the_messages_that_it_was_sent(rig, kind, tmp_path):
    """The client was sent messages 0, 2 and 4 of the batch as a batch of three, and acknowledges the second one."""
    consumer = filtered(rig, subType=kind)
    [position] = publish(rig, batch(0, 1, 2, 3, 4))
    rig.run(rig.flow(consumer, 5))
    rig.run(rig.ack_part(consumer, position, 0b101))
    answers = rig.run(rig.redeliver(consumer), rig.flow(consumer, 5))
    [(_, _, words)] = rig.given(answers, consumer)
    assert words == [0b10001] and answers.chosen == {position: [0b10101]}
    # A client that acknowledges before the subscription is looked through again.
    after = rig.crashed(tmp_path / "next", subscription_filters=True)
    consumer = filtered(after, subType=kind)
    after.run(after.ack_part(consumer, position, 0b100))
    [(_, _, words)] = after.given(after.run(after.flow(consumer, 5)), consumer)
    assert words == [0b10000]
    after.run(after.ack_part(consumer, position, 0b011, request_id=1))
    assert stats(after)["msgBacklog"] == 0


def test_a_seek_into_a_batch_counts_the_messages_that_match(rig):
    consumer = filtered(rig)
    [position] = publish(rig, batch(0, 1, 2, 3, 4))
    rig.run(rig.command("seek", connection=consumer.connection, consumer_id=consumer.object_id, request_id=1,
                        message_id=api.MessageIdData(ledgerId=position[0], entryId=position[1], ack_set=[0b110])))
    consumer = filtered(rig)
    answers = rig.run(rig.flow(consumer, 9))
    [(_, _, words)] = rig.given(answers, consumer)
    assert words == [0b10100] and answers.chosen == {position: [0b10101]}


def test_after_a_seek_messages_are_looked_at_again(rig, kind):
    consumer = filtered(rig, subType=kind)
    positions = publish(rig, *map(message, range(6)))
    assert numbers(rig, consumer) == [0, 2, 4]
    rig.run(rig.question("reset", "t", subscription="sub", position=positions[1], behind=False))
    assert numbers(rig, filtered(rig, subType=kind)) == [2, 4]


# -- how a subscription gets its filter

def refusal(rig, **fields):
    section, _ = rig.subscribe("t", "sub", **fields)
    [command] = rig.run(section).commands(T.ERROR)
    return command.error.error, command.error.message


def test_filters_are_refused_unless_the_policy_allows_them(rigs):
    rig = rigs()
    error, text = refusal(rig, **asking(EVEN))
    assert error == api.NotAllowedError and "subscriptionFilters" in text
    assert not rig.partition("t").subscriptions
    rig.run(rig.question("subscribe", "t", subscription="sub"))
    [answer] = rig.run(rig.question("properties", "t", subscription="sub", properties={FILTER: EVEN})).answered
    assert "subscriptionFilters" in answer["text"]
    assert rig.partition("t").subscriptions["sub", True].sieve is None


def test_a_broken_filter_is_refused_and_the_answer_says_where(rig):
    error, text = refusal(rig, **asking("parity = even"))
    assert error == api.NotAllowedError and text.startswith(FILTER) and "at character 10" in text
    rig.run(rig.question("subscribe", "t", subscription="sub"))
    [answer] = rig.run(rig.question("properties", "t", subscription="sub", properties={FILTER: "a ="})).answered
    assert "at character 4" in answer["text"]


@pytest.mark.parametrize("field", ["metadata", "subscription_properties"])
def test_a_filter_that_is_not_utf8_is_refused(rig, field):
    pair = api.KeyValue(key=FILTER, value="a = '?'").SerializeToString().replace(b"?", b"\xff")
    section, _ = rig.subscribe("t", "sub", **{field: [api.KeyValue.FromString(pair)]})
    [command] = rig.run(section).commands(T.ERROR)
    assert command.error.error == api.NotAllowedError and "UTF-8" in command.error.message


def test_a_non_persistent_topic_has_no_filters(rig):
    section, _ = rig.subscribe("non-persistent://public/default/t", "sub", **asking(EVEN))
    [command] = rig.run(section).commands(T.ERROR)
    assert command.error.error == api.NotAllowedError and "non-persistent" in command.error.message


def test_a_consumer_s_own_property_is_a_filter_too(rig):
    consumer = rig.consumer("t", metadata=[api.KeyValue(key=FILTER, value=EVEN)])
    publish(rig, *map(message, range(4)))
    assert numbers(rig, consumer) == [0, 2]
    assert refusal(rig, metadata=[api.KeyValue(key=FILTER, value="a = 1")], **asking(EVEN))[0] == api.NotAllowedError


def test_a_consumer_attaches_with_the_same_filter_or_with_none(rig):
    filtered(rig, subType=SubType.Shared)
    filtered(rig, subType=SubType.Shared, connection=CONNECTION + 1)
    rig.consumer("t", subType=SubType.Shared, connection=CONNECTION + 2)
    error, text = refusal(rig, subType=SubType.Shared, **asking("n > 5"))
    assert error == api.NotAllowedError and EVEN in text
    rig.partition("t").check()


def test_a_subscription_with_consumers_gets_no_filter_by_another_one(rig):
    rig.consumer("t", subType=SubType.Shared)
    error, text = refusal(rig, subType=SubType.Shared, **asking(EVEN))
    assert error == api.ConsumerBusy and "connected" in text
    rig.partition("t").check()


def test_a_filter_changes_while_nobody_is_connected(rig):
    consumer = filtered(rig)
    publish(rig, *map(message, range(6)))
    assert numbers(rig, consumer, 1) == [0]
    ask = {"subscription": "sub", "properties": {FILTER: "n >= 4", "team": "a"}}
    [answer] = rig.run(rig.question("properties", "t", **ask)).answered
    assert "connected" in answer["text"]
    rig.close_consumer(consumer)
    assert rig.run(rig.question("properties", "t", **ask)).answered == [{"answer": ask["properties"]}]
    assert numbers(rig, filtered(rig, "n >= 4")) == [4]      # 5 was acknowledged before
    assert rig.asked("properties", "t", subscription="sub") == ask["properties"]


def test_a_filter_is_kept_over_an_unload(rig):
    rig.close_consumer(filtered(rig))
    rig.run(rig.question("unload", "t"))
    publish(rig, *map(message, range(4)))
    assert numbers(rig, rig.consumer("t")) == [0, 2]


def test_a_filter_that_an_older_program_stored_and_nobody_can_read_is_said(rig, monkeypatch):
    rig.producer("t")
    with monkeypatch.context() as patched:
        patched.setattr(sieve, "check", lambda text: "")
        assert rig.asked("subscribe", "t", subscription="sub", properties={FILTER: "= 1"})
    error, text = refusal(rig)
    assert error == api.NotAllowedError and "at character 1" in text


def test_why_says_how_many_did_not_match(rig):
    consumer = filtered(rig)
    publish(rig, *map(message, range(6)))
    numbers(rig, consumer)
    assert {"cause": "filter", "messages": 3, "filter": EVEN} in rig.asked("why", "t", subscription="sub")["causes"]


# -- beside other features

def test_a_filter_and_a_dispatch_rate(rigs):
    rig = rigs(subscription_filters=True, dispatch_messages_per_subscription=2)
    consumer = filtered(rig)
    publish(rig, *map(message, range(12)))
    found = numbers(rig, consumer)
    for _ in range(8):
        some = [int(payload) for _, payload in rig.delivered(rig.run(after_ms=1_000), consumer)]
        assert len(some) <= 2
        found += some
    assert found == [0, 2, 4, 6, 8, 10]


def test_what_is_left_when_consumers_go_is_delivered_to_others(rig):
    first = filtered(rig, subType=SubType.Shared)
    publish(rig, *map(message, range(10)))
    assert numbers(rig, first, 3) == [0, 2, 4]
    second = filtered(rig, subType=SubType.Shared, connection=CONNECTION + 1)
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=CONNECTION))
    assert sorted(numbers(rig, second)) == [0, 2, 4, 6, 8]


def test_the_highest_priority_of_what_matches_comes_first(rigs, monkeypatch):
    """All that waits is looked at before anything is delivered, in as many passes as that takes."""
    monkeypatch.setattr(filtering, "_ENTRIES_MAX", 10)
    rig = rigs(subscription_filters=True, message_priority=True)
    consumer = filtered(rig, subType=SubType.Shared)

    def ranked(number, priority):
        payload, fields = message(number)
        return payload, fields | {"properties": [*fields["properties"],
                                                 api.KeyValue(key="geminga.priority", value=str(priority))]}

    publish(rig, *[ranked(number, 0) for number in range(100)], ranked(100, 9), ranked(101, 9), ranked(102, 5))
    found = rig.delivered(rig.run(rig.flow(consumer, 3)), consumer)
    while not found:
        found = rig.delivered(rig.run(), consumer)
    assert [payload for _, payload in found] == [b"100", b"102", b"0"]


@pytest.mark.parametrize("entries", [1, 4_096], ids=["one-by-one", "together"])
def test_a_reader_of_a_compacted_view_gets_what_matches_of_it_and_of_what_came_after(rigs, monkeypatch, entries):
    monkeypatch.setattr(filtering, "_ENTRIES_MAX", entries)
    topic = Topic(rigs(subscription_filters=True, roll_over_entries=5))
    text = "key IN ('k1', 'k5', 'b1', 'b2', 'c')"
    assert topic.rig.asked("subscribe", "t", subscription="reader", properties={FILTER: text})
    for _ in range(2):
        topic.publish(*[(f"k{number}", b"%d" % number) for number in range(8)],
                      [(f"b{number}", b"%d" % number) for number in range(4)])
    topic.publish([("b1", b"newer"), ("c", b"c")])
    topic.compact()
    topic.publish(("k1", b"behind"), ("k2", b"behind"))
    reading = Reading(topic)
    found = reading.read()
    while topic.rig.owner.passes.due_ms() <= topic.rig.now_ms:
        topic.run()
        found = reading.got
    assert [(key, value) for _, _, key, value in found] == [
        ("k1", b"1"), ("k5", b"5"), ("b2", b"2"), ("b1", b"newer"), ("c", b"c"), ("k1", b"behind")]
    topic.rig.run(topic.rig.acks(reading.consumer, *reading.positions))
    assert topic.account("reader")["backlog"] == 0


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_messages_of_a_transaction_are_looked_at_after_its_commit(tmp_path, kind, commits):
    rig = TransactionalRig(tmp_path / "data", subscription_filters=True)
    try:
        producer, consumer = rig.producer("t"), filtered(rig, subType=kind)
        transaction = rig.begin("t")
        rig.publish_in(transaction, producer, b"in it")
        rig.run(rig.sends((producer, *message(1)), (producer, *message(2))))
        assert numbers(rig, consumer) == [] and stats(rig)["filterProcessedMsgCount"] == 0
        [answers] = rig.end(transaction, "t", commits=commits)
        assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"2"]
        assert stats(rig)["filterRejectedMsgCount"] == 1 + commits
    finally:
        rig.close()


# -- dead letters

@pytest.mark.parametrize("is_own", [False, True])
def test_what_expires_without_a_consumer_and_does_not_match_is_no_dead_letter(rigs, monkeypatch, is_own):
    """Messages of a batch, too; of many messages some are looked at each second."""
    monkeypatch.setattr(filtering, "_ENTRIES_MAX", 2)
    monkeypatch.setattr(filtering, "TURNS_MAX", 2)
    rig = rigs(subscription_filters=True, own_message_ttl=is_own, message_ttl_s=0 if is_own else 2)
    set_policy(rig, "deadLetter", {"expired": True})
    rig.close_consumer(filtered(rig))
    times = [api.KeyValue(key="geminga.ttl", value="1s")] if is_own else []
    single = [message(number) for number in range(1, 20)]
    positions = publish(rig, *((payload, fields | {"properties": fields["properties"] + times})
                               for payload, fields in single))
    mixed = [] if is_own else publish(rig, batch(1, 2, 3))
    for _ in range(12):
        rig.run(after_ms=1_000)
    partition = rig.partition("t")
    cursor = partition.subscriptions["sub", True].cursor
    dead = [(ledger_id, entry_id) for ledger_id, entries in cursor.dead.all() for entry_id in entries.tolist()]
    assert dead == [position for position, (payload, _) in zip(positions, single, strict=True)
                    if not int(payload) % 2] + mixed
    assert cursor.backlog(partition.ledgers) == len(dead)
    assert stats(rig)["filterRejectedMsgCount"] == (10 if is_own else 12)
