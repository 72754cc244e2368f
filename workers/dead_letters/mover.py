"""The mover: it asks which subscriptions have dead letters, and has a lane for each of them.

Owners find dead letters by the policy `deadLetter`.  As long as no topic or namespace has the policy, nothing is asked.
A lane that fails waits, longer after each failure, and the owner is told why.  If only some letters cannot be moved,
it does not wait as soon as there are others.
"""
import asyncio
import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from geminga.proto import names
from geminga.proto.errors import Refusal
from geminga.storage.catalogue.catalogue import Catalogue
from geminga.storage.catalogue.stored_policies import DEAD_LETTER
from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.counters import Counters
from geminga.storage.runtime.log import log
from geminga.workers.dead_letters.lane import Lane, LaneFailed, LettersStay, Source
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.rest import Broker, NotReachable, Refused

_LOOK_S = 1.0                # between two questions
_LANES_MAX = 50              # at a time; each is a connection
_WAIT_S, _WAIT_MAX_S = 1.0, 60.0      # after the first failure of a subscription, and after many
_ASK_S = 10.0


class _Failure(NamedTuple):
    """The last failure of a subscription's lane."""

    until: float = 0.0           # when to try again
    wait_s: float = 0.0          # how long to wait after the next one
    stay: int = 0                # entries that cannot be moved; the others were

    def holds(self, now: float, waiting: int) -> bool:
        """Whether a subscription with so many waiting entries is left alone."""
        return now < self.until and not 0 < self.stay < waiting


class Mover:
    """The lanes of all subscriptions with dead letters."""

    def __init__(self, data_dir: Path, counters: Counters) -> None:
        self._clients, self._counters = data_dir / unix_sockets.CLIENTS, counters
        self._broker = Broker(f"{unix_sockets.UNIX}{data_dir / unix_sockets.HTTP}", timeout_s=_ASK_S)
        self._loop = asyncio.get_running_loop()
        self._is_on = False
        self._asked_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._lanes: dict[Source, asyncio.Task[None]] = {}
        self._failed: dict[Source, _Failure] = {}

    def __repr__(self) -> str:
        return f"<Mover on={self._is_on} lanes={len(self._lanes)} failed={len(self._failed)}>"

    def follow(self, catalogue: Catalogue) -> None:
        """Take note of whether any policy asks for dead letters.  Raises StorageFull."""
        self._is_on = bool(catalogue.policies.everywhere(DEAD_LETTER))

    def look(self) -> None:
        """Ask for dead letters once a second, unless an answer is awaited."""
        now = self._loop.time()
        if self._is_on and self._asking is None and now - self._asked_s >= _LOOK_S:
            self._asked_s, self._asking = now, self._loop.create_task(self._ask())

    async def _ask(self) -> None:
        with contextlib.suppress(NotReachable, Refused):      # the admin process or an owner is being started
            answer = await asyncio.to_thread(self._broker.ask, "GET", "/ops/v1/dead-letters")
            self._start(answer.value()["rows"])
        self._asking = None

    def _start(self, rows: list[dict[str, Any]]) -> None:
        """Begin lanes for subscriptions with dead letters; those that have waited longest come first."""
        now, waiting = self._loop.time(), {Source(row["topic"], row["subscription"]): row for row in rows}
        self._failed = {source: when for source, when in self._failed.items() if source in waiting}
        for source in sorted(waiting, key=lambda source: self._failed.get(source, _Failure()).until):
            if len(self._lanes) >= _LANES_MAX:
                break
            failure = self._failed.get(source, _Failure())
            if source not in self._lanes and not failure.holds(now, waiting[source]["entries"]):
                self._lanes[source] = self._loop.create_task(self._move(source, waiting[source]))
        self._counters.set("dead_letter_lanes", len(self._lanes))

    async def _move(self, source: Source, row: dict[str, Any]) -> None:
        try:
            lane = Lane(self._clients, source, target_of(source, row["target"]), row["keeper"])
            try:
                await lane.run()
                self._failed.pop(source, None)
            finally:
                self._counters.add("dead_letters_moved", lane.moved)
        except (LaneFailed, ClientError, OSError, Refusal) as error:
            await self._wait(source, str(error), error.entries if isinstance(error, LettersStay) else 0)
        finally:
            del self._lanes[source]

    async def _wait(self, source: Source, why: str, stay: int) -> None:
        """Have a subscription wait after a failure, and tell its owner.  stay: entries that cannot be moved."""
        self._counters.add("dead_letter_failures")
        wait_s = self._failed.get(source, _Failure()).wait_s or _WAIT_S
        self._failed[source] = _Failure(self._loop.time() + wait_s, min(2 * wait_s, _WAIT_MAX_S), stay)
        log.info("dead letters stay where they are", topic=source.topic, subscription=source.subscription, reason=why)
        with contextlib.suppress(ClientError, OSError):      # the next failure is told
            await Lane(self._clients, source).tell(why)

    async def stop(self) -> None:
        """End all lanes; transactions under way are aborted."""
        tasks = [*self._lanes.values(), *([self._asking] if self._asking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def target_of(source: Source, local_name: str) -> str:
    """Return the complete name of a subscription's dead letter topic.  Raises Refusal: it would be no name.

    local_name: as the policy says; "": named by the topic and the subscription, as Pulsar's clients do.
    """
    base = names.parse(source.topic).base
    local = local_name or f"{base.local_name}-{source.subscription}{names.DEAD_LETTERS}"
    return str(names.parse(f"persistent://{base.namespace}/{local}"))
