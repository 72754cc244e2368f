"""How often each entry was given back by a consumer of one subscription: what MESSAGE.redelivery_count says.

A number of two bytes per entry, in a mapped file per ledger that is made when the first entry of it is given back; without
files for a subscription that is not durable.  A kill loses nothing of it; it is not part of what the journal keeps, so
a power cut may cost what came after the last checkpoint.
"""
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.errors import StorageFull
from geminga.storage.ledger import Ledger, allocate, map_file
from geminga.storage.pending import Entries

_MAX = 0xFFFF
_PAGE = 4096


class Redeliveries:
    def __init__(self, folder: Path, subscription_id: int, *, is_durable: bool):
        self._folder, self._subscription_id, self._is_durable = folder, subscription_id, is_durable
        self._counts: dict[int, NDArray[np.uint16]] = {}      # ledger id -> per entry, as far as any was given back

    def load(self, ledger_id: int) -> None:
        """Map what there is on disk."""
        path = format.redeliveries_path(self._folder, ledger_id, self._subscription_id)
        if path.stat().st_size:      # else it was being made
            self._counts[ledger_id] = _mapped(path)

    def add(self, ledger: Ledger, entries: NDArray[np.int64]) -> None:
        """These (n,), each once, were given back.  Without room on the disk that is not counted."""
        counts = self._counts.get(ledger.ledger_id)
        if counts is None or len(counts) <= entries[-1]:
            try:
                counts = self._counts[ledger.ledger_id] = self._grown(ledger, counts)
            except StorageFull:
                return
        counts[entries] += counts[entries] < _MAX

    def of(self, ledger_id: int, entries: Entries) -> NDArray[np.uint16] | None:
        """The count of each (n,); None when all are 0."""
        counts = self._counts.get(ledger_id)
        if counts is None or len(counts) <= entries[0]:
            return None
        known = np.asarray(entries)[:np.searchsorted(np.asarray(entries), len(counts))]
        found = np.zeros(len(entries), np.uint16)
        found[:len(known)] = counts[known]
        return found if found.any() else None

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted, and its files with it."""
        self._counts.pop(ledger_id, None)

    def clear(self) -> None:
        for ledger_id in self._counts:
            format.redeliveries_path(self._folder, ledger_id, self._subscription_id).unlink(missing_ok=True)
        self._counts.clear()

    def files(self) -> list[Path]:
        return [format.redeliveries_path(self._folder, ledger_id, self._subscription_id) for ledger_id in self._counts if self._is_durable]

    def _grown(self, ledger: Ledger, counts: NDArray[np.uint16] | None) -> NDArray[np.uint16]:
        size = -(-2 * 2 * ledger.entries // _PAGE) * _PAGE
        if self._is_durable:
            path = format.redeliveries_path(self._folder, ledger.ledger_id, self._subscription_id)
            allocate(path, size)
            return _mapped(path)
        grown = np.zeros(size // 2, np.uint16)
        if counts is not None:
            grown[:len(counts)] = counts
        return grown


def _mapped(path: Path) -> NDArray[np.uint16]:
    return np.frombuffer(map_file(path, writable=True), np.uint16)
