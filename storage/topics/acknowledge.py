"""Acknowledgements: what ACK_ROWs of a pass say, by subscription, and what that does to cursors.

A few rows cost least one by one, many as arrays (proto/rows.py says why).
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
from geminga.storage.ledgers.position import NOWHERE, Position
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Subscription

_FEW_ROWS = 64      # acknowledgements of a pass that are cheaper one by one than as arrays


@dataclass(slots=True)
class Acks:
    """What some ACK_ROWs of one consumer say.  Part of a batch counts for nothing before all of it is acknowledged."""

    cumulative: list[Position] = field(default_factory=list)
    up_to: Position = NOWHERE                                                # the highest of those that exists
    single: dict[int, list[int] | NDArray[np.int64] | Rows] = field(default_factory=dict)     # ledger id -> entry ids
    requests: list[int] = field(default_factory=list)                        # to be answered

    def add(self, other: "Acks") -> None:
        """What both say, to a subscription that they have in common."""
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
    """ACK_ROW rows (n,) by consumer; a few rows of many consumers cost least one by one."""
    if len(rows) > _FEW_ROWS:
        consumers = rows["consumer"]
        distinct = _distinct(consumers)
        if len(distinct) * _FEW_ROWS <= len(rows):
            return {consumer: _summarise(rows[consumers == consumer] if len(distinct) > 1 else rows) for consumer in distinct}
    found: dict[int, Acks] = {}
    for consumer, ledger_id, entry_id, request_id, flags, _ in rows.tolist():
        acks = found.get(consumer)
        if acks is None:
            acks = found[consumer] = Acks()
        if flags & envelope.CUMULATIVE:
            acks.cumulative.append((ledger_id, entry_id - 1 if flags & envelope.PARTIAL else entry_id))
        elif not flags & (envelope.PARTIAL | envelope.NOTHING):
            acks.single.setdefault(ledger_id, []).append(entry_id)
        if flags & envelope.WANTS_RESPONSE:
            acks.requests.append(request_id)
    return found


def _distinct(column: Rows) -> list[int]:
    """Its values, each once; mostly it has one, which is seen ten times faster than sorted."""
    return column[:1].tolist() if (column == column[:1]).all() else np.unique(column).tolist()


def _summarise(rows: Rows) -> Acks:
    """The same for many rows of one consumer."""
    flags = rows["flags"]
    acks = Acks(requests=rows["request_id"][(flags & envelope.WANTS_RESPONSE) != 0].tolist())
    last = rows[(flags & envelope.CUMULATIVE) != 0]
    acks.cumulative = list(zip(last["ledger_id"].tolist(), (last["entry_id"].astype(np.int64)
                                                            - ((last["flags"] & envelope.PARTIAL) != 0)).tolist(), strict=True))
    single = rows[(flags & (envelope.CUMULATIVE | envelope.PARTIAL | envelope.NOTHING)) == 0]
    for ledger_id in _distinct(single["ledger_id"]):
        acks.single[ledger_id] = single["entry_id"][single["ledger_id"] == ledger_id]
    return acks


def acknowledge_part(owner: OwnerContext, consumer: Consumer, position: Position, words: memoryview) -> None:
    """Of a batch only the messages with a bit in these words are not acknowledged."""
    subscription = consumer.subscription
    found, cursor = subscription.partition, subscription.cursor
    ledger_id, entry_id = position
    ledger = _keeper(subscription).find(ledger_id)
    if ledger is None or not found.is_persistent or not 0 <= entry_id < ledger.entries or cursor.is_acknowledged(ledger_id, entry_id):
        return
    if ledger.view:
        return _acknowledge_part_of_view(owner, subscription, ledger, entry_id, words)
    messages = int(ledger.messages[entry_id])
    left = batch_acks.bits_of(words, messages)
    if subscription.view is not None and (compacted := subscription.view.find(ledger_id)) is not None:
        left &= compacted.bits_of(entry_id) or left      # what is gone of it nobody acknowledges
    before = cursor.parts.get(ledger_id, {}).get(entry_id)
    remains = cursor.acknowledge_part(ledger, entry_id, messages, left)
    count = (messages if before is None else before.bit_count()) - remains.bit_count()
    if not subscription.is_spread:
        consumer.acknowledged += count
    if not remains:
        return move(owner, subscription, Acks(single={ledger_id: [entry_id]}), ACKNOWLEDGED)
    if not count:
        return
    owner.count(subscription, ACKNOWLEDGED, count)
    owner.changed[found] = None
    subscription.dispatcher.part_acknowledged(ledger, entry_id, count)
    _note_part(owner, subscription, position, before or 0, remains)


def begin_within(owner: OwnerContext, subscription: Subscription, position: Position, words: Sequence[int]) -> None:
    """The subscription begins with the batch at position, of which only messages with a bit in the words are to be delivered.

    Words without any such bit, or about an entry that is not there, say nothing.
    """
    (ledger_id, entry_id), cursor = position, subscription.cursor
    ledger = subscription.find(ledger_id)
    if ledger is None or not 0 <= entry_id < ledger.entries or cursor.is_acknowledged(ledger_id, entry_id):
        return
    messages = ledger.bits_of(entry_id).bit_length() if ledger.view else int(ledger.messages[entry_id])
    remains = batch_acks.bits_of(np.array(words[:-(-messages // 64)], np.int64).tobytes(), messages)
    skipped = messages - remains.bit_count()
    if not remains or not skipped:
        return
    cursor.acknowledge_part(ledger, entry_id, messages, remains)
    if not ledger.view:
        owner.count(subscription, SKIPPED, skipped)
    _note_part(owner, subscription, position, 0, remains)


def _note_part(owner: OwnerContext, subscription: Subscription, position: Position, before: int, remains: int) -> None:
    """The words that have changed; of a batch that was whole, those in which a bit is left."""
    if not subscription.is_durable:
        return
    found, subscription_id = subscription.partition, subscription.cursor.subscription_id
    if not max(before, remains) >> 64:      # nearly always
        return owner.note(found, journal_ops.first_part_acknowledged(found.partition_id, subscription_id, position, remains))
    numbers, there = np.flatnonzero(batch_acks.words(before ^ remains)), batch_acks.words(remains)
    words, known = np.zeros(len(numbers), np.uint64), numbers < len(there)
    words[known] = there[numbers[known]]
    owner.note_in_order(found, journal_ops.parts_acknowledged(found.partition_id, subscription_id, position, numbers, words))


def _acknowledge_part_of_view(owner: OwnerContext, subscription: Subscription, ledger: CompactedLedger, entry_id: int, words: memoryview) -> None:
    """Of a batch that only a compacted view has; it counts in no total."""
    if not (bits := ledger.bits_of(entry_id)):
        return
    before = subscription.cursor.parts.get(ledger.ledger_id, {}).get(entry_id)
    remains = subscription.cursor.acknowledge_part(ledger, entry_id, bits.bit_length(), batch_acks.bits_of(words, bits.bit_length()) & bits)
    if not remains:
        move(owner, subscription, Acks(single={ledger.ledger_id: [entry_id]}), ACKNOWLEDGED)
    elif remains != before:
        _note_part(owner, subscription, (ledger.ledger_id, entry_id), before or 0, remains)


def _keeper(subscription: Subscription) -> Partition | Subscription:
    """Who knows the ledgers that it may acknowledge something of: with a compacted view there are more than the partition's."""
    return subscription.partition if subscription.partition.view is None else subscription


def acknowledge(owner: OwnerContext, by_consumer: dict[int, Acks]) -> None:
    """Move cursors.  Ids that never existed, or are acknowledged already, change nothing.

    by_consumer: by handle.  What consumers of one subscription say is dealt with together.
    """
    of_subscription: dict[Subscription, Acks] = {}
    for handle, acks in by_consumer.items():
        if (consumer := owner.consumers.get(handle)) is None:
            continue
        consumer.acked_ms = owner.now_ms
        if consumer.subscription.partition.is_persistent:
            before = of_subscription.setdefault(consumer.subscription, acks)
            if before is not acks:
                before.add(acks)
        for request_id in acks.requests:
            owner.answer_needs_sync()
            owner.outbox(consumer.worker).reply(consumer.connection, responses.ack_response(consumer.consumer_id, request_id))
    for subscription, acks in of_subscription.items():
        if subscription.is_spread and acks.cumulative:      # as Pulsar has it: nothing happens
            owner.counters.add("acks_ignored", len(acks.cumulative))
        else:
            keeper = _keeper(subscription)
            acks.up_to = next((position for position in sorted(acks.cumulative, reverse=True) if keeper.has(position)), NOWHERE)
        before = subscription.cursor.totals[ACKNOWLEDGED]
        move(owner, subscription, acks, ACKNOWLEDGED)
        if not subscription.is_spread and (active := subscription.dispatcher.active) is not None:
            active.acknowledged += subscription.cursor.totals[ACKNOWLEDGED] - before


def move(owner: OwnerContext, subscription: Subscription, acks: Acks, reason: int) -> None:
    """These entries do not have to be delivered any more, for one of cursor.REASONS."""
    found, cursor = subscription.partition, subscription.cursor
    before = cursor.mark_delete
    if acks.up_to > before:
        _acknowledge_up_to(owner, subscription, acks.up_to, reason)
    for ledger_id, entries in acks.single.items():
        _acknowledge_single(owner, subscription, ledger_id, entries, reason)
    if cursor.bitmaps or cursor.mark_delete[0] != found.open_ledger.ledger_id:
        subscription.advance()
    owner.changed[found] = None
    if reason == EXPIRED:
        subscription.expired_ms = owner.now_ms
    if cursor.mark_delete != before:
        subscription.advanced_ms = owner.now_ms
        subscription.read = max(subscription.read, (cursor.mark_delete[0], cursor.mark_delete[1] + 1))
        if subscription.is_durable:
            owner.note(found, journal_ops.mark_delete(found.partition_id, cursor.subscription_id, cursor.mark_delete))
            if len(found.ledgers) > 1:
                owner.wake_trimming(found)
    owner.acknowledged[found] = None
    if found.is_closed or (subscription.dispatcher is not None and subscription.dispatcher.is_woken_by_acknowledgements):
        owner.wake(found)


def _acknowledge_up_to(owner: OwnerContext, subscription: Subscription, position: Position, reason: int) -> None:
    if _keeper(subscription).has(position):
        cursor = subscription.cursor
        owner.count(subscription, reason, _messages_up_to(subscription, position))
        for passed in [ledger_id for ledger_id in cursor.bitmaps if ledger_id < position[0]]:
            cursor.forget(passed)
        cursor.mark_delete = position
        if subscription.dispatcher is not None:
            subscription.dispatcher.acknowledged_up_to(position)
        if cursor.parts:
            cursor.forget_acknowledged_parts()


def _messages_up_to(subscription: Subscription, position: Position) -> int:
    """How many there are that are not acknowledged."""
    cursor, count = subscription.cursor, 0
    for ledger in subscription.partition.ledgers_from(cursor.mark_delete[0]):
        if ledger.ledger_id > position[0]:
            break
        count += cursor.unacknowledged_messages(ledger, 0, position[1] + 1 if ledger.ledger_id == position[0] else ledger.entries)
    return count


def _acknowledge_single(owner: OwnerContext, subscription: Subscription, ledger_id: int, entries: list[int] | Rows, reason: int) -> None:
    found, cursor = subscription.partition, subscription.cursor
    ledger = _keeper(subscription).find(ledger_id)
    if ledger is None:
        return
    if cursor.mark_delete[0] != ledger_id:
        subscription.advance()      # perhaps to where this ledger begins
    known = _existing(ledger, entries)
    if cursor.acknowledge_in_order(ledger, known):
        return _acknowledged(owner, subscription, ledger, known, reason)
    fresh = cursor.acknowledge(ledger, np.asarray(known, np.int64))
    _acknowledged(owner, subscription, ledger, fresh, reason)
    if subscription.is_durable and len(fresh):
        owner.note_many(found, journal_ops.acknowledged(found.partition_id, cursor.subscription_id, ledger_id, fresh))


def note_counts(owner: OwnerContext, subscription: Subscription, kind: int, ledger_id: int, entries: NDArray[np.int64],
                counts: NDArray[np.uint16]) -> None:
    """Note counts (n,) of entries (n,) for the journal.  kind: format.REDELIVERED or format.DIED"""
    if subscription.is_durable:
        found = subscription.partition
        owner.note_many(found, journal_ops.counted(kind, found.partition_id, subscription.cursor.subscription_id, ledger_id, entries, counts))


def _acknowledged(owner: OwnerContext, subscription: Subscription, ledger: Ledger, entries: list[int] | NDArray[np.int64], reason: int) -> None:
    """These were not acknowledged before."""
    if not len(entries):
        return
    cursor = subscription.cursor
    if ledger.view:      # what only a compacted view has is counted nowhere
        return cursor.forget_parts(ledger.ledger_id, entries)
    if not cursor.parts and int(entries[-1]) - int(entries[0]) == len(entries) - 1:
        messages = ledger.messages_in(int(entries[0]), int(entries[-1]) + 1)
    else:
        messages = int(subscription.messages(ledger, np.asarray(entries, np.int64)).sum())
    owner.count(subscription, reason, messages)
    if subscription.dispatcher is not None:
        subscription.dispatcher.acknowledged(ledger, entries)
    if cursor.parts:
        cursor.forget_parts(ledger.ledger_id, entries)


def _existing(ledger: Ledger, entries: list[int] | NDArray[np.uint64]) -> list[int] | NDArray[np.int64]:
    """Those that the ledger has, sorted, each once."""
    if isinstance(entries, list):
        return sorted({entry_id for entry_id in entries if entry_id < ledger.entries})
    known = entries[entries < ledger.entries].astype(np.int64)
    return known if (np.diff(known) > 0).all() else np.unique(known)


def pass_over(owner: OwnerContext, subscription: Subscription, began: Position) -> None:
    """What the view that its consumers read does not have, from there up to the read position, is skipped."""
    cursor, read = subscription.cursor, subscription.read
    for ledger in subscription.view.ledgers_from(began[0]):
        if ledger.ledger_id > read[0]:
            break
        first = began[1] if ledger.ledger_id == began[0] else 0
        end = min(read[1], ledger.entries) if ledger.ledger_id == read[0] else ledger.entries
        if first < end:
            gone = ~cursor.acknowledged(ledger.ledger_id, first, end)
            gone[ledger.kept_of(first, end) - first] = False
            entries = np.flatnonzero(gone) + first
            if len(entries):
                move(owner, subscription, Acks(single={ledger.ledger_id: entries}), SKIPPED)
        if end == ledger.entries:
            ledger.close()
    for ledger_id in [ledger_id for ledger_id in cursor.bitmaps if ledger_id < cursor.mark_delete[0]]:
        cursor.forget(ledger_id)
    if cursor.mark_delete >= subscription.view.horizon:
        subscription.view = None


def skip_to(owner, subscription: Subscription, position: Position, reason: int = SKIPPED) -> None:
    """Acknowledge everything up to a position.  Consumers go on behind it."""
    if position > subscription.cursor.mark_delete:
        move(owner, subscription, Acks(up_to=position), reason)
        owner.answer_needs_sync()
        owner.wake(subscription.partition)
