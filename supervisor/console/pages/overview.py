"""The overview: what an operator looks at first, and what has changed since the last look."""
import asyncio
import time
from typing import Any

from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.history import HISTORY
from geminga.supervisor.console.page import Pages, Values
from geminga.supervisor.console.rendering import topic_path
from geminga.supervisor.wording import sentences

pages = Pages()
_SLOWEST = 5                 # subscriptions that are shown


@pages.at("/", "overview.html", every_s=2)
async def overview(ask: Asking) -> Values:
    status, slowest = await asyncio.gather(ask.get("/ops/v1/status"), _slowest(ask))
    alarms = ask.request.app[TOPICS].config.alarms
    marks = sorted(percent / 100 for percent in (alarms.memory_percent, alarms.memory_refuse_percent) if percent)
    return {"status": status, "slowest": slowest, "busy": _busy(ask, status), "memory_marks": marks,
            "history": ask.request.app[HISTORY].series(),
            "commands": ["geminga status", "geminga top", "geminga subscriptions --sort oldest-seconds -n 5"]}


async def _slowest(ask: Asking) -> list[dict[str, Any]]:
    """Return the subscriptions with the oldest backlogs, each with the reason."""
    table = await ask.maybe("/ops/v1/subscriptions", sort="oldest_seconds", limit=_SLOWEST)
    rows = [row for row in table["rows"] if row["backlog"]] if table is not None else []

    async def why(row: dict[str, Any]) -> str:
        told = await ask.maybe(f"/ops/v1/why/{topic_path(row['topic'])}/{ask.quoted(row['subscription'])}")
        return sentences.reason(told) if told else ""

    for row, reason in zip(rows, await asyncio.gather(*map(why, rows)), strict=True):
        row["why"] = reason
    return rows


def _busy(ask: Asking, status: Values) -> dict[str, float]:
    """Return the part of a core that each process used since this page's last update, {} at the first one."""
    now = time.monotonic()
    spent = {one["process"]: (one["pid"], one["cpu_seconds"]) for one in status["processes"]}
    before, ask.memory["spent"] = ask.memory.get("spent"), (now, spent)
    if before is None:
        return {}
    seconds, former = max(1e-3, now - before[0]), before[1]
    return {name: max(0.0, cpu - former[name][1]) / seconds for name, (pid, cpu) in spent.items()
            if name in former and former[name][0] == pid}
