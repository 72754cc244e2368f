"""The supervisor's promises about its children: they end with it, and their ends are reported with the right cause."""
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import COMMAND, HANG_SECONDS, eventually, unique_topic
from ..workers.peer import Peer

T = api.BaseCommand.Type
CONNECTED = "03"      # the state of a connected socket in /proc/net/unix


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process holds."""
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:      # the descriptor was closed since it was listed
            continue
    return {link[len("socket:["):-1] for link in links if link.startswith("socket:[")}


def connected_unix_sockets() -> set[str]:
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[6] for row in rows if row[5] == CONNECTED}


def test_children_that_are_stopped_end_with_their_supervisor(fresh_broker):
    """A stopped child does not notice the closed line: the kernel ends it."""
    fresh_broker.pause("owner")
    fresh_broker.pause("worker")
    fresh_broker.kill_supervisor(30)


def test_a_child_holds_no_line_of_another(fresh_broker):
    children = fresh_broker.children()
    assert {"geminga-o0", "geminga-w0", "geminga-admin"} <= children.keys()
    lines = sockets_of(fresh_broker.pid) & connected_unix_sockets()
    assert len(lines) >= len(children)
    for name, pid in children.items():
        # The line by which connections are handed over is theirs, each has one end.
        assert len(sockets_of(pid) & lines) == (name in ("geminga-admin", "geminga-web")), name


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_clients_are_told_of_a_stop_although_all_processes_get_the_signal(start_broker, how):
    """A terminal sends Ctrl-C to every process of its group."""
    broker = start_broker()
    with Peer(broker.service_url) as client:
        client.open_producer(unique_topic())
        for pid in (*broker.children().values(), broker.pid):
            os.kill(pid, how)
        assert client.hear().type == T.CLOSE_PRODUCER
        assert broker.ended() == 0


def test_a_child_that_does_not_stop_does_not_keep_the_broker(fresh_broker):
    fresh_broker.pause("owner")
    assert fresh_broker.stop() == 0


def test_a_broker_that_stopped_leaves_no_sockets(fresh_broker):
    place = fresh_broker.data_dir / "run"
    assert place.is_dir()
    assert fresh_broker.stop() == 0
    assert not place.exists() and not place.is_symlink()


@pytest.mark.slow
def test_a_certificate_that_cannot_be_read_ends_as_a_wrong_configuration(tmp_path):
    """Status 2 keeps the service manager from starting the same configuration again."""
    file = tmp_path / "geminga.toml"
    file.write_text(f'[tls]\ncertificate = "{tmp_path}/none.pem"\nkey = "{tmp_path}/none.key"\nport = 0\n')
    command = [*COMMAND, "--data-dir", tmp_path / "data", "--config", file, "--port", "0", "--http-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "none.pem" in done.stderr


def test_a_second_end_has_its_own_cause(start_broker):
    """A child was killed because it hung; its successor, killed by somebody else, is not reported as hanging."""
    broker = start_broker()
    second = broker.wait_replaced("worker", 0, broker.pause("worker"))
    before = len(broker.log())
    eventually(lambda: psutil.Process(second).status() == psutil.STATUS_SLEEPING)
    broker.kill("worker")
    broker.wait_replaced("worker", 0, second)
    lines = broker.log()[before:].splitlines()
    [line] = [line for line in lines if "geminga-w0" in line and "killed by SIGKILL" in line]
    assert "hang" not in line and "answer" not in line, line
