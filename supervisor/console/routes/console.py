"""The console's routes: pages, their updates, files, and errors as pages."""
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from aiohttp import web
from yarl import URL

from geminga.proto.responses import VERSION
from geminga.supervisor.admin.app import errors_as_json
from geminga.supervisor.admin.requests.authentication import AUTHENTICATOR, IDENTITY, is_page
from geminga.supervisor.admin.requests.authorization import refusal
from geminga.supervisor.admin.requests.origins import comes_from_a_browser, is_socket, may_change
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.admin.requests.sessions import SESSION
from geminga.supervisor.console import rendering, static_files
from geminga.supervisor.console.asking import Asking, QuestionRefused
from geminga.supervisor.console.history import HISTORY, History
from geminga.supervisor.console.page import Page
from geminga.supervisor.console.pages import (
    access,
    clients,
    configuration,
    delayed,
    documents,
    logs,
    messages,
    nights,
    overview,
    rest,
    scalable_topic,
    schedules,
    schemas,
    subscription,
    tables,
    tenants,
    topic,
)
from geminga.supervisor.console.routes import dialogs, issuer_sign_in, live, sign_in, tail

PARTS = (overview, tables, topic, scalable_topic, schemas, delayed, schedules, subscription, messages, clients, tenants,
         access, logs, nights, configuration, documents, rest)
_PAGES = web.AppKey("pages", dict[web.AbstractResource, Page])
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                               "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin"}
_LOOKS = "GET", "HEAD", "OPTIONS"
_CALLS_MAX = 12              # requests of a page that it names: one that sums up asks for many alike


def install(app: web.Application) -> None:
    """Add the console to the admin process's application."""
    history = app[HISTORY] = History(app)
    app.cleanup_ctx.append(history.serve)
    app[live.OPEN], app[tail.TAILS] = set(), set()
    app.middlewares.insert(app.middlewares.index(errors_as_json) + 1, errors_as_pages)
    app[_PAGES] = {}
    for part in PARTS:
        for page in part.pages:
            resource = app.router.add_get(page.path, show).resource
            assert resource is not None      # the router has just made it
            app[_PAGES][resource] = page
        if (routes := getattr(part, "routes", None)) is not None:
            app.add_routes(routes)
    app.router.add_get("/console/live", updates)
    app.router.add_get(sign_in.PATH, show_sign_in)
    app.add_routes(dialogs.routes)
    app.add_routes(tail.routes)
    app.add_routes(sign_in.routes)
    app.add_routes(issuer_sign_in.routes)
    issuer_sign_in.install(app)
    app.add_routes(static_files.routes)


@web.middleware
async def errors_as_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware of all requests: the console's own rules, and errors of its pages as pages.

    It stands before authentication, so that a browser without credentials is sent to the sign-in.
    """
    options = request.app[TOPICS].config.console
    if not is_page(request.path):
        _refuse_changes(request, options.read_only)
        return await handler(request)
    if not options.enabled:
        raise web.HTTPNotFound(text="There is nothing under this path")
    try:
        answer = await handler(request)
    except (web.HTTPException, QuestionRefused) as error:
        if request.method not in _LOOKS or request.path.startswith(("/console/live", static_files.PREFIX)):
            raise _as_http(error) from None
        answer = await _error(request, error)
    if not answer.prepared:
        answer.headers.update(_HEADERS)
        answer.headers.setdefault("Cache-Control", "no-store")
    return answer


def _refuse_changes(request: web.Request, is_read_only: bool) -> None:
    """Refuse a change or a WebSocket that a browser asks for, if the console only shows.  Raises 403."""
    if is_read_only and (may_change(request) or is_socket(request)) and comes_from_a_browser(request):
        raise web.HTTPForbidden(text="Browsers may change nothing here: read_only of [console] is set")


def _as_http(error: web.HTTPException | QuestionRefused) -> web.HTTPException:
    if isinstance(error, web.HTTPException):
        return error
    kinds = {kind.status_code: kind for kind in (
        web.HTTPBadRequest, web.HTTPUnauthorized, web.HTTPForbidden, web.HTTPNotFound, web.HTTPConflict,
        web.HTTPPreconditionFailed, web.HTTPServiceUnavailable)}
    return kinds.get(error.status, web.HTTPInternalServerError)(text=error.text)


async def _error(request: web.Request, error: web.HTTPException | QuestionRefused) -> web.StreamResponse:
    """Return the page of an error.  A browser that has to sign in is sent there, and comes back afterwards."""
    text = error.text or getattr(error, "reason", "") or ""
    if error.status == web.HTTPUnauthorized.status_code and IDENTITY not in request:
        return web.HTTPSeeOther(f"{sign_in.PATH}?next={quote(request.path_qs, safe='')}")
    values = await _common(request) | {"status": error.status, "text": text, "calls": [], "commands": []}
    return web.Response(text=rendering.page("error.html", values), status=error.status, content_type="text/html")


async def _common(request: web.Request) -> dict[str, Any]:
    """Return the values that every page has."""
    identity, session = request.get(IDENTITY), request.get(SESSION)
    authenticator = request.app[AUTHENTICATOR]
    return {
        "path": request.path, "address": request.rel_url.raw_path_qs, "query": request.query,
        "role": identity.role if identity is not None else "",
        "has_session": session is not None, "secret": session.secret if session is not None else "",
        "asks_who": authenticator.is_on, "read_only": request.app[TOPICS].config.console.read_only,
        "cluster": request.app[TOPICS].config.cluster_name, "version": VERSION,
        "navigation": await _navigation(request)}


async def _navigation(request: web.Request) -> list[tuple[str, str]]:
    """Return name and address of the pages that the role may see; of nobody's until it is known who asks."""
    if IDENTITY not in request:
        return []
    has_transactions = request.app[TOPICS].config.transactions.enabled
    return [(name, address) for name, address, needs in rendering.NAVIGATION
            if (name != "transactions" or has_transactions)
            and (not needs or not await refusal(request.clone(method="GET", rel_url=URL(needs, encoded=True))))]


async def show(request: web.Request) -> web.Response:
    """Answer with a page."""
    resource = request.match_info.route.resource
    assert resource is not None      # only routes of pages come here
    page = request.app[_PAGES][resource]
    asking = Asking(request, request.match_info, request.query)
    values = await page.load(asking)
    common = await _common(request) | {"calls": asking.calls[:_CALLS_MAX], "commands": [], "is_live": page.every_s > 0}
    return web.Response(text=rendering.page(page.template, common | values), content_type="text/html")


async def updates(request: web.Request) -> web.StreamResponse:
    """Answer with the updates of the page whose address is the parameter `page`."""
    address = request.query.get("page", "/")
    if not address.startswith("/") or address.startswith("//"):      # of no page here
        raise web.HTTPNotFound(text="No page under this address changes by itself")
    inner = request.clone(rel_url=URL(address, encoded=True))
    match = await request.app.router.resolve(inner)
    resource = match.route.resource
    page = request.app[_PAGES].get(resource) if resource is not None else None
    if page is None or not page.every_s:
        raise web.HTTPNotFound(text="No page under this address changes by itself")
    common = await _common(request)
    common |= {"path": inner.path, "query": inner.query, "calls": [], "commands": [], "is_live": True}
    return await live.stream(request, page, Asking(request, match, inner.query), common)


async def show_sign_in(request: web.Request) -> web.Response:
    """Answer with the page on which somebody signs in."""
    next_ = issuer_sign_in.own_path(request.query.get("next", "/"))
    authenticator = request.app[AUTHENTICATOR]
    methods = [method for method in sign_in.METHODS if authenticator.asks_for(method)]
    values = await _common(request) | {
        "next": next_, "methods": methods, "issuers": issuer_sign_in.choices(request, next_),
        "calls": [], "commands": [], "navigation": []}
    return web.Response(text=rendering.page("sign_in.html", values), content_type="text/html")
