"""A subscription: a name, a cursor, the consumers attached, and how far they have been given entries."""
from dataclasses import dataclass, field

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.cursor import Cursor, Position

SubType = api.CommandSubscribe.SubType


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
    permits: int = 0          # messages it has asked for and not been sent; below zero at most by one batch


@dataclass(eq=False, slots=True)
class Subscription:
    """`read` is the next position to be given out: memory only, and never before the mark-delete position."""

    name: str
    cursor: Cursor
    partition: object = field(repr=False)
    kind: int | None = None                                    # a SubType, as long as anybody is attached
    consumers: list[Consumer] = field(default_factory=list)
    read: Position = (0, 0)
    unwritten: bool = False                                    # the cursor has moved and its row on disk has not

    @property
    def is_durable(self) -> bool:
        return self.cursor.is_durable

    @property
    def key(self) -> tuple[str, bool]:
        """A durable subscription and one that is not may share a name."""
        return self.name, self.is_durable

    def rewind(self) -> None:
        """What was given out and not acknowledged is given out again."""
        ledger_id, entry_id = self.cursor.mark_delete
        self.read = ledger_id, entry_id + 1

    def detach(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if not self.consumers:
            self.kind = None
        self.rewind()
