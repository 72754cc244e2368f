"""Sockets that a process accepts clients from: made by the supervisor, so that connections wait in them while the process is not there."""
import asyncio
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from geminga.workers.identity.certificates import Tls


class Listeners(NamedTuple):
    """None: nobody listens there."""

    plain: socket.socket | None
    tls: socket.socket | None
    certificates: Tls | None = None            # that the second is served with
    inside: socket.socket | None = None        # for processes of the broker itself

    async def serve(self, protocol: Callable[[], asyncio.BaseProtocol],
                    inside: Callable[[], asyncio.BaseProtocol] | None = None) -> list[asyncio.AbstractServer]:
        """Accept from now on, with a protocol for each connection."""
        loop, servers = asyncio.get_running_loop(), []
        if self.plain is not None:
            servers.append(await loop.create_server(protocol, sock=self.plain))
        if self.tls is not None:
            servers.append(await loop.create_server(partial(self._accepted, protocol), sock=self.tls, **self.certificates.listening()))
        if self.inside is not None:
            servers.append(await loop.create_unix_server(inside, sock=self.inside))
        return servers

    def _accepted(self, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        self.certificates.count("tls_connections")
        return protocol()


def inside_path(run_dir: Path) -> Path:
    """The Unix socket of `inside`: nobody but the broker's user can reach it."""
    return run_dir / "inside"
