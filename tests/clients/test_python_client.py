"""What the official Python client (the C++ library inside) is promised by the broker, each promise through the wire and
the disk.

The promises are those of the protocol, so all of these pass on Apache Pulsar too: see tests/conftest.py for how to
point them there.
"""

import functools
import json
import random
import threading
import time
from concurrent.futures import Future

import pulsar
import pytest

from ..harness import HANG_MS, eventually, partitioned_topic, partitions_url, request, unique_topic

MESSAGE_SIZE_MAX = 5 * 1024 * 1024  # of the protocol: payloads above it are refused or cut into chunks
RECEIVE_MS = HANG_MS
SILENCE_MS = 300  # arbitrary: "nothing more arrives" can only be watched for a while

COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}

publishing = pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])


def bodies_of(count: int, hint: str = "message") -> list[bytes]:
    return [f"{hint} {number}".encode() for number in range(count)]


def publish(producer: pulsar.Producer, bodies: list[bytes], **metadata: object) -> list[pulsar.MessageId]:
    """Publish without waiting in between, so that batches form; return the ids of the receipts in the order of
    `bodies`.
    """
    receipts: list[Future] = [Future() for _ in bodies]

    def settle(receipt: Future, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        receipt.set_result((result, message_id))

    for body, receipt in zip(bodies, receipts, strict=True):
        producer.send_async(body, functools.partial(settle, receipt), **metadata)
    producer.flush()
    answers = [receipt.result(timeout=RECEIVE_MS / 1000) for receipt in receipts]
    assert [result for result, _ in answers] == [pulsar.Result.Ok] * len(bodies)
    return [message_id for _, message_id in answers]


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(timeout_millis=RECEIVE_MS) for _ in range(count)]


def assert_silent(consumer: pulsar.Consumer) -> None:
    """Assert that no further message arrives."""
    with pytest.raises(pulsar.Timeout):
        unexpected = consumer.receive(timeout_millis=SILENCE_MS)
        pytest.fail(f"received {unexpected.data()[:100]!r} {unexpected.message_id()}")


def earliest(client: pulsar.Client, topic: str, name: str = "sub", **options: object) -> pulsar.Consumer:
    return client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest, **options)


def data_of(messages: list[pulsar.Message]) -> list[bytes]:
    return [message.data() for message in messages]


# Messages, whole and in order


@publishing
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_plain_topic_delivers_every_message_unchanged_and_in_order(client, compression, batching):
    """Messages arrive unchanged in the order of publishing, for every compression and batching."""
    topic = unique_topic("plain")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, compression_type=COMPRESSIONS[compression], batching_enabled=batching)
    bodies = [body * 20 for body in bodies_of(100)]
    ids = publish(producer, bodies)

    received = receive(consumer, len(bodies))

    assert data_of(received) == bodies
    assert [str(message.message_id()) for message in received] == [str(message_id) for message_id in ids]
    assert any(message_id.batch_index() > 0 for message_id in ids) == batching
    assert {message.topic_name() for message in received} == {topic}
    assert_silent(consumer)


@publishing
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_partitioned_topic_delivers_every_message_and_each_partition_in_order(broker, client, compression, batching):
    """All three partitions are used, each keeps its order, and a message id names its partition."""
    topic = partitioned_topic(broker.http_url, 3)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic,
        compression_type=COMPRESSIONS[compression],
        batching_enabled=batching,
        batching_max_messages=10,
        message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: int(message.properties()["n"]) % partitions,
    )
    for number in range(90):
        producer.send_async(b"message %d" % number, lambda result, message_id: None, properties={"n": str(number)})
    producer.flush()

    by_partition: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for message in receive(consumer, 90):
        by_partition[message.message_id().partition()].append(message.data())
        assert message.topic_name() == f"{topic}-partition-{message.message_id().partition()}"

    assert by_partition == {partition: [b"message %d" % number for number in range(partition, 90, 3)]
                            for partition in range(3)}
    assert_silent(consumer)


def test_messages_of_one_key_stay_together_and_in_order(broker, client):
    """All messages of a key go to one partition and keep their order."""
    topic = partitioned_topic(broker.http_url, 3)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(100):
        producer.send_async(b"%d" % number, lambda result, message_id: None, partition_key=f"key-{number % 10}")
    producer.flush()

    partitions: dict[str, set[int]] = {}
    numbers: dict[str, list[int]] = {}
    for message in receive(consumer, 100):
        partitions.setdefault(message.partition_key(), set()).add(message.message_id().partition())
        numbers.setdefault(message.partition_key(), []).append(int(message.data()))

    assert [len(used) for used in partitions.values()] == [1] * 10
    assert numbers == {f"key-{n}": list(range(n, 100, 10)) for n in range(10)}


@publishing
def test_everything_said_about_a_message_arrives_with_it(client, batching):
    """Key, ordering key, properties, event time and publish time arrive unchanged."""
    topic = unique_topic("metadata")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name=f"author-of-{topic}", batching_enabled=batching)
    before_ms = int(time.time() * 1000)
    properties = {"colour": "grün", "empty": "", "": "no name"}
    producer.send(b"body", properties=properties, partition_key="key", ordering_key="order",
                  event_timestamp=1_234_567_890_123)

    message = consumer.receive(timeout_millis=RECEIVE_MS)

    assert message.data() == b"body"
    assert message.properties() == properties
    assert (message.partition_key(), message.ordering_key()) == ("key", "order")
    assert message.event_timestamp() == 1_234_567_890_123
    assert before_ms <= message.publish_timestamp() <= int(time.time() * 1000)
    assert message.producer_name() == f"author-of-{topic}"


@pytest.mark.parametrize("size", [0, 1, MESSAGE_SIZE_MAX - 1200])
def test_any_size_up_to_the_greatest_arrives_unchanged(client, size):
    """Messages of every size from 0 to the maximum arrive unchanged.

    The client counts a message's metadata as part of the maximum size.
    """
    topic = unique_topic("size")
    consumer = client.subscribe(topic, "sub")
    body = random.Random(size).randbytes(size)
    client.create_producer(topic).send(body, properties={"p": "x" * 1000})
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == body


def test_a_greater_message_is_refused_and_the_producer_goes_on(client):
    """The client refuses a message above the limit that CONNECTED announced, and its producer goes on."""
    topic = unique_topic("size")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(MESSAGE_SIZE_MAX + 1))
    producer.send(b"fits")
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == b"fits"


def test_a_message_of_twenty_thousand_properties_arrives(client):
    """A message with hundreds of kilobytes of properties arrives."""
    topic = unique_topic("properties")
    consumer = client.subscribe(topic, "sub")
    properties = {f"key-{n}": f"value-{n}" for n in range(20_000)}
    client.create_producer(topic).send(b"body", properties=properties)
    assert consumer.receive(timeout_millis=RECEIVE_MS).properties() == properties


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_message_in_chunks_arrives_as_one_and_is_acknowledged_as_one(client, compression):
    """After a message of 12 MiB in chunks is acknowledged, nothing is left to deliver."""
    topic = unique_topic("chunks")
    consumer = client.subscribe(topic, "sub")
    body = random.Random(12).randbytes(12 * 1024 * 1024)
    producer = client.create_producer(topic, chunking_enabled=True, compression_type=COMPRESSIONS[compression])
    publish(producer, [body, b"small"])

    received = receive(consumer, 2)
    assert received[0].data() == body
    assert received[1].data() == b"small"

    consumer.acknowledge(received[0])
    consumer.close()
    consumer = client.subscribe(topic, "sub")
    assert data_of(receive(consumer, 1)) == [b"small"]
    assert_silent(consumer)


def test_chunks_of_two_producers_do_not_mix(broker, client):
    """Chunks of two producers interleave in a topic, and each message is joined from its own chunks."""
    topic = partitioned_topic(broker.http_url, 2)
    consumer = client.subscribe(topic, "sub")
    bodies = [random.Random(seed).randbytes(6 * 1024 * 1024) for seed in range(4)]
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    threads = [threading.Thread(target=publish, args=(producers[n], bodies[n::2])) for n in range(2)]
    for thread in threads:
        thread.start()
    received = data_of(receive(consumer, 4))
    for thread in threads:
        thread.join()
    assert sorted(received) == sorted(bodies)


@pytest.mark.slow
@pytest.mark.parametrize("queue", [2, 1000])
@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
def test_messages_in_chunks_arrive_whole_at_one_of_many_consumers(client, kind, queue):
    """Chunks of two producers go to three consumers, of which one leaves with all that it has."""
    topic = unique_topic("chunks")
    leaving, *staying = [client.subscribe(topic, "sub", consumer_type=getattr(pulsar.ConsumerType, kind),
                                          receiver_queue_size=queue) for _ in range(3)]
    bodies = [random.Random(seed).randbytes(11 * 1024 * 1024) for seed in range(6)]
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    threads = [threading.Thread(target=publish, args=(producers[n], bodies[n::2])) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leaving.close()
    received: list[bytes] = []

    def has_all() -> bool:
        for consumer in staying:
            try:
                message = consumer.receive(timeout_millis=100)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            received.append(message.data())
        return len(received) >= len(bodies)

    eventually(has_all, RECEIVE_MS / 1000)
    assert sorted(received) == sorted(bodies)
    for consumer in staying:
        assert_silent(consumer)


def test_a_small_receiver_queue_gets_everything_in_order(client):
    """A consumer with few permits gets no more than it permits, and everything in order in the end."""
    topic = unique_topic("permits")
    consumer = client.subscribe(topic, "sub", receiver_queue_size=3)
    bodies = bodies_of(2000)
    publish(client.create_producer(topic, block_if_queue_full=True), bodies)
    assert data_of(receive(consumer, len(bodies))) == bodies


def test_no_receiver_queue_at_all_gets_one_message_a_time(client):
    """A consumer with a queue of 0 gets one message for each receive call."""
    topic = unique_topic("permits")
    consumer = client.subscribe(topic, "sub", receiver_queue_size=0)
    publish(client.create_producer(topic), bodies_of(5))
    assert data_of([consumer.receive() for _ in range(5)]) == bodies_of(5)


def test_every_subscription_gets_every_message(client):
    topic = unique_topic("fan-out")
    consumers = [client.subscribe(topic, f"sub-{n}") for n in range(5)]
    publish(client.create_producer(topic, batching_enabled=True), bodies_of(20))
    for consumer in consumers:
        assert data_of(receive(consumer, 20)) == bodies_of(20)


def test_one_consumer_can_listen_to_several_topics(client):
    topics = [unique_topic("several") for _ in range(3)]
    consumer = client.subscribe(topics, "sub")
    for topic in topics:
        publish(client.create_producer(topic), bodies_of(10, topic))
    expected = sorted(body for topic in topics for body in bodies_of(10, topic))
    assert sorted(data_of(receive(consumer, 30))) == expected


def test_a_short_name_is_a_topic_of_the_default_namespace(client):
    topic = unique_topic("short")
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic.rpartition("/")[2]).send(b"body")
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == b"body"


def test_lookup_over_http_finds_plain_and_partitioned_topics(broker, connect):
    """A client with the address of the HTTP port finds topics by lookups over HTTP."""
    client = connect(broker.http_url)
    for topic in (unique_topic("http"), partitioned_topic(broker.http_url, 3)):
        consumer = client.subscribe(topic, "sub")
        publish(client.create_producer(topic), bodies_of(10))
        assert sorted(data_of(receive(consumer, 10))) == bodies_of(10)


def test_the_partitions_of_a_topic_are_created_once_and_can_be_asked_for(broker, client):
    topic = partitioned_topic(broker.http_url, 3)
    url = partitions_url(broker.http_url, topic)
    status, text = request("GET", url)
    assert (status, json.loads(text)["partitions"]) == (200, 3)
    assert request("PUT", url, b"3")[0] == 409
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{n}" for n in range(3)]


def test_the_broker_says_it_is_well(broker):
    """The health check publishes a message and reads it back before it answers 200."""
    assert request("GET", f"{broker.http_url}/admin/v2/brokers/health") == (200, "ok")


def test_a_namespace_that_is_not_there_is_refused(broker, connect):
    client = connect(broker.service_url, operation_timeout_seconds=3)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://nobody/nowhere/topic")


# Acknowledgement and redelivery


def test_individually_acknowledged_messages_do_not_come_again(client):
    """After acknowledgements in any pattern the next consumer gets exactly the other messages."""
    topic = unique_topic("holes")
    consumer = client.subscribe(topic, "sub")
    publish(client.create_producer(topic), bodies_of(100))
    for number, message in enumerate(receive(consumer, 100)):
        if number % 3:
            consumer.acknowledge(message)
    consumer.close()

    consumer = client.subscribe(topic, "sub")
    assert data_of(receive(consumer, 34)) == bodies_of(100)[::3]
    assert_silent(consumer)


def test_a_cumulative_acknowledgement_covers_everything_before_it(client):
    topic = unique_topic("cumulative")
    consumer = client.subscribe(topic, "sub")
    publish(client.create_producer(topic), bodies_of(100))
    consumer.acknowledge_cumulative(receive(consumer, 60)[-1])
    consumer.close()

    consumer = client.subscribe(topic, "sub")
    assert data_of(receive(consumer, 40)) == bodies_of(100)[60:]
    assert_silent(consumer)


def test_a_batch_is_acknowledged_when_all_of_it_is(client):
    """Without batch index acknowledgement a batch is redelivered whole until all of its messages are acknowledged."""
    topic = unique_topic("batch")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    publish(producer, bodies_of(5, "first"))
    publish(producer, bodies_of(5, "second"))
    for message in receive(consumer, 8):
        consumer.acknowledge(message)
    consumer.close()

    consumer = client.subscribe(topic, "sub")
    assert data_of(receive(consumer, 5)) == bodies_of(5, "second")
    assert_silent(consumer)


def test_what_is_not_acknowledged_comes_again_when_asked_for(client):
    topic = unique_topic("redeliver")
    consumer = client.subscribe(topic, "sub")
    publish(client.create_producer(topic), bodies_of(20))
    for message in receive(consumer, 20)[:5]:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert data_of(receive(consumer, 15)) == bodies_of(20)[5:]


def test_a_negatively_acknowledged_message_comes_again(client):
    topic = unique_topic("nack")
    consumer = client.subscribe(topic, "sub", negative_ack_redelivery_delay_ms=100)
    publish(client.create_producer(topic), bodies_of(10))
    for message in receive(consumer, 10):
        if message.data() == b"message 4":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = consumer.receive(timeout_millis=RECEIVE_MS)
    assert again.data() == b"message 4"
    consumer.acknowledge(again)
    consumer.close()
    assert_silent(client.subscribe(topic, "sub"))


def test_a_subscription_keeps_what_is_published_while_nobody_listens(client):
    topic = unique_topic("absent")
    client.subscribe(topic, "sub").close()
    publish(client.create_producer(topic), bodies_of(10))
    assert data_of(receive(client.subscribe(topic, "sub"), 10)) == bodies_of(10)


def test_an_unsubscribed_name_starts_anew(client):
    """After an unsubscribe the same name has neither the old backlog nor the old acknowledgements."""
    topic = unique_topic("unsubscribe")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    publish(producer, bodies_of(10))
    receive(consumer, 1)
    consumer.unsubscribe()

    consumer = client.subscribe(topic, "sub")
    publish(producer, bodies_of(3, "later"))
    assert data_of(receive(consumer, 3)) == bodies_of(3, "later")
    assert_silent(consumer)


def test_an_exclusive_subscription_has_one_consumer(client, connect, broker):
    """A second consumer of an Exclusive subscription is refused as long as the first one is connected."""
    topic = unique_topic("exclusive")
    first = client.subscribe(topic, "sub")
    for other in (client, connect(broker.service_url)):
        with pytest.raises(pulsar.ConsumerBusy):
            other.subscribe(topic, "sub")
    first.close()
    second = client.subscribe(topic, "sub")
    publish(client.create_producer(topic), bodies_of(1))
    assert data_of(receive(second, 1)) == bodies_of(1)


def test_a_vanished_client_makes_room_for_the_next(client, connect, broker):
    """The end of a connection ends its consumers and producers."""
    topic = unique_topic("vanished")
    other = connect(broker.service_url)
    other.subscribe(topic, "sub")
    other.create_producer(topic, producer_name="the-one")
    other.shutdown()

    def again() -> bool:
        try:
            client.subscribe(topic, "sub").close()
            client.create_producer(topic, producer_name="the-one").close()
        except (pulsar.ConsumerBusy, pulsar.ProducerBusy):
            return False
        return True

    assert eventually(again, what="room after a client vanished")


# Positions


def test_a_consumer_can_go_back_and_forth_by_id(client):
    """A seek continues behind a given id, with the first message at "earliest", and with new ones at "latest"."""
    topic = unique_topic("seek")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    ids = publish(producer, bodies_of(20))
    consumer.acknowledge_cumulative(receive(consumer, 20)[-1])

    consumer.seek(ids[9])
    assert data_of(receive(consumer, 10)) == bodies_of(20)[10:]
    consumer.seek(pulsar.MessageId.earliest)
    assert data_of(receive(consumer, 20)) == bodies_of(20)
    consumer.seek(pulsar.MessageId.latest)
    assert_silent(consumer)
    producer.send(b"next")
    assert data_of(receive(consumer, 1)) == [b"next"]


def test_a_consumer_can_go_back_into_a_batch(client):
    """After a seek into a batch the client shows only the messages behind that batch index."""
    topic = unique_topic("seek")
    consumer = client.subscribe(topic, "sub")
    ids = publish(client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000),
                  bodies_of(10))
    receive(consumer, 10)
    consumer.seek(ids[3])
    assert data_of(receive(consumer, 6)) == bodies_of(10)[4:]
    assert_silent(consumer)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
def test_what_lies_before_the_message_of_a_batch_that_a_cursor_was_reset_to_does_not_come_again(broker, client, kind):
    """After a cursor is reset into a batch (F201) and the rest is acknowledged, the next consumer gets nothing."""
    topic = unique_topic("seek")
    options = {"consumer_type": kind, "batch_index_ack_enabled": True, "start_message_id_inclusive": True}
    consumer = client.subscribe(topic, "sub", **options)
    ids = publish(client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000),
                  bodies_of(10))
    for message in receive(consumer, 10):
        consumer.acknowledge(message)
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/subscription/sub/resetcursor"
    where = {"ledgerId": ids[5].ledger_id(), "entryId": ids[5].entry_id(), "partitionIndex": -1,
             "batchIndex": ids[5].batch_index()}
    for is_excluded in (False, True):
        expected = bodies_of(10)[5 + is_excluded:]
        assert request("POST", url, json.dumps(where | {"excluded": is_excluded}).encode())[0] == 204
        found = receive(consumer, len(expected))
        assert data_of(found) == expected
        for left in (found[:1], []):
            for message in found[len(left):]:
                consumer.acknowledge(message)
            consumer.close()
            consumer = client.subscribe(topic, "sub", **options)
            found = receive(consumer, len(left))
            assert data_of(found) == expected[:len(left)]
        assert_silent(consumer)


def test_a_consumer_can_go_back_to_a_time(client):
    """After a seek to a time, messages published since then come again, acknowledged or not."""
    topic = unique_topic("seek")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    publish(producer, bodies_of(10, "before"))
    border_ms = int(time.time() * 1000) + 2
    eventually(lambda: time.time() * 1000 > border_ms + 1, what="a later millisecond")
    publish(producer, bodies_of(10, "after"))
    consumer.acknowledge_cumulative(receive(consumer, 20)[-1])

    consumer.seek(border_ms)
    assert data_of(receive(consumer, 10)) == bodies_of(10, "after")
    consumer.seek(border_ms - 3_600_000)
    assert data_of(receive(consumer, 20)) == bodies_of(10, "before") + bodies_of(10, "after")
    assert_silent(consumer)


def test_the_last_message_id_is_that_of_the_newest_receipt(client):
    topic = unique_topic("last")
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    for body in (b"first", b"second", b"third"):
        message_id = producer.send(body)
        last = consumer.get_last_message_id()
        assert (last.ledger_id(), last.entry_id()) == (message_id.ledger_id(), message_id.entry_id())


def test_an_empty_topic_has_no_last_message(client):
    last = client.subscribe(unique_topic("last"), "sub").get_last_message_id()
    assert last.entry_id() == -1


def read_all(reader: pulsar.Reader) -> list[bytes]:
    bodies = []
    while reader.has_message_available():
        bodies.append(reader.read_next(timeout_millis=RECEIVE_MS).data())
    return bodies


@publishing
def test_a_reader_reads_from_the_start_and_knows_the_end(client, batching):
    """has_message_available is true until the newest message is read, and again after a newer one is published."""
    topic = unique_topic("reader")
    producer = client.create_producer(topic, batching_enabled=batching)
    publish(producer, bodies_of(25))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)

    assert read_all(reader) == bodies_of(25)
    publish(producer, bodies_of(5, "later"))
    assert read_all(reader) == bodies_of(5, "later")


def test_a_reader_from_the_end_reads_what_comes(client):
    topic = unique_topic("reader")
    producer = client.create_producer(topic)
    publish(producer, bodies_of(5))
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    publish(producer, bodies_of(5, "later"))
    assert read_all(reader) == bodies_of(5, "later")


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_reader_can_start_anywhere(client, inclusive):
    """A reader starts at a message or behind it, also with an id that was stored as bytes."""
    topic = unique_topic("reader")
    ids = publish(client.create_producer(topic), bodies_of(10))
    start = pulsar.MessageId.deserialize(ids[4].serialize())
    reader = client.create_reader(topic, start, start_message_id_inclusive=inclusive)
    assert read_all(reader) == bodies_of(10)[4 if inclusive else 5 :]


def test_a_reader_of_nothing_has_nothing(client):
    reader = client.create_reader(unique_topic("reader"), pulsar.MessageId.earliest)
    assert not reader.has_message_available()


def test_a_reader_can_go_back(client):
    topic = unique_topic("reader")
    ids = publish(client.create_producer(topic), bodies_of(10))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read_all(reader)
    reader.seek(ids[6])
    assert read_all(reader) == bodies_of(10)[7:]


def test_readers_do_not_disturb_each_other_or_a_subscription(client):
    topic = unique_topic("reader")
    consumer = client.subscribe(topic, "sub")
    publish(client.create_producer(topic), bodies_of(10))
    readers = [client.create_reader(topic, pulsar.MessageId.earliest) for _ in range(3)]
    assert [read_all(reader) for reader in readers] == [bodies_of(10)] * 3
    assert data_of(receive(consumer, 10)) == bodies_of(10)


def test_the_earliest_message_is_there_for_a_new_subscription(client):
    """A new subscription gets earlier messages only if it asks for the earliest position."""
    topic = unique_topic("position")
    producer = client.create_producer(topic)
    client.subscribe(topic, "keeper").close()  # its backlog keeps what was published
    publish(producer, bodies_of(10))
    newest = client.subscribe(topic, "newest")
    assert data_of(receive(earliest(client, topic, "oldest"), 10)) == bodies_of(10)
    assert_silent(newest)


# Producers


def test_producers_without_a_name_get_different_ones(broker, client, connect):
    topic = unique_topic("names")
    producers = [user.create_producer(topic) for user in (client, client, connect(broker.service_url))]
    assert len({producer.producer_name() for producer in producers}) == 3


def test_a_producers_name_is_its_own_while_it_lives(broker, client, connect):
    topic = unique_topic("names")
    first = client.create_producer(topic, producer_name="author")
    with pytest.raises(pulsar.ProducerBusy):
        connect(broker.service_url).create_producer(topic, producer_name="author")
    first.close()
    client.create_producer(topic, producer_name="author").send(b"free again")


def test_a_producer_counts_its_messages(client):
    topic = unique_topic("sequence")
    producer = client.create_producer(topic)
    assert producer.last_sequence_id() == -1
    publish(producer, bodies_of(3))
    assert producer.last_sequence_id() == 2
    producer.send(b"body", sequence_id=41)
    assert producer.last_sequence_id() == 41


def test_an_exclusive_producer_is_the_only_one(client):
    """While an exclusive producer exists, others are refused in every mode but fencing, and it is refused beside
    others.
    """
    topic = unique_topic("exclusive")
    first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    for mode in (pulsar.ProducerAccessMode.Exclusive, pulsar.ProducerAccessMode.Shared):
        with pytest.raises((pulsar.ProducerFenced, pulsar.ProducerBusy)):
            client.create_producer(topic, access_mode=mode)
    first.send(b"still here")
    first.close()
    client.create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)


def test_a_fencing_producer_takes_the_place_of_all_others(client):
    topic = unique_topic("fencing")
    consumer = client.subscribe(topic, "sub")
    # This client learns that it was fenced only as its message is never answered: without a short timeout that takes 30
    # seconds.
    first = client.create_producer(topic, send_timeout_millis=500)
    first.send(b"first")
    second = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)

    def fenced() -> bool:
        try:
            first.send(b"too late")
        except pulsar.PulsarException:
            return True
        return False

    assert eventually(fenced, what="a fenced producer that notices")
    second.send(b"second")
    assert data_of(receive(consumer, 2)) == [b"first", b"second"]


def test_a_waiting_producer_follows_the_one_before_it(client):
    """A producer in mode WaitForExclusive is neither refused nor ready while another producer exists."""
    topic = unique_topic("waiting")
    consumer = client.subscribe(topic, "sub")
    first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    let_in: Future = Future()

    def wait_for_access() -> None:
        let_in.set_result(client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.WaitForExclusive))

    waiting = threading.Thread(target=wait_for_access)
    waiting.start()
    with pytest.raises(TimeoutError):
        let_in.result(timeout=SILENCE_MS / 1000)
    first.send(b"first")
    first.close()
    let_in.result(timeout=RECEIVE_MS / 1000).send(b"second")
    waiting.join()
    assert data_of(receive(consumer, 2)) == [b"first", b"second"]


# A broker that goes and comes


@publishing
def test_a_restart_keeps_the_backlog_and_what_was_acknowledged(fresh_broker, connect, batching):
    """After a restart, old and new producers and consumers go on with the same backlog."""
    client = connect(fresh_broker.service_url)
    topic = unique_topic("restart")
    consumer = client.subscribe(topic, "holes")
    client.subscribe(topic, "all").close()
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=2)
    publish(producer, bodies_of(100))
    for message in receive(consumer, 100):
        if int(message.data().split()[1]) % 4 >= 2:  # whole batches of two, or single messages
            consumer.acknowledge(message)
    consumer.close()

    assert fresh_broker.stop() == 0
    fresh_broker.start()

    left = [body for number, body in enumerate(bodies_of(100)) if number % 4 < 2]
    assert data_of(receive(client.subscribe(topic, "holes"), 50)) == left
    producer.send(b"after")
    assert data_of(receive(connect(fresh_broker.service_url).subscribe(topic, "all"), 101)) == [
        *bodies_of(100),
        b"after",
    ]


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared],
                         ids=lambda kind: kind.name)
def test_a_delayed_message_comes_not_before_its_time_and_holds_up_nobody(client, kind):
    topic = unique_topic("delayed")
    consumer = client.subscribe(topic, "sub", consumer_type=kind)
    producer = client.create_producer(topic, batching_enabled=False)
    due_ms = round(time.time() * 1000) + 3_000
    producer.send(b"later", deliver_at=due_ms)
    producer.send(b"now")
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == b"now"
    assert consumer.receive(timeout_millis=RECEIVE_MS).data() == b"later"
    assert time.time() * 1000 >= due_ms
