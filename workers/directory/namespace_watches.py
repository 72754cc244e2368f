"""Watches of the scalable topics of a namespace, which clients of Pulsar 5 keep open for consumers of a namespace.

The first update has all topics, further ones those that were created and deleted.  A watch may ask for topics with
certain properties; then a topic also comes or goes when its properties change.  As for layouts, a worker looks at the
catalogue for changes while any client watches.

Of a topic that was deleted and created again between two looks nothing is told: the client's consumers of it follow its
layout.  If they were told to go and to come again, messages that they had received of the new topic would come twice.
"""
import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import LOOKUP
from geminga.proto.errors import Refusal
from geminga.workers.directory.layouts import Client, Worker
from geminga.workers.directory.patterns import topics_hash

LOOK_SECONDS = 0.1             # between two looks
_REST = 10                     # times as long as a look took that pass at least until the next one
WATCHES_MAX = 100              # of one connection; each is answered with a list of all topics
FILTERS_MAX = 4_096            # characters of a watch's filters: an arbitrary bound, above what is written by hand
UPDATE_MAX = 1 << 20           # characters of the names in one update: clients refuse frames above some 5 MiB
_NAME_MAX = 200                # characters of a name in its refusal

Shown = frozenset[str]         # names of topics


class Scope(NamedTuple):
    """The topics that a watch is about: those of a namespace that have all these properties."""

    namespace: str
    filters: frozenset[tuple[str, str]]


@dataclass(eq=False, slots=True)
class Watch:
    """One watch: what it watches, and the topics that its client was told of."""

    client: Client
    watch_id: int
    scope: Scope
    shown: Shown

    def __repr__(self) -> str:
        return f"<Watch {self.watch_id} of {self.scope.namespace}: {len(self.shown)} topics>"


class NamespaceWatches:
    """The watches of namespaces of all clients of a worker."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop):
        self._worker, self._directory, self._loop = worker, worker.directory, loop
        self._watches: dict[tuple[Client, int], Watch] = {}
        self._version = -1
        self._topics: dict[str, dict[str, dict[str, str]]] = {}      # by namespace, as of that version
        # As of that version and of the one before: one object as long as the topics are the same.
        self._lists: dict[Scope, Shown] = {}
        self._former: dict[Scope, Shown] = {}
        self._is_behind = False                   # some client was not told of all changes up to that version
        self._timer: asyncio.TimerHandle | None = None
        self._count()

    def __repr__(self) -> str:
        return f"<NamespaceWatches {len(self._watches)} watches at version {self._version}>"

    # -- commands of clients

    def watch(self, client: Client, request: api.CommandWatchScalableTopics) -> bytes:
        """Answer WATCH_SCALABLE_TOPICS with the namespace's scalable topics, and watch them.  Raises Refusal.

        A client that connects again gives the hash of the list that it has, and gets no answer if it is the same list.
        It ignores an error, so its namespace may have been deleted meanwhile.  An id in use gets a new watch.
        """
        key, namespace = (client, request.watch_id), names.parse_namespace(request.namespace)
        if sum(other is client for other, _ in self._watches) >= WATCHES_MAX and key not in self._watches:
            raise Refusal(api.TooManyRequests, f"The connection has {WATCHES_MAX} watches of namespaces")
        filters = {one.key: one.value for one in request.property_filters}
        if sum(len(name) + len(value) for name, value in filters.items()) > FILTERS_MAX:
            raise Refusal(api.NotAllowedError, f"Property filters are longer than {FILTERS_MAX} characters")
        if not request.HasField("current_hash") and not self._directory.has_namespace(namespace):
            raise Refusal(api.TopicNotFound, f"Namespace {namespace[:_NAME_MAX]} does not exist")
        self._refresh()
        scope = Scope(namespace, frozenset(filters.items()))
        watch = self._watches[key] = Watch(client, request.watch_id, scope, self._list(scope))
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        self._count()
        topics = sorted(watch.shown)
        if request.HasField("current_hash") and request.current_hash == topics_hash(topics):
            return b""
        first, *others = _parts(topics)
        return responses.scalable_topics(watch.watch_id, first) + b"".join(
            responses.scalable_topics_changed(watch.watch_id, added=part) for part in others)

    def close(self, client: Client, watch_id: int) -> None:
        """End a watch, if the client has one of that id."""
        self._watches.pop((client, watch_id), None)
        self._count()

    def forget(self, client: Client) -> None:
        """Drop the client's watches: its connection has ended."""
        for key in [key for key in self._watches if key[0] is client]:
            del self._watches[key]
        self._count()

    def _count(self) -> None:
        self._worker.counters.set("namespace_watches", len(self._watches))

    # -- changes of topics

    def _refresh(self) -> bool:
        """Note the catalogue's present topics.  Returns whether any have changed since the last call."""
        version = self._directory.topics_version()
        if version == self._version:
            return False
        self._version, self._topics = version, {}
        self._former, self._lists = self._lists, {}
        return True

    def _list(self, scope: Scope) -> Shown:
        """Return the topics that are in the scope, as the same object as long as they do not change."""
        if scope not in self._lists:
            namespace, filters = scope
            if namespace not in self._topics:
                self._topics[namespace] = self._directory.catalogue.scalable_topics.listed(namespace)
            now = frozenset(name for name, properties in self._topics[namespace].items()
                            if not filters or filters <= properties.items())
            former = self._former.get(scope)
            self._lists[scope] = now if former is None or former != now else former
        return self._lists[scope]

    def _look(self) -> None:
        began = time.monotonic()
        try:
            if self._refresh() or self._is_behind:
                self._tell()
        finally:
            self._timer = None
            if self._watches:
                self._timer = self._loop.call_later(max(LOOK_SECONDS, _REST * (time.monotonic() - began)), self._look)
            else:
                self._version, self._topics, self._lists, self._former = -1, {}, {}, {}

    def _tell(self) -> None:
        """Tell each client that reads of the topics that came and went since it was told last."""
        self._is_behind = False
        differences: dict[tuple[int, int], tuple[list[str], list[str]]] = {}
        for watch in list(self._watches.values()):
            now, shown = self._list(watch.scope), watch.shown
            if now is shown:
                continue
            if not watch.client.stream.is_writable:
                self._is_behind = True      # a client that does not read is told when it reads again
                continue
            if not self._may_know(watch):
                # It is told of topics that go, because its right to a namespace goes with the namespace.
                self._is_behind, now = True, shown & now
            key = id(shown), id(now)
            if key not in differences:
                differences[key] = sorted(shown - now), sorted(now - shown)
            watch.shown = now
            for part in _update(watch.watch_id, *differences[key]):
                watch.client.stream.write(part)

    def _may_know(self, watch: Watch) -> bool:
        rights = self._worker.rights
        return rights is None or rights.may(watch.client, LOOKUP, watch.scope.namespace)


def _update(watch_id: int, removed: list[str], added: list[str]) -> Iterator[bytes]:
    """Yield the updates that tell of these topics."""
    if removed:
        yield from (responses.scalable_topics_changed(watch_id, removed=part) for part in _parts(removed))
    if added:
        yield from (responses.scalable_topics_changed(watch_id, added=part) for part in _parts(added))


def _parts(topics: list[str]) -> Iterator[list[str]]:
    """Yield names of topics in lists of up to UPDATE_MAX characters, one an update; an empty list if there are none."""
    part: list[str] = []
    size = 0
    for name in topics:
        size += len(name)
        if size > UPDATE_MAX and part:
            yield part
            part, size = [], len(name)
        part.append(name)
    yield part
