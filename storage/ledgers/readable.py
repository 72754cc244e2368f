"""Ledgers as their readers see them: what subscriptions, cursors and dispatchers ask of entries, wherever these are.

    ReadableLedger     Ledger, CompactedLedger, TransientEntries: entries that can be dispatched
    StoredLedger       Ledger, CompactedLedger: members of a chain, over which cursors advance

A `Ledger` (ledger.py) has all its entries.  A `CompactedLedger` (compacted_ledgers.py) has those that one compaction
kept.  `TransientEntries` (topics/non_persistent.py) are the entries of one pass of a non-persistent topic.
"""
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class ReadableLedger(Protocol):
    """Entries of one ledger id, numbered from 0, that can be dispatched."""

    @property
    def ledger_id(self) -> int:
        """The first half of the entries' positions."""

    @property
    def entries(self) -> int:
        """The number of entries, those that a compaction removed included."""

    @property
    def view(self) -> int:
        """The number of the compacted view that the entries are read from; 0: they are not compacted."""

    @property
    def has_lost(self) -> bool:
        """Whether entries are lost that subscriptions have not skipped yet."""

    def column(self, name: str) -> NDArray[Any]:
        """A field of format.INDEX_ROW for each entry, by entry id; there may be rows behind the last entry."""


class StoredLedger(ReadableLedger, Protocol):
    """A member of a chain of ledgers on disk."""

    @property
    def is_sealed(self) -> bool:
        """Whether no more entries will come."""

    @property
    def last_entry(self) -> int:
        """Id of the last entry; -1 in an empty ledger."""

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        """The total size in bytes of these entries, which are there."""
