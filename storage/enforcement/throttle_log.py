"""Log lines about throttling: one when a rate begins to throttle a topic or subscription, one when throttling ends.

Throttling has ended when nothing was throttled for QUIET_MS, not whenever the rate has tokens again. In each period
only the first LINES_MAX beginnings are logged; one line at its end counts the beginnings without a line.
"""
from collections.abc import Callable
from dataclasses import dataclass

from geminga.storage.runtime.log import log
from geminga.storage.topics.subscription import Subscription, Topic

QUIET_MS = 10_000
LINES_MAX = 20               # episodes whose beginning an owner logs in one PERIOD_MS
PERIOD_MS = 60_000

Throttled = Topic | Subscription      # a topic's producers, or a subscription's consumers


@dataclass(slots=True)
class _Episode:
    """One episode of throttling of a topic or subscription, from its beginning to its end."""

    began_ms: int
    last_ms: int              # when it happened last
    count: int                # entries held back, or times that a subscription was throttled
    is_logged: bool           # so that the end is logged too


class ThrottleLog:
    """Open throttling episodes of one owner's topics and subscriptions, each logged when it begins and ends."""

    def __init__(self, is_waiting: Callable[[Throttled], bool]):
        """is_waiting: whether a topic or subscription is still throttled, if `happened` was not called for long."""
        self._is_waiting = is_waiting
        self._episodes: dict[Throttled, _Episode] = {}
        self._since_ms, self._begun = 0, 0      # when the period began, and episodes that have begun in it

    def __repr__(self) -> str:
        return f"<ThrottleLog {len(self._episodes)} topics and subscriptions throttled>"

    def happened(self, throttled: Throttled, count: int, now_ms: int, why: Callable[[], str]) -> None:
        """Count throttled entries of a topic, or times that a subscription was throttled.

        why: returns the name of the rule, for the log line of a new episode.
        """
        episode = self._episodes.get(throttled)
        if episode is not None:
            episode.last_ms, episode.count = now_ms, episode.count + count
            return
        self._since_ms, self._begun = self._since_ms if self._begun else now_ms, self._begun + 1
        is_logged = self._begun <= LINES_MAX
        self._episodes[throttled] = _Episode(now_ms, now_ms, count, is_logged)
        if is_logged:
            log.info(f"{_who(throttled)} wait because of {why()}", code="G501", **_fields(throttled))

    def tick(self, now_ms: int) -> None:
        """Log the end of episodes without recent throttling; called once a second."""
        for throttled, episode in list(self._episodes.items()):
            if self._is_waiting(throttled):
                episode.last_ms = now_ms
            if now_ms - episode.last_ms < QUIET_MS:
                continue
            del self._episodes[throttled]
            if episode.is_logged:
                seconds = (episode.last_ms - episode.began_ms) / 1000
                what = "times" if isinstance(throttled, Subscription) else "entries"
                log.info(f"{_who(throttled)} wait no more; a rate held up {episode.count} {what} in {seconds:.1f} s",
                         code="G501", **_fields(throttled))
        if self._begun and now_ms - self._since_ms >= PERIOD_MS:
            if self._begun > LINES_MAX:
                more = self._begun - LINES_MAX
                log.info(f"rates began to keep {more} more topics and subscriptions waiting, "
                         "of which there are no lines", code="G501")
            self._begun = 0


def _who(throttled: Throttled) -> str:
    if isinstance(throttled, Subscription):
        return f"{throttled.partition.name}: consumers of subscription {throttled.name!r}"
    return f"{throttled.name}: producers"


def _fields(throttled: Throttled) -> dict[str, str]:
    if isinstance(throttled, Subscription):
        return {"topic": str(throttled.partition.name), "subscription": throttled.name}
    return {"topic": str(throttled.name)}
