"""Clients that discover topics by asking for a namespace's list, such as consumers with a pattern: they must not miss
messages of a new topic.

Such a client learns of a topic late, where it polls up to a minute later. Then it subscribes at the topic's end,
because its user chose the end for the topics that existed. So a young topic keeps all its messages, and the client's
subscription begins at the first of them. The owner recognizes such a subscription by what every client does before it
subscribes: it looks the topic up, on the connection that asked for the list.
"""
from collections.abc import Iterator

from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.topics.partition import Partition

_LOOKED_UP_MS = 10_000          # at most, from a lookup to the subscription that follows: mostly a few milliseconds
_HELD_BYTES_MAX = 1 << 30       # that a young topic keeps; arbitrary, so that a flood does not fill the disk

Connection = tuple[int, int]    # worker, and the connection's number there


class Discovery:
    """One owner's knowledge of discovering clients and young topics."""

    def __init__(self, catalogue: Catalogue, grace_ms: int):
        self._catalogue, self.grace_ms = catalogue, grace_ms
        self._discoverers: dict[str, set[Connection]] = {}       # connections that asked for the list, by namespace
        self._expected: dict[TopicName, int] = {}                # when discovering clients looked up topics new to them
        self._held: set[Partition] = set()                       # young partitions that kept ledgers for this reason

    def __repr__(self) -> str:
        return f"<Discovery namespaces={len(self._discoverers)} expected={len(self._expected)} held={len(self._held)}>"

    def began(self, connection: Connection, namespace: str) -> None:
        """Note that a client asked for the list of a namespace's topics."""
        self._discoverers.setdefault(namespace, set()).add(connection)

    def ended(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        for namespace in [namespace for namespace, who in self._discoverers.items() if connection in who]:
            self._discoverers[namespace].discard(connection)
            if not self._discoverers[namespace]:
                del self._discoverers[namespace]

    def worker_gone(self, worker: int) -> None:
        """Forget all connections of a worker that ended."""
        for connection in {one for who in self._discoverers.values() for one in who if one[0] == worker}:
            self.ended(connection)

    def looked_up(self, topic: TopicName, now_ms: int) -> None:
        """Note that a discovering client, to which the topic is new, has looked it up."""
        self._expected[topic] = now_ms

    def is_expected(self, partition: Partition, now_ms: int) -> bool:
        """Whether a new subscription at the topic's end is to begin at its first message: a client discovered it."""
        looked_up = self._expected.get(partition.name)
        return looked_up is not None and now_ms - looked_up < _LOOKED_UP_MS and self._is_young(partition, now_ms)

    def holds(self, partition: Partition, now_ms: int) -> bool:
        """Whether the partition keeps ledgers that no subscription needs yet."""
        if partition.name.namespace not in self._discoverers or not self._is_young(partition, now_ms):
            return False
        if sum(ledger.size for ledger in partition.ledgers) > _HELD_BYTES_MAX:
            return False
        self._held.add(partition)
        return True

    def _is_young(self, partition: Partition, now_ms: int) -> bool:
        created_ms = self._catalogue.topics.created_ms(partition.name.base)
        return created_ms is not None and now_ms - created_ms < self.grace_ms

    def tick(self, now_ms: int) -> Iterator[Partition]:
        """Return the partitions that kept ledgers until now, and need not any more."""
        self._expected = {topic: at for topic, at in self._expected.items() if now_ms - at < _LOOKED_UP_MS}
        held, self._held = self._held, set()
        return (partition for partition in held if not self.holds(partition, now_ms))
