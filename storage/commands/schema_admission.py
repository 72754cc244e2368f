"""Whether a producer's or a consumer's schema is admitted to a topic."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.runtime.counters import Counters
from geminga.storage.schemas import registry
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition

Topic = Partition | NonPersistentTopic


def admit_producer(catalogue: Catalogue, counters: Counters, topic: Topic, schema: api.Schema | None) -> bytes:
    """Return the schema version for a producer, in the protocol's bytes; b"" for a producer without a schema.

    The producer's schema is added if it is new and compatible.  Raises Refusal, StorageFull.
    """
    if schema is not None:
        return registry.version_bytes(
            registry.register(catalogue, topic.name, registry.from_wire(schema), topic.policies, counters))
    registry.check_missing(catalogue, topic.name, topic.policies)
    return b""


def admit_consumer(catalogue: Catalogue, counters: Counters, topic: Topic, schema: api.Schema) -> None:
    """Check a consumer's schema, and add it if the topic is empty and has no schema.  Raises Refusal, StorageFull."""
    if schema.type == api.Schema.AutoConsume:
        return
    definition = registry.from_wire(schema)
    if registry.versions(catalogue, topic.name):
        registry.check_consumer(catalogue, topic.name, definition, topic.policies.schema_strategy, counters)
    elif _is_unused(topic):
        registry.register(catalogue, topic.name, definition, topic.policies, counters)
    elif topic.policies.schema_strategy != registry.ALWAYS_COMPATIBLE:
        raise registry.incompatible("Failed to add schema to an active topic with empty(BYTES) schema: "
                                    f"new schema type {registry.TYPES[definition.kind]}")


def _is_unused(topic: Topic) -> bool:
    """Whether the topic has no messages, no producers, and only consumers that take any schema."""
    is_empty = not any(ledger.entries for ledger in topic.ledgers) if topic.is_persistent else not topic.entries_in
    return is_empty and not topic.producers.live and all(
        consumer.takes_any_schema for subscription in topic.attached for consumer in subscription.consumers)
