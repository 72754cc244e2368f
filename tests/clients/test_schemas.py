"""Typed producers and consumers of the real client: schemas register themselves, evolve, and are refused where they do
not get along.
"""
import json

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from ..harness import HANG_MS, partitioned_topic, request, unique_topic
from .test_python_client import RECEIVE_MS

KINDS = [JsonSchema, AvroSchema]


class Order(Record):
    item = String()
    count = Integer()


class Priced(Record):
    """A later version of Order, with one more field."""

    item = String()
    count = Integer()
    price = Integer(default=7, required=True, required_default=True)


class Other(Record):
    item = Integer(required=True)


def versions_of(broker, topic: str) -> list[dict]:
    """Return the topic's schema versions as REST shows them."""
    path = topic.partition("://")[2]
    return json.loads(request("GET", f"{broker.http_url}/admin/v2/schemas/{path}/schemas")[1])["getSchemaResponses"]


@pytest.mark.parametrize("kind", KINDS)
def test_records_come_as_they_were_sent(broker, client, kind):
    topic = unique_topic("typed")
    consumer = client.subscribe(topic, "sub", schema=kind(Order))
    producer = client.create_producer(topic, schema=kind(Order))
    for number in range(10):
        producer.send(Order(item=f"item {number}", count=number))
    for number in range(10):
        message = consumer.receive(RECEIVE_MS)
        assert (message.value().item, message.value().count, message.schema_version()) == (
            f"item {number}",
            number,
            "\0" * 8,
        )
        consumer.acknowledge(message)
    shown, = versions_of(broker, topic)
    assert (shown["version"], shown["type"]) == (0, "JSON" if kind is JsonSchema else "AVRO")
    assert [field["name"] for field in json.loads(shown["data"])["fields"]] == ["item", "count"]


def test_texts_come_as_they_were_sent(client):
    topic = unique_topic("texts")
    consumer = client.subscribe(topic, "sub", schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("Grüße")
    assert consumer.receive(RECEIVE_MS).value() == "Grüße"


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_gets_a_field_while_old_clients_go_on(broker, client, kind):
    topic = partitioned_topic(broker.http_url, 2)
    old, new = (client.create_producer(topic, schema=kind(record)) for record in (Order, Priced))
    assert [shown["version"] for shown in versions_of(broker, topic)] == [0, 1]
    consumer = client.subscribe(topic, "sub", schema=kind(Priced), initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(2):      # to both partitions
        old.send(Order(item="old", count=1))
        new.send(Priced(item="new", count=1, price=2))
    found = [consumer.receive(RECEIVE_MS) for _ in range(4)]
    assert sorted(
        (ord(message.schema_version()[-1]), message.value().item, message.value().price) for message in found
    ) == [(0, "old", 7), (0, "old", 7), (1, "new", 2), (1, "new", 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_get_along_is_refused(client, kind):
    topic = unique_topic("refused")
    producer = client.create_producer(topic, schema=kind(Order))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=kind(Other))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "sub", schema=kind(Other))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "sub", schema=StringSchema())
    consumer = client.subscribe(topic, "sub")      # without a schema everybody may read, and write
    producer.send(Order(item="x", count=1))
    client.create_producer(topic).send(b"bytes")
    assert [consumer.receive(RECEIVE_MS).data()[-5:] for _ in range(2)][1] == b"bytes"


def test_typed_clients_come_back_after_the_owner_died(start_broker, connect):
    own = start_broker()
    client, topic = connect(own.service_url), unique_topic("killed")
    consumer = client.subscribe(topic, "sub", schema=JsonSchema(Order))
    producer = client.create_producer(topic, schema=JsonSchema(Order))
    producer.send(Order(item="before", count=1))
    for index in range(len([name for name in own.children() if name.startswith("geminga-o")])):
        own.kill("owner", index)
    producer.send(Order(item="after", count=2))
    found = set()
    while found != {"before", "after"}:      # what was given out before comes again
        found.add(consumer.receive(HANG_MS).value().item)
    assert len(versions_of(own, topic)) == 1
