"""Key_Shared: which consumer a key belongs to, that no other gets it meanwhile, and the order within a key."""
import random
from dataclasses import dataclass

import numpy as np
import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.dispatch.ranges import HASHES, AutoSplit, Consistent
from geminga.storage.topics.subscription import SubType

from . import transacting
from .rig import T

MANY = 1_000
ALL = np.arange(HASHES)
SPLIT = {"key_shared_consistent_hashing": False}


@dataclass
class Slotted:
    """A stand-in for a consumer, with the attributes that hash ranges read."""

    slot: int
    name: str = "same"


def join(rig, name="c", **fields):
    return rig.consumer("a", subType=SubType.Key_Shared, consumer_name=name, **fields)


def policy(*ranges, is_loose=False):
    hashes = [api.IntRange(start=first, end=last) for first, last in ranges]
    return {
        "keySharedMeta": api.KeySharedMeta(
            keySharedMode=api.STICKY if ranges else api.AUTO_SPLIT, hashRanges=hashes, allowOutOfOrderDelivery=is_loose
        )
    }


def publish(rig, producer, *keys):
    """Publish an entry of each key, with the key as its payload."""
    return rig.run(rig.sends(*[(producer, key.encode(), {"partition_key": key}) for key in keys]))


def got(rig, answers, consumer):
    return [payload.decode() for _, payload in rig.delivered(answers, consumer)]


def dispatcher(rig):
    return rig.partition("a").subscriptions["sub", True].dispatcher


# -- whose a key is

def test_a_newcomer_gets_the_lower_half_of_the_largest_region(rigs):
    """Four consumers get the regions, and the third one the key, that Pulsar's documentation gives as an example."""
    rig = rigs(**SPLIT)
    producer, crowd = rig.producer("a"), [join(rig) for _ in range(4)]
    assert [dispatcher(rig).ranges.of(slot) for slot in (1, 2, 3, 4)] == [
        [(49_152, 65_535)], [(16_384, 32_767)], [(0, 16_383)], [(32_768, 49_151)]]
    rig.run(*[rig.flow(consumer, MANY) for consumer in crowd])
    answers = publish(rig, producer, "Order-3459134", "A", "B")          # 6067, 63438, 27274
    assert [got(rig, answers, consumer) for consumer in crowd] == [["A"], ["B"], ["Order-3459134"], []]


@pytest.mark.parametrize("leaver, expected", [
    (1, {2: [(16_384, 32_767)], 3: [(0, 16_383)], 4: [(32_768, 65_535)]}),      # the last region has no neighbour above
    (2, {1: [(49_152, 65_535)], 3: [(0, 16_383)], 4: [(16_384, 49_151)]}),
    (3, {1: [(49_152, 65_535)], 2: [(0, 32_767)], 4: [(32_768, 49_151)]}),
    (4, {1: [(32_768, 65_535)], 2: [(16_384, 32_767)], 3: [(0, 16_383)]})])
def test_what_somebody_leaves_goes_to_the_region_on_its_right(leaver, expected):
    ranges = AutoSplit()
    for slot in (1, 2, 3, 4):
        ranges.add(Slotted(slot))
    ranges.remove(Slotted(leaver))
    assert {slot: ranges.of(slot) for slot in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AutoSplit, Consistent])
def test_every_hash_is_somebodys_through_all_comings_and_goings(kind):
    """Every hash belongs to a consumer while there is one, and a change moves only hashes of the consumer that comes or
    goes.
    """
    ranges, there, chance = kind(), [], random.Random(1)
    before = ranges.slots(ALL)
    for _ in range(60):
        is_leaving = len(there) > 1 and chance.random() < 0.45
        changed = there.pop(chance.randrange(len(there))) if is_leaving else min({*range(1, 60)} - {*there})
        if not is_leaving:
            there.append(changed)
        (ranges.remove if is_leaving else ranges.add)(Slotted(changed, f"c{changed % 3}"))
        now = ranges.slots(ALL)
        assert set(now.tolist()) == set(there)
        assert set((before if is_leaving else now)[before != now].tolist()) == {changed}
        assert sum(last - first + 1 for slot in there for first, last in ranges.of(slot)) == HASHES
        before = now
    for slot in there:
        ranges.remove(Slotted(slot, f"c{slot % 3}"))
    assert not ranges.slots(ALL).any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AutoSplit, Consistent])
def test_however_many_come_between_two_looks_the_regions_are_the_same(kind):
    """Regions that are computed once for many changes are those that are computed after each."""
    looked_at, left_alone, chance, there = kind(), kind(), random.Random(2), []
    for step in range(100):
        is_leaving = bool(there) and chance.random() < 0.4
        changed = there.pop(chance.randrange(len(there))) if is_leaving else min({*range(1, 200)} - {*there})
        if not is_leaving:
            there.append(changed)
        for ranges in (looked_at, left_alone):
            (ranges.remove if is_leaving else ranges.add)(Slotted(changed, f"c{changed % 3}"))
        looked_at.slots(ALL)
        if step % 25 == 24:
            assert looked_at.all() == left_alone.all() and looked_at.all().keys() - {0} == {*there}
            assert all(looked_at.of(slot) == left_alone.all()[slot] for slot in there)


@pytest.mark.parametrize("names", [["same"] * 4, list("abcd"), [f"consumer-{n}" for n in range(20)]],
                         ids=["same", "four", "twenty"])
def test_a_ring_spreads_hashes_evenly(names):
    """A hundred points for each consumer spread hashes evenly, also if consumers have the same name."""
    ranges = Consistent()
    for slot, name in enumerate(names, 1):
        ranges.add(Slotted(slot, name))
    shares = np.bincount(ranges.slots(ALL))[1:] * len(names) / HASHES
    assert shares.min() > 0.6 and shares.max() < 1.5


def test_the_ordering_key_counts_before_the_key(rigs):
    rig = rigs(**SPLIT)
    producer, high, low = rig.producer("a"), join(rig), join(rig)
    rig.run(rig.flow(high, MANY), rig.flow(low, MANY))
    answers = rig.run(
        rig.sends(
            (producer, b"1", {"partition_key": "A"}),
            (producer, b"2", {"partition_key": "A", "ordering_key": b"B"}),
            (producer, b"3", {"partition_key": "Qg==", "partition_key_b64_encoded": True}),
            (producer, b"4", {"partition_key": "B", "batch": 3}),
        )
    )
    assert (got(rig, answers, high), got(rig, answers, low)) == (["1"], ["2", "3", "4"])


def test_entries_without_a_key_are_spread(rig):
    producer, crowd = rig.producer("a"), [join(rig, name) for name in "abcd"]
    rig.run(*[rig.flow(consumer, MANY) for consumer in crowd])
    answers = rig.run(rig.sends(*[(producer, b"x")] * 400))
    assert min(len(got(rig, answers, consumer)) for consumer in crowd) > 50


# -- ranges that consumers bring

@pytest.mark.parametrize("ranges", [
    (), ((5, 4),), ((-1, 4),), ((0, 65_536),), ((0, 10), (10, 20)), ((5, 9), (0, 20)), ((3, 3), (3, 3))])
def test_ranges_that_cannot_be_are_refused(rig, ranges):
    """Ranges are refused that are missing, reversed, out of bounds, or overlap; the refused consumer leaves no trace.
    """
    for durable in (True, False):
        wanted = policy(*ranges or [(0, 0)])
        if not ranges:
            del wanted["keySharedMeta"].hashRanges[:]
        section, _ = rig.subscribe("a", "sub", subType=SubType.Key_Shared, durable=durable, **wanted)
        assert [command.error.error for command in rig.run(section).commands()] == [api.ConsumerAssignError]
        join(rig, **policy((0, 10), (11, 65_535)), durable=durable)


def test_ranges_that_are_taken_are_refused_as_long_as_their_holder_lives(rig):
    """Ranges with one hash of a live consumer's are refused, and are free once that consumer is gone."""
    holder = join(rig, connection=2, **policy((100, 200), (300, 300)))
    join(rig, connection=3, **policy((0, 99), (201, 299), (301, 65_535)))
    for wanted in ((300, 300), (150, 160), (0, 65_535)):
        section, number = rig.subscribe("a", "sub", subType=SubType.Key_Shared, connection=9, **policy(wanted))
        assert [action for _, action, *_ in rig.run(section).replies] == [envelope.PROBE]
        answers = rig.run(rig.happened(envelope.CONNECTION_ALIVE, connection=2),
                          rig.happened(envelope.CONNECTION_ALIVE, connection=3))
        assert [command.error.error for command in answers.commands(T.ERROR)] == [api.ConsumerAssignError]
    section, number = rig.subscribe("a", "sub", subType=SubType.Key_Shared, connection=9, **policy((150, 160)))
    rig.run(section)
    assert rig.consumer_in(rig.run(rig.happened(envelope.CONNECTION_GONE, connection=holder.connection)), number, "a")


def test_what_is_in_nobodys_range_waits_and_holds_up_nothing(rig):
    producer, low = rig.producer("a"), join(rig, **policy((0, 30_000)))                # B is 27274, A 63438
    rig.run(rig.flow(low, MANY))
    assert got(rig, publish(rig, producer, "A", "B", "A", "B"), low) == ["B", "B"]
    high = join(rig, **policy((60_000, 65_535)))
    assert got(rig, rig.run(rig.flow(high, MANY)), high) == ["A", "A"]


@pytest.mark.parametrize("first, other", [
    (policy(), policy((0, 10))), (policy((0, 10)), policy()), (policy(), policy(is_loose=True)),
    (policy((0, 10)), policy((11, 20), is_loose=True))])
def test_all_consumers_have_one_policy(rig, first, other):
    """A consumer with another Key_Shared policy is refused once a present consumer has answered a probe."""
    join(rig, connection=2, **first)
    section, _ = rig.subscribe("a", "sub", subType=SubType.Key_Shared, connection=9, **other)
    assert [action for _, action, *_ in rig.run(section).replies] == [envelope.PROBE]
    answers = rig.run(rig.happened(envelope.CONNECTION_ALIVE, connection=2))
    assert [command.error.error for command in answers.commands(T.ERROR)] == [api.ConsumerBusy]
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=2))
    assert join(rig, connection=9, **other)


def test_it_can_be_switched_off(rigs):
    rig = rigs(key_shared_enabled=False)
    section, _ = rig.subscribe("a", "sub", subType=SubType.Key_Shared)
    assert [command.error.error for command in rig.run(section).commands()] == [api.NotAllowedError]


# -- a key is at one consumer at a time

@pytest.fixture
def moved(rigs):
    """Return (rig, producer, old consumer, new consumer, positions) while key B moves to a newcomer.

    The old consumer holds two entries each of keys A and B, and two more of each key were published since. The hash of
    B belongs to the new consumer by now.
    """
    rig = rigs(**SPLIT)
    producer, old = rig.producer("a"), join(rig, "old")
    rig.run(rig.flow(old, MANY))
    positions = publish(rig, producer, "A", "B", "A", "B").positions
    new = join(rig, "new")
    assert not rig.run(rig.flow(new, MANY)).gifts
    answers = publish(rig, producer, "B", "A", "B", "A")
    assert (got(rig, answers, old), got(rig, answers, new)) == (["A", "A"], [])
    return rig, producer, old, new, positions + answers.positions


def test_a_key_changes_hands_when_the_last_of_it_is_acknowledged(moved):
    """A key goes to its new consumer after its last pending entry is acknowledged; other keys do not wait."""
    rig, producer, old, new, positions = moved
    # keys without pending entries
    assert got(rig, publish(rig, producer, "C"), new) + got(rig, publish(rig, producer, "D"), new)
    assert not rig.run(rig.acks(old, positions[1])).gifts
    answers = rig.run(rig.acks(old, positions[3]))
    assert rig.given(answers, new) == [(positions[4], 0, []), (positions[6], 0, [])]
    assert got(rig, publish(rig, producer, "B"), new) == ["B"]


@pytest.mark.parametrize("how", ["given back", "closed", "one each"])
def test_a_key_changes_hands_when_it_is_given_back(moved, how):
    """A key that its former consumer gives back goes to the new one in order: redelivered entries, then withheld ones.
    """
    rig, _producer, old, new, positions = moved
    mine = [positions[n] for n in (1, 3, 4, 6)]
    if how == "given back":
        answers = rig.run(rig.redeliver(old, *positions[:4]))
    elif how == "closed":
        answers, mine = rig.close_consumer(old), positions
    else:
        assert not rig.run(rig.redeliver(old, positions[3])).gifts       # the first entry of the key is still pending
        answers, mine = rig.run(rig.acks(old, positions[1])), mine[1:]
    assert [position for position, *_ in rig.given(answers, new)] == mine


def test_a_key_that_comes_back_to_who_has_it_need_not_wait(moved):
    rig, _, old, new, positions = moved
    answers = rig.close_consumer(new)
    assert [position for position, *_ in rig.given(answers, old)] == [positions[4], positions[6]]


def hashes_told(rig):
    """Return from the statistics (counts of draining hashes, draining hashes). The counts are those of the
    subscription and of each consumer, the hashes those of each consumer.
    """
    [told] = rig.shown("stats", "persistent://public/default/a", earliest=False, publishers=False,
                       consumers=True)["subscriptions"].values()
    names = "drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages"
    draining = [one["drainingHashes"] for one in told["consumers"]]
    return [tuple(one[name] for name in names) for one in (told, *told["consumers"])], draining


def test_stats_tell_of_each_consumer_which_of_its_keys_others_wait_for(moved):
    """Statistics give for each draining key its pending messages and times blocked, and count keys that have drained.
    """
    rig, producer, old, _new, positions = moved
    counts, [mine, others] = hashes_told(rig)
    assert (counts, others) == ([(1, 0, 2), (1, 0, 2), (0, 0, 0)], [])
    assert mine == [{"hash": 27274, "unackMsgs": 2, "blockedAttempts": 2}]
    publish(rig, producer, "B")
    rig.run(rig.acks(old, positions[1]))
    _, [mine, _] = hashes_told(rig)
    assert mine[0]["unackMsgs"] == 1 and mine[0]["blockedAttempts"] > 2
    rig.run(rig.acks(old, positions[3]))
    assert hashes_told(rig) == ([(0, 1, 0), (0, 1, 0), (0, 0, 0)], [[], []])


def test_a_key_that_comes_back_counts_as_done_with(moved):
    rig, _, _old, new, _ = moved
    rig.close_consumer(new)
    assert hashes_told(rig) == ([(0, 1, 0), (0, 1, 0)], [[]])


def test_keys_that_are_done_with_count_though_nobody_asked_meanwhile(rigs):
    """A hash that moved and drained counts as cleared, though neither statistics nor new entries looked at it."""
    rig = rigs(**SPLIT)
    producer, old = rig.producer("a"), join(rig, "old")
    rig.run(rig.flow(old, MANY))
    positions = publish(rig, producer, "A", "B", "B").positions
    join(rig, "new")
    rig.run(rig.acks(old, positions[1]))
    rig.run(rig.redeliver(old, positions[2]))
    assert hashes_told(rig)[0] == [(0, 1, 0), (0, 1, 0), (0, 0, 0)]


@pytest.mark.parametrize("acknowledged", [slice(1, 2), slice(0, 2)], ids=["one", "all up to it"])
def test_keys_that_moved_and_were_acknowledged_at_once_count_as_done_with(rigs, acknowledged):
    """The acknowledgement is the first to look at the hash since it moved, and clears it."""
    rig = rigs(**SPLIT)
    old = join(rig, "old")
    rig.run(rig.flow(old, MANY))
    positions = publish(rig, rig.producer("a"), "A", "B").positions
    join(rig, "new")
    rig.run(rig.acks(old, *positions[acknowledged]))
    assert hashes_told(rig)[0] == [(0, 1, 0), (0, 1, 0), (0, 0, 0)]


def test_keys_that_moved_count_as_done_with_when_a_transaction_acknowledges_up_to_them(rigs):
    """The acknowledgement is the first to look at the hash since it moved, as above, but cumulative."""
    rig = rigs(**SPLIT)
    old = rig.consumer("t", subType=SubType.Key_Shared, consumer_name="old")
    rig.run(rig.flow(old, MANY))
    positions = publish(rig, rig.producer("t"), "A", "B").positions
    rig.consumer("t", subType=SubType.Key_Shared, consumer_name="new")
    transacting.open_for(rig, transacting.FIRST)
    [answer] = rig.run(transacting.ack(rig, old, transacting.FIRST, positions[1], cumulative=True)).commands(
        T.ACK_RESPONSE)
    assert not answer.ackResponse.HasField("error")
    consumers = rig.partition("t").subscriptions["sub", True].consumers
    assert [(one.name, one.hashes_cleared) for one in consumers] == [("old", 1), ("new", 0)]


# -- entries that are removed while a consumer works on them

def remove(rig, how, positions):
    """Remove all entries from the subscription, in one of the ways in which that happens."""
    if how == "skipped":
        rig.asked("skip", "a", subscription="sub", entries=len(positions))
    elif how == "cleared":
        rig.asked("clear", "a", subscription="sub")
    elif how == "expired":
        rig.now_ms += 60_000
        rig.asked("expire", "a", subscription="sub", seconds=1)
    else:
        rig.run(after_ms=60_000)
        rig.run(after_ms=2_000)
    assert not rig.partition("a").subscriptions["sub", True].cursor.backlog(rig.partition("a").ledgers)


REMOVALS = {"skipped": {}, "cleared": {}, "expired": {}, "too old": {"message_ttl_s": 3}, "evicted": {
    "backlog_quota_age_s": 3, "backlog_quota_policy": "consumer_backlog_eviction"}}


@pytest.fixture(params=REMOVALS)
def removed(request, rigs):
    """Return (rig, producer, old consumer, new consumer, positions): the old one works on entries, which are removed.

    The hash of B has moved to the new consumer.
    """
    rig = rigs(**SPLIT, **REMOVALS[request.param])
    producer, old = rig.producer("a"), join(rig, "old")
    rig.run(rig.flow(old, MANY))
    positions = publish(rig, producer, "A", "B", "A", "B").positions
    is_late = request.param in ("cleared", "too old")      # the hash moves afterwards
    new = None if is_late else join(rig, "new")
    remove(rig, request.param, positions)
    new = new or join(rig, "new")
    rig.run(rig.flow(new, MANY))
    return rig, producer, old, new, positions


@pytest.mark.parametrize("how", ["acknowledged", "given back", "all given back", "closed"])
def test_a_key_stays_at_a_consumer_that_works_on_what_was_removed(removed, how):
    rig, producer, old, new, positions = removed
    answers = publish(rig, producer, "A", "B")
    assert (got(rig, answers, old), got(rig, answers, new)) == (["A"], [])
    assert hashes_told(rig)[0] == [(1, 0, 2), (1, 0, 2), (0, 0, 0)]
    rig.partition("a").check()
    if how == "closed":
        answers = rig.close_consumer(old)
    elif how == "all given back":
        answers = rig.run(rig.redeliver(old))
    else:
        say = rig.acks if how == "acknowledged" else rig.redeliver
        assert not rig.run(say(old, positions[1])).gifts
        assert hashes_told(rig)[0][0] == (1, 0, 1)
        answers = rig.run(say(old, positions[3]))
    assert "B" in got(rig, answers, new)
    rig.partition("a").check()
    assert got(rig, publish(rig, producer, "B"), new) == ["B"]


def test_a_refused_acknowledgement_in_a_transaction_lets_the_key_go(rigs):
    """The message was skipped, so the transaction cannot acknowledge it; the consumer has finished with it."""
    rig = rigs(**SPLIT)
    producer, old = rig.producer("t"), rig.consumer("t", subType=SubType.Key_Shared, consumer_name="old")
    rig.run(rig.flow(old, MANY))
    [position] = publish(rig, producer, "B").positions
    rig.asked("skip", "t", subscription="sub", entries=1)
    new = rig.consumer("t", subType=SubType.Key_Shared, consumer_name="new")
    rig.run(rig.flow(new, MANY))
    transacting.open_for(rig, transacting.FIRST)
    assert got(rig, publish(rig, producer, "B"), new) == []
    answers = rig.run(transacting.ack(rig, old, transacting.FIRST, position))
    assert [one.ackResponse.error for one in answers.commands(T.ACK_RESPONSE)] == [api.TransactionConflict]
    assert got(rig, answers, new) == ["B"]


def test_what_is_removed_and_never_finished_is_bounded(rigs, monkeypatch):
    """The key of the entry that was removed longest ago moves, those of later ones wait."""
    monkeypatch.setattr("geminga.storage.dispatch.removed_entries.ENTRIES_MAX", 2)
    rig = rigs(**SPLIT)
    producer, old = rig.producer("a"), join(rig, "old")
    rig.run(rig.flow(old, MANY))
    publish(rig, producer, "B", "C", "D")
    rig.asked("clear", "a", subscription="sub")
    new = join(rig, "new")
    rig.run(rig.flow(new, MANY))
    assert got(rig, publish(rig, producer, "B", "C", "D"), new) == ["B"]
    rig.partition("a").check()


def test_a_key_stays_while_the_ledger_of_what_was_removed_is_deleted(rigs):
    rig = rigs(**SPLIT, roll_over_entries=2)
    producer, old = rig.producer("a"), join(rig, "old")
    rig.run(rig.flow(old, MANY))
    positions = publish(rig, producer, "B", "B").positions
    publish(rig, producer, "A")
    rig.asked("clear", "a", subscription="sub")
    for _ in range(3):
        rig.run(after_ms=1_000)
    assert rig.partition("a").find(positions[0][0]) is None
    new = join(rig, "new")
    rig.run(rig.flow(new, MANY))
    assert got(rig, publish(rig, producer, "B"), new) == []
    rig.run(rig.acks(old, positions[0]))
    assert got(rig, rig.run(rig.redeliver(old, positions[1])), new) == ["B"]


def test_who_may_get_keys_out_of_order_does_not_wait(rigs):
    rig = rigs(**SPLIT)
    producer, old = rig.producer("a"), join(rig, "old", **policy(is_loose=True))
    rig.run(rig.flow(old, MANY))
    publish(rig, producer, "B")
    new = join(rig, "new", **policy(is_loose=True))
    rig.run(rig.flow(new, MANY))
    assert got(rig, publish(rig, producer, "B"), new) == ["B"]


def test_within_a_key_what_comes_back_comes_before_what_has_been_waiting(rig):
    """Redelivered entries of a key come before withheld ones, also at a consumer that takes one at a time."""
    producer, consumer = rig.producer("a"), join(rig)
    positions = publish(rig, producer, *"kkkjjj").positions
    assert len(rig.receive(consumer, 4)) == 4
    rig.run(rig.redeliver(consumer, positions[1], positions[0]))
    found = [rig.receive(consumer, 1)[0][0] for _ in range(4)]
    assert found == [positions[0], positions[1], positions[4], positions[5]]


@pytest.mark.slow
def test_much_that_came_back_is_given_before_anything_new(rigs):
    """Any number of redelivered entries comes before new ones, and a consumer that stalls delays only its own keys."""
    rig = rigs(max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0, **SPLIT)
    producer, first = rig.producer("a"), join(rig, "first")
    for _ in range(5):
        rig.run(rig.sends(*[(producer, b"", {"partition_key": "A"})] * 5_000))
    assert len(got(rig, rig.run(rig.flow(first, 25_000)), first)) == 25_000
    stalled = join(rig, "stalled")
    rig.run(rig.redeliver(first))
    publish(rig, producer, "A", "B")
    rig.run(rig.flow(stalled, 1))
    answers = rig.run(rig.flow(first, 50_000))
    found = [position for position, *_ in rig.given(answers, first)]
    assert len(found) == 25_001 and found == sorted(found)


def test_who_stalls_holds_up_only_its_own_keys(rigs):
    """Up to some thousands of withheld entries, a consumer that stalls delays no key of another."""
    rig = rigs(**SPLIT)
    producer, fast, _ = rig.producer("a"), join(rig, "fast"), join(rig, "stalled")
    rig.run(rig.flow(fast, 10 * MANY))
    answers = rig.run(rig.sends(*[(producer, b"", {"partition_key": key}) for _ in range(1_500) for key in "AB"]))
    assert len(got(rig, answers, fast)) == 1_500
    assert len(got(rig, publish(rig, producer, "A"), fast)) == 1


# -- many consumers, several ledgers

def test_many_consumers_get_their_keys_in_order(rig):
    consumers = [join(rig, f"c{number}") for number in range(20)]
    rig.run(*[rig.flow(consumer, MANY) for consumer in consumers])
    answers = publish(rig, rig.producer("a"), *[f"k{number % 40}" for number in range(400)])
    delivered = [[position for position, _ in rig.delivered(answers, consumer)] for consumer in consumers]
    assert sum(map(len, delivered)) == 400 and all(found == sorted(found) for found in delivered)


def test_a_key_is_handed_over_when_all_of_it_is_acknowledged_over_two_ledgers(rigs):
    rig = rigs(**SPLIT, roll_over_entries=2)
    producer, old = rig.producer("a"), join(rig, "old")
    rig.run(rig.flow(old, MANY))
    positions = [publish(rig, producer, "B").positions[0] for _ in range(4)]
    assert len({ledger_id for ledger_id, _ in positions}) == 2
    new = join(rig, "new")
    rig.run(rig.flow(new, MANY))
    assert got(rig, publish(rig, producer, "B"), new) == []
    for position in positions[:3]:
        assert not rig.run(rig.acks(old, position)).gifts
    assert got(rig, rig.run(rig.acks(old, positions[3])), new) == ["B"]


def test_those_who_share_a_point_of_a_ring_take_turns(monkeypatch):
    """Consumers with a common point on the ring get it by turns, by the number of the point."""
    monkeypatch.setattr(Consistent, "_points_of", staticmethod(lambda _: [100, 201, 302]))
    ranges = Consistent()
    for slot in (1, 2):
        ranges.add(Slotted(slot))
    assert ranges.slots(np.array([100, 201, 302])).tolist() == [1, 2, 1]
