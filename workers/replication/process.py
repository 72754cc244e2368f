"""The process `geminga-replicator`: it sends entries of partitions to other clusters.

Lanes follow the catalogue: there is one for each replication cursor (`pulsar.repl.CLUSTER`), which owners make and
delete as policies say.  Records of clusters say where to.  Partitioned topics that are replicated are made there before
they have cursors.  The same process moves dead letters of this broker (`workers/dead_letters/`).  Without any of these
it sleeps, and has loaded little.
"""
import asyncio
import contextlib
import os
import sqlite3
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.stored_policies import REPLICATION
from geminga.storage.errors import StorageFull
from geminga.storage.runtime.control import Control, unpacked
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.storage.runtime.unix_sockets import CLIENTS
from geminga.workers.dead_letters.mover import Mover
from geminga.workers.owners.following import follow
from geminga.workers.replication.reports import Report, Reports

if TYPE_CHECKING:
    from geminga.workers.replication.remote import Remote

_LOOK_S = 0.25               # between two looks whether the catalogue has changed
_TICK_S = 1.0                # between two looks for silent remotes
_GOODBYE_S = 1.0             # that remotes have for receipts when the process stops


class Replicator:
    """All lanes of the broker, by their clusters."""

    def __init__(self, data_dir: Path, cluster: str, stats_window_s: float, counters: Counters) -> None:
        self._own, self._clients, self._counters = cluster, data_dir / CLIENTS, counters
        self._window_s = stats_window_s
        self._catalogue = Catalogue(data_dir / "catalogue.sqlite")
        self._loop = asyncio.get_running_loop()
        self.remotes: dict[str, Remote] = {}
        self._ticked_s = 0.0
        self._is_due = True                            # the catalogue has changed since it was followed
        self._mover = Mover(data_dir, counters)

    def __repr__(self) -> str:
        return f"<Replicator {', '.join(map(repr, self.remotes.values()))}>"

    def look(self) -> None:
        """Follow the catalogue, and look for silent remotes once a second."""
        try:
            if self._catalogue.changed() or self._is_due:
                self._is_due = True
                self._follow()
                self._is_due = False
        except (StorageFull, sqlite3.OperationalError) as error:
            log.warning(f"replication cannot read the catalogue, and tries again: {error}", code="G103")
        self._mover.look()
        now = self._loop.time()
        if now - self._ticked_s >= _TICK_S:
            self._ticked_s = now
            for remote in self.remotes.values():
                remote.look(now)
            self._count()

    def _follow(self) -> None:
        self._mover.follow(self._catalogue)
        wanted: dict[str, list[str]] = defaultdict(list)
        for partition, subscription in self._catalogue.subscriptions.named(names.REPLICATOR_PREFIX):
            remote = names.remote_of(subscription)
            if remote and remote != self._own:
                wanted[remote].append(partition)
        if not wanted and not self.remotes and not self._catalogue.policies.everywhere(REPLICATION):
            return
        from geminga.workers.replication.partitioned import replicated  # a process without lanes does not need it
        from geminga.workers.replication.remote import Remote  # likewise
        records, partitioned = self._records(), replicated(self._catalogue, self._own)
        for name in self.remotes.keys() | wanted.keys() | (partitioned.keys() & records.keys()):
            if name not in self.remotes:
                self.remotes[name] = Remote(self._own, name, self._clients, self._catalogue, self._counters,
                                            self._window_s)
            is_known = name in records      # nothing goes to a cluster without a record, whatever lists say
            self.remotes[name].configure(records.get(name), wanted.get(name, ()),
                                         partitioned.get(name, ()) if is_known else ())

    def _records(self) -> dict[str, Any]:
        from geminga.workers.replication.records import RECORDS  # likewise
        return self._catalogue.policies.of(RECORDS)

    def _count(self) -> None:
        """Bring the gauges of the process up to date."""
        lanes = [lane for remote in self.remotes.values() for lane in remote.lanes.values()]
        self._counters.set("replication_lanes", len(lanes))
        self._counters.set("replication_lanes_connected", sum(lane.is_sending for lane in lanes))
        self._counters.set("replication_unanswered", sum(lane.unanswered for lane in lanes))
        self._counters.set("replication_links_down", sum(bool(remote.lanes) and not remote.is_up
                                                         for remote in self.remotes.values()))

    def report(self, partitions: Collection[str] | None) -> Report:
        """Return the state of the connections to all clusters, and of the lanes of these partitions.

        partitions: complete names; None stands for all partitions.
        """
        wanted = None if partitions is None else set(partitions)
        return {"remotes": {name: remote.state_now() for name, remote in self.remotes.items()},
                "lanes": [(partition, name, lane.state_now()) for name, remote in self.remotes.items()
                          for partition, lane in remote.lanes.items() if wanted is None or partition in wanted]}

    async def stop(self) -> None:
        """End all lanes; what was sent may still be acknowledged."""
        await asyncio.gather(self._mover.stop(), *(remote.stop(_GOODBYE_S) for remote in self.remotes.values()))


def run(data_dir: Path, cluster: str, stats_window_s: float, control: Control, counters: Counters) -> None:
    """Replicate until the supervisor tells the process to stop.

    cluster: the name of this one.  stats_window_s: seconds over which rates are averaged.
    """
    uvloop.run(_serve(data_dir, cluster, stats_window_s, control, counters))


async def _serve(data_dir: Path, cluster: str, stats_window_s: float, control: Control, counters: Counters) -> None:
    replicator = Replicator(data_dir, cluster, stats_window_s, counters)
    reports = Reports(data_dir, replicator.report)

    async def drain() -> None:
        """Workers deliver nothing more, and receipts that come are still acknowledged."""

    stopping = follow(control, None, lambda text: log.begin(unpacked(text)), drain)
    await reports.open()
    counters.set("serving_pid", os.getpid())
    control.send(ready={})
    while not stopping.is_set():
        with contextlib.suppress(Refusal):
            replicator.look()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await stopping.wait()
    reports.close()
    await replicator.stop()
