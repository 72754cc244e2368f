"""Exports: what nights have to export is kept where a policy says so, whatever else would delete it."""
import errno

import pytest
from crc32c import crc32c

from geminga.proto import names
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.cursors.cursor import EVICTED, EXPIRED
from geminga.storage.offline import backup, verify
from geminga.storage.offline.findings import Severity
from geminga.storage.topics import exported
from geminga.storage.topics.exported import Exported

from . import transacting
from .files import flip
from .test_backup import ask, name_of
from .test_compacted import Topic
from .test_punching import filled as filled_with_blocks
from .test_punching import used

SECOND, HOUR_MS = 1_000, 3_600_000
KEEPS = {"export": "messages", "export_before_deletion": True}
ASKED = {"earliest": False, "publishers": False, "consumers": False}      # fields of a question for statistics


def filled(rigs, ledgers=4, **options):
    """Publish two entries to each of some ledgers.  Return (rig, positions, consumer)."""
    rig = rigs(roll_over_entries=2, **options)
    producer, consumer = rig.producer("t"), rig.consumer("t")
    positions = [position for _ in range(2 * ledgers) for position in rig.publish(producer, b"x" * 1_000)]
    return rig, positions, consumer


def told(rig, position, topic="t", **other):
    """Tell the owner how far a partition is exported; return its answer."""
    about = {"partition_id": rig.partition(topic).partition_id, "position": position} | other
    [answer] = rig.run(rig.question("exported", topic, **about)).answered
    return answer


def ticks(rig, seconds):
    for _ in range(seconds):
        rig.run(after_ms=SECOND)


def stored(rig):
    return [position for position, _ in rig.everything("t")]


def set_policy(rig, name, value, scope="public/default"):
    rig.owner.catalogue.policies.set(scope, name, value)
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope=scope))


# -- paths that delete

def test_what_is_acknowledged_stays_until_it_is_exported(rigs):
    rig, positions, consumer = filled(rigs, **KEEPS)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    assert stored(rig) == positions
    assert told(rig, positions[3]) == {"answer": None}
    assert stored(rig) == positions[4:]
    told(rig, positions[4])      # half of a ledger, which stays as a whole
    assert stored(rig) == positions[4:]
    told(rig, positions[-1])
    assert len(rig.files("t")) == 1


@pytest.mark.parametrize("options", [
    {"export": "messages"}, {"export": "compacted"}, {"export": "none", "export_before_deletion": True}])
def test_without_both_policies_nothing_waits(rigs, options):
    rig, positions, consumer = filled(rigs, **options)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    assert len(rig.files("t")) == 1


def test_policies_that_are_set_and_taken_away_hold_at_once(rigs):
    rig, positions, consumer = filled(rigs)
    set_policy(rig, "export", "messages")
    set_policy(rig, "exportBeforeDeletion", True, "persistent://public/default/t")
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    assert stored(rig) == positions
    set_policy(rig, "export", None)
    assert len(rig.files("t")) == 1


def test_what_is_too_old_to_be_retained_stays_until_it_is_exported(rigs):
    rig, positions, consumer = filled(rigs, retention_s=60, retention_bytes=-1, **KEEPS)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    ticks(rig, 1)
    rig.run(after_ms=HOUR_MS)
    rig.run(after_ms=10 * SECOND)
    assert stored(rig) == positions
    told(rig, positions[3])
    assert stored(rig) == positions[4:]
    told(rig, positions[-1])
    rig.run(after_ms=20 * SECOND)
    assert stored(rig) == []      # the open ledger went too


def test_what_is_exported_is_retained_as_long_as_other_topics_messages(rigs):
    rig, positions, consumer = filled(rigs, retention_s=60, retention_bytes=-1, **KEEPS)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    told(rig, positions[-1])
    assert stored(rig) == positions


def test_what_expires_is_kept_for_the_export_only(rigs):
    """Subscriptions lose expired messages in time, and ledgers stay."""
    rig, positions, consumer = filled(rigs, message_ttl_s=60, **KEEPS)
    rig.run(after_ms=HOUR_MS)
    subscription = rig.partition("t").subscriptions["sub", True]
    assert subscription.cursor.totals[EXPIRED] == len(positions) and rig.receive(consumer) == []
    assert stored(rig) == positions
    told(rig, positions[-1])
    assert len(rig.files("t")) == 1


def test_what_a_quota_evicts_is_kept_for_the_export_only(rigs):
    rig, positions, _ = filled(rigs, backlog_quota_bytes=2_500, backlog_quota_policy="consumer_backlog_eviction",
                               **KEEPS)
    assert rig.partition("t").subscriptions["sub", True].cursor.totals[EVICTED] >= 6
    assert stored(rig) == positions
    told(rig, positions[3])
    assert stored(rig) == positions[4:]


def test_a_night_gives_back_what_is_exported_and_nothing_else(rigs):
    rig, positions, consumer = filled(rigs, message_ttl_s=60, **KEEPS)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    rig.now_ms += HOUR_MS
    assert rig.asked("enforce", "persistent://public/default/t") is None
    told(rig, positions[3])
    assert stored(rig) == positions[4:]
    after = rigs.restart(rig, export_before_deletion=False)
    found = after.asked("enforce", "persistent://public/default/t")
    assert (found["messages_before"], found["messages_after"]) == (4, 2)
    assert after.partitions      # still open: the alarm is about it


def test_a_subscription_that_is_deleted_takes_nothing_with_it(rigs):
    rig, positions, consumer = filled(rigs, **KEEPS)
    rig.run(rig.command("unsubscribe", consumer_id=consumer.object_id, request_id=9))
    ticks(rig, 2)
    assert stored(rig) == positions


def test_an_unused_topic_is_deleted_once_it_is_exported(rigs):
    rig = rigs(discovery_grace_s=0, delete_inactive_topics=True, inactive_topic_s=10, **KEEPS)
    producer = rig.producer("t")
    [position] = rig.publish(producer, b"x")
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=9))
    ticks(rig, 30)
    assert rig.owner.catalogue.topics.exists(rig.topic("t"))
    folder = rig.partition("t").folder
    told(rig, position)
    ticks(rig, 12)
    assert not rig.owner.catalogue.topics.exists(rig.topic("t"))
    ticks(rig, 1)
    assert not folder.exists()


def test_an_unused_topic_without_messages_is_deleted_in_time(rigs):
    rig = rigs(discovery_grace_s=0, delete_inactive_topics=True, inactive_topic_s=10, **KEEPS)
    rig.run(rig.command("close_producer", producer_id=rig.producer("t").object_id, request_id=9))
    ticks(rig, 12)
    assert not rig.owner.catalogue.topics.exists(rig.topic("t"))


def test_holes_are_punched_up_to_what_is_exported(rigs):
    rig, _, consumer, positions = filled_with_blocks(rigs, 100, **KEEPS)
    before = used(rig)
    rig.run(rig.acks(consumer, *positions[10:90]))
    rig.run(after_ms=SECOND)
    assert used(rig) == before
    told(rig, positions[49])
    rig.run(after_ms=SECOND)
    assert before - 400_000 <= used(rig) <= before - 350_000
    assert [position for position in stored(rig) if position >= positions[50]] == positions[50:]
    told(rig, positions[-1])
    rig.run(after_ms=SECOND)
    assert used(rig) <= before - 750_000


def test_a_compaction_releases_what_its_view_covers_once_that_is_exported(rigs):
    topic = Topic(rigs(roll_over_entries=4, export="compacted", export_before_deletion=True))
    consumer = topic.rig.consumer("t")
    positions = topic.publish(*[(f"k{number}", b"1") for number in range(10)])
    topic.run(topic.rig.acks(consumer, positions[-1], cumulative=True))
    before = topic.rig.files("t")
    topic.compact()
    topic.run(after_ms=2 * SECOND)
    assert len(before) == 3 and topic.rig.files("t") == before
    told(topic.rig, topic.partition.horizon)
    topic.run(after_ms=2 * SECOND)
    assert topic.rig.files("t") == before[-1:]
    reader = topic.reader()
    reader.read()
    assert reader.values == topic.values


def test_an_administrator_deletes_what_is_not_exported(rigs):
    rig, positions, consumer = filled(rigs, **KEEPS)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    told(rig, positions[1])
    folder = rig.partition("t").folder
    rig.asked("truncate", "t")
    assert stored(rig) == []
    later = rig.publish(rig.producer("t"), b"a", b"b")
    after = rigs.restart(rig)
    assert stored(after) == later
    assert told(after, later[-1]) == {"answer": None} and exported.read(folder) is not None
    after.asked("delete", "t", force=True)
    after.run(after_ms=SECOND)
    assert not folder.exists()


# -- the position

def test_the_position_never_moves_back_and_outlives_the_process(rigs):
    rig, positions, _ = filled(rigs, **KEEPS)
    told(rig, positions[3])
    written = exported.read(rig.partition("t").folder)
    assert written == Exported(positions[3], rig.now_ms)
    rig.now_ms += SECOND
    for position in (positions[1], positions[3]):
        assert told(rig, position) == {"answer": None}
    for after in (rigs.crash(rig), rigs.restart(rig)):
        assert after.owner.topics.find(names.parse("persistent://public/default/t")).exported == written
        again = after.consumer("t")
        after.run(after.acks(again, positions[-1], cumulative=True))
        assert stored(after) == positions[4:]


def test_a_position_that_is_not_the_partitions_is_refused(rigs):
    """It lies behind the end, in an open transaction, or in a topic that was deleted meanwhile; nothing is changed."""
    rig, positions, _ = filled(rigs, **KEEPS)
    ledger_id, entry_id = positions[-1]
    assert "ends at" in told(rig, [ledger_id, entry_id + 1])["text"]
    assert "ends at" in told(rig, [ledger_id + 1, -1])["text"]
    assert "created again" in told(rig, positions[0], partition_id=999)["text"]
    partition = rig.partition("t")
    partition.with_transactions().published(transacting.FIRST, positions[4][0], positions[4][1], 1)
    assert "transaction" in told(rig, positions[4])["text"]
    assert exported.read(partition.folder) is None and partition.exported is None
    assert told(rig, positions[3]) == {"answer": None}


def test_a_topic_that_is_not_there_is_refused(rig):
    [answer] = rig.run(rig.question("exported", "persistent://public/default/none", partition_id=1, position=[0, 0])
                       ).answered
    assert "refused" in answer
    [answer] = rig.run(rig.question("exported", "non-persistent://public/default/t", partition_id=1, position=[0, 0])
                       ).answered
    assert "refused" in answer


def test_a_position_that_cannot_be_written_is_refused_and_the_last_one_holds(rigs, monkeypatch):
    rig, positions, consumer = filled(rigs, **KEEPS)
    rig.run(rig.acks(consumer, positions[-1], cumulative=True))
    told(rig, positions[1])
    folder = rig.partition("t").folder

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))
    with monkeypatch.context() as patched:
        patched.setattr(exported, "write_anew", full)
        assert "No space left" in told(rig, positions[-1])["text"]
    assert stored(rig) == positions[2:]
    assert exported.read(folder).position == positions[1] == rig.partition("t").exported.position
    assert told(rig, positions[-1]) == {"answer": None}


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "of another", "no position", "a folder"])
def test_a_damaged_file_counts_as_if_nothing_were_exported(rigs, damage):
    """The damage is told once, nothing is deleted, and the next export writes the file anew."""
    rig, positions, _ = filled(rigs, **KEEPS)
    told(rig, positions[3])
    path = rig.partition("t").folder / exported.NAME
    data = path.read_bytes()
    if damage == "flipped":
        flip(path, 20)
    elif damage == "of another":
        other = path.parent.with_name("77")
        other.mkdir()
        exported.write(other, Exported(positions[3], 1))
        path.write_bytes((other / exported.NAME).read_bytes())
        (other / exported.NAME).unlink()
        other.rmdir()
    elif damage == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({"cut": data[:-3], "empty": b"", "no position": b"%08x 7" % crc32c(b"7")}[damage])
    after = rigs.restart(rig)
    again = after.consumer("t")
    after.run(after.acks(again, positions[-1], cumulative=True))
    assert stored(after) == positions and after.partition("t").exported is None
    assert after.counters.read()["damage_found"] == 1
    if damage != "a folder":
        told(after, positions[3])
        assert exported.read(path.parent).position == positions[3] and stored(after) == positions[4:]


def test_what_is_published_after_exported_entries_were_lost_is_to_be_exported(rigs):
    """Without syncs a power cut loses entries; new ones do not take their positions."""
    rig = rigs(**KEEPS)
    [(ledger_id, entry_id)] = rig.publish(rig.producer("t"), b"x")
    exported.write(rig.partition("t").folder, Exported((ledger_id, entry_id + 5), 1))
    after = rigs.restart(rig)
    later = after.publish(after.producer("t"), b"a", b"b", b"c")
    assert later[0][0] > ledger_id
    after.partition("t").check()
    after.owner.topics.roll(after.partition("t"))
    after.run()
    assert stored(after) == later


def test_what_a_killed_write_left_is_no_obstacle(rigs):
    rig, positions, _ = filled(rigs, **KEEPS)
    told(rig, positions[1])
    fresh = rig.partition("t").folder / f"{exported.NAME}.new"
    fresh.write_bytes(b"half")
    after = rigs.restart(rig)
    after.consumer("t")
    assert after.partition("t").exported.position == positions[1]
    told(after, positions[3])
    assert exported.read(fresh.parent).position == positions[3] and not fresh.exists()


def test_a_job_without_a_broker_moves_the_position_forward_only(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    exported.advance(folder, (3, 4))
    exported.advance(folder, (3, 2))
    assert exported.read(folder).position == (3, 4)
    exported.advance(folder, (5, 0))
    assert exported.read(folder).position == (5, 0)
    flip(folder / exported.NAME, 3)
    exported.advance(folder, (1, 1))
    assert exported.read(folder).position == (1, 1)
    with pytest.raises(OSError, match="No such file"):
        exported.advance(tmp_path / "8", (1, 1))


# -- other copies of the folder

def test_a_backup_has_no_position(rigs, tmp_path):
    """The tables may be ahead of a backup, so nothing that it holds counts as exported; of closed topics, too."""
    rig, positions, _ = filled(rigs, **KEEPS)
    told(rig, positions[3])
    rig.publish(rig.producer("closed"), b"x")
    told(rig, rig.partition("closed").last_confirmed, "closed")
    rig.asked("unload", "closed")

    def cut():
        ask(rig, "backup-hold")
        found = [ask(rig, "backup-cut")]
        ask(rig, "backup-hold", is_over=True)
        return found
    backup.make(rig.data_dir, tmp_path / "backups", lambda: ask(rig, "backup-begin"), cut)
    [made] = backup.backups(tmp_path / "backups")
    assert len(list(made.glob("partitions/*/state"))) == 2
    assert list(made.rglob(f"{exported.NAME}*")) == []


def test_verification_finds_a_damaged_position(rigs):
    rig, positions, _ = filled(rigs, **KEEPS)
    told(rig, positions[3])
    folder, data_dir = rig.partition("t").folder, rig.data_dir
    rig.close()
    assert [found for found in verify.walk(data_dir) if found.severity > Severity.NOTE] == []
    flip(folder / exported.NAME, 3)
    [found] = verify.walk(data_dir)
    assert (found.path, found.severity) == (folder / exported.NAME, Severity.HARMLESS)


# -- what is told

def test_statistics_tell_how_far_a_topic_is_exported(rigs):
    rig, positions, _ = filled(rigs, **KEEPS)
    fields = "exportedPosition", "lastExportTimestamp", "unexportedSize", "oldestUnexportedMessageAgeSeconds"

    def shown():
        stats = rig.shown("stats", "persistent://public/default/t", **ASKED)
        return tuple(stats.get(name) for name in fields)
    size = rig.shown("stats", "persistent://public/default/t", **ASKED)["storageSize"]
    rig.now_ms += 7 * SECOND
    assert shown() == ("-1:-1", 0, size, 7)
    told(rig, positions[3])
    assert shown() == ("{}:{}".format(*positions[3]), rig.now_ms, size // 2, 7)
    told(rig, positions[-1])
    assert shown() == ("{}:{}".format(*positions[-1]), rig.now_ms, 0, -1)
    set_policy(rig, "export", "none")
    assert shown() == (None, None, None, None)


def test_a_non_persistent_topic_is_not_exported(rigs):
    topic = "non-persistent://public/default/live"
    rig = rigs(**KEEPS)
    rig.publish(rig.producer(topic), b"x")
    rig.consumer(topic)
    assert "exportedPosition" not in rig.shown("stats", topic, **ASKED)


def test_the_brokers_own_topics_are_not_exported(rigs):
    rig = rigs(**KEEPS)

    def exports(topic):
        return policies_of(rig.owner.catalogue, names.parse(topic), rig.options).keeps_unexported
    assert exports("persistent://public/default/t") and not exports("persistent://pulsar/system/t")
    assert not exports("persistent://public/default/__change_events")


def late(rig, before_ms, most=10):
    [answer] = rig.run(rig.tell("list-unexported", before_ms=before_ms, most=most)).answered
    return answer["answer"]["total"], [(row["topic"], row["since_ms"]) for row in answer["answer"]["rows"]]


def test_topics_with_old_messages_to_export_are_listed_the_oldest_first(rigs):
    rig = rigs(export="messages")
    topics = [str(name_of(name)) for name in ("second", "first", "third", "none")]
    published = {}
    for topic in (topics[1], topics[0], topics[2]):
        rig.publish(rig.producer(topic), b"x")
        published[topic] = rig.now_ms
        rig.run(after_ms=SECOND)
    rig.producer(topics[3])
    order = list(published.items())
    assert late(rig, rig.now_ms + 1) == (3, order)
    assert late(rig, order[1][1]) == (1, order[:1])
    assert late(rig, rig.now_ms + 1, most=1) == (3, order[:1])
    told(rig, rig.partition(order[0][0]).last_confirmed, order[0][0])
    assert late(rig, rig.now_ms + 1) == (2, order[1:])
    set_policy(rig, "export", "none")
    assert late(rig, rig.now_ms + 1) == (0, [])


def test_the_age_of_what_is_not_exported_is_a_column(rigs):
    rig = rigs(export="messages")
    rig.publish(rig.producer("t"), b"x")
    rig.run(after_ms=SECOND)
    assert rig.owner.statistics.topics()
    [topic] = rig.owner.statistics.topics()
    [since_ms] = rig.owner.statistics.topic_values([topic], "unexported_since_ms")
    assert since_ms == rig.now_ms - SECOND


def test_topics_that_nobody_has_opened_since_the_start_are_looked_at_too(rigs):
    rig = rigs(export="messages")
    for name in ("a", "b"):
        rig.publish(rig.producer(name), b"x")
    after = rigs.restart(rig)
    ticks(after, 2)
    assert late(after, after.now_ms + 1)[0] == 2
