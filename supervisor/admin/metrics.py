"""Prometheus text at /metrics, from the counters that all processes share."""
import time

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from geminga.proto.commands import SERVER_VERSION
from geminga.storage.counters import Counters

routes = web.RouteTableDef()

# Counter of ours -> (Pulsar's name, what it says, whether it only grows).  Summed over all processes.
_BROKER = {
    "partitions_open": ("pulsar_broker_topics_count", "Topics and partitions that are loaded", False),
    "producers": ("pulsar_broker_producers_count", "Producers connected", False),
    "consumers": ("pulsar_broker_consumers_count", "Consumers connected", False),
    "messages_in": ("pulsar_broker_in_messages", "Messages published", True),
    "bytes_in": ("pulsar_broker_in_bytes", "Bytes of entries published", True),
    "connections_opened": ("pulsar_connection_created_total_count", "Connections accepted", False),
    "connections_closed": ("pulsar_connection_closed_total_count", "Connections ended", False),
}
_OWN = {
    "entries_dropped": "Entries of non-persistent topics that a subscription had no permits for",
    "deliveries_dropped": "Entries of non-persistent topics that a client did not read in time",
    "entries_parked": "Entries that too many consumers died over",
    "acks_of_damaged": "Messages that clients acknowledged because they could not read them",
    "acks_ignored": "Cumulative acknowledgements on subscriptions that have no order",
    "damage_found": "Damages that were found in files, each of them told in the log",
    "entries_lost": "Entries that were lost with their index",
    "entries_duplicate": "Entries that had come before and were not stored again",
    "deduplication_names_evicted": "Producers forgotten by deduplication because there were too many, not because they stayed away",
    "entries_in": "Entries published", "entries_out": "Entries handed to consumers", "syncs": "Journal syncs",
    "syncs_failed": "Times that an owner ended because its disk failed",
    "passes": "Passes of the owner's loop", "commands": "Commands that are not SEND, ACK or FLOW",
    "protocol_errors": "Connections ended because the peer broke the protocol", "sends_refused": "SENDs refused by a worker",
}


# Why a subscription has lost entries that it had not acknowledged.
_EXPIRED = {"entries_expired": "ttl", "entries_evicted": "backlog_quota"}


_GAUGES = {
    "publishing_refused": "1 while there is no room on the disk and nobody may publish",
    "disk_free_bytes": "Bytes free on the disk with the data folder",
    "is_waiting": "1 while the disk keeps an owner from beginning",
}


class Metrics:
    """A collector for prometheus_client."""

    def __init__(self, cluster: str, counters: dict[tuple[str, int], Counters]):
        self._cluster, self._counters = cluster, counters
        self._began = time.time()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self):
        rows = {key: counters.read() for key, counters in self._counters.items()}
        version = GaugeMetricFamily("pulsar_version_info", "What runs here", labels=["cluster", "version", "commit"])
        version.add_metric([self._cluster, SERVER_VERSION.split()[2], ""], 1)
        yield version
        for name, (theirs, text, grows) in _BROKER.items():
            family = (CounterMetricFamily if grows else GaugeMetricFamily)(theirs, text, labels=["cluster"])
            family.add_metric([self._cluster], sum(row[name] for row in rows.values()))
            yield family
        active = GaugeMetricFamily("pulsar_active_connections", "Connections open", labels=["cluster"])
        active.add_metric([self._cluster], sum(row["connections_opened"] - row["connections_closed"] for row in rows.values()))
        yield active
        expired = CounterMetricFamily("geminga_entries_expired", "Entries that subscriptions lost unacknowledged",
                                      labels=["process", "reason"])
        for name, reason in _EXPIRED.items():
            for (role, index), row in rows.items():
                if role == "owner":
                    expired.add_metric([f"{role}-{index}", reason], row[name])
        yield expired
        for name, text in _GAUGES.items():
            family = GaugeMetricFamily(f"geminga_{name}", text, labels=["process"])
            for (role, index), row in rows.items():
                if role == "owner":
                    family.add_metric([f"{role}-{index}"], row[name])
            yield family
        for name, text in _OWN.items():
            family = CounterMetricFamily(f"geminga_{name}", text, labels=["process"])
            for (role, index), row in rows.items():
                family.add_metric([f"{role}-{index}"], row[name])
            yield family


METRICS = web.AppKey("metrics", Metrics)


@routes.get("/metrics")
@routes.get("/metrics/")
async def metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[METRICS].text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
