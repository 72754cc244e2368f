"""Measures how long a start takes after a SIGKILL, with much on disk and journals full.

    python tests/bench/start.py [--topics 1000] [--megabytes 10240] [--size 8000] [--starts 5] [--keep FOLDER]

    filled      topics with a subscription each, whose messages are not acknowledged: messages, seconds
    killed      while every topic is published to
    ready       seconds from the start until the broker serves, its log line about journals, and memory then (PSS)

Each start is killed as soon as it is ready, so all starts have the same to do.  The target is less than two seconds.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import pulsar
from usage import memory_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import Broker

_ROUND = 20     # messages to each topic without a receipt when the broker is killed


def _fill(broker: Broker, topics: int, rounds: int, payload: bytes) -> int:
    """Publish, and return the number of messages with a receipt."""
    receipted = 0

    def answered(result: pulsar.Result, _) -> None:
        nonlocal receipted
        receipted += result == pulsar.Result.Ok

    client = pulsar.Client(broker.service_url, io_threads=2,
                           logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    names = [f"persistent://public/default/start-{number}" for number in range(topics)]
    for name in names:
        client.subscribe(name, "nobody").close()
    producers = [client.create_producer(name, max_pending_messages=0, batching_enabled=False) for name in names]
    for _ in range(rounds):
        for producer in producers:
            producer.send_async(payload, answered)
        for producer in producers:
            producer.flush()
    for _ in range(_ROUND):
        for producer in producers:
            producer.send_async(payload, answered)
    broker.kill_supervisor()
    return receipted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=10_240)
    parser.add_argument("--size", type=int, default=8_000)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="data folder that is used as it is, or filled and left")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(options.keep or Path(folder) / "data")
        if not broker.data_dir.exists():
            rounds, began = max(1, (options.megabytes << 20) // (options.topics * options.size)), time.perf_counter()
            broker.start()
            receipted = _fill(broker, options.topics, rounds, os.urandom(options.size))
            print(f"filled  {receipted:,} messages of {options.size} bytes, {time.perf_counter() - began:.0f} s",
                  flush=True)
        for _ in range(options.starts):
            before = len(broker.log())
            broker.start()
            log = broker.log()[before:]
            put = sum(map(int, re.findall(r"has put (\d+) entries", log)))
            [ready] = re.findall(r"is ready after ([\d.]+) s", log)
            memory = memory_bytes(broker.pid, "pss") / (1 << 20)
            broker.kill_supervisor()
            print(f"ready   after {ready} s, {put:,} entries put in place, {memory:.0f} MiB", flush=True)
    os._exit(0)      # threads of the client still look for a broker


if __name__ == "__main__":
    main()
