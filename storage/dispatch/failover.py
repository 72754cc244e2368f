"""Failover: one consumer at a time gets all entries, in order; when it leaves, another takes over."""
from collections.abc import Callable

import mmh3
import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.ledgers.position import Position
from geminga.storage.topics.subscription import Consumer, EntriesOfLedger, Obstacle, Subscription

_RING_POINTS = 100      # of each consumer
_RING_MASK = 0x7FFFFFFF
_LISTENS_MS = 1_000     # after which a consumer without permits is told whether it is active


class Failover(Exclusive):
    """Delivers all entries to the active consumer, which it chooses among those of the lowest priority level."""

    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        self._active: Consumer | None = None
        self._is_stale = False                             # consumers came or left since the active one was chosen
        self._newcomers: list[Consumer] = []               # that came since then
        self._distances: dict[Consumer, int] = {}          # on the ring, see _by_ring
        self._news: list[tuple[Consumer, bool]] = []

    def check(self) -> None:
        """Assert that an up-to-date choice is one of the attached consumers."""
        assert self._is_stale or self._active is None or self._active in self.subscription.consumers, self

    @property
    def active(self) -> Consumer | None:
        """The consumer that gets all entries.  It is chosen at its first use after consumers came or left."""
        if self._is_stale:
            self._choose()
        return self._active

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        return None

    def attach(self, consumer: Consumer) -> None:
        self._newcomers.append(consumer)
        self._is_stale = True

    def detach(self, consumer: Consumer) -> None:
        self._distances.pop(consumer, None)
        self._is_stale = True

    def bounds_changed(self) -> None:
        """Choose the active consumer again, as its way of selection may have changed."""
        self._is_stale = True

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> list[EntriesOfLedger]:
        """Redeliver everything unacknowledged, if the consumer is active; one that stands by holds nothing."""
        return super().redeliver(consumer, wanted) if consumer is self.active else []

    def takes_appended(self, position: Position, messages: int) -> Consumer | None:
        if self._is_stale or self._news or self._active is None:
            return None
        return self._if_it_takes(self._active, position, messages)

    def news(self) -> list[tuple[Consumer, bool]]:
        if self._is_stale:
            self._choose()
        if not self._news:
            return []
        consumers, now_ms = self.subscription.consumers, self.subscription.partition.now_ms
        news = [(consumer, is_active) for consumer, is_active in self._news if consumer in consumers]
        self._news = [(consumer, is_active) for consumer, is_active in news if not _listens(consumer, now_ms)]
        self.news_due_ms = min((consumer.connected_ms + _LISTENS_MS for consumer, _ in self._news), default=NEVER_MS)
        return [(consumer, is_active) for consumer, is_active in news if _listens(consumer, now_ms)]

    def _choose(self) -> None:
        """Choose the active consumer.  A new one is delivered everything unacknowledged."""
        subscription, self._is_stale = self.subscription, False
        newcomers, self._newcomers = self._newcomers, []
        before, self._active = self._active, None
        if subscription.consumers:
            top = min(consumer.priority for consumer in subscription.consumers)
            candidates = [consumer for consumer in subscription.consumers if consumer.priority == top]
            partition = subscription.partition.name.partition
            if partition >= 0:
                candidates.sort(key=_name)
                self._active = candidates[partition % len(candidates)]
            else:
                select = SELECTIONS[subscription.options.failover_selection]
                self._active = select(candidates, str(subscription.partition.name), self._distances)
        if self._active is before:
            self._news += [(consumer, False) for consumer in newcomers]
        else:
            subscription.rewind()
            self._news = [(consumer, consumer is self._active) for consumer in subscription.consumers]


def _listens(consumer: Consumer, now_ms: int) -> bool:
    """Whether a client takes notices about its consumer.

    The Go client drops those that come before it has seen the answer to SUBSCRIBE, and never learns then that its
    consumer is active. Permits show that it has seen the answer; others are told after as long as in Pulsar.
    """
    return consumer.granted > 0 or not consumer.connected_ms <= now_ms < consumer.connected_ms + _LISTENS_MS


def _name(consumer: Consumer) -> str:
    return consumer.name


def _by_name(candidates: list[Consumer], topic: str, distances: dict[Consumer, int]) -> Consumer:
    return min(candidates, key=_name)


def _by_joining(candidates: list[Consumer], topic: str, distances: dict[Consumer, int]) -> Consumer:
    return candidates[0]


def _by_ring(candidates: list[Consumer], topic: str, distances: dict[Consumer, int]) -> Consumer:
    """The consumer with the first point on a hash ring at or behind the topic's point, as in Apache Pulsar.

    So the topics of a namespace, if they are not partitioned, are spread over consumers that subscribe to them all.
    """
    at = mmh3.hash(topic, signed=False)
    for consumer in candidates:
        if consumer not in distances:
            distances[consumer] = min(
                mmh3.hash(f"{consumer.name}{point}", signed=False) - at & _RING_MASK for point in range(_RING_POINTS))
    return min(candidates, key=lambda consumer: (distances[consumer], consumer.name))


# (candidates, topic, distances of consumers, filled in where asked for: from the topic's point to their nearest)
_Selection = Callable[[list[Consumer], str, dict[Consumer, int]], Consumer]
SELECTIONS: dict[str, _Selection] = {"name": _by_name, "join-order": _by_joining, "hashring": _by_ring}
