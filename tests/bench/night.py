"""Measures what a nightly run costs publishers: times of publishing before, during and after it.

    python -m tests.bench.night [--messages 10000000] [--rate 2000] [--rounds 3] [--seconds 20]

A broker of its own has a topic with so many messages of 100 B and a million keys, 100 to an entry.  A producer
publishes to another topic at the rate, with a consumer behind it, while `geminga nightly` compacts the first by Spark.
Each round has a topic of its own, whose night has to last longer than a measurement does; a line says where it did not.
The ratio compares a round's 99th percentile during the night with the mean of those before and after, and the table at
the end with that before.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from link import Load
from load import measure, topic_names

from ..harness import COMMAND, Broker, request
from .compaction import published, write_topic

KEYS, BATCH, WARMUP_S = 1_000_000, 100, 3.0


def times(broker: Broker, rate: float, seconds: float) -> tuple[float, float]:
    """Return (median, 99th percentile) of publishing, in ms."""
    address = urlsplit(broker.service_url)
    load = Load(address.hostname, address.port, topic_names(1), rate=rate)
    found = measure(load, pid=broker.pid, warmup_s=WARMUP_S, seconds=seconds).publish_ms
    return float(np.percentile(found, 50)), float(np.percentile(found, 99))


def ratio(found: list[tuple[float, float]]) -> float:
    (_, before), (_, during), (_, after) = found
    return during / ((before + after) / 2)


def told(found: list[tuple[float, float]]) -> str:
    each = (f"{when} p50 {p50:.2f} p99 {p99:.2f} ms"
            for when, (p50, p99) in zip(("before", "during", "after"), found, strict=True))
    return f"{'; '.join(each)}; ratio {ratio(found):.2f}"


def table(rounds: list[list[tuple[float, float]]]) -> str:
    """Return a table of the p99 of each round, with its ratios to the time before."""
    lines = ["", "| p99 before | meanwhile | after | meanwhile to before |", "|---:|---:|---:|---:|"]
    for (_, before), (_, during), (_, after) in rounds:
        lines.append(f"| {before:.2f} ms | {during:.2f} ms | {after:.2f} ms | {during / before:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.night", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rate", type=float, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="night-", dir=options.folder) as folder:
        broker = Broker(Path(folder) / "data").start()
        try:
            (Path(folder) / "written").mkdir()
            topic = write_topic(Path(folder) / "written", options.messages, KEYS, BATCH, 0)
            retained = json.dumps({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}).encode()
            # Without it only the last ledger of a topic without subscriptions would stay, and nights would be short.
            status, text = request("POST", f"{broker.http_url}/admin/v2/namespaces/public/default/retention", retained)
            assert status == 204, text
            rounds = []
            for _ in range(options.rounds):
                name = topic_names(1)[0]
                published(broker.service_url, topic, name)
                found = [times(broker, options.rate, options.seconds)]
                job = subprocess.Popen([*COMMAND[:-1], "nightly", "--data-dir", broker.data_dir, "--topic", name],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                started = time.monotonic()
                found.append(times(broker, options.rate, options.seconds))
                is_under_way = job.poll() is None
                status, took = job.wait(), time.monotonic() - started
                found.append(times(broker, options.rate, options.seconds))
                rounds.append(found)
                print(f"{told(found)}; load average {os.getloadavg()[0]:.1f}; the job ended with status {status} "
                      f"after {took:.0f} s"
                      + ("" if is_under_way else ", before it had been measured"), flush=True)
            ratios = [ratio(found) for found in rounds]
            print(f"medians of {options.rounds} rounds: {told(np.median(rounds, axis=0).tolist())}; of the ratios "
                  f"{np.median(ratios):.2f} "
                  f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
            print(table(rounds), flush=True)
        finally:
            broker.close()


if __name__ == "__main__":
    main()
