"""The audit log, and the newest lines of the log."""
import asyncio
import time

from geminga.storage.runtime.log_codes import CODES
from geminga.supervisor.admin.requests.audit_reading import time_ms_of
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.page import Pages, Values

pages = Pages()
_LINES = 100                 # of the audit log, on a page
_TAIL = 200                  # of the log
LEVELS = "error", "warning", "info", "debug"
SPANS = {"": 0, "1h": 3_600, "1d": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}      # of the audit log, in seconds


@pages.at("/console/audit", "audit.html")
async def audit(ask: Asking) -> Values:
    query = {name: ask.query.get(name, "").strip() for name in ("role", "match", "at", "span")}
    seconds = SPANS.get(query["span"], 0)
    since = time.time_ns() // 1_000_000 - seconds * 1_000 if seconds else None
    if "since" in ask.query:      # of a link on the overview
        since = int(ask.query["since"]) if ask.query["since"].isdigit() else None
    answer = await ask.get("/ops/v1/audit", limit=_LINES, role=query["role"] or None, match=query["match"] or None,
                         since=since, at=query["at"] or None)
    for row in answer["rows"]:
        row["time_ms"] = time_ms_of(row)
    kept = {name: value for name, value in ask.query.items() if value and name != "at"}
    return {"rows": answer["rows"], "more": kept | {"at": answer["at"]} if answer["more"] else None, "asked": query,
            "spans": list(SPANS), "first": kept if query["at"] else None,
            "commands": [f"tail -n {_LINES} DATA_DIR/audit.log"]}


@pages.at("/console/log", "log.html", every_s=2)
async def log(ask: Asking) -> Values:
    asked = {name: ask.query.get(name, "").strip() for name in ("level", "code", "process", "match")}
    told, level = await asyncio.gather(
        ask.get("/ops/v1/log", limit=_TAIL, **{name: value or None for name, value in asked.items()}),
        ask.maybe("/ops/v1/log-level"))
    config = ask.request.app[TOPICS].config
    processes = ["supervisor", "geminga-admin", *(f"geminga-o{number}" for number in range(config.owners)),
                 *(f"geminga-w{number}" for number in range(config.workers))]
    for row in told["rows"]:
        row["page"] = CODES.get(row["code"], ("",))[0]
    return {"rows": told["rows"], "more": told["more"], "asked": asked, "level": level, "levels": LEVELS,
            "processes": processes,
            "commands": ["journalctl -u geminga -n 200", "geminga log level"]}
