"""Entries that a Key_Shared subscription needs no more while consumers still work on them.

An administrator skips or clears them, they expire, or a quota evicts them.  They are never delivered again, but the
consumer that has one may be at work on it.  So its key's hash goes on draining, until the consumer acknowledges the
entry, gives it back, or leaves.
"""
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Rows

ENTRIES_MAX = 100_000      # of one subscription; beyond, the hash of the one removed longest ago drains no longer
REMOVED = np.dtype([
    ("entry_id", "<i8"),
    ("slot", "<u2"),       # of the consumer that works on it
    ("hash", "<i8"),       # of its key
])
_NONE = np.zeros(0, np.int64)


class RemovedEntries:
    """Removed entries of one subscription, by ledger; ledgers are in the order in which entries of them were removed.

    Ledgers may be deleted meanwhile.  Methods that forget entries return the hashes (n,) of these, one for each.
    """

    def __init__(self) -> None:
        self._ledgers: dict[int, Rows] = {}      # REMOVED
        self._count = 0

    def __repr__(self) -> str:
        return f"<RemovedEntries {self._count} of ledgers {list(self._ledgers)}>"

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[tuple[int, Rows]]:
        """Yield (ledger id, its rows (n,) REMOVED)."""
        yield from self._ledgers.items()

    def check(self) -> None:
        """Assert that the count is right, and bounded."""
        assert self._count == sum(map(len, self._ledgers.values())) <= ENTRIES_MAX, self
        assert all(map(len, self._ledgers.values())), self

    def add(self, ledger_id: int, entries: NDArray[np.int64], slots: NDArray[np.uint16],
            hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add entries (n,) that were removed just now; forget those removed longest ago if there are too many."""
        rows = np.zeros(len(entries), REMOVED)
        rows["entry_id"], rows["slot"], rows["hash"] = entries, slots, hashes
        known = self._ledgers.get(ledger_id)
        self._ledgers[ledger_id] = rows if known is None else np.concatenate((known, rows))
        self._count += len(rows)
        forgotten = [_NONE]
        while self._count > ENTRIES_MAX:
            oldest, rows = next(iter(self._ledgers.items()))
            forgotten.append(self._forget(oldest, np.arange(len(rows)) < self._count - ENTRIES_MAX))
        return np.concatenate(forgotten)

    def finish(self, ledger_id: int, entries: Sequence[int] | NDArray[np.integer], slot: int = 0) -> NDArray[np.int64]:
        """Forget those among the entries.  slot: only those of this consumer; 0: of any."""
        rows = self._ledgers.get(ledger_id)
        if rows is None:
            return _NONE
        is_done = np.isin(rows["entry_id"], np.asarray(entries, np.int64))
        return self._forget(ledger_id, is_done & (rows["slot"] == slot) if slot else is_done)

    def leave(self, slot: int) -> NDArray[np.int64]:
        """Forget the entries of a consumer that leaves, or gives back everything."""
        return np.concatenate([_NONE, *(self._forget(ledger_id, rows["slot"] == slot)
                                        for ledger_id, rows in list(self._ledgers.items()))])

    def _forget(self, ledger_id: int, which: NDArray[np.bool_]) -> NDArray[np.int64]:
        rows = self._ledgers[ledger_id]
        left, hashes = rows[~which], rows["hash"][which]
        self._count -= len(hashes)
        if len(left):
            self._ledgers[ledger_id] = left
        else:
            del self._ledgers[ledger_id]
        return hashes
