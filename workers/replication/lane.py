"""A lane: the way of one stored partition's entries to one other cluster.

    WAITING --due--> OPENING --producer and consumer--> SENDING --failure--> WAITING
                        \\--failure--> WAITING

While a lane sends, it has no task: bytes from the worker and receipts from the remote drive it.  It keeps no entry:
entries without receipts when a connection ends come from the cursor again, in order, behind what was acknowledged.
"""
import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import TopicName
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.workers.pulsar_client.connection import ClientError, producing, text_of
from geminga.workers.replication.backoff import Backoff, slow_s
from geminga.workers.replication.channel import Channel, WorkerSide
from geminga.workers.replication.connection import Ended
from geminga.workers.replication.entries import CannotSend, Rewriter, Run, UnknownSchema
from geminga.workers.replication.frames import Bytes
from geminga.workers.replication.receipts import Receipts, Unanswered
from geminga.workers.replication.reports import LaneState

UNANSWERED_MAX = 10_000      # entries of a lane without receipts
# Messages of a batch for which permits are granted.  When batches end, as many times UNANSWERED_MAX entries may be
# under way for a moment.
_BATCH_MAX = 10
SILENCE_S = 30.0             # without a receipt, after which a lane begins again
_STEADY_S = 30.0             # a lane that was open so long begins its back-off anew
WAITING, OPENING, SENDING, CLOSED = "waiting", "opening", "sending", "closed"
_LASTING = api.TopicTerminatedError, api.IncompatibleSchema      # only an operator can mend what is refused so
_TOLD_AFTER = 8              # failures one behind the other; some 25 s after the first an operator should know


class Standstill(Exception):
    """An error that lasts until an operator mends it; the text gives the reason."""


class LinkDown(Exception):
    """An error: there is no connection to the remote; the remote starts waiting lanes when there is one."""


class Remote(Protocol):
    """What a lane uses of its cluster."""

    own: str
    name: str
    counters: Counters
    window_s: float              # of which rates are averages

    async def opening(self) -> Any:
        """Wait for a turn to open; release it with `opened`."""
    def opened(self) -> None: ...
    async def prepare(self, topic: TopicName) -> None:
        """Make sure that the partitioned topic of a partition exists there.  Raises LinkDown, ClientError, Standstill.
        """
    def doubt(self, topic: TopicName) -> None:
        """Look again whether the partitioned topic of a partition exists there."""
    async def channel_for(self, topic: str) -> Channel:
        """Return a channel to the broker there that serves the topic.  Raises LinkDown, ClientError."""
    async def schema(self, topic: str, channel: Channel) -> api.Schema | None:
        """Return the newest schema there.  Raises ClientError."""
    async def schema_there(self, topic: TopicName, version: bytes, channel: Channel) -> bytes:
        """Return the remote's version of a schema.  Raises ClientError, Standstill."""
    def wait_for_link(self, waiting: "Lane") -> float: ...
    def progressed(self) -> None: ...


class Lane:
    """One partition's entries on their way to one cluster."""

    __slots__ = ("_backoff", "_batch", "_channel", "_consumer_id", "_epoch", "_heard_s", "_loop", "_measured",
                 "_obstacle", "_opened_s", "_owed", "_permits", "_producer_id", "_rates", "_remote", "_rewriter",
                 "_schemas", "_task", "_timer", "_told", "_unanswered", "_worker", "bytes_sent", "entries_filtered",
                 "entries_sent", "error", "messages_sent", "next_try_s", "since_ms", "state", "topic")

    def __init__(self, remote: Remote, topic: TopicName) -> None:
        self._remote, self.topic = remote, topic
        self._loop = asyncio.get_running_loop()
        self.state, self.error, self.next_try_s = WAITING, "", 0.0
        self._told = ""                             # lasting reason that is in the log
        self._backoff = Backoff()
        self._channel: Channel | None = None
        self._worker: WorkerSide | None = None
        self._consumer_id = self._producer_id = 0
        self._rewriter: Rewriter | None = None
        self._schemas: dict[bytes, bytes] = {}      # versions here -> there, as long as the lane lives
        self._obstacle: UnknownSchema | CannotSend | None = None      # before which the lane stopped to take entries
        self._unanswered = Unanswered()
        self._permits = self._owed = 0
        self._batch = 1                             # messages of an entry for which permits are granted
        self._epoch = 0
        self._opened_s = self._heard_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.since_ms = 0
        self.entries_sent = self.messages_sent = self.bytes_sent = self.entries_filtered = 0
        self._measured = self._loop.time(), 0, 0      # when the window began, messages and bytes sent until then
        self._rates = 0.0, 0.0                        # messages and bytes a second, in the last complete window

    def __repr__(self) -> str:
        return f"<Lane {self.topic} to {self._remote.name}: {self.state} {self._unanswered}>"

    # -- opening

    def start(self) -> None:
        """Open the lane now."""
        if self.state != WAITING or self._task is not None:      # a task that ends waits and starts again
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.state = OPENING
        self._task = self._loop.create_task(self._guarded(self._connect))

    async def _guarded(self, steps: Callable[[], Any]) -> None:
        """Run steps of opening in turn with other lanes; whatever fails has the lane begin again later."""
        await self._remote.opening()
        try:
            await steps()
        except LinkDown as error:
            self._wait_for_link(str(error))
        except Standstill as error:
            self.failed(str(error), is_lasting=True)
        except ClientError as error:
            self._refused_opening(error)
        except (OSError, TimeoutError) as error:
            self.failed(str(error) or type(error).__name__)
        except Exception as error:
            log.error(f"a lane of replication fails: {error!r}", code="G290", topic=self.topic)
            self.failed(f"an error of this broker's own: {error!r}")
        finally:
            self._remote.opened()
            self._task = None

    def _refused_opening(self, error: ClientError) -> None:
        if isinstance(error, Ended):
            self.failed(str(error))
        else:
            self.failed(str(error), is_lasting=error.code in _LASTING)

    async def _connect(self) -> None:
        """Open the producer there, then the consumer here."""
        remote, topic = self._remote, str(self.topic)
        await remote.prepare(self.topic)
        channel = self._channel = await remote.channel_for(topic)
        channel.lanes.add(self)
        schema = await remote.schema(topic, channel)
        side = channel.remote
        # The producer comes first.  Entries of a consumer without one would be dropped, and come again only to the next
        # consumer.
        self._producer_id, self._epoch = side.next_id(), self._epoch + 1
        name = names.replicator_name(remote.own, remote.name)
        await side.open(producing(topic, self._producer_id, name, schema, epoch=self._epoch - 1), self)
        self._rewriter = Rewriter(remote.own, remote.name, self._producer_id, side.message_size_max)
        self._rewriter.schemas = self._schemas
        await self._subscribe()

    async def _subscribe(self) -> None:
        channel = self._channel
        assert channel is not None
        self._unanswered, self._owed = Unanswered(), 0
        worker = await channel.worker()
        consumer_id = await worker.subscribe(str(self.topic), names.replication_cursor(self._remote.name), self)
        if self._channel is not channel:      # it ended meanwhile
            worker.abandon_consumer(consumer_id)
            raise Ended("the connection to the remote has ended")
        self._worker, self._consumer_id = worker, consumer_id
        self._permits = UNANSWERED_MAX * self._batch
        worker.flow(consumer_id, self._permits)
        self.state, self.error = SENDING, ""
        self._opened_s = self._heard_s = self._loop.time()
        self.since_ms = time.time_ns() // 1_000_000

    # -- sending: calls of the channel

    def delivered(self, data: Bytes, run: Run) -> None:
        """Send the entries of a run on."""
        channel, rewriter = self._channel, self._rewriter
        if channel is None or rewriter is None or self._obstacle is not None or self.state != SENDING:
            return      # the entries will come again
        rewritten = rewriter.rewrite(data, run)
        if rewritten.taken:
            if not self._unanswered.count:      # before this entry the remote had nothing to answer
                self._heard_s = self._loop.time()
            self._unanswered.add(run.ledger_id, run.entries[:rewritten.taken], rewritten.is_sent, rewritten.messages)
            for piece in rewritten.pieces:
                channel.remote.transport.write(piece)
            self._count(rewritten.taken, int(rewritten.is_sent.sum()), rewritten.messages_sent,
                        sum(map(len, rewritten.pieces)))
            self._fit_permits(rewritten.messages, rewritten.taken)
        if rewritten.obstacle is not None:
            self._stop_before(rewritten.obstacle)

    def _count(self, taken: int, sent: int, messages: int, size: int) -> None:
        self.entries_sent += sent
        self.messages_sent += messages
        self.bytes_sent += size
        self.entries_filtered += taken - sent
        counters = self._remote.counters
        counters.add("replicated_messages", messages)
        counters.add("replicated_bytes", size)
        counters.add("replication_filtered", taken - sent)

    def _fit_permits(self, messages: int, entries: int) -> None:
        """Fit permits to the size of batches: permits count messages, and what is bounded are entries."""
        batch = max(1, min(_BATCH_MAX, messages // entries))
        if batch * 2 <= self._batch:
            self._batch = batch      # permits that are too many are not granted again
        elif batch > self._batch and self._worker is not None:
            self._batch = batch
            if (more := UNANSWERED_MAX * batch - self._permits) > 0:
                self._permits += more
                self._worker.flow(self._consumer_id, more)

    def _stop_before(self, obstacle: UnknownSchema | CannotSend) -> None:
        """Take no more entries, which will come again; go on when all that were sent have receipts."""
        self._obstacle = obstacle
        self._go_on_if_answered()

    def _go_on_if_answered(self) -> None:
        # A new consumer gets everything behind the last acknowledgement.  If entries were without receipts now, they
        # would be sent once more.
        if self._obstacle is None or self._unanswered.count or self.state != SENDING:
            return
        if isinstance(self._obstacle, CannotSend):
            self.failed(str(self._obstacle), is_lasting=True)
            return
        self.state = OPENING
        self._task = self._loop.create_task(self._guarded(self._learn_schema))

    async def _learn_schema(self) -> None:
        """Add a schema version there, then read on from the entry that needs it."""
        channel, worker, obstacle = self._channel, self._worker, self._obstacle
        assert channel is not None and worker is not None and isinstance(obstacle, UnknownSchema)
        worker.abandon_consumer(self._consumer_id)
        self._worker = None
        self._schemas[obstacle.version] = await self._remote.schema_there(self.topic, obstacle.version, channel)
        if self._channel is not channel:
            raise Ended("the connection to the remote has ended")
        self._obstacle = None
        await self._subscribe()

    def receipts_came(self, receipts: Receipts) -> None:
        """Take receipts.  Raises NeverSent."""
        channel = self._channel
        if channel is None:
            return
        if channel.remote.knows_positions:
            self._unanswered.answered(receipts.ledgers, receipts.entries)
        else:
            self._unanswered.answered_next(len(receipts.ledgers))
        self._heard_s = self._loop.time()
        self._told = ""
        # A receipt is the only proof: a remote may take every producer and refuse every message, and without the
        # back-off the lane would try that many times a second.
        self._backoff.reset()
        self._remote.progressed()

    def refused(self, error: api.CommandSendError) -> None:
        """Take note that the remote refuses a message: close the producer, and begin again from that message."""
        self.flush()
        self.failed(f"the remote refuses a message: {text_of(error.error, error.message)}",
                    is_lasting=error.error in _LASTING)

    def flush(self) -> None:
        """Acknowledge what is answered, and grant permits for it."""
        worker = self._worker
        if worker is None:
            return
        if (reached := self._unanswered.take_reached()) is not None:
            worker.acknowledge(self._consumer_id, reached)
        self._owed += self._unanswered.returned
        self._unanswered.returned = 0
        surplus = min(self._owed, self._permits - UNANSWERED_MAX * self._batch)
        if surplus > 0:
            self._permits -= surplus
            self._owed -= surplus
        if self._owed * 2 >= self._permits:
            worker.flow(self._consumer_id, self._owed)
            self._owed = 0
        self._go_on_if_answered()

    # -- the end of sending

    def look(self, now_s: float) -> None:
        """Begin again if the remote answers nothing, and measure rates.  now_s: the loop's time."""
        began_s, messages, size = self._measured
        if (seconds := now_s - began_s) >= self._remote.window_s:
            self._rates = (self.messages_sent - messages) / seconds, (self.bytes_sent - size) / seconds
            self._measured = now_s, self.messages_sent, self.bytes_sent
        if self.state != SENDING:
            return
        if self._unanswered.count and now_s - self._heard_s > SILENCE_S:
            channel, why = self._channel, f"the remote sent no receipt for {SILENCE_S:g} s"
            if channel is not None and now_s - channel.remote.heard_s > SILENCE_S:
                channel.close(why)
            else:
                self.failed(why)
        elif now_s - self._opened_s > _STEADY_S:
            self._backoff.reset()

    def failed(self, why: str, *, is_lasting: bool = False) -> None:
        """Give up the consumer and the producer, and begin again: soon, or in a minute if only an operator can help."""
        if self.state == CLOSED:
            return
        self._leave()
        self._remote.counters.add("replication_failures")
        self._remote.doubt(self.topic)
        if (is_lasting or self._backoff.failures == _TOLD_AFTER) and self._told != why:
            self._told = why
            log.warning(f"replication of a topic stands still: {why}", code="G542", topic=self.topic,
                        cluster=self._remote.name)
        self._wait(why, slow_s() if is_lasting else self._backoff.next_s())

    def _wait(self, why: str, delay_s: float) -> None:
        self.state, self.error = WAITING, why
        self.next_try_s = time.time() + delay_s
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self.start)

    def _wait_for_link(self, why: str) -> None:
        if self.state == CLOSED:
            return
        self._leave()
        self.state, self.error = WAITING, why
        self.next_try_s = time.time() + self._remote.wait_for_link(self)

    def lost(self, why: str) -> None:
        """Take note that the connection to the remote has ended."""
        if self.state == SENDING:
            self._wait_for_link(why)
        else:      # a task under way fails too, and has the lane begin again
            self._leave()

    def _leave(self) -> None:
        """Close the consumer and the producer as far as their connections are open."""
        if self.state == SENDING:
            self.state = WAITING      # first: `flush` would go on to learn a schema
            self.flush()              # before the consumer closes: what has its receipt would be sent again
        channel, self._channel = self._channel, None
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.abandon_consumer(self._consumer_id)
        if channel is not None:
            channel.leave(self)
            channel.remote.abandon_producer(self._producer_id)
        self._unanswered, self._obstacle, self._rewriter = Unanswered(), None, None
        self._owed = 0

    def close(self) -> None:
        """End the lane for good: its cursor is gone, or the process stops."""
        task = self._task
        self._leave()
        self.state = CLOSED
        if self._timer is not None:
            self._timer.cancel()
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    # -- reports

    @property
    def is_sending(self) -> bool:
        return self.state == SENDING

    @property
    def unanswered(self) -> int:
        """The number of entries that were sent and have no receipt."""
        return self._unanswered.count

    def state_now(self) -> LaneState:
        """Return the lane's state for reports; times are ms since 1970."""
        channel = self._channel if self.state == SENDING else None
        return {"state": self.state, "connected": channel is not None,
                "connectedSince": self.since_ms if channel is not None else 0,
                "address": channel.address if channel is not None else "", "unanswered": self.unanswered,
                "error": self.error, "nextTry": round(self.next_try_s * 1000) if self.state == WAITING else 0,
                "entriesSent": self.entries_sent, "messagesSent": self.messages_sent, "bytesSent": self.bytes_sent,
                "messageRate": self._rates[0], "byteRate": self._rates[1], "entriesFiltered": self.entries_filtered}
