"""Readiness and health of the broker.

/ready looks at the state of all processes. The health check publishes a message through a worker and reads it back.
"""
import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from geminga.proto.responses import PULSAR_VERSION
from geminga.storage.runtime.unix_sockets import UNIX
from geminga.supervisor.admin.monitoring.alarms import ALARMS_OF
from geminga.supervisor.admin.requests import rights
from geminga.supervisor.admin.requests.authentication import SIGN_IN, STATIC
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import COUNTERS, INSIDE, TOPICS
from geminga.supervisor.host import host
from geminga.workers.pulsar_client import client
from geminga.workers.pulsar_client.connection import ClientError

routes = rights.Routes()
TOPIC = "persistent://pulsar/system/healthcheck"
_SECONDS = 10
# Paths that are answered while the broker loads.
_WHILE_LOADING = {"/ready", "/status.html", "/metrics", "/admin/v2/brokers/ready", "/admin/v2/brokers/version",
                  "/ops/v1/status", "/ops/v1/standby", "/ops/v1/log-level", "/", "/console/live", SIGN_IN}
_TOPIC_VERSIONS = "V1", "V2"
_PASSED, _FAILED = 1, 2      # values of the counter `health`, the last round trip's result; 0: there was none


@routes.get("/status.html", right=None)
async def status(request: web.Request) -> web.Response:
    """Answer "OK": the process serves HTTP."""
    return web.Response(text="OK")


@web.middleware
async def guard(request: web.Request,
                handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    """Middleware that answers 503 while the broker loads, except for questions about its state.

    Partitions may be missing until every owner has recovered.
    """
    path = request.path.rstrip("/") or "/"
    if path not in _WHILE_LOADING and not path.startswith(STATIC) and loading(request.app):
        raise web.HTTPServiceUnavailable(text=f"{'; '.join(obstacles(request.app))}; try again")
    return await handler(request)


@routes.get("/ready", right=None)
@routes.get("/admin/v2/brokers/ready", right=None)
async def ready(request: web.Request) -> web.Response:
    """Answer 200 "ok" if every process serves, else 503 with the reasons.  No message is published."""
    if wrong := obstacles(request.app):
        raise web.HTTPServiceUnavailable(text="; ".join(wrong))
    return web.Response(text="ok")


async def drain(app: web.Application) -> None:
    """Report the broker as not ready while it drains, so that load balancers send no more clients."""
    app[COUNTERS]["admin", 0].set("is_draining", 1)


def loading(app: web.Application) -> list[dict[str, int]]:
    """Return the progress of each owner that has never served; [] once all have, whatever happens to them later.

    done, of: parts of the recovery, both 0 while nothing is known of it.
    """
    rows = [(index, counters.read()) for (role, index), counters in app[COUNTERS].items() if role == "owner"]
    return [{"owner": index, "done": row["recovery_done"], "of": row["recovery_of"]} for index, row in rows
            if not row["serving_pid"]]


def obstacles(app: web.Application) -> list[str]:
    """Return the reasons why the broker is not ready."""
    reasons = [f"the broker is loading: owner {one['owner']} " +
               (f"has recovered {one['done']} of {one['of']}" if one["of"] else "recovers") for one in loading(app)]
    if app[COUNTERS]["admin", 0].read()["is_draining"]:
        outstanding = app[COUNTERS]["admin", 0].total("outstanding")
        reasons.append(f"the broker is being drained: {outstanding} messages are to be acknowledged yet")
    for (role, index), counters in app[COUNTERS].items():
        if role == "admin":
            continue
        row = counters.read()
        if role in ("web", "replicator") and not row["serving_pid"] and row["starts"] < 2:
            continue      # nobody has needed it yet, or the first one waits for it
        if not row["serving_pid"] and not row["is_waiting"] and reasons:
            continue      # it has never served, because the broker is still loading
        if row["is_waiting"]:
            reasons.append(f"owner {index} cannot read or write its files, and tries again; the log says why")
        elif (row["serving_pid"] != row["pid"] or host.is_ending(row["pid"])
              or (role == "owner" and not app[OWNERS].is_up(index))):
            reasons.append(f"{role} {index} is being started")
        elif row["publishing_refused"]:
            free = row["disk_free_bytes"]
            reasons.append(f"owner {index} refuses what is published: {free} bytes are free on its disk")
    return reasons + list(app[ALARMS_OF].obstacles())


@routes.get("/admin/v2/brokers/version", right=None)
async def version(request: web.Request) -> web.Response:
    """Answer with the version of Pulsar whose administration this is."""
    return web.Response(text=PULSAR_VERSION)


@routes.get("/admin/v2/brokers/health")
async def health(request: web.Request) -> web.Response:
    """Answer 200 "ok" after a round trip of a message, 503 if it failed, 404 for another broker's id."""
    if (wanted := request.query.get("brokerId", "")) not in ("", request.app[TOPICS].addresses.broker):
        raise web.HTTPNotFound(text=f"Broker id '{wanted}' not found in available brokers.")
    if request.query.get("topicVersion", "V2") not in _TOPIC_VERSIONS:
        raise web.HTTPNotFound(text=f"topicVersion is one of {', '.join(_TOPIC_VERSIONS)}: the topic is the same")
    try:
        async with asyncio.timeout(_SECONDS):
            await _round_trip(request.app[INSIDE])
    except (OSError, ClientError, TimeoutError) as error:
        request.app[COUNTERS]["admin", 0].set("health", _FAILED)
        raise web.HTTPServiceUnavailable(text=f"The round trip failed: {error or 'it took too long'}") from None
    request.app[COUNTERS]["admin", 0].set("health", _PASSED)
    return web.Response(text="ok")


async def _round_trip(inside: Path) -> None:
    """Publish a message and read it back.  Raises OSError, ClientError."""
    session = await client.connect(f"{UNIX}{inside}")
    try:
        payload = uuid.uuid4().bytes
        [message_id] = await session.publish(TOPIC, [payload])
        if payload not in await session.read(TOPIC, message_id):
            raise ClientError("the message that was published was not there to read")
    finally:
        session.close()
