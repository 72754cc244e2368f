"""What the host, or the control groups that this process is in, give it.

    root    where /proc and /sys are to be looked for: tests have their own
"""
from pathlib import Path
from typing import NamedTuple

# Of a control group's memory.stat: what the kernel cannot take back by writing it to its file, or by dropping it.
_HELD = "anon", "shmem", "sock", "kernel_stack", "pagetables", "slab_unreclaimable"


class Memory(NamedTuple):
    """What is used of what there is; of several limits that which is nearest."""

    used: int
    limit: int
    of: str          # "host", or the control group with the limit

    @property
    def part(self) -> float:
        return self.used / self.limit if self.limit else 0.0


def control_groups(root: Path = Path("/")) -> list[Path]:
    """Folders of those that this process is in, the innermost first (version 2)."""
    groups = root / "sys/fs/cgroup"
    own = next((line[3:] for line in words(root / "proc/self/cgroup") if line.startswith("0::")), "/")
    own_group = groups / own.strip("/")
    return [level for level in (own_group, *own_group.parents) if level.is_relative_to(groups)]


def memory(root: Path = Path("/")) -> Memory:
    """Pages of files are no use of it: the kernel takes them back when it needs them."""
    found = [_of_host(root)]
    for level in control_groups(root):
        limits = [int(text) for name in ("memory.max", "memory.high") for text in words(level / name)[:1] if text.isdigit()]
        if limits:
            stat = _table(level / "memory.stat")
            found.append(Memory(sum(stat.get(name, 0) for name in _HELD), min(limits), level.name or "/"))
    return max(found, key=lambda one: one.part)


def memory_total(root: Path = Path("/")) -> int:
    return _of_host(root).limit


def _of_host(root: Path) -> Memory:
    table = {name.rstrip(":"): value << 10 for name, value in _table(root / "proc/meminfo").items()}
    total = table.get("MemTotal", 0)
    return Memory(total - table.get("MemAvailable", total), total, "host")


_EXITING, _KILLED = 0x4, 1 << 8      # of /proc/PID/stat: flags of a process that ends; its pending signals when it was sent SIGKILL


def is_ending(pid: int, root: Path = Path("/")) -> bool:
    """Whether the process is gone, ends, or has been killed, although nobody has been told yet."""
    try:
        fields = (root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & _EXITING) or bool(int(fields[28]) & _KILLED)


def _table(path: Path) -> dict[str, int]:
    """Of lines with a name and a number."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
