"""What operators do to topics that clients are using, over HTTP and with the geminga command."""
import json
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from ..harness import eventually, partitioned_topic, partitions_url, request, unique_topic
from .test_python_client import RECEIVE_MS, bodies_of, data_of, earliest, publish, receive

GEMINGA = Path(sys.executable).with_name("geminga")


def topic_url(broker, topic: str, rest: str) -> str:
    return f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/{rest}"


@pytest.mark.parametrize("kind",
                         [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared],
                         ids=lambda kind: kind.name)
def test_a_topic_is_unloaded_under_load_and_nobody_loses_anything(broker, client, kind):
    topic = unique_topic("unloaded")
    consumer = client.subscribe(topic, "sub", consumer_type=kind)
    producer = client.create_producer(topic)
    got = set()
    for part in range(3):
        bodies = bodies_of(200, f"part {part}")
        for body in bodies[:100]:
            producer.send_async(body, None)
        assert request("PUT", topic_url(broker, topic, "unload")) == (204, "")
        publish(producer, bodies[100:])
        while not set(bodies) <= got:
            message = consumer.receive(timeout_millis=RECEIVE_MS)
            got.add(message.data())
            consumer.acknowledge(message)
    assert len(got) == 600


def test_a_terminated_topic_is_read_to_its_end(broker, client, connect):
    topic = unique_topic("terminated")
    bodies = bodies_of(5)
    publish(client.create_producer(topic), bodies)
    status, text = request("POST", topic_url(broker, topic, "terminate"))
    assert (status, '"entryId"' in text) == (200, True)
    assert data_of(receive(earliest(client, topic), 5)) == bodies
    with pytest.raises(pulsar.PulsarException):
        # released clients try for so long
        connect(broker.service_url, operation_timeout_seconds=1).create_producer(topic)


def test_a_consumer_at_the_end_of_a_topic_leaves_the_others_of_its_client_alone(broker, client):
    """The C++ library closes the connection when it is told of the end, over and over."""
    ended, other = unique_topic("terminated"), unique_topic("other")

    def subscription_of(topic):
        return json.loads(request("GET", topic_url(broker, topic, "stats"))[1])["subscriptions"]["sub"]

    publish(client.create_producer(ended), bodies_of(1))
    consumer, beside = earliest(client, ended), earliest(client, other)
    [before] = subscription_of(other)["consumers"]
    consumer.acknowledge(receive(consumer, 1)[0])
    eventually(lambda: subscription_of(ended)["msgBacklog"] == 0)
    assert request("POST", topic_url(broker, ended, "terminate"))[0] == 200
    publish(client.create_producer(other), bodies_of(20))
    receive(beside, 20)
    [after] = subscription_of(other)["consumers"]
    assert after["address"] == before["address"]


def test_partitions_are_added_under_load(broker, connect):
    """Clients that are connected find partitions that are added later."""
    topic = partitioned_topic(broker.http_url, 2)
    client = connect(broker.service_url)
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
    publish(client.create_producer(topic), bodies_of(20))
    receive(consumer, 20)
    assert request("POST", partitions_url(broker.http_url, topic), b"4") == (204, "")
    assert request("GET", partitions_url(broker.http_url, topic))[1].replace(" ", "").startswith('{"partitions":4')
    assert request("POST", partitions_url(broker.http_url, topic), b"3")[0] == 422
    later = connect(broker.service_url)
    publish(later.create_producer(f"{topic}-partition-3"), [b"new"])
    assert later.subscribe(topic, "other", initial_position=pulsar.InitialPosition.Earliest,
                           consumer_type=pulsar.ConsumerType.Shared).receive(RECEIVE_MS) is not None


def test_why_names_the_cause(broker, client):
    topic = unique_topic("stuck")
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
    publish(client.create_producer(topic), [b"held"])
    consumer.receive(timeout_millis=RECEIVE_MS)

    def told(subscription: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([GEMINGA, "why", topic, subscription, "--http-url", broker.http_url], capture_output=True,
                              text=True)

    eventually(lambda: "holds 1 message; it has acknowledged nothing" in told("sub").stdout, what="the cause")
    consumer.close()
    first, *others = told("sub").stdout.splitlines()
    assert first.startswith(f"{topic}, subscription sub (Shared): 1 message is not acknowledged")
    assert others[:2] == ["  1 message published since the subscription began: 1 in the backlog.",
                          "  No consumer is connected."]
    nobody = told("nobody")
    assert (nobody.returncode, nobody.stderr) == (1, f"geminga: {topic} has no subscription nobody.\n")


def test_a_subscription_is_reset_and_skipped(broker, client):
    topic = unique_topic("positions")
    bodies = bodies_of(6)
    publish(client.create_producer(topic), bodies)
    consumer = earliest(client, topic)
    for message in receive(consumer, 6)[:2]:
        consumer.acknowledge(message)
    assert request("POST", topic_url(broker, topic, "subscription/sub/skip_all")) == (204, "")
    assert json.loads(request("GET", topic_url(broker, topic, "stats"))[1])["subscriptions"]["sub"]["msgBacklog"] == 0
    assert request("POST", topic_url(broker, topic, "subscription/sub/resetcursor/0"))[0] == 204
    assert data_of(receive(consumer, 6)) == bodies
    assert request("POST", topic_url(broker, topic, "subscription/nobody/skip/1"))[0] == 404
