"""ACK in a transaction: entries and messages that a consumer acknowledges, if the transaction commits.

An ACK is carried out as a whole, or refused as a whole, and then nothing has changed:

    TransactionNotFound     the transaction is not open, or the subscription was not added to it, as far as this owner
                            and the coordinator know (transactions/held_acks.py)
    TransactionConflict     a message is acknowledged, or a transaction acknowledges it already; for a cumulative ACK,
                            the position is acknowledged, or another transaction has a cumulative one
    NotAllowedError         the topic is not persistent, or batches claim too many messages
    ConsumerNotFound        the connection has no such consumer

Messages that do not exist are ignored.  An individual ACK and the cumulative one of another transaction may be for the
same messages.  Messages of a batch count without the option batch_index_acknowledgement too, as in Pulsar.
"""
from collections.abc import Sequence

import numpy as np

from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.commands import T
from geminga.proto.errors import Refusal
from geminga.storage.commands.requests import carries_out
from geminga.storage.commands.subscriptions import position_of
from geminga.storage.cursors.transaction_acks import TransactionAcks
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Session
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Subscription
from geminga.storage.transactions import pending
from geminga.storage.transactions.held_acks import HeldAcks
from geminga.storage.transactions.named import NOT_STORED

_WORD = 64
_IMPLIED_MAX = 1 << 14      # words of ack sets that one command leaves out; a batch may claim any number of messages


@carries_out(T.ACK)
def acknowledge_in_transaction(decisions: Decisions, held_acks: HeldAcks, session: Session,
                               request: api.CommandAck) -> None:
    """ACK with the id of a transaction.  It is answered if it has a request id.  Raises Refusal."""
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None:
        raise Refusal(api.ConsumerNotFound, "Consumer not found")
    subscription = consumer.subscription
    if not isinstance(subscription.partition, Partition):
        raise Refusal(api.NotAllowedError, "Transactions are not supported on a non-persistent topic")
    transaction = names.transaction(request.txnid_most_bits, request.txnid_least_bits)
    is_added = transaction is not None and _is_added(subscription.partition, subscription, transaction)
    if transaction is not None and not is_added and held_acks.hold(session, request, subscription, transaction):
        return      # until its coordinator has said whether the subscription was added
    if transaction is None or not is_added or not _may_use(session, subscription.partition, transaction):
        bits = request.txnid_most_bits, request.txnid_least_bits
        raise Refusal(api.TransactionNotFound,
                      "Transaction ({},{}) is not open, or lacks this subscription".format(*bits))
    # Also if the ACK is refused, because the messages are gone by now.
    _tell_dispatcher(decisions, subscription, request)
    asked = _Reading(subscription, transaction).read(request)
    consumer.acked_ms = decisions.now_ms
    if subscription.is_durable or _is_open(subscription.partition, transaction):
        messages = pending.withhold(decisions, subscription, transaction, asked)
        if not subscription.is_spread:      # else the dispatcher has counted what each consumer held
            _active(consumer).acknowledged += messages
    if request.HasField("request_id"):
        decisions.answer_needs_sync()
        decisions.outbox(session.worker).reply(
            session.connection, responses.ack_response(request.consumer_id, request.request_id),
            request_id=request.request_id)


def _tell_dispatcher(decisions: Decisions, subscription: Subscription, request: api.CommandAck) -> None:
    """Tell the dispatcher which whole entries the client is done with."""
    dispatcher = subscription.dispatcher
    if dispatcher is not None and dispatcher.hears_clients and request.ack_type == api.CommandAck.Individual:
        for identity in request.message_id:
            if not identity.ack_set:
                dispatcher.heard({identity.ledgerId: [identity.entryId]})
        decisions.wake(subscription.partition)


def _active(consumer: Consumer) -> Consumer:
    """Return the consumer whose messages another consumer of its subscription acknowledges."""
    dispatcher = consumer.subscription.dispatcher
    return consumer if dispatcher is None or dispatcher.active is None else dispatcher.active


def _is_open(partition: Partition, transaction: int) -> bool:
    """Whether the partition knows the transaction, so that it will be told of the transaction's end."""
    transactions = partition.transactions
    return transactions is not None and (transaction in transactions.added or transaction in transactions.by_id)


def _may_use(session: Session, partition: Partition, transaction: int) -> bool:
    """Whether the transaction belongs to the client's role, or the client may do everything."""
    transactions = partition.transactions
    return transactions is None or session.is_superuser or transactions.belongs_to(transaction, session.role)


def _is_added(partition: Partition, subscription: Subscription, transaction: int) -> bool:
    """Whether the subscription was added to the transaction, or one of its topic that was not there then.

    Either way the partition will be told of the transaction's end.  A reader's subscription has no name that could be
    added.  It ends with its consumer, so nobody can miss the effect.
    """
    if not subscription.is_durable:
        return True
    transactions, subscription_id = partition.transactions, subscription.cursor.subscription_id
    if transactions is None:
        return False
    added = transactions.added.get(transaction, ())
    if subscription_id in added or NOT_STORED in added:
        return True
    known = transactions.by_id.get(transaction)      # opened again, and not told yet what was added
    return known is not None and subscription_id in known.acks


class _Reading:
    """An ACK of one transaction, as it is read and compared with what is acknowledged."""

    def __init__(self, subscription: Subscription, transaction: int):
        self._subscription, self._transaction = subscription, transaction
        self._cursor, self._withheld = subscription.cursor, subscription.withheld
        assert isinstance(subscription.partition, Partition), subscription
        self._known = acknowledge.known(subscription.partition, subscription)
        self._implied = 0      # words that ack sets have left out
        self._asked = TransactionAcks()      # of what is neither acknowledged nor pending

    def read(self, request: api.CommandAck) -> TransactionAcks:
        """Return all that the ACK asks for.  Raises Refusal."""
        if request.ack_type == api.CommandAck.Individual:
            for identity in request.message_id:
                self._read_individual(position_of(identity), identity.ack_set)
            for ledger_id, parts in self._asked.parts.items():
                for entry_id in parts.keys() & self._asked.entries.get(ledger_id, set()):
                    del parts[entry_id]
        elif len(request.message_id) == 1:      # with several a cumulative ACK acknowledges nothing, as in Pulsar
            self._read_cumulative(position_of(request.message_id[0]), request.message_id[0].ack_set)
        return self._asked

    def _read_individual(self, position: Position, ack_set: Sequence[int]) -> None:
        (ledger_id, entry_id), withheld = position, self._withheld
        ledger = self._existing(position)
        if ledger is None:
            return
        bits = 0 if withheld is None else withheld.bits(ledger_id, entry_id)
        if self._cursor.is_acknowledged(ledger_id, entry_id) or (
                withheld is not None and withheld.has_whole(ledger_id, entry_id)):
            raise _conflict(position)
        if ack_set:
            messages, left = self._left(ledger, entry_id, ack_set)
            if left:
                return self._ask_part(position, ((1 << messages) - 1) & ~left, bits)
        if bits:
            raise _conflict(position)
        self._asked.entries.setdefault(ledger_id, set()).add(entry_id)

    def _ask_part(self, position: Position, acknowledged: int, withheld: int) -> None:
        """Ask for messages of a batch.  acknowledged, withheld: bits of the ACK, and of open transactions."""
        before = self._cursor.parts.get(position[0], {}).get(position[1])
        fresh = acknowledged if before is None else acknowledged & before
        if acknowledged and (not fresh or fresh & withheld):
            raise _conflict(position)
        if fresh:
            self._asked.add_part(*position, fresh)

    def _read_cumulative(self, position: Position, ack_set: Sequence[int]) -> None:
        withheld, own = self._withheld, self._cursor.mark_delete
        if withheld is not None and withheld.cumulative is not None:
            if withheld.cumulative != self._transaction:
                raise Refusal(api.TransactionConflict,
                              f"Transaction {names.transaction_text(withheld.cumulative)} has a cumulative ACK")
            own = max(own, withheld.up_to)
        if position <= own:
            raise _conflict(position)
        if not self._known.has(position):
            return
        ledger = self._existing(position)
        messages, left = (0, 0) if ledger is None or not ack_set else self._left(ledger, position[1], ack_set)
        if not left:
            self._asked.up_to = position
            return
        before = position[0], position[1] - 1
        if before > own:
            self._asked.up_to = before
        if not self._cursor.is_acknowledged(*position):
            known = self._cursor.parts.get(position[0], {}).get(position[1])
            fresh = ((1 << messages) - 1) & ~left & (-1 if known is None else known)
            if withheld is not None:
                fresh = 0 if withheld.has_whole(*position) else fresh & ~withheld.bits(*position)
            if fresh:
                self._asked.add_part(*position, fresh)
            elif before <= own:
                raise _conflict(position)

    def _existing(self, position: Position) -> ReadableLedger | None:
        """Return the ledger of an entry that exists; None for others.  Raises Refusal for one that was acknowledged."""
        ledger = self._known.find(position[0])
        if ledger is not None and 0 <= position[1] < ledger.entries:
            return ledger
        if position[1] >= 0 and position <= self._cursor.mark_delete:      # of a ledger that was deleted
            raise _conflict(position)
        return None

    def _left(self, ledger: ReadableLedger, entry_id: int, ack_set: Sequence[int]) -> tuple[int, int]:
        """Return (messages of a batch, bits of those that an ack set does not acknowledge).  Raises Refusal."""
        if isinstance(ledger, CompactedLedger):
            messages = ledger.bits_of(entry_id).bit_length()
        else:
            messages = int(ledger.column("messages")[entry_id])
        words = np.array(ack_set[:-(-messages // _WORD)], np.int64)
        self._implied += max(0, -(-messages // _WORD) - len(words))
        if self._implied > _IMPLIED_MAX:
            raise Refusal(api.NotAllowedError, f"Parts of batches of more than {_WORD * _IMPLIED_MAX} messages")
        assert isinstance(ledger, Ledger | CompactedLedger), ledger
        return messages, acknowledge.left_of(self._subscription, ledger, entry_id, words.tobytes(), messages)


def _conflict(position: Position) -> Refusal:
    return Refusal(api.TransactionConflict, "Message {}:{} is acknowledged, or about to be".format(*position))
