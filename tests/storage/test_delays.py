"""Delayed messages among all other features, on a clock that is a number: none early, none late by more than a tick.

test_delayed.py has the plain cases, test_delays_kept.py crashes, positions and policies, test_delays_files.py the
index.
"""

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.jobs.compacting import nightly
from geminga.storage.owner.owner_pass import TICK_MS
from geminga.storage.topics.subscription import SubType

from .delays import DAY_MS, DELAY_TICK_MS, HOUR_MS, SECOND_MS, SINGLE, SPREAD, TOPIC, Life, T, check_times
from .rig import START_MS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("saves_at_once")]


# -- the plain promises

@SPREAD
def test_none_is_early_and_none_is_late_by_more_than_a_tick(life, kind):
    """Each message is delivered at its time or up to a tick later, with delays from a moment to weeks."""
    consumer = life.consumer(kind)
    times = {f"{n}": 1 + n * 7_919 % 40_000 for n in range(300)}
    times |= {"hour": HOUR_MS, "day": DAY_MS + 1, "now": None, "past": -5}
    life.publish(**times)
    life.wait(41_000)
    life.wait(HOUR_MS - life.now + SECOND_MS)
    life.jump(DAY_MS - life.now)
    life.wait(2 * SECOND_MS)
    check_times(life.came(consumer), times)


@pytest.mark.parametrize("tick_ms", [1, 100, 5_000])
def test_how_exact_it_is_can_be_set(rigs, tick_ms):
    life = Life(rigs(delayed_delivery_tick_ms=tick_ms))
    consumer = life.consumer()
    times = {f"{n}": 1 + n * 7_919 % 20_000 for n in range(200)}
    life.publish(**times)
    life.wait(25_001)
    check_times(life.came(consumer), times, tick_ms)


def test_when_it_is_not_strict_messages_are_early_by_at_most_a_tick(rigs):
    life = Life(rigs(delayed_delivery_strict=False))
    consumer = life.consumer()
    times = {f"{n}": 1 + n * 7_919 % 20_000 for n in range(200)}
    life.publish(**times)
    life.wait(22_000)
    came = life.came(consumer)
    assert sorted(name for _, name in came) == sorted(times)
    assert all(times[name] - DELAY_TICK_MS <= when <= times[name] + DELAY_TICK_MS for when, name in came)


def test_a_message_that_waits_is_published_like_any_other(life):
    """A delayed message is receipted and durable at once, and Exclusive subscriptions and readers get it in its place.
    """
    before = life.rig.counters.read()["syncs"]
    life.publish(a=None)
    life.publish(later=HOUR_MS)
    life.publish(b=None)
    assert life.rig.counters.read()["syncs"] == before + 3
    assert [payload for _, payload in life.rig.everything("t")] == [b"a", b"later", b"b"]
    assert [life.positions[name][1] for name in ("a", "later", "b")] == [0, 1, 2]


@SINGLE
def test_a_single_consumer_does_not_wait(life, kind):
    consumer = life.consumer(kind)
    life.publish(late=HOUR_MS, now=None, soon=1_000)
    assert life.came(consumer) == [(0, "late"), (0, "now"), (0, "soon")]


def test_nobody_wakes_up_for_what_nobody_waits_for(life):
    """The owner only wakes up for its tick while no subscription would deliver a delayed message."""
    life.publish(soon=500)
    assert life.rig.owner.passes.due_ms() >= START_MS + TICK_MS
    life.consumer(SubType.Exclusive)
    life.publish(later=700)
    assert life.rig.owner.passes.due_ms() >= START_MS + TICK_MS


@SPREAD
@pytest.mark.parametrize("time_ms", [0, 1, -1, -(1 << 63), 1_000], ids=str)
def test_times_that_are_past_are_no_delay(rig, kind, time_ms):
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.run(rig.flow(consumer, 9))
    answers = rig.run(rig.sends((producer, b"a", {"deliver_at_time": time_ms})))
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"a"]


YEAR_10000_MS = 253_402_300_800_000


@SPREAD
def test_times_that_never_come_hold_up_nobody(rigs, kind):
    """Messages for the year 10000 and for the largest time there is hold up no others, after a crash too."""
    life = Life(rigs())
    consumer = life.consumer(kind)
    far = {"year": YEAR_10000_MS - START_MS, "beyond": (1 << 63) - 1 - START_MS, "century": 36_525 * DAY_MS}
    life.publish(**far, now=None, soon=2_000)
    life.wait(3_000)
    assert life.names_of(consumer) == ["now", "soon"]
    life.ack(consumer, "now", "soon")
    life.move(rigs.crash(life.rig))
    consumer = life.consumer(kind)
    life.jump(20 * 365 * DAY_MS)
    life.wait(3_000)
    assert life.came(consumer) == []
    assert life.account() == {"acknowledged": 2, "backlog": 3}
    life.jump(36_526 * DAY_MS)
    assert life.names_of(consumer) == ["century"]


# -- who comes when

@SPREAD
def test_consumers_come_and_go(life, kind):
    """A message goes to a consumer that is connected when it is due. Unacknowledged messages of a consumer that leaves
    go to others at once.
    """
    life.publish(a=1_000, b=2_000, c=3_000)
    first = life.consumer(kind)
    life.wait(1_500)
    assert life.names_of(first) == ["a"]
    life.leave(first)
    life.wait(1_500)
    second = life.consumer(kind)
    life.wait(1_000)
    came = life.came(second)
    assert sorted(name for _, name in came) == ["a", "b", "c"]
    assert all(when >= {"a": 1, "b": 2, "c": 3}[name] * SECOND_MS for when, name in came)


@SPREAD
def test_one_permit_brings_one_message(life, kind):
    consumer = life.consumer(kind, permits=0)
    life.publish(a=1_000, b=None, c=1_000, d=2_000)
    got = []
    for _ in range(4):
        life.flow(consumer, 1)
        life.wait(2_000)
        found = life.names_of(consumer)
        assert len(found) == 1
        got += found
    assert got[0] == "b" and sorted(got[1:3]) == ["a", "c"] and got[3] == "d"
    life.wait(5_000)
    assert life.came(consumer) == []


def test_each_key_keeps_its_order_among_what_is_due(life):
    """Due messages of a key are delivered in the order of publication, to one consumer; waiting ones hold up none."""
    consumers = [life.consumer(SubType.Key_Shared, consumer_name=f"c{n}") for n in range(3)]
    times = 3_000, 0, 1_000, 3_000, 0, 1_000, 2_000
    life.publish_all([(f"{key}{n}", {"at": at, "partition_key": key}) for n, at in enumerate(times) for key in "klmn"])
    came = {}
    for second in range(5):
        for consumer in consumers:
            for _, name in life.came(consumer):
                came.setdefault(name[0], []).append((second, name, consumer.number))
        life.wait(1_000)
    for key in "klmn":
        assert len({number for *_, number in came[key]}) == 1
        names = [name for _, name, _ in came[key]]
        assert sorted(names) == [f"{key}{n}" for n in range(7)]
        for ones in ((1, 4), (2, 5), (0, 3)):      # due at the same time
            assert [names.index(f"{key}{n}") for n in ones] == sorted(names.index(f"{key}{n}") for n in ones)
        assert names[:2] == [f"{key}1", f"{key}4"]


def test_a_key_whose_consumer_has_gone_waits_at_the_next(life):
    first = life.consumer(SubType.Key_Shared)
    life.publish(a={"at": 1_000, "partition_key": "k"}, b={"partition_key": "k"})
    second = life.consumer(SubType.Key_Shared)
    assert life.names_of(first) == ["b"]
    life.leave(first)
    life.wait(2_000)
    assert life.came(second) == [(0, "b"), (1_000, "a")]


def test_subscriptions_have_each_their_own(life):
    """Each subscription gets delayed messages by its own state: with or without permits, made after they were due,
    or Exclusive.
    """
    far, near = life.consumer(name="far"), life.consumer(name="near", permits=1)
    life.publish(a=None, late=2_000, b=None, later=4_000)
    alone = life.consumer(SubType.Exclusive, "alone")
    assert life.names_of(far) == ["a", "b"] and life.names_of(near) == ["a"]
    assert life.names_of(alone) == ["a", "late", "b", "later"]
    life.wait(2_000)
    assert life.names_of(far) == ["late"] and life.names_of(near) == []
    afterwards = life.consumer(name="afterwards")
    assert sorted(life.names_of(afterwards)) == ["a", "b", "late"]
    life.ack(far, "late")
    life.flow(near, 100)
    assert sorted(life.names_of(near)) == ["b", "late"]
    life.wait(2_000)
    assert [life.names_of(one) for one in (far, near, afterwards, alone)] == [["later"]] * 3 + [[]]


def test_a_subscription_that_begins_at_the_end_gets_nothing_of_what_waits(life):
    life.publish(early=1_000)
    consumer = life.consumer(initialPosition=0)
    life.publish(late=1_000)
    life.wait(2_000)
    assert life.names_of(consumer) == ["late"]


@SPREAD
@pytest.mark.parametrize("single", [SubType.Exclusive, SubType.Failover], ids=SubType.Name)
def test_a_subscription_that_changes_its_type(life, kind, single):
    """A subscription that becomes Exclusive delivers waiting messages. When it is Shared again, the unacknowledged
    ones wait for their time again.
    """
    shared = life.consumer(kind)
    life.publish(a=None, b=2_000, c=4_000, d=None)
    assert life.names_of(shared) == ["a", "d"]
    life.leave(shared)
    alone = life.consumer(single)
    assert life.names_of(alone) == ["a", "b", "c", "d"]
    life.ack(alone, "c", "d")
    life.leave(alone)
    shared = life.consumer(kind)
    assert life.names_of(shared) == ["a"]
    life.wait(3_000)
    assert [(when >= 2_000, name) for when, name in life.came(shared)] == [(True, "b")]
    life.leave(shared)
    life.publish(e=9_000)
    alone = life.consumer(single)
    assert life.names_of(alone) == ["a", "b", "e"]
    life.leave(alone)
    shared = life.consumer(kind)
    life.wait(9_000 - life.now + DELAY_TICK_MS)
    assert sorted(life.names_of(shared)) == ["a", "b", "e"]


# -- other kinds of messages

@SPREAD
def test_a_batch_with_a_time_waits_as_one(rigs, kind):
    """Clients send no delayed batches, but other producers may. Its messages are counted one by one, and partial
    acknowledgements stay.
    """
    life = Life(rigs())
    consumer = life.consumer(kind, permits=6)
    life.publish(batch={"at": 2_000, "batch": 5}, plain=None)
    assert life.names_of(consumer) == ["plain"]
    life.run(life.rig.ack_part(consumer, life.positions["batch"], 0b10110, request_id=1))
    life.move(rigs.crash(life.rig))
    consumer = life.consumer(kind, permits=0)
    life.ack(consumer, "plain")
    life.wait(3_000)
    answers = life.flow(consumer, 5)
    assert life.rig.given(answers, consumer) == [(life.positions["batch"], 0, [0b10110])]
    life.publish(more=None)
    assert life.names_of(consumer) == ["batch", "more"]


@SPREAD
def test_the_chunks_of_a_message_wait_together_and_come_in_order(life, kind):
    def chunk(number, at):
        return {"at": at, "uuid": "u", "chunk_id": number, "num_chunks_from_msg": 4, "total_chunk_msg_size": 40}
    consumer = life.consumer(kind)
    life.publish(**{f"{n}": chunk(n, 3_000) for n in range(2)}, plain=None)
    life.publish(**{f"{n}": chunk(n, 3_000) for n in range(2, 4)}, other=1_000)
    life.wait(2_500)
    assert life.names_of(consumer) == ["plain", "other"]
    life.wait(2_500)
    assert life.names_of(consumer) == ["0", "1", "2", "3"]


def test_redeliveries_wait_for_nothing_and_count(life):
    consumer = life.consumer()
    life.publish(a=1_000, far=HOUR_MS)
    life.wait(2_000)
    assert life.names_of(consumer) == ["a"]
    for count in range(3):
        answers = life.run(life.rig.redeliver(consumer, life.positions["a"]))
        assert life.rig.given(answers, consumer) == [(life.positions["a"], count + 1, [])]
        life.came(consumer)
        life.run(life.rig.redeliver(consumer, life.positions["far"]))      # the consumer does not have this message
        assert life.came(consumer) == []
    life.run(life.rig.redeliver(consumer))
    assert life.names_of(consumer) == ["a"]


def test_a_bound_of_unacknowledged_messages_holds_for_what_falls_due(rigs):
    life = Life(rigs(max_unacked_messages_per_consumer=3))
    consumer = life.consumer()
    life.publish(**{f"{n}": 1_000 for n in range(10)}, now=None)
    assert life.names_of(consumer) == ["now"]
    life.wait(3_000)
    assert life.names_of(consumer) == ["0", "1"]
    life.ack(consumer, "0", "1", "now")
    assert life.names_of(consumer) == ["2", "3", "4"]


def test_compacted_topics_have_delayed_messages_too(life):
    """A compacted reader is Exclusive and does not wait. Shared consumers get the messages of the ledgers, each in its
    time.
    """
    life.publish(old={"at": 3_000, "partition_key": "k"}, new={"at": 9_000, "partition_key": "k"},
                 other={"at": 3_000, "partition_key": "l"}, plain={"partition_key": "m"})
    target = nightly.Target(life.rig.partition("t").partition_id, TOPIC)

    def adopt(partition_id, topic, number):
        return life.rig.run(life.rig.question("adopt-view", "t", view=number)).answered[0].get("text")

    assert nightly.compact(life.rig.data_dir, target, adopt).outcome == nightly.COMPACTED
    alone = life.consumer(SubType.Failover, "reads", read_compacted=True)
    assert life.names_of(alone) == ["new", "other", "plain"]
    shared = life.consumer()
    assert life.names_of(shared) == ["plain"]
    life.wait(5_000)
    assert life.names_of(shared) == ["old", "other"]
    life.leave(alone)
    life.wait(5_000)
    assert life.names_of(shared) == ["new"]


def test_a_producer_for_transactions_is_made_unless_they_are_switched_off(rigs):
    rig = rigs(transactions=False)
    answers = rig.run(rig.command("producer", topic="t", producer_id=7, request_id=8, txn_enabled=True))
    [refused] = answers.commands(T.ERROR)
    assert refused.error.error == api.NotAllowedError
    assert rigs().producer("t", txn_enabled=True)


def test_what_a_producer_sends_again_waits_once(rigs):
    life = Life(rigs(deduplication=True))
    consumer, rig = life.consumer(), life.rig
    producer = rig.producer("t", producer_name="p", user_provided_producer_name=True)
    section = rig.sends((producer, b"a", {"deliver_at_time": START_MS + 2_000}))
    [position] = rig.run(section).positions
    life.names[position] = "a"
    rig.run(section)
    life.wait(4_000)
    assert life.names_of(consumer) == ["a"]


# -- clocks

@SPREAD
def test_a_clock_that_is_set_forward_and_back_loses_nothing(life, kind):
    """With the clock a day ahead, messages due by then are delivered. With the clock an hour back, waiting messages
    wait on, and new ones are delivered in time.
    """
    consumer = life.consumer(kind)
    life.publish(soon=HOUR_MS, day=DAY_MS - HOUR_MS // 2, far=2 * DAY_MS)
    life.jump(DAY_MS)
    assert sorted(life.names_of(consumer)) == ["day", "soon"]
    life.jump(-HOUR_MS)
    life.publish(short=life.now + 5_000, now=None, farther=2 * DAY_MS + 5_000)
    life.wait(2 * HOUR_MS)
    assert sorted(life.names_of(consumer)) == ["now", "short"]
    life.jump(2 * DAY_MS - life.now + 2_000)
    assert life.names_of(consumer) == ["far"]
    life.wait(5_000)
    assert life.names_of(consumer) == ["farther"]


@SPREAD
def test_a_clock_that_is_set_back_delays_nothing_that_is_published_then(life, kind):
    """A message that fell due by a clock an hour ahead does not hold back others after the clock is put back."""
    consumer = life.consumer(kind)
    life.publish(before=1_000)
    life.wait(3_000)
    assert life.names_of(consumer) == ["before"]
    life.jump(-HOUR_MS)
    life.publish(first=life.now + 9_000, second=life.now + 2_000)
    life.wait(4_000)
    assert life.names_of(consumer) == ["second"]
    life.wait(7_000)
    assert life.names_of(consumer) == ["first"]


@SPREAD
@pytest.mark.parametrize("together", [True, False])
def test_what_is_due_before_the_last_of_what_ascends_is_not_late(life, kind, together):
    """A message due before the last of many ascending times is in time, also if only the first few of these were
    compared.
    """
    consumer = life.consumer(kind)
    life.publish(a=10_000)
    life.publish(b=20_000, c=60_000) if together else [life.publish(b=20_000), life.publish(c=60_000)]
    life.publish(d=30_000)
    life.publish(e=33_500)
    for until, name in ((12_000, "a"), (22_000, "b"), (32_000, "d"), (35_000, "e"), (62_000, "c")):
        life.wait(until - life.now)
        assert life.names_of(consumer) == [name]


@SPREAD
def test_a_process_that_begins_with_an_earlier_clock_loses_nothing(rigs, kind):
    life = Life(rigs())
    life.consumer(kind)
    life.publish(a=2 * HOUR_MS, b=3 * DAY_MS)
    life.jump(DAY_MS)
    life.rig.now_ms -= DAY_MS - 5_000
    life.move(rigs.crash(life.rig))
    consumer = life.consumer(kind)
    life.wait(2_000)
    life.jump(DAY_MS)
    life.wait(2_000)
    assert life.names_of(consumer) == ["a"]
    life.jump(3 * DAY_MS)
    assert life.names_of(consumer) == ["b"]
