"""Data folders of every format version: this broker reads each to the message, and `upgrade check` says beforehand
what a start would change.
"""
import json
import tarfile
from pathlib import Path

import pytest

from geminga.storage import format
from geminga.storage.catalogue import layout
from geminga.storage.disk import data_folder
from geminga.supervisor.main import main

from .formats.content import OPTIONS, check, check_2, check_3, check_4, check_5
from .rig import Rig

ARCHIVES = Path(__file__).parent / "formats"
FOLDERS = sorted(ARCHIVES.glob("*.tar.xz"))
EACH = pytest.mark.parametrize("archive", FOLDERS, ids=lambda path: path.name.partition(".")[0])


def unpacked(archive, folder):
    with tarfile.open(archive) as found:
        found.extraction_filter = getattr(tarfile, "data_filter", None)
        found.extractall(folder)
    return folder / "data"


def test_there_is_a_folder_of_each_version_and_of_what_is_written_today():
    assert {path.name for path in FOLDERS} == {
        *(f"version-{version}.tar.xz" for version in range(1, format.VERSION + 1)),
        *(f"folder-{version}.tar.xz" for version in range(1, format.FOLDER_VERSION + 1)),
        *(f"catalogue-{version}.tar.xz" for version in (5, 6, 7, 8))}


@pytest.mark.slow
@EACH
def test_a_folder_of_that_version_is_read(archive, tmp_path):
    rig = Rig(unpacked(archive, tmp_path), **OPTIONS)
    check(rig)
    if archive.name != "version-1.tar.xz":
        check_2(rig)
    if not archive.name.startswith("version"):
        check_3(rig)
    if not archive.name.startswith("version") and archive.name != "folder-1.tar.xz":
        check_4(rig)
    if archive.name == "folder-3.tar.xz" or archive.name.startswith("catalogue"):
        check_5(rig)
    rig.close()
    again = Rig(tmp_path / "data", **OPTIONS)
    assert again.recovered == 0
    assert len(again.everything("many")) == 121
    again.close()


@EACH
def test_what_became_of_its_messages_is_known(archive, tmp_path):
    """Totals of an old data folder count since the subscription began. Version 1 had no totals, so its subscriptions
    count from their mark-delete position.
    """
    rig = Rig(unpacked(archive, tmp_path), **OPTIONS)
    told = {
        name: rig.asked("why", "many", subscription=name)["messages"] for name in ("shared", "in-order", "untouched")
    }
    assert {name: (one["published"], one["acknowledged"], one["backlog"]) for name, one in told.items()} == {
        "shared": (190, 62, 128), "in-order": (130, 0, 130) if archive.name == "version-1.tar.xz" else (190, 60, 130),
        "untouched": (190, 0, 190)}
    rig.close()


@EACH
def test_what_a_start_makes_of_it_is_told_before_and_so_after_it(archive, tmp_path, capsys):
    data_dir = unpacked(archive, tmp_path)
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    is_todays = archive.name == f"folder-{format.FOLDER_VERSION}.tar.xz"
    assert main(["upgrade", "check", "--json", str(data_dir)]) == (0 if is_todays else 3)
    said = json.loads(capsys.readouterr().out)
    assert (said["folder"], said["writes"]["folder"]) == (
        {"folder": int(archive.name.partition("-")[2][0]), "catalogue": 3}.get(archive.name.partition("-")[0], 0),
        format.FOLDER_VERSION,
    )
    assert said["has_way_back"] == (not said["rewrites"]) == is_todays
    assert any("version 1" in what for what in said["rewrites"]) == (archive.name == "version-1.tar.xz")
    assert {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()} == before
    rig = Rig(data_dir, **OPTIONS)
    data_folder.claim(data_dir)
    for topic in ("many", "ended", "late"):
        rig.everything(topic)
    rig.close()
    assert main(["upgrade", "check", str(data_dir)]) == 0
    assert f"format {format.FOLDER_VERSION}, catalogue {layout.VERSION}" in capsys.readouterr().out


def test_what_a_newer_program_wrote_cannot_be_used(tmp_path, capsys):
    data_dir = unpacked(ARCHIVES / f"folder-{format.FOLDER_VERSION}.tar.xz", tmp_path)
    format.format_path(data_dir).write_text(f"{format.FOLDER_VERSION + 1}\n")
    assert main(["upgrade", "check", str(data_dir)]) == 5
    assert "a newer one wrote it" in capsys.readouterr().err
    assert main(["upgrade", "check", str(tmp_path)]) == 5
    assert "this is no data folder" in capsys.readouterr().err


def test_a_catalogue_that_cannot_be_read_is_one_line(tmp_path, capsys):
    data_dir = unpacked(ARCHIVES / f"folder-{format.FOLDER_VERSION}.tar.xz", tmp_path)
    (data_dir / "catalogue.sqlite-wal").unlink()
    (data_dir / "catalogue.sqlite").write_bytes(b"of another time" * 1_000)
    assert main(["upgrade", "check", str(data_dir)]) == 5
    assert capsys.readouterr().err == f"geminga: {data_dir}: file is not a database\n"
