"""Tenants and namespaces: create, list, delete; and changes of all topics of a namespace at once."""
import zlib
from functools import partial
from typing import Any

from aiohttp import web

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.admin.questions import ApplyPolicies, Clear, OpenTopics, Unload, Unsubscribe
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.database import now_ms
from geminga.storage.catalogue.policies import MIGRATED
from geminga.storage.catalogue.stored_policies import ADMIN_ROLES, REPLICATION
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.authorization import AUTHORIZATION
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import (
    BUNDLE,
    TOPICS,
    as_properties,
    ask_each,
    body_of,
    catalogue_of,
    done,
    is_set,
    keep_properties,
    namespace_of,
    not_allowed,
    part_of,
    properties_of,
    subscription_of,
)
from geminga.supervisor.admin.resources import clusters, permissions, policies
from geminga.supervisor.admin.resources.cluster_lists import Choice
from geminga.supervisor.admin.resources.topics import delete_topics, listed

routes = rights.Routes()
_TENANT = "/admin/v2/tenants/{tenant}"
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
# Policies with the tenant's name as scope.
_ROLES, _CLUSTERS = ADMIN_ROLES, "allowedClusters"
_PREMADE = "public", "public/default"
_MODES = {"PERSISTENT": ("persistent:",), "NON_PERSISTENT": ("non-persistent:",),
          "ALL": ("persistent:", "non-persistent:")}
_BUNDLES_MAX = 128          # Pulsar's limit for the number in a request; every namespace here has one bundle
_ATTEMPTS = 10              # to delete a namespace whose clients create topics again
_BUNDLES = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}


# -- tenants

@routes.get("/admin/v2/tenants")
async def tenants(request: web.Request) -> web.Response:
    """Answer with the names of all tenants."""
    return web.json_response(catalogue_of(request).tenants.names())


@routes.put(_TENANT, right=rights.TENANTS)
async def create_tenant(request: web.Request) -> web.Response:
    """Create a tenant."""
    tenant, catalogue = part_of(request, "tenant"), catalogue_of(request)
    try:
        names.parse_namespace(f"{tenant}/x")
    except Refusal:
        raise web.HTTPPreconditionFailed(text="Tenant name is not valid") from None
    info = await _tenant_info(request)
    if catalogue.tenants.exists(tenant) and not _is_waiting(request, tenant):
        raise web.HTTPConflict(text="Tenant already exist")
    refuse_too_many(request, {tenant}, set())
    catalogue.tenants.create(tenant)
    return _keep_tenant(catalogue, tenant, info)


@routes.post(_TENANT, right=rights.TENANTS)
async def update_tenant(request: web.Request) -> web.Response:
    """Change a tenant's administrators and clusters."""
    info = await _tenant_info(request)
    tenant, catalogue = _tenant(request), catalogue_of(request)
    for scope, in_list in catalogue.policies.everywhere(REPLICATION).items():
        is_inside = scope.rpartition("://")[2].partition("/")[0] == tenant
        if is_inside and (missing := sorted(set(in_list) - set(info[_CLUSTERS]))):
            raise web.HTTPConflict(text=f"{missing[0]} is in {REPLICATION} of {scope}, so the tenant has to keep it")
    return _keep_tenant(catalogue, tenant, info)


@routes.get(_TENANT, right=rights.TENANTS)
async def tenant(request: web.Request) -> web.Response:
    """Answer with a tenant's administrators and clusters."""
    kept = catalogue_of(request).policies.of(_tenant(request))
    return web.json_response({_ROLES: [], _CLUSTERS: [request.app[TOPICS].cluster_name]} | kept)


@routes.delete(_TENANT, right=rights.TENANTS)
async def delete_tenant(request: web.Request) -> web.Response:
    """Delete a tenant; with force=true its namespaces too."""
    is_forced = _is_forced(request, "tenants")
    tenant, catalogue = _tenant(request), catalogue_of(request)
    if is_forced:
        for name in catalogue.namespaces.of_tenant(tenant):
            _refuse_force(request, "namespaces")
            await _delete_namespace(request, name, force=True)
    if catalogue.namespaces.of_tenant(tenant):
        raise web.HTTPConflict(text="The tenant still has active namespaces")
    catalogue.tenants.delete(tenant)
    catalogue.commit()
    return done()


def refuse_too_many(request: web.Request, tenants: set[str], namespaces: set[str]) -> None:
    """Raise 412 if new tenants or namespaces would exceed the configured numbers; those that exist do not count twice.

    Nothing that exists already is refused, so a lowered bound stops only what is new.
    """
    catalogue, options = catalogue_of(request), request.app[TOPICS].storage
    there = set(catalogue.tenants.names())
    if 0 < options.max_tenants < len(there | tenants) and not tenants <= there:
        raise web.HTTPPreconditionFailed(text="Exceed the maximum number of tenants")
    for tenant in sorted({name.partition("/")[0] for name in namespaces}) if options.max_namespaces_per_tenant else ():
        wanted = {name for name in namespaces if name.partition("/")[0] == tenant}
        present = set(catalogue.namespaces.of_tenant(tenant))
        if len(present | wanted) > options.max_namespaces_per_tenant and not wanted <= present:
            raise web.HTTPPreconditionFailed(text=f"Exceed the maximum number of namespace in tenant :{tenant}")


def _is_waiting(request: web.Request, name: str) -> bool:
    """Whether the tenant or namespace is one that every broker has from the start, and nothing of it was set yet.

    Creating such a tenant or namespace succeeds, although it exists. Set-up tools create the tenant `public` with its
    administrators, and ignore the answer. If the answer was a conflict, nobody could use the tenant.
    """
    return request.app[AUTHORIZATION].is_enabled and name in _PREMADE and not catalogue_of(request).policies.of(name)


def _tenant(request: web.Request) -> str:
    tenant = part_of(request, "tenant")
    if not catalogue_of(request).tenants.exists(tenant):
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
    if not set(info[_CLUSTERS]) <= set(clusters.all_of(request)):
        raise web.HTTPPreconditionFailed(text="Clusters do not exist")
    return {_ROLES: info.get(_ROLES) or [], _CLUSTERS: info[_CLUSTERS]}


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _keep_tenant(catalogue: Catalogue, tenant: str, info: dict[str, list[str]]) -> web.Response:
    for name, value in info.items():
        catalogue.policies.set(tenant, name, value)
    catalogue.commit()
    return done()


# -- namespaces

@routes.get("/admin/v2/namespaces/{tenant}", right=rights.TENANT)
async def namespaces(request: web.Request) -> web.Response:
    """Answer with the names of a tenant's namespaces."""
    return web.json_response(catalogue_of(request).namespaces.of_tenant(_tenant(request)))


@routes.put(_NAMESPACE, right=rights.TENANT)
async def create_namespace(request: web.Request) -> web.Response:
    """Create a namespace with the policies in the body; unknown ones are ignored, as other brokers may need them."""
    catalogue = catalogue_of(request)
    name = f"{part_of(request, 'tenant')}/{part_of(request, 'namespace')}"
    try:
        names.parse_namespace(name)
    except Refusal:
        raise web.HTTPPreconditionFailed(text="Namespace name is not valid") from None
    body = await body_of(request)
    kept = _policies_of(body, clusters.choice(request, name))
    rights = permissions.read_member((body or {}).get("auth_policies"), name)
    properties = as_properties((body or {}).get("properties"))
    _tenant(request)
    if catalogue.namespaces.exists(name) and not _is_waiting(request, name):
        raise web.HTTPConflict(text="Namespace already exists")
    refuse_too_many(request, set(), {name})
    catalogue.namespaces.create(name)
    for scope, values in (*rights.items(), (name, kept)):
        for policy, value in values.items():
            catalogue.policies.set(scope, policy, value)
    if properties:
        catalogue.properties.set(name, properties)
    catalogue.commit()
    return done()


def _policies_of(body: Any, choice: Choice) -> dict[str, Any]:
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text="The body is an object of policies, or nothing")
    bundles = body.get("bundles") or {}
    if not isinstance(bundles, dict) or not isinstance(bundles.get("numBundles") or 1, int):
        raise web.HTTPBadRequest(text="bundles is an object: numBundles")
    if not 0 < (bundles.get("numBundles") or 1) <= _BUNDLES_MAX:
        raise web.HTTPPreconditionFailed(text=f"A namespace has 1 to {_BUNDLES_MAX} bundles")
    if not isinstance(group := body.get("resource_group_name") or "", str) or group:
        raise web.HTTPPreconditionFailed(text="ResourceGroup does not exist")
    return policies.read_members(body, choice)


@routes.get(_NAMESPACE, right=rights.NAMESPACE)
async def namespace(request: web.Request) -> web.Response:
    """Answer with all policies of a namespace."""
    name, catalogue, cluster_name = namespace_of(request), catalogue_of(request), request.app[TOPICS].cluster_name
    kept = catalogue.policies.of(name)
    members = {"auth_policies": permissions.member(catalogue, name), "bundles": _BUNDLES,
               "latency_stats_sample_rate": {}, "properties": catalogue.properties.of(name),
               "migrated": bool(kept.get(MIGRATED)), "deleted": False}
    return web.json_response(members | policies.members(kept, cluster_name))


@routes.delete(_NAMESPACE, right=rights.TENANT)
async def delete_namespace(request: web.Request) -> web.Response:
    """Delete a namespace; with force=true its topics too, although they are used."""
    is_forced = _is_forced(request, "namespaces")
    name = namespace_of(request)
    if len(catalogue_of(request).policies.of(name).get(REPLICATION, ())) > 1:
        raise web.HTTPPreconditionFailed(text=f"Cannot delete the global namespace {name}. There are still more than "
                                              "one replication clusters configured.")
    if not await _delete_namespace(request, name, force=is_forced):
        raise web.HTTPConflict(text="Cannot delete non empty namespace")
    return done()


def _is_forced(request: web.Request, what: str) -> bool:
    """Whether the request has force=true.  Raises 405 if the configuration forbids forced deletion."""
    if is_forced := is_set(request, "force"):
        _refuse_force(request, what)
    return is_forced


def _refuse_force(request: web.Request, what: str) -> None:
    if not getattr(request.app[TOPICS].storage, f"force_delete_{what}"):
        raise not_allowed(request, f"Broker doesn't allow forced deletion of {what}")


async def _delete_namespace(request: web.Request, name: str, *, force: bool) -> bool:
    """Delete a namespace.

    Return False if it has topics, or if clients create topics as fast as they are deleted.
    """
    if name == "pulsar/system":
        raise not_allowed(request, f"{name} is the broker's own")
    catalogue = catalogue_of(request)
    for _ in range(_ATTEMPTS if force else 1):
        if force:
            await delete_topics(request, _topics(catalogue, name), force=True)
        if deleted := catalogue.namespaces.delete(name):
            break
        catalogue.undo()
    catalogue.commit()
    return deleted


def _topics(catalogue: Catalogue, namespace: str) -> list[TopicName]:
    """Return the base names of the namespace's topics."""
    return [names.parse(name) for name in catalogue.topics.base_names(namespace)]


@routes.get(_NAMESPACE + "/topics", right=rights.LISTS)
async def topics(request: web.Request) -> web.Response:
    """Answer with the names of a namespace's topics."""
    mode = request.query.get("mode") or "PERSISTENT"
    if mode not in _MODES:
        raise web.HTTPBadRequest(text=f"mode is one of {', '.join(_MODES)}")
    complete = catalogue_of(request).topics.complete_names(namespace_of(request))
    return web.json_response(listed(request, complete, _MODES[mode]))


@routes.post(_NAMESPACE + "/migration")
async def set_migrated(request: web.Request) -> web.Response:
    """Set whether clients of the namespace are redirected to the migration target of this cluster."""
    name, is_migrated = namespace_of(request), await body_of(request)
    if not isinstance(is_migrated, bool):
        raise web.HTTPBadRequest(text="The body is true or false")
    catalogue_of(request).policies.set(name, MIGRATED, is_migrated or None)
    catalogue_of(request).commit()
    await request.app[OWNERS].tell_all(ApplyPolicies(scope=name))
    return done()


@routes.get(_NAMESPACE + "/bundles", right=rights.LISTS)
async def bundles(request: web.Request) -> web.Response:
    """Answer with the bundles of a namespace, which is one here."""
    namespace_of(request)
    return web.json_response(_BUNDLES)


@routes.get(_NAMESPACE + "/{bundle}/topicHashPositions", right=rights.NAMESPACE)
async def hash_positions(request: web.Request) -> web.Response:
    """Answer with each topic's position in the hash range that Pulsar divides into bundles."""
    name = namespace_of(request)
    _bundle(request)
    there = catalogue_of(request).topics.complete_names(name)
    wanted = {str(names.parse(text)) for text in request.query.getall("topics", ())}
    if wanted:      # the name of a partitioned topic stands for its partitions
        there = [topic for topic in there if topic in wanted or str(names.parse(topic).base) in wanted]
    positions = {topic: zlib.crc32(topic.encode()) for topic in there}
    return web.json_response({"namespace": name, "bundle": BUNDLE, "topicHashPositions": positions})


# -- properties of a namespace

@routes.get(_NAMESPACE + "/properties", right=rights.TENANT)
async def properties(request: web.Request) -> web.Response:
    """Answer with a namespace's properties."""
    return web.json_response(catalogue_of(request).properties.of(namespace_of(request)))


@routes.put(_NAMESPACE + "/properties", right=rights.TENANT)
async def add_properties(request: web.Request) -> web.Response:
    """Add properties to a namespace."""
    more, name = await properties_of(request), namespace_of(request)
    return keep_properties(request, name, catalogue_of(request).properties.of(name) | more)


@routes.delete(_NAMESPACE + "/properties", right=rights.TENANT)
async def clear_properties(request: web.Request) -> web.Response:
    """Remove a namespace's properties."""
    return keep_properties(request, namespace_of(request), {})


@routes.get(_NAMESPACE + "/property/{key:[^/]+}", right=rights.TENANT)
async def one_property(request: web.Request) -> web.Response:
    """Answer with a property of a namespace, as text."""
    properties = catalogue_of(request).properties.of(namespace_of(request))
    return web.Response(text=properties.get(part_of(request, "key"), ""))


@routes.put(_NAMESPACE + "/property/{key:[^/]+}/{value:[^/]+}", right=rights.TENANT)
async def set_property(request: web.Request) -> web.Response:
    """Set a property of a namespace."""
    name, key = namespace_of(request), part_of(request, "key")
    kept = catalogue_of(request).properties.of(name)
    return keep_properties(request, name, kept | {key: part_of(request, "value")})


@routes.delete(_NAMESPACE + "/property/{key:[^/]+}", right=rights.TENANT)
async def delete_property(request: web.Request) -> web.Response:
    """Delete a property of the namespace, and answer with its old value."""
    name = namespace_of(request)
    kept = catalogue_of(request).properties.of(name)
    text = kept.pop(part_of(request, "key"), "")
    keep_properties(request, name, kept)
    return web.Response(text=text)


# -- all topics of a namespace

def _bundle(request: web.Request) -> None:
    """Check that a bundle in the path is the only one that a namespace has.  Raises 412."""
    if "bundle" in request.match_info and part_of(request, "bundle") != BUNDLE:
        raise web.HTTPPreconditionFailed(text=f"The namespace has one bundle: {BUNDLE}")


@routes.put(_NAMESPACE + "/unload")
@routes.put(_NAMESPACE + "/{bundle:0x[0-9a-f]+_0x[0-9a-f]+}/unload")
async def unload(request: web.Request) -> web.Response:
    """Unload a namespace's topics: their clients connect again."""
    name = namespace_of(request)
    _bundle(request)
    if request.query.get("destinationBroker", "") not in ("", request.app[TOPICS].addresses.broker):
        raise web.HTTPConflict(text="Not allowed unload namespace bundle to inactive destination broker")
    owners = request.app[OWNERS]
    open_topics = [await owners.ask_owner(index, OpenTopics(namespace=name))
             for index in range(owners.count) if owners.is_up(index)]
    await ask_each(request, [names.parse(text) for some in open_topics for text in some], Unload)
    return done()


@routes.put(_NAMESPACE + "/{bundle:0x[0-9a-f]+_0x[0-9a-f]+}/split")
async def split(request: web.Request) -> web.Response:
    """Refuse to split a bundle: a namespace is one on a single host."""
    namespace_of(request)
    raise web.HTTPPreconditionFailed(text="A namespace is one bundle on a single host")


def _stored(request: web.Request) -> list[TopicName]:
    """Return the namespace's persistent topics, partitions and segments that have storage."""
    catalogue = catalogue_of(request)
    topics = (names.parse(name) for name in catalogue.topics.complete_names(namespace_of(request))
             if not name.startswith("non-persistent:"))
    return [topic for topic in topics if catalogue.partitions.find(topic) is not None]


@routes.post(_NAMESPACE + "/clearBacklog", right=rights.DISCARDS)
@routes.post(_NAMESPACE + "/clearBacklog/{subscription:[^/]+}", right=rights.DISCARDS)
@routes.post(_NAMESPACE + "/{bundle:0x[0-9a-f]+_0x[0-9a-f]+}/clearBacklog", right=rights.DISCARDS)
@routes.post(_NAMESPACE + "/{bundle:0x[0-9a-f]+_0x[0-9a-f]+}/clearBacklog/{subscription:[^/]+}", right=rights.DISCARDS)
@routes.post(_NAMESPACE + "/{bundle:0x[0-9a-f]+_0x[0-9a-f]+}/clearSubscriptionBacklog/{subscription:[^/]+}",
             right=rights.DISCARDS)
async def clear_backlog(request: web.Request) -> web.Response:
    """Acknowledge everything in a namespace, for all subscriptions or for those of a name."""
    stored = _stored(request)
    _bundle(request)
    if "subscription" in request.match_info:
        name = subscription_of(request)
        await ask_each(request, stored, partial(Clear, subscription=name, everywhere=True, asked_ms=now_ms()))
    else:
        await ask_each(request, stored, partial(Clear, asked_ms=now_ms()))
    return done()


@routes.post(_NAMESPACE + "/unsubscribe/{subscription:[^/]+}", right=rights.DISCARDS)
@routes.post(_NAMESPACE + "/{bundle:0x[0-9a-f]+_0x[0-9a-f]+}/unsubscribe/{subscription:[^/]+}", right=rights.DISCARDS)
async def unsubscribe(request: web.Request) -> web.Response:
    """Delete the subscriptions of a name from a namespace's topics, or none if one of them has consumers."""
    stored = _stored(request)
    _bundle(request)
    name = subscription_of(request)
    question = partial(Unsubscribe, subscription=name, force=False, everywhere=True)
    await ask_each(request, stored, partial(question, looks=True))
    await ask_each(request, stored, question)
    return done()
