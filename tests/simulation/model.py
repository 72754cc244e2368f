"""What an owner has promised: of a topic what was published, of a subscription what has become of it, who has what, and
who is next.

While a process lives the model says exactly what it holds.  What a crash leaves lies between what was surely on disk
and what was asked for since: `Subscription.candidates`.  What is found then is what the model goes on with.
"""
from dataclasses import dataclass, field

from geminga.storage.cursors.cursor import ACKNOWLEDGED, EXPIRED, SKIPPED
from geminga.storage.topics.subscription import SubType

START = (-1, -1)
SPREAD = SubType.Shared, SubType.Key_Shared
SLACK_MS = 1_000         # what falls due comes a tick later at most
Position = tuple[int, int]


class Broken(Exception):
    """A promise was not kept."""

    def __init__(self, promise: str, text: str):
        super().__init__(f"{promise}: {text}")
        self.promise = promise


def demand(holds: bool, promise: str, text: object = "") -> None:
    if not holds:
        raise Broken(promise, str(text))


@dataclass(eq=False)
class Entry:
    data: bytes
    messages: int = 1
    key: str | None = None
    deliver_at: int = 0
    producer: str = ""
    sequence_id: int = 0
    is_chunk: bool = False
    chunk: int = 0
    is_stored: bool = False
    priority: int = 4
    matching: int = -1                    # bits of messages that match the filter of subscriptions with one
    published: int = 0
    ttl_ms: int = 0                       # 0: it does not expire by a time of its own

    @property
    def whole(self) -> int:
        return (1 << self.messages) - 1

    @property
    def expires_from(self) -> int:
        """The earliest time at which the entry may expire, of those with a time to live."""
        return self.published + self.ttl_ms


@dataclass(eq=False)
class Producer:
    name: str
    topic: "Topic"
    connection: int
    handle: int = 0                       # 0: not connected
    object_id: int = 0
    next_sequence: int = 1
    # sent, and no receipt has come; those of a name that deduplicates
    unconfirmed: list[Entry] = field(default_factory=list)


@dataclass(eq=False)
class Consumer:
    name: str
    subscription: "Subscription"
    connection: int
    handle: int
    object_id: int
    permits: int = 0

    @property
    def number(self) -> int:
        """The number that the rig gave the consumer."""
        return self.handle


@dataclass
class State:
    """The durable state of a subscription.  An entry that `left` does not have is as it was published."""

    since: int = 0
    left: dict[Position, int] = field(default_factory=dict)       # bits of messages that are not acknowledged
    counts: dict[Position, int] = field(default_factory=dict)     # redeliveries of what is not acknowledged
    totals: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    def copy(self) -> "State":
        return State(self.since, dict(self.left), dict(self.counts), list(self.totals))

    def acknowledge(self, position: Position, entry: Entry, keep: int = 0, reason: int = ACKNOWLEDGED) -> None:
        """Acknowledge the messages of an entry that have no bit in `keep`."""
        before = self.left.get(position, entry.whole)
        if before & ~keep:
            self.left[position] = before & keep
            self.totals[reason] += (before & ~keep).bit_count()
        if not self.left.get(position, 1):
            self.counts.pop(position, None)

    def lies_between(self, low: "State", high: "State", log: dict[Position, Entry]) -> bool:
        if not self.since == low.since == high.since:
            return False
        for position, entry in log.items():
            first, mine, last = (state.left.get(position, entry.whole) for state in (low, self, high))
            if mine & ~first or last & ~mine:
                return False
            least, count, most = (state.counts.get(position, 0) for state in (low, self, high))
            # what is acknowledged in the end is counted no more
            if mine and (count < least or (last and count > most)):
                return False
        return all(first <= mine <= last
                   for first, mine, last in zip(low.totals, self.totals, high.totals, strict=True))


@dataclass(eq=False)
class Subscription:
    name: str
    topic: "Topic"
    kind: int
    is_durable: bool = True
    state: State | None = field(default_factory=State)                # None: it is not there
    candidates: list[tuple[State | None, State | None]] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    out: dict[Position, Consumer] = field(default_factory=dict)       # who has it, where entries are spread
    read: Position = START                                            # the last that the active consumer was given
    is_filtered: bool = False

    @property
    def is_spread(self) -> bool:
        return self.kind in SPREAD

    @property
    def active(self) -> Consumer | None:
        if self.kind == SubType.Failover and self.topic.number >= 0 and self.consumers:
            return sorted(self.consumers, key=_name)[self.topic.number % len(self.consumers)]
        return min(self.consumers, key=_name, default=None)

    def unacknowledged(self, position: Position) -> int:
        return self.state.left.get(position, self.topic.log[position].whole)

    def due(self, now_ms: int) -> list[Position]:
        """Return the positions that are to be delivered, in order."""
        return [position for position, entry in self.topic.log.items()
                if position not in self.out and self.unacknowledged(position) and position[0] >= self.topic.first_ledger
                and (entry.deliver_at <= now_ms if self.is_spread else position > self.read)]

    def holders_of_chunks(self, position: Position) -> list:
        """Return the consumers that hold other chunks of the message of which an entry is one."""
        log, entry = self.topic.log, self.topic.log[position]
        return [holder for other, holder in self.out.items() if entry.is_chunk and log[other].is_chunk
                and (log[other].producer, log[other].sequence_id) == (entry.producer, entry.sequence_id)]

    # -- what happens to it

    def filter_up_to(self, state: State, end: Position) -> None:
        """Acknowledge what does not match, before a position, in a state of this subscription."""
        for position, entry in self.topic.log.items():
            if position < end:
                state.acknowledge(position, entry, entry.matching, SKIPPED)

    def filtered(self, state: State | None) -> State | None:
        """Return a state as it is once everything was looked at; a kill may lose how far that was."""
        due = [one for one in self.topic.log.items() if one[1].ttl_ms and one[1].expires_from <= self.topic.expired_by]
        if state is None or not (self.is_filtered or due):
            return state
        state = state.copy()
        for position, entry in due:
            state.acknowledge(position, entry, reason=EXPIRED)
        if self.is_filtered:
            self.filter_up_to(state, self.topic.end)
        for reason in SKIPPED, EXPIRED:      # a client may have come first
            state.totals[ACKNOWLEDGED] += state.totals[reason]
            state.totals[reason] = 0
        return state

    def acknowledge(self, positions: list[Position], keep: int = 0, reason: int = ACKNOWLEDGED) -> None:
        for position in positions:
            self.state.acknowledge(position, self.topic.log[position], keep, reason)
            if not self.unacknowledged(position):
                self.out.pop(position, None)

    def up_to(self, position: Position) -> list[Position]:
        return [other for other in self.topic.log if other <= position]

    def join(self, consumer: Consumer) -> None:
        before = self.active
        self.consumers.append(consumer)
        if self.active is not before:
            self.read = START

    def leave(self, consumer: Consumer) -> None:
        before = self.active
        self.consumers.remove(consumer)
        self.out = {position: holder for position, holder in self.out.items() if holder is not consumer}
        if self.active is not before:
            self.read = START

    def vacate(self) -> None:
        self.consumers, self.out, self.read = [], {}, START

    def give_back(self, consumer: Consumer, wanted: set[Position] | None) -> None:
        """Take entries back from a consumer; wanted None: all that it has."""
        if not self.is_spread:
            self.read = START if consumer is self.active else self.read
            return
        for position in [position for position, holder in self.out.items() if holder is consumer]:
            if wanted is None or position in wanted:
                del self.out[position]
                self.state.counts[position] = self.state.counts.get(position, 0) + 1

    def begin(self, position: Position) -> State:
        """Return the state of a subscription that begins with the entry at the position."""
        before = [other for other in self.topic.log if other < position]
        return State(sum(self.topic.log[other].messages for other in before), dict.fromkeys(before, 0))


@dataclass(eq=False)
class Topic:
    name: str
    number: int                                                       # of the partition, -1 when it is not one
    deduplicates: bool
    log: dict[Position, Entry] = field(default_factory=dict)          # all that was ever stored, in order
    first_ledger: int = -1                                            # those before it have been deleted
    attempted: list[Entry] = field(default_factory=list)              # in a pass that did not end: they may be there
    subscriptions: dict[tuple[str, bool], Subscription] = field(default_factory=dict)
    producers: list[Producer] = field(default_factory=list)
    is_terminated: set[bool] = field(default_factory=lambda: {False})     # what it may be
    expired_by: int = -1                  # entries that expire by then may have done so in a process that has ended
    # else a crash has left it, and nobody has looked since
    is_known: bool = True

    @property
    def messages(self) -> int:
        return sum(entry.messages for entry in self.log.values())

    @property
    def end(self) -> Position:
        """The position behind the last entry."""
        return (1 << 62, 0)

    def add(self, position: Position, entry: Entry) -> None:
        demand(position not in self.log, "no position is used twice", position)
        demand(not self.log or position > next(reversed(self.log)), "entries are stored in order", position)
        self.log[position], entry.is_stored = entry, True


def _name(consumer: Consumer) -> str:
    return consumer.name
