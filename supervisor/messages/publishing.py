"""Publishing of messages to a topic: partitions, batches, pace."""
import asyncio
import random
import time
from collections.abc import Sequence

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.supervisor.messages.entries import Batch, Making, Outgoing
from geminga.supervisor.pulsar_client import questions
from geminga.supervisor.pulsar_client.client import BrokerConnection
from geminga.supervisor.pulsar_client.key_hashing import Scheme
from geminga.supervisor.pulsar_client.producers import Producer, Sending

_PULSES = 20        # a second: messages of a limited rate are sent in so many groups


class NoPartition(Exception):
    """An error: the topic lacks the partition that messages are for."""

    exit_status = 2


async def open_producers(connection: BrokerConnection, sending: Sending, topic: TopicName, partition: int | None,
                         name: str, schema: api.Schema | None) -> list[Producer]:
    """Create the producers of a topic: one for each partition, or only that of `partition`.

    Raises ClientError, NoPartition.
    """
    count = await questions.partitions(connection, str(topic))
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


class Batches:
    """The batches of a topic's producers, one for each, on their way to the broker."""

    def __init__(self, sending: Sending, opened: Sequence[Producer], batches: list[Batch]) -> None:
        self._sending, self._producers, self._batches = sending, opened, batches

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {len(self._producers)} of {self._sending}>"

    async def _close(self, at: int) -> None:
        """Send the messages of a batch as an entry.  Raises Lost."""
        entry = self._batches[at].entry()
        await self._sending.send(self._producers[at], entry.data, entry.sequence_id, entry.messages,
                                 entry.payload_bytes, entry.highest)

    async def write(self) -> None:
        """Send messages that wait in batches, and do not wait for receipts.  Raises Lost."""
        for at, batch in enumerate(self._batches):
            if batch:
                await self._close(at)
        await self._sending.write()

    async def flush(self) -> None:
        """Send messages that wait in batches, and wait until every message has its receipt.  Raises Lost."""
        await self.write()
        await self._sending.flush()


class Publisher(Batches):
    """Messages on their way into batches of a topic's producers.

    A key has its partition by `hashing`.  Messages without a key go to all partitions in turn, a batch to each.
    """

    def __init__(self, sending: Sending, opened: Sequence[Producer], hashing: Scheme, *, codec: int = 0,
                 batch: int = 1, sequence_id: int | None = None, rate: float = 0) -> None:
        super().__init__(sending, opened, [
            Batch(Making(one.name, one.schema_version, codec), batch if not rate else min(batch, _pulse(rate)),
                  one.last_sequence_id + 1 if sequence_id is None else sequence_id) for one in opened])
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
                at = 0
            elif key is None:
                at = self._turn
            else:
                at = self._hash(key) % count
            batch = batches[at]
            if not batch.takes(message):
                await self._close(at)
            batch.add(message)
            if batch.is_full:
                await self._close(at)
                if key is None:
                    self._turn = (self._turn + 1) % count


def _pulse(rate: float) -> int:
    return max(1, int(rate / _PULSES))
