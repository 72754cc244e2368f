"""Delayed messages over crashes, seeks, deletions and changes of policies: which are kept, and when they are
delivered.
"""

import pytest

from geminga.storage.owner.owner_pass import TICK_MS
from geminga.storage.topics.subscription import SubType

from .delays import DAY_MS, DELAY_TICK_MS, HOUR_MS, NAMESPACE, SECOND_MS, SPREAD, TOPIC, Life, check_times
from .rig import START_MS, entry_of
from .test_limits import set_policy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("saves_at_once")]


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
    life.rig.asked("expire", "t", subscription="sub", seconds=0)    # by age: delayed messages included
    assert life.account() == {"skipped": 3, "expired": 2}
    life.came(consumer)
    life.wait(5_000)
    assert life.came(consumer) == []
    life.publish(f=life.now + 1_000)
    # expire up to a position, delayed messages included
    life.rig.asked("expire", "t", subscription="sub", position=list(life.positions["f"]), behind=False)
    life.wait(3_000)
    assert life.came(consumer) == []
    assert "backlog" not in life.account()


def only_new_messages_come(life, rigs, consumer):
    """Publish a delayed message, and assert that it alone is delivered, again after a crash."""
    life.publish(new=3_000)
    life.wait(5_000)
    assert life.names_of(consumer) == ["new"]
    life.move(rigs.crash(life.rig))
    assert life.names_of(life.consumer()) == ["new"]


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_topic_is_truncated_while_messages_wait(rigs, is_empty):
    life = Life(rigs(roll_over_entries=4))
    if not is_empty:
        consumer = life.consumer()
    life.publish(**{f"{n}": 2_000 for n in range(10)})
    life.rig.asked("truncate", "t")
    if is_empty:
        consumer = life.consumer()
    only_new_messages_come(life, rigs, consumer)


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
    only_new_messages_come(life, rigs, consumer)


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
