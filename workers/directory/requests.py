"""Requests that a worker answers by itself, from the catalogue: lookup, partition metadata, schemas.

Lists of topics: watchers.py.

Each function returns the frame of the answer; a failure is an answer of the same kind, as clients expect.
"""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.errors import Refusal
from geminga.storage.errors import StorageFull
from geminga.storage.schemas import registry
from geminga.workers.directory.directory import Directory


def partition_metadata(directory: Directory, command: api.BaseCommand) -> bytes:
    """Answer PARTITIONED_METADATA with the topic's number of partitions."""
    request = command.partitionMetadata
    try:
        count = directory.partitions(request.topic, may_create=request.metadata_auto_creation_enabled)
        return responses.partitions(request.request_id, count)
    except Refusal as refusal:
        return responses.partitions_failed(request.request_id, refusal.code, refusal.message)


def lookup(directory: Directory, command: api.BaseCommand) -> bytes:
    """Answer LOOKUP with the URLs of the topic's broker.  Raises Refusal, which the caller answers and counts."""
    request = command.lookupTopic
    urls = directory.urls(request.topic, request.advertised_listener_name)
    return responses.lookup(request.request_id, *urls, stays=not directory.addresses.is_advertised)


def get_schema(directory: Directory, command: api.BaseCommand) -> bytes:
    """Answer GET_SCHEMA with the requested version of the topic's schema, or the latest one."""
    request = command.getSchema
    try:
        topic, version = directory.catalogue.topics.named(request.topic), None
        if request.HasField("schema_version"):
            if len(request.schema_version) != 8:
                raise Refusal(api.IncompatibleSchema, "A schema version has eight bytes")
            version = int.from_bytes(request.schema_version, "big", signed=True)
        schema = registry.find(directory.catalogue, topic, version)
        if schema is None:
            raise Refusal(api.TopicNotFound, f"Topic not found or no-schema {request.topic}")
    except Refusal as refusal:
        return responses.schema_missing(request.request_id, refusal.code, refusal.message)
    except StorageFull as error:
        return responses.schema_missing(request.request_id, api.PersistenceError, str(error))
    name = f"{topic.namespace}/{topic.base.local_name}"
    return responses.schema(request.request_id, registry.to_wire(schema.definition, name),
                            registry.version_bytes(schema.version))


T = api.BaseCommand.Type
ANSWERS = {T.PARTITIONED_METADATA: partition_metadata}
