"""Policies of namespaces and topics over HTTP: GET, POST or PUT, and DELETE of every `Route` of policy_table.py.

Before an answer leaves, the catalogue has the change on disk and every owner applies it.
"""
from typing import Any

from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import ApplyPolicies
from geminga.storage.catalogue.policies import CLASHING, DISPATCH_RATE_OF, applied, clash, layered, refuse_own_letters
from geminga.storage.catalogue.policy_declaration import NAMESPACE as NAMESPACE_LEVEL
from geminga.storage.catalogue.policy_declaration import OWN_CLUSTER, Nothing, Policy, Route, default, read
from geminga.storage.catalogue.policy_declaration import TOPIC as TOPIC_LEVEL
from geminga.storage.catalogue.policy_table import TABLE, TOO_LARGE_SIZE
from geminga.storage.catalogue.policy_values import Invalid, OutOfRange
from geminga.storage.catalogue.stored_policies import PERMISSIONS, REPLICATION
from geminga.storage.scalable import auto_scaling
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    PATH,
    SCALABLE,
    TOPIC,
    TOPICS,
    body_of,
    done,
    is_set,
    namespace_of,
    part_of,
    subscription_of,
    topic_of,
)
from geminga.supervisor.admin.resources import cluster_lists
from geminga.supervisor.admin.resources.cluster_lists import ALLOWED, LISTS, Choice
from geminga.supervisor.admin.resources.clusters import choice

routes = rights.Routes()
_NAMESPACE, _TOPIC = "/admin/v2/namespaces/{tenant}/{namespace}/", TOPIC + "/"
_RIGHTS = {"broker": rights.SUPER, "tenant": rights.TENANT}      # by the words in rows of policies
SETTERS: dict[Any, tuple[Policy, Route]] = {}      # handlers that set a policy
_QUOTAS = {policy.namespace.kind: policy for policy in TABLE.values()
           if policy.namespace is not None and policy.namespace.kind}

# In a namespace's object of policies this rate has an older name too.
_RATE, _OLD_RATE = "topicDispatchRate", "clusterDispatchRate"
# Policies that the object lacks unless they are set.
_SHOWN_WHEN_SET = "maxTopicsPerNamespace", "dispatcherPauseOnAckStatePersistent"


# -- scopes

def _scope(request: web.Request) -> str:
    """Return the namespace or topic whose policies the path names.

    Raises HTTPNotFound, HTTPPreconditionFailed, Refusal.
    """
    if "topic" not in request.match_info:
        return namespace_of(request)
    topic, catalogue = topic_of(request), request.app[TOPICS].catalogue
    if not catalogue.namespaces.exists(topic.namespace):
        raise web.HTTPNotFound(text="Namespace not found")
    if topic.partition >= 0:
        raise web.HTTPPreconditionFailed(text="Not allowed to set/get topic policy for a partition")
    topic = catalogue.topics.whole(topic)
    if catalogue.topics.partition_count(topic) is None:
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    return str(topic)


def _namespace(request: web.Request) -> str:
    """Return the namespace of which, or of whose topic, the path names the policies."""
    return f"{part_of(request, 'tenant')}/{part_of(request, 'namespace')}"


# -- values

def route_of(name: str, *, is_topic: bool) -> Route | None:
    """Return the route of a policy for topics or for namespaces, None if it cannot be set there."""
    policy = TABLE.get(name)
    return policy and policy.route_at(TOPIC_LEVEL if is_topic else NAMESPACE_LEVEL)


def read_value(policy: Policy, route: Route, sent: Any, choice: Choice, topic: TopicName | None = None) -> Any:
    """Check a policy's value from a request, and return it as the catalogue stores it.

    choice: the clusters that a list may name. topic: whose policy it is; None: a namespace's.

    Raises HTTPBadRequest, HTTPPreconditionFailed, HTTPForbidden, HTTPConflict.
    """
    try:
        value = read(policy, sent, name=route.path, too_small=route.refusal)
        if policy.name == "deadLetter" and topic is not None:
            refuse_own_letters(topic, value)
    except OutOfRange as error:
        raise web.HTTPPreconditionFailed(text=str(error)) from None
    except Invalid as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    if policy.name in LISTS:
        return cluster_lists.check(policy.name, value, choice, is_topic=topic is not None)
    return value


def _refuse_size(request: web.Request, value: Any) -> None:
    """Refuse a topic's maximum message size above the broker's.  Raises HTTPPreconditionFailed."""
    if value > request.app[TOPICS].max_message_size:
        raise web.HTTPPreconditionFailed(text=TOO_LARGE_SIZE)


def _refuse_clash(kept: dict[str, Any], changed: str, what: str) -> None:
    if clash(kept):
        text = "Retention Quota must exceed configured backlog quota" if changed == "retention" else \
            "Backlog Quota exceeds configured retention quota"
        raise web.HTTPPreconditionFailed(text=f"{text} for {what}. Please increase retention quota and retry")


# -- a namespace's object of policies

def read_members(body: dict[str, Any], choice: Choice) -> dict[str, Any]:
    """Return {policy: value to store} from the JSON object with which a namespace is created.

    Raises HTTPBadRequest, HTTPPreconditionFailed, HTTPForbidden, HTTPConflict.
    """
    kept = {}
    if not body.get(_RATE) and body.get(_OLD_RATE):
        body = body | {_RATE: body[_OLD_RATE]}
    for policy in TABLE.values():
        route = policy.namespace
        if route is None or not route.member:
            continue
        path = route.member.split("/") + [choice.own] * route.by_cluster
        value: Any = body
        for name in path:
            if value is not None and not isinstance(value, dict):
                raise web.HTTPBadRequest(text=f"{route.member}: expected an object")
            value = None if value is None else value.get(name)
        if value is not None and value != _unset(route, choice.own) and (value or policy.name not in LISTS):
            kept[policy.name] = read_value(policy, route, value, choice)
    _refuse_clash(kept, "retention", "namespace")
    return kept


def members(kept: dict[str, Any], cluster_name: str) -> dict[str, Any]:
    """Return a namespace's policies as Pulsar's JSON object.

    Some policies that are not set appear with their default. kept: {policy: value that is set}.
    """
    shown: dict[str, Any] = {}
    for policy in TABLE.values():
        route = policy.namespace
        if route is None or not route.member:
            continue
        *outer, name = route.member.split("/") + [cluster_name] * route.by_cluster
        into = shown
        for part in outer:
            into = into.setdefault(part, {})
        value = kept.get(policy.name, _unset(route, cluster_name))
        if not isinstance(value, Nothing) and (policy.name in kept or policy.name not in _SHOWN_WHEN_SET):
            into[name] = value
    return shown | {_OLD_RATE: shown[_RATE]}


def _unset(route: Route, cluster_name: str) -> Any:
    return [cluster_name] if route.unset is OWN_CLUSTER else route.unset


# -- requests

def _shown(request: web.Request, policy: Policy) -> Any:
    """Return a policy's value that is set, or with applied=true the value in force; None without one."""
    scope, topics = _scope(request), request.app[TOPICS]
    if "topic" in request.match_info and is_set(request, "applied"):
        in_force = applied(topics.catalogue, topic_of(request), policy, topics.storage)
        return [topics.cluster_name] if in_force is None and policy.name == REPLICATION else in_force
    return topics.catalogue.policies.of(scope).get(policy.name)


async def _text_of(request: web.Request) -> Any:
    try:
        return await body_of(request)
    except web.HTTPBadRequest:
        return (await request.read()).decode(errors="replace")


async def _set(request: web.Request, policy: Policy, route: Route, sent: Any) -> web.Response:
    scope, catalogue = _scope(request), request.app[TOPICS].catalogue
    if sent is None and policy.name in LISTS:
        sent = []
    if sent is None:
        if not route.nullable:
            raise web.HTTPBadRequest(text="The request entity cannot be empty")
        return await _keep(request, scope, policy.name, None)
    topic = topic_of(request) if "topic" in request.match_info else None
    what = "namespace" if topic is None else "topic"
    value = read_value(policy, route, sent, choice(request, _namespace(request)), topic)
    if policy.name == "maxMessageSize":
        _refuse_size(request, value)
    if policy.name == ALLOWED:
        cluster_lists.refuse_gap(catalogue, scope, value)
    if policy.name in CLASHING:
        above = catalogue.policies.of(_namespace(request))      # holds for a topic that has no value of its own
        _refuse_clash(above | catalogue.policies.of(scope) | {policy.name: value}, policy.name, what)
    return await _keep(request, scope, policy.name, value, route.status)


async def _keep(request: web.Request, scope: str, name: str, value: Any, status: int = 204) -> web.Response:
    """Store a policy's value, and answer when it is in force.

    None removes the policy, so that the value of the namespace or the broker is in force.
    """
    topics = request.app[TOPICS]
    topics.catalogue.policies.set(scope, name, value)
    if name == auto_scaling.DECLARATION.name:
        in_force = layered(topics.catalogue, dict.fromkeys((_namespace(request), scope)), TABLE[name], topics.storage)
        try:
            auto_scaling.refuse_contradiction(auto_scaling.policy_of(in_force))
        except OutOfRange as error:      # which undoes the change
            raise web.HTTPPreconditionFailed(text=str(error)) from None
    return await _take_effect(request, scope, status)


async def _take_effect(request: web.Request, scope: str, status: int = 204) -> web.Response:
    request.app[TOPICS].catalogue.commit()
    await request.app[OWNERS].tell_all(ApplyPolicies(scope=scope))
    return web.Response(status=status)


def _add(policy: Policy, route: Route, prefix: str) -> None:
    """Serve a policy under a path."""
    async def get(request: web.Request) -> web.Response:
        value = _shown(request, policy)
        if value is not None and route.is_raw:
            return web.Response(text=value, content_type="application/json")
        if value is not None:
            return web.json_response(value)
        unset = _unset(route, request.app[TOPICS].cluster_name)
        if isinstance(unset, Nothing):
            return web.Response(status=unset.status, content_type="application/json")
        return web.json_response(unset)

    async def put(request: web.Request) -> web.Response:
        if route.implied is not None:
            return await _set(request, policy, route, route.implied)
        if route.query:
            return await _set(request, policy, route, request.query.get(route.query))
        return await _set(request, policy, route, await (_text_of if route.is_raw else body_of)(request))

    async def delete(request: web.Request) -> web.Response:
        return await _keep(request, _scope(request), policy.name, None)

    get.__doc__ = f"Answer with the policy {policy.name}.\n\n{policy.doc}"
    put.__doc__ = f"Set the policy {policy.name}.\n\n{policy.doc}"
    delete.__doc__ = f"Remove the policy {policy.name}.\n\n{policy.doc}"
    SETTERS[put] = policy, route
    usual = rights.NAMESPACE if prefix == _NAMESPACE else rights.TOPIC_POLICY
    may_set = _RIGHTS.get(route.right_to_set, usual)
    routes.get(prefix + route.path, right=_RIGHTS.get(route.right_to_get, usual))(get)
    routes.route(route.method, prefix + route.path, right=may_set)(put)
    if route.removable:
        routes.delete(prefix + (route.remove or route.path), right=may_set)(delete)


for _policy in TABLE.values():
    for _route, _prefix in ((_policy.namespace, _NAMESPACE), (_policy.topic, _TOPIC)):
        if _route is not None and not _route.kind:
            _add(_policy, _route, _prefix)
_add(auto_scaling.DECLARATION, Route("autoScalePolicy"), SCALABLE + "/")      # which has no other policy of its own


# -- backlog quotas: a parameter says which one is set, and one object shows all

def _quota(request: web.Request) -> tuple[Policy, Route]:
    """Return the backlog quota that the request's parameter backlogQuotaType names.  Raises HTTPBadRequest."""
    kind = request.query.get("backlogQuotaType") or "destination_storage"
    if kind not in _QUOTAS:
        raise web.HTTPBadRequest(text=f"backlogQuotaType is one of {', '.join(_QUOTAS)}")
    policy = _QUOTAS[kind]
    route = route_of(policy.name, is_topic="topic" in request.match_info)
    assert route is not None      # quotas are set for both
    return policy, route


@routes.get(_NAMESPACE + "backlogQuotaMap", right=rights.NAMESPACE)
@routes.get(_TOPIC + "backlogQuotaMap", right=rights.TOPIC_POLICY)
async def get_quotas(request: web.Request) -> web.Response:
    """Answer with the backlog quotas of a namespace or a topic."""
    quotas = {kind: _shown(request, policy) for kind, policy in _QUOTAS.items()}
    return web.json_response({kind: quota for kind, quota in quotas.items() if quota is not None})


@routes.post(_NAMESPACE + "backlogQuota", right=rights.NAMESPACE)
@routes.post(_TOPIC + "backlogQuota", right=rights.TOPIC_POLICY)
async def set_quota(request: web.Request) -> web.Response:
    """Set a backlog quota of a namespace or a topic."""
    return await _set(request, *_quota(request), await body_of(request))


@routes.delete(_NAMESPACE + "backlogQuota", right=rights.NAMESPACE)
@routes.delete(_TOPIC + "backlogQuota", right=rights.TOPIC_POLICY)
async def delete_quota(request: web.Request) -> web.Response:
    """Remove a backlog quota from a namespace or a topic."""
    return await _keep(request, _scope(request), _quota(request)[0].name, None)


# -- one subscription's dispatch rate, which is stronger than the topic's rate for each subscription

_EACH, _ONE = TABLE["subscriptionDispatchRate"], _TOPIC + "{subscription}/dispatchRate"


def _dispatch_rate_of(request: web.Request) -> str:
    return DISPATCH_RATE_OF + subscription_of(request)


@routes.get(_ONE, right=rights.TOPIC_POLICY)
async def get_dispatch_rate(request: web.Request) -> web.Response:
    """Answer with the dispatch rate of one subscription."""
    rate = request.app[TOPICS].catalogue.policies.of(_scope(request)).get(_dispatch_rate_of(request))
    if rate is None and is_set(request, "applied"):
        rate = _shown(request, _EACH)
    return web.json_response(rate) if rate is not None else web.Response(content_type="application/json")


@routes.post(_ONE, right=rights.TOPIC_POLICY)
async def set_dispatch_rate(request: web.Request) -> web.Response:
    """Set the dispatch rate of one subscription."""
    scope, sent = _scope(request), await body_of(request)
    route = _EACH.topic
    assert route is not None
    value = None if sent is None else read_value(
        _EACH, route, sent, choice(request, _namespace(request)), topic_of(request))
    return await _keep(request, scope, _dispatch_rate_of(request), value)


@routes.delete(_ONE, right=rights.TOPIC_POLICY)
async def delete_dispatch_rate(request: web.Request) -> web.Response:
    """Remove the dispatch rate of one subscription."""
    return await _keep(request, _scope(request), _dispatch_rate_of(request), None)


@routes.delete(_TOPIC + "policies", right=rights.TOPIC_POLICY)
async def delete_all(request: web.Request) -> web.Response:
    """Remove all policies of a topic."""
    scope, catalogue = _scope(request), request.app[TOPICS].catalogue
    for name in catalogue.policies.of(scope).keys() - {PERMISSIONS}:
        catalogue.policies.set(scope, name, None)
    return await _take_effect(request, scope)


# -- where each policy of a topic comes from

@routes.get("/ops/v1/policies" + PATH, right=rights.TOPIC_POLICY)
async def in_force(request: web.Request) -> web.Response:
    """Answer with a row for each policy that has an effect on a topic: its value, and the level that set it.

    A row has the values of all levels, null where none is set.
    """
    scope, topics, topic = _scope(request), request.app[TOPICS], topic_of(request)
    levels = {TOPIC_LEVEL: topics.catalogue.policies.of(scope),
              NAMESPACE_LEVEL: topics.catalogue.policies.of(topic.namespace)}
    rows = []
    for policy in TABLE.values():
        if not policy.where or policy.topic is None:
            continue
        values = {level: kept.get(policy.name) for level, kept in levels.items()}
        origin = next((level for level, value in values.items() if value is not None), "broker")
        rows.append({"policy": policy.name, "value": applied(topics.catalogue, topic, policy, topics.storage),
                     "origin": origin, **values, "broker": default(policy, topics.storage), "meaning": policy.doc})
    return web.json_response(rows)


@routes.get("/ops/v1/policies/{tenant}/{namespace}", right=rights.NAMESPACE)
async def in_force_in_namespace(request: web.Request) -> web.Response:
    """Answer with a row for each policy that a namespace can set: its value, and the level that set it.

    A row has the values of both levels, null where none is set. Topics of the namespace may set another value.
    """
    topics = request.app[TOPICS]
    kept, rows = topics.catalogue.policies.of(namespace_of(request)), []
    for policy in TABLE.values():
        if not policy.where or policy.namespace is None:
            continue
        value, of_broker = kept.get(policy.name), default(policy, topics.storage)
        rows.append({"policy": policy.name, "value": of_broker if value is None else value,
                     "origin": "broker" if value is None else NAMESPACE_LEVEL, NAMESPACE_LEVEL: value,
                     "broker": of_broker, "meaning": policy.doc})
    return web.json_response(rows)


# -- policies that older brokers do not know

_UNHEARD = "fixedDeliveryDelayInMillis", "timePartitionGranularityInMillis"      # fields of delayedDelivery


@routes.get("/ops/v1/downgrade-check")
async def downgrade_check(request: web.Request) -> web.Response:
    """Answer with every place that sets a delayed-delivery option which an older program would ignore.

    Each such namespace and topic has a row; so has the broker's configuration if it sets one.
    """
    topics = request.app[TOPICS]
    delays = topics.catalogue.policies.everywhere("delayedDelivery")
    ignored = [{"of": scope, **{name: kept[name] for name in _UNHEARD if kept.get(name)}}
             for scope, kept in delays.items() if any(kept.get(name) for name in _UNHEARD)]
    if topics.storage.delayed_delivery_fixed_ms:
        ignored.insert(0, {"of": "broker", _UNHEARD[0]: topics.storage.delayed_delivery_fixed_ms})
    return web.json_response(ignored)


# -- resource groups: there are none

@routes.get(_NAMESPACE + "resourcegroup", right=rights.NAMESPACE)
async def resource_group(request: web.Request) -> web.Response:
    """Answer with a namespace's resource group, which it cannot have here."""
    namespace_of(request)
    return web.Response(content_type="application/json")


@routes.post(_NAMESPACE + "resourcegroup/{group}", right=rights.NAMESPACE)
async def set_resource_group(request: web.Request) -> web.Response:
    """Refuse a resource group for a namespace: there are none."""
    namespace_of(request)
    raise web.HTTPPreconditionFailed(text="ResourceGroup does not exist")


@routes.delete(_NAMESPACE + "resourcegroup", right=rights.NAMESPACE)
async def delete_resource_group(request: web.Request) -> web.Response:
    """Remove a namespace's resource group, which it does not have."""
    namespace_of(request)
    return done()
