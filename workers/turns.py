"""What clients may cost the worker that they share: each is dealt with for a slice of time, and memory for what they have begun is bounded.

    a read -> a slice -> whole frames are left: the client waits for its turn, and is not read from meanwhile
    a read -> a slice -> a frame cut short is left: it counts among the halves, until its rest has come
"""
import asyncio
import time
import traceback
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from geminga.storage.runtime.log import log

if TYPE_CHECKING:
    from geminga.workers.client import Client

_TURN_SECONDS = 0.01         # for those who wait, between two looks at sockets
_ROOM_MIN = 16 << 10         # bytes that one read may bring when many wait
HALVES_MAX = 128 << 20       # bytes of frames cut short, of all clients of a worker
UNREAD_MAX = 64 << 20        # bytes of answers that clients do not take, of all clients of a worker; with more ...
UNREAD_MIN = 64 << 10        # ... is what each of them may leave unread


class Turns:
    """Clients that have said more than could be dealt with at once, in the order in which they go on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, buffer_size: int):
        self._loop, self._buffer_size = loop, buffer_size
        self._waiting: deque[Client] = deque()
        self._unread: dict[Client, int] = {}
        self._unread_total = 0
        self._is_due = False
        self.room = buffer_size      # bytes that one read may bring: the more clients wait, the less each of them has to keep
        self.is_crowded = False      # no more may be left unread

    def wait(self, client: "Client") -> None:
        """Have the client take its turn when all who came before have had theirs."""
        self._waiting.append(client)
        self._crowd()
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        until = time.monotonic() + _TURN_SECONDS
        while self._waiting and time.monotonic() < until:
            client = self._waiting.popleft()
            try:
                client.take_turn()
            except Exception:      # as in what the loop calls: its connection ends, and the others go on
                log.error(f"a command: {traceback.format_exc()}", code="G290", client=client.address)
                client.transport.abort()
        self._crowd()
        self._is_due = bool(self._waiting)
        if self._is_due:
            self._loop.call_soon(self._take)      # behind what sockets have brought meanwhile

    def unread(self, client: "Client", size: int) -> None:
        """The client has not taken so many bytes that were written to it."""
        self._unread_total += size - self._unread.get(client, 0)
        self._unread[client] = size
        self.is_crowded = self._unread_total > UNREAD_MAX
        self._crowd()

    def read(self, client: "Client") -> None:
        """The client takes what is written to it, or its connection has ended."""
        if client in self._unread:
            self._unread_total -= self._unread.pop(client)
            self.is_crowded = self._unread_total > UNREAD_MAX
            self._crowd()

    def _crowd(self) -> None:
        self.room = max(_ROOM_MIN, self._buffer_size // (1 + len(self._waiting) + len(self._unread)))


class Halves:
    """Frames cut short.  When they are too much memory, the connection whose frame was begun first ends: it has had the most time."""

    def __init__(self):
        self._sizes: OrderedDict[Client, int] = OrderedDict()      # the one that was begun first is the first
        self._total = 0

    def keep(self, client: "Client", size: int) -> None:
        """The client has begun another frame, and so many bytes are kept of it; 0: none."""
        self._total += size - self._sizes.pop(client, 0)
        if size:
            self._sizes[client] = size
            self._bound()

    def grew(self, client: "Client", count: int) -> None:
        """More of the frame has come."""
        self._sizes[client] += count
        self._total += count
        self._bound()

    def _bound(self) -> None:
        while self._total > HALVES_MAX:
            client, size = self._sizes.popitem(last=False)
            self._total -= size
            log.warning(f"unfinished messages take more than {HALVES_MAX >> 20} MiB: the connection from {client.address} ends, "
                        f"whose {size} bytes have waited longest", code="G322", client=client.address)
            client.give_up()
