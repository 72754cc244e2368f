"""The fast tests cover every package, and missing things of the machine are named before the first test."""
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from geminga.supervisor import bootstrap

from . import fast, machine

PACKAGES = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["tool"]["setuptools"][
    "packages"
]


def used_by(module: ModuleType, seen: set[str]) -> set[str]:
    """Return the broker's modules that a test module uses, by itself or through other modules of tests."""
    seen.add(module.__name__)
    found = set()
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
        if name.startswith("geminga."):
            found.add(name)
        elif name.startswith("tests.") and name not in seen and name in sys.modules:
            found |= used_by(sys.modules[name], seen)
    return found


def test_fast_tests_cover_every_package(request):
    if request.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        pytest.skip("only some tests were asked for")
    used = set().union(*(used_by(module, set()) for module in request.config.stash[fast.MODULES]))
    assert [
        package
        for package in PACKAGES
        if package != "geminga" and not any(name.rpartition(".")[0] == package for name in used)
    ] == []


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """folders(kind, kind): /tmp and /var/tmp are (type, free bytes) like these; returns the place for tests of 100
    bytes.
    """
    monkeypatch.delenv("TMPDIR", raising=False)

    def place(*kinds):
        about = dict(zip(("/tmp", "/var/tmp"), kinds, strict=True))
        monkeypatch.setattr(machine, "file_system", lambda folder: about[str(folder)][0])
        monkeypatch.setattr(machine, "_free", lambda folder: about[str(folder)][1])
        return str(machine.place_for_tests(100))
    return place


def test_tests_work_on_a_disk_that_has_room(folders, monkeypatch):
    assert folders(("ext4", 500), ("ext4", 900)) == "/tmp"
    assert folders(("tmpfs", 900), ("ext4", 500)) == "/var/tmp"
    assert folders(("ext4", 50), ("ext4", 500)) == "/var/tmp"
    assert folders(("ext4", 50), ("ext4", 20)) == "/tmp"
    assert folders(("tmpfs", 90), ("tmpfs", 200)) == "/var/tmp"
    monkeypatch.setenv("TMPDIR", "/chosen")
    assert folders(("ext4", 500), ("ext4", 900)) == "/chosen"


def test_a_file_system_in_memory_is_known():
    assert machine.file_system(Path("/dev/shm")) in machine.IN_MEMORY
    assert machine.file_system(Path("/proc")) not in machine.IN_MEMORY


def test_what_a_machine_lacks_is_told_with_what_becomes_of_the_tests(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_free", lambda folder: machine.GIB)
    monkeypatch.setattr(bootstrap, "has_java", lambda: False)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    told = machine.missing(tmp_path)
    assert (
        f"4 GiB of disk is missing: {tmp_path} has 1.0: tests will fail; set TMPDIR to a folder that has more" in told
    )
    for name in ("Java 17", "mvn", "go", "prometheus and promtool", "systemd-analyze"):
        assert any(line.startswith(f"{name} is missing: tests") for line in told), name


def test_only_fast_tests_run_in_several_processes(monkeypatch):
    """A run of all tests stays in one process: its tests measure times, and start brokers that use all cores."""
    monkeypatch.setattr(bootstrap.os, "sched_getaffinity", lambda process: {0, 1})
    assert bootstrap.processes_of_tests(["-q", "--fast"]) == ["-n", "2", "--dist", "worksteal"]
    assert bootstrap.processes_of_tests(["-q"]) == []


def test_slow_and_nightly_tests_are_left_out_unless_they_are_asked_for():
    """A nightly test runs when it is asked for and not before, whatever other marks it has."""
    cases = [], ["slow"], ["nightly"], ["nightly", "slow"]

    def wanted(**options):
        config = SimpleNamespace(option=SimpleNamespace(**{"fast": False, "nightly": False} | options))
        items = [SimpleNamespace(get_closest_marker=dict.fromkeys(marks, True).get, path=Path("it.py"))
                 for marks in cases]
        return [marks for marks, item in zip(cases, items, strict=True) if fast.is_wanted(item, config)]

    assert wanted() == [[], ["slow"]]
    assert wanted(fast=True) == [[]]
    assert wanted(nightly=True) == [["nightly"], ["nightly", "slow"]]


def test_processes_of_tests_keep_what_python_compiles():
    assert not sys.dont_write_bytecode and "PYTHONDONTWRITEBYTECODE" not in os.environ


def test_files_of_slow_tests_only_are_not_imported_by_fast_runs(tmp_path):
    file, options = tmp_path / "test_it.py", SimpleNamespace(option=SimpleNamespace(fast=True))
    for line, is_left_out in (("pytestmark = pytest.mark.slow", True), ("pytestmark = pytest.mark.spark", True),
                              ('pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("x")]', True),
                              ('pytestmark = pytest.mark.usefixtures("x")', False), ("@pytest.mark.slow", False)):
        file.write_text(f"import pytest\n\n{line}\n")
        assert fast.pytest_ignore_collect(file, options) == (True if is_left_out else None), line
