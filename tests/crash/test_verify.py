"""`geminga verify` beside a broker at work: what only moves is no damage, what is damaged is found, and nothing is
repaired.
"""
import random
import subprocess
import threading
from contextlib import contextmanager

import pulsar
import pytest

from geminga.storage.offline import verify
from geminga.storage.offline.findings import Severity
from geminga.storage.runtime.routing import owner_of

from ..harness import COMMAND, HANG_MS, HANG_SECONDS, LOAD_PAUSE_SECONDS, eventually, unique_topic
from ..storage.files import flip

OWNERS = 2
# So small that segments are checkpointed, and ledgers sealed, deleted and punched, many times while it is looked at.
CONFIG = """
[storage]
roll_over_bytes = 1048576
journal_segment_bytes = 2097152
journal_segments_max = 3
pass_bytes_max = 65536
discovery_grace_s = 0
keep_acknowledged_s = 0
[network]
max_message_size = 102400
"""


@pytest.fixture
def broker(start_broker, tmp_path):
    path = tmp_path / "geminga.toml"
    path.write_text(CONFIG)
    return start_broker("--config", str(path), "--workers", "1", "--owners", str(OWNERS))


@contextmanager
def traffic(client, topics, seed):
    """Publish messages of all sizes and acknowledge nine tenths in random order; yield {topic: messages so far}."""
    chance, is_over, counts = random.Random(seed), threading.Event(), dict.fromkeys(topics, 0)
    failures = []

    def run(topic):
        try:
            producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=500,
                                              block_if_queue_full=True)
            consumer = client.subscribe(topic, "work", pulsar.ConsumerType.Shared, receiver_queue_size=500)
            held = []
            while not is_over.wait(10 * LOAD_PAUSE_SECONDS):
                for _ in range(100):
                    producer.send_async(b"." * chance.choice((10, 100, 1_000, 20_000)), lambda *_: None)
                producer.flush()
                held += [consumer.receive(HANG_MS) for _ in range(100)]
                chance.shuffle(held)
                for message in held[20:]:
                    consumer.acknowledge(message)
                del held[10:]
                counts[topic] += 100
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_folder_that_is_served_under_load_is_silent(broker, connect, seed):
    """`geminga verify` finds nothing under load, after a kill, and after a clean stop."""
    topics = [unique_topic("verified") for _ in range(3)]
    with traffic(connect(broker.service_url), topics, seed) as counts:
        for number in range(1, 11):
            assert [str(found) for found in verify.walk(broker.data_dir)] == []
            eventually(lambda least=number * 300: min(counts.values()) >= least)
    broker.kill_supervisor()
    assert [str(found) for found in verify.walk(broker.data_dir) if found.severity] == []
    broker.start()
    assert broker.stop() == 0
    assert [str(found) for found in verify.walk(broker.data_dir)] == []


def test_damage_of_a_folder_that_is_served_is_found_and_not_repaired(broker, connect, seed):
    quiet = unique_topic("quiet")
    busy = next(topic for topic in iter(lambda: unique_topic("busy"), "")
                if owner_of(topic, OWNERS) == owner_of(quiet, OWNERS))
    client = connect(broker.service_url)
    client.subscribe(quiet, "sub").close()
    producer = client.create_producer(quiet)
    for _ in range(10):
        producer.send(b"Q" * 100)
    [ledger] = (broker.data_dir / "partitions").glob("*/*.ledger")
    with traffic(client, [busy], seed):
        flip(ledger, ledger.read_bytes().index(b"Q" * 100) + 50)
        # once a checkpoint of their owner has counted them
        [found] = eventually(lambda: list(verify.walk(broker.data_dir)))
        assert (found.severity, found.path, found.entries) == (Severity.LOSS, ledger, 1) and "sub" in found.consequence
        for more, status in ((), 4), (("--repair",), 5):
            done = subprocess.run([COMMAND[0], "verify", *more, broker.data_dir], capture_output=True, text=True,
                                  timeout=HANG_SECONDS, check=False)
            assert done.returncode == status
    assert (done.stdout, done.stderr.count("\n")) == ("", 1) and "served" in done.stderr
    assert not (broker.data_dir / "damaged").exists()
