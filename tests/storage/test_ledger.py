"""The files of a ledger: the header of the index says how many entries there are, bytes behind the last one are
ignored, and damaged rows and headers are rebuilt.
"""
import errno
import os
import random

import numpy as np
import pytest

from geminga.storage import format
from geminga.storage.disk.files import map_file
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.ledgers import ledger_files, ledger_headers
from geminga.storage.ledgers.ledger_files import check_lengths, open_ledger

from .files import CREATED_MS, PARTITION, append, body, cut, flip, make_ledger, make_newer, overwrite, read_mapped

ROW = format.INDEX_ROW.itemsize
ENTRIES = 10


@pytest.fixture
def made(tmp_path):
    """Return a ledger of ten entries, as a checkpoint and then a kill leave it."""
    made = make_ledger(tmp_path, 1, ENTRIES, first_message=100)
    made.checkpoint()
    return made


def reopened(made, *damage):
    """Open the ledger as the next process does, and return it after a check of all entries. Damage must be reported
    for the files `damage` and for no others.
    """
    found = open_ledger(made.folder, PARTITION, made.ledger_id)
    assert found.next_message == 100 + found.entries
    assert read_mapped(made.folder, 1, 0, found.entries) == [body(number) for number in range(found.entries)]
    assert [text.partition(":")[0] for text in found.damage] == [str(path) for path in damage]
    assert not found.lost
    return found


def row_at(number):
    return format.HEADER_SIZE + number * ROW


# -- every way the index can end ---------------------------------------------------------------------------------------

def test_what_was_written_is_there_for_the_next_process(made):
    """Entries written before a kill are there for the next process without a sync, and it can append more."""
    found = reopened(made)
    assert (found.entries, found.size, found.is_sealed) == (ENTRIES, made.size, False)
    assert (found.first_message, found.created_ms) == (100, CREATED_MS)
    append(found, [body(ENTRIES)])
    found.checkpoint()
    assert reopened(made).entries == ENTRIES + 1


def test_what_came_after_the_last_checkpoint_is_for_the_journal_to_say(made):
    """A ledger opens with the entries of its last checkpoint. Later rows may be on disk without their entries, and
    are taken from the journal.
    """
    append(made, [body(ENTRIES)])
    assert reopened(made).entries == ENTRIES


@pytest.mark.parametrize("size", [0, 1, format.HEADER_SIZE - 1, format.HEADER_SIZE, row_at(0) + 5, row_at(3),
    row_at(ENTRIES) - 1])
def test_an_index_that_is_cut_short_is_refused_by_name(made, size):
    """A shortened index is refused with its path, and stays as it is."""
    cut(made.index_path, size)
    with pytest.raises(CorruptFile, match=f"{made.index_path}"):
        check_lengths(open_ledger(made.folder, PARTITION, 1))
    assert made.index_path.stat().st_size == size


def test_a_ledger_that_is_cut_short_is_refused_by_name(made):
    cut(made.ledger_path, made.size - 1)
    with pytest.raises(CorruptFile, match=f"{made.ledger_path}: at byte {made.size - 1}"):
        check_lengths(open_ledger(made.folder, PARTITION, 1))


def test_an_index_has_as_many_rows_as_its_size_says():
    """Rows that begin count only when they are whole, and half a header is no row."""
    width = format.INDEX_ROW.itemsize
    for rows, more in ((0, 0), (0, width - 1), (1, 0), (7, 1), (7, width - 1)):
        assert format.rows_in(format.index_size(rows) + more) == rows
    assert format.rows_in(0) == format.rows_in(format.HEADER_SIZE - 1) == 0


def test_junk_behind_the_last_row_is_no_entry(made):
    overwrite(made.index_path, row_at(ENTRIES), random.Random(1).randbytes(5 * ROW))
    assert reopened(made).entries == ENTRIES


# -- damage ------------------------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_a_flipped_bit_anywhere_in_a_row_is_found_and_costs_nothing(made):
    """A flipped bit anywhere in a row, its checksum included, is found and repaired."""
    for bit in range(8 * ROW):
        flip(made.index_path, row_at(4) + bit // 8, bit % 8)
        assert reopened(made, made.index_path).entries == ENTRIES, bit


def test_a_row_in_another_place_is_damaged(made):
    """A whole row that was copied over another one, or into another ledger's index, is found and repaired."""
    raw = made.index_path.read_bytes()
    overwrite(made.index_path, row_at(4), raw[row_at(ENTRIES - 1):row_at(ENTRIES)])
    assert reopened(made, made.index_path).entries == ENTRIES
    other = make_ledger(made.folder, 2, ENTRIES, is_sealed=True)
    overwrite(other.index_path, row_at(0), raw[row_at(0):row_at(1)])
    found = open_ledger(made.folder, PARTITION, 2)
    assert found.next_message == ENTRIES and len(found.damage) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_flipped_bit_anywhere_in_the_header_of_an_index_is_found_and_costs_nothing(made, is_sealed):
    """A flipped bit anywhere in the index's header is found, and the header is rebuilt from the rows. Whether the
    ledger is sealed is known to its partition.
    """
    if is_sealed:
        made.seal()
    for bit in range(8 * format.HEADER_SIZE):
        flip(made.index_path, bit // 8, bit % 8)
        found = reopened(made, made.index_path)
        assert (found.entries, found.size, found.created_ms, found.is_header_lost) == (
            ENTRIES,
            made.size,
            CREATED_MS,
            False,
        ), bit
        if is_sealed and not found.is_sealed:
            found.seal()
    assert reopened(made).entries == ENTRIES


def test_a_flipped_bit_anywhere_in_the_header_of_a_ledger_is_found_and_costs_nothing(made):
    for bit in range(8 * 32):
        if bit // 8 not in range(12, 16):        # unused
            flip(made.ledger_path, bit // 8, bit % 8)
            assert reopened(made, made.ledger_path).entries == ENTRIES, bit
    assert reopened(made).entries == ENTRIES


# -- headers -----------------------------------------------------------------------------------------------------------

def test_an_index_of_a_newer_version_is_refused_by_name(made):
    """An index of a newer version is refused with its path and the version found, and stays as it is."""
    make_newer(made.index_path, format.INDEX_HEADER)
    kept = made.index_path.read_bytes()
    with pytest.raises(CorruptFile, match=f"{made.index_path}.*found {format.VERSION + 1}"):
        open_ledger(made.folder, PARTITION, 1)
    assert made.index_path.read_bytes() == kept


@pytest.mark.parametrize(("offset", "data"), [
    (0, b"GEMLEDGR"),                                  # a file of another kind
    (0, b"\x89PNG\r\n\x1a\n"),
    (16, (99).to_bytes(8, "little")),                  # another ledger's
], ids=["another kind", "foreign", "another ledger's"])
def test_a_header_that_is_another_files_is_made_anew(made, offset, data):
    overwrite(made.index_path, offset, data)
    assert reopened(made, made.index_path).entries == ENTRIES


def test_only_whole_indexes_count_as_ledgers(made):
    """Files without a header, which a process killed during a ledger's creation leaves, do not count as a ledger."""
    for ledger_id, size in ((2, 0), (3, 16 << 10)):
        format.index_path(made.folder, ledger_id).write_bytes(bytes(size))
        format.ledger_path(made.folder, ledger_id).touch()
    make_ledger(made.folder, 20)
    assert ledger_headers.ledger_ids(made.folder) == [1, 20]


def test_what_was_begun_is_completed(tmp_path):
    """`create` completes a ledger whose creation was cut short, and keeps the entries of a whole one."""
    format.index_path(tmp_path, 1).touch()
    append(make_ledger(tmp_path, 1), [body(0)])
    make_ledger(tmp_path, 1)
    assert read_mapped(tmp_path, 1, 0, 1) == [body(0)]


# -- growth ------------------------------------------------------------------------------------------------------------

def test_files_grow_and_older_mappings_stay_readable(tmp_path):
    """When a ledger's files grow, a reader's older mapping stays valid, and a new mapping has the new entries."""
    made = make_ledger(tmp_path, 1, 3)
    small = made.index
    sizes = made.ledger_path.stat().st_size, made.index_path.stat().st_size
    bodies = [b"%d" % number * 100 for number in range(3, 1500)]
    append(made, bodies)
    assert len(made.index) > len(small)
    assert made.ledger_path.stat().st_size > sizes[0] and made.index_path.stat().st_size > sizes[1]
    assert read_mapped(tmp_path, 1, 3, 1497) == bodies
    assert (small[:3] == made.index[:3]).all()
    made.checkpoint()
    assert open_ledger(tmp_path, PARTITION, 1).entries == 1500


def test_entry_ids_are_dense_and_bytes_without_gaps(tmp_path):
    """Row n is that of entry n, which begins where the entry before it ends, however many entries are appended at a
    time.
    """
    made = make_ledger(tmp_path, 1)
    for count in (1, 2, 7, 300, 1):
        append(made, [body(number) for number in range(made.entries, made.entries + count)])
    rows = made.index[:made.entries]
    assert rows["offset"][0] == format.HEADER_SIZE
    assert (rows["offset"][1:] == rows["offset"][:-1] + rows["size"][:-1]).all()
    assert (rows["message_index"] == np.arange(311)).all()
    assert (made.messages[:made.entries] == 1).all()


def test_what_a_full_disk_had_left_is_given_back_when_it_was_not_enough(tmp_path, monkeypatch):
    """When the disk is too full to allocate room, a file keeps its old length, and a new ledger leaves no file."""
    made, real = make_ledger(tmp_path, 1, 3), os.posix_fallocate

    def half(fd, offset, size):
        real(fd, offset, size // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", half)
    before = [path.stat().st_size for path in made.files()]
    for count, size in ((1, 10 << 20), (100_000, 10)):
        with pytest.raises(StorageFull):
            made.reserve(count, size)
    with pytest.raises(StorageFull):
        ledger_files.create(tmp_path, PARTITION, 2, first_message=0, created_ms=0)
    assert [path.stat().st_size for path in made.files()] == before
    assert {path.stem for path in tmp_path.iterdir()} == {"1"}


@pytest.mark.parametrize(("size", "ahead", "expected"), [
    (100_000, 1 << 62, 128 << 10), (100_000, 0, 25 << 12), (100_000, 5_000, 25 << 12), (100_000, 45_000, 26 << 12),
    (1_000_000, 1 << 62, 245 << 12)])
def test_a_ledger_is_doubled_as_far_as_there_is_room_ahead_and_is_as_large_as_it_must_be(
    tmp_path, size, ahead, expected
):
    made = make_ledger(tmp_path, 1, 0)
    assert made.ledger_path.stat().st_size == 64 << 10
    made.reserve(1, size, ahead)
    assert made.allocated == made.ledger_path.stat().st_size == expected
    assert made.index_path.stat().st_size == 16 << 10


@pytest.mark.parametrize(("count", "ahead", "expected"), [
    (300, 1 << 62, 32 << 10), (300, 0, 5 << 12), (300, 10_001, 6 << 12), (2_000, 1 << 62, 32 << 12)])
def test_so_is_its_index(tmp_path, count, ahead, expected):
    made = make_ledger(tmp_path, 1, 0)
    made.reserve(count, 1, ahead)
    assert (made.index_path.stat().st_size, made.allocated) == (expected, 64 << 10)


def test_a_ledger_that_is_as_large_as_it_may_get_has_an_index_that_is_doubled(tmp_path):
    made = make_ledger(tmp_path, 1, 0)
    made.reserve(1, 70_000, most=80 << 10)
    assert (made.index_path.stat().st_size, made.allocated) == (16 << 10, 80 << 10)
    made.reserve(300, 10_000, most=80 << 10)
    assert (made.index_path.stat().st_size, made.allocated) == (32 << 10, 80 << 10)


def test_files_that_hold_nothing_are_removed_and_all_others_stay(tmp_path):
    """Files of unfinished ledgers without entries are removed. A ledger file with bytes but no index is kept for
    repair.
    """
    make_ledger(tmp_path, 1, 3)
    make_ledger(tmp_path, 2, 0)
    header = (tmp_path / "2.ledger").read_bytes()[:format.HEADER_SIZE]
    unmade = {"3.ledger": header + bytes(4096), "4.ledger": bytes(4096), "4.index": bytes(4096), "5.index": b""}
    others = {
        "6.ledger": header + bytes(100) + b"x",
        "7.index": bytes(format.HEADER_SIZE) + b"x",
        "x.ledger": bytes(9),
        "state": bytes(9),
    }
    for name, data in (unmade | others).items():
        (tmp_path / name).write_bytes(data)
    before = {path.name for path in tmp_path.iterdir()}
    ledger_headers.remove_unmade(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before - unmade.keys()
    assert ledger_headers.ledger_ids(tmp_path) == [1, 2]


def test_a_full_disk_refuses_room_and_changes_nothing(tmp_path, monkeypatch):
    """Room is allocated before entries are written: a full disk raises StorageFull and leaves the ledger usable."""
    made = make_ledger(tmp_path, 1, 3)

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageFull, match=r"1\.ledger: No space"):
        made.reserve(1, 10 << 20)
    with pytest.raises(StorageFull, match=r"1\.index: No space"):
        made.reserve(100_000, 10)
    made.reserve(1, 10)      # fits into the allocated room
    assert (made.entries, made.last_entry) == (3, 2)
    monkeypatch.undo()
    append(made, [body(3)])
    made.checkpoint()
    assert open_ledger(tmp_path, PARTITION, 1).entries == 4


# -- the end -----------------------------------------------------------------------------------------------------------

def test_rows_are_looked_at_when_they_are_needed(made):
    """Rows are checked when they are first used. A start does not read the indexes of all ledgers."""
    made.seal()
    flip(made.index_path, row_at(4))
    found = open_ledger(made.folder, PARTITION, 1)
    assert (found.is_sealed, found.entries, found.size, found.damage) == (True, ENTRIES, made.size, [])
    assert found.messages_in(0, ENTRIES) == ENTRIES
    assert len(found.damage) == 1


def test_an_empty_ledger_can_be_sealed(tmp_path):
    make_ledger(tmp_path, 1, is_sealed=True)
    found = open_ledger(tmp_path, PARTITION, 1)
    assert (found.is_sealed, found.entries, found.size) == (True, 0, format.HEADER_SIZE)


def test_deleting_takes_its_files_and_no_others(tmp_path):
    """Deleting a ledger removes its two files only, and readers that have them mapped can go on reading."""
    made, other = make_ledger(tmp_path, 1, 3), make_ledger(tmp_path, 11, 3)
    other.checkpoint()
    mapped = map_file(made.ledger_path, writable=False)
    made.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["11.index", "11.ledger"]
    assert mapped[format.HEADER_SIZE:format.HEADER_SIZE + len(body(0))] == body(0)
    assert open_ledger(tmp_path, PARTITION, other.ledger_id).entries == 3
    made.unlink()            # the second call changes nothing
