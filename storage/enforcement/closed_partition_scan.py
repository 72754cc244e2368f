"""The scan of closed partitions, for policies that act without clients: time to live, retention, eviction by age, and
exports and replication, whose alarms are about all topics.

An owner opens a partition when a client uses it. After a start, and when policies or options were changed, the scan
opens closed partitions that have such a policy, a few each second. From then on the policies' own watchers look at
these partitions.
"""
import itertools
from collections.abc import Callable, Iterator

from geminga.proto import names
from geminga.proto.names import REPLICATOR_PREFIX
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.watcher import Watcher

_EACH_TICK = 50      # partitions looked at in a second; opening one takes a millisecond or two


class ClosedPartitionScan(Watcher):
    """Opener of an owner's closed partitions whose policies act without clients."""

    def __init__(self, owner: OwnerContext, is_mine: Callable[[str], bool], waits: Callable[[], bool]):
        """is_mine: whether a partition of that name is this owner's.  waits: whether others may still recover one."""
        self._owner, self._is_mine, self._waits = owner, is_mine, waits
        self._left: Iterator[str] = iter(())
        self._replicated: set[str] = set()      # partitions with a replication cursor, which may have to be deleted
        self.begin()

    def begin(self) -> None:
        """Begin a scan of all stored partitions, in place of a scan that is under way."""
        self._left = filter(self._is_mine, self._owner.catalogue.partitions.names())
        self._replicated = {name for name, _ in self._owner.catalogue.subscriptions.named(REPLICATOR_PREFIX)}

    def tick(self, now_ms: int) -> None:
        """Look at the next few stored partitions; called once a second."""
        owner = self._owner
        if self._waits():
            return
        for text in itertools.islice(self._left, _EACH_TICK):
            name = names.parse(text)
            if name in owner.by_name:
                continue
            if text in self._replicated or policies_of(owner.catalogue, name, owner.options).work_alone:
                try:
                    owner.partition(name)
                except (CorruptFile, StorageFull) as error:
                    owner.log_once(f"{error}; {name} is not looked at", code="G121", topic=text)
