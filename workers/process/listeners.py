"""Sockets that a process accepts clients from.

The supervisor makes them, so that connections wait in them while the process is being started again.
"""
import asyncio
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from geminga.workers.identity.certificates import Tls


class Listeners(NamedTuple):
    """The listening sockets of one worker; None where the broker does not listen."""

    plain: socket.socket | None
    tls: socket.socket | None
    certificates: Tls | None = None            # of `tls`
    inside: socket.socket | None = None        # Unix socket for processes of the broker itself

    async def serve(self, protocol: Callable[[], asyncio.BaseProtocol],
                    inside: Callable[[], asyncio.BaseProtocol] | None = None) -> list[asyncio.AbstractServer]:
        """Accept connections from now on.  protocol, inside: functions that make a connection's protocol object."""
        loop = asyncio.get_running_loop()
        servers: list[asyncio.AbstractServer] = []
        if self.plain is not None:
            servers.append(await loop.create_server(protocol, sock=self.plain))
        if self.tls is not None:
            assert self.certificates is not None
            accepted = partial(_accepted, self.certificates, protocol)
            servers.append(await loop.create_server(accepted, sock=self.tls, **self.certificates.listening()))
        if self.inside is not None:
            assert inside is not None
            servers.append(await loop.create_unix_server(inside, sock=self.inside))
        return servers


def _accepted(certificates: Tls, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
    certificates.count("tls_connections")
    return protocol()


def inside_path(run_dir: Path) -> Path:
    """Return the path of the Unix socket for the broker's own processes; only the broker's user can reach it."""
    return run_dir / "inside"
