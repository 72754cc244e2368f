"""One partition: a managed ledger with its subscriptions and its producers.

Callers tell the journal of changes as ops (journal_ops.py); nothing in this file syncs or answers.
"""
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.policies import Policies
from geminga.storage.cursors import state_file
from geminga.storage.cursors.cursor import ACKNOWLEDGED, NOBODY, SKIPPED, Cursor
from geminga.storage.cursors.producer_sequences import Sequences
from geminga.storage.cursors.state_file import Snapshot, State, StateFile
from geminga.storage.delayed import persistence
from geminga.storage.delayed.index import DelayedIndex
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.ledgers import compacted_ledgers, ledger, ledger_headers
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.managed_ledger import EARLIEST, ManagedLedger
from geminga.storage.ledgers.position import Position
from geminga.storage.options import StorageOptions
from geminga.storage.topics.producers import Producers
from geminga.storage.topics.rate_limits import Limits
from geminga.storage.topics.subscription import Subscription

_SHRINK_MIN = 1 << 20      # bytes that an idle, drained ledger must occupy before it is given up for a fresh one


@dataclass(eq=False, slots=True, repr=False)
class Partition(ManagedLedger):
    """A topic partition that one owner serves: a stored topic in the sense of `Topic`."""

    file: StateFile
    producers: Producers
    options: StorageOptions
    # Entries that no subscription gets any more, present or future: lost, cancelled, or overwritten by a hole.
    discarded: Cursor = field(default_factory=lambda: Cursor(NOBODY, EARLIEST, is_durable=True))
    subscriptions: dict[tuple[str, bool], Subscription] = field(default_factory=dict)
    attached: dict[Subscription, None] = field(default_factory=dict)      # those with consumers
    sequences: Sequences = field(default_factory=Sequences)
    deduplicates: bool = False       # what a producer sends again is not stored again
    is_terminated: bool = False      # nothing is published any more
    is_released: bool = False        # given up: another object may stand for the partition now
    schedule: DelayedIndex | None = None      # what waits for its time, once anything did
    losses: list[tuple[Ledger, NDArray[np.int64]]] = field(default_factory=list)  # entries that are gone, not in the journal yet
    slot: int = -1                   # in the owner's table
    policies: Policies = Policies()  # what holds for it now
    rate_limits: Limits | None = None
    last_fixed_ms: int = 0           # the latest time that a fixed delay gave since it was set; 0: none
    cursor_resets: int = 0           # since it was opened
    # For statistics.py, since it was opened:
    loaded_message: int = 0          # next_message, then
    bytes_in: int = 0                # published
    entries_in: int = 0
    chunks_in: int = 0
    delays_refused: int = 0          # messages that were to be delivered later than may be
    delays_overridden: int = 0       # ... that got another time than their producers wanted
    evictions: tuple[int, int] = (0, 0)              # how often its quotas of bytes, and of age, made subscriptions lose something
    departed_out: tuple[int, int, int] = (0, 0, 0)       # messages, bytes, entries given out by subscriptions that were deleted
    window: object = None            # Distribution of the window that is under way, ...
    last_window: object = None       # ... and of the one before
    counted: tuple = ()
    rates: tuple = ()

    is_persistent = True

    def bind(self, policies: Policies) -> None:
        """Apply the policies that hold from now on."""
        self.policies, self.deduplicates = policies, policies.deduplication
        if self.schedule is not None:
            self.schedule.tick_ms, self.schedule.window_ms = policies.delay_tick_ms, policies.delay_window_ms

    def begin_schedule(self, *, is_strict: bool) -> DelayedIndex:
        """Give the partition an index of delayed entries, as its first one comes."""
        self.schedule = DelayedIndex(self, is_strict=is_strict, tick_ms=self.policies.delay_tick_ms, window_ms=self.policies.delay_window_ms)
        return self.schedule

    def check(self) -> None:
        """Assert what is true between passes, of the chain of ledgers, the delayed index and all subscriptions."""
        ManagedLedger.check(self)
        if self.schedule is not None:
            self.schedule.check()
        assert self.attached.keys() <= set(self.subscriptions.values()), self
        for key, subscription in self.subscriptions.items():
            assert subscription.key == key and subscription.partition is self, (self, subscription)
            subscription.check()

    @property
    def messages_in(self) -> int:
        """Published since it was opened."""
        return self.next_message - self.loaded_message

    # -- ledgers

    @property
    def compacts(self) -> bool:
        """Whether what is not in a compacted view yet is kept for the next."""
        return self.view_number > 0 or self.policies.compaction_threshold > 0

    def take_acknowledged_ledgers(self, at_most: int) -> list[Ledger]:
        """Remove from the chain the first sealed ledgers, so many, that nobody needs; they are to be unlinked.

        Durable subscriptions do, the next compaction, and readers of a compacted view what lies behind that.
        """
        needed = [s.cursor.mark_delete for s in self.subscriptions.values() if s.is_durable]
        if self.compacts:
            needed.append(self.horizon)
            needed += [s.cursor.mark_delete if s.view is None else max(s.cursor.mark_delete, s.view.horizon)
                       for s in self.attached if s.reads_compacted and not s.is_durable]
        gone = []
        while len(self.ledgers) > 1 and len(gone) < at_most:
            first = self.ledgers[0]
            if first.entries and any(position < (first.ledger_id, first.last_entry) for position in needed):
                break
            gone.append(self.ledgers.pop(0))
        for found in gone:
            self.discarded.forget(found.ledger_id)
            if self.schedule is not None:
                self.schedule.forget(found)
            for subscription in self.subscriptions.values():
                if subscription.dispatcher is not None:
                    subscription.dispatcher.forget(found)
                if subscription.view is None or subscription.view.find(found.ledger_id) is None:
                    subscription.cursor.forget(found.ledger_id)
        return gone

    @property
    def is_closed(self) -> bool:
        """Whether no more entries will come: it is terminated, or has moved to another cluster."""
        return self.is_terminated or bool(self.policies.migrated_to)

    @property
    def is_drained(self) -> bool:
        """Whether every durable subscription has acknowledged everything."""
        return all(s.cursor.mark_delete >= self.last_confirmed for s in self.subscriptions.values() if s.is_durable)

    def could_shrink(self) -> bool:
        """Whether all of the open ledger is acknowledged and it holds enough to be worth a new one.

        Where nobody subscribes nobody has acknowledged: a dead-letter topic's consumer often comes long after its messages.
        """
        return self.open_ledger.size >= _SHRINK_MIN and self.is_drained and any(s.is_durable for s in self.subscriptions.values())

    def give_up_lost(self, found: Ledger) -> None:
        """Discard entries whose index rows are lost, for all subscriptions; the owner reports that, and tells the journal."""
        lost, found.lost = found.lost, []
        entries = np.array(lost, np.int64)
        self.discarded.acknowledge(found, entries)
        for subscription in self.subscriptions.values():
            fresh = subscription.cursor.acknowledge(found, entries)
            subscription.cursor.totals[SKIPPED] += int(found.messages[fresh].sum())
        self.losses.append((found, entries))

    # -- subscriptions

    def add_subscription(self, name: str, cursor: Cursor) -> Subscription:
        subscription = Subscription(name, cursor, self, self.options)
        subscription.rewind()
        self.subscriptions[subscription.key] = subscription
        return subscription

    def new_cursor(self, subscription_id: int, position: Position, *, is_durable: bool) -> Cursor:
        """A cursor whose mark-delete position is `position`."""
        cursor = Cursor(subscription_id, position, is_durable=is_durable)
        self.reset_cursor(cursor, position)
        return cursor

    def reset_cursor(self, cursor: Cursor, position: Position) -> None:
        """Reset the cursor's mark-delete position; discarded entries behind it count as skipped."""
        self.cursor_resets += 1
        cursor.move(position, self.since(position))
        for found in self.ledgers_from(position[0]):
            if found.ledger_id in self.discarded.bitmaps:
                before = cursor.unacknowledged_messages(found, 0, found.entries)
                cursor.bitmaps[found.ledger_id] = self.discarded.bitmaps[found.ledger_id].copy()
                cursor.totals[SKIPPED] += before - cursor.unacknowledged_messages(found, 0, found.entries)
        if cursor.bitmaps and position[0] >= self.ledgers[0].ledger_id:
            cursor.advance(self.ledgers_from(position[0]))

    def remove_subscription(self, subscription: Subscription) -> None:
        """Remove this subscription; another that has its name by now stays."""
        if self.subscriptions.get(subscription.key) is subscription:
            self.departed_out = tuple(map(sum, zip(self.departed_out, subscription.departed_out, strict=False)))
            del self.subscriptions[subscription.key]

    # -- checkpoints

    def checkpoint(self) -> tuple[list[Path], list[Snapshot]]:
        """(files to be synced, snapshots to be written)"""
        if self.is_released:
            return [], []
        return [], [self.file.take(self.state())]

    def state(self) -> State:
        """The partition's durable state but for its ledgers, as it is now."""
        cursors = {s.cursor.subscription_id: s.cursor for s in self.subscriptions.values() if s.is_durable}
        delays = format.NONE_DELAYED if self.schedule is None else format.SCHEDULED
        return State({NOBODY: self.discarded, **cursors}, self.sequences, delays=delays)


def open_partition(data_dir: Path, partition_id: int, name: TopicName, topic_epoch: int | None, names: dict[str, int],
                   options: StorageOptions, known: tuple[State, StateFile] | None = None) -> Partition:
    """The partition as it lies on disk, with its durable subscriptions {name: id}.  Raises CorruptFile.

    known: its state, when that is not on disk yet.
    """
    folder = format.partition_folder(data_dir, partition_id)
    stored, file = known or (state_file.read(folder, partition_id), StateFile(folder, partition_id))
    partition = Partition(partition_id, name, folder, file, Producers(topic_epoch), options, stored.discarded, damage=stored.damage,
                           sequences=stored.sequences)
    ledger_headers.remove_unmade(folder)
    partition.ledgers = [ledger.open_ledger(folder, partition_id, found) for found in ledger_headers.ledger_ids(folder)]
    _check(partition)
    for found in partition.ledgers[:-1]:
        if not found.is_sealed:
            found.seal()
    for found in partition.ledgers[-1:]:
        found.go_on()                     # whatever its header says: the one that came behind it may not have got to disk
    if partition.ledgers:
        partition.next_message = partition.loaded_message = partition.open_ledger.next_message
    _open_view(partition)
    if stored.delays == format.SCHEDULED or (stored.delays == format.UNKNOWN and _has_delayed(partition)):
        persistence.restore(partition.begin_schedule(is_strict=options.delayed_delivery_strict))
    for text, subscription_id in names.items():
        if subscription_id in stored.cursors:     # else its creation was never answered; whoever asks again has it made anew
            cursor = stored.cursors[subscription_id]
            for found in partition.ledgers:
                if found.ledger_id in stored.discarded.bitmaps:
                    cursor.acknowledge(found, _set_bits(stored.discarded.bitmaps[found.ledger_id]))
            cursor.forget_acknowledged_parts()
            subscription = partition.add_subscription(text, cursor)
            subscription.advance()
            subscription.rewind()
            if stored.is_uncounted:
                cursor.since = partition.since(cursor.mark_delete)
                cursor.totals[ACKNOWLEDGED] = partition.next_message - cursor.since - cursor.backlog_messages(partition.ledgers)
    return partition


def _has_delayed(partition: Partition) -> bool:
    """Whether any entry was ever delayed; older versions did not write that down."""
    return any((found.deliver_at[:found.entries] > found.column("broker_time")[:found.entries]).any()
               for found in partition.ledgers if found.entries)


def _open_view(partition: Partition) -> None:
    """Open the newest compacted view; if it is damaged, consumers get what the ledgers have."""
    partition.view_number = next(reversed(compacted_ledgers.numbers(partition.folder)), 0)
    if not partition.view_number:
        return
    try:
        found = compacted_ledgers.open_view(partition.folder, partition.view_number)
        why = found.missing()
    except CorruptFile as error:
        why = str(error)
    except OSError as error:
        why = text_of(error)
    if why:
        partition.damage.append(f"{why}; compacted view {partition.view_number} is not used, consumers get what the ledgers have")
        return
    partition.take_over(found)
    compacted_ledgers.remove_unused(partition.folder, {found.number})


def _set_bits(bitmap: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))


def _check(partition: Partition) -> None:
    """Its ledgers are as long as they say, and begin where the one before ends.  Raises CorruptFile."""
    for before, found in zip([None, *partition.ledgers], partition.ledgers, strict=False):
        found.check_lengths()
        found.is_discarded = partial(partition.discarded.acknowledged, found.ledger_id)
        if found.is_header_lost and before is not None:
            found.first_message = before.next_message
        partition.damage += found.damage
        found.damage = partition.damage      # also what is found when its index is looked at
