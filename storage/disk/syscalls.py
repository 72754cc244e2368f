"""Calls of the C library that Python does not have."""
import ctypes
import fcntl
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2      # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
_CLONE = 0x40049409          # FICLONE
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4      # SYNC_FILE_RANGE_...

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def sync_all(folder: Path, descriptor: int | None = None) -> None:
    """Sync the whole file system that has the folder: thousands of files with one call.  Raises OSError.

    descriptor: of the folder, None to open one.  Each descriptor is told once of each error since it was opened.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC) if descriptor is None else descriptor
    try:
        if _libc.syncfs(fd):
            raise _error(folder)
    finally:
        if descriptor is None:
            os.close(fd)


def punch(descriptor: int, begin: int, end: int, path: Path) -> None:
    """Free the disk blocks of a range of bytes of a file, which then read as zeros.  Raises OSError."""
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
        raise _error(path)


def write_back(descriptor: int, begin: int, end: int, path: Path, *, waits: bool) -> None:
    """Begin to write a range of bytes of a file to the disk, and perhaps wait for its end.  Raises OSError.

    Neither syncs the disk or the file's metadata; see sync_file_range(2).
    """
    flags = _WAIT_BEFORE | _WRITE | _WAIT_AFTER if waits else _WRITE
    if end > begin and _libc.sync_file_range(descriptor, begin, end - begin, flags):      # 0 bytes: up to the end
        raise _error(path)


def clone(source: int, target: int) -> None:
    """Make the file `target` share the disk blocks of the file `source`, copied on write.  Raises OSError."""
    fcntl.ioctl(target, _CLONE, source)


def give_back_memory() -> None:
    """Return free memory of this process to the kernel."""
    _libc.malloc_trim(0)


def _error(path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(path))
