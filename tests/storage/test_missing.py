"""Files that are removed while an owner uses them: each is reported once, but not those that the owner itself removes.
"""
import shutil

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.offline.findings import Severity
from geminga.storage.offline.verify import walk
from geminga.storage.runtime.log import log
from geminga.storage.upkeep import missing_files

T = api.BaseCommand.Type
BLOCK = b"x" * 500


@pytest.fixture
def said(monkeypatch):
    """Return a list that gets the reported lines, with their codes."""
    lines = []
    monkeypatch.setattr(log, "_write", lambda level, text, code, fields: code == "G126" and lines.append(text))
    return lines


@pytest.fixture
def said_lost(monkeypatch):
    """Return a list that gets the lines about refused topics."""
    lines = []
    monkeypatch.setattr(log, "_write", lambda level, text, code, fields: code == "G121" and lines.append(text))
    return lines


def seconds(rig, count=3):
    for _ in range(count):
        rig.run(after_ms=1_000)


@pytest.fixture
def rig(rigs):
    """Return an owner with one topic of two ledgers, the second of which has entries."""
    rig = rigs(roll_over_entries=4)
    rig.consumer("t")
    rig.producers = rig.producer("t")
    rig.publish(rig.producers, *[BLOCK] * 6)
    seconds(rig)
    return rig


def test_an_owner_that_rolls_trims_truncates_and_deletes_tells_nothing(rig, said):
    consumer = rig.consumer("t", subscription="other")
    rig.publish(rig.producers, *[BLOCK] * 6)
    seconds(rig)
    rig.owner.trimming.truncate(rig.partition("t"))
    seconds(rig)
    rig.publish(rig.producers, BLOCK)
    seconds(rig)
    rig.asked("unload", "t")
    seconds(rig)
    rig.producer("t")
    rig.asked("delete", "t", force=True)
    seconds(rig)
    assert said == [] and not rig.counters.total("damage_found") and consumer


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, -1], ids=["sealed", "open"])
@pytest.mark.parametrize("which", [0, 1], ids=["ledger", "index"])
@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_file_of_a_ledger_that_is_gone_is_told_of_once(rig, said, tmp_path, number, which, how):
    ledger = rig.partition("t").ledgers[number]
    path = ledger.files()[which]
    if how == "replaced":
        if ledger.inodes() == ():
            pytest.skip("nobody knows which file was there, as it is not open")
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
    elif how == "moved":
        path.rename(tmp_path / "elsewhere")
    else:
        path.unlink()
    seconds(rig, 5)
    assert len(said) == 1 and said[0].startswith(f"{path}: ") and rig.counters.total("damage_found") == 1


def test_a_whole_folder_that_is_gone_is_told_of_file_by_file(rig, said, tmp_path):
    partition = rig.partition("t")
    paths = {path for ledger in partition.ledgers for path in ledger.files()}
    partition.folder.rename(tmp_path / "elsewhere")
    seconds(rig, 5)
    (tmp_path / "elsewhere").rename(partition.folder)
    assert {line.partition(": ")[0] for line in said} >= set(map(str, paths)) and len(said) == len(set(said))


def test_a_state_that_was_there_is_missed(rigs, said):
    rig = rigs()
    rig.publish(rig.producer("t"), BLOCK)
    rig.consumer("t")
    rig = rigs.restart(rig)
    rig.consumer("t")
    state = rig.partition("t").folder / "state"
    seconds(rig)
    state.unlink()
    seconds(rig)
    assert len(said) == 1 and said[0].startswith(str(state))


def test_of_many_partitions_all_are_looked_at_by_and_by(rigs, said, monkeypatch):
    monkeypatch.setattr(missing_files, "_EACH_TICK", 6)
    rig = rigs()
    topics = [f"t{number}" for number in range(10)]
    for topic in topics:
        rig.publish(rig.producer(topic), BLOCK)
    seconds(rig)
    for topic in topics:
        rig.partition(topic).open_ledger.ledger_path.unlink()
    rig.run(after_ms=1_000)
    assert 0 < len(said) < 10
    seconds(rig, 10)
    assert len(said) == 10


def test_files_that_all_processes_share_are_watched_by_one(tmp_path):
    paths, lines = [tmp_path / name for name in ("one", "two", "never")], []
    for path in paths[:2]:
        path.touch()
    watched = missing_files.WatchedFiles(paths, lines.append)
    watched.look()
    assert lines == []
    paths[0].unlink()
    (tmp_path / "fresh").touch()
    (tmp_path / "fresh").replace(paths[1])
    paths[2].touch()
    watched.look()
    watched.look()
    assert [line.partition(": ")[0] for line in lines] == [str(paths[0]), str(paths[1])]


SEGMENT = "segment://public/default/grown/0000-ffff-0"


def refused(rig, topic):
    """Subscribe, and return (error code, text) of each refusal."""
    section, _ = rig.subscribe(topic, "new")
    return [(command.error.error, command.error.message) for command in rig.run(section).commands(T.ERROR)]


@pytest.mark.parametrize("topic", ["t", SEGMENT])
@pytest.mark.parametrize("what", ["folder", "ledgers"])
@pytest.mark.parametrize("end", ["restart", "crash", "unload"])
def test_a_stored_topic_whose_files_were_removed_is_refused_until_they_come_back(
        rigs, said_lost, tmp_path, topic, what, end):
    rig = rigs()
    rig.owner.catalogue.scalable_topics.create(rig.topic(SEGMENT).base, 1)
    rig.publish(rig.producer(topic), BLOCK)
    folder = rig.partition(topic).folder
    if end == "unload":
        rig.asked("unload", topic)
    else:
        rig = rigs.restart(rig)
        rig = rigs.crash(rig) if end == "crash" else rig
    folder = rig.data_dir / folder.relative_to(folder.parents[1])
    aside = tmp_path / "aside"
    shutil.copytree(folder, aside)
    for path in folder.iterdir():
        if what == "folder" or path.name != "state":
            path.unlink()
    if what == "folder":
        folder.rmdir()
    for _ in range(2):
        [(code, text)] = refused(rig, topic)
        assert code == api.PersistenceError and str(folder) in text and "missing" in text
    assert len(said_lost) == rig.counters.total("damage_found") == 1
    severities = [finding.severity for finding in walk(rig.data_dir) if finding.path == folder]
    assert severities == ([Severity.LOSS] if end != "unload" else [])      # the journal still has all of it
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
    assert [payload for _, payload in rig.everything(topic)] == [BLOCK]


def test_an_empty_folder_in_place_of_a_removed_one_begins_the_topic_anew(rig, rigs):
    partition = rig.partition("t")
    again = rigs.restart(rig)
    shutil.rmtree(partition.folder)
    partition.folder.mkdir()
    assert again.everything("t") == []


def test_a_topic_whose_removed_files_do_not_come_back_can_be_deleted(rig, rigs):
    partition = rig.partition("t")
    again = rigs.restart(rig)
    shutil.rmtree(partition.folder)
    assert refused(again, "t")
    assert again.asked("delete", "t", force=True) is None
    assert again.consumer("t") and again.everything("t") == []


def test_topics_that_were_never_used_need_no_folder(rigs):
    rig = rigs()
    rig.owner.catalogue.topics.create(rig.topic("made"), 0)
    rig.owner.catalogue.commit()
    assert rigs.crash(rig).consumer("made")


def test_a_topic_whose_folder_cannot_be_made_is_made_later(rigs, monkeypatch):
    rig = rigs()
    folder = rig.data_dir / "partitions"
    shutil.rmtree(folder, ignore_errors=True)
    folder.touch()
    [(code, _)] = refused(rig, "t")
    assert code == api.PersistenceError
    folder.unlink()
    assert rig.consumer("t")
