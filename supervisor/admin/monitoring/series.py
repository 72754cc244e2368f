"""Prometheus text of topics, subscriptions, consumers, producers and compactions.

There may be many thousands of series, so their lines are put together from columns, a metric at a time, and without
prometheus_client. Topics beyond `metrics.topics_max` are summed by namespace under the same names, without the label
`topic`. So the sum over all series of a name does not depend on that limit.
"""
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from geminga.storage.statistics.columns import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS
from geminga.supervisor.admin.monitoring.stats import Measured, namespace_of
from geminga.supervisor.admin.monitoring.topic_families import (
    COMPACTION_FAMILIES,
    CONSUMER_GAUGES,
    INBOUND_GAUGES,
    PRODUCER_GAUGES,
    REPLICATION_FAMILIES,
    SUBSCRIPTION_FAMILIES,
    TOPIC_FAMILIES,
    Columns,
    Family,
)
from geminga.supervisor.admin.resources.compaction import Record

_LABEL = re.compile(r"([{,])(?=cluster=|namespace=|topic=)")
_COLUMNS = (*(TOPIC_COLUMNS, SUBSCRIPTION_COLUMNS) * 2, SUBSCRIPTION_COLUMNS)      # of an owner's five tables


class Series:
    """The Prometheus series of all open topics, of all owners.

    Labels are kept as text from the opening brace on, without the closing one, except where a comment says otherwise.
    """

    def __init__(self, cluster: str, measured: list[Measured],
                 more_labels: Callable[[str], dict[str, str]] = lambda topic: {}):
        """more_labels: gives further labels of a topic by its name."""
        self._more_labels = more_labels
        self.cluster, self._now_ms, self._last_name = cluster, time.time() * 1000, ""
        self._namespaces: list[str] = []               # labels of all owners' namespaces, owner by owner
        self._topics: list[str] = []
        self._subscriptions: list[str] = []
        self._replication: list[str] = []
        self._loaded: dict[str, int] = {}              # namespace's labels -> its open topics, at all owners
        self._consumers: dict[str, list[float]] = {}   # labels with the closing brace -> values
        self._producers: dict[str, list[float]] = {}
        self._inbound: dict[str, list[float]] = {}
        self._is_rolled_up = any(owner.head["rolled_up"] for owner in measured)
        for owner in measured:
            self._add(owner)
        tables = [(owner.topics, owner.subscriptions, owner.other_topics, owner.other_subscriptions, owner.replication)
                  for owner in measured]
        columns = []
        for at, names in enumerate(_COLUMNS):
            table = np.concatenate([np.zeros((0, len(names))), *(of_owner[at] for of_owner in tables)])
            columns.append(dict(zip(names, np.ascontiguousarray(table.T), strict=True)))
        self._topic_columns, self._subscription_columns, *others, self._replication_columns = columns
        self._other_columns = self._by_namespace(others)

    def __repr__(self) -> str:
        return f"<Series topics={len(self._topics)} subscriptions={len(self._subscriptions)}>"

    def _add(self, owner: Measured) -> None:
        """Add the labels of one owner's topics and subscriptions, and the values of its clients and replicators."""
        head, cluster = owner.head, _escaped(self.cluster)
        namespaces = [f'{{cluster="{cluster}",namespace="{_escaped(name)}"' for name in head["namespaces"]]
        topics = [f'{{cluster="{cluster}",namespace="{_escaped(namespace_of(name))}",topic="{_escaped(name)}"'
                  + "".join(f',{label}="{_escaped(value)}"' for label, value in self._more_labels(name).items())
                  for name in head["topics"]]
        self._namespaces += namespaces
        self._topics += topics
        self._subscriptions += [f'{topics[number]},subscription="{_escaped(name)}"'
                                for number, name in head["subscriptions"]]
        self._replication += [f'{topics[number]},remote_cluster="{_escaped(remote)}"'
                              for number, remote in head["replication"]]
        for number, subscription, name, consumer_id, *values in head["consumers"]:
            labels = f'{topics[number]},subscription="{_escaped(subscription)}",consumer_name="{_escaped(name)}",' \
                     f'consumer_id="{consumer_id}"}} '
            before = self._consumers.get(labels)      # other clients may use the same name and id: values are summed
            if before is not None:
                values = [one + other for one, other in zip(before, values, strict=True)]
            self._consumers[labels] = values
        for number, name, producer_id, *values in head["producers"]:
            labels = f'{topics[number]},producer_name="{_escaped(name)}",producer_id="{producer_id}"}} '
            self._producers[labels] = values
        for number, cluster_of, *values in head["inbound"]:
            self._inbound[f'{topics[number]},remote_cluster="{_escaped(cluster_of)}"}} '] = values
        for labels, loaded in zip(namespaces, head["loaded"], strict=True):
            self._loaded[labels] = self._loaded.get(labels, 0) + loaded

    def _by_namespace(self, others: list[Columns]) -> list[Columns]:
        """Sum columns by namespace, as several owners may have topics of one namespace.

        Afterwards `_namespaces` has each namespace once.
        """
        numbers = {labels: number for number, labels in enumerate(self._loaded)}
        marks = np.array([numbers[labels] for labels in self._namespaces], np.int64)
        self._namespaces = list(self._loaded)
        return [{name: np.bincount(marks, values, len(numbers)) if len(marks) else values
                 for name, values in columns.items()} for columns in others]

    def families(self) -> Iterator[str]:
        """Yield the text of each metric of topics, subscriptions, consumers, producers and replicators."""
        yield _head("pulsar_topics_count", "Open topics and partitions", "gauge")
        yield "".join([f"pulsar_topics_count{labels}}} {loaded}\n" for labels, loaded in self._loaded.items()])
        other_topics, other_subscriptions = self._other_columns
        for family in TOPIC_FAMILIES:
            yield self._family(family, self._topics, self._topic_columns, other_topics)
        for family in SUBSCRIPTION_FAMILIES:
            yield self._family(family, self._subscriptions, self._subscription_columns, other_subscriptions)
        for family in REPLICATION_FAMILIES:
            yield self._family(family, self._replication, self._replication_columns, {})
        if self._consumers:
            yield from _gauges("consumer", CONSUMER_GAUGES, self._consumers)
        if self._producers:
            yield from _gauges("producer", PRODUCER_GAUGES, self._producers)
        yield from _gauges("replication", INBOUND_GAUGES, self._inbound)

    def _family(self, family: Family, labels: list[str], columns: Columns, others: Columns) -> str:
        """Return the lines of a metric: one for each topic with its own series, and sums by namespace for the rest."""
        name, head = family.name, ""
        if name != self._last_name:
            head = _head(name, family.text, family.type)
        self._last_name = name
        if family.only:
            return head + self._some(family, labels, columns, others)
        values, end, namespaces = self._values(family, columns), f"{family.labels}}} ", self._namespaces
        if family.prefix:
            labels, namespaces = ([_LABEL.sub(rf"\1{family.prefix}", text, count=3) for text in texts]
                                  for texts in (labels, namespaces))
        if values is None:
            lines = [f"{name}{label}{end}0\n" for label in labels]
        else:
            lines = [f"{name}{label}{end}{value}\n" for label, value in zip(labels, values, strict=True)]
        if family.sums and (self._is_rolled_up or not labels):
            end = f'{family.labels},remote_cluster="local"}} ' if name == "pulsar_msg_backlog" else end
            values = self._values(family, others) or [0] * len(namespaces)
            lines += [f"{name}{label}{end}{value}\n" for label, value in zip(namespaces, values, strict=True)]
        return head + "".join(lines)

    def _some(self, family: Family, labels: list[str], columns: Columns, others: Columns) -> str:
        """Return the lines of a metric that only some topics or subscriptions have."""
        lines = []
        for each, of_each in ((labels, columns), (self._namespaces if family.sums else [], others)):
            for at in np.flatnonzero(of_each[family.only]).tolist() if each else ():
                value = (self._values(family, of_each) or [0] * len(each))[at]
                lines.append(f"{family.name}{each[at]}{family.labels}}} {value}\n")
        return "".join(lines)

    def _values(self, family: Family, columns: Columns) -> list[float] | None:
        """Return a metric's values, whole numbers as int; None if all of them are 0."""
        values = columns[family.values] if isinstance(family.values, str) else family.values(columns, self._now_ms)
        if not values.any():
            return None
        whole = values.astype(np.int64)
        texts: list[Any] = whole.tolist() if (whole == values).all() else np.round(values, 3).tolist()
        return texts

    # -- compactions

    def compactions(self, records: list[Record], most: int) -> Iterator[str]:
        """Yield the text of each metric of compactions.

        The first `most` records have series of their own. All further records are summed by namespace.
        """
        labels = [f'{{cluster="{_escaped(self.cluster)}",namespace="{_escaped(namespace_of(record.topic))}"'
                  for record in records]
        for family, (text, value) in COMPACTION_FAMILIES.items():
            sums: dict[str, float] = dict.fromkeys([*self._loaded, *labels[most:]], 0)
            for label, record in zip(labels[most:], records[most:], strict=True):
                sums[label] += value(record)
            name = f"pulsar_compaction_{family}"
            yield _head(name, text, "gauge")
            yield "".join([f'{name}{label},topic="{_escaped(record.topic)}"}} {value(record)}\n'
                           for label, record in zip(labels[:most], records, strict=False)])
            yield "".join([f"{name}{label}}} {total}\n" for label, total in sums.items()])


def _gauges(kind: str, gauges: dict[str, str], series: dict[str, list[float]]) -> Iterator[str]:
    """Yield the text of gauges, {name: HELP text}, whose values are in their order.  series: by labels."""
    for at, (gauge, text) in enumerate(gauges.items()):
        name = f"pulsar_{kind}_{gauge}"
        yield _head(name, text, "gauge")
        yield "".join([f"{name}{labels}{values[at]}\n" for labels, values in series.items()])


def _head(name: str, text: str, type_: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {type_}\n"


def _escaped(text: str) -> str:
    """Return a label's value with the escapes of Prometheus' text format."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
