"""Redrives to scalable topics, whose segments split and merge: copies go there in transactions.

    a round     NEW_TXN; the segments and the subscription that has the letters are added
                SENDs of copies, each to the segment of its key; receipts
                one ACK of the letters
                END_TXN commits: copies come to consumers and letters are acknowledged, or neither

A kill leaves an open transaction, which its coordinator aborts when the command's connection ends (names.PROGRAM).
So no subscription has to keep copies: behind a split a letter's key may belong to another segment than its copy.

A segment that is sealed in a round refuses copies.  Then the transaction is aborted before it has acknowledged letters,
which would come again, and the round is repeated with the new segments.
"""
import asyncio
import contextlib
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable

from geminga.proto import layouts, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.tasks.redrive_topics import Backlog, Bits, Position, copies_of, send_copy, versions_at
from geminga.workers.messages.message import Message
from geminga.workers.messages.topics import NoTopic, segments
from geminga.workers.pulsar_client.client import BrokerConnection, Closed
from geminga.workers.pulsar_client.connection import ClientError, producing

# After which the transaction of a redrive is aborted at the latest: while the broker is down, nobody sees its end.
_LIFETIME_MS = 20_000
_CHANGE_S = 20             # how long a change of segments may take until a round is given up
_AGAIN_S = 0.1             # between looks whether it is over
# Errors of a producer at a segment while it is sealed, or its owner is started again.
_CHANGING = api.TopicTerminatedError, api.ServiceNotReady


class Changing(ClientError):
    """An error: a segment is being sealed, or its owner started again.  The round is to be repeated."""


class _Producer:
    """A producer at a segment."""

    def __init__(self, number: int, segment: str, name: str) -> None:
        self.number, self.segment, self.name, self.next_id = number, segment, name, 0

    def __repr__(self) -> str:
        return f"<_Producer {self.name} at {self.segment}>"


class SegmentedTarget:
    """A scalable topic that copies go to."""

    def __init__(self, topic: str, subscription: str, schemas: dict[int, api.Schema],
                 connect: Callable[[], Awaitable[BrokerConnection]]) -> None:
        """subscription: that gets the copies; "": all of the topic.  schemas: of the dead letter topic."""
        self.topic, self.subscription = topic, subscription
        self.waiting: list[tuple[Message, api.CompressionType.ValueType]] = []      # letters of the round
        self._schemas, self._connect = schemas, connect
        self._connection: BrokerConnection
        self._producers: list[_Producer] = []       # of the segments that take messages, in the order of their hashes
        self._ends: list[int] = []                  # last hash of each
        self._versions: dict[bytes, bytes] = {}     # of schemas: here, by those of the dead letter topic

    def __repr__(self) -> str:
        return f"<SegmentedTarget {self.topic} waiting={len(self.waiting)}>"

    @property
    def segments(self) -> list[str]:
        return [producer.segment for producer in self._producers]

    async def open(self, *, registers: bool = True) -> None:
        """Open a producer at each segment that takes messages, once no change of segments is in the way.

        registers: whether schemas that the topic lacks are given to it.  Raises ClientError, OSError.
        """
        end = time.monotonic() + _CHANGE_S
        while True:
            self.close()
            try:
                return await self._open(registers=registers)
            except ClientError as error:
                if error.code not in _CHANGING or time.monotonic() > end:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def _open(self, *, registers: bool) -> None:
        connection = self._connection = await self._connect()
        topic, schema = names.parse(self.topic), None
        await _end(connection, await _begin(connection), api.ABORT)      # where they are switched off, nothing is sent
        active = sorted((one for one in await connection.segments(self.topic, may_create=False)
                         if one.state == api.ACTIVE), key=lambda one: one.hash_start)
        places = [str(topic.segment_name(one.segment_id, one.hash_start, one.hash_end)) for one in active]
        if registers:
            self._versions, schema = await versions_at(connection, places[0], self._schemas)
        self._ends, self._producers = [one.hash_end for one in active], []
        for number, place in enumerate(places, 1):
            request = producing(place, number, "", schema)
            if self.subscription:
                request.metadata.add(key=names.ONLY_FOR, value=self.subscription)
            made: api.CommandProducerSuccess = await connection.ask(request)
            self._producers.append(_Producer(number, place, made.producer_name))

    async def send(self, bits: Bits) -> None:
        """Send copies of the letters that wait, in a transaction, and wait for receipts.  Raises ClientError, Changing.
        """
        connection, under_way = self._connection, 0
        try:
            for letter, codec in self.waiting:
                producer = self._producers[self._place_of(letter)]
                for metadata, payload in copies_of(letter, codec, producer.name, producer.next_id, self._versions,
                                                   connection.message_size_max):
                    send_copy(connection, api.CommandSend(
                        producer_id=producer.number, sequence_id=producer.next_id, **bits), metadata, payload)
                    under_way += 1
                producer.next_id += 1
            for _ in range(under_way):
                await connection.receipt()
        except ClientError as error:
            if error.code in _CHANGING or isinstance(error, Closed):
                raise Changing(str(error), error.code) from None
            raise

    def _place_of(self, letter: Message) -> int:
        """Return the place of a letter's producer: its key has one segment, others go to all in turn."""
        if letter.key is None:
            return (letter.entry_id + max(0, letter.batch_index)) % len(self._producers)
        return bisect_left(self._ends, layouts.hash_of(letter.key))

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()


async def is_scalable(connection: BrokerConnection, topic: names.TopicName) -> bool:
    """Whether a topic is a scalable one, or was made so.  Raises ClientError."""
    if not connection.is_geminga:      # others may not know the question
        return False
    try:
        await segments(connection, topic.scalable)
    except NoTopic:
        return False
    except ClientError as error:
        # Of a regular topic: a role with rights to that one alone may not ask, and those to one that was made scalable
        # are rights to the scalable one.
        if error.code != api.AuthorizationError or topic.is_scalable:
            raise
        return False
    return True


async def commit(letters: Backlog, topic: str, subscription: str, targets: Iterable[SegmentedTarget],
                 acked: dict[Position, list[int]]) -> None:
    """Send what waits at the targets, and acknowledge its letters, in one transaction.

    topic, subscription: of the letters.  acked: as `acks` tells it.  Raises ClientError; Changing: segments change
    for too long.
    """
    end = time.monotonic() + _CHANGE_S
    while True:
        try:
            return await _try(letters, topic, subscription, targets, acked)
        except Changing:
            if time.monotonic() > end:
                raise
        for target in targets:
            await target.open()


async def _try(letters: Backlog, topic: str, subscription: str, targets: Iterable[SegmentedTarget],
               acked: dict[Position, list[int]]) -> None:
    connection = letters.connection
    bits = await _begin(connection)
    try:
        added = api.CommandAddSubscriptionToTxn(**bits)
        added.subscription.add(topic=topic, subscription=subscription)
        partitions = sorted({segment for target in targets for segment in target.segments})
        await asyncio.gather(connection.ask(added), connection.ask(
            api.CommandAddPartitionToTxn(partitions=partitions, **bits)))
        for target in targets:
            await target.send(bits)
        await letters.acknowledge(acked, bits)
    except BaseException:
        with contextlib.suppress(ClientError):      # else it ends with the connection
            await _end(connection, bits, api.ABORT)
        raise
    await _end(connection, bits, api.COMMIT)


async def _begin(connection: BrokerConnection) -> Bits:
    """Begin a transaction.  Raises ClientError."""
    begun: api.CommandNewTxnResponse = await connection.ask(
        api.CommandNewTxn(tc_id=0, txn_ttl_millis=_LIFETIME_MS))
    return {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}


async def _end(connection: BrokerConnection, bits: Bits, action: "api.TxnAction.ValueType") -> None:
    await connection.ask(api.CommandEndTxn(txn_action=action, **bits))
