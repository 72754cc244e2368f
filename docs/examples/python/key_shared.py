"""Share a subscription between two consumers, and keep the order of each key."""
import os

import pulsar

client = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))

consumers = {name: client.subscribe("example-readings", "averages", consumer_name=name,
                                    consumer_type=pulsar.ConsumerType.KeyShared) for name in ("one", "two")}

# Batches by key: all messages of a batch go to the same consumer.
producer = client.create_producer("example-readings", batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased)
for number in range(20):
    producer.send_async(str(number).encode(), None, partition_key=f"sensor-{number % 4}")
producer.flush()

seen, owner = {}, {}
while sum(map(len, seen.values())) < 20:
    for name, consumer in consumers.items():
        try:
            message = consumer.receive(timeout_millis=100)
        except pulsar.Timeout:
            continue
        key = message.partition_key()
        seen.setdefault(key, []).append(int(message.data()))
        owner.setdefault(key, set()).add(name)
        consumer.acknowledge(message)

for key in sorted(seen):
    print(key, seen[key], "by", *owner[key])
client.close()
