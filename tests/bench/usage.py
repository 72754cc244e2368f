"""CPU time and memory of a process and all processes below it, as the kernel counts them."""

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


def memory_bytes(pid: int, which: str) -> int:
    """Return memory of the process and all below it; which: "pss" shares out common pages, "uss" has private ones only.
    """
    try:
        return sum(getattr(process.memory_full_info(), which) for process in _tree(pid))
    except psutil.AccessDenied:
        raise BrokerError(f"may not read the memory of process {pid}: run as its user") from None
