"""The broker of an installed package: its own command finds it where it is told nothing else.

The program lies in /usr/lib/geminga then, and what it serves with in /etc/geminga/geminga.toml.  A checkout, or a wheel, beside it is
another program, and looks at ./data as ever.
"""
import os
import pwd
import sys
from pathlib import Path

_PROGRAM = ("usr", "lib", "geminga")
_CONFIGURATION = Path("etc", "geminga", "geminga.toml")
_USER = "geminga"            # as the units have it


def _root() -> Path | None:
    """What the package was put into: /."""
    prefix = Path(sys.prefix)
    return prefix.parents[2] if prefix.parts[-3:] == _PROGRAM else None


def configuration(named: str | None, data_dir: str | None) -> str | None:
    """The file to read: the one that is named; the installed broker's where neither it nor a data folder is."""
    root = _root()
    if root is None or named is not None or data_dir is not None or os.environ.get("GEMINGA_DATA_DIR"):
        return named
    return str(root / _CONFIGURATION)


def user() -> str | None:
    """Whom the installed broker runs as, for root; None where that is nobody else."""
    if _root() is None or os.geteuid():
        return None
    try:
        return pwd.getpwnam(_USER).pw_name
    except KeyError:
        return None
