"""What a copy takes from a feed, and what it refuses: frames, files, pages of the catalogue, records."""
import contextlib
import sqlite3

import pytest

from geminga.storage import format
from geminga.storage.disk import data_folder
from geminga.storage.ledgers.journal import Record, open_journal
from geminga.storage.owner.recovery import journal_folder
from geminga.storage.standby import frames, standing
from geminga.storage.standby.copy import Copy, lacking
from geminga.storage.standby.frames import Decoder, Frame, Malformed
from geminga.storage.standby.journal_tail import JournalTail, Overtaken, beginning
from geminga.storage.standby.sources import CataloguePages, Extras, base

SEGMENT = 1 << 20


def op(partition_id: int) -> bytes:
    return format.PARTITION_DELETED.to_bytes(8, "little") + partition_id.to_bytes(8, "little") + bytes(24)


def write(journal, count, size=1):
    for number in range(count):
        journal.append(Record(b"", b"", b"", op(number + 1) * size, [], 0))
    journal.sync()


@pytest.fixture
def journal(tmp_path):
    folder = journal_folder(tmp_path / "first", 0)
    made = open_journal(folder, segment_bytes=SEGMENT, segments_max=3)
    yield made
    made.close()


def blocks(tail):
    return list(iter(tail.read, None))


@pytest.fixture
def copied(tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    made = Copy(folder)
    made.begin_base("pulsar://first", 1)
    yield made
    made.close()


def test_frames_come_in_any_pieces(tmp_path):
    sent = b"".join([*frames.encode(frames.MARK, mark=7), *frames.encode(frames.FILE, b"bytes", path="x")])
    for step in (1, 5, len(sent)):
        decoder, found = Decoder(), []
        for at in range(0, len(sent), step):
            found += decoder.receive(sent[at:at + step])
        assert [(frame.kind, frame.fields, bytes(frame.data)) for frame in found] == [
            (frames.MARK, {"mark": 7}, b""), (frames.FILE, {"path": "x"}, b"bytes")]


def test_a_frame_with_a_wrong_bit_is_refused():
    sent = b"".join(frames.encode(frames.FILE, b"bytes", path="x"))
    for at in range(len(sent)):
        changed = bytearray(sent)
        changed[at] ^= 1
        with contextlib.suppress(Malformed):
            assert Decoder().receive(changed) == []      # a longer frame, of which more has to come


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "partitions/1/../../x", "partitions/x/1.ledger", "format",
                                  "lock", "partitions/1/compacted/1/view", "transactions/1/../table",
                                  "partitions/1/.x", 7, ""])
def test_a_file_outside_of_a_data_folder_is_refused(copied, path):
    with pytest.raises(Malformed):
        copied.take(Frame(frames.FILE, {"path": path, "at": 0, "size": 1, "whole": True}, memoryview(b"x")))


def test_a_tail_gives_what_the_owner_appends_over_segments(journal):
    tail = JournalTail(journal.folder, beginning(journal.folder))
    assert blocks(tail) == []
    total = 0
    for _ in range(5):
        write(journal, 3, 8_000)      # 960,000 bytes: a segment has one turn
        found = blocks(tail)
        total += sum(len(block.records) for block in found)
        assert [bool(block.data) for block in found].count(True) >= 1
    assert total == 15 and tail.place.number == 16
    tail.close()


def test_a_tail_that_is_too_late_says_so(journal):
    tail = JournalTail(journal.folder, beginning(journal.folder))
    write(journal, 1)
    blocks(tail)
    for _ in range(12):
        write(journal, 3, 8_000)
    with pytest.raises(Overtaken):
        blocks(tail)
    tail.close()


def test_a_place_continues_over_stops_and_not_in_another_journal(tmp_path):
    folder = journal_folder(tmp_path, 0)
    journal = open_journal(folder, segment_bytes=SEGMENT, segments_max=3)
    tail = JournalTail(folder, beginning(folder))
    for _ in range(3):
        write(journal, 2)
        blocks(tail)
        journal.close()
        journal = open_journal(folder, segment_bytes=SEGMENT, segments_max=3)
    again = JournalTail(folder, tail.place)
    again.check()
    write(journal, 1)
    assert sum(len(block.records) for block in blocks(again)) == 1
    journal.close()
    other = open_journal(journal_folder(tmp_path, 1), segment_bytes=SEGMENT, segments_max=3)
    write(other, 9)
    stranger = JournalTail(other.folder, again.place)
    with pytest.raises(Overtaken):
        stranger.check()
    other.close()
    again.close()
    tail.close()


def test_a_copy_ends_where_its_records_end_and_counts_what_it_lacks(journal, copied, tmp_path):
    """A record that was cut by a kill does not count, and the feed goes on behind the last whole one."""
    tail = JournalTail(journal.folder, beginning(journal.folder))
    write(journal, 3)
    block = blocks(tail)[0]
    copied.put_records(0, block.begin, memoryview(block.data))
    copied.complete_base("here", "pulsar://first")
    copied.close()
    path = journal_folder(copied.data_dir, 0) / "1.journal"
    path.write_bytes(path.read_bytes()[:-7])
    held = Copy(copied.data_dir)
    assert held.held()["places"]["0"]["number"] == 3 and path.stat().st_size < block.end.at
    with pytest.raises(Malformed):
        held.put_records(0, block.end, memoryview(b""))
    places = held.held()["places"]
    held.close()
    assert lacking(tmp_path / "first", places) == 0      # a record without an entry
    assert lacking(tmp_path / "first", {"0": {}}) is None
    tail.close()


def test_damaged_records_and_those_out_of_order_are_refused(journal, copied):
    tail = JournalTail(journal.folder, beginning(journal.folder))
    write(journal, 2)
    block = blocks(tail)[0]
    changed = bytearray(block.data)
    changed[-1] ^= 1
    with pytest.raises(Malformed):
        copied.put_records(0, block.begin, memoryview(changed))
    copied.put_records(0, block.begin, memoryview(block.data))
    with pytest.raises(Malformed):
        copied.put_records(0, block.begin, memoryview(block.data))
    with pytest.raises(Malformed):
        copied.take(Frame(frames.RECORDS, {"owner": 0, "place": {"sequence": 9}}, memoryview(b"")))
    tail.close()


def test_pages_of_the_catalogue_make_the_same_catalogue(tmp_path, copied):
    source = sqlite3.connect(tmp_path / "catalogue.sqlite", isolation_level=None)
    source.execute("PRAGMA journal_mode = WAL")
    source.execute("CREATE TABLE t (x)")
    pages = CataloguePages(tmp_path / "catalogue.sqlite")
    sizes = []
    for turn in range(4):
        source.execute("INSERT INTO t VALUES (randomblob(20000))" if turn < 2 else "DELETE FROM t")
        if turn == 3:
            source.execute("VACUUM")
        assert pages.changed()
        [frame] = Decoder().receive(b"".join(pages.take()))
        copied.take(frame)
        sizes.append(len(frame.fields["pages"]))
        url = f"{(copied.data_dir / 'catalogue.sqlite').as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(url, uri=True)) as found:
            assert found.execute("SELECT x FROM t").fetchall() == source.execute("SELECT x FROM t").fetchall()
            assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert not pages.changed() and sizes[1] > 0
    with pytest.raises(Malformed):
        copied.take(Frame(frames.CATALOGUE, {"size": 4096, "pages": [3]}, memoryview(bytes(4096))))
    pages.close()
    source.close()


def test_a_base_that_is_not_complete_is_no_copy(copied):
    assert not Copy(copied.data_dir).is_complete
    with pytest.raises(data_folder.CannotUse):
        data_folder.check(copied.data_dir)
    copied.complete_base("here", "pulsar://first")
    assert Copy(copied.data_dir).is_complete and standing.read(copied.data_dir).identity == "here"
    with pytest.raises(data_folder.CannotUse, match="standby's copy"):
        data_folder.check(copied.data_dir)


def test_views_and_amendments_are_sent_once_and_replace_older_views(tmp_path, copied):
    folder = tmp_path / "first" / "partitions" / "7"
    extras, decoder = Extras(tmp_path / "first", {}, {}), Decoder()

    def send():
        found = [frame for pieces in extras.of(7) for frame in decoder.receive(b"".join(pieces))]
        for frame in found:
            copied.take(frame)
        return len(found)

    ours = copied.data_dir / "partitions" / "7"
    for number in (1, 2):
        (folder / "compacted" / str(number)).mkdir(parents=True)
        (folder / "compacted" / str(number) / "view").write_bytes(b"%d" % number)
        assert send() and not send()
        assert [path.name for path in (ours / "compacted").iterdir()] == [str(number)]
        assert (ours / "compacted" / str(number) / "view").read_bytes() == b"%d" % number
    (folder / "delayed").mkdir()
    for content in (b"a" * 32, b"a" * 64):
        (folder / "delayed" / "amended").write_bytes(content)
        assert send() and not send()
        assert (ours / "delayed" / "amended").read_bytes() == content


def test_holes_of_a_file_are_not_sent(tmp_path, copied):
    path = tmp_path / "first" / "partitions" / "7" / "1.ledger"
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        file.seek(9 << 20)
        file.write(b"end")
        file.truncate(10 << 20)
    sent = [b"".join(pieces) for pieces in base(tmp_path / "first")]
    for raw in sent:
        for frame in Decoder().receive(raw):
            copied.take(frame)
    assert sum(map(len, sent)) < 3 << 20
    assert (copied.data_dir / "partitions" / "7" / "1.ledger").read_bytes() == path.read_bytes()
