"""Makes the archives version-N.tar.xz and folder-N.tar.xz beside this file: data folders as a broker of these
formats left them when it was killed.

    pytest tests/storage/formats/make.py      makes the two archives of the current versions, unless they exist

Each archive is made once, by the program that wrote its version, and kept. test_formats.py reads all of them.
When the version of the catalogue rises, that of the folder is kept as catalogue-N.tar.xz, and made anew.
"""

import shutil
import tarfile
from pathlib import Path

import pytest

from geminga.storage import format
from geminga.storage.disk import data_folder

from ..rig import Rig
from .content import OPTIONS, fill, fill_2, fill_3, fill_4, fill_5

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("name", [f"version-{format.VERSION}", f"folder-{format.FOLDER_VERSION}"])
def test_make(tmp_path, name):
    target = FOLDER / f"{name}.tar.xz"
    if target.exists():
        pytest.skip(f"{target.name} is there already")
    rig = Rig(tmp_path / "data", **OPTIONS)
    data_folder.claim(rig.data_dir)
    fill(rig)
    fill_2(rig)
    fill_3(rig)
    fill_4(rig)
    fill_5(rig)
    shutil.copytree(rig.data_dir, tmp_path / "copy")      # as a SIGKILL leaves it
    rig.close()
    with tarfile.open(target, "w:xz") as archive:
        archive.add(tmp_path / "copy", "data")
