"""Message time to live: entries expire `message_ttl_s` after they were published, or after their delivery time.

An entry was published when its producer says, but not after its arrival: see `published`. An expired entry is
acknowledged for every subscription that has not acknowledged it. In each ledger the entries at the beginning, published
longer ago than the time to live, are counted as old. Old entries have expired, unless they were delayed and their
delivery time is more recent. Entries that still wait for their delivery time are not looked at, nor are entries from
the first one of an open transaction on.
"""
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.cursor import EXPIRED
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.topics import acknowledge
from geminga.storage.topics.acknowledge import Acks
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription
from geminga.storage.topics.watcher import Watcher

_LOOK_AHEAD = 8_192     # index rows looked at together


@dataclass(slots=True)
class _Watch:
    """The progress of expiry in one partition with a time to live."""

    next_ms: int = 0                       # no entry expires before this time, unless a cursor was reset
    # The partition's last entry, if all were old: what comes behind it may be old as it comes.  None: one was young.
    end: Position | None = None
    resets: int = -1                       # Partition.cursor_resets at the last look
    old: dict[int, int] = field(default_factory=dict)     # ledger id -> how many entries at its beginning are old


class MessageTtl(Watcher):
    """Expiry of messages of one owner's partitions."""

    def __init__(self, owner: OwnerContext):
        self._owner = owner
        self._watches: dict[Partition, _Watch] = {}

    def __repr__(self) -> str:
        return f"<MessageTtl of {len(self._watches)} partitions>"

    def watch(self, partition: Partition) -> None:
        """Apply the time to live of a partition that was opened, or whose policies have changed."""
        self._watches.pop(partition, None)
        if partition.policies.message_ttl_s:
            self._watches[partition] = _Watch()

    def release(self, partition: Partition) -> None:
        """Forget the time to live of a partition that the owner gives up."""
        self._watches.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        """Expire due messages of all partitions; called once a second."""
        for partition, watch in self._watches.items():
            if now_ms >= watch.next_ms or watch.resets != partition.cursor_resets \
                    or watch.end not in (None, partition.last_confirmed):
                self._expire(partition, watch, now_ms)

    def look(self, partition: Partition, now_ms: int) -> None:
        """Expire due messages of one partition at once."""
        if (watch := self._watches.get(partition)) is not None:
            self._expire(partition, watch, now_ms)

    def _expire(self, partition: Partition, watch: _Watch, now_ms: int) -> None:
        ttl_ms = partition.policies.message_ttl_s * 1000
        by_ms = now_ms - ttl_ms            # entries published, and due, by this time have expired
        # When the entry that expires next was published, or falls due: it expires a time to live later.
        soonest_ms = now_ms
        subscriptions = list(partition.subscriptions.values())
        first = min((one.cursor.mark_delete for one in subscriptions), default=partition.last_confirmed)
        limit, watch.resets, watch.end = partition.limit, partition.cursor_resets, partition.last_confirmed
        watch.old = {ledger_id: count for ledger_id, count in watch.old.items() if ledger_id >= first[0]}
        for ledger in partition.ledgers_from(first[0]):
            if limit is not None and ledger.ledger_id > limit[0]:
                break
            if ledger.has_lost:
                partition.give_up_lost(ledger)
                self._owner.wake(partition)
            old = watch.old[ledger.ledger_id] = _old_entries(ledger, watch.old.get(ledger.ledger_id, 0), by_ms)
            if limit is not None and ledger.ledger_id == limit[0]:
                old = min(old, limit[1])
            for subscription in subscriptions:
                soonest_ms = min(soonest_ms, self._acknowledge(subscription, ledger, old, by_ms))
            if old < ledger.entries:
                soonest_ms, watch.end = min(soonest_ms, int(published(ledger, old, old + 1)[0])), None
                break
        watch.next_ms = soonest_ms + ttl_ms

    def _acknowledge(self, subscription: Subscription, ledger: Ledger, end: int, by_ms: int) -> int:
        """Acknowledge a subscription's expired entries among a ledger's entries before `end`.

        Returns the delivery time in ms of the first entry that has not expired, NEVER_MS if all have.
        """
        schedule, expired, late_ms = subscription.partition.schedule, [], NEVER_MS
        if schedule is not None:
            end = min(end, schedule.end(ledger))
        for entries in subscription.cursor.unacknowledged_batches(ledger, 0, end):
            if schedule is not None:
                entries = schedule.ready(ledger.ledger_id, entries)
                times = schedule.times_of(ledger, entries)
                if len(late := times[times > by_ms]):
                    late_ms, entries = min(late_ms, int(late.min())), np.asarray(entries)[times <= by_ms]
            expired.append(np.asarray(entries))
        entries = np.concatenate(expired) if expired else np.zeros(0, np.int64)
        if subscription.view is not None:      # entries of a compacted view do not expire while it is read
            entries = entries[subscription.view.count_before(ledger.ledger_id, entries):]
        if len(entries):
            acknowledge.move(self._owner, subscription, Acks(single={ledger.ledger_id: entries}), EXPIRED)
            self._owner.counters.add("entries_expired", len(entries))
        return late_ms


def published(ledger: Ledger, first: int, end: int) -> NDArray[np.int64]:
    """Return when entries `first` to `end` - 1 of a ledger were published, in ms (n,), as expiry counts their age.

    A producer's clock may be ahead: then the arrival counts, or its messages would never expire.
    """
    times: NDArray[np.int64] = np.minimum(ledger.column("publish_time")[first:end],
                                          ledger.column("broker_time")[first:end])
    return times


def _old_entries(ledger: Ledger, known: int, by_ms: int) -> int:
    """Return how many entries at the beginning of a ledger were published by `by_ms`.

    known: an earlier answer, below which no entry is looked at again.
    """
    while known < ledger.entries:
        end = min(ledger.entries, known + _LOOK_AHEAD)
        young = published(ledger, known, end) > by_ms
        if young.any():
            return known + int(young.argmax())
        known = end
    return known
