"""Rates over the last seconds, of topics with traffic and of their subscriptions.

The windows of `statistics.py` are a minute long, which is too long for a person who watches. Here a period ends after
five seconds, or later where many topics have traffic: one tick ends the periods of a bounded number of topics.
"""
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from geminga.storage.statistics.columns import Counts, Rates, Topic, subscription_counts, topic_counts
from geminga.storage.topics.subscription import Subscription

PERIOD_MS = 5_000
_LEAST_MS = 2_000          # rates of a shorter part of a period would jump
_TICK_MS = 1_000           # traffic of a topic without a period began up to this long ago
_ENDS_MAX = 1_000          # periods that end in one tick; takes some milliseconds
_SUMMED_MAX = 2_000        # topics whose rates are summed for one answer; takes some milliseconds
_NONE: Rates = (0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Period:
    """The current period of a topic: counters as it began, and the rates of the one before."""

    since_ms: int
    topic: Counts = (0, 0, 0, 0, 0, 0)
    subscriptions: dict[Subscription, Counts] = field(default_factory=dict)
    topic_rates: Rates | None = None                     # None: no period has ended
    subscription_rates: dict[Subscription, Rates] = field(default_factory=dict)


class RecentRates:
    """Rates over the last seconds of all topics that are open at one owner."""

    def __init__(self, now_ms: int) -> None:
        self._seen_ms = now_ms
        self._periods: dict[Topic, _Period] = {}
        self._moving: dict[Topic, None] = {}             # topics with traffic, the longest period first

    def __repr__(self) -> str:
        return f"<RecentRates moving={len(self._moving)} known={len(self._periods)}>"

    @property
    def moving(self) -> Iterable[Topic]:
        """Topics with traffic in this period or the one before; rates of all others are 0."""
        return self._moving

    def changed(self, topics: Iterable[Topic], now_ms: int) -> None:
        """Begin periods of topics that have changed since the last call."""
        since_ms, self._seen_ms = max(self._seen_ms, now_ms - _TICK_MS), now_ms
        for topic in topics:
            if topic not in self._moving:
                self._moving[topic] = None
                period = self._periods.get(topic)
                if period is None:
                    self._periods[topic] = _Period(since_ms)
                else:
                    period.since_ms = since_ms           # its counters have not changed since the last one ended

    def tick(self, now_ms: int) -> None:
        """End the periods that are due."""
        for topic in list(itertools.islice(self._moving, _ENDS_MAX)):
            period = self._periods[topic]
            if period.since_ms > now_ms:                 # the clock was set back
                period.since_ms = now_ms
            elif now_ms - period.since_ms >= PERIOD_MS:
                del self._moving[topic]
                if _end(period, topic, now_ms):
                    self._moving[topic] = None           # else its rates would stay above 0

    def forget(self, topic: Topic) -> None:
        """Forget a topic that was closed."""
        self._moving.pop(topic, None)
        self._periods.pop(topic, None)

    def of_topic(self, topic: Topic, now_ms: int) -> Rates:
        """Return a topic's rates per second: messages and bytes in, messages and bytes out."""
        if topic not in self._moving:
            return _NONE
        period = self._periods[topic]
        if period.topic_rates is not None and self._takes_former(period, now_ms):
            return period.topic_rates
        return _of_topic(topic_counts(topic), period.topic, _seconds(period, now_ms))

    def of_all(self, now_ms: int) -> Rates | None:
        """Return the rates of all topics together; None if too many have traffic."""
        if len(self._moving) > _SUMMED_MAX:
            return None
        each = [self.of_topic(topic, now_ms) for topic in self._moving]
        return tuple([sum(rates) for rates in zip(*each, strict=True)]) or _NONE

    def of_subscription(self, subscription: Subscription, now_ms: int) -> Rates:
        """Return a subscription's rates per second: messages and bytes out, messages redelivered and acknowledged."""
        topic: Topic = subscription.partition      # type: ignore[assignment]      # topics are of these two classes
        if topic not in self._moving:
            return _NONE
        period = self._periods[topic]
        if period.topic_rates is not None and self._takes_former(period, now_ms):
            return period.subscription_rates.get(subscription, _NONE)
        before = period.subscriptions.get(subscription)
        return _of_subscription(subscription_counts(subscription), before, _seconds(period, now_ms))

    def _takes_former(self, period: _Period, now_ms: int) -> bool:
        """Whether rates are those of the former period: the current one is too short, or too many would be computed."""
        return now_ms - period.since_ms < _LEAST_MS or len(self._moving) > _ENDS_MAX


def _seconds(period: _Period, now_ms: int) -> float:
    return max(_TICK_MS, now_ms - period.since_ms) / 1_000


def _end(period: _Period, topic: Topic, now_ms: int) -> bool:
    """End a topic's period, and begin the next one.  Returns whether any rate is above 0."""
    seconds, counts = _seconds(period, now_ms), topic_counts(topic)
    subscriptions = {subscription: subscription_counts(subscription) for subscription in topic.subscriptions.values()}
    period.topic_rates = _of_topic(counts, period.topic, seconds)
    period.subscription_rates = {one: _of_subscription(now, period.subscriptions.get(one), seconds)
                                 for one, now in subscriptions.items()}
    period.since_ms, period.topic, period.subscriptions = now_ms, counts, subscriptions
    return any(period.topic_rates) or any(map(any, period.subscription_rates.values()))


def _of_topic(now: Counts, before: Counts, seconds: float) -> Rates:
    return _rates((now[0], now[1], now[3], now[4]), (before[0], before[1], before[3], before[4]), seconds)


def _of_subscription(now: Counts, before: Counts | None, seconds: float) -> Rates:
    if before is None:      # acknowledgements are counted since the subscription began, the others since it was opened
        before = (0, 0, 0, 0, 0, now[5])
    return _rates((now[0], now[1], now[3], now[5]), (before[0], before[1], before[3], before[5]), seconds)


def _rates(now: Counts, before: Counts, seconds: float) -> Rates:
    return tuple([max(0, count - earlier) / seconds for count, earlier in zip(now, before, strict=True)])
