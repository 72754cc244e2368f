"""Folders that somebody else has made: a restore, a verification, a look follows nothing, waits for nothing, and
believes little.
"""
import contextlib
import io
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from crc32c import crc32c

from geminga.storage import format
from geminga.storage.disk.data_folder import CannotUse, check
from geminga.storage.offline import backup
from geminga.supervisor.main import main

from ..harness import HANG_SECONDS
from ..supervisor.test_serve import GEMINGA
from .rig import Rig

pytestmark = pytest.mark.slow

SECRET = b"a file of whoever restores"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(a backup of a broker's folder with a message, the folder)"""
    place = tmp_path_factory.mktemp("hostile")
    rig = Rig(place / "data")
    rig.consumer("t")
    rig.publish(rig.producer("t"), b"hello", b"world")
    rig.close()
    report = backup.make(place / "data", place / "backups", lambda: None, list)
    (place / "secret").write_bytes(SECRET)
    return place / "data", backup.backups(place / "backups")[-1], report


@pytest.fixture
def source(made, tmp_path):
    """A copy of the backup, to be changed."""
    return shutil.copytree(made[1], tmp_path / "backup")


@pytest.fixture
def data_dir(made, tmp_path):
    """A copy of the data folder, to be changed."""
    return shutil.copytree(made[0], tmp_path / "data")


def run(*words):
    """A function that runs a command within a minute and returns (exit status, lines on standard error)."""
    done = subprocess.run(
        [GEMINGA, *map(str, words)], capture_output=True, text=True,
        timeout=HANG_SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, [*done.stdout.splitlines(), *done.stderr.splitlines()]


def say(source, text):
    """Write the manifest with this content and a right checksum."""
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    (source / "manifest").write_bytes(b"%08x %s" % (crc32c(text), text))


def said(source):
    return json.loads((source / "manifest").read_bytes().partition(b" ")[2])


def is_refused(source, target, *about):
    """Check that the restore is refused in one line and leaves its target empty."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        status = main(["restore", str(source), str(target)])
    lines = told.getvalue().splitlines()
    assert status == 1 and len(lines) == 1 and all(str(one) in lines[0] for one in about), lines
    assert not target.exists() or list(target.iterdir()) == []


def path_of(source, suffix):
    return next(item["path"] for item in said(source)["items"] if item["path"].endswith(suffix))


# -- what is restored

def test_the_backup_is_one(source, tmp_path):
    assert run("restore", source, tmp_path / "restored")[0] == 0


def to_a_link(path):
    path.unlink()
    path.symlink_to(path.parents[1] / "secret" if path.name == "manifest" else "/etc/hostname")


def to_a_link_of_the_same(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def to_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def to_a_folder(path):
    path.unlink()
    path.mkdir()


def to_a_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def to_nothing(path):
    path.unlink()


@pytest.mark.parametrize("become", [to_a_link, to_a_link_of_the_same, to_a_pipe, to_a_folder, to_a_device, to_nothing])
@pytest.mark.parametrize("what", ["manifest", "catalogue.sqlite", ".ledger", ".index", "state"])
def test_a_backup_whose_files_are_none_is_refused(source, tmp_path, what, become):
    path = source / (what if what == "manifest" else path_of(source, what))
    become(path)
    is_refused(source, tmp_path / "restored", source, path.name)


def test_a_folder_on_the_way_that_is_a_link_is_refused(source, tmp_path):
    shutil.copytree(source / "partitions", tmp_path / "elsewhere")
    shutil.rmtree(source / "partitions")
    (source / "partitions").symlink_to(tmp_path / "elsewhere")
    is_refused(source, tmp_path / "restored", source / "partitions")


def changed(**fields):
    return lambda whole: whole | fields


def items(change):
    """Change fields of the first ledger's row in the manifest."""
    return lambda whole: (
        whole | {"items": [change(dict(item)) if item["path"].endswith(".ledger") else item for item in whole["items"]]}
    )


def without(name):
    return lambda whole: {key: value for key, value in whole.items() if key != name}


ROW = {  # what the row of a file says instead
    "a path that is a number": {"path": 1},
    "an absolute path": {"path": "/etc/hostname"},
    "no path at all": {"path": ""},
    "a path upwards": {"path": "partitions/1/../../../secret"},
    "a path with a NUL": {"path": "partitions/1/\0.ledger"},
    "a path that goes around": {"path": "partitions//1/1.ledger"},
    "a path elsewhere in the folder": {"path": "format"},
    "half a character": {"path": "partitions/1/\ud800"},
    "the journal": {"path": "journal/0/1.journal"},
    "a size below 0": {"size": -1},
    "a size that is a text": {"size": "1"},
    "a size that is a fraction": {"size": 1.5},
    "a size beyond all": {"size": 1 << 70},
    "a size beyond the file": {"size": 1 << 62},
    "a header that is no number": {"header": "xyz"},
    "a header that is none": {"header": None},
    "a checksum that is a text": {"crc32c": "x"},
    "another checksum": {"crc32c": 1},
    "a source that is a number": {"source": 1},
    "a source of texts": {"source": ["a"]},
    "a header beyond the file": {"size": 1},
}
WHOLE = {  # what the whole says instead
    "something more": {"more": 1},
    "a version that is a text": {"version": "1"},
    "a version that is a list": {"version": []},
    "a version that is true": {"version": True},
    "a version below 0": {"version": -1},
    "a date below 0": {"created_ms": -1},
    "a folder's version that is none": {"folder_version": None},
    "items that are a number": {"items": 1},
    "items that are a text": {"items": "abc"},
    "items that are numbers": {"items": [1]},
    "items that are lists": {"items": [[]]},
}
ODD = {
    **{name: items(lambda item, more=more: item | more) for name, more in ROW.items()},
    **{name: changed(**more) for name, more in WHOLE.items()},
    "a list": lambda whole: [whole],
    "a number": lambda whole: 1,
    "nothing": lambda whole: None,
    "a text": lambda whole: "manifest",
    "no version": without("version"),
    "no items": without("items"),
    "no date": without("created_ms"),
    "no path": items(without("path")),
    "a file twice": lambda whole: whole | {"items": whole["items"] * 2},
    "files below files": lambda whole: (
        whole | {"items": [*whole["items"], whole["items"][-1] | {"path": whole["items"][-1]["path"] + "/x"}]}
    ),
    "no JSON": lambda whole: b"{",
    "nothing at all": lambda whole: b"",
    "no UTF-8": lambda whole: b"\xff",
    "too deep": lambda whole: b"[" * 100_000,
    "a number of a million digits": lambda whole: b'{"version": ' + b"1" * 1_000_000 + b"}",
}


@pytest.mark.parametrize("odd", ODD)
def test_a_manifest_that_no_program_writes_is_refused(source, tmp_path, odd):
    say(source, ODD[odd](said(source)))
    is_refused(source, tmp_path / "restored")


def test_nothing_is_read_or_put_outside_although_all_else_is_right(source, tmp_path):
    (tmp_path / "secret").write_bytes(SECRET)
    row = {
        "path": "partitions/1/../../../secret",
        "size": len(SECRET),
        "crc32c": crc32c(SECRET),
        "header": "",
        "source": [],
    }
    say(source, said(source) | {"items": [*said(source)["items"], row]})
    is_refused(source, tmp_path / "other" / "restored", "is not in a data folder")
    assert not (tmp_path / "other" / "secret").exists()


def test_a_manifest_of_a_newer_program_says_so(source, tmp_path):
    say(source, said(source) | {"version": backup.VERSION + 1})
    is_refused(source, tmp_path / "restored", "a newer program")


def test_an_odd_backup_does_not_keep_the_next_from_being_made(made, tmp_path):
    first = backup.make(made[0], tmp_path / "backups", lambda: None, list)
    say(Path(first.folder), {"version": 1})
    again = backup.make(made[0], tmp_path / "backups", lambda: None, list)
    assert again.bytes == first.bytes and run("restore", again.folder, tmp_path / "restored")[0] == 0


@pytest.mark.parametrize("kind", ["file", "pipe", "full"])
def test_a_place_that_cannot_be_filled_is_one_line(source, tmp_path, kind):
    target = tmp_path / "target"
    if kind == "full":
        target.mkdir()
        (target / "mine").touch()
    else:
        target.touch() if kind == "file" else os.mkfifo(target)
    status, lines = run("restore", source, target)
    assert status == 1 and len(lines) == 1 and str(target) in lines[0]


# -- what is looked at

FILES = ["catalogue.sqlite", "format", "lock", ".ledger", ".index", "state", ".journal", "catalogue.sqlite-wal"]


def there(data_dir, what):
    """Return the path of a file, which is made if it is missing."""
    if what.startswith("."):
        return next(data_dir.rglob(f"*{what}"))
    if what == "state":
        return next(data_dir.glob("partitions/*/state"))
    (data_dir / what).touch()
    return data_dir / what


@pytest.mark.parametrize(("command", "become"), [
    *(("verify", become) for become in (to_a_pipe, to_a_device, to_a_link)),
    ("verify --repair", to_a_device), ("upgrade check", to_a_pipe)])
@pytest.mark.parametrize("what", FILES)
def test_a_data_folder_whose_files_are_none_is_looked_at_without_waiting(data_dir, command, what, become):
    """Commands end on a folder with pipes, links and sockets in place of files; they follow and change none of them."""
    path = there(data_dir, what)
    become(path)
    before = files(data_dir)
    status, lines = run(*command.split(), data_dir)
    if what not in ("lock", "catalogue.sqlite-wal"):
        assert status == 5 and any(str(path) in line or str(data_dir) in line for line in lines)
    assert files(data_dir) == before


def files(data_dir):
    """Return all files and folders, without the folder of damaged bytes."""
    return sorted(path for path in data_dir.rglob("*") if "damaged" not in path.parts)


@pytest.mark.parametrize("become", [to_a_pipe, to_a_device])
@pytest.mark.parametrize("suffix", [".ledger", ".index", ".journal", "state"])
def test_a_file_that_is_none_is_not_dumped(data_dir, suffix, become):
    path = there(data_dir, suffix)
    become(path)
    status, lines = run("ledger", "dump", path)
    assert status in (2, 5) and len(lines) == 1 and str(path) in lines[0]


@pytest.mark.parametrize("become", [to_a_pipe, to_a_device, to_a_link])
def test_what_lies_beside_a_file_is_not_waited_for(data_dir, become):
    ledger, index = there(data_dir, ".ledger"), there(data_dir, ".index")
    become(index)
    status, lines = run("ledger", "dump", ledger)
    assert status == 5 and len(lines) == 1 and str(index) in lines[0]


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "", "\0", "NaN" * 3])
def test_definitions_that_are_none_are_one_line(tmp_path, text):
    (tmp_path / "file").write_text(text)
    status, lines = run("definitions", "import", tmp_path / "file")
    assert status == 2 and len(lines) == 1 and str(tmp_path / "file") in lines[0]


def test_a_number_that_is_a_link_or_a_pipe_is_no_number(tmp_path):
    for become in (to_a_pipe, to_a_device):
        format.format_path(tmp_path).touch()
        become(format.format_path(tmp_path))
        with pytest.raises((OSError, CannotUse)):
            check(tmp_path)
        format.format_path(tmp_path).unlink()
