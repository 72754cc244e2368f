"""A journal's life: opened, closed, its segments used over and over as what they promised reaches the disk."""
import os
import threading
from dataclasses import dataclass

import pytest

from geminga.storage import format
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers import checkpoints, journal
from geminga.storage.ledgers.journal import open_journal

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
    """Sequences go on, so that no record of before is ever taken for one of now."""
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
    """A start that is killed while it retires segments leaves the newest: applied again they say what they said,
    whereas older ones without them would bring back what was acknowledged since.
    """
    target = opened(30)
    write(target, range(24), bytes(BIG))           # enough for names that sort otherwise than numbers do
    folder = opened.left()
    whole, retired = numbers(folder), []
    real = journal._retire

    def retire(segment):
        real(segment)
        retired.append(segment.sequence)
        found = numbers(folder)
        assert found == whole[len(whole) - len(found):]

    monkeypatch.setattr(journal, "_retire", retire)
    open_journal(folder, segment_bytes=SEGMENT, segments_max=30).close()
    assert retired[:12] == sorted(retired[:12]) and len(retired) >= 12


def test_files_of_another_size_and_surplus_ones_are_removed(tmp_path, opened):
    """The options changed: what does not fit any more gives its space back."""
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
    """Something of which a part is in a file, and the rest in memory, to be written as it is when it is asked."""

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
    """Sets of names: what is on disk, in the order in which it was put there."""
    done, real = [], journal.write_checkpoint

    def write_checkpoint(paths, snapshots, *more):
        real(paths, snapshots, *more)
        assert all(snapshot.path.exists() for snapshot in snapshots)
        done.append({path.name for path in paths} & {snapshot.file.path.name for snapshot in snapshots})

    monkeypatch.setattr(journal, "write_checkpoint", write_checkpoint)
    return done


def test_a_segment_is_used_again_only_when_what_it_promised_is_synced(tmp_path, opened, synced):
    """Each segment of this journal touches a file of its own; at every moment what can be replayed, and what was
    synced, is everything.
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
    """A power cut may leave its first page as it was, and others as they are to be: not a segment of before with a
    hole in it.
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
    """A slow disk slows publishing down, instead of filling the disk with segments."""
    begun, may_end = threading.Event(), threading.Event()

    def slow(*_):
        begun.set()
        assert may_end.wait(20)

    monkeypatch.setattr(journal, "write_checkpoint", slow)
    target = opened(3)
    done = threading.Event()

    def fill():
        write(target, range(20), bytes(BIG))
        done.set()

    writer = threading.Thread(target=fill)
    writer.start()
    assert begun.wait(20)
    assert not done.is_set()
    may_end.set()
    writer.join()
    assert numbers(opened.left())[-1] == 19


def test_files_that_are_gone_need_no_sync(tmp_path, monkeypatch):
    """A ledger that was consumed and deleted meanwhile is never written at all; what is there is synced, with its
    folder.
    """
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


def test_a_disk_without_room_for_a_segment_is_told(tmp_path, monkeypatch):
    def full(path, size):
        raise StorageFull(f"{path}: No space left on device")

    monkeypatch.setattr(journal, "allocate", full)
    with pytest.raises(StorageFull):
        open_journal(tmp_path / "journal", segment_bytes=SEGMENT, segments_max=4)


def test_what_a_stop_has_no_time_for_the_next_start_does(rigs, monkeypatch, capfd):
    """Nothing of it is lost, and the stop does not take longer than it may."""
    rig = rigs()
    producer = rig.producer("a")
    positions = rig.publish(producer, b"1", b"2")
    monkeypatch.setattr(journal, "_CLOSE_SECONDS", -1)
    again = rigs.restart(rig)
    assert "the next start does it" in capfd.readouterr().err
    assert again.recovered == 2
    again.consumer("a")
    assert again.partition("a").last_confirmed == positions[-1]
