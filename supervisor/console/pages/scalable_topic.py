"""The page of a scalable topic: traffic, segments, subscriptions, clients, schedules, policies."""
import asyncio
import itertools
import time
from typing import Any

from geminga.proto import names
from geminga.supervisor.console.actions.action import command
from geminga.supervisor.console.actions.scalable_actions import active_segments, rest_path
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.page import SCALABLE_PATH, Pages, Values
from geminga.supervisor.console.pages.policy_rows import policies_of
from geminga.supervisor.console.pages.schedules import rows_of
from geminga.supervisor.console.pages.topic import ROWS, slowly
from geminga.supervisor.console.rendering import counted, text

pages = Pages()
_SEGMENTS = 200              # that are shown; a layout has up to 1,024
_NUMBERS = 8                 # of segments that one line lists
_LISTED = 1_000              # rows of one answer of REST
Row = dict[str, Any]


@pages.at("/console/topics" + SCALABLE_PATH, "scalable_topic.html", every_s=2)
async def scalable_topic(ask: Asking) -> Values:
    path = rest_path(ask.topic)
    layout, stats, table, schedules, policies = await asyncio.gather(
        ask.get(path), ask.get(f"{path}/stats"),
        ask.get(f"/ops/v1/topics/{ask.topic_path}", sort="topic", limit=_LISTED),
        slowly(ask, "schedules", lambda: ask.maybe(f"/ops/v1/schedules/{ask.topic_path}")),
        # REST has policies of scalable topics below the name without `topic://`.
        slowly(ask, "policies", lambda: policies_of(ask, str(names.parse(ask.topic).regular))))
    segments = _segments(layout, stats, {row["topic"]: row for row in table["rows"]})
    active = sum(row["is_active"] for row in segments)
    return {"topic": ask.topic, "segments": segments[:_SEGMENTS], "segments_max": _SEGMENTS, "total": len(segments),
            "active": active, "sealed": len(segments) - active, "properties": layout["properties"],
            "stats": stats, "sample": _sample(stats), "change": stats["layout"].get("lastOperation"),
            "grows": stats["autoScale"]["policy"]["enabled"], "subscriptions": _subscriptions(stats),
            "producers": [row | {"place": ""} for row in stats["producers"][:ROWS]], "consumers": _consumers(stats),
            "schedules": None if schedules is None else rows_of(schedules), "policies": policies, "rows_max": ROWS,
            "commands": [command("topics", ask.topic), command("subscriptions", ask.topic),
                         command("admin", "scalable-topics", "get-metadata", ask.topic),
                         command("admin", "scalable-topics", "stats", ask.topic)]}


def _sample(stats: Row) -> Row:
    """Return a point of the page's curves."""
    figures = {"messages_in": stats["msgRateIn"], "messages_out": stats["msgRateOut"], "bytes_in": stats["byteRateIn"],
               "bytes_out": stats["byteRateOut"],
               "backlog": max((one["msgBacklog"] for one in stats["subscriptions"].values()), default=0)}
    return {"at": time.time_ns() // 1_000_000, **{name: round(value, 1) for name, value in figures.items()}}


def _segments(layout: Row, stats: Row, figures: dict[str, Row]) -> list[Row]:
    """Return a row for each segment: active ones first, neighbours beside each other.

    figures: rows of the table of topics, by the names of segments.
    """
    in_stats, active = stats["layout"]["segments"], active_segments(layout)
    followed = dict(itertools.pairwise(active))
    rows = []
    for number in [*active, *sorted(int(key) for key, one in layout["segments"].items() if not one["active"])]:
        segment, more = layout["segments"][str(number)], in_stats.get(str(number), {})
        hashes = segment["hashRange"]
        rows.append({
            "number": number, "name": more.get("name", ""), "hashes": f"{hashes['start']:04x}-{hashes['end']:04x}",
            "can_split": hashes["start"] < hashes["end"], "next": followed.get(number), "is_active": segment["active"],
            "parents": _numbers(segment["parentIds"]), "children": _numbers(segment["childIds"]),
            "sealed_ms": segment["sealedAtMs"], "buckets": len(segment["entryBucketSplits"]) + 1,
            "legacy": segment.get("legacyTopicName", ""), "error": more.get("error", ""),
            "figures": figures.get(more.get("name", ""), {"backlog": None})})
    return rows


def _numbers(segments: list[int]) -> str:
    """Return the numbers of segments as a text, of many the first ones."""
    return ", ".join(map(str, segments[:_NUMBERS])) + (" …" if segments[_NUMBERS:] else "")


def _subscriptions(stats: Row) -> list[Row]:
    """Return rows of the subscriptions, with the segments that wait for others and those that lack the subscription."""
    return [one | {"name": name, "has_page": _has_page(one), "missing": _numbers(one["uncoveredSegmentIds"]),
                   "blocked": _numbers([int(number) for number, its in one["segments"].items() if its["blocked"]])}
            for name, one in list(stats["subscriptions"].items())[:ROWS]]


def _has_page(subscription: Row) -> bool:
    """Whether there is a subscription in any segment: a group of checkpoint consumers has none."""
    return bool(subscription["segments"])


def _consumers(stats: Row) -> list[Row]:
    """Return rows of the consumers of all subscriptions; stream consumers have one also while they are away."""
    nothing = {"address": "", "clientVersion": "", "connectedSince": "", "active": False,
               "blockedConsumerOnUnackedMsgs": False}
    rows = [nothing | one | {"subscription": name, "has_page": _has_page(its), "place": _place(one)}
            for name, its in stats["subscriptions"].items() for one in its["consumers"]]
    return rows[:ROWS]


def _place(consumer: Row) -> str:
    """Return which segments a consumer has, and whether it is away."""
    numbers = consumer["segmentIds"]
    place = counted("scalable.at_segments", len(numbers), segments=_numbers(numbers)) if numbers \
        else text("scalable.no_segment")
    return place if consumer["connected"] else f"{place}, {text('scalable.away')}"
