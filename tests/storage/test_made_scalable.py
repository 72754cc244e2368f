"""Regular topics that are made scalable, killed at every step: nothing is lost, and what was begun is finished."""
import asyncio

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.layout_changes import prune
from geminga.storage.admin.segment_questions import IsSpent
from geminga.storage.catalogue import orphans
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.scalable.drained import drained
from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import Definition
from geminga.supervisor.admin.resources.retries import Retries
from geminga.supervisor.admin.scalable.layout_changes import LayoutChanges

from .rig import T
from .test_coordinator import Coordinated, publish_in
from .test_layout_change_steps import TOPIC, OwnersOf, ask, carry_out, enable_deduplication, stores

REGULAR = TOPIC.regular
GRANT = {"role": ["consume"]}


def parts_of(count):
    return [str(REGULAR.partition_name(number)) for number in range(count)] or [str(REGULAR)]


def made(rigs, count):
    """Return a rig with a topic of so many partitions, each with a message and two subscriptions.

    The last partition has one subscription more; if there are three, one of them was never used.
    """
    rig = rigs()
    catalogue = rig.owner.catalogue
    catalogue.topics.create(REGULAR, count)
    catalogue.policies.set(str(REGULAR), "permissions", GRANT)
    catalogue.policies.set(str(REGULAR), "maxConsumers", 7)
    catalogue.properties.set(str(REGULAR), {"team": "a"})
    catalogue.schemas.add(REGULAR, 0, api.Schema.String, b"", {}, b"")
    catalogue.commit()
    used = parts_of(count)[:2]
    for number, part in enumerate(used):
        for subscription in ("made", "gone"):
            rig.asked("subscribe", part, subscription=subscription, may_create=True)
        rig.publish(rig.producer(part), b"%d" % number)
    rig.asked("subscribe", used[-1], subscription="of the last", may_create=True)
    return rig


def begin(rig, count):
    assert rig.owner.catalogue.scalable_topics.begin_migration(TOPIC, count)
    rig.owner.catalogue.commit()


def check(rig, count):
    """Messages and subscriptions are there, nothing more is published to partitions, and all else is the new topic's.
    """
    catalogue, parts = rig.owner.catalogue, parts_of(count)
    layout = catalogue.scalable_topics.layout(TOPIC)
    assert layout.epoch == 0 and layout.next_number == 2 * len(parts)
    legacy, active = layout.segments[:len(parts)], layout.active
    assert [segment.topic for segment in legacy] == parts and len(active) == len(parts)
    assert all(segment.is_legacy and not segment.is_active and (segment.first, segment.last) == (0, 65_535)
               for segment in legacy)
    assert all(segment.parents == tuple(range(len(parts))) for segment in active)
    assert catalogue.topics.partition_count(REGULAR) is None
    assert catalogue.topics.complete_names() == [segment.topic for segment in layout.segments]
    for scope, policies in ((REGULAR, {}), (TOPIC, {"permissions": GRANT, "maxConsumers": 7})):
        assert catalogue.policies.of(str(scope)) == policies
    assert catalogue.properties.of(str(TOPIC)) == {"team": "a"}
    for name in (TOPIC, REGULAR, names.parse(parts[0]), names.parse(active[0].topic)):
        assert policies_of(catalogue, name, rig.owner.options.current).max_consumers == 7
        assert registry.known(catalogue, name, Definition(api.Schema.String, b"", {})) == 0
    for number, part in enumerate(parts[:2]):
        assert [payload for _, payload in rig.everything(part)] == [b"%d" % number]
    for part in parts:
        refused = rig.run(rig.command("producer", topic=part, producer_id=77, request_id=5)).commands(T.ERROR)
        assert [one.error.error for one in refused] == [api.TopicTerminatedError]
    for child in active:
        assert rig.asked("subscriptions", child.topic) == ["gone", "made", "of the last"]
        rig.publish(rig.producer(child.topic), b"new")
        for subscription in ("gone", "made", "of the last"):
            consumer = rig.consumer(child.topic, subscription)
            assert [payload for _, payload in rig.receive(consumer)] == [b"new"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_topic_is_made_scalable(rigs, count):
    rig = made(rigs, count)
    begin(rig, count)
    assert carry_out(rig)
    check(rig, count)


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 3])
def test_a_migration_that_is_killed_behind_any_step_is_finished(rigs, count, tmp_path):
    rig = made(rigs, count)
    begin(rig, count)
    killed = 0
    while not carry_out(rig.crashed(tmp_path / f"killed-{killed}"), killed):
        again = rig.crashed(tmp_path / f"after-{killed}")
        carry_out(again, killed)
        again = again.crashed(tmp_path / f"again-{killed}")
        assert not orphans.mend(again.owner.catalogue)
        again.owner.catalogue.undo()
        assert carry_out(again)
        check(again, count)
        killed += 1
    assert killed > 2


@pytest.mark.slow
def test_sequence_ids_of_partitions_hold_on_segments_whatever_step_is_killed(rigs, tmp_path):
    """A message that its producer sent to a partition, and sends again to a segment, is stored once."""
    rig = made(rigs, 2)
    enable_deduplication(rig)
    for number, part in enumerate(parts_of(2)):
        stores(rig, rig.producer(part, producer_name=f"p-seg-{number}"), *range(number, 10, 2))
    begin(rig, 2)
    killed, is_over = 0, False
    while not is_over:
        again = rig.crashed(tmp_path / f"killed-{killed}")
        is_over = carry_out(again, killed)
        again = again if is_over else again.crashed(tmp_path / f"again-{killed}")
        assert carry_out(again)
        for child in again.owner.catalogue.scalable_topics.layout(TOPIC).active:
            producer = again.producer(child.topic, producer_name=f"p-seg-{child.number}")
            assert not any(stores(again, producer, *range(10))) and all(stores(again, producer, 10, 11)), killed
        killed += 1
    assert killed > 4


def test_segments_are_deleted_when_they_are_drained_and_nothing_is_left_of_the_former_name(rigs, tmp_path):
    """A kill between the new layout and the deletions leaves partitions that belong to nobody else."""
    rig = made(rigs, 3)
    begin(rig, 3)
    assert carry_out(rig)
    catalogue, parts = rig.owner.catalogue, parts_of(3)
    catalogue.policies.set(parts[0], "permissions", GRANT)
    layout = catalogue.scalable_topics.layout(TOPIC)
    assert not ask(rig, IsSpent(names.parse(parts[0])))
    for part in parts:
        for subscription in rig.asked("subscriptions", part):
            rig.asked("clear", part, subscription=subscription)
        assert ask(rig, IsSpent(names.parse(part)))
    assert catalogue.scalable_topics.begin_change(TOPIC, prune(layout, {0, 1, 2}, 1))
    catalogue.commit()
    assert not carry_out(rig, 1)
    again = rig.crashed(tmp_path / "again")
    assert not orphans.mend(again.owner.catalogue)
    assert carry_out(again)
    catalogue = again.owner.catalogue
    assert not [part for part in parts if catalogue.partitions.find(names.parse(part))]
    assert catalogue.scalable_topics.layout(TOPIC).epoch == 1 and not catalogue.topics.legacy(TOPIC)
    assert not catalogue.policies.of(parts[0])


def test_partitions_are_pruned_together(rigs):
    """A client of Pulsar 4 that comes for what is left in one partition subscribes to all of them."""
    rig = made(rigs, 2)
    begin(rig, 2)
    assert carry_out(rig)
    scalable = rig.owner.catalogue.scalable_topics
    late, changes = scalable.layout(TOPIC).segments[0].sealed_ms + 60_000, LayoutChanges(
        rig.owner.catalogue, OwnersOf(rig), Retries())
    for part, left in zip(parts_of(2), ([0, 1, 2, 3], [2, 3]), strict=True):
        for subscription in rig.asked("subscriptions", part):
            rig.asked("clear", part, subscription=subscription)
        asyncio.run(changes.prune(late))
        assert [segment.number for segment in scalable.layout(TOPIC).segments] == left


@pytest.mark.parametrize(("action", "expected"), [(api.COMMIT, [[b"1"], [b"2"]]), (api.ABORT, [[], []])])
def test_a_transaction_over_a_migration_ends_as_a_whole(tmp_path, action, expected):
    """What it has published to the partition keeps that from being drained until its end."""
    rig = Coordinated(tmp_path / "data")
    rig.owner.catalogue.topics.create(REGULAR, 1)
    rig.owner.catalogue.commit()
    [part] = parts_of(1)
    consumer, producer, bits = rig.consumer(part, "sub"), rig.producer(part), rig.new()
    assert rig.add(bits, part) == [None]
    assert len(publish_in(rig, bits, producer, b"1").receipts) == 1
    begin(rig, 1)
    assert carry_out(rig)
    [child] = rig.owner.catalogue.scalable_topics.layout(TOPIC).active
    assert rig.add(bits, child.topic) == [None]
    assert len(publish_in(rig, bits, rig.producer(child.topic), b"2").receipts) == 1
    assert drained(rig.partition(part)) == {"sub": False}
    rig.end(bits, action)
    rig.settle()
    found = [rig.receive(consumer), rig.receive(rig.consumer(child.topic, "sub"))]
    assert [[payload for _, payload in messages] for messages in found] == expected
    rig.close()
