"""Links from a worker to the owners.

A link gathers all that one turn of the worker's loop has for its owner, and sends it as one envelope.
"""
import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import zmq
from numpy.typing import NDArray

from geminga.proto import envelope
from geminga.proto.names import TopicName
from geminga.proto.sends import SEND
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.routing import owner_of, socket_path, worker_identity
from geminga.workers.options import WorkerOptions
from geminga.workers.owners.opening import OpeningQueue

_ENVELOPE_BYTES = 512 << 10      # of entries; an owner begins with them while more is read
_LITTLE_BYTES = 16 << 10         # of entries and acknowledgements, and ...
_LITTLE_COMMANDS = 256           # ... commands that wait for the answer to the envelope before
_ACK_SIZE = envelope.ACK_ROW.itemsize
_ACK_SECONDS = 0.02              # that an acknowledgement may wait for another section of the envelope


class OwnerLink:
    """A ZeroMQ socket (DEALER) to one owner process.

    Sections of an envelope are gathered in order and leave with `flush`.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], run_dir: Path, owner_serial: int, worker_serial: int):
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, worker_identity(worker_serial))
        self.socket.setsockopt(zmq.SNDHWM, 0)      # in_flight_bytes bounds it, see OwnerLinks
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(socket_path(run_dir, owner_serial))
        self.gathered = 0                          # bytes of entries and acknowledgements in the next envelope
        self.sent = 0                              # bytes of entries and of commands' cost, since the link was made
        self.taken = 0                             # bytes of them that the owner has taken
        self._handed: deque[tuple[int, float]] = deque()      # (sent, when) of envelopes that the owner has not taken
        self.is_unheard = False                    # something was sent, and the socket was not looked at since
        self.is_urgent = False                     # something is queued besides acknowledgements that want no receipt
        self._sections: list[tuple[int, NDArray[np.void] | bytes, bytes | memoryview]] = []
        self._sends: list[bytes] = []              # rows that came one by one, and their entries
        self._sends_kind = envelope.SENDS          # SENDS_IN_TRANSACTIONS: some of them are in a transaction
        self._entries: list[bytes] = []
        self._entries_size = 0
        self._acks: list[tuple[int, ...]] = []
        self._ack_words: list[bytes] = []
        self._flows: list[tuple[int, ...]] = []
        self._commands: list[tuple[int, ...]] = []
        self._command_data: list[bytes] = []

    def __repr__(self) -> str:
        return f"<OwnerLink in_flight={self.in_flight} gathered={self.gathered}>"

    @property
    def in_flight(self) -> int:
        """Bytes that were sent or queued for the owner and that its credit does not cover yet."""
        return self.sent - self.taken

    @property
    def has_queued(self) -> bool:
        """Whether anything is queued that was not sent to the owner."""
        return bool(self._sections or self._sends or self._acks or self._flows or self._commands)

    @property
    def is_due(self) -> bool:
        """Whether something is queued that should leave now.

        A little waits until the owner has answered: it is in a pass, and looks at its socket after it.  An envelope
        less is a wake less at both ends.  Much leaves at once, so that the owner always has something to do.
        Acknowledgements whose clients want no receipt leave with whatever else is sent to the owner, or after
        _ACK_SECONDS.
        """
        return (self.is_urgent and not self._handed) \
            or self.gathered >= _LITTLE_BYTES or len(self._commands) >= _LITTLE_COMMANDS

    def sends(self, rows: NDArray[np.void], entries: bytes | memoryview, kind: int = envelope.SENDS) -> None:
        """Queue many SENDs: complete rows (n,) SEND_ROW, and their entries one behind the other.  kind: of the
        section.
        """
        self._close_commands()
        self._close_sends()
        self._sections.append((kind, rows, entries))
        self.is_urgent = True
        self.gathered += len(entries)
        self.sent += len(entries)

    def send(self, producer: int, connection: int, row: tuple[int, ...], entry: bytes) -> None:
        """Queue one SEND.  row: as sends.read_one made it; producer: the handle; connection: the client's number."""
        if self._commands:
            self._close_commands()
        size = len(entry)
        self._sends.append(SEND.pack(producer, connection, *row[2:8], self._entries_size, *row[9:]))
        self._entries.append(entry)
        self._entries_size += size
        self.gathered += size
        self.sent += size
        self.is_urgent = True

    def send_in_transaction(self, producer: int, connection: int, row: tuple[int, ...], entry: bytes) -> None:
        """Queue one SEND in a transaction; see `send`."""
        self.send(producer, connection, row, entry)
        self._sends_kind = envelope.SENDS_IN_TRANSACTIONS

    def acks(self, rows: list[tuple[int, ...]], words: Sequence[bytes] = ()) -> None:
        """Queue acknowledgements: ACK_ROWs, and the words of the ack sets in them."""
        if self._commands:
            self._close_commands()
        self._acks += rows
        self.gathered += len(rows) * _ACK_SIZE
        if words:
            self._ack_words += words
            self.gathered += sum(map(len, words))

    def many_acks(self, rows: NDArray[np.void]) -> None:
        """Queue acknowledgements of whole entries: complete rows (n,) ACK_ROW."""
        self._close_commands()
        self._sections.append((envelope.ACKS, rows, b""))
        self.gathered += rows.nbytes

    def flow(self, consumer: int, permits: int) -> None:
        """Queue a grant of permits, in messages, for the consumer with this handle."""
        self._close_commands()
        self._flows.append((consumer, permits))
        self.is_urgent = True

    def command(self, connection: int, protocol_version: int, data: bytes, kind: int = envelope.COMMAND) -> None:
        """Queue a client's BaseCommand, or another kind of COMMAND_ROW, behind everything queued before it."""
        self._close_data()
        self._commands.append((connection, kind, protocol_version, len(data), 0))
        self._command_data.append(data)
        self.is_urgent = True
        self.sent += envelope.COMMAND_COST + len(data)

    def question(self, number: int, data: bytes) -> None:
        """Queue a question of administration.  Questions have a link of their own, where order does not matter."""
        self._sections.append((envelope.QUESTIONS, envelope.pack(envelope.QUESTIONS, [(number, len(data))]), data))

    def _close_sends(self) -> None:
        if self._sends:
            self._sections.append((self._sends_kind, b"".join(self._sends), b"".join(self._entries)))
            self._sends, self._entries, self._entries_size, self._sends_kind = [], [], 0, envelope.SENDS

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
            self._sections.append((envelope.COMMANDS, envelope.pack(envelope.COMMANDS, self._commands),
                                   b"".join(self._command_data)))
            self._commands, self._command_data = [], []

    def flush(self) -> None:
        """Send everything queued as one envelope."""
        self._close_data()
        if self._commands:
            self._close_commands()
        if self._sections:
            if self.sent > (self._handed[-1][0] if self._handed else self.taken):
                self._handed.append((self.sent, time.perf_counter()))
            zmq_frames.send(self.socket, envelope.seal(self._sections))
            self._sections, self.gathered, self.is_unheard = [], 0, True
        self.is_urgent = False

    def seconds_taken(self) -> list[float]:
        """Return how many seconds the owner needed to take in each envelope that it has taken since the last call."""
        seconds, now = [], time.perf_counter()
        while self._handed and self._handed[0][0] <= self.taken:
            seconds.append(now - self._handed.popleft()[1])
        return seconds

    def close(self) -> None:
        self.socket.close()


class LinksUser(Protocol):
    """The parts of the worker that its links use."""

    options: WorkerOptions
    is_draining: bool            # publishing has ended: publishers stay paused
    lease: Lease                 # without it nothing is answered

    def stop_publishers(self) -> None:
        """Stop reading from clients that publish: too many bytes are in flight to owners."""

    def resume_publishers(self) -> None:
        """Read again from the clients that `stop_publishers` has stopped."""

    def received(self) -> None:
        """Continue work that waited for an owner's credit."""


Section = Callable[["OwnerLink", NDArray[np.void], memoryview], None]     # deals with (link, rows, data) of a section


class OwnerLinks:
    """The links to all owners, by index; None while an owner's process is being restarted."""

    def __init__(self, run_dir: Path, worker_serial: int, owners: int, user: LinksUser, counters: Counters,
                 loop: asyncio.AbstractEventLoop):
        self._run_dir, self._worker_serial = run_dir, worker_serial
        self._user, self._counters, self._loop = user, counters, loop
        self._context = zmq.Context()
        self._links: list[OwnerLink | None] = [None] * owners
        self._queues: list[OpeningQueue] = [OpeningQueue() for _ in range(owners)]
        self.sections: dict[int, Section] = {}      # by their kind
        self.is_paused = False                      # owners have so much in flight that no publisher is read from
        self._flush_is_due = False
        self._ack_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<OwnerLinks {self._links}{' paused' if self.is_paused else ''}>"

    def __iter__(self) -> Iterator[OwnerLink]:
        """Iterate over the links to owners that are running."""
        return (link for link in self._links if link is not None)

    def link_of(self, topic: TopicName) -> OwnerLink | None:
        """Return the link to the partition's owner; None while its process is being restarted."""
        return self._links[owner_of(str(topic), len(self._links))]

    @property
    def count(self) -> int:
        """The number of owners, whether they run or not."""
        return len(self._links)

    def link_to(self, coordinator: int) -> OwnerLink | None:
        """Return the link to the owner that coordinates transactions under this number; None while its process is
        being restarted.
        """
        return self._links[coordinator % len(self._links)]

    def with_room(self, topic: TopicName, *, has_waited: bool) -> OwnerLink | None:
        """Return the link to the partition's owner if it may be sent a PRODUCER or SUBSCRIBE now, else None.

        None is also returned while the owner's process is being restarted.  has_waited: whether the command was taken
        from the owner's queue.  Another one may not overtake commands that wait, although the owner has room for it:
        the queue is handed on in parts.
        """
        index = owner_of(str(topic), len(self._links))
        link, queue = self._links[index], self._queues[index]
        may_be_sent = link is not None and queue.has_room(link.taken) and (has_waited or queue.is_empty)
        return link if may_be_sent else None

    def queue_of(self, topic: TopicName) -> OpeningQueue:
        return self._queues[owner_of(str(topic), len(self._links))]

    def with_queues(self) -> Iterator[tuple[OwnerLink, OpeningQueue]]:
        """Iterate over (link, commands that wait for the owner) of owners that are running."""
        for link, queue in zip(self._links, self._queues, strict=True):
            if link is not None:
                yield link, queue

    @property
    def has_in_flight(self) -> bool:
        """Whether any owner has not yet taken in everything that was sent to it."""
        return any(link.in_flight for link in self)

    # -- owners come and go

    def connect(self, index: int, serial: int) -> OwnerLink:
        """Connect to the new process of the owner with this index, and return the link."""
        link = self._links[index] = OwnerLink(self._context, self._run_dir, serial, self._worker_serial)
        self._loop.add_reader(int(link.socket.getsockopt(zmq.FD)), self.receive, link)
        return link

    def disconnect(self, index: int) -> OwnerLink | None:
        """Receive the last answers of an owner whose process has ended, drop its link and return it; None if there
        is none.
        """
        link, self._links[index] = self._links[index], None
        if link is not None:
            self._queues[index].owner_gone()
            self.receive(link)
        return link

    def close(self, link: OwnerLink) -> None:
        """Close the ZeroMQ socket of a link that was dropped."""
        self._loop.remove_reader(int(link.socket.getsockopt(zmq.FD)))
        link.close()
        self.resume_if_possible()

    # -- a pass

    def command_all(self, client: int, protocol_version: int, data: bytes, kind: int) -> None:
        """Send all owners a COMMAND_ROW of this kind about a client's connection."""
        for link in self:
            link.command(client, protocol_version, data, kind)
        self.schedule_flush()

    def schedule_flush(self, link: OwnerLink | None = None) -> None:
        """Send queued rows at the end of this pass of the loop; a link with many queued bytes is flushed at once.

        link: whose owner is to get what is queued now, although it may be only acknowledgements.
        """
        if link is not None:
            link.is_urgent = True
            if link.gathered >= _ENVELOPE_BYTES:
                link.flush()
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def flush_acks_soon(self, link: OwnerLink) -> None:
        """Send acknowledgements that want no receipt with the next envelope, or by themselves after a short delay."""
        if link.gathered >= _ENVELOPE_BYTES:
            link.flush()
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_SECONDS, self._flush_acks)

    def _flush_acks(self) -> None:
        self._ack_timer = None
        for link in self:
            link.is_urgent = link.has_queued
        self.schedule_flush()

    def _flush(self) -> None:
        self._flush_is_due = False
        total, limit = 0, self._user.options.in_flight_bytes
        for link, queue in zip(self._links, self._queues, strict=True):
            if link is None:
                continue
            if link.is_due:
                link.flush()
            in_flight = link.sent - link.taken
            total += in_flight
            if in_flight > limit and not self.is_paused and in_flight - queue.size(link.taken) > limit:
                self.pause()
            if link.is_unheard:
                # ZeroMQ's descriptor tells of changes only, so envelopes that came while sending would not be noticed.
                self.receive(link)
        self._counters.set("in_flight_bytes", total)
        if self._ack_timer is not None and not any(link is not None and link.has_queued for link in self._links):
            self._ack_timer.cancel()
            self._ack_timer = None

    def pause(self) -> None:
        """Stop reading from clients that publish until `resume_if_possible` finds that owners have caught up."""
        self.is_paused = True
        self._user.stop_publishers()

    def resume_if_possible(self) -> None:
        """Read again from clients that publish, once at most half of the allowed bytes are in flight to every owner."""
        limit = self._user.options.in_flight_bytes // 2
        if self.is_paused and not self._user.is_draining \
                and all(link.in_flight - queue.size(link.taken) <= limit for link, queue in self.with_queues()):
            self.is_paused = False
            self._user.resume_publishers()

    def receive(self, link: OwnerLink) -> None:
        """Handle all envelopes that have come from an owner."""
        link.is_unheard = False
        if link.socket.closed or not zmq_frames.has_come(link.socket):
            return
        self._user.lease.keep()
        sections, is_more = self.sections, True
        while is_more:
            link.taken, received = envelope.unseal(zmq_frames.receive(link.socket))
            for seconds in link.seconds_taken():
                self._counters.observe("answer", seconds)
            for kind, rows, data in received:
                sections[kind](link, rows, data)
            is_more = not link.socket.closed and zmq_frames.has_come(link.socket)
        if link.is_due:
            self.schedule_flush()
        if self.is_paused:
            self.resume_if_possible()
        self._user.received()
