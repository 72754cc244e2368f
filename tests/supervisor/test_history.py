"""Rates of the last 15 minutes: steps are even, and what was counted between two of them is in one rate."""
import asyncio
import itertools
import time
from typing import Any

import pytest

from geminga.supervisor.admin.requests.request_parts import COUNTERS
from geminga.supervisor.console import history
from geminga.supervisor.console.history import NAMES, History, Steps


def test_no_two_steps_follow_at_once(monkeypatch):
    """A sleep that ends a little early, as timers of event loops may, makes no step of its own."""
    sleep = asyncio.sleep
    monkeypatch.setattr(history.asyncio, "sleep", lambda seconds: sleep(max(0, seconds * 0.8 - 0.0005)))

    async def moments() -> list[float]:
        steps, taken = Steps(0.02), []
        for _ in range(10):
            await steps.next()
            taken.append(time.monotonic())
        return taken

    assert min(later - earlier for earlier, later in itertools.pairwise(asyncio.run(moments()))) >= 0.009


def test_steps_that_were_missed_are_left_out(monkeypatch):
    """A process that stood still for ten steps takes the next one half a step later, and no ten at once."""
    clock = [100.0]
    monkeypatch.setattr(history.time, "monotonic", lambda: clock[0])

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(history.asyncio, "sleep", sleep)
    steps = Steps(1)
    asyncio.run(steps.next())
    assert clock[0] == 101
    clock[0] = 111.2
    asyncio.run(steps.next())
    assert clock[0] == pytest.approx(111.7)


class _Counters:
    """Counters of all processes, by hand."""

    def __init__(self) -> None:
        self.count = 0

    def total(self, name: str) -> int:
        return self.count * (1 + NAMES.index(name))


def test_rates_are_what_was_counted_by_the_time_that_it_took(monkeypatch):
    """What a page has seen is not sent again, and what it missed is sent."""
    counters: Any = _Counters()
    app: Any = {COUNTERS: {("admin", 0): counters}}
    taken = History(app)
    assert (taken.after(0), taken.last_ms()) == ([], 0)
    for at_ms, count in ((1_000, 0), (2_000, 50), (4_000, 250)):
        monkeypatch.setattr(history.time, "time_ns", lambda at_ms=at_ms: at_ms * 1_000_000)
        counters.count = count
        taken.take()
    assert taken.series()["at"] == [2_000, 4_000]
    assert taken.series()["messages_in"] == [50, 100]
    assert [(one["at"], one["messages_out"]) for one in taken.after(1_500)] == [(2_000, 100), (4_000, 200)]
    assert [one["at"] for one in taken.after(2_000)] == [4_000]
    assert taken.after(taken.last_ms()) == []
