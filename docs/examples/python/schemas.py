"""Publish records with an Avro and with a JSON schema; the broker refuses what does not fit."""
import os

import pulsar
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String


class Order(Record):
    customer = String()
    amount = Integer(required=True)


class Renamed(Record):
    buyer = String(required=True)      # readers of orders cannot fill `amount` from this


client = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))

for schema in (AvroSchema, JsonSchema):
    topic = f"example-orders-{schema.__name__}"
    consumer = client.subscribe(topic, "billing", schema=schema(Order))
    client.create_producer(topic, schema=schema(Order)).send(Order(customer="alice", amount=3))
    message = consumer.receive(timeout_millis=10_000)
    print(schema.__name__, message.value().customer, message.value().amount)
    consumer.acknowledge(message)
    try:
        client.create_producer(topic, schema=schema(Renamed))
    except pulsar.IncompatibleSchema:
        print(schema.__name__, "incompatible schema refused")

client.close()
