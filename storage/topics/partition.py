"""One partition: its chain of ledgers, its subscriptions and its producers.

Ledgers are ascending by id; the last one is open, all others are sealed.  What changes here is told to the journal as ops
(format.OP_ROW) by whoever calls; nothing in this file syncs or answers.
"""
import bisect
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from geminga.proto.names import TopicName
from geminga.storage import format
from geminga.storage.catalogue.policies import Policies
from geminga.storage.cursors import state_file
from geminga.storage.cursors.cursor import ACKNOWLEDGED, NOBODY, NOWHERE, SKIPPED, Cursor, Position
from geminga.storage.cursors.producer_sequences import Sequences
from geminga.storage.cursors.state_file import Snapshot, State, StateFile
from geminga.storage.delayed.index import Schedule
from geminga.storage.errors import CorruptFile, text_of
from geminga.storage.ledgers import compacted_ledgers, ledger
from geminga.storage.ledgers.compacted_ledgers import View
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.options import StorageOptions
from geminga.storage.topics.producers import Producers
from geminga.storage.topics.subscription import Subscription

if TYPE_CHECKING:
    from geminga.storage.enforcement.rate_limiter import Limits

EARLIEST, LATEST = (-1, -1), ((1 << 63) - 1, (1 << 63) - 1)     # as clients write them in message ids
_SHRINK_MIN = 1 << 20      # bytes that an idle, drained ledger must occupy before it is given up for a fresh one


@dataclass(eq=False, slots=True)
class Partition:
    partition_id: int
    name: TopicName
    folder: Path
    file: StateFile
    producers: Producers
    options: StorageOptions
    gone: Cursor = field(default_factory=lambda: Cursor(NOBODY, EARLIEST, is_durable=True))      # what is there for nobody any more
    ledgers: list[Ledger] = field(default_factory=list)
    subscriptions: dict[tuple[str, bool], Subscription] = field(default_factory=dict)
    attached: dict[Subscription, None] = field(default_factory=dict)      # those with consumers
    sequences: Sequences = field(default_factory=Sequences)
    deduplicates: bool = False       # what a producer sends again is not stored again
    next_message: int = 0            # messages ever published
    now_ms: int = 0                  # of the pass
    is_terminated: bool = False      # nothing is published any more
    is_released: bool = False        # somebody else may have opened it anew: this says nothing any more
    schedule: Schedule | None = None      # what waits for its time, once anything did
    damage: list[str] = field(default_factory=list)                       # found, and not reported yet
    losses: list[tuple[Ledger, NDArray[np.int64]]] = field(default_factory=list)  # entries that are gone, not in the journal yet
    slot: int = -1                   # in the owner's table
    policies: Policies = Policies()  # what holds for it now
    rate_limits: "Limits | None" = None
    last_fixed_ms: int = 0           # the latest time that a fixed delay gave since it was set; 0: none
    begun: int = 0                   # how often a cursor began anew
    view: View | None = None         # the compacted view that holds
    view_number: int = 0             # of that, or of one that cannot be used; 0: there is none
    replaced: list[View] = field(default_factory=list)       # views that somebody may read yet
    # For statistics.py, since it was opened:
    loaded_message: int = 0          # next_message, then
    bytes_in: int = 0                # published
    entries_in: int = 0
    chunks_in: int = 0
    delays_refused: int = 0          # messages that were to be delivered later than may be
    delays_overridden: int = 0       # ... that got another time than their producers wanted
    evictions: tuple[int, int] = (0, 0)              # how often its quotas of bytes, and of age, made subscriptions lose something
    gone_out: tuple[int, int, int] = (0, 0, 0)       # messages, bytes, entries given out by subscriptions that were deleted
    window: object = None            # Distribution of the window that is under way, ...
    last_window: object = None       # ... and of the one before
    counted: tuple = ()
    rates: tuple = ()

    is_persistent = True

    def __repr__(self) -> str:
        return f"<Partition {self.partition_id} {self.name} ledgers={len(self.ledgers)}>"

    @property
    def messages_in(self) -> int:
        """Published since it was opened."""
        return self.next_message - self.loaded_message

    # -- positions

    @property
    def open_ledger(self) -> Ledger:
        return self.ledgers[-1]

    @property
    def last_confirmed(self) -> Position:
        """The last entry; entry -1 of the open ledger when that is empty."""
        return self.open_ledger.ledger_id, self.open_ledger.last_entry

    def ledgers_from(self, ledger_id: int) -> list[Ledger]:
        """The ledger with that id, or the next there is, and all behind it."""
        if ledger_id >= self.open_ledger.ledger_id:      # nearly always
            return self.ledgers[-1:]
        return self.ledgers[bisect.bisect_left(self.ledgers, ledger_id, key=_ledger_id):]

    def find(self, ledger_id: int) -> Ledger | None:
        found = self.ledgers_from(ledger_id)
        return found[0] if found and found[0].ledger_id == ledger_id else None

    def has(self, position: Position) -> bool:
        """Whether there is such an entry, or it would be the one before a ledger's first."""
        found = self.find(position[0])
        return found is not None and -1 <= position[1] < found.entries

    def take_over(self, view: View) -> None:
        """It holds from now on; who reads the one before goes on with that."""
        view.damage = self.damage
        for part in view.ledgers:
            part.damage = self.damage
        view.cover((found.ledger_id, found.entries) for found in self.ledgers)
        if self.view is not None:
            self.replaced.append(self.view)
        self.view, self.view_number = view, view.number

    def with_view(self, view: View, ledger_id: int) -> list:
        """What the view has from there on, up to its horizon, and the ledgers behind that."""
        return [*view.ledgers_from(ledger_id), *self.ledgers_from(max(ledger_id, view.horizon[0]))]

    def before(self, position: Position, view: View | None = None) -> Position:
        """The mark-delete position of a cursor whose next entry is the one at position, or the first behind it that exists.

        view: where entries up to its horizon are looked for.
        """
        if view is not None and position <= view.horizon:
            return view.before(position)
        if position == EARLIEST or position[0] < self.ledgers[0].ledger_id:
            return self.ledgers[0].ledger_id, -1
        found = self.find(position[0])
        if found is None:
            behind = self.ledgers_from(position[0])[0]
            return (behind.ledger_id, -1) if behind.ledger_id > position[0] else self.last_confirmed
        return found.ledger_id, min(max(position[1] - 1, -1), found.last_entry)

    def before_time(self, publish_time_ms: int, view: View | None = None) -> Position:
        """The mark-delete position of a cursor whose next entry is the first published at that time or later."""
        for found in self.ledgers if view is None else self.with_view(view, 0):
            late = found.column("publish_time")[:found.entries] >= publish_time_ms
            if view is not None and not found.view and found.ledger_id == view.horizon[0]:
                late[:view.horizon[1] + 1] = False
            if late.any():
                return found.ledger_id, int(late.argmax()) - 1
        return self.last_confirmed

    def last_message(self) -> tuple[int, int, int]:
        """(ledger, entry, batch index) of the last message there is; -1 each when there is none."""
        for found in reversed(self.ledgers):
            if found.entries:
                row = found.index[found.last_entry]
                is_batch = int(row["flags"]) & 2
                return found.ledger_id, found.last_entry, int(row["messages"]) - 1 if is_batch else -1
        return -1, -1, -1

    # -- ledgers

    def add_ledger(self, ledger_id: int, now_ms: int, ahead: int = 1 << 62) -> None:
        """Seal the open ledger and go on in a new one, for which so many bytes may be allocated ahead.  Raises StorageFull and changes
        nothing then."""
        extent = 0
        if self.ledgers:
            extent = min(self.open_ledger.allocated, self.open_ledger.size, ahead)    # the next one fills up as fast as this one did
        fresh = ledger.create(self.folder, self.partition_id, ledger_id, first_message=self.next_message, created_ms=now_ms, extent=extent)
        if self.ledgers:
            self.open_ledger.seal()
        self.ledgers.append(fresh)

    @property
    def compacts(self) -> bool:
        """Whether what is not in a compacted view yet is kept for the next."""
        return self.view_number > 0 or self.policies.compaction_threshold > 0

    @property
    def horizon(self) -> Position:
        """The last entry that the compacted view takes the place of."""
        return NOWHERE if self.view is None else self.view.horizon

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
            self.gone.forget(found.ledger_id)
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
        """Nothing more will come."""
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
        """Entries that are lost with their index are nobody's business any more; the owner reports and records that."""
        lost, found.lost = found.lost, []
        entries = np.array(lost, np.int64)
        self.gone.acknowledge(found, entries)
        for subscription in self.subscriptions.values():
            fresh = subscription.cursor.acknowledge(found, entries)
            subscription.cursor.totals[SKIPPED] += int(found.messages[fresh].sum())
        self.losses.append((found, entries))

    # -- subscriptions

    def since(self, position: Position) -> int:
        """Messages of the partition up to and with position."""
        found = self.ledgers_from(position[0])[0]
        if found.ledger_id != position[0] or not found.entries:
            return found.first_message
        return found.first_message + found.messages_in(0, position[1] + 1)

    def add_subscription(self, name: str, cursor: Cursor) -> Subscription:
        subscription = Subscription(name, cursor, self, self.options)
        subscription.rewind()
        self.subscriptions[subscription.key] = subscription
        return subscription

    def new_cursor(self, subscription_id: int, position: Position, *, is_durable: bool) -> Cursor:
        """One whose next entry is the one behind position."""
        cursor = Cursor(subscription_id, position, is_durable=is_durable)
        self.begin(cursor, position)
        return cursor

    def begin(self, cursor: Cursor, position: Position) -> None:
        """The cursor begins anew behind position; what is gone beyond that counts as skipped."""
        position = max(position, self.gone.mark_delete)
        self.begun += 1
        cursor.move(position, self.since(position))
        for found in self.ledgers_from(position[0]):
            if found.ledger_id in self.gone.bitmaps:
                before = cursor.unacknowledged_messages(found, 0, found.entries)
                cursor.bitmaps[found.ledger_id] = self.gone.bitmaps[found.ledger_id].copy()
                cursor.totals[SKIPPED] += before - cursor.unacknowledged_messages(found, 0, found.entries)
        if cursor.bitmaps and position[0] >= self.ledgers[0].ledger_id:
            cursor.advance(self.ledgers_from(position[0]))

    def remove_subscription(self, subscription: Subscription) -> None:
        """This one; another that has its name by now stays."""
        if self.subscriptions.get(subscription.key) is subscription:
            self.gone_out = tuple(map(sum, zip(self.gone_out, subscription.gone_out, strict=False)))
            del self.subscriptions[subscription.key]

    # -- checkpoints

    def checkpoint(self) -> tuple[list[Path], list[Snapshot]]:
        """(files to be synced, snapshots to be written)"""
        if self.is_released:
            return [], []
        return [], [self.file.take(self.state())]

    def state(self) -> State:
        """All else that is durable about it, as it is now."""
        cursors = {s.cursor.subscription_id: s.cursor for s in self.subscriptions.values() if s.is_durable}
        delays = format.NONE_DELAYED if self.schedule is None else format.SCHEDULED
        return State({NOBODY: self.gone, **cursors}, self.sequences, delays=delays)


def _ledger_id(found: Ledger) -> int:
    return found.ledger_id


def op(kind: int, partition_id: int, *, subscription_id: int = 0, ledger_id: int = 0, entry_id: int = 0, value: int = 0) -> tuple:
    """One OP_ROW."""
    return kind, subscription_id, partition_id, ledger_id, entry_id, value


def open_partition(data_dir: Path, partition_id: int, name: TopicName, topic_epoch: int | None, names: dict[str, int],
                   options: StorageOptions, known: tuple[State, StateFile] | None = None) -> Partition:
    """The partition as it lies on disk, with its durable subscriptions {name: id}.  Raises CorruptFile.

    known: its state, when that is not on disk yet.
    """
    folder = format.partition_folder(data_dir, partition_id)
    stored, file = known or (state_file.read(folder, partition_id), StateFile(folder, partition_id))
    partition = Partition(partition_id, name, folder, file, Producers(topic_epoch), options, stored.gone, damage=stored.damage,
                           sequences=stored.sequences)
    ledger.remove_unmade(folder)
    partition.ledgers = [ledger.open_ledger(folder, partition_id, found) for found in ledger.ledger_ids(folder)]
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
        partition.schedule = Schedule(partition, is_strict=options.delayed_delivery_strict)
        partition.schedule.open()
    for text, subscription_id in names.items():
        if subscription_id in stored.cursors:     # else its creation was never answered; whoever asks again has it made anew
            cursor = stored.cursors[subscription_id]
            for found in partition.ledgers:
                if found.ledger_id in stored.gone.bitmaps:
                    cursor.acknowledge(found, _set_bits(stored.gone.bitmaps[found.ledger_id]))
            cursor.forget_acknowledged_parts()
            subscription = partition.add_subscription(text, cursor)
            subscription.advance()
            subscription.rewind()
            if stored.is_uncounted:
                cursor.since = partition.since(cursor.mark_delete)
                cursor.totals[ACKNOWLEDGED] = partition.next_message - cursor.since - cursor.backlog_messages(partition.ledgers)
    return partition


def _has_delayed(partition: Partition) -> bool:
    """Whether any of its entries was ever to wait for its time; who wrote them did not say."""
    return any((found.deliver_at[:found.entries] > found.column("broker_time")[:found.entries]).any()
               for found in partition.ledgers if found.entries)


def _open_view(partition: Partition) -> None:
    """The last compacted view there is holds; where it cannot be used consumers get what the ledgers have."""
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
        found.gone = partition.gone
        if found.is_header_lost and before is not None:
            found.first_message = before.next_message
        partition.damage += found.damage
        found.damage = partition.damage      # also what is found when its index is looked at
