"""Clears of a subscription's backlog, by skipping or by a seek, in all partitions or segments of a topic.

Partitions that are cleared at one time are one backlog to take back (undelete.md).  If an owner refuses, or has ended,
some partitions are cleared and others are not, and the request is repeated.  It then counts as the same clear.
"""
import contextlib
from collections.abc import Iterator

from aiohttp import web

from geminga.storage.catalogue.database import now_ms
from geminga.supervisor.admin.requests.request_parts import catalogue_of, subscription_of, topic_of

# (topic, subscription) -> when the clear was first asked for that failed last.
UNFINISHED = web.AppKey("unfinished_clears", dict[tuple[str, str], int])
_REPEATED_MS = 60_000      # in which a request repeats one that failed: the backlog is kept as long from the first one
_UNFINISHED_MAX = 1_000    # requests for subscriptions that do not exist fail too


@contextlib.contextmanager
def clear_of(request: web.Request) -> Iterator[int]:
    """Yield the time, in ms, at which the request's subscription is cleared; an error leaves it to the next request."""
    unfinished, topic = request.app[UNFINISHED], catalogue_of(request).topics.whole(topic_of(request))
    key, now = (str(topic), subscription_of(request)), now_ms()
    since = unfinished.pop(key, 0)
    asked_ms = since if 0 <= now - since < _REPEATED_MS else now
    try:
        yield asked_ms
    except BaseException:
        unfinished[key] = asked_ms
        if len(unfinished) > _UNFINISHED_MAX:
            del unfinished[next(iter(unfinished))]
        raise
