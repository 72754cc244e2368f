"""Reports of lanes: how the admin process asks the replicator about them.

    question   a line of JSON: the names of the partitions that are wanted, or null for all
    answer     a line of JSON: {"remotes": {cluster: link}, "lanes": [[partition, cluster, lane], ...]}

Both go over a Unix socket in the data folder, one question to a connection.
"""
import asyncio
import contextlib
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypedDict

from geminga.storage.runtime import unix_sockets

REPLICATOR = Path("run", "replicator")      # in the data folder, while a broker serves it
_LINE_MAX = 16 << 20
_ASK_S = 5.0


class LaneState(TypedDict):
    """One partition's way to one cluster; times are ms since 1970, 0 for none."""

    state: str                    # waiting, opening, sending or closed
    connected: bool
    connectedSince: int
    address: str                  # of the broker there, "" without a connection
    unanswered: int               # entries that were sent and have no receipt
    error: str                    # of the last failure
    nextTry: int
    entriesSent: int
    messagesSent: int
    bytesSent: int
    messageRate: float            # a second
    byteRate: float
    entriesFiltered: int          # that were not for the cluster


class LinkState(TypedDict):
    """The connections to one cluster; times are ms since 1970, 0 for none."""

    connected: bool
    connectedSince: int
    address: str                  # of its brokers
    connections: int
    error: str
    downSince: int
    nextTry: int
    lanes: int
    lanesConnected: int
    unanswered: int


class Report(TypedDict):
    """The answer to a question."""

    remotes: dict[str, LinkState]
    lanes: list[tuple[str, str, LaneState]]      # (partition, cluster, state)


class NoReplicator(Exception):
    """An error: the replicator does not answer, as it is being started or stopped."""


class Reports:
    """The replicator's end: answers questions."""

    def __init__(self, data_dir: Path, answer: Callable[[Collection[str] | None], Report]) -> None:
        """answer: returns the report about the partitions that a question names."""
        self._path, self._answer = data_dir / REPLICATOR, answer
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen.  Raises OSError."""
        listener = unix_sockets.listen(self._path, is_replacing=True)
        self._server = await unix_sockets.serve_streams(listener, self._ask, _LINE_MAX)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_ASK_S):
                asked = json.loads(await reader.readline())
                if asked is None or (isinstance(asked, list) and all(isinstance(one, str) for one in asked)):
                    writer.write(json.dumps(self._answer(asked)).encode() + b"\n")
                    await writer.drain()
        writer.close()


async def ask(data_dir: Path, partitions: Collection[str] | None = None
              ) -> tuple[dict[str, LinkState], dict[tuple[str, str], LaneState]]:
    """Return ({cluster: state of its link}, {(partition, cluster): state of the lane}) from the replicator.

    partitions: complete names of those that are wanted; None: all.  Raises NoReplicator.
    """
    try:
        async with asyncio.timeout(_ASK_S):
            with unix_sockets.short_path(data_dir / REPLICATOR) as path:
                reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_MAX)
            try:
                writer.write(json.dumps(None if partitions is None else list(partitions)).encode() + b"\n")
                report: Report = json.loads(await reader.readline())
            finally:
                writer.close()
    except (OSError, ValueError) as error:      # TimeoutError is an OSError
        raise NoReplicator(f"the replicator does not answer: {error}") from None
    return report["remotes"], {(partition, cluster): lane for partition, cluster, lane in report["lanes"]}


async def lanes(data_dir: Path, partitions: Collection[str] | None = None) -> dict[tuple[str, str], LaneState]:
    """Return {(partition, cluster): state of the lane} from the replicator.  Raises NoReplicator."""
    return (await ask(data_dir, partitions))[1]
