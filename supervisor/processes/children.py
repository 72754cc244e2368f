"""The children: forked, watched, restarted.

    STARTING --ready--> READY --ended--> GONE --restarted--> STARTING
                          \\--told to stop--> STOPPING --ended--> GONE

The supervisor has no thread, no ZeroMQ context and no open catalogue, so that a fork is a clean copy.  A child dies with it
(PR_SET_PDEATHSIG), and has a serial number of its own, never used again while the supervisor lives.
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

from geminga.storage.runtime.control import Control, control_pair
from geminga.storage.runtime.log import log
from geminga.supervisor.processes.heartbeat import Pulse

STARTING, READY, STOPPING, GONE = "STARTING", "READY", "STOPPING", "GONE"
TRANSITIONS = {STARTING: {READY, STOPPING, GONE}, READY: {STOPPING, GONE}, STOPPING: {GONE}, GONE: {STARTING}}

EXIT_CANNOT_BOOT = 3           # trying again would not help: the supervisor stops
RESTART_MIN_SECONDS = 1.0      # a child that lived shorter than this is started again only after
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(eq=False, slots=True)
class Child:
    """One place for a process: a role, a number, and whoever fills it now."""

    role: str                                         # worker, owner or admin
    index: int
    name: str                                         # as the kernel shows it
    body: Callable[["Child", Control], None]          # what the process does, given its end of the control line
    state: str = GONE
    pid: int = 0
    serial: int = 0
    started: float = 0.0
    control: Control | None = field(default=None, repr=False)
    pulse: Pulse | None = field(default=None, repr=False)
    progress: str = ""                                # how far its recovery is
    killed_for: str = ""                              # why we have killed it
    leaves_for: str = ""                              # why it ends by itself
    is_asked: bool = False                            # to take new options, and has not answered
    is_drained: bool = False
    core: int | None = None                           # that it keeps to

    def become(self, state: str) -> None:
        assert state in TRANSITIONS[self.state], (self, state)
        self.state = state


def start(child: Child, serial: int, supervisor_only: list) -> None:
    """Fork the child.  supervisor_only: what has a descriptor that the child must not keep open."""
    child.become(STARTING)
    child.serial, child.started = serial, time.monotonic()
    child.control, theirs = control_pair()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        child.pid, child.pulse = pid, Pulse(pid)
        child.progress = child.killed_for = child.leaves_for = ""
        child.is_drained = False
        return
    status = 1
    try:
        _settle(parent, child)
        log.bind(process=child.name, **({child.role: child.index} if child.role != "admin" else {}))
        keep_to_core(child)
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
    """What every child does first: die with the supervisor, have a name, leave signals to it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _libc.prctl(_PR_SET_NAME, child.name.encode())
    # A pass's buffers are a megabyte each: taken from the kernel and given back every time, their page faults are a third of
    # the system time of large entries.
    _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    _libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    gc.set_threshold(50_000, 20, 100)      # there are few cycles to collect, and a collection is a pause
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child.control.close()


def spread(children: list[Child], is_wanted: bool) -> None:
    """Each worker and owner has a core of those that this process may use, in turn: as many of either on one as on another, or one more.

    Those that run are moved.  Without `is_wanted` the kernel chooses.
    """
    cores = sorted(os.sched_getaffinity(0))
    for child in children:
        child.core = cores[child.index % len(cores)] if is_wanted and child.role in ("worker", "owner") else None
        if child.pid:
            for thread in os.listdir(f"/proc/{child.pid}/task"):
                _keep(child, int(thread), cores if child.core is None else [child.core])


def keep_to_core(child: Child) -> None:
    """This process runs on the child's core only, as will its threads."""
    if child.core is not None:
        _keep(child, 0, [child.core])


def _keep(child: Child, thread: int, cores: list[int]) -> None:
    """Where a core is none of ours any more, on all that are."""
    try:
        os.sched_setaffinity(thread, cores)
    except ProcessLookupError:      # it has just ended
        pass
    except OSError as error:
        log.warning(f"{child.name} cannot keep to core {child.core}: {error.strerror}", code="G321")


def describe_exit(status: int) -> str:
    """An exit status, as waitpid gives it, in an operator's words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = " (perhaps out of memory)" if number == signal.SIGKILL else ""
        return f"killed by {signal.Signals(number).name}{hint}"
    return f"exited with status {os.WEXITSTATUS(status)}"
