"""A client of the workers, by the socket in the data folder, for one session or several of the same role.

The worker treats such a client as the role that the admin process has authenticated, and revokes its producers and
consumers with its rights.

Each session has a connection of its own, until these take a quarter of the descriptors that the process may open.
Later sessions share connections.  One of them gets its own before anything could make others wait: when it publishes,
as the worker does not read from a connection while one of its producers is throttled, and when its client reads too
slowly.
"""
import asyncio
import resource
from pathlib import Path
from typing import Any, Protocol, cast

from google.protobuf.message import Message

from geminga.proto import frames
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.lease import Lease
from geminga.supervisor.pulsar_client.client import NoBroker
from geminga.supervisor.pulsar_client.greetings import greeting, message_size_max
from geminga.supervisor.pulsar_client.requests import Requests
from geminga.workers.identity.authentication import Identity

T = api.BaseCommand.Type
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


class Taker(Protocol):
    """What an inner client tells a session."""

    def delivered(self, message: api.CommandMessage, data: bytes) -> None: ...
    def received(self, receipt: api.CommandSendReceipt) -> None: ...
    def not_sent(self, error: api.CommandSendError) -> None: ...
    def told(self, command: api.BaseCommand) -> None:
        """Take a command that answers no request."""
    def taken(self) -> None:
        """Go on after all frames that came together."""
    def lost(self, why: str) -> None:
        """The connection has ended, and `close` was not called."""
    def inner_writable(self, *, is_writable: bool) -> None: ...


class Inner(asyncio.Protocol):
    """One connection to a worker; `connect` returns it after the handshake."""

    __slots__ = ("_lease", "_own", "_requests", "_rest", "_takers", "_touched", "_transport", "consumers",
                 "is_open", "is_paused", "is_writable", "message_size_max", "producers", "watchers")

    def __init__(self, own: "set[Inner] | None", lease: Lease) -> None:
        """Begin a connection, of which nothing is taken while the lease has lapsed.

        own: all connections that one session has alone, of which this becomes one; None: sessions share this one.
        """
        self._own, self._lease = own, lease
        self._takers: set[Taker] = set()
        self._touched: set[Taker] = set()              # those that have got something of what came together
        # By number, whose each is.
        self.producers: dict[int, Taker] = {}
        self.consumers: dict[int, Taker] = {}
        self.watchers: dict[int, Taker] = {}
        self._transport: asyncio.Transport             # set by connection_made
        self._rest = bytearray()                       # received bytes that are no whole frame yet
        self._requests = Requests(self.send, NoBroker, lambda _, text: text)
        self.is_open = self.is_writable = True
        self.is_paused = False
        self.message_size_max = 0

    def __repr__(self) -> str:
        return f"<Inner open={self.is_open} {self._requests!r}>"

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._own is not None:
            self._own.add(self)

    def data_received(self, data: bytes) -> None:
        self._lease.keep()
        rest, at = self._rest, 0
        rest += data
        end = len(rest)
        while end - at >= frames.SIZES.size:
            total, size = frames.SIZES.unpack_from(rest, at)
            behind = at + 4 + total
            if behind > end:
                break
            command = api.BaseCommand.FromString(bytes(rest[at + 8:at + 8 + size]))
            self._take(command, bytes(rest[at + 8 + size:behind]) if command.type == T.MESSAGE else b"")
            at = behind
        del rest[:at]
        touched, self._touched = self._touched, set()
        for taker in touched & self._takers:
            taker.taken()

    def _take(self, command: api.BaseCommand, entry: bytes) -> None:
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
        elif kind == T.PING:
            self.send(api.CommandPong())
        elif self._requests.take(command):
            return
        elif kind in _TOLD:
            owners, field, number = _TOLD[kind]
            if taker := self._for(getattr(self, owners), getattr(getattr(command, field), number)):
                taker.told(command)

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
            taker.inner_writable(is_writable=is_writable)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._own is not None:
            self._own.discard(self)
        self._requests.end("the worker closed the connection")
        for taker in list(self._takers):
            taker.lost("the worker closed the connection")

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
        self._takers.discard(taker)
        if not self._takers:
            self.close()

    async def leave(self, taker: Taker) -> None:
        """Close what a session has here, as `release` does, and wait for the answers."""
        self._takers.discard(taker)
        try:
            await asyncio.gather(*(self.ask(request) for request in self._closing(taker)), return_exceptions=True)
        finally:
            if not self._takers:
                self.close()

    def _closing(self, taker: Taker) -> list[Any]:
        """Return the requests that close all that a session has here, and forget it."""
        closing: list[Any] = []
        for number in [number for number, owner in self.producers.items() if owner is taker]:
            del self.producers[number]
            closing.append(api.CommandCloseProducer(producer_id=number))
        for number in [number for number, owner in self.consumers.items() if owner is taker]:
            del self.consumers[number]
            closing.append(api.CommandCloseConsumer(consumer_id=number))
        for number in [number for number, owner in self.watchers.items() if owner is taker]:
            del self.watchers[number]
            closing.append(api.CommandWatchTopicListClose(watcher_id=number))
        return closing

    def close(self) -> None:
        self.is_open = False
        self._transport.close()

    def pause(self) -> None:
        """Stop reading from the worker, which then delivers no more than the socket holds."""
        if not self.is_paused and self.is_open:
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused and self.is_open:
            self.is_paused = False
            self._transport.resume_reading()

    def send(self, message: Message) -> None:
        """Send the command with that message, such as FLOW for a CommandFlow."""
        if self.is_open:
            self._transport.write(frames.frame(frames.command_of(message)))

    def write(self, pieces: list[bytes]) -> None:
        """Write whole frames."""
        if self.is_open:
            self._transport.write(b"".join(pieces))

    def next_id(self) -> int:
        """Return a new number for a request, a producer, a consumer or a watcher."""
        return self._requests.next_id()

    async def ask(self, request: Any) -> Any:
        """Send a request, to which a number is given, and return the message inside its answer.  Raises ClientError."""
        if not self.is_open:
            raise NoBroker("the worker closed the connection")
        return await self._requests.ask(request)

    async def greet(self, identity: Identity) -> None:
        """Send CONNECT for this identity, and wait for CONNECTED.  Raises ClientError."""
        request = greeting(data=identity.proxy.encode(), name=_VERSION)
        request.original_principal, request.original_auth_method = identity.role, identity.method
        self.message_size_max = message_size_max(await self._requests.greet(request))


async def connect(clients: Path, identity: Identity, own: set[Inner] | None, lease: Lease) -> Inner:
    """Return a connection to one of the workers, on behalf of an identity; see Inner for `own` and `lease`.

    Raises OSError, ClientError.
    """
    _, inner = await unix_sockets.open_connection(f"{unix_sockets.UNIX}{clients}", lambda: Inner(own, lease))
    try:
        await inner.greet(identity)
    except BaseException:
        inner.close()
        raise
    return inner


class Links:
    """The connections of a process to the workers."""

    def __init__(self, clients: Path, lease: Lease) -> None:
        self._clients, self._lease = clients, lease
        self._shared: dict[tuple[str, str, str], list[Inner]] = {}      # by role, method and proxy
        self._own: set[Inner] = set()
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Links {len(self._own)} own, {sum(map(len, self._shared.values()))} shared>"

    async def get(self, taker: Taker, identity: Identity, *, is_own: bool) -> Inner:
        """Return a connection for a session.  is_own: it has to be the session's own.  Raises OSError, ClientError."""
        if is_own or len(self._own) < resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _OWN_PART:
            inner = await connect(self._clients, identity, self._own, self._lease)
            inner.add(taker)
            return inner
        async with self._opening:
            who = identity.role, identity.method, identity.proxy
            links = self._shared[who] = [link for link in self._shared.get(who, ()) if link.is_open]
            inner = next((link for link in links if link.users < _USERS_MAX), None) \
                or await connect(self._clients, identity, None, self._lease)
            if inner not in links:
                links.append(inner)
            inner.add(taker)
            return inner
