"""Delayed messages as applications use them, by Python, Go and Java: none comes before its time by its consumer's own
clock.

Each client publishes a few messages to some topics and tells what came, and when; how late is nobody's business here.
"""
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest

from ..harness import HANG_MS, partitioned_topic, unique_topic
from .java import JavaTools, fetch_jars
from .test_go_client import go  # noqa: F401  (a fixture)

PROGRAM = Path(__file__).parent / "java_sources" / "Delays.java"
RECEIVE_MS = HANG_MS
LARGE_BYTES = 6 << 20      # more than a message may have: it is cut into chunks
HOUR_MS = 3_600_000
KINDS = {"Shared": pulsar.ConsumerType.Shared, "Key_Shared": pulsar.ConsumerType.KeyShared,
         "Exclusive": pulsar.ConsumerType.Exclusive, "Failover": pulsar.ConsumerType.Failover}


class Delayed(NamedTuple):
    name: str
    how: str = "now"      # or after, at: so many milliseconds from when it is sent
    ms: int = 0
    is_large: bool = False


class Told(NamedTuple):
    topic: str
    name: str
    due_ms: int           # 0: at once
    came_ms: int
    again: str            # how often it had been asked for again later, or "dead"
    size: int


Tell = Callable[[dict[str, str], list[Delayed]], list[Told]]      # topics and their kinds; what is published to each

MIXED = [Delayed("late", "after", 1_700), Delayed("now"), Delayed("soon", "at", 900), Delayed("past", "at", -5_000),
         Delayed("cut", "after", 1_100, is_large=True), Delayed("last")]
FAR = [Delayed("late", "after", 2 * HOUR_MS), Delayed("now"), Delayed("soon", "at", HOUR_MS),
       Delayed("past", "at", -HOUR_MS), Delayed("cut", "after", HOUR_MS, is_large=True), Delayed("last")]


@pytest.fixture
def by_python(client) -> Tell:
    def tell(topics: dict[str, str], messages: list[Delayed]) -> list[Told]:
        found: list[Told] = []

        def consume(topic: str, consumer: pulsar.Consumer) -> None:
            for _ in messages:
                message = consumer.receive(timeout_millis=RECEIVE_MS)
                found.append(Told(topic, message.properties()["name"], int(message.properties()["due"]),
                                  int(time.time() * 1000), "", len(message.data())))
                consumer.acknowledge(message)

        consumers = {topic: client.subscribe(topic, "python", consumer_type=KINDS[kind])
                     for topic, kind in topics.items()}
        threads = [threading.Thread(target=consume, args=one) for one in consumers.items()]
        for thread in threads:
            thread.start()
        for topic in topics:
            publish(client, topic, messages)
        for thread in threads:
            thread.join()
        return found

    return tell


def publish(client: pulsar.Client, topic: str, messages: list[Delayed]) -> None:
    batching = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=5)
    chunking = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    for one in messages:
        due_ms = int(time.time() * 1000) + one.ms
        how = {"after": {"deliver_after": timedelta(milliseconds=one.ms)}, "at": {"deliver_at": due_ms}, "now": {}}[
            one.how
        ]
        producer, payload = (chunking, bytes(LARGE_BYTES)) if one.is_large else (batching, one.name.encode())
        producer.send(payload, partition_key=one.name, properties={"name": one.name, "due": str(due_ms if how else 0)},
                      **how)


@pytest.fixture
def by_go(go) -> Tell:  # noqa: F811
    def tell(topics: dict[str, str], messages: list[Delayed], *how: str) -> list[Told]:
        said = "".join(json.dumps(one._asdict()) + "\n" for one in messages)
        lines = go(",".join(f"{kind}={topic}" for topic, kind in topics.items()), *(how or ["-delays"]), said=said)
        return [Told(**{"again": ""} | json.loads(line)) for line in lines.splitlines()]

    return tell


@pytest.fixture
def by_java(broker, tmp_path_factory) -> Tell:
    java = JavaTools(fetch_jars(), tmp_path_factory.mktemp("java"), broker.service_url, broker.http_url)

    def tell(topics: dict[str, str], messages: list[Delayed], how: str = "delays") -> list[Told]:
        said = "".join(f"{one.name}\t{one.how}\t{one.ms}\t{'large' if one.is_large else ''}.\n" for one in messages)
        lines = java.program(PROGRAM, how, *(f"{kind}={topic}" for topic, kind in topics.items()), said=said)
        found = (line.split("\t") for line in lines.splitlines())
        return [Told(topic, name, int(due_ms), int(came_ms), again, int(size))
                for topic, name, due_ms, came_ms, again, size in found]

    return tell


@pytest.fixture(params=["python", pytest.param("go", marks=pytest.mark.go),
                        pytest.param("java", marks=pytest.mark.java)])
def tell(request) -> Tell:
    return request.getfixturevalue(f"by_{request.param}")


@pytest.fixture(params=[pytest.param("go", marks=pytest.mark.go), pytest.param("java", marks=pytest.mark.java)])
def tell_again(request) -> Tell:
    """The clients that can ask for a message to be redelivered later."""
    how = {"go": ["-retries", "2"], "java": ["retries"]}[request.param]
    by = request.getfixturevalue(f"by_{request.param}")
    return lambda topics, messages: by(topics, messages, *how)


def check_each_came_once(told: list[Told], topics: dict[str, str], messages: list[Delayed]) -> None:
    assert sorted((one.topic, one.name) for one in told) == sorted((topic, one.name) for topic in topics
                                                                   for one in messages)
    sizes = {one.name: LARGE_BYTES if one.is_large else len(one.name) for one in messages}
    assert all(one.size == sizes[one.name] for one in told)


def test_each_comes_once_and_none_before_its_time(broker, tell):
    """Delayed messages come once and not early, on topics with and without partitions, batched, chunked or neither."""
    topics = {unique_topic("delays"): "Shared", unique_topic("delays"): "Key_Shared",
              partitioned_topic(broker.http_url, 3): "Shared", partitioned_topic(broker.http_url, 3): "Key_Shared"}
    told = tell(topics, MIXED)
    check_each_came_once(told, topics, MIXED)
    assert [one for one in told if one.came_ms < one.due_ms] == []


@pytest.mark.parametrize("by", ["python", pytest.param("go", marks=pytest.mark.go)])
def test_a_single_consumer_gets_all_at_once_and_in_order(broker, request, by):
    """An Exclusive or Failover consumer receives delayed messages hours before they are due, in order."""
    tell = request.getfixturevalue(f"by_{by}")
    topics = {unique_topic("delays"): "Exclusive", unique_topic("delays"): "Failover",
              partitioned_topic(broker.http_url, 2): "Failover"}
    told = tell(topics, FAR)
    check_each_came_once(told, topics, FAR)
    for topic in list(topics)[:2]:
        assert [one.name for one in told if one.topic == topic] == [one.name for one in FAR]


def test_what_is_asked_for_again_later_comes_then_and_becomes_a_dead_letter_in_the_end(broker, tell_again):
    """reconsume_later publishes a delayed message to the retry letter topic each time, and a dead letter in the end."""
    topics = {unique_topic("retried"): "Shared", partitioned_topic(broker.http_url, 2): "Shared"}
    messages = [Delayed("one"), Delayed("other"), Delayed("late", "after", 500)]
    told = tell_again(topics, messages)
    assert [one for one in told if one.came_ms < one.due_ms] == []
    for topic in topics:
        for message in messages:
            assert [one.again for one in told if (one.topic, one.name) == (topic, message.name)] == [
                "",
                "1",
                "2",
                "dead",
            ]


def test_a_delayed_message_is_no_part_of_a_batch(client):
    """Clients send a delayed message as an entry of its own, so that each entry has one delivery time."""
    topic = unique_topic("delays")
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    due_ms = int(time.time() * 1000) + 800
    for name, how in ((b"a", {}), (b"b", {}), (b"later", {"deliver_at": due_ms}), (b"c", {}), (b"d", {})):
        producer.send_async(name, None, **how)
    producer.flush()
    found = [consumer.receive(timeout_millis=RECEIVE_MS) for _ in range(5)]
    assert time.time() * 1000 >= due_ms
    assert {message.data(): message.message_id().batch_index() for message in found} == {
        b"a": 0, b"b": 1, b"c": 2, b"d": 3, b"later": -1}


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_what_is_given_back_comes_again_without_waiting(client, kind):
    """A delayed message that was due once is redelivered at once; messages that are not due wait for every consumer."""
    topic = unique_topic("delays")
    consumer = client.subscribe(topic, "sub", consumer_type=KINDS[kind], negative_ack_redelivery_delay_ms=100)
    publish(client, topic, [Delayed("far", "after", HOUR_MS), Delayed("due", "after", 700)])
    for redeliveries in range(3):
        message = consumer.receive(timeout_millis=RECEIVE_MS)
        assert (message.properties()["name"], message.redelivery_count()) == ("due", redeliveries)
        consumer.negative_acknowledge(message)
    other = client.subscribe(topic, "sub", consumer_type=KINDS[kind])
    consumer.close()
    message = other.receive(timeout_millis=RECEIVE_MS)
    assert message.properties()["name"] == "due"
    other.acknowledge(message)
