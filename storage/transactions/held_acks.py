"""ACKs in transactions that wait for a coordinator, because their subscription is not known to be in the transaction.

    the topic, or the subscription, was added before it was there      only the coordinator knows the name
    this owner has just started                                        it does not know what was added before

The coordinator is asked.  Once it has answered, the ACK is carried out, or refused, as if it had just come.  Plain ACKs
and messages are not held back: no promise depends on their order with an ACK whose client has no answer yet.
"""
from collections.abc import Callable
from dataclasses import dataclass, field

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Session, Sessions
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription
from geminga.storage.transactions.peers import Peers

_PATIENCE_MS = 5_000           # how long ACKs wait for a coordinator before they are refused
_HELD_MAX = 10_000             # ACKs of one owner that wait
_HELD_BYTES_MAX = 16 << 20     # their size: one may have 100,000 message ids and more

_Question = tuple[int, int, int]      # transaction, partition id, subscription id


@dataclass(slots=True)
class _Waiting:
    """ACKs that wait for the answer to one question."""

    since_ms: int
    acks: list[tuple[Session, api.CommandAck]] = field(default_factory=list)


class HeldAcks(Watcher):
    """The ACKs in transactions to one owner's subscriptions that wait for coordinators."""

    def __init__(self, decisions: Decisions, sessions: Sessions, peers: Peers,
                 carry_out: Callable[[Session, api.BaseCommand], None]):
        """carry_out: carries out a command that has waited."""
        self._decisions, self._sessions, self._peers, self._carry_out_command = decisions, sessions, peers, carry_out
        self._waiting: dict[_Question, _Waiting] = {}
        self._answered: _Question | None = None      # whose ACKs are being carried out
        self._held = self._bytes = 0                 # ACKs that wait

    def __repr__(self) -> str:
        return f"<HeldAcks {self._held} of {len(self._waiting)} questions>"

    def hold(self, session: Session, ack: api.CommandAck, subscription: Subscription, transaction: int) -> bool:
        """Hold back an ACK, and ask the coordinator; False if nothing is to be asked.  Raises Refusal."""
        partition = subscription.partition
        assert isinstance(partition, Partition), partition
        question = transaction, partition.partition_id, subscription.cursor.subscription_id
        known = partition.transactions
        if question == self._answered or (known is not None and known.outcome(transaction) is not None):
            return False
        size = ack.ByteSize()
        if self._held >= _HELD_MAX or self._bytes + size > _HELD_BYTES_MAX:
            raise Refusal(api.TransactionCoordinatorNotFound, "Too many acknowledgements wait for a coordinator")
        if question not in self._waiting:
            self._waiting[question] = _Waiting(self._decisions.now_ms)
            self._ask(question)
        self._waiting[question].acks.append((session, ack))
        self._held += 1
        self._bytes += size
        return True

    def _ask(self, question: _Question) -> None:
        self._peers.send(self._coordinator_of(question), envelope.MAY_ACKNOWLEDGE, *question)

    def _coordinator_of(self, question: _Question) -> int:
        """Return the index of the owner that has the transaction's coordinator."""
        return names.transaction_bits(question[0])[0] % self._peers.owners

    def answered(self, transaction: int, partition_id: int, subscription_id: int) -> None:
        """Carry out the ACKs that waited for this question, which their coordinator has answered."""
        self._carry_out((transaction, partition_id, subscription_id))

    def ended(self, transaction: int, partition_id: int) -> None:
        """Carry out all ACKs in a transaction that has ended in a partition: they are refused."""
        for question in [one for one in self._waiting if one[:2] == (transaction, partition_id)]:
            self._carry_out(question)

    def _carry_out(self, question: _Question) -> None:
        if (waiting := self._waiting.pop(question, None)) is None:
            return
        self._held -= len(waiting.acks)
        self._bytes -= sum(ack.ByteSize() for _, ack in waiting.acks)
        self._answered = question
        try:
            for session, ack in waiting.acks:
                if self._sessions.has(session):
                    self._carry_out_command(session, api.BaseCommand(type=api.BaseCommand.ACK, ack=ack))
        finally:
            self._answered = None

    def ask_again(self, owner_index: int) -> None:
        """Repeat the questions to an owner whose process may be a new one."""
        for question in self._waiting:
            if self._coordinator_of(question) == owner_index:
                self._ask(question)

    def release(self, partition: Partition) -> None:
        """Refuse the ACKs on a partition that is unloaded or deleted: their consumers are gone."""
        for question in [one for one in self._waiting if one[1] == partition.partition_id]:
            self._carry_out(question)

    def tick(self, now_ms: int) -> None:
        """Refuse ACKs whose coordinators have been silent for too long; called once a second."""
        for question in [question for question, waiting in self._waiting.items()
                         if not 0 <= now_ms - waiting.since_ms < _PATIENCE_MS]:
            self._carry_out(question)
