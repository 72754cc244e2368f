"""Cursors as format version 1 stored them: several files in a partition's folder, which `state` replaced.

    cursors                              CURSORS_HEADER, then a CURSOR_ROW per subscription
    parts                                PARTS_HEADER, then format.PART_ROWs
    <ledger>.<subscription>.acks         a bit per entry of the ledger, 1 = acknowledged
    <ledger>.<subscription>.redeliveries, .deaths      u2 per entry
"""
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c

from geminga.storage import format
from geminga.storage.cursors.cursor import Cursor, load_parts
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.position import NOWHERE, Position

if TYPE_CHECKING:
    from numpy.typing import NDArray

CURSORS_HEADER = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("unused", "<u4"), ("partition_id", "<u8"), ("reserved", "V40")]
)
CURSOR_ROW = np.dtype([
    ("subscription_id", "<u8"),      # 0: free
    ("ledger_id", "<i8"), ("entry_id", "<i8"), ("reserved", "V32"), ("unused", "<u4"),
    ("checksum", "<u4"),             # the high word of the sum of its first seven words, each times an odd number
])
PARTS_HEADER = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("checksum", "<u4"), ("rows", "<u8"), ("reserved", "V40")]
)
_ODD = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
)


def is_there(folder: Path) -> bool:
    return (folder / "cursors").exists()


def read_cursors(folder: Path, partition_id: int) -> dict[int, Cursor]:
    """Return {subscription id: Cursor} from the files of format version 1.

    Torn rows are left out: the journal has them.  Raises CorruptFile.
    """
    raw = _read(folder / "cursors")
    if not any(raw[:format.HEADER_SIZE]):
        return {}
    head = np.frombuffer(raw, CURSORS_HEADER, 1)[0]
    if head["magic"] != b"GEMCURSR" or head["version"] != 1:
        raise CorruptFile(folder / "cursors", 0, "cursors, format version 1", (head["magic"], int(head["version"])))
    rows = np.frombuffer(raw, CURSOR_ROW, (len(raw) - format.HEADER_SIZE) // CURSOR_ROW.itemsize, format.HEADER_SIZE)
    cursors = {}
    for row in rows[rows["subscription_id"] != 0]:
        words = np.frombuffer(row.tobytes(), np.uint64).tolist()
        if sum(word * odd for word, odd in zip(words, _ODD, strict=False)) >> 32 & 0xFFFFFFFF == row["checksum"]:
            subscription_id = int(row["subscription_id"])
            cursors[subscription_id] = Cursor(
                subscription_id, (int(row["ledger_id"]), int(row["entry_id"])), is_durable=True
            )
    _read_arrays(folder, cursors)
    _read_parts(folder, cursors)
    return cursors


def reset(cursor: Cursor, position: Position) -> None:
    """Apply a reset of the cursor from a journal of format version 1.

    Version 1 removed the files of counts at the reset. So counts that were read are later than the reset, and stay.
    """
    cursor.mark_delete = position
    cursor.bitmaps.clear()
    cursor.parts.clear()


def _read_arrays(folder: Path, cursors: dict[int, Cursor]) -> None:
    for path in folder.glob("*.*.*"):
        ledger_id, subscription_id, kind = path.name.split(".")
        cursor = cursors.setdefault(int(subscription_id), Cursor(int(subscription_id), NOWHERE, is_durable=True))
        if not path.stat().st_size or int(ledger_id) < cursor.mark_delete[0]:
            continue
        arrays: dict[str, dict[int, NDArray[Any]]] = {
            "acks": cursor.bitmaps, "redeliveries": cursor.redeliveries.arrays, "deaths": cursor.deaths.arrays}
        arrays[kind][int(ledger_id)] = np.fromfile(path, np.uint8 if kind == "acks" else np.uint16)


def _read_parts(folder: Path, cursors: dict[int, Cursor]) -> None:
    path = folder / "parts"
    raw = _read(path)
    if not raw:
        return
    head, rows = np.frombuffer(raw, PARTS_HEADER, 1)[0], raw[format.HEADER_SIZE:]
    if head["magic"] != b"GEMPARTS" or head["version"] != 1 or head["checksum"] != crc32c(rows):
        raise CorruptFile(
            path, 0, "parts of batches with their checksum, format version 1", (head["magic"], int(head["version"]))
        )
    load_parts(cursors, np.frombuffer(rows, format.PART_ROW))


def _read(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return b""
    if 0 < len(raw) < format.HEADER_SIZE:
        raise CorruptFile(path, 0, f"{format.HEADER_SIZE} bytes of header", len(raw))
    return raw


def remove(folder: Path) -> None:
    """Remove the files of format version 1, once the state file that replaces them is written.  Raises OSError."""
    if is_there(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)      # the new file's name is on disk before the old files go
        finally:
            os.close(fd)
        for path in (*folder.glob("*.*.*"), folder / "parts", folder / "cursors"):
            path.unlink(missing_ok=True)
