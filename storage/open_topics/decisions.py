"""Decisions of a pass: ops for the journal, answers for workers, and topics that later steps of the pass look at.

    note, note_for, note_in_order, note_many, note_part, count
                                               -> ops, in the journal with the next commit
    answer_needs_sync                          -> the next commit syncs
    after_commit                               -> actions on files, in the sync step of the pass
    outbox                                     -> one envelope for each worker, sent when the pass is durable
    wake, wake_trimming                        -> topics to be dispatched, or trimmed, in this pass
"""
from collections.abc import Callable
from typing import Any

import numpy as np

from geminga.proto import envelope
from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.frames import NO_REQUEST
from geminga.proto.rows import Row, Rows
from geminga.storage.cursors import batch_acks
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.checkpoints import Changed
from geminga.storage.ledgers.journal import Journal
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.runtime.counters import Counters
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Subscription, Topic


class Outbox:
    """The answers of one pass to one worker, as sections of an envelope; neighbours of one kind become one section."""

    def __init__(self) -> None:
        self._sections: list[tuple[int, Rows | bytes, bytes]] = []
        self._kind = 0
        self._rows: list[Row] = []
        self._data: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Outbox sections={len(self._sections)} rows={len(self._rows)} of kind {self._kind}>"

    def receipts(self, rows: Rows | bytes) -> None:
        """Answer SENDs: RECEIPT_ROWs, as an array or packed."""
        self._close()
        self._sections.append((envelope.RECEIPTS, rows, b""))

    def receipts_and_errors(self, rows: Rows | bytes, errors: list[tuple[int, int, int, bytes]]) -> None:
        """Answer SENDs with receipts, and others with errors, each before the receipts of the producer's later SENDs.

        Clients take an answer to be for their first SEND that has none yet, so answers must keep the order of SENDs.
        rows: RECEIPT_ROWs, as an array or packed.  errors: (connection, producer id, sequence id, frame).
        """
        rows = np.frombuffer(rows, RECEIPT_ROW) if isinstance(rows, bytes) else rows
        in_turn = []
        for connection, producer_id, sequence_id, error in errors:
            is_same = (rows["connection"] == connection) & (rows["producer_id"] == producer_id)
            is_later = is_same & (rows["sequence_id"] > sequence_id)
            in_turn.append((int(is_later.argmax()) if is_later.any() else len(rows), connection, error))
        at = 0
        for place, connection, error in sorted(in_turn, key=lambda one: one[0]):
            if place > at:
                self.receipts(rows[at:place])
                at = place
            self.reply(connection, error)
        if at < len(rows):
            self.receipts(rows[at:])

    def reply(self, connection: int, data: bytes, *, request_id: int = NO_REQUEST, action: int = envelope.WRITE,
              object_id: int = 0, handle: int = 0, partition: int = -1) -> None:
        """Have the worker do `action`, then write frames to the client; see REPLY_ROW."""
        self._add(envelope.REPLIES, (connection, action, object_id, handle, request_id, len(data), partition), data)

    def run(self, consumer: Consumer, partition_id: int, ledger_id: int, first_entry: int, count: int) -> None:
        """Deliver `count` entries in a row to the consumer."""
        self._add(
            envelope.RUNS, (consumer.connection, count, consumer.handle, partition_id, ledger_id, first_entry), b"")

    def entry_list(
        self, consumer: Consumer, partition_id: int, ledger_id: int, listed: Rows, words: bytes = b"", view: int = 0
    ) -> None:
        """Deliver entries that lie apart, have redelivery counts or ack sets, or are of a compacted view.

        listed: (n,) LISTED_ENTRY.  words: the ack sets, one behind the other.
        """
        data = listed.tobytes() + words
        row = consumer.connection, len(listed), consumer.handle, partition_id, ledger_id, len(data), view
        self._add(envelope.ENTRY_LISTS, row, data)

    def transient_entries(self, consumer: Consumer, entries: Rows, data: bytes) -> None:
        """Deliver entries of a non-persistent topic: rows (n,) TRANSIENT_ENTRY, and the entries' bytes."""
        data = entries.tobytes() + data
        self._add(envelope.TRANSIENT, (consumer.connection, len(entries), consumer.handle, len(data)), data)

    def answer(self, number: int, data: bytes) -> None:
        """Answer the question of administration that has that number."""
        self._add(envelope.ANSWERS, (number, len(data)), data)

    def forget(self, ledger_id: int, view: int = 0) -> None:
        """Have the worker unmap a deleted ledger, or the ledger's part of a deleted compacted view."""
        self._add(envelope.FORGET, (ledger_id, view), b"")

    def layouts_changed(self) -> None:
        """Have the worker look for layouts that have changed, and tell its clients."""
        if self._kind != envelope.LAYOUTS:
            self._add(envelope.LAYOUTS, (0,), b"")

    def _add(self, kind: int, row: Row, data: bytes) -> None:
        if kind != self._kind:
            self._close()
            self._kind = kind
        self._rows.append(row)
        if data:
            self._data.append(data)

    def _close(self) -> None:
        """End the section under way."""
        if self._rows:
            self._sections.append((self._kind, envelope.pack(self._kind, self._rows), b"".join(self._data)))
        self._kind, self._rows, self._data = 0, [], []

    def seal(self, taken: int) -> list[Any]:
        """The envelope's frames.  taken: credit that the worker has used, see envelope.HEADER."""
        self._close()
        return envelope.seal(self._sections, taken)


# (ledger, its entries, its bytes, messages of the partition) before the first entry that a pass appended.
Appended = tuple[Ledger, int, int, int]


class Decisions:
    """Decisions of the pass so far that are neither committed nor answered."""

    def __init__(self, journal: Journal, counters: Counters, now_ms: int):
        self.journal, self.counters = journal, counters
        self.now_ms, self.began = now_ms, 0.0             # of the pass: ms since 1970, and seconds of time.perf_counter
        self.changed: dict[Topic, None] = {}              # topics whose statistics are to be computed anew
        self.acknowledged: dict[Partition, None] = {}     # partitions in whose ledgers holes may be punched
        self.moved: dict[Subscription, None] = {}         # replicated ones whose mark-delete position has moved
        self.to_dispatch: dict[Topic, None] = {}
        self.appended: dict[Partition, Appended] = {}     # where the entries begin that this pass has published
        self.to_trim: dict[Partition, None] = {}
        self.must_sync = False
        self._ops: list[bytes] = []                       # in order
        self._many_ops: list[Rows] = []                   # written before these; their order does not matter
        self._totals: dict[tuple[Subscription, int], None] = {}     # (subscription, reason): totals that changed
        self._actions: list[Callable[[], None]] = []      # for the sync step
        self._entries_out = self._messages_out = self._bytes_out = 0      # delivered, and not in the counters yet
        self._outboxes: dict[int, Outbox] = {}            # by worker
        self._taken: dict[int, int] = {}                  # credit that each worker has used, see envelope.HEADER

    def __repr__(self) -> str:
        dispatch = f"to_dispatch={len(self.to_dispatch)} to_trim={len(self.to_trim)}"
        return f"<Decisions ops={len(self._ops)} must_sync={self.must_sync} {dispatch}>"

    # -- for the journal

    def note(self, partition: Partition, op: bytes) -> None:
        """Note an op (journal_ops.py) for the journal."""
        self.changed[partition] = None
        self._ops.append(op)
        self.journal.mark_dirty(partition)

    def note_for(self, changed: Changed, op: bytes) -> None:
        """Note an op that changes something other than a partition."""
        self._ops.append(op)
        self.journal.mark_dirty(changed)

    def note_in_order(self, partition: Partition, ops: Rows) -> None:
        """Note ops (n,) of format.OPS that follow all that were noted before."""
        self._ops.append(ops.tobytes())
        self.journal.mark_dirty(partition)

    def note_many(self, partition: Partition, ops: Rows) -> None:
        """Note ops (n,) of format.OPS whose place among the ops of a pass does not matter."""
        self._many_ops.append(ops)
        self.journal.mark_dirty(partition)

    def note_part(self, partition: Partition, subscription_id: int, position: Position, before: int,
                  remains: int) -> None:
        """Note the words that have changed of a batch's bits, of which `remains` are left.

        before: the bits before; 0 if the batch was whole, so that all words with a bit are noted.
        """
        if not max(before, remains) >> 64:      # nearly always: one word
            return self.note(partition, journal_ops.first_part_acknowledged(
                partition.partition_id, subscription_id, position, remains))
        numbers, there = np.flatnonzero(batch_acks.words(before ^ remains)), batch_acks.words(remains)
        words, known = np.zeros(len(numbers), np.uint64), numbers < len(there)      # beyond, words have become 0
        words[known] = there[numbers[known]]
        return self.note_in_order(partition, journal_ops.parts_acknowledged(
            partition.partition_id, subscription_id, position, numbers, words))

    def count(self, subscription: Subscription, reason: int, messages: int) -> None:
        """Count messages that the subscription needs no more, for one of cursor.REASONS."""
        subscription.cursor.totals[reason] += messages
        if subscription.is_durable:
            self._totals[subscription, reason] = None

    def answer_needs_sync(self) -> None:
        """Have the next commit sync the journal: an answer of this pass depends on it."""
        self.must_sync = True

    def after_commit(self, action: Callable[[], None]) -> None:
        """Carry out the action in the sync step of this pass, when the journal has all that was decided.

        Actions change files that a replay of an older journal would still need.  They run before any answer leaves.  An
        action may leave another one, for the next pass.
        """
        self._actions.append(action)

    @property
    def has_actions(self) -> bool:
        """Whether there are actions for the next pass, which an action of this one has left."""
        return bool(self._actions)

    def take_actions(self) -> list[Callable[[], None]]:
        """Return the actions of this pass; none are left."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def has_ops(self) -> bool:
        return bool(self._ops or self._many_ops or self._totals)

    def take_ops(self) -> bytes:
        """The bytes of all ops noted so far; none are left."""
        totals = []
        for subscription, reason in self._totals:
            cursor, partition = subscription.cursor, subscription.partition
            assert isinstance(partition, Partition), subscription      # a durable subscription has a stored topic
            totals.append(
                journal_ops.total(partition.partition_id, cursor.subscription_id, reason, cursor.totals[reason]))
        ops = b"".join([*self._many_ops, *self._ops, *totals])
        self._ops, self._many_ops, self._totals = [], [], {}
        return ops

    # -- for later steps of the pass

    def wake(self, topic: Topic) -> None:
        """Dispatch the topic's entries in this pass: a consumer may be able to get one."""
        self.to_dispatch[topic] = None

    def wake_trimming(self, partition: Partition) -> None:
        """Look in this pass for ledgers of the partition that can be deleted."""
        self.to_trim[partition] = None

    # -- for workers

    def count_delivered(self, consumer: Consumer, entries: int, size: int) -> None:
        """Count entries, and their bytes, that are delivered to the consumer."""
        self._entries_out += entries
        self._bytes_out += size
        messages = consumer.granted - consumer.permits
        self._messages_out += messages - consumer.counted_out
        consumer.counted_out = messages
        consumer.entries_out += entries
        consumer.bytes_out += size
        consumer.consumed_ms = self.now_ms

    def outbox(self, worker: int) -> Outbox:
        """The answers of this pass to that worker."""
        if worker not in self._outboxes:
            self._outboxes[worker] = Outbox()
        return self._outboxes[worker]

    def take_credit(self, worker: int, size: int) -> None:
        """Count `size` more as used of the worker's credit; the envelope of this pass tells the worker."""
        self._taken[worker] = self._taken.get(worker, 0) + size
        self.outbox(worker)

    def forget_worker(self, worker: int) -> None:
        """Drop the answers to a worker that has ended."""
        self._outboxes.pop(worker, None)
        self._taken.pop(worker, None)

    def seal_answers(self) -> list[tuple[int, list[Any]]]:
        """[(worker, frames of its envelope)] of all answers; none are left."""
        self.counters.add("entries_out", self._entries_out)
        self.counters.add("messages_out", self._messages_out)
        self.counters.add("bytes_out", self._bytes_out)
        self._entries_out = self._messages_out = self._bytes_out = 0
        out = [(worker, outbox.seal(self._taken.get(worker, 0))) for worker, outbox in self._outboxes.items()]
        self._outboxes = {}
        return out
