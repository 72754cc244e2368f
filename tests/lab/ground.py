"""Grounds that the broker stands on: file systems in loop mounts, and ways to be started."""

import contextlib
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pulsar

from ..harness import COMMAND, Broker, eventually, request
from . import registries
from .running import Ground
from .subject import Answers, NotRun, Subject

NAME = "ground"
ABOUT = ("A broker with its data folder on a file system of its own, or started in an unusual way: it publishes, "
         "consumes, is killed, gives back space, meets a full disk, is backed up and verified.")

MIB = 1 << 20
RECEIVE_MS = 30_000
PAYLOAD = 20_000
BLOCK = 4096
COMMAND_SECONDS = 180
QUIET = logging.getLogger("lab.pulsar")      # errors are answers here
QUIET.setLevel(logging.CRITICAL)
GEMINGA = str(Path(sys.executable).with_name("geminga"))

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


@dataclass(frozen=True)
class Place:
    """A file system: the commands that make it in `image` and mount it on `folder`; "" where the kernel makes it."""

    made: str
    mounted: str
    mib: int = 400


LOOP = "mount -o loop {image} {folder}"
PLACES = {
    "ext4": Place("mkfs.ext4 -q -F -m 0 {image}", LOOP),
    "ext4 with blocks of 1 KiB": Place("mkfs.ext4 -q -F -m 0 -b 1024 {image}", LOOP),
    "ext4 without a journal": Place("mkfs.ext4 -q -F -m 0 -O ^has_journal {image}", LOOP),
    "ext4 with data=journal": Place("mkfs.ext4 -q -F -m 0 {image}", LOOP + " -o data=journal"),
    "ext3": Place("mkfs.ext3 -q -F -m 0 {image}", LOOP),
    "ext2": Place("mkfs.ext2 -q -F -m 0 {image}", LOOP),
    "xfs": Place("mkfs.xfs -q {image}", LOOP),
    "xfs without reflinks": Place("mkfs.xfs -q -m reflink=0 {image}", LOOP),
    "btrfs": Place("mkfs.btrfs -q {image}", LOOP),
    "btrfs that compresses": Place("mkfs.btrfs -q {image}", LOOP + " -o compress-force=zstd"),
    "f2fs": Place("mkfs.f2fs -q {image}", LOOP),
    "tmpfs": Place("", "mount -t tmpfs -o size=400m none {folder}"),
    "overlay": Place("", "sh -c 'mkdir {image}.low {image}.up && mount -t tmpfs -o size=400m none {image}.up && "
                         "mkdir {image}.up/u {image}.up/w && mount -t overlay -o "
                         "lowerdir={image}.low,upperdir={image}.up/u,workdir={image}.up/w none {folder}'"),
}


@dataclass(frozen=True)
class Way:
    """A way to start the broker: a program before its command, and variables, None for those that are not set.

    needs: a program that has to be installed.  steps: by how much the clock differs, each for a second, in turns.
    """

    before: tuple[str, ...] = ()
    environment: dict[str, str | None] = field(default_factory=dict)
    needs: str = ""
    steps: tuple[str, ...] = ()


# Not by the program `faketime`, which stays the parent of what it starts: a kill would miss the broker.
FAKED: dict[str, str | None] = {
    "LD_PRELOAD": next(map(str, Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None),
    "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
WAYS = {
    "one core": Way(("taskset", "-c", "0")),
    "256 open files": Way(("sh", "-c", 'ulimit -n 256; exec "$0" "$@"')),
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

    def __init__(self, data_dir: Path, way: Way) -> None:
        super().__init__(data_dir)
        self._way, self._clock = way, data_dir.with_name("clock")

    def _step(self) -> None:
        """Step the clock until the folder is gone."""
        with contextlib.suppress(FileNotFoundError):
            for step in itertools.cycle(self._way.steps):
                self._clock.write_text(step)
                time.sleep(1)

    def start(self) -> "Started":
        """Start the broker by a script, which the harness runs as if it were `geminga serve`."""
        script, command = self.data_dir.with_name("way.py"), [*self._way.before, *COMMAND]
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


class Trial:
    """What is asked of one broker."""

    def __init__(self, broker: Broker, spare: Path) -> None:
        self.broker, self.spare = broker, spare
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
        made = subprocess.run([GEMINGA, "backup", str(self.spare), "--data-dir", str(self.broker.data_dir)],
                              capture_output=True, text=True, timeout=COMMAND_SECONDS)
        if made.returncode:
            return f"{made.returncode}: {made.stderr}"
        [folder] = [one for one in self.spare.iterdir() if one.is_dir() and one != self.broker.data_dir]
        verified = subprocess.run([GEMINGA, "verify", str(folder)], capture_output=True, text=True,
                                  timeout=COMMAND_SECONDS)
        shutil.rmtree(folder)
        return f"made, and verified: {verified.returncode}" + (verified.stdout if verified.returncode else "")

    def verified(self) -> str:
        self.broker.stop()
        done = subprocess.run([GEMINGA, "verify", str(self.broker.data_dir)], capture_output=True, text=True,
                              timeout=COMMAND_SECONDS)
        return str(done.returncode) + (done.stdout if done.returncode else "")

    def answer(self, thing: str) -> str:
        functions = {"publish and consume": self.publish_and_consume, "killed and started again": self.killed,
                     "backup": self.backup, "verified": self.verified, "space comes back": self.space,
                     "full disk": self.full}
        return functions[thing]()


ORDER = ["publish and consume", "killed and started again", "space comes back", "full disk", "backup", "verified"]


def _answers(broker: Broker, spare: Path, asked: list[str]) -> Answers:
    spare.mkdir()
    try:
        broker.start()
        trial = Trial(broker, spare)
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
    def ask(ground: Ground, asked: list[str]) -> Answers:
        with mounted(name, ground) as folder:
            yield from _answers(Broker(folder / "data"), folder / "backups", asked)

    return Subject(name, f"Linux {os.uname().release}", ON_DISKS, ask)


def _way(name: str) -> Subject:
    way = WAYS[name]

    def ask(ground: Ground, asked: list[str]) -> Answers:
        for program in filter(None, [way.needs, *way.before[:1]]):
            if shutil.which(program) is None:
                raise NotRun(f"{program} is not installed")
        with tempfile.TemporaryDirectory(prefix="lab-way-") as folder:
            yield from _answers(Started(Path(folder) / "data", way), Path(folder) / "backups", asked)

    return Subject(name, f"CPython {sys.version.split()[0]}", EVERYWHERE, ask)


def subjects(newest: bool) -> list[Subject]:
    """Return the grounds, which come of the machine: there are no newest ones."""
    return [] if newest else [*map(_file_system, PLACES), *map(_way, WAYS)]
