"""Apply operations of the journal at a start: a function for each kind of format.OPS.

Applying ops again, in their order, changes nothing.  So a start need not know which ops were already applied.
"""
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

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
# All kinds of ops have six fields of these sizes; the names are those that most kinds give them.
_NUMBERS = np.dtype([("kind_and_number", "<u4"), ("subscription_id", "<u4"), ("partition_id", "<u8"),
                     ("ledger_id", "<i8"), ("fourth", "<i8"), ("fifth", "<i8")])

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
        done += len(run.ops)
        if run.kind in _APPLY:
            _APPLY[run.kind](target, run)


def by_object(ops: Rows) -> Rows:
    """Return OP_ROWs (n,) in another order that has the same effect, and in which runs are as long as possible.

    Ops about different partitions, or about coordinators, may change places: they change different things.  Within one
    partition only ops of the kinds in _FREE change places, and none of them passes an op of another kind.
    """
    if not len(ops):
        return ops
    kinds = ops["kind"].copy()
    owners = np.where(np.isin(kinds, (format.COORDINATED, format.ADDED_TO_TRANSACTION)), 0, ops["partition_id"])
    small = owners.astype(np.min_scalar_type(owners.max()))      # 16 bits are sorted ten times as fast as 64
    order = np.argsort(small, kind="stable")
    kinds, owners = kinds[order], owners[order]
    is_bound = ~np.isin(kinds, _FREE)
    begins = is_bound.copy()
    begins[1:] |= is_bound[:-1] | (owners[1:] != owners[:-1])
    # Subscriptions, or what else the first word names, that share a number here would only have shorter runs.
    about = (as_words(ops)[order, 0] >> np.uint64(32)) ^ kinds.astype(np.uint64) << np.uint64(24)
    order = order[np.argsort(np.cumsum(begins, dtype=np.uint64) << np.uint64(32) | about, kind="stable")]
    return from_words(as_words(ops)[order], format.OP_ROW)


class Run(NamedTuple):
    """Consecutive ops of one kind for the same object, and the fields of the last one as plain numbers.

    Most runs have one op, and for most kinds only the last op of a run counts.  Its fields as numbers cost less than
    reading them out of the array one by one.
    """

    ops: Rows                # (n,) OP_ROW
    kind_and_number: int
    subscription_id: int
    partition_id: int
    ledger_id: int
    fourth: int
    fifth: int

    @property
    def kind(self) -> int:
        return self.kind_and_number & format.KIND

    @property
    def number(self) -> int:
        """What the last op holds beside its kind."""
        return self.kind_and_number >> format.NUMBER

    @property
    def rows(self) -> Rows:
        """The ops (n,) in the dtype of their kind, which names all fields."""
        return self.ops.view(format.OPS[self.kind])


def in_runs(ops: Rows) -> Iterator[Run]:
    """Split OP_ROWs (n,) into runs of consecutive ops of one kind for the same object.

    The object is a ledger, a ledger of one subscription, or a producer.  Kind, subscription, partition, ledger and the
    first half of the producer lie in the first three words of every op, besides the kind's number.
    """
    if not len(ops):
        return
    about = as_words(ops)[:, :len(_ABOUT)] & _ABOUT
    ends = np.flatnonzero(np.append((about[1:] != about[:-1]).any(axis=1), True)) + 1
    lasts = from_words(as_words(ops)[ends - 1], _NUMBERS).tolist()
    first = 0
    for end, numbers in zip(ends.tolist(), lasts, strict=True):
        yield Run(ops[first:end], *numbers)
        first = end


# Each function gets a run.

def _open_ledger(target: Target, run: Run) -> None:
    created_ms, first_message = run.fourth, run.fifth
    target.open_ledger(run.partition_id, run.ledger_id, created_ms=created_ms, first_message=first_message)


def _delete_ledger(target: Target, run: Run) -> None:
    target.delete_ledger(run.partition_id, run.ledger_id)
    for cursor in target.state(run.partition_id).cursors.values():
        cursor.forget(run.ledger_id)


def _cursor(target: Target, run: Run) -> Cursor:
    return target.state(run.partition_id).cursor(run.subscription_id)


def _mark_delete(target: Target, run: Run) -> None:
    _cursor(target, run).mark_delete = run.ledger_id, run.fourth


def _acknowledge(target: Target, run: Run) -> None:
    # A deleted ledger may still be in a compacted view, of which a subscription acknowledges entries.
    ledger = target.ledger(run.partition_id, run.ledger_id) or \
        Ledger(target.folder(run.partition_id), run.partition_id, run.ledger_id)
    ops = run.rows
    runs = np.stack((ops["first_entry"], ops["first_entry"] + ops["more_entries"] + 1), 1)
    _cursor(target, run).acknowledge(ledger, np.unique(entries_of(runs)))


def _reset_cursor(target: Target, run: Run) -> None:
    state, position, since = target.state(run.partition_id), (run.ledger_id, run.fourth), run.fifth
    if state.is_uncounted:
        state_v1.reset(state.cursor(run.subscription_id), position)
    else:
        state.cursor(run.subscription_id).move(position, since)


def _replace_cursor(target: Target, run: Run) -> None:
    cursors = target.state(run.partition_id).cursors
    if (other := cursors.pop(run.ledger_id, None)) is not None:      # None: the state has it already
        before = cursors.get(run.subscription_id)
        other.subscription_id, other.since = run.subscription_id, run.fifth
        other.last_type = before.last_type if before is not None else None
        cursors[run.subscription_id] = other


def _delete_subscription(target: Target, run: Run) -> None:
    state = target.state(run.partition_id)
    state.cursors.pop(run.subscription_id, None)
    if state.transactions is not None:
        state.transactions.forget_subscription(run.subscription_id)


def _change_type(target: Target, run: Run) -> None:
    _cursor(target, run).last_type = run.number


def _acknowledge_parts(target: Target, run: Run) -> None:
    cursor, ops = _cursor(target, run), run.rows
    numbers = format.numbers_of(ops["kind_and_word_number"])
    for first, end in by_batch(ops, numbers):
        ledger_id, entry_id = int(ops["ledger_id"][first]), int(ops["entry_id"][first])
        cursor.set_parts(ledger_id, entry_id, numbers[first:end], ops["word"][first:end])


def _count_redeliveries(target: Target, run: Run) -> None:
    counts = _cursor(target, run).redeliveries
    for first, end, count in _counts(run.rows):
        counts.put(run.ledger_id, first, end, count)


def _count_deaths(target: Target, run: Run) -> None:
    counts = _cursor(target, run).deaths
    for first, end, count in _counts(run.rows):
        if first < 0:
            counts.clear()
        else:
            counts.put(run.ledger_id, first, end, count)


def _counts(ops: Rows) -> Iterator[tuple[int, int, int]]:
    """Iterate over (first entry, end, count) of each of COUNTED_OPs (n,)."""
    ends = ops["first_entry"] + ops["more_entries"] + 1
    counts = format.numbers_of(ops["kind_and_count"])
    return zip(ops["first_entry"].tolist(), ends.tolist(), counts.tolist(), strict=True)


def _set_totals(target: Target, run: Run) -> None:
    totals = _cursor(target, run).totals
    if len(run.ops) > 1:
        ops = run.rows
        reasons = format.numbers_of(ops["kind_and_reason"])
        for reason, messages in zip(reasons.tolist(), ops["messages"].tolist(), strict=True):
            totals[reason] = messages
    else:
        totals[run.number] = run.fifth


def _learn_produced(target: Target, run: Run) -> None:
    target.state(run.partition_id).sequences.apply_produced(run.rows)


def _learn_missed(target: Target, run: Run) -> None:
    target.state(run.partition_id).sequences.apply_missed(run.rows)


def _learn_chunked(target: Target, run: Run) -> None:
    target.state(run.partition_id).sequences.apply_chunked(run.rows)


def _forget_sequences(target: Target, run: Run) -> None:
    state = target.state(run.partition_id)
    state.sequences.clear()
    if state.transactions is not None:
        state.transactions.forget_sequences()


def _delete_partition(target: Target, run: Run) -> None:
    target.delete_partition(run.partition_id)


def _begin_delayed_index(target: Target, run: Run) -> None:
    target.state(run.partition_id).delays = format.SCHEDULED


def _apply_transaction(target: Target, run: Run) -> None:
    target.state(run.partition_id).with_transactions().apply(run.rows)


def _coordinate(target: Target, run: Run) -> None:
    ops = run.rows
    coordinators = ops["transaction"] >> np.uint64(names.LEAST_BITS)
    for coordinator in np.unique(coordinators).tolist():
        target.transactions(coordinator).apply(ops[coordinators == coordinator])


_APPLY: dict[int, Callable[[Target, Run], None]] = {
    format.LEDGER_OPENED: _open_ledger,
    format.LEDGER_DELETED: _delete_ledger,
    format.MARK_DELETE: _mark_delete,
    format.ACKNOWLEDGED: _acknowledge,
    format.CURSOR_RESET: _reset_cursor,
    format.CURSOR_REPLACED: _replace_cursor,
    format.SUBSCRIPTION_DELETED: _delete_subscription,
    format.PART_ACKNOWLEDGED: _acknowledge_parts,
    format.REDELIVERED: _count_redeliveries,
    format.DIED: _count_deaths,
    format.TOTAL: _set_totals,
    format.PRODUCED: _learn_produced,
    format.CHUNKED: _learn_chunked,
    format.MISSED: _learn_missed,
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
