"""Non-persistent topics with the official Python client."""
import pulsar
import pytest

from ..harness import unique_topic
from .test_python_client import RECEIVE_MS, bodies_of, data_of, publish, receive

TYPES = (
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
)


def live_topic() -> str:
    return unique_topic("live").replace("persistent", "non-persistent", 1)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_messages_go_to_those_who_are_there(client, kind):
    topic = live_topic()
    consumer = client.subscribe(topic, "sub", consumer_type=kind)
    bodies = bodies_of(100)
    publish(client.create_producer(topic, batching_enabled=False), bodies)
    messages = receive(consumer, len(bodies))
    assert data_of(messages) == bodies
    for message in messages:
        consumer.acknowledge(message)


def test_who_comes_late_gets_what_is_published_from_then_on(client):
    topic = live_topic()
    producer = client.create_producer(topic)
    producer.send(b"missed")
    late = client.subscribe(topic, "late", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"seen")
    assert late.receive(timeout_millis=RECEIVE_MS).data() == b"seen"
