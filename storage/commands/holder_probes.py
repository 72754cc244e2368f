"""Probes of producers that keep others waiting for exclusive access.

A newcomer has the producers in its way probed when it comes.  One that waits in line does so for as long as they live,
so they are probed again and again: a holder whose host vanishes later is replaced as soon.
"""
from geminga.storage.commands.requests import probe
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.subscription import Topic
from geminga.storage.topics.watcher import TopicWatcher


class HolderProbes(TopicWatcher):
    """The probes of one owner, one of each connection a second."""

    def __init__(self, owner: OwnerContext):
        self._owner = owner

    def __repr__(self) -> str:
        return f"<HolderProbes topics={len(self._owner.contended)}>"

    def release(self, topic: Topic, /) -> None:
        """Forget a topic whose producers are gone."""
        self._owner.contended.pop(topic, None)

    def tick(self, now_ms: int) -> None:
        """Probe the connections of producers that have others wait."""
        connections: dict[tuple[int, int], None] = {}
        for topic in list(self._owner.contended):
            if not topic.producers.waiting:
                del self._owner.contended[topic]
                continue
            for holder in topic.producers.live.values():
                connections[holder.worker, holder.connection] = None
        for worker, connection in connections:
            probe(self._owner, worker, connection)
