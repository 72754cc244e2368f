"""Begin and end of a session: credentials go in, a cookie comes out."""
from typing import Any

from aiohttp import web

from geminga.storage.runtime.log import log
from geminga.supervisor.admin.requests.authentication import AUTHENTICATOR, IDENTITY, SIGN_IN
from geminga.supervisor.admin.requests.request_parts import body_of
from geminga.supervisor.admin.requests.sessions import COOKIE, SESSIONS, TooLong
from geminga.supervisor.console.routes.own_url import is_secure
from geminga.workers.identity.credentials import Credentials

routes = web.RouteTableDef()
PATH = SIGN_IN
METHODS = "token", "basic"         # of which somebody can type the credentials


@routes.post(PATH)
async def begin(request: web.Request) -> web.Response:
    """Begin a session: {"token": "..."} or {"user": "...", "password": "..."}."""
    credentials = _credentials(await body_of(request))
    authenticator, sessions = request.app[AUTHENTICATOR], request.app[SESSIONS]
    if not authenticator.asks_for(credentials.method):
        raise web.HTTPBadRequest(text=f"Nobody signs in by {credentials.method} here")
    request[IDENTITY] = identity = await authenticator.check(request, credentials)
    try:
        value = sessions.seal(credentials)
    except TooLong:
        raise web.HTTPBadRequest(text="The token is too long for a browser's cookie: sign in with a token that has "
                                      "fewer claims, or a shorter key") from None
    except OSError as error:
        log.error(f"sessions of the console need a key in the data folder: {error}", code="G290")
        raise web.HTTPServiceUnavailable(text="The data folder cannot be written, so no session can begin") from None
    answer = web.json_response({"role": identity.role})
    # Lax: a link from elsewhere opens a page in the session; changes from elsewhere have no cookie.
    answer.set_cookie(COOKIE, value, max_age=sessions.seconds, httponly=True, samesite="Lax",
                      secure=is_secure(request), path="/")
    return answer


def _credentials(body: Any) -> Credentials:
    """Return the credentials of a body.  Raises 400."""
    if isinstance(body, dict) and all(isinstance(value, str) for value in body.values()):
        if body.keys() == {"token"}:
            return Credentials("token", body["token"].strip().encode("utf-8", "surrogateescape"))
        if body.keys() == {"user", "password"}:
            return Credentials("basic", f"{body['user']}:{body['password']}".encode("utf-8", "surrogateescape"))
    raise web.HTTPBadRequest(text="The body is an object with token, or with user and password")


@routes.post("/console/sign-out")
async def end(request: web.Request) -> web.Response:
    """End the session of this browser."""
    answer = web.json_response({})
    answer.del_cookie(COOKIE, path="/", samesite="Lax", httponly=True, secure=is_secure(request))
    return answer
