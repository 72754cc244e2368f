"""The page of a topic or partition: traffic, partitions, clients, storage, schemas, policies, delays, compaction."""
import asyncio
import itertools
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from geminga.proto.names import without_partition
from geminga.supervisor.console.actions.schema_actions import pretty
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.bars import bars_of
from geminga.supervisor.console.page import PATH, Pages, Values
from geminga.supervisor.console.pages.policy_rows import policies_of
from geminga.supervisor.console.pages.schedules import rows_of
from geminga.supervisor.console.rendering import counted, topic_path
from geminga.supervisor.wording import human

pages = Pages()
ROWS = 100                   # of each table
_SUMMED = 1_000              # partitions whose rows are added, as many as one answer of REST has
_PARTITIONS = 200            # rows of partitions; the table of topics has all
_PARTS = 64                  # partitions whose statistics are added; more would load too many for one page
_HOURS = 1_000               # with delayed messages, as many as REST answers with
_SLOW_SECONDS = 10.0         # after which values are asked for again that change rarely
Row = dict[str, Any]


@pages.at("/console/topics" + PATH, "topic.html", every_s=2)
async def topic(ask: Asking) -> Values:
    path, base = ask.topic_path, without_partition(ask.topic)
    metadata = await ask.get(f"/admin/v2/{path}/partitions")
    count, is_kept = metadata["partitions"], ask.topic.startswith("persistent:")
    is_small = count <= _PARTS
    stats, partitions, delayed, schedules, schemas, policies, compaction, ledgers = await asyncio.gather(
        _stats(ask, count), _partitions(ask, count),
        slowly(ask, "delayed", lambda: _delayed(ask)) if is_kept and is_small else _nothing(),
        slowly(ask, "schedules", lambda: ask.maybe(f"/ops/v1/schedules/{topic_path(base)}")),
        slowly(ask, "schemas", lambda: schemas_of(ask, base)),
        slowly(ask, "policies", lambda: policies_of(ask, base)),
        ask.maybe(f"/admin/v2/{path}/compaction") if is_kept and not count else _nothing(),
        _ledgers(ask, count) if is_kept and is_small else _nothing())
    return {"topic": ask.topic, "base": base, "count": count, "is_kept": is_kept, "is_partition": base != ask.topic,
            "properties": metadata.get("properties") or await _properties(ask, base, count),
            "stats": stats, "sample": _sample(stats, partitions), "partitions": partitions,
            "producers": _producers(stats, count), "consumers": _consumers(stats, count),
            "definition": pretty(schemas[-1]["data"]) if schemas else "",
            "delayed": delayed, "schedules": None if schedules is None else rows_of(schedules), "schemas": schemas,
            "policies": policies, "compaction": compaction, "ledgers": ledgers, "rows_max": ROWS,
            "partitions_max": _PARTITIONS, "parts_max": _PARTS, "summed_max": _SUMMED,
            "commands": _commands(ask.topic, count)}


async def _nothing() -> None:
    return None


async def slowly(ask: Asking, name: str, load: Callable[[], Awaitable[Any]]) -> Any:
    """Return a value that changes rarely: an open page asks for it again after some updates."""
    now = time.monotonic()
    at, value = ask.memory.get(name, (None, None))
    if at is None or now - at >= _SLOW_SECONDS:
        value = await load()
        ask.memory[name] = now, value
    return value


# -- statistics

async def _stats(ask: Asking, count: int) -> Row | None:
    """Return the statistics of the topic, of all partitions together; None if these are too many."""
    if count > _PARTS:
        return None
    what = "partitioned-stats" if count else "stats"
    stats: Row = await ask.get(f"/admin/v2/{ask.topic_path}/{what}")
    return stats


async def _partitions(ask: Asking, count: int) -> Values | None:
    """Return the partitions' rows of the table of topics, in the order of their numbers, with sums over all.

    Where there are more than one answer has, the rows and sums are those of the partitions with the most traffic.
    """
    if not count:
        return None
    is_whole = count <= _SUMMED
    answer = await ask.get(f"/ops/v1/topics/{ask.topic_path}", sort="topic" if is_whole else "rate_in", limit=_SUMMED)
    rows = answer["rows"]
    if is_whole:
        rows = sorted(rows, key=lambda row: int(row["topic"].rpartition("-")[2]))
    loaded = [row for row in rows if row["backlog"] is not None]
    sums = {key: sum(row[key] for row in loaded) for key in
            ("rate_in", "rate_out", "throughput_in", "throughput_out", "backlog", "storage_bytes")}
    return {"rows": rows[:_PARTITIONS], "loaded": answer["total"] - answer["not_loaded"], "sums": sums}


def _sample(stats: Row | None, partitions: Values | None) -> Row:
    """Return a point of the page's curves."""
    if stats is not None:
        figures = {"messages_in": stats["msgRateIn"], "messages_out": stats["msgRateOut"],
                "bytes_in": stats["msgThroughputIn"], "bytes_out": stats["msgThroughputOut"],
                "backlog": max((one["msgBacklog"] for one in stats["subscriptions"].values()), default=0)}
    else:
        sums = partitions["sums"] if partitions is not None else {}
        figures = {"messages_in": sums["rate_in"], "messages_out": sums["rate_out"], "bytes_in": sums["throughput_in"],
                "bytes_out": sums["throughput_out"], "backlog": sums["backlog"]}
    return {"at": time.time_ns() // 1_000_000, **{name: round(value, 1) for name, value in figures.items()}}


def _parts(stats: Row | None) -> list[Row]:
    """Return the statistics of each partition, or of the topic itself if it has none."""
    return [] if stats is None else list(stats["partitions"].values()) if "partitions" in stats else [stats]


def _producers(stats: Row | None, count: int) -> list[Row]:
    """Return rows of the producers, each once with the sums over all partitions."""
    rows = (publisher for part in _parts(stats) for publisher in part["publishers"])
    return _joined(rows, ("producerName", "address"), ("msgRateIn",), count)


def _consumers(stats: Row | None, count: int) -> list[Row]:
    """Return rows of the consumers of all subscriptions, each once with the sums over all partitions."""
    rows = ({**consumer, "subscription": name, "has_page": True,
             "active": one.get("activeConsumerName") == consumer["consumerName"]}
            for part in _parts(stats) for name, one in part["subscriptions"].items() for consumer in one["consumers"])
    return _joined(rows, ("subscription", "consumerName", "address"),
                   ("availablePermits", "unackedMessages", "msgRateOut"), count)


def _joined(rows: Iterable[Row], keys: tuple[str, ...], sums: tuple[str, ...], count: int) -> list[Row]:
    """Return rows with some keys alike as one, with sums of its numbers, and the number of partitions as `place`.

    count: partitions of the topic, 0 if it is not partitioned.
    """
    joined: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        before = joined.setdefault(tuple(row[key] for key in keys), {**row, "partitions": 0} | dict.fromkeys(sums, 0))
        before["partitions"] += 1
        for name in sums:
            before[name] += row[name]
    for row in joined.values():
        row["place"] = counted("topic.at_partitions", row["partitions"]) if count else ""
    return list(itertools.islice(joined.values(), ROWS))


# -- what is stored

async def _ledgers(ask: Asking, count: int) -> Values | None:
    """Return the newest ledgers of the topic, each with the number of subscriptions that still need it."""
    answer = await ask.maybe(f"/admin/v2/{ask.topic_path}/{'partitioned-internalStats' if count else 'internalStats'}")
    if answer is None:
        return None
    parts = answer["partitions"] if count else {ask.topic: answer}
    rows = [row for name, part in parts.items() for row in _of_part(name, part)]
    views = [part["compactedLedger"] for part in parts.values() if part["compactedLedger"]["ledgerId"] >= 0]
    return {"rows": sorted(rows, key=lambda row: -row["ledger"])[:ROWS], "total": len(rows),
            "entries": sum(row["entries"] for row in rows), "bytes": sum(row["bytes"] for row in rows),
            "is_terminated": any(part["state"] == "Terminated" for part in parts.values()),
            "view": {key: sum(view[key] for view in views) for key in ("entries", "size")} if views else None}


def _of_part(name: str, part: Row) -> list[Row]:
    marks = [tuple(map(int, cursor["markDeletePosition"].split(":"))) for cursor in part["cursors"].values()]
    return [{"topic": name, "ledger": ledger["ledgerId"], "entries": ledger["entries"], "bytes": ledger["size"],
             "is_open": ledger is part["ledgers"][-1] and part["state"] != "Terminated",
             "needed": sum(mark < (ledger["ledgerId"], ledger["entries"] - 1) for mark in marks)}
            for ledger in part["ledgers"]]


async def _delayed(ask: Asking) -> Values | None:
    """Return the delayed messages by time, None if the role may not see them."""
    hours = await ask.maybe(f"/ops/v1/delayed/{ask.topic_path}", by="hour", limit=_HOURS)
    if hours is None:
        return None
    address = f"/console/topics/{ask.topic_path}/delayed"
    return {**hours, "bars": bars_of(hours["rows"], address), "address": address}


async def schemas_of(ask: Asking, base: str) -> list[Row] | None:
    """Return all versions of a topic's schema, the oldest first; None if the role may not see them."""
    answer = await ask.maybe(f"/admin/v2/schemas/{topic_path(base).partition('/')[2]}/schemas")
    return None if answer is None else answer["getSchemaResponses"]


async def _properties(ask: Asking, base: str, count: int) -> dict[str, str]:
    return {} if count else await ask.maybe(f"/admin/v2/{topic_path(base)}/properties") or {}


def _commands(topic: str, count: int) -> list[str]:
    name = human.short(topic)
    stats = "partitioned-stats" if count else "stats"
    return [shlex.join(words) for words in (
        ["geminga", "topics", name], ["geminga", "subscriptions", name], ["geminga", "clients", name],
        ["geminga", "admin", "topics", stats, name],
        ["geminga", "admin", "topics", f"{stats}-internal", name],
        ["geminga", "admin", "delayed", "list", name])]
