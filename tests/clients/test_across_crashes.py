"""Publishing and consuming go on across killed processes, and nothing that was receipted is lost.

Clients are the official ones, as they reconnect by rules of their own.  Where a test must see what a client hides (that
it was told to look up again, that it was not), a bare connection stands in: Witness.
"""

import functools
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import HANG_MS, HANG_SECONDS, Broker, Stopwatch, eventually, partitioned_topic, request, unique_topic

# A killed child is promised to be back in a second; the rest is for what this machine does besides.
BACK_SECONDS = 3
SOON_SECONDS = 10
# Clients wait longer from attempt to attempt (100 ms, 200 ms, ...), so they notice later that it is back.
RESUME_SECONDS = HANG_SECONDS
RECEIVE_MS = HANG_MS
SILENCE_MS = 300
WINDOW = 200  # messages published and not yet received

TWO_OF_EACH = ("--workers", "2", "--owners", "2")


class Traffic:
    """A producer that never stops and a consumer that acknowledges everything, each in a thread of its own.

    Messages are numbers, published in order.  Invariant: at most WINDOW of them are published and neither received nor
    refused.
    """

    def __init__(self, client: pulsar.Client, topic: str, **producer_options: object) -> None:
        self.topic = topic
        self.receipted: list[int] = []
        self.refused: list[tuple[int, pulsar.Result]] = []
        self.received: set[int] = set()
        self._client = client
        self._window = threading.Semaphore(WINDOW)
        self._publishing_over = threading.Event()
        self._receiving_over = threading.Event()
        # Its backlog is everything: read at the end, from the disk.
        client.subscribe(topic, "audit").close()
        self._consumer = client.subscribe(topic, "live")
        self._producer = client.create_producer(topic, send_timeout_millis=HANG_MS, **producer_options)
        self._threads = [threading.Thread(target=run) for run in (self._publish, self._receive)]

    def __repr__(self) -> str:
        return f"<Traffic receipted={len(self.receipted)} received={len(self.received)} refused={self.refused[:3]}>"

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        number = 0
        while not self._publishing_over.is_set():
            if self._window.acquire(timeout=0.1):
                self._producer.send_async(b"%d" % number, functools.partial(self._settle, number))
                number += 1

    def _settle(self, number: int, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            self.receipted.append(number)
        else:
            self.refused.append((number, result))
            self._window.release()

    def _receive(self) -> None:
        while not self._receiving_over.is_set():
            try:
                message = self._consumer.receive(timeout_millis=100)
            except pulsar.Timeout:
                continue
            number = int(message.data())
            if number not in self.received:
                self.received.add(number)
                self._window.release()
            self._consumer.acknowledge(message)

    def wait_for_more(self, count: int, seconds: float = RESUME_SECONDS) -> None:
        """Wait until `count` more messages have a receipt and `count` more were received."""
        receipted, received = len(self.receipted) + count, len(self.received) + count
        going_on = lambda: len(self.receipted) >= receipted and len(self.received) >= received  # noqa: E731
        eventually(going_on, seconds, f"{count} more messages of {self}")

    def finish(self) -> None:
        """Stop publishing, and wait until every message with a receipt was received."""
        self._publishing_over.set()
        self._threads[0].join()
        eventually(lambda: self.received.issuperset(self.receipted), RESUME_SECONDS, f"the rest of {self}")

    def stop(self) -> None:
        self._publishing_over.set()
        self._receiving_over.set()
        for thread in self._threads:
            thread.join()

    def audit(self) -> None:
        """Assert that the topic holds every message with a receipt, in the order of publishing except for resent
        ones.
        """
        consumer = self._client.subscribe(self.topic, "audit")
        missing = set(self.receipted)
        kept: dict[int, list[int]] = {}
        seen: set[int] = set()
        while missing:
            message = consumer.receive(timeout_millis=RECEIVE_MS)
            number = int(message.data())
            missing.discard(number)
            if number not in seen:
                seen.add(number)
                kept.setdefault(message.message_id().partition(), []).append(number)
        assert all(numbers == sorted(numbers) for numbers in kept.values())


@contextmanager
def traffic_on(client: pulsar.Client, topic: str, **producer_options: object) -> Iterator[Traffic]:
    """Run traffic during the block."""
    traffic = Traffic(client, topic, **producer_options)
    traffic.start()
    try:
        traffic.wait_for_more(500)
        yield traffic
    finally:
        traffic.stop()


def kill_and_wait(broker: Broker, role: str, index: int) -> None:
    killed = broker.kill(role, index)
    broker.wait_replaced(role, index, killed, BACK_SECONDS)


def kill_all_and_start(broker: Broker) -> None:
    broker.kill_supervisor()
    broker.start()


def stop_and_start(broker: Broker) -> None:
    assert broker.stop() == 0
    broker.start()


def kill_workers_in_turn(broker: Broker, traffic: Traffic) -> None:
    """Kill every worker once, because a client does not know which one it is connected to."""
    for index in (0, 1):
        kill_and_wait(broker, "worker", index)
        traffic.wait_for_more(500)


def kill_owners_in_turn(broker: Broker, traffic: Traffic) -> None:
    for index in (0, 1):
        kill_and_wait(broker, "owner", index)
        traffic.wait_for_more(500)


def kill_the_supervisor(broker: Broker, traffic: Traffic) -> None:
    kill_all_and_start(broker)


def stop_under_load(broker: Broker, traffic: Traffic) -> None:
    stop_and_start(broker)


FAULTS = [kill_workers_in_turn, kill_owners_in_turn, kill_the_supervisor, stop_under_load]
faults = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)


@faults
@pytest.mark.parametrize(("partitions", "batching"), [(0, False), (3, True)], ids=["plain", "partitioned-batched"])
def test_every_receipted_message_is_received(start_broker, connect, fault, partitions, batching):
    """A consumer receives every message with a receipt at least once, and the topic holds them in order."""
    broker = start_broker(*TWO_OF_EACH)
    topic = partitioned_topic(broker.http_url, partitions) if partitions else unique_topic("crash")
    client = connect(broker.service_url)
    with traffic_on(client, topic, batching_enabled=batching, batching_max_publish_delay_ms=1) as traffic:
        fault(broker, traffic)
        traffic.wait_for_more(500)
        traffic.finish()
        assert traffic.refused == []
        traffic.audit()


def test_large_messages_come_whole_across_a_killed_worker(start_broker, connect):
    """A connection that ends in the middle of a frame leaves no partial message."""
    broker = start_broker("--workers", "1", "--owners", "1")
    client = connect(broker.service_url)
    topic = unique_topic("crash")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    sent = [random.Random(seed).randbytes(4 * 1024 * 1024) for seed in range(12)]
    receipts: list[pulsar.Result] = []
    for body in sent:
        producer.send_async(body, lambda result, message_id: receipts.append(result))
    eventually(lambda: len(receipts) >= 4, RESUME_SECONDS, "some receipts")
    broker.kill("worker", 0)

    receive_whole(consumer, sent, of=sent)
    eventually(lambda: len(receipts) == len(sent), RESUME_SECONDS, "all receipts")
    assert set(receipts) == {pulsar.Result.Ok}


def receive_whole(consumer: pulsar.Consumer, bodies: list[bytes], *, of: list[bytes]) -> None:
    """Assert that all `bodies` arrive and nothing that was not sent; repetitions are allowed."""
    missing = set(bodies)
    while missing:
        message = consumer.receive(timeout_millis=RECEIVE_MS)
        assert message.data() in of, f"a message of {len(message.data())} bytes that was never sent"
        missing.discard(message.data())
        consumer.acknowledge(message)


@pytest.mark.parametrize("role", ["worker", "owner"])
def test_messages_in_chunks_come_whole_before_and_after_a_kill(start_broker, connect, role):
    """Messages in chunks are received whole when a process is killed between two messages.

    A kill between two chunks is not tried: the C++ client gives up a message when it gets one of its chunks twice
    (apache/pulsar-client-cpp, 587).
    """
    broker = start_broker("--workers", "1", "--owners", "1")
    client = connect(broker.service_url)
    topic = unique_topic("crash")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, chunking_enabled=True)
    sent = [random.Random(seed).randbytes(6 * 1024 * 1024) for seed in range(6)]
    for body in sent[:3]:
        producer.send(body)
    receive_whole(consumer, sent[:3], of=sent)
    broker.kill(role, 0)
    for body in sent[3:]:
        producer.send(body)
    receive_whole(consumer, sent[3:], of=sent)


@pytest.mark.parametrize("how", ["owners", "supervisor"])
def test_what_was_acknowledged_stays_acknowledged(start_broker, connect, how):
    """Acknowledgements are durable once the close of their consumer was answered."""
    broker = start_broker(*TWO_OF_EACH)
    client = connect(broker.service_url)
    topics = [unique_topic("crash") for _ in range(4)]
    for topic in topics:
        consumer = client.subscribe(topic, "sub")
        producer = client.create_producer(topic)
        for number in range(100):
            producer.send_async(b"%d" % number, lambda result, message_id: None)
        producer.flush()
        producer.close()
        for _ in range(100):
            message = consumer.receive(timeout_millis=RECEIVE_MS)
            if int(message.data()) % 3:
                consumer.acknowledge(message)
        consumer.close()

    if how == "supervisor":
        kill_all_and_start(broker)
    else:
        for index in (0, 1):
            kill_and_wait(broker, "owner", index)

    for topic in topics:
        consumer = client.subscribe(topic, "sub")
        left = [int(consumer.receive(timeout_millis=RECEIVE_MS).data()) for _ in range(34)]
        assert left == list(range(0, 100, 3))
        with pytest.raises(pulsar.Timeout):
            consumer.receive(timeout_millis=SILENCE_MS)


def test_partitioned_topics_and_positions_survive_a_killed_supervisor(fresh_broker, connect):
    """Message ids that were handed out before a kill are never given to other messages."""
    topic = partitioned_topic(fresh_broker.http_url, 2)
    first = connect(fresh_broker.service_url)
    before = [str(first.create_producer(topic).send(b"before")) for _ in range(4)]
    kill_all_and_start(fresh_broker)
    second = connect(fresh_broker.service_url)
    after = [str(second.create_producer(topic).send(b"after")) for _ in range(4)]
    assert len(set(before + after)) == 8
    assert len(second.get_topic_partitions(topic)) == 2


def test_a_killed_admin_process_is_back_and_no_client_noticed(start_broker, connect, witness_of):
    broker = start_broker(*TWO_OF_EACH)
    witness = witness_of(broker)
    witness.create_producer(1, unique_topic("crash"))
    with traffic_on(connect(broker.service_url), unique_topic("crash")) as traffic:
        kill_and_wait(broker, "admin", 0)
        eventually(lambda: answers(broker), RESUME_SECONDS, "an answer over HTTP")
        traffic.wait_for_more(500)
        traffic.finish()
    assert witness.publish(1) == "receipt"
    assert witness.closed_producers == {}


def answers(broker: Broker) -> bool:
    try:
        return request("GET", f"{broker.http_url}/admin/v2/brokers/health")[0] == 200
    except OSError:
        return False


def test_no_process_of_a_killed_supervisor_is_left_and_its_folder_can_be_used_at_once(start_broker):
    """A broker starts on the folder of a killed one at once, three times in a row."""
    broker = start_broker(*TWO_OF_EACH)
    for _ in range(3):
        eventually(lambda: len(broker.children()) >= 5, RESUME_SECONDS, "two workers, two owners and the admin process")
        kill_all_and_start(broker)
    assert broker.stop() == 0


# What clients are told


class Witness:
    """A raw connection that sees every command of the broker and sends only what it is told to send."""

    def __init__(self, broker: Broker) -> None:
        port = int(broker.service_url.rpartition(":")[2])
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=RESUME_SECONDS)
        self._stream = self._socket.makefile("rb")
        self.closed_producers: dict[int, int] = {}  # id -> request id of the command that said so
        self.closed_consumers: dict[int, int] = {}
        hello = api.CommandConnect(client_version="witness", protocol_version=19)
        self._send(api.BaseCommand(type=api.BaseCommand.CONNECT, connect=hello))
        assert self.next().type == api.BaseCommand.CONNECTED

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _send(self, command: api.BaseCommand, after: bytes = b"") -> None:
        body = command.SerializeToString()
        self._socket.sendall(struct.pack(">II", 4 + len(body) + len(after), len(body)) + body + after)

    def next(self) -> api.BaseCommand | None:
        """Return the next command about this witness, or None when the connection has ended.

        Raises TimeoutError after RESUME_SECONDS without a command.
        """
        while True:
            header = self._stream.read(8)
            if len(header) < 8:
                return None
            total, size = struct.unpack(">II", header)
            command = api.BaseCommand.FromString(self._stream.read(size))
            self._stream.read(total - 4 - size)
            if command.type == api.BaseCommand.CLOSE_PRODUCER:
                self.closed_producers[command.close_producer.producer_id] = command.close_producer.request_id
            elif command.type == api.BaseCommand.CLOSE_CONSUMER:
                self.closed_consumers[command.close_consumer.consumer_id] = command.close_consumer.request_id
            if command.type == api.BaseCommand.PING:
                self._send(api.BaseCommand(type=api.BaseCommand.PONG, pong=api.CommandPong()))
            else:
                return command

    def next_of(self, *types: int) -> api.BaseCommand:
        while (command := self.next()) is not None:
            if command.type in types:
                return command
        raise ConnectionError("the broker ended the connection")

    def hear_all(self) -> None:
        """Receive everything that the broker has sent, up to its answer to a PING."""
        self._send(api.BaseCommand(type=api.BaseCommand.PING, ping=api.CommandPing()))
        self.next_of(api.BaseCommand.PONG)

    def ask_for_producer(self, producer_id: int, topic: str) -> None:
        asked = api.CommandProducer(topic=topic, producer_id=producer_id, request_id=producer_id)
        self._send(api.BaseCommand(type=api.BaseCommand.PRODUCER, producer=asked))

    def create_producer(self, producer_id: int, topic: str) -> bool:
        self.ask_for_producer(producer_id, topic)
        return (
            self.next_of(api.BaseCommand.PRODUCER_SUCCESS, api.BaseCommand.ERROR).type
            == api.BaseCommand.PRODUCER_SUCCESS
        )

    def ask_for_subscription(self, consumer_id: int, topic: str, request_id: int) -> None:
        asked = api.CommandSubscribe(
            topic=topic, subscription="sub", subType=api.CommandSubscribe.Exclusive, consumer_id=consumer_id,
            request_id=request_id
        )
        self._send(api.BaseCommand(type=api.BaseCommand.SUBSCRIBE, subscribe=asked))

    def ask_for_last_message_id(self, consumer_id: int, request_id: int) -> None:
        asked = api.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
        self._send(api.BaseCommand(type=api.BaseCommand.GET_LAST_MESSAGE_ID, getLastMessageId=asked))

    def subscribe(self, consumer_id: int, topic: str) -> bool:
        self.ask_for_subscription(consumer_id, topic, consumer_id)
        return self.next_of(api.BaseCommand.SUCCESS, api.BaseCommand.ERROR).type == api.BaseCommand.SUCCESS

    def publish(self, producer_id: int) -> str:
        """Publish one message, and return how it was answered."""
        metadata = api.MessageMetadata(producer_name="witness", sequence_id=0, publish_time=1).SerializeToString()
        sent = api.CommandSend(producer_id=producer_id, sequence_id=0)
        # Without a checksum, as old clients do: the metadata's size follows at once.
        self._send(api.BaseCommand(type=api.BaseCommand.SEND, send=sent),
                   struct.pack(">I", len(metadata)) + metadata + b"seen")
        while True:
            answer = self.next_of(api.BaseCommand.SEND_RECEIPT, api.BaseCommand.SEND_ERROR)
            if answer.type == api.BaseCommand.SEND_ERROR:
                return f"refused: {answer.send_error.message}"
            if answer.send_receipt.producer_id == producer_id:
                return "receipt"


@pytest.fixture
def witness_of() -> Iterator[Callable[[Broker], Witness]]:
    witnesses: list[Witness] = []

    def witness_of(broker: Broker) -> Witness:
        witnesses.append(Witness(broker))
        return witnesses[-1]

    yield witness_of
    for witness in witnesses:
        witness.close()


NOT_ASKED_FOR = 2**64 - 1  # the request id of what the broker says of its own accord


def test_a_killed_owner_is_noticed_by_its_own_clients_only(start_broker, witness_of):
    """Producers and consumers of a killed owner are closed; those of other owners on the same connection go on."""
    broker = start_broker(*TWO_OF_EACH)
    witness = witness_of(broker)
    topics = {number: unique_topic("crash") for number in range(16)}  # all at one owner: once in 32,768 runs
    assert all(witness.create_producer(number, topic) for number, topic in topics.items())
    assert all(witness.subscribe(number, topic) for number, topic in topics.items())

    killed = broker.kill("owner", 0)
    witness.next_of(api.BaseCommand.CLOSE_PRODUCER)
    broker.wait_replaced("owner", 0, killed, BACK_SECONDS)

    witness.hear_all()
    unaffected = topics.keys() - witness.closed_producers.keys()
    assert [witness.publish(number) for number in unaffected] == ["receipt"] * len(unaffected)
    assert topics.keys() - witness.closed_producers.keys() == unaffected
    assert topics.keys() - witness.closed_consumers.keys() == unaffected
    assert 0 < len(unaffected) < len(topics)
    assert {*witness.closed_producers.values(), *witness.closed_consumers.values()} == {NOT_ASKED_FOR}
    for number in witness.closed_producers:
        eventually(lambda number=number: witness.create_producer(number, topics[number]), BACK_SECONDS,
                   "its owner's return")
        assert witness.publish(number) == "receipt"


def test_requests_that_an_owner_died_over_are_answered(start_broker, witness_of):
    """Requests that a killed owner left open are answered by its successor or with an error.

    A client waits half a minute for an answer that never comes.
    """
    broker = start_broker("--workers", "1", "--owners", "1")
    witness = witness_of(broker)
    assert witness.subscribe(1, unique_topic("crash"))
    asked = {number: unique_topic("crash") for number in range(2, 6)}

    broker.pause("owner")
    for number, topic in asked.items():
        witness.ask_for_producer(number, topic)
        witness.ask_for_subscription(number, topic, request_id=100 + number)
    witness.ask_for_last_message_id(1, request_id=200)
    witness.hear_all()  # the worker has passed them on
    broker.kill("owner")

    unanswered = {*asked, *(100 + number for number in asked), 200}
    while unanswered:
        answer = witness.next()
        assert answer is not None
        for kind in ("producer_success", "success", "error", "getLastMessageIdResponse"):
            if answer.HasField(kind):
                unanswered.discard(getattr(answer, kind).request_id)


def test_clients_of_a_stopping_broker_are_told_before_their_connections_end(start_broker, witness_of):
    broker = start_broker(*TWO_OF_EACH)
    witness = witness_of(broker)
    for number in range(4):
        assert witness.create_producer(number, unique_topic("stop"))
        assert witness.subscribe(number, unique_topic("stop"))

    assert broker.stop() == 0

    while witness.next() is not None:
        pass
    assert witness.closed_producers == dict.fromkeys(range(4), NOT_ASKED_FOR)
    assert witness.closed_consumers == dict.fromkeys(range(4), NOT_ASKED_FOR)


def test_every_topic_goes_on_while_owners_are_killed(start_broker, connect):
    """Eight topics of real clients over two owners carry messages again soon after each of two kills.

    An owner that ends young may be restarted a little later, and clients ask for their subscriptions meanwhile.  These
    requests must not be refused: the consumer of the C++ library never asks again after an error to such a request
    (apache/pulsar-client-cpp, pull request 577).
    """
    broker = start_broker(*TWO_OF_EACH)
    client = connect(broker.service_url)
    topics = [unique_topic("crash") for _ in range(8)]
    consumers = [client.subscribe(topic, "sub") for topic in topics]
    producers = [client.create_producer(topic, send_timeout_millis=HANG_MS) for topic in topics]
    for index in (0, 1):
        kill_and_wait(broker, "owner", index)
        broker.kill("owner", index)
        for producer in producers:
            watch = Stopwatch()
            producer.send(b"%d" % index)
            assert watch.seconds() < SOON_SECONDS
    for consumer in consumers:
        seen = set()
        while seen != {b"0", b"1"}:
            seen.add(consumer.receive(timeout_millis=RECEIVE_MS).data())
