"""Promises of an owner to consumers: which messages they get, in which order, how many at a time, and which come
again.
"""
import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api

from .rig import START_MS, T


@pytest.fixture
def ten(rigs):
    """(rig, its producer, positions of ten entries "0" to "9" in four ledgers)"""
    rig = rigs(roll_over_entries=3)
    producer, _ = rig.producer("a"), rig.consumer("a", "keeps everything")
    return rig, producer, [rig.publish(producer, b"%d" % number)[0] for number in range(10)]


def payloads(found):
    return b"".join(payload for _, payload in found)


# -- permits -----------------------------------------------------------------------------------------------------------

def test_many_entries_and_few_take_the_same_permits(rig):
    """Permits are used up alike when entries are counted one by one and as an array."""
    producer, consumer = rig.producer("a"), rig.consumer("a")
    rig.run(rig.sends(*[(producer, b"x", {"batch": 3}) for _ in range(100)]))
    assert [len(rig.receive(consumer, permits)) for permits in (1, 2, 3, 30, 90, 165)] == [1, 0, 1, 10, 30, 55]
    assert len(rig.receive(consumer, 1_000)) == 3


def test_permits_of_a_stranger_are_for_nobody(rig):
    producer, consumer = rig.producer("a"), rig.consumer("a")
    rig.publish(producer, b"x")
    rig.close_consumer(consumer)
    assert rig.run(rig.flow(consumer, 10)).runs == []
    assert rig.receive(rig.consumer("a"), 0) == []


# -- what comes again --------------------------------------------------------------------------------------------------

def acknowledged_some(rig, positions):
    """Return a consumer that got all ten entries and acknowledged the first two, the fifth and the ninth."""
    consumer = rig.consumer("a")
    assert payloads(rig.receive(consumer)) == b"0123456789"
    rig.run(rig.acks(consumer, positions[0], positions[4], positions[8], positions[1]))
    return consumer


def test_acknowledging_a_later_ledger_first_loses_nothing(ten, rigs):
    """The mark-delete position enters a ledger only after everything before it is acknowledged."""
    rig, _, positions = ten
    consumer = rig.consumer("a")
    rig.receive(consumer)
    rig.run(rig.acks(consumer, positions[3], positions[4]))
    rig.run(rig.acks(consumer, positions[6]))
    rig.close_consumer(consumer)
    assert payloads(rig.receive(rig.consumer("a"))) == b"0125789"
    crashed = rigs.crash(rig)
    assert payloads(crashed.receive(crashed.consumer("a"))) == b"0125789"


def test_acknowledging_in_order_costs_no_bitmaps(ten):
    """Acknowledgements in order need no bitmaps across ledgers, one by one, a few at a time or cumulatively."""
    rig, _, positions = ten
    consumer = rig.consumer("a")
    for some in (positions[:1], positions[1:2], positions[2:7], positions[7:9]):
        rig.run(rig.acks(consumer, *some))
    assert rig.files("a", ".acks") == []
    rig.run(rig.acks(consumer, positions[9], cumulative=True))
    rig.close_consumer(consumer)
    assert rig.receive(rig.consumer("a")) == []


# -- positions ---------------------------------------------------------------------------------------------------------

def seek(rig, consumer, **where):
    """Seek, subscribe again as clients do after their consumer is closed, and return the deliveries."""
    answers = rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=77, **where))
    assert [command.close_consumer.consumer_id for command in answers.commands(T.CLOSE_CONSUMER)] == [
        consumer.object_id
    ]
    assert [command.success.request_id for command in answers.commands(T.SUCCESS)] == [77]
    again = rig.consumer("a")
    return payloads(rig.receive(again)), again


def id_of(position):
    return api.MessageIdData(ledgerId=position[0] & (1 << 64) - 1, entryId=position[1] & (1 << 64) - 1)


def test_seek_by_id_begins_there(ten, rigs):
    """After a seek, everything behind the target comes again and nothing before it, also after a crash."""
    rig, _, positions = ten
    consumer = acknowledged_some(rig, positions)
    for where, expected in (
        (positions[3], b"3456789"),
        (positions[9], b"9"),
        (positions[0], b"0123456789"),
        ((-1, -1), b"0123456789"),
        ((1 << 62, 1 << 62), b""),
        ((positions[0][0], 1 << 40), b"3456789"),
    ):
        found, consumer = seek(rig, consumer, message_id=id_of(where))
        assert found == expected, where
    crashed = rigs.crash(rig)
    assert payloads(crashed.receive(crashed.consumer("a"))) == b"3456789"


def test_seek_by_time_begins_with_the_first_entry_published_then_or_later(rigs):
    rig = rigs(roll_over_entries=3)
    producer, consumer = rig.producer("a"), rig.consumer("a")
    for number in range(10):
        rig.run(rig.sends((producer, b"%d" % number, {"publish_time": START_MS + 1_000 * number})))
    for time_ms, expected in (
        (0, b"0123456789"),
        (START_MS + 4_000, b"456789"),
        (START_MS + 4_001, b"56789"),
        (START_MS + 99_000, b""),
        ((1 << 63) - 1, b""),
        ((1 << 64) - 60, b"0123456789"),      # -60, as Java's client writes it
    ):
        found, consumer = seek(rig, consumer, message_publish_time=time_ms)
        assert found == expected, time_ms


def remaining(rig, consumer, permits=1_000):
    """Return [(position, words)] of all that one grant of permits brings."""
    return [(position, words) for position, _, words in rig.given(rig.run(rig.flow(consumer, permits)), consumer)]


@pytest.fixture
def batches(rigs):
    """(rig, positions of an entry, a batch of 70 messages, and an entry)"""
    rig = rigs()
    producer = rig.producer("a")
    rig.consumer("a", "keeps everything")
    return rig, rig.run(rig.sends((producer, b"0"), (producer, b"1", {"batch": 70}), (producer, b"2"))).positions


WORDS = [((1 << 64) - 1) & ~0b11111, 0b111111]      # of 70 messages, from the sixth on


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
@pytest.mark.parametrize("durable", [True, False])
def test_seek_into_a_batch_begins_with_that_message(batches, rigs, kind, durable):
    """After a seek into a batch (F201) its earlier messages count as skipped, and stay acknowledged after a crash."""
    rig, positions = batches
    fields = {"subType": api.CommandSubscribe.SubType.Value(kind), "durable": durable}
    consumer = rig.consumer("a", **fields)
    rig.receive(consumer)
    rig.run(rig.acks(consumer, *positions))
    signed = [word - (1 << 64) if word >> 63 else word for word in WORDS]
    where = id_of(positions[1])
    where.ack_set.extend(signed)
    rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=77, message_id=where))
    again = rig.consumer("a", **fields)
    assert remaining(rig, again) == [(positions[1], WORDS), (positions[2], [])]
    told = rig.asked("why", "a", subscription="sub")["messages"]
    assert (told["published"], told["skipped"], told["backlog"]) == (71, 5, 66)
    for words in ([WORDS[0] - 32, WORDS[1]], [0, 3], [0, 1]):
        rig.run(rig.ack_part(again, positions[1], *words))
    rig.run(rig.acks(again, positions[2]))
    rig.close_consumer(again)
    if durable:
        for found in (rigs.crash(rig), rig):
            assert remaining(found, found.consumer("a", **fields)) == [(positions[1], [0, 1])]


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], [0], [0, 0], [-1, 63], [-1, -1], [-1] * 10_000], ids=str)
def test_words_that_leave_out_none_or_all_messages_seek_to_the_batch(batches, rigs, words):
    """A seek whose ack set leaves out none or all messages begins with the whole batch, also after a crash."""
    rig, positions = batches
    consumer = rig.consumer("a")
    where = id_of(positions[1])
    where.ack_set.extend(words)
    rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=77, message_id=where))
    for found in (rig, rigs.crash(rig)):
        assert remaining(found, found.consumer("a")) == [(positions[1], []), (positions[2], [])]
        told = found.asked("why", "a", subscription="sub")["messages"]
        assert (told["skipped"], told["backlog"]) == (0, 71)


def test_words_about_an_entry_that_is_not_there_say_nothing(batches):
    rig, positions = batches
    for ledger_id, entry_id in (
        (-1, -1),
        (positions[0][0], 7),
        (positions[0][0] + 9, 0),
        (positions[0][0] - 1, 0),
        positions[0],
    ):
        consumer = rig.consumer("a")
        where = id_of((ledger_id, entry_id))
        where.ack_set.append(6)
        rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=77, message_id=where))
        again = rig.consumer("a")
        assert [words for _, words in remaining(rig, again) if words] == [], (ledger_id, entry_id)
        rig.close_consumer(again)


@pytest.mark.parametrize(("initial", "expected"), [(0, b"ab"), (1, b"0123456789ab")], ids=["latest", "earliest"])
def test_a_reader_that_starts_behind_the_end_begins_at_its_initial_position(ten, initial, expected):
    """A reader whose start lies beyond the last entry (F078) begins at its initial position.

    A reader that starts with the very next entry waits for it.
    """
    rig, producer, positions = ten
    ledger_id, entry_id = positions[-1]
    beyond = [(1 << 62, 1 << 62), (ledger_id, entry_id + 2), (ledger_id + 1, -1)]
    readers = [rig.consumer("a", f"reader {n}", durable=False, start_message_id=id_of(where), initialPosition=initial)
               for n, where in enumerate(beyond)]
    next_ = rig.consumer(
        "a", "next", durable=False, start_message_id=id_of((ledger_id, entry_id + 1)), initialPosition=initial
    )
    rig.publish(producer, b"a", b"b")
    for reader in readers:
        assert payloads(rig.receive(reader)) == expected
    assert payloads(rig.receive(next_)) == b"ab"


@pytest.mark.parametrize(("initial", "expected"), [(0, b"ab"), (1, b"0123456789ab")], ids=["latest", "earliest"])
def test_a_durable_subscription_begins_at_its_initial_position_whatever_message_is_named(ten, initial, expected):
    """A durable subscription ignores a start message id (F078), which is for readers."""
    rig, producer, positions = ten
    consumers = [rig.consumer("a", f"sub {n}", start_message_id=id_of(where), initialPosition=initial)
                 for n, where in enumerate((positions[4], (-1, -1), (1 << 62, 1 << 62)))]
    rig.publish(producer, b"a", b"b")
    for consumer in consumers:
        assert payloads(rig.receive(consumer)) == expected


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("start", [None, (-1, -1), (1 << 62, 1 << 62)], ids=["nowhere", "earliest", "latest"])
def test_who_goes_back_in_time_begins_there_whatever_message_is_named(rigs, durable, start):
    """startMessageFromRollbackDuration (F078) counts, not the earliest message id that Java names beside it."""
    rig = rigs()
    producer = rig.producer("a")
    rig.consumer("a", "keeps everything")
    for number in range(10):
        rig.run(rig.sends((producer, b"%d" % number, {"publish_time": START_MS - 10_000 * (10 - number)})))
    fields = {} if start is None else {"start_message_id": id_of(start)}
    for seconds, expected in (
        (25, b"89"),
        (31, b"789"),
        (1, b""),
        (101, b"0123456789"),
        ((1 << 64) - 1, b"0123456789"),
    ):
        found = rig.consumer(
            "a", f"back {seconds}", durable=durable, start_message_rollback_duration_sec=seconds, **fields
        )
        assert payloads(rig.receive(found)) == expected, seconds


def test_a_subscription_that_nobody_uses_goes_back_in_time_again(rigs):
    """An unused subscription goes back in time each time its consumer asks for it.

    A second consumer that joins, or a reader that sought, does not move it.
    """
    rig = rigs()
    producer = rig.producer("a")
    for number in range(10):
        rig.run(rig.sends((producer, b"%d" % number, {"publish_time": START_MS - 10_000 * (10 - number)})))
    back = {"start_message_rollback_duration_sec": 25, "subType": api.CommandSubscribe.Shared}
    consumer = rig.consumer("a", **back)
    found = rig.receive(consumer)
    rig.run(rig.acks(consumer, *[position for position, _ in found]))
    second = rig.consumer("a", **back)
    assert (payloads(found), rig.receive(second)) == (b"89", [])
    rig.close_consumer(consumer)
    rig.close_consumer(second)
    assert payloads(rig.receive(rig.consumer("a", **back))) == b"89"
    reader = rig.consumer("a", "reader", durable=False, start_message_rollback_duration_sec=25)
    rig.run(rig.command("seek", consumer_id=reader.object_id, request_id=77, message_publish_time=0))
    again = rig.consumer("a", "reader", durable=False, start_message_rollback_duration_sec=25)
    assert payloads(rig.receive(again)) == b"0123456789"


def keyed(rig, count):
    """Publish `count` entries with different keys and one without a key; return {key: position}."""
    producer, keys, sent = rig.producer("a"), [f"key-{number}" for number in range(count)], []
    for first in range(0, count, 2_000):
        sent += rig.run(
            rig.sends(*[(producer, key.encode(), {"partition_key": key}) for key in keys[first : first + 2_000]])
        ).positions
    return dict(zip([*keys, ""], sent + rig.publish(producer, b"none"), strict=True))


def of_ranges(*found, **fields):
    meta = api.KeySharedMeta(
        keySharedMode=api.STICKY, hashRanges=[api.IntRange(start=first, end=last) for first, last in found]
    )
    return {"keySharedMeta": meta, "subType": api.CommandSubscribe.Exclusive} | fields


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False])
def test_readers_with_ranges_of_hashes_share_the_keys_out(rig, durable):
    """Readers with hash ranges (F078, keyHashRange) get their messages in order, and none waits for the others'
    permits.
    """
    positions = list(keyed(rig, 10_000).values())
    parts = [((0, 9_999), (60_000, 65_535)), ((10_000, 40_000),), ((40_001, 59_999),)]
    readers = [rig.consumer("a", f"reader {n}", **of_ranges(*part, durable=durable)) for n, part in enumerate(parts)]
    found = [[position for _ in range(3) for position, _ in rig.receive(reader, 500)] for reader in readers]
    for reader, its in zip(readers, found, strict=True):
        assert len(its) == 1_500
        its += [position for position, _ in rig.receive(reader, 50_000)]
        assert its == sorted(its)
    assert sorted(position for its in found for position in its) == positions
    again = rig.delivered(rig.run(rig.redeliver(readers[0])), readers[0])
    assert [position for position, _ in again] == found[0]


def test_ranges_of_hashes_have_their_first_and_their_last(rig):
    positions = keyed(rig, 20)
    hashes = [int(found) & 0xFFFF for found in rig.partition("a").open_ledger.index["key_hash"][:20]]
    assert len(hashes) == 20 <= len(positions)
    for number, (found, position) in enumerate(zip(hashes, positions.values(), strict=False)):
        for part, expected in ((((found, found),), True), (((found, 65_535),), True), (((0, found),), True),
                               (((0, found - 1), (found + 1, 65_535)), False)):
            reader = rig.consumer("a", f"{number} {part}", **of_ranges(*part, durable=False))
            assert (position in [one for one, _ in rig.receive(reader)]) == expected, (found, part)
            rig.close_consumer(reader)


@pytest.mark.parametrize("kind", [api.CommandSubscribe.Failover, api.CommandSubscribe.Shared])
def test_ranges_of_hashes_mean_nothing_to_consumers_of_other_types(rig, kind):
    positions = list(keyed(rig, 20).values())
    consumer = rig.consumer("a", **of_ranges((0, 1), subType=kind))
    assert [position for position, _ in rig.receive(consumer)] == positions


@pytest.mark.parametrize(("ranges", "fields"), [
    ([(0, 100), (50, 200)], {}), ([(100, 50)], {}), ([(0, 65_536)], {}), ([(0, 100)], {"read_compacted": True})],
    ids=["overlap", "reversed", "too large", "compacted"])
def test_ranges_that_are_none_are_refused(rig, ranges, fields):
    keyed(rig, 1)
    section, _ = rig.subscribe("a", "sub", **of_ranges(*ranges, **fields))
    [error] = rig.run(section).commands(T.ERROR)
    assert error.error.error == (api.NotAllowedError if fields else api.ConsumerAssignError)


def test_a_reader_starts_where_it_asks_and_leaves_nothing(ten):
    """A reader's acknowledgements keep and free nothing, and its subscription ends with its last consumer."""
    rig, _, positions = ten
    reader = rig.consumer("a", "reader", durable=False, start_message_id=id_of(positions[6]))
    assert payloads(rig.receive(reader)) == b"6789"
    rig.run(rig.acks(reader, *positions))
    rig.close_consumer(reader)
    assert len(rig.files("a")) == 4
    assert [name for name, _ in rig.partition("a").subscriptions] == ["keeps everything"]


@pytest.mark.parametrize(("initial", "expected"), [(0, b"ab"), (1, b"0123456789ab")], ids=["latest", "earliest"])
def test_a_new_subscription_begins_at_either_end(ten, initial, expected):
    rig, producer, _ = ten
    consumer = rig.consumer("a", initialPosition=initial)
    rig.publish(producer, b"a", b"b")
    assert payloads(rig.receive(consumer)) == expected


def last_message_id(rig, consumer):
    answers = rig.run(rig.command("getLastMessageId", consumer_id=consumer.object_id, request_id=1))
    [answer] = answers.commands(T.GET_LAST_MESSAGE_ID_RESPONSE)
    found = answer.getLastMessageIdResponse.last_message_id
    return tuple(
        value - (1 << 64) if value >> 63 else value for value in (found.ledgerId, found.entryId)
    ), found.batch_index


def test_the_last_message_id_is_that_of_the_last_message(rigs):
    """GET_LAST_MESSAGE_ID answers -1 for an empty topic, a batch's last message, and an earlier ledger if the last
    is empty.
    """
    rig = rigs(roll_over_age_s=1)
    producer, consumer = rig.producer("a"), rig.consumer("a")
    assert last_message_id(rig, consumer) == ((-1, -1), -1)
    [position] = rig.publish(producer, b"x")
    assert last_message_id(rig, consumer) == (position, -1)
    [position] = rig.run(rig.sends((producer, b"y", {"batch": 3}))).positions
    assert last_message_id(rig, consumer) == (position, 2)


# -- who consumes ------------------------------------------------------------------------------------------------------

def probes(answers):
    return [connection for connection, action, *_ in answers.replies if action == envelope.PROBE]


@pytest.mark.parametrize("mode", [api.Shared, api.Exclusive], ids=api.ProducerAccessMode.Name)
def test_an_exclusive_producer_keeps_others_out_as_long_as_its_client_lives(rig, mode):
    """The newcomer waits until the holder's connection answers or ends, as one that wants a taken name does."""
    rig.producer("a", producer_access_mode=api.Exclusive)
    request = {"topic": "a", "producer_id": 7, "request_id": 7, "producer_access_mode": mode}
    answers = rig.run(rig.command("producer", connection=2, **request))
    assert probes(answers) == [1] and answers.commands() == []
    answers = rig.run(rig.happened(envelope.CONNECTION_ALIVE))
    assert [(reply[0], reply[-1].error.error) for reply in answers.replies] == [
        (2, api.ProducerBusy if mode == api.Shared else api.ProducerFenced)]
    assert probes(rig.run(rig.command("producer", connection=3, **request))) == [1]
    answers = rig.run(rig.happened(envelope.CONNECTION_GONE))
    [entered] = answers.commands(T.PRODUCER_SUCCESS)
    assert entered.producer_success.producer_ready


def test_one_that_waits_for_exclusive_access_has_its_turn_when_a_silent_holder_is_ended(rig):
    rig.producer("a", producer_access_mode=api.Exclusive)
    answers = rig.run(rig.command("producer", connection=2, topic="a", producer_id=7, request_id=7,
                                  producer_access_mode=api.WaitForExclusive))
    assert probes(answers) == [1]
    assert [command.producer_success.producer_ready for command in answers.commands(T.PRODUCER_SUCCESS)] == [False]
    answers = rig.run(rig.happened(envelope.CONNECTION_GONE))
    assert [command.producer_success.producer_ready for command in answers.commands(T.PRODUCER_SUCCESS)] == [True]


@pytest.mark.parametrize(("question", "fields", "error"), [
    ("unload", {}, api.ServiceNotReady), ("delete", {"force": True}, api.ServiceNotReady),
    ("terminate", {}, api.TopicTerminatedError)])
def test_one_that_waits_for_exclusive_access_waits_again_after_its_topic_was_closed(rig, question, fields, error):
    """At ProducerFenced its client would give up, though nobody has fenced it."""
    rig.producer("a", producer_access_mode=api.Exclusive)
    rig.run(rig.command("producer", topic="a", producer_id=7, request_id=7, producer_access_mode=api.WaitForExclusive))
    refused = rig.run(rig.question(question, "a", **fields)).commands(T.ERROR)
    assert [(command.error.request_id, command.error.error) for command in refused] == [(7, error)]


def test_one_that_waits_for_exclusive_access_is_fenced_by_a_producer_that_fences(rig):
    rig.producer("a", producer_access_mode=api.Exclusive)
    rig.run(rig.command("producer", topic="a", producer_id=7, request_id=7, producer_access_mode=api.WaitForExclusive))
    refused = rig.run(rig.command("producer", connection=2, topic="a", producer_id=8, request_id=8,
                                  producer_access_mode=api.ExclusiveWithFencing)).commands(T.ERROR)
    assert [(command.error.request_id, command.error.error) for command in refused] == [(7, api.ProducerFenced)]


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_the_holders_are_probed_as_long_as_one_waits_for_exclusive_access(rig, domain):
    """A holder may fall silent long after the other one has come.  Several topics of a connection are one probe."""
    topics = [f"{domain}://public/default/{name}" for name in "ab"]
    for number, topic in enumerate(topics, 7):
        rig.producer(topic, producer_access_mode=api.Exclusive)
        rig.run(rig.command("producer", connection=2, topic=topic, producer_id=number, request_id=number,
                            producer_access_mode=api.WaitForExclusive))
    assert [probes(rig.run(after_ms=1_000)) for _ in range(3)] == [[1]] * 3
    assert probes(rig.run(after_ms=1)) == []
    answers = rig.run(rig.happened(envelope.CONNECTION_GONE))
    assert [command.producer_success.producer_ready for command in answers.commands(T.PRODUCER_SUCCESS)] == [True] * 2
    assert probes(rig.run(after_ms=1_000)) == [] and not rig.owner.clients.producers.contended


def test_an_active_failover_consumer_is_probed_when_another_comes(rig):
    """The newcomer is let in at once.  It gets everything as soon as the connection of a silent one has ended."""
    kind = {"subType": api.CommandSubscribe.Failover}
    rig.run(rig.flow(rig.consumer("a", consumer_name="first", **kind), 10))
    [position] = rig.publish(rig.producer("a", connection=3), b"x")
    section, number = rig.subscribe("a", "sub", connection=2, consumer_name="second", **kind)
    answers = rig.run(section)
    assert probes(answers) == [1]
    second = rig.consumer_in(answers, number, "a", connection=2)
    assert rig.run(rig.flow(second, 10)).gifts == []
    assert rig.delivered(rig.run(rig.happened(envelope.CONNECTION_GONE)), second) == [(position, b"x")]


def test_properties_that_an_administrator_has_emptied_stay_so(rigs):
    """A consumer's properties are those of a subscription for which none were ever set."""
    rig = rigs()
    own = {"subscription_properties": [api.KeyValue(key="a", value="b")]}

    def with_another(rig):
        consumer = rig.consumer("a", **own)
        rig.close_consumer(consumer)
        return rig.asked("properties", "a", subscription="sub")

    rig.close_consumer(rig.consumer("a"))
    assert with_another(rig) == {"a": "b"}
    assert rig.asked("properties", "a", subscription="sub", properties={}) == {} == with_another(rig)
    assert with_another(rigs.restart(rig)) == {}


def test_a_second_consumer_is_refused_as_long_as_the_first_lives(rig):
    """A second Exclusive consumer is refused at once on the same connection, and elsewhere after a sign of life."""
    rig.consumer("a")
    section, _ = rig.subscribe("a", "sub")
    assert [command.error.error for command in rig.run(section).commands(T.ERROR)] == [api.ConsumerBusy]
    section, _ = rig.subscribe("a", "sub", connection=2)
    answers = rig.run(section)
    assert [(connection, action) for connection, action, *_ in answers.replies] == [(1, envelope.PROBE)]
    answers = rig.run(rig.happened(envelope.CONNECTION_ALIVE))
    assert [(reply[0], reply[-1].error.error) for reply in answers.replies] == [(2, api.ConsumerBusy)]


def test_a_second_consumer_takes_over_when_the_first_is_dead(rig):
    """If the first consumer's connection is silent and ends, the second gets its unacknowledged messages."""
    rig.publish(rig.producer("a", connection=3), b"w")
    dead = rig.consumer("a")
    assert payloads(rig.receive(dead)) == b"w"
    section, number = rig.subscribe("a", "sub", connection=2)
    rig.run(section)
    consumer = rig.consumer_in(rig.run(rig.happened(envelope.CONNECTION_GONE)), number, "a", connection=2)
    assert payloads(rig.receive(consumer)) == b"w"


def test_what_was_closed_while_it_waited_is_not_made(rig):
    """A producer or consumer that is closed while it waits for another's sign of life is not made."""
    rig.producer("a", producer_name="name", user_provided_producer_name=True)
    rig.consumer("a")
    section, number = rig.subscribe("a", "sub", connection=2)
    asked = {
        "topic": "a",
        "producer_id": 7,
        "request_id": 7,
        "producer_name": "name",
        "user_provided_producer_name": True,
    }
    rig.run(section, rig.command("producer", connection=2, **asked))
    closed = rig.run(rig.command("close_consumer", connection=2, consumer_id=number, request_id=8),
                     rig.command("close_producer", connection=2, producer_id=7, request_id=9))
    assert [command.success.request_id for command in closed.commands(T.SUCCESS)] == [8, 9]
    assert not rig.run(rig.happened(envelope.CONNECTION_GONE)).commands()
    rig.consumer("a")                                                  # the places are free
    rig.producer("a", producer_name="name", user_provided_producer_name=True)


def test_an_unsubscribed_subscription_is_gone_for_good(ten, rigs):
    """An unsubscribed subscription is gone after a restart too, and one of the same name begins anew."""
    rig, _, positions = ten
    consumer = acknowledged_some(rig, positions)
    rig.run(rig.command("unsubscribe", consumer_id=consumer.object_id, request_id=1))
    for found in (rig, rigs.crash(rig)):
        found.consumer("a", "other")
        assert sorted(name for name, _ in found.partition("a").subscriptions) == ["keeps everything", "other"]
        assert payloads(found.receive(found.consumer("a"))) == b"0123456789"


def test_a_reader_that_seeks_and_never_comes_back_is_forgotten(rig):
    """A reader's subscription waits a while for its consumer to return from a seek, then is dropped."""
    positions = rig.publish(rig.producer("t"), b"a", b"b")
    for name in ("gone", "back"):
        reader = rig.consumer("t", name, durable=False)
        identity = api.MessageIdData(ledgerId=positions[1][0], entryId=positions[1][1])
        rig.run(rig.command("seek", consumer_id=reader.object_id, request_id=9, message_id=identity))
    reader = rig.consumer("t", "back", durable=False)
    assert [position for position, _ in rig.receive(reader)] == positions[1:]
    rig.run(after_ms=61_000)
    assert list(rig.partition("t").subscriptions) == [("back", False)]


def test_a_reader_with_the_name_of_one_that_sought_is_not_forgotten_for_it(rig):
    """A reader that takes the name of one that sought and closed is kept after the waiting time."""
    producer, first = rig.producer("a"), rig.consumer("a", durable=False)
    rig.run(
        rig.command(
            "seek", consumer_id=first.object_id, request_id=9, message_id=api.MessageIdData(ledgerId=0, entryId=0)
        )
    )
    rig.close_consumer(rig.consumer("a", durable=False))
    other = rig.consumer("a", durable=False)
    rig.run(after_ms=61_000)
    assert [found.name for found in rig.partition("a").subscriptions.values()] == ["sub"]
    [position] = rig.publish(producer, b"x")
    assert rig.receive(other) == [(position, b"x")]
    assert rig.close_consumer(other).commands(T.SUCCESS)
    assert not rig.partition("a").subscriptions


def test_a_drain_counts_what_consumers_of_durable_subscriptions_have(rig):
    """A drain counts the pending messages of durable subscriptions, takes acknowledgements, and delivers nothing."""
    positions = rig.publish(rig.producer("a"), b"a", b"b", b"c", b"d", b"e")
    first, second, reader = (
        rig.consumer("a", "one"),
        rig.consumer("a", "two"),
        rig.consumer("a", "reader", durable=False),
    )
    for consumer, permits in ((first, 3), (second, 2), (reader, 5)):
        rig.receive(consumer, permits)
    rig.owner.drain()
    assert rig.counters.read()["outstanding"] == 5
    assert rig.receive(first) == rig.receive(reader) == []
    rig.run(
        rig.acks(first, positions[0]), rig.acks(second, *positions[:2]), rig.acks(reader, positions[0]), after_ms=100
    )
    rig.run(after_ms=100)
    assert rig.counters.read()["outstanding"] == 2
    rig.run(rig.acks(first, positions[2], cumulative=True), after_ms=100)
    assert rig.counters.read()["outstanding"] == 0


def test_a_ledger_that_the_last_acknowledgement_of_a_pass_frees_goes_with_that_pass(rigs):
    """A ledger freed by an acknowledgement is deleted in the same pass, in the journal and in the answers to
    workers.
    """
    rig = rigs(roll_over_entries=2)
    positions = rig.publish(rig.producer("a"), b"a", b"b")
    consumer = rig.consumer("a")
    rig.receive(consumer)
    rig.publish(rig.producer("a"), b"c")
    assert len(rig.files("a")) == 2
    answers = rig.run(rig.acks(consumer, *positions))
    assert rig.files("a") == [rig.partition("a").open_ledger.ledger_id]
    assert (1, positions[0][0]) in answers.forgotten
    after = rigs.crash(rig)
    assert payloads(after.receive(after.consumer("a"))) == b"c"


def test_a_connection_in_the_way_of_many_is_asked_once(rig):
    """One question for a sign of life serves all commands that wait for it, except those closed meanwhile."""
    rig.consumer("a", connection=1)
    sections = [rig.subscribe("a", "sub", connection=connection) for connection in (2, 3, 4)]
    assert [action for section, _ in sections for _, action, *_ in rig.run(section).replies] == [envelope.PROBE]
    rig.run(rig.command("close_consumer", connection=3, consumer_id=sections[1][1], request_id=99))
    answers = rig.run(rig.happened(envelope.CONNECTION_ALIVE))
    assert [error.error.request_id for error in answers.commands(T.ERROR)] == [sections[0][1], sections[2][1]]
    # and again when somebody else comes
    assert rig.run(rig.subscribe("a", "sub", connection=2)[0]).replies[0][1] == envelope.PROBE
