"""Backlogs that are cleared and kept for a while, so that they can be taken back.

    keep          before a clear: the subscription's cursor is copied, and the copy holds the ledgers that it needs
    acknowledge   what clients acknowledge later, the copy acknowledges too
    take_back     the subscription's cursor becomes one that has left what either of the two has left
    give_up       the copy is dropped, and the ledgers with it

In the journal a cursor is made by ops of its own id, of which the position is the last.  A cursor without a position
counts as never made, so a kill leaves a clear or a taking back done as a whole, or not done.
"""
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from geminga.proto import names
from geminga.storage import format
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.cursors.cursor import ACKNOWLEDGED, EVICTED, EXPIRED, SKIPPED, Cursor
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position, entries_up_to
from geminga.storage.ledgers.readable import ReadableLedger
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.runtime.log import log
from geminga.storage.topics.cleared_backlog import ClearedBacklog
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import EntryIds, Subscription


def keep(decisions: Decisions, catalogue: Catalogue, space: DiskSpace, subscription: Subscription, end: Position, *,
         asked_ms: int) -> None:
    """Keep what a subscription has left up to `end`, which is about to be cleared, if a policy says so.

    asked_ms: when the clear was asked for; 0: now.  Nothing is kept while the disk is full: a clear is to make room.

    Raises Refusal, StorageFull, NotDurable.
    """
    partition, cursor = subscription.partition, subscription.cursor
    assert isinstance(partition, Partition), subscription
    seconds, name = partition.policies.deleted_retention_s, partition.name
    if not seconds or not cursor.is_durable or names.is_system(str(name.base)):
        return
    size, messages = _cost(partition, cursor, end)
    if not messages:
        return
    if space.is_full:
        log.info("a backlog was cleared for good, because the disk is nearly full",
                 topic=name, subscription=subscription.name)
        return
    asked_ms = asked_ms or decisions.now_ms
    row = catalogue.kept_topics.keep_backlog(name, subscription.name, end=end, now_ms=asked_ms, size=size,
                                             until_ms=asked_ms + seconds * 1_000, messages=messages)
    read = subscription.read
    backlog = ClearedBacklog(row, cursor.copy(row.id), min(end, (read[0], read[1] - 1)))
    partition.cleared.append(backlog)
    _note_cursor(decisions, partition, backlog.cursor, row.id)
    log.info("a backlog was cleared, and is kept", topic=name, subscription=subscription.name)


def _cost(partition: Partition, cursor: Cursor, end: Position) -> tuple[int, int]:
    """Return (bytes from the first to the last entry that a cursor has left up to `end`, messages left among them)."""
    size = messages = 0
    for ledger in partition.ledgers_from(cursor.mark_delete[0]):
        runs = list(cursor.unacknowledged(ledger, 0, entries_up_to(end, ledger.ledger_id, ledger.entries)))
        if runs:
            messages += cursor.unacknowledged_messages(ledger, 0, runs[-1][1])
            size += int(ledger.column("size")[runs[0][0]:runs[-1][1]].sum())
    return size, messages


# -- acknowledgements since

def _of(subscription: Subscription) -> Iterator[tuple[Partition, ClearedBacklog]]:
    """Yield the cleared backlogs of a subscription, with their partition."""
    partition = subscription.partition
    if isinstance(partition, Partition):
        for backlog in partition.cleared:
            if backlog.row.subscription == subscription.name and subscription.is_durable:
                yield partition, backlog


def acknowledge(decisions: Decisions, subscription: Subscription, before: Position, up_to: Position,
                single: dict[int, EntryIds]) -> None:
    """Acknowledge in cleared backlogs what clients have just acknowledged on the subscription.

    before: its mark-delete position, from which on `up_to` means what the subscription still had.  Of earlier entries
    a cumulative acknowledgement means those that had been delivered before the clear.
    """
    for partition, backlog in _of(subscription):
        cursor, end = backlog.cursor, backlog.row.end
        if (reached := min(up_to, backlog.delivered)) > cursor.mark_delete:
            cursor.mark_delete = reached
            cursor.forget_acknowledged_parts()
            _note_moved(decisions, partition, cursor)
        if before < (last := min(up_to, end)):
            for ledger in partition.ledgers_from(before[0]):
                first = before[1] + 1 if ledger.ledger_id == before[0] else 0
                _acknowledge(decisions, partition, backlog, ledger,
                             np.arange(first, max(first, entries_up_to(last, ledger.ledger_id, ledger.entries))))
        for ledger_id, entries in single.items():
            if (found := subscription.find(ledger_id)) is not None:
                _acknowledge(decisions, partition, backlog, found, np.unique(np.asarray(entries, np.int64)))


def _acknowledge(decisions: Decisions, partition: Partition, backlog: ClearedBacklog, ledger: ReadableLedger,
                 entries: NDArray[np.int64]) -> None:
    """Acknowledge entries (n,) of a ledger, ascending, as far as the backlog reaches."""
    cursor, before = backlog.cursor, backlog.cursor.mark_delete
    entries = entries[entries < entries_up_to(backlog.row.end, ledger.ledger_id, ledger.entries)]
    fresh = cursor.acknowledge(ledger, entries)
    if len(fresh):
        cursor.forget_parts(ledger.ledger_id, fresh)
        decisions.note_many(partition, journal_ops.acknowledged(
            partition.partition_id, cursor.subscription_id, ledger.ledger_id, fresh))
        if partition.find(before[0]) is not None:      # else it is in a compacted view, which has no gap there
            cursor.advance(partition.ledgers_from(before[0]))
        if cursor.mark_delete != before:
            _note_moved(decisions, partition, cursor)


def _note_moved(decisions: Decisions, partition: Partition, cursor: Cursor) -> None:
    decisions.note(partition, journal_ops.mark_delete(
        partition.partition_id, cursor.subscription_id, cursor.mark_delete))
    decisions.wake_trimming(partition)


def acknowledge_part(decisions: Decisions, subscription: Subscription, ledger: Ledger, entry_id: int,
                     left: int) -> None:
    """Acknowledge in cleared backlogs the messages of a batch whose bits in `left` are 0."""
    for partition, backlog in _of(subscription):
        cursor, position = backlog.cursor, (ledger.ledger_id, entry_id)
        if position > backlog.row.end or cursor.is_acknowledged(*position):
            continue
        before = cursor.parts.get(ledger.ledger_id, {}).get(entry_id)
        remains = cursor.acknowledge_part(ledger, entry_id, int(ledger.messages[entry_id]), left)
        if not remains:
            _acknowledge(decisions, partition, backlog, ledger, np.array([entry_id]))
        elif remains != before:
            decisions.note_part(partition, cursor.subscription_id, position, before or 0, remains)


# -- the end

def find(subscription: Subscription, number: int) -> list[ClearedBacklog]:
    """Return a subscription's cleared backlogs with that number: more than one, if they were cleared at a time."""
    return [backlog for _, backlog in _of(subscription) if backlog.row.kept_id == number]


def take_back(decisions: Decisions, catalogue: Catalogue, subscription: Subscription,
              backlog: ClearedBacklog) -> int:
    """Give a subscription without consumers its cleared backlog back, and return the number of messages that come back.

    The caller commits before it deletes the backlog's row.  Raises StorageFull, NotDurable, OSError; then nothing has
    changed.
    """
    partition, cursor = subscription.partition, subscription.cursor
    assert isinstance(partition, Partition) and subscription.dispatcher is None, subscription
    joined, before = _joined(partition, cursor, backlog), cursor.backlog_messages(partition.ledgers)
    subscription.advance(joined)
    after = joined.backlog_messages(partition.ledgers)
    _balance(partition, joined, after)
    new_id = catalogue.subscriptions.new_id(partition.partition_id)
    cursor.take_over(joined)
    cursor.since, cursor.totals = joined.since, joined.totals
    for reason, total in enumerate(cursor.totals):
        decisions.note(partition, journal_ops.total(partition.partition_id, new_id, reason, total))
    _note_cursor(decisions, partition, cursor, new_id)
    decisions.note(partition, journal_ops.cursor_replaced(
        partition.partition_id, cursor.subscription_id, new_id, since=cursor.since))
    partition.cursor_resets += 1
    subscription.rewind()
    give_up(decisions, partition, backlog)
    log.info("a cleared backlog was taken back", topic=partition.name, subscription=subscription.name)
    return after - before


def _joined(partition: Partition, cursor: Cursor, backlog: ClearedBacklog) -> Cursor:
    """Return a cursor that has left what a subscription's cursor or its cleared backlog has left."""
    kept, end = backlog.cursor, backlog.row.end
    joined = Cursor(0, min(kept.mark_delete, cursor.mark_delete), is_durable=True, since=cursor.since)
    joined.totals = list(cursor.totals)
    joined.bitmaps = {ledger_id: bitmap.copy() for ledger_id, bitmap in kept.bitmaps.items()
                      if partition.find(ledger_id) is None}      # of ledgers that only a compacted view has
    for ledger in partition.ledgers_from(joined.mark_delete[0]):
        ledger_id, entries = ledger.ledger_id, ledger.entries
        settled, reach = cursor.acknowledged(ledger_id, 0, entries), entries_up_to(end, ledger_id, entries)
        settled[:reach] &= kept.acknowledged(ledger_id, 0, reach)
        settled |= partition.discarded.acknowledged(ledger_id, 0, entries)
        joined.acknowledge(ledger, np.flatnonzero(settled))
        for entry_id in cursor.parts.get(ledger_id, {}).keys() | kept.parts.get(ledger_id, {}).keys():
            if not joined.is_acknowledged(ledger_id, entry_id):
                of = (cursor, kept) if entry_id < reach else (cursor,)
                bits = 0
                for each in of:
                    bits |= _bits_left(each, ledger, entry_id)
                joined.acknowledge_part(ledger, entry_id, int(ledger.messages[entry_id]), bits)
        for mine, *others in ((joined.redeliveries, cursor.redeliveries, kept.redeliveries),
                              (joined.deaths, cursor.deaths, kept.deaths)):
            for counts in (other.arrays[ledger_id] for other in others if ledger_id in other.arrays):
                earlier = mine.arrays.get(ledger_id, np.zeros(0, np.uint16))
                size = max(len(earlier), len(counts))
                mine.arrays[ledger_id] = np.maximum(np.pad(earlier, (0, size - len(earlier))),
                                                    np.pad(counts, (0, size - len(counts))))
    return joined


def _bits_left(cursor: Cursor, ledger: Ledger, entry_id: int) -> int:
    """Return a bit for each message of an entry that a cursor has left."""
    if cursor.is_acknowledged(ledger.ledger_id, entry_id):
        return 0
    return cursor.parts.get(ledger.ledger_id, {}).get(entry_id, (1 << int(ledger.messages[entry_id])) - 1)


def _balance(partition: Partition, cursor: Cursor, left: int) -> None:
    """Make the totals add up again, when the cursor has `left` messages: what comes back was skipped, as a rule."""
    cursor.since = min(cursor.since, partition.since(cursor.mark_delete))
    missing = partition.next_message - cursor.since - left - sum(cursor.totals)
    cursor.totals[SKIPPED] += max(0, missing)
    surplus = max(0, -missing)
    for reason in (SKIPPED, EXPIRED, EVICTED, ACKNOWLEDGED):
        taken = min(surplus, cursor.totals[reason])
        cursor.totals[reason] -= taken
        surplus -= taken


def give_up(decisions: Decisions, partition: Partition, backlog: ClearedBacklog) -> None:
    """Drop the cursor of a cleared backlog, and let ledgers and blocks be freed that only it needed."""
    partition.cleared.remove(backlog)
    decisions.note(partition, journal_ops.subscription_deleted(
        partition.partition_id, backlog.cursor.subscription_id))
    decisions.wake_trimming(partition)
    decisions.acknowledged[partition] = None


# -- ops

def _note_cursor(decisions: Decisions, partition: Partition, cursor: Cursor, number: int) -> None:
    """Note the ops that make a cursor with the id `number`, which has acknowledged and counted what this one has.

    The op of its position is the last one.  Totals are not among them.
    """
    for ledger_id, bitmap in cursor.bitmaps.items():
        entries = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
        if len(entries) and ledger_id >= cursor.mark_delete[0]:
            decisions.note_in_order(partition, journal_ops.acknowledged(
                partition.partition_id, number, ledger_id, entries))
    for ledger_id, batches in cursor.parts.items():
        for entry_id, bits in batches.items():
            decisions.note_part(partition, number, (ledger_id, entry_id), 0, bits)
    for kind, counts in ((format.REDELIVERED, cursor.redeliveries), (format.DIED, cursor.deaths)):
        for ledger_id, entries in counts.at_least(1).items():
            decisions.note_in_order(partition, journal_ops.counted(
                kind, partition.partition_id, number, ledger_id, entries, counts.arrays[ledger_id][entries]))
    decisions.note(partition, journal_ops.mark_delete(partition.partition_id, number, cursor.mark_delete))
    decisions.answer_needs_sync()
