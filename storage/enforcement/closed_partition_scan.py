"""Partitions that nobody uses are not open; some have a policy that works without anybody: messages expire, ledgers get too old.

They are opened one after the other, slowly, after a start and when a policy was set; then their time is watched.
"""
import itertools
from collections.abc import Callable, Iterator

from geminga.proto import names
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.topics.watcher import Watcher

_EACH_TICK = 50      # partitions looked at; to open one takes a millisecond or two


class ClosedPartitionScan(Watcher):
    """Of one owner."""

    def __init__(self, owner, is_mine: Callable[[str], bool]):
        self._owner, self._is_mine = owner, is_mine
        self._left: Iterator[str] = iter(())
        self.begin()

    def begin(self) -> None:
        """All partitions that there are are to be looked at, again."""
        self._left = filter(self._is_mine, self._owner.catalogue.partitions.names())

    def tick(self, now_ms: int) -> None:
        owner = self._owner
        for text in itertools.islice(self._left, _EACH_TICK):
            name = names.parse(text)
            if name not in owner.by_name and policies_of(owner.catalogue, name, owner.options).work_alone:
                try:
                    owner.partition(name)
                except (CorruptFile, StorageFull) as error:
                    owner.complain(f"{error}; {name} is not looked at", code="G121", topic=text)
