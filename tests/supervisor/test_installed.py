"""The right user for a data folder: root takes the owner's rights, and others are told the line that does it."""
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from geminga.supervisor.host import installed

from ..harness import COMMAND

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")]
NOBODY = pwd.getpwuid(65534)


@pytest.fixture
def tmp_path():
    """A folder that everybody may look into."""
    folder = Path(tempfile.mkdtemp(prefix="geminga-installed-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder(own, tmp_path):
    """A copy of a stopped broker's folder that is another user's."""
    if own.is_there:
        own.stop()
    place = tmp_path / "data"
    shutil.copytree(own.data_dir, place, ignore=shutil.ignore_patterns("socket", "run"))
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
    return place


def run(*words, user=None):
    who = {} if user is None else {"user": user, "group": NOBODY.pw_gid, "extra_groups": []}
    done = subprocess.run([COMMAND[0], *map(str, words)], capture_output=True, text=True, check=False, cwd="/", **who)
    return done.returncode, done.stdout, done.stderr


def owners(place):
    return {path.stat().st_uid for path in (place, *place.rglob("*"))}


def test_root_leaves_no_file_that_the_broker_cannot_read(folder, tmp_path):
    """Backups, nights, repairs and restores belong to the owner of the folder, whoever starts them."""
    backups = tmp_path / "backups"      # in a folder of root's, so only root can make it
    for words in (("backup", "--data-dir", folder, backups), ("nightly", "--engine", "here", "--data-dir", folder),
                  ("verify", "--repair", folder), ("upgrade", "check", folder), ("verify", folder)):
        status, _, complaint = run(*words)
        assert (status, complaint) == (0, ""), words
    assert owners(folder) == owners(backups) == {NOBODY.pw_uid}
    restored = tmp_path / "restored"
    restored.mkdir()
    os.chown(restored, NOBODY.pw_uid, NOBODY.pw_gid)
    assert run("restore", next(path for path in backups.iterdir() if path.is_dir()), restored)[::2] == (0, "")
    assert owners(restored) == {NOBODY.pw_uid}


def test_a_search_and_a_bundle_have_the_owners_rights(folder, tmp_path):
    """A file that only root can read is closed to them.  The archive itself is root's, where root asked for it."""
    for_root = tmp_path / "of root"
    for_root.mkdir(mode=0o700)

    def collected(name):
        status, printed, _ = run("debug", "bundle", "--data-dir", folder, for_root / name)
        assert (status, printed) == (0, f"{for_root / name}\n")
        made = (for_root / name).stat()
        assert (made.st_uid, made.st_mode & 0o777) == (0, 0o600)
        with tarfile.open(for_root / name) as packed:
            return {member.name.partition("/")[2]: packed.extractfile(member).read().decode() for member in packed}

    assert "found: 0" in collected("first")["catalogue.txt"]
    assert run("search", "--data-dir", folder, "public/default")[0] == 1      # there are no messages
    assert owners(folder) == {NOBODY.pw_uid}
    os.chown(folder / "catalogue.sqlite", 0, 0)
    (folder / "catalogue.sqlite").chmod(0o600)
    assert "found: 1" in collected("second")["catalogue.txt"]
    assert run("search", "--data-dir", folder, "public/default")[0] == 3


def test_no_archive_is_left_where_root_cannot_become_the_owner(folder, tmp_path):
    os.chown(folder, 4_000_000, 4_000_000)
    status, _, complaint = run("debug", "bundle", "--data-dir", folder, tmp_path / "archive")
    assert (status, complaint) == (1, f"geminga: {folder} is user #4000000's, who has to run this\n")
    assert run("search", "--data-dir", folder, "public/default")[::2] == (3, complaint)
    assert not (tmp_path / "archive").exists()


def test_another_user_is_told_the_line_that_does_it(folder):
    """The line is the same command, by sudo."""
    os.chown(folder, 0, 0)
    folder.chmod(0o700)
    some_file = next(path for path in folder.rglob("*") if path.is_file())
    for words in (("backup", "--data-dir", folder, "/b c"), ("nightly", "--data-dir", folder), ("verify", folder),
                  ("verify", "--repair", folder), ("upgrade", "check", folder), ("ledger", "dump", some_file),
                  ("restore", "/x", folder), ("reload", "--data-dir", folder), ("drain", "--data-dir", folder),
                  ("debug", "bundle", "/tmp/x", "--data-dir", folder)):
        status, printed, complaint = run(*words, user=NOBODY.pw_uid)
        line = " ".join("'/b c'" if word == "/b c" else str(word) for word in words)
        assert (status, printed) == (1, ""), (words, complaint)
        place = some_file if words[0] == "ledger" else folder
        assert complaint == f"geminga: {place} is user root's, who has to run this: sudo -u root geminga {line}\n"


def test_a_reader_stays_root_where_the_owner_cannot_look(folder, tmp_path):
    """A copy that was put below root's own folder is verified all the same; writing there is refused."""
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    folder.rename(hidden / "data")
    assert run("verify", hidden / "data")[0] == 0
    status, _, complaint = run("verify", "--repair", hidden / "data")
    assert status == 1 and "cannot reach it or this program" in complaint


def test_rights_are_gone_for_good(tmp_path):
    """No way back to root is left, and files that are made are the user's."""
    tmp_path.chmod(0o777)
    code = ("import os, pwd; from geminga.supervisor.host import installed; "
            f"assert installed.take_rights(pwd.getpwuid({NOBODY.pw_uid})); "
            f"print(os.getresuid(), os.getresgid(), os.getgroups() == [{NOBODY.pw_gid}]); os.setuid(0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout == f"{(NOBODY.pw_uid,) * 3} {(NOBODY.pw_gid,) * 3} True\n"
    assert "PermissionError" in done.stderr


def test_a_user_that_cannot_read_a_place_gets_no_rights(tmp_path):
    tmp_path.chmod(0o700)
    before = os.getresuid(), os.getresgid(), os.getgroups()
    assert not installed.take_rights(NOBODY, tmp_path / "x")
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
