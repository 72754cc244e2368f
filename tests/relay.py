"""A port map, a NAT or a tunnel between a client and a broker: it passes bytes on, under an address of its own."""
import selectors
import socket
import threading
from contextlib import suppress

from .harness import HANG_SECONDS

SOURCE = "127.0.0.77"      # address from which a broker on this host sees what comes through a relay


class Relay:
    """A listener on a free port that passes the bytes of each connection on to another port of this host."""

    def __init__(self, port: int, first: bytes = b"") -> None:
        """port: where the bytes go.  first: bytes that each connection to it begins with, such as a PROXY header."""
        self._target, self._first = port, first
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._selector = selectors.DefaultSelector()
        self._ends, self._end = socket.socketpair()
        self._selector.register(self._ends, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_) -> None:
        self._end.close()
        self._thread.join(HANG_SECONDS)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._ends:
                    return self._close()
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._pass_on(key.fileobj, key.data)

    def _accept(self) -> None:
        near = self._listener.accept()[0]
        far = socket.create_connection(("127.0.0.1", self._target), source_address=(SOURCE, 0))
        far.sendall(self._first)
        self.connections += 1
        for one, other in ((near, far), (far, near)):
            self._selector.register(one, selectors.EVENT_READ, other)

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        data = b""
        with suppress(OSError):
            data = one.recv(1 << 16)
            other.sendall(self._changed(one, data))
        if not data:
            for end in (one, other):
                with suppress(KeyError, ValueError):      # both ends of a connection have ended at once
                    self._selector.unregister(end)
                end.close()

    def _changed(self, one: socket.socket, data: bytes) -> bytes:
        """Return the bytes to pass on instead of those that came from a socket."""
        return data

    def _close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()
