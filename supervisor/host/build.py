"""The build of this program: its version, and the commit of which it was made.

A package has both in its version, `0.1.0+20261128160251.g381b92f6`: the commit's time in UTC, and its name.  So a
package of a later commit is the newer one, whenever it was built.  A checkout is asked by git.  The script that makes
packages runs this file before anything of ours can be imported, so it needs the standard library alone.
"""
import functools
import importlib.metadata
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

_CHECKOUT = Path(__file__).resolve().parent.parent.parent
_STAMP = "systemd/commit"      # `git archive` writes "SECONDS NAME" there; in a clone it is a form
_SOURCES = ("proto", "storage", "workers", "supervisor", "systemd", "docs", "pyproject.toml", "README.md")
_GIT_S = 10


class Build(NamedTuple):
    """What a program was made of; empty texts where that is not known."""

    version: str
    commit: str = ""          # its name in eight digits, with "+changed" behind it if files differ from it
    committed: str = ""       # when: 2026-11-28T16:02:51Z

    @property
    def text(self) -> str:
        """The build in words."""
        of = f" (commit {self.commit} of {self.committed})" if self.commit else ""
        return f"{self.version}{of}"


@functools.cache
def build() -> Build:
    """Return what this program was made of.  The first call may start git."""
    version = importlib.metadata.version("geminga")
    return parsed(version if "+" in version else f"{version}+{of_checkout(_CHECKOUT)}")


def parsed(version: str) -> Build:
    """Return the build of a package's version."""
    number, _, rest = version.partition("+")
    parts = re.match(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)\.g([0-9a-f]+)(\.changed)?", rest)
    if parts is None:
        return Build(number)
    return Build(number, parts[7] + ("+changed" if parts[8] else ""), "{}-{}-{}T{}:{}:{}Z".format(*parts.groups()[:6]))


def of_checkout(checkout: Path) -> str:
    """Return the commit of a checkout in the form of a package's version, TIME.gNAME; "" if it is not known.

    If files differ from the commit, the time of the call follows, so that each build of them is another version.
    """
    stamp = checkout / _STAMP
    is_clone = (checkout / ".git").exists()      # else git may tell of a repository around the checkout
    if not is_clone:
        line = stamp.read_text() if stamp.exists() else ""
    else:
        line = _git(checkout, "log", "-1", "--abbrev=8", "--format=%ct %h")
    parts = re.fullmatch(r"(\d+) ([0-9a-f]+)", line.strip())
    if parts is None:
        return ""
    is_changed = is_clone and _git(checkout, "status", "--porcelain", *_SOURCES)
    changed = f".changed{_digits(time.time())}" if is_changed else ""
    return f"{_digits(int(parts[1]))}.g{parts[2][:8]}{changed}"


def _digits(seconds: float) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.gmtime(seconds))


def _git(checkout: Path, *words: str) -> str:
    """Return what git prints; "" if it is not installed or fails.  The checkout may belong to another user."""
    try:
        return subprocess.run(["git", "-c", f"safe.directory={checkout}", "-C", str(checkout), *words], check=True,
                              capture_output=True, text=True, timeout=_GIT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
