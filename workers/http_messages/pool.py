"""Producers or consumers that calls share: each is opened by its first call, and ends some time after its last one."""
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

from geminga.workers.identity.authentication import Identity
from geminga.workers.web.handovers import Handover
from geminga.workers.web.session import TurnedAway

Key = tuple[str, ...]


class Ending:
    """Stands where a WebSocket's connection does for a session that calls share: the session only ends by it."""

    def __init__(self, ended: Callable[[int, str], None]) -> None:
        """ended: is told the code and the reason when the session ends by itself."""
        self.is_closed, self._ended = False, ended

    @property
    def is_writable(self) -> bool:
        """Whether the session may pass something on."""
        return True

    def send(self, texts: list[bytes]) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def close(self, code: int = 0, reason: str = "") -> None:
        if not self.is_closed:
            self.is_closed = True
            self._ended(code, reason)


class Shared(Protocol):
    """A session that calls share."""

    calls: int             # under way
    used: float            # when the last one ended, as time of the event loop

    @property
    def handover(self) -> Handover: ...
    @property
    def ending(self) -> Ending: ...
    @property
    def is_over(self) -> bool:
        """Whether the session has ended by itself."""
    @property
    def is_idle(self) -> bool:
        """Whether the session may end when no call comes any more."""
    async def open(self) -> None: ...
    def closed(self) -> None: ...


S = TypeVar("S", bound=Shared)


class Pool(Generic[S]):
    """The producers or the consumers of one process."""

    def __init__(self, open_max: int, idle_s: float) -> None:
        """open_max: sessions at once.  idle_s: after which a session without calls ends."""
        self._open_max, self._idle_s = open_max, idle_s
        self._open: dict[Key, asyncio.Task[S]] = {}

    def __repr__(self) -> str:
        return f"<Pool {len(self._open)} of {self._open_max}>"

    @asynccontextmanager
    async def use(self, key: Key, make: Callable[[], S], *, is_alone: bool = False) -> AsyncIterator[S]:
        """Yield the session with a key, which is made if there is none.  Raises TurnedAway.

        is_alone: the session ends with this call.
        """
        shared = await self._get(key, make)
        shared.calls += 1
        try:
            yield shared
        finally:
            shared.calls -= 1
            shared.used = asyncio.get_running_loop().time()
            if is_alone:
                self.end(key)

    async def _get(self, key: Key, make: Callable[[], S]) -> S:
        while True:
            opening = self._open.get(key)
            if opening is not None and opening.done() and (opening.exception() or opening.result().is_over):
                self.end(key)
                opening = None
            is_first = opening is None
            if opening is None:
                self._make_room()
                opening = self._open[key] = asyncio.get_running_loop().create_task(_opened(make()))
            try:
                return await asyncio.shield(opening)
            except TurnedAway:
                if self._open.get(key) is opening:
                    del self._open[key]
                if is_first:      # else the parameters of another call may be the reason
                    raise

    def find(self, key: Key) -> S | None:
        """Return the open session with a key, None if there is none."""
        opening = self._open.get(key)
        return opening.result() if opening is not None and opening.done() and not opening.exception() else None

    def _all(self) -> list[tuple[Key, S]]:
        return [(key, opening.result()) for key, opening in self._open.items()
                if opening.done() and not opening.exception()]

    def _make_room(self) -> None:
        """End the session that was unused for longest if there are too many.  Raises TurnedAway if all are in use."""
        if len(self._open) < self._open_max:
            return
        idle = [(shared.used, key) for key, shared in self._all() if shared.is_idle and not shared.calls]
        if not idle:
            raise TurnedAway(HTTPStatus.SERVICE_UNAVAILABLE, f"{self._open_max} are open and in use; try again")
        self.end(min(idle)[1])

    def end(self, key: Key) -> None:
        """End a session; calls that wait for it are told."""
        if (opening := self._open.pop(key, None)) is None:
            return
        if not opening.done():
            opening.cancel()
        elif not opening.exception():
            opening.result().ending.close(reason="It has ended")
            opening.result().closed()

    def look(self) -> None:
        """End sessions that were not used for a while."""
        until = asyncio.get_running_loop().time() - self._idle_s
        for key, shared in self._all():
            if shared.is_over or (shared.is_idle and not shared.calls and shared.used <= until):
                self.end(key)

    def end_unless(self, accepts: Callable[[Identity], bool]) -> None:
        """End sessions of identities that the configuration does not admit any more."""
        for key, shared in self._all():
            if not accepts(shared.handover.identity):
                self.end(key)

    def stop(self) -> None:
        for key in list(self._open):
            self.end(key)


async def _opened(shared: S) -> S:
    """Open a session.  Raises TurnedAway."""
    try:
        await shared.open()
    except BaseException:
        shared.ending.close(reason="It cannot be opened")
        shared.closed()
        raise
    shared.used = asyncio.get_running_loop().time()
    return shared
