"""A channel: a connection to a worker and a connection to a broker of another cluster, side by side.

    worker --MESSAGE--> WorkerSide --SEND--> RemoteSide --> broker of the other cluster
    worker <----ACK---- WorkerSide <-------- RemoteSide <--SEND_RECEIPT--

Some lanes share a channel, each with a consumer on one side and a producer on the other.  While the remote does not
take what was written, the worker's connection is not read: so a slow remote costs bounded memory, and holds up nobody
but lanes of its own channel.
"""
import asyncio
from pathlib import Path
from typing import Protocol

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.responses import PROTOCOL_VERSION
from geminga.storage.runtime import unix_sockets
from geminga.supervisor.pulsar_client.greetings import greeting
from geminga.supervisor.replication.connection import Connection, T
from geminga.supervisor.replication.entries import Run, runs
from geminga.supervisor.replication.frames import Bytes, Places, Unreadable
from geminga.supervisor.replication.receipts import NeverSent, Receipts, receipts

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


class WorkerSide(Connection):
    """The connection to a worker, as the broker's own identity."""

    MANY = T.MESSAGE

    def __init__(self, channel: "Channel") -> None:
        super().__init__(_WORKER_BUFFER, _WORKER_FRAME_MAX)
        self._channel = channel
        self.consumers: dict[int, Lane] = {}

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

    def end_transport(self) -> None:
        self.transport.close()      # acknowledgements that were written still arrive

    def ended(self, why: str) -> None:
        super().ended(why)
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
        request = api.CommandSubscribe(
            topic=topic, subscription=subscription, subType=api.CommandSubscribe.Exclusive, durable=True,
            consumer_id=self.next_id(), force_topic_creation=False, consumer_name="geminga-replicator")
        self.consumers[request.consumer_id] = lane
        try:
            await self.ask(request)
        except BaseException:
            self.close_consumer(request.consumer_id)
            raise
        return request.consumer_id

    def close_consumer(self, consumer_id: int) -> None:
        """Close a consumer; entries that come for it later are ignored, and will come again for the next one."""
        if self.consumers.pop(consumer_id, None) is not None:
            self.send(api.CommandCloseConsumer(consumer_id=consumer_id, request_id=self.next_id()))


class RemoteSide(Connection):
    """The connection to a broker of another cluster."""

    MANY = T.SEND_RECEIPT

    def __init__(self, channel: "Channel") -> None:
        super().__init__(_REMOTE_BUFFER, _REMOTE_FRAME_MAX)
        self._channel = channel
        self.producers: dict[int, Lane] = {}
        self._last_producer = 0
        self.knows_positions = False         # its receipts name positions of this cluster
        self.message_size_max = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(_UNWRITTEN_MAX)

    def pause_writing(self) -> None:
        self._channel.hold(is_held=True)

    def resume_writing(self) -> None:
        self._channel.hold(is_held=False)

    def take_many(self, data: Bytes, starts: Places, ends: Places) -> None:
        for some in receipts(data, starts, ends):
            lane = self.producers.get(some.producer_id)
            if lane is None:
                if some.producer_id > self._last_producer:
                    raise Unreadable("the remote sends receipts for a producer that it was never asked for")
                continue      # of a producer that was closed
            try:
                lane.receipts_came(some)
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
        super().ended(why)
        self.producers.clear()
        self._channel.remote_ended(why)

    def new_producer(self, lane: Lane) -> int:
        """Return the number of a new producer of a lane."""
        self._last_producer = self.next_id()
        self.producers[self._last_producer] = lane
        return self._last_producer

    def close_producer(self, producer_id: int) -> None:
        """Close a producer; receipts that come for it later are ignored."""
        if self.producers.pop(producer_id, None) is not None:
            self.send(api.CommandCloseProducer(producer_id=producer_id, request_id=self.next_id()))


class Keeper(Protocol):
    """What a channel tells the remote that it belongs to."""

    def channel_ended(self, channel: "Channel", why: str) -> None: ...
    def auth_data(self) -> tuple[str, bytes]:
        """Return the method and the data of the credentials, read anew."""


class Channel:
    """One connection to a worker and one to a remote, with the lanes that use them."""

    def __init__(self, keeper: Keeper, clients: Path, address: str) -> None:
        """clients: the socket of the workers in the data folder.  address: the remote's, for reports."""
        self._keeper, self._clients, self.address = keeper, clients, address
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
        method, data = self._keeper.auth_data()
        response = api.CommandAuthResponse(client_version=names.REPLICATOR, protocol_version=PROTOCOL_VERSION)
        response.response.auth_method_name, response.response.auth_data = method, data
        side.send(response)

    def remote_ended(self, why: str) -> None:
        lanes, self.lanes = list(self.lanes), set()
        for lane in lanes:
            lane.lost(why)
        if self._worker is not None:
            self._worker.consumers.clear()
            self._worker.finish("the channel has ended")
        self._keeper.channel_ended(self, why)

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
