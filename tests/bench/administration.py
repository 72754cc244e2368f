"""What administration costs where there is much of it, on a broker of its own.

    python tests/bench/administration.py [--topics 10000] [--subscriptions 5] [--rounds 10]

    made        so many topics with so many subscriptions each, over HTTP: calls a second
    metrics     GET /metrics: its bytes, its series
    stats       GET .../stats of one topic, and of another
    list        GET of the namespace's topics

Of each the median, least and most that it took, and what the broker's processes computed for one.  The median of /metrics is to be below
300 ms, that of stats below 10 ms, that of the list below 100 ms.
"""
import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from usage import cpu_seconds

_AT_ONCE = 64
NAMESPACE = "public/default"


@contextmanager
def broker() -> Iterator[tuple[str, int]]:
    """(HTTP address, pid)"""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/data"]
        command += ["--port", "0", "--http-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            yield next(line.split()[-1] for line in running.stdout if "http://" in line), running.pid
            running.terminate()


async def _timed(session: aiohttp.ClientSession, path: str) -> tuple[float, bytes]:
    began = time.perf_counter()
    async with session.get(path) as answer:
        assert answer.status == 200, (path, answer.status)
        body = await answer.read()
    return (time.perf_counter() - began) * 1000, body


async def _make(session: aiohttp.ClientSession, topics: int, subscriptions: int) -> float:
    """Seconds."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def make(number: int) -> None:
        async with turns:
            for subscription in range(subscriptions):
                async with session.put(f"/admin/v2/persistent/{NAMESPACE}/t-{number}/subscription/s-{subscription}") as answer:
                    assert answer.status == 204, (answer.status, await answer.text())

    began = time.perf_counter()
    await asyncio.gather(*map(make, range(topics)))
    return time.perf_counter() - began


async def _repeated(session: aiohttp.ClientSession, paths: list[str], pid: int) -> tuple[list[float], float, bytes]:
    """(ms of each, ms of the broker's CPU for one, the last body)"""
    before, times = cpu_seconds(pid), []
    for path in paths:
        took, body = await _timed(session, path)
        times.append(took)
    return times, (cpu_seconds(pid) - before) / len(paths) * 1000, body


async def measure(url: str, pid: int, topics: int, subscriptions: int, rounds: int) -> None:
    topic = f"/admin/v2/persistent/{NAMESPACE}/t-"
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=600)) as session:
        seconds = await _make(session, topics, subscriptions)
        calls = topics * subscriptions / seconds
        print(f"made        {topics} topics with {subscriptions} subscriptions each: {calls:,.0f} calls/s", flush=True)
        first, _ = await _timed(session, "/metrics")
        for what, paths in (("metrics", ["/metrics"] * rounds), ("stats", [f"{topic}{n * 7 % topics}/stats" for n in range(20 * rounds)]),
                            ("list", [f"/admin/v2/persistent/{NAMESPACE}"] * rounds)):
            times, cpu, body = await _repeated(session, paths, pid)
            series = sum(1 for line in body.splitlines() if not line.startswith(b"#"))
            size = f", {len(body) / 1e6:.1f} MB, {series:,} series, {first:.0f} ms the first time" if what == "metrics" else ""
            middle = statistics.median(times)
            print(f"{what:<11} {middle:.1f} ms ({min(times):.1f} to {max(times):.1f}), CPU {cpu:.1f} ms{size}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure administration")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--subscriptions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    with broker() as (url, pid):
        asyncio.run(measure(url, pid, asked.topics, asked.subscriptions, asked.rounds))


if __name__ == "__main__":
    main()
