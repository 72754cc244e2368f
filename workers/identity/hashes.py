"""Slow checks of credentials: one thread, shared out by address.

Addresses take turns: guesses from one address wait for each other, and a client from another address waits for one of
them at most.
"""
import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.identity.attempts import address_of
from geminga.workers.identity.authentication import Identity
from geminga.workers.identity.credentials import NotAuthenticated

OF_ADDRESS_MAX = 100         # checks of one address that wait; another one is refused, and asked to try again
_WAITING_MAX = 1_000         # checks of all addresses; each address has an equal share, and at least one check


class Work(NamedTuple):
    """A check that waits for the thread."""

    check: Callable[[], Identity]
    done: Callable[[Any], None]
    is_wanted: Callable[[], bool]


class Hashes:
    """The thread that computes slow hashes for one process, with a bounded queue in which addresses take turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "hashes")       # begun with its first check
        self._waiting: OrderedDict[str, deque[Work]] = OrderedDict()      # by address, the one whose turn is next first
        self._is_busy = False

    def __repr__(self) -> str:
        return f"<Hashes {self.waiting} waiting of {len(self._waiting)} addresses>"

    @property
    def waiting(self) -> int:
        """Number of checks that wait for the thread."""
        return sum(map(len, self._waiting.values()))

    def put(self, host: str, check: Callable[[], Identity], done: Callable[[Any], None],
            is_wanted: Callable[[], bool]) -> None:
        """Run `check` in the thread, then call `done` with its future.

        is_wanted: called before the check begins; if it returns False, the check is dropped and `done` is not called.
        Raises NotAuthenticated: too many checks of this address wait.
        """
        address = address_of(host)
        works = self._waiting.setdefault(address, deque())
        if len(works) >= max(1, min(OF_ADDRESS_MAX, _WAITING_MAX // len(self._waiting))):
            raise NotAuthenticated("BUSY", "too many wait", api.ServiceNotReady,
                                   "Too many clients are authenticating; try again")
        works.append(Work(check, done, is_wanted))
        self._begin()

    async def result(self, host: str, check: Callable[[], Identity]) -> Identity:
        """Run `check` in the thread and return its identity.

        Raises NotAuthenticated, also if too many checks of this address wait.
        """
        waiter: asyncio.Future[Identity] = self._loop.create_future()
        self.put(host, check, partial(_hand_over, waiter), lambda: not waiter.done())
        return await waiter

    def _begin(self) -> None:
        while self._waiting and not self._is_busy:
            address, works = self._waiting.popitem(last=False)
            work = works.popleft()
            if works:
                self._waiting[address] = works      # behind all others
            if work.is_wanted():
                self._is_busy = True
                self._loop.run_in_executor(self._thread, work.check).add_done_callback(partial(self._ended, work.done))

    def _ended(self, done: Callable[[Any], None], future: asyncio.Future[Any]) -> None:
        self._is_busy = False
        self._begin()
        done(future)


def _hand_over(waiter: "asyncio.Future[Identity]", future: "asyncio.Future[Identity]") -> None:
    if waiter.done():
        future.exception()      # else asyncio logs that it was never retrieved
    elif (error := future.exception()) is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(future.result())
