"""A listening socket whose connections are looked at before a protocol object reads them.

    accepted -> PROXY header taken off -> first bytes, left in the socket -> TLS handshake, or not -> protocol object
                                                                         \\-> another protocol: answered and closed

A proxy may send its header within TLS instead (within_tls.py).  Ports that need no look have the loop's own servers:
Pulsar's protocol without TLS and without PROXY headers.
"""
import asyncio
import errno
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from geminga.workers.identity.certificates import Tls
from geminga.workers.ports import protocols, proxy_header
from geminga.workers.ports.proxy_header import ClientAddress

Make = Callable[[ClientAddress | None], asyncio.BaseProtocol]      # None: the connection's own address holds

_ACCEPTED_MAX = 128         # connections in a row, before others have their turn
_PAUSE_SECONDS = 1.0        # without accepting, where the process has no descriptor left
_SCARCE = errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM
_UNREAD_MAX = 1 << 16       # bytes read from a refused client: the kernel drops an answer where unread bytes are left


@dataclass(slots=True, eq=False)
class _Arrival:
    """A connection whose first bytes have to come."""

    socket: socket.socket
    host: str
    may_have_header: bool
    client: ClientAddress | None = None
    timer: asyncio.TimerHandle | None = None


class Gate:
    """Accepts the connections of one listening socket, and passes on those that speak its protocol."""

    def __init__(self, listener: socket.socket, scheme: str, ports: Mapping[str, int], make: Make,
                 tls: Tls | None = None, *, has_proxies: bool = False):
        """Make a gate; `start` opens it.

        scheme: the listener's, one of `ports`: scheme -> port.  make: returns a connection's protocol object.
        tls: certificates, None for a port without TLS.  has_proxies: PROXY headers are taken off.
        """
        self._listener, self._scheme, self._ports, self._make = listener, scheme, ports, make
        self._tls, self._has_proxies = tls, has_proxies
        self._loop = asyncio.get_running_loop()
        self._arrivals: set[_Arrival] = set()
        self._passing: set[asyncio.Task[None]] = set()      # TLS handshakes
        self._is_closed = False
        listener.setblocking(False)

    def __repr__(self) -> str:
        return f"<Gate {self._scheme} {len(self._arrivals)} arrivals, {len(self._passing)} handshakes>"

    def start(self) -> None:
        """Accept connections from now on."""
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no further connections, and end those that have not been passed on."""
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        for arrival in list(self._arrivals):
            self._drop(arrival)
        for task in self._passing:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_MAX):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _SCARCE:
                    continue      # the client has ended the connection already
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_SECONDS, self.start)
                return
            connection.setblocking(False)
            arrival = _Arrival(connection, str(address[0]), self._has_proxies)
            arrival.timer = self._loop.call_later(protocols.SILENT_SECONDS, self._drop, arrival)
            self._arrivals.add(arrival)
            self._wait_for(arrival, protocols.LEAST_BYTES)
            self._loop.add_reader(connection, self._look, arrival)

    def _wait_for(self, arrival: _Arrival, count: int) -> None:
        """Look again when the socket has `count` bytes, or when the client has ended its direction.

        Looking leaves bytes in the socket, so it would be called again and again without more of them.
        """
        arrival.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def _drop(self, arrival: _Arrival) -> None:
        self._forget(arrival)
        arrival.socket.close()

    def _forget(self, arrival: _Arrival) -> None:
        if arrival.timer is not None:
            arrival.timer.cancel()
        self._arrivals.discard(arrival)
        self._loop.remove_reader(arrival.socket)

    def _look(self, arrival: _Arrival) -> None:
        try:
            first = arrival.socket.recv(proxy_header.SIZE_MAX, socket.MSG_PEEK)
            if len(first) < protocols.LEAST_BYTES:      # the client has ended its direction
                return self._drop(arrival)
            if not arrival.may_have_header:
                return self._decide(arrival, first)
            header = proxy_header.parse(first)
            if header is None:
                return self._wait_for(arrival, len(first) + 1)
            arrival.may_have_header, arrival.client = False, header.client
            if header.client is not None:
                arrival.host = header.client[0]
            if not header.size:
                return self._decide(arrival, first)
            arrival.socket.recv(header.size)
            self._wait_for(arrival, protocols.LEAST_BYTES)      # called again at once where these are there already
        except (BlockingIOError, InterruptedError):
            return
        except proxy_header.Malformed as error:
            protocols.warn_of_header(error, arrival.host)
            self._drop(arrival)
        except OSError:
            self._drop(arrival)

    def _decide(self, arrival: _Arrival, first: bytes) -> None:
        if protocols.belongs(first, self._scheme):
            return self._pass_on(arrival)
        self._forget(arrival)
        if self._tls is not None:
            self._tls.count("tls_connections")
            self._tls.count("tls_handshakes_failed")
        answer = protocols.refusal(first, self._scheme, self._ports, arrival.host)
        with arrival.socket, suppress(OSError):
            arrival.socket.recv(_UNREAD_MAX)
            arrival.socket.send(answer)
            arrival.socket.shutdown(socket.SHUT_WR)

    def _pass_on(self, arrival: _Arrival) -> None:
        self._forget(arrival)
        self._wait_for(arrival, 1)
        task = self._loop.create_task(self._connect(arrival))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _connect(self, arrival: _Arrival) -> None:
        tls = {} if self._tls is None else self._tls.listening()
        with suppress(OSError):      # the TLS handshake has failed, or the client has left
            await self._loop.connect_accepted_socket(partial(self._make, arrival.client), arrival.socket, **tls)
