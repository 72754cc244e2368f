"""Statistics of all topics that are open at one owner.

`measure` returns them as columns of numbers (columns.py), with a row for each topic and subscription. A row is computed
again when its topic has changed; each pass spends a few milliseconds on that. So the cost of a scrape grows with the
changes since the last one, and no pass takes long. Statistics of a single topic are in admin/topic_figures.py.
"""
import bisect
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from geminga.proto.envelope import RAW
from geminga.proto.sends import IS_CHUNK, Columns
from geminga.storage.errors import CorruptFile
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import TopicWatcher
from geminga.storage.statistics.columns import (
    LATENCIES_MS,
    SIZE_BOUNDS,
    SIZES,
    SUBSCRIPTION_COLUMNS,
    TOPIC_COLUMNS,
    Counted,
    Counts,
    Distribution,
    Rates,
    Row,
    Topic,
    consumer_counts,
    is_named,
    ordinary_producers,
    producer_counts,
    rates_of,
    replicators,
    subscription_counts,
    subscription_row,
    topic_counts,
    topic_row,
)
from geminga.storage.statistics.recent import RecentRates
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.publish_plan import Group, Plan
from geminga.storage.topics.subscription import Consumer, Producer, Subscription
from geminga.storage.topics.subscription import Topic as AnyTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from geminga.proto.names import TopicName

ScalableFigures = dict[str, Any]      # see `topic_figures.measure`
SUBSCRIPTIONS_EACH = 10      # rows of subscriptions for each topic with a row of its own, on average
_SLICE_SECONDS = 0.005       # spent in one pass on computing rows again


class _Table:
    """Table of numbers with a row for each open topic or subscription.  Free rows are 0."""

    def __init__(self, columns: tuple[str, ...]):
        self.rows = np.zeros((64, len(columns)))
        self.marks = np.zeros(64, np.int64)       # of each row: the number of its namespace
        self._free: list[int] = []
        self._used = 0

    def __repr__(self) -> str:
        return f"<_Table used={self._used - len(self._free)} rows={len(self.rows)}>"

    def take(self) -> int:
        """Return the number of a free row, and take the row."""
        if self._free:
            return self._free.pop()
        if self._used == len(self.rows):
            self.rows = np.concatenate((self.rows, np.zeros_like(self.rows)))
            self.marks = np.concatenate((self.marks, np.zeros_like(self.marks)))
        self._used += 1
        return self._used - 1

    def give_back(self, row: int) -> None:
        """Free a row, and set it to 0."""
        self.rows[row] = 0
        self._free.append(row)


@dataclass(slots=True)
class _Known:
    """The row numbers of one topic, of its subscriptions and of its replication cursors."""

    row: int
    subscriptions: dict[Subscription, int] = field(default_factory=dict)
    cursors: dict[Subscription, int] = field(default_factory=dict)


class Statistics(TopicWatcher):
    """Statistics of all topics, subscriptions, consumers and producers that are open at one owner."""

    def __init__(self, decisions: Decisions, producers: Producers, topics: TopicTable, window_s: int):
        self._decisions, self._producers, self._open = decisions, producers, topics
        self.recent = RecentRates(decisions.now_ms)
        self._waiting: dict[Topic, None] = {}               # topics changed since the current measurement began
        self._stale: dict[Topic, None] = {}                 # topics whose rows this measurement has yet to compute
        self._straddled = 0      # entries of several entry buckets, in topics that were closed
        self._begin(window_s)
        self._second = decisions.now_ms // 1000                 # the second for which windows ended last
        self._known: dict[Topic, _Known] = {}               # topics with rows in the tables
        self._topics, self._subscriptions = _Table(TOPIC_COLUMNS), _Table(SUBSCRIPTION_COLUMNS)
        self._cursors = _Table(SUBSCRIPTION_COLUMNS)        # of replication
        self._namespaces: dict[str, int] = {}               # -> their numbers
        self._shown: set[Topic] = set()                     # topics that had rows of their own in the last answer

    def __repr__(self) -> str:
        return f"<Statistics topics={len(self._known)} stale={len(self._stale)} waiting={len(self._waiting)}>"

    def _begin(self, window_s: int) -> None:
        """Begin the statistics windows of all topics, which end at different seconds to spread the work."""
        self._window_s = window_s
        self._moved: list[dict[Topic, None]] = [{} for _ in range(window_s)]
        self._since_ms = [self._decisions.now_ms] * window_s

    def configure(self, window_s: int) -> None:
        """Set the length of statistics windows.  Open windows end."""
        if window_s == self._window_s:
            return
        self._gather()
        before, since_ms = self._moved, self._since_ms
        self._begin(window_s)
        for moved, began_ms in zip(before, since_ms, strict=True):
            for topic in moved:
                # A window that began in this pass has nothing to show yet: the rates stay those of the one before.
                length_ms = self._decisions.now_ms - began_ms
                if self._is_open(topic) and (length_ms <= 0 or self._end_window(topic, length_ms / 1000)):
                    # else its rates would not end with the next window
                    self._decisions.changed[topic] = None

    # -- counting

    def stored(self, planned: Plan, seconds: float, journal_seconds: float) -> None:
        """Count the entries of a plan that is in the journal.

        seconds: since the entries came.  journal_seconds: how long the journal's write took.
        """
        late = bisect.bisect_left(LATENCIES_MS, seconds * 1000)
        written = bisect.bisect_left(LATENCIES_MS, journal_seconds * 1000)
        micros, journal_micros = int(seconds * 1e6), int(journal_seconds * 1e6)
        many = planned.many
        bucket, by_size, are_chunks, is_shared = 0, _NO_SIZES, False, False
        if many is not None:
            is_shared = any(len(group.partition.producers.live) != 1 for group in planned.groups)
            bucket, by_size, are_chunks = _sizes_of(many, planned.groups)
        for number, group in enumerate(planned.groups):
            partition, count, size = group.partition, group.count, group.size - group.ledger.size
            partition.entries_in += count
            partition.bytes_in += size
            window: Distribution | None = partition.window      # type: ignore[assignment]      # set below only
            if window is None:
                window = partition.window = Distribution()
            window.size_sum += size
            window.latencies[late] += count
            window.journal_latencies[written] += count
            window.latency_sum_us += micros * count
            window.journal_sum_us += journal_micros * count
            which = slice(group.first, group.first + count)
            if many is None:
                for one in planned.few[which]:
                    _count_one(window, partition, *one)
                continue
            if bucket >= 0:
                window.sizes[bucket] += count
            else:
                for at, entries in enumerate(by_size[number]):
                    if entries:
                        window.sizes[at] += entries
            if not (is_shared or are_chunks):
                for producer in partition.producers.live.values():
                    producer.messages_in += group.next_message - partition.next_message
                    producer.bytes_in += size
            elif are_chunks:
                partition.chunks_in += int(np.count_nonzero(many.flags[which] & IS_CHUNK))
        if many is not None and (is_shared or are_chunks):
            self._count_producers(many)

    def _count_producers(self, entries: Columns) -> None:
        """Count a plan's entries for their producers."""
        distinct, inverse = np.unique(entries.handles, return_inverse=True)
        are_chunks = (entries.flags & IS_CHUNK) != 0
        columns = (np.bincount(inverse, weights).tolist() for weights in (entries.messages, entries.sizes, are_chunks))
        for handle, messages, size, chunks in zip(distinct.tolist(), *columns, strict=True):
            if (producer := self._producers.by_handle.get(handle)) is not None:
                producer.messages_in += int(messages)
                producer.bytes_in += int(size)
                producer.chunks_in += int(chunks)

    # -- windows

    def tick(self, now_ms: int) -> None:
        """Compute the rates of topics whose window has ended; called once a second."""
        self._gather()
        self.recent.tick(now_ms)
        first, self._second = self._second + 1, now_ms // 1000
        for second in range(max(first, self._second - self._window_s + 1), self._second + 1):
            number = second % self._window_s
            moved, self._moved[number] = self._moved[number], {}
            passed_ms, self._since_ms[number] = now_ms - self._since_ms[number], now_ms
            # A clock that was set back would divide by zero, or make rates negative.
            seconds = passed_ms / 1000 if passed_ms > 0 else float(self._window_s)
            for topic in moved:
                if self._is_open(topic) and self._end_window(topic, seconds):
                    self._moved[number][topic] = None      # else its rates would not end with the next window

    def _gather(self) -> None:
        """Take the set of changed topics from the owner, for their windows and for the next measurement."""
        changed = cast("dict[Topic, None]", self._decisions.changed)      # topics are of these two classes
        for topic in changed:
            self._moved[hash(topic) % self._window_s][topic] = None
        self._waiting.update(changed)
        self.recent.changed(changed, self._decisions.now_ms)
        self._decisions.changed = {}

    def _end_window(self, topic: Topic, seconds: float) -> bool:
        """End a topic's statistics window.  Returns whether any of its rates is above 0."""
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
        topics: Mapping[TopicName, Topic] = self._open.by_name if topic.is_persistent else self._open.non_persistent
        return topics.get(topic.name) is topic

    def release(self, topic: AnyTopic) -> None:
        """Forget the rows and windows of a topic that was closed."""
        assert isinstance(topic, Topic), topic
        for noted in (self._decisions.changed, self._waiting, self._stale, self._moved[hash(topic) % self._window_s]):
            noted.pop(topic, None)
        self._shown.discard(topic)
        self._straddled += sum(subscription.straddling for subscription in topic.subscriptions.values())
        self.recent.forget(topic)
        if (numbers := self._known.pop(topic, None)) is not None:
            self._topics.give_back(numbers.row)
            for row in numbers.subscriptions.values():
                self._subscriptions.give_back(row)
            for row in numbers.cursors.values():
                self._cursors.give_back(row)

    # -- measurements

    def straddling(self) -> int:
        """Return how many entries with messages of several entry buckets were delivered since this process began."""
        return self._straddled + sum(subscription.straddling for name, partition in self._open.by_name.items()
                                     if name.is_segment for subscription in partition.subscriptions.values())

    def measure(self, most: int, *, consumers: bool, producers: bool,
                scalable: Callable[[], ScalableFigures] | None = None) -> int | bytes:
        """Return the packed tables (see `pack`), or the number of topics whose rows are not up to date yet.

        At most `most` topics have rows of their own, and ten times that many subscriptions. Topics with traffic in the
        last window come first, then topics that had rows the last time, then topics with the most traffic. All other
        topics are summed by namespace.

        scalable: gives figures of scalable topics.
        """
        self._freshen()
        if self._stale:
            return len(self._stale)
        topics = list(self._known)
        table, at = self._topics.rows, np.array([known.row for known in self._known.values()], np.int64)
        chosen, subscriptions = topics, sum([len(known.subscriptions) for known in self._known.values()])
        if len(topics) > most or subscriptions > most * SUBSCRIPTIONS_EACH:
            order = np.lexsort((-table[at][:, :4].sum(axis=1), np.array([topic not in self._shown for topic in topics]),
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
            "recent": self.recent.of_all(self._decisions.now_ms),
            "rolled_up_subscriptions": subscriptions - len(lines),
            "topics": [str(topic.name) for topic in chosen],
            "subscriptions": [(number, name) for number, name, _ in under],
            "replication": [(number, cursor.remote) for number, topic in enumerate(chosen)
                            for cursor in self._known[topic].cursors],
            "consumers": [_consumer_line(number, consumer) for number, topic in enumerate(chosen if consumers else ())
                          for subscription in topic.subscriptions.values() if subscription.remote is None
                          for consumer in subscription.consumers],
            "producers": [_producer_line(number, producer) for number, topic in enumerate(chosen if producers else ())
                          for producer in ordinary_producers(topic)],
            "inbound": [(number, source, *_inbound_rates(some)) for number, topic in enumerate(chosen)
                        for source, some in replicators(topic).items()],
            "scalable": scalable() if scalable is not None else None,
        }
        of_subscriptions = self._subscriptions.rows[np.array([row for _, _, row in under], np.int64)]
        cursors = np.array([row for topic in chosen for row in self._known[topic].cursors.values()], np.int64)
        return pack(head, [table[rows], of_subscriptions, self._sums(self._topics, rows),
                           self._sums(self._subscriptions, lines), self._cursors.rows[cursors]])

    def topics(self) -> list[Topic] | int:
        """Return all open topics, or the number of topics whose rows are not up to date yet: ask again then."""
        self._freshen()
        return len(self._stale) or list(self._known)

    def topic_values(self, topics: Sequence[Topic], column: str) -> NDArray[np.float64]:
        """Return a column's values (n,) of n topics that `topics` returned."""
        rows = np.array([self._known[topic].row for topic in topics], np.int64)
        values: NDArray[np.float64] = self._topics.rows[rows, TOPIC_COLUMNS.index(column)]
        return values

    def subscriptions(self, topics: Iterable[Topic]) -> list[tuple[Subscription, int]]:
        """Return the subscriptions of topics that `topics` returned, each with its row for `subscription_values`."""
        return [(subscription, row) for topic in topics
                for subscription, row in self._known[topic].subscriptions.items() if is_named(topic, subscription)]

    def replication_since_ms(self, topics: Iterable[Topic]) -> list[tuple[Subscription, int]]:
        """Return the replication cursors of topics that `topics` returned, with the time of their oldest entry.

        That is when the first unacknowledged entry was stored, in ms, 0 if there is none.
        """
        column = SUBSCRIPTION_COLUMNS.index("backlog_since_ms")
        return [(cursor, int(self._cursors.rows[row, column])) for topic in topics
                for cursor, row in self._known[topic].cursors.items()]

    def subscription_values(self, rows: Sequence[int], column: str) -> NDArray[np.float64]:
        """Return a column's values (n,) of n rows that `subscriptions` returned."""
        column_number = SUBSCRIPTION_COLUMNS.index(column)
        values: NDArray[np.float64] = self._subscriptions.rows[np.array(rows, np.int64), column_number]
        return values

    def _freshen(self) -> None:
        """Compute the rows of some changed topics again.

        A topic that changes meanwhile waits for the next measurement.
        """
        if not self._stale:
            self._gather()
            self._stale, self._waiting = self._waiting, {}
        deadline = time.perf_counter() + _SLICE_SECONDS
        while self._stale and time.perf_counter() < deadline:
            for topic in list(itertools.islice(self._stale, 20)):
                del self._stale[topic]
                if self._is_open(topic):
                    # A damaged topic is reported where it is used; the measurement goes on without it.
                    with contextlib.suppress(CorruptFile, OSError):
                        self._make_row(topic)

    def _make_row(self, topic: Topic) -> None:
        """Compute the rows of a topic and its subscriptions again.  Raises CorruptFile, OSError."""
        numbers = self._known.get(topic)
        if numbers is None:
            numbers = self._known[topic] = _Known(self._topics.take())
            namespace = self._namespaces.setdefault(topic.name.namespace, len(self._namespaces))
            self._topics.marks[numbers.row] = namespace
        mark, current = self._topics.marks[numbers.row], topic.subscriptions.values()
        cursors = [subscription for subscription in current if subscription.remote is not None]
        others = [subscription for subscription in current if subscription.remote is None] if cursors else list(current)
        under = _make_rows(self._subscriptions, numbers.subscriptions, others, mark)
        _make_rows(self._cursors, numbers.cursors, cursors, mark)
        self._topics.rows[numbers.row] = topic_row(topic, under)

    def _sums(self, table: _Table, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sums of a table's rows by namespace, without the given rows."""
        sums, is_other = np.zeros((len(self._namespaces), table.rows.shape[1])), np.ones(len(table.rows), bool)
        is_other[rows] = False
        marks = table.marks[is_other]
        for column, values in enumerate(table.rows[is_other].T if len(sums) else ()):
            sums[:, column] = np.bincount(marks, values, len(sums))
        return sums


def _make_rows(table: _Table, numbers: dict[Subscription, int], current: list[Subscription], mark: int) -> list[Row]:
    """Compute the rows of a topic's subscriptions again, and return them.

    numbers: their row numbers, which are brought up to date.  mark: the number of their namespace.
    """
    if len(numbers) != len(current) or any(subscription not in numbers for subscription in current):
        for subscription in numbers.keys() - set(current):
            table.give_back(numbers.pop(subscription))
        for subscription in current:
            if subscription not in numbers:
                row = numbers[subscription] = table.take()
                table.marks[row] = mark
    rows: list[Row] = []
    for subscription, row in numbers.items():
        rows.append(subscription_row(subscription))
        table.rows[row] = rows[-1]
    return rows


def _within(topics: list[Topic], most: int) -> list[Topic]:
    """Return the first `most` topics, without topics that would exceed the bound of subscriptions."""
    chosen: list[Topic] = []
    room = most * SUBSCRIPTIONS_EACH
    for topic in topics:
        if len(chosen) == most:
            break
        if len(topic.subscriptions) <= room:
            chosen.append(topic)
            room -= len(topic.subscriptions)
    return chosen


_NO_SIZES: list[list[int]] = []


def _sizes_of(entries: Columns, groups: list[Group]) -> tuple[int, list[list[int]], bool]:
    """Return the distribution of a plan's entry sizes, and whether there are chunks.

    Returns (common bucket or -1, counts by bucket for each group, whether there are chunks). The counts are empty if
    all sizes are in one bucket.
    """
    sizes = entries.sizes
    are_chunks = bool((entries.flags & IS_CHUNK).any())
    least, most = (bisect.bisect_left(SIZES, bound) for bound in (sizes.min(), sizes.max()))
    if least == most:
        return least, _NO_SIZES, are_chunks
    width = len(SIZES) + 1
    firsts = np.repeat(np.arange(0, len(groups) * width, width), [group.count for group in groups])
    buckets = np.searchsorted(SIZE_BOUNDS, sizes) + firsts
    return -1, np.bincount(buckets, minlength=len(groups) * width).reshape(-1, width).tolist(), are_chunks


def _count_one(window: Distribution, partition: Partition, producer: Producer, size: int, messages: int,
               flags: int) -> None:
    window.sizes[bisect.bisect_left(SIZES, size)] += 1
    producer.messages_in += messages
    producer.bytes_in += size
    if flags & IS_CHUNK:
        partition.chunks_in += 1
        producer.chunks_in += 1


def _roll(counted: Counted, counts: Counts, seconds: float) -> bool:
    """End an object's statistics window, and set its rates.  Returns whether any rate is above 0.

    seconds: the length of the window.
    """
    before = counted.counted or (0,) * len(counts)
    rates: Rates = tuple([(now - then) / seconds if now > then else 0.0
                          for now, then in zip(counts, before, strict=True)])
    counted.rates, counted.counted = rates, counts
    return any(rates)


def _consumer_line(number: int, consumer: Consumer) -> tuple[str | float, ...]:
    """Return the values of a consumer for an answer of `measure`; number: that of its topic in the answer."""
    rates = rates_of(consumer, 5)
    return (number, consumer.subscription.name, consumer.name, consumer.consumer_id, rates[0], rates[1], rates[2],
            rates[4], consumer.unacknowledged, int(consumer.is_blocked), consumer.permits, consumer.messages_out,
            consumer.bytes_out)


def _producer_line(number: int, producer: Producer) -> tuple[str | float, ...]:
    """Return the values of a producer for an answer of `measure`; number: that of its topic in the answer."""
    rates = rates_of(producer, 4)
    return number, producer.name, producer.producer_id, rates[0], rates[1], rates[1] / rates[0] if rates[0] else 0.0


def _inbound_rates(replicators: list[Producer]) -> tuple[float, float]:
    """Return the messages and bytes per second of the replicators of one cluster, for an answer of `measure`."""
    rates = [rates_of(producer, 4) for producer in replicators]
    return sum(each[0] for each in rates), sum(each[1] for each in rates)


def pack(head: dict[str, Any], tables: list[NDArray[np.float64]]) -> bytes:
    """Return statistics as bytes: a line of JSON, which has the number of rows of each table, and the tables.

    head: names of namespaces, topics and subscriptions, and values of consumers and producers. tables: topics (n,
    columns), subscriptions, sums of all other topics by namespace, sums of their subscriptions, replication cursors.
    """
    rows = [len(table) for table in tables]
    data = [np.ascontiguousarray(table).tobytes() for table in tables]
    return b"".join([RAW, json.dumps(head | {"rows": rows}).encode(), b"\n", *data])


def unpack(data: bytes) -> tuple[dict[str, Any], list[NDArray[np.float64]]]:
    """Return (head, tables) of statistics from the bytes that `pack` has made."""
    offset = data.index(b"\n") + 1
    head: dict[str, Any] = json.loads(data[len(RAW):offset])
    tables: list[NDArray[np.float64]] = []
    kinds = (*(TOPIC_COLUMNS, SUBSCRIPTION_COLUMNS) * 2, SUBSCRIPTION_COLUMNS)
    for rows, columns in zip(head["rows"], kinds, strict=True):
        table = np.frombuffer(data, np.float64, rows * len(columns), offset).reshape(rows, len(columns))
        offset += table.nbytes
        tables.append(table)
    return head, tables
