"""Power is cut under load, and what was promised holds: power.py, in small; and the file system that it stands on
forgets as it says.
"""
import mmap
import os
import shutil
import sqlite3
import sys

import pytest

from geminga.storage.disk.files import FileSystem, sync_all

from . import power
from .forgetful import PAGE, Disk, why_not

CUTS = 6
CUTS_OF_A_NIGHT = 20
PAGES = 200


@pytest.fixture(scope="session")
def mountable(tmp_path_factory):
    if reason := why_not(tmp_path_factory.mktemp("fuse") / "disk"):
        pytest.skip(reason)


def test_a_server_with_a_bug_is_no_host_without_fuse(tmp_path, monkeypatch):
    """The server could not be imported for a while, and all tests of this file were skipped as if without FUSE."""
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="has ended"):
        why_not(tmp_path / "disk")


@pytest.fixture
def disk(tmp_path, mountable, seed):
    made = Disk(tmp_path / "disk", seed)
    yield made
    made.close()


def cut(disk, seed):
    disk.freeze()
    disk.thaw()
    disk.cut(seed)


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("cuts", [CUTS, pytest.param(CUTS_OF_A_NIGHT, marks=pytest.mark.nightly)])
def test_what_was_promised_holds_over_power_cuts(tmp_path, mountable, seed, cuts):
    figures = power.Round(tmp_path / "round", seed).run(cuts)
    print(figures.table())
    assert figures.ends.total() >= cuts
    assert figures.receipted and figures.acknowledged
    assert figures.is_good


def test_a_broker_that_syncs_nothing_is_caught(tmp_path, mountable, seed):
    """The checker finds losses or damage when a broker with sync = "none" loses power."""
    for number in range(3):
        figures = power.Round(tmp_path / f"round-{number}", seed + number, sync="none").run(3)
        if not figures.is_good:
            return
    pytest.fail("nine power cuts cost nothing, although nothing was synced")


def test_what_was_synced_stays_and_the_rest_may_go_page_by_page(disk, seed):
    kept = set()
    for number in range(8):
        path = disk.folder / str(number)
        with open(path, "w+b") as file:
            file.write(b"o" * (PAGES * PAGE))
            os.fsync(file.fileno())
            sync(disk.folder)
            with mmap.mmap(file.fileno(), 0) as mapped:
                mapped[:] = b"n" * len(mapped)
        cut(disk, seed + number)
        found = path.read_bytes()
        assert len(found) == PAGES * PAGE
        assert set(found) <= set(b"on")
        kept.add(found.count(b"n"))
    assert len(kept) > 1


def test_files_are_synced_one_by_one_where_the_kernel_does_not_sync_all_of_them(disk, seed):
    """syncfs succeeds on FUSE, and syncs nothing there: a checkpoint of many files was lost."""
    folder = disk.folder / "folder"
    for number in range(8):
        folder.mkdir(exist_ok=True)
        (folder / str(number)).write_bytes(b"n" * 3 * PAGE)
        file_system = FileSystem(disk.folder)
        assert not file_system.has([folder])
        file_system.close()
        sync_all(disk.folder)
        cut(disk, seed + number)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == \
            {str(name): b"n" * 3 * PAGE for name in range(number + 1)}


def test_a_name_stays_when_its_folder_was_synced_and_may_go_when_not(disk, seed):
    found = set()
    (disk.folder / "synced").touch()
    sync(disk.folder)
    for number in range(16):
        (disk.folder / "not").touch()
        sync(disk.folder / "not")
        cut(disk, seed + number)
        found.add(frozenset(os.listdir(disk.folder)))
        (disk.folder / "not").unlink(missing_ok=True)
        sync(disk.folder)
    assert found == {frozenset({"synced"}), frozenset({"synced", "not"})}


def test_a_file_that_was_renamed_is_the_old_one_or_the_new_one(disk, seed):
    found = set()
    for number in range(16):
        for name in (b"old", b"new"):
            (disk.folder / "file.new").write_bytes(name)
            sync(disk.folder / "file.new")
            (disk.folder / "file.new").rename(disk.folder / "file")
            if name == b"old":
                sync(disk.folder)
        cut(disk, seed + number)
        found.add((disk.folder / "file").read_bytes())
    assert found == {b"old", b"new"}


def test_what_sqlite_committed_is_there_after_every_cut(disk, seed):
    committed = []
    for number in range(20):
        database = sqlite3.connect(disk.folder / "database", isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE IF NOT EXISTS rows (value INTEGER)")
        assert [value for value, in database.execute("SELECT value FROM rows ORDER BY value")] == committed
        database.execute("INSERT INTO rows VALUES (?)", (number,))
        committed.append(number)
        database.execute("BEGIN")
        database.execute("INSERT INTO rows VALUES (1000000)")
        database.close()
        cut(disk, seed + number)
