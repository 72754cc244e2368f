"""Kills and power cuts at chosen moments: the smallest cases of faults that the simulation can find."""
import itertools
import os
import threading
from pathlib import Path

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.cursors.state_file import StateFile
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import ledger, ledger_files
from geminga.storage.ledgers.journal import Journal
from geminga.storage.ledgers.journal_reader import replay
from geminga.storage.owner.owner_pass import TICK_MS
from geminga.storage.owner.recovery import journal_folder
from geminga.storage.topics import publish_plan

from .disk import Disk
from .files import copy_of, cut, flip, make_newer
from .rig import Rig, T


class Died(BaseException):
    """The process was killed at this call."""


@pytest.fixture
def dies(monkeypatch):
    """A function dies(owner, name) that kills the process when it calls the method of that name."""
    def dies(owner, name):
        def die(*_, **__):
            raise Died
        monkeypatch.setattr(owner, name, die)
    return dies


def payloads(found):
    return [payload for _, payload in found]


TOPICS = ("a", "b")
SMALL = {"journal_segment_bytes": 64 << 10, "journal_segments_max": 4, "roll_over_entries": 4}


def make_history(rig):
    """Make journal records of every kind: ledgers opened and deleted; cursors moved, with holes, reset and deleted."""
    for topic in TOPICS:
        producer = rig.producer(topic)
        one, two, gone = (rig.consumer(topic, name) for name in ("one", "two", "gone"))
        positions = [rig.publish(producer, b"%s%d" % (topic.encode(), number))[0] for number in range(14)]
        rig.run(rig.acks(one, positions[5], cumulative=True), rig.acks(two, positions[6], cumulative=True))
        rig.run(
            rig.acks(one, positions[7], positions[12]),
            rig.acks(two, positions[9], positions[13]),
            rig.acks(gone, positions[8]),
        )
        answers = rig.run(rig.command("unsubscribe", consumer_id=gone.object_id, request_id=1))
        assert answers.forgotten
        ledger_id, entry_id = positions[8]
        rig.run(
            rig.command(
                "seek", consumer_id=one.object_id, request_id=2, message_id={"ledgerId": ledger_id, "entryId": entry_id}
            )
        )
        rig.run(rig.acks(rig.consumer(topic, "one"), positions[11], request_id=3))


def state_of(rig):
    """Return what the next clients get: all entries of each topic, and the backlog of each subscription."""
    found = {topic: rig.everything(topic) for topic in TOPICS}
    for topic in TOPICS:
        assert sorted(name for name, _ in rig.partition(topic).subscriptions) == ["one", "two"]
        for name in ("one", "two"):
            found[topic, name] = rig.receive(rig.consumer(topic, name))
    return found


def check_left(found, topic):
    """Check that each subscription of make_history has its unacknowledged entries, in order."""
    for name, left in (("one", (8, 9, 10, 12, 13)), ("two", (7, 8, 10, 11, 12))):
        assert payloads(found[topic, name]) == [b"%s%d" % (topic.encode(), number) for number in left]


class Interrupted:
    """Lets this thread change or sync files a number of times, then kills the process."""

    CHANGES = (
        (os, "pwrite"),
        (os, "pwritev"),
        (os, "posix_fallocate"),
        (os, "ftruncate"),
        (Path, "unlink"),
        (Path, "rmdir"),
        (Path, "replace"),
        (StateFile, "prepare"),
        (StateFile, "put"),
    )
    SYNCS = (os, "fsync"), (os, "fdatasync")

    def __init__(self, calls, times):
        self._left = times
        self._patch = pytest.MonkeyPatch()
        for owner, name in calls:
            self._patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real):
        def counted(*arguments, **options):
            if threading.current_thread() is threading.main_thread():
                self._left -= 1
                if self._left < 0:
                    raise Died
            return real(*arguments, **options)
        return counted

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        """Return True if the process died in the block."""
        self._patch.undo()
        return kind is Died


# -- kills -------------------------------------------------------------------------------------------------------------

def test_what_was_synced_and_not_yet_written_into_ledgers_is_recovered(rig, rigs, dies, monkeypatch):
    """The journal brings back entries, acknowledgements and a new ledger that a kill kept from their files."""
    producer, consumer = rig.producer("a"), rig.consumer("a")
    [first] = rig.publish(producer, b"1")
    rig.now_ms += rig.options.roll_over_age_s * 1000 + 1
    dies(publish_plan, "apply")
    with pytest.raises(Died):
        rig.run(rig.acks(consumer, first), rig.sends((producer, b"2"), (producer, b"3")))
    monkeypatch.undo()
    again = rigs.crash(rig)
    assert again.recovered == 3
    assert payloads(again.receive(again.consumer("a"))) == [b"2", b"3"]
    [position] = again.publish(again.producer("a"), b"4")
    assert position[0] > first[0] and position[1] == 2


@pytest.mark.slow
def test_recovery_may_be_killed_anywhere_and_begun_again(rigs, tmp_path, monkeypatch):
    """A recovery that is killed before any of its changes ends, at the next start, where an undisturbed one does."""
    for name in ("fsync", "fdatasync"):      # a kill loses nothing that was written
        monkeypatch.setattr(os, name, lambda fd: None)
    rig = rigs(**SMALL)
    make_history(rig)
    expected = state_of(rigs.crash(rig))
    for topic in TOPICS:
        check_left(expected, topic)
    for times in itertools.count():
        left = copy_of(rig.data_dir, tmp_path / f"left-{times}")
        with Interrupted(Interrupted.CHANGES, times):
            rigs.on(left, now_ms=rig.now_ms, **SMALL)
            break
        again = Rig(left, now_ms=rig.now_ms, **SMALL)
        assert state_of(again) == expected, times
        again.close()
    assert times > 30


@pytest.mark.parametrize(("command", "step"), [("seek", (Journal, "append")), ("unsubscribe", (Catalogue, "commit"))])
def test_acknowledgements_stay_when_a_command_that_makes_them_void_did_not_get_there(
    rig, rigs, dies, monkeypatch, command, step
):
    """Old acknowledgements stay in the state file until a command that voids them is durable."""
    positions = rig.publish(rig.producer("a"), b"1", b"2", b"3")
    rig.run(rig.acks(rig.consumer("a"), positions[1], request_id=1))
    rig = rigs.restart(rig)
    consumer = rig.consumer("a")
    fields = {"message_id": {"ledgerId": positions[0][0], "entryId": 0}} if command == "seek" else {}
    dies(*step)
    with pytest.raises(Died):
        rig.run(rig.command(command, consumer_id=consumer.object_id, request_id=2, **fields))
    monkeypatch.undo()
    again = rigs.crash(rig)
    assert payloads(again.receive(again.consumer("a"))) == [b"1", b"3"]


@pytest.mark.parametrize("name", ["allocate", "_EXTENT_MIN", "write_all"])
def test_a_kill_while_a_ledger_is_made_leaves_a_partition_that_opens(rig, rigs, dies, monkeypatch, name):
    """A partition opens after a kill at any step of making a ledger, whichever of its files exist."""
    producer = rig.producer("a")
    rig.consumer("a")
    rig.publish(producer, b"1")
    rig.now_ms += rig.options.roll_over_age_s * 1000 + 1
    if name == "_EXTENT_MIN":
        real = ledger_files.allocate

        def allocate(path, size):
            if path.suffix == ".index":
                path.touch()
                raise Died
            real(path, size)

        monkeypatch.setattr(ledger_files, "allocate", allocate)
    else:
        dies(ledger_files if name == "allocate" else ledger, name)
    with pytest.raises(Died):
        rig.run(rig.sends((producer, b"2")))
    monkeypatch.undo()
    again = rigs.crash(rig)
    again.publish(again.producer("a"), b"3")
    assert payloads(again.everything("a")) == [b"1", b"3"]


def test_a_topic_of_which_the_creation_was_not_answered_can_be_used(rig, rigs, dies, monkeypatch):
    """A topic that is in the catalogue and not on disk, because of a kill, can be used."""
    dies(Journal, "append")
    with pytest.raises(Died):
        rig.run(rig.subscribe("a", "sub")[0])
    monkeypatch.undo()
    again = rigs.crash(rig)
    again.publish(again.producer("a"), b"1")
    assert list(again.partition("a").subscriptions) == []
    assert payloads(again.receive(again.consumer("a"))) == [b"1"]


# -- power cuts --------------------------------------------------------------------------------------------------------

@pytest.fixture(params=[True, False], ids=["with lengths", "lengths lost"])
def powered(request, tmp_path, monkeypatch):
    """(rig, cut): cut(rig) returns the next owner on the bytes that are safely on disk, in the worst case.

    cut(rig, times=n) lets that owner's recovery sync n times, then cuts the power again; None if it did.
    """
    made = []
    disk = Disk(tmp_path / "0", monkeypatch)

    def open_on(path, **more):
        made.append(Rig(path, **SMALL, roll_over_age_s=60, **more))
        return made[-1]

    def cut(rig, times=1 << 30):
        rig.settle()
        target = tmp_path / str(int(disk.data_dir.name) + 1)
        disk.after_power_cut(target, with_sizes=request.param)
        disk.data_dir = target
        with Interrupted(Interrupted.SYNCS, times):
            return open_on(target, now_ms=rig.now_ms)

    yield open_on(tmp_path / "0"), cut
    for rig in made:
        rig.close()


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "running"])
def test_everything_that_was_answered_survives_a_power_cut(powered, stopped):
    """Everything answered survives a power cut, also right after a clean stop, when nothing is left to replay."""
    rig, cut = powered
    make_history(rig)
    expected = {topic: rig.everything(topic) for topic in TOPICS}
    if stopped:
        rig.close()
    again = cut(rig)
    assert (again.recovered == 0) == stopped
    found = state_of(again)
    for topic in TOPICS:
        assert set(expected[topic]) <= set(found[topic])      # files of a deleted ledger may have come back
        check_left(found, topic)


@pytest.mark.slow
def test_the_power_may_be_cut_again_anywhere_in_a_recovery(powered):
    """Recoveries that lose power at every one of their syncs lose nothing."""
    rig, cut = powered
    make_history(rig)
    cuts = itertools.count()
    while (again := cut(rig, next(cuts))) is None:
        pass
    assert next(cuts) > 5
    found = state_of(again)
    for topic in TOPICS:
        assert set(rig.everything(topic)) <= set(found[topic])
        check_left(found, topic)


def test_what_was_answered_survives_a_power_cut(powered):
    """Everything answered is recovered from the journal alone, when nothing else was ever synced."""
    rig, cut = powered
    producer, consumer = rig.producer("a"), rig.consumer("a")
    positions = [rig.publish(producer, b"%d" % number)[0] for number in range(5)]
    rig.run(rig.acks(consumer, positions[0], positions[3], request_id=1))
    again = cut(rig)
    assert again.recovered == 5
    assert payloads(again.receive(again.consumer("a"))) == [b"1", b"2", b"4"]
    assert payloads(cut(again).everything("a")) == [b"0", b"1", b"2", b"3", b"4"]


def test_acknowledgements_before_an_answered_close_survive_a_power_cut(powered):
    """Acknowledgements without a receipt are durable once a later close was answered."""
    rig, cut = powered
    producer, consumer = rig.producer("a"), rig.consumer("a")
    first, _ = rig.publish(producer, b"1", b"2")
    rig.run(rig.acks(consumer, first))
    rig.close_consumer(consumer)
    again = cut(rig)
    assert payloads(again.receive(again.consumer("a"))) == [b"2"]


def test_a_topic_without_messages_survives_a_power_cut_after_a_clean_stop(powered):
    """The ledger of an empty topic is synced before a clean stop empties the journal."""
    rig, cut = powered
    rig.consumer("a")
    rig.close()
    again = cut(rig)
    again.publish(again.producer("a"), b"1")
    assert payloads(again.receive(again.consumer("a"))) == [b"1"]


def test_a_ledger_that_a_killed_process_made_unknown_to_the_journal_survives_a_power_cut(powered):
    """Receipts in a ledger that a killed process made and the journal does not know survive a power cut."""
    rig, cut = powered
    rig.publish(rig.producer("a"), b"1")
    rig.consumer("a")
    partition = rig.partition("a")
    partition.add_ledger(rig.owner.catalogue.ids.next_ledger_id(), rig.now_ms)        # and here it was killed
    del rig.owner.topics.by_name[partition.name]      # another process opens the partition
    [position] = rig.publish(rig.producer("a"), b"2")
    assert position == (partition.open_ledger.ledger_id, 0)
    again = cut(rig)
    assert dict(again.everything("a"))[position] == b"2"


def test_files_of_a_deleted_ledger_may_come_back_and_change_nothing(powered):
    """Files of a deleted ledger that return after a power cut, before their folder's sync, change nothing."""
    rig, cut = powered
    producer, consumer = rig.producer("a"), rig.consumer("a")
    [first] = rig.publish(producer, b"1")
    rig = cut(rig)                                                                # recovery syncs the ledger
    producer, consumer = rig.producer("a"), rig.consumer("a")
    rig.now_ms += 61_000
    [second] = rig.publish(producer, b"2")
    assert rig.run(rig.acks(consumer, first, request_id=1)).forgotten == [(1, first[0])]
    again = cut(rig)
    assert again.receive(again.consumer("a")) == [(second, b"2")]


# -- rot ---------------------------------------------------------------------------------------------------------------

def foreign(path):
    flip(path, 0)


def short(path):
    cut(path, 70)


def newer(path):
    make_newer(path, format.STATE_HEADER if path.name == "state" else format.INDEX_HEADER)


def rotten(path):
    """Damage both copies of a state file."""
    for offset in (format.HEADER_SIZE + 9, path.stat().st_size // 2 + 20):
        flip(path, offset)


@pytest.fixture
def filled(rigs):
    """(a restarted owner, the folder of topic a): two topics of two ledgers, acknowledged in part."""
    rig = rigs(**SMALL)
    for topic in TOPICS:
        consumer, producer = rig.consumer(topic, subType=1), rig.producer(topic)
        positions = [rig.publish(producer, b"%d" % number)[0] for number in range(6)]
        rig.run(rig.acks(consumer, positions[2], positions[5]))
    rig = rigs.restart(rig)
    return rig, format.partition_folder(rig.data_dir, 1)


LEFT = [b"0", b"1", b"3", b"4"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "damage"), [
    ("1.index", newer), ("1.index", short), ("1.ledger", short), ("2.ledger", short),
    ("state", newer), ("state", short), ("state", rotten)])
def test_a_partition_that_cannot_be_opened_is_refused_and_others_are_served(filled, capfd, name, damage):
    """A partition with an unusable file is refused by the file's name, logged once, and others are served."""
    rig, folder = filled
    path = folder / name
    kept = path.read_bytes()
    damage(path)
    for section in [rig.command("producer", topic="a", producer_id=1, request_id=1), rig.subscribe("a", "sub")[0]] * 2:
        [answer] = rig.run(section).commands(T.ERROR)
        assert answer.error.error == api.PersistenceError
        assert str(path) in answer.error.message
    assert capfd.readouterr().err.count(str(path)) == 1
    assert len(rig.publish(rig.producer("b"), b"6")) == 1
    path.write_bytes(kept)
    rig.run(after_ms=TICK_MS)
    assert payloads(rig.receive(rig.consumer("a"))) == LEFT


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 8, 16, 20, 24, 60, format.HEADER_SIZE, format.HEADER_SIZE + 40,
    3 * format.HEADER_SIZE - 1])
@pytest.mark.parametrize("name", ["1.index", "2.index", "1.ledger", "2.ledger", "state"])
def test_a_flipped_bit_in_a_header_an_index_or_a_state_costs_nothing_and_is_told(filled, rigs, capfd, name, offset):
    """A flipped bit in a header, index or state is repaired, logged and counted, once."""
    rig, folder = filled
    if name.endswith(".ledger") and offset >= 32:
        return      # reserved, and entries
    flip(folder / name, offset)
    consumer = rig.consumer("a")
    assert payloads(rig.receive(consumer)) == LEFT
    assert rig.counters.read()["damage_found"] == 1
    assert capfd.readouterr().err.count(str(folder / name)) == 1
    rig.publish(rig.producer("a"), b"6")
    rig = rigs.restart(rig)
    assert payloads(rig.receive(rig.consumer("a"))) == [*LEFT, b"6"]
    assert rig.counters.read()["damage_found"] == 0


@pytest.mark.parametrize(("name", "damage"), [("1.index", newer), ("1.index", short)])
def test_a_recovery_that_needs_a_corrupt_file_says_which_and_keeps_the_journal(rig, rigs, tmp_path, name, damage):
    """A recovery that needs a corrupt file names it, and the journal's entries are there after the repair."""
    rig.publish(rig.producer("a"), b"0")
    rig.consumer("a")
    rig = rigs.restart(rig)
    rig.publish(rig.producer("a"), b"1", b"2")
    left = copy_of(rig.data_dir, tmp_path / "left")
    path = format.partition_folder(left, 1) / name
    kept = path.read_bytes()
    damage(path)
    records = len(replay(journal_folder(left, 0)).records)
    for _ in range(2):
        with pytest.raises(CorruptFile, match=str(path)):
            Rig(left, **rig.settings)
    assert len(replay(journal_folder(left, 0)).records) == records > 0
    path.write_bytes(kept)
    again = rigs.on(left)
    assert payloads(again.everything("a")) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("damage", [newer, rotten])
def test_a_recovery_that_needs_a_corrupt_state_says_so_and_keeps_the_journal(rig, rigs, tmp_path, damage):
    positions = rig.publish(rig.producer("a"), b"1", b"2", b"3")
    rig.run(rig.acks(rig.consumer("a"), positions[0], request_id=1))
    rig = rigs.restart(rig)
    rig.run(rig.acks(rig.consumer("a"), positions[2], request_id=1))
    left = copy_of(rig.data_dir, tmp_path / "left")
    path = format.state_path(format.partition_folder(left, 1))
    kept = path.read_bytes()
    damage(path)
    for _ in range(2):
        with pytest.raises(CorruptFile, match=str(path)):
            Rig(left, **rig.settings)
    path.write_bytes(kept)
    again = rigs.on(left)
    assert payloads(again.receive(again.consumer("a"))) == [b"2"]


@pytest.mark.parametrize("name", ["1.index", "1.ledger"])
def test_a_recovery_makes_a_damaged_header_anew(rig, rigs, tmp_path, name):
    rig.consumer("a")
    rig.publish(rig.producer("a"), b"1", b"2")
    left = copy_of(rig.data_dir, tmp_path / "left")
    path = format.partition_folder(left, 1) / name
    flip(path, 0)
    again = rigs.on(left)
    assert [str(path) in text for text in again.damage] == [True]
    assert payloads(again.receive(again.consumer("a"))) == [b"1", b"2"]


def test_a_recovery_that_does_not_need_a_corrupt_file_leaves_it_alone(rig, rigs):
    """A corrupt file that the recovery does not need refuses only its own partition, later."""
    rig.publish(rig.producer("a"), b"1")
    rig = rigs.restart(rig)
    rig.publish(rig.producer("b"), b"1")
    newer(format.index_path(format.partition_folder(rig.data_dir, 1), 1))
    again = rigs.crash(rig)
    assert again.recovered == 1
    assert payloads(again.everything("b")) == [b"1"]
    assert again.run(again.command("producer", topic="a", producer_id=1, request_id=1)).commands(T.ERROR)


def test_a_header_that_reached_the_disk_before_its_file_s_length_did(rig, rigs, tmp_path):
    """The journal restores what a header counts beyond its file's end; without the journal the topic is refused."""
    producer = rig.producer("a")
    rig.publish(producer, b"first")
    rig = rigs.restart(rig)
    positions = [rig.publish(rig.producer("a"), *[b"%d" % n for n in range(100)])[-1] for _ in range(4)]
    path = rig.partition("a").open_ledger.index_path
    assert path.stat().st_size > 4 * format.INDEX_ROW.itemsize * 64
    rig.partition("a").open_ledger.checkpoint()
    left = copy_of(rig.data_dir, tmp_path / "left")
    cut(left / path.relative_to(rig.data_dir), 4096)
    again = rigs.on(left)
    assert len(again.everything("a")) == 401 and again.everything("a")[-1][0] == positions[-1]


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_a_ledger_that_was_sealed_for_one_that_never_got_to_disk_goes_on(rig, rigs, dies, monkeypatch, how):
    """A ledger whose header says "sealed", though its successor never reached the disk, is continued."""
    [first] = rig.publish(rig.producer("a"), b"1")
    rig.partition("a").open_ledger.seal()
    again = rigs.crash(rig)
    [second] = again.publish(again.producer("a"), b"2")
    assert second == (first[0], 1)
    third = getattr(rigs, how)(again)
    assert third.everything("a") == [(first, b"1"), (second, b"2")]
    third = rigs.restart(third)
    assert third.everything("a") == [(first, b"1"), (second, b"2")]
