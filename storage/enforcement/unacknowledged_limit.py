"""The bound of unacknowledged messages that consumers of all shared subscriptions of the broker may have together.

Owners see each other's counts once a second. While the bound is reached, a subscription with more than a certain part
of it is delivered nothing until it has at most half of that part; other subscriptions go on. All go on once the broker
has at most half of the bound.
"""
from geminga.storage.dispatch.shared import Shared
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher


class UnacknowledgedLimit(Watcher):
    """One owner's part in the broker-wide bound of unacknowledged messages."""

    def __init__(self, decisions: Decisions, topics: TopicTable):
        self._decisions, self._topics = decisions, topics
        self._is_reached = False      # since the bound was reached, until the count is down to half of it

    def __repr__(self) -> str:
        return f"<UnacknowledgedLimit {'reached' if self._is_reached else 'not reached'}>"

    def tick(self, now_ms: int) -> None:
        """Count unacknowledged messages, and stop or resume delivery to subscriptions; called once a second."""
        options = self._topics.options.current
        most = options.max_unacked_messages_per_broker
        if not (most or self._is_reached):
            return
        shared = [(topic, one.dispatcher) for topic in self._topics.by_name.values() for one in topic.attached
                  if isinstance(one.dispatcher, Shared)]
        counters = self._decisions.counters
        counters.set("unacknowledged", sum(dispatcher.unacknowledged for _, dispatcher in shared) if most else 0)
        self._is_reached = bool(most) and counters.total("unacknowledged") >= (most // 2 if self._is_reached else most)
        bound = max(1, most * options.max_unacked_percent_when_blocked // 100) if self._is_reached else 0
        for topic, dispatcher in shared:
            if dispatcher.broker_bound != bound:
                dispatcher.broker_bound = bound
                dispatcher.bounds_changed()
                self._decisions.wake(topic)
