"""Dispatching: apply permits and acknowledgements of consumers, and put deliveries for consumers into outboxes."""
import time
from collections.abc import Sequence

import numpy as np

from geminga.proto import envelope, responses
from geminga.proto.deliveries import CHOSEN
from geminga.proto.layouts import MANAGED
from geminga.proto.rows import Rows
from geminga.proto.sends import IS_CHUNK
from geminga.storage.commands.consumers import held_messages
from geminga.storage.commands.subscriptions import close_consumers
from geminga.storage.cursors.batch_acks import words as words_of
from geminga.storage.cursors.pending_acks import NEVER_MS, Entries
from geminga.storage.enforcement import rate_limiter
from geminga.storage.enforcement.rate_limiter import RateLimiter
from geminga.storage.ledgers import cut_ledger
from geminga.storage.ledgers.compacted_ledgers import CompactedLedger
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.ledgers.position import Position
from geminga.storage.ledgers.readable import ReadableLedger, StoredLedger
from geminga.storage.open_topics import acknowledge, dead_letters, filtering
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Appended, Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.owner.partition_timers import Timers
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Dispatcher, Subscription, Topic
from geminga.storage.upkeep.delayed_scheduler import DelayedScheduler

_OUTSTANDING_MS = 100       # between counts of outstanding messages, while the owner is drained
_ACTIVE_CONSUMER_SINCE, _END_OF_TOPIC_SINCE = 12, 9      # versions of the protocol that have these commands
# Clients of Pulsar 4 that are made of the C++ library, as those of Python, close their connection at that command, and
# come again: nothing else on the connection would get anywhere.
_KNOWS_NO_END = "Pulsar-CPP"
_STORED = Ledger, CompactedLedger


class Dispatching(Watcher):
    """The deliveries of one owner: permits, acknowledgements, and the entries that consumers get."""

    def __init__(self, decisions: Decisions, clients: Clients, topics: TopicTable, rates: RateLimiter,
                 schedules: DelayedScheduler):
        self._decisions, self._clients, self._topics = decisions, clients, topics
        self._rates, self._schedules = rates, schedules
        self._acks: list[Rows] = []               # buffered, not yet applied
        self._partial_acks: list[tuple[Rows, memoryview]] = []      # (ACK_ROWs with parts of batches, their ack sets)
        self._timers = Timers()
        self._outstanding_due_ms: int | None = None      # time of the next count while draining; else None

    def __repr__(self) -> str:
        return f"<Dispatching acks={len(self._acks)} due_ms={self.due_ms()}>"

    def release(self, topic: Topic) -> None:
        """Drop the state of a topic that is unloaded or deleted."""
        self._decisions.to_dispatch.pop(topic, None)
        self._timers.put(topic, NEVER_MS)

    # -- acknowledgements and permits

    def receive_acks(self, rows: Rows, data: memoryview) -> None:
        """Buffer acknowledgements: rows (n,) ACK_ROW, and in `data` the ack sets of rows for parts of batches."""
        self._acks.append(rows)
        if len(data):
            self._partial_acks.append((rows, data))

    def grant(self, rows: Rows) -> None:
        """Grant permits to consumers: rows (n,) FLOW_ROW."""
        for handle, permits in zip(rows["consumer"].tolist(), rows["permits"].tolist(), strict=True):
            if (consumer := self._clients.consumers.by_handle.get(handle)) is not None:
                consumer.grant(permits)
                consumer.flow_ms = self._decisions.now_ms
                self._decisions.to_dispatch[consumer.subscription.partition] = None

    def acknowledge_received(self) -> None:
        """Apply buffered acknowledgements to the cursors of their subscriptions."""
        if self._partial_acks:
            self._acknowledge_parts()
        if self._acks:
            began = time.perf_counter()
            rows, self._acks = self._acks[0] if len(self._acks) == 1 else np.concatenate(self._acks), []
            if len(rows) > acknowledge.FEW_MAX:
                by_consumer = acknowledge.acks_by_consumer(self._clients, rows)
            else:
                by_consumer = acknowledge.few_by_consumer(acknowledge.acknowledge_in_order(
                    self._decisions, self._clients, envelope.STRUCTS[envelope.ACKS].iter_unpack(rows)))
            if by_consumer:
                acknowledge.acknowledge(self._decisions, self._clients, by_consumer)
            self._decisions.counters.observe("acknowledge", time.perf_counter() - began)

    def _acknowledge_parts(self) -> None:
        """Apply buffered acknowledgements of single messages in batches.

        They are ignored unless the option batch_index_acknowledgement is set.
        """
        received, self._partial_acks = self._partial_acks, []
        for rows, data in received if self._topics.options.current.batch_index_acknowledgement else ():
            at = 0
            for handle, ledger_id, entry_id, _, flags, count in rows[rows["words"] > 0].tolist():
                words, at = data[at:at + 8 * count], at + 8 * count
                consumer = self._clients.consumers.by_handle.get(handle)
                is_ignored = flags & envelope.CUMULATIVE and consumer is not None and \
                    consumer.subscription.is_spread and not consumer.is_sole
                if consumer is not None and not is_ignored:
                    acknowledge.acknowledge_part(self._decisions, consumer, (ledger_id, entry_id), words)

    # -- deliveries

    def due_ms(self) -> int:
        """Return the time of the next dispatch that happens without a request of a client, in ms since 1970."""
        due_ms = min(self._timers.next_ms, self._rates.due_ms)
        return due_ms if self._outstanding_due_ms is None else min(due_ms, self._outstanding_due_ms)

    def clock_went_back(self, now_ms: int) -> None:
        """Move the next count of outstanding messages to `now_ms` at the latest.

        The wall clock was set back, and may need hours to reach the old due time again.
        """
        if self._outstanding_due_ms is not None:
            self._outstanding_due_ms = min(self._outstanding_due_ms, now_ms)

    def dispatch_all(self) -> None:
        """Dispatch topics that were woken in this pass, and topics whose timers have expired."""
        for topic in self._timers.take(self._decisions.now_ms):
            self._decisions.to_dispatch[topic] = None
        if self._outstanding_due_ms is not None:
            self._decisions.to_dispatch = {}
            self._count_outstanding()
        if self._decisions.to_dispatch:
            began = time.perf_counter()
            appended = self._decisions.appended
            for topic in self._rates.in_turn(self._decisions.to_dispatch):
                if not isinstance(topic, Partition) or (since := appended.get(topic)) is None \
                        or not self._deliver_appended(topic, since):
                    self._dispatch(topic)
            self._decisions.counters.observe("dispatch", time.perf_counter() - began)
            self._decisions.changed.update(self._decisions.to_dispatch)
            self._decisions.to_dispatch = {}
        if self._decisions.appended:
            self._decisions.appended = {}

    def _deliver_appended(self, partition: Partition, since: Appended) -> bool:
        """Deliver what this pass has appended to a partition whose consumers all wait for just that.

        Their places and sizes are known, so no entry is looked at.  Returns False if there may be more to deliver, or
        a reason against some of it; what was delivered then is delivered.
        """
        ledger, first, size, message = since
        if (partition.ledgers[-1] is not ledger or partition.schedule is not None or partition.rate_limits is not None
                or partition.transactions is not None or partition.is_terminated or partition.chunks_in
                or partition.policies.migrated_to or partition.damage or partition.losses or partition.moved):
            return False
        decisions, ledger_id, end = self._decisions, ledger.ledger_id, ledger.entries
        begin, messages = (ledger_id, first), partition.next_message - message
        partition.now_ms = decisions.now_ms
        for subscription in partition.attached:
            if subscription.sieve is not None:
                return False
            assert subscription.dispatcher is not None, subscription
            consumer = subscription.dispatcher.takes_appended(begin, messages)
            if consumer is None:
                return False
            consumer.permits -= messages
            subscription.read = ledger_id, end
            decisions.count_delivered(consumer, end - first, ledger.size - size)
            decisions.outbox(consumer.worker).run(consumer, partition.partition_id, ledger_id, first, end - first)
        return True

    def _dispatch(self, topic: Topic) -> None:
        """Deliver to consumers of all subscriptions of a topic, and set the topic's timer for later deliveries."""
        partition, now_ms = topic if isinstance(topic, Partition) else None, self._decisions.now_ms
        topic.now_ms = now_ms
        schedule, has_rates = topic.schedule, topic.rate_limits is not None
        if partition is not None and schedule is not None:
            self._schedules.advance(partition, now_ms)
        is_closed, limit = topic.is_closed, None if partition is None else partition.limit
        due_ms = NEVER_MS
        for subscription in rate_limiter.in_turn(topic) if has_rates else topic.attached:
            dispatcher = subscription.dispatcher
            assert dispatcher is not None, subscription
            for consumer, is_active in dispatcher.news():
                self._tell_active(consumer, is_active)
            if self._dispatch_subscription(subscription, dispatcher, limit, has_rates=has_rates):
                due_ms = now_ms
            if dispatcher.news_due_ms < due_ms:
                due_ms = dispatcher.news_due_ms
        if partition is not None:
            if is_closed:
                self._tell_caught_up(partition)
            if partition.damage or partition.losses:
                self._topics.report_damage(partition)
            for subscription in partition.moved:
                dead_letters.give(self._decisions, subscription)
        if schedule is not None and any(subscription.is_spread for subscription in topic.attached):
            due_ms = min(due_ms, schedule.next_ms())
        if has_rates:
            due_ms = min(due_ms, rate_limiter.due_ms(topic))
        if due_ms != NEVER_MS or self._timers.at:      # few topics have a timer
            self._timers.put(topic, due_ms)

    def _dispatch_subscription(self, subscription: Subscription, dispatcher: Dispatcher, limit: Position | None, *,
                               has_rates: bool) -> bool:
        """Deliver entries to a subscription's consumers, from its compacted view up to the view's horizon.

        Returns True if a filter has more entries to look at for them.

        limit: the first entry that an open transaction published; consumers get entries before it.  None: all.
        """
        topic, view, began = subscription.partition, subscription.view, subscription.read
        if view is not None and began > view.horizon:      # the subscription has read all of the view
            view = None
        ledgers = topic.ledgers_from(began[0]) if view is None else subscription.ledgers_from(began[0])
        if limit is not None:
            ledgers = cut_ledger.before(ledgers, limit)
            if ledgers and isinstance(last := cut_ledger.whole(ledgers[-1]), Ledger) and last.has_lost:
                topic.give_up_lost(last)
        is_unfinished = False
        if subscription.sieve is None:
            self._deliver_next(subscription, dispatcher, ledgers, has_rates=has_rates, is_cut=limit is not None)
        else:
            is_unfinished = self._deliver_matching(subscription, dispatcher, ledgers, has_rates=has_rates)
        if view is not None:
            acknowledge.skip_compacted(self._decisions, subscription, began)
        return is_unfinished

    def _deliver_next(self, subscription: Subscription, dispatcher: Dispatcher, ledgers: Sequence[StoredLedger], *,
                      has_rates: bool, is_cut: bool) -> None:
        batches = self._rates.next_batches(subscription, ledgers) if has_rates else dispatcher.next_batches(ledgers)
        for consumer, ledger, entries in batches:
            self._deliver(subscription, consumer, cut_ledger.whole(ledger) if is_cut else ledger, entries)

    def _deliver_matching(self, subscription: Subscription, dispatcher: Dispatcher, ledgers: Sequence[StoredLedger], *,
                          has_rates: bool) -> bool:
        """Deliver the entries of these ledgers that match the subscription's filter; see open_topics/filtering.py.

        Returns True if there are more to look at.
        """
        if dispatcher.reads_all_first and dispatcher.has_demand(ledgers) and not filtering.judge_all(
                self._decisions, subscription, ledgers):
            return True
        for turn in range(filtering.TURNS_MAX + 1):
            known = filtering.shown(subscription, ledgers)
            self._deliver_next(subscription, dispatcher, known, has_rates=has_rates, is_cut=True)
            if dispatcher.has_unread(known) or not dispatcher.has_demand(ledgers):
                return False
            if turn < filtering.TURNS_MAX and not filtering.judge_next(self._decisions, subscription, ledgers):
                return False
        return True

    def _tell_caught_up(self, topic: Partition) -> None:
        """Notify consumers of a closed topic that have acknowledged everything.

        If the topic is terminated, they are told of its end.  If it has migrated, they are closed, and reconnect to the
        other cluster.
        """
        moved = []
        for subscription in topic.attached:
            if subscription.remote is not None:      # the replicator stays
                continue
            if subscription.has_moved:
                moved.append(subscription)
            elif topic.is_terminated and subscription.cursor.mark_delete >= topic.last_stored:
                self._tell_end(subscription)
        for subscription in moved:
            close_consumers(self._decisions, self._clients, subscription)

    def _deliver(
        self, subscription: Subscription, consumer: Consumer, ledger: ReadableLedger, entries: Entries) -> None:
        """Deliver entries to a consumer as a run of consecutive ids, or as a list.

        A list is needed for ids with gaps, compacted entries, redelivery counts and ack sets.
        """
        partition, outbox, ledger_id = subscription.partition, self._decisions.outbox(consumer.worker), ledger.ledger_id
        assert isinstance(partition, Partition) and isinstance(ledger, _STORED), (subscription, ledger)
        self._decisions.count_delivered(consumer, len(entries), ledger.bytes_of(entries))
        if partition.chunks_in:
            flags = ledger.column("flags")
            some = flags[entries.start:entries.stop] if isinstance(entries, range) else flags[entries]
            consumer.chunks_out += int(np.count_nonzero(some & IS_CHUNK))
        redeliveries = subscription.cursor.redeliveries.of(ledger_id, entries)
        if isinstance(ledger, CompactedLedger):
            parts = subscription.cursor.parts_of_view(ledger, np.asarray(entries))
        else:
            parts = subscription.cursor.parts_of(ledger_id, entries)
        if subscription.withheld is not None:
            parts = subscription.withheld.cut(ledger, entries, parts)
        first, count = int(entries[0]), len(entries)
        if redeliveries is None and not parts and not ledger.view and int(entries[-1]) - first + 1 == count:
            return outbox.run(consumer, partition.partition_id, ledger_id, first, count)
        listed, words = np.zeros(count, envelope.LISTED_ENTRY), []
        listed["entry_id"] = entries
        if redeliveries is not None:
            listed["redeliveries"] = redeliveries
        for at, bits in parts:
            mask = filtering.mask(subscription, ledger, int(entries[at]))
            ack_set = words_of(bits) if not mask else words_of(bits, mask)
            listed["words"][at] = len(ack_set) | (CHOSEN if mask else 0)
            words.append(ack_set)
        outbox.entry_list(consumer, partition.partition_id, ledger_id, listed, b"".join(words), ledger.view)

    def _tell_end(self, subscription: Subscription) -> None:
        """Notify each consumer once that its topic is terminated and all messages are acknowledged."""
        for consumer in subscription.consumers:
            if not consumer.is_told_end and consumer.protocol_version >= _END_OF_TOPIC_SINCE:
                consumer.is_told_end = True
                if self._knows_end(subscription, consumer):
                    self._decisions.outbox(consumer.worker).reply(
                        consumer.connection, responses.reached_end_of_topic(consumer.consumer_id))

    def _knows_end(self, subscription: Subscription, consumer: Consumer) -> bool:
        """Whether a consumer's client can be told of the end of a topic; all clients of Pulsar 5 can."""
        session = self._clients.sessions.of(consumer)
        return (session is None or not session.client_version.startswith(_KNOWS_NO_END)
                or subscription.partition.name.is_segment or consumer.metadata.get(MANAGED) == "true")

    def _tell_active(self, consumer: Consumer, is_active: bool) -> None:
        """Notify a consumer of a Failover subscription whether it is the active one."""
        if consumer.protocol_version >= _ACTIVE_CONSUMER_SINCE:
            self._decisions.outbox(consumer.worker).reply(
                consumer.connection, responses.active_consumer_change(consumer.consumer_id, is_active))

    # -- draining

    def drain(self) -> None:
        """Stop all deliveries.  Acknowledgements are still applied, and outstanding messages are counted."""
        self._outstanding_due_ms = self._decisions.now_ms
        self._count_outstanding()

    def _count_outstanding(self) -> None:
        """Count messages that consumers of durable subscriptions have received and may still acknowledge."""
        if self._outstanding_due_ms is not None and self._decisions.now_ms >= self._outstanding_due_ms:
            self._outstanding_due_ms = self._decisions.now_ms + _OUTSTANDING_MS
            self._decisions.counters.set("outstanding", sum(
                held_messages(consumer)
                for partition in self._topics.by_name.values() for subscription in partition.attached
                if subscription.is_durable and subscription.remote is None
                for consumer in subscription.consumers))
