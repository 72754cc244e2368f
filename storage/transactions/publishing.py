"""SENDs in transactions that are admitted: which entries of a plan belong to which transaction."""
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from geminga.proto.sends import IS_CHUNK, IS_LAST_CHUNK
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.open_transactions import OpenTransaction
from geminga.storage.cursors.producer_sequences import Progress
from geminga.storage.ledgers import journal_ops
from geminga.storage.topics.owner_context import OwnerContext
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


SequenceIds = dict[tuple[int, int], tuple[int, int]]      # (transaction, producer) -> as in OpenTransaction.sequences


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
        ops += [journal_ops.transaction_entries(transaction, partition_id, ledger_id, first, end)
                for transaction, first, end in runs]
        sequences = _sequences(planned, group, producers) if partition.deduplicates else {}
        for (transaction, producer), (before, last) in sequences.items():
            if _known(partition, transaction).get(producer, (None,))[0] != before:
                ops.append(journal_ops.transaction_sequence(
                    transaction, partition_id, producer, before, is_last=False))
            ops.append(journal_ops.transaction_sequence(transaction, partition_id, producer, last, is_last=True))
        stored.append(Stored(partition, ledger_id, runs, sequences))
    planned.ops = b"".join(ops)
    return stored


def _known(partition: Partition, transaction: int) -> dict[int, tuple[int, int]]:
    """Return the sequence ids of an open transaction, as in OpenTransaction."""
    known = partition.transactions.by_id.get(transaction) if partition.transactions is not None else None
    return {} if known is None else known.sequences


def _sequences(planned: Plan, group: Group, producers: Mapping[int, Producer]) -> SequenceIds:
    """Return the sequence ids of transactions once the group is stored.

    The partition deduplicates, so the sequence ids of a producer rise.
    """
    assert planned.transactions is not None and planned.stored is not None, planned
    partition = group.partition
    found: SequenceIds = {}
    rows = planned.stored[group.first:group.first + group.count]
    columns = (rows[name].tolist() for name in ("producer", "sequence_id", "highest_sequence_id", "flags"))
    lasts: dict[int, int] = {}      # by producer: the sequence id of its last message that is stored whole
    transactions = planned.transactions[group.first:group.first + group.count].tolist()
    for transaction, handle, sequence_id, highest, flags in zip(transactions, *columns, strict=True):
        identity = producers[handle].identity
        producer, last = half_of(identity), producer_sequences.span(sequence_id, highest)[1]
        if producer not in lasts:
            lasts[producer] = partition.sequences.of(identity).last
        if transaction:
            before, so_far = found.get((transaction, producer)) or _known(partition, transaction).get(
                producer, (lasts[producer], last))
            # An abort must not take back what another message, outside of all open transactions, has used since.
            if so_far < lasts[producer] < last and lasts[producer] not in _lasts_of_others(partition, found, producer):
                before = lasts[producer]
            found[transaction, producer] = before, max(so_far, last)
        if not flags & IS_CHUNK or flags & IS_LAST_CHUNK:
            lasts[producer] = max(lasts[producer], last)
    return found


def _lasts_of_others(partition: Partition, found: SequenceIds, producer: int) -> set[int]:
    """Return the last sequence id of a producer in each open transaction."""
    assert partition.transactions is not None, partition
    return {last for (_, its), (_, last) in found.items() if its == producer} | {
        each.sequences[producer][1] for each in partition.transactions.by_id.values() if producer in each.sequences}


def apply(stored: list[Stored]) -> None:
    """Note what a plan has stored, so that nobody is delivered it before a commit."""
    for each in stored:
        transactions = each.partition.transactions
        assert transactions is not None, each      # else its SENDs were refused
        for transaction, first, end in each.runs:
            transactions.published(transaction, each.ledger_id, first, end)
        for (transaction, producer), sequence_ids in each.sequences.items():
            transactions.of(transaction).sequences[producer] = sequence_ids


# -- the way back

def take_back_sequences(owner: OwnerContext, partition: Partition, ended: OpenTransaction) -> None:
    """Give producers the sequence ids back that an aborted transaction used, where no later message stands.

    A client may send the messages again, with the same sequence ids: they are no duplicates.
    """
    if not ended.sequences or not partition.sequences.by_producer:
        return
    by_half = {half_of(identity): identity for identity in partition.sequences.by_producer}
    for producer, (before, last) in ended.sequences.items():
        _link(owner, partition, ended, producer)
        if (identity := by_half.get(producer)) is None:      # it was absent for long
            continue
        known = partition.sequences.of(identity)
        under_way = {sequence_id: chunk for sequence_id, chunk in known.under_way.items()
                     if not before < sequence_id <= last}
        others = [its[1] for _, each in _others(partition, ended) if (its := each.sequences.get(producer)) is not None]
        kept = max([before, *(other for other in others if before < other < last)])      # these may commit yet
        progress = Progress(kept if before < known.last <= last else known.last,
                            known.under_way if len(under_way) == len(known.under_way) else under_way)
        if ops := partition.sequences.ops(partition.partition_id, identity, progress):
            owner.note(partition, ops)
            partition.sequences.learn(identity, progress, owner.now_ms)


def _link(owner: OwnerContext, partition: Partition, ended: OpenTransaction, producer: int) -> None:
    """Have other open transactions of a producer, behind an aborted one, go back to where the aborted one began."""
    before, last = ended.sequences[producer]
    for transaction, each in _others(partition, ended):
        its = each.sequences.get(producer)
        if its is not None and before < its[0] <= last:
            _go_back_to(owner, partition, transaction, each, producer, before)


def keep_sequences(owner: OwnerContext, partition: Partition, ended: OpenTransaction) -> None:
    """Have other open transactions of a producer go back no further than to what a committed one has used."""
    for producer, (_, last) in ended.sequences.items():
        for transaction, each in _others(partition, ended):
            its = each.sequences.get(producer)
            if its is not None and its[0] < last < its[1]:
                _go_back_to(owner, partition, transaction, each, producer, last)


def _others(partition: Partition, ended: OpenTransaction) -> Iterator[tuple[int, OpenTransaction]]:
    """Yield (id, transaction) of the partition's open transactions but the one that ends."""
    assert partition.transactions is not None, partition
    return ((transaction, each) for transaction, each in partition.transactions.by_id.items() if each is not ended)


def _go_back_to(owner: OwnerContext, partition: Partition, transaction: int, each: OpenTransaction, producer: int,
                before: int) -> None:
    """Note the sequence id that a producer has again after an abort of an open transaction."""
    last = each.sequences[producer][1]
    each.sequences[producer] = before, last
    for sequence_id, is_last in ((before, False), (last, True)):
        owner.note(partition, journal_ops.transaction_sequence(
            transaction, partition.partition_id, producer, sequence_id, is_last=is_last))


def half_of(identity: bytes) -> int:
    """Return the first half of a producer's identity, by which ops of transactions name it."""
    return int.from_bytes(identity[:8], "little", signed=True)
