"""Kinds of failures of disk and data, as far as callers treat them differently."""
import errno
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_DISK = (*_FULL, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)
_OF_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP,
    errno.ENAMETOOLONG,
)


class StorageFull(Exception):
    """Nothing can be written for now: no room, no descriptor, or a read-only file system.  Nothing was written."""


class NotDurable(Exception):
    """Decisions of a pass cannot be put on disk.  Nothing that depends on them was answered.

    The owner ends, and its successor begins with what is on disk.
    """


class Interrupted(BaseException):
    """An unforeseen error left decisions on disk in part.

    The process ends, whichever command it was working for.
    """


class CorruptFile(Exception):
    """A file does not hold what it should."""

    def __init__(self, path: Path | str, offset: int, expected: object, found: object):
        super().__init__(f"{path}: at byte {offset}: expected {expected}, found {found}")


class LostFiles(CorruptFile):
    """A partition that has been stored has no ledger any more: its folder was removed, or what was in it."""

    def __init__(self, path: Path, name: object):
        Exception.__init__(self, f"{path}: the files of {name} are missing, and its messages with them")


def is_full(error: BaseException) -> bool:
    """Whether the error means that there is no room, which may come back."""
    return isinstance(error, StorageFull) or (isinstance(error, OSError) and error.errno in _FULL)


def is_of_disk(error: OSError) -> bool:
    """Whether the disk failed or descriptors are used up, so that this program can do nothing about it."""
    return error.errno in _OF_DISK


def is_of_place(error: OSError) -> bool:
    """Whether the error needs another path or other permissions, so that trying again does not help."""
    return error.errno in _OF_PLACE


def text_of(error: OSError) -> str:
    """Return the text for an operator: the file and the error of the kernel."""
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
