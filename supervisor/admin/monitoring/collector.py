"""Collection of the broker's metrics, those of its processes and of its host, for prometheus_client."""
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from geminga.proto.responses import PULSAR_VERSION
from geminga.storage.runtime.counters import BOUNDS_S, Counters
from geminga.supervisor.admin.monitoring import coordinators
from geminga.supervisor.admin.monitoring.alarms import ALARMS, Alarms
from geminga.supervisor.admin.monitoring.broker_families import (
    BROKER,
    CONNECTIONS,
    EXPIRED,
    HEALTH,
    HISTOGRAMS,
    LOAD_QUANTILES,
    NEVER,
    NEVER_COUNTED,
    NIGHT,
    OWN,
    OWNER_GAUGES,
    REPLICATOR_GAUGES,
    RUNNING_NIGHT,
    SUMMARIES,
    SUMS,
    WATCHES,
    WEB_GAUGES,
    WORKER_GAUGES,
    buckets,
    metric,
)
from geminga.supervisor.admin.monitoring.stats import Measured, processes
from geminga.supervisor.admin.requests import authentication
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.tasks.job_socket import last_report
from geminga.workers.addresses import url

if TYPE_CHECKING:
    from geminga.supervisor.admin.monitoring.scalable_families import ScalableFamilies
    from geminga.supervisor.admin.resources.compaction import Compactions
    from geminga.workers.identity.certificates import Tls

_QUANTILES = 0.0, 0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0
_QUANTILE_SECONDS = 60       # length of the period that quantiles describe
Counts = NDArray[np.int64]
_Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]


class Collector:
    """A collector for prometheus_client that yields the metrics of the broker, its processes and the host."""

    def __init__(self, config: Config, counters: dict[tuple[str, int], Counters]):
        """Collect from shared counters.  counters: (role, index) of a process -> its counters."""
        self._counters = counters
        self.coordinators: coordinators.Coordinators = {}      # figures of those whose owners answered
        self.measured: list[Measured | None] = []      # statistics of each owner, None if it did not answer
        # Histogram -> (monotonic seconds, counts, sum in seconds) of each of the last scrapes.
        self._seen: dict[str, deque[tuple[float, Counts, float]]] = {name: deque() for name in SUMMARIES}
        self._links = Links()
        self.certificates: Tls | None = None
        self.compactions: Compactions | None = None
        self.alarms: Alarms | None = None
        self.scalable: ScalableFamilies | None = None
        self.configure(config)

    def __repr__(self) -> str:
        return f"<Collector processes={len(self._counters)} measured={len(self.measured)}>"

    def configure(self, config: Config) -> None:
        """Apply a changed configuration."""
        self._cluster, self._data_dir = config.cluster_name, config.data_dir
        address = config.worker.advertised_address or config.worker.bind
        self._host_name = urlsplit(url("pulsar", address, 0)).hostname

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics except those of topics and subscriptions."""
        rows = {f"{role}-{index}": (role, counters.read()) for (role, index), counters in self._counters.items()}

        def total(name: str) -> int:
            return sum(row[name] for _, row in rows.values())

        yield metric(GaugeMetricFamily, "pulsar_version_info", "Version of the broker",
                     ["cluster", "version", "commit"], [((self._cluster, PULSAR_VERSION, ""), 1)])
        for counter, single in BROKER.items():
            yield self._single(single.name, single.text, total(counter), is_gauge=single.is_gauge)
        for counter, (name, text) in CONNECTIONS.items():
            yield self._of_broker(name, text, "broker_connection", total(counter))
        yield from self._bytes(total)
        text = "Result of the last health check: 1 it succeeded, 0 it failed, -1 there was none"
        yield self._of_broker("pulsar_health", text, "broker_health", HEALTH[total("health")])
        yield from self._loads(total("loads_failed"))
        yield self._of_broker("pulsar_active_connections", "Open connections", "broker_connection",
                              total("connections_opened") - total("connections_closed"))
        for name, why in NEVER.items():
            yield self._single(f"pulsar_{name}", f"Always 0: {why}", 0, is_gauge=True)
        for name, why in NEVER_COUNTED.items():
            yield self._single(f"pulsar_{name}", f"Always 0: {why}", 0, is_gauge=False)
        yield from self._sums()
        for histogram, (name, text) in SUMMARIES.items():
            yield self._summary(histogram, name, text)
        yield self._quota_check()
        if self.scalable is not None:
            yield from self.scalable.families(
                self._cluster, [owner.head["scalable"] for owner in self.measured if owner is not None],
                {name: total(name) for name in WATCHES})
        yield from self._host()
        yield metric(CounterMetricFamily, "geminga_entries_expired", "Entries that subscriptions lost unacknowledged",
                     ["process", "reason"], [((process, reason), row[counter]) for counter, reason in EXPIRED.items()
                                             for process, (role, row) in rows.items() if role == "owner"])
        for gauges, whose in ((OWNER_GAUGES, "owner"), (WORKER_GAUGES, "worker"), (WEB_GAUGES, "web"),
                              (REPLICATOR_GAUGES, "replicator")):
            for counter, text in gauges.items():
                values = {process: row[counter] for process, (role, row) in rows.items() if role == whose}
                yield _by_process(GaugeMetricFamily, counter, text, values)
        yield from coordinators.families(self._cluster, self.coordinators)
        yield self._certificate_expiry()
        yield from self._alarms(self.alarms) if self.alarms else ()
        yield from self._nightly()
        yield from authentication.families(self._cluster, next(iter(self._counters.values())).total)
        for counter, text in OWN.items():
            values = {process: row[counter] for process, (_, row) in rows.items()}
            yield _by_process(CounterMetricFamily, counter, text, values)
        yield from self._histograms()

    # -- shapes

    def _single(self, name: str, text: str, value: float, *, is_gauge: bool) -> Metric:
        """Return a metric with the cluster as its only label."""
        kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
        return metric(kind, name, text, ["cluster"], [((self._cluster,), value)])

    def _of_broker(self, name: str, text: str, group: str, value: float) -> Metric:
        """Return a gauge with the labels that Pulsar gives to metrics of a broker as a whole."""
        return metric(GaugeMetricFamily, name, text, ["cluster", "broker", "metric"],
                      [((self._cluster, str(self._host_name), group), value)])

    # -- topics as a whole

    def _bytes(self, total: Callable[[str], int]) -> Iterator[Metric]:
        """Yield bytes published and delivered: by clients, and by the broker itself."""
        of_system = total("system_bytes_in")
        for way, text, label, values in (
                ("in", "Bytes of entries published", "system_topic", (total("bytes_in") - of_system, of_system)),
                ("out", "Bytes of entries delivered to consumers, and read by compactions", "system_subscription",
                 (total("bytes_out"), self.compactions.bytes_read if self.compactions else 0))):
            yield metric(CounterMetricFamily, f"pulsar_broker_{way}_bytes", text, ["cluster", label],
                         [((self._cluster, "false"), values[0]), ((self._cluster, "true"), values[1])])

    def _sums(self) -> Iterator[Metric]:
        """Yield sums over all open topics, and gauges of topics without series and of owners that did not answer."""
        answered = [owner for owner in self.measured if owner is not None]
        for name, (column, text) in SUMS.items():
            yield self._single(f"pulsar_{name}", text, sum(owner.total(column) for owner in answered), is_gauge=True)
        yield metric(CounterMetricFamily, "pulsar_broker_storage_backlog_quota_exceeded_evictions",
                     "Times that a backlog quota acknowledged the oldest messages of subscriptions",
                     ["cluster", "quota_type"], [
                         ((self._cluster, kind), sum(owner.total(column) for owner in answered))
                         for kind, column in (("size", "evicted_by_size"), ("time", "evicted_by_age"))])
        loaded = sum(sum(owner.head["loaded"]) for owner in answered)
        yield self._single("pulsar_broker_topics_count", "Open topics and partitions", loaded, is_gauge=True)
        yield metric(GaugeMetricFamily, "geminga_series_rolled_up",
                     "Topics and subscriptions without series of their own, summed by namespace", ["of"], [
                         ((of,), sum(owner.head[field] for owner in answered)) for of, field in (
                             ("topics", "rolled_up"), ("subscriptions", "rolled_up_subscriptions"))])
        yield metric(GaugeMetricFamily, "geminga_owner_measured",
                     "0 if the owner did not answer, so that its topics are missing in this scrape", ["process"],
                     [((f"owner-{index}",), owner is not None) for index, owner in enumerate(self.measured)])

    # -- histograms

    def _histogram(self, name: str) -> tuple[Counts, float]:
        """Return a histogram summed over all processes: (counts of the buckets, sum in seconds)."""
        each = [counters.histogram(name) for counters in self._counters.values()]
        return np.array([counts for counts, _ in each]).sum(axis=0), sum(seconds for _, seconds in each)

    def _histograms(self) -> Iterator[Metric]:
        for name, (whose, text) in HISTOGRAMS.items():
            family = HistogramMetricFamily(f"geminga_{name}_seconds", text, labels=["process"])
            for (role, index), counters in self._counters.items():
                if role == whose:
                    counts, seconds = counters.histogram(name)
                    family.add_metric([f"{role}-{index}"], buckets(counts, BOUNDS_S), seconds)
            yield family

    def _quota_check(self) -> Metric:
        counts, seconds = self._histogram("quota_check")
        family = HistogramMetricFamily(
            "pulsar_storage_backlog_quota_check_duration_seconds",
            "Seconds that an owner takes to check the ages of all backlogs", labels=["cluster"])
        family.add_metric([self._cluster], buckets(counts, BOUNDS_S), seconds)
        return family

    def lately(self, name: str) -> tuple[float, Counts, float]:
        """Return a histogram's growth in the last minute: (seconds passed, counts of the buckets, sum in seconds).

        The time is shorter if the first scrape was later, and longer if scrapes are more than a minute apart.
        """
        now, seen = time.monotonic(), self._seen[name]
        counts, spent = self._histogram(name)
        while len(seen) > 1 and now - seen[1][0] >= _QUANTILE_SECONDS:
            seen.popleft()
        seen.append((now, counts, spent))
        return now - seen[0][0], counts - seen[0][1], spent - seen[0][2]

    def _summary(self, histogram: str, name: str, text: str) -> Metric:
        """Return a summary with quantiles of the last minute, and the count and sum since the start."""
        _, lately, _ = self.lately(histogram)
        counts, seconds = self._histogram(histogram)
        family = Metric(name, f"{text}; quantiles are of the last minute", "summary")
        labels = {"cluster": self._cluster}
        for quantile, ms in zip(_QUANTILES, quantiles_ms(lately, _QUANTILES), strict=True):
            family.add_sample(name, labels | {"quantile": f"{quantile:g}"}, ms)
        family.add_sample(f"{name}_count", labels, int(counts.sum()))
        family.add_sample(f"{name}_sum", labels, seconds * 1000)
        return family

    def _loads(self, failed: int) -> Iterator[Metric]:
        """Yield gauges of the times of opening a topic: quantiles, mean and rate in the last minute, and failures.

        Pulsar has these gauges beside the summary of the same times.
        """
        seconds, counts, spent = self.lately("load")
        values = dict(zip(LOAD_QUANTILES, quantiles_ms(counts, LOAD_QUANTILES.values()), strict=True))
        many = int(counts.sum())
        values |= {"time_mean_ms": spent * 1000 / max(1, many), "rate_s": many / max(1.0, seconds),
                   "failed_count": failed}
        text = "Topics opened in the last minute: milliseconds, openings per second; and failures since the start"
        for name, value in values.items():
            yield self._of_broker(f"pulsar_topic_load_{name}", text, "pulsar_topic_load_times", value)

    # -- state of the broker and its host

    def _certificate_expiry(self) -> Metric:
        text = "Seconds until the first certificate expires in the file that a key of the configuration names"
        expiries = self.certificates.expiries() if self.certificates else {}
        return metric(GaugeMetricFamily, "geminga_certificate_expiry_seconds", text, ["key"],
                      [((key,), expires - time.time()) for key, expires in expiries.items()])

    def _alarms(self, alarms: Alarms) -> Iterator[Metric]:
        """Yield a gauge for each alarm, and metrics of memory and of clock jumps."""
        yield metric(GaugeMetricFamily, "geminga_alarm", "1 while the alarm is raised; geminga status gives its reason",
                     ["alarm"], [((name,), name in alarms.raised) for name in ALARMS])
        standby = alarms.standby.told() if alarms.standby is not None else None
        yield metric(GaugeMetricFamily, "geminga_standby_lag_seconds",
                     "Time since everything was on the disk of the known standby", [],
                     [((), standby["lag_ms"] / 1000)] if standby is not None else [])
        yield metric(GaugeMetricFamily, "geminga_standby_connected", "1 while the known standby is connected", [],
                     [((), standby["connected"])] if standby is not None else [])
        memory, jumped = alarms.memory, alarms.clock_jumps()
        for name, text, value in (("used", "Bytes of memory in use that cannot be reclaimed", memory.used),
                                  ("limit", "Bytes of memory that the control group or the host has", memory.limit)):
            yield GaugeMetricFamily(f"geminga_memory_{name}_bytes", text, value)
        yield metric(CounterMetricFamily, "geminga_clock_jumps", "Jumps of the host's clock", ["direction"],
                     [((direction,), jumped[direction]) for direction in ("forward", "back")])

    def _nightly(self) -> Iterator[Metric]:
        """Yield compactions that run and wait, the progress of a night, and the results of the last one.

        Progress is left out while no night runs, results if there was none.
        """
        under_way = self.compactions.counts if self.compactions else {}
        yield metric(GaugeMetricFamily, "geminga_compactions", "Partitions being compacted, and waiting for compaction",
                     ["state"], [((state,), count) for state, count in under_way.items()])
        running = self.compactions.nights.look() if self.compactions else None
        yield GaugeMetricFamily("geminga_nightly_running", "1 while a night runs", int(running is not None))
        for name, (text, progress) in RUNNING_NIGHT.items():
            yield GaugeMetricFamily(f"geminga_nightly_{name}", text, progress(running) if running else None)
        night = last_report(self._data_dir)
        for name, (text, value) in NIGHT.items():
            yield GaugeMetricFamily(f"geminga_nightly_{name}", text, value(night) if night else None)

    def _host(self) -> Iterator[Metric]:
        """Yield CPU time, memory and descriptors of each process, and the load of the host."""
        kinds: dict[str, tuple[_Kind, str]] = {
            "cpu_seconds": (CounterMetricFamily, "CPU time of the process in seconds"),
            "resident_memory_bytes": (GaugeMetricFamily, "Resident memory of the process in bytes"),
            "open_fds": (GaugeMetricFamily, "Open file descriptors of the process"),
            "start_time_seconds": (GaugeMetricFamily, "Start of the process, in seconds since 1970")}
        families = {name: kind(f"process_{name}", text, labels=["process"]) for name, (kind, text) in kinds.items()}
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
                ("memory", "Share of the host's memory that the broker uses, in percent",
                 100 * resident / psutil.virtual_memory().total),
                ("directMemory", "Always 0: there is no direct memory", 0),
                *((f"bandwidth_{way}", f"Use of the host's network since the last scrape, {way}, in percent", value)
                  for way, value in self._links.used().items())):
            yield self._of_broker(f"pulsar_lb_{name}_usage", text, "loadBalancing", value)


def _by_process(kind: _Kind, name: str, text: str, values: Mapping[str, int]) -> Metric:
    """Return a metric with the prefix `geminga_` and a value for each process."""
    return metric(kind, f"geminga_{name}", text, ["process"],
                  [((process,), value) for process, value in values.items()])


def quantiles_ms(counts: Counts, quantiles: Iterable[float] = _QUANTILES) -> list[float]:
    """Return quantiles in ms of values counted in the buckets of BOUNDS_S; 0 without values.

    Values are assumed to lie evenly within their bucket.
    """
    quantiles = list(quantiles)
    edges, reach = np.array([0.0, *BOUNDS_S, BOUNDS_S[-1]]), np.cumsum(counts)
    if not reach[-1]:
        return [0.0] * len(quantiles)
    wanted = np.maximum(np.array(quantiles) * reach[-1], 1e-9)
    at = np.searchsorted(reach, wanted)      # a bucket that is not empty
    within = (wanted - reach[at] + counts[at]) / counts[at]
    ms: list[float] = ((edges[at] + within * (edges[at + 1] - edges[at])) * 1000).tolist()
    return ms


class Links:
    """The traffic of the host's network links, relative to their capacity."""

    def __init__(self) -> None:
        self._before: tuple[float, dict[str, Any]] | None = None      # monotonic seconds, and counters by link

    def __repr__(self) -> str:
        return f"<Links before={self._before and self._before[0]}>"

    def used(self) -> dict[str, float]:
        """Return the use of the network links since the last call: {"in": percent, "out": percent}.

        Return {} at the first call, and where no link reports its speed, as in virtual machines.
        """
        speeds = {name: link.speed * 125_000      # from megabits to bytes
                  for name, link in psutil.net_if_stats().items() if link.isup and link.speed > 0}
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
