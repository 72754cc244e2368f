"""Smallest cases of faults that the simulation found: crashes between two calls of the disk, and failing disks."""
import random

import pytest

from geminga.storage.errors import NotDurable
from geminga.storage.ledgers.ledger_files import open_ledger

from ..simulation.disk import Disk, Fate, Killed
from .rig import Rig


class Oldest(random.Random):
    """A source of chance that always picks the oldest possible state."""

    def choice(self, found):
        return found[0]


class Crashing:
    """Owners on a simulated disk that forgets unsynced data, or fails."""

    def __init__(self, folder):
        self.folder, self.disk, self.made = folder, Disk(folder / "0", Oldest(0)), []

    def owner(self, **options) -> Rig:
        self.disk.begin_process()
        self.made.append(Rig(self.disk.root, **options))
        return self.made[-1]

    def kill(self) -> None:
        self.disk.is_dead = True
        self.made[-1].owner.catalogue.close()
        self.made[-1].journal._threads.shutdown()

    def cut_power(self, how="nothing") -> None:
        """Cut the power; nothing that was not synced is left."""
        self.disk.cut(self.folder / str(len(self.made)), how)


@pytest.fixture
def crashing(tmp_path):
    made = Crashing(tmp_path)
    with made.disk.watched():
        yield made
        made.disk.is_dead = True


def test_the_folder_of_all_partitions_is_there_after_a_power_cut(crashing):
    rig = crashing.owner()
    rig.publish(rig.producer("a"), b"1", b"2")
    rig.close()
    crashing.cut_power()
    assert [payload for _, payload in crashing.owner().everything("a")] == [b"1", b"2"]


def test_what_a_failed_sync_left_in_memory_is_on_disk_once_the_next_process_has_answered(crashing):
    rig = crashing.owner()
    producer = rig.producer("a")
    rig.publish(producer, b"1")
    crashing.disk.fate.fail_sync_in = 1
    with pytest.raises(NotDurable, match="Input/output error"):
        rig.publish(producer, b"2")
    crashing.kill()
    rig = crashing.owner()
    there = rig.everything("a")
    rig.publish(rig.producer("a"), b"3")
    crashing.kill()
    crashing.cut_power()
    rig = crashing.owner()
    assert rig.everything("a")[:-1] == there
    assert rig.damage == []


def test_segments_that_were_used_again_are_not_replayed_after_a_clean_stop_and_a_power_cut(crashing):
    rig = crashing.owner(journal_segment_bytes=8_192, journal_segments_max=3)
    producer = rig.producer("a")
    for _ in range(20):
        rig.publish(producer, bytes(2_000))
    rig.close()
    crashing.cut_power()
    assert crashing.owner().recovered == 0


@pytest.mark.parametrize("ask, arguments", [("skip", {"entries": 1}), ("clear", {})])
def test_what_administration_skipped_is_skipped_after_a_power_cut(crashing, ask, arguments):
    rig = crashing.owner()
    consumer = rig.consumer("a")
    rig.publish(rig.producer("a"), b"1")
    rig.asked(ask, "a", subscription="sub", **arguments)
    crashing.kill()
    crashing.cut_power()
    rig = crashing.owner()
    consumer = rig.consumer("a")
    assert rig.receive(consumer) == []


def ledgers(rig) -> set[str]:
    return {path.name for path in rig.partition("a").folder.iterdir() if path.suffix in (".ledger", ".index")}


@pytest.mark.parametrize("room", range(4))
def test_a_ledger_for_which_there_is_no_room_leaves_no_file(crashing, room):
    rig = crashing.owner(roll_over_entries=1)
    producer = rig.producer("a")
    rig.publish(producer, b"1")
    before = ledgers(rig)
    crashing.disk.fate.room = room
    assert rig.publish(producer, b"2") == []
    assert ledgers(rig) == before


def test_a_ledger_that_was_being_made_leaves_no_file(crashing):
    rig = crashing.owner(roll_over_entries=1)
    producer = rig.producer("a")
    rig.publish(producer, b"1")
    before = ledgers(rig)
    crashing.disk.fate = Fate(kill_in=3)
    with pytest.raises(Killed):
        rig.publish(producer, b"2")
    assert ledgers(rig) > before
    crashing.kill()
    rig = crashing.owner()
    rig.consumer("a")
    assert ledgers(rig) == before


def test_what_was_unloaded_does_not_write_over_what_is_there_since(crashing):
    """A late checkpoint of an unloaded partition does not overwrite the state of its successor."""
    rig = crashing.owner()
    rig.publish(rig.producer("a"), b"1")
    before = rig.partition("a").open_ledger
    rig.asked("unload", "a")
    rig.publish(rig.producer("a"), b"2")
    after = rig.partition("a").open_ledger
    after.checkpoint()
    before.checkpoint()
    assert open_ledger(after.folder, after.partition_id, after.ledger_id).entries == 2


def test_a_clean_stop_needs_no_ledger_that_was_deleted_since_its_topic_was_unloaded(crashing):
    rig = crashing.owner(roll_over_entries=1)
    rig.publish(rig.producer("a"), b"1")
    rig.asked("unload", "a")
    rig.publish(rig.producer("a"), b"2")
    assert rig.files("a") == [2]
    rig.close()
    assert crashing.owner().recovered == 0


def test_an_unload_whose_sync_fails_ends_the_owner(crashing):
    rig = crashing.owner()
    rig.publish(rig.producer("a"), b"1")
    crashing.disk.fate.fail_sync_in = 2      # the journal's is the first
    with pytest.raises(NotDurable, match="Input/output error"):
        rig.asked("unload", "a")
    crashing.kill()
    crashing.cut_power()
    assert [payload for _, payload in crashing.owner().everything("a")] == [b"1"]


def test_a_command_that_nobody_answers_may_fail(crashing):
    """A command that fails without an answer leaves its work undone."""
    rig = crashing.owner()
    consumer = rig.consumer("a", subType=1)
    rig.publish(rig.producer("a"), b"1")
    [(position, _)] = rig.receive(consumer)
    rig.partition("a").open_ledger.close()
    crashing.disk.fate.files_left = 0
    assert rig.run(rig.redeliver(consumer, position)).replies == []
    crashing.disk.fate.files_left = None
    assert rig.delivered(rig.run(rig.redeliver(consumer, position)), consumer) == [(position, b"1")]


def test_a_ledger_is_deleted_again_only_when_the_record_that_says_so_is_on_disk(crashing):
    """A power cut after two kills around a deletion leaves all of the ledger or nothing of it.

    The first kill comes before the deletion's sync, the second in the recovery.
    """
    rig = crashing.owner(roll_over_entries=1)
    consumer, producer = rig.consumer("a"), rig.producer("a")
    first, = rig.publish(producer, b"1")
    rig.publish(producer, b"2")
    crashing.disk.fate.kill_in = 2       # the record is written, and not synced
    with pytest.raises(Killed):
        rig.run(rig.acks(consumer, first, request_id=1))
    crashing.kill()
    crashing.disk.begin_process()

    def say(kind, what):
        if (kind, what) == ("sync", "1.journal"):
            crashing.disk.fate.kill_in = 1
    crashing.disk.say = say
    with pytest.raises(Killed):
        Rig(crashing.disk.root)
    crashing.disk.say = None
    crashing.disk.is_dead = True
    assert {"1.ledger", "1.index"} <= ledgers(rig)


def test_a_ledger_that_a_start_after_a_move_has_deleted_stays_deleted(crashing):
    """A ledger deleted by a start with other owners stays deleted, although that start retires the journal with the
    op.
    """
    rig = crashing.owner()
    rig.publish(rig.producer("a"), b"1")
    rig.consumer("a")
    rig.close()
    rig = crashing.owner(roll_over_entries=1)
    consumer = rig.consumer("a")
    first, _ = rig.receive(consumer)[0]
    rig.publish(rig.producer("a"), b"2")
    crashing.disk.fate = Fate(landmark="unlink", kill_in=1)
    with pytest.raises(Killed):
        rig.run(rig.acks(consumer, first, request_id=1))
    crashing.kill()
    crashing.owner(has_moved=True)
    crashing.kill()
    crashing.cut_power()
    assert not list(crashing.disk.root.glob(f"partitions/*/{first[0]}.*"))
    rig = crashing.owner()
    assert [payload for _, payload in rig.everything("a")] == [b"2"]
