"""The journal: whatever its files end with, the whole records before that are replayed, in order, and nothing else is.

Segments are as small as the page size allows, so that a few records fill many of them.
"""
import os
import threading

import numpy as np
import pytest

from geminga.storage import format, journal
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.journal import open_journal, replay

from .files import copy_of, cut, flip, number_of, overwrite, record

SEGMENT = 8192
HEADER = format.HEADER_SIZE
RECORD = HEADER + format.OP_ROW.itemsize                                          # bytes of record(n)
BIG = 3000                                                                        # bytes of data of which two fill a segment
DATA = HEADER + format.GROUP_ROW.itemsize + format.INDEX_ROW.itemsize + 4 + format.OP_ROW.itemsize     # before record(n, data=...)'s data


@pytest.fixture
def opened(tmp_path):
    """opened(): the journal in the test's folder, to write; closed when the test ends, unless the test did."""
    made, closed = [], []

    def opened(segments_max=4):
        made.append(open_journal(tmp_path / "journal", segment_bytes=SEGMENT, segments_max=segments_max))
        return made[-1]

    def close(one):
        closed.append(one)
        one.close()

    opened.close = close
    yield opened
    for one in made:
        if one not in closed:
            one.close()


def write(target, numbers, data=b""):
    for number in numbers:
        target.append(record(number, data=data))
    target.sync()


def left(tmp_path, name="crashed"):
    """The folder as a SIGKILL leaves it."""
    return copy_of(tmp_path / "journal", tmp_path / name)


def numbers(folder):
    return [number_of(found) for found in replay(folder)]


def segments(folder):
    """{sequence: path} of the segments that are not retired."""
    found = {}
    for path in folder.glob("*.journal"):
        head = np.frombuffer(path.read_bytes()[:HEADER], format.SEGMENT_HEADER)[0]
        if head["magic"] == format.SEGMENT_MAGIC and not head["is_retired"]:
            found[int(head["sequence"])] = path
    return dict(sorted(found.items()))


def only_segment(folder):
    [path] = segments(folder).values()
    return path


@pytest.fixture
def five(tmp_path, opened):
    """One segment of five records with three bytes of data each, as a SIGKILL leaves it."""
    write(opened(), range(5), b"abc")
    return left(tmp_path)


def at(number):
    """Where the n-th of five begins."""
    return HEADER + number * (DATA + 3)


# -- every way a segment can end ----------------------------------------------------------------------------------------------------

def test_what_was_appended_is_replayed_as_it_was(five):
    """Tables, pieces of bytes and their sources come back bit by bit, synced or not."""
    found = replay(five)
    assert [number_of(one) for one in found] == [0, 1, 2, 3, 4]
    for number, one in enumerate(found):
        expected = record(number, data=b"abc")
        for name in ("groups", "rows", "sources", "ops"):
            assert (getattr(one, name) == getattr(expected, name)).all()
        assert (bytes(one.data[0]), one.size) == (b"abc", 3)


def test_many_pieces_become_one(tmp_path, opened):
    """More pieces than the kernel takes in one write are still one record."""
    big = record(1)
    big.data, big.size = [b"%04d" % n for n in range(1_500)], 6_000
    opened().append(big)
    [found] = replay(left(tmp_path))
    assert bytes(found.data[0]) == b"".join(big.data)


@pytest.mark.parametrize("size", [0, 1, HEADER - 1, HEADER])
def test_a_segment_without_records_replays_nothing(five, size):
    cut(only_segment(five), size)
    assert numbers(five) == []


def test_a_folder_of_junk_replays_nothing(tmp_path):
    for name, data in (("1.journal", os.urandom(SEGMENT)), ("2.journal", bytes(SEGMENT)), ("notes.txt", b"GEMJOURN")):
        (tmp_path / name).write_bytes(data)
    assert numbers(tmp_path) == []


@pytest.mark.parametrize("beyond", [
    1, HEADER - 1,                                      # within the header
    HEADER, HEADER + 1, DATA - 1,                       # within the tables
    DATA, DATA + 2,                                     # within the entries
])
@pytest.mark.parametrize("whole", [0, 3, 4])
def test_a_cut_record_is_none_and_those_before_it_are_whole(five, whole, beyond):
    cut(only_segment(five), at(whole) + beyond)
    assert numbers(five) == list(range(whole))


@pytest.mark.parametrize("beyond", [1, HEADER - 1, DATA - 1, DATA + 2])
def test_a_record_of_which_the_end_was_never_written_is_none(five, beyond):
    """The file has its full size: what a crash left out is zeros, or what was there before."""
    path = only_segment(five)
    overwrite(path, at(4) + beyond, bytes(DATA + 3 - beyond))
    assert numbers(five) == [0, 1, 2, 3]


@pytest.mark.parametrize("victim", [1, 4], ids=["an earlier record", "the last record"])
def test_a_flipped_bit_ends_the_replay_before_its_record(five, victim):
    """Whichever bit it is, of header, tables or entries: what comes before is replayed, what is behind cannot be trusted."""
    path = only_segment(five)
    for byte in range(DATA + 3):
        flip(path, at(victim) + byte, byte % 8)
        assert numbers(five) == list(range(victim)), byte
        flip(path, at(victim) + byte, byte % 8)
    assert numbers(five) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("junk", [b"\xff" * 500, os.urandom(500), format.RECORD_MAGIC.to_bytes(4, "little") * 125])
def test_junk_behind_the_last_record_is_none(five, junk):
    overwrite(only_segment(five), at(5), junk)
    assert numbers(five) == [0, 1, 2, 3, 4]


def test_a_size_that_lies_beyond_the_file_is_junk(five):
    overwrite(only_segment(five), at(4) + 24, (1 << 62).to_bytes(8, "little"))
    assert numbers(five) == [0, 1, 2, 3]


def test_a_whole_record_in_another_place_is_none(five):
    """A record that is copied behind the last one has the wrong number there."""
    path = only_segment(five)
    overwrite(path, at(5), path.read_bytes()[at(3):at(4)])
    assert numbers(five) == [0, 1, 2, 3, 4]


def test_a_newer_version_is_refused_by_name(five):
    """Another program's journal must not be taken for an empty one, and be written over."""
    path = only_segment(five)
    overwrite(path, 8, (format.VERSION + 1).to_bytes(4, "little"))
    for use in (replay, lambda folder: open_journal(folder, segment_bytes=SEGMENT, segments_max=4)):
        with pytest.raises(CorruptFile, match=str(path)):
            use(five)
    assert path.exists()


# -- several segments -----------------------------------------------------------------------------------------------------------------

def test_records_of_several_segments_are_one_sequence(tmp_path, opened):
    """A record lies in one segment as a whole; its number goes on where the segment before ended."""
    target = opened(8)
    write(target, range(7), bytes(BIG))
    folder = left(tmp_path)
    assert len(segments(folder)) == 4
    assert numbers(folder) == list(range(7))
    heads = [np.frombuffer(path.read_bytes(), format.SEGMENT_HEADER, 1)[0] for path in segments(folder).values()]
    firsts = [int(head["first_record"]) for head in heads]
    assert firsts == [1, 3, 5, 7]


def test_a_segment_just_begun_does_not_hide_those_before(tmp_path, opened):
    """A crash between the header of a new segment and its first record."""
    write(opened(8), range(5), bytes(BIG))
    folder = left(tmp_path)
    newest = list(segments(folder).values())[-1]
    overwrite(newest, HEADER, bytes(SEGMENT - HEADER))
    assert numbers(folder) == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", ["retired", "missing"])
def test_what_is_behind_a_missing_segment_counts_alone(tmp_path, opened, damage):
    """Segments are retired oldest first: one that is older than a retired one was retired too, whatever its header says."""
    write(opened(8), range(7), bytes(BIG))
    folder = left(tmp_path)
    second = segments(folder)[2]
    if damage == "missing":
        second.unlink()
    else:
        overwrite(second, 12, (1).to_bytes(4, "little"))
    assert numbers(folder) == [4, 5, 6]


def test_leftovers_of_an_earlier_use_of_a_segment_are_not_replayed(tmp_path, opened):
    """Whole records of the same place and size lie behind the tail: they name another segment."""
    first = opened()
    write(first, range(20))
    opened.close(first)
    again = opened()
    write(again, [100, 101])
    folder = left(tmp_path)
    path = only_segment(folder)
    leftover = np.frombuffer(path.read_bytes(), format.RECORD_HEADER, 1, HEADER + 2 * RECORD)[0]
    assert (leftover["magic"], leftover["number"]) == (format.RECORD_MAGIC, 3)          # it is there, and would be next
    assert numbers(folder) == [100, 101]


# -- opening, closing -----------------------------------------------------------------------------------------------------------------

def test_a_closed_journal_leaves_nothing_to_replay(tmp_path, opened):
    target = opened()
    write(target, range(9), bytes(BIG))
    opened.close(target)
    assert segments(tmp_path / "journal") == {}
    assert numbers(tmp_path / "journal") == []


def test_opening_retires_what_was_applied_and_uses_the_files_again(tmp_path, opened):
    """Sequences go on, so that no record of before is ever taken for one of now."""
    write(opened(), range(9), bytes(BIG))
    folder = left(tmp_path)
    files, newest = set(folder.iterdir()), max(segments(folder))
    again = open_journal(folder, segment_bytes=SEGMENT, segments_max=8)
    assert list(segments(folder)) == [newest + 1]
    assert numbers(folder) == []
    write(again, [50])
    assert numbers(folder) == [50]
    assert set(folder.iterdir()) == files
    again.close()


def test_segments_are_retired_oldest_first(tmp_path, opened, monkeypatch):
    """A start that is killed while it retires segments leaves the newest: applied again they say what they said, whereas older
    ones without them would bring back what was acknowledged since."""
    target = opened(30)
    write(target, range(24), bytes(BIG))           # enough for names that sort otherwise than numbers do
    folder = left(tmp_path)
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
    folder = left(tmp_path)
    again = open_journal(folder, segment_bytes=SEGMENT, segments_max=2)
    assert len(list(folder.iterdir())) == 2
    again.close()
    bigger = open_journal(folder, segment_bytes=2 * SEGMENT, segments_max=2)
    bigger.close()
    assert {path.stat().st_size for path in folder.iterdir()} == {2 * SEGMENT}


# -- checkpoints ----------------------------------------------------------------------------------------------------------------------

class Written:
    """Something that is written through mappings."""

    def __init__(self, folder, name):
        self.path = folder / name
        self.path.touch()
        self.asked = 0

    def before_checkpoint(self):
        self.asked += 1

    def files(self):
        return [self.path]


@pytest.fixture
def synced(monkeypatch):
    """Sets of paths, in the order in which they were synced."""
    done, real = [], journal.sync_files

    def sync_files(paths):
        real(paths)
        done.append({path.name for path in paths})

    monkeypatch.setattr(journal, "sync_files", sync_files)
    return done


def test_a_segment_is_used_again_only_when_what_it_promised_is_synced(tmp_path, opened, synced):
    """Each segment of this journal touches a file of its own; at every moment what can be replayed, and what was synced, is everything."""
    target = opened(3)
    touched = []
    for number in range(40):
        target.append(record(number, data=bytes(BIG)))
        target.sync()
        touched.append(Written(tmp_path, f"file-{number}"))
        target.touched(touched[-1])
        replayed = numbers(tmp_path / "journal")
        assert replayed == list(range(number + 1))[number + 1 - len(replayed):]
        safe = set().union(*synced)
        assert {f"file-{n}" for n in range(number + 1)} - {f"file-{n}" for n in replayed} <= safe
    assert len(synced) >= 5
    assert len(list((tmp_path / "journal").iterdir())) <= 3
    assert {one.asked for one in touched[:-4]} == {1}
    opened.close(target)
    assert set().union(*synced) == {one.path.name for one in touched}


def test_the_number_of_segments_is_bounded_and_so_is_what_is_replayed(tmp_path, opened):
    target = opened(2)
    write(target, range(100), bytes(BIG))
    assert len(list((tmp_path / "journal").iterdir())) == 2
    assert numbers(left(tmp_path)) in ([96, 97, 98, 99], [98, 99])


def test_writing_waits_for_a_checkpoint_only_when_no_segment_is_free(tmp_path, opened, monkeypatch):
    """A slow disk slows publishing down, instead of filling the disk with segments."""
    begun, may_end = threading.Event(), threading.Event()

    def slow(paths):
        begun.set()
        assert may_end.wait(20)

    monkeypatch.setattr(journal, "sync_files", slow)
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
    assert numbers(left(tmp_path))[-1] == 19


def test_files_that_are_gone_need_no_sync(tmp_path):
    """A ledger that was consumed and deleted meanwhile is never written at all."""
    kept, gone = Written(tmp_path, "kept"), Written(tmp_path, "gone")
    gone.path.unlink()
    journal.sync_files({kept.path, gone.path})


def test_a_disk_without_room_for_a_segment_is_told(tmp_path, monkeypatch):
    def full(path, size):
        raise StorageFull(f"{path}: No space left on device")

    monkeypatch.setattr(journal, "allocate", full)
    with pytest.raises(StorageFull):
        open_journal(tmp_path / "journal", segment_bytes=SEGMENT, segments_max=4)
