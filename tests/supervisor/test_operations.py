"""Tools of operators: the log's level, alarms, status."""
import json
import os
import re
import resource
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from geminga.storage.runtime.counters import make_counters
from geminga.supervisor import main
from geminga.supervisor.admin.monitoring import health
from geminga.supervisor.admin.monitoring.alarms import ALARMS_OF
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import COUNTERS
from geminga.supervisor.host import host

from ..harness import COMMAND, Broker, eventually, request, unique_topic

pytestmark = pytest.mark.slow
OWN_OPTIONS = "--owners", "2", "--workers", "2"

LEVEL = "/ops/v1/log-level"


@pytest.fixture
def run(own, capsys):
    """Run a command about this broker; return (exit status, output, complaints)."""
    def run(*words):
        status = main.main([*words, "--http-url", own.http_url])
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


def lines(broker, *parts):
    return [line for line in broker.log().splitlines() if all(part in line for part in parts)]


# -- the log ------------------------------------------------------------------------------------------------------

def use(broker, topic):
    """Publish and read a message by a client."""
    assert main.main(["publish", "--url", broker.service_url, topic, "hello"]) == 0


def test_debug_of_one_topic_is_told_by_all_processes_and_ends_by_itself(own, run):
    topic, other = unique_topic(), unique_topic()
    status, said, _ = run("log", "level", "debug", "--topic", topic, "--for", "1m")
    assert status == 0 and "info is configured" in said and f"of topic {topic}" in said
    eventually(lambda: (use(own, topic), lines(own, "a producer was made", f"topic={topic} ", "client=127.0.0.1:"))[1])
    use(own, other)
    assert not lines(own, "a producer was made", other)
    # this replaces the level for a minute
    assert run("log", "level", "debug", "--topic", topic, "--for", "1s")[0] == 0
    eventually(lambda: json.loads(request("GET", own.http_url + LEVEL)[1])["for_now"] == [])
    told = len(lines(own, "a producer was made"))
    use(own, topic)
    assert len(lines(own, "a producer was made")) == told


def test_a_level_of_everything_reaches_workers_and_whoever_is_started_later(own, run):
    assert run("log", "level", "debug")[0] == 0
    eventually(lambda: (use(own, unique_topic()), lines(own, "a connection was opened", "client=127.0.0.1:"))[1])
    before = len(lines(own, "a producer was made"))
    for index in range(2):
        own.wait_replaced("owner", index, own.kill("owner", index))
    topic = unique_topic()
    eventually(lambda: (use(own, topic), lines(own, "a producer was made", topic))[1])
    own.wait_replaced("admin", 0, own.kill("admin"))
    eventually(lambda: "debug for another" in run("log", "level")[1])
    assert run("log", "level", "--reset")[1] == "info is configured\n"
    assert len(lines(own, "a producer was made")) > before


@pytest.mark.parametrize("body", [
    None, [], {}, {"level": "loud"}, {"level": "debug", "topic": 3}, {"level": "debug", "topic": "a/b"},
    {"level": "debug", "for": 3},
    *({"level": "debug", "seconds": seconds} for seconds in (0, 1e9, "5m", True))])
def test_a_level_that_is_none_is_refused(own, body):
    status, text = request("PUT", own.http_url + LEVEL, json.dumps(body).encode())
    assert status in (400, 412), (status, text)


def test_what_is_changed_by_administration_is_told_with_its_topic(own):
    topic = unique_topic()
    assert request("PUT", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}")[0] == 204
    assert lines(own, "administration: PUT /admin/v2/persistent/", topic.rpartition("/")[2], "client=127.0.0.1")


# -- status and alarms --------------------------------------------------------------------------------------------

def metric(broker, name):
    found = [line.rpartition(" ")[2] for line in request("GET", broker.http_url + "/metrics")[1].splitlines()
             if line.startswith(name)]
    return float(found[0]) if found else None


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A broker with a topic of three messages and a flipped bit in its folder."""
    broker = Broker(tmp_path_factory.mktemp("status") / "data", "--workers", "1", "--owners", "1")
    broker.start()
    assert main.main(["publish", "--url", broker.service_url, "kept", "1", "2", "3"]) == 0
    yield broker
    broker.close()


def test_status_of_a_broker_that_is_well_is_a_few_lines_and_exit_status_zero(fresh, capsys):
    assert main.main(["status", "--http-url", fresh.http_url]) == 0
    said = capsys.readouterr().out
    assert re.match(r"Geminga 0\.1\.0, up \d+ s, ready\n", said) and "ALARM" not in said
    for process, pid in {"supervisor": fresh.pid, "worker-0": fresh.child("worker"), "owner-0": fresh.child("owner"),
                         "admin": fresh.child("admin")}.items():
        assert re.search(rf"^  {process} +pid {pid} +(sleeping|running) +\d[\d.]* MiB  up ", said, re.MULTILINE), (
            process,
            said,
        )
    assert len({line.index(" pid ") for line in said.splitlines() if " pid " in line}) == 1, said
    assert "  topics      1, of which 1 are loaded, with 0 subscriptions\n" in said and str(fresh.data_dir) in said
    assert main.main(["status", "--json", "--http-url", fresh.http_url]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["alarms"], found["ready"], found["topics"], found["night"]) == ([], True, {"total": 1, "loaded": 1},
                                                                                  None)
    assert (
        found["memory"]["limit_bytes"]
        > found["memory"]["used_bytes"]
        > 0
        < found["disk"]["free_bytes"]
        < found["disk"]["bytes"]
    )


def test_status_tells_of_no_backlog_as_long_as_topics_are_not_loaded(tmp_path, capsys):
    broker = Broker(tmp_path / "data", "--workers", "1", "--owners", "1")
    try:
        broker.start()
        for topic in ("a", "b"):
            url = f"{broker.http_url}/admin/v2/persistent/public/default/{topic}"
            assert request("PUT", url)[0] == request("PUT", f"{url}/subscription/s", b"{}")[0] == 204
            assert main.main(["publish", "--url", broker.service_url, topic, "1", "2"]) == 0
        assert "backlog     4 entries; " in status(broker, capsys)
        broker.stop()
        broker.start()
        assert "backlog     unknown, as 2 of 2 topics are not loaded; of the others 0 entries; " in status(
            broker, capsys
        )
        assert request("GET", f"{url}/stats")[0] == 200
        assert "backlog     unknown, as 1 of 2 topics are not loaded; of the others 2 entries; " in status(
            broker, capsys
        )
    finally:
        broker.close()


def status(broker, capsys):
    capsys.readouterr()
    assert main.main(["status", "--http-url", broker.http_url]) == 0
    return capsys.readouterr().out


def test_a_broker_is_not_ready_from_the_moment_on_that_a_process_was_killed(own):
    """The supervisor stands still, or the answer could come when the process was replaced."""
    for role, index in (("worker", 0), ("owner", 0), ("worker", 1), ("owner", 1)):
        eventually(lambda: request("GET", own.http_url + "/ready") == (200, "ok"))
        os.kill(own.pid, signal.SIGSTOP)
        try:
            own.kill(role, index)
            code, text = request("GET", own.http_url + "/ready")
        finally:
            os.kill(own.pid, signal.SIGCONT)
        assert (code, f"{role} {index} is being started" in text) == (503, True), text


def test_a_process_serves_when_it_has_said_so_itself():
    """A process is not serving yet while it is started in the place of another.  One that was never needed is not
    missed, nor while it is first started, but one that ended before it could serve is.
    """
    roles = ("admin", "worker", "owner", "web", "replicator")
    counters = dict(zip(((role, 0) for role in roles), make_counters(len(roles)), strict=True))
    is_up = [True]
    app = {COUNTERS: counters, OWNERS: SimpleNamespace(is_up=lambda index: is_up[0]),
           ALARMS_OF: SimpleNamespace(obstacles=list)}
    for role in ("admin", "worker", "owner"):
        row = counters[role, 0]
        row.set("pid", os.getpid())
        row.set("serving_pid", os.getpid())
    assert health.obstacles(app) == []
    for role in ("web", "replicator"):
        for expected in ([], [f"{role} 0 is being started"]):
            counters[role, 0].process_began(os.getpid(), is_wanted=False)
            assert health.obstacles(app) == expected
        counters[role, 0].set("serving_pid", os.getpid())
    for role in ("worker", "owner", "web", "replicator"):
        counters[role, 0].set("serving_pid", os.getppid())
        assert health.obstacles(app) == [f"{role} 0 is being started"]
        counters[role, 0].set("serving_pid", os.getpid())
    is_up[0] = False
    assert health.obstacles(app) == ["owner 0 is being started"]


@pytest.mark.parametrize(("state", "flags", "pending", "ends"), [
    ("S", 0x400040, 0, False), ("R", 0x400040, 1 << 2, False), ("D", 0x400040, 1 << 8, True), ("R", 0x400044, 0, True),
    ("Z", 0x400044, 0, True), ("X", 0x400040, 0, True)])
def test_a_process_ends_from_the_moment_on_that_it_was_killed(tmp_path, state, flags, pending, ends):
    """The state is that of proc_pid_stat(5), whose name field may have blanks and brackets."""
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    fields = [state, *["1", "7", "7", "0", "-1"], str(flags), *["0"] * 21, str(pending), *["0"] * 20]
    (folder / "stat").write_text(f"7 (a ) b) {' '.join(fields)}\n")
    assert host.is_ending(7, tmp_path) is ends
    assert host.is_ending(8, tmp_path) and not host.is_ending(os.getpid())


def test_a_broker_that_lost_all_processes_is_ready_when_all_serve_again(own):
    """Readiness gives no 200 before each process has been replaced."""
    eventually(lambda: ready(own) == 200)
    old = {(role, index): own.child(role, index) for role, index in (
        ("worker", 0), ("worker", 1), ("owner", 0), ("owner", 1), ("admin", 0))}
    for pid in old.values():
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: ready(own) == 200)
    assert all(own.child(*which) not in (None, pid) for which, pid in old.items())


def ready(broker):
    """Return the status of readiness; 0 if nobody answers."""
    try:
        return request("GET", broker.http_url + "/ready")[0]
    except OSError:
        return 0


def test_status_of_a_broker_that_is_not_there_is_exit_status_three(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert main.main(["status", "--http-url", f"http://127.0.0.1:{free.getsockname()[1]}"]) == 3


def test_damage_is_an_alarm_in_status_metrics_and_log_until_it_was_seen_to(fresh, capsys):
    fresh.stop()
    state = next((fresh.data_dir / "partitions").glob("*/state"))
    data = bytearray(state.read_bytes())
    data[20] ^= 1
    state.write_bytes(data)
    fresh.start()
    assert metric(fresh, 'geminga_alarm{alarm="damage"}') == 0
    assert main.main(["read", "--url", fresh.service_url, "kept"]) == 0
    eventually(lambda: metric(fresh, 'geminga_alarm{alarm="damage"}') == 1)
    capsys.readouterr()
    assert main.main(["status", "--http-url", fresh.http_url]) == 1
    said = capsys.readouterr().out
    assert ", ready\n" in said and "ALARM damage since " in said and "geminga status --seen damage" in said
    assert Path(re.search(r"what to do: (\S+);", said)[1]).read_text().startswith("# ")
    assert lines(fresh, "alarm damage: ") and not lines(fresh, "alarm damage is over")
    assert main.main(["status", "--seen", "damage", "--http-url", fresh.http_url]) == 0
    assert lines(fresh, "alarm damage is over") and metric(fresh, 'geminga_alarm{alarm="damage"}') == 0


def test_only_alarms_that_stay_can_be_seen_to(fresh, capsys):
    assert main.main(["status", "--seen", "disk", "--http-url", fresh.http_url]) == 2
    assert "over by itself" in capsys.readouterr().err


def test_a_process_that_has_to_be_started_again_and_again_is_an_alarm(fresh, capsys):
    for _ in range(2):
        fresh.wait_replaced("worker", 0, fresh.kill("worker"))
    eventually(lambda: metric(fresh, 'geminga_alarm{alarm="processes"}') == 1)
    assert main.main(["status", "--http-url", fresh.http_url]) == 1
    assert re.search(r"worker-0 .* started again 2 times\n", capsys.readouterr().out)
    assert metric(fresh, 'geminga_starts_total{process="worker-0"}') == 3


def test_status_takes_less_than_a_blink(fresh):
    """The least CPU time of some runs counts, which other work on the machine changes little."""
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([COMMAND[0], "status", "--http-url", fresh.http_url], stdout=subprocess.DEVNULL, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 0.15


def test_short_memory_is_an_alarm_and_not_ready_and_what_is_refused_follows_the_configuration(tmp_path, capsys):
    """First the broker may use nearly nothing of the host's memory; then, without a start, all of it."""
    if host.memory().part < 0.011:
        pytest.skip("less than one percent of this host's memory is used")
    config = tmp_path / "geminga.toml"
    config.write_text("[alarms]\nmemory_percent = 1\nmemory_refuse_percent = 1\n")
    broker = Broker(tmp_path / "data", "--workers", "1", "--owners", "1", "--config", str(config))
    broker.start()
    try:
        eventually(lambda: request("GET", broker.http_url + "/ready")[0] == 503)
        assert (
            "MiB of" in request("GET", broker.http_url + "/ready")[1]
            and request("GET", broker.http_url + "/status.html")[0] == 200
        )
        assert main.main(["status", "--http-url", broker.http_url]) == 1
        said = capsys.readouterr().out
        assert ", not ready\n" in said and "ALARM memory since " in said and "nobody may publish" in said
        assert metric(broker, 'geminga_alarm{alarm="memory"}') == 1
        # One that is under way when memory runs short is told that its producer was closed.
        eventually(lambda: main.main(["publish", "--url", broker.service_url, "full", "1"]) == 1
                   and "memory is nearly used up" in capsys.readouterr().err)
        config.write_text("[alarms]\nmemory_percent = 100\nmemory_refuse_percent = 0\n")
        os.kill(broker.pid, signal.SIGHUP)
        eventually(lambda: request("GET", broker.http_url + "/ready")[0] == 200)
        eventually(lambda: main.main(["publish", "--url", broker.service_url, "full", "1"]) == 0)
        eventually(lambda: lines(broker, "alarm memory is over"))
    finally:
        broker.close()
