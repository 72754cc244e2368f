"""The configuration in force."""
from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.page import Pages, Values

pages = Pages()


@pages.at("/console/configuration", "configuration.html")
async def configuration(ask: Asking) -> Values:
    rows = (await ask.get("/ops/v1/configuration"))["rows"]
    match, only = ask.query.get("match", "").strip(), ask.query.get("only", "")
    matching = [row for row in rows if _has(row, match.lower()) and (only != "set" or row["is_set"])
             and (only != "run" or row["setting"])]
    matching.sort(key=lambda row: (not row["is_set"], row["key"].count("."), row["key"]))      # the changed ones first
    return {"rows": matching, "total": len(rows), "match": match, "only": only,
            "changed": sum(row["is_set"] for row in rows),
            "commands": ["geminga config show", "geminga admin brokers get-all-dynamic-config", "geminga reload"]}


def _has(row: Values, text: str) -> bool:
    return any(text in str(row[name]).lower() for name in ("key", "value", "origin", "setting"))
