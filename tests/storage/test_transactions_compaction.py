"""Compacted views of topics with transactions: aborted values replace nothing, and no view reaches into an open one."""
import pytest

from geminga.storage.jobs import confirmed
from geminga.storage.jobs.compacting import nightly
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.open_topics import compacted_views

from .test_compacted import Topic
from .transactional import TransactionalRig

WAYS = pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
TOPIC = "persistent://public/default/t"


@pytest.fixture
def rig(tmp_path):
    made = TransactionalRig(tmp_path / "data", roll_over_entries=3)
    yield made
    made.close()


def keyed(producer, *pairs):
    return [(producer, value, {"partition_key": key}) for key, value in pairs]


def compact(rig, *, settles=True):
    """Compact as a job beside the broker does; return its outcome."""
    def adopt(partition_id, topic, number):
        [answer] = rig.run(rig.question("adopt-view", "t", view=number)).answered
        return answer.get("text")

    target = nightly.Target(rig.partition("t").partition_id, TOPIC)
    if settles:
        rig.asked("settle", "t")
    report = nightly.compact(rig.data_dir, target, adopt)
    assert not report.error, report
    return report.outcome


def values(rig):
    """Return the values that a reader of the view gets."""
    topic = Topic(rig)
    reader = topic.reader(name=f"reader-{rig.number()}")
    found = [value for _, _, _, value in reader.read()]
    reader.close()
    rig.run(rig.command("close_producer", producer_id=topic.producer.object_id, request_id=1))
    return found


@WAYS
def test_a_view_has_committed_values_only(rig, commits):
    producer, _ = rig.producer("t"), rig.consumer("t")
    transaction = rig.begin("t")
    rig.run(rig.sends(*keyed(producer, ("a", b"a1"), ("b", b"b1"))))
    rig.run(rig.sends_in(transaction, *keyed(producer, ("a", b"a2"), ("c", b"c2"))))
    rig.run(rig.sends(*keyed(producer, ("b", b"b3"))))
    rig.end(transaction, "t", commits=commits)
    assert compact(rig) == nightly.COMPACTED
    view = rig.partition("t").view
    assert view.horizon == rig.partition("t").last_confirmed
    assert sorted(values(rig)) == ([b"a2", b"b3", b"c2"] if commits else [b"a1", b"b3"])


@WAYS
def test_a_view_ends_before_the_first_open_message(rig, commits):
    producer = rig.producer("t")
    transaction = rig.begin("t")
    rig.run(rig.sends(*keyed(producer, ("a", b"a1"), ("a", b"a2"))))
    rig.run(rig.sends_in(transaction, *keyed(producer, ("a", b"a3"))))
    rig.run(rig.sends(*keyed(producer, ("b", b"b4"))))
    first = rig.partition("t").limit
    assert compact(rig) == nightly.COMPACTED
    assert rig.partition("t").view.horizon == (first[0], first[1] - 1)
    assert values(rig) == [b"a2"]
    assert compact(rig) == nightly.NOTHING_NEW
    rig.end(transaction, "t", commits=commits)
    assert values(rig) == [b"a2"] + [b"a3"] * commits + [b"b4"]
    assert compact(rig) == nightly.COMPACTED
    assert values(rig) == [b"a3" if commits else b"a2", b"b4"]


def test_without_the_newest_state_a_view_ends_where_the_files_say_nothing(rig):
    producer = rig.producer("t")
    rig.run(rig.sends(*keyed(producer, ("a", b"a1"))))
    transaction = rig.begin("t")
    rig.run(rig.sends_in(transaction, *keyed(producer, ("a", b"a2"))))
    rig.end(transaction, "t")
    assert not confirmed.is_settled(rig.data_dir, rig.partition("t").partition_id)
    assert compact(rig, settles=False) == nightly.COMPACTED and values(rig) == [b"a1", b"a2"]
    assert rig.partition("t").view.horizon[1] == 0
    assert compact(rig) == nightly.COMPACTED and values(rig) == [b"a2"]


@WAYS
def test_a_view_that_reaches_into_an_open_transaction_is_refused(rig, commits):
    producer = rig.producer("t")
    rig.run(rig.sends(*keyed(producer, ("a", b"a1"), ("a", b"a2"))))
    rig.asked("settle", "t")
    partition, horizon = rig.partition("t"), rig.partition("t").last_confirmed
    transaction = rig.begin("t")
    compacted_ledgers.make_empty(partition.folder, 1, partition.partition_id, horizon, rig.now_ms)
    rig.run(rig.sends_in(transaction, *keyed(producer, ("a", b"a3"))))
    assert rig.owner.views._objection(partition, 2).startswith("There is no")
    first = partition.limit
    made = compacted_ledgers.unfinished(partition.folder, 2)
    made.mkdir(parents=True)
    compacted_ledgers.finish(made, compacted_ledgers.Manifest(partition.partition_id, first, (), rig.now_ms))
    assert "transaction" in rig.owner.views._objection(partition, 2)
    rig.end(transaction, "t", commits=commits)
    assert "transaction" not in rig.owner.views._objection(partition, 2)


def test_a_topic_is_due_for_what_a_compaction_can_read(tmp_path):
    rig = TransactionalRig(tmp_path / "data", compaction_threshold_bytes=1)
    producer = rig.producer("t")
    transaction = rig.begin("t")
    rig.run(rig.sends_in(transaction, *keyed(producer, ("a", b"a1"))))
    assert compacted_views.due(rig.owner.topics.by_name.values()) == []
    rig.end(transaction, "t")
    assert compacted_views.due(rig.owner.topics.by_name.values()) == [(rig.partition("t").partition_id, TOPIC)]
    rig.close()
