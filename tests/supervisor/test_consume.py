"""`geminga consume` on a real broker, with messages of the real client: what is printed, and what is acknowledged."""
import asyncio
import contextlib
import json
import re
import signal
import struct
import subprocess
import time

import pulsar
import pytest
import yaml
from google.protobuf.timestamp_pb2 import Timestamp
from pulsar.schema import AvroSchema, Integer, JsonSchema, ProtobufNativeSchema, Record, String, StringSchema

from geminga.proto import pulsar_api_pb2 as api
from geminga.workers.pulsar_client import client, consumers
from geminga.workers.pulsar_client.connection import ClientError

from ..clients.test_administration import topic_url
from ..clients.test_key_values import compact
from ..harness import HANG_SECONDS, eventually, partitioned_topic, request, unique_topic
from ..proto.client_frames import T, entry_of, message_metadata, send
from ..workers.peer import Peer
from .test_read import topics_of
from .test_serve import GEMINGA, run

pytestmark = pytest.mark.slow

SECONDS = HANG_SECONDS


@pytest.fixture(scope="module")
def clients(broker):
    made = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@pytest.fixture
def fill(clients):
    """fill(topic, payloads, in_batch=False, **of each message): publishes them."""
    def fill(topic, payloads, in_batch=False, **fields):
        producer = clients.create_producer(topic, batching_enabled=in_batch, batching_max_publish_delay_ms=1_000,
                                           block_if_queue_full=True)
        for payload in payloads:
            producer.send_async(payload.encode(), lambda *_: None, **fields)
        producer.flush()
        producer.close()
    return fill


def consume(broker, *words):
    """Run `geminga consume`; return (exit status, lines printed, lines of complaint)."""
    status, printed, complaints = run("consume", "--url", broker.service_url, *words)
    return status, printed.splitlines(), complaints


@contextlib.contextmanager
def consuming(broker, *words):
    """A `geminga consume` that goes on while the block runs; its output is a pipe."""
    process = subprocess.Popen([GEMINGA, "consume", "--url", broker.service_url, *map(str, words)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stats_of(broker, topic):
    return json.loads(request("GET", topic_url(broker, topic, "stats"))[1])


def backlog(broker, topic, subscription):
    return stats_of(broker, topic)["subscriptions"][subscription]["msgBacklog"]


def names(first, end):
    return [f"message {number}" for number in range(first, end)]


# -- forms

@pytest.fixture
def told(broker, clients):
    """A topic with one message that has everything, in a batch of two; the second has nothing."""
    topic = unique_topic("told")
    producer = clients.create_producer(topic, "teller", batching_enabled=True, batching_max_publish_delay_ms=1_000)
    producer.send_async(b"first", lambda *_: None, partition_key="k\n1", ordering_key="o", properties={"a": "b"},
                        event_timestamp=1_000)
    producer.send_async(b"\xff\x00", lambda *_: None)
    producer.flush()
    producer.close()
    return topic


def test_whole_messages_are_told_to_programs_in_three_forms(broker, told):
    status, lines, complaints = consume(broker, told, "-o", "jsonl")
    first, second = map(json.loads, lines)
    assert (status, complaints) == (0, []) and re.fullmatch(r"\d+:0:0", first.pop("id"))
    assert re.fullmatch(r"20..-..-..T..:..:..\.\d{3}Z", first.pop("publishTime"))
    assert first == {"topic": told, "eventTime": "1970-01-01T00:00:01.000Z", "producer": "teller", "sequenceId": 0,
                     "key": "k\n1", "orderingKey": "bw==", "properties": {"a": "b"}, "payload": "first"}
    assert (second["payloadBase64"], second["properties"]) == ("/wA=", {})
    for form, parse in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert parse("\n".join(consume(broker, told, "-o", form)[1])) == [*map(json.loads, lines)]
        assert parse("\n".join(consume(broker, told, "-o", form, "--key", "none")[1])) == []


def test_columns_stand_before_the_payload_on_wish(broker, told):
    assert consume(broker, told)[1] == ["first", "\\xff\0"]
    first, second = consume(broker, told, "--hex", "--show", "all")[1]
    topic, position, times, *rest = first.split("\t")
    assert (topic, rest) == (told, [r"k\n1", "a=b", "first"]) and position.endswith(":0:0")
    assert re.fullmatch(r"\S+Z,event=1970-01-01T00:00:01.000Z", times) and second.endswith("\t-\t-\tff00")
    assert consume(broker, told, "--show", "key")[1] == ["k\\n1\tfirst", "-\t\\xff\0"]
    heading, first, _ = consume(broker, told, "-o", "table", "--show", "key,properties")[1]
    assert heading.split() == ["KEY", "PROPERTIES", "PAYLOAD"] and first.split() == [r"k\n1", "a=b", "first"]
    assert heading.index("PAYLOAD") == first.index("first")


def test_messages_are_chosen_by_their_fields(broker, fill):
    topic = unique_topic("chosen")
    fill(topic, names(0, 5), True, partition_key="one")
    fill(topic, names(5, 9), partition_key="two", properties={"kind": "late"})
    assert consume(broker, topic, "--key", "t*")[1] == names(5, 9)
    assert consume(broker, topic, "--property", "kind=late", "--grep", "[67]$")[1] == names(6, 8)
    assert consume(broker, topic, "--where", "key == 'one' && ends_with(payload, '3')")[1] == names(3, 4)
    assert consume(broker, topic, "--since", "-1h", "-n", "2")[1] == names(0, 2)
    assert consume(broker, topic, "--until", "-1h")[:2] == (0, [])


# -- schemas

class Order(Record):
    item = String()
    count = Integer()


class Priced(Record):
    item = String()
    count = Integer()
    price = Integer(default=7, required=True, required_default=True)


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_records_are_printed_as_values_by_the_version_that_wrote_them(broker, clients, kind):
    topic = unique_topic("typed")
    for record in (Order(item="a", count=1), Priced(item="b", count=2, price=3)):
        producer = clients.create_producer(topic, schema=kind(type(record)))
        producer.send(record)
        producer.close()
    status, lines, complaints = consume(broker, topic)
    values = [{"item": "a", "count": 1}, {"item": "b", "count": 2, "price": 3}]
    assert (status, [*map(json.loads, lines)], complaints) == (0, values, [])
    shown = [json.loads(line) for line in consume(broker, topic, "-o", "jsonl")[1]]
    assert [(one["schemaVersion"], one["value"]) for one in shown] == [
        (0, values[0]), (1, values[1])]
    assert consume(broker, topic, "--where", "value.price > `2`", "-o", "jsonl")[1] == [
        json.dumps(shown[1], separators=(",", ":"))]


def test_texts_and_protobuf_are_printed_as_values(broker, clients):
    topic = unique_topic("text")
    producer = clients.create_producer(topic, schema=StringSchema())
    producer.send("gr\u00fcn")
    assert consume(broker, topic)[1] == ["gr\u00fcn"]
    topic = unique_topic("protobuf")
    producer = clients.create_producer(topic, schema=ProtobufNativeSchema(Timestamp))
    producer.send(Timestamp(seconds=3, nanos=4))
    assert consume(broker, topic)[1] == ["1970-01-01T00:00:03.000000004Z"]


def half(data):
    return struct.pack(">i", len(data)) + data


def test_pairs_are_printed_as_values_and_one_that_does_not_fit_as_its_bytes(broker):
    topic = unique_topic("pairs")
    said = {"key.schema.name": "", "key.schema.type": "STRING", "key.schema.properties": "{}", "value.schema.name": "",
            "value.schema.type": "INT32", "value.schema.properties": "{}", "kv.encoding.type": "INLINE"}
    schema = api.Schema(name="p", type=api.Schema.KeyValue, schema_data=half(b"") + half(b""),
                        properties=[api.KeyValue(key=key, value=value) for key, value in said.items()])
    with Peer(broker.service_url) as peer:
        answer = peer.ask(T.PRODUCER, topic=topic, producer_id=1, request_id=1, schema=schema)
        version = answer.producer_success.schema_version
        for number, payload in enumerate((half(b"k") + half(struct.pack(">i", 5)), half(b"k") + half(b"five!"))):
            peer.say(send(entry_of(message_metadata(sequence_id=number, schema_version=version), payload),
                          sequence_id=number))
            assert peer.hear().type == T.SEND_RECEIPT
    status, lines, complaints = consume(broker, topic)
    assert (status, json.loads(lines[0]), len(complaints)) == (0, {"key": "k", "value": 5}, 1)
    assert lines[1].endswith("five!") and "does not fit version 0 of its schema" in complaints[0]


# -- where to begin, and where to end

def test_a_read_begins_where_it_is_told(broker, fill):
    topic = unique_topic("from")
    fill(topic, names(0, 3))
    position = json.loads(consume(broker, topic, "-o", "jsonl")[1][1])["id"]
    assert consume(broker, topic, "--from", position)[1] == names(1, 3)
    time.sleep(0.01)      # another millisecond
    middle = time.time_ns() // 1_000_000
    fill(topic, names(3, 5))
    assert consume(broker, topic, "--from", middle)[1] == names(3, 5)
    assert consume(broker, topic, "--from", "-1h", "-n", 4)[1] == names(0, 4)
    assert stats_of(broker, topic)["subscriptions"] == {}


def test_a_read_from_behind_the_last_message_ends_at_once(broker):
    """Nothing comes, and a silence of a minute would be told as an error."""
    topic = unique_topic("behind")
    with Peer(broker.service_url) as peer:
        peer.open_producer(topic)
        peer.say(send())      # published in 2023
        last = peer.hear().send_receipt.message_id
    position = f"{last.ledgerId}:{last.entryId}"
    assert consume(broker, topic, "--from", "-1h") == (0, [], [])
    assert consume(broker, topic, "--from", f"{last.ledgerId}:{last.entryId + 1}") == (0, [], [])
    assert consume(broker, topic, "--from", position)[1] == ["payload"]


def test_a_follow_prints_what_comes_until_it_is_interrupted(broker, fill):
    topic = unique_topic("follow")
    fill(topic, names(0, 2))
    with consuming(broker, topic, "-f") as process, consuming(broker, topic, "-f", "--from", "latest") as late:
        assert [process.stdout.readline() for _ in range(2)] == ["message 0\n", "message 1\n"]
        eventually(lambda: len(stats_of(broker, topic)["subscriptions"]) == 2, SECONDS)
        fill(topic, names(2, 4))
        for one in (process, late):
            assert [one.stdout.readline() for _ in range(2)] == ["message 2\n", "message 3\n"]
            one.send_signal(signal.SIGINT)
            assert (one.wait(SECONDS), one.stderr.read()) == (0, "")
    eventually(lambda: stats_of(broker, topic)["subscriptions"] == {}, SECONDS)


def test_a_follow_goes_on_where_it_was_when_the_broker_comes_back(fresh_broker):
    topic, whole = unique_topic("again"), 1_000
    with contextlib.closing(pulsar.Client(fresh_broker.service_url)) as producers:
        producer = producers.create_producer(topic, batching_enabled=True)
        producers.subscribe(topic, "keep").close()      # keeps what everybody else has read

        def put(first, end):
            for text in names(first, end):
                producer.send_async(text.encode(), lambda *_: None)
            producer.flush()

        put(0, whole)
        with consuming(fresh_broker, topic, "-f") as reader, \
                consuming(fresh_broker, topic, "-f", "-s", "sub", "--from", "earliest") as consumer:
            printed = {one: [one.stdout.readline().strip() for _ in range(whole)] for one in (reader, consumer)}
            eventually(lambda: backlog(fresh_broker, topic, "sub") == 0, SECONDS)
            fresh_broker.stop()
            fresh_broker.start()
            put(whole, whole + 5)
            for one, lines in printed.items():
                lines += [one.stdout.readline().strip() for _ in range(5)]
                assert lines == names(0, whole + 5)
                one.send_signal(signal.SIGINT)
                assert one.wait(SECONDS) == 0
                complaints = one.stderr.read().splitlines()
                assert complaints[-1] == "geminga: connected again" and "trying to connect again" in complaints[0]


def test_only_the_newest_of_each_key_is_read_from_what_was_compacted(broker, fill):
    topic = unique_topic("compacted")
    for number in range(3):
        fill(topic, [f"{key}{number}" for key in "a"], partition_key="a")
        fill(topic, [f"b{number}"], partition_key="b")
    compact(broker, topic)
    fill(topic, ["a3"], partition_key="a")
    assert consume(broker, topic, "--compacted")[1] == ["a2", "b2", "a3"]
    assert len(consume(broker, topic)[1]) == 7


# -- topics

def test_patterns_and_several_names_are_all_their_topics(broker, fill):
    hint = unique_topic("many").rpartition("/")[2]
    parted = partitioned_topic(broker.http_url, 2, f"{hint}-c")
    plain = [f"persistent://public/default/{hint}-{name}" for name in "ab"]
    for number, topic in enumerate([*plain, parted]):
        fill(topic, names(number, number + 1))
    everything = names(0, 3)
    for words in ([f"{hint}-*"], [f"persistent://public/default/{hint}-.*"], [f"public/default/{hint}-[abc]*"],
                  [*plain, parted, plain[0]]):
        status, lines, _ = consume(broker, *words)
        assert (status, sorted(lines)) == (0, everything), words
    assert sorted(consume(broker, f"{hint}-(a|b)")[1]) == names(0, 2)
    lines = consume(broker, f"{hint}-*", "--show", "topic")[1]
    assert {line.split("\t")[0].partition("-partition-")[0] for line in lines} == {*plain, parted}


def test_a_follow_of_a_pattern_finds_topics_that_appear_later(broker, fill):
    hint = unique_topic("later").rpartition("/")[2]
    fill(f"{hint}-1", names(0, 1))
    with consuming(broker, f"{hint}-*", "-f") as process:
        assert process.stdout.readline() == "message 0\n"
        fill(f"{hint}-2", names(1, 2))
        assert process.stdout.readline() == "message 1\n"


def test_a_follow_of_a_pattern_goes_on_when_one_of_its_topics_is_deleted(broker, fill):
    hint = unique_topic("gone").rpartition("/")[2]
    fill(f"{hint}-1", names(0, 1))
    fill(f"{hint}-2", [])
    with consuming(broker, f"{hint}-*", "-f") as process:
        assert process.stdout.readline() == "message 0\n"
        url = f"{broker.http_url}/admin/v2/persistent/public/default/{hint}-2?force=true"
        assert request("DELETE", url)[0] == 204
        complaints = [process.stderr.readline() for _ in range(3)]
        assert "closed the consumer" in complaints[0] and f"{hint}-2: TopicNotFound: " in complaints[1]
        assert complaints[2] == "geminga: connected again\n"
        fill(f"{hint}-1", names(1, 2))
        assert process.stdout.readline() == "message 1\n"


@pytest.mark.parametrize("options", [(), ("-s", "sub"), ("-f",), ("-f", "-s", "sub", "--from", "earliest")])
def test_a_mistyped_topic_is_one_line_with_the_nearest_name_and_nothing_is_created(broker, fill, options):
    topic = unique_topic("orders")
    fill(topic, ["x"])
    before = topics_of(broker)
    status, lines, complaints = consume(broker, topic.replace("orders", "ordrs"), *options)
    assert (status, lines, len(complaints)) == (1, [], 1)
    assert complaints[0].endswith(f"there is no topic {topic.replace('orders', 'ordrs')}. Did you mean {topic}?")
    status, lines, complaints = consume(broker, "public/default/no-such-thing-*", *options)
    assert (status, lines, complaints[0].count("no topic of public/default matches")) == (1, [], 1)
    assert topics_of(broker) == before and stats_of(broker, topic)["subscriptions"] == {}


# -- subscriptions

@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key_shared"])
def test_a_subscription_acknowledges_what_was_printed_and_no_more(broker, fill, kind, in_batch):
    topic = unique_topic("acknowledged")
    assert request("PUT", topic_url(broker, topic, "subscription/sub"))[0] == 204
    fill(topic, names(0, 70), in_batch)
    words = topic, "-s", "sub", "--type", kind
    assert consume(broker, *words, "-n", 3, "--no-ack") == (0, names(0, 3), [])
    assert consume(broker, *words, "-n", 3) == (0, names(0, 3), [])
    assert consume(broker, *words, "--grep", "6[5-9]") == (0, names(65, 70), [])
    assert consume(broker, *words) == (0, names(3, 65), [])
    assert consume(broker, *words) == (0, [], [])
    eventually(lambda: backlog(broker, topic, "sub") == 0, SECONDS)


def test_a_new_subscription_begins_with_what_comes_unless_told_otherwise(broker, fill):
    topic = unique_topic("new")
    fill(topic, names(0, 2))
    assert consume(broker, topic, "-s", "late") == (0, [], [])
    assert consume(broker, topic, "-s", "early", "--from", "earliest") == (0, names(0, 2), [])
    assert set(stats_of(broker, topic)["subscriptions"]) == {"late", "early"}


def test_who_makes_a_subscription_by_consuming_is_told(broker, fill):
    topic = unique_topic("told")
    fill(topic, names(0, 2))
    words = "consume", "--data-dir", broker.data_dir, topic, "-s"
    status, printed, complaints = run(*words, "early", "--from", "earliest", "-n", "1")
    assert (status, printed.splitlines(), len(complaints)) == (0, names(0, 1), 1)
    assert "the subscription early of" in complaints[0] and "is new: it begins with the oldest message" in complaints[0]
    status, printed, complaints = run(*words, "early", "--from", "earliest")
    assert (status, printed.splitlines(), len(complaints)) == (0, names(1, 2), 1)
    assert "goes on where it stands" in complaints[0]
    assert "it begins with what comes next" in run(*words, "late")[2][0]
    assert run(*words, "late") == (0, "", [])


def test_chunks_are_acknowledged_with_their_message(broker, clients):
    topic = unique_topic("chunks")
    producer = clients.create_producer(topic, chunking_enabled=True)
    large = "x" * (6 << 20)
    producer.send(large.encode())
    producer.close()
    assert consume(broker, topic, "-s", "sub", "--from", "earliest") == (0, [large], [])
    eventually(lambda: backlog(broker, topic, "sub") == 0, SECONDS)


@pytest.mark.parametrize("options", [(), ("-s", "sub", "--from", "earliest")])
def test_a_pipe_that_closes_ends_the_command_cleanly(broker, fill, options):
    """With a subscription, only what went into the pipe is acknowledged."""
    topic, count = unique_topic("head"), 2_000
    fill(topic, [f"{number} {'x' * 500}" for number in range(count)], True)      # more than a pipe holds
    with consuming(broker, topic, *options) as process:
        assert process.stdout.readline().startswith("0 x")
        process.stdout.close()
        assert (process.wait(SECONDS), process.stderr.read()) == (0, "")
    if options:
        left = consume(broker, topic, "-s", "sub")[1]
        assert 0 < len(left) < count and left[-1].startswith(f"{count - 1} ")


def test_a_full_disk_is_named(broker, fill):
    topic = unique_topic("full")
    fill(topic, ["x"])
    with open("/dev/full", "w") as full:
        done = subprocess.run([GEMINGA, "consume", "--url", broker.service_url, topic, "-s", "s", "--from", "earliest"],
                              stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (1, "geminga: standard output: No space left on device\n")
    assert backlog(broker, topic, "s") == 1


def test_an_interrupted_subscription_keeps_what_was_not_printed(broker, fill):
    topic = unique_topic("interrupted")
    fill(topic, names(0, 3))
    with consuming(broker, topic, "-f", "-s", "sub", "--from", "earliest") as process:
        assert [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    fill(topic, names(3, 5))
    assert consume(broker, topic, "-s", "sub")[1] == names(3, 5)


WRONG = [(("--type", "shared"), "--type needs --subscription"), (("--no-ack",), "--no-ack needs --subscription"),
         (("-s", "s", "--compacted", "--type", "shared"), "not with shared"), (("--show", "keys"), "'keys' is none of"),
         (("--from", "latest"), "prints nothing without --follow"), (("--from", "1h"), "in the future"),
         (("-s", "s", "--from", "-1h"), "reset-cursor"), (("--from", "soon"), "--from is earliest, latest"),
         (("-n", "0"), "-n"), (("--grep", "("), "--grep"), (("--where", "]"), "--where")]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_wrong_options_are_refused_before_anything_is_asked(options, says):
    status, printed, complaints = run("consume", "--url", "pulsar://127.0.0.1:1", "t", *options)
    assert (status, printed) == (2, "") and says in complaints[-1]


# -- silence

def test_a_silent_broker_is_asked_whether_it_is_there(broker, fill, monkeypatch):
    """One that answers is waited for; one that does not is given up."""
    topic = unique_topic("silent")
    fill(topic, ["x"])
    monkeypatch.setattr(consumers, "_PING_S", 0.02)
    monkeypatch.setattr(consumers, "_PONG_S", SECONDS)

    async def waited():
        made = consumers.Consumers(await client.connect(broker.service_url), consumers.Manner())
        assert (await made.open(topic, consumers.Start())).last is not None
        assert [one.topic for one in await made.deliveries()] == [topic]
        assert await made.deliveries(0.2) == []      # several questions, all of them answered
        monkeypatch.setattr(consumers, "_PONG_S", 0.02)
        monkeypatch.setattr(made._connection, "send", lambda _command: None)
        with pytest.raises(ClientError, match="has been silent"):
            await made.deliveries()
        made._connection.close()

    asyncio.run(waited())
