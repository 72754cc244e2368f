"""Location and user of the broker that the Debian package installs, and the right user for a data folder.

The package's program lies in /usr/lib/geminga, and its configuration is /etc/geminga/geminga.toml.  The command of a
checkout or a wheel does not use these, and its default is ./data.

Files that root makes in the folder of another user could not be read by that user's broker.  So a command that works
on a folder takes the rights of the folder's owner first.
"""
import os
import pwd
import shlex
import sys
from pathlib import Path

_PROGRAM = ("usr", "lib", "geminga")
_CONFIGURATION = Path("etc", "geminga", "geminga.toml")
_USER = "geminga"            # the user in the systemd units
_DATA_DIR = "GEMINGA_DATA_DIR"


class WrongUser(Exception):
    """An error: another user has to run the command.  The text has the line that does."""

    exit_status = 1


def _root() -> Path | None:
    """Return the root of the file system into which the package was installed, None if there is no package."""
    prefix = Path(sys.prefix)
    return prefix.parents[2] if prefix.parts[-3:] == _PROGRAM else None


def configuration(named: str | None, data_dir: str | None) -> str | None:
    """Return the configuration file to read: the named one, else the installed broker's.

    Return None if no file is named and there is no installed broker, or if a data folder is given.  Raises WrongUser:
    this user may not read the installed file.
    """
    root = _root()
    if root is None or named is not None or data_dir is not None or os.environ.get(_DATA_DIR):
        return named
    place = root / _CONFIGURATION
    if _is_kept_from_us(place):
        raise WrongUser(f"{place} is for root and user {_USER}, who has to run this: {line_of(_USER)}")
    return str(root / _CONFIGURATION)


def _is_kept_from_us(place: Path) -> bool:
    try:
        place.open("rb").close()
    except PermissionError:
        return True
    except OSError:      # whoever uses the file says what is wrong with it
        return False
    return False


def data_dir() -> Path | None:
    """Return the data folder of this host's broker, without loading the whole configuration.

    Return None if the installed configuration cannot be read, or names no folder.
    """
    root = _root()
    if root is None or os.environ.get(_DATA_DIR):
        return Path(os.environ.get(_DATA_DIR) or "data")
    import tomllib
    try:
        folder = tomllib.loads((root / _CONFIGURATION).read_text("utf-8")).get("data_dir")
    except (OSError, ValueError):
        return None
    return Path(folder) if isinstance(folder, str) and folder else None


def folder(named: str | None) -> Path:
    """Return the data folder that a command works on: the named one, else this host's broker's.  Raises WrongUser."""
    if named is not None:
        return Path(named)
    configuration(None, None)
    return data_dir() or Path("data")


def user() -> str | None:
    """Return the user under which the installed broker runs, None unless this process is root's."""
    return None if os.geteuid() else _service_user()


def must_be_root() -> bool:
    """Whether a broker is installed whose user this process can neither be nor become."""
    user = _service_user()
    return user is not None and os.geteuid() not in (0, pwd.getpwnam(user).pw_uid)


def _service_user() -> str | None:
    if _root() is None:
        return None
    try:
        return pwd.getpwnam(_USER).pw_name
    except KeyError:
        return None


def line_of(name: str) -> str:
    """Return the command line that runs this command as a user."""
    return shlex.join(["sudo", "-u", name, "geminga", *sys.argv[1:]])


def become_owner(place: Path, *, writes: bool = True) -> None:
    """Take the rights of the owner of a folder or file for the rest of this process, if it is root's.

    writes: whether the command makes files there.  One that only reads goes on as root where the owner cannot reach
    the place, or the program.  Raises WrongUser: another user has to run the command.
    """
    seen = _in_sight(place.absolute())
    try:
        owner = seen.stat().st_uid
    except OSError:      # the caller uses the path, and says what is wrong with it
        return
    me = os.geteuid()
    may_read = os.access(seen, os.R_OK | os.X_OK if seen.is_dir() else os.R_OK)
    if owner == me or (me and not writes and may_read):
        return
    try:
        entry = pwd.getpwuid(owner)
    except KeyError:
        raise WrongUser(f"{place} is user #{owner}'s, who has to run this") from None
    if me:
        raise WrongUser(f"{place} is user {entry.pw_name}'s, who has to run this: {line_of(entry.pw_name)}")
    if take_rights(entry, place, Path(__file__)):
        return
    if writes:
        raise WrongUser(f"user {entry.pw_name}, whose {place} is, cannot reach it or this program: move one of them")


def make_for_owner(folder: Path, place: Path) -> None:
    """Make a missing folder that belongs to the owner of `place`, if this process is root's.

    The owner may not write where administrators keep such folders.
    """
    if os.geteuid() or folder.exists() or not place.exists():
        return
    owner = place.stat()
    folder.mkdir(mode=0o700)
    os.chown(folder, owner.st_uid, owner.st_gid)


def _in_sight(place: Path) -> Path:
    """Return the path itself, or its nearest parent that this user can look at."""
    for one in (place, *place.parents):
        try:
            one.stat()
        except PermissionError:
            continue
        except OSError:
            pass
        return one
    return place


def take_rights(entry: pwd.struct_passwd, *places: Path) -> bool:
    """Take a user's rights for good, as root.  Return False, and stay root, if that user cannot read all the places."""
    groups = os.getgroups()
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setegid(entry.pw_gid)
    os.seteuid(entry.pw_uid)
    can_read = all(os.access(place, os.R_OK, effective_ids=True) for place in places)
    os.seteuid(0)
    os.setegid(0)
    if not can_read:
        os.setgroups(groups)
        return False
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)
    return True
