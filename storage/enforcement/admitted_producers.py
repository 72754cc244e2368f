"""Policies that close producers of a topic when they change: encryption that is required, and migration."""
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands import producers
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.publisher import Publisher
from geminga.storage.open_topics.watcher import TopicWatcher, Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Topic


class RequiredEncryption(TopicWatcher):
    """The end of producers that do not encrypt, on topics that require it."""

    def __init__(self, decisions: Decisions, clients: Clients, catalogue: Catalogue):
        self._decisions, self._clients, self._catalogue = decisions, clients, catalogue

    def watch(self, topic: Topic, /) -> None:
        """Close the producers that may not publish any more, as policies of the topic have changed."""
        if topic.policies.encryption_required:
            producers.close_unencrypted_producers(self._decisions, self._clients, self._catalogue, topic)


class Migration(Watcher):
    """The end of producers on topics that have moved to another cluster.

    They reconnect to that cluster.  Consumers follow when they have acknowledged everything.
    """

    def __init__(self, decisions: Decisions, clients: Clients, publisher: Publisher):
        self._decisions, self._clients, self._publisher = decisions, clients, publisher

    def watch(self, partition: Partition, /) -> None:
        """Close the partition's producers if it has moved."""
        if partition.policies.migrated_to:
            self._publisher.publish_held(partition)
            for producer in partition.producers.expel_all():
                producers.expel_producer(self._decisions, self._clients, producer)
            self._decisions.wake(partition)
