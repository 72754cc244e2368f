"""Measures how long many messages take to expire, and how long others wait for the broker meanwhile.

    python -m tests.bench.expiry [--messages 1000000] [--size 100] [ttl ttl-letters own own-letters]

    ttl            all expire by the policy messageTTL, on a topic with one subscription
    ttl-letters    and become dead letters, by the policy deadLetter with `expired`
    own            all expire by `geminga.ttl`, as the policy ownMessageTTL is switched on
    own-letters    and become dead letters

Each row has a broker of its own, with one owner.  A producer on another topic publishes a message, waits for its
receipt, and publishes the next one 5 ms later, before messages expire and while they do.  A row says how long it took
from the policy until the subscription has no backlog, and the producer's times: median, 99th percentile, and longest.
"""
import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pulsar

sys.path.insert(0, str(Path(__file__).parent))
from link import Load
from load import Running, _subscribe_and_leave

from ..harness import Broker, path_of, request

TOPIC, OTHER, SUBSCRIPTION = "persistent://public/default/expiring", "persistent://public/default/other", "bench-0"
PAUSE_S, ALONE_S, LOOK_S, PATIENCE_S = 0.005, 5, 0.25, 3_600


class Prober(threading.Thread):
    """Publishes to another topic one by one, and keeps how long each message waited for its receipt, in ms."""

    def __init__(self, client: pulsar.Client) -> None:
        super().__init__(daemon=True)
        self._producer = client.create_producer(OTHER, batching_enabled=False)
        self._is_ending = threading.Event()
        self._waits_ms: list[float] = []

    def run(self) -> None:
        while not self._is_ending.wait(PAUSE_S):
            began = time.perf_counter()
            self._producer.send(b"x" * 100)
            self._waits_ms.append((time.perf_counter() - began) * 1000)

    def taken(self) -> str:
        """Return the times since the last call, in words."""
        waits_ms, self._waits_ms = self._waits_ms, []
        median, most, worst = np.percentile(waits_ms, (50, 99, 100))
        return f"{median:.1f} / {most:.1f} / {worst:.1f} ms of {len(waits_ms):,}"

    def end(self) -> None:
        self._is_ending.set()
        self.join()


def publish(broker: Broker, messages: int, size: int) -> None:
    """Publish messages with a time to live, each an entry of its own, to a topic with a subscription."""
    address = urlsplit(broker.service_url)
    load = Load(address.hostname, address.port, (TOPIC,), size, limit=messages, consumers=0, kind="shared", lead=0,
                ttl="1s")
    with Running(load, broker.pid) as running:
        _subscribe_and_leave(load)
        running.start_producers()
        running.finish_producers()


def ask(broker: Broker, method: str, path: str, body: object = None) -> str:
    status, text = request(method, f"{broker.http_url}/admin/v2/{path_of(TOPIC)}/{path}",
                           None if body is None else json.dumps(body).encode(), **{"Content-Type": "application/json"})
    assert status in (200, 204), text
    return text


def backlog(broker: Broker) -> int:
    return json.loads(ask(broker, "GET", "stats"))["subscriptions"][SUBSCRIPTION]["msgBacklog"]


def row(broker: Broker, what: str, messages: int, size: int) -> None:
    publish(broker, messages, size)
    client = pulsar.Client(broker.service_url, io_threads=1,
                           logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    if what.endswith("letters"):
        ask(broker, "POST", "deadLetter", {"expired": True})
    prober = Prober(client)
    prober.start()
    time.sleep(ALONE_S)
    alone = prober.taken()
    assert backlog(broker) == messages
    began = time.perf_counter()
    if what.startswith("own"):
        ask(broker, "POST", "ownMessageTTL", True)
    else:
        ask(broker, "POST", "messageTTL?messageTTL=1")
    while (left := backlog(broker)) and time.perf_counter() < began + PATIENCE_S:
        time.sleep(LOOK_S)
    took = time.perf_counter() - began
    print(f"{what:12} {messages - left:,} messages in {took:.1f} s: {(messages - left) / took:,.0f} a second; receipts "
          f"of another topic, before: {alone}, meanwhile: {prober.taken()}", flush=True)
    prober.end()
    client.close()


def main() -> None:
    rows = ("ttl", "ttl-letters", "own", "own-letters")
    parser = argparse.ArgumentParser(prog="python -m tests.bench.expiry", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="|".join(rows), help="all of them unless some are named")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a message")
    parser.add_argument("--folder", type=Path, help="where the brokers' data goes for the time being")
    asked = parser.parse_args()
    if unknown := set(asked.what) - set(rows):
        parser.error(f"nothing is called {', '.join(unknown)}")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    for what in asked.what or rows:
        with tempfile.TemporaryDirectory(prefix="expiry-", dir=asked.folder) as folder:
            broker = Broker(Path(folder) / "data", "--owners", "1").start()
            try:
                row(broker, what, asked.messages, asked.size)
            finally:
                broker.close()


if __name__ == "__main__":
    main()
