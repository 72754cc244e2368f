"""Answers with tables: of open topics, of their subscriptions, and of client connections, chosen and sorted here.

Sums and times come from the rows that statistics keep (`../statistics/`), so a table of a few among many thousand
topics costs milliseconds.
"""
import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.storage.admin import table_questions
from geminga.storage.enforcement.dead_letters import DeadLetters
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.dead_letters import is_undone
from geminga.storage.open_topics.dead_letters import waiting as waiting_letters
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.statistics.columns import Topic, kind_of
from geminga.storage.statistics.statistics import Statistics
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


def topics(decisions: Decisions, statistics: Statistics,
           question: table_questions.ListTopics) -> table_questions.Listing:
    now_ms = decisions.now_ms
    opened = statistics.topics()
    if isinstance(opened, int):
        return table_questions.Listing(opened, 0, [])
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
    return table_questions.Listing(0, len(chosen), _rows({"topic": list(map(name, shown))}, columns))


def subscriptions(decisions: Decisions, statistics: Statistics,
                  question: table_questions.ListSubscriptions) -> table_questions.Listing:
    now_ms = decisions.now_ms
    opened = statistics.topics()
    if isinstance(opened, int):
        return table_questions.Listing(opened, 0, [])
    in_scope = _in_scope(opened, question)
    chosen = statistics.subscriptions(in_scope)
    if question.named:
        is_named = re.compile(fnmatch.translate(question.named)).match
        chosen = [(subscription, row) for subscription, row in chosen if is_named(subscription.name)]

    def values(numbered: Sequence[tuple[Subscription, int]], key: str) -> NDArray[np.float64]:
        rows = [row for _, row in numbered]
        if key in _OF_SUBSCRIPTIONS:
            return statistics.subscription_values(rows, _OF_SUBSCRIPTIONS[key])
        if key in _TIMES:
            return statistics.subscription_values(rows, _TIMES[key])
        if key == "oldest_seconds":
            return _ages(statistics.subscription_values(rows, "backlog_since_ms"), now_ms)
        moving = {subscription for topic in statistics.recent.moving for subscription in topic.subscriptions.values()}
        return _rates([subscription for subscription, _ in numbered], moving, _SUBSCRIPTION_RATES.index(key),
                      lambda subscription: statistics.recent.of_subscription(subscription, now_ms))

    def name(chosen_row: tuple[Subscription, int]) -> str:
        subscription, _ = chosen_row
        if question.sort == "type":      # a subscription without a type is the last in either order
            return _type(subscription) or ("\x7f" if question.ascending else "")
        return f"{subscription.partition.name} {subscription.name}" if question.sort == "topic" else subscription.name

    order = _order(chosen, question, values, name)
    shown = [chosen[at] for at in order]
    texts: dict[str, list[Any]] = {
        "topic": [str(subscription.partition.name) for subscription, _ in shown],
        "subscription": [subscription.name for subscription, _ in shown],
        "type": [_type(subscription) for subscription, _ in shown],
        "is_durable": [subscription.is_durable for subscription, _ in shown]}
    columns = {key: values(shown, key)
               for key in (*_OF_SUBSCRIPTIONS, *_SUBSCRIPTION_RATES, "oldest_seconds", *_TIMES)}
    return table_questions.Listing(0, len(chosen), _rows(texts, columns),
                   [topic.partition_id for topic in in_scope if isinstance(topic, Partition)])


def _type(subscription: Subscription) -> str | None:
    """Return the type of a subscription's consumers, or of its last ones; None if it has had none."""
    kind = kind_of(subscription)
    return None if kind < 0 else SubType.Name(SubType.ValueType(kind))


def clients(clients: Clients, question: table_questions.ListClients) -> table_questions.Listing:
    is_inside = question.test()
    is_narrow = bool(question.within or question.match)
    rows = []
    for session in clients.sessions.by_key.values():
        produced: list[Any] = [producer.partition for producer in session.producers.values()]
        consumed: list[Any] = [consumer.subscription.partition for consumer in session.consumers.values()]
        if is_narrow:
            produced, consumed = ([topic for topic in topics if is_inside(str(topic.name))]
                                  for topics in (produced, consumed))
        if session.address and (produced or consumed):
            rows.append({
                "connection": [session.worker, session.connection], "address": session.address.removeprefix("/"),
                "role": session.role or None, "library": session.client_version or None,
                "protocol": session.protocol_version, "connected_ms": session.connected_ms or None,
                "producers": len(produced), "consumers": len(consumed), "topics": len({*produced, *consumed})})
    return table_questions.Listing(0, len(rows), list(rows[:_CLIENTS_MAX]))


def unexported(topics: TopicTable, statistics: Statistics,
               question: table_questions.ListUnexported) -> table_questions.Listing:
    if not any(partition.policies.exports for partition in topics.by_name.values()):      # no rows need to be made
        return table_questions.Listing(0, 0, [])
    opened = statistics.topics()
    if isinstance(opened, int):
        return table_questions.Listing(opened, 0, [])
    since_ms = statistics.topic_values(opened, "unexported_since_ms")
    late = np.flatnonzero((since_ms > 0) & (since_ms < question.before_ms))
    oldest = late[np.argsort(since_ms[late], kind="stable")[:question.most]].tolist()
    names = [str(opened[at].name) for at in oldest]
    return table_questions.Listing(0, len(late), _rows({"topic": names}, {"since_ms": since_ms[oldest]}))


def unreplicated(topics: TopicTable, statistics: Statistics,
                 question: table_questions.ListUnreplicated) -> table_questions.Listing:
    if not any(partition.policies.replication_clusters for partition in topics.by_name.values()):      # as above
        return table_questions.Listing(0, 0, [])
    opened = statistics.topics()
    if isinstance(opened, int):
        return table_questions.Listing(opened, 0, [])
    late = [(since_ms, cursor) for cursor, since_ms in statistics.replication_since_ms(opened)
            if 0 < since_ms < question.before_ms]
    oldest = sorted(late, key=itemgetter(0))[:question.most]
    return table_questions.Listing(0, len(late), [
        {"topic": str(cursor.partition.name), "remote": cursor.remote, "since_ms": since_ms,
         "is_connected": bool(cursor.consumers)} for since_ms, cursor in oldest])


def dead_letters(policy: DeadLetters, question: table_questions.ListDeadLetters) -> table_questions.Listing:
    waiting = [(partition, subscription, sum(len(entries) for _, entries in letters))
               for partition in policy.partitions for subscription in partition.subscriptions.values()
               if subscription.cursor.dead and not is_undone(subscription)
               and (letters := waiting_letters(subscription))]
    rows: list[object] = [
        {"topic": str(partition.name), "subscription": subscription.name, "entries": entries,
         "target": partition.policies.dead_letter_topic, "keeper": partition.policies.dead_letter_subscription,
         "is_moving": subscription.mover is not None, "error": subscription.mover_error}
        for partition, subscription, entries in waiting[:question.most]]
    return table_questions.Listing(0, len(waiting), rows)


# -- choosing and sorting

def _in_scope(topics: list[Topic], scope: table_questions.Scope) -> list[Topic]:
    if not (scope.within or scope.match or scope.kind) and scope.segments:
        return topics
    is_inside = scope.test()
    return [topic for topic in topics if is_inside(str(topic.name))]


def _order(chosen: Sequence[Any], question: table_questions.ListTopics | table_questions.ListSubscriptions,
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
