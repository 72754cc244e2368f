"""The supervisor: it opens sockets, forks the other processes, watches them, and stops them.

    bind -> catalogue -> fork owners (each recovers its partitions) and admin -> when owners are ready: workers, which
    listen -> watch

Every pass of `run` starts children that have ended again.  Workers start when all owners have recovered for the first
time, so no client misses partitions; until then the admin process answers that the broker is loading.  If all owners
fail to start later, workers end until one serves again.
"""
import contextlib
import fcntl
import gc
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from geminga.storage.catalogue import orphans
from geminga.storage.catalogue.catalogue import CatalogueError, open_catalogue
from geminga.storage.disk import data_folder
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, is_of_place
from geminga.storage.offline import backup
from geminga.storage.owner import process as owner_process
from geminga.storage.owner import recovery
from geminga.storage.runtime import unix_sockets
from geminga.storage.runtime.control import Control
from geminga.storage.runtime.counters import make_counters
from geminga.storage.runtime.log import Rule, log
from geminga.storage.runtime.log_lines import LogLines
from geminga.supervisor import bootstrap
from geminga.supervisor.configuration import exposure, usable_paths
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.host import stacks, tune
from geminga.supervisor.processes import listening
from geminga.supervisor.processes.children import (
    EXIT_CANNOT_BOOT,
    GONE,
    READY,
    RESTART_MIN_SECONDS,
    STARTING,
    Child,
    beginning,
    describe_exit,
    spread,
    start,
)
from geminga.supervisor.processes.client_ports import ClientPorts
from geminga.supervisor.processes.control_socket import ControlSocket
from geminga.supervisor.processes.drain import DRAIN_LOOK_SECONDS, Drain
from geminga.supervisor.processes.heartbeat import BUSY_SECONDS, LOOK_SECONDS, STARTING_SECONDS
from geminga.supervisor.processes.notify import Notify
from geminga.supervisor.processes.reload import Reload
from geminga.supervisor.processes.stopping import stop_step
from geminga.supervisor.tasks import standbys
from geminga.workers.addresses import addresses, url
from geminga.workers.http_messages.calls import calls_path
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.certificates import Tls
from geminga.workers.identity.options import Unusable
from geminga.workers.options import WorkerOptions
from geminga.workers.ports.admission import make_admissions
from geminga.workers.process import main as worker_process
from geminga.workers.process.listeners import Listeners
from geminga.workers.web.handovers import make_handovers


class Supervisor:
    """The supervisor process: it starts, watches and stops the others, and reads no message and touches no data."""

    def __init__(self, config: Config, load: Callable[[], tuple[Config, list[str]]]):
        """Begin with a loaded configuration and no processes.

        load: reads the configuration anew for a reload; returns it with notes for the log, raises ConfigError.
        """
        self.config = config
        self.began = time.monotonic()
        self._ports = ClientPorts({"network": [], "tls": []})
        self.http_listeners: dict[str, socket.socket] = {}
        self.children: list[Child] = []
        self._unused: list[Child] = []      # those that nobody has needed yet
        self._serial = 0
        self.is_stopping = self.is_superseded = False
        self.is_ready = False
        self._failure = ""
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self.notify = Notify(os.environ)
        self._last_check = self.began
        self._reload, self._drain = Reload(self, load), Drain(self)
        # At most half of the watchdog's time, so that a hung child is replaced before systemd restarts the broker.
        self._busy_seconds = min(BUSY_SECONDS, self.notify.watchdog_seconds / 2 or BUSY_SECONDS)

    def __repr__(self) -> str:
        states = ", ".join(f"{child.name} {child.state}" for child in self.children)
        return f"<Supervisor is_ready={self.is_ready} is_stopping={self.is_stopping}: {states}>"

    # -- before anything is forked

    def prepare(self) -> None:
        """Lock the data folder, bind the ports and open the catalogue.

        Raises CannotServe, Superseded; OSError of the data folder. Raises Unusable for certificates, keys or users,
        before a file is made.
        """
        config = self.config
        # What may be wrong in the configuration comes before the first file: a refused start leaves nothing behind.
        self.certificates = Tls(config.tls) if config.tls.certificate else None
        self.authenticator = Authenticator(config.identity)
        data_folder.make(config.data_dir)
        self._lock = open(config.data_dir / "lock", "a")  # noqa: SIM115 - locked as long as the supervisor lives
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise listening.CannotServe(f"data_dir: {config.data_dir} is in use by another geminga") from None
        # From here on the folder is this broker's.  Whether a standby has taken over is asked before the folder is
        # claimed, as a claim changes its format: a superseded folder stays as the standby's program left it.
        try:
            if warning := standbys.look(config.data_dir, config.standby):
                log.warning(warning, code="G554")
            self._lease = standbys.lease_of(config.data_dir)
            data_folder.claim(config.data_dir)
            backup.remove_leftovers(config.data_dir)
            self._stacks = stacks.listen(config.data_dir)      # inherited by the children
        except data_folder.CannotUse as error:
            raise listening.CannotServe(f"data_dir: {error}") from None
        listening.raise_file_limit()      # inherited by the children, and needed for the listeners of many addresses
        of_clients, self.http_listeners = listening.open_listeners(config)
        self._ports = ClientPorts(of_clients)
        self.announce(config)
        self.run_dir = listening.make_run_dir(config.data_dir)
        calls = [calls_path(n) for n in range(config.http.web_processes)]      # listened to by a web process each
        self._inside = {path: unix_sockets.listen(config.data_dir / path)
                        for path in (unix_sockets.CLIENTS, unix_sockets.HTTP, *calls)}
        self._control_socket = ControlSocket(config.data_dir, self._selector,
                                             {"reload": self._reload.asked, "drain": self._drain.asked})
        try:
            catalogue = open_catalogue(config.data_dir / "catalogue.sqlite")
            catalogue.topics.delete_non_persistent()
            for name in orphans.mend(catalogue):
                log.info("a topic was made of a partition that belonged to none", topic=name)
            catalogue.commit()
            catalogue.close()
        except (CatalogueError, StorageFull, NotDurable) as error:
            raise listening.CannotServe(str(error)) from None
        self._has_moved = recovery.has_moved(config.data_dir, config.owners)
        self._admissions = make_admissions(config.workers)
        self.children = [Child("owner", n, f"geminga-o{n}", self._be_owner) for n in range(config.owners)]
        self.children += [Child("worker", n, f"geminga-w{n}", self._be_worker) for n in range(config.workers)]
        self.children.append(Child("admin", 0, "geminga-admin", self._be_admin))
        self._unused = [Child("web", n, f"geminga-web{n or ''}", self._be_web)
                        for n in range(config.http.web_processes)]
        self._handovers = make_handovers()
        self._uses = [self._handovers.incoming, *(self._inside[path] for path in calls)] if self._unused else []
        self._unused.append(Child("replicator", 0, "geminga-replicator", self._be_replicator))
        processes = [*self.children, *self._unused]
        self.counters = dict(zip([(child.role, child.index) for child in processes], make_counters(len(processes)),
                                 strict=True))
        log.lines = LogLines(["supervisor", *(child.name for child in processes)])
        spread(self.children, config.affinity == "spread")

    def announce(self, config: Config) -> None:
        """Derive two kinds of addresses from the configuration: those sent to clients, and those printed at start."""
        port, tls_port = self._ports.number("network"), self._ports.number("tls")
        http, https = self._http_url("http"), self._http_url("https")
        told = [self._http_url(scheme, config.worker) for scheme in ("http", "https")]
        self.addresses = addresses(config.worker, port, tls_port, *told)
        host = config.worker.advertised_address or config.worker.bind
        self._shown = {"clients": [url("pulsar", host, port), url("pulsar+ssl", host, tls_port)], "http": [http, https]}
        others = "" if config.worker.advertised_address else listening.reached_from_others(config.worker.bind)
        self._shown_to_others = [url("pulsar", others, port), url("pulsar+ssl", others, tls_port)] if others else []

    def _http_url(self, scheme: str, clients: WorkerOptions | None = None) -> str:
        """Return the URL of a listener, "" without one.

        clients: the options whose advertised address is its host, unless they are for other hosts and it is not.
        """
        if (listener := self.http_listeners.get(scheme)) is None:
            return ""
        host, port = listener.getsockname()[:2]
        if clients and (not exposure.is_loopback(host) or exposure.is_loopback(clients.bind)):
            host = clients.advertised_address or host
        return url(scheme, host, port)

    # -- bodies of the children

    def _be_owner(self, child: Child, control: Control) -> None:
        self._lease.bind(control)
        try:
            owner_process.run(child.index, self.config.owners, child.serial, self.run_dir, self.config.data_dir,
                              self.config.storage, control, self.counters["owner", child.index],
                              self._lease, has_moved=self._has_moved)
        except CorruptFile as error:
            log.error(f"{child.name}: {error}; what its journal has for that file would be lost", code="G124")
            sys.exit(EXIT_CANNOT_BOOT)
        except owner_process.FolderGone as error:
            log.error(f"{child.name}: {error}", code="G104")
            sys.exit(EXIT_CANNOT_BOOT)
        except NotDurable as error:
            self.counters["owner", child.index].add("syncs_failed")
            log.error(f"{child.name}: {error}", code="G110")
            sys.exit(1)

    def _be_worker(self, child: Child, control: Control) -> None:
        self._lease.bind(control)
        listeners = Listeners(*self._ports.of_worker(child.index), self.certificates,
                              self._inside[unix_sockets.CLIENTS])
        worker_process.run(child.serial, self.config.owners, self.run_dir, self.config.data_dir, self.config.worker,
                           listeners, self.addresses, control, self.counters["worker", child.index],
                           self._admissions[child.index], self.config.storage, self.authenticator,
                           self.config.authorization, self._lease)

    def _be_admin(self, child: Child, control: Control) -> None:
        from geminga.supervisor.admin import app  # only the admin process needs an HTTP server
        from geminga.supervisor.admin.resources import http_messages, websockets
        from geminga.supervisor.console.routes import console

        def extend(application: Any) -> None:
            console.install(application)
            websockets.install(application, self._handovers)
            http_messages.install(application)

        listeners = Listeners(self.http_listeners.get("http"), self.http_listeners.get("https"), self.certificates,
                              self._inside[unix_sockets.HTTP])
        app.run(self.config, child.serial, self.run_dir, listeners, self.addresses, self.counters, control,
                self.authenticator, [each.connections for each in self._admissions], self._lease, extend)

    def _be_web(self, child: Child, control: Control) -> None:
        self._lease.bind(control)
        from geminga.workers.http_messages.server import Server  # likewise
        from geminga.workers.web import process
        make_server = partial(Server, self._inside[calls_path(child.index)])
        process.run(self.config.data_dir, self._handovers, control, self.authenticator,
                    self.counters["web", child.index], make_server, self._lease)

    def _be_replicator(self, child: Child, control: Control) -> None:
        from geminga.workers.replication import process  # likewise
        process.run(self.config.data_dir, self.config.cluster_name, self.config.storage.stats_window_s, control,
                    self.counters["replicator", 0])

    # -- the loop

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT, a drain or a fatal error; return the exit status."""
        self._install_signals()
        for use in self._uses:
            self._selector.register(use, selectors.EVENT_READ, self._web_is_used)
        _import_http_server()
        gc.collect()
        gc.freeze()        # children share these pages until a collection writes to them
        while True:
            self._start_missing()
            self._report_ready()
            self.tell_status()
            for key, _ in self._selector.select(self._select_timeout()):
                if self._selector.get_map().get(key.fd) == key:      # else what came before has ended it
                    key.data()
            self._reap()
            self._reload.go_on()
            self._drain.go_on()
            self._ports.follow(self.children, is_ending=self.is_stopping or self.is_draining)
            self._check_heartbeats()
            if self.is_stopping and self._stop_step():
                break
        for place in (self.run_dir, self.config.data_dir / "run"):
            shutil.rmtree(place, ignore_errors=True)
        if self._failure:
            log.error(self._failure, code="G203")
        return 2 if self.is_superseded else 1 if self._failure else 0

    def _install_signals(self) -> None:
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda: self._wake_read.recv(4096))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop_requested)
        signal.signal(signal.SIGHUP, self._reload.requested)

    def _stop_requested(self, *_: object) -> None:
        self._drain.requested(self.config.drain_s)

    @property
    def is_draining(self) -> bool:
        return self._drain.is_under_way

    def hang_up(self, caller: Control) -> None:
        """Close the connection of a caller on the control socket."""
        self._control_socket.hang_up(caller)

    def begin_stop(self) -> None:
        """Let `run` stop all children and return.  A second call changes nothing."""
        if not self.is_stopping:
            self.is_stopping = True
            self._stop_began = time.monotonic()
            self.notify.stopping()

    def _of(self, role: str) -> list[Child]:
        return [child for child in self.children if child.role == role]

    def _start_missing(self) -> None:
        if self.is_stopping:
            return
        for child in self._missing():
            if time.monotonic() >= child.started:
                self._serial += 1
                others = [other.control for other in self.children if other.process is not None]
                is_wanted = bool(child.leaves_for)
                start(child, self._serial, [*others, *self._handovers.unused_by(child.role), *self._control_socket.held,
                                            self._selector, self._wake_read, self._wake_write, self._lock, self.notify])
                # Counted here: a child that dies before its first line of code has been started too.
                self.counters[child.role, child.index].process_began(child.pid, is_wanted=is_wanted)
                self._selector.register(child.control, selectors.EVENT_READ, partial(self._receive, child))

    def _web_is_used(self) -> None:
        """Let the web processes be started: something has come for one of them, and waits in its socket."""
        for use in self._uses:
            self._selector.unregister(use)
        self._need("web")

    def _need(self, role: str) -> None:
        """Have the processes of a role from now on.

        Many brokers never get a WebSocket, and replicate nothing.  The processes for that would have a sixth of the
        broker's memory.
        """
        self.children += [child for child in self._unused if child.role == role]
        self._unused = [child for child in self._unused if child.role != role]

    def _missing(self) -> list[Child]:
        """Return the children that have to be started, now or after a pause."""
        return [child for child in self.children
                if child.state == GONE and (child.role != "worker" or self._ports.can_serve)]

    def _select_timeout(self) -> float:
        """Return the seconds until the supervisor's next timed step: a check, a restart, or part of a drain or stop."""
        if self.is_stopping:
            return 0.05
        if self.is_draining:
            return DRAIN_LOOK_SECONDS
        waiting = [child.started for child in self._missing()]
        return max(0.0, min([self._last_check + LOOK_SECONDS, *waiting]) - time.monotonic())

    def _receive(self, child: Child) -> None:
        for message in child.control.receive():
            if "pong" in message:
                child.heartbeat.answered()
            elif "tell" in message:
                self._tell_all(message["tell"])
            elif "needs" in message:
                self._need(message["needs"])
            elif "superseded" in message:
                self._superseded()
            elif "drained" in message:
                child.is_drained = True
            elif "configured" in message:
                self._reload.answered(child, message["configured"])
            elif "recovering" in message:
                child.progress = "{1} of {2} {0}".format(*message["recovering"])
                self.tell_status()      # now: the owner may be ready by the next message
                self.notify.extend()
            elif "failed" in message:
                child.has_failed = True
            elif "ready" in message and child.state == STARTING:
                child.become(READY)
                child.has_failed = False
                if recovered := message["ready"].get("recovered"):
                    log.info(f"{child.name} has put {recovered} entries of its journal in place")
                self._introduce(child)
                if self.is_draining:
                    child.control.send(drain=True)
        if not child.control.is_open:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.control)

    def _tell_all(self, message: dict[str, Any]) -> None:
        """Send a message to all children, or to all workers if it closes a client's connection.

        Rules of log levels are applied in the supervisor too, so that children which are forked later inherit them.
        """
        if "log" in message:
            log.follow(Rule(*rule) for rule in message["log"])
        for child in self._of("worker") if "close" in message else self.children:
            if child.state in (STARTING, READY):
                child.control.send(**message)

    def _check_heartbeats(self) -> None:
        """Ask every child for a heartbeat, and kill a child that hangs.

        Feed systemd's watchdog while all children answer.
        """
        passed = time.monotonic() - self._last_check
        if passed < LOOK_SECONDS or self.is_stopping:
            return
        self._last_check += passed
        alive = [child for child in self.children if child.state in (STARTING, READY)]
        for child in alive:
            heartbeat = child.heartbeat
            action = heartbeat.check(passed, self._busy_seconds if child.state == READY else STARTING_SECONDS)
            if action == "ask":
                child.control.send(ping=True)
            elif action == "kill":
                where = stacks.innermost(self.config.data_dir, child.pid)
                child.killed_for = f"{heartbeat.trouble}; it was killed" + (f" in {where}" if where else "")
                os.kill(child.pid, signal.SIGKILL)
            elif heartbeat.waits_for_disk and not heartbeat.is_told:
                heartbeat.is_told = True
                log.warning(f"{child.name} (pid {child.pid}) {heartbeat.trouble}; it goes on when the disk does",
                            code="G205")
        if all(child.heartbeat.is_fine for child in alive):
            self.notify.alive()

    def tell_status(self) -> None:
        """Send the broker's status line to the service manager if it has changed."""
        self.notify.status(self._status())

    def _status(self) -> str:
        """Return the broker's state in one line, for `systemctl status`."""
        if self.is_stopping:
            return f"stopping: {sum(child.state != GONE for child in self.children)} processes are left"
        if self.is_draining:
            return f"draining: {self._drain.outstanding} messages are to be acknowledged yet"
        alive = [child for child in self.children if child.state in (STARTING, READY)]
        troubles = [f"{child.name} {child.heartbeat.trouble}" for child in alive if child.heartbeat.trouble]
        missing = [child for child in self.children if child.state != READY]
        troubles += [beginning(child, self.config.owners) for child in missing
                     if self.is_ready or child.role == "owner"]
        if troubles or missing:
            return "; ".join(troubles) or \
                f"starting: {len(missing)} of {len(self.children)} processes are not ready yet"
        refused = f"not reloaded: {self._reload.refused}; " if self._reload.refused else ""
        return f"{refused}serving {', '.join(filter(None, [*self._shown['clients'], *self._shown['http']]))} with " \
               f"{self.config.workers} workers and {self.config.owners} owners"

    def _introduce(self, child: Child) -> None:
        """Tell a new process about all owners, and all others about a new owner.

        The new owner hears first: workers send it commands as soon as they know it, and after partitions have moved it
        refuses commands until it knows that all other owners have recovered.
        """
        for owner in self._of("owner"):
            if owner.state == READY and owner is not child:
                child.control.send(owner=[owner.index, owner.serial])
        if child.role == "owner":
            for other in self.children:
                if other is not child and other.state in (STARTING, READY):
                    other.control.send(owner=[child.index, child.serial])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for child in self.children:
                if child.pid == pid:
                    self._ended(child, status)

    def _ended(self, child: Child, status: int) -> None:
        lived = time.monotonic() - child.started
        child.is_asked, child.has_failed = False, child.state == STARTING
        if child.leaves_for and not self.is_stopping:
            log.info(f"{child.name} (pid {child.pid}) {child.leaves_for}")
        elif not self.is_stopping:
            log.error(f"{child.name} (pid {child.pid}) {child.killed_for or describe_exit(status)}; starting it again",
                      code="G204" if child.killed_for else "G201")
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(child.control)
        child.control.close()
        child.process = None
        child.become(GONE)
        child.started = time.monotonic() + (RESTART_MIN_SECONDS if lived < RESTART_MIN_SECONDS else 0.0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == EXIT_CANNOT_BOOT and not self.is_stopping:
            self._failure = f"{child.name} cannot start"
            self.begin_stop()
        gone = {"owner": {"owner_gone": child.index}, "worker": {"worker_gone": child.serial},
                "admin": {"worker_gone": child.serial}}.get(child.role, {})      # nobody needs to know of the others
        for other in () if not gone else self.children if child.role == "owner" else self._of("owner"):
            if other.process is not None:
                other.control.send(**gone)

    def _report_ready(self) -> None:
        if self.is_ready or self.is_stopping or not all(child.state == READY for child in self.children):
            return
        self.is_ready = True
        self._has_moved = False
        recovery.settle(self.config.data_dir, self.config.owners)
        self.tell_status()      # the service manager has it together with the word that the broker is ready
        self.notify.ready()
        print(f"Geminga is ready after {time.monotonic() - self.began:.2f} s: "
              f"{self.config.workers} workers, {self.config.owners} owners\n"
              + listening.shown(self._shown, self._shown_to_others, self.config.data_dir), flush=True)

    # -- the end

    def _stop_step(self) -> bool:
        """Take the next step of a stop, and return whether all processes have ended."""
        return stop_step(self.children, time.monotonic() - self._stop_began, is_last=self.is_superseded)

    def _superseded(self) -> None:
        """Stop for good, because the standby is promoted; the admin process lets its feed end after the owners."""
        self.is_superseded = True
        self.begin_stop()


def serve(config: Config, notes: list[str], load: Callable[[], tuple[Config, list[str]]]) -> int:
    """Run a broker and return its exit status: 0 after a stop, 1 on failure, 2 for a configuration that cannot be used.

    `notes` are logged.  `load` reads the configuration anew for a reload; it raises ConfigError.
    """
    log.begin(config.log)
    log.bind(process="supervisor")
    for note in notes:
        log.info(note, code="G331")
    if not bootstrap.is_optimised():
        log.info("this Python was built without optimisation and takes 1.5 to 2 times the CPU; "
                 "the distribution's is faster", code="G320")
    supervisor = Supervisor(config, load)
    try:
        supervisor.prepare()
    except (listening.CannotServe, Unusable, standbys.Superseded) as error:
        is_superseded = isinstance(error, standbys.Superseded)
        log.error(str(error), code="G552" if is_superseded else "G330")
        return 1 if isinstance(error, listening.CannotServe) else 2
    except OSError as error:
        log.error(usable_paths.unusable(config.data_dir, error), code="G330")
        return 2 if is_of_place(error) else 1
    if told := exposure.warning(config):
        log.warning(told, code="G409")
    for check in tune.at_start(config):
        log.warning(check.text, code="G321")
    return supervisor.run()


def _import_http_server() -> None:
    """Import what the processes that serve HTTP need, so that they share its pages and start sooner.

    aiohttp reads the certificates of all authorities into two contexts, for clients of HTTPS.  The broker is no such
    client, and is given no certificates, which would take 2 MiB and a third of the import.
    """
    configured = os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_FILE"] = os.devnull
    import aiohttp.web  # noqa: F401
    del os.environ["SSL_CERT_FILE"]
    if configured is not None:
        os.environ["SSL_CERT_FILE"] = configured
