"""Copies of topics between clusters, for `geminga import` and `geminga export`.

One producer with a fixed name sends entries unchanged and in order.  So the target holds a prefix of the source,
whenever a copy is interrupted.  The next copy finds the target's last entry in the source, by its bytes, and continues
behind it.  No other state is kept: the target need not deduplicate, and may have been restarted.

If the target does deduplicate, it gets sequence ids that continue from its last one for that producer.  The sequence
ids in the entries' own metadata stay unchanged for consumers.
"""
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from geminga.supervisor.pulsar_client import client
from geminga.supervisor.pulsar_client.client import ClientError, Entry, Session, Silence

_PRODUCER = "geminga-copy"
_UNDER_WAY_MAX = 5_000          # entries without a receipt
_CLOCKS_S = 60                  # by which publish times of neighbouring entries may be out of order


class Cluster(NamedTuple):
    """The address of a cluster, and the credentials to use."""

    url: str
    method: str = ""
    data: str = ""
    tls: ssl.SSLContext | None = None

    async def session(self) -> Session:
        """Connect to any broker of the cluster.  Raises ClientError, OSError."""
        return await client.connect(self.url, self.method, self.data, self.tls)

    async def session_of(self, topic: str) -> Session:
        """Connect to the broker that serves the topic.  Raises ClientError, OSError."""
        return await client.connect_to_topic(self.url, topic, self.method, self.data, self.tls)


@dataclass(slots=True)
class Copied:
    """Progress of one copy."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0

    def add(self, run: list[Entry]) -> None:
        self.entries += len(run)
        self.messages += sum(entry.messages for entry in run)
        self.bytes += sum(len(entry.data) for entry in run)


async def copy_topic(source: Cluster, target: Cluster, topic: str, subscriptions: tuple[str, ...] = (),
                     told: Callable[[Copied], None] = lambda copied: None) -> Copied:
    """Copy the schemas and the present entries of a topic or partition.  Raises ClientError, OSError.

    The subscriptions are created on the target first, so that it keeps the entries for them.
    """
    reading = await source.session_of(topic)
    try:
        writing = await target.session_of(topic)
        try:
            for subscription in subscriptions:
                await writing.close_consumer(await writing.subscribe(topic, subscription))
            copied = Copied()
            sequence_id = await _open(reading, writing, topic) + 1
            end = await _last_of(writing, topic)
            if end is None and sequence_id > 0:
                raise ClientError("what was copied there before is gone: delete the topic there to copy it anew")
            await _copy(reading, writing, topic, end, sequence_id, copied, told)
            await writing.close_producer()
            return copied
        finally:
            writing.close()
    finally:
        reading.close()


async def _open(reading: Session, writing: Session, topic: str) -> int:
    """Create the producer, and every version of the schema; return its last sequence id, -1 if it has none.

    Raises ClientError if the target has another schema under one of the versions.
    """
    wanted, found = await reading.schemas(topic), await writing.schemas(topic)
    for version, schema in wanted.items():
        if version in found:
            if (found[version].type, found[version].schema_data) != (schema.type, schema.schema_data):
                raise ClientError(f"version {version} of the schema is another one there")
            continue
        made = await writing.producer(topic, _PRODUCER, schema)
        if int.from_bytes(made.schema_version) != version:
            raise ClientError(f"version {version} of the schema would be version {int.from_bytes(made.schema_version)} there")
        await writing.close_producer()
    return (await writing.producer(topic, _PRODUCER, wanted[max(wanted)] if wanted else None)).last_sequence_id


async def _last_of(session: Session, topic: str) -> Entry | None:
    consumer = await session.subscribe(topic)
    last = await session.last(consumer)
    await session.close_consumer(consumer)
    if last is None:
        return None
    consumer = await session.subscribe(topic, first=last)
    found = [entry async for run in session.entries(consumer, last) for entry in run]
    await session.close_consumer(consumer)
    return found[-1]


async def _copy(reading: Session, writing: Session, topic: str, end: Entry | None, sequence_id: int, copied: Copied,
                told: Callable[[Copied], None]) -> None:
    """Copy all entries behind `end`, or all if it is None.

    Raises ClientError if the source does not have that entry.
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
    raise ClientError("its last message there is not among those that are here: nothing was copied")


class _UnderWay:
    """Entries that were sent and have no receipt yet, bounded by _UNDER_WAY_MAX."""

    def __init__(self, session: Session, sequence_id: int) -> None:
        self._session, self._next, self._done = session, sequence_id, sequence_id

    async def send(self, run: list[Entry]) -> None:
        await self._session.send_entries(run, self._next)
        self._next += len(run)
        await self._receive(_UNDER_WAY_MAX)

    async def end(self) -> None:
        await self._receive(0)

    async def _receive(self, left: int) -> None:
        while self._next - self._done > left:
            ledger, _ = await self._session.receipt()
            if ledger >> 63:
                raise ClientError("an entry was taken for one that had come before")
            self._done += 1
