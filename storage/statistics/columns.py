"""Counters of topics, subscriptions and clients, and the columns of the rows in which owners report them.

Counters are plain numbers of the objects themselves, or derived: `Partition.next_message` counts published messages,
`Cursor.totals` the settled ones. The messages delivered to a consumer are the permits that it granted less the permits
that remain. Counters begin when the topic is opened. Rates are averages over the last complete window
(`stats_window_s`).
"""
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from geminga.proto.job_properties import PRIORITIES
from geminga.storage import format
from geminga.storage.dispatch.by_priority import ByPriority
from geminga.storage.dispatch.shared import Shared
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Consumer, Producer, Subscription, SubType

Topic = Partition | NonPersistentTopic
Counts = tuple[int, ...]
Rates = tuple[float, ...]
Row = tuple[float, ...]
SIZES = (128, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 100 << 10, 1 << 20)      # bytes: upper bounds of buckets
SIZE_BOUNDS = np.array(SIZES, np.uint32)
LATENCIES_MS = (0.5, 1, 5, 10, 20, 50, 100, 200, 1_000)                          # upper bounds of buckets
BUCKETS = len(LATENCIES_MS) + 1      # the last one has no bound
_IMPATIENT = SubType.Exclusive, SubType.Failover      # types that deliver delayed entries at once


class Counted(Protocol):
    """A topic, subscription, consumer or producer, as an object with counters and rates."""

    counted: Counts      # when its last window ended
    rates: Rates         # of that window


@dataclass(slots=True)
class Distribution:
    """Distribution of the entries that one topic stored in one window: by size, and by time until they were on disk."""

    sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZES) + 1))
    size_sum: int = 0
    latencies: list[int] = field(default_factory=lambda: [0] * BUCKETS)            # by the time since the entries came
    journal_latencies: list[int] = field(default_factory=lambda: [0] * BUCKETS)    # by the time of the journal's write
    latency_sum_us: int = 0
    journal_sum_us: int = 0


# -- counters

def topic_counts(topic: Topic) -> Counts:
    """Return a topic's counters: (messages, bytes, entries) in, and (messages, bytes, entries) out to consumers."""
    messages, size, entries = topic.departed_out
    for subscription in topic.subscriptions.values():
        if subscription.remote is not None:
            continue
        more = subscription_counts(subscription)
        messages, size, entries = messages + more[0], size + more[1], entries + more[2]
    return topic.messages_in, topic.bytes_in, topic.entries_in, messages, size, entries


def subscription_counts(subscription: Subscription) -> Counts:
    """Return a subscription's counters.

    They are (messages, bytes, entries) out, messages redelivered, chunks, and messages acknowledged, expired and
    dropped.
    """
    messages, size, entries, redelivered, chunks = subscription.departed_out
    for consumer in subscription.consumers:
        messages += consumer.granted - consumer.permits
        size += consumer.bytes_out
        entries += consumer.entries_out
        redelivered += consumer.redelivered
        chunks += consumer.chunks_out
    acknowledged, expired, _, _ = subscription.cursor.totals
    return messages, size, entries, redelivered, chunks, acknowledged, expired, subscription.dropped


def consumer_counts(consumer: Consumer) -> Counts:
    """Return a consumer's counters: (messages, bytes) out, messages redelivered, chunks, messages acknowledged."""
    return consumer.messages_out, consumer.bytes_out, consumer.redelivered, consumer.chunks_out, consumer.acknowledged


def producer_counts(producer: Producer) -> Counts:
    """Return a producer's counters: (messages, bytes, chunks) in, messages dropped."""
    return producer.messages_in, producer.bytes_in, producer.chunks_in, producer.dropped


def ordinary_producers(topic: Topic) -> list[Producer]:
    """Return a topic's connected producers without replicators."""
    return [producer for producer in topic.producers.live.values() if producer.source is None]


def replicators(topic: Topic) -> dict[str, list[Producer]]:
    """Return a topic's connected replicators, {cluster that they come from: replicators}."""
    by_source: dict[str, list[Producer]] = {}
    for producer in topic.producers.live.values():
        if producer.source is not None:
            by_source.setdefault(producer.source, []).append(producer)
    return by_source


def rates_of(counted: Counted, width: int) -> Rates:
    """Return the rates per second of the last complete window; `width` zeros while the first window is open."""
    return counted.rates or (0.0,) * width


# -- columns

_LATENCY_NAMES = (*(f"le_{f'{bound:g}'.replace('.', '_')}" for bound in LATENCIES_MS), "overflow")
_SIZE_NAMES = ("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb", "le_overflow")
# How often a rate held back a subscription's entries: as rate_limiter.py counts, under the names of Pulsar's REST.
THROTTLED = tuple(f"dispatchThrottled{unit}EventsBy{level}Limit"
                  for level in ("Subscription", "Topic", "Broker") for unit in ("Msg", "Bytes"))
# Waiting entries; their index: rows in memory, bytes of memory, bytes on disk, files; files since the topic was opened.
DELAYED = ("waiting", "delayed_loaded", "delayed_memory", "delayed_disk", "delayed_windows",
           "windows_created", "windows_read", "windows_unreadable", "windows_removed")
TOPIC_COLUMNS = (
    "messages_in", "bytes_in", "messages_out", "bytes_out",
    "rate_in", "throughput_in", "write_rate", "rate_out", "throughput_out", "read_rate",
    "backlog", "largest_backlog", "backlog_bytes", "storage_bytes", "subscriptions", "producers", "consumers",
    "backlog_since_ms",
    "quota_bytes", "quota_age_s", "evicted_by_size", "evicted_by_age", "publish_limited", *DELAYED, "delays_refused",
    "delays_overridden", "transactions_open", "transactions_aborted", "transactions_committed", "unexported_since_ms",
    "size_sum", "latency_sum", "journal_sum",
    *(f"size_{name}" for name in _SIZE_NAMES), *(f"latency_{name}" for name in _LATENCY_NAMES),
    *(f"journal_{name}" for name in _LATENCY_NAMES),
)
# Whether a subscription delivers by priority to consumers, and the entries of each priority that wait there.
BY_PRIORITY = ("by_priority", *(f"waiting_{priority}" for priority in range(PRIORITIES)))
SUBSCRIPTION_COLUMNS = (
    "messages_out", "bytes_out", "expired",
    "rate_out", "throughput_out", "rate_redeliver", "rate_acknowledged", "rate_expired", "rate_dropped",
    "backlog", "backlog_messages", "backlog_bytes", "backlog_since_ms", "delayed", "in_replay", "unacknowledged",
    "is_blocked", "consumers", "delayed_memory", "acked_ms", "consumed_ms", "flow_ms", "advanced_ms", "expired_ms",
    "kind", "transactions_committed", "transactions_aborted", *THROTTLED, *BY_PRIORITY,
)
_BACKLOG, _MESSAGES, _CONSUMERS = map(SUBSCRIPTION_COLUMNS.index, ("backlog", "backlog_messages", "consumers"))
_NO_DISTRIBUTION = Distribution()
_NOT_BY_PRIORITY = (0,) * len(BY_PRIORITY)


def topic_row(topic: Topic, under: list[Row]) -> Row:
    """Return the row of a topic: its TOPIC_COLUMNS.

    under: the rows of its subscriptions, without replication cursors.
    """
    rates = rates_of(topic, 6)
    messages_out: float
    bytes_out: float
    messages_out, bytes_out, _ = topic.departed_out
    backlog = consumers = largest = 0.0
    for row in under:
        messages_out, bytes_out = messages_out + row[0], bytes_out + row[1]
        backlog, consumers = backlog + row[_BACKLOG], consumers + row[_CONSUMERS]
        largest = max(largest, row[_MESSAGES])
    seen = topic.last_window if isinstance(topic.last_window, Distribution) else _NO_DISTRIBUTION
    sizes: tuple[int, int] = 0, 0                          # backlog_bytes, storage_bytes
    quotas: tuple[int, int, int, int, int] = 0, -1, -1, 0, 0      # backlog_since_ms to evicted_by_age
    delays = 0, 0                                          # delays_refused, delays_overridden
    unexported_ms = 0
    if isinstance(topic, Partition):
        slowest, policies = find_slowest(topic), topic.policies
        sizes = _bytes_behind(topic, slowest) if slowest else 0, storage_bytes(topic)
        quotas = came_ms(slowest) if slowest else 0, policies.quota_bytes, policies.quota_age_s, *topic.evictions
        delays = topic.delays_refused, topic.delays_overridden
        unexported_ms = unexported_since_ms(topic)
    return (topic.messages_in, topic.bytes_in, messages_out, bytes_out, *rates, backlog, largest, *sizes,
            len(under), len(ordinary_producers(topic)), consumers, *quotas, publish_limited(topic),
            *delayed_index(topic), *delays, *transactions(topic), unexported_ms,
            seen.size_sum, seen.latency_sum_us, seen.journal_sum_us,
            *seen.sizes, *seen.latencies, *seen.journal_latencies)


def subscription_row(subscription: Subscription) -> Row:
    """Return the row of a subscription: its SUBSCRIPTION_COLUMNS."""
    counts, rates = subscription_counts(subscription), rates_of(subscription, 8)
    topic, cursor = subscription.partition, subscription.cursor
    backlog = messages = size = since_ms = 0
    if isinstance(topic, Partition):
        backlog = cursor.backlog(topic.ledgers_from(cursor.mark_delete[0]))
        messages = topic.next_message - cursor.since - sum(cursor.totals)
        if backlog:
            size, since_ms = _bytes_behind(topic, subscription), came_ms(subscription)
    acked, consumed, flow = last_times(subscription)
    later = delayed(subscription)
    return (counts[0], counts[1], counts[6], rates[0], rates[1], rates[3], rates[5], rates[6], rates[7],
            backlog, messages, size, since_ms, later, to_redeliver(subscription), unacknowledged(subscription),
            is_blocked(subscription), len(subscription.consumers), delayed_memory(subscription, later), acked,
            consumed, flow, subscription.advanced_ms, subscription.expired_ms, kind_of(subscription),
            *subscription.transactions_ended, *throttled(subscription), *by_priority(subscription))


# -- single numbers, for rows and for the answers of admin/

def is_named(topic: Topic, subscription: Subscription) -> bool:
    """Whether administration means this subscription by its name, which a durable and a non-durable one may share.

    The name means the durable one.
    """
    return subscription.is_durable or (subscription.name, True) not in topic.subscriptions


def transactions(topic: Topic) -> tuple[int, int, int]:
    """Return the number of transactions that published to a topic: open, aborted and committed since it was opened."""
    known = topic.transactions if isinstance(topic, Partition) else None
    return (0, 0, 0) if known is None else (known.publishing, known.aborted, known.committed)


def storage_bytes(partition: Partition) -> int:
    """Return the bytes of all stored entries of a partition."""
    return sum(ledger.size for ledger in partition.ledgers) - len(partition.ledgers) * format.HEADER_SIZE


def durable(partition: Partition) -> Iterable[Subscription]:
    """Return the partition's durable subscriptions."""
    return (subscription for subscription in partition.subscriptions.values() if subscription.is_durable)


def find_slowest(partition: Partition) -> Subscription | None:
    """Return the durable subscription with the oldest unacknowledged entry, None if there is no backlog."""
    slowest = min(durable(partition), key=lambda one: one.cursor.mark_delete, default=None)
    if slowest is None or slowest.cursor.mark_delete >= partition.last_confirmed or not first_unacknowledged(slowest):
        return None
    return slowest


def first_unacknowledged(subscription: Subscription) -> tuple[Ledger, int] | None:
    """Return (ledger, entry) of a subscription's first unacknowledged entry, None if there is none."""
    ledger_id, entry_id = subscription.cursor.mark_delete
    for ledger in subscription.partition.ledgers_from(ledger_id):
        entry_id = subscription.cursor.first_hole(ledger, entry_id + 1 if ledger.ledger_id == ledger_id else 0)
        if entry_id < ledger.entries:
            return ledger, entry_id
    return None


def came_ms(subscription: Subscription) -> int:
    """Return when a subscription's first unacknowledged entry was stored, 0 if there is none."""
    return _stored_ms(first_unacknowledged(subscription))


def unexported_since_ms(partition: Partition) -> int:
    """Return when the first entry that is to be exported was stored, 0 if there is none."""
    return _stored_ms(partition.first_unexported())


def _stored_ms(first: tuple[Ledger, int] | None) -> int:
    return int(first[0].column("broker_time")[first[1]]) if first else 0


def _bytes_behind(partition: Partition, subscription: Subscription) -> int:
    """Return the bytes of all entries from a subscription's first unacknowledged one on, acknowledged ones included."""
    first = first_unacknowledged(subscription)
    if first is None:
        return 0
    ledger, entry_id = first
    behind = sum(later.size - format.HEADER_SIZE
                 for later in partition.ledgers_from(ledger.ledger_id + 1) if later.ledger_id > ledger.ledger_id)
    return behind + ledger.size - int(ledger.column("offset")[entry_id])


def delayed(subscription: Subscription) -> int:
    """Return the number of delayed entries that wait for this subscription; 0 if its type ignores delays."""
    partition, is_impatient = subscription.partition, subscription.cursor.last_type in _IMPATIENT
    if partition.schedule is None or is_impatient or not partition.policies.delayed_delivery:
        return 0
    return partition.schedule.waiting_of(subscription.cursor)


def delayed_index(topic: Topic) -> tuple[int, ...]:
    """Return the columns DELAYED of a topic's row, which describe its delayed index."""
    if topic.schedule is None:
        return (0,) * len(DELAYED)
    schedule, files = topic.schedule, topic.schedule.store.files
    waiting = topic.delayed if isinstance(topic, Partition) and topic.policies.delayed_delivery else 0
    return (waiting, schedule.store.count, schedule.memory_bytes,
            files.size, schedule.windows, files.created, files.read, files.unreadable, files.removed)


def delayed_memory(subscription: Subscription, waiting: int) -> int:
    """Return the bytes of memory of the topic's delayed index if entries wait for this subscription, else 0.

    waiting: the number of delayed entries that wait for the subscription.
    """
    schedule = subscription.partition.schedule
    return schedule.memory_bytes if waiting and schedule is not None else 0


def to_redeliver(subscription: Subscription) -> int:
    """Return the number of a subscription's entries that wait for redelivery."""
    dispatcher = subscription.dispatcher
    return dispatcher.pending.to_redeliver if isinstance(dispatcher, Shared) else 0


def by_priority(subscription: Subscription) -> tuple[int, ...]:
    """Return the columns BY_PRIORITY of a subscription's row."""
    dispatcher = subscription.dispatcher
    return (1, *dispatcher.pending.counts) if isinstance(dispatcher, ByPriority) else _NOT_BY_PRIORITY


def unacknowledged(subscription: Subscription) -> int:
    """Return the number of unacknowledged messages at consumers of a Shared or Key_Shared subscription.

    The number is 0 for Exclusive and Failover, as in Pulsar.
    """
    dispatcher = subscription.dispatcher
    return dispatcher.unacknowledged if isinstance(dispatcher, Shared) else 0


def publish_limited(topic: Topic) -> int:
    """Return how often a publish rate throttled the topic."""
    return topic.rate_limits.publish_limited_times if topic.rate_limits is not None else 0


def throttled(subscription: Subscription) -> tuple[int, ...]:
    """Return the columns THROTTLED of a subscription's row: how often each dispatch rate throttled it."""
    if subscription.limited is None:
        return (0,) * len(THROTTLED)
    return tuple([subscription.limited.times.get(name, 0) for name in THROTTLED])


def kind_of(subscription: Subscription) -> int:
    """Return the SubType of a subscription's consumers, or of its last ones; -1 if that is not known."""
    return -1 if subscription.cursor.last_type is None else subscription.cursor.last_type


def is_blocked(subscription: Subscription) -> bool:
    """Whether the subscription is delivered nothing more because of its unacknowledged messages."""
    dispatcher = subscription.dispatcher
    return isinstance(dispatcher, Shared) and dispatcher.is_blocked


def last_times(subscription: Subscription) -> tuple[int, int, int]:
    """Return when the subscription last acknowledged, was last delivered entries, and last got permits, in ms."""
    acked, consumed, flow = subscription.last_ms
    for consumer in subscription.consumers:
        acked, consumed = max(acked, consumer.acked_ms), max(consumed, consumer.consumed_ms)
        flow = max(flow, consumer.flow_ms)
    return acked, consumed, flow
