"""Authorization of HTTP requests: a middleware checks the right that the route demands (rights.py).

Revoking a right returns after every worker has closed the producers and consumers that used it.
"""
import asyncio
from typing import NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import CONSUME
from geminga.proto.errors import Refusal
from geminga.storage.runtime.counters import Counters
from geminga.supervisor.admin.requests.authentication import IDENTITY, is_page
from geminga.supervisor.admin.requests.request_parts import (
    ANY,
    COUNTERS,
    TOPICS,
    catalogue_of,
    names_topic,
    part_of,
    schema_topic_of,
    subscription_of,
    topic_of,
)
from geminga.supervisor.admin.requests.rights import (
    TENANT,
    TOPIC_POLICY,
    Demand,
    Routes,
    demand_of,
)
from geminga.workers.identity.authentication import Identity
from geminga.workers.identity.authorization import ACTIONS, Authorization, Decision, Resource, Right

AUTHORIZATION = web.AppKey("authorization", Authorization)
routes = Routes()
_SEEN_SECONDS = 10             # limit for workers to apply changed rights
_AGAIN_SECONDS = 0.005


# -- before a request is dealt with

@web.middleware
async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Pass a request on if its role has the right to make it.

    A change of rights is answered when all workers have applied the new rights.
    """
    authorization, route = request.app[AUTHORIZATION], request.match_info.route
    if not authorization.is_enabled or route.resource is None:       # no route has that path
        return await handler(request)
    authorization.version()
    _check(request, right_to(request.method, route.resource.canonical))
    if request.method in ("GET", "HEAD"):
        return await handler(request)
    before = catalogue_of(request).policies.rights_version()
    answer = await handler(request)
    if (version := catalogue_of(request).policies.rights_version()) != before:
        await _seen(request.app[COUNTERS], version)
    return answer


async def refusal(request: web.Request) -> str:
    """Return why the role of a request may not make it, "" if it may.  The request itself is not carried out."""
    authorization = request.app[AUTHORIZATION]
    if not authorization.is_enabled:
        return ""
    match = await request.app.router.resolve(request)
    if match.route.resource is None:
        return ""
    match.add_app(request.app)       # as aiohttp does before it handles a request
    request._match_info = match      # where aiohttp keeps it
    try:
        _check(request, right_to(request.method, match.route.resource.canonical))
    except web.HTTPException as error:
        return error.text or error.reason
    except Refusal as error:
        return error.message
    return ""


def right_to(method: str, path: str) -> Demand | None:
    """Return the right that a path of the router demands.

    Pages of the console demand none: they ask other routes for what they show, and leave out what the role may not see.
    """
    return None if is_page(path) else demand_of(method, path)


def refuse_others_than_administrators(request: web.Request, tenant: str) -> None:
    """Refuse a request about a tenant that its body names, unless the role is an administrator of that tenant.

    Raises 401, or 404 if the tenant does not exist.
    """
    if not request.app[AUTHORIZATION].is_enabled:
        return
    decision = request.app[AUTHORIZATION].decide(request[IDENTITY], TENANT.action, tenant, "")
    if not decision.is_allowed:
        _refuse(request, TENANT, tenant, decision)


def _check(request: web.Request, demand: Demand | None) -> None:
    """Refuse a request whose role lacks the demanded right.

    Raises 401, 403, Refusal; 404 if the tenant does not exist.
    """
    if demand is None:
        return
    resource = _resource(request, demand.of)
    subscription = ""
    if demand.action == CONSUME and "subscription" in request.match_info:
        subscription = subscription_of(request)
    right, authorization = Right(demand.action, resource, subscription), request.app[AUTHORIZATION]
    decision = _resolved(request, request[IDENTITY], right) if demand.is_resolved else authorization.decide(
        request[IDENTITY], *right)
    if not decision.is_allowed:
        _refuse(request, demand, part_of(request, "tenant") if demand.of else "", decision)


def _resolved(request: web.Request, identity: Identity, right: Right) -> Decision:
    return request.app[AUTHORIZATION].decide_resolved(identity, right, request.app[TOPICS].directory.hiding)


def _refuse(request: web.Request, demand: Demand, tenant: str, decision: Decision) -> NoReturn:
    if demand.of and not demand.is_hiding and not catalogue_of(request).tenants.exists(tenant):
        raise web.HTTPNotFound(text="Tenant does not exist")
    text = {"": "This operation requires super-user access",
            "tenant": "Don't have permission to administrate resources on this tenant"}
    reason = f"{text.get(demand.of, 'Not authorized')}: {decision.told or decision.why}"
    raise (web.HTTPUnauthorized if demand.status == 401 else web.HTTPForbidden)(text=reason)


def _resource(request: web.Request, of: str) -> Resource:
    """Return the topic, namespace or tenant in the request's path; "" stands for the broker.  Raises 404, Refusal."""
    if of == "topic":
        return topic_of(request) if names_topic(request) else schema_topic_of(request)
    parts = [part_of(request, name) for name in ("tenant", "namespace")[:("", "tenant", "namespace").index(of)]]
    if any("/" in part for part in parts):      # a percent-encoded slash would name another resource
        raise web.HTTPNotFound(text=f"{of.capitalize()} does not exist")
    return "/".join(parts)


async def _seen(counters: dict[tuple[str, int], Counters], version: int) -> None:
    """Wait until every worker has applied this version of the rights.

    Raises Refusal if a worker takes too long.
    """
    workers = [own for (role, _), own in counters.items() if role == "worker"]
    try:
        async with asyncio.timeout(_SEEN_SECONDS):
            while any(worker.read()["rights_seen"] < version for worker in workers):
                await asyncio.sleep(_AGAIN_SECONDS)
    except TimeoutError:
        raise Refusal(api.ServiceNotReady, "It is kept, but not all workers have taken notice yet") from None


# -- who may do what, in words

@routes.get("/ops/v1/can-i" + ANY, right=TOPIC_POLICY)
async def can_i(request: web.Request) -> web.Response:
    """Answer whether a role, with its groups, may do something with a topic, and why."""
    topic, authorization, asked = topic_of(request), request.app[AUTHORIZATION], request.query
    if not asked.get("role"):
        raise web.HTTPBadRequest(text="role says whose right is asked about")
    if asked.get("action") not in ACTIONS:
        raise web.HTTPBadRequest(text=f"action is one of {', '.join(ACTIONS)}")
    who = Identity(asked["role"], proxy=asked.get("proxy", ""), groups=tuple(asked.getall("group", ())))
    decision = _resolved(request, who, Right(asked["action"], topic, asked.get("subscription", "")))
    answer = {"allowed": decision.is_allowed, "why": decision.why}
    if not decision.is_allowed:
        answer |= {"missing_grant": decision.lacks or None, "could_grant": authorization.helpers(topic)}
    return web.json_response(answer)
