"""What a worker answers by itself, from the catalogue: lookup, partition metadata, schemas.  Lists of topics are in watchers.py.

Each function returns the bytes of the answer; failures are answers of the same kind, as clients expect.
"""
from geminga.proto import commands as answers
from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import policies_of, refuse_topics
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.log import log
from geminga.storage.schemas import registry
from geminga.workers.addresses import Addresses

_CACHE_MAX = 16_384


class Directory:
    """What this worker knows of the catalogue; forgotten whenever anybody has committed to it."""

    def __init__(self, catalogue: Catalogue, addresses: Addresses, storage: StorageOptions):
        self.catalogue = catalogue
        self.configure(addresses, storage)
        self._counts: dict[TopicName, int | None] = {}
        self._namespaces: dict[str, bool] = {}
        self._topics_version: int | None = None

    def configure(self, addresses: Addresses, storage: StorageOptions) -> None:
        """These hold from now on."""
        self.addresses, self._configured, self._storage = addresses, storage, self.catalogue.with_changes(storage)

    def _refresh(self) -> None:
        if self.catalogue.changed() or len(self._counts) + len(self._namespaces) > _CACHE_MAX:
            self._counts.clear()
            self._namespaces.clear()
            self._topics_version = None
            self._storage = self.catalogue.with_changes(self._configured)

    def _partition_count(self, topic: TopicName) -> int | None:
        if len(topic.local_name) + len(topic.namespace) > names.REMEMBERED_MAX:
            return self.catalogue.partition_count(topic)
        if topic not in self._counts:
            self._counts[topic] = self.catalogue.partition_count(topic)
        return self._counts[topic]

    def has_namespace(self, namespace: str) -> bool:
        if len(namespace) > names.REMEMBERED_MAX:
            return self.catalogue.has_namespace(namespace)
        if namespace not in self._namespaces:
            self._namespaces[namespace] = self.catalogue.has_namespace(namespace)
        return self._namespaces[namespace]

    def partitions(self, text: str, *, may_create: bool = True) -> int:
        """How many partitions the topic has, 0 when it is not partitioned.  Raises Refusal."""
        self._refresh()
        topic = names.parse(text)
        if not self.has_namespace(topic.namespace):
            raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist")
        if topic.partition >= 0:
            count = self._partition_count(topic.base)
            if count and topic.partition >= count:
                raise Refusal(api.TopicNotFound, f"Topic {topic.base} has {count} partitions; {topic} does not exist")
            return 0
        count = self._partition_count(topic)
        if count is not None:
            return count
        policies = policies_of(self.catalogue, topic, self._storage)
        if not (may_create and policies.auto_create_topics):
            raise Refusal(api.TopicNotFound, f"Topic {topic} does not exist")
        if policies.new_topics_partitions:
            names.refuse_reserved(topic)
            if not (topic.is_persistent or self._storage.non_persistent_topics):
                raise Refusal(api.NotAllowedError, "Non-persistent topics are switched off")
            refuse_topics(self.catalogue, topic.namespace, policies, policies.new_topics_partitions)
            try:
                self.catalogue.create_topic(topic, policies.new_topics_partitions)
                self.catalogue.commit()
                log.info("a topic was made", topic=topic, partitions=policies.new_topics_partitions)
            except (StorageFull, NotDurable) as error:      # there is nothing else in this transaction
                raise Refusal(api.ServiceNotReady, str(error)) from None
            self._counts.clear()
            self._topics_version = None
            return self._partition_count(topic)
        return 0        # made when it is first produced to or subscribed

    def urls(self, text: str, listener: str = "") -> tuple[str, str]:
        """Where the topic is served without TLS, and with it; empty where it is not.  Raises Refusal."""
        self._refresh()
        topic = names.parse(text)
        if not self.has_namespace(topic.namespace):
            raise Refusal(api.TopicNotFound, f"Namespace {topic.namespace} does not exist")
        if listener and listener not in self.addresses.listeners:
            raise Refusal(api.ServiceNotReady, f"the broker do not have {listener} listener")   # clients look for these words
        return self.addresses.listeners[listener] if listener else self.addresses[:2]

    def topics(self, namespace: str, mode: int) -> list[str]:
        """Complete names of the namespace's topics, partitions one by one.  Raises Refusal."""
        domains = {api.CommandGetTopicsOfNamespace.PERSISTENT: ("persistent://",),
                   api.CommandGetTopicsOfNamespace.NON_PERSISTENT: ("non-persistent://",)}.get(mode, ("persistent://", "non-persistent://"))
        topics = self.catalogue.topics(names.namespace(namespace))
        return [name for name in topics if name.startswith(domains) and not names.is_system(name)]

    def topics_version(self) -> int:
        """Another one whenever topics have come or gone."""
        self._refresh()
        if self._topics_version is None:
            self._topics_version = self.catalogue.topics_version()
        return self._topics_version

    def newest_partition(self) -> int:
        """Partitions that are made later have higher ids."""
        return self.catalogue.newest_partition()

    def is_newer(self, topic: TopicName, newest: int) -> bool:
        """Whether the topic was made, or is going to be, after that was the newest partition."""
        stored = self.catalogue.partition(topic)
        return stored is None or stored[0] > newest


def partition_metadata(directory: Directory, command: api.BaseCommand) -> bytes:
    request = command.partitionMetadata
    try:
        count = directory.partitions(request.topic, may_create=request.metadata_auto_creation_enabled)
        return answers.partitions(request.request_id, count)
    except Refusal as refusal:
        return answers.partitions_failed(request.request_id, refusal.code, refusal.message)


def lookup(directory: Directory, command: api.BaseCommand) -> bytes:
    """Where the topic is served.  Raises Refusal, which the caller answers and counts."""
    request = command.lookupTopic
    return answers.lookup(request.request_id, *directory.urls(request.topic, request.advertised_listener_name))


def get_schema(directory: Directory, command: api.BaseCommand) -> bytes:
    request = command.getSchema
    try:
        topic, version = names.parse(request.topic), None
        if request.HasField("schema_version"):
            if len(request.schema_version) != 8:
                raise Refusal(api.IncompatibleSchema, "A schema version has eight bytes")
            version = int.from_bytes(request.schema_version, "big", signed=True)
        found = registry.find(directory.catalogue, topic, version)
        if found is None:
            raise Refusal(api.TopicNotFound, f"Topic not found or no-schema {request.topic}")
    except Refusal as refusal:
        return answers.schema_missing(request.request_id, refusal.code, refusal.message)
    except StorageFull as error:
        return answers.schema_missing(request.request_id, api.PersistenceError, str(error))
    name = f"{topic.namespace}/{topic.base.local_name}"
    return answers.schema(request.request_id, registry.to_wire(found.definition, name), registry.version_bytes(found.version))


def no_transactions(directory: Directory, command: api.BaseCommand) -> bytes:
    return answers.error(_body(command).request_id, api.NotAllowedError, "Transactions are not enabled.")


def _body(command: api.BaseCommand):
    """The command inside: the field that its type names, whatever else the client has filled in."""
    return getattr(command, command.DESCRIPTOR.fields_by_number[command.type].name)


T = api.BaseCommand.Type
ANSWERS = {
    T.PARTITIONED_METADATA: partition_metadata,
    T.TC_CLIENT_CONNECT_REQUEST: no_transactions, T.NEW_TXN: no_transactions, T.ADD_PARTITION_TO_TXN: no_transactions,
    T.ADD_SUBSCRIPTION_TO_TXN: no_transactions, T.END_TXN: no_transactions,
}
