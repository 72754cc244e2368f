"""Handle orders over TLS with a token; an order that cannot be read becomes a dead letter after two more deliveries.

    PULSAR_URL=pulsar+ssl://HOST:6651 CA=ca.pem TOKEN=token.txt python3 secured.py ORDER ...
"""
import os
import pathlib
import sys

import pulsar

token = pathlib.Path(os.environ["TOKEN"]).read_text().strip()
client = pulsar.Client(os.environ["PULSAR_URL"], tls_trust_certs_file_path=os.environ["CA"],
                       authentication=pulsar.AuthenticationToken(token),
                       logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

consumer = client.subscribe(
    "orders", "billing", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=200,
    dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, "orders-failed", "inspection"))

producer = client.create_producer("orders")
for order in sys.argv[1:]:
    producer.send(order.encode(), partition_key=order.partition(":")[0])

while True:
    try:
        message = consumer.receive(timeout_millis=3_000)
    except pulsar.Timeout:
        break
    try:
        print(message.partition_key(), "owes", int(message.data().partition(b":")[2]))
        consumer.acknowledge(message)
    except ValueError:
        print(message.partition_key(), "sent an order that cannot be read:", message.data().decode())
        consumer.negative_acknowledge(message)

client.close()
