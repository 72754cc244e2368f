"""Messages about transactions to this owner, handed to its coordinator or to the participant of its partitions."""
from geminga.proto import envelope
from geminga.proto.rows import Rows
from geminga.storage.transactions.admission import Admission
from geminga.storage.transactions.coordinator import Coordinator
from geminga.storage.transactions.held_acks import HeldAcks
from geminga.storage.transactions.participant import Participant
from geminga.storage.transactions.peers import Message, Peers


class Exchange:
    """Messages about transactions to one owner."""

    def __init__(self, coordinator: Coordinator, participant: Participant, admission: Admission, acks: HeldAcks,
                 peers: Peers):
        self._coordinator, self._participant, self._admission = coordinator, participant, admission
        self._acks, self._peers = acks, peers

    def __repr__(self) -> str:
        return f"<Exchange {self._peers!r}>"

    def receive(self, rows: Rows) -> None:
        """Apply the messages of another owner: rows (n,) TRANSACTION_ROW."""
        self._apply_all(rows.tolist())
        self.settle()

    def settle(self) -> None:
        """Apply the messages of this owner to itself, and those that follow from them."""
        while messages := self._peers.take_own():
            self._apply_all(messages)

    def decide(self, now_ms: int) -> None:
        """Abort transactions whose time is over."""
        self._coordinator.expire(now_ms)
        self.settle()

    def owner_is_up(self, index: int) -> None:
        """Repeat what another owner, which serves now, may not know: its process may be a new one."""
        self._coordinator.owner_is_up(index)
        self._participant.ask_again(index)
        self._admission.ask_again(index)
        self._acks.ask_again(index)
        self.settle()

    def due_ms(self, now_ms: int) -> int:
        """Return the time at which messages or transactions are due, in ms since 1970."""
        return now_ms if self._peers.has_own else self._coordinator.due_ms()

    def _apply_all(self, messages: list[Message]) -> None:
        """Apply messages; those that end transactions come last, all of a partition together."""
        ends: dict[tuple[int, int], dict[int, None]] = {}      # a coordinator that repeats itself names one twice
        for message in messages:
            what, _, partition_id, transaction, _ = message
            if what in (envelope.COMMIT, envelope.ABORT):
                ends.setdefault((what, partition_id), {})[transaction] = None
            else:
                self._apply(*message)
        for (what, partition_id), transactions in ends.items():
            self._participant.end(list(transactions), partition_id, commits=what == envelope.COMMIT)
            for transaction in transactions:
                self._acks.ended(transaction, partition_id)

    def _apply(self, what: int, subscription_id: int, partition_id: int, transaction: int, role: int) -> None:
        if what == envelope.ADD:
            self._participant.add(transaction, partition_id, subscription_id, role)
            self._acks.answered(transaction, partition_id, subscription_id)
        elif what == envelope.ADDED:
            self._coordinator.added(transaction, partition_id, subscription_id)
        elif what == envelope.ENDED:
            self._coordinator.ended(transaction, partition_id)
        elif what == envelope.ASK:
            self._coordinator.asked(transaction, partition_id)
        elif what == envelope.MAY_PUBLISH:
            self._coordinator.may_publish(transaction, partition_id)
        elif what == envelope.MAY_ACKNOWLEDGE:
            self._coordinator.may_acknowledge(transaction, partition_id, subscription_id)
        else:
            assert what == envelope.REFUSED, what
            if subscription_id:
                self._acks.answered(transaction, partition_id, subscription_id)
            else:
                self._participant.refused(transaction, partition_id)
