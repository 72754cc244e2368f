"""A small client of the binary protocol: what the health check and the command line need, and no more.

One request at a time, one message per frame; real applications use a Pulsar client library.
"""
import asyncio
import itertools
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

from crc32c import crc32c

from geminga.proto import frames
from geminga.proto import pulsar_api_pb2 as api

T = api.BaseCommand.Type
_PERMITS = 1_000


class ClientError(Exception):
    """The broker said no, or something that was not expected."""


class Session:
    """A connection with its handshake done."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._request_ids = itertools.count(1)

    async def call(self, command: api.BaseCommand, expected: int) -> api.BaseCommand:
        """Send the command and return its answer.  Raises ClientError."""
        self.send(command)
        answer, _ = await self.receive(expected)
        return answer

    def send(self, command: api.BaseCommand, entry: bytes = b"") -> None:
        body = command.SerializeToString()
        self._writer.write(frames.SIZES.pack(4 + len(body) + len(entry), len(body)) + body + entry)

    async def receive(self, expected: int) -> tuple[api.BaseCommand, bytes]:
        """The next frame of that kind: (command, entry)."""
        while True:
            try:
                total, size = frames.SIZES.unpack(await self._reader.readexactly(8))
                command = api.BaseCommand.FromString(await self._reader.readexactly(size))
                entry = await self._reader.readexactly(total - 4 - size)
            except asyncio.IncompleteReadError:
                raise ClientError("the broker closed the connection") from None
            if command.type == T.PING:
                self.send(api.BaseCommand(type=T.PONG, pong=api.CommandPong()))
            elif command.type == T.ERROR:
                raise ClientError(f"{api.ServerError.Name(command.error.error)}: {command.error.message}")
            elif command.type == T.LOOKUP_RESPONSE and command.lookupTopicResponse.HasField("error"):
                raise ClientError(command.lookupTopicResponse.message)
            elif command.type == T.SEND_ERROR:
                raise ClientError(command.send_error.message)
            elif command.type == expected:
                return command, entry

    def request_id(self) -> int:
        return next(self._request_ids)

    async def publish(self, topic: str, payloads: list[bytes]) -> list[tuple[int, int]]:
        """Publish each payload as a message; returns their (ledger, entry)."""
        request = api.CommandProducer(topic=topic, producer_id=1, request_id=self.request_id())
        answer = await self.call(api.BaseCommand(type=T.PRODUCER, producer=request), T.PRODUCER_SUCCESS)
        found = []
        for number, payload in enumerate(payloads):
            send = api.CommandSend(producer_id=1, sequence_id=number)
            self.send(api.BaseCommand(type=T.SEND, send=send), _entry(answer.producer_success.producer_name, number, payload))
            receipt, _ = await self.receive(T.SEND_RECEIPT)
            found.append((receipt.send_receipt.message_id.ledgerId, receipt.send_receipt.message_id.entryId))
        close = api.CommandCloseProducer(producer_id=1, request_id=self.request_id())
        await self.call(api.BaseCommand(type=T.CLOSE_PRODUCER, close_producer=close), T.SUCCESS)
        return found

    async def read(self, topic: str, first: tuple[int, int] | None = None) -> list[bytes]:
        """Payloads from first (or the beginning) to the end, as they are stored: a batch is one."""
        name = f"geminga-reader-{time.time_ns()}"
        request = api.CommandSubscribe(topic=topic, subscription=name, subType=api.CommandSubscribe.Exclusive, consumer_id=1,
                                       request_id=self.request_id(), durable=False,
                                       initialPosition=api.CommandSubscribe.Earliest)
        if first is not None:
            request.start_message_id.ledgerId, request.start_message_id.entryId = first
        await self.call(api.BaseCommand(type=T.SUBSCRIBE, subscribe=request), T.SUCCESS)
        ask = api.CommandGetLastMessageId(consumer_id=1, request_id=self.request_id())
        answer = await self.call(api.BaseCommand(type=T.GET_LAST_MESSAGE_ID, getLastMessageId=ask), T.GET_LAST_MESSAGE_ID_RESPONSE)
        last = answer.getLastMessageIdResponse.last_message_id
        found: list[bytes] = []
        if last.ledgerId >> 63:      # -1: there is none
            return found
        while True:
            self.send(api.BaseCommand(type=T.FLOW, flow=api.CommandFlow(consumer_id=1, messagePermits=_PERMITS)))
            for _ in range(_PERMITS):
                command, entry = await self.receive(T.MESSAGE)
                found.append(_payload(entry))
                if command.message.message_id.ledgerId == last.ledgerId and command.message.message_id.entryId == last.entryId:
                    return found

    def close(self) -> None:
        self._writer.close()


async def connect(url: str, method: str = "", data: str = "", tls: ssl.SSLContext | None = None) -> Session:
    """A session with the broker at pulsar://host:port, or pulsar+ssl:// with tls, for who shows that by this method.

    Raises OSError, ClientError.
    """
    address = urlsplit(url)
    where = address.hostname, address.port or (6651 if tls else 6650)
    return await _introduced(Session(*await asyncio.open_connection(*where, ssl=tls)), method, data)


async def connect_inside(path: Path) -> Session:
    """Likewise, for the broker's own processes."""
    return await _introduced(Session(*await asyncio.open_unix_connection(path)))


async def _introduced(session: Session, method: str = "", data: str = "") -> Session:
    request = api.CommandConnect(client_version="Geminga", protocol_version=19, auth_method_name=method, auth_data=data.encode())
    try:
        await session.call(api.BaseCommand(type=T.CONNECT, connect=request), T.CONNECTED)
    except BaseException:
        session.close()
        raise
    return session


async def publish(url: str, topic: str, payloads: list[bytes], method: str = "", data: str = "",
                  tls: ssl.SSLContext | None = None) -> list[tuple[int, int]]:
    session = await connect(url, method, data, tls)
    try:
        return await session.publish(topic, payloads)
    finally:
        session.close()


async def read(url: str, topic: str, method: str = "", data: str = "", tls: ssl.SSLContext | None = None) -> list[bytes]:
    session = await connect(url, method, data, tls)
    try:
        return await session.read(topic)
    finally:
        session.close()


def _entry(producer_name: str, sequence_id: int, payload: bytes) -> bytes:
    metadata = api.MessageMetadata(producer_name=producer_name, sequence_id=sequence_id,
                                   publish_time=time.time_ns() // 1_000_000).SerializeToString()
    body = frames.SIZE.pack(len(metadata)) + metadata + payload
    return frames.MAGIC.to_bytes(2, "big") + frames.SIZE.pack(crc32c(body)) + body


def _payload(entry: bytes) -> bytes:
    size = frames.SIZE.unpack_from(entry, frames.CHECKSUM_END)[0]
    return entry[frames.CHECKSUM_END + 4 + size:]
