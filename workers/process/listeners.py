"""Sockets that a process accepts clients from.

The supervisor makes them, so that connections wait in them while the process is being started again.
"""
import asyncio
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from geminga.workers.identity.certificates import Tls
from geminga.workers.ports.gate import ClientAddress, Gate, Make
from geminga.workers.ports.within_tls import FirstBytes


class Server(Protocol):
    """An acceptor of the connections of one listening socket."""

    def close(self) -> None: ...


_SECURE = {"pulsar": "pulsar+ssl", "http": "https"}


class Listeners(NamedTuple):
    """The listening sockets of one process; None where the broker does not listen."""

    plain: socket.socket | None
    tls: socket.socket | None
    certificates: Tls | None = None            # of `tls`
    inside: socket.socket | None = None        # Unix socket, for processes of the broker and commands on its host

    async def serve(self, make: Make, ports: Mapping[str, int], scheme: str, *, has_proxies: bool = False,
                    inside: Callable[[], asyncio.BaseProtocol] | None = None) -> list[Server]:
        """Accept connections from now on.

        make, inside: functions that make a connection's protocol object.  ports: scheme -> port of the broker.
        scheme: "pulsar" or "http", of the listener without TLS.  has_proxies: clients come through proxies, which
        announce their addresses.
        """
        loop = asyncio.get_running_loop()
        servers: list[Server] = []
        if self.plain is not None and scheme == "pulsar" and not has_proxies:
            # The one listener with many short connections; the stream itself tells other protocols (stream.py).
            servers.append(await loop.create_server(partial(make, None), sock=self.plain))
        elif self.plain is not None:
            servers.append(Gate(self.plain, scheme, ports, make, has_proxies=has_proxies))
        if self.tls is not None:
            assert self.certificates is not None
            first = make if scheme == "pulsar" else partial(_looked_at, make, ports)
            accepted = partial(_accepted, self.certificates, first)
            servers.append(Gate(self.tls, _SECURE[scheme], ports, accepted, self.certificates, has_proxies=has_proxies))
        if self.inside is not None:
            assert inside is not None
            # The path by which the socket was bound is no longer valid (unix_sockets.listen).  The clean-up, a default
            # with Python 3.13, would meet another file under that path.
            listener = {"sock": self.inside, "cleanup_socket": False}
            servers.append(await loop.create_unix_server(inside, **listener))  # type: ignore[arg-type]
        for server in servers:
            if isinstance(server, Gate):
                server.start()
        return servers


def _looked_at(make: Make, ports: Mapping[str, int], client: ClientAddress | None) -> asyncio.BaseProtocol:
    made = make(client)
    assert isinstance(made, asyncio.Protocol)
    return FirstBytes(made, ports, None if client is None else client[0])


def _accepted(certificates: Tls, make: Make, client: ClientAddress | None) -> asyncio.BaseProtocol:
    certificates.count("tls_connections")
    return make(client)
