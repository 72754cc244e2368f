"""A partition's state file: it is read as written, a damaged copy costs nothing, and a power cut leaves the old or the
new.
"""
import itertools
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.storage import format
from geminga.storage.cursors import state_file
from geminga.storage.cursors.cursor import NOBODY, Cursor
from geminga.storage.cursors.producer_sequences import Progress, identity
from geminga.storage.cursors.state_file import State, StateFile
from geminga.storage.disk import files
from geminga.storage.disk.files import FileSystem
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import checkpoints

from .disk import Disk
from .files import PARTITION, SUBSCRIPTION, Length, cut, flip, ids, make_newer

LEDGERS = st.integers(0, 2**62)
BITS = st.one_of(st.integers(1, 7), st.integers(1, (1 << 200) - 1),
                 st.sampled_from([1 << 63, 1 << 64, (1 << 64) - 1, (1 << 128) - 1]))
ENTRIES = st.dictionaries(st.integers(0, 2**40), BITS, min_size=1, max_size=4)
COUNTS = st.dictionaries(LEDGERS, st.dictionaries(st.integers(0, 3_000), st.integers(1, 0xFFFF), min_size=1,
                                                  max_size=6), max_size=3)


@st.composite
def cursors(draw, subscription_id):
    """Return a cursor with everything that a cursor can hold, in ledgers at or behind its position."""
    found = Cursor(subscription_id, (draw(st.integers(-1, 5)), draw(st.integers(-1, 1 << 40))), is_durable=True,
                   since=draw(LEDGERS))
    found.totals = draw(st.lists(LEDGERS, min_size=4, max_size=4))
    found.last_type = draw(st.none() | st.integers(0, 3))
    first = max(0, found.mark_delete[0])
    for ledger_id, entries in draw(st.dictionaries(LEDGERS, st.sets(st.integers(0, 9_000), min_size=1, max_size=9),
                                                   max_size=3)).items():
        ledger = Length(first + 1 + ledger_id, 9_001)
        found.acknowledge(ledger, ids(*sorted(entries)))
    found.parts = {first + ledger_id: entries for ledger_id,
                   entries in draw(st.dictionaries(LEDGERS, ENTRIES, max_size=2)).items()}
    for counts in (found.redeliveries, found.deaths):
        for ledger_id, entries in draw(COUNTS).items():
            for entry_id, count in entries.items():
                counts.put(first + ledger_id, entry_id, entry_id + 1, count)
    return found


@st.composite
def states(draw):
    found = State(is_uncounted=draw(st.booleans()))
    for subscription_id in draw(st.sets(st.integers(0, 2**32 - 1), max_size=3)):
        found.cursors[subscription_id] = draw(cursors(subscription_id))
    for number in range(draw(st.integers(0, 4))):
        under_way = st.dictionaries(st.integers(0, 2**40), st.tuples(st.integers(1, 2**20), st.integers(0, 2**32 - 1)),
                                    max_size=3)
        found.sequences.learn(identity(f"producer-{number}"),
                              Progress(draw(st.integers(-1, 2**63 - 1)), draw(under_way)), 0)
    return found


def told(found):
    """Return everything in a state, to be compared."""
    return (
        found.is_uncounted,
        found.sequences.rows().tobytes(),
        {
            subscription_id: (
                cursor.mark_delete,
                cursor.since,
                list(cursor.totals),
                cursor.last_type,
                cursor.parts,
                *(
                    {
                        ledger_id: [(int(at), int(array[at])) for at in np.flatnonzero(array)]
                        for ledger_id, array in arrays.items()
                    }
                    for arrays in (cursor.bitmaps, cursor.redeliveries.arrays, cursor.deaths.arrays)
                ),
            )
            for subscription_id, cursor in found.cursors.items()
        },
    )


def write(folder, found):
    StateFile(folder, PARTITION).take(found).write()


@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states())
def test_what_was_written_is_read(tmp_path, found):
    write(tmp_path, found)
    again = state_file.read(tmp_path, PARTITION)
    assert told(again) == told(found)
    assert again.damage == []
    assert state_file.encode(PARTITION, again) == state_file.encode(PARTITION, found)


def test_a_partition_without_a_file_has_no_state(tmp_path):
    assert told(state_file.read(tmp_path, PARTITION)) == told(State())


# -- damage

@pytest.fixture
def whole(tmp_path):
    """Return a state with content of every kind, and its file."""
    found = State()
    for subscription_id in (NOBODY, SUBSCRIPTION, 9):
        cursor = found.cursors[subscription_id] = Cursor(subscription_id, (3, 5), is_durable=True, since=7)
        cursor.totals = [1, 2, 3, 4]
        cursor.last_type = 2
        cursor.acknowledge(Length(3, 40), ids(8, 9, 30))
        cursor.parts = {3: {20: 5}}
        cursor.redeliveries.put(4, 1, 3, 2)
        cursor.deaths.put(4, 2, 3, 1)
    write(tmp_path, found)
    return found, format.state_path(tmp_path)


@pytest.mark.slow
def test_every_single_flipped_bit_costs_nothing_and_is_told(whole):
    """A flipped bit anywhere in one copy is reported, and the other copy is used."""
    found, path = whole
    size = path.stat().st_size
    for bit in range(0, 8 * size, 3):
        flip(path, bit // 8, bit % 8)
        again = state_file.read(path.parent, PARTITION)
        assert told(again) == told(found), bit
        expected = f"{path}: copy {1 + 16 * (bit // 8) // size // 8} is damaged"
        assert len(again.damage) == 1 and expected in again.damage[0], bit
        flip(path, bit // 8, bit % 8)
    assert state_file.read(path.parent, PARTITION).damage == []


@pytest.mark.parametrize("damage", [
    lambda path: (flip(path, 9), flip(path, path.stat().st_size - 9)), lambda path: cut(path, path.stat().st_size - 1),
    lambda path: cut(path, path.stat().st_size // 2), lambda path: cut(path, 10), lambda path: cut(path, 0),
    lambda path: path.write_bytes(random.Random(1).randbytes(2_000))],
    ids=["both copies", "cut by one", "cut in half", "cut within a header", "empty", "junk"])
def test_a_file_of_which_no_copy_is_whole_is_refused_by_name(whole, damage):
    """A file without a whole copy is refused, as acknowledged entries would else be delivered again."""
    _, path = whole
    damage(path)
    kept = path.read_bytes()
    with pytest.raises(CorruptFile, match=str(path)):
        state_file.read(path.parent, PARTITION)
    assert path.read_bytes() == kept


def test_another_partitions_file_is_refused(whole):
    with pytest.raises(CorruptFile, match="it is not of partition 8"):
        state_file.read(whole[1].parent, PARTITION + 1)


def test_a_newer_version_is_refused_by_name(whole):
    make_newer(whole[1], format.STATE_HEADER)
    with pytest.raises(CorruptFile, match=f"{whole[1]}.*format version {format.VERSION + 1}"):
        state_file.read(whole[1].parent, PARTITION)


# -- writing

def numbered(number):
    return State({SUBSCRIPTION: Cursor(SUBSCRIPTION, (1, number), is_durable=True)})


def number_in(folder):
    return state_file.read(folder, PARTITION).cursors[SUBSCRIPTION].mark_delete[1]


def test_a_late_snapshot_never_replaces_a_newer_one(tmp_path):
    """Checkpoint threads may write in any order: the file keeps the newest snapshot written so far."""
    for number, order in enumerate(itertools.permutations(range(4))):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = StateFile(folder, PARTITION)
        snapshots = [file.take(numbered(number)) for number in range(4)]
        newest = -1
        for number in order:
            snapshots[number].write()
            newest = max(newest, number)
            assert number_in(folder) == newest
        assert newest == 3


def test_a_snapshot_is_what_was_when_it_was_taken(tmp_path):
    found = numbered(1)
    snapshot = StateFile(tmp_path, PARTITION).take(found)
    found.cursors[SUBSCRIPTION].acknowledge(Length(1, 20), ids(7))
    found.cursors[SUBSCRIPTION].mark_delete = (1, 2)
    snapshot.write()
    assert told(state_file.read(tmp_path, PARTITION)) == told(numbered(1))


@pytest.mark.parametrize("many", [64, 0], ids=["one by one", "together"])
@pytest.mark.parametrize("with_sizes", [True, False], ids=["with lengths", "lengths lost"])
def test_a_power_cut_at_any_step_finds_the_old_or_the_new(tmp_path, monkeypatch, with_sizes, many):
    """A power cut before or after any sync leaves the old or the new state; after the last sync, the new one."""
    monkeypatch.setattr(checkpoints, "_MANY", many)
    folder = tmp_path / "data" / "partitions" / str(PARTITION)
    folder.mkdir(parents=True)
    disk = Disk(tmp_path / "data", monkeypatch)
    cuts = itertools.count()

    def left():
        target = tmp_path / f"cut-{next(cuts)}"
        disk.after_power_cut(target, with_sizes=with_sizes)
        return number_in(target / "partitions" / str(PARTITION))

    file, whole = StateFile(folder, PARTITION), FileSystem(tmp_path)
    checkpoints.write_checkpoint(set(), [file.take(numbered(0))], disk=whole)
    real, real_all, steps = disk._synced, disk._all_synced, []

    def synced(fd):
        steps.append(left())
        real(fd)
        steps.append(left())

    def all_synced(*where):
        steps.append(left())
        real_all(*where)
        steps.append(left())

    monkeypatch.setattr(files, "sync_all", all_synced)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(checkpoints.os, name, synced if many else real)
    for number in range(1, 4):
        checkpoints.write_checkpoint(set(), [file.take(numbered(number))], disk=whole)
        assert set(steps) <= {number - 1, number} and steps[-1] == number
        assert not [*folder.glob("*.new")]
        steps.clear()
    whole.close()


def test_an_older_snapshot_does_not_replace_a_newer_one_however_far_it_came(tmp_path):
    """A snapshot that was prepared by one thread is dropped when another thread has put a newer one in place."""
    file = StateFile(tmp_path, PARTITION)
    older, newer = file.take(numbered(1)), file.take(numbered(2))
    older.prepare()
    newer.write()
    older.put()
    assert number_in(tmp_path) == 2 and [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_checkpoint_that_comes_late_does_not_bring_a_partition_back_that_was_removed(tmp_path):
    folder = tmp_path / "partitions" / str(PARTITION)
    folder.mkdir(parents=True)
    file = StateFile(folder, PARTITION)
    late = file.take(State())
    file.remove()
    late.write()
    assert not folder.exists()
