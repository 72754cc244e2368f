"""The scan of closed partitions: policies act on partitions without clients, after a start and when they are set."""
import pytest

from geminga.proto.names import parse
from geminga.storage.cursors.cursor import EXPIRED

HOUR_MS = 3_600_000


def stored(rigs, topics, **options):
    """Return an owner that has opened none of its topics, each of which has an unacknowledged message."""
    rig = rigs(**options)
    for topic in topics:
        rig.consumer(topic)
        rig.publish(rig.producer(topic), b"x")
    after = rigs.restart(rig)
    after.now_ms += HOUR_MS
    return after


def ticks(rig, count):
    for _ in range(count):
        rig.run(after_ms=1_000)


def expired(rig):
    return {str(partition.name): subscription.cursor.totals[EXPIRED]
            for partition in rig.partitions for subscription in partition.subscriptions.values()}


@pytest.mark.slow
def test_messages_of_partitions_that_nobody_uses_expire(rigs):
    """The scan opens few partitions at a time, so that clients' requests do not wait."""
    rig = stored(rigs, [f"t{number}" for number in range(120)], message_ttl_s=60)
    ticks(rig, 1)
    assert 0 < len(rig.partitions) < 120
    ticks(rig, 3)
    assert list(expired(rig).values()) == [1] * 120


def test_partitions_without_such_a_policy_stay_closed(rigs):
    rig = stored(rigs, ["a", "b"], backlog_quota_bytes=1_000)
    ticks(rig, 5)
    assert rig.partitions == []
    rig.owner.catalogue.policies.set("persistent://public/default/b", "messageTTL", 60)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="persistent://public/default/b"))
    ticks(rig, 5)
    assert expired(rig) == {"persistent://public/default/b": 1}


def test_old_ledgers_of_partitions_that_nobody_uses_go(rigs):
    rig = rigs(roll_over_entries=2, retention_s=600, retention_bytes=-1)
    producer, consumer = rig.producer("t"), rig.consumer("t")
    positions = [position for _ in range(6) for position in rig.publish(producer, b"x")]
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    after = rigs.restart(rig)
    after.now_ms += HOUR_MS
    ticks(after, 2)
    assert len(after.files("t")) == 1


def test_topics_that_no_client_ever_used_are_deleted_where_unused_ones_are(rigs):
    rig = rigs(discovery_grace_s=0, inactive_topic_s=10)
    topics, policies = rig.owner.catalogue.topics, rig.owner.catalogue.policies
    kept, early, late, partitioned = (parse(f"persistent://public/default/{name}") for name in "abcd")
    for topic in (early, late):
        policies.set(str(topic), "inactiveTopicPolicies", {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 10,
            "deleteWhileInactive": True})
    topics.create(kept, 0)
    topics.create(early, 0)
    topics.create(partitioned, 2)
    ticks(rig, 9)
    topics.create(late, 0)
    ticks(rig, 4)
    assert not topics.exists(early) and topics.exists(late)
    ticks(rig, 9)
    assert topics.all_base_names() == [str(kept), str(partitioned)] and rig.partitions == []


@pytest.mark.slow
def test_topics_that_no_client_ever_used_are_opened_a_few_at_a_time(rigs):
    rig = rigs(discovery_grace_s=0, delete_inactive_topics=True, inactive_topic_s=10)
    for number in range(1_200):
        rig.owner.catalogue.topics.create(parse(f"persistent://public/default/{number}"), 0)
    ticks(rig, 1)
    assert 0 < len(rig.partitions) <= 50
    ticks(rig, 50)
    assert rig.owner.catalogue.topics.all_base_names() == []


def test_another_owners_partitions_are_left_alone(rigs):
    rig = stored(rigs, ["a", "b"], message_ttl_s=60)
    rig.owner.closed_scan._is_mine = lambda name: name.endswith("/b")
    rig.owner.closed_scan.begin()
    ticks(rig, 5)
    assert list(expired(rig)) == ["persistent://public/default/b"]


def test_one_that_is_damaged_keeps_no_other_from_its_turn(rigs, capfd):
    rig = stored(rigs, ["a", "b"], message_ttl_s=60)
    folder = rig.data_dir / "partitions" / "1"
    (folder / "state").write_bytes(b"nothing")
    ticks(rig, 5)
    assert list(expired(rig)) == ["persistent://public/default/b"]
    assert "is not looked at" in capfd.readouterr().err
