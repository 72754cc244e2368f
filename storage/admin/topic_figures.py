"""Answers with statistics: of one topic as figures (figures.py), of all open topics as columns of numbers."""
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin import figures
from geminga.storage.admin.priorities import waiting_by_priority
from geminga.storage.admin.questions import GetStatistics, Measure
from geminga.storage.admin.stored_topics import acknowledged_runs
from geminga.storage.commands.topic_lookup import topic_of
from geminga.storage.cursors.cursor import EXPIRED, REASONS
from geminga.storage.dispatch.entry_buckets import EntryBuckets
from geminga.storage.dispatch.exclusive import Exclusive
from geminga.storage.dispatch.key_shared import KeyShared
from geminga.storage.enforcement.backlog_quota import backlog_bytes
from geminga.storage.ledgers.compacted_ledgers import CompactedLedgers
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.session import Session
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.scalable.stream_consumers import StreamConsumers
from geminga.storage.statistics import columns
from geminga.storage.statistics.statistics import ScalableFigures, Statistics
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Producer, Subscription, SubType

_DELAYED_MEMORY = columns.DELAYED.index("delayed_memory")


def topic(decisions: Decisions, clients: Clients, topics: TopicTable, question: GetStatistics) -> figures.TopicFigures:
    topic = topic_of(topics, question.topic)
    partition = topic if isinstance(topic, Partition) else None
    counts, rates = columns.topic_counts(topic), columns.rates_of(topic, 6)
    slowest = None if partition is None else columns.find_slowest(partition)
    producers = columns.ordinary_producers(topic)
    named = [subscription for subscription in topic.subscriptions.values() if columns.is_named(topic, subscription)]
    subscriptions = {one.name: _subscription(clients, topic, one, question) for one in named if one.remote is None}
    dropped = 0.0
    if partition is None:
        dropped = sum(subscription.drop_rate for subscription in subscriptions.values())
        dropped += sum(columns.rates_of(producer, 4)[3] for producer in producers)
    return figures.TopicFigures(
        message_rate_in=rates[0], byte_rate_in=rates[1], message_rate_out=rates[3], byte_rate_out=rates[4],
        drop_rate=dropped, messages_in=counts[0], bytes_in=counts[1], messages_out=counts[3], bytes_out=counts[4],
        has_chunks=topic.chunks_in > 0,
        storage_bytes=0 if partition is None else columns.storage_bytes(partition),
        quota_bytes=-1 if partition is None else partition.policies.quota_bytes,
        quota_age_s=-1 if partition is None else partition.policies.quota_age_s,
        backlog_age_s=(decisions.now_ms - columns.came_ms(slowest)) // 1000 if slowest else -1,
        slowest=slowest.name if slowest else None, publish_limited=columns.publish_limited(topic),
        transactions=columns.transactions(topic), delayed_memory=columns.delayed_index(topic)[_DELAYED_MEMORY],
        deduplicates=partition is not None and partition.deduplicates, topic_epoch=topic.producers.topic_epoch,
        created_ms=topics.catalogue.topics.created_ms(topic.name.base) or 0, last_publish_ms=last_publish_ms(topic),
        compaction=_compaction(topic.view), export=None if partition is None else _export(decisions, partition),
        waiting_producers=len(topic.producers.waiting),
        publishers=[_producer(clients, one) for one in producers] if question.publishers else [],
        inbound={source: _inbound(clients, some) for source, some in columns.replicators(topic).items()},
        subscriptions=subscriptions, replication={} if partition is None else _replication(decisions, partition))


def _compaction(view: CompactedLedgers | None) -> figures.CompactionFigures:
    """Return statistics of the compaction that made the view in force, without failed compactions."""
    if view is None:
        return figures.CompactionFigures(0, 0, 0)
    report = view.manifest.report
    return figures.CompactionFigures(report.get("messages_in", 0) - report.get("messages_out", 0),
                                     view.manifest.created_ms, report.get("seconds", 0))


def _export(decisions: Decisions, partition: Partition) -> figures.ExportFigures | None:
    """Return how far a partition is exported, None if no night exports it."""
    if not partition.policies.exports:
        return None
    ledger_id, entry_id = position = partition.exported_up_to
    since_ms = columns.unexported_since_ms(partition)
    return figures.ExportFigures(position, 0 if partition.exported is None else partition.exported.time_ms,
                         partition.bytes_from(ledger_id, entry_id + 1),
                         max(0, decisions.now_ms - since_ms) // 1000 if since_ms else -1)


def _replication(decisions: Decisions, partition: Partition) -> dict[str, figures.ReplicationFigures]:
    """Return {other cluster: statistics of what goes there}."""
    by_cluster = {}
    for cursor in partition.subscriptions.values():
        if cursor.remote is not None:
            rates, since_ms = columns.rates_of(cursor, 8), columns.came_ms(cursor)
            by_cluster[cursor.remote] = figures.ReplicationFigures(
                expire_rate=rates[6], expired=cursor.cursor.totals[EXPIRED],
                backlog=cursor.cursor.backlog(partition.ledgers), backlog_bytes=backlog_bytes(cursor.cursor, partition),
                delay_s=max(0, decisions.now_ms - since_ms) // 1000 if since_ms else 0,
                is_connected=bool(cursor.consumers))
    return by_cluster


def last_publish_ms(topic: columns.Topic) -> int:
    """Return when the topic's last entry was stored, 0 if there is none."""
    for ledger in reversed(topic.ledgers):
        if ledger.entries:
            return int(ledger.column("broker_time")[ledger.last_entry])
    return 0


# -- subscriptions

def _subscription(clients: Clients, topic: columns.Topic, subscription: Subscription,
                  question: GetStatistics) -> figures.SubscriptionFigures:
    counts, rates = columns.subscription_counts(subscription), columns.rates_of(subscription, 8)
    cursor = subscription.cursor
    partition = topic if isinstance(topic, Partition) else None
    dispatcher, kind, waiting = subscription.dispatcher, columns.kind_of(subscription), columns.delayed(subscription)
    acked_ms, consumed_ms, flow_ms = columns.last_times(subscription)
    first = columns.first_unacknowledged(subscription) if partition is not None and question.earliest else None
    draining = list(dispatcher.draining.values()) if isinstance(dispatcher, KeyShared) else []
    is_sticky = active = None
    if isinstance(dispatcher, KeyShared) and subscription.first_consumer is not None:
        is_sticky = isinstance(dispatcher, EntryBuckets) or subscription.first_consumer.ranges is not None
    if isinstance(dispatcher, Exclusive) and dispatcher.active is not None:
        active = dispatcher.active.name
    return figures.SubscriptionFigures(
        type="None" if kind < 0 else SubType.Name(SubType.ValueType(kind)),
        message_rate=rates[0], byte_rate=rates[1], redeliver_rate=rates[3], acknowledge_rate=rates[5],
        chunk_rate=rates[4], expire_rate=rates[6], drop_rate=0.0 if partition is not None else rates[7],
        messages_out=counts[0], bytes_out=counts[1], expired=cursor.totals[EXPIRED],
        backlog=cursor.backlog(partition.ledgers) if partition is not None else 0,
        backlog_bytes=backlog_bytes(cursor, partition) if partition is not None else 0,
        delayed=waiting, delayed_memory=columns.delayed_memory(subscription, waiting),
        to_redeliver=columns.to_redeliver(subscription), unacknowledged=columns.unacknowledged(subscription),
        is_blocked=columns.is_blocked(subscription),
        earliest_publish_ms=int(first[0].column("publish_time")[first[1]]) if first else 0,
        expired_ms=subscription.expired_ms, acked_ms=acked_ms, consumed_ms=consumed_ms, flow_ms=flow_ms,
        advanced_ms=subscription.advanced_ms,
        acknowledged_runs=sum(len(runs) for _, runs in acknowledged_runs(cursor, topic.ledgers)),
        bitmap_bytes=sum(bitmap.nbytes for bitmap in cursor.bitmaps.values()),
        is_durable=subscription.is_durable, is_replicated=subscription.is_replicated,
        allows_out_of_order=any(one.is_out_of_order_allowed for one in subscription.consumers),
        draining_hashes=len(draining), draining_entries=sum(one.entries for one in draining),
        hashes_cleared=sum(one.hashes_cleared for one in subscription.consumers),
        is_sticky=is_sticky, active_consumer=active, throttled=list(columns.throttled(subscription)),
        accepted=0 if subscription.sieve is None else subscription.sieve.accepted,
        rejected=0 if subscription.sieve is None else subscription.sieve.rejected,
        properties=subscription.properties, messages=None if partition is None else account_of(partition, subscription),
        waiting=waiting_by_priority(subscription),
        consumers=_consumers(clients, subscription) if question.consumers else [])


def account_of(partition: Partition, subscription: Subscription) -> dict[str, int]:
    """Return how many messages were published since the subscription began, and what became of them.

    The value of `published` is the sum of all other values.
    """
    totals = subscription.cursor.totals
    published = partition.next_message - subscription.cursor.since
    return {"published": published, **dict(zip(REASONS, totals, strict=True)), "backlog": published - sum(totals)}


# -- clients

def _consumers(clients: Clients, subscription: Subscription) -> list[figures.ConsumerFigures]:
    dispatcher = subscription.dispatcher
    if not isinstance(dispatcher, KeyShared):
        return [_consumer(clients, consumer) for consumer in subscription.consumers]
    by_slot: dict[int, list[figures.DrainingHash]] = {}
    for number, draining in sorted(dispatcher.draining.items()):
        by_slot.setdefault(draining.slot, []).append(figures.DrainingHash(number, draining.entries, draining.blocked))
    ranges = dispatcher.ranges.all() if dispatcher.ranges is not None else {}
    return [_consumer(clients, consumer, by_slot.get(consumer.slot, []),
                      [(first, last) for first, last in ranges.get(consumer.slot, [])])
            for consumer in subscription.consumers]


def _consumer(clients: Clients, consumer: Consumer, draining: list[figures.DrainingHash] | None = None,
              ranges: list[tuple[int, int]] | None = None) -> figures.ConsumerFigures:
    rates, session = columns.rates_of(consumer, 5), _session_of(clients, consumer)
    return figures.ConsumerFigures(
        name=consumer.name, address=session.address if session else "",
        client_version=session.client_version if session else "", connected_ms=consumer.connected_ms,
        metadata=consumer.metadata, message_rate=rates[0], byte_rate=rates[1], redeliver_rate=rates[2],
        acknowledge_rate=rates[4], chunk_rate=rates[3], messages_out=consumer.messages_out,
        bytes_out=consumer.bytes_out, entries_out=consumer.entries_out, permits=consumer.permits,
        unacknowledged=consumer.unacknowledged, is_blocked=consumer.is_blocked, hashes_cleared=consumer.hashes_cleared,
        acked_ms=consumer.acked_ms, consumed_ms=consumer.consumed_ms, flow_ms=consumer.flow_ms, draining=draining,
        ranges=ranges)


def _producer(clients: Clients, producer: Producer) -> figures.ProducerFigures:
    rates, session = columns.rates_of(producer, 4), _session_of(clients, producer)
    return figures.ProducerFigures(
        name=producer.name, producer_id=producer.producer_id,
        access_mode=api.ProducerAccessMode.Name(api.ProducerAccessMode.ValueType(producer.access_mode)),
        address=session.address if session else "", client_version=session.client_version if session else "",
        supports_partial=session.supports_partial_producer if session else False, connected_ms=producer.connected_ms,
        metadata=producer.metadata, message_rate=rates[0], byte_rate=rates[1], chunk_rate=rates[2], drop_rate=rates[3])


def _inbound(clients: Clients, producers: list[Producer]) -> figures.InboundFigures:
    """Return statistics of the replicators, one or more, of one cluster."""
    newest = max(producers, key=lambda producer: producer.connected_ms)
    rates, session = [columns.rates_of(producer, 4) for producer in producers], _session_of(clients, newest)
    return figures.InboundFigures(
        message_rate=sum(each[0] for each in rates), byte_rate=sum(each[1] for each in rates),
        messages=sum(producer.messages_in for producer in producers),
        bytes=sum(producer.bytes_in for producer in producers),
        address=session.address if session else "", connected_ms=newest.connected_ms)


def _session_of(clients: Clients, client: Producer | Consumer) -> Session | None:
    return clients.sessions.of(client)


# -- all open topics

def measure(topics: TopicTable, consumers: StreamConsumers, statistics: Statistics,
            question: Measure) -> bytes | int:
    def scalable() -> ScalableFigures:
        dispatchers = [subscription.dispatcher for name, partition in topics.by_name.items() if name.is_segment
                       for subscription in partition.subscriptions.values()]
        states, blocked = consumers.figures()
        return {"consumers": states, "rebalances": dict(consumers.rebalances), "blocked": blocked,
                "draining": sum(len(one.draining) for one in dispatchers if isinstance(one, EntryBuckets)),
                "straddling": statistics.straddling()}

    return statistics.measure(question.most, consumers=question.consumers, producers=question.producers,
                              scalable=scalable)
