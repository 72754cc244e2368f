"""Copy lines into a topic once each, although the first run is killed and the second one begins anew."""
import os
import urllib.request

import pulsar

TOPIC = "example-journal"
ADMIN = os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")
LINES = [f"line {number}" for number in range(5)]

client = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))
reader = client.create_reader(TOPIC, pulsar.MessageId.latest)      # creates the topic, if there is none

# The broker remembers the last sequence id of each producer's name, and drops what it has already.
policy = f"{ADMIN}/admin/v2/persistent/public/default/{TOPIC}/deduplicationEnabled"
json = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(policy, b"true", json, method="POST")).close()

for lines in (LINES[:3], LINES):      # the first run ends after three lines; the second is not told where
    producer = client.create_producer(TOPIC, producer_name="journal-writer")
    for number, line in enumerate(lines, 1):
        producer.send(line.encode(), sequence_id=number)      # the same number for a line in each run, from 1 on
    producer.close()

while reader.has_message_available():
    print("stored:", reader.read_next(timeout_millis=10_000).data().decode())
client.close()
