"""The topics of a consumer or reader: which ones, and SUBSCRIBE for each, at the start and after a loss."""
import secrets
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.pulsar_client.connection import ClientError, consuming
from geminga.workers.web.delivered import Delivered
from geminga.workers.web.handovers import READER, Handover
from geminga.workers.web.parameters import Consuming
from geminga.workers.web.session import TurnedAway
from geminga.workers.web.worker_links import Taker, WorkerLink

_REDELIVERIES_MAX = 10_000      # entries of a topic whose redeliveries are counted
_LEDGERS_MAX = 4_096         # whose topics are known by their messages


class Topic:
    """A topic without partitions, or one partition, and its consumer at the worker."""

    __slots__ = ("chunks", "epoch", "is_ended", "name", "number", "partition", "permits", "redeliveries", "start")

    def __init__(self, number: int, name: str, start: api.MessageIdData | None) -> None:
        self.number, self.name, self.start = number, name, start      # number: of the consumer
        self.partition = names.parse(name).partition
        self.permits = 0                                  # that the worker has, and has not used
        self.is_ended = False                             # the topic is terminated, and everything was read
        self.epoch = 0                                    # grows with each redelivery of everything
        # (ledger, entry) -> how often it was delivered again, of types that the broker does not count for
        self.redeliveries: dict[tuple[int, int], int] = {}
        # Last chunk of a large message: the positions of its other chunks.
        self.chunks: dict[tuple[int, int], tuple[tuple[int, int], ...]] | None = None

    def count(self, positions: Iterable[tuple[int, int]]) -> None:
        """Count another redelivery of these entries."""
        for position in positions:
            times = self.redeliveries.pop(position, 0)
            if len(self.redeliveries) >= _REDELIVERIES_MAX:
                del self.redeliveries[next(iter(self.redeliveries))]
            self.redeliveries[position] = times + 1


class Subscribing:
    """The topics of one WebSocket; their consumers are opened again when the worker was lost."""

    __slots__ = ("_begun", "_ledgers", "_name", "_parameters", "_positions", "_handover", "is_left", "topics")

    def __init__(self, handover: Handover, parameters: Consuming) -> None:
        self._handover, self._parameters = handover, parameters
        self._name = handover.subscription if handover.kind != READER else f"reader-{secrets.token_hex(5)}"
        self.topics: dict[int, Topic] = {}                  # by the number of the consumer
        self._ledgers: dict[int, Topic] = {}                # ledger -> topic whose messages came from it
        self._positions: dict[str, api.MessageIdData] = {}  # topic -> the last message, if nobody else keeps that
        self._begun: dict[str, int] = {}                    # topic -> the partitions with which the session began
        self.is_left = False                                # the client has unsubscribed

    def __repr__(self) -> str:
        return f"<Subscribing {self._name} topics={len(self.topics)}>"

    async def open(self, link: WorkerLink, taker: Taker) -> None:
        """Open consumers on all topics.  Raises ClientError, TurnedAway."""
        self.topics, self._ledgers = {}, {}
        if self.is_left:
            return
        if self._handover.pattern:
            return await self.join(link, taker, await self._matching(link, taker))
        for topic in self._handover.topics:
            count = await link.partition_count(topic)
            if count and self._parameters.start is not None:
                raise TurnedAway(HTTPStatus.BAD_REQUEST, "messageId of a topic with partitions is latest or earliest")
            self._begun.setdefault(topic, count)
            for name in _partitions(topic, count) or [topic]:
                await self._subscribe(link, taker, name)

    @property
    def has_partitions(self) -> bool:
        """Whether one of the topics has partitions, and may get more."""
        return not self.is_left and any(self._begun.values())

    async def new_partitions(self, link: WorkerLink) -> list[str]:
        """Return the partitions on which the session has no consumer yet."""
        there, new = {topic.name for topic in self.topics.values()}, []
        for topic in [topic for topic, count in self._begun.items() if count]:
            with suppress(ClientError):      # this topic may have been deleted, and others go on
                count = await link.partition_count(topic, may_create=False)
                new += [name for name in _partitions(topic, count) if name not in there]
        return new

    def _position_of(self, name: str) -> "api.CommandSubscribe.InitialPosition.ValueType":
        """Return where a new subscription begins; a partition added since the session began is read from its start."""
        topic = names.parse(name)
        is_added = topic.partition >= self._begun.get(str(topic.base), topic.partition + 1)
        return api.CommandSubscribe.Earliest if is_added else self._parameters.position

    async def join(self, link: WorkerLink, taker: Taker, topics: list[str]) -> None:
        """Open consumers on more topics.  Raises ClientError."""
        there = {topic.name for topic in self.topics.values()}
        for name in topics:
            if name not in there:
                await self._subscribe(link, taker, name)

    async def _matching(self, link: WorkerLink, taker: Taker) -> list[str]:
        """Return the topics that match the pattern; the worker tells of those that come later.  Raises ClientError."""
        tenant, namespace, _ = self._handover.pattern.partition("://")[2].split("/", 2)
        request = api.CommandWatchTopicList(
            watcher_id=link.next_id(), namespace=f"{tenant}/{namespace}", topics_pattern=self._handover.pattern)
        link.watchers[request.watcher_id] = taker
        answer: api.CommandWatchTopicListSuccess = await link.ask(request)
        return list(answer.topic)

    async def _subscribe(self, link: WorkerLink, taker: Taker, name: str) -> None:
        """Raises ClientError."""
        own, number = self._parameters, link.next_id()
        start = self._positions.get(name, own.start)
        topics = self.topics                                 # `open` begins another one after a loss
        topics[number] = Topic(number, name, start)
        try:
            await link.open(consuming(
                name, self._name, number, own.kind, is_durable=own.is_durable, position=self._position_of(name),
                start=start, name=own.name or self._name, priority=own.priority, epoch=0), taker)
        except ClientError:
            topics.pop(number, None)
            raise

    async def unsubscribe(self, link: WorkerLink) -> None:
        """Delete the subscription.  Raises ClientError."""
        for number in list(self.topics):
            await link.ask(api.CommandUnsubscribe(consumer_id=number))
            link.consumers.pop(number, None)
        self.is_left, self.topics = True, {}

    def topic_of(self, place: api.MessageIdData) -> Topic | None:
        """Return the topic of a message id; None if it is one of several, and none of its messages came."""
        if (topic := self._ledgers.get(place.ledgerId)) is not None:
            return topic
        if len(self.topics) == 1:
            return next(iter(self.topics.values()))
        if len(self._handover.topics) == 1:
            return next((topic for topic in self.topics.values() if topic.partition == place.partition), None)
        return None

    def passed_on(self, topic: Topic, delivery: Delivered) -> None:
        """Take note of a message that goes to the client."""
        ledger_id, entry_id = delivery.position
        if self._ledgers.get(ledger_id) is not topic:
            if len(self._ledgers) >= _LEDGERS_MAX:
                del self._ledgers[next(iter(self._ledgers))]
            self._ledgers[ledger_id] = topic
        if delivery.others:
            topic.chunks = topic.chunks or {}
            topic.chunks[delivery.position] = delivery.others
        if not self._parameters.is_durable:
            self._positions[topic.name] = api.MessageIdData(ledgerId=ledger_id, entryId=entry_id,
                                                            batch_index=delivery.batch_index)


def _partitions(topic: str, count: int) -> list[str]:
    return [f"{topic}-partition-{number}" for number in range(count)]
