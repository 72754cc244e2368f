"""Shared: which consumer is next, which is blocked, and how often entries were redelivered."""
import errno
import os

import numpy as np
import pytest

from geminga.storage.cursors.entry_counts import EntryCounts
from geminga.storage.topics.subscription import SubType

from .disk import Disk

SHARED = {"subType": SubType.Shared}
MANY = 1_000


def ids(rig, answers, consumer):
    return [position for position, *_ in rig.given(answers, consumer)]


def counts(rig, answers, *consumers):
    return {position: redeliveries for consumer in consumers for position, redeliveries,
            _ in rig.given(answers, consumer)}


def crowd_of(rig, count, **fields):
    """Return consumers of a Shared subscription with enough permits for everything."""
    crowd = [rig.consumer("a", **SHARED, **fields) for _ in range(count)]
    rig.run(*[rig.flow(consumer, MANY) for consumer in crowd])
    return crowd


# -- who is next

def test_one_at_a_time_goes_to_all_in_turns(rig):
    """Single entries go to all consumers in the order in which they joined, past those without permits."""
    producer, crowd = rig.producer("a"), crowd_of(rig, 3)
    rig.consumer("a", **SHARED)                                   # without permits
    taken = []
    for _ in range(7):
        answers = rig.run(rig.sends((producer, b"x")))
        taken += [number for number, consumer in enumerate(crowd) if rig.given(answers, consumer)]
    assert taken == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("count", [3, 4, 30, 1_000])
def test_many_at_once_are_spread_evenly(rig, count):
    """The shares of two consumers differ by one turn at most."""
    producer, crowd = rig.producer("a"), crowd_of(rig, 3)
    answers = rig.run(rig.sends(*[(producer, b"x")] * count))
    taken = [ids(rig, answers, consumer) for consumer in crowd]
    assert sum(map(len, taken)) == len({position for one in taken for position in one}) == count
    assert max(map(len, taken)) - min(map(len, taken)) <= max(1, count // 12)


def test_a_lower_level_is_served_before_a_higher_one(rig):
    """Consumers of a higher priority level get nothing while one of a lower level has permits; a level takes turns."""
    producer = rig.producer("a")
    last, first, also_first = (rig.consumer("a", priority_level=level, **SHARED) for level in (2, 1, 1))
    rig.run(rig.flow(last, MANY), rig.flow(first, 10), rig.flow(also_first, 30))
    answers = rig.run(rig.sends(*[(producer, b"x")] * 50))
    assert [len(ids(rig, answers, consumer)) for consumer in (first, also_first, last)] == [10, 30, 10]


# -- who has too much

def test_a_consumer_with_too_much_unacknowledged_gets_no_more_until_half_is_done(rigs):
    """A blocked consumer keeps its permits, and other consumers go on.  Anybody's acknowledgements unblock it."""
    rig = rigs(max_unacked_messages_per_consumer=10)
    producer, (full,) = rig.producer("a"), crowd_of(rig, 1)
    positions = rig.publish(producer, *[b"x"] * 30)
    other = rig.consumer("a", **SHARED)
    assert [position for position, _ in rig.receive(other, 3)] == positions[10:13]
    assert not rig.run(rig.acks(full, *positions[:4])).gifts
    assert ids(rig, rig.run(rig.acks(other, positions[4])), full) == positions[13:18]
    assert not rig.run(rig.acks(full, positions[5], positions[5], positions[0], positions[10], (77, 7))).gifts
    assert ids(rig, rig.run(rig.redeliver(full, *positions[6:10])), full) == [*positions[6:10], positions[18]]


def test_parts_of_batches_count_by_message(rigs):
    rig = rigs(max_unacked_messages_per_consumer=10)
    producer, (consumer,) = rig.producer("a"), crowd_of(rig, 1)
    positions = rig.run(rig.sends(*[(producer, b"x", {"batch": 5})] * 4)).positions
    assert not rig.run(rig.ack_part(consumer, positions[0], 0b00001)).gifts                          # 6 left
    # 5 left: room for 5
    answers = rig.run(rig.ack_part(consumer, positions[1], 0b01111))
    assert ids(rig, answers, consumer) == positions[2:3]
    answers = rig.run(rig.acks(consumer, positions[0], positions[1]))
    assert ids(rig, answers, consumer) == positions[3:]


def test_all_of_a_subscription_wait_when_together_they_have_too_much(rigs):
    """All consumers are blocked at the subscription's limit, also if it is reached between two consumers of one pass.
    """
    rig = rigs(max_unacked_messages_per_subscription=50)
    producer, crowd = rig.producer("a"), crowd_of(rig, 3)
    answers = rig.run(rig.sends(*[(producer, b"x")] * 200))
    taken = [ids(rig, answers, consumer) for consumer in crowd]
    assert sum(map(len, taken)) == 50
    assert not rig.run(rig.acks(crowd[0], *sorted(sum(taken, []))[:24])).gifts
    answers = rig.run(rig.acks(crowd[0], *sorted(sum(taken, []))[24:25]))
    assert sum(len(ids(rig, answers, consumer)) for consumer in crowd) == 25
    assert sum(len(ids(rig, rig.close_consumer(crowd[0]), consumer)) for consumer in crowd) <= 50


def test_who_leaves_leaves_its_share_of_the_limit(rigs):
    rig = rigs(max_unacked_messages_per_subscription=10)
    producer, (leaves,) = rig.producer("a"), crowd_of(rig, 1)
    positions = rig.publish(producer, *[b"x"] * 20)
    (stays,) = crowd_of(rig, 1)
    assert ids(rig, rig.close_consumer(leaves), stays) == positions[:10]


# -- what comes back

def test_what_comes_back_comes_before_what_is_new_and_in_order(rig):
    """Redelivered entries come before new ones and by position, over several ledgers, however they were named."""
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    positions = rig.publish(producer, *[b"x"] * 40)
    rig.receive(consumer, 30)
    rig.run(rig.redeliver(consumer, *positions[29:3:-7]))
    assert [position for position, _ in rig.receive(consumer, 2)] == positions[8:16:7]
    assert [position for position, _ in rig.receive(consumer, 4)] == [positions[22], positions[29], *positions[30:32]]


@pytest.mark.slow
def test_much_comes_back_at_once(rigs):
    """Redelivery of many entries is bounded by permits and by nothing else."""
    rig = rigs(max_unacked_messages_per_consumer=0)
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    for _ in range(6):
        rig.run(rig.sends(*[(producer, b"x")] * 5_000))
    assert len(ids(rig, rig.run(rig.flow(consumer, 30_000)), consumer)) == 30_000
    assert len(ids(rig, rig.run(rig.redeliver(consumer), rig.flow(consumer, 25_000)), consumer)) == 25_000
    assert len(ids(rig, rig.run(rig.flow(consumer, 9_000)), consumer)) == 5_000


@pytest.mark.parametrize("how", ["same", "closed", "killed", "stopped"])
def test_how_often_something_came_back_is_counted_exactly(rigs, how):
    """A redelivery count rises with each request of a consumer, not when one closes.

    It outlives the last consumer and a restart, so that a message that consumers fail on becomes a dead letter.
    """
    rig = rigs(roll_over_entries=3)
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    positions = sum((rig.publish(producer, b"x") for _ in range(7)), [])
    assert set(counts(rig, rig.run(rig.flow(consumer, MANY)), consumer).values()) == {0}
    rig.run(rig.redeliver(consumer, *positions[2:5], positions[2], (99, 9)))
    assert counts(rig, rig.run(rig.redeliver(consumer, positions[2])), consumer) == {positions[2]: 2}
    rig.run(rig.acks(consumer, positions[4]), rig.redeliver(consumer, positions[4]))
    added = 0
    if how == "same":
        answers, added = rig.run(rig.redeliver(consumer)), 1
    else:
        if how == "closed":
            rig.close_consumer(consumer)
        rig = {"closed": lambda rig: rig, "killed": rigs.crash, "stopped": rigs.restart}[how](rig)
        consumer = rig.consumer("a", **SHARED)
        answers = rig.run(rig.flow(consumer, MANY))
    assert counts(rig, answers, consumer) == {position: added + {2: 2, 3: 1}.get(n, 0) for n,
                                              position in enumerate(positions) if n != 4}


def test_after_a_seek_nothing_has_come_back_yet(rig):
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    rig.publish(producer, b"x")
    rig.receive(consumer)
    rig.run(rig.redeliver(consumer))
    rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=1, message_publish_time=0))
    consumer = rig.consumer("a", **SHARED)
    assert list(counts(rig, rig.run(rig.flow(consumer, MANY)), consumer).values()) == [0]


@pytest.mark.parametrize("with_sizes", [True, False])
def test_a_power_cut_may_cost_counts_and_nothing_else(rigs, tmp_path, monkeypatch, with_sizes):
    disk = Disk(tmp_path / "data-0", monkeypatch)
    rig = rigs()
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    positions = rig.publish(producer, b"1", b"2")
    rig.receive(consumer)
    rig.run(rig.redeliver(consumer))
    rig.run(rig.acks(consumer, positions[0], request_id=1))
    disk.after_power_cut(tmp_path / "cut", with_sizes=with_sizes)
    rig = rigs.on(tmp_path / "cut")
    consumer = rig.consumer("a", **SHARED)
    assert [position for position, _ in rig.receive(consumer)] == positions[1:]
    assert list(counts(rig, rig.run(rig.redeliver(consumer), rig.flow(consumer, 1)), consumer)) == positions[1:]


def test_a_full_disk_costs_no_counts(rig, rigs, monkeypatch):
    """A full disk loses no redelivery counts: they are in memory and in the journal, whose files are allocated in
    advance.
    """
    producer, consumer = rig.producer("a"), rig.consumer("a", **SHARED)
    positions = rig.publish(producer, b"1", b"2")
    rig.receive(consumer)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    answers = rig.run(rig.redeliver(consumer), rig.flow(consumer, 10))
    assert counts(rig, answers, consumer) == dict.fromkeys(positions, 1)
    monkeypatch.undo()
    again = rigs.crash(rig)
    consumer = again.consumer("a", **SHARED)
    assert counts(again, again.run(again.flow(consumer, 10)), consumer) == dict.fromkeys(positions, 1)


def test_counts_end_where_they_do_not_wrap():
    counts = EntryCounts()
    counts.put(1, 0, 3, 0xFFFE)
    counts.put(1, 1, 2, 0xFFFF)
    assert counts.add(1, np.array([0, 1])).tolist() == [0xFFFF, 0xFFFF]
    assert counts.add(1, np.array([0, 1, 2, 3])).tolist() == [0xFFFF, 0xFFFF, 0xFFFF, 1]
