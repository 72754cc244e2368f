"""Clients that discover topics: lists that they watch, and news for owners so that they miss nothing of a new topic.

Workers look at the catalogue for new topics while a client watches.  So nothing has to be done for watchers when a
topic is made or deleted, and looking costs nothing while no client watches.
"""
import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.workers.directory.directory import Directory
from geminga.workers.directory.patterns import BrokenPattern, ForeignPattern, Pattern, pattern, topics_hash
from geminga.workers.identity.authentication import Identity
from geminga.workers.owners.links import OwnerLink, OwnerLinks
from geminga.workers.owners.waiting import WaitingCommands

LOOK_SECONDS = 0.2             # between two looks
_REST = 10                     # times as long as a look took that pass at least until the next one
WATCHERS_MAX = 100             # of one connection; a client that is refused another one polls instead
_DISCOVERIES_MAX = 100         # patterns that are remembered of a connection; with more it counts as asking for all
_PERSISTENT = api.CommandGetTopicsOfNamespace.PERSISTENT


class _Stream(Protocol):
    """The parts of a connection that topic-list watchers use."""

    is_writable: bool

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def add_waiting(self) -> None: ...
    def remove_waiting(self) -> None: ...


class _Requests(Protocol):
    """The pending requests of one client, as topic-list watchers use them."""

    def withhold(self, link: OwnerLink, command: api.BaseCommand, answer: bytes) -> bool: ...


class Client(Protocol):
    """The parts of a client that topic-list watchers use."""

    number: int
    protocol_version: int
    identity: Identity | None
    discoveries: dict[tuple[str, str | None], tuple[Pattern | None, int]]

    @property
    def stream(self) -> _Stream: ...
    @property
    def requests(self) -> _Requests: ...


class Worker(Protocol):
    """The parts of the worker that topic-list watchers use."""

    directory: Directory

    @property
    def owners(self) -> OwnerLinks: ...
    @property
    def waiting(self) -> WaitingCommands: ...
    def all_clients(self) -> Iterable[Client]: ...


@dataclass(eq=False, slots=True)
class Watcher:
    """One topic-list watcher: its namespace and pattern, and the topics that its client has been told of."""

    client: Client
    watcher_id: int
    namespace: str
    pattern: Pattern
    seen: frozenset[str]           # all topics of the namespace, at the last update of the client
    topics: set[str]               # those of `seen` that match

    def __repr__(self) -> str:
        matching = f"{len(self.topics)} of {len(self.seen)} topics in {self.namespace}"
        return f"<Watcher {self.watcher_id} of {self.client}: {matching}>"

    def catch_up(self, now: frozenset[str], added: list[str], removed: frozenset[str]) -> None:
        """Send the client WATCH_TOPIC_UPDATE with the topics created and deleted.  Raises ForeignPattern."""
        new, deleted = self.pattern.choose(added), sorted(self.topics & removed)
        self.topics.difference_update(deleted)
        self.topics.update(new)
        self.seen = now
        if new or deleted:
            self.client.stream.write(responses.watch_topic_update(self.watcher_id, new, deleted,
                                                                  topics_hash(list(self.topics))))


class Watchers:
    """Topic-list watchers of all clients of a worker."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop):
        self._worker, self._directory, self._loop = worker, worker.directory, loop
        self._watchers: dict[tuple[Client, int], Watcher] = {}
        self._version = -1
        self._lists: dict[str, frozenset[str]] = {}      # topics of the namespaces that are watched, as of that version
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Watchers {len(self._watchers)} at version {self._version}>"

    # -- requests of clients

    def list_topics(self, client: Client, request: api.CommandGetTopicsOfNamespace) -> bytes:
        """Answer GET_TOPICS_OF_NAMESPACE; if the broker cannot evaluate the pattern, the client filters by itself.

        Raises Refusal.
        """
        newest = self._directory.newest_partition()      # before the list is read, else a topic in between is missed
        chosen = None
        try:
            topics = self._directory.topics(request.namespace, request.mode)
            if request.HasField("topics_pattern"):
                with suppress(ForeignPattern):
                    topics = pattern(request.topics_pattern).choose(topics)
                    chosen = request.topics_pattern
        except BrokenPattern as error:
            raise Refusal(api.MetadataError, f"Invalid topics pattern: {error}") from None
        self._asked(client, request.namespace, chosen, newest)
        digest = topics_hash(topics)
        return responses.topics_of_namespace(request.request_id, topics, digest, is_filtered=chosen is not None,
                                             has_changed=digest != request.topics_hash)

    def watch(self, client: Client, request: api.CommandWatchTopicList) -> bytes:
        """Answer WATCH_TOPIC_LIST.

        As in Pulsar, an id in use keeps its watcher, and only persistent topics are watched.  Raises Refusal.
        """
        try:
            watcher = self._watchers.get((client, request.watcher_id)) or self._new(client, request)
        except BrokenPattern as error:
            raise Refusal(api.InvalidTopicName, f"Invalid topics pattern: {error}") from None
        except ForeignPattern as error:
            raise Refusal(api.NotAllowedError, f"Unable to create topic list watcher: {error}") from None
        digest = topics_hash(list(watcher.topics))
        topics = [] if digest == request.topics_hash else sorted(watcher.topics)
        return responses.watch_topic_list_success(request.request_id, watcher.watcher_id, topics, digest)

    def _new(self, client: Client, request: api.CommandWatchTopicList) -> Watcher:
        if sum(other is client for other, _ in self._watchers) >= WATCHERS_MAX:
            raise Refusal(api.NotAllowedError,
                          f"Unable to create topic list watcher: the connection has {WATCHERS_MAX}")
        chosen = pattern(request.topics_pattern)
        newest = self._directory.newest_partition()
        self._refresh()
        now = self._list(names.parse_namespace(request.namespace))
        watcher = Watcher(client, request.watcher_id, request.namespace, chosen, now, set(chosen.choose(sorted(now))))
        self._watchers[client, request.watcher_id] = watcher
        self._asked(client, request.namespace, request.topics_pattern, newest)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        return watcher

    def close(self, client: Client, request: api.CommandWatchTopicListClose) -> bytes:
        """Answer WATCH_TOPIC_LIST_CLOSE; closing a watcher that does not exist succeeds."""
        self._drop([(client, request.watcher_id)])
        return responses.success(request.request_id)

    def forget(self, client: Client) -> None:
        """Drop the client's watchers: its connection has ended."""
        if self._watchers:
            self._drop([key for key in self._watchers if key[0] is client])

    def end(self, is_over: Callable[[Watcher], bool]) -> None:
        """Drop the watchers for which `is_over` returns True; their clients get no further updates."""
        self._drop([key for key, watcher in self._watchers.items() if is_over(watcher)])

    def _drop(self, keys: list[tuple[Client, int]]) -> None:
        for key in keys:
            self._watchers.pop(key, None)
        watched = {watcher.namespace for watcher in self._watchers.values()}
        self._lists = {namespace: topics for namespace, topics in self._lists.items() if namespace in watched}

    # -- changes of topics

    def _list(self, namespace: str) -> frozenset[str]:
        """Return the namespace's persistent topics, as the same object as long as they do not change."""
        if namespace not in self._lists:
            self._lists[namespace] = frozenset(self._directory.topics(namespace, _PERSISTENT))
        return self._lists[namespace]

    def _refresh(self) -> None:
        version = self._directory.topics_version()
        if version != self._version:
            before, self._version, self._lists = self._lists, version, {}
            for namespace in {watcher.namespace for watcher in self._watchers.values()}:
                if (same := before.get(namespace)) is not None and self._list(namespace) == same:
                    self._lists[namespace] = same

    def _look(self) -> None:
        began = time.monotonic()
        try:
            self._tell()
        finally:
            self._timer = None
            if self._watchers:
                self._timer = self._loop.call_later(max(LOOK_SECONDS, _REST * (time.monotonic() - began)), self._look)

    def _tell(self) -> None:
        """Send each client that reads the topics created and deleted since its last update."""
        self._refresh()
        differences: dict[tuple[int, int], tuple[list[str], frozenset[str]]] = {}
        for watcher in list(self._watchers.values()):
            now, seen = self._list(watcher.namespace), watcher.seen
            if now is seen or not watcher.client.stream.is_writable:
                continue      # a client that does not read gets its update when it reads again
            key = id(seen), id(now)
            if key not in differences:
                differences[key] = sorted(now - seen), seen - now
            try:
                watcher.catch_up(now, *differences[key])
            except ForeignPattern:
                watcher.client.stream.close()

    # -- news for owners

    def _asked(self, client: Client, namespace: str, text: str | None, newest: int) -> None:
        """Tell all owners that the client discovers topics of the namespace by this pattern; None: all topics.

        newest: the newest partition id when the client's list was read.
        """
        known = client.discoveries
        if (namespace, text) in known or not self._directory.has_namespace(namespace):
            return
        if len(known) >= _DISCOVERIES_MAX:
            text = None
        is_first = all(other != namespace for other, _ in known)
        known.setdefault((namespace, text), (None if text is None else pattern(text), newest))
        if is_first:
            self._worker.owners.command_all(client.number, client.protocol_version, namespace.encode(),
                                            envelope.DISCOVERS)

    def introduce(self, link: OwnerLink) -> None:
        """Tell an owner's new process which clients discover topics, because its predecessor knew."""
        for client in self._worker.all_clients():
            for namespace in {namespace for namespace, _ in client.discoveries}:
                link.command(client.number, client.protocol_version, namespace.encode(), envelope.DISCOVERS)

    def looked_up(self, client: Client, command: api.BaseCommand, answer: bytes) -> bytes:
        """Return the answer to a LOOKUP of a client that discovers topics, or b"" to withhold it for now.

        Such a client is about to subscribe, perhaps on another connection.  If the topic is new to the client, the
        owner has to learn of that first; the answer is withheld until then.
        """
        request = command.lookupTopic
        try:
            topic = names.parse(request.topic)
        except Refusal:
            return answer
        since = [newest for (namespace, _), (chosen, newest) in client.discoveries.items()
                 if namespace == topic.namespace and (chosen is None or chosen.matches(str(topic)))]
        if not since or not topic.is_persistent or not self._directory.is_newer(topic, min(since)):
            return answer
        link = self._worker.owners.link_of(topic)
        if link is None:
            try:
                self._worker.waiting.wait(client, topic, command)
                return b""
            except Refusal:
                return answer
        if not client.requests.withhold(link, command, answer):
            return answer
        link.command(client.number, client.protocol_version, f"{request.request_id} {topic}".encode(),
                     envelope.LOOKED_UP)
        self._worker.owners.schedule_flush()
        return b""
