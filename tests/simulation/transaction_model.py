"""What owners have promised about transactions: who may get which message, and what a client knows of an end.

A client knows the end of a transaction if it was answered, or if a consumer has seen what only a commit or only an
abort shows.  Until then the transaction is whole or nothing, over all its topics and subscriptions.
"""
from dataclasses import dataclass, field

from .model import Position, demand

OPEN, ASKED, COMMITTED, ABORTED = "open", "asked to commit", "committed", "aborted"


@dataclass(eq=False)
class Transaction:
    """A transaction of one client.  An abort that was asked for counts as ABORTED: no commit can follow it."""

    bits: tuple[int, int]                # its id
    deadline_ms: int
    fate: str = OPEN
    messages: list["Message"] = field(default_factory=list)
    acks: list["Ack"] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)                   # what was added: serial of its owner then
    subscriptions: dict["Subscription", int] = field(default_factory=dict)
    waiting: int = 0                     # requests that are not answered yet
    is_spoiled: bool = False             # the answer of a part was lost, so that its client does not commit it
    is_left: bool = False                # its client has vanished
    asked_ms: int | None = None          # when its end was asked for
    is_told: bool = False                # its end was answered
    is_forgotten: bool = False           # its coordinator says that it does not know it

    def __str__(self) -> str:
        return "({},{})".format(*self.bits)

    @property
    def has_effects(self) -> bool:
        """Whether a durable answer was given to a part of it."""
        return any(message.is_stored for message in self.messages) or any(ack.is_done for ack in self.acks)

    @property
    def is_whole(self) -> bool:
        """Whether each of its parts was answered, as clients want it before they commit."""
        return not self.waiting and not self.is_spoiled and all(
            message.is_stored or message.is_refused for message in self.messages)

    def is_open(self, now_ms: int) -> bool:
        """Whether it is surely open: nobody has asked for its end, and its time is not over."""
        return self.fate == OPEN and now_ms < self.deadline_ms

    def learn(self, fate: str, why: object) -> None:
        """Note how the transaction has ended."""
        known = self.fate
        demand(known in (fate, OPEN, ASKED), "a transaction is whole or nothing", f"{self} {known}, but {why}")
        self.fate = fate


@dataclass(eq=False)
class Message:
    """An entry that was sent: one message, or a batch."""

    number: int
    topic: str
    data: bytes
    count: int
    producer: str
    sequence_id: int
    transaction: Transaction | None = None
    position: Position | None = None     # None: nobody has seen it
    is_stored: bool = False              # a receipt has come
    is_refused: bool = False             # an error has come, and it was sent once
    attempts: int = 0
    sent_ms: int = 0                     # when it was sent last

    def __str__(self) -> str:
        return f"message {self.number} at {self.position}"

    @property
    def whole(self) -> int:
        return (1 << self.count) - 1

    def is_at(self, position: Position) -> None:
        """Note where it is stored."""
        demand(self.position in (None, position), "what is sent again is stored once", f"{self} and {position}")
        self.position = position


@dataclass(eq=False)
class Ack:
    """An acknowledgement, in a transaction or without one."""

    transaction: Transaction | None
    bits: dict[Message, int] = field(default_factory=dict)
    up_to: Position | None = None        # everything up to there, in addition
    is_done: bool = False                # a success was answered
    is_refused: bool = False             # an error was answered

    def of(self, message: Message, position: Position) -> int:
        """Return the bits of a message at the position that it acknowledges."""
        if self.up_to is not None and position <= self.up_to:
            return message.whole
        return self.bits.get(message, 0)


@dataclass(eq=False)
class Consumer:
    handle: int
    object_id: int
    connection: int
    subscription: "Subscription"
    got: dict[Message, int] = field(default_factory=dict)      # bits of messages of each entry
    deliveries: int = 0

    @property
    def number(self) -> int:
        """The number that the rig gave the consumer."""
        return self.handle


@dataclass(eq=False)
class Subscription:
    name: str
    topic: str
    kind: int
    acks: list[Ack] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)

    def acknowledged(self, message: Message, position: Position, counts) -> int:
        """Return the bits of a message that acknowledgements have, of which counts(ack) is true."""
        bits = 0
        for ack in self.acks:
            if not ack.is_refused and counts(ack):
                bits |= ack.of(message, position)
        return bits


@dataclass(eq=False)
class Producer:
    name: str
    topic: str
    connection: int = 0
    handle: int = 0                      # 0: not connected
    object_id: int = 0
    next_sequence: int = 1
    sent: list[Message] = field(default_factory=list)
    unconfirmed: list[Message] = field(default_factory=list)      # no receipt has come; sent again if deduplicated


def is_over(ack: Ack) -> bool:
    """Whether an acknowledgement has taken effect for ever."""
    return ack.is_done and (ack.transaction is None or ack.transaction.fate == COMMITTED)


# -- deliveries

def seen(message: Message, position: Position, topic: list[Message], now_ms: int) -> None:
    """Check that a message may be seen by a consumer or reader now: nothing open is before it, and it is committed.

    topic: all messages that were sent to the topic.
    """
    message.is_at(position)
    if (transaction := message.transaction) is not None:
        demand(transaction.fate != OPEN, "nothing of an open transaction is delivered", f"{transaction} {message}")
        demand(transaction.fate != ABORTED, "nothing that was aborted is delivered", f"{transaction} {message}")
        transaction.learn(COMMITTED, f"{message} is seen")
    demand(not message.is_refused, "what was refused is not stored", message)
    for other in topic:
        if other.transaction is not None and other.is_stored and other.position is not None \
                and other.position < position:
            demand(not other.transaction.is_open(now_ms), "nothing behind an open transaction is delivered",
                   f"{message} behind {other} of {other.transaction}")


def given(subscription: Subscription, message: Message, position: Position, bits: int, now_ms: int) -> None:
    """Check which messages of an entry a consumer was given.  bits: 1 for each of them."""
    text = f"{subscription.name} {message} {bits:b}"
    over = subscription.acknowledged(message, position, is_over)
    demand(not bits & over, "nothing is delivered that is acknowledged", text)
    held = subscription.acknowledged(message, position, lambda ack: ack.is_done and ack.transaction is not None
                                     and ack.transaction.is_open(now_ms))
    demand(not bits & held, "what an open transaction acknowledges is held back", text)
    for ack in subscription.acks:
        if ack.is_done and ack.transaction is not None and ack.transaction.fate == ASKED \
                and ack.of(message, position) & bits:
            ack.transaction.learn(ABORTED, f"{text} is delivered again")
    asked = subscription.acknowledged(message, position, lambda ack: True)
    demand(not message.whole & ~bits & ~asked, "only what a client acknowledged is acknowledged", text)


# -- the end, when nothing happens any more

def ended(subscription: Subscription, topic: list[Message], got: dict[Message, int],
          evidence: dict[Transaction, dict[str, str]]) -> None:
    """Check that a consumer has got all that is left of a subscription.

    got: bits of the messages of each entry.  evidence: {transaction: {fate: what shows it}} of unknown ends, added to.
    """
    for message in topic:
        position, bits = message.position, got.get(message, 0)
        if position is None:
            demand(not bits and not is_due(message), "everything is delivered in the end", message)
            continue
        text = f"{subscription.name} {message} {bits:b}"
        gone = subscription.acknowledged(message, position, lambda ack: _fate(ack) != ABORTED)
        if is_due(message):
            demand(not message.whole & ~gone & ~bits, "everything is delivered in the end", text)
            for ack in subscription.acks:
                others = subscription.acknowledged(
                    message, position, lambda other, ack=ack: other is not ack and _fate(other) != ABORTED)
                if _fate(ack) == ASKED and ack.is_done and (mine := ack.of(message, position) & ~others):
                    evidence.setdefault(ack.transaction, {})[ABORTED if mine & bits else COMMITTED] = text
        if message.transaction is not None and message.transaction.fate == ASKED and (left := message.whole & ~gone):
            evidence.setdefault(message.transaction, {})[COMMITTED if bits & left else ABORTED] = text
    for transaction, found in evidence.items():
        demand(len(found) < 2, "a transaction is whole or nothing", f"{transaction} {found}")


def is_due(message: Message) -> bool:
    """Whether a message is surely there, for whoever has not acknowledged it."""
    return message.is_stored and (message.transaction is None or message.transaction.fate == COMMITTED)


def left(subscription: Subscription, message: Message) -> int:
    """Return the bits of a message that are surely to be delivered, 0 if nobody knows where the message is."""
    if message.position is None or not is_due(message):
        return 0
    return message.whole & ~subscription.acknowledged(message, message.position, lambda ack: _fate(ack) != ABORTED)


def _fate(ack: Ack) -> str:
    return COMMITTED if ack.transaction is None else ack.transaction.fate
