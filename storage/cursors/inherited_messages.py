"""Messages of one producer that segments before a segment have stored, to find those that are sent again."""
import numpy as np

from geminga.proto.rows import Rows
from geminga.storage import format
from geminga.storage.cursors.missing_ids import MissingIds
from geminga.storage.cursors.producer_sequences import NONE

_NO_GAPS, _NOTHING = np.zeros(0, format.GAP_ROW), np.zeros(0, format.CONTENT_ROW)


class InheritedMessages:
    """Sequence ids of stored messages by their digests (proto/contents.py)."""

    def __init__(self, through: int = NONE, missing: Rows = _NO_GAPS, rows: Rows = _NOTHING):
        """through: the highest sequence id that was stored.  missing: (n,) GAP_ROW below it, of which nothing was.

        rows: (n,) CONTENT_ROW of the messages that are known.
        """
        self.through, self._missing = through, MissingIds(missing.tolist())
        self._numbers: dict[int, set[int]] = {}
        for number, digest in rows.tolist():
            self._numbers.setdefault(digest, set()).add(number)

    def __repr__(self) -> str:
        return f"<InheritedMessages through={self.through} digests={len(self._numbers)}>"

    def is_another(self, number: int, digest: int) -> bool:
        """Whether a message has the number of a stored one, and is not known to be that one.

        It is known by a content that was stored under this number, and under no other one: contents that come again
        and again do not tell a message that is sent again from a new one.
        """
        is_inherited = number <= self.through and not self._missing.touches(number, number)
        return is_inherited and self._numbers.get(digest) != {number}
