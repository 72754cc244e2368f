"""One consumer at a time gets everything, in order; when it leaves the next one in line does."""
import bisect
from collections.abc import Callable

import mmh3
import numpy as np
from numpy.typing import NDArray

from geminga.storage.dispatch.base import Nacked, Obstacle
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.subscription import Consumer, Subscription

_RING_POINTS = 100      # of each consumer


class Failover(Exclusive):
    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        self._active: Consumer | None = None
        self._news: list[tuple[Consumer, bool]] = []

    @property
    def active(self) -> Consumer | None:
        return self._active

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        return None

    def attach(self, consumer: Consumer) -> None:
        if not self._choose():
            self._news.append((consumer, False))

    def detach(self, consumer: Consumer) -> None:
        self._choose()

    def bounds_changed(self) -> None:
        """Who is active may be chosen in another way now."""
        self._choose()

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> Nacked:
        """Who only stands by has nothing."""
        return super().redeliver(consumer, wanted) if consumer is self._active else []

    def news(self) -> list[tuple[Consumer, bool]]:
        found, self._news = self._news, []
        return [(consumer, is_active) for consumer, is_active in found if consumer in self.subscription.consumers]

    def _choose(self) -> bool:
        """Whether another is active now than before; it begins with what is not acknowledged."""
        subscription = self.subscription
        before, self._active = self._active, None
        if subscription.consumers:
            top = min(consumer.priority for consumer in subscription.consumers)
            candidates = [consumer for consumer in subscription.consumers if consumer.priority == top]
            partition = subscription.partition.name.partition
            if partition >= 0:
                candidates.sort(key=_name)
                self._active = candidates[partition % len(candidates)]
            else:
                self._active = SELECTIONS[subscription.options.failover_selection](candidates, str(subscription.partition.name))
        if self._active is before:
            return False
        subscription.rewind()
        self._news = [(consumer, consumer is self._active) for consumer in subscription.consumers]
        return True


def _name(consumer: Consumer) -> str:
    return consumer.name


def _by_name(candidates: list[Consumer], topic: str) -> Consumer:
    return min(candidates, key=_name)


def _by_joining(candidates: list[Consumer], topic: str) -> Consumer:
    return candidates[0]


def _by_ring(candidates: list[Consumer], topic: str) -> Consumer:
    """As Apache Pulsar spreads topics that are not partitioned: the first point at or behind that of the topic."""
    ordered = sorted(candidates, key=_name)
    ring = sorted((mmh3.hash(f"{consumer.name}{point}", signed=False) & 0x7FFFFFFF, at)
                  for at, consumer in enumerate(ordered) for point in range(_RING_POINTS))
    found = bisect.bisect_left(ring, (mmh3.hash(topic, signed=False) & 0x7FFFFFFF, 0))
    return ordered[ring[found % len(ring)][1]]


SELECTIONS: dict[str, Callable[[list[Consumer], str], Consumer]] = {"name": _by_name, "join-order": _by_joining, "hashring": _by_ring}
