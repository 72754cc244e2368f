"""A connection of the load generator: a socket with the handshake of a client, an inbox and an outbox; no threads."""
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.storage.runtime import unix_sockets
from geminga.supervisor.load import wire

ANSWER_MAX_S = 60.0         # a broker silent for so long while something is due has failed
INBOX_SIZE = 1 << 20        # bytes; a larger frame makes the inbox of its connection larger
FRAME_MAX = 256 << 20       # bytes; no broker can be configured to take more
CONNECT_S = 10.0
CLOCK = time.monotonic      # one clock for all processes of a host


class BrokerError(Exception):
    """The broker refused, broke the connection or fell silent; the text is for the user."""


class RequestRefused(BrokerError):
    """The broker answered a request with ERROR."""


def wait(links: Iterable["Link"], timeout_s: float) -> int:
    """Wait until something comes on one of the links, or can be sent where something waits to be.  Return the events
    of all, as bits of select.poll.
    """
    poll = select.poll()      # select.select takes no descriptor above 1,023
    for link in links:
        poll.register(link.socket, select.POLLIN | (select.POLLOUT if link.outbox else 0))
    ready = 0
    for _, events in poll.poll(timeout_s * 1_000):
        ready |= events
    return ready


class Link:
    """A connection to a broker."""

    def __init__(self, host: str, port: int, hello: bytes, tls: ssl.SSLContext | None = None):
        """Open a connection, and make the handshake with `hello`, the frame of a CONNECT.  Raises BrokerError.

        host: a name or address, or unix:PATH, which has no port.
        """
        self.requests = 0
        self.inbox = bytearray(INBOX_SIZE)
        self.data = np.frombuffer(self.inbox, np.uint8)
        self.filled = self.taken = 0
        self.outbox: deque[memoryview] = deque()
        is_inside = host.startswith(unix_sockets.UNIX)
        try:
            if is_inside:
                self.socket = unix_sockets.connect(Path(host.removeprefix(unix_sockets.UNIX)), CONNECT_S)
            else:
                self.socket = socket.create_connection((host, port), timeout=CONNECT_S)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        except OSError as error:
            address = host if is_inside else f"{host}:{port}"
            raise BrokerError(f"cannot connect to {address}: {error.strerror or error}") from None
        self.socket.setblocking(False)
        self.ask("CONNECT", hello, wire.CONNECTED)

    def __repr__(self) -> str:
        return f"<Link received={self.filled - self.taken} unsent={len(self.outbox)}>"

    def request_id(self) -> int:
        self.requests += 1
        return self.requests

    def ask(self, what: str, request: bytes, expected: int) -> dict[int, Any]:
        """Send a request and return the fields of its answer.

        Frames that come before the answer are treated as by `meet`, so messages among them are dropped.
        """
        self.put(request)
        give_up = CLOCK() + ANSWER_MAX_S
        while CLOCK() < give_up:
            for start in self.receive(1.0):
                kind, fields = wire.command_of(self.inbox, int(start))
                if kind == expected:
                    return fields
                self.meet(int(start), what)
        raise BrokerError(f"{what}: no answer in {ANSWER_MAX_S:.0f} s")

    def meet(self, start: int, what: str) -> None:
        """Treat a frame that may come at any time: answer a PING, raise a refusal, ignore the rest."""
        kind, fields = wire.command_of(self.inbox, start)
        if kind == wire.PING:
            self.put(wire.pong())
        elif kind == wire.ERROR:
            raise RequestRefused(f"{what}: {reason_of(fields.get(3, b''))}")
        elif kind == wire.SEND_ERROR:
            raise BrokerError(f"{what}: {reason_of(fields.get(4, b''))}")
        elif kind in (wire.CLOSE_PRODUCER, wire.CLOSE_CONSUMER):
            ended = "producer" if kind == wire.CLOSE_PRODUCER else "consumer"
            raise BrokerError(f"{what}: the broker closed the {ended}")

    def put(self, data: bytes) -> None:
        self.outbox.append(memoryview(data))
        self.flush()

    def is_calm(self) -> bool:
        """Return whether a nap is harmless: nothing waits to be written, and little came at the last look."""
        return not self.outbox and self.filled < len(self.inbox) // 2

    def flush(self) -> None:
        while self.outbox:
            try:
                sent = self.socket.send(self.outbox[0])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                raise BrokerError(f"the connection broke: {error.strerror}") from None
            if sent == len(self.outbox[0]):
                self.outbox.popleft()
            else:
                self.outbox[0] = self.outbox[0][sent:]

    def is_pending(self) -> bool:
        """Return whether TLS holds received bytes, which select does not see."""
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def receive(self, timeout_s: float) -> NDArray[np.int64]:
        """Return where whole frames that came within the timeout begin in `data`; they stay there until the next call.
        """
        self.inbox[: self.filled - self.taken] = self.inbox[self.taken : self.filled]
        self.filled -= self.taken
        self.taken = 0
        is_pending = self.is_pending()
        events = wait([self], 0 if is_pending else timeout_s)
        if events & select.POLLOUT:
            self.flush()
        if not events & ~select.POLLOUT and not is_pending:
            return np.zeros(0, np.int64)
        try:
            self._read()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            raise BrokerError(f"the connection broke: {error.strerror}") from None
        starts, self.taken = wire.frame_starts(self.data, self.filled)
        return starts

    def _read(self) -> None:
        """Read once; of TLS, whose records are small, all that fits."""
        while True:
            if self.filled == len(self.inbox):
                self._enlarge()
            count = self.socket.recv_into(memoryview(self.inbox)[self.filled :])
            if count == 0:
                raise BrokerError("the broker closed the connection")
            self.filled += count
            if not isinstance(self.socket, ssl.SSLSocket) or self.filled == len(self.inbox):
                return

    def _enlarge(self) -> None:
        """Double the inbox for a frame that does not fit.  Raises BrokerError."""
        if len(self.inbox) >= FRAME_MAX:
            raise BrokerError("a frame is larger than any message may be")
        self.inbox = self.inbox + bytearray(len(self.inbox))
        self.data = np.frombuffer(self.inbox, np.uint8)

    def close(self) -> None:
        self.socket.close()


def reason_of(text: bytes) -> str:
    """Return the first line of a broker's reason."""
    return text.decode(errors="replace").splitlines()[0] if text else "no reason given"
