"""Probes of producers that keep others waiting for exclusive access.

A newcomer has the producers in its way probed when it comes.  One that waits in line does so for as long as they live,
so they are probed again and again: a holder whose host vanishes later is replaced as soon.
"""
from geminga.storage.open_topics.answers import probe
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.watcher import TopicWatcher
from geminga.storage.topics.subscription import Topic


class HolderProbes(TopicWatcher):
    """The probes of one owner, one of each connection a second."""

    def __init__(self, decisions: Decisions, producers: Producers):
        self._decisions, self._producers = decisions, producers

    def __repr__(self) -> str:
        return f"<HolderProbes topics={len(self._producers.contended)}>"

    def release(self, topic: Topic, /) -> None:
        """Forget a topic whose producers are gone."""
        self._producers.contended.pop(topic, None)

    def tick(self, now_ms: int) -> None:
        """Probe the connections of producers that have others wait."""
        connections: dict[tuple[int, int], None] = {}
        for topic in list(self._producers.contended):
            if not topic.producers.waiting:
                del self._producers.contended[topic]
                continue
            for holder in topic.producers.live.values():
                connections[holder.worker, holder.connection] = None
        for worker, connection in connections:
            probe(self._decisions, worker, connection)
