"""Metrics of scalable topics as a whole, with the names and labels of Pulsar 5.

The series of each single topic are those of any other topic; see scalable_series.py.
"""
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.scalable.stream_consumers import REASONS, STATES
from geminga.supervisor.admin.monitoring.broker_families import buckets, metric
from geminga.supervisor.admin.scalable.layout_changes import BOUNDS_S, LayoutChanges

_NAME = "pulsar_scalable_topic_"


class ScalableFamilies:
    """Metrics of all scalable topics together."""

    def __init__(self, catalogue: Catalogue, changes: LayoutChanges):
        self._catalogue, self._changes = catalogue, changes

    def __repr__(self) -> str:
        return f"<ScalableFamilies {self._changes}>"

    def names(self) -> tuple[set[str], set[str]]:
        """Return the names of all segments and of all scalable topics.  Raises StorageFull."""
        layouts = self._catalogue.scalable_topics.layouts()
        return ({segment.topic for _, layout in layouts for segment in layout.segments},
                {str(topic) for topic, _ in layouts})

    def families(self, cluster: str, owners: Iterable[dict[str, Any]], watches: dict[str, int]) -> Iterator[Metric]:
        """Yield the metrics.  owners: figures of owners that answered.  watches: open ones of layouts and namespaces.

        Raises StorageFull.
        """
        def told(kind: Any, name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
            labelled = [((cluster, of), value) for of, value in values]
            return metric(kind, _NAME + name, text, ["cluster", label], labelled)

        layouts, figures = self._catalogue.scalable_topics.layouts(), list(owners)
        states: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for one in figures:
            states.update(one["consumers"])
            reasons.update(one["rebalances"])
        active = [segment.is_active for _, layout in layouts for segment in layout.segments]
        yield told(GaugeMetricFamily, "segment_count", "Segments of all scalable topics", "segment_state",
                   [("active", sum(active)), ("sealed", len(active) - sum(active))])
        yield told(GaugeMetricFamily, "consumer_count", "Stream consumers that have registered", "consumer_state",
                   [(state, states[state]) for state in STATES])
        yield told(CounterMetricFamily, "rebalance", "Times that segments were dealt anew to stream consumers",
                   "rebalance_reason", [(reason, reasons[reason]) for reason in REASONS])
        yield told(GaugeMetricFamily, "watch_session_count", "Watches of clients", "watch_type",
                   [("topic", watches["layout_watches"]), ("namespace", watches["namespace_watches"])])
        yield told(CounterMetricFamily, "entry_bucket_violation",
                   "Entries delivered on shared segments that have messages of several entry buckets",
                   "entry_bucket_violation", [("straddling", sum(one["straddling"] for one in figures))])
        for name, text, value in (
                ("controller_count", "Scalable topics, each of which has a controller", len(layouts)),
                ("leaderless_count", "Always 0: every scalable topic has a controller", 0),
                ("segment_unwritable_count", "Always 0: segments are active until they are sealed", 0),
                ("segment_blocked_count", "Segments that wait for others, summed over stream subscriptions",
                 sum(one["blocked"] for one in figures)),
                ("entry_bucket_draining_count",
                 "Entry buckets held back until their former consumers have acknowledged",
                 sum(one["draining"] for one in figures))):
            yield metric(GaugeMetricFamily, _NAME + name, text, ["cluster"], [((cluster,), value)])
        yield from self._of_changes(cluster)

    def _of_changes(self, cluster: str) -> Iterator[Metric]:
        yield metric(CounterMetricFamily, _NAME + "layout_operation",
                     "Changes of layouts that came into force; none fails, as a change that is interrupted is finished",
                     ["cluster", "operation", "operation_trigger", "operation_status"],
                     [((cluster, *kind, "success"), count) for kind, count in self._changes.done.items()])
        family = HistogramMetricFamily(_NAME + "layout_operation_duration_seconds",
                                       "Seconds from the request of a change of a layout until it was finished",
                                       labels=["cluster", "operation", "operation_status"])
        for operation, durations in self._changes.durations.items():
            family.add_metric([cluster, operation, "success"], buckets(durations.counts, BOUNDS_S), durations.total_s)
        yield family
