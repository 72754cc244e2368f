"""Snapshots of a broker for the live screen, fetched by a thread so that keys never wait for the broker."""
import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from geminga.supervisor.cli.missing_names import Unknown
from geminga.workers.pulsar_client.rest import Broker, NotReachable, Refused

Values = dict[str, Any]


class Question(NamedTuple):
    """A request for one part of the screen."""

    path: str
    query: tuple[tuple[str, str], ...] = ()


Wanted = dict[str, Question]      # by the name of the part


class Snapshot(NamedTuple):
    """The state of a broker at one moment, and what has happened since the one before."""

    status: Values                              # the answer of /ops/v1/status; {} if the broker is not reachable
    parts: dict[str, Any]                       # answers by the names of the questions
    wanted: Wanted                              # the questions
    rates: dict[str, float] | None = None       # per second since the snapshot before; None without one
    processes: Mapping[str, float] = MappingProxyType({})      # part of a core that each process used since then
    cores: tuple[float, ...] = ()               # part of each core that was busy since then
    error: str = ""                             # why there are no values


class Reader:
    """Reads snapshots of a broker, and compares each with the one before."""

    def __init__(self, broker: Broker):
        self._broker = broker
        self._before: tuple[float, Values] | None = None      # when the last status was read, and its values

    def __repr__(self) -> str:
        return f"<Reader {self._broker}>"

    def read(self, wanted: Wanted) -> Snapshot:
        """Return a snapshot with answers to the wanted questions.  Raises Refused, NotReachable."""
        status, now = self._broker.ask("GET", "/ops/v1/status").value(), time.monotonic()
        parts: dict[str, Any] = {}
        for name, question in wanted.items():
            try:
                parts[name] = self._broker.ask("GET", question.path, dict(question.query)).value()
            except (Refused, Unknown) as error:      # such as a topic that was deleted
                parts[name] = str(error)
        before, self._before = self._before, (now, status)
        if before is None or before[1]["uptime_seconds"] > status["uptime_seconds"]:
            return Snapshot(status, parts, wanted)
        seconds, earlier = max(1e-3, now - before[0]), before[1]
        rates = {name: max(0, number - earlier["totals"][name]) / seconds for name, number in status["totals"].items()}
        spent = {process["process"]: process["cpu_seconds"] for process in earlier["processes"]}
        processes = {one["process"]: max(0.0, one["cpu_seconds"] - spent.get(one["process"], 0)) / seconds
                     for one in status["processes"]}
        cores = tuple(min(1.0, max(0.0, now - then) / seconds) for now, then in zip(
            status["cores_busy_seconds"], earlier["cores_busy_seconds"], strict=False))
        return Snapshot(status, parts, wanted, rates, processes, cores)


class Poller:
    """A thread that reads a snapshot every few seconds, and at once when something else is wanted."""

    def __init__(self, reader: Reader, interval_s: float, wake: Callable[[], None]):
        """Begin to read.  wake: called from the thread when there is a snapshot."""
        self.snapshots: queue.Queue[Snapshot] = queue.Queue()
        self._reader, self._interval_s, self._wake = reader, interval_s, wake
        self._wanted: Wanted = {}
        self._poked, self._is_over = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True)      # it may wait for a broker that hangs

    def __repr__(self) -> str:
        return f"<Poller every {self._interval_s} s>"

    def start(self, wanted: Wanted) -> None:
        """Begin to read snapshots with answers to these questions."""
        self._wanted = wanted
        self._thread.start()

    def want(self, wanted: Wanted) -> None:
        """Ask other questions from now on, and at once if they differ."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._poked.set()

    def stop(self) -> None:
        """End the thread after the request under way."""
        self._is_over = True
        self._poked.set()

    def _run(self) -> None:
        while not self._is_over:
            self._poked.clear()
            wanted = self._wanted
            try:
                snapshot = self._reader.read(wanted)
            except (Refused, NotReachable) as error:
                snapshot = Snapshot({}, {}, {}, error=str(error))
            except (KeyError, TypeError, ValueError) as error:      # another program answers at that address
                snapshot = Snapshot({}, {}, {}, error=f"the answer is none of a broker's: {error!r:.100}")
            self.snapshots.put(snapshot)
            self._wake()
            self._poked.wait(self._interval_s)
