"""Acknowledgements of one subscription that wait for the commit of one transaction."""
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.position import NOWHERE, Position

_HALF = 32      # messages of a batch that one op covers


@dataclass(slots=True)
class TransactionAcks:
    """Whole entries, messages of batches, and everything up to a position, that a commit will acknowledge."""

    entries: dict[int, set[int]] = field(default_factory=dict)                  # by ledger id
    parts: dict[int, dict[int, int]] = field(default_factory=dict)      # ledger id -> {entry id: bits acknowledged}
    up_to: Position = NOWHERE

    def in_ledger(self, ledger_id: int) -> NDArray[np.int64]:
        """Return the whole entries (n,) of a ledger, ascending."""
        return np.array(sorted(self.entries.get(ledger_id, ())), np.int64)

    def add_part(self, ledger_id: int, entry_id: int, bits: int) -> None:
        """Acknowledge messages of a batch, beside those that are already.  bits: 1 = acknowledged."""
        parts = self.parts.setdefault(ledger_id, {})
        parts[entry_id] = parts.get(entry_id, 0) | bits

    def ops(self, transaction: int, partition_id: int, subscription_id: int) -> Iterator[bytes]:
        """Yield the ops that make these acknowledgements out of nothing."""
        for ledger_id in self.entries:
            for first, end in _runs(self.entries[ledger_id]):
                yield journal_ops.transaction_acks(transaction, partition_id, subscription_id, ledger_id, first, end)
        for ledger_id, parts in self.parts.items():
            for entry_id, bits in parts.items():
                for number in range(-(-bits.bit_length() // _HALF)):
                    if word := bits >> number * _HALF & (1 << _HALF) - 1:
                        yield journal_ops.transaction_ack_part(
                            transaction, partition_id, subscription_id, (ledger_id, entry_id), number, word)
        if self.up_to != NOWHERE:
            yield journal_ops.transaction_ack_up_to(transaction, partition_id, subscription_id, self.up_to)

    def apply(self, kind: int, op: np.void) -> None:
        """Apply one op, as read from a journal or a state file."""
        ledger_id = int(op["ledger_id"])
        if kind == format.TRANSACTION_ACKS:
            first = int(op["first_entry"])
            self.entries.setdefault(ledger_id, set()).update(range(first, first + int(op["more_entries"]) + 1))
        elif kind == format.TRANSACTION_ACK_UP_TO:
            self.up_to = max(self.up_to, (ledger_id, int(op["entry_id"])))
        else:
            number = int(op["kind_and_word_number"]) >> format.NUMBER
            self.add_part(ledger_id, int(op["entry_id"]), int(op["word"]) << number * _HALF)


def _runs(entries: set[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of each run of consecutive entries, ascending."""
    first = end = -1
    for entry_id in sorted(entries):
        if entry_id != end:
            if first >= 0:
                yield first, end
            first = entry_id
        end = entry_id + 1
    if first >= 0:
        yield first, end
