"""Non-persistent topics: entries are delivered in the pass in which they are published, or dropped.

Nothing is stored.  Consumers that are attached and have permits get the entries of the pass; what they cannot take is
dropped and counted.  The dispatchers are those of stored topics: they read the entries of one pass as a ledger that
ends with the pass.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.proto.names import TopicName
from geminga.proto.rows import Rows
from geminga.storage.catalogue.policies import Policies
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.delayed.index import DelayedIndex
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger
from geminga.storage.options import StorageOptions
from geminga.storage.topics.producers import Producers
from geminga.storage.topics.rate_limits import Limits
from geminga.storage.topics.subscription import Batch, Producer, Subscription

LEDGER_ID = 0                          # in message ids; no ledger on disk has it
BEGINNING: Position = LEDGER_ID, -1

# (subscription, the pass's entries) -> its next batches, as far as rates admit them
NextBatches = Callable[[Subscription, Sequence[ReadableLedger]], list[Batch]]


class TransientEntries:
    """The entries of one topic in one pass: a ReadableLedger in memory."""

    ledger_id = LEDGER_ID
    has_lost = False
    view = 0

    def __init__(self, rows: Rows):
        """rows: (n,) SEND_ROW"""
        self.index = rows
        self.entries = len(rows)

    def __repr__(self) -> str:
        return f"<TransientEntries {self.entries}>"

    def column(self, name: str) -> NDArray[Any]:
        """One field of the rows, (n,)."""
        values: NDArray[Any] = self.index[name]
        return values


@dataclass(eq=False, slots=True, repr=False)
class NonPersistentTopic:
    """A non-persistent topic: a `Topic` that has no ledgers, no compacted view and no delayed entries."""

    name: TopicName
    options: StorageOptions
    producers: Producers[Producer] = field(default_factory=lambda: Producers(None))
    subscriptions: dict[tuple[str, bool], Subscription] = field(default_factory=dict)
    attached: dict[Subscription, None] = field(default_factory=dict)      # subscriptions that have consumers
    policies: Policies = Policies()    # in force now
    rate_limits: Limits | None = None
    now_ms: int = 0                    # time of the pass, in ms since 1970
    passing: TransientEntries | None = None      # entries of the pass, while they are dispatched
    # For statistics.py, since the topic was made:
    published: int = 0                 # entries
    messages_in: int = 0
    bytes_in: int = 0
    chunks_in: int = 0
    dropped: int = 0                   # entries that a subscription's consumers could not take
    departed_out: tuple[int, ...] = (0, 0, 0)        # messages, bytes, entries out, of deleted subscriptions
    window: object = None              # Distribution of the window that is under way, ...
    last_window: object = None         # ... and of the one before
    counted: tuple[int, ...] = ()      # counts as of the end of the last window, ...
    rates: tuple[float, ...] = ()      # ... and rates per second in that window

    is_persistent = False
    is_closed = False
    last_confirmed = BEGINNING

    def __repr__(self) -> str:
        return f"<NonPersistentTopic {self.name} published={self.published} dropped={self.dropped}>"

    def check(self) -> None:
        """Assert what is true between passes, of the producers and all subscriptions."""
        assert self.passing is None, self
        assert self.attached.keys() <= set(self.subscriptions.values()), self
        self.producers.check()
        for subscription in self.subscriptions.values():
            assert subscription.partition is self, (self, subscription)

    def bind(self, policies: Policies) -> None:
        """Apply the policies but those that need stored entries: delays, priorities, bounds of unacknowledged ones."""
        self.policies = replace(policies, max_unacked_messages_per_consumer=0, max_unacked_messages_per_subscription=0,
                                delayed_delivery=False, message_priority=False)

    @property
    def entries_in(self) -> int:
        """Entries published since the topic was made."""
        return self.published

    @property
    def is_idle(self) -> bool:
        """Whether no client uses the topic."""
        return not (self.attached or self.producers.live or self.producers.waiting)

    # -- ledgers: it has none

    @property
    def view(self) -> CompactedLedgers | None:
        """None: a topic without ledgers has no compacted view."""
        return None

    @property
    def schedule(self) -> DelayedIndex | None:
        """None: entries are not delayed."""
        return None

    @property
    def ledgers(self) -> list[Ledger]:
        """An empty list: a non-persistent topic has no ledgers."""
        return []

    def ledgers_from(self, ledger_id: int) -> list[Ledger]:
        """No ledgers: a consumer never has anything to catch up with."""
        return []

    def with_view(self, view: CompactedLedgers | None, ledger_id: int) -> Sequence[StoredLedger]:
        """Return an empty list: a non-persistent topic has neither ledgers nor views."""
        return []

    def find(self, ledger_id: int) -> TransientEntries | None:
        """The entries of the pass, while they are dispatched."""
        return self.passing

    def may_have_chunks(self, ledger: ReadableLedger, entry_id: int) -> bool:
        """False: clients send chunks to persistent topics only."""
        return False

    def give_up_lost(self, ledger: Ledger) -> None:
        """Nothing to do: entries that are never stored are never lost on disk."""

    # -- subscriptions

    def add_subscription(self, name: str, cursor: Cursor) -> Subscription:
        """Add a subscription."""
        subscription = Subscription(name, cursor, self, self.options)
        self.subscriptions[subscription.key] = subscription
        return subscription

    def remove_subscription(self, subscription: Subscription) -> None:
        """Remove this subscription.  A newer one of the same name stays."""
        if self.subscriptions.get(subscription.key) is subscription:
            self.departed_out = tuple(map(sum, zip(self.departed_out, subscription.departed_out, strict=False)))
            del self.subscriptions[subscription.key]

    def pass_on(self, rows: Rows, next_batches: NextBatches) -> list[Batch]:
        """Deliver rows (n,) SEND_ROW to the attached consumers, as far as permits and rates reach; drop the rest.

        next_batches: asked instead of the dispatchers if the topic has rate limits.
        """
        self.passing = TransientEntries(rows)
        messages: NDArray[np.uint32] = rows["messages"]
        batches: list[Batch] = []
        for subscription in self.attached:
            dispatcher = subscription.dispatcher
            assert dispatcher is not None, subscription
            subscription.read = LEDGER_ID, 0
            ledgers = [self.passing]
            some = dispatcher.next_batches(ledgers) if self.rate_limits is None else next_batches(subscription, ledgers)
            dispatcher.let_go()
            given = sum(len(entries) for _, _, entries in some)
            self.dropped += len(rows) - given
            if given < len(rows):
                everything = int(messages.sum())
                subscription.dropped += everything - sum(
                    int(messages[np.asarray(entries)].sum()) for _, _, entries in some)
            batches += some
        self.passing = None
        self.published += len(rows)
        return batches
