"""The part of an owner's partitions in transactions: what coordinators add to a transaction, and how it ends here."""

import numpy as np

from geminga.proto import envelope, names
from geminga.proto.errors import Refusal
from geminga.storage.cursors.cursor import SKIPPED, entries_of
from geminga.storage.cursors.open_transactions import OpenTransaction, OpenTransactions
from geminga.storage.errors import CorruptFile, StorageFull
from geminga.storage.ledgers import journal_ops
from geminga.storage.open_topics import acknowledge
from geminga.storage.open_topics.acknowledge import Acks
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.publisher import Publisher
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.topics.partition import Partition
from geminga.storage.transactions import pending, publishing
from geminga.storage.transactions.peers import Peers


class Participant(Watcher):
    """The transactions in one owner's partitions, of all coordinators."""

    def __init__(self, decisions: Decisions, topics: TopicTable, reports: Reports, publisher: Publisher, peers: Peers):
        self._decisions, self._topics, self._reports = decisions, topics, reports
        self._publisher, self._peers = publisher, peers
        self._open: dict[int, Partition] = {}                    # by id
        # What was added to transactions in partitions that are not open, by partition id: as OpenTransactions.added
        # and OpenTransactions.roles.
        self._added: dict[int, tuple[dict[int, set[int]], dict[int, int]]] = {}
        self._later: dict[tuple[int, int], bool] = {}            # (transaction, partition id) -> whether it commits
        self._unsettled: dict[Partition, None] = {}              # published transactions have ended since, oldest first

    def __repr__(self) -> str:
        return f"<Participant partitions={len(self._open)} later={len(self._later)}>"

    # -- partitions

    def watch(self, partition: Partition) -> None:
        """Ask for the outcome of transactions that are open in a partition that was opened."""
        partition_id = partition.partition_id
        if self._open.get(partition_id) is partition:
            return
        self._open[partition_id] = partition
        if added := self._added.pop(partition_id, None):
            partition.with_transactions().added, partition.with_transactions().roles = added
        if partition.transactions is not None:
            for transaction in partition.transactions.by_id:
                self._send(envelope.ASK, transaction, partition_id, 0)

    def ask_again(self, owner_index: int) -> None:
        """Ask an owner that is back for the outcome of its coordinators' transactions that are open here."""
        for partition_id, partition in self._open.items():
            for transaction in partition.transactions.by_id if partition.transactions is not None else ():
                if self._coordinator_of(transaction) == owner_index:
                    self._send(envelope.ASK, transaction, partition_id, 0)

    def release(self, partition: Partition) -> None:
        """Keep what was added to transactions in a partition that is unloaded; forget that of a deleted one."""
        self._open.pop(partition.partition_id, None)
        self._unsettled.pop(partition, None)
        known = partition.transactions
        if known is not None and known.added and self._topics.catalogue.partitions.find(partition.name) is not None:
            self._added[partition.partition_id] = known.added, known.roles

    def tick(self, now_ms: int) -> None:
        """End transactions in partitions that could not be opened before; called once a second.

        One partition's state file is written too, so that readers of files learn how its transactions have ended.
        """
        if self._unsettled:
            self._decisions.after_commit(self._settle_one)
        later, self._later = self._later, {}
        for (transaction, partition_id), commits in later.items():
            self.end([transaction], partition_id, commits=commits)

    def _settle_one(self) -> None:
        partition = next(iter(self._unsettled), None)
        if partition is not None and self._decisions.journal.write_early(partition):
            del self._unsettled[partition]

    def _find(self, partition_id: int) -> Partition | None:
        """Return a partition, opened if it is stored.  Raises CorruptFile, StorageFull, Refusal, OSError."""
        if (partition := self._open.get(partition_id)) is not None:
            return partition
        name = self._topics.catalogue.partitions.name_of(partition_id)
        return None if name is None else self._topics.find(names.parse(name))

    def opened(self, partition_id: int) -> Partition | None:
        """Return a partition if it is open, without opening it."""
        return self._open.get(partition_id)

    # -- what coordinators say

    def add(self, transaction: int, partition_id: int, subscription_id: int, role: int = 0) -> None:
        """Let a transaction publish to a partition (subscription_id 0), or acknowledge on a subscription.

        role: hash of the role that began the transaction; 0: its coordinator has taken it over from an older program.
        """
        partition = self._open.get(partition_id)
        if partition is not None:
            added, roles = partition.with_transactions().added, partition.with_transactions().roles
        else:
            added, roles = self._added.setdefault(partition_id, ({}, {}))
        if role:
            roles[transaction] = role
        added.setdefault(transaction, set()).add(subscription_id)
        self._send(envelope.ADDED, transaction, partition_id, subscription_id)
        if partition is not None and not subscription_id:
            self._publisher.publish_asked(partition, transaction)

    def refused(self, transaction: int, partition_id: int) -> None:
        """Refuse the SENDs to a partition in a transaction that is not open, or without the partition."""
        if (partition := self._open.get(partition_id)) is not None:
            self._publisher.publish_asked(partition, transaction)

    def end(self, transactions: list[int], partition_id: int, *, commits: bool) -> None:
        """Commit or abort transactions in a partition, and answer when that is durable.

        A transaction that has done nothing here, or a partition that is deleted, is answered at once.
        """
        try:
            partition = self._find(partition_id)
        except (CorruptFile, StorageFull, Refusal, OSError) as error:
            self._reports.once(f"a transaction cannot end in partition {partition_id}, which cannot be opened: "
                               f"{error}; it is tried again", code="G120")
            self._later |= {(transaction, partition_id): commits for transaction in transactions}
            return
        if partition is None:
            self._added.pop(partition_id, None)
        elif partition.transactions is not None:
            self._publisher.publish_held(partition)
            pending.end(self._decisions, partition, transactions, commits=commits)
            for transaction in transactions:
                self._end(partition, partition.transactions, transaction, commits=commits)
            self._decisions.wake(partition)
            self._decisions.wake_trimming(partition)
            for transaction in transactions:
                self._publisher.publish_asked(partition, transaction)
        for transaction in transactions:
            self._send(envelope.ENDED, transaction, partition_id, 0)

    def _end(self, partition: Partition, known: OpenTransactions, transaction: int, *, commits: bool) -> None:
        ended = known.by_id.get(transaction)
        if ended is not None:
            if not commits:
                _discard(self._decisions, partition, ended)
                publishing.take_back_sequences(self._decisions, partition, ended)
            self._decisions.note(partition, journal_ops.transaction_ended(transaction, partition.partition_id))
            self._decisions.answer_needs_sync()
            if ended.entries:
                self._unsettled[partition] = None
                known.committed += commits
                known.aborted += not commits
        known.end(transaction, commits=commits)

    def _send(self, what: int, transaction: int, partition_id: int, subscription_id: int) -> None:
        """Send a row to the owner of the transaction's coordinator."""
        self._peers.send(self._coordinator_of(transaction), what, transaction, partition_id, subscription_id)

    def _coordinator_of(self, transaction: int) -> int:
        """Return the index of the owner that has the transaction's coordinator."""
        return names.transaction_bits(transaction)[0] % self._peers.owners


def _discard(decisions: Decisions, partition: Partition, aborted: OpenTransaction) -> None:
    """Discard the entries that an aborted transaction published, for all subscriptions, present and future."""
    there = {ledger_id: entries_of(np.array(runs, np.int64)) for ledger_id, runs in aborted.entries.items()}
    for subscription in partition.subscriptions.values():
        acknowledge.move(decisions, subscription, Acks(single=dict(there)), SKIPPED)
    for ledger_id, entries in there.items():
        ledger = partition.find(ledger_id)
        assert ledger is not None, (partition, ledger_id)      # none is deleted from the limit on
        partition.discarded.acknowledge(ledger, entries)
        decisions.note_many(partition, journal_ops.acknowledged(
            partition.partition_id, partition.discarded.subscription_id, ledger_id, entries))
