"""Boxes in which Geminga is installed, by the one command that users have for it."""
import argparse
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from .box import Box, NoBox, own_machine, pristine, what_is_missing

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CHECKOUT = "docs", "proto", "storage", "supervisor", "systemd", "workers", "pyproject.toml", "README.md", "LICENSE"
INSTALL = "sh", "/root/install.sh"       # without a checkout: from packages whose files are named
SUITES = "bookworm", "trixie"      # that users are promised
COMING = "forky"                   # not released yet: it changes every day, and is tried by hand


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=(*SUITES, COMING), default=SUITES[0],
                        help="of Debian (default: %(default)s)")
    parser.add_argument("--package", type=Path, action="append", default=[],
                        help="install this .deb, rather than one that is built in the box; may be repeated")
    parser.add_argument("--cache", type=Path, default=Path("/var/cache/geminga-boxes"),
                        help="where the Debian of all boxes is kept, and boxes lie while they are there (default: "
                             "%(default)s)")


NOT_HERE = 77      # exit status if nothing can be tried on this machine, as in automake


def begin(options: argparse.Namespace) -> Path:
    """Prepare this process for boxes, and return the Debian for them; SystemExit NOT_HERE if none can be made here."""
    if missing := what_is_missing():
        raise not_here(f"boxes need {missing}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))       # exit, so that every context closes its box
    try:
        own_machine()
        return pristine(options.cache, options.suite)
    except NoBox as why:
        raise not_here(why) from None


def not_here(why: object) -> SystemExit:
    print(f"nothing can be tried here: {why}", file=sys.stderr)
    return SystemExit(NOT_HERE)


def bring(box: Box, packages: list[Path]) -> list[str]:
    """Copy what is to be installed into the box; return the command that installs it.

    Without packages the checkout is installed.
    """
    place = box.path("/root/geminga")
    place.mkdir()
    shutil.copy(REPOSITORY / "systemd/install.sh", box.path(INSTALL[1]))
    if packages:
        for package in packages:
            shutil.copy(package, place)
        return [*INSTALL, *(f"/root/geminga/{package.name}" for package in packages)]
    for name in CHECKOUT:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place)
    # The box has no git, so the copy is one as `git archive` makes it.
    commit = subprocess.run(["git", "log", "-1", "--abbrev=8", "--format=%ct %h"], cwd=REPOSITORY, check=True,
                            capture_output=True, text=True).stdout
    (place / "systemd/commit").write_text(commit)
    return ["sh", "/root/geminga/systemd/install.sh"]


def installed(folder: Path, debian: Path, packages: list[Path]) -> list[Path]:
    """Return the files of a box in which Geminga was installed, and which was switched off."""
    with Box(folder, [debian]) as box:
        box.boot()
        print(box.say(*bring(box, packages), seconds=600), flush=True)
        box.power_off()
        return box.layers
