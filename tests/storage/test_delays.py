"""Delayed messages among all other features, on a clock that is a number: none early, none late by more than a tick.

test_delayed.py has the plain cases.
"""
import errno
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.delayed.window_files import windows_of
from geminga.storage.jobs import nightly
from geminga.storage.offline import verify
from geminga.storage.offline.findings import Severity
from geminga.storage.owner.owner_pass import TICK_MS
from geminga.storage.topics.subscription import SubType
from geminga.storage.upkeep import delayed_scheduler

from .files import copy_of, flip
from .lives import AtOnce
from .rig import START_MS, Rig, entry_of
from .test_limits import set_policy

pytestmark = pytest.mark.slow

SECOND_MS, HOUR_MS, DAY_MS = 1_000, 3_600_000, 24 * 3_600_000
DELAY_TICK_MS = 1_000                      # by default
NAMESPACE, TOPIC = "public/default", "persistent://public/default/t"
SPREAD = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
SINGLE = pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Failover], ids=SubType.Name)
MANY = 100_000
T = api.BaseCommand.Type


class Life:
    """An owner with consumers that take all messages.  All times are milliseconds since the beginning.

        life = Life(rigs())
        consumer = life.consumer()
        life.publish(late=5_000, now=None)     # messages by name, in order, in one pass
        life.wait(2_000)                       # with a pass whenever the owner wants one
        life.came(consumer)                    # [(when, name)] of messages since the last call
    """

    def __init__(self, rig: Rig):
        self.positions = {}                    # name -> position
        self.names = {}                        # ... and back
        self.move(rig)

    def move(self, rig: Rig) -> None:
        """Go on with the owner's next process, to which no client is connected."""
        self.rig, self._came, self._consumers = rig, {}, {}
        self._producer = rig.producer("t")

    @property
    def now(self) -> int:
        return self.rig.now_ms - START_MS

    def consumer(self, kind=SubType.Shared, name="sub", *, permits=MANY, **fields):
        section, number = self.rig.subscribe("t", name, subType=kind, **fields)
        answers = self._take(self.rig.run(section))
        made = self.rig.consumer_in(answers, number, "t")
        self._came[made.number], self._consumers[made.number] = [], made
        if permits:
            self.flow(made, permits)
        return made

    def flow(self, consumer, permits):
        return self.run(self.rig.flow(consumer, permits))

    def publish(self, **times_ms):
        """Publish messages by name: due at that time, at once for None, or with those fields of metadata for a dict."""
        self.publish_all(list(times_ms.items()))

    def publish_all(self, times_ms):
        sent = []
        for name, time_ms in times_ms:
            fields = time_ms if isinstance(time_ms, dict) else {} if time_ms is None else {"at": time_ms}
            fields = dict(fields)
            if "at" in fields:
                fields["deliver_at_time"] = START_MS + fields.pop("at")
            sent.append((self._producer, name.encode(), fields))
        answers = self.rig.run(self.rig.sends(*sent))
        for (name, _), position in zip(times_ms, answers.positions, strict=True):
            self.positions[name], self.names[position] = position, name
        self._take(answers)
        self._go_on()

    def run(self, *sections, after_ms=0):
        answers = self._take(self.rig.run(*sections, after_ms=after_ms))
        self._go_on()
        return answers

    def _go_on(self):
        """Run the passes that the owner wants at once, because the delayed index works in small pieces.  Then check
        invariants.
        """
        for _ in range(100):
            if self.rig.owner.passes.due_ms() > self.rig.now_ms:
                break
            self._take(self.rig.run())
        for partition in self.rig.partitions:
            partition.check()

    def _take(self, answers):
        for number, _, ledger_id, given in answers.gifts:
            if number in self._came:
                self._came[number] += [(self.now, self.names[ledger_id, entry_id]) for entry_id, _, _ in given]
        return answers

    def wait(self, ms):
        """Let time pass, with a pass whenever the owner wants one, as its process does."""
        until_ms = self.rig.now_ms + ms
        while self.rig.now_ms < until_ms:
            self.run(after_ms=max(1, min(self.rig.owner.passes.due_ms(), until_ms) - self.rig.now_ms))

    def jump(self, ms):
        """Let time pass at once, as if the process had been stopped meanwhile, or the clock been set."""
        self.run(after_ms=ms)

    def came(self, consumer):
        found, self._came[consumer.number] = self._came[consumer.number], []
        return found

    def names_of(self, consumer):
        return [name for _, name in self.came(consumer)]

    def ack(self, consumer, *names):
        return self.run(self.rig.acks(consumer, *[self.positions[name] for name in names], request_id=1))

    def leave(self, consumer):
        self._take(self.rig.close_consumer(consumer))
        del self._came[consumer.number], self._consumers[consumer.number]

    def seek(self, consumer, **where):
        """Seek the consumer's subscription, which disconnects its consumers."""
        self.run(self.rig.command("seek", consumer_id=consumer.object_id, request_id=1, **where))
        del self._came[consumer.number], self._consumers[consumer.number]

    def id_of(self, name):
        return api.MessageIdData(ledgerId=self.positions[name][0], entryId=self.positions[name][1])

    def account(self, name="sub"):
        """Return the totals of a subscription: outcomes of all messages since it was made."""
        told = self.rig.asked("why", "t", subscription=name)["messages"]
        assert told["published"] == sum(count for what, count in told.items() if what != "published"), told
        return {what: count for what, count in told.items() if count and what != "published"}


@pytest.fixture(autouse=True)
def saves_at_once(monkeypatch):
    """Save indexes in the pass instead of a thread, when the test's clock says so."""
    monkeypatch.setattr(delayed_scheduler, "ThreadPoolExecutor", AtOnce)


@pytest.fixture
def life(rigs):
    return Life(rigs())


def check_times(came, times_ms, tick_ms=DELAY_TICK_MS, *, published_ms=0):
    """Assert that each message was delivered once, at its time or up to a tick later."""
    assert sorted(name for _, name in came) == sorted(times_ms)
    for when, name in came:
        due = max(times_ms[name] or 0, published_ms)
        assert due <= when <= due + tick_ms, name


# -- the plain promises

@SPREAD
def test_none_is_early_and_none_is_late_by_more_than_a_tick(life, kind):
    """Delivery times are from a moment to weeks ahead."""
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
    """As long as no subscription would deliver a delayed message, the owner only wakes up for its tick."""
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
    """Subscriptions stand before the message or behind it when it is due, are made later, or do not wait at all."""
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
    """As Exclusive, a subscription delivers waiting messages. As Shared again, it waits for those that were not
    acknowledged.
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


# -- crashes and places

@SPREAD
@pytest.mark.parametrize("how", ["crash", "restart", "unload"])
def test_they_wait_over_the_end_of_a_process(rigs, kind, how):
    """Acknowledgements survive the end of a process, also of messages that are not due, with a hole for each waiting
    one.
    """
    life = Life(rigs(roll_over_entries=50))
    consumer = life.consumer(kind)
    times = {f"{n}": 10_000 + n * 7_919 % 20_000 if n % 2 else None for n in range(200)}
    for n in range(0, 200, 20):
        life.publish_all(list(times.items())[n:n + 20])
    early = [f"{n}" for n in range(1, 200, 10)]
    life.ack(consumer, *life.names_of(consumer), *early)
    if how == "unload":
        life.rig.asked("unload", "t")
        life.move(life.rig)
    else:
        life.move(getattr(rigs, how)(life.rig))
    consumer = life.consumer(kind)
    life.wait(5_000)
    assert life.came(consumer) == []
    life.wait(30_000)
    left = {name: time for name, time in times.items() if time is not None and name not in early}
    check_times(life.came(consumer), left)


def test_acknowledgements_with_a_hole_for_each_that_waits_are_exact_after_a_crash(rigs):
    """Every other message waits for weeks. All others are acknowledged, in no order, and none is delivered again."""
    life = Life(rigs(roll_over_entries=2_000))
    consumer = life.consumer()
    for first in range(0, 10_000, 1_000):
        life.publish_all([(f"{n}", 30 * DAY_MS - n if n % 2 else None) for n in range(first, first + 1_000)])
    came = life.names_of(consumer)
    assert came == [f"{n}" for n in range(0, 10_000, 2)]
    life.ack(consumer, *sorted(came))
    for _ in range(3):
        life.move(rigs.crash(life.rig))
        consumer = life.consumer()
        life.wait(2_000)
        assert life.came(consumer) == []
        assert life.account() == {"acknowledged": 5_000, "backlog": 5_000}
    life.jump(30 * DAY_MS)
    life.wait(2_000)
    assert sorted(life.names_of(consumer), key=int) == [f"{n}" for n in range(1, 10_000, 2)]


@SPREAD
@pytest.mark.parametrize("by_time", [False, True], ids=["id", "time"])
def test_seeks_back_and_forth(rigs, kind, by_time):
    """After a seek due messages are delivered again at once, waiting ones wait on, and those before the position are
    skipped.
    """
    life = Life(rigs(roll_over_entries=3))
    consumer, names = life.consumer(kind), "abcdefgh"
    life.leave(life.consumer(name="other"))      # a subscription that keeps everything
    for n, name in enumerate(names):
        life.publish(**{name: {"publish_time": 1_000 + n} | ({"at": 5_000} if name in "bdg" else {})})

    def seek(consumer, name):
        by = {"message_publish_time": 1_000 + names.index(name)} if by_time else {"message_id": life.id_of(name)}
        life.seek(consumer, **by)
        return life.consumer(kind)

    assert sorted(life.names_of(consumer)) == list("acefh")
    consumer = seek(consumer, "d")
    assert sorted(life.names_of(consumer)) == list("efh")
    life.ack(consumer, *"efh")
    consumer = seek(consumer, "a")
    assert sorted(life.names_of(consumer)) == list("acefh")
    life.wait(5_000 - life.now + DELAY_TICK_MS)
    assert sorted(life.names_of(consumer)) == list("bdg")
    life.ack(consumer, *names)
    consumer = seek(consumer, "c")
    assert sorted(life.names_of(consumer)) == list("cdefgh")
    consumer = seek(consumer, "h")
    life.publish(i=life.now + 500)
    life.wait(2_000)
    assert sorted(life.names_of(consumer)) == list("hi")


def test_a_position_that_administration_resets(life):
    consumer = life.consumer()
    life.publish(a=None, b=5_000, c=None)
    life.ack(consumer, "a", "c")
    life.came(consumer)
    life.rig.asked("reset", "t", subscription="sub", position=list(life.positions["a"]), behind=False)
    consumer = life.consumer()
    assert life.names_of(consumer) == ["a", "c"]
    life.rig.asked("reset", "t", subscription="sub", position=list(life.positions["b"]), behind=True)
    consumer = life.consumer()
    life.wait(7_000)
    assert life.names_of(consumer) == ["c"]


@SPREAD
def test_what_is_skipped_or_made_to_expire_does_not_come(life, kind):
    consumer = life.consumer(kind)
    life.publish(a=2_000, b=2_000)
    life.rig.asked("clear", "t", subscription="sub")
    life.publish(c=2_000, d=None, e=3_000)
    life.rig.asked("skip", "t", subscription="sub", entries=1)      # to the first message, which waits
    assert life.account() == {"skipped": 3, "backlog": 2}
    life.rig.asked("expire", "t", subscription="sub", seconds=0)    # all but delayed ones
    assert life.account() == {"skipped": 3, "expired": 1, "backlog": 1}
    life.came(consumer)
    life.wait(5_000)
    assert [(when >= 3_000, name) for when, name in life.came(consumer)] == [(True, "e")]
    life.publish(f=life.now + 1_000)
    # up to there, whatever it is
    life.rig.asked("expire", "t", subscription="sub", position=list(life.positions["f"]), behind=False)
    life.wait(3_000)
    assert life.came(consumer) == []
    assert "backlog" not in life.account()


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_topic_is_truncated_while_messages_wait(rigs, is_empty):
    life = Life(rigs(roll_over_entries=4))
    if not is_empty:
        consumer = life.consumer()
    life.publish(**{f"{n}": 2_000 for n in range(10)})
    life.rig.asked("truncate", "t")
    if is_empty:
        consumer = life.consumer()
    life.publish(new=3_000)
    life.wait(5_000)
    assert life.names_of(consumer) == ["new"]
    life.move(rigs.crash(life.rig))
    assert life.names_of(life.consumer()) == ["new"]


def test_a_topic_is_deleted_while_messages_wait_and_made_again(rigs):
    life = Life(rigs(roll_over_entries=4))
    life.consumer()
    life.publish(**{f"{n}": 2_000 for n in range(10)})
    folder = life.rig.partition("t").folder
    life.rig.asked("delete", "t", force=True)
    life.wait(TICK_MS)
    assert not list(folder.rglob("*"))
    life.move(life.rig)
    consumer = life.consumer()
    life.publish(new=3_000)
    life.wait(5_000)
    assert life.names_of(consumer) == ["new"]
    life.move(rigs.crash(life.rig))
    assert life.names_of(life.consumer()) == ["new"]


def test_a_subscription_is_deleted_while_messages_wait(life):
    consumer, other = life.consumer(), life.consumer(name="other")
    life.publish(a=2_000)
    life.run(life.rig.command("unsubscribe", consumer_id=consumer.object_id, request_id=1))
    again = life.consumer()
    life.wait(4_000)
    assert life.names_of(again) == ["a"] == life.names_of(other)


def test_space_is_given_back_around_what_waits(rigs):
    """Ledgers without unacknowledged entries are deleted; one with a waiting entry is kept, and the entry is delivered
    in time.
    """
    life = Life(rigs(roll_over_entries=10))
    consumer = life.consumer()
    for n in range(10):
        life.publish_all([(f"{n}.{m}", 60_000 if (n, m) == (4, 4) else 1_000 + 10 * m) for m in range(10)])
    life.wait(3_000)
    came = life.names_of(consumer)
    assert len(came) == 99
    life.ack(consumer, *came)
    life.wait(3_000)
    assert life.positions["4.4"][0] == min(life.rig.files("t"))
    life.wait(60_000)
    assert life.names_of(consumer) == ["4.4"]


# -- policies

def test_time_to_live_counts_from_the_time_of_delivery(rigs):
    """Time to live is two hours: a message delayed by six hours lives until two hours after that, a plain one for two
    hours.
    """
    life = Life(rigs(message_ttl_s=7_200))
    life.consumer(permits=0)
    life.publish(late=6 * HOUR_MS, plain=None, weeks=20 * DAY_MS)
    life.jump(2 * HOUR_MS + SECOND_MS)
    assert life.account() == {"expired": 1, "backlog": 2}
    life.jump(4 * HOUR_MS)
    consumer = life.consumer()
    assert life.names_of(consumer) == ["late"]
    life.move(rigs.crash(life.rig))
    life.jump(2 * HOUR_MS - 2 * SECOND_MS)
    assert life.account() == {"expired": 1, "backlog": 2}
    life.jump(3 * SECOND_MS)
    assert life.account() == {"expired": 2, "backlog": 1}
    consumer = life.consumer()
    life.jump(20 * DAY_MS - life.now)
    life.wait(DELAY_TICK_MS)
    assert life.names_of(consumer) == ["weeks"]


def test_expired_with_a_subscription_that_nobody_uses_they_stay_countable(rigs):
    """Expired messages are counted, whether consumers are connected or not."""
    life = Life(rigs(message_ttl_s=60))
    consumer = life.consumer()
    life.publish(**{f"{n}": n * 10_000 for n in range(20)})
    life.leave(consumer)
    for _ in range(30):
        life.jump(10_000)
        told = life.account()
        assert sum(told.values()) == 20
        due = min(20, max(0, (life.now - 60_000) // 10_000 + 1))
        assert abs(told.get("expired", 0) - due) <= 1
    assert life.account() == {"expired": 20}


def test_eviction_takes_only_what_is_due(rigs):
    """A backlog quota evicts no waiting messages. When they are due, they are evicted like all others."""
    payload_ms, size = 3_000, len(entry_of(b"00", deliver_at_time=START_MS, sequence_id=100))
    life = Life(rigs(backlog_quota_bytes=20 * size, backlog_quota_policy="consumer_backlog_eviction"))
    life.consumer(permits=0)
    life.publish(**{f"{n:02}": payload_ms for n in range(40)})
    life.publish(**{f"p{n}": None for n in range(5)})
    life.wait(1_000)
    told = life.account()
    assert told["backlog"] >= 40 and told.get("evicted", 0) <= 5
    life.wait(5_000)
    told = life.account()
    assert 10 <= told["backlog"] <= 21 and told["evicted"] + told["backlog"] == 45


LEVELS = pytest.mark.parametrize("level", ["broker", "namespace", "topic"])


def switch(life, level, is_on):
    if level == "broker":
        life.rig.owner.catalogue.options.set("delayed_delivery", is_on)
        life.rig.owner.catalogue.commit()
        return life.run(life.rig.tell("options"))
    scope = {"namespace": NAMESPACE, "topic": TOPIC}[level]
    return life._take(set_policy(life.rig, "delayedDelivery", {"active": is_on, "tickTime": 1_000}, scope))


@LEVELS
@pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
def test_it_is_switched_off_and_on_again(life, kind, level):
    """When delayed delivery is switched off, waiting messages and new ones are delivered at once. Switched on, messages
    wait again.
    """
    consumer = life.consumer(kind)
    life.publish(a=HOUR_MS, b=None)
    assert life.names_of(consumer) == ["b"]
    switch(life, level, False)
    assert life.names_of(consumer) == ["a"]
    life.publish(c=HOUR_MS)
    assert life.names_of(consumer) == ["c"]
    switch(life, level, True)
    life.publish(d=2_000)
    assert life.came(consumer) == []
    life.wait(4_000)
    assert [(when >= 2_000, name) for when, name in life.came(consumer)] == [(True, "d")]
    again = life.consumer(kind)
    life.leave(consumer)      # pending messages from the time without delays may wait now
    life.wait(HOUR_MS)
    assert sorted(life.names_of(again)) == list("abcd")


def test_a_topic_may_wait_where_its_namespace_does_not(life):
    switch(life, "namespace", False)
    consumer = life.consumer()
    life.publish(a=HOUR_MS)
    assert life.names_of(consumer) == ["a"]
    switch(life, "topic", True)
    life.publish(b=2_000)
    life.wait(4_000)
    assert [(when >= 2_000, name) for when, name in life.came(consumer)] == [(True, "b")]


def test_where_nothing_waits_nothing_is_kept_of_it(rigs):
    life = Life(rigs(delayed_delivery=False))
    consumer = life.consumer()
    life.publish(**{f"{n}": n * 1_000 for n in range(100)})
    assert len(life.came(consumer)) == 100
    folder = life.rig.partition("t").folder / "delayed"
    assert not folder.exists() or not any(path.stat().st_size for path in folder.iterdir())


def test_stats_tell_how_many_wait(life):
    consumer = life.consumer()
    life.publish(a=None, b=2_000, c=4_000, d=6_000)
    life.ack(consumer, "a", "d")

    def told():
        stats = life.rig.shown("stats", "t", earliest=False, publishers=False, consumers=False)["subscriptions"]["sub"]
        return stats["msgBacklog"], stats["msgDelayed"], stats["msgBacklogNoDelayed"]

    assert told() == (2, 2, 0)
    life.wait(3_000)
    assert told() == (2, 1, 1)
    life.wait(3_000)
    assert told() == (2, 0, 2)


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


def test_a_transaction_is_refused_with_a_delay_as_without(rig):
    answers = rig.run(rig.command("producer", topic="t", producer_id=7, request_id=8, txn_enabled=True))
    [refused] = answers.commands(T.ERROR)
    assert refused.error.error == api.NotAllowedError


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


# -- the index's files

DAMAGE_OF = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "lost": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "flipped": lambda path: flip(path, path.stat().st_size // 2),
    "newer": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0" * 100),
}


def spread_over(count, span_ms, least_ms=1_000):
    """Return that many messages with times all over the range, in no order."""
    return {f"{n}": least_ms + n * 7_919 * 7_919 % span_ms for n in range(count)}


def files_of(life):
    return sorted((life.rig.partition("t").folder / "delayed").iterdir())


def check_all_come(life, consumer, times, *, step_ms=60_000):
    """Assert that all messages are delivered in time, to the precision of `step_ms`.  Some may have been delivered
    before.
    """
    came = []
    while len(came) < len(times):
        until = life.now + step_ms
        life.jump(step_ms - 1_000)
        life.wait(until - life.now)
        came += life.came(consumer)
        assert life.now < max(times.values()) + 2 * step_ms, sorted(times.keys() - {name for _, name in came})
    check_times(came, times, DELAY_TICK_MS + step_ms)


@pytest.mark.parametrize("how", DAMAGE_OF)
@pytest.mark.parametrize("which", ["a window", "every window", "what says of them"])
def test_files_that_are_damaged_are_made_anew(rigs, how, which):
    """Damaged files, found at a start or when their window begins, are reported, and the index is rebuilt from the
    ledgers.
    """
    life = Life(rigs(roll_over_entries=40))
    consumer = life.consumer()
    times = spread_over(300, 2 * HOUR_MS)
    for first in range(0, 300, 30):
        life.publish_all(list(times.items())[first:first + 30])
    early = ["3", "150", "299"]
    life.ack(consumer, *early)
    rigs.restart(life.rig).close()
    folder = format.partition_folder(life.rig.data_dir, 1) / "delayed"
    windows = sorted(folder.glob("*.window"), key=lambda path: int(path.name.partition("-")[0]))
    assert len(windows) >= 24
    for path in {"a window": windows[7:8], "every window": windows, "what says of them": [folder / "schedule"]}[which]:
        DAMAGE_OF[how](path)
    life.move(rigs.on(life.rig.data_dir, now_ms=life.rig.now_ms, **life.rig.settings))
    consumer = life.consumer()
    check_all_come(life, consumer, {name: at for name, at in times.items() if name not in early})
    is_unnoticed = how == "longer" or (how, which) == ("lost", "what says of them")
    assert is_unnoticed or life.rig.counters.read()["damage_found"] >= 1
    assert life.account()["acknowledged"] == 3


def test_there_is_a_file_for_each_window_of_time(rigs):
    """The file of a window is removed some time after all its messages were due."""
    life = Life(rigs(delayed_delivery_window_ms=60_000))
    consumer = life.consumer()
    times = spread_over(500, HOUR_MS)
    life.publish(**times)
    life.wait(31_000)
    life.wait(31_000)
    windows = {tuple(map(int, path.stem.split("-"))) for path in files_of(life) if path.suffix == ".window"}
    assert windows >= {((START_MS + at) // 60_000 * 60_000, 60_000) for at in times.values() if at > 62_000}
    check_all_come(life, consumer, times)
    life.ack(consumer, *times)
    life.jump(60_000)
    for _ in range(4):
        life.wait(31_000)
    assert [path for path in files_of(life) if path.suffix == ".window"] == []


def test_a_start_reads_no_window_before_its_time(rigs, monkeypatch):
    life = Life(rigs())
    life.consumer()
    life.publish(**spread_over(2_000, 30 * DAY_MS, HOUR_MS), soon=20_000)
    life.move(rigs.restart(life.rig))
    read, whole = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), whole(path))[1])
    life.move(rigs.crash(life.rig))
    consumer = life.consumer()
    life.wait(30_000)
    assert life.names_of(consumer) == ["soon"]
    assert len({path for path in read if path.suffix == ".window"}) <= 2


def test_memory_does_not_depend_on_how_many_wait(rigs):
    """Memory has a bit for each waiting message, the rows of the window that has begun, and the list of windows."""
    rig = rigs(delayed_delivery_window_ms=DAY_MS)
    producer, _ = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    times = [START_MS + 2 * DAY_MS + n * 7_919 * 7_919 % (30 * DAY_MS) for n in range(6_000)]
    passes = [rig.sends(*[(producer, b"x", {"deliver_at_time": at}) for at in times[n:n + 1_000]])
              for n in range(0, 6_000, 1_000)]
    tracemalloc.start()
    try:
        for section in passes:
            rig.run(section)
        for _ in range(2):
            rig.run(after_ms=31_000)
            for _ in range(30):
                rig.run()
        found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/storage/delayed/*.py")])
    finally:
        tracemalloc.stop()
    assert sum(one.size for one in found.statistics("filename")) < 50_000      # rows of all would be 144,000
    assert rig.partition("t").schedule.waiting == 6_000


def test_what_ascends_needs_no_files(rigs):
    """Ascending times need no files, over crashes too, until a message comes that is due earlier."""
    life = Life(rigs(roll_over_entries=100))
    consumer = life.consumer()
    times = {f"{n}": 100_000 + 500 * n for n in range(400)}
    for first in range(0, 400, 40):
        life.publish_all(list(times.items())[first:first + 40])
    life.wait(31_000)
    life.wait(31_000)
    assert [path for path in files_of(life) if path.suffix == ".window"] == []
    life.move(rigs.crash(life.rig))
    consumer = life.consumer()
    times |= {"between": 150_250, "soon": 70_000}
    life.publish(between=150_250, soon=70_000)
    life.wait(31_000)
    life.wait(31_000)
    came = life.came(consumer)
    life.ack(consumer, *[name for _, name in came])
    life.move(rigs.crash(life.rig))
    consumer = life.consumer()
    life.wait(200_000)
    check_times(came + life.came(consumer), times)


@pytest.mark.parametrize(("before_ms", "after_ms"), [(300_000, 10_000), (10_000, 300_000), (3_600_000, 1_000)])
def test_windows_may_become_narrower_and_wider_while_messages_wait(rigs, before_ms, after_ms):
    """Windows of another width are split when they begin."""
    life = Life(rigs())
    set_policy(life.rig, "delayedDelivery",
               {"active": True, "tickTime": 1_000, "timePartitionGranularityInMillis": before_ms})
    consumer = life.consumer()
    times = spread_over(200, HOUR_MS)
    life.publish(**dict(list(times.items())[:100]))
    life.wait(31_000)
    life.wait(31_000)
    came = life.came(consumer)
    life._take(set_policy(life.rig, "delayedDelivery",
                          {"active": True, "tickTime": 1_000, "timePartitionGranularityInMillis": after_ms}))
    life.publish(**dict(list(times.items())[100:]))
    came += [(when, name) for when, name in life.came(consumer)]
    life.ack(consumer, *[name for _, name in came])
    life.move(rigs.restart(life.rig))
    consumer = life.consumer()
    check_all_come(life, consumer, {name: at for name, at in times.items() if name not in dict(map(reversed, came))})


@pytest.mark.parametrize("flushed", [False, True])
def test_the_files_of_a_truncated_topic_bring_nothing_back(rigs, flushed):
    life = Life(rigs(roll_over_entries=40))
    consumer = life.consumer()
    life.publish(**spread_over(200, HOUR_MS, 200_000))
    if flushed:
        life.wait(31_000)
        life.wait(31_000)
    life.rig.asked("truncate", "t")
    life.publish(new=300_000, newer=400_000, between=350_000)
    if flushed:
        life.move(rigs.crash(life.rig))
        consumer = life.consumer()
    life.jump(2 * HOUR_MS)
    life.wait(2_000)
    assert sorted(life.names_of(consumer)) == ["between", "new", "newer"]
    assert life.rig.partition("t").schedule.waiting == 0


def test_a_kill_while_the_schedule_is_saved_costs_nothing(rigs, tmp_path, monkeypatch):
    """The process is killed at each step of a save, with messages published meanwhile."""
    life = Life(rigs(roll_over_entries=150))
    consumer = life.consumer()
    killed, sync_all = [], delayed_scheduler.sync_all

    def copying(folder):
        killed.append(copy_of(life.rig.data_dir, tmp_path / f"killed-{len(killed)}"))
        sync_all(folder)

    monkeypatch.setattr(delayed_scheduler, "sync_all", copying)
    for first in range(0, 400, 100):
        some = {f"{first + n}": first * 1_000 + at
                for n, at in enumerate(spread_over(100, 10 * 60_000, 1_000).values())}
        life.publish(**some)
        life.wait(33_000)
        life.ack(consumer, *life.names_of(consumer))
    assert len(killed) >= 9
    monkeypatch.setattr(delayed_scheduler, "sync_all", sync_all)
    acked = set()
    for folder in killed:
        after = Life.__new__(Life)
        after.positions, after.names = dict(life.positions), dict(life.names)
        after.move(rigs.on(folder, now_ms=life.rig.now_ms, **life.rig.settings))
        consumer = after.consumer()
        stored = {name for name, position in life.positions.items() if after.rig.partition("t").has(position)}
        backlog = after.account().get("backlog", 0)
        after.jump(HOUR_MS)
        after.wait(2_000)
        found = after.names_of(consumer)
        assert len(found) == len(set(found)) == backlog, folder
        assert set(found) <= stored
        acked.add(backlog)
    assert len(acked) > 1


@pytest.mark.parametrize("where", ["windows", "what says of them", "both"])
def test_a_disk_that_is_full_while_it_is_written_delays_nothing_further(rigs, monkeypatch, where, capsys):
    """Rows that find no room stay in memory, which is reported, and are written when there is room."""
    life = Life(rigs())
    consumer = life.consumer()
    life.publish(**(times := spread_over(200, HOUR_MS, 40_000)))
    write, write_anew = os.pwrite, delayed_scheduler.write_anew
    is_full = True

    def half(fd, data, at):
        if is_full and where != "what says of them" and os.readlink(f"/proc/self/fd/{fd}").endswith(".window"):
            if len(data) < 40:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(fd, data[:len(data) // 2], at)
        return write(fd, data, at)

    def none(path, data):
        if is_full and where != "windows":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write_anew(path, data)

    monkeypatch.setattr(os, "pwrite", half)
    monkeypatch.setattr(delayed_scheduler, "write_anew", none)
    for _ in range(3):
        life.wait(31_000)
    assert "No space left" in capsys.readouterr().err
    life.publish(more=200_000, most=150_000)
    times |= {"more": 200_000, "most": 150_000}
    life.wait(120_000)
    first = life.came(consumer)
    assert {name for _, name in first} == {name for name, at in times.items() if at <= life.now}
    check_times(first, {name: at for name, at in times.items() if at <= life.now})
    life.ack(consumer, *[name for _, name in first])
    is_full = False
    for _ in range(3):
        life.wait(31_000)
    assert len([path for path in files_of(life) if path.suffix == ".window"]) > 3
    second = life.came(consumer)
    life.ack(consumer, *[name for _, name in second])
    life.move(rigs.crash(life.rig))
    consumer = life.consumer()
    left = times.keys() - {name for _, name in first + second}
    check_all_come(life, consumer, {name: times[name] for name in left})


def test_a_whole_folder_has_no_damage_to_tell_of(rigs):
    life = Life(rigs())
    life.consumer()
    life.publish(**spread_over(200, HOUR_MS, 40_000))
    rigs.restart(life.rig).close()
    assert [finding for finding in verify.walk(life.rig.data_dir) if finding.severity > Severity.NOTE] == []


@pytest.mark.parametrize("width_s", [1, 60, 300, 420, 3_600, 24 * 3_600])
def test_windows_are_as_wide_as_configured_at_first_and_never_overlap(width_s):
    """Farther windows are wider. Where windows divide an hour, waiting messages can still be counted by the hour."""
    width_ms = width_s * 1_000
    times = START_MS + np.unique(np.random.default_rng(7).integers(0, 90 * 24 * HOUR_MS, 50_000))
    starts, widths = windows_of(times // width_ms * width_ms, width_ms, START_MS)
    assert ((starts <= times) & (times < starts + widths)).all() and (starts % widths == 0).all()
    assert (starts[1:] >= np.where(starts[1:] == starts[:-1], starts[:-1], starts[:-1] + widths[:-1])).all()
    assert (widths[times < START_MS + 288 * width_ms] == width_ms).all() and (np.diff(widths) >= 0).all()
    assert widths.max() == max(width_ms, HOUR_MS) or HOUR_MS % width_ms
    assert len(np.unique(starts)) < 5_000
