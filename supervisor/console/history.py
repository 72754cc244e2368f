"""Rates of the last 15 minutes, a sample each second, from the counters that all processes share.

A sample costs some microseconds, so it is taken whether a page is open or not: a page that is opened shows what was.
"""
import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

from aiohttp import web

from geminga.supervisor.admin.requests.request_parts import COUNTERS

SECONDS = 900
NAMES = "messages_in", "messages_out", "bytes_in", "bytes_out"


class Sample(NamedTuple):
    """Totals of all owners since their start, at a moment."""

    at_ms: int
    totals: tuple[int, ...]      # in the order of NAMES


class History:
    """The samples of the last 15 minutes."""

    def __init__(self, app: web.Application):
        self._app = app
        self._samples: deque[Sample] = deque(maxlen=SECONDS + 1)

    def __repr__(self) -> str:
        return f"<History samples={len(self._samples)}>"

    def take(self) -> None:
        """Take a sample."""
        total = self._app[COUNTERS]["admin", 0].total      # over all processes
        self._samples.append(Sample(time.time_ns() // 1_000_000, tuple(map(total, NAMES))))

    def series(self) -> dict[str, list[float]]:
        """Return {"at": times in ms, name: rates per second, ...}, the oldest first."""
        return self._rates(list(self._samples))

    def after(self, at_ms: float) -> list[dict[str, float]]:
        """Return time and rates of each sample that was taken after a moment, the oldest first."""
        newer = sum(1 for _ in itertools.takewhile(lambda sample: sample.at_ms > at_ms, reversed(self._samples)))
        rates = self._rates(list(self._samples)[-(newer + 1):]) if newer else {"at": []}
        return [{name: values[row] for name, values in rates.items()} for row in range(len(rates["at"]))]

    def last_ms(self) -> int:
        """Return the time of the newest sample, 0 without one."""
        return self._samples[-1].at_ms if self._samples else 0

    @staticmethod
    def _rates(samples: list[Sample]) -> dict[str, list[float]]:
        rates: dict[str, list[float]] = {"at": [sample.at_ms for sample in samples[1:]]}
        for number, name in enumerate(NAMES):
            rates[name] = [
                round(max(0, now.totals[number] - before.totals[number]) * 1_000 / max(1, now.at_ms - before.at_ms), 1)
                for before, now in itertools.pairwise(samples)]
        return rates

    async def serve(self, _app: web.Application) -> AsyncIterator[None]:
        """Take samples while the process serves."""
        task = asyncio.create_task(self._run())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _run(self) -> None:
        steps = Steps(1)
        while True:
            self.take()
            await steps.next()


class Steps:
    """Even steps of a loop.

    The clock is monotonic and each step has its own due time.  A loop that slept until the wall clock's next second
    woke a little before it, and again at it: two steps within a millisecond, between which nothing is counted.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._due = time.monotonic()

    def __repr__(self) -> str:
        return f"<Steps of {self._seconds} s, due={self._due:.3f}>"

    async def next(self) -> None:
        """Sleep until the next step.  Steps that a stopped process has missed are left out."""
        self._due = max(self._due + self._seconds, time.monotonic() + self._seconds / 2)
        while (left := self._due - time.monotonic()) > 0:
            await asyncio.sleep(left)


HISTORY = web.AppKey("history", History)
