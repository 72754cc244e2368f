"""A client of the workers, by the socket in the data folder, for one session or several of the same role.

The worker treats such a client as the role that the admin process has authenticated, and revokes its producers and
consumers with its rights.

Each session has a connection of its own, until these take a quarter of the descriptors that the process may open.
Later sessions share connections.  One of them gets its own before anything could make others wait: when it publishes,
as the worker does not read from a connection while one of its producers is throttled, and when its client reads too
slowly.
"""
import asyncio
import json
import resource
from pathlib import Path
from typing import Any

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.lease import Lease
from geminga.workers.identity.authentication import Identity
from geminga.workers.pulsar_client.connection import FramedConnection, greeting

_OWN_PART = 4                # of the descriptors of a process, own connections take 1 / _OWN_PART at most
_USERS_MAX = 64              # sessions that share a connection
_VERSION = "Geminga WebSocket"
# Type of a command that answers no request: (whose it is, its field of BaseCommand, field of the number in there).
_TOLD = {
    T.CLOSE_PRODUCER: ("producers", "close_producer", "producer_id"),
    T.CLOSE_CONSUMER: ("consumers", "close_consumer", "consumer_id"),
    T.REACHED_END_OF_TOPIC: ("consumers", "reachedEndOfTopic", "consumer_id"),
    T.WATCH_TOPIC_UPDATE: ("watchers", "watchTopicUpdate", "watcher_id"),
}


class Taker:
    """What a connection tells a session; each kind of session overrides what it cares for."""

    __slots__ = ()

    def delivered(self, message: api.CommandMessage, data: bytes) -> None: ...
    def received(self, receipt: api.CommandSendReceipt) -> None: ...
    def not_sent(self, error: api.CommandSendError) -> None: ...
    def take_command(self, command: api.BaseCommand) -> None:
        """Take a command that answers no request."""
    def taken(self) -> None:
        """Go on after all frames that came together."""
    def lost(self, why: str) -> None:
        """Take note that the connection has ended."""
    def link_writable(self) -> None:
        """Take note that the worker takes what is written again, or does not any more."""


class WorkerLink(FramedConnection):
    """One connection to a worker; `connect` returns it after the handshake."""

    __slots__ = ("_lease", "_own", "_takers", "_touched", "is_paused", "is_writable", "watchers")

    GONE = "the worker closed the connection"

    def __init__(self, own: "set[WorkerLink] | None", lease: Lease) -> None:
        """Begin a connection, of which nothing is taken while the lease has lapsed.

        own: all connections that one session has alone, of which this becomes one; None: sessions share this one.
        """
        super().__init__()
        self._own, self._lease = own, lease
        self._takers: set[Taker] = set()
        self._touched: set[Taker] = set()              # those that have got something of what came together
        self.watchers: dict[int, Taker] = {}           # by number, whose each is
        self.is_writable, self.is_paused = True, False
        self.is_heard = True                           # the peer is a worker of this broker

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._own is not None:
            self._own.add(self)

    def data_received(self, data: bytes) -> None:
        self._lease.keep()
        super().data_received(data)

    def taken(self) -> None:
        # Once for all frames that came together, so that each client gets its texts by one write.
        touched, self._touched = self._touched, set()
        for taker in touched & self._takers:
            taker.taken()

    def take_command(self, command: api.BaseCommand, entry: bytes) -> None:
        kind = command.type
        if not self.is_open:
            return
        if kind == T.MESSAGE:
            if taker := self._for(self.consumers, command.message.consumer_id):
                taker.delivered(command.message, entry)
        elif kind == T.SEND_RECEIPT:
            if taker := self._for(self.producers, command.send_receipt.producer_id):
                taker.received(command.send_receipt)
        elif kind == T.SEND_ERROR:
            if taker := self._for(self.producers, command.send_error.producer_id):
                taker.not_sent(command.send_error)
        elif kind in _TOLD:
            owners, field, number = _TOLD[kind]
            if taker := self._for(getattr(self, owners), getattr(getattr(command, field), number)):
                taker.take_command(command)

    def _for(self, owners: dict[int, Taker], number: int) -> Taker | None:
        """Return the session of a producer, consumer or watcher, which is told when all that came is read."""
        taker = owners.get(number)
        if taker is not None:
            self._touched.add(taker)
        return taker

    def pause_writing(self) -> None:
        self._can_write(is_writable=False)

    def resume_writing(self) -> None:
        self._can_write(is_writable=True)

    def _can_write(self, *, is_writable: bool) -> None:
        self.is_writable = is_writable
        for taker in list(self._takers):
            taker.link_writable()

    def ended(self, why: str) -> None:
        if self._own is not None:
            self._own.discard(self)
        for taker in list(self._takers):
            taker.lost(why)

    def refusal(self, code: int, text: str) -> str:
        return text

    # -- calls of the session

    def add(self, taker: Taker) -> None:
        """Let a session use the connection."""
        self._takers.add(taker)

    @property
    def is_own(self) -> bool:
        """Whether one session has the connection alone."""
        return self._own is not None

    @property
    def users(self) -> int:
        return len(self._takers)

    def release(self, taker: Taker) -> None:
        """Close what a session has here, and the connection if nobody else uses it.  The session is told nothing more.
        """
        for request in self._closing(taker):
            request.request_id = self.next_id()
            self.send(request)
        self._forget(taker)

    async def leave(self, taker: Taker) -> None:
        """Close what a session has here, as `release` does, and wait for the answers."""
        self._takers.discard(taker)
        try:
            await asyncio.gather(*(self.ask(request) for request in self._closing(taker)), return_exceptions=True)
        finally:
            self._forget(taker)

    def _forget(self, taker: Taker) -> None:
        self._takers.discard(taker)
        if not self._takers:
            self.finish("no session uses the connection")

    def _closing(self, taker: Taker) -> list[Any]:
        """Return the requests that close all that a session has here, and forget it."""
        closing: list[Any] = []
        for owners, close in ((self.producers, lambda number: api.CommandCloseProducer(producer_id=number)),
                              (self.consumers, lambda number: api.CommandCloseConsumer(consumer_id=number)),
                              (self.watchers, lambda number: api.CommandWatchTopicListClose(watcher_id=number))):
            for number in [number for number, owner in owners.items() if owner is taker]:
                del owners[number]
                closing.append(close(number))
        return closing

    def pause(self) -> None:
        """Stop reading from the worker, which then delivers no more than the socket holds."""
        if not self.is_paused and self.is_open:
            self.is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused and self.is_open:
            self.is_paused = False
            self.transport.resume_reading()


async def connect(clients: Path, identity: Identity, own: set[WorkerLink] | None, lease: Lease) -> WorkerLink:
    """Return a connection to one of the workers, on behalf of an identity; see WorkerLink for `own` and `lease`.

    Raises OSError, ClientError.
    """
    _, link = await unix_sockets.open_connection(f"{unix_sockets.UNIX}{clients}", lambda: WorkerLink(own, lease))
    request = greeting(data=identity.proxy.encode(), name=_VERSION)
    request.original_principal, request.original_auth_method = identity.role, identity.method
    if identity.groups:
        request.original_auth_data = json.dumps(identity.groups)
    try:
        await link.greet(request)
    except BaseException:
        link.finish("the handshake failed")
        raise
    return link


class WorkerLinks:
    """The connections of a process to the workers."""

    def __init__(self, clients: Path, lease: Lease) -> None:
        self._clients, self._lease = clients, lease
        self._shared: dict[tuple[object, ...], list[WorkerLink]] = {}      # by role, method, proxy and groups
        self._own: set[WorkerLink] = set()
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<WorkerLinks {len(self._own)} own, {sum(map(len, self._shared.values()))} shared>"

    async def get(self, taker: Taker, identity: Identity, *, is_own: bool) -> WorkerLink:
        """Return a connection for a session.  is_own: it has to be the session's own.  Raises OSError, ClientError."""
        if is_own or len(self._own) < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _OWN_PART:
            link = await connect(self._clients, identity, self._own, self._lease)
            link.add(taker)
            return link
        async with self._opening:
            who = identity.role, identity.method, identity.proxy, identity.groups
            links = self._shared[who] = [link for link in self._shared.get(who, ()) if link.is_open]
            link = next((link for link in links if link.users < _USERS_MAX), None) \
                or await connect(self._clients, identity, None, self._lease)
            if link not in links:
                links.append(link)
            link.add(taker)
            return link
