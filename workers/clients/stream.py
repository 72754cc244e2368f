"""The bytes of one connection: frames are read in turns, answers are written no faster than the client reads.

    socket -> the worker's buffer -> proto/connection.py -> events -> handlers (a table by type, see commands.py)

One connection is not read from, while all others are, as long as

    it waits for its turn             it had more whole frames than one slice of time is enough for
    an owner throttles it             it publishes faster than a rate allows
    its client leaves answers unread  too many bytes wait to be written to it
    owners are behind                 the worker has too much in flight, or too many of its commands wait for owners
"""
import asyncio
import mmap
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from geminga.proto import responses
from geminga.proto.commands import CONNECTED, NEW
from geminga.proto.connection import FIRST_SIZE_MAX, Connection
from geminga.proto.errors import ProtocolError
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.lease import Lease
from geminga.workers.clients.turns import UNREAD_MIN, Turns, UnfinishedFrames
from geminga.workers.directory.directory import Directory
from geminga.workers.failures import attempt, end_failed
from geminga.workers.options import WorkerOptions
from geminga.workers.ports import protocols
from geminga.workers.ports.proxy_header import ClientAddress

_OWN_BUFFER_MIN = 64 << 10       # an unfinished frame that is larger gets a buffer of its own size
_OWN_BUFFER_MAPPED = 256 << 10   # above it, memory is taken only as bytes come: eight bytes can announce megabytes
_WAITING_MAX = 10_000            # commands that wait for owners; with as many the connection is not read from
_UNREAD_MAX = 8                  # times write_buffer_bytes that answers may wait before the connection is not read from
_SLICE_SECONDS = 0.001           # for one client, before the others have their turn; one command may take longer
_FIRST_BYTES = 32                # of a connection, which tell its protocol
_EMPTY = memoryview(b"")

Handlers = Mapping[type, Callable[[Any, Any], None]]      # event's type -> function of (client, event)


class StreamWorker(Protocol):
    """The parts of the worker that streams use."""

    options: WorkerOptions
    counters: Counters
    directory: Directory
    lease: Lease                         # without it nothing is answered
    turns: Turns
    unfinished: UnfinishedFrames
    buffer: memoryview                   # shared by all connections: a read is dealt with before the next one
    buffer_array: NDArray[np.uint8]      # the same bytes


class StreamClient(Protocol):
    """The parts of a client that its stream uses."""

    protocol_version: int

    @property
    def probed_by(self) -> Sequence[object]:
        """Links of owners that have asked whether the client is alive."""
    @property
    def waits_for_owners(self) -> bool: ...
    def opened(self) -> None: ...
    def closed(self) -> None: ...
    def answer_probes(self) -> None: ...
    def write_deliveries(self) -> None: ...


class _Ended:
    """The client of a stream whose connection has ended.

    With it in place of the real one, stream and client do not refer to each other.  Otherwise both would stay in memory
    until a full garbage collection.
    """

    protocol_version, probed_by, waits_for_owners = 0, (), False

    def opened(self) -> None: ...
    def closed(self) -> None: ...
    def answer_probes(self) -> None: ...
    def write_deliveries(self) -> None: ...


_ENDED = _Ended()


class Stream(asyncio.BufferedProtocol):
    """The bytes of one connection: reads frames, hands their events to handlers, and writes answers."""

    transport: asyncio.Transport

    def __init__(self, worker: StreamWorker, client: StreamClient, handlers: Handlers,
                 announced: ClientAddress | None = None):
        self._worker, self._handlers, self._announced = worker, handlers, announced
        self._client: StreamClient = client
        self.connection = Connection(worker.options.max_message_size)
        self.was_heard = True                      # whether bytes came since the last keep-alive tick
        self.is_writable = True                    # whether the socket takes more bytes
        # Bytes read and not handled: an unfinished frame, or frames that wait for this stream's turn.
        self._rest = _EMPTY
        self._own: bytearray | mmap.mmap | None = None   # a large unfinished frame, in a buffer of its own size
        self._filled = 0                           # bytes of it
        self._is_waiting = False                   # for this stream's turn
        self._has_more = False                     # whole frames, which wait for owners before they wait for a turn
        self._is_reading = True                    # False: until the client reads its answers, or its handshake is done
        self._waiting_commands = 0                 # commands that wait for their owners, or for room in their queues
        self._throttled_by: set[object] = set()    # links of the owners that throttle its producers

    def __repr__(self) -> str:
        kept = len(self._rest) if self._own is None else self._filled
        states = {"waiting": self._is_waiting, "stopped": not self._is_reading, "throttled": bool(self._throttled_by),
                  "unwritable": not self.is_writable}
        text = " ".join(name for name, holds in states.items() if holds) or "reading"
        return f"<Stream of {self._client} {text}, {kept} bytes kept>"

    @property
    def host(self) -> str:
        """The client's IP address, or "local" for a Unix socket."""
        peer = self._announced or self.transport.get_extra_info("peername")
        return peer[0] if isinstance(peer, tuple) else "local"

    @property
    def own_host(self) -> str:
        """The address of this host to which the client has connected; "" for a Unix socket."""
        name = self.transport.get_extra_info("sockname")
        return name[0] if isinstance(name, tuple) else ""

    @property
    def address(self) -> str:
        """The client's IP address and port."""
        peer = self._announced or self.transport.get_extra_info("peername")
        host, port = peer[:2] if isinstance(peer, tuple) else ("local", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # -- calls of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and tell the client that it is connected."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self._worker.options.write_buffer_bytes)
        self._client.opened()

    def connection_lost(self, error: Exception | None) -> None:
        """Free the connection's buffers, and tell the client that the connection has ended."""
        self._count_throttled(bool(self._throttled_by), False)
        self.drop_input()
        self._worker.turns.read(self)
        client, self._client = self._client, _ENDED
        client.closed()

    def get_buffer(self, hint: int) -> memoryview:
        """Return the buffer to read into.

        Bytes follow those of an unfinished frame.  A large unfinished frame has a buffer of its own; all others are
        copied to the start of the worker's buffer.
        """
        if self._own is not None:
            return memoryview(self._own)[self._filled:]
        buffer, size = self._worker.buffer, len(self._rest)
        if size:
            buffer[:size] = self._rest
        # Bytes behind a CONNECT are kept while its credentials are checked, so a stranger could have megabytes kept on
        # each of its connections.
        room = self._worker.turns.room if self.connection.state == CONNECTED else FIRST_SIZE_MAX + 4
        return buffer[size:size + room]

    def buffer_updated(self, count: int) -> None:
        """Handle `count` bytes that were read into the buffer."""
        self._worker.lease.keep()      # waits here, before anything is read, if a standby may have taken over
        self.was_heard = True
        if self._client.probed_by:
            self._client.answer_probes()
        if self._own is not None:
            self._filled += count
            if self._filled == len(self._own):
                own = self._own
                self.drop_input()
                self._read(np.frombuffer(own, np.uint8), memoryview(own), len(own))
            elif len(self._own) > _OWN_BUFFER_MAPPED:
                self._worker.unfinished.grew(self, count)
            return
        self._read(self._worker.buffer_array, self._worker.buffer, len(self._rest) + count)

    def pause_writing(self) -> None:
        """Note that the client does not read: the transport holds more unread bytes than its limit."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Continue answers and deliveries: the client has read nearly everything that was written to it."""
        self.is_writable = self.was_heard = True      # a client that reads is alive
        if self._client.probed_by:
            self._client.answer_probes()
        self._worker.turns.read(self)
        attempt(self, self._go_on_writing)

    def _go_on_writing(self) -> None:
        if self._is_reading:
            self.resume_reading()
        elif self.connection.state == CONNECTED:
            self.transport.set_write_buffer_limits(high=self._worker.options.write_buffer_bytes)
            self.start_reading()
        self._client.write_deliveries()

    # -- reading

    def _read(self, array: NDArray[np.uint8], data: memoryview, end: int) -> None:
        """Handle whole frames in the first `end` bytes of the array for one slice of time, and keep the rest.

        data: the same bytes as `array`.  If whole frames are left, the stream queues for another turn.
        """
        connection, client, handlers = self.connection, self._client, self._handlers
        taken, before, is_late, self._has_more = 0, -1, False, False
        until = time.monotonic() + _SLICE_SECONDS
        try:
            while before != taken < end and self._is_reading and not is_late:
                before = taken
                try:
                    taken = connection.receive(array, data, taken, end)
                finally:      # frames before one that breaks the protocol are valid, and are answered
                    events, connection.events = connection.events, []
                    for event in events:
                        handlers[type(event)](client, event)
                is_late = taken < end and time.monotonic() >= until
            # A slice may end before the next frame was looked at: its size is checked before room is made for it.
            needed = connection.frame_size(data, taken, end) if self._is_reading and taken < end else 0
        except ProtocolError:
            if connection.state == NEW:
                self._refuse_protocol(bytes(data[:_FIRST_BYTES]))
            self.drop_input()
            self._worker.counters.add("protocol_errors")
            return self.close()
        except Exception:
            self.drop_input()
            return end_failed(self)
        self._keep(data, taken, end, needed, is_late)

    def _refuse_protocol(self, first: bytes) -> None:
        """Answer a connection that begins with bytes of another protocol than the port's."""
        if not protocols.belongs(first, "pulsar"):      # ports of HTTP have a gate; within TLS the same bytes come
            scheme = "pulsar" if self.transport.get_extra_info("ssl_object") is None else "pulsar+ssl"
            ports = self._worker.directory.addresses.ports
            self.transport.write(protocols.refusal(first, scheme, ports, self.host))

    def _keep(self, data: memoryview, taken: int, end: int, needed: int, is_late: bool) -> None:
        """Keep bytes `taken` to `end` - 1, which were read and not handled.

        needed: bytes of the frame that begins at `taken`, 0 if the connection is not read.  is_late: the slice of time
        ended, so whole frames may be among the bytes.
        """
        if taken == end or self.transport.is_closing():
            if self._rest:
                self.drop_input()
            return
        held = end - taken
        # The worker's buffer is overwritten by the next read, of any connection, so what is kept there is copied out.
        if is_late and self._is_reading and needed <= held:
            self._rest = data[taken:end] if data is not self._worker.buffer else memoryview(bytearray(data[taken:end]))
            self._is_waiting = True
            self._worker.unfinished.keep(self, 0)
            self.pause_reading()
            return self._worker.turns.wait(self)
        self._rest = memoryview(bytearray(data[taken:end]))
        if needed > max(_OWN_BUFFER_MIN, held):
            is_mapped = needed > _OWN_BUFFER_MAPPED
            self._own = mmap.mmap(-1, needed) if is_mapped else bytearray(needed)
            self._filled = held
            self._own[:held] = self._rest
            self._rest, held = _EMPTY, held if is_mapped else needed
        self._worker.unfinished.keep(self, held)

    def drop_input(self) -> None:
        """Free the bytes that were read and not handled."""
        self._rest, self._own = _EMPTY, None
        self._worker.unfinished.keep(self, 0)

    def give_up(self) -> None:
        """Drop an unfinished frame and end the connection, because unfinished frames of all clients take too much
        memory.
        """
        self._rest, self._own = _EMPTY, None
        self.transport.abort()

    def take_turn(self) -> None:
        """Handle frames that were read in an earlier turn."""
        self._is_waiting, self.was_heard = False, True
        if self._is_reading and not self.transport.is_closing():
            self._go_on_reading()

    def stop_reading(self) -> None:
        """Handle no further frame until `start_reading`: the handshake is under way, or the client does not read
        answers.
        """
        self._is_reading = False
        self.pause_reading()

    def start_reading(self) -> None:
        """Handle frames that were kept since `stop_reading`, then read from the socket again."""
        self._is_reading = True
        if not self._is_waiting:
            self._go_on_reading()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop_reading` is in effect."""
        return not self._is_reading

    def _go_on_reading(self) -> None:
        if self._own is None and self._rest:
            if self._client.waits_for_owners:
                self._has_more = True
                return
            rest = self._rest
            self._read(np.frombuffer(rest, np.uint8), rest, len(rest))
        self.resume_reading()

    def pause_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again, unless the stream is stopped, throttled, waiting for its turn or for owners."""
        # Reasons not to read overlap, and each ends by itself.  All of them are asked here: whoever told the transport
        # directly would end the others' reasons too.
        if not self._is_reading or self._is_waiting or self._throttled_by or self.transport.is_closing() \
                or self._client.waits_for_owners:
            return
        if self._has_more:
            self._has_more, self._is_waiting = False, True
            return self._worker.turns.wait(self)
        self.transport.resume_reading()

    # -- reasons not to read

    @property
    def has_many_waiting(self) -> bool:
        """Whether the connection is not read from because many of its commands wait for owners."""
        return self._waiting_commands >= _WAITING_MAX

    def add_waiting(self) -> None:
        """Count one more command of this connection that waits for an owner."""
        self._waiting_commands += 1
        if self.has_many_waiting:
            self.pause_reading()

    def remove_waiting(self) -> None:
        """Count one command less that waits for an owner."""
        had_many, self._waiting_commands = self.has_many_waiting, self._waiting_commands - 1
        if had_many and not self.has_many_waiting:
            self.resume_reading()

    def throttle(self, link: object) -> None:
        """Stop reading from a client whose producers exceed a rate, until the owner behind this link ends the
        throttling.
        """
        self._count_throttled(bool(self._throttled_by), True)
        self._throttled_by.add(link)
        self.pause_reading()

    def unthrottle(self, link: object) -> None:
        """End the throttling by the owner behind this link; the connection is read again when no other owner
        throttles it.
        """
        if link in self._throttled_by:
            self._throttled_by.remove(link)
            self._count_throttled(True, bool(self._throttled_by))
            self.resume_reading()

    def unthrottle_to_hear(self) -> None:
        """Read from a throttled connection, to hear whether its client is alive.

        If the client publishes more, an owner throttles it again.
        """
        self._count_throttled(bool(self._throttled_by), False)
        self._throttled_by.clear()
        self.resume_reading()

    def _count_throttled(self, was: bool, is_now: bool) -> None:
        if was != is_now:
            self._worker.counters.add("connections_throttled", is_now - was)

    @property
    def is_held(self) -> bool:
        """Whether the connection is not read from because of throttling, or because it waits for its turn."""
        return self._is_waiting or bool(self._throttled_by)

    # -- writing

    def write(self, data: bytes) -> None:
        """Write an answer.  If a client does not read its answers, its commands are not read either."""
        self.transport.write(data)
        if self._is_reading and (not self.is_writable or self._worker.turns.is_crowded):
            self._stop_if_unread()

    def tell(self, data: bytes) -> None:
        """Write those of the frames that the client's protocol version knows.

        If a client is too old to understand that a producer or consumer was closed, its connection is closed instead.
        """
        version = self._client.protocol_version
        if version < responses.ALL_SINCE:
            data, is_over = responses.select_known(data, version)
            if is_over:
                self.transport.write(data)
                return self.close()
        self.write(data)

    def _stop_if_unread(self) -> None:
        """Stop reading from a client that leaves too many bytes of answers unread."""
        turns, unread_max = self._worker.turns, self._worker.options.write_buffer_bytes
        size = self.transport.get_write_buffer_size()
        if self.transport.is_closing() or size <= UNREAD_MIN:
            return
        turns.unread(self, size)
        if size > _UNREAD_MAX * unread_max or turns.is_crowded:
            # Reading goes on when nearly all is read.
            self.transport.set_write_buffer_limits(high=min(UNREAD_MIN, unread_max))
            self.stop_reading()

    def set_send_buffer(self, size: int) -> None:
        """Have the kernel hold up to `size` bytes that the client has not read, or fewer where the host's limit is."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def configured(self) -> None:
        """Apply the worker's new options to this connection."""
        self.connection.limit_messages(self._worker.options.max_message_size)
        self.transport.set_write_buffer_limits(high=self._worker.options.write_buffer_bytes)

    def close(self) -> None:
        """End the connection after everything written to it has been sent."""
        self.transport.close()
