"""Questions about transactions, and the owners' answers: of coordinators, and of topics in transactions.

A transaction is a number here, as in proto/names.py.  Its coordinator's owner knows its state, and each topic's owner
what it has done there.
"""
from dataclasses import dataclass
from heapq import nlargest

from geminga.storage.admin.questions import Question, TopicQuestion
from geminga.storage.admin.table_questions import Scope
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.commands.topic_lookup import stored, subscription_of
from geminga.storage.ledgers.position import NOWHERE, Position
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Subscription
from geminga.storage.transactions.coordinator import Coordinator
from geminga.storage.transactions.participant import Participant
from geminga.storage.transactions.pending import messages_of
from geminga.storage.transactions.transaction_table import STATES, Transaction

SHOWN_MAX = 1_000         # transactions in one answer
ADDED_MAX = 100           # partitions of each of them in a table
WAITING_MAX = 100         # subscriptions that wait in one partition, in a table


@dataclass(frozen=True)
class CoordinatorFigures:
    """A coordinator, and what it has done since its owner started."""

    is_ready: bool
    began_ms: int
    newest: int                        # the transaction that began last; 0: none since the start
    oldest: int                        # of the active ones; 0: there is none
    active: int
    created: int
    committed: int
    aborted: int
    timed_out: int                     # among the aborted ones
    appended: int                      # changes of transactions in the journal
    unanswered: int                    # decided ends that partitions have not carried out yet
    durations: list[int]               # number of ended transactions, by coordinator.DURATIONS_MS


@dataclass(frozen=True)
class TransactionFigures:
    """A transaction that has not ended."""

    transaction: int
    state: str
    opened_ms: int
    lifetime_ms: int
    role: str | None                   # that began it; None: its coordinator has restarted since
    topics: dict[str, list[str]]       # what was added: topic -> subscriptions, "" for the right to publish
    written: dict[str, str]            # topic -> its name as the client wrote it, if the coordinator has not restarted


@dataclass(frozen=True)
class ListedTransaction:
    """A transaction that has not ended, for a table."""

    transaction: int
    state: str
    opened_ms: int
    lifetime_ms: int
    decided_ms: int                    # when its end was decided; 0: it is open
    role: str | None                   # that began it; None: its coordinator has restarted since
    partitions: int                    # that were added to publish to, or to acknowledge in
    subscriptions: int                 # that were added
    added: list[int]                   # ids of these partitions, the first ADDED_MAX
    left: list[int]                    # ids of partitions in which it has not ended, although its end is decided


@dataclass(frozen=True)
class TransactionListing:
    """The transactions of one coordinator for a table."""

    total: int                         # in the scope
    transactions: list[ListedTransaction]      # the first SHOWN_MAX of them, the longest open first


@dataclass(frozen=True)
class DoneInPartition:
    """The messages of a transaction in one partition, its acknowledgements, and who waits for its end there."""

    messages: int                      # published
    acknowledgements: int              # messages that are acknowledged when it commits
    waiting: list[str]                 # subscriptions whose consumers have come to it, the first WAITING_MAX


@dataclass(frozen=True)
class InTopic:
    """The messages and acknowledgements of a transaction in one topic."""

    first: Position | None             # its first entry; None: it has published nothing, or has ended
    has_ended: bool                    # it is one of the last that ended here
    up_to: dict[str, Position]         # subscription -> last position of a cumulative acknowledgement


@dataclass(frozen=True)
class TopicInTransactions:
    """A topic's open transactions."""

    had_any: bool                      # whether it had transactions since it was opened
    read_limit: Position               # consumers get entries up to here
    publishing: int                    # open transactions that have published
    aborted: int                       # since the topic was opened
    began_ms: int
    acknowledging: dict[str, int]      # subscription -> open transactions that have acknowledged


@dataclass(frozen=True)
class JournalFigures:
    """The journal of an owner, in which all is stored that transactions begin, do and decide there."""

    segments: list[tuple[int, int, int]]       # (sequence, records, bytes) of those that a start reads, oldest first
    records: int                               # since the owner's start


@dataclass(frozen=True)
class GetJournal(Question[JournalFigures], name="journal"):
    """A question for the segments of the owner's journal, and for the number of records appended to it."""


@dataclass(frozen=True)
class GetCoordinators(Question[CoordinatorFigures], name="coordinator"):
    """A question for figures of the owner's coordinator."""


@dataclass(frozen=True, kw_only=True)
class GetTransactions(Question[list[TransactionFigures]], name="transactions"):
    """A question for one transaction of the owner's coordinator, or for those with a lifetime above `above_ms`."""

    transaction: int | None = None
    above_ms: int = -1


@dataclass(frozen=True, kw_only=True)
class ListTransactions(Question[TransactionListing], Scope, name="list-transactions"):
    """A question for the transactions of the owner's coordinator that have not ended and use a topic in the scope."""

    opened_before_ms: int = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class GetDone(Question[list[DoneInPartition | None]], name="done-in-transactions"):
    """A question for what transactions have done in partitions; None for a partition that is not open."""

    wanted: list[tuple[int, int]]      # (transaction, id of a partition of the owner)


@dataclass(frozen=True, kw_only=True)
class GetOutcome(Question[str], name="outcome"):
    """A question how a transaction ended; "" if it has not, or long ago."""

    transaction: int


@dataclass(frozen=True, kw_only=True)
class GetInTopic(TopicQuestion[list[InTopic]], name="transactions-in-topic"):
    """A question for what transactions have done in a topic."""

    transactions: list[int]


@dataclass(frozen=True)
class GetTopic(TopicQuestion[TopicInTransactions], name="topic-in-transactions"):
    """A question for a topic's open transactions."""


@dataclass(frozen=True, kw_only=True)
class GetPendingPosition(TopicQuestion[str], name="pending-position"):
    """A question whether a message is acknowledged, or is so in an open transaction, in Pulsar's words."""

    subscription: str
    position: Position
    batch_index: int = -1              # of the message in the entry; -1: the entry as a whole


@dataclass(frozen=True, kw_only=True)
class AbortTransaction(Question[bool], name="abort-transaction"):
    """A request to abort a transaction of the owner's coordinator; the answer is whether it was open."""

    transaction: int


# -- coordinators

def journal(decisions: Decisions, question: GetJournal) -> JournalFigures:
    return JournalFigures(decisions.journal.segments(), decisions.journal.appended)


def coordinators(topics: TopicTable, coordinator: Coordinator, question: GetCoordinators) -> CoordinatorFigures:
    return CoordinatorFigures(
        coordinator.is_ready, topics.since_ms, coordinator.newest, coordinator.transactions.oldest,
        coordinator.transactions.active, coordinator.created, coordinator.committed, coordinator.aborted,
        coordinator.timed_out, coordinator.appended, coordinator.unanswered, coordinator.durations)


def of_coordinator(catalogue: Catalogue, coordinator: Coordinator,
                   question: GetTransactions) -> list[TransactionFigures]:
    """Return the transaction that is asked for, if it has not ended, or those of a long lifetime."""
    if question.transaction is not None:
        transaction = coordinator.transactions.find(question.transaction)
        return [] if transaction is None else [_figures(catalogue, transaction)]
    long_ones = (each for each in coordinator.transactions.open if each.lifetime_ms > question.above_ms)
    return [_figures(catalogue, each) for each in nlargest(SHOWN_MAX, long_ones, key=lambda each: each.lifetime_ms)]


def _figures(catalogue: Catalogue, transaction: Transaction) -> TransactionFigures:
    topics: dict[str, list[str]] = {}
    names: dict[int, tuple[str | None, dict[int, str]]] = {}
    for partition_id, subscription_id in sorted(transaction.added):
        if partition_id not in names:
            ids = catalogue.subscriptions.ids(partition_id)
            names[partition_id] = catalogue.partitions.name_of(partition_id), {
                0: "", **{number: one for one, number in ids.items()}}
        topic, subscriptions = names[partition_id]
        if topic is not None and subscription_id in subscriptions:      # else deleted since
            topics.setdefault(topic, []).append(subscriptions[subscription_id])
    return TransactionFigures(
        transaction.transaction, STATES[transaction.state], transaction.opened_ms, transaction.lifetime_ms,
        transaction.role_name, topics,
        {topic: text for topic, text in transaction.written.items() if topic in topics})


def listing(catalogue: Catalogue, coordinator: Coordinator, question: ListTransactions) -> TransactionListing:
    """Return the transactions for a table; without a scope, those that use no topic belong to it too."""
    is_inside, names_of = question.test(), catalogue.partitions.name_of
    is_inside_by_id: dict[int, bool] = {}

    def is_used(partition_id: int) -> bool:
        if partition_id not in is_inside_by_id:
            name = names_of(partition_id)
            is_inside_by_id[partition_id] = name is not None and is_inside(name)
        return is_inside_by_id[partition_id]

    def is_wanted(transaction: Transaction) -> bool:
        return transaction.opened_ms < question.opened_before_ms and (
            not (question.within or question.match) or any(is_used(one) for one, _ in transaction.added))

    longest = coordinator.transactions.longest_open(is_wanted, SHOWN_MAX)
    total = len(longest) if len(longest) < SHOWN_MAX else sum(map(is_wanted, coordinator.transactions.open))
    return TransactionListing(total, [_listed(coordinator, each) for each in longest])


def _listed(coordinator: Coordinator, transaction: Transaction) -> ListedTransaction:
    partitions = sorted({partition_id for partition_id, _ in transaction.added})
    return ListedTransaction(
        transaction.transaction, STATES[transaction.state], transaction.opened_ms, transaction.lifetime_ms,
        transaction.decided_ms, transaction.role_name, len(partitions),
        sum(1 for _, subscription_id in transaction.added if subscription_id), partitions[:ADDED_MAX],
        sorted(coordinator.left_of(transaction))[:ADDED_MAX])


def outcome(coordinator: Coordinator, question: GetOutcome) -> str:
    how = coordinator.transactions.outcome(question.transaction)
    return "" if how is None else STATES[how]


def abort(coordinator: Coordinator, question: AbortTransaction) -> bool:
    return coordinator.abort(question.transaction)


# -- topics

def in_topic(topics: TopicTable, question: GetInTopic) -> list[InTopic]:
    partition = stored(topics, question.topic)
    open_ones, answers = partition.transactions, []
    for transaction in question.transactions:
        done = None if open_ones is None else open_ones.by_id.get(transaction)
        up_to = {subscription.name: withheld.up_to for subscription in partition.subscriptions.values()
                 if (withheld := subscription.withheld) is not None and withheld.cumulative == transaction}
        answers.append(InTopic(
            None if done is None else done.first,
            open_ones is not None and open_ones.outcome(transaction) is not None, up_to))
    return answers


def done(participant: Participant, question: GetDone) -> list[DoneInPartition | None]:
    """Return what each transaction has done in its partition; partitions that are not open stay closed."""
    acks = {partition_id: _acknowledged(partition) for partition_id in {one for _, one in question.wanted}
            if (partition := participant.opened(partition_id)) is not None}
    return [_done(participant, transaction, partition_id, acks[partition_id].get(transaction, 0))
            if partition_id in acks else None for transaction, partition_id in question.wanted]


def _acknowledged(partition: Partition) -> dict[int, int]:
    """Return {transaction: messages that it acknowledges} of a partition's open transactions."""
    counts: dict[int, int] = {}
    for subscription in partition.subscriptions.values():
        for transaction, acks in subscription.withheld.by_transaction.items() if subscription.withheld else ():
            counts[transaction] = counts.get(transaction, 0) + messages_of(subscription, acks)
    return counts


def _done(participant: Participant, transaction: int, partition_id: int, acknowledgements: int) -> DoneInPartition:
    partition = participant.opened(partition_id)
    assert partition is not None, partition_id
    open_ones = partition.transactions
    done = None if open_ones is None else open_ones.by_id.get(transaction)
    if done is None or open_ones is None:
        return DoneInPartition(0, acknowledgements, [])
    messages = sum(ledger.messages_in(first, end) for ledger_id, runs in done.entries.items()
                   if (ledger := partition.find(ledger_id)) is not None for first, end in runs)
    waiting = [] if open_ones.oldest != transaction or open_ones.limit is None else [
        subscription.name for subscription in partition.subscriptions.values()
        if subscription.consumers and subscription.read >= open_ones.limit]
    return DoneInPartition(messages, acknowledgements, waiting[:WAITING_MAX])


def topic(topics: TopicTable, question: GetTopic) -> TopicInTransactions:
    partition = stored(topics, question.topic)
    open_ones, limit = partition.transactions, partition.limit
    return TopicInTransactions(
        open_ones is not None, partition.last_confirmed if limit is None else (limit[0], limit[1] - 1),
        0 if open_ones is None else open_ones.publishing, 0 if open_ones is None else open_ones.aborted,
        topics.since_ms,
        {subscription.name: 0 if subscription.withheld is None else len(subscription.withheld.by_transaction)
         for subscription in partition.subscriptions.values()})


def pending_position(topics: TopicTable, question: GetPendingPosition) -> str:
    partition = stored(topics, question.topic)
    subscription = subscription_of(partition, question.subscription)
    ledger_id, entry_id = question.position
    ledger = partition.find(ledger_id)
    if question.position <= subscription.cursor.mark_delete:
        return "MarkDelete"
    if ledger is None or entry_id >= ledger.entries or question.batch_index >= ledger.column("messages")[entry_id]:
        return "InvalidPosition"
    return "PendingAck" if _is_pending(subscription, question) else "NotInPendingAck"


def _is_pending(subscription: Subscription, question: GetPendingPosition) -> bool:
    withheld, (ledger_id, entry_id) = subscription.withheld, question.position
    if withheld is None:
        return False
    if NOWHERE != withheld.up_to >= question.position or withheld.has_whole(ledger_id, entry_id):
        return True
    bits = withheld.bits(ledger_id, entry_id)
    return bool(bits if question.batch_index < 0 else bits >> question.batch_index & 1)
