"""Which partition a client publishes a key to: what the clients do, and what `geminga admin topics why-partition` says
of it.
"""
import contextlib
import io
import json
import re
from pathlib import Path

import mmh3
import pulsar
import pytest

from geminga.supervisor.main import main
from geminga.workers.pulsar_client import key_hashing

from ..harness import HANG_MS, partitioned_topic
from .java import JavaTools, fetch_jars
from .test_go_client import build, go  # noqa: F401  (a fixture)
from .test_key_values import PROGRAM

# Of every length around eight bytes, some with hashes of 32 bits, some that are no ASCII.
KEYS = ["a", "ab", "abc", "abcd", "abcdefg", "abcdefgh", "abcdefghi", "x" * 50, "polygenelubricants", "Straße", "ключ",
        "日本語", "🔑", *(f"order-{number}" for number in range(12))]
PARTITIONS = 7      # no power of two: with one a hash's highest bit makes no difference


def places(client, topic) -> dict[str, int]:
    """Return {key: partition} of the messages that were published."""
    found = {}
    for number in range(PARTITIONS):
        reader = client.create_reader(f"{topic}-partition-{number}", pulsar.MessageId.earliest)
        while reader.has_message_available():
            found[reader.read_next(HANG_MS).partition_key()] = number
        reader.close()
    return found


def told(broker, topic, key, name):
    """Return what `why-partition` says this client does by default."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert (
            main(
                [
                    "admin",
                    "--admin-url",
                    broker.http_url,
                    "-o",
                    "json",
                    "topics",
                    "why-partition",
                    topic,
                    key,
                    "--client",
                    name,
                ]
            )
            == 0
        )
    [row] = [row for row in json.loads(said.getvalue()) if row["default"]]
    assert row["client"] == name
    return row["partition"]


def agree(broker, client, topic, name):
    there = places(client, topic)
    assert there == {key: told(broker, topic, key, name) for key in KEYS}
    assert len(set(there.values())) == PARTITIONS


def test_where_pythons_client_publishes_a_key(broker, client):
    topic = partitioned_topic(broker.http_url, PARTITIONS)
    producer = client.create_producer(topic, batching_enabled=False)
    for key in KEYS:
        producer.send(b"x", partition_key=key)
    agree(broker, client, topic, "python")


@pytest.mark.go
def test_where_gos_client_publishes_a_key(broker, client, go):  # noqa: F811
    topic = partitioned_topic(broker.http_url, PARTITIONS)
    go(topic, "-keyvalues", "put", said="".join(json.dumps({"key": key, "value": "x"}) + "\n" for key in KEYS))
    agree(broker, client, topic, "go")


@pytest.mark.java
def test_where_javas_client_publishes_a_key(broker, client, tmp_path):
    topic = partitioned_topic(broker.http_url, PARTITIONS)
    java = JavaTools(fetch_jars(), tmp_path, broker.service_url, broker.http_url)
    java.program(PROGRAM, topic, "put", "NONE", said="".join(f"{key}\tx\n" for key in KEYS))
    agree(broker, client, topic, "java")


def test_pythons_client_agrees_with_others_by_the_router_of_the_page(broker, client):
    """With the router from the page on partitioning, Python's client chooses the same partitions as the others."""
    page = (Path(__file__).parents[2] / "docs" / "partitioning.md").read_text()
    program = (
        re.search(r"( {4}def route.*?)\n\n {4}client", page, re.DOTALL)[1].replace("\n    ", "\n").removeprefix("    ")
    )
    names = {"mmh3": mmh3}
    exec(program, names)
    topic = partitioned_topic(broker.http_url, PARTITIONS)
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
                                      message_router=names["route"], batching_enabled=False)
    for key in KEYS:
        producer.send(b"x", partition_key=key)
    assert places(client, topic) == {key: key_hashing.murmur3(key) % PARTITIONS for key in KEYS}


def test_the_older_hash_of_boost():
    """The older BoostHash chooses among 97 partitions as Python's client 3.5.0 was seen to choose."""
    assert [key_hashing.boost_before_181(key) % 97 for key in ("a", "abcdefghi", "key-1", "ключ")] == [91, 68, 63, 96]


@pytest.mark.parametrize(("words", "status"), [
    (["{topic}", "k"], 1), (["{parted}", ""], 2), (["{parted}", "k", "--client", "perl"], 2), (["{parted}"], 2)])
def test_what_has_no_partition_is_refused(broker, words, status):
    names = {"topic": "public/default/not-partitioned-at-all", "parted": partitioned_topic(broker.http_url, 2)}
    assert (
        main(
            [
                "admin",
                "--admin-url",
                broker.http_url,
                "topics",
                "why-partition",
                *(word.format(**names) for word in words),
            ]
        )
        == status
    )
