"""Small ledgers and journal records for tests of files, and functions that damage files or copy a folder as a crash
leaves it.
"""
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from geminga.proto.frames import CHECKSUM_END
from geminga.storage import format
from geminga.storage.disk.files import map_file
from geminga.storage.ledgers import journal_ops, ledger_files
from geminga.storage.ledgers.journal import Record
from geminga.storage.ledgers.journal_reader import StoredRecord
from geminga.storage.ledgers.ledger import Ledger

PARTITION, SUBSCRIPTION = 7, 3
CREATED_MS = 1_700_000_000_000


def body(number: int) -> bytes:
    """Return the content of the n-th test entry. Contents differ from each other, mostly in length too."""
    return b"entry %d " % number + b"." * (number % 5)


def rows_of(target: Ledger, bodies: list[bytes]) -> np.ndarray:
    """Return index rows for entries with these bodies that follow the ledger's last entry."""
    rows = np.zeros(len(bodies), format.INDEX_ROW)
    rows["size"] = [len(data) for data in bodies]
    rows["offset"] = target.size + np.cumsum(rows["size"]) - rows["size"]
    rows["messages"] = 1
    rows["message_index"] = target.next_message + np.arange(len(bodies))
    rows["broker_time"] = CREATED_MS
    entry_ids = np.arange(target.entries, target.entries + len(bodies), dtype=np.uint64)
    rows["checksum"] = format.row_checksums(rows, target.ledger_id, entry_ids)
    return rows


def append(target: Ledger, bodies: list[bytes]) -> None:
    """Append entries to the ledger as an owner's pass does once their record is in the journal."""
    size = sum(map(len, bodies))
    target.reserve(len(bodies), size)
    rows = rows_of(target, bodies)
    target.write(bodies, target.size)
    target.append(rows, target.size + size)


def make_ledger(
    folder: Path, ledger_id: int = 1, entries: int = 0, *, first_message: int = 0, is_sealed: bool = False
) -> Ledger:
    made = ledger_files.create(folder, PARTITION, ledger_id, first_message=first_message, created_ms=CREATED_MS)
    if entries:
        append(made, [body(number) for number in range(entries)])
    if is_sealed:
        made.seal()
    return made


def read_mapped(folder: Path, ledger_id: int, first: int, count: int) -> list[bytes]:
    """Return `count` entries from number `first` on as a worker reads them, through read-only mappings of its own."""
    if not count:
        return []
    rows = np.frombuffer(map_file(format.index_path(folder, ledger_id), writable=False), format.INDEX_ROW, count,
                         format.HEADER_SIZE + first * format.INDEX_ROW.itemsize)
    data = memoryview(map_file(format.ledger_path(folder, ledger_id), writable=False))
    return [
        bytes(data[start : start + size])
        for start, size in zip(rows["offset"].tolist(), rows["size"].tolist(), strict=True)
    ]


def record(number: int, *, data: bytes = b"", ops: int = 1) -> Record:
    """Return a journal record whose ops carry `number`. It has one index row and one group if `data` is given,
    otherwise none.
    """
    count = 1 if data else 0
    groups = np.array([(PARTITION, 1, number, 1)] * count, format.GROUP_ROW)
    rows = np.zeros(count, format.INDEX_ROW)
    rows["size"], rows["crc32c"] = len(data), crc32c(data[CHECKSUM_END:])
    op_rows = np.frombuffer(journal_ops.mark_delete(PARTITION, 1, (1, number)) * ops, format.OP_ROW)
    return Record(groups, rows, np.zeros(count, format.SOURCE), op_rows, [data] if data else [], len(data))


def number_of(found: StoredRecord) -> int:
    return int(found.ops.view(format.MARK_DELETE_OP)["entry_id"][0])


def copy_of(folder: Path, target: Path) -> Path:
    """Copy the folder to `target` as a SIGKILL leaves it: all written bytes are in the files, synced or not. Return
    `target`.
    """
    for _ in range(100):
        try:
            return Path(shutil.copytree(folder, target))
        # a checkpoint has renamed a file meanwhile: copy again
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(target, ignore_errors=True)
    raise AssertionError(f"{folder} does not stand still")


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of the file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def make_newer(path: Path, dtype: np.dtype) -> None:
    """Turn the file into one of the next format version with valid checksums. `dtype` is its header's type; a state
    file has two copies with a header each.
    """
    raw = bytearray(path.read_bytes())
    for start in (0, len(raw) // 2) if dtype == format.STATE_HEADER else (0,):
        copy = raw[start:len(raw) // 2 + start] if dtype == format.STATE_HEADER else raw[:format.HEADER_SIZE]
        head = np.frombuffer(copy[:format.HEADER_SIZE], dtype, 1).copy()
        head["version"], head["checksum"] = format.VERSION + 1, 0
        head["checksum"] = crc32c(copy[format.HEADER_SIZE:], crc32c(head.tobytes()))
        raw[start:start + format.HEADER_SIZE] = head.tobytes()
    path.write_bytes(raw)


def cut(path: Path, size: int) -> None:
    """Shorten the file to `size` bytes."""
    with open(path, "r+b") as file:
        file.truncate(size)


@dataclass
class Length:
    """A stand-in for a ledger, with the few attributes that a cursor reads."""

    ledger_id: int
    entries: int = 0
    is_sealed: bool = False

    @property
    def last_entry(self):
        return self.entries - 1


def ids(*numbers):
    return np.array(numbers, np.int64)
