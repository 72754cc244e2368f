"""The live tail of a topic: its newest messages as server-sent events, while somebody looks.

    rows      {"rows": messages that match, "passed": messages that came and were not looked at or not shown}
    ended     {"reason": text}: the topic is gone, the session is over, or the filter is wrong

Each second the owner is asked for the newest entries behind those that were seen, with bounds on both. So a tail of a
busy topic shows some of its messages, and says how many others there were. Nothing is read while nobody looks.
"""
import asyncio
import time
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.payloads import PAYLOAD_BYTES, partition_names
from geminga.supervisor.console.rendering import text, topic_path
from geminga.supervisor.console.routes import live

routes = web.RouteTableDef()
TAILS_MAX = 20               # of all browsers together
_PARTITIONS_MAX = 16         # of one tail
_FIRST, _RATE, _RATE_MAX = 10, 10, 50      # messages: shown at once; shown in a second
_LOOKED_AT = 100             # messages of a partition that a filter looks at in a second
_STEP_SECONDS, _PING_SECONDS = 1.0, 10.0
TAILS = web.AppKey("tails", set[int])      # those that are open


@routes.get("/console/tail")
async def tail(request: web.Request) -> web.StreamResponse:
    """Answer with events until the browser leaves."""
    if len(request.app[TAILS]) >= TAILS_MAX:
        raise web.HTTPServiceUnavailable(text="Too many tails are open")
    return await live.events(request, request.app[TAILS], lambda answer: _run(request, answer))


async def _run(request: web.Request, answer: web.StreamResponse) -> None:
    ask = Asking(request, request.match_info, request.query)
    sent = time.monotonic()
    try:
        following = await _Following.of(ask)
        while request.transport is not None and not request.transport.is_closing():
            if not await live.holds(request):
                raise QuestionRefused(web.HTTPUnauthorized.status_code, text("messages.session_over"))
            if news := await following.step():
                await answer.write(live.event("rows", news))
                sent = time.monotonic()
            elif time.monotonic() - sent > _PING_SECONDS:
                await answer.write(b":\n\n")
                sent = time.monotonic()
            await asyncio.sleep(_STEP_SECONDS)
    except QuestionRefused as refused:
        await answer.write(live.event("ended", {"reason": refused.text}))


class _Following:
    """How far each partition of a topic was seen."""

    def __init__(self, ask: Asking, parts: list[str]) -> None:
        self._ask = ask
        self._seen: dict[str, tuple[str, int] | None] = dict.fromkeys(parts)      # (position behind, message number)
        rate = ask.query.get("rate", "")
        self._rate = max(1, min(_RATE_MAX, int(rate))) if rate.isdecimal() and len(rate) < 5 else _RATE
        self._chosen = {name: ask.query[name] for name in ("key", "property", "grep") if ask.query.get(name)}

    def __repr__(self) -> str:
        return f"<_Following {len(self._seen)} partitions>"

    @classmethod
    async def of(cls, ask: Asking) -> "_Following":
        """Begin with the topic in the address.  Raises QuestionRefused."""
        try:
            topic = str(names.parse(ask.query.get("topic", "").strip()))
        except Refusal as refusal:
            raise QuestionRefused(web.HTTPBadRequest.status_code, refusal.message) from None
        count = (await ask.get(f"/admin/v2/{topic_path(topic)}/partitions"))["partitions"]
        if count > _PARTITIONS_MAX:
            raise QuestionRefused(web.HTTPBadRequest.status_code,
                                  text("messages.too_many_partitions", number=_PARTITIONS_MAX))
        return cls(ask, partition_names(topic, count))

    async def step(self) -> dict[str, Any] | None:
        """Return what is new in all partitions, None if nothing is.  Raises QuestionRefused."""
        self._ask.calls.clear()
        is_first = None in self._seen.values()
        rows: list[dict[str, Any]] = []
        passed = 0
        for topic in self._seen:
            some, other = await self._news(topic)
            rows, passed = rows + some, passed + other
        rows.sort(key=lambda row: row["publishTime"])
        most = _FIRST if is_first else self._rate
        passed += max(0, len(rows) - most)
        return {"rows": rows[-most:], "passed": 0 if is_first else passed} if rows or passed or is_first else None

    async def _news(self, topic: str) -> tuple[list[dict[str, Any]], int]:
        """Return (messages, number of others) of a partition that came since the last step."""
        seen = self._seen[topic]
        limit = _LOOKED_AT if self._chosen else _FIRST if seen is None else self._rate
        begin = {"from": seen[0]} if seen is not None else {}
        try:
            page = await self._ask.get(f"/ops/v1/messages/{topic_path(topic)}", order="latest", limit=limit,
                                       payload=PAYLOAD_BYTES, **self._chosen, **begin)
        except QuestionRefused as refused:
            if refused.status != web.HTTPServiceUnavailable.status_code:
                raise
            return [], 0      # its owner is being started again
        if page["end_number"] is None:
            if seen is None:
                self._seen[topic] = "0:0", 0
            return [], 0
        self._seen[topic] = page["behind"], page["end_number"]
        before = page["end_number"] if seen is None else seen[1]
        looked_at = page["end_number"] - page["first_number"] if self._chosen else len(page["rows"])
        return page["rows"], max(0, page["end_number"] - before - looked_at)
