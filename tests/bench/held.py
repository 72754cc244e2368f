"""A Spark cluster of one host for measurements: a master and workers, each held to a part of a core.

A worker and its executor are processes of a control group of their own, whose quota the kernel enforces: `cpu.max` of
version 2, or `cpu.cfs_quota_us` of version 1.  Making the groups takes root.
"""
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ..spark_processes import started

PERIOD_US = 100_000
START_MAX_S = 120


@contextlib.contextmanager
def control_group(name: str) -> Iterator[Path]:
    """A new control group; all its processes are killed at the end.  Raises OSError."""
    root = Path("/sys/fs/cgroup")
    is_v2 = (root / "cgroup.controllers").exists()
    group = (root if is_v2 else root / "cpu") / f"{name}-{os.getpid()}"
    if is_v2:
        (root / "cgroup.subtree_control").write_text("+cpu")
    group.mkdir()
    try:
        yield group
    finally:
        deadline = time.monotonic() + 30
        while pids := (group / "cgroup.procs").read_text().split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes of {group} do not end")
            time.sleep(0.05)
        group.rmdir()


def hold(group: Path, cores: float) -> None:
    """Hold the processes of a control group to so much CPU.  Raises OSError."""
    quota = round(cores * PERIOD_US)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))


def _said(process: subprocess.Popen[bytes], log: Path, pattern: str) -> re.Match[str]:
    """Return the match of a pattern in a process's log, once it is there."""
    deadline = time.monotonic() + START_MAX_S
    while (found := re.search(pattern, log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"a process of Spark does not start: {log.read_text()[-1_000:]}")
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def cluster(folder: Path, workers: int, cores: float) -> Iterator[str]:
    """A cluster of so many workers with a slot each, every one held to `cores`; yields the master's address."""
    with contextlib.ExitStack() as processes:
        log = folder / "master.log"
        process = processes.enter_context(started(log, "master.Master", "--port", "0"))
        master = _said(process, log, r"Starting Spark master at (spark://\S+)")[1]
        begun = []
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            group = processes.enter_context(control_group(f"geminga-worker-{number}"))
            begun.append((group, log, processes.enter_context(started(
                log, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"),
                master, group=group))))
        for group, log, process in begun:
            _said(process, log, "Successfully registered with master")
            hold(group, cores)
        yield master
