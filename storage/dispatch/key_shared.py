"""Every key goes to one of many consumers, in order; a key is at one consumer at a time, also while consumers come and go (PIP-379).

A key is known by its hash.  When a hash changes hands while entries of it are out at its former consumer it is *draining*: the
new one gets nothing of it before those are settled.  What is passed over, because its consumer has no permits or its hash is
draining, is withheld: given out before anything newer of the same hash, so the order within a key is kept.
"""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.cursors.pending_acks import NOBODY, TO_REDELIVER, Entries
from geminga.storage.delayed.index import Released
from geminga.storage.dispatch.ranges import AutoSplit, Consistent, Sticky, hashes_of
from geminga.storage.dispatch.shared import Shared
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.topics.subscription import Batch, Consumer, Nacked, Obstacle, Subscription, busy

_LOOK_AHEAD_MAX = 20_000        # entries withheld by one subscription
_LOOK_AHEAD_EACH = 2_000        # for each of its consumers
_LOOK_AHEAD_MIN = 1_000         # entries looked at although fewer are asked for: whose they are shows only then
_CAUSES_MAX = 100               # draining keys told of at a time
_FEW = 8                        # consumers whose entries are found one by one sooner than by sorting


@dataclass(slots=True)
class Draining:
    """A hash that has changed hands while entries of it were out."""

    slot: int       # where they are
    entries: int
    since_ms: int
    blocked: int = 0      # how often one more of its entries could not be given out


class KeyShared(Shared):
    def __init__(self, subscription: Subscription):
        super().__init__(subscription)
        self.ranges: AutoSplit | Consistent | Sticky | None = None       # by what the first consumer asks for
        self._draining: dict[int, Draining] = {}
        self._is_stale = False                                           # `_draining`: somebody came or left since
        self._is_loose = False                                           # the order may be broken: nothing drains
        self._have_theirs: frozenset[int] = frozenset()                  # slots for which nothing is left among what was withheld

    # -- consumers

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        if self.ranges is None:
            return None
        if isinstance(self.ranges, Sticky) != (consumer.ranges is not None) or self._is_loose != consumer.is_out_of_order_allowed:
            return Obstacle(self.subscription.first_consumer, busy("Subscription is of different type: another Key_Shared policy"))
        holder = self.ranges.conflict(consumer) if isinstance(self.ranges, Sticky) else None
        if holder is None:
            return None
        return Obstacle(holder, Refusal(api.ConsumerAssignError, f"Range conflict with consumer {holder.name}"))

    def attach(self, consumer: Consumer) -> None:
        if self.ranges is None:
            self._is_loose = consumer.is_out_of_order_allowed
            if consumer.ranges is not None:
                self.ranges = Sticky()
            else:
                self.ranges = self._made()()
        self._follow_options()
        super().attach(consumer)
        self.ranges.add(consumer)
        self._change_hands()

    def bounds_changed(self) -> None:
        super().bounds_changed()
        self._follow_options()

    def _made(self) -> type[Consistent] | type[AutoSplit]:
        """How hashes are shared out among consumers that leave it to us."""
        return Consistent if self.subscription.options.key_shared_consistent_hashing else AutoSplit

    def _follow_options(self) -> None:
        """They may want hashes shared out in another way than when the first consumer came."""
        if self.ranges is None or isinstance(self.ranges, (Sticky, self._made())):
            return
        self.ranges = self._made()()
        for consumer in self.subscription.consumers:
            if consumer.slot:
                self.ranges.add(consumer)
        self._change_hands()

    def detach(self, consumer: Consumer) -> None:
        super().detach(consumer)
        self.ranges.remove(consumer)
        self._change_hands()

    def _change_hands(self) -> None:
        """Hashes may have.  All that is out is looked at once, however many come and go meanwhile."""
        self._have_theirs, self._is_stale = frozenset(), True

    @property
    def draining(self) -> dict[int, Draining]:
        """By hash; the counts are those of all that is out."""
        if self._is_stale:
            self._is_stale = False
            self._look_at_hands()
        return self._draining

    def _look_at_hands(self) -> None:
        before, self._draining = self._draining, {}
        for ledger_id, entries, slots in self.pending.out() if not self._is_loose else ():
            hashes = self._hashes(self.subscription.partition.find(ledger_id), entries)
            moved = np.flatnonzero(self.ranges.slots(hashes) != slots)
            found, firsts, counts = np.unique(hashes[moved], return_index=True, return_counts=True)
            for number, slot, count in zip(found.tolist(), slots[moved[firsts]].tolist(), counts.tolist(), strict=True):
                if number in self._draining:
                    self._draining[number].entries += count
                elif (known := before.get(number)) is not None and known.slot == slot:
                    self._draining[number] = Draining(slot, count, known.since_ms, known.blocked)
                else:
                    self._draining[number] = Draining(slot, count, self.subscription.partition.now_ms)
        for number, gone in before.items():
            if number not in self._draining:
                self._cleared(gone)

    def _cleared(self, draining: Draining) -> None:
        if (consumer := self._slots[draining.slot]) is not None:
            consumer.hashes_cleared += 1

    def _drained(self, ledger: Ledger, entries: NDArray[np.int64]) -> None:
        """These entries are no longer out."""
        if self._is_stale:      # they will not be counted
            return
        for found in self._hashes(ledger, entries).tolist():
            if (draining := self._draining.get(found)) is not None:
                draining.entries -= 1
                if not draining.entries:
                    del self._draining[found]
                    self._cleared(draining)
                    self._have_theirs = frozenset()

    def _settled(self, ledger: Ledger, entries: NDArray[np.int64], slots: NDArray[np.uint16]) -> None:
        super()._settled(ledger, entries, slots)
        if self._draining:
            self._drained(ledger, entries[(slots != NOBODY) & (slots != TO_REDELIVER)])

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> Nacked:
        nacked = super().redeliver(consumer, wanted)
        self._have_theirs = frozenset()
        for ledger_id, entries in nacked if self._draining else ():
            self._drained(self.subscription.partition.find(ledger_id), entries)
        return nacked

    def causes(self) -> list[dict]:
        found = [cause for cause in super().causes() if not (self.draining and cause["cause"] == "no acknowledgements")]
        oldest = {}
        for ledger_id, entries, _ in self.pending.out() if self.draining else ():
            hashes = self._hashes(self.subscription.partition.find(ledger_id), entries)
            for at in np.flatnonzero(np.isin(hashes, np.fromiter(self.draining, np.int64))).tolist():
                oldest.setdefault(int(hashes[at]), (ledger_id, int(entries[at])))
        for number, draining in sorted(self.draining.items())[:_CAUSES_MAX]:
            waiting = self._slots[int(self.ranges.slots(np.array([number]))[0])]
            found.append({"cause": "draining key", "hash": number, "consumer": self._slots[draining.slot].name,
                          "since_ms": draining.since_ms, "message": "{}:{}".format(*oldest[number]), "messages": draining.entries,
                          "waiting": waiting.name if waiting else None})
        if isinstance(self.ranges, Sticky) and (gaps := self.ranges.of(NOBODY)):
            found.append({"cause": "hashes that no consumer takes", "ranges": [list(gap) for gap in gaps[:_CAUSES_MAX]]})
        return found

    # -- entries

    def look_ahead(self, takers: list[Consumer]) -> int:
        if not takers:
            return 0
        allowed = min(_LOOK_AHEAD_MAX, _LOOK_AHEAD_EACH * len(self.subscription.consumers)) - self.pending.to_redeliver
        return min(allowed, max(super().look_ahead(takers), _LOOK_AHEAD_MIN))

    def released(self, parked: list[Position]) -> None:
        super().released(parked)
        self._have_theirs = frozenset()

    def fell_due(self, released: Released) -> None:
        super().fell_due(released)
        self._have_theirs = frozenset()

    def next_batches(self, ledgers: list[Ledger]) -> list[Batch]:
        if not self.pending.to_redeliver and not self.has_unread(ledgers):      # nobody has to be asked what it can take
            return []
        takers = self._takers()
        batches = super().next_batches(ledgers)
        self._have_theirs = frozenset(consumer.slot for consumer in takers if self.room(consumer) > 0)
        return batches

    def _give_again(self, batches: list[Batch]) -> bool:
        """All that was withheld is looked at before anything new is, unless it has been for all who can take something."""
        if self._have_theirs.issuperset(consumer.slot for consumer in self._takers()):
            return True
        for ledger_id, entries in self.pending.entries_to_redeliver():
            if not (takers := self._takers()):
                return False
            self.deal(takers, self.subscription.partition.find(ledger_id), entries, batches, is_again=True)
        return True

    def deal(self, takers: list[Consumer], ledger: Ledger, entries: Entries, batches: list[Batch], *, is_again: bool) -> int:
        ids = np.arange(entries.start, entries.stop) if isinstance(entries, range) else entries
        hashes = self._hashes(ledger, ids)
        slots = self.ranges.slots(hashes)
        if self.draining:
            is_draining = np.isin(hashes, np.fromiter(self.draining, np.int64))
            for found, count in zip(*(column.tolist() for column in np.unique(hashes[is_draining], return_counts=True)), strict=True):
                self.draining[found].blocked += count
            slots = np.where(is_draining, NOBODY, slots)
        messages = self.subscription.messages(ledger, entries)
        is_left = np.ones(len(ids), bool)
        for consumer, mine in self._shares(takers, slots):
            if (room := self.room(consumer)) > 0:
                count, many = self.reach(ledger, ids[mine], messages[mine], room)
                is_left[mine[:count]] = False
                self.give(consumer, ledger, ids[mine[:count]], many, batches, is_again=is_again)
        if not is_again and is_left.any():
            self.pending.withhold(ledger.ledger_id, ids[is_left])
        return len(ids)

    def _shares(self, takers: list[Consumer], slots: NDArray[np.uint16]) -> Iterator[tuple[Consumer, NDArray[np.intp]]]:
        """(each of them that has any, which of the entries at these slots (n,) are its own)"""
        if len(takers) <= _FEW:
            shares = ((consumer, np.flatnonzero(slots == consumer.slot)) for consumer in takers)
            yield from ((consumer, mine) for consumer, mine in shares if len(mine))
            return
        order = np.argsort(slots, kind="stable")
        there, firsts = np.unique(slots[order], return_index=True)
        mine = dict(zip(there.tolist(), np.split(order, firsts[1:]), strict=True))
        yield from ((consumer, mine[consumer.slot]) for consumer in takers if consumer.slot in mine)

    _hashes = staticmethod(hashes_of)
