"""Changes of topics that are in use and of their subscriptions: terminate, unload, skip, reset, expire; standstills."""
import contextlib
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName, remote_of
from geminga.storage.admin.questions import (
    Analyze,
    Clear,
    Expire,
    PlaceFields,
    Properties,
    Release,
    Replicated,
    Reset,
    Skip,
    Subscribe,
    Subscriptions,
    Terminate,
    Trim,
    Truncate,
    Unload,
    Unsubscribe,
    Why,
)
from geminga.storage.admin.table_questions import STATES, GetCursorMap
from geminga.storage.ledgers.managed_ledger import EARLIEST, LATEST
from geminga.storage.ledgers.position import Position
from geminga.supervisor.admin.requests import replicator
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    PATH,
    TOPIC,
    Answer,
    Asking,
    as_properties,
    ask_each,
    ask_parts,
    ask_single,
    body_of,
    catalogue_of,
    done,
    is_set,
    not_allowed,
    number_of,
    part_of,
    parts_of,
    subscription_of,
    topic_of,
)

routes = web.RouteTableDef()
_SUBSCRIPTION = TOPIC + "/subscription/{subscription:[^/]+}"
_POSITIONS = {"earliest": EARLIEST, "latest": LATEST}
_LONG = range(-1, 1 << 63)
_MAPS_MAX = 32               # partitions in one answer
_SEGMENTS, _SEGMENTS_MIN, _SEGMENTS_MAX = 200, 20, 400      # of all partitions together; of one at least; at most


# -- topics

@routes.post(TOPIC + "/terminate")
async def terminate(request: web.Request) -> web.Response:
    """Terminate a topic, and answer with its last message id: nothing can be published any more."""
    position = await ask_single(request, "Termination of a partitioned topic is not allowed", Terminate)
    return web.json_response(_last_id(position, topic_of(request)))


@routes.post(TOPIC + "/terminate/partitions")
async def terminate_partitions(request: web.Request) -> web.Response:
    """Terminate each partition of a topic, and answer with their last message ids."""
    if catalogue_of(request).topics.partition_count(topic_of(request)) == 0:
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


@routes.put(TOPIC + "/unload")
async def unload(request: web.Request) -> web.Response:
    """Unload a topic: its clients connect again."""
    await ask_parts(request, Unload)
    return done()


@routes.delete(TOPIC + "/truncate")
async def truncate(request: web.Request) -> web.Response:
    """Delete all messages of a topic."""
    await ask_parts(request, Truncate)
    return done()


@routes.post(TOPIC + "/trim")
async def trim(request: web.Request) -> web.Response:
    """Delete a topic's ledgers that nobody needs."""
    await ask_parts(request, Trim)
    return web.Response(status=200)


@routes.get(TOPIC + "/offload")
async def offloading(request: web.Request) -> web.Response:
    """Answer that nothing is being offloaded."""
    nowhere = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    await ask_single(request, "", Subscriptions)
    return web.json_response({"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": nowhere})


@routes.put(TOPIC + "/offload")
async def offload(request: web.Request) -> web.Response:
    """Refuse to offload: everything is kept on this host."""
    await ask_single(request, "", Subscriptions)
    raise not_allowed(request, "There is nowhere to offload to: everything is kept on this host")


# -- subscriptions: made, listed, deleted

@routes.get(TOPIC + "/subscriptions")
async def subscriptions(request: web.Request) -> web.Response:
    """Answer with the names of a topic's subscriptions."""
    return web.json_response(sorted({name for names in await ask_parts(request, Subscriptions) for name in names}))


@routes.put(_SUBSCRIPTION)
async def create(request: web.Request) -> web.Response:
    """Create a subscription at the topic's end, or at the message id in the body.

    A topic that does not exist is created if topics may be created automatically.
    """
    topic, body = topic_of(request), await body_of(request)
    where: PlaceFields = position_of(body) if body is not None else {"position": LATEST}
    properties = as_properties(body.get("properties")) if isinstance(body, dict) else {}
    if not topic.is_persistent:
        raise web.HTTPBadRequest(text="Create subscription on non-persistent topic can only be done through client")
    parts = parts_of(request)
    name = subscription_of(request)
    made = await ask_each(request, parts, partial(
        Subscribe, subscription=name, may_create=True, properties=properties,
        replicated=is_set(request, "replicated"), **where))
    if not any(made):
        raise web.HTTPConflict(text="Subscription already exists for topic")
    return done()


@routes.delete(_SUBSCRIPTION)
async def delete(request: web.Request) -> web.Response:
    """Delete a subscription."""
    await _ask_any(request, partial(Unsubscribe, subscription=subscription_of(request), force=is_set(request, "force")))
    return done()


@routes.get(_SUBSCRIPTION + "/properties")
async def properties(request: web.Request) -> web.Response:
    """Answer with a subscription's properties."""
    return web.json_response((await _ask_any(request, partial(Properties, subscription=subscription_of(request))))[0])


@routes.put(_SUBSCRIPTION + "/properties")
async def set_properties(request: web.Request) -> web.Response:
    """Set a subscription's properties."""
    wanted = as_properties(await body_of(request))
    await _ask_any(request, partial(Properties, subscription=subscription_of(request), properties=wanted))
    return done()


@routes.get(_SUBSCRIPTION + "/replicatedSubscriptionStatus")
async def replicated(request: web.Request) -> web.Response:
    """Answer for each partition whether the subscription is replicated."""
    if not topic_of(request).is_persistent:
        raise not_allowed(request, "Cannot get replicated subscriptions on non-persistent topics")
    marks = await _ask_any(request, partial(Replicated, subscription=subscription_of(request)))
    return web.json_response({name: value for one in marks for name, value in one.items()})


@routes.post(_SUBSCRIPTION + "/replicatedSubscriptionStatus")
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
    answers: list[Answer] = []
    missing: Refusal | None = None
    for topic in parts_of(request) if parts is None else parts:
        try:
            answers.append(await request.app[OWNERS].ask(about(topic)))
        except Refusal as refusal:
            if refusal.code != api.SubscriptionNotFound:
                raise
            missing = refusal
    if not answers and missing:
        raise missing
    return answers


# -- subscriptions: where they are

def position_of(body: Any) -> PlaceFields:
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


@routes.post(_SUBSCRIPTION + "/skip_all")
async def skip_all(request: web.Request) -> web.Response:
    """Acknowledge everything for a subscription."""
    await _ask_any(request, partial(Clear, subscription=subscription_of(request)))
    return done()


@routes.post(_SUBSCRIPTION + "/skip/{entries}")
async def skip(request: web.Request) -> web.Response:
    """Acknowledge the next messages of a subscription, as many as the path says."""
    entries = number_of(request, part_of(request, "entries"), "The number of messages")
    question = partial(Skip, subscription=subscription_of(request), entries=entries)
    await ask_single(request, "Skip messages on a partitioned topic is not allowed", question)
    return done()


@routes.post(_SUBSCRIPTION + "/resetcursor/{time_ms}")
async def reset_to_time(request: web.Request) -> web.Response:
    """Move a subscription to the first message of a time."""
    time_ms = number_of(request, part_of(request, "time_ms"), "The time")
    await _ask_any(request, partial(Reset, subscription=subscription_of(request), time_ms=time_ms))
    return done()


@routes.post(_SUBSCRIPTION + "/resetcursor")
async def reset_to_message(request: web.Request) -> web.Response:
    """Move a subscription to a message."""
    question = partial(Reset, subscription=subscription_of(request), **position_of(await body_of(request)))
    await ask_single(request, "Reset-cursor at position is not allowed for partitioned-topic", question)
    return done()


@routes.post(_SUBSCRIPTION + "/expireMessages/{seconds}")
async def expire(request: web.Request) -> web.Response:
    """Acknowledge messages of a subscription that are older than so many seconds."""
    await _ask_any(request, partial(Expire, subscription=subscription_of(request), seconds=_seconds(request)))
    return done()


@routes.post(_SUBSCRIPTION + "/expireMessages")
async def expire_to_message(request: web.Request) -> web.Response:
    """Acknowledge messages of a subscription up to one."""
    question = partial(Expire, subscription=subscription_of(request), **position_of(await body_of(request)))
    if await ask_single(request, "Expire message at position is not supported for partitioned-topic", question) is None:
        raise web.HTTPConflict(
            text="Expire message by position is issued on a subscription due to invalid message position")
    return done()


@routes.post(TOPIC + "/all_subscription/expireMessages/{seconds}")
async def expire_all(request: web.Request) -> web.Response:
    """Acknowledge messages of all subscriptions that are older than so many seconds."""
    await ask_parts(request, partial(Expire, seconds=_seconds(request)))
    return done()


def _seconds(request: web.Request) -> int:
    return number_of(request, part_of(request, "seconds"), "The number of seconds", (1 << 31) - 1)


@routes.post(_SUBSCRIPTION + "/analyzeBacklog")
async def analyze(request: web.Request) -> web.Response:
    """Count what a subscription has left."""
    body = await body_of(request)
    where: PlaceFields = position_of(body) if body is not None else {}
    refused = "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic partition"
    backlog = await ask_single(request, refused, partial(Analyze, subscription=subscription_of(request), **where))
    first, last = ("{}:{}".format(*position) if position else None for position in (backlog.first, backlog.last))
    none = {f"filter{what}{unit}": 0 for unit in ("Entries", "Messages") for what in ("Rejected", "Rescheduled")}
    return web.json_response({"entries": backlog.entries, "messages": backlog.messages, "markerMessages": 0,
                              "filterAcceptedEntries": backlog.entries,
                              "filterAcceptedMessages": backlog.messages, **none, "aborted": False,
                              "firstMessageId": first, "lastMessageId": last})


# -- our own

@routes.post("/ops/v1/release" + PATH + "/{subscription:[^/]+}")
async def release(request: web.Request) -> web.Response:
    """Redeliver the parked entries of a subscription's quarantine."""
    released = await ask_parts(request, partial(Release, subscription=subscription_of(request)))
    return web.json_response({"entries": sum(one.entries for one in released)})


@routes.get("/ops/v1/why" + PATH + "/{subscription:[^/]+}")
async def why(request: web.Request) -> web.Response:
    """Answer why the consumers of a subscription receive nothing more, for each partition."""
    name = subscription_of(request)
    told = [asdict(one) for one in await ask_parts(request, partial(Why, subscription=name))]
    if (cluster := remote_of(name)) is not None:
        lanes = await replicator.lanes(request, parts_of(request))
        for one in told:
            error = lanes.get((one["topic"], cluster), {}).get("error")
            for cause in one["causes"] if error else ():
                if cause.get("cluster") == cluster:
                    cause["error"] = error
    return web.json_response(told)


@routes.get("/ops/v1/cursor" + PATH + "/{subscription:[^/]+}")
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
