"""The bound of what consumers of all shared subscriptions of the broker may have unacknowledged, together.

Owners see each other's counts once a second.  While the bound is reached, a subscription that has more than a part of it gets nothing until
it has half of that part; the others go on.  All go on once the broker has half of the bound.
"""
from geminga.storage.dispatch.shared import Shared
from geminga.storage.topics.watcher import Watcher


class Crowding(Watcher):
    """The subscriptions of one owner."""

    def __init__(self, owner):
        self._owner = owner
        self._is_reached = False

    def tick(self, now_ms: int) -> None:
        options = self._owner.options
        most = options.max_unacked_messages_per_broker
        if not (most or self._is_reached):
            return
        found = [(topic, one.dispatcher) for topic in self._owner.by_name.values() for one in topic.attached
                 if isinstance(one.dispatcher, Shared)]
        counters = self._owner.counters
        counters.set("unacknowledged", sum(dispatcher.unacknowledged for _, dispatcher in found) if most else 0)
        self._is_reached = bool(most) and counters.total("unacknowledged") >= (most // 2 if self._is_reached else most)
        bound = max(1, most * options.max_unacked_percent_when_blocked // 100) if self._is_reached else 0
        for topic, dispatcher in found:
            if dispatcher.broker_bound != bound:
                dispatcher.broker_bound = bound
                dispatcher.bounds_changed()
                self._owner.wake(topic)
