"""The worker: all clients of one network process, between them and the owners.

One pass of the loop reads what sockets have brought, and then sends each owner one envelope (owners/links.py).  Answers
of owners are written to clients as they come.
"""
import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from geminga.proto import deliveries, envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.disk.syscalls import give_back_memory
from geminga.storage.options import StorageOptions
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.log import DEBUG, LogOptions, log
from geminga.workers.addresses import Addresses
from geminga.workers.clients import commands, delivery_queue, messages, replies, stream_consumers
from geminga.workers.clients.client import Client
from geminga.workers.clients.egress import Ledgers
from geminga.workers.clients.forwarding import introduce
from geminga.workers.clients.rights import Rights
from geminga.workers.clients.sealed_producers import SealedProducers
from geminga.workers.clients.turns import Turns, UnfinishedFrames
from geminga.workers.directory.directory import Directory
from geminga.workers.directory.layouts import Layouts
from geminga.workers.directory.namespace_watches import NamespaceWatches
from geminga.workers.directory.schemas import SchemaChecks, SchemaThread
from geminga.workers.directory.watchers import Watchers
from geminga.workers.failures import attempt
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.authorization import Authorization
from geminga.workers.identity.handshakes import Handshakes
from geminga.workers.identity.options import IdentityOptions
from geminga.workers.options import WorkerOptions
from geminga.workers.owners.links import OwnerLinks
from geminga.workers.owners.waiting import WaitingCommands
from geminga.workers.ports.admission import Admission
from geminga.workers.ports.throttled_log import strangers

_BUFFER_BYTES = 1 << 20      # for one read; connections share the buffer, as a read is handled before the next one
_PROBE_SECONDS = 2               # of silence after a PING, which end a connection that another client wants to replace
_GOODBYE_SECONDS = 2             # until everything written to clients must have been sent when the broker stops
_POLL_SECONDS = 0.005            # between two looks at the condition that a drain or a stop waits for


class WorkerConfig(NamedTuple):
    """Options that a running worker applies when the configuration changes."""

    options: WorkerOptions
    storage: StorageOptions
    identity: IdentityOptions
    addresses: Addresses
    log: LogOptions


class Worker:
    """All clients of one process, and the parts that the clients share."""

    def __init__(self, serial: int, owners: int, run_dir: Path, data_dir: Path, options: WorkerOptions,
                 directory: Directory,
                 schemas: SchemaThread, counters: Counters, admission: Admission, authenticator: Authenticator,
                 authorization: Authorization, lease: Lease):
        """Make a worker.  serial: number of this process among all of the broker's; owners: number of owners."""
        self.options, self.directory, self.counters, self._admission = options, directory, counters, admission
        self.lease = lease
        self._loop = asyncio.get_running_loop()
        self._authenticator, self._authorization, self._schemas = authenticator, authorization, schemas
        self.is_draining = False                  # no producer or consumer is opened any more
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.buffer_array = np.frombuffer(self.buffer, np.uint8)
        self.broker_fields = _broker_fields(options)
        self.clients: dict[int, Client] = {}      # by their connections' numbers
        self._serial, self._connections = serial, 0
        self.ledgers = Ledgers(data_dir)
        self.owners = OwnerLinks(run_dir, serial, owners, self, counters, self._loop)
        self.owners.sections = {
            envelope.RECEIPTS: partial(messages.write_receipts, self.clients),
            envelope.RUNS: partial(delivery_queue.deliver_runs, self.clients),
            envelope.ENTRY_LISTS: partial(delivery_queue.deliver_entry_lists, self.clients),
            envelope.TRANSIENT: partial(delivery_queue.deliver_transient, self.clients),
            envelope.REPLIES: partial(replies.handle_replies, self.clients),
            envelope.FORGET: self.ledgers.forget_all,
            envelope.LAYOUTS: lambda link, rows, data: self.layouts.look(),
        }
        self.waiting = WaitingCommands(self.owners, self._resume, counters, self._loop)
        self.schema_checks = SchemaChecks(schemas, self._schema_checked, self._loop)
        self.turns = Turns(self._loop, _BUFFER_BYTES)
        self.unfinished = UnfinishedFrames()
        self.watchers = Watchers(self, self._loop)
        self.layouts: Layouts = Layouts(self, self._loop)
        self.namespace_watches = NamespaceWatches(self, self._loop)
        self.sealed_producers = SealedProducers(self._loop)
        self.handshakes = Handshakes(authenticator, counters, self._loop)
        self.rights = Rights(self, authorization, self._loop) if authorization.is_enabled else None
        self._keep_alive = self._loop.call_later(options.keep_alive_interval_ms / 1000, self.keep_alive)

    def __repr__(self) -> str:
        state = " draining" if self.is_draining else ""
        return f"<Worker of {len(self.clients)} clients{state}, {self.owners}, {self.waiting}>"

    def configure(self, config: WorkerConfig) -> None:
        """Apply new options to all clients.

        Raises Unusable: keys or users cannot be read; nothing has changed then.
        """
        identity, were_super = config.identity, {client for client in self.all_clients() if client.is_superuser}
        self._authenticator.configure(identity)
        self.options, self._schemas.options = config.options, config.storage
        self.broker_fields = _broker_fields(config.options)
        self.directory.configure(config.addresses, config.storage)
        self.handshakes.configured()
        self._authorization.configure(identity.authorization)
        if self.rights is not None and not self._authorization.is_enabled:
            self.rights.close()
            self.rights = None
        elif self.rights is not None:
            self.rights.configured()
        elif self._authorization.is_enabled:
            self.rights = Rights(self, self._authorization, self._loop)
        self._keep_alive.cancel()
        self._keep_alive = self._loop.call_later(self.options.keep_alive_interval_ms / 1000, self.keep_alive)
        for client in self.all_clients():
            attempt(client.stream, client.configured)
            if client.is_superuser != (client in were_super):
                for link in client.introduced:
                    introduce(client, link)
        self.owners.schedule_flush()
        self.owners.resume_if_possible()

    # -- clients

    def all_clients(self) -> list[Client]:
        return list(self.clients.values())

    def next_connection(self) -> int:
        """Return the number under which owners know the next connection."""
        self._connections += 1
        return self._connections & 0xFFFFFFFF

    def opened(self, client: Client) -> None:
        """Add a client whose connection was accepted; one too many has `refusal` set."""
        self.clients[client.number] = client
        if not client.is_inside:
            client.place, client.refusal = self._admission.admit(client.stream.host, self.options)
        if client.refusal:
            self.counters.add("connections_refused")
            strangers.warn("connections", f"a connection from {client.stream.host} is refused: {client.refusal}",
                           "G323", client.stream.host)
        else:
            self.counters.add("connections_opened")
            client.row = self._admission.connections.enter(
                self._serial, client.number, client.stream.address, client.listener, time.time_ns() // 1_000_000)

    def welcomed(self, client: Client) -> None:
        """Note what the handshake of a client has told, for listings of connections."""
        if client.row is not None and client.identity is not None:
            self._admission.connections.welcome(
                client.row, client.protocol_version, client.client_version, client.identity.role)

    def watches_layouts(self, client: Client) -> None:
        """Note for listings of connections that a client is of Pulsar 5."""
        if client.row is not None:
            self._admission.connections.watches_layouts(client.row)

    def closed(self, client: Client) -> None:
        """Remove a client whose connection has ended, and tell the owners that know the client."""
        if self.clients.pop(client.number, None) is None:
            return
        self._admission.free(client.place)
        if client.row is not None:
            self._admission.connections.leave(client.row)
        if not client.refusal:
            self.counters.add("connections_closed")
        if log.level >= DEBUG:
            log.debug("a connection was closed", client=client.stream.address)
        self.watchers.forget(client)
        self.layouts.forget(client)
        self.namespace_watches.forget(client)
        self.handshakes.closed(client)
        for route in client.routes.all():
            if route.link is None:
                assert route.withdraw is not None
                route.withdraw()
        for consumer in client.stream_consumers.values():
            if consumer.withdraw is not None:
                consumer.withdraw()
        for link in self.owners:
            if link in client.introduced or client.discoveries:
                link.command(client.number, client.protocol_version, b"", envelope.CONNECTION_GONE)
        self.owners.schedule_flush()

    def hang_up(self, address: str) -> None:
        """Close the connection from an address, host:port, because an operator asked for that."""
        for client in self.all_clients():
            if client.stream.address == address:
                log.info("a connection is closed because an operator asked for that", client=address)
                client.stream.transport.abort()

    def end_if_silent_soon(self, client: Client) -> None:
        """End the connection unless bytes come from the client soon: an owner has asked whether the client is alive.

        Keep-alive has its own mark of silence: a probe that took that back would end a client that has no time to
        answer both.
        """
        client.probed_at = self._loop.time()
        client.stream.unthrottle_to_hear()
        self._loop.call_later(_PROBE_SECONDS, self._end_if_silent, client, client.probed_at)

    def _end_if_silent(self, client: Client, probed_at: float) -> None:
        stream = client.stream
        if not client.probed_by or client.probed_at != probed_at:      # it has answered; a newer probe has its own time
            return
        if stream.is_held or stream.has_many_waiting:      # its answer may lie unread behind earlier commands
            return self.end_if_silent_soon(client)
        stream.transport.abort()

    def keep_alive(self) -> None:
        """Send PING to all clients, and end the connections of those that have been silent since the last PING."""
        for client in self.all_clients():
            attempt(client.stream, client.keep_alive)
        give_back_memory()        # of ended connections; takes a tenth of a millisecond if there is none
        self._keep_alive = self._loop.call_later(self.options.keep_alive_interval_ms / 1000, self.keep_alive)

    def _resume(self, client: Client, command: api.BaseCommand) -> None:
        """Handle a command that has waited for its owner."""
        if client.number in self.clients:
            attempt(client.stream, commands.handle, client, command)

    def _schema_checked(self, client: Client, command: api.BaseCommand, answer: Any, refusal: Refusal | None) -> None:
        """Handle a command whose schema check has ended."""
        if client.number in self.clients:
            attempt(client.stream, commands.schema_checked, client, command, answer, refusal)

    # -- owners

    def owner_up(self, index: int, serial: int) -> None:
        """Connect to an owner's new process, and send it the commands that have waited for it."""
        self.owner_gone(index)
        link = self.owners.connect(index, serial)
        self.watchers.introduce(link)
        for client in self.all_clients():
            stream_consumers.restore(client, link)
        self.owners.schedule_flush()
        self.waiting.release()

    def owner_gone(self, index: int) -> None:
        """Drop the link to an owner whose process has ended, and tell the clients that used it."""
        link = self.owners.disconnect(index)
        if link is None:
            return
        for client in self.all_clients():
            attempt(client.stream, replies.owner_gone, client, link)
        self.owners.close(link)

    def stop_publishers(self) -> None:
        for client in self.clients.values():
            if client.routes.producers:
                client.stream.pause_reading()

    def resume_publishers(self) -> None:
        for client in self.clients.values():
            client.stream.resume_reading()

    def received(self) -> None:
        self.waiting.release_soon()

    # -- the end

    async def drain(self) -> None:
        """Close all producers and refuse new producers and consumers; return after everything published was
        answered.
        """
        self.is_draining = True
        self.owners.pause()
        while True:      # messages of producers that clients have closed are waited for too
            is_in_flight = self.owners.has_in_flight
            producing = [client for client in self.clients.values() if client.routes.producers]
            if not (producing or is_in_flight):
                return
            for client in producing if not is_in_flight else ():
                if not client.stream.is_held:
                    client.close_producers()
            await asyncio.sleep(_POLL_SECONDS)

    async def stop(self) -> None:
        """Close all connections, after owners have answered and everything written was sent, or after two seconds."""
        for client in self.clients.values():
            client.stream.pause_reading()
        deadline = self._loop.time() + _GOODBYE_SECONDS
        while self.owners.has_in_flight and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        for client in self.all_clients():
            client.say_goodbye()
        while self.clients and self._loop.time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)


def _broker_fields(options: WorkerOptions) -> int:
    """Return the bits of deliveries.BROKER_* for the BrokerEntryMetadata fields that clients get."""
    if not options.expose_broker_entry_metadata:
        return 0
    bits = {"timestamp": deliveries.BROKER_TIMESTAMP, "index": deliveries.BROKER_INDEX}
    return sum(bits[name] for name in options.broker_entry_metadata)
