"""The life of a journal: it is opened and closed, and its segments are reused once checkpoints have put their
effects on disk.
"""
import errno
import itertools
import os
import threading
import time
from dataclasses import dataclass

import pytest

from geminga.storage import format
from geminga.storage.cursors.state_file import State, StateFile
from geminga.storage.disk import files
from geminga.storage.disk.files import FileSystem
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers import checkpoints, journal, journal_segments
from geminga.storage.ledgers.journal import open_journal

from ..harness import HANG_SECONDS
from .files import record
from .journals import BIG, SEGMENT, numbers, segments, write

# -- opening, closing --------------------------------------------------------------------------------------------------

def test_a_closed_journal_leaves_nothing_to_replay(tmp_path, opened):
    target = opened()
    write(target, range(9), bytes(BIG))
    opened.close(target)
    assert segments(opened.folder) == {}
    assert numbers(opened.folder) == []


def test_opening_retires_what_was_applied_and_uses_the_files_again(tmp_path, opened):
    """Opening a journal retires its replayed segments and reuses their files. Sequence numbers go on, so that no old
    record is taken for a new one.
    """
    write(opened(), range(9), bytes(BIG))
    folder = opened.left()
    files, newest = set(folder.iterdir()), max(segments(folder))
    again = open_journal(folder, segment_bytes=SEGMENT, segments_max=8)
    assert list(segments(folder)) == [newest + 1]
    assert numbers(folder) == []
    write(again, [50])
    assert numbers(folder) == [50]
    assert set(folder.iterdir()) == files
    again.close()


def test_segments_are_retired_oldest_first(tmp_path, opened, monkeypatch):
    """A start that is killed while it retires segments leaves the newest ones, which are safe to replay again. Old
    segments without newer ones would take acknowledgements back.
    """
    target = opened(30)
    write(target, range(24), bytes(BIG))           # so many segments that names sort otherwise than numbers
    folder = opened.left()
    whole, retired = numbers(folder), []
    real = journal.retire

    def retire(segment, following=0):
        real(segment, following)
        retired.append(segment.sequence)
        found = numbers(folder)
        assert found == whole[len(whole) - len(found):]

    monkeypatch.setattr(journal, "retire", retire)
    open_journal(folder, segment_bytes=SEGMENT, segments_max=30).close()
    assert retired[:12] == sorted(retired[:12]) and len(retired) >= 12


def test_files_of_another_size_and_surplus_ones_are_removed(tmp_path, opened):
    """Segment files that do not fit changed options are removed, so that their space is freed."""
    write(opened(8), range(9), bytes(BIG))
    folder = opened.left()
    again = open_journal(folder, segment_bytes=SEGMENT, segments_max=2)
    assert len(list(folder.iterdir())) == 2
    again.close()
    bigger = open_journal(folder, segment_bytes=2 * SEGMENT, segments_max=2)
    bigger.close()
    assert {path.stat().st_size for path in folder.iterdir()} == {2 * SEGMENT}


# -- checkpoints -------------------------------------------------------------------------------------------------------

class Written:
    """A stand-in for something that a checkpoint puts on disk: one part is in a file, the rest in memory, from where
    a snapshot writes it.
    """

    def __init__(self, folder, name):
        self.path, self.aside = folder / name, folder / f"{name}-aside"
        self.path.touch()
        self.asked = 0

    def checkpoint(self):
        self.asked += 1
        return [self.path], [Snapshot(self)]


@dataclass(frozen=True)
class Snapshot:
    file: "Written"

    @property
    def path(self):
        return self.file.aside

    def write(self):
        self.path.touch()


@pytest.fixture
def synced(monkeypatch):
    """Return a list that gets, for each checkpoint written, the set of file names that it has put on disk."""
    done, real = [], journal.write_checkpoint

    def write_checkpoint(paths, snapshots, *more):
        real(paths, snapshots, *more)
        assert all(snapshot.path.exists() for snapshot in snapshots)
        done.append({path.name for path in paths} & {snapshot.file.path.name for snapshot in snapshots})

    monkeypatch.setattr(journal, "write_checkpoint", write_checkpoint)
    return done


def test_a_segment_is_used_again_only_when_what_it_promised_is_synced(tmp_path, opened, synced):
    """At every moment each record is in the journal, or its effects are synced. Each segment of this journal touches
    files of its own.
    """
    target = opened(3)
    touched = []
    for number in range(40):
        target.append(record(number, data=bytes(BIG)))
        target.sync()
        touched.append(Written(tmp_path, f"file-{number}"))
        target.mark_dirty(touched[-1])
        replayed = numbers(opened.folder)
        assert replayed == list(range(number + 1))[number + 1 - len(replayed):]
        safe = set().union(*synced)
        assert {f"file-{n}" for n in range(number + 1)} - {f"file-{n}" for n in replayed} <= safe
    assert len(synced) >= 5
    assert len(list(opened.folder.iterdir())) <= 3
    assert {one.asked for one in touched[:-4]} == {1}
    opened.close(target)
    assert set().union(*synced) == {one.path.name for one in touched}


def test_a_segment_is_used_again_only_when_it_is_retired_on_disk(tmp_path, opened, monkeypatch):
    """A segment's retired header is synced before the segment is reused. Otherwise a power cut could leave the old
    header in front of partly overwritten records.
    """
    on_disk, fdatasync, begin, begun = {}, os.fdatasync, journal.Journal._begin, []

    def sync(fd):
        fdatasync(fd)
        on_disk[os.fstat(fd).st_ino] = os.pread(fd, format.HEADER_SIZE, 0)

    def begins(self, sequence):
        path = self._free[0].result()
        assert on_disk[path.stat().st_ino] == path.read_bytes()[:format.HEADER_SIZE]
        begun.append(path)
        return begin(self, sequence)

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(journal.Journal, "_begin", begins)
    write(opened(3), range(40), bytes(BIG))
    assert len(set(begun)) < len(begun)


def test_the_number_of_segments_is_bounded_and_so_is_what_is_replayed(tmp_path, opened):
    target = opened(2)
    write(target, range(100), bytes(BIG))
    assert len(list(opened.folder.iterdir())) == 2
    assert numbers(opened.left()) in ([96, 97, 98, 99], [98, 99])


def test_writing_waits_for_a_checkpoint_only_when_no_segment_is_free(tmp_path, opened, monkeypatch):
    """When no segment is free, writing waits for a checkpoint: a slow disk throttles publishing, instead of filling
    up with segments.
    """
    begun, may_end = threading.Event(), threading.Event()

    def slow(*_):
        begun.set()
        assert may_end.wait(HANG_SECONDS)

    monkeypatch.setattr(journal, "write_checkpoint", slow)
    target = opened(3)
    done = threading.Event()

    def fill():
        write(target, range(20), bytes(BIG))
        done.set()

    writer = threading.Thread(target=fill)
    writer.start()
    assert begun.wait(HANG_SECONDS)
    assert not done.is_set()
    may_end.set()
    writer.join()
    assert numbers(opened.left())[-1] == 19


def test_files_that_are_gone_need_no_sync(tmp_path, monkeypatch):
    """A checkpoint passes over files that were deleted meanwhile, and syncs the existing files and their folder."""
    synced, real = [], checkpoints.sync

    def sync(path, how):
        real(path, how)
        synced.append(path)

    monkeypatch.setattr(checkpoints, "sync", sync)
    kept, gone = Written(tmp_path, "kept"), Written(tmp_path, "gone")
    gone.path.unlink()
    checkpoints.write_checkpoint({kept.path, gone.path}, [])
    assert {kept.path, tmp_path} <= set(synced) and gone.path not in synced
    assert not gone.path.exists()


def states(folder, count):
    """Return snapshots of so many partitions' states."""
    return [StateFile(folder / str(number), number).take(State()) for number in range(count)]


def failing(code):
    """Return a function that raises OSError with this code."""
    def fail(*_):
        raise OSError(code, os.strerror(code))
    return fail


@pytest.fixture
def folders(tmp_path):
    for number in range(100):
        (tmp_path / str(number)).mkdir()
    return tmp_path


@pytest.fixture
def whole(tmp_path):
    found = FileSystem(tmp_path)
    yield found
    found.close()


def test_many_files_are_synced_with_their_file_system(folders, whole, monkeypatch):
    """A checkpoint of a hundred partitions takes two syncs, however many files it is of."""
    syncs = []
    monkeypatch.setattr(checkpoints, "sync", lambda path, how: syncs.append(path))
    monkeypatch.setattr(files, "sync_all", lambda *_: syncs.append("all"))
    checkpoints.write_checkpoint({folders / "0" / "ledger"}, states(folders, 100), disk=whole)
    assert syncs == ["all", "all"]
    assert {path.name for path in folders.glob("*/*")} == {"state"}


def test_files_of_several_file_systems_are_synced_one_by_one(folders, whole, monkeypatch):
    """A sync of one file system says nothing of partitions that an operator has put on another."""
    monkeypatch.setattr(whole, "_device", -1)
    monkeypatch.setattr(files, "sync_all", None)
    checkpoints.write_checkpoint(set(), states(folders, 100), disk=whole)
    assert {path.name for path in folders.glob("*/*")} == {"state"}


def test_a_disk_without_room_for_all_new_files_gets_them_one_by_one(folders, whole, monkeypatch):
    """A hundred new files beside the old ones need more room than one at a time."""
    monkeypatch.setattr(files, "sync_all", failing(errno.ENOSPC))
    checkpoints.write_checkpoint(set(), states(folders, 100), disk=whole)
    assert {path.name for path in folders.glob("*/*")} == {"state"}


def test_a_failed_sync_of_the_file_system_fails_the_checkpoint(folders, whole, monkeypatch):
    """The old files stay, and new ones that were not put in place are removed."""
    monkeypatch.setattr(files, "sync_all", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        checkpoints.write_checkpoint(set(), states(folders, 100), disk=whole)
    assert not [*folders.glob("*/*")]


def test_no_pass_waits_for_a_checkpoint_to_be_collected(tmp_path, opened, synced, monkeypatch):
    """A checkpoint of many objects is collected over several records, as long as there is a free segment."""
    monkeypatch.setattr(journal, "_COLLECTED_MAX", 3)
    target, collected, total = opened(6), [], 0
    touched = [Written(tmp_path, f"file-{number}") for number in range(20)]
    for each in touched:
        target.mark_dirty(each)
    while total < len(touched):
        write(target, [0], b"" if total else bytes(BIG))
        collected.append(sum(one.asked for one in touched) - total)
        total += collected[-1]
    assert max(collected) == 3
    opened.close(target)
    assert set().union(*synced) == {one.path.name for one in touched}


def test_a_stop_puts_on_disk_what_was_collected_and_what_was_not(tmp_path, opened, synced, monkeypatch):
    """A journal that is closed while a checkpoint is being collected leaves nothing to replay."""
    monkeypatch.setattr(journal, "_COLLECTED_MAX", 3)
    target = opened(6)
    touched = [Written(tmp_path, f"file-{number}") for number in range(20)]
    for each in touched:
        target.mark_dirty(each)
    while not any(one.asked for one in touched):
        write(target, [0], bytes(BIG))
    assert not synced
    opened.close(target)
    assert set().union(*synced) == {one.path.name for one in touched}
    assert {one.asked for one in touched} == {1}
    assert numbers(opened.folder) == []


def test_a_disk_without_room_for_a_segment_is_told(tmp_path, monkeypatch):
    def full(path, size):
        raise StorageFull(f"{path}: No space left on device")

    monkeypatch.setattr(journal_segments, "allocate", full)
    with pytest.raises(StorageFull):
        open_journal(tmp_path / "journal", segment_bytes=SEGMENT, segments_max=4)


@dataclass(frozen=True)
class Stated:
    """A partition whose state is in memory only."""

    number: int
    snapshot: checkpoints.FileSnapshot

    def checkpoint(self):
        return [], [self.snapshot]


@pytest.mark.parametrize("step", ["collected", "prepared", "put in place"])
def test_a_checkpoint_of_thousands_of_objects_ends_at_its_deadline_in_each_step(folders, whole, step):
    """A broker with 100,000 open topics was killed at each stop, because only one step looked at the deadline."""
    looks = {"collected": 30, "prepared": 130, "put in place": 230}[step]
    asked = itertools.count()
    changed = {Stated(*snapshot) for snapshot in enumerate(states(folders, 100))}

    def is_over():
        return next(asked) >= looks

    with pytest.raises(checkpoints.TooMuch):
        checkpoints.write_checkpoint(*checkpoints.collect_checkpoint(changed, is_over), is_over, whole)
    assert next(asked) == looks + 1      # nothing went on behind it
    assert not [*folders.glob("*/*.new")]
    assert len([*folders.glob("*/state")]) == (30 if step == "put in place" else 0)


def test_what_a_stop_has_no_time_for_the_next_start_does(rigs, capfd):
    """A stop that runs out of time leaves its checkpoint to the next start, and nothing is lost."""
    rig = rigs()
    producer = rig.producer("a")
    positions = rig.publish(producer, b"1", b"2")
    rig.is_open = False
    rig.owner.close(until=time.monotonic())
    again = rigs.restart(rig)
    assert "the next start does it" in capfd.readouterr().err
    assert again.recovered == 2
    again.consumer("a")
    assert again.partition("a").last_confirmed == positions[-1]
