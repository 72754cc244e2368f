"""Dispatchers: which consumer gets which entries, a file for each subscription type, and the table of types.

    exclusive.py     one consumer gets everything, in order
    failover.py      one consumer at a time gets everything; others stand by
    shared.py        entries go round among all consumers
    key_shared.py    each key goes to one of many consumers, in order
    ranges.py        the consumer that each hash of a key belongs to
    removed_entries.py    entries that were skipped or expired while a consumer of key_shared.py works on them
    chunk_pins.py    the consumer that gets all chunks of a message, in shared.py and key_shared.py

Imports: `topics/`, `cursors/`, `delayed/`, `ledgers/`.  Start with `exclusive.py`.
"""
from typing import TYPE_CHECKING

from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.failover import Failover
from geminga.storage.dispatch.key_shared import KeyShared
from geminga.storage.dispatch.shared import Shared
from geminga.storage.topics.subscription import Dispatcher, Subscription, SubType

if TYPE_CHECKING:
    from collections.abc import Callable

DISPATCHERS: "dict[SubType.ValueType, Callable[[Subscription], Dispatcher]]" = {
    SubType.Exclusive: Exclusive, SubType.Failover: Failover, SubType.Shared: Shared, SubType.Key_Shared: KeyShared}
