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

    def last(self) -> dict[str, float]:
        """Return the time and rates of the last sample alone, {} without one."""
        samples = self._samples
        rates = self._rates([samples[-2], samples[-1]] if len(samples) > 1 else [])
        return {name: values[-1] for name, values in rates.items() if values}

    @staticmethod
    def _rates(samples: list[Sample]) -> dict[str, list[float]]:
        rates: dict[str, list[float]] = {"at": [one.at_ms for one in samples[1:]]}
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
        while True:
            self.take()
            await asyncio.sleep(1 - time.time() % 1)      # on the second, so that steps are even


HISTORY = web.AppKey("history", History)
