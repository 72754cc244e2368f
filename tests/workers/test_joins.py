"""Thousands of commands at once that make producers and consumers: owners are asked few at a time, and clients take
turns.
"""
import pytest

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.policies import policies_of
from geminga.storage.options import StorageOptions
from geminga.storage.schemas import registry
from geminga.workers.clients import stream
from geminga.workers.owners import waiting as waiting_commands
from geminga.workers.owners.opening import OPENING_BYTES

from ..harness import unique_topic
from ..proto.client_frames import PING, T, command, entry_of, message_metadata, send
from .peer import Peer
from .played import PlayedLink, PlayedRights, PlayedWorker
from .test_client import (
    CONSUMER,
    PRODUCER,
    SCHEMA,
    both,
    close_consumer,
    is_ready,
    look,
    open_on,
    producer,
    settled,
    subscribe,
)

CROWD = 1_000


def played(tmp_path, monkeypatch, **options):
    """A worker whose links count commands as real ones do, and which has all the time it needs."""
    monkeypatch.setattr(waiting_commands, "_RELEASE_SECONDS", 60)
    monkeypatch.setattr(PlayedLink, "command_cost", envelope.COMMAND_COST)
    return PlayedWorker(tmp_path, monkeypatch, **options)


@pytest.fixture
def worker(tmp_path, monkeypatch):
    found = played(tmp_path, monkeypatch)
    yield found
    found.close()


@pytest.fixture
def crowd(worker):
    """A client that has asked for so many consumers in one write."""
    return come(worker)


def come(worker, count=CROWD, kind=CONSUMER):
    client = worker.client()
    client.say(*(kind.make(worker.topic(0), number, number) for number in range(1, count + 1)))
    return client


def looks(owner, **how):
    """Let the owner take what it was asked, without answers yet."""
    owner.says(taken=owner.link.sent, **how)


def asked(owner):
    """Return the request ids that the owner was asked for since the last call."""
    return [(one.producer if one.type == T.PRODUCER else one.subscribe).request_id for one in owner.commands()]


def asked_till_the_end(owner):
    """Return all request ids; the owner takes them part by part."""
    found = []
    while part := asked(owner):
        assert len(part) * envelope.COMMAND_COST <= OPENING_BYTES + envelope.COMMAND_COST
        found += part
        looks(owner)
    return found


def waiting(worker):
    return worker.counters.read()["commands_waiting"]


@pytest.mark.slow
@both
def test_a_crowd_comes_in_order_and_few_at_a_time(worker, kind):
    come(worker, CROWD, kind)
    assert waiting(worker) >= CROWD - OPENING_BYTES // envelope.COMMAND_COST
    assert asked_till_the_end(worker.owners[0]) == list(range(1, CROWD + 1))
    assert waiting(worker) == 0


def test_others_messages_lie_behind_few_commands(worker):
    witness = worker.client()
    open_on(worker, witness, PRODUCER)
    open_on(worker, witness, CONSUMER, handle=20, request_id=2, object_id=2)
    come(worker)
    witness.say(send(), command(T.FLOW, consumer_id=2, messagePermits=5),
                command(T.GET_LAST_MESSAGE_ID, consumer_id=2, request_id=3))
    assert witness.transport.is_reading
    heard = worker.owners[0].heard()
    assert len(heard) < 140
    assert [one[0] for one in heard[-3:]] == ["send", "flow", "command"]
    assert waiting(worker) > CROWD / 2


@both
def test_clients_take_turns(worker, crowd, kind):
    witness = worker.client()
    witness.say(kind.make(worker.topic(0), 5_001, 1), kind.make(worker.topic(0), 5_002, 2))
    asked(worker.owners[0])
    looks(worker.owners[0])
    part = asked(worker.owners[0])
    assert part.index(5_001) == 1
    assert part.index(5_002) == 3
    assert [number for number in part if number < 5_000] == sorted(number for number in part if number < 5_000)


def test_other_owners_are_asked_at_once(worker, crowd):
    crowd.say(subscribe(worker.topic(1), 5_001, 5_001))
    assert asked(worker.owners[1]) == [5_001]


def test_who_waits_at_the_owner_keeps_nobody(worker):
    """A producer that waits for exclusive access is answered late: its command takes no room once the owner has it."""
    client = come(worker, CROWD, PRODUCER)
    assert len(asked_till_the_end(worker.owners[0])) == CROWD
    assert client.told() == []
    is_ready(worker.owners[0], client, PRODUCER, 10, 1, 1)
    assert client.told() == [PRODUCER.told_success(1)]


def test_what_the_owner_has_not_looked_at_takes_room_though_others_are_answered(worker, crowd):
    asked(worker.owners[0])
    is_ready(worker.owners[0], crowd, CONSUMER, 10, 1, 1)
    assert asked(worker.owners[0]) == []
    worker.owners[0].says(taken=envelope.COMMAND_COST * 3)      # two commands, and the introduction of their client
    assert len(asked(worker.owners[0])) == 3


@both
def test_what_is_closed_while_it_waits_for_room_is_not_made(worker, kind):
    crowd = come(worker, CROWD, kind)
    crowd.say(kind.close(5_001, CROWD), kind.close(5_002, CROWD - 1))
    assert crowd.told() == [("SUCCESS", 5_001), ("SUCCESS", 5_002)]
    crowd.say(kind.make(worker.topic(0), 5_003, CROWD), kind.make(worker.topic(1), 5_004, CROWD - 1))
    assert asked(worker.owners[1]) == [5_004]
    assert asked_till_the_end(worker.owners[0]) == [*range(1, CROWD - 1), 5_003]


def test_who_has_withdrawn_everything_has_no_turn(worker, crowd):
    other = worker.client()
    other.say(subscribe(worker.topic(0), 5_001), close_consumer(5_002))
    assert asked_till_the_end(worker.owners[0]) == list(range(1, CROWD + 1))


def test_what_waits_for_room_goes_with_its_connection(worker, crowd):
    before = len(asked(worker.owners[0]))
    other = worker.client()
    other.say(subscribe(worker.topic(0), 5_001))
    crowd.transport.close()
    assert waiting(worker) == 1
    assert before < 140
    looks(worker.owners[0])
    assert [one.subscribe.request_id for one in worker.owners[0].commands() if isinstance(one, api.BaseCommand)] == [
        5_001
    ]


@both
def test_all_are_made_by_the_successor(worker, kind):
    """The successor makes those that the owner was asked for and those that waited, also in parts."""
    crowd = come(worker, CROWD, kind)
    looks(worker.owners[0])
    worker.owners[0].gone()
    crowd.say(kind.make(worker.topic(0), CROWD + 1, CROWD + 1))
    assert waiting(worker) == CROWD + 1
    worker.owners[0].up()
    found = asked_till_the_end(worker.owners[0])
    assert sorted(found) == list(range(1, CROWD + 2))
    assert (crowd.told(), waiting(worker)) == ([], 0)


def test_room_is_not_taken_by_what_an_owner_that_ended_was_asked(worker):
    come(worker, 60)
    worker.owners[0].gone()
    worker.owners[0].up()
    assert asked(worker.owners[0]) == list(range(1, 61))
    assert waiting(worker) == 0


def test_a_right_that_is_lost_while_one_waits_for_room(tmp_path, monkeypatch):
    """Commands that wait behind the refused one go on."""
    rights = PlayedRights()
    worker = played(tmp_path, monkeypatch, rights=rights)
    crowd = worker.client()
    crowd.say(*(subscribe(worker.topic(0), number, number) for number in range(1, 201)))
    crowd.say(subscribe(worker.topic(0, 1), 300, 300), subscribe(worker.topic(0), 301, 301))
    rights.withdraw(worker.topic(0, 1))
    assert look(worker) == 1
    assert asked_till_the_end(worker.owners[0]) == [*range(1, 201), 301]
    assert crowd.told() == [("ERROR", 300, api.AuthorizationError)]
    assert sorted(crowd.client.routes.consumers) == [*range(1, 201), 301]
    worker.close()


@pytest.mark.slow
def test_a_drain_keeps_nobody_waiting_for_room(worker):
    crowd = come(worker, 300, PRODUCER)
    crowd.say(subscribe(worker.topic(0), 5_001, 1))
    before = len(asked(worker.owners[0]))
    worker.worker.is_draining = True
    crowd.client.close_producers()
    assert crowd.told() == [("ERROR", number, api.ServiceNotReady) for number in range(before + 1, 301)]
    looks(worker.owners[0])
    assert crowd.told() == [("ERROR", 5_001, api.ServiceNotReady)]
    assert waiting(worker) == 0


def test_many_refusals_leave_time_for_others(worker, crowd, monkeypatch):
    monkeypatch.setattr(waiting_commands, "_RELEASE_SECONDS", 0)
    asked(worker.owners[0])
    worker.worker.is_draining = True
    before = waiting(worker)
    looks(worker.owners[0])
    assert (waiting(worker), crowd.told()) == (before, [])
    monkeypatch.setattr(waiting_commands, "_RELEASE_SECONDS", 60)
    worker.turn()
    assert waiting(worker) == 0
    assert len(crowd.told()) == before


@pytest.mark.parametrize(("name", "bound"), [("_WAITING_MAX", 10), ("_WAITING_BYTES_MAX", 1_000)])
def test_what_waits_for_room_is_bounded(worker, monkeypatch, name, bound):
    monkeypatch.setattr(waiting_commands, name, bound)
    crowd = come(worker, 200)
    refused = [number for _, number, _ in crowd.told()]
    assert refused and refused == list(range(201 - len(refused), 201))
    assert asked_till_the_end(worker.owners[0]) == list(range(1, 201 - len(refused)))
    assert sorted(crowd.client.routes.consumers) == list(range(1, 201 - len(refused)))
    assert len(come(worker, 200).told()) == len(refused)      # commands that have waited count no more


@pytest.fixture
def narrow(tmp_path, monkeypatch):
    """A worker that pauses producers as soon as a little is in flight."""
    found = played(tmp_path, monkeypatch, in_flight_bytes=100_000)
    yield found
    found.close()


def test_who_joins_holds_no_producer_back(narrow, monkeypatch):
    witness, paused = narrow.client(), []
    open_on(narrow, witness, PRODUCER)
    looks(narrow.owners[0])
    monkeypatch.setattr(witness.transport, "pause_reading", lambda: paused.append(True))
    come(narrow)
    narrow.turn()
    assert narrow.owners[0].link.in_flight > 100_000
    assert not paused


def test_a_producer_that_is_held_goes_on_while_others_join(narrow):
    owner, witness = narrow.owners[0], narrow.client()
    open_on(narrow, witness, PRODUCER)
    looks(owner)
    witness.say(send(entry_of(message_metadata(), bytes(200_000))))
    narrow.turn()
    assert not witness.transport.is_reading
    sent = owner.link.sent
    come(narrow)
    owner.says(taken=sent)
    assert owner.link.in_flight > 100_000
    assert witness.transport.is_reading


def test_who_has_too_much_waiting_is_not_read_from(worker, monkeypatch):
    """Its connection stays, and it is read from when less waits."""
    monkeypatch.setattr(stream, "_WAITING_MAX", 500)
    crowd = come(worker, 127 + 499)
    assert crowd.transport.is_reading
    crowd.say(subscribe(worker.topic(0), 5_001, 5_001))
    assert not crowd.transport.is_reading
    for _ in range(3):
        crowd.client.keep_alive()
    crowd.client.stream.resume_reading()
    assert not crowd.transport.is_reading
    assert not crowd.transport.is_closed
    asked(worker.owners[0])
    looks(worker.owners[0])
    assert crowd.transport.is_reading
    assert asked_till_the_end(worker.owners[0])[-1] == 5_001
    assert crowd.client.stream._waiting_commands == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_up", [True, False])
def test_what_is_asked_about_a_consumer_that_waits_is_answered(worker, is_up):
    """A request about such a consumer is answered as by Pulsar: the consumer does not exist."""
    crowd = come(worker, 200)
    if not is_up:
        worker.owners[0].gone()
    crowd.say(command(T.UNSUBSCRIBE, consumer_id=200, request_id=5_001),
              command(T.GET_LAST_MESSAGE_ID, consumer_id=200, request_id=5_002),
              command(T.SEEK, consumer_id=200, request_id=5_003),
              command(T.CONSUMER_STATS, consumer_id=200, request_id=5_004),
              command(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=100), PING)
    assert [one[:2] for one in crowd.told()] == [("ERROR", 5_001), ("ERROR", 5_002), ("ERROR", 5_003),
                                                 ("CONSUMER_STATS_RESPONSE", 5_004), ("PONG",)]
    assert not crowd.transport.is_closed


@both
def test_no_command_overtakes_those_that_wait(worker, monkeypatch, kind):
    """Even when the owner has room already, and the queue has not been handed on yet."""
    crowd, witness = come(worker, 200, kind), worker.client()
    asked(worker.owners[0])
    monkeypatch.setattr(waiting_commands, "_RELEASE_SECONDS", 0)
    looks(worker.owners[0])
    crowd.say(kind.make(worker.topic(0), 201, 201))
    witness.say(kind.make(worker.topic(0), 5_001, 1))
    assert asked(worker.owners[0]) == []
    monkeypatch.setattr(waiting_commands, "_RELEASE_SECONDS", 60)
    worker.turn()
    rest = asked_till_the_end(worker.owners[0])
    assert rest[-1] == 201 and rest[1] == 5_001


# -- schemas

@both
def test_a_schema_is_looked_at_once_though_its_command_waits(worker, crowd, kind):
    witness = worker.client()
    asked(worker.owners[0])
    witness.say(kind.make(worker.topic(0), 5_001, schema=SCHEMA))
    assert settled(worker, worker.owners[0]) == []
    looks(worker.owners[0])
    assert not worker.worker.schema_checks._checking
    assert 5_001 in asked(worker.owners[0])


def test_a_schema_is_looked_at_again_when_another_was_first(worker, crowd):
    witness, topic = worker.client(), worker.topic(0)
    asked(worker.owners[0])
    witness.say(producer(topic, 5_001, schema=SCHEMA))
    assert settled(worker, worker.owners[0]) == []
    name, first = names.parse(topic), registry.from_wire(api.Schema(name="s", type=api.Schema.Int32, schema_data=b""))
    policies = policies_of(worker.catalogue, name, worker.catalogue.options.applied_to(StorageOptions()))
    registry.register(worker.catalogue, name, first, policies, worker.counters)
    worker.catalogue.commit()
    looks(worker.owners[0])
    assert len(worker.worker.schema_checks._checking) == 1
    settled(worker, worker.owners[0])
    looks(worker.owners[0])
    assert [one for one in witness.told() if one[0] == "ERROR"] == [("ERROR", 5_001, api.IncompatibleSchema)]


# -- with a real broker

@pytest.mark.slow
def test_thousands_of_consumers_in_one_write(broker, unharmed):
    topic, count = unique_topic(), 3_000
    with Peer(broker.service_url) as witness, Peer(broker.service_url) as crowd:
        witness.open_producer(topic)
        crowd.socket.sendall(b"".join(
            command(T.SUBSCRIBE, topic=topic, subscription="crowd", subType=api.CommandSubscribe.Key_Shared,
                    consumer_id=number, request_id=number) for number in range(count)))
        for number in range(20):
            witness.say(send(sequence_id=number))
            assert witness.hear().type == T.SEND_RECEIPT
        answers = [one for one in (crowd.hear() for _ in range(count)) if one.type == T.SUCCESS]
        assert [one.success.request_id for one in answers] == list(range(count))
