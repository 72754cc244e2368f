"""The times at which the open transactions of a coordinator are aborted."""
import heapq

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.transactions.coordinated import Transactions
from geminga.storage.transactions.transaction_table import OPEN, Transaction

_STALE_MAX = 1_000      # deadlines of ended transactions that are kept, beside as many as there are open


class Deadlines:
    """The deadlines of one coordinator's transactions, the next first."""

    def __init__(self, transactions: Transactions):
        self._transactions = transactions
        self._heap: list[tuple[int, int]] = []      # (deadline, transaction); some have ended

    def __repr__(self) -> str:
        return f"<Deadlines {len(self._heap)}>"

    def add(self, transaction: Transaction) -> None:
        heapq.heappush(self._heap, (transaction.deadline_ms, transaction.transaction))

    def next_ms(self) -> int:
        """Return the next deadline of an open transaction, in ms since 1970, or NEVER_MS."""
        if len(self._heap) > _STALE_MAX and len(self._heap) > 2 * self._transactions.active + _STALE_MAX:
            self._heap = [(each.deadline_ms, each.transaction) for each in self._transactions.open
                          if each.state == OPEN]
            heapq.heapify(self._heap)
        while self._heap:
            transaction = self._transactions.find(self._heap[0][1])
            if transaction is not None and transaction.state == OPEN:
                return self._heap[0][0]
            heapq.heappop(self._heap)
        return NEVER_MS

    def take(self, now_ms: int) -> Transaction | None:
        """Remove and return the open transaction whose deadline is first, None if none is over."""
        return None if self.next_ms() > now_ms else self._transactions.find(heapq.heappop(self._heap)[1])
