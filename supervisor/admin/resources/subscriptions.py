"""What is done to topics that are in use, and to their subscriptions: terminate, unload, skip, reset, expire; and why one stands still."""
import contextlib
from typing import Any

from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.ledgers.managed_ledger import EARLIEST, LATEST
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    PATH,
    TOPIC,
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
    topic_of,
)

routes = web.RouteTableDef()
_SUBSCRIPTION = TOPIC + "/subscription/{subscription:[^/]+}"
_POSITIONS = {"earliest": list(EARLIEST), "latest": list(LATEST)}
_LONG = range(-1, 1 << 63)


# -- topics

@routes.post(TOPIC + "/terminate")
async def terminate(request: web.Request) -> web.Response:
    found = await ask_single(request, "Termination of a partitioned topic is not allowed", "terminate")
    return web.json_response(found | {"batchIndex": -1, "batchSize": 0})


@routes.post(TOPIC + "/terminate/partitions")
async def terminate_partitions(request: web.Request) -> web.Response:
    if catalogue_of(request).topics.partition_count(topic_of(request)) == 0:
        raise not_allowed(request, "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use "
                                   "terminate commands")
    found = await ask_parts(request, "terminate")
    return web.json_response({str(number): answer | {"batchIndex": -1, "batchSize": 0} for number, answer in enumerate(found)})


@routes.put(TOPIC + "/unload")
async def unload(request: web.Request) -> web.Response:
    await ask_parts(request, "unload")
    return done()


@routes.delete(TOPIC + "/truncate")
async def truncate(request: web.Request) -> web.Response:
    await ask_parts(request, "truncate")
    return done()


@routes.post(TOPIC + "/trim")
async def trim(request: web.Request) -> web.Response:
    await ask_parts(request, "trim")
    return web.Response(status=200)


@routes.get(TOPIC + "/offload")
async def offloading(request: web.Request) -> web.Response:
    nowhere = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    await ask_single(request, "", "subscriptions")
    return web.json_response({"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": nowhere})


@routes.put(TOPIC + "/offload")
async def offload(request: web.Request) -> web.Response:
    await ask_single(request, "", "subscriptions")
    raise not_allowed(request, "There is nowhere to offload to: everything is kept on this host")


# -- subscriptions: made, listed, deleted

@routes.get(TOPIC + "/subscriptions")
async def subscriptions(request: web.Request) -> web.Response:
    return web.json_response(sorted({name for found in await ask_parts(request, "subscriptions") for name in found}))


@routes.put(_SUBSCRIPTION)
async def create(request: web.Request) -> web.Response:
    """At the end, or where the body says.  A topic that is not there is made, when such topics may be."""
    topic, body = topic_of(request), await body_of(request)
    where = position_of(body) if body is not None else {"position": list(LATEST)}
    properties = as_properties(body.get("properties")) if isinstance(body, dict) else {}
    if not topic.is_persistent:
        raise web.HTTPBadRequest(text="Create subscription on non-persistent topic can only be done through client")
    parts = parts_of(request)
    name = part_of(request, "subscription")
    made = await ask_each(request, parts, "subscribe", subscription=name, may_create=True, properties=properties,
                          replicated=is_set(request, "replicated"), **where)
    if not any(made):
        raise web.HTTPConflict(text="Subscription already exists for topic")
    return done()


@routes.delete(_SUBSCRIPTION)
async def delete(request: web.Request) -> web.Response:
    await _ask_any(request, "unsubscribe", force=is_set(request, "force"))
    return done()


@routes.get(_SUBSCRIPTION + "/properties")
async def properties(request: web.Request) -> web.Response:
    return web.json_response((await _ask_any(request, "properties"))[0])


@routes.put(_SUBSCRIPTION + "/properties")
async def set_properties(request: web.Request) -> web.Response:
    await _ask_any(request, "properties", properties=as_properties(await body_of(request)))
    return done()


@routes.get(_SUBSCRIPTION + "/replicatedSubscriptionStatus")
async def replicated(request: web.Request) -> web.Response:
    """Answer for each partition whether the subscription is replicated."""
    if not topic_of(request).is_persistent:
        raise not_allowed(request, "Cannot get replicated subscriptions on non-persistent topics")
    found = await _ask_any(request, "replicated")
    return web.json_response({name: value for one in found for name, value in one.items()})


@routes.post(_SUBSCRIPTION + "/replicatedSubscriptionStatus")
async def set_replicated(request: web.Request) -> web.Response:
    """Kept and shown; there is no other cluster."""
    if not topic_of(request).is_persistent:
        raise not_allowed(request, "Cannot enable/disable replicated subscriptions on non-persistent topics")
    if not isinstance(wanted := await body_of(request), bool):
        raise web.HTTPBadRequest(text="The body is true or false")
    await _ask_any(request, "replicated", replicated=wanted)
    return done()


async def _ask_any(request: web.Request, question: str, **arguments) -> list:
    """Ask the owners of all partitions, and return the answers of those with the subscription.

    Raises Refusal when no partition has it.
    """
    found, name, missing = [], part_of(request, "subscription"), None
    for topic in parts_of(request):
        try:
            found.append(await request.app[OWNERS].ask(question, topic, subscription=name, **arguments))
        except Refusal as refusal:
            if refusal.code != api.SubscriptionNotFound:
                raise
            missing = refusal
    if not found and missing:
        raise missing
    return found


# -- subscriptions: where they are

def position_of(body: Any) -> dict[str, Any]:
    """Of a message id as clients write it, or earliest, or latest.  Raises 400."""
    if isinstance(body, str) and body in _POSITIONS:
        return {"position": _POSITIONS[body], "behind": False}
    if isinstance(body, dict):
        with contextlib.suppress(ValueError):
            position = [_integer(body.get(name, 0)) for name in ("ledgerId", "entryId")]
            is_excluded = body.get("excluded", body.get("isExcluded"))      # as Java's admin writes it, and as Pulsar's pages have it
            if is_excluded in (None, False, True):
                return {"position": position, "behind": bool(is_excluded), "batch_index": _integer(body.get("batchIndex", -1))}
    raise web.HTTPBadRequest(text='The body is a message id: an object with ledgerId and entryId, "earliest" or "latest"')


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) not in _LONG:
        raise ValueError
    return int(value)


@routes.post(_SUBSCRIPTION + "/skip_all")
async def skip_all(request: web.Request) -> web.Response:
    await _ask_any(request, "clear")
    return done()


@routes.post(_SUBSCRIPTION + "/skip/{entries}")
async def skip(request: web.Request) -> web.Response:
    entries = number_of(request, part_of(request, "entries"), "The number of messages")
    await ask_single(request, "Skip messages on a partitioned topic is not allowed", "skip", subscription=part_of(request, "subscription"),
                     entries=entries)
    return done()


@routes.post(_SUBSCRIPTION + "/resetcursor/{time_ms}")
async def reset_to_time(request: web.Request) -> web.Response:
    await _ask_any(request, "reset", time_ms=number_of(request, part_of(request, "time_ms"), "The time"))
    return done()


@routes.post(_SUBSCRIPTION + "/resetcursor")
async def reset_to_message(request: web.Request) -> web.Response:
    await _ask_at(request, "Reset-cursor at position is not allowed for partitioned-topic", "reset")
    return done()


@routes.post(_SUBSCRIPTION + "/expireMessages/{seconds}")
async def expire(request: web.Request) -> web.Response:
    await _ask_any(request, "expire", seconds=_seconds(request))
    return done()


@routes.post(_SUBSCRIPTION + "/expireMessages")
async def expire_to_message(request: web.Request) -> web.Response:
    if await _ask_at(request, "Expire message at position is not supported for partitioned-topic", "expire") is None:
        raise web.HTTPConflict(text="Expire message by position is issued on a subscription due to invalid message position")
    return done()


async def _ask_at(request: web.Request, refused: str, question: str) -> Any:
    """About the message that the body names."""
    where = position_of(await body_of(request))
    return await ask_single(request, refused, question, subscription=part_of(request, "subscription"), **where)


@routes.post(TOPIC + "/all_subscription/expireMessages/{seconds}")
async def expire_all(request: web.Request) -> web.Response:
    await ask_parts(request, "expire", seconds=_seconds(request))
    return done()


def _seconds(request: web.Request) -> int:
    return number_of(request, part_of(request, "seconds"), "The number of seconds", (1 << 31) - 1)


@routes.post(_SUBSCRIPTION + "/analyzeBacklog")
async def analyze(request: web.Request) -> web.Response:
    body = await body_of(request)
    found = await ask_single(request, "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic partition",
                             "analyze", subscription=part_of(request, "subscription"), **(position_of(body) if body is not None else {}))
    first, last = ("{}:{}".format(*found[name]) if found[name] else None for name in ("first", "last"))
    none = {f"filter{what}{unit}": 0 for unit in ("Entries", "Messages") for what in ("Rejected", "Rescheduled")}
    return web.json_response({"entries": found["entries"], "messages": found["messages"], "markerMessages": 0,
                              "filterAcceptedEntries": found["entries"], "filterAcceptedMessages": found["messages"], **none,
                              "aborted": False, "firstMessageId": first, "lastMessageId": last})


# -- our own

@routes.post("/ops/v1/release" + PATH + "/{subscription:[^/]+}")
async def release(request: web.Request) -> web.Response:
    """Give out what was parked because consumers died over it."""
    found = await ask_parts(request, "release", subscription=part_of(request, "subscription"))
    return web.json_response({"entries": sum(one["entries"] for one in found)})


@routes.get("/ops/v1/why" + PATH + "/{subscription:[^/]+}")
async def why(request: web.Request) -> web.Response:
    return web.json_response(await ask_parts(request, "why", subscription=part_of(request, "subscription")))
