"""A real broker of Apache Pulsar takes messages, each once, over kills of the replicator.

GEMINGA_TEST_PULSAR names a program that runs one: `PROGRAM serve FOLDER KEY=VALUE ...`, with keys of its
configuration, in the foreground.  Without the variable these tests are skipped.
"""
import contextlib
import json
import os
import signal
import socket
import subprocess
from typing import NamedTuple

import pulsar
import pytest
from pulsar.schema import AvroSchema, Record, String

from ..harness import eventually, messages_of, partitioned_topic, request, unique_topic
from .conftest import numbered, replicate, set_clusters

PROGRAM = os.environ.get("GEMINGA_TEST_PULSAR")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="GEMINGA_TEST_PULSAR names no program that runs Pulsar")
NAME = "real"


class Order(Record):
    name = String()


class Real(NamedTuple):
    """A broker of Apache Pulsar."""

    url: str
    http_url: str


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    ports = _free_port(), _free_port()
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
        eventually(is_ready, 180)
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
    return eventually(lambda: len(found := messages_of(reader, topic, **reading)) >= count and found, 60)


def test_messages_arrive_once_and_in_order_over_kills_of_the_replicator(replication, real, reader):
    topic = unique_topic("real")
    replication.know(NAME, real.url, serviceUrl=real.http_url)
    replicate(replication.broker, topic, NAME)
    for part in range(4):
        replication.publish(topic, numbered(2_000, 2_000 * part))
        eventually(lambda: replication.lane(topic, NAME).get("messagesSent", 0) > 100, 60)
        pid = replication.broker.kill("replicator")
        replication.broker.wait_replaced("replicator", 0, pid, 30)
    replication.publish(topic, numbered(5_000, 8_000), batching_enabled=True)
    eventually(lambda: replication.backlog(topic, NAME) == 0, 60)
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
    eventually(lambda: sum(len(messages_of(reader, f"{topic}-partition-{number}")) for number in range(2)) == 200, 60)
    found = [one.value().name for number in range(2)
             for one in messages_of(reader, f"{topic}-partition-{number}", schema=AvroSchema(Order))]
    assert sorted(map(int, found)) == list(range(200))


def test_a_topic_that_is_terminated_there_stops_with_the_reason(replication, real):
    topic = unique_topic("ended")
    replication.know(NAME, real.url, serviceUrl=real.http_url)
    replicate(replication.broker, topic, NAME)
    eventually(lambda: replication.lane(topic, NAME).get("connected"), 60)
    assert request("POST", f"{real.http_url}/admin/v2/{topic.replace('://', '/')}/terminate", b"")[0] == 200
    replication.publish(topic, numbered(3))
    lane = eventually(lambda: "erminated" in (lane := replication.lane(topic, NAME))["error"] and lane, 60)
    assert not lane["connected"]
    assert replication.backlog(topic, NAME) == 3
