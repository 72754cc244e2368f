"""Memory, cores and limits of the host, or of the control groups of this process.

The argument `root` of functions is the folder that holds /proc and /sys; tests pass their own.
"""
import os
from pathlib import Path
from typing import NamedTuple

# Fields of a control group's memory.stat: memory that the kernel cannot take back by dropping pages or writing them
# out.
_HELD = "anon", "shmem", "sock", "kernel_stack", "pagetables", "slab_unreclaimable"
_HELD_1 = "total_rss", "total_shmem"      # of version 1, where "total" includes the groups below


class Memory(NamedTuple):
    """Memory in use and its limit, in bytes, of the host or of one control group."""

    used: int
    limit: int
    of: str          # "host", or the control group with the limit

    @property
    def part(self) -> float:
        return self.used / self.limit if self.limit else 0.0


def control_groups(root: Path = Path("/"), controller: str = "") -> list[Path]:
    """Return the folders of this process's control groups, the innermost first.

    controller: of version 1; "" for version 2.  A container of version 1 has its own group as the outermost one.
    """
    groups = root / "sys/fs/cgroup" / controller
    lines = [line.split(":", 2) for line in words(root / "proc/self/cgroup")]
    own = next((line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")), "/")
    own_group = groups / own.strip("/")
    return [level for level in (own_group, *own_group.parents) if level.is_relative_to(groups)]


def memory_limits(root: Path = Path("/")) -> list[tuple[int, Path]]:
    """Return (bytes, control group) of each bound on this process's memory, of both versions of control groups."""
    files = [(level, name) for level in control_groups(root) for name in ("memory.max", "memory.high")]
    files += [(level, "memory.limit_in_bytes") for level in control_groups(root, "memory")]
    return [(int(text), level) for level, name in files for text in words(level / name)[:1] if text.isdigit()]


def memory(root: Path = Path("/")) -> Memory:
    """Return memory in use and its limit, of the host or the control group that is nearest to its limit.

    Cached pages of files do not count as used.
    """
    uses = [_of_host(root)]
    for limit, level in memory_limits(root):
        stat = _table(level / "memory.stat")
        held = _HELD_1 if _HELD_1[0] in stat else _HELD
        uses.append(Memory(sum(stat.get(name, 0) for name in held), limit, level.name or "/"))
    return max(uses, key=lambda use: use.part)


def memory_total(root: Path = Path("/")) -> int:
    """Return the host's memory in bytes."""
    return _of_host(root).limit


def _of_host(root: Path) -> Memory:
    table = {name.rstrip(":"): value << 10 for name, value in _table(root / "proc/meminfo").items()}
    total = table.get("MemTotal", 0)
    return Memory(total - table.get("MemAvailable", total), total, "host")


def core_count(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least 1.

    The number of cores in the process's affinity is bounded by the CPU quotas of its control groups.
    """
    # A quota of one and a half cores is worth two processes.
    limits = [-(-quota // period) for quota, period in _quotas(root)]
    return max(1, min([len(os.sched_getaffinity(0)), *limits]))


def _quotas(root: Path) -> list[tuple[int, int]]:
    """Return the CPU quotas of this process's control groups, as (quota, period) in µs.

    Groups without a limit are left out.
    """
    groups = root / "sys/fs/cgroup"
    limits = [words(level / "cpu.max") for level in control_groups(root)]
    # Control groups of version 1, where -1 is no limit.
    limits.append(words(groups / "cpu/cpu.cfs_quota_us") + words(groups / "cpu/cpu.cfs_period_us"))
    return [(int(limit[0]), int(limit[1])) for limit in limits if len(limit) == 2 and limit[0].isdigit()]


_EXITING, _KILLED = 0x4, 1 << 8      # in /proc/PID/stat: the flag of an ending process; pending SIGKILL


def is_ending(pid: int, root: Path = Path("/")) -> bool:
    """Whether a process has ended, is ending or was killed, even before its parent is notified."""
    try:
        fields = (root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & _EXITING) or bool(int(fields[28]) & _KILLED)


def _table(path: Path) -> dict[str, int]:
    """Read a file with a name and a number on each line; {} if the file cannot be read."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def words(path: Path) -> list[str]:
    """Return the words of a file; [] if the file cannot be read."""
    try:
        return path.read_text().split()
    except OSError:
        return []
