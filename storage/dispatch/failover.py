"""One consumer at a time gets everything, in order; when it leaves the next one in line does."""
from collections.abc import Callable

import mmh3
import numpy as np
from numpy.typing import NDArray

from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.topics.subscription import Consumer, Nacked, Obstacle, Subscription

_RING_POINTS = 100      # of each consumer
_RING_MASK = 0x7FFFFFFF


class Failover(Exclusive):
    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        self._active: Consumer | None = None
        self._is_stale = False                             # the choice: somebody came or left since
        self._newcomers: list[Consumer] = []               # since then
        self._places: dict[Consumer, int] = {}             # where each stands on the ring
        self._news: list[tuple[Consumer, bool]] = []

    @property
    def active(self) -> Consumer | None:
        """However many came and left meanwhile, it is chosen once."""
        if self._is_stale:
            self._choose()
        return self._active

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        return None

    def attach(self, consumer: Consumer) -> None:
        self._newcomers.append(consumer)
        self._is_stale = True

    def detach(self, consumer: Consumer) -> None:
        self._places.pop(consumer, None)
        self._is_stale = True

    def bounds_changed(self) -> None:
        """Who is active may be chosen in another way now."""
        self._is_stale = True

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> Nacked:
        """Who only stands by has nothing."""
        return super().redeliver(consumer, wanted) if consumer is self.active else []

    def news(self) -> list[tuple[Consumer, bool]]:
        if self._is_stale:
            self._choose()
        found, self._news = self._news, []
        return [(consumer, is_active) for consumer, is_active in found if consumer in self.subscription.consumers]

    def _choose(self) -> None:
        """Who is active; another than before begins with what is not acknowledged."""
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
                self._active = select(candidates, str(subscription.partition.name), self._places)
        if self._active is before:
            self._news += [(consumer, False) for consumer in newcomers]
        else:
            subscription.rewind()
            self._news = [(consumer, consumer is self._active) for consumer in subscription.consumers]


def _name(consumer: Consumer) -> str:
    return consumer.name


def _by_name(candidates: list[Consumer], topic: str, places: dict[Consumer, int]) -> Consumer:
    return min(candidates, key=_name)


def _by_joining(candidates: list[Consumer], topic: str, places: dict[Consumer, int]) -> Consumer:
    return candidates[0]


def _by_ring(candidates: list[Consumer], topic: str, places: dict[Consumer, int]) -> Consumer:
    """As Apache Pulsar spreads topics that are not partitioned: the first point at or behind that of the topic."""
    at = mmh3.hash(topic, signed=False)
    for consumer in candidates:
        if consumer not in places:
            places[consumer] = min(mmh3.hash(f"{consumer.name}{point}", signed=False) - at & _RING_MASK for point in range(_RING_POINTS))
    return min(candidates, key=lambda consumer: (places[consumer], consumer.name))


# places: how far behind the topic's point the nearest of each consumer's lies, as far as it was asked for
_Selection = Callable[[list[Consumer], str, dict[Consumer, int]], Consumer]
SELECTIONS: dict[str, _Selection] = {"name": _by_name, "join-order": _by_joining, "hashring": _by_ring}
