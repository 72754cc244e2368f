"""Dead letters: which entries of a subscription go to the dead letter topic, and how they get to whoever moves them.

    count       entries were given back or died over: those with too many deliveries are dead
    bury        entries are dead: consumers hold them no longer, and no consumer gets them
    revive      what is dead may be delivered again, because the policy has changed
    give        a mover gets dead entries
    take back   what a redrive has sent is dead again, unless somebody has it, as long as the mover that asks is there

The mover is a consumer of the process `geminga-replicator` (workers/dead_letters/), which no dispatcher knows.  It
publishes an entry's messages to the dead letter topic and acknowledges the entry here in one transaction.
"""
import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope, names
from geminga.proto.sends import IS_CHUNK
from geminga.storage.cursors.batch_acks import words as words_of
from geminga.storage.cursors.dead_entries import DELIVERIES, REASON_SHIFT, TAKEN_BACK
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import SPREAD, Consumer, EntriesOfLedger, Subscription


def count(decisions: Decisions, subscription: Subscription, ledger_id: int, entries: NDArray[np.int64]) -> None:
    """Bury those of the entries (n,) of a ledger that were given back, or died over, too often for the policy."""
    if subscription.counts_deliveries:
        bury(decisions, subscription, ledger_id, overdelivered(subscription, ledger_id, entries), DELIVERIES)


def overdelivered(subscription: Subscription, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of the entries (n,) of a ledger that were given back, or died over, too often for the policy."""
    counts = np.zeros(len(entries), np.int64)
    for kind in (subscription.cursor.redeliveries, subscription.cursor.deaths):
        if (some := kind.of(ledger_id, entries)) is not None:
            counts += some
    return entries[counts > subscription.partition.policies.dead_letter_redeliveries]


def bury(decisions: Decisions, subscription: Subscription, ledger_id: int, entries: NDArray[np.int64], reason: int, *,
         by_client: bool = True) -> int:
    """Make unacknowledged entries (n,) of a ledger dead letters; return how many were none before.

    Chunks of a message never are: their message could not be put together in another topic.  by_client: as for
    `Dispatcher.acknowledged`.
    """
    partition, cursor = subscription.partition, subscription.cursor
    ledger = partition.find(ledger_id)
    if not len(entries) or not isinstance(ledger, Ledger):
        return 0
    fresh = cursor.dead.add(ledger_id, _whole(ledger, _left_of(subscription, ledger_id, entries)), reason)
    if len(fresh):
        if subscription.dispatcher is not None:
            subscription.dispatcher.acknowledged(ledger, fresh, by_client=by_client)
        decisions.counters.add("dead_letters", len(fresh))
        decisions.wake(partition)
    return len(fresh)


def _whole(ledger: Ledger, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of the entries (n,) that are no chunks."""
    return entries[ledger.column("flags")[entries] & IS_CHUNK == 0] if len(entries) else entries


def _left_of(subscription: Subscription, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of the entries (n,), ascending, that are not acknowledged; none of a ledger that is deleted."""
    if not len(entries) or subscription.partition.find(ledger_id) is None:
        return entries[:0]
    first = int(entries[0])
    return entries[~subscription.cursor.acknowledged(ledger_id, first, int(entries[-1]) + 1)[entries - first]]


def revive(decisions: Decisions, subscription: Subscription) -> None:
    """Let consumers get what is dead, and bury again what is dead by the policy now in force."""
    cursor = subscription.cursor
    before = cursor.dead.drop_waiting()
    is_counted = subscription.is_durable and cursor.last_type in SPREAD
    if subscription.partition.policies.dead_letter_redeliveries and is_counted:
        arrays = cursor.redeliveries.arrays.keys() | cursor.deaths.arrays.keys()
        for ledger_id in sorted(arrays):
            size = max(len(kind.arrays.get(ledger_id, ())) for kind in (cursor.redeliveries, cursor.deaths))
            ledger = subscription.partition.find(ledger_id)
            entries = np.arange(0 if ledger is None else min(size, ledger.entries))
            if len(entries):
                bury(decisions, subscription, ledger_id, overdelivered(subscription, ledger_id, entries), DELIVERIES)
    if before and subscription.dispatcher is not None:
        back = [(ledger_id, left) for ledger_id, entries in before
                if len(left := subscription.left_of(ledger_id, entries))]
        subscription.dispatcher.released(back)
        decisions.wake(subscription.partition)


def may_have(subscription: Subscription) -> bool:
    """Whether a subscription may have dead letters."""
    return subscription.remote is None and (
        bool(subscription.cursor.dead) or subscription.partition.policies.has_dead_letters)


def waiting(subscription: Subscription) -> list[EntriesOfLedger]:
    """Return [(ledger id, entries (n,))] of all dead entries that are not acknowledged, ascending."""
    return [(ledger_id, left) for ledger_id, entries in subscription.cursor.dead.all()
            if len(left := _left_of(subscription, ledger_id, entries))]


# -- the mover

def attach(subscription: Subscription, mover: Consumer, error: str) -> None:
    """Let a mover have dead entries.  error: why it could move none before; "": it could, or has not tried."""
    partition = subscription.partition
    assert isinstance(partition, Partition), subscription
    subscription.mover, subscription.mover_error = mover, error
    partition.moved[subscription] = None


def is_undone(subscription: Subscription) -> bool:
    """Whether the mover of a subscription takes back what a redrive has sent to it."""
    return subscription.mover is not None and names.UNDOES in subscription.mover.metadata


def detach(decisions: Decisions, subscription: Subscription) -> None:
    """Forget the mover; what it was given is given to the next one, and what it has taken back to consumers."""
    subscription.mover = None
    if isinstance(subscription.partition, Partition):
        subscription.partition.moved.pop(subscription, None)
    subscription.cursor.dead.give_back(lambda ledger_id, entries: _left_of(subscription, ledger_id, entries))
    back = [(ledger_id, left) for ledger_id, entries in subscription.cursor.dead.drop(TAKEN_BACK)
            if len(left := subscription.left_of(ledger_id, entries))]
    if back and subscription.dispatcher is not None:
        subscription.dispatcher.released(back)
        decisions.wake(subscription.partition)


def take_back(decisions: Decisions, subscription: Subscription, ledger: Ledger, entries: NDArray[np.int64], *,
              looks: bool) -> tuple[int, int, int]:
    """Make dead those of the entries (n,), ascending, of a ledger that nobody has, and give them to the mover.

    looks: whether to count only.  Returns the numbers of these, of entries that a consumer, a transaction or the
    quarantine has or that are dead already, and of chunks.
    """
    unacknowledged = _left_of(subscription, ledger.ledger_id, entries)
    whole = _whole(ledger, unacknowledged)
    free = subscription.left_of(ledger.ledger_id, whole) if len(whole) else whole
    if subscription.dispatcher is not None:
        for consumer in subscription.consumers:
            for ledger_id, held in subscription.dispatcher.held_by(consumer):
                if ledger_id == ledger.ledger_id:
                    free = np.setdiff1d(free, held)
    if not looks and len(free):
        subscription.cursor.dead.add(ledger.ledger_id, free, TAKEN_BACK)
        if subscription.dispatcher is not None:
            subscription.dispatcher.acknowledged(ledger, free)
        decisions.wake(subscription.partition)
    return len(free), len(whole) - len(free), len(unacknowledged) - len(whole)


def give(decisions: Decisions, subscription: Subscription) -> None:
    """Deliver dead entries to the subscription's mover, as far as its permits reach: one for each entry."""
    partition, mover = subscription.partition, subscription.mover
    assert isinstance(partition, Partition) and mover is not None, subscription
    if mover.permits <= 0:
        return
    given = list(subscription.cursor.dead.take(
        mover.permits, lambda ledger_id, entries: _left_of(subscription, ledger_id, entries)))
    for ledger_id, entries, reasons in given:
        ledger = partition.find(ledger_id)
        assert isinstance(ledger, Ledger), (subscription, ledger_id)
        if subscription.withheld is not None:      # a transaction acknowledges them; the next mover gets what it leaves
            kept = np.asarray(subscription.withheld.left_of(subscription.cursor, ledger, entries))
            reasons, entries = reasons[np.isin(entries, kept)], kept
        if len(entries):
            mover.permits -= len(entries)
            _deliver(decisions, subscription, mover, ledger, entries, reasons)


def _deliver(decisions: Decisions, subscription: Subscription, mover: Consumer, ledger: Ledger,
             entries: NDArray[np.int64], reasons: NDArray[np.uint8]) -> None:
    """Deliver dead entries (n,) of a ledger, with their reasons (n,), their deliveries and their ack sets."""
    partition, cursor = subscription.partition, subscription.cursor
    assert isinstance(partition, Partition), subscription
    listed, words = np.zeros(len(entries), envelope.LISTED_ENTRY), []
    listed["entry_id"], listed["redeliveries"] = entries, reasons.astype(np.uint32) << REASON_SHIFT
    for kind in (cursor.redeliveries, cursor.deaths):
        if (some := kind.of(ledger.ledger_id, entries)) is not None:
            listed["redeliveries"] += some
    parts = cursor.parts_of(ledger.ledger_id, entries)
    if subscription.withheld is not None:
        parts = subscription.withheld.cut(ledger, entries, parts)
    for at, bits in parts:
        ack_set = words_of(bits)
        listed["words"][at] = len(ack_set)
        words.append(ack_set)
    decisions.outbox(mover.worker).entry_list(
        mover, partition.partition_id, ledger.ledger_id, listed, b"".join(words))
