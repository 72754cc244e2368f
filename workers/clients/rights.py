"""Rights of clients: commands are checked when they come, producers and consumers again whenever rights have changed.

Nothing is checked per message.  A producer or consumer is expelled when its client loses the right to it.  Nobody tells
workers of changes: they look at the catalogue many times a second.  The counter `rights_seen` says which version of the
rights they go by, and a change of rights over HTTP is answered when all workers go by it.
"""
import asyncio
import sqlite3
from collections.abc import Iterable
from typing import Any, Protocol

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import CONSUME, LOOKUP, TABLE, T
from geminga.proto.errors import Refusal
from geminga.storage.errors import StorageFull
from geminga.storage.runtime.counters import Counters
from geminga.workers.clients.routes import Route, Routes
from geminga.workers.directory.directory import Directory
from geminga.workers.directory.watchers import Watcher, Watchers
from geminga.workers.identity.authentication import Identity
from geminga.workers.identity.authorization import (
    ADMINISTER,
    REPLICATE,
    Authorization,
    Decision,
    Resource,
    Right,
    tenant_of,
)
from geminga.workers.owners.links import OwnerLink

_LOOK_SECONDS = 0.1            # between two looks at the catalogue; a change of rights waits for one
_AGAIN_SECONDS = 0.005         # between looks for producers and consumers that were told to go and have not gone
_SUBSCRIBING = T.SUBSCRIBE, T.SCALABLE_TOPIC_SUBSCRIBE
# Commands by which clients of Pulsar 5 get a scalable topic under the name of a regular one.
_RESOLVED = T.LOOKUP, T.SCALABLE_TOPIC_LOOKUP, T.SCALABLE_TOPIC_SUBSCRIBE


class Holder(Protocol):
    """The part of a client that has rights."""

    identity: Identity | None


class Client(Holder, Protocol):
    """The parts of a client that authorization uses."""

    @property
    def routes(self) -> Routes: ...
    def rights_of_stream_consumers(self) -> list[tuple[int, Right]]: ...
    def expel_stream_consumer(self, consumer_id: int) -> None: ...
    def expel(self, link: OwnerLink, object_id: int, handle: int, *, is_producer: bool) -> None: ...


class Worker(Protocol):
    """The parts of the worker that authorization uses."""

    counters: Counters
    directory: Directory

    @property
    def watchers(self) -> Watchers: ...
    def all_clients(self) -> Iterable[Client]: ...


class Rights:
    """Authorization for all clients of one worker; exists only where authorization is on."""

    def __init__(self, worker: Worker, authorization: Authorization, loop: asyncio.AbstractEventLoop):
        self._worker, self._authorization, self._loop = worker, authorization, loop
        self._seen = -1      # version of the rights that all producers and consumers have been checked by
        self._look()

    def __repr__(self) -> str:
        return f"<Rights of version {self._seen}>"

    def close(self) -> None:
        """Stop checking the rights of clients."""
        self._again.cancel()

    def configured(self) -> None:
        """Check all clients again because the options of authorization have changed."""
        self._seen = -1

    # -- before a command is dealt with

    def check(self, client: Client, command: api.BaseCommand) -> None:
        """Raise Refusal: the client does not have the right that the command needs."""
        row = TABLE[command.type]
        if not row.right:
            return
        decision = self._decide(client, command.type, getattr(command, row.field))
        if decision is None or decision.is_allowed:
            return
        self._worker.counters.add("commands_refused")
        self._worker.counters.add("lookups_failed", command.type == T.LOOKUP)
        raise Refusal(api.AuthorizationError, decision.told or row.denial)

    def _decide(self, client: Client, kind: int, request: Any) -> Decision | None:
        """Decide about a command; None if it is wrong in another way, which its handler answers."""
        try:
            right = right_of(kind, request)
        except Refusal:
            return None
        if _is_free(kind, right):
            return None
        assert client.identity is not None
        if kind in _RESOLVED:
            decision = self._authorization.decide_resolved(client.identity, right, self._worker.directory.hiding)
        else:
            decision = self._authorization.decide(client.identity, *right)
        if decision.is_allowed and kind == T.PRODUCER and request.initial_subscription_name:
            return self._authorization.decide(client.identity, CONSUME, right.resource,
                                              request.initial_subscription_name)
        if not decision.is_allowed and kind == T.PARTITIONED_METADATA \
                and not self._worker.directory.catalogue.tenants.exists(tenant_of(right.resource)):
            return None
        return decision

    def is_superuser(self, client: Client) -> bool:
        """Whether the client may do everything, as only super users and the broker itself may."""
        return client.identity is not None and self._authorization.allows(client.identity, ADMINISTER, "")

    def may(self, client: Holder, action: str, resource: Resource, subscription: str = "") -> bool:
        """Whether the client has a right."""
        return client.identity is not None \
            and self._authorization.allows(client.identity, action, resource, subscription)

    # -- after rights have changed

    def keeps(self, client: Client, route: Route) -> bool:
        """Whether the client still has the right to a producer or consumer; if not, the owner is told to end it."""
        assert client.identity is not None and route.link is not None and route.right is not None
        if self._authorization.allows(client.identity, *route.right):
            return True
        if not route.is_expelled:
            route.is_expelled = True
            client.expel(route.link, route.object_id, route.handle, is_producer=route.is_producer)
        return False

    def _look(self) -> None:
        again = _LOOK_SECONDS
        try:
            version = self._authorization.version()
            if version != self._seen:
                if self._all_kept():
                    self._seen = version
                    self._worker.counters.set("rights_seen", version)
                else:
                    again = _AGAIN_SECONDS
        except (StorageFull, sqlite3.OperationalError):
            pass      # rights_seen stays as it is, and the change is answered with an error
        finally:
            self._again = self._loop.call_later(again, self._look)

    def _all_kept(self) -> bool:
        """Whether every producer and consumer of this worker still has its right; watchers without their right are
        ended.
        """
        self._worker.watchers.end(self._is_over)
        lost = 0
        for client in self._worker.all_clients():
            # Routes whose producer or consumer is being opened count too.  Commands that wait in this worker are
            # checked when they are carried out.
            for consumer_id, right in client.rights_of_stream_consumers():
                if not self.may(client, *right):
                    client.expel_stream_consumer(consumer_id)
            lost += sum(route.link is not None and not self.keeps(client, route) for route in client.routes.all())
        return not lost

    def _is_over(self, watcher: Watcher) -> bool:
        """Whether the client of this topic-list watcher has lost the right to watch."""
        identity = watcher.client.identity
        return identity is None or not self._authorization.allows(identity, LOOKUP, watcher.namespace)


def right_of(kind: int, request: Any) -> Right:
    """Return the right that a command needs.  kind: the command's type; request: the message inside the command.

    Raises Refusal: the command names no valid topic or namespace.
    """
    row = TABLE[kind]
    if "namespace" in request.DESCRIPTOR.fields_by_name:
        return Right(row.right, names.parse_namespace(request.namespace))
    topic = names.parse(request.topic)
    if kind == T.PRODUCER and names.source_cluster(request.producer_name) is not None:
        return Right(REPLICATE, topic)
    return Right(row.right, topic, request.subscription if kind in _SUBSCRIBING else "")


def _is_free(kind: int, right: Right) -> bool:
    """Whether every client that is authenticated may do this: ask where the coordinators of transactions are."""
    resource = right.resource
    return kind in (T.LOOKUP, T.PARTITIONED_METADATA) and not isinstance(resource, str) \
        and resource.base == names.COORDINATORS
