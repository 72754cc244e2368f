"""Clusters: this one, and the records of others, to which topics can be replicated."""
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.proto.json_object import JsonObject
from geminga.storage.admin.questions import ApplyOptions
from geminga.storage.catalogue.policies import CLUSTERS, MIGRATED, MIGRATION
from geminga.storage.catalogue.policy_values import Invalid
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.authentication import IDENTITY
from geminga.supervisor.admin.requests.authorization import AUTHORIZATION
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import TOPICS, body_of, catalogue_of, done, is_set, part_of
from geminga.supervisor.admin.resources import cluster_records
from geminga.supervisor.admin.resources.cluster_lists import PEERS, Choice, choice_of, use_of
from geminga.workers.identity.authentication import LOCAL

routes = rights.Routes()
_CLUSTER = "/admin/v2/clusters/{cluster}"
_PEERS = "peerClusterNames"        # field of a cluster's data, which the catalogue keeps in a scope of its own
DOMAINS = "/clusters/domains"      # a scope of policies in the catalogue; names of namespaces never begin with /


def all_of(request: web.Request) -> dict[str, JsonObject]:
    """Return {cluster: its record}; this cluster's record has its own addresses unless others were set."""
    topics = request.app[TOPICS]
    own = topics.addresses.named(http="serviceUrl", http_tls="serviceUrlTls",
                                     service="brokerServiceUrl", service_tls="brokerServiceUrlTls")
    return {topics.cluster_name: own} | topics.catalogue.policies.of(CLUSTERS)


def choice(request: web.Request, namespace: str) -> Choice:
    """Return the clusters that lists of a namespace, and of its topics, may name."""
    topics = request.app[TOPICS]
    return choice_of(topics.catalogue, topics.cluster_name, frozenset(all_of(request)), namespace)


def _cluster(request: web.Request) -> str:
    """Return the cluster that the request's path names.  Raises 404 if the cluster does not exist."""
    name = part_of(request, "cluster")
    if name not in all_of(request):
        raise web.HTTPNotFound(text="Cluster does not exist")
    return name


def _present(request: web.Request) -> str:
    """Return the cluster that the path names.  Raises 412, which Pulsar has on these paths, if it does not exist."""
    if (name := part_of(request, "cluster")) not in all_of(request):
        raise web.HTTPPreconditionFailed(text=f"Cluster {name} does not exist.")
    return name


def _domain(request: web.Request, missing: str) -> tuple[str, str, JsonObject]:
    """Return (cluster, failure domain, all domains of the cluster) of the path.  Raises 404, 412."""
    cluster, name = _present(request), part_of(request, "domain")
    if name not in (domains := _domains(request, cluster)):
        raise web.HTTPNotFound(text=missing.format(name=name, cluster=cluster))
    return cluster, name, domains


def _keep(request: web.Request, name: str, values: JsonObject) -> None:
    """Keep {scope: value} of a cluster, or of a policy about clusters, in one commit; None removes."""
    for scope, value in values.items():
        catalogue_of(request).policies.set(scope, name, value)
    catalogue_of(request).commit()


def sees_secrets(request: web.Request) -> bool:
    """Whether the request's role may see credentials of clusters: where roles are told apart, these are super users.

    Elsewhere only a caller on the host, by the socket in the data folder, sees them.
    """
    return request.app[AUTHORIZATION].is_enabled or request[IDENTITY].method == LOCAL


@routes.get("/admin/v2/clusters", right=None)
async def clusters(request: web.Request) -> web.Response:
    """Answer with the names of all clusters."""
    return web.json_response(sorted(all_of(request)))


@routes.get(_CLUSTER)
async def cluster(request: web.Request) -> web.Response:
    """Answer with the record of a cluster and its peers; credentials are shown to super users."""
    name = _cluster(request)
    record = cluster_records.shown(all_of(request)[name], with_secret=sees_secrets(request))
    peers = catalogue_of(request).policies.of(PEERS).get(name)
    return web.json_response(record | ({_PEERS: peers} if peers else {}))


@routes.put(_CLUSTER)
async def create(request: web.Request) -> web.Response:
    """Add a cluster."""
    name = part_of(request, "cluster")
    record, peers = await _record(request, name), await _peers(request)
    try:
        names.parse_namespace(f"{name}/x")
    except Refusal:
        raise web.HTTPPreconditionFailed(text="Cluster name is not valid") from None
    if name == request.app[TOPICS].cluster_name:
        raise web.HTTPConflict(text=f"Cluster already exists: {name} is this broker's own name, cluster_name in its "
                                    "configuration; clusters that replicate need different ones")
    if name in all_of(request):
        raise web.HTTPConflict(text="Cluster already exists")
    _keep(request, name, {CLUSTERS: record, PEERS: peers})
    if use_of(catalogue_of(request), name):      # a list from before this broker's own name was changed
        await request.app[OWNERS].tell_all(ApplyOptions())
    return web.Response(status=200)


@routes.post(_CLUSTER)
async def update(request: web.Request) -> web.Response:
    """Replace the record of a cluster, and its peers."""
    name = _cluster(request)
    _keep(request, name, {CLUSTERS: await _record(request, name), PEERS: await _peers(request)})
    return web.Response(status=200)


@routes.delete(_CLUSTER)
async def delete(request: web.Request) -> web.Response:
    """Remove a cluster."""
    name = _cluster(request)
    if name == request.app[TOPICS].cluster_name:
        raise web.HTTPPreconditionFailed(text="Cluster not empty: it is this broker's own")
    if place := use_of(catalogue_of(request), name):
        raise web.HTTPPreconditionFailed(text=f"Cluster not empty: {place} names it")
    _keep(request, name, dict.fromkeys((CLUSTERS, PEERS, DOMAINS)))
    return done()


async def _record(request: web.Request, name: str) -> JsonObject:
    """Return the record of a cluster in the request's body.  Raises 400, 412."""
    sent = await body_of(request)
    if sent is None:
        raise web.HTTPBadRequest(text="cluster data is required")
    topics = request.app[TOPICS]
    try:
        record = cluster_records.read(sent, topics.catalogue.policies.of(CLUSTERS).get(name, {}))
    except Invalid as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    if name != topics.cluster_name:
        try:
            cluster_records.check_remote(record, topics.addresses)
        except Invalid as error:
            raise web.HTTPPreconditionFailed(text=str(error)) from None
    return record


# -- migration: where producers and consumers of this cluster are sent

@routes.get(_CLUSTER + "/migrate")
async def migration(request: web.Request) -> web.Response:
    """Answer with the cluster to which clients are redirected."""
    said = catalogue_of(request).policies.of(MIGRATION)
    if _cluster(request) != request.app[TOPICS].cluster_name or not said:
        raise web.HTTPNotFound(text="Nothing was said of its migration")
    return web.json_response({"migrated": bool(said.get(MIGRATED)), "migratedClusterUrl": said.get("to")})


@routes.post(_CLUSTER + "/migrate")
async def migrate(request: web.Request) -> web.Response:
    """Redirect clients to another cluster: all clients with migrated=true, else only those of marked namespaces."""
    if _cluster(request) != request.app[TOPICS].cluster_name:
        raise web.HTTPMethodNotAllowed(request.method, [], text="Only topics of this cluster are here")
    is_migrated = is_set(request, "migrated")
    record = await _record(request, request.app[TOPICS].cluster_name)
    to = {name: url for name, url in record.items() if name in cluster_records.URLS}
    if not to.get("brokerServiceUrl") and not to.get("brokerServiceUrlTls"):
        raise web.HTTPBadRequest(text="brokerServiceUrl or brokerServiceUrlTls is needed: "
                                      "the address to which clients are sent")
    catalogue_of(request).policies.set(MIGRATION, "to", to)
    _keep(request, MIGRATED, {MIGRATION: is_migrated})
    await request.app[OWNERS].tell_all(ApplyOptions())
    return web.Response(status=200)


# -- peers and failure domains

@routes.get(_CLUSTER + "/peers")
async def peers(request: web.Request) -> web.Response:
    """Answer with the peers of a cluster."""
    return web.json_response(catalogue_of(request).policies.of(PEERS).get(_cluster(request), []))


@routes.post(_CLUSTER + "/peers")
async def set_peers(request: web.Request) -> web.Response:
    """Set the peers of a cluster."""
    name, peers = _cluster(request), _names(await body_of(request))
    for peer in peers or ():
        if peer == name:
            raise web.HTTPPreconditionFailed(text=f"{name} itself can't be part of peer-list")
        if peer not in all_of(request):
            raise web.HTTPPreconditionFailed(text=f"Peer cluster {peer} does not exist")
    _keep(request, name, {PEERS: peers})
    return done()


async def _peers(request: web.Request) -> list[str] | None:
    """Return the peers in a cluster's data, which may be added later, None for none.  Raises 400."""
    sent = await body_of(request)
    return _names(sent.get(_PEERS) if isinstance(sent, dict) else None)


def _names(peers: Any) -> list[str] | None:
    """Return the cluster names in a list of peers, without empty ones; None if there are none.  Raises 400.

    pulsarctl sends an empty name where none is given.
    """
    if peers is not None and (not isinstance(peers, list) or not all(isinstance(one, str) for one in peers)):
        raise web.HTTPBadRequest(text="The peers of a cluster are a list of names")
    return [peer for peer in peers or () if peer] or None


def _domains(request: web.Request, cluster: str) -> JsonObject:
    domains: JsonObject = catalogue_of(request).policies.of(DOMAINS).get(cluster, {})
    return domains


@routes.get(_CLUSTER + "/failureDomains")
async def domains(request: web.Request) -> web.Response:
    """Answer with the failure domains of a cluster."""
    return web.json_response(_domains(request, _cluster(request)))


@routes.get(_CLUSTER + "/failureDomains/{domain}")
async def domain(request: web.Request) -> web.Response:
    """Answer with the brokers of a failure domain."""
    _, name, domains = _domain(request, "Domain {name} for cluster {cluster} does not exist")
    return web.json_response(domains[name])


@routes.post(_CLUSTER + "/failureDomains/{domain}")
async def set_domain(request: web.Request) -> web.Response:
    """Set the brokers of a failure domain."""
    body, cluster, name = await body_of(request), _present(request), part_of(request, "domain")
    if not isinstance(body, dict) or not isinstance(body.get("brokers") or [], list) or \
            not all(isinstance(one, str) for one in body.get("brokers") or []):
        raise web.HTTPBadRequest(text="The body is an object: brokers is a list of names")
    domains, brokers = _domains(request, cluster), body.get("brokers") or []
    for other, known in domains.items():
        if other != name and (twice := [broker for broker in known["brokers"] if broker in brokers]):
            raise web.HTTPConflict(text=f"[{', '.join(twice)}] already exists in {other}")
    _keep(request, cluster, {DOMAINS: domains | {name: {"brokers": brokers}}})
    return done()


@routes.delete(_CLUSTER + "/failureDomains/{domain}")
async def delete_domain(request: web.Request) -> web.Response:
    """Remove a failure domain."""
    cluster, name, domains = _domain(request, "Domain-name {name} or cluster {cluster} does not exist")
    del domains[name]
    _keep(request, cluster, {DOMAINS: domains or None})
    return web.Response(status=200)


@routes.get(_CLUSTER + "/namespaceIsolationPolicies")
@routes.get(_CLUSTER + "/namespaceIsolationPolicies/{policy}")
@routes.get(_CLUSTER + "/namespaceIsolationPolicies/brokers/{broker}")
async def isolation(request: web.Request) -> web.Response:
    """Answer 404: one broker has nothing to isolate."""
    raise web.HTTPNotFound(text=f"NamespaceIsolationPolicies for cluster {_present(request)} does not exist")


@routes.post(_CLUSTER + "/namespaceIsolationPolicies/{policy}")
async def not_here(request: web.Request) -> web.Response:
    """Refuse an isolation policy: one broker has all namespaces."""
    _present(request)
    raise web.HTTPMethodNotAllowed(request.method, [], text="There is one broker, which has all namespaces")
