"""Write the files of one ledger of a compacted view: ledger and index, hashes of keys, mask."""
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto import checksums
from geminga.proto.rows import Rows
from geminga.proto.sends import IS_CHUNK, KEPT_CHECKSUM
from geminga.storage import format
from geminga.storage.disk.files import write_anew
from geminga.storage.disk.syscalls import write_back
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers import ledger_headers, view_files
from geminga.storage.ledgers.compacted_ledgers import Part

_WRITE_MIN = 4 << 20         # bytes that are buffered for one write


class PartWriter:
    """Writer of the two files of one ledger in a compacted view.  Entries are added ascending, in several arrays.

    Every entry's checksum is compared with its row before the entry is written.

    Raises OSError; CorruptFile for an entry whose disk space was freed meanwhile.
    """

    def __init__(self, folder: Path, partition_id: int, ledger_id: int):
        self._partition_id, self._ledger_id = partition_id, ledger_id
        self._kept = self._messages = 0
        self._size = format.HEADER_SIZE
        self._pieces: list[bytes | memoryview] = [ledger_headers.ledger_header(ledger_id, partition_id)]
        self._gathered = self._written = 0               # bytes in memory, and in the file
        self._flushed = 0                                # of these, bytes that have left the page cache for the disk
        self._rows: list[Rows] = []
        self._fds: list[int] = []                        # of ledger and index
        for path in (format.ledger_path(folder, ledger_id), format.index_path(folder, ledger_id)):
            self._fds.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        self._path = format.ledger_path(folder, ledger_id)
        _write_all(self._fds[1], bytes(format.HEADER_SIZE))

    def __enter__(self) -> "PartWriter":
        return self

    def __repr__(self) -> str:
        return f"<PartWriter {self._path} kept={self._kept} size={self._size} written={self._written}>"

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)

    def add(self, rows: Rows, behind: NDArray[np.int64], pieces: list[bytes | memoryview], messages: int) -> None:
        """Add entries with their COMPACTED_ROWs (n,), in which this method sets offsets and checksums.

        behind: number of bytes (n,) that follow each entry.  pieces: all bytes, in order.  messages: number of messages
        kept.
        """
        if not len(rows):
            return
        taken = rows["size"].astype(np.int64) + behind
        ends = self._size + np.cumsum(taken)
        rows["offset"], rows["checksum"] = ends - taken, 0
        places = np.arange(self._kept, self._kept + len(rows), dtype=np.uint64)
        rows["checksum"] = format.row_checksums(rows, self._ledger_id, places)
        self._rows.append(rows)
        self._pieces += pieces
        self._gathered += int(taken.sum()) + rows.nbytes
        self._kept, self._messages = self._kept + len(rows), self._messages + messages
        self._size = int(ends[-1])
        if self._gathered >= _WRITE_MIN:
            self._write()

    def _write(self) -> None:
        buffer = bytearray().join((*self._pieces, bytes(checksums.BEHIND)))
        for rows in self._rows:
            checked = rows[rows["flags"] & KEPT_CHECKSUM != 0]
            begins = checked["offset"].astype(np.int64) - self._written
            wrong = checksums.wrong_entries(np.frombuffer(buffer, np.uint8), begins, begins + checked["size"],
                                            checked["crc32c"])
            if len(wrong):
                expected = f"an entry with checksum {checked['crc32c'][wrong[0]]:08x}"
                raise CorruptFile(self._path, int(checked["offset"][wrong[0]]), expected, "another")
            _write_all(self._fds[1], rows)
        data = memoryview(buffer)[:-checksums.BEHIND]
        _write_all(self._fds[0], data)
        # Many bytes that reach the disk at once would delay the journal's syncs: at most two writes are under way.
        write_back(self._fds[0], self._flushed, self._written, self._path, waits=True)
        write_back(self._fds[0], self._written, self._written + len(data), self._path, waits=False)
        self._flushed, self._written = self._written, self._written + len(data)
        self._pieces, self._rows, self._gathered = [], [], 0

    def finish(self, entries: int) -> Part:
        """Write buffered entries and the header, synced, and return the ledger's Part of the manifest.

        entries: number of entries of the uncompacted ledger up to the horizon.
        """
        self._write()
        os.pwrite(self._fds[1], ledger_headers.index_header(
            self._ledger_id, self._partition_id, first_message=0, created_ms=0, entries=self._kept, size=self._size,
            is_sealed=True), 0)
        for fd in self._fds:
            os.fsync(fd)
        return Part(self._ledger_id, entries, self._kept, self._messages, self._size - format.HEADER_SIZE)


def _write_all(fd: int, data: Rows | bytes | memoryview) -> None:
    rest = memoryview(data).cast("B")
    while len(rest):
        rest = rest[os.write(fd, rest):]


class KeysWriter:
    """Gatherer of the hashes of one ledger's keys, which are written together."""

    def __init__(self, ledger_id: int):
        self._ledger_id, self._chunks = ledger_id, 0
        self._slots: list[Rows] = []
        self._counts: list[NDArray[np.int64]] = []
        self._indexes: list[NDArray[np.int64]] = []

    def __repr__(self) -> str:
        return f"<KeysWriter of ledger {self._ledger_id}, {sum(map(len, self._slots))} slots>"

    def add(self, rows: Rows, slots: Rows, counts: NDArray[np.int64], indexes: NDArray[np.int64]) -> None:
        """Add the SLOTs (n,) of entries with these COMPACTED_ROWs (m,), of each as many as `counts` (m,) says.

        indexes: number of each message in its entry (n,).
        """
        self._chunks += int(np.count_nonzero(rows["flags"] & IS_CHUNK))
        self._slots.append(slots)
        self._counts.append(counts)
        self._indexes.append(indexes)

    def finish(self, folder: Path, seed: bytes, *, has_times: bool, keeps_keyless: bool) -> None:
        """Write the file, synced.  Raises OSError."""
        write_anew(view_files.keys_path(folder, self._ledger_id), view_files.encode_keys(
            self._ledger_id, seed, np.concatenate(self._slots), np.concatenate(self._counts),
            np.concatenate(self._indexes), chunks=self._chunks, has_times=has_times, keeps_keyless=keeps_keyless))
