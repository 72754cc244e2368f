"""One connection to a broker, and what all processes of a load share.

    Load      what is put on a broker
    Board     a few numbers in shared memory: how far each process is, and when to stop
    Link      a socket with the handshake of a real client, an inbox and an outbox; no threads
"""

import multiprocessing as mp
import select
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import wire
from numpy.typing import NDArray

ANSWER_MAX_S = 60.0         # a broker silent for so long while something is due has failed
INBOX_SIZE = 1 << 20
CLOCK = time.monotonic      # one clock for all processes of a host


class BrokerError(Exception):
    """The broker refused, broke the connection or fell silent; the text is for the user."""


class Refused(BrokerError):
    """The broker answered a request with ERROR."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is put on a broker. Every process gets all of it."""

    host: str
    port: int
    topics: tuple[str, ...]
    size_bytes: int = 100
    batch: int = 1              # messages in an entry
    rate: float = 0             # messages a second of one connection; 0 is as many as go
    connections: int = 1        # producers' connections, each with a producer on every topic
    consumers: int = 1          # consumers' connections; 0 publishes only
    kind: str = "exclusive"     # subscription type
    window: int = 5000          # entries of one connection without a receipt
    permits: int = 20_000       # messages, of each consumer
    # Messages that may be on their way before producers hold back; 0 for no bound.  Two windows, so that what goes in
    # and what comes out are in balance before the warm-up ends.  It does not steady a broker that has two speeds:
    # Pulsar 4.0 at full rate now and then runs at a quarter of its usual rate (seen with 10,000, 20,000 and 50,000
    # alike), so compare medians of several rounds.
    lead: int = 10_000
    limit: int = 0              # entries of one connection; 0 is until told to stop
    subscription: str = "bench"
    subscriptions: int = 1      # consumers take turns with them; what is published arrives so many times
    # Seconds (from, to): messages are delayed, by a random time in between from when they are sent or, with due_at,
    # from that time on.
    delay_s: tuple[float, float] | None = None
    due_at: float = 0           # seconds since 1970
    trusted: str = ""           # file with the authority of the broker's certificate: TLS is spoken


class Board:
    """Shared numbers; each has one writer, so they need no lock."""

    def __init__(self, load: Load):
        self.published = mp.RawArray("q", load.connections)  # messages with a receipt
        self.arrived = mp.RawArray("q", max(1, load.consumers))
        self.producers_stop = mp.RawValue("b", 0)
        self.consumers_stop = mp.RawValue("b", 0)


class Link:
    def __init__(self, load: Load):
        self.requests = 0
        self.inbox = bytearray(INBOX_SIZE)
        self.data = np.frombuffer(self.inbox, np.uint8)
        self.filled = self.taken = 0
        self.outbox: deque[memoryview] = deque()
        try:
            self.socket = socket.create_connection((load.host, load.port), timeout=10)
        except OSError as error:
            raise BrokerError(f"cannot connect to {load.host}:{load.port}: {error.strerror or error}") from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if load.trusted:
            self.socket = ssl.create_default_context(cafile=load.trusted).wrap_socket(
                self.socket, server_hostname=load.host
            )
        self.socket.setblocking(False)
        self.ask("CONNECT", wire.connect(), wire.CONNECTED)

    def request_id(self) -> int:
        self.requests += 1
        return self.requests

    def find(self, topic: str) -> None:
        """The two questions a client asks before it opens a producer or consumer."""
        found = self.ask(f"metadata of {topic}", wire.partitioned_metadata(topic, self.request_id()),
                         wire.PARTITIONED_METADATA_RESPONSE)
        if found.get(3) == 1:
            raise BrokerError(f"metadata of {topic}: {_told(found.get(5, b''))}")
        if found.get(1):
            raise BrokerError(f"{topic} has {found[1]} partitions: only topics without are measured")
        found = self.ask(f"lookup of {topic}", wire.lookup(topic, self.request_id()), wire.LOOKUP_RESPONSE)
        if found.get(3) != 1:
            raise BrokerError(f"lookup of {topic}: {_told(found.get(7, b''))} {_told(found.get(1, b''))}".rstrip())

    def ask(self, what: str, request: bytes, expected: int) -> dict:
        """The fields of the answer; other frames that come before it are taken as `meet` takes them, messages dropped.
        """
        self.put(request)
        give_up = CLOCK() + ANSWER_MAX_S
        while CLOCK() < give_up:
            for start in self.receive(1.0):
                kind, found = wire.command_of(self.inbox, int(start))
                if kind == expected:
                    return found
                self.meet(int(start), what)
        raise BrokerError(f"{what}: no answer in {ANSWER_MAX_S:.0f} s")

    def meet(self, start: int, what: str) -> None:
        """Whatever may come at any time: a PING is answered, a refusal raised, news ignored."""
        kind, found = wire.command_of(self.inbox, start)
        if kind == wire.PING:
            self.put(wire.pong())
        elif kind == wire.ERROR:
            raise Refused(f"{what}: ERROR {found.get(2)}: {_told(found.get(3, b''))}")
        elif kind == wire.SEND_ERROR:
            raise BrokerError(f"{what}: SEND_ERROR {found.get(3)}: {_told(found.get(4, b''))}")
        elif kind in (wire.CLOSE_PRODUCER, wire.CLOSE_CONSUMER):
            raise BrokerError(f"{what}: the broker sent {wire.NAMES[kind]}")

    def put(self, data: bytes) -> None:
        self.outbox.append(memoryview(data))
        self.flush()

    def is_calm(self) -> bool:
        """Nothing is waiting to be written and the last look took far less than there is room for: a nap is harmless.
        """
        return not self.outbox and self.filled < INBOX_SIZE // 2

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

    def receive(self, timeout_s: float) -> NDArray[np.int64]:
        """Starts of the whole frames that came within the timeout, in `data`; they stand there until the next call."""
        self.inbox[: self.filled - self.taken] = self.inbox[self.taken : self.filled]
        self.filled -= self.taken
        self.taken = 0
        # which select does not see
        is_pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0
        readable, writable, _ = select.select([self.socket], [self.socket] if self.outbox else [], [],
                                              0 if is_pending else timeout_s)
        if writable:
            self.flush()
        if not readable and not is_pending:
            return np.zeros(0, np.int64)
        try:
            self._read()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            raise BrokerError(f"the connection broke: {error.strerror}") from None
        starts, self.taken = wire.frame_starts(self.data, self.filled)
        return starts

    def _read(self) -> None:
        """What there is; of TLS all that fits, for a record at a time comes out of it."""
        while True:
            count = self.socket.recv_into(memoryview(self.inbox)[self.filled :])
            if count == 0:
                raise BrokerError("the broker closed the connection" if self.filled < INBOX_SIZE
                                  else "a frame is larger than the inbox")
            self.filled += count
            if not isinstance(self.socket, ssl.SSLSocket) or self.filled == INBOX_SIZE:
                return


def _told(text: bytes) -> str:
    return text.decode(errors="replace").splitlines()[0] if text else "no reason given"
