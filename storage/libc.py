"""What the C library can do and Python has no word for."""
import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def sync_all(folder: Path) -> None:
    """All that was written to the file system of this folder is on disk: thousands of files with one call.  Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(folder))
    finally:
        os.close(fd)


def give_back_memory() -> None:
    """What many entries have taken for a moment goes back to the kernel."""
    _libc.malloc_trim(0)
