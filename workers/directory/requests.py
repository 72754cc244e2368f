"""Requests that a worker answers by itself, from the catalogue: lookup, partition metadata, schemas.

Lists of topics: watchers.py.

Each function returns the frame of the answer.
"""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.errors import Refusal
from geminga.storage.schemas import registry
from geminga.workers.directory.directory import Directory


def partition_metadata(directory: Directory, request: api.CommandPartitionedTopicMetadata) -> bytes:
    """Answer PARTITIONED_METADATA with the topic's number of partitions.  Raises Refusal."""
    count = directory.partitions(request.topic, may_create=request.metadata_auto_creation_enabled)
    return responses.partitions(request.request_id, count)


def lookup(directory: Directory, request: api.CommandLookupTopic) -> bytes:
    """Answer LOOKUP with the URLs of the topic's broker.  Raises Refusal."""
    urls = directory.urls(request.topic, request.advertised_listener_name)
    return responses.lookup(request.request_id, *urls, stays=not directory.addresses.is_advertised)


def get_schema(directory: Directory, request: api.CommandGetSchema) -> bytes:
    """Answer GET_SCHEMA with the requested version of the topic's schema, or the latest one.

    Raises Refusal, StorageFull.
    """
    topic, version = directory.catalogue.topics.named(request.topic), None
    if request.HasField("schema_version"):
        if len(request.schema_version) != 8:
            raise Refusal(api.IncompatibleSchema, "A schema version has eight bytes")
        version = int.from_bytes(request.schema_version, "big", signed=True)
    schema = registry.find(directory.catalogue, topic, version)
    if schema is None:
        raise Refusal(api.TopicNotFound, f"Topic not found or no-schema {request.topic}")
    name = f"{topic.namespace}/{topic.base.local_name}"
    return responses.schema(request.request_id, registry.to_wire(schema.definition, name),
                            registry.version_bytes(schema.version))
