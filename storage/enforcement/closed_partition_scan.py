"""The scan of closed partitions, for policies that act without clients: time to live, retention, eviction by age, and
exports and replication, whose alarms are about all topics.

An owner opens a partition when a client uses it. After a start, and when policies or options were changed, the scan
opens closed partitions that have such a policy, a few each second. From then on the policies' own watchers look at
these partitions.

A topic that was created, and that no client has used yet, has no partition. The scan opens it where unused topics are
deleted, also when it is created later: otherwise it would stay for ever.
"""
import contextlib
import itertools
from collections.abc import Callable, Iterator

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.proto.names import REPLICATOR_PREFIX
from geminga.storage.catalogue.policies import Policies, policies_of
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher

_EACH_TICK = 50      # partitions looked at in a second; opening one takes a millisecond or two
_NAMES_EACH_TICK = 500      # of topics, among which those are found that nobody has used; a millisecond


class ClosedPartitionScan(Watcher):
    """Opener of an owner's closed partitions whose policies act without clients."""

    def __init__(self, topics: TopicTable, reports: Reports, is_mine: Callable[[str], bool], waits: Callable[[], bool]):
        """is_mine: whether a partition of that name is this owner's.  waits: whether others may still recover one."""
        self._topics, self._reports, self._is_mine, self._waits = topics, reports, is_mine, waits
        self._left: Iterator[str] = iter(())
        self._replicated: set[str] = set()      # partitions with a replication cursor, which may have to be deleted
        self._behind, self._version = "", -1    # the topic behind which to look for unused ones, and of which list
        self.begin()

    def begin(self) -> None:
        """Begin a scan of all stored partitions, in place of a scan that is under way."""
        self._left = filter(self._is_mine, self._topics.catalogue.partitions.names())
        self._replicated = {name for name, _ in self._topics.catalogue.subscriptions.named(REPLICATOR_PREFIX)}
        self._behind, self._version = "", -1

    def tick(self, now_ms: int) -> None:
        """Look at the next few stored partitions; called once a second."""
        if self._waits():
            return
        for text in itertools.islice(self._left, _EACH_TICK):
            name = names.parse(text)
            if name not in self._topics.by_name and (text in self._replicated or self._policies(name).work_alone):
                self._open(name)
        self._open_never_used()

    def _open_never_used(self) -> None:
        """Open a few topics that nobody has used, where unused ones are deleted; begin anew when there are new ones."""
        topics = self._topics.catalogue.topics
        if not self._behind:
            before, self._version = self._version, topics.version()
            if self._version == before:
                return
        never_used, self._behind = topics.never_stored(self._behind, _NAMES_EACH_TICK)
        mine = (name for name in map(names.parse, filter(self._is_mine, never_used))
                if self._policies(name).delete_inactive_topics)
        for name in itertools.islice(mine, _EACH_TICK):
            self._behind = str(name)
            self._open(name)

    def _policies(self, name: names.TopicName) -> Policies:
        return policies_of(self._topics.catalogue, name, self._topics.options.current)

    def _open(self, name: names.TopicName) -> None:
        try:
            with contextlib.suppress(Refusal):      # the topic has just been deleted
                self._topics.find_or_create(name, may_create=False)
        except (CorruptFile, StorageFull) as error:
            self._reports.once(f"{error}; {name} is not looked at", code="G121", topic=str(name))
