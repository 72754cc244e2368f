"""How the world can fail, as far as callers treat it differently."""
import errno
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_DISK = (*_FULL, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)
_OF_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP,
             errno.ENAMETOOLONG)


class StorageFull(Exception):
    """What was to be written cannot be for now: no room, no descriptor, a file system that is read-only.  Nothing of it was."""


class NotDurable(Exception):
    """What was decided cannot be put on disk.  Nothing of it was answered; who decided it ends, and begins anew with what is there."""


class Interrupted(BaseException):
    """What was decided went to disk in part, for a reason that nobody has thought of: its process ends, whatever it was doing it for."""


class CorruptFile(Exception):
    """A file does not hold what it should."""

    def __init__(self, path: Path | str, offset: int, expected: object, found: object):
        super().__init__(f"{path}: at byte {offset}: expected {expected}, found {found}")


def is_full(error: BaseException) -> bool:
    """Whether there was no room, which may come back."""
    return isinstance(error, StorageFull) or (isinstance(error, OSError) and error.errno in _FULL)


def is_of_disk(error: OSError) -> bool:
    """Whether the disk failed, or descriptors are used up: nothing that this program could do better."""
    return error.errno in _OF_DISK


def is_of_place(error: OSError) -> bool:
    """Whether another place has to be named, or its rights be changed: trying again does not help."""
    return error.errno in _OF_PLACE


def text_of(error: OSError) -> str:
    """What the operator reads: which file, and what the kernel says."""
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
