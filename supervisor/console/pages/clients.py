"""Connections of clients, and transactions that have not ended."""
import asyncio
import shlex
from typing import Any

from geminga.supervisor.console.asking import Asking
from geminga.supervisor.console.ordering import order_of
from geminga.supervisor.console.page import Pages, Values

pages = Pages()
_ASKED = 1_000               # connections, which is as many as REST answers with
_SHOWN = 200                 # rows, unless the address asks for all
CLIENTS = ("address", "role", "library", "protocol", "listener", "connected_ms", "producers", "consumers", "topics")
TRANSACTIONS = ("transaction", "state", "open_seconds", "left_seconds", "role", "partitions", "subscriptions",
                "messages", "acknowledgements", "waiting")
_TEXTS = "address", "role", "library", "listener", "transaction", "state"


@pages.at("/console/clients", "clients.html", every_s=4)
async def clients(ask: Asking) -> Values:
    order = order_of(ask.query, CLIENTS, "connected_ms", _TEXTS)
    topic, text = ask.query.get("topic", "").strip(), ask.query.get("match", "").strip().lower()
    table = await ask.get("/ops/v1/clients", match=topic or None, limit=_ASKED, **order.query)
    rows = [row for row in table["rows"] if _has(row, text)]
    command = ["geminga", "clients", *([topic] if topic else []), "--sort", order.sort.replace("_", "-")]
    return {"rows": rows[:_most(ask)], "order": order, "found": len(rows), "total": table["total"],
            "is_whole": not table["more"], "missing": table["owners_missing"], "topic": topic, "match": text,
            "columns": CLIENTS, "is_all": "all" in ask.query, "commands": [shlex.join(command)]}


def _has(row: dict[str, Any], text: str) -> bool:
    return not text or any(text in str(row[key] or "").lower() for key in ("address", "role", "library", "listener"))


def _most(ask: Asking) -> int:
    return _ASKED if "all" in ask.query else _SHOWN


@pages.at("/console/transactions", "transactions.html", every_s=4)
async def transactions(ask: Asking) -> Values:
    order = order_of(ask.query, TRANSACTIONS, "open_seconds", _TEXTS)
    match = ask.query.get("match", "").strip()
    table, stats = await asyncio.gather(
        ask.get("/ops/v1/transactions", match=match or None, limit=_SHOWN, **order.query),
        ask.maybe("/admin/v3/transactions/coordinatorStats"))
    return {"rows": table["rows"], "total": table["total"], "order": order, "match": match, "columns": TRANSACTIONS,
            "missing": table["owners_missing"], "coordinators": len(stats or ()),
            "commands": [shlex.join(["geminga", "transactions", *([match] if match else []), "--sort",
                                     order.sort.replace("_", "-")])]}
