"""Checks of schemas: definitions are parsed in a thread, with its own connection to the catalogue.

    PRODUCER, SUBSCRIBE -> is_settled: the owner can go by the request as it is
                        -> SchemaChecks, in the thread -> the request with a definition that is compatible, or a refusal
    GET_OR_CREATE_SCHEMA -> SchemaChecks, in the thread -> the version
"""
import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import Policies, policies_of
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.counters import Counters
from geminga.storage.schemas import registry
from geminga.workers.failures import Peer, end_failed

_CHECKING_BYTES_MAX = 64 << 20   # of commands whose schemas are being checked; further ones are asked to try again

Answer = TypeVar("Answer")
Work = Callable[[Catalogue, Policies], Answer]
Opening = api.CommandProducer | api.CommandSubscribe


class SchemaThread:
    """A thread that checks schemas, one check after the other.

    The thread and the libraries for schemas are loaded at the first use, because most brokers need neither.
    """

    def __init__(self, path: Path, options: StorageOptions):
        self._path, self.options = path, options      # options may be replaced while it runs
        self._thread = ThreadPoolExecutor(1)
        self._catalogue: Catalogue | None = None      # opened at the first use

    def __repr__(self) -> str:
        return f"<SchemaThread {self._path}{'' if self._catalogue else ' not used yet'}>"

    def close(self) -> None:
        """End the thread when its work is done, and close its connection to the catalogue."""
        self._thread.shutdown()
        if self._catalogue is not None:
            self._catalogue.close()

    async def do(self, topic: TopicName, work: Work[Answer]) -> Answer:
        """Run work(catalogue, the topic's policies) in the thread, and return its result after its writes are on
        disk.

        Raises Refusal.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, topic, work)

    def _do(self, topic: TopicName, work: Work[Answer]) -> Answer:
        try:
            if self._catalogue is None:
                self._catalogue = Catalogue(self._path)
            answer = work(self._catalogue,
                          policies_of(self._catalogue, topic, self._catalogue.options.applied_to(self.options)))
            self._catalogue.commit()
            return answer
        except (StorageFull, NotDurable, sqlite3.OperationalError) as error:      # sqlite3's: it cannot be opened
            raise Refusal(api.PersistenceError, str(error)) from None
        finally:
            if self._catalogue is not None:
                self._catalogue.undo()


class CheckingClient(Protocol):
    """The parts of a client that schema checks use."""

    number: int

    @property
    def stream(self) -> Peer: ...


class SchemaChecks:
    """Commands of all clients of a worker that wait for a check of their schema."""

    def __init__(self, thread: SchemaThread, resume: Callable[[Any, api.BaseCommand, Any, Refusal | None], None],
                 loop: asyncio.AbstractEventLoop):
        """Make an empty queue.  resume: called with (client, command, result of the check, or its Refusal)."""
        self._thread, self._resume, self._loop = thread, resume, loop
        self._checking: set[asyncio.Task[None]] = set()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<SchemaChecks {len(self._checking)} of {self._bytes} bytes>"

    def begin(self, client: CheckingClient, command: api.BaseCommand, topic: TopicName,
              work: Work[Any]) -> Callable[[], None]:
        """Run the check in the thread, then resume the command; returns a function that withdraws the command.

        Raises Refusal: too many checks are under way.
        """
        size = command.ByteSize()
        if self._bytes + size > _CHECKING_BYTES_MAX:
            raise Refusal(api.ServiceNotReady, "Too many schemas are being checked; try again")
        self._bytes += size
        task = self._loop.create_task(self._check(client, command, topic, work, size))
        self._checking.add(task)
        return partial(self._checking.discard, task)

    async def _check(self, client: CheckingClient, command: api.BaseCommand, topic: TopicName, work: Work[Any],
                     size: int) -> None:
        answer: Any = None
        refusal: Refusal | None = None
        try:
            answer = await self._thread.do(topic, work)
        except Refusal as error:
            refusal = error
        except Exception:
            return end_failed(client.stream)
        finally:
            task = asyncio.current_task()
            is_wanted = task in self._checking
            self._checking.discard(task)
            self._bytes -= size
        if is_wanted:
            self._resume(client, command, answer, refusal)


def is_settled(catalogue: Catalogue, topic: TopicName, request: Opening, *, is_valid: bool = False) -> bool:
    """Whether a PRODUCER or SUBSCRIBE needs no (further) check of its schema before it goes to the owner.

    is_valid: `settle` has validated the definition.  That is enough until the topic has a first version, which another
    client may have brought meanwhile.
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
        return False      # the thread meets the same error, and answers it


def settle(request: Opening, topic: TopicName, counters: Counters) -> Work[None]:
    """Return the work that checks the schema of a PRODUCER or SUBSCRIBE.

    A producer's definition becomes a version of the topic; a consumer's is only compared.  A topic without versions
    gets its first one from its owner, which may have to create the topic, so that definition is only validated.  Raises
    Refusal, here or in the thread.
    """
    definition = registry.from_wire(request.schema)
    registry.check_size(definition)

    def check(catalogue: Catalogue, policies: Policies) -> None:
        registry.validate(definition)
        if registry.versions(catalogue, topic):
            registry.check_consumer(catalogue, topic, definition, policies.schema_strategy, counters)
            request.ClearField("schema")

    def add(catalogue: Catalogue, policies: Policies) -> None:
        with registry.counting_refusals(counters):
            registry.validate(definition)
            if not registry.versions(catalogue, topic):
                return
            number = registry.register(catalogue, topic, definition, policies, counters)
        version = registry.find(catalogue, topic, number)
        assert version is not None
        request.schema.CopyFrom(registry.to_wire(version.definition, ""))

    return check if isinstance(request, api.CommandSubscribe) else add


def get_or_create(request: api.CommandGetOrCreateSchema, topic: TopicName, counters: Counters) -> Work[bytes]:
    """Return the work that registers a definition if it is new and returns its version; b"" for no schema.

    The version is written as the protocol has it.  Raises Refusal, here or in the thread.
    """
    definition = registry.from_wire(request.schema)
    registry.check_size(definition)

    def work(catalogue: Catalogue, policies: Policies) -> bytes:
        if catalogue.topics.partition_count(topic) is None and catalogue.topics.partition_count(topic.base) is None:
            raise Refusal(api.TopicNotFound, f"Topic not found {topic}")
        if definition.kind == getattr(api.Schema, "None"):
            registry.check_missing(catalogue, topic, policies)
            return b""
        with registry.counting_refusals(counters):
            registry.validate(definition)
            return registry.version_bytes(registry.register(catalogue, topic, definition, policies, counters))

    return work
