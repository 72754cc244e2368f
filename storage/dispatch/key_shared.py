"""Key_Shared: each key goes to one of many consumers, in order, also while consumers come and go (PIP-379).

A key is known by its hash, and each hash belongs to one consumer.  If a hash gets another consumer while the former one
holds entries of it, the hash is *draining*: the new consumer gets none of its entries until those are acknowledged or
given back, also if the subscription needs them no more (removed_entries.py).  Entries are passed over if their consumer
has no permits or their hash is draining.  They are withheld, and delivered before all newer entries of the same hash,
so the order within a key is kept.

The chunks of a message have one hash.  If it moves while the former consumer has some of them, that consumer gets the
others too, as chunk_pins.py says: it would wait for them, and the new one for it.
"""
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.sends import IS_CHUNK, IS_LAST_CHUNK
from geminga.storage.cursors.pending_acks import NOBODY, WAITING, Entries
from geminga.storage.delayed.index import Released
from geminga.storage.dispatch.chunk_pins import Message
from geminga.storage.dispatch.ranges import AutoSplit, Buckets, Consistent, Sticky
from geminga.storage.dispatch.removed_entries import RemovedEntries
from geminga.storage.dispatch.shared import Shared
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger
from geminga.storage.topics.subscription import (
    Batch,
    Consumer,
    EntriesOfLedger,
    EntryIds,
    Obstacle,
    Subscription,
    busy,
)

if TYPE_CHECKING:
    from geminga.storage.ledgers.position import Position

_LOOK_AHEAD_MAX = 20_000        # entries withheld by one subscription
_LOOK_AHEAD_EACH = 2_000        # ... and for each of its consumers
_LOOK_AHEAD_MIN = 1_000         # entries examined even for few permits: which consumer they belong to shows only then
_CAUSES_MAX = 100               # draining keys listed in one answer
_FEW = 8                        # consumers whose entries are found one by one sooner than by sorting


@dataclass(slots=True)
class Draining:
    """A key hash that moved to another consumer while its former consumer still held entries with it."""

    slot: int             # of the former consumer
    entries: int          # that it still holds
    since_ms: int
    blocked: int = 0      # times that an entry of the hash was passed over


class KeyShared(Shared):
    """Delivers each entry to the consumer to which the hash of its key belongs."""

    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        # None until the first consumer attaches.
        self.ranges: AutoSplit | Consistent | Sticky | Buckets | None = None
        self.removed = RemovedEntries()                                  # that consumers still work on
        self._draining: dict[int, Draining] = {}                         # by hash
        self._is_stale = False      # hashes may have got other consumers since _draining was computed
        self._is_loose = False      # out-of-order delivery is allowed: no hash drains
        # Slots of consumers that were offered all withheld entries and have permits left: no withheld entry is theirs.
        self._served: frozenset[int] = frozenset()

    def check(self) -> None:
        """Assert that the draining hashes are those of the slots, and what Shared asserts."""
        super().check()
        self.removed.check()
        assert not (self._is_loose and self.removed), self
        if self._is_stale or self.ranges is None:
            return
        counts: dict[int, int] = {}
        for _, _, slots, hashes in self._in_hand():
            for each in hashes[self.ranges.slots(hashes) != slots].tolist():
                counts[each] = counts.get(each, 0) + 1
        assert counts == {number: draining.entries for number, draining in self._draining.items()}, self

    # -- consumers

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        first, ranges = self.subscription.first_consumer, self.ranges
        if ranges is None or first is None:
            return None
        is_sticky = consumer.ranges is not None
        is_other = isinstance(ranges, Sticky) != is_sticky or self._is_loose != consumer.is_out_of_order_allowed
        if is_other or consumer.shares_buckets:
            return Obstacle(first, busy("Subscription is of different type: another Key_Shared policy"))
        holder = ranges.conflict(consumer) if isinstance(ranges, Sticky) else None
        if holder is None:
            return None
        return Obstacle(holder, Refusal(api.ConsumerAssignError, f"Range conflict with consumer {holder.name}"))

    def attach(self, consumer: Consumer) -> None:
        if self.ranges is None:
            self._is_loose = consumer.is_out_of_order_allowed
            self.ranges = Sticky() if consumer.ranges is not None else self._assignment()()
        self._follow_options()
        super().attach(consumer)
        self._join(consumer)

    def _join(self, consumer: Consumer) -> None:
        """Assign hashes to a consumer that has attached."""
        assert self.ranges is not None and not isinstance(self.ranges, Buckets), self
        self.ranges.add(consumer)
        self._reassigned()

    def _leave(self, consumer: Consumer) -> None:
        """Assign the hashes of a consumer that was detached to others."""
        assert self.ranges is not None and not isinstance(self.ranges, Buckets), self
        self.ranges.remove(consumer)
        self._reassigned()

    def bounds_changed(self) -> None:
        super().bounds_changed()
        self._follow_options()

    def _assignment(self) -> type[Consistent] | type[AutoSplit]:
        """The way in which the broker's options assign hashes to consumers that do not bring their ranges."""
        return Consistent if self.subscription.options.key_shared_consistent_hashing else AutoSplit

    def _follow_options(self) -> None:
        """Assign all hashes anew if the options now want another way."""
        if not isinstance(self.ranges, AutoSplit | Consistent) or isinstance(self.ranges, self._assignment()):
            return
        self.ranges = self._assignment()()
        for consumer in self.subscription.consumers:
            if consumer.slot:
                self.ranges.add(consumer)
        self._reassigned()

    def detach(self, consumer: Consumer) -> None:
        assert self.ranges is not None, self
        self.removed.leave(consumer.slot)
        super().detach(consumer)
        self._leave(consumer)

    def _reassigned(self) -> None:
        """Note that hashes may have moved; entries are examined once, however many consumers came and went."""
        self._served, self._is_stale = frozenset(), True

    @property
    def draining(self) -> dict[int, Draining]:
        """Return {hash: Draining} for all entries that consumers hold now."""
        self._look_for_moved()
        return self._draining

    def _look_for_moved(self) -> None:
        if self._is_stale:
            self._is_stale = False
            self._find_draining()

    def _find_draining(self) -> None:
        """Find the hashes of which entries are held by another consumer than the one they belong to."""
        assert self.ranges is not None, self
        before, self._draining = self._draining, {}
        for _, _, slots, hashes in self._in_hand():
            moved = np.flatnonzero(self.ranges.slots(hashes) != slots)
            numbers, firsts, counts = np.unique(hashes[moved], return_index=True, return_counts=True)
            former = slots[moved[firsts]].tolist()
            for number, slot, count in zip(numbers.tolist(), former, counts.tolist(), strict=True):
                if number in self._draining:
                    self._draining[number].entries += count
                elif (known := before.get(number)) is not None and known.slot == slot:
                    self._draining[number] = Draining(slot, count, known.since_ms, known.blocked)
                else:
                    self._draining[number] = Draining(slot, count, self.subscription.partition.now_ms)
        for number, draining in before.items():
            if number not in self._draining:
                self._cleared(draining)

    def hashes_of(self, ledger: ReadableLedger, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """The hashes (n,) by which the entries are assigned, and by which they drain."""
        assert self.ranges is not None, self
        return self.ranges.hashes_of(ledger, entries)

    def _in_hand(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint16], NDArray[np.int64]]]:
        """Yield (ledger id, entries, slots, hashes) of all entries that keep their hashes at the consumers there."""
        if self._is_loose:
            return
        for ledger_id, entries, slots in self.pending.out():
            yield ledger_id, entries, slots, self.hashes_of(self._known(ledger_id), entries)
        for ledger_id, rows in self.removed:
            yield ledger_id, rows["entry_id"], rows["slot"], rows["hash"]

    def _cleared(self, draining: Draining) -> None:
        """Count a hash that drains no longer, for its former consumer."""
        if (consumer := self._slots[draining.slot]) is not None:
            consumer.hashes_cleared += 1

    def _drained(self, hashes: NDArray[np.int64]) -> None:
        """Count entries with these hashes (n,), on which consumers work no longer, off the draining hashes."""
        if self._is_stale:      # _find_draining will count without them
            return
        for number in hashes.tolist():
            if (draining := self._draining.get(number)) is not None:
                draining.entries -= 1
                if not draining.entries:
                    del self._draining[number]
                    self._cleared(draining)
                    self._served = frozenset()

    def acknowledged(
        self, ledger: StoredLedger, entries: list[int] | NDArray[np.int64], *, by_client: bool = True
    ) -> None:
        self._look_for_moved()      # before the entries are gone: a hash that they clear counts as cleared
        super().acknowledged(ledger, entries, by_client=by_client)

    def acknowledged_up_to(self, position: "Position", *, by_client: bool = True) -> None:
        self._look_for_moved()
        super().acknowledged_up_to(position, by_client=by_client)

    def settled(
        self, ledger: ReadableLedger, entries: NDArray[np.int64], slots: NDArray[np.uint16], *, by_client: bool
    ) -> None:
        super().settled(ledger, entries, slots, by_client=by_client)
        if (by_client and not self._draining) or self._is_loose:      # nearly always
            return
        is_out = (slots != NOBODY) & (slots < WAITING)
        entries, slots = entries[is_out], slots[is_out]
        if len(entries):
            hashes = self.hashes_of(ledger, entries)
            self._drained(hashes if by_client else self.removed.add(ledger.ledger_id, entries, slots, hashes))

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> list[EntriesOfLedger]:
        self._look_for_moved()
        redelivered = super().redeliver(consumer, wanted)
        self._served = frozenset()
        for ledger_id, entries in redelivered if self._draining else ():
            self._drained(self.hashes_of(self._known(ledger_id), entries))
        if self.removed:
            for ledger_id, entries in wanted.items():
                self._drained(self.removed.finish(ledger_id, entries, consumer.slot))
            if not wanted:
                self._drained(self.removed.leave(consumer.slot))
        return redelivered

    def causes(self) -> list[dict[str, Any]]:
        causes = [cause for cause in super().causes()
                  if not (self.draining and cause["cause"] == "no acknowledgements")]
        oldest: dict[int, Position] = {}
        for ledger_id, entries, _, hashes in self._in_hand() if self.draining else ():
            for at in np.flatnonzero(np.isin(hashes, np.fromiter(self.draining, np.int64))).tolist():
                number, position = int(hashes[at]), (ledger_id, int(entries[at]))
                oldest[number] = min(oldest.get(number, position), position)
        for number, draining in sorted(self.draining.items())[:_CAUSES_MAX]:
            assert self.ranges is not None, self
            waiting = self._slots[int(self.ranges.slots(np.array([number]))[0])]
            holder = self._slots[draining.slot]
            assert holder is not None, (self, draining)
            causes.append({"cause": "draining key", "hash": number, "consumer": holder.name,
                           "since_ms": draining.since_ms, "message": "{}:{}".format(*oldest[number]),
                           "messages": draining.entries, "waiting": waiting.name if waiting else None})
        if isinstance(self.ranges, Sticky) and (gaps := self.ranges.of(NOBODY)):
            causes.append({"cause": "hashes that no consumer takes",
                           "ranges": [list(gap) for gap in gaps[:_CAUSES_MAX]]})
        return causes

    # -- entries

    def look_ahead(self, takers: list[Consumer]) -> int:
        if not takers:
            return 0
        most = min(_LOOK_AHEAD_MAX, _LOOK_AHEAD_EACH * len(self.subscription.consumers)) - self.pending.to_redeliver
        return min(most, max(super().look_ahead(takers), _LOOK_AHEAD_MIN))

    @property
    def hears_clients(self) -> bool:
        return bool(self.removed) or super().hears_clients

    def heard(self, entries: Mapping[int, EntryIds]) -> None:
        pins = len(self.chunks)
        super().heard(entries)
        if len(self.chunks) < pins:      # what is left of the messages may go to other consumers
            self._served = frozenset()
        for ledger_id, some in entries.items() if self.removed else ():
            self._drained(self.removed.finish(ledger_id, some))

    def released(self, entries: list[EntriesOfLedger]) -> None:
        super().released(entries)
        self._served = frozenset()

    def fell_due(self, released: Released) -> None:
        super().fell_due(released)
        self._served = frozenset()

    def next_batches(self, ledgers: Sequence[ReadableLedger]) -> list[Batch]:
        # Without entries, skip asking each of perhaps thousands of consumers for its room.
        if not self.pending.to_redeliver and not self.has_unread(ledgers):
            return []
        takers = self._takers()
        batches = super().next_batches(ledgers)
        self._served = frozenset(consumer.slot for consumer in takers if self.room(consumer) > 0)
        return batches

    def _redeliver_some(self, batches: list[Batch]) -> bool:
        """Deliver withheld entries; new ones follow once all withheld ones were offered to their consumers."""
        if self._served.issuperset(consumer.slot for consumer in self._takers()):
            return True
        for ledger_id, entries in self.pending.entries_to_redeliver():
            if not (takers := self._takers()):
                return False
            self.deal(takers, self._known(ledger_id), entries, batches, is_again=True)
        return True

    def deal(
        self, takers: list[Consumer], ledger: ReadableLedger, entries: Entries, batches: list[Batch], *, is_again: bool
    ) -> int:
        """Deliver entries to the consumers that their keys belong to; withhold the rest.  Return how many there are."""
        assert self.ranges is not None, self
        ids = np.arange(entries.start, entries.stop) if isinstance(entries, range) else entries
        hashes = self.ranges.hashes_of(ledger, ids)
        slots = owners = self.ranges.slots(hashes)
        if self.draining:
            is_draining = np.isin(hashes, np.fromiter(self.draining, np.int64))
            numbers, counts = np.unique(hashes[is_draining], return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                self.draining[number].blocked += count
            slots = np.where(is_draining, NOBODY, slots)
        chunks: dict[int, Message] = {}
        if self.subscription.partition.may_have_chunks(ledger, int(ids[0])):
            slots, chunks = self._follow_pins(ledger, ids, slots)
        messages = self.subscription.messages(ledger, entries)
        is_left = np.ones(len(ids), bool)
        for consumer, mine in self._shares(takers, slots):
            if (room := self.room(consumer)) > 0:
                count, many = self.reach(ledger, ids[mine], messages[mine], room)
                is_left[mine[:count]] = False
                self.give(consumer, ledger, ids[mine[:count]], many, batches, is_again=is_again)
                if chunks:
                    self._pin(consumer, ledger, ids, mine[:count], chunks)
                    self._count_moved(consumer, hashes, mine[:count], owners)
        # Not left unread: one consumer without permits would stop all others, as reading goes on in order.
        if not is_again and is_left.any():
            self.pending.withhold(ledger.ledger_id, ids[is_left])
        return len(ids)

    def _follow_pins(
        self, ledger: ReadableLedger, ids: NDArray[np.int64], slots: NDArray[np.uint16]
    ) -> tuple[NDArray[np.uint16], dict[int, Message]]:
        """Return (slots (n,) of entries ids (n,), {index: message} of chunks), chunks at consumers that are pinned."""
        chunks = self.chunks.messages(ledger, ids, np.flatnonzero(ledger.column("flags")[ids] & IS_CHUNK))
        slots = slots.copy()
        for index, message in chunks.items():
            if (pin := self.chunks.of(message)) is not None:
                slots[index] = pin.slot
        return slots, chunks

    def _pin(self, consumer: Consumer, ledger: ReadableLedger, ids: NDArray[np.int64], given: NDArray[np.intp],
             chunks: dict[int, Message]) -> None:
        """Pin the consumer to the messages of the chunks that it was given: the indexes `given` of ids (n,)."""
        flags = ledger.column("flags")
        for index in given.tolist():
            if (message := chunks.get(index)) is not None:
                entry = ids[index:index + 1]
                is_last = bool(flags[entry[0]] & IS_LAST_CHUNK)
                freed = self.chunks.gave(message, ledger.ledger_id, entry, consumer.slot, is_last=is_last)
                assert not freed, (self, freed)      # withheld chunks of all consumers wait alike

    def _count_moved(self, consumer: Consumer, hashes: NDArray[np.int64], given: NDArray[np.intp],
                     owners: NDArray[np.uint16]) -> None:
        """Count chunks of draining hashes that their former consumer was given, the indexes `given` of hashes (n,)."""
        for number in hashes[given[owners[given] != consumer.slot]].tolist() if not self._is_loose else ():
            draining = self.draining.setdefault(number, Draining(
                consumer.slot, 0, self.subscription.partition.now_ms))
            draining.entries += 1

    def _shares(
        self, takers: list[Consumer], slots: NDArray[np.uint16]
    ) -> Iterator[tuple[Consumer, NDArray[np.intp]]]:
        """Yield (consumer, indexes of its entries) for each taker that has any.  slots: (n,) of the entries'
        consumers.
        """
        if len(takers) <= _FEW:
            shares = ((consumer, np.flatnonzero(slots == consumer.slot)) for consumer in takers)
            yield from ((consumer, mine) for consumer, mine in shares if len(mine))
            return
        order = np.argsort(slots, kind="stable")
        there, firsts = np.unique(slots[order], return_index=True)
        by_slot = dict(zip(there.tolist(), np.split(order, firsts[1:]), strict=True))
        yield from ((consumer, by_slot[consumer.slot]) for consumer in takers if consumer.slot in by_slot)
