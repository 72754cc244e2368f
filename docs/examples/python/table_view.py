"""Keep the newest value of each key in memory, and follow its changes."""
import os
import time

import pulsar

client = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))

producer = client.create_producer("example-prices")
producer.send(b"1.20", partition_key="apple")
producer.send(b"0.80", partition_key="pear")
producer.send(b"1.30", partition_key="apple")

# The view reads the topic from its beginning; a compacted topic has one message for each key.
prices = client.create_table_view("example-prices")
print("apple:", prices.get("apple").decode(), "pear:", prices.get("pear").decode())

producer.send(b"0.90", partition_key="pear")
while prices.get("pear") != b"0.90":
    time.sleep(0.01)
print("pear is now", prices.get("pear").decode())

prices.close()
client.close()
