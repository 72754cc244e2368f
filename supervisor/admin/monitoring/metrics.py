"""Metrics for Prometheus at /metrics.

The broker, its processes and the host come from collector.py, through prometheus_client. Topics and subscriptions come
from the owners as columns of numbers (stats.py), and series.py writes their lines.
"""
import asyncio
from functools import partial

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.runtime.counters import Counters
from geminga.supervisor.admin.monitoring import coordinators
from geminga.supervisor.admin.monitoring.collector import Collector
from geminga.supervisor.admin.monitoring.property_labels import property_labels
from geminga.supervisor.admin.monitoring.scalable_series import WholeTopics
from geminga.supervisor.admin.monitoring.series import Series
from geminga.supervisor.admin.monitoring.stats import measure, put_sent
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import Owners
from geminga.supervisor.configuration.config import Config

routes = rights.Routes()


class Metrics:
    """All metrics of one broker, as text for Prometheus."""

    def __init__(self, config: Config, counters: dict[tuple[str, int], Counters], owners: Owners,
                 catalogue: Catalogue | None = None):
        """Combine shared counters and the owners' statistics.  counters: (role, index) of a process -> its counters.

        catalogue: has what owners do not know of topics.
        """
        self._catalogue = catalogue
        self._owners, self.collector = owners, Collector(config, counters)
        self._topics = WholeTopics()
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
        answered = [owner for owner in measured if owner is not None]
        if self._catalogue is None:
            series = Series(self._cluster, answered)
        else:
            if not options.segments and self.collector.scalable is not None:
                answered = self._topics.together(answered, *self.collector.scalable.names())
            series = Series(self._cluster, answered, partial(property_labels, self._catalogue, options))
        compactions = self.collector.compactions
        lines = [*series.families(), *series.compactions(compactions.records() if compactions else [], most)]
        return b"".join([head, *(family.encode() for family in lines)])


METRICS = web.AppKey("metrics", Metrics)


@routes.get("/metrics", right=None)
@routes.get("/metrics/", right=None)
async def metrics(request: web.Request) -> web.Response:
    """Answer with all metrics, for Prometheus."""
    body = await request.app[METRICS].text()
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
