"""Compaction on demand, and what becomes of it."""
from aiohttp import web

from geminga.supervisor.admin.topics import TOPIC, ask_single, not_allowed

routes = web.RouteTableDef()


@routes.get(TOPIC + "/compaction")
async def status(request: web.Request) -> web.Response:
    await ask_single(request, "", "subscriptions")
    return web.json_response({"status": "NOT_RUN", "lastError": ""})


@routes.put(TOPIC + "/compaction")
async def compact(request: web.Request) -> web.Response:
    await ask_single(request, "", "subscriptions")
    raise not_allowed(request, "Compaction is not available in this version")
