"""A real Pulsar cluster replicates topics into the broker: each message once, in order, as it was published.

GEMINGA_TEST_PULSAR_URL names the HTTP address of a standalone Apache Pulsar 4.0.7.  The tests make topics there, and
change its cluster records and its namespace public/default.
"""
import json
import os
import threading
import time

import pulsar
import pytest

from ..harness import HANG_MS, HANG_SECONDS, Broker, eventually, messages_of, path_of, request, unique_topic

SOURCE_URL = os.environ.get("GEMINGA_TEST_PULSAR_URL", "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    not SOURCE_URL, reason="needs a running Apache Pulsar in GEMINGA_TEST_PULSAR_URL")]

SECONDS = HANG_SECONDS


def at_source(method, path, body=None):
    """Ask the source's administration, and return the JSON of its answer."""
    data = None if body is None else json.dumps(body).encode()
    code, text = request(method, f"{SOURCE_URL}/admin/v2/{path}", data, **{"Content-Type": "application/json"})
    assert code in (200, 204, 409), (method, path, code, text)
    return json.loads(text) if text and text[:1] in '[{"' else None


class Source:
    """The namespace of the source that replicates to the broker, and a client of its own."""

    cluster = "standalone"

    def __init__(self, target: Broker):
        own = at_source("GET", f"clusters/{self.cluster}")
        self.here = f"edge-{os.getpid()}"      # new for each run: the source keeps connections by cluster
        at_source("PUT", f"clusters/{self.here}",
                  {"serviceUrl": target.http_url, "brokerServiceUrl": target.service_url})
        both = [self.cluster, self.here]
        at_source("POST", "tenants/public", {"adminRoles": [], "allowedClusters": both})
        at_source("POST", "namespaces/public/default/replication", both)
        self.client = pulsar.Client(own["brokerServiceUrl"], logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn,
                                                                                     os.devnull))

    def waiting(self, topic):
        """Return the replication backlog of a topic, and None before its replicator is there."""
        stats = at_source("GET", f"{path_of(topic)}/stats")
        return stats["replication"].get(self.here, {}).get("replicationBacklog")

    def replicator_is_connected(self, topic):
        stats = at_source("GET", f"{path_of(topic)}/stats")
        return stats["replication"].get(self.here, {}).get("connected")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("target") / "data").start()
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def source(target):
    made = Source(target)
    yield made
    made.client.close()
    at_source("POST", "namespaces/public/default/replication", [made.cluster])


@pytest.fixture
def topic(source):
    """A topic whose replicator has been connected: what was published before that would not come."""
    name = unique_topic("replicated")
    source.client.create_producer(name).close()
    eventually(lambda: source.replicator_is_connected(name), SECONDS, "the replicator is connected")
    return name


def arrived(target, topic, count):
    """Return the messages of the topic at the target, once there are so many."""
    client = pulsar.Client(target.service_url)
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        until = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < until:
            try:
                found.append(reader.read_next(1_000))
            except pulsar.Timeout:
                continue
        while reader.has_message_available():
            found.append(reader.read_next(HANG_MS))
        return found
    finally:
        client.close()


def stats_of(target, topic):
    code, text = request("GET", f"{target.http_url}/admin/v2/{path_of(topic)}/stats")
    assert code == 200, text
    return json.loads(text)


def test_messages_come_as_they_were_published(source, target, topic):
    producer = source.client.create_producer(topic, producer_name="original", batching_enabled=False)
    for number in range(50):
        producer.send(b"%d" % number, properties={"n": str(number)}, partition_key=f"k{number % 3}",
                      event_timestamp=1_000 + number)
    found = arrived(target, topic, 50)
    assert [message.data() for message in found] == [b"%d" % number for number in range(50)]
    for number, message in enumerate(found):
        properties = message.properties()
        assert properties.pop("__MSG_PROP_REPL_SOURCE_POSITION").count(":") == 1
        assert properties == {"n": str(number)}
        assert (message.partition_key(), message.event_timestamp()) == (f"k{number % 3}", 1_000 + number)
    eventually(lambda: source.waiting(topic) == 0, SECONDS, "the source has all receipts")


def test_batches_come_whole(source, target, topic):
    producer = source.client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=20)
    for number in range(200):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    assert [message.data() for message in arrived(target, topic, 200)] == [b"%d" % number for number in range(200)]
    eventually(lambda: source.waiting(topic) == 0, SECONDS, "the source has all receipts")


def test_statistics_tell_the_source(source, target, topic):
    producer = source.client.create_producer(topic, batching_enabled=False)
    for number in range(5):
        producer.send(b"%d" % number)
    arrived(target, topic, 5)
    told = stats_of(target, topic)
    assert told["publishers"] == []
    [(cluster, inbound)] = told["replication"].items()
    assert (cluster, inbound["msgInCount"]) == (source.cluster, 5)


def test_each_message_is_stored_once_whatever_is_killed(source, target, topic):
    """The owner is killed while the source publishes; the topic does not deduplicate."""
    producer = source.client.create_producer(topic, batching_enabled=False, max_pending_messages=10_000)
    is_over = threading.Event()
    sent = []

    def publish():
        while not is_over.is_set():
            producer.send_async(b"%d" % len(sent), None)
            sent.append(None)
            if len(sent) % 100 == 0:
                producer.flush()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(4):
            time.sleep(1.5)
            target.kill("owner")
    finally:
        is_over.set()
        thread.join()
    producer.flush()
    found = arrived(target, topic, len(sent))
    assert [message.data() for message in found] == [b"%d" % number for number in range(len(sent))]
    eventually(lambda: source.waiting(topic) == 0, SECONDS, "the source has all receipts")


def test_a_refused_message_comes_in_its_place_once_it_may(source, target, topic):
    """A source must not go on without the message, whose position would be passed then."""
    url, said = f"{target.http_url}/admin/v2/{path_of(topic)}", {"Content-Type": "application/json"}
    assert request("POST", f"{url}/maxMessageSize", b"500", **said)[0] == 204
    payloads = [b"%d" % number for number in range(3)] + [bytes(1_000)] + [b"%d" % number for number in range(3, 6)]
    producer = source.client.create_producer(topic, batching_enabled=False)
    for payload in payloads:
        producer.send(payload)
    assert [message.data() for message in arrived(target, topic, 3)] == payloads[:3]
    time.sleep(2)      # in which the source tries again and again
    assert request("DELETE", f"{url}/maxMessageSize")[0] == 204
    assert [message.data() for message in arrived(target, topic, len(payloads))] == payloads
    eventually(lambda: source.waiting(topic) == 0, SECONDS, "the source has all receipts")


def test_a_backlog_quota_holds_the_source_until_there_is_room(source, target, topic):
    url, said = f"{target.http_url}/admin/v2/{path_of(topic)}", {"Content-Type": "application/json"}
    quota = f"{url}/backlogQuota?backlogQuotaType=destination_storage"
    assert request("PUT", f"{url}/subscription/s", b'"earliest"', **said)[0] == 204
    assert request("POST", quota, b'{"limitSize": 1, "policy": "producer_exception"}', **said)[0] == 204
    producer = source.client.create_producer(topic, batching_enabled=False)
    for number in range(6):
        producer.send(b"%d" % number)
    eventually(lambda: not source.replicator_is_connected(topic), SECONDS, "the quota holds the source")
    assert request("DELETE", quota)[0] == 204
    eventually(lambda: source.waiting(topic) == 0, 2 * SECONDS, "the source has all receipts")
    assert [message.data() for message in arrived(target, topic, 6)] == [b"%d" % number for number in range(6)]


def test_partitioned_topics_are_made_and_enlarged_by_the_source(source, target):
    name = unique_topic("parted")
    at_source("PUT", f"{path_of(name)}/partitions", 3)

    def partitions():
        code, text = request("GET", f"{target.http_url}/admin/v2/{path_of(name)}/partitions")
        return code == 200 and json.loads(text)["partitions"]

    eventually(lambda: partitions() == 3, SECONDS, "the topic is made")
    at_source("POST", f"{path_of(name)}/partitions", 5)
    eventually(lambda: partitions() == 5, SECONDS, "the topic is enlarged")
    producer = source.client.create_producer(
        name, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False)
    for number in range(5):
        eventually(lambda part=f"{name}-partition-{number}": source.replicator_is_connected(part), SECONDS, "connected")
    for number in range(40):
        producer.send(b"%d" % number)
    client = pulsar.Client(target.service_url)
    eventually(lambda: sorted(int(message.data()) for message in messages_of(client, name)) == list(range(40)),
               SECONDS, "all partitions have their messages")
    client.close()


def test_a_schema_comes_before_the_first_message_that_needs_it(source, target, topic):
    class Order(pulsar.schema.Record):
        number = pulsar.schema.Integer()

    schema = pulsar.schema.AvroSchema(Order)
    producer = source.client.create_producer(topic, schema=schema, batching_enabled=False)
    for number in range(5):
        producer.send(Order(number=number))
    assert len(arrived(target, topic, 5)) == 5
    client = pulsar.Client(target.service_url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
    assert [reader.read_next(HANG_MS).value().number for _ in range(5)] == list(range(5))
    client.close()


def test_markers_of_replicated_subscriptions_are_no_messages(source, target, topic):
    """A replicated subscription of the source has it write markers into the topic, which come too."""
    source.client.subscribe(topic, "moving", replicate_subscription_state_enabled=True)
    request("PUT", f"{target.http_url}/admin/v2/{path_of(topic)}/subscription/here", b'"earliest"',
            **{"Content-Type": "application/json"})
    producer = source.client.create_producer(topic, batching_enabled=False)

    def stored():
        code, text = request("GET", f"{target.http_url}/admin/v2/{path_of(topic)}/internalStats")
        assert code == 200, text
        return json.loads(text)["numberOfEntries"]

    for number in range(5):
        producer.send(b"%d" % number)
        time.sleep(1.1)      # snapshots are asked for once a second
    eventually(lambda: stored() > 5, SECONDS, "a marker has come")
    assert [message.data() for message in arrived(target, topic, 5)] == [b"%d" % number for number in range(5)]
    assert stats_of(target, topic)["subscriptions"]["here"]["msgBacklog"] == 5
    eventually(lambda: source.waiting(topic) == 0, SECONDS, "the source has all receipts")
