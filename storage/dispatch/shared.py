"""Every entry goes to one of many consumers, in turns; those of a lower priority level first."""
import heapq
import itertools
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import NOBODY, SLOTS_MAX, TO_REDELIVER, Entries, Pending
from geminga.storage.delayed.index import DelayedIndex, Released
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.topics.subscription import Batch, Consumer, Dispatcher, Nacked, Subscription

_TURN = 500                # entries in a row to one consumer, when there are enough to go round
_TURNS = 4                 # so many turns each, when there are many more
_STRETCH = 1 << 16         # entries of which it is looked up together whether they wait for their time


class Shared(Dispatcher):
    is_woken_by_acknowledgements = True

    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        self.pending = Pending()
        self.unacknowledged = 0                                  # messages at all slots
        self.is_blocked = False                                  # by too many of them
        self.broker_bound = 0                                    # how many there may be as long as the broker has too many; 0: any number
        self._slots: list[Consumer | None] = [None]              # slot -> consumer; nobody sits at 0
        self._free: list[int] = []                               # slots that somebody has left, a heap
        self._last_served = 0                                    # slot

    # -- consumers

    def attach(self, consumer: Consumer) -> None:
        if self._free:
            consumer.slot = heapq.heappop(self._free)
            self._slots[consumer.slot] = consumer
        else:
            assert len(self._slots) <= SLOTS_MAX      # commands.py refuses more
            consumer.slot = len(self._slots)
            self._slots.append(consumer)

    def detach(self, consumer: Consumer) -> None:
        self.pending.take_back(consumer.slot)
        self._slots[consumer.slot] = None
        heapq.heappush(self._free, consumer.slot)
        self._count_unacknowledged(consumer, -consumer.unacknowledged)

    def _count_unacknowledged(self, consumer: Consumer, messages: int) -> None:
        """A consumer, or all of them, that have too many get no more until they have half as many."""
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
        """Who had too many messages by the old bounds is judged anew, and nothing waits for its time where that is off."""
        partition = self.subscription.partition
        if partition.schedule is not None and not partition.policies.delayed_delivery:
            self.fell_due([(ledger, partition.schedule.waiting_in(ledger)) for ledger in partition.ledgers])
        self.is_blocked = False
        for consumer in self.subscription.consumers:
            consumer.is_blocked = False
            self._count_unacknowledged(consumer, 0)

    def room(self, consumer: Consumer) -> int:
        """Messages that the consumer can take."""
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

    def causes(self) -> list[dict]:
        policies = self.subscription.partition.policies
        found = []
        if self.is_blocked:
            whose = "broker" if self._limit() != policies.max_unacked_messages_per_subscription else "subscription"
            found.append({"cause": f"unacknowledged messages of the {whose}", "messages": self.unacknowledged, "limit": self._limit()})
        for consumer in self.subscription.consumers:
            if consumer.is_blocked:
                found.append({"cause": "unacknowledged messages of a consumer", "consumer": consumer.name,
                              "messages": consumer.unacknowledged, "limit": policies.max_unacked_messages_per_consumer})
            elif consumer.permits <= 0:
                found.append({"cause": "no permits", "consumer": consumer.name})
        if self._schedule is not None and (later := self._schedule.waiting_of(self.subscription.cursor)):
            found.append({"cause": "delayed messages", "until_ms": self._schedule.next_due_ms(), "messages": later})
        return found or [{"cause": "no acknowledgements", "messages": self.unacknowledged}]

    # -- entries

    def next_batches(self, ledgers: list[Ledger]) -> list[Batch]:
        batches: list[Batch] = []
        if not self.pending.to_redeliver and not self.has_unread(ledgers):      # nobody has to be asked what it can take
            return batches
        if self._give_again(batches):
            self._give_new(batches, ledgers)
        return batches

    def _give_again(self, batches: list[Batch]) -> bool:
        """Give out what was given back; whether there is nothing left of it that new entries had to wait for."""
        for ledger_id, entries in self.pending.entries_to_redeliver(self.look_ahead(self._takers())):
            self.deal(self._takers(), self.subscription.partition.find(ledger_id), entries, batches, is_again=True)
        return not self.pending.to_redeliver

    def _give_new(self, batches: list[Batch], ledgers: list[Ledger]) -> None:
        subscription, schedule = self.subscription, self._schedule
        for ledger in ledgers:
            first = subscription.read[1] if subscription.read[0] == ledger.ledger_id else 0
            end = ledger.entries if schedule is None else schedule.end(ledger)
            for entries in self._due(ledger, first, end):
                while len(entries):
                    takers = self._takers()
                    if (ahead := self.look_ahead(takers)) <= 0:
                        return
                    done = self.deal(takers, ledger, entries[:ahead], batches, is_again=False)
                    subscription.read = ledger.ledger_id, int(entries[done - 1]) + 1
                    entries = entries[done:]
            if not self._takers():
                return
            subscription.read = ledger.ledger_id, max(first, end)
            if end < ledger.entries:                 # nobody knows yet whether what is behind waits, or all of it does
                return

    def _due(self, ledger: Ledger, first: int, end: int) -> Iterator[Entries]:
        """What is to be given out of the entries in [first, end), without those that wait for their time."""
        schedule = self._schedule
        if schedule is None:
            yield from self.subscription.deliverable(ledger, first, end)
            return
        for at in range(first, end, _STRETCH):
            stretch = range(at, min(at + _STRETCH, end))
            waits = schedule.waits(ledger.ledger_id, stretch)
            if waits is not None and waits.all():      # millions may: the ledger's index is not looked at for them
                continue
            for entries in self.subscription.deliverable(ledger, stretch.start, stretch.stop):
                if len(some := schedule.ready(ledger.ledger_id, entries)):
                    yield some

    @property
    def _schedule(self) -> DelayedIndex | None:
        """What waits, where anything does."""
        partition = self.subscription.partition
        return partition.schedule if partition.policies.delayed_delivery else None

    def fell_due(self, released: Released) -> None:
        """What of it was passed over is to be given out."""
        read = self.subscription.read
        for ledger, entries in released:
            if ledger.ledger_id >= read[0]:
                entries = entries[:np.searchsorted(entries, read[1] if ledger.ledger_id == read[0] else 0)]
            if not len(entries):
                continue
            if ledger.has_lost:
                self.subscription.partition.give_up_lost(ledger)
            entries = self.subscription.left_of(ledger.ledger_id, entries)
            entries = entries[self.pending.slots(ledger.ledger_id, entries) == NOBODY]      # else it was given out while nothing waited
            if len(entries):
                self.pending.withhold(ledger.ledger_id, entries)

    def _takers(self) -> list[Consumer]:
        """Those that can take something, those first whose turn it is."""
        takers = [consumer for consumer in self.subscription.consumers if self.room(consumer) > 0]
        if len(takers) > 1:
            takers.sort(key=lambda consumer: (consumer.priority, consumer.slot <= self._last_served, consumer.slot))
        return takers

    def look_ahead(self, takers: list[Consumer]) -> int:
        """How many new entries to look at."""
        ahead = sum(map(self.room, takers))
        return ahead if self.subscription.allowance is None else min(ahead, self.subscription.allowance.room)

    def has_demand(self, ledgers: list[Ledger]) -> bool:
        if not self._takers():
            return False
        schedule = self._schedule
        is_all_later = schedule is not None and schedule.limit is not None and self.subscription.read >= schedule.limit
        return self.pending.to_redeliver > 0 or (not is_all_later and self.has_unread(ledgers))

    def deal(self, takers: list[Consumer], ledger: Ledger, entries: Entries, batches: list[Batch], *, is_again: bool) -> int:
        """Give out entries from the first on, in turns; returns how many."""
        messages, at = self.subscription.messages(ledger, entries), 0
        for _, level in itertools.groupby(takers, key=_priority):
            waiting, turn = deque(level), 0
            while at < len(entries) and waiting:
                if not turn:
                    left, many = len(entries) - at, len(waiting)
                    turn = left if many == 1 else min(max(_TURN, left // (_TURNS * many)), max(1, left // many))
                consumer = waiting.popleft()
                room = self.room(consumer)
                if room <= 0:                       # all of them together have too many by now
                    continue
                count, many = self.reach(ledger, entries[at:at + turn], messages[at:at + turn], room)
                self.give(consumer, ledger, entries[at:at + count], many, batches, is_again=is_again)
                at += count
                self._last_served = consumer.slot
                if self.room(consumer) > 0:
                    waiting.append(consumer)
                else:
                    turn = 0                        # is larger with one less
        return at

    def give(self, consumer: Consumer, ledger: Ledger, entries: Entries, messages: int, batches: list[Batch], *, is_again: bool) -> None:
        self.pending.give(ledger.ledger_id, entries, consumer.slot, is_again=is_again)
        consumer.permits -= messages
        self._count_unacknowledged(consumer, messages)
        batches.append((consumer, ledger, entries))

    def acknowledged(self, ledger: Ledger, entries: list[int] | NDArray[np.int64]) -> None:
        entries = np.asarray(entries, np.int64)
        self._settled(ledger, entries, self.pending.settle(ledger.ledger_id, entries))

    def acknowledged_up_to(self, position: Position) -> None:
        for ledger_id, entries, slots in self.pending.settle_up_to(*position):
            ledger = self.subscription.partition.find(ledger_id)
            if ledger is not None:
                self._settled(ledger, entries, slots)

    def _settled(self, ledger: Ledger, entries: NDArray[np.int64], slots: NDArray[np.uint16]) -> None:
        """These entries are no longer at these slots."""
        is_out = (slots != NOBODY) & (slots != TO_REDELIVER)
        entries, slots = entries[is_out], slots[is_out]
        if not len(entries):
            return
        messages = self.subscription.messages(ledger, entries)
        for slot, count in enumerate(np.bincount(slots, messages).tolist()):
            if count:
                self._count_unacknowledged(self._slots[slot], -int(count))
                self._slots[slot].acknowledged += int(count)

    def part_acknowledged(self, ledger: Ledger, entry_id: int, messages: int) -> None:
        """So many messages of an entry are acknowledged now, others are not."""
        slot = self.pending.slot(ledger.ledger_id, entry_id)
        if NOBODY < slot < TO_REDELIVER:
            self._count_unacknowledged(self._slots[slot], -messages)
            self._slots[slot].acknowledged += messages

    def held_by(self, consumer: Consumer) -> list[tuple[int, NDArray[np.int64]]]:
        return [(ledger_id, entries[slots == consumer.slot]) for ledger_id, entries, slots in self.pending.out()
                if (slots == consumer.slot).any()]

    def holds(self, consumer: Consumer, position: Position) -> bool:
        return self.pending.slot(*position) == consumer.slot

    def released(self, parked: list[Position]) -> None:
        for ledger_id, entry_id in parked:
            entry = range(entry_id, entry_id + 1)
            if (ledger_id, entry_id) < self.subscription.read and (self._schedule is None or len(self._schedule.ready(ledger_id, entry))):
                self.pending.withhold(ledger_id, entry)

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> Nacked:
        if wanted:
            found = [(ledger_id, self.pending.take_back_some(consumer.slot, ledger_id, entries)) for ledger_id, entries in wanted.items()]
        else:
            found = self.pending.take_back(consumer.slot)
        for ledger_id, entries in found:
            ledger = self.subscription.partition.find(ledger_id)
            if ledger is not None and len(entries):
                self._count_unacknowledged(consumer, -int(self.subscription.messages(ledger, entries).sum()))
        return [(ledger_id, entries) for ledger_id, entries in found if len(entries)]

    def let_go(self) -> None:
        self.pending = Pending()
        for consumer in self.subscription.consumers:
            self._count_unacknowledged(consumer, -consumer.unacknowledged)

    def forget(self, ledger: Ledger) -> None:
        """What is out of it, at consumers that keep nothing from being deleted, counts no more."""
        if self.pending.knows(ledger.ledger_id):
            self.acknowledged(ledger, np.arange(ledger.entries))


def _priority(consumer: Consumer) -> int:
    return consumer.priority


def _is_blocked(was: bool, unacknowledged: int, limit: int) -> bool:
    return bool(limit) and unacknowledged >= (limit // 2 + 1 if was else limit)
