"""A consumer that calls share: it has what the broker delivers until a call takes it, then until it is acknowledged.

    queue --a call takes it--> unacknowledged --acknowledged--> gone
                                              --too late, or a negative acknowledgement--> delivered again

A call that comes for messages waits for them.  Calls that wait are served in turn.
"""
import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.http_messages.calls import Call
from geminga.workers.http_messages.pool import Ending
from geminga.workers.messages.values import Values
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.web.consumer import DUE_MAX, SHARING, Consumer, Key
from geminga.workers.web.delivered import Delivered
from geminga.workers.web.frames import FAILED, REFUSED
from geminga.workers.web.handovers import CONSUMER, Handover
from geminga.workers.web.parameters import Consuming
from geminga.workers.web.session import TurnedAway, status_of
from geminga.workers.web.subscribing import Topic
from geminga.workers.web.worker_links import WorkerLink, WorkerLinks

_STREAMS_MAX = 10            # that a client may come back to
_STATUSES = {REFUSED: HTTPStatus.FORBIDDEN, FAILED: HTTPStatus.CONFLICT}      # by the code of a WebSocket's end


class Wait(NamedTuple):
    """A call that waits for messages."""

    messages_max: int                                # that it takes
    future: "asyncio.Future[list[Delivered]]"


class Stream(NamedTuple):
    """Messages that are sent as events."""

    task: "asyncio.Task[Any]"                        # that sends them
    sent: deque[Key]                                 # the last ones, as many as may be unacknowledged


class _Calls(Ending):
    """The calls that wait, which take messages one after the other."""

    def __init__(self, ended: Callable[[int, str], None]) -> None:
        super().__init__(ended)
        self.waits: deque[Wait] = deque()

    @property
    def is_writable(self) -> bool:
        """Whether a call waits.  Calls that were given up are forgotten."""
        while self.waits and self.waits[0].future.done():
            self.waits.popleft()
        return bool(self.waits)


class Receiver(Consumer):
    """A consumer that calls share."""

    __slots__ = ("_over", "_streams", "_values", "calls", "ending", "parameters", "used")

    has_texts = False

    def __init__(self, call: Call, parameters: Consuming, links: WorkerLinks) -> None:
        handover = Handover(CONSUMER, (call.topic,), "", call.subscription, (), "", call.identity, "", b"")
        self.ending = _Calls(self._end)
        super().__init__(handover, links, self.ending, parameters)
        self.parameters = parameters
        self._values = Values(self._schema)
        self.calls, self.used = 0, 0.0                             # under way; when the last one ended
        self._over: TurnedAway | None = None                           # why the consumer has ended
        self._streams: deque[Stream] = deque(maxlen=_STREAMS_MAX)      # also those whose client has gone

    async def begin(self, link: WorkerLink) -> None:
        """Open the consumers, unless the topic is missing: SUBSCRIBE would make it.  Raises ClientError, TurnedAway."""
        await link.partition_count(self.handover.topics[0], may_create=False)
        await super().begin(link)

    @property
    def is_over(self) -> bool:
        return self._over is not None

    @property
    def is_idle(self) -> bool:
        """Whether no client has a message that it may still acknowledge."""
        return not self._unacknowledged and not self._due

    def _end(self, code: int, reason: str) -> None:
        self._over = TurnedAway(_STATUSES.get(code, HTTPStatus.SERVICE_UNAVAILABLE), reason)
        for wait in self.ending.waits:
            if not wait.future.done():
                wait.future.set_exception(self._over)
        self.ending.waits.clear()

    async def _schema(self, topic: str, version: bytes) -> api.Schema | None:
        """Return a version of the topic's schema, the newest for b"", None if there is none.  Raises TurnedAway."""
        link = self._linked()
        try:
            return (await link.schema_version(topic, version or None)).schema
        except ClientError as error:
            if error.code is None:
                raise TurnedAway(status_of(error), str(error)) from None
            return None

    def _linked(self) -> WorkerLink:
        """Return the connection to the worker.  Raises TurnedAway."""
        if self._over is not None:
            raise self._over
        if self.link is None:
            raise TurnedAway(HTTPStatus.SERVICE_UNAVAILABLE, "The subscription is being opened again; try again")
        return self.link

    # -- taking messages

    async def take(self, count: int, seconds: float) -> list[Delivered]:
        """Return up to `count` messages as soon as there is one, [] if none came in time.

        Payloads are decoded by the schemas of their messages, as far as these fit.  Raises TurnedAway.
        """
        deliveries = await self._taken(count, seconds)
        try:
            await self._values.decode(delivery.message for delivery in deliveries
                                      if delivery.message is not None and not delivery.encryption)
        except BaseException:
            self.give_back(deliveries)
            raise
        self._values.complaints.clear()      # such a payload is shown as it is
        return deliveries

    async def _taken(self, count: int, seconds: float) -> list[Delivered]:
        if self._over is not None:
            raise self._over
        wait = Wait(count, asyncio.get_running_loop().create_future())
        self.ending.waits.append(wait)
        self.taken()
        try:
            async with asyncio.timeout(seconds):
                return await wait.future
        except TimeoutError:
            return wait.future.result() if wait.future.done() and not wait.future.cancelled() else []
        except asyncio.CancelledError:      # the client has gone, and others may have the messages at once
            if wait.future.done() and not wait.future.cancelled() and wait.future.exception() is None:
                self.give_back(wait.future.result())
            raise
        finally:
            if wait in self.ending.waits:
                self.ending.waits.remove(wait)

    def taken(self) -> None:
        """Serve the calls that wait, one after the other."""
        while True:
            waiting = len(self.ending.waits)
            super().taken()
            if len(self.ending.waits) in (0, waiting):
                return

    def pass_on(self, deliveries: list[Delivered]) -> None:
        self.ending.waits.popleft().future.set_result(deliveries)

    def _room(self) -> int:
        if not self.ending.is_writable:
            return 0
        return min(self.ending.waits[0].messages_max, self.parameters.window - len(self._unacknowledged))

    def _granted_at_least(self) -> int:
        return 1      # a call may ask for one message only

    # -- streams

    def stream(self) -> Stream:
        """Return a new stream, of the task that sends it."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.append(Stream(task, deque(maxlen=self.parameters.window)))
        return self._streams[-1]

    def streamed(self, stream: Stream, deliveries: Iterable[Delivered]) -> None:
        """Take note of messages that a stream sends."""
        for delivery in deliveries:
            topic = self._subscribing.topic_of(delivery.id)
            if topic is not None:
                stream.sent.append((topic.number, *delivery.position, delivery.batch_index))

    def resume(self, place: api.MessageIdData) -> None:
        """End the stream that has sent a message, and have delivered again what it has sent behind that message.

        Its client has come back with that message as the last one it got.
        """
        topic = self._subscribing.topic_of(place)
        last = None if topic is None else (topic.number, place.ledgerId, place.entryId, place.batch_index)
        stream = next((stream for stream in self._streams if last in stream.sent), None)
        if stream is None:
            return
        self._streams.remove(stream)
        stream.task.cancel()
        while (key := stream.sent.pop()) != last:
            if key in self._unacknowledged and (topic := self._subscribing.topics.get(key[0])) is not None:
                self._come_again(topic, api.MessageIdData(ledgerId=key[1], entryId=key[2], batch_index=key[3]), 0)

    def give_back(self, deliveries: Iterable[Delivered]) -> None:
        """Have messages delivered again that no client has got."""
        for delivery in deliveries:
            topic = self._subscribing.topic_of(delivery.id)
            if topic is not None:
                self._come_again(topic, delivery.id, 0)

    # -- acknowledgements

    async def acknowledge(self, places: list[api.MessageIdData], up_to: api.MessageIdData | None) -> None:
        """Acknowledge messages, and all up to one, and return when that is on disk.  Raises TurnedAway."""
        link = self._linked()
        if up_to is not None and self.parameters.kind in SHARING:
            raise TurnedAway(HTTPStatus.CONFLICT, "upTo is for Exclusive and Failover: on Shared and Key_Shared "
                                              "subscriptions others may have the messages before it")
        for place in (*places, *([up_to] if up_to is not None else [])):
            self._topic_of(place)
        for place in places:
            self._about_message("", place)
        if up_to is not None:
            self._about_message("acknowledgeCumulative", up_to)
        try:
            await self._acks.ask(link)
        except ClientError as error:
            raise TurnedAway(status_of(error), str(error)) from None
        self.taken()

    def refuse(self, places: list[api.MessageIdData], delay_ms: int) -> None:
        """Have messages delivered again after a delay.  Raises TurnedAway."""
        self._linked()
        topics = [self._topic_of(place) for place in places]
        if len(self._due) + len(places) > DUE_MAX:
            raise TurnedAway(HTTPStatus.SERVICE_UNAVAILABLE, f"{DUE_MAX} messages wait to be delivered again")
        for topic, place in zip(topics, places, strict=True):
            self._come_again(topic, place, delay_ms)

    def _topic_of(self, place: api.MessageIdData) -> Topic:
        topic = self._subscribing.topic_of(place)
        if topic is None:
            raise TurnedAway(HTTPStatus.BAD_REQUEST, f"The topic has no partition {place.partition}")
        return topic
