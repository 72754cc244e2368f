"""Deleted topics that a policy keeps: each is there or kept, and whole, whatever is killed when."""
import pytest

from geminga.proto import layout_changes, names
from geminga.proto.errors import NameTaken, Refusal
from geminga.storage import format
from geminga.storage.catalogue import orphans
from geminga.storage.offline import verify
from geminga.storage.open_topics import kept as keeping
from geminga.storage.owner.owner_pass import TICK_MS

from ..simulation.disk import Fate, Killed
from . import test_layout_change_steps as changes
from .rig import Rig
from .test_recurring import schedule
from .test_simulated import Crashing

TOPIC = "persistent://public/default/a"
DAY_S = 86_400


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path / "data", deleted_retention_s=DAY_S)
    yield rig
    rig.close()


def fill(rig, topic=TOPIC):
    """Give a topic messages, a subscription that has acknowledged two of them, policies, properties and a schema."""
    consumer = rig.consumer(topic, "s")
    positions = rig.publish(rig.producer(topic), *(b"%d" % number for number in range(5)))
    rig.run(rig.acks(consumer, positions[0], positions[2], request_id=1))
    catalogue, name = rig.owner.catalogue, names.parse(topic)
    catalogue.policies.set(topic, "messageTTL", 0)
    catalogue.policies.set(topic, "permissions", {"joe": ["produce"]})
    catalogue.properties.set(topic, {"owner": "joe"})
    catalogue.schemas.add(name, 0, 1, b"hash", {"p": "q"}, b"\x00definition")
    catalogue.commit()
    rig.close_consumer(consumer)
    return positions


def about(rig, topic=TOPIC):
    """Return what the catalogue has of a topic but its name."""
    catalogue, name = rig.owner.catalogue, names.parse(topic)
    return (catalogue.policies.of(topic), catalogue.properties.of(topic), catalogue.schemas.get(name, 0),
            catalogue.topics.created_ms(name))


def delete(rig, topic=TOPIC):
    rig.asked("delete", topic, force=True)


def kept(rig):
    return rig.owner.catalogue.kept_topics.all()


def take_back(rig, one=None):
    catalogue = rig.owner.catalogue
    catalogue.kept_topics.take_back(one or kept(rig)[-1], rig.now_ms)
    catalogue.commit()


def left(rig, topic=TOPIC):
    """List the payloads that the subscription has left."""
    consumer = rig.consumer(topic, "s")
    found = [payload for _, payload in rig.receive(consumer)]
    rig.close_consumer(consumer)
    return found


def test_a_deleted_topic_comes_back_as_it_was(rig):
    fill(rig)
    before = about(rig)
    number = schedule(rig, topic=TOPIC, every=3_600_000)
    folder = rig.partition(TOPIC).folder
    delete(rig)
    catalogue = rig.owner.catalogue
    assert not catalogue.topics.exists(names.parse(TOPIC)) and names.parse(TOPIC) not in rig.owner.topics.by_name
    assert catalogue.partitions.all() == [] and catalogue.partitions.names() == [] and catalogue.schedules.all() == []
    [one] = kept(rig)
    assert (one.topic, one.partitions, one.deleted_ms, one.until_ms) == (
        TOPIC, 0, rig.now_ms, rig.now_ms + DAY_S * 1_000)
    assert one.bytes > 0 and folder.exists()
    take_back(rig)
    assert about(rig) == before and kept(rig) == [] and catalogue.schedules.all()[0].id == number
    assert [payload for _, payload in rig.everything(TOPIC)] == [b"0", b"1", b"2", b"3", b"4"]
    assert left(rig) == [b"1", b"3", b"4"]
    assert rig.publish(rig.producer(TOPIC), b"5")


def test_partitions_are_closed_although_administration_was_killed_behind_the_deletion(rig):
    """A topic that is created again at once is another one, in which nothing of the former one is."""
    topic, part = names.parse(TOPIC), f"{TOPIC}-partition-0"
    catalogue = rig.owner.catalogue
    catalogue.topics.create(topic, 1)
    catalogue.commit()
    rig.publish(rig.producer(part), b"former")
    keeping.keep(catalogue, rig.owner.topics.data_dir, topic, DAY_S, rig.now_ms)
    catalogue.topics.create(topic, 1)
    catalogue.commit()
    rig.run(after_ms=TICK_MS)
    rig.publish(rig.producer(part), b"new")
    assert [payload for _, payload in rig.everything(part)] == [b"new"]
    delete(rig, part)
    catalogue.topics.delete(topic)
    take_back(rig, kept(rig)[0])
    assert [payload for _, payload in rig.everything(part)] == [b"former"]


def test_without_a_policy_nothing_is_kept(tmp_path):
    rig = Rig(tmp_path / "data")
    fill(rig)
    folder = rig.partition(TOPIC).folder
    delete(rig)
    assert kept(rig) == [] and not folder.exists()
    rig.close()


def test_a_policy_of_the_namespace_or_topic_says_for_how_long(tmp_path):
    rig = Rig(tmp_path / "data")
    rig.owner.catalogue.policies.set("public/default", "deletedRetention", 60)
    rig.owner.catalogue.commit()
    fill(rig)
    delete(rig)
    assert kept(rig)[0].until_ms == rig.now_ms + 60_000
    rig.close()


@pytest.mark.parametrize("topic", ["non-persistent://public/default/n", "persistent://public/default/never-used"])
def test_what_stores_nothing_is_not_kept(rig, topic):
    rig.owner.catalogue.topics.create(names.parse(topic), 0)
    rig.owner.catalogue.commit()
    delete(rig, topic)
    assert kept(rig) == [] and not rig.owner.catalogue.topics.exists(names.parse(topic))


def test_a_topic_that_was_not_opened_since_a_kill_is_kept_whole(rig, tmp_path):
    """Its last messages are in the journal only when it is deleted, and when the next process is killed too."""
    fill(rig)
    second = rig.crashed(tmp_path / "second")
    delete(second)
    third = second.crashed(tmp_path / "third")
    take_back(third)
    assert left(third) == [b"1", b"3", b"4"]
    fourth = third.crashed(tmp_path / "fourth")
    assert left(fourth) == [b"1", b"3", b"4"]
    fourth.close()
    assert list(verify.walk(fourth.data_dir)) == []
    third.close()
    second.close()


def test_a_start_neither_lists_nor_removes_what_is_kept(rig, tmp_path):
    fill(rig)
    delete(rig)
    later = rig.crashed(tmp_path / "later")
    assert orphans.mend(later.owner.catalogue) == []
    later.run(later.tell("leftovers"), after_ms=2 * TICK_MS)
    later.close()
    assert list(verify.walk(later.data_dir)) == []
    again = Rig(later.data_dir, now_ms=rig.now_ms + 10 * TICK_MS, **later.settings)
    again.run(again.tell("leftovers"), after_ms=10 * TICK_MS)
    take_back(again)
    assert left(again) == [b"1", b"3", b"4"]
    again.close()


def test_a_topic_of_the_same_name_is_a_reason_to_refuse_and_neither_changes(rig):
    fill(rig)
    delete(rig)
    rig.publish(rig.producer(TOPIC), b"new")
    with pytest.raises(NameTaken, match="again"):
        take_back(rig)
    rig.owner.catalogue.undo()
    assert [payload for _, payload in rig.everything(TOPIC)] == [b"new"]
    delete(rig)
    old, new = kept(rig)
    take_back(rig, old)
    assert left(rig) == [b"1", b"3", b"4"]
    assert kept(rig) == [new]


def test_a_namespace_that_is_gone_is_a_reason_to_refuse(rig):
    topic = "persistent://public/other/a"
    rig.owner.catalogue.namespaces.create("public/other")
    rig.owner.catalogue.commit()
    fill(rig, topic)
    delete(rig, topic)
    rig.owner.catalogue.namespaces.delete("public/other")
    rig.owner.catalogue.commit()
    with pytest.raises(Refusal, match="does not exist"):
        take_back(rig)
    rig.owner.catalogue.undo()
    rig.owner.catalogue.namespaces.create("public/other")
    rig.owner.catalogue.commit()
    take_back(rig)
    assert left(rig, topic) == [b"1", b"3", b"4"]


def test_what_is_over_is_deleted_for_good(rig, tmp_path):
    fill(rig)
    folder = rig.partition(TOPIC).folder
    delete(rig)
    [one] = kept(rig)
    rig.run(after_ms=TICK_MS)
    counts = rig.counters.read()
    assert (counts["kept_topics"], counts["kept_bytes"]) == (1, one.bytes)
    rig.run(after_ms=DAY_S * 1_000 - 2 * TICK_MS)
    assert folder.exists()
    for _ in range(4):
        rig.run(after_ms=TICK_MS)
    assert not folder.exists() and kept(rig) == [] and rig.owner.catalogue.partitions.ids() == set()
    assert rig.counters.read()["kept_topics"] == 0
    with pytest.raises(Refusal, match="not kept any more"):
        take_back(rig, one)
    later = rig.crashed(tmp_path / "later")
    later.close()
    assert list(verify.walk(later.data_dir)) == []


def test_while_the_disk_is_full_the_longest_deleted_one_goes_first(rig, monkeypatch, capfd):
    for topic in (TOPIC, TOPIC + "2", TOPIC + "3"):
        fill(rig, topic)
        delete(rig, topic)
        rig.run(after_ms=10)
    monkeypatch.setattr(rig.owner.space, "look", lambda: None)
    rig.owner.space.is_full = True
    rig.run(after_ms=TICK_MS)
    rig.run(after_ms=TICK_MS)
    rig.owner.space.is_full = False
    for _ in range(3):
        rig.run(after_ms=TICK_MS)
    assert [one.topic for one in kept(rig)] == [TOPIC + "2", TOPIC + "3"]
    assert f"{TOPIC}, which was deleted, is given up, because the disk is nearly full" in capfd.readouterr().err


def test_what_was_given_up_cannot_be_taken_back_also_when_its_files_are_there(rig):
    fill(rig)
    delete(rig)
    [one] = kept(rig)
    rig.owner.catalogue.kept_topics.give_up(one.id)
    rig.owner.catalogue.commit()
    with pytest.raises(Refusal, match="not kept any more"):
        take_back(rig, one)


def test_inactive_topics_are_kept_too(tmp_path):
    rig = Rig(tmp_path / "data", deleted_retention_s=DAY_S, delete_inactive_topics=True, inactive_topic_s=1)
    rig.publish(producer := rig.producer(TOPIC), b"1")
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    for _ in range(400):
        rig.run(after_ms=TICK_MS)
    assert [one.topic for one in kept(rig)] == [TOPIC]
    take_back(rig)
    assert [payload for _, payload in rig.everything(TOPIC)] == [b"1"]
    rig.close()


def test_replication_cursors_of_kept_topics_are_in_no_list(rig):
    fill(rig)
    catalogue = rig.owner.catalogue
    catalogue.subscriptions.create(rig.partition(TOPIC).partition_id, "pulsar.repl.far")
    catalogue.commit()
    assert len(catalogue.subscriptions.named("pulsar.repl.")) == 1
    delete(rig)
    assert catalogue.subscriptions.named("pulsar.repl.") == []
    assert catalogue.partitions.name_of(next(iter(catalogue.partitions.ids()))) is None


@pytest.mark.slow
def test_a_kill_at_any_call_of_the_disk_leaves_the_topic_there_or_kept_and_whole(tmp_path):
    """The deletion, and the end of a kept topic, are killed at each of their calls."""
    ends = set()
    for call in range(1, 60):
        crashing = Crashing(tmp_path / str(call))
        with crashing.disk.watched():
            rig = crashing.owner(deleted_retention_s=DAY_S)
            fill(rig)
            crashing.disk.fate = Fate(kill_in=call)
            try:
                delete(rig)
                is_done = True
            except (Killed, ValueError):
                is_done = False
            crashing.kill()
            crashing.cut_power("nothing" if call % 2 else "everything")
            rig = crashing.owner(deleted_retention_s=DAY_S)
            is_there = rig.owner.catalogue.topics.exists(names.parse(TOPIC))
            assert is_there == (not kept(rig)) and not (is_done and is_there)
            ends.add(is_there)
            if not is_there:
                take_back(rig)
            assert left(rig) == [b"1", b"3", b"4"]
            crashing.kill()
        if is_done:
            break
    assert ends == {True, False} or ends == {False}


@pytest.mark.slow
def test_a_kill_while_a_kept_topic_is_deleted_for_good_is_completed(tmp_path):
    for call in range(1, 60):
        crashing = Crashing(tmp_path / str(call))
        with crashing.disk.watched():
            rig = crashing.owner(deleted_retention_s=1)
            fill(rig)
            partition_id = rig.partition(TOPIC).partition_id
            delete(rig)
            crashing.disk.fate = Fate(kill_in=call)
            is_done = True
            try:
                for _ in range(4):
                    rig.run(after_ms=TICK_MS)
            except (Killed, ValueError):
                is_done = False
            now_ms = rig.now_ms
            crashing.kill()
            crashing.cut_power("nothing" if call % 2 else "everything")
            rig = crashing.owner(deleted_retention_s=1, now_ms=now_ms + 5 * TICK_MS)
            for _ in range(4):
                rig.run(after_ms=TICK_MS)
            assert kept(rig) == [] and rig.owner.catalogue.partitions.ids() == set()
            rig.run(rig.tell("leftovers"))
            assert not format.partition_folder(crashing.disk.root, partition_id).exists()
            crashing.kill()
        if is_done:
            break



# -- scalable topics

SCALABLE = changes.TOPIC


def delete_scalable(rig, *, is_killed_at=None):
    """Delete and keep the topic as the admin process does; the owner is killed before it closes segments."""
    keeping.keep(rig.owner.catalogue, rig.data_dir, SCALABLE, DAY_S, rig.now_ms)
    rig.owner.catalogue.commit()
    if is_killed_at is not None:
        rig = rig.crashed(is_killed_at)
    topics = rig.owner.catalogue.scalable_topics
    for segment in topics.deleted_segments(SCALABLE):
        rig.asked("delete", str(segment), force=True, gone=True)
    topics.end_deletion(SCALABLE)
    rig.owner.catalogue.commit()
    return rig


@pytest.mark.slow
@pytest.mark.parametrize("kind", changes.KINDS)
def test_a_scalable_topic_comes_back_with_its_segments_and_the_change_that_was_under_way(tmp_path, kind):
    """It is deleted behind each step of a change, and another one of its name has a later epoch meanwhile."""
    step, has_ended = 0, False
    while not has_ended:
        rig = changes.filled(Rig(tmp_path / str(step)))
        rig.owner.catalogue.policies.set(str(SCALABLE), "maxConsumers", 7)
        changes.begin(rig, kind)
        has_ended = changes.carry_out(rig, step)
        stored = len(rig.owner.catalogue.partitions.all())
        rig = delete_scalable(rig, is_killed_at=tmp_path / f"{step}-killed" if step % 2 else None)
        catalogue, topics = rig.owner.catalogue, rig.owner.catalogue.scalable_topics
        assert topics.layout(SCALABLE) is None and not topics.changing() and not catalogue.partitions.all()
        [one] = kept(rig)
        assert one.bytes > 0 and len(catalogue.kept_topics.stored(one.id)) == stored
        assert topics.create(SCALABLE, 1)
        for number in range(3):
            topics.begin_change(SCALABLE, layout_changes.rebucket(SCALABLE, topics.layout(SCALABLE), number, 2, 5))
            latest = topics.end_change(SCALABLE).epoch
        catalogue.commit()
        with pytest.raises(NameTaken, match="again"):
            take_back(rig)
        topics.begin_deletion(SCALABLE)
        catalogue.commit()
        with pytest.raises(Refusal, match="being deleted"):
            take_back(rig)
        topics.end_deletion(SCALABLE)
        take_back(rig)
        assert topics.layout(SCALABLE).epoch > latest and catalogue.policies.of(str(SCALABLE)) == {"maxConsumers": 7}
        back = rig.crashed(tmp_path / f"{step}-back")
        assert changes.carry_out(back)
        changes.check(back, kind, changes.layout_of(back).epoch)
        rig.close()
        back.close()
        assert list(verify.walk(back.data_dir)) == []
        step += 1
    assert step > 2


def test_a_scalable_topic_that_was_a_regular_one_waits_for_its_former_name(rig):
    catalogue = rig.owner.catalogue
    catalogue.topics.create(SCALABLE.regular, 2)
    rig.publish(rig.producer(str(SCALABLE.regular.partition_name(0))), b"1")
    assert catalogue.scalable_topics.begin_migration(SCALABLE, 2)
    catalogue.commit()
    assert changes.carry_out(rig)
    delete_scalable(rig)
    catalogue.topics.create(SCALABLE.regular, 0)
    catalogue.commit()
    with pytest.raises(NameTaken, match="again"):
        take_back(rig)
    catalogue.undo()
    catalogue.topics.delete(SCALABLE.regular)
    take_back(rig)
    assert [payload for _, payload in rig.everything(str(SCALABLE.regular.partition_name(0)))] == [b"1"]


def test_a_kept_scalable_topic_is_deleted_for_good_when_its_time_is_over(rig):
    changes.filled(rig)
    folders = [rig.partition(segment).folder for segment in changes.segments(rig)]
    delete_scalable(rig)
    assert all(folder.exists() for folder in folders)
    for after_ms in (DAY_S * 1_000, *[TICK_MS] * 3):
        rig.run(after_ms=after_ms)
    assert kept(rig) == [] and not any(folder.exists() for folder in folders)
