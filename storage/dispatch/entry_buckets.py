"""Entry buckets: stream consumers share a segment of a scalable topic, each with some of its buckets, in order.

All sharers name the same buckets, and the broker spreads these over them.  A bucket that moves is held back until its
former consumer has acknowledged what it has of it, or has left, as hashes are in key_shared.py.

A segment has one consumer first, an Exclusive one, and it is shared once there are more consumers than segments.  Its
consumer is told so, finishes what it has, closes and subscribes anew, which may take as long as its application likes.
The others need not wait for that to subscribe: each gets its share of the buckets, except of those of which the first
one has entries.  The first one's share waits for it, so that its keys do not go to others and back.

    A Exclusive             gets everything
    B subscribes            A gets nothing any more; B gets half of the buckets, except those that A has entries of
    A acknowledges          B gets those of its half too
    A closes                its half waits for a moment, as A may just have left
    A subscribes            A gets its half

The other way round it is the same: a consumer that is alone again attaches as Exclusive while former sharers finish.
It acknowledges everything up to a message, so it needs positions in order, and gets nothing before they have finished.
A segment that goes from one Exclusive consumer to another is shared as long as well: the newcomer gets nothing before
the former one has finished.
So the *owners* of the buckets are those that attached last: one Exclusive consumer, or neighbouring sharers.
"""
from collections.abc import Sequence

import numpy as np

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.cursors.pending_acks import NEVER_MS, Entries
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.key_shared import KeyShared
from geminga.storage.dispatch.ranges import HASHES, Buckets
from geminga.storage.dispatch.removed_entries import RemovedEntries
from geminga.storage.ledgers.position import Position, entries_up_to
from geminga.storage.ledgers.readable import ReadableLedger
from geminga.storage.topics.subscription import (
    Batch,
    Consumer,
    EntriesOfLedger,
    EntryIds,
    Obstacle,
    Subscription,
    SubType,
    busy,
)

_WHOLE = [(0, HASHES - 1)]      # the bounds while one consumer has everything
_RETURN_MS = 1_000              # for a consumer that has closed as Exclusive to subscribe as a sharer


class EntryBuckets(KeyShared):
    """Delivers each entry to the consumer that has its bucket."""

    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        # Name of the Exclusive consumer that had everything when sharers came; it will be one of them.  "": none.
        self._awaited = ""

    def check(self) -> None:
        """Assert that a consumer is sole if it has not asked for buckets, and what KeyShared asserts."""
        super().check()
        assert all(consumer.is_sole != consumer.shares_buckets for consumer in self.subscription.consumers), self
        assert isinstance(self.ranges, Buckets), self
        assert self._awaited or self.news_due_ms == NEVER_MS, self

    # -- consumers

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        owners = self._owners()
        if not owners:
            return None
        if not consumer.shares_buckets:
            if consumer.ranges is not None:
                return Obstacle(owners[0], busy("Subscription is of different type: another Key_Shared policy"))
            is_taken = owners[0].is_sole and not _succeeds(owners[0], consumer)
            return Obstacle(owners[0], busy("Exclusive consumer is already connected")) if is_taken else None
        if owners[0].shares_buckets and owners[0].ranges != consumer.ranges:
            text = f"Consumer {owners[0].name} shares the segment by {len(owners[0].ranges or ())} other entry buckets"
            return Obstacle(owners[0], Refusal(api.ConsumerAssignError, text))
        return None

    def _owners(self) -> list[Consumer]:
        """The consumers that have the buckets: the last one to attach, and sharers that attached just before it."""
        owners: list[Consumer] = []
        for consumer in reversed(self.subscription.consumers):
            if owners and (owners[0].is_sole or consumer.is_sole):
                break
            owners.append(consumer)
        return owners

    def attach(self, consumer: Consumer) -> None:
        consumer.is_sole = not consumer.shares_buckets
        if self.ranges is None:
            self.ranges = Buckets(_WHOLE)
        super().attach(consumer)

    def take_over(self, consumer: Consumer, held: list[EntriesOfLedger]) -> None:
        """Take in an Exclusive consumer with the entries that it holds."""
        self.attach(consumer)
        for ledger_id, entries in held:
            if len(entries):
                self.pending.give(ledger_id, entries, consumer.slot, is_again=False)
                messages = self.subscription.messages(self._known(ledger_id), entries)
                self._count_unacknowledged(consumer, int(messages.sum()))

    def _join(self, consumer: Consumer) -> None:
        subscription = self.subscription
        before = next((each for each in reversed(subscription.consumers) if each is not consumer), None)
        if before is not None and before.is_sole and consumer.shares_buckets:
            self._await(before.name)
        elif before is None and consumer.shares_buckets:
            name, left_ms = subscription.left_alone
            if name != consumer.name and 0 <= subscription.partition.now_ms - left_ms < _RETURN_MS:
                self._await(name, left_ms + _RETURN_MS)
        elif consumer.name == self._awaited:
            assert isinstance(self.ranges, Buckets), self
            self.ranges.give_kept(consumer.slot)
            self._await("")
        self._spread()

    def _leave(self, consumer: Consumer) -> None:
        if consumer.is_sole and consumer.name == self._awaited:
            self.news_due_ms = self.subscription.partition.now_ms + _RETURN_MS
        self._spread()

    def _await(self, name: str, due_ms: int = NEVER_MS) -> None:
        """Keep a share of the buckets for a consumer of this name, until this time; "": for none any more."""
        self._awaited, self.news_due_ms = name, due_ms

    def _spread(self) -> None:
        """Give the buckets to their owners, which may have other bounds than the former ones."""
        owners = self._owners()
        if not owners or owners[0].is_sole:
            self._await("")
        bounds = _WHOLE if not owners or owners[0].ranges is None else owners[0].ranges
        assert isinstance(self.ranges, Buckets), self
        if bounds != self.ranges.bounds:
            self.ranges = Buckets(bounds)
            self._hash_removed_anew()
        self.ranges.spread([consumer.slot for consumer in owners], keeps_share=bool(self._awaited))
        self._reassigned()

    def _hash_removed_anew(self) -> None:
        """Find the buckets of removed entries again; those of deleted ledgers have lost their hashes, and are dropped.
        """
        before, self.removed = self.removed, RemovedEntries()
        for ledger_id, rows in before:
            if (ledger := self.subscription.partition.find(ledger_id)) is not None:
                entries = rows["entry_id"].copy()
                self.removed.add(ledger_id, entries, rows["slot"], self.hashes_of(ledger, entries))

    # -- entries

    def deal(
        self, takers: list[Consumer], ledger: ReadableLedger, entries: Entries, batches: list[Batch], *, is_again: bool
    ) -> int:
        """Count entries that have messages of several buckets, and deliver all as KeyShared does."""
        if not is_again:
            assert isinstance(self.ranges, Buckets), self
            self.subscription.straddling += self.ranges.straddling(ledger, np.asarray(entries))
        return super().deal(takers, ledger, entries, batches, is_again=is_again)

    def next_batches(self, ledgers: Sequence[ReadableLedger]) -> list[Batch]:
        # The clock may have been set back.
        if self.news_due_ms != NEVER_MS and not 0 < self.news_due_ms - self.subscription.partition.now_ms <= _RETURN_MS:
            self._await("")
            self._spread()
        batches = super().next_batches(ledgers)
        self._end_sharing()
        return batches

    def _end_sharing(self) -> None:
        """Make the subscription Exclusive again if one sole consumer is left that holds everything before `read`."""
        subscription = self.subscription
        consumer = subscription.first_consumer
        if consumer is None or not consumer.is_sole or len(subscription.consumers) > 1:
            return
        # Exclusive takes everything unacknowledged before `read` for delivered, also entries whose time has not come.
        if self.pending.to_redeliver or self.chunks.waiting or subscription.partition.schedule is not None:
            return
        consumer.is_sole = consumer.is_blocked = False
        consumer.slot = consumer.unacknowledged = 0
        subscription.kind, subscription.dispatcher = SubType.Exclusive, Exclusive(subscription)
        subscription.cursor.last_type = SubType.Exclusive

    def held_up_to(self, highest: Position) -> dict[int, EntryIds]:
        held: dict[int, EntryIds] = {}
        soles = [consumer.slot for consumer in self.subscription.consumers if consumer.is_sole]
        for ledger_id, entries, slots in self.pending.out():
            stop = entries_up_to(highest, ledger_id, int(entries[-1]) + 1)
            its = entries[np.isin(slots, soles) & (entries < stop)]
            if len(its):
                held[ledger_id] = its.tolist()
        return held


def may_follow(subscription: Subscription, kind: "SubType.ValueType", consumer: Consumer) -> bool:
    """Whether a consumer may attach to a subscription that is to be shared from then on, or ends to be."""
    dispatcher, first = subscription.dispatcher, subscription.first_consumer
    if isinstance(dispatcher, EntryBuckets):
        return kind == SubType.Exclusive
    if type(dispatcher) is not Exclusive or first is None or first.ranges is not None or subscription.view is not None:
        return False
    return consumer.shares_buckets or (kind == SubType.Exclusive and _succeeds(first, consumer))


def _succeeds(former: Consumer, consumer: Consumer) -> bool:
    """Whether a segment was assigned to one stream consumer after another, which have a consumer each.

    Clients name these after the stream consumer and the segment.
    """
    topic = former.subscription.partition
    is_segment = topic.name.is_segment or topic.is_closed      # as are partitions of a topic that was made scalable
    return is_segment and former.name != consumer.name and all(
        each.name.endswith(f"-seg-{topic.name.segment_number}") and each.ranges is None for each in (former, consumer))


def share(subscription: Subscription) -> None:
    """Have the subscription of an Exclusive consumer be shared by buckets from now on."""
    former = subscription.dispatcher
    assert type(former) is Exclusive and former.active is not None, subscription
    held, consumer = former.held_by(former.active), former.active
    subscription.kind, subscription.dispatcher = SubType.Key_Shared, (dispatcher := EntryBuckets(subscription))
    dispatcher.take_over(consumer, held)
