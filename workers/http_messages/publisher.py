"""A producer that calls share: its schemas, and what becomes of each message.

A named producer keeps its name until no call has come for a while, and nobody else can take the name.
"""
import asyncio
from http import HTTPStatus
from typing import NamedTuple

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.schemas import registry
from geminga.storage.schemas.registry import Definition
from geminga.workers.http_messages.bodies import in_background
from geminga.workers.http_messages.calls import Call
from geminga.workers.http_messages.encoding import Encoder
from geminga.workers.http_messages.pool import Ending
from geminga.workers.http_messages.producing import Message
from geminga.workers.messages.entries import Batch
from geminga.workers.messages.schema_encoding import NOTHING
from geminga.workers.pulsar_client import key_hashing
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.entries import signed
from geminga.workers.web.handovers import PRODUCER, Handover
from geminga.workers.web.parameters import Producing
from geminga.workers.web.producer import Answer, Lane, Producer
from geminga.workers.web.session import TurnedAway, status_of
from geminga.workers.web.worker_links import WorkerLink, WorkerLinks

_SEND_TIMEOUT_MS = 30_000
_VERSIONS_MAX = 100          # schemas of a producer that are known
_NO_PARTITION = "The topic has no such partition"


class Outcome(Answer):
    """What became of one message."""

    __slots__ = ("is_known", "message_id", "why")

    def __init__(self, partition: int, is_known: asyncio.Event) -> None:
        super().__init__("")
        self.message_id, self.why, self.is_known = str(partition), "", is_known

    def store(self, place: api.MessageIdData, partition: int) -> None:
        """Take the id of the message, which is stored.  A duplicate of a stored one has the id -1:-1."""
        self.message_id = f"{signed(place.ledgerId)}:{signed(place.entryId)}:{partition}"
        self._end()

    def refuse(self, why: str) -> None:
        self.why = why
        self._end()

    def _end(self) -> None:
        self.text = b"."      # the answer is known
        self.is_known.set()


class Schema(NamedTuple):
    """A schema that the topic has."""

    encoder: Encoder
    version: bytes | None              # None: BYTES, which is no schema

    @property
    def number(self) -> int:
        return -1 if self.version is None else int.from_bytes(self.version, signed=True)


async def _encoder(definition: Definition) -> Encoder:
    """Raises TurnedAway."""
    made: Encoder = await in_background(Encoder, definition, size=len(definition.data))
    return made


class Publisher(Producer):
    """A producer that calls share."""

    __slots__ = ("_known", "_partition", "_schemas", "calls", "ending", "used")

    def __init__(self, call: Call, name: str, schema: Definition | int, links: WorkerLinks) -> None:
        handover = Handover(PRODUCER, (call.topic,), "", "", (), "", call.identity, "", b"")
        parameters = Producing(name, None, _SEND_TIMEOUT_MS, 1, 0, 0, True, key_hashing.java, ())
        self.ending = Ending(lambda _, reason: self.failed(reason))
        super().__init__(handover, links, self.ending, parameters)
        self._known = schema                                       # of the first call
        self._schemas: dict[object, Schema] = {}
        self._partition = names.parse(call.topic).partition        # of a topic that is a partition itself
        self.is_busy = True
        self.calls, self.used = 0, 0.0                             # under way; when the last one ended

    # -- opening

    async def begin(self, link: WorkerLink) -> None:
        """Open the lanes with the first call's schema: a topic may demand one.  Raises ClientError."""
        # PRODUCER would make a topic again that was deleted meanwhile.
        await link.partition_count(self.handover.topics[0], may_create=False)
        definition = self._known if isinstance(self._known, Definition) else await self._stored(link, self._known)
        self._schema = registry.to_wire(definition, "") if definition.kind != NOTHING else None
        await super().begin(link)

    async def _stored(self, link: WorkerLink, version: int) -> Definition:
        """Return a version that the topic has.  Raises ClientError."""
        answer = await link.schema_version(self.handover.topics[0], registry.version_bytes(version))
        return registry.from_wire(answer.schema)

    async def schema(self, wanted: Definition | int) -> Schema:
        """Return a schema of the topic, which is registered if it is new.  Raises TurnedAway."""
        key = wanted if isinstance(wanted, int) else (wanted.kind, wanted.data, *sorted(wanted.properties.items()))
        if (known := self._schemas.get(key)) is not None:
            return known
        link = self.link
        if link is None:
            raise TurnedAway(HTTPStatus.SERVICE_UNAVAILABLE, "The topic is being opened again; try again")
        try:
            if isinstance(wanted, int):
                schema = Schema(await _encoder(await self._stored(link, wanted)), registry.version_bytes(wanted))
            elif wanted.kind == NOTHING:
                schema = Schema(await _encoder(wanted), None)
            else:
                encoder = await _encoder(wanted)      # first, as it may refuse
                answer = await link.ask(api.CommandGetOrCreateSchema(
                    topic=self.handover.topics[0], schema=registry.to_wire(wanted, "")))
                schema = Schema(encoder, answer.schema_version)
        except ClientError as error:
            raise TurnedAway(status_of(error), str(error)) from None
        if len(self._schemas) >= _VERSIONS_MAX:
            self._schemas.clear()
        self._schemas[key] = schema
        return schema

    @property
    def is_over(self) -> bool:
        """Whether nothing can be published any more."""
        return bool(self._failure) or self.ending.is_closed

    @property
    def is_idle(self) -> bool:
        return True

    # -- messages

    async def publish(self, messages: list[Message], schema: Schema, partition: int) -> list[Outcome]:
        """Publish messages in their order, and return what became of each.  Raises TurnedAway, and publishes none then.

        partition: -1 for any.
        """
        if partition >= len(self._lanes):      # perhaps the topic got it since the last look
            await self.look_for_partitions()
        is_known = asyncio.Event()
        outcomes: list[Outcome] = []
        entries: list[tuple[Lane, int, bytes, Outcome]] = []
        next_ids: dict[Lane, int] = {}
        turn = self._turn
        for index, message in enumerate(messages):
            lane, turn = self._lane_for(message, partition, turn)
            outcome = Outcome(partition if lane is None else self._number_of(lane), is_known)
            outcomes.append(outcome)
            if lane is None:
                outcome.refuse(_NO_PARTITION)
                continue
            sequence_id = message.sequence_id if message.sequence_id is not None else next_ids.get(lane, lane.next_id)
            next_ids[lane] = max(next_ids.get(lane, lane.next_id), sequence_id + 1)
            batch = Batch(lane.making._replace(schema_version=schema.version), 1, sequence_id)
            batch.add(message.outgoing)
            data = batch.entry().data
            if len(data) > self._size_max:
                raise TurnedAway(HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                             f"messages[{index}] has {len(data)} bytes, and the broker takes {self._size_max}")
            entries.append((lane, sequence_id, data, outcome))
        self._turn = turn
        for lane, next_id in next_ids.items():
            lane.next_id = next_id
        for lane, sequence_id, data, outcome in entries:
            if self._failure:
                outcome.refuse(self._failure)
            else:
                self._send(lane, data, sequence_id, [outcome])
        self._write()
        while not all(outcome.text for outcome in outcomes):
            is_known.clear()
            await is_known.wait()
        return outcomes

    def _lane_for(self, message: Message, partition: int, turn: int) -> tuple[Lane | None, int]:
        """Return a message's lane, None if the partition does not exist, and the lane whose turn is next."""
        if partition >= 0:
            return next((lane for lane in self._lanes if lane.partition == partition), None), turn
        key, count = message.outgoing.about.key, len(self._lanes)
        if key is not None:
            return self._lanes[self._parameters.hash(key) % count], turn
        return self._lanes[turn % count], (turn + 1) % count

    def _number_of(self, lane: Lane) -> int:
        """Return the number of the lane's partition, -1 for a topic that is none."""
        return self._partition if lane.partition < 0 else lane.partition

    def received(self, receipt: api.CommandSendReceipt) -> None:
        lane = self._lane_of(receipt.producer_id)
        if (entry := self._taken_from(lane, receipt.sequence_id)) is not None:
            for outcome in entry.answers:
                assert isinstance(outcome, Outcome)
                outcome.store(receipt.message_id, self._number_of(lane))
