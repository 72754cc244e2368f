"""Copies of topics between clusters, for `geminga import` and `geminga export`.

One producer with a fixed name sends entries unchanged and in order.  So the target holds a prefix of the source,
whenever a copy is interrupted.  The next copy finds the target's last entry in the source, by its bytes, and continues
behind it.  No other state is kept: the target need not deduplicate, and may have been restarted.

If the target does deduplicate, it gets sequence ids that continue from its last one for that producer.  The sequence
ids in the entries' own metadata stay unchanged for consumers.
"""
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from geminga.supervisor.configuration.target import Target
from geminga.workers.pulsar_client.client import BrokerConnection, Silence
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.entries import Entry

_PRODUCER = "geminga-copy"
_UNDER_WAY_MAX = 5_000          # entries without a receipt
_CLOCKS_S = 60                  # how far publish times of neighbouring entries may be out of order


@dataclass(slots=True)
class Copied:
    """Progress of a topic's copy: entries, messages and bytes copied by now."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0

    def add(self, run: list[Entry]) -> None:
        self.entries += len(run)
        self.messages += sum(entry.messages for entry in run)
        self.bytes += sum(len(entry.data) for entry in run)


async def copy_topic(source: Target, target: Target, topic: str, subscriptions: tuple[str, ...] = (),
                     told: Callable[[Copied], None] = lambda copied: None) -> Copied:
    """Copy a topic's or partition's schemas and entries from one cluster to another.  Raises ClientError, OSError.

    The subscriptions are created on the target first, so that the target keeps the entries for them.
    """
    with closing(await source.connect_to_topic(topic)) as reading, \
            closing(await target.connect_to_topic(topic)) as writing:
        for subscription in subscriptions:
            await writing.close_consumer(await writing.subscribe(topic, subscription))
        copied = Copied()
        sequence_id = await _open(reading, writing, topic) + 1
        end = await _last_of(writing, topic)
        if end is None and sequence_id > 0:
            raise ClientError("messages of an earlier copy are gone from the target: "
                              "delete the topic there to copy it anew")
        await _copy(reading, writing, topic, end, sequence_id, copied, told)
        await writing.close_producer()
        return copied


async def _open(reading: BrokerConnection, writing: BrokerConnection, topic: str) -> int:
    """Create the schema's versions that the target lacks, then the producer.

    Return the producer's last sequence id, -1 if it has none.  Raises ClientError if the target has another schema
    under one of the versions.
    """
    wanted, existing = await reading.schemas(topic), await writing.schemas(topic)
    for version, schema in wanted.items():
        if version in existing:
            if (existing[version].type, existing[version].schema_data) != (schema.type, schema.schema_data):
                raise ClientError(f"version {version} of the schema is another one on the target")
            continue
        producer = await writing.producer(topic, _PRODUCER, schema)
        made = int.from_bytes(producer.schema_version)
        if made != version:
            raise ClientError(f"version {version} of the schema would be version {made} on the target")
        await writing.close_producer()
    return (await writing.producer(topic, _PRODUCER, wanted[max(wanted)] if wanted else None)).last_sequence_id


async def _last_of(connection: BrokerConnection, topic: str) -> Entry | None:
    """Return the topic's last entry, None if it has none."""
    consumer = await connection.subscribe(topic)
    last = await connection.last(consumer)
    await connection.close_consumer(consumer)
    if last is None:
        return None
    consumer = await connection.subscribe(topic, first=last)
    entries = [entry async for run in connection.entries(consumer, last) for entry in run]
    await connection.close_consumer(consumer)
    return entries[-1]


async def _copy(reading: BrokerConnection, writing: BrokerConnection, topic: str, end: Entry | None, sequence_id: int,
                copied: Copied, told: Callable[[Copied], None]) -> None:
    """Copy the entries behind the entry `end` from source to target, or all entries if `end` is None.

    Raises ClientError if the source does not have the entry `end`.
    """
    ages_s = [0]
    if end is not None:     # the search begins at its publish time; if clocks were wrong, at the beginning
        ages_s = [max(1, int(time.time() - end.metadata.publish_time / 1_000) + _CLOCKS_S), 0]
    for age_s in ages_s:
        consumer = await reading.subscribe(topic, since_s=age_s, makes_topic=False)
        last = await reading.last(consumer)
        is_behind, under_way = end is None, _UnderWay(writing, sequence_id)
        try:
            async for run in reading.entries(consumer, last):
                if end is not None and not is_behind:
                    sought = end.data
                    at = next((number for number, entry in enumerate(run, 1) if entry.data == sought), None)
                    is_behind = at is not None
                    run = [] if at is None else run[at:]
                await under_way.send(run)
                copied.add(run)
                told(copied)
            await under_way.end()
        except Silence:
            if is_behind or not age_s:
                raise
        await reading.close_consumer(consumer)
        if is_behind:
            return
    raise ClientError("the target's last message is not in the source: nothing was copied")


class _UnderWay:
    """Entries sent to the target without a receipt yet, _UNDER_WAY_MAX at most."""

    def __init__(self, connection: BrokerConnection, sequence_id: int) -> None:
        self._connection, self._next, self._done = connection, sequence_id, sequence_id

    def __repr__(self) -> str:
        return f"<_UnderWay {self._next - self._done} of {self._connection}>"

    async def send(self, run: list[Entry]) -> None:
        await self._connection.send_entries(run, self._next)
        self._next += len(run)
        await self._receive(_UNDER_WAY_MAX)

    async def end(self) -> None:
        await self._receive(0)

    async def _receive(self, left: int) -> None:
        """Wait for receipts until at most `left` entries are without one.  Raises ClientError."""
        while self._next - self._done > left:
            ledger, _ = await self._connection.receipt()
            if ledger >> 63:
                raise ClientError("the target took an entry for a duplicate")
            self._done += 1
