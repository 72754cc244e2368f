"""A standby: a process that follows another broker, and can be promoted.

    geminga serve --standby-of URL  -> may_follow  -> Standby.run: a thread follows, the loop answers
    geminga promote                 -> stop the other broker -> promote the copy -> this process becomes a broker

A standby listens on the ports of HTTP alone, and answers 503 to all but questions about itself: clients with cluster
failover only look whether the binary port can be connected to.  A promotion ends in an exec of the same command, so
that a broker begins without threads and sockets of the standby, and recovers the copy as after a crash.
"""
import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any

import click
from aiohttp import web

from geminga.proto.responses import VERSION
from geminga.storage.catalogue.catalogue import CatalogueError
from geminga.storage.disk import data_folder
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, is_of_place, text_of
from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.log import log
from geminga.storage.standby import copy, standing
from geminga.supervisor.configuration import usable_paths
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.host.build import build
from geminga.supervisor.processes import control_socket, listening
from geminga.supervisor.processes.notify import Notify
from geminga.supervisor.standby.following import About, Follower
from geminga.supervisor.tasks import standbys
from geminga.supervisor.wording import human
from geminga.workers.addresses import url
from geminga.workers.identity.certificates import Tls
from geminga.workers.identity.options import Unusable

_NO_DATA = "lock", "run"     # in a folder of which a standby was killed before it got anything
_LOOK_SECONDS = 0.05
_REACHED_SECONDS = 5.0       # for which a promotion looks for a broker that is not connected
_STOPPED_SECONDS = 30.0      # for a broker to stop, and to send the rest
_ALIVE_SECONDS = 1.0
_LINE_MAX = 1 << 16        # bytes of a command of this host


def may_follow(config: Config) -> bool:
    """Whether the data folder may become, or is, a copy of another broker; False if it was promoted, and serves.

    Raises CannotServe for a folder with other data, OSError.
    """
    data_dir = config.data_dir
    if data_folder.is_copy(data_dir) or all(path.name in _NO_DATA for path in data_dir.iterdir()):
        return True
    known = standing.read(data_dir)
    if known.following or known.superseded.http:
        return True
    if known.took_over:
        return False
    try:
        if known.attached.http:
            standbys.look(data_dir, config.standby)
    except standbys.Superseded:
        return standing.read(data_dir).superseded.http != ""
    raise listening.CannotServe(
        f"data_dir: {data_dir} has data that is no standby's copy, and that a standby would overwrite: name an empty "
        "folder, or serve without standby.of")


class Standby:
    """The process of a standby."""

    def __init__(self, config: Config):
        """Open the ports.  Raises CannotServe, Unusable, click.UsageError, OSError."""
        self.config = config
        self._began = time.monotonic()
        self._certificates = Tls(config.tls) if config.tls.certificate else None
        self._listeners = self._open()
        self._run_dir = listening.make_run_dir(config.data_dir)
        self._control = control_socket.listen(config.data_dir)
        self._inside = unix_sockets.listen(config.data_dir / unix_sockets.HTTP)
        self.follower = Follower(config, self._about())
        self._notify = Notify(os.environ)
        self._stopping = asyncio.Event()
        self._promoting: asyncio.Lock = asyncio.Lock()
        self._is_promoted = False
        self._status = 0

    def __repr__(self) -> str:
        return f"<Standby {self.text()}>"

    def _open(self) -> dict[str, socket.socket]:
        config, opened = self.config, {}
        wanted = [("http", "http_port", config.http_port)]
        if self._certificates is not None:
            wanted.append(("https", "tls.http_port", config.tls.http_port))
        for scheme, key, port in wanted:
            if port >= 0:
                opened[scheme] = listening.open_listener(config.http_bind, port, key)
        return opened

    def _about(self) -> About:
        """Return how others reach this host: without a host in addresses, the one from which it connects counts."""
        config = self.config
        host, has_tls = config.worker.advertised_address, self._certificates is not None
        scheme = "https" if has_tls and "https" in self._listeners else "http"
        ports = {name: listener.getsockname()[1] for name, listener in self._listeners.items()}
        binary = f"pulsar+ssl://{host}:{config.tls.port}" if has_tls else f"pulsar://{host}:{config.worker.port}"
        return About(socket.gethostname(), binary, f"{scheme}://{host}:{ports[scheme]}")

    # -- how it is

    def text(self) -> str:
        """Return in one line whom this standby follows, and how far it is."""
        follower, of = self.follower, self.config.standby.of
        lag = f"{1000 * follower.lag_seconds:.0f} ms" if follower.lag_seconds < 1 else \
            human.length(follower.lag_seconds)
        if follower.is_following and follower.is_complete:
            return f"standby of {of}, {lag} behind"
        if follower.is_following:
            share = f", {100 * min(follower.done, follower.total) // follower.total} %" if follower.total else ""
            return f"standby of {of}, which is being copied{share}"
        has = f"; {lag} behind" if follower.is_complete else "; it has no complete copy"
        return f"standby of {of}, which is not followed: {follower.why}{has}"

    def told(self) -> dict[str, Any]:
        """Return the answer of /ops/v1/status."""
        follower = self.follower
        made = build()
        return {"version": VERSION, "commit": made.commit, "committed": made.committed,
                "data_dir": str(self.config.data_dir.resolve()), "ready": False, "alarms": [],
                "uptime_seconds": round(time.monotonic() - self._began), "obstacles": [self.text()],
                "follows": {"url": self.config.standby.of, "text": self.text(), "connected": follower.is_following,
                            "complete": follower.is_complete, "lag_ms": round(1000 * follower.lag_seconds),
                            "done_bytes": follower.done, "total_bytes": follower.total}}

    def _metrics(self) -> str:
        follower = self.follower
        return "".join(f"# HELP {name} {text}\n# TYPE {name} gauge\n{name} {value}\n" for name, text, value in (
            ("geminga_standby_lag_seconds", "Time since everything was on the disk of this standby",
             round(follower.lag_seconds, 3)),
            ("geminga_standby_connected", "1 while this standby follows its broker", int(follower.is_following))))

    def _application(self) -> web.Application:
        app = web.Application()

        async def status(_: web.Request) -> web.Response:
            return web.json_response(self.told())

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(text=self._metrics())

        async def took_over(_: web.Request) -> web.Response:
            return web.json_response({"took_over": False, "promoting": self._promoting.locked() or self._is_promoted})

        async def unavailable(_: web.Request) -> web.Response:
            return web.json_response({"reason": self.text()}, status=503)

        app.add_routes([web.get("/ops/v1/status", status), web.get("/metrics", metrics),
                        web.get(standbys.PATH, took_over), web.route("*", "/{rest:.*}", unavailable)])
        return app

    # -- its life

    async def run(self) -> int | None:
        """Follow and answer until told to stop; return the exit status, None after a promotion."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        for scheme, listener in self._listeners.items():
            secure = self._certificates.listening()["ssl"] if scheme == "https" and self._certificates else None
            await web.SockSite(runner, listener, ssl_context=secure).start()
        await web.SockSite(runner, self._inside).start()
        control = await unix_sockets.serve_streams(self._control, self._talk, _LINE_MAX)
        self.follower.thread.start()
        self._print()
        self._notify.ready()
        while not self._stopping.is_set():
            self._notify.alive()
            self._notify.status(self.text())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ALIVE_SECONDS):
                    await self._stopping.wait()
        control.close()
        await runner.cleanup()
        if not self._is_promoted:
            self._notify.stopping()
            await asyncio.to_thread(self.follower.stop)
        for place in (self._run_dir, self.config.data_dir / "run"):
            shutil.rmtree(place, ignore_errors=True)
        return None if self._is_promoted else self._status

    def _print(self) -> None:
        lines = [f"  http      {url(scheme, *listener.getsockname()[:2])}\n"
                 for scheme, listener in self._listeners.items()]
        print(f"Geminga is a standby of {self.config.standby.of}\n{''.join(lines)}"
              f"  data      {self.config.data_dir.resolve()}\n"
              f"Promote it, so that it serves:\n  {Path(sys.argv[0]).absolute()} promote --data-dir "
              f"{self.config.data_dir.resolve()}", flush=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry out one command of this host, `{"promote": true}`, with lines of JSON as answers."""
        try:
            asked = json.loads(await reader.readline())
            if asked != {"promote": True}:
                return
            async with self._promoting:
                for line in [one async for one in self._promote()]:
                    writer.write(json.dumps(line).encode() + b"\n")
                    await writer.drain()
        except (ValueError, OSError):
            pass
        finally:
            writer.close()
        if self._is_promoted:
            self._stopping.set()

    async def _promote(self) -> AsyncIterator[dict[str, Any]]:
        """Stop the other broker if it can be reached, and make the copy a folder that is served; yield answers."""
        follower = self.follower
        if not follower.is_complete:
            yield {"error": f"there is no complete copy yet: {self.text()}"}
            return
        behind, began = follower.lag_seconds, time.monotonic()
        follower.take_over()
        while not follower.has_ended and (passed := time.monotonic() - began) < _STOPPED_SECONDS \
                and (follower.is_following or passed < _REACHED_SECONDS):
            await asyncio.sleep(_LOOK_SECONDS)
        has_stopped, why = follower.has_ended, follower.why
        await asyncio.to_thread(follower.stop)
        try:
            await asyncio.to_thread(copy.promote, self.config.data_dir)
        except (data_folder.CannotUse, CatalogueError, CorruptFile, StorageFull, NotDurable, OSError) as error:
            yield {"error": text_of(error) if isinstance(error, OSError) else str(error)}
            self._status = 1
            self._stopping.set()
            return
        self._is_promoted = True
        log.warning(f"this standby of {self.config.standby.of} is promoted, and serves from now on", code="G552")
        yield {"promoted": True, "stopped": has_stopped, "why": why, "behind_ms": round(1000 * behind)}


def serve(config: Config, notes: list[str]) -> int | None:
    """Run a standby; return its exit status, None if this folder is served, because the standby was promoted.

    `notes` are logged.
    """
    log.begin(config.log)
    log.bind(process="standby")
    environ = dict(os.environ)      # with the service manager's variables, which Notify takes away
    try:
        data_folder.make(config.data_dir)
        with _locked(config.data_dir):
            if not may_follow(config):
                return None
            for note in notes:
                log.info(note, code="G331")
            status = asyncio.run(_run(config))
    except (listening.CannotServe, Unusable, click.UsageError, standbys.Superseded) as error:
        log.error(error.message if isinstance(error, click.UsageError) else str(error), code="G330")
        return 1 if isinstance(error, listening.CannotServe) else 2
    except OSError as error:
        log.error(usable_paths.unusable(config.data_dir, error), code="G330")
        return 2 if is_of_place(error) else 1
    if status is None:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
    return status


async def _run(config: Config) -> int | None:
    return await Standby(config).run()


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[IO[str]]:
    """Hold the folder's lock.  Raises CannotServe if another process has it."""
    with open(data_dir / "lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise listening.CannotServe(f"data_dir: {data_dir} is in use by another geminga") from None
        yield file


