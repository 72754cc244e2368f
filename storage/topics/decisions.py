"""Decisions of a pass: ops for the journal, answers for workers, and partitions that later steps of the pass look at.

    note, note_in_order, note_many, count      -> ops, in the journal with the next commit
    answer_needs_sync                          -> the next commit syncs
    after_commit                               -> actions on files, in the sync step of the pass
    outbox                                     -> one envelope for each worker, sent when the pass is durable
    wake, wake_trimming                        -> partitions to be dispatched, or trimmed, in this pass
"""
from collections.abc import Callable

from geminga.proto.rows import Rows
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.journal import Journal
from geminga.storage.runtime.counters import Counters
from geminga.storage.topics.outbox import Outbox
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Subscription, Topic


class Decisions:
    """What a pass has decided so far, and has neither written down nor answered."""

    def __init__(self, journal: Journal, counters: Counters, now_ms: int):
        self.journal, self.counters = journal, counters
        self.now_ms, self.began = now_ms, 0.0             # when the pass began: ms since 1970, and seconds of time.perf_counter
        self.changed: dict[Topic, None] = {}              # topics whose statistics are to be computed anew
        self.acknowledged: dict[Partition, None] = {}     # partitions in whose ledgers there may be new holes
        self.to_dispatch: dict[Topic, None] = {}
        self.to_trim: dict[Partition, None] = {}
        self.must_sync = False
        self._ops: list[bytes] = []                       # in order
        self._many_ops: list[Rows] = []                # before them; their order does not matter
        self._totals: dict[tuple[Subscription, int], None] = {}     # (subscription, reason): totals that changed
        self._actions: list[Callable[[], None]] = []      # for the sync step
        self._outboxes: dict[int, Outbox] = {}            # by worker
        self._taken: dict[int, int] = {}                  # credit that each worker has used up so far, see envelope.seal

    # -- for the journal

    def note(self, partition: Partition, op: bytes) -> None:
        """Note an op (journal_ops.py) for the journal."""
        self.changed[partition] = None
        self._ops.append(op)
        self.journal.mark_dirty(partition)

    def note_in_order(self, partition: Partition, ops: Rows) -> None:
        """Note ops (n,) of format.OPS that follow all that were noted before."""
        self._ops.append(ops.tobytes())
        self.journal.mark_dirty(partition)

    def note_many(self, partition: Partition, ops: Rows) -> None:
        """Note ops (n,) of format.OPS whose place among the ops of a pass does not matter."""
        self._many_ops.append(ops)
        self.journal.mark_dirty(partition)

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

        Actions change files that a replay of an older journal would still need.  They run before any answer leaves.
        """
        self._actions.append(action)

    def take_actions(self) -> list[Callable[[], None]]:
        """Return the actions of this pass; none are left."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def has_ops(self) -> bool:
        return bool(self._ops or self._many_ops or self._totals)

    def take_ops(self) -> bytes:
        """The bytes of all ops noted so far; none are left."""
        totals = [journal_ops.total(subscription.partition.partition_id, subscription.cursor.subscription_id, reason,
                                    subscription.cursor.totals[reason])
                  for subscription, reason in self._totals]
        ops = b"".join([*self._many_ops, *self._ops, *totals])
        self._ops, self._many_ops, self._totals = [], [], {}
        return ops

    # -- for later steps of the pass

    def wake(self, topic: Topic) -> None:
        """Dispatch the topic's entries: its consumers may be able to get something."""
        self.to_dispatch[topic] = None

    def wake_trimming(self, partition: Partition) -> None:
        """Look for ledgers of the partition that nobody needs any more."""
        self.to_trim[partition] = None

    # -- for workers

    def count_delivered(self, consumer: Consumer, entries: int, size: int) -> None:
        """Count entries of `size` bytes in all that the consumer is delivered."""
        self.counters.add("entries_out", entries)
        self.counters.add("bytes_out", size)
        consumer.entries_out += entries
        consumer.bytes_out += size
        consumer.consumed_ms = self.now_ms

    def outbox(self, worker: int) -> Outbox:
        """The answers of this pass to that worker."""
        if worker not in self._outboxes:
            self._outboxes[worker] = Outbox()
        return self._outboxes[worker]

    def take_credit(self, worker: int, size: int) -> None:
        """Count `size` as taken from the worker, which is told so with the answers of the pass."""
        self._taken[worker] = self._taken.get(worker, 0) + size
        self.outbox(worker)

    def forget_worker(self, worker: int) -> None:
        """Drop what was to be sent to a worker that has ended."""
        self._outboxes.pop(worker, None)
        self._taken.pop(worker, None)

    def seal_answers(self) -> list[tuple[int, list]]:
        """[(worker, frames of its envelope)] of all answers; none are left."""
        out = [(worker, outbox.seal(self._taken.get(worker, 0))) for worker, outbox in self._outboxes.items()]
        self._outboxes = {}
        return out
