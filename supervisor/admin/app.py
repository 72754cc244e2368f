"""The admin process: an aiohttp server over the catalogue.

Answers have Pulsar's status codes and shapes: 204 without a body for what was done, {"reason": "..."} for what was not.
"""
import socket
import traceback
from pathlib import Path

import uvloop
from aiohttp import web

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.catalogue import open_catalogue
from geminga.storage.control import Control
from geminga.storage.counters import Counters
from geminga.storage.errors import NotDurable, StorageFull
from geminga.supervisor.admin import health, metrics, namespaces, policies, subscriptions, topics
from geminga.supervisor.admin.owners import OWNERS, Owners
from geminga.supervisor.config import Config
from geminga.workers.links import follow

_STATUSES = {api.InvalidTopicName: 412, api.TopicNotFound: 404, api.SubscriptionNotFound: 404, api.NotAllowedError: 405,
             api.ServiceNotReady: 503}
_BODY_MAX = 1 << 20


@web.middleware
async def errors_as_json(request: web.Request, handler) -> web.StreamResponse:
    """Whatever goes wrong is told as clients of Pulsar's REST expect it."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _reason(error.status, error.text or error.reason)
    except Refusal as refusal:
        status = _STATUSES.get(refusal.code, 500)
        return _reason(status, refusal.message)
    except (StorageFull, NotDurable) as error:
        return _reason(503, str(error))
    except Exception:
        traceback.print_exc()
        return _reason(500, "An error of the broker's own; its log has the details")


def _reason(status: int, text: str) -> web.Response:
    return web.json_response({"reason": text}, status=status)


def make_app(config: Config, owners: Owners, service_url: str, http_url: str,
             counters: dict[tuple[str, int], Counters]) -> web.Application:
    app = web.Application(middlewares=[errors_as_json], client_max_size=_BODY_MAX)
    catalogue = open_catalogue(config.data_dir / "catalogue.sqlite")
    app[topics.TOPICS] = topics.Topics(catalogue, service_url, http_url, config)
    app[OWNERS] = owners
    app[health.SERVICE_URL], app[health.COUNTERS] = service_url, counters
    app[metrics.METRICS] = metrics.Metrics(config.cluster_name, counters)
    app.add_routes([*topics.routes, *namespaces.routes, *policies.routes, *subscriptions.routes, *health.routes, *metrics.routes])
    return app


def run(config: Config, serial: int, run_dir: Path, listener: socket.socket, service_url: str, http_url: str,
        counters: dict[tuple[str, int], Counters], control: Control) -> None:
    """Be the admin process until told to stop."""
    owners = Owners(serial, config.owners, run_dir)
    uvloop.run(_serve(make_app(config, owners, service_url, http_url, counters), owners, listener, control))


async def _serve(app: web.Application, owners: Owners, listener: socket.socket, control: Control) -> None:
    stopping = follow(control, owners)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener, shutdown_timeout=0.5).start()
    control.send(ready={})
    await stopping.wait()
    await runner.cleanup()
