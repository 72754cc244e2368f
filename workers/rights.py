"""What clients may do: each command is looked at before it is dealt with, and who produces or consumes again when rights have changed.

Nothing is asked per message: a producer or consumer that is there has been allowed, and is told to go when its client loses the right
to it.  Workers are not told of that: they look at the catalogue many times a second, and `rights_seen` says which version of rights they
go by; whoever changes rights waits until it is theirs.
"""
import asyncio
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from geminga.proto import commands as answers
from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.errors import StorageFull
from geminga.workers.identity.authorization import CONSUME, LOOKUP, PRODUCE, Authorization, Decision, Right

if TYPE_CHECKING:
    from geminga.workers.client import Client, Route
    from geminga.workers.worker import Worker

T = api.BaseCommand.Type
_LOOK_SECONDS = 0.1            # between two looks; whoever takes a right away waits for one
_AGAIN_SECONDS = 0.005         # until those that were told to go are looked for again


class Demand(NamedTuple):
    """What a command needs: the right to do something with the topic, or the namespace, that it names."""

    field: str                                              # of BaseCommand
    action: str
    text: str                                               # what who lacks it is told
    answer: Callable[[int, int, str], bytes] = answers.error       # (request id, code, text) -> how


# Of all commands that a client may send.  None: it does nothing to what others have, or is about a producer, consumer or watcher of its
# own connection; those were allowed when they were made.
DEMANDS: dict[int, Demand | None] = {
    T.CONNECT: None, T.AUTH_RESPONSE: None, T.PING: None, T.PONG: None,
    T.PARTITIONED_METADATA: Demand("partitionMetadata", LOOKUP, "Client is not authorized to Get Partition Metadata",
                                   answers.partitions_failed),
    T.LOOKUP: Demand("lookupTopic", LOOKUP, "Client is not authorized to Lookup", answers.lookup_failed),
    T.PRODUCER: Demand("producer", PRODUCE, "Client is not authorized to Produce"),
    T.SUBSCRIBE: Demand("subscribe", CONSUME, "Client is not authorized to subscribe"),
    T.GET_SCHEMA: Demand("getSchema", LOOKUP, "Client is not authorized to Get Schema", answers.schema_missing),
    T.GET_OR_CREATE_SCHEMA: Demand("getOrCreateSchema", PRODUCE, "Client is not authorized to Get or Create Schema",
                                   answers.schema_refused),
    T.GET_TOPICS_OF_NAMESPACE: Demand("getTopicsOfNamespace", LOOKUP, "Client is not authorized to GetTopicsOfNamespace"),
    T.WATCH_TOPIC_LIST: Demand("watchTopicList", LOOKUP, "Proxy Client is not authorized to watchTopicList"),
    T.SEND: None, T.CLOSE_PRODUCER: None,
    T.FLOW: None, T.ACK: None, T.REDELIVER_UNACKNOWLEDGED_MESSAGES: None, T.UNSUBSCRIBE: None, T.CLOSE_CONSUMER: None, T.SEEK: None,
    T.GET_LAST_MESSAGE_ID: None, T.CONSUMER_STATS: None, T.WATCH_TOPIC_LIST_CLOSE: None,
    # Transactions are refused to everybody.
    T.TC_CLIENT_CONNECT_REQUEST: None, T.NEW_TXN: None, T.ADD_PARTITION_TO_TXN: None, T.ADD_SUBSCRIPTION_TO_TXN: None, T.END_TXN: None,
}
_OF_NAMESPACES = (T.GET_TOPICS_OF_NAMESPACE, T.WATCH_TOPIC_LIST)


def right_of(kind: int, request) -> Right:
    """What a command with a demand needs.  Raises Refusal: it names no topic, or no namespace."""
    resource = names.namespace(request.namespace) if kind in _OF_NAMESPACES else names.parse(request.topic)
    return Right(DEMANDS[kind].action, resource, request.subscription if kind == T.SUBSCRIBE else "")


class Rights:
    """Those of all clients of a worker.  Made only where authorization is on."""

    def __init__(self, worker: "Worker", authorization: Authorization, loop: asyncio.AbstractEventLoop):
        self._worker, self._authorization, self._loop = worker, authorization, loop
        self._seen = -1
        self._look()

    def close(self) -> None:
        """Nobody is looked at any more."""
        self._again.cancel()

    def configured(self) -> None:
        """The authorization has other options: everybody is looked at anew."""
        self._seen = -1

    # -- before

    def refused(self, client: "Client", command: api.BaseCommand) -> bytes | None:
        """The answer to a command that its client has no right to; None when it has."""
        demand = DEMANDS[command.type]
        if demand is None:
            return None
        request = getattr(command, demand.field)
        decision = self._decide(client, command.type, request)
        if decision is None or decision.is_allowed:
            return None
        self._worker.counters.add("commands_refused")
        self._worker.counters.add("lookups_failed", command.type == T.LOOKUP)
        return demand.answer(request.request_id, api.AuthorizationError, decision.told or demand.text)

    def _decide(self, client: "Client", kind: int, request) -> Decision | None:
        """None: what is wrong with the command is told by who deals with it."""
        try:
            right = right_of(kind, request)
        except Refusal:
            return None
        decision = self._authorization.decide(client.identity, *right)
        if decision.is_allowed and kind == T.PRODUCER and request.initial_subscription_name:
            return self._authorization.decide(client.identity, CONSUME, right.resource, request.initial_subscription_name)
        if not decision.is_allowed and kind == T.PARTITIONED_METADATA \
                and not self._worker.directory.catalogue.has_tenant(right.resource.tenant):
            return None
        return decision

    # -- after

    def keeps(self, client: "Client", route: "Route") -> bool:
        """Whether the client still has the right to its producer or consumer; if not, the owner is told to end it."""
        if self._authorization.allows(client.identity, *route.right):
            return True
        if not route.is_expelled:
            route.is_expelled = True
            client.expel(route.link, route.object_id, route.handle, is_producer=route.right.action == PRODUCE)
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
            pass      # whoever has changed something is told that not all have seen it
        finally:
            self._again = self._loop.call_later(again, self._look)

    def _all_kept(self) -> bool:
        """Whether nobody has a producer or consumer that it may not have; watchers end without a word."""
        self._worker.watchers.end(lambda watcher: not self._authorization.allows(watcher.client.identity, LOOKUP, watcher.namespace))
        lost = 0
        for client in self._worker.clients():
            for routes in (client.producers, client.consumers):
                # Those that are being made too; commands that wait in this worker are looked at anew when their turn comes.
                lost += sum(route.link is not None and not self.keeps(client, route) for route in routes.values())
        return not lost
