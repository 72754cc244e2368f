"""The overview: what an operator looks at first, and what has changed since the last look."""
import asyncio
import time
from collections import Counter
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from geminga.supervisor.admin.requests.request_parts import TOPICS, number_of
from geminga.supervisor.console import rendering
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.history import HISTORY
from geminga.supervisor.console.page import Pages, Values
from geminga.supervisor.console.rendering import topic_path
from geminga.supervisor.wording import sentences

pages = Pages()
routes = web.RouteTableDef()
_SLOWEST = 5                 # subscriptions that are shown
_CHANGES = 1_000             # lines of the audit log that are counted
_ROLES = 3                   # that are named
_TIME_MAX = 1 << 50          # ms
_SOON_MS = 2_000             # by which uptimes, in whole seconds, may be wrong


@pages.at("/", "overview.html", every_s=2)
async def overview(ask: Asking) -> Values:
    status, slowest, backup = await asyncio.gather(ask.maybe("/ops/v1/status"), _slowest(ask),
                                                   ask.maybe("/ops/v1/backup"))
    alarms = ask.request.app[TOPICS].config.alarms
    marks = sorted(percent / 100 for percent in (alarms.memory_percent, alarms.memory_refuse_percent) if percent)
    return {"status": status, "slowest": slowest, "busy": _busy(ask, status) if status else {}, "memory_marks": marks,
            "backup": backup, "percents": (alarms.memory_percent, alarms.memory_refuse_percent),
            "history": ask.request.app[HISTORY].series() if status else {},
            "commands": ["geminga status", "geminga top", "geminga subscriptions --sort oldest-seconds -n 5"]}


async def _slowest(ask: Asking) -> list[dict[str, Any]]:
    """Return the subscriptions with the oldest backlogs, each with the reason."""
    table = await ask.maybe("/ops/v1/subscriptions", sort="oldest_seconds", limit=_SLOWEST)
    rows = [row for row in table["rows"] if row["backlog"]] if table is not None else []

    async def why(row: dict[str, Any]) -> str:
        why = await ask.maybe(f"/ops/v1/why/{topic_path(row['topic'])}/{ask.quoted(row['subscription'])}")
        return sentences.reason(why) if why else ""

    for row, reason in zip(rows, await asyncio.gather(*map(why, rows)), strict=True):
        row["why"] = reason
    return rows


def _busy(ask: Asking, status: Values) -> dict[str, float]:
    """Return the part of a core that each process used since this page's last update, {} at the first one."""
    now = time.monotonic()
    spent = {process["process"]: (process["pid"], process["cpu_seconds"]) for process in status["processes"]}
    before, ask.memory["spent"] = ask.memory.get("spent"), (now, spent)
    if before is None:
        return {}
    seconds, former = max(1e-3, now - before[0]), before[1]
    return {name: max(0.0, cpu - former[name][1]) / seconds for name, (pid, cpu) in spent.items()
            if name in former and former[name][0] == pid}


# -- what is new since the last look: a fragment that the browser puts above the page

@routes.get("/console/news")
async def news(request: web.Request) -> web.Response:
    """Answer with what happened since a time: ?since=MS, and topics=N, the number of topics at that time."""
    since = number_of(request, request.query.get("since", ""), "since", _TIME_MAX)
    before = request.query.get("topics", "")
    topics = number_of(request, before, "topics", _TIME_MAX) if before else None
    ask = Asking(request, request.match_info, request.query)
    status, audit, backup = await asyncio.gather(
        ask.maybe("/ops/v1/status"), ask.maybe("/ops/v1/audit", since=since, limit=_CHANGES),
        ask.maybe("/ops/v1/backup"))
    if status is None:
        return web.Response(text="", content_type="text/html")
    values = {"since": since, **_of_processes(status, since), **_of_changes(audit, since),
              "alarms": [alarm for alarm in status["alarms"] if alarm["since_ms"] > since],
              "night": status["night"] if status["night"] and status["night"]["ended_ms"] > since else None,
              "backup": backup if backup and backup["ended_ms"] > since else None,
              "topics": status["topics"]["total"] - topics if topics is not None else 0}
    return web.Response(text=rendering.page("news.html", values), content_type="text/html")


def _of_processes(status: Values, since: int) -> dict[str, Any]:
    """Return whether the broker itself was started, and the processes that were started again without it."""
    now = rendering.now_ms()
    began = {process["process"]: now - 1_000 * process["uptime_seconds"] for process in status["processes"]
             if process["uptime_seconds"]}
    started = began.get("supervisor", 0)
    if started > since + _SOON_MS:
        return {"started_ms": started, "restarted": []}
    return {"started_ms": 0, "restarted": [one["process"] for one in status["processes"] if one["started_again"]
                                           and began.get(one["process"], 0) > since + _SOON_MS]}


def _of_changes(audit: Values | None, since: int) -> dict[str, Any]:
    """Return how many changes there were, by whom most, and the link to them."""
    rows = audit["rows"] if audit else []
    changes = [row for row in rows if row.get("status", 0) < 400]
    roles = Counter(row.get("role") or rendering.text("overview.somebody") for row in changes)
    return {"changes": len(changes), "refusals": len(rows) - len(changes), "has_more": bool(audit and audit["more"]),
            "roles": [name for name, _ in roles.most_common(_ROLES)], "others": max(0, len(roles) - _ROLES),
            "link": "/console/audit?" + urlencode({"since": since})}
