"""Answers with tables: of open topics, of their subscriptions, and of client connections, chosen and sorted here.

Sums and times come from the rows that statistics keep (`../statistics/`), so a table of a few among many thousand
topics costs milliseconds.
"""
import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.storage.admin.context import AdministeredOwner
from geminga.storage.admin.table_questions import (
    ListClients,
    Listing,
    ListSubscriptions,
    ListTopics,
    ListUnexported,
    ListUnreplicated,
    Scope,
)
from geminga.storage.statistics.columns import Topic, kind_of
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription, SubType

_CLIENTS_MAX = 20_000        # connections in one answer
_NONE = np.zeros(0)
# Keys of rows: columns of statistics.
_OF_TOPICS = {"backlog": "largest_backlog", "backlog_bytes": "backlog_bytes", "storage_bytes": "storage_bytes",
              "subscriptions": "subscriptions", "producers": "producers", "consumers": "consumers"}
_OF_SUBSCRIPTIONS = {"consumers": "consumers", "backlog": "backlog_messages", "backlog_bytes": "backlog_bytes",
                     "unacknowledged": "unacknowledged", "delayed": "delayed", "to_redeliver": "in_replay"}
_TIMES = {"acknowledged_ms": "acked_ms", "consumed_ms": "consumed_ms"}
_TOPIC_RATES = "rate_in", "throughput_in", "rate_out", "throughput_out"
_SUBSCRIPTION_RATES = "rate_out", "throughput_out", "redelivery_rate", "acknowledge_rate"


def topics(owner: AdministeredOwner, question: ListTopics) -> Listing:
    """Return rows of open topics."""
    statistics, now_ms = owner.statistics, owner.now_ms
    opened = statistics.topics()
    if isinstance(opened, int):
        return Listing(opened, 0, [])
    chosen = _in_scope(opened, question)

    def values(topics: Sequence[Topic], key: str) -> NDArray[np.float64]:
        if key in _OF_TOPICS:
            return statistics.topic_values(topics, _OF_TOPICS[key])
        if key == "oldest_seconds":
            return _ages(statistics.topic_values(topics, "backlog_since_ms"), now_ms)
        return _rates(topics, set(statistics.recent.moving), _TOPIC_RATES.index(key),
                      lambda topic: statistics.recent.of_topic(topic, now_ms))

    def name(topic: Topic) -> str:
        return str(topic.name)

    if question.among is None:
        shown = [chosen[at] for at in _order(chosen, question, values, name)]
    else:
        among = set(question.among)
        shown = [topic for topic in chosen if name(topic) in among]
    keys = (*_TOPIC_RATES, *_OF_TOPICS, "oldest_seconds")
    columns = {key: values(shown, key) for key in keys if not question.is_bare or key == question.sort}
    return Listing(0, len(chosen), _rows({"topic": list(map(name, shown))}, columns))


def subscriptions(owner: AdministeredOwner, question: ListSubscriptions) -> Listing:
    """Return rows of the subscriptions of open topics."""
    statistics, now_ms = owner.statistics, owner.now_ms
    opened = statistics.topics()
    if isinstance(opened, int):
        return Listing(opened, 0, [])
    in_scope = _in_scope(opened, question)
    chosen = statistics.subscriptions(in_scope)
    if question.named:
        is_named = re.compile(fnmatch.translate(question.named)).match
        chosen = [one for one in chosen if is_named(one[0].name)]

    def values(some: Sequence[tuple[Subscription, int]], key: str) -> NDArray[np.float64]:
        rows = [row for _, row in some]
        if key in _OF_SUBSCRIPTIONS:
            return statistics.subscription_values(rows, _OF_SUBSCRIPTIONS[key])
        if key in _TIMES:
            return statistics.subscription_values(rows, _TIMES[key])
        if key == "oldest_seconds":
            return _ages(statistics.subscription_values(rows, "backlog_since_ms"), now_ms)
        moving = {one for topic in statistics.recent.moving for one in topic.subscriptions.values()}
        return _rates([one for one, _ in some], moving, _SUBSCRIPTION_RATES.index(key),
                      lambda one: statistics.recent.of_subscription(one, now_ms))

    def name(one: tuple[Subscription, int]) -> str:
        if question.sort == "type":      # a subscription without a type is the last in either order
            return _type(one[0]) or ("\x7f" if question.ascending else "")
        return f"{one[0].partition.name} {one[0].name}" if question.sort == "topic" else one[0].name

    order = _order(chosen, question, values, name)
    shown = [chosen[at] for at in order]
    texts: dict[str, list[Any]] = {
        "topic": [str(one.partition.name) for one, _ in shown], "subscription": [one.name for one, _ in shown],
        "type": [_type(one) for one, _ in shown], "is_durable": [one.is_durable for one, _ in shown]}
    columns = {key: values(shown, key)
               for key in (*_OF_SUBSCRIPTIONS, *_SUBSCRIPTION_RATES, "oldest_seconds", *_TIMES)}
    return Listing(0, len(chosen), _rows(texts, columns),
                   [topic.partition_id for topic in in_scope if isinstance(topic, Partition)])


def _type(subscription: Subscription) -> str | None:
    """Return the type of a subscription's consumers, or of its last ones; None if it has had none."""
    kind = kind_of(subscription)
    return None if kind < 0 else SubType.Name(SubType.ValueType(kind))


def clients(owner: AdministeredOwner, question: ListClients) -> Listing:
    """Return a row for each connection that has producers or consumers of this owner in the scope."""
    is_inside = question.test()
    is_narrow = bool(question.within or question.match)
    rows = []
    for session in owner.sessions.values():
        produced: list[Any] = [one.partition for one in session.producers.values()]
        consumed: list[Any] = [one.subscription.partition for one in session.consumers.values()]
        if is_narrow:
            produced, consumed = ([topic for topic in topics if is_inside(str(topic.name))]
                                  for topics in (produced, consumed))
        if session.address and (produced or consumed):
            rows.append({
                "connection": [session.worker, session.connection], "address": session.address.removeprefix("/"),
                "role": session.role or None, "library": session.client_version or None,
                "protocol": session.protocol_version, "connected_ms": session.connected_ms or None,
                "producers": len(produced), "consumers": len(consumed), "topics": len({*produced, *consumed})})
    return Listing(0, len(rows), list(rows[:_CLIENTS_MAX]))


def unexported(owner: AdministeredOwner, question: ListUnexported) -> Listing:
    """Return rows of open topics whose oldest message that has to be exported was stored before a time."""
    if not any(partition.policies.exports for partition in owner.by_name.values()):      # no rows need to be made
        return Listing(0, 0, [])
    opened = owner.statistics.topics()
    if isinstance(opened, int):
        return Listing(opened, 0, [])
    since_ms = owner.statistics.topic_values(opened, "unexported_since_ms")
    late = np.flatnonzero((since_ms > 0) & (since_ms < question.before_ms))
    oldest = late[np.argsort(since_ms[late], kind="stable")[:question.most]].tolist()
    names = [str(opened[at].name) for at in oldest]
    return Listing(0, len(late), _rows({"topic": names}, {"since_ms": since_ms[oldest]}))


def unreplicated(owner: AdministeredOwner, question: ListUnreplicated) -> Listing:
    """Return rows of open topics' replication cursors whose oldest entry was stored before a time."""
    if not any(partition.policies.replication_clusters for partition in owner.by_name.values()):      # as above
        return Listing(0, 0, [])
    opened = owner.statistics.topics()
    if isinstance(opened, int):
        return Listing(opened, 0, [])
    late = [(since_ms, cursor) for cursor, since_ms in owner.statistics.replication_since_ms(opened)
            if 0 < since_ms < question.before_ms]
    oldest = sorted(late, key=lambda one: one[0])[:question.most]
    return Listing(0, len(late), [{"topic": str(cursor.partition.name), "remote": cursor.remote, "since_ms": since_ms,
                                   "is_connected": bool(cursor.consumers)} for since_ms, cursor in oldest])


# -- choosing and sorting

def _in_scope(topics: list[Topic], scope: Scope) -> list[Topic]:
    if not scope.within and not scope.match:
        return topics
    is_inside = scope.test()
    return [topic for topic in topics if is_inside(str(topic.name))]


def _order(chosen: Sequence[Any], question: ListTopics | ListSubscriptions,
           values: Callable[[Sequence[Any], str], NDArray[np.float64]], name: Callable[[Any], str]) -> list[int]:
    """Return the places in `chosen` of the rows to show, first ones first."""
    if question.sort in ("topic", "subscription", "type"):
        by_name = sorted(range(len(chosen)), key=lambda at: name(chosen[at]), reverse=not question.ascending)
        return by_name[:question.most]
    column = values(chosen, question.sort)
    order: list[int] = np.argsort(column if question.ascending else -column, kind="stable")[:question.most].tolist()
    return order


def _ages(since_ms: NDArray[np.float64], now_ms: int) -> NDArray[np.float64]:
    """Return ages (n,) in seconds of times (n,) in ms; -1 where there is no time."""
    return np.where(since_ms > 0, np.maximum(0, now_ms - since_ms) // 1_000, -1)


def _rates(some: Sequence[Any], moving: set[Any], at: int, rates: Callable[[Any], Sequence[float]],
           ) -> NDArray[np.float64]:
    return np.array([rates(one)[at] if one in moving else 0.0 for one in some]) if some else _NONE


def _rows(texts: dict[str, list[Any]], columns: dict[str, NDArray[np.float64]]) -> list[object]:
    """Return rows as objects: whole numbers as int, rates rounded, absent times and ages as None."""
    lists: dict[str, Iterable[Any]] = dict(texts)
    for key, values in columns.items():
        if "rate" in key or "throughput" in key:
            lists[key] = np.round(values, 3).tolist()
        elif key == "oldest_seconds":
            lists[key] = [None if value < 0 else int(value) for value in values.tolist()]
        elif key.endswith("_ms"):
            lists[key] = [int(value) or None for value in values.tolist()]
        else:
            lists[key] = values.astype(np.int64).tolist()
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
