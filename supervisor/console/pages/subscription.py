"""A subscription: why it stands where it stands, its cursor over the ledgers, its consumers, and its messages."""
import asyncio
from collections.abc import Iterator
from typing import Any

from geminga.proto.json_object import JsonObject
from geminga.proto.names import parse
from geminga.supervisor.console import payloads
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.page import ANY_PATH, Pages, Values
from geminga.supervisor.console.rendering import topic_path
from geminga.supervisor.wording import sentences
from geminga.supervisor.wording.sentences import Cause, Standstill

pages = Pages()
_ROWS = 20                   # messages of a page
_SEGMENTS = 240              # of the cursor's drawing
WIDTH = 1200                 # of the drawing, in its own units


@pages.at("/console/topics" + ANY_PATH + "/subscriptions/{subscription:[^/]+}", "subscription.html", every_s=2)
async def subscription(ask: Asking) -> Values:
    name = ask.part("subscription")
    path = f"{ask.topic_path}/{ask.quoted(name)}"
    why, cursor = await asyncio.gather(ask.get(f"/ops/v1/why/{path}"), _cursor(ask, path))
    sentence = sentences.tell(why, payloads.words(ask.topic), name)
    is_scalable = parse(ask.topic).is_scalable
    parts = [ask.topic] if is_scalable else payloads.partition_names(
        ask.topic, 0 if why[0]["topic"] == ask.topic else len(why))
    part = ask.query.get("partition", "")
    chosen = parts[int(part)] if part.isdecimal() and len(part) < 6 and int(part) < len(parts) else parts[0]
    is_update = ask.request.path == "/console/live"      # which leaves the messages alone: somebody reads them
    # REST reads no messages of segments.
    messages = None if is_update or is_scalable else await _messages(ask, chosen, name)
    return {
        "topic": ask.topic, "is_scalable": is_scalable, "name": name, "why": why,
        "lead": sentence[0].partition("): ")[2] or sentence[0],
        "lines": [line.strip() for line in sentence[1:]], "kind": next((part["type"] for part in why), "None"),
        "backlog": sentences.backlog_of(why),
        "parked": sum(cause["cause"] == "parked" for part in why for cause in part["causes"]),
        "consumers": sentences.holders_of(why), "draining": list(_draining(why)), "maps": list(_maps(cursor)),
        "states": cursor["states"] if cursor else [], "counts": _counts(cursor), "parts": parts, "chosen": chosen,
        "has_maps_left": bool(cursor) and cursor["partition_count"] > len(cursor["partitions"]),
        "dead": await _dead(ask, name), "cleared": await _cleared(ask, name), "messages": messages, "width": WIDTH,
        "number": ask.query.get("number", ""), "commands": _commands(ask.topic, name)}


def _commands(topic: str, name: str) -> list[str]:
    why = f"geminga why {payloads.words(topic, name)}"
    peek = f"geminga admin topics peek-messages {payloads.words(topic)} -s {payloads.words(name)} -n {_ROWS}"
    return [why] if parse(topic).is_scalable else [why, peek]


async def _cursor(ask: Asking, path: str) -> Any:
    try:
        return await ask.maybe(f"/ops/v1/cursor/{path}", segments=_SEGMENTS)
    except QuestionRefused:
        return None      # a non-persistent topic has no ledgers


def _maps(cursor: Any) -> Iterator[JsonObject]:
    """Yield the drawing of each partition: columns of rectangles, and the borders of ledgers."""
    for partition in cursor["partitions"] if cursor else ():
        entries = max(1, partition["entries"])
        scale, size = WIDTH / max(1, len(partition["segments"])), 1_000
        boxes: list[tuple[str, float, float, int, int]] = []      # state, x, width, y, height
        for number, counts in enumerate(partition["segments"]):
            y, total = 0, max(1, sum(counts))
            for state, count in zip(cursor["states"], counts, strict=True):
                height = count * size // total
                if not count:
                    continue
                last = boxes[-1] if boxes else None
                if height == size and last and last[0] == state and last[4] == size:
                    boxes[-1] = (state, last[1], last[2] + scale, 0, size)
                else:
                    boxes.append((state, number * scale, scale, y, max(1, height)))
                y += height
        yield partition | {"boxes": boxes, "borders": [(ledger, WIDTH * before / entries)
                                                 for ledger, before, _ in partition["ledgers"] if before]}


def _counts(cursor: Any) -> dict[str, int]:
    """Return the entries in each state, of all partitions together."""
    parts = cursor["partitions"] if cursor else []
    return {state: sum(part["counts"][state] for part in parts) for state in (cursor["states"] if cursor else ())}


def _draining(why: list[Standstill]) -> Iterator[Cause]:
    """Yield the keys that wait until their former consumer has acknowledged."""
    for part in why:
        yield from (cause | {"topic": part["topic"]} for cause in part["causes"] if cause["cause"] == "draining key")


async def _dead(ask: Asking, name: str) -> JsonObject | None:
    """Return the subscription's dead letter topic by the name that clients give it, None if there is none."""
    topic = f"{_regular(ask.topic)}-{name}-DLQ"
    try:
        table = await ask.maybe(f"/ops/v1/topics/{topic_path(topic)}")
    except QuestionRefused:
        return None
    rows = table["rows"] if table is not None else []
    return {"topic": topic, "backlog": sum(row["backlog"] or 0 for row in rows),
            "storage_bytes": sum(row["storage_bytes"] or 0 for row in rows)} if rows else None


def _regular(topic: str) -> str:
    """Return a topic's name; that of a scalable one as an ordinary topic, which its dead letter topic is."""
    name = parse(topic)
    return str(name.regular) if name.is_scalable else topic


async def _cleared(ask: Asking, name: str) -> list[JsonObject]:
    """Return the subscription's cleared backlogs, the last one first; [] if the role may not take them back."""
    topic, place = parse(ask.topic).base, "/ops/v1/deleted/" + parse(ask.topic).namespace
    try:
        kept = await ask.maybe(place)
    except QuestionRefused:
        return []
    return [one for one in reversed(kept or []) if (one["topic"], one["subscription"]) == (str(topic), name)]


async def _messages(ask: Asking, topic: str, name: str) -> JsonObject | None:
    """Return a page of messages, None if the role may not read them or nothing is stored."""
    number = ask.query.get("number", "")
    skipped = max(0, int(number) - 1) if number.isdecimal() and len(number) < 9 else 0
    try:
        answer: JsonObject | None = await ask.maybe(
            f"/ops/v1/messages/{topic_path(topic)}/{ask.quoted(name)}", limit=_ROWS, payload=payloads.PAYLOAD_BYTES,
            skip=skipped or None, **{"from": ask.query.get("from") or None})
    except QuestionRefused as refused:
        return {"rows": [], "problem": refused.text, "next": None} if ask.query.get("from") or number else None
    if answer is None:
        return None
    return answer | {"rows": payloads.rows(answer), "problem": ""}
