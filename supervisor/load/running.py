"""Puts a plan on a broker, measures it, and returns the figures.

Producers and consumers are processes; this one only looks at the board.  A load runs through its warm-up and on:
rates are the difference between two looks, without the edges of starting and stopping.  Latencies are those of all
messages that were sent between the looks, also when their receipts came after the second one.
"""
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from geminga.supervisor.load import consumer, latencies, producer, real_client
from geminga.supervisor.load.link import ANSWER_MAX_S, CLOCK, BrokerError, Link, wait
from geminga.supervisor.load.plan import FORK, Board, Part, Plan
from geminga.supervisor.load.wire import WireError

# Without a rate a loop naps between two looks at its sockets: a pass costs much the same for ten frames as for a
# thousand.  Windows and permits outlast a nap, so it costs no throughput.
_NAP_S = 0.002
_LOOK_S = 0.05           # between two looks at the board while waiting for a count
_TOLD_S = 1.0
_START_MAX_S = 300.0
LINKS_MAX = 500          # connections of a process, which stays below the usual limit of 1,024 open files


def process_count(connections: int) -> int:
    """Return how many processes have so many connections, unless a plan says it."""
    return min(connections, len(os.sched_getaffinity(0)))


class Worker(Protocol):
    """The loop of one connection."""

    @property
    def link(self) -> Link | None: ...

    @property
    def is_done(self) -> bool: ...

    def begin(self) -> None: ...

    def step(self) -> float: ...

    def leave(self) -> None: ...


def _work(workers: list[Worker], board: Board, process: int, *, is_paced: bool) -> None:
    """Run loops until all are done, or the parent is gone."""
    parent = os.getppid()
    for worker in workers:
        worker.begin()
    left = list(workers)
    while left and os.getppid() == parent:
        patience = min(worker.step() for worker in left)
        left = [worker for worker in left if not worker.is_done]
        links = [worker.link for worker in left if worker.link is not None]
        board.cpu_us[process] = int(time.process_time() * 1e6)
        if not links:
            time.sleep(patience if left else 0)
        elif not any(link.is_pending() for link in links):
            wait(links, patience)
            if not is_paced and all(link.is_calm() for link in links):
                time.sleep(_NAP_S)
    for worker in workers:
        worker.leave()


def _child(role: Callable[[Plan, Part, Board], Worker], plan: Plan, parts: list[Part], board: Board, process: int,
           pipe: multiprocessing.connection.Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)      # the parent ends its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        workers = [role(plan, part, board) for part in parts]
        pipe.send("ready")
        pipe.recv()
        _work(workers, board, process, is_paced=bool(plan.rate))
        pipe.send("done")
    except (BrokerError, WireError) as error:
        pipe.send(BrokerError(str(error)))
    except EOFError:
        pass
    except Exception as error:      # whoever measures has no other way to hear of it
        pipe.send(BrokerError(f"a process of the load failed: {error!r}"))


class _Child:
    """A process of the load."""

    def __init__(self, role: Callable[[Plan, Part, Board], Worker], plan: Plan, parts: list[Part], board: Board,
                 number: int):
        self._pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_child, args=(role, plan, parts, board, number, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self._said: list[str] = []

    def __repr__(self) -> str:
        return f"<_Child {self.process.pid}>"

    def go(self) -> None:
        self._pipe.send("go")

    def answer(self, timeout_s: float) -> None:
        """Wait for the child's next answer.  Raises BrokerError for its error, or its end."""
        end = CLOCK() + timeout_s
        while not self._said:
            if CLOCK() > end:
                raise BrokerError("a process of the load says nothing")
            multiprocessing.connection.wait([self._pipe, self.process.sentinel], _LOOK_S)
            self.check()
        self._said.pop()

    def check(self) -> None:
        """Raise the error of a child that failed; other answers are kept for `answer`."""
        try:
            said = self._pipe.recv() if self._pipe.poll() else None
        except EOFError:
            if not self._said:
                raise BrokerError("a process of the load died") from None
            return
        if isinstance(said, Exception):
            raise said
        if said is not None:
            self._said.append(said)


@dataclass(frozen=True)
class Look:
    """The numbers of the board at one moment."""

    at: float
    published: int
    arrived: int
    bytes_arrived: int
    behind: int
    publish_counts: NDArray[np.int64]
    arrival_counts: NDArray[np.int64]
    cpu_us: NDArray[np.int64]


class Running:
    """The processes of one load; leaving the context ends them."""

    def __init__(self, plan: Plan, is_real: bool = False):
        self._plan, self._is_real = plan, is_real
        places = len(plan.topics)
        self._board = Board(plan.producers * places, plan.consumers * places)
        self._producers: list[_Child] = []
        self._consumers: list[_Child] = []

    def __repr__(self) -> str:
        return f"<Running {self._board}>"

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        for child in [*self._producers, *self._consumers]:
            child.process.kill()
            child.process.join()

    def start(self) -> Look:
        """Start the consumers, then the producers; return the board before the first message.  Raises BrokerError."""
        consumes, produces = ((real_client.Consumer, real_client.Producer) if self._is_real else
                              (consumer.Consumer, producer.Producer))
        self._start(consumes, self._plan.consumers, self._consumers)
        self._start(produces, self._plan.producers, self._producers)
        first = self.look()
        for child in [*self._consumers, *self._producers]:
            child.go()
        return first

    def _start(self, role: Callable[[Plan, Part, Board], Worker], count: int, children: list[_Child]) -> None:
        parts = self._plan.parts(count)
        number = min(len(parts), self._plan.processes or process_count(len(parts)))
        for index in range(number):
            children.append(_Child(role, self._plan, parts[index::number], self._board,
                                   len(self._producers) + len(self._consumers)))
        for child in children:
            child.answer(_START_MAX_S)

    def look(self) -> Look:
        board = self._board
        return Look(CLOCK(), int(board.published.sum()), int(board.arrived.sum()), int(board.bytes_arrived.sum()),
                    int(board.behind.sum()), board.publish_counts.sum(0), board.arrival_counts.sum(0),
                    board.cpu_us.copy())

    def wait(self, until: Callable[[], bool], tell: Callable[[Look, Look], None]) -> None:
        """Let the load run until a condition is true; tell (earlier look, look) once a second.  Raises BrokerError."""
        before = self.look()
        while not until():
            time.sleep(_LOOK_S)
            for child in [*self._producers, *self._consumers]:
                child.check()
            if CLOCK() >= before.at + _TOLD_S:
                now = self.look()
                tell(before, now)
                before = now

    def wait_for_arrival(self, target: int, tell: Callable[[Look, Look], None]) -> None:
        """Wait for so many messages.  Raises BrokerError if none comes for long."""
        last, moved_at = -1, CLOCK()

        def is_there() -> bool:
            nonlocal last, moved_at
            arrived = int(self._board.arrived.sum())
            if arrived != last:
                last, moved_at = arrived, CLOCK()
            elif CLOCK() - moved_at > ANSWER_MAX_S:
                raise BrokerError(f"{target - arrived} of {target} messages were not delivered")
            return arrived >= target
        self.wait(is_there, tell)

    def finish_producers(self) -> None:
        """End sending, and wait for all receipts.  Raises BrokerError."""
        self._board.stop_producing()
        for child in self._producers:
            child.answer(ANSWER_MAX_S + _START_MAX_S)
        self._producers = []

    def finish_consumers(self) -> None:
        self._board.stop_consuming()
        for child in self._consumers:
            child.answer(_START_MAX_S)
        self._consumers = []


def measure(plan: Plan, *, warmup_s: float, seconds: float, is_real: bool = False, expects_all: bool = True,
            tell: Callable[[Look, Look], None] = lambda before, now: None) -> dict[str, Any]:
    """Put a load on a broker and return its figures.  Raises BrokerError.

    The load is measured for so many seconds after the warm-up.  A plan with a count is measured from its first message
    to its last one, and `seconds` is the longest time then.
    expects_all: whether every published message has to arrive.
    """
    with Running(plan, is_real) as running:
        first = running.start()
        if not plan.count:
            warm = CLOCK() + warmup_s
            running.wait(lambda: CLOCK() >= warm, tell)
            first = running.look()
        end = first.at + seconds
        board = running._board

        def is_over() -> bool:
            counted = [*([board.published] if plan.producers else []), *([board.arrived] if plan.consumers else [])]
            return CLOCK() >= end or bool(plan.count and all(one.sum() >= plan.count for one in counted))
        running.wait(is_over, tell)
        last = running.look()
        running.finish_producers()
        if plan.consumers and plan.producers and expects_all:
            running.wait_for_arrival(int(board.published.sum()), tell)
        drained = running.look()
        running.finish_consumers()
    return _figures(plan, first, last, drained)


def _figures(plan: Plan, first: Look, last: Look, drained: Look) -> dict[str, Any]:
    seconds = last.at - first.at
    published, arrived = last.published - first.published, last.arrived - first.arrived
    if not published and not arrived:
        raise BrokerError(f"no message {'got a receipt' if plan.producers else 'arrived'} in {seconds:.0f} s")
    return {
        "seconds": round(seconds, 3),
        "published": published,
        "published_rate": round(published / seconds, 1),
        "published_bytes_rate": round(published * plan.message.size / seconds, 1),
        "consumed": arrived,
        "consumed_rate": round(arrived / seconds, 1),
        "consumed_bytes_rate": round((last.bytes_arrived - first.bytes_arrived) / seconds, 1),
        "asked_rate": plan.rate or None,
        "behind": last.behind,
        "publish_ms": latencies.percentiles_ms(drained.publish_counts - first.publish_counts),
        "end_to_end_ms": latencies.percentiles_ms(drained.arrival_counts - first.arrival_counts),
        "busiest_process": round(float((last.cpu_us - first.cpu_us).max()) / 1e6 / seconds, 2),
    }
