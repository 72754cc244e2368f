"""Producers of sealed segments, which a client of Pulsar 5 closes by itself."""
import pytest

from geminga.proto import envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.layouts import MANAGED
from geminga.workers.clients import sealed_producers

from ..proto.client_frames import PING, T, command, send
from .played import PlayedWorker
from .test_client import PRODUCER, close_producer, is_ready, producer

ANSWERED = sealed_producers._ANSWER_SECONDS
ERROR, CLOSE = ("SEND_ERROR", None, api.TopicTerminatedError), ("CLOSE_PRODUCER", 1)
JAVA, CPP = (command(T.CONNECT, client_version=f"Pulsar-{library}", protocol_version=21)
             for library in ("Java-v5.0.1", "CPP-v4.3.0"))
MARK = [api.KeyValue(key=MANAGED, value="true")]
FRAMES = responses.send_error(1, 0, api.TopicTerminatedError, "ended") + responses.close_producer(1)


@pytest.fixture
def worker(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed_producers, "_CLOSE_SECONDS", 0)
    played = PlayedWorker(tmp_path, monkeypatch)
    yield played
    played.close()


@pytest.fixture
def client(worker):
    """A client that has producer 1, marked as one of Pulsar 5."""
    return opened(worker, MARK)


def opened(worker, mark, connect=JAVA):
    client = worker.client(connect)
    client.say(producer(worker.topic(0), metadata=mark))
    is_ready(worker.owners[0], client, PRODUCER, 10)
    assert client.told() == [("PRODUCER_SUCCESS", 1)]
    worker.owners[0].heard()
    return client


def seal(worker, client, handle=10):
    worker.owners[0].replies(client, FRAMES, action=envelope.PRODUCER_SEALED, object_id=1, handle=handle)


def test_a_client_that_closes_the_producer_is_told_nothing_of_its_end(worker, client):
    """Its SENDs are ignored from the first, also those that its threads write behind CLOSE_PRODUCER."""
    seal(worker, client)
    client.say(send(), close_producer(2), send(sequence_id=1), PING)
    assert client.told() == [("PONG",)]
    worker.turn(ANSWERED)
    client.say(send(sequence_id=2), PING)
    assert client.told() == [("SUCCESS", 2), ("PONG",)]
    assert worker.owners[0].heard("send", "sends", "command") == []


def test_a_client_of_cpp_is_answered_at_once(worker):
    """Its own close fails while it waits for the answer: found by its test of a split under a live producer."""
    client = opened(worker, MARK, CPP)
    seal(worker, client)
    client.say(send(), close_producer(2), send(sequence_id=1), PING)
    assert client.told() == [("SUCCESS", 2), ("PONG",)]
    assert worker.owners[0].heard("send", "sends", "command") == []


def test_a_client_that_does_not_close_the_producer_is_told_after_a_while(worker, client):
    seal(worker, client)
    assert client.told() == []
    worker.turn()
    assert client.told() == [ERROR, CLOSE]
    client.say(send(), close_producer(2), PING)
    assert client.told() == [("SUCCESS", 2), ("PONG",)]


def test_a_client_of_pulsar_4_is_told_at_once(worker):
    client = opened(worker, [])
    seal(worker, client)
    assert client.told() == [ERROR, CLOSE]


@pytest.mark.parametrize("ends_too", [False, True])
def test_an_end_is_not_told_to_the_next_producer_with_the_id(worker, client, monkeypatch, ends_too):
    """If that is of a sealed segment too, it has time of its own."""
    seal(worker, client)
    client.say(producer(worker.topic(0), 2, metadata=MARK))
    is_ready(worker.owners[0], client, PRODUCER, 11, 2)
    if ends_too:
        monkeypatch.setattr(sealed_producers, "_CLOSE_SECONDS", 60)
        seal(worker, client, 11)
    worker.turn()
    assert client.told() == [("PRODUCER_SUCCESS", 2)]
    client.say(send(), PING)
    assert [handle for _, handle, *_ in worker.owners[0].heard("send")] == ([] if ends_too else [11])


@pytest.mark.parametrize("closes", [False, True])
def test_a_connection_that_has_ended_is_told_nothing(worker, client, closes):
    seal(worker, client)
    if closes:
        client.say(close_producer(2))
    client.transport.close()
    worker.turn(ANSWERED)
    assert client.told() == []
