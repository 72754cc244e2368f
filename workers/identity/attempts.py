"""Attempts to authenticate: counted, told in the log once per episode and cause, and slowed down where they go on failing.

An episode is what one address does without a minute's rest; of IPv6 a network of 64 bits counts as one address.  From its third failure on
each answer is later than the one before.  Who succeeds never waits.
"""
import ipaddress
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from geminga.storage.runtime.counters import EXPIRING_MINUTES, Counters, authentication_counter
from geminga.storage.runtime.log import log
from geminga.workers.identity.authentication import OURSELVES, Identity
from geminga.workers.identity.credentials import NotAuthenticated

_REST_SECONDS = 60.0          # without a failure, after which an episode is over
_UNSLOWED = 2                 # failures that are answered at once
_FIRST_SECONDS, _LAST_SECONDS = 0.25, 8.0
_ADDRESSES_MAX = 10_000       # that are remembered; the one that failed longest ago is forgotten first
_LINES_MAX = 20               # lines a minute about episodes that begin, and causes that they have not had before
_CAUSES_MAX = 8               # of an episode; others are counted together
_OTHERS = "for other causes"


@dataclass(slots=True)
class Episode:
    began: float
    last: float
    failures: int = 0
    is_told: bool = False
    causes: dict[str, int] = field(default_factory=dict)      # how often each, in the order of their first time


class Attempts:
    """Of one process."""

    def __init__(self, counters: Counters, loop):
        """loop: has the time, and calls later."""
        self._counters, self._loop = counters, loop
        self._episodes: OrderedDict[str, Episode] = OrderedDict()       # the one that failed longest ago first
        self._lines, self._lines_since, self._untold = 0, 0.0, 0
        self._is_due = False

    def succeeded(self, identity: Identity) -> None:
        """It has shown who it is."""
        if not identity.method or identity is OURSELVES:
            return
        self._counters.add(authentication_counter(identity.method, "SUCCESS"))
        if identity.expires_s is not None:
            minutes = max(0.0, identity.expires_s - time.time()) / 60
            self._counters.add(next((f"expiring_{bound}" for bound in EXPIRING_MINUTES if minutes <= bound), "expiring_later"))
            self._counters.add("expiring_minutes", int(minutes))

    def failed(self, host: str, method: str, error: NotAuthenticated) -> float:
        """Seconds that the answer is to wait."""
        self._counters.add(authentication_counter(method, error.reason))
        if error.reason == "EXPIRED_TOKEN":
            self._counters.add("expired_tokens")
        now = self._loop.time()
        self.sweep()
        address = address_of(host)
        episode = self._episodes.setdefault(address, Episode(now, now))
        self._episodes.move_to_end(address)
        episode.failures += 1
        episode.last = now
        cause = f"by {method if method in ('token', 'basic', 'tls') else 'another method'}: {error.why}"
        if cause not in episode.causes and len(episode.causes) >= _CAUSES_MAX:
            cause = _OTHERS
        episode.causes[cause] = episode.causes.get(cause, 0) + 1
        if episode.causes[cause] == 1:
            self._begin(address, episode, cause, now)
        if len(self._episodes) > _ADDRESSES_MAX:
            self._end(*self._episodes.popitem(last=False))
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(_REST_SECONDS, self._sweep_again)
        late = episode.failures - _UNSLOWED - 1
        return 0.0 if late < 0 else min(_LAST_SECONDS, _FIRST_SECONDS * 2 ** min(late, 10))

    def sweep(self) -> None:
        """Episodes that are over are told and forgotten."""
        before = self._loop.time() - _REST_SECONDS
        while self._episodes and next(iter(self._episodes.values())).last <= before:
            self._end(*self._episodes.popitem(last=False))

    def _sweep_again(self) -> None:
        self.sweep()
        self._is_due = bool(self._episodes)
        if self._is_due:
            self._loop.call_later(_REST_SECONDS, self._sweep_again)

    def _begin(self, address: str, episode: Episode, cause: str, now: float) -> None:
        """An episode has begun, or has a cause that it has not had before."""
        if now - self._lines_since >= _REST_SECONDS:
            if self._untold:
                log.warning(f"authentication failed from {self._untold} more addresses", code="G404")
            self._lines, self._lines_since, self._untold = 0, now, 0
        if self._lines < _LINES_MAX:
            self._lines += 1
            episode.is_told = True
            log.warning(f"authentication failed from {address} {cause}", code="G404", client=address)
        elif episode.failures == 1:
            self._untold += 1

    def _end(self, address: str, episode: Episode) -> None:
        if episode.failures > 1 and episode.is_told:
            causes = "; ".join(f"{count} {cause}" for cause, count in episode.causes.items())
            log.warning(f"authentication failed {episode.failures} times from {address} in {episode.last - episode.began:.0f} s: {causes}",
                        code="G404", client=address)


def address_of(host: str) -> str:
    """What counts as one."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
