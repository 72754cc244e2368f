"""Measures REST produce: messages a second over one connection, and the CPU time for each.

    python -m tests.bench.rest_produce [--seconds 5] [--size 100] [--rounds 3] [--pulsar HOST:PORT,pid=PID]

    one      a message to a request; each request waits for its answer
    hundred  a hundred messages to a request

CPU counts the processes that serve HTTP: the admin process and `geminga-web`.  The broker is one of its own.  --pulsar
names the web port of a standalone Pulsar, in turns with Geminga, and its process, which is the whole broker there.
"""
import argparse
import contextlib
import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from ..harness import Broker, unique_topic

TIMEOUT_S = 60.0
WARM_UP = 20                 # requests before the clock starts
KINDS = {"one": 1, "hundred": 100}


class Server(NamedTuple):
    """A server of REST produce, and the processes that count."""

    name: str
    host: str
    port: int
    pids: tuple[int, ...]

    @property
    def cpu_s(self) -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids)


def produce(server: Server, count: int, size: int, seconds: float) -> tuple[float, float]:
    """Return messages a second, and µs of CPU for each, with `count` messages to a request."""
    link = http.client.HTTPConnection(server.host, server.port, timeout=TIMEOUT_S)
    path = unique_topic("rest").replace("://", "/")
    body = json.dumps({"messages": [{"payload": "." * size}] * count})
    headers = {"Content-Type": "application/json"}

    def ask(method: str, where: str, said: str | None) -> bytes:
        link.request(method, where, said, headers if said else {})
        answer = link.getresponse()
        data = answer.read()
        assert answer.status in (200, 204), (answer.status, data)
        return data

    ask("PUT", f"/admin/v2/{path}", None)
    for _ in range(WARM_UP):
        ask("POST", f"/topics/{path}", body)
    before, began, sent = server.cpu_s, time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        data = ask("POST", f"/topics/{path}", body)
        assert b"errorMsg" not in data, data
        sent += count
    link.close()
    return sent / passed, (server.cpu_s - before) / sent * 1e6


@contextlib.contextmanager
def servers(pulsar: str | None) -> Iterator[list[Server]]:
    with tempfile.TemporaryDirectory(prefix="geminga-bench-") as folder:
        own = Broker(Path(folder) / "data").start()
        try:
            host, pids = urlsplit(own.http_url), (own.child("admin"), own.child("web"))
            assert host.hostname and host.port and all(pids)
            found = [Server("geminga", host.hostname, host.port, tuple(pid for pid in pids if pid))]
            if pulsar:
                place, _, number = pulsar.partition(",pid=")
                name, _, port = place.partition(":")
                found.append(Server("pulsar", name, int(port), (int(number),)))
            yield found
        finally:
            own.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pulsar", metavar="HOST:PORT,pid=PID")
    given = parser.parse_args()
    with servers(given.pulsar) as found:
        results: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(given.rounds):
            for kind, count in KINDS.items():
                for server in found:
                    results.setdefault((kind, server.name), []).append(
                        produce(server, count, given.size, given.seconds))
        for (kind, name), rows in results.items():
            rates, costs = zip(*rows, strict=True)
            print(f"{kind:<8} {name:<8} {statistics.median(rates):10,.0f} messages/s  "
                  f"{statistics.median(costs):7.1f} µs of CPU a message", flush=True)


if __name__ == "__main__":
    main()
