"""What is done to topics and their subscriptions: terminate, unload, skip, reset; and why a subscription stands still."""
import json

from aiohttp import web

from geminga.proto.names import TopicName
from geminga.supervisor.admin.owners import OWNERS
from geminga.supervisor.admin.topics import PATH, TOPICS, topic_of

routes = web.RouteTableDef()
_SUBSCRIPTION = "/admin/v2" + PATH + "/subscription/{subscription}"


def _partitions(request: web.Request) -> list[TopicName]:
    """What is stored under the topic's name: itself, or its partitions."""
    topic = topic_of(request)
    count = request.app[TOPICS].catalogue.partition_count(topic) or 0
    return [topic.partition_name(number) for number in range(count)] or [topic]


async def _ask_all(request: web.Request, question: str, **arguments) -> list:
    return [await request.app[OWNERS].ask(question, topic, **arguments) for topic in _partitions(request)]


def _done() -> web.Response:
    return web.Response(status=204)


@routes.post("/admin/v2" + PATH + "/terminate")
async def terminate(request: web.Request) -> web.Response:
    topic = topic_of(request)
    if request.app[TOPICS].catalogue.partition_count(topic):
        raise web.HTTPMethodNotAllowed("POST", [], text="Termination of a partitioned topic is not allowed: use .../terminate/partitions")
    return web.json_response(await request.app[OWNERS].ask("terminate", topic))


@routes.post("/admin/v2" + PATH + "/terminate/partitions")
async def terminate_partitions(request: web.Request) -> web.Response:
    found = await _ask_all(request, "terminate")
    return web.json_response({str(number): answer for number, answer in enumerate(found)})


@routes.put("/admin/v2" + PATH + "/unload")
async def unload(request: web.Request) -> web.Response:
    await _ask_all(request, "unload")
    return _done()


@routes.post(_SUBSCRIPTION + "/skip_all")
async def skip_all(request: web.Request) -> web.Response:
    await _ask_all(request, "clear", subscription=request.match_info["subscription"])
    return _done()


@routes.post(_SUBSCRIPTION + r"/skip/{entries:\d+}")
async def skip(request: web.Request) -> web.Response:
    topic = topic_of(request)
    if request.app[TOPICS].catalogue.partition_count(topic):
        raise web.HTTPMethodNotAllowed("POST", [], text="Skip messages on a partitioned topic is not allowed")
    await request.app[OWNERS].ask("skip", topic, subscription=request.match_info["subscription"],
                                  entries=int(request.match_info["entries"]))
    return _done()


@routes.post(_SUBSCRIPTION + r"/resetcursor/{time_ms:\d+}")
async def reset_to_time(request: web.Request) -> web.Response:
    await _ask_all(request, "reset", subscription=request.match_info["subscription"], time_ms=int(request.match_info["time_ms"]))
    return _done()


@routes.post(_SUBSCRIPTION + "/resetcursor")
async def reset_to_message(request: web.Request) -> web.Response:
    try:
        identity = json.loads(await request.text())
        ledger, entry = int(identity["ledgerId"]), int(identity["entryId"])
    except (ValueError, KeyError, TypeError):
        raise web.HTTPBadRequest(text="The body is a message id: ledgerId, entryId") from None
    await request.app[OWNERS].ask("reset", topic_of(request), subscription=request.match_info["subscription"], ledger=ledger, entry=entry,
                                  behind=bool(identity.get("isExcluded")))
    return _done()


@routes.post("/ops/v1/release" + PATH + "/{subscription}")
async def release(request: web.Request) -> web.Response:
    """Give out what was parked because consumers died over it."""
    found = await _ask_all(request, "release", subscription=request.match_info["subscription"])
    return web.json_response({"entries": sum(one["entries"] for one in found)})


@routes.get("/ops/v1/why" + PATH + "/{subscription}")
async def why(request: web.Request) -> web.Response:
    return web.json_response(await _ask_all(request, "why", subscription=request.match_info["subscription"]))
