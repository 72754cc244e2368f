"""Connections of the broker's own clients: producers that are not made, answers in a queue."""
import asyncio

import pytest

from geminga.proto import frames
from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.pulsar_client import client
from geminga.workers.pulsar_client.client import BrokerConnection
from geminga.workers.pulsar_client.connection import ClientError, FramedConnection, consuming, producing


class Transport(asyncio.Transport):
    """The socket's side: commands that were written, and whether the socket is read."""

    def __init__(self):
        super().__init__()
        self.sent, self.is_reading_now = [], True

    def write(self, data):
        size = frames.SIZES.unpack_from(data)[1]
        self.sent.append(api.BaseCommand.FromString(data[8:8 + size]))

    def pause_reading(self):
        self.is_reading_now = False

    def resume_reading(self):
        self.is_reading_now = True

    def close(self):
        """A test looks at nothing behind it."""


def connected(kind):
    connection, transport = kind(), Transport()
    connection.connection_made(transport)
    connection.data_received(of(api.CommandConnected(server_version="a broker")))
    return connection, transport


def of(message, entry=b""):
    return b"".join(frames.pieces(frames.command_of(message), entry))


@pytest.mark.parametrize("request_of", [lambda: producing("t", 7), lambda: consuming("t", "s", 7)])
@pytest.mark.parametrize("is_refused", [True, False])
def test_what_is_refused_is_forgotten_and_what_has_no_answer_is_closed(request_of, is_refused, monkeypatch):
    """A broker may still make what it did not answer in time.  Nobody would ever close that."""
    monkeypatch.setattr(FramedConnection, "ANSWER_S", 60.0 if is_refused else 0.01)

    async def run():
        connection, transport = connected(FramedConnection)
        opening = asyncio.create_task(connection.open(request_of(), "owner"))
        await asyncio.sleep(0)
        assert {**connection.producers, **connection.consumers} == {7: "owner"}
        if is_refused:
            connection.data_received(of(api.CommandError(request_id=1, error=api.ProducerBusy, message="taken")))
        with pytest.raises(ClientError, match="ProducerBusy: taken" if is_refused else "no answer to"):
            await opening
        assert not connection.producers and not connection.consumers
        return [command.type for command in transport.sent[1:]]

    closes = asyncio.run(run())
    assert len(closes) == (0 if is_refused else 1)
    assert set(closes) <= {api.BaseCommand.CLOSE_PRODUCER, api.BaseCommand.CLOSE_CONSUMER}


def test_an_answer_comes_from_behind_more_entries_than_are_held(monkeypatch):
    monkeypatch.setattr(client, "_HELD_MAX", 10)

    async def run():
        connection, transport = connected(BrokerConnection)
        message = api.CommandMessage(consumer_id=1)
        message.message_id.ledgerId = message.message_id.entryId = 0
        connection.data_received(of(message, b"0123456789+"))
        assert not transport.is_reading_now
        asking = asyncio.create_task(connection.partition_count("t"))
        await asyncio.sleep(0)
        assert transport.is_reading_now
        connection.data_received(of(message, b"more") + of(api.CommandPartitionedTopicMetadataResponse(
            request_id=1, partitions=3)))
        assert await asking == 3 and not transport.is_reading_now
        assert [(await connection.receive(api.BaseCommand.MESSAGE))[1] for _ in range(2)] == [b"0123456789+", b"more"]
        assert transport.is_reading_now

    asyncio.run(run())


def test_a_lost_connection_fails_all_requests_and_the_handshake():
    async def run():
        connection, _ = connected(FramedConnection)
        asking = [asyncio.create_task(connection.partition_count("t")) for _ in range(2)]
        await asyncio.sleep(0)
        connection.connection_lost(None)
        for one in asking:
            with pytest.raises(ClientError, match="the broker closed the connection"):
                await one
        with pytest.raises(ClientError, match="the broker closed the connection"):
            await connection.partition_count("t")

    asyncio.run(run())
