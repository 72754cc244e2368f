"""Timers: times at which topics are dispatched although no client asks for it."""
import heapq
import itertools

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.topics.subscription import Topic


class Timers:
    """At most one timer for each topic; the soonest is known at once."""

    def __init__(self) -> None:
        self.at: dict[Topic, int] = {}                        # topics with a timer -> its time, in ms
        self._soonest: list[tuple[int, int, Topic]] = []      # a heap of (time, number, topic); stale if `at` differs
        self._numbers = itertools.count()                     # so that no two topics are compared

    def __repr__(self) -> str:
        return f"<Timers topics={len(self.at)} next_ms={self.next_ms}>"

    def put(self, topic: Topic, due_ms: int) -> None:
        """Set the topic's timer to that time; NEVER_MS removes it."""
        if due_ms == NEVER_MS:
            self.at.pop(topic, None)
        elif self.at.get(topic) != due_ms:
            self.at[topic] = due_ms
            heapq.heappush(self._soonest, (due_ms, next(self._numbers), topic))

    @property
    def next_ms(self) -> int:
        """The time of the soonest timer; NEVER_MS without any."""
        while self._soonest and self.at.get(self._soonest[0][2]) != self._soonest[0][0]:
            heapq.heappop(self._soonest)
        return self._soonest[0][0] if self._soonest else NEVER_MS

    def take(self, now_ms: int) -> list[Topic]:
        """Return topics whose timers have run out, and remove these timers."""
        due = []
        while self.next_ms <= now_ms:
            topic = heapq.heappop(self._soonest)[2]
            if self.at.pop(topic, None) is not None:
                due.append(topic)
        return due
