"""Priorities as applications use them: the policy over REST, the official Python client, kills of the broker."""
import json
import random
import subprocess

import pulsar
import pytest

from ..harness import COMMAND, HANG_MS, HANG_SECONDS, path_of, request, unique_topic

PRIORITIES = [str(number * 7 % 10) for number in range(60)]
COMMAND_LINE = COMMAND[:-1]      # without `serve`


def switch(broker, topic, **policy):
    status, text = request("POST", f"{broker.http_url}/admin/v2/{path_of(topic)}/messagePriority",
                           json.dumps({"active": True, **policy}).encode())
    assert status == 204, text


def urgent(number, priority):
    return {"properties": {"geminga.priority": priority, "number": str(number)}}


def wanted(priorities):
    """Return the numbers of messages in the order of delivery."""
    return sorted(range(len(priorities)), key=lambda number: (-int(priorities[number]), number))


def receive(consumer, count):
    """Return the numbers of the next messages, which are acknowledged."""
    numbers = []
    for _ in range(count):
        message = consumer.receive(HANG_MS)
        numbers.append(int(message.properties()["number"]))
        consumer.acknowledge(message)
    return numbers


@pytest.mark.parametrize("each", [1, 7], ids=["one by one", "in batches"])
def test_a_worker_gets_the_most_urgent_job_each_time(broker, client, each):
    """Batches of messages of one priority have that priority."""
    topic = unique_topic("jobs")
    producer = client.create_producer(
        topic, batching_enabled=each > 1, batching_max_messages=max(2, each), batching_max_publish_delay_ms=60_000)
    switch(broker, topic)
    client.subscribe(topic, "workers", pulsar.ConsumerType.Shared).close()
    priorities = [priority for priority in PRIORITIES for _ in range(each)]
    for number, priority in enumerate(priorities):
        producer.send_async(b"job", lambda result, _: None, **urgent(number, priority))
    producer.flush()
    consumer = client.subscribe(topic, "workers", pulsar.ConsumerType.Shared, receiver_queue_size=1)
    assert receive(consumer, len(priorities)) == wanted(priorities)


def test_the_order_holds_through_kills(start_broker, connect):
    """Workers come and go with the broker; what was acknowledged stays away, and the most urgent is always next."""
    broker, topic, chance = start_broker(), unique_topic("jobs"), random.Random(7)
    client = connect(broker.service_url)
    producer = client.create_producer(topic, batching_enabled=False)
    switch(broker, topic)
    client.subscribe(topic, "workers", pulsar.ConsumerType.Shared).close()
    priorities = [str(chance.randint(0, 9)) for _ in range(300)]
    for number, priority in enumerate(priorities):
        producer.send_async(b"job", lambda result, _: None, **urgent(number, priority))
    producer.flush()
    client.close()
    left = wanted(priorities)
    for how in ("kill", "kill an owner", "stop"):
        client = connect(broker.service_url)
        consumer = client.subscribe(topic, "workers", pulsar.ConsumerType.Shared, receiver_queue_size=1)
        assert receive(consumer, 80) == left[:80]
        client.close()      # sends acknowledgements that it has gathered
        left = left[80:]
        if how == "kill":
            broker.kill_supervisor()
            broker.start()
        elif how == "stop":
            broker.stop()
            broker.start()
        else:
            pid = broker.kill("owner")
            broker.wait_replaced("owner", 0, pid)
    client = connect(broker.service_url)
    consumer = client.subscribe(topic, "workers", pulsar.ConsumerType.Shared)
    assert receive(consumer, len(left)) == left


def test_why_says_what_waits_of_each_priority(broker, client):
    topic = unique_topic("jobs")
    producer = client.create_producer(topic, batching_enabled=False)
    client.subscribe(topic, "workers", pulsar.ConsumerType.Shared).close()
    switch(broker, topic)
    for number, priority in enumerate("9911"):
        producer.send(b"job", **urgent(number, priority))
    said = subprocess.run([*COMMAND_LINE, "why", "--admin-url", broker.http_url, topic, "workers"], capture_output=True,
                          text=True, timeout=HANG_SECONDS, check=False).stdout
    assert "The highest priority is next: 2 of priority 9, 2 of priority 1." in said
