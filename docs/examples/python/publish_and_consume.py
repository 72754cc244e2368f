"""Publish three messages, and consume them on a subscription."""
import os

import pulsar

client = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))

# A subscription keeps what is published from now on, until a consumer acknowledges it.
consumer = client.subscribe("example-orders", "billing")

producer = client.create_producer("example-orders")
for number in range(3):
    message_id = producer.send(f"order {number}".encode(), partition_key="customer-7", properties={"shop": "north"})
    print("on disk:", message_id)

for _ in range(3):
    message = consumer.receive(timeout_millis=10_000)
    print("received:", message.data().decode(), message.partition_key(), message.properties()["shop"])
    consumer.acknowledge(message)

client.close()
