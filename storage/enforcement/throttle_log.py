"""What an owner says in the log of those whom a rate keeps waiting: a line when it begins and one when it is over.

It is over when nobody has waited for QUIET_MS, not whenever there are tokens again.  Where very many wait, lines are about the first of
them; of the others there is a number, once in a while.
"""
from collections.abc import Callable
from dataclasses import dataclass

from geminga.storage.runtime.log import log
from geminga.storage.topics.subscription import Subscription, Topic

QUIET_MS = 10_000
LINES_MAX = 20               # beginnings that an owner prints in a PERIOD_MS
PERIOD_MS = 60_000

Slowed = Topic | Subscription      # a topic's producers, or a subscription's consumers


@dataclass(slots=True)
class _Episode:
    began_ms: int
    last_ms: int
    count: int
    is_told: bool


class Throttling:
    """Of one owner's topics and subscriptions."""

    def __init__(self, is_waiting: Callable[[Slowed], bool]):
        """is_waiting: whether somebody still waits, although nothing has happened for long."""
        self._is_waiting = is_waiting
        self._episodes: dict[Slowed, _Episode] = {}
        self._since_ms, self._begun = 0, 0      # the period, and episodes that have begun in it

    def happened(self, slowed: Slowed, count: int, now_ms: int, why: Callable[[], str]) -> None:
        """So many have to wait, because of a rule that why() names."""
        episode = self._episodes.get(slowed)
        if episode is not None:
            episode.last_ms, episode.count = now_ms, episode.count + count
            return
        self._since_ms, self._begun = self._since_ms if self._begun else now_ms, self._begun + 1
        is_told = self._begun <= LINES_MAX
        self._episodes[slowed] = _Episode(now_ms, now_ms, count, is_told)
        if is_told:
            log.info(f"{_who(slowed)} wait because of {why()}", code="G501", **_fields(slowed))

    def tick(self, now_ms: int) -> None:
        for slowed, episode in list(self._episodes.items()):
            if self._is_waiting(slowed):
                episode.last_ms = now_ms
            if now_ms - episode.last_ms < QUIET_MS:
                continue
            del self._episodes[slowed]
            if episode.is_told:
                seconds = (episode.last_ms - episode.began_ms) / 1000
                what = "times" if isinstance(slowed, Subscription) else "entries"
                log.info(f"{_who(slowed)} wait no more; a rate held up {episode.count} {what} in {seconds:.1f} s", code="G501",
                         **_fields(slowed))
        if self._begun and now_ms - self._since_ms >= PERIOD_MS:
            if self._begun > LINES_MAX:
                more = self._begun - LINES_MAX
                log.info(f"rates began to keep {more} more topics and subscriptions waiting, of which there are no lines", code="G501")
            self._begun = 0


def _who(slowed: Slowed) -> str:
    if isinstance(slowed, Subscription):
        return f"{slowed.partition.name}: consumers of subscription {slowed.name!r}"
    return f"{slowed.name}: producers"


def _fields(slowed: Slowed) -> dict[str, str]:
    if isinstance(slowed, Subscription):
        return {"topic": str(slowed.partition.name), "subscription": slowed.name}
    return {"topic": str(slowed.name)}
