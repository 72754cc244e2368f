"""Calls of the C library that Python does not have."""
import ctypes
import fcntl
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2      # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
_CLONE = 0x40049409          # FICLONE
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4      # SYNC_FILE_RANGE_...
# Magic numbers of statfs(2): ext2 to ext4, XFS, Btrfs, F2FS, ZFS; tmpfs and ramfs, which have no disk.
_SYNCED_WHOLE = 0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0x01021994, 0x858458F6

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class _Statfs(ctypes.Structure):
    _fields_ = (("type", ctypes.c_long), ("rest", ctypes.c_long * 31))      # larger than struct statfs is anywhere


def can_sync_whole(descriptor: int, folder: Path) -> bool:
    """Whether syncfs(2) brings all files of an open folder's file system to the disk.  Raises OSError.

    syncfs succeeds on every file system.  But on FUSE it only hands written pages to the program that serves the file
    system, and does not tell that program to sync them.
    """
    info = _Statfs()
    if _libc.fstatfs(descriptor, ctypes.byref(info)):
        raise _error(folder)
    return info.type & 0xFFFFFFFF in _SYNCED_WHOLE


def sync_file_system(descriptor: int, folder: Path) -> None:
    """Sync all files of the file system that an open folder lies on, with one call.  Raises OSError.

    The kernel reports a failed write once to each descriptor that was open when the write failed.
    """
    if _libc.syncfs(descriptor):
        raise _error(folder)


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
