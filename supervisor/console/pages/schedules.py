"""The page of schedules: recurring messages of all topics, with what they wait for."""
from typing import Any

from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.page import Pages, Values
from geminga.supervisor.wording import human

pages = Pages()
_ROWS = 500


@pages.at("/console/schedules", "schedules.html", every_s=5)
async def schedules(ask: Asking) -> Values:
    match = ask.query.get("match", "").strip()
    told = await ask.get("/ops/v1/schedules")
    rows = [one for one in rows_of(told) if match.lower() in f"{one['topic']} {one['name']}".lower()]
    return {"rows": rows[:_ROWS], "found": len(rows), "match": match, "commands": ["geminga schedule list"]}


def rows_of(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return schedules, as REST tells them, as rows of a table: those that publish nothing come first."""
    rows = [one | {"when": human.schedule(one), "next": next(iter(one["next"]), None)} for one in told]
    return sorted(rows, key=lambda row: (not row["waiting"], not row["paused"], row["topic"], row["name"]))
