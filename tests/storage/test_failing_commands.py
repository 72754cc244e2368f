"""A command that fails for a reason nobody has thought of ends its client's connection, and leaves nothing of it
behind.
"""
import re

import numpy as np
import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.admin import questions
from geminga.storage.commands import consumers, producers, subscriptions
from geminga.storage.errors import Interrupted, NotDurable
from geminga.storage.open_topics.durability import Durability
from geminga.storage.open_topics.topic_table import TopicTable

from .rig import T

TOPIC, PASSING = "persistent://public/default/orders", "non-persistent://public/default/ticks"
VICTIM, WITNESS, OTHER = 1, 2, 3


class Surprise(Exception):
    """An exception that no code expects."""


def surprise(*_, **__):
    raise Surprise


def ended(answers) -> list[int]:
    """Return the connections that their worker is told to end."""
    return [connection for connection, action, *_ in answers.replies if action == envelope.END]


def tracebacks(capfd) -> list[str]:
    """Return the names of exceptions logged since the last call."""
    return re.findall(r"^ +\S*?(\w+)(?:: .*)?\n *\n", capfd.readouterr().err, re.MULTILINE)


def left_of(rig, connection: int) -> list:
    """Return everything that any table of the owner has of the connection."""
    open_topics, clients = rig.owner.topics, rig.owner.clients
    topics = [*open_topics.by_name.values(), *open_topics.non_persistent.values()]
    tables = [clients.producers.by_handle.values(), clients.consumers.by_handle.values(),
              clients.producers.non_persistent.values(),
              *(topic.producers.live.values() for topic in topics), *(topic.producers.waiting for topic in topics),
              *(subscription.consumers for topic in topics for subscription in topic.subscriptions.values())]
    return [one for table in tables for one in table if one.connection == connection]


class Witness:
    """A client with a producer and a consumer of one topic, whose messages must go on arriving."""

    def __init__(self, rig, topic):
        self.rig = rig
        self.producer = rig.producer(topic, connection=WITNESS)
        self.consumer = rig.consumer(topic, "witness", connection=WITNESS)

    def is_served(self):
        [position] = self.rig.publish(self.producer, b"x")
        assert (position, b"x") in self.rig.receive(self.consumer)
        assert self.rig.run(self.rig.acks(self.consumer, position, request_id=1)).commands(T.ACK_RESPONSE)


def producer_command(rig, **fields):
    return rig.command("producer", topic=TOPIC, producer_id=50, request_id=50, **fields)


def subscribe_command(rig, **fields):
    return rig.command(
        "subscribe",
        **{"topic": TOPIC, "subscription": "fresh", "subType": 1, "consumer_id": 60, "request_id": 60} | fields,
    )


STEPS = [  # where a command may fail: (the command, what is replaced, in what)
    (producer_command, "_answer_ready", producers),
    (producer_command, "find_or_create", TopicTable),
    (lambda rig: producer_command(rig, initial_subscription_name="initial"), "create_subscription", producers),
    (lambda rig: producer_command(rig, initial_subscription_name="initial"), "_note_beginning", subscriptions),
    (subscribe_command, "_answer_ready", consumers),
    (subscribe_command, "_new_consumer", consumers),
    (subscribe_command, "_obstacle", consumers),
    (subscribe_command, "new_subscription", consumers),
    (lambda rig: subscribe_command(rig, durable=False), "_obstacle", consumers),
    (
        lambda rig: subscribe_command(rig, subscription_properties=[api.KeyValue(key="a", value="b")]),
        "set_properties",
        consumers,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("say, name, place", STEPS, ids=[f"{number}-{name}" for number, (_, name,
    _) in enumerate(STEPS)])
def test_only_its_own_connection_ends(rig, rigs, monkeypatch, capfd, say, name, place):
    witness = Witness(rig, TOPIC)
    other = rig.producer(TOPIC, connection=OTHER)
    mine = rig.producer(TOPIC, connection=VICTIM), rig.consumer(TOPIC, "mine", connection=VICTIM, subType=3)
    rig.run(rig.flow(mine[1], 5))
    capfd.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(place, name, surprise)
        answers = rig.run(say(rig))
    assert ended(answers) == [VICTIM]
    assert tracebacks(capfd) == ["Surprise"]
    assert not left_of(rig, VICTIM)
    rig.run(rig.command("producer", topic=TOPIC, producer_id=51, request_id=51))      # that was on its way
    assert not left_of(rig, VICTIM)
    assert rig.publish(mine[0], b"late") == []
    witness.is_served()
    assert rig.publish(other, b"others")
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=VICTIM))
    assert VICTIM not in [connection for _, connection in rig.owner.clients.sessions.by_key]
    assert all(subscription.is_durable for subscription in rig.partition(TOPIC).subscriptions.values())
    rig.consumer(TOPIC, "fresh", connection=OTHER)      # what it wanted others may have
    after = rigs.crash(rig)
    assert b"late" not in [payload for _, payload in after.everything(TOPIC)]
    assert (rig.counters.read()["producers"], rig.counters.read()["consumers"]) == (2, 2)


@pytest.mark.parametrize("kind", [envelope.CONNECTION_GONE, envelope.CONNECTION_ALIVE, envelope.INTRODUCED,
    envelope.PRODUCER_EXPELLED,
                                  envelope.CONSUMER_EXPELLED])
def test_what_a_worker_says_of_a_connection_ends_only_that_if_it_fails(rig, monkeypatch, kind):
    witness = Witness(rig, TOPIC)
    rig.producer(TOPIC, connection=VICTIM)
    for name in ("end_session", "resume", "expel"):
        monkeypatch.setattr(rig.owner.commands, name, surprise)
    assert ended(rig.run(rig.happened(kind, connection=VICTIM, data=b"no number"))) == [VICTIM]
    assert not left_of(rig, VICTIM)
    witness.is_served()
    rig.run(rig.happened(envelope.CONNECTION_GONE, connection=VICTIM))
    assert VICTIM not in [connection for _, connection in rig.owner.clients.sessions.by_key]


def test_the_end_of_a_worker_ends_all_its_connections_though_one_fails(rig, monkeypatch):
    witness = Witness(rig, TOPIC)
    for connection in (VICTIM, OTHER):
        rig.producer(TOPIC, worker=2, connection=connection)
    whole = rig.owner.commands.end_session
    monkeypatch.setattr(rig.owner.commands, "end_session", lambda session, **how: (
        surprise() if session.connection == VICTIM else whole(session, **how)))
    rig.owner.worker_gone(2)
    assert not (left_of(rig, VICTIM) or left_of(rig, OTHER))
    assert [key for key in rig.owner.clients.sessions.by_key if key[0] == 2] == []
    witness.is_served()


def test_a_subscription_that_cannot_let_go_of_a_consumer_begins_anew(rig, monkeypatch):
    """If detaching a consumer fails, the subscription's other consumers reconnect and nothing is lost."""
    witness = Witness(rig, TOPIC)
    first, second = (rig.consumer(TOPIC, "shared", connection=connection, subType=1) for connection in (VICTIM, OTHER))
    rig.run(rig.flow(first, 10))
    [position] = rig.publish(witness.producer, b"a")
    dispatcher = type(rig.owner.clients.consumers.by_handle[first.number].subscription.dispatcher)
    with monkeypatch.context() as patched:
        patched.setattr(dispatcher, "detach", surprise)
        answers = rig.run(rig.command("close_consumer", consumer_id=first.object_id, request_id=1))
    assert ended(answers) == [VICTIM]
    assert [command.close_consumer.consumer_id for command in answers.commands(T.CLOSE_CONSUMER)] == [second.object_id]
    assert not left_of(rig, VICTIM)
    assert rig.receive(rig.consumer(TOPIC, "shared", connection=OTHER, subType=1)) == [(position, b"a")]
    witness.is_served()


def test_who_waited_for_its_connection_is_dealt_with(rig, monkeypatch):
    """If the question for a sign of life fails, its connection ends and the waiting consumer gets the place."""
    rig.consumer(TOPIC, "sub", connection=VICTIM)
    section, number = rig.subscribe(TOPIC, "sub", connection=OTHER)
    assert [action for _, action, *_ in rig.run(section).replies] == [envelope.PROBE]
    with monkeypatch.context() as patched:
        patched.setitem(rig.owner.commands.functions, T.SEEK, surprise)
        answers = rig.run(rig.command("seek", connection=VICTIM, consumer_id=1, request_id=1))
    assert ended(answers) == [VICTIM]
    assert rig.consumer_in(answers, number, TOPIC, connection=OTHER)


def test_one_that_waits_and_fails_does_not_end_who_was_in_its_way(rig, monkeypatch):
    holder = rig.consumer(TOPIC, "sub", connection=VICTIM)
    section, _ = rig.subscribe(TOPIC, "sub", connection=OTHER)
    rig.run(section)
    with monkeypatch.context() as patched:
        patched.setitem(rig.owner.commands.parkable, T.SUBSCRIBE, surprise)
        assert ended(rig.run(rig.happened(envelope.CONNECTION_ALIVE, connection=VICTIM))) == [OTHER]
    [position] = rig.publish(rig.producer(TOPIC, connection=WITNESS), b"a")
    assert rig.receive(holder) == [(position, b"a")]


def test_what_fails_on_its_way_to_disk_ends_the_process(rig, monkeypatch):
    """A failure on the way to disk ends the process: how much was written is unknown."""
    consumer = rig.consumer(TOPIC, "sub")
    monkeypatch.setattr(Durability, "_commit_all", surprise)
    with pytest.raises(Interrupted):
        rig.run(rig.command("unsubscribe", consumer_id=consumer.object_id, request_id=1))
    monkeypatch.undo()


def test_a_disk_that_fails_is_no_surprise(rig, monkeypatch):
    def fails(*_):
        raise NotDurable("the disk")

    rig.producer(TOPIC)
    for say in (rig.command("seek", consumer_id=1, request_id=1), rig.question("unload", TOPIC)):
        monkeypatch.setitem(rig.owner.commands.functions, T.SEEK, fails)
        monkeypatch.setitem(rig.owner.questions.functions, questions.Unload, fails)
        with pytest.raises(NotDurable):
            rig.run(say)


@pytest.mark.parametrize("say", [lambda rig: rig.question("truncate", TOPIC),
    lambda rig: rig.question("no-such-question", TOPIC),
                                 lambda rig: (envelope.QUESTIONS, np.array([(1, 1)], envelope.QUESTION_ROW), b"{")])
def test_a_question_of_administration_that_fails_is_answered(rig, monkeypatch, capfd, say):
    witness = Witness(rig, TOPIC)
    monkeypatch.setitem(rig.owner.questions.functions, questions.Truncate, surprise)
    capfd.readouterr()
    [answer] = rig.run(say(rig)).answered
    assert answer["refused"] == api.UnknownError
    assert len(tracebacks(capfd)) == 1
    witness.is_served()


REFUSED = [      # (field of the command, its other fields, field of its answer, what the answer says)
    ("newTxn", {"tc_id": 3}, "newTxnResponse", {"txnid_most_bits": 3}),
    ("addPartitionToTxn", {"txnid_most_bits": 3, "txnid_least_bits": 9}, "addPartitionToTxnResponse",
     {"txnid_most_bits": 3, "txnid_least_bits": 9}),
    ("addSubscriptionToTxn", {"txnid_most_bits": 3, "txnid_least_bits": 9}, "addSubscriptionToTxnResponse",
     {"txnid_most_bits": 3, "txnid_least_bits": 9}),
    ("endTxn", {"txnid_most_bits": 3, "txnid_least_bits": 9}, "endTxnResponse",
     {"txnid_most_bits": 3, "txnid_least_bits": 9}),
    ("ack", {"consumer_id": 5, "ack_type": api.CommandAck.Individual}, "ackResponse", {"consumer_id": 5}),
]


def refuse_everything(*_):
    raise Refusal(api.TransactionNotFound, "gone")


@pytest.mark.parametrize("field, fields, response, said", REFUSED, ids=[row[0] for row in REFUSED])
def test_a_refused_command_of_a_transaction_is_answered_by_its_own_response(
        rig, monkeypatch, field, fields, response, said):
    kind = api.BaseCommand.DESCRIPTOR.fields_by_name[field].number
    monkeypatch.setitem(rig.owner.commands.functions, kind, refuse_everything)
    [command] = rig.run(rig.command(field, request_id=7, **fields)).commands()
    found = getattr(command, response)
    assert (found.request_id, found.error, found.message) == (7, api.TransactionNotFound, "gone")
    assert {name: getattr(found, name) for name in said} == said


def test_a_refused_ack_whose_client_waits_for_no_answer_gets_none(rig, monkeypatch):
    monkeypatch.setitem(rig.owner.commands.functions, T.ACK, refuse_everything)
    assert rig.run(rig.command("ack", consumer_id=5, ack_type=api.CommandAck.Individual)).commands() == []
