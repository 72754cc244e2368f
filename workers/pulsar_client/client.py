"""A small client of the binary protocol for the health check, commands and tasks.

It sends and receives entries as they are stored, a batch as one.  Applications use a Pulsar client library.
"""
import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import Message

from geminga.proto import frames, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.storage.runtime import unix_sockets
from geminga.workers.pulsar_client.connection import (
    ClientError,
    FramedConnection,
    NoBroker,
    consuming,
    error_in,
    greeting,
    producing,
    text_of,
)
from geminga.workers.pulsar_client.entries import Entry, entry_data, entry_of

_PERMITS = 5_000
_CONNECT_S = 10             # limit for a connection and its handshake
_SILENCE_S = 60             # a wait for an answer ends after this time without a frame
_HELD_MAX = 16 << 20        # bytes received and not consumed yet; beyond, the socket is not read
_HOPS_MAX = 10              # redirections of a lookup
_ENDS = {T.CLOSE_PRODUCER: "the producer", T.CLOSE_CONSUMER: "the consumer"}


class Silence(ClientError):
    """An error: the broker sent no frame for as long as a wait may take."""


class Closed(ClientError):
    """An error: the broker closed a producer or a consumer."""


class NoAddress(ClientError):
    """An error: a text is not the address of a broker."""

    exit_status = 2


class BrokerConnection(FramedConnection):
    """One connection to a broker; `connect` returns it after the handshake."""

    ENDED = ClientError
    ANSWER_S = 60.0

    def __init__(self) -> None:
        super().__init__()
        self._came: deque[tuple[api.BaseCommand, bytes]] = deque()      # (command, entry) of received frames
        self._held = 0                                       # bytes of entries that were received and not consumed
        self._is_paused, self._asking = False, 0             # _asking: requests under way
        self._waiter: asyncio.Future[None] | None = None     # what `receive` waits for: the next frame
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.is_ignoring = False   # whether all frames but answers are dropped, as nobody will ask for them
        self.place = "", ""        # URL of the broker or proxy, and host:port of the broker behind the proxy
        self.is_geminga = False                              # whether the broker is one of these
        self._kept: dict[int, deque[tuple[api.BaseCommand, bytes]]] = {}      # consumer: frames of its messages

    def __repr__(self) -> str:
        return f"<BrokerConnection frames={len(self._came)} held={self._held} end={self.why_ended!r}>"

    # -- called by the event loop

    def take_command(self, command: api.BaseCommand, entry: bytes) -> None:
        if self.is_ignoring:
            return
        kept = self._kept.get(command.message.consumer_id) if command.type == T.MESSAGE else None
        (self._came if kept is None else kept).append((command, entry))
        self._held += len(entry)

    def taken(self) -> None:
        self._hold_or_read()
        self._wake()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def ended(self, why: str) -> None:
        self._can_write.set()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _hold_or_read(self) -> None:
        """Leave further frames in the socket while many wait here, but for an answer: it may lie behind all of them."""
        if not self._is_paused and self._held > _HELD_MAX and not self._asking and self.is_open:
            self._is_paused = True
            self.transport.pause_reading()
        elif self._is_paused and (self._asking or self._held < _HELD_MAX // 2) and self.is_open:
            self._is_paused = False
            self.transport.resume_reading()

    # -- commands

    async def ask(self, request: Any) -> Any:
        """Send a request, and return the message inside its answer.  Raises ClientError.

        Entries that come meanwhile are kept in memory for `receive`.
        """
        self._asking += 1
        self._hold_or_read()
        try:
            return await super().ask(request)
        finally:
            self._asking -= 1
            self._hold_or_read()

    async def receive(self, expected: int) -> tuple[api.BaseCommand, bytes]:
        """Wait for the next frame of the expected type, and return (command, entry).

        Frames of other types are skipped. Raises ClientError for an error from the broker.
        """
        while True:
            command, entry = await self.frame()
            check(command)
            if command.type == expected:
                return command, entry

    async def frame(self, silence_s: float = _SILENCE_S) -> tuple[api.BaseCommand, bytes]:
        """Wait for the next frame that is no answer, and return (command, entry).  Raises ClientError, Silence."""
        while (frame := self.frame_at_hand()) is None:
            await self._more(silence_s)
        return frame

    def frame_at_hand(self) -> tuple[api.BaseCommand, bytes] | None:
        """Return the next frame as (command, entry) if it has arrived already, else None."""
        return self._next_of(self._came) if self._came else None

    def _next_of(self, waiting: "deque[tuple[api.BaseCommand, bytes]]") -> tuple[api.BaseCommand, bytes]:
        command, entry = waiting.popleft()
        self._held -= len(entry)
        self._hold_or_read()
        return command, entry

    async def _more(self, silence_s: float) -> None:
        if self.why_ended:
            raise ClientError(self.why_ended)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(silence_s):
                await self._waiter
        except TimeoutError:
            raise Silence(f"nothing came for {silence_s:g} s") from None

    # -- publishing

    async def producer(self, topic: str, name: str = "", schema: api.Schema | None = None,
                       only_for: str = "") -> api.CommandProducerSuccess:
        """Create the connection's only producer on a topic, with a generated name unless `name` is given.

        only_for: the subscription that gets its messages; "": all do.  Brokers of others do not know that.  Raises
        ClientError.
        """
        request = producing(topic, 1, name, schema)
        if only_for:
            request.metadata.add(key=names.ONLY_FOR, value=only_for)
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
        await self.write_when_possible(written)

    async def write_when_possible(self, pieces: list[bytes]) -> None:
        """Write whole frames, in any number of pieces, once there is room for more."""
        await self._can_write.wait()
        self.write(pieces)

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
        number = self.next_id()
        start = None if first is None else api.MessageIdData(ledgerId=first[0], entryId=first[1])
        await self.ask(consuming(
            topic, subscription or f"geminga-reader-{time.time_ns()}", number,
            api.CommandSubscribe.Shared if subscription else api.CommandSubscribe.Exclusive,
            is_durable=bool(subscription), start=start, since_s=since_s, makes_topic=makes_topic,
            # The initial position counts if that message does not exist any more.
            position=api.CommandSubscribe.Earliest if first is None else api.CommandSubscribe.Latest))
        return number

    def keep_messages(self, consumer: int) -> None:
        """Keep messages of a consumer for `message`, whatever else is received meanwhile."""
        self._kept[consumer] = deque()

    async def message(self, consumer: int, silence_s: float) -> tuple[api.CommandMessage, bytes]:
        """Wait for the next message of a consumer whose messages are kept, and return (command, entry).

        Raises ClientError; Silence after so long without any frame.
        """
        while not self._kept[consumer]:
            if (frame := self.frame_at_hand()) is not None:
                check(frame[0])
            else:
                await self._more(silence_s)
        command, entry = self._next_of(self._kept[consumer])
        return command.message, entry

    def send_together(self, messages: list[Message]) -> None:
        """Send the commands with these messages by one write: if the process is killed, the broker gets all or none."""
        self.write([frames.frame(frames.command_of(message)) for message in messages])

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
            return await self.partition_count(topic, may_create=False)
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
            return await self.schema_version(topic, version or None)
        except ClientError as error:
            if error.code == api.TopicNotFound:
                return None
            raise

    async def lookup(self, topic: str, *, is_authoritative: bool) -> api.CommandLookupTopicResponse:
        answer: api.CommandLookupTopicResponse = await self.ask(
            api.CommandLookupTopic(topic=topic, authoritative=is_authoritative))
        return answer

    def close(self) -> None:
        self.finish("the connection was closed")


def check(command: api.BaseCommand) -> None:
    """Raise ClientError if a command from the broker is an error, or closes the producer or consumer."""
    if command.type in _ENDS:
        raise Closed(f"the broker closed {_ENDS[command.type]}")
    if (error := error_in(command)) is not None:
        raise ClientError(text_of(*error), error[0])


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
        answer = await connection.greet(greeting(method, data.encode(), beyond))
        connection.is_geminga = "(Geminga " in answer.server_version
    except BaseException:
        connection.close()
        raise
    return connection


def _entry(producer_name: str, sequence_id: int, payload: bytes) -> bytes:
    return entry_data(api.MessageMetadata(producer_name=producer_name, sequence_id=sequence_id,
                                          publish_time=time.time_ns() // 1_000_000), payload)
