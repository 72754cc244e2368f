"""Ledgers as their readers see them: the interface for subscriptions, cursors and dispatchers to read entries.

    ReadableLedger     Ledger, CompactedLedger, TransientEntries: entries that can be dispatched
    StoredLedger       Ledger, CompactedLedger: members of a chain, over which cursors advance

A `Ledger` (ledger.py) has all its entries.  A `CompactedLedger` (compacted_ledgers.py) has only entries that one
compaction kept.  `TransientEntries` (topics/non_persistent.py) are the entries of one pass of a non-persistent topic.
"""
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class ReadableLedger(Protocol):
    """Entries of one ledger id, numbered from 0, that can be dispatched."""

    @property
    def ledger_id(self) -> int:
        """The ledger id, the first half of the positions of all its entries."""

    @property
    def entries(self) -> int:
        """The number of entries, including entries that a compaction removed."""

    @property
    def view(self) -> int:
        """The number of the compacted view that the entries are read from; 0 for entries that are not compacted."""

    @property
    def has_lost(self) -> bool:
        """Whether entries are lost that subscriptions have not skipped yet."""

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of format.INDEX_ROW for each entry, by entry id; values behind the last one are arbitrary."""


class StoredLedger(ReadableLedger, Protocol):
    """A member of a chain of ledgers on disk."""

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger is sealed, so that no more entries are appended."""

    @property
    def last_entry(self) -> int:
        """The id of the ledger's last entry; -1 in an empty ledger."""

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        """Return the total size in bytes of the given entries, all of which must exist."""
