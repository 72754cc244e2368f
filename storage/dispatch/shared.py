"""Shared: each entry goes to one of many consumers, in turns; consumers of lower priority levels are served first."""
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import NOBODY, SLOTS_MAX, WAITING, Entries, PendingAcks
from geminga.storage.delayed.index import DelayedIndex, Released
from geminga.storage.dispatch.chunk_pins import WAITING_MAX, ChunkPins, Message
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger
from geminga.storage.topics.permits import within_permits
from geminga.storage.topics.subscription import Batch, Consumer, Dispatcher, EntriesOfLedger, EntryIds, Subscription

_TURN = 500                # entries in a row to one consumer, if there are as many for each of the others
_TURNS = 4                 # turns of each consumer, if there are many more entries
_STRETCH = 1 << 16         # entries examined at once for delays
_CAUSES_MAX = 100          # consumers listed in one answer for which chunks wait


class Shared(Dispatcher):
    """Spreads entries over all consumers, and knows which consumer holds which entry."""

    is_woken_by_acknowledgements = True

    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        self.pending = PendingAcks()
        self.chunks = ChunkPins()
        self.unacknowledged = 0                                  # messages that all consumers hold
        self.is_blocked = False                                  # by too many of these
        self.broker_bound = 0                                    # bound of these while the broker has too many; 0: none
        self._slots: list[Consumer | None] = [None]              # slot -> consumer; slot 0 stands for none
        self._free: list[int] = []                               # slots of consumers that have left, a heap
        self._last_served = 0                                    # slot

    def check(self) -> None:
        """Assert that slots and counts of messages agree with the consumers that are attached."""
        self.pending.check()
        self.chunks.check()
        consumers = self.subscription.consumers
        assert all(self._slots[consumer.slot] is consumer for consumer in consumers), self
        assert len(consumers) + len(self._free) + 1 == len(self._slots), self
        assert self.unacknowledged == sum(consumer.unacknowledged for consumer in consumers), self
        held = [0] * len(self._slots)
        for ledger_id, entries, slots in self.pending.out():
            messages = self.subscription.messages(self._known(ledger_id), entries)
            for slot, count in zip(slots.tolist(), messages.tolist(), strict=True):
                held[slot] += count
        assert held == [consumer.unacknowledged if consumer else 0 for consumer in self._slots], (self, held)

    def succeed(self, other: "Shared") -> None:
        """Take over consumers and entries from the subscription's former dispatcher, in whose place this one is."""
        assert other.subscription is self.subscription, (self, other)
        self.pending.adopt(other.pending)
        self.chunks, self.unacknowledged, self.is_blocked = other.chunks, other.unacknowledged, other.is_blocked
        self.broker_bound, self._last_served = other.broker_bound, other._last_served
        self._slots, self._free = other._slots, other._free

    # -- consumers

    def attach(self, consumer: Consumer) -> None:
        if self._free:
            consumer.slot = heapq.heappop(self._free)
            assert self._slots[consumer.slot] is None, self
            self._slots[consumer.slot] = consumer
        else:
            assert len(self._slots) <= SLOTS_MAX      # SUBSCRIBE refuses more
            consumer.slot = len(self._slots)
            self._slots.append(consumer)

    def detach(self, consumer: Consumer) -> None:
        assert self._slots[consumer.slot] is consumer, (self, consumer)
        if self.chunks:
            self._recall(self.chunks.left(consumer.slot))
        self.pending.take_back(consumer.slot)
        self._slots[consumer.slot] = None
        heapq.heappush(self._free, consumer.slot)
        self._count_unacknowledged(consumer, -consumer.unacknowledged)

    def _count_unacknowledged(self, consumer: Consumer, messages: int) -> None:
        """Count messages that the consumer was delivered, or, below 0, holds no longer.

        A consumer with too many is blocked until half of them are acknowledged, and so are all consumers together.
        """
        limit = self.subscription.partition.policies.max_unacked_messages_per_consumer
        consumer.unacknowledged += messages
        self.unacknowledged += messages
        consumer.is_blocked = _is_blocked(consumer.is_blocked, consumer.unacknowledged, limit)
        self.is_blocked = _is_blocked(self.is_blocked, self.unacknowledged, self._limit())

    def _limit(self) -> int:
        """Messages that all consumers together may have unacknowledged; 0: any number."""
        limit, bound = self.subscription.partition.policies.max_unacked_messages_per_subscription, self.broker_bound
        return min(limit, bound) if limit and bound else limit or bound

    def bounds_changed(self) -> None:
        """Apply new bounds of unacknowledged messages.  If delays were switched off, deliver all delayed entries."""
        partition = self.subscription.partition
        if partition.schedule is not None and not partition.policies.delayed_delivery:
            self.fell_due([(ledger, partition.schedule.waiting_in(ledger)) for ledger in partition.ledgers])
        self.is_blocked = False
        for consumer in self.subscription.consumers:
            consumer.is_blocked = False
            self._count_unacknowledged(consumer, 0)

    def room(self, consumer: Consumer) -> int:
        """Messages that the consumer can be delivered now; 0 or less: none."""
        if consumer.is_blocked or self.is_blocked:
            return 0
        policies, room = self.subscription.partition.policies, consumer.permits
        if policies.max_unacked_messages_per_consumer:
            room = min(room, policies.max_unacked_messages_per_consumer - consumer.unacknowledged)
        if limit := self._limit():
            room = min(room, limit - self.unacknowledged)
        if self.subscription.allowance is not None:
            room = min(room, self.subscription.allowance.room)
        return room

    def causes(self) -> list[dict[str, Any]]:
        policies = self.subscription.partition.policies
        causes: list[dict[str, Any]] = []
        if self.is_blocked:
            whose = "broker" if self._limit() != policies.max_unacked_messages_per_subscription else "subscription"
            causes.append({"cause": f"unacknowledged messages of the {whose}",
                           "messages": self.unacknowledged, "limit": self._limit()})
        for consumer in self.subscription.consumers:
            if consumer.is_blocked:
                causes.append({"cause": "unacknowledged messages of a consumer", "consumer": consumer.name,
                               "messages": consumer.unacknowledged,
                               "limit": policies.max_unacked_messages_per_consumer})
            elif consumer.permits <= 0:
                causes.append({"cause": "no permits", "consumer": consumer.name})
        schedule = self._schedule
        chunks = Counter[int]()
        for pin in self.chunks.pins_waiting:
            chunks[pin.slot] += len(pin.waiting)
        causes += ({"cause": "chunks", "consumer": self._consumer_at(slot).name, "chunks": count}
                   for slot, count in chunks.most_common(_CAUSES_MAX))
        if schedule is not None and (later := schedule.waiting_of(self.subscription.cursor)):
            causes.append({"cause": "delayed messages", "until_ms": schedule.next_due_ms(), "messages": later})
        return causes or [{"cause": "no acknowledgements", "messages": self.unacknowledged}]

    # -- entries

    def next_batches(self, ledgers: Sequence[ReadableLedger]) -> list[Batch]:
        batches: list[Batch] = []
        # Without entries, skip asking each of perhaps thousands of consumers for its room.
        if not (self.pending.to_redeliver or self.chunks.waiting or self.has_unread(ledgers)):
            return batches
        if self._redeliver_some(batches):
            self._deliver_new(batches, ledgers)
        return batches

    def _redeliver_some(self, batches: list[Batch]) -> bool:
        """Deliver entries that are to be redelivered; return whether new entries may be delivered behind them.

        Chunks that are set aside use up no permits, so there may be permits for entries behind them.
        """
        while True:
            if self.chunks.waiting:
                self._recall_for_permits()
            if not self.pending.to_redeliver:
                return True
            dealt, ahead = 0, self.look_ahead(self._takers())
            for ledger_id, entries in self.pending.entries_to_redeliver(ahead):
                dealt += self.deal(self._takers(), self._known(ledger_id), entries, batches, is_again=True)
            if not dealt or self.chunks.waiting >= WAITING_MAX:
                return not self.pending.to_redeliver

    def _known(self, ledger_id: int) -> ReadableLedger:
        """The ledger of pending entries: deleting a ledger forgets its pending entries first."""
        ledger = self.subscription.partition.find(ledger_id)
        assert ledger is not None, (self, ledger_id)
        return ledger

    def _deliver_new(self, batches: list[Batch], ledgers: Sequence[ReadableLedger]) -> None:
        """Deliver entries from the read position on."""
        subscription, schedule = self.subscription, self._schedule
        for ledger in ledgers:
            first = subscription.read[1] if subscription.read[0] == ledger.ledger_id else 0
            end = ledger.entries if schedule is None else schedule.end(ledger)
            for entries in self._due(ledger, first, end):
                while len(entries):
                    takers = self._takers()
                    if (ahead := self.look_ahead(takers)) <= 0 or self.chunks.waiting >= WAITING_MAX:
                        return
                    done = self.deal(takers, ledger, entries[:ahead], batches, is_again=False)
                    subscription.read = ledger.ledger_id, int(entries[done - 1]) + 1
                    entries = entries[done:]
            if not self._takers():
                return
            subscription.read = ledger.ledger_id, max(first, end)
            if end < ledger.entries:      # the rest is delayed, or not in the index of delayed entries yet
                return

    def _due(self, ledger: ReadableLedger, first: int, end: int) -> Iterator[Entries]:
        """Deliverable entries among first .. end - 1 that are not delayed, or no longer."""
        schedule = self._schedule
        if schedule is None:
            yield from self.subscription.deliverable(ledger, first, end)
            return
        for at in range(first, end, _STRETCH):
            stretch = range(at, min(at + _STRETCH, end))
            waits = schedule.waits(ledger.ledger_id, stretch)
            if waits is not None and waits.all():      # perhaps millions: do not read the ledger's index for them
                continue
            for entries in self.subscription.deliverable(ledger, stretch.start, stretch.stop):
                if len(some := schedule.ready(ledger.ledger_id, entries)):
                    yield some

    @property
    def _schedule(self) -> DelayedIndex | None:
        """The index of delayed entries; None: no entry is delayed, or delays are switched off."""
        partition = self.subscription.partition
        return partition.schedule if partition.policies.delayed_delivery else None

    def fell_due(self, released: Released) -> None:
        read = self.subscription.read
        for ledger, entries in released:
            if ledger.ledger_id >= read[0]:
                entries = entries[:np.searchsorted(entries, read[1] if ledger.ledger_id == read[0] else 0)]
            if not len(entries):
                continue
            if ledger.has_lost:
                self.subscription.partition.give_up_lost(ledger)
            entries = self.subscription.left_of(ledger.ledger_id, entries)
            # Entries with a slot were delivered while delays were switched off: they must not be delivered twice.
            entries = entries[self.pending.slots(ledger.ledger_id, entries) == NOBODY]
            if len(entries):
                self.pending.withhold(ledger.ledger_id, entries)

    def _takers(self) -> list[Consumer]:
        """Return the consumers that have room for an entry, in the order in which they are served."""
        takers = [consumer for consumer in self.subscription.consumers if self.room(consumer) > 0]
        if len(takers) > 1:
            takers.sort(key=lambda consumer: (consumer.priority, consumer.slot <= self._last_served, consumer.slot))
        return takers

    def look_ahead(self, takers: list[Consumer]) -> int:
        """The number of entries to examine for these consumers."""
        ahead = sum(map(self.room, takers))
        return ahead if self.subscription.allowance is None else min(ahead, self.subscription.allowance.room)

    def has_demand(self, ledgers: Sequence[ReadableLedger]) -> bool:
        if not self._takers():
            return False
        schedule = self._schedule
        is_all_later = schedule is not None and schedule.limit is not None and self.subscription.read >= schedule.limit
        return self.pending.to_redeliver > 0 or (not is_all_later and self.has_unread(ledgers)) or any(
            self.room(self._consumer_at(pin.slot)) > 0 for pin in self.chunks.pins_waiting)

    def deal(
        self, takers: list[Consumer], ledger: ReadableLedger, entries: Entries, batches: list[Batch], *, is_again: bool
    ) -> int:
        """Deliver entries to the consumers in turns, beginning with the first; return how many were delivered.

        is_again: they are redelivered.  Chunks go to the consumers of their messages, or wait for these.
        """
        if not self.subscription.partition.may_have_chunks(ledger, int(entries[0])):
            return self._deal_in_turns(takers, ledger, entries, batches, is_again=is_again)
        dealt = 0
        for run, message, is_last in self.chunks.runs(ledger, entries):
            if message is None:
                count = self._deal_in_turns(self._takers(), ledger, run, batches, is_again=is_again)
            else:
                count = self._deal_chunks(message, ledger, run, batches, is_last=is_last, is_again=is_again)
            dealt += count
            if count < len(run):
                break
        return dealt

    def _deal_chunks(
        self, message: Message, ledger: ReadableLedger, entries: Entries, batches: list[Batch], *, is_last: bool,
        is_again: bool,
    ) -> int:
        """Deliver chunks of one message to its consumer, or set aside what it has no room for; return how many.

        If no consumer has any of the message, the one whose turn it is gets it.  is_last: the last chunk is among them.
        A client discards a message of which a chunk comes before an earlier one, so chunks wait behind those that wait.
        """
        is_behind = False
        if (pin := self.chunks.of(message)) is not None:
            consumer = self._consumer_at(pin.slot)
            is_behind = bool(pin.waiting) and min(pin.waiting) < (ledger.ledger_id, int(entries[0]))
        elif takers := self._takers():
            consumer = takers[0]
        else:
            return 0
        count = 0
        if (room := self.room(consumer)) > 0 and not is_behind:
            count, many = self.reach(ledger, entries, self.subscription.messages(ledger, entries), room)
            self.give(consumer, ledger, entries[:count], many, batches, is_again=is_again)
            self._last_served = consumer.slot
            self._recall(self.chunks.gave(message, ledger.ledger_id, entries[:count], consumer.slot,
                                          is_last=is_last and count == len(entries)))
        if count < len(entries):
            self.pending.set_aside(ledger.ledger_id, entries[count:], is_again=is_again)
            self.chunks.wait(message, ledger.ledger_id, entries[count:])
        return len(entries)

    def _recall_for_permits(self) -> None:
        """Have chunks redelivered that waited for consumers that have room by now."""
        left: dict[int, int] = {}
        for pin in self.chunks.pins_waiting:
            room = left.setdefault(pin.slot, self.room(self._consumer_at(pin.slot)))
            if room > 0:
                taken = self.chunks.take(pin, room)
                left[pin.slot] = room - len(taken)
                self._recall(taken)

    def _recall(self, positions: Collection[Position]) -> None:
        """Have chunks redelivered that wait for no consumer any more."""
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in sorted(positions):
            by_ledger.setdefault(ledger_id, []).append(entry_id)
        for ledger_id, entries in by_ledger.items():
            self.pending.recall(ledger_id, np.array(entries, np.int64))

    def _consumer_at(self, slot: int) -> Consumer:
        consumer = self._slots[slot]
        assert consumer is not None, (self, slot)
        return consumer

    def _deal_in_turns(
        self, takers: list[Consumer], ledger: ReadableLedger, entries: Entries, batches: list[Batch], *, is_again: bool
    ) -> int:
        """Deliver entries that are no chunks; as `deal`."""
        messages, at = self.subscription.messages(ledger, entries), 0
        for _, level in itertools.groupby(takers, key=_priority):
            waiting, turn = deque(level), 0
            while at < len(entries) and waiting:
                if not turn:
                    left, many = len(entries) - at, len(waiting)
                    turn = left if many == 1 else min(max(_TURN, left // (_TURNS * many)), max(1, left // many))
                consumer = waiting.popleft()
                room = self.room(consumer)
                if room <= 0:                       # all consumers together have reached their bound
                    continue
                count, many = self.reach(ledger, entries[at:at + turn], messages[at:at + turn], room)
                self.give(consumer, ledger, entries[at:at + count], many, batches, is_again=is_again)
                at += count
                self._last_served = consumer.slot
                if self.room(consumer) > 0:
                    waiting.append(consumer)
                else:
                    turn = 0                        # with one consumer less, the others' turns are longer
        return at

    def reach(
        self, ledger: ReadableLedger, entries: Entries, messages: NDArray[np.uint32], room: int
    ) -> tuple[int, int]:
        """(entries, messages) that a consumer's room and the allowance reach.  Takes them off the allowance.

        messages: (n,) of each of the entries.
        """
        allowance = self.subscription.allowance
        return within_permits(messages, room) if allowance is None else allowance.take(ledger, entries, messages, room)

    def give(
        self, consumer: Consumer, ledger: ReadableLedger, entries: Entries, messages: int, batches: list[Batch], *,
        is_again: bool,
    ) -> None:
        """Deliver entries, which have so many messages, to the consumer."""
        self.pending.give(ledger.ledger_id, entries, consumer.slot, is_again=is_again)
        consumer.permits -= messages
        self._count_unacknowledged(consumer, messages)
        batches.append((consumer, ledger, entries))

    def acknowledged(
        self, ledger: StoredLedger, entries: list[int] | NDArray[np.int64], *, by_client: bool = True
    ) -> None:
        entries = np.asarray(entries, np.int64)
        self.settled(ledger, entries, self.pending.settle(ledger.ledger_id, entries), by_client=by_client)

    def acknowledged_up_to(self, position: Position, *, by_client: bool = True) -> None:
        for ledger_id, entries, slots in self.pending.settle_up_to(*position):
            ledger = self.subscription.partition.find(ledger_id)
            if ledger is not None:
                self.settled(ledger, entries, slots, by_client=by_client)

    def settled(
        self, ledger: ReadableLedger, entries: NDArray[np.int64], slots: NDArray[np.uint16], *, by_client: bool
    ) -> None:
        """Count entries (n,) as acknowledged that were at these slots (n,).  by_client: as for `acknowledged`."""
        if self.chunks.waiting:
            self.chunks.gone(ledger.ledger_id, entries[slots == WAITING])
        if not slots.any():      # as at the commit of a transaction, whose acknowledgements are settled
            return
        is_out = (slots != NOBODY) & (slots < WAITING)
        entries, slots = entries[is_out], slots[is_out]
        if not len(entries):
            return
        messages = self.subscription.messages(ledger, entries)
        for slot, count in enumerate(np.bincount(slots, messages).tolist()):
            if count:
                consumer = self._consumer_at(slot)
                self._count_unacknowledged(consumer, -int(count))
                consumer.acknowledged += int(count)

    @property
    def hears_clients(self) -> bool:
        return bool(self.chunks)

    def heard(self, entries: Mapping[int, EntryIds]) -> None:
        for ledger_id, some in entries.items():
            self._recall(self.chunks.acknowledged(ledger_id, some))

    def part_acknowledged(self, ledger: ReadableLedger, entry_id: int, messages: int) -> None:
        slot = self.pending.slot(ledger.ledger_id, entry_id)
        if NOBODY < slot < WAITING:
            consumer = self._consumer_at(slot)
            self._count_unacknowledged(consumer, -messages)
            consumer.acknowledged += messages

    def held_by(self, consumer: Consumer) -> list[EntriesOfLedger]:
        return [(ledger_id, entries[slots == consumer.slot]) for ledger_id, entries, slots in self.pending.out()
                if (slots == consumer.slot).any()]

    def holds(self, consumer: Consumer, position: Position) -> bool:
        return self.pending.slot(*position) == consumer.slot

    def released(self, entries: list[EntriesOfLedger]) -> None:
        schedule, read = self._schedule, self.subscription.read
        for ledger_id, some in entries:
            if ledger_id >= read[0]:
                some = some[:np.searchsorted(some, read[1] if ledger_id == read[0] else 0)]
            ready = some if schedule is None or not len(some) else schedule.ready(ledger_id, some)
            if len(ready):
                self.pending.withhold(ledger_id, ready)

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> list[EntriesOfLedger]:
        if wanted:
            taken = [(ledger_id, self.pending.take_back_some(consumer.slot, ledger_id, entries))
                     for ledger_id, entries in wanted.items()]
        else:
            taken = self.pending.take_back(consumer.slot)
        for ledger_id, entries in taken:
            ledger = self.subscription.partition.find(ledger_id)
            if ledger is not None and len(entries):
                self._count_unacknowledged(consumer, -int(self.subscription.messages(ledger, entries).sum()))
            if self.chunks:
                self._recall(self.chunks.given_back(ledger_id, entries))
        return [(ledger_id, entries) for ledger_id, entries in taken if len(entries)]

    def let_go(self) -> None:
        self.pending, self.chunks = PendingAcks(), ChunkPins()
        for consumer in self.subscription.consumers:
            self._count_unacknowledged(consumer, -consumer.unacknowledged)

    def forget(self, ledger: StoredLedger) -> None:
        """Count the entries of a ledger that is about to be deleted as acknowledged.

        Consumers of a reader's subscription may still hold some of them.
        """
        if self.pending.knows(ledger.ledger_id):
            self.acknowledged(ledger, np.arange(ledger.entries), by_client=False)


def _priority(consumer: Consumer) -> int:
    return consumer.priority


def _is_blocked(was: bool, unacknowledged: int, limit: int) -> bool:
    """Whether there are too many unacknowledged messages: from the limit on, and then until half of them are gone."""
    return bool(limit) and unacknowledged >= (limit // 2 + 1 if was else limit)
