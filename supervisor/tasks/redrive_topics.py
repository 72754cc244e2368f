"""Topics of a redrive: the backlog that is read, copies of letters, targets they go to, and acknowledgements."""
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypedDict

from geminga.proto import frames, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.compression import compress
from geminga.workers.messages.message import Message
from geminga.workers.pulsar_client.client import BrokerConnection, Silence
from geminga.workers.pulsar_client.connection import ClientError, consuming
from geminga.workers.pulsar_client.entries import Entry, ack_set_of, entry_of
from geminga.workers.pulsar_client.producers import unless_busy

REAL_TOPIC, REAL_SUBSCRIPTION = "REAL_TOPIC", "REAL_SUBSCRIPTION"
# Properties that client libraries add to dead letters and to messages of a retry topic, and the broker's own.
_ADDED = {REAL_TOPIC, REAL_SUBSCRIPTION, "ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME", "RETRY_TOPIC",
          "RECONSUMETIMES", "DELAY_TIME", names.REDRIVEN_FROM, *names.DEAD_LETTER_PROPERTIES}
ROUND_MAX = 1_000          # messages
_PATIENCE_S = 2            # without a message, after which the broker is asked whether more will come
T = api.BaseCommand.Type
Position = tuple[int, int]


def subscription_in(dead_letters: str, origin: str) -> str:
    """Return the subscription that the name ORIGIN-SUBSCRIPTION-DLQ of a topic has in it; "": the name is another one.
    """
    topic, start = names.parse(dead_letters).base.local_name, f"{names.parse(origin).base.local_name}-"
    is_of_origin = topic.startswith(start) and topic.endswith(names.DEAD_LETTERS)
    return topic[len(start):-len(names.DEAD_LETTERS)] if is_of_origin else ""


def id_of(letter: Message) -> str:
    return f"{letter.topic} {letter.id}"


class Bits(TypedDict):
    """The id of a transaction, as fields of commands."""

    txnid_most_bits: int
    txnid_least_bits: int


class Ids(NamedTuple):
    """The ids by which a letter is acknowledged."""

    positions: tuple[Position, ...]      # of its chunks, or its only entry
    place: int                    # in the batch, -1: not in a batch
    size: int                     # of the batch


def ids_of(letter: Message) -> Ids:
    return Ids(letter.chunks or ((letter.ledger_id, letter.entry_id),), letter.batch_index, letter.batch_size)


def acks(letters: list[Ids], whole: set[Position]) -> dict[Position, list[int]]:
    """Return {position: ack_set} that acknowledges letters.  whole: entries that are acknowledged with all messages.

    An empty ack_set stands for the whole entry.
    """
    left: dict[Position, int] = {}      # bits of the messages that stay unacknowledged
    for ids in letters:
        for position in ids.positions:
            if ids.place < 0 or position in whole:
                left[position] = 0
            else:
                left[position] = left.get(position, (1 << ids.size) - 1) & ~(1 << ids.place)
    return {position: ack_set_of(bits, bits.bit_length()) for position, bits in left.items()}


class Backlog:
    """Reads the entries that a durable subscription has not acknowledged yet, in rounds.

    Entries that expire or are cleared meanwhile do not come, so when nothing comes, the broker is asked what is left.
    """

    def __init__(self, connection: BrokerConnection, consumer: int):
        self.connection, self.consumer = connection, consumer
        self._left = sys.maxsize      # entries that have not come yet
        self._held = 0                # entries that came and are not acknowledged
        self._permits = 0             # granted, less messages that came; never more than the broker's count

    def __repr__(self) -> str:
        return f"<Backlog left={self._left}>"

    @classmethod
    async def open(cls, connection: BrokerConnection, topic: str, subscription: str,
                   position: "api.CommandSubscribe.InitialPosition.ValueType") -> "Backlog":
        """Subscribe exclusively.  position: where a new subscription begins.  Raises ClientError."""
        consumer = connection.next_id()
        connection.keep_messages(consumer)

        async def subscribe() -> None:
            await connection.ask(consuming(topic, subscription, consumer, position=position, makes_topic=False))
        await unless_busy(subscribe)
        opened = cls(connection, consumer)
        await opened._count()
        return opened

    async def _count(self) -> None:
        """Ask how many entries are left, and count none that has been published since the first time."""
        stats: api.CommandConsumerStatsResponse = await self.connection.ask(
            api.CommandConsumerStats(consumer_id=self.consumer))
        self._left = min(self._left, stats.msgBacklog - self._held)      # a number of entries

    async def round(self, messages: int) -> list[Entry]:
        """Return the next entries, with about so many messages; none at the end."""
        entries: list[Entry] = []
        if self._left > 0 and messages > self._permits:
            flow = api.CommandFlow(consumer_id=self.consumer, messagePermits=messages - self._permits)
            self.connection.send(flow)
            self._permits = messages
        while self._permits > 0 and self._left > 0:
            try:
                entries.append(entry_of(*await self.connection.message(self.consumer, _PATIENCE_S)))
            except Silence:
                await self._count()
                continue
            self._permits -= entries[-1].messages
            self._left -= 1
            self._held += 1
        return entries

    async def acknowledge(self, acked: dict[Position, list[int]], bits: Bits | None = None) -> None:
        """Acknowledge entries, or messages of them, as `acks` tells them; wait until the broker has stored that.

        bits: of a transaction.
        """
        if acked:
            await self.connection.ask(ack_of(self, acked, bits))
            self._held -= sum(not words for words in acked.values())


def ack_of(letters: Backlog, acked: dict[Position, list[int]], bits: Bits | None = None) -> api.CommandAck:
    ack = api.CommandAck(consumer_id=letters.consumer, ack_type=api.CommandAck.Individual)
    if bits is not None:
        ack.txnid_most_bits, ack.txnid_least_bits = bits["txnid_most_bits"], bits["txnid_least_bits"]
    for (ledger_id, entry_id), words in acked.items():
        place = ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        place.ack_set.extend(words)
    return ack


def copies_of(letter: Message, codec: "api.CompressionType.ValueType", producer: str, sequence_id: int,
              versions: dict[bytes, bytes], size_max: int) -> Iterator[tuple[api.MessageMetadata, bytes]]:
    """Yield the entries of a letter's copy: several, if it is larger than size_max allows.

    versions: of schemas at the target, by those of the dead letter topic.
    """
    stored = letter.payload
    if codec != api.NONE:
        stored = compress(codec, stored)
    metadata = api.MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=time.time_ns() // 1_000_000)
    for key, value in letter.properties.items():
        if key not in _ADDED:
            metadata.properties.add(key=key, value=value)
    metadata.properties.add(key=names.REDRIVEN_FROM, value=id_of(letter))
    if letter.key is not None:
        metadata.partition_key = letter.key
        metadata.partition_key_b64_encoded = letter.is_key_base64
    if letter.ordering_key is not None:
        metadata.ordering_key = letter.ordering_key
    if letter.event_time_ms:
        metadata.event_time = letter.event_time_ms
    if letter.is_null:
        metadata.null_value = True
    if codec:
        metadata.compression, metadata.uncompressed_size = codec, len(letter.payload)
    if letter.schema_version is not None:
        metadata.schema_version = versions.get(letter.schema_version, letter.schema_version)
    if letter.schema_id is not None:
        metadata.schema_id = letter.schema_id
    size = size_max * 4 // 5      # of a chunk; the rest is for metadata
    parts = [stored[at:at + size] for at in range(0, len(stored), size)] or [b""]
    for number, part in enumerate(parts):
        if len(parts) > 1:
            metadata.uuid = str(uuid.uuid5(uuid.NAMESPACE_URL, id_of(letter)))
            metadata.num_chunks_from_msg, metadata.chunk_id = len(parts), number
            metadata.total_chunk_msg_size = len(stored)
        yield metadata, part


def send_copy(connection: BrokerConnection, send: api.CommandSend, metadata: api.MessageMetadata,
              payload: bytes) -> None:
    """Send an entry of a letter's copy, without waiting for its receipt."""
    if metadata.num_chunks_from_msg:
        send.is_chunk = True
    head = metadata.SerializeToString()
    connection.send(send, frames.with_checksum(frames.SIZE.pack(len(head)) + head + payload))


async def versions_at(connection: BrokerConnection, topic: str,
                      schemas: dict[int, api.Schema]) -> tuple[dict[bytes, bytes], api.Schema | None]:
    """Register schemas of letters at a topic that lacks them.  The connection has no producer yet.

    Returns ({version: its version at the topic}, the newest).  Raises ClientError.
    """
    versions, newest = {}, None
    existing = await connection.schemas(topic) if schemas else {}
    for version, schema in schemas.items():
        same = [number for number, other in existing.items()
                if (other.type, other.schema_data) == (schema.type, schema.schema_data)]
        if not same:
            made = await connection.producer(topic, "", schema)
            same = [int.from_bytes(made.schema_version)]
            await connection.close_producer()
        versions[version.to_bytes(8)], newest = same[-1].to_bytes(8), schema
    return versions, newest


class Target:
    """A topic, or partition, that copies go to."""

    def __init__(self, topic: str, subscription: str, name: str, producing: BrokerConnection, backlog: Backlog,
                 sequence_id: int, versions: dict[bytes, bytes]):
        self.topic, self.backlog = topic, backlog
        self.subscription = subscription         # that gets the copies; "": all of the topic
        self.copies: set[str] = set()            # ids of letters whose copies an earlier redrive has sent
        # The letter that is not acknowledged though its copy has a receipt, and the copy's position, if it is known.
        self.anchor: tuple[Ids, Position | None] | None = None
        self.sent: list[Ids] = []               # letters of the round, in the order of their copies
        self._name, self._producing, self._sequence_id, self._versions = name, producing, sequence_id, versions
        self._under_way: deque[bool] = deque()      # entries without a receipt: whether it is a copy's last one

    def __repr__(self) -> str:
        return f"<Target {self.topic} copies={len(self.copies)}>"

    async def read_copies(self) -> None:
        """Read the copies that an earlier redrive has sent since its letters were acknowledged last."""
        while entries := await self.backlog.round(ROUND_MAX):
            for metadata in (entry.metadata for entry in entries):
                if metadata.producer_name == self._name and metadata.chunk_id + 1 >= metadata.num_chunks_from_msg:
                    self.copies |= {one.value for one in metadata.properties if one.key == names.REDRIVEN_FROM}

    def send(self, letter: Message, codec: "api.CompressionType.ValueType") -> None:
        """Send a letter's copy, without waiting for its receipt."""
        self.sent.append(ids_of(letter))
        for metadata, payload in copies_of(letter, codec, self._name, self._sequence_id, self._versions,
                                           self._producing.message_size_max):
            send_copy(self._producing, api.CommandSend(producer_id=1, sequence_id=self._sequence_id), metadata, payload)
            self._under_way.append(metadata.chunk_id + 1 >= metadata.num_chunks_from_msg)
        self._sequence_id += 1

    async def receipts(self) -> list[Position]:
        """Wait for all receipts, and return the positions of the copies."""
        positions = []
        while self._under_way:
            ledger_id, entry_id = await self._producing.receipt()
            if ledger_id >> 63:
                raise ClientError(f"{self.topic} took a copy for a duplicate")
            if self._under_way.popleft():
                positions.append((ledger_id, entry_id))
        return positions

    def forget_copies(self, last: Position) -> None:
        """Move the subscription behind a copy whose letter, as those of all copies before it, is acknowledged."""
        ack = api.CommandAck(consumer_id=self.backlog.consumer, ack_type=api.CommandAck.Cumulative)
        ack.message_id.add(ledgerId=last[0], entryId=last[1])
        self.backlog.connection.send(ack)

    def close(self) -> None:
        self._producing.close()
        self.backlog.connection.close()
