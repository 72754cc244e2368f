"""Dead letters that the broker moves: what waits to be moved, and why it waits."""
from aiohttp import web

from geminga.storage.admin.table_questions import ListDeadLetters
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import number_of

routes = rights.Routes()
_ROWS, _ROWS_MAX = 1_000, 10_000


@routes.get("/ops/v1/dead-letters")
async def waiting(request: web.Request) -> web.Response:
    """List subscriptions with dead letters that the broker has yet to move."""
    most = number_of(request, request.query.get("limit", str(_ROWS)), "limit", _ROWS_MAX)
    listings = await request.app[OWNERS].ask_all(ListDeadLetters(most=most))
    rows = [row for listing in listings for row in listing.rows]
    return web.json_response({"rows": rows[:most], "total": sum(listing.total for listing in listings)})
