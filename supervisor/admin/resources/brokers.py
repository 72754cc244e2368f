"""The broker itself: its name, and its configuration, parts of which change while it runs.

Some routes of Pulsar concern features that a single host does not have; their answers say so.
"""
import os
import signal
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from geminga.storage.admin.questions import ApplyOptions
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policy_table import TABLE
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import BUNDLE, TOPICS, catalogue_of, done, part_of, status
from geminga.supervisor.configuration import config as configuration
from geminga.supervisor.configuration import pulsar_texts
from geminga.supervisor.configuration.properties import TRANSLATED, ConfigError, Setting

routes = rights.Routes()
_CONFIGURATION = "/admin/v2/brokers/configuration"
TEXTS = "/broker"         # scope in the catalogue: changed settings by Pulsar's names, as the texts that were sent
# Keys whose changes apply at once, because they are read at each use: defaults of policies, and rates of the broker.
_LIVE = (
    {f"storage.{part.key}" for policy in TABLE.values() for part in policy.parts if part.key}
    | {"storage.key_shared_enabled"}
    | {
        key
        for key in configuration.KEYS
        if key.startswith(("storage.dispatch_", "storage.publish_", "storage.subscribe", "storage.force_delete_"))
    }
)
DYNAMIC = sorted(name for name, (key, _) in TRANSLATED.items() if key in _LIVE)


def _broker(request: web.Request) -> str:
    return request.app[TOPICS].addresses.broker


@routes.get("/admin/v2/brokers")
@routes.get("/admin/v2/brokers/{cluster}")
async def brokers(request: web.Request) -> web.Response:
    """Answer with this broker, whichever cluster the path names, as Pulsar does."""
    return web.json_response([_broker(request)])


@routes.get("/admin/v2/brokers/leaderBroker")
async def leader(request: web.Request) -> web.Response:
    """Answer with the leading broker, which is the only one."""
    where = request.app[TOPICS].addresses
    return web.json_response({"brokerId": _broker(request), "serviceUrl": where.http or where.http_tls})


@routes.get("/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces")
async def owned(request: web.Request) -> web.Response:
    """Answer with the namespaces that the broker has."""
    if part_of(request, "broker") != _broker(request):
        raise web.HTTPNotFound(text=f"Broker id '{part_of(request, 'broker')}' not found in available brokers.")
    catalogue = catalogue_of(request)
    names = [name for tenant in catalogue.tenants.names() for name in catalogue.namespaces.of_tenant(tenant)]
    state = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return web.json_response({f"{name}/{BUNDLE}": state for name in names})


@routes.get("/admin/v2/brokers/backlog-quota-check")
async def check_quotas(request: web.Request) -> web.Response:
    """Answer 204 and do nothing: backlog quotas are checked with every publish."""
    return done()


@routes.get("/admin/v2/brokers/internal-configuration")
async def internal(request: web.Request) -> web.Response:
    """Answer with the addresses of the stores behind a broker."""
    path = request.app[TOPICS].config.data_dir.resolve()
    return web.json_response({"metadataStoreUrl": f"file:{path}/catalogue.sqlite", "configurationMetadataStoreUrl":
                              f"file:{path}/catalogue.sqlite", "ledgersRootPath": f"{path}/partitions"})


@routes.post("/admin/v2/brokers/shutdown")
async def shutdown(request: web.Request) -> web.Response:
    """Stop the broker as a SIGTERM to its supervisor does: all messages are on disk when it ends."""
    os.kill(os.getppid(), signal.SIGTERM)
    return done()


# -- configuration

@routes.get(_CONFIGURATION)
async def dynamic(request: web.Request) -> web.Response:
    """Answer with the names of all settings that can be changed while the broker runs."""
    return web.json_response(DYNAMIC)


@routes.get(_CONFIGURATION + "/values")
async def changed(request: web.Request) -> web.Response:
    """Answer with the settings that were changed while the broker runs."""
    return web.json_response(catalogue_of(request).policies.of(TEXTS))


@routes.get(_CONFIGURATION + "/runtime")
async def runtime(request: web.Request) -> web.Response:
    """Answer with the configuration in force: {Pulsar's name of a setting: value as text}."""
    topics, changed = request.app[TOPICS], catalogue_of(request).policies.of(TEXTS)
    return web.json_response(pulsar_texts.texts(topics.config, topics.storage, changed))


@routes.post(_CONFIGURATION + "/{name:[^/]+}/{value:[^/]+}")
async def change(request: web.Request) -> web.Response:
    """Change a setting while the broker runs."""
    name, text = part_of(request, "name"), part_of(request, "value")
    return await _keep(request, name, text, read_text(name, text))


def read_text(name: str, text: str) -> Any:
    """Return the value that a text gives to a dynamic setting, named as in Pulsar.

    Return None for a switch that is neither true nor false, which Pulsar ignores. Raises 412.
    """
    if name not in DYNAMIC:
        raise web.HTTPPreconditionFailed(text="Can't update non-dynamic configuration")
    key, convert = TRANSLATED[name]
    if configuration.KEYS[key].type is bool and text.strip().lower() not in ("true", "false"):
        return None      # as in Pulsar: a switch accepts any text, and stays as configured
    try:
        return configuration.value_of(key, Setting(convert(text), name))
    except (ConfigError, ValueError) as error:
        raise web.HTTPPreconditionFailed(text=f"Invalid dynamic-config value: {error}") from None


def keep_text(catalogue: Catalogue, name: str, text: str | None, value: Any) -> None:
    """Store a dynamic setting, as text and as value, in the open transaction; None for both resets it."""
    catalogue.policies.set(TEXTS, name, text)
    catalogue.options.set(TRANSLATED[name][0].removeprefix("storage."), value)


@routes.delete(_CONFIGURATION + "/{name:[^/]+}")
async def reset(request: web.Request) -> web.Response:
    """Give a setting its configured value again."""
    name = part_of(request, "name")
    if name not in DYNAMIC:
        raise web.HTTPPreconditionFailed(text="Can't delete non-dynamic configuration")
    return await _keep(request, name, None, None)


async def _keep(request: web.Request, name: str, text: str | None, value: Any) -> web.Response:
    """Change a dynamic setting, and answer when all owners apply it."""
    topics, catalogue = request.app[TOPICS], catalogue_of(request)
    keep_text(catalogue, name, text, value)
    catalogue.commit()
    topics.storage = catalogue.options.applied_to(topics.config.storage)
    await request.app[OWNERS].tell_all(ApplyOptions())
    return web.Response(status=200)


# -- what a single host has none of

_EMPTY: dict[str, tuple[str, Any]] = {
    "bookies/all": ("the bookies", {"bookies": []}), "bookies/racks-info": ("the racks of bookies", {}),
    "resourcegroups": ("the resource groups", []),
    "metadata/migration/status": ("how far a migration of the metadata store is", {"phase": "NOT_STARTED"})}


def _empty(what: str, value: Any) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(value)
    answer.__doc__ = f"Answer with {what}, which this broker does without."
    return answer


for _path, (_what, _value) in _EMPTY.items():
    routes.get("/admin/v2/" + _path)(_empty(_what, _value))


@routes.get("/admin/v2/resourcegroups/{group}")
async def resource_group(request: web.Request) -> web.Response:
    """Answer 404: there are no resource groups."""
    raise web.HTTPNotFound(text="ResourceGroup does not exist")


_NONE = {
    "/admin/v2/bookies": (404, "There are no bookies: this broker keeps everything itself"),
    "/admin/v2/resourcegroups": (405, "Resource groups are not available in this version"),
    "/admin/v2/resource-quotas": (405, "Resource quotas guide load balancers: there is one broker"),
    "/admin/v2/metadata/migration/start": (400, "There is no metadata store to migrate: the catalogue is a file"),
    "/admin/v2/worker": (409, "Functions are not available: there is no function worker"),
    "/admin/v2/functions": (409, "Functions are not available: there is no function worker"),
    "/admin/v3/functions": (409, "Functions are not available: there is no function worker"),
    "/admin/v3/sinks": (409, "Connectors are not available: there is no function worker"),
    "/admin/v3/sources": (409, "Connectors are not available: there is no function worker"),
    "/admin/v3/sink": (409, "Connectors are not available: there is no function worker"),
    "/admin/v3/source": (409, "Connectors are not available: there is no function worker"),
    "/admin/v3/packages": (503, "Package Management Service is not enabled in the broker."),
}


def _none(code: int, text: str) -> Handler:
    async def refuse(request: web.Request) -> web.Response:
        raise status(code, text)
    refuse.__doc__ = f"Answer {code}.\n\n{text}"
    return refuse


LAST = rights.Routes()
for _path, _answer in _NONE.items():
    LAST.route("*", _path + "{rest:.*}", right=None)(_none(*_answer))
