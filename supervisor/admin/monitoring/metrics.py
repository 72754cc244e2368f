"""Metrics for Prometheus at /metrics.

The broker, its processes and the host come from collector.py, through prometheus_client. Topics and subscriptions come
from the owners as columns of numbers (stats.py), and series.py writes their lines.
"""
import asyncio

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from geminga.storage.runtime.counters import Counters
from geminga.supervisor.admin.monitoring import coordinators
from geminga.supervisor.admin.monitoring.collector import Collector
from geminga.supervisor.admin.monitoring.series import Series
from geminga.supervisor.admin.monitoring.stats import measure, put_sent
from geminga.supervisor.admin.requests.owners import Owners
from geminga.supervisor.configuration.config import Config

routes = web.RouteTableDef()


class Metrics:
    """All metrics of one broker, as text for Prometheus."""

    def __init__(self, config: Config, counters: dict[tuple[str, int], Counters], owners: Owners):
        """Combine shared counters and the owners' statistics.  counters: (role, index) of a process -> its counters."""
        self._owners, self.collector = owners, Collector(config, counters)
        self._registry = CollectorRegistry()
        self._registry.register(self.collector)
        self.configure(config)

    def __repr__(self) -> str:
        return f"<Metrics cluster={self._cluster!r} {self._options}>"

    def configure(self, config: Config) -> None:
        """Apply a changed configuration."""
        self._cluster, self._options, self._data_dir = config.cluster_name, config.metrics, config.data_dir
        self.collector.configure(config)

    async def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        options = self._options
        most = options.topics_max if options.topics else 0
        measured, self.collector.coordinators = await asyncio.gather(
            measure(self._owners, most, consumers=options.consumers, producers=options.producers),
            coordinators.coordinators(self._owners))
        await put_sent(self._data_dir, measured)
        self.collector.measured = measured
        head = generate_latest(self._registry)
        series = Series(self._cluster, [owner for owner in measured if owner is not None])
        compactions = self.collector.compactions
        lines = [*series.families(), *series.compactions(compactions.records() if compactions else [], most)]
        return b"".join([head, *(family.encode() for family in lines)])


METRICS = web.AppKey("metrics", Metrics)


@routes.get("/metrics")
@routes.get("/metrics/")
async def metrics(request: web.Request) -> web.Response:
    """Answer with all metrics, for Prometheus."""
    body = await request.app[METRICS].text()
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
