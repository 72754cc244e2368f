"""Puts one load on a broker and measures it; from the command line it prints the figures as JSON.

    python tests/bench/load.py 127.0.0.1:6650 [--pid PID] [--topics 500] [--batch 100] [--rate 2000] ...

Producers and consumers are processes; this one only looks at the Board.  A load runs through its warm-up and on: what
is measured is the difference between two looks at counts, clocks and CPU times, without the edges of starting and
stopping.  Without a rate, producers hold back while too much is still on its way to the consumers, so that as much
comes out as goes in. At the end every message with a receipt must have arrived, or the run fails.
"""

import argparse
import json
import multiprocessing as mp
import multiprocessing.connection
import secrets
import sys
import time
from dataclasses import dataclass, field, replace

import numpy as np
from clients import Consumer, Producer
from crowd import Crowd
from link import ANSWER_MAX_S, CLOCK, Board, BrokerError, Link, Load
from numpy.typing import NDArray
from usage import cpu_seconds

from geminga.supervisor.load import wire

LOOK_S = 0.05   # seconds between two looks at the Board while waiting for a count
START_MAX_S = 300.0


def topic_names(count: int) -> tuple[str, ...]:
    """Return names of topics that no one has used."""
    run = secrets.token_hex(4)
    return tuple(f"persistent://public/default/bench-{run}-{index}" for index in range(count))


# --- processes of the load ---------------------------------------------------------------------------------------


def _child(role: type, load: Load, index: int, board: Board, pipe: mp.connection.Connection) -> None:
    try:
        worker = role(load, index, board)
        pipe.send("ready")
        pipe.recv()
        pipe.send(worker.run())
    except (BrokerError, wire.WireError) as error:
        pipe.send(error)
    except KeyboardInterrupt:
        pass


class Child:
    def __init__(self, role: type, load: Load, index: int, board: Board):
        self.pipe, theirs = mp.Pipe()
        self.role = role.__name__.lower()
        self.said: list[object] = []
        self.process = mp.Process(target=_child, args=(role, load, index, board, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self, timeout_s: float) -> object:
        """Return the child's next answer, or raise its error."""
        if not self.said:
            mp.connection.wait([self.pipe, self.process.sentinel], timeout_s)
            self.check()
        if not self.said:
            raise BrokerError(f"a {self.role} of the load says nothing")
        return self.said.pop()

    def check(self) -> None:
        """Raise the error of a child that failed; other answers are kept for `answer`."""
        try:
            said = self.pipe.recv() if self.pipe.poll() else None
        except EOFError:
            if not self.said:
                raise BrokerError(f"a {self.role} of the load died") from None
            return
        if isinstance(said, Exception):
            raise said
        if said is not None:
            self.said.append(said)


@dataclass(frozen=True, slots=True)
class Look:
    at: float
    published: int
    arrived: int
    broker_cpu_s: float     # nan without a pid
    own_cpu_s: float
    arrived_at: tuple[int, ...]     # messages that came to each consumer


class Running:
    """The processes of one load; leaving the context ends them."""

    def __init__(self, load: Load, pid: int | None):
        self.load, self.pid, self.board = load, pid, Board(load)
        self.producers: list[Child] = []
        self.consumers: list[Child] = []

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*self.producers, *self.consumers]:
            child.process.kill()
            child.process.join()

    def start_consumers(self) -> None:
        self.consumers = self._start(Consumer, self.load.consumers)

    def start_producers(self) -> None:
        self.producers = self._start(Crowd if self.load.crowd else Producer, self.load.connections)

    def _start(self, role: type, count: int) -> list[Child]:
        children = [Child(role, self.load, index, self.board) for index in range(count)]
        for child in children:
            child.answer(START_MAX_S)
        for child in children:
            child.pipe.send("go")
        return children

    def look(self) -> Look:
        own = [cpu_seconds(child.process.pid) for child in [*self.producers, *self.consumers]]
        return Look(
            at=CLOCK(),
            published=sum(self.board.published),
            arrived=sum(self.board.arrived),
            broker_cpu_s=cpu_seconds(self.pid) if self.pid else float("nan"),
            own_cpu_s=sum(own),
            arrived_at=tuple(self.board.arrived),
        )

    def wait(self, seconds: float) -> None:
        """Let the load run; a failure of a child ends the wait."""
        end = CLOCK() + seconds
        while (left := end - CLOCK()) > 0:
            time.sleep(min(left, LOOK_S))
            self._check()

    def until_arrived(self, target: int) -> None:
        """Wait for so many messages; fail when none comes for long."""
        last, moved_at = sum(self.board.arrived), CLOCK()
        while last < target:
            time.sleep(LOOK_S)
            self._check()
            last, before = sum(self.board.arrived), last
            if last != before:
                moved_at = CLOCK()
            elif CLOCK() - moved_at > ANSWER_MAX_S:
                raise BrokerError(f"{target - last} of {target} messages were never delivered")

    def _check(self) -> None:
        for child in [*self.producers, *self.consumers]:
            child.check()

    def finish_producers(self) -> list[dict]:
        """End sending, by the limit or now, and wait for all receipts."""
        if not self.load.limit:
            self.board.producers_stop.value = 1
        results = [child.answer(24 * 3600.0) for child in self.producers]
        self.producers = []     # they end by themselves now
        return results

    def finish_consumers(self) -> list[dict]:
        if self.consumers:
            self.until_arrived(sum(self.board.published) * self.load.subscriptions)
        self.board.consumers_stop.value = 1
        return [child.answer(START_MAX_S) for child in self.consumers]


# --- measurements ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    published_rate: float
    arrived_rate: float
    # CPU time of the broker for a message: one that arrived if there are consumers, else a published one; nan without a
    # pid
    cpu_us: float
    own_cpu_us: float       # CPU time of the load's processes for a message
    # ms from sending to the receipt of each entry; with a rate only
    publish_ms: NDArray = field(default_factory=lambda: np.zeros(0))
    # ms from sending to the arrival of each entry; with a rate, one topic and one consumer only
    arrival_ms: NDArray = field(default_factory=lambda: np.zeros(0))
    least_share: float = float("nan")      # of the consumer that got least, as a part of what each would get of equals


def measure(load: Load, *, pid: int | None, warmup_s: float, seconds: float) -> Figures:
    """Measure from the warm-up on for so many seconds, or, if the load has a limit, until its last arrival."""
    with Running(load, pid) as running:
        running.start_consumers()
        running.start_producers()
        running.wait(warmup_s)
        first = running.look()
        if load.limit:
            running.until_arrived(load.limit * load.batch * load.connections)
        else:
            running.wait(seconds)
        last = running.look()
        produced, consumed = running.finish_producers(), running.finish_consumers()
    figures = _between(first, last, by_arrival=bool(load.consumers))
    if not load.rate:
        return figures
    measured = [(each["sent_at"] >= first.at) & (each["sent_at"] < last.at) for each in produced]
    publish = [(each["confirmed_at"] - each["sent_at"])[chosen]
               for each, chosen in zip(produced, measured, strict=True)]
    figures = replace(figures, publish_ms=np.concatenate(publish) * 1000)
    if load.consumers == load.connections == len(load.topics) == 1 and not load.crowd:
        sent_at = produced[0]["sent_at"]
        arrival = (consumed[0]["arrived_at"][: len(sent_at)] - sent_at)[measured[0]]
        figures = replace(figures, arrival_ms=arrival * 1000)
    return figures


def measure_backlog(load: Load, messages: int, *, pid: int | None) -> Figures:
    """Publish without consumers, then measure one consumer from its first permits to the last message."""
    with Running(replace(load, limit=messages // load.batch // load.connections, lead=0), pid) as running:
        _subscribe_and_leave(load)
        running.start_producers()
        running.finish_producers()
        count = sum(running.board.published)
        first = running.look()
        running.start_consumers()
        running.until_arrived(count)
        last = running.look()
        consumed = running.finish_consumers()
    seconds = max(each["last_at"] for each in consumed) - min(each["started_at"] for each in consumed)
    return replace(_between(first, last, by_arrival=True), arrived_rate=count / seconds)


def _between(first: Look, last: Look, *, by_arrival: bool) -> Figures:
    seconds = last.at - first.at
    published, arrived = last.published - first.published, last.arrived - first.arrived
    count = arrived if by_arrival else published
    if not count:
        raise BrokerError(f"no message {'arrived' if by_arrival else 'got a receipt'} in {seconds:.0f} s")
    cpu_us, own_cpu_us = ((after - before) / count * 1e6 for before, after in
                          ((first.broker_cpu_s, last.broker_cpu_s), (first.own_cpu_s, last.own_cpu_s)))
    of_each = np.subtract(last.arrived_at, first.arrived_at)
    share = float(of_each.min() / of_each.mean()) if by_arrival else float("nan")
    return Figures(published / seconds, arrived / seconds, cpu_us, own_cpu_us, least_share=share)


def _subscribe_and_leave(load: Load) -> None:
    link = Link(load)
    for at, topic in enumerate(load.topics):
        consumer_id = wire.ID_FIRST + at
        link.find(topic)
        request = wire.subscribe(topic, f"{load.subscription}-0", load.kind, consumer_id, link.request_id(),
                                 "bench-first")
        link.ask(f"subscription on {topic}", request, wire.SUCCESS)
        link.ask(f"leaving {topic}", wire.close_consumer(consumer_id, link.request_id()), wire.SUCCESS)
    link.socket.close()


def address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", type=address)
    parser.add_argument("--pid", type=int, help="of the broker: its CPU and that of its children is measured")
    parser.add_argument("--topics", type=int, default=1, help="a producer and a consumer on each, messages in turn")
    parser.add_argument("--type", dest="kind", choices=wire.SUBSCRIPTION_TYPES, default="exclusive")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warmup", type=float, default=3)
    parser.add_argument("--trusted", default="", help="file with the authority of the broker's certificate: speak TLS")
    parser.add_argument("--backlog", type=int, default=0, help="publish so many first, then measure reading them")
    numbers = ("size_bytes", "batch", "rate", "connections", "crowd", "keys", "consumers", "subscriptions", "window",
               "permits", "lead")
    for name in numbers:
        default = Load.__dataclass_fields__[name].default
        parser.add_argument("--" + name.replace("_", "-"), type=float if name == "rate" else int, default=default)
    asked = parser.parse_args()
    given = {name: getattr(asked, name) for name in (*numbers, "kind", "trusted")}
    load = Load(*asked.address, topic_names(asked.topics), **given)
    try:
        if asked.backlog:
            figures = measure_backlog(load, asked.backlog, pid=asked.pid)
        else:
            figures = measure(load, pid=asked.pid, warmup_s=asked.warmup, seconds=asked.seconds)
    except (BrokerError, wire.WireError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    shown = {name: round(getattr(figures, name), 2)
             for name in ("published_rate", "arrived_rate", "cpu_us", "own_cpu_us")}
    for name in ("publish_ms", "arrival_ms"):
        if len(times := getattr(figures, name)):
            shown[name] = {f"p{part:g}": round(float(np.percentile(times, part)), 3) for part in (50, 99, 99.9)}
    print(json.dumps(shown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
