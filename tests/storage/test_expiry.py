"""Time to live: messages expire exactly on time, delayed ones after their delivery time, and each is counted."""
import random

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.job_properties import TTL_PROPERTY
from geminga.storage.cursors.cursor import ACKNOWLEDGED, EXPIRED
from geminga.storage.topics.subscription import SubType

from .rig import START_MS

TTL_S = 60
TTL_MS = TTL_S * 1000


def backlog(rig, topic="t", subscription="sub", durable=True):
    found = rig.partition(topic)
    return found.subscriptions[subscription, durable].cursor.backlog(found.ledgers)


def totals(rig, topic="t", subscription="sub"):
    return rig.partition(topic).subscriptions[subscription, True].cursor.totals


def later(rig, ms):
    """Let time pass, with the passes that an idle owner makes."""
    end = rig.now_ms + ms
    while rig.now_ms < end:
        rig.run(after_ms=min(end, max(rig.now_ms + 1, rig.owner.passes.due_ms())) - rig.now_ms)


@pytest.mark.parametrize("kind", SubType.values(), ids=SubType.keys())
def test_a_message_expires_within_a_second_of_its_time(rigs, kind):
    rig = rigs(message_ttl_s=TTL_S)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=kind)
    rig.publish(producer, b"a", b"b")
    later(rig, 1_500)
    rig.publish(producer, b"c")
    later(rig, TTL_MS - 1_501)
    assert backlog(rig) == 3
    later(rig, 1_001)
    assert backlog(rig) == 1
    later(rig, 1_500)
    assert backlog(rig) == 0
    assert totals(rig)[EXPIRED] == 3
    assert rig.counters.read()["entries_expired"] == 3
    assert rig.receive(consumer) == []


@pytest.mark.parametrize(("ages_ms", "expire_ms"), [
    ((TTL_MS - 10_000,), 10_000), ((-10**9, 0), TTL_MS), ((0, TTL_MS), TTL_MS)],
    ids=["held back by its producer", "published by a clock that is ahead", "an old one behind a younger one"])
def test_ages_count_from_when_messages_were_published_and_in_their_order(rigs, ages_ms, expire_ms):
    """ages_ms: of messages as they come, by the clock of their producer.  None is kept longer by a clock ahead."""
    rig = rigs(message_ttl_s=TTL_S)
    rig.consumer("t")
    rig.run(rig.sends(*[(rig.producer("t"), b"x", {"publish_time": START_MS - age_ms}) for age_ms in ages_ms]))
    later(rig, expire_ms - 1)
    assert backlog(rig) == len(ages_ms)
    later(rig, 1_001)
    assert backlog(rig) == 0


def test_without_a_ttl_nothing_expires(rig):
    rig.consumer("t")
    rig.publish(rig.producer("t"), b"a")
    later(rig, 10 * TTL_MS)
    assert backlog(rig) == 1


def test_a_delayed_message_expires_after_its_own_time(rigs):
    """Entries behind a delayed one expire nevertheless, and the delayed one is delivered first."""
    rig = rigs(message_ttl_s=TTL_S)
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    delay_ms = 6 * 3600 * 1000
    rig.run(rig.sends((producer, b"late", {"deliver_at_time": START_MS + delay_ms}), (producer, b"now")))
    later(rig, TTL_MS + 1_000)
    assert backlog(rig) == 1
    rig.run(rig.flow(consumer, 10))
    rig.now_ms = START_MS + delay_ms - 1
    rig.run()
    assert [payload for _, payload in rig.delivered(rig.run(after_ms=1), consumer)] == [b"late"]
    later(rig, TTL_MS - 1)
    assert backlog(rig) == 1
    later(rig, 1_001)
    assert backlog(rig) == 0


def test_every_subscription_loses_what_it_has_not_acknowledged(rigs):
    """Messages expire without consumers too; acknowledged ones do not count as expired."""
    rig = rigs(message_ttl_s=TTL_S)
    producer = rig.producer("t")
    one, two = rig.consumer("t", "one"), rig.consumer("t", "two")
    positions = rig.publish(producer, b"a", b"b", b"c")
    rig.run(rig.acks(one, positions[1]))
    rig.close_consumer(two)
    later(rig, TTL_MS + 1_000)
    assert [totals(rig, subscription=name) for name in ("one", "two")] == [[1, 2, 0, 0], [0, 3, 0, 0]]
    assert rig.counters.read()["entries_expired"] == 2 + 3


@pytest.mark.parametrize("policy", [{"message_ttl_s": TTL_S}, {"own_message_ttl": True}], ids=["topic's", "own"])
def test_readers_get_what_has_expired_as_long_as_the_topic_has_it(rigs, policy):
    """A reader that is behind is not moved, and one that comes later finds the same messages (apache/pulsar#26504)."""
    rig = rigs(**policy, retention_s=-1, retention_bytes=-1)
    producer, slow = rig.producer("t"), rig.consumer("t", "slow", durable=False)
    rig.consumer("t", "durable")
    own_ttl = {"properties": [api.KeyValue(key=TTL_PROPERTY, value=f"{TTL_S}s")]}
    rig.run(rig.sends(*[(producer, b"%d" % n, own_ttl) for n in range(3)]))
    later(rig, TTL_MS + 1_100)
    assert backlog(rig, subscription="durable") == 0
    new = rig.consumer("t", "new", durable=False, initialPosition=1)
    assert len(rig.receive(slow)) == len(rig.receive(new)) == 3


def test_messages_of_batches_are_counted_as_far_as_they_were_not_acknowledged(rigs):
    rig = rigs(message_ttl_s=TTL_S)
    producer, consumer = rig.producer("t"), rig.consumer("t")
    [position] = rig.run(rig.sends((producer, b"batch", {"batch": 5}))).positions
    rig.run(rig.ack_part(consumer, position, 0b11000))
    later(rig, TTL_MS + 1_000)
    assert (totals(rig)[ACKNOWLEDGED], totals(rig)[EXPIRED]) == (3, 2)


def test_what_expired_stays_so_over_a_crash_and_what_would_have_meanwhile_does_at_once(rigs):
    rig = rigs(message_ttl_s=TTL_S)
    producer = rig.producer("t")
    rig.consumer("t")
    rig.publish(producer, b"a")
    later(rig, TTL_MS)
    rig.publish(producer, b"b")
    assert totals(rig)[EXPIRED] == 1
    rig.run(after_ms=20)
    after = rigs.crash(rig)
    after.now_ms += TTL_MS
    after.consumer("t")
    later(after, 1_000)
    assert (backlog(after), totals(after)[EXPIRED]) == (0, 2)


def test_a_subscription_that_begins_anew_finds_what_has_not_expired(rigs):
    """A seek back to retained entries does not bring expired ones back."""
    rig = rigs(message_ttl_s=TTL_S, retention_s=-1, retention_bytes=-1)
    producer = rig.producer("t")
    rig.consumer("t", "keeper")
    rig.publish(producer, b"old")
    later(rig, TTL_MS)
    rig.publish(producer, b"new")
    consumer = rig.consumer("t", "late", initialPosition=1)
    later(rig, 1_000)
    assert [payload for _, payload in rig.receive(consumer)] == [b"new"]
    rig.run(rig.command("seek", consumer_id=consumer.object_id, request_id=5, message_publish_time=0))
    later(rig, 1_000)
    assert [payload for _, payload in rig.receive(rig.consumer("t", "late"))] == [b"new"]


def test_a_ttl_that_is_set_binds_what_is_there_already(rig):
    rig.consumer("t")
    rig.publish(rig.producer("t"), b"a")
    later(rig, TTL_MS)
    rig.owner.catalogue.policies.set("public/default", "messageTTL", TTL_S)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="public/default"))
    later(rig, 1_000)
    assert backlog(rig) == 0
    rig.owner.catalogue.policies.set("persistent://public/default/t", "messageTTL", 0)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="persistent://public/default/t"))
    rig.publish(rig.producer("t"), b"b")
    later(rig, 2 * TTL_MS)
    assert backlog(rig) == 1


def test_space_of_what_expired_is_given_back(rigs):
    rig = rigs(message_ttl_s=TTL_S, roll_over_entries=2)
    rig.consumer("t")
    producer = rig.producer("t")
    for _ in range(6):
        rig.publish(producer, b"x")
    assert len(rig.files("t")) == 3
    later(rig, TTL_MS + 1_000)
    assert len(rig.files("t")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_at_every_moment_exactly_what_is_due_has_expired(rigs, seed):
    """Exactly the due entries have expired at every moment, compared with a list of all entries, over delays,
    acknowledgements, roll-overs and restarts.
    """
    random_ = random.Random(seed)
    rig = rigs(message_ttl_s=TTL_S, roll_over_entries=random_.choice((3, 10, 1000)))
    producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
    skew_ms = random_.choice((0, 20_000, -TTL_MS))      # of the producer's clock
    kept = {}            # position -> when it expires
    for _ in range(120):
        what = random_.random()
        if what < 0.5:
            delay_ms = random_.choice((0, 0, 0, random_.randrange(3 * TTL_MS)))
            fields = {"publish_time": rig.now_ms + skew_ms}
            if delay_ms:
                fields["deliver_at_time"] = rig.now_ms + delay_ms
            [position] = rig.run(rig.sends((producer, b"x", fields))).positions
            kept[position] = rig.now_ms + max(delay_ms if delay_ms else min(skew_ms, 0), min(skew_ms, 0)) + TTL_MS
        elif what < 0.6 and kept:
            position = random_.choice(list(kept))
            rig.run(rig.acks(consumer, position))
            del kept[position]
        elif what < 0.63:
            rig = rigs.restart(rig)
            producer, consumer = rig.producer("t"), rig.consumer("t", subType=SubType.Shared)
        else:
            rig.run(after_ms=random_.randrange(20_000))
        while rig.owner.schedules.is_busy:      # what waits for its delivery is known in passes of 2 ms
            rig.run()
        rig.run(after_ms=max(0, rig.owner.passes.next_tick_ms - rig.now_ms))
        kept = {position: due_ms for position, due_ms in kept.items() if due_ms > rig.now_ms}
        found = rig.partition("t")
        cursor = found.subscriptions["sub", True].cursor
        assert {(ledger.ledger_id, entry) for ledger in found.ledgers
                for first, end in cursor.unacknowledged(ledger, 0, ledger.entries)
                for entry in range(first, end)} == kept.keys()


def test_the_slowest_subscription_counts_over_all_its_ledgers(rigs):
    """One subscription has acknowledged the first ledger, the other nothing: only the old entries of the latter expire.
    """
    rig = rigs(message_ttl_s=TTL_S, roll_over_entries=2)
    producer, fast = rig.producer("t"), rig.consumer("t", "fast")
    rig.consumer("t", "slow")
    positions = [*rig.publish(producer, b"a", b"b"), *rig.publish(producer, b"c")]
    rig.run(rig.acks(fast, positions[1], cumulative=True))
    later(rig, TTL_MS // 2)
    rig.publish(producer, b"d")
    assert (backlog(rig, subscription="fast"), backlog(rig, subscription="slow")) == (2, 4)
    later(rig, TTL_MS // 2 + 1_000)
    assert (backlog(rig, subscription="fast"), backlog(rig, subscription="slow")) == (1, 1)
    assert totals(rig, subscription="fast")[EXPIRED] == 1 and totals(rig, subscription="slow")[EXPIRED] == 3
