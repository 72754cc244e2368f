"""Sockets between two owners: nothing that a coordinator waits for is lost when owners come and go."""
import pytest
import zmq

from geminga.proto import envelope
from geminga.storage.runtime import zmq_frames
from geminga.storage.runtime.routing import socket_path
from geminga.storage.transactions.peers import Links

from ..harness import HANG_SECONDS

SECONDS = HANG_SECONDS
ROLE = 0xDEC0DE              # the hash of a transaction's role
ADD, COMMIT = (envelope.ADD, 0, 7, 1, ROLE), (envelope.COMMIT, 0, 7, 1, 0)
ADDED, ENDED, ASK = (envelope.ADDED, 0, 7, 1, 0), (envelope.ENDED, 0, 7, 1, 0), (envelope.ASK, 0, 8, 2, 0)


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(0)


@pytest.fixture
def owner(context, tmp_path):
    """Make the socket of an owner with a serial number."""
    made = []

    def make(serial):
        made.append(context.socket(zmq.ROUTER))
        made[-1].bind(socket_path(tmp_path, serial))
        return made[-1]

    yield make
    for router in made:
        router.close()


def heard(router):
    """Return (identity, rows) of the next envelope."""
    assert router.poll(SECONDS * 1_000)
    identity, *parts = zmq_frames.receive(router)
    [(kind, rows, _)] = envelope.unseal(parts)[1]
    assert kind == envelope.TRANSACTIONS
    return identity.bytes, [tuple(row) for row in rows.tolist()]


def test_messages_reach_the_owner_that_they_are_for(context, owner, tmp_path):
    routers = [owner(serial) for serial in (5, 6)]
    links = Links(context, tmp_path, 9)
    links.connect(0, 5)
    links.connect(1, 6)
    links.send({1: [ADD, COMMIT], 0: [ENDED]})
    assert [heard(router) for router in routers] == [(b"w9", [ENDED]), (b"w9", [ADD, COMMIT])]
    links.close()


def test_answers_to_an_owner_wait_until_it_is_known(context, owner, tmp_path):
    """A new owner may be asked before the supervisor has told it where the asking owner is.

    Requests are repeated then, so they take no memory while an owner is down.
    """
    links = Links(context, tmp_path, 9)
    links.send({0: [ADDED, COMMIT, ENDED]})
    for _ in range(100):
        links.send({0: [ASK, ADD]})
    router = owner(5)
    links.connect(0, 5)
    links.send({0: [COMMIT]})
    assert [heard(router)[1], heard(router)[1]] == [[ADDED, ENDED], [COMMIT]]
    links.close()


def test_a_new_process_of_an_owner_gets_what_is_sent_from_then_on(context, owner, tmp_path):
    links = Links(context, tmp_path, 9)
    links.connect(0, 5)
    links.disconnect(0)
    links.disconnect(0)
    router = owner(6)
    links.connect(0, 6)
    links.connect(0, 6)
    links.send({0: [ADD]})
    assert heard(router) == (b"w9", [ADD])
    links.close()
