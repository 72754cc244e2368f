"""Statistics of a scalable topic's segments, put together as one topic, for the topic's series in /metrics.

Segments come and go by themselves.  A counter that fell when a segment disappears would look like a restart, and a rate
over it like a burst.  So the counters of a segment that is gone stay in its topic's, for as long as the topic exists.
"""
from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from geminga.proto import names
from geminga.storage.statistics.columns import SUBSCRIPTION_COLUMNS, THROTTLED, TOPIC_COLUMNS
from geminga.supervisor.admin.monitoring.stats import Measured

SEGMENT = f"{names.SEGMENT}://"
# Columns whose largest value stands for all segments, and those whose first time does; others are summed.
_LARGEST = {"quota_bytes", "quota_age_s", "subscriptions", "is_blocked", "acked_ms", "consumed_ms", "flow_ms",
            "advanced_ms", "expired_ms", "kind"}
_FIRST = {"backlog_since_ms", "unexported_since_ms"}
_COUNTERS = {"messages_in", "bytes_in", "messages_out", "bytes_out", "evicted_by_size", "evicted_by_age",
             "publish_limited", "delays_refused", "delays_overridden", "windows_created", "windows_read",
             "windows_unreadable", "windows_removed", "transactions_aborted", "transactions_committed", "expired",
             *THROTTLED}

Key = tuple[str, str]         # topic or segment, and subscription; "" as the subscription: the topic itself
Row = NDArray[np.float64]


class _Table:
    """How rows of segments are put together, with the counters of segments that are gone."""

    def __init__(self, columns: tuple[str, ...]):
        def places(names: set[str]) -> NDArray[np.intp]:
            return np.flatnonzero([name in names for name in columns])

        self._largest, self._first, self._counters = places(_LARGEST), places(_FIRST), places(_COUNTERS)
        self._last: dict[Key, dict[str, Row]] = {}      # of a topic -> counters of its segments, as they were seen last
        self._gone: dict[Key, Row] = {}                 # of a topic -> sums of those of segments that are gone

    def __repr__(self) -> str:
        return f"<_Table of {len(self._last)} topics and their subscriptions>"

    def together(self, rows: dict[Key, dict[str, Row]], segments: Container[str], topics: Container[str]) -> list[Row]:
        """Return one row for each topic and subscription.  rows: those of its segments.

        segments, topics: the names of all that exist.
        """
        for key in [key for key in self._last if key[0] not in topics]:
            del self._last[key]
            self._gone.pop(key, None)
        return [self._one(key, its, segments) for key, its in rows.items()]

    def _one(self, key: Key, rows: dict[str, Row], segments: Container[str]) -> Row:
        last = self._last.setdefault(key, {})
        last |= {segment: row[self._counters] for segment, row in rows.items()}
        for segment in [segment for segment in last if segment not in segments]:
            if segment not in rows:
                self._gone[key] = self._gone.get(key, 0.0) + last.pop(segment)
        every = np.stack(list(rows.values()))
        whole: Row = every.sum(axis=0)
        whole[self._largest] = every[:, self._largest].max(axis=0)
        since = every[:, self._first]
        earliest = np.where(since > 0, since, np.inf).min(axis=0)
        whole[self._first] = np.where(np.isfinite(earliest), earliest, 0)
        whole[self._counters] = sum(last.values()) + self._gone.get(key, 0.0)
        return whole


class WholeTopics:
    """Puts the segments of each scalable topic together, scrape after scrape."""

    def __init__(self) -> None:
        self._topics, self._subscriptions = _Table(TOPIC_COLUMNS), _Table(SUBSCRIPTION_COLUMNS)

    def __repr__(self) -> str:
        return f"<WholeTopics {self._topics}>"

    def together(self, measured: list[Measured], segments: Container[str], topics: Container[str]) -> list[Measured]:
        """Return the owners' statistics without segments, and those of scalable topics as another owner's.

        segments, topics: the names of all that exist.
        """
        if not any(_is_segment(name, segments) for owner in measured for name in owner.head["topics"]):
            return measured
        of_topics: dict[Key, dict[str, Row]] = {}
        of_subscriptions: dict[Key, dict[str, Row]] = {}
        clients: dict[str, list[tuple[str, list[object]]]] = {"consumers": [], "producers": []}
        for owner in measured:
            whole = [str(names.parse(name).base.scalable) if _is_segment(name, segments) else None
                     for name in owner.head["topics"]]
            for at, topic in enumerate(whole):
                if topic is not None:
                    of_topics.setdefault((topic, ""), {})[owner.head["topics"][at]] = owner.topics[at]
            for at, (number, subscription) in enumerate(owner.head["subscriptions"]):
                if (topic := whole[number]) is not None:
                    its = of_subscriptions.setdefault((topic, subscription), {})
                    its[owner.head["topics"][number]] = owner.subscriptions[at]
            for kind, found in clients.items():
                found += [(topic, more) for number, *more in owner.head[kind] if (topic := whole[number]) is not None]
        numbers = {topic: number for number, (topic, _) in enumerate(of_topics)}
        head = {
            **{name: [] for name in ("namespaces", "loaded", "replication", "inbound")}, "rolled_up": 0,
            "topics": list(numbers), "subscriptions": [(numbers[topic], name) for topic, name in of_subscriptions],
            **{kind: [(numbers[topic], *more) for topic, more in found] for kind, found in clients.items()}}
        return [*(_without_segments(owner, segments) for owner in measured), Measured(head, [
            *(np.stack(table.together(rows, segments, topics)) if rows else np.zeros((0, width))
              for table, rows, width in ((self._topics, of_topics, len(TOPIC_COLUMNS)),
                                         (self._subscriptions, of_subscriptions, len(SUBSCRIPTION_COLUMNS)))),
            np.zeros((0, len(TOPIC_COLUMNS))), *[np.zeros((0, len(SUBSCRIPTION_COLUMNS)))] * 2])]


def _is_segment(name: str, segments: Container[str]) -> bool:
    """Whether a topic is a segment, maybe one that has just been deleted, or that was a partition."""
    return name.startswith(SEGMENT) or name in segments


def _without_segments(owner: Measured, segments: Container[str]) -> Measured:
    """Return the statistics of an owner without its segments."""
    head = owner.head
    kept = {at: number for number, at in enumerate(
        at for at, name in enumerate(head["topics"]) if not _is_segment(name, segments))}

    def places(name: str) -> list[int]:
        return [at for at, line in enumerate(head[name]) if line[0] in kept]

    changed = {name: [(kept[head[name][at][0]], *head[name][at][1:]) for at in places(name)]
               for name in ("subscriptions", "replication", "consumers", "producers", "inbound")}
    return Measured(head | changed | {"topics": [head["topics"][at] for at in kept]}, [
        owner.topics[list(kept)], owner.subscriptions[places("subscriptions")], owner.other_topics,
        owner.other_subscriptions, owner.replication[places("replication")]])
