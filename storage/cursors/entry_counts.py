"""How often something has happened to each entry of one subscription.

    redeliveries    a consumer gave it back: what MESSAGE.redelivery_count says
    deaths          a consumer's connection ended while it had the entry

A number of two bytes per entry, as far as any was counted.
"""
import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import Entries

_MAX = 0xFFFF


class EntryCounts:
    def __init__(self) -> None:
        self.arrays: dict[int, NDArray[np.uint16]] = {}      # ledger id -> per entry

    def add(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.uint16]:
        """It has happened to these (n,) once more, ascending; returns their counts."""
        counts = self._grown(ledger_id, int(entries[-1]) + 1)
        counts[entries] += counts[entries] < _MAX
        return counts[entries]

    def put(self, ledger_id: int, first: int, end: int, count: int) -> None:
        """It has happened so often to each of the entries first .. end - 1."""
        self._grown(ledger_id, end)[first:end] = count

    def of(self, ledger_id: int, entries: Entries) -> NDArray[np.uint16] | None:
        """The count of each (n,); None when all are 0."""
        counts = self.arrays.get(ledger_id)
        if counts is None or len(counts) <= entries[0]:
            return None
        known = np.asarray(entries)[:np.searchsorted(np.asarray(entries), len(counts))]
        found = np.zeros(len(entries), np.uint16)
        found[:len(known)] = counts[known]
        return found if found.any() else None

    def at_least(self, count: int) -> dict[int, NDArray[np.int64]]:
        """{ledger id: entries} that have so many."""
        found = {ledger_id: np.flatnonzero(counts >= count) for ledger_id, counts in self.arrays.items()}
        return {ledger_id: entries for ledger_id, entries in found.items() if len(entries)}

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        self.arrays.pop(ledger_id, None)

    def clear(self) -> None:
        self.arrays.clear()

    def _grown(self, ledger_id: int, size: int) -> NDArray[np.uint16]:
        counts = self.arrays.get(ledger_id)
        if counts is None or len(counts) < size:
            grown = np.zeros(max(64, 2 * size), np.uint16)
            if counts is not None:
                grown[:len(counts)] = counts
            counts = self.arrays[ledger_id] = grown
        return counts
