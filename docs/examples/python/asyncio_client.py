"""Publish and consume in coroutines."""
import asyncio
import os

import pulsar.asyncio


async def main():
    client = pulsar.asyncio.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))
    consumer = await client.subscribe("example-events", "worker")
    producer = await client.create_producer("example-events")

    # All sends are on their way at once; each result is a message's id, on disk.
    ids = await asyncio.gather(*(producer.send(f"event {number}".encode()) for number in range(100)))
    print("on disk:", len(set(map(str, ids))))

    for _ in range(100):
        message = await asyncio.wait_for(consumer.receive(), 10)
        await consumer.acknowledge(message)
    print("last:", message.data().decode())
    await client.close()
    # A thread of the library has reported the end, and now releases the callback: it needs the interpreter for that.
    # A program that ends at this moment crashes now and then (apache/pulsar-client-python, issue 256).
    await asyncio.sleep(0.1)


asyncio.run(main())
