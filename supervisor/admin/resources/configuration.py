"""The configuration in force: each key with its value, where that comes from, and when a change takes effect."""
from typing import Any

from aiohttp import web

from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.request_parts import TOPICS, catalogue_of
from geminga.supervisor.admin.resources.brokers import DYNAMIC, TEXTS
from geminga.supervisor.configuration import config as configuration
from geminga.supervisor.configuration.properties import TRANSLATED
from geminga.supervisor.configuration.restarts import NEEDS_RESTART

routes = rights.Routes()
AT_RUN_TIME = "changed at run time"      # as an origin


@routes.get("/ops/v1/configuration")
async def keys(request: web.Request) -> web.Response:
    """Answer with a row for each key; stars stand for secrets."""
    return web.json_response({"rows": [_row(request, key) for key in configuration.KEYS]})


def _row(request: web.Request, key: str) -> dict[str, Any]:
    topics = request.app[TOPICS]
    config, default = topics.config, configuration.KEYS[key].default
    value = configuration.value(config, key)
    changed = catalogue_of(request).policies.of(TEXTS)
    names = [name for name in DYNAMIC if TRANSLATED[name][0] == key]
    origin = config.origins.get(key, "")
    if any(name in changed for name in names):
        origin, value = AT_RUN_TIME, getattr(topics.storage, key.removeprefix("storage."))
    return {"key": key, "value": configuration.shown(value), "default": configuration.shown(default), "origin": origin,
            "is_set": bool(origin), "set_at_run_time": origin == AT_RUN_TIME,
            "takes_effect": "restart" if key in NEEDS_RESTART else "reload",
            "why": NEEDS_RESTART.get(key, ""), "setting": names[0] if names else "",
            "text": next((changed[name] for name in names if name in changed), "")}
