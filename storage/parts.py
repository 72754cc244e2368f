"""Batches of which only some messages are acknowledged: their bits at rest, of all subscriptions of a partition in one file.

Between two checkpoints the journal has them; at a checkpoint the file is written anew and renamed into place.
"""
import os
from pathlib import Path

import numpy as np
from crc32c import crc32c

from geminga.storage import format
from geminga.storage.errors import CorruptFile

Parts = dict[int, dict[int, int]]      # ledger id -> {entry id: a bit per message, 1 = not acknowledged}
WORD = (1 << 64) - 1


def words(bits: int, messages: int) -> list[int]:
    """The bits as words of 64, the lowest first, for a batch of so many messages."""
    return [bits >> at & WORD for at in range(0, messages, 64)]


def write(folder: Path, parts: dict[int, Parts]) -> None:
    """{subscription id: parts} is on disk; no file is made for nothing."""
    rows = [(subscription_id, ledger_id, entry_id, number, word) for subscription_id, found in parts.items()
            for ledger_id, entries in found.items() for entry_id, bits in entries.items()
            for number, word in enumerate(words(bits, bits.bit_length())) if word]
    raw = np.array(rows, format.PART_ROW).tobytes()
    path = format.parts_path(folder)
    if not rows and not path.exists():
        return
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.write(format.header(format.PARTS_HEADER, magic=format.PARTS_MAGIC, rows=len(rows), checksum=crc32c(raw)) + raw)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read(folder: Path) -> dict[int, Parts]:
    """{subscription id: parts}; empty when there is no file.  Raises CorruptFile."""
    path = format.parts_path(folder)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    if len(raw) < format.HEADER_SIZE:
        raise CorruptFile(path, 0, f"{format.HEADER_SIZE} bytes of header", len(raw))
    head, rows = np.frombuffer(raw[:format.HEADER_SIZE], format.PARTS_HEADER)[0], raw[format.HEADER_SIZE:]
    if head["magic"] != format.PARTS_MAGIC or head["version"] > format.VERSION:
        raise CorruptFile(path, 0, f"parts of batches, format version {format.VERSION} or older", (head["magic"], int(head["version"])))
    if head["checksum"] != crc32c(rows) or head["rows"] * format.PART_ROW.itemsize != len(rows):
        raise CorruptFile(path, format.HEADER_SIZE, f"{head['rows']} rows with their checksum", len(rows))
    parts: dict[int, Parts] = {}
    for subscription_id, ledger_id, entry_id, number, word in np.frombuffer(rows, format.PART_ROW).tolist():
        entries = parts.setdefault(subscription_id, {}).setdefault(ledger_id, {})
        entries[entry_id] = entries.get(entry_id, 0) | word << 64 * number
    return parts
