"""Sign-in to the console at an issuer of OpenID Connect: an authorization code with PKCE (RFC 7636).

    /console/sign-in/issuer    the browser goes to the issuer's page, with a sealed cookie for the way back
    /console/sign-in/return    it comes back with a code, for which the broker gets a token; the session begins

Only the browser that left can come back, as the cookie has the state that the issuer returns.  The code is of no use
without the verifier, which is in the cookie too and never leaves the broker in the clear.
"""
import asyncio
import base64
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import web
from yarl import URL

from geminga.supervisor.admin.requests.authentication import AUTHENTICATOR, IDENTITY, LEAVE, RETURN
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.admin.requests.sessions import COOKIE, SESSIONS, TooLong
from geminga.supervisor.console.routes.own_url import is_secure, own_url
from geminga.workers.identity.credentials import Credentials

if TYPE_CHECKING:
    from geminga.workers.identity.issuers import Issuer

routes = web.RouteTableDef()
WAY_BACK = "geminga_sign_in"      # the cookie
_SECONDS = 600                    # for the way there and back
_EXCHANGES_MAX = 8                # codes that are exchanged at a time: everybody may come with one
_EXCHANGES = web.AppKey("exchanges", asyncio.Semaphore)
# A path of this site.  Browsers drop tabs and line breaks and read \\ as /, and two slashes begin another site's name.
_OWN_PATH = re.compile(r"/(?!/)[^\x00-\x20\x7f-\x9f\\]*")


def own_path(text: str) -> str:
    """Return a path of this site as it is, and / for anything else."""
    return text if _OWN_PATH.fullmatch(text) else "/"


def choices(request: web.Request, next_: str) -> list[tuple[str, str]]:
    """Return (issuer, address) of the ways to sign in at issuers."""
    options = request.app[TOPICS].config.oidc
    if not options.console_client_id or not request.app[AUTHENTICATOR].asks_for("token"):
        return []
    return [(url.partition("://")[2], f"{LEAVE}?issuer={quote(url, safe='')}&next={quote(next_, safe='')}")
            for url in options.issuers]


@routes.get(LEAVE)
async def leave(request: web.Request) -> web.Response:
    """Send the browser to an issuer's page.  Raises 404, 503."""
    options, url = request.app[TOPICS].config.oidc, request.query.get("issuer", "")
    issuer = request.app[AUTHENTICATOR].issuer(url)
    if issuer is None or not options.console_client_id:
        raise web.HTTPNotFound(text="The configuration names no such issuer for the console")
    page, verifier, state = await _endpoint(issuer, "authorization_endpoint"), secrets.token_urlsafe(48), _state()
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    way_back = {"issuer": url, "state": state, "verifier": verifier, "next": own_path(request.query.get("next", "/"))}
    answer = _moved(str(page.update_query({
        "response_type": "code", "client_id": options.console_client_id, "redirect_uri": own_url(request) + RETURN,
        "scope": options.console_scope, "state": state, "code_challenge": challenge,
        "code_challenge_method": "S256"})))
    # Lax: the issuer's page leads back here, as a link of another site.
    answer.set_cookie(WAY_BACK, _sealed(request, way_back), max_age=_SECONDS, httponly=True, samesite="Lax",
                      secure=is_secure(request), path="/console/sign-in")
    return answer


@routes.get(RETURN)
async def come_back(request: web.Request) -> web.Response:
    """Begin a session by the code that an issuer's page has given.  Raises 400, 403, 503."""
    query = request.query
    way_back = request.app[SESSIONS].decrypted(request.cookies.get(WAY_BACK, ""), _SECONDS)
    if way_back is None or "state" not in way_back or not hmac.compare_digest(
            way_back["state"].encode(), query.get("state", "").encode("utf-8", "surrogateescape")):
        raise web.HTTPBadRequest(text="This sign-in did not begin in this browser, or too long ago: begin it again")
    issuer = request.app[AUTHENTICATOR].issuer(way_back["issuer"])
    if issuer is None or query.get("iss", issuer.url) != issuer.url:
        raise web.HTTPBadRequest(text="This is the answer of another issuer: begin again")
    if not query.get("code"):
        raise web.HTTPForbidden(text="The issuer has signed nobody in")
    credentials = Credentials("token", await _token(request, issuer, way_back["verifier"], query["code"]))
    try:
        request[IDENTITY] = await request.app[AUTHENTICATOR].check(request, credentials)
        value = request.app[SESSIONS].seal(credentials)
    except web.HTTPUnauthorized:
        raise web.HTTPForbidden(text="The issuer's token is not accepted here; the broker's log says why") from None
    except TooLong:
        raise web.HTTPForbidden(text="The issuer's token is too long for a browser's cookie: it has too many claims"
                                ) from None
    answer = _moved(way_back["next"])
    answer.set_cookie(COOKIE, value, max_age=request.app[SESSIONS].seconds, httponly=True, samesite="Lax",
                      secure=is_secure(request), path="/")
    answer.del_cookie(WAY_BACK, path="/console/sign-in", samesite="Lax", httponly=True, secure=is_secure(request))
    return answer


async def _token(request: web.Request, issuer: "Issuer", verifier: str, code: str) -> bytes:
    """Return the token that an issuer gives for a code.  Raises 403, 503."""
    from geminga.workers.identity.issuer_documents import Unavailable
    options, exchanges = request.app[TOPICS].config.oidc, request.app[_EXCHANGES]
    if exchanges.locked():
        raise web.HTTPServiceUnavailable(text="Too many sign in at a time; try again")
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": own_url(request) + RETURN,
            "client_id": options.console_client_id, "code_verifier": verifier}
    async with exchanges:
        address = await _endpoint(issuer, "token_endpoint")
        try:
            answer = await issuer.documents.fetch(str(address), form)
        except Unavailable as error:
            raise web.HTTPForbidden(text=f"The issuer gives no token for this sign-in: {error}") from None
    # An access token that only its issuer can read has no three parts.
    for token in answer.get("access_token"), answer.get("id_token"):
        if isinstance(token, str) and token.count(".") == 2 and token.isascii():
            return token.encode()
    raise web.HTTPForbidden(text="The issuer gives no token that the broker can check")


async def _endpoint(issuer: "Issuer", name: str) -> URL:
    """Return an address of an issuer.  Raises 503."""
    if not issuer.discovery and (fetch := issuer.fetching(None)) is not None:
        await asyncio.shield(fetch)
    text = issuer.discovery.get(name)
    try:
        address = URL(text) if isinstance(text, str) else URL()
    except ValueError:
        address = URL()
    if address.scheme not in issuer.documents.schemes or not address.host:
        raise web.HTTPServiceUnavailable(text="The issuer does not answer as it should; the broker's log says why")
    return address


def _sealed(request: web.Request, content: dict[str, Any]) -> str:
    try:
        return request.app[SESSIONS].encrypted(content)
    except OSError:
        raise web.HTTPServiceUnavailable(text="The data folder cannot be written, so no session can begin") from None


def _state() -> str:
    return secrets.token_urlsafe(24)


def _moved(address: str) -> web.Response:
    return web.Response(status=303, headers={"Location": address, "Cache-Control": "no-store"})


def install(app: web.Application) -> None:
    """Add what the routes share to an application."""
    app[_EXCHANGES] = asyncio.Semaphore(_EXCHANGES_MAX)
