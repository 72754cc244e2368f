"""Scheduling of a job that takes cores only while nobody else wants them.

A niceness bounds a job's share of the cores, but a process that wakes may still wait some milliseconds until the kernel
takes the core from the job.  Under the policy SCHED_IDLE (sched(7)) every other process gets the core at once.  Its
share is next to nothing, however: on a host whose cores are always wanted, a job would never end.

    idle ──a second in which its threads wanted a core, and hardly got one──> by its niceness
         <──────────────────────────after four seconds───────────────────────

The policy counts among the processes of one service only, and a core with the job is never without work, so that the
kernel brings no waiting process of others there from a busy core.  While others use cores, one core is left to them.

A process of its own watches the job, because a thread of the job would wait for the interpreter's lock, which a starved
thread may hold.
"""
import atexit
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_LOOK_SECONDS, _LIFTED_SECONDS = 1.0, 4.0
_STARVED = 0.1               # of a core: a job that wants one and gets less is starved
_OTHERS = 0.1                # of a core: others that use more are left one


def use_idle_cores() -> None:
    """Let this process, and those that it starts, have cores only while nobody else wants them, from now on.

    Where this process may not go back to its niceness (RLIMIT_NICE), nothing changes.
    """
    most = resource.getrlimit(resource.RLIMIT_NICE)[0]      # 20 - the lowest niceness that it may take
    if os.geteuid() and most != resource.RLIM_INFINITY and most < 20 - os.nice(0):
        return
    with contextlib.suppress(OSError):      # without it the niceness alone holds
        watcher = subprocess.Popen([sys.executable, "-P", "-m", __name__, str(os.getpid())], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(watcher.kill)


def watch(pid: int) -> None:
    """Schedule a process and those below it, except this one, until it ends."""
    job, cores = psutil.Process(pid), sorted(os.sched_getaffinity(0))
    but_one = cores[:-1] or cores
    policy, mine, lifted_until = os.SCHED_IDLE, but_one, 0.0
    while os.getppid() == pid:
        threads = list(_threads(job))
        _schedule(threads, policy, mine)
        before, busy, began = _seconds(threads), _busy_seconds(), time.monotonic()
        time.sleep(_LOOK_SECONDS)
        passed, threads = time.monotonic() - began, list(_threads(job))
        used = sum(seconds - before.get(thread, 0.0) for thread, seconds in _seconds(threads).items())
        mine = but_one if _busy_seconds() - busy - used > _OTHERS * passed else cores
        if policy == os.SCHED_IDLE and used < _STARVED * passed and any(map(_wants_core, threads)):
            policy, lifted_until = os.SCHED_OTHER, time.monotonic() + _LIFTED_SECONDS
        elif time.monotonic() >= lifted_until:
            policy = os.SCHED_IDLE


def _busy_seconds() -> float:
    """Return how long all cores of the host have been busy since its start, for whomever."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _threads(job: psutil.Process) -> Iterator[Path]:
    """Yield the folder in /proc of each thread of a job's processes."""
    with contextlib.suppress(psutil.Error):
        for process in (job, *job.children(recursive=True)):
            with contextlib.suppress(OSError):
                if process.pid != os.getpid():
                    yield from Path(f"/proc/{process.pid}/task").iterdir()


def _schedule(threads: Iterable[Path], policy: int, cores: list[int]) -> None:
    for thread in threads:
        with contextlib.suppress(OSError):      # it has just ended
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
            os.sched_setaffinity(int(thread.name), cores)


def _seconds(threads: Iterable[Path]) -> dict[Path, float]:
    """Return how long each thread has run."""
    seconds = {}
    for thread in threads:
        with contextlib.suppress(OSError, ValueError, IndexError):
            seconds[thread] = int((thread / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def _wants_core(thread: Path) -> bool:
    with contextlib.suppress(OSError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    return False


if __name__ == "__main__":
    watch(int(sys.argv[1]))
