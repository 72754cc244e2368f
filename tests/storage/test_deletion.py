"""Topics and subscriptions are deleted whole, also when the owner is killed on the way."""
import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.cursors.state_file import StateFile
from geminga.storage.ledgers.journal import Journal
from geminga.storage.offline.verify import walk

T = api.BaseCommand.Type
NAME = names.parse("t")


def filled(rig):
    """Make a topic with three entries and a subscription that has acknowledged the first. Return (partition id,
    producer, consumer).
    """
    producer, consumer = (
        rig.producer("t"),
        rig.consumer("t", subscription_properties=[api.KeyValue(key="a", value="b")]),
    )
    first, *_ = rig.publish(producer, b"a", b"b", b"c")
    rig.run(rig.acks(consumer, first))
    return rig.partition("t").partition_id, producer, consumer


def left_of(rig, partition_id):
    """Return what is left of the topic: its partition and partition count in the catalogue, its subscriptions' ids,
    and whether its folder exists.
    """
    catalogue = rig.owner.catalogue
    return (
        catalogue.partitions.find(NAME),
        catalogue.topics.partition_count(NAME),
        catalogue.subscriptions.ids(partition_id),
        format.partition_folder(rig.data_dir, partition_id).exists(),
    )


def test_a_deleted_topic_is_gone_and_a_new_one_of_its_name_is_empty(rig, rigs):
    partition_id, producer, _consumer = filled(rig)
    answers = rig.run(rig.question("delete", "t", force=True))
    assert answers.answered == [{"answer": None}]
    assert {command.type for command in answers.commands()} == {T.CLOSE_PRODUCER, T.CLOSE_CONSUMER}
    assert left_of(rig, partition_id) == (None, None, {}, False)
    assert not rig.run(rig.sends((producer, b"late"))).receipts
    assert rig.everything("t") == []
    [position] = rig.publish(rig.producer("t"), b"new")
    again = rigs.crash(rig)
    assert left_of(again, partition_id)[3] is False
    assert again.everything("t") == [(position, b"new")]


def test_only_force_deletes_what_is_used(rig):
    _, producer, consumer = filled(rig)
    for question, arguments in (("delete", {}), ("unsubscribe", {"subscription": "sub"})):
        [answer] = rig.run(rig.question(question, "t", force=False, **arguments)).answered
        assert answer["refused"] == api.ConsumerBusy
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=7))
    rig.close_consumer(consumer)
    rig.asked("delete", "t", force=False)
    [answer] = rig.run(rig.question("delete", "t", force=False)).answered
    assert answer["refused"] == api.TopicNotFound


class Killed(Exception):
    pass


STEPS = {
    "after the journal": (Journal, "sync"),
    "before the catalogue": (Catalogue, "commit"),
    "before the files": (StateFile, "remove"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_on_the_way_leaves_all_of_a_topic_or_nothing(rig, tmp_path, monkeypatch, step):
    """A start after a kill in the middle of a deletion completes it, wherever the catalogue, the journal and the
    folder disagree.
    """
    partition_id, *_ = filled(rig)
    kind, name = STEPS[step]
    how = getattr(kind, name)

    def kill(self, *arguments):
        # a commit from before the deletion
        if step != "before the files" and not rig.owner.catalogue.is_changing:
            return how(self, *arguments)
        if step == "after the journal":
            how(self, *arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(kind, name, kill)
        with pytest.raises(Killed):
            rig.owner.topics.delete(NAME)
    if rig.owner.catalogue.is_changing:      # a killed process would not have committed
        rig.owner.catalogue.undo()
    after = rig.crashed(tmp_path / "next")
    assert left_of(after, partition_id) == (None, None, {}, False)
    after.close()
    assert not [found for found in walk(after.data_dir) if found.severity]


def test_a_topic_that_is_not_open_is_deleted_after_a_crash_too(rig, rigs):
    """A topic that is deleted right after a crash, without being opened, stays deleted: the journal's records for it
    are not replayed, and no state file is written.
    """
    partition_id, *_ = filled(rig)
    again = rigs.crash(rig)
    again.owner.topics.delete(NAME)
    producer = again.producer("other")
    for _ in range(6):      # more than a few segments
        again.publish(producer, *[b"x" * 50_000] * 10)
    again.settle()
    assert left_of(again, partition_id) == (None, None, {}, False)
    once_more = rigs.crash(again)
    assert left_of(once_more, partition_id) == (None, None, {}, False)


def test_a_truncated_topic_holds_nothing_and_keeps_its_subscriptions(rig, rigs):
    filled(rig)
    rig.asked("truncate", "t")
    assert rig.everything("t") == []
    assert [len(rig.files("t")), rig.asked("why", "t", subscription="sub")["messages"]["skipped"]] == [1, 2]
    again = rigs.crash(rig)
    assert again.everything("t") == [] and len(again.files("t")) == 1


def test_properties_of_a_subscription_come_with_its_first_consumer_and_stay(rig, rigs):
    _, _, consumer = filled(rig)
    assert rig.asked("properties", "t", subscription="sub") == {"a": "b"}
    rig.close_consumer(consumer)
    rig.consumer("t", subscription_properties=[api.KeyValue(key="a", value="other")])
    again = rigs.crash(rig)
    assert again.asked("properties", "t", subscription="sub") == {"a": "b"}
    again.asked("properties", "t", subscription="sub", properties={"c": "d"})
    assert rigs.crash(again).asked("properties", "t", subscription="sub") == {"c": "d"}


def test_a_subscription_is_made_where_it_is_asked_for(rig):
    _, _producer, _ = filled(rig)
    positions = [position for position, _ in rig.everything("t")]
    for name, begin, behind, expected in (
        ("first", [-1, -1], False, 0),
        ("at", positions[1], False, 1),
        ("behind", positions[1], True, 2),
        ("last", [(1 << 63) - 1] * 2, False, 3),
    ):
        assert rig.asked("subscribe", "t", subscription=name, position=begin, behind=behind) is True
        assert rig.asked("subscribe", "t", subscription=name, position=begin, behind=behind) is False
        assert [position for position, _ in rig.receive(rig.consumer("t", name))] == positions[expected:]
    assert rig.asked("subscriptions", "t") == ["at", "behind", "first", "last", "sub"]


def test_a_damaged_topic_is_deleted_too(rig, rigs):
    """A topic that is too damaged to be opened can be deleted."""
    partition_id, *_ = filled(rig)
    rig.asked("unload", "t")
    rig.close()
    path = format.state_path(format.partition_folder(rig.data_dir, partition_id))
    path.write_bytes(b"x" * path.stat().st_size)
    again = rigs.on(rig.data_dir)
    [refused] = again.run(again.question("subscriptions", "t")).answered
    assert refused["refused"] == api.PersistenceError
    again.asked("delete", "t", force=False)
    assert left_of(again, partition_id) == (None, None, {}, False)
    assert again.everything("t") == []
