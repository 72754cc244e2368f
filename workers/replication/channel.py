"""A channel: a connection to a worker and a connection to a broker of another cluster, side by side.

    worker --MESSAGE--> WorkerSide --SEND--> RemoteSide --> broker of the other cluster
    worker <----ACK---- WorkerSide <-------- RemoteSide <--SEND_RECEIPT--

Some lanes share a channel, each with a consumer on one side and a producer on the other.  While the remote does not
take what was written, the worker's connection is not read: so a slow remote costs bounded memory, and holds up nobody
but lanes of its own channel.
"""
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.proto.responses import PROTOCOL_VERSION
from geminga.storage.runtime import unix_sockets
from geminga.workers.pulsar_client.connection import Opening, consuming, greeting
from geminga.workers.replication.connection import ArrayConnection
from geminga.workers.replication.entries import Run, runs
from geminga.workers.replication.frames import Bytes, Places, Unreadable
from geminga.workers.replication.receipts import NeverSent, Receipts, receipts

_WORKER_BUFFER, _REMOTE_BUFFER = 1 << 20, 128 << 10
_WORKER_FRAME_MAX = 1 << 30          # the worker is trusted, and its configuration says how large a message may be
# Bytes of a remote's frame: none but a schema is larger than a few hundred.
_REMOTE_FRAME_MAX = 8 << 20
_UNWRITTEN_MAX = 2 << 20             # bytes that wait for the remote; beyond, the worker is not read


class Lane(Protocol):
    """What a channel tells a lane."""

    def delivered(self, data: Bytes, run: Run) -> None: ...
    def receipts_came(self, receipts: Receipts) -> None:
        """Take receipts.  Raises NeverSent."""
    def refused(self, error: api.CommandSendError) -> None: ...
    def flush(self) -> None:
        """Go on after all frames that came together: acknowledge, and grant permits."""
    def failed(self, why: str) -> None:
        """Give up the consumer and the producer, and begin again after a while."""
    def lost(self, why: str) -> None:
        """Take note that the connection to the remote has ended."""


class WorkerSide(ArrayConnection):
    """The connection to a worker, as the broker's own identity."""

    MANY = T.MESSAGE

    def __init__(self, channel: "Channel") -> None:
        super().__init__(_WORKER_BUFFER, _WORKER_FRAME_MAX)
        self._channel = channel

    def take_many(self, data: Bytes, starts: Places, ends: Places) -> None:
        for run in runs(data, starts, ends):
            if (lane := self.consumers.get(run.consumer_id)) is not None:
                lane.delivered(data, run)
                self._channel.touched.add(lane)

    def take_command(self, command: api.BaseCommand) -> None:
        if command.type == T.CLOSE_CONSUMER:
            lane = self.consumers.pop(command.close_consumer.consumer_id, None)
            if lane is not None:
                lane.failed("the topic was unloaded here, or its owner is being started again")

    def taken(self) -> None:
        self._channel.flush()

    def ended(self, why: str) -> None:
        lanes, self.consumers = list(self.consumers.values()), {}
        for lane in lanes:
            lane.failed(f"a worker of this broker: {why}")

    def flow(self, consumer_id: int, permits: int) -> None:
        self.send(api.CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    def acknowledge(self, consumer_id: int, position: tuple[int, int]) -> None:
        """Acknowledge all entries up to a position."""
        ack = api.CommandAck(consumer_id=consumer_id, ack_type=api.CommandAck.Cumulative)
        ack.message_id.add(ledgerId=position[0], entryId=position[1])
        self.send(ack)

    async def subscribe(self, topic: str, subscription: str, lane: Lane) -> int:
        """Make a consumer of a replication cursor, and return its number.  Raises ClientError."""
        number = self.next_id()
        await self.open(consuming(topic, subscription, number, position=api.CommandSubscribe.Latest, makes_topic=False,
                                  name="geminga-replicator"), lane)
        return number


class RemoteSide(ArrayConnection):
    """The connection to a broker of another cluster."""

    MANY = T.SEND_RECEIPT

    def __init__(self, channel: "Channel") -> None:
        super().__init__(_REMOTE_BUFFER, _REMOTE_FRAME_MAX)
        self._channel = channel
        self._last_producer = 0
        self.knows_positions = False         # its receipts name positions of this cluster

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(_UNWRITTEN_MAX)

    def pause_writing(self) -> None:
        self._channel.hold(is_held=True)

    def resume_writing(self) -> None:
        self._channel.hold(is_held=False)

    def take_many(self, data: Bytes, starts: Places, ends: Places) -> None:
        for run in receipts(data, starts, ends):
            lane = self.producers.get(run.producer_id)
            if lane is None:
                if run.producer_id > self._last_producer:
                    raise Unreadable("the remote sends receipts for a producer that it was never asked for")
                continue      # of a producer that was closed
            try:
                lane.receipts_came(run)
            except NeverSent as error:
                raise Unreadable(f"the remote lies: {error}") from None
            self._channel.touched.add(lane)

    def take_command(self, command: api.BaseCommand) -> None:
        if command.type == T.SEND_ERROR:
            if lane := self.producers.get(command.send_error.producer_id):
                lane.refused(command.send_error)
        elif command.type == T.CLOSE_PRODUCER:
            if lane := self.producers.pop(command.close_producer.producer_id, None):
                lane.failed("the remote closed the producer: its topic was unloaded or deleted there")
        elif command.type == T.AUTH_CHALLENGE:
            self._channel.challenged(self)

    def taken(self) -> None:
        self._channel.flush()

    def ended(self, why: str) -> None:
        self.producers.clear()
        self._channel.remote_ended(why)

    def end_transport(self) -> None:
        self.transport.abort()      # a remote that does not read would keep what was written for it

    async def open(self, request: Opening, owner: object) -> Any:
        if isinstance(request, api.CommandProducer):
            self._last_producer = request.producer_id
        return await super().open(request, owner)


class Channel:
    """One connection to a worker and one to a remote, with the lanes that use them."""

    def __init__(self, clients: Path, address: str, credentials: Callable[[], tuple[str, bytes]],
                 ended: Callable[["Channel", str], None]) -> None:
        """clients: the socket of the workers in the data folder.  address: the remote's, for reports.

        credentials: returns the method and the data, read anew.  ended: is told the reason of the remote's end.
        """
        self._clients, self.address, self._credentials, self._ended = clients, address, credentials, ended
        self.remote = RemoteSide(self)
        self._worker: WorkerSide | None = None
        self._opening = asyncio.Lock()
        self._is_held = False
        self.lanes: set[Lane] = set()
        self.is_retired = False              # it ends because this side no longer needs it
        self.touched: set[Lane] = set()      # lanes that have got something of what came together
        self.idle_since_s = self.since_s = asyncio.get_running_loop().time()

    def __repr__(self) -> str:
        return f"<Channel {self.address} lanes={len(self.lanes)} held={self._is_held}>"

    async def worker(self) -> WorkerSide:
        """Return the connection to a worker, made at the first call.  Raises OSError, ClientError."""
        async with self._opening:
            if self._worker is None or not self._worker.is_open:
                _, side = await unix_sockets.open_connection(f"{unix_sockets.UNIX}{self._clients}",
                                                             lambda: WorkerSide(self))
                try:
                    await side.greet(greeting(name=names.REPLICATOR))
                except BaseException:
                    side.finish("the handshake failed")
                    raise
                self._worker = side
                self._hold_worker()
            return self._worker

    def hold(self, *, is_held: bool) -> None:
        """Stop reading from the worker, or go on, as the remote takes what is written."""
        self._is_held = is_held
        self._hold_worker()

    def _hold_worker(self) -> None:
        worker = self._worker
        if worker is None or not worker.is_open:
            return
        if self._is_held and worker.transport.is_reading():
            worker.transport.pause_reading()
        elif not self._is_held and not worker.transport.is_reading():
            worker.transport.resume_reading()

    def leave(self, lane: Lane) -> None:
        """Let go of a lane."""
        self.lanes.discard(lane)
        self.touched.discard(lane)

    def flush(self) -> None:
        """Have lanes that have got something acknowledge and grant permits."""
        touched, self.touched = self.touched, set()
        for lane in touched:
            lane.flush()

    def challenged(self, side: RemoteSide) -> None:
        """Answer a remote that asks for fresh credentials."""
        method, data = self._credentials()
        response = api.CommandAuthResponse(client_version=names.REPLICATOR, protocol_version=PROTOCOL_VERSION)
        response.response.auth_method_name, response.response.auth_data = method, data
        side.send(response)

    def remote_ended(self, why: str) -> None:
        # Lanes wait for the link, which one probe tries.  If the worker's side were the first to tell them of an end,
        # each would count a failure, and try by itself.
        lanes, self.lanes = list(self.lanes), set()
        for lane in lanes:
            lane.lost(why)
        if self._worker is not None:
            self._worker.consumers.clear()
            self._worker.finish("the channel has ended")
        self._ended(self, why)

    def retire(self, why: str) -> None:
        """End both connections, which nobody needs any more."""
        self.is_retired = True
        self.close(why)

    def close(self, why: str) -> None:
        """End both connections."""
        if self.remote.is_open:
            self.remote.finish(why)
        elif self._worker is not None:
            self._worker.finish(why)
