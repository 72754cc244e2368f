"""Rows of a delayed index in memory: delivery times of entries, as arrays side by side.

A row may be out of date, because its entry was delivered or has another delivery time since, and an entry may have two
rows. Whoever takes rows out compares them with the bitmaps of the index (waiting_bitmaps.py).
"""
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.ledgers.position import Position


@dataclass(eq=False, slots=True, repr=False)
class DelayedRows:
    """Entries with their delivery times, in any order."""

    times: NDArray[np.int64]          # (n,) ms since the epoch
    ledger_ids: NDArray[np.int64]     # (n,)
    entry_ids: NDArray[np.int64]      # (n,)

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        return f"<DelayedRows n={len(self)} ledgers={self.ledgers()}>"

    def pick(self, which: NDArray[np.bool_] | NDArray[np.int64] | slice) -> "DelayedRows":
        """Return the rows that a mask (n,), row numbers (m,) or a slice selects."""
        return DelayedRows(self.times[which], self.ledger_ids[which], self.entry_ids[which])

    def between(self, first_ms: int, end_ms: int) -> "DelayedRows":
        """Return the rows due in [first_ms, end_ms)."""
        return self.pick((self.times >= first_ms) & (self.times < end_ms))

    def ledgers(self) -> list[int]:
        """Return the distinct ledger ids, ascending."""
        ids = self.ledger_ids
        if not len(ids):
            return []
        return [int(ids[0])] if (ids == ids[0]).all() else np.unique(ids).tolist()

    def lowest_position(self) -> Position:
        """Return the lowest position of these rows, of which there must be one."""
        ledger_id = int(self.ledger_ids.min())
        return ledger_id, int(self.entry_ids[self.ledger_ids == ledger_id].min())


NO_ROWS = DelayedRows(*(np.zeros(0, np.int64) for _ in range(3)))


def joined(parts: Sequence[DelayedRows]) -> DelayedRows:
    """Return the rows of all parts, one behind the other."""
    if not parts:
        return NO_ROWS
    return DelayedRows(np.concatenate([part.times for part in parts]),
                       np.concatenate([part.ledger_ids for part in parts]),
                       np.concatenate([part.entry_ids for part in parts]))


def rows_of(times: ArrayLike, ledger_id: int, entry_ids: ArrayLike) -> DelayedRows:
    """Return rows of one ledger from times (n,) in ms and entries (n,)."""
    entries = np.asarray(entry_ids, np.int64)
    return DelayedRows(np.asarray(times, np.int64), np.broadcast_to(np.int64(ledger_id), len(entries)), entries)


@dataclass(slots=True, repr=False)
class GatheredRows:
    """Rows in the order of arrival, not sorted by time."""

    parts: list[DelayedRows] = field(default_factory=list)
    count: int = 0
    soonest_ms: int = NEVER_MS        # the earliest time

    def __repr__(self) -> str:
        return f"<GatheredRows n={self.count} soonest_ms={self.soonest_ms}>"

    def add(self, rows: DelayedRows) -> None:
        if len(rows):
            self.parts.append(rows)
            self.count += len(rows)
            self.soonest_ms = min(self.soonest_ms, int(rows.times.min()))

    def take(self, until_ms: int) -> DelayedRows:
        """Take out the rows that are due at that time."""
        if self.soonest_ms > until_ms:
            return NO_ROWS
        rows = joined(self.parts)
        is_due = rows.times <= until_ms
        self._replace(rows.pick(~is_due))
        return rows.pick(is_due)

    def forget(self, ledger_id: int) -> None:
        """Drop the rows of a deleted ledger."""
        rows = joined(self.parts)
        self._replace(rows.pick(rows.ledger_ids != ledger_id))

    def _replace(self, rows: DelayedRows) -> None:
        self.parts, self.count, self.soonest_ms = [], 0, NEVER_MS
        self.add(rows)

    def check(self) -> None:
        """Assert that count and soonest_ms are those of the rows."""
        rows = joined(self.parts)
        assert self.count == len(rows), self
        assert self.soonest_ms == min(rows.times.tolist(), default=NEVER_MS), self


class SortedRows:
    """Rows of windows that have begun, in the order of time.  The rows that fall due at once are a slice."""

    def __init__(self) -> None:
        self._rows, self._at = NO_ROWS, 0     # rows before _at are taken out

    def __len__(self) -> int:
        return len(self._rows) - self._at

    def __repr__(self) -> str:
        return f"<SortedRows n={len(self)} soonest_ms={self.soonest_ms}>"

    @property
    def soonest_ms(self) -> int:
        """The earliest time, NEVER_MS without rows."""
        times = self._rows.times
        return int(times[self._at]) if self._at < len(times) else NEVER_MS

    @property
    def left(self) -> DelayedRows:
        """The rows that are not taken out yet."""
        return self._rows.pick(slice(self._at, None))

    def add(self, rows: DelayedRows) -> None:
        if len(rows):
            rows = joined([self.left, rows])
            self._rows, self._at = rows.pick(np.argsort(rows.times, kind="stable")), 0

    def take(self, until_ms: int) -> DelayedRows:
        """Take out the rows that are due at that time, in the order of time."""
        times, first = self._rows.times, self._at
        self._at += int(np.searchsorted(times[first:], until_ms, side="right"))
        taken = self._rows.pick(slice(first, self._at))
        if self._at == len(times):
            self._rows, self._at = NO_ROWS, 0
        return taken

    def check(self) -> None:
        """Assert that the rows are in the order of time."""
        times = self._rows.times
        assert (times[1:] >= times[:-1]).all(), self
        assert 0 <= self._at <= len(times), self
