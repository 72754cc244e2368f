"""Replay of the journal: records are replayed in order up to the last whole one, however the files end. Damage to a
synced record is repaired or reported.
"""
import random

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import bit_errors
from geminga.storage.ledgers.journal import Record, open_journal
from geminga.storage.ledgers.journal_reader import replay

from .files import PARTITION, cut, flip, make_newer, number_of, overwrite, record
from .journals import BIG, HEADER, SEGMENT, numbers, only_segment, segments, write
from .rig import entry_of

RECORD = HEADER + format.OP_ROW.itemsize                                          # bytes of record(n)
# before record(n, data=...)'s data
DATA = HEADER + format.GROUP_ROW.itemsize + format.INDEX_ROW.itemsize + 4 + format.OP_ROW.itemsize
ENTRY = entry_of(b"abc")


@pytest.fixture
def five(tmp_path, opened):
    """Return a folder with one segment of five records, each with an entry, as a SIGKILL leaves it."""
    write(opened(), range(5), ENTRY)
    return opened.left()


def at(number):
    """Return the offset of record n in the segment of the fixture `five`."""
    return HEADER + number * (DATA + len(ENTRY))


# -- every way a segment can end ---------------------------------------------------------------------------------------

def test_what_was_appended_is_replayed_as_it_was(five):
    """Replayed records equal the appended ones: tables, entries' bytes and their sources."""
    found = replay(five).records
    assert [number_of(one) for one in found] == [0, 1, 2, 3, 4]
    for number, one in enumerate(found):
        expected = record(number, data=ENTRY)
        for name in ("groups", "rows", "sources", "ops"):
            assert (getattr(one, name) == getattr(expected, name)).all()
        assert (bytes(one.data), one.size) == (ENTRY, len(ENTRY))


def test_many_pieces_become_one(tmp_path, opened):
    """A record with more pieces of bytes than the kernel takes in one write is replayed whole."""
    big = record(1)
    big.data, big.size = [b"%04d" % n for n in range(1_500)], 6_000
    opened().append(big)
    [found] = replay(opened.left()).records
    assert bytes(found.data) == b"".join(big.data)


@pytest.mark.parametrize("size", [0, 1, HEADER - 1, HEADER])
def test_a_segment_without_records_replays_nothing(five, size):
    cut(only_segment(five), size)
    assert numbers(five) == []


def test_a_folder_of_junk_replays_nothing(tmp_path):
    for name, data in (
        ("1.journal", random.Random(1).randbytes(SEGMENT)),
        ("2.journal", bytes(SEGMENT)),
        ("notes.txt", b"GEMJOURN"),
    ):
        (tmp_path / name).write_bytes(data)
    assert numbers(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("beyond", [
    1, HEADER - 1,                                      # within the header
    HEADER, HEADER + 1, DATA - 1,                       # within the tables
    DATA, DATA + 2, DATA + len(ENTRY) - 1,              # within the entries
])
@pytest.mark.parametrize("whole", [0, 3, 4])
def test_a_cut_record_is_none_and_those_before_it_are_whole(five, whole, beyond):
    """In a segment that was cut within a record, the records before it are replayed, and no damage is reported. The
    cut record may never have been written to its end.
    """
    cut(only_segment(five), at(whole) + beyond)
    assert numbers(five) == list(range(whole))
    assert replay(five).damage == []


@pytest.mark.parametrize("beyond", [1, HEADER - 1, DATA - 1, DATA + 2])
def test_a_record_of_which_the_end_was_never_written_is_none(five, beyond):
    """A last record whose end was never written is ignored without a report. A crash may leave zeros or old bytes in
    its place.
    """
    path = only_segment(five)
    overwrite(path, at(4) + beyond, bytes(DATA + len(ENTRY) - beyond))
    assert numbers(five) == [0, 1, 2, 3]
    assert replay(five).damage == []


@pytest.mark.parametrize("junk", [b"\xff" * 500, random.Random(1).randbytes(500), format.RECORD_MAGIC.to_bytes(4,
    "little") * 125])
def test_junk_behind_the_last_record_is_none(five, junk):
    overwrite(only_segment(five), at(5), junk)
    assert numbers(five) == [0, 1, 2, 3, 4]
    assert replay(five).damage == []


def test_a_size_that_lies_beyond_the_file_is_junk(five):
    overwrite(only_segment(five), at(4) + 24, (1 << 62).to_bytes(8, "little"))
    assert numbers(five) == [0, 1, 2, 3]


def test_a_whole_record_in_another_place_is_none(five):
    """A whole record that is copied behind the last one is ignored, because its number is wrong."""
    path = only_segment(five)
    overwrite(path, at(5), path.read_bytes()[at(3):at(4)])
    assert numbers(five) == [0, 1, 2, 3, 4]


def test_a_newer_version_is_refused_by_name(five):
    """Replaying or opening a journal of a newer version fails with the file's path, and keeps the file. It must not
    be taken for an empty journal and be overwritten.
    """
    path = only_segment(five)
    make_newer(path, format.SEGMENT_HEADER)
    for use in (replay, lambda folder: open_journal(folder, segment_bytes=SEGMENT, segments_max=4)):
        with pytest.raises(CorruptFile, match=str(path)):
            use(five)
    assert path.exists()


# -- several segments --------------------------------------------------------------------------------------------------

def test_records_of_several_segments_are_one_sequence(tmp_path, opened):
    """Records are numbered on from segment to segment, and each record lies within one segment."""
    target = opened(8)
    write(target, range(7), bytes(BIG))
    folder = opened.left()
    assert len(segments(folder)) == 4
    assert numbers(folder) == list(range(7))
    heads = [np.frombuffer(path.read_bytes(), format.SEGMENT_HEADER, 1)[0] for path in segments(folder).values()]
    firsts = [int(head["first_record"]) for head in heads]
    assert firsts == [1, 3, 5, 7]


def test_a_segment_just_begun_does_not_hide_those_before(tmp_path, opened):
    """After a crash between the header of a new segment and its first record, all earlier records are replayed."""
    write(opened(8), range(5), bytes(BIG))
    folder = opened.left()
    newest = list(segments(folder).values())[-1]
    overwrite(newest, HEADER, bytes(SEGMENT - HEADER))
    assert numbers(folder) == [0, 1, 2, 3]
    assert replay(folder).damage == []


@pytest.mark.parametrize("damage", ["retired", "missing"])
def test_what_is_behind_a_missing_segment_counts_alone(tmp_path, opened, damage):
    """Only records behind a retired or missing segment are replayed. Segments are retired oldest first, so older
    ones were retired too, whatever their headers say.
    """
    write(opened(8), range(7), bytes(BIG))
    folder = opened.left()
    second = segments(folder)[2]
    if damage == "missing":
        second.unlink()
    else:
        overwrite(
            second,
            0,
            format.checked_header(format.SEGMENT_HEADER, magic=format.SEGMENT_MAGIC, is_retired=1, sequence=2),
        )
    assert numbers(folder) == [4, 5, 6]


def test_leftovers_of_an_earlier_use_of_a_segment_are_not_replayed(tmp_path, opened):
    """Whole records of a segment file's earlier use, behind the last new record, are not replayed, because they name
    another segment.
    """
    first = opened()
    write(first, range(20))
    opened.close(first)
    again = opened()
    write(again, [100, 101])
    folder = opened.left()
    path = only_segment(folder)
    leftover = np.frombuffer(path.read_bytes(), format.RECORD_HEADER, 1, HEADER + 2 * RECORD)[0]
    assert (leftover["magic"], leftover["number"]) == (format.RECORD_MAGIC, 3)    # an old record
    assert numbers(folder) == [100, 101]


# -- damage ------------------------------------------------------------------------------------------------------------

def content(found):
    """Return the bytes of all parts of the records, to be compared."""
    return [
        (one.groups.tobytes(), one.rows.tobytes(), one.sources.tobytes(), one.ops.tobytes(), bytes(one.data))
        for one in found
    ]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, 4], ids=["the first", "between", "the last"])
def test_a_flipped_bit_anywhere_in_a_record_is_told_and_made_good(five, victim):
    """A flipped bit in a record's header, tables or entries is repaired at replay and reported once, in the last
    record too.
    """
    path, expected = only_segment(five), content(replay(five).records)
    for bit in range(0, 8 * (DATA + len(ENTRY)), 13):
        flip(path, at(victim) + bit // 8, bit % 8)
        found = replay(five)
        assert content(found.records) == expected, bit
        assert len(found.damage) == 1 and found.damage[0].startswith(
            f"{path}: at byte {at(victim)}: record {victim + 1} "
        ), bit
        flip(path, at(victim) + bit // 8, bit % 8)
    assert replay(five).damage == []


@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_the_header_of_a_segment_is_told_and_made_good(tmp_path, opened):
    """A flipped bit in the header of any segment is repaired at replay and reported, and the segment is not taken
    for a retired one.
    """
    write(opened(8), range(7), entry_of(bytes(BIG)))
    folder = opened.left()
    assert len(segments(folder)) > 1
    for path in segments(folder).values():
        for bit in range(0, 8 * HEADER, 29):
            flip(path, bit // 8, bit % 8)
            assert numbers(folder) == list(range(7)), bit
            assert len(replay(folder).damage) == 1
            flip(path, bit // 8, bit % 8)


@pytest.mark.slow
def test_a_flipped_bit_in_the_header_of_a_retired_segment_brings_nothing_back(tmp_path, opened):
    target = opened()
    write(target, range(9), bytes(BIG))
    opened.close(target)
    paths = list(opened.folder.glob("*.journal"))
    assert paths
    for path in paths:
        for bit in range(0, 8 * HEADER, 11):
            flip(path, bit // 8, bit % 8)
            assert numbers(opened.folder) == [], bit
            flip(path, bit // 8, bit % 8)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[100] * 5, [3_000, 10, 200], [1]])
def test_a_flipped_bit_in_one_of_many_entries_is_made_good(tmp_path, opened, sizes):
    """A flipped bit in any of a record's entries is repaired at replay by that entry's own checksum."""
    entries = [entry_of(random.Random(size).randbytes(size)) for size in sizes]
    opened().append(of_entries(entries))
    folder = opened.left()
    path = only_segment(folder)
    begin = path.read_bytes().index(entries[0])
    for byte in range(0, sum(map(len, entries)), 1 + sum(sizes) // 30):
        flip(path, begin + byte, byte % 8)
        found = replay(folder)
        assert [bytes(one.data) for one in found.records] == [b"".join(entries)], byte
        assert len(found.damage) == 1
        flip(path, begin + byte, byte % 8)


def of_entries(entries):
    """Return a record with one group of these entries."""
    one = record(1)
    one.rows = np.zeros(len(entries), format.INDEX_ROW)
    one.rows["size"], one.rows["crc32c"] = (
        [*map(len, entries)],
        [int.from_bytes(entry[2:6], "big") for entry in entries],
    )
    one.sources = (np.cumsum(one.rows["size"]) - one.rows["size"]).astype(format.SOURCE)
    one.groups = np.array([(1, 1, 0, len(entries))], format.GROUP_ROW)
    one.data, one.size = entries, sum(map(len, entries))
    return one


JUNK = random.Random(1).randbytes(8)


@pytest.mark.parametrize("place", [0, 8, HEADER + 3, DATA - 40])
def test_a_record_that_was_synced_and_is_damaged_beyond_help_is_told_and_those_behind_it_count(five, place):
    overwrite(only_segment(five), at(2) + place, JUNK)
    assert numbers(five) == [0, 1, 3, 4]
    [damage] = replay(five).damage
    assert "records 3 to 3 are damaged, and what was decided in them is lost" in damage


def test_several_damaged_records_are_told_and_those_behind_them_count(five):
    overwrite(only_segment(five), at(1), bytes(at(3) - at(1) + 8))
    assert numbers(five) == [0, 4]
    [damage] = replay(five).damage
    assert "records 2 to 4 are damaged" in damage


def test_a_record_whose_entry_is_damaged_beyond_help_counts_and_is_told(five):
    """A record with an entry that cannot be repaired is replayed, and the damage is reported. The entry is stored as
    it is, so that clients see the wrong checksum.
    """
    overwrite(only_segment(five), at(2) + DATA + 8, JUNK)
    found = replay(five)
    assert [number_of(one) for one in found.records] == [0, 1, 2, 3, 4]
    assert bytes(found.records[2].data) == ENTRY[:8] + JUNK + ENTRY[8 + len(JUNK):]
    assert "record 3 is damaged, entries [0] of its 1" in found.damage[0] and len(found.damage) == 1


@pytest.mark.parametrize("place", [8, HEADER + 3])
def test_the_last_record_of_a_segment_that_is_damaged_beyond_help_does_not_hide_those_before(tmp_path, opened, place):
    """If the last record of a segment cannot be repaired, only that record is lost and reported. The next segment's
    header says how many records there were.
    """
    write(opened(8), range(6), entry_of(bytes(BIG)))
    folder = opened.left()
    path = segments(folder)[2]
    raw = path.read_bytes()
    last = [at for at in range(len(raw)) if raw.startswith(format.RECORD_MAGIC.to_bytes(4, "little"), at)][-1]
    overwrite(path, last + place, JUNK)
    assert numbers(folder) == [0, 1, 2, 4, 5]
    assert ["records 4 to 4 are damaged" in text for text in replay(folder).damage] == [True]


def test_what_was_not_synced_and_is_not_whole_is_not_called_damage(tmp_path, opened):
    """Replay ends without a report at an incomplete record that was not synced. The records behind it were not
    synced either, because the power was cut before one sync covered them all.
    """
    target = opened()
    write(target, range(2), ENTRY)
    for number in range(2, 5):
        target.append(record(number, data=ENTRY))
    folder = opened.left()
    overwrite(only_segment(folder), at(3), bytes(at(4) - at(3)))
    found = replay(folder)
    assert ([number_of(one) for one in found.records], found.damage) == ([0, 1, 2], [])


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.binary(min_size=1, max_size=400), st.data())
def test_a_checksum_says_which_bit_is_wrong(content, data):
    """From a wrong CRC-32C, the one flipped bit is found; two flipped bits are never taken for one."""
    bits = data.draw(st.sets(st.integers(0, 8 * len(content) - 1), min_size=1, max_size=2))
    wrong = bytearray(content)
    for bit in bits:
        wrong[bit // 8] ^= 1 << bit % 8
    expected = bits.pop() if len(bits) == 1 else None
    assert bit_errors.wrong_bit(len(content), crc32c(content) ^ crc32c(wrong)) == expected
    assert bit_errors.wrong_bit(len(content), 0) is None


@pytest.mark.parametrize("size", [1, 1_023, 1_024, 1_025, 100_000])
def test_a_checksum_says_which_bit_of_many_is_wrong(size):
    content = random.Random(size).randbytes(size)
    for at in {0, size // 2, size - 1, max(0, size - 1_024), max(0, size - 1_025)}:
        wrong = bytearray(content)
        wrong[at] ^= 4
        assert bit_errors.wrong_bit(size, crc32c(content) ^ crc32c(wrong)) == 8 * at + 2


def test_a_sector_of_a_last_record_that_was_never_written_is_no_damage(opened):
    """A last record with an unwritten sector in an entry is ignored without a report, although later entries are
    whole: it was never synced or answered.
    """
    target = opened()
    rows = np.zeros(3, format.INDEX_ROW)
    entries = [entry_of(b"%d" % n * 700) for n in range(3)]
    rows["size"], rows["crc32c"] = (
        [len(entry) for entry in entries],
        [int.from_bytes(entry[2:6], "big") for entry in entries],
    )
    sources = np.cumsum([0, *map(len, entries[:-1])]).astype(format.SOURCE)
    target.append(record(1))
    target.sync()
    target.append(
        Record(
            np.array([(PARTITION, 1, 0, 3)], format.GROUP_ROW),
            rows,
            sources,
            np.zeros(0, format.OP_ROW),
            entries,
            sum(map(len, entries)),
        )
    )
    [path] = [path for path in opened.left().glob("*.journal") if entries[1] in path.read_bytes()]
    overwrite(path, path.read_bytes().index(entries[1]) + 100, bytes(512))
    found = replay(path.parent)
    assert len(found.records) == 1 and not found.damage
