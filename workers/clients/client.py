"""One client of this worker: its identity, its protocol version, and its parts.

    stream       its bytes, read in turns and written as it reads         stream.py
    routes       its producers and consumers, and their owners            routes.py
    requests     its requests that owners have not answered               pending_requests.py
    deliveries   entries that wait until it reads                         delivery_queue.py

What it asks is in messages.py (SEND, ACK, FLOW) and commands.py (all else), what owners answer in replies.py.
"""
import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import CONNECTED
from geminga.proto.errors import Refusal
from geminga.proto.frames import NO_REQUEST
from geminga.storage.runtime.log import DEBUG, log
from geminga.workers.clients.delivery_queue import DeliveryQueue, DeliveryWorker
from geminga.workers.clients.pending_requests import PendingRequests
from geminga.workers.clients.rights import Rights
from geminga.workers.clients.routes import Route, Routes
from geminga.workers.clients.sealed_producers import SealedProducers
from geminga.workers.clients.stream import Handlers, Stream, StreamWorker
from geminga.workers.directory.directory import Directory
from geminga.workers.directory.layouts import Layouts
from geminga.workers.directory.namespace_watches import NamespaceWatches
from geminga.workers.directory.schemas import SchemaChecks
from geminga.workers.directory.watchers import Watchers
from geminga.workers.identity.authentication import LOCAL, Identity
from geminga.workers.identity.authorization import Right
from geminga.workers.identity.handshakes import Handshakes
from geminga.workers.owners.links import OwnerLink, OwnerLinks
from geminga.workers.owners.waiting import WaitingCommands
from geminga.workers.ports.proxy_header import ClientAddress

if TYPE_CHECKING:
    from geminga.workers.clients.registrations import StreamConsumer
    from geminga.workers.directory.patterns import Pattern

_VERSION_MAX = 200               # characters of the client's own name for its library that are kept
# From a connection that is one too many to its ERROR.  CONNECT brings it sooner: if unread bytes were left in a socket
# that is closed, the kernel would drop what was written to it.
_REFUSED_SECONDS = 1.0
# For the replicator, which reads entries as arrays: the kernel's 200 KiB are some 300 entries, which cost half as much
# again as a thousand do.
_REPLICATOR_BYTES = 1 << 20
_CHECKSUMS_SINCE = 11      # protocol version; C++ consumers know checksums since 6, but before 11 take them for wrong
_BROKER_FIELDS_SINCE = 18        # protocol version that knows BrokerEntryMetadata


class ClientWorker(StreamWorker, DeliveryWorker, Protocol):
    """The parts of the worker that its clients use."""

    directory: Directory
    handshakes: Handshakes
    rights: Rights | None                # None: authorization is off
    broker_fields: int                   # bits of deliveries.BROKER_* that are written to clients which understand them
    is_draining: bool                    # no producer or consumer is opened any more

    @property
    def owners(self) -> OwnerLinks: ...
    @property
    def waiting(self) -> WaitingCommands: ...
    @property
    def schema_checks(self) -> SchemaChecks: ...
    @property
    def watchers(self) -> Watchers: ...
    @property
    def layouts(self) -> Layouts: ...
    @property
    def namespace_watches(self) -> NamespaceWatches: ...
    @property
    def sealed_producers(self) -> SealedProducers: ...
    def next_connection(self) -> int: ...
    def opened(self, client: "Client") -> None: ...
    def welcomed(self, client: "Client") -> None: ...
    def closed(self, client: "Client") -> None: ...
    def end_if_silent_soon(self, client: "Client") -> None: ...


class Client:
    """A client: one connection, with its identity, its producers and consumers, and its unanswered requests."""

    def __init__(self, worker: ClientWorker, handlers: Handlers, *, is_inside: bool = False,
                 announced: ClientAddress | None = None):
        """Make the client of a new connection.

        handlers: event type -> function (client, event).  is_inside: the peer came by the socket in the data folder.
        announced: the client's address as a proxy says, None without a proxy.
        """
        self.worker = worker
        self.is_inside = is_inside
        self.number = worker.next_connection()
        self.stream = Stream(worker, self, handlers, announced)
        self.place, self.refusal = -1, ""          # among the connections that are counted; why it is one too many
        self.row: int | None = None                # in the table of connections; None: one too many
        self.routes = Routes()
        self.stream_consumers: dict[int, StreamConsumer] = {}      # by the ids of their registrations
        self.requests = PendingRequests(worker.counters)
        self.deliveries = DeliveryQueue(worker, self.stream, self.routes)
        self.identity: Identity | None = None      # None: CONNECT has not succeeded yet
        self.is_challenged = False                 # the client was asked to authenticate again
        self.protocol_version = 0
        self.connected_ms = 0                      # when the handshake succeeded
        self.client_version = ""                   # name of its library, as the client says
        self.supports_partial_producer = self.supports_auth_refresh = False
        self.sends_positions = False               # its replicators name the position of each entry in their cluster
        self._takes_broker_fields = False          # the client understands BrokerEntryMetadata
        # Topic lists it has asked for: (namespace, pattern's text) -> (pattern, newest partition when it asked first)
        self.discoveries: dict[tuple[str, str | None], tuple[Pattern | None, int]] = {}
        self.probed_by: list[OwnerLink] = []       # links of owners that ask whether the client is alive
        self.probed_at = 0.0                       # when the first of them asked, by the loop's clock
        self.introduced: set[OwnerLink] = set()    # links of owners to tell when the connection ends

    def __repr__(self) -> str:
        return f"<Client {self.number} {self.routes} {self.requests}>"

    @property
    def listener(self) -> str:
        """The listener by which the client came: pulsar, pulsar+ssl, or local for the socket in the data folder."""
        if self.is_inside:
            return "local"
        return "pulsar" if self.stream.transport.get_extra_info("sslcontext") is None else "pulsar+ssl"

    @property
    def is_superuser(self) -> bool:
        """Whether the client may use, and end, transactions of other roles."""
        rights = self.worker.rights
        if rights is not None:
            return rights.is_superuser(self)
        return self.identity is not None and self.identity.method == LOCAL

    @property
    def is_replicator(self) -> bool:
        """Whether the client is the broker's own process that sends messages to other clusters.

        It comes by the socket in the data folder, as nobody does who comes by the network.
        """
        is_local = self.identity is not None and self.identity.method == LOCAL
        return is_local and self.client_version == names.REPLICATOR

    # -- calls of its stream

    def opened(self) -> None:
        """Register the new connection with the worker, and begin the handshake's timeout."""
        self.worker.opened(self)
        if self.refusal:
            self._timer = asyncio.get_running_loop().call_later(_REFUSED_SECONDS, self.refuse)
        else:
            self._timer = self.worker.handshakes.opened(self)

    def refuse(self) -> None:
        """Tell the client that its connection is one too many, and close the connection."""
        self._timer.cancel()
        if not self.stream.transport.is_closing():
            self.stream.write(responses.error(NO_REQUEST, api.NotAllowedError, self.refusal))
            self.stream.close()

    def closed(self) -> None:
        """Free what the client holds, and tell the worker that the connection has ended."""
        self.deliveries.runs.clear()
        self.requests.clear()
        self.worker.closed(self)

    def answer_probes(self) -> None:
        """Answer owners that asked whether this client is alive: it is, because bytes have come from it."""
        for link in self.probed_by:
            link.command(self.number, self.protocol_version, b"", envelope.CONNECTION_ALIVE)
        self.probed_by = []
        self.worker.owners.schedule_flush()

    def write_deliveries(self) -> None:
        """Write what has waited for the client to read."""
        for consumer in self.stream_consumers.values():
            if consumer.unwritten:
                self.stream.tell(consumer.unwritten)
                consumer.unwritten = b""
        self.deliveries.write()

    @property
    def waits_for_owners(self) -> bool:
        """Whether the connection is not read from because owners have to take in earlier commands and SENDs first."""
        if self.stream.has_many_waiting:
            return True
        worker = self.worker
        if not worker.owners.is_paused:
            return False
        return bool(self.routes.producers) or (len(self.requests) > 0 and not worker.is_draining)

    # -- its life

    def welcome(self, request: api.CommandConnect, identity: Identity) -> None:
        """Answer CONNECT with CONNECTED, and keep the identity and the features that the handshake found."""
        self._timer.cancel()
        self.stream.connection.state, self.identity = CONNECTED, identity
        self.connected_ms = time.time_ns() // 1_000_000
        self.protocol_version = max(0, min(request.protocol_version, responses.PROTOCOL_VERSION))
        self.worker.counters.add("handshakes")
        self.client_version = request.client_version[:_VERSION_MAX]
        features = request.feature_flags
        self.supports_partial_producer = features.supports_partial_producer
        self.supports_auth_refresh = features.supports_auth_refresh
        self.sends_positions = self.stream.connection.reads_positions = features.supports_repl_dedup_by_lid_and_eid
        is_new = self.protocol_version >= _BROKER_FIELDS_SINCE
        self._takes_broker_fields = is_new and features.supports_broker_entry_metadata
        self.deliveries.has_checksums = self.protocol_version >= _CHECKSUMS_SINCE
        self.deliveries.broker_fields = self.worker.broker_fields if self._takes_broker_fields else 0
        if self.is_replicator:
            self.stream.set_send_buffer(_REPLICATOR_BYTES)
        self.stream.write(responses.connected(self.protocol_version, self.worker.options.max_message_size))
        self.worker.welcomed(self)
        if log.level >= DEBUG:
            log.debug("a connection was opened", client=self.stream.address, version=self.client_version,
                      role=identity.role)
        if self.stream.is_stopped:
            self.stream.start_reading()

    def keep_alive(self) -> None:
        """Send PING, or end the connection if the client has been silent since the last PING although it was read
        from.

        A client of protocol version 0 knows no PING and gets none.  A client that has not finished its handshake may
        not answer a PING; the handshake's own timeout ends it.
        """
        stream = self.stream
        if stream.connection.state != CONNECTED or self.protocol_version < 1:
            return
        if not (stream.was_heard or stream.is_held or stream.has_many_waiting):
            return stream.transport.abort()
        stream.was_heard = False
        stream.tell(responses.PING)

    def configured(self) -> None:
        """Apply the worker's new options; close the connection if the new options would not admit this client again."""
        self.stream.configured()
        self.deliveries.broker_fields = self.worker.broker_fields if self._takes_broker_fields else 0
        self.deliveries.configured()
        if not self.worker.handshakes.accepts(self):
            self.stream.transport.abort()

    def expel(self, link: OwnerLink, object_id: int, handle: int, *, is_producer: bool) -> None:
        """Tell the owner to end a producer or consumer of this client; handle 0: the owner has not made it yet."""
        kind = envelope.PRODUCER_EXPELLED if is_producer else envelope.CONSUMER_EXPELLED
        link.command(self.number, self.protocol_version, b"%d %d" % (object_id, handle), kind)
        self.worker.owners.schedule_flush()

    def rights_of_stream_consumers(self) -> list[tuple[int, Right]]:
        """Return the ids of the client's stream consumers, each with the right that the client must have."""
        return [(consumer_id, consumer.right) for consumer_id, consumer in self.stream_consumers.items()]

    def expel_stream_consumer(self, consumer_id: int) -> None:
        """End the registration of a stream consumer."""
        consumer = self.stream_consumers.pop(consumer_id)
        if consumer.withdraw is not None:
            consumer.withdraw()
            self.stream.write(responses.refusal(consumer.command, api.ServiceNotReady, "Told to go; try again"))
        if consumer.link is not None:
            consumer.link.command(self.number, self.protocol_version, b"%d" % consumer_id, envelope.STREAM_EXPELLED)
            self.worker.owners.schedule_flush()

    def close_producers(self) -> None:
        """Close all producers for a drain: SENDs that have come are answered, later ones are ignored."""
        for producer_id, route in list(self.routes.producers.items()):
            if route.handle:
                self.routes.drop(route)
                self.routes.remember_closed(producer_id)
                self.tell_closed(route)
            elif route.link is None:
                assert route.withdraw is not None
                route.withdraw()
                self.routes.drop(route)
                self.refuse_opening(route, stopping())
            elif not route.is_expelled:      # the owner may be waiting for another producer to close, perhaps for ever
                route.is_expelled = True
                self.expel(route.link, producer_id, 0, is_producer=True)
        self.stream.resume_reading()

    def say_goodbye(self) -> None:
        """Tell the client to look its topics up again, then close the connection: the broker stops."""
        for route in self.routes.all():
            if route.handle:
                self.tell_closed(route)
            else:      # a client does not take CLOSE_PRODUCER for the answer to PRODUCER, and would wait for that
                self.refuse_opening(route, stopping())
        self.stream.close()

    def tell_closed(self, route: Route) -> None:
        """Tell the client that the broker has closed a producer or consumer."""
        close = responses.close_producer if route.is_producer else responses.close_consumer
        self.stream.tell(close(route.object_id))

    def refuse_opening(self, route: Route, why: Refusal) -> None:
        """Answer a PRODUCER or SUBSCRIBE that no owner has answered with an error."""
        self.stream.write(responses.error(route.request_id, why.code, why.message))


def stopping() -> Refusal:
    """Return the refusal of producers and consumers while the broker stops."""
    return Refusal(api.ServiceNotReady, "The broker is being stopped; try again")
