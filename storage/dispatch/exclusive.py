"""Exclusive: one consumer gets all entries, in order; if it has ranges of hashes, all whose keys lie in these."""
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.dispatch.ranges import HASHES, hashes_of
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger
from geminga.storage.topics.permits import within_permits
from geminga.storage.topics.subscription import Batch, Consumer, Dispatcher, EntriesOfLedger, Obstacle, busy

_STRETCH = 4_096      # entries whose keys' hashes are examined at once


class Exclusive(Dispatcher):
    """Delivers all entries to the one consumer that is active."""

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        holder = self.active
        return Obstacle(holder, busy("Exclusive consumer is already connected")) if holder is not None else None

    @property
    def active(self) -> Consumer | None:
        """The consumer that gets all entries."""
        return self.subscription.first_consumer

    def attach(self, consumer: Consumer) -> None:
        self.subscription.rewind()

    def detach(self, consumer: Consumer) -> None:
        self.subscription.rewind()

    def released(self, entries: list[EntriesOfLedger]) -> None:
        self.subscription.rewind()

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> list[EntriesOfLedger]:
        """Redeliver everything unacknowledged, in order, whatever is wanted.  No entry counts as redelivered."""
        self.subscription.rewind()
        return []

    # The entries that the consumer holds are those between cursor and read position.  So this dispatcher keeps nothing
    # that acknowledgements would change.

    def acknowledged(
        self, ledger: StoredLedger, entries: list[int] | NDArray[np.int64], *, by_client: bool = True
    ) -> None:
        pass

    def acknowledged_up_to(self, position: Position, *, by_client: bool = True) -> None:
        pass

    def part_acknowledged(self, ledger: ReadableLedger, entry_id: int, messages: int) -> None:
        pass

    def let_go(self) -> None:
        pass

    def forget(self, ledger: StoredLedger) -> None:
        pass

    def causes(self) -> list[dict[str, Any]]:
        consumer = self.active
        if consumer is None:
            return []
        cause = "no permits" if consumer.permits <= 0 else "no acknowledgements"
        return [{"cause": cause, "consumer": consumer.name}]

    def held_by(self, consumer: Consumer) -> list[EntriesOfLedger]:
        subscription = self.subscription
        held: list[EntriesOfLedger] = []
        if consumer is not self.active:
            return held
        before: StoredLedger | None = None
        for ledger in subscription.ledgers_from(subscription.cursor.mark_delete[0]):
            if ledger.ledger_id <= subscription.read[0]:
                # The ledger of the view's horizon comes twice: compacted up to the horizon, then stored from there on.
                first = before.entries if before is not None and before.ledger_id == ledger.ledger_id else 0
                end = subscription.read[1] if ledger.ledger_id == subscription.read[0] else ledger.entries
                runs = [np.asarray(entries) for entries in self._deliverable(consumer, ledger, first, end)]
                if runs:
                    held.append((ledger.ledger_id, np.concatenate(runs)))
            before = ledger
        return held

    def holds(self, consumer: Consumer, position: Position) -> bool:
        subscription = self.subscription
        return consumer is self.active and position < subscription.read and subscription.has(position) and \
            len(subscription.left_of(position[0], np.array([position[1]]))) > 0

    def takes_appended(self, position: Position, messages: int) -> Consumer | None:
        for consumer in self.subscription.consumers:
            return self._if_it_takes(consumer, position, messages)
        return None

    def _if_it_takes(self, consumer: Consumer, position: Position, messages: int) -> Consumer | None:
        """Return the active consumer if it is to get all entries from the position on; see `takes_appended`."""
        subscription = self.subscription
        cursor = subscription.cursor
        if subscription.read != position or cursor.bitmaps or cursor.parts or subscription.parks \
                or subscription.view is not None or subscription.withheld is not None \
                or consumer.permits < messages or consumer.ranges is not None:
            return None
        return consumer

    def next_batches(self, ledgers: Sequence[ReadableLedger]) -> list[Batch]:
        subscription, consumer = self.subscription, self.active
        batches: list[Batch] = []
        if consumer is None:
            return batches
        if ledgers and (tail := self._tail(consumer, ledgers[-1])) is not None:      # nearly always
            first, end, messages = tail
            consumer.permits -= messages
            subscription.read = ledgers[-1].ledger_id, end
            return [(consumer, ledgers[-1], range(first, end))] if end > first else batches
        allowance = subscription.allowance
        for ledger in ledgers:
            first = subscription.read[1] if subscription.read[0] == ledger.ledger_id else 0
            for entries in self._deliverable(consumer, ledger, first, ledger.entries):
                if consumer.permits <= 0 or (allowance is not None and allowance.room <= 0):
                    return batches
                asked = entries[:consumer.permits]
                each = subscription.messages(ledger, asked)
                count, messages = within_permits(each, consumer.permits) if allowance is None else \
                    allowance.take(ledger, asked, each, consumer.permits)
                consumer.permits -= messages
                subscription.read = ledger.ledger_id, int(entries[count - 1]) + 1
                batches.append((consumer, ledger, entries[:count]))
                if count < len(entries):
                    return batches
            if consumer.permits <= 0 or (allowance is not None and allowance.room <= 0):
                return batches
            subscription.read = ledger.ledger_id, max(first, ledger.entries)
        return batches

    def _tail(self, consumer: Consumer, ledger: ReadableLedger) -> tuple[int, int, int] | None:
        """Return (first, end, messages) of the unread entries at the end of a ledger that are all to be delivered.

        None: the permits do not suffice, or there may be reasons against some of the entries.
        """
        subscription, cursor = self.subscription, self.subscription.cursor
        ledger_id, first = subscription.read
        if ledger_id != ledger.ledger_id or type(ledger) is not Ledger or not ledger.is_mapped or ledger.lost:
            return None
        if cursor.bitmaps or cursor.parts or consumer.ranges is not None or subscription.parks:
            return None
        if subscription.view is not None or subscription.withheld is not None or subscription.allowance is not None:
            return None
        messages = ledger.messages_in(first, ledger.entries)
        return (first, max(first, ledger.entries), messages) if messages <= consumer.permits else None

    def _deliverable(self, consumer: Consumer, ledger: ReadableLedger, first: int, end: int) -> Iterator[Entries]:
        """Deliverable entries among first .. end - 1 whose keys the consumer asks for."""
        entries = self.subscription.deliverable(ledger, first, end)
        return entries if consumer.ranges is None else _within(consumer.ranges, ledger, entries)

    def has_demand(self, ledgers: Sequence[ReadableLedger]) -> bool:
        active = self.active
        return active is not None and active.permits > 0 and self.has_unread(ledgers)


def _within(ranges: list[tuple[int, int]], ledger: ReadableLedger, deliverable: Iterator[Entries]) -> Iterator[Entries]:
    """Entries, of the deliverable ones, whose keys' hashes lie in one of the ranges."""
    is_wanted = np.zeros(HASHES, bool)
    for first, last in ranges:
        is_wanted[first:last + 1] = True
    for entries in deliverable:
        for at in range(0, len(entries), _STRETCH):
            some = np.asarray(entries[at:at + _STRETCH])
            some = some[is_wanted[hashes_of(ledger, some)]]
            if len(some):
                yield some
