"""Files that are removed while an owner uses them: each is reported once, but not those that the owner itself removes.
"""
import shutil

import pytest

from geminga.storage.runtime.log import log
from geminga.storage.upkeep import missing_files

BLOCK = b"x" * 500


@pytest.fixture
def said(monkeypatch):
    """Return a list that gets the reported lines, with their codes."""
    lines = []
    monkeypatch.setattr(log, "_write", lambda level, text, code, fields: code == "G126" and lines.append(text))
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
    rig.owner.truncate(rig.partition("t"))
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
