"""Grounds that the broker stands on: file systems in loop mounts, interpreters, limits, ways to be started."""

import contextlib
import fcntl
import itertools
import logging
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pulsar

from geminga.supervisor.load import wire

from .. import interpreters
from ..crash import forgetful, power
from ..harness import COMMAND, Broker, eventually, request
from . import registries
from .running import Ground
from .subject import Answers, NotRun, Subject

NAME = "ground"
ABOUT = ("A broker with its data folder on a file system of its own, with another interpreter, with little of "
         "something, or started in an unusual way: it publishes, consumes, is killed, loses power, gives "
         "back space, meets a full disk, is backed up and verified.")
CHECKOUT = Path(__file__).resolve().parents[2]

MIB = 1 << 20
GOING_DOWN, WITHOUT_FLUSH = 0x8004587D, 2      # FS_IOC_SHUTDOWN of linux/fs.h, and its flag
# Takes memory in a control group until its processes have so many bytes, or the kernel chooses this one to kill.
HOG = """
import pathlib, os, sys, time
group, most = pathlib.Path(sys.argv[1]), int(sys.argv[2])
pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
(group / "cgroup.procs").write_text(str(os.getpid()))
held = []
def used():
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    names = ("total_rss", "total_shmem") if "total_rss" in stat else ("anon", "shmem")
    return sum(int(stat.get(name, 0)) for name in names)
while used() < most:
    held.append(bytearray(b"x" * (4 << 20)))
print("full", flush=True)
sys.stdin.read()
"""
RECEIVE_MS = 30_000
PAYLOAD = 20_000
BLOCK = 4096
COMMAND_SECONDS = 180
QUIET = logging.getLogger("lab.pulsar")      # errors are answers here
QUIET.setLevel(logging.CRITICAL)
GEMINGA = [str(Path(sys.executable).with_name("geminga"))]
CUTS = 8
MANY_CORES = 16
LITTLE_MIB = 700
CONNECTIONS = 800

PROCESSES, MEMORY, FILES = "processes", "memory runs out", "more connections than files"
EVERYWHERE = {
    "publish and consume": "1000 in order",
    "killed and started again": "500 of 500 again, 500 acknowledged ones never",
    "backup": "made, and verified: 0",
    "verified": "0",
}
ON_DISKS = EVERYWHERE | {
    "space comes back": "less than a fifth of 40 MB",
    "full disk": "refused, then 20 more after it was freed, nothing lost",
}
CUT = {"power cuts": f"{CUTS}, nothing lost, nothing back"}


@dataclass(frozen=True)
class Place:
    """A file system: the commands that make it in `image` and mount it on `folder`; "" where the kernel makes it.

    repaired: the command of a start after a power cut, as the host's own start has it.  can_be_cut: whether the kernel
    can drop what it has not written.
    """

    made: str
    mounted: str
    mib: int = 400
    can_be_cut: bool = False
    repaired: str = ""


LOOP = "mount -o loop {image} {folder}"
CHECKED = "e2fsck -y {image}"
PLACES = {
    "ext4": Place("mkfs.ext4 -q -F -m 0 {image}", LOOP, can_be_cut=True),
    "ext4 with blocks of 1 KiB": Place("mkfs.ext4 -q -F -m 0 -b 1024 {image}", LOOP, can_be_cut=True),
    "ext4 without a journal": Place("mkfs.ext4 -q -F -m 0 -O ^has_journal {image}", LOOP, can_be_cut=True,
                                    repaired=CHECKED),
    "ext4 with data=journal": Place("mkfs.ext4 -q -F -m 0 {image}", LOOP + " -o data=journal", can_be_cut=True),
    "ext3": Place("mkfs.ext3 -q -F -m 0 {image}", LOOP, can_be_cut=True),
    "ext2": Place("mkfs.ext2 -q -F -m 0 {image}", LOOP, can_be_cut=True, repaired=CHECKED),
    "xfs": Place("mkfs.xfs -q {image}", LOOP, can_be_cut=True),
    "xfs without reflinks": Place("mkfs.xfs -q -m reflink=0 {image}", LOOP, can_be_cut=True),
    "btrfs": Place("mkfs.btrfs -q {image}", LOOP),
    "btrfs that compresses": Place("mkfs.btrfs -q {image}", LOOP + " -o compress-force=zstd"),
    "f2fs": Place("mkfs.f2fs -q {image}", LOOP),
    "tmpfs": Place("", "mount -t tmpfs -o size=400m none {folder}"),
    "overlay": Place("", "sh -c 'mkdir {image}.low {image}.up && mount -t tmpfs -o size=400m none {image}.up && "
                         "mkdir {image}.up/u {image}.up/w && mount -t overlay -o "
                         "lowerdir={image}.low,upperdir={image}.up/u,workdir={image}.up/w none {folder}'"),
}


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[list[str]]:
    """Yield the command `geminga` of the environment that runs the lab."""
    yield GEMINGA


def _packages() -> list[str]:
    """Return what the project needs, pinned."""
    return list(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"])


def _of_python(version: str) -> "Program":
    @contextlib.contextmanager
    def program(folder: Path) -> Iterator[list[str]]:
        python = registries.python(*_packages(), version=version)
        yield ["env", f"PYTHONPATH={CHECKOUT}/.source", str(python), "-m", "geminga.supervisor.main"]

    return program


CORES = f"""import os
has, pin = {MANY_CORES}, os.sched_setaffinity
os.cpu_count = lambda: has
os.sched_getaffinity = lambda pid: set(range(has))
os.sched_setaffinity = lambda pid, cores: pin(pid, {{core % {os.cpu_count()} for core in cores}})
"""


@contextlib.contextmanager
def _on_many_cores(folder: Path) -> Iterator[list[str]]:
    """Yield a command that is told of more cores than the machine has."""
    (folder / "cores").mkdir()
    (folder / "cores/sitecustomize.py").write_text(CORES)
    yield ["env", f"PYTHONPATH={folder}/cores", *GEMINGA]


def _memory_group(pid: int) -> tuple[Path, str]:
    """Return (the control group that bounds a process's memory, the file with the bound); of version 2 or 1."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        if number == "0" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return Path("/sys/fs/cgroup" + path), "memory.max"
    raise NotRun("no control group bounds memory here")


@contextlib.contextmanager
def _in_little_memory(folder: Path) -> Iterator[list[str]]:
    """Yield a command that moves itself into a control group with little memory."""
    _, bound = _memory_group(os.getpid())
    root = Path("/sys/fs/cgroup/memory" if bound == "memory.limit_in_bytes" else "/sys/fs/cgroup")
    group = root / f"lab-{os.getpid()}"
    try:
        group.mkdir()
        (group / bound).write_text(str(LITTLE_MIB * MIB))
    except OSError as error:
        raise NotRun(f"no control group of its own: {error.strerror}") from None
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"', *GEMINGA]
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


Program = Callable[[Path], contextlib.AbstractContextManager[list[str]]]      # scratch folder -> the command `geminga`


@dataclass(frozen=True)
class Way:
    """A way to start the broker: a program before its command, and variables, None for those that are not set.

    needs: a program that has to be installed.  steps: by how much the clock differs, each for a second, in turns.
    geminga: the command.  more: what is asked besides.  versions: of what is below the broker.
    """

    before: tuple[str, ...] = ()
    environment: dict[str, str | None] = field(default_factory=dict)
    needs: str = ""
    steps: tuple[str, ...] = ()
    geminga: Program = _own
    more: dict[str, str] = field(default_factory=dict)
    versions: str = f"CPython {sys.version.split()[0]}"


# Not by the program `faketime`, which stays the parent of what it starts: a kill would miss the broker.
FAKED: dict[str, str | None] = {
    "LD_PRELOAD": next(map(str, Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None),
    "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
PYTHONS = {version: release.partition("-")[0] for version, release in interpreters.RELEASES.items()
           if version != "{}.{}".format(*sys.version_info)}
WAYS = {
    "one core": Way(("taskset", "-c", "0"), more={PROCESSES: "1 workers, 1 owners"}),
    f"{MANY_CORES} cores": Way(geminga=_on_many_cores, more={PROCESSES: f"{MANY_CORES} workers, {MANY_CORES} owners"},
                               versions=f"told of {MANY_CORES} cores on {os.cpu_count()}"),
    **{f"Python {version}": Way(geminga=_of_python(version), versions=f"CPython {release}")
       for version, release in PYTHONS.items()},
    f"{LITTLE_MIB} MiB of memory": Way(
        geminga=_in_little_memory, versions=f"a control group, Linux {os.uname().release}",
        more={MEMORY: "G310 in the log; publishing waits; consuming goes on; then published"}),
    "256 open files": Way(("sh", "-c", 'ulimit -n 256; exec "$0" "$@"'), more={
        FILES: "closed beyond; others go on; then admitted"}),
    "umask 077": Way(("sh", "-c", 'umask 077; exec "$0" "$@"')),
    "LC_ALL=C": Way(environment={"LC_ALL": "C", "LANG": None}),
    "a zone with daylight saving": Way(environment={"TZ": "America/St_Johns"}),
    "no HOME": Way(environment={"HOME": None, "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None}),
    "the lowest priority": Way(("nice", "-n", "19")),
    "a clock a year ahead": Way((), FAKED | {"FAKETIME": "+1y"}, "faketime"),
    "a clock twice as fast": Way((), FAKED | {"FAKETIME": "+0 x2"}, "faketime"),
    "a clock that steps by an hour": Way((), FAKED, "faketime", ("+0", "+3600", "-3600", "+0", "-3600", "+3600")),
}


class Started(Broker):
    """A broker that is started in a way of its own."""

    def __init__(self, data_dir: Path, way: Way, geminga: list[str]) -> None:
        super().__init__(data_dir)
        self._way, self._geminga, self._clock = way, geminga, data_dir.with_name("clock")

    def _step(self) -> None:
        """Step the clock until the folder is gone."""
        with contextlib.suppress(FileNotFoundError):
            for step in itertools.cycle(self._way.steps):
                self._clock.write_text(step)
                time.sleep(1)

    def start(self) -> "Started":
        """Start the broker by a script, which the harness runs as if it were `geminga serve`."""
        script, command = self.data_dir.with_name("way.py"), [*self._way.before, *self._geminga, "serve"]
        environment = dict(self._way.environment)
        if self._way.steps:
            environment |= {"FAKETIME_TIMESTAMP_FILE": str(self._clock), "FAKETIME_CACHE_DURATION": "1"}
            self._clock.write_text("+0")
            threading.Thread(target=self._step, daemon=True).start()
        script.write_text(f"import os, sys\nfor name, value in {environment!r}.items():\n"
                          "    os.environ.pop(name, None)\n    if value: os.environ[name] = value\n"
                          f"os.execvp({command[0]!r}, {command!r} + sys.argv[2:])\n")
        usual = COMMAND[:]
        COMMAND[:] = [sys.executable, str(script), "serve"]
        try:
            super().start()
        finally:
            COMMAND[:] = usual
        return self


@contextlib.contextmanager
def mounted(name: str, ground: Ground) -> Iterator[Path]:
    """Yield the folder of a new file system.  Raises NotRun if it cannot be had."""
    place = PLACES[name]
    if os.geteuid() != 0:
        raise NotRun("only root mounts file systems")
    with tempfile.TemporaryDirectory(prefix="lab-disk-", dir="/var/tmp") as scratch:
        image, folder = Path(scratch) / "image", Path(scratch) / "disk"
        folder.mkdir()
        if place.made:
            with image.open("wb") as file:
                file.truncate(place.mib * MIB)
            registries.run(place.made.format(image=image).split())
        try:
            command = place.mounted.format(image=image, folder=folder)
            registries.run(["sh", "-c", command])
            yield folder
        finally:
            for one in (folder, f"{image}.up"):
                subprocess.run(["umount", "-q", str(one)], stderr=subprocess.DEVNULL)


class Mounted(forgetful.Disk):
    """A file system of the kernel's, whose power can be cut: it drops what it has not written.

    The ioctl is the one by which file systems are tested.  Blocks that the file system has written are kept, synced or
    not, as the image below is a file of the host's.
    """

    def __init__(self, place: Place, scratch: Path):
        self._place, self._image, self._mount = place, scratch.with_name("image"), scratch
        self._mount.mkdir(exist_ok=True)
        self.folder = self._mount
        with self._image.open("wb") as file:
            file.truncate(place.mib * MIB)
        registries.run(place.made.format(image=self._image).split())
        self._do_mount()

    def _do_mount(self) -> None:
        registries.run(self._place.mounted.format(image=self._image, folder=self._mount).split())

    def freeze(self) -> None:
        """Do nothing: processes are killed first, as one that runs would see errors, which a power cut has none of."""

    def thaw(self) -> None:
        fd = os.open(self._mount, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, GOING_DOWN, struct.pack("I", WITHOUT_FLUSH))
        finally:
            os.close(fd)

    def cut(self, seed: int) -> None:
        eventually(lambda: subprocess.run(["umount", self._mount], stderr=subprocess.DEVNULL).returncode == 0,
                   what="an unmount")
        if self._place.repaired:
            subprocess.run(self._place.repaired.format(image=self._image).split(), stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        self._do_mount()

    def close(self) -> None:
        subprocess.run(["umount", "-q", self._mount], stderr=subprocess.DEVNULL)


def power_cuts(disk_of: Callable[[Path, int], forgetful.Disk], folder: Path) -> str:
    """Cut the power of a broker under load, on a new disk, and return what became of what clients were promised."""
    figures = power.Round(folder / "power", random.SystemRandom().randrange(1 << 32), disk_of=disk_of).run(CUTS)
    if figures.is_good and figures.receipted and figures.acknowledged:
        return CUT["power cuts"]
    return figures.line()


class Trial:
    """What is asked of one broker.  geminga: the command."""

    def __init__(self, broker: Broker, spare: Path, geminga: list[str]) -> None:
        self.broker, self.spare, self._geminga = broker, spare, geminga
        self._numbers = itertools.count()

    def _client(self) -> pulsar.Client:
        return pulsar.Client(self.broker.service_url, operation_timeout_seconds=30,
                             logger=QUIET)

    def _topic(self) -> str:
        return f"persistent://public/default/ground-{next(self._numbers)}"

    def publish_and_consume(self) -> str:
        with contextlib.closing(self._client()) as client:
            topic = self._topic()
            consumer = client.subscribe(topic, "s")
            producer = client.create_producer(topic, block_if_queue_full=True)
            for number in range(1000):
                producer.send_async(str(number).encode(), lambda *_: None)
            producer.flush()
            got = []
            for _ in range(1000):
                message = consumer.receive(RECEIVE_MS)
                consumer.acknowledge(message)
                got.append(int(message.data()))
            return f"{len(got)} in order" if got == list(range(1000)) else f"{len(got)} out of order"

    def killed(self) -> str:
        topic = self._topic()
        client = self._client()
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False)
        answered: list[object] = []
        for number in range(1000):
            producer.send_async(str(number).encode(), lambda result, _: answered.append(result))
        producer.flush()
        acknowledged = set()
        for _ in range(500):
            message = consumer.receive(RECEIVE_MS)
            consumer.acknowledge(message)
            acknowledged.add(int(message.data()))
        client.close()      # acknowledgements are sent, and taken, before the consumer is closed
        self.broker.kill_supervisor(seconds=COMMAND_SECONDS)
        self.broker.start()
        with contextlib.closing(self._client()) as again:
            consumer = again.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
            got = set()
            with contextlib.suppress(pulsar.Timeout):
                while len(got) < 501:
                    message = consumer.receive(2000 if len(got) >= 500 else RECEIVE_MS)
                    consumer.acknowledge(message)
                    got.add(int(message.data()))
            twice = len(got & acknowledged)
            return (f"{len(got - acknowledged)} of 500 again, " +
                    ("500 acknowledged ones never" if not twice else f"{twice} acknowledged ones again"))

    def _used(self) -> int:
        """Return the bytes of ledgers' blocks that are not zeros: the holes, and what is allocated ahead, are.

        Ext2, ext3 and NFS cannot allocate without writing, so that their blocks ahead are data to SEEK_DATA.
        """
        used = 0
        for file in (self.broker.data_dir / "partitions").rglob("*.ledger"):
            with file.open("rb") as ledger:
                used += sum(BLOCK for block in iter(lambda: ledger.read(BLOCK), b"") if block.strip(b"\0"))
        return used

    def space(self) -> str:
        topic, before = self._topic(), self._used()
        with contextlib.closing(self._client()) as client:
            consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
            producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
            for _ in range(2000):
                producer.send_async(os.urandom(PAYLOAD), lambda *_: None)
            producer.flush()
            kept = 0
            for number in range(2000):
                message = consumer.receive(RECEIVE_MS)
                if number % 200:
                    consumer.acknowledge(message)
                else:
                    kept += 1      # in the middle of what is given back
            try:
                eventually(lambda: self._used() - before < 8 * MIB, COMMAND_SECONDS)
            except TimeoutError:
                return f"{(self._used() - before) // MIB} MiB are there still"
        return "less than a fifth of 40 MB"

    def full(self) -> str:
        topic = self._topic()
        with contextlib.closing(self._client()) as client:
            consumer = client.subscribe(topic, "s")
            producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=3000,
                                              max_pending_messages=50)
            stored, refused = [], False
            filler = self.broker.data_dir.parent / "filler"
            with filler.open("wb") as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(64 * 1024))
                    file.flush()
            for number in range(3000):
                try:
                    producer.send(number.to_bytes(4, "big") + os.urandom(PAYLOAD))
                    stored.append(number)
                except Exception:      # the client has one for each cause
                    refused = True
                    break
            filler.unlink()
        with contextlib.closing(self._client()) as client:
            consumer = client.subscribe(topic, "s")

            def published() -> bool:
                try:
                    producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=3000)
                    for number in range(20):
                        producer.send((10_000 + number).to_bytes(4, "big"))
                    return True
                except Exception:
                    return False

            eventually(published, COMMAND_SECONDS)
            got = []
            with contextlib.suppress(pulsar.Timeout):
                while True:
                    message = consumer.receive(3000)
                    consumer.acknowledge(message)
                    got.append(int.from_bytes(message.data()[:4], "big"))
            more = len({number for number in got if number >= 10_000})
            lost = set(stored) - set(got)
        return (f"{'refused' if refused else 'never refused'}, then {more} more after it was freed, " +
                ("nothing lost" if not lost else f"{len(lost)} lost"))

    def backup(self) -> str:
        made = subprocess.run([*self._geminga, "backup", str(self.spare), "--data-dir", str(self.broker.data_dir)],
                              capture_output=True, text=True, timeout=COMMAND_SECONDS)
        if made.returncode:
            return f"{made.returncode}: {made.stderr}"
        [folder] = [one for one in self.spare.iterdir() if one.is_dir() and one != self.broker.data_dir]
        verified = subprocess.run([*self._geminga, "verify", str(folder)], capture_output=True, text=True,
                                  timeout=COMMAND_SECONDS)
        shutil.rmtree(folder)
        return f"made, and verified: {verified.returncode}" + (verified.stdout if verified.returncode else "")

    def verified(self) -> str:
        self.broker.stop()
        done = subprocess.run([*self._geminga, "verify", str(self.broker.data_dir)], capture_output=True, text=True,
                              timeout=COMMAND_SECONDS)
        return str(done.returncode) + (done.stdout if done.returncode else "")

    def processes(self) -> str:
        return self.broker.printed().partition(" s: ")[2].partition("\n")[0]

    def memory(self) -> str:
        """Let another program of the control group take nearly all memory for a while."""
        group, _ = _memory_group(self.broker.pid)
        topic = self._topic()
        with contextlib.closing(self._client()) as client:
            consumer = client.subscribe(topic, "s")
            producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=5000)
            producer.send(b"before")
            with subprocess.Popen([sys.executable, "-c", HOG, group, str(LITTLE_MIB * MIB * 97 // 100)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hog:
                assert hog.stdin is not None and hog.stdout is not None
                hog.stdout.readline()
                try:
                    eventually(lambda: "nobody may publish" in self.broker.log())
                    said = ["G310 in the log" if "G310" in self.broker.log() else "no code in the log"]
                except TimeoutError:
                    said = ["nothing in the log"]

                def waits() -> bool:
                    try:
                        producer.send(b"meanwhile")
                    except pulsar.Timeout:
                        return True
                    return False

                try:
                    eventually(waits)      # owners look once a second
                    said.append("publishing waits")
                except TimeoutError:
                    said.append("published")
                consumer.acknowledge(consumer.receive(RECEIVE_MS))
                said.append("consuming goes on")
                hog.stdin.close()

            def published() -> bool:
                with contextlib.suppress(Exception):
                    return bool(client.create_producer(topic, send_timeout_millis=3000).send(b"after"))
                return False

            eventually(published)
            return "; ".join([*said, "then published"])

    def connections(self) -> str:
        """Make more connections than the broker may have files, and close them."""
        host, _, port = self.broker.service_url.rpartition("/")[2].partition(":")
        with contextlib.closing(self._client()) as client:
            producer = client.create_producer(self._topic(), batching_enabled=False)
            producer.send(b"before")
            with contextlib.ExitStack() as made:
                answered = 0
                for _ in range(CONNECTIONS):
                    one = made.enter_context(socket.create_connection((host, int(port)), RECEIVE_MS / 1000))
                    with contextlib.suppress(ConnectionError):
                        one.sendall(wire.connect())
                        answered += bool(one.recv(1))
                said = ["closed beyond" if 0 < answered < CONNECTIONS else f"{answered} admitted"]
                producer.send(b"meanwhile")
                said.append("others go on")
            with contextlib.closing(self._client()) as later:
                later.create_producer(self._topic()).send(b"after")
                said.append("then admitted")
        return "; ".join(said)

    def answer(self, thing: str) -> str:
        functions = {PROCESSES: self.processes, MEMORY: self.memory, FILES: self.connections,
                     "publish and consume": self.publish_and_consume, "killed and started again": self.killed,
                     "backup": self.backup, "verified": self.verified, "space comes back": self.space,
                     "full disk": self.full}
        return functions[thing]()


ORDER = [PROCESSES, MEMORY, FILES, "publish and consume", "killed and started again", "space comes back", "full disk",
         "backup", "verified"]


def _answers(broker: Broker, spare: Path, asked: list[str], geminga: list[str]) -> Answers:
    spare.mkdir()
    try:
        broker.start()
        trial = Trial(broker, spare, geminga)
        for thing in sorted(asked, key=ORDER.index):
            try:
                yield thing, trial.answer(thing)
            except Exception as error:
                yield thing, f"{type(error).__name__}: {error}"
                if thing != asked[-1] and not request("GET", broker.http_url + "/admin/v2/brokers/health")[0]:
                    return      # the broker is gone
    finally:
        broker.close()


def _file_system(name: str) -> Subject:
    place = PLACES[name]

    def ask(ground: Ground, asked: list[str]) -> Answers:
        others = [thing for thing in asked if thing not in CUT]
        if others:
            with mounted(name, ground) as folder:
                yield from _answers(Broker(folder / "data"), folder / "backups", others, GEMINGA)
        if asked != others:
            with tempfile.TemporaryDirectory(prefix="lab-disk-", dir="/var/tmp") as scratch:
                yield "power cuts", power_cuts(lambda disk, _: Mounted(place, disk), Path(scratch))

    return Subject(name, f"Linux {os.uname().release}", ON_DISKS | (CUT if place.can_be_cut else {}), ask)


def _forgetful() -> Subject:
    def ask(ground: Ground, asked: list[str]) -> Answers:
        with tempfile.TemporaryDirectory(prefix="lab-disk-", dir="/var/tmp") as scratch:
            if reason := forgetful.why_not(Path(scratch) / "tried"):
                raise NotRun(reason)
            yield "power cuts", power_cuts(forgetful.Disk, Path(scratch))

    return Subject("a disk that forgets what was not synced", f"FUSE, Linux {os.uname().release}", CUT, ask)


def _way(name: str) -> Subject:
    way = WAYS[name]

    def ask(ground: Ground, asked: list[str]) -> Answers:
        for program in filter(None, [way.needs, *way.before[:1]]):
            if shutil.which(program) is None:
                raise NotRun(f"{program} is not installed")
        with tempfile.TemporaryDirectory(prefix="lab-way-") as scratch:
            folder = Path(scratch)
            with way.geminga(folder) as geminga:
                yield from _answers(Started(folder / "data", way, geminga), folder / "backups", asked, geminga)

    return Subject(name, way.versions, way.more | EVERYWHERE, ask)


def subjects(newest: bool) -> list[Subject]:
    """Return the grounds, which come of the machine: there are no newest ones."""
    return [] if newest else [*map(_file_system, PLACES), _forgetful(), *map(_way, WAYS)]
