"""A `geminga-web` process: handovers that the admin process hands over become sessions.

A session is a client of the workers.  The process reads no file of the data folder, and a slow client holds up nobody:
its session alone stops reading from the worker.  Messages over plain HTTP are served beside it.
"""
import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

import uvloop

from geminga.storage.runtime.control import Control, unpacked
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.log import log
from geminga.storage.runtime.unix_sockets import CLIENTS
from geminga.workers.identity.authentication import Authenticator, Identity
from geminga.workers.owners.following import follow
from geminga.workers.web import parameters
from geminga.workers.web.connection import Connection
from geminga.workers.web.consumer import Consumer
from geminga.workers.web.frames import GOING_AWAY, REFUSED
from geminga.workers.web.handovers import CONSUMER, PRODUCER, Handover, Handovers
from geminga.workers.web.parameters import WrongParameter
from geminga.workers.web.producer import Producer
from geminga.workers.web.session import Session, TurnedAway
from geminga.workers.web.worker_links import WorkerLinks

_OPENING_MAX = 500           # handshakes under way; others wait in the socket
_OPEN_S = 30.0               # that a handshake may take
_LOOK_S = 5.0                # between two looks for idle connections
_GOODBYE_S = 1.0             # that clients have to answer when the process stops


class Beside(Protocol):
    """What a process serves beside WebSocket."""

    async def start(self) -> None: ...
    def end_unless(self, accepts: Callable[[Identity], bool]) -> None:
        """End what belongs to identities that the configuration does not admit any more."""
    async def stop(self) -> None: ...


class Web:
    """All WebSockets of one process."""

    def __init__(self, links: WorkerLinks, handovers: Handovers, authenticator: Authenticator, counters: Counters,
                 beside: Beside) -> None:
        self._links, self._handovers, self._beside = links, handovers, beside
        self._authenticator, self._counters = authenticator, counters
        self._loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self._expiring: dict[Connection, float] = {}      # when their credentials expire, in seconds since 1970
        self._opening: set[asyncio.Task[None]] = set()
        self._is_reading = False
        self._is_stopping = False

    def __repr__(self) -> str:
        return f"<Web connections={len(self.connections)} opening={len(self._opening)}>"

    # -- handovers

    def read(self) -> None:
        """Take handovers from now on."""
        if not self._is_reading and not self._is_stopping:
            self._is_reading = True
            self._loop.add_reader(self._handovers.incoming.fileno(), self._came)

    def _hold(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._handovers.incoming.fileno())

    def _came(self) -> None:
        while len(self._opening) < _OPENING_MAX:
            if (came := self._handovers.receive()) is None:
                return
            task = self._loop.create_task(self._admit(*came))
            self._opening.add(task)
            task.add_done_callback(self._admitted)
        self._hold()

    def _admitted(self, task: "asyncio.Task[None]") -> None:
        self._opening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(f"a handshake of a WebSocket fails: {error!r}", code="G290")
        self.read()

    async def _admit(self, handover: Handover, link: socket.socket) -> None:
        """Answer a handshake: 101, or the error that keeps the session from being opened."""
        link.setblocking(False)
        connect = self._loop.create_unix_connection if link.family == socket.AF_UNIX else self._loop.create_connection
        _, connection = await connect(lambda: Connection(self.connections, handover.key), sock=link)
        self._counters.add("web_sockets_opened")
        try:
            session = _session(handover, self._links, connection)
            try:
                async with asyncio.timeout(_OPEN_S):
                    await session.open()
            except BaseException:
                session.closed()
                raise
            if handover.identity.expires_s is not None:
                self._expiring[connection] = handover.identity.expires_s
            connection.open(session, handover.rest)
        except WrongParameter as error:
            _refuse(connection, HTTPStatus.BAD_REQUEST, f"Invalid query params: {error}")
        except TurnedAway as error:
            what = handover.kind if handover.kind == "reader" else "producer/consumer"
            _refuse(connection, error.status, f"Failed to create {what}: {error.text}")
        except TimeoutError:
            _refuse(connection, HTTPStatus.GATEWAY_TIMEOUT, f"Failed to create {handover.kind}: it took too long")
        except Exception:
            _refuse(connection, HTTPStatus.INTERNAL_SERVER_ERROR,
                    "An error of the broker's own; its log has the details")
            raise

    # -- all connections

    def look(self, now_s: float) -> None:
        """End idle connections, and those whose credentials have expired.  now_s: seconds since 1970."""
        self._counters.set("web_sockets", len(self.connections))
        now = self._loop.time()
        for connection in list(self.connections):
            connection.end_if_idle(now)
        for connection, expires_s in list(self._expiring.items()):
            if connection.is_closed:
                del self._expiring[connection]
            elif expires_s <= now_s:
                connection.close(REFUSED, "The credentials have expired")

    def configure(self, text: str) -> None:
        """Apply new options.  Raises Unusable."""
        identity, logged = unpacked(text)
        self._authenticator.configure(identity)
        log.begin(logged)
        for connection in list(self.connections):
            session = connection.session
            if isinstance(session, Session) and not self._authenticator.accepts(session.handover.identity):
                connection.close(REFUSED, "Authentication is required in another way now")
        self._beside.end_unless(self._authenticator.accepts)

    async def stop(self) -> None:
        """Tell all clients, and end their connections."""
        self._is_stopping = True
        self._hold()
        for task in list(self._opening):
            task.cancel()
        for connection in list(self.connections):
            connection.close(GOING_AWAY, "The broker stops")
        until = self._loop.time() + _GOODBYE_S
        while self.connections and self._loop.time() < until:
            await asyncio.sleep(0.02)


def _session(handover: Handover, links: WorkerLinks, connection: Connection) -> Session:
    """Return the session for a handover.  Raises WrongParameter."""
    given = dict(handover.parameters)
    if handover.kind == PRODUCER:
        return Producer(handover, links, connection, parameters.producing(given))
    own = parameters.consuming(given) if handover.kind == CONSUMER else parameters.reading(given)
    return Consumer(handover, links, connection, own)


def _refuse(connection: Connection, status: HTTPStatus, reason: str) -> None:
    connection.refuse(status.value, status.phrase, json.dumps({"reason": reason}).encode())


def run(data_dir: Path, handovers: Handovers, control: Control, authenticator: Authenticator, counters: Counters,
        make_beside: Callable[[WorkerLinks], Beside], lease: Lease) -> None:
    """Serve WebSockets until the supervisor tells the process to stop.

    make_beside: makes what is served beside them, with the connections to workers that both use.
    """
    uvloop.run(_serve(data_dir, handovers, control, authenticator, counters, make_beside, lease))


async def _serve(data_dir: Path, handovers: Handovers, control: Control, authenticator: Authenticator,
                 counters: Counters, make_beside: Callable[[WorkerLinks], Beside], lease: Lease) -> None:
    links = WorkerLinks(data_dir / CLIENTS, lease)
    beside = make_beside(links)
    web = Web(links, handovers, authenticator, counters, beside)

    async def drain() -> None:
        """Workers refuse what is published, and deliver nothing more."""

    stopping = follow(control, None, web.configure, drain)
    web.read()
    await beside.start()
    counters.set("serving_pid", os.getpid())
    control.send(ready={})
    while not stopping.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await stopping.wait()
        web.look(time.time())
    await asyncio.gather(web.stop(), beside.stop())
