"""Layouts of topics for clients of Pulsar 5, which keep a watch open for each producer and consumer.

A watch is opened by a client's session id.  Its first update answers it.  Further ones come when the topic has got
partitions or was created again, or when its segments have split or merged.  As for lists of topics, a worker looks at
the catalogue for changes while any client watches.  Owners that seal a segment have it look at once.

A scalable topic that was deleted has a layout without segments until it is created again.  An error would end the
client's session, so that its producer or consumer never learned of the new topic.  Pulsar tells nothing, and segments
come back when they are used.  Here they do not, and the client would stay with what it had, and closed, of a segment
whose number the new topic has again.  Of regular topics nothing is told: their clients create them again.

A name without a domain, or persistent://..., stands for the scalable topic of that name, if there is one.
"""
import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto import responses
from geminga.proto.commands import LOOKUP, TABLE, T
from geminga.proto.errors import Refusal
from geminga.proto.layouts import Layout, Mark
from geminga.proto.names import TopicName
from geminga.storage.runtime.counters import Counters
from geminga.workers.directory.directory import Directory
from geminga.workers.identity.authentication import Identity
from geminga.workers.identity.authorization import Resource

WATCHES_MAX = 10_000           # of one connection: a program may well have that many producers; one takes 300 bytes
LOOK_SECONDS = 0.2             # between two looks
_REST = 10                     # times as long as a look took that pass at least until the next one


class _Stream(Protocol):
    """The parts of a connection that watches use."""

    is_writable: bool

    def write(self, data: bytes) -> None: ...


class Client(Protocol):
    """The parts of a client that watches use."""

    identity: Identity | None

    @property
    def stream(self) -> _Stream: ...


class Rights(Protocol):
    """The part of authorization that watches use."""

    def may(self, client: Client, action: str, resource: Resource) -> bool: ...


class Worker(Protocol):
    """The parts of the worker that watches use."""

    counters: Counters
    directory: Directory

    @property
    def rights(self) -> Rights | None: ...
    def watches_layouts(self, client: Any) -> None: ...


@dataclass(eq=False, slots=True)
class Watch:
    """The watch of one session: its topic, and what its client was told last."""

    client: Client
    session_id: int
    name: str                  # of the topic, as its client wrote it
    told: Mark | None          # None: that the topic has no segments, as it does not exist
    existed: bool              # the topic existed then: one that does not is created by its first producer or consumer

    def __repr__(self) -> str:
        return f"<Watch {self.session_id} of {self.name}, told {self.told}>"


class Layouts:
    """The watches of all clients of a worker."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop):
        self._worker, self._directory, self._loop = worker, worker.directory, loop
        self._watches: dict[Client, dict[int, Watch]] = {}
        self._number = 0      # of watches
        self._version = -1
        self._timer: asyncio.TimerHandle | None = None
        self._count(0)

    def __repr__(self) -> str:
        return f"<Layouts {sum(map(len, self._watches.values()))} watches at version {self._version}>"

    # -- commands of clients

    def watch(self, client: Client, request: api.CommandScalableTopicLookup) -> bytes:
        """Answer SCALABLE_TOPIC_LOOKUP with the topic's layout, and watch it.  Raises Refusal.

        As in Pulsar, a session that is used again has a new watch instead of its former one.
        """
        topic = self._directory.resolved(request.topic)
        if topic.is_scalable and not self._may_know(client, topic):      # the client may have named a regular topic
            raise Refusal(api.AuthorizationError, TABLE[T.SCALABLE_TOPIC_LOOKUP].denial)
        its = self._watches.get(client, {})
        if len(its) >= WATCHES_MAX and request.session_id not in its:
            raise Refusal(api.TooManyRequests, f"The connection has {WATCHES_MAX} watches of layouts")
        version = self._directory.topics_version()      # before the layout is read, else a change in between is missed
        layout = self._directory.layout(topic, may_create=request.create_if_missing)
        existed = topic.is_scalable or self._directory.stored_layout(topic) is not None
        if not self._watches:
            self._version = version
        if not its:
            self._worker.watches_layouts(client)
        is_new = request.session_id not in its
        self._watches.setdefault(client, {})[request.session_id] = Watch(
            client, request.session_id, request.topic, layout.mark, existed)
        self._count(is_new)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        return _update(request.session_id, topic, self._wire(layout))

    def close(self, client: Client, session_id: int) -> None:
        """End a watch, if the client has one of that session."""
        its = self._watches.get(client, {})
        if its.pop(session_id, None) is not None:
            self._count(-1)
            if not its:
                del self._watches[client]

    def forget(self, client: Client) -> None:
        """Drop the client's watches: its connection has ended."""
        self._count(-len(self._watches.pop(client, ())))

    def _count(self, more: int) -> None:
        self._number += more
        self._worker.counters.set("layout_watches", self._number)

    def _wire(self, layout: Layout) -> api.ScalableTopicDAG:
        return layout.to_wire(self._directory.known_urls())

    # -- changes of topics

    def look(self) -> None:
        """Look for changes now: an owner has changed a layout, and producers wait for the new one."""
        if self._timer is not None:
            self._timer.cancel()
            self._look()

    def _look(self) -> None:
        began = time.monotonic()
        try:
            self._tell()
        finally:
            self._timer = None
            if self._watches:
                self._timer = self._loop.call_later(max(LOOK_SECONDS, _REST * (time.monotonic() - began)), self._look)

    def _tell(self) -> None:
        """Tell each client that reads of layouts that are not as it knows them."""
        version = self._directory.topics_version()
        if version == self._version:
            return
        self._version = version
        # Of this look: many watch the same topic, and to write 64 segments takes 20 times as long as a frame of them.
        found: dict[str, tuple[TopicName, Layout | None]] = {}
        wires: dict[str, api.ScalableTopicDAG] = {}
        for watch in self._all():
            if watch.name not in found:
                topic = self._directory.resolved(watch.name)
                found[watch.name] = topic, self._directory.stored_layout(topic)
            topic, layout = found[watch.name]
            now = None if layout is None else layout.mark
            if now is None and not watch.existed:
                continue
            if now == watch.told:
                watch.existed = True
            elif not watch.client.stream.is_writable:
                self._version = -1      # a client that does not read is told when it reads again
            elif self._may_know(watch.client, topic):
                if watch.told is not None and watch.told.is_gone(now):
                    watch.client.stream.write(_update(watch.session_id, topic, _without_segments(watch.told)))
                watch.told, watch.existed = now, True
                if layout is not None:
                    if watch.name not in wires:
                        wires[watch.name] = self._wire(layout)
                    watch.client.stream.write(_update(watch.session_id, topic, wires[watch.name]))

    def _may_know(self, client: Client, topic: TopicName) -> bool:
        rights = self._worker.rights
        return rights is None or rights.may(client, LOOKUP, topic)

    def _all(self) -> Iterable[Watch]:
        return [watch for its in self._watches.values() for watch in its.values()]


def _without_segments(told: Mark) -> api.ScalableTopicDAG:
    return api.ScalableTopicDAG(epoch=told.epoch)


def _update(session_id: int, topic: TopicName, layout: api.ScalableTopicDAG) -> bytes:
    return responses.scalable_topic_update(session_id, layout, str(topic.scalable))

