"""Measures scalable topics: through the client of Pulsar 5, while segments split, and at rest.

    python tests/bench/scalable.py [--turns 3] [--seconds 10] [--size 100] [--splits 4] [--rate 50000]
                                   [--topics 1000] [--watches 5] [--other NAME,pulsar://HOST:PORT,http://HOST:PORT,PID]

    load       a producer and a stream consumer on a topic of four segments, as fast as they go, messages of a size
               under 1,000 keys: messages a second out of the broker, and its CPU time for each.  Brokers take turns.
    splits     the same at a rate, while segments split one after another: 99th percentile and longest time to a
               receipt at the client, of the time without splits and with them
    rest       memory (PSS) of so many scalable topics with so many watches each, in KiB a topic; then the time until
               the broker is ready after SIGKILL, beside that of as many topics without segments

Needs Java and Maven, which fetches the client.  `--other` names a second broker that is measured in the same run, such
as a Pulsar 5; it takes no part in `rest`.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.bench.usage import cpu_seconds, memory_bytes
from tests.clients.java import OPENED, fetch_v5_jars
from tests.harness import Broker, request, unique_topic
from tests.proto.client_frames import T, command
from tests.workers.peer import Peer

SOURCE = Path(__file__).with_name("ScalableLoad.java")
SEGMENTS, WARM_S, SETTLE_S, CONNECTIONS, CREATORS = 4, 8, 3, 10, 4


@dataclass
class Measured:
    """A broker: its name in the output, addresses, and the process at the top of its own."""

    name: str
    service_url: str
    http_url: str
    pid: int

    def put(self, path: str, verb: str = "PUT") -> None:
        status, answer = request(verb, f"{self.http_url}/admin/v2/{path}", b"")
        if status >= 300:
            raise RuntimeError(f"{self.name}: {verb} {path}: {status} {answer!r}")


class Program:
    """The Java program of this measurement on a topic, which `asked` looks at."""

    def __init__(self, broker: Measured, topic: str, rate: int, size: int):
        opened = [option for package in OPENED for option in ("--add-opens", f"{package}=ALL-UNNAMED")]
        command = ["java", "-Xmx1g", "-Dio.netty.tryReflectionSetAccessible=true", *opened]
        command += ["-cp", f"{fetch_v5_jars()}/*", str(SOURCE), broker.service_url, topic, str(rate), str(size)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)
        self._line()      # ready
        self.asked(WARM_S)

    def asked(self, after_s: float) -> dict[str, float]:
        time.sleep(after_s)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._line()
        return json.loads(line)

    def _line(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the program with the client ended")
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def created(broker: Measured) -> str:
    name = unique_topic().rpartition("/")[2]
    broker.put(f"scalable/public/default/{name}?numInitialSegments={SEGMENTS}")
    return name


def load(broker: Measured, seconds: float, size: int) -> tuple[float, float]:
    """Return messages a second that were received, and CPU microseconds of the broker for each."""
    with closing(Program(broker, f"topic://public/default/{created(broker)}", 0, size)) as program:
        program.asked(0)
        before = cpu_seconds(broker.pid)
        found = program.asked(seconds)
        return (found["received"] / found["seconds"], (cpu_seconds(broker.pid) - before) / found["received"] * 1e6)


def splits(broker: Measured, seconds: float, count: int, rate: int, size: int) -> tuple[dict[str, float], ...]:
    """Return what the client saw without splits, and during `count` of them."""
    name = created(broker)
    with closing(Program(broker, f"topic://public/default/{name}", rate, size)) as program:
        program.asked(0)
        quiet = program.asked(seconds)
        for segment in range(count):
            broker.put(f"scalable/public/default/{name}/split/{segment}", verb="POST")
            time.sleep(seconds / count)
        return quiet, program.asked(0)


def rest(topics: int, each: int) -> None:
    """Print memory and starts of brokers that have so many topics, of segments and without."""
    for kind, path in (("scalable", "scalable"), ("plain", "persistent")):
        with own_broker() as (harness, broker):
            time.sleep(SETTLE_S)
            empty = memory_bytes(broker.pid, "pss")
            with ThreadPoolExecutor(CREATORS) as creators:
                list(creators.map(broker.put, [f"{path}/public/default/{number}" for number in range(topics)]))
            with watched(broker, topics, each if kind == "scalable" else 0) as count:
                time.sleep(SETTLE_S)
                kib = (memory_bytes(broker.pid, "pss") - empty) / 1024 / topics
            print(f"rest    {kind}: {kib:.1f} KiB a topic with {count} watches", flush=True)
            harness.kill_all()
            began = time.monotonic()
            harness.start()
            print(f"rest    {kind}: ready {time.monotonic() - began:.2f} s after SIGKILL", flush=True)


@contextmanager
def watched(broker: Measured, topics: int, each: int) -> Iterator[int]:
    """Have each topic watched by so many of a few connections; yield the number of watches."""
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(broker.service_url)) for _ in range(CONNECTIONS)]
        for number in range(topics * each):
            peer = peers[number % CONNECTIONS]
            topic = f"topic://public/default/{number // each}"
            peer.say(command(T.SCALABLE_TOPIC_LOOKUP, session_id=number, topic=topic))
            if not peer.hear().scalableTopicUpdate.HasField("dag"):
                raise RuntimeError(f"{topic} has no layout")
        yield topics * each


@contextmanager
def own_broker() -> Iterator[tuple[Broker, Measured]]:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder) / "data").start()
        try:
            yield broker, Measured("geminga", broker.service_url, broker.http_url, broker.pid)
        finally:
            broker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["load", "splits", "rest"])
    defaults = {"turns": 3, "seconds": 10, "size": 100, "splits": 4, "rate": 50_000, "topics": 1_000, "watches": 5}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--other", action="append", default=[])
    said = parser.parse_args()
    with own_broker() as (_, broker):
        brokers = [broker]
        for other in said.other:
            name, service_url, http_url, pid = other.split(",")
            brokers.append(Measured(name, service_url, http_url, int(pid)))
        found: dict[str, list[tuple[float, float]]] = {each.name: [] for each in brokers}
        for _ in range(said.turns if "load" in said.what else 0):
            for each in brokers:
                rate, cpu_us = load(each, said.seconds, said.size)
                found[each.name].append((rate, cpu_us))
                print(f"load    {each.name}: {rate:,.0f} messages/s, {cpu_us:.1f} us of CPU each", flush=True)
        for name, rows in found.items():
            if rows:
                rate, cpu_us = (statistics.median(column) for column in zip(*rows, strict=True))
                print(f"load    {name}: medians {rate:,.0f} messages/s, {cpu_us:.1f} us", flush=True)
        for each in brokers if "splits" in said.what else ():
            rows = splits(each, said.seconds, said.splits, said.rate, said.size)
            for what, row in zip(("quiet", "splits"), rows, strict=True):
                print(f"splits  {each.name}, {what}: {row['published'] / row['seconds']:,.0f} messages/s, "
                      f"p99 {row['p99']:.0f} ms, longest {row['longest']:.0f} ms", flush=True)
    if "rest" in said.what:
        rest(said.topics, said.watches)


if __name__ == "__main__":
    main()
