"""Who discovers topics as they come, by asking for a namespace's list: such a client is to miss nothing of a topic that is new to it.

It learns of the topic late, a minute later where it polls, and then makes a subscription at the topic's end, as its user said
once about the topics that were there.  So the topic keeps everything while it is young, and that subscription begins at the
topic's beginning.  Which subscription is one of those shows in what every client does before it subscribes: it looks the
topic up, where it asked for the list.
"""
from collections.abc import Iterator

from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.topics.partition import Partition

_LOOKED_UP_MS = 10_000          # from a lookup to the subscription that follows; mostly a few milliseconds
_HELD_BYTES_MAX = 1 << 30       # of a young topic; arbitrary, so that a flood does not fill the disk

Connection = tuple[int, int]    # worker, and its number there


class Discovery:
    """What one owner knows of it."""

    def __init__(self, catalogue: Catalogue, grace_ms: int):
        self._catalogue, self.grace_ms = catalogue, grace_ms
        self._discoverers: dict[str, set[Connection]] = {}       # by namespace
        self._expected: dict[TopicName, int] = {}                # when topics were looked up to which such clients are new
        self._held: set[Partition] = set()

    def began(self, connection: Connection, namespace: str) -> None:
        self._discoverers.setdefault(namespace, set()).add(connection)

    def ended(self, connection: Connection) -> None:
        for namespace in [namespace for namespace, who in self._discoverers.items() if connection in who]:
            self._discoverers[namespace].discard(connection)
            if not self._discoverers[namespace]:
                del self._discoverers[namespace]

    def worker_gone(self, worker: int) -> None:
        for connection in {one for who in self._discoverers.values() for one in who if one[0] == worker}:
            self.ended(connection)

    def looked_up(self, topic: TopicName, now_ms: int) -> None:
        """Such a client, to which the topic is new, has looked it up."""
        self._expected[topic] = now_ms

    def is_expected(self, partition: Partition, now_ms: int) -> bool:
        """Whether a subscription that is made at the end now is one of those that are to begin at the beginning."""
        looked_up = self._expected.get(partition.name)
        return looked_up is not None and now_ms - looked_up < _LOOKED_UP_MS and self._is_young(partition, now_ms)

    def holds(self, partition: Partition, now_ms: int) -> bool:
        """Whether the partition is to keep ledgers that no subscription needs yet."""
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
        """Partitions that were held and are not any more."""
        self._expected = {topic: at for topic, at in self._expected.items() if now_ms - at < _LOOKED_UP_MS}
        held, self._held = self._held, set()
        return (partition for partition in held if not self.holds(partition, now_ms))
