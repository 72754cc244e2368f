"""A process that hangs is replaced within ten seconds, others go on, and the service manager is told."""
import os
import signal
import socket
import threading
import time

import psutil
import pulsar
import pytest

from geminga.storage.runtime.routing import owner_of
from geminga.supervisor.processes import control_socket

from ..harness import HANG_MS, Broker, Stopwatch, eventually, request, unique_topic

pytestmark = pytest.mark.slow

HUNG_SECONDS = 10


class Manager:
    """The socket of a service manager, and the messages it got."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self.lines = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        while data := self._socket.recv(65536):
            self.lines += [(time.monotonic(), line) for line in data.decode().split("\n")]

    def said(self, beginning):
        return [line for _, line in self.lines if line.startswith(beginning)]


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    """A service manager at an abstract address, as in containers."""
    return Manager(f"\0geminga-test-{os.getpid()}")


@pytest.fixture(scope="module")
def hung_broker(tmp_path_factory, manager):
    """A broker of two workers and two owners, under a service manager."""
    place = {"NOTIFY_SOCKET": f"@geminga-test-{os.getpid()}", "WATCHDOG_USEC": "60000000"}
    os.environ.update(place)
    try:
        folder = tmp_path_factory.mktemp("hung")
        (folder / "geminga.toml").write_text("")
        options = "--workers", "2", "--owners", "2", "--config", str(folder / "geminga.toml")
        broker = Broker(folder / "data", *options).start()
    finally:
        for name in place:
            del os.environ[name]
    yield broker
    broker.close()


def topic_of(owner):
    while owner_of(topic := unique_topic("hung"), 2) != owner:
        pass
    return topic


def client_at(broker, worker):
    """Return a client that this worker serves."""
    def connections():
        return len(psutil.Process(broker.child("worker", worker)).net_connections("tcp"))

    while True:
        before = connections()
        quietly = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        client = pulsar.Client(broker.service_url, operation_timeout_seconds=30, logger=quietly)
        client.get_topic_partitions(unique_topic())
        if connections() > before:
            return client
        client.close()


def test_readiness_is_told_when_everybody_is(hung_broker, manager):
    eventually(lambda: manager.said("READY=1"))
    assert manager.said("READY=1") == ["READY=1"]
    eventually(lambda: manager.said("WATCHDOG=1"))
    before = next(at for at, (_, line) in enumerate(manager.lines) if line == "READY=1")
    told = [line for _, line in manager.lines[:before]]
    assert any("recovering: owner 1 of 2" in line for line in told)
    assert hung_broker.service_url in told[-1]      # STATUS names the addresses that are served


@pytest.mark.slow
def test_whoever_hangs_is_replaced_and_others_go_on(hung_broker, manager):
    """A worker, an owner and the admin hang at once: clients of the other worker with topics of the other owner go on.
    """
    broker = hung_broker
    other = client_at(broker, 1)
    quiet = other.create_producer(topic_of(1))
    topic = topic_of(0)
    hit = client_at(broker, 0)
    consumer = hit.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = hit.create_producer(topic)
    sent = [producer.send(b"before %d" % n) and b"before %d" % n for n in range(10)]
    fed = len(manager.said("WATCHDOG"))
    hung = {role: broker.pause(role) for role in ("worker", "owner", "admin")}
    watch = Stopwatch()
    while any(broker.child(role) == pid for role, pid in hung.items()):
        asked = Stopwatch()
        quiet.send(b"x")
        assert asked.seconds() < 2
        assert watch.seconds() < HUNG_SECONDS
    for role, pid in hung.items():
        broker.wait_replaced(role, 0, pid)
    sent += [producer.send(b"after %d" % n) and b"after %d" % n for n in range(10)]
    got = set()
    while len(got) < len(sent):
        message = consumer.receive(HANG_MS)
        got.add(message.data())
        consumer.acknowledge(message)
    assert got == set(sent)
    eventually(lambda: request("GET", broker.http_url + "/admin/v2/brokers/health")[0] == 200)
    for name, pid in (("geminga-w0", hung["worker"]), ("geminga-o0", hung["owner"]), ("geminga-admin", hung["admin"])):
        assert f"{name} (pid {pid}) has not answered for" in broker.log()
    assert "it is stopped by a signal; it was killed; starting it again" in broker.log()
    assert "out of memory" not in broker.log()
    assert any("geminga-o0 has not answered" in line for line in manager.said("STATUS"))
    # the status tells how far recovery is
    assert any("recovering: owner 1 of 2, " in line for line in manager.said("STATUS"))
    assert manager.said("EXTEND_TIMEOUT_USEC=")
    assert fed <= len(manager.said("WATCHDOG"))
    other.close()
    hit.close()


@pytest.mark.slow
def test_a_supervisor_that_was_stopped_kills_nobody(hung_broker):
    """Children do not mind either: they go on meanwhile, and answer when they are asked again."""
    broker = hung_broker
    before = broker.children()
    os.kill(broker.pid, signal.SIGSTOP)
    client = pulsar.Client(broker.service_url)
    producer = client.create_producer(unique_topic())
    began = time.monotonic()

    def has_sent_for(seconds):
        producer.send(b"x")
        return time.monotonic() - began > seconds

    eventually(lambda: has_sent_for(9))
    os.kill(broker.pid, signal.SIGCONT)
    eventually(lambda: has_sent_for(12))
    client.close()
    assert broker.children() == before


def test_a_reload_is_told_and_what_is_wrong_with_it(hung_broker, manager):
    """A reload ends with READY=1 whatever becomes of it, and STATUS gives the error until a configuration is accepted.
    """
    file = hung_broker.data_dir.with_name("geminga.toml")
    for text, error in (("[storage]\nretention_s = -7\n", "storage.retention_s"), ("[storage]\nretention_s = 7\n", "")):
        file.write_text(text)
        before = len(manager.lines)
        [answer] = control_socket.ask(hung_broker.data_dir, reload=True)
        assert error in answer["error"]
        eventually(lambda before=before: any(line == "READY=1" for _, line in manager.lines[before:]))
        told = [line for _, line in manager.lines[before:] if not line.startswith("WATCHDOG")]
        assert (told[0], told[1].partition("=")[0]) == ("RELOADING=1", "MONOTONIC_USEC")
        assert told[-1] == "READY=1"
        assert ("not reloaded: " in manager.said("STATUS")[-1]) == bool(error)


@pytest.mark.slow
def test_the_end_is_told(hung_broker, manager):
    assert hung_broker.stop() == 0
    eventually(lambda: manager.said("STOPPING=1"))
