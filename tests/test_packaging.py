"""A wheel and a Debian package hold what the checkout holds, and a fresh machine installs the versions that were
tested.
"""
import gzip
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import replace
from fnmatch import fnmatch
from importlib.machinery import PathFinder
from pathlib import Path

import click
import pytest

from geminga.storage import format
from geminga.supervisor import bootstrap
from geminga.supervisor.configuration import config
from geminga.supervisor.main import geminga

from . import interpreters
from .appliance.installed import SUITES
from .test_documents import links_of

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
# the namespace `geminga` has no folder of its own
PACKAGES = [name for name in SETUPTOOLS["packages"] if name != "geminga"]
LAYERS = ("proto", "storage", "workers", "supervisor")
NOT_SHIPPED = {".py", ".pyc"}  # .py files are packaged as code, .pyc files are made where the code runs


def packages_on_disk():
    return {f"geminga.{path.parent.relative_to(ROOT).as_posix().replace('/', '.')}"
            for layer in LAYERS for path in (ROOT / layer).rglob("__init__.py")}


def test_every_package_on_disk_is_packaged_and_no_other():
    """A folder that pyproject.toml forgets works in an editable install and is missing from the wheel."""
    assert sorted(PACKAGES) == sorted(packages_on_disk())
    assert SETUPTOOLS["package-dir"] == {"geminga": "."}
    links = {link.name: link.readlink() for link in (ROOT / ".source/geminga").iterdir()}
    assert links == {layer: Path("../..", layer) for layer in LAYERS}


def test_a_type_checker_finds_every_package():
    """mypy runs no import hook, and follows the links."""
    assert PROJECT["tool"]["mypy"]["mypy_path"] == ".source"
    assert {package: folders_of(package) for package in PACKAGES} == {
        package: [ROOT / package.removeprefix("geminga.").replace(".", "/")] for package in PACKAGES}


def test_a_module_has_one_path():
    """Tracebacks, coverage and breakpoints name files where an editor has them open, and not the links to them."""
    modules = [importlib.import_module(package) for package in PACKAGES]
    assert {module.__file__ for module in modules} == {
        str(ROOT / package.removeprefix("geminga.").replace(".", "/") / "__init__.py") for package in PACKAGES}


def folders_of(package):
    path = [str(ROOT / ".source")]
    for depth in range(1, package.count(".") + 2):
        spec = PathFinder.find_spec(".".join(package.split(".")[:depth]), path)
        path = list(spec.submodule_search_locations)
    return [Path(folder).resolve() for folder in path]


@pytest.mark.slow
def test_a_new_package_needs_no_new_installation(tmp_path):
    """An editable install of a copy, as pip asks for it, leads to the folder above all packages."""
    for name in (*LAYERS, ".source", "pyproject.toml", "README.md", "LICENSE"):
        copy(name, tmp_path)
    build = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [finder] = [name for name in archive.namelist() if name.endswith("_finder.py")]
        assert f"= {{'geminga': '{tmp_path}'}}" in archive.read(finder).decode()


def test_every_folder_with_code_is_a_package():
    """A module in a folder without __init__.py would be importable here and installed nowhere."""
    folders = {path.parent for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_data_file_of_a_package_is_packaged():
    """Every file beside the code matches a package-data pattern, and every pattern matches some file."""
    unmatched, used = [], set()
    for package in PACKAGES:
        folder = ROOT / package.removeprefix("geminga.").replace(".", "/")
        patterns = [(key, pattern) for key in ("*", package) for pattern in SETUPTOOLS["package-data"].get(key, [])]
        for path in data_files(folder):
            hits = [(key, pattern) for key, pattern in patterns
                    if fnmatch(path.relative_to(folder).as_posix(), pattern)]
            used.update(hits)
            if not hits:
                unmatched.append(str(path.relative_to(ROOT)))
    assert unmatched == []
    assert {
        (key, pattern) for key, patterns in SETUPTOOLS["package-data"].items() for pattern in patterns
    } - used == set()


def data_files(folder):
    """Return the files beside a package's code: those in its folder, and in subfolders that are not packages."""
    for path in folder.iterdir():
        if path.is_dir() and not (path / "__init__.py").exists() and path.name != "__pycache__":
            yield from data_files(path)
        elif path.is_file() and path.suffix not in NOT_SHIPPED:
            yield path


def test_each_layer_says_that_it_is_typed():
    """Type checkers of other projects read our annotations only if py.typed is there."""
    assert [layer for layer in LAYERS if not (ROOT / layer / "py.typed").exists()] == []


def test_every_dependency_is_pinned():
    """Every requirement is pinned, even the build's: an appliance is run as it was tested."""
    requirements = PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]
    for extra in PROJECT["project"]["optional-dependencies"].values():
        requirements += extra
    assert [text for text in requirements if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", text)] == []


def test_the_bootstrap_accepts_the_interpreters_that_pip_accepts():
    """SUPPORTED in the bootstrap and requires-python are one range."""
    (_, first), (_, last) = bootstrap.SUPPORTED
    assert PROJECT["project"]["requires-python"] == f">=3.{first},<3.{last + 1}"


def test_every_promised_python_is_tried_in_turns():
    """Turns of `tests.interpreters`, with the interpreter that runs all tests, take each version that is promised."""
    running = "{}.{}".format(*sys.version_info)
    tried = {version for turn in range(9) for version in interpreters.chosen([], turn)}
    assert tried | {running} == {*interpreters.promised(), running} and tried <= interpreters.RELEASES.keys()
    first, *_, last = interpreters.promised()
    for page in ("README.md", "docs/contributing.md", "docs/getting-started.md"):
        assert f"Python {first} to {last}" in (ROOT / page).read_text(), page


def test_every_promised_debian_is_tried_in_turns():
    """Of three turns two are for a release each, with the first hour, and one for another version of Python."""
    ci = (ROOT / ".ci/run").read_text()
    is_of_debian, is_of_python = re.findall(r"\[ \$\(\((turn.*?)\)\) (!?=) (\d) \] \|\| return 77", ci)
    assert is_of_debian == ("turn % 3", "!=", "2") and is_of_python == ("turn % 3", "=", "2")
    [suites] = re.findall(r"suites=\((.*?)\)", ci)
    assert tuple(suites.split()) == SUITES and re.findall(r"\$\{suites\[(.*?)\]\}", ci) == ["turn % 3"] * 2
    package = runpy.run_path(str(ROOT / "systemd/package.py"))
    releases = " or ".join(release for release in package["JAVA"] if release not in package["UNRELEASED"].values())
    for page in ("README.md", "systemd/install.sh"):
        assert f"Debian {releases}" in (ROOT / page).read_text(), page


def test_the_bootstrap_installs_extras_and_starts_programs_that_exist():
    """`serve` and `nightly` run our console script, `test` the pytest of our dev extra, which has all of the others."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert {wanted for _, wanted in bootstrap.PROGRAMS.values()} == set(bootstrap.EXTRAS) == {"", *extras}
    assert set(extras["nightly"]) < set(extras["dev"])
    assert bootstrap.PROGRAMS["serve"][0] == bootstrap.PROGRAMS["nightly"][0] in PROJECT["project"]["scripts"]


def test_the_extra_for_spark_brings_what_spark_asks_for():
    """pyspark does not require pandas when it is installed, but asks for it when a query runs."""
    # the metadata of the installed pyspark
    asked = [text for text in importlib.metadata.requires("pyspark") if re.search("extra == ['\"]sql['\"]", text)]
    pins = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["nightly"]
    # Spark warns at each query that it does not support pandas 3; "recommended to use pandas < 3.0.0 for now"
    utils = Path(importlib.util.find_spec("pyspark").origin).parent / "sql/pandas/utils.py"
    (ceiling,) = re.findall(r"LooseVersion\(pandas.__version__\) >= LooseVersion\(\"(.*)\"\)", utils.read_text())
    (pandas,) = [pin.partition("==")[2] for pin in pins if pin.startswith("pandas==")]
    assert [int(part) for part in pandas.split(".")] < [int(part) for part in ceiling.split(".")]
    assert asked and {re.split(r"[^\w-]", text)[0] for text in asked} <= {pin.partition("==")[0] for pin in pins}


def java(folder, said):
    """Make a JAVA_HOME whose java prints this text as its version, and return its path."""
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
    with pytest.raises(bootstrap.SetUpError,
                       match="^Spark needs a Java runtime, 17 or newer: apt-get install default-jre-headless$"):
        bootstrap.install_java(is_needed=True)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A finished environment as `serve` leaves it, for a checkout that is only a pyproject.toml."""
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
    """A finished environment stays ready, and one with the tests' extra is ready for serving too."""
    assert bootstrap.is_ready(environment, "geminga", "")
    assert not bootstrap.is_ready(environment, "pytest", "dev")
    bootstrap.write_stamp(environment, "nightly")
    assert bootstrap.is_ready(environment, "geminga", "nightly") and not bootstrap.is_ready(
        environment, "pytest", "dev"
    )
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
    """Scripts hold the path of the checkout, and packages lie under the interpreter's version: neither can be moved."""
    stamp = bootstrap.read_stamp(environment) | {key: "/elsewhere"}
    (environment / bootstrap.STAMP).write_text(json.dumps(stamp))
    assert not bootstrap.is_ready(environment, "geminga", "")
    assert not bootstrap.can_be_kept(environment, stamp)


@pytest.mark.parametrize("content", [bootstrap.UNFINISHED, "", '{"checkout": "/'])
def test_an_interrupted_set_up_is_made_anew(environment, content):
    """A stamp that says UNFINISHED, or that a crash cut off, is never taken for finished or built upon."""
    (environment / bootstrap.STAMP).write_text(content)
    assert not bootstrap.is_ready(environment, "geminga", "")
    assert not bootstrap.can_be_kept(environment, bootstrap.read_stamp(environment))


def test_clearing_leaves_only_the_mark_that_it_is_unfinished(environment):
    """Clearing removes everything else from the environment, follows no links, and keeps the mark throughout."""
    outside = environment.parent / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (environment / "lib64").symlink_to(outside)
    bootstrap.clear(environment)
    assert [path.name for path in environment.iterdir()] == [bootstrap.STAMP]
    assert bootstrap.read_stamp(environment) == {} and (outside / "kept").exists()


def test_an_environment_of_somebody_else_is_never_removed(environment):
    """An environment without our stamp and without pip can neither be built upon nor be removed."""
    (environment / bootstrap.STAMP).unlink()
    (environment / "bin" / "python").unlink()
    with pytest.raises(bootstrap.SetUpError, match="remove it"):
        bootstrap.can_be_kept(environment, bootstrap.read_stamp(environment))
    assert (environment / "bin" / "pytest").exists()


# -- the wheel

@pytest.mark.slow
def test_a_wheel_has_every_file_of_the_four_layers(tmp_path):
    """The wheel is built from a copy of the checkout, as setuptools leaves folders behind."""
    for name in (*LAYERS, ".source", "pyproject.toml", "README.md", "LICENSE"):
        copy(name, tmp_path)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
           str(tmp_path)]
    subprocess.run([*pip, str(tmp_path)], check=True, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        [scripts] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/entry_points.txt")]
        assert "geminga = geminga.supervisor.main:run" in scripts.splitlines()
    assert held == {f"geminga/{path}" for path in shipped()}


def copy(name, folder):
    """Copy a file or folder of the checkout; links stay links."""
    if (ROOT / name).is_dir():
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    else:
        shutil.copy(ROOT / name, folder)


def shipped():
    return {path.relative_to(ROOT).as_posix() for layer in LAYERS for path in (ROOT / layer).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts}


# -- the Debian package

DEBIAN = platform.freedesktop_os_release().get("VERSION_ID") if os.path.exists("/etc/debian_version") else None
DEBIAN_PYTHON = Path("/usr/bin/python3").resolve().name
on_debian = pytest.mark.skipif(DEBIAN not in ("12", "13", "14") or f"python3.{sys.version_info.minor}" != DEBIAN_PYTHON,
                               reason="needs Debian 12, 13 or 14, and its interpreter")
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package built with the few dependencies that make its manual and its completion."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "site").mkdir()
    for name in ("click", "jwt", "cryptography", "cffi", "_cffi_backend*", "google"):
        for path in Path(sysconfig.get_path("platlib")).glob(name):
            (folder / "site" / path.name).symlink_to(path)
    made = subprocess.run(["/usr/bin/python3", ROOT / "systemd/package.py", "--site-packages", folder / "site", "--out",
                           folder / "out",
                           "--version", "1.2.3"], check=True, stdout=subprocess.PIPE, text=True, umask=0o007).stdout
    assert made == f"{folder}/out/geminga_1.2.3~deb{DEBIAN}_{architecture()}.deb\n"
    return Path(made.strip())


def architecture():
    return subprocess.run(
        ["dpkg", "--print-architecture"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def unpacked(package, tmp_path_factory):
    """The package's files, unpacked; DEBIAN has the scripts and lists for dpkg."""
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["dpkg-deb", "--raw-extract", package, folder], check=True)
    return folder


@pytest.mark.slow
@on_debian
def test_a_package_puts_everything_where_debian_has_it(unpacked):
    site = f"usr/lib/geminga/lib/{DEBIAN_PYTHON}/site-packages"
    held = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if not path.is_dir()}
    assert {f"{site}/geminga/{path}" for path in shipped()} <= held
    cached = {path for path in held if path.endswith(".pyc")}
    assert {Path(path).name.partition(".")[0] for path in cached} >= {path.stem
                                                                      for path in (ROOT / "storage").rglob("*.py")}
    units = {path.name for path in (ROOT / "systemd").iterdir() if path.suffix in (".service", ".timer", ".slice")}
    assert {path for path in held - cached if not path.startswith((site, "DEBIAN", "usr/share/doc/"))} == {
        "usr/bin/geminga", "usr/lib/geminga/bin/python3", "usr/lib/geminga/pyvenv.cfg", "etc/geminga/geminga.toml",
        "usr/lib/sysusers.d/geminga.conf", "usr/lib/tmpfiles.d/geminga.conf",
        *(f"usr/lib/systemd/system/{unit}" for unit in units),
        "usr/share/man/man1/geminga.1.gz", "usr/share/man/man1/geminga-admin.1.gz",
        "usr/share/bash-completion/completions/geminga",
        "usr/share/zsh/vendor-completions/_geminga", "usr/share/fish/vendor_completions.d/geminga.fish"}
    documents = unpacked / "usr/share/doc/geminga"
    readme = (
        (ROOT / "README.md").read_text().replace("systemd/runbook/", "runbook/").replace("](LICENSE)", "](copyright)")
    )
    assert (documents / "README.md").read_text() == readme
    assert {path.name for path in documents.iterdir()} == {"README.md", "copyright", "changelog.gz", "docs",
                                                           "prometheus", "runbook"}
    assert {path.name for path in (documents / "docs").iterdir()} == {path.name for path in (ROOT / "docs").iterdir()}
    for folder in ("prometheus", "runbook"):
        assert {path.name for path in (documents / folder).iterdir()} == {
            path.name for path in (ROOT / "systemd" / folder).iterdir()
        }


@on_debian
def test_every_link_of_an_installed_page_leads_to_an_installed_page(unpacked):
    documents = unpacked / "usr/share/doc/geminga"
    links = [(page, path) for page in documents.rglob("*.md") for path, _ in links_of(page.read_text()) if path]
    assert len(links) > 100
    assert [(page.name, path) for page, path in links if not (page.parent / path).exists()] == []


@on_debian
def test_every_page_that_a_unit_names_is_installed(unpacked):
    units = [path.read_text() for path in (unpacked / "usr/lib/systemd/system").iterdir()]
    pages = [page for unit in units for page in re.findall(r"file://(/\S+)", unit)]
    assert len(pages) >= 4
    assert [page for page in pages if not (unpacked / page.lstrip("/")).is_file()] == []


@on_debian
def test_nobody_but_root_may_change_what_a_package_brings(package, tmp_path):
    """A package that was built with a strict umask can still be read by everybody on the host."""
    archive = tmp_path / "data.tar"
    with archive.open("wb") as file:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, stdout=file)
    with tarfile.open(archive) as held:
        members = held.getmembers()
    assert {(member.uname, member.gname, member.uid, member.gid) for member in members} == {("root", "root", 0, 0)}
    for member in members:
        is_program = member.isdir() or member.name == "./usr/bin/geminga"
        assert member.issym() or member.mode == (0o755 if is_program else 0o644), member.name


@on_debian
def test_a_package_tells_the_sums_of_its_files(unpacked):
    sums = dict(reversed(line.split("  ")) for line in (unpacked / "DEBIAN/md5sums").read_text().splitlines())
    files = [path for path in unpacked.rglob("*") if path.is_file() and not path.is_symlink()
             and "DEBIAN" not in path.parts]
    assert sums == {str(path.relative_to(unpacked)): hashlib.md5(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@on_debian
def test_a_packages_configuration_is_the_defaults_with_the_data_folder_of_its_units(unpacked):
    packaged, _ = config.load(unpacked / "etc/geminga/geminga.toml", {}, {})
    defaults, _ = config.load(None, {}, {})
    assert packaged == replace(defaults, data_dir=Path("/var/lib/geminga"))
    assert (unpacked / "DEBIAN/conffiles").read_text() == "/etc/geminga/geminga.toml\n"
    for unit in ("geminga.service", "geminga-nightly.service"):
        [command] = re.findall(r"^ExecStart=(.*)", (unpacked / "usr/lib/systemd/system" / unit).read_text(), re.M)
        assert "--config /etc/geminga/geminga.toml --data-dir /var/lib/geminga" in command


@on_debian
def test_the_packaged_command_sees_no_modules_but_its_own(unpacked, tmp_path):
    """Modules in the caller's folder, environment or home do not replace those of the package."""
    home = tmp_path / ".local/lib" / DEBIAN_PYTHON / "site-packages"
    for folder in (tmp_path, home):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "click.py").write_text("raise SystemExit('not this one')")
    program = [unpacked / "usr/lib/geminga/bin/python3",
               *(unpacked / "usr/bin/geminga").read_text().partition("\n")[0].split()[1:]]
    assert (unpacked / "usr/bin/geminga").read_text().startswith("#!/usr/lib/geminga/bin/python3 -I\n")
    command = [*program, unpacked / "usr/bin/geminga", "admin", "topics", "stats", "--help"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE,
                          text=True, cwd=tmp_path, env={"HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}).stdout
    assert said.startswith("Usage: geminga admin topics stats")


@on_debian
def test_processes_that_the_packaged_command_starts_do_not_run_it_again(unpacked):
    """A process that multiprocessing starts anew reads the file of its parent's command, under another name."""
    script = f"import runpy; runpy.run_path({str(unpacked / 'usr/bin/geminga')!r}, run_name='__mp_main__')"
    said = subprocess.run([unpacked / "usr/lib/geminga/bin/python3", "-I", "-c", script], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    assert not said


@on_debian
def test_the_packaged_program_knows_its_version(unpacked, tmp_path):
    """The program tells its version, with which a debug bundle begins."""
    # dependencies that this package was built without
    script = (f"import site; site.addsitedir({sysconfig.get_path('platlib')!r})\n"
              "from pathlib import Path\nfrom geminga.supervisor.tasks import "
              f"bundle\nprint(bundle._versions(Path({str(tmp_path / 'absent')!r})))")
    program = [unpacked / "usr/lib/geminga/bin/python3", "-I"]
    said = subprocess.run([*program, "-c", script], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.startswith("geminga 1.2.3\n") and "click " in said
    # no version stands in the file of others' licences
    assert "geminga 1.2.3" not in (unpacked / "usr/share/doc/geminga/copyright").read_text()


def commands(context):
    """Yield each command that help texts show; groups of commands are not yielded themselves."""
    if not isinstance(context.command, click.Group):
        yield context
        return
    for name in context.command.list_commands(context):
        below = context.command.get_command(context, name)
        if not below.hidden:
            yield from commands(click.Context(below, info_name=name, parent=context))


@on_debian
def test_the_manual_tells_of_every_command_and_each_of_its_options(unpacked):
    pages = "".join(gzip.decompress((unpacked / f"usr/share/man/man1/{name}.1.gz").read_bytes()).decode() for name in
                    ("geminga", "geminga-admin")).replace("\\-", "-")
    sections = dict(re.findall(r'^\.SS "([^"\n]*)"\n(.*?)(?=^\.S[SH] )', pages, re.M | re.S))
    told = list(commands(click.Context(geminga, info_name="geminga")))
    assert len(told) > 300
    for context in told:
        options = [one for one in context.command.get_params(context) if isinstance(one, click.Option)
                   and not one.hidden]
        missing = {name for one in options for name in one.opts if name not in sections[context.command_path]}
        assert missing <= {"--help", "-h"}, context.command_path


@on_debian
@pytest.mark.parametrize("shell, place",
                         [("bash", "bash-completion/completions/geminga"), ("zsh", "zsh/vendor-completions/_geminga"),
                                          ("fish", "fish/vendor_completions.d/geminga.fish")])
def test_completion_is_what_the_command_prints_for_a_shell(unpacked, shell, place):
    command = [Path(sys.executable).with_name("geminga"), "completion", shell]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert (unpacked / "usr/share" / place).read_text() == said.removesuffix("\n")


@pytest.mark.slow
@on_debian
def test_a_package_is_for_one_release_of_debian_and_its_python(unpacked):
    control = (unpacked / "DEBIAN/control").read_text()
    fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", control, re.M))
    assert fields["Version"] == f"1.2.3~deb{DEBIAN}" and fields["Architecture"] == architecture()
    assert fields["Depends"].split(", ")[0] == DEBIAN_PYTHON
    assert int(fields["Installed-Size"]) > 1000
    assert {name: (unpacked / "DEBIAN" / name).stat().st_mode & 0o777 for name in SCRIPTS} == dict.fromkeys(
        SCRIPTS, 0o755
    )
    for name in SCRIPTS:
        subprocess.run(["sh", "-n", unpacked / "DEBIAN" / name], check=True)


@on_debian
@pytest.mark.parametrize("there, is_taken", [(None, True), (0, True), (1, False), ("1\n", False)])
def test_a_package_leaves_a_folder_of_a_newer_format_alone(unpacked, tmp_path, there, is_taken):
    """Installation fails before it replaces any part of the program that serves the newer folder."""
    if there is not None:
        (tmp_path / "format").write_text(str(format.FOLDER_VERSION + int(there))
                                         + ("\n" if isinstance(there, str) else ""))
    preinst = (unpacked / "DEBIAN/preinst").read_text()
    assert "/var/lib/geminga" in preinst
    command = ["sh", "-c", preinst.replace("/var/lib/geminga", str(tmp_path)), "preinst", "upgrade", "1.2.2"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert (done.returncode == 0) == is_taken
    assert is_taken or f"not installed: {tmp_path} has format" in done.stderr
    assert is_taken or f"this version reads formats up to {format.FOLDER_VERSION}\n" in done.stderr


def test_the_installer_refuses_what_it_does_not_know():
    for argument, said in (("--sprak", "--sprak is no option"), ("no.deb", "no.deb is no file"),
                           ("--purge", "--purge goes with --remove")):
        done = subprocess.run(["sh", ROOT / "systemd/install.sh", argument], stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (2, f"install: {said}; --help shows how\n")
    shown = subprocess.run(
        ["sh", ROOT / "systemd/install.sh", "--help"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    assert shown.startswith("usage: ") and {"--without-spark", "--remove", "--purge"} <= set(shown.split())
