"""Work on schemas beside the loop: what parses definitions runs in a thread, with a connection to the catalogue of its own."""
import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import Policies, policies_of
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.counters import Counters
from geminga.storage.schemas import registry

Answer = TypeVar("Answer")
Work = Callable[[Catalogue, Policies], Answer]


class SchemaThread:
    """One after the other; neither the thread nor what it imports is there before somebody has a schema."""

    def __init__(self, path: Path, options: StorageOptions):
        self._path, self.options = path, options      # which may be replaced by others
        self._thread = ThreadPoolExecutor(1)
        self._catalogue: Catalogue | None = None

    async def do(self, topic: TopicName, work: Work) -> Answer:
        """What work returns, given the catalogue and the topic's policies; what it wrote is on disk.  Raises Refusal."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, topic, work)

    def _do(self, topic: TopicName, work: Work) -> Answer:
        try:
            if self._catalogue is None:
                self._catalogue = Catalogue(self._path)
            answer = work(self._catalogue, policies_of(self._catalogue, topic, self._catalogue.with_changes(self.options)))
            self._catalogue.commit()
            return answer
        except (StorageFull, NotDurable, sqlite3.OperationalError) as error:      # the last when it cannot even be opened
            raise Refusal(api.PersistenceError, str(error)) from None
        finally:
            if self._catalogue is not None:
                self._catalogue.undo()


def is_settled(catalogue: Catalogue, topic: TopicName, request, *, is_valid: bool = False) -> bool:
    """Whether the topic's owner can go by what a PRODUCER or SUBSCRIBE says of its schema, without looking closer at it.

    is_valid: `settle` has looked at it.  So it is settled until somebody has brought the topic's first definition.
    """
    if not request.HasField("schema"):
        return True
    try:
        if is_valid and not registry.versions(catalogue, topic):
            return True
        if isinstance(request, api.CommandSubscribe):
            return request.schema.type == api.Schema.AutoConsume
        return registry.known(catalogue, topic, registry.from_wire(request.schema)) is not None
    except StorageFull:
        return False      # which the thread is going to tell


def settle(request, topic: TopicName, counters: Counters) -> Work:
    """Make of the request one that is: the definition is that of a version, or one that was compared and says no more.

    The first definition of a topic its owner adds, with the topic if need be; it is valid then.  Raises Refusal.
    """
    definition = registry.from_wire(request.schema)
    registry.check_size(definition)

    def work(catalogue: Catalogue, policies: Policies) -> None:
        registry.validate(definition)
        if not registry.versions(catalogue, topic):
            return
        if isinstance(request, api.CommandSubscribe):
            registry.check_consumer(catalogue, topic, definition, policies.schema_strategy, counters)
            request.ClearField("schema")
        else:
            version = registry.find(catalogue, topic, registry.register(catalogue, topic, definition, policies, counters))
            request.schema.CopyFrom(registry.to_wire(version.definition, ""))

    return work


def get_or_create(request: api.CommandGetOrCreateSchema, topic: TopicName, counters: Counters) -> Work:
    """The version, as the protocol has it, of the definition; empty for none.  Raises Refusal."""
    definition = registry.from_wire(request.schema)
    registry.check_size(definition)

    def work(catalogue: Catalogue, policies: Policies) -> bytes:
        if catalogue.partition_count(topic) is None and catalogue.partition_count(topic.base) is None:
            raise Refusal(api.TopicNotFound, f"Topic not found {topic}")
        if definition.kind == getattr(api.Schema, "None"):
            registry.check_missing(catalogue, topic, policies)
            return b""
        registry.validate(definition)
        return registry.version_bytes(registry.register(catalogue, topic, definition, policies, counters))

    return work
