"""Messages that nobody acknowledges in time expire: `message_ttl_s` after they came, or after their own time when they are delayed.

Of each ledger the entries before `done` came so long ago, and have expired but for those whose own time has not come as long ago:
what waits is not even looked at.  What expires is acknowledged for every subscription that has not acknowledged it.
"""
from dataclasses import dataclass, field

import numpy as np

from geminga.storage.cursors.cursor import EXPIRED
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics import acknowledge
from geminga.storage.topics.acknowledge import Acks
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription
from geminga.storage.topics.watcher import Watcher

_LOOK_AHEAD = 8_192     # rows looked at in one go


@dataclass(slots=True)
class _Progress:
    """In one ledger."""

    done: int = 0


@dataclass(slots=True)
class _Watch:
    """Over one partition."""

    next_ms: int = 0                       # nothing expires before, unless a subscription begins anew
    begun: int = -1                        # Partition.cursor_resets, when it was last looked at
    ledgers: dict[int, _Progress] = field(default_factory=dict)


class Expiry(Watcher):
    """What one owner knows of it."""

    def __init__(self, owner):
        self._owner = owner
        self._watches: dict[Partition, _Watch] = {}

    def watch(self, partition: Partition) -> None:
        """Its policies are new."""
        self._watches.pop(partition, None)
        if partition.policies.message_ttl_s:
            self._watches[partition] = _Watch()

    def release(self, partition: Partition) -> None:
        self._watches.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        """What is due by now has expired."""
        for partition, watch in self._watches.items():
            if now_ms >= watch.next_ms or watch.begun != partition.cursor_resets:
                self._expire(partition, watch, now_ms)

    def look(self, partition: Partition, now_ms: int) -> None:
        """What is due of it has expired."""
        if (watch := self._watches.get(partition)) is not None:
            self._expire(partition, watch, now_ms)

    def _expire(self, partition: Partition, watch: _Watch, now_ms: int) -> None:
        ttl_ms = partition.policies.message_ttl_s * 1000
        came_ms = now_ms - ttl_ms          # what came, or was to come, until then has expired
        soonest_ms = now_ms                # when what expires next came: nothing that comes from now on is sooner
        subscriptions = list(partition.subscriptions.values())
        first = min((subscription.cursor.mark_delete for subscription in subscriptions), default=partition.last_confirmed)
        watch.begun, watch.ledgers = partition.cursor_resets, {id_: one for id_, one in watch.ledgers.items() if id_ >= first[0]}
        for ledger in partition.ledgers_from(first[0]):
            if ledger.has_lost:
                partition.give_up_lost(ledger)
                self._owner.wake(partition)
            progress = watch.ledgers.setdefault(ledger.ledger_id, _Progress())
            _advance(progress, ledger, came_ms)
            for subscription in subscriptions:
                soonest_ms = min(soonest_ms, self._acknowledge(subscription, ledger, progress.done, came_ms))
            if progress.done < ledger.entries:
                soonest_ms = min(soonest_ms, int(ledger.column("broker_time")[progress.done]))
                break
        watch.next_ms = soonest_ms + ttl_ms

    def _acknowledge(self, subscription: Subscription, ledger: Ledger, end: int, came_ms: int) -> int:
        """Of its entries before `end` what has expired is acknowledged; returns when the first of the others was to come."""
        schedule, expired, late_ms = subscription.partition.schedule, [], NEVER_MS
        for entries in subscription.cursor.unacknowledged_batches(ledger, 0, end if schedule is None else min(end, schedule.end(ledger))):
            if schedule is not None:
                entries = schedule.ready(ledger.ledger_id, entries)
                times = schedule.times_of(ledger, entries)
                if len(late := times[times > came_ms]):
                    late_ms, entries = min(late_ms, int(late.min())), np.asarray(entries)[times <= came_ms]
            expired.append(np.asarray(entries))
        entries = np.concatenate(expired) if expired else np.zeros(0, np.int64)
        if subscription.view is not None:      # what a compacted view keeps does not expire while it is read
            entries = entries[subscription.view.count_before(ledger.ledger_id, entries):]
        if len(entries):
            acknowledge.move(self._owner, subscription, Acks(single={ledger.ledger_id: entries}), EXPIRED)
            self._owner.counters.add("entries_expired", len(entries))
        return late_ms


def _advance(progress: _Progress, ledger: Ledger, came_ms: int) -> None:
    """See how far what came so long ago reaches by now."""
    while progress.done < ledger.entries:
        first, end = progress.done, min(ledger.entries, progress.done + _LOOK_AHEAD)
        young = ledger.column("broker_time")[first:end] > came_ms
        if young.any():
            progress.done = first + int(young.argmax())
            return
        progress.done = end
