"""Folders that brokers of every format version left behind are read by this one, to the message."""
import tarfile
from pathlib import Path

import pytest

from geminga.storage import backup, format, restore
from geminga.supervisor import backups

from .formats.content import OPTIONS, check, check_2
from .rig import Rig

FOLDERS = sorted((Path(__file__).parent / "formats").glob("version-*.tar.xz"))


def test_there_is_a_folder_of_each_version():
    assert [path.name for path in FOLDERS] == [f"version-{version}.tar.xz" for version in range(1, format.VERSION + 1)]


@pytest.mark.parametrize("archive", FOLDERS, ids=lambda path: path.name.partition(".")[0])
def test_a_folder_of_that_version_is_read(archive, tmp_path):
    with tarfile.open(archive) as found:
        found.extraction_filter = getattr(tarfile, "data_filter", None)
        found.extractall(tmp_path)
    rig = Rig(tmp_path / "data", **OPTIONS)
    check(rig)
    if archive.name != "version-1.tar.xz":
        check_2(rig)
    rig.close()
    again = Rig(tmp_path / "data", **OPTIONS)
    assert again.recovered == 0
    assert len(again.everything("many")) == 121
    again.close()


@pytest.mark.parametrize("archive", FOLDERS, ids=lambda path: path.name.partition(".")[0])
def test_a_backup_of_a_folder_of_that_version_has_all_of_it(archive, tmp_path):
    """Also where nobody has opened its partitions since."""
    with tarfile.open(archive) as found:
        found.extraction_filter = getattr(tarfile, "data_filter", None)
        found.extractall(tmp_path)
    backups.make(tmp_path / "data", tmp_path / "backups")
    [made] = backup.backups(tmp_path / "backups")
    restore.restore(made, tmp_path / "restored")
    rig = Rig(tmp_path / "restored", **OPTIONS)
    check(rig)
    if archive.name != "version-1.tar.xz":
        check_2(rig)
    rig.close()
