"""Acknowledgements: what the ACK_ROWs of a pass say, by subscription, and how that moves cursors.

    acks_by_consumer, acknowledge      whole entries, of all consumers in one pass
    acknowledge_part, begin_within     messages of one batch
    move                               whole entries of one subscription, for any of cursor.REASONS
    skip_to, skip_compacted            entries that a subscription passes over

Few rows are read one by one, many as arrays (proto/rows.py has the reason).
"""
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope, responses
from geminga.proto.rows import Rows
from geminga.storage.cursors import batch_acks
from geminga.storage.cursors.cursor import ACKNOWLEDGED, EXPIRED, SKIPPED
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import NOWHERE, Position, entries_up_to
from geminga.storage.ledgers.readable import ReadableLedger
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, EntryIds, Subscription

_FEW_ROWS = 64      # acknowledgements of a pass that are cheaper one by one than as arrays


@dataclass(slots=True)
class Acks:
    """Acknowledgements for one subscription.  Batches that are acknowledged in part are not among them."""

    cumulative: list[Position] = field(default_factory=list)           # as clients sent them
    up_to: Position = NOWHERE                                          # the highest of these that exists
    single: dict[int, EntryIds] = field(default_factory=dict)          # ledger id -> entry ids
    requests: list[int] = field(default_factory=list)                  # request ids that ACK_RESPONSE answers

    def add(self, other: "Acks") -> None:
        """Add another consumer's acknowledgements for the same subscription."""
        self.cumulative += other.cumulative
        for ledger_id, entries in other.single.items():
            mine = self.single.get(ledger_id)
            if mine is None:
                self.single[ledger_id] = entries
            elif isinstance(mine, list) and isinstance(entries, list):
                mine += entries
            else:
                self.single[ledger_id] = np.concatenate((np.asarray(mine, np.uint64), np.asarray(entries, np.uint64)))


def acks_by_consumer(rows: Rows) -> dict[int, Acks]:
    """{consumer's handle: its acknowledgements} of rows (n,) ACK_ROW."""
    if len(rows) > _FEW_ROWS:
        consumers = rows["consumer"]
        distinct = _distinct(consumers)
        if len(distinct) * _FEW_ROWS <= len(rows):      # else each consumer has too few rows to be worth arrays
            return {consumer: _summarise(rows[consumers == consumer] if len(distinct) > 1 else rows)
                    for consumer in distinct}
    by_consumer: dict[int, Acks] = {}
    for consumer, ledger_id, entry_id, request_id, flags, _ in rows.tolist():
        acks = by_consumer.get(consumer)
        if acks is None:
            acks = by_consumer[consumer] = Acks()
        if flags & envelope.CUMULATIVE:
            acks.cumulative.append((ledger_id, entry_id - 1 if flags & envelope.PARTIAL else entry_id))
        elif not flags & (envelope.PARTIAL | envelope.NOTHING):
            entries = acks.single.get(ledger_id)
            if entries is None:
                acks.single[ledger_id] = [entry_id]
            else:
                assert isinstance(entries, list)
                entries.append(entry_id)
        if flags & envelope.WANTS_RESPONSE:
            acks.requests.append(request_id)
    return by_consumer


def _distinct(column: NDArray[np.uint64]) -> list[int]:
    """The distinct values of a column (n,).  The rule is one value, which is found ten times faster than by sorting."""
    values = column[:1] if (column == column[:1]).all() else np.unique(column)
    distinct: list[int] = values.tolist()
    return distinct


def _summarise(rows: Rows) -> Acks:
    """The acknowledgements of many rows (n,) ACK_ROW of one consumer."""
    flags = rows["flags"]
    acks = Acks(requests=rows["request_id"][(flags & envelope.WANTS_RESPONSE) != 0].tolist())
    last = rows[(flags & envelope.CUMULATIVE) != 0]
    last_entries = last["entry_id"].astype(np.int64) - ((last["flags"] & envelope.PARTIAL) != 0)
    acks.cumulative = list(zip(last["ledger_id"].tolist(), last_entries.tolist(), strict=True))
    single = rows[(flags & (envelope.CUMULATIVE | envelope.PARTIAL | envelope.NOTHING)) == 0]
    for ledger_id in _distinct(single["ledger_id"]):
        acks.single[ledger_id] = single["entry_id"][single["ledger_id"] == ledger_id]
    return acks


# -- messages of one batch

def acknowledge_part(owner: OwnerContext, consumer: Consumer, position: Position, words: memoryview) -> None:
    """Acknowledge messages of the batch at position.

    words: an ack set, little-endian 64-bit words; a bit for each message that is not acknowledged.
    """
    subscription = consumer.subscription
    partition, cursor = subscription.partition, subscription.cursor
    if not isinstance(partition, Partition):
        return
    ledger_id, entry_id = position
    ledger = known(partition, subscription).find(ledger_id)
    if ledger is None or not 0 <= entry_id < ledger.entries or cursor.is_acknowledged(ledger_id, entry_id):
        return
    if isinstance(ledger, CompactedLedger):
        left = batch_acks.bits_of(words, ledger.bits_of(entry_id).bit_length())
        return acknowledge_part_of_view(owner, subscription, ledger, entry_id, left)
    assert isinstance(ledger, Ledger), (subscription, ledger)
    left = batch_acks.bits_of(words, int(ledger.messages[entry_id]))
    count = acknowledge_messages(owner, subscription, ledger, entry_id, left)
    if not subscription.is_spread:
        consumer.acknowledged += count


def acknowledge_messages(
    owner: OwnerContext, subscription: Subscription, ledger: Ledger, entry_id: int, left: int
) -> int:
    """Acknowledge messages of an unacknowledged batch; return how many were not acknowledged before.

    left: bits of the batch's messages, 1 = not acknowledged.
    """
    partition, cursor, ledger_id = subscription.partition, subscription.cursor, ledger.ledger_id
    messages = int(ledger.messages[entry_id])
    if subscription.view is not None and (compacted := subscription.view.find(ledger_id)) is not None:
        left &= compacted.bits_of(entry_id) or left      # nobody acknowledges messages that the compaction removed
    before = cursor.parts.get(ledger_id, {}).get(entry_id)
    held = _messages_of(subscription, ledger, entry_id)
    remains = cursor.acknowledge_part(ledger, entry_id, messages, left)
    count = (messages if before is None else before.bit_count()) - remains.bit_count()
    if not remains:
        move(owner, subscription, Acks(single={ledger_id: [entry_id]}), ACKNOWLEDGED)
    elif count:
        owner.count(subscription, ACKNOWLEDGED, count)
        owner.changed[partition] = None
        tell_part(subscription, ledger, entry_id, held)
        _note_part(owner, subscription, (ledger_id, entry_id), before or 0, remains)
    return count


def _messages_of(subscription: Subscription, ledger: ReadableLedger, entry_id: int) -> int:
    """Return how many messages of an entry are neither acknowledged nor withheld."""
    return int(subscription.messages(ledger, range(entry_id, entry_id + 1))[0])


def tell_part(subscription: Subscription, ledger: Ledger, entry_id: int, held: int) -> None:
    """Tell the dispatcher that messages of a batch are acknowledged or withheld, of which there were `held` before."""
    left = _messages_of(subscription, ledger, entry_id)
    if subscription.dispatcher is not None and held > left:
        subscription.dispatcher.part_acknowledged(ledger, entry_id, held - left)
        if not left:      # all others wait for the ends of transactions
            subscription.dispatcher.acknowledged(ledger, [entry_id])


def begin_within(owner: OwnerContext, subscription: Subscription, position: Position, words: Sequence[int]) -> None:
    """Have the subscription begin within the batch at position, the first entry behind its mark-delete position.

    words: an ack set as in the protocol, signed; a bit for each message that is to be delivered.  Words without a bit
    of the batch, or for an entry that does not exist, are ignored.
    """
    (ledger_id, entry_id), cursor = position, subscription.cursor
    ledger = subscription.find(ledger_id)
    if ledger is None or not 0 <= entry_id < ledger.entries or cursor.is_acknowledged(ledger_id, entry_id):
        return
    if isinstance(ledger, CompactedLedger):
        messages = ledger.bits_of(entry_id).bit_length()
    else:
        messages = int(ledger.column("messages")[entry_id])
    remains = batch_acks.bits_of(np.array(words[:-(-messages // 64)], np.int64).tobytes(), messages)
    skipped = messages - remains.bit_count()
    if not remains or not skipped:
        return
    cursor.acknowledge_part(ledger, entry_id, messages, remains)
    if not isinstance(ledger, CompactedLedger):      # messages that only a view has are in no total
        owner.count(subscription, SKIPPED, skipped)
    _note_part(owner, subscription, position, 0, remains)


def _note_part(owner: OwnerContext, subscription: Subscription, position: Position, before: int, remains: int) -> None:
    """Note the words that have changed of a batch's bits, of which `remains` are left.

    before: the bits before; 0 if the batch was whole, so that all words with a bit are noted.
    """
    if not subscription.is_durable:
        return
    partition, subscription_id = subscription.partition, subscription.cursor.subscription_id
    assert isinstance(partition, Partition), subscription
    if not max(before, remains) >> 64:      # nearly always: one word
        return owner.note(partition, journal_ops.first_part_acknowledged(
            partition.partition_id, subscription_id, position, remains))
    numbers, there = np.flatnonzero(batch_acks.words(before ^ remains)), batch_acks.words(remains)
    words, known = np.zeros(len(numbers), np.uint64), numbers < len(there)      # beyond, words have become 0
    words[known] = there[numbers[known]]
    owner.note_in_order(partition, journal_ops.parts_acknowledged(
        partition.partition_id, subscription_id, position, numbers, words))


def acknowledge_part_of_view(
    owner: OwnerContext, subscription: Subscription, ledger: CompactedLedger, entry_id: int, left: int
) -> None:
    """Acknowledge messages of a batch that only a compacted view has.  They are in no total.

    left: bits of the batch's messages, 1 = not acknowledged.
    """
    if not (bits := ledger.bits_of(entry_id)):
        return
    cursor, messages = subscription.cursor, bits.bit_length()
    before = cursor.parts.get(ledger.ledger_id, {}).get(entry_id)
    remains = cursor.acknowledge_part(ledger, entry_id, messages, left & bits)
    if not remains:
        move(owner, subscription, Acks(single={ledger.ledger_id: [entry_id]}), ACKNOWLEDGED)
    elif remains != before:
        _note_part(owner, subscription, (ledger.ledger_id, entry_id), before or 0, remains)


# -- whole entries

def known(partition: Partition, subscription: Subscription) -> Partition | Subscription:
    """The object whose `find` and `has` know all ledgers of which entries may be acknowledged.

    With a compacted view, that is the subscription: the view may have ledgers that the partition has deleted.
    """
    return partition if partition.view is None else subscription


def acknowledge(owner: OwnerContext, by_consumer: dict[int, Acks]) -> None:
    """Move cursors, and answer requests.  Ids that never existed, or are acknowledged already, change nothing.

    by_consumer: by handle.  Acknowledgements of all consumers of one subscription are applied together.
    """
    of_subscription: dict[Subscription, Acks] = {}
    for handle, acks in by_consumer.items():
        if (consumer := owner.consumers.get(handle)) is None:
            continue
        consumer.acked_ms = owner.now_ms
        if consumer.subscription.partition.is_persistent:
            earlier = of_subscription.setdefault(consumer.subscription, acks)
            if earlier is not acks:
                earlier.add(acks)
        for request_id in acks.requests:
            owner.answer_needs_sync()
            owner.outbox(consumer.worker).reply(
                consumer.connection, responses.ack_response(consumer.consumer_id, request_id))
    for subscription, acks in of_subscription.items():
        partition, dispatcher, totals = subscription.partition, subscription.dispatcher, subscription.cursor.totals
        assert isinstance(partition, Partition) and dispatcher is not None, subscription
        if subscription.is_spread and acks.cumulative:      # ignored, as in Apache Pulsar
            owner.counters.add("acks_ignored", len(acks.cumulative))
        else:
            has = known(partition, subscription).has
            acks.up_to = next(
                (position for position in sorted(acks.cumulative, reverse=True) if has(position)), NOWHERE)
        before = totals[ACKNOWLEDGED]
        move(owner, subscription, acks, ACKNOWLEDGED)
        if dispatcher.hears_clients:
            dispatcher.heard(acks.single)
        if not subscription.is_spread and (active := dispatcher.active) is not None:
            active.acknowledged += totals[ACKNOWLEDGED] - before


def move(owner: OwnerContext, subscription: Subscription, acks: Acks, reason: int) -> None:
    """Acknowledge `acks.up_to` and `acks.single`, for one of cursor.REASONS: the subscription needs these no more."""
    partition, cursor = subscription.partition, subscription.cursor
    assert isinstance(partition, Partition), subscription      # nothing is acknowledged on non-persistent topics
    before = cursor.mark_delete
    if acks.up_to > before:
        _acknowledge_up_to(owner, partition, subscription, acks.up_to, reason)
    for ledger_id, entries in acks.single.items():
        _acknowledge_single(owner, partition, subscription, ledger_id, entries, reason)
    if cursor.bitmaps or cursor.mark_delete[0] != partition.open_ledger.ledger_id:
        subscription.advance()
    owner.changed[partition] = None
    if reason == EXPIRED:
        subscription.expired_ms = owner.now_ms
    if cursor.mark_delete != before:
        assert cursor.mark_delete > before, (subscription, before)
        subscription.advanced_ms = owner.now_ms
        subscription.read = max(subscription.read, (cursor.mark_delete[0], cursor.mark_delete[1] + 1))
        if subscription.is_durable:
            owner.note(partition, journal_ops.mark_delete(
                partition.partition_id, cursor.subscription_id, cursor.mark_delete))
            if len(partition.ledgers) > 1:
                owner.wake_trimming(partition)
            if subscription.is_replicated:
                owner.moved[subscription] = None
    owner.acknowledged[partition] = None
    dispatcher = subscription.dispatcher
    if partition.is_closed or (dispatcher is not None and dispatcher.is_woken_by_acknowledgements):
        owner.wake(partition)


def _acknowledge_up_to(
    owner: OwnerContext, partition: Partition, subscription: Subscription, position: Position, reason: int
) -> None:
    """Move the mark-delete position to a position behind it, if that exists."""
    if known(partition, subscription).has(position):
        cursor = subscription.cursor
        owner.count(subscription, reason, _messages_up_to(subscription, position))
        cursor.mark_delete = position
        if subscription.dispatcher is not None:
            subscription.dispatcher.acknowledged_up_to(position, by_client=reason == ACKNOWLEDGED)
        # Only now: the dispatcher counts the messages that were left of batches, which `forget` drops.
        for passed in [ledger_id for ledger_id in cursor.bitmaps if ledger_id < position[0]]:
            cursor.forget(passed)
        if cursor.parts:
            cursor.forget_acknowledged_parts()


def _messages_up_to(subscription: Subscription, position: Position) -> int:
    """The number of unacknowledged messages up to the position, inclusive."""
    cursor, count = subscription.cursor, 0
    if not (cursor.bitmaps or cursor.parts) and cursor.mark_delete[0] == position[0]:      # nearly always
        assert isinstance(subscription.partition, Partition), subscription
        ledger = subscription.partition.find(position[0])
        return 0 if ledger is None else ledger.messages_in(cursor.mark_delete[1] + 1, position[1] + 1)
    for ledger in subscription.partition.ledgers_from(cursor.mark_delete[0]):
        if ledger.ledger_id > position[0]:
            break
        count += cursor.unacknowledged_messages(ledger, 0, entries_up_to(position, ledger.ledger_id, ledger.entries))
    return count


def _acknowledge_single(
    owner: OwnerContext, partition: Partition, subscription: Subscription, ledger_id: int, entries: EntryIds,
    reason: int,
) -> None:
    """Acknowledge entries of one ledger.  Those that do not exist are ignored."""
    cursor = subscription.cursor
    ledger = known(partition, subscription).find(ledger_id)
    if ledger is None:
        return
    if cursor.mark_delete[0] != ledger_id:
        subscription.advance()      # perhaps to the beginning of this ledger
    existing = _existing(ledger, entries)
    if cursor.acknowledge_in_order(ledger, existing):
        return _acknowledged(owner, subscription, ledger, existing, reason)
    fresh = cursor.acknowledge(ledger, np.asarray(existing, np.int64))
    _acknowledged(owner, subscription, ledger, fresh, reason)
    if subscription.is_durable and len(fresh):
        # The end of a transaction acknowledges at any time, perhaps behind a reset of the cursor in the same pass.
        note = owner.note_many if subscription.withheld is None else owner.note_in_order
        note(partition, journal_ops.acknowledged(partition.partition_id, cursor.subscription_id, ledger_id, fresh))


def note_counts(
    owner: OwnerContext, subscription: Subscription, kind: int, ledger_id: int, entries: NDArray[np.int64],
    counts: NDArray[np.uint16],
) -> None:
    """Note counts (n,) of entries (n,) for the journal.  kind: format.REDELIVERED or format.DIED"""
    if subscription.is_durable:
        partition = subscription.partition
        assert isinstance(partition, Partition), subscription
        owner.note_many(partition, journal_ops.counted(
            kind, partition.partition_id, subscription.cursor.subscription_id, ledger_id, entries, counts))


def _acknowledged(
    owner: OwnerContext, subscription: Subscription, ledger: ReadableLedger, entries: list[int] | NDArray[np.int64],
    reason: int,
) -> None:
    """Count entries (n,), ascending, that were not acknowledged before, and tell the dispatcher."""
    if not len(entries):
        return
    cursor = subscription.cursor
    if isinstance(ledger, CompactedLedger):      # entries that only a view has are in no total
        return cursor.forget_parts(ledger.ledger_id, entries)
    assert isinstance(ledger, Ledger), ledger
    if not cursor.parts and int(entries[-1]) - int(entries[0]) == len(entries) - 1:
        messages = ledger.messages_in(int(entries[0]), int(entries[-1]) + 1)
    else:
        messages = int(cursor.messages_of(ledger, np.asarray(entries, np.int64)).sum())
    owner.count(subscription, reason, messages)
    if subscription.dispatcher is not None:
        subscription.dispatcher.acknowledged(ledger, entries, by_client=reason == ACKNOWLEDGED)
    if cursor.parts:
        cursor.forget_parts(ledger.ledger_id, entries)


def _existing(ledger: ReadableLedger, entries: EntryIds) -> list[int] | NDArray[np.int64]:
    """The entries among these that the ledger has, ascending, each once."""
    if isinstance(entries, list):
        return sorted({entry_id for entry_id in entries if entry_id < ledger.entries})
    known = entries[entries < ledger.entries].astype(np.int64)
    return known if (np.diff(known) > 0).all() else np.unique(known)


# -- skipping

def skip_compacted(owner: OwnerContext, subscription: Subscription, began: Position) -> None:
    """Skip entries that the compaction removed, from `began` up to the read position of a reader of its view."""
    cursor, read, view = subscription.cursor, subscription.read, subscription.view
    assert view is not None, subscription
    for ledger in view.ledgers_from(began[0]):
        if ledger.ledger_id > read[0]:
            break
        first = began[1] if ledger.ledger_id == began[0] else 0
        end = min(read[1], ledger.entries) if ledger.ledger_id == read[0] else ledger.entries
        if first < end:
            is_removed = ~cursor.acknowledged(ledger.ledger_id, first, end)
            is_removed[ledger.kept_of(first, end) - first] = False
            entries = np.flatnonzero(is_removed) + first
            if len(entries):
                move(owner, subscription, Acks(single={ledger.ledger_id: entries}), SKIPPED)
        if end == ledger.entries:
            ledger.close()
    for ledger_id in [ledger_id for ledger_id in cursor.bitmaps if ledger_id < cursor.mark_delete[0]]:
        cursor.forget(ledger_id)
    if cursor.mark_delete >= view.horizon:
        subscription.view = None


def skip_to(owner: OwnerContext, subscription: Subscription, position: Position, reason: int = SKIPPED) -> None:
    """Acknowledge everything up to a position.  Consumers go on behind it."""
    if position > subscription.cursor.mark_delete:
        move(owner, subscription, Acks(up_to=position), reason)
        owner.answer_needs_sync()
        owner.wake(subscription.partition)
