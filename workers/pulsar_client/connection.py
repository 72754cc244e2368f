"""A connection of the binary protocol, as each of our clients has one: requests under way, handshake, keep-alive, end.

    Connection         hands each answer to its request; a subclass reads bytes, and gives every command to `take`
    FramedConnection   reads frames one by one

The client of commands, WebSocket and replication derive from these, and say what the other commands mean to them.
"""
import asyncio
import itertools
from typing import Any, cast

from google.protobuf.message import DecodeError, Message

from geminga.proto import frames, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import TABLE, T
from geminga.proto.responses import PROTOCOL_VERSION
from geminga.workers.pulsar_client import reasons

_MESSAGE_SIZE_MAX = 5 << 20         # bytes, if the broker does not say another limit
_FRAME_MAX = 1 << 30                # bytes; a peer that announces more is not a broker
_TEXT_MAX = 1_000                   # characters of an error that are kept
_OTHERS = b"HTTP", b"\x15\x03"      # first bytes of an HTTP server, and of one that expects TLS
_PROTOCOL = "Pulsar's protocol"
_MESSAGES = {field.number: (field.name, set(field.message_type.fields_by_name))
             for field in api.BaseCommand.DESCRIPTOR.fields if field.message_type is not None}
# Type of a command that only a broker sends, about a request -> its field of BaseCommand.
_ANSWERS = {kind: name for kind, (name, fields) in _MESSAGES.items() if kind not in TABLE and "request_id" in fields} \
    | {T.SCALABLE_TOPIC_UPDATE: "scalableTopicUpdate", T.WATCH_SCALABLE_TOPICS_UPDATE: "watchScalableTopicsUpdate"}
# Type of a command that may tell an error -> (its field of BaseCommand, field of the code, field of the text).
_ERRORS = {kind: (name, *pair) for kind, (name, fields) in _MESSAGES.items()
           for pair in (("error", "message"), ("error_code", "error_message")) if set(pair) <= fields}
# By which clients know a watch of a layout or a namespace, as they know a request by its number.
_NUMBERS: dict[Any, str] = {
    api.CommandScalableTopicLookup: "session_id", T.SCALABLE_TOPIC_UPDATE: "session_id",
    api.CommandWatchScalableTopics: "watch_id", T.WATCH_SCALABLE_TOPICS_UPDATE: "watch_id"}
Opening = api.CommandProducer | api.CommandSubscribe


class ClientError(Exception):
    """An error: the broker refused a command, or sent an unexpected answer."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code           # the protocol's error code, if the broker refused


class NoBroker(ClientError):
    """An error: no broker answers at an address, or none that lets anybody connect to it."""

    exit_status = 3


class Connection(asyncio.BaseProtocol):
    """One connection, its requests that have no answer yet, and its producers and consumers."""

    __slots__ = ("_connected", "_ids", "_waiting", "consumers", "is_open", "message_size_max", "producers", "transport",
                 "why_ended")

    ENDED: type[ClientError] = NoBroker      # the error of requests when the peer does not answer or has hung up
    ANSWER_S = 30.0                          # that the peer has for an answer

    def __init__(self) -> None:
        self.transport: asyncio.Transport                       # set by connection_made
        self.is_open, self.why_ended = False, ""
        self.message_size_max = _MESSAGE_SIZE_MAX               # bytes of the largest entry that the broker takes
        self.producers: dict[int, Any] = {}                     # by number, who is told of what comes for it
        self.consumers: dict[int, Any] = {}
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}      # by the request's number
        self._connected: asyncio.Future[api.CommandConnected] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} open={self.is_open} waiting={len(self._waiting)}>"

    # -- the beginning and the end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self.finish(str(error or "") or "the connection was closed")

    def finish(self, why: str) -> None:
        """End the connection: all requests fail, and `ended` is called once."""
        if not self.is_open:
            return
        self.is_open, self.why_ended = False, why
        self.end_transport()
        for waiting in (*self._waiting.values(), self._connected):
            if not waiting.done():
                waiting.set_exception(self.ENDED(why))
                waiting.exception()      # else asyncio logs that nobody waits any more
        self.ended(why)

    def end_transport(self) -> None:
        self.transport.close()

    async def greet(self, request: api.CommandConnect) -> api.CommandConnected:
        """Send CONNECT, and return CONNECTED.  Raises ClientError."""
        answer: api.CommandConnected = await self._answer(request, self._connected)
        self.message_size_max = answer.max_message_size or _MESSAGE_SIZE_MAX
        return answer

    # -- commands

    def send(self, message: Message, entry: bytes = b"") -> None:
        """Send the command with that message, such as SEND for a CommandSend."""
        self.write(frames.pieces(frames.command_of(message), entry))

    def write(self, pieces: list[bytes]) -> None:
        """Write whole frames, in any number of pieces."""
        if self.is_open:
            self.transport.write(b"".join(pieces))

    def next_id(self) -> int:
        """Return a new number for a request, a producer, a consumer or a watcher."""
        return next(self._ids)

    async def ask(self, request: Any) -> Any:
        """Send a request, to which a number is given, and return the message inside its answer.  Raises ClientError."""
        if not self.is_open:
            raise self.ENDED(self.why_ended or "the connection is not open")
        number = self.next_id()
        setattr(request, _NUMBERS.get(type(request), "request_id"), number)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return await self._answer(request, waiting)
        finally:
            self._waiting.pop(number, None)

    async def _answer(self, request: Message, waiting: "asyncio.Future[Any]") -> Any:
        self.send(request)
        try:
            async with asyncio.timeout(self.ANSWER_S):
                return await waiting
        except TimeoutError:
            kind = T.Name(frames.command_of(request).type)
            raise self.ENDED(f"no answer to {kind} within {self.ANSWER_S:g} s") from None

    def take(self, command: api.BaseCommand) -> bool:
        """Answer PING, and hand an answer to its request.  Return False for all other commands."""
        if command.type == T.PING:
            self.send(api.CommandPong())
            return True
        if command.type == T.CONNECTED:
            if not self._connected.done():
                self._connected.set_result(command.connected)
            return True
        if command.type not in _ANSWERS:
            return False
        answer, error = getattr(command, _ANSWERS[command.type]), error_in(command)
        # A broker answers a wrong CONNECT with an ERROR that names no request.
        is_handshake = command.type == T.ERROR and not self._connected.done()
        waiting = self._connected if is_handshake else self._waiting.get(
            getattr(answer, _NUMBERS.get(command.type, "request_id")))
        if waiting is None or waiting.done():
            return False
        if error is not None:
            waiting.set_exception(ClientError(self.refusal(*error), error[0]))
        elif command.type != T.PRODUCER_SUCCESS or answer.producer_ready:      # else the producer waits for its turn
            waiting.set_result(answer)
        return True

    def refusal(self, code: int, text: str) -> str:
        """Return an error of the protocol as text."""
        return text_of(code, text)

    # -- questions about topics

    async def partition_count(self, topic: str, *, may_create: bool = True) -> int:
        """Return a topic's number of partitions, 0 if it has none.  Raises ClientError: there is no such topic, too.

        may_create: a topic that is missing is made, if policies allow that.
        """
        answer: api.CommandPartitionedTopicMetadataResponse = await self.ask(
            api.CommandPartitionedTopicMetadata(topic=topic, metadata_auto_creation_enabled=may_create))
        return answer.partitions

    async def segments(self, topic: str, *, may_create: bool = True) -> list[api.SegmentInfoProto]:
        """Return the segments of a scalable topic.  Raises ClientError: there is no such topic, too.

        may_create: a topic that is missing is made, if policies allow that.
        """
        request = api.CommandScalableTopicLookup(topic=topic, create_if_missing=may_create)
        answer: api.CommandScalableTopicUpdate = await self.ask(request)
        self.send(api.CommandScalableTopicClose(session_id=request.session_id))
        return list(answer.dag.segments)

    async def scalable_topics(self, namespace: str) -> list[str]:
        """Return the names of a namespace's scalable topics, as many as fit into one update.  Raises ClientError."""
        request = api.CommandWatchScalableTopics(namespace=namespace)
        answer: api.CommandWatchScalableTopicsUpdate = await self.ask(request)
        self.send(api.CommandWatchScalableTopicsClose(watch_id=request.watch_id))
        return list(answer.snapshot.topics)

    async def schema_version(self, topic: str, version: bytes | None = None) -> api.CommandGetSchemaResponse:
        """Return a version of a topic's schema, the newest for None.  Raises ClientError: there is none, too."""
        answer: api.CommandGetSchemaResponse = await self.ask(api.CommandGetSchema(topic=topic, schema_version=version))
        return answer

    # -- producers and consumers

    async def open(self, request: Opening, owner: object) -> Any:
        """Make a producer or consumer, and return the answer.  Raises ClientError.

        owner: the entry of `producers` or `consumers`, who is told of what comes for it.
        """
        if isinstance(request, api.CommandProducer):
            owners, number, abandon = self.producers, request.producer_id, self.abandon_producer
        else:
            owners, number, abandon = self.consumers, request.consumer_id, self.abandon_consumer
        # The first message may come with the answer, before whoever waits for the answer goes on.
        owners[number] = owner
        try:
            return await self.ask(request)
        except BaseException as error:
            if isinstance(error, ClientError) and error.code is not None:
                owners.pop(number, None)      # it was refused
            else:      # the broker may still make it, and nobody would ever close it
                abandon(number)
            raise

    def abandon_producer(self, number: int) -> None:
        """Close a producer without waiting for that; receipts that come for it later are ignored."""
        if self.producers.pop(number, None) is not None:
            self.send(api.CommandCloseProducer(producer_id=number, request_id=self.next_id()))

    def abandon_consumer(self, number: int) -> None:
        """Close a consumer without waiting for that; messages that come for it later come again for the next one."""
        if self.consumers.pop(number, None) is not None:
            self.send(api.CommandCloseConsumer(consumer_id=number, request_id=self.next_id()))

    # -- of a subclass

    def ended(self, why: str) -> None:
        """Take note that the connection has ended."""

    def taken(self) -> None:
        """Go on after all frames that came together."""


class FramedConnection(Connection, asyncio.Protocol):
    """A connection whose frames are read one by one."""

    __slots__ = ("_rest", "is_heard")

    GONE = "the broker closed the connection"

    def __init__(self) -> None:
        super().__init__()
        self._rest = bytearray()      # received bytes that are no whole frame yet
        self.is_heard = False         # whether the peer has sent any command of the protocol

    def data_received(self, data: bytes) -> None:
        rest, at = self._rest, 0
        rest += data
        while len(rest) - at >= frames.SIZES.size:
            total, size = frames.SIZES.unpack_from(rest, at)
            if total > _FRAME_MAX or (not self.is_heard and rest.startswith(_OTHERS)):
                return self.finish(reasons.of_bytes(bytes(rest), _PROTOCOL))
            end = at + 4 + total
            if end > len(rest):
                break
            try:
                command = api.BaseCommand.FromString(bytes(rest[at + 8:at + 8 + size]))
            except DecodeError:
                return self.finish(reasons.of_bytes(b"?", _PROTOCOL))
            self.is_heard = True
            if not self.take(command):
                self.take_command(command, bytes(rest[at + 8 + size:end]))
            at = end
        del rest[:at]
        self.taken()

    def connection_lost(self, error: Exception | None) -> None:
        self.finish(self.GONE if self.is_heard else reasons.of_bytes(bytes(self._rest), _PROTOCOL))

    def take_command(self, command: api.BaseCommand, entry: bytes) -> None:
        """Take a command that answers no request, and the entry behind it."""
        raise NotImplementedError


def greeting(method: str = "", data: bytes = b"", beyond: str = "", *,
             name: str = names.PROGRAM) -> api.CommandConnect:
    """Return the CONNECT of a client.

    method, data: credentials.  beyond: host:port of a broker behind the proxy that is connected to, "" without a proxy.
    name: what the broker calls the client's library.
    """
    return api.CommandConnect(
        client_version=name, protocol_version=PROTOCOL_VERSION, auth_method_name=method or None,
        auth_data=data or None, proxy_to_broker_url=beyond or None)


def producing(topic: str, number: int, name: str = "", schema: api.Schema | None = None, *, is_generated: bool = False,
              epoch: int = 0) -> api.CommandProducer:
    """Return the request for a producer.

    name: "": the broker generates one.  is_generated: the broker has generated the name, for an earlier connection.
    """
    return api.CommandProducer(
        topic=topic, producer_id=number, producer_name=name or None, schema=schema, epoch=epoch,
        user_provided_producer_name=bool(name) and not is_generated)


def consuming(topic: str, subscription: str, number: int,
              kind: "api.CommandSubscribe.SubType.ValueType" = api.CommandSubscribe.Exclusive, *,
              is_durable: bool = True,
              position: "api.CommandSubscribe.InitialPosition.ValueType" = api.CommandSubscribe.Earliest,
              start: api.MessageIdData | None = None, since_s: int = 0, makes_topic: bool = True,
              is_compacted: bool = False, name: str = "", priority: int = 0,
              epoch: int | None = None) -> api.CommandSubscribe:
    """Return the request for a consumer.

    position: where a new subscription begins.  start, since_s: the message, or the age in seconds, from which a reader
    reads.  name: of the consumer, "" for a generated one.  epoch: with which its messages begin; None: they have none.
    """
    return api.CommandSubscribe(
        topic=topic, subscription=subscription, subType=kind, consumer_id=number, durable=is_durable,
        initialPosition=position, start_message_id=start, start_message_rollback_duration_sec=since_s or None,
        force_topic_creation=makes_topic, read_compacted=is_compacted, consumer_name=name or None,
        priority_level=priority, consumer_epoch=epoch)


def error_in(command: api.BaseCommand) -> tuple[int, str] | None:
    """Return (code, text) of the error that a command tells, None if it tells none."""
    if command.type not in _ERRORS:
        return None
    name, code, text = _ERRORS[command.type]
    answer = getattr(command, name)
    return (getattr(answer, code), getattr(answer, text)) if answer.HasField(code) else None


def text_of(code: int, message: str) -> str:
    """Return an error of the protocol as text of one line."""
    values = api.ServerError.DESCRIPTOR.values_by_number
    name = values[code].name if code in values else f"error {code}"
    return f"{name}: {' '.join(message[:_TEXT_MAX].split())}"
