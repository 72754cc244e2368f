"""The owner's part in nightly maintenance: which entries and ledgers of a partition it deletes at once, and which it
keeps.
"""
import os

import pytest

from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.ledgers import compacted_ledgers

TOPIC, DAY_MS = "persistent://public/default/t", 24 * 3600 * 1000


def enforced(rig):
    """Have the owner enforce expiry and retention on the topic, in a pass without a tick. Return its answer."""
    return rig.asked("enforce", TOPIC)


def test_what_has_expired_and_need_not_be_kept_goes_at_once_and_is_counted(rigs):
    rig = rigs(roll_over_entries=2, message_ttl_s=60)
    producer, consumer = rig.producer("t"), rig.consumer("t")
    positions = [position for _ in range(5) for position in rig.publish(producer, b"x" * 1_000)]
    rig.run(rig.acks(consumer, positions[0]))
    assert enforced(rig) is None
    rig.now_ms += 61_000
    found = enforced(rig)
    assert (found["expired"], found["messages_before"]) == (4, 5) and found["topic"] == TOPIC
    assert found["freed"] == found["bytes_before"] - found["bytes_after"] > 2_000
    assert (found["messages_after"], rig.files("t")) == (1, [positions[-1][0]])
    assert enforced(rig) is None


def test_retention_is_enforced_as_far_as_it_is_due(rigs):
    rig = rigs(roll_over_entries=1, retention_s=3_600, retention_bytes=-1)
    producer, consumer = rig.producer("t"), rig.consumer("t")
    for _ in range(3):
        [last] = rig.publish(producer, b"x" * 1_000)
        rig.now_ms += 10 * 60_000
    rig.run(rig.acks(consumer, last, cumulative=True))
    rig.now_ms += 45 * 60_000      # the first came 75 minutes ago, the second 65, the last 55
    before, found = rig.files("t"), enforced(rig)
    assert (len(before), rig.files("t")) == (3, before[2:])
    assert (found["expired"], found["messages_before"], found["messages_after"]) == (0, 3, 1) and found["freed"] > 2_000


def test_a_partition_that_is_not_open_is_not_opened_for_nothing(rigs):
    rig = rigs()
    rig.publish(rig.producer("t"), b"x")
    after = rigs.restart(rig)
    assert enforced(after) is None and not after.partitions


def test_one_with_something_to_give_back_is_closed_again(rigs):
    """A closed partition is opened to delete ledgers if its policies changed, and closed again. Here its retention
    was removed meanwhile.
    """
    rig = rigs(roll_over_entries=1, retention_s=-1, retention_bytes=-1)
    producer, consumer = rig.producer("t"), rig.consumer("t")
    for _ in range(4):
        [last] = rig.publish(producer, b"x" * 1_000)
    rig.run(rig.acks(consumer, last, cumulative=True))
    kept = rig.files("t")
    folder = rig.partition("t").folder
    after = rigs.restart(rig, retention_s=0)
    found = enforced(after)
    assert len(kept) == 4 and found["freed"] > 3_000 and not after.partitions
    assert len(list(folder.glob("*.ledger"))) == 1
    assert len(after.everything("t")) == found["messages_after"] <= 1


def test_producers_that_stay_away_are_forgotten_also_where_nobody_opens_the_partition(rigs):
    """A producer's absence counts from its last use or the broker's start: before that it could not come."""
    rig = rigs(deduplication=True, deduplication_inactivity_s=3_600)
    producer = rig.producer("t", producer_name="p")
    rig.publish(producer, b"x")
    state = format.state_path(rig.partition("t").folder)
    after = rigs.restart(rig)
    os.utime(state, (0, 0))
    after.now_ms += 3_599_000
    assert enforced(after) is None
    after.now_ms += 2_000
    found = enforced(after)
    assert found["names_forgotten"] == 1 and not after.partitions
    assert enforced(after) is None


def test_a_view_that_nobody_finishes_goes_and_one_that_is_being_made_stays(rigs):
    rig = rigs()
    rig.publish(rig.producer("t"), b"x")
    folder = rig.partition("t").folder
    begun = compacted_ledgers.unfinished(folder, 1)
    begun.mkdir(parents=True)
    with locks.lock(begun.parent / locks.LOCK) as is_ours:
        enforced(rig)
        assert is_ours and begun.is_dir()
    enforced(rig)
    assert not begun.exists()


def test_a_topic_that_was_deleted_meanwhile_is_passed_over(rigs):
    assert enforced(rigs()) is None


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 25])
def test_folders_that_the_catalogue_does_not_have_go_but_not_newer_ones(rigs, count):
    rig = rigs()
    for number in range(count + 2):
        rig.publish(rig.producer(f"t{number}"), b"x")
    for number in range(count):
        partition_id, folder = rig.partition(f"t{number}").partition_id, rig.partition(f"t{number}").folder
        rig.asked("delete", f"persistent://public/default/t{number}", force=True)
        assert not folder.exists()
        folder.mkdir()
        (folder / f"{partition_id}.ledger").write_bytes(b"left" * 2_000)
    being_made = format.partition_folder(rig.data_dir, 10_000)
    being_made.mkdir()
    freed = 0
    while (found := rig.run(rig.tell("leftovers")).answered[0]["answer"])["folders"]:
        freed += found["freed"]
    assert freed >= count * 8_000 and found["left"] == 0
    left = {path.name for path in being_made.parent.iterdir()}
    assert left == {"10000", *(str(one.partition_id) for one in rig.partitions)}
