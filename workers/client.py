"""One client connection: its bytes turned into envelopes for owners, and owners' answers into its bytes.

What a client says is read by proto/connection.py; this file knows which owner has which of the client's producers and
consumers, and writes no faster than the client reads.
"""
import asyncio
import json
import mmap
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from geminga.proto import commands as answers
from geminga.proto import deliveries, envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import WORDS_MAX, Acks
from geminga.proto.connection import CONNECTED, FIRST_SIZE_MAX, Connection, Send, SendRefused, Sends, object_asked
from geminga.proto.errors import ProtocolError, Refusal
from geminga.proto.names import TopicName
from geminga.proto.sends import PRODUCER_ID
from geminga.storage.runtime.log import DEBUG, log
from geminga.workers import egress, requests, schemas
from geminga.workers.egress import LedgerGone
from geminga.workers.identity.authentication import Identity
from geminga.workers.identity.authorization import Right
from geminga.workers.links import OwnerLink
from geminga.workers.requests import ANSWERS
from geminga.workers.rights import right_of
from geminga.workers.turns import UNREAD_MIN

if TYPE_CHECKING:
    from geminga.workers.patterns import Pattern

T = api.BaseCommand.Type
_CUMULATIVE = api.CommandAck.Cumulative
_OWN_BUFFER_MIN = 64 << 10       # a frame cut short that is larger gets a buffer of its own size
_OWN_BUFFER_MAPPED = 256 << 10   # and one larger than this takes memory as bytes come: eight bytes can announce megabytes
_TOPIC_EPOCH_MAX = 1 << 62       # what the catalogue keeps, with room to count on: nobody gets there who did not invent it
_DAMAGED_MAX = 100               # messages of one ACK that its client could not read that their owner is told of
_VERSION_MAX = 200               # characters of what a client says of itself that are kept
_ASKED_MAX = 100_000             # requests that owners have not answered; what comes above is told to try again
_CLOSED_MAX = 100_000            # producers that are remembered to be closed by the broker
_WAITING_MAX = 10_000            # commands that wait for owners; with as many this client is no longer read from
_UNREAD_MAX = 8                  # times write_buffer_bytes that answers may wait before this client is no longer read from
_CHECKSUMS_SINCE = 11            # version of the protocol; C++ consumers before it, which has them since 6, take them for wrong
_SLICE_SECONDS = 0.001           # a client is dealt with until it is somebody else's turn; one command may take longer


@dataclass(eq=False, slots=True)
class Route:
    """A producer or consumer of this client: which owner has it, and under which handle.

    link None, handle 0    its command waits in this worker: for a look at its schema, or for its owner to be started or to have room
    link, handle 0         its owner was asked, and has not said that it is there
    link, handle           it is there

    Clients choose ids, and may use one again at any time.  So an id has one route, made by one command that went to one owner: another
    command with that id is not passed on before the route has ended.  What an owner says is matched by the request's id, and by the
    handle as soon as there is one: it may be about a producer or consumer that its client has closed meanwhile.
    """

    link: OwnerLink | None
    object_id: int
    handle: int = 0
    delivery_to: tuple[int, int] = (-1, -1)      # ledger id and epoch of `delivery`
    delivery: deliveries.Delivery | None = None
    partition: int = -1
    epoch: int = -1                              # that a consumer's messages carry; -1: none
    request: tuple[TopicName, api.BaseCommand] | None = None     # that it is made by, until it is there
    request_id: int = -1
    withdraw: Callable[[], None] | None = None   # while it waits in this worker: it need not be made
    is_valid: bool = False                       # its schema has been looked at
    is_repeated: bool = False                    # a second owner was asked, because the first ended over it
    success: bytes = b""                         # what its client was told when it was there
    right: Right | None = None                   # that its client must have; None where authorization is off
    is_expelled: bool = False                    # the owner was told to end it


@dataclass(eq=False, slots=True)
class Run:
    """Entries to be written to a consumer: `count` in a row from `first` on, or those that are picked."""

    route: Route
    partition_id: int
    ledger_id: int
    first: int
    count: int
    epoch: int
    picked: NDArray | None = None                # rows PICKED
    words: NDArray[np.uint64] | None = None      # of those
    view: int = 0                                # number of the compacted view that they are of; 0: of the ledger itself


def _picked(run: Run, many: int, there: NDArray[np.bool_]) -> tuple[NDArray, NDArray[np.uint64]]:
    """Of the first entries of a run, so many, those that are there, as they are picked."""
    if run.picked is None:
        picked = np.zeros(many, envelope.PICKED)
        picked["entry_id"] = np.arange(run.first, run.first + many)
        return picked[there], np.zeros(0, np.uint64)
    counts = run.picked["words"][:len(there)].astype(np.int64)
    return run.picked[:len(there)][there], run.words[:int(counts.sum())][np.repeat(there, counts)]


def _take(runs: deque[Run], many: int) -> None:
    """So many entries of the first run have been dealt with."""
    run = runs[0]
    if run.picked is None:
        run.first += many
    else:
        run.words = run.words[int(run.picked["words"][:many].sum()):]
        run.picked = run.picked[many:]
    run.count -= many
    if not run.count:
        runs.popleft()


class Client(asyncio.BufferedProtocol):
    """The protocol object that the loop calls."""

    def __init__(self, worker, *, is_inside: bool = False):
        self.worker = worker
        self.is_inside = is_inside                 # a process of the broker itself
        self.number = worker.next_connection()
        self.connection = Connection(worker.options.max_message_size)
        self.identity: Identity | None = None      # who it is, when CONNECT has succeeded
        self.protocol_version = 0
        self.client_version = ""                   # its library's name, as it says
        self.supports_partial_producer = self.supports_auth_refresh = False
        self.is_challenged = False                 # to show again who it is
        self.takes_checksums = True                # of entries
        self.takes_broker_fields = False           # of BrokerEntryMetadata
        self.broker_fields = 0                     # ... delivered to this client
        self.producers: dict[int, Route] = {}
        self.consumers: dict[int, Route] = {}
        self.by_handle: dict[tuple[OwnerLink, int], Route] = {}     # consumers
        self.was_heard = True                      # since the last keep-alive tick
        # (namespace, pattern's text) of the lists it has asked for -> the pattern, and the newest partition when it first did
        self.discoveries: dict[tuple[str, str | None], tuple[Pattern | None, int]] = {}
        self.is_probed: list[OwnerLink] = []       # who wants to know whether this client lives
        self.introduced: set[OwnerLink] = set()    # owners that know who this is, and have to be told of its end
        self._asked: dict[tuple[OwnerLink, int], int] = {}           # requests that an owner has not answered -> their commands' types
        self._withheld: dict[tuple[OwnerLink, int], tuple[api.BaseCommand, bytes, float]] = {}     # lookups: their answers, since when
        self._closed_producers: dict[int, None] = {}   # closed by the broker, the last of them: what their client still sends is ignored
        # What was read and not dealt with, in memory of its own: a frame cut short, or all that waits for this client's turn.
        self._rest: memoryview | bytes = b""
        self._is_waiting = self._has_more = False  # for its turn; with whole frames there, for owners before that
        self._own: bytearray | mmap.mmap | None = None   # a large frame cut short, in a buffer of its own
        self._filled = 0
        self._runs: deque[Run] = deque()           # to be written
        self._is_writable = True
        self._is_reading = True
        self.waiting = 0                           # commands that wait for their owners, or for room there
        self._holding: set[OwnerLink] = set()      # owners that hold back what it has sent, because of a rate

    def __repr__(self) -> str:
        return f"<Client {self.number} producers={len(self.producers)} consumers={len(self.consumers)}>"

    @property
    def host(self) -> str:
        """The address of the other end."""
        peer = self.transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else "local"

    @property
    def address(self) -> str:
        """... with its port."""
        peer = self.transport.get_extra_info("peername")
        host, port = peer[:2] if isinstance(peer, tuple) else ("local", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what it is sent."""
        return self._is_writable

    # -- the loop's calls

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=self.worker.options.write_buffer_bytes)
        self.worker.opened(self)
        self._timer = self.worker.handshakes.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._runs.clear()
        self.worker.counters.add("lookups_waiting", -len(self._withheld))
        self._count_throttled(bool(self._holding), False)
        self.give_back()
        self.worker.turns.read(self)
        self.worker.closed(self)

    def get_buffer(self, hint: int) -> memoryview:
        if self._own is not None:
            return memoryview(self._own)[self._filled:]
        buffer, size = self.worker.buffer, len(self._rest)
        buffer[:size] = self._rest
        return buffer[size:size + self.worker.turns.room if self.identity is not None else FIRST_SIZE_MAX + 4]

    def buffer_updated(self, count: int) -> None:
        self.was_heard = True
        if self.is_probed:
            self.worker.answer_probes(self)
        if self._own is not None:
            self._filled += count
            if self._filled == len(self._own):
                own, self._own = self._own, None
                self._rest = b""
                self._read(np.frombuffer(own, np.uint8), memoryview(own), len(own))
            elif len(self._own) > _OWN_BUFFER_MAPPED:
                self.worker.halves.grew(self, count)
            return
        self._read(self.worker.buffer_array, self.worker.buffer, len(self._rest) + count)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = self.was_heard = True      # it takes what it is sent
        self.worker.turns.read(self)
        self.worker.attempt(self, self._go_on_writing)

    def _go_on_writing(self) -> None:
        if self._is_reading:
            self.resume_reading()
        elif self.identity is not None:
            self.transport.set_write_buffer_limits(high=self.worker.options.write_buffer_bytes)
            self._read_on()
        self.write_runs()

    def _read(self, array: NDArray[np.uint8], data: memoryview, end: int) -> None:
        """Deal with the whole frames in the first `end` bytes of the array, and of data, the same bytes, for as long as a slice lasts.

        Keeps the rest.  A client that still has whole frames there goes on with them when it is its turn; nothing more is read before.
        """
        connection, taken, before, is_late, self._has_more = self.connection, 0, -1, False, False
        until = time.monotonic() + _SLICE_SECONDS
        try:
            while taken != before and self._is_reading and not is_late:
                before = taken
                try:
                    taken = connection.receive(array, data, taken, end)
                finally:
                    events, connection.events = connection.events, []
                    for event in events:
                        self._happened(event)
                is_late = time.monotonic() >= until
        except ProtocolError as error:
            self.give_back()
            return self.worker.broke_protocol(self, error)
        except Exception:
            self.give_back()
            return self.worker.failed(self)
        self._keep(data, taken, end, is_late)

    def _keep(self, data: memoryview, taken: int, end: int, is_late: bool) -> None:
        """Keep the bytes taken .. end-1.  is_late: there may be whole frames in them, as they were not looked at."""
        if taken == end or self.transport.is_closing():
            return self.give_back()
        held, needed = end - taken, self.connection.needed(data, taken, end) if self._is_reading else 0
        if is_late and self._is_reading and needed <= held:
            self._rest = data[taken:end] if data is not self.worker.buffer else memoryview(bytearray(data[taken:end]))
            self._is_waiting = True
            self.worker.halves.keep(self, 0)
            self.pause_reading()
            return self.worker.turns.wait(self)
        self._rest = memoryview(bytearray(data[taken:end]))
        if needed > max(_OWN_BUFFER_MIN, held):
            is_mapped = needed > _OWN_BUFFER_MAPPED
            self._own = mmap.mmap(-1, needed) if is_mapped else bytearray(needed)
            self._filled = held
            self._own[:held] = self._rest
            self._rest, held = b"", held if is_mapped else needed
        self.worker.halves.keep(self, held)

    def give_back(self) -> None:
        """Nothing is kept of what it has said."""
        self._rest, self._own = b"", None
        self.worker.halves.keep(self, 0)

    def give_up(self) -> None:
        """Too much is kept of what it and others have said."""
        self._rest, self._own = b"", None
        self.transport.abort()

    def take_turn(self) -> None:
        """Go on with what has been read."""
        self._is_waiting, self.was_heard = False, True
        if self._is_reading and not self.transport.is_closing():
            self._go_on_reading()

    def stop_reading(self) -> None:
        """Until it takes its answers, or its handshake is done."""
        self._is_reading = False
        self.pause_reading()

    def _read_on(self) -> None:
        """First what had been read by then."""
        self._is_reading = True
        if not self._is_waiting:
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        if self._own is None and self._rest:
            if self.waits_for_owners:
                self._has_more = True
                return
            rest = self._rest
            self._read(np.frombuffer(rest, np.uint8), rest, len(rest))
        self.resume_reading()

    def pause_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_reading or self._is_waiting or self._holding or self.transport.is_closing() or self.waits_for_owners:
            return
        if self._has_more:
            self._has_more, self._is_waiting = False, True
            return self.worker.turns.wait(self)
        self.transport.resume_reading()

    @property
    def waits_for_owners(self) -> bool:
        """Whether owners have to catch up before anything more is asked of them for this client."""
        worker = self.worker
        return self.is_crowding or (worker.is_paused and bool(self.producers or (self._asked and not worker.is_draining)))

    @property
    def is_crowding(self) -> bool:
        """Whether so many of its commands wait that it is not read from."""
        return self.waiting >= _WAITING_MAX

    def waits(self) -> None:
        """One more of its commands waits for its owner."""
        self.waiting += 1
        if self.is_crowding:
            self.pause_reading()

    def waits_no_more(self) -> None:
        was_crowding, self.waiting = self.is_crowding, self.waiting - 1
        if was_crowding and not self.is_crowding:
            self.resume_reading()

    def hold(self, link: OwnerLink) -> None:
        """The owner has more of it than a rate allows to publish."""
        self._count_throttled(bool(self._holding), True)
        self._holding.add(link)
        self.pause_reading()

    def go_on(self, link: OwnerLink) -> None:
        if link in self._holding:
            self._holding.remove(link)
            self._count_throttled(True, bool(self._holding))
            self.resume_reading()

    def _count_throttled(self, was: bool, is_now: bool) -> None:
        """Whether an owner holds back what it has sent."""
        if was != is_now:
            self.worker.counters.add("connections_throttled", is_now - was)

    @property
    def is_held(self) -> bool:
        """Whether it is not read from because of a rate, or because others have their turn."""
        return self._is_waiting or bool(self._holding)

    def listen(self) -> None:
        """It is to show that it lives: whoever still holds it will say so again when it has sent more."""
        self._count_throttled(bool(self._holding), False)
        self._holding.clear()
        self.resume_reading()

    def write(self, data: bytes) -> None:
        """Send an answer.  A client that does not read its answers is not read from either."""
        self.transport.write(data)
        if self._is_reading and (not self._is_writable or self.worker.turns.is_crowded):
            self._leave_unread()

    def tell(self, data: bytes) -> None:
        """Send what may be more than an answer, as far as the client's version knows it."""
        if self.protocol_version < answers.ALL_SINCE:
            data, is_over = answers.understood(data, self.protocol_version)
            if is_over:
                self.transport.write(data)
                return self.abort()
        self.write(data)

    def _leave_unread(self) -> None:
        """Read no more from a client that does not take its answers, before there is too much of them."""
        turns, size, unread_max = self.worker.turns, self.transport.get_write_buffer_size(), self.worker.options.write_buffer_bytes
        if self.transport.is_closing() or size <= UNREAD_MIN:
            return
        turns.unread(self, size)
        if size > _UNREAD_MAX * unread_max or turns.is_crowded:
            self.transport.set_write_buffer_limits(high=min(UNREAD_MIN, unread_max))      # it goes on when it has taken nearly all
            self.stop_reading()

    def abort(self) -> None:
        """End the connection once what was written to it is on its way."""
        self.transport.close()

    # -- what the client says

    def _happened(self, event) -> None:
        if type(event) is Send:
            self._publish_one(event.row, event.entry)
        elif type(event) is Sends:
            self._publish(event.rows, event.entries)
        elif type(event) is Acks:
            self._ack_many(event)
        elif type(event) is SendRefused:
            self.worker.counters.add("sends_refused")
            self._route(self.producers, event.producer_id)
            self.write(answers.send_error(event.producer_id, event.sequence_id, event.code, event.message))
        elif self._is_refused(event):
            return
        elif (answer := ANSWERS.get(event.type)) is not None:
            self.worker.counters.add("commands")
            self.write(answer(self.worker.directory, event))
        else:
            _COMMANDS[event.type](self, event)

    def _publish(self, rows: NDArray, entries: NDArray[np.uint8]) -> None:
        """Hand a run of SENDs, rows (n,) and entries (n, size), to the owners of their producers."""
        ids = rows["producer_id"]
        rows["connection"] = self.number
        first = ids.item(0)
        if (ids == first).all():
            route = self._route(self.producers, first)
            if route is not None:
                rows["producer"] = route.handle
                self._forward(route.link, rows, entries)
            return
        distinct, inverse = np.unique(ids, return_inverse=True)
        routes = [self._route(self.producers, producer_id) for producer_id in distinct.tolist()]
        rows["producer"] = np.array([route.handle if route else 0 for route in routes], np.uint64)[inverse]
        for link in {route.link for route in routes if route}:
            mine = np.array([route is not None and route.link is link for route in routes])[inverse]
            self._forward(link, rows[mine], entries[mine])

    def _forward(self, link: OwnerLink, rows: NDArray, entries: NDArray[np.uint8]) -> None:
        rows["offset"] = np.arange(len(rows)) * entries.shape[1]
        link.sends(rows, entries.tobytes())
        self.worker.schedule_flush(link)

    def _publish_one(self, row: tuple, entry: bytes) -> None:
        """Likewise one."""
        route = self._route(self.producers, row[PRODUCER_ID])
        if route is not None:
            route.link.send(route.handle, self.number, row, entry)
            self.worker.schedule_flush(route.link)

    def _route(self, routes: dict[int, Route], object_id: int) -> Route | None:
        """Of the producer; None when the broker has closed it.  Raises ProtocolError for one that never was."""
        route = routes.get(object_id)
        if route is None or not route.handle:
            if object_id in self._closed_producers:
                return None
            raise ProtocolError(f"SEND for producer {object_id}, which is not there")
        return route

    def _connect(self, command: api.BaseCommand) -> None:
        self.worker.handshakes.connect(self, command.connect)

    def welcome(self, request: api.CommandConnect, identity: Identity) -> None:
        """It is known who it is."""
        self._timer.cancel()
        self.connection.state, self.identity = CONNECTED, identity
        self.protocol_version = max(0, min(request.protocol_version, answers.PROTOCOL_VERSION))
        self.worker.counters.add("handshakes")
        self.client_version = request.client_version[:_VERSION_MAX]
        self.supports_partial_producer = request.feature_flags.supports_partial_producer
        self.supports_auth_refresh = request.feature_flags.supports_auth_refresh
        self.takes_checksums = self.protocol_version >= _CHECKSUMS_SINCE
        self.takes_broker_fields = self.protocol_version >= 18 and request.feature_flags.supports_broker_entry_metadata
        self.broker_fields = self.worker.broker_fields if self.takes_broker_fields else 0
        self.write(answers.connected(self.protocol_version, self.worker.options.max_message_size))
        if log.level >= DEBUG:
            log.debug("a connection was opened", client=self.address, version=self.client_version, role=identity.role)
        if not self._is_reading:
            self._read_on()

    def _auth_response(self, command: api.BaseCommand) -> None:
        self.worker.handshakes.response(self, command.authResponse)

    def _ping(self, command: api.BaseCommand) -> None:
        self.write(answers.PONG)

    def _pong(self, command: api.BaseCommand) -> None:
        """That it came is all it says."""

    def _list_topics(self, command: api.BaseCommand) -> None:
        self.worker.counters.add("commands")
        self.write(self.worker.watchers.list_topics(self, command.getTopicsOfNamespace))

    def _watch(self, command: api.BaseCommand) -> None:
        self.worker.counters.add("commands")
        self.write(self.worker.watchers.watch(self, command.watchTopicList))

    def _close_watcher(self, command: api.BaseCommand) -> None:
        self.worker.counters.add("commands")
        self.write(self.worker.watchers.close(self, command.watchTopicListClose))

    def _lookup(self, command: api.BaseCommand) -> None:
        self.worker.counters.add("commands")
        began = time.perf_counter()
        try:
            answer = requests.lookup(self.worker.directory, command)
        except Refusal as refusal:
            self.write(answers.lookup_failed(command.lookupTopic.request_id, refusal.code, refusal.message))
            self.worker.counters.add("lookups_failed")
            return
        if self.discoveries:
            answer = self.worker.watchers.looked_up(self, command, answer)
        if answer:
            self._answer_lookup(answer, began)

    def _answer_lookup(self, answer: bytes, began: float) -> None:
        self.write(answer)
        self.worker.counters.add("lookups")
        self.worker.counters.observe("lookup", time.perf_counter() - began)

    def _get_schema(self, command: api.BaseCommand) -> None:
        self.worker.counters.add("commands")
        with self.worker.counters.timed("schema_get"):
            self.write(requests.get_schema(self.worker.directory, command))

    def _open_producer(self, command: api.BaseCommand, *, is_settled: bool = False) -> None:
        request = command.producer
        if request.topic_epoch > _TOPIC_EPOCH_MAX:
            return self.write(answers.error(request.request_id, api.ProducerFenced, f"No topic has had the epoch {request.topic_epoch}"))
        self._open(command, request, self.producers, request.producer_id, is_settled)

    def _subscribe(self, command: api.BaseCommand, *, is_settled: bool = False) -> None:
        self._open(command, command.subscribe, self.consumers, command.subscribe.consumer_id, is_settled)

    def _open(self, command: api.BaseCommand, request, routes: dict[int, Route], object_id: int, is_settled: bool) -> None:
        """Have the owner of the topic make a producer or consumer.

        is_settled: its schema has been looked at.
        """
        route = routes.get(object_id)
        if route is not None and (route.request is None or route.request[1] is not command):
            return self._open_again(route, request)
        try:
            if self.worker.is_draining:
                raise Refusal(api.ServiceNotReady, "The broker is being stopped; try again")
            topic = names.parse(request.topic)
            link, withdraw = None, None
            is_valid = is_settled or (route is not None and route.is_valid)
            if not is_settled and not schemas.is_settled(self.worker.directory.catalogue, topic, request, is_valid=is_valid):
                withdraw = self.worker.settle(self, command, topic, schemas.settle(request, topic, self.worker.counters))
            elif (link := self.worker.room_of(topic)) is None:
                withdraw = self.worker.wait_for_owner(self, topic, command)
        except Refusal as refusal:
            routes.pop(object_id, None)
            return self.write(answers.error(request.request_id, refusal.code, refusal.message))
        if route is None:
            right = right_of(command.type, request)
            route = routes[object_id] = Route(None, object_id, request=(topic, command), request_id=request.request_id, right=right)
            if routes is self.producers:
                self._closed_producers.pop(object_id, None)
        route.link, route.withdraw, route.is_valid = link, withdraw, is_valid
        if link is not None:
            since = link.sent
            self._forward_command(link, command, request)
            self.worker.joins_of(topic).asked(link, since)

    def _open_again(self, route: Route, request) -> None:
        """As Pulsar has it: what is there is there, whatever the request says of it, and what is being made is refused."""
        self.worker.counters.add("commands")
        kind = "Producer" if self.producers.get(route.object_id) is route else "Consumer"
        if not route.handle:
            self.write(answers.error(request.request_id, api.ServiceNotReady, f"{kind} is already present on the connection"))
        elif kind == "Consumer":
            self.write(answers.success(request.request_id))
        else:
            self.write(answers.repeated_success(route.success, request.request_id))

    def settled(self, command: api.BaseCommand, answer: bytes | None, refusal: Refusal | None) -> None:
        """What a command says of a schema has been looked at."""
        request = getattr(command, _SETTLED[command.type])
        if command.type == T.GET_OR_CREATE_SCHEMA:
            self.write(answers.schema_refused(request.request_id, refusal.code, refusal.message) if refusal else
                       answers.schema_created(request.request_id, answer))
        elif refusal:
            self._not_made(command)
            self.write(answers.error(request.request_id, refusal.code, refusal.message))
        elif not self._is_refused(command):
            _COMMANDS[command.type](self, command, is_settled=True)

    def _is_refused(self, command: api.BaseCommand) -> bool:
        """Whether its client has lost the right to the command while it waited; then it is told."""
        if self.worker.rights is None or (refusal := self.worker.rights.refused(self, command)) is None:
            return False
        self._not_made(command)
        self.write(refusal)
        return True

    def _not_made(self, command: api.BaseCommand) -> None:
        """The producer or consumer that a command asks for is not made; one of the id that another asks for stays."""
        routes = {T.PRODUCER: self.producers, T.SUBSCRIBE: self.consumers}.get(command.type)
        route = None if routes is None else routes.get(object_asked(command))
        if route is not None and route.request is not None and route.request[1] is command:
            del routes[route.object_id]

    def _get_or_create_schema(self, command: api.BaseCommand) -> None:
        self.worker.counters.add("commands")
        request = command.getOrCreateSchema
        try:
            topic = names.parse(request.topic)
            self.worker.settle(self, command, topic, schemas.get_or_create(request, topic, self.worker.counters))
        except Refusal as refusal:
            self.settled(command, None, refusal)

    def resume(self, command: api.BaseCommand) -> None:
        """Deal with a command that waited for its owner."""
        if not self._is_refused(command):
            _COMMANDS[command.type](self, command)

    def _forward_command(self, link: OwnerLink, command: api.BaseCommand, request) -> None:
        self.worker.counters.add("commands")
        if command.type not in _UNANSWERED:
            if len(self._asked) >= _ASKED_MAX and command.type not in (T.CLOSE_PRODUCER, T.CLOSE_CONSUMER):
                return self.write(answers.error(request.request_id, api.TooManyRequests, "Too many requests are not answered yet"))
            self._asked[link, request.request_id] = command.type
        if link not in self.introduced:
            self.introduced.add(link)
            link.command(self.number, self.protocol_version, self._introduction(), envelope.INTRODUCED)
        link.command(self.number, self.protocol_version, command.SerializeToString())
        self.worker.schedule_flush()

    def _introduction(self) -> bytes:
        """Who this is, for owners to show."""
        return json.dumps({"address": f"/{self.address}", "version": self.client_version,
                           "partial": self.supports_partial_producer}).encode()

    def _close_producer(self, command: api.BaseCommand) -> None:
        request = command.close_producer
        self._close(command, request, self.producers, request.producer_id)

    def _close_consumer(self, command: api.BaseCommand) -> None:
        request = command.close_consumer
        self._close(command, request, self.consumers, request.consumer_id)

    def _close(self, command: api.BaseCommand, request, routes: dict[int, Route], object_id: int) -> None:
        """What is not there is as good as closed, and what waits to be made is not made.

        It is gone here at once, whatever its owner still says of it: its id may be used again, and what is sent to it breaks the protocol.
        """
        route = routes.pop(object_id, None)
        if routes is self.producers:
            self._closed_producers.pop(object_id, None)
        if route is not None and route.link is not None:
            self.by_handle.pop((route.link, route.handle), None)
            return self._forward_command(route.link, command, request)
        if route is not None:
            route.withdraw()
        self.write(answers.success(request.request_id))

    def _flow(self, command: api.BaseCommand) -> None:
        request = command.flow
        if request.messagePermits == 0:
            raise ProtocolError("FLOW with no permits")
        route = self.consumers.get(request.consumer_id)
        if route is not None and route.handle:
            route.link.flow(route.handle, request.messagePermits)
            self.worker.schedule_flush()

    def _ack(self, command: api.BaseCommand) -> None:
        request = command.ack
        route = self.consumers.get(request.consumer_id)
        if route is None or not route.handle:
            return
        if request.txnid_most_bits or request.txnid_least_bits:
            refusal = api.NotAllowedError, "Transactions are not enabled."
            return self.write(answers.ack_response(request.consumer_id, request.request_id, refusal))
        if request.HasField("validation_error"):
            told = api.CommandAck(consumer_id=request.consumer_id, ack_type=request.ack_type, validation_error=request.validation_error,
                                  message_id=request.message_id[:_DAMAGED_MAX])
            route.link.command(self.number, self.protocol_version, told.SerializeToString(), envelope.DAMAGED)
        flags = envelope.CUMULATIVE if request.ack_type == _CUMULATIVE else 0
        words = []
        if flags and len(request.message_id) != 1:
            rows = []       # as Pulsar has it: nothing is acknowledged, and nobody is told
        else:
            handle, partial = route.handle, flags | envelope.PARTIAL
            rows = [(handle, found.ledgerId, found.entryId, 0, partial if found.ack_set else flags,
                     min(len(found.ack_set), WORDS_MAX))
                    for found in request.message_id]
            words = [struct.pack(f"<{min(len(found.ack_set), WORDS_MAX)}q", *found.ack_set[:WORDS_MAX])
                     for found in request.message_id if found.ack_set]
        if not request.HasField("request_id"):
            route.link.acks(rows, words)
            return self.worker.flush_acks_soon(route.link)
        if not rows:
            rows.append((route.handle, 0, 0, 0, envelope.NOTHING, 0))
        rows[-1] = (*rows[-1][:3], request.request_id, rows[-1][4] | envelope.WANTS_RESPONSE, rows[-1][5])
        route.link.acks(rows, words)
        self.worker.schedule_flush(route.link)

    def _ack_many(self, acks: Acks) -> None:
        route = self.consumers.get(acks.consumer_id)
        if route is None or not route.handle:
            return
        rows = np.zeros(len(acks.ledger_ids), envelope.ACK_ROW)
        rows["consumer"], rows["ledger_id"], rows["entry_id"] = route.handle, acks.ledger_ids, acks.entry_ids
        if acks.request_id is not None:
            rows["request_id"][-1], rows["flags"][-1] = acks.request_id, envelope.WANTS_RESPONSE
        route.link.many_acks(rows)
        if acks.request_id is None:
            self.worker.flush_acks_soon(route.link)
        else:
            self.worker.schedule_flush(route.link)

    def _of_consumer(self, command: api.BaseCommand) -> None:
        """A request about a consumer goes to the owner that has it."""
        request = getattr(command, _CONSUMER_REQUESTS[command.type])
        route = self.consumers.get(request.consumer_id)
        if route is not None and route.link is not None:
            return self._forward_command(route.link, command, request)
        if command.type == T.CONSUMER_STATS:
            self.write(answers.consumer_stats(request.request_id, error_code=api.ConsumerNotFound, error_message="Consumer not found"))
        elif command.type != T.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            self.write(answers.error(request.request_id, api.MetadataError, "Consumer not found"))

    # -- what owners say

    def reply(self, link: OwnerLink, action: int, object_id: int, handle: int, request_id: int, partition: int, data: bytes) -> None:
        """Do what a REPLY_ROW says, then write its frames."""
        made = None
        if action in (envelope.PRODUCER_READY, envelope.CONSUMER_READY):
            is_producer = action == envelope.PRODUCER_READY
            made = self._made(self.producers if is_producer else self.consumers, link, object_id, handle, request_id)
            if made is None:
                self.expel(link, object_id, handle, is_producer=is_producer)
            elif is_producer:
                made.success = data
            else:
                made.partition = partition
                self.by_handle[link, handle] = made
        elif action in (envelope.PRODUCER_GONE, envelope.CONSUMER_GONE):
            routes = self.producers if action == envelope.PRODUCER_GONE else self.consumers
            if self._ended(routes, link, object_id, handle, request_id) is None and request_id == envelope.NO_REQUEST:
                return      # closed by its client meanwhile, which may have used the id again
        elif action == envelope.CONSUMER_EPOCH and (route := self.by_handle.get((link, object_id))) is not None:
            route.epoch = handle
        elif action == envelope.HOLD:
            self.hold(link)
        elif action == envelope.GO_ON:
            self.go_on(link)
        elif action == envelope.PROBE:
            if link not in self.is_probed:
                self.is_probed.append(link)
            self.worker.probe(self)
            data = answers.PING
        elif action == envelope.END:
            return self.abort()
        if data:
            self.tell(data)
        if self.worker.rights is not None and made is not None:
            self.worker.rights.keeps(self, made)      # it may have taken long

    def _made(self, routes: dict[int, Route], link: OwnerLink, object_id: int, handle: int, request_id: int) -> Route | None:
        """The route whose producer or consumer is there now; None when its client has closed it meanwhile."""
        route = routes.get(object_id)
        if route is None or route.link is not link or route.request_id != request_id:
            return None
        self.by_handle.pop((link, route.handle), None)
        route.handle, route.request = handle, None
        return route

    def _ended(self, routes: dict[int, Route], link: OwnerLink, object_id: int, handle: int, request_id: int) -> Route | None:
        """The route whose producer or consumer is not there any more, or was refused; None when there is another by now, or none."""
        route = routes.get(object_id)
        if route is None or route.link is not link or (route.handle != handle if handle else route.request_id != request_id):
            return None
        del routes[object_id]
        self.by_handle.pop((link, handle), None)
        if handle and routes is self.producers:
            self._remember_closed(object_id)
        return route

    def _remember_closed(self, producer_id: int) -> None:
        """The broker has closed it: what its client has sent before it knew is ignored."""
        self._closed_producers[producer_id] = None
        if len(self._closed_producers) > _CLOSED_MAX:
            del self._closed_producers[next(iter(self._closed_producers))]

    def expel(self, link: OwnerLink, object_id: int, handle: int, *, is_producer: bool) -> None:
        """The owner is to end a producer or consumer; handle 0: one that is being made."""
        kind = envelope.PRODUCER_EXPELLED if is_producer else envelope.CONSUMER_EXPELLED
        link.command(self.number, self.protocol_version, b"%d %d" % (object_id, handle), kind)
        self.worker.schedule_flush()

    def deliver(self, link: OwnerLink, handle: int, partition_id: int, ledger_id: int, first: int, count: int) -> None:
        """Have these entries written to a consumer by the next `write_runs`, as far as the client reads them."""
        route = self.by_handle.get((link, handle))
        if route is None:
            return
        last = self._runs[-1] if self._runs else None
        if last is not None and last.route is route and last.ledger_id == ledger_id and last.first + last.count == first \
                and last.epoch == route.epoch:
            last.count += count
        else:
            self._runs.append(Run(route, partition_id, ledger_id, first, count, route.epoch))

    def deliver_picked(self, link: OwnerLink, handle: int, partition_id: int, ledger_id: int, picked: NDArray,
                       words: NDArray[np.uint64], view: int) -> None:
        """Likewise entries that lie apart, or of which there is more to say, or of a compacted view."""
        route = self.by_handle.get((link, handle))
        if route is not None:
            self._runs.append(Run(route, partition_id, ledger_id, -1, len(picked), route.epoch, picked, words, view))

    def deliver_passed(self, link: OwnerLink, handle: int, entries: NDArray, data: memoryview) -> None:
        """Write entries, rows (n,) ENTRY, of a topic that keeps none; a client that does not read loses them, not its permits."""
        route = self.by_handle.get((link, handle))
        if route is None:
            return
        if not self._is_writable:
            self.worker.counters.add("deliveries_dropped", len(entries))
            link.flow(handle, int(entries["messages"].sum()))
            return self.worker.schedule_flush()
        delivery = deliveries.Delivery(route.object_id, 0, route.partition, epoch=route.epoch, has_checksums=self.takes_checksums)
        self.transport.write(delivery.passed(entries, data))
        self.worker.counters.add("deliveries", len(entries))

    def write_runs(self) -> None:
        """Write what is to be delivered until the client has as much before it as it may have unread."""
        runs, out, size, count = self._runs, [], 0, 0
        while runs and self._is_writable:
            rows, pieces = self._next_of_run(runs)
            count += rows
            out += pieces
            size += sum(map(len, pieces))
            if size >= egress.BYTES_MAX or not runs:
                self.transport.writelines(out)
                out, size = [], 0
        if out:
            self.transport.writelines(out)
        self.worker.counters.add("deliveries", count)

    def _next_of_run(self, runs: deque[Run]) -> tuple[int, list]:
        """(entries, their MESSAGE frames) of as much of the first run as is dealt with at a time, which is taken off it."""
        run, ledgers = runs[0], self.worker.ledgers
        route = run.route
        try:
            if self.consumers.get(route.object_id) is not route:     # closed meanwhile
                raise LedgerGone
            if run.picked is None:
                rows, data = ledgers.read(run.partition_id, run.ledger_id, run.first, run.count)
            else:
                rows, data = ledgers.pick(run.partition_id, run.ledger_id, run.picked["entry_id"], run.view)
        except LedgerGone:
            runs.popleft()
            return 0, []
        if route.delivery_to != (run.ledger_id, run.epoch):
            route.delivery = deliveries.Delivery(route.object_id, run.ledger_id, route.partition, self.broker_fields, run.epoch,
                                                 has_checksums=self.takes_checksums)
            route.delivery_to = run.ledger_id, run.epoch
        many = len(rows)
        frames = route.delivery.frames(run.first, rows, data) if run.picked is None else \
            route.delivery.picked(run.picked[:many], run.words, rows, data)
        while (there := egress.still_there(rows, data)) is not None:      # others are acknowledged, and their space given back
            route.link.flow(route.handle, int(rows["messages"][~there].sum()))
            rows, picked, words = rows[there], *_picked(run, many, there)
            run = Run(route, run.partition_id, run.ledger_id, run.first, len(rows), run.epoch, picked, words)
            frames = route.delivery.picked(picked, words, rows, data) if len(rows) else []
        _take(runs, many)
        return len(rows), frames

    def withhold(self, link: OwnerLink, command: api.BaseCommand, answer: bytes) -> bool:
        """The answer to the LOOKUP is given when the owner has answered.  False: it has to answer another one of that id first."""
        key = link, command.lookupTopic.request_id
        if key in self._asked or len(self._asked) >= _ASKED_MAX:
            return False
        self._asked[key] = T.LOOKUP
        self.worker.counters.add("lookups_waiting")
        self._withheld[key] = command, answer, time.perf_counter()
        return True

    def answered(self, link: OwnerLink, request_id: int) -> None:
        self._asked.pop((link, request_id), None)
        if self._withheld and (withheld := self._withheld.pop((link, request_id), None)) is not None:
            self.worker.counters.add("lookups_waiting", -1)
            self._answer_lookup(*withheld[1:])

    def owner_gone(self, link: OwnerLink) -> None:
        """The owner's process ended: what it had is to be made again, and what it was asked gets an answer."""
        waiting = []
        for routes, close in ((self.producers, answers.close_producer), (self.consumers, answers.close_consumer)):
            for object_id in [object_id for object_id, route in routes.items() if route.link is link]:
                route = routes[object_id]
                if not route.handle:      # not there yet: its client goes on waiting
                    waiting.append((routes, route))
                    continue
                del routes[object_id]
                self.tell(close(object_id))
                if routes is self.producers:
                    self._remember_closed(object_id)
        self.by_handle = {key: route for key, route in self.by_handle.items() if key[0] is not link}
        self.is_probed = [probing for probing in self.is_probed if probing is not link]
        self.go_on(link)
        self.introduced.discard(link)
        for key in [key for key in self._asked if key[0] is link]:
            kind, request_id = self._asked.pop(key), key[1]
            if key in self._withheld:
                self.worker.counters.add("lookups_waiting", -1)
                self.resume(self._withheld.pop(key)[0])
            elif kind in (T.CLOSE_PRODUCER, T.CLOSE_CONSUMER):
                self.write(answers.success(request_id))
            else:
                self.write(answers.error(request_id, api.ServiceNotReady, "The topic's owner ended before it answered"))
        for routes, route in waiting:
            self._ask_successor(routes, route)

    def _ask_successor(self, routes: dict[int, Route], route: Route) -> None:
        """Repeat the request once: one that ends every owner it is given to must not do so for ever."""
        topic, command = route.request
        try:
            if route.is_repeated:
                raise Refusal(api.ServiceNotReady, "The topic's owner ended twice over this request")
            route.withdraw = self.worker.wait_for_owner(self, topic, command)
            route.link, route.is_repeated, route.is_expelled = None, True, False
        except Refusal as refusal:
            del routes[route.object_id]
            self.write(answers.error(route.request_id, refusal.code, refusal.message))

    def keep_alive(self) -> None:
        """Ask for a sign of life; without one since the last time the connection is dead, unless nobody has listened.

        Clients of the first version know no PING, and are left alone.  One that is not connected yet may not answer it, and its
        handshake has a time of its own.
        """
        if self.connection.state != CONNECTED or self.protocol_version < 1:
            return
        if not (self.was_heard or self.is_held or self.is_crowding):
            return self.transport.abort()
        self.was_heard = False
        self.tell(answers.PING)

    def configured(self) -> None:
        """The worker has other options.  A client that believes it may send larger messages than it may is told by the end of its
        connection; the next one begins with the new bound."""
        self.connection.bound(self.worker.options.max_message_size)
        self.transport.set_write_buffer_limits(high=self.worker.options.write_buffer_bytes)
        self.broker_fields = self.worker.broker_fields if self.takes_broker_fields else 0
        for route in self.consumers.values():
            route.delivery_to = (-1, -1)      # what follows is written as it is to be now
        if not self.worker.handshakes.accepts(self):
            self.transport.abort()

    def close_producers(self) -> None:
        """What they have published is answered; what they publish from now on is ignored, and their client sends it again elsewhere."""
        for producer_id, route in list(self.producers.items()):
            if route.handle:
                del self.producers[producer_id]
                self._remember_closed(producer_id)
                self.tell(answers.close_producer(producer_id))
            elif route.link is None:
                route.withdraw()
                del self.producers[producer_id]
                self.write(answers.error(route.request_id, api.ServiceNotReady, "The broker is being stopped; try again"))
            elif not route.is_expelled:      # perhaps it waits for its turn, which may never come
                route.is_expelled = True
                self.expel(route.link, producer_id, 0, is_producer=True)
        self.resume_reading()

    def say_goodbye(self) -> None:
        """The broker stops: tell the client to look its topics up again, and close."""
        for producer_id in self.producers:
            self.tell(answers.close_producer(producer_id))
        for consumer_id in self.consumers:
            self.tell(answers.close_consumer(consumer_id))
        self.transport.close()


_CONSUMER_REQUESTS = {
    T.UNSUBSCRIBE: "unsubscribe", T.SEEK: "seek", T.GET_LAST_MESSAGE_ID: "getLastMessageId", T.CONSUMER_STATS: "consumerStats",
    T.REDELIVER_UNACKNOWLEDGED_MESSAGES: "redeliverUnacknowledgedMessages",
}
_UNANSWERED = T.PRODUCER, T.SUBSCRIBE, T.REDELIVER_UNACKNOWLEDGED_MESSAGES      # or their routes know of the answer
_SETTLED = {T.PRODUCER: "producer", T.SUBSCRIBE: "subscribe", T.GET_OR_CREATE_SCHEMA: "getOrCreateSchema"}
_COMMANDS = {
    T.CONNECT: Client._connect, T.AUTH_RESPONSE: Client._auth_response, T.PING: Client._ping, T.PONG: Client._pong,
    T.GET_TOPICS_OF_NAMESPACE: Client._list_topics, T.LOOKUP: Client._lookup,
    T.GET_OR_CREATE_SCHEMA: Client._get_or_create_schema, T.GET_SCHEMA: Client._get_schema,
    T.WATCH_TOPIC_LIST: Client._watch, T.WATCH_TOPIC_LIST_CLOSE: Client._close_watcher,
    T.PRODUCER: Client._open_producer, T.CLOSE_PRODUCER: Client._close_producer,
    T.SUBSCRIBE: Client._subscribe, T.CLOSE_CONSUMER: Client._close_consumer, T.FLOW: Client._flow, T.ACK: Client._ack,
} | dict.fromkeys(_CONSUMER_REQUESTS, Client._of_consumer)
