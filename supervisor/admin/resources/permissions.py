"""Permissions of roles on namespaces, topics and subscriptions: grant, list, revoke."""
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.stored_policies import PERMISSIONS, SUBSCRIPTION_PERMISSIONS
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.authorization import refuse_others_than_administrators
from geminga.supervisor.admin.requests.request_parts import (
    SCALABLE,
    TOPIC,
    body_of,
    catalogue_of,
    done,
    existing_of,
    namespace_of,
    part_of,
    subscription_of,
    topic_of,
)
from geminga.workers.identity.authorization import GRANTED

routes = rights.Routes()
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/permissions"
# members of auth_policies -> policies
_MEMBERS = {"namespace_auth": PERMISSIONS, "subscription_auth_roles": SUBSCRIPTION_PERMISSIONS}


def _scope(request: web.Request) -> str:
    """Return the namespace, topic or partition that the path names.

    Raises Refusal if it does not exist. Non-persistent topics are accepted before they exist.
    """
    namespace = namespace_of(request)
    if "topic" not in request.match_info:
        return namespace
    topic = topic_of(request)
    return str(existing_of(request) if topic.is_persistent else topic)


def _names(sent: Any, what: str, allowed: tuple[str, ...] = ()) -> list[str]:
    """Return a list from a request's body, sorted and without duplicates.

    what: name of the list in an error. allowed: the values that are accepted, () for any. Raises 400.
    """
    if sent is None:
        raise web.HTTPBadRequest(text=f"{what.capitalize()} should not be null")
    if not isinstance(sent, list) or not all(isinstance(one, str) and (not allowed or one in allowed) for one in sent):
        raise web.HTTPBadRequest(text=f"expected a list of {', '.join(allowed) or what}")
    return sorted(set(sent))


def _keep(catalogue: Catalogue, scope: str, name: str, of: str, value: list[str]) -> web.Response:
    """Store the rights of one role or subscription, and commit."""
    _set(catalogue, scope, name, of, value)
    catalogue.commit()
    return done()


def _set(catalogue: Catalogue, scope: str, name: str, of: str, value: list[str]) -> None:
    """Store the rights of one role or subscription in a policy of the scope; an empty list removes them."""
    kept = catalogue.policies.of(scope).get(name, {})
    kept.pop(of, None)
    if value:
        kept[of] = value
    catalogue.policies.set(scope, name, kept or None)


# -- what a namespace is made with and shown as

def read_member(sent: Any, namespace: str) -> dict[str, dict[str, dict[str, list[str]]]]:
    """Return the permissions in the member auth_policies of a namespace's JSON object, as {scope: {policy: value}}.

    Raises 400, Refusal.
    """
    if not isinstance(sent, dict | None):
        raise web.HTTPBadRequest(text="auth_policies: expected an object")
    sent = sent or {}
    by_scope = {namespace: {name: _grants(sent.get(member), member) for member, name in _MEMBERS.items()}}
    of_topics = sent.get("destination_auth") or {}
    if not isinstance(of_topics, dict):
        raise web.HTTPBadRequest(text="auth_policies/destination_auth: expected an object")
    for text, grants in of_topics.items():
        topic = names.parse(text)
        if topic.namespace != namespace:
            raise web.HTTPBadRequest(text=f"auth_policies/destination_auth: {topic} is not of {namespace}")
        by_scope[str(topic)] = {PERMISSIONS: _grants(grants, "destination_auth")}
    return {scope: {name: value for name, value in policies.items() if value} for scope, policies in by_scope.items()}


def _grants(sent: Any, member: str) -> dict[str, list[str]]:
    if not isinstance(sent, dict | None):
        raise web.HTTPBadRequest(text=f"auth_policies/{member}: expected an object")
    allowed = () if member == "subscription_auth_roles" else GRANTED
    grants = {one: _names(value, "roles" if not allowed else "actions", allowed) for one, value in (sent or {}).items()}
    return {one: value for one, value in grants.items() if value}


def member(catalogue: Catalogue, namespace: str) -> dict[str, Any]:
    kept = catalogue.policies.of(namespace)
    return {member: kept.get(name, {}) for member, name in _MEMBERS.items()} | {
        "destination_auth": catalogue.policies.of_topics(namespace, PERMISSIONS)}


# -- of roles

@routes.get(_NAMESPACE, right=rights.NAMESPACE)
@routes.get(TOPIC + "/permissions", right=rights.TENANT)
@routes.get(SCALABLE + "/permissions", right=rights.TENANT)
async def shown(request: web.Request) -> web.Response:
    """Answer with the permissions on a namespace or topic; a topic's permissions include its namespace's."""
    scope, catalogue = _scope(request), catalogue_of(request)
    by_role: dict[str, list[str]] = {}
    for level in dict.fromkeys([namespace_of(request), scope]):
        for role, actions in catalogue.policies.of(level).get(PERMISSIONS, {}).items():
            by_role[role] = sorted({*by_role.get(role, ()), *actions})
    return web.json_response(by_role)


@routes.post(_NAMESPACE + "/{role}", right=rights.NAMESPACE)
@routes.post(TOPIC + "/permissions/{role}", right=rights.TENANT)
@routes.post(SCALABLE + "/permissions/{role}", right=rights.TENANT)
async def grant(request: web.Request) -> web.Response:
    """Grant a role actions on a namespace or a topic."""
    scope, actions = _scope(request), _names(await body_of(request), "actions", GRANTED)
    return _keep(catalogue_of(request), scope, PERMISSIONS, part_of(request, "role"), actions)


@routes.delete(_NAMESPACE + "/{role}", right=rights.NAMESPACE)
@routes.delete(TOPIC + "/permissions/{role}", right=rights.TENANT)
@routes.delete(SCALABLE + "/permissions/{role}", right=rights.TENANT)
async def revoke(request: web.Request) -> web.Response:
    """Revoke a role's actions on a namespace or a topic."""
    return _keep(catalogue_of(request), _scope(request), PERMISSIONS, part_of(request, "role"), [])


# -- of roles, for several topics of a namespace at once: all, or none

_MEMBERS_OF_ONE = "topic", "role", "actions"


async def _several(request: web.Request, *, with_actions: bool) -> list[tuple[str, str, list[str]]]:
    """Return (topic, role, actions) of each item of the body.  Raises 400, 401, 404, Refusal."""
    body = await body_of(request)
    if not isinstance(body, list) or not all(isinstance(one, dict) and set(one) <= set(_MEMBERS_OF_ONE)
                for one in body):
        raise web.HTTPBadRequest(text="The body is a list of objects: topic and role, and of what is granted actions")
    if not all(isinstance(one.get(name), str) and one[name] for one in body for name in ("topic", "role")):
        raise web.HTTPBadRequest(text="topic and role are texts")
    topics = [names.parse(one["topic"]) for one in body]
    if len({topic.namespace for topic in topics}) != 1:
        raise web.HTTPBadRequest(text="The namespace should be the same")
    refuse_others_than_administrators(request, topics[0].tenant)
    if not catalogue_of(request).tenants.exists(topics[0].tenant):
        raise web.HTTPNotFound(text="Tenant does not exist")
    for topic in topics:
        _refuse_missing(request, topic)
    return [(str(topic), one["role"], _names(one.get("actions"), "actions", GRANTED) if with_actions else [])
            for topic, one in zip(topics, body, strict=True)]


def _refuse_missing(request: web.Request, topic: TopicName) -> None:
    """Refuse a topic that does not exist; non-persistent topics are always accepted.  Raises Refusal."""
    catalogue = catalogue_of(request)
    if not catalogue.namespaces.exists(topic.namespace) or (
        topic.is_persistent and not catalogue.topics.exists(topic) and not catalogue.topics.partition_count(topic)
    ):
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")


# The body names the tenant, so the functions below let only that tenant's administrators pass.
@routes.post("/admin/v2/namespaces/grantPermissionsOnTopics", right=None)
async def grant_several(request: web.Request) -> web.Response:
    """Grant roles actions on several topics."""
    return _keep_several(request, await _several(request, with_actions=True))


@routes.post("/admin/v2/namespaces/revokePermissionsOnTopics", right=None)
async def revoke_several(request: web.Request) -> web.Response:
    """Revoke roles' actions on several topics."""
    return _keep_several(request, await _several(request, with_actions=False))


def _keep_several(request: web.Request, grants: list[tuple[str, str, list[str]]]) -> web.Response:
    catalogue = catalogue_of(request)
    for topic, role, actions in grants:
        _set(catalogue, topic, PERMISSIONS, role, actions)
    catalogue.commit()
    return done()


# -- of a namespace's subscriptions: which roles may use them

@routes.get(_NAMESPACE + "/subscription", right=rights.NAMESPACE)
async def of_subscriptions(request: web.Request) -> web.Response:
    """Answer with the roles that may use each subscription of a namespace."""
    return web.json_response(catalogue_of(request).policies.of(namespace_of(request)).get(SUBSCRIPTION_PERMISSIONS, {}))


@routes.post(_NAMESPACE + "/subscription/{subscription}", right=rights.NAMESPACE)
async def grant_subscription(request: web.Request) -> web.Response:
    """Grant roles the use of a subscription."""
    scope, roles = namespace_of(request), _names(await body_of(request), "roles")
    return _keep(catalogue_of(request), scope, SUBSCRIPTION_PERMISSIONS, subscription_of(request), roles)


@routes.delete(_NAMESPACE + "/{subscription}/{role}", right=rights.NAMESPACE)
async def revoke_subscription(request: web.Request) -> web.Response:
    """Revoke a role's use of a subscription."""
    scope, catalogue, name = namespace_of(request), catalogue_of(request), subscription_of(request)
    roles = catalogue.policies.of(scope).get(SUBSCRIPTION_PERMISSIONS, {}).get(name)
    if roles is None:
        raise web.HTTPNotFound(text=f"Nothing was granted for subscription {name}")
    remaining = [role for role in roles if role != part_of(request, "role")]
    return _keep(catalogue, scope, SUBSCRIPTION_PERMISSIONS, name, remaining)
