"""Workers as Dramatiq has them: actors in threads, with priorities, retries with back-off, dead letters, a schedule."""
import json
import os
import threading
from datetime import timedelta

import pulsar

client, actors = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650")), {}
producer = client.create_producer("example-dramatiq", batching_enabled=False)

class Actor:
    def __init__(self, function, priority=9, max_retries=2, min_backoff=0.3):
        self.run, self.max_retries, self.min_backoff = function, max_retries, min_backoff
        self.about, actors[function.__name__] = {"actor": function.__name__, "geminga.priority": str(priority)}, self
    def send(self, *arguments, retries=0):
        producer.send(json.dumps(arguments).encode(), self.about | {"retries": str(retries)},
                      deliver_after=timedelta(seconds=self.min_backoff * (2 ** retries - 1)))
@Actor
def resize(width):
    print("resized to", int(width), flush=True)

def work():
    queue = client.subscribe("example-dramatiq", "workers", pulsar.ConsumerType.Shared, receiver_queue_size=1,
                             negative_ack_redelivery_delay_ms=200, initial_position=pulsar.InitialPosition.Earliest)
    while message := queue.receive():
        actor, retries = actors[message.properties()["actor"]], int(message.properties().get("retries", 0))
        try:
            actor.run(*json.loads(message.data()))
        except ValueError as error:
            print("failed:", error, flush=True)
            if retries == actor.max_retries:      # given back until the topic's policy makes it a dead letter
                queue.negative_acknowledge(message)
                continue
            actor.send(*json.loads(message.data()), retries=retries + 1)
        queue.acknowledge(message)
resize.send("ten")
threading.Thread(target=work).start()
work()
