"""Pending acknowledgements: transactions that acknowledge on a subscription, until they commit or abort.

    withhold            a transaction acknowledges entries: consumers hold them no longer, and do not get them again
    end                 COMMIT acknowledges them; ABORT gives them back to consumers
    messages_of         messages that wait for the end of one transaction, for people

Plain acknowledgements take effect at once, also for what is pending; an ABORT then gives nothing back.
"""
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from geminga.storage import format
from geminga.storage.cursors.cursor import ACKNOWLEDGED
from geminga.storage.cursors.transaction_acks import TransactionAcks
from geminga.storage.cursors.withheld import Withheld
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import NOWHERE, Position, entries_up_to
from geminga.storage.open_topics import acknowledge, cleared_backlogs, dead_letters
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import SPREAD, EntriesOfLedger, Subscription

# -- acknowledgements of an open transaction

def withhold(decisions: Decisions, subscription: Subscription, transaction: int, asked: TransactionAcks) -> int:
    """Withhold entries from consumers until the transaction ends; return how many messages consumers held of them.

    asked: acknowledgements of what is neither acknowledged nor pending.  The dispatcher of a spread subscription counts
    messages itself; those of whole entries are not in the sum then.
    """
    partition = subscription.partition
    assert isinstance(partition, Partition), subscription
    dispatcher = subscription.dispatcher      # None if only the mover of dead letters is there
    if not (asked.entries or asked.parts or asked.up_to != NOWHERE):
        return 0
    withheld = subscription.withheld = subscription.withheld or Withheld()
    if transaction not in withheld.by_transaction:
        acks = TransactionAcks()
        if subscription.is_durable:
            assert partition.transactions is not None, partition
            acks = partition.transactions.of(transaction).acks_of(subscription.cursor.subscription_id)
        withheld.add(transaction, acks)
    messages = 0
    for ledger_id in asked.entries:
        messages += _withhold_entries(subscription, withheld, transaction, ledger_id, asked.in_ledger(ledger_id))
    for ledger_id, batches in asked.parts.items():
        for entry_id, bits in batches.items():
            messages += _withhold_part(subscription, withheld, transaction, (ledger_id, entry_id), bits)
    if asked.up_to != NOWHERE:
        if dispatcher is not None:
            dispatcher.acknowledged_up_to(asked.up_to)
        withheld.set_up_to(transaction, asked.up_to)
    if subscription.is_durable and partition.transactions is not None:
        if role := partition.transactions.note_role(transaction, partition.partition_id):
            decisions.note(partition, role)
        for op in asked.ops(transaction, partition.partition_id, subscription.cursor.subscription_id):
            decisions.note(partition, op)
    decisions.changed[partition] = None
    if dispatcher is not None and dispatcher.is_woken_by_acknowledgements:
        decisions.wake(partition)
    return messages


def _withhold_entries(subscription: Subscription, withheld: Withheld, transaction: int, ledger_id: int,
                      entries: NDArray[np.int64]) -> int:
    """Withhold entries (n,) of a ledger, ascending; return the number of their messages, unless it is spread."""
    ledger, messages = subscription.find(ledger_id), 0
    if isinstance(ledger, Ledger):
        if not subscription.is_spread:
            messages = int(subscription.messages(ledger, entries).sum())
        if subscription.dispatcher is not None:      # it counts them, so before they are withheld
            subscription.dispatcher.acknowledged(ledger, entries)
    withheld.add_entries(transaction, ledger_id, entries)
    return messages


def _withhold_part(subscription: Subscription, withheld: Withheld, transaction: int, position: Position,
                   bits: int) -> int:
    """Withhold messages of a batch; return how many these are."""
    ledger_id, entry_id = position
    ledger = subscription.find(ledger_id)
    assert ledger is not None, (subscription, position)
    held = int(subscription.messages(ledger, np.array([entry_id]))[0])
    withheld.add_part(transaction, ledger_id, entry_id, bits)
    if isinstance(ledger, Ledger):
        acknowledge.tell_part(subscription, ledger, entry_id, held)
    return bits.bit_count()


# -- the end of a transaction

def end(decisions: Decisions, partition: Partition, transactions: list[int], *, commits: bool) -> None:
    """Acknowledge, or give back, all that transactions have acknowledged on subscriptions of the partition.

    The caller notes the ends of the transactions behind the ops of this.
    """
    for subscription in list(partition.subscriptions.values()):
        if (withheld := subscription.withheld) is None:
            continue
        if mine := [transaction for transaction in transactions if transaction in withheld.by_transaction]:
            if commits:
                _commit(decisions, subscription, withheld, mine)
            else:
                for transaction in mine:
                    _abort(decisions, subscription, withheld, transaction)
            committed, aborted = subscription.transactions_ended
            subscription.transactions_ended = (
                (committed + len(mine), aborted) if commits else (committed, aborted + len(mine)))
            decisions.wake(partition)


def _remove(subscription: Subscription, withheld: Withheld, transaction: int) -> None:
    withheld.remove(transaction)
    if not withheld.by_transaction:
        subscription.withheld = None


def _commit(decisions: Decisions, subscription: Subscription, withheld: Withheld, transactions: list[int]) -> None:
    """Acknowledge what transactions have acknowledged: whole entries of all together, then messages of batches."""
    whole = Acks(up_to=max(withheld.by_transaction[transaction].up_to for transaction in transactions))
    for transaction in transactions:
        whole.add(Acks(single={ledger_id: list(entries) for ledger_id, entries
                               in withheld.by_transaction[transaction].entries.items()}))
    acknowledge.move(decisions, subscription, whole, ACKNOWLEDGED)
    for transaction in transactions:
        _commit_parts(decisions, subscription, withheld.by_transaction[transaction])
        _remove(subscription, withheld, transaction)


def _commit_parts(decisions: Decisions, subscription: Subscription, acks: TransactionAcks) -> None:
    for ledger_id, batches in acks.parts.items():
        if isinstance(ledger := subscription.find(ledger_id), Ledger):
            for entry_id, bits in batches.items():
                cleared_backlogs.acknowledge_part(
                    decisions, subscription, ledger, entry_id, (1 << int(ledger.messages[entry_id])) - 1 & ~bits)
    for ledger_id, entry_id, bits in _parts(subscription, acks):
        ledger = subscription.find(ledger_id)
        if isinstance(ledger, CompactedLedger):
            acknowledge.acknowledge_part_of_view(
                decisions, subscription, ledger, entry_id, ledger.bits_of(entry_id) & ~bits)
        elif isinstance(ledger, Ledger):
            all_of_them = (1 << int(ledger.messages[entry_id])) - 1
            acknowledge.acknowledge_messages(decisions, subscription, ledger, entry_id, all_of_them & ~bits)


def _parts(subscription: Subscription, acks: TransactionAcks) -> Iterator[tuple[int, int, int]]:
    """Yield (ledger id, entry id, bits) of each batch with messages that only a transaction has acknowledged."""
    cursor = subscription.cursor
    for ledger_id, batches in acks.parts.items():
        for entry_id, bits in batches.items():
            left = bits & cursor.parts.get(ledger_id, {}).get(entry_id, bits)
            if left and not cursor.is_acknowledged(ledger_id, entry_id):
                yield ledger_id, entry_id, left


def _abort(decisions: Decisions, subscription: Subscription, withheld: Withheld, transaction: int) -> None:
    """Give acknowledged entries back.

    On Shared and Key_Shared subscriptions these are delivered again, and count as redelivered.  On others, everything
    unacknowledged is delivered again, in order; but not if the transaction has only acknowledged cumulatively, as long
    as the consumer has neither asked for redelivery nor come anew.
    """
    acks, cursor, dispatcher = withheld.by_transaction[transaction], subscription.cursor, subscription.dispatcher
    is_spread = (cursor.last_type if subscription.kind is None else subscription.kind) in SPREAD
    is_passed = withheld.cumulative == transaction and withheld.is_passed
    entries = {ledger_id: set(some) for ledger_id, some in acks.entries.items()}
    for ledger_id, entry_id, _ in _parts(subscription, acks):
        entries.setdefault(ledger_id, set()).add(entry_id)
        ledger = subscription.partition.find(ledger_id)
        if isinstance(ledger, Ledger) and dispatcher is not None:
            dispatcher.acknowledged(ledger, [entry_id])      # whoever holds the rest of the batch gets it again whole
    if is_spread and acks.up_to != NOWHERE:
        for each in subscription.partition.ledgers_from(cursor.mark_delete[0]):
            if stop := entries_up_to(acks.up_to, each.ledger_id, each.entries):
                entries.setdefault(each.ledger_id, set()).update(cursor.all_unacknowledged(each, stop).tolist())
    _remove(subscription, withheld, transaction)
    back = list(_deliverable(subscription, entries))
    if is_spread:
        for ledger_id, some in back:
            counts = cursor.redeliveries.add(ledger_id, some)
            acknowledge.note_counts(decisions, subscription, format.REDELIVERED, ledger_id, some, counts)
            dead_letters.count(decisions, subscription, ledger_id, some)
        back = [(ledger_id, left) for ledger_id, some in back if len(left := subscription.left_of(ledger_id, some))]
    if dispatcher is not None and (back or (is_passed and not is_spread)):
        dispatcher.released(back)


def _deliverable(subscription: Subscription, entries: dict[int, set[int]]) -> Iterator[EntriesOfLedger]:
    """Yield (ledger id, entries) of those that are neither acknowledged, nor parked, nor withheld any more."""
    for ledger_id, some in entries.items():
        if some and subscription.find(ledger_id) is not None:
            left = subscription.left_of(ledger_id, np.array(sorted(some), np.int64))
            if len(left):
                yield ledger_id, left


# -- for people

def messages_of(subscription: Subscription, acks: TransactionAcks) -> int:
    """Return how many unacknowledged messages wait for the end of one transaction."""
    cursor, count = subscription.cursor, 0
    for ledger in subscription.partition.ledgers:
        ledger_id = ledger.ledger_id
        if end_of := entries_up_to(acks.up_to, ledger_id, ledger.entries):
            count += cursor.unacknowledged_messages(ledger, 0, end_of)
        if len(entries := acks.in_ledger(ledger_id)):
            is_left = ~cursor.acknowledged(ledger_id, 0, int(entries[-1]) + 1)[entries] & (entries >= end_of)
            count += int(cursor.messages_of(ledger, entries[is_left]).sum())
    return count + sum(bits.bit_count() for ledger_id, entry_id, bits in _parts(subscription, acks)
                       if (ledger_id, entry_id) > acks.up_to)
