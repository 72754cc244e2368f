"""Permissions of namespaces, topics and subscriptions: kept and shown; nobody is asked who they are yet."""
from typing import Any

from aiohttp import web

from geminga.storage.catalogue import PERMISSIONS, SUBSCRIPTION_PERMISSIONS, Catalogue
from geminga.supervisor.admin.topics import TOPIC, body_of, catalogue_of, done, namespace_of, part_of, topic_of

routes = web.RouteTableDef()
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
_ACTIONS = ("consume", "functions", "packages", "produce", "sinks", "sources")


def _scope(request: web.Request) -> str:
    """The namespace, topic or partition that the path names; it exists, or is one that comes and goes with who uses it."""
    namespace = namespace_of(request)
    if "topic" not in request.match_info:
        return namespace
    topic, catalogue = topic_of(request), catalogue_of(request)
    count = catalogue.partition_count(topic.base)
    if topic.is_persistent and not catalogue.has_topic(topic) and not (count and 0 <= topic.partition < count):
        raise web.HTTPNotFound(text=f"Topic {topic} not found")
    return str(topic)


def _names(sent: Any, what: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """Raises 400."""
    if sent is None:
        raise web.HTTPBadRequest(text=f"{what.capitalize()} should not be null")
    if not isinstance(sent, list) or not all(isinstance(one, str) and (not allowed or one in allowed) for one in sent):
        raise web.HTTPBadRequest(text=f"expected a list of {', '.join(allowed) or what}")
    return sorted(set(sent))


def _keep(catalogue: Catalogue, scope: str, name: str, of: str, value: list[str]) -> web.Response:
    """Nothing takes it away."""
    kept = catalogue.policies(scope).get(name, {})
    kept.pop(of, None)
    if value:
        kept[of] = value
    catalogue.set_policy(scope, name, kept or None)
    catalogue.commit()
    return done()


# -- of roles

@routes.get(_NAMESPACE)
@routes.get(TOPIC + "/permissions")
async def shown(request: web.Request) -> web.Response:
    """A topic's are its namespace's too."""
    scope, catalogue = _scope(request), catalogue_of(request)
    found: dict[str, list[str]] = {}
    for one in dict.fromkeys([namespace_of(request), scope]):
        for role, actions in catalogue.policies(one).get(PERMISSIONS, {}).items():
            found[role] = sorted({*found.get(role, ()), *actions})
    return web.json_response(found)


@routes.post(_NAMESPACE + "/{role}")
@routes.post(TOPIC + "/permissions/{role}")
async def grant(request: web.Request) -> web.Response:
    scope, actions = _scope(request), _names(await body_of(request), "actions", _ACTIONS)
    return _keep(catalogue_of(request), scope, PERMISSIONS, part_of(request, "role"), actions)


@routes.delete(_NAMESPACE + "/{role}")
@routes.delete(TOPIC + "/permissions/{role}")
async def revoke(request: web.Request) -> web.Response:
    return _keep(catalogue_of(request), _scope(request), PERMISSIONS, part_of(request, "role"), [])


# -- of a namespace's subscriptions: which roles may use them

@routes.get(_NAMESPACE + "/subscription")
async def of_subscriptions(request: web.Request) -> web.Response:
    return web.json_response(catalogue_of(request).policies(namespace_of(request)).get(SUBSCRIPTION_PERMISSIONS, {}))


@routes.post(_NAMESPACE + "/subscription/{subscription}")
async def grant_subscription(request: web.Request) -> web.Response:
    scope, roles = namespace_of(request), _names(await body_of(request), "roles")
    return _keep(catalogue_of(request), scope, SUBSCRIPTION_PERMISSIONS, part_of(request, "subscription"), roles)


@routes.delete(_NAMESPACE + "/{subscription}/{role}")
async def revoke_subscription(request: web.Request) -> web.Response:
    scope, catalogue, name = namespace_of(request), catalogue_of(request), part_of(request, "subscription")
    roles = catalogue.policies(scope).get(SUBSCRIPTION_PERMISSIONS, {}).get(name)
    if roles is None:
        raise web.HTTPNotFound(text=f"Nothing was granted for subscription {name}")
    left = [role for role in roles if role != part_of(request, "role")]
    return _keep(catalogue, scope, SUBSCRIPTION_PERMISSIONS, name, left)
