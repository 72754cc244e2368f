"""Permits and allowances: how many entries a consumer's permits, and a subscription's rate, reach."""
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERMITS_MAX = 1 << 31      # of one consumer: a client that asks for more never receives so many
UNBOUNDED = 1 << 62        # an allowance without a bound
_FEW = 16                  # entries that are cheaper to add up one by one than as an array


@dataclass(slots=True)
class Allowance:
    """A rate's share of a pass for one subscription, whatever its consumers' permits are."""

    messages: int             # entries, where counts_entries
    size: int                 # bytes
    counts_entries: bool      # a batch is one

    @property
    def room(self) -> int:
        """Messages that may be delivered; a batch may exceed them once."""
        if self.messages <= 0 or self.size <= 0:
            return 0
        return PERMITS_MAX if self.counts_entries else self.messages


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
