"""Bounds on the cost of one client for the others: turns bound its time, counts of bytes bound its memory.

    a read -> a slice of time -> whole frames are left:     the stream waits for its turn, and is not read from
    a read -> a slice of time -> part of a frame is left:   its bytes count as unfinished until the rest has come
"""
import asyncio
import time
from collections import OrderedDict, deque
from typing import Protocol

from geminga.storage.runtime.log import log
from geminga.workers.failures import Peer, attempt

_TURN_SECONDS = 0.01              # for all streams that wait, between two looks at sockets
_READ_MIN = 16 << 10              # bytes that one read may bring when many streams wait
UNFINISHED_MAX = 128 << 20        # bytes of unfinished frames, of all clients of a worker
UNREAD_MAX = 64 << 20             # bytes of answers that all clients of a worker have not read; above it ...
UNREAD_MIN = 64 << 10             # ... each client may leave only so many unread


class Stream(Peer, Protocol):
    """The parts of a connection that turns use."""

    def take_turn(self) -> None:
        """Handle frames that were read in an earlier turn."""

    def give_up(self) -> None:
        """Drop an unfinished frame, and end the connection."""


class Turns:
    """A queue of connections that have read more than one slice of time could handle."""

    def __init__(self, loop: asyncio.AbstractEventLoop, buffer_size: int):
        self._loop, self._buffer_size = loop, buffer_size
        self._waiting: deque[Stream] = deque()
        self._unread: dict[Stream, int] = {}
        self._unread_total = 0
        self._is_due = False
        self.room = buffer_size      # bytes that one read may bring: the more streams wait, the fewer each keeps
        self.is_crowded = False      # clients have left so much unread that no client may leave more

    def __repr__(self) -> str:
        return f"<Turns waiting={len(self._waiting)} unread={self._unread_total} in {len(self._unread)} streams>"

    def wait(self, stream: Stream) -> None:
        """Queue the connection for a turn, behind all that are queued already."""
        self._waiting.append(stream)
        self._set_room()
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._give_turns)

    def _give_turns(self) -> None:
        until = time.monotonic() + _TURN_SECONDS
        while self._waiting and time.monotonic() < until:
            stream = self._waiting.popleft()
            attempt(stream, stream.take_turn)
        self._set_room()
        self._is_due = bool(self._waiting)
        if self._is_due:
            self._loop.call_soon(self._give_turns)      # after sockets have been read

    def unread(self, stream: Stream, size: int) -> None:
        """Record how many bytes written to the connection its client has not read."""
        self._unread_total += size - self._unread.get(stream, 0)
        self._unread[stream] = size
        self.is_crowded = self._unread_total > UNREAD_MAX
        self._set_room()

    def read(self, stream: Stream) -> None:
        """Forget the connection's unread bytes: its client reads again, or the connection has ended."""
        if stream in self._unread:
            self._unread_total -= self._unread.pop(stream)
            self.is_crowded = self._unread_total > UNREAD_MAX
            self._set_room()

    def _set_room(self) -> None:
        self.room = max(_READ_MIN, self._buffer_size // (1 + len(self._waiting) + len(self._unread)))


class UnfinishedFrames:
    """A count of the bytes kept for frames whose rest has not come, over all connections.

    Above UNFINISHED_MAX the connection with the oldest unfinished frame is ended, because its client has had the most
    time to finish it.
    """

    def __init__(self) -> None:
        self._sizes: OrderedDict[Stream, int] = OrderedDict()      # the frame that was begun first comes first
        self._total = 0

    def __repr__(self) -> str:
        return f"<UnfinishedFrames {self._total} bytes of {len(self._sizes)} streams>"

    def keep(self, stream: Stream, size: int) -> None:
        """Record that the connection has begun another frame and keeps `size` bytes of it; 0: it keeps nothing."""
        self._total += size - self._sizes.pop(stream, 0)
        if size:
            self._sizes[stream] = size
            self._make_room()

    def grew(self, stream: Stream, count: int) -> None:
        """Record `count` further bytes of the connection's unfinished frame."""
        self._sizes[stream] += count
        self._total += count
        self._make_room()

    def _make_room(self) -> None:
        while self._total > UNFINISHED_MAX:
            stream, size = self._sizes.popitem(last=False)
            self._total -= size
            log.warning(f"unfinished messages take more than {UNFINISHED_MAX >> 20} MiB: the connection from "
                        f"{stream.address} ends, whose {size} bytes have waited longest",
                        code="G322", client=stream.address)
            stream.give_up()
