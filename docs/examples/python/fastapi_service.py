"""An HTTP service that publishes what is posted to it, and counts what it consumes: uvicorn fastapi_service:app"""
import asyncio
import contextlib
import os

import pulsar.asyncio
from fastapi import FastAPI, Request


@contextlib.asynccontextmanager
async def lifespan(app):
    client = pulsar.asyncio.Client(os.environ.get("PULSAR_URL", "pulsar://localhost:6650"))
    app.state.producer = await client.create_producer("example-clicks")
    app.state.counted = 0
    counter = asyncio.create_task(count(app, await client.subscribe("example-clicks", "counter")))
    yield
    counter.cancel()
    await client.close()


async def count(app, consumer):
    while True:
        message = await consumer.receive()
        app.state.counted += 1
        await consumer.acknowledge(message)


app = FastAPI(lifespan=lifespan)


@app.post("/clicks", status_code=201)
async def click(request: Request):
    return {"id": str(await app.state.producer.send(await request.body()))}      # answered when it is on disk


@app.get("/clicks")
async def clicks():
    return {"counted": app.state.counted}
