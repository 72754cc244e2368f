"""When partitions are to be looked at although nothing comes: soonest first, however many there are."""
import heapq
import itertools

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.topics.partition import Partition


class Wakes:
    def __init__(self) -> None:
        self._at: dict[Partition, int] = {}
        self._soonest: list[tuple[int, int, Partition]] = []      # a heap; what `_at` does not say any more does not count
        self._numbers = itertools.count()

    def put(self, partition: Partition, due_ms: int) -> None:
        """It is to be looked at then, and not when it was to be; NEVER_MS: not at all."""
        if due_ms == NEVER_MS:
            self._at.pop(partition, None)
        elif self._at.get(partition) != due_ms:
            self._at[partition] = due_ms
            heapq.heappush(self._soonest, (due_ms, next(self._numbers), partition))

    @property
    def next_ms(self) -> int:
        while self._soonest and self._at.get(self._soonest[0][2]) != self._soonest[0][0]:
            heapq.heappop(self._soonest)
        return self._soonest[0][0] if self._soonest else NEVER_MS

    def take(self, now_ms: int) -> list[Partition]:
        """Those that were to be looked at by now: no more."""
        found = []
        while self.next_ms <= now_ms:
            partition = heapq.heappop(self._soonest)[2]
            if self._at.pop(partition, None) is not None:
                found.append(partition)
        return found
