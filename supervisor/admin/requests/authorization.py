"""Authorization of HTTP requests: a table says which right each route demands, and a middleware checks it.

Statuses are Pulsar's, as clients depend on them. Revoking a right returns after every worker has closed the producers
and consumers that used it.
"""
import asyncio
from typing import NamedTuple, NoReturn

from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import CONSUME, LOOKUP, PRODUCE
from geminga.proto.errors import Refusal
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.runtime.counters import Counters
from geminga.supervisor.admin.requests.authentication import IDENTITY, is_page
from geminga.supervisor.admin.requests.request_parts import (
    COUNTERS,
    catalogue_of,
    part_of,
    schema_topic_of,
    subscription_of,
    topic_of,
)
from geminga.workers.identity.authentication import Identity
from geminga.workers.identity.authorization import ACTIONS, ADMINISTER, Authorization, Decision, Resource

AUTHORIZATION = web.AppKey("authorization", Authorization)
routes = web.RouteTableDef()
_SEEN_SECONDS = 10             # limit for workers to apply changed rights
_AGAIN_SECONDS = 0.005


# -- what every route demands

class Demand(NamedTuple):
    of: str           # the part of the path with the resource: "topic", "namespace", "tenant"; "" for the broker
    action: str       # the right that is needed
    status: int       # status of the answer to roles without that right
    is_hiding: bool = False      # whether a missing tenant gives the same answer, instead of 404


SUPER, TENANTS = Demand("", ADMINISTER, 401), Demand("tenant", ADMINISTER, 401, is_hiding=True)
TENANT, NAMESPACE, TOPIC, TOPIC_POLICY = (Demand("tenant", ADMINISTER, 401), Demand("namespace", ADMINISTER, 403),
                                          Demand("topic", ADMINISTER, 401), Demand("topic", ADMINISTER, 403))
# for routes about all topics of a namespace
LISTS, DISCARDS = Demand("namespace", LOOKUP, 403), Demand("namespace", CONSUME, 403)
LOOKS_UP, PRODUCES, CONSUMES = (Demand("topic", action, 401) for action in (LOOKUP, PRODUCE, CONSUME))
WRITES, READS = Demand("topic", PRODUCE, 403), Demand("topic", CONSUME, 403)      # messages over plain HTTP
_T, _N = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}", "/admin/v2/namespaces/{tenant}/{namespace}"
_S, _SCHEMAS = _T + "/subscription/{subscription}", "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_TABLES = tuple(f"/ops/v1/{table}" for table in ("topics", "subscriptions", "clients"))
_BUNDLE = _N + "/{bundle}"
_TRANSACTIONS, _NAME = "/admin/v3/transactions", "{tenant}/{namespace}/{topic}"
_OPS = "/{domain}/{tenant}/{namespace}/{topic}"
_CONSUMING = "/topics" + _OPS + "/subscription/{subscription}"
_CLUSTER, _BROKERS, _STATS = "/admin/v2/clusters/{cluster}", "/admin/v2/brokers", "/admin/v2/broker-stats"

# (demand, methods, paths). Demand None: every authenticated role may.
_ROWS: tuple[tuple[Demand | None, str, tuple[str, ...]], ...] = (
    (
        None,
        "GET",
        (
            "/status.html",
            "/ready",
            "/metrics",
            "/metrics/",
            f"{_BROKERS}/ready",
            f"{_BROKERS}/version",
            "/admin/v2/clusters",
            "/ops/v1/standby",
            "/openapi.json",
        ),
    ),
    # Features and paths that do not exist here: these routes refuse everybody.
    (
        None,
        "*",
        tuple(
            f"/admin/{path}{{rest}}"
            for path in (
                "v2/bookies",
                "v2/resourcegroups",
                "v2/resource-quotas",
                "v2/worker",
                "v2/functions",
                "v3/functions",
                "v3/sinks",
                "v3/sources",
                "v3/sink",
                "v3/source",
                "v3/packages",
                "v3/transactions",
            )
        ),
    ),
    # The broker
    (
        SUPER,
        "GET",
        (
            _BROKERS,
            *(
                f"{_BROKERS}/{path}"
                for path in (
                    "{cluster}",
                    "leaderBroker",
                    "{cluster}/{broker}/ownedNamespaces",
                    "backlog-quota-check",
                    "internal-configuration",
                    "health",
                    "configuration",
                    "configuration/values",
                    "configuration/runtime",
                )
            ),
        ),
    ),
    (SUPER, "POST", (f"{_BROKERS}/shutdown", f"{_BROKERS}/configuration/{{name}}/{{value}}")),
    (SUPER, "DELETE", (f"{_BROKERS}/configuration/{{name}}",)),
    (
        SUPER,
        "GET",
        tuple(
            f"{_STATS}/{path}" for path in ("topics", "metrics", "mbeans", "load-report", "allocator-stats/{allocator}")
        ),
    ),
    (
        SUPER,
        "GET",
        tuple(
            f"/admin/v2/{path}"
            for path in ("bookies/all", "bookies/racks-info", "resourcegroups", "resourcegroups/{group}")
        ),
    ),
    (SUPER, "GET PUT POST DELETE", (_CLUSTER,)),
    (SUPER, "GET POST", (f"{_CLUSTER}/peers", f"{_CLUSTER}/namespaceIsolationPolicies/{{policy}}")),
    (
        SUPER,
        "GET",
        (
            f"{_CLUSTER}/failureDomains",
            f"{_CLUSTER}/namespaceIsolationPolicies",
            f"{_CLUSTER}/namespaceIsolationPolicies/brokers/{{broker}}",
        ),
    ),
    (SUPER, "GET POST DELETE", (f"{_CLUSTER}/failureDomains/{{domain}}",)),
    (SUPER, "GET POST", (f"{_CLUSTER}/migrate",)),
    (SUPER, "POST", (f"{_N}/migration",)),
    # Tenants and namespaces
    (SUPER, "GET", ("/admin/v2/tenants",)),
    (TENANTS, "GET PUT POST DELETE", ("/admin/v2/tenants/{tenant}",)),
    (TENANT, "GET", ("/admin/v2/namespaces/{tenant}",)),
    (TENANT, "PUT DELETE", (_N,)),
    (TENANT, "GET PUT DELETE", (f"{_N}/properties",)),
    (TENANT, "GET DELETE", (f"{_N}/property/{{key}}",)),
    (TENANT, "PUT", (f"{_N}/property/{{key}}/{{value}}",)),
    (
        NAMESPACE,
        "GET",
        (_N, f"{_N}/permissions", f"{_N}/permissions/subscription", f"{_N}/backlogQuotaMap", f"{_N}/resourcegroup"),
    ),
    (NAMESPACE, "POST DELETE", (f"{_N}/permissions/{{role}}", f"{_N}/backlogQuota")),
    (NAMESPACE, "POST", (f"{_N}/permissions/subscription/{{subscription}}", f"{_N}/resourcegroup/{{group}}")),
    (NAMESPACE, "DELETE", (f"{_N}/permissions/{{subscription}}/{{role}}", f"{_N}/resourcegroup")),
    (NAMESPACE, "GET", (f"{_BUNDLE}/topicHashPositions",)),
    # The body names the tenant.  The route itself lets only that tenant's administrators pass.
    (None, "POST", tuple(f"/admin/v2/namespaces/{what}PermissionsOnTopics" for what in ("grant", "revoke"))),
    (SUPER, "PUT", (f"{_N}/unload", f"{_BUNDLE}/unload", f"{_BUNDLE}/split")),
    (
        LISTS,
        "GET",
        (
            f"{_N}/topics",
            f"{_N}/bundles",
            "/admin/v2/{domain}/{tenant}/{namespace}",
            "/admin/v2/{domain}/{tenant}/{namespace}/partitioned",
        ),
    ),
    (
        DISCARDS,
        "POST",
        tuple(
            f"{path}/{what}"
            for path in (_N, _BUNDLE)
            for what in ("clearBacklog", "clearBacklog/{subscription}", "unsubscribe/{subscription}")
        ),
    ),
    # Topics
    (NAMESPACE, "PUT DELETE", (_T,)),
    (NAMESPACE, "PUT DELETE", (f"{_T}/partitions",)),
    (NAMESPACE, "POST", (f"{_T}/createMissedPartitions",)),
    (TOPIC_POLICY, "POST", (f"{_T}/partitions",)),
    (
        LOOKS_UP,
        "GET",
        (f"{_T}/partitions", f"{_T}/properties", "/lookup/v2/topic" + _OPS, "/lookup/v2/destination" + _OPS),
    ),
    (LISTS, "GET", ("/lookup/v2/topic" + _OPS + "/bundle",)),
    (TENANT, "GET", (f"{_T}/permissions",)),
    (TENANT, "POST DELETE", (f"{_T}/permissions/{{role}}",)),
    (TENANT, "DELETE", (f"{_T}/truncate",)),
    (TOPIC, "PUT DELETE", (f"{_T}/properties",)),
    (TOPIC, "GET PUT", (f"{_T}/compaction", f"{_T}/offload")),
    (TOPIC, "POST", (f"{_T}/terminate", f"{_T}/terminate/partitions", f"{_T}/trim")),
    (TOPIC, "PUT", (f"{_T}/unload",)),
    (
        LOOKS_UP,
        "GET",
        tuple(
            f"{_T}/{what}"
            for what in ("stats", "partitioned-stats", "internalStats", "partitioned-internalStats", "internal-info")
        ),
    ),
    (
        CONSUMES,
        "GET",
        tuple(
            f"{_T}/{what}"
            for what in (
                "subscriptions",
                "lastMessageId",
                "messageid/{time_ms}",
                "getMessageIdByIndex",
                "ledger/{ledger}/entry/{entry}",
                "examinemessage",
                "backlog",
            )
        ),
    ),
    (CONSUMES, "PUT", (f"{_T}/backlogSize",)),
    (CONSUMES, "POST", (f"{_T}/all_subscription/expireMessages/{{seconds}}",)),
    (CONSUMES, "PUT DELETE", (_S,)),
    (CONSUMES, "GET PUT", (f"{_S}/properties",)),
    (CONSUMES, "GET POST", (f"{_S}/replicatedSubscriptionStatus",)),
    (CONSUMES, "GET", (f"{_S}/position/{{number}}",)),
    (
        CONSUMES,
        "POST",
        tuple(
            f"{_S}/{what}"
            for what in (
                "skip_all",
                "skip/{entries}",
                "resetcursor/{time_ms}",
                "resetcursor",
                "expireMessages/{seconds}",
                "expireMessages",
                "analyzeBacklog",
            )
        ),
    ),
    (TOPIC_POLICY, "GET", (f"{_T}/backlogQuotaMap",)),
    (TOPIC_POLICY, "POST DELETE", (f"{_T}/backlogQuota",)),
    (TOPIC_POLICY, "GET POST DELETE", (f"{_T}/{{subscription}}/dispatchRate",)),
    (TOPIC_POLICY, "DELETE", (f"{_T}/policies",)),
    # Transactions.  Pulsar shows the metadata of one to everybody, and the Go client's own tests rely on it.
    (None, "GET", (f"{_TRANSACTIONS}/transactionMetadata/{{most}}/{{least}}",)),
    (
        SUPER,
        "GET",
        tuple(
            f"{_TRANSACTIONS}/{what}"
            for what in (
                "coordinators",
                "coordinatorStats",
                "coordinatorInternalStats/{coordinator}",
                "slowTransactions/{ms}",
                f"transactionInBufferStats/{_NAME}/{{most}}/{{least}}",
                f"transactionInPendingAckStats/{_NAME}/{{subscription}}/{{most}}/{{least}}",
                f"transactionBufferStats/{_NAME}",
                f"transactionBufferInternalStats/{_NAME}",
                f"pendingAckStats/{_NAME}/{{subscription}}",
                f"pendingAckInternalStats/{_NAME}/{{subscription}}",
                f"positionStatsInPendingAck/{_NAME}/{{subscription}}/{{ledger}}/{{entry}}",
            )
        ),
    ),
    (
        SUPER,
        "POST",
        (f"{_TRANSACTIONS}/abortTransaction/{{most}}/{{least}}", f"{_TRANSACTIONS}/transactionCoordinator/replicas"),
    ),
    # Schemas
    (LOOKS_UP, "GET", tuple(f"{_SCHEMAS}/{what}" for what in ("schema", "schema/{version}", "schemas", "metadata"))),
    (LOOKS_UP, "POST", (f"{_SCHEMAS}/version",)),
    (PRODUCES, "POST", (f"{_SCHEMAS}/schema",)),
    (TENANT, "POST", (f"{_SCHEMAS}/compatibility",)),
    (TENANT, "DELETE", (f"{_SCHEMAS}/schema",)),
    # Geminga's own routes
    (CONSUMES, "POST", ("/ops/v1/release" + _OPS + "/{subscription}",)),
    (LOOKS_UP, "GET", tuple(f"/ops/v1/{what}{_OPS}/{{subscription}}" for what in ("why", "cursor"))),
    (CONSUMES, "GET", ("/ops/v1/messages" + _OPS, "/ops/v1/messages" + _OPS + "/{subscription}")),
    (CONSUMES, "GET", ("/ops/v1/payload" + _OPS + "/{message}", "/ops/v1/search" + _OPS)),
    (DISCARDS, "GET", ("/ops/v1/search/{tenant}/{namespace}",)),
    (PRODUCES, "POST", ("/ops/v1/messages" + _OPS,)),
    (SUPER, "GET POST", ("/ops/v1/redrive" + _OPS,)),
    (SUPER, "GET", _TABLES),
    (SUPER, "GET", tuple(f"/ops/v1/transactions{place}" for place in ("", "/{tenant}/{namespace}", _OPS))),
    (SUPER, "DELETE", ("/ops/v1/clients/{address}",)),
    (LISTS, "GET", tuple(f"{table}/{{tenant}}/{{namespace}}" for table in _TABLES)),
    (LOOKS_UP, "GET", tuple(table + _OPS for table in _TABLES)),
    (CONSUMES, "GET", ("/ops/v1/delayed" + _OPS,)),
    (TOPIC_POLICY, "DELETE PATCH", ("/ops/v1/delayed" + _OPS + "/{message}",)),
    (TOPIC_POLICY, "GET", ("/ops/v1/can-i" + _OPS, "/ops/v1/policies" + _OPS)),
    (NAMESPACE, "GET", ("/ops/v1/policies/{tenant}/{namespace}",)),
    (SUPER, "GET", ("/ops/v1/compaction/report", "/ops/v1/compaction", "/ops/v1/tables",
                    "/ops/v1/downgrade-check")),
    (SUPER, "GET", tuple(f"/ops/v1/{what}" for what in ("audit", "configuration", "log"))),
    (SUPER, "GET POST", ("/ops/v1/backup",)),
    (SUPER, "GET POST", ("/ops/v1/definitions",)),
    (SUPER, "GET PUT DELETE", ("/ops/v1/log-level",)),
    (SUPER, "GET", ("/ops/v1/status", "/ops/v1/standby/feed")),
    (SUPER, "POST", ("/ops/v1/alarms/{alarm}/seen",)),
    # Messages over plain HTTP
    (WRITES, "POST", ("/topics" + _OPS, "/topics" + _OPS + "/partitions/{number}")),
    (READS, "GET", (_CONSUMING,)),
    (READS, "POST", (_CONSUMING, _CONSUMING + "/ack", _CONSUMING + "/nack")),
    # WebSocket: the doors look at each topic that the address names.
    (None, "GET", ("/ws/v2/{kind}/{rest}", "/ws/v3/{kind}/{rest}")),
)
DEMANDS = {(method, path): demand for demand, methods, paths in _ROWS for path in paths for method in methods.split()}
_ADMINISTRATION = {"broker": SUPER, "tenant": TENANT}      # by the words in rows of policies
for _policy in TABLE.values():
    for _route, _prefix, _demand in ((_policy.namespace, _N, NAMESPACE), (_policy.topic, _T, TOPIC_POLICY)):
        if _route is not None and not _route.kind:
            _change = _ADMINISTRATION.get(_route.right_to_set, _demand)
            DEMANDS["GET", f"{_prefix}/{_route.path}"] = _ADMINISTRATION.get(_route.right_to_get, _demand)
            DEMANDS[_route.method, f"{_prefix}/{_route.path}"] = _change
            if _route.removable:
                DEMANDS["DELETE", f"{_prefix}/{_route.remove or _route.path}"] = _change


# -- before a request is dealt with

@web.middleware
async def authorize(request: web.Request, handler) -> web.StreamResponse:
    """Pass a request on if its role has the right to make it.

    A change of rights is answered when all workers have applied the new rights.
    """
    authorization, route = request.app[AUTHORIZATION], request.match_info.route
    if not authorization.is_enabled or route.resource is None:       # no route has that path
        return await handler(request)
    authorization.version()
    _check(request, authorization, demand_of(request.method, route.resource.canonical))
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
        _check(request, authorization, demand_of(request.method, match.route.resource.canonical))
    except web.HTTPException as error:
        return error.text or error.reason
    except Refusal as error:
        return error.message
    return ""


def demand_of(method: str, path: str) -> Demand | None:
    """Return the right that a route demands, from the table; a route without a row demands a super user.

    Pages of the console demand none: they ask other routes for what they show, and leave out what the role may not see.
    """
    if is_page(path):
        return None
    method = "GET" if method == "HEAD" else method
    return DEMANDS.get((method, path), DEMANDS.get(("*", path), SUPER))


def refuse_others_than_administrators(request: web.Request, tenant: str) -> None:
    """Refuse a request about a tenant that its body names, unless the role is an administrator of that tenant.

    Raises 401, or 404 if the tenant does not exist.
    """
    if not request.app[AUTHORIZATION].is_enabled:
        return
    decision = request.app[AUTHORIZATION].decide(request[IDENTITY], TENANT.action, tenant, "")
    if not decision.is_allowed:
        _refuse(request, TENANT, tenant, decision)


def _check(request: web.Request, authorization: Authorization, demand: Demand | None) -> None:
    """Refuse a request whose role lacks the demanded right.

    Raises 401, 403, Refusal; 404 if the tenant does not exist.
    """
    if demand is None:
        return
    resource = _resource(request, demand.of)
    subscription = ""
    if demand.action == CONSUME and "subscription" in request.match_info:
        subscription = subscription_of(request)
    decision = authorization.decide(request[IDENTITY], demand.action, resource, subscription)
    if not decision.is_allowed:
        _refuse(request, demand, part_of(request, "tenant") if demand.of else "", decision)


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
        return topic_of(request) if "domain" in request.match_info else schema_topic_of(request)
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

@routes.get("/ops/v1/can-i/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic:[^/]+}")
async def can_i(request: web.Request) -> web.Response:
    """Answer whether a role may do something with a topic, and why."""
    topic, authorization, asked = topic_of(request), request.app[AUTHORIZATION], request.query
    if not asked.get("role"):
        raise web.HTTPBadRequest(text="role says whose right is asked about")
    if asked.get("action") not in ACTIONS:
        raise web.HTTPBadRequest(text=f"action is one of {', '.join(ACTIONS)}")
    who = Identity(asked["role"], proxy=asked.get("proxy", ""))
    decision = authorization.decide(who, asked["action"], topic, asked.get("subscription", ""))
    answer = {"allowed": decision.is_allowed, "why": decision.why}
    return web.json_response(
        answer if decision.is_allowed else answer | {"could_grant": authorization.helpers(topic)})
