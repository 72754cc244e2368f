"""Acknowledgements: what the ACK_ROWs of a pass say, by subscription, and how that moves cursors.

    acknowledge_in_order               whole entries right behind mark-delete positions, as nearly all are
    acks_by_consumer, acknowledge      whole entries, of all consumers in one pass
    acknowledge_part, begin_within     messages of one batch
    move                               whole entries of one subscription, for any of cursor.REASONS
    skip_to, skip_compacted            entries that a subscription passes over

Few rows are read one by one, many as arrays (proto/rows.py has the reason).
"""
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope, responses
from geminga.proto.rows import Row, Rows
from geminga.storage.cursors import batch_acks
from geminga.storage.cursors.cursor import ACKNOWLEDGED, EXPIRED, SKIPPED
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import NOWHERE, Position, entries_up_to
from geminga.storage.ledgers.readable import ReadableLedger
from geminga.storage.open_topics import cleared_backlogs
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Dispatcher, EntryIds, Subscription

FEW_MAX = 64        # acknowledgements of a pass that are cheaper one by one than as arrays
_ACK = envelope.STRUCTS[envelope.ACKS]


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


def acks_by_consumer(clients: Clients, rows: Rows) -> dict[int, Acks]:
    """{consumer's handle: its acknowledgements} of many rows (n,) ACK_ROW.

    It does not matter which consumer of a subscription acknowledges an entry, if none wants a receipt.  So all entries
    are put down to one consumer when all rows are of one subscription.
    """
    consumers = rows["consumer"]
    distinct = _distinct(consumers)
    if len(distinct) > 1 and not rows["flags"].any() and _share(clients, distinct):
        return {distinct[0]: _summarise(rows)} | {consumer: Acks() for consumer in distinct[1:]}
    if len(distinct) * FEW_MAX > len(rows):      # each consumer has too few rows to be worth arrays
        return few_by_consumer(_ACK.iter_unpack(rows))
    return {consumer: _summarise(rows[consumers == consumer] if len(distinct) > 1 else rows) for consumer in distinct}


def few_by_consumer(rows: Iterable[Row]) -> dict[int, Acks]:
    """{consumer's handle: its acknowledgements} of ACK_ROWs, one by one."""
    by_consumer: dict[int, Acks] = {}
    for consumer, ledger_id, entry_id, request_id, flags, _ in rows:
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


def _share(clients: Clients, handles: list[int]) -> bool:
    """Whether consumers with these handles are there, all of one subscription."""
    consumers = [clients.consumers.by_handle.get(handle) for handle in handles]
    return len({consumer and consumer.subscription for consumer in consumers}) == 1 and consumers[0] is not None


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

def acknowledge_part(decisions: Decisions, consumer: Consumer, position: Position, words: memoryview) -> None:
    """Acknowledge messages of the batch at position.

    words: an ack set, little-endian 64-bit words; a bit for each message that is not acknowledged, of those that the
    consumer was sent.
    """
    subscription = consumer.subscription
    partition, cursor = subscription.partition, subscription.cursor
    if not isinstance(partition, Partition):
        return
    ledger_id, entry_id = position
    ledger = known(partition, subscription).find(ledger_id)
    if ledger is None or not 0 <= entry_id < ledger.entries:
        return
    if partition.cleared and isinstance(ledger, Ledger):
        left = left_of(subscription, ledger, entry_id, words, int(ledger.messages[entry_id]))
        cleared_backlogs.acknowledge_part(decisions, subscription, ledger, entry_id, left)
    if cursor.is_acknowledged(ledger_id, entry_id):
        return
    if isinstance(ledger, CompactedLedger):
        left = left_of(subscription, ledger, entry_id, words, ledger.bits_of(entry_id).bit_length())
        return acknowledge_part_of_view(decisions, subscription, ledger, entry_id, left)
    assert isinstance(ledger, Ledger), (subscription, ledger)
    left = left_of(subscription, ledger, entry_id, words, int(ledger.messages[entry_id]))
    count = acknowledge_messages(decisions, subscription, ledger, entry_id, left)
    if not subscription.is_spread:
        consumer.acknowledged += count


def left_of(subscription: Subscription, ledger: Ledger | CompactedLedger, entry_id: int, words: bytes | memoryview,
            messages: int) -> int:
    """Return bits of a batch's messages, 1 = not acknowledged, from the words of an ack set.

    A client that was sent the messages that match a filter counts these only.
    """
    left = batch_acks.bits_of(words, messages)
    return left if subscription.sieve is None else subscription.sieve.widened(ledger, entry_id, left)


def acknowledge_messages(
    decisions: Decisions, subscription: Subscription, ledger: Ledger, entry_id: int, left: int,
    reason: int = ACKNOWLEDGED,
) -> int:
    """Acknowledge messages of an unacknowledged batch; return how many were not acknowledged before.

    left: bits of the batch's messages, 1 = not acknowledged.  reason: one of cursor.REASONS.
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
        move(decisions, subscription, Acks(single={ledger_id: [entry_id]}), reason)
    elif count:
        decisions.count(subscription, reason, count)
        decisions.changed[partition] = None
        tell_part(subscription, ledger, entry_id, held)
        _note_part(decisions, subscription, (ledger_id, entry_id), before or 0, remains)
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


def begin_within(decisions: Decisions, subscription: Subscription, position: Position, words: Sequence[int], *,
                 by_client: bool = False) -> None:
    """Have the subscription begin within the batch at position, the first entry behind its mark-delete position.

    words: an ack set as in the protocol, signed; a bit for each message that is to be delivered.  Words without a bit
    of the batch, or for an entry that does not exist, are ignored.  by_client: they are of a client, which knows only
    the messages that match the subscription's filter.
    """
    (ledger_id, entry_id), cursor = position, subscription.cursor
    ledger = subscription.find(ledger_id)
    if ledger is None or not 0 <= entry_id < ledger.entries or cursor.is_acknowledged(ledger_id, entry_id):
        return
    if isinstance(ledger, CompactedLedger):
        messages = ledger.bits_of(entry_id).bit_length()
    else:
        messages = int(ledger.column("messages")[entry_id])
    assert isinstance(ledger, Ledger | CompactedLedger), (subscription, ledger)
    data = np.array(words[:-(-messages // 64)], np.int64).tobytes()
    remains = (left_of(subscription, ledger, entry_id, data, messages) if by_client
               else batch_acks.bits_of(data, messages))
    skipped = messages - remains.bit_count()
    if not remains or not skipped:
        return
    cursor.acknowledge_part(ledger, entry_id, messages, remains)
    if not isinstance(ledger, CompactedLedger):      # messages that only a view has are in no total
        decisions.count(subscription, SKIPPED, skipped)
    _note_part(decisions, subscription, position, 0, remains)


def _note_part(decisions: Decisions, subscription: Subscription, position: Position, before: int, remains: int) -> None:
    """Note what is left of a batch for the journal; see Decisions.note_part."""
    if subscription.is_durable:
        assert isinstance(subscription.partition, Partition), subscription
        decisions.note_part(
            subscription.partition, subscription.cursor.subscription_id, position, before, remains)


def acknowledge_part_of_view(
    decisions: Decisions, subscription: Subscription, ledger: CompactedLedger, entry_id: int, left: int
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
        move(decisions, subscription, Acks(single={ledger.ledger_id: [entry_id]}), ACKNOWLEDGED)
    elif remains != before:
        _note_part(decisions, subscription, (ledger.ledger_id, entry_id), before or 0, remains)


# -- whole entries

def known(partition: Partition, subscription: Subscription) -> Partition | Subscription:
    """The object whose `find` and `has` know all ledgers of which entries may be acknowledged.

    With a compacted view, that is the subscription: the view may have ledgers that the partition has deleted.
    """
    return partition if partition.view is None else subscription


def acknowledge_in_order(decisions: Decisions, clients: Clients, rows: Iterable[Row]) -> list[Row]:
    """Move mark-delete positions within open ledgers; return the ACK_ROWs that ask for more than that.

    They come in any order, as acknowledgements add up to the same in each.
    """
    others: list[Row] = []
    up_to: dict[int, tuple[int, int, int]] = {}      # by consumer: (ledger, first entry or -1, last entry)
    of_consumer: dict[int, list[Row]] = {}
    for row in rows:
        handle, ledger_id, entry_id, _, flags, _ = row
        known = up_to.get(handle)
        if flags & ~envelope.CUMULATIVE:
            others.append(row)
        elif known is None:
            up_to[handle] = ledger_id, -1 if flags else entry_id, entry_id
            of_consumer[handle] = [row]
        elif known[0] == ledger_id and (entry_id >= known[2] if flags else entry_id == known[2] + 1):
            up_to[handle] = ledger_id, -1 if flags else known[1], entry_id
            of_consumer[handle].append(row)
        else:
            others.append(row)
    for handle, (ledger_id, first, last) in up_to.items():
        consumer = clients.consumers.by_handle.get(handle)
        if consumer is not None and not _moved_on(decisions, consumer, ledger_id, first, last):
            others += of_consumer[handle]
    return others


def _moved_on(decisions: Decisions, consumer: Consumer, ledger_id: int, first: int, last: int) -> bool:
    """Move a mark-delete position to an entry of the same ledger, the open one, if there is nothing else to it.

    first: the entry that has to be right behind the position; -1: any.  Returns False if nothing was done.
    """
    subscription, now_ms = consumer.subscription, decisions.now_ms
    partition, cursor, dispatcher = subscription.partition, subscription.cursor, subscription.dispatcher
    if not isinstance(partition, Partition) or cursor.bitmaps or cursor.parts or subscription.is_spread \
            or subscription.view is not None or subscription.withheld is not None or partition.view is not None \
            or partition.cleared:
        return False
    at, ledger = cursor.mark_delete, partition.open_ledger
    if not (at[0] == ledger_id == ledger.ledger_id and at[1] < last < ledger.entries) \
            or not (first < 0 or first == at[1] + 1):
        return False
    assert dispatcher is not None, subscription
    if last == ledger.entries - 1:      # nearly always: no entry has to be looked at
        messages = partition.next_message - cursor.since - sum(cursor.totals)
    else:
        messages = ledger.messages_in(at[1] + 1, last + 1)
    consumer.acked_ms = subscription.advanced_ms = now_ms
    cursor.mark_delete = ledger_id, last
    if subscription.read <= cursor.mark_delete:
        subscription.read = ledger_id, last + 1
    decisions.count(subscription, ACKNOWLEDGED, messages)
    if (active := dispatcher.active) is not None:
        active.acknowledged += messages
    _note_moved(decisions, partition, subscription)
    decisions.changed[partition] = decisions.acknowledged[partition] = None
    if partition.is_closed:
        decisions.wake(partition)
    return True


def _refuse(decisions: Decisions, clients: Clients, handle: int, acks: Acks) -> None:
    """Refuse acknowledgements that were on the way when the owner closed their consumer."""
    if acks.requests and handle in clients.consumers.closed:
        worker, connection, consumer_id = clients.consumers.closed[handle]
        for request_id in acks.requests:
            decisions.outbox(worker).reply(
                connection, responses.ack_refused(consumer_id, request_id), request_id=request_id)


def acknowledge(decisions: Decisions, clients: Clients, by_consumer: dict[int, Acks]) -> None:
    """Move cursors, and answer requests.  Ids that never existed, or are acknowledged already, change nothing.

    by_consumer: by handle.  Acknowledgements of all consumers of one subscription are applied together.
    """
    of_subscription: dict[Subscription, Acks] = {}
    for handle, acks in by_consumer.items():
        if (consumer := clients.consumers.by_handle.get(handle)) is None:
            _refuse(decisions, clients, handle, acks)
            continue
        consumer.acked_ms = decisions.now_ms
        if consumer.subscription.partition.is_persistent:
            earlier = of_subscription.setdefault(consumer.subscription, acks)
            if earlier is not acks:
                earlier.add(acks)
        for request_id in acks.requests:
            decisions.answer_needs_sync()
            decisions.outbox(consumer.worker).reply(
                consumer.connection, responses.ack_response(consumer.consumer_id, request_id), request_id=request_id)
    for subscription, acks in of_subscription.items():
        partition, dispatcher, totals = subscription.partition, subscription.dispatcher, subscription.cursor.totals
        assert isinstance(partition, Partition) and dispatcher is not None, subscription
        if subscription.is_spread and acks.cumulative:
            _acknowledge_held(decisions, dispatcher, acks)
        else:
            has = known(partition, subscription).has
            acks.up_to = next(
                (position for position in sorted(acks.cumulative, reverse=True) if has(position)), NOWHERE)
        before = totals[ACKNOWLEDGED]
        move(decisions, subscription, acks, ACKNOWLEDGED)
        if dispatcher.hears_clients:
            dispatcher.heard(acks.single)
        if not subscription.is_spread and (active := dispatcher.active) is not None:
            active.acknowledged += totals[ACKNOWLEDGED] - before


def _acknowledge_held(decisions: Decisions, dispatcher: Dispatcher, acks: Acks) -> None:
    """Have cumulative acknowledgements mean entries of their consumers; ignore them if there are none, as in Pulsar."""
    if held := dispatcher.held_up_to(max(acks.cumulative)):
        acks.add(Acks(single=held))
    else:
        decisions.counters.add("acks_ignored", len(acks.cumulative))


def move(decisions: Decisions, subscription: Subscription, acks: Acks, reason: int) -> None:
    """Acknowledge `acks.up_to` and `acks.single`, for one of cursor.REASONS: the subscription needs these no more."""
    partition, cursor = subscription.partition, subscription.cursor
    assert isinstance(partition, Partition), subscription      # nothing is acknowledged on non-persistent topics
    before = cursor.mark_delete
    if partition.cleared and reason == ACKNOWLEDGED:
        cleared_backlogs.acknowledge(decisions, subscription, before, acks.up_to, acks.single)
    if acks.up_to > before:
        _acknowledge_up_to(decisions, partition, subscription, acks.up_to, reason)
    for ledger_id, entries in acks.single.items():
        _acknowledge_single(decisions, partition, subscription, ledger_id, entries, reason)
    if cursor.bitmaps or cursor.mark_delete[0] != partition.open_ledger.ledger_id:
        subscription.advance()
    decisions.changed[partition] = None
    if reason == EXPIRED:
        subscription.expired_ms = decisions.now_ms
    if cursor.mark_delete != before:
        assert cursor.mark_delete > before, (subscription, before)
        subscription.advanced_ms = decisions.now_ms
        subscription.read = max(subscription.read, (cursor.mark_delete[0], cursor.mark_delete[1] + 1))
        _note_moved(decisions, partition, subscription)
    decisions.acknowledged[partition] = None
    dispatcher = subscription.dispatcher
    if partition.is_closed or (dispatcher is not None and dispatcher.is_woken_by_acknowledgements):
        decisions.wake(partition)


def _note_moved(decisions: Decisions, partition: Partition, subscription: Subscription) -> None:
    """Note for the journal, and for later steps of the pass, that a mark-delete position has moved."""
    cursor = subscription.cursor
    if cursor.is_durable:
        decisions.note(partition, journal_ops.mark_delete(
            partition.partition_id, cursor.subscription_id, cursor.mark_delete))
        if len(partition.ledgers) > 1:
            decisions.wake_trimming(partition)
        if subscription.is_replicated:
            decisions.moved[subscription] = None


def _acknowledge_up_to(
    decisions: Decisions, partition: Partition, subscription: Subscription, position: Position, reason: int
) -> None:
    """Move the mark-delete position to a position behind it, if that exists."""
    if known(partition, subscription).has(position):
        cursor = subscription.cursor
        decisions.count(subscription, reason, _messages_up_to(subscription, position))
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
    decisions: Decisions, partition: Partition, subscription: Subscription, ledger_id: int, entries: EntryIds,
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
        return _acknowledged(decisions, subscription, ledger, existing, reason)
    fresh = cursor.acknowledge(ledger, np.asarray(existing, np.int64))
    _acknowledged(decisions, subscription, ledger, fresh, reason)
    if subscription.is_durable and len(fresh):
        # The end of a transaction acknowledges at any time, perhaps behind a reset of the cursor in the same pass.
        note = decisions.note_many if subscription.withheld is None else decisions.note_in_order
        note(partition, journal_ops.acknowledged(partition.partition_id, cursor.subscription_id, ledger_id, fresh))


def note_counts(
    decisions: Decisions, subscription: Subscription, kind: int, ledger_id: int, entries: NDArray[np.int64],
    counts: NDArray[np.uint16],
) -> None:
    """Note counts (n,) of entries (n,) for the journal.  kind: format.REDELIVERED or format.DIED"""
    if subscription.is_durable:
        partition = subscription.partition
        assert isinstance(partition, Partition), subscription
        decisions.note_many(partition, journal_ops.counted(
            kind, partition.partition_id, subscription.cursor.subscription_id, ledger_id, entries, counts))


def _acknowledged(
    decisions: Decisions, subscription: Subscription, ledger: ReadableLedger, entries: list[int] | NDArray[np.int64],
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
    decisions.count(subscription, reason, messages)
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

def skip_compacted(decisions: Decisions, subscription: Subscription, began: Position) -> None:
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
                move(decisions, subscription, Acks(single={ledger.ledger_id: entries}), SKIPPED)
        if end == ledger.entries:
            ledger.close()
    for ledger_id in [ledger_id for ledger_id in cursor.bitmaps if ledger_id < cursor.mark_delete[0]]:
        cursor.forget(ledger_id)
    if cursor.mark_delete >= view.horizon:
        subscription.view = None


def skip_to(decisions: Decisions, subscription: Subscription, position: Position, reason: int = SKIPPED) -> None:
    """Acknowledge everything up to a position.  Consumers go on behind it."""
    if position > subscription.cursor.mark_delete:
        move(decisions, subscription, Acks(up_to=position), reason)
        decisions.answer_needs_sync()
        decisions.wake(subscription.partition)
