"""Commands that would cost an owner more than they cost to send."""
import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursors.pending_acks import CONSUMERS_MAX
from geminga.storage.topics.subscription import SubType

pytestmark = pytest.mark.slow


def publish_many(rig, topic, count):
    """Publish `count` entries to one ledger; return their positions."""
    producer, positions = rig.producer(topic), []
    while len(positions) < count:
        positions += rig.run(rig.sends(*[(producer, b"")] * 1_000)).positions
    assert len({ledger_id for ledger_id, _ in positions}) == 1
    return positions


def test_one_acknowledgement_may_be_of_more_entries_apart_than_a_segment_has_room_for(rigs):
    """One command may acknowledge more non-adjacent entries than a journal segment has room for, and all are
    acknowledged after a crash.
    """
    rig = rigs(journal_segment_bytes=1 << 20)
    positions = publish_many(rig, "a", 60_000)
    consumer = rig.consumer("a", subType=SubType.Shared)
    rig.run(rig.acks(consumer, *positions[1::2], request_id=1))
    rig.close_consumer(consumer)
    for survivor in (rig, rigs.crash(rig)):
        again = survivor.consumer("a", subType=SubType.Shared)
        assert [position for position, _,
                _ in survivor.given(survivor.run(survivor.flow(again, 100_000)), again)] == positions[::2]


# -- many consumers

CROWD = 3_000


def joined(rig, kind, count, each=1_000, **fields):
    """Have consumers of one subscription join, each on its own connection; return the passes' answers."""
    sections = [rig.subscribe("a", "sub", subType=kind, consumer_name=f"c{number}", connection=number + 2, **fields)[0]
                for number in range(count)]
    return [rig.run(*sections[at:at + each]) for at in range(0, count, each)]


def numbers_ready(answers):
    return [handle for one in answers for _, action, _, handle, _ in one.replies if action == envelope.CONSUMER_READY]


@pytest.mark.parametrize("options, kind", [
    ({}, SubType.Key_Shared), ({"key_shared_consistent_hashing": False}, SubType.Key_Shared), ({}, SubType.Shared),
    ({"failover_selection": "hashring"}, SubType.Failover)],
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                                           
                         ids=["ring", "split", "shared", "failover"])
def test_joining_costs_a_consumers_share(rigs, options, kind):
    """The time that a consumer takes to join does not grow with the number of consumers, also while others hold
    entries. Quadratic time would take minutes.
    """
    rig = rigs(max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0, **options)
    producer, first = rig.producer("a"), rig.consumer("a", subType=kind, consumer_name="a")
    rig.run(rig.sends(*[(producer, b"", {"partition_key": f"key-{number}"}) for number in range(2_000)]))
    assert len(rig.receive(first, 2_000)) == 2_000
    assert len(set(numbers_ready(joined(rig, kind, CROWD)))) == CROWD
    told = rig.shown("stats", "persistent://public/default/a", earliest=False, publishers=False, consumers=True)
    assert len(told["subscriptions"]["sub"]["consumers"]) == CROWD + 1
    for at in range(0, CROWD, 1_000):
        rig.run(*[rig.happened(envelope.CONNECTION_GONE, connection=number + 2) for number in range(at, at + 1_000)])
    assert rig.owner.counters.read()["consumers"] == 1
    rig.run(rig.redeliver(first))
    assert len(rig.receive(first, 2_000)) == 2_000


def test_a_subscription_has_room_for_so_many_and_no_more(rigs):
    """A subscription refuses a consumer beyond its number of slots, and its other consumers go on."""
    rig = rigs()
    assert len(numbers_ready(joined(rig, SubType.Shared, CONSUMERS_MAX, each=10_000))) == CONSUMERS_MAX
    section, _ = rig.subscribe("a", "sub", subType=SubType.Shared, connection=1)
    assert [command.error.error for command in rig.run(section).commands()] == [api.ConsumerBusy]
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=40_000))
    producer, again = rig.producer("a"), rig.consumer("a", subType=SubType.Shared)
    rig.publish(producer, b"x")
    assert len(rig.receive(again)) == 1


def test_the_supervisor_is_answered_between_commands(rig):
    """During a pass with many commands the owner answers the supervisor, which would otherwise consider it stuck."""
    asked = []
    rig.owner.requests.sign_of_life = lambda: asked.append(rig.owner.counters.read()["consumers"])
    joined(rig, SubType.Key_Shared, 50)
    assert asked == list(range(1, 51))
    rig.owner.worker_gone(1)
    assert asked[50:] == list(reversed(range(50)))


# -- alarms, and the clock

@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared, SubType.Key_Shared], ids=SubType.Name)
def test_only_what_a_consumer_holds_may_be_unreadable_to_it(rig, kind):
    """Reports of unreadable entries count once for each entry that the consumer holds, and some in a minute at most."""
    producer, consumer = rig.producer("a"), rig.consumer("a", subType=kind)
    positions = rig.publish(producer, *[b"x"] * 205)
    rig.receive(consumer, 200)

    def told(*entries):
        ids = [api.MessageIdData(ledgerId=positions[0][0], entryId=entry) for entry in entries]
        ack = api.CommandAck(consumer_id=consumer.object_id, ack_type=api.CommandAck.Individual, message_id=ids,
                             validation_error=api.CommandAck.ChecksumMismatch)
        before = rig.counters.read()["acks_of_damaged"]
        rig.run(rig.happened(envelope.DAMAGED, data=ack.SerializeToString()))
        return rig.counters.read()["acks_of_damaged"] - before

    rig.run(rig.acks(consumer, positions[0]))
    assert told(0, 204, 205, 1 << 62) == 0
    assert told(1, 2, 2) == 2
    assert told(2, 3) == 1
    assert told(*range(1, 200)) == 97
    rig.run(after_ms=60_000)
    assert told(1) == 1


def test_a_clock_that_is_put_back_ten_years_keeps_nothing_waiting(rig):
    producer, consumer = rig.producer("a"), rig.consumer("a")
    positions = rig.publish(producer, b"x", b"y")
    rig.receive(consumer)
    rig.run(rig.acks(consumer, positions[0]))
    rig.run(after_ms=-10 * 365 * 86_400_000)
    assert 0 <= rig.owner.passes.due_ms() - rig.now_ms <= 1_000
    syncs = rig.counters.read()["syncs"]
    rig.run(after_ms=20)
    assert rig.counters.read()["syncs"] == syncs + 1
    rig.run(rig.acks(consumer, positions[1]), after_ms=2_000)
    assert 0 <= rig.owner.passes.due_ms() - rig.now_ms <= 1_000
