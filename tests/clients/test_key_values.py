"""Key-values in a compacted topic: whoever published them and whoever reads, what is there is a dictionary.

Python, Go and Java publish, one after the other, in batches of their own kinds; after each compaction each of them
reads the newest value of every key once, and nothing else: a client that is handed what was compacted away would show
it as a message of no key.
"""
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from ..harness import HANG_SECONDS, LOAD_PAUSE_SECONDS, eventually, request, unique_topic
from .java import JavaTools, fetch_jars
from .test_administration import topic_url
from .test_go_client import build, go  # noqa: F401  (a fixture)

KEYS = [f"key-{number}" for number in range(60)]
PROGRAM = Path(__file__).parent / "java_sources" / "KeyValues.java"

Pairs = list[tuple[str, str | None]]      # no value: a tombstone


def pairs_of(seed: int) -> Pairs:
    """Return pairs in which some keys come often and others never, and many values are deleted by the end."""
    chance = random.Random(seed)
    return [(chance.choice(KEYS), None if chance.random() < 0.15 else f"value {seed}-{number}")
            for number in range(200)]


def dictionary(pairs: Pairs) -> dict[str, str]:
    found = {}
    for key, value in pairs:
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return found


def compact(broker, topic: str) -> None:
    """Start a compaction of the topic, and wait until it has ended."""
    url = topic_url(broker, topic, "compaction")
    assert request("PUT", url)[0] == 204
    status = eventually(lambda: (said := json.loads(request("GET", url)[1]))["status"] != "RUNNING" and said)
    assert status == {"status": "SUCCESS", "lastError": ""}


def put_by_python(client, topic: str, pairs: Pairs, **how) -> None:
    producer = client.create_producer(topic, **how)
    for key, value in pairs:
        producer.send_async((value or "").encode(), lambda *_: None, partition_key=key)
    producer.flush()
    producer.close()


def get_by_python(client, topic: str) -> Pairs:
    reader, found = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True), []
    while reader.has_message_available():
        message = reader.read_next(1000 * HANG_SECONDS)
        found.append((message.partition_key(), message.data().decode() or None))
    reader.close()
    return found


def get_by_consumer(client, topic: str, count: int) -> Pairs:
    """Read the topic by a durable subscription, acknowledging each message by itself."""
    consumer = client.subscribe(topic, "table", initial_position=pulsar.InitialPosition.Earliest,
                                is_read_compacted=True)
    found = []
    for _ in range(count):
        message = consumer.receive(1000 * HANG_SECONDS)
        found.append((message.partition_key(), message.data().decode() or None))
        consumer.acknowledge(message)
    consumer.unsubscribe()
    return found


class Traffic:
    """Publishes keys of its own within a `with` block; `pairs` are those with a receipt."""

    def __init__(self, client, topic: str):
        self._producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=7)
        self._thread = threading.Thread(target=self._run)
        self._is_over = threading.Event()
        self.pairs: Pairs = []

    def __enter__(self) -> "Traffic":
        self._thread.start()
        eventually(lambda: len(self.pairs) > 10)
        return self

    def __exit__(self, *_) -> None:
        self._is_over.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(LOAD_PAUSE_SECONDS):
            number += 1
            pair = f"traffic-{number % 20}", f"value {number}"
            self._producer.send(pair[1].encode(), partition_key=pair[0])
            self.pairs.append(pair)


@pytest.mark.go
@pytest.mark.java
def test_three_clients_see_one_dictionary(broker, client, go, tmp_path_factory):  # noqa: F811
    java = JavaTools(fetch_jars(), tmp_path_factory.mktemp("java"), broker.service_url, broker.http_url)
    topic = unique_topic("key-values")

    def put_by_go(pairs: Pairs, *options: str) -> None:
        go(topic, "-keyvalues", "put", *options,
           said="".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in pairs))

    def put_by_java(pairs: Pairs, compression: str) -> None:
        java.program(PROGRAM, topic, "put", compression,
                     said="".join(key + ("" if value is None else "\t" + value) + "\n" for key, value in pairs))

    def get_by_go() -> Pairs:
        return [(said["key"], said["value"] or None)
                for said in map(json.loads, go(topic, "-keyvalues", "get").splitlines())]

    def get_by_java() -> Pairs:
        lines = java.program(PROGRAM, topic, "get").splitlines()
        return [(key, value or None) for key, _, value in (line.partition("\t") for line in lines)]

    readers: list[Callable[[], Pairs]] = [lambda: get_by_python(client, topic), get_by_go, get_by_java]
    published = [pairs_of(seed) for seed in range(6)]
    put_by_python(client, topic, published[0], batching_enabled=False)
    put_by_go(published[1], "-batching", "-compression", "zstd")
    put_by_java(published[2], "LZ4")
    with Traffic(client, topic) as traffic:
        compact(broker, topic)
        compact(broker, topic)
    expected = dictionary([pair for pairs in published[:3] for pair in pairs] + traffic.pairs)
    for read in readers:      # the view, and what has come behind its horizon
        assert dictionary(read()) == expected

    put_by_java(published[3], "SNAPPY")
    put_by_python(client, topic, published[4], batching_enabled=True, batching_max_messages=10,
                  compression_type=pulsar.CompressionType.ZLib)
    put_by_go(published[5], "-batching")
    compact(broker, topic)
    expected = dictionary([pair for pairs in published[:3] for pair in pairs] + traffic.pairs
                          + [p for ps in published[3:] for p in ps])
    for read in readers:
        found = read()
        assert dict(found) == expected
        assert len(found) == len(expected)      # each key once, and nothing that is no key's value
    assert sorted(get_by_consumer(client, topic, len(expected))) == sorted(expected.items())


def test_a_topic_that_has_only_tombstones_is_empty(broker, client):
    topic = unique_topic("gone")
    put_by_python(client, topic, [(key, "here") for key in KEYS], batching_enabled=True, batching_max_messages=10)
    put_by_python(client, topic, [(key, None) for key in KEYS], batching_enabled=True, batching_max_messages=10)
    compact(broker, topic)
    assert get_by_python(client, topic) == []
    put_by_python(client, topic, [("key-1", "again")], batching_enabled=False)
    assert get_by_python(client, topic) == [("key-1", "again")]
