"""Work on the two files of a ledger: create them, open existing ones, check their lengths, free blocks of the index."""
import contextlib
import os
from pathlib import Path

import numpy as np

from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.disk.files import allocate
from geminga.storage.errors import CorruptFile, StorageFull, text_of
from geminga.storage.ledgers import index_repair, ledger_headers
from geminga.storage.ledgers.ledger import Ledger

_EXTENT_MIN = 64 << 10          # bytes of a ledger's file at first; doubled whenever it is full
_INDEX_EXTENT_MIN = 16 << 10


def create(folder: Path, partition_id: int, ledger_id: int, *, first_message: int, created_ms: int,
           extent: int = 0, index_extent: int = 0) -> Ledger:
    """Create an empty ledger.  Files that already exist are kept, because a journal may be replayed.

    extent, index_extent: bytes to allocate for each file at once, if more than the minimum.  Raises StorageFull.
    """
    ledger = Ledger(folder, partition_id, ledger_id)
    ledger.first_message, ledger.created_ms = first_message, created_ms
    is_new = not ledger.ledger_path.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        allocate(ledger.ledger_path, max(_EXTENT_MIN, extent))
        whole_rows = index_extent - index_extent % format.INDEX_ROW.itemsize      # else it looks damaged to workers
        allocate(ledger.index_path, max(_INDEX_EXTENT_MIN, whole_rows))
        write_ledger_header(ledger)
        ledger.write_header()
    except (OSError, StorageFull) as error:
        if is_new:
            with contextlib.suppress(OSError):
                ledger.unlink()
        raise StorageFull(text_of(error) if isinstance(error, OSError) else str(error)) from error
    return ledger


def write_ledger_header(ledger: Ledger) -> None:
    """Write the header of the ledger's data file, not that of the index.  Raises OSError."""
    ledger.write([ledger_headers.ledger_header(ledger.ledger_id, ledger.partition_id)], 0)


def take_bounds(ledger: Ledger, rows: Rows) -> None:
    """Set entries, size, first_message and created_ms of a ledger with a damaged header from its INDEX_ROWs (n,)."""
    bounds = index_repair.bounds_of(rows, ledger.ledger_id)
    ledger.is_header_lost = bounds is None
    ledger.entries, ledger.size = (bounds.entries, bounds.size) if bounds else (0, format.HEADER_SIZE)
    if bounds:
        ledger.first_message, ledger.created_ms = bounds.first_message, bounds.created_ms


def take_end(ledger: Ledger) -> None:
    """Set entries and size of a ledger from its valid index rows.

    Needed for headers of format version 1, which lack both while a ledger is open.
    """
    rows = read_rows(ledger.index_path)
    ledger.entries = format.valid_rows(rows, ledger.ledger_id)
    if ledger.entries:
        last = rows[ledger.entries - 1]
        ledger.size = int(last["offset"]) + int(last["size"])


def open_ledger(folder: Path, partition_id: int, ledger_id: int) -> Ledger:
    """Open an existing ledger, with as many entries as its index header counts.

    A damaged header is rebuilt.  After a power cut the files may be shorter than the header says; the journal has the
    missing entries.

    Raises OSError; CorruptFile if the index is shorter than a header, or of a newer version.
    """
    ledger = Ledger(folder, partition_id, ledger_id)
    path = ledger.index_path
    length = path.stat().st_size
    head = ledger_headers.read_index_header(path)
    if head is None:
        raise CorruptFile(path, 0, f"{format.HEADER_SIZE} bytes of header", length)
    version, is_whole = int(head["version"][0]), format.is_whole(head)
    if version > format.VERSION and head["magic"][0] == format.INDEX_MAGIC and is_whole:
        raise CorruptFile(path, 8, f"format version {format.VERSION} or older", version)
    ledger.entries = format.rows_in(length)
    if not ledger_headers.is_header_of(head, ledger_id, partition_id) or (version != 1 and not is_whole):
        take_bounds(ledger, read_rows(path))
        ledger.damage.append(f"{path}: its header is damaged and was made anew, with {ledger.entries} entries")
        ledger_headers.write_into_index(path, 0, ledger.header())
    else:
        ledger.first_message, ledger.created_ms = int(head["first_message"][0]), int(head["created_ms"][0])
        ledger.is_sealed = bool(head["state"][0] == format.SEALED)
        if ledger.is_sealed or version > 1:
            ledger.entries, ledger.size = int(head["entries"][0]), int(head["size"][0])
        else:
            take_end(ledger)
    if not ledger_headers.has_ledger_header(ledger.ledger_path, ledger_id, partition_id):
        ledger.damage.append(f"{ledger.ledger_path}: its header is damaged and was written anew")
        write_ledger_header(ledger)
    ledger.unchecked = ledger.entries
    return ledger


def check_lengths(ledger: Ledger) -> None:
    """Raise CorruptFile if the ledger's files are too short for its entries."""
    if not ledger.entries:
        return
    for path, needed in ((ledger.ledger_path, ledger.size), (ledger.index_path, ledger.index_size)):
        if (size := path.stat().st_size) < needed:
            raise CorruptFile(path, size, f"{needed} bytes", "the end of the file")


def read_rows(index_path: Path) -> Rows:
    """Read all INDEX_ROWs (n,) for which an index file has room, unchecked.  Raises OSError."""
    raw = index_path.read_bytes()
    return np.frombuffer(raw, format.INDEX_ROW, format.rows_in(len(raw)), min(len(raw), format.HEADER_SIZE))


def give_back_rows(ledger: Ledger, holes: list[tuple[int, int]]) -> None:
    """Free the blocks of the index in byte ranges (begin, end), ascending, which then read as zeros.

    The file is replaced, so mappings of the old file keep all rows.  Raises OSError.
    """
    fresh, size, at = ledger.index_path.with_suffix(".new"), ledger.index_size, 0
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(ledger.index_path, "rb") as old, open(fd, "wb") as new:
            for begin, end in [*holes, (size, size)]:
                old.seek(at)
                new.seek(at)
                new.write(old.read(begin - at))
                at = end
            new.flush()
            os.fsync(fd)
        fresh.replace(ledger.index_path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    ledger.has_holes = True
    ledger.close()
