"""A fresh machine in a folder: Debian with systemd as its first process, and a power plug.

    own_machine()              # this process has mounts, network and control groups of its own, which end with it
    with Box(folder, [pristine(cache, "bookworm")]) as box:
        box.boot()
        box.run("systemctl", "start", "geminga")   # a command inside, as root
        box.pull_plug()                            # all processes inside die at once
        box.boot()
        box.power_off()

A box is an overlay: its changes lie in its own folder, and the Debian below is laid down once.  Its network is that of
this process, so that clients in here, and nobody else, find its ports at 127.0.0.1.  Downloads go through a proxy
(relay.py).  A box needs root, debootstrap and systemd-nspawn.

Files that were written before the plug was pulled are there afterwards, synced or not, as the host's kernel keeps its
cache.  tests/crash/power.py shows that answered changes have been synced.
"""

import ctypes
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from ..harness import eventually
from . import relay

TOOLS = "debootstrap", "systemd-nspawn", "nsenter"
TRUSTED = Path("/usr/local/share/ca-certificates")
UP_SECONDS = 90
OFF_SECONDS = 40
_CLONE_NEWNS, _CLONE_NEWCGROUP, _CLONE_NEWNET = 0x20000, 0x2000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8",
                f"http_proxy={relay.URL}", f"https_proxy={relay.URL}", "no_proxy=127.0.0.1,localhost"]
_libc = ctypes.CDLL(None, use_errno=True)


class NoBox(Exception):
    """A box cannot be made here, or did not come up."""


def what_is_missing() -> str:
    """Return what keeps boxes from being made here; empty: nothing."""
    if os.geteuid():
        return "root"
    return ", ".join(tool for tool in TOOLS if shutil.which(tool) is None)


def own_machine() -> None:
    """Give this process mounts, a network and control groups of its own; to be called before it has threads."""
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    if _libc.unshare(_CLONE_NEWNS | _CLONE_NEWCGROUP | _CLONE_NEWNET):
        raise NoBox(f"no machine of its own: {os.strerror(ctypes.get_errno())}")
    _call("mount", "--make-rprivate", "/")
    # mounted control groups of a mixed machine would be taken for version 1
    _call("umount", "--recursive", str(_CONTROL_GROUPS))
    _call("mount", "-t", "cgroup2", "none", str(_CONTROL_GROUPS))
    _call("ip", "link", "set", "lo", "up")
    relay.start(network)


def pristine(cache: Path, suite: str) -> Path:
    """Return a minimal Debian with systemd, never booted; it is laid down when the cache has none."""
    folder = cache / f"pristine-{suite}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        begun = cache / f"pristine-{suite}.part"
        if begun.exists():
            # nothing is mounted there: debootstrap's mounts ended with its process's namespace
            shutil.rmtree(begun)
        _call("env", *_ENVIRONMENT, "unshare", "--mount", "debootstrap", "--variant=minbase",
              "--include=systemd,systemd-sysv,dbus", suite,
              str(begun))
        # Debian's installer writes this, and debootstrap does not.
        (begun / "etc/hosts").write_text(
            f"127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\t{(begun / 'etc/hostname').read_text()}"
        )
        # The box trusts this machine's authorities, and leaves looking up names to the proxy.
        if TRUSTED.is_dir():
            shutil.copytree(TRUSTED, begun / TRUSTED.relative_to("/"), dirs_exist_ok=True)
        begun.rename(folder)
    return folder


def _call(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise NoBox(f"`{' '.join(command)}` ended with status {done.returncode}: {done.stdout[-2000:]}")


class Box:
    """One machine in a folder."""

    def __init__(self, folder: Path, layers: list[Path]):
        """layers: folders with the files of the unused machine, the upper ones first."""
        self.folder = folder
        self.root = folder / "root"
        self.upper = folder / "upper"
        for part in (self.root, self.upper, folder / "work"):
            part.mkdir(parents=True)
        _call("mount", "-t", "overlay", "overlay", str(self.root), "-o",
              f"lowerdir={':'.join(map(str, layers))},upperdir={self.upper},workdir={folder / 'work'}")
        self.layers = [self.upper, *layers]
        self._control_group = _CONTROL_GROUPS / f"box-{os.getpid()}-{folder.name}"
        self._process: subprocess.Popen | None = None
        self.init = 0              # process id of its first process, as seen from here

    def __enter__(self) -> "Box":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Switch the box off, and remove its mounts; its files stay in the folder."""
        if self._process is not None:
            self.pull_plug()
        if self.root.is_mount():
            _call("umount", str(self.root))

    # -- power

    def start(self) -> None:
        """Switch the power on."""
        def settle() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            (self._control_group / "cgroup.procs").write_text(str(os.getpid()))

        assert self._process is None, "it has power"
        self._control_group.mkdir(exist_ok=True)
        with (self.folder / "console").open("ab") as console:
            self._process = subprocess.Popen(
                ["systemd-nspawn", "--quiet", f"--directory={self.root}", "--register=no", "--keep-unit",
                 "--resolv-conf=off",
                 # for services with a network of their own
                 "--timezone=off", "--link-journal=no", "--capability=CAP_NET_ADMIN",
                 "--boot"],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, preexec_fn=settle)
        self.init = eventually(self._first_process, UP_SECONDS, "the box's first process")

    def _first_process(self) -> int:
        if self._process.poll() is not None:
            raise NoBox(f"systemd-nspawn ended with status {self._process.returncode}: {self.console()[-2000:]}")
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in map(int, children):
            if comm(child) == "systemd":
                return child
        return 0

    def boot(self) -> None:
        """Start the box, and wait until all services have been started, or have failed."""
        self.start()
        eventually(self._is_up, UP_SECONDS, f"a box that is up; {self.console()[-2000:]}")

    def _is_up(self) -> bool:
        return self.run("systemctl", "is-system-running", "--wait", is_checked=False).stdout.strip() in (
            "running",
            "degraded",
        )

    def pull_plug(self) -> None:
        """Kill every process inside at once, without notice."""
        with suppress(ProcessLookupError):
            # the first process may not have been started yet
            os.kill(self.init or self._process.pid, signal.SIGKILL)
        self._ended()

    def power_off(self) -> None:
        """Shut the box down, as its administrator does."""
        self.run("systemctl", "poweroff", is_checked=False)
        self._ended()

    def _ended(self) -> None:
        self._process.wait(OFF_SECONDS)
        self._process, self.init = None, 0
        for group, _, _ in os.walk(self._control_group, topdown=False):
            # asked in this round only
            eventually(lambda: _is_removed(Path(group)), OFF_SECONDS, f"an empty {group}")     # noqa: B023

    # -- what runs in it

    def run(self, *command: str, is_checked: bool = True, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as root, in the folder /; its output is text.

        Raises AssertionError if is_checked and the command fails.
        """
        done = subprocess.run([*self.inside(), *command], capture_output=True, text=True, timeout=seconds)
        if is_checked and done.returncode:
            raise AssertionError(f"`{' '.join(command)}` in the box ended with status "
                                 f"{done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def inside(self) -> list[str]:
        """Return the words that run what follows them inside, as root, in the folder /."""
        return ["nsenter", f"--target={self.init}", "--mount", "--uts", "--ipc", "--pid", "--net", "--root", "--wd",
                "--", "env", "-i", *_ENVIRONMENT]

    def say(self, *command: str, **how) -> str:
        """Return what a command inside prints."""
        return self.run(*command, **how).stdout.strip()

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.say("systemctl", "show", "--value", f"--property={name}", unit)

    def processes(self) -> list[int]:
        """Return the ids of all processes inside, as seen from here."""
        return [int(pid) for group in self._control_group.rglob("cgroup.procs") for pid in group.read_text().split()
                if int(pid)]

    def path(self, inside: str) -> Path:
        """Return the path of a file of the box, as seen from here."""
        return self.root / inside.lstrip("/")

    def console(self) -> str:
        return (self.folder / "console").read_text(errors="replace")


def comm(pid: int) -> str:
    """Return the kernel's name of a process; empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _is_removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
    return not group.exists()
