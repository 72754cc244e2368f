"""Publishing that commands, policies, transactions and schedules ask for: of SENDs that wait, and of entries."""
from collections.abc import Sequence
from typing import Protocol

from geminga.storage.ledgers.position import Position
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Producer, Topic

NO_WORKER = (1 << 31) - 1      # of a producer of the broker's own, which gets no receipts


class Publisher(Protocol):
    """The publishing of one owner.  Publishing itself is above all rooms that ask for it: it enforces their policies.
    """

    def publish_held(self, topic: Topic) -> None:
        """Publish the SENDs to the topic that a rate holds back."""

    def publish_asked(self, partition: Partition, transaction: int) -> None:
        """Publish the SENDs that wait for a coordinator, which has answered about this transaction."""

    def publish_own(self, producer: Producer, entries: Sequence[tuple[int | None, bytes]]) -> list[Position]:
        """Publish entries of the broker's own, as if the producer had sent them, and return their positions.

        entries: [(number, entry)].  Numbers ascend; an entry whose number is not above the producer's last one was
        stored before, and is left out.  None: always stored.  A non-persistent topic stores nothing, and has no
        positions.  Nothing is stored if an error is raised.  Raises Refusal, StorageFull.
        """
