"""Replicated subscriptions: who moves to another cluster loses nothing, and sees little again; idle topics are silent,
and nothing that another cluster claims does harm.
"""
import random
from collections import Counter

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.snapshots import TRIES_MAX, Snapshots
from geminga.storage.enforcement import replicated_subscriptions
from geminga.storage.enforcement.replicated_subscriptions import ANSWERS_MAX
from geminga.storage.errors import StorageFull
from geminga.storage.jobs import confirmed, reading
from geminga.storage.owner.owner_pass import TICK_MS

from .replicated_sites import KINDS, TOPIC, Sites, arrival, marker, replicator

REQUEST, RESPONSE, UPDATE = names.SENT_MARKERS


@pytest.fixture
def two(rigs):
    return Sites(rigs, "west", "east")


def numbered(count, first=0):
    return [b"%d" % number for number in range(first, first + count)]


# -- moving

def test_a_subscription_is_at_the_same_message_in_both_clusters(two):
    west, east = two.west, two.east
    consumer = west.subscribe()
    west.publish(*numbered(2))
    east.publish(b"2")
    two.carry()
    assert sorted(west.consume(consumer)) == numbered(3)
    two.settle()
    assert east.left() == [] and east.subscription().is_replicated
    two.check()


def test_messages_behind_the_last_snapshot_come_again_and_no_others(two):
    west, east = two.west, two.east
    consumer = west.subscribe()
    west.publish(*numbered(5))
    two.settle()
    west.consume(consumer)
    two.settle(1)
    west.publish(*numbered(5, 5))
    two.carry()
    west.consume(consumer)      # no second has passed: east is not told
    assert east.left() == numbered(5, 5)


def test_an_unacknowledged_message_comes_again_with_all_behind_it(two):
    west, east = two.west, two.east
    consumer = west.subscribe(subType=1)
    two.settle()
    positions = west.publish(*numbered(3))
    two.settle(1)
    later = west.publish(*numbered(3, 3))
    two.settle(1)
    west.run(west.rig.flow(consumer, 10), west.rig.acks(consumer, *positions, *later[1:]))
    two.settle()
    assert east.left() == numbered(3, 3)
    west.run(west.rig.acks(consumer, later[0]))
    two.settle()
    assert east.left() == []


def test_a_consumer_goes_to_the_other_cluster_and_back(two):
    west, east = two.west, two.east
    at, seen = west, []
    west.rig.close_consumer(west.subscribe())
    for turn in range(6):
        for site in two.all:
            site.publish(b"%s %d" % (site.name.encode(), turn))
        two.settle()
        consumer = at.subscribe()
        seen += at.consume(consumer)
        two.settle()
        at.rig.close_consumer(consumer)
        at = east if at is west else west
    assert Counter(seen) == Counter(b"%s %d" % (site.name.encode(), turn) for site in two.all for turn in range(6))


def test_an_update_goes_out_with_the_acknowledgement_that_passes_a_snapshot(two):
    west = two.west
    consumer = west.subscribe()
    west.publish(b"1")
    two.settle(2)
    assert UPDATE not in west.own()
    west.consume(consumer)
    assert west.own().count(UPDATE) == 1


def test_a_subscription_that_begins_to_be_replicated_on_an_idle_topic_is_told(two):
    west, east = two.west, two.east
    consumer = west.subscribe(is_replicated=False)
    west.publish(*numbered(3))
    two.settle()
    west.consume(consumer)
    assert two.settle(2) == [0, 0]
    west.rig.asked("replicated", TOPIC, subscription="s", replicated=True)
    two.settle()
    assert east.left() == []


def test_a_subscription_moves_forward_only(two):
    west, east = two.west, two.east
    theirs = east.subscribe()
    consumer = west.subscribe()
    west.publish(*numbered(4))
    two.settle()
    east.consume(theirs)
    west.consume(consumer, 2)
    two.settle()
    assert east.left() == west.left() == []


def consume_in_turns(two, turns):
    """Publish a message in the west and consume it there, so many times, with time for a snapshot between."""
    consumer = two.west.subscribe()
    for turn in range(turns):
        two.west.publish(b"%d" % turn)
        two.settle(2)
        two.west.consume(consumer)
    two.settle()


def test_what_an_update_has_moved_is_not_told_back(two):
    west, east = two.west, two.east
    consume_in_turns(two, 5)
    assert east.left() == [] and west.own().count(UPDATE) >= 5
    assert UPDATE not in east.own()


def test_a_subscription_far_behind_is_told_of_before_it_has_caught_up(two):
    west, east = two.west, two.east
    consumer = west.subscribe()
    for turn in range(100):
        west.publish(b"%d" % turn)
        two.settle(1)
    west.consume(consumer, 50)
    two.settle()
    assert 50 <= len(east.left()) < 80
    assert len(west.rig.owner.replicated._snapshots[west.partition].kept) <= 10


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_message_of_a_third_cluster_that_has_yet_to_come_is_not_acknowledged(rigs, rounds):
    """North publishes behind its answers, and east has these messages before its own: west asks twice, for the first
    ones, and east's first positions count, for the second ones.
    """
    sites = Sites(rigs, "west", "east", "north")
    west, east, north = sites.all
    consumer = west.subscribe()
    west.publish(b"w")
    west.run(after_ms=TICK_MS)
    for payload in (b"n1", b"n2")[:rounds]:
        west.lanes["north"].carry()      # it answers
        north.publish(payload)
        north.lanes["east"].carry()
        west.lanes["east"].carry()       # it answers, and has the payload
        east.lanes["west"].carry()
        north.lanes["west"].carry(len(north.lanes["west"].waiting) - 1)      # all but the payload
    west.consume(consumer)
    west.lanes["east"].carry()
    assert payload in [each for _, each in east.rig.everything(TOPIC)]
    assert east.left() == [payload] if rounds == 2 else ("s", True) not in east.partition.subscriptions
    sites.settle(5)
    west.consume(consumer)
    sites.settle(3)
    assert east.left() == north.left() == []


class Life:
    """Two clusters, consumers in both, and everything in an order of chance."""

    def __init__(self, rigs, seed):
        self.dice, self.sites, self.consumed, self.number = random.Random(seed), Sites(rigs, "west", "east"), set(), 0
        self.consumers = {site: site.subscribe() for site in self.sites.all}

    def step(self):
        dice, site = self.dice, self.dice.choice(self.sites.all)
        what = dice.choice(("publish", "consume", "consume", "attach", "carry", "carry", "carry", "tick", "tick",
                            "roll", "kill"))
        if what == "publish":
            count = dice.randint(1, 3)
            site.publish(*numbered(count, self.number))
            self.number += count
        elif what == "consume":
            taken = site.take(self.consumers[site], dice.randint(1, 5))
            if dice.random() < 0.3:      # leave some, which come again for the next consumer
                taken = dice.sample(taken, len(taken) // 2)
            if taken:
                site.run(site.rig.acks(self.consumers[site], *(position for position, _ in taken)))
                self.consumed |= {payload for _, payload in taken}
        elif what == "attach":
            site.rig.close_consumer(self.consumers[site])
            self.consumers[site] = site.subscribe()
        elif what == "carry":
            site.lanes[self.dice.choice(site.others)].carry(dice.randint(1, 10))
        elif what == "tick":
            site.run(after_ms=TICK_MS)
        elif what == "roll":
            site.rig.owner.topics.roll(site.partition)
        elif dice.random() < 0.2:
            self.sites.kill(site)
            self.consumers[site] = site.subscribe()

    def check(self):
        for site in self.sites.all:
            site.partition.check()
            stored = {payload for _, payload in site.rig.everything(TOPIC)}
            lost = stored - set(site.left()) - self.consumed
            assert not lost, (site.name, lost)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_only_what_a_consumer_had_somewhere_is_acknowledged_anywhere(rigs, seed):
    life = Life(rigs, seed)
    for _ in range(150):
        life.step()
    life.check()
    life.sites.settle(6)
    life.check()
    here, there = life.sites.all
    here.rig.close_consumer(life.consumers[here])
    life.consumed |= set(here.consume(here.subscribe()))
    life.sites.settle(6)
    life.check()
    assert here.left() == there.left() == []


# -- silence

def test_an_idle_topic_becomes_silent(two):
    consumer = two.west.subscribe()
    two.east.subscribe("other")
    two.west.publish(*numbered(3))
    two.east.publish(b"x")
    two.settle()
    two.west.consume(consumer)
    assert two.settle(12)[-8:] == [0] * 8


@pytest.mark.parametrize("names_given", [("s",), ()])
def test_an_idle_topic_with_a_backlog_becomes_silent(two, names_given):
    for name in names_given:
        two.west.subscribe(name)
        two.east.subscribe(name)
    two.west.publish(*numbered(3))
    assert two.settle(12)[-8:] == [0] * 8


def test_no_snapshot_is_asked_for_without_a_replicated_subscription(two):
    two.west.subscribe(is_replicated=False)
    two.west.publish(b"1")
    two.settle()
    assert two.west.markers() == []


def test_markers_leave_no_backlog(two):
    west, east = two.west, two.east
    consume_in_turns(two, 5)
    for site in two.all:
        assert site.partition.next_message == 5
        assert {one.name: one.cursor.backlog(site.partition.ledgers)
                for one in site.partition.subscriptions.values() if one.is_durable} == {
                    "s": 0, names.replication_cursor(site.others[0]): 0}
        assert site.subscription().cursor.mark_delete == site.partition.last_confirmed
    assert len(west.markers()) > 10 and len(east.markers()) > 10


def test_no_reader_and_no_job_gets_a_marker_of_our_own(two):
    west = two.west
    consumer = west.subscribe()
    west.publish(*numbered(3))
    two.settle()
    assert west.consume(consumer) == numbered(3)
    two.settle()
    assert [payload for _, payload in west.rig.everything(TOPIC)] == numbered(3)
    found = [payload for stretch in confirmed.stretches(west.rig.data_dir, west.partition.partition_id)
             for batch in reading.batches(west.rig.data_dir, stretch, ("payload",), pytest.fail)
             for payload in batch["payload"].to_pylist()]
    assert found == numbered(3)


def test_a_cluster_that_never_answers_is_asked_a_few_times(rigs):
    sites = Sites(rigs, "west", "east", replicated_subscriptions=True)
    west, east = sites.all
    east.rig.owner.replicated._snapshots.clear()      # as if it did not know replicated subscriptions
    west.subscribe()
    west.publish(b"1")
    sites.settle(300)
    assert west.own() == [REQUEST] * TRIES_MAX
    assert west.rig.counters.read()["snapshots_timed_out"] == TRIES_MAX
    assert west.rig.counters.read()["snapshots_pending"] == 0
    west.publish(b"2")
    sites.settle(2)
    assert west.own() == [REQUEST] * (TRIES_MAX + 1)


def test_nobody_is_asked_while_one_of_the_clusters_cannot_be_reached(rigs):
    sites = Sites(rigs, "west", "east", "north")
    west = sites.west
    west.subscribe()
    west.rig.close_consumer(west.lanes["north"].consumer)
    west.publish(b"1")
    sites.settle(3)
    assert west.own() == []


def test_a_lane_that_is_made_anew_has_a_lost_request_repeated_at_once(two):
    west, east = two.west, two.east
    consumer = west.subscribe()
    west.publish(b"1")
    west.run(after_ms=TICK_MS)
    west.lanes["east"].carry()
    east.lanes["west"].waiting.clear()      # the answer never comes
    two.kill(east)
    two.settle()
    west.consume(consumer)
    two.settle()
    assert west.rig.counters.read()["snapshots_timed_out"] == 0
    assert east.left() == []


def test_a_killed_owner_tells_again(two):
    west, east = two.west, two.east
    consumer = west.subscribe()
    west.publish(*numbered(3))
    two.settle()
    west.consume(consumer)
    assert west.own().count(UPDATE) == 1
    west.lanes["east"].waiting.clear()      # it is lost with the owner
    two.kill(west)
    two.settle()
    assert east.left() == []


def test_snapshots_are_counted_and_timed(two):
    two.west.subscribe()
    two.west.publish(b"1")
    two.west.run(after_ms=TICK_MS)
    two.west.run(after_ms=TICK_MS)
    assert two.west.rig.counters.read()["snapshots_pending"] == 1
    two.settle()
    assert two.west.rig.counters.read()["snapshots_pending"] == 0
    assert sum(two.west.rig.counters.histogram("snapshot")[0]) == 1


def test_a_full_disk_drops_markers_and_nothing_else(two, monkeypatch):
    west, east = two.west, two.east
    consumer = west.subscribe()
    west.publish(*numbered(3))

    def no_room(demand):
        raise StorageFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(west.rig.owner.publishing, "_make_room", no_room)
        west.run(after_ms=TICK_MS)
    west.consume(consumer)
    two.settle(40)
    assert east.left() == []


def test_a_terminated_topic_gets_no_markers(two):
    west = two.west
    west.subscribe()
    west.publish(b"1")
    two.settle()
    west.publish(b"2")
    west.rig.asked("terminate", TOPIC)
    count = len(west.markers())
    two.settle(40)
    assert len(west.markers()) == count and west.rig.counters.read()["snapshots_timed_out"] == 0


def test_nothing_is_asked_answered_or_moved_where_it_is_switched_off(rigs):
    sites = Sites(rigs, "west", "east", replicated_subscriptions=False)
    sites.west.subscribe()
    sites.west.publish(b"1")
    sites.settle()
    assert sites.west.markers() == []
    sites.west.run(arrival(replicator(sites.west.rig, "east"), request("east")))
    sites.settle(1)
    assert sites.west.own() == []


# -- what another cluster claims

def request(source, snapshot_id="id", number=1):
    return marker(REQUEST, api.ReplicatedSubscriptionsSnapshotRequest(
        snapshot_id=snapshot_id, source_cluster=source), source, (9, number))


def place(cluster, position):
    return api.ClusterMessageId(cluster=cluster, message_id=api.MarkersMessageIdData(
        ledger_id=position[0], entry_id=position[1]))


def update(source, name, *places, number=1):
    return marker(UPDATE, api.ReplicatedSubscriptionsUpdate(subscription_name=name, clusters=places), source,
                  (9, number))


@pytest.fixture
def west(two):
    """A site with a message that a subscription has not acknowledged."""
    two.west.subscribe()
    two.west.publish(b"1", b"2")
    return two.west


def claims(site, *entries, source="east"):
    """Have a replicator of a cluster send entries."""
    producer = replicator(site.rig, source)
    return [site.run(arrival(producer, entry)) for entry in entries]


def test_a_request_is_answered_to_the_asking_cluster_alone(west):
    claims(west, request("east", "x"))
    [(metadata, payload)] = [one for one in west.markers() if not one[0].replicated_from]
    assert metadata.replicate_to == ["east"] and metadata.marker_type == RESPONSE
    response = KINDS[RESPONSE].FromString(payload)
    assert response.snapshot_id == "x" and response.cluster.cluster == "west"
    ledger_id, entry_id = west.partition.last_confirmed
    assert (response.cluster.message_id.ledger_id, response.cluster.message_id.entry_id) == (ledger_id, entry_id - 1)


def test_a_request_in_a_large_pass_is_answered(west):
    producer = replicator(west.rig, "east")
    west.run(*(west.rig.sends((west.producer, b"x")) for _ in range(40)), arrival(producer, request("east")))
    assert west.own() == [RESPONSE]


def test_a_flood_of_requests_is_answered_a_few_times_a_second(west):
    claims(west, *(request("east", number=number) for number in range(1, 200)))
    assert west.own() == [RESPONSE] * ANSWERS_MAX
    west.run(after_ms=TICK_MS)
    claims(west, request("east", number=999))
    assert west.own().count(RESPONSE) == ANSWERS_MAX + 1


@pytest.mark.parametrize("entry", [
    pytest.param(request("north"), id="of another cluster than the replicator's"),
    pytest.param(marker(REQUEST, api.ReplicatedSubscriptionsSnapshotRequest(snapshot_id="x", source_cluster="north"),
                        "east", (9, 1)), id="in the name of another cluster"),
    pytest.param(request("east", "x" * 300), id="with a long id"),
    pytest.param(marker(REQUEST, b"\xff\xff", "east", (9, 1)), id="that is no protobuf"),
    pytest.param(marker(REQUEST, b"", "east", (9, 1)), id="without its fields"),
    pytest.param(marker(REQUEST, api.ReplicatedSubscriptionsSnapshotRequest(
        snapshot_id="x", source_cluster="east").SerializeToString() + b"\x7a\xa0\x9c\x01" + bytes(20_000), "east",
        (9, 1)), id="too large"),
    pytest.param(marker(12, b"", "east", (9, 1)), id="of a kind that stays in its cluster"),
])
def test_a_request_that_nobody_should_make_has_no_answer(west, entry):
    claims(west, entry)
    assert west.own() == [] and west.left() == [b"1", b"2"]


def test_a_marker_of_an_ordinary_producer_does_nothing(west):
    last = west.partition.last_confirmed
    west.run(arrival(west.producer, update("east", "s", place("west", last))))
    west.run(arrival(west.producer, request("east", number=2)))
    assert west.own() == [] and west.left() == [b"1", b"2"]


@pytest.mark.parametrize("name", ["s", "new"])
@pytest.mark.parametrize("position", [(1 << 40, 0), (0, 1 << 63), (2**64 - 1, 2**64 - 1)])
def test_a_position_that_does_not_exist_moves_and_makes_nothing(west, name, position):
    ledger_id = west.partition.last_confirmed[0]
    position = (position[0] or ledger_id, position[1])
    claims(west, update("east", name, place("west", position)))
    assert west.left() == [b"1", b"2"] and ("new", True) not in west.partition.subscriptions


@pytest.mark.parametrize("name", ["s", "new"])
def test_an_entry_that_a_sealed_ledger_does_not_have_moves_nothing(west, name):
    ledger_id, _ = west.partition.last_confirmed
    west.rig.owner.topics.roll(west.partition)
    west.publish(b"3")
    claims(west, update("east", name, place("west", (ledger_id, 2**64 - 1))))
    assert west.left(name) == [b"1", b"2", b"3"]


def test_an_update_about_other_clusters_moves_nothing(west):
    claims(west, update("east", "s", place("east", west.partition.last_confirmed)))
    assert west.left() == [b"1", b"2"]


@pytest.mark.parametrize("name", ["pulsar.repl.east", "pulsar.dedup", "", "x" * 5_000])
def test_an_update_cannot_name_what_is_no_subscription(west, name):
    waiting = west.subscription("pulsar.repl.east").cursor.mark_delete
    claims(west, update("east", name, place("west", west.partition.last_confirmed)))
    assert west.subscription("pulsar.repl.east").cursor.mark_delete == waiting
    assert set(west.partition.subscriptions) == {("s", True), ("pulsar.repl.east", True)}


def test_updates_make_no_more_than_some_subscriptions(west, monkeypatch):
    monkeypatch.setattr(replicated_subscriptions, "_MADE_MAX", 5)
    here = place("west", west.partition.last_confirmed)
    claims(west, *(update("east", f"s{number}", here, number=number) for number in range(1, 20)))
    assert len(west.partition.subscriptions) == 5


def test_an_update_makes_a_missing_subscription_at_its_place(west):
    ledger_id, entry_id = west.partition.last_confirmed
    claims(west, update("east", "new", place("west", (ledger_id, entry_id - 1))))
    assert west.left("new") == [b"2"] and west.subscription("new").is_replicated


def test_a_position_of_deleted_messages_makes_a_subscription_at_the_first_one(west):
    claims(west, update("east", "new", place("west", (0, 5))))
    assert west.left("new") == [b"1", b"2"]


def test_an_answer_that_nobody_asked_for_makes_no_snapshot(two):
    west = two.west
    west.subscribe()
    west.publish(b"1")
    west.run(after_ms=TICK_MS)
    [(_, payload)] = west.markers()
    snapshot_id = KINDS[REQUEST].FromString(payload).snapshot_id
    for number, (known, cluster) in enumerate([("other", "east"), (snapshot_id, "north"), (snapshot_id, "west")], 1):
        response = api.ReplicatedSubscriptionsSnapshotResponse(snapshot_id=known, cluster=place(cluster, (1, 1)))
        claims(west, marker(RESPONSE, response, "east", (9, number)))
    assert west.rig.owner.replicated._snapshots[west.partition].kept == []


def test_a_marker_of_another_cluster_than_its_replicators_is_ignored(west):
    last = west.partition.last_confirmed
    claims(west, update("north", "s", place("west", last)))
    assert west.left() == [b"1", b"2"]


def test_a_cluster_to_which_the_topic_does_not_go_moves_nothing_and_has_no_answer(west):
    last = west.partition.last_confirmed
    claims(west, update("north", "s", place("west", last)), request("north", number=2), source="north")
    assert west.left() == [b"1", b"2"] and west.own() == []


# -- snapshots

def taken(snapshots, local, now_ms, at_most):
    snapshots.begin({"east"}, local, (), now_ms)
    snapshots.answer(snapshots.pending.snapshot_id, "east", (5, local))
    snapshots.complete((1, local), now_ms, at_most)


@pytest.mark.parametrize("at_most", [1, 2, 3, 10])
def test_kept_snapshots_are_few_and_spread_over_the_backlog(at_most):
    snapshots = Snapshots()
    for number in range(1_000):
        taken(snapshots, number, number, at_most)
    assert len(snapshots.kept) == at_most and snapshots.kept[-1].local == (1, 999)
    if at_most > 2:
        gaps = [after.taken_ms - before.taken_ms
                for before, after in zip(snapshots.kept, snapshots.kept[1:], strict=False)]
        assert snapshots.kept[0].local == (1, 0) and max(gaps) <= 3 * 1_000 / (at_most - 1)


def test_the_newest_snapshot_up_to_a_position_is_passed():
    snapshots = Snapshots()
    for number in (3, 7, 9):
        taken(snapshots, number, number, 10)
    assert snapshots.passed((1, 2)) is None
    assert [snapshots.passed((1, at)).local[1] for at in (3, 6, 7, 100)] == [3, 3, 7, 9]
    snapshots.forget_before((1, 8))
    assert [one.local[1] for one in snapshots.kept] == [7, 9]
