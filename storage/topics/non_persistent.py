"""A non-persistent topic: nothing is kept.

What is published goes, in the same pass, to those who are there and have permits.  What nobody can take is dropped, and counted.
The dispatchers are those of stored topics: they look at the entries of one pass as at a ledger that is gone with it.
"""
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.proto.names import TopicName
from geminga.proto.rows import Rows
from geminga.storage.catalogue.policies import Policies
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.ledgers.position import Position
from geminga.storage.options import StorageOptions
from geminga.storage.topics.producers import Producers
from geminga.storage.topics.rate_limits import Limits
from geminga.storage.topics.subscription import Batch, Subscription

LEDGER_ID = 0                          # in message ids; no ledger has it
BEGINNING: Position = LEDGER_ID, -1


class TransientEntries:
    """The entries of one topic in one pass, which dispatchers read as a ledger."""

    ledger_id = LEDGER_ID
    has_lost = False
    view = 0

    def __init__(self, rows: Rows):
        """rows: (n,) SEND_ROW"""
        self.index = rows
        self.messages: NDArray[np.uint32] = rows["messages"]
        self.entries = len(rows)

    def column(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = self.index[name]
        return values


@dataclass(eq=False, slots=True)
class NonPersistentTopic:
    """A non-persistent topic: a `Topic` whose entries pass through it."""

    name: TopicName
    options: StorageOptions
    producers: Producers = field(default_factory=lambda: Producers(None))
    subscriptions: dict[tuple[str, bool], Subscription] = field(default_factory=dict)
    attached: dict[Subscription, None] = field(default_factory=dict)
    published: int = 0                 # entries
    messages_in: int = 0
    bytes_in: int = 0
    chunks_in: int = 0
    departed_out: tuple[int, int, int] = (0, 0, 0)       # as of a Partition, for statistics.py
    window: object = None
    last_window: object = None
    counted: tuple = ()
    rates: tuple = ()
    dropped: int = 0                   # entries that a subscription's consumers could not take
    now_ms: int = 0
    policies: Policies = Policies()    # what holds for it now
    rate_limits: Limits | None = None
    passing: TransientEntries | None = None

    is_persistent = False
    is_closed = False
    view = schedule = None
    last_confirmed = BEGINNING

    def bind(self, policies: Policies) -> None:
        """Apply the policies, but for bounds of unacknowledged messages and delays, which mean nothing without a store."""
        self.policies = replace(policies, max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0,
                                delayed_delivery=False)

    @property
    def entries_in(self) -> int:
        return self.published

    @property
    def is_idle(self) -> bool:
        """Whether no client uses the topic."""
        return not (self.attached or self.producers.live or self.producers.waiting)

    @property
    def ledgers(self) -> list:
        return []

    def ledgers_from(self, ledger_id: int) -> list:
        """There is never anything to catch up with."""
        return []

    def find(self, ledger_id: int) -> TransientEntries | None:
        return self.passing

    def add_subscription(self, name: str, cursor: Cursor) -> Subscription:
        subscription = Subscription(name, cursor, self, self.options)
        self.subscriptions[subscription.key] = subscription
        return subscription

    def remove_subscription(self, subscription: Subscription) -> None:
        """Remove this subscription; another that has its name by now stays."""
        if self.subscriptions.get(subscription.key) is subscription:
            self.departed_out = tuple(map(sum, zip(self.departed_out, subscription.departed_out, strict=False)))
            del self.subscriptions[subscription.key]

    def pass_on(self, rows: Rows, next_batches: Callable[[Subscription, list], list[Batch]]) -> list[Batch]:
        """Who gets which of these rows (n,) SEND_ROW; next_batches: what rates leave of them to a subscription."""
        self.passing = TransientEntries(rows)
        batches: list[Batch] = []
        for subscription in self.attached:
            subscription.read = LEDGER_ID, 0
            ledgers = [self.passing]
            found = subscription.dispatcher.next_batches(ledgers) if self.rate_limits is None else next_batches(subscription, ledgers)
            subscription.dispatcher.let_go()
            given = sum(len(entries) for _, _, entries in found)
            self.dropped += len(rows) - given
            if given < len(rows):
                everything = int(rows["messages"].sum())
                subscription.dropped += everything - sum(int(rows["messages"][np.asarray(entries)].sum()) for _, _, entries in found)
            batches += found
        self.passing = None
        self.published += len(rows)
        return batches
