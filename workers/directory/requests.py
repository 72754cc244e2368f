"""Requests that a worker answers by itself, from the catalogue: lookup, partition metadata, schemas.

Lists of topics: watchers.py.

Each function returns the frame of the answer; a failure is an answer of the same kind, as clients expect.
"""
from typing import Any

from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
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
    return responses.lookup(request.request_id, *directory.urls(request.topic, request.advertised_listener_name))


def get_schema(directory: Directory, command: api.BaseCommand) -> bytes:
    """Answer GET_SCHEMA with the requested version of the topic's schema, or the latest one."""
    request = command.getSchema
    try:
        topic, version = names.parse(request.topic), None
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


def no_transactions(directory: Directory, command: api.BaseCommand) -> bytes:
    """Refuse a command about transactions."""
    return responses.error(_body(command).request_id, api.NotAllowedError, "Transactions are not enabled.")


def _body(command: api.BaseCommand) -> Any:
    """Return the message inside a command: the field that the command's type names.

    A client may have filled in other fields, which do not count.
    """
    return getattr(command, command.DESCRIPTOR.fields_by_number[command.type].name)


T = api.BaseCommand.Type
ANSWERS = {
    T.PARTITIONED_METADATA: partition_metadata,
    T.TC_CLIENT_CONNECT_REQUEST: no_transactions, T.NEW_TXN: no_transactions, T.ADD_PARTITION_TO_TXN: no_transactions,
    T.ADD_SUBSCRIPTION_TO_TXN: no_transactions, T.END_TXN: no_transactions,
}
