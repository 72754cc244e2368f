"""A backlog that was cleared and can be taken back: what one subscription of a partition had left before the clear.

Its cursor is a copy of the subscription's.  What clients acknowledge later, because they had it already or the
subscription was moved back, the copy acknowledges too.  So taking back brings nothing that was ever acknowledged.
"""
from dataclasses import dataclass

from geminga.storage.catalogue.kept_topics import KeptCursor
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.ledgers.position import NOWHERE, Position


@dataclass(eq=False, slots=True)
class ClearedBacklog:
    """A cleared backlog of one partition."""

    row: KeptCursor                    # of the catalogue
    cursor: Cursor                     # counts only up to `row.end`
    # Up to where consumers had been delivered entries in order before the clear; NOWHERE after a start.
    delivered: Position = NOWHERE

    @property
    def is_left(self) -> bool:
        """Whether there may be something to take back."""
        return self.cursor.mark_delete < self.row.end
