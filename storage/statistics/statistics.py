"""Counters of topics, subscriptions, consumers and producers, and the rates made of them.

Counters are plain numbers of the objects themselves, increased once per run of entries, or derived from other state.
Messages published are `Partition.next_message`, their fate is in `Cursor.totals`, and deliveries are permits granted
less permits left. So statistics add up as ledgers and cursors do. Rates are averages over the last complete window
(`stats_window_s`), computed when a window ends. Counters begin when the topic is loaded.

`measure` returns everything that is open as columns of numbers. It keeps a row for each topic and subscription, and
renews rows of changed topics, for some milliseconds at a time. So a scrape costs what changed since the last one, and
delays nobody. The JSON objects about one topic are made in ../admin/topic_stats.py.
"""
import bisect
import contextlib
import itertools
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.proto.envelope import RAW
from geminga.proto.sends import IS_CHUNK
from geminga.storage import format
from geminga.storage.errors import CorruptFile
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.non_persistent import NonPersistentTopic
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.producers import Producer
from geminga.storage.topics.publish_plan import Plan
from geminga.storage.topics.subscription import Consumer, Subscription, SubType
from geminga.storage.topics.watcher import Watcher

Topic = Partition | NonPersistentTopic
SIZES = (128, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 100 << 10, 1 << 20)      # bytes of an entry, up to which a bucket reaches
_SIZES = np.array(SIZES, np.uint32)
LATENCIES_MS = (0.5, 1, 5, 10, 20, 50, 100, 200, 1_000)                          # likewise of a write
SUBSCRIPTIONS_EACH = 10      # for each topic with a row of its own, on average; one with too many is rolled up
_SLICE_SECONDS = 0.005       # of rows made anew in one pass
_AFTER = len(LATENCIES_MS) + 1
_IMPATIENT = SubType.Exclusive, SubType.Failover      # they wait for no message's time


@dataclass(slots=True)
class Distribution:
    """Entries that one topic stored in one window: by size, and by seconds until they were on disk."""

    sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZES) + 1))
    size_sum: int = 0
    latencies: list[int] = field(default_factory=lambda: [0] * 2 * _AFTER)      # from receipt on; then from the journal's beginning on
    latency_sum_us: int = 0
    journal_sum_us: int = 0


# -- counters

def topic_counts(topic: Topic) -> tuple:
    """Return (messages, bytes, entries) in, and (messages, bytes, entries) out."""
    messages, size, entries = topic.gone_out
    for subscription in topic.subscriptions.values():
        more = subscription_counts(subscription)
        messages, size, entries = messages + more[0], size + more[1], entries + more[2]
    return topic.messages_in, topic.bytes_in, topic.entries_in, messages, size, entries


def subscription_counts(subscription: Subscription) -> tuple:
    """Return (messages, bytes, entries) out, messages redelivered, chunks, acknowledged, expired, dropped."""
    messages, size, entries, redelivered, chunks = subscription.gone_out
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


def _topic_row(topic: Topic, under: list[tuple]) -> tuple:
    """Return the row of a topic.  under: the rows of its subscriptions."""
    rates, (messages_out, bytes_out, _) = rates_of(topic, 6), topic.gone_out
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


def _subscription_row(subscription: Subscription) -> tuple:
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
    schedule, files = topic.schedule, topic.schedule.files
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


# -- an owner's

class _Table:
    """Rows of numbers for objects that come and go."""

    def __init__(self, columns: tuple[str, ...]):
        self.rows = np.zeros((64, len(columns)))
        self.marks = np.zeros(64, np.int64)       # a number that goes with each row
        self._free: list[int] = []
        self._used = 0

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self.rows):
            self.rows = np.concatenate((self.rows, np.zeros_like(self.rows)))
            self.marks = np.concatenate((self.marks, np.zeros_like(self.marks)))
        self._used += 1
        return self._used - 1

    def give_back(self, row: int) -> None:
        self.rows[row] = 0
        self._free.append(row)


@dataclass(slots=True)
class _Known:
    """The rows of one topic."""

    row: int
    subscriptions: dict[Subscription, int] = field(default_factory=dict)


class Statistics(Watcher):
    """Statistics of everything that is open at one owner."""

    watches_non_persistent = True

    def __init__(self, owner, window_s: int):
        self._owner = owner
        self._waiting: dict[Topic, None] = {}               # have changed before, and nobody has measured since
        self._stale: dict[Topic, None] = {}                 # of those somebody measures now
        self._begin(window_s)
        self._second = owner.now_ms // 1000
        self._known: dict[Topic, _Known] = {}
        self._topics, self._subscriptions = _Table(TOPIC_COLUMNS), _Table(SUBSCRIPTION_COLUMNS)
        self._namespaces: dict[str, int] = {}
        self._shown: set[Topic] = set()                     # had rows of their own in the last answer

    def _begin(self, window_s: int) -> None:
        """Begin the window of a topic.  Windows end at different seconds, so that their work is spread."""
        self._window_s = window_s
        self._moved: list[dict[Topic, None]] = [{} for _ in range(window_s)]
        self._since_ms = [self._owner.now_ms] * window_s

    def configure(self, window_s: int) -> None:
        """Set the length of windows.  Open windows end."""
        if window_s == self._window_s:
            return
        self._gather()
        before, since_ms = self._moved, self._since_ms
        self._begin(window_s)
        for moved, began_ms in zip(before, since_ms, strict=True):
            for topic in moved:
                if self._is_open(topic) and self._end_window(topic, max(1, self._owner.now_ms - began_ms) / 1000):
                    self._owner.changed[topic] = None      # so that its rates end with the next

    # -- what happens

    def stored(self, planned: Plan, seconds: float, journal_seconds: float) -> None:
        """Count a plan that is in the journal: seconds since its entries came, and seconds of the write."""
        late, written = bisect.bisect_left(LATENCIES_MS, seconds * 1000), _AFTER + bisect.bisect_left(LATENCIES_MS, journal_seconds * 1000)
        micros, journal_micros = int(seconds * 1e6), int(journal_seconds * 1e6)
        is_few = planned.handles is None
        bucket, by_size, are_chunks = (0, [], False) if is_few else _of_many(planned)
        for number, group in enumerate(planned.groups):
            partition, count, size = group.partition, group.count, group.size - group.ledger.size
            partition.entries_in += count
            partition.bytes_in += size
            window = partition.window
            if window is None:
                window = partition.window = Distribution()
            window.size_sum += size
            window.latencies[late] += count
            window.latencies[written] += count
            window.latency_sum_us += micros * count
            window.journal_sum_us += journal_micros * count
            which = slice(group.first, group.first + count)
            if is_few:
                for one in planned.few[which]:
                    _count_one(window, partition, *one)
                continue
            if bucket >= 0:
                window.sizes[bucket] += count
            else:
                for at, many in enumerate(by_size[number]):
                    if many:
                        window.sizes[at] += many
            live = partition.producers.live
            if len(live) == 1 and not are_chunks:
                for producer in live.values():
                    producer.messages_in += group.next_message - partition.next_message
                    producer.bytes_in += size
            else:
                self._count_producers(planned.handles[which], planned.index[which], partition)

    def _count_producers(self, handles: NDArray, rows: NDArray, partition: Partition) -> None:
        distinct, inverse = np.unique(handles, return_inverse=True)
        are_chunks = (rows["flags"] & IS_CHUNK) != 0
        partition.chunks_in += int(are_chunks.sum())
        columns = (np.bincount(inverse, weights).tolist() for weights in (rows["messages"], rows["size"], are_chunks))
        for handle, messages, size, chunks in zip(distinct.tolist(), *columns, strict=True):
            if (producer := self._owner.producers.get(handle)) is not None:
                producer.messages_in += int(messages)
                producer.bytes_in += int(size)
                producer.chunks_in += int(chunks)

    def tick(self, now_ms: int) -> None:
        """Compute rates of topics whose window has ended."""
        self._gather()
        first, self._second = self._second + 1, now_ms // 1000
        for second in range(max(first, self._second - self._window_s + 1), self._second + 1):
            number = second % self._window_s
            moved, self._moved[number] = self._moved[number], {}
            seconds, self._since_ms[number] = (now_ms - self._since_ms[number]) / 1000, now_ms
            for topic in moved:
                if self._is_open(topic) and self._end_window(topic, seconds):
                    self._moved[number][topic] = None      # so that its rates end with the next

    def _gather(self) -> None:
        for topic in self._owner.changed:
            self._moved[hash(topic) % self._window_s][topic] = None
        self._waiting.update(self._owner.changed)
        self._owner.changed = {}

    def _end_window(self, topic: Topic, seconds: float) -> bool:
        """End the window of a topic.  Return whether it has any rates."""
        topic.last_window, topic.window = topic.window, None
        is_moving = _roll(topic, topic_counts(topic), seconds)
        for subscription in topic.subscriptions.values():
            is_moving |= _roll(subscription, subscription_counts(subscription), seconds)
            for consumer in subscription.consumers:
                _roll(consumer, consumer_counts(consumer), seconds)
        for producer in topic.producers.live.values():
            _roll(producer, producer_counts(producer), seconds)
        self._waiting[topic] = None
        return is_moving or topic.last_window is not None

    def _is_open(self, topic: Topic) -> bool:
        return (self._owner.by_name if topic.is_persistent else self._owner.live).get(topic.name) is topic

    def release(self, topic: Topic) -> None:
        """Forget a topic that was closed."""
        for noted in (self._owner.changed, self._waiting, self._stale, self._moved[hash(topic) % self._window_s]):
            noted.pop(topic, None)
        self._shown.discard(topic)
        if (known := self._known.pop(topic, None)) is not None:
            self._topics.give_back(known.row)
            for row in known.subscriptions.values():
                self._subscriptions.give_back(row)

    # -- all that is open

    def measure(self, most: int, *, consumers: bool, producers: bool) -> dict | bytes:
        """Return {"left": n} while n topics still need new rows; then the packed tables.

        At most so many topics have rows of their own, and ten times as many subscriptions. Topics with traffic in the
        last window come first, then topics that had rows the last time, then topics with the most traffic. All others
        are summed by namespace.
        """
        self._freshen()
        if self._stale:
            return {"left": len(self._stale)}
        topics = list(self._known)
        table, at = self._topics.rows, np.array([known.row for known in self._known.values()], np.int64)
        chosen, subscriptions = topics, sum([len(known.subscriptions) for known in self._known.values()])
        if len(topics) > most or subscriptions > most * SUBSCRIPTIONS_EACH:
            order = np.lexsort((-table[at][:, :4].sum(axis=1), [topic not in self._shown for topic in topics],
                                table[at][:, 4:10].sum(axis=1) == 0))
            chosen = _within([topics[n] for n in order.tolist()], most)
            self._shown = set(chosen) if most else self._shown
        rows = np.array([self._known[topic].row for topic in chosen], np.int64)
        under = [(number, subscription.name, row) for number, topic in enumerate(chosen)
                 for subscription, row in self._known[topic].subscriptions.items() if is_named(topic, subscription)]
        lines = np.array([row for topic in chosen for row in self._known[topic].subscriptions.values()], np.int64)
        counts = np.bincount(self._topics.marks[at], minlength=len(self._namespaces))
        head = {
            "namespaces": list(self._namespaces), "loaded": counts.tolist(), "rolled_up": len(topics) - len(chosen),
            "rolled_up_subscriptions": subscriptions - len(lines),
            "topics": [str(topic.name) for topic in chosen], "subscriptions": [(number, name) for number, name, _ in under],
            "consumers": [_consumer_line(number, one) for number, topic in enumerate(chosen)
                          for subscription in topic.subscriptions.values() for one in subscription.consumers] if consumers else [],
            "producers": [_producer_line(number, one) for number, topic in enumerate(chosen) for one in topic.producers.live.values()]
            if producers else [],
        }
        return pack(head, [table[rows], self._subscriptions.rows[np.array([row for _, _, row in under], np.int64)],
                           self._sums(self._topics, rows), self._sums(self._subscriptions, lines)])

    def _freshen(self) -> None:
        """Renew some rows of changed topics.  Topics that change meanwhile wait for the next time."""
        if not self._stale:
            self._gather()
            self._stale, self._waiting = self._waiting, {}
        deadline = time.perf_counter() + _SLICE_SECONDS
        while self._stale and time.perf_counter() < deadline:
            for topic in list(itertools.islice(self._stale, 20)):
                del self._stale[topic]
                if self._is_open(topic):
                    with contextlib.suppress(CorruptFile, OSError):      # that it cannot be read is told where it is used
                        self._make_row(topic)

    def _make_row(self, topic: Topic) -> None:
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = _Known(self._topics.take())
            self._topics.marks[known.row] = self._namespaces.setdefault(topic.name.namespace, len(self._namespaces))
        there = topic.subscriptions.values()
        if len(known.subscriptions) != len(there) or any(subscription not in known.subscriptions for subscription in there):
            for subscription in known.subscriptions.keys() - set(there):
                self._subscriptions.give_back(known.subscriptions.pop(subscription))
            for subscription in there:
                if subscription not in known.subscriptions:
                    row = known.subscriptions[subscription] = self._subscriptions.take()
                    self._subscriptions.marks[row] = self._topics.marks[known.row]
        under = []
        for subscription, row in known.subscriptions.items():
            under.append(_subscription_row(subscription))
            self._subscriptions.rows[row] = under[-1]
        self._topics.rows[known.row] = _topic_row(topic, under)

    def _sums(self, table: _Table, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sums of all other rows, one for each namespace.  Unused rows are 0."""
        sums, is_other = np.zeros((len(self._namespaces), table.rows.shape[1])), np.ones(len(table.rows), bool)
        is_other[rows] = False
        marks = table.marks[is_other]
        for column, values in enumerate(table.rows[is_other].T if len(sums) else ()):
            sums[:, column] = np.bincount(marks, values, len(sums))
        return sums


def _within(topics: list[Topic], most: int) -> list[Topic]:
    """Return the first topics, at most so many, with at most so many subscriptions together."""
    chosen, left = [], most * SUBSCRIPTIONS_EACH
    for topic in topics:
        if len(chosen) == most:
            break
        if len(topic.subscriptions) <= left:
            chosen.append(topic)
            left -= len(topic.subscriptions)
    return chosen


def _of_many(planned: Plan) -> tuple[int, list[list[int]], bool]:
    """Return (bucket of all sizes or -1, counts per bucket for each group if -1, whether there are chunks)."""
    sizes, groups = planned.index["size"], planned.groups
    are_chunks = bool((planned.index["flags"] & IS_CHUNK).any())
    least, most = (bisect.bisect_left(SIZES, bound) for bound in (sizes.min(), sizes.max()))
    if least == most:
        return least, [], are_chunks
    width = len(SIZES) + 1
    buckets = np.searchsorted(_SIZES, sizes) + np.repeat(np.arange(0, len(groups) * width, width), [group.count for group in groups])
    return -1, np.bincount(buckets, minlength=len(groups) * width).reshape(-1, width).tolist(), are_chunks


def _count_one(window: Distribution, partition: Partition, producer: Producer, size: int, messages: int, flags: int) -> None:
    window.sizes[bisect.bisect_left(SIZES, size)] += 1
    producer.messages_in += messages
    producer.bytes_in += size
    if flags & IS_CHUNK:
        partition.chunks_in += 1
        producer.chunks_in += 1


def _roll(found, counts: tuple, seconds: float) -> bool:
    """End a window.  Return its rates, and whether any of them is not 0."""
    before = found.counted or (0,) * len(counts)
    found.rates = tuple([(now - then) / seconds if now > then else 0.0 for now, then in zip(counts, before, strict=True)])
    found.counted = counts
    return any(found.rates)


def _consumer_line(number: int, consumer: Consumer) -> tuple:
    rates = rates_of(consumer, 5)
    return (number, consumer.subscription.name, consumer.name, consumer.consumer_id, rates[0], rates[1], rates[2], rates[4],
            consumer.unacknowledged, int(consumer.is_blocked), consumer.permits, consumer.messages_out, consumer.bytes_out)


def _producer_line(number: int, producer: Producer) -> tuple:
    rates = rates_of(producer, 4)
    return number, producer.name, producer.producer_id, rates[0], rates[1], rates[1] / rates[0] if rates[0] else 0.0


def pack(head: dict, tables: list[NDArray[np.float64]]) -> bytes:
    """Return a line of JSON with the number of rows of each table, and the tables."""
    rows = [len(table) for table in tables]
    return b"".join([RAW, json.dumps(head | {"rows": rows}).encode(), b"\n", *(np.ascontiguousarray(table).tobytes() for table in tables)])


def unpack(data: bytes) -> tuple[dict, list[NDArray[np.float64]]]:
    """Return (head, tables) of the bytes from `pack`."""
    at = data.index(b"\n") + 1
    head, tables = json.loads(data[len(RAW):at]), []
    for rows, columns in zip(head["rows"], (TOPIC_COLUMNS, SUBSCRIPTION_COLUMNS) * 2, strict=True):
        table = np.frombuffer(data, np.float64, rows * len(columns), at).reshape(rows, len(columns))
        at += table.nbytes
        tables.append(table)
    return head, tables
