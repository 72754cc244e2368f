"""Processes are killed without notice, stopped dead, and told to go, under load; what was promised holds to the
message.

What real clients make of it is the business of tests/clients/test_across_crashes.py.
"""
import os
import selectors
import signal
import socket
from contextlib import ExitStack, contextmanager
from math import ceil

import pytest

from geminga.storage.ledgers.journal_reader import replay

from ..harness import STOP_SECONDS, eventually, request, unique_topic
from ..proto.client_frames import CONNECT, T
from ..workers.peer import Closed, Peer
from . import run
from .figures import Figures
from .promises import is_ascending
from .traffic import SECONDS, Publisher, Subscriber, left_in, topic_of_owner

BACK_SECONDS = 5          # a second is promised; the rest is for the machine
KILLS = 10
KILLS_OF_A_NIGHT = 100
TWO_OF_EACH = ("--workers", "2", "--owners", "2")
RECOVERED = "of its journal in place"          # what an owner that had something to replay says


def test_a_killed_supervisor_leaves_free_ports_and_everything_that_was_receipted(start_broker, connect):
    """A killed supervisor's processes end; the next start has all messages with a receipt, in order and once."""
    broker = start_broker(*TWO_OF_EACH)
    topic = unique_topic("crash")
    with Publisher(broker.service_url, topic) as publisher:
        publisher.wait_for_more(1_000)
        broker.kill_supervisor()
    for url in (broker.service_url, broker.http_url):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", int(url.rpartition(":")[2])))
            other.listen()

    broker.start()
    found = left_in(connect(broker.service_url), topic)
    assert is_ascending(found)
    assert set(publisher.receipted) <= set(found)
    assert RECOVERED in broker.log()


def not_every_fifth(number):
    return number % 5 != 3


@pytest.mark.usefixtures("start_broker")        # skipped where no broker may be killed
@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_OF_A_NIGHT, marks=pytest.mark.nightly)])
def test_what_was_promised_holds_over_many_kills_at_random_moments(tmp_path, seed, kills):
    """Real and raw clients at full speed lose nothing over repeated kills of every process (run.py in small)."""
    figures = Figures()
    for number in range(ceil(kills / run.KILLS)):
        figures.add(run.Round(tmp_path / f"round-{number}", seed + number).run(min(kills, run.KILLS)))
    print(figures.table())
    assert figures.ends.total() == kills
    assert figures.receipted and figures.acknowledged
    assert figures.is_good


def left_to_replay(broker):
    """Return the records in each owner's journal."""
    return [replay(folder).records for folder in sorted((broker.data_dir / "journal").glob("[0-9]*"))]


def test_a_stop_under_load_leaves_nothing_to_replay(start_broker, connect):
    """A stop under load ends with status 0 within five seconds and leaves nothing to replay."""
    broker = start_broker(*TWO_OF_EACH)
    topics = [topic_of_owner(0), topic_of_owner(1)]
    with ExitStack() as stack:
        subscribers = [stack.enter_context(Subscriber(broker.service_url, topic, not_every_fifth)) for topic in topics]
        publishers = [stack.enter_context(Publisher(broker.service_url, topic)) for topic in topics]
        for publisher in publishers:
            publisher.wait_for_more(2_000)
        assert broker.stop() == 0

    assert left_to_replay(broker) == [[], []]
    broker.start()
    assert RECOVERED not in broker.log()
    client = connect(broker.service_url)
    for topic, publisher, subscriber in zip(topics, publishers, subscribers, strict=True):
        stored, left = left_in(client, topic), left_in(client, topic, "sub")
        assert is_ascending(stored) and is_ascending(left)
        assert set(publisher.receipted) <= set(stored)
        assert set(publisher.receipted) - subscriber.asked <= set(left)
        assert not set(subscriber.receipted) & set(left)


# -- one process of many ------------------------------------------------------------------------------------------

@contextmanager
def no_supervision(broker):
    """Keep the supervisor from restarting processes during the block."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_the_port_answers_while_a_worker_is_dead_and_nobody_who_came_meanwhile_is_turned_away(start_broker):
    """While a worker is dead, connections to the other one are served and those to the dead one wait for its
    successor.
    """
    broker = start_broker(*TWO_OF_EACH)
    with ExitStack() as stack:
        with no_supervision(broker):
            killed = broker.kill("worker", 0)
            # all at one: once in 2^31 runs
            peers = [stack.enter_context(Peer(broker.service_url, first=b"")) for _ in range(32)]
            for peer in peers:
                peer.say(CONNECT)
            selector = stack.enter_context(selectors.DefaultSelector())
            for peer in peers:
                selector.register(peer.socket, selectors.EVENT_READ, peer)
            answered = eventually(lambda: [key.data for key, _ in selector.select(0)], SECONDS, "an answer")
            assert answered[0].hear().type == T.CONNECTED
            answered[0].open_producer(unique_topic("crash"))
        broker.wait_replaced("worker", 0, killed, BACK_SECONDS)
        for peer in peers:
            if peer is not answered[0]:
                assert peer.hear().type == T.CONNECTED


def serves(broker) -> bool:
    try:
        return request("GET", f"{broker.http_url}/admin/v2/brokers/health")[0] == 200
    except OSError:
        return False


def test_clients_are_served_again_after_an_owner_was_killed_while_it_started(start_broker):
    """The ports are closed while the only owner fails to start, and serve when it has started."""
    broker = start_broker("--workers", "1", "--owners", "1")
    first = broker.kill("owner")
    eventually(lambda: broker.child("owner", 0) not in (None, first), SECONDS, "another owner, which starts")
    broker.wait_replaced("owner", 0, broker.kill("owner"), SECONDS)
    eventually(lambda: "ends until an owner serves again" in broker.log(), SECONDS, "closed ports")

    def is_served():
        try:
            with Peer(broker.service_url) as peer:
                return peer.ask(T.PARTITIONED_METADATA, topic=unique_topic("crash"), request_id=1)
        except (Closed, OSError):
            return None

    assert eventually(is_served, SECONDS, "an answer").type == T.PARTITIONED_METADATA_RESPONSE


def test_a_process_that_stands_still_and_is_killed_is_replaced(start_broker):
    """A process that was stopped and then killed by hand is replaced, and the broker serves as before."""
    broker = start_broker("--workers", "1", "--owners", "1")
    assert eventually(lambda: serves(broker), SECONDS, "health")
    for role in ("worker", "owner", "admin"):
        stopped = broker.pause(role)
        assert broker.kill(role) == stopped
        broker.wait_replaced(role, 0, stopped, BACK_SECONDS)
        eventually(lambda: serves(broker), SECONDS, f"health with another {role}")


@pytest.mark.parametrize("role", ["worker", "owner"])
def test_a_process_that_stands_still_does_not_hold_up_a_stop(start_broker, connect, role):
    """A stop kills a process that hangs, and everything with a receipt is there at the next start."""
    assert STOP_SECONDS == 5
    broker = start_broker("--workers", "1", "--owners", "1")
    topic = unique_topic("crash")
    with Publisher(broker.service_url, topic) as publisher:
        publisher.wait_for_more(500)
        broker.pause(role)
        assert broker.stop() == 0
    if role == "worker":      # owners had their time
        assert left_to_replay(broker) == [[]]
    broker.start()
    stored = left_in(connect(broker.service_url), topic)
    assert is_ascending(stored)
    assert set(publisher.receipted) <= set(stored)
