"""One consumer gets everything, in order; or, if it brings ranges of hashes, the entries with such keys."""
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.dispatch.ranges import HASHES, hashes_of
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.topics.permits import within_permits
from geminga.storage.topics.subscription import Batch, Consumer, Dispatcher, Nacked, Obstacle, busy

_STRETCH = 4_096      # entries of which the keys' hashes are looked at together


class Exclusive(Dispatcher):
    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        holder = self.active
        return Obstacle(holder, busy("Exclusive consumer is already connected")) if holder is not None else None

    @property
    def active(self) -> Consumer | None:
        """The consumer that gets everything."""
        return self.subscription.first_consumer

    def attach(self, consumer: Consumer) -> None:
        self.subscription.rewind()

    def detach(self, consumer: Consumer) -> None:
        self.subscription.rewind()

    def released(self, parked: list[Position]) -> None:
        self.subscription.rewind()

    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> Nacked:
        """Ids do not matter: everything unacknowledged comes again, in order, and is not counted."""
        self.subscription.rewind()
        return []

    # What is out is what lies between the cursor and the read position: nothing else has to be told.

    def acknowledged(self, ledger: Ledger, entries: list[int] | NDArray[np.int64]) -> None:
        pass

    def acknowledged_up_to(self, position: Position) -> None:
        pass

    def part_acknowledged(self, ledger: Ledger, entry_id: int, messages: int) -> None:
        pass

    def let_go(self) -> None:
        pass

    def forget(self, ledger: Ledger) -> None:
        pass

    def causes(self) -> list[dict]:
        found = self.active
        if found.permits <= 0:
            return [{"cause": "no permits", "consumer": found.name}]
        return [{"cause": "no acknowledgements", "consumer": found.name}]

    def held_by(self, consumer: Consumer) -> list[tuple[int, NDArray[np.int64]]]:
        subscription, found = self.subscription, []
        if consumer is not self.active:
            return found
        before = None
        for ledger in subscription.ledgers_from(subscription.cursor.mark_delete[0]):
            if ledger.ledger_id <= subscription.read[0]:
                first = before.entries if before is not None and before.ledger_id == ledger.ledger_id else 0      # behind a view's horizon
                end = subscription.read[1] if ledger.ledger_id == subscription.read[0] else ledger.entries
                runs = [np.asarray(entries) for entries in self._deliverable(consumer, ledger, first, end)]
                found += [(ledger.ledger_id, np.concatenate(runs))] if runs else []
            before = ledger
        return found

    def holds(self, consumer: Consumer, position: Position) -> bool:
        subscription = self.subscription
        return consumer is self.active and position < subscription.read and subscription.has(position) and \
            not subscription.cursor.is_acknowledged(*position)

    def next_batches(self, ledgers: list[Ledger]) -> list[Batch]:
        subscription, consumer, batches = self.subscription, self.active, []
        if consumer is None:
            return batches
        allowance = subscription.allowance
        for ledger in ledgers:
            first = subscription.read[1] if subscription.read[0] == ledger.ledger_id else 0
            for entries in self._deliverable(consumer, ledger, first, ledger.entries):
                if consumer.permits <= 0 or (allowance is not None and allowance.room <= 0):
                    return batches
                asked = entries[:consumer.permits]
                messages = subscription.messages(ledger, asked)
                count, messages = within_permits(messages, consumer.permits) if allowance is None else \
                    self.reach(ledger, asked, messages, consumer.permits)
                consumer.permits -= messages
                subscription.read = ledger.ledger_id, int(entries[count - 1]) + 1
                batches.append((consumer, ledger, entries[:count]))
                if count < len(entries):
                    return batches
            if consumer.permits <= 0 or (allowance is not None and allowance.room <= 0):
                return batches
            subscription.read = ledger.ledger_id, ledger.entries
        return batches

    def _deliverable(self, consumer: Consumer, ledger: Ledger, first: int, end: int) -> Iterator[Entries]:
        """What of the entries in [first, end) is the consumer's."""
        found = self.subscription.deliverable(ledger, first, end)
        return found if consumer.ranges is None else _within(consumer.ranges, ledger, found)

    def has_demand(self, ledgers: list[Ledger]) -> bool:
        return self.active is not None and self.active.permits > 0 and self.has_unread(ledgers)


def _within(wanted: list[tuple[int, int]], ledger: Ledger, found: Iterator[Entries]) -> Iterator[Entries]:
    """Those of the entries whose keys' hashes lie in one of the ranges."""
    is_wanted = np.zeros(HASHES, bool)
    for first, last in wanted:
        is_wanted[first:last + 1] = True
    for entries in found:
        for at in range(0, len(entries), _STRETCH):
            some = np.asarray(entries[at:at + _STRETCH])
            some = some[is_wanted[hashes_of(ledger, some)]]
            if len(some):
                yield some
