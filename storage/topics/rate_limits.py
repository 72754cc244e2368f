"""Rate limits as data: token buckets, and the limits of a topic, a subscription and the broker.

A rate is a bucket of tokens that come evenly.  Only 150 ms' worth is saved up.  So over ten seconds nobody gets more
than 1.5 % above the rate, and a client that is a little late gets no less.  A batch may overdraw the bucket once, and
the debt is paid before anything else is let through.

The rules for applying limits stand in enforcement/rate_limiter.py.
"""
from dataclasses import dataclass, field

from geminga.storage.cursors.pending_acks import NEVER_MS
from geminga.storage.runtime.counters import Counters
from geminga.storage.topics.permits import UNBOUNDED

SAVED_MS = 150              # a bucket saves up the tokens of this time
STEP_MS = 20                # between looks at all throttled topics of an owner: one sync serves all of them
_CONSUMERS_MAX = 1_000      # consumers of a topic whose latest subscriptions are remembered

Rate = tuple[int, int, int, bool]      # messages, bytes, in so many seconds, relative to what is published


class Bucket:
    """A token bucket: `rate` tokens come in `period_s` seconds.

    It counts integer units, `_price` to a token, so that nothing is lost by rounding.
    """

    __slots__ = ("rate", "_price", "_most", "_level", "_at_ms")

    def __init__(self, rate: int, period_s: int, now_ms: int, saved_ms: int = SAVED_MS):
        self.rate = rate                                  # tokens in a period, which is as many units in a millisecond
        self._price = 1_000 * period_s
        assert rate > 0 and period_s > 0, (rate, period_s)
        self._most = self._level = self._price + rate * saved_ms
        self._at_ms = now_ms

    def __repr__(self) -> str:
        return f"<Bucket rate={self.rate} level={self._level / self._price:.1f} of {self._most / self._price:.1f}>"

    def room(self, now_ms: int) -> int:
        """Whole tokens at that time; 0 or less: none."""
        if now_ms != self._at_ms:                         # a clock that is set back adds no tokens, and takes none
            self._level = min(self._level + self.rate * max(0, now_ms - self._at_ms), self._most)
            self._at_ms = now_ms
        return self._level // self._price

    def take(self, count: int) -> None:
        """Take tokens from the bucket as of the last `room`; a negative count returns them."""
        self._level -= count * self._price

    def ready_ms(self) -> int:
        """Time in ms at which a token is available."""
        return self._at_ms + max(0, -((self._level - self._price) // self.rate))

    def owes(self, other: "Bucket") -> None:
        """Take over the other bucket's debt, not its credit."""
        self._level = min(other._level // other._price * self._price, self._price)


class Limit:
    """A limit on messages and on bytes per time; a rate of 0 or less does not bound."""

    __slots__ = ("level", "rates", "messages", "size")

    def __init__(self, level: str, rates: Rate, now_ms: int, before: "Limit | None" = None):
        self.level = level                                # "Topic", "Subscription" or "Broker"
        self.rates = rates
        messages, size, period_s, _ = rates
        self.messages = Bucket(messages, period_s, now_ms) if messages > 0 else None
        self.size = Bucket(size, period_s, now_ms) if size > 0 else None
        if before is not None:
            for mine, other in ((self.messages, before.messages), (self.size, before.size)):
                if mine is not None and other is not None:
                    other.room(now_ms)
                    mine.owes(other)

    def room(self, now_ms: int) -> tuple[int, int]:
        """(messages, bytes) that there are tokens for at that time"""
        return (self.messages.room(now_ms) if self.messages is not None else UNBOUNDED,
                self.size.room(now_ms) if self.size is not None else UNBOUNDED)

    def take(self, messages: int, size: int) -> None:
        """Take tokens for messages and for bytes."""
        if self.messages is not None:
            self.messages.take(messages)
        if self.size is not None:
            self.size.take(size)

    def published(self, messages: int, size: int, now_ms: int) -> None:
        """Return tokens for published messages, where the dispatch rate is relative to the publish rate."""
        if self.rates[3]:
            self.room(now_ms)
            self.take(-messages, -size)

    def ready_ms(self) -> int:
        """Time in ms at which both buckets have a token."""
        return max(bucket.ready_ms() for bucket in (self.messages, self.size) if bucket is not None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.level}: {self}>"

    def __str__(self) -> str:
        """The limit in words, for operators."""
        messages, size, period_s, is_relative = self.rates
        kinds = (messages, "messages"), (size, "bytes")
        bounds = " and ".join(f"{count} {kind}" for count, kind in kinds if count > 0)
        period = f"{period_s} seconds" if period_s > 1 else "a second"
        return f"{bounds} in {period}{' more than is published' if is_relative else ''}"


class SharedLimit(Limit):
    """A limit that all owners share.

    Each owner counts its own use in shared counters, and takes tokens off its bucket for the others' use.
    """

    __slots__ = ("_counters", "_names", "_seen")

    def __init__(self, counters: Counters, names: tuple[str, str], rates: Rate, now_ms: int):
        super().__init__("Broker", rates, now_ms)
        self._counters, self._names = counters, names
        self._seen = [counters.total(name) for name in names]

    def room(self, now_ms: int) -> tuple[int, int]:
        """(messages, bytes), after taking off what other owners have used since the last call."""
        seen, self._seen = self._seen, [self._counters.total(name) for name in self._names]
        super().take(*[now - before for now, before in zip(self._seen, seen, strict=True)])
        return super().room(now_ms)

    def take(self, messages: int, size: int) -> None:
        """Take tokens, and tell the other owners."""
        for name, count in zip(self._names, (messages, size), strict=True):
            self._counters.add(name, count)
        self._seen = [before + count for before, count in zip(self._seen, (messages, size), strict=True)]
        super().take(messages, size)


def renew_limit(before: Limit | None, level: str, rates: Rate, now_ms: int) -> Limit | None:
    """The limit for these rates: `before` if its rates are the same; None if neither messages nor bytes are bounded."""
    if rates[0] <= 0 and rates[1] <= 0:
        return None
    return before if before is not None and before.rates == rates else Limit(level, rates, now_ms, before)


def next_step(ms: int) -> int:
    """The time, in ms, rounded up to a whole step."""
    return -(-ms // STEP_MS) * STEP_MS


class Subscribed:
    """The subscribe rate of a topic: how often one consumer may subscribe in a time."""

    def __init__(self, limit: tuple[int, int]):
        """limit: (times, seconds)"""
        self.limit = limit
        self._buckets: dict[tuple[str, str, int], Bucket] = {}      # by consumer: (host, name, id)

    def __repr__(self) -> str:
        return f"<Subscribed {self.limit} consumers={len(self._buckets)}>"

    def may(self, consumer: tuple[str, str, int], now_ms: int) -> bool:
        """Whether the consumer, (host, name, id), may subscribe now."""
        return consumer not in self._buckets or self._buckets[consumer].room(now_ms) > 0

    def count(self, consumer: tuple[str, str, int], now_ms: int) -> None:
        """Count one subscription of the consumer."""
        if consumer not in self._buckets:
            if len(self._buckets) >= _CONSUMERS_MAX:
                self._buckets = {
                    one: bucket for one, bucket in self._buckets.items() if bucket.room(now_ms) < self.limit[0]}
            count, period_s = self.limit
            self._buckets[consumer] = Bucket(count, period_s, now_ms, (period_s * 1_000) * (count - 1) // count)
        self._buckets[consumer].room(now_ms)
        self._buckets[consumer].take(1)


@dataclass(eq=False, slots=True)
class Limits:
    """Rate limits of one topic."""

    publish: Limit | None = None
    dispatch: Limit | None = None                         # of all subscriptions together
    broker: SharedLimit | None = None                     # of all topics' subscriptions together
    subscribed: Subscribed | None = None
    served_ms: int = 0                                    # when a consumer of the topic was last delivered an entry
    counts_entries: bool = False                          # a batch counts as one message
    spares_keen: bool = False                             # subscriptions with a small backlog are not throttled
    publish_limited_times: int = 0                        # times that SENDs were held back


@dataclass(eq=False, slots=True)
class Limited:
    """Rate limits of one subscription, and how they throttle it now."""

    limit: Limit | None = None                            # its own
    served_ms: int = 0                                    # when its consumers were last delivered an entry
    since_ms: int = 0                                     # since when it is throttled; 0: it is not
    until_ms: int = NEVER_MS                              # when a token is available
    by: list[Limit] = field(default_factory=list)         # limits that throttle it
    times: dict[str, int] = field(default_factory=dict)   # times that it was throttled, by name in statistics
