"""The tables of what clients have open at one owner: connections, producers and consumers."""
from dataclasses import dataclass, field

from geminga.storage.open_topics.held_sends import HeldSends
from geminga.storage.open_topics.session import Sessions
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Producer, Subscription, Topic

CLOSED_MAX = 10_000      # consumers, each a hundred bytes; a hundred times what an unload of a usual topic closes


@dataclass(slots=True, eq=False)
class Producers:
    """The producers of one owner's topics, all by handle."""

    throttled: HeldSends                                                   # their SENDs that a publish rate holds back
    by_handle: dict[int, Producer] = field(default_factory=dict)
    non_persistent: dict[int, Producer] = field(default_factory=dict)      # those of non-persistent topics
    replicators: dict[int, Producer] = field(default_factory=dict)         # those of other clusters' replicators
    addressed: dict[int, Producer] = field(default_factory=dict)           # those for one subscription each
    # Those of segments that have sent no number above those that segments before have stored, see recounting.py.
    inheriting: dict[int, Producer] = field(default_factory=dict)
    contended: dict[Topic, None] = field(default_factory=dict)      # topics whose producers wait for exclusive access

    def __repr__(self) -> str:
        return f"<Producers {len(self.by_handle)}, of which {len(self.replicators)} replicate>"

    def enter(self, producer: Producer) -> None:
        """Enter a producer in the tables for its kind."""
        self.by_handle[producer.handle] = producer
        if not isinstance(producer.partition, Partition):
            self.non_persistent[producer.handle] = producer
        elif producer.source is not None:
            self.replicators[producer.handle] = producer
        elif producer.partition.name.is_segment:
            self.inheriting[producer.handle] = producer
        if producer.only_for and isinstance(producer.partition, Partition):
            self.addressed[producer.handle] = producer

    def remove(self, producer: Producer) -> bool:
        """Remove a producer from all tables, and drop its SENDs that are held back.  Returns whether it was there.

        Its client had no receipts for these SENDs, and sends them again.
        """
        self.throttled.drop_producer(producer.partition, producer.handle)
        self.non_persistent.pop(producer.handle, None)
        self.replicators.pop(producer.handle, None)
        self.addressed.pop(producer.handle, None)
        self.inheriting.pop(producer.handle, None)
        return self.by_handle.pop(producer.handle, None) is not None


@dataclass(slots=True, eq=False)
class Consumers:
    """The consumers of one owner's topics, and readers that are expected to come back."""

    by_handle: dict[int, Consumer] = field(default_factory=dict)
    # Subscriptions of readers that sought and must subscribe again -> time of the seek, in ms.
    expected_readers: dict[Subscription, int] = field(default_factory=dict)
    # Handle -> (worker, connection, consumer id) of those that were closed last.  Their ACKs may be on the way here,
    # and are refused; otherwise their clients would wait for an answer until they give up.
    closed: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def note_closed(self, consumer: Consumer) -> None:
        """Remember where the client of a consumer is that was closed."""
        self.closed[consumer.handle] = consumer.worker, consumer.connection, consumer.consumer_id
        if len(self.closed) > CLOSED_MAX:
            del self.closed[next(iter(self.closed))]

    def __repr__(self) -> str:
        return f"<Consumers {len(self.by_handle)}, expected readers {len(self.expected_readers)}>"


@dataclass(slots=True, eq=False)
class Clients:
    """The connections of one owner's clients, with their producers and consumers."""

    producers: Producers
    sessions: Sessions = field(default_factory=Sessions)
    consumers: Consumers = field(default_factory=Consumers)
    _last_handle: int = 1

    def __repr__(self) -> str:
        return f"<Clients {self.sessions!r} {self.producers!r} {self.consumers!r}>"

    def new_handle(self) -> int:
        """Return a number for a producer or consumer that is unique as long as the owner lives."""
        self._last_handle += 1
        return self._last_handle
