"""Admission of SENDs in transactions: which are stored, dropped or refused.

    the partition is in the transaction, which is open     stored
    the transaction was aborted here                       dropped, with a receipt: all its messages are
    anything else                                          refused, when its coordinator has said so

A client that comes again after a failure sends what has no receipt again, also when its transaction was aborted
meanwhile.  Some clients stop publishing for good at an error for a SEND, so they get none for that.

An owner that has just started does not know what was added to transactions, nor which have ended, so it asks
coordinators.  Until they answer, all SENDs to the topic wait, because none may overtake another.

A worker puts the id of a transaction into the row's `message_index`, a field that the plan fills in.  From `admit`
until the plan is placed it is in `ledger_id`, because deduplication looks for something else in `message_index`.
"""
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.rows import Rows
from geminga.proto.sends import IN_TRANSACTION
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.held_sends import HeldSends, packed
from geminga.storage.open_topics.left_out_sends import LeftOutSends
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Sends
from geminga.storage.topics.subscription import Producer, Topic
from geminga.storage.transactions.peers import Peers

_PATIENCE_MS = 5_000      # how long SENDs wait for a coordinator before they are refused
_OPEN, _DROPPED, _REFUSED, _ASKED = range(4)


@dataclass(slots=True)
class _Questions:
    """Transactions of SENDs to one topic, about which coordinators were asked."""

    since_ms: int
    open: set[int] = field(default_factory=set)        # those that are not answered
    asked: set[int] = field(default_factory=set)       # all of them


class Admission:
    """The SENDs in transactions to one owner's partitions."""

    def __init__(self, decisions: Decisions, clients: Clients, left_out: LeftOutSends, peers: Peers):
        self._decisions, self._clients, self._left_out, self._peers = decisions, clients, left_out, peers
        self._held = HeldSends(decisions)
        self._questions: dict[Topic, _Questions] = {}      # of topics with SENDs that wait

    def __repr__(self) -> str:
        return f"<Admission topics={len(self._questions)} {self._held!r}>"

    @property
    def is_asking(self) -> bool:
        """Whether SENDs wait for a coordinator."""
        return bool(self._questions)

    def admit(self, sends: Sends, answered: Collection[int] = ()) -> Sends:
        """Return the SENDs that may be stored now; hold back those that wait, drop or refuse all others.

        answered: transactions about which coordinators have just answered, so that they are not asked again.
        """
        return [kept for some in sends if len((kept := self._admit(*some, answered))[1])]

    def _admit(self, worker: int, rows: Rows, data: memoryview, answered: Collection[int],
               ) -> tuple[int, Rows, memoryview]:
        is_in = rows["flags"] & IN_TRANSACTION != 0
        if not (self._questions or is_in.any()):
            return worker, rows, data
        if not self._questions and self._are_open(rows, is_in):
            return worker, _with_transactions(rows.copy()), data
        judged = [(producer, mine, transaction, self._verdict(producer, transaction, answered))
                 for producer, mine, transaction in self._by_transaction(rows, is_in)]
        for producer, _, transaction, verdict in judged:
            if verdict == _ASKED:
                self._ask(producer.partition, transaction)
        is_left = ~self._hold_back(worker, rows, data)
        for producer, mine, transaction, verdict in judged:
            if producer.partition not in self._questions and verdict in (_DROPPED, _REFUSED):
                is_left[mine] = False
                if verdict == _DROPPED:
                    self._left_out.drop(worker, rows[mine])
                else:      # clients take any other error for a passing failure, and send again
                    self._left_out.refuse(
                        worker, rows[mine], api.NotAllowedError, _objection(producer, transaction))
        rows, data = (rows.copy(), data) if is_left.all() else packed(rows[is_left], data)
        return worker, _with_transactions(rows), data

    def _are_open(self, rows: Rows, is_in: NDArray[np.bool_]) -> bool:
        """Whether all SENDs in transactions may be stored, as nearly always."""
        its = rows[is_in]
        return all(producer is None or self._verdict(producer, transaction, ()) == _OPEN for producer, transaction in (
            (self._clients.producers.by_handle.get(handle), transaction)
            for handle, transaction in set(zip(its["producer"].tolist(), its["message_index"].tolist(), strict=True))))

    def _by_transaction(self, rows: Rows, is_in: NDArray[np.bool_]) -> Iterator[tuple[Producer, NDArray[np.intp], int]]:
        """Yield (producer, indices of its rows in a transaction in their order, the transaction's id)."""
        order = np.lexsort((rows["message_index"], rows["producer"]))      # stable
        order = order[is_in[order]]
        of_order = rows[order]
        borders = np.flatnonzero((np.diff(of_order["message_index"]) != 0) | (np.diff(of_order["producer"]) != 0)) + 1
        for mine in np.split(order, borders) if len(order) else ():
            producer = self._clients.producers.by_handle.get(int(rows["producer"][mine[0]]))
            if producer is not None:
                yield producer, mine, int(rows["message_index"][mine[0]])

    def _verdict(self, producer: Producer, transaction: int, answered: Collection[int]) -> int:
        partition = producer.partition
        if not isinstance(partition, Partition):
            return _REFUSED
        known = partition.with_transactions()
        if known.may_publish(transaction):
            session = self._clients.sessions.of(producer)
            is_theirs = session is not None and (
                session.is_superuser or known.belongs_to(transaction, session.role))
            return _OPEN if is_theirs else _REFUSED
        if (commits := known.outcome(transaction)) is not None:
            return _REFUSED if commits else _DROPPED
        return _REFUSED if transaction in answered else _ASKED

    # -- SENDs that wait

    def _ask(self, topic: Topic, transaction: int) -> None:
        questions = self._questions.setdefault(topic, _Questions(self._decisions.now_ms))
        if transaction not in questions.asked:
            questions.asked.add(transaction)
            questions.open.add(transaction)
            self._send(topic, transaction)

    def _send(self, topic: Topic, transaction: int) -> None:
        assert isinstance(topic, Partition), topic
        peers = self._peers
        peers.send(names.transaction_bits(transaction)[0] % peers.owners, envelope.MAY_PUBLISH, transaction,
                   topic.partition_id, 0)

    def _hold_back(self, worker: int, rows: Rows, data: memoryview) -> NDArray[np.bool_]:
        """Hold back the rows to topics with questions; return which these are, (n,)."""
        is_held = np.zeros(len(rows), bool)
        if not self._questions:
            return is_held
        handles: dict[Topic, list[int]] = {}
        for handle in np.unique(rows["producer"]).tolist():
            producer = self._clients.producers.by_handle.get(handle)
            if producer is not None and producer.partition in self._questions:
                handles.setdefault(producer.partition, []).append(handle)
        for topic, some in handles.items():
            is_its = np.isin(rows["producer"], some)
            self._held.add(topic, worker, rows[is_its], data)
            is_held |= is_its
        return is_held

    def answered(self, topic: Topic, transaction: int) -> tuple[Sends, set[int]]:
        """Return the topic's SENDs once its last question is answered, and the transactions that it asked about.

        The coordinator has answered for this transaction by ADD, ABORT or REFUSED.
        """
        if (questions := self._questions.get(topic)) is not None:
            questions.open.discard(transaction)
            if not questions.open:
                return self._take(topic), questions.asked
        return [], set()

    def overdue(self) -> list[tuple[Sends, set[int]]]:
        """Return what `answered` does, for topics whose coordinators have been silent for too long."""
        late = [topic for topic, questions in self._questions.items()
                if not 0 <= self._decisions.now_ms - questions.since_ms < _PATIENCE_MS]
        asked = [self._questions[topic].asked for topic in late]
        return [(self._take(topic), some) for topic, some in zip(late, asked, strict=True)]

    def _take(self, topic: Topic) -> Sends:
        pieces = list(self._held.by_topic[topic].pieces) if topic in self._held.by_topic else []
        self.release(topic)
        return pieces

    def ask_again(self, owner_index: int) -> None:
        """Repeat the questions to an owner whose process may be a new one."""
        for topic, questions in self._questions.items():
            for transaction in questions.open:
                if names.transaction_bits(transaction)[0] % self._peers.owners == owner_index:
                    self._send(topic, transaction)

    def release(self, topic: Topic) -> None:
        """Drop the SENDs to a topic that is unloaded or deleted."""
        self._questions.pop(topic, None)
        self._held.drop(topic)


def _with_transactions(rows: Rows) -> Rows:
    """Return the rows with their transactions where the plan looks for them."""
    is_in = rows["flags"] & IN_TRANSACTION != 0
    rows["ledger_id"] = np.where(is_in, rows["message_index"], 0)
    rows["message_index"][is_in] = 0
    return rows


def _objection(producer: Producer, transaction: int) -> str:
    """Return why the producer may not SEND in a transaction."""
    partition, text = producer.partition, names.transaction_text(transaction)
    if not isinstance(partition, Partition):
        return "Transactions are not supported on a non-persistent topic"
    if partition.with_transactions().outcome(transaction):
        return f"Transaction {text} was committed"
    return f"Transaction {text} is not open, is another role's, or topic {partition.name} was not added to it"
