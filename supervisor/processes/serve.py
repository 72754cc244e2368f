"""A broker's life: sockets, children, signals, the end.

    bind -> catalogue -> fork owners (each recovers its partitions) -> fork workers and admin when all are ready -> watch

Every pass of `run` re-establishes what should be: a child that is gone is started again, whatever woke the loop.  Workers
accept only while all owners have recovered at least once, so nobody meets half a broker.
"""
import contextlib
import fcntl
import gc
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from geminga.storage.catalogue.catalogue import CatalogueError, open_catalogue
from geminga.storage.disk import data_folder
from geminga.storage.errors import CorruptFile, NotDurable, StorageFull, is_of_place, text_of
from geminga.storage.offline import backup
from geminga.storage.owner import process as owner_process
from geminga.storage.owner import recovery
from geminga.storage.runtime.control import Control
from geminga.storage.runtime.counters import make_counters
from geminga.storage.runtime.log import Rule, log
from geminga.supervisor import bootstrap
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.host import tune
from geminga.supervisor.host.stacks import listen
from geminga.supervisor.processes.children import (
    EXIT_CANNOT_BOOT,
    GONE,
    READY,
    RESTART_MIN_SECONDS,
    STARTING,
    STOPPING,
    Child,
    describe_exit,
    spread,
    start,
)
from geminga.supervisor.processes.control_socket import Desk
from geminga.supervisor.processes.drain import DRAIN_LOOK_SECONDS, Drain
from geminga.supervisor.processes.heartbeat import BUSY_SECONDS, LOOK_SECONDS, STARTING_SECONDS
from geminga.supervisor.processes.notify import Notify
from geminga.supervisor.processes.reload import Reload
from geminga.workers.addresses import addresses, url
from geminga.workers.identity.authentication import Authenticator
from geminga.workers.identity.certificates import Tls
from geminga.workers.identity.options import Unusable
from geminga.workers.process import main as worker_process
from geminga.workers.process.listeners import Listeners, inside_path

STOP_SECONDS = {"worker": 2.5, "admin": 2.5, "owner": 4.0}     # from the beginning of the stop until those that are still there are killed
_SOCKET_PATH_MAX = 80         # a Unix socket's path takes 107 bytes; this leaves room for its name


class CannotServe(Exception):
    """One line that says why."""


class Supervisor:
    """Reads no message and touches no data: it starts, watches and stops those who do."""

    def __init__(self, config: Config, load: Callable[[], tuple[Config, list[str]]]):
        """load: the configuration as it is written now.  Raises ConfigError."""
        self.config = config
        self.began = time.monotonic()
        self.listeners: dict[str, list[socket.socket]] = {"network": [], "tls": []}      # a socket for each worker, where it is listened
        self.http_listeners: dict[str, socket.socket] = {}
        self.children: list[Child] = []
        self._serial = 0
        self.is_stopping = False
        self.is_ready = False
        self._failure = ""
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self.notify = Notify(os.environ)
        self._looked = self.began
        self._reload, self._drain = Reload(self, load), Drain(self)
        # Half of what a watchdog waits: a child that is replaced by then does not cost all the others.
        self._busy_seconds = min(BUSY_SECONDS, self.notify.watchdog_seconds / 2 or BUSY_SECONDS)

    # -- before anything is forked

    def prepare(self) -> None:
        """Take the data folder and the ports.  Raises CannotServe, OSError of the folder; Unusable before anything is made."""
        config = self.config
        self.certificates = Tls(config.tls) if config.tls.certificate else None
        self.authenticator = Authenticator(config.identity)
        data_folder.make(config.data_dir)
        self._lock = open(config.data_dir / "lock", "a")  # noqa: SIM115 - held as long as the supervisor lives
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotServe(f"data_dir: {config.data_dir} is in use by another geminga") from None
        try:
            data_folder.claim(config.data_dir)
            backup.remove_leftovers(config.data_dir)
            self._stacks = listen(config.data_dir)      # its children as well
        except data_folder.CannotUse as error:
            raise CannotServe(f"data_dir: {error}") from None
        _raise_file_limit()
        self._bind()
        self.run_dir = _run_dir(config.data_dir)
        self._inside = socket.socket(socket.AF_UNIX)
        self._inside.bind(str(inside_path(self.run_dir)))
        self._inside.listen(128)
        self._desk = Desk(config.data_dir, self._selector, {"reload": self._reload.asked, "drain": self._drain.asked})
        try:
            catalogue = open_catalogue(config.data_dir / "catalogue.sqlite")
            catalogue.forget_live_topics()
            catalogue.commit()
            catalogue.close()
        except (CatalogueError, StorageFull, NotDurable) as error:
            raise CannotServe(str(error)) from None
        self._has_moved = recovery.has_moved(config.data_dir, config.owners)
        counters = make_counters(config.workers + config.owners + 1)
        self.counters = dict(zip(
            [*(("owner", n) for n in range(config.owners)), *(("worker", n) for n in range(config.workers)), ("admin", 0)], counters,
            strict=True))
        self.children = [Child("owner", n, f"geminga-o{n}", self._be_owner) for n in range(config.owners)]
        self.children += [Child("worker", n, f"geminga-w{n}", self._be_worker) for n in range(config.workers)]
        self.children.append(Child("admin", 0, "geminga-admin", self._be_admin))
        spread(self.children, config.affinity == "spread")

    def _bind(self) -> None:
        """A listening socket for each worker, kept here as well: connections wait in it while a worker is started again."""
        config, tls = self.config, self.config.tls
        has_tls = bool(tls.certificate)
        for name, port in (("network", config.worker.port), ("tls", tls.port if has_tls else -1)):
            for _ in range(config.workers if port >= 0 else 0):
                listener = _listen(config.worker.bind, port, f"{name}.port", is_shared=True, is_first=not self.listeners[name])
                port = listener.getsockname()[1]
                self.listeners[name].append(listener)
        for scheme, key, port in (("http", "http_port", config.http_port), ("https", "tls.http_port", tls.http_port if has_tls else -1)):
            if port >= 0:
                self.http_listeners[scheme] = _listen(config.http_bind, port, key)
        self.announce(config)

    def announce(self, config: Config) -> None:
        """Where clients are told to go."""
        ports = [found[0].getsockname()[1] if found else -1 for found in self.listeners.values()]
        http = [self._http_url(scheme) for scheme in ("http", "https")]
        self.addresses = addresses(config.worker, *ports, *http)
        host = config.worker.advertised_address or config.worker.bind
        self._shown = {"clients": [url("pulsar", host, ports[0]), url("pulsar+ssl", host, ports[1])], "http": http}

    def _http_url(self, scheme: str) -> str:
        listener = self.http_listeners.get(scheme)
        return url(scheme, *listener.getsockname()[:2]) if listener else ""

    # -- what children do

    def _be_owner(self, child: Child, control: Control) -> None:
        self.counters["owner", child.index].process_began(os.getpid(), is_wanted=bool(child.leaves_for))
        try:
            owner_process.run(child.index, self.config.owners, child.serial, self.run_dir, self.config.data_dir, self.config.storage,
                              control, self.counters["owner", child.index], has_moved=self._has_moved)
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
        self.counters["worker", child.index].process_began(os.getpid(), is_wanted=bool(child.leaves_for))
        plain, tls = (found[child.index] if found else None for found in self.listeners.values())
        worker_process.run(child.serial, self.config.owners, self.run_dir, self.config.data_dir, self.config.worker,
                           Listeners(plain, tls, self.certificates, self._inside), self.addresses, control,
                           self.counters["worker", child.index], self.config.storage, self.authenticator, self.config.authorization)

    def _be_admin(self, child: Child, control: Control) -> None:
        self.counters["admin", 0].process_began(os.getpid(), is_wanted=bool(child.leaves_for))
        from geminga.supervisor.admin import app  # only this process needs an HTTP server
        listeners = Listeners(self.http_listeners.get("http"), self.http_listeners.get("https"), self.certificates)
        app.run(self.config, child.serial, self.run_dir, listeners, self.addresses, self.counters, control, self.authenticator)

    # -- the loop

    def run(self) -> int:
        """Serve until a signal says otherwise; returns the exit status."""
        self._install_signals()
        gc.collect()
        gc.freeze()        # the children share these pages as long as nobody counts references in them
        while True:
            self._start_missing()
            self._report_ready()
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._reap()
            self._reload.go_on()
            self._drain.go_on()
            self._look()
            self.tell_status()
            if self.is_stopping and self._stop_step():
                break
        for place in (self.run_dir, self.config.data_dir / "run"):
            shutil.rmtree(place, ignore_errors=True)
        if self._failure:
            log.error(self._failure, code="G203")
        return 1 if self._failure else 0

    def _install_signals(self) -> None:
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda: self._wake_read.recv(4096))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop_requested)
        signal.signal(signal.SIGHUP, self._reload.requested)

    def _stop_requested(self, *_) -> None:
        self.begin_stop()

    @property
    def is_draining(self) -> bool:
        return self._drain.is_under_way

    def hang_up(self, caller: Control) -> None:
        """One who asked for something by the socket was answered."""
        self._desk.hang_up(caller)

    def begin_stop(self) -> None:
        if not self.is_stopping:
            self.is_stopping = True
            self._stop_began = time.monotonic()
            self.notify.stopping()

    def _of(self, role: str) -> list[Child]:
        return [child for child in self.children if child.role == role]

    def _start_missing(self) -> None:
        if self.is_stopping:
            return
        owners_are_ready = self.is_ready or all(child.state == READY for child in self._of("owner"))
        for child in self.children:
            if child.state == GONE and time.monotonic() >= child.started and (child.role == "owner" or owners_are_ready):
                self._serial += 1
                others = [other.control for other in self.children if other.control is not None and other is not child]
                start(child, self._serial, [*others, *self._desk.held, self._selector, self._wake_read, self._wake_write,
                                            self._lock, self.notify])
                self._selector.register(child.control, selectors.EVENT_READ, partial(self._told, child))

    def _patience(self) -> float:
        """Seconds until something is due although nobody says anything."""
        if self.is_stopping:
            return 0.05
        if self.is_draining:
            return DRAIN_LOOK_SECONDS
        waiting = [child.started for child in self.children if child.state == GONE]
        return max(0.0, min([self._looked + LOOK_SECONDS, *waiting]) - time.monotonic())

    def _told(self, child: Child) -> None:
        for message in child.control.receive():
            if "pong" in message:
                child.pulse.answered()
            elif "tell" in message:
                self._tell_all(message["tell"])
            elif "drained" in message:
                child.is_drained = True
            elif "configured" in message:
                self._reload.answered(child, message["configured"])
            elif "recovering" in message:
                child.progress = "{1} of {2} {0}".format(*message["recovering"])
                self.notify.extend()
            elif "ready" in message and child.state == STARTING:
                child.become(READY)
                if recovered := message["ready"].get("recovered"):
                    log.info(f"{child.name} has put {recovered} entries of its journal in place")
                self._introduce(child)
                if self.is_draining:
                    child.control.send(drain=True)
        if not child.control.is_open:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.control)

    def _tell_all(self, message: dict) -> None:
        """Those who are forked later have it from this process."""
        if "log" in message:
            log.follow(Rule(*rule) for rule in message["log"])
        for child in self.children:
            if child.state in (STARTING, READY):
                child.control.send(**message)

    def _look(self) -> None:
        """Every child is asked whether it answers; one that does not is killed, and the service manager is told that all do."""
        passed = time.monotonic() - self._looked
        if passed < LOOK_SECONDS or self.is_stopping:
            return
        self._looked += passed
        alive = [child for child in self.children if child.state in (STARTING, READY)]
        for child in alive:
            pulse = child.pulse
            what = pulse.look(passed, self._busy_seconds if child.state == READY else STARTING_SECONDS)
            if what == "ask":
                child.control.send(ping=True)
            elif what == "kill":
                child.killed_for = f"{pulse.trouble}; it was killed"
                os.kill(child.pid, signal.SIGKILL)
            elif pulse.waits_for_disk and not pulse.is_told:
                pulse.is_told = True
                log.warning(f"{child.name} (pid {child.pid}) {pulse.trouble}; it goes on when the disk does", code="G205")
        if all(child.pulse.is_fine for child in alive):
            self.notify.alive()

    def tell_status(self) -> None:
        self.notify.status(self._status())

    def _status(self) -> str:
        """What `systemctl status` shows."""
        if self.is_stopping:
            return f"stopping: {sum(child.state != GONE for child in self.children)} processes are left"
        if self.is_draining:
            return f"draining: {self._drain.outstanding} messages are to be acknowledged yet"
        alive = [child for child in self.children if child.state in (STARTING, READY)]
        troubles = [f"{child.name} {child.pulse.trouble}" for child in alive if child.pulse.trouble]
        missing = [child for child in self.children if child.state != READY]
        troubles += [_beginning(child, self.config.owners) for child in missing if self.is_ready or child.role == "owner"]
        if troubles or missing:
            return "; ".join(troubles) or f"starting: {len(missing)} of {len(self.children)} processes are not ready yet"
        refused = f"not reloaded: {self._reload.refused}; " if self._reload.refused else ""
        return f"{refused}serving {', '.join(filter(None, [*self._shown['clients'], *self._shown['http']]))} with " \
               f"{self.config.workers} workers and {self.config.owners} owners"

    def _introduce(self, child: Child) -> None:
        """Those that talk to owners are told of them."""
        if child.role == "owner":
            for other in self._of("worker") + self._of("admin"):
                if other.state in (STARTING, READY):
                    other.control.send(owner=[child.index, child.serial])
        else:
            for owner in self._of("owner"):
                if owner.state == READY:
                    child.control.send(owner=[owner.index, owner.serial])

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
        child.is_asked = False
        if child.leaves_for and not self.is_stopping:
            log.info(f"{child.name} (pid {child.pid}) {child.leaves_for}")
        elif not self.is_stopping:
            log.error(f"{child.name} (pid {child.pid}) {child.killed_for or describe_exit(status)}; starting it again",
                      code="G204" if child.killed_for else "G201")
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(child.control)
        child.control.close()
        child.control, child.pid = None, 0
        child.become(GONE)
        child.started = time.monotonic() + (RESTART_MIN_SECONDS if lived < RESTART_MIN_SECONDS else 0.0)   # when it is due again
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == EXIT_CANNOT_BOOT and not self.is_stopping:
            self._failure = f"{child.name} cannot start"
            self.begin_stop()
        gone = {"owner": {"owner_gone": child.index}, "worker": {"worker_gone": child.serial},
                "admin": {"worker_gone": child.serial}}[child.role]
        for other in self._of("worker") + self._of("admin") if child.role == "owner" else self._of("owner"):
            if other.control is not None:
                other.control.send(**gone)

    def _report_ready(self) -> None:
        if self.is_ready or self.is_stopping or not all(child.state == READY for child in self.children):
            return
        self.is_ready = True
        self._has_moved = False
        recovery.settle(self.config.data_dir, self.config.owners)
        self.tell_status()
        self.notify.ready()
        print(f"Geminga is ready after {time.monotonic() - self.began:.2f} s: {self.config.workers} workers, {self.config.owners} owners\n"
              + "".join(f"  {name:<9} {url}\n" for name, urls in self._shown.items() for url in filter(None, urls)) +
              f"  data      {self.config.data_dir.resolve()}\n"
              f"Publish a first message:\n"
              f"  {Path(sys.argv[0]).absolute()} publish --url {next(filter(None, self._shown['clients']))} my-topic 'Hello'", flush=True)

    # -- the end

    def _stop_step(self) -> bool:
        """Workers say good-bye first, then owners put everything in its place; true when all are gone."""
        passed = time.monotonic() - self._stop_began
        for roles in (("worker", "admin"), ("owner",)):
            alive = [child for child in self.children if child.role in roles and child.state != GONE]
            for child in alive:
                if child.state != STOPPING:
                    child.become(STOPPING)
                    child.control.send(stop=True)
                elif passed > STOP_SECONDS[child.role]:
                    log.warning(f"{child.name} does not stop; killed", code="G202")
                    os.kill(child.pid, signal.SIGKILL)
            if alive:
                return False
        return True


def _beginning(child: Child, owners: int) -> str:
    """How far a child is that does not serve yet."""
    if child.role != "owner":
        return f"{child.name} is being started again"
    return f"recovering: owner {child.index + 1} of {owners}" + (f", {child.progress}" if child.progress else "")


def _listen(bind: str, port: int, key: str, *, is_shared: bool = False, is_first: bool = True) -> socket.socket:
    """A listening socket.  Raises CannotServe with the key of the configuration that asks for it.

    A port that is shared by sockets of ours must be free when the first binds it: SO_REUSEPORT would let another broker of
    the same user take part without a word.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        if is_shared and is_first:
            with socket.socket(family, kind, protocol) as alone:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind(address)
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise CannotServe(f"{key}: cannot listen on {bind}:{port}: {error.strerror or error}") from None
    return listener


def _run_dir(data_dir: Path) -> Path:
    """Where owners' sockets lie: in the data folder when its path is short enough for a socket's."""
    place = data_dir.resolve() / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    return place if len(str(place)) <= _SOCKET_PATH_MAX else Path(tempfile.mkdtemp(prefix="geminga-"))


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(config: Config, notes: list[str], load: Callable[[], tuple[Config, list[str]]]) -> int:
    """Serve; returns the exit status.  load: the configuration as it is written now.  Raises ConfigError."""
    log.begin(config.log)
    log.bind(process="supervisor")
    for note in notes:
        log.info(note, code="G331")
    if not bootstrap.is_optimised():
        log.info("this Python was built without optimisation and takes 1.5 to 2 times the CPU; the distribution's is faster", code="G320")
    supervisor = Supervisor(config, load)
    try:
        supervisor.prepare()
    except (CannotServe, Unusable) as error:
        log.error(str(error), code="G330")
        return 2 if isinstance(error, Unusable) else 1
    except OSError as error:
        log.error(f"data_dir: {text_of(error)}", code="G330")
        return 2 if is_of_place(error) else 1
    for look in tune.at_start(config):
        log.warning(look.text, code="G321")
    return supervisor.run()
