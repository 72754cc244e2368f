"""The owner as administration sees it: with the parts that enforce policies and keep files."""
from typing import Protocol

from geminga.storage.statistics.statistics import Statistics
from geminga.storage.topics.owner_context import CompactedReaders, OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.transactions.coordinator import Coordinator
from geminga.storage.transactions.participant import Participant


class PolicyEnforcer(Protocol):
    """An enforcer of one policy, expiry or retention, on open partitions."""

    def look(self, partition: Partition, now_ms: int) -> None:
        """Apply expiry or retention to an open partition at once."""


class ClosedScan(Protocol):
    """The scan of closed partitions, for policies that act without clients."""

    def begin(self) -> None:
        """Scan all closed partitions again, because policies have changed."""


class DelayedIndexes(Protocol):
    """The delayed indexes of an owner's open partitions."""

    def complete(self, partition: Partition, now_ms: int) -> None:
        """Scan the partition's ledgers until its delayed index covers every entry."""

    def advance(self, partition: Partition, now_ms: int) -> bool:
        """Release delayed entries of the partition that are due.  Returns whether the index had to advance."""

    def look(self, partition: Partition) -> None:
        """Have the next passes work on the partition's delayed index, if it has something to scan or flush."""


class Backups(Protocol):
    """The part of one owner in backups."""

    def begin(self) -> None:
        """Begin to hard-link the files of new ledgers and views into the backup's folder."""

    def cut(self) -> tuple[str, float]:
        """Write the state of all partitions into a file of the backup's folder.

        Returns its name and the seconds taken.

        Raises Refusal, OSError.
        """


class CompactedViews(CompactedReaders, Protocol):
    """The compacted views of an owner's partitions."""

    def adopt(self, partition: Partition, number: int) -> None:
        """Put the partition's compacted view with that number into force.  Raises Refusal, OSError."""

    def due(self) -> list[tuple[int, str]]:
        """Return (id, topic) of open partitions that have passed their compaction threshold."""


class AdministeredOwner(OwnerContext, Protocol):
    """The owner as the functions that answer questions of administration see it."""

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

    @property
    def coordinator(self) -> Coordinator: ...

    @property
    def participant(self) -> Participant: ...

    def trim(self) -> None:
        """Trim the partitions that were woken for trimming: delete ledgers that are no longer needed.

        Raises StorageFull, NotDurable.
        """
