"""The files of a compacted view by themselves: which are accepted, which damage is reported, and which files are
removed.
"""
import json

import numpy as np
import pytest
from crc32c import crc32c

from geminga.proto.sends import KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.errors import CorruptFile
from geminga.storage.jobs.compacting.part_writer import PartWriter
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers, Manifest, Part

from .test_journal_order import Kernel

PARTITION, LEDGER = 3, 7
BODY = b"what the checksum covers"
CHECKSUM = crc32c(BODY)
ENTRY = b"\x0e\x01" + CHECKSUM.to_bytes(4, "big") + BODY


def manifest(*parts, horizon=(LEDGER, 9)):
    return Manifest(PARTITION, horizon, parts, 1)


def rows_of(entry_ids, *, checksum=CHECKSUM):
    rows = np.zeros(len(entry_ids), format.COMPACTED_ROW)
    rows["entry_id"], rows["size"], rows["messages"], rows["crc32c"], rows["flags"] = (
        entry_ids,
        len(ENTRY),
        1,
        checksum,
        KEPT_CHECKSUM,
    )
    return rows


def written(folder, ledger_id, entry_ids, *, entries=10, entry=ENTRY, checksum=CHECKSUM):
    with PartWriter(folder, PARTITION, ledger_id) as writer:
        writer.add(
            rows_of(entry_ids, checksum=checksum),
            np.zeros(len(entry_ids), np.int64),
            [entry] * len(entry_ids),
            len(entry_ids),
        )
        return writer.finish(entries)


# -- what a view says of itself

def test_a_manifest_is_what_it_was(tmp_path):
    said = manifest(Part(5, 10, 3, 4, 99), Part(LEDGER, 10, 1, 1, 7))
    assert compacted_ledgers.decode(said.encode(), tmp_path) == said


@pytest.mark.parametrize("at", [0, 7, 9, 20, -1])
def test_a_manifest_with_a_flipped_bit_is_not_believed(tmp_path, at):
    data = bytearray(manifest(Part(LEDGER, 10, 1, 1, 7)).encode())
    data[at] ^= 1
    with pytest.raises(CorruptFile):
        compacted_ledgers.decode(bytes(data), tmp_path)


def test_a_manifest_of_a_newer_version_is_not_read(tmp_path):
    said = json.loads(manifest().encode().partition(b" ")[2]) | {"version": compacted_ledgers.VERSION + 1}
    text = json.dumps(said).encode()
    with pytest.raises(CorruptFile, match="version"):
        compacted_ledgers.decode(b"%08x %s" % (crc32c(text), text), tmp_path)


def test_entries_are_written_with_the_checksums_that_their_rows_say(tmp_path):
    """Writing a view fails for an entry whose bytes do not match its row's checksum, as zeros of a punched hole do."""
    assert written(tmp_path, LEDGER, [1, 4]).kept == 2
    for wrong in ({"entry": bytes(len(ENTRY))}, {"checksum": 5}):
        with pytest.raises(CorruptFile):
            written(tmp_path, LEDGER + 1, [1, 4], **wrong)


def test_all_of_a_view_is_synced_and_its_folder_last(tmp_path, monkeypatch):
    """The folder of a view is synced after all its files, so a power cut leaves the whole view or none."""
    folder = tmp_path / "partition" / "1.view"
    folder.mkdir(parents=True)
    kernel = Kernel(monkeypatch)
    compacted_ledgers.finish(folder, manifest(written(folder, LEDGER, [1, 4])))
    for path in (format.ledger_path(folder, LEDGER), format.index_path(folder, LEDGER)):
        assert kernel.of(path.name)[-1] == "sync"
    [renamed] = [at for at, (what, _) in enumerate(kernel.calls) if what in ("rename", "replace")]
    assert kernel.calls[renamed - 1][0] == "sync"
    assert kernel.calls[-2:] == [("sync", "1.view"), ("sync", "partition")] and renamed < len(kernel.calls) - 2


# -- where things are in it

@pytest.fixture
def view(tmp_path):
    """Return a view of ledgers 5 to 7, up to entry 4 of ledger 7. Nothing is left of ledger 6."""
    parts = written(tmp_path, 5, [0, 2, 9]), written(tmp_path, 7, [1, 4], entries=5)
    found = CompactedLedgers(tmp_path, 1, manifest(*parts, horizon=(7, 4)))
    found.cover([(5, 10), (6, 3), (7, 20), (8, 20)])
    return found


def test_ledgers_of_which_nothing_is_left_are_part_of_it(view):
    assert [(one.ledger_id, one.entries, one.kept.tolist()) for one in view.ledgers] == [
        (5, 10, [0, 2, 9]),
        (6, 3, []),
        (7, 5, [1, 4]),
    ]
    assert [one.ledger_id for one in view.ledgers_from(6)] == [6, 7] and view.find(8) is None


@pytest.mark.parametrize("ledger_id, entries, expected", [
    (6, [0, 1, 2], 3), (7, [1, 4, 5, 6], 2), (7, [4], 1), (7, [5], 0), (7, [], 0), (8, [0, 1], 0)])
def test_how_many_entries_are_not_behind_the_horizon(view, ledger_id, entries, expected):
    assert view.count_before(ledger_id, np.array(entries, np.int64)) == expected


@pytest.mark.parametrize("position, expected", [
    ((5, 0), (5, -1)), ((5, 3), (5, 2)), ((5, 10), (5, 9)), ((5, 77), (5, 9)), ((4, 77), (5, -1)), ((6, 1), (6, 0)),
    ((7, 4), (7, 3)),
    ((8, 0), (7, 4)), ((1, 1), (5, -1))])
def test_a_cursor_begins_before_the_entry_or_the_first_behind_it(view, position, expected):
    """A cursor begins just before the entry asked for. For a ledger that the view does not have, it begins at the
    next ledger.
    """
    assert view.before(position) == expected


def test_columns_are_by_entry(view):
    assert view.find(5).column("messages").tolist() == [1, 0, 1, 0, 0, 0, 0, 0, 0, 1]


def test_an_index_that_was_cut_is_told_and_the_rest_of_it_is_read(tmp_path):
    part = written(tmp_path, LEDGER, [1, 4, 6])
    path = format.index_path(tmp_path, LEDGER)
    path.write_bytes(path.read_bytes()[:-5])
    view = CompactedLedgers(tmp_path, 1, manifest(part))
    assert view.find(LEDGER).kept.tolist() == [1, 4]
    assert len(view.damage) == 1 and "ends before row 2 of 3" in view.damage[0]
    assert "found the end of the file" in view.missing()


# -- what is removed

def test_what_somebody_is_at_is_not_removed(tmp_path):
    """An unfinished view is not removed while its job holds the lock; views that were replaced are."""
    folder = format.compacted_folder(tmp_path)
    for name in ("1", "2", "3.abc.new"):
        (folder / name).mkdir(parents=True)
    with locks.lock(folder / locks.LOCK) as is_ours:
        assert is_ours
        compacted_ledgers.remove_unused(tmp_path, [2])
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3.abc.new", "lock"]
    compacted_ledgers.remove_unused(tmp_path, [2])
    assert sorted(path.name for path in folder.iterdir()) == ["2", "lock"]
