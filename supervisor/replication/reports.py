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
from typing import Any

from geminga.storage.runtime import unix_sockets

REPLICATOR = Path("run", "replicator")      # in the data folder, while a broker serves it
_LINE_MAX = 16 << 20
_ASK_S = 5.0
State = dict[str, Any]


class NoReplicator(Exception):
    """An error: the replicator does not answer, as it is being started or stopped."""


class Reports:
    """The replicator's end: answers questions."""

    def __init__(self, data_dir: Path, answer: Callable[[Collection[str] | None], Any]) -> None:
        """answer: returns what JSON is made of, for the partitions that a question names."""
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
              ) -> tuple[dict[str, State], dict[tuple[str, str], State]]:
    """Return ({cluster: state of its link}, {(partition, cluster): state of the lane}) from the replicator.

    partitions: complete names of those that are wanted; None: all.  Raises NoReplicator.
    """
    try:
        async with asyncio.timeout(_ASK_S):
            with unix_sockets.short_path(data_dir / REPLICATOR) as path:
                reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_MAX)
            try:
                writer.write(json.dumps(None if partitions is None else list(partitions)).encode() + b"\n")
                said = json.loads(await reader.readline())
            finally:
                writer.close()
    except (OSError, ValueError) as error:      # TimeoutError is an OSError
        raise NoReplicator(f"the replicator does not answer: {error}") from None
    return said["remotes"], {(partition, cluster): lane for partition, cluster, lane in said["lanes"]}


async def lanes(data_dir: Path, partitions: Collection[str] | None = None) -> dict[tuple[str, str], State]:
    """Return {(partition, cluster): state of the lane} from the replicator.  Raises NoReplicator."""
    return (await ask(data_dir, partitions))[1]
