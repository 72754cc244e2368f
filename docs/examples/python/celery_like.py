"""A worker as Celery has it: tasks by name with priorities, retries with back-off, dead letters, and a schedule."""
import json
import os
from datetime import timedelta

import pulsar

client, tasks = pulsar.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650")), {}
shared = {"consumer_type": pulsar.ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 200}
pool = client.subscribe("example-celery", "pool", receiver_queue_size=1, **shared)
producer = client.create_producer("example-celery", batching_enabled=False)

def task(priority=4, retries=2):
    def register(function):
        def delay(*arguments, attempt=0):
            about = {"task": function.__name__, "attempt": str(attempt), "geminga.priority": str(priority)}
            wait = timedelta(seconds=0.3 * (2 ** attempt - 1))
            producer.send(json.dumps(arguments).encode(), about, deliver_after=wait)
        function.delay, function.retries, tasks[function.__name__] = delay, retries, function
        return function
    return register

@task(priority=9)
def charge(amount):
    print("charged:", int(amount), flush=True)

charge.delay("ten")
while message := pool.receive():
    job, attempt = tasks[message.properties()["task"]], int(message.properties().get("attempt", 0))
    try:
        job(*json.loads(message.data()))
    except ValueError as error:
        print("failed:", error, flush=True)
        if attempt == job.retries:      # given back until the topic's policy makes it a dead letter
            pool.negative_acknowledge(message)
            continue
        job.delay(*json.loads(message.data()), attempt=attempt + 1)
    pool.acknowledge(message)
