"""The standby of this broker: its feed, how far it is, and what happens when it is promoted.

    it acknowledges what the feed sends -> the feed renews the broker's lease (storage/runtime/lease.py)
    it does not -> asked over HTTP: follows -> the lease is renewed
                                    took over -> this broker supersedes itself
                                    is being promoted -> the lease lapses until the end of that is known
                                    no answer -> the broker serves on, unless the lease had lapsed: then for as long as
                                                 the standby may be promoted and beginning to serve, it waits
"""
import asyncio
import contextlib
import json
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from aiohttp import web

from geminga.storage.errors import text_of
from geminga.storage.runtime.lease import ADMIN, ALONE_SECONDS, FEED, FOREVER, TOLD_SECONDS, Lease
from geminga.storage.runtime.log import log
from geminga.storage.standby import standing
from geminga.storage.standby.standing import Peer
from geminga.supervisor.admin.requests import jobs, rights
from geminga.supervisor.admin.requests.authentication import IDENTITY
from geminga.supervisor.admin.requests.handing_over import hand_over
from geminga.supervisor.admin.requests.owners import Owners
from geminga.supervisor.admin.requests.request_parts import CONTROL, TOPICS
from geminga.supervisor.configuration.config import StandbyOptions
from geminga.supervisor.tasks import standbys
from geminga.workers.identity.authentication import NOT_ASKED

routes = rights.Routes()
_STOP_SECONDS = 8.0          # for the rest of a feed, when all owners have ended
_LOOK_SECONDS = 0.05
_WATCH_SECONDS = 0.25        # between two looks at the lease
_QUIET_SECONDS = 1.5         # without an acknowledgement, after which the standby is asked
_ASK_SECONDS = 2.0           # for each step of a question: its thread is waited for when the process stops
_ANSWER_SECONDS = 2.5        # for the standby's answer
# Paths that tell about the broker itself, and those that its standby needs.
_ALWAYS = {standbys.PATH, standbys.FEED, "/ops/v1/status", "/metrics"}
_LINE_MAX = 64 << 10


class FeedState(TypedDict, total=False):
    """How far a feed is, as it tells in a line."""

    name: str
    http: str
    is_copying: bool
    lag_ms: int
    done: int
    total: int


class KnownStandby(TypedDict):
    """The known standby as `geminga status` and alarms get it."""

    name: str
    http: str
    connected: bool
    copying: bool
    lag_ms: int
    done_bytes: int
    total_bytes: int


class Standby:
    """The standby that follows this broker, at most one, and the process that sends it records."""

    def __init__(self, data_dir: Path, owners: Owners, lease: Lease):
        self.lease = lease
        self._doubt_until = 0.0            # lease.now() until which a standby without an answer may be promoted
        self._data_dir, self._owners = data_dir, owners
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._said: FeedState = {}         # {} before the feed has told anything
        self._why = ""                     # why the last feed has ended
        self._said_at = self._began = time.monotonic()      # when the feed last said how far it is
        self.known = standing.read(data_dir).attached
        self.is_taken_over = self._is_beginning = False

    def __repr__(self) -> str:
        return f"<Standby {self.known} is_fed={self.is_fed}>"

    @property
    def is_fed(self) -> bool:
        """Whether a standby is connected, or its feed is being started."""
        return self._process is not None or self._is_beginning

    def lag_seconds(self) -> float | None:
        """Return how far the known standby is behind, None without a known standby."""
        if not self.known.http:
            return None
        now = time.monotonic()
        if not self._said:
            return now - self._began
        return float(self._said["lag_ms"]) / 1000 + (now - self._said_at)

    def told(self) -> KnownStandby | None:
        """Return the known standby as a JSON object for `geminga status`, None if there is none."""
        if not self.known.http:
            return None
        seconds = self.lag_seconds() or 0.0
        return {"name": self.known.name, "http": self.known.http, "connected": self.is_fed,
                "copying": bool(self.is_fed and self._said.get("is_copying", True)),
                "lag_ms": round(1000 * seconds), "done_bytes": self._said.get("done", 0),
                "total_bytes": self._said.get("total", 0)}

    def forget(self) -> None:
        """Forget the known standby, which is not connected.  Raises OSError."""
        standing.write(self._data_dir, replace(standing.read(self._data_dir), attached=Peer()))
        self.known, self._said = Peer(), {}
        self.lease.renew(ADMIN, FOREVER)

    async def feed(self, descriptor: int, address: str, control: Any) -> None:
        """Begin to feed the standby at the other end of a connection, of which the process gets a copy.

        Raises 409, 503.
        """
        command = jobs.command("supervisor.standby.feed", descriptor, self._data_dir.resolve(), self._owners.count,
                               address, self.lease.descriptor)
        if self.is_fed:      # another one has come meanwhile
            raise web.HTTPConflict(text=f"This broker has a standby: {self.known.name}")
        self._is_beginning = True
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=jobs.environment(), stdin=PIPE, stdout=PIPE, pass_fds=[descriptor, self.lease.descriptor],
                limit=_LINE_MAX)
        except OSError as error:
            raise web.HTTPServiceUnavailable(text=f"The feed cannot be started: {text_of(error)}") from None
        finally:
            self._is_beginning = False
        self._task = asyncio.create_task(self._follow(self._process, control))

    async def _follow(self, process: Process, control: Any) -> None:
        """Take in what the feed says until it ends."""
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                said = json.loads(line)
                if "take_over" in said:
                    await self._taken_over(Peer(**said["take_over"]), process, control)
                elif "ended" in said:
                    if said["ended"] != self._why:      # a standby tries again and again
                        log.warning(f"the feed of standby {self.known.name or '(unknown)'} ended: {said['ended']}",
                                    code="G551")
                    self._why = said["ended"]
                else:
                    self._why = ""
                    self._said, self._said_at = said, time.monotonic()
                    if said["http"] != self.known.http:
                        self.known = standing.read(self._data_dir).attached
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error(f"the feed of a standby fails: {error}", code="G551")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            self._process = None
            self.known = standing.read(self._data_dir).attached      # it may have ended before it said anything
            if self.lease.seconds_left(FEED) > TOLD_SECONDS:      # the base was being copied
                self.lease.renew(FEED, self.lease.now() + TOLD_SECONDS)

    async def _taken_over(self, by: Peer, process: Process, control: Any) -> None:
        """Have the broker stopped for good, and the feed send what owners have written until then.  Raises OSError."""
        self._supersede(by, control)
        while any(self._owners.is_up(index) for index in range(self._owners.count)):
            await asyncio.sleep(_LOOK_SECONDS)
        assert process.stdin is not None
        process.stdin.write(b"stopped\n")
        await process.stdin.drain()

    def _supersede(self, by: Peer, control: Any) -> None:
        """Have the broker stopped for good.  Raises OSError."""
        standbys.supersede(self._data_dir, by)
        self.is_taken_over = True
        log.warning(f"standby {by.name} is promoted: this broker stops, and does not serve this folder again",
                    code="G552")
        control.send(superseded=True)

    async def watch(self, options: Callable[[], StandbyOptions], control: Callable[[], Any]) -> None:
        """Keep the lease: ask the known standby while its feed does not show that it follows.

        options: returns those in force.  control: returns the connection to the supervisor.
        """
        lease = self.lease
        while not self.is_taken_over:
            await asyncio.sleep(_WATCH_SECONDS)
            if self.known.http and lease.seconds_left(FEED) < TOLD_SECONDS - _QUIET_SECONDS:
                with contextlib.suppress(OSError):      # of the folder, which has to keep the standing
                    await self._ask(options(), control())

    async def _ask(self, options: StandbyOptions, control: Any) -> None:
        """Ask the known standby whether it was promoted, and act on the answer.  Raises OSError."""
        asked, state = self.lease.now(), standing.read(self._data_dir)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await asyncio.to_thread(standbys.ask, state, options, _ASK_SECONDS)
        except (*standbys.NO_ANSWER, TimeoutError) as error:
            return self._not_answered(asked, str(error) or "it does not answer in time")
        if answer == standbys.TOOK_OVER:
            self._supersede(state.attached, control)
        elif answer == standbys.PROMOTING:
            self._doubt_until = self.lease.now() + standbys.DOUBT_SECONDS
        else:
            self._doubt_until = 0.0
            self.lease.renew(ADMIN, asked + TOLD_SECONDS)

    def _not_answered(self, asked: float, why: str) -> None:
        """Serve on without a standby that did not answer a question of the time `asked`.

        After a lapse, and after a promotion has begun, this is decided only when the standby has had time to begin.
        """
        now = self.lease.now()
        if not self._doubt_until and self.lease.has_lapsed:
            self._doubt_until = now + standbys.DOUBT_SECONDS
        if self._doubt_until and now >= self._doubt_until:
            log.warning(f"standby {self.known.name} does not tell whether it was promoted: {why}; if it was, both "
                        "serve from now on, and what clients write here is lost", code="G554")
            self._doubt_until, asked = 0.0, now
        if not self._doubt_until:
            self.lease.renew(ADMIN, asked + ALONE_SECONDS)

    async def may_answer(self) -> bool:
        """Wait while the lease has lapsed; return False if this broker was superseded."""
        while self.lease.has_lapsed and not self.is_taken_over:
            await asyncio.sleep(_LOOK_SECONDS)
        return not self.is_taken_over

    async def serve(self, app: web.Application) -> AsyncIterator[None]:
        """Watch the lease; let the feed of a standby that takes over end by itself, any other one with the application.
        """
        watching = asyncio.create_task(self.watch(lambda: app[TOPICS].config.standby, lambda: app[CONTROL]))
        yield
        watching.cancel()
        await asyncio.wait([watching])
        if self._task is None:
            return
        if self.is_taken_over:
            await asyncio.wait([self._task], timeout=_STOP_SECONDS)
        self._task.cancel()
        await asyncio.wait([self._task])


STANDBY = web.AppKey("standby", Standby)


@web.middleware
async def keep_lease(request: web.Request,
                     handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    """Middleware that lets no answer out while the standby may have been promoted.  This one is the outermost."""
    answer = await handler(request)
    if request.path in _ALWAYS or await request.app[STANDBY].may_answer():
        return answer
    return web.json_response({"reason": "This broker was superseded by its standby"}, status=503)


@routes.get(standbys.FEED)
async def feed(request: web.Request) -> web.StreamResponse:
    """Hand the connection to a process that feeds a standby.  Raises 403, 405, 409, 503."""
    standby = request.app[STANDBY]
    if request.headers.get("Upgrade", "").lower() != "geminga-feed":
        raise web.HTTPMethodNotAllowed(request.method, [], text="This path is for standbys")
    peer, own = (request.get_extra_info(name) for name in ("peername", "sockname"))
    if request[IDENTITY] is NOT_ASKED and not (peer and own and peer[0] == own[0]) \
            and request.remote not in request.app[TOPICS].config.standby.hosts:
        raise web.HTTPForbidden(text=f"hosts of [standby] does not name {request.remote}: without authentication, a "
                                     "standby copies a broker from the same host, or from a host that is named there")
    if standby.is_fed:
        raise web.HTTPConflict(text=f"This broker has a standby: {standby.known.name}")
    control = request.app[CONTROL]

    async def send(_early: bytes, descriptor: int) -> None:
        await standby.feed(descriptor, request.remote or "", control)

    return await hand_over(request, send)


@routes.get(standbys.PATH, right=None)
async def took_over(request: web.Request) -> web.Response:
    """Answer whether this broker has taken over the history that the query names, from the broker that it followed."""
    state = standing.read(request.app[TOPICS].config.data_dir)
    return web.json_response({"took_over": request.query.get("identity", "") in state.took_over})
