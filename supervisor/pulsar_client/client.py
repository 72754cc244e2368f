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
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from crc32c import crc32c
from google.protobuf.message import DecodeError

from geminga.proto import frames, sends
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.pulsar_client import reasons

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
# Type of an answer that may have an error: (field of BaseCommand, field of the code, field of the text).
_ANSWERS = {T.LOOKUP_RESPONSE: ("lookupTopicResponse", "error", "message"),
            T.PARTITIONED_METADATA_RESPONSE: ("partitionMetadataResponse", "error", "message"),
            T.GET_SCHEMA_RESPONSE: ("getSchemaResponse", "error_code", "error_message"),
            T.SEND_ERROR: ("send_error", "error", "message"), T.ERROR: ("error", "error", "message")}


class ClientError(Exception):
    """An error: the broker refused a command, or sent an unexpected answer."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code           # the protocol's error code, if the broker refused


class Silence(ClientError):
    """An error: the broker sent no frame for a minute."""


class NoAddress(ClientError):
    """An error: a text is not the address of a broker."""

    exit_status = 2


class Entry(NamedTuple):
    """An entry with its checksum, as it is stored, and its position."""

    ledger_id: int
    entry_id: int
    metadata: api.MessageMetadata
    data: bytes

    @property
    def payload(self) -> bytes:
        size = frames.SIZE.unpack_from(self.data, frames.CHECKSUM_END)[0]
        return self.data[frames.CHECKSUM_END + 4 + size:]

    @property
    def messages(self) -> int:
        return max(1, self.metadata.num_messages_in_batch)


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
                self.send(api.BaseCommand(type=T.PONG, pong=api.CommandPong()))
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

    async def call(self, command: api.BaseCommand, expected: int) -> api.BaseCommand:
        """Send a command to the broker and return its answer.  Raises ClientError."""
        self.send(command)
        answer, _ = await self.receive(expected)
        return answer

    def send(self, command: api.BaseCommand, entry: bytes = b"") -> None:
        body = command.SerializeToString()
        self._transport.write(frames.SIZES.pack(4 + len(body) + len(entry), len(body)) + body + entry)

    async def receive(self, expected: int) -> tuple[api.BaseCommand, bytes]:
        """Wait for the next frame of the expected type, and return (command, entry).

        Frames of other types are skipped. Raises ClientError for an error from the broker.
        """
        while True:
            while not self._came:
                await self._more()
            command, entry = self._came.popleft()
            self._held -= len(entry)
            if self._is_paused and self._held < _HELD_MAX // 2:
                self._is_paused = False
                self._transport.resume_reading()
            _check(command)
            if command.type == expected:
                return command, entry

    async def _more(self) -> None:
        if self._end:
            raise ClientError(self._end)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._waiter, _SILENCE_S)
        except TimeoutError:
            raise Silence(f"nothing came for {_SILENCE_S} s") from None

    def request_id(self) -> int:
        return next(self._request_ids)

    # -- publishing

    async def producer(self, topic: str, name: str = "",
                       schema: api.Schema | None = None) -> api.CommandProducerSuccess:
        """Create the connection's only producer on a topic, with a generated name unless `name` is given.

        Raises ClientError.
        """
        request = api.CommandProducer(topic=topic, producer_id=1, request_id=self.request_id(), schema=schema)
        if name:
            request.producer_name = name
        answer = await self.call(api.BaseCommand(type=T.PRODUCER, producer=request), T.PRODUCER_SUCCESS)
        return answer.producer_success

    async def close_producer(self) -> None:
        close = api.CommandCloseProducer(producer_id=1, request_id=self.request_id())
        await self.call(api.BaseCommand(type=T.CLOSE_PRODUCER, close_producer=close), T.SUCCESS)

    async def publish(self, topic: str, payloads: list[bytes]) -> list[tuple[int, int]]:
        """Publish each payload as a message; return their positions as (ledger, entry).  Raises ClientError."""
        producer = await self.producer(topic)
        positions = []
        for number, payload in enumerate(payloads):
            send = api.CommandSend(producer_id=1, sequence_id=number)
            self.send(api.BaseCommand(type=T.SEND, send=send), _entry(producer.producer_name, number, payload))
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
            body = api.BaseCommand(type=T.SEND, send=send).SerializeToString()
            written += frames.SIZES.pack(4 + len(body) + len(entry.data), len(body)), body, entry.data
        await self._can_write.wait()
        self._transport.write(b"".join(written))

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
            consumer_id=next(self._consumer_ids), request_id=self.request_id(), durable=bool(subscription),
            initialPosition=api.CommandSubscribe.Earliest, force_topic_creation=makes_topic)
        if first is not None:
            request.start_message_id.ledgerId, request.start_message_id.entryId = first
            request.initialPosition = api.CommandSubscribe.Latest      # if that message does not exist any more
        if since_s:
            request.start_message_rollback_duration_sec = since_s
        await self.call(api.BaseCommand(type=T.SUBSCRIBE, subscribe=request), T.SUCCESS)
        return request.consumer_id

    async def close_consumer(self, consumer: int) -> None:
        close = api.CommandCloseConsumer(consumer_id=consumer, request_id=self.request_id())
        self.send(api.BaseCommand(type=T.CLOSE_CONSUMER, close_consumer=close))
        await self.receive(T.SUCCESS)

    async def last(self, consumer: int) -> tuple[int, int] | None:
        """Return (ledger, entry) of the topic's last entry, None if it has none.  Raises ClientError."""
        ask = api.CommandGetLastMessageId(consumer_id=consumer, request_id=self.request_id())
        answer = await self.call(api.BaseCommand(type=T.GET_LAST_MESSAGE_ID, getLastMessageId=ask),
                                 T.GET_LAST_MESSAGE_ID_RESPONSE)
        last = answer.getLastMessageIdResponse.last_message_id
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
                self.send(api.BaseCommand(type=T.FLOW, flow=api.CommandFlow(consumer_id=consumer, messagePermits=used)))
                used = 0
            command, data = await self.receive(T.MESSAGE)
            if command.message.consumer_id != consumer:
                continue
            data, place = sends.with_checksum(data), command.message.message_id
            size = frames.SIZE.unpack_from(data, frames.CHECKSUM_END)[0]
            metadata = api.MessageMetadata.FromString(data[frames.CHECKSUM_END + 4:frames.CHECKSUM_END + 4 + size])
            run.append(Entry(place.ledgerId, place.entryId, metadata, data))
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
        request = api.CommandPartitionedTopicMetadata(topic=topic, request_id=self.request_id(),
                                                      metadata_auto_creation_enabled=False)
        command = api.BaseCommand(type=T.PARTITIONED_METADATA, partitionMetadata=request)
        try:
            answer = await self.call(command, T.PARTITIONED_METADATA_RESPONSE)
        except ClientError as error:
            if error.code == api.TopicNotFound:
                return None
            raise
        return answer.partitionMetadataResponse.partitions

    async def topics(self, namespace: str) -> list[str]:
        """Return the names of the namespace's persistent topics; a partitioned topic is listed by its partitions."""
        request = api.CommandGetTopicsOfNamespace(namespace=namespace, request_id=self.request_id(),
                                                  mode=api.CommandGetTopicsOfNamespace.PERSISTENT)
        answer = await self.call(api.BaseCommand(type=T.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=request),
                                 T.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        return list(answer.getTopicsOfNamespaceResponse.topics)

    async def schemas(self, topic: str) -> dict[int, api.Schema]:
        """Return {version: schema} of a topic, in ascending order of versions."""
        newest = await self._schema(topic, b"")
        if newest is None:
            return {}
        older_ones = {}
        for version in range(int.from_bytes(newest.schema_version)):
            older = await self._schema(topic, version.to_bytes(8))
            if older is not None:
                older_ones[version] = older.schema
        return older_ones | {int.from_bytes(newest.schema_version): newest.schema}

    async def _schema(self, topic: str, version: bytes) -> api.CommandGetSchemaResponse | None:
        request = api.CommandGetSchema(topic=topic, request_id=self.request_id())
        if version:
            request.schema_version = version
        try:
            answer = await self.call(api.BaseCommand(type=T.GET_SCHEMA, getSchema=request), T.GET_SCHEMA_RESPONSE)
        except ClientError as error:
            if error.code == api.TopicNotFound:
                return None
            raise
        return answer.getSchemaResponse

    async def lookup(self, topic: str, *, is_authoritative: bool) -> api.CommandLookupTopicResponse:
        request = api.CommandLookupTopic(topic=topic, request_id=self.request_id(), authoritative=is_authoritative)
        answer = await self.call(api.BaseCommand(type=T.LOOKUP, lookupTopic=request), T.LOOKUP_RESPONSE)
        return answer.lookupTopicResponse

    def close(self) -> None:
        self._transport.close()


def _check(command: api.BaseCommand) -> None:
    """Raise ClientError if a command from the broker is an error, or closes the producer or consumer."""
    if command.type in _ENDS:
        raise ClientError(f"the broker closed {_ENDS[command.type]}")
    if command.type in _ANSWERS:
        name, code, text = _ANSWERS[command.type]
        answer = getattr(command, name)
        if answer.HasField(code):
            number = getattr(answer, code)
            raise ClientError(f"{api.ServerError.Name(number)}: {getattr(answer, text)}", number)


async def connect(url: str, method: str = "", data: str = "", tls: ssl.SSLContext | None = None,
                  beyond: str = "") -> BrokerConnection:
    """Connect to the broker at pulsar://host:port, or at pulsar+ssl:// with `tls`.

    method, data: credentials.  beyond: host:port of a broker behind the proxy at `url`, "" without a proxy.

    Raises OSError, ClientError.
    """
    host, port = _address(url)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, connection = await asyncio.get_running_loop().create_connection(BrokerConnection, host, port, ssl=tls)
            return await _introduced(connection, method, data, beyond)
    except TimeoutError:
        raise ClientError(f"no answer within {_CONNECT_S} s") from None


def _address(url: str) -> tuple[str, int]:
    """Return (host, port) of a URL.  Raises NoAddress."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not url.startswith(("pulsar://", "pulsar+ssl://")):
        raise NoAddress(f"{url!r} is no address such as pulsar://127.0.0.1:6650")
    return host, port or (6651 if parts.scheme == "pulsar+ssl" else 6650)


async def connect_to_topic(url: str, topic: str, method: str = "", data: str = "",
                           tls: ssl.SSLContext | None = None) -> BrokerConnection:
    """Connect to the broker of the cluster that serves the topic, as `connect` does.  Raises ClientError, OSError."""
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
        is_there = place == (at, beyond)
        if is_there and answer.response == answer.Connect:
            return connection
        connection.close()
        if answer.response == answer.Connect:
            return await connect(place[0], method, data, tls, place[1])
        (at, beyond), is_authoritative = place, answer.authoritative
    raise ClientError(f"{topic} has no broker: each names another one")


async def connect_inside(path: Path) -> BrokerConnection:
    """Connect over the Unix socket that a worker has for the broker's own processes."""
    _, connection = await asyncio.get_running_loop().create_unix_connection(BrokerConnection, str(path))
    return await _introduced(connection)


async def _introduced(connection: BrokerConnection, method: str = "", data: str = "",
                      beyond: str = "") -> BrokerConnection:
    """Do the handshake on a new connection: send CONNECT, wait for CONNECTED, and return the connection.

    Raises ClientError, and closes the connection then.
    """
    request = api.CommandConnect(client_version="Geminga", protocol_version=19, auth_method_name=method,
                                 auth_data=data.encode())
    if beyond:
        request.proxy_to_broker_url = beyond
    try:
        await connection.call(api.BaseCommand(type=T.CONNECT, connect=request), T.CONNECTED)
    except BaseException:
        connection.close()
        raise
    return connection


async def publish(url: str, topic: str, payloads: list[bytes], method: str = "", data: str = "",
                  tls: ssl.SSLContext | None = None) -> list[tuple[int, int]]:
    """Publish each payload as a message; return (ledger, entry) of each.  Raises ClientError, OSError."""
    connection = await connect(url, method, data, tls)
    try:
        return await connection.publish(topic, payloads)
    finally:
        connection.close()


def _entry(producer_name: str, sequence_id: int, payload: bytes) -> bytes:
    metadata = api.MessageMetadata(producer_name=producer_name, sequence_id=sequence_id,
                                   publish_time=time.time_ns() // 1_000_000).SerializeToString()
    body = frames.SIZE.pack(len(metadata)) + metadata + payload
    return frames.MAGIC.to_bytes(2, "big") + frames.SIZE.pack(crc32c(body)) + body
