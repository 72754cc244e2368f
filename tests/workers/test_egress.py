"""Reading ledgers that another process writes: while they grow, and when they are gone."""
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.frames import SIZES
from geminga.storage import format
from geminga.storage.disk import files
from geminga.storage.jobs.compacting.part_writer import PartWriter
from geminga.workers.clients import egress
from geminga.workers.clients.delivery_queue import DeliveryQueue, Run
from geminga.workers.clients.egress import LedgerGone, Ledgers
from geminga.workers.clients.routes import Route, Routes

PARTITION, LEDGER = 3, 7


def store(data_dir: Path, sizes: list[int], *, ledger_id: int = LEDGER, room: int = 0, first: int = 0) -> list[bytes]:
    """Make a ledger's files with entries of these sizes and so many rows allocated ahead; return the entries."""
    folder = format.partition_folder(data_dir, PARTITION)
    folder.mkdir(parents=True, exist_ok=True)
    entries = [bytes([number % 251]) * size for number, size in enumerate(sizes, first)]
    rows = np.zeros(len(sizes), format.INDEX_ROW)
    rows["size"], rows["messages"] = sizes, 1
    rows["offset"] = format.HEADER_SIZE + np.cumsum(rows["size"], dtype=np.uint64) - rows["size"]
    ledger_header = format.header(format.LEDGER_HEADER, magic=format.LEDGER_MAGIC, ledger_id=ledger_id,
                                  partition_id=PARTITION)
    index_header = format.header(format.INDEX_HEADER, magic=format.INDEX_MAGIC, ledger_id=ledger_id,
                                 partition_id=PARTITION)
    format.ledger_path(folder, ledger_id).write_bytes(ledger_header + b"".join(entries))
    format.index_path(folder, ledger_id).write_bytes(index_header + rows.tobytes()
                                                     + bytes(room * format.INDEX_ROW.itemsize))
    return entries


def read(ledgers: Ledgers, first: int, count: int, ledger_id: int = LEDGER) -> list[bytes]:
    rows, data = ledgers.read(PARTITION, ledger_id, first, count)
    return [bytes(data[row["offset"]:row["offset"] + row["size"]]) for row in rows]


def few(ledgers: Ledgers, first: int, count: int) -> list[bytes] | None:
    found = ledgers.places(LEDGER, first, count)
    return found and [bytes(found[1][offset:offset + size]) for offset, size in found[0]]


def test_few_entries_are_read_without_arrays_unless_something_is_rare(tmp_path):
    """Ledgers that are not mapped, or have grown, entries that are large, and rows that were given back are left."""
    ledgers, entries = Ledgers(tmp_path), store(tmp_path, [10, 20, 300])
    assert few(ledgers, 0, 3) is None
    read(ledgers, 0, 3)
    assert (few(ledgers, 0, 3), few(ledgers, 1, 1), few(ledgers, 1, 3)) == (entries, entries[1:2], None)
    many = store(tmp_path, [10, 20, 300, 5, egress.BYTES_MAX, 0], room=2)      # the mapping is of the files before
    ledgers.forget(LEDGER)
    read(ledgers, 0, 3)
    with format.ledger_path(format.partition_folder(tmp_path, PARTITION), LEDGER).open("r+b") as ledger:
        ledger.truncate(format.HEADER_SIZE + 332)
    ledgers.forget(LEDGER)
    read(ledgers, 0, 3)
    assert (few(ledgers, 0, 3), few(ledgers, 3, 1)) == (many[:3], None)
    store(tmp_path, [10, 20, 300, 5, egress.BYTES_MAX, 0])
    ledgers.forget(LEDGER)
    read(ledgers, 0, 3)
    assert (few(ledgers, 3, 1), few(ledgers, 4, 1), few(ledgers, 3, 2), few(ledgers, 5, 1)) == (
        many[3:4], many[4:5], None, None)


def test_few_entries_keep_their_ledger_mapped(tmp_path, monkeypatch):
    ledgers = Ledgers(tmp_path)
    for ledger_id in (LEDGER, 8, 9):
        if ledger_id == 9:
            few(ledgers, 0, 1)
            monkeypatch.setattr(egress, "open_max", lambda *_: 2)
        store(tmp_path, [10], ledger_id=ledger_id)
        read(ledgers, 0, 1, ledger_id)
    assert few(ledgers, 0, 1) is not None


def test_entries_are_read_as_they_stand(tmp_path):
    entries = store(tmp_path, [10, 0, 300, 5])
    assert read(Ledgers(tmp_path), 0, 4) == entries
    assert read(Ledgers(tmp_path), 2, 1) == entries[2:3]


def test_a_ledger_that_has_grown_is_mapped_again(tmp_path):
    """Entries behind the end of the mapping are found, whether the index has grown or the ledger."""
    ledgers = Ledgers(tmp_path)
    store(tmp_path, [10] * 5)
    assert len(read(ledgers, 0, 5)) == 5
    grown = store(tmp_path, [10] * 9)
    assert read(ledgers, 5, 4) == grown[5:]


def test_a_ledger_whose_index_was_allocated_ahead_is_mapped_again(tmp_path):
    """The index had room for the new rows when it was mapped; the ledger ended before their entries."""
    ledgers = Ledgers(tmp_path)
    store(tmp_path, [10] * 5, room=20)
    read(ledgers, 0, 5)
    folder = format.partition_folder(tmp_path, PARTITION)
    with format.ledger_path(folder, LEDGER).open("ab") as ledger:
        ledger.write(b"x" * 1_000)
    with format.index_path(folder, LEDGER).open("r+b") as index:
        row = np.zeros(1, format.INDEX_ROW)
        row["size"], row["offset"] = 1_000, format.HEADER_SIZE + 50
        index.seek(format.HEADER_SIZE + 5 * format.INDEX_ROW.itemsize)
        index.write(row.tobytes())
    assert read(ledgers, 5, 1) == [b"x" * 1_000]


def test_much_is_read_in_parts(tmp_path):
    """Neither more entries nor more bytes at a time than are stated; an entry larger than that comes alone."""
    many = egress.ENTRIES_MAX + 10
    store(tmp_path, [1] * many)
    assert len(read(Ledgers(tmp_path), 0, many)) == egress.ENTRIES_MAX
    assert len(read(Ledgers(tmp_path), egress.ENTRIES_MAX, 10)) == 10
    store(tmp_path, [egress.BYTES_MAX + 1, egress.BYTES_MAX // 2, egress.BYTES_MAX // 2, 100], ledger_id=8)
    ledgers, first, counts = Ledgers(tmp_path), 0, []
    while first < 4:
        found = read(ledgers, first, 4 - first, ledger_id=8)
        assert len(found) == 1 or sum(map(len, found)) <= egress.BYTES_MAX
        counts.append(len(found))
        first += len(found)
    assert counts[0] == 1


def picked(ledgers: Ledgers, entries: list[int], ledger_id: int = LEDGER) -> list[bytes]:
    rows, data = ledgers.pick(PARTITION, ledger_id, np.array(entries, np.uint64))
    return [bytes(data[row["offset"]:row["offset"] + row["size"]]) for row in rows]


def test_entries_that_lie_apart_are_read_as_they_stand(tmp_path):
    """A ledger that has grown past its mapping is mapped again for such entries."""
    ledgers, entries = Ledgers(tmp_path), store(tmp_path, [10, 0, 300, 5, 7])
    assert picked(ledgers, [0, 2, 4]) == [entries[0], entries[2], entries[4]]
    assert picked(ledgers, [3]) == entries[3:4]
    grown = store(tmp_path, [10, 0, 300, 5, 7, 8, 9])
    assert picked(ledgers, [1, 6]) == [grown[1], grown[6]]
    with pytest.raises(LedgerGone):
        ledgers.pick(PARTITION, 99, np.array([0], np.uint64))


def test_many_that_lie_apart_are_read_in_parts(tmp_path):
    """Bytes between the entries do not count; an entry above the bound comes alone."""
    many, half = 2 * (egress.ENTRIES_MAX + 10), egress.BYTES_MAX // 2
    store(tmp_path, [1] * many)
    assert len(picked(Ledgers(tmp_path), list(range(0, many, 2)))) == egress.ENTRIES_MAX
    store(tmp_path, [half, half, half, egress.BYTES_MAX + 1, half, 1, half, 1], ledger_id=8)
    ledgers, left, counts = Ledgers(tmp_path), [0, 2, 3, 5, 6, 7], []
    while left:
        found = picked(ledgers, left, ledger_id=8)
        assert len(found) == 1 or sum(map(len, found)) <= egress.BYTES_MAX
        counts.append(len(found))
        left = left[len(found):]
    assert counts in ([2, 1, 3], [1, 1, 1, 3])


def test_a_ledger_that_was_deleted_is_gone(tmp_path):
    """A ledger that was never mapped is gone at once; a mapped one can be read until its owner says that it is gone."""
    with pytest.raises(LedgerGone):
        Ledgers(tmp_path).read(PARTITION, LEDGER, 0, 1)
    ledgers = Ledgers(tmp_path)
    entries = store(tmp_path, [10] * 3)
    read(ledgers, 0, 3)
    folder = format.partition_folder(tmp_path, PARTITION)
    format.index_path(folder, LEDGER).unlink()
    format.ledger_path(folder, LEDGER).unlink()
    assert read(ledgers, 0, 3) == entries
    ledgers.forget(LEDGER)
    with pytest.raises(LedgerGone):
        ledgers.read(PARTITION, LEDGER, 0, 1)
    ledgers.forget(LEDGER)       # a second time is no mistake: several runs may have named it


def test_no_more_ledgers_are_mapped_than_stated(tmp_path, monkeypatch):
    """The ledger not read for longest is given up first, and mapped again when it is read again."""
    monkeypatch.setattr(files, "_OPEN_MIN", 0)
    monkeypatch.setattr(egress, "LEDGERS_MAX", 3)
    ledgers = Ledgers(tmp_path)
    stored = {ledger_id: store(tmp_path, [ledger_id], ledger_id=ledger_id) for ledger_id in range(1, 6)}
    for ledger_id in (1, 2, 3, 1, 4):
        assert read(ledgers, 0, 1, ledger_id) == stored[ledger_id]
    folder = format.partition_folder(tmp_path, PARTITION)
    for path in folder.iterdir():
        path.unlink()
    assert read(ledgers, 0, 1, 1) == stored[1]
    with pytest.raises(LedgerGone):
        ledgers.read(PARTITION, 2, 0, 1)


def test_a_ledger_that_somebody_cut_is_not_read_behind_its_end(tmp_path, capfd):
    """The missing entries are not delivered, and one line in the log names the file."""
    store(tmp_path, [10] * 8)
    folder = format.partition_folder(tmp_path, PARTITION)
    os.truncate(format.ledger_path(folder, LEDGER), format.HEADER_SIZE + 45)
    ledgers = Ledgers(tmp_path)
    assert len(read(ledgers, 0, 4)) == 4
    for size in (format.INDEX_ROW.itemsize * 6, 100, 0):
        with pytest.raises(LedgerGone):
            ledgers.read(PARTITION, LEDGER, 0, 8)
        os.truncate(format.index_path(folder, LEDGER), size)
    assert capfd.readouterr().err.count(str(format.ledger_path(folder, LEDGER))) == 1


# -- entries whose space was given back

def client_of(tmp_path, **run):
    """A client's queue with a run of eight entries: (queue, permits that their owner gets back)."""
    store(tmp_path, [10] * 8)
    flows = []
    link = SimpleNamespace(flow=lambda *flow: flows.append(flow))
    routes = Routes()
    client = DeliveryQueue(SimpleNamespace(ledgers=Ledgers(tmp_path)), None, routes)
    route = routes.consumers[5] = Route(link, 5, False, handle=77)
    client.runs.append(Run(route, PARTITION, LEDGER, **{"first": 0, "count": 8, "epoch": -1} | run))
    return client, flows


def give_back(tmp_path, *entries):
    with format.ledger_path(format.partition_folder(tmp_path, PARTITION), LEDGER).open("r+b") as ledger:
        for entry in entries:
            ledger.seek(format.HEADER_SIZE + entry * 10)
            ledger.write(bytes(10))


def delivered(frames):
    """Return [(entry id, payload)] of the delivered messages."""
    data, found = b"".join(frames), []
    while data:
        total, size = SIZES.unpack_from(data)
        command = api.BaseCommand.FromString(data[8:8 + size])
        found.append((command.message.message_id.entryId, bytes(data[8 + size:4 + total])))
        data = data[4 + total:]
    return found


@pytest.mark.parametrize("is_mapped", [False, True], ids=["", "mapped"])
@pytest.mark.parametrize("gone", [(0,), (3, 4, 7), tuple(range(8))], ids=str)
def test_entries_that_are_gone_are_left_out_and_what_they_would_have_taken_is_asked_for_again(
        tmp_path, gone, is_mapped):
    """The client gets as many messages as it has asked for, whether the ledger was read before or not."""
    client, flows = client_of(tmp_path)
    store(tmp_path, [10] * 8, first=1)
    if is_mapped:
        client._worker.ledgers.read(PARTITION, LEDGER, 0, 8)
    give_back(tmp_path, *gone)
    count, frames = client.next_frames()
    there = [entry for entry in range(8) if entry not in gone]
    assert delivered(frames) == [(entry, bytes([entry + 1]) * 10) for entry in there]
    assert (count, sum(messages for _, messages in flows), {handle for handle, _ in flows}) == (
        len(there),
        len(gone),
        {77},
    )
    assert not client.runs


def test_of_entries_that_were_picked_too(tmp_path):
    """Of picked entries, too, those that are left keep their own ack sets."""
    picked = np.zeros(3, envelope.LISTED_ENTRY)
    picked["entry_id"], picked["words"] = (1, 4, 6), (1, 2, 1)
    client, flows = client_of(tmp_path, first=1, count=3, picked=picked, words=np.array([11, 21, 22, 31], np.uint64))
    store(tmp_path, [10] * 8, first=1)
    give_back(tmp_path, 4)
    _, frames = client.next_frames()
    commands = b"".join(frames)
    assert [entry for entry, _ in delivered(frames)] == [1, 6]
    assert api.BaseCommand.FromString(commands[8:8 + SIZES.unpack_from(commands)[1]]).message.ack_set == [11]
    assert flows == [(77, 1)]
    assert not client.runs


@pytest.mark.parametrize("picked", [False, True], ids=["run", "picked"])
@pytest.mark.parametrize("version", [6, 5], ids=["checksums", "none"])
def test_entries_whose_rows_were_given_back_too_are_left_out(tmp_path, picked, version):
    """Rows of a sealed ledger may be zeros.  The client gets as many messages as it has asked for."""
    entries = np.zeros(8, envelope.LISTED_ENTRY)
    entries["entry_id"] = range(8)
    client, flows = client_of(tmp_path, **({"picked": entries, "words": np.empty(0, np.uint64)} if picked else {}))
    client.has_checksums = version > 5
    store(tmp_path, [10] * 8, first=1)
    give_back(tmp_path, 2, 3, 4)
    with format.index_path(format.partition_folder(tmp_path, PARTITION), LEDGER).open("r+b") as index:
        head = np.frombuffer(index.read(format.HEADER_SIZE), format.INDEX_HEADER).copy()
        head["state"] = format.SEALED
        index.seek(0)
        index.write(head.tobytes())
        index.seek(format.HEADER_SIZE + 2 * format.INDEX_ROW.itemsize)
        index.write(bytes(3 * format.INDEX_ROW.itemsize))
    _, frames = client.next_frames()
    assert [entry for entry, _ in delivered(frames)] == [0, 1, 5, 6, 7]
    assert sum(messages for _, messages in flows) == 3
    assert not client.runs


def test_an_entry_without_checksum_begins_with_a_zero_and_is_there(tmp_path):
    """Old clients sent entries without a checksum, which begin with the size of their metadata."""
    rows = np.zeros(1, format.INDEX_ROW)
    assert egress.still_there(rows, memoryview(b"\0\0\0\x05.....")) is None
    assert egress.still_there(rows, memoryview(bytes(9))).tolist() == [False]


# -- compacted views

VIEW = 2


def store_view(data_dir: Path, entry_ids: list[int]) -> Path:
    """Make a view in which these entries of a ledger are left, of 10 bytes each; return its folder."""
    folder = format.compacted_folder(format.partition_folder(data_dir, PARTITION)) / str(VIEW)
    folder.mkdir(parents=True)
    rows = np.zeros(len(entry_ids), format.COMPACTED_ROW)
    rows["entry_id"], rows["size"], rows["messages"] = entry_ids, 10, 1
    with PartWriter(folder, PARTITION, LEDGER) as writer:
        writer.add(rows, np.zeros(len(rows), np.int64), [bytes([entry_id]) * 10 for entry_id in entry_ids], len(rows))
        writer.finish(max(entry_ids) + 1)
    return folder


def of_view(ledgers: Ledgers, entries: list[int]) -> list[bytes]:
    rows, data = ledgers.pick(PARTITION, LEDGER, np.array(entries, np.uint64), VIEW)
    return [bytes(data[row["offset"]:row["offset"] + row["size"]]) for row in rows]


def test_what_a_view_has_is_read_until_its_owner_says_that_it_is_gone(tmp_path):
    ledgers, folder = Ledgers(tmp_path), store_view(tmp_path, [1, 4, 9])
    assert of_view(ledgers, [1, 9]) == [b"\x01" * 10, b"\x09" * 10]
    with pytest.raises(LedgerGone):
        of_view(ledgers, [1, 3])      # the view does not have these
    of_view(ledgers, [4])
    for path in folder.iterdir():
        path.unlink()
    ledgers.forget(LEDGER)            # the ledger is forgotten, and the view stays
    assert of_view(ledgers, [4]) == [b"\x04" * 10]
    ledgers.forget(LEDGER, VIEW)
    with pytest.raises(LedgerGone):
        of_view(ledgers, [4])


def test_a_damaged_row_of_a_view_hides_no_other(tmp_path):
    folder, entries = store_view(tmp_path, list(range(1, 20))), list(range(1, 20))
    path = format.index_path(folder, LEDGER)
    raw = bytearray(path.read_bytes())
    at = format.HEADER_SIZE + 9 * format.COMPACTED_ROW.itemsize + format.COMPACTED_ROW.fields["entry_id"][1]
    raw[at] = 200      # out of order
    path.write_bytes(raw)
    ledgers, left = Ledgers(tmp_path), [one for one in entries if one != 10]
    assert of_view(ledgers, left) == [bytes([one]) * 10 for one in left]
    with pytest.raises(LedgerGone):
        of_view(ledgers, [10])


def test_a_view_that_somebody_cut_is_not_read_behind_its_end(tmp_path):
    folder = store_view(tmp_path, [1, 4, 9])
    os.truncate(format.ledger_path(folder, LEDGER), format.HEADER_SIZE + 25)
    assert of_view(Ledgers(tmp_path), [1, 4]) == [b"\x01" * 10, b"\x04" * 10]
    with pytest.raises(LedgerGone):
        of_view(Ledgers(tmp_path), [4, 9])
