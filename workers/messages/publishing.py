"""Publishing of messages to a topic: partitions, batches, pace."""
import asyncio
import random
import time
from bisect import bisect_left
from collections.abc import Sequence

from geminga.proto import layouts, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.workers.messages.entries import Batch, Making, Outgoing
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.key_hashing import Scheme
from geminga.workers.pulsar_client.producers import Producer, Sending

_PULSES = 20        # a second: messages of a limited rate are sent in so many groups


class NoPartition(Exception):
    """An error: the topic lacks the partition that messages are for."""

    exit_status = 2


async def open_producers(connection: BrokerConnection, sending: Sending, topic: TopicName, partition: int | None,
                         name: str, schema: api.Schema | None) -> list[Producer]:
    """Create the producers of a topic: one for each partition or segment, or only that of `partition`.

    Raises ClientError, NoPartition.
    """
    if topic.is_scalable:
        return await _open_segments(connection, sending, topic, partition, name, schema)
    count = await connection.partition_count(str(topic))
    if partition is None:
        wanted = range(count)
    elif partition < count:
        wanted = range(partition, partition + 1)
    else:
        has = f"has partitions 0 to {count - 1}" if count else "is not partitioned"
        raise NoPartition(f"there is no partition {partition}: {topic} {has}")
    if not wanted:
        return [await sending.open(str(topic), name=name, schema=schema)]
    return [await sending.open(str(topic.partition_name(number)), number, name, schema) for number in wanted]


async def _open_segments(connection: BrokerConnection, sending: Sending, topic: TopicName, number: int | None,
                         name: str, schema: api.Schema | None) -> list[Producer]:
    """Create a producer for each segment that takes messages, in the order of their hashes, or for one of them."""
    segments = [one for one in await connection.segments(str(topic)) if one.state == api.ACTIVE]
    wanted = sorted((one for one in segments if number in (None, one.segment_id)), key=lambda one: one.hash_start)
    if not wanted:
        raise NoPartition(f"there is no segment {number} of {topic} that takes messages")
    return [await sending.open(str(topic.segment_name(one.segment_id, one.hash_start, one.hash_end)), -1, name, schema)
            for one in wanted]


class Batches:
    """The batches of a topic's producers, one for each, on their way to the broker."""

    def __init__(self, sending: Sending, opened: Sequence[Producer], batches: list[Batch]) -> None:
        self._sending, self._producers, self._batches = sending, opened, batches

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {len(self._producers)} of {self._sending}>"

    async def _close(self, number: int) -> None:
        """Send the messages of a batch as an entry.  Raises Lost."""
        entry = self._batches[number].entry()
        await self._sending.send(self._producers[number], entry.data, entry.sequence_id, entry.messages,
                                 entry.payload_bytes, entry.highest)

    async def write(self) -> None:
        """Send messages that wait in batches, and do not wait for receipts.  Raises Lost."""
        for number, batch in enumerate(self._batches):
            if batch:
                await self._close(number)
        await self._sending.write()

    async def flush(self) -> None:
        """Send messages that wait in batches, and wait until every message has its receipt.  Raises Lost."""
        await self.write()
        await self._sending.flush()


class Publisher(Batches):
    """Messages on their way into batches of a topic's producers.

    A key has its partition by `hashing`, and its segment by the only hash that there is.  Messages without a key go to
    all partitions or segments in turn, a batch to each.
    """

    def __init__(self, sending: Sending, opened: Sequence[Producer], hashing: Scheme, *, codec: int = 0,
                 batch: int = 1, sequence_id: int | None = None, rate: float = 0) -> None:
        super().__init__(sending, opened, [
            Batch(Making(producer.name, producer.schema_version, codec),
                  batch if not rate else min(batch, _pulse(rate)),
                  producer.last_sequence_id + 1 if sequence_id is None else sequence_id) for producer in opened])
        topics = [names.parse(producer.topic) for producer in opened]
        self._ends = [topic.segment[2] for topic in topics if topic.is_segment]      # last hash of each, in order
        self._hash = hashing.hash
        self._turn = random.randrange(len(opened))      # noqa: S311 - many producers begin at different partitions
        self._rate, self._began, self._paced = rate, time.monotonic(), 0

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish messages in order, at the rate if there is one.  The last ones may wait in batches.

        Raises Lost.
        """
        if not self._rate:
            return await self._add(messages)
        step = _pulse(self._rate)
        for first in range(0, len(messages), step):
            part = messages[first:first + step]
            await asyncio.sleep(self._began + self._paced / self._rate - time.monotonic())
            if not self._paced:
                self._began = time.monotonic()
            self._paced += len(part)
            await self._add(part)
            await self.write()

    async def _add(self, messages: Sequence[Outgoing]) -> None:
        batches, count = self._batches, len(self._batches)
        for message in messages:
            key = message.about.key
            if count == 1:
                number = 0
            elif key is None:
                number = self._turn
            elif self._ends:
                number = bisect_left(self._ends, layouts.hash_of(key))
            else:
                number = self._hash(key) % count
            batch = batches[number]
            if not batch.takes(message):
                await self._close(number)
            batch.add(message)
            if batch.is_full:
                await self._close(number)
                if key is None:
                    self._turn = (self._turn + 1) % count


def _pulse(rate: float) -> int:
    return max(1, int(rate / _PULSES))
