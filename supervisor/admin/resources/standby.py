"""The standby of this broker: its feed, how far it is, and what happens when it is promoted."""
import asyncio
import contextlib
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from geminga.storage.errors import text_of
from geminga.storage.runtime.log import log
from geminga.storage.standby import standing
from geminga.storage.standby.standing import Peer
from geminga.supervisor.admin.monitoring.operations import CONTROL
from geminga.supervisor.admin.requests.authentication import IDENTITY
from geminga.supervisor.admin.requests.handing_over import hand_over
from geminga.supervisor.admin.requests.owners import Owners
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.tasks import standbys
from geminga.workers.identity.authentication import NOT_ASKED

routes = web.RouteTableDef()
_STOP_SECONDS = 8.0          # for the rest of a feed, when all owners have ended
_LOOK_SECONDS = 0.05
_LINE_MAX = 64 << 10


class Standby:
    """The standby that follows this broker, at most one, and the process that sends it records."""

    def __init__(self, data_dir: Path, owners: Owners):
        self._data_dir, self._owners = data_dir, owners
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._said: dict[str, Any] = {}
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

    def told(self) -> dict[str, Any] | None:
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

    async def feed(self, descriptor: int, address: str, control: Any) -> None:
        """Begin to feed the standby at the other end of a connection, of which the process gets a copy.

        Raises 409, 503.
        """
        command = [sys.executable, "-P", "-m", "geminga.supervisor.standby.feed", str(descriptor),
                   str(self._data_dir.resolve()), str(self._owners.count), address]
        ours = {name: value for name, value in os.environ.items()
                if not name.startswith(("GEMINGA_", "PULSAR_PREFIX_"))}
        if self.is_fed:      # another one has come meanwhile
            raise web.HTTPConflict(text=f"This broker has a standby: {self.known.name}")
        self._is_beginning = True
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=ours, stdin=PIPE, stdout=PIPE, pass_fds=[descriptor], limit=_LINE_MAX)
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

    async def _taken_over(self, by: Peer, process: Process, control: Any) -> None:
        """Have the broker stopped for good, and the feed send what owners have written until then.  Raises OSError."""
        standbys.supersede(self._data_dir, by)
        self.is_taken_over = True
        log.warning(f"standby {by.name} is promoted: this broker stops, and does not serve this folder again",
                    code="G552")
        control.send(superseded=True)
        while any(self._owners.is_up(index) for index in range(self._owners.count)):
            await asyncio.sleep(_LOOK_SECONDS)
        assert process.stdin is not None
        process.stdin.write(b"stopped\n")
        await process.stdin.drain()

    async def serve(self, _app: web.Application) -> AsyncIterator[None]:
        """Let the feed of a standby that takes over end by itself, any other one with the application."""
        yield
        if self._task is None:
            return
        if self.is_taken_over:
            await asyncio.wait([self._task], timeout=_STOP_SECONDS)
        self._task.cancel()
        await asyncio.wait([self._task])


STANDBY = web.AppKey("standby", Standby)


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


@routes.get(standbys.PATH)
async def took_over(request: web.Request) -> web.Response:
    """Answer whether this broker has taken over the history that the query names, from the broker that it followed."""
    known = standing.read(request.app[TOPICS].config.data_dir)
    return web.json_response({"took_over": request.query.get("identity", "") in known.took_over})
