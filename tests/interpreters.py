"""The fast tests of this checkout, with every version of Python that the README promises.

    python -m tests.interpreters                  each version but the one that runs this, one after another
    python -m tests.interpreters 3.12 3.14        these versions
    python -m tests.interpreters --turn 17        one of them, in turns

Each version gets a copy of the checkout with an environment of its own, which `bootstrap.py test --fast` sets up. The
interpreters come from Maven's registry, where a library for Java ships whole builds of CPython; a host's own
interpreter, as Debian has it, is tried in `tests/appliance`. Exit status: 1 when a test fails, 77 when an interpreter
cannot be had.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from geminga.supervisor import bootstrap

from .machine import place_for_tests

CHECKOUT = Path(__file__).resolve().parent.parent
ARTIFACT = "org.bytedeco:cpython:{}:jar:linux-x86_64"
RELEASES = {"3.11": "3.11.3-1.5.9", "3.12": "3.12.1-1.5.10", "3.13": "3.13.5-1.5.12", "3.14": "3.14.3-1.5.13"}
INSIDE = "org/bytedeco/cpython/linux-x86_64/"       # of the jar: an installed Python with its libraries beside it
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
FETCH_SECONDS = 300
SPACE = 4 << 30
NOT_HERE = 77      # exit status if nothing can be tried on this machine, as in automake


class NotHere(Exception):
    """An interpreter cannot be had on this machine."""


def promised() -> list[str]:
    """Return the versions that the bootstrap takes, which the README and pyproject.toml name too."""
    (major, first), (_, last) = bootstrap.SUPPORTED
    return [f"{major}.{minor}" for minor in range(first, last + 1)]


def chosen(named: list[str], turn: int | None) -> list[str]:
    """Return the versions to try: the named ones, or all but this interpreter's, of which a turn takes one."""
    if named:
        return named
    others = [version for version in promised() if version != "{}.{}".format(*sys.version_info)]
    return others if turn is None else [others[turn % len(others)]]


def fetched(version: str, folder: Path) -> Path:
    """Unpack an interpreter in a folder; return its path.  Raises NotHere."""
    if shutil.which("mvn") is None:
        raise NotHere("Maven, which fetches interpreters, is not installed")
    command = ["mvn", "-q", "-B", COPY, f"-Dartifact={ARTIFACT.format(RELEASES[version])}",
               f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotHere(f"Maven did not fetch Python {version} within {FETCH_SECONDS} s") from None
    if done.returncode:
        raise NotHere(f"Maven cannot fetch Python {version}: {(done.stdout + done.stderr)[-500:]}")
    (jar,) = folder.glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(INSIDE)])
    jar.unlink()
    home = folder / INSIDE
    for library in home.glob("libffi*"):      # in the one folder where the module that wants it looks
        shutil.copy(library, home / f"lib/python{version}/lib-dynload")
    interpreter = home / f"bin/python{version}"
    interpreter.chmod(0o755)
    return interpreter


def copied(folder: Path) -> Path:
    """Copy the checkout's files, those that git does not know yet included; return the copy's folder."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=CHECKOUT,
                            check=True, stdout=subprocess.PIPE).stdout.decode()
    copy = folder / "checkout"
    for name in filter(None, listed.split("\0")):
        source, target = CHECKOUT / name, copy / name
        if source.is_symlink() or source.exists():      # else it is removed, and git has not been told
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return copy


def run(version: str) -> bool:
    """Run the fast tests with a version of Python; return whether they pass.  Raises NotHere."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=place_for_tests(SPACE), prefix=f"python{version}-") as name:
        interpreter, copy = fetched(version, Path(name)), copied(Path(name))
        # An environment that is there is used; else the bootstrap would prefer an optimised interpreter of the host.
        subprocess.run([interpreter, "-I", "-m", "venv", copy / ".venv"], check=True)
        command = [copy / ".venv/bin/python", copy / "supervisor/bootstrap.py", "test", "--fast", "-q"]
        environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        status = subprocess.run(command, env=environment).returncode
    print(f"Python {version}: {'ok' if status == 0 else 'NOT SO'}, {time.monotonic() - began:.0f} s", flush=True)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", choices=[*RELEASES, []], metavar="3.N", help="versions to try")
    parser.add_argument("--turn", type=int, help="try one version, the same for the same number")
    options = parser.parse_args()
    try:
        results = [run(version) for version in chosen(options.versions, options.turn)]
    except NotHere as why:
        print(f"nothing can be tried here: {why}", file=sys.stderr)
        return NOT_HERE
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
