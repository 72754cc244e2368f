"""What the C library can do and Python has no word for."""
import ctypes
import fcntl
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_CLONE = 0x40049409          # FICLONE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def sync_all(folder: Path) -> None:
    """All that was written to the file system of this folder is on disk: thousands of files with one call.  Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd):
            raise _error(folder)
    finally:
        os.close(fd)


def punch(descriptor: int, begin: int, end: int, path: Path) -> None:
    """The blocks of these bytes of the file go back to its file system, and read as zeros.  Raises OSError."""
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
        raise _error(path)


def clone(source: int, target: int) -> None:
    """The file of the second descriptor has the blocks of the first's, until one of them is written to.  Raises OSError."""
    fcntl.ioctl(target, _CLONE, source)


def give_back_memory() -> None:
    """What many entries have taken for a moment goes back to the kernel."""
    _libc.malloc_trim(0)


def _error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))
