"""Dispatchers: which consumer gets which entries, a file for each subscription type, and the table of types.

    exclusive.py     one consumer gets everything, in order
    failover.py      one consumer at a time gets everything; others stand by
    shared.py        entries go round among all consumers
    by_priority.py        ... the highest priority first, where a policy says so
    levelled_acks.py      waiting entries by priority, for by_priority.py
    key_shared.py    each key goes to one of many consumers, in order
    entry_buckets.py      each bucket of a segment's hashes goes to one of its stream consumers, in order
    ranges.py        the consumer that each hash of a key belongs to
    removed_entries.py    entries that were skipped or expired while a consumer of key_shared.py works on them
    chunk_pins.py    the consumer that gets all chunks of a message, in shared.py and key_shared.py

Imports: `topics/`, `cursors/`, `delayed/`, `ledgers/`.  Start with `exclusive.py`.
"""
from typing import TYPE_CHECKING

from geminga.storage.dispatch.by_priority import ByPriority
from geminga.storage.dispatch.entry_buckets import EntryBuckets
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.failover import Failover
from geminga.storage.dispatch.key_shared import KeyShared
from geminga.storage.dispatch.shared import Shared
from geminga.storage.topics.subscription import Consumer, Dispatcher, Subscription, SubType

if TYPE_CHECKING:
    from collections.abc import Callable

DISPATCHERS: "dict[SubType.ValueType, Callable[[Subscription], Dispatcher]]" = {
    SubType.Exclusive: Exclusive, SubType.Failover: Failover, SubType.Shared: Shared, SubType.Key_Shared: KeyShared}


def dispatcher_for(subscription: Subscription, kind: "SubType.ValueType", consumer: Consumer) -> Dispatcher:
    """Return the dispatcher of a subscription whose first consumer, of this type, is about to attach."""
    if consumer.shares_buckets:
        return EntryBuckets(subscription)
    return _shared(subscription)(subscription) if kind == SubType.Shared else DISPATCHERS[kind](subscription)


def follow_policies(subscription: Subscription) -> None:
    """Replace the dispatcher of a Shared subscription, if the policies in force now ask for another one.

    What consumers hold stays with them, and everything else waits as before.
    """
    dispatcher = subscription.dispatcher
    if type(dispatcher) in (Shared, ByPriority) and type(dispatcher) is not (wanted := _shared(subscription)):
        assert isinstance(dispatcher, Shared), dispatcher
        subscription.dispatcher = successor = wanted(subscription)
        successor.succeed(dispatcher)


def _shared(subscription: Subscription) -> type[Shared]:
    """Return the class of Shared dispatchers that the policies in force ask for."""
    return ByPriority if subscription.partition.policies.message_priority else Shared
