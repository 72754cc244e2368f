"""Changes and deletions of scalable topics that have failed, and are tried again until they succeed."""
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from aiohttp import web

from geminga.proto.errors import Refusal
from geminga.proto.names import TopicName

STUCK_SECONDS = 30           # from the first failure until an operator is told: an owner that was killed is back sooner


class Failing(NamedTuple):
    """Work that has failed, since when, in seconds since 1970, and the last failure."""

    what: str
    since: float
    why: str


class Retries:
    """The work on scalable topics that fails, one piece for each topic."""

    def __init__(self, wall: Callable[[], float] = time.time):
        self._wall = wall
        self._failing: dict[TopicName, Failing] = {}

    def __repr__(self) -> str:
        return f"<Retries {len(self._failing)}>"

    def failed(self, topic: TopicName, what: str, error: Exception) -> None:
        """Note that a try has failed.  what: names the work, such as "split"."""
        before = self._failing.get(topic)
        since = before.since if before is not None and before.what == what else self._wall()
        self._failing[topic] = Failing(what, since, error.message if isinstance(error, Refusal) else str(error))

    def ended(self, topic: TopicName) -> None:
        """Note that the work on a topic has succeeded, or is no longer wanted."""
        self._failing.pop(topic, None)

    def keep(self, what: str, topics: Collection[TopicName]) -> None:
        """Forget the work of that name on all other topics: somebody else has finished it."""
        for topic in [topic for topic, one in self._failing.items() if one.what == what and topic not in topics]:
            self.ended(topic)

    def why(self, topic: TopicName) -> str:
        """Return the reason why the work on a topic failed last; "": it has not failed."""
        return self._failing[topic].why if topic in self._failing else ""

    def stuck(self) -> dict[str, Failing]:
        """Return {topic: its work} of all that has failed for STUCK_SECONDS, sorted."""
        until = self._wall() - STUCK_SECONDS
        return {str(topic): one for topic, one in sorted(self._failing.items(), key=lambda item: str(item[0]))
                if one.since <= until}


RETRIES = web.AppKey("retries", Retries)
