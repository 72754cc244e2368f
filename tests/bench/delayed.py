"""Measures what delayed messages cost: memory, disk, starts, publishing and delivery; and how late they come.

    python -m tests.bench.delayed [hold publish together late] [--messages 10000000] [--together 1000000]
                                  [--seconds 20] [--rounds 3]
                                  [--other NAME COMMAND pulsar://HOST:PORT http://HOST:PORT]

    hold       so many messages over 30 days, on one topic: growth of the broker's memory, bytes of index on disk for
               each, time from the start after a SIGKILL to the first message that fell due meanwhile, time to list
               waiting messages
    publish    the rates of ordinary messages, of delayed ones, and of messages on a topic with a fixed delay, in turns
    together   many messages that fall due within one second, beside as many ordinary ones that wait for a consumer, on
               a Shared subscription
    late       how late messages come that are due at random moments, while others are published

Each row has a broker of its own.  --other names more brokers of the protocol, for `hold` and `late`; COMMAND starts one
in the foreground, on a folder that it keeps.  Memory is the PSS of all the broker's processes, and the part of it that
belongs to no file.
"""

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import sends

sys.path.insert(0, str(Path(__file__).parent))
from clients import Consumer
from link import CLOCK, BrokerError, Link, Load
from load import Running, _subscribe_and_leave, measure, measure_backlog, topic_names
from usage import cpu_seconds

from geminga.supervisor.load import wire

from ..harness import COMMAND, Broker

MIB = 1 << 20
HOUR_S, MONTH_S = 3_600, 30 * 24 * 3_600
DUE, DUE_S = 1_000, 4          # messages that fall due while the broker is dead, and within how many seconds
SETTLE_S, PATIENCE_S = 4, 900
TICK_MS = 1_000


class Ours:
    """A geminga broker on an empty folder."""

    name = "geminga"

    def __init__(self, folder: Path):
        self._broker = Broker(folder / "data")

    def start(self) -> None:
        self._broker.start()
        self.service_url, self.http_url, self.pid = self._broker.service_url, self._broker.http_url, self._broker.pid

    def kill(self) -> None:
        self._broker.kill_supervisor()

    def close(self) -> None:
        self._broker.close()

    def index_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._broker.data_dir.glob("partitions/*/delayed/*"))


class Other:
    def __init__(self, name: str, command: str, service_url: str, http_url: str):
        self.name, self.service_url, self.http_url, self._command = name, service_url, http_url, shlex.split(command)

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         start_new_session=True)
        self.pid = self._process.pid

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    close = kill


def memory(pid: int) -> tuple[int, int]:
    """Return (PSS, anonymous part of it) of the process and all below it, in bytes."""
    top, found = psutil.Process(pid), {"Pss:": 0, "Pss_Anon:": 0}
    for process in [top, *top.children(recursive=True)]:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]:
            if (words := line.split())[0] in found:
                found[words[0]] += int(words[1]) << 10
    return found["Pss:"], found["Pss_Anon:"]


def stats(broker, topic: str) -> dict:
    with urllib.request.urlopen(f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats") as answer:
        return json.load(answer)["subscriptions"]["bench-0"]


def load_of(broker, **how) -> Load:
    address = urlsplit(broker.service_url)
    return Load(address.hostname, address.port, **{"topics": topic_names(1), "kind": "shared"} | how)


def attached(broker, load: Load) -> Link:
    """Attach a consumer with permits; the request is repeated until the broker is there and accepts it."""
    give_up = CLOCK() + PATIENCE_S
    while True:
        try:
            link = Link(load)
            link.find(load.topics[0])
            request = wire.subscribe(load.topics[0], f"{load.subscription}-0", "shared", wire.ID_FIRST,
                                     link.request_id(), "bench")
            link.ask("subscription", request, wire.SUCCESS)
            link.put(wire.flow(wire.ID_FIRST, DUE))
            return link
        except BrokerError:
            if CLOCK() > give_up:
                raise
            time.sleep(0.01)


def publish(load: Load, pid: int, messages: int, **how) -> float:
    """Publish so many messages without consumers, and return the seconds that took."""
    began = CLOCK()
    with Running(replace(load, limit=messages // load.connections, consumers=0, lead=0, **how), pid) as running:
        running.start_producers()
        running.finish_producers()
    return CLOCK() - began


# -- hold

def hold(broker, messages: int) -> None:
    load = load_of(broker)
    attached(broker, load).socket.close()
    publish(load_of(broker), broker.pid, 200_000)      # memory that any load needs is there before the measurement
    time.sleep(SETTLE_S)
    before = memory(broker.pid)
    took = publish(load, broker.pid, messages, delay_s=(HOUR_S, MONTH_S))
    published = memory(broker.pid)
    link, waited = attached(broker, load), CLOCK()
    while (found := stats(broker, load.topics[0]))["msgDelayed"] < messages and CLOCK() < waited + PATIENCE_S:
        hear(link, 0.5)
    seconds = CLOCK() - waited
    time.sleep(SETTLE_S)
    after = memory(broker.pid)
    grown = ", ".join(f"{what} {(now - then) / MIB:+.1f} MiB" for what, now, then in
                      (("PSS", after[0], before[0]), ("anonymous", after[1], before[1]),
                       ("just published: PSS", published[0], before[0]),
                       ("anonymous", published[1], before[1])))
    print(f"hold      {broker.name}: {messages:,} messages published in {took:.0f} s; memory {before[0] / MIB:.0f} "
          f"MiB, grown: {grown} "
          f"(target: less than 50); {found['msgDelayed']:,} known to wait after {seconds:.1f} s; "
          f"{index_of(broker, found, messages)}", flush=True)
    if isinstance(broker, Ours):
        lists(broker, load.topics[0])
    link.socket.close()
    publish(load, broker.pid, DUE, delay_s=(DUE_S, DUE_S + 0.5))
    broker.kill()
    time.sleep(DUE_S + 1)
    began = CLOCK()
    broker.start()
    up = CLOCK() - began
    link = attached(broker, load)
    came, busy = first_message(link) - began, cpu_seconds(broker.pid)
    link.socket.close()
    print(f"restart   {broker.name}: {came:.2f} s from the start to the first message that was due, {up:.2f} of them "
          "until the start "
          f"has returned (target: less than 2); {busy:.2f} s of CPU; load average {os.getloadavg()[0]:.1f}", flush=True)


def index_of(broker, found: dict, messages: int) -> str:
    if isinstance(broker, Ours):
        return f"index on disk {broker.index_bytes() / messages:.1f} bytes a message (target: less than 24)"
    return f"index as it is told {found['delayedMessageIndexSizeInBytes'] / messages:.1f} bytes a message"


def hear(link: Link, seconds: float) -> int:
    """Return how many messages came, and answer other commands."""
    starts = link.receive(seconds)
    is_message = link.data[starts + wire.KIND_AT] == wire.MESSAGE
    for start in starts[~is_message]:
        link.meet(int(start), "waiting")
    return int(is_message.sum())


def first_message(link: Link) -> float:
    give_up = CLOCK() + PATIENCE_S
    while CLOCK() < give_up:
        if hear(link, 0.05):
            return CLOCK()
    raise BrokerError(f"nothing came within {PATIENCE_S} s")


def lists(broker: Ours, topic: str) -> None:
    """Measure how long it takes to list waiting messages by hour."""
    by_http, by_command = [], []
    for _ in range(5):
        began = CLOCK()
        with urllib.request.urlopen(f"{broker.http_url}/ops/v1/delayed/{topic.replace('://', '/')}") as answer:
            rows = json.load(answer)["rows"]
        by_http.append(CLOCK() - began)
        began = CLOCK()
        subprocess.run([*COMMAND[:-1], "admin", "--admin-url", broker.http_url, "delayed", "list", topic], check=True,
                       capture_output=True)
        by_command.append(CLOCK() - began)
    print(
        f"list      {len(rows)} hours with {sum(row['entries'] for row in rows):,} messages: "
        f"{statistics.median(by_http) * 1000:.0f} ms over HTTP, "
        f"{statistics.median(by_command) * 1000:.0f} ms by the command with its start (target: less than 100)",
        flush=True,
    )


# -- publish

def publishing(broker, seconds: float, rounds: int) -> None:
    kinds = {"ordinary": None, "delayed": (HOUR_S, MONTH_S), "fixed delay": None}
    topics, rates = dict(zip(kinds, topic_names(len(kinds)), strict=True)), {kind: [] for kind in kinds}
    publish(load_of(broker, topics=[topics["fixed delay"]]), broker.pid, 1)
    fix_delay(broker, topics["fixed delay"])
    for _ in range(rounds):
        for kind, delay_s in kinds.items():
            load = load_of(broker, topics=[topics[kind]], consumers=0, delay_s=delay_s)
            rates[kind].append(measure(load, pid=broker.pid, warmup_s=2, seconds=seconds).published_rate)
    ordinary, *others = (statistics.median(found) for found in rates.values())
    told = ", ".join(f"{kind} {one:,.0f}: {one / ordinary:.2f} of it"
                     for kind, one in zip([*kinds][1:], others, strict=True))
    print(f"publish   {ordinary:,.0f} ordinary messages a second; {told} (target: 0.9 at least); "
          f"rounds {[[round(rate) for rate in found] for found in rates.values()]}", flush=True)


def fix_delay(broker, topic: str) -> None:
    """Give the topic a fixed delay of an hour."""
    policy = {"active": True, "tickTime": TICK_MS, "fixedDeliveryDelayInMillis": HOUR_S * 1_000}
    address = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/delayedDelivery"
    urllib.request.urlopen(
        urllib.request.Request(address, json.dumps(policy).encode(), {"Content-Type": "application/json"})
    ).close()


# -- together

def together(broker, messages: int, rounds: int) -> None:
    ordinary, delayed, last = [], [], []
    rate = 50_000.0                          # the rate of publishing: all messages fall due when the last is published
    for _ in range(rounds):
        ordinary.append(measure_backlog(load_of(broker), messages, pid=broker.pid).arrived_rate)
        due_at = time.time() + 3 * SETTLE_S + 1.5 * messages / rate
        load = load_of(broker, delay_s=(0, 1), due_at=due_at, lead=0, limit=messages)
        with Running(load, broker.pid) as running:
            _subscribe_and_leave(load)
            running.start_producers()
            running.finish_producers()
            running.start_consumers()
            if time.time() > due_at:
                raise BrokerError("they were due before all were published")
            while time.time() < due_at + 1:
                running.wait(0.001)
            began, lag, before = CLOCK(), time.time() - CLOCK(), sum(running.board.arrived)
            running.until_arrived(messages)
            [consumed] = running.finish_consumers()
        delayed.append((messages - before) / (consumed["last_at"] - began))
        last.append(consumed["last_at"] + lag - due_at - 1)
    one, other = statistics.median(delayed), statistics.median(ordinary)
    print(f"together  {messages:,} within one second: {one:,.0f} a second, ordinary ones that wait {other:,.0f}: "
          f"{one / other:.2f} "
          f"of their rate (target: 0.5 at least); the last came {statistics.median(last):.2f} s after its time",
          flush=True)


# -- late

class LateConsumer(Consumer):
    """Remembers how late each message was."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.late_ms: list[np.ndarray] = []

    def _take(self, starts: np.ndarray) -> None:
        data, now_ms = self.link.data, time.time() * 1000
        ends = starts + 4 + data[starts[:, None] + np.arange(4)].astype(np.int64) @ (1 << np.array([24, 16, 8, 0]))
        self.late_ms.append(now_ms - sends.deliver_at_of(data, ends, self.load.size_bytes))
        super()._take(starts)

    def run(self) -> dict:
        return super().run() | {"late_ms": np.concatenate([*self.late_ms, np.zeros(0)])}


class LateRunning(Running):
    def start_consumers(self) -> None:
        self.consumers = self._start(LateConsumer, self.load.consumers)


def late(broker, seconds: float, rate: float, others_rate: float) -> None:
    attached(broker, load_of(broker)).socket.close()
    delayed = load_of(broker, rate=rate, delay_s=(1, 10))
    with (
        LateRunning(delayed, broker.pid) as running,
        Running(load_of(broker, kind="exclusive", rate=others_rate), broker.pid) as others,
    ):
        for one in (others, running):
            one.start_consumers()
            one.start_producers()
        running.wait(seconds)
        running.finish_producers()
        [found] = running.finish_consumers()
        others.finish_producers()
        others.finish_consumers()
    times = found["late_ms"]
    p50, p99, most = np.percentile(times, (50, 99, 100))
    print(f"late      {broker.name}: {len(times):,} messages due at random moments while {others_rate:,.0f} others a "
          "second are published: "
          f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, at most {most:.0f} ms (target: p99 below {TICK_MS + 100}); "
          f"{int((times < 0).sum())} early, "
          f"by {max(0.0, -times.min()):.0f} ms at most", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.delayed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="hold|publish|together|late",
                        help="all of them unless some are named")
    parser.add_argument("--messages", type=int, default=10_000_000, help="to hold")
    parser.add_argument("--together", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=500, help="of messages that are late")
    parser.add_argument("--others-rate", type=float, default=2_000)
    parser.add_argument("--other", nargs=4, action="append", default=[], metavar=("NAME", "COMMAND", "SERVICE", "HTTP"))
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    each = {"hold": lambda broker: hold(broker, asked.messages),
            "publish": lambda broker: publishing(broker, asked.seconds, asked.rounds),
            "together": lambda broker: together(broker, asked.together, asked.rounds),
            "late": lambda broker: late(broker, asked.seconds, asked.rate, asked.others_rate)}
    if unknown := set(asked.what) - each.keys():
        parser.error(f"nothing is called {', '.join(unknown)}")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    for what in asked.what or each:
        with tempfile.TemporaryDirectory(prefix="delayed-", dir=asked.folder) as folder:
            for broker in (Ours(Path(folder)), *(Other(*other) for other in asked.other if what in ("hold", "late"))):
                broker.start()
                try:
                    each[what](broker)
                finally:
                    broker.close()
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
