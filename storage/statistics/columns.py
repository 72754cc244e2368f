"""Counters and columns: what of topics, subscriptions and clients is counted, and the numbers in a row of each.

Counters are plain numbers of the objects themselves, or derived from what there is: `Partition.next_message` counts published messages,
`Cursor.totals` what became of them, and a consumer was delivered what it has asked for less its permits.  Counters begin when the
topic is loaded.  Rates are averages over the last complete window (`stats_window_s`).
"""
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from geminga.storage import format
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.producers import Producer
from geminga.storage.topics.subscription import Consumer, Subscription, SubType

Topic = Partition | NonPersistentTopic
SIZES = (128, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 100 << 10, 1 << 20)      # bytes of an entry, up to which a bucket reaches
SIZE_BOUNDS = np.array(SIZES, np.uint32)
LATENCIES_MS = (0.5, 1, 5, 10, 20, 50, 100, 200, 1_000)                          # likewise of a write
AFTER_RECEIPT = len(LATENCIES_MS) + 1
_IMPATIENT = SubType.Exclusive, SubType.Failover      # they wait for no message's time


@dataclass(slots=True)
class Distribution:
    """Entries that one topic stored in one window: by size, and by seconds until they were on disk."""

    sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZES) + 1))
    size_sum: int = 0
    latencies: list[int] = field(default_factory=lambda: [0] * 2 * AFTER_RECEIPT)      # from receipt on; then from the journal's beginning on
    latency_sum_us: int = 0
    journal_sum_us: int = 0


# -- counters

def topic_counts(topic: Topic) -> tuple:
    """Return (messages, bytes, entries) in, and (messages, bytes, entries) out."""
    messages, size, entries = topic.departed_out
    for subscription in topic.subscriptions.values():
        more = subscription_counts(subscription)
        messages, size, entries = messages + more[0], size + more[1], entries + more[2]
    return topic.messages_in, topic.bytes_in, topic.entries_in, messages, size, entries


def subscription_counts(subscription: Subscription) -> tuple:
    """Return (messages, bytes, entries) out, messages redelivered, chunks, acknowledged, expired, dropped."""
    messages, size, entries, redelivered, chunks = subscription.departed_out
    for consumer in subscription.consumers:
        messages += consumer.granted - consumer.permits
        size += consumer.bytes_out
        entries += consumer.entries_out
        redelivered += consumer.redelivered
        chunks += consumer.chunks_out
    acknowledged, expired, _, _ = subscription.cursor.totals
    return messages, size, entries, redelivered, chunks, acknowledged, expired, subscription.dropped


def consumer_counts(consumer: Consumer) -> tuple:
    """Return (messages, bytes) out, messages redelivered, chunks, messages acknowledged."""
    return consumer.messages_out, consumer.bytes_out, consumer.redelivered, consumer.chunks_out, consumer.acknowledged


def producer_counts(producer: Producer) -> tuple:
    """Return (messages, bytes, chunks) in, messages dropped."""
    return producer.messages_in, producer.bytes_in, producer.chunks_in, producer.dropped


def rates_of(found, nothing: int) -> tuple:
    """Return the counts of the last window per second."""
    return found.rates or (0.0,) * nothing


# -- columns

_LATENCY_NAMES = (*(f"le_{f'{bound:g}'.replace('.', '_')}" for bound in LATENCIES_MS), "overflow")
_SIZE_NAMES = ("le_128", "le_512", "le_1_kb", "le_2_kb", "le_4_kb", "le_16_kb", "le_100_kb", "le_1_mb", "le_overflow")
# How often a rate kept a subscription's consumers waiting, as rate_limiter.py counts and Pulsar's REST has it.
THROTTLED = tuple(f"dispatchThrottled{what}EventsBy{level}Limit"
                  for level in ("Subscription", "Topic", "Broker") for what in ("Msg", "Bytes"))
# Of entries that wait for their time, and of their index: those in memory, bytes of memory, bytes on disk, files; what was done to files.
DELAYED = ("waiting", "delayed_loaded", "delayed_memory", "delayed_disk", "delayed_windows",
           "windows_created", "windows_read", "windows_unreadable", "windows_removed")
TOPIC_COLUMNS = (
    "messages_in", "bytes_in", "messages_out", "bytes_out",
    "rate_in", "throughput_in", "write_rate", "rate_out", "throughput_out", "read_rate",
    "backlog", "backlog_bytes", "storage_bytes", "subscriptions", "producers", "consumers", "backlog_since_ms", "quota_bytes",
    "quota_age_s", "evicted_by_size", "evicted_by_age", "publish_limited", *DELAYED, "delays_refused",
    "delays_overridden", "size_sum", "latency_sum", "journal_sum",
    *(f"size_{name}" for name in _SIZE_NAMES), *(f"latency_{name}" for name in _LATENCY_NAMES),
    *(f"journal_{name}" for name in _LATENCY_NAMES),
)
SUBSCRIPTION_COLUMNS = (
    "messages_out", "bytes_out", "expired",
    "rate_out", "throughput_out", "rate_redeliver", "rate_acknowledged", "rate_expired", "rate_dropped",
    "backlog", "backlog_messages", "delayed", "in_replay", "unacknowledged", "is_blocked", "consumers", "delayed_memory",
    "acked_ms", "consumed_ms", "flow_ms", "advanced_ms", "expired_ms", "kind", *THROTTLED,
)
_BACKLOG, _CONSUMERS = map(SUBSCRIPTION_COLUMNS.index, ("backlog", "consumers"))
_NO_DISTRIBUTION = Distribution()


def topic_row(topic: Topic, under: list[tuple]) -> tuple:
    """Return the row of a topic.  under: the rows of its subscriptions."""
    rates, (messages_out, bytes_out, _) = rates_of(topic, 6), topic.departed_out
    backlog = consumers = 0
    for row in under:
        messages_out, bytes_out = messages_out + row[0], bytes_out + row[1]
        backlog, consumers = backlog + row[_BACKLOG], consumers + row[_CONSUMERS]
    seen = topic.last_window or _NO_DISTRIBUTION
    stored, delays = (0, 0, 0, -1, -1, 0, 0), (0, 0)
    if topic.is_persistent:
        first = find_slowest(topic)
        stored = (_bytes_behind(topic, first) if first else 0, storage_bytes(topic), came_ms(first, topic) if first else 0,
                  topic.policies.quota_bytes, topic.policies.quota_age_s, *topic.evictions)
        delays = topic.delays_refused, topic.delays_overridden
    return (topic.messages_in, topic.bytes_in, messages_out, bytes_out, *rates, backlog, *stored[:2],
            len(topic.subscriptions), len(topic.producers.live), consumers, *stored[2:], publish_limited(topic), *delayed_index(topic),
            *delays, seen.size_sum, seen.latency_sum_us, seen.journal_sum_us, *seen.sizes, *seen.latencies)


def subscription_row(subscription: Subscription) -> tuple:
    counts, rates, topic, cursor = subscription_counts(subscription), rates_of(subscription, 8), subscription.partition, subscription.cursor
    backlog = messages = 0
    if topic.is_persistent:
        backlog = cursor.backlog(topic.ledgers_from(cursor.mark_delete[0]))
        messages = topic.next_message - cursor.since - sum(cursor.totals)
    acked, consumed, flow = last_times(subscription)
    later = delayed(subscription)
    return (counts[0], counts[1], counts[6], rates[0], rates[1], rates[3], rates[5], rates[6], rates[7], backlog, messages,
            later, again(subscription), unacknowledged(subscription), is_blocked(subscription), len(subscription.consumers),
            delayed_memory(subscription, later), acked, consumed, flow, subscription.advanced_ms, subscription.expired_ms,
            kind_of(subscription), *throttled(subscription))


# -- what a row and a JSON object have in common

def is_named(topic: Topic, subscription: Subscription) -> bool:
    """Whether administration means this subscription by its name.  Of two with one name, it means the durable one."""
    return subscription.is_durable or (subscription.name, True) not in topic.subscriptions


def storage_bytes(partition: Partition) -> int:
    """Return the bytes of all stored entries."""
    return sum(ledger.size for ledger in partition.ledgers) - len(partition.ledgers) * format.HEADER_SIZE


def durable(partition: Partition) -> Iterable[Subscription]:
    return (subscription for subscription in partition.subscriptions.values() if subscription.is_durable)


def find_slowest(partition: Partition) -> Subscription | None:
    """Return the durable subscription with the oldest unacknowledged entry, None if there is no backlog."""
    found = min(durable(partition), key=lambda one: one.cursor.mark_delete, default=None)
    return found if found is not None and found.cursor.mark_delete < partition.last_confirmed and first_left(found) else None


def first_left(subscription: Subscription) -> tuple[Ledger, int] | None:
    """Return (ledger, entry) of the first unacknowledged entry, None if there is none."""
    ledger_id, entry_id = subscription.cursor.mark_delete
    for ledger in subscription.partition.ledgers_from(ledger_id):
        entry_id = subscription.cursor.first_hole(ledger, entry_id + 1 if ledger.ledger_id == ledger_id else 0)
        if entry_id < ledger.entries:
            return ledger, entry_id
    return None


def came_ms(subscription: Subscription, partition: Partition) -> int:
    """Return when the first unacknowledged entry was stored, 0 if there is none."""
    found = first_left(subscription)
    return int(found[0].column("broker_time")[found[1]]) if found else 0


def _bytes_behind(partition: Partition, subscription: Subscription) -> int:
    """Return the bytes from the first unacknowledged entry on, acknowledged entries among them included."""
    found = first_left(subscription)
    if found is None:
        return 0
    ledger, entry_id = found
    behind = sum(one.size - format.HEADER_SIZE for one in partition.ledgers_from(ledger.ledger_id + 1) if one.ledger_id > ledger.ledger_id)
    return behind + ledger.size - int(ledger.column("offset")[entry_id])


def delayed(subscription: Subscription) -> int:
    """Return the number of delayed entries that wait for this subscription; 0 if its type does not wait."""
    partition = subscription.partition
    kind = subscription.last_kind if subscription.kind is None else subscription.kind
    if partition.schedule is None or kind in _IMPATIENT or not partition.policies.delayed_delivery:
        return 0
    return partition.schedule.waiting_of(subscription.cursor)


def delayed_index(topic: Topic) -> tuple[int, ...]:
    """Return the columns DELAYED."""
    if not topic.is_persistent or topic.schedule is None:
        return (0,) * len(DELAYED)
    schedule, files = topic.schedule, topic.schedule.store.files
    return (schedule.waiting if topic.policies.delayed_delivery else 0, schedule.loaded, schedule.memory_bytes, schedule.index_bytes,
            schedule.windows, files.created, files.read, files.unreadable, files.removed)


def delayed_memory(subscription: Subscription, later: int) -> int:
    """Return bytes of memory of the delayed index, if so many entries wait for this subscription, else 0."""
    return subscription.partition.schedule.memory_bytes if later else 0


def again(subscription: Subscription) -> int:
    """Return the number of entries to redeliver."""
    pending = getattr(subscription.dispatcher, "pending", None)
    return pending.to_redeliver if pending is not None else 0


def unacknowledged(subscription: Subscription) -> int:
    """Return messages unacknowledged by consumers of a Shared or Key_Shared subscription.

    It is 0 for Exclusive and Failover, as in Pulsar.
    """
    return getattr(subscription.dispatcher, "unacknowledged", 0)


def publish_limited(topic: Topic) -> int:
    """Return how often a publish rate throttled the topic."""
    return topic.rate_limits.publish_limited_times if topic.rate_limits is not None else 0


def throttled(subscription: Subscription) -> tuple[int, ...]:
    """Return the columns THROTTLED."""
    if subscription.limited is None:
        return (0,) * len(THROTTLED)
    return tuple([subscription.limited.times.get(name, 0) for name in THROTTLED])


def kind_of(subscription: Subscription) -> int:
    """Return the SubType, of the last consumers if there are none now; -1 if there never were any."""
    kind = subscription.last_kind if subscription.kind is None else subscription.kind
    return -1 if kind is None else kind


def is_blocked(subscription: Subscription) -> bool:
    return getattr(subscription.dispatcher, "is_blocked", False)


def last_times(subscription: Subscription) -> tuple[int, int, int]:
    """Return when the subscription last acknowledged, delivered, and got permits."""
    acked, consumed, flow = subscription.last_ms
    for consumer in subscription.consumers:
        acked, consumed, flow = max(acked, consumer.acked_ms), max(consumed, consumer.consumed_ms), max(flow, consumer.flow_ms)
    return acked, consumed, flow
