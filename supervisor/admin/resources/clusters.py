"""Clusters: this one, and the records of others.

Records of other clusters are stored and shown, and have no effect on a single host.
"""
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.storage.admin.questions import ApplyOptions
from geminga.storage.catalogue.policies import MIGRATED, MIGRATION
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import TOPICS, body_of, catalogue_of, done, part_of

routes = web.RouteTableDef()
_CLUSTER = "/admin/v2/clusters/{cluster}"
# scopes of policies in the catalogue; names of namespaces never begin with /
SCOPE, PEERS, DOMAINS = "/clusters", "/clusters/peers", "/clusters/domains"
_URLS = {"serviceUrl": ("http://",), "serviceUrlTls": ("https://",), "brokerServiceUrl": ("pulsar://",),
         "brokerServiceUrlTls": ("pulsar+ssl://",)}
_ALWAYS = {"brokerClientTlsEnabled": False, "tlsAllowInsecureConnection": False,
           "brokerClientTlsEnabledWithKeyStore": False}
DATA = (*_URLS, *_ALWAYS)            # fields of a cluster's record


def all_of(request: web.Request) -> dict[str, dict[str, Any]]:
    """Return {cluster: its record}; this cluster's record has its own addresses unless others were set."""
    topics = request.app[TOPICS]
    own = topics.addresses.named(http="serviceUrl", http_tls="serviceUrlTls",
                                     service="brokerServiceUrl", service_tls="brokerServiceUrlTls")
    return {topics.cluster_name: own} | topics.catalogue.policies.of(SCOPE)


def _cluster(request: web.Request) -> str:
    """Return the cluster that the request's path names.  Raises 404 if the cluster does not exist."""
    name = part_of(request, "cluster")
    if name not in all_of(request):
        raise web.HTTPNotFound(text="Cluster does not exist")
    return name


def _keep(request: web.Request, scope: str, name: str, value: Any) -> None:
    catalogue_of(request).policies.set(scope, name, value)
    catalogue_of(request).commit()


@routes.get("/admin/v2/clusters")
async def clusters(request: web.Request) -> web.Response:
    return web.json_response(sorted(all_of(request)))


@routes.get(_CLUSTER)
async def cluster(request: web.Request) -> web.Response:
    return web.json_response(_ALWAYS | all_of(request)[_cluster(request)])


@routes.put(_CLUSTER)
async def create(request: web.Request) -> web.Response:
    name, data = part_of(request, "cluster"), await _data(request)
    try:
        names.parse_namespace(f"{name}/x")
    except Refusal:
        raise web.HTTPPreconditionFailed(text="Cluster name is not valid") from None
    if name in all_of(request):
        raise web.HTTPConflict(text="Cluster already exists")
    _keep(request, SCOPE, name, data)
    return web.Response(status=200)


@routes.post(_CLUSTER)
async def update(request: web.Request) -> web.Response:
    name, data = _cluster(request), await _data(request)
    _keep(request, SCOPE, name, data)
    return web.Response(status=200)


@routes.delete(_CLUSTER)
async def delete(request: web.Request) -> web.Response:
    name = _cluster(request)
    if name == request.app[TOPICS].cluster_name:
        raise web.HTTPPreconditionFailed(text="Cluster not empty: it is this broker's own")
    for scope in (SCOPE, PEERS, DOMAINS):
        _keep(request, scope, name, None)
    return done()


async def _data(request: web.Request) -> dict[str, Any]:
    data = await body_of(request)
    if data is None:
        raise web.HTTPBadRequest(text="cluster data is required")
    if not isinstance(data, dict):
        raise web.HTTPBadRequest(text="The body is an object of addresses")
    for name, beginnings in _URLS.items():
        for url in _parts(data.get(name)):
            if not url.startswith(beginnings):
                raise web.HTTPBadRequest(text=f"Illegal {name}, example: {beginnings[0]}pulsar.example.com:8080")
    return {name: value for name, value in data.items() if value is not None and (name in _URLS or name in _ALWAYS)}


def _parts(url: Any) -> list[str]:
    """Split a list of addresses at its commas; a value that is no text gives [""]."""
    if url is None or url == "":
        return []
    return url.split(",") if isinstance(url, str) else [""]


# -- migration: where producers and consumers of this cluster are sent

@routes.get(_CLUSTER + "/migrate")
async def migration(request: web.Request) -> web.Response:
    said = catalogue_of(request).policies.of(MIGRATION)
    if _cluster(request) != request.app[TOPICS].cluster_name or not said:
        raise web.HTTPNotFound(text="Nothing was said of its migration")
    return web.json_response({"migrated": bool(said.get(MIGRATED)), "migratedClusterUrl": said.get("to")})


@routes.post(_CLUSTER + "/migrate")
async def migrate(request: web.Request) -> web.Response:
    """Redirect clients to another cluster: all clients with migrated=true, else only those of marked namespaces."""
    if _cluster(request) != request.app[TOPICS].cluster_name:
        raise web.HTTPMethodNotAllowed(request.method, [], text="Only topics of this cluster are here")
    to = {name: url for name, url in (await _data(request)).items() if name in _URLS}
    if not to.get("brokerServiceUrl") and not to.get("brokerServiceUrlTls"):
        raise web.HTTPBadRequest(text="brokerServiceUrl or brokerServiceUrlTls is needed: "
                                      "the address to which clients are sent")
    catalogue_of(request).policies.set(MIGRATION, "to", to)
    _keep(request, MIGRATION, MIGRATED, request.query.get("migrated", "").lower() == "true")
    await request.app[OWNERS].tell_all(ApplyOptions())
    return web.Response(status=200)


# -- peers and failure domains

@routes.get(_CLUSTER + "/peers")
async def peers(request: web.Request) -> web.Response:
    return web.json_response(catalogue_of(request).policies.of(PEERS).get(_cluster(request), []))


@routes.post(_CLUSTER + "/peers")
async def set_peers(request: web.Request) -> web.Response:
    peers, name = await body_of(request) or [], _cluster(request)
    if not isinstance(peers, list) or not all(isinstance(one, str) for one in peers):
        raise web.HTTPBadRequest(text="The body is a list of names")
    for one in peers:
        if one == name:
            raise web.HTTPPreconditionFailed(text=f"{name} itself can't be part of peer-list")
        if one not in all_of(request):
            raise web.HTTPPreconditionFailed(text=f"Peer cluster {one} does not exist")
    _keep(request, PEERS, name, peers or None)
    return done()


def _domains(request: web.Request) -> dict[str, Any]:
    return catalogue_of(request).policies.of(DOMAINS).get(_cluster(request), {})


@routes.get(_CLUSTER + "/failureDomains")
async def domains(request: web.Request) -> web.Response:
    return web.json_response(_domains(request))


@routes.get(_CLUSTER + "/failureDomains/{domain}")
async def domain(request: web.Request) -> web.Response:
    domains, name = _domains(request), part_of(request, "domain")
    if name not in domains:
        raise web.HTTPNotFound(text=f"Domain {name} for cluster {_cluster(request)} does not exist")
    return web.json_response(domains[name])


@routes.post(_CLUSTER + "/failureDomains/{domain}")
async def set_domain(request: web.Request) -> web.Response:
    body, domains, name = await body_of(request), _domains(request), part_of(request, "domain")
    if not isinstance(body, dict) or not isinstance(body.get("brokers") or [], list) or \
            not all(isinstance(one, str) for one in body.get("brokers") or []):
        raise web.HTTPBadRequest(text="The body is an object: brokers is a list of names")
    _keep(request, DOMAINS, _cluster(request), domains | {name: {"brokers": body.get("brokers") or []}})
    return done()


@routes.delete(_CLUSTER + "/failureDomains/{domain}")
async def delete_domain(request: web.Request) -> web.Response:
    domains, name = _domains(request), part_of(request, "domain")
    if name not in domains:
        raise web.HTTPNotFound(text=f"Domain-name {name} or cluster {_cluster(request)} does not exist")
    del domains[name]
    _keep(request, DOMAINS, _cluster(request), domains or None)
    return web.Response(status=200)


@routes.get(_CLUSTER + "/namespaceIsolationPolicies")
@routes.get(_CLUSTER + "/namespaceIsolationPolicies/{policy}")
@routes.get(_CLUSTER + "/namespaceIsolationPolicies/brokers/{broker}")
async def isolation(request: web.Request) -> web.Response:
    raise web.HTTPNotFound(text=f"NamespaceIsolationPolicies for cluster {_cluster(request)} does not exist")


@routes.post(_CLUSTER + "/namespaceIsolationPolicies/{policy}")
async def not_here(request: web.Request) -> web.Response:
    _cluster(request)
    raise web.HTTPMethodNotAllowed(request.method, [], text="There is one broker, which has all namespaces")
