"""The journal: whatever its files end with, the whole records before that are replayed, in order, and nothing else is."""
import random

import numpy as np
import pytest

from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.journal import open_journal, replay

from .files import cut, flip, number_of, overwrite, record
from .journals import BIG, HEADER, SEGMENT, numbers, only_segment, segments, write

RECORD = HEADER + format.OP_ROW.itemsize                                          # bytes of record(n)
DATA = HEADER + format.GROUP_ROW.itemsize + format.INDEX_ROW.itemsize + 4 + format.OP_ROW.itemsize     # before record(n, data=...)'s data


@pytest.fixture
def five(tmp_path, opened):
    """One segment of five records with three bytes of data each, as a SIGKILL leaves it."""
    write(opened(), range(5), b"abc")
    return opened.left()


def at(number):
    """Where the n-th of five begins."""
    return HEADER + number * (DATA + 3)


# -- every way a segment can end --------------------------------------------------------------------------------------------------

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
    [found] = replay(opened.left())
    assert bytes(found.data[0]) == b"".join(big.data)


@pytest.mark.parametrize("size", [0, 1, HEADER - 1, HEADER])
def test_a_segment_without_records_replays_nothing(five, size):
    cut(only_segment(five), size)
    assert numbers(five) == []


def test_a_folder_of_junk_replays_nothing(tmp_path):
    for name, data in (("1.journal", random.Random(1).randbytes(SEGMENT)), ("2.journal", bytes(SEGMENT)), ("notes.txt", b"GEMJOURN")):
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


@pytest.mark.parametrize("junk", [b"\xff" * 500, random.Random(1).randbytes(500), format.RECORD_MAGIC.to_bytes(4, "little") * 125])
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


# -- several segments -------------------------------------------------------------------------------------------------------------

def test_records_of_several_segments_are_one_sequence(tmp_path, opened):
    """A record lies in one segment as a whole; its number goes on where the segment before ended."""
    target = opened(8)
    write(target, range(7), bytes(BIG))
    folder = opened.left()
    assert len(segments(folder)) == 4
    assert numbers(folder) == list(range(7))
    heads = [np.frombuffer(path.read_bytes(), format.SEGMENT_HEADER, 1)[0] for path in segments(folder).values()]
    firsts = [int(head["first_record"]) for head in heads]
    assert firsts == [1, 3, 5, 7]


def test_a_segment_just_begun_does_not_hide_those_before(tmp_path, opened):
    """A crash between the header of a new segment and its first record."""
    write(opened(8), range(5), bytes(BIG))
    folder = opened.left()
    newest = list(segments(folder).values())[-1]
    overwrite(newest, HEADER, bytes(SEGMENT - HEADER))
    assert numbers(folder) == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", ["retired", "missing"])
def test_what_is_behind_a_missing_segment_counts_alone(tmp_path, opened, damage):
    """Segments are retired oldest first: one that is older than a retired one was retired too, whatever its header says."""
    write(opened(8), range(7), bytes(BIG))
    folder = opened.left()
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
    folder = opened.left()
    path = only_segment(folder)
    leftover = np.frombuffer(path.read_bytes(), format.RECORD_HEADER, 1, HEADER + 2 * RECORD)[0]
    assert (leftover["magic"], leftover["number"]) == (format.RECORD_MAGIC, 3)          # it is there, and would be next
    assert numbers(folder) == [100, 101]
