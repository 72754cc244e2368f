"""Ledgers cut at a position: the entries before the first one that an open transaction published."""
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger


class CutLedger:
    """The first entries of a ledger, as a StoredLedger."""

    def __init__(self, ledger: Ledger, entries: int):
        self.ledger, self.entries = ledger, entries

    def __repr__(self) -> str:
        return f"<CutLedger {self.entries} entries of {self.ledger}>"

    @property
    def ledger_id(self) -> int:
        return self.ledger.ledger_id

    @property
    def view(self) -> int:
        return self.ledger.view

    @property
    def has_lost(self) -> bool:
        return False      # `before` has lost entries given up first

    @property
    def is_sealed(self) -> bool:
        return self.ledger.is_sealed

    @property
    def last_entry(self) -> int:
        return self.entries - 1

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of each entry, see ReadableLedger."""
        return self.ledger.column(name)

    def bytes_of(self, entries: range | NDArray[np.int64]) -> int:
        """Return the total size in bytes of the given entries."""
        return self.ledger.bytes_of(entries)


def before(ledgers: Iterable[StoredLedger], limit: Position) -> list[StoredLedger]:
    """Return what lies before a position of these ledgers, ascending; parts of compacted views lie before it."""
    kept: list[StoredLedger] = []
    for ledger in ledgers:
        if not isinstance(ledger, Ledger) or ledger.ledger_id < limit[0]:
            kept.append(ledger)
        elif ledger.ledger_id == limit[0]:
            kept.append(CutLedger(ledger, limit[1]))
    return kept


def whole(ledger: ReadableLedger) -> ReadableLedger:
    """Return the ledger that was cut, or the ledger itself."""
    return ledger.ledger if isinstance(ledger, CutLedger) else ledger
