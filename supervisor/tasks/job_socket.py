"""The socket over which a job, such as a compaction, reaches the broker of a data folder.

The admin process listens in the data folder; `admin/resources/compaction.py` has the questions.  The rights of the
folder decide who may ask.

While no broker serves the folder, a job puts views in force itself, and leaves undone what only owners can do.  Each
such step holds the folder's lock, so a broker may start between two steps.

This module imports neither Arrow nor Spark.
"""
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.errors import text_of
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.ledgers.position import Position
from geminga.storage.runtime import unix_sockets
from geminga.storage.topics import exported

if TYPE_CHECKING:
    import io

    from geminga.storage.tables.exports import TableReport

SOCKET, REPORT = Path("nightly", "socket"), Path("nightly", "report.json")      # in the data folder
TABLES = Path("nightly", "tables.json")
_PATIENCE_SECONDS = 60       # limit for an answer of a broker or owner that is being restarted
_AGAIN_SECONDS = 0.2
_BEGAN_MAX = 1_000           # partitions in one line


class GivenBack(TypedDict):
    """What owners gave back in a night."""

    partitions: int
    topics: list[dict[str, Any]]        # a row of an owner's answer for each partition that gave back something
    errors: list[dict[str, str]]        # {"topic": ..., "error": ...}
    deleted: dict[str, int]             # {"folders": number, "freed": bytes}
    seconds: float


class NightReport(TypedDict, total=False):
    """The report of a night, in the data folder.  {} stands for none; older programs left out some of it."""

    status: str                         # nights.SUCCESS or FAILED
    error: str
    started_ms: int
    ended_ms: int
    seconds: float
    last_success_ms: int
    engine: str
    served: bool                        # by a broker, without which nothing is given back
    partitions: int                     # that were considered
    not_due: dict[str, int]             # reason -> partitions that needed no compaction
    totals: dict[str, int]
    compaction: list[dict[str, Any]]    # PartitionReports of storage/jobs/compacting/nightly.py
    tables: "list[TableReport]"
    retention: GivenBack | None


class CannotRun(Exception):
    """An error: a task cannot run.  The text gives the reason in one line."""


class JobRefused(Exception):
    """An error: the broker refuses a job's request.  The text is its reason."""


class Gone(JobRefused):
    """An error: the broker that served the data folder has ended."""


class BrokerSocket:
    """The connection of a job to the broker of a data folder, while a broker serves it.

    Every method raises OSError if a broker serves the folder and does not answer for a minute.
    """

    def __init__(self, data_dir: Path):
        self._data_dir, self._patience = data_dir, _PATIENCE_SECONDS
        self._link: io.BufferedRWPair | None = None
        self._running: dict[int, str] = {}       # partition id -> topic, being compacted

    def __repr__(self) -> str:
        return f"<BrokerSocket {self._data_dir} is_connected={self._link is not None} running={len(self._running)}>"

    def close(self) -> None:
        if self._link is not None:
            with contextlib.suppress(OSError):      # the broker may have closed it
                self._link.close()
        self._link = None

    def is_served(self) -> bool:
        """Connect to the broker if necessary, and return whether a broker serves the data folder."""
        if self._link is None:
            self._connect()
        return self._link is not None

    def settle(self, topic: str) -> bool:
        """Have a partition's owner write down how transactions have ended; return whether it did."""
        try:
            if not self.is_served():
                return False
            self.ask("settle", topic=topic)
        except JobRefused:
            return False
        return True

    def adopt(self, partition_id: int, topic: str, view: int) -> str | None:
        """Put a compacted view of a partition in force, through the broker or, without one, directly in the folder.

        Return None, or the reason for a refusal.
        """
        folder = format.partition_folder(self._data_dir, partition_id)

        def is_in_force() -> bool:
            return view in compacted_ledgers.numbers(folder)

        def adopt() -> None:
            if not is_in_force():      # else a broker that has ended since has put it in force
                compacted_ledgers.adopt(folder, view)

        why_not = self._do(adopt, "adopt-view", topic=topic, view=view)
        # If the view is in force, an earlier attempt put it there, and only the answer was lost.
        if why_not is not None and not is_in_force():
            return why_not
        self._running.pop(partition_id, None)
        self._tell({"adopted": partition_id})
        return None

    def _do(self, alone: Callable[[], None], question: str, **about: Any) -> str | None:
        """Ask the broker for a change or, without one, make it under the folder's lock.

        Return None, or the reason for a refusal.  A broker that has just been started, or ended, is asked again.
        """
        while True:
            try:
                if self.is_served():
                    self.ask(question, **about)
                    return None
                with locks.lock(self._data_dir / locks.LOCK) as is_ours:
                    if is_ours:
                        return _reason(alone)
            except Gone:
                continue
            except JobRefused as refused:
                return str(refused)

    def exported(self, partition_id: int, topic: str, position: Position) -> str | None:
        """Write down that a partition is exported up to a position, through the broker or, without one, directly in the
        folder.

        Return None, or the reason for a refusal.
        """
        folder = format.partition_folder(self._data_dir, partition_id)
        return self._do(lambda: exported.advance(folder, position), "exported", topic=topic, partition_id=partition_id,
                        position=position)

    def ask(self, question: str, **about: Any) -> Any:
        """Ask the broker a question and return its answer.  Raises JobRefused, Gone.

        While an owner is being started, the question is repeated for up to a minute.  If that was in vain, later
        questions are sent only once, until one of them is answered.
        """
        began = time.monotonic()
        while True:
            reply = self._say({"ask": question, **about})
            if "refused" not in reply:
                self._patience = _PATIENCE_SECONDS
                return reply["answer"]
            if not reply["again"]:
                raise JobRefused(reply["refused"])
            if time.monotonic() - began > self._patience:
                self._patience = 0
                raise JobRefused(reply["refused"])
            time.sleep(_AGAIN_SECONDS)

    def began(self, partitions: Mapping[int, str]) -> None:
        """Tell the broker which partitions this job compacts.  A broker that is started later is told too."""
        self._running = dict(partitions)
        if self._link is None:
            self._connect()      # tells the broker as well
        else:
            with contextlib.suppress(OSError, ValueError):
                self._tell_running()

    def ended(self, report: dict[str, Any]) -> None:
        """Tell the broker the result of a partition's compaction."""
        self._running.pop(report["partition_id"], None)
        self._tell({"ended": report})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(Gone):
            self._say(message)

    def _tell_running(self) -> None:
        running = list(self._running.items())
        for first in range(0, len(running), _BEGAN_MAX):
            self._exchange({"began": dict(running[first:first + _BEGAN_MAX])})

    def _say(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one line to the broker and return its answer, over a new connection if the broker was restarted.

        Raises Gone.
        """
        while self.is_served():
            try:
                return self._exchange(message)
            except (OSError, ValueError):
                self.close()
        raise Gone("The broker has ended")

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._link is None:
            raise ConnectionError("not connected")
        return exchange(self._link, message)

    def _connect(self) -> None:
        """Connect to the broker, if one serves the folder, and tell it which partitions this job compacts."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                self._link = connect(self._data_dir)
                return self._tell_running()
            except (OSError, ValueError) as error:
                self.close()
                with locks.hold(self._data_dir) as is_served:
                    if not is_served:
                        return None
                if time.monotonic() > deadline:
                    raise OSError(f"{self._data_dir} is in use, and its broker does not answer at "
                                  f"{self._data_dir / SOCKET}") from error
            time.sleep(_AGAIN_SECONDS)


def _reason(change: Callable[[], None]) -> str | None:
    """Make a change; return None, or why the disk refuses it."""
    try:
        change()
    except OSError as error:
        return text_of(error)
    return None


def connect(data_dir: Path, timeout_s: float | None = None) -> "io.BufferedRWPair":
    """Return a connection to the broker of a data folder.  Raises OSError without a broker.

    timeout_s: limit for each write and read, which then raises OSError.
    """
    with unix_sockets.connect(data_dir / SOCKET, timeout_s) as link:
        return link.makefile("rwb")       # keeps the socket's descriptor


def exchange(link: "io.BufferedRWPair", message: dict[str, Any]) -> dict[str, Any]:
    """Send one line to the broker, and return its answer.  Raises OSError, ValueError."""
    link.write(json.dumps(message).encode() + b"\n")
    link.flush()
    answer: dict[str, Any] = json.loads(link.readline())
    return answer


def last_report(data_dir: Path) -> NightReport:
    """Return the report of the last nightly job, {} if there is none that can be read."""
    return cast("NightReport", _object_in(data_dir / REPORT))


def known_tables(data_dir: Path) -> dict[str, Any]:
    """Return {topic and content: how far its table is}, {} if there are no tables yet."""
    return _object_in(data_dir / TABLES)


def _object_in(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}
