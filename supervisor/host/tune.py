"""Settings of the host that bound the broker or make it slow, each with the command that changes it.

Numbers that are wanted come from what the broker does:

    descriptors    an open ledger takes three (storage/ledgers/ledger.py), and ledgers get a quarter of what a process has; a connection one
    mappings       an owner maps the index of each open ledger, a worker both files of 1,024 at most; both are bounded, so is what they need
    memory         some 50 MiB for each process, and what workers may have in flight
    dirty pages    ledgers are written behind the journal, whose syncs wait for the disk together with what the kernel writes back

What matters is what makes the broker fail, lose data, or slow by a multiple; `serve` tells those that it can see once, at its start.
"""
import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from geminga.supervisor import bootstrap
from geminga.supervisor.host import host

_LEDGERS, _PART = 8_192, 12              # that an owner keeps open where it may: each with three of a quarter of its descriptors
_DESCRIPTORS, _DESCRIPTORS_MIN = _LEDGERS * _PART, 4_096
_MAPPINGS = 2 * _LEDGERS                 # its ledgers, and as much again for libraries and the rest
_BACKLOG = 1_024                         # of connections that nobody has accepted yet, see serve.py
_PROCESS_BYTES = 64 << 20
_THREADS = 16                            # of a process: ZeroMQ, uvloop, checkpoints, schemas
_DIRTY_BYTES = 1 << 30
_UNSYNCHRONISED = 0x40                   # STA_UNSYNC of adjtimex(2)
_SLOW_CLOCKS = "hpet", "acpi_pm", "jiffies", "refined-jiffies"
_LOCAL = "ext4", "xfs", "btrfs", "ext3", "f2fs", "zfs", "bcachefs"


class WorkerDemand(Protocol):
    @property
    def in_flight_bytes(self) -> int: ...


class Demand(Protocol):
    """The part of a configuration that asks something of the host."""

    @property
    def data_dir(self) -> Path: ...

    @property
    def workers(self) -> int: ...

    @property
    def owners(self) -> int: ...

    @property
    def worker(self) -> WorkerDemand: ...


class Look(NamedTuple):
    """At one thing."""

    name: str
    found: str
    wanted: str
    is_fine: bool
    matters: bool = False      # when it is not fine
    why: str = ""
    command: str = ""          # that changes it

    @property
    def text(self) -> str:
        return f"{self.name}: found {self.found}, wanted {self.wanted}: {self.why}; {self.command}"


def looks(config: Demand, root: Path = Path("/"), limits: tuple[int, int] | None = None) -> Iterator[Look]:
    """At everything.  root: where /proc and /sys are; limits: of descriptors, soft and hard, if not this process's."""
    yield from _needed(config, root, limits or resource.getrlimit(resource.RLIMIT_NOFILE))
    yield from filter(None, (_scheduler(config, root), _swap(root), _huge_pages(root), _dirty(root), _backlog(root), _clock_source(root),
                             _synchronised(), _interpreter()))


def _needed(config: Demand, root: Path, limits: tuple[int, int]) -> Iterator[Look]:
    """At what makes the broker fail, or lose data."""
    return filter(None, (_descriptors(limits), _mappings(root), _memory(config, root), _processes(config, root),
                         _file_system(config, root), _overcommit(root)))


def at_start(config: Demand) -> list[Look]:
    """Return what `serve` warns of at its start; a service can read only these settings."""
    found = _needed(config, Path("/"), resource.getrlimit(resource.RLIMIT_NOFILE))
    return [look for look in found if look.matters and not look.is_fine]


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


def _at_least(root: Path, what: str, name: str, wanted: int, why: str, *, matters: bool) -> Look | None:
    found = _sysctl(root, name)
    return None if found is None else Look(what, f"{name}={found}", f"{wanted} or more", found >= wanted, matters, why, _set(name, wanted))


def _descriptors(limits: tuple[int, int]) -> Look:
    hard = limits[1] if limits[1] != resource.RLIM_INFINITY else 1 << 30      # the start raises the soft one to it
    why = f"a worker has some {hard * 3 // 4:,} of them for connections, an owner keeps {min(_LEDGERS, hard // _PART):,} ledgers open, " \
          "and opens others again and again"
    return Look("descriptors", f"{hard}", f"{_DESCRIPTORS} or more", hard >= _DESCRIPTORS, hard < _DESCRIPTORS_MIN, why,
                f"systemctl edit geminga: LimitNOFILE={1 << 20}")


def _mappings(root: Path) -> Look | None:
    return _at_least(root, "mappings", "vm.max_map_count", _MAPPINGS, "an owner maps an index for each ledger that is open, and ends "
                     "when it cannot", matters=True)


def _memory(config: Demand, root: Path) -> Look | None:
    needed = (config.workers + config.owners + 2) * _PROCESS_BYTES + config.workers * config.worker.in_flight_bytes
    limit, of = _least(root)
    if not limit:
        return None
    return Look("memory", f"{limit >> 20} MiB ({of})", f"{needed >> 20} MiB or more", limit >= needed, True,
                f"{config.workers} workers and {config.owners} owners take that much as they are configured, before there are clients",
                "systemctl edit geminga: MemoryMax=, or fewer workers and owners")


def _least(root: Path) -> tuple[int, str]:
    """(bytes, whose) of the smallest limit."""
    found = [(host.memory_total(root), "host")]
    found += [(int(text), group.name or "/") for group in host.control_groups(root) for name in ("memory.max", "memory.high")
              for text in host.words(group / name)[:1] if text.isdigit()]
    return min(found)


def _processes(config: Demand, root: Path) -> Look | None:
    needed = (config.workers + config.owners + 2) * _THREADS
    found = [int(text) for group in host.control_groups(root) for text in host.words(group / "pids.max")[:1] if text.isdigit()]
    if not found:
        return None
    return Look("processes", f"pids.max={min(found)}", f"{needed} or more", min(found) >= needed, True, "threads of all processes count",
                "systemctl edit geminga: TasksMax=")


def _existing(path: Path) -> Path:
    path = path.resolve()
    return next(one for one in (path, *path.parents) if one.exists())


def _file_system(config: Demand, root: Path) -> Look | None:
    """Check the data folder's file system: the last mount in mountinfo that has the folder below it."""
    folder, found = _existing(config.data_dir), None
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        head, _, tail = line.partition(" - ")
        point = head.split()[4].encode().decode("unicode_escape")
        if folder.is_relative_to(point) and (found is None or len(point) >= len(found[0])):
            kind, _, text = tail.split(maxsplit=2)
            found = point, kind, text.replace(" ", ",").split(",")
    if found is None:
        return None
    point, kind, options = found
    unsafe = [option for option in options if option in ("nobarrier", "barrier=0")]
    is_local = kind in _LOCAL
    why = "with that option a power cut may take what was answered" if unsafe else \
          "what is kept there goes with the host" if kind in ("tmpfs", "ramfs") else \
          "its syncs, locks or holes are not those of a local disk" if not is_local else ""
    return Look("file system", f"{kind} at {point}{''.join(f', {option}' for option in unsafe)}", "ext4 or xfs, on a disk of this host",
                is_local and not unsafe, bool(unsafe) or kind != "overlay", why, "another data_dir, or mount it otherwise")


def _device(folder: Path, root: Path) -> Path | None:
    """Return the folder in /sys of the disk that a folder is on, None if there is none."""
    number = _existing(folder).stat().st_dev
    path = root / "sys/dev/block" / f"{os.major(number)}:{os.minor(number)}"
    return next((found for found in (path, path.resolve().parent) if (found / "queue").is_dir()), None)


def _scheduler(config: Demand, root: Path) -> Look | None:
    device = _device(config.data_dir, root)
    if device is None:
        return None
    text = host.words(device / "queue/scheduler")
    chosen = next((word.strip("[]") for word in text if word.startswith("[")), "")
    if not chosen:
        return None
    turns = host.words(device / "queue/rotational") == ["1"]
    wanted = ("mq-deadline", "bfq") if turns else ("none", "mq-deadline", "kyber")
    return Look("scheduler of the disk", f"{chosen} of {device.resolve().name}", " or ".join(wanted), chosen in wanted, False,
                "syncs of the journal are many and small, and wait for each other",
                f"echo {wanted[0]} > /sys/block/{device.resolve().name}/queue/scheduler")


def _overcommit(root: Path) -> Look | None:
    found = _sysctl(root, "vm.overcommit_memory")
    return None if found is None else Look("overcommit", f"vm.overcommit_memory={found}", "0 or 1", found != 2, True, "a process that is "
                                           "forked counts as if it wrote to all its pages", _set("vm.overcommit_memory", 0))


def _swap(root: Path) -> Look | None:
    found, swap = _sysctl(root, "vm.swappiness"), host.words(root / "proc/swaps")
    if found is None or len(swap) <= 5:      # no more than its heading
        return None
    return Look("swapping", f"vm.swappiness={found}", "10 or less", found <= 10, False, "a page that was swapped out costs a message "
                "milliseconds", _set("vm.swappiness", 1))


def _huge_pages(root: Path) -> Look | None:
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    chosen = next((word.strip("[]") for word in host.words(root / path) if word.startswith("[")), "")
    return None if not chosen else Look("huge pages", chosen, "madvise or never", chosen != "always", False, "every process grows by what "
                                        "it does not use; large arrays ask for them by themselves", f"echo madvise > /{path}")


def _dirty(root: Path) -> Look | None:
    ratio, size = _sysctl(root, "vm.dirty_background_ratio"), _sysctl(root, "vm.dirty_background_bytes")
    if ratio is None:
        return None
    found = size or host.memory_total(root) * ratio // 100
    return Look("dirty pages", f"written back from {found >> 20} MiB on", f"{_DIRTY_BYTES >> 20} MiB or less", found <= _DIRTY_BYTES, False,
                "what is written back at once makes syncs of the journal wait", _set("vm.dirty_background_bytes", _DIRTY_BYTES // 4))


def _backlog(root: Path) -> Look | None:
    return _at_least(root, "connections that wait", "net.core.somaxconn", _BACKLOG, "clients that come back all at once are refused beyond "
                     "that, and try again a second later", matters=False)


def _clock_source(root: Path) -> Look | None:
    found = host.words(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    return None if not found else Look("clock source", found[0], "tsc, or the hypervisor's", found[0] not in _SLOW_CLOCKS, True,
                                       "the time is asked for in every pass, and costs a microsecond or more each",
                                       "find out why the kernel rejects tsc: journalctl -k | grep -i clocksource")


def _synchronised(adjtimex: Callable | None = None) -> Look | None:
    buffer = ctypes.create_string_buffer(512)      # of a struct timex; modes = 0: it is only read
    if (adjtimex or ctypes.CDLL(None).adjtimex)(buffer) < 0:
        return None
    is_off = bool(int.from_bytes(buffer.raw[40:44], "little") & _UNSYNCHRONISED)
    return Look("clock", "not synchronised" if is_off else "synchronised", "synchronised", not is_off, False,
                "delays, times to live, tokens and certificates go by it", "apt-get install chrony")


def _interpreter() -> Look:
    is_fine = bootstrap.is_optimised()
    return Look("interpreter", f"built with{'' if is_fine else 'out'} optimisation", "one that is built with it", is_fine, True,
                "it takes 1.5 to 2 times the CPU", "use the distribution's python3")
