"""Paths of the WebSocket API on the HTTP port.

    /ws/v2/producer/{domain}/{tenant}/{namespace}/{topic}
    /ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}
    /ws/v2/reader/{domain}/{tenant}/{namespace}/{topic}
    /ws/v3/consumer/{subscription}?topics=A,B  or  ?topicsPattern=TENANT/NAMESPACE/EXPRESSION

The admin process reads the handshake as any request: names of the host, credentials and rights are checked as for
REST.  Then the connection is handed over to a `geminga-web` process, which answers the handshake itself.
"""
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus, urlsplit

from aiohttp import web

from geminga.proto import names
from geminga.proto.commands import CONSUME, LOOKUP, PRODUCE
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.supervisor.admin.requests.authentication import IDENTITY
from geminga.supervisor.admin.requests.authorization import AUTHORIZATION
from geminga.supervisor.admin.requests.handing_over import hand_over
from geminga.supervisor.admin.requests.origins import GUARD, shows_a_token
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.admin.requests.rights import Routes
from geminga.workers.web import frames
from geminga.workers.web.handovers import CONSUMER, PRODUCER, Handover, Handovers

if TYPE_CHECKING:
    from geminga.workers.identity.authorization import Resource

HANDOVERS = web.AppKey("handovers", Handovers)
routes = Routes()
_TOPIC_PARTS = 4             # domain, tenant, namespace, topic
_TOPICS_MAX = 1_000          # of one consumer
_VERSION = "13"              # of the WebSocket protocol
_Named = tuple[tuple[TopicName, ...], str, str]      # (topics, pattern, subscription)


def install(app: web.Application, handovers: Handovers) -> None:
    """Add the paths to the admin process's application, unless no process serves WebSocket."""
    if not app[TOPICS].config.http.web_processes:
        return
    app[HANDOVERS] = handovers
    app.add_routes(routes)


# The address may name many topics: the function itself asks for a right on each.
@routes.get("/ws/v2/{kind:producer|consumer|reader}/{rest:.*}", allow_head=False, right=None)
@routes.get("/ws/v3/{kind:consumer}/{rest:.*}", allow_head=False, right=None)
async def enter(request: web.Request) -> web.StreamResponse:
    """Check the handshake, and hand its connection over.  Raises 400, 403, 405, 503, Refusal."""
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise web.HTTPMethodNotAllowed(request.method, [], text="This path is for WebSocket")
    key = request.headers.get("Sec-WebSocket-Key", "")
    _refuse_foreign_pages(request)
    kind = request.match_info["kind"]
    topics, pattern, subscription = _named(request, kind)
    _authorize(request, kind, topics, pattern, subscription)
    if request.headers.get("Sec-WebSocket-Version") != _VERSION or not frames.is_key(key):
        raise web.HTTPBadRequest(text=f"A handshake has Sec-WebSocket-Version: {_VERSION} and a key of 16 bytes")
    # The first of several values counts, as in Pulsar.
    parameters = dict(reversed(list(request.query.items())))
    parameters.pop("token", None)
    handover = Handover(kind, tuple(map(str, topics)), pattern, subscription, tuple(parameters.items()), key,
                  request[IDENTITY], request.remote or "local", b"")
    return await _hand_over(request, handover)


def _named(request: web.Request, kind: str) -> _Named:
    """Return what the address names.  Raises 400."""
    try:
        raw = request.rel_url.raw_path.split("/")[4:]
        parts = [unquote_plus(part, errors="strict") for part in raw]
        if "v3" in request.path.split("/")[2]:
            return _several(request, parts)
        wanted = _TOPIC_PARTS + (kind == CONSUMER)
        if len(parts) != wanted or not all(parts) or parts[0] not in names.DOMAINS:
            more = "/subscription" if kind == CONSUMER else ""
            raise web.HTTPBadRequest(text=f"The path is /ws/v2/{kind}/(persistent or non-persistent)"
                                          f"/tenant/namespace/topic{more}")
        topic = request.app[TOPICS].catalogue.topics.named("{}://{}/{}/{}".format(*parts[:_TOPIC_PARTS]))
        return (topic,), "", parts[-1] if kind == CONSUMER else ""
    except UnicodeDecodeError:
        raise web.HTTPBadRequest(text="The path is not UTF-8") from None
    except Refusal as error:
        raise web.HTTPBadRequest(text=error.message) from None


def _several(request: web.Request, parts: list[str]) -> _Named:
    """Return what an address of version 3 names.  Raises 400, Refusal."""
    if len(parts) != 1 or not parts[0]:
        raise web.HTTPBadRequest(text="The path is /ws/v3/consumer/subscription")
    listed, pattern = request.query.get("topics", ""), request.query.get("topicsPattern", "")
    if bool(listed) == bool(pattern):
        raise web.HTTPBadRequest(text="Either topics or topicsPattern says what is consumed")
    if listed:
        topics = tuple(dict.fromkeys(request.app[TOPICS].catalogue.topics.named(text.strip())
                                     for text in listed.split(",") if text.strip()))
        if not 0 < len(topics) <= _TOPICS_MAX:
            raise web.HTTPBadRequest(text=f"topics names 1 to {_TOPICS_MAX} topics")
        return topics, "", parts[0]
    domain, separator, path = pattern.rpartition("://")
    domain = domain if separator else names.DOMAINS[0]
    place = path.split("/", 2)
    if domain != names.DOMAINS[0] or len(place) != 3 or not all(place):
        raise web.HTTPBadRequest(text="topicsPattern is tenant/namespace/expression, for persistent topics")
    names.parse_namespace("/".join(place[:2]))
    return (), f"{domain}://{path}", parts[0]


def _authorize(request: web.Request, kind: str, topics: tuple[TopicName, ...], pattern: str,
               subscription: str) -> None:
    """Refuse a role that may not do this with each topic.  Workers check again.  Raises 403."""
    authorization, identity = request.app[AUTHORIZATION], request[IDENTITY]
    if not authorization.is_enabled:
        return
    authorization.version()
    wanted: list[tuple[str, Resource]] = [(PRODUCE if kind == PRODUCER else CONSUME, topic) for topic in topics]
    if pattern:
        wanted.append((LOOKUP, "/".join(pattern.partition("://")[2].split("/")[:2])))
    for action, resource in wanted:
        decision = authorization.decide(identity, action, resource, subscription if action == CONSUME else "")
        if not decision.is_allowed:
            raise web.HTTPForbidden(text=decision.told or f"Not allowed to {action} on {resource}")


def _refuse_foreign_pages(request: web.Request) -> None:
    """Refuse a page of another site, unless it shows credentials of its own.  Raises 403.

    A browser lets any page connect to any host, and adds the user's cookies, passwords and certificates.
    """
    if shows_a_token(request, request[IDENTITY]):
        return
    for origin in request.headers.getall("Origin", ()):
        try:
            host = urlsplit(origin).hostname or origin
        except ValueError:
            host = origin
        is_same = origin.partition("://")[2].lower() == request.headers.get("Host", "").lower()
        if not is_same and not request.app[GUARD].knows(host):
            raise web.HTTPForbidden(text=f"Pages of {origin[:255]!r} may connect with a token only, or if hosts of "
                                         "[http] in the configuration names their host")


async def _hand_over(request: web.Request, handover: Handover) -> web.StreamResponse:
    """Hand the request's connection over, and return when it has left, or with TLS has ended.  Raises 503."""
    handovers = request.app[HANDOVERS]

    async def send(early: bytes, descriptor: int) -> None:
        try:
            handovers.send(handover._replace(rest=early), descriptor)
        except OSError as error:
            raise web.HTTPServiceUnavailable(
                text=f"Too many handshakes wait: {os.strerror(error.errno or 0)}") from None

    return await hand_over(request, send)
