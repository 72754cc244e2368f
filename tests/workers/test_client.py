"""A client's connection between owners that the test plays: which owner is sent what, and what the client is answered.

The first rule: an id that a client chose names at most one producer or consumer, which one owner has.
"""
import gc
import weakref

import numpy as np
import pytest

from geminga.proto import deliveries, envelope, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.acks import EntryAck
from geminga.proto.connection import Send, Sends
from geminga.workers.clients import commands, pending_requests, replies, routes, stream
from geminga.workers.clients.client import Client
from geminga.workers.clients.delivery_queue import DeliveryQueue
from geminga.workers.owners import waiting
from geminga.workers.process import worker as worker_module

from ..proto.client_frames import PING, T, command, entry_of, message_metadata, send
from .played import PlayedRights, PlayedWorker
from .test_egress import LEDGER, PARTITION, store

LARGEST = 2**64 - 1


@pytest.fixture
def worker(tmp_path, monkeypatch):
    played = PlayedWorker(tmp_path, monkeypatch)
    yield played
    played.close()


@pytest.fixture
def client(worker):
    return worker.client()


def producer(topic, request_id=1, producer_id=1, **fields):
    return command(T.PRODUCER, topic=topic, producer_id=producer_id, request_id=request_id, **fields)


def subscribe(topic, request_id=1, consumer_id=1, **fields):
    return command(T.SUBSCRIBE, topic=topic, subscription="s", subType=0, consumer_id=consumer_id,
                   request_id=request_id, **fields)


def close_producer(request_id, producer_id=1):
    return command(T.CLOSE_PRODUCER, producer_id=producer_id, request_id=request_id)


def close_consumer(request_id, consumer_id=1):
    return command(T.CLOSE_CONSUMER, consumer_id=consumer_id, request_id=request_id)


# -- frames


def test_a_frame_behind_a_slow_command_is_not_made_room_for_before_its_size_is_looked_at(worker, client, monkeypatch):
    """Four gigabytes were mapped, and the connection stayed open for ever, when the slice of time ended before them."""
    monkeypatch.setattr(stream, "_SLICE_SECONDS", -1)
    client.say(PING + b"\xff\xff\xff\xff\0\0\0\0")
    assert (client.told(), client.transport.is_closed) == ([("PONG",)], True)
    assert worker.worker.counters.total("protocol_errors") == 1


# -- producers and consumers


class Kind:
    """The parts of a test that differ between producers and consumers, so that it can be run for both."""

    def __init__(self, make, close, ready, gone, expelled, name, closed):
        self.make, self.close, self.name, self.closed = make, close, name, closed
        self.ready, self.gone, self.expelled = ready, gone, expelled

    def __repr__(self):
        return self.name

    def success(self, request_id):
        return (
            responses.producer_success(request_id, "name", last_sequence_id=5)
            if self.name == "Producer"
            else responses.success(request_id)
        )

    def farewell(self, object_id=1):
        return responses.close_producer(object_id) if self.name == "Producer" else responses.close_consumer(object_id)

    def told_success(self, request_id):
        return "PRODUCER_SUCCESS" if self.name == "Producer" else "SUCCESS", request_id


PRODUCER = Kind(producer, close_producer, envelope.PRODUCER_READY, envelope.PRODUCER_GONE, envelope.PRODUCER_EXPELLED,
                "Producer", "CLOSE_PRODUCER")
CONSUMER = Kind(subscribe, close_consumer, envelope.CONSUMER_READY, envelope.CONSUMER_GONE, envelope.CONSUMER_EXPELLED,
                "Consumer", "CLOSE_CONSUMER")
both = pytest.mark.parametrize("kind", [PRODUCER, CONSUMER], ids=repr)


def is_ready(owner, client, kind, handle, request_id=1, object_id=1):
    owner.replies(client, kind.success(request_id), request_id=request_id, action=kind.ready, object_id=object_id,
                  handle=handle)


def is_refused(owner, client, kind, request_id=1, object_id=1):
    owner.replies(client, responses.error(request_id, api.ProducerBusy, "busy"), request_id=request_id,
                  action=kind.gone, object_id=object_id)


def open_on(worker, client, kind, index=0, handle=10, request_id=1, object_id=1, which=0):
    """Open a producer or consumer, up to the owner's answer."""
    client.say(kind.make(worker.topic(index, which), request_id, object_id))
    is_ready(worker.owners[index], client, kind, handle, request_id, object_id)
    assert client.told() == [kind.told_success(request_id)]
    worker.owners[index].heard()


def types(commands):
    return [T.Name(one.type) if isinstance(one, api.BaseCommand) else one for one in commands]


# -- one id, one producer or consumer

@both
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("object_id", [0, 1, LARGEST])
def test_it_is_made_by_the_owner_of_its_topic(worker, client, kind, index, object_id):
    client.say(kind.make(worker.topic(index), 7, object_id))
    assert types(worker.owners[index].commands()) == [T.Name(T.PRODUCER if kind is PRODUCER else T.SUBSCRIBE)]
    assert worker.owners[1 - index].commands() == []
    is_ready(worker.owners[index], client, kind, 10, 7, object_id)
    assert client.told() == [kind.told_success(7)]


@both
@pytest.mark.parametrize("index", [0, 1], ids=["the same owner", "another owner"])
def test_an_id_that_is_being_made_is_refused(worker, client, kind, index):
    """A second command with the id is refused for any topic, and no owner is asked."""
    client.say(kind.make(worker.topic(0), 1), kind.make(worker.topic(index, 1), 2), kind.make(worker.topic(0), 3))
    assert len(worker.owners[0].commands()) == 1
    assert worker.owners[1].commands() == []
    assert client.told() == [("ERROR", 2, api.ServiceNotReady), ("ERROR", 3, api.ServiceNotReady)]
    is_ready(worker.owners[0], client, kind, 10)
    assert client.told() == [kind.told_success(1)]


def test_how_pulsar_says_that(worker, client):
    client.say(producer(worker.topic(0), 1), producer(worker.topic(0), 2), subscribe(worker.topic(0), 3),
               subscribe(worker.topic(0), 4))
    assert [heard.error.message for heard in client.hear()] == [
        "Producer is already present on the connection", "Consumer is already present on the connection"]


@both
@pytest.mark.parametrize("index", [0, 1])
def test_an_id_that_was_refused_is_free(worker, client, kind, index):
    client.say(kind.make(worker.topic(0), 1))
    is_refused(worker.owners[0], client, kind)
    worker.owners[0].heard()
    client.say(kind.make(worker.topic(index), 2))
    assert len(worker.owners[index].commands()) == 1
    is_ready(worker.owners[index], client, kind, 10, 2)
    assert client.told() == [("ERROR", 1, api.ProducerBusy), kind.told_success(2)]


@both
@pytest.mark.parametrize("index", [0, 1])
def test_an_id_that_is_there_is_there(worker, client, kind, index):
    """The command succeeds at once for any topic, as in Pulsar, and no owner is asked."""
    open_on(worker, client, kind)
    client.say(kind.make(worker.topic(index, 1), 2))
    [heard] = client.hear()
    if kind is PRODUCER:
        assert (
            heard.producer_success.request_id,
            heard.producer_success.producer_name,
            heard.producer_success.last_sequence_id,
        ) == (2, "name", 5)
    else:
        assert heard.success.request_id == 2
    assert worker.owners[0].commands() == worker.owners[1].commands() == []


@both
@pytest.mark.parametrize("index", [0, 1], ids=["the same owner", "another owner"])
@pytest.mark.parametrize("is_there", [False, True])
def test_an_id_can_be_used_again_behind_its_close(worker, client, kind, index, is_there):
    """The first owner may answer at any time: its answer is about the first producer or consumer."""
    first, second = worker.owners[0], worker.owners[index]
    if is_there:
        open_on(worker, client, kind)
    else:
        client.say(kind.make(worker.topic(0), 1))
        first.heard()
    client.say(kind.close(2), kind.make(worker.topic(index, 1), 3))
    expected = [T.Name(T.CLOSE_PRODUCER if kind is PRODUCER else T.CLOSE_CONSUMER)]
    assert types(first.commands())[:1] == expected
    if not is_there:
        is_ready(first, client, kind, 10)
        assert (kind.expelled, b"1 10") in first.commands()
    first.replies(client, responses.success(2), request_id=2)
    is_ready(second, client, kind, 11, 3)
    assert client.told()[-2:] == [("SUCCESS", 2), kind.told_success(3)]
    first.heard(), second.heard()
    if kind is PRODUCER:
        client.say(send())
        assert [(what, handle) for what, handle, *_ in second.heard("send")] == [("send", 11)]
    else:
        client.say(command(T.FLOW, consumer_id=1, messagePermits=5))
        assert second.heard() == [("flow", 11, 5)]


@both
def test_what_the_broker_closes_is_gone(worker, client, kind):
    open_on(worker, client, kind)
    worker.owners[0].replies(client, kind.farewell(), action=kind.gone, object_id=1, handle=10)
    assert client.told() == [(kind.closed, 1)]
    client.say(kind.make(worker.topic(1), 2))
    assert len(worker.owners[1].commands()) == 1


def test_answers_of_a_pass_are_written_together_and_in_order(worker, client, monkeypatch):
    """A write costs a system call; what is done to a consumer in between comes behind the answers before it."""
    other, writes = worker.client(), []
    open_on(worker, client, CONSUMER)
    for each in (client, other):
        monkeypatch.setattr(each.transport, "write", lambda data, number=each.number: writes.append((number, data)))
    one, two, three, closed = map(responses.success, (1, 2, 3, 4))
    worker.owners[0].says(
        lambda outbox: outbox.reply(client.number, one, request_id=1),
        lambda outbox: outbox.reply(other.number, three, request_id=3),
        lambda outbox: outbox.reply(client.number, two, request_id=2),
        lambda outbox: outbox.reply(client.number, closed, action=CONSUMER.gone, object_id=1, handle=10),
        lambda outbox: outbox.reply(client.number, three, request_id=3))
    assert [data for number, data in writes if number == client.number] == [one + two, closed, three]
    assert [data for number, data in writes if number == other.number] == [three]


@both
def test_a_word_about_one_that_its_client_has_closed_is_not_about_its_successor(worker, client, kind):
    """The broker and the client close it at the same time, and the client uses the id again at the same owner."""
    open_on(worker, client, kind)
    client.say(kind.close(2), kind.make(worker.topic(0, 1), 3))
    worker.owners[0].replies(client, kind.farewell(), action=kind.gone, object_id=1, handle=10)
    worker.owners[0].replies(client, responses.success(2), request_id=2)
    is_ready(worker.owners[0], client, kind, 11, 3)
    worker.owners[0].replies(client, kind.farewell(), action=kind.gone, object_id=1, handle=10)
    assert client.told() == [("SUCCESS", 2), kind.told_success(3)]
    client.say(kind.make(worker.topic(0, 1), 4))
    assert client.told() == [kind.told_success(4)]


@both
def test_a_refusal_of_another_request_is_not_about_this_one(worker, client, kind):
    client.say(kind.make(worker.topic(0), 1), kind.close(2), kind.make(worker.topic(0, 1), 3))
    is_refused(worker.owners[0], client, kind, 1)
    worker.owners[0].replies(client, responses.success(2), request_id=2)
    is_ready(worker.owners[0], client, kind, 11, 3)
    assert client.told() == [("ERROR", 1, api.ProducerBusy), ("SUCCESS", 2), kind.told_success(3)]
    client.say(kind.make(worker.topic(0, 1), 4))
    assert client.told() == [kind.told_success(4)]


@both
def test_an_owner_is_told_to_end_what_nobody_knows(worker, client, kind):
    """An owner is also told to end a producer whose client has used one request id twice."""
    client.say(kind.make(worker.topic(0), 1))
    is_ready(worker.owners[0], client, kind, 10, request_id=99)
    assert worker.owners[0].commands()[1:] == [(kind.expelled, b"1 10")]
    worker.owners[0].heard()
    is_ready(worker.owners[1], client, kind, 11)
    assert worker.owners[1].commands() == [(kind.expelled, b"1 11")]


@both
def test_request_ids_that_are_used_twice_end_where_the_owner_is(worker, client, kind):
    """Handles that come later replace earlier ones."""
    client.say(kind.make(worker.topic(0), 1), kind.close(1), kind.make(worker.topic(0), 1))
    is_ready(worker.owners[0], client, kind, 10)
    worker.owners[0].replies(client, responses.success(1), request_id=1)
    is_ready(worker.owners[0], client, kind, 11)
    worker.owners[0].heard()
    client.say(*[send()] if kind is PRODUCER else [command(T.FLOW, consumer_id=1, messagePermits=5)])
    assert [one[1] for one in worker.owners[0].heard("send", "flow")] == [11]
    assert {handle for _, handle in client.client.routes.by_handle} <= {11}
    worker.owners[0].replies(client, kind.farewell(), action=kind.gone, object_id=1, handle=11)
    assert not (client.client.routes.producers or client.client.routes.consumers or client.client.routes.by_handle)


@both
def test_what_is_not_there_is_as_good_as_closed(worker, client, kind):
    client.say(kind.close(7), kind.close(8, LARGEST))
    assert client.told() == [("SUCCESS", 7), ("SUCCESS", 8)]
    assert worker.owners[0].commands() == worker.owners[1].commands() == []


# -- SENDs

def test_sends_go_to_their_producers_owners_with_their_handles(worker, client):
    open_on(worker, client, PRODUCER, 0, 10, 1, 1)
    open_on(worker, client, PRODUCER, 1, 20, 2, 2)
    open_on(worker, client, PRODUCER, 0, 30, 3, 3, which=1)
    client.say(*(send(producer_id=number, sequence_id=0) for number in (1, 2, 3)))
    frames = [send(producer_id=1 + number % 3, sequence_id=number) for number in range(1, 100)]
    client.say(*frames)
    got = []
    for owner in worker.owners:
        mine = []
        for what, *rest in owner.heard("send", "sends"):
            if what == "send":
                mine.append(rest[0])
            else:
                rows, entries = rest
                assert (rows["connection"] == client.number).all()
                assert rows["offset"].tolist() == [number * (len(entries) // len(rows)) for number in range(len(rows))]
                assert {10: 1, 20: 2, 30: 3}[int(rows["producer"][0])] == int(rows["producer_id"][0])
                mine += rows["producer"].tolist()
        got.append(mine)
    assert got == [[10, 30] + [handle for number in range(1, 100) if (handle := 10 + number % 3 * 10) != 20], [20] * 34]


@pytest.mark.parametrize("many", [1, 50])
def test_a_send_behind_its_clients_own_close_ends_the_connection(worker, client, many):
    """A SEND for a producer that never existed ends the connection, too."""
    open_on(worker, client, PRODUCER)
    client.say(close_producer(2), *[send(sequence_id=number) for number in range(many)])
    assert client.transport.is_closed
    assert worker.owners[0].heard("send", "sends") == []


@pytest.mark.parametrize("many", [1, 50])
def test_a_send_behind_the_brokers_close_is_ignored(worker, client, many):
    """The client sends the messages again when the producer is back."""
    open_on(worker, client, PRODUCER)
    worker.owners[0].replies(client, responses.close_producer(1), action=envelope.PRODUCER_GONE, object_id=1, handle=10)
    client.say(*[send(sequence_id=number) for number in range(many)], PING)
    assert client.told() == [("CLOSE_PRODUCER", 1), ("PONG",)]
    assert worker.owners[0].heard("send", "sends") == []
    client.say(producer(worker.topic(1), 2))
    is_ready(worker.owners[1], client, PRODUCER, 11, 2)
    client.say(send())
    assert [handle for _, handle, *_ in worker.owners[1].heard("send")] == [11]


@pytest.mark.parametrize("again", [
    lambda worker: producer(worker.topic(1), 2), lambda worker: close_producer(2)], ids=["producer", "close"])
def test_behind_a_command_of_its_client_no_send_is_ignored(worker, client, again):
    """A later command of the client shows that it knew of the close, or that it closes the producer itself."""
    open_on(worker, client, PRODUCER)
    worker.owners[0].replies(client, responses.close_producer(1), action=envelope.PRODUCER_GONE, object_id=1, handle=10)
    client.say(again(worker), send())
    assert client.transport.is_closed


@pytest.mark.parametrize("was_there", [False, True])
def test_a_refused_producer_is_none_to_send_for(worker, client, was_there):
    """The SEND ends the connection even if the broker closed the producer earlier: its client has come back since."""
    if was_there:
        open_on(worker, client, PRODUCER)
        worker.owners[0].replies(client, responses.close_producer(1), action=envelope.PRODUCER_GONE, object_id=1,
                                 handle=10)
    client.say(producer(worker.topic(0)))
    is_refused(worker.owners[0], client, PRODUCER)
    client.say(send())
    assert client.transport.is_closed


def test_a_send_that_is_refused_needs_a_producer_too(worker, client):
    open_on(worker, client, PRODUCER)
    damaged = send(entry_of(message_metadata(), wrong_by=1), sequence_id=5)
    client.say(damaged)
    assert client.told() == [("SEND_ERROR", None, api.ChecksumError)] or client.transport.written == b""
    client.say(close_producer(2), damaged)
    assert client.transport.is_closed


def test_producers_that_the_broker_closed_are_remembered_up_to_a_bound(worker, client, monkeypatch):
    """The last ones that were closed are remembered."""
    monkeypatch.setattr(routes, "_CLOSED_MAX", 2)
    for number in (1, 2, 3):
        open_on(worker, client, PRODUCER, handle=number, request_id=number, object_id=number)
        worker.owners[0].replies(client, b"", action=envelope.PRODUCER_GONE, object_id=number, handle=number)
    client.say(send(producer_id=3), send(producer_id=2), PING)
    assert client.told() == [("PONG",)]
    client.say(send(producer_id=1))
    assert client.transport.is_closed


# -- owners come and go

@both
def test_what_an_owner_had_is_closed_when_it_ends(worker, client, kind):
    open_on(worker, client, kind, 0, 10, 1, 1)
    open_on(worker, client, kind, 1, 20, 2, 2)
    worker.owners[0].gone()
    assert client.told() == [(kind.closed, 1)]
    if kind is PRODUCER:
        client.say(send(producer_id=1))
    assert list(client.client.routes.producers if kind is PRODUCER else client.client.routes.consumers) == [2]
    assert {handle for _, handle in client.client.routes.by_handle} == ({20} if kind is CONSUMER else set())
    assert not client.transport.is_closed


@both
def test_what_was_being_made_is_made_by_the_successor(worker, client, kind):
    client.say(kind.make(worker.topic(0), 1))
    worker.owners[0].gone()
    assert client.told() == []
    client.say(kind.make(worker.topic(1), 2))
    assert client.told() == [("ERROR", 2, api.ServiceNotReady)]
    assert worker.owners[1].commands() == []
    worker.owners[0].up()
    [asked] = worker.owners[0].commands()
    assert (asked.producer if kind is PRODUCER else asked.subscribe).request_id == 1
    is_ready(worker.owners[0], client, kind, 11)
    assert client.told() == [kind.told_success(1)]


@both
def test_what_is_closed_while_it_waits_for_a_successor_is_not_made(worker, client, kind):
    client.say(kind.make(worker.topic(0), 1))
    worker.owners[0].gone()
    client.say(kind.close(2))
    assert client.told() == [("SUCCESS", 2)]
    worker.owners[0].up()
    assert worker.owners[0].commands() == []
    assert worker.counters.read()["commands_waiting"] == 0


@both
def test_a_request_that_ends_two_owners_is_not_given_to_a_third(worker, client, kind):
    client.say(kind.make(worker.topic(0), 1), kind.make(worker.topic(1), 2, 2))
    for _ in range(2):
        worker.owners[0].gone()
        worker.owners[0].up()
    assert client.told() == [("ERROR", 1, api.ServiceNotReady)]
    assert worker.owners[0].commands() == []
    # ids of refused commands are free, and an owner that ends may have another cause
    client.say(kind.make(worker.topic(0), 1))
    worker.owners[0].gone()
    worker.owners[0].up()
    assert len(worker.owners[0].commands()) == 1
    worker.owners[1].gone()
    worker.owners[1].up()
    # the other owner was asked once, for a command whose first owner has ended
    assert len(worker.owners[1].commands()) == 1
    assert client.told() == []


@both
def test_what_waits_for_an_owner_has_its_id(worker, client, kind):
    worker.owners[0].gone()
    client.say(kind.make(worker.topic(0), 1), kind.make(worker.topic(1), 2))
    assert client.told() == [("ERROR", 2, api.ServiceNotReady)]
    assert worker.counters.read()["commands_waiting"] == 1
    worker.owners[0].up()
    assert len(worker.owners[0].commands()) == 1
    assert worker.owners[1].commands() == []
    assert worker.counters.read()["commands_waiting"] == 0


@both
def test_what_is_closed_while_it_waits_is_not_made(worker, client, kind):
    worker.owners[0].gone()
    client.say(kind.make(worker.topic(0), 1), kind.make(worker.topic(0), 2, 2), kind.close(3))
    assert client.told() == [("SUCCESS", 3)]
    assert worker.counters.read()["commands_waiting"] == 1
    client.say(kind.make(worker.topic(1), 4))
    assert len(worker.owners[1].commands()) == 1
    worker.owners[0].up()
    [asked] = worker.owners[0].commands()
    assert (asked.producer if kind is PRODUCER else asked.subscribe).request_id == 2


@both
def test_what_waits_may_be_refused_when_its_turn_comes(worker, client, kind):
    """The id of a command that is refused when its turn comes is free."""
    worker.owners[0].gone()
    client.say(kind.make(worker.topic(0), 1))
    worker.worker.is_draining = True
    worker.owners[0].up()
    worker.worker.is_draining = False
    assert client.told() == [("ERROR", 1, api.ServiceNotReady)]
    client.say(kind.make(worker.topic(1), 2))
    assert len(worker.owners[1].commands()) == 1
    is_ready(worker.owners[1], client, kind, 10, 2)
    assert client.told() == [kind.told_success(2)]


def test_what_waits_goes_with_its_connection(worker, client):
    worker.owners[0].gone()
    client.say(producer(worker.topic(0), 1), subscribe(worker.topic(0), 2))
    client.transport.close()
    assert worker.counters.read()["commands_waiting"] == 0
    worker.owners[0].up()
    assert worker.owners[0].commands() == []


def test_waiting_commands_are_bounded(worker, client, monkeypatch):
    monkeypatch.setattr(waiting, "_WAITING_MAX", 1)
    worker.owners[0].gone()
    client.say(producer(worker.topic(0), 1, 1), producer(worker.topic(0), 2, 2))
    assert client.told() == [("ERROR", 2, api.ServiceNotReady)]
    client.say(producer(worker.topic(1), 3, 2))
    assert len(worker.owners[1].commands()) == 1


def test_what_an_owner_was_asked_is_answered_when_it_ends(worker, client):
    open_on(worker, client, CONSUMER, 0, 10, 1, 1)
    open_on(worker, client, CONSUMER, 0, 11, 2, 2, which=1)
    open_on(worker, client, PRODUCER, 0, 12, 3, 3)
    open_on(worker, client, CONSUMER, 1, 20, 4, 4)
    client.say(command(T.SEEK, consumer_id=1, request_id=5, message_publish_time=0), close_consumer(6, 2),
               close_producer(7, 3), command(T.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=8),
               command(T.GET_LAST_MESSAGE_ID, consumer_id=4, request_id=9),
               command(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1))
    worker.owners[0].replies(client, responses.success(5), request_id=5)
    assert client.told() == [("SUCCESS", 5)]
    worker.owners[0].gone()
    assert client.told() == [("CLOSE_CONSUMER", 1), ("SUCCESS", 6), ("SUCCESS", 7), ("ERROR", 8, api.ServiceNotReady)]
    worker.owners[1].gone()
    assert client.told() == [("CLOSE_CONSUMER", 4), ("ERROR", 9, api.ServiceNotReady)]


def ack(request_id, count):
    ids = [api.MessageIdData(ledgerId=3, entryId=number) for number in range(count)]
    return command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=ids, request_id=request_id)


@pytest.mark.parametrize("count", [1, 100])
def test_an_acknowledgement_that_its_owner_has_not_answered_is_refused_when_it_ends(worker, client, count):
    open_on(worker, client, CONSUMER)
    client.say(ack(5, count), ack(6, count))
    worker.owners[0].replies(client, responses.ack_response(1, 5), request_id=5)
    [answer] = client.hear()
    assert answer.ackResponse.request_id == 5 and not answer.ackResponse.HasField("error")
    worker.owners[0].gone()
    assert client.told() == [("CLOSE_CONSUMER", 1), ("ACK_RESPONSE", 6, api.ServiceNotReady)]


@pytest.mark.parametrize("count", [1, 100])
def test_acknowledgements_that_are_not_answered_are_bounded(worker, client, monkeypatch, count):
    monkeypatch.setattr(pending_requests, "_PENDING_MAX", 2)
    open_on(worker, client, CONSUMER)
    client.say(ack(5, count), ack(6, count), ack(7, count))
    assert client.told() == [("ACK_RESPONSE", 7, api.TooManyRequests)]
    assert sum(len(rows) for _, rows, _ in worker.owners[0].heard()) == 2 * count


def test_requests_that_are_not_answered_are_bounded(worker, client, monkeypatch):
    """Closing is possible beyond the bound: a client's unwanted consumers must not stay."""
    monkeypatch.setattr(pending_requests, "_PENDING_MAX", 2)
    open_on(worker, client, CONSUMER)
    client.say(*(command(T.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=number) for number in (5, 6, 7)),
               close_consumer(8))
    assert client.told() == [("ERROR", 7, api.TooManyRequests)]
    assert types(worker.owners[0].commands()) == ["GET_LAST_MESSAGE_ID"] * 2 + ["CLOSE_CONSUMER"]


# -- the connection's end

@both
def test_every_owner_that_was_asked_anything_hears_of_the_end(worker, client, kind):
    """An owner that was asked hears of the end even without anything of the client, or before its answer; no other
    does.
    """
    client.say(kind.make(worker.topic(0), 1), kind.close(2))
    client.transport.close()
    assert worker.owners[0].commands()[-1] == (envelope.CONNECTION_GONE, b"")
    assert worker.owners[1].commands() == []


def test_an_owner_is_told_once_who_asks(worker, client):
    client.say(producer(worker.topic(0), 1, 1), producer(worker.topic(0), 2, 2))
    kinds = [kind for _, _, kind, _ in worker.owners[0].heard("command")]
    assert kinds == [envelope.INTRODUCED, envelope.COMMAND, envelope.COMMAND]
    worker.owners[0].gone()
    assert not client.client.introduced
    worker.owners[0].up()
    kinds = [kind for _, _, kind, _ in worker.owners[0].heard("command")]
    assert kinds == [envelope.INTRODUCED, envelope.COMMAND, envelope.COMMAND]


def test_an_owner_can_end_a_connection(worker, client):
    open_on(worker, client, PRODUCER)
    other = worker.client()
    worker.owners[0].replies(client, action=envelope.END)
    assert client.transport.is_closed
    assert worker.owners[0].commands() == [(envelope.CONNECTION_GONE, b"")]
    other.say(PING)
    assert other.told() == [("PONG",)]


def test_a_client_is_freed_with_its_connection(worker):
    """A client is freed without garbage collection: thousands may leave at once."""
    gc.disable()
    try:
        client = worker.client()
        freed = weakref.ref(client.client)
        open_on(worker, client, CONSUMER)
        transport = client.transport
        transport.close()
        del client.client, client, transport._client
        assert freed() is None
    finally:
        gc.enable()


def test_goodbye(worker, client):
    """A client that is sent away looks up all its topics again."""
    open_on(worker, client, PRODUCER, 0, 10, 1, 1)
    open_on(worker, client, CONSUMER, 1, 20, 2, 2)
    client.client.say_goodbye()
    assert client.told() == [("CLOSE_PRODUCER", 1), ("CLOSE_CONSUMER", 2)]
    assert client.transport.is_closed
    assert not client.transport.was_aborted


def test_what_no_owner_has_answered_is_refused_at_goodbye(worker, client):
    """Whoever waits for an answer gets one: the owner of the first was asked, that of the second is not there."""
    client.say(producer(worker.topic(1), 1, 1))
    worker.owners[0].gone()
    client.say(producer(worker.topic(0), 2, 2))
    client.told()
    client.client.say_goodbye()
    assert client.told() == [("ERROR", 1, api.ServiceNotReady), ("ERROR", 2, api.ServiceNotReady)]
    assert client.transport.is_closed


def test_producers_are_closed_for_a_drain(worker, client):
    """Producers that are made are closed at once.  One that is being made is expelled: it may wait for another to go.
    """
    open_on(worker, client, PRODUCER, 0, 10, 1, 1)
    client.say(producer(worker.topic(1), 2, 2))
    worker.owners[1].heard()
    worker.owners[0].gone()
    client.told()
    open_on(worker, client, PRODUCER, 1, 30, 3, 3, which=1)
    client.say(producer(worker.topic(0), 4, 4))
    client.client.close_producers()
    client.client.close_producers()
    assert client.told() == [("CLOSE_PRODUCER", 3), ("ERROR", 4, api.ServiceNotReady)]
    assert worker.owners[1].commands() == [(envelope.PRODUCER_EXPELLED, b"2 0")]
    assert list(client.client.routes.producers) == [2]
    client.say(send(producer_id=3), PING)
    assert client.told() == [("PONG",)]
    worker.owners[1].replies(client, responses.error(2, api.ServiceNotReady, ""), request_id=2,
                             action=envelope.PRODUCER_GONE, object_id=2)
    assert not client.client.routes.producers
    assert worker.counters.read()["commands_waiting"] == 0
    worker.owners[0].up()
    assert worker.owners[0].commands() == []


def test_a_drain_waits_for_what_is_in_flight(worker, client):
    """SENDs of a producer that its client has closed are waited for, too."""
    open_on(worker, client, PRODUCER)
    client.say(send(), close_producer(2))
    drain = worker.loop.create_task(worker.worker.drain())
    worker.turn(0.02)
    assert not drain.done()
    worker.owners[0].says(lambda outbox: outbox.reply(client.number, responses.success(2), request_id=2),
                          taken=worker.owners[0].link.sent)
    worker.turn(0.02)
    assert drain.done()
    client.say(producer(worker.topic(0), 3))
    assert client.told() == [("SUCCESS", 2), ("ERROR", 3, api.ServiceNotReady)]


# -- rights

@pytest.fixture
def rights():
    return PlayedRights()


@pytest.fixture
def guarded_worker(tmp_path, monkeypatch, rights):
    played = PlayedWorker(tmp_path, monkeypatch, rights=rights)
    yield played
    played.close()


def look(worker):
    """Let the worker look whether rights have changed; return the version it has seen."""
    worker.worker.rights._again.cancel()
    worker.worker.rights._look()
    return worker.counters.read()["rights_seen"]


@both
def test_a_command_without_a_right_leaves_the_id_to_whoever_has_it(guarded_worker, rights, kind):
    """The refused command names the id of a producer or consumer that is being made for another topic."""
    client = guarded_worker.client()
    rights.withdraw(guarded_worker.topic(0, 1))
    client.say(kind.make(guarded_worker.topic(0), 1), kind.make(guarded_worker.topic(0, 1), 2))
    assert client.told() == [("ERROR", 2, api.AuthorizationError)]
    guarded_worker.owners[0].heard()
    is_ready(guarded_worker.owners[0], client, kind, 10)
    assert client.told() == [kind.told_success(1)]
    assert guarded_worker.owners[0].commands() == []      # the owner is not told to end it either


@both
def test_what_is_there_is_told_to_go_once(guarded_worker, rights, kind):
    client = guarded_worker.client()
    open_on(guarded_worker, client, kind)
    rights.withdraw(guarded_worker.topic(0))
    assert look(guarded_worker) == look(guarded_worker) == 0
    assert guarded_worker.owners[0].commands() == [(kind.expelled, b"1 10")]
    guarded_worker.owners[0].replies(client, kind.farewell(), action=kind.gone, object_id=1, handle=10)
    assert look(guarded_worker) == 1
    assert client.told() == [(kind.closed, 1)]
    client.say(kind.make(guarded_worker.topic(0), 2))
    assert client.told() == [("ERROR", 2, api.AuthorizationError)]
    assert guarded_worker.owners[0].commands() == []


@both
def test_what_is_being_made_is_told_to_go(guarded_worker, rights, kind):
    """The revocation is answered only after it is expelled; nothing is published or delivered in between."""
    client = guarded_worker.client()
    client.say(kind.make(guarded_worker.topic(0)))
    guarded_worker.owners[0].heard()
    rights.withdraw(guarded_worker.topic(0))
    assert look(guarded_worker) == 0
    assert guarded_worker.owners[0].commands() == [(kind.expelled, b"1 0")]
    is_ready(guarded_worker.owners[0], client, kind, 10)      # it was open when the owner heard of the revocation
    assert look(guarded_worker) == 0
    assert guarded_worker.owners[0].commands() == []
    guarded_worker.owners[0].replies(client, kind.farewell(), action=kind.gone, object_id=1, handle=10)
    assert look(guarded_worker) == 1
    assert client.told() == [kind.told_success(1), (kind.closed, 1)]


@both
def test_what_becomes_ready_too_late_is_told_to_go_at_once(guarded_worker, rights, kind):
    client = guarded_worker.client()
    client.say(kind.make(guarded_worker.topic(0)))
    guarded_worker.owners[0].heard()
    rights.withdraw(guarded_worker.topic(0))
    is_ready(guarded_worker.owners[0], client, kind, 10)
    assert guarded_worker.owners[0].commands() == [(kind.expelled, b"1 10")]


@both
def test_what_waits_for_its_owner_is_looked_at_anew(guarded_worker, rights, kind):
    client = guarded_worker.client()
    guarded_worker.owners[0].gone()
    client.say(kind.make(guarded_worker.topic(0)))
    rights.withdraw(guarded_worker.topic(0))
    assert look(guarded_worker) == 1
    guarded_worker.owners[0].up()
    assert client.told() == [("ERROR", 1, api.AuthorizationError)]
    assert guarded_worker.owners[0].commands() == []
    client.say(kind.make(guarded_worker.topic(1), 2))
    assert len(guarded_worker.owners[1].commands()) == 1


@both
def test_a_right_that_another_topic_has_helps_nobody(guarded_worker, rights, kind):
    """The same id is used again for a topic that the client may still use."""
    client = guarded_worker.client()
    client.say(kind.make(guarded_worker.topic(0)), kind.make(guarded_worker.topic(1), 2))
    is_ready(guarded_worker.owners[0], client, kind, 10)
    guarded_worker.owners[0].heard()
    rights.withdraw(guarded_worker.topic(0))
    assert look(guarded_worker) == 0
    assert guarded_worker.owners[0].commands() == [(kind.expelled, b"1 10")]
    assert guarded_worker.owners[1].commands() == []


# -- schemas

SCHEMA = {"name": "s", "type": api.Schema.String, "schema_data": b""}


def settled(worker, owner):
    """Finish the schema checks that are under way; return what the owner is asked then."""
    while worker.worker.schema_checks._checking:
        worker.turn(0.01)
    return owner.commands()


@both
def test_an_id_whose_schema_is_looked_at_is_being_made(worker, client, kind):
    client.say(kind.make(worker.topic(0), 1, schema=SCHEMA), kind.make(worker.topic(1), 2))
    assert client.told() == [("ERROR", 2, api.ServiceNotReady)]
    assert len(settled(worker, worker.owners[0])) == 1
    assert worker.owners[1].commands() == []
    is_ready(worker.owners[0], client, kind, 10)
    assert client.told() == [kind.told_success(1)]


@both
def test_what_is_closed_while_its_schema_is_looked_at_is_not_made(worker, client, kind):
    client.say(kind.make(worker.topic(0), 1, schema=SCHEMA), kind.close(2), kind.make(worker.topic(1), 3))
    worker.turn(0.05)
    assert settled(worker, worker.owners[0]) == []
    assert len(worker.owners[1].commands()) == 1
    assert client.told() == [("SUCCESS", 2)]


def test_a_schema_that_is_refused_frees_the_id(worker, client):
    client.say(producer(worker.topic(0), 1, schema={"name": "s", "type": api.Schema.Avro, "schema_data": b"no schema"}))
    assert settled(worker, worker.owners[0]) == []
    worker.turn()
    [(name, request_id, _)] = client.told()
    assert (name, request_id) == ("ERROR", 1)
    client.say(producer(worker.topic(1), 2))
    assert len(worker.owners[1].commands()) == 1


def test_a_right_that_is_lost_while_a_schema_is_looked_at(guarded_worker, rights):
    client = guarded_worker.client()
    client.say(producer(guarded_worker.topic(0), 1, schema=SCHEMA))
    rights.withdraw(guarded_worker.topic(0))
    assert settled(guarded_worker, guarded_worker.owners[0]) == []
    guarded_worker.turn()
    assert client.told() == [("ERROR", 1, api.AuthorizationError)]
    assert not client.client.routes.producers


# -- consumers

def test_flows_and_acknowledgements_go_to_the_consumers_owner(worker, client):
    open_on(worker, client, CONSUMER, 0, 10, 1, 1)
    open_on(worker, client, CONSUMER, 1, 20, 2, 2)
    places = [api.MessageIdData(ledgerId=3, entryId=4), api.MessageIdData(ledgerId=3, entryId=5, ack_set=[9, 8])]
    client.say(command(T.FLOW, consumer_id=1, messagePermits=5), command(T.FLOW, consumer_id=2, messagePermits=6))
    client.say(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=places),
               command(T.ACK, consumer_id=2, ack_type=api.CommandAck.Cumulative, message_id=places[:1], request_id=7))
    assert worker.owners[0].heard() == [
        ("flow", 10, 5), ("acks", [(10, 3, 4, 0, 0, 0), (10, 3, 5, 0, envelope.PARTIAL, 2)], [9, 8])]
    assert worker.owners[1].heard() == [
        ("flow", 20, 6), ("acks", [(20, 3, 4, 7, envelope.CUMULATIVE | envelope.WANTS_RESPONSE, 0)], [])]


def test_many_acknowledgements_at_once_go_as_an_array(worker, client):
    open_on(worker, client, CONSUMER)
    places = [api.MessageIdData(ledgerId=3, entryId=number) for number in range(100)]
    for more in ({}, {"request_id": 7}):
        client.say(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=places, **more))
        [(_, rows, words)] = worker.owners[0].heard()
        assert [row[:3] for row in rows] == [(10, 3, number) for number in range(100)]
        assert [row[3:5] for row in rows if any(row[3:])] == ([(7, envelope.WANTS_RESPONSE)] if more else [])
        assert rows[-1][3] == more.get("request_id", 0)      # the answer comes when the last id has been looked at
        assert words == []


def test_an_acknowledgement_of_nothing_is_answered(worker, client):
    """A cumulative ACK of several ids is answered, too, and acknowledges nothing."""
    open_on(worker, client, CONSUMER)
    places = [api.MessageIdData(ledgerId=3, entryId=number) for number in (1, 2)]
    client.say(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Cumulative, message_id=places, request_id=7))
    assert worker.owners[0].heard() == [("acks", [(10, 0, 0, 7, envelope.NOTHING | envelope.WANTS_RESPONSE, 0)], [])]
    client.say(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Cumulative, message_id=places))
    assert worker.owners[0].heard() == [("acks", [], [])]


def test_what_is_said_of_a_consumer_that_is_not_there_goes_nowhere(worker, client):
    client.say(subscribe(worker.topic(0), 1, 1))
    worker.owners[0].heard()
    for consumer_id in (1, 2):
        client.say(command(T.FLOW, consumer_id=consumer_id, messagePermits=5),
                   *(command(T.ACK, consumer_id=consumer_id, ack_type=api.CommandAck.Individual, request_id=7,
                             message_id=[api.MessageIdData(ledgerId=3, entryId=number) for number in range(count)])
                     for count in (1, 100)))
    client.say(command(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=2),
               command(T.SEEK, consumer_id=2, request_id=8),
               command(T.CONSUMER_STATS, consumer_id=2, request_id=9))
    assert worker.owners[0].heard() == worker.owners[1].heard() == []
    heard = client.hear()
    assert [one.type for one in heard] == [*[T.ACK_RESPONSE] * 4, T.ERROR, T.CONSUMER_STATS_RESPONSE]
    assert [(one.ackResponse.consumer_id, one.ackResponse.request_id, one.ackResponse.error) for one in heard[:4]] == [
        (consumer_id, 7, api.ConsumerNotFound) for consumer_id in (1, 1, 2, 2)]


def test_acknowledgements_of_a_consumer_that_is_not_there_are_ignored_if_nobody_waits_for_an_answer(worker, client):
    for count in (1, 2, 100):
        ids = [api.MessageIdData(ledgerId=3, entryId=number) for number in range(count)]
        client.say(command(T.ACK, consumer_id=2, ack_type=api.CommandAck.Individual, message_id=ids))
    assert client.hear() == worker.owners[0].heard() == worker.owners[1].heard() == []


def test_no_permits_break_the_protocol(worker, client):
    open_on(worker, client, CONSUMER)
    client.say(command(T.FLOW, consumer_id=1, messagePermits=0))
    assert client.transport.is_closed


def test_an_unsubscribed_consumer_is_gone(worker, client):
    open_on(worker, client, CONSUMER)
    client.say(command(T.UNSUBSCRIBE, consumer_id=1, request_id=2))
    worker.owners[0].replies(client, responses.success(2), request_id=2, action=envelope.CONSUMER_GONE, object_id=1,
                             handle=10)
    assert client.told() == [("SUCCESS", 2)]
    assert not (client.client.routes.consumers or client.client.routes.by_handle)


# -- what is delivered

def messages(client):
    """Return (consumer id, ledger, entry, partition, epoch) of the MESSAGEs that were written."""
    said = [heard.message for heard in client.hear() if heard.type == T.MESSAGE]
    return [(one.consumer_id, one.message_id.ledgerId, one.message_id.entryId, one.message_id.partition,
             one.consumer_epoch if one.HasField("consumer_epoch") else -1) for one in said]


def run(client, first, count, handle=10, ledger_id=LEDGER):
    return lambda outbox: outbox._add(envelope.RUNS, (client.number, count, handle, PARTITION, ledger_id, first), b"")


@pytest.fixture
def consuming(worker, client, tmp_path):
    store(tmp_path, [10] * 20, first=1)
    store(tmp_path, [10] * 20, ledger_id=LEDGER + 1, first=1)
    open_on(worker, client, CONSUMER)
    return client


def test_runs_are_written_in_order(worker, consuming):
    worker.owners[0].says(run(consuming, 0, 2), run(consuming, 2, 2), run(consuming, 5, 1),
                          run(consuming, 5, 1, ledger_id=LEDGER + 1),
                          run(consuming, 6, 2, ledger_id=LEDGER + 1), run(consuming, 8, 1))
    assert messages(consuming) == [(1, LEDGER + which, entry, -1, -1) for which, entry in (
        (0, 0), (0, 1), (0, 2), (0, 3), (0, 5), (1, 5), (1, 6), (1, 7), (0, 8))]
    assert worker.counters.read()["deliveries"] == 9


@pytest.mark.parametrize("second", [(3, 2), (2, 1), (1, 2)], ids=str)
def test_runs_that_do_not_follow_each_other_stay_two(worker, consuming, second):
    first, count = second
    worker.owners[0].says(run(consuming, 0, 2), run(consuming, first, count))
    assert [entry for _, _, entry, _, _ in messages(consuming)] == [0, 1, *range(first, first + count)]


def test_runs_of_two_consumers_are_each_their_own(worker, consuming):
    open_on(worker, consuming, CONSUMER, 0, 11, 2, 2, which=1)
    worker.owners[0].says(run(consuming, 0, 2), run(consuming, 2, 1, handle=11), run(consuming, 3, 1, handle=11),
                          run(consuming, 2, 1))
    assert [(number, entry) for number, _, entry, _, _ in messages(consuming)] == [(1, 0), (1, 1), (2, 2), (2, 3),
                                                                                   (1, 2)]


def test_two_owners_may_use_one_handle(worker, consuming):
    open_on(worker, consuming, CONSUMER, 1, 10, 2, 2)
    worker.owners[1].says(run(consuming, 4, 1))
    worker.owners[0].says(run(consuming, 3, 1))
    assert [(number, entry) for number, _, entry, _, _ in messages(consuming)] == [(2, 4), (1, 3)]


def test_entries_carry_the_epoch_that_held_when_they_were_given_out(worker, consuming):
    """Entries that are written after the epoch was raised carry the former one, if they were dispatched before."""
    consuming.client.stream.pause_writing()
    epoch = [lambda outbox, number=number: outbox.reply(consuming.number, b"", action=envelope.CONSUMER_EPOCH,
                                                        object_id=10, handle=number)
             for number in (3, 4)]
    worker.owners[0].says(epoch[0], run(consuming, 0, 2), epoch[1], run(consuming, 2, 1))
    assert messages(consuming) == []
    consuming.client.stream.resume_writing()
    assert [(entry, number) for _, _, entry, _, number in messages(consuming)] == [(0, 3), (1, 3), (2, 4)]


def test_an_epoch_of_one_that_was_closed_is_not_its_successors(worker, consuming):
    consuming.say(close_consumer(2), subscribe(worker.topic(0), 3))
    is_ready(worker.owners[0], consuming, CONSUMER, 11, 3)
    worker.owners[0].replies(consuming, action=envelope.CONSUMER_EPOCH, object_id=10, handle=9)
    worker.owners[0].says(run(consuming, 0, 1, handle=11))
    assert [number for *_, number in messages(consuming)] == [-1]


def test_messages_carry_the_number_of_their_partition(worker, client, tmp_path):
    store(tmp_path, [10] * 20, first=1)
    client.say(subscribe(worker.topic(0)))
    worker.owners[0].replies(client, responses.success(1), request_id=1, action=envelope.CONSUMER_READY, object_id=1,
                             handle=10, partition=4)
    worker.owners[0].says(run(client, 0, 1))
    assert messages(client) == [(1, LEDGER, 0, 4, -1)]


def test_what_a_closed_consumer_was_given_is_not_written(worker, consuming):
    """Neither runs that wait to be written, nor runs that the owner sent before it heard of the close, are written."""
    open_on(worker, consuming, CONSUMER, 0, 11, 2, 2, which=1)
    consuming.client.stream.pause_writing()
    worker.owners[0].says(run(consuming, 0, 2), run(consuming, 4, 1, handle=11))
    consuming.say(close_consumer(3))
    worker.owners[0].says(run(consuming, 2, 2), run(consuming, 5, 1, handle=11))
    consuming.client.stream.resume_writing()
    assert [(number, entry) for number, _, entry, _, _ in messages(consuming)] == [(2, 4), (2, 5)]


def test_what_a_closed_consumer_was_given_is_not_its_successors(worker, consuming):
    consuming.client.stream.pause_writing()
    worker.owners[0].says(run(consuming, 0, 2))
    consuming.say(close_consumer(2), subscribe(worker.topic(0), 3))
    is_ready(worker.owners[0], consuming, CONSUMER, 11, 3)
    worker.owners[0].says(run(consuming, 5, 1, handle=11))
    consuming.client.stream.resume_writing()
    assert [entry for _, _, entry, _, _ in messages(consuming)] == [5]


def test_who_does_not_read_is_written_no_more(worker, consuming):
    consuming.client.stream.pause_writing()
    worker.owners[0].says(run(consuming, 0, 5))
    assert messages(consuming) == []
    assert not consuming.client.stream.is_writable
    consuming.client.stream.resume_writing()
    assert consuming.client.stream.is_writable
    assert len(messages(consuming)) == 5


def test_entries_that_were_picked(worker, consuming):
    picked = np.zeros(3, envelope.LISTED_ENTRY)
    picked["entry_id"], picked["redeliveries"], picked["words"] = (1, 4, 6), (0, 2, 0), (1, 0, 2)
    words = np.array([5, 7, 9], np.uint64)
    data = picked.tobytes() + words.tobytes()
    row = consuming.number, 3, 10, PARTITION, LEDGER, len(data), 0
    worker.owners[0].says(lambda outbox: outbox._add(envelope.ENTRY_LISTS, row, data), run(consuming, 7, 1),
                          lambda outbox: outbox._add(envelope.ENTRY_LISTS, (row[0], 3, 99, *row[3:]), data))
    heard = [one.message for one in consuming.hear()]
    assert [(one.message_id.entryId, one.redelivery_count, list(one.ack_set)) for one in heard] == [
        (1, 0, [5]), (4, 2, []), (6, 0, [7, 9]), (7, 0, [])]


def passed(client, entries, handle=10):
    """Return a section with entries, (id, bytes, messages) each, of a non-persistent topic."""
    rows = np.zeros(len(entries), envelope.TRANSIENT_ENTRY)
    for row, (entry_id, data, count) in zip(rows, entries, strict=True):
        row["entry_id"], row["size"], row["messages"] = entry_id, len(data), count
    data = rows.tobytes() + b"".join(data for _, data, _ in entries)
    return lambda outbox: outbox._add(envelope.TRANSIENT, (client.number, len(entries), handle, len(data)), data)


def test_what_nobody_keeps_is_passed_on_or_its_permits_are_given_back(worker, client):
    open_on(worker, client, CONSUMER)
    entries = [(0, b"\x0e\x01aaaa", 1), (1, b"\x0e\x01bbbb", 5)]
    worker.owners[0].says(passed(client, entries), passed(client, entries, handle=99))
    heard = [(heard.message.message_id.entryId, rest) for heard, rest in client.hear_frames()]
    assert heard == [(0, b"\x0e\x01aaaa"), (1, b"\x0e\x01bbbb")]
    assert worker.owners[0].heard() == []
    client.client.stream.pause_writing()
    worker.owners[0].says(passed(client, entries))
    assert client.hear() == []
    assert worker.owners[0].heard() == [("flow", 10, 6)]
    read = worker.counters.read()
    assert (read["deliveries"], read["deliveries_dropped"]) == (2, 2)


def test_what_nobody_keeps_is_not_written_to_a_consumer_that_its_client_has_closed(worker, client):
    open_on(worker, client, CONSUMER)
    client.say(close_consumer(2))
    worker.owners[0].says(passed(client, [(0, b"\x0e\x01aaaa", 1)]))
    assert client.hear() == []


def test_receipts_reach_their_connections(worker, client):
    other = worker.client()
    rows = np.zeros(3, deliveries.RECEIPT_ROW)
    rows["connection"], rows["producer_id"], rows["sequence_id"] = (client.number, other.number, 99), 1, (5, 6, 7)
    worker.owners[0].says(lambda outbox: outbox.receipts(rows))
    assert [[one.send_receipt.sequence_id for one in who.hear()] for who in (client, other)] == [[5], [6]]


# -- reading, and not reading

def throttled(worker):
    return worker.counters.read()["connections_throttled"]


def test_who_is_held_is_not_read_from_until_all_owners_let_it_go_on(worker, client):
    first, second = worker.owners
    first.replies(client, action=envelope.PAUSE_READING)
    first.replies(client, action=envelope.PAUSE_READING)
    second.replies(client, action=envelope.PAUSE_READING)
    assert (client.transport.is_reading, client.client.stream.is_held, throttled(worker)) == (False, True, 1)
    first.replies(client, action=envelope.RESUME_READING)
    assert (client.transport.is_reading, client.client.stream.is_held, throttled(worker)) == (False, True, 1)
    second.replies(client, action=envelope.RESUME_READING)
    assert (client.transport.is_reading, client.client.stream.is_held, throttled(worker)) == (True, False, 0)
    second.replies(client, action=envelope.RESUME_READING)
    assert throttled(worker) == 0


def test_an_owner_that_ends_holds_nobody(worker, client):
    for owner in worker.owners:
        owner.replies(client, action=envelope.PAUSE_READING)
    worker.owners[0].gone()
    assert not client.transport.is_reading
    worker.owners[1].gone()
    assert client.transport.is_reading
    assert throttled(worker) == 0


def test_a_connection_that_ends_is_not_held_any_more(worker, client):
    worker.owners[0].replies(client, action=envelope.PAUSE_READING)
    client.transport.close()
    assert throttled(worker) == 0


def test_who_is_held_is_not_taken_for_dead(worker, client):
    worker.owners[0].replies(client, action=envelope.PAUSE_READING)
    for _ in range(3):
        client.client.keep_alive()
    assert not client.transport.is_closed
    worker.owners[0].replies(client, action=envelope.RESUME_READING)
    client.client.keep_alive()
    assert client.transport.was_aborted


def test_who_says_nothing_between_two_pings_is_dead(worker, client):
    client.client.keep_alive()
    assert client.told() == [("PING",)]
    client.say(command(T.PONG))
    client.client.keep_alive()
    assert not client.transport.is_closed
    client.client.keep_alive()
    assert client.transport.was_aborted


def test_who_takes_what_it_is_sent_is_alive(worker, client):
    client.client.keep_alive()
    client.client.stream.pause_writing()
    client.client.stream.resume_writing()
    client.client.keep_alive()
    assert not client.transport.is_closed


def test_nobody_is_read_from_who_is_kept_waiting_for_another_reason(worker, client):
    """Each reason holds by itself: a rate, answers that are not read, owners with much in flight, the end."""
    open_on(worker, client, PRODUCER)
    resumes = client.client.stream.resume_reading
    worker.owners[0].replies(client, action=envelope.PAUSE_READING)
    resumes()
    assert not client.transport.is_reading
    worker.owners[0].replies(client, action=envelope.RESUME_READING)
    assert client.transport.is_reading
    client.client.stream.stop_reading()
    resumes()
    assert not client.transport.is_reading
    client.client.stream.resume_writing()
    assert client.transport.is_reading
    worker.worker.owners.is_paused = True
    client.client.stream.pause_reading()
    resumes()
    assert not client.transport.is_reading
    other = worker.client()      # this client publishes nothing
    other.client.stream.pause_reading()
    other.client.stream.resume_reading()
    assert other.transport.is_reading
    worker.worker.owners.is_paused = False
    resumes()
    assert client.transport.is_reading
    client.transport.is_reading = False
    client.transport.is_closed = True
    resumes()
    assert not client.transport.is_reading
    client.transport.is_closed = False


def test_producers_are_not_read_from_while_much_is_in_flight(tmp_path, monkeypatch):
    worker = PlayedWorker(tmp_path, monkeypatch, in_flight_bytes=100)
    try:
        client, other = worker.client(), worker.client()
        open_on(worker, client, PRODUCER)
        link = worker.owners[0].link
        client.say(send(entry_of(message_metadata(), bytes(200))))
        worker.turn()
        assert (client.transport.is_reading, other.transport.is_reading) == (False, True)
        worker.owners[0].says(taken=link.sent)
        assert client.transport.is_reading
    finally:
        worker.close()


def test_who_does_not_take_its_answers_is_not_read_from(worker, client):
    """Commands that had come before are carried out when the client reads its answers."""
    client.transport.unread = 9 << 20
    client.client.stream.pause_writing()
    client.say(PING, PING)
    told = client.told()
    assert told == [("PONG",)] or told == [("PONG",)] * 2
    assert not client.transport.is_reading
    client.transport.unread = 0
    client.client.stream.resume_writing()
    assert client.transport.is_reading
    assert len(told) + len(client.told()) == 2


def test_a_probe_is_answered_by_a_sign_of_life(worker, client):
    """Each owner that asks is answered once; probing twice asks once."""
    open_on(worker, client, CONSUMER)
    first, second = worker.owners
    for owner in (first, first, second):
        owner.replies(client, action=envelope.PROBE)
    assert client.told() == [("PING",)] * 3
    client.say(command(T.PONG), PING)
    assert first.commands() == second.commands() == [(envelope.CONNECTION_ALIVE, b"")]


def test_silence_after_a_probe_ends_the_connection(worker, client, monkeypatch):
    monkeypatch.setattr(worker_module, "_PROBE_SECONDS", 0.01)
    other = worker.client()
    open_on(worker, client, CONSUMER)
    for one in (client, other):
        worker.owners[0].replies(one, action=envelope.PROBE)
    other.say(command(T.PONG))
    worker.turn(0.05)
    assert client.transport.was_aborted
    assert not other.transport.is_closed
    assert worker.owners[0].commands()[-1] == (envelope.CONNECTION_GONE, b"")


def test_keep_alive_and_a_probe_do_not_take_each_others_signs_of_life(worker, client, monkeypatch):
    """Each has its own time for an answer.  The sign of life may come before the one, and after the other."""
    monkeypatch.setattr(worker_module, "_PROBE_SECONDS", 0.01)
    open_on(worker, client, CONSUMER)
    client.say(command(T.PONG))
    worker.owners[0].replies(client, action=envelope.PROBE)
    client.client.keep_alive()
    client.say(command(T.PONG))
    client.client.keep_alive()
    worker.turn(0.05)
    assert not client.transport.is_closed


def test_each_probe_has_its_own_time(worker, client):
    open_on(worker, client, CONSUMER)
    worker.owners[0].replies(client, action=envelope.PROBE)
    first = client.client.probed_at
    client.say(command(T.PONG))
    while client.client.probed_at == first:
        worker.turn(0.001)
        worker.owners[1].replies(client, action=envelope.PROBE)
    worker.worker._end_if_silent(client.client, first)
    assert not client.transport.is_closed
    worker.worker._end_if_silent(client.client, client.client.probed_at)
    assert client.transport.was_aborted


def test_who_takes_what_it_is_sent_has_answered_a_probe(worker, client):
    open_on(worker, client, CONSUMER)
    worker.owners[0].replies(client, action=envelope.PROBE)
    client.client.stream.pause_writing()
    client.client.stream.resume_writing()
    assert worker.owners[0].commands() == [(envelope.CONNECTION_ALIVE, b"")]


def test_who_is_probed_is_read_from_though_it_is_held(worker, client):
    worker.owners[0].replies(client, action=envelope.PAUSE_READING)
    worker.owners[1].replies(client, action=envelope.PROBE)
    assert (client.transport.is_reading, client.client.stream.is_held, throttled(worker)) == (True, False, 0)


def test_an_owner_that_ended_is_not_told_who_lives(worker, client):
    worker.owners[0].replies(client, action=envelope.PROBE)
    ended = worker.owners[0].link
    worker.owners[0].gone()
    worker.owners[0].up()
    client.say(PING)
    assert worker.owners[0].commands() == []
    assert ended.said == []      # its socket is closed


# -- lookups of clients that discover topics

@pytest.fixture
def discovering(worker, client):
    """A client that has asked for the topics of a namespace, so that topics made later are new to it."""
    worker.catalogue.namespaces.create("public/default")
    worker.catalogue.commit()
    client.say(command(T.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1))
    assert client.told() == [("GET_TOPICS_OF_NAMESPACE_RESPONSE", 1)]
    for owner in worker.owners:
        assert owner.commands() == [(envelope.DISCOVERS, b"public/default")]
    return client


def lookup(topic, request_id=2):
    return command(T.LOOKUP, topic=topic, request_id=request_id)


def waiting_lookups(worker):
    return worker.counters.read()["lookups_waiting"]


def test_a_lookup_is_answered_when_the_owner_knows(worker, discovering):
    topic = worker.topic(0)
    discovering.say(lookup(topic))
    assert discovering.told() == []
    assert worker.owners[0].commands() == [(envelope.LOOKED_UP, f"2 {topic}".encode())]
    assert waiting_lookups(worker) == 1
    worker.owners[1].replies(discovering, request_id=2)      # the answer of another owner
    assert discovering.told() == []
    worker.owners[0].replies(discovering, request_id=2)
    assert discovering.told() == [("LOOKUP_RESPONSE", 2, 0)]
    assert waiting_lookups(worker) == 0


def test_a_lookup_goes_to_the_successor(worker, discovering):
    topic = worker.topic(0)
    discovering.say(lookup(topic))
    worker.owners[0].heard()
    worker.owners[0].gone()
    assert (discovering.told(), waiting_lookups(worker), worker.counters.read()["commands_waiting"]) == ([], 0, 1)
    worker.owners[0].up()
    assert worker.owners[0].commands() == [(envelope.DISCOVERS, b"public/default"),
                                           (envelope.LOOKED_UP, f"2 {topic}".encode())]
    worker.owners[0].replies(discovering, request_id=2)
    assert discovering.told() == [("LOOKUP_RESPONSE", 2, 0)]
    assert waiting_lookups(worker) == 0


def test_lookups_with_one_id_are_all_answered(worker, discovering):
    """A lookup with the id of another pending request is answered, too."""
    discovering.say(lookup(worker.topic(0)), lookup(worker.topic(0, 1)), lookup(worker.topic(1)))
    assert discovering.told() == [("LOOKUP_RESPONSE", 2, 0)]
    assert waiting_lookups(worker) == 2
    for owner in worker.owners:
        owner.replies(discovering, request_id=2)
    assert discovering.told() == [("LOOKUP_RESPONSE", 2, 0)] * 2
    open_on(worker, discovering, CONSUMER)
    discovering.say(lookup(worker.topic(0)), command(T.GET_LAST_MESSAGE_ID, consumer_id=1, request_id=2))
    worker.owners[0].gone()
    worker.owners[0].up()
    worker.owners[0].replies(discovering, request_id=2)
    assert ("LOOKUP_RESPONSE", 2, 0) in discovering.told()
    assert waiting_lookups(worker) == 0


def test_every_owner_hears_of_the_end_of_one_that_discovers(worker, discovering):
    discovering.say(lookup(worker.topic(0)))
    discovering.transport.close()
    assert waiting_lookups(worker) == 0
    assert [owner.commands()[-1] for owner in worker.owners] == [(envelope.CONNECTION_GONE, b"")] * 2


# -- unexpected errors

def ack_of_one(**fields):
    return command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual,
                   message_id=[api.MessageIdData(ledgerId=1, entryId=1)], **fields)


def surprise(*_, **__):
    raise RuntimeError("surprise")


@pytest.mark.parametrize("name, say", [
    (T.PING, lambda worker: [PING]), (Send, lambda worker: [send()]), (Sends, lambda worker: [send()] * 50),
    (T.ACK, lambda worker: [ack_of_one(request_id=1)]), (EntryAck, lambda worker: [ack_of_one()]),
    ("forward", lambda worker: [producer(worker.topic(0), 9, 9)]),
    ("_open", lambda worker: [producer(worker.topic(0), 9, 9)]),
])
def test_a_command_that_fails_ends_its_own_connection(worker, client, monkeypatch, capfd, name, say):
    other = worker.client()
    open_on(worker, client, PRODUCER)
    if isinstance(name, str):
        monkeypatch.setattr(commands, name, surprise)
    else:
        monkeypatch.setitem(commands.COMMANDS if isinstance(name, int) else commands.HANDLERS, name, surprise)
    client.say(*say(worker))
    assert client.transport.was_aborted
    assert "RuntimeError: surprise" in capfd.readouterr().err
    assert worker.owners[0].commands() == [(envelope.CONNECTION_GONE, b"")]
    assert not other.transport.is_closed


@pytest.mark.parametrize("action, heard", [(envelope.WRITE, "PONG"), (envelope.PROBE, "PING")])
def test_an_answer_that_fails_ends_only_the_connection_that_it_is_for(worker, monkeypatch, action, heard):
    """Connections that are answered in the same envelope go on."""
    clients = [worker.client() for _ in range(3)]
    monkeypatch.setattr(clients[0].client.stream, "tell", lambda data: surprise())
    worker.owners[0].says(*(
        lambda outbox, one=one: outbox.reply(one.number, responses.PONG, action=action) for one in clients))
    assert [one.told() for one in clients] == [[], [(heard,)], [(heard,)]]
    assert [one.transport.was_aborted for one in clients] == [True, False, False]


@pytest.mark.parametrize("where, name, do", [
    (Client, "keep_alive", lambda worker: worker.worker.keep_alive()),
    (replies, "owner_gone", lambda worker: worker.owners[0].gone()),
    (commands, "handle", lambda worker: (worker.owners[0].gone(), worker.owners[0].up()))])
def test_what_is_done_to_all_clients_is_done_to_all(worker, monkeypatch, where, name, do):
    clients = [worker.client() for _ in range(3)]
    for one in clients:
        one.say(producer(worker.topic(0)))
    called, whole = [], getattr(where, name)

    def method(self, *arguments):
        called.append(self)
        if self is clients[0].client:
            surprise()
        whole(self, *arguments)

    monkeypatch.setattr(where, name, method)
    do(worker)
    for _ in clients:      # of the commands that waited, each turn of the loop hands on one at least
        worker.turn()
    assert called == [one.client for one in clients]
    assert [one.transport.was_aborted for one in clients] == [True, False, False]


def test_deliveries_that_fail_end_only_the_connection_that_they_are_for(worker, consuming, monkeypatch):
    other = worker.client()
    open_on(worker, other, CONSUMER, 0, 20)
    whole = DeliveryQueue.next_frames
    monkeypatch.setattr(DeliveryQueue, "next_frames",
                        lambda self: surprise() if self is consuming.client.deliveries else whole(self))
    worker.owners[0].says(run(consuming, 0, 1), run(other, 0, 1, handle=20))
    assert consuming.transport.was_aborted
    assert len(messages(other)) == 1


def test_an_owner_that_has_ended_is_not_told_who_lives(worker, client):
    open_on(worker, client, CONSUMER)
    first, link = worker.owners[0], worker.owners[0].link
    first.replies(client, action=envelope.PROBE)
    first.gone()
    client.say(command(T.PONG))
    assert [one for one in link.said if one[0] == "command" and one[2] == envelope.CONNECTION_ALIVE] == []


def test_of_many_acknowledgements_the_last_asks_for_the_answer(worker, client):
    open_on(worker, client, CONSUMER)
    places = [api.MessageIdData(ledgerId=3, entryId=number) for number in range(100)]
    client.say(command(T.ACK, consumer_id=1, ack_type=api.CommandAck.Individual, message_id=places, request_id=7))
    [(_, rows, _)] = worker.owners[0].heard()
    assert [number for number, row in enumerate(rows) if row[4] & envelope.WANTS_RESPONSE] == [99]
