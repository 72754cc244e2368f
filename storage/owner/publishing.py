"""Publishing: check and plan the SENDs of a pass, make them durable, write them into ledgers, and answer them."""
import contextlib
import time
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from geminga.proto import names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.proto.rows import Rows
from geminga.proto.sends import IN_TRANSACTION, IS_CHUNK, SEND_ROW, is_encrypted, read_one
from geminga.storage.commands import producers as producer_commands
from geminga.storage.enforcement import rate_limiter
from geminga.storage.enforcement.backlog_quota import BacklogQuotas
from geminga.storage.enforcement.batch_priorities import BatchPriorities
from geminga.storage.enforcement.delay_policy import DelayPolicy
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.enforcement.replicated_subscriptions import ReplicatedSubscriptions
from geminga.storage.errors import StorageFull
from geminga.storage.ledgers import journal_ops
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics import addressed, markers
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.disk_space import DiskSpace
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.held_sends import in_parts
from geminga.storage.open_topics.left_out_sends import LeftOutSends
from geminga.storage.open_topics.publish_gate import PublishGate
from geminga.storage.open_topics.publisher import NO_WORKER
from geminga.storage.open_topics.reports import Reports
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import TopicWatcher
from geminga.storage.owner.non_persistent_publishing import NonPersistentPublishing
from geminga.storage.owner.replicated_publishing import Refused, ReplicatedPublishing
from geminga.storage.scalable import recounting
from geminga.storage.statistics.statistics import Statistics
from geminga.storage.topics import publish_plan
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Demand, Group, Plan, Sends
from geminga.storage.topics.subscription import Producer, Topic
from geminga.storage.transactions import publishing as transactional
from geminga.storage.transactions.admission import Admission
from geminga.storage.upkeep.delayed_scheduler import DelayedScheduler
from geminga.storage.upkeep.trimming import Trimming

_COMMAND = api.CommandSend()      # as if an entry of the broker's own had come with it


class Publishing(TopicWatcher):
    """The publishing of SENDs to one owner's topics."""

    def __init__(
        self, decisions: Decisions, clients: Clients, topics: TopicTable, left_out: LeftOutSends,
        durability: Durability, trimming: Trimming, *,
        space: DiskSpace, gate: PublishGate, rates: RateLimiter, delays: DelayPolicy, priorities: BatchPriorities,
        quotas: BacklogQuotas, schedules: DelayedScheduler, statistics: Statistics, admission: Admission,
        subscriptions: ReplicatedSubscriptions, reports: Reports,
    ):
        self._decisions, self._clients, self._topics = decisions, clients, topics
        self._reports, self._left_out = reports, left_out
        self._durability, self._trimming = durability, trimming
        self._space, self._gate, self._rates, self._delays, self._quotas = space, gate, rates, delays, quotas
        self._priorities = priorities
        self._schedules, self._statistics, self._admission = schedules, statistics, admission
        self._subscriptions = subscriptions
        self._non_persistent = NonPersistentPublishing(decisions, clients.producers, topics.options, rates)
        self._replicated = ReplicatedPublishing(clients.producers, reports, delays)
        self._sends: Sends = []                   # buffered, not yet published
        self._has_transactions = False            # whether some of these, or of throttled ones, are in transactions
        self._strict: set[Topic] = set()          # topics with policies that refuse some messages
        self._system: set[Topic] = set()          # internal topics of brokers
        self._last_closed_ledger = topics.catalogue.ids.last_closed_ledger()

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
            for some in in_parts(sends, self._topics.options.current.pass_bytes_max):
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

    @property
    def is_due(self) -> bool:
        """Whether there are buffered SENDs, or throttled SENDs that their rate limit may admit now."""
        return bool(self._sends) or self._rates.due_ms <= self._decisions.now_ms

    def publish_received(self) -> None:
        """Publish buffered SENDs, and throttled SENDs that their rate limit now admits."""
        if self.is_due:
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
        if not self._admission.is_asking:
            return
        sends, answered = self._admission.answered(partition, transaction)
        for some in in_parts(sends, self._topics.options.current.pass_bytes_max):
            self._publish(some, answered)

    def publish_own(self, producer: Producer, entries: Sequence[tuple[int | None, bytes]]) -> list[Position]:
        """Publish entries of the broker's own; see Publisher.publish_own."""
        topic, size = producer.partition, sum(len(entry) for _, entry in entries)
        self._refuse_own(topic, entries)
        if not self._rates.take(topic, len(entries), size):
            raise Refusal(api.TooManyRequests, "A publish rate holds back the topic's producers")
        rows = np.concatenate([_own_row(producer, number, entry) for number, entry in entries])
        rows["offset"] = np.cumsum(rows["size"], dtype=np.uint64) - rows["size"]
        data = memoryview(b"".join([entry for _, entry in entries]))
        with self._entered(producer):
            if not isinstance(topic, Partition):
                self._non_persistent.publish(NO_WORKER, rows, data)
                return []
            sends: Sends = [(NO_WORKER, rows, data)]
            batch = publish_plan.sort(self._delays.enforce(sends) if self._delays.watched else sends,
                                      self._clients.producers.by_handle)
            for demand in batch.demands:
                self._make_room(demand)
            planned = batch.place(self._decisions.now_ms)
            planned.receipts.clear()
            positions = [(group.ledger.ledger_id, group.ledger.entries + number)
                         for group in planned.groups for number in range(group.count)]
            if planned.groups:
                self._store(planned)
        return positions

    def _refuse_own(self, topic: Topic, entries: Sequence[tuple[int | None, bytes]]) -> None:
        """Raise Refusal if a topic takes no such messages now, for the reasons for which clients are refused."""
        policies = topic.policies
        if topic.is_closed:
            raise Refusal(api.TopicTerminatedError, "The topic is terminated, or has moved to another cluster")
        if topic.producers.exclusive is not None:
            raise Refusal(api.ProducerFenced, f"Producer {topic.producers.exclusive.name} has exclusive access")
        if policies.encryption_required:
            raise Refusal(api.MetadataError, "Messages must be encrypted")
        if policies.max_message_size and any(len(entry) > policies.max_message_size for _, entry in entries):
            raise Refusal(api.NotAllowedError, f"It has more than the {policies.max_message_size} bytes of "
                                               "maxMessageSize")
        if isinstance(topic, Partition) and (barrier := self._gate.barrier(topic)) is not None:
            raise barrier.refusal

    @contextlib.contextmanager
    def _entered(self, producer: Producer) -> Iterator[None]:
        """Enter a producer of the broker's own in all tables, while it publishes."""
        producers, topic = self._clients.producers, producer.partition
        producers.enter(producer)
        if isinstance(topic, Partition):
            topic.replicators.add(producer)      # so that its numbers are looked at
        try:
            yield
        finally:
            producers.remove(producer)
            if isinstance(topic, Partition):
                topic.replicators.discard(producer)

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
            self._store(markers.plan(placed, self._decisions.now_ms))

    def _publish(self, sends: Sends, answered: Collection[int] = ()) -> None:
        """Publish SENDs: refuse those that violate policies, plan all others, store the plan, and answer.

        answered: see Admission.admit.
        """
        refused: list[Refused] = []
        if self._clients.producers.replicators:
            admitted = self._replicated.admit(sends)
            sends, refused = admitted.sends, [*admitted.refused.values()]
        if self._has_transactions:
            sends = self._admission.admit(sends, answered)
        if self._strict:
            sends = [rest for one in sends if len((rest := self._leave_out(*one))[1])]
        if self._clients.producers.non_persistent:
            sends = [rest for one in sends if len((rest := self._non_persistent.publish(*one))[1])]
        if self._gate.is_watched:
            self._close_producers_at_barriers(sends)
        if self._delays.watched:
            sends = self._delays.enforce(sends)
        if self._priorities.watched:
            sends = self._priorities.find(sends)
        if self._clients.producers.inheriting:
            recounting.look(self._decisions, self._clients.producers, self._topics.catalogue, sends)
        batch = publish_plan.sort(sends, self._clients.producers.by_handle)
        for demand in batch.demands:
            try:
                self._make_room(demand)
            except StorageFull as error:
                demand.refusal = str(error)
        planned = batch.place(self._decisions.now_ms, has_transactions=self._has_transactions)
        if planned.refused:
            self._refuse(planned.refused)
        self._decisions.counters.add("entries_duplicate", planned.duplicates)
        if planned.groups:
            self._store(planned)
        for one in refused:
            self._left_out.refuse_behind_all(one.worker, one.producer, one.sequence_id, one.text)
        self._answer(planned)
        for one in refused:      # only now: SENDs of a closed producer would have been left out
            if one.producer.handle in self._clients.producers.by_handle:
                producer_commands.dismiss(self._decisions, self._clients, self._topics.catalogue, one.producer)

    def _make_room(self, demand: Demand) -> None:
        """Assign to the demand its partition's open ledger, with room for its entries.

        A ledger that is full or too old is rolled first.  Raises StorageFull.
        """
        partition, count, size = demand.partition, demand.count, demand.size
        ledger, options = partition.ledgers[-1], self._topics.options.current
        is_full = ledger.size + size > options.roll_over_bytes or ledger.entries + count > options.roll_over_entries
        is_old = self._decisions.now_ms - ledger.created_ms > options.roll_over_age_s * 1000
        if ((is_full or is_old) and ledger.entries) or ledger.ledger_id <= self._last_closed_ledger:
            self._topics.roll(partition)
            ledger = partition.open_ledger
        if not ledger.has_room(count, size):
            self._space.look()
            self._space.check()
            ledger.reserve(count, size, self._space.ahead, options.roll_over_bytes)
        demand.ledger = ledger

    def _store(self, planned: Plan) -> None:
        """Make the plan durable, then write its entries into their ledgers."""
        disabled = self._note_disabled_deduplication(planned)
        if planned.latest_ms > self._decisions.now_ms:
            self._begin_schedules(planned)
        in_transactions = [] if planned.transactions is None else transactional.stored(
            planned, self._clients.producers.by_handle)
        marked = markers.stored(planned, self._clients.producers.by_handle) if planned.has_markers else []
        addressing = self._clients.producers.addressed
        for_one = addressed.stored(planned, addressing) if addressing else []
        self._decisions.answer_needs_sync()
        began = time.perf_counter()
        self._durability.commit(planned)
        ended = time.perf_counter()
        self._decisions.counters.observe("publish", ended - self._decisions.began, self._count(planned.groups))
        self._statistics.stored(planned, ended - self._decisions.began, ended - began)
        if self._rates.is_relative:
            rate_limiter.published(planned.groups, self._decisions.now_ms)
        if not (planned.has_markers or for_one):      # which some consumers do not get
            for group in planned.groups:
                ledger = group.ledger
                self._decisions.appended.setdefault(
                    group.partition, (ledger, ledger.entries, ledger.size, group.partition.next_message))
        publish_plan.apply(planned, self._decisions.now_ms)
        if in_transactions:
            transactional.apply(in_transactions)
        if marked:
            markers.discard(self._decisions, marked)
            self._subscriptions.received(marked)
        if for_one:
            addressed.acknowledge_for_others(self._decisions, for_one)
        for partition in disabled:
            partition.sequences.clear()
            if partition.transactions is not None:
                partition.transactions.forget_sequences()
        self._follow_up(planned)
        for partition in [*disabled, *(each.partition for each in in_transactions), *(one.partition for one in marked),
                          *(one.partition for one in for_one)]:
            self._decisions.journal.mark_dirty(partition)

    def _follow_up(self, planned: Plan) -> None:
        """Update all that depends on newly written entries: checkpoint, delayed index, dispatch, trimming, quota."""
        has_quotas = self._quotas.is_possible
        for group in planned.groups:
            partition = group.partition
            self._decisions.journal.mark_dirty(group.ledger)
            if (schedule := partition.schedule) is not None and (planned.latest_ms or schedule.limit is not None):
                deliver_at = publish_plan.deliver_at(planned, group)
                schedule.published(group.ledger, group.ledger.entries - group.count, deliver_at, self._decisions.now_ms)
                self._schedules.look(partition)
            self._decisions.to_dispatch[partition] = None
            self._trimming.recent[partition] = None
            if has_quotas:
                self._quotas.published(partition)
            if partition.tracks_sequences:
                # Again, because the commit may have begun a new segment.
                self._decisions.journal.mark_dirty(partition)

    def _note_disabled_deduplication(self, planned: Plan) -> list[Partition]:
        """Return the plan's partitions whose deduplication was disabled, and add ops that delete their sequence ids."""
        disabled = [group.partition for group in planned.groups
                    if not group.partition.deduplicates and group.partition.sequences.by_producer]
        for partition in disabled:
            self._decisions.note(partition, journal_ops.sequences_forgotten(partition.partition_id))
        return disabled

    def _begin_schedules(self, planned: Plan) -> None:
        """Give each partition that gets its first delayed entry a delayed index, and journal an op for it."""
        for group in planned.groups:
            partition = group.partition
            if partition.schedule is None and (publish_plan.deliver_at(planned, group) > self._decisions.now_ms).any():
                self._decisions.note(partition, journal_ops.delayed(partition.partition_id))
                partition.begin_schedule(is_strict=self._topics.options.current.delayed_delivery_strict)
                self._schedules.watch(partition)

    def _count(self, groups: list[Group]) -> int:
        """Add the groups to the counters, before their entries are in ledgers.  Return the number of entries."""
        counters, entries, messages, size = self._decisions.counters, 0, 0, 0
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
        errors, self._left_out.by_worker = self._left_out.by_worker, {}
        for worker, rows in planned.receipts:
            if worker in errors:
                self._decisions.outbox(worker).receipts_and_errors(rows, errors.pop(worker))
            else:
                self._decisions.outbox(worker).receipts(rows)
        for worker, left in errors.items():
            self._decisions.outbox(worker).receipts_and_errors(b"", left)

    # -- refusals

    def _leave_out(self, worker: int, rows: Rows, data: memoryview) -> tuple[int, Rows, memoryview]:
        """Refuse entries that violate policies, and return all others as (worker, rows, data).

        Policies may refuse unencrypted entries, and large entries that are not chunks.
        """
        refused, replicators = np.zeros(len(rows), bool), self._clients.producers.replicators
        for handle in set(rows["producer"].tolist()):
            producer = self._producer(handle)
            if producer is None or producer.partition not in self._strict or handle in replicators:
                continue      # a replicator's messages have been looked at before
            policies, mine = producer.partition.policies, rows["producer"] == handle
            if policies.max_message_size:
                is_large = mine & (rows["size"] > policies.max_message_size) & (rows["flags"] & IS_CHUNK == 0)
                self._left_out.refuse(worker, rows[is_large], api.NotAllowedError, "Exceed maximum message size")
                refused |= is_large
            if policies.encryption_required:
                is_open = np.zeros(len(rows), bool)
                for at in np.flatnonzero(mine & ~refused).tolist():
                    offset, size = int(rows["offset"][at]), int(rows["size"][at])
                    is_open[at] = not is_encrypted(data[offset:offset + size])
                self._left_out.refuse(worker, rows[is_open], api.MetadataError, "Messages must be encrypted")
                refused |= is_open
        return (worker, rows[~refused], data) if refused.any() else (worker, rows, data)

    def _refuse(self, refused: list[tuple[int, int, int, int, str]]) -> None:
        """Refuse entries for which there is no room.

        If the disk is full, their producers are closed, because clients would retry at once.
        """
        for worker, connection, producer_id, sequence_id, why in refused:
            if not self._space.is_full:
                error = responses.send_error(producer_id, sequence_id, api.PersistenceError, why)
                self._decisions.outbox(worker).reply(connection, error)
            elif (producer := self._clients.sessions.by_key[worker, connection].producers.get(producer_id)) is not None:
                producer_commands.close_producers(
                    self._decisions, self._clients, self._topics.catalogue, producer.partition)
        for worker, connection, producer_id in dict.fromkeys(one[:3] for one in refused):
            session = self._clients.sessions.by_key[worker, connection]
            producer_commands.close_refused(
                self._decisions, self._clients, self._topics.catalogue, session, producer_id)

    def _close_producers_at_barriers(self, sends: Sends) -> None:
        """Close producers of partitions that are closed to publishing now.  Their clients reconnect and send again."""
        producers = {self._producer(handle) for _, rows, _ in sends for handle in set(rows["producer"].tolist())}
        for partition in {producer.partition for producer in producers if producer is not None}:
            if isinstance(partition, Partition) and self._gate.barrier(partition) is not None:
                producer_commands.close_producers(self._decisions, self._clients, self._topics.catalogue, partition)

    def _producer(self, handle: int) -> Producer | None:
        """Return the producer with this handle; None if it is closed, or still waits for exclusive access."""
        producer = self._clients.producers.by_handle.get(handle)
        return producer if producer is not None and producer.is_ready else None


def _own_row(producer: Producer, number: int | None, entry: bytes) -> Rows:
    """Return the SEND_ROW (1,) of an entry of the broker's own."""
    row: Rows = np.array([read_one(_COMMAND, entry)], SEND_ROW)
    row["producer"], row["entry_id"] = producer.handle, 0 if number is None else number + 1
    return row
