"""Topics as clients use them: the producers and subscriptions of a topic, and the consumers of a subscription.

    Topic           what producers, subscriptions and commands see of a topic, stored or not
    Producer        a client's right to publish
    Consumer        a client's right to receive
    Dispatcher      chooses which consumer gets which entries; `dispatch/` has one for each subscription type
    Subscription    a name, a cursor, the consumers attached, and how far they were delivered entries
"""
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName, remote_of
from geminga.storage.catalogue.policies import Policies
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.inherited_messages import InheritedMessages
from geminga.storage.cursors.pending_acks import NEVER_MS, Entries
from geminga.storage.cursors.withheld import Withheld
from geminga.storage.delayed.index import DelayedIndex, Released
from geminga.storage.filters.sieve import Sieve
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger, CompactedLedgers
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger
from geminga.storage.options import StorageOptions
from geminga.storage.topics.permits import PERMITS_MAX, Allowance
from geminga.storage.topics.producers import Producers
from geminga.storage.topics.rate_limits import Limited, Limits

SubType = api.CommandSubscribe.SubType
SPREAD = SubType.Shared, SubType.Key_Shared      # types that spread entries over consumers
_STRETCH = 4_096           # entries of a compacted view that are examined at once
EntriesOfLedger = tuple[int, NDArray[np.int64]]      # (ledger id, entries (n,))
EntryIds: TypeAlias = list[int] | NDArray[np.uint64] | NDArray[np.int64]


class Topic(Protocol):
    """A topic as its producers and subscriptions see it: a Partition, or a NonPersistentTopic, which has no ledgers."""

    name: TopicName
    options: StorageOptions
    policies: Policies                # in force now
    producers: Producers["Producer"]
    subscriptions: dict[tuple[str, bool], "Subscription"]      # by name, and whether it is durable
    attached: dict["Subscription", None]                       # subscriptions that have consumers
    rate_limits: Limits | None
    now_ms: int                       # time of the pass, in ms since 1970
    chunks_in: int                    # chunks of large messages, published since the topic was opened

    @property
    def is_persistent(self) -> bool:
        """Whether entries are stored."""

    @property
    def is_closed(self) -> bool:
        """Whether no more entries will come: the topic is terminated, or has moved to another cluster."""

    @property
    def last_confirmed(self) -> Position:
        """Position of the last entry."""

    @property
    def ledgers(self) -> list[Ledger]:
        """All ledgers, ascending."""

    @property
    def view(self) -> CompactedLedgers | None:
        """The newest compacted view; None: the topic has none."""

    @property
    def schedule(self) -> DelayedIndex | None:
        """The index of delayed entries; None: no entry was ever delayed."""

    def find(self, ledger_id: int) -> ReadableLedger | None:
        """The ledger with that id."""

    def ledgers_from(self, ledger_id: int) -> list[Ledger]:
        """The ledger with that id, or the next one, and all ledgers behind it."""

    def with_view(self, view: CompactedLedgers | None, ledger_id: int) -> Sequence[StoredLedger]:
        """The view's compacted ledgers from that id up to the view's horizon, and the ledgers behind the horizon."""

    def may_have_chunks(self, ledger: ReadableLedger, entry_id: int) -> bool:
        """Whether entries of the ledger from that one on may be chunks.  Nearly always False, and cheap."""

    def give_up_lost(self, ledger: Ledger) -> None:
        """Discard the entries of the ledger whose index rows are lost, for all subscriptions."""

    def bind(self, policies: Policies) -> None:
        """Apply the policies that are in force from now on."""

    def add_subscription(self, name: str, cursor: Cursor) -> "Subscription":
        """Add a subscription with that cursor."""

    def remove_subscription(self, subscription: "Subscription") -> None:
        """Remove this subscription.  A newer one of the same name stays."""


@dataclass(eq=False, slots=True)
class Producer:
    """A client's right to publish, known to its worker by `handle`."""

    handle: int
    worker: int
    connection: int
    producer_id: int
    request_id: int
    name: str
    is_generated_name: bool
    epoch: int                      # the client's count of this producer's reconnections
    access_mode: int
    topic_epoch: int | None         # as the client had it; once admitted, as it was assigned
    partition: Topic = field(repr=False)
    is_ready: bool = True           # False: it waits for exclusive access
    connected_ms: int = 0
    metadata: dict[str, str] = field(default_factory=dict)      # the client's notes, shown in statistics
    is_encrypted: bool = False      # the client says that it encrypts its messages
    source: str | None = None       # the cluster whose replicator it is, ...
    sends_positions: bool = False   # ... and whether that names each entry's position in its topic
    schema_version: bytes = b""     # as in the protocol; empty: the producer has no schema
    inherited: InheritedMessages | None = None      # what segments before had of it; None: not read, see recounting.py
    only_for: str = ""              # the subscription that gets what it publishes; "": all do, see addressed.py
    messages_in: int = 0            # published
    bytes_in: int = 0
    chunks_in: int = 0              # of large messages
    dropped: int = 0                # messages of a non-persistent topic beyond the bound of their connection
    counted: tuple[int, ...] = ()              # see statistics.py: counts as of the end of the last window, ...
    rates: tuple[float, ...] = ()              # ... and rates per second in that window
    identity: bytes = field(init=False, repr=False)      # see producer_sequences.identity

    def __post_init__(self) -> None:
        name = names.across_segments(self.name, self.partition.name)
        self.identity = producer_sequences.identity(name, is_replicator=self.sends_positions)

    def succeeds(self, other: "Producer") -> bool:
        """Whether `other` is the producer of this client or replicator on an older connection, which has yet to end."""
        if self.source is not None:
            return True
        return self.is_generated_name and other.is_generated_name and self.epoch > other.epoch


@dataclass(eq=False, slots=True)
class Consumer:
    """One attached consumer, known to its worker by `handle`."""

    handle: int
    worker: int
    connection: int
    consumer_id: int
    name: str
    protocol_version: int
    subscription: "Subscription" = field(repr=False)
    connected_ms: int = 0
    priority: int = 0                         # level; consumers of lower levels are served first
    ranges: list[tuple[int, int]] | None = None      # of hashes, (first, last), that a sticky consumer asks for
    is_out_of_order_allowed: bool = False
    shares_buckets: bool = False              # `ranges` are all entry buckets of a segment, see entry_buckets.py
    is_sole: bool = False                     # attached as Exclusive, though the subscription shares buckets by now
    epoch: int | None = None                  # the client's count of its requests to redeliver everything
    permits: int = 0                          # messages granted and not delivered; below 0 by one batch at most
    granted: int = 0                          # messages granted in all
    bytes_out: int = 0                        # of entries delivered
    counted_out: int = 0                      # messages delivered, as the owner's counter has them
    entries_out: int = 0
    chunks_out: int = 0                       # of large messages, among these entries
    redelivered: int = 0                      # messages that it gave back for redelivery
    acknowledged: int = 0                     # messages
    metadata: dict[str, str] = field(default_factory=dict)      # the client's notes, shown in statistics
    takes_any_schema: bool = False            # it consumes with AUTO_CONSUME
    flow_ms: int = 0                          # when it last granted permits, ...
    consumed_ms: int = 0                      # ... was delivered an entry, ...
    acked_ms: int = 0                         # ... and acknowledged one
    counted: tuple[int, ...] = ()             # see statistics.py: counts as of the end of the last window, ...
    rates: tuple[float, ...] = ()             # ... and rates per second in that window
    # Consumers of Shared and Key_Shared subscriptions only:
    slot: int = 0                             # see pending_acks.py
    unacknowledged: int = 0                   # messages delivered and not acknowledged
    is_blocked: bool = False                  # has too many of these
    hashes_cleared: int = 0                   # hashes of keys that no longer drain at this consumer, since it attached
    is_told_end: bool = False                 # the client was told that the topic is terminated and drained

    def grant(self, permits: int) -> None:
        """Add permits, up to PERMITS_MAX."""
        added = min(permits, PERMITS_MAX - self.permits)
        self.permits, self.granted = self.permits + added, self.granted + added

    @property
    def messages_out(self) -> int:
        """Messages that the consumer was delivered."""
        return self.granted - self.permits


Batch = tuple[Consumer, ReadableLedger, Entries]      # entries of one ledger, ascending, to deliver to the consumer


def busy(text: str) -> Refusal:
    """The refusal of a consumer whose subscription another one occupies."""
    return Refusal(api.ConsumerBusy, text)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a consumer may not attach, and the attached consumer that is in its way."""

    holder: Consumer
    refusal: Refusal


class Dispatcher(ABC):
    """Chooses which consumer gets which entries of one subscription.  Exists while the subscription has consumers."""

    is_woken_by_acknowledgements = False     # an acknowledgement may let more entries be delivered
    reads_all_first = False                  # entries are delivered in an order that is known only once all were seen
    news_due_ms = NEVER_MS                   # when `news` or `next_batches` has more, without anything that happens

    def __init__(self, subscription: "Subscription"):
        self.subscription = subscription

    def __repr__(self) -> str:
        subscription, kind = self.subscription, type(self).__name__
        return f"<{kind} {subscription.name} read={subscription.read} consumers={len(subscription.consumers)}>"

    def check(self) -> None:      # noqa: B027
        """Assert what is true between passes."""

    # -- consumers

    @property
    def active(self) -> Consumer | None:
        """The consumer that gets all entries; None: entries are spread over consumers, or there is none."""
        return None

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        """The consumer whose connection keeps this one from attaching, with the refusal; None: it may attach."""
        return None

    @abstractmethod
    def attach(self, consumer: Consumer) -> None:
        """Take in a consumer that was added to the subscription."""

    @abstractmethod
    def detach(self, consumer: Consumer) -> None:
        """Let go of a consumer that was removed from the subscription.  Entries that it holds are to be redelivered."""

    def news(self) -> list[tuple[Consumer, bool]]:
        """[(consumer, whether it is active)] to tell clients, as far as it has changed since the last call."""
        return []

    # -- entries

    @abstractmethod
    def next_batches(self, ledgers: Sequence[ReadableLedger]) -> list[Batch]:
        """Choose the entries to deliver now.  Takes permits from consumers, and moves the read position.

        ledgers: the one of the read position, and all behind it.
        """

    def takes_appended(self, position: Position, messages: int) -> Consumer | None:
        """Return the consumer that is to get all entries from the position on, which this pass has appended.

        messages: in these entries.  None: `next_batches` has to look at the entries.
        """
        return None

    def bounds_changed(self) -> None:      # noqa: B027
        """Apply policies and options, which have changed."""

    def fell_due(self, released: Released) -> None:      # noqa: B027
        """Deliver delayed entries that have fallen due, as far as the read position is behind them."""

    @abstractmethod
    def has_demand(self, ledgers: Sequence[ReadableLedger]) -> bool:
        """Whether a consumer has permits and there are entries for it.  ledgers: as in `next_batches`."""

    def has_unread(self, ledgers: Sequence[ReadableLedger]) -> bool:
        """Whether there are entries from the read position on.  ledgers: as in `next_batches`."""
        return bool(ledgers) and self.subscription.read < (ledgers[-1].ledger_id, ledgers[-1].entries)

    @abstractmethod
    def acknowledged(
        self, ledger: StoredLedger, entries: list[int] | NDArray[np.int64], *, by_client: bool = True
    ) -> None:
        """Note entries (n,), ascending, that are acknowledged now and were not before.

        by_client: False if they were skipped, expired or evicted, or their ledger is deleted, so that a consumer that
        has some may be at work on them.
        """

    @abstractmethod
    def acknowledged_up_to(self, position: Position, *, by_client: bool = True) -> None:
        """Note that all entries up to the position are acknowledged.  by_client: as for `acknowledged`."""

    @property
    def hears_clients(self) -> bool:
        """Whether `heard` is to be called."""
        return False

    def heard(self, entries: Mapping[int, EntryIds]) -> None:      # noqa: B027
        """Note {ledger id: entries} that clients acknowledge, also those that were acknowledged or skipped before."""

    @abstractmethod
    def part_acknowledged(self, ledger: ReadableLedger, entry_id: int, messages: int) -> None:
        """Note that `messages` more messages of a batch are acknowledged, and others of it are not."""

    def held_up_to(self, highest: Position) -> dict[int, EntryIds]:
        """{ledger id: entries} up to the position that a cumulative acknowledgement means where entries are spread.

        Empty: it is ignored.
        """
        return {}

    @abstractmethod
    def held_by(self, consumer: Consumer) -> list[EntriesOfLedger]:
        """[(ledger id, entries)] that the consumer was delivered and has not acknowledged."""

    @abstractmethod
    def holds(self, consumer: Consumer, position: Position) -> bool:
        """Whether the consumer was delivered the entry and has not acknowledged it."""

    @abstractmethod
    def released(self, entries: list[EntriesOfLedger]) -> None:
        """Deliver entries that are no longer parked or withheld, as far as the read position is behind them."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> list[EntriesOfLedger]:
        """Redeliver entries that the consumer holds; return [(ledger id, entries)] to count as redelivered.

        wanted: {ledger id: entries} that the client named; empty: all that the consumer holds.
        """

    @abstractmethod
    def let_go(self) -> None:
        """Forget what was delivered: it is never redelivered."""

    @abstractmethod
    def causes(self) -> list[dict[str, Any]]:
        """[{"cause": ..., ...}], as JSON, of all that keeps consumers from getting more entries."""

    @abstractmethod
    def forget(self, ledger: StoredLedger) -> None:
        """Forget a ledger that is about to be deleted."""


@dataclass(eq=False, slots=True)
class Subscription:
    """A subscription of one topic.  Its mark-delete position is durable if it is; `read` is in memory only."""

    name: str
    cursor: Cursor
    partition: Topic = field(repr=False)
    options: StorageOptions = field(repr=False)
    deaths_max: int = 0                # deaths after which an entry is parked; 0: deaths are not counted
    dispatcher: Dispatcher | None = field(default=None, repr=False)       # None: no consumer is attached
    kind: "SubType.ValueType | None" = None                               # None: likewise
    consumers: dict[Consumer, None] = field(default_factory=dict)         # in the order in which they attached
    reads_compacted: bool = False      # the consumers read a compacted view, as the first of them asked for
    # The view that they read up to its horizon; None once the mark-delete position has reached the horizon.
    view: CompactedLedgers | None = None
    read: Position = (0, 0)            # the next entry to deliver; always behind the mark-delete position
    allowance: Allowance | None = None                         # of this pass; None: no rate bounds the subscription
    limited: Limited | None = None
    # Messages, bytes, entries delivered, messages redelivered, chunks delivered: of consumers that have left.
    departed_out: tuple[int, ...] = (0, 0, 0, 0, 0)
    # Whether a client may have acknowledged more than has arrived here: a connection, or an owner, has ended.
    may_lack_acks: bool = False
    left_alone: tuple[str, int] = ("", 0)      # name of a segment's Exclusive consumer that left last, and when in ms
    straddling: int = 0                # entries with messages of several buckets, see entry_buckets.py
    dropped: int = 0                   # messages of a non-persistent topic that no consumer could take
    # When consumers that have left last acknowledged, were delivered an entry, and granted permits.
    last_ms: tuple[int, ...] = (0, 0, 0)
    advanced_ms: int = 0               # when the mark-delete position last moved, ...
    expired_ms: int = 0                # ... and an entry last expired
    counted: tuple[int, ...] = ()      # as in Consumer
    rates: tuple[float, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)   # users' notes
    has_own_properties: bool = False   # they were set, perhaps to none: a consumer's do not replace them
    is_replicated: bool = False        # other clusters follow it
    told: int = -1                     # messages of the topic of which they know that it has passed them
    withheld: Withheld | None = None   # what open transactions acknowledge; None: nothing
    sieve: Sieve | None = None         # the filter among `properties`; None: there is none
    transactions_ended: tuple[int, int] = (0, 0)      # that acknowledged here: committed, aborted
    mover: Consumer | None = None      # of the process that moves dead entries away; no dispatcher knows it
    mover_error: str = ""              # why that could not move any; "": it could, or has not tried

    @property
    def has_moved(self) -> bool:
        """Whether the topic has moved to another cluster, and everything is acknowledged here."""
        return bool(self.partition.policies.migrated_to) and self.partition.is_persistent and \
            self.cursor.mark_delete >= self.partition.last_confirmed

    @property
    def first_consumer(self) -> Consumer | None:
        """The attached consumer that attached first."""
        return next(iter(self.consumers), None)

    @property
    def everyone(self) -> list[Consumer]:
        """The attached consumers, and the mover if there is one."""
        return [*self.consumers, *([] if self.mover is None else [self.mover])]

    @property
    def is_durable(self) -> bool:
        return self.cursor.is_durable

    @property
    def remote(self) -> str | None:
        """The cluster to which entries go from here; None unless this is a replication cursor."""
        return remote_of(self.name)

    @property
    def key(self) -> tuple[str, bool]:
        """The key in Topic.subscriptions: a durable subscription and a reader's may share a name."""
        return self.name, self.is_durable

    @property
    def kind_name(self) -> str:
        return "None" if self.kind is None else SubType.Name(self.kind)

    @property
    def is_spread(self) -> bool:
        """Whether entries are spread over consumers: in no order, and without cumulative acknowledgements."""
        return self.kind in SPREAD

    def check(self) -> None:
        """Assert what is true between passes: who is attached, and that no acknowledged entry will be delivered."""
        assert bool(self.consumers) == (self.dispatcher is not None) == (self.kind is not None), self
        assert bool(self.consumers) == (self in self.partition.attached), self
        assert self.read > self.cursor.mark_delete, (self, self.cursor.mark_delete)
        assert self.view is None or self.reads_compacted, self
        assert all(consumer.subscription is self for consumer in self.consumers), self
        self.cursor.check()
        if self.dispatcher is not None:
            self.dispatcher.check()
        if self.withheld is not None:
            self.withheld.check()
            assert self.withheld.by_transaction, self
            for consumer in self.consumers:
                for ledger_id, entries in self.dispatcher.held_by(consumer) if self.dispatcher is not None else ():
                    assert len(self.left_of(ledger_id, entries)) == len(entries), (self, consumer, ledger_id)

    def ledgers_from(self, ledger_id: int) -> Sequence[StoredLedger]:
        """The ledgers that consumers read, from that id on: those of the view up to its horizon, then the topic's."""
        topic = self.partition
        return topic.ledgers_from(ledger_id) if self.view is None else topic.with_view(self.view, ledger_id)

    def find(self, ledger_id: int) -> ReadableLedger | None:
        """The topic's ledger with that id; if it is deleted, the one of a compacted view."""
        ledger = self.partition.find(ledger_id)
        if ledger is None and (view := self.view or self.partition.view) is not None:
            return view.find(ledger_id)
        return ledger

    def has(self, position: Position) -> bool:
        """Whether the entry exists, or existed before a compaction, or is entry -1 of a ledger."""
        ledger = self.find(position[0])
        return ledger is not None and -1 <= position[1] < ledger.entries

    def advance(self, cursor: Cursor | None = None) -> None:
        """Move the mark-delete position over acknowledged entries behind it; a ledger of a view alone is no gap.

        cursor: another one than the subscription's.
        """
        cursor = cursor or self.cursor
        topic, view, ledger_id = self.partition, self.view or self.partition.view, cursor.mark_delete[0]
        is_before = view is not None and ledger_id < topic.ledgers[0].ledger_id
        cursor.advance(topic.with_view(view, ledger_id) if is_before else topic.ledgers_from(ledger_id))

    def rewind(self) -> None:
        """Set the read position back behind the mark-delete position: unacknowledged entries are delivered again."""
        ledger_id, entry_id = self.cursor.mark_delete
        self.read = ledger_id, entry_id + 1
        if self.withheld is not None:
            self.withheld.is_passed = True
        if self.sieve is not None:      # a reset has forgotten what did not match
            self.sieve.judged_up_to = self.read

    def attach(self, consumer: Consumer) -> None:
        """Add a consumer.  The subscription has a dispatcher of the consumer's type."""
        assert self.dispatcher is not None, self
        self.consumers[consumer] = None
        self.dispatcher.attach(consumer)

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        assert self.dispatcher is not None, self
        self._count_out(consumer)
        del self.consumers[consumer]
        if self.consumers:
            self.dispatcher.detach(consumer)
        else:
            if self.partition.name.is_segment and (self.kind == SubType.Exclusive or consumer.is_sole):
                self.left_alone = consumer.name, self.partition.now_ms
            self.vacate()

    def vacate(self) -> None:
        """Detach all consumers.  No entry counts as delivered any more."""
        for consumer in self.consumers:
            self._count_out(consumer)
        self.consumers.clear()
        self.kind = self.dispatcher = self.view = None
        self.reads_compacted = False
        self.rewind()

    def _count_out(self, consumer: Consumer) -> None:
        """Keep the counters of a consumer that leaves."""
        its = consumer.messages_out, consumer.bytes_out, consumer.entries_out, consumer.redelivered, consumer.chunks_out
        self.departed_out = tuple(map(sum, zip(self.departed_out, its, strict=True)))
        self.last_ms = tuple(map(max, self.last_ms, (consumer.acked_ms, consumer.consumed_ms, consumer.flow_ms)))
        self.may_lack_acks = self.may_lack_acks or bool(consumer.consumed_ms)

    def deliverable(self, ledger: ReadableLedger, first: int, end: int) -> Iterator[Entries]:
        """Entries first .. end - 1 of the ledger that are neither acknowledged, parked nor withheld, ascending."""
        if self.view is not None and isinstance(ledger, CompactedLedger):
            yield from self._deliverable_of_view(ledger, first, end)
            return
        if end > first and ledger.has_lost:
            assert isinstance(ledger, Ledger), ledger
            self.partition.give_up_lost(ledger)
        for entries in self.cursor.unacknowledged_batches(ledger, first, end):
            if self.parks and len(parked := self.parked(ledger.ledger_id, entries)):
                entries = np.setdiff1d(np.asarray(entries), parked, assume_unique=True)
            if self.withheld is not None:
                yield from self.withheld.batches(self.cursor, ledger, entries)
            elif len(entries):
                yield entries

    def _deliverable_of_view(self, ledger: CompactedLedger, first: int, end: int) -> Iterator[Entries]:
        entries = ledger.kept_of(first, end)
        for at in range(0, len(entries), _STRETCH):
            if len(some := self.left_of(ledger.ledger_id, entries[at:at + _STRETCH])):
                yield some

    def left_of(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entries among these (n,), n > 0, ascending, that are neither acknowledged, parked nor withheld."""
        first = int(entries[0])
        entries = entries[~self.cursor.acknowledged(ledger_id, first, int(entries[-1]) + 1)[entries - first]]
        if len(entries) and self.parks and len(parked := self.parked(ledger_id, entries)):
            entries = np.setdiff1d(entries, parked, assume_unique=True)
        if self.withheld is not None and (ledger := self.find(ledger_id)) is not None:
            entries = np.asarray(self.withheld.left_of(self.cursor, ledger, entries))
        return entries

    @property
    def parks(self) -> bool:
        """Whether entries may be parked."""
        return bool(self.deaths_max or self.cursor.dead)

    def parked(self, ledger_id: int, entries: Entries) -> NDArray[np.int64]:
        """The entries among these that are parked: they had too many deaths, or go to the dead letter topic."""
        dead, counts = self.cursor.dead.among(ledger_id, entries), None
        if self.deaths_max and (counts := self.cursor.deaths.of(ledger_id, entries)) is not None:
            return np.union1d(dead, np.asarray(entries, np.int64)[counts >= self.deaths_max])
        return dead

    @property
    def counts_deliveries(self) -> bool:
        """Whether entries that were delivered too often become dead letters."""
        return self.is_spread and self.is_durable and self.partition.policies.dead_letter_redeliveries > 0

    def messages(self, ledger: ReadableLedger, entries: Entries) -> NDArray[np.uint32]:
        """The number (n,) of messages of each entry that are neither acknowledged nor withheld."""
        if isinstance(ledger, CompactedLedger):      # all count, as clients count the removed ones of a batch too
            messages: NDArray[np.uint32] = ledger.rows_of(entries)["messages"]
            return messages
        messages = self.cursor.messages_of(ledger, entries)
        return messages if self.withheld is None else self.withheld.messages(self.cursor, ledger, entries, messages)
