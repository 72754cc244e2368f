"""Time to live of single messages: the property `geminga.ttl` says after how long a message expires.

It counts from the publishing, or from the delivery time if that comes later, as a topic's time to live does, and what
has expired ends in the same way.  The bits of entries' `flags` say the time, see proto/job_properties.py.

For each block of a ledger the watch keeps when its next entry expires.  So a second costs a look at blocks in which an
entry is due, and at entries that have come, however many messages wait; and a block costs eight bytes.
"""
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.proto.job_properties import ttls_of
from geminga.proto.sends import IS_CHUNK
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.enforcement import message_ttl
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition

_BLOCK = 4_096            # entries
_BLOCKS_MAX = 500         # looked at for one partition in a second: some 50 ms


@dataclass(slots=True)
class _Blocks:
    """The progress in one ledger."""

    seen: int = 0                  # entries that were looked at
    # When the first entry of each block expires, of those that have not: (blocks,), in ms since 1970.
    due_ms: NDArray[np.int64] = field(default_factory=lambda: np.full(16, NEVER_MS, np.int64))


@dataclass(slots=True)
class _Watch:
    """The progress in one partition."""

    ledgers: dict[int, _Blocks] = field(default_factory=dict)
    next_ms: int = 0                   # no entry that was seen expires before
    end: Position | None = None        # the last entry that was seen
    resets: int = -1                   # Partition.cursor_resets at the last look


class OwnTtl(Watcher):
    """Expiry of single messages of one owner's partitions."""

    def __init__(self, decisions: Decisions):
        self._decisions = decisions
        self._watches: dict[Partition, _Watch] = {}
        self._room = 0      # how many more entries may expire in this look

    def __repr__(self) -> str:
        return f"<OwnTtl of {len(self._watches)} partitions>"

    def watch(self, partition: Partition) -> None:
        """Begin to look at a partition that was opened, or whose policies have changed, if its policy says so."""
        self._watches.pop(partition, None)
        if partition.policies.own_message_ttl:
            self._watches[partition] = _Watch()

    def release(self, partition: Partition) -> None:
        """Forget a partition that the owner gives up."""
        self._watches.pop(partition, None)

    def tick(self, now_ms: int) -> None:
        """Expire due messages of all partitions, EXPIRED_MAX at most; called once a second."""
        self._room = message_ttl.EXPIRED_MAX
        for partition, watch in list(self._watches.items()):
            if watch.resets != partition.cursor_resets:      # what had expired may wait again
                self._watches[partition] = watch = _Watch(resets=partition.cursor_resets)
            if now_ms >= watch.next_ms or watch.end != _end_of(partition):
                self._look(partition, watch, now_ms)
            if self._room <= 0:
                self._watches[partition] = self._watches.pop(partition)      # the next look begins with the others
                break

    def _look(self, partition: Partition, watch: _Watch, now_ms: int) -> None:
        """Expire due messages of a partition, and look at entries that were not seen yet."""
        first = min((one.cursor.mark_delete for one in message_ttl.expiring(partition)),
                    default=partition.last_confirmed)
        ledgers = partition.ledgers_from(first[0])
        watch.ledgers = {one.ledger_id: watch.ledgers.get(one.ledger_id) or _Blocks() for one in ledgers}
        left, watch.end = _BLOCKS_MAX, _end_of(partition)
        for ledger in ledgers:
            blocks = watch.ledgers[ledger.ledger_id]
            stop = _stop_of(partition, ledger)
            if partition.schedule is not None and partition.schedule.end(ledger) < ledger.entries:
                watch.end = None      # they are sorted by and by, without any that comes
            for block in _to_look_at(blocks, stop, now_ms)[:left].tolist():
                if self._room <= 0:
                    left = 0
                    break
                blocks.due_ms[block] = self._expire(partition, ledger, block * _BLOCK,
                                                    min(stop, (block + 1) * _BLOCK), now_ms)
                blocks.seen = max(blocks.seen, min(stop, (block + 1) * _BLOCK))
                left -= 1
            if left <= 0:      # the next second goes on
                watch.end = None
                break
        watch.next_ms = min((int(blocks.due_ms.min()) for blocks in watch.ledgers.values()), default=NEVER_MS)

    def _expire(self, partition: Partition, ledger: Ledger, first: int, stop: int, now_ms: int) -> int:
        """Expire due ones among a ledger's entries first .. stop - 1; return when the next of them is due."""
        if ledger.has_lost:
            partition.give_up_lost(ledger)
            self._decisions.wake(partition)
        flags = ledger.column("flags")[first:stop]
        ttls_ms = np.where(flags & IS_CHUNK, 0, ttls_of(flags))
        entries = np.flatnonzero(ttls_ms)
        if not len(entries):
            return NEVER_MS
        since_ms = message_ttl.published(ledger, first, stop)[entries]
        if partition.schedule is not None:
            since_ms = np.maximum(since_ms, partition.schedule.times_of(ledger, entries + first))
        due_ms = since_ms + ttls_ms[entries]
        is_due = due_ms <= now_ms
        if is_due.any():
            for subscription in message_ttl.expiring(partition):
                self._room -= message_ttl.expire(self._decisions, subscription, ledger, entries[is_due] + first)
            if self._room <= 0:      # perhaps not all have expired
                return now_ms
        return int(due_ms[~is_due].min(initial=NEVER_MS))


def _to_look_at(blocks: _Blocks, stop: int, now_ms: int) -> NDArray[np.intp]:
    """Return the numbers of a ledger's blocks that have due entries, or entries before `stop` that were not seen."""
    count = -(-stop // _BLOCK)
    if count > len(blocks.due_ms):
        blocks.due_ms = np.append(blocks.due_ms, np.full(count, NEVER_MS, np.int64))
    wanted = blocks.due_ms[:count] <= now_ms
    if blocks.seen < stop:
        wanted[blocks.seen // _BLOCK:] = True
    return np.flatnonzero(wanted)


def _end_of(partition: Partition) -> Position:
    """Return the position up to which entries can be looked at, as far as it tells whether any have come."""
    return partition.last_confirmed if partition.limit is None else partition.limit


def _stop_of(partition: Partition, ledger: Ledger) -> int:
    """Return how many entries of a ledger can be looked at.

    Those from the first one of an open transaction on cannot, nor those that the delayed index has not sorted.
    """
    stop, limit = ledger.entries, partition.limit
    if limit is not None and ledger.ledger_id >= limit[0]:
        stop = min(stop, limit[1]) if ledger.ledger_id == limit[0] else 0
    return stop if partition.schedule is None else min(stop, partition.schedule.end(ledger))
