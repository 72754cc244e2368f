"""Failover: which consumer is active, which clients are told, and who gets the unacknowledged entries of a former
active consumer.
"""
import itertools

import mmh3
import pytest

from geminga.proto import envelope
from geminga.storage.topics.subscription import SubType

from .rig import T

MANY = 1_000


@pytest.fixture
def partitions(rigs):
    """Return partitions(n), which returns (rig, name of the n-th of three partitions)."""
    rig = rigs()
    rig.owner.catalogue.topics.create(rig.topic("p"), 3)
    return lambda number: (rig, f"persistent://public/default/p-partition-{number}")


def join(rig, name, topic="a", **fields):
    return rig.consumer(topic, subType=SubType.Failover, consumer_name=name, **fields)


def told(answers):
    """Return [(consumer id, whether it is active)] from the answers' notices to clients, in order."""
    return [(command.active_consumer_change.consumer_id, command.active_consumer_change.is_active)
            for command in answers.commands(T.ACTIVE_CONSUMER_CHANGE)]


def active(rig, crowd, topic="a"):
    """Publish an entry and return the name of the consumer that gets it."""
    rig.run(*[rig.flow(consumer, MANY) for consumer in crowd.values()])
    answers = rig.run(rig.sends((rig.producer(topic), b"x")))
    [name] = [name for name, consumer in crowd.items() if rig.given(answers, consumer)]
    return name


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
def test_the_first_by_name_is_active(rig, order):
    crowd = {name: join(rig, name) for name in order}
    assert active(rig, crowd) == "a"
    rig.close_consumer(crowd.pop("a"))
    assert active(rig, crowd) == "b"


def test_the_first_who_joined_is_active(rigs):
    rig = rigs(failover_selection="join-order")
    crowd = {name: join(rig, name) for name in "bca"}
    assert active(rig, crowd) == "b"
    rig.close_consumer(crowd.pop("b"))
    assert active(rig, crowd) == "c"


def test_topics_are_spread_over_a_ring_of_names(rigs):
    """Each consumer has 100 points on a ring, and a topic belongs to the first one at or behind its own hash."""
    rig = rigs(failover_selection="hashring")
    ring = sorted((mmh3.hash(f"{name}{point}", signed=False) & 0x7FFFFFFF, name) for name in "abc"
                  for point in range(100))
    found = set()
    for topic in ("t1", "t2", "t3", "t4", "t5", "t6"):
        place = mmh3.hash(f"persistent://public/default/{topic}", signed=False) & 0x7FFFFFFF
        expected = next((name for point, name in ring if point >= place), ring[0][1])
        assert active(rig, {name: join(rig, name, topic) for name in "cab"}, topic) == expected
        found.add(expected)
    assert len(found) > 1


def test_partitions_are_dealt_out_by_their_number_among_the_names(partitions):
    for number, expected in enumerate("abc"):
        rig, topic = partitions(number)
        crowd = {name: join(rig, name, topic) for name in "bca"}
        assert active(rig, crowd, topic) == expected
        rig.close_consumer(crowd.pop("a"))
        assert active(rig, crowd, topic) == "bcb"[number]


def test_only_the_lowest_level_is_active(partitions, rig):
    """Consumers of higher priority levels stand by until no consumer of the lowest is left."""
    crowd = {name: join(rig, name, priority_level=level) for name, level in (("a", 2), ("b", 1), ("c", 1))}
    assert active(rig, crowd) == "b"
    rig.close_consumer(crowd.pop("b"))
    assert active(rig, crowd) == "c"
    rig.close_consumer(crowd.pop("c"))
    assert active(rig, crowd) == "a"
    other, topic = partitions(2)
    crowd = {name: join(other, name, topic, priority_level=level) for name, level in (("a", 1), ("b", 0), ("c", 0))}
    assert active(other, crowd, topic) == "b"          # partition 2 modulo two consumers


def test_everybody_is_told_of_every_change_and_whoever_joins_how_it_stands(rig):
    """All consumers are told of a change, a new one with its first permits; consumers that leave are told nothing."""
    numbers = {}

    def joining(name):
        section, numbers[name] = rig.subscribe("a", "sub", subType=SubType.Failover, consumer_name=name)
        answers = rig.run(section)
        before = told(answers)
        consumer = rig.consumer_in(answers, numbers[name], "a")
        assert numbers[name] not in dict(before)
        return [*before, *told(rig.run(rig.flow(consumer, 1)))]

    def leaving(name):
        return told(rig.run(rig.command("close_consumer", consumer_id=numbers[name], request_id=1)))

    assert joining("b") == [(numbers["b"], True)]
    assert joining("c") == [(numbers["c"], False)]
    assert sorted(joining("a")) == sorted([(numbers["b"], False), (numbers["c"], False), (numbers["a"], True)])
    assert leaving("c") == []
    assert leaving("a") == [(numbers["b"], True)]
    section, number = rig.subscribe("a", "sub", subType=SubType.Failover, consumer_name="z")
    assert told(rig.run(section, rig.command("close_consumer", consumer_id=number, request_id=1))) == []


def test_a_consumer_without_permits_is_told_after_a_second_how_it_stands_then(rig):
    """The Go client drops what comes before it has seen the answer to SUBSCRIBE; permits show that it has."""
    consumers = [join(rig, name) for name in "ba"]
    assert told(rig.run()) == told(rig.run(after_ms=999)) == []
    assert sorted(told(rig.run(after_ms=1))) == [(consumers[0].object_id, False), (consumers[1].object_id, True)]
    assert told(rig.run(*[rig.flow(consumer, 1) for consumer in consumers])) == []


def test_a_clock_that_is_set_back_delays_no_notice(rig):
    consumer = join(rig, "a")
    producer = rig.producer("a")
    assert told(rig.run(rig.sends((producer, b"x")), after_ms=-3_600_000)) == [(consumer.object_id, True)]


@pytest.mark.parametrize("version, expected", [(11, 0), (12, 1)])
def test_clients_of_an_old_protocol_are_not_told(rig, version, expected):
    section, number = rig.subscribe("a", "sub", subType=SubType.Failover, connection=7, version=version)
    consumer = rig.consumer_in(rig.run(section), number, "a", connection=7)
    assert len(told(rig.run(rig.flow(consumer, 1)))) == expected


def test_only_failover_has_an_active_consumer(rig):
    for kind in (SubType.Exclusive, SubType.Shared, SubType.Key_Shared):
        section, _ = rig.subscribe("a", f"sub {kind}", subType=kind)
        assert told(rig.run(section)) == []


def test_all_that_is_not_acknowledged_goes_to_the_next_in_order(rig):
    """Unacknowledged entries go to the next active consumer, in order.  A stand-by that comes or goes changes nothing.
    """
    producer, last = rig.producer("a"), join(rig, "c")
    positions = rig.publish(producer, *[b"%d" % n for n in range(6)])
    assert [position for position, _ in rig.receive(last, 4)] == positions[:4]
    rig.run(rig.acks(last, positions[1]))
    rig.close_consumer(join(rig, "d"))
    assert [position for position, _ in rig.receive(last, 1)] == positions[4:5]
    first = join(rig, "b")
    assert rig.receive(last) == []
    assert [position for position, _ in rig.receive(first)] == [positions[0], *positions[2:]]
    rig.run(rig.acks(first, positions[3], cumulative=True))
    answers = rig.close_consumer(first)
    assert [position for position, _ in rig.delivered(answers, last)] == positions[4:]
    assert all(count == 0 for _, count, _ in rig.given(answers, last))


def test_what_was_sent_after_a_redelivery_carries_its_epoch(rig):
    """The worker learns a consumer's new epoch before it gets entries of that epoch."""
    producer, consumer = rig.producer("a"), join(rig, "a", consumer_epoch=3)
    rig.publish(producer, b"x")
    rig.receive(consumer)
    answers = rig.run(rig.redeliver(consumer, consumer_epoch=4), rig.flow(consumer, 5))
    epochs = [(object_id, epoch) for _, action, object_id, epoch,
              _ in answers.replies if action == envelope.CONSUMER_EPOCH]
    assert epochs == [(consumer.number, 4)]
    assert len(rig.given(answers, consumer)) == 1
    late = rig.run(rig.redeliver(consumer, consumer_epoch=3), rig.flow(consumer, 5))      # it goes on with epoch 4
    assert not [action for _, action, _, _, _ in late.replies if action == envelope.CONSUMER_EPOCH]
    assert len(rig.given(late, consumer)) == 1
