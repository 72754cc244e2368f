"""Registrations of stream consumers: from clients to the owner of the topic's name, and what happens when one ends."""
import pytest

from geminga.proto import envelope, names, responses
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.runtime.routing import owner_of
from geminga.workers.clients import stream_consumers

from ..harness import partitioned_topic
from ..proto.client_frames import T, command
from .peer import Peer
from .played import PlayedRights, PlayedWorker

OWN_OPTIONS = "--owners", "2", "--workers", "2"


@pytest.fixture
def rights():
    return PlayedRights()


@pytest.fixture
def worker(tmp_path, monkeypatch, rights):
    played = PlayedWorker(tmp_path, monkeypatch, rights=rights)
    yield played
    played.close()


@pytest.fixture
def client(worker):
    return worker.client()


def registered_at(index):
    """Return the name of a topic whose stream consumers register at this one of two owners.

    A regular topic may be made scalable, and its registrations stay.
    """
    regular = (f"persistent://public/default/t{number}" for number in range(1_000))
    return next(name for name in regular if owner_of(str(names.parse(name).scalable), 2) == index)


@pytest.fixture
def topic():
    return registered_at(0)


def registration(topic, consumer_id=1, **fields):
    return {"request_id": 7, "topic": topic, "subscription": "sub", "consumer_name": "c", "consumer_id": consumer_id,
            "consumer_type": api.STREAM} | fields


def register(client, topic, consumer_id=1, **fields):
    client.say(command(T.SCALABLE_TOPIC_SUBSCRIBE, **registration(topic, consumer_id, **fields)))


def unregister(client, consumer_id=1):
    client.say(command(T.SCALABLE_TOPIC_UNSUBSCRIBE, request_id=9, consumer_id=consumer_id))


def answer(worker, client, consumer_id=1, request_id=7):
    """Have the owner register the consumer."""
    nothing = api.ScalableConsumerAssignment(layout_epoch=0)
    worker.owners[0].replies(client, responses.stream_assigned(request_id, nothing), request_id=request_id,
                             action=envelope.STREAM_REGISTERED, object_id=consumer_id)
    assert client.told() == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", 7, 0)]


def registered(worker, client, topic):
    register(client, topic)
    assert [one.type for one in worker.owners[0].commands()] == [T.SCALABLE_TOPIC_SUBSCRIBE]
    answer(worker, client)


def refused(client):
    return [(name, error) for name, _, error in client.told()]


# -- on the way to the owner

def test_registrations_go_to_the_owner_of_the_topics_name(worker, client):
    """Partitions have other owners, so the name's owner is the one for all consumers of a subscription."""
    topics = [registered_at(index) for index in (0, 1)]
    for index, topic in enumerate(topics):
        worker.catalogue.topics.create(names.parse(topic), 4)
        worker.catalogue.commit()
        register(client, topic, 1 + index)
    sent = [[one.scalableTopicSubscribe for one in owner.commands()] for owner in worker.owners]
    assert sent == [[api.CommandScalableTopicSubscribe(**registration(topic, 1 + index))]
                    for index, topic in enumerate(topics)]


def test_a_consumer_comes_and_goes(worker, client, topic):
    registered(worker, client, topic)
    unregister(client)
    [sent] = worker.owners[0].commands()
    assert sent.scalableTopicUnsubscribe == api.CommandScalableTopicUnsubscribe(request_id=9, consumer_id=1)
    worker.owners[0].replies(client, responses.success(9), request_id=9)
    assert client.told() == [("SUCCESS", 9)]


def test_a_consumer_that_nobody_knows_is_closed_at_once(worker, client):
    unregister(client, 5)
    assert client.told() == [("SUCCESS", 9)] and worker.owners[0].commands() == []


@pytest.mark.parametrize(("fields", "error"), [
    ({"consumer_name": ""}, api.NotAllowedError), ({"subscription": ""}, api.NotAllowedError),
    ({"consumer_name": "c" * 4_097}, api.NotAllowedError), ({"subscription": "s" * 4_097}, api.NotAllowedError),
    ({"topic": "topic://public/none/t"}, api.TopicNotFound), ({"topic": "no/t"}, api.InvalidTopicName),
    ({"topic": "non-persistent://public/default/t"}, api.NotAllowedError),
    ({"topic": "persistent://public/default/t-partition-0"}, api.TopicNotFound),
    ({"topic": "persistent://public/none/t"}, api.TopicNotFound),
])
def test_a_wrong_registration_is_refused(worker, client, topic, fields, error):
    register(client, **registration(topic) | fields)
    assert refused(client) == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", error)]
    assert client.client.stream_consumers == {} and not client.transport.is_closed


@pytest.mark.parametrize("fields", [
    {"subscription": "other"}, {"consumer_name": "d"}, {"consumer_type": api.CHECKPOINT},
    {"topic": "persistent://public/default/other"}])
def test_an_id_has_one_registration(worker, client, topic, fields):
    registered(worker, client, topic)
    register(client, **registration(topic) | fields)
    assert refused(client) == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", api.NotAllowedError)]
    assert worker.owners[0].commands() == worker.owners[1].commands() == []
    register(client, topic)      # the same once more
    assert [one.type for one in worker.owners[0].commands()] == [T.SCALABLE_TOPIC_SUBSCRIBE]
    register(client, topic)
    assert refused(client) == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", api.ServiceNotReady)]


def test_a_connection_has_so_many_registrations(client, topic, monkeypatch):
    monkeypatch.setattr(stream_consumers, "REGISTRATIONS_MAX", 2)
    for consumer_id in (1, 2, 3):
        register(client, topic, consumer_id)
    assert refused(client) == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", api.TooManyRequests)]


def test_a_drain_refuses_new_consumers(worker, client, topic):
    worker.worker.is_draining = True
    register(client, topic)
    assert refused(client) == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", api.ServiceNotReady)]
    assert client.client.stream_consumers == {}


def assign(worker, client, epoch, consumer_id=1):
    assignment = api.ScalableConsumerAssignment(layout_epoch=epoch)
    worker.owners[0].replies(client, responses.stream_reassigned(consumer_id, assignment),
                             action=envelope.STREAM_ASSIGNED, object_id=consumer_id)


def epochs(client):
    return [heard.scalableTopicAssignmentUpdate.assignment.layout_epoch for heard in client.hear()]


def test_a_client_that_does_not_read_is_told_its_newest_assignment(worker, client, topic):
    """However often others come and go meanwhile, the worker keeps one assignment for it."""
    registered(worker, client, topic)
    assign(worker, client, 1)
    client.client.stream.pause_writing()
    for epoch in range(2, 100):
        assign(worker, client, epoch)
    assert epochs(client) == [1]
    client.client.stream.resume_writing()
    assert epochs(client) == [99]
    assign(worker, client, 100)
    assign(worker, client, 101, consumer_id=5)      # of a consumer that has left
    assert epochs(client) == [100]


# -- rights

def test_a_client_without_the_right_does_not_register(client, topic, rights):
    rights.withdraw(topic)
    register(client, topic)
    assert refused(client) == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", api.AuthorizationError)]


def test_a_right_that_is_revoked_ends_the_registration(worker, client, topic, rights):
    registered(worker, client, topic)
    rights.withdraw(topic)
    worker.worker.rights._look()
    assert worker.owners[0].commands() == [(envelope.STREAM_EXPELLED, b"1")]
    assert client.client.stream_consumers == {}


# -- ends of owners

def test_a_new_owner_learns_of_registrations_and_clients_notice_nothing(worker, client, topic):
    registered(worker, client, topic)
    worker.owners[0].gone()
    worker.owners[0].up()
    [(kind, data)] = worker.owners[0].commands()
    assert kind == envelope.STREAM_RESTORED
    assert api.CommandScalableTopicSubscribe.FromString(data) == api.CommandScalableTopicSubscribe(
        **registration(topic))
    assert client.hear() == []
    unregister(client)
    assert [one.type for one in worker.owners[0].commands()] == [T.SCALABLE_TOPIC_UNSUBSCRIBE]


def test_a_consumer_that_has_left_is_not_restored(worker, client, topic):
    registered(worker, client, topic)
    worker.owners[0].gone()
    unregister(client)
    assert client.told() == [("SUCCESS", 9)]
    worker.owners[0].up()
    assert worker.owners[0].commands() == []


def test_an_owner_that_ends_before_it_answers_refuses(worker, client, topic):
    register(client, topic)
    worker.owners[0].gone()
    assert refused(client) == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", api.ServiceNotReady)]
    worker.owners[0].up()
    assert worker.owners[0].commands() == []


def test_an_owner_that_ends_before_a_consumer_has_left_lets_it_go(worker, client, topic):
    registered(worker, client, topic)
    unregister(client)
    worker.owners[0].gone()
    assert client.told() == [("SUCCESS", 9)]


def test_registrations_wait_for_an_owner_that_is_being_started(worker, client, topic):
    worker.owners[0].gone()
    register(client, topic)
    assert client.hear() == []
    worker.owners[0].up()
    assert [one.type for one in worker.owners[0].commands()] == [T.SCALABLE_TOPIC_SUBSCRIBE]
    answer(worker, client)


@pytest.mark.parametrize("how", ["closed", "gone", "revoked"])
def test_a_registration_that_waits_can_be_given_up(worker, client, topic, rights, how):
    worker.owners[0].gone()
    register(client, topic)
    if how == "closed":
        unregister(client)
        assert client.told() == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", 7, api.ServiceNotReady), ("SUCCESS", 9)]
    elif how == "gone":
        client.transport.close()
    else:
        rights.withdraw(topic)
        worker.worker.rights._look()
        assert refused(client) == [("SCALABLE_TOPIC_SUBSCRIBE_RESPONSE", api.ServiceNotReady)]
    assert repr(worker.worker.waiting) == "<WaitingCommands 0 of 0 bytes>"
    worker.owners[0].up()
    assert worker.owners[0].commands() == []


# -- coordinators of transactions

def test_all_coordinators_are_here(worker, client):
    client.say(command(T.WATCH_TC_ASSIGNMENTS, watch_id=3))
    [heard] = client.hear()
    update = heard.watchTcAssignmentsUpdate
    assert (update.watch_id, update.snapshot.parallelism) == (3, 2)
    assert [(one.tc_id, one.broker_service_url) for one in update.snapshot.assignments] == [
        (0, "pulsar://127.0.0.1:6650"), (1, "pulsar://127.0.0.1:6650")]
    client.say(command(T.WATCH_TC_ASSIGNMENTS_CLOSE, watch_id=3))
    assert client.hear() == []


def test_coordinators_are_where_the_client_has_come_to(worker, client, monkeypatch):
    """Clients connect to these URLs, and no other of this host's addresses is known to lead here."""
    address = {"peername": ("192.0.2.1", 4711), "sockname": ("192.0.2.7", 6650)}
    monkeypatch.setattr(client.transport, "get_extra_info", address.get)
    client.say(command(T.WATCH_TC_ASSIGNMENTS, watch_id=3))
    [heard] = client.hear()
    assert {one.broker_service_url for one in heard.watchTcAssignmentsUpdate.snapshot.assignments} == {
        "pulsar://192.0.2.7:6650"}


def test_without_transactions_there_are_no_coordinators(tmp_path, monkeypatch):
    worker = PlayedWorker(tmp_path, monkeypatch, transactions=False)
    client = worker.client()
    client.say(command(T.WATCH_TC_ASSIGNMENTS, watch_id=3))
    [heard] = client.hear()
    update = heard.watchTcAssignmentsUpdate
    assert (update.watch_id, update.error, update.message) == (3, api.NotAllowedError, "Transactions are not enabled.")
    worker.close()


# -- a broker

def test_consumers_on_two_connections_share_a_topic(broker):
    topic = partitioned_topic(broker.http_url, 3)
    with Peer(broker.service_url) as one, Peer(broker.service_url) as two:
        first = one.ask(T.SCALABLE_TOPIC_SUBSCRIBE, **registration(topic, consumer_name="a"))
        second = two.ask(T.SCALABLE_TOPIC_SUBSCRIBE, **registration(topic, consumer_name="b"))
        pushed = one.hear()
        assert (segments(first), segments(second), segments(pushed)) == ([0, 1, 2], [1], [0, 2])
        assert two.ask(T.SCALABLE_TOPIC_UNSUBSCRIBE, request_id=1, consumer_id=1).type == T.SUCCESS
        assert segments(one.hear()) == [0, 1, 2]


@pytest.mark.slow
def test_registrations_outlive_the_owners_process(own):
    """Clients are told once more what they know, and the next consumer gets its share."""
    topic = partitioned_topic(own.http_url, 3)
    with Peer(own.service_url) as one, Peer(own.service_url) as two:
        one.ask(T.SCALABLE_TOPIC_SUBSCRIBE, **registration(topic, consumer_name="a"))
        two.ask(T.SCALABLE_TOPIC_SUBSCRIBE, **registration(topic, consumer_name="b"))
        assert segments(one.hear()) == [0, 2]
        index = owner_of(str(names.parse(topic).scalable), 2)
        own.wait_replaced("owner", index, own.kill("owner", index))
        assert (segments(one.hear()), segments(two.hear())) == ([0, 2], [1])
        third = two.ask(T.SCALABLE_TOPIC_SUBSCRIBE, **registration(topic, 2, consumer_name="c"))
        if third.type == T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:      # that of the second one, on the same connection
            third = two.hear()
        assert segments(third) == [2]


def segments(heard):
    message = heard.scalableTopicAssignmentUpdate if heard.type == T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE else \
        heard.scalableTopicSubscribeResponse
    return [segment.segment_id for segment in message.assignment.segments]
