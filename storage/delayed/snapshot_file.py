"""The snapshot file of a delayed index: which window files count, which entries wait, up to which position it is
complete.
"""
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.delayed.window_files import Window, WindowFile
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.position import Position


@dataclass(frozen=True, slots=True)
class Saved:
    """The saved part of a delayed index."""

    files: dict[Window, WindowFile]
    bitmaps: dict[int, NDArray[np.uint8]]
    known: Position        # the first position not indexed
    behind: Position       # entries from `known` up to here (exclusive) wait, and their times ascend
    last_ms: int           # the delivery time of the last of these entries


def encode(partition_id: int, saved: Saved) -> bytes:
    """Return the bytes of the file `schedule`."""
    files = np.array([(*window, file.size, file.rows) for window, file in saved.files.items()], format.WINDOW_FILE_ROW)
    rows, blobs = [], []
    for ledger_id, bits in saved.bitmaps.items():
        if len(used := np.flatnonzero(bits)):
            blobs.append(bits[used[0]:used[-1] + 1].tobytes())
            rows.append((ledger_id, int(used[0]), len(blobs[-1])))
    body = b"".join([files.tobytes(), np.array(rows, format.WAITING_ROW).tobytes(), *blobs])
    fields = {"magic": format.SCHEDULE_MAGIC, "partition_id": partition_id, "files": len(files), "bitmaps": len(rows),
              "ledger_id": saved.known[0], "entry_id": saved.known[1],
              "sorted_ledger_id": saved.behind[0], "sorted_entry_id": saved.behind[1], "sorted_ms": saved.last_ms}
    checksum = crc32c(body, crc32c(format.header(format.SCHEDULE_HEADER, **fields)))
    return format.header(format.SCHEDULE_HEADER, **fields, checksum=checksum) + body


def read(path: Path) -> Saved:
    """Read the file `schedule`.  Raises FileNotFoundError, CorruptFile."""
    raw, size = path.read_bytes(), format.SCHEDULE_HEADER.itemsize
    if len(raw) < size:
        raise CorruptFile(path, 0, "a schedule", f"{len(raw)} bytes")
    bare = np.frombuffer(raw, format.SCHEDULE_HEADER, 1).copy()
    head = bare[0].copy()
    bare["checksum"] = 0
    checksum = crc32c(memoryview(raw)[size:], crc32c(bare.tobytes()))
    if checksum != head["checksum"] or head["magic"] != format.SCHEDULE_MAGIC:
        raise CorruptFile(path, 0, "a schedule that is whole", "another checksum")
    if head["version"] > format.VERSION:
        raise CorruptFile(path, 8, f"format version {format.VERSION} or older", int(head["version"]))
    files = np.frombuffer(raw, format.WINDOW_FILE_ROW, int(head["files"]), size)
    rows = np.frombuffer(raw, format.WAITING_ROW, int(head["bitmaps"]), size + files.nbytes)
    offset, bitmaps = size + files.nbytes + rows.nbytes, {}
    for ledger_id, first, count in rows.tolist():
        bitmaps[ledger_id] = np.concatenate((np.zeros(first, np.uint8), np.frombuffer(raw, np.uint8, count, offset)))
        offset += count
    return Saved(
        files={(start, width): WindowFile(in_file, count) for start, width, in_file, count in files.tolist()},
        bitmaps=bitmaps,
        known=(int(head["ledger_id"]), int(head["entry_id"])),
        behind=(int(head["sorted_ledger_id"]), int(head["sorted_entry_id"])),
        last_ms=int(head["sorted_ms"]))
