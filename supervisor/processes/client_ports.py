"""The ports of the binary protocol: when they accept clients, and when workers run.

    bound ──all owners have recovered──> open ──all owners fail to start again──> closed ──an owner serves──> open
                                         open ──a drain or a stop begins──> closed

A client with cluster failover only looks whether a port accepts connections.  So nobody is accepted while the host
cannot serve.  A worker or an owner that restarts closes nothing: connections queue meanwhile.
"""
import contextlib
import socket
from collections.abc import Mapping

from geminga.supervisor.processes.children import READY, STARTING, Child


class ClientPorts:
    """Bound sockets, on which workers listen while the ports are open."""

    def __init__(self, bound: Mapping[str, list[socket.socket]]):
        """Begin with the sockets of "network" and "tls": one for each worker, or none."""
        self._bound = bound
        self._have_owners_recovered = False      # all of them, once
        self.can_serve = False                   # workers run
        self.is_open = False

    def __repr__(self) -> str:
        return f"<ClientPorts {self.number('network')} {self.number('tls')} can_serve={self.can_serve} " \
               f"is_open={self.is_open}>"

    def number(self, name: str) -> int:
        """Return the number of a port, -1 if there is none."""
        return int(self._bound[name][0].getsockname()[1]) if self._bound[name] else -1

    def of_worker(self, index: int) -> tuple[socket.socket | None, socket.socket | None]:
        """Return the sockets without and with TLS that a worker which starts now listens on."""
        plain, tls = (self._bound[name] if self.is_open else [] for name in ("network", "tls"))
        return plain[index] if plain else None, tls[index] if tls else None

    def follow(self, children: list[Child], *, is_ending: bool) -> None:
        """Open or close the ports as owners demand, and end workers that nobody needs.

        is_ending: a drain or a stop has begun.
        """
        owners = [child for child in children if child.role == "owner"]
        workers = [child for child in children if child.role == "worker" and child.state in (STARTING, READY)]
        self._have_owners_recovered |= all(owner.state == READY for owner in owners)
        self.can_serve = self._have_owners_recovered and not all(owner.has_failed for owner in owners)
        was_open, self.is_open = self.is_open, self.can_serve and not is_ending
        if was_open and not self.is_open:
            self._close()
            for worker in workers:
                worker.control.send(refuse=True)
        for worker in () if self.can_serve or is_ending else workers:
            if not worker.leaves_for:
                worker.leaves_for = "ends until an owner serves again: all owners fail to start"
                worker.control.send(stop=True)

    def _close(self) -> None:
        """Stop listening at once, in all processes that have the sockets."""
        for listener in (listener for listeners in self._bound.values() for listener in listeners):
            with contextlib.suppress(OSError):      # its worker does not listen yet
                listener.shutdown(socket.SHUT_RDWR)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)      # listening.bind_shared says why
