"""Messages that a broker delivers, chosen by a filter: all of a topic or namespace is read over the network."""
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.messages.decoding import Decoder
from geminga.workers.messages.filters import Filter, Wish
from geminga.workers.messages.message import Message
from geminga.workers.messages.report import Report
from geminga.workers.messages.topics import partitions, segments
from geminga.workers.messages.values import Values
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.entries import Entry


async def messages(connect: Callable[[], Awaitable[BrokerConnection]], place: str, chosen: Filter, wish: Wish,
                   report: Report) -> AsyncGenerator[list[Message], None]:
    """Yield the messages of each entry that match: topic by topic, in the order of their positions.

    connect: opens a connection to the broker.  Raises ClientError, NoTopic, Refusal, OSError.
    """
    connection = await connect()
    asking = None
    try:
        asking = await connect()      # a question would lose messages that come on the other one
        decoder, values = Decoder(), _values(asking)
        for topic in await _topics(connection, place):
            async for entry in _entries(connection, topic, chosen.since_ms, report):
                came = list(decoder.messages(topic, entry))
                await values.decode(came)
                _tell(report, topic, decoder.left_out, values.complaints)
                yield [message for message in came if wish.matches(message) and chosen.matches(message)]
            decoder.end()
            _tell(report, topic, decoder.left_out)
    finally:
        connection.close()
        if asking is not None:
            asking.close()


def _values(asking: BrokerConnection) -> Values:
    async def schema(topic: str, version: bytes) -> api.Schema | None:
        answer = await asking.schema(topic, version)
        return None if answer is None else answer.schema
    return Values(schema)


def _tell(report: Report, topic: str, *reasons: list[str]) -> None:
    """Report why messages are left out, and forget it."""
    for lines in reasons:
        for line in lines:
            report(f"{topic}: {line}")
        lines.clear()


async def _entries(connection: BrokerConnection, topic: str, since_ms: int | None,
                   report: Report) -> AsyncIterator[Entry]:
    """Yield the entries that a topic has, from some before `since_ms` on.

    Reports a topic that is not there any more, or that a scalable topic of its name hides.
    """
    since_s = 0 if since_ms is None else max(1, int(time.time() - since_ms / 1_000) + 1)
    try:
        consumer = await connection.subscribe(topic, makes_topic=False, since_s=since_s)
    except ClientError as error:
        if error.code != api.TopicNotFound:
            raise
        report(f"{topic}: {error}")
        return
    async for run in connection.entries(consumer, await connection.last(consumer)):
        for entry in run:
            yield entry
    await connection.close_consumer(consumer)


async def _topics(connection: BrokerConnection, place: str) -> list[str]:
    """Return the topics and partitions of a topic or namespace.  Raises NoTopic, Refusal, ClientError."""
    if "://" not in place and place.count("/") == 1:
        names.parse_namespace(place)
        topics = {name for name in await connection.topics(place) if not names.is_system(name)}
        for scalable in await connection.scalable_topics(place):      # its former partitions are in the other list too
            topics |= {*await segments(connection, names.parse(scalable))}
        return sorted(topics)
    topic = names.parse(place)
    if topic.is_scalable:
        return await segments(connection, topic)
    count = await partitions(connection, topic)
    return [str(topic.partition_name(number)) for number in range(count)] if count else [str(topic)]
