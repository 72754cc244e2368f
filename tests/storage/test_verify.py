"""Verification of a data folder: damage is found with its place and consequence, a whole folder gives no findings,
and a repair loses no byte.
"""
import json
import sqlite3
import tarfile
from pathlib import Path

import numpy as np
import pytest

from geminga.proto import layout_changes, names
from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.catalogue.checksums import COLUMNS, with_row
from geminga.storage.cursors.cursor import NOBODY
from geminga.storage.cursors.state_file import StateFile, read
from geminga.storage.offline import verify, verify_catalogue
from geminga.storage.offline.findings import Severity
from geminga.storage.topics.subscription import SubType
from geminga.supervisor.main import main

from .files import copy_of, cut, flip, overwrite
from .formats.content import OPTIONS, fill

ROWS = format.INDEX_ROW.itemsize
VERSIONS = sorted((Path(__file__).parent / "formats").glob("version-*.tar.xz"))
NOTE, HARMLESS, LOSS, UNREADABLE = Severity


class Folder:
    """The data folder of a stopped owner with one topic of 31 entries, ten to a ledger.

    Subscription `all` has acknowledged the first 12 entries, `some` the first 7 and every third one from entry 9 on.
    `killed` is a copy as a kill leaves it.
    """

    def __init__(self, rigs):
        rig = rigs(roll_over_entries=10)
        producer = rig.producer("a")
        consumers = [rig.consumer("a", "all"), rig.consumer("a", "some", subType=SubType.Shared)]
        payloads = [[b"x" * 50] * 10] * 3 + [[b"last"]]
        self.positions = [position for some in payloads for position in rig.publish(producer, *some)]
        rig.run(rig.acks(consumers[0], self.positions[11], cumulative=True))
        rig.run(rig.acks(consumers[1], *self.positions[:7], *self.positions[9:30:3]))
        self.path, self.partition = rig.data_dir, rig.partition("a").folder
        self.ledgers = rig.files("a")
        self.killed = copy_of(rig.data_dir, rig.data_dir.with_name("killed"))
        rig.close()

    def ledger(self, number):
        return format.ledger_path(self.partition, self.ledgers[number])

    def index(self, number):
        return format.index_path(self.partition, self.ledgers[number])

    @property
    def state(self):
        return format.state_path(self.partition)

    def entry(self, number, entry_id):
        """Return (offset, size) of an entry in the ledger of that number."""
        row = np.fromfile(self.index(number), format.INDEX_ROW, 1, offset=format.HEADER_SIZE + entry_id * ROWS)[0]
        return int(row["offset"]), int(row["size"])

    def change_state(self, change):
        known = read(self.partition, int(self.partition.name))
        change({name: known.cursors[number] for number, name in self.subscriptions().items()})
        StateFile(self.partition, int(self.partition.name)).take(known).write()

    def subscriptions(self):
        return self.in_catalogue("SELECT id, name FROM subscriptions")

    def in_catalogue(self, statement):
        db = sqlite3.connect(self.path / "catalogue.sqlite")
        db.create_function("with_row", -1, with_row)
        with db:
            rows = dict(db.execute(statement))
        db.close()
        return rows

    def found(self):
        return [finding for finding in verify.walk(self.path) if finding.severity]


@pytest.fixture
def folder(rigs):
    return Folder(rigs)


def of(findings):
    return [(finding.severity, finding.path, finding.offset) for finding in findings]


# -- folders that are whole

def test_a_folder_whose_broker_was_stopped_is_silent(folder):
    seen = verify.Seen()
    assert list(verify.walk(folder.path, seen=seen)) == []
    assert (seen.partitions, seen.ledgers, seen.entries) == (1, 4, 31)
    assert seen.bytes > 31 * (50 + ROWS)


def test_a_folder_whose_broker_was_killed_has_something_to_replay_and_is_not_damaged(folder):
    [note] = verify.walk(folder.killed)
    assert note.severity == NOTE and "to be replayed" in note.what


@pytest.mark.slow
def test_several_processes_look_although_the_working_folder_cannot_be_entered(folder, tmp_path, monkeypatch):
    """Here it is gone; root's home is one that a command may not enter once it has become the folder's owner."""
    monkeypatch.setattr(verify, "_PROCESSES_MIN", 0)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    seen = verify.Seen()
    assert list(verify.walk(folder.path, processes=2, seen=seen)) == [] and seen.ledgers == len(folder.ledgers)


def test_looking_changes_nothing(folder):
    for path in (folder.path, folder.killed):
        before = {found: found.read_bytes() for found in path.rglob("*") if found.is_file()}
        list(verify.walk(path))
        assert {found: found.read_bytes() for found in path.rglob("*") if found.is_file()} == before


@pytest.mark.parametrize("archive", VERSIONS, ids=lambda path: path.name.partition(".")[0])
def test_a_folder_of_every_version_is_silent(archive, tmp_path, rigs):
    """A folder that a killed broker of any format version left has no damage, neither before nor after this broker
    has served it.
    """
    with tarfile.open(archive) as found:
        found.extraction_filter = getattr(tarfile, "data_filter", None)
        found.extractall(tmp_path)
    assert [finding for finding in verify.walk(tmp_path / "data") if finding.severity] == []
    rigs.on(tmp_path / "data", **OPTIONS).close()
    assert list(verify.walk(tmp_path / "data")) == []


def test_a_folder_with_all_there_can_be_is_silent(rigs):
    rig = rigs(**OPTIONS)
    fill(rig)
    killed = copy_of(rig.data_dir, rig.data_dir.with_name("killed"))
    rig.close()
    assert [finding for path in (killed, rig.data_dir) for finding in verify.walk(path) if finding.severity] == []


# -- entries

def test_a_flipped_bit_costs_one_entry_and_says_whose(folder):
    offset, size = folder.entry(1, 5)
    for at in (offset, offset + 3, offset + 20, offset + size - 1):
        flip(folder.ledger(1), at)
        [found] = folder.found()
        assert (found.severity, found.path, found.offset, found.size, found.entries) == (
            LOSS,
            folder.ledger(1),
            offset,
            size,
            1,
        )
        assert f"{folder.ledgers[1]}:5" in found.what and "all" in found.consequence and "some" not in found.consequence
        flip(folder.ledger(1), at)
    assert folder.found() == []


def test_of_an_entry_that_everybody_has_behind_him_nothing_is_lost(folder):
    flip(folder.ledger(0), folder.entry(0, 3)[0] + 9)
    assert of(folder.found()) == [(HARMLESS, folder.ledger(0), folder.entry(0, 3)[0])]


def test_entries_that_lie_together_are_told_together(folder):
    first, last = folder.entry(2, 1)[0], sum(folder.entry(2, 4))
    overwrite(folder.ledger(2), first, b"\xff" * (last - first))
    found = folder.found()
    assert sum(one.entries for one in found) == 4 and {one.severity for one in found} == {LOSS}
    assert (found[0].offset, found[-1].offset + found[-1].size) == (first, last)


def test_the_place_of_what_is_gone_for_everybody_may_hold_anything(folder):
    known = read(folder.partition, int(folder.partition.name))
    known.cursors[NOBODY].mark_delete = (folder.ledgers[0], 4)
    StateFile(folder.partition, int(folder.partition.name)).take(known).write()
    overwrite(folder.ledger(0), folder.entry(0, 0)[0], bytes(sum(folder.entry(0, 4)) - folder.entry(0, 0)[0]))
    assert folder.found() == []
    flip(folder.ledger(0), folder.entry(0, 5)[0] + 9)
    assert of(folder.found()) == [(HARMLESS, folder.ledger(0), folder.entry(0, 5)[0])]


# -- indexes

def test_a_damaged_row_costs_nothing(folder):
    assert format.INDEX_ROW.names
    for field in format.INDEX_ROW.names:
        at = format.HEADER_SIZE + 4 * ROWS + format.INDEX_ROW.fields[field][1]
        flip(folder.index(1), at, 2)
        assert of(folder.found()) == [(HARMLESS, folder.index(1), format.HEADER_SIZE + 4 * ROWS)]
        flip(folder.index(1), at, 2)


def test_rows_and_their_entry_damaged_together_are_a_loss(folder):
    overwrite(folder.index(1), format.HEADER_SIZE + 4 * ROWS, bytes(2 * ROWS))
    flip(folder.ledger(1), folder.entry(1, 3)[0] + folder.entry(1, 3)[1] + 8)
    found = folder.found()
    assert (LOSS, folder.index(1), format.HEADER_SIZE + 4 * ROWS) in of(found)
    assert next(one for one in found if one.path == folder.index(1)).entries == 2


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(0, format.HEADER_SIZE, 5))
def test_damaged_headers_cost_nothing(folder, offset):
    flip(folder.index(1), offset, 5)
    assert of(folder.found()) == [(HARMLESS, folder.index(1), 0)]
    flip(folder.index(1), offset, 5)
    flip(folder.ledger(1), offset, 5)
    assert of(folder.found()) == [(HARMLESS, folder.ledger(1), 0)]


@pytest.mark.parametrize("which", ["ledger", "index"])
def test_a_file_that_is_too_short_is_told(folder, which):
    path = getattr(folder, which)(1)
    cut(path, 200)
    assert [(severity, found) for severity, found, _ in of(folder.found())] == [(LOSS, path)]


@pytest.mark.slow
@pytest.mark.parametrize("which", [["ledger"], ["index"], ["ledger", "index"]])
@pytest.mark.parametrize("number", range(3))
def test_a_missing_file_is_told(folder, which, number):
    """A missing ledger or index file is reported as a loss, also if both files are missing, of the first ledger or
    one in between.
    """
    for name in which:
        getattr(folder, name)(number).unlink()
    assert {finding.severity for finding in folder.found()} == {LOSS}


@pytest.mark.parametrize("which", ["ledger", "index"])
def test_what_is_left_of_a_ledger_that_everybody_has_behind_him_costs_nothing(folder, which):
    """A missing file of a ledger that all subscriptions have acknowledged is harmless. A power cut after its
    deletion, before the folder's sync, may leave the other file.
    """
    def move(cursors):
        cursors["all"].mark_delete = (folder.ledgers[1], 3)
        cursors["all"].totals[0] = 14
        cursors["some"].move((folder.ledgers[1], 3), since=14)
    folder.change_state(move)
    assert folder.found() == []
    getattr(folder, which)(0).unlink()
    assert {finding.severity for finding in folder.found()} == {HARMLESS}


def test_a_missing_last_ledger_is_told(folder):
    """A missing last ledger is reported as an unsealed one before it, as its content is unknown. A partition without
    any ledger is a loss.
    """
    folder.ledger(3).unlink()
    folder.index(3).unlink()
    assert of(folder.found()) == [(HARMLESS, folder.index(2), 0)]
    for number in range(3):
        folder.ledger(number).unlink()
        folder.index(number).unlink()
    assert of(folder.found()) == [(LOSS, folder.partition, 0)]


# -- states

def test_one_copy_of_a_state_is_enough(folder):
    half = folder.state.stat().st_size // 2
    flip(folder.state, 70)
    assert of(folder.found()) == [(HARMLESS, folder.state, 0)]
    flip(folder.state, 70)
    flip(folder.state, half + 70)
    assert of(folder.found()) == [(HARMLESS, folder.state, half)]
    flip(folder.state, 90)
    assert of(folder.found()) == [(LOSS, folder.state, 0), (LOSS, folder.state, half)]


def test_a_missing_state_is_a_loss(folder):
    folder.state.unlink()
    assert of(folder.found()) == [(LOSS, folder.state, 0)]


def test_a_state_that_the_journal_needs_keeps_the_broker_from_starting(folder):
    partition = format.partition_folder(folder.killed, int(folder.partition.name))
    format.state_path(partition).write_bytes(b"rotten" * 100)
    found = [finding for finding in verify.walk(folder.killed) if finding.severity]
    assert {finding.severity for finding in found} == {LOSS} and "no broker starts" in found[-1].consequence


def test_cursors_that_are_about_entries_that_are_not_there_are_told(folder):
    def move(cursors):
        cursors["all"].mark_delete = (folder.ledgers[-1], 1)
    folder.change_state(move)
    [found] = folder.found()
    assert found.severity == LOSS and "all" in found.what and f"{folder.ledgers[-1]}:1" in found.what


def test_bits_of_entries_that_are_not_there_are_told(folder):
    def mark(cursors):
        cursors["some"].bitmaps[folder.ledgers[-1]] = np.array([1 << 7], np.uint8)
    folder.change_state(mark)
    [found] = folder.found()
    assert found.severity == LOSS and f"{folder.ledgers[-1]}:7" in found.what


@pytest.mark.parametrize(("by", "severity"), [(1, HARMLESS), (-1, LOSS)])
def test_totals_that_do_not_add_up_are_told(folder, by, severity):
    """Totals of a subscription that do not add up are reported: as a loss if messages are missing, as harmless if
    there are too many.
    """
    def count(cursors):
        cursors["some"].totals[0] = int(cursors["some"].totals[0]) + by
    folder.change_state(count)
    [found] = folder.found()
    assert found.severity == severity and "some" in found.what


# -- the journal

def test_a_damaged_record_is_told(folder):
    [path] = (folder.killed / "journal" / "0").glob("1.journal")
    flip(path, format.HEADER_SIZE + 300)
    found = [finding for finding in verify.walk(folder.killed) if finding.severity]
    assert found and {finding.path for finding in found} == {path}


def test_what_only_the_journal_has_is_no_damage_of_the_ledger(folder):
    """Entries that are damaged in the ledger but whole in the journal are no damage, because the next start writes
    them again.
    """
    ledger = format.ledger_path(format.partition_folder(folder.killed, int(folder.partition.name)), folder.ledgers[1])
    overwrite(ledger, format.HEADER_SIZE, bytes(100))
    assert [finding for finding in verify.walk(folder.killed) if finding.severity] == []


# -- the catalogue

def test_a_partition_that_the_catalogue_lacks_is_a_loss(folder):
    folder.in_catalogue("DELETE FROM subscriptions")
    folder.in_catalogue("DELETE FROM partitions")
    assert of(folder.found()) == [(LOSS, folder.partition, 0)]


def test_a_partition_without_a_folder_is_told(folder):
    folder.partition.rename(folder.path / "elsewhere")
    assert of(folder.found()) == [(LOSS, folder.partition, 0)]


def test_rows_that_refer_to_nothing_are_told(folder):
    folder.in_catalogue("UPDATE topics SET name = 'persistent://public/default/b'")
    assert [(finding.severity, finding.path.name) for finding in folder.found()] == [(HARMLESS, "catalogue.sqlite")]
    folder.in_catalogue("UPDATE topics SET name = 'persistent://public/default/a', namespace = 'public/nowhere'")
    assert [(finding.severity, finding.path.name) for finding in folder.found()] == [(LOSS, "catalogue.sqlite")]


@pytest.mark.slow
@pytest.mark.parametrize("table", COLUMNS)
def test_a_wrong_value_in_the_catalogue_is_told_by_its_table(folder, table):
    """A changed value in the catalogue, which SQLite cannot notice, is reported with its table."""
    path = folder.path / "catalogue.sqlite"
    catalogue = open_catalogue(path)
    catalogue.policies.set("public/default", "messageTTL", 60)
    catalogue.properties.set("public/default", {"a": "b"})
    catalogue.write(
        "INSERT INTO schemas VALUES ('persistent://public/default/a', 0, 1, x'00', 0, '{}', x'00')"
    )
    catalogue.write(
        "INSERT INTO schedules VALUES (1, 'persistent://public/default/a', 's', '', 0, 0, '{}', '{}', x'00', x'00')"
    )
    catalogue.write("INSERT INTO kept_topics VALUES (1, 'persistent://public/default/gone', 0, 0, 0, 0, 0, '{}')")
    catalogue.write("INSERT INTO kept_cursors VALUES (1, 1, 1, 0, 0)")
    catalogue.write("INSERT INTO inherited VALUES (1, x'00', 0, x'', x'00', 1)")
    topic = names.parse("topic://public/default/s")
    catalogue.scalable_topics.create(topic, 2)
    catalogue.scalable_topics.begin_change(
        topic, layout_changes.split(topic, catalogue.scalable_topics.layout(topic), 0, 1))
    catalogue.commit()
    catalogue.close()
    assert folder.found() == []
    db = sqlite3.connect(path)
    db.create_function("with_row", -1, lambda total, sign, *values: total)
    column = COLUMNS[table][-1]
    with db:
        db.execute(f"UPDATE {table} SET {column} = {column} || 'x'" if table not in ("counters", "topics", "partitions")
                   else f"UPDATE {table} SET {column} = {column} + 1")
    db.close()
    assert f"a value in the table {table} is not what was written" in [finding.what for finding in folder.found()]


def test_a_damaged_page_of_the_catalogue_is_told(folder):
    path = folder.path / "catalogue.sqlite"
    for at in range(4096, path.stat().st_size, 4096):
        flip(path, at, 6)
    assert folder.found()


def test_a_damaged_log_of_the_catalogue_is_told(folder):
    """A damaged write-ahead log of the catalogue is reported. SQLite would silently ignore it from the damage on,
    with all later commits.
    """
    log = folder.killed / "catalogue.sqlite-wal"
    for at in (0, 9, 20, 30, 32, 40, 60, 3_000):
        flip(log, at)
        [found] = [finding for finding in verify.walk(folder.killed) if finding.path == log]
        assert (found.severity, found.offset) == (LOSS, 0 if at < 32 else 32)
        flip(log, at)
    assert [finding for finding in verify.walk(folder.killed) if finding.path == log] == []


# -- newer formats, and what is no data folder

def test_a_newer_format_is_refused_in_one_line(folder, capsys):
    path = folder.index(1)
    head = np.fromfile(path, format.INDEX_HEADER, 1)
    fields = {name: head[name][0] for name in head.dtype.names if name != "checksum"}
    newer = np.frombuffer(
        format.header(format.INDEX_HEADER, **fields | {"version": format.VERSION + 1}), format.INDEX_HEADER
    ).copy()
    newer["checksum"] = format.crc32c(newer.tobytes())
    overwrite(path, 0, newer.tobytes())
    assert main(["verify", str(folder.path)]) == UNREADABLE
    [line, _] = capsys.readouterr().out.splitlines()
    assert f"format version {format.VERSION} or older" in line and str(path) in line


def test_a_newer_catalogue_is_refused_in_one_line(folder, capsys):
    folder.in_catalogue("PRAGMA user_version = 99")
    assert main(["verify", str(folder.path)]) == UNREADABLE
    [line, _] = capsys.readouterr().out.splitlines()
    assert "format version 99" in line


def test_what_is_no_data_folder_is_told(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "nowhere")]) == UNREADABLE
    assert "there is no such folder" in capsys.readouterr().err


# -- the command

def test_the_exit_status_is_that_of_the_worst(folder, capsys):
    assert main(["verify", str(folder.path)]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    flip(folder.state, 70)
    assert main(["verify", str(folder.path)]) == 3
    flip(folder.ledger(1), folder.entry(1, 5)[0] + 9)
    capsys.readouterr()
    assert main(["verify", "--json", str(folder.path)]) == 4
    *findings, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert {(one["severity"], one["path"], one["offset"]) for one in findings} == {
        ("harmless", str(folder.state), 0), ("loss", str(folder.ledger(1)), folder.entry(1, 5)[0])}
    assert summary["found"] == {"harmless": 1, "loss": 1} and summary["entries"] == 31


def test_a_repair_makes_anew_what_can_be_and_keeps_every_damaged_byte(folder, capsys):
    offset, _size = folder.entry(1, 5)
    good = {path: path.read_bytes() for path in (folder.index(1), folder.index(2), folder.ledger(2), folder.state)}
    flip(folder.ledger(1), offset + 9)
    flip(folder.index(1), format.HEADER_SIZE + 2 * ROWS)
    flip(folder.index(2), 9)
    flip(folder.ledger(2), 9)
    flip(folder.state, 70)
    damaged = {path: path.read_bytes() for path in [*good, folder.ledger(1)]}
    assert main(["verify", "--repair", str(folder.path)]) == LOSS
    assert of(folder.found()) == [(LOSS, folder.ledger(1), offset)]
    [aside] = (folder.path / "damaged").iterdir()
    listed = [json.loads(line) for line in (aside / "list.json").read_text().splitlines()]
    assert len(listed) == 5
    for one in listed:
        kept = Path(one["copy"]).read_bytes()
        assert (
            kept == damaged[Path(one["path"])][one["offset"] : one["offset"] + one["size"]] and len(kept) == one["size"]
        )
    assert folder.ledger(1).read_bytes() == damaged[folder.ledger(1)]
    assert folder.ledger(2).read_bytes() == good[folder.ledger(2)]
    assert folder.state.read_bytes() == good[folder.state]
    assert read(folder.partition, int(folder.partition.name)).damage == []


@pytest.mark.parametrize(("is_served", "expected"), [(True, ["b"]), (False, ["a", "b"])])
def test_beside_a_broker_only_what_every_look_finds_is_told(tmp_path, monkeypatch, is_served, expected):
    """While a broker runs, damage is reported only if each of several looks finds it. Files that are being written
    may look damaged for a moment.
    """
    def found(text):
        return verify.Finding(tmp_path, text, "", verify.Severity.LOSS)

    looks = [
        {0: [], 1: [found("a"), found("b")], 2: [found("a")]},
        {0: [found("c")], 1: [found("b"), found("c")], 2: []},
        {0: [found("c")], 1: [found("a"), found("b"), found("c")], 2: [found("a")]},
    ]
    asked = []

    def look(self, names, wanted):
        asked.append(wanted)
        return looks[len(asked) - 1]

    monkeypatch.setattr(verify, "read_names", lambda data_dir, is_served: verify.Names())
    monkeypatch.setattr(verify._Walk, "_look", look)
    told = [one.what for one in verify._Walk(tmp_path, is_served, 1, verify.Seen(), lambda *_: None).findings()]
    assert sorted(set(told)) == expected
    assert asked == ([None, {1, 2}, {1}] if is_served else [None])


def test_beside_a_broker_a_folder_that_is_whole_is_looked_at_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(verify, "read_names", lambda data_dir, is_served: verify.Names())
    monkeypatch.setattr(verify._Walk, "_look", lambda self, names, wanted: asked.append(wanted) or {0: [], 1: []})
    assert list(verify._Walk(tmp_path, True, 1, verify.Seen(), lambda *_: None).findings()) == []
    assert asked == [None]


def test_a_repaired_folder_is_served(folder, rigs):
    flip(folder.index(1), 9)
    overwrite(folder.index(2), format.HEADER_SIZE, bytes(3 * ROWS))
    assert main(["verify", "--repair", str(folder.path)]) == 0
    rig = rigs.on(folder.path, roll_over_entries=10)
    assert [position for position, _ in rig.everything("a")] == folder.positions


@pytest.mark.parametrize(("behind", "severity", "says"), [(1, Severity.NOTE, "the last change"), (2, Severity.LOSS,
    "2 changes")])
def test_changes_in_sqlites_log_behind_a_damaged_frame_are_counted(tmp_path, behind, severity, says):
    """Commits lost behind a damaged frame of SQLite's log are counted. One may have been interrupted by a power cut;
    more are a loss.
    """
    one = open_catalogue(tmp_path / "catalogue.sqlite")
    for number in range(4):
        one.namespaces.create(f"acme/n{number}")
        one.commit()
    raw = bytearray((tmp_path / "catalogue.sqlite-wal").read_bytes())
    one.close()
    page = int.from_bytes(raw[8:12])
    frames = [at for at in range(32, len(raw) - 24 - page + 1, 24 + page) if raw[at + 8:at + 16] == raw[16:24]]
    commits = [at for at in frames if int.from_bytes(raw[at + 4:at + 8])]
    raw[commits[-behind] + 24 + 100] ^= 1
    path = tmp_path / "log"
    path.write_bytes(raw)
    [found] = verify_catalogue._check_log(path)
    assert (found.severity, found.path) == (severity, path) and says in str(found)
