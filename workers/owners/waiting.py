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
    """The parts of a connection that waiting commands use."""

    def add_waiting(self) -> None: ...
    def remove_waiting(self) -> None: ...


class Client(Protocol):
    """The parts of a client that waiting commands use."""

    @property
    def stream(self) -> _Stream: ...


class WaitingCommands:
    """PRODUCERs and SUBSCRIBEs of all clients of a worker that wait for their owners."""

    def __init__(self, owners: OwnerLinks, resume: Callable[[Any, api.BaseCommand], None], counters: Counters,
                 loop: asyncio.AbstractEventLoop):
        """Make an empty queue.  resume: called with (client, command) when the command's turn has come."""
        self._owners, self._resume, self._counters, self._loop = owners, resume, counters, loop
        # By number: where the command waits, its client, its bytes.
        self._waiting: dict[int, tuple[OpeningQueue, Client, int]] = {}
        self._bytes = 0
        self._numbers = itertools.count()
        self._release_is_due = False

    def __repr__(self) -> str:
        return f"<WaitingCommands {len(self._waiting)} of {self._bytes} bytes>"

    def wait(self, client: Client, topic: TopicName, command: api.BaseCommand) -> Callable[[], None]:
        """Queue a command until the partition's owner runs and has room, and it is the client's turn.

        Returns a function that withdraws the command.  Raises Refusal: too many commands wait.  An error that asks the
        client to try again cannot replace waiting: a C++ consumer that was connected before stops trying after any
        error.
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
        """Schedule `release` for commands that have room by now, unless it is scheduled already."""
        if self._waiting and not self._release_is_due:
            self.release()

    def release(self) -> None:
        """Hand on the commands for which owners have room; after a bounded time the rest waits until sockets were
        read.
        """
        self._release_is_due, until = False, time.monotonic() + _RELEASE_SECONDS
        for link, queue in self._owners.with_queues():
            while not queue.is_empty and queue.has_room(link.taken):
                if time.monotonic() >= until:
                    self._release_is_due = True
                    self._loop.call_soon(self.release)
                    return
                client, number, command = queue.take()
                self._remove(number)
                self._resume(client, command)
