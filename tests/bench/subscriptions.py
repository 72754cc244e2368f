"""What subscriptions cost, on a broker of its own: acknowledgements in random order, many subscriptions, idle ones.

    python tests/bench/subscriptions.py [--entries 1000000] [--idle 10000]

    random    all entries are given to one consumer, then acknowledged in random order, a thousand to a command: the rate, and the
              owner's private memory per entry while all are out, and when half of them are holes and nobody is there
    many      one topic at 20,000 messages a second with one subscription and with ten: CPU of the broker per message and subscription
    idle      so many durable subscriptions of one topic without consumers: private memory, and CPU while nothing happens
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import wire
from link import CLOCK, Link, Load
from load import Running, measure, topic_names
from usage import cpu_seconds, memory_bytes

MANY, RATE, ROUNDS, SECONDS, SETTLE_S = 10, 20_000, 3, 5.0, 3.0
IDS_EACH = 1_000        # of one ACK
MIB = 1 << 20


@contextmanager
def broker() -> Iterator[tuple[str, int, int]]:
    """(host, port, pid) of one that lets a consumer have any number of messages."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {f"GEMINGA_STORAGE_MAX_UNACKED_MESSAGES_PER_{who}": "0" for who in ("CONSUMER", "SUBSCRIPTION")}
        command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/data"]
        command += ["--port", "0", "--http-port", "0"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            url = next(line.split()[-1] for line in running.stdout if "pulsar://" in line)
            host, _, port = url.removeprefix("pulsar://").rpartition(":")
            yield host, int(port), running.pid
            running.terminate()


def owners_memory(pid: int) -> int:
    """Private bytes of the processes that keep partitions."""
    return sum(memory_bytes(child.pid, "uss") for child in psutil.Process(pid).children() if child.name().startswith("geminga-o"))


def _collected(link: Link, entries: int) -> list[np.ndarray]:
    """The ids of so many messages as fields of an ACK, arrays (n, size) of those of one size."""
    found: dict[int, list[np.ndarray]] = {}
    while entries:
        starts = link.receive(1.0)
        starts = starts[link.data[starts + wire.KIND_AT] == wire.MESSAGE]
        entries -= len(starts)
        sizes = link.data[starts + wire.MESSAGE_ID_AT]
        for size in np.unique(sizes).tolist():
            at = starts[sizes == size, None] + wire.MESSAGE_ID_AT + np.arange(size + 1)
            rows = np.full((len(at), size + 2), 3 << 3 | 2, np.uint8)
            rows[:, 1:] = link.data[at]
            found.setdefault(size, []).append(rows)
    return [np.concatenate(rows) for rows in found.values()]


def random_order(host: str, port: int, pid: int, entries: int) -> None:
    load = Load(host, port, topic_names(1), kind="shared", limit=entries, lead=0, consumers=0)
    link = Link(load)
    request = wire.subscribe(load.topics[0], "random", "shared", wire.ID_FIRST, link.request_id(), "bench")
    link.ask("subscription", request, wire.SUCCESS)
    with Running(load, pid) as running:
        running.start_producers()
        running.finish_producers()
    time.sleep(SETTLE_S)
    before = owners_memory(pid)
    link.put(wire.flow(wire.ID_FIRST, entries))
    groups = _collected(link, entries)
    time.sleep(SETTLE_S)
    out = owners_memory(pid)
    shuffle = np.random.default_rng(1)
    commands = [wire.acknowledge(wire.ID_FIRST, wire.INDIVIDUAL, rows[at:at + IDS_EACH].tobytes())
                for rows in map(shuffle.permutation, groups) for at in range(0, len(rows), IDS_EACH)]
    shuffle.shuffle(commands)
    half = len(commands) // 2
    began, busy = CLOCK(), cpu_seconds(pid)
    for command in commands[:half]:
        link.put(command)
        while link.outbox:
            link.receive(0.01)
    link.ask("statistics", wire.frame(wire.CONSUMER_STATS, wire.number(1, link.request_id()) + wire.number(4, wire.ID_FIRST)),
             wire.CONSUMER_STATS_RESPONSE)      # answered behind them
    seconds, busy = CLOCK() - began, cpu_seconds(pid) - busy
    link.ask("end", wire.close_consumer(wire.ID_FIRST, link.request_id()), wire.SUCCESS)
    time.sleep(SETTLE_S)
    acknowledged = half * IDS_EACH
    rest = owners_memory(pid)
    print(f"random   {acknowledged / seconds:,.0f} acknowledgements/s, {busy / acknowledged * 1e6:.2f} us of broker CPU each; "
          f"private memory of owners: {(out - before) / entries:.2f} bytes an entry while out, {(rest - before) / MIB:.1f} MiB in all with "
          f"half of them holes")


def many(host: str, port: int, pid: int) -> None:
    taken: dict[int, list[float]] = {1: [], MANY: []}
    for _ in range(ROUNDS):
        for count, mine in taken.items():
            load = Load(host, port, topic_names(1), rate=RATE, consumers=count, subscriptions=count)
            mine.append(measure(load, pid=pid, warmup_s=2.0, seconds=SECONDS).cpu_us * count)      # it is given per arrival
    costs = [min(mine) for mine in taken.values()]      # what others do on the machine only adds
    print(f"many     {costs[0]:.2f} us of broker CPU a message with one subscription, {costs[1]:.2f} with {MANY}: "
          f"{(costs[1] - costs[0]) / (MANY - 1):.2f} for each more")


def idle(host: str, port: int, pid: int, count: int) -> None:
    topic = topic_names(1)[0]
    link = Link(Load(host, port, (topic,)))
    before = memory_bytes(pid, "uss")
    for number in range(count):
        link.ask("subscription", wire.subscribe(topic, f"idle-{number}", "shared", wire.ID_FIRST, link.request_id(), "bench"), wire.SUCCESS)
        link.ask("end", wire.close_consumer(wire.ID_FIRST, link.request_id()), wire.SUCCESS)
    time.sleep(SETTLE_S)
    after, busy = memory_bytes(pid, "uss"), cpu_seconds(pid)
    time.sleep(SECONDS)
    print(f"idle     {count} subscriptions: {(after - before) / MIB:.1f} MiB, {(cpu_seconds(pid) - busy) / SECONDS * 100:.2f} % of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--idle", type=int, default=10_000)
    asked = parser.parse_args()
    with broker() as (host, port, pid):
        many(host, port, pid)
        random_order(host, port, pid, asked.entries)
        idle(host, port, pid, asked.idle)


if __name__ == "__main__":
    main()
