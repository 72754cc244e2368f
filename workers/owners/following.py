"""The supervisor's messages to a worker or the admin process: new and ended owners, options, drain, stop."""
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from geminga.storage.runtime.control import Control
from geminga.workers.identity.options import Unusable


class Follower(Protocol):
    """A process that keeps a link to each owner."""

    def owner_up(self, index: int, serial: int) -> None:
        """Connect to the process that serves as the owner with this index.  serial: number of the process."""

    def owner_gone(self, index: int) -> None:
        """Drop the link to the owner with this index: its process has ended."""


def follow(control: Control, follower: Follower | None, configure: Callable[[str], None],
           drain: Callable[[], Coroutine[Any, Any, None]],
           hang_up: Callable[[str], None] = lambda _: None,
           refuse: Callable[[], None] = lambda: None) -> asyncio.Event:
    """Pass the supervisor's news of owners on to the follower, None for a process that has no links to owners.

    Returns an event that is set when the supervisor says stop or ends.  configure: applies new options, packed; raises
    Unusable.  drain: returns after everything published has been answered.  hang_up: closes the connection from an
    address.  refuse: refuses new connections from the network.
    """
    stopping = asyncio.Event()
    draining: list[asyncio.Task[None]] = []      # asyncio keeps no reference to a task
    serials: dict[int, int] = {}                 # index of an owner -> serial number of its process

    async def drain_and_report() -> None:
        await drain()
        control.send(drained=True)

    def receive() -> None:
        for message in control.receive():
            if "owner" in message:
                index, serial = message["owner"]
                # The supervisor names an owner twice to a process that starts at the same time.  The owner ignores a
                # second socket of the same identity while it still has the first: nothing on it would be answered.
                if follower is not None and serials.get(index) != serial:
                    serials[index] = serial
                    follower.owner_up(index, serial)
            elif "owner_gone" in message:
                serials.pop(message["owner_gone"], None)
                if follower is not None:
                    follower.owner_gone(message["owner_gone"])
            elif "options" in message:
                try:
                    configure(message["options"])
                    control.send(configured="")
                except Unusable as error:
                    control.send(configured=str(error))
            elif "close" in message:
                hang_up(message["close"])
            elif "refuse" in message:
                refuse()
            elif "drain" in message:
                draining.append(asyncio.create_task(drain_and_report()))
            elif "stop" in message:
                stopping.set()
        if not control.is_open:
            stopping.set()

    asyncio.get_running_loop().add_reader(control.fileno(), receive)
    return stopping
