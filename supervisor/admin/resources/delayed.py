"""Delayed messages: how many fall due when, and how to cancel one or give it another time.

Requests name times in ms, as ISO 8601 (UTC without a zone), or relative to now: 10m, -2h. Answers have them in ms.
"""
import re
import time
from functools import partial
from typing import Any

from aiohttp import web

from geminga.storage.admin.questions import Cancel, GetDelayed, Reschedule
from geminga.storage.ledgers.position import Position
from geminga.storage.runtime.units import moment
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    ANY,
    Asking,
    ask_parts,
    body_of,
    done,
    number_of,
    part_of,
    parts_of,
)

routes = rights.Routes()
_DELAYED = "/ops/v1/delayed" + ANY
_MESSAGE = _DELAYED + "/{message:[^/]+}"
_BY = ("hour", "window", "message")
_ROWS, _ROWS_MAX = 1_000, 10_000
_END_MS = (1 << 62) - 1      # later than any delivery time
_ID = re.compile(r"([0-9]{1,18}):([0-9]{1,18})", re.ASCII)
_PART_ID = re.compile(_ID.pattern + r"(:-?[0-9]{1,9}){1,2}", re.ASCII)


@routes.get(_DELAYED, right=rights.CONSUMES)
async def delayed(request: web.Request) -> web.Response:
    """Answer with the delayed entries of all partitions that are not due yet, by hour, window or message."""
    query = request.query
    by, most = query.get("by", "hour"), number_of(request, query.get("limit", str(_ROWS)), "limit", _ROWS_MAX)
    if by not in _BY:
        raise web.HTTPBadRequest(text=f"by is one of {', '.join(_BY)}")
    first_ms = _moment(query["from"], "from") if "from" in query else 0
    end_ms = _moment(query["to"], "to") if "to" in query else _END_MS
    if first_ms > end_ms:
        raise web.HTTPBadRequest(text="from is a time behind to")
    question = partial(GetDelayed, first_ms=first_ms, end_ms=end_ms, at_most=most + 1, by=by)
    partitions = await ask_parts(request, question)
    rows: list[dict[str, Any]] = [row for partition in partitions for row in partition.rows]
    rows = sorted(rows, key=lambda row: row["deliver_at"]) if by == "message" else _summed(rows)
    document = {"waiting": sum(one.waiting for one in partitions), "windows": sum(one.windows for one in partitions),
            "index_bytes": sum(one.index_bytes for one in partitions),
            "memory_bytes": sum(one.memory_bytes for one in partitions)}
    due_ms = min((one.next_due_ms for one in partitions if one.next_due_ms is not None), default=None)
    return web.json_response(
        {"next_due_at": due_ms, **document, "by": by, "rows": rows[:most], "has_more": len(rows) > most})


def _summed(rows: list[dict[str, int]]) -> list[dict[str, int]]:
    """Sum the counts of rows that cover the same period, as each partition sends rows of its own."""
    counts: dict[tuple[int, int], int] = {}
    for row in rows:
        time_ = row["from"], row["to"]
        counts[time_] = counts.get(time_, 0) + row["entries"]
    return [{"from": first, "to": end, "entries": entries} for (first, end), entries in sorted(counts.items())]


@routes.delete(_MESSAGE, right=rights.TOPIC_POLICY)
async def cancel(request: web.Request) -> web.Response:
    """Cancel a delayed entry, with all messages of its batch."""
    await _change(request, partial(Cancel, position=_position(request)))
    return done()


@routes.patch(_MESSAGE, right=rights.TOPIC_POLICY)
async def reschedule(request: web.Request) -> web.Response:
    """Give a delayed entry another delivery time."""
    position, body = _position(request), await body_of(request)
    if not isinstance(body, dict) or body.keys() != {"deliver_at"}:
        raise web.HTTPBadRequest(text='The body is {"deliver_at": a time}')
    deliver_at_ms = _moment(body["deliver_at"], "deliver_at")
    await _change(request, partial(Reschedule, position=position, deliver_at_ms=deliver_at_ms))
    return done()


async def _change(request: web.Request, change: Asking[bool | None]) -> None:
    """Change a delayed entry, which at most one partition has, because ledger ids are unique.

    Raises 404, 409, Refusal.
    """
    for topic in parts_of(request):
        waited = await request.app[OWNERS].ask(change(topic))
        if waited:
            return
        if waited is not None:
            raise web.HTTPConflict(text="The message does not wait: its time has come, or it never had one, "
                                        "or it was cancelled")
    raise web.HTTPNotFound(text="Message not found")


def _position(request: web.Request) -> Position:
    """Return the position that the path names.  Raises 400, and 412 for the id of a message within an entry."""
    text = part_of(request, "message")
    if match := _ID.fullmatch(text):
        return int(match[1]), int(match[2])
    if match := _PART_ID.fullmatch(text):
        raise web.HTTPPreconditionFailed(
            text="The messages of a batch wait together, and an entry's id says in which partition it is: "
            f"LEDGER:ENTRY names it, {match[1]}:{match[2]}"
        )
    raise web.HTTPBadRequest(text="A message's id is LEDGER:ENTRY, such as 12:0")


def _moment(value: Any, name: str) -> int:
    """Return a time in ms, given as ms or as text.  Raises 400."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise web.HTTPBadRequest(text=f"{name} is a time: ms, or a text")
    try:
        return moment(str(value), int(time.time() * 1_000))
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"{name}: {error}") from None
