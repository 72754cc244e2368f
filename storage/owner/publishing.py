"""Publishing: check and plan the SENDs of a pass, make them durable, write them into ledgers, and answer them."""
import contextlib
import time
from collections.abc import Collection

import numpy as np

from geminga.proto import deliveries, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.deliveries import RECEIPT_ROW
from geminga.proto.rows import Rows
from geminga.proto.sends import IN_TRANSACTION, IS_CHUNK, is_encrypted
from geminga.storage.commands import producers as producer_commands
from geminga.storage.cursors.producer_sequences import NOWHERE
from geminga.storage.enforcement import rate_limiter
from geminga.storage.enforcement.backlog_quota import BacklogQuotas
from geminga.storage.enforcement.delay_policy import DelayPolicy
from geminga.storage.enforcement.publish_gate import PublishGate
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.enforcement.replicated_subscriptions import ReplicatedSubscriptions
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers import journal_ops
from geminga.storage.owner.durability import Durability
from geminga.storage.owner.non_persistent_publishing import NonPersistentPublishing
from geminga.storage.owner.partition_table import PartitionTable
from geminga.storage.owner.replicated_publishing import Refused, ReplicatedPublishing
from geminga.storage.owner.trimming import Trimming
from geminga.storage.statistics.statistics import Statistics
from geminga.storage.topics import addressed, markers, publish_plan
from geminga.storage.topics.held_sends import in_parts
from geminga.storage.topics.owner_context import OwnerContext
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Demand, Group, Plan, Sends
from geminga.storage.topics.subscription import Producer, Topic
from geminga.storage.topics.watcher import TopicWatcher
from geminga.storage.transactions import publishing as transactional
from geminga.storage.transactions.admission import Admission
from geminga.storage.upkeep.delayed_scheduler import DelayedScheduler
from geminga.storage.upkeep.disk_space import DiskSpace

_BEHIND_ALL = (1 << 64) - 1      # a sequence id that no receipt's exceeds


class Publishing(TopicWatcher):
    """The publishing of SENDs to one owner's topics."""

    def __init__(
        self, owner: OwnerContext, partitions: PartitionTable, durability: Durability, trimming: Trimming, *,
        space: DiskSpace, gate: PublishGate, rates: RateLimiter, delays: DelayPolicy, quotas: BacklogQuotas,
        schedules: DelayedScheduler, statistics: Statistics, admission: Admission,
        subscriptions: ReplicatedSubscriptions,
    ):
        self._owner, self._partitions, self._durability, self._trimming = owner, partitions, durability, trimming
        self._space, self._gate, self._rates, self._delays, self._quotas = space, gate, rates, delays, quotas
        self._schedules, self._statistics, self._admission = schedules, statistics, admission
        self._subscriptions = subscriptions
        self._non_persistent = NonPersistentPublishing(owner, rates)
        self._replicated = ReplicatedPublishing(owner, delays)
        self._sends: Sends = []                   # buffered, not yet published
        self._has_transactions = False            # whether some of these, or of throttled ones, are in transactions
        self._strict: set[Topic] = set()          # topics with policies that refuse some messages
        self._system: set[Topic] = set()          # internal topics of brokers
        # Answers to SENDs that the plan leaves out, by worker: (connection, producer id, sequence id, frame).
        self._send_errors: dict[int, list[tuple[int, int, int, bytes]]] = {}
        self._last_closed_ledger = owner.catalogue.ids.last_closed_ledger()

    def __repr__(self) -> str:
        return f"<Publishing sends={len(self._sends)} strict={len(self._strict)}>"

    # -- topics

    def watch(self, topic: Topic) -> None:
        """Record whether the topic's policies refuse some messages, and whether it is a system topic."""
        is_strict = topic.policies.max_message_size or topic.policies.encryption_required
        (self._strict.add if is_strict else self._strict.discard)(topic)
        if topic.is_persistent and names.is_system(str(topic.name)):
            self._system.add(topic)

    def release(self, topic: Topic) -> None:
        """Drop the state of a topic that is unloaded or deleted."""
        self._strict.discard(topic)
        self._system.discard(topic)
        self._admission.release(topic)

    def tick(self, now_ms: int) -> None:
        """Publish SENDs that have waited too long for a coordinator, without those in transactions."""
        for sends, answered in self._admission.overdue():
            for some in in_parts(sends, self._owner.options.pass_bytes_max):
                self._publish(some, answered)

    # -- a pass

    def receive(self, worker: int, rows: Rows, data: memoryview) -> None:
        """Buffer SENDs: rows (n,) SEND_ROW, and their entries in `data`."""
        self._sends.append((worker, rows, data))

    def receive_in_transactions(self, worker: int, rows: Rows, data: memoryview) -> None:
        """Buffer SENDs some of which are in transactions, whose ids are in `message_index`; see `receive`."""
        self._has_transactions = True
        self.receive(worker, rows, data)

    def has_received(self, transactions: set[int]) -> bool:
        """Whether any buffered SEND is in one of these transactions."""
        return self._has_transactions and not all(
            transactions.isdisjoint(rows["message_index"][rows["flags"] & IN_TRANSACTION != 0].tolist())
            for _, rows, _ in self._sends)

    def publish_received(self) -> None:
        """Publish buffered SENDs, and throttled SENDs that their rate limit now admits."""
        if self._sends or self._rates.due_ms <= self._owner.now_ms:
            sends, self._sends = self._sends, []
            for some in self._rates.admit(sends) if self._rates.is_possible else [sends]:
                self._publish(some)
            if self._has_transactions:
                self._has_transactions = bool(self._rates.held.by_topic) or self._admission.is_asking

    def publish_held(self, topic: Topic) -> None:
        """Publish throttled SENDs of the topic, because a command that arrived after them is about to be executed."""
        for some in self._rates.take_all(topic):
            self._publish(some)

    def publish_asked(self, partition: Partition, transaction: int) -> None:
        """Publish SENDs that wait for a coordinator, once it has answered about all transactions that it was asked for.
        """
        sends, answered = self._admission.answered(partition, transaction)
        for some in in_parts(sends, self._owner.options.pass_bytes_max):
            self._publish(some, answered)

    def publish_markers(self) -> None:
        """Publish the markers of replicated subscriptions that are due.

        A marker for which there is no room is dropped: the next snapshot takes its place.
        """
        by_partition: dict[Partition, list[bytes]] = {}
        for partition, entry in self._subscriptions.take_due():
            by_partition.setdefault(partition, []).append(entry)
        placed: list[tuple[Demand, list[bytes]]] = []
        for partition, entries in by_partition.items():
            demand = Demand(partition, len(entries), sum(map(len, entries)), 0)
            with contextlib.suppress(StorageFull):
                self._make_room(demand)
                placed.append((demand, entries))
        if placed:
            self._store(markers.plan(placed, self._owner.now_ms))

    def _publish(self, sends: Sends, answered: Collection[int] = ()) -> None:
        """Publish SENDs: refuse those that violate policies, plan all others, store the plan, and answer.

        answered: see Admission.admit.
        """
        refused: list[Refused] = []
        if self._owner.replicators:
            admitted = self._replicated.admit(sends)
            sends, refused = admitted.sends, [*admitted.refused.values()]
        if self._has_transactions:
            sends = self._admission.admit(sends, answered)
        if self._strict:
            sends = [rest for one in sends if len((rest := self._leave_out(*one))[1])]
        if self._owner.non_persistent_producers:
            sends = [rest for one in sends if len((rest := self._non_persistent.publish(*one))[1])]
        if self._gate.is_watched:
            self._close_producers_at_barriers(sends)
        if self._delays.watched:
            sends = self._delays.enforce(sends)
        batch = publish_plan.sort(sends, self._owner.producers)
        for demand in batch.demands:
            try:
                self._make_room(demand)
            except StorageFull as error:
                demand.refusal = str(error)
        planned = batch.place(self._owner.now_ms, has_transactions=self._has_transactions)
        if planned.refused:
            self._refuse(planned.refused)
        self._owner.counters.add("entries_duplicate", planned.duplicates)
        if planned.groups:
            self._store(planned)
        for one in refused:
            self._add_replicator_error(one)
        self._answer(planned)
        for one in refused:      # only now: SENDs of a closed producer would have been left out
            if one.producer.handle in self._owner.producers:
                producer_commands.dismiss(self._owner, one.producer)

    def _make_room(self, demand: Demand) -> None:
        """Assign to the demand its partition's open ledger, with room for its entries.

        A ledger that is full or too old is rolled first.  Raises StorageFull.
        """
        partition, count, size = demand.partition, demand.count, demand.size
        ledger, options = partition.open_ledger, self._owner.options
        is_full = ledger.size + size > options.roll_over_bytes or ledger.entries + count > options.roll_over_entries
        is_old = self._owner.now_ms - ledger.created_ms > options.roll_over_age_s * 1000
        if ((is_full or is_old) and ledger.entries) or ledger.ledger_id <= self._last_closed_ledger:
            self._partitions.roll(partition)
            ledger = partition.open_ledger
        if not ledger.has_room(count, size):
            self._space.look()
            self._space.check()
            ledger.reserve(count, size, self._space.ahead, options.roll_over_bytes)
        demand.ledger = ledger

    def _store(self, planned: Plan) -> None:
        """Make the plan durable, then write its entries into their ledgers."""
        owner, disabled = self._owner, self._note_disabled_deduplication(planned)
        if planned.latest_ms > owner.now_ms:
            self._begin_schedules(planned)
        in_transactions = [] if planned.transactions is None else transactional.stored(planned, owner.producers)
        marked = markers.stored(planned, owner.producers) if planned.has_markers else []
        for_one = addressed.stored(planned, owner.addressed) if owner.addressed else []
        owner.answer_needs_sync()
        began = time.perf_counter()
        self._durability.commit(planned)
        ended = time.perf_counter()
        owner.counters.observe("publish", ended - owner.began, self._count(planned.groups))
        self._statistics.stored(planned, ended - owner.began, ended - began)
        if self._rates.is_relative:
            rate_limiter.published(planned.groups, owner.now_ms)
        publish_plan.apply(planned, owner.now_ms)
        if in_transactions:
            transactional.apply(in_transactions)
        if marked:
            markers.discard(owner, marked)
            self._subscriptions.received(marked)
        if for_one:
            addressed.acknowledge_for_others(owner, for_one)
        for partition in disabled:
            partition.sequences.clear()
            if partition.transactions is not None:
                partition.transactions.forget_sequences()
        self._follow_up(planned)
        for partition in [*disabled, *(each.partition for each in in_transactions), *(one.partition for one in marked),
                          *(one.partition for one in for_one)]:
            owner.journal.mark_dirty(partition)

    def _follow_up(self, planned: Plan) -> None:
        """Update all that depends on newly written entries: checkpoint, delayed index, dispatch, trimming, quota."""
        owner, has_quotas = self._owner, self._quotas.is_possible
        for group in planned.groups:
            partition = group.partition
            owner.journal.mark_dirty(group.ledger)
            if (schedule := partition.schedule) is not None and (planned.latest_ms or schedule.limit is not None):
                deliver_at = publish_plan.deliver_at(planned, group)
                schedule.published(group.ledger, group.ledger.entries - group.count, deliver_at, owner.now_ms)
                self._schedules.look(partition)
            owner.to_dispatch[partition] = None
            self._trimming.recent[partition] = None
            if has_quotas:
                self._quotas.published(partition)
            if partition.tracks_sequences:
                owner.journal.mark_dirty(partition)      # again, because the commit may have begun a new segment

    def _note_disabled_deduplication(self, planned: Plan) -> list[Partition]:
        """Return the plan's partitions whose deduplication was disabled, and add ops that delete their sequence ids."""
        disabled = [group.partition for group in planned.groups
                    if not group.partition.deduplicates and group.partition.sequences.by_producer]
        for partition in disabled:
            self._owner.note(partition, journal_ops.sequences_forgotten(partition.partition_id))
        return disabled

    def _begin_schedules(self, planned: Plan) -> None:
        """Give each partition that gets its first delayed entry a delayed index, and journal an op for it."""
        for group in planned.groups:
            partition = group.partition
            if partition.schedule is None and (publish_plan.deliver_at(planned, group) > self._owner.now_ms).any():
                self._owner.note(partition, journal_ops.delayed(partition.partition_id))
                partition.begin_schedule(is_strict=self._owner.options.delayed_delivery_strict)
                self._schedules.watch(partition)

    def _count(self, groups: list[Group]) -> int:
        """Add the groups to the counters, before their entries are in ledgers.  Return the number of entries."""
        counters, entries, messages, size = self._owner.counters, 0, 0, 0
        for group in groups:
            entries += group.count
            messages += group.next_message - group.partition.next_message
            size += group.size - group.ledger.size
        counters.add("entries_in", entries)
        counters.add("messages_in", messages)
        counters.add("bytes_in", size)
        if self._system:
            counters.add("system_bytes_in", sum(
                group.size - group.ledger.size for group in groups if group.partition in self._system))
        return entries

    def _answer(self, planned: Plan) -> None:
        """Answer the plan's SENDs with receipts, and refused SENDs with errors, in the order of arrival."""
        errors, self._send_errors = self._send_errors, {}
        for worker, rows in planned.receipts:
            if worker in errors:
                self._owner.outbox(worker).receipts_and_errors(rows, errors.pop(worker))
            else:
                self._owner.outbox(worker).receipts(rows)
        for worker, left in errors.items():
            self._owner.outbox(worker).receipts_and_errors(b"", left)

    # -- refusals

    def _add_replicator_error(self, refused: Refused) -> None:
        """Answer a replicator's SEND with an error, behind all receipts: those are of what it has sent before."""
        producer = refused.producer
        frame = responses.send_error(producer.producer_id, refused.sequence_id, api.PersistenceError, refused.text)
        self._send_errors.setdefault(refused.worker, []).append(
            (producer.connection, producer.producer_id, _BEHIND_ALL, frame))

    def refuse_sends(self, worker: int, rows: Rows, code: api.ServerError.ValueType, text: str) -> None:
        """Answer rows (n,) SEND_ROW of the plan in progress with an error, in the order in which SENDs arrived."""
        self._send_errors.setdefault(worker, []).extend([
            (connection, producer_id, sequence_id, responses.send_error(producer_id, sequence_id, code, text))
            for connection, producer_id, sequence_id in rows[["connection", "producer_id", "sequence_id"]].tolist()])

    def drop_sends(self, worker: int, rows: Rows) -> None:
        """Answer rows (n,) SEND_ROW of the plan in progress with receipts without a position, as duplicates are."""
        answers = np.full(len(rows), NOWHERE, RECEIPT_ROW)
        for name in ("connection", "producer_id", "sequence_id", "highest_sequence_id"):
            answers[name] = rows[name]
        self._send_errors.setdefault(worker, []).extend(
            (int(answer["connection"]), int(answer["producer_id"]), int(answer["sequence_id"]),
             deliveries.receipts(answers[at:at + 1])[0][1]) for at, answer in enumerate(answers))

    def _leave_out(self, worker: int, rows: Rows, data: memoryview) -> tuple[int, Rows, memoryview]:
        """Refuse entries that violate policies, and return all others as (worker, rows, data).

        Policies may refuse unencrypted entries, and large entries that are not chunks.
        """
        refused = np.zeros(len(rows), bool)
        for handle in set(rows["producer"].tolist()):
            producer = self._producer(handle)
            if producer is None or producer.partition not in self._strict or handle in self._owner.replicators:
                continue      # a replicator's messages have been looked at before
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

    def _refuse(self, refused: list[tuple[int, int, int, int, str]]) -> None:
        """Refuse entries for which there is no room.

        If the disk is full, their producers are closed, because clients would retry at once.
        """
        owner = self._owner
        for worker, connection, producer_id, sequence_id, why in refused:
            if not self._space.is_full:
                error = responses.send_error(producer_id, sequence_id, api.PersistenceError, why)
                owner.outbox(worker).reply(connection, error)
            elif (producer := owner.sessions[worker, connection].producers.get(producer_id)) is not None:
                producer_commands.close_producers(owner, producer.partition)
        for worker, connection, producer_id in dict.fromkeys(one[:3] for one in refused):
            producer_commands.close_refused(owner, owner.sessions[worker, connection], producer_id)

    def _close_producers_at_barriers(self, sends: Sends) -> None:
        """Close producers of partitions that are closed to publishing now.  Their clients reconnect and send again."""
        producers = {self._producer(handle) for _, rows, _ in sends for handle in set(rows["producer"].tolist())}
        for partition in {producer.partition for producer in producers if producer is not None}:
            if isinstance(partition, Partition) and self._gate.barrier(partition) is not None:
                producer_commands.close_producers(self._owner, partition)

    def _producer(self, handle: int) -> Producer | None:
        """Return the producer with this handle; None if it is closed, or still waits for exclusive access."""
        producer = self._owner.producers.get(handle)
        return producer if producer is not None and producer.is_ready else None
