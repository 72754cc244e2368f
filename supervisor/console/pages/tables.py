"""Tables of many rows: all topics, and all subscriptions.

A table comes in windows of rows. The page has the first window; its script asks for others as somebody scrolls, and for
those in sight again and again. Sorting and choosing is the work of REST.
"""
import shlex
from typing import NamedTuple
from urllib.parse import unquote

from aiohttp import web
from multidict import MultiMapping

from geminga.proto.names import without_partition
from geminga.supervisor.console import rendering
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.ordering import order_of
from geminga.supervisor.console.page import Pages, Values

pages = Pages()
routes = web.RouteTableDef()
WINDOW = 100                 # rows in a window
STATES = "loaded", "not-loaded", "partitioned", "non-persistent"


class Column(NamedTuple):
    """A column of a table: a key of REST's rows, and the filter that makes a text of its value."""

    key: str
    form: str                # filter of templates; "": a name


class Table(NamedTuple):
    """A table of many rows, at /console/NAME and /ops/v1/NAME."""

    name: str
    columns: tuple[Column, ...]
    sort: str                # unless the address names another column
    filters: tuple[str, ...]      # parameters of the address that narrow the table, besides those of its place
    is_ascending: tuple[str, ...] = ("topic", "subscription", "type")      # columns that begin with the first name


TOPICS = Table("topics", (
    Column("topic", ""), Column("rate_in", "rate"), Column("rate_out", "rate"), Column("backlog", "count"),
    Column("oldest_seconds", "length"), Column("storage_bytes", "size"), Column("producers", "count"),
    Column("consumers", "count"), Column("subscriptions", "count")), "topic", ("match", "state"))
SUBSCRIPTIONS = Table("subscriptions", (
    Column("subscription", ""), Column("topic", ""), Column("type", ""), Column("backlog", "count"),
    Column("oldest_seconds", "length"), Column("unacknowledged", "count"), Column("delayed", "count"),
    Column("rate_out", "rate"), Column("acknowledge_rate", "rate"), Column("consumers", "count")), "backlog",
    ("match", "subscription"))
TABLES = {table.name: table for table in (TOPICS, SUBSCRIPTIONS)}


@pages.at("/console/topics", "topics.html")
async def topics(ask: Asking) -> Values:
    return await _page(ask, TOPICS)


@pages.at("/console/subscriptions", "subscriptions.html")
async def subscriptions(ask: Asking) -> Values:
    return await _page(ask, SUBSCRIPTIONS)


@routes.get("/console/rows/{table}")
async def rows(request: web.Request) -> web.Response:
    """Answer with a window of rows as a table's body."""
    table = TABLES.get(request.match_info["table"])
    if table is None:
        raise web.HTTPNotFound(text="There is no such table")
    window = await _window(Asking(request, request.match_info, request.query), table, request.query.get("offset", "0"))
    return web.Response(text=rendering.page("table_rows.html", {"table": window}), content_type="text/html")


async def _page(ask: Asking, table: Table) -> Values:
    """Return the values of the page of a table, with its first window."""
    told, tenant = await _window(ask, table, "0"), ask.query.get("tenant", "")
    tenants = await ask.maybe("/admin/v2/tenants")
    namespaces = await ask.maybe(f"/admin/v2/namespaces/{ask.quoted(tenant)}") if tenant else []
    chosen = {name: ask.query.get(name, "") for name in ("tenant", "namespace", *table.filters)}
    return {"table": told, "addresses": told["order"].addresses, "chosen": chosen, "tenants": tenants,
            "commands": [_command(table, told, ask.query)],
            "namespaces": None if namespaces is None else [name.partition("/")[2] for name in namespaces]}


async def _window(ask: Asking, table: Table, offset: str) -> Values:
    """Return a window of a table: its rows, their number, and the order.  `problem` says why there are none."""
    order = order_of(ask.query, tuple(column.key for column in table.columns), table.sort, table.is_ascending)
    window = {"name": table.name, "columns": table.columns, "sort": order.sort, "is_reverse": order.is_reverse,
            "order": order, "window": WINDOW, "rows": [], "total": 0, "not_loaded": 0, "offset": 0, "problem": "",
            "owners_missing": [], "found": "", "is_ascending": "ascending" in order.directions.values()}
    within, query = _scope(ask.query, table)
    try:
        answer: Values = await ask.get(f"/ops/v1/{table.name}{within}", limit=WINDOW,
                               offset=offset if offset != "0" else None, **order.query, **query)
    except QuestionRefused as refused:      # without the right to see everything, a namespace has to be chosen
        return window | {"problem": refused.text, "is_refused": refused.status in (401, 403)}
    for row in answer["rows"]:
        row["base"] = without_partition(row["topic"])
    return window | answer | {"offset": int(offset), "found": _found(table, answer)}


def _found(table: Table, answer: Values) -> str:
    """Return the sentence that says how many rows there are."""
    sentence = rendering.counted(f"{table.name}.found", answer["total"])
    if answer["not_loaded"]:
        sentence += ", " + rendering.counted(f"{table.name}.found_not_loaded", answer["not_loaded"])
    return sentence


def _scope(query: MultiMapping[str], table: Table) -> tuple[str, dict[str, str]]:
    """Return the place that an address narrows a table to, as a path, and the parameters for REST."""
    tenant, namespace = query.get("tenant", ""), query.get("namespace", "")
    sent = {name: query[name] for name in table.filters if query.get(name)}
    if "subscription" in sent:
        sent["subscription"] = _pattern(sent["subscription"])
    if tenant and namespace:
        if "match" in sent:
            sent["match"] = _pattern(sent["match"])
        return f"/{Asking.quoted(tenant)}/{Asking.quoted(namespace)}", sent
    if tenant:
        sent["match"] = f"{_literal(tenant)}/{_anywhere(sent.get('match', ''))}"
    elif "match" in sent:
        sent["match"] = _anywhere(sent["match"])
    return "", sent


def _pattern(typed: str) -> str:
    """Return what somebody typed as a pattern: wildcards as they are, anything else as a part of the name."""
    typed = typed.strip().partition("://")[2] or typed.strip()
    if "*" in typed or "?" in typed:
        return typed.replace("[", "[[]")
    return f"*{_literal(typed)}*" if typed else "*"


def _anywhere(typed: str) -> str:
    """Return what somebody typed as a pattern of tenant/namespace/topic: without a slash it is about the topic."""
    pattern = _pattern(typed)
    return pattern if "/" in pattern or pattern.startswith("*") else f"*/{pattern}"


def _literal(text: str) -> str:
    """Return a pattern that only this text has."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def _command(table: Table, told: Values, query: MultiMapping[str]) -> str:
    """Return the command that shows the same."""
    within, sent = _scope(query, table)
    place, pattern = unquote(within[1:]), sent.get("match", "")
    if place or (pattern and not query.get("tenant")):
        pattern = f"{place or '*/*'}/{pattern}" if pattern else place
    words = ["geminga", table.name, *([pattern] if pattern else []), "--sort", str(told["sort"]).replace("_", "-")]
    return shlex.join(words + ["--reverse"] * told["is_reverse"])
