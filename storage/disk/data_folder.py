"""Data folders that this program may write to.

The file `format` of a data folder has the number of the newest program that served it. A program compares the number
before it writes, because it could take data of a newer program for damage. A word instead of the number keeps every
program away: the folder is not complete, is a standby's copy, or was superseded by one.
"""
import contextlib
import errno
import os
from pathlib import Path

from geminga.storage import format
from geminga.storage.disk import regular_files
from geminga.storage.disk.files import sync, write_anew

_UNFINISHED, _COPY, _SUPERSEDED = b"unfinished\n", b"standby\n", b"superseded\n"
_NUMBER_MAX = 64            # bytes that are looked at


class CannotUse(Exception):
    """Error: this program may not use the data folder.  The text is one line for the user."""


def make(data_dir: Path) -> None:
    """Make the data folder, with access for its user alone, if it does not exist.  Raises OSError."""
    with contextlib.suppress(FileExistsError):
        data_dir.mkdir(mode=0o700, parents=True)
    if not data_dir.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(data_dir))


def check(data_dir: Path) -> int:
    """Return the data folder's format number, 0 if it has none.  Raises CannotUse, OSError."""
    path = format.format_path(data_dir)
    try:
        said = regular_files.read(path, _NUMBER_MAX)
    except FileNotFoundError:
        return 0
    if said == _UNFINISHED:
        raise CannotUse(f"{data_dir}: a restore into it was not completed; remove it, and restore again")
    if said == _COPY:
        raise CannotUse(f"{data_dir}: it is a standby's copy; serve it with --standby-of, or promote the standby")
    if said == _SUPERSEDED:
        raise CannotUse(f"{data_dir}: a standby was promoted, and has superseded it")
    if not said.strip().isdigit():
        raise CannotUse(f"{path}: expected a number, found {said[:20]!r}")
    if (number := int(said)) > format.FOLDER_VERSION:
        raise CannotUse(f"{path}: {data_dir} has format {number}, and this program knows {format.FOLDER_VERSION} "
                        "and older; a newer one wrote it")
    return number


def claim(data_dir: Path) -> None:
    """Set the data folder's format number to this program's, so that older programs refuse the folder.

    Raises CannotUse, OSError.
    """
    if check(data_dir) < format.FOLDER_VERSION:
        _write(data_dir, b"%d\n" % format.FOLDER_VERSION)


def begin(data_dir: Path) -> None:
    """Mark the data folder as unfinished, so that no program uses it.  Raises OSError."""
    _write(data_dir, _UNFINISHED)


def mark_copy(data_dir: Path) -> None:
    """Mark the data folder as a standby's complete copy, which no program serves.  Raises OSError."""
    _write(data_dir, _COPY)


def is_copy(data_dir: Path) -> bool:
    """Whether the data folder is marked as a standby's complete copy.  Raises OSError."""
    try:
        return regular_files.read(format.format_path(data_dir), _NUMBER_MAX) == _COPY
    except FileNotFoundError:
        return False


def mark_superseded(data_dir: Path) -> None:
    """Mark the data folder as superseded by a standby, so that no program serves it again.  Raises OSError."""
    _write(data_dir, _SUPERSEDED)


def complete(data_dir: Path) -> None:
    """Remove the mark of an unfinished or copied data folder, so that programs may use it.  Raises OSError."""
    _write(data_dir, b"%d\n" % format.FOLDER_VERSION)


def _write(data_dir: Path, data: bytes) -> None:
    write_anew(format.format_path(data_dir), data)
    sync(data_dir, os.fsync)
