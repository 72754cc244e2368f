"""Segments of a journal: files of one size with a header, which are made, written, retired and used again."""
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from geminga.storage import format
from geminga.storage.disk.files import allocate, sync
from geminga.storage.errors import StorageFull

_ZEROS = 1 << 20


@dataclass(slots=True)
class Segment:
    """An open segment of a journal: a file, and its sequence number."""

    path: Path
    fd: int
    sequence: int


def make_segment(path: Path, size: int) -> Path:
    """Create a segment's file with all blocks written, because syncs are fast only when blocks are overwritten.

    Raises StorageFull, OSError.
    """
    try:
        allocate(path, size)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            zeros = bytes(_ZEROS)
            for at in range(0, size, _ZEROS):
                os.pwrite(fd, zeros[:size - at], at)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        sync(path.parent, os.fsync)      # without it the file may have no name after a power cut
    except (OSError, StorageFull):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    return path


def retire(segment: Segment, following: int = 0) -> None:
    """Write a header that says that no start needs the segment.  The caller syncs it.  Raises OSError.

    following: number of the next record, where the segment is the journal's last.
    """
    os.pwrite(segment.fd, header_of_segment(segment.sequence, first_record=following, is_retired=1), 0)


def header_of_segment(sequence: int, *, first_record: int = 0, is_retired: int = 0) -> bytes:
    """Return the bytes of a segment's header."""
    return format.checked_header(format.SEGMENT_HEADER, magic=format.SEGMENT_MAGIC, sequence=sequence,
                                 first_record=first_record, is_retired=is_retired)
