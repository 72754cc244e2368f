"""Changes of topics that are in use and of their subscriptions: terminate, unload, skip, reset, expire; standstills."""
import contextlib
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.layouts import Layout
from geminga.proto.names import TopicName, remote_of
from geminga.storage.admin.questions import (
    Analyze,
    Clear,
    Expire,
    Properties,
    Release,
    Replicated,
    Reset,
    Skip,
    Standstill,
    Subscribe,
    Subscriptions,
    Terminate,
    TopicPlaceFields,
    Trim,
    Truncate,
    Unload,
    Unsubscribe,
    Why,
)
from geminga.storage.admin.table_questions import STATES, GetCursorMap
from geminga.storage.filters.sieve import FILTER
from geminga.storage.ledgers.managed_ledger import EARLIEST, LATEST
from geminga.storage.ledgers.position import Position
from geminga.supervisor.admin.requests import replicator, rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    ANY,
    TOPIC,
    Answer,
    Asking,
    as_properties,
    ask_each,
    ask_holders,
    ask_parts,
    ask_single,
    ask_usable,
    body_of,
    catalogue_of,
    done,
    is_set,
    not_allowed,
    number_of,
    part_of,
    parts_of,
    status,
    subscription_of,
    time_of,
    topic_of,
    usable,
)
from geminga.supervisor.admin.resources import schedules
from geminga.supervisor.admin.resources.clears import clear_of

routes = rights.Routes()
_SUBSCRIPTION = TOPIC + "/subscription/{subscription:[^/]+}"
_POSITIONS = {"earliest": EARLIEST, "latest": LATEST}
_LONG = range(-1, 1 << 63)
# Causes of a partition or segment that is refused, and of one without the subscription.
_UNUSABLE, _LACKING = "unusable files", "no subscription"
_SCHEDULES_MAX = 10           # in one answer
_MAPS_MAX = 32               # partitions in one answer
_SEGMENTS, _SEGMENTS_MIN, _SEGMENTS_MAX = 200, 20, 400      # of all partitions together; of one at least; at most


# -- topics

@routes.post(TOPIC + "/terminate", right=rights.TOPIC)
async def terminate(request: web.Request) -> web.Response:
    """Terminate a topic, and answer with its last message id: nothing can be published any more."""
    if not topic_of(request).is_persistent:
        raise status(406, "Need to provide a persistent topic name")
    position = await ask_single(request, "Termination of a partitioned topic is not allowed", Terminate)
    return web.json_response(_last_id(position, topic_of(request)))


@routes.post(TOPIC + "/terminate/partitions", right=rights.TOPIC)
async def terminate_partitions(request: web.Request) -> web.Response:
    """Terminate each partition of a topic, and answer with their last message ids."""
    if not catalogue_of(request).topics.partition_count(topic_of(request)):      # also one partition
        raise not_allowed(
            request,
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use "
            "terminate commands",
        )
    parts = parts_of(request)
    positions = await ask_each(request, parts, Terminate)
    return web.json_response({str(number): _last_id(position, part)
                              for number, (position, part) in enumerate(zip(positions, parts, strict=True))})


def _last_id(position: Position, topic: TopicName) -> dict[str, int]:
    """Return the id of a topic's last message as Pulsar's REST writes it."""
    return {"ledgerId": position[0], "entryId": position[1], "partitionIndex": topic.partition, "batchIndex": -1,
            "batchSize": 0}


@routes.put(TOPIC + "/unload", right=rights.TOPIC)
async def unload(request: web.Request) -> web.Response:
    """Unload a topic: its clients connect again."""
    await ask_parts(request, Unload)
    return done()


@routes.delete(TOPIC + "/truncate", right=rights.TENANT)
async def truncate(request: web.Request) -> web.Response:
    """Delete all messages of a topic."""
    if not topic_of(request).is_persistent:
        raise status(412, "unsupport truncate")      # as Pulsar says it
    await ask_parts(request, Truncate)
    return done()


@routes.post(TOPIC + "/trim", right=rights.TOPIC)
async def trim(request: web.Request) -> web.Response:
    """Delete a topic's ledgers that nobody needs."""
    await ask_parts(request, Trim)
    return web.Response(status=200)


@routes.get(TOPIC + "/offload", right=rights.TOPIC)
async def offloading(request: web.Request) -> web.Response:
    """Answer that nothing is being offloaded."""
    nowhere = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    await ask_single(request, "", Subscriptions)
    return web.json_response({"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": nowhere})


@routes.put(TOPIC + "/offload", right=rights.TOPIC)
async def offload(request: web.Request) -> web.Response:
    """Refuse to offload: everything is kept on this host."""
    await ask_single(request, "", Subscriptions)
    raise not_allowed(request, "There is nowhere to offload to: everything is kept on this host")


# -- subscriptions: made, listed, deleted

@routes.get(TOPIC + "/subscriptions", right=rights.CONSUMES)
async def subscriptions(request: web.Request) -> web.Response:
    """Answer with the names of a topic's subscriptions, of partitions whose files can be used."""
    answers: list[list[str] | Refusal] = await ask_usable(request, parts_of(request), Subscriptions)
    return web.json_response(sorted({name for names in usable(answers) for name in names}))


@routes.put(_SUBSCRIPTION, right=rights.CONSUMES)
async def create(request: web.Request) -> web.Response:
    """Create a subscription at the topic's end, or at the message id in the body.

    If one partition refuses it, it is created on none. A topic that does not exist is created if topics may be created
    automatically.
    """
    topic, body = topic_of(request), await body_of(request)
    where: TopicPlaceFields = position_of(body) if body is not None else {"position": LATEST}
    properties = as_properties(body.get("properties")) if isinstance(body, dict) else {}
    if not topic.is_persistent:
        raise web.HTTPBadRequest(text="Create subscription on non-persistent topic can only be done through client")
    parts = parts_of(request)
    name = subscription_of(request)
    _refuse_filter_of_part(request, topic, None, properties)
    question = partial(Subscribe, subscription=name, may_create=True, properties=properties,
                       replicated=is_set(request, "replicated"), **where)
    try:
        if len(parts) > 1:
            await ask_each(request, parts, partial(question, looks=True))
        made = await ask_each(request, parts, question)
    except Refusal as refusal:
        if refusal.code == api.TopicNotFound and catalogue_of(request).namespaces.exists(topic.namespace):
            raise status(412, "Topic does not exist and cannot be auto-created") from None
        if refusal.code != api.NotAllowedError or FILTER in properties:
            raise
        raise web.HTTPConflict(text=refusal.message) from None      # one subscription or topic too many, as in Pulsar
    if not any(made):
        raise web.HTTPConflict(text="Subscription already exists for topic")
    return done()


@routes.delete(_SUBSCRIPTION, right=rights.CONSUMES)
async def delete(request: web.Request) -> web.Response:
    """Delete a subscription from all partitions, or from none if one of them has consumers."""
    question = partial(Unsubscribe, subscription=subscription_of(request), force=is_set(request, "force"))
    if len(parts_of(request)) > 1:
        await _ask_any(request, partial(question, looks=True))
    await _ask_any(request, question)
    return done()


@routes.get(_SUBSCRIPTION + "/properties", right=rights.CONSUMES)
async def properties(request: web.Request) -> web.Response:
    """Answer with a subscription's properties."""
    return web.json_response((await _ask_any(request, partial(Properties, subscription=subscription_of(request))))[0])


@routes.put(_SUBSCRIPTION + "/properties", right=rights.CONSUMES)
async def set_properties(request: web.Request) -> web.Response:
    """Set a subscription's properties, on all partitions or on none if one of them refuses."""
    wanted, about = as_properties(await body_of(request)), partial(Properties, subscription=subscription_of(request))
    _refuse_filter_of_part(request, topic_of(request), (await _ask_any(request, about))[0].get(FILTER), wanted)
    if len(parts_of(request)) > 1:
        await _ask_any(request, partial(about, properties=wanted, looks=True))
    await _ask_any(request, partial(about, properties=wanted))
    return done()


def _refuse_filter_of_part(request: web.Request, topic: TopicName, known: str | None, wanted: dict[str, str]) -> None:
    """Refuse to give one partition of a topic another filter than the others have.  Raises Refusal.

    known: the filter in force; None: none.
    """
    is_part = topic.partition >= 0 and topic in catalogue_of(request).topics.parts(topic.base)
    if is_part and wanted.get(FILTER) != known:
        raise Refusal(api.NotAllowedError, f"{FILTER}: all partitions have the same filter: name {topic.base}")


@routes.get(_SUBSCRIPTION + "/replicatedSubscriptionStatus", right=rights.CONSUMES)
async def replicated(request: web.Request) -> web.Response:
    """Answer for each partition whether the subscription is replicated."""
    if not topic_of(request).is_persistent:
        raise not_allowed(request, "Cannot get replicated subscriptions on non-persistent topics")
    marks = await _ask_any(request, partial(Replicated, subscription=subscription_of(request)))
    return web.json_response({name: value for mark in marks for name, value in mark.items()})


@routes.post(_SUBSCRIPTION + "/replicatedSubscriptionStatus", right=rights.CONSUMES)
async def set_replicated(request: web.Request) -> web.Response:
    """Set whether a subscription is marked as replicated."""
    if not topic_of(request).is_persistent:
        raise not_allowed(request, "Cannot enable/disable replicated subscriptions on non-persistent topics")
    if not isinstance(wanted := await body_of(request), bool):
        raise web.HTTPBadRequest(text="The body is true or false")
    await _ask_any(request, partial(Replicated, subscription=subscription_of(request), replicated=wanted))
    return done()


async def _ask_any(request: web.Request, about: Asking[Answer], parts: list[TopicName] | None = None) -> list[Answer]:
    """Ask the owners of partitions about a subscription; return the answers for partitions that have it.

    parts: the partitions, all by default. Raises Refusal when no partition has it.
    """
    topics = parts_of(request) if parts is None else parts
    answers = await ask_holders(request, topics, about)
    if not answers and topics:
        name = subscription_of(request)
        raise Refusal(api.SubscriptionNotFound, f"Subscription {name} not found for topic {topics[-1]}")
    return answers


# -- subscriptions: where they are

def position_of(body: Any) -> TopicPlaceFields:
    """Return the position that a body names: a message id as clients write it, "earliest" or "latest".  Raises 400."""
    if isinstance(body, str) and body in _POSITIONS:
        return {"position": _POSITIONS[body], "behind": False}
    if isinstance(body, dict):
        with contextlib.suppress(ValueError):
            position = _integer(body.get("ledgerId", 0)), _integer(body.get("entryId", 0))
            # the name in Java's client, and the name in Pulsar's documentation
            is_excluded = body.get("excluded", body.get("isExcluded"))
            if is_excluded in (None, False, True):
                return {"position": position, "behind": bool(is_excluded),
                        "batch_index": _integer(body.get("batchIndex", -1))}
    raise web.HTTPBadRequest(
        text='The body is a message id: an object with ledgerId and entryId, "earliest" or "latest"')


def _integer(value: Any) -> int:
    """Return a number in a message id as int.  Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) not in _LONG:
        raise ValueError
    return int(value)


@routes.post(_SUBSCRIPTION + "/skip_all", right=rights.CONSUMES)
async def skip_all(request: web.Request) -> web.Response:
    """Acknowledge everything for a subscription."""
    with clear_of(request) as asked_ms:
        await _ask_any(request, partial(Clear, subscription=subscription_of(request), asked_ms=asked_ms))
    return done()


@routes.post(_SUBSCRIPTION + "/skip/{entries}", right=rights.CONSUMES)
async def skip(request: web.Request) -> web.Response:
    """Acknowledge the next messages of a subscription, as many as the path says."""
    entries = number_of(request, part_of(request, "entries"), "The number of messages")
    question = partial(Skip, subscription=subscription_of(request), entries=entries)
    await ask_single(request, "Skip messages on a partitioned topic is not allowed", question)
    return done()


@routes.post(_SUBSCRIPTION + "/resetcursor/{time_ms}", right=rights.CONSUMES)
async def reset_to_time(request: web.Request) -> web.Response:
    """Move a subscription to the first message of a time."""
    time_ms = time_of(request, part_of(request, "time_ms"))
    with clear_of(request) as asked_ms:
        await _ask_any(request, partial(Reset, subscription=subscription_of(request), time_ms=time_ms,
                                        asked_ms=asked_ms))
    return done()


@routes.post(_SUBSCRIPTION + "/resetcursor", right=rights.CONSUMES)
async def reset_to_message(request: web.Request) -> web.Response:
    """Move a subscription to a message."""
    question = partial(Reset, subscription=subscription_of(request), **position_of(await body_of(request)))
    await ask_single(request, "Reset-cursor at position is not allowed for partitioned-topic", question)
    return done()


@routes.post(_SUBSCRIPTION + "/expireMessages/{seconds}", right=rights.CONSUMES)
async def expire(request: web.Request) -> web.Response:
    """Acknowledge messages of a subscription that are older than so many seconds."""
    await _ask_any(request, partial(Expire, subscription=subscription_of(request), seconds=_seconds(request)))
    return done()


@routes.post(_SUBSCRIPTION + "/expireMessages", right=rights.CONSUMES)
async def expire_to_message(request: web.Request) -> web.Response:
    """Acknowledge messages of a subscription up to one."""
    question = partial(Expire, subscription=subscription_of(request), **position_of(await body_of(request)))
    if await ask_single(request, "Expire message at position is not supported for partitioned-topic", question) is None:
        raise web.HTTPConflict(
            text="Expire message by position is issued on a subscription due to invalid message position")
    return done()


@routes.post(TOPIC + "/all_subscription/expireMessages/{seconds}", right=rights.CONSUMES)
async def expire_all(request: web.Request) -> web.Response:
    """Acknowledge messages of all subscriptions that are older than so many seconds."""
    await ask_parts(request, partial(Expire, seconds=_seconds(request)))
    return done()


def _seconds(request: web.Request) -> int:
    return number_of(request, part_of(request, "seconds"), "The number of seconds", (1 << 31) - 1)


@routes.post(_SUBSCRIPTION + "/analyzeBacklog", right=rights.CONSUMES)
async def analyze(request: web.Request) -> web.Response:
    """Count what a subscription has left."""
    body = await body_of(request)
    where: TopicPlaceFields = position_of(body) if body is not None else {}
    refused = "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic partition"
    backlog = await ask_single(request, refused, partial(Analyze, subscription=subscription_of(request), **where))
    first, last = ("{}:{}".format(*position) if position else None for position in (backlog.first, backlog.last))
    none = {f"filter{what}{unit}": 0 for unit in ("Entries", "Messages") for what in ("Rejected", "Rescheduled")}
    return web.json_response({"entries": backlog.entries, "messages": backlog.messages, "markerMessages": 0,
                              "filterAcceptedEntries": backlog.entries,
                              "filterAcceptedMessages": backlog.messages, **none, "aborted": False,
                              "firstMessageId": first, "lastMessageId": last})


# -- our own

@routes.post("/ops/v1/release" + ANY + "/{subscription:[^/]+}", right=rights.CONSUMES)
async def release(request: web.Request) -> web.Response:
    """Redeliver the parked entries of a subscription's quarantine."""
    released = await ask_parts(request, partial(Release, subscription=subscription_of(request)))
    return web.json_response({"entries": sum(one.entries for one in released)})


@routes.get("/ops/v1/why" + ANY + "/{subscription:[^/]+}", right=rights.LOOKS_UP)
async def why(request: web.Request) -> web.Response:
    """Answer why the consumers of a subscription receive nothing more, for each partition."""
    name = subscription_of(request)
    parts = parts_of(request)
    answers = await ask_usable(request, parts, partial(Why, subscription=name), api.SubscriptionNotFound)
    usable(answers)
    standstills = [asdict(_refused(part, name, one) if isinstance(one, Refusal) else one)
                   for part, one in zip(parts, answers, strict=True)]
    if topic_of(request).is_scalable:
        _blame_parents(catalogue_of(request).scalable_topics.layout(topic_of(request)), standstills)
    if (cluster := remote_of(name)) is not None:
        lanes = await replicator.lanes(request, parts)
        for standstill in standstills:
            lane = lanes.get((standstill["topic"], cluster))
            if lane is None or not lane["error"]:
                continue
            for cause in standstill["causes"]:
                if cause.get("cluster") == cluster:
                    cause["error"] = lane["error"]
    await _add_schedules(request, standstills)
    return web.json_response(standstills)


async def _add_schedules(request: web.Request, standstills: list[dict[str, Any]]) -> None:
    """Add what schedules publish to each partition, those that publish nothing before others."""
    by_name = {one["topic"]: one for one in standstills}
    stored = [one for one in catalogue_of(request).schedules.of(topic_of(request).base) if one.partition in by_name]
    rows = sorted(await schedules.shown(request.app[OWNERS], stored, 1),
                  key=lambda row: (row["waiting"] is None, not row["paused"], row["name"]))
    for row in rows[:_SCHEDULES_MAX]:
        by_name[row["partition"]]["causes"].append({
            "cause": "schedule", "schedule": row["name"], "paused": row["paused"], "waiting": row["waiting"],
            "next": next(iter(row["next"]), None), "last": row["last"], "dropped": row["dropped"]})


def _refused(part: TopicName, subscription: str, refusal: Refusal) -> Standstill:
    """Return the standstill of a partition or segment that lacks the subscription, or has files that cannot be used."""
    is_there = refusal.code != api.SubscriptionNotFound
    cause: dict[str, object] = {"cause": _UNUSABLE, "error": refusal.message} if is_there else {"cause": _LACKING}
    return Standstill(str(part), subscription, "None", 0, None, {}, [cause], [], 0, {})


def _blame_parents(layout: Layout | None, standstills: list[dict[str, Any]]) -> None:
    """Tell of segments without a consumer that they wait for others, unless a queue's consumers take them at once."""
    if layout is None or any(one["type"] == "Shared" for one in standstills):
        return
    by_name = {one["topic"]: one for one in standstills}
    holding: dict[int, set[int]] = {}      # segment -> sealed ones before it, and itself, that are not drained
    for segment in layout.segments:        # parents have lower numbers than their children
        one, before = by_name.get(segment.topic), set().union(*(holding.get(each, set()) for each in segment.parents))
        if before and one is not None and one["causes"] == [{"cause": "no consumer"}]:
            one["causes"] = [{"cause": "sealed segments", "segments": sorted(before)}]
        is_left = not segment.is_active and one is not None and (
            one["backlog"] or _UNUSABLE in [cause["cause"] for cause in one["causes"]])
        holding[segment.number] = before | ({segment.number} if is_left else set())


@routes.get("/ops/v1/cursor" + ANY + "/{subscription:[^/]+}", right=rights.LOOKS_UP)
async def cursor(request: web.Request) -> web.Response:
    """Answer with the states of all stored entries for a subscription, in segments, for each of the first partitions.

    The query's `segments` is the number of segments of all partitions together.
    """
    wanted = number_of(request, request.query.get("segments", str(_SEGMENTS)), "segments", _SEGMENTS_MAX)
    parts = parts_of(request)
    chosen = parts[:_MAPS_MAX]
    segments = max(_SEGMENTS_MIN, wanted // len(chosen))
    question = partial(GetCursorMap, subscription=subscription_of(request), segments=segments)
    maps = await _ask_any(request, question, chosen)
    return web.json_response({"states": STATES, "partitions": [asdict(one) for one in maps],
                              "partition_count": len(parts)})
