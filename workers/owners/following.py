"""News of owners, from the supervisor: which process each of them has, and what the worker itself is to do."""
import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from geminga.storage.runtime.control import Control
from geminga.workers.identity.options import Unusable


class Follower(Protocol):
    """A process with links to owners."""

    def owner_up(self, index: int, serial: int) -> None:
        """Connect to the process, named by its serial number, that is the owner with this index now."""

    def owner_gone(self, index: int) -> None:
        """Give up the link to the owner with this index: its process has ended."""


def follow(control: Control, follower: Follower, configure: Callable[[str], None],
           drain: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Event:
    """Tell the follower of owners as they come and go; the event is set when the supervisor says stop, or has ended.

    configure: takes over new options, packed; raises Unusable.  drain: returns when everything published is answered.
    """
    stopping = asyncio.Event()
    draining: list[asyncio.Task[None]] = []      # a task is lost unless it is referenced
    serials: dict[int, int] = {}                 # of the owners that are there, by index

    async def drain_and_report() -> None:
        await drain()
        control.send(drained=True)

    def receive() -> None:
        for message in control.receive():
            if "owner" in message:
                index, serial = message["owner"]
                # The supervisor names an owner twice to a process that starts at the same time.  The owner ignores a
                # second socket of the same identity while it still has the first: nothing on it would be answered.
                if serials.get(index) != serial:
                    serials[index] = serial
                    follower.owner_up(index, serial)
            elif "owner_gone" in message:
                serials.pop(message["owner_gone"], None)
                follower.owner_gone(message["owner_gone"])
            elif "options" in message:
                try:
                    configure(message["options"])
                    control.send(configured="")
                except Unusable as error:
                    control.send(configured=str(error))
            elif "drain" in message:
                draining.append(asyncio.create_task(drain_and_report()))
            elif "stop" in message:
                stopping.set()
        if not control.is_open:
            stopping.set()

    asyncio.get_running_loop().add_reader(control.fileno(), receive)
    return stopping
