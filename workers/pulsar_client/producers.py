"""Producers that send without waiting for each receipt.

    sending = Sending(connection, received)              # received(receipt) is called for each entry
    producer = await sending.open(topic)
    async with sending:                                  # receipts are read while the block runs
        await sending.send(producer, data, sequence_id)
        await sending.flush()                            # until all receipts are there
    await sending.close()

All producers that one Sending object opens use its connection.  Together they have at most so many entries and bytes
without a receipt as the object allows.
"""
import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from geminga.proto import frames
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.connection import ClientError, producing

_UNDER_WAY_MAX = 1_000              # entries without a receipt
_BYTES_UNDER_WAY_MAX = 16 << 20     # of these entries; one larger entry may be under way alone
_WRITE_BYTES = 64 << 10             # frames are gathered to so many bytes before they are written
_BUSY_S = 20                        # how long a killed process's connection may hold a name
_NO_ID = (1 << 64) - 1              # ledger of a receipt for what is not stored: a duplicate, or not persistent


class Producer(NamedTuple):
    """A producer that a broker has accepted."""

    number: int                     # on its connection
    topic: str
    partition: int                  # -1 if its topic is not partitioned
    name: str
    last_sequence_id: int           # of an earlier producer with its name, -1 without one
    schema_version: bytes | None


class Receipt(NamedTuple):
    """The broker's answer to an entry."""

    producer: Producer
    ledger_id: int
    entry_id: int
    sequence_id: int                # of the entry's first message
    messages: int
    payload_bytes: int

    @property
    def has_id(self) -> bool:
        """Whether the entry has a position; a duplicate has none, nor has an entry of some non-persistent topics."""
        return self.ledger_id != _NO_ID


class Lost(ClientError):
    """An error: the connection or the broker failed before all entries had receipts."""


class Sending:
    """Producers on one connection, and the entries that are under way."""

    def __init__(self, connection: BrokerConnection, received: Callable[[Receipt], None]) -> None:
        self._connection, self._received = connection, received
        self._producers: dict[int, Producer] = {}
        # By producer, in order: receipts that lack their ids, with the entries' sizes.
        self._under_way: dict[int, deque[tuple[Receipt, int]]] = {}
        self._count = self._bytes = self._messages = 0       # entries under way, their bytes and messages
        self._gathered: list[bytes] = []                     # frames of entries under way that are not written yet
        self._gathered_bytes = 0
        self._command = api.BaseCommand(type=T.SEND)         # of the last entry; making one anew takes twice as long
        self._more, self._room, self._done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._done.set()
        self._reader: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Sending {len(self._producers)} producers, {self._count} entries under way>"

    @property
    def messages_under_way(self) -> int:
        """Messages that were sent or gathered and have no receipt."""
        return self._messages

    # -- producers

    async def open(self, topic: str, partition: int = -1, name: str = "",
                   schema: api.Schema | None = None) -> Producer:
        """Create a producer.  The broker creates the topic if it may.  Raises ClientError.

        All producers are opened before the first entry is sent.
        """
        number = len(self._producers) + 1
        success: api.CommandProducerSuccess = await self._connection.ask(producing(topic, number, name, schema))
        producer = Producer(number, topic, partition, success.producer_name, success.last_sequence_id,
                            success.schema_version or None if schema is not None else None)
        self._producers[number] = producer
        self._under_way[number] = deque()
        return producer

    async def close(self) -> None:
        """Close all producers; call this when nothing is under way any more.  Raises ClientError."""
        for number in self._producers:
            await self._connection.ask(api.CommandCloseProducer(producer_id=number))

    # -- entries

    async def __aenter__(self) -> "Sending":
        self._reader = asyncio.create_task(self._receipts())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reader is not None
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError, ClientError):
            await self._reader

    async def send(self, producer: Producer, data: bytes, sequence_id: int, messages: int = 1,
                   payload_bytes: int = 0, highest: int | None = None) -> None:
        """Send an entry, when there is room among those under way.  Raises Lost.

        highest: sequence id of the last message; None: those of a batch follow each other without gaps.
        """
        size = len(data)
        if self._count >= _UNDER_WAY_MAX or self._bytes + size > _BYTES_UNDER_WAY_MAX > size:
            await self._make_room(size)
        send = self._command.send
        send.producer_id, send.sequence_id, send.num_messages = producer.number, sequence_id, messages
        if messages > 1:
            send.highest_sequence_id = sequence_id + messages - 1 if highest is None else highest
        else:
            send.ClearField("highest_sequence_id")
        self._gathered += frames.pieces(self._command, data)
        self._gathered_bytes += size
        self._under_way[producer.number].append((Receipt(producer, 0, 0, sequence_id, messages, payload_bytes), size))
        self._count += 1
        self._bytes += size
        self._messages += messages
        if self._gathered_bytes >= _WRITE_BYTES:
            await self.write()

    async def write(self) -> None:
        """Write what is gathered, and let receipts be read.  Raises Lost."""
        self._check()
        if self._gathered:
            pieces, self._gathered, self._gathered_bytes = self._gathered, [], 0
            self._done.clear()
            self._more.set()
            await self._connection.write_when_possible(pieces)
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Write what is gathered, and wait until every entry has its receipt.  Raises Lost."""
        await self.write()
        await self._done.wait()
        self._check()

    async def _make_room(self, size: int) -> None:
        await self.write()
        while self._count >= _UNDER_WAY_MAX or (self._count and self._bytes + size > _BYTES_UNDER_WAY_MAX):
            self._check()      # before the event is cleared, as the reading may have ended during the write
            self._room.clear()
            await self._room.wait()

    def _check(self) -> None:
        """Raise Lost if the reading of receipts has ended."""
        if self._reader is not None and self._reader.done():
            error = self._reader.exception()
            raise Lost(str(error), getattr(error, "code", None)) from error

    async def _receipts(self) -> None:
        """Read receipts for as long as entries are under way, and wait for entries otherwise.  Raises ClientError."""
        try:
            while True:
                await self._more.wait()
                while self._count:
                    command, _ = await self._connection.receive(T.SEND_RECEIPT)
                    self._take(command.send_receipt)
                self._more.clear()
                self._done.set()
        finally:
            self._room.set()
            self._done.set()

    def _take(self, receipt: api.CommandSendReceipt) -> None:
        waiting = self._under_way.get(receipt.producer_id)
        if not waiting or waiting[0][0].sequence_id != receipt.sequence_id:
            raise ClientError(f"the broker sent a receipt for {receipt.sequence_id}, which is not the next entry's")
        sent, size = waiting.popleft()
        self._count -= 1
        self._bytes -= size
        self._messages -= sent.messages
        self._room.set()
        self._received(sent._replace(ledger_id=receipt.message_id.ledgerId, entry_id=receipt.message_id.entryId))


async def unless_busy(call: Callable[[], Awaitable[None]]) -> None:
    """Repeat a call while the connection of a killed process still has the name.  Raises ClientError."""
    end = time.monotonic() + _BUSY_S
    while True:
        try:
            await call()
            return
        except ClientError as error:
            if error.code not in (api.ConsumerBusy, api.ProducerBusy) or time.monotonic() > end:
                raise
        await asyncio.sleep(0.1)


async def newest_schema(connection: BrokerConnection, topic: str) -> api.Schema | None:
    """Return the newest version of a topic's schema, None if the topic has no schema.  Raises ClientError."""
    answer = await connection.schema(topic, b"")
    return None if answer is None else answer.schema
