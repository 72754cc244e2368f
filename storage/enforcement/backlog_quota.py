"""Backlog quotas: bounds of size and age for the unacknowledged entries of a durable subscription.

Each publish checks them against the slowest durable subscription: the bytes of its unacknowledged entries, and the age
of the oldest one whose delivery time has come. Counting bytes is slow where acknowledgements left holes.
Acknowledgements only lower the backlog, so it is counted anew only when the last count and the bytes published since
reach the limit.
"""
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.policy_values import EVICTION, EXCEPTION, HOLD
from geminga.storage.cursors.cursor import EVICTED, Cursor
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.barrier import Barrier
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

_SPARE = 64          # eviction frees this part of the limit more than needed, so that not every publish evicts
_AGAIN_MS = 1_000    # between two attempts to evict entries that cannot be evicted yet
_TEXT = "Cannot create producer on topic with backlog quota exceeded"
_BARRIERS = {HOLD: Barrier(api.ProducerBlockedQuotaExceededError, _TEXT, is_waited_for=True),
             EXCEPTION: Barrier(api.ProducerBlockedQuotaExceededException, _TEXT, is_waited_for=False)}


@dataclass(slots=True)
class _Count:
    """A partition's backlog when it was last counted."""

    size: int = 0             # bytes that the slowest subscription had not acknowledged
    ledger_id: int = -1       # the open ledger then, ...
    ledger_size: int = 0      # ... and its size
    resets: int = 0           # Partition.cursor_resets then
    next_ms: int = 0          # no entries can be evicted before this time


class BacklogQuotas(Watcher):
    """Backlog quotas of one owner's partitions, which are one cause to close the publish gate."""

    def __init__(self, decisions: Decisions, options: OptionsInForce):
        self._decisions, self._options = decisions, options
        self._counts: dict[Partition, _Count] = {}      # partitions with a quota

    def __repr__(self) -> str:
        return f"<BacklogQuotas of {len(self._counts)} partitions>"

    @property
    def is_possible(self) -> bool:
        """Whether any partition has a quota, so that passes skip the check otherwise."""
        return bool(self._counts)

    def watch(self, partition: Partition) -> None:
        """Apply the policies of a partition that was opened, or whose policies have changed."""
        self._counts.pop(partition, None)
        if partition.policies.has_quota and self._options.current.backlog_quota_check:
            self._counts[partition] = _Count()

    def release(self, partition: Partition) -> None:
        """Forget the quota of a partition that the owner gives up."""
        self._counts.pop(partition, None)

    # -- publishing

    def barrier(self, partition: Partition) -> Barrier | None:
        """Return the barrier of an exceeded quota whose action is to hold or refuse producers, None without one."""
        policies = partition.policies
        if partition not in self._counts:
            return None
        if policies.quota_bytes_action != EVICTION and self._is_too_large(partition):
            return _BARRIERS[policies.quota_bytes_action]
        if policies.quota_age_action != EVICTION and self._is_too_old(partition):
            return _BARRIERS[policies.quota_age_action]
        return None

    def _is_too_large(self, partition: Partition) -> bool:
        """Whether the backlog of the slowest subscription has reached the size quota; an empty backlog never has."""
        limit, count, last = partition.policies.quota_bytes, self._counts[partition], partition.open_ledger
        if limit < 0:
            return False
        has_changed = (count.ledger_id, count.resets) != (last.ledger_id, partition.cursor_resets)
        if has_changed or count.size + last.size - count.ledger_size >= limit:
            self._count(partition)
        return count.size + last.size - count.ledger_size >= max(limit, 1)

    def _count(self, partition: Partition) -> None:
        count, last = self._counts[partition], partition.open_ledger
        count.size = max((backlog_bytes(one.cursor, partition) for one in _durable(partition)), default=0)
        count.ledger_id, count.ledger_size, count.resets = last.ledger_id, last.size, partition.cursor_resets

    def _is_too_old(self, partition: Partition) -> bool:
        limit_ms = partition.policies.quota_age_s * 1000
        came_ms = self._decisions.now_ms - limit_ms
        return limit_ms > 0 and any(_is_behind(one.cursor, partition, came_ms) for one in _durable(partition))

    # -- eviction

    def published(self, partition: Partition) -> None:
        """Evict the oldest entries of subscriptions above the size quota, if the quota's action is eviction."""
        policies, count, now_ms = partition.policies, self._counts.get(partition), self._decisions.now_ms
        if count is None or policies.quota_bytes_action != EVICTION or now_ms < count.next_ms:
            return
        if not self._is_too_large(partition):
            return
        for subscription in _durable(partition):
            excess = backlog_bytes(subscription.cursor, partition) - policies.quota_bytes
            if excess > 0:
                self._evict(partition, subscription, excess + policies.quota_bytes // _SPARE, now_ms)
        self._count(partition)
        if count.size > policies.quota_bytes:      # delayed entries are not evicted before they are due
            count.next_ms = now_ms + _AGAIN_MS

    def tick(self, now_ms: int) -> None:
        """Evict entries that exceed the age or size quota, also from partitions to which nothing is published."""
        with self._decisions.counters.timed("quota_check"):
            for partition in self._counts:
                policies, came_ms = partition.policies, now_ms - partition.policies.quota_age_s * 1000
                if policies.quota_age_action == EVICTION and policies.quota_age_s > 0:
                    for subscription in _durable(partition):
                        if _is_behind(subscription.cursor, partition, came_ms):
                            self._evict(partition, subscription, None, came_ms)
                self.published(partition)

    def _evict(self, partition: Partition, subscription: Subscription, size: int | None, came_ms: int) -> None:
        """Evict a subscription's oldest entries, as far as they were published, and due, by `came_ms`.

        size: how many bytes to evict; None evicts every such entry.
        """
        for ledger in partition.ledgers_from(subscription.cursor.mark_delete[0]):
            entries = _due_by(subscription.cursor, partition, ledger, _came_until(ledger, came_ms), came_ms)
            if size is not None and len(entries):
                sizes = np.cumsum(ledger.column("size")[entries], dtype=np.int64)
                entries = entries[:int(np.searchsorted(sizes, size)) + 1]
                size -= int(sizes[len(entries) - 1])
            if len(entries):
                acknowledge.move(self._decisions, subscription, Acks(single={ledger.ledger_id: entries}), EVICTED)
                self._decisions.counters.add("entries_evicted", len(entries))
                by_size, by_age = partition.evictions
                partition.evictions = (by_size + (size is not None), by_age + (size is None))
            if size is not None and size <= 0:
                return


def _durable(partition: Partition) -> list[Subscription]:
    return [subscription for subscription in partition.subscriptions.values() if subscription.is_durable]


def backlog_bytes(cursor: Cursor, partition: Partition) -> int:
    """Return the bytes of a subscription's entries that are not acknowledged."""
    total = 0
    for ledger in partition.ledgers_from(cursor.mark_delete[0]):
        first = cursor.mark_delete[1] + 1 if ledger.ledger_id == cursor.mark_delete[0] else 0
        if ledger.ledger_id in cursor.bitmaps:
            left = ~cursor.acknowledged(ledger.ledger_id, first, ledger.entries)
            total += int(ledger.column("size")[first:ledger.entries].sum(where=left, dtype=np.int64))
        elif first < ledger.entries:
            total += ledger.size - int(ledger.column("offset")[first])
    return total


def _came_until(ledger: Ledger, came_ms: int) -> int:
    """Return how many entries at the beginning of a ledger were published by `came_ms`."""
    return int(np.searchsorted(ledger.column("broker_time")[:ledger.entries], came_ms, side="right"))


def _due_by(cursor: Cursor, partition: Partition, ledger: Ledger, end: int, came_ms: int) -> NDArray[np.int64]:
    """Return the ledger's entries before `end` that are not acknowledged and were due by `came_ms`, ascending."""
    due, schedule = [], partition.schedule
    if schedule is not None:
        end = min(end, schedule.end(ledger))
    for entries in cursor.unacknowledged_batches(ledger, 0, end):
        entries = np.asarray(entries if schedule is None else schedule.ready(ledger.ledger_id, entries))
        times = ledger.deliver_at[entries] if schedule is None else schedule.times_of(ledger, entries)
        due.append(entries[times <= came_ms])
    return np.concatenate(due) if due else np.zeros(0, np.int64)


def _is_behind(cursor: Cursor, partition: Partition, came_ms: int) -> bool:
    """Whether an entry that was published, and due, by `came_ms` is not acknowledged."""
    for ledger in partition.ledgers_from(cursor.mark_delete[0]):
        end = _came_until(ledger, came_ms)
        if len(_due_by(cursor, partition, ledger, end, came_ms)):
            return True
        if end < ledger.entries:
            return False
    return False
