"""The owner as administration sees it: with the parts that enforce policies and keep files."""
from typing import Protocol

from geminga.storage.statistics.statistics import Statistics
from geminga.storage.topics.owner_context import CompactedReaders, OwnerContext
from geminga.storage.topics.partition import Partition


class PolicyEnforcer(Protocol):
    """Expiry or retention."""

    def look(self, partition: Partition, now_ms: int) -> None:
        """Apply the policy to an open partition at once."""


class ClosedScan(Protocol):
    """The scan of partitions that are not open."""

    def begin(self) -> None:
        """Look at all of them again: policies have changed."""


class DelayedIndexes(Protocol):
    """The delayed indexes of open partitions."""

    def complete(self, partition: Partition, now_ms: int) -> None:
        """Index all entries of the partition that are not indexed yet."""

    def advance(self, partition: Partition, now_ms: int) -> bool:
        """Release entries that are due.  Return whether any was."""

    def look(self, partition: Partition) -> None:
        """Work on the partition's index in the next passes."""


class Backups(Protocol):
    """The part of an owner in backups."""

    def begin(self) -> None:
        """Give new ledgers and views a second name in the backup's folder from now on."""

    def cut(self) -> tuple[str, float]:
        """Write down the state of all partitions.  Return the file's name and the seconds taken.

        Raises Refusal, OSError.
        """


class CompactedViews(CompactedReaders, Protocol):
    """The compacted views of an owner's partitions."""

    def adopt(self, partition: Partition, number: int) -> None:
        """Put the view of that number in force.  Raises Refusal, OSError."""

    def due(self) -> list[tuple[int, str]]:
        """Return (id, topic) of open partitions that have passed their compaction threshold."""


class AdministeredOwner(OwnerContext, Protocol):
    """One owner, while it answers a question of administration."""

    began_ms: int                      # when the owner started

    @property
    def statistics(self) -> Statistics: ...

    @property
    def expiry(self) -> PolicyEnforcer: ...

    @property
    def retention(self) -> PolicyEnforcer: ...

    @property
    def closed_scan(self) -> ClosedScan: ...

    @property
    def schedules(self) -> DelayedIndexes: ...

    @property
    def snapshots(self) -> Backups: ...

    @property
    def views(self) -> CompactedViews: ...

    def trim(self) -> None:
        """Delete ledgers that nobody needs, of partitions woken for it.  Raises StorageFull, NotDurable."""
