"""Headers of a ledger's two files, and which ledgers a partition's folder has."""
import os
from pathlib import Path

import numpy as np

from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.errors import CorruptFile

_ATTEMPTS_MAX = 100             # to read a header that the broker may be writing


def index_header(ledger_id: int, partition_id: int, *, first_message: int, created_ms: int, entries: int, size: int,
                 is_sealed: bool) -> bytes:
    """Return the bytes of an INDEX_HEADER with its checksum."""
    return format.checked_header(
        format.INDEX_HEADER, magic=format.INDEX_MAGIC, state=format.SEALED if is_sealed else format.OPEN,
        ledger_id=ledger_id, partition_id=partition_id, first_message=first_message, created_ms=created_ms,
        entries=entries, size=size)


def ledger_header(ledger_id: int, partition_id: int) -> bytes:
    """Return the bytes of a LEDGER_HEADER."""
    return format.header(
        format.LEDGER_HEADER, magic=format.LEDGER_MAGIC, ledger_id=ledger_id, partition_id=partition_id)


def has_ledger_header(path: Path, ledger_id: int, partition_id: int) -> bool:
    """Whether a ledger's data file begins with its header, of any version, or with zeros, as after a power cut.

    Raises OSError.
    """
    raw = _begin_of(path)
    head = np.frombuffer(ledger_header(ledger_id, partition_id), format.LEDGER_HEADER).copy()
    for version in range(1, format.VERSION + 1):
        head["version"] = version
        if raw == head.tobytes():
            return True
    return not any(raw)


def _begin_of(path: Path) -> bytes:
    """Return as many bytes of a file as a header has.  Raises OSError.

    A start reads many headers, and a file object would cost three more calls of the kernel for each.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, format.HEADER_SIZE)
    finally:
        os.close(fd)


def read_index_header(path: Path) -> Rows | None:
    """Read the INDEX_HEADER (1,) of an index, unchecked; None if the file is shorter than a header.  Raises OSError."""
    raw = _begin_of(path)
    return np.frombuffer(raw, format.INDEX_HEADER, 1) if len(raw) == format.HEADER_SIZE else None


def is_header_of(head: Rows, ledger_id: int, partition_id: int) -> bool:
    """Whether an INDEX_HEADER (1,) names this ledger and partition.  Its checksum is not checked."""
    ours = format.INDEX_MAGIC, ledger_id, partition_id
    return (head["magic"][0], int(head["ledger_id"][0]), int(head["partition_id"][0])) == ours


def read_whole_header(path: Path, ledger_id: int, partition_id: int, *, is_served: bool) -> Rows | None:
    """Read and check the INDEX_HEADER (1,) of a ledger's index; None if it is damaged.

    is_served: a broker may be writing the header, so a torn read is repeated.

    Raises OSError; CorruptFile for a header of a newer version.
    """
    for _ in range(_ATTEMPTS_MAX if is_served else 1):
        head = read_index_header(path)
        if head is None:
            return None
        if is_header_of(head, ledger_id, partition_id) and (head["version"][0] == 1 or format.is_whole(head)):
            if head["version"][0] > format.VERSION:
                newer = f"format version {head['version'][0]}"
                raise CorruptFile(path, 8, f"format version {format.VERSION} or older", newer)
            return head
    return None


def write_into_index(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of an index file without changing its length.  Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def exists(folder: Path, ledger_id: int) -> bool:
    """Whether a partition's folder has both files of this ledger, and the index has a header.

    A process that was killed while creating or deleting the ledger may have left only one file, or an index of zeros.
    """
    try:
        return any(_begin_of(format.index_path(folder, ledger_id))) and format.ledger_path(folder, ledger_id).exists()
    except FileNotFoundError:
        return False


def ledger_ids(folder: Path) -> list[int]:
    """Return the ids of the ledgers in a partition's folder, ascending."""
    ids = [int(path.stem) for path in folder.glob("*.index") if path.stem.isdigit()]
    return sorted(ledger_id for ledger_id in ids if exists(folder, ledger_id))


def remove_unmade(folder: Path) -> None:
    """Remove files that a killed process left: ledgers without header or entries, and copies of an index (*.new)."""
    for path in folder.glob("*.new"):
        if path.stem.isdigit():
            path.unlink()
    for path in [*folder.glob("*.ledger"), *folder.glob("*.index")]:
        if path.stem.isdigit() and not exists(folder, int(path.stem)) \
                and not any(path.read_bytes()[format.HEADER_SIZE:]):
            path.unlink()
