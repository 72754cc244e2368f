"""Tables for people: topics, subscriptions, clients and transactions, sorted and limited here; closing a connection.

Every owner answers with its first rows in the asked order, so a request costs as much as the rows that it shows.
Topics that no owner has open have rows without numbers, behind all others.
"""
import asyncio
import fnmatch
import itertools
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin.questions import Question
from geminga.storage.admin.table_questions import (
    KINDS,
    SEGMENTS,
    ListClients,
    Listing,
    ListSubscriptions,
    ListTopics,
    Scope,
)
from geminga.storage.admin.transactions import ListTransactions
from geminga.supervisor.admin.monitoring import transaction_rows
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS, whole_listing
from geminga.supervisor.admin.requests.request_parts import (
    ANY,
    CONNECTIONS,
    CONTROL,
    PATH,
    catalogue_of,
    done,
    existing_of,
    is_set,
    namespace_of,
    number_of,
    part_of,
)

routes = rights.Routes()
ROWS_MAX = 1_000                  # in one answer
OFFSET_MAX = 100_000              # rows before those of an answer: owners sort and send them, too
LOADED, NOT_LOADED = "loaded", "not-loaded"
STATES = LOADED, NOT_LOADED, *KINDS      # of topics, by which a table may be narrowed
_ROWS = 100                       # unless the request asks for another number
_STORED_MAX = 100_000             # stored subscriptions that are looked at for those of topics that are not loaded
_FULL_ROWS = 300                  # before and in a window, up to which owners are asked once only
_MATCH_MAX, _STARS_MAX = 256, 8   # characters and stars of a pattern: owners try it on every name
_CLOSED_SECONDS, _AGAIN_SECONDS = 5.0, 0.02
_NAMESPACE = "/{tenant}/{namespace}"
# keys sorted from a to z
_TEXTS = "topic", "subscription", "type", "address", "role", "library", "listener", "transaction", "state"
Row = dict[str, Any]
_TOPIC_KEYS = ("topic", "rate_in", "throughput_in", "rate_out", "throughput_out", "backlog", "backlog_bytes",
               "oldest_seconds", "producers", "consumers", "subscriptions", "storage_bytes")
_SUBSCRIPTION_KEYS = ("topic", "subscription", "type", "consumers", "backlog", "backlog_bytes", "oldest_seconds",
                      "unacknowledged", "delayed", "to_redeliver", "rate_out", "throughput_out", "redelivery_rate",
                      "acknowledge_rate", "acknowledged_ms", "consumed_ms")
# Keys whose largest value stands for all segments of a topic.
_LARGEST = "oldest_seconds", "subscriptions", "acknowledged_ms", "consumed_ms"
_SEGMENT = f"{names.SEGMENT}://"
_OPENED = "producers", "consumers", "topics"      # what a connection has open
_CLIENT_KEYS = ("address", "role", "library", "protocol", "listener", "connected_ms", *_OPENED)


@dataclass
class TopicNames:
    """The complete names of all topics, as the catalogue had them at one of its versions."""

    version: int = -1
    names: list[str] = field(default_factory=list)
    scalable: dict[str, str] = field(default_factory=dict)      # segment -> scalable topic
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)      # scalable topic -> active, sealed segments


NAMES = web.AppKey("names", TopicNames)


@dataclass(frozen=True)
class _Asked:
    """The parts of a request for a table."""

    within: str                   # a namespace, or a complete topic name; "": everything
    match: str
    sort: str
    ascending: bool
    most: int                     # rows in the answer, ...
    offset: int                   # ... behind as many others
    state: str                    # of topics: one of STATES; "": all
    legacy: dict[str, str]        # as Scope has it

    @property
    def limits(self) -> dict[str, Any]:
        """Scope, order and number of rows, as questions to owners take them."""
        return {**self.scope, "sort": self.sort, "ascending": self.ascending, "most": self.offset + self.most}

    @property
    def scope(self) -> dict[str, Any]:
        """The topics that are asked about, as Scope takes them."""
        return {"within": self.within, "match": self.match, "kind": self.state if self.is_of_kind else "",
                "legacy": self.legacy}

    @property
    def is_of_kind(self) -> bool:
        return self.state in KINDS

    def part(self, rows: Iterable[Row]) -> list[Row]:
        """Return the asked rows in the asked order: lists by their length, and rows without a value last."""
        with_value = [row for row in rows if row[self.sort] is not None]
        unknown = [row for row in rows if row[self.sort] is None]
        with_value.sort(key=lambda row: len(row[self.sort]) if isinstance(row[self.sort], list) else row[self.sort],
                   reverse=not self.ascending)
        return (with_value + unknown)[self.places]

    @property
    def places(self) -> slice:
        """The places of the asked rows among all rows."""
        return slice(self.offset, self.offset + self.most)


def _asked(request: web.Request, keys: tuple[str, ...], sort: str) -> _Asked:
    """Return what a request asks for.  Raises 400, 404, Refusal."""
    within = ""
    if "topic" in request.match_info:
        within = str(existing_of(request))
    elif "namespace" in request.match_info:
        within = namespace_of(request)
    sort, match = request.query.get("sort", sort), request.query.get("match", "")
    if sort not in keys:
        raise web.HTTPBadRequest(text=f"sort is one of {', '.join(keys)}")
    _check_pattern("match", match)
    most = number_of(request, request.query.get("limit", str(_ROWS)), "limit", ROWS_MAX)
    offset = number_of(request, request.query.get("offset", "0"), "offset", OFFSET_MAX)
    _names(request)
    legacy = {name: topic for name, topic in request.app[NAMES].scalable.items() if not name.startswith(_SEGMENT)}
    return _Asked(within, match, sort, (sort in _TEXTS) != is_set(request, "reverse"), most, offset, "", legacy)


def _check_pattern(name: str, pattern: str) -> None:
    if len(pattern) > _MATCH_MAX or pattern.count("*") > _STARS_MAX:
        raise web.HTTPBadRequest(text=f"{name} has at most {_MATCH_MAX} characters, and {_STARS_MAX} stars")


async def _ask(request: web.Request, question: Question[Listing]) -> tuple[list[Listing], list[int]]:
    """Ask all owners; return the answers, and the owners that do not answer."""
    owners = request.app[OWNERS]

    async def ask(index: int) -> Listing | None:
        try:
            return await whole_listing(owners, index, question)
        except Refusal as refusal:
            if refusal.code != api.ServiceNotReady:
                raise
            return None

    answers = await asyncio.gather(*map(ask, range(owners.count)))
    return ([answer for answer in answers if answer is not None], [at for at, one in enumerate(answers) if one is None])


def _answer(asked: _Asked, shown: list[Row], total: int, missing: list[int], **more: Any) -> web.Response:
    return web.json_response({
        "rows": shown, "total": total, "more": total > asked.offset + len(shown), "at_ms": time.time_ns() // 10**6,
        "owners_missing": missing, **more})


def _rows(listings: Iterable[Listing]) -> list[Row]:
    rows: list[Any] = [row for listing in listings for row in listing.rows]
    return rows


# -- topics and subscriptions

@routes.get("/ops/v1/topics")
@routes.get("/ops/v1/topics" + _NAMESPACE, right=rights.LISTS)
@routes.get("/ops/v1/topics" + ANY, right=rights.LOOKS_UP)
async def topics(request: web.Request) -> web.Response:
    """Answer with a row for each topic and partition, loaded or not; segments have rows if their topic is named."""
    asked = _asked(request, _TOPIC_KEYS, "rate_in")
    if (state := request.query.get("state", "")) not in ("", *STATES):
        raise web.HTTPBadRequest(text=f"state is one of {', '.join(STATES)}")
    asked = replace(asked, state=state)
    has_segments = asked.within.startswith(f"{names.SCALABLE}://")
    scalable, rows = ([], []) if has_segments else await _scalable(request, asked)
    with_segments = has_segments or not request.app[NAMES].scalable      # nothing is left out where there are none
    is_inside = Scope(**asked.scope, segments=with_segments).test()
    known = [] if state == LOADED else sorted([*filter(is_inside, _names(request)), *scalable],
                                              reverse=asked.sort == "topic" and not asked.ascending)
    question, whole = ListTopics(**asked.limits, segments=with_segments), Listing(0, len(rows), list(rows))
    if asked.sort == "topic" and not state:      # names are known here, so owners make the rows of one window only
        listings, missing = await _ask(request, replace(question, among=known[asked.places]))
        listings.append(whole)
        shown = _as_named(known[asked.places], listings)
        loaded = sum(listing.total for listing in listings)
    else:
        shown, loaded, missing = await _sorted(request, asked, question, known, whole)
    not_loaded = max(0, len(known) - loaded) if known else 0
    total = not_loaded if state == NOT_LOADED else loaded + not_loaded
    counts = request.app[NAMES].counts
    for row in shown:
        row["segments"], row["sealed_segments"] = counts.get(row["topic"], (None, None))
    return _answer(asked, shown, total, missing, not_loaded=not_loaded)


async def _sorted(request: web.Request, asked: _Asked, question: ListTopics, names: list[str],
                  whole: Listing) -> tuple[list[Row], int, list[int]]:
    """Return the asked rows, the number of loaded topics, and the owners that do not answer.

    names: of all topics; those that are not loaded stand behind all others. An owner may have most of the rows before a
    window, or few of them, so it sends them all; but far behind the first ones it sends bare rows, and owners are asked
    again for the rows of the window.  whole: rows of scalable topics.
    """
    if asked.state == NOT_LOADED:      # owners say which topics they have, so that these are left out
        question = replace(question, sort="topic", most=OFFSET_MAX, is_bare=True)
    elif asked.places.stop > _FULL_ROWS:
        question = replace(question, is_bare=True)
    listings, missing = await _ask(request, question)
    listings.append(whole)
    rows, loaded = _rows(listings), sum(listing.total for listing in listings)
    shown, before = ([], 0) if asked.state == NOT_LOADED else (asked.part(rows), loaded)
    if question.is_bare and shown:
        chosen: list[str] = [row["topic"] for row in shown]
        full, _ = await _ask(request, replace(question, is_bare=False, among=chosen))
        shown = _as_named(chosen, [*full, whole])
    first, end = (max(0, place - before) for place in (asked.places.start, asked.places.stop))
    if end:      # all rows of loaded topics are here, and there is room behind them
        loaded_names = {row["topic"] for row in rows}
        shown += map(_empty_row, [name for name in names if name not in loaded_names][first:end])
    return shown, loaded, missing


def _as_named(names: list[str], listings: Iterable[Listing]) -> list[Row]:
    """Return the rows of topics in the order of their names; those that are not loaded have empty ones."""
    by_name = {row["topic"]: row for row in _rows(listings)}
    return [by_name.get(name) or _empty_row(name) for name in names]


def _names(request: web.Request) -> list[str]:
    """Return the names of all topics and partitions, which are read again when topics were created or deleted."""
    catalogue, kept = catalogue_of(request), request.app[NAMES]
    if kept.version != (version := catalogue.topics.version()):
        kept.version, kept.names = version, catalogue.topics.complete_names()
        parts = [*(name for name in kept.names if name.startswith(_SEGMENT)), *catalogue.topics.all_legacy()]
        kept.scalable = {name: str(names.parse(name).base.scalable) for name in parts}
        layouts = catalogue.scalable_topics.layouts() if kept.scalable else []
        kept.counts = {str(topic): (active := len(layout.active), len(layout.segments) - active)
                       for topic, layout in layouts}
    return kept.names


async def _scalable(request: web.Request, asked: _Asked) -> tuple[list[str], list[Row]]:
    """Return the names of scalable topics in the scope, and a row for each that has a loaded segment.

    Segments of a scalable topic have rows only if the topic itself is asked about.
    """
    _names(request)
    is_inside, topic_of = Scope(**asked.scope).test(), request.app[NAMES].scalable
    segments = [segment for segment, topic in topic_of.items() if is_inside(topic)] if not asked.is_of_kind else []
    if not segments:
        return [], []
    listings, _ = await _ask(request, ListTopics(
        within=asked.within, sort="topic", ascending=True, most=OFFSET_MAX, among=segments))
    rows: dict[str, list[Row]] = {}
    for row in _rows(listings):
        rows.setdefault(topic_of[row["topic"]], []).append(row)
    return list(dict.fromkeys(map(topic_of.__getitem__, segments))), [
        {"topic": topic} | {key: _together(key, its) for key in _TOPIC_KEYS[1:]} for topic, its in rows.items()]


def _together(key: str, rows: list[Row]) -> Any:
    """Return the value of a scalable topic in one column, of its segments' rows: their sum, or the largest one."""
    values = [row[key] for row in rows if row[key] is not None]
    return None if not values else (max if key in _LARGEST else sum)(values)


def _empty_row(name: str) -> Row:
    """Return the row of a topic that is not loaded."""
    return dict.fromkeys(_TOPIC_KEYS) | {"topic": name}


@routes.get("/ops/v1/subscriptions")
@routes.get("/ops/v1/subscriptions" + _NAMESPACE, right=rights.LISTS)
@routes.get("/ops/v1/subscriptions" + ANY, right=rights.LOOKS_UP)
async def subscriptions(request: web.Request) -> web.Response:
    """Answer with a row for each subscription; those of topics that are not loaded have rows without numbers.

    Subscriptions of scalable topics have one for each segment if their topic is named.
    """
    asked, named = _asked(request, _SUBSCRIPTION_KEYS, "backlog"), request.query.get("subscription", "")
    _check_pattern("subscription", named)
    has_segments = asked.within.startswith(f"{names.SCALABLE}://")
    listings, missing = await _ask(request, ListSubscriptions(**asked.limits, named=named, segments=has_segments))
    loaded = sum(listing.total for listing in listings)
    closed = [] if missing else _of_closed_topics(      # which topics a missing owner has open is not known
        request, asked, named, {number for one in listings for number in one.open})
    rows = _rows(listings) + [dict.fromkeys(_SUBSCRIPTION_KEYS) | {
        "topic": topic, "subscription": name, "is_durable": True} for topic, name in closed]
    if not has_segments:
        whole = await _whole_subscriptions(request, asked, named)
        rows, loaded = rows + whole, loaded + len(whole)
    return _answer(asked, asked.part(rows), loaded + len(closed), missing, not_loaded=len(closed))


async def _whole_subscriptions(request: web.Request, asked: _Asked, named: str) -> list[Row]:
    """Return a row for each subscription of a scalable topic in the scope, without numbers if no segment is loaded."""
    _names(request)
    topic_of, is_inside = request.app[NAMES].scalable, Scope(**asked.scope).test()
    if not topic_of:
        return []
    listings, _ = await _ask(request, ListSubscriptions(
        within=asked.within, kind=SEGMENTS, legacy=asked.legacy, named=named, sort="topic", ascending=True,
        most=OFFSET_MAX))
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in _rows(listings):
        topic = topic_of.get(row["topic"])      # None: the segment has just been deleted
        if topic is not None and is_inside(topic):
            rows.setdefault((topic, row["subscription"]), []).append(row)
    is_named = re.compile(fnmatch.translate(named or "*")).match
    for _, segment, name in catalogue_of(request).subscriptions.below(_SEGMENT, _STORED_MAX):
        topic = topic_of.get(segment)
        if topic is not None and is_inside(topic) and is_named(name):
            rows.setdefault((topic, name), [])
    return [{key: _together(key, its) for key in _SUBSCRIPTION_KEYS[3:]} | {
        "topic": topic, "subscription": name, "type": next((one["type"] for one in its if one["type"]), None),
        "is_durable": not its or any(one["is_durable"] for one in its)} for (topic, name), its in rows.items()]


def _of_closed_topics(request: web.Request, asked: _Asked, named: str, opened: set[int]) -> list[tuple[str, str]]:
    """Return (topic, subscription) of the durable subscriptions in the scope whose partitions are not open.

    opened: ids of the open partitions in the scope.
    """
    prefix = asked.within if "://" in asked.within else f"persistent://{asked.within}/" if asked.within else ""
    if has_segments := prefix.startswith(f"{names.SCALABLE}://"):
        prefix = f"{names.SEGMENT}{prefix.removeprefix(names.SCALABLE)}/"
    is_inside = Scope(**asked.scope, segments=has_segments).test()
    is_named = re.compile(fnmatch.translate(named or "*")).match
    return [(topic, name) for partition_id, topic, name
            in catalogue_of(request).subscriptions.below(prefix, _STORED_MAX)
            if partition_id not in opened and is_inside(topic) and is_named(name)]


# -- clients

@routes.get("/ops/v1/clients")
@routes.get("/ops/v1/clients" + _NAMESPACE, right=rights.LISTS)
@routes.get("/ops/v1/clients" + ANY, right=rights.LOOKS_UP)
async def clients(request: web.Request) -> web.Response:
    """Answer with a row for each connection; in a scope, for each with producers or consumers there."""
    asked = _asked(request, _CLIENT_KEYS, "connected_ms")
    rows, left_out, missing = await _connections(request, asked)
    return _answer(asked, asked.part(rows), len(rows) + left_out, missing)


async def _connections(request: web.Request, asked: _Asked) -> tuple[list[Row], int, list[int]]:
    """Return rows of connections in the scope, how many more there are, and the owners that do not answer.

    Workers' tables tell which connections there are, owners what these have open.  A client may use several owners:
    their counts of its producers, consumers and topics are added.
    """
    listings, missing = await _ask(request, ListClients(within=asked.within, match=asked.match))
    used: dict[tuple[int, int], Row] = {}
    for row in _rows(listings):
        before = used.setdefault(tuple(row["connection"]), row)
        if before is not row:
            for key in _OPENED:
                before[key] += row[key]
    is_narrow = bool(asked.within or asked.match)
    tables = [table.read() for table in request.app[CONNECTIONS]]
    rows: list[Row] = []
    nothing: Row = dict.fromkeys(_OPENED, 0)
    for one in itertools.chain.from_iterable(connections for connections, _ in tables):
        place = one.worker, one.number
        if place in used or not is_narrow:
            rows.append(used.pop(place, nothing) | {
                "connection": [one.worker, one.number], "address": one.address, "role": one.role or None,
                "library": one.library or None, "protocol": one.protocol, "listener": one.listener,
                "connected_ms": one.connected_ms})
    left_out = sum(beyond for _, beyond in tables)
    if left_out:      # what owners know of connections without a row; else these connections have just ended
        rows += [{**row, "listener": None} for row in used.values()]
        left_out = 0 if is_narrow else max(0, left_out - len(used))
    return rows, left_out, missing


# -- transactions

@routes.get("/ops/v1/transactions")
@routes.get("/ops/v1/transactions" + _NAMESPACE)
@routes.get("/ops/v1/transactions" + PATH)
async def transactions(request: web.Request) -> web.Response:
    """Answer with a row for each transaction that has not ended; in a scope, for each that uses a topic there."""
    asked = _asked(request, transaction_rows.KEYS, "open_seconds")
    question = ListTransactions(within=asked.within, match=asked.match)
    rows, total, missing = await transaction_rows.rows_of(request.app[OWNERS], catalogue_of(request), question)
    return _answer(asked, asked.part(rows), total, missing)


# -- closing a connection

@routes.delete("/ops/v1/clients/{address}")
async def close(request: web.Request) -> web.Response:
    """Close the connection from an address, host:port.  Its client connects again by itself."""
    address = part_of(request, "address")
    if not _is_connected(request, address) and not any(table.left_out for table in request.app[CONNECTIONS]):
        raise web.HTTPNotFound(text=f"There is no connection from {address}")
    request.app[CONTROL].send(tell={"close": address})
    try:
        async with asyncio.timeout(_CLOSED_SECONDS):
            while _is_connected(request, address):
                await asyncio.sleep(_AGAIN_SECONDS)
    except TimeoutError:
        raise Refusal(api.ServiceNotReady, "The connection has not ended yet; try again") from None
    return done()


def _is_connected(request: web.Request, address: str) -> bool:
    return any(table.has(address) for table in request.app[CONNECTIONS])
