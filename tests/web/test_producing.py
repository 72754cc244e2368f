"""Producers over WebSocket: every field of a message, answers in order, batches, partitions, and what goes wrong."""
import base64
import json
import time
import urllib.request

import pulsar
import pytest

from ..harness import HANG_MS, partitioned_topic, path_of, request, unique_topic


def test_a_message_comes_with_all_that_was_said(sockets):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s")
    place = sockets.producer(topic).publish(
        b"\x00\xff", key=7, properties={"a": "b", "n": 1.5}, eventTime="2024-02-03T04:05:06.700+01:00", context="c")
    message = consumer.message()
    assert message["messageId"] == place and message["data"] == b"\x00\xff" and message["key"] == "7"
    assert message["properties"] == {"a": "b", "n": "1.5"} and message["eventTime"] == "2024-02-03T03:05:06.7Z"
    assert message["redeliveryCount"] == 0 and message["publishTime"].endswith("Z")
    plain = sockets.producer(topic).publish(b"")
    assert {"messageId", "payload", "properties", "publishTime", "redeliveryCount", "data"} == set(consumer.message())
    assert plain != place


@pytest.mark.parametrize(("text", "number"), [
    ("", 3), ("[]", 3), ("x", 3), ('"x"', 3), ("{}", 7), ('{"payload":null}', 7), ('{"payload":"!"}', 7),
    ('{"payload":"eA=="  ', 3), ('{"payload":"eA==","properties":[1]}', 3), ('{"payload":"eA==","key":{}}', 3),
    ('{"payload":"eA==","eventTime":5}', 7), ('{"payload":"eA==","eventTime":"soon"}', 7),
    ('{"payload":"eA==","deliverAt":"x"}', 3), ('{"payload":{}}', 3), ('{"payload":"eA==","key":"\\ud800"}', 3),
    ("[" * 100_000, 3),
])
def test_a_wrong_text_has_its_error_and_the_connection_stays(sockets, text, number):
    producer = sockets.producer(unique_topic())
    producer.text(text)
    answer = producer.receive()
    assert answer["result"] == f"send-error:{number}" and answer["errorMsg"] and "context" not in answer
    assert producer.publish(b"x", context="1")


@pytest.mark.parametrize(("fields", "result"), [
    ({"payload": 5}, "send-error:7"), ({"payload": 1.5}, "send-error:7"), ({}, "send-error:7"),
    ({"payload": None}, "send-error:7"), ({"payload": "!"}, "send-error:7"), ({"payload": True}, "ok"),
    ({"payload": "eA==", "eventTime": 5}, "send-error:7"), ({"payload": "eA==", "key": 5}, "ok"),
    ({"payload": ["eA=="]}, "send-error:3"), ({"payload": "eA==", "properties": 5}, "send-error:3"),
    ({"payload": "eA==", "properties": []}, "send-error:3"),
    ({"payload": "eA==", "uncompressedMessageSize": "x"}, "send-error:3"),
    ({"payload": "eA==", "uncompressedMessageSize": "7"}, "ok"),
    ({"payload": "eA==", "compressionType": {}}, "send-error:3"),
    ({"payload": "eA==", "encryptionParam": []}, "send-error:3"),
    ({"payload": "eA==", "deliverAt": []}, "send-error:3")])
def test_an_answer_has_the_context_unless_a_field_has_no_type_of_its_own(sockets, fields, result):
    """As in Pulsar numbers and truth values are texts, and a text with a field of another type was not read at all."""
    producer = sockets.producer(unique_topic())
    producer.send(context="c", **fields)
    answer = producer.receive()
    assert (answer["result"], answer.get("context")) == (result, None if result == "send-error:3" else "c")


def test_a_message_says_to_which_clusters_it_goes(sockets, broker):
    """Messages that go to other clusters than those before them do not join these in an entry."""
    topic = unique_topic()
    producer = sockets.producer(topic, batchingEnabled="true", batchingMaxPublishDelay="2000")
    sockets.consumer(topic, "s")
    for clusters in (["far", "near"], ["far", "near"], ["__local__"], []):
        producer.send(payload="eA==", replicationClusters=clusters)
    assert [producer.receive()["result"] for _ in range(4)] == ["ok"] * 4
    base = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/subscription/s/position"
    told = [urllib.request.urlopen(f"{base}/{entry}").headers.get_all("X-Pulsar-replicated-to") for entry in (1, 2, 3)]
    assert told == [["far", "near"], ["__local__"], None]


def test_answers_come_in_the_order_of_texts_with_errors_between(sockets):
    producer = sockets.producer(unique_topic(), batchingEnabled="true")
    for number in range(20):
        producer.send(payload="!" if number % 5 == 4 else "eA", context=str(number))      # padding is optional
    answers = [producer.receive() for _ in range(20)]
    assert [answer["context"] for answer in answers] == [str(number) for number in range(20)]
    assert [answer["result"] for answer in answers] == (["ok"] * 4 + ["send-error:7"]) * 4


def test_batches_are_entries_and_each_message_has_its_id(sockets):
    topic = unique_topic()
    producer = sockets.producer(topic, batchingEnabled="true", batchingMaxMessages="3", batchingMaxPublishDelay="5000")
    for _ in range(6):
        producer.send(payload="eA==")
    places = [base64.b64decode(producer.receive()["messageId"]) for _ in range(6)]
    assert len(set(places)) == 6
    entries = [place.partition(b"\x20")[0] for place in places]      # up to the index in the batch
    assert len(set(entries)) == 2 and entries[:3] == entries[:1] * 3


@pytest.mark.parametrize("codec", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_payloads_are_compressed_for_every_client(sockets, codec):
    topic = unique_topic()
    reader = sockets.reader(topic, messageId="earliest")
    sockets.producer(topic, compressionType=codec).publish(b"compressible " * 100)
    assert reader.message()["data"] == b"compressible " * 100


def test_a_key_goes_to_the_partition_of_its_hash(sockets, broker):
    topic = partitioned_topic(broker.http_url, 4)
    producer = sockets.producer(topic)
    for key in ("a", "b", "c", "d"):
        producer.publish(key.encode(), key=key)
    for key in ("a", "b", "c", "d"):
        partition = f"{topic}-partition-{ord(key) % 4}"      # String.hashCode() of one letter is the letter
        messages = sockets.reader(partition, messageId="earliest")
        assert messages.message()["data"] == key.encode()


def test_round_robin_uses_all_partitions_and_single_one(sockets, broker):
    for mode, used in (("RoundRobinPartition", 3), ("SinglePartition", 1)):
        topic = partitioned_topic(broker.http_url, 3)
        producer = sockets.producer(topic, messageRoutingMode=mode)
        places = [base64.b64decode(producer.publish(b"x")) for _ in range(6)]
        assert len({place.partition(b"\x18")[2][:1] for place in places}) == used


def test_sequence_ids_and_names_are_those_of_the_address(sockets, broker):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s")
    sockets.producer(topic, producerName="me", initialSequenceId="41").publish(b"x")
    consumer.message()
    peeked = request("GET", f"{broker.http_url}/ops/v1/messages/{path_of(topic)}")[1]
    assert '"me"' in peeked and "42" in peeked


def test_a_message_may_wait_for_its_time(sockets):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", subscriptionType="Shared")
    producer, now = sockets.producer(topic), time.time()
    producer.publish(b"later", deliverAfterMs=700)
    producer.publish(b"at", deliverAt=int(now * 1000) + 300)
    producer.publish(b"now", deliverAfterMs=-1)
    assert [consumer.message()["data"] for _ in range(3)] == [b"now", b"at", b"later"]


def test_a_client_may_encrypt_by_itself(sockets, broker):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", cryptoFailureAction="CONSUME")
    failing = sockets.consumer(topic, "fails")
    discarding = sockets.consumer(topic, "discards", cryptoFailureAction="DISCARD")
    keys = {"k": {"keyValue": base64.b64encode(b"secret").decode(), "metadata": {"v": "1"}}}
    own = sockets.producer(topic, encryptionKeys=base64.b64encode(json.dumps(keys).encode()).decode())
    own.publish(b"cipher", encryptionParam=base64.b64encode(b"iv").decode(), compressionType="LZ4",
                uncompressedMessageSize=99)
    own.send(payload="eA==", compressionType="LZ4")
    assert own.receive()["result"] == "send-error:7"
    message = consumer.message()
    assert message["data"] == b"cipher" and message["encryptionContext"] == {
        "keys": {"k": {"keyValue": keys["k"]["keyValue"], "metadata": {"v": "1"}}},
        "param": base64.b64encode(b"iv").decode(), "compressionType": "LZ4", "uncompressedMessageSize": 99,
        "batchSize": None}
    for said, size in (({}, 6), ({"compressionType": "NONE", "uncompressedMessageSize": 0}, 6),
                       ({"compressionType": "NONE", "uncompressedMessageSize": 9}, 9)):
        own.publish(b"cipher", **said)
        told = consumer.message()["encryptionContext"]
        assert (told["compressionType"], told["uncompressedMessageSize"]) == ("NONE", size)
    sockets.producer(topic).publish(b"plain")
    assert failing.message()["data"] == discarding.message()["data"] == b"plain"


def test_other_clients_read_it(sockets, broker):
    topic = unique_topic()
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(topic, "s")
        producer = sockets.producer(topic, batchingEnabled="true", compressionType="ZSTD")
        for number in range(3):
            producer.send(payload=base64.b64encode(b"%d" % number).decode(), key="k", properties={"p": "1"})
        messages = [consumer.receive(HANG_MS) for _ in range(3)]
        assert [(message.data(), message.partition_key(), message.properties()) for message in messages] == \
            [(b"%d" % number, "k", {"p": "1"}) for number in range(3)]
    finally:
        client.close()


def test_an_unload_and_a_deletion_are_survived(sockets, broker):
    topic = unique_topic()
    producer, place = sockets.producer(topic), f"{broker.http_url}/admin/v2/{path_of(topic)}"
    producer.publish(b"1")
    assert request("PUT", f"{place}/unload")[0] == 204
    producer.publish(b"2")
    assert request("DELETE", f"{place}?force=true")[0] == 204
    assert producer.publish(b"3")
