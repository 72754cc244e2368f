"""Questions to the replicator: how messages of topics go to other clusters, and how many."""
from collections.abc import Iterable
from pathlib import Path

from aiohttp import web

from geminga.proto.names import TopicName
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.replication import reports
from geminga.supervisor.replication.reports import NoReplicator, State


async def lanes(request: web.Request, topics: Iterable[TopicName]) -> dict[tuple[str, str], State]:
    """Return {(partition, cluster): state of what goes there}; nothing while the replicator is being started."""
    return await lanes_of(request.app[TOPICS].config.data_dir, list(map(str, topics)))


async def lanes_of(data_dir: Path, topics: list[str]) -> dict[tuple[str, str], State]:
    """Return {(partition, cluster): state of what goes there}; nothing while the replicator is being started."""
    try:
        return await reports.lanes(data_dir, topics)
    except NoReplicator:
        return {}
