"""Promises of all four subscription types: permits are kept, no acknowledged entry comes again, and none is lost."""
import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.topics.subscription import SubType

from .rig import CONNECTION, T

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubType.Exclusive, SubType.Shared, SubType.Failover, SubType.Key_Shared
ALONE = EXCLUSIVE, FAILOVER             # one consumer at a time gets everything, in order
MANY = 1_000


@pytest.fixture(params=[EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED], ids=SubType.Name)
def kind(request):
    return request.param


@pytest.fixture
def ten(rigs):
    """Return (rig, producer, positions) of a topic with the ten entries "0" to "9" in four ledgers, each under a key
    of its own.
    """
    rig = rigs(roll_over_entries=3)
    producer, _ = rig.producer("a"), rig.consumer("a", "keeps everything")
    return rig, producer, [publish(rig, producer, b"%d" % number)[0] for number in range(10)]


def publish(rig, producer, *payloads, **fields):
    """Publish payloads, each under a key of its own. Return the positions."""
    return rig.run(rig.sends(*[(producer, payload, {"partition_key": payload.decode()} | fields)
                               for payload in payloads])).positions


def consumers(rig, kind, count=2, **fields):
    """Return `count` consumers, or one if the type is Exclusive, each on its own connection."""
    return [rig.consumer("a", subType=kind, connection=CONNECTION + 1 + number, consumer_name=f"c{number}", **fields)
            for number in range(1 if kind == EXCLUSIVE else count)]


def payloads(found):
    return b"".join(payload for _, payload in found)


def received(rig, crowd, permits=MANY):
    """Grant each consumer permits. Return the payloads that all together get, joined in order of position."""
    return payloads(sorted(found for consumer in crowd for found in rig.receive(consumer, permits)))


# -- permits

def test_nobody_gets_more_than_it_asked_for(ten, kind):
    """A consumer gets no more messages than its permits, in however many grants, before or after the entries come."""
    rig, producer, positions = ten
    [consumer] = consumers(rig, kind, 1)
    assert rig.receive(consumer, 4) == list(zip(positions[:4], [b"0", b"1", b"2", b"3"], strict=True))
    assert payloads(rig.receive(consumer, 1)) == b"4"
    assert payloads(rig.delivered(rig.run(rig.flow(consumer, 2), rig.flow(consumer, 2)), consumer)) == b"5678"
    assert payloads(rig.receive(consumer, 3)) == b"9"
    answers = rig.run(rig.sends(*[(producer, payload, {"partition_key": "x"}) for payload in (b"a", b"b", b"c")]))
    assert payloads(rig.delivered(answers, consumer)) == b"ab"
    assert payloads(rig.receive(consumer, 1)) == b"c"


@pytest.mark.parametrize("count", [1, 30], ids=["few", "many"])
def test_a_batch_may_exceed_the_permits_once(rig, kind, count):
    """A batch may exceed the permits; its excess is taken off the next grants before another entry is delivered."""
    producer, [consumer] = rig.producer("a"), consumers(rig, kind, 1)
    rig.run(rig.sends(*[(producer, b"x", {"batch": 10})] * 3 * count))
    assert [len(rig.receive(consumer, permits)) for permits in (10 * count - 5, 4, 1, 1, 9)] == [count, 0, 0, 1, 0]


def test_permits_are_counted_in_messages_that_are_not_acknowledged(rig, kind):
    """A batch that is acknowledged in part takes as many permits as it has messages left."""
    producer, [consumer] = rig.producer("a"), consumers(rig, kind, 1)
    positions = rig.run(rig.sends(*[(producer, b"x", {"batch": 10})] * 4)).positions
    assert len(rig.receive(consumer, 20)) == 2
    rig.run(rig.ack_part(consumer, positions[0], 0b11), rig.ack_part(consumer, positions[1], 0b111))
    answers = rig.run(rig.redeliver(consumer))
    assert rig.given(answers, consumer) == []
    assert [position for position, _ in rig.receive(consumer, 2)] == positions[:1]
    assert [position for position, _ in rig.receive(consumer, 4)] == positions[1:3]
    assert rig.receive(consumer, 9) == []
    assert [position for position, _ in rig.receive(consumer, 1)] == positions[3:]


def test_who_has_no_permits_holds_up_nobody_else(ten, kind):
    """A consumer without permits delays neither others of its subscription nor other subscriptions."""
    rig, producer, _ = ten
    stalled, *others = consumers(rig, kind, 3)
    elsewhere = rig.consumer("a", "other", subType=kind)
    for other in others:
        rig.run(rig.flow(other, MANY))
    publish(rig, producer, *[b"%d" % number for number in range(100, 200)])
    assert len(rig.receive(elsewhere)) == 110
    if kind in ALONE:                                      # all entries are for the stalled consumer
        assert received(rig, [stalled]).startswith(b"0123456789100")
    elif kind == SHARED:
        assert received(rig, [stalled]) == b""
    else:
        assert 10 < len(rig.receive(stalled)) < 70         # entries of its own keys


# -- what comes again

def acknowledged_some(rig, kind, positions):
    """Deliver all ten entries, and acknowledge entries 0, 1, 4 and 8. Return the consumers, and for each the
    positions that it still holds.
    """
    crowd = consumers(rig, kind)
    had = [rig.receive(consumer, 5 if kind == SHARED else MANY) for consumer in crowd]
    assert payloads(sorted(sum(had, []))) == b"0123456789"
    gone = [positions[0], positions[4], positions[8], positions[1]]
    rig.run(rig.acks(crowd[0], *gone))
    return crowd, [[position for position, _ in found if position not in gone] for found in had]


LEFT = b"235679"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closed", "connection gone", "worker gone", "killed", "stopped", "asked for"])
def test_what_was_not_acknowledged_comes_again_and_nothing_else(ten, rigs, kind, end):
    """Once all consumers have left, exactly the unacknowledged entries are delivered again."""
    rig, _, positions = ten
    crowd, _ = acknowledged_some(rig, kind, positions)
    if end == "asked for":
        answers = rig.run(*[rig.flow(consumer, 10) for consumer in crowd],
                          *[rig.redeliver(consumer) for consumer in crowd])
        assert payloads(sorted(found for consumer in crowd for found in rig.delivered(answers, consumer))) == LEFT
    else:
        for consumer in crowd:
            if end == "closed":
                rig.close_consumer(consumer)
            elif end == "connection gone":
                rig.run(rig.happened(envelope.CONNECTION_GONE, connection=consumer.connection))
        if end == "worker gone":
            rig.owner.worker_gone(1)
        elif end == "killed":
            rig = rigs.crash(rig)
        elif end == "stopped":
            rig = rigs.restart(rig)
        crowd = consumers(rig, kind, 1)
        assert payloads(rig.receive(crowd[0])) == LEFT     # one by one in order
    assert received(rig, crowd) == b""


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY_SHARED], ids=SubType.Name)
def test_what_a_leaving_consumer_had_goes_to_who_stays(ten, kind):
    """Entries of a consumer that leaves go to the others at once, by position; these get no entry twice."""
    rig, producer, positions = ten
    (leaves, stays), (had, _) = acknowledged_some(rig, kind, positions)
    rig.run(rig.flow(stays, 100))
    assert [position for position, _ in rig.delivered(rig.close_consumer(leaves), stays)] == had
    answers = rig.run(rig.sends((producer, b"x")))
    assert payloads(rig.delivered(answers, stays)) == b"x"


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=SubType.Name)
def test_of_what_a_consumer_names_only_what_it_has_comes_again(ten, kind):
    """A redelivery request has no effect on entries that are acknowledged, held by another consumer, or do not exist.
    """
    rig, _, positions = ten
    crowd, (had, _) = acknowledged_some(rig, kind, positions)
    strange = [(positions[0][0], 99), (positions[-1][0], 1 << 40), (1 << 50, 0), (positions[0][0], (1 << 64) - 1)]
    rig.run(*[rig.flow(consumer, 100) for consumer in crowd])
    answers = rig.run(rig.redeliver(crowd[0], *positions[:6], *strange))
    found = [position for consumer in crowd for position, _ in rig.delivered(answers, consumer)]
    assert sorted(found) == [position for position in had if position in positions[:6]]
    assert not rig.run(rig.redeliver(crowd[0], *strange)).gifts


@pytest.mark.parametrize("kind", ALONE, ids=SubType.Name)
def test_where_order_is_kept_everything_comes_again_whatever_is_named(ten, kind):
    """Exclusive and Failover redeliver everything to the active consumer, whatever ids it names, and nothing to others.
    """
    rig, _, positions = ten
    (active, *others), _ = acknowledged_some(rig, kind, positions)
    answers = rig.run(rig.flow(active, 100), rig.redeliver(active, positions[7]))
    assert payloads(rig.delivered(answers, active)) == LEFT
    assert not rig.run(*[rig.redeliver(other, positions[7]) for other in others],
                       *[rig.redeliver(other) for other in others]).gifts


@pytest.mark.slow
def test_a_stream_loses_and_repeats_nothing(rig, kind):
    """Many passes with acknowledgements, redeliveries, and consumers that come and go lose and repeat no entry."""
    producer, crowd, done = rig.producer("a"), consumers(rig, kind, 3), set()
    for number in range(30):
        sent = rig.sends(*[(producer, b"x", {"partition_key": f"{n % 7}"}) for n in range(10)])
        answers = rig.run(sent, *[rig.flow(consumer, 3 + number % 4) for consumer in crowd])
        for consumer in crowd:
            if found := [position for position, _ in rig.delivered(answers, consumer)]:
                assert not done & set(found)
                done.update(found[::2])
                answers_again = rig.run(rig.acks(consumer, *found[::2]), rig.redeliver(consumer, *found[1::4]))
                assert not done & {position for one in crowd for position, _ in rig.delivered(answers_again, one)}
        if number % 5 == 4 and kind != EXCLUSIVE:
            rig.close_consumer(crowd.pop(0))
            crowd.append(rig.consumer("a", subType=kind, consumer_name=f"later {number}"))
    for consumer in crowd:
        rig.close_consumer(consumer)
    found = [position for position, _ in rig.receive(consumers(rig, kind, 1)[0])]
    assert found == sorted({position for position, _ in rig.everything("a")} - done)


@pytest.mark.slow
def test_the_read_position_survives_the_roll_over_of_ledgers(rigs, kind):
    """Consumers go on when ledgers roll over, and when acknowledged ledgers are deleted below the read position."""
    rig = rigs(roll_over_entries=3)
    producer, crowd, found = rig.producer("a"), consumers(rig, kind), b""
    for consumer in crowd:
        rig.run(rig.flow(consumer, MANY))
    for number in range(20):
        answers = rig.run(rig.sends((producer, b"%d," % number, {"partition_key": str(number)})))
        for consumer in crowd:
            got = rig.delivered(answers, consumer)
            found += payloads(got)
            if got and number < 10:
                rig.run(rig.acks(consumer, *[position for position, _ in got]))
    assert found == b"".join(b"%d," % number for number in range(20))
    assert len(rig.files("a")) == 4
    for consumer in crowd:
        rig.close_consumer(consumer)
    assert received(rig, consumers(rig, kind, 1)) == b"".join(b"%d," % number for number in range(10, 20))


# -- acknowledgements that mean nothing

@pytest.mark.slow
@pytest.mark.parametrize("many", [1, 100], ids=["one by one", "as an array"])
def test_ids_that_never_existed_change_nothing(ten, kind, many):
    """Acknowledgements of unknown ids, and repeated ones, change no cursor and are answered."""
    rig, _, positions = ten
    rig.publish(rig.producer("b"), b"x")
    [consumer] = consumers(rig, kind, 1)
    first = positions[0][0]
    strange = [(99, 0), (first, 3), (first, 1 << 40), (-1, -1), ((1 << 62), 5), (rig.files("b")[0], 0)]
    answers = rig.run(
        rig.acks(consumer, *strange * many, request_id=5),
        rig.acks(consumer, *strange * many, cumulative=True, request_id=6),
        *[rig.ack_part(consumer, position, 1) for position in strange],
    )
    assert [command.ackResponse.request_id for command in answers.commands(T.ACK_RESPONSE)] == [5, 6]
    assert payloads(rig.receive(consumer)) == b"0123456789"
    for _ in range(2):
        rig.run(rig.acks(consumer, *[positions[0], positions[5]] * many))
    rig.close_consumer(consumer)
    assert received(rig, consumers(rig, kind)) == b"12346789"


@pytest.mark.parametrize("many", [1, 100], ids=["one by one", "as an array"])
@pytest.mark.parametrize("kind", ALONE, ids=SubType.Name)
def test_a_cumulative_acknowledgement_counts_beside_one_that_means_nothing(ten, kind, many):
    """Among cumulative acknowledgements of one pass, the highest position that exists counts."""
    rig, _, positions = ten
    [consumer] = consumers(rig, kind, 1)
    rig.run(rig.acks(consumer, *[positions[2], (99, 0), positions[4], (positions[3][0], 77), positions[3]] * many,
                     cumulative=True))
    rig.close_consumer(consumer)
    assert received(rig, consumers(rig, kind, 1)) == b"56789"


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=SubType.Name)
def test_many_consumers_have_no_cumulative_acknowledgements(ten, kind):
    """Shared and Key_Shared ignore cumulative acknowledgements, whole or in part, and answer them."""
    rig, producer, positions = ten
    [batch] = rig.run(rig.sends((producer, b"x", {"batch": 3}))).positions
    crowd = consumers(rig, kind)
    received(rig, crowd)
    answers = rig.run(rig.acks(crowd[0], positions[5], cumulative=True, request_id=3),
                      rig.ack_part(crowd[0], batch, 1, cumulative=True))
    assert [
        (command.ackResponse.request_id, command.ackResponse.HasField("error"))
        for command in answers.commands(T.ACK_RESPONSE)
    ] == [(3, False)]
    assert rig.counters.read()["acks_ignored"] == 2
    for consumer in crowd:
        rig.close_consumer(consumer)
    [consumer] = consumers(rig, kind, 1)
    answers = rig.run(rig.flow(consumer, MANY))
    assert payloads(rig.delivered(answers, consumer)) == b"0123456789x"
    assert not any(words for *_, words in rig.given(answers, consumer))


def test_what_one_consumer_has_another_may_acknowledge(ten, kind):
    """A consumer may acknowledge entries that another one holds, or that no consumer has got yet."""
    rig, _, positions = ten
    crowd = consumers(rig, kind)
    received(rig, crowd[:1], 4)
    rig.run(rig.acks(crowd[-1], *positions[1:7]))
    rig.close_consumer(crowd[0])
    assert received(rig, crowd[1:] or consumers(rig, kind, 1)) == b"0789"


# -- positions

@pytest.mark.slow
def test_seek_goes_back_and_forth(ten, rigs, kind):
    """After a seek all consumers are told to reconnect, and get exactly the entries behind the new position."""
    rig, _, positions = ten
    crowd, _ = acknowledged_some(rig, kind, positions)
    for where, expected in ((3, b"3456789"), (9, b"9"), (0, b"0123456789"), (5, b"56789")):
        ledger_id, entry_id = positions[where]
        answers = rig.run(
            rig.command(
                "seek",
                connection=crowd[-1].connection,
                consumer_id=crowd[-1].object_id,
                request_id=77,
                message_id=api.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
            )
        )
        assert sorted(command.close_consumer.consumer_id for command in answers.commands(T.CLOSE_CONSUMER)) \
            == sorted(consumer.object_id for consumer in crowd)
        assert [command.type for command in answers.commands()][-1] == T.SUCCESS
        crowd = consumers(rig, kind)
        assert received(rig, crowd) == expected
    crashed = rigs.crash(rig)
    assert received(crashed, consumers(crashed, kind)) == b"56789"


def test_a_durable_subscription_and_a_reader_of_one_name_know_nothing_of_each_other(ten, kind):
    """A durable subscription and a reader of the same name have separate cursors, and the reader's cursor ends with
    the reader.
    """
    rig, _, positions = ten
    [durable] = consumers(rig, kind, 1)
    reader = rig.consumer("a", subType=EXCLUSIVE, durable=False)
    assert received(rig, [durable]) == received(rig, [reader]) == b"0123456789"
    rig.run(rig.acks(durable, *positions[:5]), rig.acks(reader, *positions[3:]))
    rig.close_consumer(durable)
    rig.close_consumer(reader)
    assert received(rig, consumers(rig, kind, 1)) == b"56789"
    assert received(rig, [rig.consumer("a", subType=EXCLUSIVE, durable=False)]) == b"0123456789"


def test_a_reader_outlives_the_ledgers_it_has_not_acknowledged(rigs, kind):
    """Ledgers are deleted although a reader holds entries of them. The deleted entries are no longer counted for the
    reader, and later ones are delivered: on Key_Shared to another consumer once the first says that it is done.
    """
    rig = rigs(roll_over_entries=4, max_unacked_messages_per_consumer=8)
    producer, durable = rig.producer("a"), rig.consumer("a", "durable")
    crowd = consumers(rig, kind, 1, durable=False)
    rig.run(rig.flow(crowd[0], MANY))
    positions = [publish(rig, producer, b"1", b"2", b"3", b"4") for _ in range(5)]
    if kind == KEY_SHARED:              # entries of half the keys wait for pending ones at the first consumer
        crowd.append(rig.consumer("a", subType=kind, connection=9, consumer_name="late", durable=False))
        rig.run(rig.flow(crowd[1], MANY))
    passes = [rig.run(*[rig.acks(durable, *some) for some in positions])]
    passes += [rig.run(rig.sends(*[(producer, b"x", {"partition_key": f"{n}"}) for n in range(count)]))
               for count in (1, 3)]
    assert len(rig.files("a")) == 1
    if kind == KEY_SHARED:
        passes += [rig.run(rig.acks(crowd[0], *some)) for some in positions]
    found = {position for answers in passes for consumer in crowd for position, *_ in rig.given(answers, consumer)}
    assert found >= {position for position, _ in rig.everything("a")}


# -- who consumes

@pytest.mark.slow
@pytest.mark.parametrize("other", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED], ids=SubType.Name)
def test_a_live_subscription_keeps_its_type(rig, kind, other):
    """A consumer of another type is refused if a present one answers a probe; if none does, the type is free."""
    if kind == other:
        return
    crowd = consumers(rig, kind)
    section, _ = rig.subscribe("a", "sub", subType=other, connection=9)
    answers = rig.run(section)
    replies = [(connection, action) for connection, action, *_ in answers.replies]
    assert replies == [(crowd[0].connection, envelope.PROBE)]
    answers = rig.run(rig.happened(envelope.CONNECTION_ALIVE, connection=crowd[0].connection))
    assert [(reply[0], reply[-1].error.error) for reply in answers.replies] == [(9, api.ConsumerBusy)]
    section, number = rig.subscribe("a", "sub", subType=other, connection=9)
    rig.run(section)
    for consumer in crowd:
        answers = rig.run(rig.happened(envelope.CONNECTION_GONE, connection=consumer.connection))
    assert rig.consumer_in(answers, number, "a")


def unsubscribe(rig, consumer, **fields):
    return rig.run(rig.command("unsubscribe", connection=consumer.connection, consumer_id=consumer.object_id,
                               request_id=5, **fields))


def test_a_subscription_with_other_consumers_is_not_given_up(ten, kind):
    """UNSUBSCRIBE is refused while others are attached, unless it is forced: then they are told to reconnect, and begin
    anew.
    """
    rig, _, positions = ten
    crowd, _ = acknowledged_some(rig, kind, positions)
    if kind != EXCLUSIVE:
        answers = unsubscribe(rig, crowd[0])
        assert [(command.error.request_id, command.error.error)
                for command in answers.commands(T.ERROR)] == [(5, api.MetadataError)]
        assert received(rig, crowd[1:]) == b""
        for consumer in crowd[1:]:
            rig.close_consumer(consumer)
    assert [command.success.request_id for command in unsubscribe(rig, crowd[0]).commands(T.SUCCESS)] == [5]
    assert [name for name, _ in rig.partition("a").subscriptions] == ["keeps everything"]
    assert received(rig, consumers(rig, kind)) == b"0123456789"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY_SHARED], ids=SubType.Name)
def test_a_forced_unsubscribe_closes_the_others(ten, rigs, kind):
    rig, _, positions = ten
    crowd, _ = acknowledged_some(rig, kind, positions)
    answers = unsubscribe(rig, crowd[0], force=True)
    assert [command.close_consumer.consumer_id
            for command in answers.commands(T.CLOSE_CONSUMER)] == [crowd[1].object_id]
    assert [command.success.request_id for command in answers.commands(T.SUCCESS)] == [5]
    for found in (rigs.crash(rig), rig):
        assert received(found, consumers(found, kind)) == b"0123456789"
