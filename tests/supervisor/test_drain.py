"""A drain: nothing is published or delivered any more, and consumers may acknowledge what they have."""
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.routing import owner_of
from geminga.storage.runtime.unix_sockets import short_path
from geminga.supervisor.processes import control_socket
from geminga.supervisor.processes.drain import Drain

from ..harness import HANG_SECONDS, Broker, eventually, request, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Peer

pytestmark = pytest.mark.slow

GEMINGA = str(Path(sys.executable).with_name("geminga"))


def drain(broker, seconds):
    """Start a drain; yield its answers as they come."""
    return control_socket.ask(broker.data_dir, drain=seconds)


def run(*arguments):
    return subprocess.run([GEMINGA, *map(str, arguments)], capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=False)


class Reader(threading.Thread):
    """Reads the answers of a drain."""

    def __init__(self, broker, seconds):
        super().__init__(daemon=True)
        self.said, self._answers = [], drain(broker, seconds)
        self.start()

    def run(self):
        for answer in self._answers:
            self.said.append(answer["outstanding"])


def given_out(peer, topic, count):
    """Publish so many messages to the peer's consumer; return their ids, none acknowledged."""
    peer.open_producer(topic)
    peer.subscribe(topic)
    peer.say(command(T.FLOW, consumer_id=1, messagePermits=1_000))
    peer.say(b"".join(send(entry_of(message_metadata(sequence_id=number)), sequence_id=number)
                      for number in range(count)))
    ids, receipts = [], 0
    while len(ids) < count or receipts < count:
        heard = peer.hear()
        if heard.type == T.MESSAGE:
            ids.append(heard.message.message_id)
        else:
            receipts += heard.type == T.SEND_RECEIPT
    return ids


def acknowledge(peer, ids):
    peer.say(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=ids))


def test_it_waits_for_what_is_out_and_takes_nothing_new(fresh_broker):
    """Producers are closed, readiness gives the reason, new ones are to try again; consumers are closed last."""
    topic = unique_topic()
    with Peer(fresh_broker.service_url) as peer, Peer(fresh_broker.service_url) as other:
        ids = given_out(peer, topic, 20)
        reader = Reader(fresh_broker, 60)
        assert peer.hear().type == T.CLOSE_PRODUCER
        eventually(lambda: 20 in reader.said)
        # the SEND is ignored: neither answered nor delivered
        peer.say(send(entry_of(message_metadata(sequence_id=99)), sequence_id=99))
        refused = other.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1)
        assert refused.error.error == api.ServiceNotReady
        refused = other.ask(T.SUBSCRIBE, topic=topic, subscription="new", subType=0, consumer_id=1, request_id=2)
        assert refused.error.error == api.ServiceNotReady
        status, why = request("GET", fresh_broker.http_url + "/ready")
        assert status == 503 and "20 messages" in why
        acknowledge(peer, ids[:15])
        eventually(lambda: 5 in reader.said)
        acknowledge(peer, ids[15:])
        assert [heard.type for heard in peer.until_closed()] == [T.CLOSE_CONSUMER]
        assert fresh_broker.ended() == 0
    reader.join(HANG_SECONDS)
    assert reader.said[-1] == 0
    fresh_broker.start()
    with Peer(fresh_broker.service_url) as peer:
        # nothing is delivered again, and number 99 was not stored
        assert [found.entryId for found in given_out(peer, topic, 1)] == [20]


def test_it_waits_no_longer_than_it_may(fresh_broker):
    """Messages that are not acknowledged in time are delivered again after the next start."""
    topic = unique_topic()
    with Peer(fresh_broker.service_url) as peer:
        ids = given_out(peer, topic, 5)
        acknowledge(peer, ids[:2])
        done = run("drain", "--data-dir", fresh_broker.data_dir, "--seconds", "0.5")
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "stopped; 3 messages will be redelivered")
        assert fresh_broker.ended() == 0
    fresh_broker.start()
    with Peer(fresh_broker.service_url) as peer:
        peer.subscribe(topic)
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=10))
        assert [peer.hear().message.message_id.entryId for _ in range(3)] == [found.entryId for found in ids[2:]]


@pytest.mark.parametrize("kind",
                         [pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared])
def test_real_clients_lose_nothing_and_get_nothing_twice(fresh_broker, kind):
    """Clients publish and consume through the stop: they find the broker again when it is back."""
    topic, ended, published = unique_topic(), threading.Event(), threading.Event()
    client = pulsar.Client(fresh_broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    consumers = [client.subscribe(topic, "s", kind) for _ in range(2)]
    producer = client.create_producer(topic, send_timeout_millis=60_000, max_pending_messages=1_000,
                                      block_if_queue_full=True)
    sent, got = [], []

    def publish():
        number = 0
        while not ended.is_set():
            producer.send_async(b"%d" % number,
                                lambda result, _, number=number: result == pulsar.Result.Ok and sent.append(number),
                                partition_key=str(number % 7))
            number += 1
            ended.wait(0.0005)
        producer.flush()
        published.set()

    def consume(consumer):
        while not published.is_set() or len(got) < len(sent):
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            got.append(int(message.data()))
            consumer.acknowledge(message)

    threads = [threading.Thread(target=publish),
               *(threading.Thread(target=consume, args=(consumer,)) for consumer in consumers)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(got) > 500)
    assert list(drain(fresh_broker, 30))[-1] == {"outstanding": 0}
    assert fresh_broker.ended() == 0
    fresh_broker.start()
    before = len(got)
    eventually(lambda: len(got) > before + 200)
    ended.set()
    for thread in threads:
        thread.join(HANG_SECONDS)
    client.close()
    assert sorted(got) == sorted(sent)


def test_a_child_that_is_started_meanwhile_is_drained_too(fresh_broker):
    with Peer(fresh_broker.service_url) as peer:
        topic = unique_topic()
        given_out(peer, topic, 3)
        Reader(fresh_broker, 60)
        assert peer.hear().type == T.CLOSE_PRODUCER
        # processes that neither have pending messages nor count them
        for role, index in (("owner", 1 - owner_of(topic, 2)), ("admin", 0)):
            fresh_broker.wait_replaced(role, index, fresh_broker.kill(role, index))
    assert fresh_broker.ended() == 0      # no message is pending any more


class Driven:
    """A drain of a played supervisor."""

    def __init__(self, monkeypatch):
        self.now, self.outstanding, self.told, self.has_stopped = 100.0, 3, [], False
        monkeypatch.setattr("geminga.supervisor.processes.drain.time", SimpleNamespace(monotonic=lambda: self.now))
        control = SimpleNamespace(send=lambda **message: self.told.append(message))
        self.child = SimpleNamespace(process=object(), control=control, is_drained=False)
        counters = {("admin", 0): SimpleNamespace(total=lambda name: self.outstanding)}
        children = [self.child, SimpleNamespace(process=None, is_drained=True)]
        self.supervisor = SimpleNamespace(is_ready=True, is_stopping=False, children=children, counters=counters,
                                          begin_stop=self._stop)
        self.drain = Drain(self.supervisor)

    def _stop(self):
        self.has_stopped = True

    def ask(self, seconds):
        said = []
        self.drain.asked(SimpleNamespace(send=lambda outstanding: said.append(outstanding)), seconds)
        return said

    def at(self, now):
        """Let time pass; return whether the drain stops the broker then."""
        self.now = now
        self.drain.go_on()
        return self.has_stopped


def test_who_asks_again_says_how_long_it_takes_from_now_on(monkeypatch):
    """The new time may be longer or shorter; children are told once."""
    driven = Driven(monkeypatch)
    driven.child.is_drained = True
    said = [driven.ask(10), driven.ask(60)]
    assert not driven.at(111) and not driven.at(159)
    assert said == [[3, 3], [3, 3]] and driven.told == [{"drain": True}]
    driven.ask(5)
    assert not driven.at(163.9) and driven.at(164)
    driven = Driven(monkeypatch)
    driven.ask(60)
    driven.ask(0)
    assert driven.at(100)


def test_it_ends_when_nothing_is_out_and_every_child_says_that_it_is_drained(monkeypatch):
    driven = Driven(monkeypatch)
    assert not driven.drain.is_under_way and not driven.at(101)
    driven.ask(60)
    assert driven.drain.is_under_way and not driven.at(102)
    driven.outstanding = 0
    said = driven.ask(60)
    assert not driven.at(103) and said == [], "a process may still take new work"
    driven.child.is_drained, driven.outstanding = True, 1
    assert not driven.at(104) and said == [1]
    driven.outstanding = 0
    assert driven.at(105)


def test_a_broker_that_does_not_serve_yet_stops_at_once_and_one_that_stops_is_not_drained(monkeypatch):
    driven = Driven(monkeypatch)
    driven.supervisor.is_ready = False
    driven.ask(60)
    assert driven.has_stopped and not driven.drain.is_under_way and driven.told == []
    driven = Driven(monkeypatch)
    driven.ask(60)
    driven.supervisor.is_stopping = True
    assert not driven.at(1_000)


@pytest.mark.parametrize("seconds", [-1, 24 * 3600 + 1, float("nan")])
def test_a_time_that_is_none_is_refused(monkeypatch, seconds):
    driven = Driven(monkeypatch)
    with pytest.raises(ValueError):
        driven.ask(seconds)
    assert not driven.drain.is_under_way
    driven.ask(24 * 3600)


def test_of_a_folder_that_nobody_serves(tmp_path):
    done = run("drain", "--data-dir", tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.slow
def test_one_that_nobody_uses_is_gone_at_once(tmp_path):
    broker = Broker(tmp_path / "data").start()
    try:
        assert run("drain", "--data-dir", broker.data_dir, "--seconds", 30).returncode == 0
        assert broker.ended() == 0
    finally:
        broker.close()


@pytest.mark.parametrize("said", [b"{}", b"nothing", b"5", b'["reload"]', b'{"drain": "soon"}', b'{"drain": -1}',
                                  b'{"drain": NaN}', b'{"stop": 1}'])
def test_what_is_no_command_is_hung_up_on(own, said):
    """The broker goes on."""
    with socket.socket(socket.AF_UNIX) as link, short_path(own.data_dir / control_socket.SOCKET) as path:
        link.settimeout(HANG_SECONDS)
        link.connect(path)
        link.sendall(said + b"\n")
        assert link.recv(100) == b""
    assert request("GET", own.http_url + "/ready") == (200, "ok")
