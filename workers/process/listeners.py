"""Sockets that a process accepts clients from.

The supervisor binds them, so that connections wait in them while the process is being started again.
"""
import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from geminga.storage.runtime import unix_sockets
from geminga.workers.identity.certificates import Tls
from geminga.workers.ports.gate import Gate, Make
from geminga.workers.ports.proxy_header import ClientAddress
from geminga.workers.ports.within_tls import BehindHeader, FirstBytes


class Server(Protocol):
    """An acceptor of the connections of one listening socket."""

    def close(self) -> None: ...


_SECURE = {"pulsar": "pulsar+ssl", "http": "https"}
_BACKLOG = 1_024          # connections that are not accepted yet; the kernel makes it net.core.somaxconn at most


class Listeners:
    """The sockets of one process that the supervisor has bound, and their servers."""

    def __init__(self, plain: socket.socket | None, tls: socket.socket | None, certificates: Tls | None,
                 inside: socket.socket):
        """Begin without listening.

        plain, tls: None where the broker does not listen.  certificates: of `tls`.  inside: Unix socket, for processes
        of the broker and commands on its host.
        """
        self.certificates = certificates
        self._plain, self._tls, self._inside = plain, tls, inside
        self._servers: list[Server] = []
        self._inside_server: Server | None = None
        self._is_refusing = False

    def __repr__(self) -> str:
        return f"<Listeners {len(self._servers)} servers, is_refusing={self._is_refusing}>"

    async def serve(self, make: Make, ports: Mapping[str, int], scheme: str,
                    inside: Callable[[], asyncio.BaseProtocol], *, has_proxies: bool = False) -> None:
        """Accept connections from now on.

        make, inside: functions that make a connection's protocol object.  ports: scheme -> port of the broker.
        scheme: "pulsar" or "http", of the listener without TLS.  has_proxies: clients come through proxies, which
        announce their addresses.
        """
        loop = asyncio.get_running_loop()
        for listener in filter(None, (self._plain, self._tls)):
            # Connections inherit it; a later start needs that.  The supervisor has cleared it (listening.py).
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _forget_shutdown(listener)
            listener.listen(_BACKLOG)
        if self._plain is not None and scheme == "pulsar" and not has_proxies:
            # The one listener with many short connections; the stream itself tells other protocols (stream.py).
            self._servers.append(await loop.create_server(partial(make, None), sock=self._plain, backlog=_BACKLOG))
        elif self._plain is not None:
            self._servers.append(Gate(self._plain, scheme, ports, make, has_proxies=has_proxies))
        if self._tls is not None:
            assert self.certificates is not None
            first = make
            if scheme == "http":
                first = partial(_looked_at, make, ports)
            elif has_proxies:
                first = partial(BehindHeader, make)
            accepted = partial(_accepted, self.certificates, first)
            self._servers.append(
                Gate(self._tls, _SECURE[scheme], ports, accepted, self.certificates, has_proxies=has_proxies))
        self._inside_server = await unix_sockets.serve(self._inside, inside)
        for server in self._servers:
            if isinstance(server, Gate):
                server.start()
        if self._is_refusing:
            self.refuse()

    def refuse(self) -> None:
        """Refuse connections from the network from now on, also in other processes that have the sockets.

        The supervisor has done so already.  A process that has begun to listen meanwhile has undone that.
        """
        self._is_refusing = True
        for listener in filter(None, (self._plain, self._tls)):
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for server in self._servers:
            server.close()

    def close(self) -> None:
        """Accept no connections any more; those that wait are left to the next process."""
        for server in (*self._servers, *filter(None, [self._inside_server])):
            server.close()


def _forget_shutdown(listener: socket.socket) -> None:
    """Clear the mark that Linux sets on a bound socket which is shut down while it does not listen.

    Connections accepted from a marked socket are shut down from their beginning.  A shutdown of the socket while it
    listens clears the mark.
    """
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.listen(_BACKLOG)
        with suppress(OSError):      # the supervisor has just closed the port, and ends this process
            listener.shutdown(socket.SHUT_RDWR)


def _looked_at(make: Make, ports: Mapping[str, int], client: ClientAddress | None) -> asyncio.BaseProtocol:
    made = make(client)
    assert isinstance(made, asyncio.Protocol)
    return FirstBytes(made, ports, None if client is None else client[0])


def _accepted(certificates: Tls, make: Make, client: ClientAddress | None) -> asyncio.BaseProtocol:
    certificates.count("tls_connections")
    return make(client)
