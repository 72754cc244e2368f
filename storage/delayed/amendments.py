"""Operators' changes of delayed messages: cancelled messages, and messages with another delivery time.

Amendments are few, so all of them are in memory, by ledger. Their file is appended to and synced before an operator is
answered.
"""
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from geminga.proto.rows import struct_of
from geminga.storage import format
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.disk.files import sync

_ROW = struct_of(format.AMENDMENT_ROW)
_NEVER = -1      # NEVER_MS, as a row has it


class Amendments:
    """The amendments of one partition."""

    def __init__(self, path: Path):
        self._path = path
        self.times: dict[int, dict[int, int]] = {}      # ledger id -> entry id -> its delivery time in ms, or NEVER_MS
        self.never = 0                                  # number of cancelled entries

    def __repr__(self) -> str:
        return f"<Amendments n={sum(map(len, self.times.values()))} cancelled={self.never}>"

    def __bool__(self) -> bool:
        return bool(self.times)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over (ledger id, entry id, delivery time in ms or NEVER_MS)."""
        return ((ledger_id, entry_id, at_ms)
                for ledger_id, entries in self.times.items() for entry_id, at_ms in entries.items())

    @property
    def size(self) -> int:
        """Return the bytes of whole rows in the file.  Raises OSError."""
        return self._path.stat().st_size // _ROW.size * _ROW.size if self.times else 0

    def knows(self, ledger_id: int) -> bool:
        """Whether any of the ledger's entries is amended."""
        return ledger_id in self.times

    def entries(self, ledger_id: int) -> NDArray[np.int64]:
        """Return the amended entries of a ledger (n,), in no order."""
        return np.fromiter(self.times.get(ledger_id, ()), np.int64)

    def cancelled(self) -> dict[int, list[int]]:
        """Return the cancelled entries, by ledger."""
        cancelled = {ledger_id: [entry_id for entry_id, at_ms in entries.items() if at_ms == NEVER_MS]
                     for ledger_id, entries in self.times.items()}
        return {ledger_id: entries for ledger_id, entries in cancelled.items() if entries}

    def apply(self, ledger_id: int, ids: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Replace, in `times` (n,), the delivery times of those entries `ids` (n,) that are amended."""
        amended = self.times.get(ledger_id)
        if amended is not None:
            for at in np.flatnonzero(np.isin(ids, self.entries(ledger_id))).tolist():
                times[at] = amended[int(ids[at])]

    def add(self, ledger_id: int, entry_id: int, at_ms: int) -> None:
        """Amend an entry, durably. at_ms: NEVER_MS cancels it.

        Raises OSError, and nothing has changed then.
        """
        row = ledger_id, entry_id, _NEVER if at_ms == NEVER_MS else at_ms
        self._write(_ROW.pack(*row, crc32c(_ROW.pack(*row, 0, 0)), 0))
        self._put(ledger_id, entry_id, at_ms)

    def _put(self, ledger_id: int, entry_id: int, at_ms: int) -> None:
        before = self.times.setdefault(ledger_id, {})
        self.never += (at_ms == NEVER_MS) - (before.get(entry_id) == NEVER_MS)
        before[entry_id] = at_ms

    def _write(self, row: bytes) -> None:
        self._path.parent.mkdir(exist_ok=True)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            whole = size - size % len(row)             # a row that a kill cut short does not count
            if whole != size:
                os.ftruncate(fd, whole)
            try:
                if os.pwrite(fd, row, whole) != len(row):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, whole)
                raise
        finally:
            os.close(fd)
        if not whole:
            for folder in self._path.parents[:2]:
                sync(folder, os.fsync)

    def read(self) -> list[str]:
        """Read the file.  Return a line for each damaged row."""
        raw, damage = self._path.read_bytes() if self._path.exists() else b"", []
        for offset in range(0, len(raw) - _ROW.size + 1, _ROW.size):
            ledger_id, entry_id, after_ms, checksum, _ = _ROW.unpack_from(raw, offset)
            if crc32c(_ROW.pack(ledger_id, entry_id, after_ms, 0, 0)) == checksum:
                self._put(ledger_id, entry_id, NEVER_MS if after_ms == _NEVER else after_ms)
            else:
                damage.append(f"{self._path}: at byte {offset}: what was amended there is damaged, and does not count")
        return damage

    def forget(self, ledger_id: int) -> None:
        """Forget the amendments of a deleted ledger."""
        self.never -= sum(at_ms == NEVER_MS for at_ms in self.times.pop(ledger_id, {}).values())

    def check(self) -> None:
        """Assert that `never` is the number of cancelled entries."""
        assert self.never == sum(map(len, self.cancelled().values())), self
