"""Folders of fixtures are removed with the fixtures, if no test failed meanwhile."""
import subprocess
import sys

import pytest

from .harness import HANG_SECONDS

pytestmark = pytest.mark.slow

SUITE = """
import pytest

@pytest.fixture(scope="session")
def long(tmp_path_factory):
    return tmp_path_factory.mktemp("long")

@pytest.fixture(scope="module")
def short(tmp_path_factory, long):
    return tmp_path_factory.mktemp("short")

def test_it(short):
    assert short.exists() is not {fails}
"""
LAST = """
def test_what_is_left(tmp_path_factory):
    print("left:", *sorted(one.name for one in tmp_path_factory.getbasetemp().iterdir() if not one.is_symlink()))
"""
RUN = """
import sys, pytest
from tests import folders
folders.configure()
sys.exit(pytest.main(["-q", "-s", "-c", "/dev/null", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[folders]))
"""


def test_folders_end_with_their_fixtures_unless_a_test_failed(tmp_path):
    for fails, left in ((False, "left: long0\n"), (True, "left: long0 short0\n")):
        folder = tmp_path / str(fails)
        folder.mkdir()
        (folder / "test_one.py").write_text(SUITE.format(fails=fails))
        (folder / "test_two.py").write_text(LAST)
        done = subprocess.run([sys.executable, "-c", RUN, "--basetemp", str(folder / "base"), str(folder)],
                              capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        assert done.returncode == fails, done.stdout + done.stderr
        assert left in done.stdout
