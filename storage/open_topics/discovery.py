"""Topic discovery: clients that ask for a namespace's topic list must not miss messages of a new topic.

Such a client, for example a consumer with a pattern, learns of a topic late: up to a minute later if it polls. Then it
subscribes at the topic's end, because its user chose the end for the topics that existed. So a young topic keeps all
its messages, and the client's subscription begins at the first of them. The owner recognizes such a subscription by the
lookup that precedes it: the topic is looked up on the connection that asked for the list.
"""
from collections.abc import Iterator

from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.topics.partition import Partition

_LOOKED_UP_MS = 10_000          # from a lookup to the client's subscription at most; mostly a few milliseconds
_HELD_BYTES_MAX = 1 << 30       # bytes that a young topic keeps; arbitrary, so that a flood does not fill the disk

Connection = tuple[int, int]    # worker, and the connection's number there


class Discovery:
    """Record of clients that discover topics, and of young topics that keep their messages for these clients."""

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
        """Forget a closed connection, which may have asked for topic lists."""
        for namespace in [namespace for namespace, who in self._discoverers.items() if connection in who]:
            self._discoverers[namespace].discard(connection)
            if not self._discoverers[namespace]:
                del self._discoverers[namespace]

    def worker_gone(self, worker: int) -> None:
        """Forget all connections of a worker process that ended."""
        for connection in {one for who in self._discoverers.values() for one in who if one[0] == worker}:
            self.ended(connection)

    def looked_up(self, topic: TopicName, now_ms: int) -> None:
        """Record that a client that discovers topics has looked up a topic that is new to it."""
        self._expected[topic] = now_ms

    def is_expected(self, partition: Partition, now_ms: int) -> bool:
        """Whether a new subscription at the topic's end is to begin at the topic's first message.

        True for a young topic that a client has just discovered and looked up.
        """
        looked_up = self._expected.get(partition.name)
        return looked_up is not None and now_ms - looked_up < _LOOKED_UP_MS and self._is_young(partition, now_ms)

    def holds(self, partition: Partition, now_ms: int) -> bool:
        """Whether the young partition keeps its ledgers for clients that may yet discover it."""
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
        """Return the partitions that need not keep ledgers for discovering clients any more; called once a second."""
        self._expected = {topic: at for topic, at in self._expected.items() if now_ms - at < _LOOKED_UP_MS}
        held, self._held = self._held, set()
        return (partition for partition in held if not self.holds(partition, now_ms))
