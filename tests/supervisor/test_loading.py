"""A broker that is still recovering answers what it is doing, and one that stops lets consumers finish."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pulsar
import pytest

from ..harness import HANG_MS, HANG_SECONDS, Broker, eventually, request, unique_topic
from ..web.rest import Rest
from .test_serve import run

pytestmark = pytest.mark.slow

# Serves as the command does, but owners recover nothing until a file is there, and fail while another one is.
SLOW = """
import pathlib, sys, time
from geminga.storage.owner import process
from geminga.supervisor.main import main

def slowly(*given, recover=process.recover_owner, **more):
    if pathlib.Path(sys.argv[1] + ".fail").exists():
        raise process.NotDurable("the disk is broken")
    while not pathlib.Path(sys.argv[1]).exists():
        given[3]("ledgers", 3, 40)
        time.sleep(0.05)
    return recover(*given, **more)

process.recover_owner = slowly
sys.exit(main(["serve", *sys.argv[2:]]))
"""


class Slow:
    """A broker with one worker and two owners, which recover until `go` is there and fail while `go.fail` is."""

    def __init__(self, folder, process, http, port):
        self.go, self.process, self.http, self.port = folder / "go", process, http, port

    def child(self, name):
        """Return a child by its name, None while there is none."""
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name() == name:
                    return child
        return None

    def is_accepting(self):
        """Whether a client's connection is accepted, as a client with cluster failover looks.

        One that comes while the port is closed may be reset.
        """
        refusals = ConnectionRefusedError, ConnectionResetError
        with contextlib.suppress(*refusals), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False


@pytest.fixture
def slow(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        http, port = free.getsockname()[1], other.getsockname()[1]
    words = [sys.executable, "-c", SLOW, tmp_path / "go", "--data-dir", tmp_path / "data", "--port", str(port),
             "--http-port", str(http), "--workers", "1", "--owners", "2"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield Slow(tmp_path, process, f"http://127.0.0.1:{http}", port)
        process.terminate()
        process.communicate(timeout=HANG_SECONDS)


def _asked(url):
    with contextlib.suppress(OSError):
        return request("GET", url)
    return 0, ""


def test_a_broker_that_loads_says_how_far_it_is_and_refuses_the_rest(slow):
    """Nobody meets a broker with partitions missing; as soon as they are there, everything is answered."""
    http = slow.http
    eventually(lambda: "3 of 40" in _asked(f"{http}/ready")[1])
    status, printed, complaints = run("status", "--admin-url", http)
    assert (status, complaints) == (1, []) and ", loading" in printed.splitlines()[0]
    assert "  the broker is loading: owner 0 has recovered 3 of 40" in printed.splitlines()
    state = json.loads(run("status", "--json", "--admin-url", http)[1])
    assert not state["ready"] and state["loading"] == [{"owner": index, "done": 3, "of": 40} for index in (0, 1)]
    status, _, complaints = run("status", "--ready", "--admin-url", http)
    assert status == 1 and "loading" in complaints[0] and len(complaints) == 1
    status, text = request("GET", f"{http}/admin/v2/tenants")
    assert status == 503 and "the broker is loading" in text and "try again" in text
    slow.go.touch()
    eventually(lambda: _asked(f"{http}/ready") == (200, "ok"))
    assert run("status", "--ready", "--admin-url", http)[:2] == (0, "ok\n")
    assert request("GET", f"{http}/admin/v2/tenants")[0] == 200
    assert json.loads(run("status", "--json", "--admin-url", http)[1])["loading"] == []


def test_clients_are_accepted_while_the_host_can_serve_and_refused_otherwise(slow):
    """Refused before owners have recovered, when all fail to start again, and from the first moment of a stop.  A
    process that restarts closes nothing.
    """
    eventually(lambda: "3 of 40" in _asked(f"{slow.http}/ready")[1])
    assert not slow.is_accepting()
    slow.go.touch()
    eventually(slow.is_accepting)
    eventually(lambda: _asked(f"{slow.http}/ready") == (200, "ok"))
    for name in ("geminga-w0", "geminga-o0"):
        old = slow.child(name)
        old.suspend()
        assert slow.is_accepting()
        old.kill()
        eventually(lambda name=name, old=old: not slow.is_accepting() or slow.child(name) not in (None, old))
        assert slow.is_accepting()
    eventually(lambda: _asked(f"{slow.http}/ready") == (200, "ok"))
    failing = slow.go.with_name("go.fail")
    failing.touch()
    for name in ("geminga-o0", "geminga-o1"):
        slow.child(name).kill()
    eventually(lambda: not slow.is_accepting())
    failing.unlink()
    eventually(slow.is_accepting)
    eventually(lambda: _asked(f"{slow.http}/ready") == (200, "ok"))
    rest = Rest(slow.http)
    rest.publish(rest.topic(), "x")      # begins geminga-web
    slow.child("geminga-web").suspend()      # workers and owners end after it
    slow.process.terminate()
    eventually(lambda: not slow.is_accepting() and slow.child("geminga-w0") and slow.child("geminga-o0"))


def test_the_status_has_rates_of_the_last_seconds(broker):
    """A burst shows within seconds, not after a window of a minute."""
    client = pulsar.Client(broker.service_url)
    producer = client.create_producer(unique_topic("burst"))
    for _ in range(50):
        producer.send(b"x" * 1_000)

    def rates():
        return json.loads(run("status", "--json", "--admin-url", broker.http_url)[1])["rates"]
    assert eventually(lambda: (now := rates())["messages_in"] > 0 and now["bytes_in"] > 0 and now)
    client.close()


@pytest.fixture
def draining(tmp_path):
    """A broker that drains for up to a minute at SIGTERM, with a consumer that holds a message."""
    (tmp_path / "geminga.toml").write_text("drain_s = '1m'\n")
    with contextlib.closing(Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml"), "--workers", "1",
                                   "--owners", "1")) as broker:
        client = pulsar.Client(broker.start().service_url)
        topic = unique_topic("held")
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        client.create_producer(topic).send(b"held")
        message = consumer.receive(HANG_MS)
        os.kill(broker.pid, signal.SIGTERM)
        eventually(lambda: "is drained for up to 60 s" in broker.log())
        yield broker, lambda: consumer.acknowledge(message)
        client.close()


def test_sigterm_waits_for_what_consumers_hold_where_drain_s_says_so(draining):
    broker, acknowledge = draining
    eventually(lambda: "1 messages are to be acknowledged" in _asked(f"{broker.http_url}/ready")[1])
    acknowledge()
    assert broker.ended() == 0
    assert "the broker was drained: 0 messages are not acknowledged" in broker.log()


def test_a_second_sigterm_ends_the_wait(draining):
    broker, _ = draining
    os.kill(broker.pid, signal.SIGTERM)
    assert broker.ended() == 0
    assert "was drained: 0" not in broker.log()
