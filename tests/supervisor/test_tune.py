"""`geminga tune`: which settings of a host are looked at, and when each matters."""
import json
import os
import resource
import subprocess

import pytest

from geminga.storage.options import StorageOptions
from geminga.supervisor import main
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.host import tune
from geminga.workers.options import WorkerOptions

from ..harness import COMMAND, Broker

SYSCTLS = {"vm/max_map_count": 65_530, "vm/overcommit_memory": 0, "vm/swappiness": 60, "vm/dirty_background_ratio": 10,
           "vm/dirty_background_bytes": 0, "net/core/somaxconn": 4096}


class Host:
    """A host on which everything is right, until something is `put` otherwise."""

    def __init__(self, folder):
        self.root, self.data_dir = folder / "root", folder / "data"
        self.data_dir.mkdir()
        for name, value in SYSCTLS.items():
            self.put(f"proc/sys/{name}", f"{value}\n")
        self.put("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB\n")
        self.put("proc/swaps", "Filename Type Size Used Priority\n")
        self.put("proc/self/cgroup", "0::/system.slice/geminga.service\n")
        self.put("proc/self/mountinfo",
                 f"22 1 253:0 / / rw,relatime - ext4 /dev/vda rw\n23 22 253:1 / {folder} rw - xfs /dev/vdb rw\n")
        self.put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        self.put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
        number = self.data_dir.stat().st_dev
        self.device = f"sys/dev/block/{os.major(number)}:{os.minor(number)}/queue"
        self.put(f"{self.device}/scheduler", "[none] mq-deadline\n")
        self.put(f"{self.device}/rotational", "0\n")
        self.limits = 20_000, 1 << 20
        self.config = Config(data_dir=self.data_dir, workers=4, owners=4, storage=StorageOptions(),
                             worker=WorkerOptions())

    def put(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def wrong(self):
        """Return {name: whether it matters} of the settings that are wrong.

        Clock and interpreter are left out, as they are not read from the test's folder.
        """
        return {check.name: check.matters for check in tune.checks(self.config, self.root, self.limits)
                if not check.is_fine and check.name not in ("clock", "interpreter")}


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_host_as_it_should_be_has_nothing_wrong(host):
    assert host.wrong() == {}
    assert len(list(tune.checks(host.config, host.root, host.limits))) >= 10


GROUP = "sys/fs/cgroup/system.slice/geminga.service"


@pytest.mark.slow
@pytest.mark.parametrize(("path", "text", "name", "matters"), [
    ("proc/sys/vm/max_map_count", "8000", "mappings", True),
    ("proc/sys/vm/overcommit_memory", "2", "overcommit", True),
    ("proc/sys/net/core/somaxconn", "128", "connections that wait", False),
    ("proc/sys/vm/dirty_background_bytes", str(4 << 30), "dirty pages", False),
    ("proc/swaps", "Filename Type Size Used Priority\n/swap file 1000 0 -2\n", "swapping", False),
    ("proc/self/mountinfo", "22 1 0:5 / / rw - nfs4 there:/ rw\n", "file system", True),
    ("proc/self/mountinfo", "22 1 0:5 / / rw - tmpfs tmpfs rw\n", "file system", True),
    ("proc/self/mountinfo", "22 1 0:5 / / rw - overlay overlay rw\n", "file system", False),
    ("proc/self/mountinfo", "22 1 253:0 / / rw - ext4 /dev/vda rw,nobarrier\n", "file system", True),
    ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n", "huge pages", False),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n", "clock source", True),
    (f"{GROUP}/memory.max", f"{512 << 20}\n", "memory", True),
    ("sys/fs/cgroup/system.slice/memory.high", f"{512 << 20}\n", "memory", True),
    ("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{512 << 20}\n", "memory", True),
    (f"{GROUP}/pids.max", "100\n", "processes", True)])
def test_one_thing_that_is_not_is_found_alone(host, path, text, name, matters):
    host.put(path, text)
    assert host.wrong() == {name: matters}


def test_a_scheduler_that_sorts_is_for_disks_that_turn(host):
    host.put(f"{host.device}/scheduler", "none [bfq]\n")
    assert host.wrong() == {"scheduler of the disk": False}
    host.put(f"{host.device}/rotational", "1\n")
    assert host.wrong() == {}
    host.put(f"{host.device}/scheduler", "[none] bfq\n")
    assert host.wrong() == {"scheduler of the disk": False}


@pytest.mark.parametrize(("hard", "found"),
                         [(1 << 20, {}), (50_000, {"descriptors": False}), (1_024, {"descriptors": True}),
                                             (resource.RLIM_INFINITY, {})])
def test_few_descriptors_cost_speed_and_very_few_connections(host, hard, found):
    host.limits = 1_024, hard
    assert host.wrong() == found


def test_what_cannot_be_read_is_left_out(host, tmp_path):
    assert {check.name for check in tune.checks(host.config, tmp_path / "nothing", host.limits)} <= {
        "descriptors",
        "clock",
        "interpreter",
    }


@pytest.mark.parametrize(("state", "is_fine"), [(0x2001, True), (0x2041, False)])
def test_a_clock_that_nobody_corrects_is_told(state, is_fine):
    def adjtimex(buffer):
        buffer[40:44] = state.to_bytes(4, "little")
        return 5
    assert tune._synchronised(adjtimex).is_fine is is_fine


# -- the command, and the start -----------------------------------------------------------------------------------

def test_the_command_prints_what_it_found_and_how_to_change_it(host, monkeypatch, capsys):
    monkeypatch.setattr(tune, "checks", lambda config, limits: iter([
        tune.HostCheck("a", "1", "2", True), tune.HostCheck("b", "3", "4", False, False, "slow", "b=4"),
        tune.HostCheck("c", "5", "6", False, True, "bad", "c=6")]))
    assert main.main(["tune"]) == 0
    said = capsys.readouterr().out
    assert (
        said.splitlines()[0] == "fine    a: 1"
        and "better  b: 3" in said
        and "because  bad\n          command  c=6\n" in said
    )
    assert main.main(["tune", "--check"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "MATTERS c: 5"
    assert main.main(["tune", "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["a", "b", "c"]


def test_the_limits_of_another_process_can_be_looked_at(capsys):
    process = subprocess.Popen(["sleep", "60"],
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500)))
    try:
        assert tune.limits_of(process.pid) == (500, 500)
        assert main.main(["tune", "--check", "--pid", str(process.pid)]) == 1
        assert "MATTERS descriptors: 500\n" in capsys.readouterr().out
    finally:
        process.kill()
        process.wait()
    assert main.main(["tune", "--pid", str(process.pid)]) == 2


@pytest.mark.slow
def test_a_start_tells_once_of_what_matters(tmp_path, monkeypatch):
    """The line comes with advice; here a process may have few descriptors."""
    monkeypatch.setattr("tests.harness.COMMAND", ["prlimit", "--nofile=600:600", *COMMAND])
    broker = Broker(tmp_path / "data", "--workers", "1", "--owners", "1")
    broker.start()
    try:
        [line] = [line for line in broker.log().splitlines() if "descriptors: found 600, wanted 131072 or more" in line]
        assert "LimitNOFILE=" in line
    finally:
        broker.close()
