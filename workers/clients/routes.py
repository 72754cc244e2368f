"""Producers and consumers of one client: which owner has each of them.

Clients choose ids, and may use one again at any time.  So an id has one route, made by one command that went to one
owner.  Another command with that id is not passed on before the route has ended.  An owner's answer is matched by the
request's id, and by the handle once there is one: it may be about a producer or consumer that its client has closed
meanwhile.
"""
from collections.abc import Callable
from dataclasses import dataclass

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.deliveries import Delivery
from geminga.proto.errors import ProtocolError
from geminga.proto.names import TopicName
from geminga.workers.identity.authorization import Right
from geminga.workers.owners.links import OwnerLink

_CLOSED_MAX = 100_000            # producers that are remembered as closed by the broker


@dataclass(eq=False, slots=True)
class Route:
    """A producer or consumer of a client, the link to its owner, and the handle that the owner gave it.

        link None, handle 0    the command waits in this worker, for a schema check or for its owner
        link, handle 0         the owner was asked and has not answered
        link, handle           the owner has made the producer or consumer
    """

    link: OwnerLink | None
    object_id: int                               # producer_id or consumer_id, chosen by the client
    is_producer: bool
    handle: int = 0
    delivery_to: tuple[int, int] = (-1, -1)      # ledger id and epoch of `delivery`
    delivery: Delivery | None = None
    partition: int = -1
    epoch: int = -1                              # consumer epoch that its messages carry; -1: none
    request: tuple[TopicName, api.BaseCommand] | None = None     # PRODUCER or SUBSCRIBE, until the owner has made it
    request_id: int = -1
    withdraw: Callable[[], None] | None = None   # takes back a command that waits in this worker
    is_valid: bool = False                       # its schema has been checked
    is_repeated: bool = False      # a second owner was asked, because the first one ended before it answered
    success: bytes = b""                         # frame that told its client that it was made
    right: Right | None = None                   # that its client must have; None where authorization is off
    is_expelled: bool = False                    # the owner was told to end it
    is_replicator: bool = False                  # the producer of another cluster's replicator
    follows_layout: bool = False                 # a producer that its client closes when its segment is sealed

    def __repr__(self) -> str:
        kind = "producer" if self.is_producer else "consumer"
        return f"<Route of {kind} {self.object_id} to {self.link or 'no owner'}, handle {self.handle}>"

    def is_made_by(self, command: api.BaseCommand) -> bool:
        """Whether this very command asked for the producer or consumer, and its owner has not made it yet."""
        return self.request is not None and self.request[1] is command


class Routes:
    """All producers and consumers of one client."""

    def __init__(self) -> None:
        self.producers: dict[int, Route] = {}      # by the client's id
        self.consumers: dict[int, Route] = {}
        self.by_handle: dict[tuple[OwnerLink, int], Route] = {}     # consumers that their owners have made
        self._closed: dict[int, None] = {}      # producers that the broker has closed last: their SENDs are ignored
        # Those of sealed segments that the client is about to close -> frames that it is told otherwise.
        self.sealed: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"<Routes producers={len(self.producers)} consumers={len(self.consumers)} closed={len(self._closed)}>"

    def all(self) -> list[Route]:
        return [*self.producers.values(), *self.consumers.values()]

    def of_kind(self, *, is_producer: bool) -> dict[int, Route]:
        return self.producers if is_producer else self.consumers

    def publishing(self, producer_id: int) -> Route | None:
        """Return the route for SENDs of this producer; None if the broker has closed the producer.

        Raises ProtocolError: the client has no such producer.
        """
        route = self.producers.get(producer_id)
        if route is None or not route.handle:
            if producer_id in self._closed:
                return None
            raise ProtocolError(f"SEND for producer {producer_id}, which the connection does not have")
        return route

    def consuming(self, consumer_id: int) -> Route | None:
        """Return the route of a consumer that its owner has made; None for any other id."""
        route = self.consumers.get(consumer_id)
        return route if route is not None and route.handle else None

    def add(self, route: Route) -> None:
        """Add the route of a producer or consumer that an owner is going to be asked for."""
        self.of_kind(is_producer=route.is_producer)[route.object_id] = route
        if route.is_producer:
            self._closed.pop(route.object_id, None)
            self.sealed.pop(route.object_id, None)

    def close(self, object_id: int, *, is_producer: bool) -> Route | None:
        """Remove the route of a producer or consumer that the client closes; returns the route, if there is one.

        The id is free at once.  A SEND with the id of a producer that its client has closed breaks the protocol.
        """
        route = self.of_kind(is_producer=is_producer).pop(object_id, None)
        if is_producer:
            self._closed.pop(object_id, None)
        if route is not None and route.link is not None:
            self.by_handle.pop((route.link, route.handle), None)
        return route

    def drop(self, route: Route) -> None:
        """Remove the route of a producer or consumer that will not be made."""
        routes = self.of_kind(is_producer=route.is_producer)
        if routes.get(route.object_id) is route:
            del routes[route.object_id]

    def made(self, link: OwnerLink, object_id: int, handle: int, request_id: int, *, is_producer: bool) -> Route | None:
        """Store the handle of a producer or consumer that the owner has made, and return the route.

        Returns None if the client has closed the producer or consumer meanwhile.
        """
        route = self.of_kind(is_producer=is_producer).get(object_id)
        if route is None or route.link is not link or route.request_id != request_id:
            return None
        self.by_handle.pop((link, route.handle), None)
        route.handle, route.request = handle, None
        if not is_producer:
            self.by_handle[link, handle] = route
        return route

    def ended(self, link: OwnerLink, object_id: int, handle: int, request_id: int, *,
              is_producer: bool) -> Route | None:
        """Remove and return the route of a producer or consumer that the owner has ended or refused.

        Returns None if another producer or consumer uses the id by now.
        """
        routes = self.of_kind(is_producer=is_producer)
        route = routes.get(object_id)
        if route is None or route.link is not link \
                or (route.handle != handle if handle else route.request_id != request_id):
            return None
        del routes[object_id]
        self.by_handle.pop((link, handle), None)
        if handle and is_producer:
            self.remember_closed(object_id)
        return route

    def remember_closed(self, producer_id: int) -> None:
        """Ignore later SENDs of a producer that the broker has closed: the client may have sent them before it knew."""
        self._closed[producer_id] = None
        if len(self._closed) > _CLOSED_MAX:
            del self._closed[next(iter(self._closed))]

    def owner_gone(self, link: OwnerLink) -> tuple[list[Route], list[Route]]:
        """Return ([routes whose producer or consumer ended with the owner], [routes that the owner had not
        answered]).

        Ended routes are removed; unanswered ones stay and wait for the owner's successor.
        """
        lost = [route for route in self.all() if route.link is link and route.handle]
        for route in lost:
            del self.of_kind(is_producer=route.is_producer)[route.object_id]
            if route.is_producer:
                self.remember_closed(route.object_id)
        self.by_handle = {key: route for key, route in self.by_handle.items() if key[0] is not link}
        return lost, [route for route in self.all() if route.link is link]
