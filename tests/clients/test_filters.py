"""Filters of subscriptions with official clients: they get what matches, and are done with what they acknowledge."""
import json
from pathlib import Path

import pulsar
import pytest

from ..harness import eventually, partitioned_topic, request, unique_topic
from .java import JavaTools, fetch_jars
from .test_administration import topic_url
from .test_python_client import assert_silent, publish, receive

FILTER = "parity = 'even' AND n >= 6"
TYPES = (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover,
         pulsar.ConsumerType.KeyShared)
MATCHING = list(range(6, 20, 2))
PROGRAM = Path(__file__).parent / "java_sources" / "Filters.java"


def allowed(broker, hint="filtered"):
    """Return the name of a new topic whose subscriptions may have filters."""
    topic = unique_topic(hint)
    assert request("PUT", topic_url(broker, topic, "").rstrip("/"))[0] == 204
    assert request("POST", topic_url(broker, topic, "subscriptionFilters"), b"true")[0] == 204
    return topic


def subscribe(client, topic, kind=pulsar.ConsumerType.Exclusive, text=FILTER, **options):
    return client.subscribe(topic, "filtered", kind, properties={"geminga.filter": text},
                            initial_position=pulsar.InitialPosition.Earliest, **options)


def publish_numbers(client, topic, *, batched, **options):
    producer = client.create_producer(topic, batching_enabled=batched, batching_max_messages=7, **options)
    for number in range(20):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=str(number),
                            properties={"parity": "odd" if number % 2 else "even", "n": str(number)})
    producer.flush()
    producer.close()


def numbers(messages):
    return [int(message.data()) for message in messages]


def stats(broker, topic):
    return json.loads(request("GET", topic_url(broker, topic, "stats"))[1])["subscriptions"]["filtered"]


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_consumer_gets_what_matches_and_is_done_with_it(broker, client, kind, batched, parts):
    """Also a client that acknowledges only whole batches is done with one of which it was sent a part."""
    topic = allowed(broker)
    publish_numbers(client, topic, batched=batched, compression_type=pulsar.CompressionType.LZ4)
    consumer = subscribe(client, topic, kind, batch_index_ack_enabled=parts)
    messages = receive(consumer, len(MATCHING))
    assert sorted(numbers(messages)) == MATCHING
    for message in messages:
        consumer.acknowledge(message)
    eventually(lambda: stats(broker, topic)["msgBacklog"] == 0)
    told = stats(broker, topic)
    assert told["filterRejectedMsgCount"] == 20 - len(MATCHING) == told["messages"]["skipped"]
    consumer.close()
    assert_silent(subscribe(client, topic, kind))


def test_large_messages_in_chunks_match_as_a_whole(broker, client):
    topic = allowed(broker)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    bodies = [bytes([number]) * (6 << 20) for number in range(3)]
    for number, body in enumerate(bodies):
        publish(producer, [body], properties={"parity": "odd" if number % 2 else "even", "n": "6"})
    consumer = subscribe(client, topic)
    assert [message.data() for message in receive(consumer, 2)] == bodies[::2]
    assert_silent(consumer)


def test_a_filter_survives_the_kill_of_its_owner(start_broker, connect):
    broker = start_broker()
    client, topic = connect(broker.service_url), allowed(broker)
    publish_numbers(client, topic, batched=True)
    consumer = subscribe(client, topic, pulsar.ConsumerType.Shared)
    first, *others = receive(consumer, len(MATCHING))
    consumer.acknowledge(first)
    pid = broker.kill("owner")
    broker.wait_replaced("owner", 0, pid)
    consumer.close()
    other, again = subscribe(client, topic, pulsar.ConsumerType.Shared), set()
    while not set(numbers(others)) <= again:      # the kill may have lost the acknowledgement of the first one
        again.update(numbers(receive(other, 1)))
    assert again <= set(MATCHING)


def test_a_filter_is_refused_where_none_is_allowed_and_where_it_is_broken(broker, client):
    with pytest.raises(pulsar.PulsarException):
        subscribe(client, unique_topic("unfiltered"))
    with pytest.raises(pulsar.PulsarException):
        subscribe(client, allowed(broker), text="n >=")


def test_a_filter_is_set_and_refused_over_rest(broker, client):
    topic, body = allowed(broker), json.dumps({"geminga.filter": FILTER}).encode()
    assert request("PUT", topic_url(broker, topic, "subscription/filtered"))[0] == 204
    url = topic_url(broker, topic, "subscription/filtered/properties")
    status, text = request("PUT", url, json.dumps({"geminga.filter": "n >="}).encode())
    assert status == 405 and "at character 5" in text
    assert request("PUT", url, body)[0] == 204
    consumer = client.subscribe(topic, "filtered")
    publish_numbers(client, topic, batched=False)
    assert numbers(receive(consumer, len(MATCHING))) == MATCHING
    status, text = request("PUT", url, b"{}")
    assert status == 412 and "connected" in text
    assert json.loads(request("GET", url)[1]) == {"geminga.filter": FILTER}


def test_all_partitions_have_the_same_filter(broker, client):
    """One partition gets no other, and none gets another one while one of them has a consumer."""
    topic, one, other = partitioned_topic(broker.http_url, 2), "n = 1", "n = 2"

    def ask(method, topic, text=None):
        url = topic_url(broker, topic, "subscription/filtered/properties")
        return request(method, url, None if text is None else json.dumps({"geminga.filter": text}).encode())

    assert request("POST", topic_url(broker, topic, "subscriptionFilters"), b"true")[0] == 204
    part = f"{topic}-partition-1"
    body = json.dumps({"ledgerId": -1, "entryId": -1, "properties": {"geminga.filter": one}}).encode()
    status, why = request("PUT", topic_url(broker, part, "subscription/filtered"), body)
    assert status == 405 and f"name {topic}" in why
    assert request("PUT", topic_url(broker, topic, "subscription/filtered"), body)[0] == 204
    status, why = ask("PUT", part, other)
    assert status == 405 and f"all partitions have the same filter: name {topic}" in why
    assert ask("PUT", part, one)[0] == 204
    consumer = client.subscribe(part, "filtered")
    assert ask("PUT", topic, other)[0] == 412
    for name in (topic, f"{topic}-partition-0", part):
        assert json.loads(ask("GET", name)[1]) == {"geminga.filter": one}
    consumer.close()
    assert eventually(lambda: ask("PUT", topic, other)[0] == 204)


@pytest.mark.java
@pytest.mark.parametrize("how", ["whole", "parts"])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_the_client_for_java_is_done_with_batches_that_it_got_in_part(broker, tmp_path, kind, how):
    java = JavaTools(fetch_jars(), tmp_path, broker.service_url, broker.http_url)
    lines = java.program(PROGRAM, allowed(broker), kind, how, FILTER).splitlines()
    received = [[int(number) for number in line.split()[1:]] for line in lines]
    # The batches are 0 to 6, 7 to 13, and 14 to 19.  Without parts the last one comes again as a whole.
    left = [18] if how == "parts" else [14, 16, 18]
    assert received == [[], MATCHING, left, []]


@pytest.mark.java
def test_the_client_for_java_is_told_where_a_filter_is_broken(broker, tmp_path):
    java = JavaTools(fetch_jars(), tmp_path, broker.service_url, broker.http_url)
    assert "at character 5" in java.program(PROGRAM, allowed(broker), "Shared", "whole", "n >=")
