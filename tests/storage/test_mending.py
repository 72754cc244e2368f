"""A damaged index is rebuilt as it was: each row from the rows next to it and from its entry."""
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from geminga.storage import format
from geminga.storage.ledgers import ledger_headers
from geminga.storage.ledgers.ledger_files import open_ledger

from .files import flip, overwrite
from .rig import START_MS, Rig

ROW = format.INDEX_ROW.itemsize
KINDS = [
    {},
    {"partition_key": "key"},
    {"batch": 7},
    {"deliver_at_time": START_MS + 5_000},
    {"ordering_key": b"k", "batch": 2},
    {"chunk_id": 0, "num_chunks_from_msg": 3, "uuid": "u", "total_chunk_msg_size": 9},
    {"chunk_id": 2, "num_chunks_from_msg": 3, "uuid": "u", "total_chunk_msg_size": 9},
    {"event_time": 9, "compression": 2},
]
ENTRIES = 3 * len(KINDS)


class Made(NamedTuple):
    folder: Path
    ledger_id: int
    rows: np.ndarray
    raw: bytes

    def __repr__(self):
        return f"<{self.folder}>"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a ledger with entries of all kinds, as a stop leaves it: (folder, ledger id, rows, bytes of the index)."""
    rig = Rig(tmp_path_factory.mktemp("mending") / "data")
    producer = rig.producer("a")
    for number in range(ENTRIES):
        rig.now_ms += 10
        rig.run(
            rig.sends(
                (producer, b"%d" % number * (number % 5), KINDS[number % len(KINDS)] | {"publish_time": 1_000 + number})
            )
        )
    found = rig.partition("a").open_ledger
    rows = found.index[:found.entries].copy()
    rig.close()
    return Made(found.folder, found.ledger_id, rows, found.index_path.read_bytes())


@pytest.fixture(params=["open", "sealed", "not the first"])
def index(made, request):
    """Return (path of the index, function that opens the ledger, its rows). The index is written anew for each test."""
    folder, ledger_id, rows, raw = made
    path = format.index_path(folder, ledger_id)
    path.write_bytes(raw)

    def opened():
        return open_ledger(folder, 1, ledger_id)

    if request.param == "sealed":
        opened().seal()
    elif request.param == "not the first":
        rows = rows.copy()
        rows["message_index"] += 1_000
        rows["checksum"] = 0
        rows["checksum"] = format.row_checksums(rows, ledger_id, np.arange(len(rows), dtype=np.uint64))
        overwrite(path, format.HEADER_SIZE, rows.tobytes())
        found = opened()
        found.first_message = 1_000
        found.checkpoint()
        found.close()
    return path, opened, rows


def row_at(number):
    return format.HEADER_SIZE + number * ROW


def compare(found, rows, wrong=()):
    """Assert that the ledger's rows equal `rows`. A rebuilt row, with its number in `wrong`, may have the arrival
    time of a row next to it.
    """
    fresh = found.index[:found.entries]
    for name in rows.dtype.names:
        if name not in ("broker_time", "checksum"):
            assert (fresh[name] == rows[name]).all(), name
    others = np.setdiff1d(np.arange(len(rows)), wrong)
    assert (fresh[others] == rows[others]).all()
    assert set(fresh["broker_time"].tolist()) <= {*rows["broker_time"].tolist(), found.created_ms}
    assert format.is_valid(fresh, found.ledger_id).all()
    assert found.lost == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ENTRIES))
def test_one_row_is_made_anew_wherever_it_is(index, number):
    """A damaged row is rebuilt with keys, batch size, delay and chunk, wherever it is. The damage is reported once,
    and the row is whole on disk afterwards.
    """
    path, opened, rows = index
    overwrite(path, row_at(number), bytes(ROW))
    found = opened()
    compare(found, rows, [number])
    assert [str(path) in text and f"of 1 entries from {number} on" in text for text in found.damage] == [True]
    again = opened()
    compare(again, rows, [number])
    assert again.damage == []


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, ENTRIES - 1), min_size=1), st.binary(min_size=ROW, max_size=ROW))
def test_any_rows_are_made_anew_also_all_of_them(made, wrong, junk):
    """Any number of damaged rows, even all, are rebuilt: entries are told apart by their checksums."""
    folder, ledger_id, rows, raw = made
    path = format.index_path(folder, ledger_id)
    path.write_bytes(raw)
    for number in wrong:
        overwrite(path, row_at(number), junk)
    found = open_ledger(folder, 1, ledger_id)
    compare(found, rows, sorted(wrong))
    assert len(found.damage) == 1


@pytest.mark.parametrize("number", [0, 9, ENTRIES - 1])
def test_a_row_whose_entry_is_damaged_too_costs_that_entry(index, number, made):
    """A row whose entry is damaged too keeps its place and size, so clients get the entry and see its wrong
    checksum. All other rows are unchanged.
    """
    path, opened, rows = index
    ledger_path = format.ledger_path(made[0], made[1])
    offset = int(rows["offset"][number]) + 12
    overwrite(path, row_at(number), bytes(ROW))
    flip(ledger_path, offset)
    found = opened()
    fresh = found.index[:ENTRIES]
    flip(ledger_path, offset)
    others = np.setdiff1d(np.arange(ENTRIES), [number])
    assert (fresh[others] == rows[others]).all()
    for name in ("offset", "size", "message_index"):
        assert fresh[name][number] == rows[name][number]
    if number < ENTRIES - 1:
        assert fresh["messages"][number] == rows["messages"][number]
    assert found.lost == [] and len(found.damage) == 1


def test_rows_beside_each_other_with_a_damaged_entry_are_lost_and_told(index, made):
    """Damaged rows next to each other with a damaged entry among them are lost and reported. Where their entries
    begin is unknown, so nothing is guessed.
    """
    path, opened, rows = index
    ledger_path = format.ledger_path(made[0], made[1])
    overwrite(path, row_at(4), bytes(3 * ROW))
    offset = int(rows["offset"][5]) + 12
    flip(ledger_path, offset)
    found = opened()
    assert found.entries == ENTRIES
    others = np.setdiff1d(np.arange(ENTRIES), [4, 5, 6])
    assert (found.index[:ENTRIES][others] == rows[others]).all()
    flip(ledger_path, offset)
    assert found.lost == [4, 5, 6]
    assert ["3 entries from 4 on are lost" in text for text in found.damage] == [False, True]


@pytest.mark.parametrize("junk", [bytes(format.HEADER_SIZE - 8), b"\xff" * 64], ids=["zeros", "ones"])
def test_a_header_is_made_anew(index, junk):
    """A damaged header is rebuilt from the rows, with the first entry's arrival time as the creation time. Whether
    the ledger is sealed is known to its partition.
    """
    path, opened, rows = index
    overwrite(path, 8, junk[:format.HEADER_SIZE - 8])
    found = opened()
    assert (found.entries, found.size) == (ENTRIES, int(rows[-1]["offset"] + rows[-1]["size"]))
    assert found.first_message == int(rows[0]["message_index"])
    assert found.created_ms == int(rows[0]["broker_time"])
    assert [str(path) in text for text in found.damage] == [True]
    compare(found, rows)
    assert opened().damage == []


@pytest.mark.parametrize("number", [0, 3, ENTRIES - 1])
def test_a_header_and_a_row_are_made_anew(index, number):
    path, opened, rows = index
    flip(path, 9)
    overwrite(path, row_at(number), bytes(ROW))
    found = opened()
    if number == ENTRIES - 1:      # neither header nor rows show that there was one more
        assert found.entries == ENTRIES - 1
        compare(found, rows[:-1])
    else:
        compare(found, rows, [number])


def test_a_payload_that_looks_like_entries_does_not_mislead(tmp_path):
    """Rows are rebuilt correctly for payloads that contain whole entries, as a geo-replicator might publish them."""
    rig = Rig(tmp_path / "data")
    producer = rig.producer("a")
    inner = rig.sends((producer, b"inner"))[2]
    rig.publish(producer, inner, inner * 3, b"\x0e\x01" * 40, b"x")
    found = rig.partition("a").open_ledger
    rows = found.index[:4].copy()
    rig.close()
    overwrite(found.index_path, row_at(0), bytes(4 * ROW))
    compare(open_ledger(found.folder, 1, found.ledger_id), rows, range(4))


def test_looking_at_whole_rows_writes_nothing(index, monkeypatch):
    _path, opened, rows = index
    monkeypatch.setattr(ledger_headers, "write_into_index", None)
    compare(opened(), rows)
