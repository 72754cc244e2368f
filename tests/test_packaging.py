"""What a wheel holds is what the checkout holds, and what a fresh machine installs is what was tested."""
import json
import os
import re
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from geminga.supervisor import bootstrap

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
LAYERS = ("proto", "storage", "workers", "supervisor")
NOT_SHIPPED = {".py", ".pyc"}  # the first is taken as code, the second made where it runs


def packages_on_disk():
    return {f"geminga.{path.parent.relative_to(ROOT).as_posix().replace('/', '.')}"
            for layer in LAYERS for path in (ROOT / layer).rglob("__init__.py")}


def test_every_package_on_disk_is_packaged_and_no_other():
    """A folder that pyproject.toml forgets works in an editable install and is missing from the wheel."""
    assert sorted(SETUPTOOLS["packages"]) == sorted(packages_on_disk())
    assert SETUPTOOLS["package-dir"] == {f"geminga.{layer}": layer for layer in LAYERS}


def test_every_folder_with_code_is_a_package():
    """A module in a folder without __init__.py would be importable here and installed nowhere."""
    folders = {path.parent for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_data_file_of_a_package_is_packaged():
    """Every file beside the code matches a package-data pattern, and every pattern matches some file."""
    unmatched, used = [], set()
    for package in SETUPTOOLS["packages"]:
        folder = ROOT / package.removeprefix("geminga.").replace(".", "/")
        patterns = [(key, pattern) for key in ("*", package) for pattern in SETUPTOOLS["package-data"].get(key, [])]
        for path in data_files(folder):
            hits = [(key, pattern) for key, pattern in patterns if fnmatch(path.relative_to(folder).as_posix(), pattern)]
            used.update(hits)
            if not hits:
                unmatched.append(str(path.relative_to(ROOT)))
    assert unmatched == []
    assert {(key, pattern) for key, patterns in SETUPTOOLS["package-data"].items() for pattern in patterns} - used == set()


def data_files(folder):
    """Files of this package but its code: those in its folder and in subfolders that are no packages themselves."""
    for path in folder.iterdir():
        if path.is_dir() and not (path / "__init__.py").exists() and path.name != "__pycache__":
            yield from data_files(path)
        elif path.is_file() and path.suffix not in NOT_SHIPPED:
            yield path


def test_each_layer_says_that_it_is_typed():
    """Type checkers of those who import geminga read our annotations only where py.typed says so."""
    assert [layer for layer in LAYERS if not (ROOT / layer / "py.typed").exists()] == []


def test_every_dependency_is_pinned():
    """An appliance is run as it was tested: no requirement, not even the build's, leaves the version open."""
    requirements = PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        requirements += extra
    assert [text for text in requirements if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", text)] == []


def test_the_bootstrap_accepts_the_interpreters_that_pip_accepts():
    """SUPPORTED in the bootstrap and requires-python are one range."""
    (_, first), (_, last) = bootstrap.SUPPORTED
    assert PROJECT["project"]["requires-python"] == f">=3.{first},<3.{last + 1}"


def test_the_bootstrap_installs_extras_and_starts_programs_that_exist():
    """`serve` and `nightly` run our console script, `test` the pytest of our dev extra, which has all of the others."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert {wanted for _, wanted in bootstrap.PROGRAMS.values()} == set(bootstrap.EXTRAS) == {"", *extras}
    assert set(extras["nightly"]) < set(extras["dev"])
    assert bootstrap.PROGRAMS["serve"][0] == bootstrap.PROGRAMS["nightly"][0] in PROJECT["project"]["scripts"]


def java(folder, said):
    """A JAVA_HOME whose java says that."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    (folder / "bin" / "java").chmod(0o755)
    return str(folder)


def test_java_is_looked_for_as_spark_does(tmp_path, monkeypatch):
    for said, is_enough in (('openjdk version "17.0.15" 2025-04-15', True), ('openjdk version "25" 2025-09-16', True),
                            ('java version "1.8.0_202"', False), ("no version", False)):
        monkeypatch.setenv("JAVA_HOME", java(tmp_path / str(hash(said)), said))
        assert bootstrap.has_java() == is_enough
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert not bootstrap.has_java()


def test_a_missing_java_is_one_line(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(bootstrap.SetUpError, match="^Spark needs a Java runtime, 17 or newer: apt-get install openjdk-17-jre-headless$"):
        bootstrap.install_java(is_needed=True)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A finished environment as `serve` leaves it, of a checkout that is only a pyproject.toml."""
    monkeypatch.setattr(bootstrap, "CHECKOUT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "python").symlink_to(sys.executable)
    for program in ("geminga", "pytest"):
        (scripts / program).write_text("#!/bin/sh\n")
        (scripts / program).chmod(0o755)
    bootstrap.write_stamp(scripts.parent, "")
    return scripts.parent


def test_a_second_start_finds_nothing_to_do(environment):
    """What was finished stays ready, and what has the tests' extra is ready for serving too."""
    assert bootstrap.is_ready(environment, "geminga", "")
    assert not bootstrap.is_ready(environment, "pytest", "dev")
    bootstrap.write_stamp(environment, "nightly")
    assert bootstrap.is_ready(environment, "geminga", "nightly") and not bootstrap.is_ready(environment, "pytest", "dev")
    bootstrap.write_stamp(environment, "dev")
    assert bootstrap.is_ready(environment, "pytest", "dev") and bootstrap.is_ready(environment, "geminga", "nightly")
    assert bootstrap.is_ready(environment, "geminga", "")


def test_a_changed_project_is_installed_again_in_place(environment):
    """A pull that changes pyproject.toml runs pip once more and keeps the environment."""
    (environment.parent / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    assert not bootstrap.is_ready(environment, "geminga", "")
    assert bootstrap.can_be_kept(environment, bootstrap.read_stamp(environment))


@pytest.mark.parametrize("key", ["checkout", "interpreter"])
def test_an_environment_of_another_place_is_made_anew(environment, key):
    """Its scripts hold the path of the checkout, its packages sit under the version of the interpreter."""
    stamp = bootstrap.read_stamp(environment) | {key: "/elsewhere"}
    (environment / bootstrap.STAMP).write_text(json.dumps(stamp))
    assert not bootstrap.is_ready(environment, "geminga", "")
    assert not bootstrap.can_be_kept(environment, stamp)


@pytest.mark.parametrize("content", [bootstrap.UNFINISHED, "", '{"checkout": "/'])
def test_an_interrupted_set_up_is_made_anew(environment, content):
    """Neither what says so itself nor a stamp cut off by a crash is taken for finished or built upon."""
    (environment / bootstrap.STAMP).write_text(content)
    assert not bootstrap.is_ready(environment, "geminga", "")
    assert not bootstrap.can_be_kept(environment, bootstrap.read_stamp(environment))


def test_clearing_leaves_only_the_mark_that_it_is_unfinished(environment):
    """Whatever was in the environment is gone, links are not followed, and the mark was there throughout."""
    outside = environment.parent / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (environment / "lib64").symlink_to(outside)
    bootstrap.clear(environment)
    assert [path.name for path in environment.iterdir()] == [bootstrap.STAMP]
    assert bootstrap.read_stamp(environment) == {} and (outside / "kept").exists()


def test_an_environment_of_somebody_else_is_never_removed(environment):
    """Without our stamp and without pip there is nothing to build on and nothing we may delete."""
    (environment / bootstrap.STAMP).unlink()
    (environment / "bin" / "python").unlink()
    with pytest.raises(bootstrap.SetUpError, match="remove it"):
        bootstrap.can_be_kept(environment, bootstrap.read_stamp(environment))
    assert (environment / "bin" / "pytest").exists()
