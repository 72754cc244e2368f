"""A journal that needs a damaged file keeps a broker from starting; storage/test_owner_faults.py has all other rot."""
import subprocess

import pytest

from geminga.storage import format

from ..harness import COMMAND, HANG_SECONDS, unique_topic
from ..storage.files import make_newer
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
