"""Settings of the host that bound the broker or make it slow, each with the command that changes it.

The wanted numbers follow from the broker's needs:

    descriptors    an open ledger takes three (storage/ledgers/ledger.py), and ledgers get a quarter of a process's
                   descriptors; a connection takes one
    mappings       an owner maps the index of each open ledger; a worker maps both files of at most 1,024 ledgers
    memory         some 50 MiB for each process, and the entries that workers may have in flight
    dirty pages    a sync of the journal waits for the disk together with pages of ledgers that the kernel writes back

A check matters if its setting makes the broker fail, lose data, or slow by a multiple.  `serve` warns of such settings
at its start, as far as a service can read them.
"""
import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from geminga.supervisor import bootstrap
from geminga.supervisor.host import host

_LEDGERS, _PART = 8_192, 4               # ledgers that an owner keeps open; each takes three quarters of so many
_MAPPED, _MAPPED_PART = 16_384, 8        # ledgers that a worker maps; each takes a quarter of so many descriptors
_DESCRIPTORS, _DESCRIPTORS_MIN = _MAPPED * _MAPPED_PART, 4_096
_MAPPINGS = 2 * _MAPPED + _LEDGERS       # two for each ledger that a worker maps, and some for libraries
_BACKLOG = 1_024                         # connections that are not accepted yet, as listening.py asks for
_PROCESS_BYTES = 64 << 20
_THREADS = 16                            # threads in a process: ZeroMQ, uvloop, checkpoints, schemas
_DIRTY_BYTES = 1 << 30
_UNSYNCHRONISED = 0x40                   # STA_UNSYNC of adjtimex(2)
_SLOW_CLOCKS = "hpet", "acpi_pm", "jiffies", "refined-jiffies"
_LOCAL = "ext4", "xfs", "btrfs", "ext3", "f2fs", "zfs", "bcachefs"


class WorkerDemand(Protocol):
    @property
    def in_flight_bytes(self) -> int: ...


class Demand(Protocol):
    """The part of a configuration from which the broker's needs of the host follow."""

    @property
    def data_dir(self) -> Path: ...

    @property
    def workers(self) -> int: ...

    @property
    def owners(self) -> int: ...

    @property
    def worker(self) -> WorkerDemand: ...


class HostCheck(NamedTuple):
    """Result of a check of one host setting: the value found, the value wanted, and the command that changes it."""

    name: str
    found: str
    wanted: str
    is_fine: bool
    matters: bool = False      # whether the broker fails, loses data or is slow by a multiple if it is not fine
    why: str = ""              # what another value costs
    command: str = ""          # that changes the setting

    @property
    def text(self) -> str:
        return f"{self.name}: found {self.found}, wanted {self.wanted}: {self.why}; {self.command}"


def checks(config: Demand, root: Path = Path("/"), limits: tuple[int, int] | None = None) -> Iterator[HostCheck]:
    """Check all settings of the host.

    root: the folder with /proc and /sys.  limits: soft and hard limit of descriptors, None for those of this process.
    """
    yield from _needed(config, root, limits or resource.getrlimit(resource.RLIMIT_NOFILE))
    yield from filter(None, (_scheduler(config, root), _swap(root), _huge_pages(root), _dirty(root), _backlog(root),
                             _clock_source(root), _synchronised(), _interpreter()))


def _needed(config: Demand, root: Path, limits: tuple[int, int]) -> Iterator[HostCheck]:
    """Check the host's settings that may make the broker fail or lose data."""
    return filter(None, (_descriptors(limits), _mappings(root), _memory(config, root), _processes(config, root),
                         _file_system(config, root), _overcommit(root)))


def at_start(config: Demand) -> list[HostCheck]:
    """Return the failed checks of the host that `serve` warns of at its start.

    Only checks that matter are returned, and whose settings a service can read.
    """
    needed = _needed(config, Path("/"), resource.getrlimit(resource.RLIMIT_NOFILE))
    return [check for check in needed if check.matters and not check.is_fine]


def _limit(text: str) -> int:
    return 1 << 30 if text == "unlimited" else int(text)


def limits_of(pid: int, root: Path = Path("/")) -> tuple[int, int]:
    """Return the soft and hard limit of a process's descriptors.  Raises OSError."""
    for line in (root / "proc" / str(pid) / "limits").read_text().splitlines():
        if line.startswith("Max open files"):
            soft, hard = line.split()[3:5]
            return _limit(soft), _limit(hard)
    raise OSError("it has no limits of open files")


def _sysctl(root: Path, name: str) -> int | None:
    text = host.words(root / "proc/sys" / name.replace(".", "/"))
    return int(text[0]) if text and text[0].lstrip("-").isdigit() else None


def _set(name: str, value: int) -> str:
    return f"echo {name}={value} > /etc/sysctl.d/60-geminga.conf && sysctl --system"


def _at_least(root: Path, what: str, name: str, wanted: int, why: str, *, matters: bool) -> HostCheck | None:
    """Check that a sysctl has at least a wanted number; None if the host has no such sysctl."""
    current = _sysctl(root, name)
    if current is None:
        return None
    return HostCheck(what, f"{name}={current}", f"{wanted} or more", current >= wanted, matters, why,
                     _set(name, wanted))


def _descriptors(limits: tuple[int, int]) -> HostCheck:
    hard = limits[1] if limits[1] != resource.RLIM_INFINITY else 1 << 30      # the broker raises its soft limit to it
    why = f"a worker has some {hard * 3 // 4:,} of them for connections, " \
          f"maps {min(_MAPPED, hard // _MAPPED_PART):,} ledgers, and an owner keeps " \
          f"{min(_LEDGERS, hard // _PART):,} ledgers open; they open others again and again"
    return HostCheck("descriptors", f"{hard}", f"{_DESCRIPTORS} or more", hard >= _DESCRIPTORS,
                     hard < _DESCRIPTORS_MIN, why, f"systemctl edit geminga: LimitNOFILE={1 << 20}")


def _mappings(root: Path) -> HostCheck | None:
    return _at_least(root, "mappings", "vm.max_map_count", _MAPPINGS,
                     "an owner maps an index for each open ledger, and ends when it cannot", matters=True)


def _memory(config: Demand, root: Path) -> HostCheck | None:
    needed = (config.workers + config.owners + 2) * _PROCESS_BYTES + config.workers * config.worker.in_flight_bytes
    limit, of = _least_memory(root)
    if not limit:
        return None
    return HostCheck("memory", f"{limit >> 20} MiB ({of})", f"{needed >> 20} MiB or more", limit >= needed, True,
                     f"{config.workers} workers and {config.owners} owners need that much before there are clients",
                     "systemctl edit geminga: MemoryMax=, or fewer workers and owners")


def _least_memory(root: Path) -> tuple[int, str]:
    """Return the smallest memory limit as (bytes, "host" or the control group)."""
    limits = [(host.memory_total(root), "host")]
    limits += [(limit, group.name or "/") for limit, group in host.memory_limits(root)]
    return min(limits)


def _processes(config: Demand, root: Path) -> HostCheck | None:
    needed = (config.workers + config.owners + 2) * _THREADS
    limits = [int(text) for group in host.control_groups(root)
              for text in host.words(group / "pids.max")[:1] if text.isdigit()]
    if not limits:
        return None
    return HostCheck("processes", f"pids.max={min(limits)}", f"{needed} or more", min(limits) >= needed, True,
                     "threads of all processes count", "systemctl edit geminga: TasksMax=")


def _existing(path: Path) -> Path:
    """Return the path, or its innermost parent folder that exists."""
    path = path.resolve()
    return next(one for one in (path, *path.parents) if one.exists())


def _file_system(config: Demand, root: Path) -> HostCheck | None:
    """Check the file system of the data folder, which is that of the innermost mount above the folder."""
    folder, mount = _existing(config.data_dir), None
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        head, _, tail = line.partition(" - ")
        point = head.split()[4].encode().decode("unicode_escape")
        if folder.is_relative_to(point) and (mount is None or len(point) >= len(mount[0])):
            kind, _, text = tail.split(maxsplit=2)
            mount = point, kind, text.replace(" ", ",").split(",")
    if mount is None:
        return None
    point, kind, options = mount
    unsafe = [option for option in options if option in ("nobarrier", "barrier=0")]
    is_local = kind in _LOCAL
    why = "with that option a power cut may lose messages that were answered" if unsafe else \
          "its files are lost when the host restarts" if kind in ("tmpfs", "ramfs") else \
          "its syncs, locks or holes are not those of a local disk" if not is_local else ""
    return HostCheck("file system", f"{kind} at {point}{''.join(f', {option}' for option in unsafe)}",
                     "ext4 or xfs, on a disk of this host", is_local and not unsafe,
                     bool(unsafe) or kind != "overlay", why, "another data_dir, or mount it otherwise")


def _device(folder: Path, root: Path) -> Path | None:
    """Return the folder in /sys of the disk that holds a folder, None if there is none."""
    number = _existing(folder).stat().st_dev
    path = root / "sys/dev/block" / f"{os.major(number)}:{os.minor(number)}"
    return next((device for device in (path, path.resolve().parent) if (device / "queue").is_dir()), None)


def _scheduler(config: Demand, root: Path) -> HostCheck | None:
    device = _device(config.data_dir, root)
    if device is None:
        return None
    text = host.words(device / "queue/scheduler")
    chosen = next((word.strip("[]") for word in text if word.startswith("[")), "")
    if not chosen:
        return None
    turns = host.words(device / "queue/rotational") == ["1"]
    wanted = ("mq-deadline", "bfq") if turns else ("none", "mq-deadline", "kyber")
    return HostCheck("scheduler of the disk", f"{chosen} of {device.resolve().name}", " or ".join(wanted),
                     chosen in wanted, False, "syncs of the journal are many and small, and wait for each other",
                     f"echo {wanted[0]} > /sys/block/{device.resolve().name}/queue/scheduler")


def _overcommit(root: Path) -> HostCheck | None:
    mode = _sysctl(root, "vm.overcommit_memory")
    if mode is None:
        return None
    return HostCheck("overcommit", f"vm.overcommit_memory={mode}", "0 or 1", mode != 2, True,
                     "a forked process counts as if it wrote to all its pages", _set("vm.overcommit_memory", 0))


def _swap(root: Path) -> HostCheck | None:
    swappiness, swap = _sysctl(root, "vm.swappiness"), host.words(root / "proc/swaps")
    if swappiness is None or len(swap) <= 5:      # only the heading: the host has no swap
        return None
    return HostCheck("swapping", f"vm.swappiness={swappiness}", "10 or less", swappiness <= 10, False,
                     "a page that was swapped out costs a message milliseconds", _set("vm.swappiness", 1))


def _huge_pages(root: Path) -> HostCheck | None:
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    chosen = next((word.strip("[]") for word in host.words(root / path) if word.startswith("[")), "")
    if not chosen:
        return None
    return HostCheck("huge pages", chosen, "madvise or never", chosen != "always", False,
                     "every process grows by memory that it does not use; large arrays ask for huge pages anyway",
                     f"echo madvise > /{path}")


def _dirty(root: Path) -> HostCheck | None:
    ratio, size = _sysctl(root, "vm.dirty_background_ratio"), _sysctl(root, "vm.dirty_background_bytes")
    if ratio is None:
        return None
    threshold = size or host.memory_total(root) * ratio // 100
    return HostCheck("dirty pages", f"written back from {threshold >> 20} MiB on", f"{_DIRTY_BYTES >> 20} MiB or less",
                     threshold <= _DIRTY_BYTES, False, "many pages written back at once make syncs of the journal wait",
                     _set("vm.dirty_background_bytes", _DIRTY_BYTES // 4))


def _backlog(root: Path) -> HostCheck | None:
    return _at_least(root, "connections that wait", "net.core.somaxconn", _BACKLOG,
                     "if more clients reconnect at once, some are refused, and try again a second later", matters=False)


def _clock_source(root: Path) -> HostCheck | None:
    sources = host.words(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if not sources:
        return None
    return HostCheck("clock source", sources[0], "tsc, or the hypervisor's", sources[0] not in _SLOW_CLOCKS, True,
                     "every pass reads the clock, which costs a microsecond or more each time",
                     "find out why the kernel rejects tsc: journalctl -k | grep -i clocksource")


def _synchronised(adjtimex: Callable[[Any], int] | None = None) -> HostCheck | None:
    buffer = ctypes.create_string_buffer(512)      # a struct timex with modes = 0, which only reads the clock's state
    if (adjtimex or ctypes.CDLL(None).adjtimex)(buffer) < 0:
        return None
    is_off = bool(int.from_bytes(buffer.raw[40:44], "little") & _UNSYNCHRONISED)
    return HostCheck("clock", "not synchronised" if is_off else "synchronised", "synchronised", not is_off, False,
                     "delays, times to live, tokens and certificates depend on it", "apt-get install chrony")


def _interpreter() -> HostCheck:
    is_fine = bootstrap.is_optimised()
    return HostCheck("interpreter", f"built with{'' if is_fine else 'out'} optimisation", "one that is built with it",
                     is_fine, True, "it takes 1.5 to 2 times the CPU", "use the distribution's python3")
