"""A file that is not what it should be: said by its name, to who asks for it and to the operator, and nothing else
suffers.
"""
import subprocess

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.storage import format

from ..harness import COMMAND, HANG_SECONDS, request, unique_topic
from ..proto.client_frames import T
from ..storage.files import flip, make_newer
from ..workers.peer import Peer
from .traffic import left_in

ONE_OF_EACH = ("--workers", "1", "--owners", "1")


@pytest.fixture
def filled(start_broker, connect):
    """A broker with messages 0 to 9 in two topics, and the index file of the first topic's ledger."""
    broker = start_broker(*ONE_OF_EACH)
    client, topics = connect(broker.service_url), [unique_topic("rot"), unique_topic("rot")]
    indexes = []
    for topic in topics:
        producer = client.create_producer(topic)
        for number in range(10):
            producer.send(b"%d" % number)
        indexes.append(set((broker.data_dir / "partitions").glob("*/*.index")))
    client.shutdown()
    [index] = indexes[0]
    return broker, topics, index


def test_a_topic_whose_file_is_corrupt_is_refused_and_others_are_served(filled, connect):
    """Only the topic of a corrupt file is refused, with one log line; after a repair it is served without a restart."""
    broker, (bad, good), index = filled
    assert broker.stop() == 0
    kept = index.read_bytes()
    make_newer(index, format.INDEX_HEADER)
    broker.start()
    with Peer(broker.service_url) as peer:
        for _ in range(3):
            answer = peer.ask(T.PRODUCER, topic=bad, producer_id=1, request_id=1)
            assert (answer.type, answer.error.error) == (T.ERROR, api.PersistenceError)
            assert str(index) in answer.error.message
        peer.open_producer(good)
    assert broker.log().count(str(index)) == 1
    client = connect(broker.service_url)
    assert left_in(client, good) == list(range(10))
    index.write_bytes(kept)
    assert left_in(client, bad) == list(range(10))


def test_a_broker_whose_journal_needs_a_corrupt_file_says_which_and_loses_nothing(filled, connect):
    """A broker does not start if its journal has entries for a corrupt file, and goes on after the file is repaired."""
    broker, topics, index = filled
    broker.kill_supervisor()
    kept = index.read_bytes()
    make_newer(index, format.INDEX_HEADER)
    done = subprocess.run([*COMMAND, "--data-dir", broker.data_dir, "--port", "0", "--http-port", "0", *ONE_OF_EACH],
                          capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if " geminga: geminga-o0: " in line
            and str(index) in line]
    assert "Traceback" not in done.stderr
    index.write_bytes(kept)
    broker.start()
    client = connect(broker.service_url)
    for topic in topics:
        assert left_in(client, topic) == list(range(10))


@pytest.mark.parametrize(("suffix", "offset"),
                         [(".index", 0), (".index", format.HEADER_SIZE + 3), (".ledger", 0), ("", 0)],
                         ids=["header of the index", "row of the index", "header of the ledger", "state"])
def test_a_flipped_bit_costs_nothing_and_is_told(filled, connect, suffix, offset):
    """A flipped bit costs nothing, and is reported by a log line and a metric."""
    broker, topics, index = filled
    assert broker.stop() == 0
    path = index.with_suffix(suffix) if suffix else index.with_name("state")
    flip(path, offset)
    broker.start()
    client = connect(broker.service_url)
    for topic in topics:
        assert left_in(client, topic) == list(range(10))
    assert broker.log().count(str(path)) == 1
    assert 'geminga_damage_found_total{process="owner-0"} 1.0' in request("GET", broker.http_url + "/metrics")[1]
