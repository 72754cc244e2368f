"""Who asks over HTTP: one middleware finds out before any route is taken."""
from aiohttp import web

from geminga.workers.identity.authentication import NOT_ASKED, Identity

IDENTITY = web.RequestKey("identity", Identity)


@web.middleware
async def identify(request: web.Request, handler) -> web.StreamResponse:
    request[IDENTITY] = NOT_ASKED
    return await handler(request)
