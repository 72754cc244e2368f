"""Tenants and namespaces: made, listed, deleted when nothing is in them."""
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.storage.catalogue import Catalogue
from geminga.supervisor.admin import policies
from geminga.supervisor.admin.topics import TOPICS, body_of

routes = web.RouteTableDef()
_TENANT = "/admin/v2/tenants/{tenant}"
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
# What a tenant says of itself, kept as policies of its name.
_ROLES, _CLUSTERS = "adminRoles", "allowedClusters"
_MODES = {"PERSISTENT": ("persistent:",), "NON_PERSISTENT": ("non-persistent:",), "ALL": ("persistent:", "non-persistent:")}


def _catalogue(request: web.Request) -> Catalogue:
    return request.app[TOPICS].catalogue


# -- tenants

@routes.get("/admin/v2/tenants")
async def tenants(request: web.Request) -> web.Response:
    return web.json_response(_catalogue(request).tenants())


@routes.put(_TENANT)
async def create_tenant(request: web.Request) -> web.Response:
    tenant, catalogue = request.match_info["tenant"], _catalogue(request)
    try:
        names.namespace(f"{tenant}/x")
    except Refusal:
        raise web.HTTPPreconditionFailed(text="Tenant name is not valid") from None
    info = await _tenant_info(request)
    if catalogue.has_tenant(tenant):
        raise web.HTTPConflict(text="Tenant already exist")
    catalogue.create_tenant(tenant)
    return _keep_tenant(catalogue, tenant, info)


@routes.post(_TENANT)
async def update_tenant(request: web.Request) -> web.Response:
    info = await _tenant_info(request)
    return _keep_tenant(_catalogue(request), _tenant(request), info)


@routes.get(_TENANT)
async def tenant(request: web.Request) -> web.Response:
    kept = _catalogue(request).policies(_tenant(request))
    return web.json_response({_ROLES: [], _CLUSTERS: [request.app[TOPICS].cluster_name]} | kept)


@routes.delete(_TENANT)
async def delete_tenant(request: web.Request) -> web.Response:
    tenant, catalogue = _tenant(request), _catalogue(request)
    if catalogue.namespaces(tenant):
        raise web.HTTPConflict(text="The tenant still has active namespaces")
    catalogue.delete_tenant(tenant)
    catalogue.commit()
    return web.Response(status=204)


def _tenant(request: web.Request) -> str:
    tenant = request.match_info["tenant"]
    if not _catalogue(request).has_tenant(tenant):
        raise web.HTTPNotFound(text="Tenant does not exist")
    return tenant


async def _tenant_info(request: web.Request) -> dict[str, list[str]]:
    info = await body_of(request)
    if info is None:
        raise web.HTTPPreconditionFailed(text="TenantInfo is null")
    if not isinstance(info, dict) or not all(_is_list_of_texts(info.get(name) or []) for name in (_ROLES, _CLUSTERS)):
        raise web.HTTPBadRequest(text=f"The body is an object: {_ROLES} and {_CLUSTERS} are lists of texts")
    if not info.get(_CLUSTERS):
        raise web.HTTPPreconditionFailed(text="Clusters cannot be empty or blank")
    if info[_CLUSTERS] != [request.app[TOPICS].cluster_name]:
        raise web.HTTPPreconditionFailed(text="Clusters do not exist")
    return {_ROLES: info.get(_ROLES) or [], _CLUSTERS: info[_CLUSTERS]}


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _keep_tenant(catalogue: Catalogue, tenant: str, info: dict[str, list[str]]) -> web.Response:
    for name, value in info.items():
        catalogue.set_policy(tenant, name, value)
    catalogue.commit()
    return web.Response(status=204)


# -- namespaces

@routes.get("/admin/v2/namespaces/{tenant}")
async def namespaces(request: web.Request) -> web.Response:
    return web.json_response(_catalogue(request).namespaces(_tenant(request)))


@routes.put(_NAMESPACE)
async def create_namespace(request: web.Request) -> web.Response:
    """With the policies that its body has; those that this broker does not know are taken for what other brokers need."""
    tenant, catalogue = request.match_info["tenant"], _catalogue(request)
    name = f"{tenant}/{request.match_info['namespace']}"
    try:
        names.namespace(name)
    except Refusal:
        raise web.HTTPPreconditionFailed(text="Namespace name is not valid") from None
    kept = _policies_of(await body_of(request), request.app[TOPICS].cluster_name)
    _tenant(request)
    if catalogue.has_namespace(name):
        raise web.HTTPConflict(text="Namespace already exists")
    catalogue.create_namespace(name)
    for policy, value in kept.items():
        catalogue.set_policy(name, policy, value)
    catalogue.commit()
    return web.Response(status=204)


def _policies_of(body: Any, cluster_name: str) -> dict[str, Any]:
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="The body is an object of policies, or nothing")
    if body.get("encryption_required"):
        raise web.HTTPPreconditionFailed(text="The demand for encrypted messages is not available in this version")
    if body.get("replication_clusters") not in (None, [], [cluster_name]):
        raise web.HTTPForbidden(text=f"Replication to {body['replication_clusters']} is not possible: there is only {cluster_name}")
    return policies.read_members(body, cluster_name)


@routes.get(_NAMESPACE)
async def namespace(request: web.Request) -> web.Response:
    kept = _catalogue(request).policies(policies.namespace_of(request))
    cluster_name = request.app[TOPICS].cluster_name
    found = {"auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
             "replication_clusters": [cluster_name],
             "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
             "deleted": False}
    return web.json_response(found | policies.members(kept, cluster_name))


@routes.delete(_NAMESPACE)
async def delete_namespace(request: web.Request) -> web.Response:
    name, catalogue = policies.namespace_of(request), _catalogue(request)
    if request.query.get("force", "").lower() == "true":
        raise web.HTTPMethodNotAllowed("DELETE", [], text="Broker doesn't allow forced deletion of namespaces")
    deleted = catalogue.delete_namespace(name)
    catalogue.commit()
    if not deleted:
        raise web.HTTPConflict(text="Cannot delete non empty namespace")
    return web.Response(status=204)


@routes.get(_NAMESPACE + "/topics")
async def topics(request: web.Request) -> web.Response:
    mode = request.query.get("mode") or "PERSISTENT"
    if mode not in _MODES:
        raise web.HTTPBadRequest(text=f"mode is one of {', '.join(_MODES)}")
    found = _catalogue(request).topics(policies.namespace_of(request))
    with_system = request.query.get("includeSystemTopic", "").lower() == "true"
    return web.json_response([name for name in found if name.startswith(_MODES[mode]) and (with_system or not names.is_system(name))])
