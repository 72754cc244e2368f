"""Filters of subscriptions, carried out: what does not match is acknowledged before dispatchers see it.

A dispatch of a subscription with a filter goes on in turns: show the dispatcher the entries that are judged already,
and judge the next ones only if its consumers could take more.  So nothing is judged for consumers without permits, and
what does not match uses none.  A pass judges a bounded number of entries of a subscription; the next pass, which is due
at once, goes on, and other subscriptions and topics are served in between.

Of a batch in part only the others are acknowledged.  Its consumers are sent a batch that has the messages that match
and no others (proto/batch_parts.py): a client that does not acknowledge messages of batches one by one acknowledges a
batch once it is done with all its messages, and would never be done with one that the broker keeps from it.

Acknowledgements of what does not match are written with the next record of the journal, and answer nobody.  After a
kill entries are judged again, and found the same.
"""
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.cursors.cursor import SKIPPED
from geminga.storage.filters import sieve
from geminga.storage.filters.entries import Judged
from geminga.storage.filters.sieve import FILTER, Sieve
from geminga.storage.ledgers import cut_ledger
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.cut_ledger import CutLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.subscription import Subscription, Topic

TURNS_MAX = 4                  # of one subscription in a pass
_ENTRIES_MAX = 4_096           # that are judged in a turn
_BYTES_MAX = 4 << 20           # of entries that are judged in a turn; one entry may be larger


# -- commands

def refuse(topic: Topic, subscription: Subscription | None, text: str | None) -> None:
    """Refuse to give a topic's subscription a filter, or to attach a consumer that asks for one.

    subscription: the one that exists already.  text: the filter that is asked for; None: none is, and any that there is
    stays.  Raises Refusal.
    """
    known = None if subscription is None else subscription.properties.get(FILTER)
    if text is None:
        if known is not None and (why := sieve.check(known)):
            raise Refusal(api.NotAllowedError, f"The subscription has no filter that can be read: {why}")
        return
    if why := sieve.check(text):
        raise Refusal(api.NotAllowedError, why)
    if not topic.is_persistent:
        raise Refusal(api.NotAllowedError, f"{FILTER}: a non-persistent topic has no filters")
    if not topic.policies.subscription_filters:
        raise Refusal(api.NotAllowedError, f"{FILTER}: the policy subscriptionFilters does not allow filters on "
                                           f"{topic.name}")
    if subscription is None or known == text:
        return
    if subscription.remote is not None:
        raise Refusal(api.NotAllowedError, f"{FILTER}: a replication cursor has no filter")
    if subscription.has_own_properties:
        raise Refusal(api.NotAllowedError, f"{FILTER}: the subscription has "
                                           f"{'no filter' if known is None else f'another filter: {known}'}")
    refuse_change(subscription, text)


def refuse_change(subscription: Subscription, text: str | None) -> None:
    """Refuse to change a subscription's filter while it has consumers, who hold what the old one let through.

    text: the new filter; None: none.  Raises Refusal.
    """
    if subscription.properties.get(FILTER) != text and subscription.consumers:
        raise Refusal(api.ConsumerBusy, f"{FILTER}: the filter cannot change while consumers are connected")


# -- dispatching

def shown(subscription: Subscription, ledgers: Sequence[StoredLedger]) -> list[StoredLedger]:
    """Return what is judged already of these ledgers, from the read position on.

    A compacted ledger is left out until all of it is judged.
    """
    assert subscription.sieve is not None, subscription
    ledger_id, end = _next(subscription, subscription.sieve)
    kept: list[StoredLedger] = []
    for ledger in ledgers:
        if ledger.ledger_id < subscription.read[0]:
            continue
        if ledger.ledger_id < ledger_id or (ledger.ledger_id == ledger_id and ledger.entries <= end):
            kept.append(ledger)
        elif ledger.ledger_id == ledger_id and end and isinstance(whole := cut_ledger.whole(ledger), Ledger):
            kept.append(CutLedger(whole, end))
    return kept


def judge_next(decisions: Decisions, subscription: Subscription, ledgers: Sequence[StoredLedger]) -> bool:
    """Judge the next entries of these ledgers, and acknowledge those that do not match; return False without any."""
    own = subscription.sieve
    assert own is not None, subscription
    ledger_id, first = _next(subscription, own)
    for ledger in ledgers:
        if ledger.ledger_id < ledger_id:
            continue
        begin = first if ledger.ledger_id == ledger_id else 0
        if begin < ledger.entries:
            _judge(decisions, subscription, own, ledger, begin)
            return True
    return False


def judge_all(decisions: Decisions, subscription: Subscription, ledgers: Sequence[StoredLedger]) -> bool:
    """Judge all entries of these ledgers, as many as a pass may; return whether that is done."""
    return any(not judge_next(decisions, subscription, ledgers) for _ in range(TURNS_MAX))


def judge_expired(decisions: Decisions, subscription: Subscription, ledger: Ledger,
                  entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
    """Acknowledge those of a ledger's entries (n,), ascending, that do not match, as many as a pass may judge.

    Returns the others that are not acknowledged, and whether these are all.  Raises OSError.
    """
    own = subscription.sieve
    assert own is not None, subscription
    first = int(entries[0])
    left = entries[~subscription.cursor.acknowledged(ledger.ledger_id, first, int(entries[-1]) + 1)[entries - first]]
    judged_id, judged_end = own.judged_up_to
    if ledger.ledger_id <= judged_id:
        begin = len(left) if ledger.ledger_id < judged_id else int(np.searchsorted(left, judged_end))
    else:
        begin = 0
    kept, left = [left[:begin]], left[begin:]
    for _ in range(TURNS_MAX):
        if not len(left):
            break
        sizes = ledger.column("size")[left[:_ENTRIES_MAX]]
        reach = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), _BYTES_MAX))
        judged = own.judge(ledger, left[:max(1, reach)][:_ENTRIES_MAX])
        some, left = np.split(left, [len(judged.matches)])
        _apply(decisions, subscription, own, ledger, some, judged)
        kept.append(some[judged.matches])
    return np.concatenate(kept), not len(left)


def _next(subscription: Subscription, own: Sieve) -> Position:
    """Return the first position that is not judged."""
    ledger_id, entry_id = subscription.cursor.mark_delete
    return max(own.judged_up_to, (ledger_id, entry_id + 1))


def _judge(decisions: Decisions, subscription: Subscription, own: Sieve, ledger: StoredLedger, first: int) -> None:
    whole = cut_ledger.whole(ledger)
    assert isinstance(whole, Ledger | CompactedLedger), (subscription, ledger)
    entries, end = _unacknowledged(subscription, whole, first, ledger.entries)
    if len(entries):
        judged = own.judge(whole, entries)
        if len(judged.matches) < len(entries):
            end = int(entries[len(judged.matches)])
        _apply(decisions, subscription, own, whole, entries[:len(judged.matches)], judged)
    own.judged_up_to = ledger.ledger_id, end


def _unacknowledged(subscription: Subscription, ledger: Ledger | CompactedLedger, first: int,
                    end: int) -> tuple[NDArray[np.int64], int]:
    """Return (unacknowledged entries from `first` on, the first entry behind those that were looked at)."""
    if isinstance(ledger, CompactedLedger):
        entries = ledger.kept_of(first, end)[:_ENTRIES_MAX + 1]
        sizes = ledger.rows_of(entries)["size"]
    else:
        if ledger.has_lost:
            subscription.partition.give_up_lost(ledger)
        entries = np.arange(first, min(end, first + _ENTRIES_MAX + 1))
        sizes = ledger.column("size")[first:first + len(entries)]
    reach = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), _BYTES_MAX))
    count = min(len(entries), _ENTRIES_MAX, max(1, reach))
    if count < len(entries):
        end, entries = int(entries[count]), entries[:count]
    if len(entries):
        begin = int(entries[0])
        is_done = subscription.cursor.acknowledged(ledger.ledger_id, begin, int(entries[-1]) + 1)
        if is_done.any():
            entries = entries[~is_done[entries - begin]]
    return entries, end


def _apply(decisions: Decisions, subscription: Subscription, own: Sieve, ledger: Ledger | CompactedLedger,
           entries: NDArray[np.int64], judged: Judged) -> None:
    """Acknowledge what does not match of entries (n,), and count messages."""
    messages = subscription.messages(ledger, entries)
    rejected = int(messages[~judged.matches].sum())
    own.accepted += int(messages.sum()) - rejected
    stored = subscription.find(ledger.ledger_id)      # the view's messages are in no total where only the view has them
    for number, bits in judged.parts.items():
        entry_id = int(entries[number])
        if isinstance(stored, CompactedLedger):
            acknowledge.acknowledge_part_of_view(decisions, subscription, stored, entry_id, bits)
        else:
            assert isinstance(stored, Ledger), (subscription, ledger)
            count = acknowledge.acknowledge_messages(decisions, subscription, stored, entry_id, bits, SKIPPED)
            rejected, own.accepted = rejected + count, own.accepted - count
    own.rejected += rejected
    if not judged.matches.all():
        acknowledge.move(decisions, subscription, Acks(single={ledger.ledger_id: entries[~judged.matches]}), SKIPPED)
    decisions.counters.add("messages_filtered", rejected)


def mask(subscription: Subscription, ledger: ReadableLedger, entry_id: int) -> int:
    """Return bits of the messages of a batch that its consumers get; 0: the batch goes out as it is stored."""
    if subscription.sieve is None or not isinstance(ledger, Ledger | CompactedLedger):
        return 0
    return subscription.sieve.mask(ledger, entry_id)
