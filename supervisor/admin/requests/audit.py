"""The audit log: a line of JSON for each change by administration, and for each refused attempt.

    {"time": "2026-01-31T12:00:00.000Z", "role": "ops", "method": "token", "address": "10.0.0.7",
     "request": "DELETE /admin/v2/persistent/acme/eu/orders?force=true", "status": 204}

A request by the socket in the data folder has the user's name as role and "local" as method and address.
`proxy` is the proxy's role, `reason` the text of a refusal, `body` the rights that were set. The file is in the data
folder. A large file is renamed to audit.log.1, and older files to audit.log.2 and so on.

Messages over HTTP are no administration: only refused attempts are logged.  Lines for all would push out the others.

Refusals are rate-limited, so that repeated ones do not push out the changes of other callers. The first line after
refusals over the limit has their number as `left_out`.
"""
import contextlib
import json
import sys
import time
from datetime import UTC, datetime
from logging import INFO, LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from geminga.storage.runtime.log import log
from geminga.supervisor.admin.requests.authentication import IDENTITY, MESSAGES
from geminga.supervisor.admin.requests.request_parts import names_topic, subscription_of, topic_text
from geminga.workers.identity.authentication import NOT_ASKED

NAME = "audit.log"
_FILE_BYTES, FILES = 16 << 20, 10       # arbitrary: some hundred thousand changes
_REFUSALS_MAX, _REFUSALS_PER_SECOND = 1_000, 1
_REQUEST_MAX = 8_192                     # characters of a path in a line; names are shorter
_LOOKS = ("GET", "HEAD", "OPTIONS")
_REFUSED = (401, 403)
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
# parts of routes whose bodies set rights
_OF_RIGHTS = "/permissions", "PermissionsOnTopics", "/admin/v2/tenants/", "/subscriptionAuthMode"


class Audit:
    """The audit log in a file of its own, with a rate limit for refusals."""

    def __init__(self, folder: Path):
        self._handler = _Handler(folder / NAME, maxBytes=_FILE_BYTES, backupCount=FILES, encoding="utf-8", delay=True)
        self._refusals, self._since, self._left_out = float(_REFUSALS_MAX), time.monotonic(), 0

    def __repr__(self) -> str:
        return f"<Audit {self._handler.baseFilename} refusals={self._refusals:.0f} left_out={self._left_out}>"

    def may_tell_refusal(self) -> bool:
        """Whether the rate limit lets one more refusal be logged; a refusal over the limit is only counted."""
        now = time.monotonic()
        self._refusals = min(_REFUSALS_MAX, self._refusals + (now - self._since) * _REFUSALS_PER_SECOND)
        self._since = now
        if self._refusals < 1:
            self._left_out += 1
            return False
        self._refusals -= 1
        return True

    def write(self, line: dict[str, Any]) -> None:
        """Write a line, and add the number of refusals that were not logged since the line before."""
        if self._left_out:
            line["left_out"], self._left_out = self._left_out, 0
        self._handler.emit(LogRecord(NAME, INFO, "", 0, json.dumps(line), None, None))

    def close(self) -> None:
        self._handler.close()


class _Handler(RotatingFileHandler):
    """A rotating file handler that reports the first failure to write, and no further ones until a write succeeds."""

    is_failing = False

    def emit(self, record: LogRecord) -> None:
        self.has_failed = False
        super().emit(record)
        if self.is_failing and not self.has_failed:
            log.info(f"{self.baseFilename}: changes are written down again", code="G406")
        self.is_failing = self.has_failed

    def handleError(self, record: LogRecord) -> None:
        self.has_failed = True
        if self.stream is not None:      # the next line opens it again
            with contextlib.suppress(OSError):
                self.stream.close()
            self.stream = None
        if not self.is_failing:
            why = f"so nobody sees there who changes what: {sys.exception()}"
            log.error(f"{self.baseFilename} cannot be written, {why}", code="G406")


AUDIT = web.AppKey("audit", Audit)


async def close(app: web.Application) -> None:
    app[AUDIT].close()


@web.middleware
async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that writes a request into the audit log if it changed something or was refused.

    Only the standby's lease is outside of this middleware, so it sees the final answer.
    """
    answer = await handler(request)
    if request.method in _LOOKS or (400 <= answer.status < 500 and answer.status not in _REFUSED):
        return answer      # nothing was changed
    if request.path.startswith(MESSAGES) and answer.status not in _REFUSED:
        return answer
    if answer.status < 400:
        _log(request, answer)
    audit = request.app[AUDIT]
    if answer.status not in _REFUSED or audit.may_tell_refusal():
        audit.write(await _found(request, answer))
    return answer


def _log(request: web.Request, answer: web.StreamResponse) -> None:
    identity, parts = request.get(IDENTITY, NOT_ASKED), request.match_info
    about = {}
    if names_topic(request):
        about["topic"] = topic_text(request)
    if "subscription" in parts:
        about["subscription"] = subscription_of(request)
    log.info(
        f"administration: {request.method} {request.path_qs[:_REQUEST_MAX]}",
        status=answer.status,
        role=identity.role,
        client=request.remote or "local",
        **about,
    )


async def _found(request: web.Request, answer: web.StreamResponse) -> dict[str, Any]:
    identity = request.get(IDENTITY, NOT_ASKED)
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
             "role": identity.role, "method": identity.method, "proxy": identity.proxy,
             "address": request.remote or "local",
             "request": f"{request.method} {_path(request)}"[:_REQUEST_MAX], "status": answer.status}
    if not identity.proxy:
        del line["proxy"]
    if answer.status >= 400:
        assert isinstance(answer, web.Response)      # only answers of status 200 come in pieces
        body: Any = answer.body
        line["reason"] = json.loads(body).get("reason", "")
    rights = await _rights_set(request) if answer.status not in _REFUSED else None
    return line if rights is None else line | {"body": rights}


def _path(request: web.Request) -> str:
    """Return a request's path and parameters, without a token."""
    url = request.rel_url
    return str(url.without_query_params("token")) if "token" in url.query else request.path_qs


async def _rights_set(request: web.Request) -> Any:
    """Return the part of the body that sets rights, None if there is none.

    Nothing else of a body is logged: it may contain secrets.
    """
    resource = request.match_info.route.resource
    route = "" if resource is None else resource.canonical
    if route != _NAMESPACE and not any(part in route for part in _OF_RIGHTS):
        return None
    if not request.content.at_eof():      # the route has not read its body
        return None
    try:
        body = json.loads(await request.read() or "null")
    except ValueError:
        return None
    if route != _NAMESPACE:
        return body
    return {"auth_policies": body["auth_policies"]} if body and "auth_policies" in body else None
