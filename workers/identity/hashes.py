"""Work on what clients show that is slow on purpose, or dear: one thread beside the loop, shared out by address.

Addresses take turns: guesses of one address wait for each other, and whoever comes from another one waits for one of them at most.
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

OF_ADDRESS_MAX = 100         # that wait of one address; what comes above is told to try again
_WAITING_MAX = 1_000         # of all; the more addresses there are, the fewer of each may wait, but always one


class Work(NamedTuple):
    demand: Callable[[], Identity]
    done: Callable[[Any], None]
    is_wanted: Callable[[], bool]


class Hashes:
    """Of one process."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "hashes")       # not begun before it has something to do
        self._waiting: OrderedDict[str, deque[Work]] = OrderedDict()      # by address, the one whose turn is next first
        self._is_busy = False

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, host: str, demand: Callable[[], Identity], done: Callable[[Any], None], is_wanted: Callable[[], bool]) -> None:
        """Have `done` called with the future of the demand.  Raises NotAuthenticated: too many of that address wait.

        is_wanted: asked before it begins; what is not wanted any more is dropped without a word.
        """
        address = address_of(host)
        works = self._waiting.setdefault(address, deque())
        if len(works) >= max(1, min(OF_ADDRESS_MAX, _WAITING_MAX // len(self._waiting))):
            raise NotAuthenticated("BUSY", "too many wait", api.ServiceNotReady, "Too many clients show who they are; try again")
        works.append(Work(demand, done, is_wanted))
        self._begin()

    async def result(self, host: str, demand: Callable[[], Identity]) -> Identity:
        """What the demand returns.  Raises NotAuthenticated, also when too many wait."""
        waiter = self._loop.create_future()
        self.put(host, demand, partial(_hand_over, waiter), lambda: not waiter.done())
        return await waiter

    def _begin(self) -> None:
        while self._waiting and not self._is_busy:
            address, works = self._waiting.popitem(last=False)
            work = works.popleft()
            if works:
                self._waiting[address] = works      # behind all others
            if work.is_wanted():
                self._is_busy = True
                self._loop.run_in_executor(self._thread, work.demand).add_done_callback(partial(self._ended, work.done))

    def _ended(self, done: Callable[[Any], None], future: asyncio.Future) -> None:
        self._is_busy = False
        self._begin()
        done(future)


def _hand_over(waiter: asyncio.Future, future: asyncio.Future) -> None:
    if waiter.done():
        future.exception()      # else asyncio tells that nobody asked
    elif (error := future.exception()) is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(future.result())
