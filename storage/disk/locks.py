"""Locks on files, which end with their process at the latest.

    <data>/lock                             whoever serves the folder has it alone; `hold` keeps others from beginning to
    <data>/nightly/lock                     of the run that is under way
    <data>/partitions/<id>/compacted/lock   of whoever makes a view of the partition
"""
import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

LOCK = "lock"


@contextlib.contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Whether it was taken: nobody else has it then.  Raises OSError."""
    with _opened(path, os.O_RDWR | os.O_CREAT) as fd:
        yield _is_taken(fd, fcntl.LOCK_EX)


@contextlib.contextmanager
def hold(data_dir: Path) -> Iterator[bool]:
    """Nobody can begin to serve the folder; whether somebody does already.  Raises OSError."""
    if not (data_dir / LOCK).exists():      # never served
        yield False
        return
    with _opened(data_dir / LOCK, os.O_RDONLY) as fd:
        yield not _is_taken(fd, fcntl.LOCK_SH)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)      # a pipe would keep its reader waiting
    try:
        yield fd
    finally:
        os.close(fd)


def _is_taken(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
