"""The way to one owner: what a pass has for it, put together into one envelope; and which owner has what."""
from functools import lru_cache
from pathlib import Path

import mmh3
import numpy as np
import zmq
from numpy.typing import NDArray

from geminga.proto import envelope
from geminga.storage.process import socket_path, worker_identity


@lru_cache(maxsize=65_536)
def owner_of(partition: str, owners: int) -> int:
    """Rendezvous hash: every worker knows the owner of a partition without asking, and few move when their number changes."""
    return max(range(owners), key=lambda owner: mmh3.hash(partition, owner, signed=False))


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
        self.sent = 0                              # bytes of entries in all so far
        self.taken = 0                             # of them, taken by the owner
        self.is_unheard = False                    # since something was sent, nobody has looked for what came
        self._sections: list[tuple[int, NDArray, bytes]] = []
        self._acks: list[tuple] = []
        self._flows: list[tuple] = []
        self._commands: list[tuple] = []
        self._command_data: list[bytes] = []

    @property
    def in_flight(self) -> int:
        return self.sent - self.taken

    @property
    def is_busy(self) -> bool:
        """Whether there is something to send, or to look for."""
        return bool(self._sections or self._acks or self._flows or self._commands) or self.is_unheard

    def sends(self, rows: NDArray, entries: bytes) -> None:
        self._close_commands()
        self._sections.append((envelope.SENDS, rows, entries))
        self.gathered += len(entries)
        self.sent += len(entries)

    def acks(self, rows: list[tuple]) -> None:
        self._close_commands()
        self._acks += rows
        self.gathered += len(rows) * envelope.ACK_ROW.itemsize

    def flow(self, consumer: int, permits: int) -> None:
        self._close_commands()
        self._flows.append((consumer, permits))

    def command(self, connection: int, protocol_version: int, data: bytes, kind: int = envelope.COMMAND) -> None:
        self._close_data()
        self._commands.append((connection, kind, protocol_version, len(data), 0))
        self._command_data.append(data)

    def _close_data(self) -> None:
        if self._acks:
            self._sections.append((envelope.ACKS, np.array(self._acks, envelope.ACK_ROW), b""))
            self._acks = []
        if self._flows:
            self._sections.append((envelope.FLOWS, np.array(self._flows, envelope.FLOW_ROW), b""))
            self._flows = []

    def _close_commands(self) -> None:
        if self._commands:
            self._sections.append((envelope.COMMANDS, np.array(self._commands, envelope.COMMAND_ROW), b"".join(self._command_data)))
            self._commands, self._command_data = [], []

    def flush(self) -> None:
        """Everything gathered is on its way."""
        self._close_data()
        self._close_commands()
        if self._sections:
            self.socket.send_multipart(envelope.seal(self._sections), copy=False)
            self._sections, self.gathered, self.is_unheard = [], 0, True

    def close(self) -> None:
        self.socket.close()
