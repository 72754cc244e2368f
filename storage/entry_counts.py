"""How often something has happened to each entry of one subscription.

    redeliveries    a consumer gave it back: what MESSAGE.redelivery_count says
    deaths          a consumer's connection ended while it had the entry

A number of two bytes per entry, in a mapped file per ledger that is made when the first entry of it is counted; without
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


REDELIVERIES, DEATHS = KINDS = "redeliveries", "deaths"


class EntryCounts:
    def __init__(self, kind: str, folder: Path, subscription_id: int, *, is_durable: bool):
        self._kind, self._folder, self._subscription_id, self._is_durable = kind, folder, subscription_id, is_durable
        self._counts: dict[int, NDArray[np.uint16]] = {}      # ledger id -> per entry, as far as any was counted

    def _path(self, ledger_id: int) -> Path:
        return format.counts_path(self._folder, ledger_id, self._subscription_id, self._kind)

    def load(self, ledger_id: int) -> None:
        """Map what there is on disk."""
        path = self._path(ledger_id)
        if path.stat().st_size:      # else it was being made
            self._counts[ledger_id] = _mapped(path)

    def add(self, ledger: Ledger, entries: NDArray[np.int64]) -> None:
        """It has happened to these (n,), each once.  Without room on the disk that is not counted."""
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

    def at_least(self, count: int) -> dict[int, NDArray[np.int64]]:
        """{ledger id: entries} that have so many."""
        found = {ledger_id: np.flatnonzero(counts >= count) for ledger_id, counts in self._counts.items()}
        return {ledger_id: entries for ledger_id, entries in found.items() if len(entries)}

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted, and its files with it."""
        self._counts.pop(ledger_id, None)

    def clear(self) -> None:
        for ledger_id in self._counts:
            if self._is_durable:
                self._path(ledger_id).unlink(missing_ok=True)
        self._counts.clear()

    def files(self) -> list[Path]:
        return [self._path(ledger_id) for ledger_id in self._counts if self._is_durable]

    def _grown(self, ledger: Ledger, counts: NDArray[np.uint16] | None) -> NDArray[np.uint16]:
        size = -(-2 * 2 * ledger.entries // _PAGE) * _PAGE
        if self._is_durable:
            path = self._path(ledger.ledger_id)
            allocate(path, size)
            return _mapped(path)
        grown = np.zeros(size // 2, np.uint16)
        if counts is not None:
            grown[:len(counts)] = counts
        return grown


def _mapped(path: Path) -> NDArray[np.uint16]:
    return np.frombuffer(map_file(path, writable=True), np.uint16)
