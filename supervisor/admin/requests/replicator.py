"""The replicator: when it is needed, and questions to it about how messages of topics go to other clusters."""
import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from aiohttp import web

from geminga.proto.names import TopicName
from geminga.storage.catalogue.stored_policies import DEAD_LETTER, REPLICATION
from geminga.storage.errors import StorageFull
from geminga.supervisor.admin.requests.request_parts import CONTROL, TOPICS
from geminga.workers.replication import reports
from geminga.workers.replication.reports import LaneState, NoReplicator

_LOOK_SECONDS = 0.25         # between two looks whether something is replicated


async def serve(app: web.Application) -> AsyncIterator[None]:
    """Have the replicator started when a policy first names clusters or dead letters, for `cleanup_ctx`."""
    waiting = asyncio.create_task(_wait(app))
    yield
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def _wait(app: web.Application) -> None:
    catalogue, seen = app[TOPICS].catalogue, None
    while True:
        with contextlib.suppress(StorageFull):
            if (version := catalogue.version()) != seen:
                if catalogue.policies.everywhere(REPLICATION) or catalogue.policies.everywhere(DEAD_LETTER):
                    return app[CONTROL].send(needs="replicator")
                seen = version
        await asyncio.sleep(_LOOK_SECONDS)


async def lanes(request: web.Request, topics: Iterable[TopicName]) -> dict[tuple[str, str], LaneState]:
    """Return {(partition, cluster): state of what goes there}; nothing while the replicator is being started."""
    return await lanes_of(request.app[TOPICS].config.data_dir, list(map(str, topics)))


async def lanes_of(data_dir: Path, topics: list[str]) -> dict[tuple[str, str], LaneState]:
    """Return {(partition, cluster): state of what goes there}; nothing while the replicator is being started."""
    try:
        return await reports.lanes(data_dir, topics)
    except NoReplicator:
        return {}
