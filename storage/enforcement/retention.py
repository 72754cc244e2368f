"""Retention: how long, and up to what size, acknowledged entries are kept (`retention_s`, `retention_bytes`).

Ledgers are deleted whole, the oldest first. A ledger that all subscriptions have acknowledged is deleted when its
newest entry is too old, or when the partition without it still has the retained size. Deletion stops at the first
ledger that must be kept.
"""
import contextlib

from geminga.storage import format
from geminga.storage.catalogue.policies import NO_LIMIT
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition

_LOOK_MS = 10_000       # between two looks at a partition whose first ledger is old, but not yet acknowledged


class Retention(Watcher):
    """Retention of one owner's partitions, which wakes trimming when ledgers become too old."""

    def __init__(self, decisions: Decisions, topics: TopicTable):
        self._decisions, self._topics = decisions, topics
        self._next_ms: dict[Partition, int] = {}      # when to look at a partition again

    def __repr__(self) -> str:
        return f"<Retention of {len(self._next_ms)} partitions>"

    def watch(self, partition: Partition) -> None:
        """Apply the retention of a partition that was opened, or whose policies have changed."""
        self._next_ms.pop(partition, None)
        if partition.policies.retains:
            self._next_ms[partition] = 0
        self._decisions.wake_trimming(partition)

    def release(self, partition: Partition) -> None:
        """Forget the retention of a partition that the owner gives up."""
        self._next_ms.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        """Look at the partitions in which a ledger may have become too old; called once a second."""
        for partition, next_ms in self._next_ms.items():
            if now_ms >= next_ms:
                self.look(partition, now_ms)

    def look(self, partition: Partition, now_ms: int) -> None:
        """Close an open ledger that is too old, and have trimming delete ledgers that retention no longer keeps."""
        if should_roll(partition, now_ms):
            with contextlib.suppress(StorageFull):      # a later look tries again
                self._topics.roll(partition)
        self._decisions.wake_trimming(partition)
        limit_s, due_ms = partition.policies.retention_s, now_ms
        if limit_s != NO_LIMIT:
            due_ms = _newest_ms(partition.ledgers[0]) + limit_s * 1000
        self._next_ms[partition] = due_ms if due_ms > now_ms else now_ms + _LOOK_MS


def disposable(partition: Partition, now_ms: int) -> int:
    """Return how many of the partition's oldest ledgers retention does not keep."""
    if not partition.policies.retains:
        return len(partition.ledgers)
    left, count = sum(map(_size, partition.ledgers)), 0
    for ledger in partition.ledgers:
        left -= _size(ledger)
        if not (_is_old(partition, ledger, now_ms) or _is_enough(partition, left)):
            break
        count += 1
    return count


def should_roll(partition: Partition, now_ms: int) -> bool:
    """Whether the open ledger has entries, all of them acknowledged and beyond their retention time."""
    last, policies = partition.open_ledger, partition.policies
    return policies.retains and bool(last.entries) and _is_old(partition, last, now_ms) and partition.is_drained


def _is_old(partition: Partition, ledger: Ledger, now_ms: int) -> bool:
    limit_s = partition.policies.retention_s
    return limit_s != NO_LIMIT and _newest_ms(ledger) + limit_s * 1000 <= now_ms


def _is_enough(partition: Partition, size: int) -> bool:
    limit = partition.policies.retention_bytes
    return limit != NO_LIMIT and size >= limit


def _newest_ms(ledger: Ledger) -> int:
    return int(ledger.column("broker_time")[ledger.last_entry]) if ledger.entries else ledger.created_ms


def _size(ledger: Ledger) -> int:
    """Return the bytes of a ledger's entries."""
    return ledger.size - format.HEADER_SIZE
