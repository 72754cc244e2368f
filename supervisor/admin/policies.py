"""Policies over HTTP, of namespaces and of topics: one row of a table each.

What was set is in the catalogue, and every owner goes by it, before the answer leaves.
"""
from typing import Any, NamedTuple

from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.policies import KNOWN, QUOTAS, clash, policies_of
from geminga.supervisor.admin.owners import OWNERS
from geminga.supervisor.admin.topics import PATH, TOPICS, body_of, topic_of

routes = web.RouteTableDef()


class Row(NamedTuple):
    """Where a policy is found."""

    policy: str                  # its name in the catalogue
    of_namespace: str            # last part of the path under a namespace
    of_topic: str                # ... under a topic
    in_query: bool = False       # a topic's is said in the query, by its name
    invalid: int = 400           # status of a value that is none


TABLE = (
    Row("retention", "retention", "retention"),
    Row("messageTTL", "messageTTL", "messageTTL", in_query=True, invalid=412),
    Row("deduplication", "deduplication", "deduplicationEnabled"),
)
_QUOTA = Row("", "backlogQuota", "backlogQuota")      # which one is said in the query
_NAMESPACE, _TOPIC = "/admin/v2/namespaces/{tenant}/{namespace}/", "/admin/v2" + PATH + "/"


# -- whose policies

def namespace_of(request: web.Request) -> str:
    name = "{tenant}/{namespace}".format(**request.match_info)
    if not request.app[TOPICS].catalogue.has_namespace(name):
        raise web.HTTPNotFound(text="Namespace does not exist")
    return name


def _scope(request: web.Request) -> str:
    """The namespace, or the topic, that the path names; it exists."""
    if "topic" not in request.match_info:
        return namespace_of(request)
    topic, catalogue = topic_of(request), request.app[TOPICS].catalogue
    if not catalogue.has_namespace(topic.namespace):
        raise web.HTTPNotFound(text="Namespace not found")
    if topic.partition >= 0:
        raise web.HTTPPreconditionFailed(text="Not allowed to set/get topic policy for a partition")
    if catalogue.partition_count(topic) is None:
        raise Refusal(api.TopicNotFound, f"Topic {topic} not found")
    return str(topic)


# -- values

def read_all(found: dict[str, Any]) -> dict[str, Any]:
    """{name: what a client sent} as it is kept; raises 400 for values that are none, 412 for such that do not go together."""
    try:
        kept = {name: KNOWN[name].read(value) for name, value in found.items()}
    except ValueError as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    _refuse_clash(kept, "retention", "namespace")
    return kept


def _refuse_clash(kept: dict[str, Any], changed: str, what: str) -> None:
    if clash(kept):
        text = "Retention Quota must exceed configured backlog quota" if changed == "retention" else \
            "Backlog Quota exceeds configured retention quota"
        raise web.HTTPPreconditionFailed(text=f"{text} for {what}. Please increase retention quota and retry")


def quota_of(kind: str) -> str:
    """The policy of a type of backlog quota.  Raises 400."""
    if kind not in QUOTAS:
        raise web.HTTPBadRequest(text=f"backlogQuotaType is one of {', '.join(QUOTAS)}")
    return QUOTAS[kind]


def quota_map(kept: dict[str, Any]) -> dict[str, Any]:
    return {kind: kept[name] for kind, name in QUOTAS.items() if name in kept}


# -- what is asked

def _shown(request: web.Request, *policies: str) -> dict[str, Any]:
    """{name: value} of those that were set; applied=true: of all of them, what holds."""
    scope, topics = _scope(request), request.app[TOPICS]
    if "topic" in request.match_info and request.query.get("applied", "").lower() == "true":
        holds = policies_of(topics.catalogue, topic_of(request), topics.storage)
        return {name: KNOWN[name].shown(holds) for name in policies}
    kept = topics.catalogue.policies(scope)
    return {name: kept[name] for name in policies if name in kept}


async def _set(request: web.Request, row: Row, sent: Any) -> web.Response:
    """None takes it away, so that what is set further up holds."""
    scope, catalogue = _scope(request), request.app[TOPICS].catalogue
    try:
        value = None if sent is None else KNOWN[row.policy].read(sent)
    except ValueError as error:
        status = web.HTTPPreconditionFailed if row.invalid == 412 else web.HTTPBadRequest
        raise status(text=str(error)) from None
    if value is not None:
        what = "topic" if "topic" in request.match_info else "namespace"
        _refuse_clash(catalogue.policies(scope) | {row.policy: value}, row.policy, what)
    catalogue.set_policy(scope, row.policy, value)
    return await _take_effect(request, scope)


async def _take_effect(request: web.Request, scope: str) -> web.Response:
    request.app[TOPICS].catalogue.commit()
    await request.app[OWNERS].tell_all("policies", scope=scope)
    return web.Response(status=204)


def _add(row: Row) -> None:
    async def get(request: web.Request) -> web.Response:
        found = _shown(request, row.policy)
        return web.json_response(found[row.policy]) if found else web.Response(content_type="application/json")

    async def post(request: web.Request) -> web.Response:
        in_query = row.in_query and "topic" in request.match_info
        return await _set(request, row, request.query.get(row.of_topic) if in_query else await body_of(request))

    async def delete(request: web.Request) -> web.Response:
        return await _set(request, row, None)

    for path in (_NAMESPACE + row.of_namespace, _TOPIC + row.of_topic):
        routes.get(path)(get)
        routes.post(path)(post)
        routes.delete(path)(delete)


for _row in TABLE:
    _add(_row)


@routes.get(_NAMESPACE + "backlogQuotaMap")
@routes.get(_TOPIC + "backlogQuotaMap")
async def get_quotas(request: web.Request) -> web.Response:
    return web.json_response(quota_map(_shown(request, *QUOTAS.values())))


@routes.post(_NAMESPACE + "backlogQuota")
@routes.post(_TOPIC + "backlogQuota")
async def set_quota(request: web.Request) -> web.Response:
    return await _set(request, _quota(request), await body_of(request))


@routes.delete(_NAMESPACE + "backlogQuota")
@routes.delete(_TOPIC + "backlogQuota")
async def delete_quota(request: web.Request) -> web.Response:
    return await _set(request, _quota(request), None)


def _quota(request: web.Request) -> Row:
    return _QUOTA._replace(policy=quota_of(request.query.get("backlogQuotaType") or "destination_storage"))


@routes.delete(_TOPIC + "policies")
async def delete_all(request: web.Request) -> web.Response:
    scope, catalogue = _scope(request), request.app[TOPICS].catalogue
    for name in catalogue.policies(scope):
        catalogue.set_policy(scope, name, None)
    return await _take_effect(request, scope)
