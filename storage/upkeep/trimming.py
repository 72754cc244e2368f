"""Trimming: delete ledgers that no subscription needs, and free unused disk space of idle partitions."""
import contextlib
import itertools
from typing import TYPE_CHECKING

from geminga.storage.enforcement.retention import disposable
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers import journal_ops
from geminga.storage.open_topics.compacted_views import CompactedViews
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.discovery import Discovery
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition

if TYPE_CHECKING:
    from geminga.storage.ledgers.ledger import Ledger

IDLE_MS = 1_000             # a partition without writes for this time is idle
_LOOKED_AT = 50             # partitions that were written to and are looked at in a tick: some milliseconds
_UNUSED_MIN = 1 << 20       # bytes allocated ahead that a ledger must have for sealing it to be worthwhile


class Trimming(Watcher):
    """The deletion of ledgers of one owner's partitions."""

    def __init__(self, decisions: Decisions, topics: TopicTable, durability: Durability, space: DiskSpace,
                 discovery: Discovery, views: CompactedViews):
        self._decisions, self._topics = decisions, topics
        self._durability, self._space = durability, space
        self._discovery, self._views = discovery, views
        # Partitions written to since they were last found idle, the one looked at longest ago first.
        self.recent: dict[Partition, None] = {}
        self._taken: list[Ledger] = []            # removed from their chains; files are not yet deleted

    def __repr__(self) -> str:
        return f"<Trimming recent={len(self.recent)} taken={len(self._taken)}>"

    def release(self, partition: Partition) -> None:
        """Drop the state of a partition that is unloaded or deleted, after the journal was synced."""
        self.recent.pop(partition, None)
        self._decisions.to_trim.pop(partition, None)
        self.unlink_taken()      # a later command of the pass may reopen the partition, and would find the files

    def decide(self) -> None:
        """Remove ledgers that no subscription needs from their chains, and add ops that delete them to the journal."""
        if not (self._decisions.to_trim or self._taken):      # nearly always
            return
        for partition in self._decisions.to_trim:
            if not self._discovery.holds(partition, self._decisions.now_ms):
                self._take(partition, disposable(partition, self._decisions.now_ms))
        self._decisions.to_trim = {}
        if self._taken:
            self._decisions.answer_needs_sync()

    def unlink_taken(self) -> None:
        """Delete the files of ledgers that `decide` removed from their chains, after the journal was synced."""
        if not self._taken:      # nearly always
            return
        taken, self._taken = self._taken, []
        for ledger in taken:
            ledger.unlink()
            self._topics.forget_mapped(ledger)
        self._space.look()

    def trim(self) -> None:
        """Delete unneeded ledgers now instead of at the end of the pass, because an answer reports the freed bytes."""
        self.decide()
        if self._taken:
            self._durability.commit_and_sync()
            self.unlink_taken()

    def truncate(self, partition: Partition) -> None:
        """Delete all entries of a partition on which everything is acknowledged, regardless of retention and exports.

        Raises StorageFull.
        """
        if partition.open_ledger.entries:
            self._topics.roll(partition)
        self._views.truncated(partition)
        self._take(partition, len(partition.ledgers), also_unexported=True)

    def _take(self, partition: Partition, at_most: int, *, also_unexported: bool = False) -> None:
        """Remove at most `at_most` acknowledged ledgers from the partition's chain.

        Their files are deleted when the journal has the ops.
        """
        for ledger in partition.take_acknowledged_ledgers(at_most, also_unexported=also_unexported):
            self._taken.append(ledger)
            self._decisions.note(partition, journal_ops.ledger_deleted(partition.partition_id, ledger.ledger_id))
            self._decisions.wake(partition)      # readers that had too much of it outstanding may continue

    def tick(self, now_ms: int) -> None:
        """Trim partitions whose discovery has ended, and seal open ledgers if that frees much space."""
        for partition in self._discovery.tick(now_ms):
            if self._topics.by_name.get(partition.name) is partition:
                self._decisions.wake_trimming(partition)
        if self._space.is_scarce:
            self._give_unused_back()
        for partition in list(itertools.islice(self.recent, _LOOKED_AT)):
            del self.recent[partition]
            self.recent[partition] = None
            last = partition.open_ledger
            idle_ms = now_ms - int(last.column("broker_time").item(last.last_entry)) if last.entries else IDLE_MS
            if idle_ms >= max(IDLE_MS, self._space.keep_acknowledged_ms) and partition.could_shrink():
                try:
                    self._topics.roll(partition, is_idle=True)
                except StorageFull:
                    continue
            if idle_ms >= IDLE_MS and partition.open_ledger.entries == 0:
                del self.recent[partition]

    def _give_unused_back(self) -> None:
        """Seal open ledgers with much unused allocated space, until disk space is no longer scarce.

        Their partitions continue in small ledgers.
        """
        for partition in list(self.recent):
            if partition.open_ledger.unused >= _UNUSED_MIN:
                with contextlib.suppress(StorageFull):      # the next tick tries again
                    self._topics.roll(partition, is_idle=True)
                self._space.look()
                if not self._space.is_scarce:
                    return
