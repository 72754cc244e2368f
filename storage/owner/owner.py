"""An owner: the one process that may write its partitions.  Receive, decide, sync, answer.

`receive` takes in what workers sent; `end_pass` makes all of it durable at once, applies it, and returns the answers.  In
between nothing is answered, so nothing is answered before it is durable.  The order within a pass:

    SENDs   -> plan -> journal, synced -> ledgers -> receipts -> what consumers get now
    acks    -> cursors -> journal, synced -> acknowledgement receipts -> ledgers that nobody needs
    commands are carried out in between, when what came before them has been applied

What a command does stands in commands.py; this file has the tables and the pass.
"""
import contextlib
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName
from geminga.proto.sends import IS_CHUNK, is_encrypted
from geminga.storage import format
from geminga.storage.admin import queries
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.commands import commands
from geminga.storage.cursors import cursor
from geminga.storage.cursors.batch_acks import words as parts_words
from geminga.storage.cursors.pending_acks import NEVER_MS, Entries
from geminga.storage.cursors.producer_sequences import NOWHERE
from geminga.storage.cursors.state_file import StateFile
from geminga.storage.enforcement import rate_limiter
from geminga.storage.enforcement.backlog_quota import Quotas
from geminga.storage.enforcement.closed_partition_scan import Sweep
from geminga.storage.enforcement.delay_policy import Delays
from geminga.storage.enforcement.inactive_topics import Inactive
from geminga.storage.enforcement.message_ttl import Expiry
from geminga.storage.enforcement.publish_gate import Gate
from geminga.storage.enforcement.rate_limiter import Rates
from geminga.storage.enforcement.retention import Retention, disposable
from geminga.storage.enforcement.unacknowledged_limit import Crowding
from geminga.storage.errors import CorruptFile, Interrupted, NotDurable, StorageFull, is_full, text_of
from geminga.storage.ledgers.journal import Journal, put_on_disk, to_put
from geminga.storage.ledgers.journal_reader import Record
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.options import StorageOptions
from geminga.storage.owner.outbox import Outbox
from geminga.storage.owner.partition_timers import Wakes
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.storage.statistics.statistics import Statistics
from geminga.storage.topics import acknowledge, publish_plan
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition, op, open_partition
from geminga.storage.topics.producers import Producer
from geminga.storage.topics.subscription import Consumer, Subscription
from geminga.storage.upkeep.backup_snapshot import Snapshots
from geminga.storage.upkeep.compacted_views import Views
from geminga.storage.upkeep.delayed_scheduler import Schedules
from geminga.storage.upkeep.discovery import Discovery
from geminga.storage.upkeep.disk_space import Space
from geminga.storage.upkeep.hole_punching import Puncher
from geminga.storage.upkeep.memory_pressure import Memory
from geminga.storage.upkeep.missing_files import Missing

if TYPE_CHECKING:
    from geminga.storage.owner.recovery import Recovery

TICK_MS = 1_000             # how often ages are looked at
_OUTSTANDING_MS = 100       # between counts of what is out, while it is being drained
_OPS_SIZE_MAX = 10_000 * format.OP.size      # of a record of the journal: the smallest segment that may be configured has room for so many
ACK_SYNC_MS = 10            # an acknowledgement that nobody waits for is synced with the next answer, or after this
_UNUSED_MIN = 1 << 20       # bytes that a ledger was allocated ahead, and gives back where there is little room
_NO_ROOM_SECONDS = 0.1      # between attempts to write what has to be, when the reserve is used up
_MINUTE_MS = 60_000
_READER_MS = 60_000         # what a reader that never comes back after a seek leaves is kept so long
_ACTIVE_CONSUMER_SINCE, _END_OF_TOPIC_SINCE = 12, 9     # versions of the protocol


@dataclass(eq=False, slots=True)
class Session:
    """What one client connection has here."""

    worker: int
    connection: int
    protocol_version: int
    address: str = ""                  # of the client, and what it says of itself: the worker tells
    client_version: str = ""
    supports_partial_producer: bool = False
    producers: dict[int, Producer] = field(default_factory=dict)     # by the client's id
    consumers: dict[int, Consumer] = field(default_factory=dict)
    waiting: dict[tuple[int, int], object] = field(default_factory=dict)     # what of its commands waits: (type, id) -> for what
    is_over: bool = False              # one of its commands failed: what still comes of it is left out until its worker has ended it


class Owner:
    """The tables of one owner and what a pass does to them."""

    def __init__(self, data_dir: Path, options: StorageOptions, catalogue: Catalogue, journal: Journal, counters: Counters, now_ms: int,
                 recovery: "Recovery | None" = None, is_mine: Callable[[str], bool] = lambda name: True):
        """is_mine: whether the partition of that name is this owner's."""
        self.data_dir, self.catalogue, self.journal, self.counters = data_dir, catalogue, journal, counters
        self._configured = options                                # what holds where nothing was changed since
        self.options = catalogue.with_changes(options)
        self.began_ms = self.now_ms = now_ms
        self._recovery = recovery                                 # knows what partitions' files do not say yet
        self.by_name: dict[TopicName, Partition] = {}
        self.sessions: dict[tuple[int, int], Session] = {}
        self.producers: dict[int, Producer] = {}                  # by handle
        self.consumers: dict[int, Consumer] = {}
        self.discovery = Discovery(catalogue, options.discovery_grace_s * 1000)
        self.live: dict[TopicName, NonPersistentTopic] = {}                # topics that keep nothing
        self.live_producers: dict[int, Producer] = {}             # theirs, by handle
        self.expiry, self.quotas, self.retention, self.puncher = Expiry(self), Quotas(self), Retention(self), Puncher(self)
        self.inactive, self.views, self.schedules = Inactive(self), Views(self), Schedules(self)
        self.snapshots = Snapshots(self, recovery)                # what backups are told
        self._is_mine = is_mine
        self.sweep = Sweep(self, is_mine)                         # of partitions that are not open
        self.missing = Missing(self)                              # whose files somebody removed
        self.space = Space(journal.folder, options, counters)
        journal.spare = self.space.spare
        self.memory = Memory(counters)
        self.gate = Gate(self, self.space, self.memory, self.quotas)     # what keeps producers out
        self.delays = Delays(self)                                # what they may ask for
        self.rates = Rates(self)                                  # what slows them, and consumers, down
        self.crowding = Crowding(self)                            # ... as long as the broker's consumers have too much
        self.statistics = Statistics(self, options.stats_window_s)
        # Commands that wait until a connection is known to be alive or dead: (session, type, id) -> each.
        self.parked: dict[tuple[int, int], dict[tuple[Session, int, int], api.BaseCommand]] = {}
        self.ops: list[bytes] = []                                # of this pass, not yet in the journal
        self.many_ops: list[NDArray] = []
        self.counted: dict[tuple[Subscription, int], None] = {}   # (subscription, reason): totals that have changed in this pass
        self._began = time.perf_counter()                         # the pass
        self._last_closed_ledger = catalogue.last_closed_ledger()
        self._next_handle = 1
        self._next_slot = -1
        self._sends: list[tuple[int, NDArray, memoryview]] = []
        self.strict: dict[Partition | NonPersistentTopic, None] = {}       # topics that do not take every message
        self._send_errors: dict[int, list[tuple[int, int, int, bytes]]] = {}     # by worker, of what is being published
        self._acks: list[NDArray] = []
        self._parts: list[tuple[NDArray, memoryview]] = []        # those of them that are about parts of batches, and their words
        self._outboxes: dict[int, Outbox] = {}
        self._taken: dict[int, int] = {}                          # bytes of entries and what commands count for, taken from each worker
        self._to_dispatch: dict[Partition, None] = {}
        self._to_trim: dict[Partition, None] = {}
        self.expected_readers: dict[Subscription, int] = {}       # since when those that sought are to come back
        self._system: set[Partition] = set()                      # topics that brokers use among themselves
        self._recent: set[Partition] = set()                      # written to since they were last found idle
        self._wakes = Wakes()                                     # when something is to be given out although nothing comes
        self._must_sync = False
        self._unsynced_since: int | None = None
        self._next_tick_ms = now_ms + TICK_MS
        self._complaints: set[str] = set()                        # about files, said once
        self.unreadable: set[tuple[Partition, cursor.Position]] = set()      # entries that clients could not read, of the last minute
        self._unreadable_since_ms = now_ms
        self.sign_of_life: Callable[[], None] = lambda: None      # between commands, of which a pass may have many
        self._outstanding_due_ms: int | None = None               # when what is out is counted again, while it is being drained

    # -- what commands.py works with

    def has(self, session: Session) -> bool:
        """Whether its connection is still there."""
        return not session.is_over and self.sessions.get((session.worker, session.connection)) is session

    def new_handle(self) -> int:
        self._next_handle += 1
        return self._next_handle

    def outbox(self, worker: int) -> Outbox:
        if worker not in self._outboxes:
            self._outboxes[worker] = Outbox()
        return self._outboxes[worker]

    def note(self, partition: Partition, op_row: tuple) -> None:
        """This op is part of what this pass decided."""
        self.statistics.changed[partition] = None
        self.ops.append(format.OP.pack(*op_row))
        self.journal.touched(partition)

    def note_in_order(self, partition: Partition, ops: NDArray) -> None:
        """These ops (n,) OP_ROW are, behind those that were noted before."""
        self.ops.append(ops.tobytes())
        self.journal.touched(partition)

    def note_many(self, partition: Partition, ops: NDArray) -> None:
        """These ops (n,) OP_ROW are; among the ops of a pass their order does not matter."""
        self.many_ops.append(ops)
        self.journal.touched(partition)

    def count(self, subscription: Subscription, reason: int, messages: int) -> None:
        """So many messages of the subscription do not have to be delivered any more, for that reason."""
        subscription.cursor.totals[reason] += messages
        if subscription.is_durable:
            self.counted[subscription, reason] = None

    def answer_needs_sync(self) -> None:
        self._must_sync = True

    def commit(self) -> None:
        """What was decided so far is durable: files that say something else may be removed."""
        self._must_sync = True
        self._commit(None)

    def wake(self, partition: Partition) -> None:
        """Its consumers may be able to get something."""
        self._to_dispatch[partition] = None

    def wake_trimming(self, partition: Partition) -> None:
        """Some of its ledgers may not be needed any more."""
        self._to_trim[partition] = None

    def partition(self, name: TopicName) -> Partition | None:
        """The partition of that name, opened when it is stored; None when nothing is.  Raises CorruptFile, StorageFull, Refusal."""
        found = self.by_name.get(name)
        if found is None:
            self.refuse_foreign(name)
        if found is None and (stored := self.catalogue.partition(name)) is not None:
            try:
                with self.counters.timed("load"):
                    return self._load(name, *stored)
            except (CorruptFile, StorageFull, OSError):
                self.counters.add("loads_failed")
                raise
        return found

    def refuse_foreign(self, name: TopicName) -> None:
        """Two owners that write one partition overwrite what the other has stored.  Raises Refusal for a topic of another owner."""
        if not self._is_mine(str(name)):
            raise Refusal(api.ServiceNotReady, f"Topic {name} is not served here; look it up again")

    def _load(self, name: TopicName, partition_id: int, topic_epoch: int | None) -> Partition:
        names = self.catalogue.subscriptions(partition_id)
        known = self._recovery.state_of(partition_id) if self._recovery else None
        found = open_partition(self.data_dir, partition_id, name, topic_epoch, names, self.options, known)
        if self._recovery:
            self._recovery.opened(found)
        found.sequences.begin(self.now_ms)
        found.is_terminated = self.catalogue.is_terminated(partition_id)
        properties = self.catalogue.subscriptions_properties(partition_id)
        for subscription in found.subscriptions.values() if properties else ():
            subscription.properties = properties.get(subscription.cursor.subscription_id, {})
        replicated = self.catalogue.replicated_subscriptions(partition_id)
        for subscription in found.subscriptions.values() if replicated else ():
            subscription.is_replicated = subscription.cursor.subscription_id in replicated
        self._adopt(found)
        return found

    def create_partition(self, name: TopicName) -> Partition:
        """A new, empty partition.  Raises StorageFull, Refusal."""
        self.refuse_foreign(name)
        with self.counters.timed("load"):
            found = open_partition(self.data_dir, self.catalogue.create_partition(name), name, None, {}, self.options)
            self._adopt(found)
        return found

    def release(self, partition: Partition) -> None:
        """Give up a partition that nobody uses; what is not in its files yet is written.  Raises StorageFull, NotDurable."""
        self.commit()
        self._put_on_disk({partition, partition.open_ledger})
        self.snapshots.released(partition)
        self._forget(partition)

    def delete(self, name: TopicName) -> None:
        """Nothing is left of the partition of that name, in memory or on disk; who used it has been told to go.

        The journal is told before the catalogue: a start that finds it there does what of this is missing.  Raises StorageFull, NotDurable.
        """
        found, stored = self.by_name.get(name), self.catalogue.partition(name)
        self.commit()
        try:
            if stored is None:      # nobody has ever used it
                return self.catalogue.delete_topic(name)
            partition_id = stored[0]
            self.catalogue.delete_partition(partition_id)
        except StorageFull:
            self.catalogue.undo()
            raise
        self._append(Record(b"", b"", b"", format.OP.pack(*op(format.PARTITION_DELETED, partition_id)), [], 0))
        self.journal.sync()
        self.catalogue.commit()
        if found is not None:
            self._forget(found)
            for ledger in found.ledgers:
                ledger.is_unlinked = True
        known = self._recovery and self._recovery.delete(partition_id)
        file = found.file if found is not None else known or StateFile(format.partition_folder(self.data_dir, partition_id), partition_id)
        file.remove()
        self.journal.touched(file)
        log.info("a topic was deleted", topic=name)

    def _forget(self, partition: Partition) -> None:
        partition.is_released = True
        del self.by_name[partition.name]
        self._system.discard(partition)
        for watcher in (self.expiry, self.quotas, self.retention, self.puncher, self.inactive, self.views, self.schedules, self.rates,
                        self.gate, self.statistics):
            watcher.release(partition)
        self.strict.pop(partition, None)
        self.delays.release(partition)
        self._recent.discard(partition)
        for waiting in (self._to_dispatch, self._to_trim):
            waiting.pop(partition, None)
        self._wakes.put(partition, NEVER_MS)
        for ledger in partition.ledgers:
            ledger.is_released = True
            ledger.close()
            for worker in {worker for worker, _ in self.sessions}:
                self.outbox(worker).forget(ledger.ledger_id)
        self.counters.add("partitions_open", -1)

    def _adopt(self, partition: Partition) -> None:
        if not partition.ledgers:
            self._add_ledger(partition)
            self._must_sync = True
        elif not partition.open_ledger.entries:      # perhaps of a process that was killed before the journal knew
            self._note_opened(partition)
        if partition.horizon > partition.last_confirmed:      # entries were lost that a compacted view has: what comes lies behind it
            self._add_ledger(partition)
        self._next_slot += 1
        partition.slot = self._next_slot
        self.by_name[partition.name] = partition
        if names.is_system(str(partition.name)):
            self._system.add(partition)
        self.snapshots.opened(partition)
        self.apply_policies(partition)
        self.counters.add("partitions_open")
        self.statistics.changed[partition] = None
        self._deal_with_damage(partition)

    def can_be_configured(self, options: StorageOptions) -> bool:
        """Whether it can go by these; else its successor will: the segments that there are have the size that they have."""
        return options.journal_segment_bytes == self._configured.journal_segment_bytes

    def configure(self, options: StorageOptions) -> None:
        """These hold from here on; what was changed of them in the catalogue stays stronger."""
        self._configured = options
        self.discovery.grace_ms = options.discovery_grace_s * 1000
        self.space.configure(options)
        self.statistics.configure(options.stats_window_s)
        self.journal.segments_max = options.journal_segments_max
        self.apply_options()

    def apply_options(self) -> None:
        """What is changed of them in the catalogue holds from here on."""
        self.options = self.catalogue.with_changes(self._configured)
        self.rates.configure()
        for partition in [*self.by_name.values(), *self.live.values()]:
            partition.options = self.options
            for subscription in partition.subscriptions.values():
                subscription.options = self.options
            self.apply_policies(partition)
        self.sweep.begin()

    def apply_policies(self, partition: Partition | NonPersistentTopic) -> None:
        """What is set for it in the catalogue holds from here on."""
        policies = policies_of(self.catalogue, partition.name, self.options)
        partition.bind(policies)
        self.statistics.changed[partition] = None
        self.rates.watch(partition)
        if policies.max_message_size or policies.encryption_required:
            self.strict[partition] = None
        else:
            self.strict.pop(partition, None)
        if policies.encryption_required:
            commands.dismiss_open_text(self, partition)
        for subscription in partition.attached:
            subscription.dispatcher.bounds_changed()
            self.wake(partition)
        if not partition.is_persistent:
            return
        for watcher in (self.expiry, self.quotas, self.retention, self.puncher, self.inactive, self.schedules):
            watcher.watch(partition)
        self.delays.watch(partition)
        if policies.migrated_to:
            self._migrate(partition)

    def _migrate(self, partition: Partition) -> None:
        """Its producers have gone to the other cluster; consumers follow when they have acknowledged what there is."""
        self.publish_held(partition)
        for producer in partition.producers.expel_all():
            commands.expel_producer(self, producer)
        self.wake(partition)

    # -- a pass

    def begin_pass(self, now_ms: int) -> None:
        if now_ms < self.now_ms:      # the clock was put back: nothing may wait until it shows again what it has shown
            self._next_tick_ms = min(self._next_tick_ms, now_ms + TICK_MS)
            if self._unsynced_since is not None:
                self._unsynced_since = min(self._unsynced_since, now_ms)
            if self._outstanding_due_ms is not None:
                self._outstanding_due_ms = min(self._outstanding_due_ms, now_ms)
        self.now_ms, self._began = now_ms, time.perf_counter()

    def receive(self, worker: int, sections: list[tuple[int, NDArray, memoryview]]) -> None:
        for kind, rows, data in sections:
            if kind == envelope.SENDS:
                self._sends.append((worker, rows, data))
                self._taken[worker] = self._taken.get(worker, 0) + len(data)
                self.outbox(worker)
            elif kind == envelope.ACKS:
                self._acks.append(rows)
                if len(data):
                    self._parts.append((rows, data))
            elif kind == envelope.FLOWS:
                self._grant(rows)
            elif kind == envelope.COMMANDS:
                self._apply_data()
                self._taken[worker] = self._taken.get(worker, 0) + envelope.COMMAND_COST * len(rows) + len(data)
                self.outbox(worker)
                self._carry_out(worker, rows, data)
            else:
                self._apply_data()
                self._answer(worker, rows, data)

    def end_pass(self) -> list[tuple[int, list]]:
        """Everything received is durable and applied; returns [(worker, envelope)]."""
        self._apply_data()
        if self.now_ms >= self._next_tick_ms:
            self._tick()
        self.gate.look(self.now_ms)
        self.trim()
        self._commit(None)
        if self.schedules.is_busy:
            self.schedules.work(self.now_ms)
        for partition in self._wakes.take(self.now_ms):
            self._to_dispatch[partition] = None
        if self._outstanding_due_ms is not None:
            self._to_dispatch = {}
            self._count_outstanding()
        if self._to_dispatch:
            began = time.perf_counter()
            for partition in self.rates.in_turn(self._to_dispatch):
                self._dispatch(partition)
            self.counters.observe("dispatch", time.perf_counter() - began)
            self.statistics.changed.update(self._to_dispatch)
            self._to_dispatch = {}
        out = [(worker, outbox.seal(self._taken.get(worker, 0))) for worker, outbox in self._outboxes.items()]
        self._outboxes = {}
        return out

    def next_deadline_ms(self) -> int:
        """When the next pass is due although nothing came."""
        due_ms = self.now_ms if self.schedules.is_busy else min(self._next_tick_ms, self._wakes.next_ms, self.rates.due_ms)
        if self._outstanding_due_ms is not None:
            due_ms = min(due_ms, self._outstanding_due_ms)
        if self._unsynced_since is not None:
            wait = ACK_SYNC_MS if self.options.sync == "group" else self.options.sync_interval_ms
            return min(due_ms, self._unsynced_since + wait)
        return due_ms

    def drain(self) -> None:
        """Nothing is given out any more; acknowledgements are taken, and it is counted how much is out."""
        self._outstanding_due_ms = self.now_ms
        self._count_outstanding()

    def _count_outstanding(self) -> None:
        """Messages that consumers of durable subscriptions have, and may still acknowledge."""
        if self.now_ms >= self._outstanding_due_ms:
            self._outstanding_due_ms = self.now_ms + _OUTSTANDING_MS
            self.counters.set("outstanding", sum(
                commands.held_messages(consumer) for partition in self.by_name.values() for subscription in partition.attached
                if subscription.is_durable for consumer in subscription.consumers))

    def worker_gone(self, worker: int) -> None:
        """The worker's process ended: all its connections did."""
        for key in [key for key in self.sessions if key[0] == worker]:
            session = self.sessions[key]
            try:
                commands.end_session(self, session, by_client=False)
            except NotDurable:
                raise
            except Exception:
                self._failed(session)
                self.sessions.pop(key, None)
            self.sign_of_life()
        self.discovery.worker_gone(worker)
        self._outboxes.pop(worker, None)
        self._taken.pop(worker, None)

    def close(self) -> None:
        """Everything is on disk, and nothing is left to replay.  Raises NotDurable."""
        self._apply_data()
        self._commit(None)
        while self.space.is_full and self.space.give_up():
            pass
        self.schedules.close()
        self.journal.close()
        self.catalogue.close()

    def _apply_data(self) -> None:
        if self._parts:
            self._acknowledge_parts()
        if self._acks:
            self._acknowledge()
        if self._sends or self.rates.due_ms <= self.now_ms:
            sends, self._sends = self._sends, []
            for part in self.rates.admit(sends) if self.rates.is_possible else [sends]:
                self._publish(part)

    def publish_held(self, topic: Partition | NonPersistentTopic) -> None:
        """What a rate holds back of it is published now: something that came behind it must not overtake it."""
        for part in self.rates.take_all(topic):
            self._publish(part)

    # -- publishing

    def _publish(self, sends: publish_plan.Sends) -> None:
        if self.strict:
            sends = [rest for one in sends if len((rest := self._leave_out(*one))[1])]
        if self.live_producers:
            sends = [rest for one in sends if len((rest := self._pass_on(*one))[1])]
        if self.gate.is_watched:
            self._send_away(sends)
        if self.delays.watched:
            sends = self.delays.enforce(sends)
        planned = publish_plan.plan(sends, self._producer_of, self._room, self.now_ms)
        if planned.refused:
            self._refuse(planned.refused)
        self.counters.add("entries_duplicate", planned.duplicates)
        if planned.groups:
            self._store(planned)
        errors, self._send_errors = self._send_errors, {}
        for worker, rows in planned.receipts:
            if worker in errors:
                self.outbox(worker).receipts_and_errors(rows, errors.pop(worker))
            else:
                self.outbox(worker).receipts(rows)
        for worker, left in errors.items():
            self.outbox(worker).receipts_and_errors(b"", left)

    def _store(self, planned: publish_plan.Plan) -> None:
        stale = [group.partition for group in planned.groups if not group.partition.deduplicates and group.partition.sequences]
        for partition in stale:
            self.note(partition, op(format.SEQUENCES_FORGOTTEN, partition.partition_id))
        if planned.latest_ms > self.now_ms:
            self._begin_schedules(planned)
        self._must_sync = True
        began = time.perf_counter()
        self._commit(planned)
        ended = time.perf_counter()
        self.counters.observe("publish", ended - self._began, sum(group.count for group in planned.groups))
        self.statistics.stored(planned, ended - self._began, ended - began)
        self._count(planned.groups)
        if self.rates.is_relative:
            rate_limiter.published(planned.groups, self.now_ms)
        publish_plan.apply(planned, self.now_ms)
        for partition in stale:
            partition.sequences.clear()
        for group in planned.groups:
            self.journal.touched(group.ledger)
            if (schedule := group.partition.schedule) is not None and (planned.latest_ms or schedule.limit is not None):
                schedule.published(group.ledger, group.ledger.entries - group.count, publish_plan.deliver_at(planned, group), self.now_ms)
                self.schedules.look(group.partition)
            self._to_dispatch[group.partition] = None
            self._recent.add(group.partition)
            if self.quotas.is_possible:
                self.quotas.published(group.partition)
            if group.partition.deduplicates or group.partition in stale:
                self.journal.touched(group.partition)      # again, for the record may have begun a segment

    def _begin_schedules(self, planned: publish_plan.Plan) -> None:
        """Partitions of which entries wait for the first time have a schedule from now on, also after a crash."""
        for group in planned.groups:
            partition = group.partition
            if partition.schedule is None and (publish_plan.deliver_at(planned, group) > self.now_ms).any():
                self.note(partition, op(format.DELAYED, partition.partition_id))
                partition.begin_schedule(is_strict=self.options.delayed_delivery_strict)
                self.schedules.watch(partition)

    def _refuse(self, refused: list[tuple[int, int, int, int, str]]) -> None:
        """Clients try again: at once, unless their producers have to come back for it."""
        for worker, connection, producer_id, sequence_id, why in refused:
            if not self.space.is_full:
                self.outbox(worker).reply(connection, responses.send_error(producer_id, sequence_id, api.PersistenceError, why))
            elif (producer := self.sessions[worker, connection].producers.get(producer_id)) is not None:
                commands.dismiss_producers(self, producer.partition)
        for worker, connection, producer_id in dict.fromkeys(one[:3] for one in refused):
            commands.dismiss_refused(self, self.sessions[worker, connection], producer_id)

    def _send_away(self, sends: publish_plan.Sends) -> None:
        """Where something is in the way, producers are to come back; what they have sent is left out then, and sent again."""
        producers = {self._producer_of(handle) for _, rows, _ in sends for handle in set(rows["producer"].tolist())}
        for partition in {producer.partition for producer in producers if producer is not None}:
            if self.gate.barrier(partition) is not None:
                commands.dismiss_producers(self, partition)

    def _leave_out(self, worker: int, rows: NDArray, data: memoryview) -> tuple[int, NDArray, memoryview]:
        """Refuse what is larger than its topic takes, where parts of chunked messages are as large as they are, and what is not
        encrypted where it must be.  Returns the rest."""
        refused = np.zeros(len(rows), bool)
        for handle in set(rows["producer"].tolist()):
            producer = self._producer_of(handle)
            if producer is None or producer.partition not in self.strict:
                continue
            policies, mine = producer.partition.policies, rows["producer"] == handle
            if policies.max_message_size:
                is_large = mine & (rows["size"] > policies.max_message_size) & (rows["flags"] & IS_CHUNK == 0)
                self.refuse_sends(worker, rows[is_large], api.NotAllowedError, "Exceed maximum message size")
                refused |= is_large
            if policies.encryption_required:
                is_open = np.zeros(len(rows), bool)
                for at in np.flatnonzero(mine & ~refused).tolist():
                    offset, size = int(rows["offset"][at]), int(rows["size"][at])
                    is_open[at] = not is_encrypted(data[offset:offset + size])
                self.refuse_sends(worker, rows[is_open], api.MetadataError, "Messages must be encrypted")
                refused |= is_open
        return (worker, rows[~refused], data) if refused.any() else (worker, rows, data)

    def refuse_sends(self, worker: int, rows: NDArray, code: int, text: str) -> None:
        """Of those that are being published: their producers are told, each in its turn."""
        self._send_errors.setdefault(worker, []).extend([
            (connection, producer_id, sequence_id, responses.send_error(producer_id, sequence_id, code, text))
            for connection, producer_id, sequence_id in rows[["connection", "producer_id", "sequence_id"]].tolist()])

    def _pass_on(self, worker: int, rows: NDArray, data: memoryview) -> tuple[int, NDArray, memoryview]:
        """Deal with what was published to topics that keep nothing; returns the rest."""
        is_live = np.isin(rows["producer"], np.fromiter(self.live_producers, np.uint64))
        is_above = self._above_connection_bound(rows, is_live)
        for handle in np.unique(rows["producer"][is_live]).tolist():
            is_mine = rows["producer"] == handle
            mine = rows[is_mine & ~is_above]
            producer = self.live_producers[handle]
            if not producer.is_ready:
                continue
            topic = producer.partition
            self.statistics.changed[topic] = None
            above = rows[is_mine & is_above]
            if not len(mine):
                self._drop(worker, producer, above)
                continue
            entries = np.zeros(len(mine), envelope.ENTRY)
            entries["entry_id"] = np.arange(topic.published, topic.published + len(mine))
            entries["size"], entries["messages"] = mine["size"], mine["messages"]
            receipts = np.zeros(len(mine), RECEIPT_ROW)
            for name in ("connection", "producer_id", "sequence_id", "highest_sequence_id"):
                receipts[name] = mine[name]
            receipts["worker"], receipts["entry_id"] = worker, entries["entry_id"]
            self.outbox(worker).receipts(receipts)
            messages, size = int(mine["messages"].sum()), int(mine["size"].sum())
            for counted in (producer, topic):
                counted.messages_in += messages
                counted.bytes_in += size
            self._drop(worker, producer, above)
            before = topic.dropped
            topic.now_ms = self.now_ms
            for consumer, _, chosen in topic.pass_on(mine, self.rates.next_batches):
                some = mine[chosen.start:chosen.stop] if isinstance(chosen, range) else mine[chosen]
                pieces = [data[at:at + size] for at, size in zip(some["offset"].tolist(), some["size"].tolist(), strict=True)]
                self.outbox(consumer.worker).passed(consumer, entries[np.asarray(chosen)], b"".join(pieces))
                self._count_out(consumer, len(chosen), int(some["size"].sum()))
            self.counters.add("entries_dropped", topic.dropped - before)
            self.counters.add("entries_in", len(mine))
            self.counters.add("messages_in", messages)
            self.counters.add("bytes_in", size)
        return worker, rows[~is_live], data

    def _above_connection_bound(self, rows: NDArray, is_live: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Rows to drop, because their connection has more under way than it may."""
        is_above, most = np.zeros(len(rows), bool), self.options.max_live_messages_per_connection
        for connection in np.unique(rows["connection"][is_live]).tolist() if most else ():
            is_above[np.flatnonzero(is_live & (rows["connection"] == connection))[most:]] = True
        return is_above

    def _drop(self, worker: int, producer: Producer, rows: NDArray) -> None:
        """Answer SENDs that go to nobody: their receipts have no place."""
        if not len(rows):
            return
        receipts = np.zeros(len(rows), RECEIPT_ROW)
        for name in ("connection", "producer_id", "sequence_id", "highest_sequence_id"):
            receipts[name] = rows[name]
        receipts["worker"] = worker
        receipts["ledger_id"] = receipts["entry_id"] = NOWHERE
        self.outbox(worker).receipts(receipts)
        producer.dropped += int(rows["messages"].sum())
        self.counters.add("entries_dropped", len(rows))

    def _count(self, groups: list[publish_plan.Group]) -> None:
        self.counters.add("entries_in", sum(group.count for group in groups))
        self.counters.add("messages_in", sum(group.next_message - group.partition.next_message for group in groups))
        self.counters.add("bytes_in", sum(group.size - group.ledger.size for group in groups))
        if self._system:
            self.counters.add("system_bytes_in", sum(group.size - group.ledger.size for group in groups if group.partition in self._system))

    def _count_out(self, consumer: Consumer, entries: int, size: int) -> None:
        self.counters.add("entries_out", entries)
        self.counters.add("bytes_out", size)
        consumer.entries_out += entries
        consumer.bytes_out += size
        consumer.consumed_ms = self.now_ms

    def _producer_of(self, handle: int) -> Producer | None:
        producer = self.producers.get(handle)
        return producer if producer is not None and producer.is_ready else None

    def _room(self, partition: Partition, count: int, size: int) -> Ledger:
        """The partition's open ledger, with room for so much; a new one when the old one is full or old."""
        ledger, options = partition.open_ledger, self.options
        is_full = ledger.size + size > options.roll_over_bytes or ledger.entries + count > options.roll_over_entries or \
            self.now_ms - ledger.created_ms > options.roll_over_age_s * 1000
        if (is_full and ledger.entries) or ledger.ledger_id <= self._last_closed_ledger:
            self.roll(partition)
            ledger = partition.open_ledger
        if not ledger.has_room(count, size):
            self.space.look()
            self.space.check()
            ledger.reserve(count, size, min(self.space.ahead, max(0, options.roll_over_bytes - ledger.allocated)))
        return ledger

    def _add_ledger(self, partition: Partition, *, is_idle: bool = False) -> None:
        """is_idle: nothing says that it will fill up soon.  Raises StorageFull."""
        self.space.look()
        partition.add_ledger(self.catalogue.next_ledger_id(), self.now_ms, 0 if is_idle else self.space.ahead)
        self.snapshots.ledger_added(partition)
        self._note_opened(partition)

    def _note_opened(self, partition: Partition) -> None:
        """The open ledger is there after a crash: the journal says so, and before it forgets that the files are synced."""
        opened = partition.open_ledger
        self.note(partition, op(format.LEDGER_OPENED, partition.partition_id, ledger_id=opened.ledger_id, entry_id=opened.created_ms,
                                value=opened.first_message))
        self.journal.touched(opened)

    def roll(self, partition: Partition, *, is_idle: bool = False) -> None:
        """Go on in a new ledger.  Raises StorageFull."""
        self._add_ledger(partition, is_idle=is_idle)
        self._to_trim[partition] = None
        self.puncher.watch(partition)
        log.debug("a new ledger was begun", topic=partition.name, ledger=partition.open_ledger.ledger_id)

    # -- consuming

    def _grant(self, rows: NDArray) -> None:
        for handle, permits in zip(rows["consumer"].tolist(), rows["permits"].tolist(), strict=True):
            if (consumer := self.consumers.get(handle)) is not None:
                consumer.grant(permits)
                consumer.flow_ms = self.now_ms
                self._to_dispatch[consumer.subscription.partition] = None

    def _acknowledge(self) -> None:
        rows, self._acks = self._acks[0] if len(self._acks) == 1 else np.concatenate(self._acks), []
        began = time.perf_counter()
        acknowledge.acknowledge(self, acknowledge.acks_by_consumer(rows))
        self.counters.observe("acknowledge", time.perf_counter() - began)

    def _acknowledge_parts(self) -> None:
        found, self._parts = self._parts, []
        for rows, data in found if self.options.batch_index_acknowledgement else ():
            at = 0
            for handle, ledger_id, entry_id, _, flags, count in rows[rows["words"] > 0].tolist():
                words, at = data[at:at + 8 * count], at + 8 * count
                consumer = self.consumers.get(handle)
                if consumer is not None and not (flags & envelope.CUMULATIVE and consumer.subscription.is_spread):
                    acknowledge.acknowledge_part(self, consumer, (ledger_id, entry_id), words)

    def _dispatch(self, partition: Partition) -> None:
        partition.now_ms = self.now_ms
        schedule, has_rates = partition.schedule, partition.rate_limits is not None
        if schedule is not None:
            self.schedules.advance(partition, self.now_ms)
        is_stored, moves, moved = partition.is_persistent, bool(partition.policies.migrated_to), []
        for subscription in rate_limiter.in_turn(partition) if has_rates else partition.attached:
            for consumer, is_active in subscription.dispatcher.news():
                self._tell_active(consumer, is_active)
            view, began = subscription.view, subscription.read
            if view is not None and began > view.horizon:      # it has all of that before it
                view = None
            ledgers = partition.ledgers_from(began[0]) if view is None else subscription.ledgers_from(began[0])
            for consumer, ledger, entries in \
                    self.rates.next_batches(subscription, ledgers) if has_rates else subscription.dispatcher.next_batches(ledgers):
                self._deliver(subscription, consumer, ledger, entries)
            if view is not None:
                acknowledge.pass_over(self, subscription, began)
            if moves and subscription.has_moved:
                moved.append(subscription)
            elif is_stored and partition.is_terminated and subscription.cursor.mark_delete >= partition.last_confirmed:
                self._tell_end(subscription)
        for subscription in moved:
            commands.expel_consumers(self, subscription)
        if is_stored and (partition.damage or partition.losses):
            self._deal_with_damage(partition)
        is_awaited = schedule is not None and any(subscription.is_spread for subscription in partition.attached)
        due_ms = schedule.next_ms() if is_awaited else NEVER_MS
        if has_rates:
            due_ms = min(due_ms, rate_limiter.due_ms(partition))
        self._wakes.put(partition, due_ms)

    def _deal_with_damage(self, partition: Partition) -> None:
        """What was found of it is reported; entries that are lost are skipped by every subscription, which the journal is told."""
        for text in partition.damage:
            self.report_damage(text)
            self.journal.touched(partition)      # a damaged copy of its state is replaced
        partition.damage.clear()
        losses, partition.losses = partition.losses, []
        for ledger, lost in losses:
            self.counters.add("entries_lost", len(lost))
            for subscription_id in (cursor.NOBODY, *(s.cursor.subscription_id for s in partition.subscriptions.values() if s.is_durable)):
                self.note_many(partition, acknowledge.runs_of(
                    format.ACKNOWLEDGED, partition.partition_id, subscription_id, ledger.ledger_id, lost))
            for subscription in partition.subscriptions.values():
                self.count(subscription, cursor.SKIPPED, 0)

    def report_damage(self, text: str, *, code: str = "G120") -> None:
        """A line for the operator, and a number for whoever watches."""
        self.counters.add("damage_found")
        self.complain(text, code=code)

    def _deliver(self, subscription: Subscription, consumer: Consumer, ledger: Ledger, entries: Entries) -> None:
        outbox, ledger_id = self.outbox(consumer.worker), ledger.ledger_id
        self._count_out(consumer, len(entries), ledger.bytes_of(entries))
        if subscription.partition.chunks_in:
            flags = ledger.column("flags")
            some = flags[entries.start:entries.stop] if isinstance(entries, range) else flags[entries]
            consumer.chunks_out += int(np.count_nonzero(some & IS_CHUNK))
        redeliveries = subscription.cursor.redeliveries.of(ledger_id, entries)
        parts = subscription.parts_of(ledger_id, entries)
        if ledger.view:
            parts = subscription.parts_of_view(ledger, entries, parts)
        first, count = int(entries[0]), len(entries)
        if redeliveries is None and not parts and not ledger.view and int(entries[-1]) - first + 1 == count:
            return outbox.run(consumer, subscription.partition.partition_id, ledger_id, first, count)
        picked, words = np.zeros(count, envelope.PICKED), []
        picked["entry_id"] = entries
        if redeliveries is not None:
            picked["redeliveries"] = redeliveries
        for at, bits in parts:
            found = parts_words(bits)
            picked["words"][at] = len(found)
            words.append(found)
        outbox.picks(consumer, subscription.partition.partition_id, ledger_id, picked, b"".join(words), ledger.view)

    def _tell_end(self, subscription: Subscription) -> None:
        """Everything is acknowledged, and nothing will come."""
        for consumer in subscription.consumers:
            if not consumer.is_told_end and consumer.protocol_version >= _END_OF_TOPIC_SINCE:
                consumer.is_told_end = True
                self.outbox(consumer.worker).reply(consumer.connection, responses.reached_end_of_topic(consumer.consumer_id))

    def _tell_active(self, consumer: Consumer, is_active: bool) -> None:
        if consumer.protocol_version >= _ACTIVE_CONSUMER_SINCE:
            self.outbox(consumer.worker).reply(consumer.connection, responses.active_consumer_change(consumer.consumer_id, is_active))

    # -- durability

    def _commit(self, planned: publish_plan.Plan | None) -> None:
        """Put what was decided into the journal, and sync if anybody is about to be told.  Raises NotDurable, Interrupted."""
        try:
            self._commit_all(planned)
        except (StorageFull, NotDurable, OSError):
            raise
        except Exception as error:      # perhaps on behalf of one command, which must not take it for its own failure
            raise Interrupted("a commit") from error

    def _commit_all(self, planned: publish_plan.Plan | None) -> None:
        if self.catalogue.is_changing:
            self.space.look()
        self.catalogue.commit()
        if planned is None and not (self.ops or self.many_ops or self.counted):
            return self._sync_when_due()
        totals = [format.OP.pack(*op(format.TOTAL | reason << format.KIND_WORD, subscription.partition.partition_id,
                                     subscription_id=subscription.cursor.subscription_id, value=subscription.cursor.totals[reason]))
                  for subscription, reason in self.counted]
        ops, at = b"".join([*self.many_ops, *self.ops, *totals]), 0
        self.ops, self.many_ops, self.counted = [], [], {}
        while len(ops) - at > _OPS_SIZE_MAX:      # acknowledgements of many entries that lie apart: no segment has room for all
            self._append(Record(b"", b"", b"", ops[at:at + _OPS_SIZE_MAX], [], 0))
            at += _OPS_SIZE_MAX
        ops = ops[at:]
        record = planned.record(ops) if planned else Record(b"", b"", b"", ops, [], 0)
        self._append(record)
        if self._unsynced_since is None:
            self._unsynced_since = self.now_ms
        self._sync_when_due()

    def _append(self, record: Record) -> None:
        """With the reserve if need be; when that is used up the pass waits, as it has been decided and nothing has been answered."""
        while True:
            try:
                return self.journal.append(record)
            except StorageFull as error:
                self.complain(f"{error}; nothing is acknowledged until there is room", code="G103")
                if not self.space.give_up():
                    time.sleep(_NO_ROOM_SECONDS)

    def _put_on_disk(self, changed: set) -> None:
        """With the reserve if need be.  Raises StorageFull; NotDurable, as what the kernel could not write it has forgotten."""
        what = to_put(changed)
        while True:
            try:
                return put_on_disk(*what)
            except OSError as error:
                if not is_full(error):
                    raise NotDurable(text_of(error)) from error
                if not self.space.give_up():
                    raise StorageFull(text_of(error)) from error

    def _sync_when_due(self) -> None:
        """Sync what was written, when an answer of this pass depends on it, or when it has waited long enough."""
        must_sync, self._must_sync = self._must_sync, False
        if self._unsynced_since is None:
            return
        waited_ms = self.now_ms - self._unsynced_since
        is_due = {"group": must_sync or waited_ms >= ACK_SYNC_MS,
                  "interval": waited_ms >= self.options.sync_interval_ms,
                  "none": False}[self.options.sync]
        if is_due:
            began = time.perf_counter()
            self.journal.sync()
            self.counters.observe("sync", time.perf_counter() - began)
            self.counters.add("syncs")
        if is_due or self.options.sync == "none":
            self._unsynced_since = None

    # -- giving space back

    def trim(self) -> None:
        """Delete ledgers that nobody needs: told to the journal first, so that a replay does not miss them."""
        gone: list[Ledger] = []
        for partition in self._to_trim:
            if not self.discovery.holds(partition, self.now_ms):
                gone += self._take(partition, disposable(partition, self.now_ms))
        self._to_trim = {}
        self._unlink(gone)

    def truncate(self, partition: Partition) -> None:
        """Everything is acknowledged by everybody, and is not kept either.  Raises StorageFull."""
        if partition.open_ledger.entries:
            self.roll(partition)
        self.views.truncated(partition)
        self._unlink(self._take(partition, len(partition.ledgers)))

    def _take(self, partition: Partition, at_most: int) -> list[Ledger]:
        """So many of its ledgers, at most, that nobody needs: they are its own no more."""
        gone = partition.take_acknowledged_ledgers(at_most)
        for ledger in gone:
            self.note(partition, op(format.LEDGER_DELETED, partition.partition_id, ledger_id=ledger.ledger_id))
            self._to_dispatch[partition] = None      # readers that had too much of it may get more
        return gone

    def _unlink(self, gone: list[Ledger]) -> None:
        """What the journal was told of them is on disk before."""
        if not gone:
            return
        self.commit()
        for ledger in gone:
            ledger.unlink()
            self.forget_mapped(ledger)
        self.space.look()

    def forget_mapped(self, ledger: Ledger) -> None:
        """Workers give up what they have mapped of it."""
        for worker in {worker for worker, _ in self.sessions}:
            self.outbox(worker).forget(ledger.ledger_id)

    def _tick(self) -> None:
        """An idle partition whose open ledger is drained gives up its disk space; producers that stay away are forgotten."""
        self._next_tick_ms = self.now_ms + TICK_MS
        if not 0 <= self.now_ms - self._unreadable_since_ms < _MINUTE_MS:
            self.unreadable.clear()
            self._unreadable_since_ms = self.now_ms
        self.space.look()
        self.memory.look()
        self.journal.check()
        for watcher in (self.sweep, self.missing, self.schedules, self.expiry, self.quotas, self.retention, self.puncher,
                        self.inactive, self.views, self.rates, self.crowding, self.statistics):
            watcher.tick(self.now_ms)
        self._forget_producers()
        for partition in self.discovery.tick(self.now_ms):
            if self.by_name.get(partition.name) is partition:
                self._to_trim[partition] = None
        for subscription, since_ms in list(self.expected_readers.items()):
            if subscription.consumers:
                del self.expected_readers[subscription]
            elif self.now_ms - since_ms > _READER_MS:
                del self.expected_readers[subscription]
                subscription.partition.remove_subscription(subscription)
        if self.space.is_scarce:
            self._give_unused_back()
        for partition in list(self._recent):
            last = partition.open_ledger
            idle = not last.entries or self.now_ms - int(last.index[last.last_entry]["broker_time"]) >= TICK_MS
            if idle and partition.could_shrink():
                try:
                    self.roll(partition, is_idle=True)
                except StorageFull:
                    continue
            if idle and partition.open_ledger.entries == 0:
                self._recent.discard(partition)

    def _give_unused_back(self) -> None:
        """Open ledgers that were allocated far ahead give that back, and their partitions go on in small ones."""
        for partition in list(self._recent):
            if partition.open_ledger.unused >= _UNUSED_MIN:
                with contextlib.suppress(StorageFull):      # another time
                    self.roll(partition, is_idle=True)
                self.space.look()
                if not self.space.is_scarce:
                    return

    def _forget_producers(self) -> None:
        bounds = self.now_ms, self.options.deduplication_inactivity_s * 1000, self.options.deduplication_names_max
        for partition in self.by_name.values():
            if partition.sequences.is_due(*bounds):
                connected = {producer.identity for producer in partition.producers.live.values()}
                self.counters.add("deduplication_names_evicted", partition.sequences.forget(*bounds, connected))
                self.journal.touched(partition)

    # -- commands

    def _answer(self, worker: int, rows: NDArray, data: memoryview) -> None:
        at = 0
        for number, size in rows.tolist():
            self.outbox(worker).answer(number, queries.answer(self, bytes(data[at:at + size])))
            at += size

    def _carry_out(self, worker: int, rows: NDArray, data: memoryview) -> None:
        at = 0
        for row in rows:
            size = int(row["size"])
            key, kind = (worker, int(row["connection"])), int(row["kind"])
            session = self.sessions.get(key)
            if session is None:
                session = Session(worker, key[1], int(row["protocol_version"]))
                if kind in (envelope.COMMAND, envelope.INTRODUCED):
                    self.sessions[key] = session
            if not session.is_over or kind == envelope.CONNECTION_GONE:
                try:
                    self._carry_out_one(session, kind, bytes(data[at:at + size]))
                except NotDurable:
                    raise
                except Exception:
                    self._failed(session)
                if kind == envelope.CONNECTION_GONE:
                    self.sessions.pop(key, None)
            at += size
            self.sign_of_life()

    def _carry_out_one(self, session: Session, kind: int, data: bytes) -> None:
        if kind == envelope.CONNECTION_GONE:
            return commands.end_session(self, session, by_client=True)
        if kind == envelope.CONNECTION_ALIVE:
            return commands.resume(self, session, is_alive=True)
        if kind == envelope.INTRODUCED:
            said = json.loads(data)
            session.address, session.client_version, session.supports_partial_producer = said["address"], said["version"], said["partial"]
            return None
        if kind in (envelope.PRODUCER_EXPELLED, envelope.CONSUMER_EXPELLED):
            object_id, _, handle = data.partition(b" ")
            return commands.expel(self, session, int(object_id), int(handle or 0), is_producer=kind == envelope.PRODUCER_EXPELLED)
        if kind == envelope.DAMAGED:
            return commands.report_damaged(self, session, api.CommandAck.FromString(data))
        if kind == envelope.DISCOVERS:
            return self.discovery.began((session.worker, session.connection), data.decode())
        if kind == envelope.LOOKED_UP:
            request_id, _, name = data.decode().partition(" ")
            self.discovery.looked_up(names.parse(name), self.now_ms)
            return self.outbox(session.worker).reply(session.connection, b"", request_id=int(request_id))
        self.carry_out(session, api.BaseCommand.FromString(data))

    def carry_out(self, session: Session, command: api.BaseCommand, *, probed: bool = False) -> None:
        """Do what the command says, or tell its client why not."""
        try:
            commands.carry_out(self, session, command, probed=probed)
        except Refusal as refusal:
            commands.refuse(self, session, command, refusal)
        except StorageFull as error:
            commands.refuse(self, session, command, Refusal(api.PersistenceError, str(error)))
        except CorruptFile as error:
            self.complain(f"{error}; its topic is refused", code="G121")
            commands.refuse(self, session, command, Refusal(api.PersistenceError, str(error)))
        except OSError as error:
            self.complain(text_of(error), code="G103")
            commands.refuse(self, session, command, Refusal(api.PersistenceError, text_of(error)))
        except NotDurable:
            raise
        except Exception:
            self._failed(session)

    def _failed(self, session: Session) -> None:
        """A command failed for a reason that nobody has thought of: its client's connection ends, and nobody else's.

        Functions of commands.py refuse before they change anything, and a topic or subscription that one has made by then is whole:
        its rows in the catalogue, its ops and what is in memory belong together, and stay.  A producer or consumer may be in some
        tables and not in others: it is looked for in all.  What fails on the way to disk ends the process (Interrupted), as does what
        fails in a pass over many clients' SENDs or acknowledgements: nobody can tell whose fault that is, nor how much of the pass
        was carried out, while a successor that begins with what is on disk has all that was answered.
        """
        log.error(f"a command failed, and its connection is ended: {traceback.format_exc()}", code="G291",
                  client=session.address.removeprefix("/"))
        session.is_over = True
        commands.abandon(self, session)
        self.outbox(session.worker).reply(session.connection, b"", action=envelope.END)

    def complain(self, text: str, *, code: str, **fields: str) -> None:
        """A line for the operator, however often it happens."""
        if text not in self._complaints:
            self._complaints.add(text)
            log.error(text, code=code, **fields)
