"""Message time to live: entries expire `message_ttl_s` after they were published, or after their delivery time.

An entry was published when its producer says, but not after its arrival: see `published`. An expired entry is
acknowledged for every durable subscription that has not acknowledged it, or moved to the dead letter topic where a
policy says so. In each ledger the entries at the beginning, published
longer ago than the time to live, are counted as old. Old entries have expired, unless they were delayed and their
delivery time is more recent. Entries that still wait for their delivery time are not looked at, nor are entries from
the first one of an open transaction on.
"""
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.proto import names
from geminga.storage.cursors.cursor import EXPIRED
from geminga.storage.cursors.dead_entries import EXPIRED as DEAD
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics import acknowledge, dead_letters, filtering
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription

_LOOK_AHEAD = 8_192     # index rows looked at together
_PIECE = 1 << 17        # entries that expire together
# Entries that expire in one look, which the owner's other topics wait for: some 0.1 s.  The next look goes on.
EXPIRED_MAX = 1 << 18


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

    def __init__(self, decisions: Decisions):
        self._decisions = decisions
        self._watches: dict[Partition, _Watch] = {}
        self._room = 0      # how many more entries may expire in this look

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
        """Expire due messages of all partitions, EXPIRED_MAX at most; called once a second."""
        self._room = EXPIRED_MAX
        for partition, watch in list(self._watches.items()):
            if now_ms >= watch.next_ms or watch.resets != partition.cursor_resets \
                    or watch.end not in (None, partition.last_confirmed):
                self._expire(partition, watch, now_ms)
            if self._room <= 0:
                self._watches[partition] = self._watches.pop(partition)      # the next look begins with the others
                break

    def look(self, partition: Partition, now_ms: int) -> None:
        """Expire due messages of one partition at once, EXPIRED_MAX at most."""
        self._room = EXPIRED_MAX
        if (watch := self._watches.get(partition)) is not None:
            self._expire(partition, watch, now_ms)

    def _expire(self, partition: Partition, watch: _Watch, now_ms: int) -> None:
        ttl_ms = partition.policies.message_ttl_s * 1000
        by_ms = now_ms - ttl_ms            # entries published, and due, by this time have expired
        # When the entry that expires next was published, or falls due: it expires a time to live later.
        soonest_ms = now_ms
        subscriptions = expiring(partition)
        first = min((one.cursor.mark_delete for one in subscriptions), default=partition.last_confirmed)
        limit, watch.resets, watch.end = partition.limit, partition.cursor_resets, partition.last_confirmed
        watch.old = {ledger_id: count for ledger_id, count in watch.old.items() if ledger_id >= first[0]}
        for ledger in partition.ledgers_from(first[0]):
            if limit is not None and ledger.ledger_id > limit[0]:
                break
            if ledger.has_lost:
                partition.give_up_lost(ledger)
                self._decisions.wake(partition)
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

        Returns the delivery time in ms of the first entry that has not expired, NEVER_MS if all have, and `by_ms` if
        others have to wait for the next look.
        """
        schedule, late_ms = subscription.partition.schedule, NEVER_MS
        if schedule is not None:
            end = min(end, schedule.end(ledger))
        for first in range(0, end, _PIECE):
            if self._room <= 0:
                return min(late_ms, by_ms)
            behind = min(end, first + _PIECE)
            late_ms = min(late_ms, self._acknowledge_piece(subscription, ledger, first, behind, by_ms))
        return late_ms

    def _acknowledge_piece(self, subscription: Subscription, ledger: Ledger, first: int, end: int, by_ms: int) -> int:
        """Do as `_acknowledge` for a ledger's entries `first` to `end` - 1, which all fit."""
        schedule, expired, late_ms = subscription.partition.schedule, [], NEVER_MS
        for entries in subscription.cursor.unacknowledged_batches(ledger, first, end):
            if schedule is not None:
                entries = schedule.ready(ledger.ledger_id, entries)
                times = schedule.times_of(ledger, entries)
                if len(late := times[times > by_ms]):
                    late_ms, entries = min(late_ms, int(late.min())), np.asarray(entries)[times <= by_ms]
            if isinstance(entries, range):      # which asarray would take number by number
                entries = np.arange(entries.start, entries.stop)
            expired.append(np.asarray(entries))
        if expired:
            self._room -= expire(self._decisions, subscription, ledger, np.concatenate(expired))
        return min(late_ms, by_ms) if self._room <= 0 else late_ms


def expiring(partition: Partition) -> list[Subscription]:
    """Return the subscriptions of which messages expire by themselves: the durable ones.

    The cursor of a reader is its place in the topic, not a backlog.  Expiry would move a reader that is behind past
    messages that the topic still has, after the client was told that they can be read, and has begun to wait for them.
    """
    return [subscription for subscription in partition.subscriptions.values() if subscription.is_durable]


def expire(decisions: Decisions, subscription: Subscription, ledger: Ledger, entries: NDArray[np.int64]) -> int:
    """Acknowledge expired entries (n,) of a ledger, ascending, or make them dead letters where the policy says so.

    Entries that are acknowledged already may be among them.  Of a subscription with a filter those are no dead letters
    that do not match it.  Returns how many entries have expired by this; EXPIRED_MAX, too, if the filter has to look at
    others in the next look.
    """
    if subscription.name.startswith(names.REDRIVES):      # else a repeated redrive would not find, and send again
        return 0
    count, is_all = 0, True
    if subscription.view is not None:      # entries of a compacted view do not expire while it is read
        entries = entries[subscription.view.count_before(ledger.ledger_id, entries):]
    if len(entries) and _goes_on(subscription):      # to the dead letter topic
        entries = subscription.cursor.dead.alive(ledger.ledger_id, entries)
        if len(entries) and subscription.sieve is not None:
            entries, is_all = filtering.judge_expired(decisions, subscription, ledger, entries)
        count = dead_letters.bury(decisions, subscription, ledger.ledger_id, entries, DEAD, by_client=False)
        entries = subscription.cursor.dead.alive(ledger.ledger_id, entries)      # chunks
    if len(entries):
        first = int(entries[0])
        is_left = ~subscription.cursor.acknowledged(ledger.ledger_id, first, int(entries[-1]) + 1)[entries - first]
        if is_left.any():
            acks = Acks(single={ledger.ledger_id: entries[is_left]})
            acknowledge.move(decisions, subscription, acks, EXPIRED)
            decisions.counters.add("entries_expired", int(np.count_nonzero(is_left)))
            count += int(np.count_nonzero(is_left))
    return count if is_all else EXPIRED_MAX


def _goes_on(subscription: Subscription) -> bool:
    """Whether expired entries of a subscription are dead letters."""
    return subscription.partition.policies.dead_letter_expired and subscription.is_durable \
        and subscription.remote is None


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
