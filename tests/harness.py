"""A whole broker as its user runs it: the console script, real processes, a real folder, addresses from its output.

    broker = Broker(data_dir)
    broker.start()                  # geminga serve --data-dir D --bind 127.0.0.1 --port P --http-port Q
    broker.service_url              # as printed: pulsar://127.0.0.1:PORT; there are http_url, tls_url and https_url too
    broker.kill("owner", 1)         # SIGKILL, as the kernel would
    broker.stop()                   # SIGTERM, and it must be gone in STOP_SECONDS

Nothing here reaches into the broker.  Tests watch its output, /proc and its answers.  A child is known by the name that
the kernel has for it (/proc/PID/comm), so tests rely on the same names that `ps` and `top` show an operator.

Tests do not sleep: a test that waits names a condition and a deadline (eventually).  Deadlines count only seconds in
which the machine is not overloaded (Stopwatch).  A promise of three seconds is held to three seconds on a quiet
machine, and can still be kept on a busy one.
"""

import contextlib
import functools
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jwt
import psutil
import pulsar

T = TypeVar("T")

COMMAND = [str(Path(sys.executable).with_name("geminga")), "serve"]

START_SECONDS = 180
STOP_SECONDS = 5           # as the documents promise
GRACE_SECONDS = 60         # the most that an overloaded machine adds to a deadline
POLL_SECONDS, POLL_MAX_SECONDS = 0.01, 0.1      # between the first two questions of a wait, and of a long one
HANG_SECONDS = 180         # what takes a few seconds hangs when it takes longer, however busy the machine is
HANG_MS = HANG_SECONDS * 1_000
PORTS = range(20_000, 32_000)      # below those that Linux gives to outgoing connections
PORTS_EACH = 1_000                 # of a process of tests
_given_ports: set[int] = set()
# Between two messages of a load that goes on until it is stopped.  At full speed it takes the processor from what the
# test waits for, and from all tests beside it.
LOAD_PAUSE_SECONDS = 0.005

COMM_OF_ROLE = {"worker": "geminga-w{}", "owner": "geminga-o{}", "admin": "geminga-admin", "web": "geminga-web",
                # the kernel keeps 15 characters
                "replicator": "geminga-replica"}


class Stopwatch:
    """Seconds since it was made, less those in which something waited for a processor or the disk.

    The kernel counts the time of waiting (/proc/pressure).  At most GRACE_SECONDS of waiting are left out, so that a
    watch always goes on.  Where the kernel does not count, the first GRACE_SECONDS are left out.
    """

    def __init__(self) -> None:
        self._began, self._stalled = time.monotonic(), _stalled_seconds()

    def __repr__(self) -> str:
        return f"<Stopwatch {self.seconds():.3f} s of {time.monotonic() - self._began:.3f}>"

    def seconds(self) -> float:
        passed = time.monotonic() - self._began
        stalled = passed if self._stalled is None else (_stalled_seconds() or 0.0) - self._stalled
        return passed - min(stalled, passed, GRACE_SECONDS)


def _stalled_seconds() -> float | None:
    """Return for how long some task has waited for a processor or the disk since the machine started; None if not
    known.
    """
    try:
        told = [Path(f"/proc/pressure/{name}").read_text() for name in ("cpu", "io")]
    except OSError:
        return None
    return sum(int(text.partition("total=")[2].split()[0]) for text in told) / 1e6


def eventually(predicate: Callable[[], T], seconds: float = HANG_SECONDS, what: str = "",
               pause: float = POLL_SECONDS) -> T:
    """Return the first true answer of `predicate`.  Raises TimeoutError if there is none within `seconds` of a
    Stopwatch.

    seconds: a time that is promised.  pause: seconds between the first two questions.  Pauses grow in two seconds to
    POLL_MAX_SECONDS: a question takes milliseconds of the processor, which what the test waits for may need.
    """
    never, watch = threading.Event(), Stopwatch()
    while not (answer := predicate()):
        if watch.seconds() > seconds:
            raise TimeoutError(f"not within {seconds} s: {what or predicate}")
        never.wait(pause)
        pause = max(pause, min(pause * 1.05, POLL_MAX_SECONDS))
    return answer


def unique_topic(hint: str = "topic") -> str:
    """Return a topic's full name that nobody used before, so that tests share a broker without meeting."""
    return f"persistent://public/default/{hint}-{uuid.uuid4().hex[:12]}"


def request(method: str, url: str, body: bytes | None = None, **fields: str) -> tuple[int, str]:
    """Return status and text of one HTTP exchange; an error status is an answer like any other.

    fields: headers.  Raises OSError, also if a kill has cut the answer.
    """
    headers = {"Content-Type": "application/json", **fields} if body is not None else fields
    asked = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        try:
            with urllib.request.urlopen(asked, timeout=HANG_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
    except http.client.HTTPException as cut:      # no OSError, while an end before the headers is one
        raise ConnectionResetError(f"the answer was cut: {cut!r}") from cut


@functools.cache
def _own_ports() -> tuple[range, socket.socket | None]:
    """Return ports that no other process of tests gives, and what holds them as long as this process runs.

    Between the choice of a port and the start of its broker another process chose the same one.
    """
    for first in PORTS[::PORTS_EACH]:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            held.bind(f"\0geminga-tests-ports-{first}")
        except OSError:
            held.close()
        else:
            return range(first, first + PORTS_EACH), held
    return PORTS, None


def free_port() -> int:
    """Return a port that nothing uses now, no outgoing connection later while its broker is stopped, and that no
    other call of this process returned, as long as there are such ports.
    """
    ports, _ = _own_ports()
    if len(_given_ports) == len(ports):
        _given_ports.clear()
    while True:
        port = random.SystemRandom().choice(ports)
        if port in _given_ports:
            continue
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            _given_ports.add(port)
            return port


def path_of(topic: str) -> str:
    """Return a topic's full name as paths of REST have it."""
    return topic.replace("://", "/")


def partitions_url(http_url: str, topic: str) -> str:
    return f"{http_url}/admin/v2/{path_of(topic)}/partitions"


def partitioned_topic(http_url: str, partitions: int, hint: str = "parted") -> str:
    """Create a partitioned topic as an operator does, and return its full name."""
    topic = unique_topic(hint)
    status, text = request("PUT", partitions_url(http_url, topic), str(partitions).encode())
    assert status == 204, (status, text)
    return topic


class Broker:
    """One `geminga serve` on one data folder, which can be started again after it stopped or was killed.

    The first start chooses ports.  Later starts ask for the same ports, as clients remember them.
    """

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.options = options
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.service_url = ""
        self.http_url = ""
        self.tls_url = ""
        self.https_url = ""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._printed: list[str] = []
        self._addresses_known = threading.Event()

    def __repr__(self) -> str:
        pid = self._process.pid if self._process else None
        return f"<Broker {self.service_url or 'never started'} {pid=} log={self.log_path}>"

    @property
    def is_there(self) -> bool:
        """Whether a process was started whose end has not been noticed yet."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> "Broker":
        """Start the broker, and return when it serves: both addresses were printed.

        All output goes to log_path, over restarts too.  Raises RuntimeError if the broker ends or prints no addresses.
        """
        assert self._process is None, "already started"
        command = [*COMMAND, "--data-dir", str(self.data_dir), "--bind", "127.0.0.1"]
        command += ["--port", _port_of(self.service_url), "--http-port", _port_of(self.http_url), *self.options]
        self._addresses_known.clear()
        self._printed = []
        with self.log_path.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._begin_reading()
        known = self._addresses_known.wait(START_SECONDS)
        if not known or self._process.poll() is not None:
            self.close()
            raise RuntimeError(f"the broker printed no addresses within {START_SECONDS} s; it said:\n{self.log()}")
        return self

    def _begin_reading(self) -> None:
        """Read the broker's output in a thread for as long as it lives: with a full pipe it would stand still."""
        self._reader = threading.Thread(target=self._read_output, args=(self._process,), daemon=True)
        self._reader.start()

    def _read_output(self, process: "subprocess.Popen[str]") -> None:
        found: dict[str, str] = {}
        assert process.stdout is not None
        with process.stdout, self.log_path.open("a") as log:
            for line in process.stdout:
                self._printed.append(line)
                log.write(line)
                log.flush()
                if line.startswith("Geminga is ready"):      # a standby has printed its broker's address before
                    found.clear()
                for url in re.findall(r"(?:pulsar|http)(?:\+ssl|s)?://(?:127\.0\.0\.1|localhost):\d+", line):
                    found.setdefault(url.partition(":")[0], url)
                if line.startswith("Publish"):      # this line comes behind all addresses
                    self.service_url, self.tls_url = found.get("pulsar", ""), found.get("pulsar+ssl", "")
                    self.http_url, self.https_url = found.get("http", ""), found.get("https", "")
                    self._addresses_known.set()
        self._addresses_known.set()  # the output has ended: whoever waits for addresses need not wait longer

    def printed(self) -> str:
        """Return what the broker wrote to standard output since its last start."""
        return "".join(self._printed)

    def log(self) -> str:
        """Return everything that the broker wrote to both outputs, over all starts."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def children(self) -> dict[str, int]:
        """Return the process ids of the supervisor's children by the kernel's names: geminga-w0, geminga-o0,
        geminga-admin.
        """
        found = {}
        for child in _descendants(self.pid):
            comm = _comm(child.pid)
            if comm is not None:
                found[comm] = child.pid
        return found

    def child(self, role: str, index: int = 0) -> int | None:
        """Return the process id of one child; None while there is none.  Tests ask this again and again."""
        name = COMM_OF_ROLE[role].format(index)
        return next((pid for pid in _children(self.pid) if _comm(pid) == name), None)

    def kill(self, role: str, index: int = 0) -> int:
        """Kill one child without notice, as the kernel would, and return the process id it had."""
        pid = eventually(lambda: self.child(role, index), what=f"a {role} {index} to kill")
        os.kill(pid, signal.SIGKILL)
        return pid

    def pause(self, role: str, index: int = 0) -> int:
        """Stop one child where it is (SIGSTOP), and return its process id; a stopped child can still be killed."""
        pid = eventually(lambda: self.child(role, index), what=f"a {role} {index} to pause")
        os.kill(pid, signal.SIGSTOP)
        return pid

    def wait_replaced(self, role: str, index: int, old_pid: int, seconds: float = HANG_SECONDS) -> int:
        """Return the process id of the child that took the place of `old_pid`."""
        return eventually(lambda: (pid := self.child(role, index)) != old_pid and pid, seconds, f"a new {role} {index}")

    def kill_supervisor(self, seconds: float = 2) -> None:
        """Kill the supervisor without notice; none of its children may outlive it by more than `seconds`."""
        children = self.children()
        self._end(signal.SIGKILL, seconds)
        eventually(lambda: not _alive(children), seconds, f"the end of {children} after their supervisor's")

    def stop(self) -> int:
        """Ask the broker to stop, and return its exit status.

        Raises TimeoutError if the supervisor or a child is there after STOP_SECONDS.
        """
        children, watch = self.children(), Stopwatch()
        status = self._end(signal.SIGTERM, STOP_SECONDS)
        eventually(lambda: not _alive(children), STOP_SECONDS - watch.seconds(),
                   f"the end of {children} after a SIGTERM")
        return status

    def _end(self, how: signal.Signals, seconds: float) -> int:
        assert self._process is not None, "not started"
        self._process.send_signal(how)
        return self.ended(seconds)

    def ended(self, seconds: float = HANG_SECONDS) -> int:
        """Return the broker's exit status when it has ended by itself, or because somebody else asked it to."""
        assert self._process is not None, "not started"
        process = self._process
        try:
            eventually(lambda: process.poll() is not None, seconds)
        except TimeoutError as late:
            raise TimeoutError(f"still there after {seconds} s; it said:\n{self.log()}") from late
        self._process = None
        self._join_reader()
        return process.returncode

    def _join_reader(self) -> None:
        assert self._reader is not None
        self._reader.join(START_SECONDS)

    def close(self) -> None:
        """End the broker and all its children in whatever state they are, without a look at how they end."""
        if self._process is None:
            return
        children = self.children() if self._process.poll() is None else {}
        self._process.kill()
        self._process.wait()
        self._process = None
        for comm, pid in children.items():
            if _comm(pid) == comm:
                os.kill(pid, signal.SIGKILL)
        self._join_reader()


def _port_of(url: str) -> str:
    """Return the port of an address, another one if there is no address yet."""
    return url.rpartition(":")[2] or str(free_port())


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _children(pid: int) -> list[int]:
    """Return the process ids of a process's children.  psutil would read the files of all processes of the host."""
    if not Path("/proc/thread-self/children").exists():      # a kernel that was built without it
        return [child.pid for child in _descendants(pid)]
    try:
        return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children")
                for child in file.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):      # it, or a thread of it, has just ended
        return []


def _comm(pid: int) -> str | None:
    """Return the kernel's name of a process; None when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _alive(children: dict[str, int]) -> dict[str, int]:
    """Return the children that still run; a process that is dead and not reaped yet does not."""
    return {comm: pid for comm, pid in children.items() if _comm(pid) == comm and not _is_zombie(pid)}


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def guarded_broker(start_broker: Callable[..., "Broker"], folder: Path, *roles: str) -> tuple["Broker", dict[str, str]]:
    """Start a broker on which every client needs a token, and only the role admin has all rights.

    folder: for its configuration.  Return (the broker, the token of each role).
    """
    key = b"a secret key of thirty-two bytes"
    (folder / "key").write_bytes(key)
    (folder / "geminga.toml").write_text(f"""
[authentication]
methods = ["token"]
secret_keys = ["{folder / "key"}"]
[authorization]
enabled = true
super_user_roles = ["admin"]
""")
    broker = start_broker("--config", str(folder / "geminga.toml"))
    return broker, {role: jwt.encode({"sub": role}, key, "HS256") for role in roles}


def messages_of(client: pulsar.Client, topic: str, **reading: object) -> list[pulsar.Message]:
    """Return all messages of a topic, as a reader gets them.  reading: more about the reader, such as its schema."""
    reader, found = client.create_reader(topic, pulsar.MessageId.earliest, **reading), []
    while reader.has_message_available():
        found.append(reader.read_next(HANG_MS))
    reader.close()
    return found


def left_for(broker: Broker, consumer: pulsar.Consumer) -> list[pulsar.Message]:
    """Return all messages that a subscription has left, as its only consumer gets them.

    The broker says how many there are: on a slow machine a pause of the deliveries is not their end.
    """
    place = f"{broker.http_url}/admin/v2/{path_of(consumer.topic())}"
    status, text = request("GET", f"{place}/stats")
    if status == 404:
        status, text = request("GET", f"{place}/partitioned-stats")
    count = json.loads(text)["subscriptions"][consumer.subscription_name()]["msgBacklog"]
    found = [consumer.receive(HANG_MS) for _ in range(count)]
    with contextlib.suppress(pulsar.Timeout):
        raise AssertionError(f"more than {count} messages: {consumer.receive(100)}")
    return found
