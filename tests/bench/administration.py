"""Measures what administration costs a broker with many topics, and what it costs message traffic meanwhile.

    python tests/bench/administration.py [--topics 10000] [--subscriptions 5] [--rounds 10] [--seconds 5]

    made        so many topics with so many subscriptions each, over HTTP: calls a second
    metrics     GET /metrics: its bytes, its series
    stats       GET .../stats of one topic, and of another
    list        GET of the namespace's topics
    table       GET /ops/v1/topics, the 20 topics with the highest rates; 1000 of them; the 20 oldest subscriptions

Each of these is printed as median, least and most time, with the CPU time of the broker's processes for one request.
The target for the median is 300 ms for /metrics, 10 ms for stats, 100 ms for the list and for tables.

    messages    published and consumed at full speed on one topic, so many seconds without administration and as many
                with it, in turns: /metrics at the beginning, then stats of a topic and the list of topics each second,
                over one connection

This is printed as the median of the rounds' ratios, whose target is 0.95, and as the CPU time that the broker's
processes spent on administration in a second.  The ratio has the machine's noise in it, the CPU time has not.
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
import psutil
from link import Load
from load import Running, address, topic_names
from usage import cpu_seconds

_AT_ONCE = 64
NAMESPACE = "public/default"


@contextmanager
def broker() -> Iterator[tuple[str, tuple[str, int], int]]:
    """Start a broker; yield (HTTP address, clients' address, pid)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/data"]
        command += ["--port", "0", "--http-port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            told = {line.split()[0]: line.split()[-1]
                    for line in iter(running.stdout.readline, "Publish a first message:\n")}
            yield told["http"], address(told["clients"].partition("://")[2]), running.pid
            running.terminate()


async def _timed(session: aiohttp.ClientSession, path: str) -> tuple[float, bytes]:
    began = time.perf_counter()
    async with session.get(path) as answer:
        assert answer.status == 200, (path, answer.status)
        body = await answer.read()
    return (time.perf_counter() - began) * 1000, body


async def _make(session: aiohttp.ClientSession, topics: int, subscriptions: int) -> float:
    """Make all topics and subscriptions; return the seconds that took."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def make(number: int) -> None:
        async with turns:
            for subscription in range(subscriptions):
                async with session.put(
                    f"/admin/v2/persistent/{NAMESPACE}/t-{number}/subscription/s-{subscription}"
                ) as answer:
                    assert answer.status == 204, (answer.status, await answer.text())

    began = time.perf_counter()
    await asyncio.gather(*map(make, range(topics)))
    return time.perf_counter() - began


async def _repeated(session: aiohttp.ClientSession, paths: list[str], pid: int) -> tuple[list[float], float, bytes]:
    """Repeat a request; return (ms of each, ms of the broker's CPU for one, the last body)."""
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
        for what, paths in (("metrics", ["/metrics"] * rounds),
                            ("stats", [f"{topic}{n * 7 % topics}/stats" for n in range(20 * rounds)]),
                            ("list", [f"/admin/v2/persistent/{NAMESPACE}"] * rounds),
                            ("table", ["/ops/v1/topics?limit=20"] * rounds),
                            ("table 1000", ["/ops/v1/topics?limit=1000"] * rounds),
                            ("oldest", ["/ops/v1/subscriptions?sort=oldest_seconds&limit=20"] * rounds)):
            times, cpu, body = await _repeated(session, paths, pid)
            series = sum(1 for line in body.splitlines() if not line.startswith(b"#"))
            size = (
                f", {len(body) / 1e6:.1f} MB, {series:,} series, {first:.0f} ms the first time"
                if what == "metrics"
                else ""
            )
            middle = statistics.median(times)
            print(f"{what:<11} {middle:.1f} ms ({min(times):.1f} to {max(times):.1f}), CPU {cpu:.1f} ms{size}",
                  flush=True)


async def _administer(session: aiohttp.ClientSession, seconds: float) -> None:
    end = time.monotonic() + seconds
    await _timed(session, "/metrics")
    while time.monotonic() < end:
        for path in (f"/admin/v2/persistent/{NAMESPACE}/t-0/stats", f"/admin/v2/persistent/{NAMESPACE}"):
            await _timed(session, path)
        await asyncio.sleep(min(1.0, max(0.0, end - time.monotonic())))


async def compare(url: str, clients: tuple[str, int], pid: int, rounds: int, seconds: float) -> None:
    [admin] = [one for one in psutil.Process(pid).children() if one.name() == "geminga-admin"]
    ratios, of_admin = [], []

    def cpu() -> float:
        return sum(admin.cpu_times()[:2])

    async with aiohttp.ClientSession(url) as session:
        with Running(Load(*clients, topic_names(1)), pid) as running:
            running.start_consumers()
            running.start_producers()
            running.wait(seconds)
            for number in range(rounds):
                rates, used = {}, {}
                # the order alternates, so that slow changes of the machine favour neither
                for is_administered in (number % 2, 1 - number % 2):
                    first, before = running.look(), cpu()
                    await (_administer(session, seconds) if is_administered else asyncio.sleep(seconds))
                    last = running.look()
                    rates[is_administered] = (last.arrived - first.arrived) / (last.at - first.at)
                    used[is_administered] = (cpu() - before) / (last.at - first.at)
                ratios.append(rates[1] / rates[0])
                of_admin.append(used[1] - used[0])
            running.finish_producers()
            running.finish_consumers()
    print(f"messages    {statistics.median(ratios):.3f} of the rate without administration ({min(ratios):.3f} to "
          f"{max(ratios):.3f}), "
          f"CPU of the admin process {statistics.median(of_admin) * 1000:.0f} ms a second", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure administration")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--subscriptions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5)
    asked = parser.parse_args()
    with broker() as (url, clients, pid):
        asyncio.run(measure(url, pid, asked.topics, asked.subscriptions, asked.rounds))
        asyncio.run(compare(url, clients, pid, asked.rounds, asked.seconds))


if __name__ == "__main__":
    main()
