"""A small client of the binary protocol for the health check, commands and tasks.

It has one request under way at a time, and sends and receives entries as they are stored, a batch as one.  Applications
use a Pulsar client library.
"""
import asyncio
import itertools
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError, Message

from geminga.proto import frames, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime import unix_sockets
from geminga.supervisor.pulsar_client import questions, reasons
from geminga.supervisor.pulsar_client.answers import answer_in, error_in
from geminga.supervisor.pulsar_client.entries import Entry, entry_of
from geminga.supervisor.pulsar_client.greetings import MESSAGE_SIZE_MAX, greeting, message_size_max

T = api.BaseCommand.Type
_PERMITS = 5_000
_CONNECT_S = 10             # limit for a connection and its handshake
_SILENCE_S = 60             # a wait for an answer ends after this time without a frame
_FRAME_MAX = 1 << 30        # bytes; a peer that announces more is not a broker
_OTHERS = b"HTTP", b"\x15\x03"      # first bytes of an HTTP server, and of one that expects TLS
_PROTOCOL = "Pulsar's protocol"
_HELD_MAX = 16 << 20        # bytes received and not consumed yet; beyond, the socket is not read
_HOPS_MAX = 10              # redirections of a lookup
_ENDS = {T.CLOSE_PRODUCER: "the producer", T.CLOSE_CONSUMER: "the consumer"}


class ClientError(Exception):
    """An error: the broker refused a command, or sent an unexpected answer."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code           # the protocol's error code, if the broker refused


class Silence(ClientError):
    """An error: the broker sent no frame for a minute."""


class NoBroker(ClientError):
    """An error: no broker answers at an address, or none that lets anybody connect to it."""

    exit_status = 3


class NoAddress(ClientError):
    """An error: a text is not the address of a broker."""

    exit_status = 2


class BrokerConnection(asyncio.Protocol):
    """One connection to a broker; `connect` returns it after the handshake."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport                   # set by connection_made
        self._rest = bytearray()                             # received bytes that are no whole frame yet
        self._came: deque[tuple[api.BaseCommand, bytes]] = deque()      # (command, entry) of received frames
        self._held = 0                                       # bytes of entries in `_came`
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None     # what `receive` waits for: the next frame
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._end = ""                                       # why the connection ended, "" while it is open
        self._heard = False                                  # whether the peer has sent any command of the protocol
        self._request_ids, self._consumer_ids = itertools.count(1), itertools.count(1)
        self.place = "", ""        # URL of the broker or proxy, and host:port of the broker behind the proxy
        self.message_size_max = MESSAGE_SIZE_MAX             # bytes of the largest entry that the broker takes
        self.is_geminga = False                              # whether the broker is one of these
        # Consumer: frames of its messages that came while another answer was waited for; other consumers' are skipped.
        self._kept: dict[int, deque[tuple[api.BaseCommand, bytes]]] = {}

    def __repr__(self) -> str:
        return f"<BrokerConnection frames={len(self._came)} held={self._held} end={self._end!r}>"

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        rest, at = self._rest, 0
        rest += data
        while len(rest) - at >= frames.SIZES.size:
            total, size = frames.SIZES.unpack_from(rest, at)
            if total > _FRAME_MAX or (not self._heard and rest.startswith(_OTHERS)):
                return self._finish(reasons.of_bytes(bytes(rest), _PROTOCOL))
            end = at + 4 + total
            if end > len(rest):
                break
            try:
                command = api.BaseCommand.FromString(bytes(rest[at + 8:at + 8 + size]))
            except DecodeError:
                return self._finish(reasons.of_bytes(b"?", _PROTOCOL))
            self._heard = True
            if command.type == T.PING:
                self.send(api.CommandPong())
            else:
                self._came.append((command, bytes(rest[at + 8 + size:end])))
                self._held += end - at - 8 - size
            at = end
        del rest[:at]
        if self._held > _HELD_MAX and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        if self._came:
            self._wake()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        why = "the broker closed the connection" if self._heard else reasons.of_bytes(bytes(self._rest), _PROTOCOL)
        self._finish(why)

    def _finish(self, why: str) -> None:
        self._end = self._end or why
        self._can_write.set()
        self._transport.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- commands

    async def ask(self, request: Any) -> Any:
        """Send a request, to which a number is given, and return the message inside its answer.  Raises ClientError."""
        request.request_id = self.request_id()
        self.send(request)
        while True:
            command, _ = await self._next()
            answer = answer_in(command)
            if answer is not None and answer.request_id == request.request_id:
                return answer

    def send(self, message: Message, entry: bytes = b"") -> None:
        """Send the command with that message, such as SEND for a CommandSend."""
        self._transport.write(b"".join(frames.pieces(frames.command_of(message), entry)))

    async def receive(self, expected: int) -> tuple[api.BaseCommand, bytes]:
        """Wait for the next frame of the expected type, and return (command, entry).

        Frames of other types are skipped. Raises ClientError for an error from the broker.
        """
        while True:
            command, entry = await self._next()
            if command.type == expected:
                return command, entry

    async def _next(self) -> tuple[api.BaseCommand, bytes]:
        """Wait for the next frame, keep it if it is a message that is to be kept, and return (command, entry).

        Raises ClientError.
        """
        command, entry = await self.frame()
        check(command)
        if command.type == T.MESSAGE and command.message.consumer_id in self._kept:
            self._kept[command.message.consumer_id].append((command, entry))
        return command, entry

    async def frame(self, silence_s: float = _SILENCE_S) -> tuple[api.BaseCommand, bytes]:
        """Wait for the next frame of any type but PING, and return (command, entry).  Raises ClientError, Silence."""
        while (frame := self.frame_at_hand()) is None:
            await self._more(silence_s)
        return frame

    def frame_at_hand(self) -> tuple[api.BaseCommand, bytes] | None:
        """Return the next frame as (command, entry) if it has arrived already, else None."""
        if not self._came:
            return None
        command, entry = self._came.popleft()
        self._held -= len(entry)
        if self._is_paused and self._held < _HELD_MAX // 2:
            self._is_paused = False
            self._transport.resume_reading()
        return command, entry

    async def _more(self, silence_s: float) -> None:
        if self._end:
            raise ClientError(self._end)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(silence_s):
                await self._waiter
        except TimeoutError:
            raise Silence(f"nothing came for {silence_s:g} s") from None

    def request_id(self) -> int:
        return next(self._request_ids)

    # -- publishing

    async def producer(self, topic: str, name: str = "", schema: api.Schema | None = None,
                       only_for: str = "") -> api.CommandProducerSuccess:
        """Create the connection's only producer on a topic, with a generated name unless `name` is given.

        only_for: the subscription that gets its messages; "": all do.  Brokers of others do not know that.  Raises
        ClientError.
        """
        request = api.CommandProducer(topic=topic, producer_id=1, schema=schema)
        if only_for:
            request.metadata.add(key=names.ONLY_FOR, value=only_for)
        if name:
            request.producer_name = name
        answer: api.CommandProducerSuccess = await self.ask(request)
        return answer

    async def close_producer(self) -> None:
        await self.ask(api.CommandCloseProducer(producer_id=1))

    async def publish(self, topic: str, payloads: list[bytes]) -> list[tuple[int, int]]:
        """Publish each payload as a message; return their positions as (ledger, entry).  Raises ClientError."""
        producer = await self.producer(topic)
        positions = []
        for number, payload in enumerate(payloads):
            send = api.CommandSend(producer_id=1, sequence_id=number)
            self.send(send, _entry(producer.producer_name, number, payload))
            positions.append(await self.receipt())
        await self.close_producer()
        return positions

    async def send_entries(self, entries: list[Entry], sequence_id: int) -> None:
        """Publish entries unchanged, with ascending sequence ids from `sequence_id` on.

        The method does not wait for receipts, which `receipt` reads.
        """
        written: list[bytes] = []
        for number, entry in enumerate(entries, sequence_id):
            send = api.CommandSend(producer_id=1, sequence_id=number, num_messages=entry.messages)
            if entry.metadata.num_chunks_from_msg > 1:
                send.is_chunk = True
            written += frames.pieces(frames.command_of(send), entry.data)
        await self.write(written)

    async def write(self, pieces: list[bytes]) -> None:
        """Write complete frames, in any number of pieces, once there is room for more."""
        await self._can_write.wait()
        self._transport.write(b"".join(pieces))

    async def receipt(self) -> tuple[int, int]:
        """Wait for the next receipt of a published entry, and return its (ledger, entry).  Raises ClientError."""
        receipt, _ = await self.receive(T.SEND_RECEIPT)
        return receipt.send_receipt.message_id.ledgerId, receipt.send_receipt.message_id.entryId

    # -- reading

    async def subscribe(self, topic: str, subscription: str = "", first: tuple[int, int] | None = None,
                        since_s: int = 0, makes_topic: bool = True) -> int:
        """Create a consumer on a topic and return its number.  Raises ClientError.

        The consumer begins at `first`, else at messages published `since_s` seconds ago, else at the beginning. Without
        a subscription the consumer is a reader, and leaves no subscription behind.
        """
        kind = api.CommandSubscribe.Shared if subscription else api.CommandSubscribe.Exclusive
        request = api.CommandSubscribe(
            topic=topic, subscription=subscription or f"geminga-reader-{time.time_ns()}", subType=kind,
            consumer_id=next(self._consumer_ids), durable=bool(subscription),
            initialPosition=api.CommandSubscribe.Earliest, force_topic_creation=makes_topic)
        if first is not None:
            request.start_message_id.ledgerId, request.start_message_id.entryId = first
            request.initialPosition = api.CommandSubscribe.Latest      # if that message does not exist any more
        if since_s:
            request.start_message_rollback_duration_sec = since_s
        await self.ask(request)
        return request.consumer_id

    def next_consumer_id(self) -> int:
        return next(self._consumer_ids)

    def keep_messages(self, consumer: int) -> None:
        """Keep messages of a consumer that come while another answer is waited for; `message` returns all of them."""
        self._kept[consumer] = deque()

    async def message(self, consumer: int) -> tuple[api.CommandMessage, bytes]:
        """Wait for the next message of a consumer whose messages are kept, and return (command, entry)."""
        while not self._kept[consumer]:
            await self.receive(T.MESSAGE)
        command, entry = self._kept[consumer].popleft()
        return command.message, entry

    def send_together(self, messages: list[Message]) -> None:
        """Send the commands with these messages by one write: if the process is killed, the broker gets all or none."""
        self._transport.write(b"".join(frames.frame(frames.command_of(message)) for message in messages))

    async def close_consumer(self, consumer: int) -> None:
        await self.ask(api.CommandCloseConsumer(consumer_id=consumer))

    async def unsubscribe(self, consumer: int) -> None:
        """Remove a consumer and its subscription.  Raises ClientError."""
        await self.ask(api.CommandUnsubscribe(consumer_id=consumer))

    async def last(self, consumer: int) -> tuple[int, int] | None:
        """Return (ledger, entry) of the topic's last entry, None if it has none.  Raises ClientError."""
        last = (await self.ask(api.CommandGetLastMessageId(consumer_id=consumer))).last_message_id
        return None if last.ledgerId >> 63 or last.entryId >> 63 else (last.ledgerId, last.entryId)      # -1: no entry

    async def entries(self, consumer: int, last: tuple[int, int] | None) -> AsyncIterator[list[Entry]]:
        """Yield the consumer's entries up to the position `last`, as lists of entries that arrived together.

        Nothing is yielded if `last` is None.
        """
        if last is None:
            return
        permits, used, run = _PERMITS, _PERMITS, []
        while True:
            if used * 2 >= permits:
                self.send(api.CommandFlow(consumer_id=consumer, messagePermits=used))
                used = 0
            command, data = await self.receive(T.MESSAGE)
            if command.message.consumer_id != consumer:
                continue
            run.append(entry_of(command.message, data))
            used += run[-1].messages
            is_end = run[-1][:2] >= last
            if is_end or not self._came or used * 2 >= permits:
                yield run
                run = []
            if is_end:
                return

    async def read(self, topic: str, first: tuple[int, int] | None = None) -> list[bytes]:
        """Return the payloads of a topic's entries from `first`, or the beginning, to the end.

        A batch is one payload.
        """
        consumer = await self.subscribe(topic, first=first)
        last = await self.last(consumer)
        return [entry.payload async for run in self.entries(consumer, last) for entry in run]

    # -- topics and schemas

    async def partitions(self, topic: str) -> int | None:
        """Return the topic's number of partitions: 0 if it is not partitioned, None if the broker does not know it."""
        try:
            return await questions.partitions(self, topic, may_create=False)
        except ClientError as error:
            if error.code == api.TopicNotFound:
                return None
            raise

    async def topics(self, namespace: str) -> list[str]:
        """Return the names of the namespace's persistent topics; a partitioned topic is listed by its partitions."""
        request = api.CommandGetTopicsOfNamespace(
            namespace=namespace, mode=api.CommandGetTopicsOfNamespace.PERSISTENT)
        return list((await self.ask(request)).topics)

    async def schemas(self, topic: str) -> dict[int, api.Schema]:
        """Return {version: schema} of a topic, in ascending order of versions."""
        newest = await self.schema(topic, b"")
        if newest is None:
            return {}
        older_ones = {}
        for version in range(int.from_bytes(newest.schema_version)):
            older = await self.schema(topic, version.to_bytes(8))
            if older is not None:
                older_ones[version] = older.schema
        return older_ones | {int.from_bytes(newest.schema_version): newest.schema}

    async def schema(self, topic: str, version: bytes) -> api.CommandGetSchemaResponse | None:
        """Return a version of a topic's schema, the newest for b"", None if there is none.  Raises ClientError."""
        try:
            return await questions.schema(self, topic, version or None)
        except ClientError as error:
            if error.code == api.TopicNotFound:
                return None
            raise

    async def lookup(self, topic: str, *, is_authoritative: bool) -> api.CommandLookupTopicResponse:
        answer: api.CommandLookupTopicResponse = await self.ask(
            api.CommandLookupTopic(topic=topic, authoritative=is_authoritative))
        return answer

    def close(self) -> None:
        self._transport.close()


def check(command: api.BaseCommand) -> None:
    """Raise ClientError if a command from the broker is an error, or closes the producer or consumer."""
    if command.type in _ENDS:
        raise ClientError(f"the broker closed {_ENDS[command.type]}")
    if (error := error_in(command)) is not None:
        code, text = error
        raise ClientError(f"{api.ServerError.Name(cast('api.ServerError.ValueType', code))}: {text}", code)


async def connect(url: str, method: str = "", data: str = "", tls: ssl.SSLContext | None = None,
                  beyond: str = "") -> BrokerConnection:
    """Connect to the broker at pulsar://host:port, at pulsar+ssl:// with `tls`, or at unix:PATH without credentials.

    method, data: credentials.  beyond: host:port of a broker behind the proxy at `url`, "" without a proxy.

    Raises OSError, NoBroker, NoAddress, ClientError.
    """
    if url.startswith(unix_sockets.UNIX):
        opening = unix_sockets.open_connection(url, BrokerConnection)
    else:
        opening = asyncio.get_running_loop().create_connection(BrokerConnection, *address_of(url), ssl=tls)
    try:
        async with asyncio.timeout(_CONNECT_S):
            connection = (await opening)[1]
            connection.place = url, beyond
            return await _introduced(connection, method, data, beyond)
    except NoAddress:
        raise
    except ClientError as error:
        if error.code in (None, api.NotAllowedError):      # no broker's answer, or another protocol's port
            raise NoBroker(str(error), error.code) from None
        raise
    except TimeoutError:
        raise NoBroker(f"no answer within {_CONNECT_S} s") from None


def address_of(url: str) -> tuple[str, int]:
    """Return (host, port) of a broker's URL.  Raises NoAddress."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not url.startswith(("pulsar://", "pulsar+ssl://")) or not url.isprintable():
        raise NoAddress(f"{url!r} is no address such as pulsar://127.0.0.1:6650")
    return host, port or (6651 if parts.scheme == "pulsar+ssl" else 6650)


async def connect_to_topic(url: str, topic: str, method: str = "", data: str = "",
                           tls: ssl.SSLContext | None = None) -> BrokerConnection:
    """Connect to the broker of the cluster that serves the topic, as `connect` does.  Raises ClientError, OSError."""
    if url.startswith(unix_sockets.UNIX):      # this broker serves all topics
        return await connect(url)
    at, beyond, is_authoritative = url, "", False
    for _ in range(_HOPS_MAX):
        connection = await connect(at, method, data, tls, beyond)
        try:
            answer = await connection.lookup(topic, is_authoritative=is_authoritative)
        except BaseException:
            connection.close()
            raise
        address = answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl
        place = (url, urlsplit(address).netloc) if answer.proxy_through_service_url else (address, "")
        if place == connection.place and answer.response == answer.Connect:
            return connection
        connection.close()
        if answer.response == answer.Connect:
            return await connect(place[0], method, data, tls, place[1])
        (at, beyond), is_authoritative = place, answer.authoritative
    raise ClientError(f"{topic} has no broker: each names another one")


async def _introduced(connection: BrokerConnection, method: str = "", data: str = "",
                      beyond: str = "") -> BrokerConnection:
    """Do the handshake on a new connection: send CONNECT, wait for CONNECTED, and return the connection.

    Raises ClientError, and closes the connection then.
    """
    try:
        connection.send(greeting(method, data.encode(), beyond))
        answer, _ = await connection.receive(T.CONNECTED)
        connection.message_size_max = message_size_max(answer.connected)
        connection.is_geminga = "(Geminga " in answer.connected.server_version
    except BaseException:
        connection.close()
        raise
    return connection


def _entry(producer_name: str, sequence_id: int, payload: bytes) -> bytes:
    metadata = api.MessageMetadata(producer_name=producer_name, sequence_id=sequence_id,
                                   publish_time=time.time_ns() // 1_000_000).SerializeToString()
    return frames.with_checksum(frames.SIZE.pack(len(metadata)) + metadata + payload)
