"""Answers of the broker as pages for people: a topic's stats, a schema."""
import json
from collections.abc import Iterator
from typing import Any

from geminga.supervisor.cli.output import Column, table
from geminga.supervisor.wording.human import ago, count, length, rate, size

_SUBSCRIPTIONS = (
    Column("name", "subscription"), Column("type"), Column("consumers", shown=count, is_number=True),
    Column("msgBacklog", "backlog", count, is_number=True), Column("backlogSize", "bytes", size, is_number=True),
    Column("unackedMessages", "unacknowledged", count, is_number=True),
    Column("msgDelayed", "delayed", count, is_number=True), Column("msgRateOut", "out/s", rate, is_number=True),
    # Only if the broker was asked for it, as it reads an entry of each subscription.
    Column("earliestMsgPublishTimeInBacklog", "oldest", lambda time_ms: ago(time_ms) if time_ms else "-"),
)
_REPLICATION = (
    Column("name", "replicated to"), Column("connected", shown=lambda is_connected: "yes" if is_connected else "no"),
    Column("replicationBacklog", "backlog", count, is_number=True),
    Column("replicationBacklogSize", "bytes", size, is_number=True),
    Column("msgRateOut", "out/s", rate, is_number=True), Column("replicationDelayInSeconds", "behind", length),
)
_PRODUCERS = (
    Column("producerName", "producer"), Column("address"), Column("clientVersion", "library"),
    Column("msgRateIn", "in/s", rate, is_number=True), Column("msgThroughputIn", "bytes/s", size, is_number=True),
    Column("connectedSince", "since"),
)
_CONSUMERS = (
    Column("consumerName", "consumer"), Column("subscription"), Column("address"), Column("clientVersion", "library"),
    Column("availablePermits", "permits", count, is_number=True),
    Column("unackedMessages", "unacknowledged", count, is_number=True),
    Column("msgRateOut", "out/s", rate, is_number=True), Column("connectedSince", "since"),
)


def topic(stats: dict[str, Any]) -> list[str]:
    """Return the lines that show a topic's stats: the topic, its subscriptions, consumers and producers."""
    return list(_topic(stats))


def _topic(stats: dict[str, Any]) -> Iterator[str]:
    subscriptions = [row | {"name": name, "consumers": len(row["consumers"])}
                     for name, row in stats["subscriptions"].items()]
    consumers = [row | {"subscription": name} for name, each in stats["subscriptions"].items()
                 for row in each["consumers"]]
    yield f"in       {rate(stats['msgRateIn'])} messages/s, {size(stats['msgThroughputIn'])}/s; " \
          f"{count(stats['msgInCounter'])} messages, {size(stats['bytesInCounter'])} since it was loaded"
    yield f"out      {rate(stats['msgRateOut'])} messages/s, {size(stats['msgThroughputOut'])}/s; " \
          f"{count(stats['msgOutCounter'])} messages, {size(stats['bytesOutCounter'])} since it was loaded"
    yield f"stored   {size(stats['storageSize'])}"
    if stats.get("metadata", {}).get("partitions"):
        yield f"split    into {stats['metadata']['partitions']} partitions"
    if stats["subscriptions"]:
        oldest = stats.get("oldestBacklogMessageAgeSeconds", -1)
        age = f", its oldest message published {length(oldest)} ago" if oldest > 0 else ""
        yield f"backlog  {size(stats['backlogSize'])}{age}"
    is_asked = any(row.get("earliestMsgPublishTimeInBacklog") for row in subscriptions)
    yield from _table("no subscriptions: messages are kept only as long as retention says", subscriptions,
                      _SUBSCRIPTIONS if is_asked else _SUBSCRIPTIONS[:-1])
    if outbound := [row | {"name": name} for name, row in stats["replication"].items()
                    if "replicationBacklogSize" in row]:      # the others only come from there
        yield from _table("", outbound, _REPLICATION)
    yield from _table("no consumers", consumers, _CONSUMERS)
    yield from _table("no producers", stats["publishers"], _PRODUCERS)


def _table(without: str, rows: list[dict[str, Any]], columns: tuple[Column, ...]) -> Iterator[str]:
    yield ""
    if rows:
        yield from table(rows, columns)
    else:
        yield without


def schema(answer: dict[str, Any] | list[dict[str, Any]]) -> list[str] | Any:
    """Return the lines that show one schema, or all versions of a topic's: a line about each, then its text."""
    versions = answer.get("getSchemaResponses", [answer]) if isinstance(answer, dict) else answer
    return [line for version in versions for line in _schema(version)]


def _schema(one: dict[str, Any]) -> Iterator[str]:
    yield f"version {one['version']}, {one['type']}, added {ago(one['timestamp'])} ago"
    for name, value in (one.get("properties") or {}).items():
        yield f"  {name} = {value}"
    try:
        yield from json.dumps(json.loads(one["data"]), indent=2, ensure_ascii=False).splitlines()
    except ValueError:
        yield from str(one["data"]).splitlines()
