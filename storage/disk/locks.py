"""Locks on files. A lock ends with its process at the latest.

    <data>/lock                             exclusive for the process that serves the folder; `hold` is shared and keeps
                                            others from starting to serve
    <data>/nightly/lock                     held by the night in progress
    <data>/partitions/<id>/compacted/lock   held by the process that makes a view of the partition
    <data>/backup/layouts                   held by a backup from its cuts to its copy of the catalogue: owners bring no
                                            layout of segments into force meanwhile
"""
import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

LOCK, LAYOUTS = "lock", "layouts"


@contextlib.contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Try to take an exclusive lock for the duration of the context.  Yields whether it was taken.  Raises OSError."""
    with _opened(path, os.O_RDWR | os.O_CREAT) as fd:
        yield _is_taken(fd, fcntl.LOCK_EX)


@contextlib.contextmanager
def wait_for(path: Path) -> Iterator[None]:
    """Hold an exclusive lock for the duration of the context, which others hold for a moment only.  Raises OSError."""
    with _opened(path, os.O_RDWR | os.O_CREAT) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock on a file; one that cannot be read counts as free."""
    try:
        with _opened(path, os.O_RDONLY) as fd:
            return not _is_taken(fd, fcntl.LOCK_SH)
    except OSError:
        return False


@contextlib.contextmanager
def hold(data_dir: Path) -> Iterator[bool]:
    """Keep other processes from starting to serve the data folder, for the duration of the context.

    Yields whether a process serves it already. Raises OSError.
    """
    if not (data_dir / LOCK).exists():      # never served
        yield False
        return
    with _opened(data_dir / LOCK, os.O_RDONLY) as fd:
        yield not _is_taken(fd, fcntl.LOCK_SH)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Yield a descriptor of the file, which is closed at the end of the context.  Raises OSError."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)      # a pipe would keep its reader waiting
    try:
        yield fd
    finally:
        os.close(fd)


def _is_taken(fd: int, how: int) -> bool:
    """Try to take a lock of that kind without waiting; return whether that succeeded.  Raises OSError."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
