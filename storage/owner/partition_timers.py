"""Timers: times at which topics are dispatched without a request of a client."""
import heapq
import itertools

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.topics.subscription import Topic


class Timers:
    """Timers of topics, at most one for each; the next one to expire is found at once."""

    def __init__(self) -> None:
        self.at: dict[Topic, int] = {}                        # topics with a timer -> its time, in ms
        self._soonest: list[tuple[int, int, Topic]] = []      # a heap of (time, number, topic); stale if `at` differs
        self._numbers = itertools.count()                     # ties are broken by number, as topics cannot be compared

    def __repr__(self) -> str:
        return f"<Timers topics={len(self.at)} next_ms={self.next_ms}>"

    def put(self, topic: Topic, due_ms: int) -> None:
        """Set the topic's timer to `due_ms`; NEVER_MS removes it."""
        if due_ms == NEVER_MS:
            self.at.pop(topic, None)
        elif self.at.get(topic) != due_ms:
            self.at[topic] = due_ms
            heapq.heappush(self._soonest, (due_ms, next(self._numbers), topic))

    @property
    def next_ms(self) -> int:
        """The time at which the next timer expires, in ms; NEVER_MS if no timer is set."""
        while self._soonest and self.at.get(self._soonest[0][2]) != self._soonest[0][0]:
            heapq.heappop(self._soonest)
        return self._soonest[0][0] if self._soonest else NEVER_MS

    def take(self, now_ms: int) -> list[Topic]:
        """Remove all expired timers, and return their topics."""
        due = []
        while self.next_ms <= now_ms:
            topic = heapq.heappop(self._soonest)[2]
            if self.at.pop(topic, None) is not None:
                due.append(topic)
        return due
