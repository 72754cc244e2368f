"""The catalogue as this worker knows it: what it has read is remembered until the next commit to the catalogue."""
import time

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.layouts import Layout, of_partitions
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import policies_of, refuse_topics
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.log import log
from geminga.workers.addresses import Addresses

_CACHE_MAX = 16_384          # names that are remembered
_DOMAINS: dict[int, tuple[str, ...]] = {
    api.CommandGetTopicsOfNamespace.PERSISTENT: ("persistent://",),
    api.CommandGetTopicsOfNamespace.NON_PERSISTENT: ("non-persistent://",),
}


class Directory:
    """A worker's read access to the catalogue, and the addresses at which topics are served."""

    def __init__(self, catalogue: Catalogue, addresses: Addresses, storage: StorageOptions, coordinators: int):
        """coordinators: of transactions, as many as there are owners."""
        self.catalogue, self._coordinators = catalogue, coordinators
        self.configure(addresses, storage)
        self._counts: dict[TopicName, int | None] = {}
        self._namespaces: dict[str, bool] = {}
        self._topics_version: int | None = None
        self._are_scalable: bool | None = None      # whether any topic is; None: not looked up

    def configure(self, addresses: Addresses, storage: StorageOptions) -> None:
        """Apply new addresses and options."""
        self.addresses, self._configured, self._storage = addresses, storage, self.catalogue.options.applied_to(storage)

    def __repr__(self) -> str:
        return f"<Directory {len(self._counts)} topics and {len(self._namespaces)} namespaces remembered>"

    def _refresh(self) -> None:
        if self.catalogue.changed() or len(self._counts) + len(self._namespaces) > _CACHE_MAX:
            self._counts.clear()
            self._namespaces.clear()
            self._topics_version = self._are_scalable = None
            self._storage = self.catalogue.options.applied_to(self._configured)

    def _partition_count(self, topic: TopicName) -> int | None:
        if len(topic.local_name) + len(topic.namespace) > names.REMEMBERED_MAX:
            return self.catalogue.topics.partition_count(topic)
        if topic not in self._counts:
            self._counts[topic] = self.catalogue.topics.partition_count(topic)
        return self._counts[topic]

    def has_namespace(self, namespace: str) -> bool:
        """Whether the namespace exists."""
        if len(namespace) > names.REMEMBERED_MAX:
            return self.catalogue.namespaces.exists(namespace)
        if namespace not in self._namespaces:
            self._namespaces[namespace] = self.catalogue.namespaces.exists(namespace)
        return self._namespaces[namespace]

    def partitions(self, text: str, *, may_create: bool = True) -> int:
        """Return the number of partitions of a topic, 0 if it is not partitioned.

        may_create: create a missing topic if policies allow that.  Raises Refusal: the namespace or topic does not
        exist, or may not be created.
        """
        self._refresh()
        topic = self.catalogue.topics.named(text)
        if topic == names.COORDINATORS:
            return self._coordinators if self._storage.transactions else 0
        if not self.has_namespace(topic.namespace):
            raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist")
        self._refuse_scalable(topic)
        if topic.is_segment:
            return 0
        if self._is_shadowed(topic):
            return self._former_partitions(topic)
        if topic.partition < 0 or not names.is_system(str(topic)):
            self._refuse_missing(topic, may_create)
        if topic.partition >= 0:
            return 0
        count = self._partition_count(topic)
        if count is not None:
            return count
        policies = policies_of(self.catalogue, topic, self._storage)
        if policies.new_topics_partitions:
            names.refuse_reserved(topic)
            if not (topic.is_persistent or self._storage.non_persistent_topics):
                raise Refusal(api.NotAllowedError, "Non-persistent topics are switched off")
            refuse_topics(self.catalogue, topic.namespace, policies, policies.new_topics_partitions)
            try:
                self.catalogue.topics.create(topic, policies.new_topics_partitions)
                self.catalogue.commit()
                log.info("a topic was made", topic=topic, partitions=policies.new_topics_partitions)
            except (StorageFull, NotDurable) as error:      # the transaction is undone, and has nothing else in it
                raise Refusal(api.ServiceNotReady, str(error)) from None
            self._forget_topics()
            return self._partition_count(topic) or 0
        return 0        # the owner creates the topic for the first producer or consumer

    def urls(self, text: str, listener: str = "") -> tuple[str, str]:
        """Return (URL without TLS, URL with TLS) at which the topic is served; "" where it is not.

        listener: a name of advertised_listeners, or "".  Raises Refusal: no such namespace or listener.
        """
        self._refresh()
        topic = self.catalogue.topics.named(text)
        if not self.has_namespace(topic.namespace):
            raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist")
        self.refuse_made_up(topic)
        if listener and listener not in self.addresses.listeners:
            # Clients look for this text.
            raise Refusal(api.ServiceNotReady, f"the broker do not have {listener} listener")
        return self.addresses.listeners[listener] if listener else self.addresses[:2]

    def known_urls(self) -> tuple[str, str]:
        """Return (URL without TLS, URL with TLS) at which all clients reach the broker; "" where there is none.

        Without an advertised address there are none: no address that the broker knows leads back to it for all.
        """
        return self.addresses[:2] if self.addresses.is_advertised else ("", "")

    def urls_at(self, host: str) -> tuple[str, str]:
        """Return (URL without TLS, URL with TLS) for a client that must have one; "" where the broker does not listen.

        host: this host's address on the client's connection, which is taken where no address is advertised; "": none.
        """
        addresses = self.addresses
        return (addresses if addresses.is_advertised or not host else addresses.seen_as(host))[:2]

    # -- layouts for clients of Pulsar 5

    def resolved(self, text: str) -> TopicName:
        """Return the topic whose layout a name asks for: a scalable one, if there is one of that name.

        Raises Refusal for a name whose topic has no layout.
        """
        self._refresh()
        topic = self.catalogue.topics.named(text)
        if topic.is_segment:
            raise Refusal(api.NotAllowedError, f"{topic} is a segment, which has no segments; use {topic.base}")
        if not topic.is_persistent:
            raise Refusal(api.NotAllowedError, "Non-persistent topics have no segments")
        if topic.partition >= 0:
            raise Refusal(api.TopicNotFound, f"{topic} is one partition, which has no segments; use {topic.base}")
        return topic.scalable if self._is_shadowed(topic) else topic

    def hiding(self, topic: TopicName) -> TopicName | None:
        """Return the scalable topic that clients of Pulsar 5 get under a regular one's name, None if there is none.

        Raises StorageFull.
        """
        self._refresh()
        return topic.scalable if topic.partition < 0 and self._is_shadowed(topic) else None

    def layout(self, topic: TopicName, *, may_create: bool) -> Layout:
        """Return the layout of a topic, as `resolved` gives it.

        may_create: create a missing topic if policies allow that.  Raises Refusal: the namespace or topic does not
        exist, or may not be created.
        """
        if not topic.is_scalable:
            count = self.partitions(str(topic), may_create=may_create)
            return of_partitions(topic, count, self._created_ms(topic))
        self._refresh()
        if not self.has_namespace(topic.namespace):
            raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist")
        layout = self.catalogue.scalable_topics.layout(topic)
        if layout is None and may_create:
            self._create_scalable(topic)
            layout = self.catalogue.scalable_topics.layout(topic)
        if layout is None:
            raise Refusal(api.TopicNotFound, f"Scalable topic not found: {topic}")
        return layout

    def stored_layout(self, topic: TopicName) -> Layout | None:
        """Return the layout of a topic, as `resolved` gives it; None: it does not exist."""
        self._refresh()
        if topic.is_scalable:
            return self.catalogue.scalable_topics.layout(topic)
        count = self._partition_count(topic)
        return None if count is None else of_partitions(topic, count, self._created_ms(topic))

    def _create_scalable(self, topic: TopicName) -> None:
        """Create a scalable topic with one segment if policies allow that.  Raises Refusal."""
        policies = policies_of(self.catalogue, topic, self._storage)
        if not policies.auto_create_topics:
            return
        names.refuse_reserved(topic)
        refuse_topics(self.catalogue, topic.namespace, policies, 1)
        try:
            if self.catalogue.scalable_topics.create(topic, 1):
                log.info("a scalable topic was made", topic=topic, segments=1)
            self.catalogue.commit()
        except (StorageFull, NotDurable) as error:      # the transaction is undone, and has nothing else in it
            raise Refusal(api.ServiceNotReady, str(error)) from None
        self._forget_topics()

    def refuse_made_up(self, topic: TopicName) -> None:
        """Raise Refusal for the name of a segment that its topic does not have."""
        if topic.is_segment and not self.catalogue.topics.exists(topic):
            raise Refusal(api.TopicNotFound, f"{topic} was not found in active segments of {topic.base}")

    def refuse_missing(self, topic: TopicName) -> None:
        """Raise Refusal for a persistent topic that does not exist and that use may not create."""
        if topic.domain == "persistent" and not (
                topic.is_segment or names.is_system(str(topic)) or self._is_shadowed(topic)):
            self._refuse_missing(topic, may_create=True)

    def _refuse_missing(self, topic: TopicName, may_create: bool) -> None:
        if self._partition_count(topic) is not None:
            return
        count = self._partition_count(topic.base)      # None for a partition of a topic that does not exist
        if count and topic.partition < count:
            return
        if count:
            raise Refusal(api.TopicNotFound, f"Topic {topic.base} has {count} partitions; {topic} does not exist")
        if not (may_create and policies_of(self.catalogue, topic, self._storage).auto_create_topics):
            raise Refusal(api.TopicNotFound, f"Topic {topic} does not exist")

    def refuse_unusable(self, topic: TopicName) -> None:
        """Raise Refusal for a topic that no producer or consumer uses: a scalable one, or a segment that is made up."""
        if topic.is_scalable:
            raise Refusal(api.NotAllowedError, f"{topic} is a scalable topic: its segments are used")
        self.refuse_made_up(topic)

    def _refuse_scalable(self, topic: TopicName) -> None:
        """Raise Refusal for a topic that clients do not use as one with partitions."""
        self.refuse_made_up(topic)
        if topic.is_scalable:
            raise Refusal(api.TopicNotFound, f"{topic} is a scalable topic, which has segments and no partitions")

    def _former_partitions(self, topic: TopicName) -> int:
        """Return the number of partitions that a topic had before it was made scalable.

        Consumers of all clients read what is left there.  Raises Refusal for a topic that a scalable one only hides, as
        Pulsar does, so that older clients neither create nor use it.
        """
        count = self.catalogue.topics.former_partitions(topic)
        if count is None:
            raise Refusal(api.TopicNotFound, f"{topic.base.scalable} hides {topic}: it is for clients of Pulsar 5")
        return count

    def _is_shadowed(self, topic: TopicName) -> bool:
        if self._are_scalable is None:
            self._are_scalable = self.catalogue.scalable_topics.are_any()
        return self._are_scalable and self.catalogue.topics.is_shadowed(topic)

    def _forget_topics(self) -> None:
        self._counts.clear()
        self._topics_version = self._are_scalable = None

    def _created_ms(self, topic: TopicName) -> int:
        """Return when the topic was created, in ms since 1970; the present time if it does not exist yet."""
        created_ms = self.catalogue.topics.created_ms(topic)
        return time.time_ns() // 1_000_000 if created_ms is None else created_ms

    def topics(self, namespace: str, mode: int) -> list[str]:
        """Return the complete names of the namespace's topics, each partition by itself.

        mode: persistent, non-persistent or all, as in CommandGetTopicsOfNamespace.  Raises Refusal: no such namespace.
        """
        domains = _DOMAINS.get(mode, ("persistent://", "non-persistent://"))
        topics = self.catalogue.topics.complete_names(names.parse_namespace(namespace))
        return [name for name in topics if name.startswith(domains) and not names.is_system(name)]

    def topics_version(self) -> int:
        """A number that changes whenever topics are created or deleted."""
        self._refresh()
        if self._topics_version is None:
            self._topics_version = self.catalogue.topics.version()
        return self._topics_version

    def newest_partition(self) -> int:
        """The highest partition id so far; partitions created later have higher ids."""
        return self.catalogue.partitions.newest_id()

    def is_newer(self, topic: TopicName, newest: int) -> bool:
        """Whether the topic does not exist yet, or was created after the partition with the id `newest`."""
        stored = self.catalogue.partitions.find(topic)
        return stored is None or stored[0] > newest
