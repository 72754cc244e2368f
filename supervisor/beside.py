"""Where jobs and the broker meet: files in the data folder.

A job that runs beside the broker asks it over a socket there (admin/compaction.py says what): whoever may write there may ask.  Where no
broker serves the folder the job holds the folder's lock instead; it puts views in force by itself then, and what only owners can do is
left to the broker.  Nothing here imports Arrow or Spark.
"""
import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from geminga.storage import compacted, format
from geminga.storage.errors import text_of

SOCKET, REPORT = Path("nightly", "socket"), Path("nightly", "report.json")      # in the data folder
_PATIENCE_SECONDS = 60       # with a broker, or an owner, that is being started again
_AGAIN_SECONDS = 0.2
_BEGAN_MAX = 1_000           # partitions told of in a line


class CannotRun(Exception):
    """Not now, or not here: one line that says why."""


class Refused(Exception):
    """The broker's answer."""


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Of a socket: the kernel takes 107 bytes at most."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


# -- beside a broker, or without one

class Served:
    """A broker serves the data folder, and is asked.  Raises OSError when it is not there and does not come."""

    is_served = True

    def __init__(self, data_dir: Path):
        self._data_dir, self._running, self._patience = data_dir, {}, _PATIENCE_SECONDS
        self._connect()

    def close(self) -> None:
        with contextlib.suppress(OSError):      # what is not sent yet stays so
            self._file.close()

    def adopt(self, partition_id: int, topic: str, view: int) -> str | None:
        """None when the view is in force, else why not."""
        try:
            self.ask("adopt-view", topic=topic, view=view)
        except Refused as refused:
            if view not in compacted.numbers(format.partition_folder(self._data_dir, partition_id)):      # not put in force before
                return str(refused)
        self._running.pop(partition_id, None)
        self._say({"adopted": partition_id})
        return None

    def ask(self, question: str, **about) -> Any:
        """Raises Refused.  An owner that did not answer in good time is not waited for again before one has."""
        began = time.monotonic()
        while True:
            found = self._say({"ask": question, **about})
            if "refused" not in found:
                self._patience = _PATIENCE_SECONDS
                return found["answer"]
            if not found["again"]:
                raise Refused(found["refused"])
            if time.monotonic() - began > self._patience:
                self._patience = 0
                raise Refused(found["refused"])
            time.sleep(_AGAIN_SECONDS)

    def began(self, partitions: Mapping[int, str]) -> None:
        """These are being compacted."""
        self._running = dict(partitions)
        self._tell_running()

    def ended(self, report: dict[str, Any]) -> None:
        self._say({"ended": report})
        self._running.pop(report["partition_id"], None)

    def _tell_running(self) -> None:
        some = list(self._running.items())
        for at in range(0, len(some), _BEGAN_MAX):
            self._exchange({"began": dict(some[at:at + _BEGAN_MAX])})

    def _say(self, what: dict) -> dict:
        """The answer, also of a broker that is started again meanwhile."""
        while True:
            try:
                return self._exchange(what)
            except (OSError, ValueError):
                self.close()
                self._connect()
                self._tell_running()

    def _exchange(self, what: dict) -> dict:
        self._file.write(json.dumps(what).encode() + b"\n")
        self._file.flush()
        return json.loads(self._file.readline())

    def _connect(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            link = socket.socket(socket.AF_UNIX)
            try:
                with short_path(self._data_dir / SOCKET) as path:
                    link.connect(path)
                self._file = link.makefile("rwb")
                return
            except OSError:
                if time.monotonic() > deadline or not is_served(self._data_dir):
                    raise
            finally:
                link.close()       # the file keeps it
            time.sleep(_AGAIN_SECONDS)


class Alone:
    """No broker serves the data folder, and none can as long as this is there.  Raises BlockingIOError when one does."""

    is_served = False

    def __init__(self, data_dir: Path):
        self._data_dir = data_dir
        self._lock = open(data_dir / "lock", "a")  # noqa: SIM115 - held as long as this is there
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise

    def close(self) -> None:
        """A broker may."""
        self._lock.close()

    def adopt(self, partition_id: int, topic: str, view: int) -> str | None:
        folder = format.partition_folder(self._data_dir, partition_id)
        try:
            compacted.adopt(folder, view)
        except OSError as error:
            return text_of(error)
        return None

    def began(self, partitions: Mapping[int, str]) -> None:
        """Nobody wants to know."""

    def ended(self, report: dict[str, Any]) -> None:
        """Nobody wants to know."""


Side = Served | Alone


def side_of(data_dir: Path) -> Side:
    """Raises CannotRun."""
    try:
        return Alone(data_dir)
    except BlockingIOError:
        pass
    except OSError as error:
        raise CannotRun(text_of(error)) from None
    try:
        return Served(data_dir)
    except OSError as error:
        raise CannotRun(f"{data_dir} is in use, and its broker does not answer at {data_dir / SOCKET}: {error.strerror}") from None


def is_served(data_dir: Path) -> bool:
    try:
        with open(data_dir / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def last_report(data_dir: Path) -> dict[str, Any]:
    """Of the last night; {} when there is none that can be read."""
    try:
        return json.loads((data_dir / REPORT).read_bytes())
    except (OSError, ValueError):
        return {}
