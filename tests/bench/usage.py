"""CPU time and memory of a process and all processes below it, as the kernel counts them."""

import contextlib
from pathlib import Path

import psutil

from geminga.supervisor.load.link import BrokerError


def _tree(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        raise BrokerError(f"there is no process {pid}") from None


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and all below it have used, in seconds.  Raises BrokerError."""
    times = [process.cpu_times() for process in _tree(pid)]
    return sum(each.user + each.system for each in times)


def thread_seconds(pid: int) -> float:
    """Return the seconds that threads of a process and of all below it have run, to the nanosecond; see cpu_seconds."""
    total = 0
    for process in _tree(pid):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):      # it has just ended
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def memory_bytes(pid: int, which: str) -> int:
    """Return memory of the process and all below it; which: "pss" shares out common pages, "uss" has private ones only.
    """
    try:
        return sum(getattr(process.memory_full_info(), which) for process in _tree(pid))
    except psutil.AccessDenied:
        raise BrokerError(f"may not read the memory of process {pid}: run as its user") from None
