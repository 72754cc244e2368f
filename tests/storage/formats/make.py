"""Writes what a broker of this format version left when it was killed: version-N.tar.xz, beside this file.

    python -m pytest tests/storage/formats/make.py      makes the one of the current version, where there is none yet

Each is made once, by the program that wrote that version, and kept: test_formats.py reads all of them.
"""
import shutil
import tarfile
from pathlib import Path

import pytest

from geminga.storage import format

from ..rig import Rig
from .content import OPTIONS, fill, fill_2

FOLDER = Path(__file__).parent


def test_make(tmp_path):
    target = FOLDER / f"version-{format.VERSION}.tar.xz"
    if target.exists():
        pytest.skip(f"{target.name} is there already")
    rig = Rig(tmp_path / "data", **OPTIONS)
    fill(rig)
    fill_2(rig)
    shutil.copytree(rig.data_dir, tmp_path / "copy")      # as a SIGKILL leaves it
    rig.close()
    with tarfile.open(target, "w:xz") as archive:
        archive.add(tmp_path / "copy", "data")
