"""Handovers: connections on their way from the admin process to a `geminga-web` process.

Both ends of the socket pair are made by the supervisor, which keeps them open: handovers wait in it while a process is
being started again, and whichever process is free takes the next one.
"""
import contextlib
import os
import socket
from typing import NamedTuple

from geminga.storage.runtime.control import packed, unpacked
from geminga.workers.identity.authentication import Identity

PRODUCER, CONSUMER, READER = "producer", "consumer", "reader"
_BYTES_MAX = 256 << 10       # of a handover, with its path and parameters


class Handover(NamedTuple):
    """A handshake that the admin process has read, authenticated and authorised."""

    kind: str                                  # PRODUCER, CONSUMER or READER
    topics: tuple[str, ...]                    # complete names; () for a pattern
    pattern: str                               # domain://tenant/namespace/expression, "" for topics
    subscription: str                          # of a consumer, else ""
    parameters: tuple[tuple[str, str], ...]    # of the address
    key: str                                   # Sec-WebSocket-Key
    identity: Identity
    address: str                               # of the client, for the log
    rest: bytes                                # that the client has sent behind the handshake


class Handovers(NamedTuple):
    """Both ends of the way; each process uses its own one."""

    outgoing: socket.socket                    # of the admin process
    incoming: socket.socket                    # of all `geminga-web` processes

    def unused_by(self, role: str) -> list[socket.socket]:
        """Return the ends that a child process with this role has to close."""
        return [end for end, user in ((self.outgoing, "admin"), (self.incoming, "web")) if role != user]

    def send(self, handover: Handover, fd: int) -> None:
        """Hand a connection over.  Raises OSError if too many wait, or the handover is too large."""
        socket.send_fds(self.outgoing, [bytes.fromhex(packed(handover))], [fd])

    def receive(self) -> tuple[Handover, socket.socket] | None:
        """Take the next handover, None if there is none."""
        try:
            data, fds, _, _ = socket.recv_fds(self.incoming, _BYTES_MAX, 1)
        except BlockingIOError:
            return None
        if not data or not fds:
            for fd in fds:
                os.close(fd)
            return None
        return unpacked(data.hex()), socket.socket(fileno=fds[0])


def make_handovers() -> Handovers:
    """Return a new pair, which does not block."""
    outgoing, incoming = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (outgoing, incoming):
        end.setblocking(False)
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _BYTES_MAX)
    return Handovers(outgoing, incoming)
