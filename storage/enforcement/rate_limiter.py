"""Rates: how much may be published to a topic, and given out from it, in a time; how often a consumer may subscribe.

A rate is a bucket of tokens that come evenly and of which only 150 ms' worth is saved up, so that over ten seconds nobody gets more than
1.5 % above it, and who is a little late gets no less.  What is taken may exceed the bucket once, by the rest of a batch: that is a debt,
which is paid before anything else goes.

    published    what exceeds the rate is held back here, in order, without a receipt, and its connections are not read from until half of
                 that is gone; nothing is refused, nothing is lost
    given out    a subscription's dispatcher has an `Allowance` as it has permits; what is left waits where it lies
    subscribed   who comes too often is refused

Topics without a rate do not get here.
"""
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geminga.proto import envelope
from geminga.storage.catalogue.policies import DISPATCH_RATE_OF
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.enforcement.throttle_log import Slowed, Throttling
from geminga.storage.ledgers.ledger import Ledger
from geminga.storage.topics.permits import UNBOUNDED, Allowance, within_permits
from geminga.storage.topics.publish_plan import Group, Sends
from geminga.storage.topics.rate_limits import (
    Limit,
    Limited,
    Limits,
    SharedLimit,
    Subscribed,
    next_step,
    renew_limit,
)
from geminga.storage.topics.subscription import Batch, Producer, Subscription, Topic
from geminga.storage.topics.watcher import TopicWatcher

_HELD_MAX = 64 << 20        # bytes that an owner holds back; above it, a topic's SENDs are published and overdraw its rate
_BACKLOG_MIN = 1_000        # entries that a subscription may be behind and still count as one without a backlog


# -- what is published

@dataclass(slots=True)
class _Held:
    """Of one topic, in order: (worker, rows, their entries without gaps)."""

    since_ms: int
    pieces: deque[tuple[int, NDArray, memoryview]] = field(default_factory=deque)

    def entries(self) -> int:
        return sum(len(rows) for _, rows, _ in self.pieces)


@dataclass(slots=True)
class _Connection:
    entries: int = 0          # that are held back
    enough: int = -1          # it is read from again when there are no more than that; -1: it is


class Rates(TopicWatcher):
    """Rate limits of one owner's topics."""

    def __init__(self, owner):
        self._owner = owner
        self.due_ms = NEVER_MS                            # when something that is held back may go
        self._held: dict[Topic, _Held] = {}
        self._size = 0                                    # bytes of it
        self._connections: dict[tuple[int, int], _Connection] = {}      # by worker and number: those of which something is held back
        self._limited: set[Topic] = set()                 # topics with a publish rate of their own
        self._throttling = Throttling(self._is_waiting)
        self.is_relative = False                          # one of the dispatch rates has been, to what is published
        self._publish: SharedLimit | None = None          # of all topics of the broker together
        self._dispatch: SharedLimit | None = None
        self.configure()

    def configure(self) -> None:
        """The owner's options are new; `watch` is to follow for each topic."""
        options = self._owner.options
        self._publish = self._of_broker(self._publish, "in", options.publish_messages_per_broker, options.publish_bytes_per_broker)
        self._dispatch = self._of_broker(self._dispatch, "out", options.dispatch_messages_per_broker, options.dispatch_bytes_per_broker)
        if self._held:
            self.due_ms = self._owner.now_ms

    def _of_broker(self, before: SharedLimit | None, which: str, messages: int, size: int) -> SharedLimit | None:
        rates = messages, size, 1, False
        if before is not None and before.rates == rates:
            return before
        names = f"limited_messages_{which}", f"limited_bytes_{which}"
        return SharedLimit(self._owner.counters, names, rates, self._owner.now_ms) if max(messages, size) > 0 else None

    @property
    def is_possible(self) -> bool:
        """Whether publishing to any topic has a rate: this is asked in each pass."""
        return bool(self._limited or self._held) or self._publish is not None

    def watch(self, topic: Topic) -> None:
        """Its policies are new."""
        policies, now_ms, limits = topic.policies, self._owner.now_ms, topic.rate_limits
        if limits is None:
            if self._dispatch is None and not policies.has_rates:
                return
            limits = topic.rate_limits = Limits()
        options, limits.broker = self._owner.options, self._dispatch
        limits.counts_entries, limits.spares_keen = options.dispatch_limits_entries, not options.dispatch_limits_without_backlog
        limits.publish = renew_limit(limits.publish, "Topic", (policies.publish_messages, policies.publish_bytes, 1, False), now_ms)
        limits.dispatch = renew_limit(limits.dispatch, "Topic", policies.dispatch_rate, now_ms)
        for subscription in topic.subscriptions.values():
            watch_subscription(subscription, now_ms)
        self.is_relative |= policies.dispatch_relative or policies.subscription_dispatch_relative or any(
            rate[3] for _, rate in policies.dispatch_rates_of)
        limit = policies.subscribe_count, max(1, policies.subscribe_period_s)
        if limits.subscribed is None or limits.subscribed.limit != limit:
            limits.subscribed = Subscribed(limit) if limit[0] > 0 else None
        (self._limited.discard if limits.publish is None else self._limited.add)(topic)
        if topic in self._held:
            self.due_ms = now_ms
        self._owner.wake(topic)

    def release(self, topic: Topic) -> None:
        """It is given up."""
        self._limited.discard(topic)
        self._let_go(topic)

    def admit(self, sends: Sends) -> list[Sends]:
        """What may be stored now of what was held back, and of what came, as much at a time as a pass takes in; the rest is held back."""
        out = self._fallen_due() if self.due_ms <= self._owner.now_ms else []
        for worker, rows, data in sends:
            is_held = self._hold(worker, rows, data, out)
            if is_held is None:
                out.append((worker, rows, data))
            elif not is_held.all():
                out.append((worker, *_packed(rows[~is_held], data)))
        self.due_ms = min(map(self._ready_ms, self._held), default=NEVER_MS)
        return self._in_parts(out)

    def take_all(self, topic: Topic) -> list[Sends]:
        """What is held back of it, likewise; whoever comes next pays for it."""
        return self._in_parts(self._all_of(topic))

    def _in_parts(self, sends: Sends) -> list[Sends]:
        parts, size = [], 0
        for one in sends:
            size += len(one[2])
            if not parts or size > self._owner.options.pass_bytes_max:
                parts.append([])
                size = len(one[2])
            parts[-1].append(one)
        return parts

    def _all_of(self, topic: Topic) -> Sends:
        found = list(self._held[topic].pieces) if topic in self._held else []
        for _, rows, _ in found:
            self._take(self._limits(topic), rows)
        self._let_go(topic)
        return found

    def left(self, producer: Producer) -> None:
        """The producer may not publish any more; what it has sent and got no receipt for its client sends again, or gives up."""
        held = self._held.get(producer.partition)
        if held is None:
            return
        pieces, held.pieces = held.pieces, deque()
        for worker, rows, data in pieces:
            is_its = rows["producer"] == producer.handle
            if is_its.any():
                self._uncount(worker, rows[is_its])
                rows, data = _packed(rows[~is_its], data)
            if len(rows):
                held.pieces.append((worker, rows, data))
        if not held.pieces:
            self._let_go(producer.partition)

    def in_turn(self, topics: Iterable[Topic]) -> Iterable[Topic]:
        """Those first that have waited longest since they last got anything, where all share a rate."""
        return topics if self._dispatch is None else sorted(topics, key=_topic_served_ms)

    def tick(self, now_ms: int) -> None:
        self._throttling.tick(now_ms)

    def next_batches(self, subscription: Subscription, ledgers: list[Ledger]) -> list[Batch]:
        """Batches of the subscription's dispatcher, as many as its rates allow; see Dispatcher.next_batches."""
        found, dispatcher = subscription.partition, subscription.dispatcher
        now_ms, of_topic = found.now_ms, found.rate_limits
        if subscription.limited is None:
            watch_subscription(subscription, now_ms)
        limited = subscription.limited
        limits = [limit for limit in (limited.limit, of_topic.dispatch, of_topic.broker) if limit is not None]
        limited.until_ms, limited.by = NEVER_MS, []
        if not limits or (of_topic.spares_keen and not _is_behind(subscription)):
            limited.since_ms = 0
            return dispatcher.next_batches(ledgers)
        messages, size = (min(room) for room in zip(*[limit.room(now_ms) for limit in limits], strict=True))
        allowance = subscription.allowance = Allowance(messages, size, of_topic.counts_entries)
        batches = dispatcher.next_batches(ledgers)
        subscription.allowance = None
        if batches:
            limited.served_ms = of_topic.served_ms = now_ms
            for limit in limits:
                limit.take(messages - allowance.messages, size - allowance.size)
        if not allowance.room and dispatcher.has_demand(ledgers):
            self._note(subscription, [(limit, limit.room(now_ms)) for limit in limits], now_ms)
        else:
            limited.since_ms = 0
        return batches

    def _note(self, subscription: Subscription, rooms: list[tuple[Limit, tuple[int, int]]], now_ms: int) -> None:
        """Note that limits throttle the subscription: entries are left, and some limit has no room."""
        limited = subscription.limited
        limited.by = [limit for limit, room in rooms if min(room) <= 0]
        limited.until_ms = next_step(max([now_ms + 1, *[limit.ready_ms() for limit in limited.by]]))
        limited.since_ms = limited.since_ms or now_ms
        for limit, room in rooms:
            for what, left in zip(("Msg", "Bytes"), room, strict=True):
                if left <= 0:
                    name = f"dispatchThrottled{what}EventsBy{limit.level}Limit"
                    limited.times[name] = limited.times.get(name, 0) + 1
        self._throttling.happened(subscription, 1, now_ms, lambda: _rules(causes(self._owner, subscription)))

    def _is_waiting(self, slowed: Slowed) -> bool:
        if not isinstance(slowed, Subscription):
            return slowed in self._held
        found = slowed.partition
        return found.is_persistent and not found.is_released and slowed in found.attached and slowed.limited.since_ms > 0

    def causes(self, topic: Topic) -> list[dict]:
        """What keeps its producers waiting."""
        held = self._held.get(topic)
        return [{"cause": "publish rate", "rule": _rule(self._owner, topic, limit, "publishRate"), "held_back": held.entries(),
                 "since_ms": held.since_ms, "until_ms": next_step(limit.ready_ms())}
                for limit in self._limits(topic) if held is not None and limit.ready_ms() > self._owner.now_ms]

    # -- how

    def _limits(self, topic: Topic) -> list[Limit]:
        return [limit for limit in (topic.rate_limits and topic.rate_limits.publish, self._publish) if limit is not None]

    def _ready_ms(self, topic: Topic) -> int:
        return next_step(max((limit.ready_ms() for limit in self._limits(topic)), default=0))

    def _fallen_due(self) -> Sends:
        """Those first that have waited longest since they last got anything."""
        out: Sends = []
        for topic in list(self._held):
            some = self._some_of(topic)
            out += some
            held = self._held.pop(topic) if some else self._held[topic]
            if held.pieces:
                self._held[topic] = held
                self._count_time(topic)
        return out

    def _some_of(self, topic: Topic) -> Sends:
        """As much as its limits let go."""
        pieces, limits, out = self._held[topic].pieces, self._limits(topic), []
        while pieces and (count := self._reach(limits, pieces[0][1])):
            worker, rows, data = pieces.popleft()
            self._take(limits, rows[:count])
            self._uncount(worker, rows[:count])
            end = int(rows["size"][:count].sum(dtype=np.int64))
            out.append((worker, rows[:count], data[:end]))
            if count < len(rows):
                rest = rows[count:].copy()
                rest["offset"] -= np.uint64(end)
                pieces.appendleft((worker, rest, data[end:]))
                break
        return out

    def _hold(self, worker: int, rows: NDArray, data: memoryview, out: Sends) -> NDArray[np.bool_] | None:
        """Which of these exceed a rate, and are held back; None when nothing is."""
        handles, inverse = np.unique(rows["producer"], return_inverse=True)
        topics: dict[Topic, int] = {}
        numbers = [-1 if (topic := self._slowed(handle)) is None else topics.setdefault(topic, len(topics)) for handle in handles.tolist()]
        if not topics:
            return None
        of_rows = np.array(numbers)[inverse]
        order = np.argsort(of_rows, kind="stable")
        order = order[np.searchsorted(of_rows[order], 0):]
        starts = np.searchsorted(of_rows[order], np.arange(len(topics)))
        messages, sizes = (np.add.reduceat(rows[name][order], starts, dtype=np.int64).tolist() for name in ("messages", "size"))
        is_held = None
        for topic, start, end, many, size in zip(topics, starts.tolist(), [*starts[1:].tolist(), len(order)], messages, sizes, strict=True):
            limits, count = self._limits(topic), 0
            if topic not in self._held:
                if all(many <= room[0] and size <= room[1] for room in [limit.room(self._owner.now_ms) for limit in limits]):
                    for limit in limits:
                        limit.take(many, size)
                    continue
                count = self._reach(limits, rows[order[start:end]])
                self._take(limits, rows[order[start:start + count]])
                if start + count == end:
                    continue
                self._count_time(topic)
            is_held = np.zeros(len(rows), bool) if is_held is None else is_held
            is_held[order[start + count:end]] = True
            piece = _packed(rows[order[start + count:end]], data)
            self._held.setdefault(topic, _Held(self._owner.now_ms)).pieces.append((worker, *piece))
            self._count(worker, *piece)
            self._throttling.happened(topic, len(piece[0]), self._owner.now_ms, lambda topic=topic: _rules(self.causes(topic)))
            if self._size > _HELD_MAX:
                out += self._all_of(topic)
        return is_held

    def _slowed(self, handle: int) -> Topic | None:
        """The producer's topic, if publishing there has a rate, or had one a moment ago."""
        producer = self._owner.producers.get(handle)
        if producer is None:
            return None
        topic = producer.partition
        return topic if self._publish is not None or topic in self._limited or topic in self._held else None

    def _count_time(self, topic: Topic) -> None:
        if topic.rate_limits is None:
            topic.rate_limits = Limits()
        topic.rate_limits.publish_limited_times += 1

    def _reach(self, limits: Iterable[Limit], rows: NDArray) -> int:
        """How many of them may go."""
        count = len(rows)
        for limit in limits:
            for column, room in zip(("messages", "size"), limit.room(self._owner.now_ms), strict=True):
                if room < UNBOUNDED:
                    count = within_permits(rows[column][:count], room)[0] if room > 0 and count else 0
        return count

    @staticmethod
    def _take(limits: Iterable[Limit], rows: NDArray) -> None:
        for limit in limits if len(rows) else ():
            limit.take(int(rows["messages"].sum(dtype=np.int64)), int(rows["size"].sum(dtype=np.int64)))

    def _count(self, worker: int, rows: NDArray, data: memoryview) -> None:
        """They are held back: their connections are not read from."""
        self._size += len(data)
        for number, count in _by_connection(rows):
            connection = self._connections.setdefault((worker, number), _Connection())
            connection.entries += count
            connection.enough = connection.entries // 2
            self._owner.outbox(worker).reply(number, b"", action=envelope.PAUSE_READING)

    def _uncount(self, worker: int, rows: NDArray) -> None:
        self._size -= int(rows["size"].sum(dtype=np.int64))
        for number, count in _by_connection(rows):
            connection = self._connections[worker, number]
            connection.entries -= count
            if connection.entries <= connection.enough:
                connection.enough = -1
                self._owner.outbox(worker).reply(number, b"", action=envelope.RESUME_READING)
            if not connection.entries:
                del self._connections[worker, number]

    def _let_go(self, topic: Topic) -> None:
        held = self._held.pop(topic, None)
        for worker, rows, _ in held.pieces if held is not None else ():
            self._uncount(worker, rows)
        if not self._held:
            self.due_ms = NEVER_MS


def _rules(causes: list[dict]) -> str:
    return " and ".join(cause["rule"] for cause in causes)


def _by_connection(rows: NDArray) -> list[tuple[int, int]]:
    """(its number, its rows)"""
    numbers, counts = np.unique(rows["connection"], return_counts=True)
    return list(zip(numbers.tolist(), counts.tolist(), strict=True))


def _topic_served_ms(topic: Topic) -> int:
    return topic.rate_limits.served_ms


def _packed(rows: NDArray, data: memoryview) -> tuple[NDArray, memoryview]:
    """Copies of these rows and of their entries, without gaps: what came with them is not kept in memory."""
    rows = rows.copy()
    ends = np.cumsum(rows["size"], dtype=np.uint64)
    offsets, starts = rows["offset"].copy(), ends - rows["size"]
    rows["offset"] = starts
    if len(rows) and (offsets - offsets[0] == starts).all():
        return rows, memoryview(bytes(data[int(offsets[0]):int(offsets[0] + ends[-1])]))
    return rows, memoryview(b"".join([data[at:at + size] for at, size in zip(offsets.tolist(), rows["size"].tolist(), strict=True)]))


# -- what is given out

def watch_subscription(subscription: Subscription, now_ms: int) -> None:
    """Its topic's policies are new, or it is."""
    limited = subscription.limited = subscription.limited or Limited()
    policies = subscription.partition.policies
    rate = dict(policies.dispatch_rates_of).get(subscription.name, policies.subscription_dispatch_rate)
    limited.limit = renew_limit(limited.limit, "Subscription", rate, now_ms)
    limited.since_ms, limited.until_ms, limited.by = 0, NEVER_MS, []


def _is_behind(subscription: Subscription) -> bool:
    return subscription.cursor.backlog(subscription.partition.ledgers) > _BACKLOG_MIN


def published(groups: list[Group], now_ms: int) -> None:
    """These are about to be stored; rates may be relative to that."""
    for group in groups:
        topic = group.partition
        if topic.rate_limits is None:
            continue
        messages = group.count if topic.rate_limits.counts_entries else group.next_message - topic.next_message
        for limit in (topic.rate_limits.dispatch, *(one.limited.limit for one in topic.attached if one.limited is not None)):
            if limit is not None:
                limit.published(messages, group.size - group.ledger.size, now_ms)


def in_turn(topic: Topic) -> list[Subscription]:
    """Those first that have waited longest since they last got anything: they share a rate."""
    return sorted(topic.attached, key=_served_ms)


def _served_ms(subscription: Subscription) -> int:
    return subscription.limited.served_ms if subscription.limited is not None else 0


def due_ms(topic: Topic) -> int:
    """When one of them may get more."""
    return min((one.limited.until_ms for one in topic.attached if one.limited is not None), default=NEVER_MS)


def causes(owner, subscription: Subscription) -> list[dict]:
    """What of this keeps its consumers waiting."""
    limited, found = subscription.limited, subscription.partition
    names = _POLICIES
    if any(name == subscription.name for name, _ in found.policies.dispatch_rates_of):
        names = _POLICIES | {"Subscription": DISPATCH_RATE_OF + subscription.name}
    return [{"cause": "dispatch rate", "rule": _rule(owner, found, limit, names[limit.level]),
             "since_ms": limited.since_ms, "until_ms": limited.until_ms} for limit in (limited.by if limited is not None else ())]


_POLICIES = {"Subscription": "subscriptionDispatchRate", "Topic": "dispatchRate", "Broker": "dispatchRate"}


def _rule(owner, topic: Topic, limit: Limit, policy: str) -> str:
    """Its name, whom it was set for, and what it says."""
    scopes = [f"{kind} {scope}" for kind, scope in (("topic", str(topic.name.base)), ("namespace", topic.name.namespace))
              if limit.level != "Broker" and policy in owner.catalogue.policies.of(scope)]
    return f"{policy} of {scopes[0] if scopes else 'the broker'}: {limit}"
