"""A real broker of Apache Pulsar takes messages, each once, over kills of the replicator.

GEMINGA_TEST_PULSAR names a program that runs one: `PROGRAM serve FOLDER KEY=VALUE ...`, with keys of its
configuration, in the foreground.  Without the variable these tests are skipped.
"""
import contextlib
import json
import os
import signal
import subprocess
import time
from typing import NamedTuple

import pulsar
import pytest
from pulsar.schema import AvroSchema, Record, String

from ..harness import HANG_MS, eventually, free_port, messages_of, partitioned_topic, request, unique_topic
from . import growing_out
from .conftest import numbered, replicate, set_clusters
from .test_mirror import Site

PROGRAM = os.environ.get("GEMINGA_TEST_PULSAR")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="GEMINGA_TEST_PULSAR names no program that runs Pulsar")
NAME = "real"


class Order(Record):
    name = String()


class Real(NamedTuple):
    """A broker of Apache Pulsar."""

    url: str
    http_url: str


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    ports = free_port(), free_port()
    folder = tmp_path_factory.mktemp("pulsar")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [PROGRAM, "serve", str(folder / "data"), f"brokerServicePort={ports[0]}", f"webServicePort={ports[1]}",
             "brokerDeduplicationEnabled=true"], stdout=log, stderr=log, start_new_session=True)
    made = Real(f"pulsar://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}")

    def is_ready():
        with contextlib.suppress(OSError):
            return request("GET", f"{made.http_url}/admin/v2/namespaces/public/default")[0] == 200

    try:
        eventually(is_ready)
        yield made
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def reader(real):
    client = pulsar.Client(real.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def read(reader, topic, count, **reading):
    """Wait until the topic has so many messages at least, and return all."""
    return eventually(lambda: len(found := messages_of(reader, topic, **reading)) >= count and found)


def test_messages_arrive_once_and_in_order_over_kills_of_the_replicator(replication, real, reader):
    topic = unique_topic("real")
    replication.know(NAME, real.url, serviceUrl=real.http_url)
    replicate(replication.broker, topic, NAME)
    for part in range(4):
        replication.publish(topic, numbered(2_000, 2_000 * part))
        eventually(lambda: replication.lane(topic, NAME).get("messagesSent", 0) > 100)
        pid = replication.broker.kill("replicator")
        replication.broker.wait_replaced("replicator", 0, pid)
    replication.publish(topic, numbered(5_000, 8_000), batching_enabled=True)
    eventually(lambda: replication.backlog(topic, NAME) == 0)
    found = read(reader, topic, 13_000)
    assert [one.data() for one in found] == numbered(13_000)
    stats = json.loads(request("GET", f"{real.http_url}/admin/v2/{topic.replace('://', '/')}/stats")[1])
    assert stats["publishers"] == []      # it counts as a replicator there


def test_schemas_and_partitions_arrive(replication, real, reader):
    topic = partitioned_topic(replication.broker.http_url, 2)
    replication.know(NAME, real.url, serviceUrl=real.http_url)
    set_clusters(replication.broker, topic, NAME, partitions=range(2))
    producer = replication.client.create_producer(topic, schema=AvroSchema(Order))
    for number in range(200):
        producer.send(Order(name=f"{number}"), partition_key=f"{number}")
    # A reader that came first would make a topic without partitions there.
    there = f"{real.http_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    eventually(lambda: json.loads(request("GET", there)[1]).get("partitions") == 2)
    eventually(lambda: sum(len(messages_of(reader, f"{topic}-partition-{number}")) for number in range(2)) == 200)
    found = [one.value().name for number in range(2)
             for one in messages_of(reader, f"{topic}-partition-{number}", schema=AvroSchema(Order))]
    assert sorted(map(int, found)) == list(range(200))


def test_a_topic_that_is_terminated_there_stops_with_the_reason(replication, real):
    topic = unique_topic("ended")
    replication.know(NAME, real.url, serviceUrl=real.http_url)
    replicate(replication.broker, topic, NAME)
    eventually(lambda: replication.lane(topic, NAME).get("connected"))
    assert request("POST", f"{real.http_url}/admin/v2/{topic.replace('://', '/')}/terminate", b"")[0] == 200
    replication.publish(topic, numbered(3))
    lane = eventually(lambda: "erminated" in (lane := replication.lane(topic, NAME))["error"] and lane)
    assert not lane["connected"]
    eventually(lambda: replication.backlog(topic, NAME) == 3)


# -- replicated subscriptions

OWN, EDGE = "standalone", f"edge-{os.getpid()}"      # the real broker keeps connections by cluster


class Peer(NamedTuple):
    """One of two clusters that replicate to each other, which a subscription moves between."""

    http_url: str
    client: pulsar.Client

    def ask(self, method, path, body=None):
        status, text = request(method, f"{self.http_url}/admin/v2/{path}",
                               None if body is None else json.dumps(body).encode(),
                               **{"Content-Type": "application/json"})
        assert status in (200, 204, 409), (method, path, status, text)
        return json.loads(text) if text[:1] in "[{" and text else None

    def know(self, other, url, http_url):
        self.ask("PUT", f"clusters/{other}", {"brokerServiceUrl": url, "serviceUrl": http_url})
        self.ask("POST", "tenants/public", {"adminRoles": [], "allowedClusters": [OWN, EDGE]})
        self.ask("POST", "namespaces/public/default/replication", [OWN, EDGE])

    def publish(self, topic, payloads):
        producer = self.client.create_producer(topic, batching_enabled=False)
        for payload in payloads:
            producer.send(payload)
        producer.close()

    def subscribe(self, topic):
        return self.client.subscribe(topic, "moving", initial_position=pulsar.InitialPosition.Earliest,
                                     replicate_subscription_state_enabled=True)

    def subscription(self, topic, name="moving"):
        """Return the statistics of a subscription, None without it, also while the topic has yet to come."""
        status, text = request("GET", f"{self.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
        return json.loads(text)["subscriptions"].get(name) if status == 200 else None

    def entries(self, topic):
        return self.ask("GET", f"{topic.replace('://', '/')}/internalStats")["numberOfEntries"]


@pytest.fixture(scope="module")
def peers(real, tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("edge"), EDGE)
    client = pulsar.Client(real.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    here, there = Peer(site.broker.http_url, site.client), Peer(real.http_url, client)
    here.know(OWN, real.url, real.http_url)
    there.know(EDGE, site.broker.service_url, site.broker.http_url)
    yield here, there
    there.ask("POST", "namespaces/public/default/replication", [OWN])
    client.close()
    site.close()


def consume(consumer, count):
    found = []
    for _ in range(count):
        message = consumer.receive(HANG_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


@pytest.mark.parametrize("turned", [False, True], ids=["from here to Pulsar", "from Pulsar to here"])
def test_a_consumer_moves_with_its_subscription(peers, turned):
    old, new = reversed(peers) if turned else peers
    topic = unique_topic("moving")
    consumer = old.subscribe(topic)
    for peer in peers:      # both replicators are at work before anything counts
        peer.publish(topic, [b"first"])
        eventually(lambda: all(one["connected"] for one in peer.ask(      # noqa: B023 - called in this round
            "GET", f"{topic.replace('://', '/')}/stats")["replication"].values()))
    seen = consume(consumer, 2)
    for turn in range(3):
        for name, peer in (("old", old), ("new", new)):
            peer.publish(topic, [b"%s %d" % (name.encode(), 10 * turn + number) for number in range(10)])
        seen += consume(consumer, 20)
    assert sorted(seen) == sorted([b"first"] * 2 + [b"%s %d" % (name, number) for name in (b"old", b"new")
                                                    for number in range(30)])
    # Pulsar counts markers in the backlog of a subscription without consumers: some of each kind are behind the last.
    eventually(lambda: (told := new.subscription(topic)) and told["isReplicated"] and told["msgBacklog"] < 10)
    consumer.close()
    old.publish(topic, [b"last"])
    moved, again = new.subscribe(topic), []
    while (payload := consume(moved, 1)[0]) != b"last":
        again.append(payload)
    assert set(again) <= set(seen[-20:])      # of the last second or two
    if not turned:      # Geminga is told back, and counts no markers
        eventually(lambda: old.subscription(topic)["msgBacklog"] == 0)


def test_an_idle_topic_is_silent_on_both_sides(peers):
    topic = unique_topic("idle")
    consumer = peers[0].subscribe(topic)
    peers[1].subscribe(topic)
    for peer in peers:
        peer.publish(topic, [b"x"])
    consume(consumer, 2)

    def is_silent():
        before = [peer.entries(topic) for peer in peers]
        time.sleep(6)      # six rounds of snapshots, if they went on
        return [peer.entries(topic) for peer in peers] == before

    eventually(is_silent)


def test_a_topic_moves_to_pulsar_for_good_while_it_is_used(peers, real):
    here, there = peers
    growing_out.both_know_the_namespace({EDGE: here.ask, OWN: there.ask})

    def is_told(topic):
        return (told := there.subscription(topic, "all")) is not None and told["msgBacklog"] < 10      # markers

    found, topic = growing_out.move_while_used(here.client, (EDGE, here.ask), real.url, is_told)
    growing_out.check(found)
    assert {int(one.data()) for one in messages_of(there.client, topic)} >= {*range(1_600, 3_000)}
    eventually(lambda: here.subscription(topic, "all")["msgBacklog"] == 0)
