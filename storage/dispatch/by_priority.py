"""Shared by priority: of all that no consumer was sent, the highest priority goes first, and within it the oldest.

Entries from the read position on are marked as waiting before anything is delivered: they get the slot of entries that
are to be redelivered, three bytes each (levelled_acks.py).  So what is new, what was given back and what fell due is
one set, in which the highest priority is found first; and where the policy is switched off, Shared goes on with that
set in the order of positions.  Priorities are bits in the indexes of ledgers, so nothing has to be kept on disk.

With ageing, entries that have waited for longer come before all others, the oldest first.
"""
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geminga.proto.job_properties import priorities_of
from geminga.proto.sends import IS_CHUNK
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.dispatch.chunk_pins import WAITING_MAX as CHUNKS_MAX
from geminga.storage.dispatch.levelled_acks import LevelledAcks
from geminga.storage.dispatch.shared import Shared
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.readable import ReadableLedger
from geminga.storage.topics.subscription import Batch, Consumer, Subscription

_STRETCH = 1 << 16            # entries that are marked at once
_MARKED_MAX = 1 << 20         # ... by one subscription in one pass: less than 0.1 s
# Entries that wait at a time; those behind them are not looked at.  It bounds the memory: 96 to 192 MiB.
WAITING_MAX = 32 << 20


class ByPriority(Shared):
    """Delivers entries by priority to many consumers, in turns."""

    reads_all_first = True
    pending: LevelledAcks

    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        self.pending = self._nothing_pending()

    def _nothing_pending(self) -> LevelledAcks:
        return LevelledAcks(self._priorities)

    def _priorities(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The priorities (n,) of entries (n,) of a ledger that has pending ones."""
        return priorities_of(self._known(ledger_id).column("flags")[entries], IS_CHUNK)

    def next_batches(self, ledgers: Sequence[ReadableLedger]) -> list[Batch]:
        batches: list[Batch] = []
        self.news_due_ms = NEVER_MS
        if not (self.pending.to_redeliver or self.chunks.waiting or self.has_unread(ledgers)):
            return batches
        if self.chunks.waiting:
            self._recall_for_permits()
        if not self._mark(ledgers):      # what is not marked yet may have the highest priority
            self.news_due_ms = self.subscription.partition.now_ms
        elif self._takers() and self._deliver_aged(batches):
            while self._deliver_first(batches):
                pass
        return batches

    def _mark(self, ledgers: Sequence[ReadableLedger]) -> bool:
        """Mark the entries from the read position on as waiting; return whether that is done, or as many wait as may.

        Delayed entries are passed over: `fell_due` marks them.
        """
        subscription, schedule, left = self.subscription, self._schedule, _MARKED_MAX
        for ledger in ledgers:
            first = subscription.read[1] if subscription.read[0] == ledger.ledger_id else 0
            end = ledger.entries if schedule is None else schedule.end(ledger)
            for at in range(first, end, _STRETCH):
                if self.pending.to_redeliver >= WAITING_MAX:
                    return True
                if left <= 0:
                    return False
                stop = min(at + _STRETCH, end)
                for entries in self._due(ledger, at, stop):
                    self.pending.withhold(ledger.ledger_id, entries)
                left -= stop - at
                subscription.read = ledger.ledger_id, stop
            subscription.read = ledger.ledger_id, max(first, end)
            if end < ledger.entries:      # the rest is delayed, or not in the index of delayed entries yet
                break
        return True

    def _served(self) -> tuple[list[Consumer], int]:
        """Return (the consumers that have room, in the order in which they are served, entries to offer them)."""
        takers = self._takers()
        return takers, 0 if self.chunks.waiting >= CHUNKS_MAX else self.look_ahead(takers)

    def _deliver_first(self, batches: list[Batch]) -> bool:
        """Deliver the first entries of the highest priority that waits; return whether more may follow."""
        takers, ahead = self._served()
        first = self.pending.first(ahead) if ahead > 0 else None
        if first is None:
            return False
        ledger_id, entries = first
        return self.deal(takers, self._known(ledger_id), entries, batches, is_again=True) == len(entries)

    def _deliver_aged(self, batches: list[Batch]) -> bool:
        """Deliver what has waited for longer than the policy's time; return whether others may follow."""
        ageing_s = self.subscription.partition.policies.message_priority_ageing_s
        if not ageing_s:
            return True
        until_ms = self.subscription.partition.now_ms - 1_000 * ageing_s
        for ledger_id, entries in self.pending.entries_to_redeliver():
            ledger = self._known(ledger_id)
            if int(ledger.column("broker_time")[entries[0]]) > until_ms:      # so are all that came after it
                break
            aged = self._aged(ledger, np.asarray(entries), until_ms)
            while len(aged):
                takers, ahead = self._served()
                offered = aged[:max(0, ahead)]
                dealt = self.deal(takers, ledger, offered, batches, is_again=True) if len(offered) else 0
                if not dealt or dealt < len(offered):
                    return False
                aged = aged[dealt:]
        return True

    def _aged(self, ledger: ReadableLedger, entries: NDArray[np.int64], until_ms: int) -> NDArray[np.int64]:
        """Return the entries among these (n,) that have waited since that time: since they came, or fell due."""
        since = ledger.column("broker_time")[entries]
        if (schedule := self.subscription.partition.schedule) is not None:
            assert isinstance(ledger, Ledger), ledger
            since = np.maximum(since, schedule.times_of(ledger, entries))
        aged: NDArray[np.int64] = entries[since <= until_ms]
        return aged

    def let_go(self) -> None:
        super().let_go()
        self.pending = self._nothing_pending()
