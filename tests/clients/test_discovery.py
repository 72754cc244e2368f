"""Consumers by pattern: they find topics that come later, and miss nothing of them, although they begin at the latest
message.
"""
import re
import struct
import uuid
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest

from geminga.proto.names import parse
from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue

from ..harness import HANG_MS, HANG_SECONDS, Broker, eventually, partitions_url, request
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Peer
from .java import JavaTools, fetch_jars

RECEIVE_MS = HANG_MS
SECONDS = HANG_SECONDS
SILENCE_MS = 300


@pytest.fixture
def prefix():
    return f"persistent://public/default/found-{uuid.uuid4().hex[:8]}-"


@pytest.fixture(autouse=True)
def eager(monkeypatch) -> None:
    """Make Python's client ask for new topics often: it does not pass the configured period on to its library."""
    configuration = pulsar._pulsar.ConsumerConfiguration

    def made():
        made = configuration()
        made.pattern_auto_discovery_period(1)
        return made

    monkeypatch.setattr(pulsar._pulsar, "ConsumerConfiguration", made)


def publish(client: pulsar.Client, topic: str, *payloads: bytes) -> None:
    producer = client.create_producer(topic)
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    producer.close()


def received(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """Receive `count` messages, and assert that no further one comes."""
    found = [consumer.receive(timeout_millis=RECEIVE_MS) for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        pytest.fail(f"received {consumer.receive(timeout_millis=SILENCE_MS).data()!r}")
    return sorted(message.data() for message in found)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1"], ids=["one connection", "one for lookups, one for messages"])
def test_a_pattern_consumer_misses_nothing_of_new_topics(broker, client, connect, prefix, host):
    """A consumer by pattern receives all messages of new topics, and the later ones of topics that existed before.

    host: 127.1 is the same address under another name.
    """
    publish(client, prefix + "old", b"before")
    finder = connect(broker.service_url.replace("127.0.0.1", host))
    consumer = finder.subscribe(re.compile(prefix + ".*"), "sub")
    expected = [f"{topic} {number}".encode() for topic in range(10) for number in range(5)]
    assert request("PUT", partitions_url(broker.http_url, prefix + "parts"), b"3")[0] == 204
    for topic in range(9):
        publish(client, f"{prefix}{topic}", *expected[topic * 5:topic * 5 + 5])
    publish(client, prefix + "parts", *expected[45:])
    publish(client, prefix + "old", b"after")
    assert received(consumer, 51) == sorted([*expected, b"after"])


def test_others_begin_at_the_latest_message(client, connect, broker, prefix):
    """A plain subscription begins at the latest message although another client of the namespace discovers topics."""
    finder = connect(broker.service_url)
    publish(client, prefix + "new", b"before")
    consumer = client.subscribe(prefix + "new", "plain")
    finder.subscribe(re.compile(prefix + ".*"), "sub")
    publish(client, prefix + "new", b"after")
    assert received(consumer, 1) == [b"after"]


def test_what_a_new_topic_has_lasts_until_it_is_found(start_broker, tmp_path):
    """A new topic keeps its messages until a discovering consumer finds it, even if its owner is killed meanwhile.

    The owner is killed before the topic is made, and again before it knows of the lookup.
    """
    (tmp_path / "geminga.toml").write_text("[storage]\nkeep_acknowledged_s = 0\n")
    broker = start_broker("--owners", "1", "--config", str(tmp_path / "geminga.toml"))
    topic = "persistent://public/default/new"
    payload = bytes(2 << 20)
    with Peer(broker.service_url) as finder, Peer(broker.service_url) as user:
        finder.ask(T.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1)
        broker.wait_replaced("owner", 0, broker.kill("owner"), SECONDS)
        user.open_producer(topic)
        user.subscribe(topic, "other")
        user.say(command(T.FLOW, consumer_id=1, messagePermits=1) + send(entry_of(message_metadata(), payload)))
        heard = {said.type: said for said in (user.hear(), user.hear())}
        assert heard.keys() == {T.SEND_RECEIPT, T.MESSAGE}
        user.say(command(T.ACK, consumer_id=1, ack_type=0, message_id=[heard[T.MESSAGE].message.message_id]))
        folder = ledgers_of(broker, topic)
        eventually(lambda: len(list(folder.glob("*.ledger"))) == 2, SECONDS,
                   "a new ledger in place of the one that nobody needs")
        broker.pause("owner")
        finder.say(command(T.LOOKUP, topic=topic, request_id=2))
        broker.kill("owner")
        assert finder.hear().type == T.LOOKUP_RESPONSE
        with Peer(broker.service_url) as consumer:
            assert (
                consumer.ask(T.SUBSCRIBE, topic=topic, subscription="sub", subType=0, consumer_id=1, request_id=1).type
                == T.SUCCESS
            )
            consumer.say(command(T.FLOW, consumer_id=1, messagePermits=10))
            message, entry = consumer.hear_frame()
    assert message.type == T.MESSAGE
    assert entry.endswith(struct.pack(">I", 0) + payload[4:])


def ledgers_of(broker: Broker, topic: str):
    catalogue = open_catalogue(broker.data_dir / "catalogue.sqlite")
    partition_id, _ = catalogue.partitions.find(parse(topic))
    catalogue.close()
    return format.partition_folder(broker.data_dir, partition_id)


@pytest.mark.java
def test_java_is_told_of_new_topics_and_misses_nothing(broker, client, prefix, tmp_path):
    """Java's topic-list watcher learns of new topics at once; polling would take a minute."""
    if not isinstance(broker, Broker):
        pytest.skip("looks into the broker's own folder")
    java = JavaTools(fetch_jars(), tmp_path, broker.service_url, broker.http_url)
    publish(client, prefix + "old", b"before")
    expected = [f"{topic} {number}" for topic in range(3) for number in range(3)]
    with ThreadPoolExecutor() as pool:
        consumed = pool.submit(java.client, "consume", prefix + ".*", "--regex", "-s", "sub", "-n", str(len(expected)))
        eventually(lambda: consumed.done() or is_subscribed(broker, prefix + "old"),
                   what="Java's subscription to what is there")
        for topic in range(3):
            publish(client, f"{prefix}{topic}", *(text.encode() for text in expected[topic * 3:topic * 3 + 3]))
        assert sorted(re.findall(r"content:(.*)", consumed.result())) == expected


def is_subscribed(broker: Broker, topic: str) -> bool:
    catalogue = open_catalogue(broker.data_dir / "catalogue.sqlite")
    partition_id, _ = catalogue.partitions.find(parse(topic))
    names = catalogue.subscriptions.ids(partition_id)
    catalogue.close()
    return "sub" in names
