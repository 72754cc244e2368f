"""The worker's process: it accepts connections, and stands between them and the owners.

One pass of the loop reads what sockets have, and then (`_flush`) sends each owner one envelope.  What owners answer is
written to the clients as it comes.  asyncio with uvloop: it reads straight into our buffer and keeps what a socket cannot
take yet.
"""
import asyncio
import itertools
import os
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop
import zmq
from numpy.typing import NDArray

from geminga.proto import deliveries, envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import ProtocolError, Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.disk.syscalls import give_back_memory
from geminga.storage.options import StorageOptions
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.control import Control, unpacked
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import DEBUG, LogOptions, log
from geminga.storage.runtime.routing import owner_of
from geminga.workers.addresses import Addresses
from geminga.workers.client import Client
from geminga.workers.egress import Ledgers
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.authorization import Authorization
from geminga.workers.identity.handshakes import Handshakes
from geminga.workers.identity.options import AuthorizationOptions, IdentityOptions
from geminga.workers.joins import Joins
from geminga.workers.links import OwnerLink, follow
from geminga.workers.listeners import Listeners
from geminga.workers.options import WorkerOptions
from geminga.workers.requests import Directory
from geminga.workers.rights import Rights
from geminga.workers.schemas import SchemaThread, Work
from geminga.workers.turns import Halves, Turns
from geminga.workers.watchers import Watchers

_BUFFER_BYTES = 1 << 20          # what one read can bring, shared by all connections: a read is dealt with before the next
_ENVELOPE_BYTES = 512 << 10      # of entries; an owner begins with them while more is read
_ACK_SECONDS = 0.02              # that an acknowledgement may wait for something to go along with
_WAITING_MAX = 100_000           # commands for owners; what comes above is told to try again
_WAITING_BYTES_MAX = 64 << 20    # of them, likewise
_RELEASE_SECONDS = 0.01          # for commands that have waited, between two looks at sockets
_SETTLING_BYTES_MAX = 64 << 20   # of commands whose schemas are being looked at; what comes above is told to try again
_PROBE_SECONDS = 2               # silence after a PING that ends a connection somebody else wants to replace
_GOODBYE_SECONDS = 2             # until what was written to clients must have been sent when the broker stops


class Given(NamedTuple):
    """What a worker is told anew when the configuration has changed."""

    options: WorkerOptions
    storage: StorageOptions
    identity: IdentityOptions
    addresses: Addresses
    log: LogOptions


class Worker:
    """All clients of one process."""

    def __init__(self, serial: int, owners: int, run_dir: Path, data_dir: Path, options: WorkerOptions, directory: Directory,
                 schemas: SchemaThread, counters: Counters, authenticator: Authenticator, authorization: Authorization):
        self.serial, self.options, self.directory, self.counters = serial, options, directory, counters
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.buffer_array = np.frombuffer(self.buffer, np.uint8)
        self.ledgers = Ledgers(data_dir)
        self.broker_fields = _broker_fields(options)
        self._run_dir = run_dir
        self._context = zmq.Context()
        self._links: list[OwnerLink | None] = [None] * owners
        self._clients: dict[int, Client] = {}
        self._joins = [Joins() for _ in range(owners)]
        self._waiting: dict[int, tuple[Joins, Client, int]] = {}     # commands that wait there, and their sizes
        self._waiting_bytes = 0
        self._release_is_due = False
        self._numbers = itertools.count()
        self.schemas = schemas
        self._settling: dict[asyncio.Task, tuple[Client, api.BaseCommand]] = {}      # commands whose schemas are being looked at
        self._settling_bytes = 0
        self._connections = 0
        self._flush_is_due = False
        self._ack_timer: asyncio.TimerHandle | None = None
        self.is_draining = False                  # nobody may produce or subscribe any more
        self.is_paused = False                    # owners have not answered for so much that no producer is read from
        self._loop = asyncio.get_running_loop()
        self.turns = Turns(self._loop, _BUFFER_BYTES)
        self.halves = Halves()
        self.watchers = Watchers(self, self._loop)
        self.handshakes = Handshakes(authenticator, counters, self._loop)
        self._authenticator, self._authorization = authenticator, authorization
        self.rights = Rights(self, authorization, self._loop) if authorization.is_enabled else None
        self._keep_alive = self._loop.call_later(options.keep_alive_interval_ms / 1000, self.keep_alive)

    def configure(self, given: Given) -> None:
        """These hold from now on, for all clients.  Raises Unusable: keys or users cannot be read; nothing has changed then."""
        identity = given.identity
        self._authenticator.configure(identity)
        self.options, self.schemas.options, self.broker_fields = given.options, given.storage, _broker_fields(given.options)
        self.directory.configure(given.addresses, given.storage)
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
        for client in list(self._clients.values()):
            self.attempt(client, client.configured)
        self._resume_when_possible()

    # -- clients

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections & 0xFFFFFFFF

    def opened(self, client: Client) -> None:
        self._clients[client.number] = client
        self.counters.add("connections_opened")

    def closed(self, client: Client) -> None:
        if self._clients.pop(client.number, None) is None:
            return
        self.counters.add("connections_closed")
        if log.level >= DEBUG:
            log.debug("a connection was closed", client=client.address)
        self.watchers.forget(client)
        self.handshakes.closed(client)
        for route in (*client.producers.values(), *client.consumers.values()):
            if route.link is None:
                route.withdraw()
        for link in self._links:
            if link is not None and (link in client.introduced or client.discoveries):
                link.command(client.number, client.protocol_version, b"", envelope.CONNECTION_GONE)
        self.schedule_flush()

    def broke_protocol(self, client: Client, error: ProtocolError) -> None:
        self.counters.add("protocol_errors")
        client.abort()

    def failed(self, client: Client) -> None:
        """What one client asked for, or was to be told, failed for a reason that nobody has thought of: its connection ends."""
        log.error(f"a client's command failed, and its connection is ended: {traceback.format_exc()}", code="G291", client=client.address)
        client.transport.abort()

    def attempt(self, client: Client, do: Callable[..., None], *arguments) -> None:
        """What fails here ends that client's connection, and keeps nothing from the others that are dealt with along with it."""
        try:
            do(*arguments)
        except Exception:
            self.failed(client)

    def probe(self, client: Client) -> None:
        """End the connection unless the client says something soon."""
        client.was_heard = False
        client.listen()
        self._loop.call_later(_PROBE_SECONDS, self._end_if_silent, client)

    def _end_if_silent(self, client: Client) -> None:
        if client.was_heard:
            return
        if client.is_held or client.is_crowding:      # again, by what it had sent before: its answer may lie unread
            return self.probe(client)
        client.transport.abort()

    def answer_probes(self, client: Client) -> None:
        for link in client.is_probed:
            link.command(client.number, client.protocol_version, b"", envelope.CONNECTION_ALIVE)
        client.is_probed = []
        self.schedule_flush()

    def keep_alive(self) -> None:
        """PING everybody; who has said nothing since the last time is taken for dead."""
        for client in list(self._clients.values()):
            self.attempt(client, client.keep_alive)
        give_back_memory()        # what many connections have left behind; a tenth of a millisecond when there is nothing
        self._keep_alive = self._loop.call_later(self.options.keep_alive_interval_ms / 1000, self.keep_alive)

    def clients(self) -> Iterable[Client]:
        return self._clients.values()

    # -- owners

    def link_of(self, topic: TopicName) -> OwnerLink | None:
        """The way to the partition's owner; None while that is being started again."""
        return self._links[owner_of(str(topic), len(self._links))]

    def room_of(self, topic: TopicName) -> OwnerLink | None:
        """The same, for a command that makes a producer or consumer; None also while the owner has enough of those to look at."""
        index = owner_of(str(topic), len(self._links))
        link = self._links[index]
        return link if link is not None and self._joins[index].has_room(link) else None

    def joins_of(self, topic: TopicName) -> Joins:
        return self._joins[owner_of(str(topic), len(self._links))]

    def wait_for_owner(self, client: Client, topic: TopicName, command: api.BaseCommand) -> Callable[[], None]:
        """Have the client's command dealt with when the partition's owner is there, has room, and it is the client's turn.

        Returns what withdraws the command.  Raises Refusal.  An error here, even one that asks to try again, makes C++ consumers that
        were connected before stop trying.
        """
        size = command.ByteSize()
        if len(self._waiting) >= _WAITING_MAX or self._waiting_bytes + size > _WAITING_BYTES_MAX:
            raise Refusal(api.ServiceNotReady, "Too many commands wait for the topic's owner; try again")
        number, joins = next(self._numbers), self.joins_of(topic)
        joins.wait(client, number, command)
        self._waiting[number] = joins, client, size
        self._waiting_bytes += size
        client.waits()
        self.counters.set("commands_waiting", len(self._waiting))
        return partial(self._withdraw, number)

    def _withdraw(self, number: int) -> None:
        if number in self._waiting:
            joins, client, _ = self._waiting[number]
            joins.withdraw(client, number)
            self._waits_no_more(number)

    def _waits_no_more(self, number: int) -> None:
        _, client, size = self._waiting.pop(number)
        self._waiting_bytes -= size
        client.waits_no_more()
        self.counters.set("commands_waiting", len(self._waiting))

    def _release(self) -> None:
        """Deal with commands that have waited, as far as their owners have room; the rest of many goes on behind what sockets bring."""
        self._release_is_due, until = False, time.monotonic() + _RELEASE_SECONDS
        for link, joins in zip(self._links, self._joins, strict=True):
            while link is not None and not joins.is_empty and joins.has_room(link):
                if time.monotonic() >= until:
                    self._release_is_due = True
                    self._loop.call_soon(self._release)
                    return
                client, number, command = joins.take()
                self._waits_no_more(number)
                if client.number in self._clients:
                    self.attempt(client, client.resume, command)

    def settle(self, client: Client, command: api.BaseCommand, topic: TopicName, work: Work) -> Callable[[], None]:
        """Look at what the command says of a schema beside the loop, and let the client go on with it then; returns what withdraws it.

        Raises Refusal.
        """
        size = command.ByteSize()
        if self._settling_bytes + size > _SETTLING_BYTES_MAX:
            raise Refusal(api.ServiceNotReady, "Too many schemas are being looked at; try again")
        self._settling_bytes += size
        waiting = client, command
        task = self._loop.create_task(self._settle(waiting, topic, work, size))
        self._settling[task] = waiting
        return partial(self._settling.pop, task, None)

    async def _settle(self, waiting: tuple[Client, api.BaseCommand], topic: TopicName, work: Work, size: int) -> None:
        client, command = waiting
        answer = refusal = None
        try:
            answer = await self.schemas.do(topic, work)
        except Refusal as found:
            refusal = found
        except Exception:
            return self.failed(client)
        finally:
            is_wanted = self._settling.pop(asyncio.current_task(), None) is not None and client.number in self._clients
            self._settling_bytes -= size
        if is_wanted:
            self.attempt(client, client.settled, command, answer, refusal)

    def tell_owners(self, client: Client, kind: int, data: bytes) -> None:
        """All of them, what happened to the client."""
        for link in self._links:
            if link is not None:
                link.command(client.number, client.protocol_version, data, kind)
        self.schedule_flush()

    def owner_up(self, index: int, serial: int) -> None:
        self.owner_gone(index)
        link = self._links[index] = OwnerLink(self._context, self._run_dir, serial, self.serial)
        self._loop.add_reader(link.socket.getsockopt(zmq.FD), self._receive, link)
        self.watchers.introduce(link)
        self.schedule_flush()
        self._release()

    def owner_gone(self, index: int) -> None:
        link, self._links[index] = self._links[index], None
        if link is None:
            return
        self._joins[index].owner_gone()
        self._receive(link)      # what it still answered
        for client in list(self._clients.values()):
            self.attempt(client, client.owner_gone, link)
        self._loop.remove_reader(link.socket.getsockopt(zmq.FD))
        link.close()
        self._resume_when_possible()

    def schedule_flush(self, link: OwnerLink | None = None) -> None:
        """Send what was gathered when all that this pass brought has been read; at once what has become large on one link."""
        if link is not None and link.gathered >= _ENVELOPE_BYTES:
            link.flush()
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def flush_acks_soon(self, link: OwnerLink) -> None:
        """Acknowledgements that nobody waits for go along with whatever is sent next; by themselves only after a while."""
        if link.gathered >= _ENVELOPE_BYTES:
            link.flush()
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_SECONDS, self.schedule_flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        in_flight = 0
        for link, joins in zip(self._links, self._joins, strict=True):
            if link is None or not link.is_busy:
                continue
            link.flush()
            in_flight += link.in_flight
            if link.in_flight - joins.size(link) > self.options.in_flight_bytes and not self.is_paused:
                self.is_paused = True
                for client in self._clients.values():
                    if client.producers:
                        client.pause_reading()
            self._receive(link)      # ZeroMQ's descriptor tells of changes only: what came while sending has to be looked for
        self.counters.set("in_flight_bytes", in_flight)

    def _resume_when_possible(self) -> None:
        limit = self.options.in_flight_bytes // 2
        if self.is_paused and not self.is_draining and all(
                link is None or link.in_flight - joins.size(link) <= limit for link, joins in zip(self._links, self._joins, strict=True)):
            self.is_paused = False
            for client in self._clients.values():
                client.resume_reading()

    def _receive(self, link: OwnerLink) -> None:
        link.is_unheard = False
        while not link.socket.closed and zmq_frames.has_come(link.socket):
            link.taken, sections = envelope.unseal(zmq_frames.receive(link.socket))
            for seconds in link.seconds_taken():
                self.counters.observe("answer", seconds)
            for kind, rows, data in sections:
                _SECTIONS[kind](self, link, rows, data)
        if self.is_paused:
            self._resume_when_possible()
        if self._waiting and not self._release_is_due:
            self._release()

    def _receipts(self, link: OwnerLink, rows: NDArray, data: memoryview) -> None:
        for connection, frames in deliveries.receipts(rows):
            client = self._clients.get(connection)
            if client is not None:
                client.write(frames)

    def _runs(self, link: OwnerLink, rows: NDArray, data: memoryview) -> None:
        touched = {}
        for connection, count, consumer, partition_id, ledger_id, first in rows.tolist():
            client = self._clients.get(connection)
            if client is not None:
                client.deliver(link, consumer, partition_id, ledger_id, first, count)
                touched[connection] = client
        for client in touched.values():
            self.attempt(client, client.write_runs)

    def _picks(self, link: OwnerLink, rows: NDArray, data: memoryview) -> None:
        at, touched = 0, {}
        for connection, count, consumer, partition_id, ledger_id, size, view in rows.tolist():
            picked = np.frombuffer(data, envelope.PICKED, count, at)
            words = np.frombuffer(data[at + picked.nbytes:at + size], np.uint64)
            at += size
            client = self._clients.get(connection)
            if client is not None:
                client.deliver_picked(link, consumer, partition_id, ledger_id, picked, words, view)
                touched[connection] = client
        for client in touched.values():
            self.attempt(client, client.write_runs)

    def _passed(self, link: OwnerLink, rows: NDArray, data: memoryview) -> None:
        at = 0
        for connection, count, consumer, size in rows.tolist():
            client = self._clients.get(connection)
            if client is not None:
                entries = np.frombuffer(data, envelope.ENTRY, count, at)
                self.attempt(client, client.deliver_passed, link, consumer, entries, data[at + entries.nbytes:at + size])
            at += size

    def _replies(self, link: OwnerLink, rows: NDArray, data: memoryview) -> None:
        at = 0
        for connection, action, object_id, handle, request_id, size, partition in rows.tolist():
            client = self._clients.get(connection)
            if client is not None:
                self.attempt(client, client.answered, link, request_id)
                self.attempt(client, client.reply, link, action, object_id, handle, request_id, partition, bytes(data[at:at + size]))
            at += size

    def _forget(self, link: OwnerLink, rows: NDArray, data: memoryview) -> None:
        for ledger_id, view in rows.tolist():
            self.ledgers.forget(ledger_id, view)

    # -- the end

    async def drain(self) -> None:
        """Nobody may produce or subscribe any more; what was published is answered, and its producers are closed when this is done."""
        self.is_draining = self.is_paused = True
        for client in self._clients.values():
            if client.producers:
                client.pause_reading()
        while True:      # what a client has closed itself may not be answered either
            is_in_flight = any(link is not None and link.in_flight for link in self._links)
            producing = [client for client in self._clients.values() if client.producers]
            if not (producing or is_in_flight):
                return
            for client in producing if not is_in_flight else ():
                if not client.is_held:
                    client.close_producers()
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Everybody is told, and what they have been told is sent."""
        for client in list(self._clients.values()):
            client.pause_reading()
        deadline = self._loop.time() + _GOODBYE_SECONDS
        while any(link is not None and link.in_flight for link in self._links) and self._loop.time() < deadline:
            await asyncio.sleep(0.005)
        for client in list(self._clients.values()):
            client.say_goodbye()
        while self._clients and self._loop.time() < deadline:
            await asyncio.sleep(0.005)


_SECTIONS = {envelope.RECEIPTS: Worker._receipts, envelope.RUNS: Worker._runs, envelope.REPLIES: Worker._replies,
             envelope.FORGET: Worker._forget, envelope.PICKS: Worker._picks,
             envelope.PASSED: Worker._passed}


def _broker_fields(options: WorkerOptions) -> int:
    if not options.expose_broker_entry_metadata:
        return 0
    bits = {"timestamp": deliveries.BROKER_TIMESTAMP, "index": deliveries.BROKER_INDEX}
    return sum(bits[name] for name in options.broker_entry_metadata)


def run(serial: int, owners: int, run_dir: Path, data_dir: Path, options: WorkerOptions, listeners: Listeners, addresses: Addresses,
        control: Control, counters: Counters, storage: StorageOptions, authenticator: Authenticator, rights: AuthorizationOptions) -> None:
    """Be a worker until told to stop."""
    _begin_counters(counters)
    catalogue = open_catalogue(data_dir / "catalogue.sqlite")
    directory = Directory(catalogue, addresses, storage)
    if listeners.certificates is not None:
        listeners.certificates.counters = counters
    schemas = SchemaThread(data_dir / "catalogue.sqlite", storage)
    uvloop.run(_serve(serial, owners, run_dir, data_dir, options, listeners, control, counters, directory, schemas, authenticator,
                      Authorization(rights, catalogue)))


def _begin_counters(counters: Counters) -> None:
    """What the process before this one had open ended with it."""
    counters.set("connections_closed", counters.read()["connections_opened"])
    for name in ("lookups_waiting", "commands_waiting", "connections_throttled", "in_flight_bytes"):
        counters.set(name, 0)


async def _serve(serial: int, owners: int, run_dir: Path, data_dir: Path, options: WorkerOptions, listeners: Listeners,
                 control: Control, counters: Counters, directory: Directory, schemas: SchemaThread, authenticator: Authenticator,
                 authorization: Authorization) -> None:
    worker = Worker(serial, owners, run_dir, data_dir, options, directory, schemas, counters, authenticator, authorization)

    def configure(text: str) -> None:
        given = Given(*unpacked(text))
        if listeners.certificates is not None:
            listeners.certificates.configure(given.identity.tls)
        worker.configure(given)
        log.begin(given.log)

    stopping = follow(control, worker, configure, worker.drain)
    servers = await listeners.serve(lambda: Client(worker), lambda: Client(worker, is_inside=True))
    worker.counters.set("serving_pid", os.getpid())
    control.send(ready={})
    await stopping.wait()
    for server in servers:
        server.close()
    await worker.stop()
