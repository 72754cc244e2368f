"""A search of a data folder's ledgers as a process of its own, for pages: bounded in rows, time and memory.

    python -m geminga.supervisor.tasks.searching < request

The request is a JSON object: "folder", "place" (a topic or namespace), "limit", "payload" (bytes of a payload that are
shown), "newest" (whether the newest message comes first), and the conditions "key", "properties", "grep", "where",
"since", "until" of `geminga search`. Lines of JSON are printed as messages are found:

    {"row": ...}                            a message, as workers/messages/shown.py makes it
    {"searched": bytes, "of": bytes}        progress, now and then
    {"complaint": text}                     what could not be searched
    {"end": "all" or "limit"}               the last line
    {"wrong": text}                         instead of all others: the request cannot be answered
"""
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import click

from geminga.proto.errors import Refusal
from geminga.storage.catalogue.catalogue import CatalogueError
from geminga.storage.errors import CorruptFile, StorageFull, text_of
from geminga.storage.jobs import confirmed
from geminga.storage.offline import search as storage
from geminga.supervisor.tasks.job_socket import SOCKET, BrokerSocket
from geminga.workers.messages import shown
from geminga.workers.messages.filters import Wish
from geminga.workers.messages.report import Report
from geminga.workers.messages.shown import Shown
from geminga.workers.messages.stored import StoredMessages

CPU_SECONDS, MEMORY_BYTES = 60, 4 << 30      # of this process: the kernel ends it beyond
NICENESS = 10
_TOLD_SECONDS = 0.5          # between two lines about progress
Say = Callable[[dict[str, Any]], None]


class Search(TypedDict):
    """What a search is asked for."""

    folder: str
    place: str                   # topic or namespace
    limit: int                   # rows
    payload: int                 # bytes of each that are shown
    newest: bool                 # comes first
    properties: list[str]        # this and the next are conditions, as of Filter
    key: str | None
    grep: str | None
    where: str | None
    since: str | None
    until: str | None


def settle(folder: Path, place: str, report: Callable[[str], None]) -> None:
    """Have the broker write down which transactions have ended; report topics of which the files do not say it all.

    Raises LookupError, Refusal, CatalogueError, OSError.
    """
    broker, is_served = BrokerSocket(folder), (folder / SOCKET).exists()
    try:
        for partition_id, topic in storage.partitions(folder, place):
            try:
                if confirmed.is_settled(folder, partition_id) or (is_served and broker.settle(str(topic))):
                    continue
                up_to = confirmed.committed_up_to(folder, partition_id)
            except CorruptFile:      # the search reports it
                continue
            report(f"{topic}: messages behind {up_to[0]}:{up_to[1]} are left out: without the broker it is not known "
                   "whether transactions there have been committed")
    finally:
        broker.close()


@contextlib.contextmanager
def answering(say: Say) -> Iterator[None]:
    """Say why the request cannot be answered, if the block raises such an error."""
    try:
        yield
    except LookupError as error:
        say({"wrong": str(error)})
    except Refusal as error:
        say({"wrong": error.message})
    except click.UsageError as error:
        say({"wrong": error.message.removeprefix("--")})
    except OSError as error:
        say({"wrong": text_of(error)})
    except (CatalogueError, StorageFull) as error:
        say({"wrong": str(error)})


def run(asked: Search, say: Say) -> None:
    """Search as a request asks, and say what is found."""
    folder, place, limit = Path(asked["folder"]), asked["place"], asked["limit"]
    values = {"key": asked["key"], "properties": tuple(asked["properties"]), "grep": asked["grep"],
              "where": asked["where"], "since": asked["since"], "until": asked["until"]}
    report = Report(lambda line: say({"complaint": line}))
    with answering(say):
        settle(folder, place, report)
        stored = StoredMessages(folder, place, values, Wish())
        progress = _Progress(stored.size, say)
        messages = stored.newest_first if asked["newest"] else stored.messages
        for number, message in enumerate(messages(report, progress.advance)):
            if number == limit:
                say({"end": "limit"})
                return
            say({"row": shown.row(Shown(message), asked["payload"])})
        progress.tell()
        say({"end": "all"})


class _Progress:
    """Lines about how much is searched, at a bounded rate."""

    def __init__(self, size: int, say: Say) -> None:
        self._size, self._say, self._done, self._told = size, say, 0, 0.0

    def __repr__(self) -> str:
        return f"<_Progress {self._done} of {self._size}>"

    def advance(self, size: int) -> None:
        """Count bytes that have been searched."""
        self._done += size
        if time.monotonic() - self._told >= _TOLD_SECONDS:
            self.tell()

    def tell(self) -> None:
        self._told = time.monotonic()
        self._say({"searched": min(self._done, self._size), "of": self._size})


def _print(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(line, default=str, ensure_ascii=False).encode(errors="replace") + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        run(json.load(sys.stdin), _print)
    except BrokenPipeError:      # nobody reads any more
        os._exit(0)
