"""Where jobs and the broker meet: files in the data folder.

A job that runs beside the broker asks it over a socket there (admin/compaction.py says what): whoever may write there may ask.  While no
broker serves the folder a job puts views in force by itself, and what only owners can do is left to the broker; one that is started
meanwhile finds nothing in its way.  Nothing here imports Arrow or Spark.
"""
import contextlib
import json
import os
import pwd
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from geminga.storage import format
from geminga.storage.disk import locks
from geminga.storage.errors import text_of
from geminga.storage.ledgers import compacted_ledgers
from geminga.supervisor.host.unix_sockets import short_path

SOCKET, REPORT = Path("nightly", "socket"), Path("nightly", "report.json")      # in the data folder
_PATIENCE_SECONDS = 60       # with a broker, or an owner, that is being started again
_AGAIN_SECONDS = 0.2
_BEGAN_MAX = 1_000           # partitions told of in a line


class CannotRun(Exception):
    """Not now, or not here: one line that says why."""


class Refused(Exception):
    """The broker's answer."""


class Gone(Refused):
    """No broker serves the data folder any more."""


def check_user(data_dir: Path) -> None:
    """Raises CannotRun where the folder is another user's, whose broker could not read what this process would write; OSError."""
    owner = data_dir.stat().st_uid
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"#{owner}"
        raise CannotRun(f"{data_dir} is user {name}'s, who has to run this: runuser -u {name} -- geminga ...")


class Side:
    """The broker of a data folder, while there is one.  All of it raises OSError when there is one that does not answer."""

    def __init__(self, data_dir: Path):
        self._data_dir, self._patience = data_dir, _PATIENCE_SECONDS
        self._link: BinaryIO | None = None
        self._running: dict[int, str] = {}       # what the broker is to know is being compacted

    def close(self) -> None:
        if self._link is not None:
            with contextlib.suppress(OSError):      # what is not sent yet stays so
                self._link.close()
        self._link = None

    def is_served(self) -> bool:
        if self._link is None:
            self._connect()
        return self._link is not None

    def adopt(self, partition_id: int, topic: str, view: int) -> str | None:
        """None when the view is in force, else why not."""
        folder = format.partition_folder(self._data_dir, partition_id)
        while True:
            try:
                if self.is_served():
                    self.ask("adopt-view", topic=topic, view=view)
                elif not self._adopt_alone(folder, view):
                    continue      # somebody serves it now
                break
            except Gone:
                continue
            except Refused as refused:
                if view not in compacted_ledgers.numbers(folder):      # not put in force before, either
                    return str(refused)
                break
        self._running.pop(partition_id, None)
        self._tell({"adopted": partition_id})
        return None

    def _adopt_alone(self, folder: Path, view: int) -> bool:
        """False when that is a broker's to do.  None can begin to serve the folder meanwhile.  Raises Refused."""
        with locks.lock(self._data_dir / locks.LOCK) as is_ours:
            if is_ours and view not in compacted_ledgers.numbers(folder):      # a broker may have, before it ended
                try:
                    compacted_ledgers.adopt(folder, view)
                except OSError as error:
                    raise Refused(text_of(error)) from None
        return is_ours

    def ask(self, question: str, **about) -> Any:
        """Raises Refused, Gone.  An owner that did not answer in good time is not waited for again before one has."""
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
        if self._link is None:
            self._connect()      # which tells
        else:
            with contextlib.suppress(OSError, ValueError):
                self._tell_running()

    def ended(self, report: dict[str, Any]) -> None:
        self._running.pop(report["partition_id"], None)
        self._tell({"ended": report})

    def _tell(self, what: dict) -> None:
        with contextlib.suppress(Gone):
            self._say(what)

    def _tell_running(self) -> None:
        some = list(self._running.items())
        for at in range(0, len(some), _BEGAN_MAX):
            self._exchange({"began": dict(some[at:at + _BEGAN_MAX])})

    def _say(self, what: dict) -> dict:
        """The answer, also of a broker that is started again meanwhile.  Raises Gone."""
        while self.is_served():
            try:
                return self._exchange(what)
            except (OSError, ValueError):
                self.close()
        raise Gone("The broker has ended")

    def _exchange(self, what: dict) -> dict:
        self._link.write(json.dumps(what).encode() + b"\n")
        self._link.flush()
        return json.loads(self._link.readline())

    def _connect(self) -> None:
        """... where there is one; it knows what is under way then."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            link = socket.socket(socket.AF_UNIX)
            try:
                with short_path(self._data_dir / SOCKET) as path:
                    link.connect(path)
                self._link = link.makefile("rwb")
                return self._tell_running()
            except (OSError, ValueError) as error:
                self.close()
                with locks.hold(self._data_dir) as is_served:
                    if not is_served:
                        return None
                if time.monotonic() > deadline:
                    raise OSError(f"{self._data_dir} is in use, and its broker does not answer at {self._data_dir / SOCKET}") from error
            finally:
                link.close()       # its file keeps it
            time.sleep(_AGAIN_SECONDS)


def last_report(data_dir: Path) -> dict[str, Any]:
    """Of the last night; {} when there is none that can be read."""
    try:
        return json.loads((data_dir / REPORT).read_bytes())
    except (OSError, ValueError):
        return {}
