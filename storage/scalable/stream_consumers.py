"""Registrations of stream consumers: who consumes a topic together, and which segments each of them gets.

A stream consumer registers at the owner of the name topic://..., whatever worker it is connected to and whether the
topic is scalable: it stays there when a regular topic is made scalable.  It consumes the segments that it is assigned:
as Exclusive if it has a segment alone, as Key_Shared with others.  All consumers of a subscription are told their
segments anew when one of them comes or goes, when the topic gets partitions, when its segments split or merge, and when
the subscription has acknowledged all of a sealed segment.

A consumer whose connection ends keeps its segments for a while: mostly it comes back under the same name, and a change
of segments would make all others stop and go on as well.  A registration is not stored.  When the owner's process
ends, workers tell the next one of the registrations that they know, and it tells consumers their segments only after
all workers had the time for that.

A name may be registered twice: its consumer has come back before the end of its former connection was noticed, or two
programs use one name.  Both are told its segments, and only one of them can consume those that it has alone.
"""
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.layouts import Layout, Share, assignment, of_partitions
from geminga.proto.names import TopicName
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.open_topics.decisions import Outbox
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.scalable.assignment import assignable, deal
from geminga.storage.scalable.notices import ASKED, DRAINED, SILENT, Notices

SETTLE_MS = 1_000             # for workers to tell a new owner of what they know
_ASK_MS = 5_000               # between questions that repeat what a killed process may have lost
CONSUMERS_MAX = 1_000         # of one subscription: each of them is told of each other one
_REGISTRATIONS_MAX = 100_000  # of one owner; a registration takes about 1 KiB

# Why the segments of a subscription are dealt anew.
JOIN, LEAVE, EVICT, LAYOUT, DRAINED_SEGMENT = REASONS = (
    "consumer_join", "consumer_leave", "consumer_evict", "layout_change", "segment_drained")
STATES = "active", "idle", "disconnected"      # of a consumer: it has segments, it has none, its connection has ended
PLACES_MAX = 10               # of one name; an eleventh client that takes the name for its own is refused

Connection = tuple[int, int]  # worker, and the connection's number there
Place = tuple[Connection, int]         # a connection, and the id that its client chose for the registration
Kind = tuple[TopicName, str, int]      # topic as topic://..., subscription, ScalableConsumerType


@dataclass(eq=False, slots=True)
class Registration:
    """A stream consumer by its name, and where its assignments are sent."""

    name: str
    places: dict[Place, None] = field(default_factory=dict)      # mostly one; none: the connection has ended
    away_since_ms: int = 0                                       # when it ended

    def __repr__(self) -> str:
        return f"<Registration {self.name!r} at {list(self.places) or 'no connection'}>"


@dataclass(eq=False, slots=True)
class Group:
    """The stream consumers of one subscription, and the layout whose segments they share."""

    layout: Layout
    may_share: bool = True             # a segment's entry buckets
    by_name: dict[str, Registration] = field(default_factory=dict)
    drained: set[int] = field(default_factory=set)      # sealed segments where everything is acknowledged
    settles_at_ms: int | None = None   # when its consumers will be told their segments; None: they know them

    def __repr__(self) -> str:
        return f"<Group of {len(self.by_name)} consumers, {len(self.layout.segments)} segments>"

    def assignments(self, but: int | None = None) -> dict[str, api.ScalableConsumerAssignment]:
        """Return the assignment of each consumer, also of those that are away.

        but: the number of a segment that its consumer is not told.
        """
        return {name: assignment(self.layout, [share for share in shares if share.segment.number != but])
                for name, shares in self.dealt().items()}

    def dealt(self) -> dict[str, list[Share]]:
        """Return the segments of each consumer."""
        return deal(self.layout, self.by_name, self.drained, may_share=self.may_share)

    def states(self) -> "Counter[str]":
        """Return how many consumers are in each of STATES."""
        active, idle, away = STATES
        return Counter(away if not self.by_name[name].places else active if shares else idle
                       for name, shares in self.dealt().items())

    def blocked(self) -> int:
        """Return how many segments wait until others are drained."""
        segments = {segment.number for segment in self.layout.segments}
        return len(segments - self.drained - {segment.number for segment in assignable(self.layout, self.drained)})


class StreamConsumers(Watcher):
    """The stream consumers of topics whose names belong to one owner."""

    def __init__(self, catalogue: Catalogue, outbox: Callable[[int], Outbox], notices: Notices, grace_ms: int):
        """outbox: worker's number -> the outbox for its answers.  grace_ms: see `StorageOptions`."""
        self.grace_ms = grace_ms
        self._catalogue, self._outbox, self._notices = catalogue, outbox, notices
        notices.functions |= {DRAINED: self._drained, SILENT: self._silent}
        self._groups: dict[Kind, Group] = {}
        # Consumers that are connected, by their ids on each connection.
        self._connected: dict[Connection, dict[int, tuple[Kind, Registration]]] = {}
        self._asked_ms = 0            # when owners were last asked about segments that are not drained
        self._count = 0               # of registrations, also of consumers that are away
        self._version = -1            # of the catalogue's topics, by which layouts were made
        self.rebalances: Counter[str] = Counter()      # by the reason

    def __repr__(self) -> str:
        return f"<StreamConsumers {self._count} in {len(self._groups)} groups>"

    # -- commands and events of connections

    def register(self, connection: Connection, request: api.CommandScalableTopicSubscribe) -> None:
        """Register a consumer, tell all others of its subscription, and answer it.  Raises Refusal, StorageFull.

        Nobody else is told if its name is registered already.
        """
        group, registration, is_new = self._enter(connection, request)
        found = group.assignments()
        if is_new and group.settles_at_ms is None:
            self._tell(group, found, JOIN, but=registration)
        self._outbox(connection[0]).reply(
            connection[1], responses.stream_assigned(request.request_id, found[registration.name]),
            request_id=request.request_id, action=envelope.STREAM_REGISTERED, object_id=request.consumer_id)

    def restore(self, connection: Connection, request: api.CommandScalableTopicSubscribe, now_ms: int) -> None:
        """Register a consumer that this owner's predecessor had registered; it is told its segments later."""
        try:
            group, _, _ = self._enter(connection, request)
        except Refusal:
            return
        if group.settles_at_ms is None:
            group.settles_at_ms = now_ms + SETTLE_MS

    def unregister(self, connection: Connection, consumer_id: int) -> None:
        """Forget a consumer, if there is one of that id, and tell all others of its subscription."""
        found = self._disconnect(connection, consumer_id)
        if found is not None and not found[1].places:
            kind, registration = found
            group = self._groups[kind]
            self._forget(kind, group, registration)
            self._tell(group, group.assignments(), LEAVE)

    def expel(self, connection: Connection, consumer_id: int) -> None:
        """Tell a consumer that it has no segments any more, as its client lost the right to them; then forget it."""
        found = self._connected.get(connection, {}).get(consumer_id)
        if found is not None:
            none = assignment(self._groups[found[0]].layout, ())
            self._outbox(connection[0]).reply(connection[1], responses.stream_reassigned(consumer_id, none))
            self.unregister(connection, consumer_id)

    def ended(self, connection: Connection, now_ms: int) -> None:
        """Keep the consumers of a connection that has ended for some time."""
        for consumer_id, (_, registration) in self._connected.pop(connection, {}).items():
            del registration.places[connection, consumer_id]
            registration.away_since_ms = now_ms

    def _disconnect(self, connection: Connection, consumer_id: int) -> tuple[Kind, Registration] | None:
        """Take a consumer off its connection; None if there is none of that id."""
        its = self._connected.get(connection, {})
        found = its.pop(consumer_id, None)
        if found is not None:
            del found[1].places[connection, consumer_id]
            if not its:
                del self._connected[connection]
        return found

    def _enter(self, connection: Connection,
               request: api.CommandScalableTopicSubscribe) -> tuple[Group, Registration, bool]:
        """Return the group, the registration, and whether the group has a consumer more than before.

        Raises Refusal, StorageFull.
        """
        topic = names.parse(request.topic)
        kind = topic.scalable, request.subscription, int(request.consumer_type)
        group = self._groups.get(kind)
        if group is None:
            layout = self._layout_of(topic.scalable)
            if layout is None and topic.is_scalable:
                raise Refusal(api.TopicNotFound, f"Scalable topic not found: {topic}")
            group = Group(layout or of_partitions(topic, 0), request.consumer_type == api.STREAM)
            self._ask(group)
        registration, place = group.by_name.get(request.consumer_name), (connection, request.consumer_id)
        is_new = registration is None
        if registration is None:
            self._make_room(kind, group)
            registration = group.by_name[request.consumer_name] = Registration(request.consumer_name)
            self._count += 1
        elif len(registration.places) >= PLACES_MAX and place not in registration.places:
            raise Refusal(api.ConsumerBusy, f"{PLACES_MAX} stream consumers are called {registration.name}")
        self._groups[kind] = group
        registration.places[place] = None
        self._connected.setdefault(connection, {})[request.consumer_id] = kind, registration
        return group, registration, is_new

    def _make_room(self, kind: Kind, group: Group) -> None:
        """Forget the consumer that has been away longest if the subscription has as many as it may have.

        Raises Refusal: there is none, or the owner has too many.
        """
        if self._count >= _REGISTRATIONS_MAX:
            raise Refusal(api.TooManyRequests, "Too many stream consumers are registered; try again later")
        if len(group.by_name) < CONSUMERS_MAX:
            return
        away = [registration for registration in group.by_name.values() if not registration.places]
        if not away:
            raise Refusal(api.ConsumerBusy, f"The subscription has {CONSUMERS_MAX} stream consumers")
        self._forget(kind, group, min(away, key=lambda registration: registration.away_since_ms))

    def _forget(self, kind: Kind, group: Group, registration: Registration) -> None:
        del group.by_name[registration.name]
        self._count -= 1
        if not group.by_name:
            self._groups.pop(kind, None)

    def _tell(self, group: Group, found: dict[str, api.ScalableConsumerAssignment], reason: str,
              but: Registration | None = None) -> None:
        """Tell all consumers that are connected their segments, except one.  reason: one of REASONS, or "" for none."""
        if reason:
            self.rebalances[reason] += 1
        for registration in group.by_name.values():
            if registration is not but:
                self._tell_one(registration, found[registration.name])

    def _tell_one(self, registration: Registration, segments: api.ScalableConsumerAssignment) -> None:
        for (worker, connection), consumer_id in registration.places:
            self._outbox(worker).reply(connection, responses.stream_reassigned(consumer_id, segments),
                                       action=envelope.STREAM_ASSIGNED, object_id=consumer_id)

    # -- sealed segments

    def _ask(self, group: Group, owner_index: int | None = None) -> None:
        """Ask owners how far subscriptions have come on the sealed segments of a group's layout.

        owner_index: only that owner.
        """
        for segment in group.layout.segments:
            if not segment.is_active and owner_index in (None, self._notices.owner_index(segment.topic)):
                self._notices.send(segment.topic, ASKED, segment.topic)

    def owner_is_up(self, index: int) -> None:
        """Ask an owner that serves now: it may know of less than its predecessor had told, which was not durable."""
        for group in self._groups.values():
            self._ask(group, index)

    def _drained(self, segment: str, by_subscription: dict[str, bool]) -> None:
        """Deal the children of a segment that a subscription has drained, or take them back as it was reset.

        Consumers that keep their places themselves know no sealed segments.
        """
        name = names.parse(segment)
        number, whole = name.segment_number, name.base.scalable
        for (topic, subscription, _), group in self._groups.items():
            is_drained = by_subscription.get(subscription)
            if topic == whole and is_drained is not None and is_drained != (number in group.drained):
                (group.drained.add if is_drained else group.drained.discard)(number)
                if group.settles_at_ms is None:
                    self._tell(group, group.assignments(), DRAINED_SEGMENT)

    def figures(self) -> tuple[dict[str, int], int]:
        """Return how many consumers are in each of STATES, and how many segments wait until others are drained."""
        states: Counter[str] = Counter()
        for group in self._groups.values():
            states += group.states()
        return dict(states), sum(group.blocked() for group in self._groups.values())

    def _silent(self, segment: str, subscription: str) -> None:
        """Take a segment from its consumer and give it back: the client makes a new consumer of it."""
        name = names.parse(segment)
        group = self._groups.get((name.base.scalable, subscription, int(api.STREAM)))
        if group is None or group.settles_at_ms is not None:
            return
        found, without = group.assignments(), group.assignments(but=name.segment_number)
        for registration in group.by_name.values():
            if without[registration.name] != found[registration.name]:
                self._tell_one(registration, without[registration.name])
                self._tell_one(registration, found[registration.name])

    def registered(self, topic: TopicName) -> dict[str, list[tuple[str, bool, list[int]]]]:
        """Return {subscription: [(consumer's name, whether it is connected, numbers of its segments)]} of a topic."""
        found: dict[str, list[tuple[str, bool, list[int]]]] = {}
        for (its, subscription, _), group in self._groups.items():
            if its == topic:
                found.setdefault(subscription, []).extend(
                    (name, bool(group.by_name[name].places), [share.segment.number for share in shares])
                    for name, shares in group.dealt().items())
        return found

    def counts(self) -> dict[str, int]:
        """Return {scalable topic: consumers of its largest subscription}, of topics that several consumers share."""
        counts: dict[str, int] = {}
        for (topic, _, _), group in self._groups.items():
            is_scalable = any(not segment.is_legacy for segment in group.layout.active)      # none: it was deleted
            if is_scalable and len(group.by_name) > max(1, counts.get(str(topic), 0)):
                counts[str(topic)] = len(group.by_name)
        return counts

    # -- once a second

    def tick(self, now_ms: int) -> None:
        """Forget consumers that were away too long, follow topics that got partitions, and tell consumers of both."""
        if not self._groups:
            return
        if not 0 <= now_ms - self._asked_ms < _ASK_MS:
            self._asked_ms = now_ms
            for group in self._groups.values():
                if any(not one.is_active and one.number not in group.drained for one in group.layout.segments):
                    self._ask(group)
        grown = self._grown()
        for kind, group in list(self._groups.items()):
            gone = [registration for registration in group.by_name.values() if not registration.places
                    and not 0 <= now_ms - registration.away_since_ms < self.grace_ms]
            for registration in gone:
                self._forget(kind, group, registration)
            has_settled = group.settles_at_ms is not None and now_ms >= group.settles_at_ms
            if has_settled:
                group.settles_at_ms = None
            if gone or has_settled or kind in grown:
                self._tell(group, group.assignments(), EVICT if gone else LAYOUT if kind in grown else "")

    def layouts_changed(self) -> None:
        """Tell consumers of topics whose layouts have changed their segments."""
        if not self._groups:
            return
        grown = self._grown()
        for kind, group in self._groups.items():
            if kind in grown and group.settles_at_ms is None:
                self._tell(group, group.assignments(), LAYOUT)

    def _grown(self) -> set[Kind]:
        """Give groups the layouts of topics whose partitions or segments have changed, and return which these are.

        A regular topic that was deleted keeps its last layout: its consumers may be the ones that create it again.
        Consumers of a scalable one are told that they have no segments, also if it is there again: their clients keep
        what they have of a segment, and the new topic has the same numbers.
        """
        version = self._catalogue.topics.version()
        if version == self._version:
            return set()
        self._version = version
        grown, layouts = set(), {topic: self._layout_of(topic) for topic, _, _ in self._groups}
        for kind, group in self._groups.items():
            layout = layouts[kind[0]]
            if group.layout.mark.is_gone(None if layout is None else layout.mark):
                group.layout, group.drained = group.layout._replace(segments=()), set()
                if group.settles_at_ms is None:
                    self._tell(group, group.assignments(), LAYOUT)
            if layout is not None and layout != group.layout:
                group.layout = layout
                group.drained &= {segment.number for segment in layout.segments}
                self._ask(group)      # an owner may have been killed before it told of a segment that it had sealed
                grown.add(kind)
        return grown

    def _layout_of(self, topic: TopicName) -> Layout | None:
        """Return the layout of a scalable topic, or of the regular one of its name, None if there is neither.

        Raises StorageFull.
        """
        layout = self._catalogue.scalable_topics.layout(topic)
        count = self._catalogue.topics.partition_count(topic.regular) if layout is None else None
        return layout if count is None else of_partitions(topic.regular, count)
