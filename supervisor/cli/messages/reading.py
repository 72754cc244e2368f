"""Reading of topics for `geminga consume`: which, from where, to which end, and again when the broker comes back."""
import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.cli.output import remark
from geminga.supervisor.configuration.target import Target
from geminga.workers.messages import topics
from geminga.workers.messages.decoding import Decoder
from geminga.workers.pulsar_client.client import BrokerConnection, NoAddress, Silence
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.consumers import Consumers, Delivery, Manner, Position, Start

_QUIET_S = 1.0              # silence after which a subscription has no more for now
_SILENCE_S = 60.0           # silence after which a read of what a topic holds gives up
_LOOK_S = 5.0               # between two looks for new topics of a pattern, and for new partitions
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 5.0
_PASSING = (None, api.ServiceNotReady, api.ConsumerBusy, api.PersistenceError, api.MetadataError, api.TooManyRequests)


class Plan(NamedTuple):
    """Topics to read, and how."""

    texts: tuple[str, ...]      # names and patterns
    manner: Manner
    start: Start
    is_follow: bool             # go on at the end


class Reading:
    """Reads the entries of topics, over all their partitions.

    The entries of each partition keep their order; those of several partitions or topics mix as they arrive.
    """

    def __init__(self, target: Target, plan: Plan, decoder: Decoder) -> None:
        self.consumers: Consumers | None = None
        self._target, self._plan, self._decoder = target, plan, decoder
        self._asking: BrokerConnection | None = None             # for questions, apart from what is delivered
        self._topics: list[str] = []
        self._ends: dict[str, Position | None] = {}              # topic -> last entry to come, at the beginning
        self._seen: dict[str, Position] = {}                     # topic -> the last entry that was taken
        self._began: dict[str, Position] = {}                    # topic read from its end -> its last entry then
        self._resumed: dict[str, Position] = {}                  # topic -> entries up to there were taken before
        self._looked_at = 0.0

    def __repr__(self) -> str:
        return f"<Reading {self._plan.texts} topics={len(self._topics)}>"

    async def deliveries(self) -> AsyncIterator[list[Delivery]]:
        """Yield entries that arrived together, up to the topics' ends or for ever.

        A follow survives the end of the connection.  Raises ClientError, OSError, Refusal.
        """
        await self._begin()
        while True:
            try:
                assert self.consumers is not None
                async for some in self._until_end(self.consumers):
                    yield some
                return
            except (ClientError, OSError) as error:
                if not _is_passing(error) or not self._plan.is_follow:
                    raise
                await self._again(error)

    async def schema(self, topic: str, version: bytes) -> api.Schema | None:
        """Return a version of a topic's schema, None if the broker does not have it.  Raises ClientError, OSError."""
        try:
            answer = await (await self._questions()).schema(topic, version)
        except (ClientError, OSError) as error:
            if getattr(error, "code", None) is not None:
                raise
            self._asking = None      # the connection has ended since its last question
            answer = await (await self._questions()).schema(topic, version)
        return None if answer is None else answer.schema

    async def close(self) -> None:
        if self.consumers is not None:
            await self.consumers.close()
            self.consumers = None
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    # -- beginnings

    async def _begin(self) -> None:
        connection = await self._questions()
        for text in self._plan.texts:
            name = names.parse(text)
            if not name.is_persistent and not self._plan.is_follow:
                raise ClientError(f"{name} is not persistent: it holds nothing; --follow prints what comes")
            for topic in await topics.existing(connection, text):
                if topic not in self._topics:
                    self._topics.append(topic)
        if self._plan.start.first is not None and len(self._topics) > 1:
            raise ClientError("a position is one of a single topic, and there are several here")
        await self._open(is_again=False)

    async def _questions(self) -> BrokerConnection:
        if self._asking is None:
            self._asking = await self._target.connect()
        return self._asking

    async def _open(self, *, is_again: bool) -> None:
        """Open a consumer on each topic; `is_again`: where it was when the connection ended."""
        self.consumers = Consumers(await self._target.connect(), self._plan.manner)
        if is_again and not self._plan.manner.subscription:
            self._resumed = self._began | self._seen
        for topic in list(self._topics):
            await self._open_one(self.consumers, topic, self._start_of(topic, is_again=is_again))
        self._looked_at = time.monotonic()

    async def _open_one(self, consumers: Consumers, topic: str, start: Start) -> None:
        try:
            opened = await consumers.open(topic, start)
        except ClientError as error:
            if error.code != api.TopicNotFound or not any(topics.is_pattern(text) for text in self._plan.texts):
                raise
            self._topics.remove(topic)      # deleted since the pattern was looked up: the others are read
            return remark(f"{topic}: {error}")
        # A reader of --from may begin behind the last entry, and would wait for it in vain.
        is_over = opened.is_at_end and not self._plan.manner.subscription
        self._ends.setdefault(topic, None if is_over else opened.last)
        if not start.is_earliest and start.first is None:
            self._began[topic] = opened.last or (0, -1)

    def _start_of(self, topic: str, *, is_again: bool) -> Start:
        if not is_again or self._plan.manner.subscription or topic not in self._resumed:
            return self._plan.start
        ledger_id, entry_id = self._resumed[topic]
        return Start(first=(ledger_id, max(0, entry_id)))

    async def _again(self, error: Exception) -> None:
        """Connect again, as often as it takes, and open all consumers where they were.  Raises ClientError."""
        remark(f"{error or type(error).__name__}; trying to connect again")
        pause_s = _RETRY_FIRST_S
        while True:
            await self.close()
            if self._plan.manner.subscription:
                self._decoder.forget()      # the broker delivers these chunks once more
            try:
                await self._open(is_again=True)
                break
            except (ClientError, OSError) as error:
                if not _is_passing(error):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(_RETRY_MAX_S, 2 * pause_s)
        remark("connected again")

    # -- entries

    async def _until_end(self, consumers: Consumers) -> AsyncIterator[list[Delivery]]:
        plan = self._plan
        is_open_ended = bool(plan.manner.subscription) or plan.manner.is_compacted      # the last entry may not come
        quiet_s = _LOOK_S if plan.is_follow else _QUIET_S if is_open_ended else _SILENCE_S
        resumed = self._resumed
        waited = {topic: end for topic in self._topics if (end := self._ends[topic]) is not None}
        while waited or plan.is_follow:
            some = await consumers.deliveries(quiet_s)
            if plan.is_follow:
                await self._look(consumers)
            elif not some and is_open_ended:
                if await self._is_over(consumers, waited):
                    return
            elif not some:
                raise Silence(f"nothing came for {_SILENCE_S:.0f} s")
            if resumed:
                some = [one for one in some if one.topic not in resumed or one.entry[:2] > resumed[one.topic]]
            yield some
            for topic, entry in some:
                self._seen[topic] = entry[:2]
                if topic in waited and entry[:2] >= waited[topic]:
                    del waited[topic]

    async def _is_over(self, consumers: Consumers, waited: dict[str, Position]) -> bool:
        """Whether the broker has nothing more to deliver now on any of these topics."""
        return all([await consumers.is_quiet(topic) for topic in waited])

    async def _look(self, consumers: Consumers) -> None:
        """Open consumers on partitions, and on topics of patterns, that are new."""
        if time.monotonic() < self._looked_at + _LOOK_S:
            return
        connection = await self._questions()
        for text in self._plan.texts:
            try:
                now = await topics.existing(connection, text)
            except topics.NoTopic:
                continue      # deleted; its consumer's end tells
            for topic in now:
                if topic not in self._topics:
                    self._topics.append(topic)
                    await self._open_one(consumers, topic, Start())
        self._looked_at = time.monotonic()


def _is_passing(error: Exception) -> bool:
    """Whether an error may pass by itself: the broker is away, or not ready."""
    if isinstance(error, topics.NoTopic | NoAddress):
        return False
    return isinstance(error, OSError) or getattr(error, "code", None) in _PASSING
