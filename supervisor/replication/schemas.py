"""Schemas of this cluster, for the other one."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.schemas import registry
from geminga.supervisor.replication.lane import Standstill


def schema_of(catalogue: Catalogue, topic: TopicName, version: bytes) -> api.Schema:
    """Return a schema version of a topic here, as its bytes are in the metadata of messages.  Raises Standstill."""
    found = registry.find(catalogue, topic, int.from_bytes(version)) if len(version) == 8 else None
    if found is None:
        raise Standstill(f"a message has schema version {version.hex()}, which the topic does not have any more")
    return registry.to_wire(found.definition, topic.base.local_name)
