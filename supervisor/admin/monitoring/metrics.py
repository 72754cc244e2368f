"""Prometheus text at /metrics.

What there is of the broker and its processes comes from the counters that all processes share, through prometheus_client.  What there is
of topics and subscriptions comes from the owners as columns (stats.py); its lines, many thousands of them, are put together here, a family
at a time.  Their names and labels are Pulsar's.  Of topics beyond `metrics.topics_max` there are sums by namespace under the same names,
without the label `topic`: so sums over all series of a name are whatever the bound.
"""
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import psutil
from aiohttp import web
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from geminga.proto.responses import SERVER_VERSION
from geminga.storage.runtime.counters import BOUNDS_S, Counters
from geminga.storage.statistics.columns import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS
from geminga.supervisor.admin.monitoring.alarms import ALARMS, Alarms
from geminga.supervisor.admin.monitoring.stats import Measured, measure, namespace_of, processes
from geminga.supervisor.admin.requests import authentication
from geminga.supervisor.admin.requests.owners import Owners
from geminga.supervisor.admin.resources.compaction import Compactions, Record
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.tasks.job_socket import last_report
from geminga.workers.addresses import url

if TYPE_CHECKING:
    from geminga.workers.identity.certificates import Tls

routes = web.RouteTableDef()

# Counter of ours -> (Pulsar's name, what it says, whether it only grows).  Summed over all processes.
_BROKER = {
    "messages_in": ("pulsar_broker_in_messages", "Messages published", True),
    "lookups": ("pulsar_broker_lookup_answers", "Lookups answered", True),
    "lookups_failed": ("pulsar_broker_lookup_failures", "Lookups refused: the namespace, the listener or the right is missing", True),
    "lookups_waiting": ("pulsar_broker_lookup_pending_requests", "Lookups that wait for an owner", False),
    "loads_failed": ("topic_load_failed", "Topics that could not be opened", True),
    "commands_waiting": ("pulsar_broker_topic_load_pending_requests", "What waits for an owner to be started, or to take it in", False),
    "connections_throttled": ("pulsar_broker_throttled_connections", "Connections not read from because of a publish rate", False),
    "schemas_compatible": ("pulsar_schema_compatible", "Schemas found compatible with those before them", True),
    "schemas_incompatible": ("pulsar_schema_incompatible", "Schemas found incompatible with those before them", True),
}
# Likewise; they have two labels more, and never were counters.
_CONNECTIONS = {
    "handshakes": ("pulsar_connection_create_success_count", "Connections whose clients have introduced themselves"),
    "handshakes_refused": ("pulsar_connection_create_fail_count", "Connections whose clients were refused"),
    "connections_opened": ("pulsar_connection_created_total_count", "Connections accepted"),
    "connections_closed": ("pulsar_connection_closed_total_count", "Connections ended"),
}
_HEALTH = {0: -1, 1: 1, 2: 0}      # of the counter: what Pulsar says of it
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
    "starts": "Processes that were started in this place: all but the first because one before it ended",
    "syncs_failed": "Times that an owner ended because its disk failed",
    "passes": "Passes of the owner's loop", "commands": "Commands that are not SEND, ACK or FLOW",
    "tls_connections": "Connections to a port where TLS is spoken",
    "tls_handshakes": "TLS handshakes that succeeded; of other connections nothing came, or what came was no TLS, or late",
    "tls_handshakes_failed": "TLS handshakes that one side has refused",
    "tls_reloads": "Certificates taken from files that had changed", "tls_reloads_failed": "Changed files that could not be used",
    "protocol_errors": "Connections ended because the peer broke the protocol", "sends_refused": "SENDs refused by a worker",
    "commands_refused": "Commands of clients without the right to them",
}
# Why a subscription has lost entries that it had not acknowledged.
_EXPIRED = {"entries_expired": "ttl", "entries_evicted": "backlog_quota"}
_OWNER_GAUGES = {
    "publishing_refused": "1 while there is no room on the disk and nobody may publish",
    "disk_free_bytes": "Bytes free on the disk with the data folder",
    "is_waiting": "1 while the disk keeps an owner from beginning",
}
# Histogram of ours -> (Pulsar's name, what it says).
_SUMMARIES = {
    "publish": ("pulsar_broker_publish_latency", "Milliseconds until entries are on disk"),
    "lookup": ("pulsar_broker_lookup", "Milliseconds until a lookup is answered"),
    "load": ("pulsar_topic_load_times", "Milliseconds to open a stored topic, or to make one"),
    "schema_get": ("pulsar_schema_get_ops_latency", "Milliseconds to read a schema"),
    "schema_put": ("pulsar_schema_put_ops_latency", "Milliseconds to compare a schema and add it, without the sync of the catalogue"),
    "schema_delete": ("pulsar_schema_del_ops_latency", "Milliseconds to delete a schema, without the sync of the catalogue"),
}
_HISTOGRAMS = {      # name: (whose, what it says)
    "publish": ("owner", "From the moment an owner takes in entries until they are on disk, for each entry"),
    "sync": ("owner", "What a sync of the journal takes"),
    "dispatch": ("owner", "What it takes to give out entries, for each pass that does"),
    "acknowledge": ("owner", "What it takes to apply acknowledgements, for each pass that does"),
    "answer": ("worker", "From the moment a worker hands entries to an owner until it has taken them, for each envelope"),
}

# -- families of topics and subscriptions

Values = Callable[[dict[str, NDArray], float], NDArray]      # of columns, by name, and the time in ms


class Family(NamedTuple):
    name: str
    text: str
    values: str | Values          # a column, or what is made of some
    type: str = "gauge"
    sums: bool = True             # whether what is rolled up is summed up; else there is nothing of it
    labels: str = ""              # more of them; families of one name follow each other
    prefix: str = ""              # of the names of labels


def _ratio(above: str, below: str) -> Values:
    return lambda columns, now_ms: columns[above] / np.maximum(columns[below], 1e-9) * (columns[below] > 0)


def _age_s(columns: dict[str, NDArray], now_ms: float) -> NDArray:
    since = columns["backlog_since_ms"]
    return np.where(since > 0, (now_ms - since) // 1000, -1)


def _nothing(columns: dict[str, NDArray], now_ms: float) -> NDArray:
    return np.zeros(len(next(iter(columns.values()))))


def _sum(*names: str) -> Values:
    def added(columns: dict[str, NDArray], now_ms: float) -> NDArray:
        whole: Any = sum(columns[name] for name in names)
        return whole
    return added


def _less(whole: str, part: str) -> Values:
    return lambda columns, now_ms: columns[whole] - columns[part]


_LATENCIES = ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000", "overflow")
_SIZES = ("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb", "le_overflow")


def _total(prefix: str, buckets: Iterable[str]) -> Values:
    return _sum(*(f"{prefix}_{bucket}" for bucket in buckets))


def _buckets(name: str, prefix: str, what: str, buckets: tuple[str, ...], total: str) -> list[Family]:
    """Return families for the buckets of a histogram over the last window, with count and sum."""
    return [*(Family(f"{name}_{bucket}", f"{what}, in the last window", f"{prefix}_{bucket}") for bucket in buckets),
            Family(f"{name}_count", f"{what}: how many", _total(prefix, buckets)), Family(f"{name}_sum", f"{what}: their sum", total)]


TOPIC_FAMILIES = [
    Family("pulsar_subscriptions_count", "Subscriptions", "subscriptions"),
    Family("pulsar_producers_count", "Producers connected", "producers"),
    Family("pulsar_consumers_count", "Consumers connected", "consumers"),
    Family("pulsar_rate_in", "Messages published, per second", "rate_in"),
    Family("pulsar_rate_out", "Messages given to consumers, per second", "rate_out"),
    Family("pulsar_throughput_in", "Bytes published, per second", "throughput_in"),
    Family("pulsar_throughput_out", "Bytes given to consumers, per second", "throughput_out"),
    Family("pulsar_average_msg_size", "Bytes of a message", _ratio("throughput_in", "rate_in")),
    Family("pulsar_msg_backlog", "Entries that subscriptions have not acknowledged, of all of them together", "backlog"),
    Family("pulsar_storage_size", "Bytes of the entries that are stored", "storage_bytes"),
    Family("pulsar_storage_logical_size", "Bytes of the entries that are stored, each once", "storage_bytes"),
    Family("pulsar_storage_backlog_size", "Bytes from the first entry on that a subscription has not acknowledged", "backlog_bytes"),
    Family("pulsar_storage_backlog_age_seconds", "Age of the oldest entry that a subscription has not acknowledged; -1: there is none",
           _age_s, sums=False),
    Family("pulsar_storage_backlog_quota_limit", "Bytes of backlog that are allowed; -1: any", "quota_bytes", sums=False),
    Family("pulsar_storage_backlog_quota_limit_time", "Seconds that a backlog may be old; -1: any", "quota_age_s", sums=False),
    Family("pulsar_storage_backlog_quota_exceeded_evictions_total", "How often a quota made subscriptions lose messages", "evicted_by_size",
           "counter", labels=',quota_type="size"'),
    Family("pulsar_storage_backlog_quota_exceeded_evictions_total", "", "evicted_by_age", "counter", labels=',quota_type="time"'),
    Family("pulsar_publish_rate_limit_times", "How often a rate held back what was published", "publish_limited"),
    Family("pulsar_storage_write_rate", "Entries stored, per second", "write_rate"),
    Family("pulsar_storage_read_rate", "Entries read, per second", "read_rate"),
    Family("pulsar_in_messages_total", "Messages published", "messages_in", "counter"),
    Family("pulsar_in_bytes_total", "Bytes published", "bytes_in", "counter"),
    Family("geminga_delayed_entries", "Entries that wait for their time, whoever is to get them", "waiting"),
    Family("pulsar_delayed_message_index_size_bytes", "Bytes of memory of their index", "delayed_memory"),
    Family("pulsar_delayed_message_index_loaded", "Those of them that are in memory: they came lately, or fall due soon", "delayed_loaded"),
    Family("pulsar_delayed_message_index_bucket_total", "Files of their index: one for each window of time", "delayed_windows"),
    Family("pulsar_delayed_message_index_bucket_snapshot_size_bytes", "Bytes of these files", "delayed_disk"),
    *(Family("pulsar_delayed_message_index_bucket_op_count", "What was done to these files since the topic was opened", column,
             labels=f',state="{state}",type="{type_}"')
      for type_, state, column in (
          ("create", "all", "windows_created"), ("create", "succeed", "windows_created"),
          ("load", "all", _sum("windows_read", "windows_unreadable")), ("load", "succeed", "windows_read"),
          ("load", "failed", "windows_unreadable"),
          ("delete", "all", "windows_removed"), ("delete", "succeed", "windows_removed"))),
    Family("pulsar_broker_topic_messages_delayed_rejected_total", "Messages that were to be delivered later than the maximum allows",
           "delays_refused", "counter", prefix="pulsar_"),
    Family("pulsar_broker_topic_messages_fixed_delay_overridden_total", "Messages that a fixed delay gave another time than they came with",
           "delays_overridden", "counter", prefix="pulsar_"),
    *_buckets("pulsar_storage_write_latency", "latency", "Entries by the milliseconds until they were on disk", _LATENCIES, "latency_sum"),
    *_buckets("pulsar_storage_ledger_write_latency", "journal", "Entries by the milliseconds that writing them took", _LATENCIES,
              "journal_sum"),
    *_buckets("pulsar_add_entry_latency", "latency", "The same as pulsar_storage_write_latency", _LATENCIES, "latency_sum"),
    *_buckets("pulsar_entry_size", "size", "Entries by their bytes", _SIZES, "size_sum"),
    Family("pulsar_entry_size_overflow", "The same as pulsar_entry_size_le_overflow", "size_le_overflow"),
    Family("pulsar_storage_read_cache_misses_rate", "Always 0: reads are from mapped files", _nothing),
    Family("pulsar_storage_offloaded_size", "Always 0: nothing is offloaded", _nothing),
    *(Family(f"pulsar_txn_tb_{what}_total", "Always 0: there are no transactions", _nothing, "counter")
      for what in ("active", "aborted", "committed")),
]
SUBSCRIPTION_FAMILIES = [
    Family("pulsar_subscription_back_log", "Entries that are not acknowledged", "backlog"),
    Family("pulsar_subscription_back_log_no_delayed", "Entries that are not acknowledged, and whose time has come",
           _less("backlog", "delayed")),
    Family("pulsar_subscription_delayed", "Entries whose time has not come", "delayed"),
    Family("pulsar_subscription_in_replay", "Entries to be given out again", "in_replay"),
    Family("pulsar_subscription_unacked_messages", "Messages at consumers", "unacknowledged"),
    Family("pulsar_subscription_blocked_on_unacked_messages", "1 while these are too many", "is_blocked"),
    Family("pulsar_subscription_consumers_count", "Consumers connected", "consumers"),
    Family("pulsar_subscription_msg_rate_out", "Messages given to consumers, per second", "rate_out"),
    Family("pulsar_subscription_msg_throughput_out", "Bytes given to consumers, per second", "throughput_out"),
    Family("pulsar_subscription_msg_rate_redeliver", "Messages given back by consumers, per second", "rate_redeliver"),
    Family("pulsar_subscription_msg_ack_rate", "Messages acknowledged, per second", "rate_acknowledged"),
    Family("pulsar_subscription_msg_rate_expired", "Messages expired, per second", "rate_expired"),
    Family("pulsar_subscription_total_msg_expired", "Messages expired", "expired"),
    Family("pulsar_subscription_msg_drop_rate", "Messages that nobody could take, per second", "rate_dropped"),
    Family("pulsar_subscription_last_expire_timestamp", "When messages last expired, ms", "expired_ms", sums=False),
    Family("pulsar_subscription_last_acked_timestamp", "When something was last acknowledged, ms", "acked_ms", sums=False),
    Family("pulsar_subscription_last_consumed_timestamp", "When something was last given out, ms", "consumed_ms", sums=False),
    Family("pulsar_subscription_last_consumed_flow_timestamp", "When a consumer last asked for more, ms", "flow_ms", sums=False),
    Family("pulsar_subscription_last_mark_delete_advanced_timestamp", "When the mark-delete position last moved, ms", "advanced_ms",
           sums=False),
    Family("pulsar_subscription_delayed_message_index_size_bytes", "Bytes of memory of the index that all subscriptions share, where any "
           "of its entries wait for this one", "delayed_memory"),
    Family("pulsar_out_messages_total", "Messages given to consumers", "messages_out", "counter"),
    Family("pulsar_out_bytes_total", "Bytes given to consumers", "bytes_out", "counter"),
    *(Family(f"pulsar_subscription_dispatch_throttled_{what}_events", "How often a rate kept consumers waiting",
             f"dispatchThrottled{theirs}EventsBy{level}Limit", labels=f',reason="{level.lower()}"')
      for what, theirs in (("msg", "Msg"), ("bytes", "Bytes")) for level in ("Subscription", "Topic", "Broker")),
    *(Family(f"pulsar_subscription_filter_{what}_msg_count", "Always 0: there are no entry filters", _nothing)
      for what in ("processed", "accepted", "rejected", "rescheduled")),
    Family("geminga_subscription_backlog_messages", "Messages that are not acknowledged: published since the subscription began, less "
           "acknowledged, expired, skipped and evicted ones", "backlog_messages"),
]
def _duration(at: int, one: Record) -> int:
    return one.durations[at]


# Of a topic's compactions since the broker began: what is behind pulsar_compaction_ -> (what it says, its value).
_COMPACTION: dict[str, tuple[str, Callable[[Record], float]]] = {
    "removed_event_count": ("Messages that compaction has left out", lambda one: one.removed),
    "succeed_count": ("Compactions that succeeded", lambda one: one.succeeded),
    "failed_count": ("Compactions that failed", lambda one: one.failed),
    "duration_time_in_mills": ("What the last one took, ms", lambda one: round(one.seconds * 1000)),
    "read_throughput": ("Bytes a second that the last one read", lambda one: round(one.bytes_in / max(one.seconds, 1e-3), 3)),
    "write_throughput": ("Bytes a second that the last one wrote", lambda one: round(one.bytes_out / max(one.seconds, 1e-3), 3)),
    "compacted_entries_count": ("Entries that the last one has left", lambda one: one.entries_out),
    "compacted_entries_size": ("Bytes of these", lambda one: one.bytes_out),
    **{f"latency_{name}": ("Compactions by the milliseconds that they took", partial(_duration, at))
       for at, name in enumerate(_LATENCIES)},
    "latency_count": ("Compactions that succeeded and had something to do", lambda one: sum(one.durations)),
    "latency_sum": ("Milliseconds that they took", lambda one: round(one.seconds_sum * 1000)),
}
# Of the last night: what is behind geminga_nightly_ -> (what it says, its value by what the report has).
_NIGHT: dict[str, tuple[str, Callable[[dict], float]]] = {
    "last_success_timestamp_seconds": ("When a night last succeeded; 0: never", lambda night: night["last_success_ms"] / 1000),
    "last_run_timestamp_seconds": ("When one last ended", lambda night: night["ended_ms"] / 1000),
    "last_run_seconds": ("What it took", lambda night: night["seconds"]),
    "last_status": ("0: it succeeded; 1: something of it failed", lambda night: int(night["status"] != "success")),
    "last_compacted": ("Partitions that were compacted", lambda night: night["totals"]["compacted"]),
    "last_messages_in": ("Messages that were read to compact them", lambda night: night["totals"]["messages_in"]),
    "last_messages_out": ("Messages that are left of these", lambda night: night["totals"]["messages_out"]),
    "last_bytes_in": ("Bytes that were read to compact them", lambda night: night["totals"]["bytes_in"]),
    "last_bytes_out": ("Bytes that are left of these", lambda night: night["totals"]["bytes_out"]),
    "last_given_back_bytes": ("Bytes that retention, expiry and deletions gave back", lambda night: night["totals"]["given_back"]),
    "last_expired": ("Messages that expired", lambda night: night["totals"]["expired"]),
}
# Pulsar's name -> column, of the broker as a whole.
_SUMS = {
    "broker_subscriptions_count": "subscriptions", "broker_producers_count": "producers", "broker_consumers_count": "consumers",
    "broker_rate_in": "rate_in", "broker_rate_out": "rate_out", "broker_throughput_in": "throughput_in",
    "broker_throughput_out": "throughput_out", "broker_msg_backlog": "backlog", "broker_storage_size": "storage_bytes",
    "broker_storage_logical_size": "storage_bytes", "broker_storage_write_rate": "write_rate", "broker_storage_read_rate": "read_rate",
    "ml_cache_hits_rate": "read_rate"}
# Of the broker as a whole, always 0.
_NEVER = {"ml_cache_misses_rate": "reads are from mapped files", "broker_storage_read_cache_misses_rate": "reads are from mapped files"}
_NEVER_COUNTED = {"broker_lookup_redirects": "there is one broker"}
_QUANTILES = 0.0, 0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0
_QUANTILE_SECONDS = 60       # that quantiles are about
_LOAD_QUANTILES = {"time_median_ms": 0.5, "time_75percentile_ms": 0.75, "time_95percentile_ms": 0.95, "time_99_percentile_ms": 0.99,
                   "time_99_9_percentile_ms": 0.999, "time_99_99_percentile_ms": 0.9999}
_CONSUMER_GAUGES = ("msg_rate_out", "msg_throughput_out", "msg_rate_redeliver", "msg_ack_rate", "unacked_messages",
                    "blocked_on_unacked_messages", "available_permits")
_PRODUCER_GAUGES = ("msg_rate_in", "msg_throughput_in", "msg_average_Size")


class Metrics:
    """A collector for prometheus_client, and the rest."""

    def __init__(self, config: Config, counters: dict[tuple[str, int], Counters], owners: Owners):
        self._counters, self._owners = counters, owners
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._measured: list[Measured | None] = []
        self.configure(config)
        self._seen: dict[str, deque[tuple[float, NDArray, float]]] = {name: deque() for name in _SUMMARIES}      # (when, counts, sum)
        self._links = _Links()
        self.certificates: Tls | None = None
        self.compactions: Compactions | None = None
        self.alarms: Alarms | None = None
        self._data_dir = config.data_dir

    def configure(self, config: Config) -> None:
        """This holds from now on."""
        self._cluster, self._options = config.cluster_name, config.metrics
        self._host_name = urlsplit(url("pulsar", config.worker.advertised_address or config.worker.bind, 0)).hostname

    async def text(self) -> bytes:
        most = self._options.topics_max if self._options.topics else 0
        self._measured = measured = await measure(self._owners, most, consumers=self._options.consumers, producers=self._options.producers)
        head = generate_latest(self._registry)
        lines = Lines(self._cluster, [one for one in measured if one is not None])
        told = [*lines.families(), *compaction_families(lines, self.compactions.records() if self.compactions else [], most)]
        return b"".join([head, *(family.encode() for family in told)])

    # -- prometheus_client's part

    def collect(self) -> Iterator[Metric]:
        rows = {f"{role}-{index}": (role, counters, counters.read()) for (role, index), counters in self._counters.items()}
        cluster: dict[str, Any] = {"labels": ["cluster"]}
        version = GaugeMetricFamily("pulsar_version_info", "What runs here", labels=["cluster", "version", "commit"])
        version.add_metric([self._cluster, SERVER_VERSION.split()[2], ""], 1)
        yield version
        for name, (theirs, text, grows) in _BROKER.items():
            family = (CounterMetricFamily if grows else GaugeMetricFamily)(theirs, text, **cluster)
            family.add_metric([self._cluster], sum(row[name] for _, _, row in rows.values()))
            yield family
        for name, (theirs, text) in _CONNECTIONS.items():
            yield self._of_broker(theirs, text, "broker_connection", sum(row[name] for _, _, row in rows.values()))
        yield from self._bytes(lambda name: sum(row[name] for _, _, row in rows.values()))
        health = _HEALTH[sum(row["health"] for _, _, row in rows.values())]
        text = "1: the last request for the broker's health succeeded, 0: it failed, -1: there was none"
        yield self._of_broker("pulsar_health", text, "broker_health", health)
        yield from self._loads(sum(row["loads_failed"] for _, _, row in rows.values()))
        yield self._of_broker("pulsar_active_connections", "Connections open", "broker_connection",
                              sum(row["connections_opened"] - row["connections_closed"] for _, _, row in rows.values()))
        for kind, names in ((GaugeMetricFamily, _NEVER), (CounterMetricFamily, _NEVER_COUNTED)):
            for name, why in names.items():
                never = kind(f"pulsar_{name}", f"Always 0: {why}", **cluster)
                never.add_metric([self._cluster], 0)
                yield never
        yield from self._sums()
        for name, (theirs, text) in _SUMMARIES.items():
            yield self._summary(name, theirs, text)
        yield self._quota_check()
        yield from self._host()
        expired = CounterMetricFamily("geminga_entries_expired", "Entries that subscriptions lost unacknowledged",
                                      labels=["process", "reason"])
        for name, reason in _EXPIRED.items():
            for process, (role, _, row) in rows.items():
                if role == "owner":
                    expired.add_metric([process, reason], row[name])
        yield expired
        for names, whose in ((_OWNER_GAUGES, "owner"), ({"in_flight_bytes": "Bytes of entries that owners have not taken yet"}, "worker")):
            for name, text in names.items():
                its = {process: row[name] for process, (role, _, row) in rows.items() if role == whose}
                yield _by_process(GaugeMetricFamily, name, text, its)
        yield self._certificate_expiry()
        yield from self._alarms(self.alarms) if self.alarms else ()
        yield from self._nightly()
        yield from authentication.families(self._cluster, next(iter(self._counters.values())).total)
        for name, text in _OWN.items():
            yield _by_process(CounterMetricFamily, name, text, {process: row[name] for process, (_, _, row) in rows.items()})
        for name, (whose, text) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"geminga_{name}_seconds", text, labels=["process"])
            for process, (role, counters, _) in rows.items():
                if role == whose:
                    counts, total = counters.histogram(name)
                    histogram.add_metric([process], _buckets_of(counts), total)
            yield histogram

    def _certificate_expiry(self) -> Metric:
        what = "Until the first certificate expires of those in the file that a key of the configuration names"
        family = GaugeMetricFamily("geminga_certificate_expiry_seconds", what, labels=["key"])
        for key, expires in self.certificates.expiries().items() if self.certificates else ():
            family.add_metric([key], expires - time.time())
        return family

    def _alarms(self, alarms: Alarms) -> Iterator[Metric]:
        """1 while one is raised, and what they are about that stands nowhere else."""
        family = GaugeMetricFamily("geminga_alarm", "1 while it is raised; geminga status says why", labels=["alarm"])
        for name in ALARMS:
            family.add_metric([name], int(name in alarms.raised))
        yield family
        memory, jumped = alarms.memory, alarms.clock_jumps()
        for name, text, value in (("used", "Memory that is used and cannot be taken back", memory.used),
                                  ("limit", "What there is of it, of a control group or the host", memory.limit)):
            yield GaugeMetricFamily(f"geminga_memory_{name}_bytes", text, value)
        jumps = CounterMetricFamily("geminga_clock_jumps", "Times that the clock was put forward or back", labels=["direction"])
        for direction in ("forward", "back"):
            jumps.add_metric([direction], jumped[direction])
        yield jumps

    def _nightly(self) -> Iterator[Metric]:
        """Compactions under way, and the last night, if there was one."""
        under_way = GaugeMetricFamily("geminga_compactions", "Partitions that are being compacted, or wait for it", labels=["state"])
        for state, count in (self.compactions.counts if self.compactions else {}).items():
            under_way.add_metric([state], count)
        yield under_way
        night = last_report(self._data_dir)
        for name, (text, value) in _NIGHT.items():
            yield GaugeMetricFamily(f"geminga_nightly_{name}", text, value(night) if night else None)

    def _sums(self) -> Iterator[Metric]:
        """Over all topics that are loaded."""
        found = [one for one in self._measured if one is not None]
        for name, column in _SUMS.items():
            family = GaugeMetricFamily(f"pulsar_{name}", "Of all topics that are loaded", labels=["cluster"])
            family.add_metric([self._cluster], sum(one.total(column) for one in found))
            yield family
        evictions = CounterMetricFamily("pulsar_broker_storage_backlog_quota_exceeded_evictions",
                                        "How often a quota made subscriptions lose messages", labels=["cluster", "quota_type"])
        for kind, column in (("size", "evicted_by_size"), ("time", "evicted_by_age")):
            evictions.add_metric([self._cluster, kind], sum(one.total(column) for one in found))
        yield evictions
        topics = GaugeMetricFamily("pulsar_broker_topics_count", "Topics and partitions that are loaded", labels=["cluster"])
        topics.add_metric([self._cluster], sum(sum(one.head["loaded"]) for one in found))
        yield topics
        rolled = GaugeMetricFamily("geminga_series_rolled_up", "What has no series of its own, but is in its namespace's", labels=["of"])
        rolled.add_metric(["topics"], sum(one.head["rolled_up"] for one in found))
        rolled.add_metric(["subscriptions"], sum(one.head["rolled_up_subscriptions"] for one in found))
        yield rolled
        measured = GaugeMetricFamily("geminga_owner_measured", "0: it did not answer, and its topics are left out here", labels=["process"])
        for index, one in enumerate(self._measured):
            measured.add_metric([f"owner-{index}"], one is not None)
        yield measured

    def _of_broker(self, name: str, text: str, metric: str, value: float) -> Metric:
        """With the labels of what Pulsar reports of a broker as a whole."""
        labels: dict[str, Any] = {"cluster": self._cluster, "broker": self._host_name, "metric": metric}
        family = GaugeMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _lately(self, name: str) -> tuple[float, NDArray, float]:
        """(seconds, how often in each bucket in this time, the sum in seconds): of the last minute, or as long as somebody has asked."""
        now, seen = time.monotonic(), self._seen[name]
        counts, spent = self._histogram(name)
        while len(seen) > 1 and now - seen[1][0] >= _QUANTILE_SECONDS:
            seen.popleft()
        seen.append((now, counts, spent))
        return now - seen[0][0], counts - seen[0][1], spent - seen[0][2]

    def _summary(self, name: str, theirs: str, text: str) -> Metric:
        """Quantiles are of the last minute, or as long as somebody has asked."""
        _, lately, _ = self._lately(name)
        counts, seconds = self._histogram(name)
        family, labels = Metric(theirs, f"{text}; quantiles are of the last minute", "summary"), {"cluster": self._cluster}
        for quantile, ms in zip(_QUANTILES, _quantiles_ms(lately, _QUANTILES), strict=True):
            family.add_sample(theirs, labels | {"quantile": f"{quantile:g}"}, ms)
        family.add_sample(f"{theirs}_count", labels, int(counts.sum()))
        family.add_sample(f"{theirs}_sum", labels, seconds * 1000)
        return family

    def _bytes(self, total: Callable[[str], int]) -> Iterator[Metric]:
        """What came and went, told apart by whether the broker itself wanted it."""
        of_system = total("system_bytes_in")
        for way, text, label, values in (
                ("in", "Bytes of entries published", "system_topic", (total("bytes_in") - of_system, of_system)),
                ("out", "Bytes of entries given to consumers, and read by compactions", "system_subscription",
                 (total("bytes_out"), self.compactions.bytes_read if self.compactions else 0))):
            family = CounterMetricFamily(f"pulsar_broker_{way}_bytes", text, labels=["cluster", label])
            for whose, value in zip(("false", "true"), values, strict=True):
                family.add_metric([self._cluster, whose], value)
            yield family

    def _loads(self, failed: int) -> Iterator[Metric]:
        """How topics were opened in the last minute, as Pulsar has it beside the summary."""
        seconds, counts, spent = self._lately("load")
        values = dict(zip(_LOAD_QUANTILES, _quantiles_ms(counts, _LOAD_QUANTILES.values()), strict=True))
        many = int(counts.sum())
        values |= {"time_mean_ms": spent * 1000 / max(1, many), "rate_s": many / max(1.0, seconds), "failed_count": failed}
        for name, value in values.items():
            yield self._of_broker(f"pulsar_topic_load_{name}", "Topics opened: how long it took, how many a second, how many failed",
                                  "pulsar_topic_load_times", value)

    def _quota_check(self) -> Metric:
        counts, seconds = self._histogram("quota_check")
        family = HistogramMetricFamily("pulsar_storage_backlog_quota_check_duration_seconds",
                                       "What an owner's look at the ages of all backlogs takes", labels=["cluster"])
        family.add_metric([self._cluster], _buckets_of(counts), seconds)
        return family

    def _histogram(self, name: str) -> tuple[NDArray, float]:
        """(how often in each of its buckets, seconds), of all processes."""
        found = [counters.histogram(name) for counters in self._counters.values()]
        return np.array([counts for counts, _ in found]).sum(axis=0), sum(seconds for _, seconds in found)

    def _host(self) -> Iterator[Metric]:
        """Yield CPU time, memory and descriptors of each process."""
        told = {"cpu_seconds": (CounterMetricFamily, "CPU time"), "resident_memory_bytes": (GaugeMetricFamily, "Memory that is there"),
                "open_fds": (GaugeMetricFamily, "Descriptors"), "start_time_seconds": (GaugeMetricFamily, "When it began, since 1970")}
        families = {name: kind(f"process_{name}", f"{text}, of each process", labels=["process"]) for name, (kind, text) in told.items()}
        resident = 0
        for name, process in processes(self._counters):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info().rss
                    values = times.user + times.system, memory, process.num_fds(), process.create_time()
            except psutil.NoSuchProcess:
                continue
            resident += memory
            for family, value in zip(families.values(), values, strict=True):
                family.add_metric([name], value)
        yield from families.values()
        for name, text, value in (
                ("cpu", "CPU of the host in use, in percent", psutil.cpu_percent()),
                ("memory", "Memory of the host that the broker has, in percent", 100 * resident / psutil.virtual_memory().total),
                ("directMemory", "Always 0: there is none apart from the rest", 0),
                *((f"bandwidth_{way}", f"Of what the host's network can carry {way} since the last scrape, in percent", value)
                  for way, value in self._links.used().items())):
            yield self._of_broker(f"pulsar_lb_{name}_usage", text, "loadBalancing", value)


def _buckets_of(counts: Iterable[int]) -> list[tuple[str, int]]:
    """As Prometheus has them: each with all below it."""
    return list(zip([*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"], np.cumsum(list(counts)).tolist(), strict=True))


def _quantiles_ms(counts: NDArray, quantiles: Iterable[float] = _QUANTILES) -> list[float]:
    """Of values in the buckets of BOUNDS_S, as if they lay evenly in each; 0 when there are none."""
    quantiles = list(quantiles)
    edges, reach = np.array([0.0, *BOUNDS_S, BOUNDS_S[-1]]), np.cumsum(counts)
    if not reach[-1]:
        return [0.0] * len(quantiles)
    wanted = np.maximum(np.array(quantiles) * reach[-1], 1e-9)
    at = np.searchsorted(reach, wanted)      # a bucket that has some
    return ((edges[at] + (wanted - reach[at] + counts[at]) / counts[at] * (edges[at + 1] - edges[at])) * 1000).tolist()


def _by_process(kind: type, name: str, text: str, values: dict[str, int]) -> Metric:
    family = kind(f"geminga_{name}", text, labels=["process"])
    for process, value in values.items():
        family.add_metric([process], value)
    return family


class _Links:
    """What the host's network carries."""

    def __init__(self):
        self._before: tuple[float, dict] | None = None

    def used(self) -> dict[str, float]:
        """Percent in and out since this was last asked; nothing where no link says how fast it is, as those of virtual machines."""
        speeds = {name: link.speed * 125_000 for name, link in psutil.net_if_stats().items() if link.isup and link.speed > 0}
        now, counted = time.monotonic(), psutil.net_io_counters(pernic=True)
        before, self._before = self._before, (now, counted)
        if before is None:
            return {}
        links = [name for name in speeds if name in before[1] and name in counted]
        if not links:
            return {}
        most = sum(speeds[name] for name in links) * max(now - before[0], 1e-3)
        return {way: 100 * sum(getattr(counted[name], field) - getattr(before[1][name], field) for name in links) / most
                for way, field in (("in", "bytes_recv"), ("out", "bytes_sent"))}


_LABEL = re.compile(r"([{,])(?=cluster=|namespace=|topic=)")


class Lines:
    """Lines of the series of topics and subscriptions."""

    def __init__(self, cluster: str, measured: list[Measured]):
        self.cluster, self._now_ms, self._last_name = cluster, time.time() * 1000, ""
        self._spaces: list[Any] = []
        self._topics: list[Any] = []
        self._subscriptions: list[Any] = []
        self._loaded: dict[str, Any] = {}
        self._consumers: dict[str, Any] = {}           # values by labels
        self._producers: dict[str, Any] = {}
        self._is_rolled_up = any(one.head["rolled_up"] for one in measured)
        tables = []
        for one in measured:
            of_namespace = [f'{{cluster="{_escaped(cluster)}",namespace="{_escaped(name)}"' for name in one.head["namespaces"]]
            of_topic = [f'{{cluster="{_escaped(cluster)}",namespace="{_escaped(namespace_of(name))}",topic="{_escaped(name)}"'
                        for name in one.head["topics"]]
            self._spaces += of_namespace
            self._topics += of_topic
            self._subscriptions += [f'{of_topic[number]},subscription="{_escaped(name)}"' for number, name in one.head["subscriptions"]]
            for number, subscription, name, consumer_id, *values in one.head["consumers"]:
                labels = f'{of_topic[number]},subscription="{_escaped(subscription)}",consumer_name="{_escaped(name)}",' \
                         f'consumer_id="{consumer_id}"}} '
                before = self._consumers.get(labels, [0] * len(values))      # clients may say the same of theirs
                self._consumers[labels] = [more + value for more, value in zip(before, values, strict=True)]
            for number, name, producer_id, *values in one.head["producers"]:
                self._producers[f'{of_topic[number]},producer_name="{_escaped(name)}",producer_id="{producer_id}"}} '] = values
            for space, many in zip(of_namespace, one.head["loaded"], strict=True):
                self._loaded[space] = self._loaded.get(space, 0) + many
            tables.append((one.topics, one.subscriptions, one.other_topics, one.other_subscriptions))
        widths = len(TOPIC_COLUMNS), len(SUBSCRIPTION_COLUMNS), len(TOPIC_COLUMNS), len(SUBSCRIPTION_COLUMNS)
        whole = [np.concatenate([np.zeros((0, width)), *(table[at] for table in tables)]) for at, width in enumerate(widths)]
        self._topic_columns, self._subscription_columns, *others = (
            dict(zip(names, np.ascontiguousarray(table.T), strict=True))
            for names, table in zip((TOPIC_COLUMNS, SUBSCRIPTION_COLUMNS) * 2, whole, strict=True))
        self._other_columns = self._by_space(others)

    def _by_space(self, others: list[dict[str, NDArray]]) -> list[dict[str, NDArray]]:
        """What is rolled up, each namespace once: owners have topics of the same."""
        numbers = {space: number for number, space in enumerate(self._loaded)}
        marks = np.array([numbers[space] for space in self._spaces], np.int64)
        self._spaces = list(self._loaded)
        return [{name: np.bincount(marks, values, len(numbers)) if len(marks) else values for name, values in columns.items()}
                for columns in others]

    @property
    def namespaces(self) -> list[str]:
        """Beginnings of the labels of namespaces with loaded topics."""
        return list(self._loaded)

    def families(self) -> Iterator[str]:
        yield "# HELP pulsar_topics_count Topics and partitions that are loaded\n# TYPE pulsar_topics_count gauge\n"
        yield "".join([f"pulsar_topics_count{space}}} {many}\n" for space, many in self._loaded.items()])
        of_topics, of_subscriptions = self._other_columns
        for family in TOPIC_FAMILIES:
            yield self._family(family, self._topics, self._topic_columns, of_topics)
        for family in SUBSCRIPTION_FAMILIES:
            yield self._family(family, self._subscriptions, self._subscription_columns, of_subscriptions)
        for what, names, found in (("consumer", _CONSUMER_GAUGES, self._consumers), ("producer", _PRODUCER_GAUGES, self._producers)):
            for at, name in enumerate(names) if found else ():
                yield f"# HELP pulsar_{what}_{name} Of one {what}\n# TYPE pulsar_{what}_{name} gauge\n"
                yield "".join([f"pulsar_{what}_{name}{labels}{values[at]}\n" for labels, values in found.items()])

    def _family(self, family: Family, labels: list[str], columns: dict[str, NDArray], others: dict[str, NDArray]) -> str:
        """labels: without the brace at their end."""
        head = "" if family.name == self._last_name else f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.type}\n"
        self._last_name = name = family.name
        values, end, spaces = self._values(family, columns), f"{family.labels}}} ", self._spaces
        if family.prefix:
            labels, spaces = ([_LABEL.sub(rf"\1{family.prefix}", label, count=3) for label in found] for found in (labels, spaces))
        if values is None:
            lines = [f"{name}{label}{end}0\n" for label in labels]
        else:
            lines = [f"{name}{label}{end}{value}\n" for label, value in zip(labels, values, strict=True)]
        if family.sums and (self._is_rolled_up or not labels):
            end = f'{family.labels},remote_cluster="local"}} ' if name == "pulsar_msg_backlog" else end
            values = self._values(family, others) or [0] * len(spaces)
            lines += [f"{name}{space}{end}{value}\n" for space, value in zip(spaces, values, strict=True)]
        return head + "".join(lines)

    def _values(self, family: Family, columns: dict[str, NDArray]) -> list | None:
        """None when all of them are 0."""
        found = columns[family.values] if isinstance(family.values, str) else family.values(columns, self._now_ms)
        if not found.any():
            return None
        whole = found.astype(np.int64)
        return whole.tolist() if (whole == found).all() else np.round(found, 3).tolist()


def compaction_families(lines: Lines, records: list[Record], most: int) -> Iterator[str]:
    """Of so many topics by themselves; of others by namespace, as of one without any."""
    beginnings = [f'{{cluster="{_escaped(lines.cluster)}",namespace="{_escaped(namespace_of(one.topic))}"' for one in records]
    for name, (text, value) in _COMPACTION.items():
        sums: dict[str, float] = dict.fromkeys([*lines.namespaces, *beginnings[most:]], 0)
        for beginning, one in zip(beginnings[most:], records[most:], strict=True):
            sums[beginning] += value(one)
        name = f"pulsar_compaction_{name}"
        yield f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        yield "".join([f'{name}{beginning},topic="{_escaped(one.topic)}"}} {value(one)}\n'
                       for beginning, one in zip(beginnings[:most], records, strict=False)])
        yield "".join([f"{name}{beginning}}} {total}\n" for beginning, total in sums.items()])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


METRICS = web.AppKey("metrics", Metrics)


@routes.get("/metrics")
@routes.get("/metrics/")
async def metrics(request: web.Request) -> web.Response:
    return web.Response(body=await request.app[METRICS].text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
