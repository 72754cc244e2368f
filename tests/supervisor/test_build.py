"""The build of a program: time and name of its commit, in packages and in checkouts, and in what the command shows."""
import os
import subprocess

import pytest

from geminga.supervisor.cli.operations import _commit
from geminga.supervisor.host import build
from geminga.supervisor.host.build import Build, of_checkout, parsed


@pytest.fixture
def commit(tmp_path):
    """Return commit(seconds): makes a commit at a time in a repository in tmp_path, and returns its name."""
    def git(*words, **more):
        done = subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *words], cwd=tmp_path,
                              check=True, capture_output=True, text=True, env=os.environ | more)
        return done.stdout.strip()

    def commit(seconds):
        (tmp_path / "storage").mkdir(exist_ok=True)
        (tmp_path / "storage/some.py").write_text(str(seconds))
        git("add", ".")
        git("commit", "-qm", "one", GIT_COMMITTER_DATE=f"{seconds} +0000")
        return git("rev-parse", "--short=8", "HEAD")

    git("init", "-q")
    return commit


def test_a_checkout_is_named_by_its_commit_and_that_commits_time(tmp_path, commit):
    name = commit(1_767_323_045)
    assert of_checkout(tmp_path) == f"20260102030405.g{name}"
    assert parsed(f"0.1.0+{of_checkout(tmp_path)}~deb13") == Build("0.1.0", name, "2026-01-02T03:04:05Z")


def test_an_older_commit_is_the_older_package_however_late_it_is_built(tmp_path, commit):
    newer, older = (commit(seconds) and of_checkout(tmp_path) for seconds in (1_767_323_045, 1_767_323_044))
    order = subprocess.run(["dpkg", "--compare-versions", f"0.1.0+{older}", "lt", f"0.1.0+{newer}"])
    assert order.returncode == 0


def test_a_changed_checkout_is_no_commits(tmp_path, commit):
    name = commit(1_767_323_045)
    (tmp_path / "storage/some.py").write_text("changed")
    found = of_checkout(tmp_path)
    assert found.startswith(f"20260102030405.g{name}.changed2")
    assert parsed(f"0.1.0+{found}") == Build("0.1.0", f"{name}+changed", "2026-01-02T03:04:05Z")


def test_an_archive_has_its_commit_in_a_file_and_a_plain_folder_has_none(tmp_path):
    assert of_checkout(tmp_path) == ""
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd/commit").write_text("$Format:%ct %h$\n")      # as it stands in a clone
    assert of_checkout(tmp_path) == ""
    (tmp_path / "systemd/commit").write_text("1767323045 0123456789\n")
    assert of_checkout(tmp_path) == "20260102030405.g01234567"


@pytest.mark.parametrize("version", ["0.1.0", "0.1.0+20261128160251", "0.1.0+"])
def test_a_version_without_a_commit_tells_none(version):
    assert parsed(version) == Build("0.1.0") and Build("0.1.0").text == "0.1.0"


def test_this_program_knows_its_build_and_the_status_shows_it(monkeypatch):
    assert build.build().version == "0.1.0"
    assert list(_commit({"commit": "381b92f6", "committed": "2026-11-28T16:02:51Z"})) == [
        "  commit      381b92f6 of 2026-11-28T16:02:51Z"]
    assert list(_commit({})) == [] == list(_commit({"commit": "", "committed": ""}))
