"""Permits and allowances: how many entries a consumer's permits, and a subscription's rate, reach."""
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.ledgers.readable import ReadableLedger

PERMITS_MAX = 1 << 31      # of one consumer: a client that asks for more never receives so many
UNBOUNDED = 1 << 62        # an allowance without a bound
_FEW = 16                  # entries that are cheaper to add up one by one than as an array


@dataclass(slots=True)
class Allowance:
    """A rate's share of a pass for one subscription, whatever permits its consumers have."""

    messages: int             # that may still be delivered; entries, if counts_entries
    size: int                 # bytes that may still be delivered
    counts_entries: bool      # a batch counts as one message

    @property
    def room(self) -> int:
        """Messages that may be delivered; a batch may exceed them once."""
        if self.messages <= 0 or self.size <= 0:
            return 0
        return PERMITS_MAX if self.counts_entries else self.messages

    def take(
        self, ledger: ReadableLedger, entries: Entries, messages: NDArray[np.uint32], permits: int
    ) -> tuple[int, int]:
        """Take the first of the entries off the allowance, as far as it and the permits reach.

        Return (entries, messages) that were taken.

        messages: (n,) of each of the entries.
        """
        count = within_permits(messages, min(permits, self.room))[0]
        if self.counts_entries:
            count = min(count, self.messages)
        if self.size < UNBOUNDED:
            sizes = ledger.column("size")
            sizes = sizes[entries.start:entries.start + count] if isinstance(entries, range) else sizes[entries[:count]]
            count, size = within_permits(sizes, self.size)
            self.size -= size
        taken = int(messages[:count].sum())
        self.messages -= count if self.counts_entries else taken
        return count, taken


def within_permits(messages: NDArray[np.uint32], permits: int) -> tuple[int, int]:
    """(entries, messages) that `permits` messages reach.

    messages: (n,) of each entry, in order.  The last entry, a batch, may exceed the permits.
    """
    if len(messages) <= _FEW:
        total = count = 0
        for many in messages.tolist():
            if total >= permits:
                break
            total += many
            count += 1
        return count, total
    reach = np.cumsum(messages[:permits], dtype=np.int64)
    count = min(len(reach), int(np.searchsorted(reach, permits)) + 1)
    return count, int(reach[count - 1])
