"""The schedules of one owner's topics: which is due, what is published, and what waits.

Each message is published under the schedule's own identity, with the planned time as its number (see
producer_sequences.py).  One record of the journal holds both, so a planned time is published once, whatever is killed
when.  The partition remembers the last planned time; nothing else says what was published.

A message that the topic does not take now, as its disk is full, waits: the schedule tries again each second.  When it
succeeds, the schedule's policy of missed times says what is published.
"""
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.catalogue.stored_schedules import StoredSchedule
from geminga.storage.cursors import producer_sequences
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.errors import CorruptFile, StorageFull, text_of
from geminga.storage.ledgers.position import Position
from geminga.storage.open_topics.clients import Clients
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.publisher import NO_WORKER, Publisher
from geminga.storage.open_topics.topic_table import TopicTable
from geminga.storage.open_topics.watcher import Watcher
from geminga.storage.recurring import entries, timetable
from geminga.storage.recurring.timetable import Timetable
from geminga.storage.runtime.log import log
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.subscription import Producer, Topic

TOPIC_MAX, NAMESPACE_MAX = 100, 1_000      # schedules: a start opens the topics of all whose times may be missed
NAME_MAX = 100                             # characters of a schedule's name
RETRY_MS, RETRY_MAX_MS = 1_000, 16_000      # each time twice as long
_EACH_PASS = 5             # schedules looked at: each may open a topic, which takes milliseconds
_BYTES_MAX = 8 << 20       # of the messages of one schedule that are published together, beyond the first
_TOGETHER = 32             # ... and their number


@dataclass(eq=False, slots=True)
class Schedule:
    """A schedule that is in force, with what this owner has done of it since its start."""

    stored: StoredSchedule
    due_ms: int                # when to look at it; NEVER_MS: it is paused, or has no further time
    waiting: str = ""          # why a message could not be published; "": none waits
    retry_ms: int = RETRY_MS   # when it waits: how long until the next attempt
    last_ms: int | None = None     # the planned time of its last message, once that is known
    done_ms: int = 0           # times up to here were published or dropped
    published: int = 0
    missed: int = 0
    table: Timetable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.table = timetable.of_text(self.stored.timing)

    @property
    def identity(self) -> bytes:
        """The 16 bytes under which a partition knows the schedule."""
        return producer_sequences.identity_of_schedule(self.stored.id)


class RecurringMessages(Watcher):
    """The schedules of one owner's topics."""

    def __init__(self, decisions: Decisions, clients: Clients, topics: TopicTable, publisher: Publisher,
                 is_mine: Callable[[str], bool]):
        """is_mine: whether a partition's name belongs to this owner."""
        self._is_mine = is_mine
        self._decisions, self._clients, self._topics, self._publisher = decisions, clients, topics, publisher
        self._began_ms = decisions.now_ms
        self._version = -1
        self._by_id: dict[int, Schedule] = {}
        self._soonest: list[tuple[int, int]] = []      # a heap of (time, id); stale if the schedule's due_ms differs
        self.due_ms = NEVER_MS      # when the next schedule has to be looked at, in ms since 1970
        self.refresh()

    def __repr__(self) -> str:
        return f"<RecurringMessages of {len(self._by_id)} schedules, due_ms={self.due_ms}>"

    def tick(self, now_ms: int) -> None:
        """Take over schedules that were made, changed or deleted."""
        if self._topics.catalogue.schedules.version() != self._version:
            self.refresh()

    def find(self, schedule_id: int) -> Schedule | None:
        """Return the schedule with that id, None if this owner has none."""
        self.tick(self._decisions.now_ms)      # it may just have come with a segment
        return self._by_id.get(schedule_id)

    def clock_went_back(self, now_ms: int) -> None:
        """Look at all schedules again: what waits would be tried again far ahead of the clock only."""
        for one in self._by_id.values():
            if not one.stored.is_paused:
                self._put(one, now_ms)

    def refresh(self) -> None:
        """Take over schedules from the catalogue."""
        catalogue = self._topics.catalogue
        self._version = catalogue.schedules.version()
        before, self._by_id = self._by_id, {}
        for stored in catalogue.schedules.timings():
            if not self._is_mine(stored.partition):
                continue
            one = before.get(stored.id)
            if one is None:
                one = Schedule(stored, NEVER_MS)
            elif one.stored != stored:
                one = Schedule(stored, NEVER_MS, published=one.published, missed=one.missed)
            self._by_id[stored.id] = one
        self._soonest.clear()
        self._look_ahead()
        for one in self._by_id.values():
            due_ms = one.due_ms if one.due_ms != NEVER_MS else self._decisions.now_ms
            self._put(one, NEVER_MS if one.stored.is_paused else due_ms)
        self._decisions.counters.set("schedules", len(self._by_id))
        self._decisions.counters.set("schedules_waiting", sum(bool(one.waiting) for one in self._by_id.values()))

    def _put(self, one: Schedule, due_ms: int) -> None:
        one.due_ms = due_ms
        if due_ms != NEVER_MS:
            heapq.heappush(self._soonest, (due_ms, one.stored.id))
        self._look_ahead()

    def _look_ahead(self) -> None:
        while self._soonest and ((one := self._by_id.get(self._soonest[0][1])) is None
                                 or one.due_ms != self._soonest[0][0]):
            heapq.heappop(self._soonest)
        self.due_ms = self._soonest[0][0] if self._soonest else NEVER_MS

    # -- publishing

    def publish_due(self, now_ms: int) -> None:
        """Publish what is due of some schedules; the next pass goes on with others."""
        for _ in range(_EACH_PASS):
            if self.due_ms > now_ms:
                return
            one = self._by_id[heapq.heappop(self._soonest)[1]]
            try:
                due_ms = self._publish_due_of(one, now_ms)
                self._goes_on(one)
            except (Refusal, StorageFull, CorruptFile, OSError) as error:
                due_ms = now_ms + one.retry_ms
                self._waits(one, error)
            self._put(one, due_ms)

    def _publish_due_of(self, one: Schedule, now_ms: int) -> int:
        """Publish what is due of a schedule, and return when to look at it again.

        Raises Refusal, StorageFull, CorruptFile, OSError.
        """
        after_ms = max(one.stored.since_ms, one.done_ms)
        next_ms = one.table.next_ms(after_ms)
        if next_ms is None or next_ms > now_ms:      # nothing can be due, so the topic stays closed
            return NEVER_MS if next_ms is None else next_ms
        made = self._entry(one)
        if made is None:      # it was changed or deleted a moment ago, perhaps with its topic: the next tick knows
            return now_ms + RETRY_MS
        topic = self._topic(one)
        after_ms = max(after_ms, self._last_ms(one, topic))
        due = one.table.due(after_ms, now_ms)
        times = due.times_ms
        if times:
            times = self._publish(one, topic, times, made, now_ms)
        if due.dropped:
            one.missed += due.dropped
            self._decisions.counters.add("scheduled_missed", due.dropped)
            log.warning(f"schedule {one.stored.name} of {one.stored.topic} has missed {due.dropped} planned times",
                        code="G571", topic=one.stored.topic, schedule=one.stored.name)
        one.done_ms = max(after_ms, times[-1]) if len(times) < len(due.times_ms) else max(after_ms, now_ms)
        if one.done_ms < now_ms:      # more are due
            return now_ms
        return next_ms if (next_ms := one.table.next_ms(one.done_ms)) is not None else NEVER_MS

    def _topic(self, one: Schedule) -> Topic | None:
        """Return the topic that gets the schedule's messages; None: a non-persistent one that nobody uses.

        Raises Refusal, StorageFull, CorruptFile, OSError.
        """
        name = names.parse(one.stored.partition)
        if not name.is_persistent:
            return self._topics.non_persistent.get(name)
        if (partition := self._topics.find(name)) is None:
            raise Refusal(api.TopicNotFound, f"Topic {name} does not exist")
        if partition.is_terminated and self._topics.catalogue.scalable_topics.is_sealed_for(name):
            raise Refusal(api.ServiceNotReady, "The topic's segments are being changed")      # it goes to another one
        return partition

    def _last_ms(self, one: Schedule, topic: Topic | None) -> int:
        """Return the planned time of the schedule's last message; nothing is planned before it any more.

        A non-persistent topic remembers none, and what was missed while its owner was down is missed by its consumers.
        """
        if not isinstance(topic, Partition):
            return max(one.last_ms or 0, self._began_ms)
        last_ms = topic.sequences.of(one.identity).last
        if last_ms == producer_sequences.NONE:
            return 0
        one.last_ms = last_ms
        return last_ms

    def _publish(self, one: Schedule, topic: Topic | None, times_ms: list[int], made: tuple[bytes, bytes],
                 now_ms: int) -> list[int]:
        """Publish the messages of planned times, the first of them at least, and return those times.

        made: (metadata, payload).  Raises Refusal, StorageFull.
        """
        metadata, payload = made
        times_ms = times_ms[:max(1, min(_TOGETHER, _BYTES_MAX // (len(metadata) + len(payload) + 1)))]
        if topic is not None:
            self._publisher.publish_own(self._producer(one, topic), [
                (time_ms, entries.entry_of(one.stored.name, time_ms, now_ms, metadata, payload))
                for time_ms in times_ms])
        one.last_ms = times_ms[-1]
        self._count(one, len(times_ms))
        return times_ms

    def _entry(self, one: Schedule) -> tuple[bytes, bytes] | None:
        return self._topics.catalogue.schedules.entry(one.stored.id, one.stored.since_ms)

    def _producer(self, one: Schedule, topic: Topic) -> Producer:
        """Return a producer under whose identity the topic knows the schedule."""
        producer = Producer(
            self._clients.new_handle(), NO_WORKER, 0, 0, 0, entries.PRODUCER_PREFIX + one.stored.name,
            is_generated_name=False, epoch=0, access_mode=api.Shared, topic_epoch=None, partition=topic,
            sends_positions=topic.is_persistent)
        producer.identity = one.identity
        if isinstance(topic, Partition) and len(topic.sequences.by_replicator) > 2 * TOPIC_MAX:
            partition = str(topic.name)
            kept = {each.identity for each in self._by_id.values() if each.stored.partition == partition}
            topic.sequences.keep_schedules(kept, 2 * TOPIC_MAX)
        return producer

    def publish_now(self, one: Schedule, now_ms: int) -> tuple[int, Position | None]:
        """Publish the schedule's message once more, beside its planned times, also if it is paused.

        Returns (the time that stands in the message, its position; None: it is not stored).  Raises Refusal,
        StorageFull, CorruptFile, OSError.
        """
        topic, made = self._topic(one), self._entry(one)
        if made is None:
            raise Refusal(api.ServiceNotReady, "The schedule was changed; try again")
        if topic is None:
            raise Refusal(api.TopicNotFound, f"Nobody uses {one.stored.partition}, which stores nothing")
        entry = entries.entry_of(one.stored.name, now_ms, now_ms, *made)
        positions = self._publisher.publish_own(self._producer(one, topic), [(None, entry)])
        self._count(one, 1)
        return now_ms, positions[0] if positions else None

    def _count(self, one: Schedule, count: int) -> None:
        one.published += count
        self._decisions.counters.add("scheduled_published", count)

    # -- what waits

    def _waits(self, one: Schedule, error: Refusal | StorageFull | CorruptFile | OSError) -> None:
        why = error.message if isinstance(error, Refusal) else \
            text_of(error) if isinstance(error, OSError) else str(error)
        one.retry_ms = min(2 * one.retry_ms, RETRY_MAX_MS)
        if not one.waiting:
            self._decisions.counters.add("schedules_waiting")
        is_brief = isinstance(error, Refusal) and error.code == api.ServiceNotReady      # as while owners start
        if why != one.waiting and not is_brief:
            log.warning(f"schedule {one.stored.name} of {one.stored.topic} cannot publish, and tries again: {why}",
                        code="G570", topic=one.stored.topic, schedule=one.stored.name)
        one.waiting = why

    def _goes_on(self, one: Schedule) -> None:
        if one.waiting:
            one.waiting, one.retry_ms = "", RETRY_MS
            self._decisions.counters.add("schedules_waiting", -1)
            log.info(f"schedule {one.stored.name} of {one.stored.topic} publishes again", code="G570",
                     topic=one.stored.topic, schedule=one.stored.name)

    # -- what administration asks

    def planned(self, one: Schedule) -> tuple[int | None, int | None]:
        """Return (planned time of its last message, next planned time) of a schedule, None where there is none.

        Opens the topic if that has not happened since the start.  Raises Refusal, StorageFull, CorruptFile, OSError.
        """
        last_ms = one.last_ms
        if last_ms is None and (topic := self._topic(one)) is not None:
            last_ms = self._last_ms(one, topic) or None
        if one.stored.is_paused:
            return last_ms, None
        return last_ms, one.table.next_ms(max(one.stored.since_ms, one.done_ms, last_ms or 0))
