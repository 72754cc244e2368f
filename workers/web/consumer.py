"""Consumers and readers of a WebSocket: the window, acknowledgements, redelivery.

    delivered -> queue -> the client -> unacknowledged -> acknowledged, or delivered again

Workers are granted permits for the room of the window, or for the permits of a client in pull mode.  The queue holds
messages of batches that came beyond that, or while the client does not read; the worker is not read while it is full.
"""
import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.workers.messages.decoding import Decoder
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.entries import Entry, entry_of
from geminga.workers.web import delivered
from geminga.workers.web.acknowledging import Acknowledging
from geminga.workers.web.dead_letters import DeadLetters
from geminga.workers.web.delivered import Delivered
from geminga.workers.web.frames import BAD_DATA, REFUSED
from geminga.workers.web.handovers import READER, Handover
from geminga.workers.web.parameters import CONSUME, DISCARD, Consuming, message_id_of
from geminga.workers.web.session import Channel, Session
from geminga.workers.web.subscribing import Subscribing, Topic
from geminga.workers.web.worker_links import WorkerLink, WorkerLinks

_QUEUE_BYTES_MAX = 1 << 20      # of texts that wait; beyond, the worker is not read
SHARING = api.CommandSubscribe.Shared, api.CommandSubscribe.Key_Shared
DUE_MAX = 100_000               # entries that wait to be delivered again
_PERMITS_MAX = 1 << 31
# Least time between two looks for messages that are due, and how many more of these wait for each second more: a look
# passes all of them, so it takes some hundredths of a core at most.
_LOOK_S, _DUE_PER_S = 0.01, 400_000
Key = tuple[int, int, int, int]      # number of the topic, ledger, entry, index in the batch


class Consumer(Session):
    """A consumer or a reader."""

    has_texts = True      # False: messages are passed on as they are, without their texts

    __slots__ = ("_acks", "_dead_letters", "_decoder", "_due", "_parameters", "_permits", "_queue", "_queue_bytes",
                 "_subscribing", "_tasks", "_timer", "_timer_at", "_unacknowledged")

    def __init__(self, handover: Handover, links: WorkerLinks, connection: Channel, parameters: Consuming) -> None:
        super().__init__(handover, links, connection)
        self._parameters = parameters
        self._subscribing = Subscribing(handover, parameters)
        self._acks = Acknowledging()
        self._decoder: Decoder | None = None                     # made with the first message
        self._queue: deque[tuple[Topic, Delivered]] | None = None      # likewise
        self._queue_bytes = 0
        self._permits = 0                                        # in pull mode: messages that the client has asked for
        # Message that the client has: when its acknowledgement is too late, in the order of these times.
        self._unacknowledged: dict[Key, float] = {}
        self._due: dict[tuple[int, int, int], float] = {}        # (topic, ledger, entry) to deliver again -> when
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0                                     # when it looks, as time of the event loop
        self._tasks: set[asyncio.Task[None]] | None = None       # asyncio keeps no reference to a task
        self._dead_letters = DeadLetters(handover, parameters.dead_letter_topic) if parameters.redeliveries_max \
            else None
        self.is_busy = self._dead_letters is not None            # as it publishes

    # -- opening

    async def begin(self, link: WorkerLink) -> None:
        await self._subscribing.open(link, self)

    def began(self) -> None:
        self._grant()

    @property
    def has_partitions(self) -> bool:
        return self._subscribing.has_partitions

    async def grow(self, link: WorkerLink) -> None:
        for name in await self._subscribing.new_partitions(link):
            with suppress(ClientError):      # a later look tries it again, and the others go on
                await self._subscribing.join(link, self, [name])
            self._grant()

    def suspended(self) -> None:
        """Forget what the client has and what waits: all of it comes again, to this consumer or another one."""
        self._unacknowledged.clear()
        self._due.clear()
        self._acks.clear()
        self._decoder = self._queue = None
        self._queue_bytes = 0
        if self._dead_letters is not None:
            self._dead_letters.suspended()

    def closed(self) -> None:
        super().closed()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks or ():
            task.cancel()

    # -- messages of the worker

    def delivered(self, message: api.CommandMessage, data: bytes) -> None:
        topic = self._subscribing.topics.get(message.consumer_id)
        if topic is None:
            return
        entry = entry_of(message, data)
        if topic.redeliveries:
            entry = entry._replace(redelivery_count=topic.redeliveries.get(entry[:2], 0))
        topic.permits -= entry.messages
        if message.consumer_epoch < topic.epoch:      # on its way when everything was to be delivered again
            return
        for delivery in self._messages(topic, entry):
            if topic.start is not None and _is_before(delivery, topic.start):
                continue
            if self._queue is None:
                self._queue = deque()
            self._queue.append((topic, delivery))
            self._queue_bytes += delivery.size
        self._acks.came(topic, entry)

    def _messages(self, topic: Topic, entry: Entry) -> list[Delivered]:
        if entry.metadata.encryption_keys:
            return self._encrypted(topic, entry)
        if self._decoder is None:
            self._decoder = Decoder()
        came = list(delivered.messages(self._decoder, topic.name, topic.partition, entry, has_text=self.has_texts,
                                       keeps_message=self._dead_letters is not None or not self.has_texts))
        # Nobody is told of entries that cannot be read; they stay unacknowledged.
        self._decoder.left_out.clear()
        if self._dead_letters is None:
            return came
        living = [delivery for delivery in came if delivery.redelivery_count <= self._parameters.redeliveries_max]
        for delivery in came:
            if delivery.redelivery_count > self._parameters.redeliveries_max:
                self._dead_letters.add(topic, delivery)
        return living

    def _encrypted(self, topic: Topic, entry: Entry) -> list[Delivered]:
        if self._parameters.encrypted == CONSUME:
            return [delivered.encrypted(topic.name, topic.partition, entry, has_text=self.has_texts)]
        if self._parameters.encrypted == DISCARD and self.link is not None:
            self._acks.entries(self.link, topic, [entry[:2]])
        return []

    def taken(self) -> None:
        """Pass on what has come, as far as the window and the client's socket reach."""
        queue, deliveries, room = self._queue, [], self._room()
        last: dict[Topic, Delivered] = {}
        while queue and room > 0 and self.connection.is_writable:
            topic, delivery = queue.popleft()
            self._queue_bytes -= delivery.size
            deliveries.append(delivery)
            room -= 1
            self._passed_on(topic, delivery)
            last[topic] = delivery
        if deliveries:
            self.pass_on(deliveries)
        if self.handover.kind == READER and last:      # a reader has read what it got, as the end of a topic shows
            for topic, delivery in last.items():
                self._acks.up_to(topic, delivery.id)
            self._acks.flush(self.link)
        if self._dead_letters is not None and self.link is not None and self._dead_letters.is_wanted:
            self._start(self._dead_letters.send(self.link, self))
        self._grant()
        if self.link is None:
            return
        if self._queue_bytes > _QUEUE_BYTES_MAX:
            self.link.pause() if self.link.is_own else self.move()
        elif self._queue_bytes <= _QUEUE_BYTES_MAX // 2:
            self.link.resume()

    def pass_on(self, deliveries: list[Delivered]) -> None:
        """Send messages to the client."""
        self.connection.send([delivery.text for delivery in deliveries])

    def _passed_on(self, topic: Topic, delivery: Delivered) -> None:
        self._subscribing.passed_on(topic, delivery)
        if self._parameters.is_pulling:
            self._permits -= 1
        key = (topic.number, *delivery.position, delivery.batch_index)
        self._unacknowledged.pop(key, None)
        timeout_ms = self._parameters.ack_timeout_ms
        if not self._parameters.is_pulling or timeout_ms:
            by = asyncio.get_running_loop().time() + timeout_ms / 1_000
            self._unacknowledged[key] = by
            if timeout_ms:
                self._look_at(by)

    def _room(self) -> int:
        """Return how many messages may go to the client now."""
        if self._parameters.is_pulling:
            return self._permits
        return self._parameters.window - len(self._unacknowledged)

    def _grant(self) -> None:
        """Grant the worker permits for what the client may get, beside what waits already."""
        if self.link is None:
            return
        room, half = self._room() - len(self._queue or ()), self._granted_at_least()
        for topic in self._subscribing.topics.values():
            wanted = room - topic.permits
            if wanted > 0 and (wanted >= half or topic.permits <= 0):
                topic.permits += wanted
                self.link.send(api.CommandFlow(consumer_id=topic.number, messagePermits=wanted))

    def _granted_at_least(self) -> int:
        """Return the number of permits that are worth a command while the worker has others."""
        return max(1, self._parameters.window // 2)

    def socket_writable(self, *, is_writable: bool) -> None:
        if is_writable:
            self.taken()

    def received(self, receipt: api.CommandSendReceipt) -> None:
        if self._dead_letters is None or (pair := self._dead_letters.received(receipt.sequence_id)) is None:
            return
        topic, delivery = pair
        self._acks.message(topic, delivery.id)
        self._acks.flush(self.link)

    def not_sent(self, error: api.CommandSendError) -> None:
        self.connection.close(REFUSED, f"A dead letter cannot be published: {error.message}")

    def take_command(self, command: api.BaseCommand) -> None:
        if command.type == T.CLOSE_CONSUMER:
            if command.close_consumer.consumer_id in self._subscribing.topics:
                self.lost("the worker closed a consumer")
        elif command.type == T.REACHED_END_OF_TOPIC:
            topic = self._subscribing.topics.get(command.reachedEndOfTopic.consumer_id)
            if topic is not None:
                topic.is_ended = True
        elif command.type == T.WATCH_TOPIC_UPDATE and self.link is not None:
            self._start(self._join(self.link, list(command.watchTopicUpdate.new_topics)))

    async def _join(self, link: WorkerLink, names: list[str]) -> None:
        """Consume topics that a pattern matches and that are new."""
        try:
            for name in names:
                if self.link is not link:      # lost meanwhile, and opened again with all that matches
                    return
                await self._subscribing.join(link, self, [name])
        except ClientError as error:
            if self.link is link:
                self.lost(str(error))
        self._grant()

    # -- texts of the client

    def texts(self, texts: list[str]) -> None:
        for text in texts:
            try:
                fields = json.loads(text)
                if not isinstance(fields, dict):
                    raise ValueError("a command is a JSON object")
                self._command(fields)
            except (ValueError, RecursionError) as error:
                return self.connection.close(BAD_DATA, f"Not a command: {error}")
            if self.connection.is_closed:
                return
        self._acks.flush(self.link)
        self.taken()

    @property
    def is_at_end(self) -> bool:
        """Whether the topics are terminated, and everything was read."""
        topics = self._subscribing.topics.values()
        return bool(topics) and all(topic.is_ended for topic in topics) and not self._queue

    def _command(self, fields: dict[str, Any]) -> None:
        """Carry a command out.  Raises ValueError."""
        kind = fields.get("type")
        if kind == "isEndOfTopic":
            return self.connection.send([b'{"endOfTopic":%s}' % (b"true" if self.is_at_end else b"false")])
        if self.handover.kind == READER:
            if self._unacknowledged:      # any text frees one place
                del self._unacknowledged[next(iter(self._unacknowledged))]
        elif kind == "permit":
            count = fields.get("permitMessages")
            if isinstance(count, bool) or not isinstance(count, int):
                raise ValueError("permitMessages must be a whole number")
            if self._parameters.is_pulling:
                self._permits = min(self._permits + max(0, count), _PERMITS_MAX)
        elif kind == "unsubscribe":
            self._start(self._unsubscribe())
        else:
            text = fields.get("messageId")
            if not isinstance(text, str):
                raise ValueError("messageId must be an id as it was sent")
            self._about_message(kind, message_id_of(text))

    def _about_message(self, kind: Any, place: api.MessageIdData) -> None:
        topic = self._subscribing.topic_of(place)
        if topic is None:
            return
        if kind == "acknowledgeCumulative":
            if self._parameters.kind in SHARING:
                return self.connection.close(REFUSED, "Shared subscriptions have no cumulative acknowledgement")
            self._acks.up_to(topic, place)
            last = place.ledgerId, place.entryId, place.batch_index if place.batch_index >= 0 else 1 << 31
            self._forget(lambda key: key[0] == topic.number and key[1:] <= last)
            return
        if kind == "negativeAcknowledge":
            if len(self._due) >= DUE_MAX:
                return self.connection.close(REFUSED, f"More than {DUE_MAX} negative acknowledgements wait")
            self._come_again(topic, place, self._parameters.nack_delay_ms)
        else:
            self._acks.message(topic, place)
            self._unacknowledged.pop((topic.number, place.ledgerId, place.entryId, place.batch_index), None)

    def _come_again(self, topic: Topic, place: api.MessageIdData, delay_ms: int) -> None:
        """Have a message delivered again after a delay."""
        self._unacknowledged.pop((topic.number, place.ledgerId, place.entryId, place.batch_index), None)
        by = asyncio.get_running_loop().time() + delay_ms / 1_000
        self._due[topic.number, place.ledgerId, place.entryId] = by
        self._look_at(by)

    def _forget(self, is_meant: Any) -> None:
        for key in [key for key in self._unacknowledged if is_meant(key)]:
            del self._unacknowledged[key]

    async def _unsubscribe(self) -> None:
        async with self._growing:      # else a partition that joins meanwhile stays subscribed
            if self.link is not None:
                try:
                    await self._subscribing.unsubscribe(self.link)
                except ClientError as error:
                    self.connection.close(REFUSED, str(error))

    def _start(self, work: Any) -> None:
        """Do asynchronous work beside the session, and end with it."""
        if self._tasks is None:
            self._tasks = set()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        assert self._tasks is not None
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, ClientError):
                self.connection.close(REFUSED, str(error))
            else:
                raise error

    # -- redelivery

    def _look_at(self, when: float) -> None:
        """Look for messages that are due, at a time of the event loop."""
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        # Kept here, as uvloop's handle of a time that has passed does not know it.
        self._timer_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        due: dict[int, set[tuple[int, int]]] = {}
        self._take_due(lambda _, by: by <= now, due)
        if self._parameters.kind not in SHARING:      # everything of a topic comes again with its first message
            self._take_due(lambda number, _: number in due, due)
        if self._parameters.ack_timeout_ms:
            while self._unacknowledged:
                key = next(iter(self._unacknowledged))
                if self._unacknowledged[key] > now:
                    break
                del self._unacknowledged[key]
                due.setdefault(key[0], set()).add((key[1], key[2]))
        for number, positions in due.items():
            topic = self._subscribing.topics.get(number)
            if topic is not None:
                self._redeliver(topic, positions)
        times = [*self._due.values()]
        if self._parameters.ack_timeout_ms and self._unacknowledged:
            times.append(next(iter(self._unacknowledged.values())))
        if times:
            # Those that follow soon are taken together. But a timer may look up to a millisecond early: a pause then
            # would make a message late that nothing was taken together with.
            pause = _LOOK_S + len(self._due) / _DUE_PER_S if due else 0.0
            self._look_at(max(min(times), now + pause))
        self.taken()

    def _take_due(self, is_due: Callable[[int, float], bool], due: dict[int, set[tuple[int, int]]]) -> None:
        """Move entries to `due` whose topic and time say so."""
        for (number, *position), by in list(self._due.items()):
            if is_due(number, by):
                del self._due[number, position[0], position[1]]
                due.setdefault(number, set()).add((position[0], position[1]))

    def _redeliver(self, topic: Topic, positions: set[tuple[int, int]]) -> None:
        """Have entries delivered again; other types than Shared get everything that is unacknowledged, in order."""
        if self.link is None:
            return
        # First, else messages that the client has acknowledged would come again.
        self._acks.flush(self.link)
        again = api.CommandRedeliverUnacknowledgedMessages(consumer_id=topic.number)
        if self._parameters.kind in SHARING:
            for ledger_id, entry_id in sorted(positions):
                again.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        else:
            topic.epoch += 1
            topic.count(positions)
            again.consumer_epoch = topic.epoch
            self._forget(lambda key: key[0] == topic.number)
            if self._queue:
                self._queue = deque(pair for pair in self._queue if pair[0] is not topic)
                self._queue_bytes = sum(delivery.size for _, delivery in self._queue)
        self.link.send(again)


def _is_before(delivery: Delivered, start: api.MessageIdData) -> bool:
    """Whether a message is not behind the one at which a reader starts."""
    place = start.ledgerId, start.entryId
    if delivery.position != place:
        return delivery.position < place
    return start.batch_index < 0 or delivery.batch_index <= start.batch_index
