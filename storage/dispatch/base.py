"""What every way of choosing does; a subscription has one as long as it has consumers.

Pure: subscription, ledgers and times in, entries out.  No socket, no clock, no file.
"""
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.cursors.cursor import Position
from geminga.storage.cursors.pending_acks import Entries
from geminga.storage.delayed.index import Released
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.subscription import Consumer, Subscription

UNBOUNDED = 1 << 62
_FEW = 16      # entries that are cheaper to look at one by one than as an array

Batch = tuple[Consumer, Ledger, Entries]
Nacked = list[tuple[int, NDArray[np.int64]]]     # [(ledger id, entries)]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why somebody may not attach, and who is in the way."""

    holder: Consumer
    refusal: Refusal


class Dispatcher(ABC):
    """What a subscription asks of its way of choosing."""

    is_woken_by_acknowledgements = False     # they may let something be given out

    def __init__(self, subscription: Subscription):
        self.subscription = subscription

    # -- consumers

    def obstacle(self, consumer: Consumer) -> Obstacle | None:
        """What keeps this consumer from attaching, as long as the one in its way lives."""
        return None

    @abstractmethod
    def attach(self, consumer: Consumer) -> None:
        """The consumer is among the subscription's now."""

    @abstractmethod
    def detach(self, consumer: Consumer) -> None:
        """It is no longer; what it had is to be given out again."""

    def news(self) -> list[tuple[Consumer, bool]]:
        """Whom to tell, since the last time this was asked, that it has become the active consumer, or not."""
        return []

    # -- entries

    @abstractmethod
    def next_batches(self, ledgers: list[Ledger]) -> list[Batch]:
        """Who gets what now.  Takes permits, and moves the read position.

        ledgers: those from the read position's on.
        """

    def bounds_changed(self) -> None:      # noqa: B027
        """Policies of its consumers, or the options of its subscription, are new."""

    def fell_due(self, released: Released) -> None:      # noqa: B027
        """The time of these has come; whoever does not wait for it has given them out long ago."""

    @abstractmethod
    def is_hungry(self, ledgers: list[Ledger]) -> bool:
        """Whether a consumer asks for more, and there is more."""

    def reach(self, ledger: Ledger, entries: Entries, messages: NDArray[np.uint32], permits: int) -> tuple[int, int]:
        """(entries, messages) that permits for so many messages, and the subscription's allowance, reach; that is taken off it."""
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
        """These (n,), sorted, were not acknowledged before."""

    @abstractmethod
    def acknowledged_up_to(self, position: Position) -> None:
        """So is everything up to there."""

    @abstractmethod
    def part_acknowledged(self, ledger: Ledger, entry_id: int, messages: int) -> None:
        """So many messages of that entry are acknowledged now, others are not."""

    @abstractmethod
    def held_by(self, consumer: Consumer) -> list[tuple[int, NDArray[np.int64]]]:
        """[(ledger id, entries)] that the consumer has been given, and that are not acknowledged."""

    @abstractmethod
    def holds(self, consumer: Consumer, position: Position) -> bool:
        """Whether the consumer has been given that entry, and it is not acknowledged."""

    @abstractmethod
    def released(self, parked: list[Position]) -> None:
        """These entries were passed over, and may be given out now."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, wanted: dict[int, NDArray[np.int64]]) -> Nacked:
        """The consumer wants what it has again, or of that only the wanted {ledger id: entries}; returns what counts as redelivered."""

    @abstractmethod
    def let_go(self) -> None:
        """What was given out is not to be given again, whatever becomes of it."""

    @abstractmethod
    def causes(self) -> list[dict]:
        """What keeps consumers from getting more, one {"cause": ...} each."""

    @abstractmethod
    def forget(self, ledger: Ledger) -> None:
        """The ledger is about to be deleted."""


def busy(text: str) -> Refusal:
    return Refusal(api.ConsumerBusy, text)


def has_unread(subscription: Subscription, ledgers: list[Ledger]) -> bool:
    return bool(ledgers) and subscription.read < (ledgers[-1].ledger_id, ledgers[-1].entries)


def within_permits(messages: NDArray[np.uint32], permits: int) -> tuple[int, int]:
    """(entries, messages) that permits for so many messages reach; a batch may exceed them once."""
    if len(messages) <= _FEW:
        total = count = 0
        for many in messages.tolist():
            if total >= permits:
                break
            total += many
            count += 1
        return count, total
    reach = np.cumsum(messages[:permits], dtype=np.int64)
    count = min(len(reach), int(np.searchsorted(reach, permits)) + 1)
    return count, int(reach[count - 1])
