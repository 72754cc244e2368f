"""Commands that wait in this worker: their partition's owner is being started, or has enough commands to carry out."""
import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.runtime.counters import Counters
from geminga.workers.owners.links import OwnerLinks

if TYPE_CHECKING:
    from geminga.workers.owners.opening import OpeningQueue

_WAITING_MAX = 100_000           # commands; another one is answered with an error that asks to try again
_WAITING_BYTES_MAX = 64 << 20    # of waiting commands; further ones are refused in the same way
_RELEASE_SECONDS = 0.01          # for commands that have waited, between two looks at sockets


class _Stream(Protocol):
    """The bytes of one connection, which is not read from while many of its commands wait."""

    def add_waiting(self) -> None: ...
    def remove_waiting(self) -> None: ...


class Client(Protocol):
    """A client, as far as its waiting commands concern it."""

    @property
    def stream(self) -> _Stream: ...


class WaitingCommands:
    """Commands of all clients of a worker that wait for owners."""

    def __init__(self, owners: OwnerLinks, resume: Callable[[Any, api.BaseCommand], None], counters: Counters,
                 loop: asyncio.AbstractEventLoop):
        """resume: deals with (client, command) when its turn has come."""
        self._owners, self._resume, self._counters, self._loop = owners, resume, counters, loop
        # By number: where the command waits, its client, its bytes.
        self._waiting: dict[int, tuple[OpeningQueue, Client, int]] = {}
        self._bytes = 0
        self._numbers = itertools.count()
        self._release_is_due = False

    def __repr__(self) -> str:
        return f"<WaitingCommands {len(self._waiting)} of {self._bytes} bytes>"

    def wait(self, client: Client, topic: TopicName, command: api.BaseCommand) -> Callable[[], None]:
        """Have the command dealt with when the partition's owner is there, has room, and it is the client's turn.

        Returns a function that withdraws the command.  Raises Refusal: too many commands wait.  An error that asks to
        try again would not do instead of waiting: C++ consumers that were connected before stop trying after any error.
        """
        size = command.ByteSize()
        if len(self._waiting) >= _WAITING_MAX or self._bytes + size > _WAITING_BYTES_MAX:
            raise Refusal(api.ServiceNotReady, "Too many commands wait for the topic's owner; try again")
        number, queue = next(self._numbers), self._owners.queue_of(topic)
        queue.wait(client, number, command)
        self._waiting[number] = queue, client, size
        self._bytes += size
        client.stream.add_waiting()
        self._counters.set("commands_waiting", len(self._waiting))
        return partial(self._withdraw, number)

    def _withdraw(self, number: int) -> None:
        if number in self._waiting:
            queue, client, _ = self._waiting[number]
            queue.withdraw(client, number)
            self._remove(number)

    def _remove(self, number: int) -> None:
        _, client, size = self._waiting.pop(number)
        self._bytes -= size
        client.stream.remove_waiting()
        self._counters.set("commands_waiting", len(self._waiting))

    def release_soon(self) -> None:
        """Deal with commands for which there is room by now, unless the loop is going to do so anyway."""
        if self._waiting and not self._release_is_due:
            self.release()

    def release(self) -> None:
        """Deal with commands as far as their owners have room; the rest of many goes on behind whatever sockets bring.
        """
        self._release_is_due, until = False, time.monotonic() + _RELEASE_SECONDS
        for link, queue in self._owners.with_queues():
            while not queue.is_empty and queue.has_room(link):
                if time.monotonic() >= until:
                    self._release_is_due = True
                    self._loop.call_soon(self.release)
                    return
                client, number, command = queue.take()
                self._remove(number)
                self._resume(client, command)
