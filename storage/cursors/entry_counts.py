"""Counts of events for each entry of a subscription: two bytes for each entry, up to the last one that has a count.

    redeliveries    a consumer gave the entry back: CommandMessage.redelivery_count
    deaths          a consumer's connection ended while the consumer had the entry
"""
import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import Entries

_MAX = 0xFFFF


class EntryCounts:
    """Counts of one kind of event by entry, for all ledgers of a partition.  A count stops at 65,535."""

    def __init__(self) -> None:
        self.arrays: dict[int, NDArray[np.uint16]] = {}      # ledger id -> a count for each entry

    def __repr__(self) -> str:
        return f"<EntryCounts {({ledger_id: np.count_nonzero(counts) for ledger_id, counts in self.arrays.items()})}>"

    def add(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Count one more event for some entries (n,) of a ledger, ascending; return their new counts (n,)."""
        counts = self._grown(ledger_id, int(entries[-1]) + 1)
        counts[entries] += counts[entries] < _MAX
        return counts[entries]

    def put(self, ledger_id: int, first: int, end: int, count: int) -> None:
        """Set the count of a ledger's entries first .. end - 1."""
        self._grown(ledger_id, end)[first:end] = count

    def of(self, ledger_id: int, entries: Entries) -> NDArray[np.uint16] | None:
        """Return the counts (n,) of some entries of a ledger; None when all are 0."""
        counts = self.arrays.get(ledger_id)
        if counts is None or len(counts) <= entries[0]:
            return None
        known = np.asarray(entries)[:np.searchsorted(np.asarray(entries), len(counts))]
        answer = np.zeros(len(entries), np.uint16)
        answer[:len(known)] = counts[known]
        return answer if answer.any() else None

    def at_least(self, count: int) -> dict[int, NDArray[np.int64]]:
        """Return {ledger id: entries (n,)} for entries whose count is `count` or higher."""
        reached = {ledger_id: np.flatnonzero(counts >= count) for ledger_id, counts in self.arrays.items()}
        return {ledger_id: entries for ledger_id, entries in reached.items() if len(entries)}

    def forget(self, ledger_id: int) -> None:
        """Drop the counts of a deleted ledger's entries."""
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
