"""Clients that discover topics: the lists they watch, and what the owners are told so that they miss nothing of a new topic.

Workers are not told of new topics: they look at the catalogue.  That needs no word from whoever makes or deletes one, and costs
nothing while nobody watches.
"""
import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geminga.proto import commands as answers
from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.workers.patterns import BrokenPattern, ForeignPattern, Pattern, pattern, topics_hash

if TYPE_CHECKING:
    from geminga.workers.client import Client
    from geminga.workers.worker import Worker

LOOK_SECONDS = 0.2             # between two looks
_REST = 10                     # times as long as a look took, at least, until the next
WATCHERS_MAX = 100             # of one connection; who is refused one polls
_DISCOVERIES_MAX = 100         # patterns that a connection is remembered to have asked with; with more it counts as asking for all
_PERSISTENT = api.CommandGetTopicsOfNamespace.PERSISTENT


@dataclass(eq=False, slots=True)
class Watcher:
    """What one WATCH_TOPIC_LIST asked for, and what its client knows."""

    client: "Client"
    watcher_id: int
    namespace: str
    pattern: Pattern
    seen: frozenset[str]           # all of the namespace, when the client was last told
    topics: set[str]               # those of them that match

    def catch_up(self, now: frozenset[str], added: list[str], removed: frozenset[str]) -> None:
        """Tell the client the difference.  Raises ForeignPattern."""
        new, deleted = self.pattern.choose(added), sorted(self.topics & removed)
        self.topics.difference_update(deleted)
        self.topics.update(new)
        self.seen = now
        if new or deleted:
            self.client.write(answers.watch_topic_update(self.watcher_id, new, deleted, topics_hash(list(self.topics))))


class Watchers:
    """All of one worker's."""

    def __init__(self, worker: "Worker", loop: asyncio.AbstractEventLoop):
        self._worker, self._directory, self._loop = worker, worker.directory, loop
        self._watchers: dict[tuple[Client, int], Watcher] = {}
        self._version = -1
        self._lists: dict[str, frozenset[str]] = {}       # of the namespaces that are watched, as of that version
        self._timer: asyncio.TimerHandle | None = None

    # -- what clients ask

    def list_topics(self, client: "Client", request: api.CommandGetTopicsOfNamespace) -> bytes:
        """The answer to GET_TOPICS_OF_NAMESPACE.  A pattern that the broker does not evaluate its client does."""
        newest = self._directory.newest_partition()       # before the list is read: none comes in between unnoticed
        chosen = None
        try:
            topics = self._directory.topics(request.namespace, request.mode)
            if request.HasField("topics_pattern"):
                with suppress(ForeignPattern):
                    topics = pattern(request.topics_pattern).choose(topics)
                    chosen = request.topics_pattern
        except Refusal as refusal:
            return answers.error(request.request_id, refusal.code, refusal.message)
        except BrokenPattern as error:
            return answers.error(request.request_id, api.MetadataError, f"Invalid topics pattern: {error}")
        self._asked(client, request.namespace, chosen, newest)
        found = topics_hash(topics)
        return answers.topics_of_namespace(request.request_id, topics, found, is_filtered=chosen is not None,
                                           has_changed=found != request.topics_hash)

    def watch(self, client: "Client", request: api.CommandWatchTopicList) -> bytes:
        """The answer to WATCH_TOPIC_LIST.  As Pulsar has it, an id that is in use stays what it is, and only persistent topics count."""
        try:
            watcher = self._watchers.get((client, request.watcher_id)) or self._new(client, request)
        except Refusal as refusal:
            return answers.error(request.request_id, refusal.code, refusal.message)
        except BrokenPattern as error:
            return answers.error(request.request_id, api.InvalidTopicName, f"Invalid topics pattern: {error}")
        except ForeignPattern as error:
            return answers.error(request.request_id, api.NotAllowedError, f"Unable to create topic list watcher: {error}")
        found = topics_hash(list(watcher.topics))
        topics = [] if found == request.topics_hash else sorted(watcher.topics)
        return answers.watch_topic_list_success(request.request_id, watcher.watcher_id, topics, found)

    def _new(self, client: "Client", request: api.CommandWatchTopicList) -> Watcher:
        if sum(of is client for of, _ in self._watchers) >= WATCHERS_MAX:
            raise Refusal(api.NotAllowedError, f"Unable to create topic list watcher: the connection has {WATCHERS_MAX}")
        chosen = pattern(request.topics_pattern)
        newest = self._directory.newest_partition()
        self._refresh()
        now = self._list(names.namespace(request.namespace))
        watcher = Watcher(client, request.watcher_id, request.namespace, chosen, now, set(chosen.choose(sorted(now))))
        self._watchers[client, request.watcher_id] = watcher
        self._asked(client, request.namespace, request.topics_pattern, newest)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        return watcher

    def close(self, client: "Client", request: api.CommandWatchTopicListClose) -> bytes:
        """The answer to WATCH_TOPIC_LIST_CLOSE: what is not there is as good as closed."""
        self._drop([(client, request.watcher_id)])
        return answers.success(request.request_id)

    def forget(self, client: "Client") -> None:
        """Its connection has ended."""
        if self._watchers:
            self._drop([key for key in self._watchers if key[0] is client])

    def end(self, is_over: Callable[[Watcher], bool]) -> None:
        """Those whose clients are not to be told any more."""
        self._drop([key for key, watcher in self._watchers.items() if is_over(watcher)])

    def _drop(self, keys: list[tuple["Client", int]]) -> None:
        for key in keys:
            self._watchers.pop(key, None)
        watched = {watcher.namespace for watcher in self._watchers.values()}
        self._lists = {namespace: topics for namespace, topics in self._lists.items() if namespace in watched}

    # -- what happens to topics

    def _list(self, namespace: str) -> frozenset[str]:
        """The namespace's persistent topics; the same object as long as they are the same."""
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
        """Every client that reads, what it does not know yet."""
        self._refresh()
        differences: dict[tuple[int, int], tuple[list[str], frozenset[str]]] = {}
        for watcher in list(self._watchers.values()):
            now, seen = self._list(watcher.namespace), watcher.seen
            if now is seen or not watcher.client.is_writable:       # who does not read is told when it does
                continue
            key = id(seen), id(now)
            if key not in differences:
                differences[key] = sorted(now - seen), seen - now
            try:
                watcher.catch_up(now, *differences[key])
            except ForeignPattern:
                watcher.client.abort()

    # -- what owners are told

    def _asked(self, client: "Client", namespace: str, text: str | None, newest: int) -> None:
        """The client is told the topics of the namespace that match the pattern, as they were when `newest` was the newest partition."""
        known = client.discoveries
        if (namespace, text) in known or not self._directory.has_namespace(namespace):
            return
        if len(known) >= _DISCOVERIES_MAX:
            text = None
        is_first = all(other != namespace for other, _ in known)
        known.setdefault((namespace, text), (None if text is None else pattern(text), newest))
        if is_first:
            self._worker.tell_owners(client, envelope.DISCOVERS, namespace.encode())

    def introduce(self, link) -> None:
        """Tell a new owner what its predecessor knew."""
        for client in self._worker.clients():
            for namespace in {namespace for namespace, _ in client.discoveries}:
                link.command(client.number, client.protocol_version, namespace.encode(), envelope.DISCOVERS)

    def looked_up(self, client: "Client", command: api.BaseCommand, answer: bytes) -> bytes:
        """The answer to LOOKUP of a client that discovers topics: it is going to subscribe, perhaps on another connection.

        Nothing, when the topic is new to it: then the owner is told first, and the client has its answer when the owner knows.
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
        link = self._worker.link_of(topic)
        if link is None:
            try:
                self._worker.wait_for_owner(client, topic, command)
                return b""
            except Refusal:
                return answer
        if not client.withhold(link, command, answer):
            return answer
        link.command(client.number, client.protocol_version, f"{request.request_id} {topic}".encode(), envelope.LOOKED_UP)
        self._worker.schedule_flush()
        return b""
