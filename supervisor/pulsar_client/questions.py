"""Questions about topics that all our clients ask a broker."""
from typing import Any, Protocol

from geminga.proto import pulsar_api_pb2 as api


class Asking(Protocol):
    """A connection that asks: of a command, of a web process, or of replication."""

    async def ask(self, request: Any) -> Any:
        """Send a request, and return the message inside its answer.  Raises ClientError."""


async def partitions(connection: Asking, topic: str, *, may_create: bool = True) -> int:
    """Return a topic's number of partitions, 0 if it has none.  Raises ClientError: there is no such topic, too.

    may_create: a topic that is missing is made, if policies allow that.
    """
    answer: api.CommandPartitionedTopicMetadataResponse = await connection.ask(
        api.CommandPartitionedTopicMetadata(topic=topic, metadata_auto_creation_enabled=may_create))
    return answer.partitions


async def schema(connection: Asking, topic: str, version: bytes | None = None) -> api.CommandGetSchemaResponse:
    """Return a version of a topic's schema, the newest for None.  Raises ClientError: there is none, too."""
    answer: api.CommandGetSchemaResponse = await connection.ask(
        api.CommandGetSchema(topic=topic, schema_version=version))
    return answer
