"""The right that each route of REST demands, which the route says where it is declared.

    routes = Routes()

    @routes.get(TOPIC + "/stats", right=LOOKS_UP)
    async def stats(request: web.Request) -> web.Response: ...

A route that says none is for super users.  None as a right: every authenticated role may ask.
"""
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from aiohttp import web

from geminga.proto.commands import CONSUME, LOOKUP, PRODUCE
from geminga.workers.identity.authorization import ADMINISTER


class Demand(NamedTuple):
    """The right that a route needs, and the answer to a role without it.  Statuses are Pulsar's."""

    of: str           # the part of the path with the resource: "topic", "namespace", "tenant"; "" for the broker
    action: str       # the right that is needed
    status: int       # status of the answer to roles without that right
    is_hiding: bool = False      # whether a missing tenant gives the same answer, instead of 404
    is_resolved: bool = False    # whether a right to the scalable topic that hides the resource is enough


SUPER, TENANTS = Demand("", ADMINISTER, 401), Demand("tenant", ADMINISTER, 401, is_hiding=True)
TENANT, NAMESPACE, TOPIC, TOPIC_POLICY = (Demand("tenant", ADMINISTER, 401), Demand("namespace", ADMINISTER, 403),
                                          Demand("topic", ADMINISTER, 401), Demand("topic", ADMINISTER, 403))
# for routes about all topics of a namespace
LISTS, DISCARDS = Demand("namespace", LOOKUP, 403), Demand("namespace", CONSUME, 403)
LOOKS_UP, PRODUCES, CONSUMES = (Demand("topic", action, 401) for action in (LOOKUP, PRODUCE, CONSUME))
RESOLVES = LOOKS_UP._replace(is_resolved=True)
WRITES, READS = Demand("topic", PRODUCE, 403), Demand("topic", CONSUME, 403)      # messages over plain HTTP
DEMANDS: dict[tuple[str, str], Demand | None] = {}      # (method, path as the router writes it) -> what it demands
_PATTERN = re.compile(r":(?:[^{}]|\{[^{}]*\})*(?=\})")   # of a part of a path, as in {topic:[^/]+}
_PLAIN_PART = re.compile(r"\{(\w+)\}")                   # a part of a path without a pattern, as in {tenant}


class Routes(web.RouteTableDef):
    """The routes that a file declares, each with the right that it demands."""

    def route(self, method: str, path: str, *, right: Demand | None = SUPER, **more: Any) -> Callable[[Any], Any]:
        """Return a decorator that declares a function as the one that answers requests for a path.

        A part of the path without a pattern takes every character but a slash.
        """
        DEMANDS[method, _PATTERN.sub("", path)] = right
        # Without a pattern aiohttp takes no braces, so that nothing of a topic or role with one could be reached.
        return super().route(method, _PLAIN_PART.sub(r"{\1:[^/]+}", path), **more)


def demand_of(method: str, path: str) -> Demand | None:
    """Return the right that a route demands; one that was not declared by Routes demands a super user."""
    return DEMANDS.get(("GET" if method == "HEAD" else method, path), DEMANDS.get(("*", path), SUPER))
