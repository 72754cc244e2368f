"""Checksums and copies of the files of a backup.

A file is copied only up to the size that its item gives, and begins with the item's header instead of its own bytes.
"""
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from crc32c import crc32c

from geminga.storage.disk import regular_files
from geminga.storage.disk.files import write_all
from geminga.storage.errors import CorruptFile

_CHUNK = 1 << 20


@dataclass(slots=True)
class Item:
    """One file of a backup."""

    path: str                # in the data folder, and in the backup
    size: int                # bytes of the file that belong to the backup, with the header
    crc32c: int = 0          # of the first `size` bytes
    header: str = ""         # hexadecimal; the file's first bytes in the backup
    source: list[int] = field(default_factory=list)      # inode and mtime in ns of the source file


def sum_up(item: Item, chunks: Iterator[tuple[int, bytes]]) -> int:
    checksum = crc32c(bytes.fromhex(item.header))
    for _, data in chunks:
        checksum = crc32c(data, checksum)
    return checksum


def chunks(file: BinaryIO, item: Item) -> Iterator[tuple[int, bytes]]:
    """Iterate over (offset, bytes) of the item's file, from the end of the item's header up to the item's size.

    Raises CorruptFile if the file is too short.
    """
    offset = len(item.header) // 2
    while offset < item.size:
        if not (data := os.pread(file.fileno(), min(_CHUNK, item.size - offset), offset)):
            raise CorruptFile(file.name, offset, f"{item.size} bytes", "the end of the file")
        yield offset, data
        offset += len(data)


def copy_item(folder: Path, source: Path, target: Path, item: Item) -> int:
    """Copy the file of an item to `target`, synced, and return the CRC32-C of the copy.

    The copy has holes where the source has only zeros. folder: the folder that `source` must lie in.

    Raises OSError, and CorruptFile if the source is too short.
    """
    with regular_files.opened(source, folder) as file, open(target, "xb", buffering=0) as copy:
        def copied() -> Iterator[tuple[int, bytes]]:
            for offset, data in chunks(file, item):
                if data.count(0) < len(data):
                    write_all(copy.fileno(), data, offset)
                yield offset, data
        write_all(copy.fileno(), bytes.fromhex(item.header), 0)
        checksum = sum_up(item, copied())
        os.ftruncate(copy.fileno(), item.size)
        os.fsync(copy.fileno())
    return checksum
