"""Location and user of the broker that the Debian package installs, as defaults of the package's own command.

The package's program lies in /usr/lib/geminga, and its configuration is /etc/geminga/geminga.toml.  The command of a
checkout or a wheel does not use these, and its default is ./data.
"""
import os
import pwd
import sys
from pathlib import Path

_PROGRAM = ("usr", "lib", "geminga")
_CONFIGURATION = Path("etc", "geminga", "geminga.toml")
_USER = "geminga"            # the user in the systemd units


def _root() -> Path | None:
    """Return the root of the file system into which the package was installed, None if there is no package."""
    prefix = Path(sys.prefix)
    return prefix.parents[2] if prefix.parts[-3:] == _PROGRAM else None


def configuration(named: str | None, data_dir: str | None) -> str | None:
    """Return the configuration file to read: the named one, else the installed broker's.

    Return None if no file is named and there is no installed broker, or if a data folder is given.
    """
    root = _root()
    if root is None or named is not None or data_dir is not None or os.environ.get("GEMINGA_DATA_DIR"):
        return named
    return str(root / _CONFIGURATION)


def user() -> str | None:
    """Return the user under which the installed broker runs, None unless this process is root's."""
    if _root() is None or os.geteuid():
        return None
    try:
        return pwd.getpwnam(_USER).pw_name
    except KeyError:
        return None
