"""Requests of one client that owners have not answered, and answers to LOOKUP that are withheld until an owner has."""
import time
from typing import NamedTuple

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.counters import Counters
from geminga.workers.owners.links import OwnerLink

_PENDING_MAX = 100_000          # requests; another one is answered with an error that asks to try again


class Withheld(NamedTuple):
    """An answer to LOOKUP that is sent only after the topic's owner knows that the client discovers topics."""

    command: api.BaseCommand
    answer: bytes
    since: float                # of time.perf_counter


class PendingRequests:
    """A client's unanswered requests by (link to the owner, request id); each is answered even if its owner ends
    first.
    """

    def __init__(self, counters: Counters):
        self._counters = counters
        self._kinds: dict[tuple[OwnerLink, int], int] = {}           # the commands' types
        self._ids: dict[tuple[OwnerLink, int], tuple[int, ...]] = {}      # of commands whose refusals have more ids
        self._withheld: dict[tuple[OwnerLink, int], Withheld] = {}

    def __repr__(self) -> str:
        return f"<PendingRequests {len(self._kinds)}, withheld {len(self._withheld)}>"

    def __len__(self) -> int:
        return len(self._kinds)

    @property
    def is_full(self) -> bool:
        """Whether the client has as many unanswered requests as one connection may have."""
        return len(self._kinds) >= _PENDING_MAX

    def add(self, link: OwnerLink, request_id: int, kind: int, ids: tuple[int, ...] = ()) -> None:
        """Record a request that was sent to an owner.  kind: type of its command; ids: see `Command.ids_of`."""
        self._kinds[link, request_id] = kind
        if ids:
            self._ids[link, request_id] = ids

    def withhold(self, link: OwnerLink, command: api.BaseCommand, answer: bytes) -> bool:
        """Withhold the answer to a LOOKUP until the topic's owner has answered a question of this worker.

        Returns False, and withholds nothing, if the client has too many requests or uses the request id already.
        """
        key = link, command.lookupTopic.request_id
        if key in self._kinds or self.is_full:
            return False
        self._kinds[key] = api.BaseCommand.LOOKUP
        self._counters.add("lookups_waiting")
        self._withheld[key] = Withheld(command, answer, time.perf_counter())
        return True

    def answered(self, link: OwnerLink, request_id: int) -> Withheld | None:
        """Forget a request because its owner has answered; returns the LOOKUP's answer that was withheld for it, if
        any.
        """
        self._kinds.pop((link, request_id), None)
        if self._ids:
            self._ids.pop((link, request_id), None)
        return self._release((link, request_id)) if self._withheld else None

    def owner_gone(self, link: OwnerLink) -> list[tuple[int, int, tuple[int, ...], Withheld | None]]:
        """Forget and return the requests of an owner that has ended: [(command type, request id, `ids`, withheld
        answer)].
        """
        keys = [key for key in self._kinds if key[0] is link]
        return [(self._kinds.pop(key), key[1], self._ids.pop(key, ()), self._release(key)) for key in keys]

    def clear(self) -> None:
        """Forget all requests: the client's connection has ended."""
        self._counters.add("lookups_waiting", -len(self._withheld))
        self._kinds.clear()
        self._ids.clear()
        self._withheld.clear()

    def _release(self, key: tuple[OwnerLink, int]) -> Withheld | None:
        withheld = self._withheld.pop(key, None)
        if withheld is not None:
            self._counters.add("lookups_waiting", -1)
        return withheld
