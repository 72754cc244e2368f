"""Publish messages that consumers get later: after a delay, or at a time."""
import datetime
import os
import time

import pulsar

client = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))

# Delays hold on Shared and Key_Shared subscriptions; the other types get each message at once.
consumer = client.subscribe("example-reminders", "mailer", consumer_type=pulsar.ConsumerType.Shared)

producer = client.create_producer("example-reminders")
begin = time.time()
producer.send(b"after two seconds", deliver_after=datetime.timedelta(seconds=2))
producer.send(b"after one second", deliver_at=int((begin + 1) * 1_000))      # a time in ms
producer.send(b"at once")

for _ in range(3):
    message = consumer.receive(timeout_millis=10_000)
    print(f"{time.time() - begin:.1f} s: {message.data().decode()}")
    consumer.acknowledge(message)

client.close()
