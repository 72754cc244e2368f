"""Messages between owners: about transactions, TRANSACTION_ROWs of envelopes, and notices about segments.

From each owner one socket goes to every other owner.  Requests and answers of an owner leave over its own sockets, so
an owner answers over another socket than the one that it was asked over.

Without a socket to an owner, requests to it are dropped, because they are repeated when it is back.  Answers wait: a
new owner may be asked by another before it is told where that one is.  Only as many wait as that one has asked for.
"""
from pathlib import Path

import numpy as np
import zmq

from geminga.proto import envelope
from geminga.proto.rows import Rows
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.routing import socket_path, worker_identity

_NOTICES_MAX = 1_000         # that wait for an owner; one that starts asks for what it has to know
_ANSWERS = envelope.ADDED, envelope.ENDED, envelope.REFUSED

# (what, subscription id, partition id, transaction, role), a TRANSACTION_ROW
Message = tuple[int, int, int, int, int]


def _sections(each: list[Message | bytes]) -> list[tuple[int, Rows | bytes, bytes]]:
    """Return messages and notices as sections of an envelope."""
    rows, notices = [one for one in each if not isinstance(one, bytes)], [one for one in each if isinstance(one, bytes)]
    sections: list[tuple[int, Rows | bytes, bytes]] = []
    if rows:
        sections.append((envelope.TRANSACTIONS, np.array(rows, envelope.TRANSACTION_ROW), b""))
    if notices:
        sizes = envelope.pack(envelope.NOTICES, [(len(one),) for one in notices])
        sections.append((envelope.NOTICES, sizes, b"".join(notices)))
    return sections


def _may_wait(one: Message | bytes, waiting: list[Message | bytes]) -> bool:
    return len(waiting) < _NOTICES_MAX if isinstance(one, bytes) else one[0] in _ANSWERS


class Peers:
    """The messages of one owner's pass: to itself, and to other owners."""

    def __init__(self, index: int, owners: int):
        self.index, self.owners = index, owners
        self._own: list[Message] = []
        self._others: dict[int, list[Message | bytes]] = {}      # by the owner's index
        self.own_notices: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Peers {self.index} of {self.owners} own={len(self._own)} others={len(self._others)}>"

    @property
    def has_own(self) -> bool:
        """Whether messages of this owner to itself are to be applied."""
        return bool(self._own)

    def send(self, owner_index: int, what: int, transaction: int, partition_id: int, subscription_id: int,
             role: int = 0) -> None:
        """Send a message at the end of the pass, when it is durable; to this owner itself in the same pass.

        what: envelope.ADD and its like.  role: of ADD, the hash of the role that began the transaction.
        """
        message = what, subscription_id, partition_id, transaction, role
        if owner_index == self.index:
            self._own.append(message)
        else:
            self._others.setdefault(owner_index, []).append(message)

    def tell(self, owner_index: int, notice: bytes) -> None:
        """Send a notice about segments, as `send` sends a message."""
        if owner_index == self.index:
            self.own_notices.append(notice)
        else:
            self._others.setdefault(owner_index, []).append(notice)

    def take_own(self) -> list[Message]:
        """Return the messages to this owner itself; none are left."""
        own, self._own = self._own, []
        return own

    def take_own_notices(self) -> list[bytes]:
        """Return the notices to this owner itself; none are left."""
        own, self.own_notices = self.own_notices, []
        return own

    def take_others(self) -> dict[int, list[Message | bytes]]:
        """Return the messages and notices to other owners, by their index; none are left."""
        others, self._others = self._others, {}
        return others


class Links:
    """Sockets to the other owners that serve now."""

    def __init__(self, context: zmq.Context[zmq_frames.Socket], run_dir: Path, serial: int):
        """Make no socket yet.  serial: of this owner's process."""
        self._context, self._run_dir, self._serial = context, run_dir, serial
        self._sockets: dict[int, zmq_frames.Socket] = {}      # by the owner's index
        self._waiting: dict[int, list[Message | bytes]] = {}          # likewise: until there is a socket
        self._serials: dict[int, int] = {}                    # likewise: of the process at the other end

    def __repr__(self) -> str:
        return f"<Links of {self._serial} to {sorted(self._sockets)}>"

    def connect(self, index: int, serial: int) -> None:
        """Make a socket to the owner with this index, whose process has this serial number, unless there is one."""
        if self._serials.get(index) == serial:
            return
        self.disconnect(index)
        self._serials[index] = serial
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, worker_identity(self._serial))
        socket.setsockopt(zmq.SNDHWM, 0)      # a transaction and a partition have one message under way at a time
        socket.setsockopt(zmq.LINGER, 1_000)
        socket.connect(socket_path(self._run_dir, serial))
        self._sockets[index] = socket
        self.send({index: self._waiting.pop(index, [])})

    def disconnect(self, index: int) -> None:
        """Close the socket to an owner whose process has ended."""
        self._serials.pop(index, None)
        if (socket := self._sockets.pop(index, None)) is not None:
            socket.close(0)

    def send(self, messages: dict[int, list[Message | bytes]]) -> None:
        """Send messages and notices, by index of the owner, one envelope to each."""
        for index, each in messages.items():
            if (socket := self._sockets.get(index)) is None:
                waiting = self._waiting.setdefault(index, [])
                waiting.extend(one for one in each if _may_wait(one, waiting))
            elif each:
                zmq_frames.send(socket, envelope.seal(_sections(each)))

    def close(self) -> None:
        """Close all sockets; messages on their way may still arrive."""
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()
