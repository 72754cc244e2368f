"""Segments that were compacted before a segment that has yet to follow: the file `overtaken` in the latter's folder.

    overtaken    CRC32-C of the JSON in hexadecimal, a space, JSON: {partition id: [ledger id, entry id]}

By event time a tombstone of a segment may delete a message of a segment behind it.  The former is compacted first, and
its view has no tombstones.  If the night is killed, or has no time left, before the latter is compacted, the next one
finds here how far the former was compacted before, and reads it from there on.
"""
import json
from pathlib import Path

from crc32c import crc32c

from geminga.storage.disk import regular_files
from geminga.storage.disk.files import write_anew
from geminga.storage.ledgers.position import Position

NAME = "overtaken"
_SIZE_MAX = 1 << 20      # bytes; a segment has less than 100 for each segment before it


def read(folder: Path) -> dict[int, Position]:
    """Return {segment before: position up to which it was compacted}; a damaged file counts as none.  Raises OSError.
    """
    try:
        checksum, _, text = regular_files.read(folder / NAME, _SIZE_MAX).partition(b" ")
    except FileNotFoundError:
        return {}
    if checksum != b"%08x" % crc32c(text):
        return {}
    return {int(number): (ledger_id, entry_id) for number, (ledger_id, entry_id) in json.loads(text).items()}


def note(folder: Path, partition_id: int, behind: Position) -> None:
    """Note, synced, that a segment is compacted from that position on before the one of this folder.  Raises OSError.
    """
    noted = read(folder)
    text = json.dumps(noted | {partition_id: min(behind, noted.get(partition_id, behind))}).encode()
    write_anew(folder / NAME, b"%08x %s" % (crc32c(text), text))


def clear(folder: Path) -> None:
    """Note that the segment of this folder has followed.  Raises OSError."""
    (folder / NAME).unlink(missing_ok=True)
