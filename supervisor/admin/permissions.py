"""Permissions of namespaces, topics and subscriptions: granted, shown, taken away."""
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.storage.catalogue import PERMISSIONS, SUBSCRIPTION_PERMISSIONS, Catalogue
from geminga.supervisor.admin.topics import TOPIC, body_of, catalogue_of, done, existing_of, namespace_of, part_of, topic_of
from geminga.workers.identity.authorization import GRANTED

routes = web.RouteTableDef()
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
_MEMBERS = {"namespace_auth": PERMISSIONS, "subscription_auth_roles": SUBSCRIPTION_PERMISSIONS}     # of auth_policies of a namespace


def _scope(request: web.Request) -> str:
    """The namespace, topic or partition that the path names; it exists, or is one that comes and goes with who uses it."""
    namespace = namespace_of(request)
    if "topic" not in request.match_info:
        return namespace
    topic = topic_of(request)
    return str(existing_of(request) if topic.is_persistent else topic)


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


# -- what a namespace is made with and shown as

def read_member(sent: Any, namespace: str) -> dict[str, dict[str, dict[str, list[str]]]]:
    """auth_policies of the object that a namespace is made with, as {scope: {policy: value}}.  Raises 400, Refusal."""
    if not isinstance(sent, dict | None):
        raise web.HTTPBadRequest(text="auth_policies: expected an object")
    sent = sent or {}
    found = {namespace: {name: _grants(sent.get(member), member) for member, name in _MEMBERS.items()}}
    of_topics = sent.get("destination_auth") or {}
    if not isinstance(of_topics, dict):
        raise web.HTTPBadRequest(text="auth_policies/destination_auth: expected an object")
    for text, grants in of_topics.items():
        topic = names.parse(text)
        if topic.namespace != namespace:
            raise web.HTTPBadRequest(text=f"auth_policies/destination_auth: {topic} is not of {namespace}")
        found[str(topic)] = {PERMISSIONS: _grants(grants, "destination_auth")}
    return {scope: {name: value for name, value in policies.items() if value} for scope, policies in found.items()}


def _grants(sent: Any, member: str) -> dict[str, list[str]]:
    if not isinstance(sent, dict | None):
        raise web.HTTPBadRequest(text=f"auth_policies/{member}: expected an object")
    allowed = () if member == "subscription_auth_roles" else GRANTED
    found = {one: _names(value, "roles" if not allowed else "actions", allowed) for one, value in (sent or {}).items()}
    return {one: value for one, value in found.items() if value}


def member(catalogue: Catalogue, namespace: str) -> dict[str, Any]:
    kept = catalogue.policies(namespace)
    return {member: kept.get(name, {}) for member, name in _MEMBERS.items()} | {
        "destination_auth": catalogue.topics_policies(namespace, PERMISSIONS)}


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
    scope, actions = _scope(request), _names(await body_of(request), "actions", GRANTED)
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
