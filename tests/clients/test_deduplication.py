"""Each message once: what the official client sends again, by itself or because it is told to, is not stored again."""
import datetime
import random
import threading

import pulsar
import pytest

from ..harness import eventually, request, unique_topic
from .test_across_crashes import RECEIVE_MS, RESUME_SECONDS, SILENCE_MS, kill_and_wait
from .test_policies import namespace, namespace_url  # noqa: F401
from .test_python_client import earliest

WINDOW = 300


@pytest.fixture
def deduplicating(start_broker, tmp_path):
    """A broker with deduplication, configured as operators of Apache Pulsar would do it."""
    path = tmp_path / "broker.conf"
    path.write_text("brokerDeduplicationEnabled=true\n")
    return start_broker("--config", str(path), "--workers", "1", "--owners", "1")


def everything(client, topic):
    """Return all messages that the topic holds, in order."""
    reader, found = client.create_reader(topic, pulsar.MessageId.earliest), []
    while reader.has_message_available():
        found.append(reader.read_next(timeout_millis=RECEIVE_MS).data())
    return found


class Publishing:
    """A producer that publishes without waiting, with a bounded number of messages without a receipt."""

    def __init__(self, producer):
        self.sent, self.receipted, self.refused = [], 0, []
        self._producer, self._window, self._lock = producer, threading.Semaphore(WINDOW), threading.Lock()

    def send(self, body):
        self._window.acquire()
        self.sent.append(body)
        self._producer.send_async(body, self._settle)

    def _settle(self, result, message_id):
        with self._lock:
            self.receipted += 1
            if result != pulsar.Result.Ok:
                self.refused.append(result)
        self._window.release()

    def finish(self):
        eventually(lambda: self.receipted == len(self.sent), RESUME_SECONDS, "all receipts")
        assert self.refused == []


@pytest.mark.parametrize("batching", [False, True])
def test_every_message_is_there_once_although_owners_are_killed(deduplicating, connect, batching):
    """The topic holds every message once and in order, although receipts were lost by kills."""
    client, topic = connect(deduplicating.service_url), unique_topic("once")
    publishing = Publishing(client.create_producer(topic, producer_name="author", batching_enabled=batching,
                                                   batching_max_messages=10,
                                                   batching_max_publish_delay_ms=1, max_pending_messages=10 * WINDOW))
    for number in range(9_000):
        if number in (2_000, 4_000, 6_000):
            deduplicating.kill("owner", 0)
        publishing.send(b"%d" % number)
    publishing.finish()
    assert everything(client, topic) == publishing.sent


def test_chunks_are_there_once_although_their_owner_is_killed_between_them(deduplicating, connect):
    """A message in chunks is stored once although its owner is killed between two chunks.

    The test reads after everything is stored: the C++ client gives up a message when it gets one of its chunks twice
    (apache/pulsar-client-cpp, 587).
    """
    client, topic = connect(deduplicating.service_url), unique_topic("once")
    client.subscribe(topic, "sub").close()
    publishing = Publishing(client.create_producer(topic, producer_name="author", chunking_enabled=True,
                                                   block_if_queue_full=True))
    for seed in range(8):
        publishing.send(random.Random(seed).randbytes(12 * 1024 * 1024))
        if seed in (2, 5):
            eventually(lambda: publishing.receipted >= len(publishing.sent) - 2, RESUME_SECONDS,
                       "the one before to be under way")
            deduplicating.kill("owner", 0)
    publishing.finish()
    consumer = client.subscribe(topic, "sub")
    for body in publishing.sent:
        message = consumer.receive(timeout_millis=RECEIVE_MS)
        assert message.data() == body
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(timeout_millis=SILENCE_MS)


def test_a_program_goes_on_where_it_was_when_its_broker_was_killed(deduplicating, connect):
    """A producer learns its last sequence id when it reconnects, and messages that it sends again change nothing."""
    client, topic = connect(deduplicating.service_url), unique_topic("once")
    producer = client.create_producer(topic, producer_name="author")
    assert producer.last_sequence_id() == -1
    for number in (0, 1, 2, 2, 1, 10):
        producer.send(b"%d" % number, sequence_id=number)
    client.close()
    kill_and_wait(deduplicating, "owner", 0)
    client = connect(deduplicating.service_url)
    producer = client.create_producer(topic, producer_name="author")
    assert producer.last_sequence_id() == 10
    for number in (2, 10):
        producer.send(b"%d" % number, sequence_id=number)
    producer.send(b"11")      # the client goes on counting
    assert producer.last_sequence_id() == 11
    assert everything(client, topic) == [b"0", b"1", b"2", b"10", b"11"]


def test_it_is_switched_on_and_off_for_topics_that_are_there(broker, client, namespace):  # noqa: F811
    """A namespace's policy switches deduplication on and off at once for existing topics."""
    producer = client.create_producer(f"persistent://{namespace}/orders", producer_name="author")
    reader = earliest(client, f"persistent://{namespace}/orders")
    expected = []
    for is_on, numbers in ((None, (1, 1)), (b"true", (1, 1, 0, 2)), (b"false", (2, 2)), (b"true", (1, 1, 2))):
        if is_on is not None:
            assert request("POST", namespace_url(broker, namespace, "deduplication"), is_on)[0] == 204
        known = set()      # none of those that were published before
        for number in numbers:
            producer.send(b"%d" % number, sequence_id=number)
            if is_on != b"true" or number not in known:
                expected.append(b"%d" % number)
            known.add(number)
    assert [reader.receive(timeout_millis=RECEIVE_MS).data() for _ in expected] == expected
    with pytest.raises(pulsar.Timeout):
        reader.receive(timeout_millis=SILENCE_MS)


def test_batches_that_delayed_messages_overtake_are_stored(deduplicating, connect):
    """A client sends delayed messages at once, and the batch around them later. A receipt means stored, also after a
    kill.
    """
    client, topic = connect(deduplicating.service_url), unique_topic("mixed")
    producer = client.create_producer(topic, producer_name="mixed", batching_enabled=True,
                                      batching_max_publish_delay_ms=60_000, batching_max_messages=1_000)
    receipts = []
    for number in range(60):
        delay = {"deliver_after": datetime.timedelta(milliseconds=1)} if number % 7 == 3 else {}
        producer.send_async(b"%d" % number, lambda result, message_id: receipts.append((result, message_id)), **delay)
        if number % 20 == 19:
            producer.flush()
        if number == 30:
            kill_and_wait(deduplicating, "owner", 0)
    producer.flush()
    assert [result for result, _ in receipts] == [pulsar.Result.Ok] * 60
    assert sorted(map(int, everything(client, topic))) == [*range(60)]
