"""Producers that send without waiting for each receipt tell a lost connection to whoever waits."""
import asyncio

import pytest

from geminga.proto import frames
from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.pulsar_client import producers
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.connection import ClientError
from geminga.workers.pulsar_client.producers import Lost, Sending


class Connection:
    """A connection on which a producer opens, and that is lost while entries are written to it."""

    def __init__(self):
        self.lost = asyncio.Event()

    async def ask(self, request):
        return api.CommandProducerSuccess(request_id=1, producer_name="p")

    async def receive(self, expected):
        await self.lost.wait()
        raise ClientError("the broker closed the connection")

    async def write_when_possible(self, pieces):
        self.lost.set()
        for _ in range(3):      # the reading of receipts ends meanwhile
            await asyncio.sleep(0)


def test_a_connection_lost_during_a_write_ends_the_wait_for_room(monkeypatch):
    monkeypatch.setattr(producers, "_UNDER_WAY_MAX", 2)

    async def send():
        sending = Sending(Connection(), lambda receipt: None)
        producer = await sending.open("topic")
        async with sending:
            for number in range(3):
                await sending.send(producer, b"entry", number)

    with pytest.raises(Lost, match="the broker closed the connection"):
        asyncio.run(send())


def test_a_command_that_is_interrupted_while_an_answer_comes_ends():
    """Both happen in one turn of the event loop, as they do when a busy import is interrupted."""
    async def interrupted():
        connection = BrokerConnection()
        waiting = asyncio.create_task(connection.frame())
        await asyncio.sleep(0)
        connection.data_received(frames.frame(api.BaseCommand(type=api.BaseCommand.PONG, pong=api.CommandPong())))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(interrupted())
