"""The supervisor with children that are played: when it starts and kills them, and whom it tells of what."""
import subprocess
import sys
from types import SimpleNamespace

import pytest

from geminga.storage.runtime.control import control_pair
from geminga.storage.runtime.counters import make_counters
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.processes import serve, stopping
from geminga.supervisor.processes.children import GONE, READY, RESTART_MIN_SECONDS, STARTING, Child, Process
from geminga.supervisor.processes.heartbeat import BUSY_SECONDS, STARTING_SECONDS, Heartbeat, State
from geminga.supervisor.processes.serve import Supervisor
from geminga.supervisor.processes.stopping import STOP_SECONDS
from geminga.workers.web.handovers import make_handovers


class BusyHeartbeat(Heartbeat):
    """The heartbeat of a process that runs and never answers."""

    def check(self, seconds, patience):
        return super().check(seconds, patience, lambda pid: State("R", 0))


class Played:
    """A supervisor with a clock, and the far ends of its children's control sockets.  No process is started or killed.
    """

    def __init__(self, monkeypatch):
        self.now, self.killed, self.watchdog_fed = 1_000.0, [], 0
        monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(serve, "os", SimpleNamespace(environ={}, WIFEXITED=lambda status: False,
                                                         kill=lambda pid, number: self.killed.append(pid)))
        monkeypatch.setattr(serve, "describe_exit", lambda status: "ended")
        monkeypatch.setattr(serve, "start", self._start)
        self.supervisor = Supervisor(Config(workers=1, owners=2), lambda: None)
        self.supervisor._lock, self.supervisor._control_socket = None, SimpleNamespace(held=[])
        self.supervisor._handovers = make_handovers()
        self.supervisor.notify = SimpleNamespace(alive=self._feed_watchdog, stopping=lambda: None)
        self.children = [Child(role, index, f"geminga-{role}{index}", lambda *_: None)
                         for role, index in (("owner", 0), ("owner", 1), ("worker", 0), ("admin", 0))]
        self.first_owner, self.second_owner, self.worker, self.admin = self.supervisor.children = self.children
        self.supervisor.counters = dict(zip([(child.role, child.index) for child in self.children],
                                            make_counters(len(self.children)), strict=True))
        self.far_ends = {}

    def _feed_watchdog(self):
        self.watchdog_fed += 1

    def _start(self, child, serial, supervisor_only):
        child.become(STARTING)
        child.serial, child.started = serial, self.now
        control, self.far_ends[child.name] = control_pair()
        child.process = Process(1_000 + serial, control, BusyHeartbeat(1_000 + serial))

    def serve(self):
        """Start all children and have them ready."""
        for ready in (self.children[:2], self.children):
            self.go_on()
            for child in ready:
                child.state = READY
        self.go_on()
        return self

    def go_on(self):
        """Have the supervisor follow its owners, and start the children that are missing."""
        supervisor = self.supervisor
        supervisor._ports.follow(self.children, is_ending=supervisor.is_stopping or supervisor.is_draining)
        supervisor._start_missing()

    def end(self, child):
        self.far_ends.pop(child.name).close()
        self.supervisor._ended(child, 0)

    def told(self, child):
        """Messages that the child has been sent and has not read yet."""
        return self.far_ends[child.name].receive()

    def said(self, child, **message):
        """Have a child say something to the supervisor."""
        self.far_ends[child.name].send(**message)
        self.supervisor._receive(child)

    def pass_second(self):
        """Let a second pass, then check the children."""
        self.now += 1
        self.supervisor._check_heartbeats()

    def close(self):
        supervisor = self.supervisor
        for end in (*self.far_ends.values(), *(child.control for child in self.children if child.process),
                    supervisor._selector, supervisor._wake_read, supervisor._wake_write, *supervisor._handovers):
            end.close()


@pytest.fixture
def played(monkeypatch):
    played = Played(monkeypatch)
    yield played
    played.close()


def test_workers_start_when_all_owners_have_recovered(played):
    """A client of an earlier worker would miss partitions."""
    first, second, worker, admin = played.children
    played.go_on()
    first.become(READY)
    played.go_on()
    assert (second.state, worker.state, admin.state) == (STARTING, GONE, STARTING)
    assert played.supervisor._select_timeout() > 0      # it does not look for that again and again
    second.become(READY)
    played.go_on()
    assert (worker.state, admin.state) == (STARTING, STARTING)


def test_a_new_owner_hears_of_the_others_before_workers_hear_of_it(played, monkeypatch):
    """Workers send it commands at once.  After partitions have moved it refuses them until it knows of all owners."""
    played.serve()
    played.end(played.first_owner)
    played.now += 1
    played.go_on()
    sent = []
    for child in played.children:
        monkeypatch.setattr(child.control, "send", lambda to=child, **message: sent.append((to, message)))
    played.said(played.first_owner, ready={})
    first, second = ([child.index, child.serial] for child in played.children[:2])
    assert sent.index((played.first_owner, {"owner": second})) < sent.index((played.worker, {"owner": first}))


def test_workers_end_when_all_owners_fail_to_start_again_until_one_serves(played):
    """A host without owners that can serve must not accept clients, which would wait instead of failing over."""
    ports = played.serve().supervisor._ports
    for owner in (played.first_owner, played.second_owner):
        played.end(owner)
        played.now += 1
        played.go_on()
        assert (ports.is_open, owner.state) == (True, STARTING)      # the end of a process is no failed start
    played.end(played.first_owner)
    played.go_on()
    assert ports.is_open
    played.told(played.worker)
    played.end(played.second_owner)
    played.go_on()
    assert not ports.is_open
    assert played.told(played.worker) == [{"owner_gone": 1}, {"refuse": True}, {"stop": True}]
    played.end(played.worker)
    played.now += 1
    played.go_on()
    assert (played.worker.state, played.first_owner.state) == (GONE, STARTING)
    played.said(played.first_owner, ready={})
    played.go_on()
    assert (ports.is_open, played.worker.state) == (True, STARTING)


def test_a_worker_that_starts_while_a_broker_drains_listens_on_no_port(played, monkeypatch):
    ports = played.serve().supervisor._ports
    monkeypatch.setattr(type(played.supervisor), "is_draining", True)
    played.go_on()
    assert played.told(played.worker)[-1] == {"refuse": True}
    played.end(played.worker)
    played.now += 1
    played.go_on()
    assert (played.worker.state, ports.of_worker(0)) == (STARTING, (None, None))


def test_a_child_that_ends_at_once_is_started_again_later(played):
    """The pause keeps a child that cannot live from taking a whole core."""
    child = played.serve().worker
    played.end(child)
    played.go_on()
    assert (child.state, played.supervisor._select_timeout()) == (GONE, RESTART_MIN_SECONDS)
    played.now += RESTART_MIN_SECONDS
    played.go_on()
    assert child.state == STARTING
    assert played.supervisor.counters["worker", 0].read()["starts"] == 2      # though no code of its own has counted


def test_a_child_that_has_lived_is_started_again_at_once(played):
    child = played.serve().worker
    played.now += RESTART_MIN_SECONDS
    played.end(child)
    played.go_on()
    assert child.state == STARTING


def test_all_others_are_told_of_an_owners_end(played):
    """Producers and consumers of that owner would wait for answers for ever, and so would transactions."""
    played.serve().end(played.second_owner)
    for child in (played.worker, played.admin, played.first_owner):
        assert played.told(child) == [{"owner_gone": 1}]


@pytest.mark.parametrize("role", ["worker", "admin"])
def test_owners_are_told_whose_connections_ended(played, role):
    """An owner drops the producers, consumers and questions of the serial number."""
    child = getattr(played.serve(), role)
    assert child.serial > 0
    played.end(child)
    assert played.told(played.first_owner) == played.told(played.second_owner) == [{"worker_gone": child.serial}]


def test_owners_stop_after_those_who_send_to_them(played):
    """What a worker has sent before its end is still stored, and answered."""
    first, second, worker, admin = played.serve().children
    played.supervisor.begin_stop()
    assert not played.supervisor._stop_step()
    assert played.told(worker) == played.told(admin) == [{"stop": STOP_SECONDS["worker"]}]
    assert played.told(first) == played.told(second) == []
    played.end(worker)
    assert not played.supervisor._stop_step()
    assert (first.state, second.state) == (READY, READY)
    played.end(admin)
    played.now += 1      # of the time of all
    assert not played.supervisor._stop_step()
    assert played.told(first)[-1] == played.told(second)[-1] == {"stop": STOP_SECONDS["owner"] - 1}
    played.end(first)
    played.end(second)
    assert played.supervisor._stop_step()


def test_a_process_that_does_not_stop_is_killed_and_named_once(played, monkeypatch, capfd):
    """A process with much memory, or in a sync, takes a while to end after its SIGKILL."""
    first, second, worker, admin = played.serve().children
    killed = []
    monkeypatch.setattr(stopping.os, "kill", lambda pid, number: killed.append(pid))
    children = [first, second, worker, admin]
    for child in (worker, admin):
        played.end(child)
    assert not stopping.stop_step(children, 0.1, is_last=False)
    for passed in (STOP_SECONDS["owner"] + 0.1, STOP_SECONDS["owner"] + 0.2):
        assert not stopping.stop_step(children, passed, is_last=False)
    assert killed == [first.pid, second.pid]
    assert capfd.readouterr().err.count("does not stop; killed") == 2


def test_the_closed_line_of_a_child_does_not_wake_the_supervisor_again(played):
    """A closed socket is readable for ever, and a child may take seconds from closing the line to its end."""
    child = played.serve().worker
    selector = played.supervisor._selector
    played.far_ends[child.name].close()
    [(key, _)] = selector.select(0)
    key.data()
    assert selector.select(0) == []


@pytest.mark.parametrize(("state", "seconds"), [(READY, BUSY_SECONDS), (STARTING, STARTING_SECONDS)])
def test_a_busy_child_is_killed_when_its_time_is_over(played, state, seconds):
    """A start has long steps.  Afterwards a child that does not answer for BUSY_SECONDS hangs."""
    child = played.serve().worker
    child.state = state
    for other in played.children:
        if other is not child:
            other.state = GONE
    played.pass_second()      # the supervisor asks the child in this second
    for _ in range(int(seconds) - 1):
        played.pass_second()
    assert played.killed == []
    played.pass_second()
    assert played.killed == [child.pid]
    assert "it is busy" in child.killed_for


def test_the_watchdog_is_fed_while_all_children_answer(played):
    """Otherwise systemd would never restart a broker that hangs as a whole."""
    played.serve().pass_second()       # the supervisor asks its children in this second
    assert played.watchdog_fed == 1
    for child in played.children[1:]:
        child.heartbeat.answered()
    played.pass_second()
    assert played.watchdog_fed == 1
    for child in played.children:
        child.heartbeat.answered()
    played.pass_second()
    assert played.watchdog_fed == 2


@pytest.mark.slow
def test_signals_to_a_whole_group_leave_children_to_their_supervisor():
    """A terminal sends Ctrl-C to children too; one that ended by it could not tell its clients first."""
    code = """
import os, signal
from geminga.supervisor.processes.children import Child, start
def body(child, control):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.raise_signal(number)
    os._exit(77)
child = Child("worker", 0, "geminga-w0", body)
start(child, 1, [])
print(os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "77\n"
