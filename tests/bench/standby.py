"""Measures what a standby costs its broker: the rate of publishing, and CPU for each message.

    python -m tests.bench.standby [--rounds 5] [--messages 300000] [--size 1K] [--batch 1] [--rate N]

Two brokers of the same kind run beside each other, one of them with a standby.  The same load publishes to both in
turns, so that a machine that becomes slower does so for both.  Without --rate as much is published as goes.

    rate     messages a second, with and without the standby, and their ratio
    CPU      µs a message: the broker without the feed's process, that process, and the standby
    behind   time from the last receipt until everything was on the standby's disk

The standby runs on the same machine: where all cores are busy, its own CPU is missing from the rate, which it would not
be on a host of its own.
"""
import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from ..harness import Broker
from ..standby.pair import GEMINGA, Standby

_FEED = "geminga.supervisor.standby.feed"


def cpu_s(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process and all below it: without the feed of a standby, and of the feed."""
    ours, feed = 0.0, 0.0
    for process in (top := psutil.Process(pid), *top.children(recursive=True)):
        try:
            times, is_feed = process.cpu_times(), _FEED in process.cmdline()
        except psutil.NoSuchProcess:      # it has just ended
            continue
        seconds = times.user + times.system
        ours, feed = (ours, feed + seconds) if is_feed else (ours + seconds, feed)
    return ours, feed


def publish(broker: Broker, given: argparse.Namespace) -> float:
    """Publish to a topic of its own and return the rate, in messages a second."""
    words = [GEMINGA, "bench", "--url", broker.service_url, "--http-url", broker.http_url, "-c", "0", "-n",
             str(given.messages), "--size", given.size, "--batch", str(given.batch), "-o", "json"]
    words += ["--rate", given.rate] if given.rate else []
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["published_rate"])


def measure(broker: Broker, standby: Standby | None, given: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one turn: a rate in messages a second, CPU in µs a message, `behind` in seconds."""
    before = cpu_s(broker.pid), cpu_s(standby.pid) if standby else (0.0, 0.0)
    rate = publish(broker, given)
    ended = time.monotonic()
    if standby is not None:
        standby.wait_complete(600)
    behind = time.monotonic() - ended
    after = cpu_s(broker.pid), cpu_s(standby.pid) if standby else (0.0, 0.0)
    costs = {"broker": after[0][0] - before[0][0], "feed": after[0][1] - before[0][1],
             "standby": sum(after[1]) - sum(before[1])}
    return {"rate": rate, "behind": behind, **{name: cost / given.messages * 1e6 for name, cost in costs.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--size", default="1K", help="of a payload")
    parser.add_argument("--batch", type=int, default=1, help="messages of an entry")
    parser.add_argument("--rate", help="messages a second; else as many as go")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="geminga-bench-") as folder:
        alone, followed = (Broker(Path(folder) / name).start() for name in ("alone", "followed"))
        standby = Standby(Path(folder) / "standby", followed.service_url).start()
        try:
            standby.wait_complete()
            found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for number in range(given.rounds):
                for has_standby in (number % 2 == 0, number % 2 == 1):
                    found[has_standby].append(measure(followed, standby, given) if has_standby
                                              else measure(alone, None, given))
        finally:
            for one in (standby, followed, alone):
                one.close()
    without, with_one = ({name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
                         for turns in found.values())
    for name, figures in (("without", without), ("with", with_one)):
        print(f"{name:8} {figures['rate']:9,.0f} messages/s  {figures['broker']:6.2f} µs of CPU a message")
    rates, costs = (with_one[name] / without[name] for name in ("rate", "broker"))
    print(f"ratio    {rates:9.3f}             {costs:6.3f}")
    print(f"feed {with_one['feed']:.2f} µs, standby {with_one['standby']:.2f} µs of CPU a message; "
          f"everything on the standby's disk after {with_one['behind']:.2f} s")


if __name__ == "__main__":
    main()
