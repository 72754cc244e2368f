"""Measures what subscriptions cost: acknowledgements in random order, many subscriptions, idle ones.

    python tests/bench/subscriptions.py [--entries 1000000] [--idle 10000] [--crowd 10000] [--only crowd]

    random    all entries are given to one consumer, then acknowledged in random order, a thousand to a command: the
              rate, and the owner's private memory per entry while all are pending, and when half of them are
              acknowledged and the consumer is gone
    many      one topic at 20,000 messages a second with one subscription and with ten: CPU of the broker per message
              and subscription
    idle      so many durable subscriptions of one topic without consumers: private memory, and CPU while nothing
              happens
    crowd     so many Key_Shared consumers of one subscription, on a hundred connections: time until all are attached,
              time until all are back after their owner was killed, and the longest time that a publisher to the topic
              waits for a receipt meanwhile
"""

import argparse
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import sends
from link import CLOCK, Link, Load
from load import Running, measure, topic_names
from usage import cpu_seconds, memory_bytes

from geminga.supervisor.load import wire

MANY, RATE, ROUNDS, SECONDS, SETTLE_S = 10, 20_000, 3, 5.0, 3.0
IDS_EACH = 1_000        # ids in one ACK
CROWD_CONNECTIONS = 100
CROWD_PATIENCE_S = 300
MIB = 1 << 20


@contextmanager
def broker(folder: str) -> Iterator[tuple[str, int, int]]:
    """Start a broker without a limit of unacknowledged messages; yield (host, port, pid)."""
    environment = os.environ | {f"GEMINGA_STORAGE_MAX_UNACKED_MESSAGES_PER_{who}": "0"
                                for who in ("CONSUMER", "SUBSCRIPTION")}
    command = [sys.executable, "-m", "geminga.supervisor.main", "serve", "--data-dir", f"{folder}/data"]
    command += ["--port", "0", "--http-port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        url = next(line.split()[-1] for line in running.stdout if "pulsar://" in line)
        host, _, port = url.removeprefix("pulsar://").rpartition(":")
        try:
            yield host, int(port), running.pid
        finally:
            running.terminate()


def owners_of(pid: int) -> list[psutil.Process]:
    """Return the owner processes of a broker."""
    return [child for child in psutil.Process(pid).children() if child.name().startswith("geminga-o")]


def owners_memory(pid: int) -> int:
    """Return the private bytes of the owners."""
    return sum(memory_bytes(owner.pid, "uss") for owner in owners_of(pid))


def collected(link: Link, entries: int) -> list[np.ndarray]:
    """Take so many messages; return their ids as fields of an ACK, in arrays (n, size) for ids of one size."""
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
    groups = collected(link, entries)
    time.sleep(SETTLE_S)
    out = owners_memory(pid)
    shuffle = np.random.default_rng(1)
    commands = [wire.acknowledge(wire.ID_FIRST, wire.INDIVIDUAL, rows[at:at + IDS_EACH].tobytes())
                for rows in map(shuffle.permutation, groups) for at in range(0, len(rows), IDS_EACH)]
    shuffle.shuffle(commands)
    half = len(commands) // 2
    began, busy = CLOCK(), cpu_seconds(pid)
    put_all(link, commands[:half])
    seconds, busy = CLOCK() - began, cpu_seconds(pid) - busy
    link.ask("end", wire.close_consumer(wire.ID_FIRST, link.request_id()), wire.SUCCESS)
    time.sleep(SETTLE_S)
    acknowledged = half * IDS_EACH
    rest = owners_memory(pid)
    print(f"random   {acknowledged / seconds:,.0f} acknowledgements/s, {busy / acknowledged * 1e6:.2f} us of broker "
          "CPU each; "
          f"private memory of owners: {(out - before) / entries:.2f} bytes an entry while out, "
          f"{(rest - before) / MIB:.1f} MiB in all with "
          f"half of them holes")


def put_all(link: Link, commands: list[bytes]) -> None:
    """Send commands, and wait until the owner has carried them out."""
    for command in commands:
        link.put(command)
        while link.outbox:
            link.receive(0.01)
    link.ask("statistics",
             wire.frame(sends.CONSUMER_STATS, wire.number(1, link.request_id()) + wire.number(4, wire.ID_FIRST)),
             sends.CONSUMER_STATS_RESPONSE)      # this answer comes behind all acknowledgements


def many(host: str, port: int, pid: int) -> None:
    taken: dict[int, list[float]] = {1: [], MANY: []}
    for _ in range(ROUNDS):
        for count, mine in taken.items():
            load = Load(host, port, topic_names(1), rate=RATE, consumers=count, subscriptions=count)
            # the CPU time is given per arrival
            mine.append(measure(load, pid=pid, warmup_s=2.0, seconds=SECONDS).cpu_us * count)
    costs = [min(mine) for mine in taken.values()]      # other work on the machine can only add to the least
    print(f"many     {costs[0]:.2f} us of broker CPU a message with one subscription, {costs[1]:.2f} with {MANY}: "
          f"{(costs[1] - costs[0]) / (MANY - 1):.2f} for each more")


def idle(host: str, port: int, pid: int, count: int) -> None:
    topic = topic_names(1)[0]
    link = Link(Load(host, port, (topic,)))
    before = memory_bytes(pid, "uss")
    for number in range(count):
        link.ask(
            "subscription",
            wire.subscribe(topic, f"idle-{number}", "shared", wire.ID_FIRST, link.request_id(), "bench"),
            wire.SUCCESS,
        )
        link.ask("end", wire.close_consumer(wire.ID_FIRST, link.request_id()), wire.SUCCESS)
    time.sleep(SETTLE_S)
    after, busy = memory_bytes(pid, "uss"), cpu_seconds(pid)
    time.sleep(SECONDS)
    print(f"idle     {count} subscriptions: {(after - before) / MIB:.1f} MiB, "
          f"{(cpu_seconds(pid) - busy) / SECONDS * 100:.2f} % of a core")


class Crowd:
    """Consumers of one subscription, and a producer; each asks again when it is closed or refused."""

    def __init__(self, host: str, port: int, topic: str, count: int):
        self.topic, self.there, self.count = topic, set(), count
        self.longest_s, self._sent = 0.0, CLOCK()
        self._selector, self._sequence = selectors.DefaultSelector(), 0
        for number in range(-1, CROWD_CONNECTIONS):
            one = socket.create_connection((host, port))
            one.sendall(wire.connect())
            self._selector.register(one, selectors.EVENT_READ, (number, bytearray()))
            if number < 0:
                self._witness = one
                one.sendall(wire.producer(topic, 1, 1, ""))
            else:
                one.sendall(b"".join(self._asked(consumer)
                                     for consumer in range(number + 1, count + 1, CROWD_CONNECTIONS)))

    def _asked(self, consumer: int) -> bytes:
        return wire.subscribe(self.topic, "crowd", "key_shared", consumer, consumer, f"consumer-{consumer}")

    def until_there(self) -> float:
        """Wait until all consumers are attached, and return the seconds."""
        began = CLOCK()
        while len(self.there) < self.count:
            if CLOCK() - began > CROWD_PATIENCE_S:
                raise SystemExit(f"crowd    only {len(self.there)} of {self.count} consumers are there after "
                                 f"{CROWD_PATIENCE_S} s")
            self._listen()
        self.longest_s = max(self.longest_s, CLOCK() - self._sent)      # the message without a receipt waits too
        return CLOCK() - began

    def _listen(self) -> None:
        for key, _ in self._selector.select(0.1):
            number, inbox = key.data
            inbox += key.fileobj.recv(1 << 20)
            starts, end = wire.frame_starts(np.frombuffer(bytes(inbox), np.uint8), len(inbox))
            answer = b"".join(self._answer(number, *wire.command_of(inbox, start)) for start in starts.tolist())
            del inbox[:end]
            if answer:
                key.fileobj.sendall(answer)

    def _answer(self, number: int, kind: int, fields: dict) -> bytes:
        if kind == wire.PING:
            return wire.pong()
        if number < 0:
            return self._answer_witness(kind)
        if kind == wire.SUCCESS:
            self.there.add(fields[1])
            return wire.flow(fields[1], 10)
        if kind in (wire.CLOSE_CONSUMER, wire.ERROR):
            self.there.discard(fields[1])
            return self._asked(fields[1])
        return b""

    def _answer_witness(self, kind: int) -> bytes:
        if kind in (wire.CLOSE_PRODUCER, wire.ERROR):
            self._sent = CLOCK() if kind == wire.CLOSE_PRODUCER else self._sent
            return wire.producer(self.topic, 1, 1, "")
        if kind in (wire.SEND_RECEIPT, wire.PRODUCER_SUCCESS):
            self.longest_s = max(self.longest_s, CLOCK() - self._sent)
        if kind not in (wire.SEND_RECEIPT, wire.PRODUCER_SUCCESS):
            return b""
        self._sent, self._sequence = CLOCK(), self._sequence + 1
        return wire.frame(wire.SEND, wire.number(1, 1) + wire.number(2, self._sequence),
                          sends.entry("witness", b"x", key=f"key-{self._sequence}"))

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()


def crowd(host: str, port: int, pid: int, count: int) -> None:
    found = Crowd(host, port, topic_names(1)[0], count)
    first, waited, owners = found.until_there(), found.longest_s, owners_of(pid)
    found.longest_s = 0.0
    found.there.clear()
    for owner in owners:      # one of the owners has the topic; its CLOSE_CONSUMER reaches every consumer
        os.kill(owner.pid, signal.SIGKILL)
    back = found.until_there()
    print(f"crowd    {count} consumers: there after {first:.1f} s, longest without a receipt {waited:.2f} s; back "
          f"{back:.1f} s after their "
          f"owner was killed, longest without a receipt {found.longest_s:.2f} s")
    found.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--crowd", type=int, default=10_000)
    parser.add_argument("--only", choices=["many", "random", "idle", "crowd"])
    asked = parser.parse_args()
    rows = {"many": lambda *at: many(*at), "random": lambda *at: random_order(*at, asked.entries),
            "idle": lambda *at: idle(*at, asked.idle), "crowd": lambda *at: crowd(*at, asked.crowd)}
    with tempfile.TemporaryDirectory() as folder, broker(folder) as at:
        for row in [asked.only] if asked.only else rows:
            rows[row](*at)


if __name__ == "__main__":
    main()
