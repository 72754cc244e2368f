"""A broker that is still recovering answers what it is doing, and one that stops lets consumers finish."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import pulsar
import pytest

from ..harness import Broker, eventually, request, unique_topic
from .test_serve import run

pytestmark = pytest.mark.slow

# Serves as the command does, but owners recover nothing until a file is there.
SLOW = """
import pathlib, sys, time
from geminga.storage.owner import process
from geminga.supervisor.main import main

def slowly(*given, recover=process.recover_owner, **more):
    while not pathlib.Path(sys.argv[1]).exists():
        given[3]("ledgers", 3, 40)
        time.sleep(0.05)
    return recover(*given, **more)

process.recover_owner = slowly
sys.exit(main(["serve", *sys.argv[2:]]))
"""


@pytest.fixture
def slow(tmp_path):
    """(HTTP address, a function that lets the recovery end) of a broker that recovers until then."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-c", SLOW, tmp_path / "go", "--data-dir", tmp_path / "data", "--port", "0",
             "--http-port", str(port), "--workers", "1", "--owners", "2"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield f"http://127.0.0.1:{port}", (tmp_path / "go").touch
        process.terminate()
        process.communicate(timeout=30)


def _asked(url):
    with contextlib.suppress(OSError):
        return request("GET", url)
    return 0, ""


def test_a_broker_that_loads_says_how_far_it_is_and_refuses_the_rest(slow):
    """Nobody meets a broker with partitions missing; as soon as they are there, everything is answered."""
    http, let_go = slow
    eventually(lambda: "3 of 40" in _asked(f"{http}/ready")[1], 30)
    status, printed, complaints = run("status", "--admin-url", http)
    assert (status, complaints) == (1, []) and ", loading" in printed.splitlines()[0]
    assert "  the broker is loading: owner 0 has recovered 3 of 40" in printed.splitlines()
    state = json.loads(run("status", "--json", "--admin-url", http)[1])
    assert not state["ready"] and state["loading"] == [{"owner": index, "done": 3, "of": 40} for index in (0, 1)]
    status, _, complaints = run("status", "--ready", "--admin-url", http)
    assert status == 1 and "loading" in complaints[0] and len(complaints) == 1
    status, text = request("GET", f"{http}/admin/v2/tenants")
    assert status == 503 and "the broker is loading" in text and "try again" in text
    let_go()
    eventually(lambda: _asked(f"{http}/ready") == (200, "ok"), 30)
    assert run("status", "--ready", "--admin-url", http)[:2] == (0, "ok\n")
    assert request("GET", f"{http}/admin/v2/tenants")[0] == 200
    assert json.loads(run("status", "--json", "--admin-url", http)[1])["loading"] == []


def test_the_status_has_rates_of_the_last_seconds(broker):
    """A burst shows within seconds, not after a window of a minute."""
    client = pulsar.Client(broker.service_url)
    producer = client.create_producer(unique_topic("burst"))
    for _ in range(50):
        producer.send(b"x" * 1_000)

    def rates():
        return json.loads(run("status", "--json", "--admin-url", broker.http_url)[1])["rates"]
    assert eventually(lambda: (now := rates())["messages_in"] > 0 and now["bytes_in"] > 0 and now, 15)
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
        message = consumer.receive(10_000)
        os.kill(broker.pid, signal.SIGTERM)
        eventually(lambda: "is drained for up to 60 s" in broker.log(), 10)
        yield broker, lambda: consumer.acknowledge(message)
        client.close()


def test_sigterm_waits_for_what_consumers_hold_where_drain_s_says_so(draining):
    broker, acknowledge = draining
    assert "1 messages are to be acknowledged" in eventually(lambda: _asked(f"{broker.http_url}/ready")[1], 10)
    acknowledge()
    assert broker.ended(20) == 0
    assert "the broker was drained: 0 messages are not acknowledged" in broker.log()


def test_a_second_sigterm_ends_the_wait(draining):
    broker, _ = draining
    os.kill(broker.pid, signal.SIGTERM)
    assert broker.ended(20) == 0
    assert "was drained: 0" not in broker.log()
