"""The admin process: an aiohttp server over the catalogue.

Answers have Pulsar's status codes and shapes: 204 without a body for a change that succeeded, {"reason": "..."} for an
error.
"""
import asyncio
import logging
import os
import time
import traceback
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import uvloop
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import NameTaken, Refusal
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.storage.errors import NotDurable, StorageFull
from geminga.storage.runtime.control import Control, unpacked
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.lease import Lease
from geminga.storage.runtime.log import log
from geminga.storage.runtime.unix_sockets import CLIENTS
from geminga.supervisor.admin import openapi
from geminga.supervisor.admin.monitoring import (
    alarms,
    backups,
    health,
    log_tail,
    metrics,
    operations,
    scalable_stats,
    stats,
    views,
)
from geminga.supervisor.admin.monitoring.scalable_families import ScalableFamilies
from geminga.supervisor.admin.requests import (
    audit,
    audit_reading,
    authentication,
    authorization,
    origins,
    replicator,
    sessions,
)
from geminga.supervisor.admin.requests.owners import OWNERS, Owners
from geminga.supervisor.admin.requests.request_parts import (
    CONNECTIONS,
    CONTROL,
    COUNTERS,
    INSIDE,
    READ_ELSEWHERE,
    TOPICS,
    Topics,
    error_answer,
)
from geminga.supervisor.admin.resources import (
    brokers,
    clears,
    clusters,
    compaction,
    configuration,
    dead_letters,
    definitions,
    delayed,
    deleted,
    message_jobs,
    message_pages,
    messages,
    namespaces,
    permissions,
    policies,
    scalable_deletion,
    scalable_topics,
    schedules,
    schemas,
    standby,
    subscriptions,
    topics,
    transactions,
)
from geminga.supervisor.admin.resources.retries import RETRIES, Retries
from geminga.supervisor.admin.scalable import changing
from geminga.supervisor.admin.scalable.growing import Cores, Growing
from geminga.supervisor.admin.scalable.layout_changes import CHANGES, LayoutChanges
from geminga.supervisor.configuration.config import Config
from geminga.workers.addresses import Addresses
from geminga.workers.directory.schemas import SchemaThread
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.authorization import Authorization
from geminga.workers.identity.certificates import Tls
from geminga.workers.owners.following import follow
from geminga.workers.ports.connections import Connections
from geminga.workers.process.listeners import Listeners

_STATUSES = {
    api.InvalidTopicName: 412,
    api.TopicNotFound: 404,
    api.SubscriptionNotFound: 404,
    api.NotAllowedError: 405,
    api.ServiceNotReady: 503,
    api.PersistenceError: 503,
    api.ConsumerBusy: 412,
    api.ProducerBusy: 412,
    api.MetadataError: 404,
    api.IncompatibleSchema: 409,
    api.UnknownError: 500,
}
_BODY_MAX = 1 << 20
_LINE_MAX = 64 << 10         # limit of a request's first line and of each header: fits the longest percent-encoded name
_SILENT_SECONDS = 30         # limit between a connection and its first request
_KEEP_ALIVE_SECONDS = 75     # limit between an answer and the next request
_QUIET_SECONDS, _WHY_MAX = 60, 200
# Lower priority than workers and owners: a scrape of many topics must not take a core from messages.
_NICENESS = 5
_OLD = "/admin/", "/admin/v2/", "/admin/v3/"
PARTS = (
    topics,
    scalable_topics,
    changing,
    namespaces,
    policies,
    permissions,
    subscriptions,
    message_jobs,
    message_pages,
    messages,
    delayed,
    deleted,
    schedules,
    dead_letters,
    transactions,
    schemas,
    compaction,
    clusters,
    brokers,
    configuration,
    stats,
    scalable_stats,
    health,
    backups,
    definitions,
    standby,
    metrics,
    operations,
    log_tail,
    views,
    audit_reading,
    authorization,
    openapi,
)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that answers errors as clients of Pulsar's REST expect them: a status and {"reason": text}.

    A request that fails has its uncommitted changes of the catalogue rolled back.
    """
    headers, is_no_route = [], False
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = [(name, text) for name, text in error.headers.items() if name == "WWW-Authenticate"]
        is_no_route = request.match_info.http_exception is error
        answer = error.status, _nowhere(request, error) if is_no_route else error.text or error.reason
    except NameTaken as taken:
        answer = 409, taken.message
    except Refusal as refusal:
        answer = _STATUSES.get(refusal.code, 400), refusal.message
    except (StorageFull, NotDurable) as error:
        answer = 503, str(error)
    except Exception:
        log.error(f"{request.method} {request.path}: {traceback.format_exc()}", code="G290")
        answer = 500, "An error of the broker's own; its log has the details"
    # Every request commits before it waits, so uncommitted changes are those of this request.
    request.app[TOPICS].catalogue.undo()
    # A path without a route has HTTP's own phrase, as in Pulsar.
    return error_answer(*answer, headers, has_phrase=not is_no_route)


def _nowhere(request: web.Request, error: web.HTTPException) -> str:
    """Return the reason why no route serves the request: a wrong method, a path of Pulsar 1, or an unknown path."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{request.method} is not for this path; {', '.join(sorted(error.allowed_methods))} is"
    if request.path.startswith(_OLD[0]) and not request.path.startswith(_OLD[1:]):
        return "Paths of Pulsar 1, with a cluster in names, are not served: use /admin/v2"
    return "There is nothing under this path"


class _NotHttp(logging.Handler):
    """A log handler for aiohttp's complaints about requests that it cannot parse.

    At most one such line is logged in a minute, because any client can cause them. Other errors are always logged.
    """

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError | None):
            log.error("".join([record.getMessage(), ": ", *traceback.format_exception(error)]), code="G290")
        elif (now := time.monotonic()) >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            why = " ".join(str(getattr(error, "message", "") or type(error).__name__).split())
            log.info(f"{record.getMessage()}: {why[:_WHY_MAX]}; more of them within a minute are not told")


@cache
def _logger() -> logging.Logger:
    # Not from logging.getLogger: handlers of the root logger would write the same lines again.
    made = logging.Logger("aiohttp", logging.INFO)
    made.addHandler(_NotHttp())
    return made


def make_app(
    config: Config,
    owners: Owners,
    addresses: Addresses,
    counters: dict[tuple[str, int], Counters],
    authenticator: Authenticator,
    lease: Lease,
    extend: Callable[[web.Application], None] = lambda app: None,
) -> web.Application:
    """Return the application.  extend: function that adds what is served beside REST."""
    # The first is the outermost.  The lease is looked at when an answer is made, whoever made it: a superseded broker
    # must not confirm a change.  The audit log gets the answers that callers get, so errors are answers inside of it.
    # Pages of other sites are refused before credentials are looked at, else they could try some; and the state of a
    # broker that loads is told only to those who have the right to what they ask.
    app = web.Application(
        middlewares=[standby.keep_lease, audit.record, errors_as_json, origins.guard, authentication.identify,
                     authorization.authorize, health.guard],
        client_max_size=_BODY_MAX,
    )
    catalogue = open_catalogue(config.data_dir / "catalogue.sqlite")
    app[TOPICS] = Topics(catalogue, addresses, config, counters["admin", 0])
    app[origins.GUARD] = origins.Guard(config, addresses)
    app[OWNERS], app[audit.AUDIT] = owners, audit.Audit(config.data_dir)
    app.on_cleanup.append(audit.close)
    app[sessions.SESSIONS] = sessions.Sessions(config.data_dir, config.console.session_s)
    app[authorization.AUTHORIZATION] = Authorization(config.authorization, catalogue)
    app[authentication.AUTHENTICATOR] = authentication.HttpAuthenticator(
        authenticator, config.identity, counters["admin", 0])
    app[INSIDE], app[COUNTERS] = config.data_dir / CLIENTS, counters
    app[compaction.COMPACTIONS] = compactions = compaction.Compactions(config, catalogue, owners)
    app.cleanup_ctx.append(compactions.serve)
    app[metrics.METRICS] = metrics.Metrics(config, counters, owners, catalogue)
    app[metrics.METRICS].collector.compactions = compactions
    app[alarms.ALARMS_OF] = app[metrics.METRICS].collector.alarms = alarms.Alarms(config, counters)
    app.cleanup_ctx.append(app[alarms.ALARMS_OF].serve)
    app[scalable_deletion.LEFT] = asyncio.Event()
    app[clears.UNFINISHED] = {}
    app[RETRIES] = app[alarms.ALARMS_OF].retries = Retries()
    app.cleanup_ctx.append(scalable_deletion.serve)
    app[CHANGES] = LayoutChanges(catalogue, owners, app[RETRIES])
    app.cleanup_ctx.append(app[CHANGES].serve)
    app[metrics.METRICS].collector.scalable = ScalableFamilies(catalogue, app[CHANGES])
    cores = Cores(lambda: {index: row.read()["pid"] for (role, index), row in counters.items() if role == "owner"})
    app.cleanup_ctx.append(Growing(catalogue, owners, app[CHANGES], lambda: app[TOPICS].storage, cores).serve)
    app.cleanup_ctx.append(replicator.serve)
    app[standby.STANDBY] = app[alarms.ALARMS_OF].standby = standby.Standby(config.data_dir, owners, lease)
    app.cleanup_ctx.append(app[standby.STANDBY].serve)
    app[schemas.THREAD] = SchemaThread(catalogue.path, config.storage)
    app[openapi.DOCUMENT], app[READ_ELSEWHERE] = {}, {}
    app[message_pages.PAGES], app[message_jobs.SLOTS] = message_pages.slots(), message_jobs.Slots()
    for part in PARTS:
        app.add_routes(part.routes)
    app.add_routes(brokers.LAST)
    extend(app)
    return app


def configure(app: web.Application, config: Config, addresses: Addresses, certificates: Tls | None) -> None:
    """Apply a new configuration.  Raises Unusable if a part of it cannot be applied."""
    if certificates is not None:
        certificates.configure(config.tls)
    app[origins.GUARD].configure(config, addresses)
    app[authentication.AUTHENTICATOR].configure(config.identity)
    app[sessions.SESSIONS].seconds = config.console.session_s
    app[authorization.AUTHORIZATION].configure(config.authorization)
    app[TOPICS].configure(config, addresses)
    app[compaction.COMPACTIONS].configure(config)
    app[metrics.METRICS].configure(config)
    app[alarms.ALARMS_OF].configure(config)
    app[schemas.THREAD].options = config.storage
    log.begin(config.log)


def run(config: Config, serial: int, run_dir: Path, listeners: Listeners, addresses: Addresses,
        counters: dict[tuple[str, int], Counters], control: Control, authenticator: Authenticator,
        connections: list[Connections], lease: Lease, extend: Callable[[web.Application], None]) -> None:
    """Serve HTTP as the admin process until the supervisor tells it to stop.

    extend: function that adds what is served beside REST.
    """
    if listeners.certificates is not None:
        listeners.certificates.counters = counters["admin", 0]
    owners = Owners(serial, config.owners, run_dir)
    app = make_app(config, owners, addresses, counters, authenticator, lease, extend)
    app[metrics.METRICS].collector.certificates = app[alarms.ALARMS_OF].certificates = listeners.certificates
    app[CONTROL], app[CONNECTIONS] = control, connections
    app[views.NAMES] = views.TopicNames()
    uvloop.run(_serve(app, owners, listeners, control))


async def _serve(app: web.Application, owners: Owners, listeners: Listeners, control: Control) -> None:
    def reconfigure(text: str) -> None:
        config, addresses = unpacked(text)
        configure(app, config, addresses, listeners.certificates)

    stopping = follow(control, owners, reconfigure, partial(health.drain, app))
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    handler = runner.server
    assert handler is not None      # setup() has made it
    await listeners.serve(lambda _: _accepted(handler), app[TOPICS].addresses.ports, "http",
                          lambda: _accepted(handler))
    os.nice(_NICENESS)
    control.send(ready={})
    await stopping.wait()
    listeners.close()
    await runner.cleanup()


class _Requests(web.RequestHandler):
    """The protocol of a connection."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Take bytes: what follows a head by itself.

        Node.js sends the body of a DELETE without its length, so the request ends with its head, and the body is no
        request.  In one piece with that, aiohttp would answer the request itself with 400.
        """
        head, end, rest = data.partition(b"\r\n\r\n")
        super().data_received(head + end)
        if rest:
            super().data_received(rest)


def _accepted(server: web.Server) -> asyncio.Protocol:
    """Return the protocol of a new connection, and close the connection if it does not send a request in time.

    The timeout of aiohttp itself only covers the time between requests.
    """
    loop = asyncio.get_running_loop()
    protocol = _Requests(
        server,
        loop=loop,
        access_log=None,  # type: ignore[arg-type]
        logger=_logger(),
        keepalive_timeout=_KEEP_ALIVE_SECONDS,
        max_line_size=_LINE_MAX,
        max_field_size=_LINE_MAX,
    )
    loop.call_later(_SILENT_SECONDS, _close_silent, protocol)
    return protocol


def _close_silent(protocol: "_Requests") -> None:
    if protocol.transport is not None and not protocol._request_count:
        protocol.transport.abort()
