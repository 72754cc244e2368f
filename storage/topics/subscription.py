"""A subscription: a name, a cursor, the consumers attached, and how far they have been given entries."""
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.storage.catalogue.policies import Policies
from geminga.storage.cursors.cursor import Cursor
from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.delayed.index import DelayedIndex, Released
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger, View
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import StoredLedger
from geminga.storage.options import StorageOptions
from geminga.storage.topics.permits import PERMITS_MAX, UNBOUNDED, Allowance, within_permits
from geminga.storage.topics.producers import Producers
from geminga.storage.topics.rate_limits import Limited, Limits

SubType = api.CommandSubscribe.SubType
_SPREAD = SubType.Shared, SubType.Key_Shared
_STRETCH = 4_096           # entries of a compacted view that are looked at together

Nacked = list[tuple[int, NDArray[np.int64]]]     # [(ledger id, entries)]


class Topic(Protocol):
    """A topic as its subscriptions, and the commands of clients, see it: a Partition, or a NonPersistentTopic.

    A topic without a store has no ledgers but the one of the entries that pass through it.
    """

    name: TopicName
    options: StorageOptions
    policies: Policies                # that hold now
    producers: Producers
    subscriptions: dict[tuple[str, bool], "Subscription"]      # by name, and whether it is durable
    attached: dict["Subscription", None]                       # subscriptions that have consumers
    rate_limits: Limits | None
    now_ms: int                       # time of the pass
    chunks_in: int                    # published chunks of large messages, since it was opened

    @property
    def is_persistent(self) -> bool:
        """Whether entries are stored."""

    @property
    def is_closed(self) -> bool:
        """Whether no more entries will come: it is terminated, or has moved to another cluster."""

    @property
    def last_confirmed(self) -> Position:
        """Position of the last entry."""

    @property
    def ledgers(self) -> list[Ledger]:
        """All ledgers, ascending."""

    @property
    def view(self) -> View | None:
        """The compacted view that holds; None: there is none."""

    @property
    def schedule(self) -> DelayedIndex | None:
        """The index of delayed entries; None: no entry was ever delayed."""

    def find(self, ledger_id: int) -> Ledger | None:
        """The ledger with that id."""

    def ledgers_from(self, ledger_id: int) -> list[Ledger]:
        """The ledger with that id, or the next one, and all behind it."""

    def with_view(self, view: View | None, ledger_id: int) -> Sequence[StoredLedger]:
        """The view's compacted ledgers from that id up to its horizon, and the ledgers behind."""

    def give_up_lost(self, ledger: Ledger) -> None:
        """Discard the entries whose index rows are lost."""

    def bind(self, policies: Policies) -> None:
        """Apply the policies that hold from now on."""

    def add_subscription(self, name: str, cursor: Cursor) -> "Subscription":
        """A new subscription with that cursor."""

    def remove_subscription(self, subscription: "Subscription") -> None:
        """Remove this subscription; another that has its name by now stays."""


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
    priority: int = 0                         # level: lower ones are served first
    ranges: list[tuple[int, int]] | None = None      # of hashes, first and last, that a sticky Key_Shared consumer wants
    is_out_of_order_allowed: bool = False
    epoch: int | None = None                  # what its client counts its redeliver-alls with
    permits: int = 0          # messages it has asked for and not been sent; below zero at most by one batch
    granted: int = 0                          # messages it has asked for in all
    bytes_out: int = 0                        # of entries it was given
    entries_out: int = 0
    chunks_out: int = 0                       # of large messages, among these entries
    redelivered: int = 0                      # messages it gave back
    acknowledged: int = 0                     # messages
    metadata: dict[str, str] = field(default_factory=dict)      # what its client notes about it
    takes_any_schema: bool = False            # whatever the topic's is
    flow_ms: int = 0                          # when it last asked for more, ...
    consumed_ms: int = 0                      # ... was given something, ...
    acked_ms: int = 0                         # ... and acknowledged something
    counted: tuple = ()                       # see statistics.py: what it had counted when the last window ended, ...
    rates: tuple = ()                         # ... and a second's share of that window
    # Of consumers that share a subscription:
    slot: int = 0
    unacknowledged: int = 0                   # messages it has been sent and not acknowledged
    is_blocked: bool = False                  # by too many of those
    hashes_cleared: int = 0                   # of keys that had to be settled before another got more of them, and are
    is_told_end: bool = False                 # that the topic is terminated, and drained

    def grant(self, permits: int) -> None:
        permits = min(permits, PERMITS_MAX - self.permits)
        self.permits += permits
        self.granted += permits

    @property
    def messages_out(self) -> int:
        """Messages that the consumer was delivered."""
        return self.granted - self.permits


Batch = tuple[Consumer, Ledger, Entries]      # to be delivered: these entries of the ledger, ascending


def busy(text: str) -> Refusal:
    return Refusal(api.ConsumerBusy, text)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a consumer may not attach, and the consumer that is in its way."""

    holder: Consumer
    refusal: Refusal


class Dispatcher(ABC):
    """Chooses which consumer gets which entries of one subscription, as long as that has consumers."""

    is_woken_by_acknowledgements = False     # they may let something be given out

    def __init__(self, subscription: "Subscription"):
        self.subscription = subscription

    # -- consumers

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        """The consumer whose connection keeps this one from attaching, with the refusal; None: it may attach."""
        return None

    @abstractmethod
    def attach(self, consumer: Consumer) -> None:
        """Take in a consumer that the subscription lists now."""

    @abstractmethod
    def detach(self, consumer: Consumer) -> None:
        """Let go of a consumer that the subscription lists no more; entries that it holds are to be redelivered."""

    def news(self) -> list[tuple[Consumer, bool]]:
        """[(consumer, whether it is active)] of all that are to be told so since the last call."""
        return []

    # -- entries

    @abstractmethod
    def next_batches(self, ledgers: list[Ledger]) -> list[Batch]:
        """Who gets what now.  Takes permits, and moves the read position.

        ledgers: those from the read position's on.
        """

    def bounds_changed(self) -> None:      # noqa: B027
        """Apply policies and options of the subscription, which are new."""

    def fell_due(self, released: Released) -> None:      # noqa: B027
        """Deliver delayed entries whose time has come, where the read position has passed them."""

    @abstractmethod
    def has_demand(self, ledgers: list[Ledger]) -> bool:
        """Whether a consumer has permits, and there are entries for it."""

    def has_unread(self, ledgers: list[Ledger]) -> bool:
        """Whether the ledgers, those from the read position on, have entries at or behind it."""
        return bool(ledgers) and self.subscription.read < (ledgers[-1].ledger_id, ledgers[-1].entries)

    def reach(self, ledger: Ledger, entries: Entries, messages: NDArray[np.uint32], permits: int) -> tuple[int, int]:
        """(entries, messages) that `permits` messages and the subscription's allowance reach; both are taken off the allowance."""
        allowance = self.subscription.allowance
        if allowance is None:
            return within_permits(messages, permits)
        count = within_permits(messages, min(permits, allowance.room))[0]
        if allowance.counts_entries:
            count = min(count, allowance.messages)
        if allowance.size < UNBOUNDED:
            sizes = ledger.column("size")
            sizes = sizes[entries.start:entries.start + count] if isinstance(entries, range) else sizes[entries[:count]]
            count, size = within_permits(sizes, allowance.size)
            allowance.size -= size
        many = int(messages[:count].sum())
        allowance.messages -= count if allowance.counts_entries else many
        return count, many

    @abstractmethod
    def acknowledged(self, ledger: Ledger, entries: list[int] | NDArray[np.int64]) -> None:
        """Note entries (n,), sorted, that are newly acknowledged."""

    @abstractmethod
    def acknowledged_up_to(self, position: Position) -> None:
        """Note that everything up to the position is acknowledged."""

    @abstractmethod
    def part_acknowledged(self, ledger: Ledger, entry_id: int, messages: int) -> None:
        """Note that `messages` messages of a batch are newly acknowledged, and others of it are not."""

    @abstractmethod
    def held_by(self, consumer: Consumer) -> list[tuple[int, NDArray[np.int64]]]:
        """[(ledger id, entries)] that the consumer was delivered, and that are not acknowledged."""

    @abstractmethod
    def holds(self, consumer: Consumer, position: Position) -> bool:
        """Whether the consumer was delivered the entry, and has not acknowledged it."""

    @abstractmethod
    def released(self, parked: list[Position]) -> None:
        """Deliver entries that were parked, and are parked no more."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> Nacked:
        """Redeliver what the consumer holds, or of that only the wanted {ledger id: entries}; returns what counts as redelivered."""

    @abstractmethod
    def let_go(self) -> None:
        """Forget all that was delivered: it is never redelivered."""

    @abstractmethod
    def causes(self) -> list[dict]:
        """[{"cause": ...}] of all that keeps consumers from getting more entries."""

    @abstractmethod
    def forget(self, ledger: Ledger) -> None:
        """Forget a ledger that is about to be deleted."""


@dataclass(eq=False, slots=True)
class Subscription:
    """`read` is the next position to be given out: memory only, and never before the mark-delete position."""

    name: str
    cursor: Cursor
    partition: Topic = field(repr=False)
    options: StorageOptions = field(repr=False)
    deaths_max: int = 0                                        # an entry that had so many is parked; 0: deaths are not counted
    dispatcher: "Dispatcher | None" = field(default=None, repr=False)     # as long as anybody is attached
    kind: int | None = None                                    # a SubType, likewise
    consumers: dict[Consumer, None] = field(default_factory=dict)      # in the order in which they came
    reads_compacted: bool = False                              # its consumers, as the first of them asked for
    view: View | None = None           # that they get up to its horizon, as long as the mark-delete position has not reached that
    read: Position = (0, 0)
    allowance: Allowance | None = None                         # in this pass, where a rate bounds it
    limited: Limited | None = None
    last_kind: int | None = None                               # of the consumers that were attached last
    departed_out: tuple[int, ...] = (0, 0, 0, 0, 0)                # messages, bytes, entries given out, redelivered, chunks: who has left
    dropped: int = 0                                           # messages that nobody could take, of a topic that keeps none
    last_ms: tuple[int, int, int] = (0, 0, 0)                  # acknowledged, given out, asked for more: when who has left last did
    advanced_ms: int = 0                                       # when the mark-delete position last moved, ...
    expired_ms: int = 0                                        # ... and something expired
    counted: tuple = ()                                        # as of a consumer
    rates: tuple = ()
    properties: dict[str, str] = field(default_factory=dict)              # what users note about it
    is_replicated: bool = False                                # is to be known in other clusters; there are none

    @property
    def has_moved(self) -> bool:
        """Whether everything is acknowledged on a topic that has moved to another cluster."""
        return bool(self.partition.policies.migrated_to) and self.partition.is_persistent and \
            self.cursor.mark_delete >= self.partition.last_confirmed

    @property
    def first_consumer(self) -> Consumer | None:
        """The consumer that attached first."""
        return next(iter(self.consumers), None)

    @property
    def is_durable(self) -> bool:
        return self.cursor.is_durable

    @property
    def key(self) -> tuple[str, bool]:
        """A durable subscription and one that is not may share a name."""
        return self.name, self.is_durable

    @property
    def kind_name(self) -> str:
        return "None" if self.kind is None else SubType.Name(self.kind)

    @property
    def is_spread(self) -> bool:
        """Whether entries are spread over consumers: there is no order, and no cumulative acknowledgement."""
        return self.kind in _SPREAD

    def check(self) -> None:
        """Assert what is true between passes: who is attached, and that nothing acknowledged is about to be delivered."""
        assert bool(self.consumers) == (self.dispatcher is not None) == (self.kind is not None), self
        assert bool(self.consumers) == (self in self.partition.attached), self
        assert self.read > self.cursor.mark_delete, (self, self.cursor.mark_delete)
        assert self.view is None or self.reads_compacted, self
        assert all(consumer.subscription is self for consumer in self.consumers), self

    def ledgers_from(self, ledger_id: int) -> list[Ledger]:
        """The partition's from there on; up to the horizon of the view that its consumers read, what that has in their place."""
        return self.partition.ledgers_from(ledger_id) if self.view is None else self.partition.with_view(self.view, ledger_id)

    def find(self, ledger_id: int) -> Ledger | None:
        """The partition's; else what a compacted view has of it."""
        view = self.view or self.partition.view
        return self.partition.find(ledger_id) or (view and view.find(ledger_id))

    def has(self, position: Position) -> bool:
        """Whether there is such an entry, or there was one, or it would be the one before a ledger's first."""
        found = self.find(position[0])
        return found is not None and -1 <= position[1] < found.entries

    def advance(self) -> None:
        """Move the mark-delete position over what is acknowledged behind it; ledgers that only a compacted view has are no gap."""
        view, found, ledger_id = self.view or self.partition.view, self.partition, self.cursor.mark_delete[0]
        is_before = view is not None and ledger_id < found.ledgers[0].ledger_id
        self.cursor.advance(found.with_view(view, ledger_id) if is_before else found.ledgers_from(ledger_id))

    def rewind(self) -> None:
        """Set the read position back behind the mark-delete position: unacknowledged entries are delivered again."""
        ledger_id, entry_id = self.cursor.mark_delete
        self.read = ledger_id, entry_id + 1

    def attach(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.dispatcher.attach(consumer)

    def detach(self, consumer: Consumer) -> None:
        self._count_out(consumer)
        del self.consumers[consumer]
        if self.consumers:
            self.dispatcher.detach(consumer)
        else:
            self.vacate()

    def vacate(self) -> None:
        """Detach all consumers; nothing counts as delivered and unacknowledged any more."""
        for consumer in self.consumers:
            self._count_out(consumer)
        self.consumers.clear()
        if self.kind is not None:
            self.last_kind = self.kind
        self.kind = self.dispatcher = self.view = None
        self.reads_compacted = False
        self.rewind()

    def _count_out(self, consumer: Consumer) -> None:
        """Keep the counters of a consumer that leaves."""
        its = consumer.messages_out, consumer.bytes_out, consumer.entries_out, consumer.redelivered, consumer.chunks_out
        self.departed_out = tuple(map(sum, zip(self.departed_out, its, strict=True)))
        self.last_ms = tuple(map(max, self.last_ms, (consumer.acked_ms, consumer.consumed_ms, consumer.flow_ms)))

    def deliverable(self, ledger: Ledger, first: int, end: int) -> Iterator[Entries]:
        """The entries in [first, end) that are neither acknowledged nor parked, in order."""
        if self.view is not None and ledger.view:
            yield from self._deliverable_of_view(ledger, first, end)
            return
        if end > first and ledger.has_lost:
            self.partition.give_up_lost(ledger)
        for entries in self.cursor.unacknowledged_batches(ledger, first, end):
            parked = self.parked(ledger.ledger_id, entries) if self.deaths_max else ()
            if parked:
                entries = np.setdiff1d(np.asarray(entries), parked, assume_unique=True)
            if len(entries):
                yield entries

    def _deliverable_of_view(self, ledger: CompactedLedger, first: int, end: int) -> Iterator[Entries]:
        entries = ledger.kept_of(first, end)
        for at in range(0, len(entries), _STRETCH):
            if len(some := self.left_of(ledger.ledger_id, entries[at:at + _STRETCH])):
                yield some

    def left_of(self, ledger_id: int, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the entries, some ascending ones, that are neither acknowledged nor parked."""
        first = int(entries[0])
        entries = entries[~self.cursor.acknowledged(ledger_id, first, int(entries[-1]) + 1)[entries - first]]
        if len(entries) and (parked := self.parked(ledger_id, entries)):
            entries = np.setdiff1d(entries, parked, assume_unique=True)
        return entries

    def parked(self, ledger_id: int, entries: Entries) -> list[int]:
        """The entries among these that too many consumers died over."""
        counts = self.cursor.deaths.of(ledger_id, entries) if self.deaths_max else None
        return [] if counts is None else [int(entries[at]) for at in np.flatnonzero(counts >= self.deaths_max).tolist()]

    def all_parked(self) -> list[Position]:
        """Positions of all unacknowledged entries that are parked."""
        found = self.cursor.deaths.at_least(self.deaths_max) if self.deaths_max else {}
        return [(ledger_id, entry_id) for ledger_id, entries in sorted(found.items()) for entry_id in entries.tolist()
                if not self.cursor.is_acknowledged(ledger_id, entry_id)]

    def messages(self, ledger: Ledger, entries: Entries) -> NDArray[np.uint32]:
        """How many messages of each entry (n,) are not acknowledged; of a compacted view all, as clients count those that are gone."""
        if ledger.view:
            return ledger.rows_of(entries)["messages"]
        messages = ledger.messages[entries.start:entries.stop] if isinstance(entries, range) else ledger.messages[entries]
        parts = self.cursor.parts.get(ledger.ledger_id)
        if parts:
            messages = messages.copy()
            for at, bits in self.parts_of(ledger.ledger_id, entries):
                messages[at] = bits.bit_count()
        return messages

    def parts_of_view(self, ledger: CompactedLedger, entries: NDArray[np.int64], parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """[(which of the entries, bits)] of those of which some messages are gone, or, as parts say, acknowledged; in order."""
        found = dict(ledger.cut_of(entries))
        for at, bits in parts:
            found[at] = found.get(at, bits) & bits
        return sorted(found.items())

    def parts_of(self, ledger_id: int, entries: Entries) -> list[tuple[int, int]]:
        """[(which of the entries, its bits)] of those that are acknowledged in part, in order."""
        parts, found = self.cursor.parts.get(ledger_id, {}), []
        if len(entries) < len(parts):
            ids = entries if isinstance(entries, range) else entries.tolist()
            return [(at, parts[entry_id]) for at, entry_id in enumerate(ids) if entry_id in parts]
        for entry_id, bits in parts.items():
            at = entry_id - entries.start if isinstance(entries, range) else int(np.searchsorted(entries, entry_id))
            if 0 <= at < len(entries) and entries[at] == entry_id:
                found.append((at, bits))
        return sorted(found)
