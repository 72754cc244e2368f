"""Apply operations of the journal at a start: a function for each kind of format.OPS.

Applying ops again, in their order, changes nothing.  So a start need not know which ops were already applied.
"""
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from geminga.proto import names
from geminga.proto.rows import Rows, as_words, from_words
from geminga.storage import format
from geminga.storage.cursors import state_v1
from geminga.storage.cursors.batch_acks import by_batch
from geminga.storage.cursors.cursor import Cursor, entries_of
from geminga.storage.cursors.state_file import State
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.transactions.transaction_table import TransactionTable

_ABOUT = np.array([0xFFFFFFFF_000000FF, 0xFFFFFFFF_FFFFFFFF, 0xFFFFFFFF_FFFFFFFF], np.uint64)      # see in_runs

# Kinds of which none changes what another one does: a run of them is applied one kind after the other.
_FREE = format.MARK_DELETE, format.TOTAL, format.PRODUCED
_TELL = 256      # runs of ops between two reports of progress


class Target(Protocol):
    """Interface of the partitions that ops are applied to: those of a recovery, or of a rehearsal."""

    def folder(self, partition_id: int) -> Path:
        """Return the partition's folder."""

    def state(self, partition_id: int) -> State:
        """Return the partition's durable state, except its ledgers, for ops to change."""

    def ledger(self, partition_id: int, ledger_id: int) -> Ledger | None:
        """Return a ledger of the partition; None if it was deleted."""

    def open_ledger(self, partition_id: int, ledger_id: int, *, created_ms: int, first_message: int) -> None:
        """Create the ledger, unless it exists."""

    def delete_ledger(self, partition_id: int, ledger_id: int) -> None:
        """Delete the ledger's files, now or when the replay is durable."""

    def delete_partition(self, partition_id: int) -> None:
        """Ignore all further records and ops for the partition."""

    def transactions(self, coordinator: int) -> TransactionTable:
        """Return a coordinator's transactions, for ops to change."""


def apply(target: Target, ops: Rows, told: Callable[[int, int], None] | None = None) -> None:
    """Apply OP_ROWs (n,) in their order.  Ops of unknown kinds, from newer versions, are ignored.

    told: called now and then with the numbers of ops that are applied, and of all.
    """
    done = 0
    for number, run in enumerate(in_runs(ops)):
        if told is not None and number % _TELL == 0:
            told(done, len(ops))
        done += len(run)
        kind = int(run["kind"][0])
        if kind in _APPLY:
            _APPLY[kind](target, run.view(format.OPS[kind]))


def by_object(ops: Rows) -> Rows:
    """Return OP_ROWs (n,) in another order that has the same effect, and in which runs are as long as possible.

    Ops about different partitions, or about coordinators, may change places: they change different things.  Within one
    partition only ops of the kinds in _FREE change places, and none of them passes an op of another kind.
    """
    kinds, first_words = ops["kind"], as_words(ops)[:, 0] & _ABOUT[0]
    owners = np.where(np.isin(kinds, (format.COORDINATED, format.ADDED_TO_TRANSACTION)), 0, ops["partition_id"])
    order = np.argsort(owners, kind="stable")
    owners, is_bound = owners[order], ~np.isin(kinds[order], _FREE)
    begins = is_bound.copy()
    begins[1:] |= is_bound[:-1] | (owners[1:] != owners[:-1])
    order = order[np.lexsort((first_words[order], np.cumsum(begins)))]
    return from_words(as_words(ops)[order], format.OP_ROW)


def in_runs(ops: Rows) -> Iterator[Rows]:
    """Split OP_ROWs (n,) into runs of consecutive ops of one kind for the same object.

    The object is a ledger, a ledger of one subscription, or a producer.  Kind, subscription, partition, ledger and the
    first half of the producer lie in the first three words of every op, besides the kind's number.
    """
    if len(ops) == 1:        # frequent: the progress of one producer in a small pass
        yield ops
    elif len(ops):
        about = as_words(ops)[:, :len(_ABOUT)] & _ABOUT
        yield from np.split(ops, np.flatnonzero((about[1:] != about[:-1]).any(axis=1)) + 1)


# Each function gets a run: ops (n,) of one kind for the same object.

def _open_ledger(target: Target, ops: Rows) -> None:
    op = ops[-1]
    target.open_ledger(int(op["partition_id"]), int(op["ledger_id"]), created_ms=int(op["created_ms"]),
                       first_message=int(op["first_message"]))


def _delete_ledger(target: Target, ops: Rows) -> None:
    partition_id, ledger_id = int(ops[-1]["partition_id"]), int(ops[-1]["ledger_id"])
    target.delete_ledger(partition_id, ledger_id)
    for cursor in target.state(partition_id).cursors.values():
        cursor.forget(ledger_id)


def _cursor(target: Target, ops: Rows) -> Cursor:
    return _state(target, ops).cursor(int(ops[-1]["subscription_id"]))


def _state(target: Target, ops: Rows) -> State:
    return target.state(int(ops[-1]["partition_id"]))


def _mark_delete(target: Target, ops: Rows) -> None:
    _cursor(target, ops).mark_delete = int(ops[-1]["ledger_id"]), int(ops[-1]["entry_id"])


def _acknowledge(target: Target, ops: Rows) -> None:
    partition_id, ledger_id = int(ops[-1]["partition_id"]), int(ops[-1]["ledger_id"])
    # A deleted ledger may still be in a compacted view, of which a subscription acknowledges entries.
    ledger = target.ledger(partition_id, ledger_id) or Ledger(target.folder(partition_id), partition_id, ledger_id)
    runs = np.stack((ops["first_entry"], ops["first_entry"] + ops["more_entries"] + 1), 1)
    _cursor(target, ops).acknowledge(ledger, np.unique(entries_of(runs)))


def _reset_cursor(target: Target, ops: Rows) -> None:
    cursor, position = _cursor(target, ops), (int(ops[-1]["ledger_id"]), int(ops[-1]["entry_id"]))
    if _state(target, ops).is_uncounted:
        state_v1.reset(cursor, position)
    else:
        cursor.move(position, int(ops[-1]["since"]))


def _delete_subscription(target: Target, ops: Rows) -> None:
    state, subscription_id = _state(target, ops), int(ops[-1]["subscription_id"])
    state.cursors.pop(subscription_id, None)
    if state.transactions is not None:
        state.transactions.forget_subscription(subscription_id)


def _change_type(target: Target, ops: Rows) -> None:
    _cursor(target, ops).last_type = int(format.numbers_of(ops["kind_and_type"])[-1])


def _acknowledge_parts(target: Target, ops: Rows) -> None:
    cursor, numbers = _cursor(target, ops), format.numbers_of(ops["kind_and_word_number"])
    for first, end in by_batch(ops, numbers):
        ledger_id, entry_id = int(ops["ledger_id"][first]), int(ops["entry_id"][first])
        cursor.set_parts(ledger_id, entry_id, numbers[first:end], ops["word"][first:end])


def _count_redeliveries(target: Target, ops: Rows) -> None:
    counts, ledger_id = _cursor(target, ops).redeliveries, int(ops[-1]["ledger_id"])
    for first, end, count in _counts(ops):
        counts.put(ledger_id, first, end, count)


def _count_deaths(target: Target, ops: Rows) -> None:
    counts, ledger_id = _cursor(target, ops).deaths, int(ops[-1]["ledger_id"])
    for first, end, count in _counts(ops):
        if first < 0:
            counts.clear()
        else:
            counts.put(ledger_id, first, end, count)


def _counts(ops: Rows) -> Iterator[tuple[int, int, int]]:
    """Iterate over (first entry, end, count) of each of COUNTED_OPs (n,)."""
    ends = ops["first_entry"] + ops["more_entries"] + 1
    counts = format.numbers_of(ops["kind_and_count"])
    return zip(ops["first_entry"].tolist(), ends.tolist(), counts.tolist(), strict=True)


def _set_totals(target: Target, ops: Rows) -> None:
    totals, reasons = _cursor(target, ops).totals, format.numbers_of(ops["kind_and_reason"])
    for reason, messages in zip(reasons.tolist(), ops["messages"].tolist(), strict=True):
        totals[reason] = messages


def _learn_produced(target: Target, ops: Rows) -> None:
    _state(target, ops).sequences.apply_produced(ops)


def _learn_chunked(target: Target, ops: Rows) -> None:
    _state(target, ops).sequences.apply_chunked(ops)


def _forget_sequences(target: Target, ops: Rows) -> None:
    state = _state(target, ops)
    state.sequences.clear()
    if state.transactions is not None:
        state.transactions.forget_sequences()


def _delete_partition(target: Target, ops: Rows) -> None:
    target.delete_partition(int(ops[-1]["partition_id"]))


def _begin_delayed_index(target: Target, ops: Rows) -> None:
    _state(target, ops).delays = format.SCHEDULED


def _apply_transaction(target: Target, ops: Rows) -> None:
    _state(target, ops).with_transactions().apply(ops)


def _coordinate(target: Target, ops: Rows) -> None:
    coordinators = ops["transaction"] >> np.uint64(names.LEAST_BITS)
    for coordinator in np.unique(coordinators).tolist():
        target.transactions(coordinator).apply(ops[coordinators == coordinator])


_APPLY: dict[int, Callable[[Target, Rows], None]] = {
    format.LEDGER_OPENED: _open_ledger,
    format.LEDGER_DELETED: _delete_ledger,
    format.MARK_DELETE: _mark_delete,
    format.ACKNOWLEDGED: _acknowledge,
    format.CURSOR_RESET: _reset_cursor,
    format.SUBSCRIPTION_DELETED: _delete_subscription,
    format.PART_ACKNOWLEDGED: _acknowledge_parts,
    format.REDELIVERED: _count_redeliveries,
    format.DIED: _count_deaths,
    format.TOTAL: _set_totals,
    format.PRODUCED: _learn_produced,
    format.CHUNKED: _learn_chunked,
    format.SEQUENCES_FORGOTTEN: _forget_sequences,
    format.PARTITION_DELETED: _delete_partition,
    format.DELAYED: _begin_delayed_index,
    format.TYPE_CHANGED: _change_type,
    format.COORDINATED: _coordinate,
    format.ADDED_TO_TRANSACTION: _coordinate,
    format.TRANSACTION_ENTRIES: _apply_transaction,
    format.TRANSACTION_SEQUENCE: _apply_transaction,
    format.TRANSACTION_ACKS: _apply_transaction,
    format.TRANSACTION_ACK_UP_TO: _apply_transaction,
    format.TRANSACTION_ACK_PART: _apply_transaction,
    format.TRANSACTION_ENDED: _apply_transaction,
}
