"""Share a subscription's messages, try failed ones again, and give up on a message after two more deliveries."""
import os

import pulsar

client = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))

consumer = client.subscribe(
    "example-payments", "bank", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=200,
    dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, "example-payments-failed", "inspection"))
failed = client.subscribe("example-payments-failed", "inspection", consumer_type=pulsar.ConsumerType.Shared)

producer = client.create_producer("example-payments")
for amount in ("10", "20", "not a number", "30"):
    producer.send(amount.encode())

paid = 0
while True:
    try:
        message = consumer.receive(timeout_millis=3_000)
    except pulsar.Timeout:
        break
    try:
        paid += int(message.data())
        consumer.acknowledge(message)
    except ValueError:
        print("failed:", message.data().decode(), "after", message.redelivery_count(), "redeliveries")
        consumer.negative_acknowledge(message)      # delivered again after 200 ms
print("paid:", paid)

letter = failed.receive(timeout_millis=10_000)
print("dead letter:", letter.data().decode())
failed.acknowledge(letter)
client.close()
