"""Files: allocated ahead, synced, replaced as a whole, mapped into memory."""
import contextlib
import mmap
import os
import resource
from collections.abc import Callable, Iterable
from pathlib import Path

from geminga.storage.disk.syscalls import can_sync_whole, sync_file_system
from geminga.storage.errors import StorageFull, text_of

IOV_MAX = 1000        # buffers of one write; the kernel takes 1024
_OPEN_MIN = 16        # ledgers, with however few descriptors


def open_max(at_most: int, descriptors_each: int, part: float) -> int:
    """Return how many ledgers a process keeps open: `at_most`, and as many as a part of its file descriptors allows.

    descriptors_each: of an open ledger; Python keeps one for each mapping.
    """
    descriptors = int(part * resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return max(_OPEN_MIN, min(at_most, descriptors // descriptors_each))


def allocate(path: Path, size: int, before: int | None = None) -> None:
    """Make the file at least `size` bytes long, with disk blocks for all new bytes.

    before: the number of bytes that have blocks already, if not all have; holes among them stay. Raises StorageFull,
    and leaves the file as it was.
    """
    is_there = path.exists()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageFull(text_of(error)) from error
    try:
        length = os.fstat(fd).st_size
        before = length if before is None else min(before, length)
        try:
            if before < size:
                os.posix_fallocate(fd, before, size - before)
        except OSError as error:      # a part may be allocated by now; bytes behind the old end are unused
            os.ftruncate(fd, length)
            if not is_there:
                path.unlink()
            raise StorageFull(f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def sync(path: Path, how: Callable[[int], None]) -> None:
    """Sync a file or a folder with `how`: os.fdatasync for files, os.fsync for folders.  Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        how(fd)
    finally:
        os.close(fd)


def sync_all(folder: Path, descriptor: int | None = None) -> None:
    """Sync all files below a folder: with one call for the whole file system, where it has one.  Raises OSError.

    descriptor: of the folder, None to open one.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC) if descriptor is None else descriptor
    try:
        if can_sync_whole(fd, folder):
            sync_file_system(fd, folder)
        else:
            _sync_each(folder)
    finally:
        if descriptor is None:
            os.close(fd)


def _sync_each(folder: Path) -> None:
    """Sync the files and folders below a folder one by one, then the folder.  Raises OSError."""
    with contextlib.suppress(FileNotFoundError):      # the folder was deleted meanwhile
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                _sync_each(path)
            elif path.is_file():
                with contextlib.suppress(FileNotFoundError):
                    sync(path, os.fsync)
        sync(folder, os.fsync)


class FileSystem:
    """A file system that is synced as a whole, where the kernel can do so.

    Its descriptor stays open from the beginning on: the kernel tells each descriptor of the errors since it was opened,
    also of those that another process has been told of.
    """

    def __init__(self, folder: Path):
        """Open the file system that has this folder.  Raises OSError."""
        self._folder, self._fd = folder, os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        self._device = os.fstat(self._fd).st_dev
        self._can_sync_whole = can_sync_whole(self._fd, folder)

    def __repr__(self) -> str:
        return f"<FileSystem of {self._folder}>"

    def has(self, folders: Iterable[Path]) -> bool:
        """Whether `sync` syncs all of the folders, as far as they are not deleted.  Raises OSError."""
        if not self._can_sync_whole:
            return False
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(folder).st_dev != self._device:
                    return False
        return True

    def sync(self) -> None:
        """Sync all files, folders and names.  Raises OSError."""
        sync_all(self._folder, self._fd)

    def close(self) -> None:
        os.close(self._fd)


def write_anew(path: Path, data: bytes | memoryview) -> None:
    """Replace the whole content of a file, synced.  Raises OSError, and leaves the old content.

    The caller syncs the folder.
    """
    fresh = path.with_suffix(".new")
    try:
        with open(fresh, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)      # frees its blocks, as the disk may be full
        raise


def map_file(path: Path, *, writable: bool, private: bool = False) -> mmap.mmap:
    """Map a whole file into memory, shared.  private: writes to the mapping stay in memory.  Raises OSError."""
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(fd, 0, access=access)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of data at this offset, even if a signal cuts a write short.  Raises OSError."""
    data = memoryview(data)
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
