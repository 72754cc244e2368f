"""The way to one owner: what a pass has for it, put together into one envelope."""
import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import zmq
from numpy.typing import NDArray

from geminga.proto import envelope
from geminga.proto.sends import SEND
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.control import Control
from geminga.storage.runtime.routing import socket_path, worker_identity
from geminga.workers.identity.options import Unusable


class Follower(Protocol):
    """Who has links to owners."""

    def owner_up(self, index: int, serial: int) -> None: ...
    def owner_gone(self, index: int) -> None: ...


def follow(control: Control, follower: Follower, configure: Callable[[str], None],
           drain: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Event:
    """Have it told of owners as they come and go; the event is set when the supervisor says stop, or is gone.

    configure: takes options that are to hold from now on.  Raises Unusable.  drain: is done when nobody can publish any more.
    """
    stopping = asyncio.Event()
    draining: list[asyncio.Task] = []

    async def drained() -> None:
        await drain()
        control.send(drained=True)

    def told() -> None:
        for message in control.receive():
            if "owner" in message:
                follower.owner_up(*message["owner"])
            elif "owner_gone" in message:
                follower.owner_gone(message["owner_gone"])
            elif "options" in message:
                try:
                    configure(message["options"])
                    control.send(configured="")
                except Unusable as error:
                    control.send(configured=str(error))
            elif "drain" in message:
                draining.append(asyncio.create_task(drained()))
            elif "stop" in message:
                stopping.set()
        if not control.is_open:
            stopping.set()

    asyncio.get_running_loop().add_reader(control.fileno(), told)
    return stopping


class OwnerLink:
    """A DEALER to one owner process.  Sections are gathered in order and leave with `flush`."""

    def __init__(self, context: zmq.Context, run_dir: Path, owner_serial: int, worker_serial: int):
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, worker_identity(worker_serial))
        self.socket.setsockopt(zmq.SNDHWM, 0)      # bounded by in_flight, see Worker
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(socket_path(run_dir, owner_serial))
        self.gathered = 0                          # bytes of entries and acknowledgements in the next envelope
        self.sent = 0                              # bytes of entries and what commands count for, in all so far
        self.taken = 0                             # of them, taken by the owner
        self._handed: deque[tuple[int, float]] = deque()      # (sent, when) of envelopes with entries that it has not taken
        self.is_unheard = False                    # since something was sent, nobody has looked for what came
        self._sections: list[tuple[int, NDArray | bytes, bytes]] = []
        self._sends: list[bytes] = []              # rows one by one, and their entries
        self._entries: list[bytes] = []
        self._entries_size = 0
        self._acks: list[tuple] = []
        self._ack_words: list[bytes] = []
        self._flows: list[tuple] = []
        self._commands: list[tuple] = []
        self._command_data: list[bytes] = []

    @property
    def in_flight(self) -> int:
        return self.sent - self.taken

    @property
    def is_busy(self) -> bool:
        """Whether there is something to send, or to look for."""
        return bool(self._sections or self._sends or self._acks or self._flows or self._commands) or self.is_unheard

    def sends(self, rows: NDArray, entries: bytes) -> None:
        """Many SENDs: rows (n,) SEND_ROW, filled in."""
        self._close_commands()
        self._close_sends()
        self._sections.append((envelope.SENDS, rows, entries))
        self._count(len(entries))

    def send(self, producer: int, connection: int, row: tuple, entry: bytes) -> None:
        """One SEND, its row as it was read."""
        self._close_commands()
        self._sends.append(SEND.pack(producer, connection, *row[2:8], self._entries_size, *row[9:]))
        self._entries.append(entry)
        self._entries_size += len(entry)
        self._count(len(entry))

    def _count(self, size: int) -> None:
        self.gathered += size
        self.sent += size

    def acks(self, rows: list[tuple], words: list[bytes]) -> None:
        """ACK_ROWs, and the words of those that are about parts of batches."""
        self._close_commands()
        self._acks += rows
        self._ack_words += words
        self.gathered += len(rows) * envelope.ACK_ROW.itemsize + sum(map(len, words))

    def many_acks(self, rows: NDArray) -> None:
        """ACK_ROWs (n,), filled in, none of them about part of a batch."""
        self._close_commands()
        self._sections.append((envelope.ACKS, rows, b""))
        self.gathered += rows.nbytes

    def flow(self, consumer: int, permits: int) -> None:
        self._close_commands()
        self._flows.append((consumer, permits))

    def command(self, connection: int, protocol_version: int, data: bytes, kind: int = envelope.COMMAND) -> None:
        self._close_data()
        self._commands.append((connection, kind, protocol_version, len(data), 0))
        self._command_data.append(data)
        self.sent += envelope.COMMAND_COST + len(data)

    def question(self, number: int, data: bytes) -> None:
        """Of administration; has a link of its own, where order does not matter."""
        self._sections.append((envelope.QUESTIONS, envelope.pack(envelope.QUESTIONS, [(number, len(data))]), data))

    def _close_sends(self) -> None:
        if self._sends:
            self._sections.append((envelope.SENDS, b"".join(self._sends), b"".join(self._entries)))
            self._sends, self._entries, self._entries_size = [], [], 0

    def _close_data(self) -> None:
        self._close_sends()
        if self._acks:
            self._sections.append((envelope.ACKS, envelope.pack(envelope.ACKS, self._acks), b"".join(self._ack_words)))
            self._acks, self._ack_words = [], []
        if self._flows:
            self._sections.append((envelope.FLOWS, envelope.pack(envelope.FLOWS, self._flows), b""))
            self._flows = []

    def _close_commands(self) -> None:
        if self._commands:
            self._sections.append((envelope.COMMANDS, envelope.pack(envelope.COMMANDS, self._commands), b"".join(self._command_data)))
            self._commands, self._command_data = [], []

    def flush(self) -> None:
        """Everything gathered is on its way."""
        self._close_data()
        self._close_commands()
        if self._sections:
            if self.sent > (self._handed[-1][0] if self._handed else self.taken):
                self._handed.append((self.sent, time.perf_counter()))
            zmq_frames.send(self.socket, envelope.seal(self._sections))
            self._sections, self.gathered, self.is_unheard = [], 0, True

    def seconds_taken(self) -> list[float]:
        """How long it took the owner to take each envelope with entries that it has taken since this was last asked."""
        found, now = [], time.perf_counter()
        while self._handed and self._handed[0][0] <= self.taken:
            found.append(now - self._handed.popleft()[1])
        return found

    def close(self) -> None:
        self.socket.close()
