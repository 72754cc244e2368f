"""Who may publish to a partition: producers' names, access modes, fencing (PIP-68).

    Shared                 many; refused while somebody holds the topic exclusively
    Exclusive              one; refused while there is anybody
    WaitForExclusive       as Exclusive, but waits for its turn instead
    ExclusiveWithFencing   throws everybody out, those who wait as well

The topic epoch rises with every new exclusive producer and is kept in the catalogue.  A producer that comes back with an
older epoch has been replaced meanwhile and is fenced: it must not write again.
"""
from dataclasses import dataclass, field

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.cursors import producer_sequences

Shared, Exclusive, WaitForExclusive, ExclusiveWithFencing = api.Shared, api.Exclusive, api.WaitForExclusive, api.ExclusiveWithFencing


@dataclass(eq=False, slots=True)
class Producer:
    """A client's right to publish, known to its worker by `handle`."""

    handle: int
    worker: int
    connection: int
    producer_id: int
    request_id: int
    name: str
    is_generated_name: bool
    epoch: int                      # of this incarnation, the client's count of its reconnections
    access_mode: int
    topic_epoch: int | None         # what the client held before, then what it was given
    partition: object = field(repr=False)
    is_ready: bool = True
    connected_ms: int = 0
    metadata: dict[str, str] = field(default_factory=dict)      # what its client notes about it
    is_encrypted: bool = False      # it says that it encrypts what it publishes
    schema_version: bytes = b""     # as the protocol has it; empty: it brought no schema
    messages_in: int = 0            # published
    bytes_in: int = 0
    chunks_in: int = 0              # of large messages
    dropped: int = 0                # messages of a non-persistent topic that exceeded the bound of their connection
    counted: tuple[int, ...] = ()              # see statistics.py
    rates: tuple[float, ...] = ()
    identity: bytes = field(init=False, repr=False)      # for producer_sequences.py

    def __post_init__(self) -> None:
        self.identity = producer_sequences.identity(self.name)

    def succeeds(self, other: "Producer") -> bool:
        """Whether this is the same producer of the same client, come back before the old connection was seen to be dead."""
        return self.is_generated_name and other.is_generated_name and self.epoch > other.epoch


@dataclass(slots=True)
class Producers:
    """The producers of one partition."""

    topic_epoch: int | None
    live: dict[str, Producer] = field(default_factory=dict)      # by name
    waiting: list[Producer] = field(default_factory=list)        # for exclusive access, in order
    exclusive: Producer | None = None

    def expel_all(self) -> list[Producer]:
        """Nobody may publish any more; returns who could, or waited to."""
        out = [*self.live.values(), *self.waiting]
        self.live.clear()
        self.waiting.clear()
        self.exclusive = None
        return out

    def holder_of_name(self, producer: Producer) -> Producer | None:
        """Who has the name already, if that is somebody the newcomer does not simply replace."""
        holder = self.live.get(producer.name)
        return None if holder is None or producer.succeeds(holder) else holder

    def admit(self, producer: Producer) -> list[Producer]:
        """Let the producer in, or make it wait (`is_ready` false); returns whom it has thrown out.  Raises Refusal."""
        self._check_epoch(producer)
        if producer.access_mode == ExclusiveWithFencing:
            out = [*self.live.values(), *self.waiting]
            self.live.clear()
            self.waiting.clear()
            self.exclusive = None
            self._enter_exclusively(producer)
            return out
        old = self.live.get(producer.name)      # the same producer, which has come back
        is_queued_for = bool(self.waiting) and (old is None or self.exclusive is not old)      # who had its turn keeps it
        is_held = self.exclusive not in (None, old)
        is_taken = is_held or is_queued_for or len(self.live) > (old is not None)
        if producer.access_mode == Shared and (is_held or is_queued_for):
            raise Refusal(api.ProducerBusy, "Topic has an exclusive producer")
        if producer.access_mode == Exclusive and is_taken:
            raise Refusal(api.ProducerFenced, "Topic has existing producers")
        if old is not None:
            self._drop(old)
        if producer.access_mode == Shared:
            self.live[producer.name] = producer
        elif is_taken:
            producer.is_ready = False
            self.waiting.append(producer)
        else:
            self._enter_exclusively(producer)
        return [] if old is None else [old]

    def _check_epoch(self, producer: Producer) -> None:
        if producer.topic_epoch is not None and producer.topic_epoch < (self.topic_epoch if self.topic_epoch is not None else -1):
            raise Refusal(api.ProducerFenced, f"Topic epoch has already moved: {producer.topic_epoch} came, {self.topic_epoch} holds")

    def _enter_exclusively(self, producer: Producer) -> None:
        if producer.topic_epoch is None or producer.access_mode == ExclusiveWithFencing:
            producer.topic_epoch = 0 if self.topic_epoch is None else self.topic_epoch + 1
        self.topic_epoch = producer.topic_epoch
        self.exclusive = producer
        self.live[producer.name] = producer

    def _drop(self, producer: Producer) -> None:
        if self.live.get(producer.name) is producer:
            del self.live[producer.name]
        if self.exclusive is producer:
            self.exclusive = None

    def leave(self, producer: Producer) -> Producer | None:
        """The producer is gone; returns one that waited and has now got access."""
        if producer in self.waiting:
            self.waiting.remove(producer)
        self._drop(producer)
        if self.live or not self.waiting:
            return None
        successor = self.waiting.pop(0)
        successor.is_ready = True
        self._enter_exclusively(successor)
        return successor
