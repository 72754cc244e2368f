"""The disk runs full: a real broker on a small file system of its own, filled to the last byte under load, and freed
again.

    python -m tests.crash.full --kind ext4 --kind xfs --kind tmpfs

A run: clients of the official library publish until they are let in no more; somebody else's file takes what is left,
and goes on trying; meanwhile messages are consumed, acknowledged and skipped, topics are listed, ended and unloaded;
the file is removed.  Then the disk is filled with messages alone, and freed by consuming them.  In the end everything
is held against what clients were promised.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pulsar

from ..harness import HANG_MS, HANG_SECONDS, Broker, Stopwatch, eventually, request, unique_topic

MIB = 1 << 20
SIZES = {"ext4": 96, "xfs": 320, "tmpfs": 96}      # MiB; xfs makes none that is smaller
MAKERS = {"ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"), "xfs": ("mkfs.xfs", "-q")}
TOPICS = 4
BLOCK = 4096              # bytes that file systems allocate at once
BODY = 20_000             # bytes
WINDOW = 200              # messages of each producer that are not answered
QUIET_SECONDS = 2         # without a receipt: publishing has stopped
PAUSE_SECONDS = 0.2       # between rounds of what has to go on
GREEDY_SECONDS = 4        # for so long somebody else takes every byte that there is
BACK_SECONDS = 2          # promised
SECONDS = HANG_SECONDS
CONFIG = """workers = 2
owners = 2
[storage]
journal_segment_bytes = 4194304
journal_segments_max = 3
pass_bytes_max = 262144
roll_over_bytes = 4194304
discovery_grace_s = 0
keep_acknowledged_s = 0
[network]
max_message_size = 1048576
"""


def why_not(kind: str) -> str:
    """Return what is missing here to make such a file system, or ""."""
    if os.geteuid() != 0:
        return "only root mounts file systems"
    if kind != "tmpfs" and shutil.which(MAKERS[kind][0]) is None:
        return f"there is no {MAKERS[kind][0]}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with disk(Path(folder), kind):
                return ""
        except subprocess.CalledProcessError as error:
            return f"{kind} cannot be mounted: {error.stderr.decode().strip()}"


@contextmanager
def disk(folder: Path, kind: str) -> Iterator[Path]:
    """Mount a new file system of that kind during the block."""
    place, image = folder / "disk", folder / "image"
    place.mkdir()
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={SIZES[kind]}m", "geminga-test", place)
    else:
        with open(image, "wb") as file:
            file.truncate(SIZES[kind] * MIB)
        _run(*MAKERS[kind], image)
        _run("mount", "-t", kind, "-o", "loop", image, place)
    try:
        yield place
    finally:
        _run("umount", "-l", place)
        image.unlink(missing_ok=True)


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


@dataclass
class Figures:
    kind: str
    published: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def took(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def table(self) -> str:
        times = [(what, ", ".join(f"{one:.2f} s" for one in each)) for what, each in self.seconds.items()]
        rows = [("messages receipted", self.published), *times, ("faults", len(self.faults)),
                *Counter(self.faults).items()]
        return "\n".join(f"{self.kind:6} {what:44}{value}" for what, value in rows)


class Lane:
    """A topic with its producer, its consumer, and what they were promised."""

    def __init__(self, client: pulsar.Client, number: int):
        self.topic = unique_topic(f"full-{number}")
        self.consumer = client.subscribe(self.topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
        self.producer = client.create_producer(self.topic, max_pending_messages=WINDOW, block_if_queue_full=True,
                                               send_timeout_millis=0)
        self.receipted: set[int] = set()
        self.received: list[int] = []
        self.errors: list[str] = []
        self.latest = time.monotonic()
        self._sent = 0
        self._is_wanted = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def publish(self, is_wanted: bool) -> None:
        self._is_wanted.set() if is_wanted else self._is_wanted.clear()

    def _publish(self) -> None:
        while self._is_wanted.wait() and not self._is_over:
            self.producer.send_async(str(self._sent).encode().ljust(BODY),
                                     lambda result, _, number=self._sent: self._sent_one(result, number))
            self._sent += 1

    def _sent_one(self, result: pulsar.Result, number: int) -> None:
        if result == pulsar.Result.Ok:
            self.receipted.add(number)
            self.latest = time.monotonic()
        elif not self._is_over:
            self.errors.append(str(result))

    def consume(self, count: int, patience_ms: int = 5_000) -> bool:
        """Receive and acknowledge `count` messages; return False if one does not come in time."""
        for _ in range(count):
            try:
                message = self.consumer.receive(patience_ms)
            except pulsar.Timeout:
                return False
            self.received.append(int(message.data()))
            self.consumer.acknowledge(message)
        return True

    def end(self) -> None:
        self._is_over = True
        self._is_wanted.set()

    def faults(self) -> list[str]:
        lost, twice = self.receipted - set(self.received), len(self.received) - len(set(self.received))
        return [*self.errors, *[f"{self.topic}: {len(lost)} messages were receipted and lost"] * bool(lost),
                *[f"{self.topic}: {twice} messages came twice"] * bool(twice)]


class Greedy:
    """A foreign file that takes every free byte of the disk during the block."""

    def __init__(self, folder: Path):
        self.path = folder / "greedy"
        self.has_all = threading.Event()      # there was not one byte more
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with open(self.path, "ab", buffering=0) as file:
            while not self._over.is_set():
                for size in (MIB, BLOCK):
                    with suppress(OSError):
                        while not self._over.is_set():
                            file.write(bytes(size))
                # At most a block byte by byte: on a slow machine the loop would else go on with what owners give up of
                # their reserves, and take all of it before `has_all`.
                with suppress(OSError):
                    for _ in range(BLOCK):
                        file.write(bytes(1))
                self.has_all.set()
                self._over.wait(0.01)

    def __enter__(self) -> "Greedy":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()


def run(folder: Path, kind: str) -> Figures:
    figures = Figures(kind)
    with disk(folder, kind) as place:
        config = folder / "geminga.toml"
        config.write_text(CONFIG)
        broker = Broker(place / "data", "--config", str(config))
        broker.log_path = folder / "broker.log"
        broker.start()
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            eventually(lambda: _ready(broker) == 200, SECONDS, "the broker to be ready")
            _exercise(figures, broker, client, place)
        except TimeoutError as error:
            figures.faults.append(f"{error}; the broker said:\n{broker.log()}")
        finally:
            with suppress(Exception):
                client.close()
            broker.close()
        log = broker.log()
        figures.faults += [f"in the log: {line}" for line in log.splitlines() if "Traceback" in line
                           or "starting it again" in line]
    return figures


def _exercise(figures: Figures, broker: Broker, client: pulsar.Client, place: Path) -> None:
    lanes = [Lane(client, number) for number in range(TOPICS)]
    foreign = place / "foreign"
    with open(foreign, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, SIZES[figures.kind] * MIB // 4)
    spare = unique_topic("spare")
    client.subscribe(spare, "sub").close()
    children = broker.children()
    # Filled by those who publish, and to the last byte by somebody else.
    _fill(figures, broker, lanes)
    if _ready(broker) != 503 or request("GET", f"{broker.http_url}/status.html")[0] != 200:
        figures.faults.append("a full disk is to be not ready, and alive")
    with Greedy(place) as greedy:
        assert greedy.has_all.wait(SECONDS)
    eventually(lambda: _free(place) > 0, SECONDS, "some of the reserve")
    _go_on(figures, broker, lanes, spare, ("PUT", f"persistent/{spare.removeprefix('persistent://')}/unload", 204))
    with Greedy(place) as greedy:
        until = time.monotonic() + GREEDY_SECONDS
        while time.monotonic() < until:
            _go_on(figures, broker, lanes, spare)
            threading.Event().wait(PAUSE_SECONDS)
    before = [len(lane.receipted) for lane in lanes]
    greedy.path.unlink()
    foreign.unlink()
    figures.took("back after a foreign file went",
                 _seconds_until(lambda: [len(lane.receipted) for lane in lanes] != before))
    # By those who publish alone, and freed by consuming.
    _fill(figures, broker, lanes)
    before = [len(lane.receipted) for lane in lanes]
    threads = [threading.Thread(target=_drain, args=(lane, before[number])) for number, lane in enumerate(lanes)]
    for thread in threads:
        thread.start()
    eventually(lambda: _free(place) > SIZES[figures.kind] * MIB // 8
               or [len(lane.receipted) for lane in lanes] != before, SECONDS, "room")
    figures.took("back after messages were consumed",
                 _seconds_until(lambda: [len(lane.receipted) for lane in lanes] != before))
    for thread in threads:
        thread.join()
    for lane in lanes:
        lane.end()
    for lane in lanes:
        while not lane.receipted <= set(lane.received) and lane.consume(1, HANG_MS):
            pass
        while lane.consume(1, 3_000):      # what was not receipted, or comes twice
            pass
        figures.faults += lane.faults()
        figures.published += len(lane.receipted)
    for what in ("back after a foreign file went", "back after messages were consumed"):
        figures.faults += [f"{what}: {seconds:.1f} s" for seconds in figures.seconds[what] if seconds > BACK_SECONDS]
    if broker.children() != children:
        figures.faults.append(f"processes came and went: {children}, {broker.children()}")
    client.close()
    if (status := broker.stop()) != 0:
        figures.faults.append(f"exit status {status}")
    found = subprocess.run([Path(sys.executable).with_name("geminga"), "verify", broker.data_dir], capture_output=True,
                           text=True)
    if found.returncode:
        figures.faults.append(f"verify: {found.stdout}{found.stderr}")


def _fill(figures: Figures, broker: Broker, lanes: list[Lane]) -> None:
    """Publish until publishing stops."""
    began = time.monotonic()
    for lane in lanes:
        lane.publish(True)
    # A busy machine pauses too: publishing has ended once the broker is not ready either.
    eventually(lambda: time.monotonic() - max(lane.latest for lane in lanes) > QUIET_SECONDS and _ready(broker) == 503,
               SECONDS, "the end of publishing")
    figures.took("until publishing stopped", max(lane.latest for lane in lanes) - began)


def _go_on(figures: Figures, broker: Broker, lanes: list[Lane], spare: str, *more: tuple[str, str, int]) -> None:
    """Assert that consuming, acknowledging and administration work on the full disk."""
    name = spare.removeprefix("persistent://")
    for lane in lanes:
        if not lane.consume(5):
            figures.faults.append("nothing came while the disk was full")
    for method, path, wanted in (
            ("GET", "namespaces/public/default/topics", 200),
            ("POST", f"persistent/{name}/subscription/sub/skip_all", 204),
            ("POST", f"persistent/{name}/terminate", 200), *more):
        status, text = request(method, f"{broker.http_url}/admin/v2/{path}")
        if status != wanted:
            figures.faults.append(f"{method} {path} while the disk was full: {status} {text}")


def _drain(lane: Lane, count: int) -> None:
    lane.consume(count - len(lane.received))


def _seconds_until(condition) -> float:
    watch = Stopwatch()
    eventually(condition, SECONDS, "publishing to go on")
    return watch.seconds()


def _ready(broker: Broker) -> int:
    return request("GET", f"{broker.http_url}/ready")[0]


def _free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=SIZES, help="of file system; may be repeated")
    faults = 0
    for kind in parser.parse_args().kind or ["ext4"]:
        if reason := why_not(kind):
            print(f"{kind:6} {reason}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            figures = run(Path(folder), kind)
        print(figures.table(), flush=True)
        faults += len(figures.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
