"""How far nights have exported a partition: the file `exported` in the partition's folder.

    exported    CRC32-C of the JSON in hexadecimal, a space, JSON

The partition's owner writes the file when a night tells it.  While no broker serves the data folder, the night does,
and holds the folder's lock.  A backup has no such file: the tables may be ahead of what a backup holds.
"""
import json
import time
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from geminga.storage.disk import regular_files
from geminga.storage.disk.files import write_anew
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.position import Position

NAME = "exported"
_SIZE_MAX = 4_096      # bytes; a file has some hundred


@dataclass(frozen=True, slots=True)
class Exported:
    """How far a partition is exported."""

    position: Position      # of the last entry that is exported
    time_ms: int            # when the export was told


def read(folder: Path) -> Exported | None:
    """Return how far the partition with this folder is exported; None: nothing is.  Raises CorruptFile, OSError."""
    path = folder / NAME
    try:
        data = regular_files.read(path, _SIZE_MAX)
    except FileNotFoundError:
        return None
    checksum, _, text = data.partition(b" ")
    if checksum != b"%08x" % crc32c(text):
        raise CorruptFile(path, 0, f"checksum {crc32c(text):08x}", checksum[:16])
    try:
        said = json.loads(text)
        partition_id, (ledger_id, entry_id), time_ms = map(said.get, ("partition_id", "position", "time_ms"))
        found = Exported((int(ledger_id), int(entry_id)), int(time_ms))
    except (ValueError, TypeError, AttributeError):
        raise CorruptFile(path, 0, "a position", text[:40]) from None
    if partition_id != int(folder.name):
        raise CorruptFile(path, 0, f"partition {folder.name}", partition_id)
    return found


def write(folder: Path, exported: Exported) -> None:
    """Replace the file of the partition with this folder, synced.  Raises OSError, and leaves the old file.

    The folder is not synced.  If a power cut brings the old file back, entries are kept until the next export.
    """
    text = json.dumps({"partition_id": int(folder.name), "position": exported.position,
                       "time_ms": exported.time_ms}).encode()
    write_anew(folder / NAME, b"%08x %s" % (crc32c(text), text))


def advance(folder: Path, position: Position) -> None:
    """Write that a partition is exported up to a position, unless its file has that position or a later one.

    Only for a folder that no broker serves.  Raises OSError.
    """
    try:
        before = read(folder)
    except CorruptFile:      # counts as if nothing were exported
        before = None
    if before is None or position > before.position:
        write(folder, Exported(position, time.time_ns() // 1_000_000))
