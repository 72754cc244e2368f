"""Nights, compactions and backups: how the last ones went, and what runs now."""
import asyncio

from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.page import Pages, Values

pages = Pages()
_SHOWN = 200                 # rows of a report


@pages.at("/console/nights", "nights.html", every_s=3)
async def nights(ask: Asking) -> Values:
    report, compaction, backup = await asyncio.gather(
        ask.maybe("/ops/v1/compaction/report"), ask.get("/ops/v1/compaction"), ask.maybe("/ops/v1/backup"))
    rows = (report or {}).get("compaction") or []
    retention = (report or {}).get("retention") or {}
    given = sorted(retention.get("topics", []), key=lambda row: -row.get("freed", 0))
    return {"report": report, "compaction": compaction, "backup": backup, "rows": rows[:_SHOWN],
            "tables": ((report or {}).get("tables") or [])[:_SHOWN], "given": given[:_SHOWN],
            "errors": retention.get("errors", [])[:_SHOWN],
            "commands": ["geminga nightly", "geminga backup FOLDER", "geminga admin topics compact TOPIC"]}
