"""Files and folders that the configuration names and this user cannot use: what is wrong, and what to do about it."""
import errno
import os
import pwd
import tempfile
from pathlib import Path

_ANOTHER = "name another folder with --data-dir, or with data_dir in the configuration"


def unreadable(path: Path, error: OSError) -> str:
    """Return the line that says why a configuration file cannot be read, and what to do."""
    if error.errno == errno.ENOENT:
        return f"{path}: there is no such configuration file: name another with --config, or omit --config"
    if error.errno == errno.EISDIR:
        return f"{path} is a folder, not a configuration file: name a file with --config"
    if error.errno == errno.EACCES:
        return f"{path}: user {this_user()} may not read it: change its rights, or use sudo"
    return f"{path}: {error.strerror}: name another file with --config"


def look(data_dir: Path) -> None:
    """Check that this user could make the data folder, or write to it and its content; leave nothing behind.

    Raises OSError.
    """
    place = data_dir.absolute()
    while not _is_there(place):
        place = place.parent
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    for path in (place, *(place.iterdir() if place == data_dir.absolute() else ())):
        if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)):
            raise PermissionError(errno.EACCES, "it cannot be written to", str(path))
    if (lock := data_dir / "lock").is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(lock))
    _write(place)


def _write(folder: Path) -> None:
    """Write a file in a folder and forget it: rights do not tell of a full disk or a file system that takes no files.

    Raises OSError.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(4096))
    except OSError as error:      # the temporary file has a name that says nothing
        raise OSError(error.errno, error.strerror, str(folder)) from None


def unusable(data_dir: Path, error: OSError) -> str:
    """Return the line that says why a broker cannot use its data folder, and what to do."""
    path = Path(os.fsdecode(error.filename)) if error.filename else data_dir
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"data_dir: {_obstacle(data_dir, path)} is no folder: {_ANOTHER}"
    if error.errno in (errno.EACCES, errno.EPERM):
        wanted = data_dir if path in data_dir.parents else path      # the folder itself, where it is to be made
        return f"data_dir: {wanted}: user {this_user()} may not write to {_nearest(path)}: change its owner (chown), " \
               f"or {_ANOTHER}"
    if error.errno == errno.EROFS:
        return f"data_dir: {path}: the file system is read-only: mount it for writing, or {_ANOTHER}"
    if error.errno == errno.ENOSPC:
        return f"data_dir: {path}: no space is left: make room, or {_ANOTHER}"
    return f"data_dir: {path}: {error.strerror or error}: {_ANOTHER}"


def this_user() -> str:
    """Return the name of the user of this process, its number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _is_there(path: Path) -> bool:
    """Whether a file, a folder or a link of that name exists, even a link to nothing.  Raises OSError."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _obstacle(data_dir: Path, path: Path) -> Path:
    """Return the part of the path that is there and is no folder."""
    for part in (*reversed(data_dir.parents), data_dir, path):
        try:
            if part.exists() and not part.is_dir():
                return part
        except OSError:
            continue
    return path


def _nearest(path: Path) -> Path:
    """Return the path, or the nearest folder above it that is there: the place where the right is missing."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path
