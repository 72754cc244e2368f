"""Attempts to authenticate: counted, and logged once per episode and cause; repeated failures are answered late.

An episode is a series of failures from one address without a minute's rest between them; all addresses of an IPv6
network of 64 bits count as one.  From the third failure of an episode on, each answer is delayed longer than the one
before.  A success is never delayed.
"""
import asyncio
import ipaddress
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from geminga.storage.runtime.counters import EXPIRING_MINUTES, Counters, authentication_counter
from geminga.storage.runtime.log import log
from geminga.workers.identity.authentication import LOCAL, Identity
from geminga.workers.identity.credentials import NotAuthenticated

_REST_SECONDS = 60.0          # without a failure, after which an episode is over
_UNDELAYED = 2                # failures of an episode that are answered at once
_FIRST_SECONDS, _LAST_SECONDS = 0.25, 8.0
_ADDRESSES_MAX = 10_000       # remembered; the one whose last failure is longest ago is forgotten first
_LINES_MAX = 20               # lines in the log, in a minute, about new episodes and new causes
_CAUSES_MAX = 8               # of an episode; further ones are counted together
_OTHERS = "for other causes"


@dataclass(slots=True)
class Episode:
    """Failed attempts of one address that follow each other within a minute."""

    began: float      # of the loop's clock, in seconds
    last: float
    failures: int = 0
    is_told: bool = False
    causes: dict[str, int] = field(default_factory=dict)      # cause -> how often, in the order of their first time


class Attempts:
    """A count of successful and failed attempts to authenticate, with the delays that failures earn."""

    def __init__(self, counters: Counters, loop: asyncio.AbstractEventLoop):
        self._counters, self._loop = counters, loop
        self._episodes: OrderedDict[str, Episode] = OrderedDict()       # by address, longest silent first
        self._lines, self._lines_since, self._untold = 0, 0.0, 0
        self._is_due = False

    def __repr__(self) -> str:
        return f"<Attempts {len(self._episodes)} episodes>"

    def succeeded(self, identity: Identity) -> None:
        """Count a success, and record how long its credentials stay valid."""
        if identity.method in ("", LOCAL):
            return
        self._counters.add(authentication_counter(identity.method, "SUCCESS"))
        if identity.expires_s is not None:
            minutes = max(0.0, identity.expires_s - time.time()) / 60
            self._counters.add(next((f"expiring_{bound}" for bound in EXPIRING_MINUTES if minutes <= bound),
                                    "expiring_later"))
            self._counters.add("expiring_minutes", int(minutes))

    def failed(self, host: str, method: str, error: NotAuthenticated) -> float:
        """Count a failure of an address; returns by how many seconds the answer is to be delayed."""
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
        late = episode.failures - _UNDELAYED - 1
        return 0.0 if late < 0 else min(_LAST_SECONDS, _FIRST_SECONDS * 2 ** min(late, 10))

    def sweep(self) -> None:
        """Log and forget episodes that are over."""
        before = self._loop.time() - _REST_SECONDS
        while self._episodes and next(iter(self._episodes.values())).last <= before:
            self._end(*self._episodes.popitem(last=False))

    def _sweep_again(self) -> None:
        self.sweep()
        self._is_due = bool(self._episodes)
        if self._is_due:
            self._loop.call_later(_REST_SECONDS, self._sweep_again)

    def _begin(self, address: str, episode: Episode, cause: str, now: float) -> None:
        """Log the first failure of an address, or its first failure with this cause."""
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
            seconds = episode.last - episode.began
            log.warning(f"authentication failed {episode.failures} times from {address} in {seconds:.0f} s: {causes}",
                        code="G404", client=address)


def address_of(host: str) -> str:
    """Return the key by which an address is counted: IPv4 addresses themselves, IPv6 addresses by their /64 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
