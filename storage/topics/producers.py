"""Access modes of producers (PIP-68): who may publish to a topic together with whom.

    Shared                 many; refused while a producer has exclusive access
    Exclusive              one; refused while there is any other producer
    WaitForExclusive       one; waits in line while there is any other producer
    ExclusiveWithFencing   one; closes all other producers, also those that wait

The topic epoch rises with every new exclusive producer, and the catalogue keeps it.  A producer that reconnects with an
older epoch was replaced meanwhile.  It is fenced: refused for good, as its messages must not follow its successor's.
"""
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal

Shared, Exclusive = api.Shared, api.Exclusive
WaitForExclusive, ExclusiveWithFencing = api.WaitForExclusive, api.ExclusiveWithFencing


class Contender(Protocol):
    """A producer, as far as access modes need to know it.

    The class Producer itself names its topic, and a topic its producers, so this file cannot import it.
    """

    name: str
    access_mode: int
    topic_epoch: int | None      # as the client had it; once admitted, as it was assigned
    is_ready: bool               # False: it waits for exclusive access

    def succeeds(self: "P", other: "P") -> bool:
        """Whether `other` is the same client's producer on an older connection."""


P = TypeVar("P", bound=Contender)


@dataclass(slots=True)
class Producers(Generic[P]):
    """The producers of one topic."""

    topic_epoch: int | None
    live: dict[str, P] = field(default_factory=dict)      # those that may publish, by name
    waiting: list[P] = field(default_factory=list)        # for exclusive access, in order
    exclusive: P | None = None

    def check(self) -> None:
        """Assert what is true between commands: who is ready, and that an exclusive producer is alone."""
        assert all(producer.is_ready and producer.name == name for name, producer in self.live.items()), self
        assert not any(producer.is_ready for producer in self.waiting), self
        assert self.exclusive is None or list(self.live.values()) == [self.exclusive], self
        assert not self.waiting or self.live, self

    def expel_all(self) -> list[P]:
        """Remove all producers, also those that wait, and return them."""
        out = [*self.live.values(), *self.waiting]
        self.live.clear()
        self.waiting.clear()
        self.exclusive = None
        return out

    def holder_of_name(self, producer: P) -> P | None:
        """The producer that has the newcomer's name already; None: nobody, or one that the newcomer succeeds."""
        holder = self.live.get(producer.name)
        return None if holder is None or producer.succeeds(holder) else holder

    def holder_of_access(self, producer: P) -> P | None:
        """Return a producer that keeps the newcomer from entering at once by its access mode, None if nobody does."""
        old = self.live.get(producer.name)      # the same producer, which has reconnected
        if producer.access_mode == ExclusiveWithFencing:
            return None
        if producer.access_mode == Shared and not self.waiting:
            return None if self.exclusive is old else self.exclusive
        return next((holder for holder in self.live.values() if holder is not old), None)

    def admit(self, producer: P) -> list[P]:
        """Let the producer in, or make it wait (`is_ready` False).  Return producers that it replaces.

        Raises Refusal.
        """
        self._check_epoch(producer)
        if producer.access_mode == ExclusiveWithFencing:
            out = self.expel_all()
            self._enter_exclusively(producer)
            return out
        old = self.live.get(producer.name)      # the same producer, which has reconnected
        # An exclusive producer that reconnects keeps its turn: those in line came later.
        is_queued_for = bool(self.waiting) and (old is None or self.exclusive is not old)
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

    def _check_epoch(self, producer: P) -> None:
        """Refuse a producer whose topic epoch is older than the topic's."""
        newest = self.topic_epoch if self.topic_epoch is not None else -1
        if producer.topic_epoch is not None and producer.topic_epoch < newest:
            text = f"Topic epoch has already moved: {producer.topic_epoch} came, {self.topic_epoch} holds"
            raise Refusal(api.ProducerFenced, text)

    def _enter_exclusively(self, producer: P) -> None:
        if producer.topic_epoch is None or producer.access_mode == ExclusiveWithFencing:
            producer.topic_epoch = 0 if self.topic_epoch is None else self.topic_epoch + 1
        self.topic_epoch = producer.topic_epoch
        self.exclusive = producer
        self.live[producer.name] = producer

    def _drop(self, producer: P) -> None:
        if self.live.get(producer.name) is producer:
            del self.live[producer.name]
        if self.exclusive is producer:
            self.exclusive = None

    def leave(self, producer: P) -> P | None:
        """Remove the producer.  Return the one in line that has got exclusive access in its place."""
        if producer in self.waiting:
            self.waiting.remove(producer)
        self._drop(producer)
        if self.live or not self.waiting:
            return None
        successor = self.waiting.pop(0)
        successor.is_ready = True
        self._enter_exclusively(successor)
        return successor
