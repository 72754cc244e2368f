"""`geminga produce`: the real client receives what the command published, and the command tells what it did."""
import base64
import contextlib
import json
import signal
import subprocess
import time

import pulsar
import pytest
from google.protobuf import descriptor_pb2, message_factory
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from geminga.storage.schemas import protobuf_rules
from geminga.workers.pulsar_client import key_hashing

from ..harness import HANG_SECONDS, eventually, partitioned_topic, request, unique_topic
from ..supervisor.test_serve import GEMINGA
from .test_administration import topic_url
from .test_python_client import COMPRESSIONS, RECEIVE_MS


def produce(broker, *arguments, stdin=b"", command="produce"):
    """Run the command; return (exit status, output, lines of complaint)."""
    done = subprocess.run([GEMINGA, command, "--url", broker.service_url, *map(str, arguments)], input=stdin,
                          capture_output=True, timeout=HANG_SECONDS, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode().splitlines()


@contextlib.contextmanager
def received(client, topic, count, **how):
    """The first `count` messages of a topic, in order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, **how)
    yield [reader.read_next(RECEIVE_MS) for _ in range(count)]
    reader.close()


def of_topic(client, topic, count, **how):
    with received(client, topic, count, **how) as messages:
        return messages


def id_of(message):
    at = message.message_id()
    return f"{at.ledger_id()}:{at.entry_id()}" + (f":{at.batch_index()}" if at.batch_index() >= 0 else "")


def payloads(messages):
    return [message.data() for message in messages]


def is_absent(broker, topic):
    """Tell whether the topic does not exist."""
    return request("GET", topic_url(broker, topic, "stats"))[0] == 404


# -- where messages come from

@pytest.mark.parametrize("command", ["produce", "publish"])
def test_arguments_are_messages_and_their_ids_are_printed(broker, client, command):
    topic = unique_topic("arguments")
    status, printed, complaints = produce(broker, topic, "one", "", "drei ü", command=command)
    messages = of_topic(client, topic, 3)
    assert (status, complaints) == (0, []) and payloads(messages) == [b"one", b"", "drei ü".encode()]
    assert printed.splitlines() == [f"published {id_of(message)}" for message in messages]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_lines_of_standard_input_are_messages_in_batches(broker, client, compression):
    topic, lines = unique_topic("lines"), [b"line %d" % number for number in range(2_500)]
    lines[7:9] = [b"", b"\xff not UTF-8\r"]
    status, printed, complaints = produce(broker, topic, "--compression", compression, stdin=b"\n".join(lines))
    messages = of_topic(client, topic, len(lines))
    assert (status, complaints) == (0, []) and payloads(messages) == lines
    assert printed.startswith("published 2,500 messages (") and printed.endswith("/s\n") and printed.count("\n") == 1
    assert max(message.message_id().batch_index() for message in messages) == 999


def test_few_lines_print_their_ids_and_other_forms_print_all(broker, client):
    topic = unique_topic("few")
    status, printed, _ = produce(broker, topic, "-", "last", stdin=b"a\nb\n")
    messages = of_topic(client, topic, 3)
    assert status == 0 and payloads(messages) == [b"a", b"b", b"last"]
    assert printed.splitlines() == [f"published {id_of(message)}" for message in messages]
    status, printed, _ = produce(broker, topic, "-o", "jsonl", stdin=b"x\n" * 100)
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["id"] for row in rows] == [id_of(message) for message in of_topic(client, topic, 103)[3:]]
    assert [row["sequenceId"] for row in rows] == list(range(100))
    for form in ("json", "yaml"):
        assert produce(broker, topic, "-o", form, "z")[1].count("sequenceId") == 1
    assert produce(broker, topic, "-q", "z")[1].startswith("published 1 message (1 B) in ")


def test_files_are_messages_whole_or_by_lines_as_often_as_asked(broker, client, tmp_path):
    topic, file, lines = unique_topic("files"), tmp_path / "file", tmp_path / "lines"
    file.write_bytes(b"a\nwhole \0 file\n")
    lines.write_bytes(b"one\ntwo\n")
    status, printed, _ = produce(broker, topic, "word", "--file", file, "--lines", lines, "--lines", lines,
                                 "--count", 2)
    once = [b"word", file.read_bytes(), b"one", b"two", b"one", b"two"]
    assert status == 0 and payloads(of_topic(client, topic, 12)) == once * 2
    assert printed.count("published ") == 12


def test_arguments_are_sent_as_often_as_asked(broker, client):
    topic = unique_topic("often")
    status, printed, _ = produce(broker, topic, "a", "b", "c", "--count", 1_000)
    assert status == 0 and payloads(of_topic(client, topic, 3_000)) == [b"a", b"b", b"c"] * 1_000
    assert printed.startswith("published 3,000 messages (2.9 KiB) in ")


def test_a_line_is_published_when_it_comes_and_not_when_the_input_ends(broker, client):
    topic = unique_topic("piped")
    with client_of_pipe(broker, topic, "-o", "jsonl") as process:
        for number in range(3):
            process.stdin.write(b"line %d\n" % number)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["sequenceId"] == number
        assert payloads(of_topic(client, topic, 3)) == [b"line 0", b"line 1", b"line 2"]
        process.stdin.close()
        assert process.wait(HANG_SECONDS) == 0


@contextlib.contextmanager
def client_of_pipe(broker, *arguments):
    process = subprocess.Popen([GEMINGA, "produce", "--url", broker.service_url, *arguments], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


# -- what messages have

def test_messages_have_key_properties_and_times(broker, client):
    topic = unique_topic("having")
    status, _, _ = produce(broker, topic, "-k", "customer 7", "-p", "a=1", "-p", "b=x=y", "-p", "c=", "--event-time",
                           "2026-01-31T12:00:00Z", "--producer", "shop", "--sequence-id", 5, "x", "y", "--batch", 10)
    messages = of_topic(client, topic, 2)
    assert status == 0 and [message.message_id().batch_index() for message in messages] == [0, 1]
    for message in messages:
        assert (message.partition_key(), message.properties(), message.event_timestamp(), message.producer_name()) == (
            "customer 7", {"a": "1", "b": "x=y", "c": ""}, 1_769_860_800_000, "shop")


def test_json_lines_say_for_each_message_what_it_has(broker, client):
    topic = unique_topic("jsonl")
    rows = [
        {"payload": "text ü", "key": "k", "properties": {"a": "b"}, "eventTime": "2026-01-31T12:00:00Z", "id": "9:9",
         "publishTime": "2026-01-31T12:00:00Z", "sequenceId": 77, "producer": "p", "deliverAt": None, "unknown": []},
        {"payloadBase64": base64.b64encode(b"\0\xff").decode(), "orderingKey": base64.b64encode(b"o").decode(),
         "eventTime": 5},
        {"payload": "", "isNull": True, "key": "deleted"},
        {"payload": "", "properties": {}},
    ]
    status, printed, complaints = produce(broker, topic, "--jsonl", "-", "-p", "c=d", "-k", "default",
                                          stdin="\n".join(map(json.dumps, rows)).encode())
    messages = of_topic(client, topic, 4)
    assert (status, complaints) == (0, []) and payloads(messages) == ["text ü".encode(), b"\0\xff", b"", b""]
    assert [message.partition_key() for message in messages] == ["k", "default", "deleted", "default"]
    assert [message.properties() for message in messages] == [{"c": "d", "a": "b"}, *[{"c": "d"}] * 3]
    assert [message.event_timestamp() for message in messages] == [1_769_860_800_000, 5, 0, 0]
    assert [message.ordering_key() for message in messages] == ["", "o", "", ""]
    assert printed.count("published ") == 4


WRONG = {
    "no json": "it is no JSON: Expecting value", "[1]": "it is no JSON object",
    "{}": "it has none of the fields payload",
    '{"payload": 1}': "payload: it is no text", '{"payloadBase64": "?"}': "payloadBase64: it is not in base64",
    '{"payload": "x", "key": 5}': "key: it is no text",
    '{"payload": "x", "orderingKey": "?"}': "orderingKey: it is not",
    '{"payload": "x", "properties": {"a": 1}}': "properties.a: it is no text",
    '{"payload": "x", "properties": []}': "properties: it is no object",
    '{"payload": "x", "eventTime": "soon"}': "eventTime: 'soon' is not a time",
    '{"payload": "x", "eventTime": -1}': "eventTime: -1 is no time",
    '{"payload": null}': "it has none of the fields",
    '{"payload": "x", "deliverAt": {}}': "deliverAt: {} is no time",
    '{"payload": "x", "deliverAfter": "soon"}': "deliverAfter: 'soon' is not a time",
    '{"payload": "x", "isEncrypted": true}': "isEncrypted: only the producer",
    '{"value": {"a": 1}}': "value: --schema says how", '{"payload": "\\ud800"}': "payload: it has half of a character",
    '{"payload": NaN}': "it is no JSON: NaN", "[" * 100_000: "it is no JSON: ",
}


def test_wrong_messages_are_named_by_number_and_field_and_others_are_published(broker, client):
    topic = unique_topic("wrong")
    lines = [line for wrong in WRONG for line in (wrong, '{"payload": "right"}')]
    status, _, complaints = produce(broker, topic, "--jsonl", "-", stdin="\n".join(lines).encode())
    assert (status, len(complaints)) == (1, len(WRONG))
    for number, (complaint, why) in enumerate(zip(complaints, WRONG.values(), strict=True)):
        assert complaint.startswith(f"geminga: message {2 * number + 1} is not published: {why}"), complaint
    assert payloads(of_topic(client, topic, len(WRONG))) == [b"right"] * len(WRONG)


def test_of_many_wrong_messages_a_few_are_printed(broker):
    status, printed, complaints = produce(broker, unique_topic("wrong"), "--jsonl", "-", stdin=b"wrong\n" * 1_000)
    assert (status, printed, len(complaints)) == (1, "", 21)
    assert complaints[-1] == "geminga: 980 more messages are not published"


def test_a_message_that_is_too_large_is_refused_alone_unless_compression_makes_it_small(broker, client, tmp_path):
    topic, large = unique_topic("large"), tmp_path / "large"
    large.write_bytes(b"x" * (6 << 20))
    status, printed, complaints = produce(broker, topic, "--file", large, "before")
    assert (status, printed.count("published"), len(complaints)) == (1, 1, 1)
    assert complaints[0] == "geminga: message 2 is not published: it has 6291456 bytes, and the broker takes 5242880"
    assert produce(broker, topic, "--file", large, "--compression", "zstd")[0] == 0
    assert payloads(of_topic(client, topic, 2)) == [b"before", large.read_bytes()]


def test_messages_are_delivered_at_their_time(broker, client):
    topic = unique_topic("delayed")
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
    began = time.time()
    at = (time.time_ns() // 1_000_000) + 1_200
    assert produce(broker, topic, "after", "--deliver-after", "900ms")[0] == 0
    assert produce(broker, topic, "at", "--deliver-at", at)[0] == 0
    rows = [{"payload": "json", "deliverAfter": "1s"}, {"payload": "now"}]
    assert produce(broker, topic, "--jsonl", "-", stdin="\n".join(map(json.dumps, rows)).encode())[0] == 0
    came = {}
    for _ in range(4):
        message = consumer.receive(RECEIVE_MS)
        came[message.data()] = time.time() - began
    assert came.keys() == {b"now", b"after", b"at", b"json"}
    assert came[b"after"] >= 0.9 and came[b"at"] >= at / 1_000 - began and came[b"json"] >= 1


def test_messages_are_published_at_the_rate(broker, client):
    topic = unique_topic("rate")
    assert produce(broker, topic, "--rate", "20/s", stdin=b"x\n" * 11)[0] == 0
    times = [message.publish_timestamp() for message in of_topic(client, topic, 11)]
    assert times[-1] - times[0] >= 490


# -- partitions

@pytest.mark.parametrize(("hashing", "scheme"), [("murmur3", key_hashing.murmur3), ("java", key_hashing.java),
                                                 ("go", key_hashing.go), ("boost", key_hashing.boost)])
def test_a_key_has_its_partition_by_the_hash_of_a_client(broker, client, hashing, scheme):
    topic, keys = partitioned_topic(broker.http_url, 4), [f"key {number} ü" for number in range(30)]
    rows = "\n".join(json.dumps({"payload": key, "key": key}) for key in keys)
    status, printed, _ = produce(broker, topic, "--jsonl", "-", "--hash", hashing, "-o", "json", stdin=rows.encode())
    assert status == 0 and {row["partition"] for row in json.loads(printed)} == {0, 1, 2, 3}
    for number in range(4):
        wanted = [key for key in keys if scheme(key) % 4 == number]
        messages = of_topic(client, f"{topic}-partition-{number}", len(wanted))
        assert [message.partition_key() for message in messages] == wanted


def test_messages_without_a_key_go_to_partitions_in_turn_or_to_the_one_that_is_asked_for(broker, client):
    topic = partitioned_topic(broker.http_url, 3)
    status, printed, _ = produce(broker, topic, *range(9))
    assert status == 0 and sorted(line[-1] for line in printed.splitlines()) == list("000111222")
    assert [len(of_topic(client, f"{topic}-partition-{number}", 3)) for number in range(3)] == [3] * 3
    status, printed, _ = produce(broker, topic, "x", "y", "--partition", 1)
    assert status == 0 and all(line.endswith(" to partition 1") for line in printed.splitlines())
    assert payloads(of_topic(client, f"{topic}-partition-1", 5))[3:] == [b"x", b"y"]
    status, printed, complaints = produce(broker, topic, "x", "--partition", 3)
    assert (status, printed) == (2, "")
    assert complaints == [f"geminga: there is no partition 3: {topic} has partitions 0 to 2"]
    alone = unique_topic("alone")
    assert produce(broker, alone, "x", "--partition", 0)[2] == [
        f"geminga: there is no partition 0: {alone} is not partitioned"]
    assert is_absent(broker, alone)


def test_messages_of_one_batch_have_one_key(broker, client):
    """A Key_Shared subscription gives a batch to one consumer: that of its key."""
    topic, keys = unique_topic("keyed"), ["a", "a", "b", "a", "a", "a"]
    rows = "\n".join(json.dumps({"payload": "x", "key": key}) for key in keys)
    assert produce(broker, topic, "--jsonl", "-", stdin=rows.encode())[0] == 0
    entries = {}
    for message in of_topic(client, topic, len(keys)):
        entries.setdefault(message.message_id().entry_id(), []).append(message.partition_key())
    assert list(entries.values()) == [["a", "a"], ["b"], ["a", "a", "a"]]


# -- schemas

class Order(Record):
    item = String()
    count = Integer()


def json_of(**fields):
    return json.dumps(fields)


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_values_are_encoded_by_the_topics_newest_schema(broker, client, kind):
    topic = unique_topic("typed")
    client.create_producer(topic, schema=kind(Order)).close()
    status, _, complaints = produce(broker, topic, "--schema", json_of(item="tea", count=3), json_of(item="milk"),
                                    json_of(item="tea", count="3"), json_of(itme="tea"), "no json")
    assert (status, complaints) == (1, [
        'geminga: message 3 is not published: count: "3" is not a whole number of the type int',
        "geminga: message 4 is not published: itme: the schema has no such field. Did you mean item?",
        "geminga: message 5 is not published: it is no JSON: Expecting value: line 1 column 1 (char 0)"])
    rows = [{"value": {"item": "x", "count": None}, "payloadBase64": "AAAA", "key": "k"},
            {"value": {"item": "y"}, "payload": "other"}]
    assert produce(broker, topic, "--schema", "--jsonl", "-", stdin="\n".join(map(json.dumps, rows)).encode())[0] == 0
    with received(client, topic, 4, schema=kind(Order)) as messages:
        assert [(one.value().item, one.value().count) for one in messages] == [
            ("tea", 3), ("milk", None), ("x", None), ("y", None)]
        assert {one.schema_version() for one in messages} == {"\0" * 8}


def test_a_schema_file_adds_a_schema(broker, client, tmp_path):
    topic, file = unique_topic("new"), tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(Order.schema()), "properties": {}}))
    assert produce(broker, topic, "--schema-file", file, json_of(item="a", count=1))[0] == 0
    assert produce(broker, topic, "--schema", json_of(item="b", count=2))[0] == 0
    assert [one.value().count for one in of_topic(client, topic, 2, schema=AvroSchema(Order))] == [1, 2]
    for content, why in (("no json", "it is no JSON"), ("[]", "it is no object"),
                         ('{"type": "AVRO", "schema": "x"}', "Invalid schema definition data for AVRO schema"),
                         ('{"type": "OTHER", "schema": ""}', "No schema type 'OTHER'")):
        file.write_text(content)
        status, _, complaints = produce(broker, topic, "--schema-file", file, "x")
        assert status == 2 and f"{file}: {why}" in complaints[-1]


def test_texts_and_topics_without_a_schema(broker, client):
    topic = unique_topic("texts")
    client.create_producer(topic, schema=StringSchema()).close()
    assert produce(broker, topic, "--schema", 'plain "text"', "5")[0] == 0
    assert [one.value() for one in of_topic(client, topic, 2, schema=StringSchema())] == ['plain "text"', "5"]
    without = unique_topic("without")
    status, printed, complaints = produce(broker, without, "--schema", "x")
    assert (status, printed, len(complaints)) == (1, "", 1)
    assert complaints[0].endswith(f"{without} has no schema: --schema-file adds one")
    assert is_absent(broker, without)


def test_protobuf_is_encoded_by_the_descriptor_of_the_schema(broker, client, tmp_path):
    topic, file = unique_topic("protobuf"), tmp_path / "schema.json"
    own = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    order = own.message_type.add(name="Order")
    order.field.add(name="item", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING, label=1)
    order.field.add(name="count", number=2, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT32, label=1)
    files = descriptor_pb2.FileDescriptorSet(file=[own])
    definition = json.dumps({"fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
                             "rootMessageTypeName": "shop.Order", "rootFileDescriptorName": "order.proto"})
    file.write_text(json.dumps({"type": "PROTOBUF_NATIVE", "schema": definition}))
    status, _, complaints = produce(broker, topic, "--schema-file", file, json_of(item="tea", count=3),
                                    json_of(count="many"), json_of(other=1))
    assert status == 1 and len(complaints) == 2
    assert "message 2 is not published" in complaints[0] and "count" in complaints[0]
    assert "message 3 is not published" in complaints[1] and "other" in complaints[1]
    made = message_factory.GetMessageClass(protobuf_rules.parse(definition.encode()))
    [message] = of_topic(client, topic, 1)
    assert made.FromString(message.data()) == made(item="tea", count=3)


# -- topics and connections

def test_a_new_topic_with_a_name_like_another_is_noted(broker):
    topic = unique_topic("customers")
    assert produce(broker, topic, "x")[2] == []
    assert produce(broker, topic.replace("customers", "custmers"), "x")[2] == [
        f"geminga: {topic.replace('customers', 'custmers')} did not exist before.  Did you mean {topic}?"]
    assert produce(broker, topic.replace("customers", "custmers"), "x")[2] == []


def test_a_name_again_continues_its_sequence_and_duplicates_are_told(broker, client):
    topic = unique_topic("sequence")
    assert produce(broker, topic, "--producer", "n", "0")[0] == 0
    assert request("POST", topic_url(broker, topic, "deduplicationEnabled"), b"true")[0] == 204
    eventually(lambda: request("GET", topic_url(broker, topic, "deduplicationEnabled"))[1] == "true")
    assert sequence_ids(produce(broker, topic, "--producer", "n", "-o", "json", "1", "2")) == [0, 1]
    assert sequence_ids(produce(broker, topic, "--producer", "n", "-o", "json", "3")) == [2]
    status, printed, _ = produce(broker, topic, "--producer", "n", "--sequence-id", 2, "3 again", "4")
    assert status == 0 and payloads(of_topic(client, topic, 5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert printed.splitlines()[0] == "not published: the broker has sequence id 2 of this producer already"
    _, printed, _ = produce(broker, topic, "--producer", "n", "--sequence-id", 0, "-q", "1", "2")
    assert printed.startswith("published 0 messages (0 B)")
    assert printed.endswith("; the broker had 2 messages already\n")


def sequence_ids(produced):
    return [row["sequenceId"] for row in json.loads(produced[1])]


def test_a_connection_that_breaks_is_told_with_what_is_stored(fresh_broker):
    with client_of_pipe(fresh_broker, "broken", "-o", "jsonl") as process:
        process.stdin.write(b"1\n2\n3\n")
        process.stdin.flush()
        assert [json.loads(process.stdout.readline())["sequenceId"] for _ in range(3)] == [0, 1, 2]
        fresh_broker.kill_supervisor()
        process.stdin.write(b"4\n")
        process.stdin.close()
        assert process.wait(HANG_SECONDS) == 1
        said = process.stderr.read().decode()
        assert said.count("\n") == 1 and "3 messages stored, 1 sent without an answer" in said


def test_a_refusal_is_told_with_what_is_stored(broker):
    topic = unique_topic("ended")
    assert produce(broker, topic, "x")[0] == 0
    with client_of_pipe(broker, topic, "-o", "jsonl") as process:
        process.stdin.write(b"1\n")
        process.stdin.flush()
        process.stdout.readline()
        assert request("POST", topic_url(broker, topic, "terminate"))[0] == 200
        process.stdin.write(b"2\n")
        process.stdin.close()
        assert process.wait(HANG_SECONDS) == 1
        said = process.stderr.read().decode()
        assert "closed the producer" in said or "TopicTerminatedError" in said
        assert said.endswith("; 1 message stored, 1 sent without an answer\n") and said.count("\n") == 1
    status, printed, complaints = produce(broker, topic, "x")
    assert (status, printed, len(complaints)) == (1, "", 1) and "TopicTerminatedError" in complaints[0]


def test_an_interrupt_is_told_with_what_is_stored(broker):
    with client_of_pipe(broker, unique_topic("interrupted"), "-o", "jsonl") as process:
        process.stdin.write(b"1\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_SECONDS) == 1
        assert process.stderr.read() == b"geminga: interrupted: 1 message stored, 0 sent without an answer\n"


def test_messages_of_topics_that_store_nothing_have_no_ids(broker):
    topic = unique_topic("passing").replace("persistent://", "non-persistent://")
    assert produce(broker, topic, "x", "y")[:2] == (0, "published\npublished\n")
    assert json.loads(produce(broker, topic, "x", "-o", "json")[1]) == [{"id": None, "sequenceId": 0}]


@pytest.mark.parametrize(("arguments", "why"), [
    (["t", "x", "--rate", "0"], "'0' is not a rate"), (["t", "x", "--rate", "many"], "'many' is not a rate"),
    (["t", "x", "-p", "a"], "'a' is not NAME=VALUE"), (["t", "x", "--event-time", "soon"], "'soon' is not a time"),
    (["t", "x", "--deliver-after", "-5"], "'-5' is not a time to come"),
    (["t", "--lines", "{folder}/absent"], "does not exist"),
    (["t", "x", "--deliver-after", "5", "--deliver-at", "5"], "--deliver-after or --deliver-at"),
    (["t", "--count", "2"], "--count needs arguments or files"), (["t", "-", "--jsonl", "-"], "can be read once"),
    (["t", "x", "--schema", "--schema-file", GEMINGA], "--schema, or --schema-file"),
    (["t", "x", "--batch", "0"], "0 is not in the range"), (["t\udcff", "x"], "is not UTF-8"),
    (["t", "x", "-k", "\udcff"], "is not UTF-8"), (["t", "x", "-p", "a=\udcff"], "is not UTF-8"),
    (["t", "x", "--producer", "\udcff"], "is not UTF-8"), ([], "Missing argument 'TOPIC'"),
])
def test_wrong_usage_is_told(broker, tmp_path, arguments, why):
    words = [str(word).replace("{folder}", str(tmp_path)) for word in arguments]
    status, printed, complaints = produce(broker, *words)
    assert (status, printed) == (2, "") and why in complaints[-1]


def test_nothing_is_published_without_messages(broker):
    assert produce(broker, unique_topic("nothing"))[:2] == (0, "")
