"""Read files in folders that other users may have written to: regular files only.

A symbolic link could lead to another file of the reader, reading a pipe could wait for ever, and a file may have any
size.
"""
import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_NOT_REGULAR = "it is no regular file"
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def opened(path: Path, folder: Path | None = None) -> BinaryIO:
    """Open a regular file for reading, unbuffered. Raises OSError.

    folder: a folder above the file; no folder on the way from it to the file may be a symbolic link.
    """
    if folder is None:
        return _checked(_open(str(path), _FLAGS, None, path), path)
    *way, name = path.relative_to(folder).parts
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in way:
            below = _open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, place, path)
            os.close(place)
            place = below
        return _checked(_open(name, _FLAGS, place, path), path)
    finally:
        os.close(place)


def read(path: Path, size: int, folder: Path | None = None) -> bytes:
    """Return the first `size` bytes of a file, or fewer.  Raises OSError."""
    with opened(path, folder) as file:
        return file.read(size)


def check(*folders: Path) -> None:
    """Check that everything below these paths is a regular file or a folder.  Raises OSError."""
    for folder in folders:
        # A broker that serves the folder may have just removed it.
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    check(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    raise OSError(errno.EINVAL, _NOT_REGULAR, entry.path)


def _open(name: str, flags: int, place: int | None, path: Path) -> int:
    """Open a file by its name in the folder with descriptor `place`.  Raises OSError with the whole path."""
    try:
        return os.open(name, flags, dir_fd=place)
    except OSError as error:
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        raise OSError(error.errno, _NOT_REGULAR if is_link else error.strerror, str(path)) from None


def _checked(fd: int, path: Path) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))
    return open(path, "rb", buffering=0, opener=lambda *_: fd)
