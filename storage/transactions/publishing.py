"""SENDs in transactions that are admitted: which entries of a plan belong to which transaction."""
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.open_transactions import OpenTransaction
from geminga.storage.ledgers import journal_ops
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Group, Plan
from geminga.storage.topics.subscription import Producer


def _runs(planned: Plan, group: Group) -> Iterator[tuple[int, int, int]]:
    """Yield (transaction, first, end) of each run of entries in one transaction; first, end: entries of the ledger."""
    assert planned.transactions is not None, planned
    mine, at = planned.transactions[group.first:group.first + group.count], group.ledger.entries
    starts = [0, *(np.flatnonzero(mine[1:] != mine[:-1]) + 1).tolist()]
    for first, end in zip(starts, [*starts[1:], len(mine)], strict=True):
        if mine[first]:
            yield int(mine[first]), at + first, at + end


# (transaction, producer, first id) -> last id, as in OpenTransaction.sequences
SequenceIds = dict[tuple[int, int, int], int]
_RUN_MAX = 1 << 32      # sequence ids in one run, as many as an op of the journal can count


@dataclass(frozen=True, slots=True)
class Stored:
    """The entries that a plan stores for transactions of one partition, noted there once the plan is applied."""

    partition: Partition
    ledger_id: int
    runs: list[tuple[int, int, int]]                       # (transaction, first entry, end)
    sequences: SequenceIds


def stored(planned: Plan, producers: Mapping[int, Producer]) -> list[Stored]:
    """Return what a plan stores for transactions, and add the ops for it to the plan's record."""
    stored: list[Stored] = []
    ops: list[bytes] = []
    for group in planned.groups:
        partition, ledger_id = group.partition, group.ledger.ledger_id
        partition_id, runs = partition.partition_id, list(_runs(planned, group))
        if not runs:
            continue
        transactions = partition.with_transactions()
        ops += [transactions.note_role(transaction, partition_id)
                for transaction in dict.fromkeys(transaction for transaction, _, _ in runs)]
        ops += [journal_ops.transaction_entries(transaction, partition_id, ledger_id, first, end)
                for transaction, first, end in runs]
        sequences = _sequences(planned, group, producers) if partition.deduplicates else {}
        ops += [journal_ops.transaction_sequences(transaction, partition_id, producer, first, last)
                for (transaction, producer, first), last in sequences.items()]
        stored.append(Stored(partition, ledger_id, runs, sequences))
    planned.ops = b"".join(ops)
    return stored


def _known(partition: Partition, transaction: int, producer: int) -> dict[int, int]:
    """Return the sequence ids of a producer in an open transaction, as in OpenTransaction."""
    known = partition.transactions.by_id.get(transaction) if partition.transactions is not None else None
    return {} if known is None else known.sequences.get(producer, {})


def _sequences(planned: Plan, group: Group, producers: Mapping[int, Producer]) -> SequenceIds:
    """Return the new and longer runs of sequence ids in transactions once the group is stored."""
    assert planned.transactions is not None and planned.stored is not None, planned
    partition = group.partition
    latest: SequenceIds = {}
    rows = planned.stored[group.first:group.first + group.count]
    columns = (rows[name].tolist()
               for name in ("producer", "sequence_id", "highest_sequence_id", "messages", "flags"))
    highest_ids: dict[int, int] = {}               # by producer, of all that was stored before
    runs: dict[tuple[int, int], int] = {}          # (transaction, producer) -> first id of its newest run
    transactions = planned.transactions[group.first:group.first + group.count].tolist()
    for transaction, handle, sequence_id, highest, messages, flags in zip(transactions, *columns, strict=True):
        identity = producers[handle].identity
        producer, (first, last) = half_of(identity), producer_sequences.span(sequence_id, highest)
        end = producer_sequences.supposed_end(first, last, messages, highest, flags)
        if producer not in highest_ids:
            highest_ids[producer] = partition.sequences.of(identity).reach
        if transaction:
            known = _known(partition, transaction, producer)
            begin = runs.get((transaction, producer), next(reversed(known), None))
            so_far = None if begin is None else latest.get((transaction, producer, begin), known.get(begin))
            # Nothing lies above a run that ends with the highest id, so it goes on even if some ids are passed over.
            if begin is None or so_far != highest_ids[producer] or not so_far <= first <= end < begin + _RUN_MAX:
                begin = first
            latest[transaction, producer, begin] = max(end, begin)
            runs[transaction, producer] = begin
        highest_ids[producer] = max(highest_ids[producer], end)
    return latest


def apply(stored: list[Stored]) -> None:
    """Note what a plan has stored, so that nobody is delivered it before a commit."""
    for each in stored:
        transactions = each.partition.transactions
        assert transactions is not None, each      # else its SENDs were refused
        for transaction, first, end in each.runs:
            transactions.published(transaction, each.ledger_id, first, end)
        for (transaction, producer, first), last in each.sequences.items():
            transactions.of(transaction).sequences.setdefault(producer, {})[first] = last


# -- the way back

def take_back_sequences(decisions: Decisions, partition: Partition, ended: OpenTransaction) -> None:
    """Give producers the sequence ids back that an aborted transaction used.

    A client may send the messages again, with the same sequence ids: they are no duplicates.
    """
    if not ended.sequences or not partition.sequences.by_producer:
        return
    by_half = {half_of(identity): identity for identity in partition.sequences.by_producer}
    for producer, runs in ended.sequences.items():
        if (identity := by_half.get(producer)) is None:      # it was absent for long
            continue
        progress = partition.sequences.of(identity).copy()
        for first, last in runs.items():
            progress.give_back(first, last)
        if ops := partition.sequences.ops(partition.partition_id, identity, progress):
            decisions.note(partition, ops)
            partition.sequences.learn(identity, progress, decisions.now_ms)


def half_of(identity: bytes) -> int:
    """Return the first half of a producer's identity, by which ops of transactions name it."""
    return int.from_bytes(identity[:8], "little", signed=True)
