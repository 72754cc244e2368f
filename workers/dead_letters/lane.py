"""The dead letters of one subscription, on their way to another topic.

    a round     entries that the owner has found dead come to the lane's consumer
                NEW_TXN; the target's partitions and the subscription are added
                SENDs of letters, and one ACK of the entries, in the transaction
                END_TXN commits: letters become visible and entries acknowledged, or neither does

A kill at any moment leaves a transaction, which its coordinator ends: nothing is lost, and nothing is there twice.  A
lane that fails aborts, and tells the owner why by a consumer that it opens for that.
"""
import asyncio
import contextlib
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from geminga.proto import frames, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.storage.cursors.dead_entries import REASON_SHIFT, TAKEN_BACK
from geminga.storage.runtime import unix_sockets
from geminga.workers.dead_letters.letters import Letter, letters_of
from geminga.workers.pulsar_client.connection import (
    ClientError,
    FramedConnection,
    consuming,
    greeting,
    producing,
    text_of,
)
from geminga.workers.pulsar_client.entries import Entry, entry_data, entry_of
from geminga.workers.pulsar_client.key_hashing import java

_ENTRIES_FIRST, _ENTRIES_MAX = 20, 500      # of a round
_ROUND_BYTES = 4 << 20                      # of entries, beyond which a round has fewer of them
_PRODUCERS_MAX = 1_000                      # of a lane: partitions of the target, and versions of the schema
_IDLE_S = 5.0                               # without dead letters, after which a lane ends
_BLOCKED_S = 0.5                            # the same if some cannot be moved: only then the owner is told why
# After which its coordinator aborts the transaction of a lane that was killed.  Until then consumers of the target get
# nothing that comes behind its letters.
_LIFETIME_MS = 10_000
_RECEIPTS_S = 8.0                           # for the receipts of a round: the producer may be throttled
_ERROR_MAX = 500                            # characters of an error that are told


class Source(NamedTuple):
    """A subscription with dead letters."""

    topic: str                 # complete name, of a partition
    subscription: str


class LaneFailed(Exception):
    """An error: dead letters cannot be moved now; the text is the reason."""


class LettersStay(LaneFailed):
    """An error: some dead letters cannot be moved at all; the others were."""

    def __init__(self, why: str, entries: int):
        super().__init__(why)
        self.entries = entries


class _Producer:
    """A producer of the lane at one partition of the target, for one version of the source's schema."""

    def __init__(self, number: int, topic: str, made: api.CommandProducerSuccess):
        self.number, self.topic, self.name = number, topic, made.producer_name
        self.schema_version, self.next_sequence_id = made.schema_version, 0

    def __repr__(self) -> str:
        return f"<_Producer {self.name} of {self.topic}>"


class _Connection(FramedConnection):
    """The connection of a lane to a worker of this broker."""

    ENDED = ClientError

    def __init__(self, lane: "Lane") -> None:
        super().__init__()
        self._lane = lane

    def take_command(self, command: api.BaseCommand, entry: bytes) -> None:
        if command.type == T.MESSAGE:
            self._lane.came.append(entry_of(command.message, entry))
        elif command.type == T.SEND_RECEIPT:
            self._lane.unanswered -= 1
        elif command.type == T.SEND_ERROR:
            self._lane.fail(text_of(command.send_error.error, command.send_error.message))
        elif command.type == T.CLOSE_PRODUCER:
            self._lane.fail("the producer at the dead letter topic was closed")
        elif command.type == T.CLOSE_CONSUMER:
            self._lane.fail("the topic was unloaded, or its owner is being started again")

    def taken(self) -> None:
        self._lane.news.set()

    def ended(self, why: str) -> None:
        self._lane.fail(why)


class Lane:
    """The dead letters of one subscription."""

    def __init__(self, clients: Path, source: Source, target: str = "", keeper: str = "", *, undoes: bool = False
                 ) -> None:
        """Prepare a lane.

        clients: the socket of the workers in the data folder.  target: complete name of the dead letter topic.  keeper:
        the subscription that is made there, so that letters are kept.  undoes: whether the lane takes back what a
        redrive has sent, as `take_back` is called, and moves nothing else.
        """
        self._undoes, self._size = undoes, _ENTRIES_FIRST         # _size: entries of the next round
        self._clients, self._source, self._target, self._keeper = clients, source, target, keeper
        self._connection: _Connection
        self._consumer = 0                                        # its number on the connection
        self._producers: dict[tuple[str, bytes], _Producer] = {}  # by partition, and version of the source's schema
        self._partitions = 0                                      # of the target
        self._permits = 0                                         # that the owner has not used
        self._left_out, self._stay = "", 0                        # why some entries cannot be moved, and how many
        self.came: deque[Entry] = deque()
        self.news = asyncio.Event()
        self.unanswered = 0                                       # SENDs without a receipt
        self.failure = ""
        self.moved = 0                                            # messages

    def __repr__(self) -> str:
        return f"<Lane {self._source} to {self._target} moved={self.moved} came={len(self.came)}>"

    def fail(self, why: str) -> None:
        """Let the round that is under way fail."""
        self.failure = self.failure or why
        self.news.set()

    async def run(self) -> None:
        """Move dead letters until there have been none for a while.  Raises LettersStay, LaneFailed, OSError."""
        try:
            await self.open()
            while entries := await self._next():
                await self._round(entries)
            if self._left_out:
                raise LettersStay(self._left_out, self._stay)
        except ClientError as error:
            raise LaneFailed(str(error)) from None
        finally:
            self.close()

    async def take_back(self, entries: int) -> int:
        """Move entries that the owner was asked to take back; return how many were moved.

        These are fewer than `entries` if some do not come for a while.  Raises LaneFailed, ClientError.
        """
        moved = 0
        while moved < entries and (some := await self._next()):
            mine = [entry for entry in some if entry.redelivery_count >> REASON_SHIFT == TAKEN_BACK]
            if mine:      # others are dead for the policy: its mover gets them when this one has gone
                await self._round(mine)
            moved += len(mine)
        return moved

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.finish("the lane has ended")

    async def tell(self, why: str) -> None:
        """Tell the owner why dead letters wait.  Raises ClientError, OSError."""
        try:
            await self.open(why[:_ERROR_MAX])
        finally:
            self.close()

    async def open(self, error: str = "") -> None:
        """Connect, and attach the consumer that gets dead letters.  error: why an earlier one could move none.

        Raises ClientError, OSError.
        """
        _, self._connection = await unix_sockets.open_connection(
            f"{unix_sockets.UNIX}{self._clients}", lambda: _Connection(self))
        await self._connection.greet(greeting(name=names.REPLICATOR))
        self._consumer = self._connection.next_id()
        request = consuming(self._source.topic, self._source.subscription, self._consumer,
                            api.CommandSubscribe.Shared, makes_topic=False, name="geminga-dead-letters")
        request.metadata.add(key=names.MOVER_ERROR, value=error)
        if self._undoes:
            request.metadata.add(key=names.UNDOES, value="true")
        await self._connection.open(request, self)

    # -- steps

    async def _next(self) -> list[Entry]:
        """Return entries that have come, at most those of a round; [] if none came for a while.  Raises LaneFailed."""
        size = self._size
        if self._permits + len(self.came) < size:
            more = size - self._permits - len(self.came)
            self._permits += more
            self._connection.send(api.CommandFlow(consumer_id=self._consumer, messagePermits=more))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BLOCKED_S if self._left_out else _IDLE_S):
                while not (self.came or self.failure):
                    await self._wait()
        self._check()
        entries = [self.came.popleft() for _ in range(min(size, len(self.came)))]
        self._permits -= len(entries)
        return entries

    async def _wait(self) -> None:
        self.news.clear()
        await self.news.wait()

    def _check(self) -> None:
        if self.failure:
            raise LaneFailed(self.failure)

    async def _round(self, entries: list[Entry]) -> None:
        """Move entries in one transaction.  Raises LaneFailed, ClientError."""
        average = sum(len(entry.data) for entry in entries) // len(entries) + 1
        self._size = max(1, min(_ENTRIES_MAX, self._size * 4, _ROUND_BYTES // average))
        sends: list[tuple[_Producer, Letter]] = []
        gone: list[Entry] = []
        for entry in entries:
            letters = letters_of(entry, *self._source)
            if any(str(names.parse(letter.origin).base) == self._target for letter in letters):
                self._left_out = f"a message would go back to {self._target}, in which it was dead before"
                self._stay += 1
                continue
            sends += [(await self._producer_for(letter, entry), letter) for letter in letters]
            gone.append(entry)
        if not gone:
            return
        begun: api.CommandNewTxnResponse = await self._connection.ask(
            api.CommandNewTxn(tc_id=0, txn_ttl_millis=_LIFETIME_MS))
        bits: dict[str, Any] = {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}
        try:
            await self._fill(bits, sends, gone)
        except BaseException:
            with contextlib.suppress(ClientError):      # else it ends by its lifetime
                await self._connection.ask(api.CommandEndTxn(txn_action=api.ABORT, **bits))
            raise
        await self._connection.ask(api.CommandEndTxn(txn_action=api.COMMIT, **bits))
        self.moved += sum(letter.messages for _, letter in sends)

    async def _fill(self, bits: dict[str, Any], sends: list[tuple[_Producer, Letter]], gone: list[Entry]) -> None:
        """Publish letters and acknowledge their entries in a transaction.  Raises LaneFailed, ClientError."""
        connection, (topic, subscription) = self._connection, self._source
        partitions = sorted({producer.topic for producer, _ in sends})
        added = api.CommandAddSubscriptionToTxn(**bits)
        added.subscription.add(topic=topic, subscription=subscription)
        await asyncio.gather(connection.ask(added), *([connection.ask(
            api.CommandAddPartitionToTxn(partitions=partitions, **bits))] if partitions else []))
        self.unanswered = len(sends)
        for producer, letter in sends:
            connection.write(_frames(producer, letter, bits))
        ack = api.CommandAck(consumer_id=self._consumer, ack_type=api.CommandAck.Individual, **bits)
        for entry in gone:
            ack.message_id.add(ledgerId=entry.ledger_id, entryId=entry.entry_id)
        await connection.ask(ack)
        try:
            async with asyncio.timeout(_RECEIPTS_S):
                while self.unanswered and not self.failure:
                    await self._wait()
        except TimeoutError:
            raise LaneFailed(f"{self._target} has not stored the messages in time; it may be throttled") from None
        self._check()

    async def _producer_for(self, letter: Letter, entry: Entry) -> _Producer:
        """Return the producer for a letter, which is made at the first one.  Raises ClientError."""
        if not self._producers:
            self._partitions = await self._connection.partition_count(self._target)
        topic, metadata = self._target, letter.metadata
        if self._partitions:
            at = java(metadata.partition_key) if metadata.partition_key else entry.entry_id
            topic = str(names.parse(self._target).partition_name(at % self._partitions))
        version = metadata.schema_version
        if (topic, version) not in self._producers:
            if len(self._producers) >= _PRODUCERS_MAX:
                raise LaneFailed("the messages have too many versions of their schema")
            self._producers[topic, version] = await self._open_producer(topic, version)
        producer = self._producers[topic, version]
        if version:
            metadata.schema_version = producer.schema_version
        return producer

    async def _open_producer(self, topic: str, version: bytes) -> _Producer:
        schema = (await self._connection.schema_version(self._source.topic, version)).schema if version else None
        request = producing(topic, self._connection.next_id(), schema=schema)
        request.initial_subscription_name = self._keeper
        return _Producer(request.producer_id, topic, await self._connection.open(request, self))


def _frames(producer: _Producer, letter: Letter, bits: dict[str, Any]) -> list[bytes]:
    """Return the frame of a SEND."""
    metadata, sequence_id = letter.metadata, producer.next_sequence_id
    producer.next_sequence_id += letter.messages
    metadata.producer_name, metadata.sequence_id = producer.name, sequence_id
    metadata.publish_time = time.time_ns() // 1_000_000
    metadata.txnid_most_bits, metadata.txnid_least_bits = bits["txnid_most_bits"], bits["txnid_least_bits"]
    send: Any = api.CommandSend(
        producer_id=producer.number, sequence_id=sequence_id, num_messages=letter.messages, **bits)
    if letter.messages > 1:
        metadata.highest_sequence_id = send.highest_sequence_id = sequence_id + letter.messages - 1
    return frames.pieces(frames.command_of(send), entry_data(metadata, letter.payload))
