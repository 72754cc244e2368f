"""A ledger's files: whatever they end with, what is whole before that is kept, and nothing behind it is taken for an entry."""
import errno
import os
import random

import numpy as np
import pytest

from geminga.storage import format, ledger
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.ledger import map_file, open_ledger

from .files import CREATED_MS, PARTITION, append, body, cut, flip, make_ledger, overwrite, read_mapped

ROW = format.INDEX_ROW.itemsize
ENTRIES = 10


@pytest.fixture
def made(tmp_path):
    """A ledger of ten entries, as an owner that was killed leaves it."""
    return make_ledger(tmp_path, 1, ENTRIES, first_message=100)


def reopened(made):
    found = open_ledger(made.folder, PARTITION, made.ledger_id)
    assert found.next_message == 100 + found.entries
    assert read_mapped(made.folder, 1, 0, found.entries) == [body(number) for number in range(found.entries)]
    return found


def row_at(number):
    return format.HEADER_SIZE + number * ROW


# -- every way the index can end --------------------------------------------------------------------------------------------------

def test_what_was_written_is_there_for_the_next_process(made):
    """A process that is killed leaves what it wrote: nothing has to be flushed for that."""
    found = reopened(made)
    assert (found.entries, found.size, found.is_sealed) == (ENTRIES, made.size, False)
    assert (found.first_message, found.created_ms) == (100, CREATED_MS)
    append(found, [body(ENTRIES)])
    assert reopened(made).entries == ENTRIES + 1


@pytest.mark.parametrize("size", [0, 1, format.HEADER_SIZE - 1])
def test_an_index_without_a_whole_header_is_not_an_index(made, size):
    """Opening says which file, and how much of a header it found."""
    cut(made.index_path, size)
    with pytest.raises(CorruptFile, match=rf"{made.index_path}.*found {size}"):
        open_ledger(made.folder, PARTITION, 1)


def test_a_header_without_rows_is_an_empty_ledger(made):
    cut(made.index_path, format.HEADER_SIZE)
    found = reopened(made)
    assert (found.entries, found.size, found.last_entry, found.next_message) == (0, format.HEADER_SIZE, -1, 100)


@pytest.mark.parametrize("extra", [1, ROW // 2, ROW - 1])
@pytest.mark.parametrize("whole", [0, 3, ENTRIES - 1])
def test_an_index_cut_within_a_row_ends_before_it(made, whole, extra):
    cut(made.index_path, row_at(whole) + extra)
    assert reopened(made).entries == whole


def test_after_a_cut_the_ledger_can_be_written_again(made):
    """The next entries take the places, and the bytes, of those that were lost."""
    cut(made.index_path, row_at(3) + 5)
    found = reopened(made)
    append(found, [body(number) for number in range(3, 40)])
    assert reopened(made).entries == 40


@pytest.mark.parametrize("number", [0, 4, ENTRIES - 1])
def test_entries_end_before_a_junk_row(made, number):
    overwrite(made.index_path, row_at(number), random.Random(1).randbytes(ROW))
    assert reopened(made).entries == number


def test_entries_end_before_a_row_of_zeros(made):
    """What is allocated and was never written is zeros; so is a page that never reached the disk."""
    overwrite(made.index_path, row_at(4), bytes(ROW))
    assert reopened(made).entries == 4


def test_a_flipped_bit_anywhere_in_a_row_ends_the_entries_there(made):
    """No bit of a row is without its checksum, the checksum's own included."""
    for bit in range(8 * ROW):
        flip(made.index_path, row_at(4) + bit // 8, bit % 8)
        assert open_ledger(made.folder, PARTITION, 1).entries == 4, bit
        flip(made.index_path, row_at(4) + bit // 8, bit % 8)
    assert reopened(made).entries == ENTRIES


def test_junk_behind_the_last_row_is_no_entry(made):
    overwrite(made.index_path, row_at(ENTRIES), random.Random(1).randbytes(5 * ROW))
    assert reopened(made).entries == ENTRIES


def test_a_row_in_another_place_fails(made):
    """A whole row, copied behind the last one or into another ledger's index, is not an entry there."""
    raw = made.index_path.read_bytes()
    overwrite(made.index_path, row_at(ENTRIES), raw[row_at(ENTRIES - 1):row_at(ENTRIES)])
    assert reopened(made).entries == ENTRIES
    other = make_ledger(made.folder, 2)
    overwrite(other.index_path, row_at(0), raw[row_at(0):row_at(ENTRIES)])
    assert open_ledger(made.folder, PARTITION, 2).entries == 0


# -- headers ----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("offset", "data", "found"), [
    (0, b"GEMLEDGR", "GEMLEDGR"),                                  # some other file of ours
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (16, (99).to_bytes(8, "little"), "99"),                        # another ledger's
    (8, (format.VERSION + 1).to_bytes(4, "little"), f"found {format.VERSION + 1}"),
], ids=["another kind", "foreign", "another ledger's", "newer version"])
def test_a_file_that_is_not_this_ledgers_index_is_refused_by_name(made, offset, data, found):
    """The message names the file and what was found in it."""
    overwrite(made.index_path, offset, data)
    with pytest.raises(CorruptFile) as caught:
        open_ledger(made.folder, PARTITION, 1)
    assert str(made.index_path) in str(caught.value)
    assert found in str(caught.value)


def test_only_whole_indexes_count_as_ledgers(made):
    """A process killed while it made a ledger leaves files without a header: that ledger has never been."""
    for ledger_id, size in ((2, 0), (3, 16 << 10)):
        format.index_path(made.folder, ledger_id).write_bytes(bytes(size))
        format.ledger_path(made.folder, ledger_id).touch()
    (made.folder / "1.5.acks").write_bytes(bytes(8))
    make_ledger(made.folder, 20)
    assert ledger.ledger_ids(made.folder) == [1, 20]


def test_what_was_begun_is_completed(tmp_path):
    """`create` on top of what a killed process left, of either file, makes the ledger; on top of a whole one it keeps the entries."""
    format.index_path(tmp_path, 1).touch()
    append(make_ledger(tmp_path, 1), [body(0)])
    make_ledger(tmp_path, 1)
    assert open_ledger(tmp_path, PARTITION, 1).entries == 1


# -- growth -----------------------------------------------------------------------------------------------------------------------

def test_files_grow_and_older_mappings_stay_readable(tmp_path):
    """A reader that mapped the files when they were small goes on reading what was there; a new mapping has the rest."""
    made = make_ledger(tmp_path, 1, 3)
    small = made.index
    sizes = made.ledger_path.stat().st_size, made.index_path.stat().st_size
    bodies = [b"%d" % number * 100 for number in range(3, 1500)]
    append(made, bodies)
    assert len(made.index) > len(small)
    assert made.ledger_path.stat().st_size > sizes[0] and made.index_path.stat().st_size > sizes[1]
    assert read_mapped(tmp_path, 1, 3, 1497) == bodies
    assert (small[:3] == made.index[:3]).all()
    assert open_ledger(tmp_path, PARTITION, 1).entries == 1500


def test_entry_ids_are_dense_and_bytes_without_gaps(tmp_path):
    """Row n is entry n, and begins where the one before it ends, however the entries came."""
    made = make_ledger(tmp_path, 1)
    for count in (1, 2, 7, 300, 1):
        append(made, [body(number) for number in range(made.entries, made.entries + count)])
    rows = made.index[:made.entries]
    assert rows["offset"][0] == format.HEADER_SIZE
    assert (rows["offset"][1:] == rows["offset"][:-1] + rows["size"][:-1]).all()
    assert (rows["message_index"] == np.arange(311)).all()
    assert (made.messages[:made.entries] == 1).all()


def test_a_full_disk_refuses_room_and_changes_nothing(tmp_path, monkeypatch):
    """The space is asked for before anything is mapped: what could not be written is told while it can still be refused."""
    made = make_ledger(tmp_path, 1, 3)

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageFull, match=r"1\.ledger: No space"):
        made.reserve(1, 10 << 20)
    with pytest.raises(StorageFull, match=r"1\.index: No space"):
        made.reserve(100_000, 10)
    made.reserve(1, 10)      # there is room for that already
    assert (made.entries, made.last_entry) == (3, 2)
    monkeypatch.undo()
    append(made, [body(3)])
    assert open_ledger(tmp_path, PARTITION, 1).entries == 4


# -- the end ----------------------------------------------------------------------------------------------------------------------

def test_a_sealed_ledger_is_as_long_as_its_header_says(made):
    """Its rows need not be looked at to know."""
    made.seal()
    flip(made.index_path, row_at(4))
    found = open_ledger(made.folder, PARTITION, 1)
    assert (found.is_sealed, found.entries, found.size) == (True, ENTRIES, made.size)


def test_an_empty_ledger_can_be_sealed(tmp_path):
    make_ledger(tmp_path, 1, is_sealed=True)
    found = open_ledger(tmp_path, PARTITION, 1)
    assert (found.is_sealed, found.entries, found.size) == (True, 0, format.HEADER_SIZE)


def test_deleting_takes_all_its_files_and_no_others(tmp_path):
    """Bitmaps of its subscriptions go with it; whoever has it mapped can still read."""
    made, other = make_ledger(tmp_path, 1, 3), make_ledger(tmp_path, 11, 3)
    for name in ("1.5.acks", "1.6.acks", "11.5.acks"):
        (tmp_path / name).write_bytes(bytes(8))
    mapped = map_file(made.ledger_path, writable=False)
    made.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["11.5.acks", "11.index", "11.ledger"]
    assert mapped[format.HEADER_SIZE:format.HEADER_SIZE + len(body(0))] == body(0)
    assert open_ledger(tmp_path, PARTITION, other.ledger_id).entries == 3
    made.unlink()            # again changes nothing
