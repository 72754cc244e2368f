"""What everybody has acknowledged is kept while it is young and there is room for it: `retention_s` and `retention_bytes`.

Space is given back ledger by ledger, the oldest first: one that everybody has acknowledged goes when its newest entry is too
old, or when the partition without it is as large as was asked for.  The first that is neither keeps those behind it.
"""
import contextlib

from geminga.storage import format
from geminga.storage.catalogue.policies import NO_LIMIT
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.watcher import Watcher

_LOOK_MS = 10_000       # between two looks at a partition whose first ledger is old, and needed by somebody


class Retention(Watcher):
    """When one owner has to look whether ledgers have become too old."""

    def __init__(self, owner):
        self._owner = owner
        self._next_ms: dict[Partition, int] = {}

    def watch(self, partition: Partition) -> None:
        """Its policies are new."""
        self._next_ms.pop(partition, None)
        if partition.policies.retains:
            self._next_ms[partition] = 0
        self._owner.wake_trimming(partition)

    def release(self, partition: Partition) -> None:
        self._next_ms.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        for partition, next_ms in self._next_ms.items():
            if now_ms >= next_ms:
                self.look(partition, now_ms)

    def look(self, partition: Partition, now_ms: int) -> None:
        """What need not be kept of it may go."""
        if should_roll(partition, now_ms):
            with contextlib.suppress(StorageFull):      # another time
                self._owner.roll(partition)
        self._owner.wake_trimming(partition)
        limit_s, due_ms = partition.policies.retention_s, now_ms
        if limit_s != NO_LIMIT:
            due_ms = _newest_ms(partition.ledgers[0]) + limit_s * 1000
        self._next_ms[partition] = due_ms if due_ms > now_ms else now_ms + _LOOK_MS


def disposable(partition: Partition, now_ms: int) -> int:
    """How many of its ledgers, from the first on, need not be kept as far as the retention is concerned."""
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
    """Whether all of the open ledger is acknowledged, and too old to be kept."""
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
    """Of its entries."""
    return ledger.size - format.HEADER_SIZE
