"""Timers: when partitions are to be dispatched although no client asks for it."""
import heapq
import itertools

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.topics.subscription import Topic


class Timers:
    """One timer for each partition that has any; the soonest is known at once."""

    def __init__(self) -> None:
        self.at: dict[Topic, int] = {}
        self._soonest: list[tuple[int, int, Topic]] = []      # a heap; entries that `at` does not confirm are stale
        self._numbers = itertools.count()

    def put(self, partition: Topic, due_ms: int) -> None:
        """Set the partition's timer to that time; NEVER_MS removes it."""
        if due_ms == NEVER_MS:
            self.at.pop(partition, None)
        elif self.at.get(partition) != due_ms:
            self.at[partition] = due_ms
            heapq.heappush(self._soonest, (due_ms, next(self._numbers), partition))

    @property
    def next_ms(self) -> int:
        """The soonest time; NEVER_MS without any timer."""
        while self._soonest and self.at.get(self._soonest[0][2]) != self._soonest[0][0]:
            heapq.heappop(self._soonest)
        return self._soonest[0][0] if self._soonest else NEVER_MS

    def take(self, now_ms: int) -> list[Topic]:
        """Topics whose timers have run out by now; these timers are gone."""
        due = []
        while self.next_ms <= now_ms:
            partition = heapq.heappop(self._soonest)[2]
            if self.at.pop(partition, None) is not None:
                due.append(partition)
        return due
