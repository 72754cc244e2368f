"""Consumers of several topics on one connection, with acknowledgements of single messages.

Nothing creates a topic.  Entries are taken as fast as their reader asks for them: more permits go to the broker when
entries were taken, not when they arrived.
"""
import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.workers.pulsar_client import client
from geminga.workers.pulsar_client.client import BrokerConnection, Silence
from geminga.workers.pulsar_client.connection import ClientError, consuming
from geminga.workers.pulsar_client.entries import Entry, ack_set_of, entry_of

KINDS = {"exclusive": api.CommandSubscribe.Exclusive, "shared": api.CommandSubscribe.Shared,
         "failover": api.CommandSubscribe.Failover, "key_shared": api.CommandSubscribe.Key_Shared}
_PERMITS, _READER_PERMITS = 1_000, 10_000
_TOGETHER_MAX = 1 << 20     # bytes of entries that `deliveries` returns together
_PING_S, _PONG_S = 30.0, 30.0      # silence before the broker is asked whether it is there, and for its answer
_CLOSE_S = 5.0              # limit for closing; the connection's end does the same

Position = tuple[int, int]                   # (ledger, entry)


class Manner(NamedTuple):
    """How topics are consumed: as a reader, or by a subscription."""

    subscription: str = ""                   # "": a reader, which leaves no subscription behind
    kind: str = "exclusive"                  # one of KINDS
    is_compacted: bool = False

    @property
    def permits(self) -> int:
        """Messages of one consumer that may be under way: few where other consumers want some."""
        return _PERMITS if self.subscription else _READER_PERMITS


class Start(NamedTuple):
    """Where a consumer begins; a subscription that exists keeps its position."""

    is_earliest: bool = True
    first: Position | None = None            # readers only: this entry or the next one, if there is one
    since_ms: int = 0                        # readers only: messages published since then


class Opened(NamedTuple):
    """The end of a topic when a consumer was created there."""

    last: Position | None                    # the topic's last entry, None if it is empty
    is_at_end: bool                          # the consumer begins behind that entry


class Delivery(NamedTuple):
    """An entry that a consumer got."""

    topic: str
    entry: Entry


class _Consumer:
    """One consumer of a topic."""

    def __init__(self, topic: str, number: int, permits: int) -> None:
        self.topic, self.number = topic, number
        self.used = permits                              # permits to grant with the next FLOW
        self.left: dict[Position, int] = {}              # batch -> its unacknowledged messages, as bits

    def __repr__(self) -> str:
        return f"<_Consumer {self.number} {self.topic} used={self.used} batches={len(self.left)}>"


class Consumers:
    """Consumers on one connection, which ends with them."""

    def __init__(self, connection: BrokerConnection, manner: Manner) -> None:
        self._connection, self._manner = connection, manner
        self._by_topic: dict[str, _Consumer] = {}
        self._by_number: dict[int, _Consumer] = {}
        self._opened: list[_Consumer] = []      # without permits yet
        self._waiting: deque[tuple[_Consumer, Entry]] = deque()
        self._name = manner.subscription or f"geminga-reader-{time.time_ns()}"

    def __repr__(self) -> str:
        return f"<Consumers {self._name} topics={len(self._by_topic)} waiting={len(self._waiting)}>"

    async def open(self, topic: str, start: Start) -> Opened:
        """Create a consumer on a topic that exists, and return the topic's end.  Raises ClientError."""
        consumer = _Consumer(topic, len(self._by_number) + 1, self._manner.permits)
        manner = self._manner
        first = start.first      # an entry behind the end is none: the initial position would decide
        self._by_topic[topic] = self._by_number[consumer.number] = consumer
        await self._connection.ask(consuming(
            topic, self._name, consumer.number, KINDS[manner.kind], is_durable=bool(manner.subscription),
            is_compacted=manner.is_compacted, makes_topic=False,
            start=None if first is None else api.MessageIdData(ledgerId=first[0], entryId=first[1]),
            # In whole seconds by the broker's clock: a second more, whose messages are left out.
            since_s=max(0, int(time.time() - start.since_ms / 1_000)) + 2 if start.since_ms else 0,
            position=api.CommandSubscribe.Earliest if start.is_earliest and first is None
            else api.CommandSubscribe.Latest))
        self._opened.append(consumer)
        return await self._end(consumer) if not topic.startswith("non-persistent:") else Opened(None, True)

    async def _end(self, consumer: _Consumer) -> Opened:
        end: api.CommandGetLastMessageIdResponse = await self._connection.ask(
            api.CommandGetLastMessageId(consumer_id=consumer.number))
        last, marked = _position(end.last_message_id), _position(end.consumer_mark_delete_position)
        is_told = end.HasField("consumer_mark_delete_position")      # older Pulsars do not
        return Opened(last, last is None or (is_told and marked is not None and marked >= last))

    async def is_quiet(self, topic: str) -> bool:
        """Whether the broker had nothing to deliver before it answered a question about this topic."""
        await self._end(self._by_topic[topic])
        while (frame := self._connection.frame_at_hand()) is not None:
            self._take(*frame)
        return not self._waiting

    async def deliveries(self, quiet_s: float | None = None) -> list[Delivery]:
        """Return entries that arrived, in order; [] if none came for quiet_s, or None to wait for ever.

        Raises ClientError if the connection ends, or the broker closes a consumer.
        """
        while self._opened:      # not before all are open: their entries would wait in memory
            self._flow(self._opened.pop())
        until = None if quiet_s is None else time.monotonic() + quiet_s
        is_asked = False
        while not self._waiting:
            left_s = _PONG_S if is_asked else _PING_S
            if until is not None:
                left_s = min(left_s, until - time.monotonic())
                if left_s <= 0:
                    return []
            try:
                self._take(*await self._connection.frame(left_s))
                is_asked = False
            except Silence:
                if until is not None and time.monotonic() >= until:
                    return []
                if is_asked:
                    raise ClientError(f"the broker has been silent for {_PING_S + _PONG_S:.0f} s") from None
                self._connection.send(api.CommandPing())
                is_asked = True
        return self._some()

    def _some(self) -> list[Delivery]:
        """Return what has arrived, up to a size, and grant permits in its place."""
        some: list[Delivery] = []
        size = 0
        while size < _TOGETHER_MAX:
            if not self._waiting:
                if (frame := self._connection.frame_at_hand()) is None:
                    break
                self._take(*frame)
                continue
            consumer, entry = self._waiting.popleft()
            some.append(Delivery(consumer.topic, entry))
            size += len(entry.data)
            consumer.used += entry.messages
            if consumer.used * 2 >= self._manner.permits:
                self._flow(consumer)
        return some

    def acknowledge(self, topic: str, positions: Iterable[Position]) -> None:
        """Acknowledge entries."""
        ack = api.CommandAck(consumer_id=self._by_topic[topic].number, ack_type=api.CommandAck.Individual)
        for ledger_id, entry_id in positions:
            ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        self._connection.send(ack)

    def acknowledge_in_batch(self, topic: str, entry: Entry, indexes: Iterable[int]) -> None:
        """Acknowledge messages of a batch, the others of which stay unacknowledged."""
        consumer, place = self._by_topic[topic], (entry.ledger_id, entry.entry_id)
        left = consumer.left.pop(place) if place in consumer.left else _unacknowledged(entry)
        for index in indexes:
            left &= ~(1 << index)
        if not left:
            return self.acknowledge(topic, [place])
        consumer.left[place] = left
        ack = api.CommandAck(consumer_id=consumer.number, ack_type=api.CommandAck.Individual)
        ack.message_id.add(ledgerId=entry.ledger_id, entryId=entry.entry_id, ack_set=ack_set_of(left, entry.messages))
        self._connection.send(ack)

    async def close(self) -> None:
        """Close all consumers, whose unacknowledged messages go to others, and the connection."""
        self._connection.is_ignoring = True
        try:
            async with asyncio.timeout(_CLOSE_S):
                for consumer in self._by_number.values():
                    await self._connection.close_consumer(consumer.number)
        except (TimeoutError, ClientError):
            pass      # the end of the connection closes them
        finally:
            self._connection.close()

    # -- frames

    def _take(self, command: api.BaseCommand, data: bytes) -> None:
        if command.type != T.MESSAGE:
            client.check(command)
        elif (consumer := self._by_number.get(command.message.consumer_id)) is not None:
            self._waiting.append((consumer, entry_of(command.message, data)))

    def _flow(self, consumer: _Consumer) -> None:
        self._connection.send(api.CommandFlow(consumer_id=consumer.number, messagePermits=consumer.used))
        consumer.used = 0


def _position(message_id: api.MessageIdData) -> Position | None:
    """Return where an entry is, None for no entry, which has a number of -1."""
    ledger_id, entry_id = message_id.ledgerId, message_id.entryId
    return None if ledger_id >> 63 or entry_id >> 63 else (ledger_id, entry_id)


def _unacknowledged(entry: Entry) -> int:
    """Return the messages of a batch that were unacknowledged at its delivery, as an int with a bit for each."""
    if not entry.ack_set:
        return (1 << entry.messages) - 1
    return sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(entry.ack_set))
