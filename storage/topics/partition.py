"""Partitions: a managed ledger with subscriptions and producers.

Callers note changes of a partition as ops (journal_ops.py).  Nothing in this file syncs or answers.
"""
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geminga.proto.names import TopicName
from geminga.proto.sends import IN_TRANSACTION, IS_BATCH, IS_MARKER
from geminga.storage import format
from geminga.storage.catalogue.kept_topics import KeptCursor
from geminga.storage.catalogue.policies import Policies
from geminga.storage.cursors import state_file
from geminga.storage.cursors.cursor import ACKNOWLEDGED, NOBODY, SKIPPED, Cursor
from geminga.storage.cursors.open_transactions import OpenTransactions
from geminga.storage.cursors.producer_sequences import Sequences
from geminga.storage.cursors.state_file import State, StateFile
from geminga.storage.cursors.withheld import Withheld
from geminga.storage.delayed import persistence
from geminga.storage.delayed.index import DelayedIndex
from geminga.storage.errors import CorruptFile, LostFiles, text_of
from geminga.storage.ledgers import compacted_ledgers, cut_ledger, ledger_files, ledger_headers
from geminga.storage.ledgers.checkpoints import FileSnapshot
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.managed_ledger import EARLIEST, ManagedLedger
from geminga.storage.ledgers.position import NOWHERE, Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger
from geminga.storage.options import StorageOptions
from geminga.storage.topics import exported
from geminga.storage.topics.cleared_backlog import ClearedBacklog
from geminga.storage.topics.exported import Exported
from geminga.storage.topics.producers import Producers
from geminga.storage.topics.rate_limits import Limits
from geminga.storage.topics.subscription import Producer, Subscription

_STRETCH = 4_096            # entries that are examined at once
_SHRINK_MIN = 1 << 20      # bytes of an acknowledged open ledger from which on it is replaced by a new one


@dataclass(eq=False, slots=True, repr=False)
class Partition(ManagedLedger):
    """A topic partition that one owner serves: a `Topic` whose entries are stored."""

    file: StateFile
    producers: Producers[Producer]
    options: StorageOptions
    # Entries that no subscription gets, present or future: lost, cancelled, or overwritten by a hole.
    discarded: Cursor = field(default_factory=lambda: Cursor(NOBODY, EARLIEST, is_durable=True))
    subscriptions: dict[tuple[str, bool], Subscription] = field(default_factory=dict)
    cleared: list[ClearedBacklog] = field(default_factory=list)      # that can be taken back, the first cleared first
    attached: dict[Subscription, None] = field(default_factory=dict)      # subscriptions that have consumers
    sequences: Sequences = field(default_factory=Sequences)
    deduplicates: bool = False       # messages that a producer sends again are not stored again
    replicators: set[Producer] = field(default_factory=set)      # connected ones that name positions
    is_terminated: bool = False      # nothing can be published any more
    is_released: bool = False        # unloaded: another object may stand for the partition now
    transactions: OpenTransactions | None = None      # None: none was open since the partition was opened
    schedule: DelayedIndex | None = None      # of delayed entries; None: no entry was ever delayed
    # Entries that were discarded because they are lost; the journal has yet to be told.
    losses: list[tuple[Ledger, NDArray[np.int64]]] = field(default_factory=list)
    slot: int = -1                   # in the owner's table of open partitions
    moved: dict[Subscription, None] = field(default_factory=dict)      # subscriptions whose dead entries a mover gets
    policies: Policies = Policies()  # in force now
    exported: Exported | None = None      # how far nights have exported the partition; None: nothing is
    rate_limits: Limits | None = None
    last_fixed_ms: int = 0           # the latest due time that a fixed delay gave since it was set; 0: none
    cursor_resets: int = 0           # since the partition was opened
    # For statistics.py, since the partition was opened:
    loaded_message: int = 0          # next_message when it was opened
    bytes_in: int = 0                # published
    entries_in: int = 0
    chunks_in: int = 0
    delays_refused: int = 0          # messages refused because of too long a delay
    delays_overridden: int = 0       # messages whose due time a policy changed
    evictions: tuple[int, int] = (0, 0)              # evictions of backlogs by the quota of bytes, and by that of age
    departed_out: tuple[int, ...] = (0, 0, 0)        # messages, bytes, entries out, of deleted subscriptions
    window: object = None            # Distribution of the window that is under way, ...
    last_window: object = None       # ... and of the one before
    counted: tuple[int, ...] = ()    # counts as of the end of the last window, ...
    rates: tuple[float, ...] = ()    # ... and rates per second in that window

    is_persistent = True

    def bind(self, policies: Policies) -> None:
        """Apply the policies that are in force from now on."""
        self.policies, self.deduplicates = policies, policies.deduplication
        if self.schedule is not None:
            self.schedule.tick_ms, self.schedule.window_ms = policies.delay_tick_ms, policies.delay_window_ms

    @property
    def tracks_sequences(self) -> bool:
        """Whether a pass has to look for duplicates among SENDs to the partition."""
        return self.deduplicates or bool(self.replicators)

    def with_transactions(self) -> OpenTransactions:
        """Return the open transactions, none at first."""
        if self.transactions is None:
            self.transactions = OpenTransactions()
        return self.transactions

    @property
    def limit(self) -> Position | None:
        """Position of the first entry that an open transaction published; None: there is none."""
        return None if self.transactions is None else self.transactions.limit

    def begin_schedule(self, *, is_strict: bool) -> DelayedIndex:
        """Give the partition an index of delayed entries, for its first one."""
        self.schedule = DelayedIndex(
            self, is_strict=is_strict, tick_ms=self.policies.delay_tick_ms, window_ms=self.policies.delay_window_ms)
        return self.schedule

    def check(self) -> None:
        """Assert what is true between passes, of ledgers, producers, the index of delayed entries and subscriptions."""
        ManagedLedger.check(self)
        self.producers.check()
        self.discarded.check()
        assert self.exported_up_to <= self.last_confirmed, self
        if self.schedule is not None:
            self.schedule.check()
        if self.transactions is not None:
            self._check_transactions(self.transactions)
        assert self.attached.keys() <= set(self.subscriptions.values()), self
        for key, subscription in self.subscriptions.items():
            assert subscription.key == key and subscription.partition is self, (self, subscription)
            subscription.check()

    def _check_transactions(self, transactions: OpenTransactions) -> None:
        """Assert that entries of open transactions are there, and that no dispatcher has read beyond the limit.

        A cursor may be beyond it, which was reset or skipped there; then entries are read from behind it.
        """
        transactions.check()
        for each in transactions.by_id.values():
            for ledger_id, runs in each.entries.items():
                ledger = self.find(ledger_id)
                assert ledger is not None and runs[-1][1] <= ledger.entries, (self, ledger_id, runs)
        by_id = {one.cursor.subscription_id: one for one in self.subscriptions.values() if one.is_durable}
        for number, each in transactions.by_id.items():
            for subscription_id, acks in each.acks.items():
                withheld = by_id[subscription_id].withheld
                assert withheld is not None and withheld.by_transaction[number] is acks, (self, number)
        limit = transactions.limit
        for subscription in self.subscriptions.values():
            ledger_id, entry_id = subscription.cursor.mark_delete
            assert limit is None or subscription.read <= max(limit, (ledger_id, entry_id + 1)), (subscription, limit)

    def last_message(self) -> tuple[int, int, int]:
        """Return (ledger, entry, batch index) of the last message that consumers can get, else (-1, -1, -1).

        Left out are markers, messages of open transactions, all behind the first of them, those of aborted ones, and
        what is lost or was cancelled: a reader that is told of more would wait for it without end.
        """
        if self.transactions is None and not self.discarded.bitmaps:      # nearly always
            return ManagedLedger.last_message(self)
        for ledger in reversed(self.readable_ledgers):
            for end in range(ledger.entries, 0, -_STRETCH):
                first = max(0, end - _STRETCH)
                is_discarded = self.discarded.acknowledged(ledger.ledger_id, first, end)
                if not is_discarded.all():
                    entry_id = first + int(np.flatnonzero(~is_discarded)[-1])
                    is_batch = int(ledger.column("flags")[entry_id]) & IS_BATCH
                    messages = int(ledger.column("messages")[entry_id])
                    return ledger.ledger_id, entry_id, messages - 1 if is_batch else -1
        return -1, -1, -1

    @property
    def readable_ledgers(self) -> Sequence[StoredLedger]:
        """The ledgers as far as consumers get entries of them: up to the first open transaction."""
        return self.ledgers if self.limit is None else cut_ledger.before(self.ledgers, self.limit)

    def may_have_chunks(self, ledger: ReadableLedger, entry_id: int) -> bool:
        """Whether entries of the ledger from that one on may be chunks.

        Chunks are counted as they are published.  Those from before the partition was opened were not counted.
        """
        return self.chunks_in > 0 or ledger.column("message_index").item(entry_id) < self.loaded_message

    def unreadable(self, ledger: StoredLedger, first: int, end: int) -> NDArray[np.bool_]:
        """Return which of a ledger's entries first .. end - 1 are markers, or published by aborted transactions."""
        if self.transactions is None and not self.discarded.bitmaps:      # nearly always
            return np.zeros(end - first, bool)
        is_special: NDArray[np.bool_] = ledger.column("flags")[first:end] & (IN_TRANSACTION | IS_MARKER) != 0
        return self.discarded.acknowledged(ledger.ledger_id, first, end) & is_special

    @property
    def delayed(self) -> int:
        """Number of delayed entries that wait, without cancelled ones and those of aborted transactions."""
        if self.schedule is None:
            return 0
        return self.schedule.waiting_of(self.discarded) if self.discarded.bitmaps else self.schedule.waiting

    @property
    def messages_in(self) -> int:
        """Messages published since the partition was opened."""
        return self.next_message - self.loaded_message

    # -- ledgers

    @property
    def compacts(self) -> bool:
        """Whether entries that no compacted view covers are kept for the next compaction."""
        return self.view_number > 0 or self.policies.compaction_threshold > 0

    @property
    def exported_up_to(self) -> Position:
        """Position of the last entry that is exported; NOWHERE: none is."""
        return NOWHERE if self.exported is None else self.exported.position

    def first_unexported(self) -> tuple[Ledger, int] | None:
        """Return (ledger, entry) of the first entry that the next night has to export, None if there is none."""
        if not self.policies.exports:
            return None
        ledger_id, entry_id = self.exported_up_to
        for each in self.ledgers_from(ledger_id):
            first = entry_id + 1 if each.ledger_id == ledger_id else 0
            if first < each.entries:
                return each, first
        return None

    def take_acknowledged_ledgers(self, at_most: int, *, also_unexported: bool = False) -> list[Ledger]:
        """Remove at most `at_most` unneeded ledgers from the beginning of the chain; the caller unlinks them.

        Durable subscriptions need the ledgers behind their mark-delete position, and so do cleared backlogs that can be
        taken back.  The next compaction needs those behind the horizon, readers of a compacted view those behind the
        view's horizon, and open transactions all from their first entry on.  Where a policy says so, the next export
        needs those behind the last one.
        """
        needed = [s.cursor.mark_delete for s in self.subscriptions.values() if s.is_durable]
        needed += [backlog.cursor.mark_delete for backlog in self.cleared if backlog.is_left]
        if self.compacts:
            needed.append(self.horizon)
            needed += [s.cursor.mark_delete if s.view is None else max(s.cursor.mark_delete, s.view.horizon)
                       for s in self.attached if s.reads_compacted and not s.is_durable]
        if self.limit is not None:
            needed.append((self.limit[0], self.limit[1] - 1))
        if self.policies.keeps_unexported and not also_unexported:
            needed.append(self.exported_up_to)
        taken: list[Ledger] = []
        while len(self.ledgers) > 1 and len(taken) < at_most:
            first = self.ledgers[0]
            if first.entries and any(position < (first.ledger_id, first.last_entry) for position in needed):
                break
            taken.append(self.ledgers.pop(0))
        for each in taken:
            self.discarded.forget(each.ledger_id)
            if self.schedule is not None:
                self.schedule.forget(each)
            for subscription in self.subscriptions.values():
                if subscription.dispatcher is not None:
                    subscription.dispatcher.forget(each)
                if subscription.view is None or subscription.view.find(each.ledger_id) is None:
                    subscription.cursor.forget(each.ledger_id)
            for backlog in self.cleared:
                backlog.cursor.forget(each.ledger_id)
        return taken

    @property
    def is_closed(self) -> bool:
        """Whether no more entries will come: the topic is terminated, or has moved to another cluster."""
        return self.is_terminated or bool(self.policies.migrated_to)

    @property
    def last_stored(self) -> Position:
        """Position of the last entry that is still there, NOWHERE without one; `last_confirmed` may be behind it.

        A cursor that has acknowledged everything stays at that entry when an empty ledger is begun behind it.
        """
        return next(((ledger.ledger_id, ledger.last_entry) for ledger in reversed(self.ledgers) if ledger.entries),
                    NOWHERE)

    @property
    def is_drained(self) -> bool:
        """Whether every durable subscription has acknowledged everything."""
        return all(s.cursor.mark_delete >= self.last_confirmed for s in self.subscriptions.values() if s.is_durable)

    def could_shrink(self) -> bool:
        """Whether all of the open ledger is acknowledged, and the ledger is large enough to be worth a new one.

        Without a durable subscription nothing is acknowledged: a dead-letter topic's consumer often subscribes long
        after the messages came.
        """
        is_large = self.open_ledger.size >= _SHRINK_MIN
        return is_large and self.is_drained and any(s.is_durable for s in self.subscriptions.values())

    def give_up_lost(self, ledger: Ledger) -> None:
        """Discard entries whose index rows are lost, for all subscriptions.  The owner tells log and journal of it."""
        lost, ledger.lost = ledger.lost, []
        entries = np.array(lost, np.int64)
        self.discarded.acknowledge(ledger, entries)
        for subscription in self.subscriptions.values():
            fresh = subscription.cursor.acknowledge(ledger, entries)
            subscription.cursor.totals[SKIPPED] += int(ledger.messages[fresh].sum())
        self.losses.append((ledger, entries))

    # -- subscriptions

    def add_subscription(self, name: str, cursor: Cursor) -> Subscription:
        """Add a subscription that begins behind the cursor's mark-delete position."""
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
        for each in self.ledgers_from(position[0]):
            if each.ledger_id in self.discarded.bitmaps:
                before = cursor.unacknowledged_messages(each, 0, each.entries)
                cursor.bitmaps[each.ledger_id] = self.discarded.bitmaps[each.ledger_id].copy()
                cursor.totals[SKIPPED] += before - cursor.unacknowledged_messages(each, 0, each.entries)
        if cursor.bitmaps and position[0] >= self.ledgers[0].ledger_id:
            cursor.advance(self.ledgers_from(position[0]))

    def withhold(self) -> None:
        """Withhold what open transactions have acknowledged, in a partition that has just been opened.

        What they acknowledged on subscriptions that do not exist is forgotten.
        """
        by_id = {one.cursor.subscription_id: one for one in self.subscriptions.values()}
        for number, transaction in self.transactions.by_id.items() if self.transactions is not None else ():
            for subscription_id in transaction.acks.keys() - by_id:
                del transaction.acks[subscription_id]
            for subscription_id, acks in transaction.acks.items():
                subscription = by_id[subscription_id]
                subscription.withheld = subscription.withheld or Withheld()
                subscription.withheld.add(number, acks)

    def remove_subscription(self, subscription: Subscription) -> None:
        """Remove this subscription.  A newer one of the same name stays."""
        if self.subscriptions.get(subscription.key) is subscription:
            if subscription.remote is None:
                self.departed_out = tuple(map(sum, zip(self.departed_out, subscription.departed_out, strict=False)))
            del self.subscriptions[subscription.key]

    # -- checkpoints

    def checkpoint(self) -> tuple[list[Path], list[FileSnapshot]]:
        """(files to be synced, snapshots to be written)"""
        if self.is_released:
            return [], []
        return [], [self.file.take(self.state())]

    def state(self) -> State:
        """The partition's durable state, without its ledgers, as it is now."""
        cursors = {s.cursor.subscription_id: s.cursor for s in self.subscriptions.values() if s.is_durable}
        cursors |= {backlog.cursor.subscription_id: backlog.cursor for backlog in self.cleared}
        delays = format.NONE_DELAYED if self.schedule is None else format.SCHEDULED
        if self.transactions is not None:
            ledger_id, entry_id = self.limit or (0, 0)
            self.transactions.settled = self.last_confirmed if self.limit is None else (ledger_id, entry_id - 1)
        return State(
            {NOBODY: self.discarded, **cursors}, self.sequences, delays=delays, transactions=self.transactions)



def open_partition(
    data_dir: Path, partition_id: int, name: TopicName, topic_epoch: int | None, names: dict[str, int],
    options: StorageOptions, known: tuple[State, StateFile] | None = None, kept: Sequence[KeptCursor] = (),
) -> Partition:
    """Open a partition with its durable subscriptions, {name: id}, and its cleared backlogs.  Raises CorruptFile.

    A partition without a ledger is new if its folder is there and has no state.  Its folder is on disk before the
    catalogue has its id, and its state is written behind its first ledger.

    known: its state and state file, if recovery has read them; else they are read from disk.
    """
    folder = format.partition_folder(data_dir, partition_id)
    stored, file = known or (state_file.read(folder, partition_id), StateFile(folder, partition_id))
    partition = Partition(
        partition_id, name, folder, file, Producers(topic_epoch), options, stored.discarded, damage=stored.damage,
        sequences=stored.sequences, transactions=stored.transactions)
    ledger_headers.remove_unmade(folder)
    partition.ledgers = [
        ledger_files.open_ledger(folder, partition_id, ledger_id) for ledger_id in ledger_headers.ledger_ids(folder)]
    if not partition.ledgers and (known is not None or not folder.exists() or format.state_path(folder).exists()):
        raise LostFiles(folder, name)
    _check_chain(partition)
    for each in partition.ledgers[:-1]:
        if not each.is_sealed:
            each.seal()
    for each in partition.ledgers[-1:]:
        each.go_on()      # even if its header says sealed: a crash may have lost the ledger that was made behind it
    if partition.ledgers:
        partition.next_message = partition.loaded_message = partition.open_ledger.next_message
    if partition.transactions is not None:
        counts = {ledger.ledger_id: ledger.entries for ledger in partition.ledgers}
        partition.transactions.cut(lambda ledger_id: counts.get(ledger_id, 0))
    _open_view(partition)
    _read_exported(partition)
    if stored.delays == format.SCHEDULED or (stored.delays == format.UNKNOWN and _has_delayed(partition)):
        persistence.restore(partition.begin_schedule(is_strict=options.delayed_delivery_strict))
    for text, subscription_id in names.items():
        # Without a cursor, the creation of the subscription was never answered: the next SUBSCRIBE creates it anew.
        if subscription_id in stored.cursors:
            cursor = stored.cursors[subscription_id]
            for each in partition.ledgers:
                if each.ledger_id in stored.discarded.bitmaps:
                    cursor.acknowledge(each, _set_bits(stored.discarded.bitmaps[each.ledger_id]))
            cursor.forget_acknowledged_parts()
            subscription = partition.add_subscription(text, cursor)
            subscription.may_lack_acks = True
            subscription.advance()
            subscription.rewind()
            if stored.is_uncounted:
                cursor.since = partition.since(cursor.mark_delete)
                published = partition.next_message - cursor.since
                cursor.totals[ACKNOWLEDGED] = published - cursor.backlog_messages(partition.ledgers)
    for row in kept:
        # Without a position, the clear that was to make the cursor was never answered.
        if row.id in stored.cursors and stored.cursors[row.id].mark_delete != NOWHERE:
            partition.cleared.append(ClearedBacklog(row, stored.cursors[row.id]))
    partition.withhold()
    return partition


def _has_delayed(partition: Partition) -> bool:
    """Whether an entry was ever delayed, which the state files of older versions do not say."""
    return any((each.deliver_at[:each.entries] > each.column("broker_time")[:each.entries]).any()
               for each in partition.ledgers if each.entries)


def _open_view(partition: Partition) -> None:
    """Open the newest compacted view.  If it is damaged, note that, and leave its consumers to read the ledgers."""
    partition.view_number = next(reversed(compacted_ledgers.numbers(partition.folder)), 0)
    if not partition.view_number:
        return
    view = None
    try:
        view = compacted_ledgers.open_view(partition.folder, partition.view_number)
        assert view is not None, partition      # there is one of that number
        why = view.missing()
    except CorruptFile as error:
        why = str(error)
    except OSError as error:
        why = text_of(error)
    if view is None or why:
        partition.damage.append(
            f"{why}; compacted view {partition.view_number} is not used, consumers get what the ledgers have")
        return
    partition.take_over(view)
    compacted_ledgers.remove_unused(partition.folder, {view.number})


def _read_exported(partition: Partition) -> None:
    """Read how far the partition is exported.  If the file is damaged, note that: then nothing counts as exported."""
    why = ""
    try:
        partition.exported = exported.read(partition.folder)
    except CorruptFile as error:
        why = str(error)
    except OSError as error:
        why = text_of(error)
    if why:
        partition.damage.append(f"{why}; nothing of the partition counts as exported until the next export")


def _set_bits(bitmap: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Numbers of the bits that are set, ascending."""
    return np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))


def _check_chain(partition: Partition) -> None:
    """Check that the ledgers are as long as their headers say, and take over their damage.  Raises CorruptFile."""
    for before, each in zip([None, *partition.ledgers], partition.ledgers, strict=False):
        ledger_files.check_lengths(each)
        each.is_discarded = partial(partition.discarded.acknowledged, each.ledger_id)
        if each.is_header_lost and before is not None:
            each.first_message = before.next_message
        partition.damage += each.damage
        each.damage = partition.damage      # damage that shows once the index is read is reported too
