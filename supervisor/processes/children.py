"""One child process of the supervisor: its states, its fork, its core.

    STARTING --ready--> READY --ended--> GONE --restarted--> STARTING
                          \\--told to stop--> STOPPING --ended--> GONE

The supervisor has no thread, no ZeroMQ context and no open catalogue, so that a fork is a clean copy.  A child dies
with the supervisor (PR_SET_PDEATHSIG).  Each start has a new serial number, which is never used again.
"""
import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from geminga.storage.runtime.control import Control, control_pair
from geminga.storage.runtime.log import log
from geminga.supervisor.processes.heartbeat import Heartbeat

STARTING, READY, STOPPING, GONE = "STARTING", "READY", "STOPPING", "GONE"
TRANSITIONS = {STARTING: {READY, STOPPING, GONE}, READY: {STOPPING, GONE}, STOPPING: {GONE}, GONE: {STARTING}}

EXIT_CANNOT_BOOT = 3           # a restart would not help, so the supervisor stops
RESTART_MIN_SECONDS = 1.0      # delay before a restart of a child that lived shorter than this
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Process:
    """A running child process, with the supervisor's connection to it and its heartbeat."""

    pid: int
    control: Control          # the supervisor's end of the socket pair
    heartbeat: Heartbeat


@dataclass(eq=False, slots=True)
class Child:
    """A child process of the supervisor by its role and index, and the state of the process that runs for it now.

    A process exists in every state but GONE.
    """

    role: str                                         # worker, owner, admin, web or replicator
    index: int
    name: str                                         # in /proc and ps
    body: Callable[["Child", Control], None]          # runs in the child, with its end of the control socket
    state: str = GONE
    process: Process | None = field(default=None, repr=False)
    serial: int = 0
    # monotonic time of the start; of a child that is GONE, when it may start
    started: float = 0.0
    progress: str = ""                                # progress of an owner's recovery: "12 of 40 entries"
    killed_for: str = ""                              # why the supervisor killed it
    leaves_for: str = ""                              # why it was told to end
    is_asked: bool = False                            # new options were sent, and not confirmed yet
    is_drained: bool = False
    has_failed: bool = False                          # its last start, which an owner tries again by itself
    core: int | None = None                           # core to which the process is pinned

    def become(self, state: str) -> None:
        """Change the child's state.  Only changes in TRANSITIONS are allowed."""
        assert state in TRANSITIONS[self.state], (self, state)
        assert state != GONE or self.process is None, self
        self.state = state

    @property
    def pid(self) -> int:
        """Id of the child's process, 0 if none runs."""
        return 0 if self.process is None else self.process.pid

    @property
    def control(self) -> Control:
        assert self.process is not None, self
        return self.process.control

    @property
    def heartbeat(self) -> Heartbeat:
        assert self.process is not None, self
        return self.process.heartbeat


class Closable(Protocol):
    def close(self) -> object: ...


def start(child: Child, serial: int, supervisor_only: list[Closable]) -> None:
    """Fork a child process, which runs its body and exits.  The child closes everything in `supervisor_only`."""
    child.become(STARTING)
    child.serial, child.started = serial, time.monotonic()
    ours, theirs = control_pair()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        child.process = Process(pid, ours, Heartbeat(pid))
        child.progress = child.killed_for = child.leaves_for = ""
        child.is_drained = False
        return
    status = 1
    try:
        _settle(parent, child)
        log.bind(process=child.name, **({child.role: child.index} if child.role not in ("admin", "replicator") else {}))
        keep_to_core(child)
        ours.close()
        for held in supervisor_only:
            held.close()
        child.body(child, theirs)
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        log.error(f"{child.name} fails: {traceback.format_exc()}", code="G290")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _settle(parent: int, child: Child) -> None:
    """Prepare a newly forked child: its end with the supervisor, its name, its memory allocator and its signals.

    Signals that stop or reload the broker are left to the supervisor.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _libc.prctl(_PR_SET_NAME, child.name.encode())
    # Buffers of a pass have a megabyte each.  If malloc returned them to the kernel after every pass, their page faults
    # would be a third of the system time of large entries.
    _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    _libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    gc.set_threshold(50_000, 20, 100)      # few cycles arise, and each collection is a pause
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def spread(children: list[Child], is_wanted: bool) -> None:
    """Assign the cores that this process may use to workers and owners in turn, and move running processes.

    Without `is_wanted` all children may use all cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    for child in children:
        child.core = cores[child.index % len(cores)] if is_wanted and child.role in ("worker", "owner") else None
        if child.process is not None:
            for thread in os.listdir(f"/proc/{child.pid}/task"):
                _keep(child, int(thread), cores if child.core is None else [child.core])


def keep_to_core(child: Child) -> None:
    """Pin this process, and threads that it starts later, to the core assigned to the child."""
    if child.core is not None:
        _keep(child, 0, [child.core])


def _keep(child: Child, thread: int, cores: list[int]) -> None:
    """Set the cores on which a thread may run.  A thread that has ended is ignored; any other failure is logged."""
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:      # it has just ended
        pass
    except OSError as error:
        log.warning(f"{child.name} cannot keep to core {child.core}: {error.strerror}", code="G321")


def describe_exit(status: int) -> str:
    """Return an exit status from waitpid as text for the log."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = " (perhaps out of memory)" if number == signal.SIGKILL else ""
        return f"killed by {signal.Signals(number).name}{hint}"
    return f"exited with status {os.WEXITSTATUS(status)}"


def beginning(child: Child, owners: int) -> str:
    """Return the progress of a child that does not serve yet, as text for the status line."""
    if child.role != "owner":
        return f"{child.name} is being started again"
    return f"recovering: owner {child.index + 1} of {owners}" + (f", {child.progress}" if child.progress else "")
