"""Rate limits: of publishing to a topic, of dispatching from it, and of subscribing.

A rate is a bucket of tokens that are added evenly; `storage/topics/rate_limits.py` has the buckets. One batch may take
more tokens than the bucket has. This debt is paid before anything else passes.

    publish      entries above the rate are held back in order, without a receipt (open_topics/held_sends.py)
    dispatch     a dispatcher has an `Allowance` beside its consumers' permits; the other entries wait in their ledgers
    subscribe    a consumer that subscribes too often is refused

Topics without a rate cost no call of this module.
"""
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geminga.proto.rows import Rows
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.policies import DISPATCH_RATE_OF
from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.enforcement.throttle_log import Throttled, ThrottleLog
from geminga.storage.ledgers.readable import ReadableLedger
from geminga.storage.open_topics.clients import Producers
from geminga.storage.open_topics.decisions import Decisions
from geminga.storage.open_topics.held_sends import in_parts, packed
from geminga.storage.open_topics.options_in_force import OptionsInForce
from geminga.storage.open_topics.watcher import TopicWatcher
from geminga.storage.topics.partition import Partition
from geminga.storage.topics.permits import UNBOUNDED, Allowance, within_permits
from geminga.storage.topics.publish_plan import Group, Sends
from geminga.storage.topics.rate_limits import (
    Limit,
    Limited,
    Limits,
    Rate,
    SharedLimit,
    Subscribed,
    next_step,
    renew_limit,
)
from geminga.storage.topics.subscription import Batch, Subscription, Topic

# Bytes that an owner holds back. Above it, all held-back entries of a topic are published, and overdraw its rate.
_HELD_MAX = 64 << 20
_BACKLOG_MIN = 1_000        # a subscription with at most so large a backlog counts as one without a backlog


class RateLimiter(TopicWatcher):
    """Rate limits of one owner's topics."""

    def __init__(self, decisions: Decisions, producers: Producers, catalogue: Catalogue, options: OptionsInForce):
        self._decisions, self._producers, self._catalogue, self._options = decisions, producers, catalogue, options
        self._due_ms = NEVER_MS                           # when entries that are held back may pass, if there are any
        self.held = producers.throttled
        self._limited: set[Topic] = set()                 # topics with a publish rate of their own
        self._log = ThrottleLog(self._is_throttled)
        self.is_relative = False                          # a dispatch rate is, or was, relative to the publish rate
        self._publish: SharedLimit | None = None          # of all topics of the broker together
        self._dispatch: SharedLimit | None = None
        self.configure()

    def __repr__(self) -> str:
        return f"<RateLimiter {len(self._limited)} topics with a publish rate, {self.held.size} bytes held back>"

    @property
    def due_ms(self) -> int:
        """When entries that are held back may pass, in ms since 1970; NEVER_MS if there are none."""
        return self._due_ms if self.held.by_topic else NEVER_MS

    # -- watching topics

    def configure(self) -> None:
        """Apply the owner's options for rates of the whole broker; the caller then calls `watch` for each topic."""
        options = self._options.current
        self._publish = self._shared_limit(
            self._publish, "in", options.publish_messages_per_broker, options.publish_bytes_per_broker)
        self._dispatch = self._shared_limit(
            self._dispatch, "out", options.dispatch_messages_per_broker, options.dispatch_bytes_per_broker)
        if self.held.by_topic:
            self._due_ms = self._decisions.now_ms

    def _shared_limit(self, before: SharedLimit | None, which: str, messages: int, size: int) -> SharedLimit | None:
        """Return the broker-wide limit for messages and bytes a second, None if both are unlimited.

        before: the limit so far, which is returned if its rates are the same.
        """
        rates: Rate = messages, size, 1, False
        if before is not None and before.rates == rates:
            return before
        names = f"limited_messages_{which}", f"limited_bytes_{which}"
        if max(messages, size) <= 0:
            return None
        return SharedLimit(self._decisions.counters, names, rates, self._decisions.now_ms)

    @property
    def is_possible(self) -> bool:
        """Whether publishing to any topic is limited, so that passes skip the limiter otherwise."""
        return bool(self._limited or self.held.by_topic) or self._publish is not None

    def watch(self, topic: Topic) -> None:
        """Apply the rates of a topic that was opened, or whose policies have changed."""
        policies, now_ms, limits = topic.policies, self._decisions.now_ms, topic.rate_limits
        if limits is None:
            if self._dispatch is None and not policies.has_rates:
                return
            limits = topic.rate_limits = Limits()
        options, limits.broker = self._options.current, self._dispatch
        limits.counts_entries = options.dispatch_limits_entries
        limits.spares_keen = not options.dispatch_limits_without_backlog
        publish = policies.publish_messages, policies.publish_bytes, 1, False
        limits.publish = renew_limit(limits.publish, "Topic", publish, now_ms)
        limits.dispatch = renew_limit(limits.dispatch, "Topic", policies.dispatch_rate, now_ms)
        for subscription in topic.subscriptions.values():
            watch_subscription(subscription, now_ms)
        self.is_relative |= policies.dispatch_relative or policies.subscription_dispatch_relative or \
            policies.replicator_dispatch_relative or any(rate[3] for _, rate in policies.dispatch_rates_of)
        limit = policies.subscribe_count, max(1, policies.subscribe_period_s)
        if limits.subscribed is None or limits.subscribed.limit != limit:
            limits.subscribed = Subscribed(limit) if limit[0] > 0 else None
        (self._limited.discard if limits.publish is None else self._limited.add)(topic)
        if topic in self.held.by_topic:
            self._due_ms = now_ms
        self._decisions.wake(topic)

    def release(self, topic: Topic) -> None:
        """Forget a topic that the owner gives up, and drop its held-back entries."""
        self._limited.discard(topic)
        self.held.drop(topic)

    def tick(self, now_ms: int) -> None:
        """Log which topics and subscriptions are no longer throttled."""
        self._log.tick(now_ms)

    # -- publishing

    def admit(self, sends: Sends) -> list[Sends]:
        """Return the SENDs that rates allow to be stored now, and hold back SENDs that exceed a rate.

        Entries held back earlier come first.  Each list of the result has at most `pass_bytes_max` bytes.
        """
        out = self._admit_held() if self.due_ms <= self._decisions.now_ms else []
        for worker, rows, data in sends:
            is_held = self._hold_back(worker, rows, data, out)
            if is_held is None:
                out.append((worker, rows, data))
            elif not is_held.all():
                out.append((worker, *packed(rows[~is_held], data)))
        self._due_ms = min(map(self._ready_ms, self.held.by_topic), default=NEVER_MS)
        return in_parts(out, self._options.current.pass_bytes_max)

    def take_all(self, topic: Topic) -> list[Sends]:
        """Take all held-back entries of the topic, and charge them to its rates, so that later entries wait longer.

        Each list of the result has at most `pass_bytes_max` bytes.
        """
        return in_parts(self._take_all(topic), self._options.current.pass_bytes_max)

    def _take_all(self, topic: Topic) -> Sends:
        held = self.held.by_topic.get(topic)
        pieces = list(held.pieces) if held is not None else []
        for _, rows, _ in pieces:
            self._charge(self._limits(topic), rows)
        self.held.drop(topic)
        return pieces

    def _admit_held(self) -> Sends:
        """Take the held-back entries that rates allow now.

        A topic that gets some goes to the end of the queue, so that topics with a shared rate take turns.
        """
        out: Sends = []
        by_topic = self.held.by_topic
        for topic in list(by_topic):
            some = self._admit_some(topic)
            out += some
            held = by_topic.pop(topic) if some else by_topic[topic]
            if held.pieces:
                by_topic[topic] = held
                self._count_time(topic)
        return out

    def take(self, topic: Topic, messages: int, size: int) -> bool:
        """Charge messages of the broker's own to the topic's limits.  Return False if they have no room now."""
        if topic in self.held.by_topic:      # no message may overtake those that are held back
            return False
        limits, now_ms = self._limits(topic), self._decisions.now_ms
        if any(min(limit.room(now_ms)) <= 0 for limit in limits):
            return False
        for limit in limits:
            limit.take(messages, size)
        return True

    def _admit_some(self, topic: Topic) -> Sends:
        """Take as many held-back entries of one topic as its limits allow."""
        held, limits = self.held.by_topic[topic], self._limits(topic)
        out: Sends = []
        while held.pieces and (count := self._reach(limits, rows := held.pieces[0][1])):
            self._charge(limits, rows[:count])
            out.append(self.held.take_first(held, count))
            if count < len(rows):
                break
        return out

    def _hold_back(self, worker: int, rows: Rows, data: memoryview, out: Sends) -> NDArray[np.bool_] | None:
        """Hold back the rows, among (n,) SEND_ROW, that exceed a rate.

        Returns which rows (n,) are held back, None when all may pass.  When the owner holds back more than _HELD_MAX
        bytes, all held-back entries of the topic are added to `out` instead.
        """
        # 1. Number the topics that have a rate, and give each row its topic's number: -1 without a rate.
        handles, inverse = np.unique(rows["producer"], return_inverse=True)
        topics: dict[Topic, int] = {}
        numbers = [-1 if (topic := self._limited_topic(handle)) is None else topics.setdefault(topic, len(topics))
                   for handle in handles.tolist()]
        if not topics:
            return None
        # 2. Sort rows with a rate by topic, in the order in which they came: topic k has order[starts[k]:ends[k]].
        number_of = np.array(numbers)[inverse]
        order = np.argsort(number_of, kind="stable")
        order = order[np.searchsorted(number_of[order], 0):]
        starts = np.searchsorted(number_of[order], np.arange(len(topics)))
        ends = [*starts[1:].tolist(), len(order)]
        # 3. Let each topic's rows pass up to the first that exceeds its rate, and hold back the others.
        messages, sizes = (np.add.reduceat(rows[name][order], starts, dtype=np.int64).tolist()
                           for name in ("messages", "size"))
        is_held: NDArray[np.bool_] | None = None
        for topic, start, end, many, size in zip(topics, starts.tolist(), ends, messages, sizes, strict=True):
            count = self._pass_some(topic, rows, order[start:end], many, size)
            if start + count == end:
                continue
            exceeding = order[start + count:end]
            is_held = np.zeros(len(rows), bool) if is_held is None else is_held
            is_held[exceeding] = True
            self.held.add(topic, worker, rows[exceeding], data)
            self._log.happened(topic, len(exceeding), self._decisions.now_ms, partial(self._publish_rules, topic))
            if self.held.size > _HELD_MAX:
                out += self._take_all(topic)
        return is_held

    def _pass_some(self, topic: Topic, rows: Rows, which: NDArray[np.intp], messages: int, size: int) -> int:
        """Return how many of a topic's first rows its limits allow, and charge these rows to the limits.

        which: (m,) the topic's rows.  messages, size: the sums of all these rows.
        """
        if topic in self.held.by_topic:      # no entry may overtake those that are held back
            return 0
        limits, now_ms = self._limits(topic), self._decisions.now_ms
        if all(messages <= room[0] and size <= room[1] for room in [limit.room(now_ms) for limit in limits]):
            for limit in limits:
                limit.take(messages, size)
            return len(which)
        count = self._reach(limits, rows[which])
        self._charge(limits, rows[which[:count]])
        if count < len(which):
            self._count_time(topic)
        return count

    def _limited_topic(self, handle: int) -> Topic | None:
        """Return a producer's topic if publishing to it is limited or entries of it are held back, else None."""
        producer = self._producers.by_handle.get(handle)
        if producer is None:
            return None
        topic = producer.partition
        is_limited = self._publish is not None or topic in self._limited or topic in self.held.by_topic
        return topic if is_limited else None

    def _limits(self, topic: Topic) -> list[Limit]:
        """Return the limits of publishing to a topic: its own, and the broker-wide one."""
        limits = topic.rate_limits
        own = limits.publish if limits is not None else None
        return [limit for limit in (own, self._publish) if limit is not None]

    def _ready_ms(self, topic: Topic) -> int:
        """Return when the next held-back entry of a topic may pass."""
        return next_step(max((limit.ready_ms() for limit in self._limits(topic)), default=0))

    def _count_time(self, topic: Topic) -> None:
        if topic.rate_limits is None:
            topic.rate_limits = Limits()
        topic.rate_limits.publish_limited_times += 1

    def _reach(self, limits: Iterable[Limit], rows: Rows) -> int:
        """Return how many of the first rows (n,) SEND_ROW the limits allow."""
        count = len(rows)
        for limit in limits:
            for column, room in zip(("messages", "size"), limit.room(self._decisions.now_ms), strict=True):
                if room < UNBOUNDED:
                    count = within_permits(rows[column][:count], room)[0] if room > 0 and count else 0
        return count

    @staticmethod
    def _charge(limits: Iterable[Limit], rows: Rows) -> None:
        """Charge rows (n,) SEND_ROW to the limits: take a token for each message and byte."""
        for limit in limits if len(rows) else ():
            limit.take(int(rows["messages"].sum(dtype=np.int64)), int(rows["size"].sum(dtype=np.int64)))

    def causes(self, topic: Topic) -> list[dict[str, Any]]:
        """Return the rates that throttle the topic's producers now, as JSON."""
        held = self.held.by_topic.get(topic)
        if held is None:
            return []
        return [{"cause": "publish rate", "rule": _rule(self._catalogue, topic, limit, "publishRate"),
                 "held_back": held.entries(), "since_ms": held.since_ms, "until_ms": next_step(limit.ready_ms())}
                for limit in self._limits(topic) if limit.ready_ms() > self._decisions.now_ms]

    def _publish_rules(self, topic: Topic) -> str:
        return _rules(self.causes(topic))

    # -- dispatching

    def in_turn(self, topics: Iterable[Topic]) -> Iterable[Topic]:
        """Return the topics in the order of dispatch.

        With a broker-wide dispatch rate, topics that have waited longest since their last delivery come first.
        """
        return topics if self._dispatch is None else sorted(topics, key=_topic_served_ms)

    def next_batches(self, subscription: Subscription, ledgers: Sequence[ReadableLedger]) -> list[Batch]:
        """Return batches from `Dispatcher.next_batches` of the subscription, as many as dispatch rates allow."""
        topic, dispatcher = subscription.partition, subscription.dispatcher
        now_ms, of_topic = topic.now_ms, topic.rate_limits
        if subscription.limited is None:
            watch_subscription(subscription, now_ms)
        limited = subscription.limited
        assert limited is not None and of_topic is not None and dispatcher is not None, subscription
        shared = (of_topic.dispatch, of_topic.broker) if subscription.remote is None else ()
        limits = [limit for limit in (limited.limit, *shared) if limit is not None]
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
            self._note(subscription, limited, [(limit, limit.room(now_ms)) for limit in limits], now_ms)
        else:
            limited.since_ms = 0
        return batches

    def _note(self, subscription: Subscription, limited: Limited, rooms: list[tuple[Limit, tuple[int, int]]],
              now_ms: int) -> None:
        """Record that limits without room throttle the subscription while its consumers could take more entries."""
        limited.by = [limit for limit, room in rooms if min(room) <= 0]
        limited.until_ms = next_step(max([now_ms + 1, *[limit.ready_ms() for limit in limited.by]]))
        limited.since_ms = limited.since_ms or now_ms
        for limit, room in rooms:
            for what, left in zip(("Msg", "Bytes"), room, strict=True):
                if left <= 0:
                    name = f"dispatchThrottled{what}EventsBy{limit.level}Limit"
                    limited.times[name] = limited.times.get(name, 0) + 1
        self._log.happened(subscription, 1, now_ms, lambda: _rules(causes(self._catalogue, subscription)))

    def _is_throttled(self, throttled: Throttled) -> bool:
        """Whether a topic's producers, or a subscription's consumers, are still throttled."""
        if not isinstance(throttled, Subscription):
            return throttled in self.held.by_topic
        topic, limited = throttled.partition, throttled.limited
        return (isinstance(topic, Partition) and not topic.is_released and throttled in topic.attached
                and limited is not None and limited.since_ms > 0)


# -- rates of subscriptions

def watch_subscription(subscription: Subscription, now_ms: int) -> None:
    """Apply the dispatch rate of a subscription that is new, or whose topic's policies have changed."""
    limited = subscription.limited = subscription.limited or Limited()
    policies = subscription.partition.policies
    rate = dict(policies.dispatch_rates_of).get(subscription.name, policies.subscription_dispatch_rate)
    if subscription.remote is not None:
        rate = policies.replicator_dispatch_rate
    limited.limit = renew_limit(limited.limit, "Subscription", rate, now_ms)
    limited.since_ms, limited.until_ms, limited.by = 0, NEVER_MS, []


def _is_behind(subscription: Subscription) -> bool:
    return subscription.cursor.backlog(subscription.partition.ledgers) > _BACKLOG_MIN


def published(groups: list[Group], now_ms: int) -> None:
    """Add tokens to dispatch rates that are relative to the publish rate; called before entries are appended."""
    for group in groups:
        topic = group.partition
        if topic.rate_limits is None:
            continue
        messages = group.count if topic.rate_limits.counts_entries else group.next_message - topic.next_message
        of_subscriptions = (one.limited.limit for one in topic.attached if one.limited is not None)
        for limit in (topic.rate_limits.dispatch, *of_subscriptions):
            if limit is not None:
                limit.published(messages, group.size - group.ledger.size, now_ms)


def in_turn(topic: Topic) -> list[Subscription]:
    """Return the topic's subscriptions with consumers in the order of dispatch.

    With a shared rate, subscriptions that have waited longest since their last delivery come first.
    """
    return sorted(topic.attached, key=_served_ms)


def _served_ms(subscription: Subscription) -> int:
    return subscription.limited.served_ms if subscription.limited is not None else 0


def _topic_served_ms(topic: Topic) -> int:
    limits = topic.rate_limits
    assert limits is not None, topic      # a shared dispatch rate gives every topic its limits
    return limits.served_ms


def due_ms(topic: Topic) -> int:
    """Return when a throttled subscription of the topic may be delivered more, NEVER_MS if none is throttled."""
    return min((one.limited.until_ms for one in topic.attached if one.limited is not None), default=NEVER_MS)


# -- causes of throttling, as operators see them

def causes(catalogue: Catalogue, subscription: Subscription) -> list[dict[str, Any]]:
    """Return which rates throttle the subscription's consumers now, as JSON."""
    limited, topic = subscription.limited, subscription.partition
    if limited is None:
        return []
    names = _POLICIES
    if subscription.remote is not None:
        names = {"Subscription": "replicatorDispatchRate"}
    elif any(name == subscription.name for name, _ in topic.policies.dispatch_rates_of):
        names = _POLICIES | {"Subscription": DISPATCH_RATE_OF + subscription.name}
    return [{"cause": "dispatch rate", "rule": _rule(catalogue, topic, limit, names[limit.level]),
             "since_ms": limited.since_ms, "until_ms": limited.until_ms} for limit in limited.by]


_POLICIES = {"Subscription": "subscriptionDispatchRate", "Topic": "dispatchRate", "Broker": "dispatchRate"}


def _rules(causes: list[dict[str, Any]]) -> str:
    return " and ".join(cause["rule"] for cause in causes)


def _rule(catalogue: Catalogue, topic: Topic, limit: Limit, policy: str) -> str:
    """Return a text that describes a rate: its policy, the topic or namespace that sets it, and its bounds."""
    levels = ("topic", str(topic.name.base)), ("namespace", topic.name.namespace)
    scopes = [f"{kind} {scope}" for kind, scope in levels
              if limit.level != "Broker" and policy in catalogue.policies.of(scope)]
    return f"{policy} of {scopes[0] if scopes else 'the broker'}: {limit}"
