"""Entries of one subscription that no consumer gets while transactions that acknowledge them are open.

A transaction withholds whole entries, messages of batches, and everything up to a position (transaction_acks.py).  Of
all open transactions together this file keeps, for quick answers,

    whole        a flag for each entry, one array for each ledger; grows up to the last entry that is withheld
    parts        the messages of batches, as bits
    up_to        the position of the one transaction that acknowledges cumulatively

No entry, and no message of a batch, is withheld by two transactions; only `up_to` may cover what another one has.
Plain acknowledgements take effect at once.  So the cursor decides whether a withheld entry is still unacknowledged.
"""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors import batch_acks
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.cursors.transaction_acks import TransactionAcks
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.position import NOWHERE, Position, entries_up_to
from geminga.storage.ledgers.readable import ReadableLedger

_STRETCH = 4_096      # entries examined at once


@dataclass(slots=True)
class _Whole:
    flags: NDArray[np.bool_]      # (entries,), grows
    count: int = 0                # of these that are set


class Withheld:
    """The acknowledgements of one subscription that open transactions hold, by transaction and all together."""

    def __init__(self) -> None:
        self.by_transaction: dict[int, TransactionAcks] = {}
        self.parts: batch_acks.Parts = {}       # bits, 1 = acknowledged by an open transaction
        self.up_to: Position = NOWHERE
        self.cumulative: int | None = None      # the transaction that acknowledges up to there
        self.is_passed = False      # consumers were delivered everything anew, except what is withheld, since `up_to`
        self._whole: dict[int, _Whole] = {}     # by ledger id

    def __repr__(self) -> str:
        return f"<Withheld transactions={len(self.by_transaction)} ledgers={sorted(self._whole)} up_to={self.up_to}>"

    def check(self) -> None:
        """Assert that flags and bits are those of the transactions, and that no two of these share any."""
        whole: dict[int, int] = {}
        parts: batch_acks.Parts = {}
        for acks in self.by_transaction.values():
            for ledger_id, entries in acks.entries.items():
                whole[ledger_id] = whole.get(ledger_id, 0) + len(entries)
                assert self._whole[ledger_id].flags[list(entries)].all(), (self, ledger_id)
            for ledger_id, batches in acks.parts.items():
                for entry_id, bits in batches.items():
                    known = parts.setdefault(ledger_id, {}).get(entry_id, 0)
                    assert bits > 0 and not known & bits, (self, ledger_id, entry_id)
                    parts[ledger_id][entry_id] = known | bits
        assert whole == {ledger_id: each.count for ledger_id, each in self._whole.items()}, self
        assert all(each.count == np.count_nonzero(each.flags) > 0 for each in self._whole.values()), self
        assert parts == self.parts, self
        positions = {transaction: acks.up_to for transaction, acks in self.by_transaction.items()
                     if acks.up_to != NOWHERE}
        assert positions == ({} if self.cumulative is None else {self.cumulative: self.up_to}), self
        assert (self.cumulative is None) == (self.up_to == NOWHERE), self

    # -- changes

    def add(self, transaction: int, acks: TransactionAcks) -> None:
        """Withhold all that a transaction has acknowledged, of which nothing was withheld before."""
        self.by_transaction[transaction] = acks
        for ledger_id in acks.entries:
            self._mark(ledger_id, acks.in_ledger(ledger_id))
        for ledger_id, batches in acks.parts.items():
            for entry_id, bits in batches.items():
                self._add_bits(ledger_id, entry_id, bits)
        if acks.up_to != NOWHERE:
            self.up_to, self.cumulative = acks.up_to, transaction

    def add_entries(self, transaction: int, ledger_id: int, entries: NDArray[np.int64]) -> None:
        """Withhold entries (n,) of a ledger, ascending, for a known transaction."""
        self.by_transaction[transaction].entries.setdefault(ledger_id, set()).update(entries.tolist())
        self._mark(ledger_id, entries)

    def add_part(self, transaction: int, ledger_id: int, entry_id: int, bits: int) -> None:
        """Withhold messages of a batch for a known transaction.  bits: 1 = the transaction acknowledges the message."""
        self.by_transaction[transaction].add_part(ledger_id, entry_id, bits)
        self._add_bits(ledger_id, entry_id, bits)

    def set_up_to(self, transaction: int, position: Position) -> None:
        """Withhold everything up to a position for a known transaction, the only one that has such a position."""
        assert self.cumulative in (None, transaction), (self, transaction)
        self.by_transaction[transaction].up_to = self.up_to = position
        self.cumulative, self.is_passed = transaction, False

    def remove(self, transaction: int) -> TransactionAcks:
        """Withhold nothing more for a transaction, which ends; return what it had acknowledged."""
        acks = self.by_transaction.pop(transaction)
        for ledger_id, entries in acks.entries.items():
            whole = self._whole[ledger_id]
            whole.flags[list(entries)] = False
            whole.count -= len(entries)
            if not whole.count:
                del self._whole[ledger_id]
        for ledger_id, batches in acks.parts.items():
            mine = self.parts[ledger_id]
            for entry_id, bits in batches.items():
                mine[entry_id] &= ~bits
                if not mine[entry_id]:
                    del mine[entry_id]
            if not mine:
                del self.parts[ledger_id]
        if self.cumulative == transaction:
            self.up_to, self.cumulative = NOWHERE, None
        return acks

    def _mark(self, ledger_id: int, entries: NDArray[np.int64]) -> None:
        last = int(entries[-1])
        whole = self._whole.get(ledger_id)
        if whole is None:
            whole = self._whole[ledger_id] = _Whole(np.zeros(last + 1024, bool))
        elif last >= len(whole.flags):
            grown = np.zeros(2 * (last + 1), bool)
            grown[:len(whole.flags)] = whole.flags
            whole.flags = grown
        whole.flags[entries] = True
        whole.count += len(entries)

    def _add_bits(self, ledger_id: int, entry_id: int, bits: int) -> None:
        batches = self.parts.setdefault(ledger_id, {})
        batches[entry_id] = batches.get(entry_id, 0) | bits

    # -- answers

    def has_whole(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a transaction has acknowledged the whole entry, and not just everything up to a position."""
        whole = self._whole.get(ledger_id)
        return whole is not None and entry_id < len(whole.flags) and bool(whole.flags[entry_id])

    def bits(self, ledger_id: int, entry_id: int) -> int:
        """Return the bits of a batch that are withheld, 1 = withheld."""
        batches = self.parts.get(ledger_id)
        return 0 if batches is None else batches.get(entry_id, 0)

    def batches(self, cursor: Cursor, ledger: ReadableLedger, entries: Entries) -> Iterator[Entries]:
        """Yield the entries among these of which at least one message is not withheld, ascending.

        The entries behind the last one that is withheld come as they were, however many these are.
        """
        ledger_id = ledger.ledger_id
        whole, parts = self._whole.get(ledger_id), self.parts.get(ledger_id)
        end = 0 if whole is None else len(whole.flags)
        if parts:
            end = max(end, max(parts) + 1)
        end = max(end, entries_up_to(self.up_to, ledger_id, ledger.entries))
        known = _before(entries, end)
        for at in range(0, known, _STRETCH):
            stretch = entries[at:min(at + _STRETCH, known)]
            if len(some := self.left_of(cursor, ledger, stretch)):
                yield some
        if known < len(entries):
            yield entries[known:]

    def left_of(self, cursor: Cursor, ledger: ReadableLedger, entries: Entries) -> Entries:
        """Return the entries among these of which at least one message is not withheld."""
        ledger_id = ledger.ledger_id
        if up_to := entries_up_to(self.up_to, ledger_id, ledger.entries):
            entries = entries[_before(entries, up_to):]
        if (whole := self._whole.get(ledger_id)) is not None and len(entries):
            known = _before(entries, len(whole.flags))
            ids = np.arange(entries.start, entries.stop) if isinstance(entries, range) else entries
            is_left = np.ones(len(ids), bool)
            is_left[:known] = ~whole.flags[ids[:known]]
            if not is_left.all():
                entries = ids[is_left]
        if (parts := self.parts.get(ledger_id)) and len(entries):
            gone = [at for at, bits in batch_acks.among(parts, entries)
                    if not _messages_left(cursor, ledger, int(entries[at]), bits)]
            if gone:
                entries = np.delete(np.asarray(entries), gone)
        return entries

    def cut(self, ledger: ReadableLedger, entries: Entries, parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return [(index into entries, bits)] of batches that consumers get in part.

        parts: these as far as the cursor and a compaction left them, without regard to transactions; bits are 1 for
        each message that is delivered.
        """
        batches = self.parts.get(ledger.ledger_id)
        if not batches:
            return parts
        left = dict(parts)
        for at, bits in batch_acks.among(batches, entries):
            left[at] = left.get(at, _all_of(ledger, int(entries[at]))) & ~bits
        return sorted(left.items())

    def messages(self, cursor: Cursor, ledger: ReadableLedger, entries: Entries,
                 messages: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the number (n,) of messages of each entry that consumers get of those that are unacknowledged.

        messages: the number (n,) of unacknowledged ones.
        """
        batches = self.parts.get(ledger.ledger_id)
        if batches:
            messages = messages.copy()
            for at, bits in batch_acks.among(batches, entries):
                messages[at] = _messages_left(cursor, ledger, int(entries[at]), bits)
        return messages


def _before(entries: Entries, end: int) -> int:
    """Return the number of entries, ascending, that lie before entry `end`."""
    if isinstance(entries, range):
        return min(max(0, end - entries.start), len(entries))
    return int(np.searchsorted(entries, end))


def _all_of(ledger: ReadableLedger, entry_id: int) -> int:
    """Return an int with a bit for each message of an entry that the ledger has."""
    if isinstance(ledger, CompactedLedger):
        return ledger.bits_of(entry_id)
    return (1 << int(ledger.column("messages")[entry_id])) - 1


def _messages_left(cursor: Cursor, ledger: ReadableLedger, entry_id: int, withheld: int) -> int:
    """Return how many messages of a batch are neither acknowledged nor withheld.  withheld: bits."""
    left = cursor.parts.get(ledger.ledger_id, {}).get(entry_id)
    if isinstance(ledger, CompactedLedger):
        kept = ledger.bits_of(entry_id)
        return ((kept if left is None else kept & left) & ~withheld).bit_count()
    if left is None:
        return int(ledger.column("messages")[entry_id]) - withheld.bit_count()
    return (left & ~withheld).bit_count()
