"""Messages by page, the states of a cursor, searches and publishing over HTTP, with a real broker and real clients."""
import base64
import json
import urllib.request

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String

from ..harness import HANG_MS, HANG_SECONDS, eventually, partitioned_topic, path_of, request, unique_topic


class Order(Record):
    number = Integer(required=True)
    name = String(required=True)


@pytest.fixture
def get(own):
    def ask(path, status=200):
        answered, text = request("GET", f"{own.http_url}/ops/v1/{path}")
        assert answered == status, text
        return json.loads(text)
    return ask


def publish(client, topic, payloads, **options):
    producer = client.create_producer(topic, batching_enabled=False)
    sent = [producer.send(payload, **options) for payload in payloads]
    producer.close()
    return [f"{one.ledger_id()}:{one.entry_id()}" for one in sent]


def test_a_topics_messages_come_page_by_page(own, client, get):
    topic = unique_topic()
    ids = publish(client, topic, [b"%d" % number for number in range(5)], partition_key="k", properties={"a": "b"})
    first = get(f"messages/{path_of(topic)}?limit=2")
    assert [row["id"] for row in first["rows"]] == ids[:2]
    row = first["rows"][1]
    assert (row["payload"], row["size"], row["key"], row["properties"]) == ("1", 1, "k", {"a": "b"})
    assert first["has_more"] and first["next"] == ids[2]
    second = get(f"messages/{path_of(topic)}?limit=3&from={first['next']}")
    assert [row["payload"] for row in second["rows"]] == ["2", "3", "4"]
    assert not second["has_more"] and second["next"] is None
    latest = get(f"messages/{path_of(topic)}?order=latest&limit=2")
    assert [row["payload"] for row in latest["rows"]] == ["3", "4"]
    assert (latest["first_number"], latest["end_number"]) == (2, 5)      # one entry more is looked at, for has_more
    behind = get(f"messages/{path_of(topic)}?order=latest&from={latest['behind']}")
    assert behind["rows"] == [] and behind["end_number"] is None


def test_a_subscription_has_only_what_it_has_not_acknowledged(own, client, get):
    topic = unique_topic()
    consumer = client.subscribe(topic, "reads", consumer_type=pulsar.ConsumerType.Shared)
    publish(client, topic, [b"%d" % number for number in range(6)])
    for number in range(6):
        message = consumer.receive(HANG_MS)
        if number in (0, 1, 3):
            consumer.acknowledge(message)
    consumer.close()
    path = f"messages/{path_of(topic)}/reads"
    eventually(lambda: [row["payload"] for row in get(path)["rows"]] == ["2", "4", "5"])
    skipped = get(f"{path}?skip=1")
    assert [row["payload"] for row in skipped["rows"]] == ["4", "5"]
    assert (skipped["passed_entries"], skipped["passed_messages"]) == (1, 1)
    assert get(f"{path}?skip=1000")["passed_messages"] == 3
    assert "not found" in get(f"messages/{path_of(topic)}/nobody", 404)["reason"].lower()


def test_batches_are_unpacked_and_pages_end_within_them(own, client, get):
    topic = unique_topic()
    consumer = client.subscribe(topic, "reads", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000,
                                      batching_max_messages=100, compression_type=pulsar.CompressionType.ZLib)
    for number in range(10):
        producer.send_async(b"%d" % number, lambda *_: None, properties={"n": str(number)})
    producer.flush()
    first = get(f"messages/{path_of(topic)}/reads?limit=4")
    assert [(row["payload"], row["batchSize"]) for row in first["rows"]] == [(str(n), 10) for n in range(4)]
    assert first["next"].endswith(":4")
    rest = get(f"messages/{path_of(topic)}/reads?from={first['next']}")
    assert [row["payload"] for row in rest["rows"]] == ["4", "5", "6", "7", "8", "9"]
    payload = rest["rows"][0]["id"]
    status, text = request("GET", f"{own.http_url}/ops/v1/payload/{path_of(topic)}/{payload}")
    assert (status, text) == (200, "4")
    assert get(f"messages/{path_of(topic)}/reads?skip=1")["passed_messages"] == 10
    consumer.close()
    producer.close()


def test_values_are_decoded_by_the_schema_they_were_sent_with(own, client, get):
    topic = unique_topic()
    producer = client.create_producer(topic, schema=AvroSchema(Order))
    producer.send(Order(number=7, name="<script>"))
    producer.close()
    [row] = get(f"messages/{path_of(topic)}")["rows"]
    assert row["value"] == {"number": 7, "name": "<script>"} and row["schemaVersion"] == 0
    assert get(f"messages/{path_of(topic)}?grep=scr.pt")["rows"] == [row]
    assert get(f"messages/{path_of(topic)}?grep=other")["rows"] == []


def test_large_and_binary_messages_are_cut_and_the_whole_is_a_file(own, client, get):
    topic = unique_topic()
    large, binary = "ä" * 2_500_000, bytes(range(256)) * 40
    publish(client, topic, [large.encode(), binary], properties={"p" * 2_000: "v" * 2_000})
    text, raw = get(f"messages/{path_of(topic)}?payload=1001")["rows"]
    assert text["payload"] == "ä" * 500 and text["size"] == 5_000_000
    assert text["cut"] == ["payload", "properties"] and text["properties"] == {"p" * 1_000: "v" * 1_000}
    assert base64.b64decode(raw["payloadBase64"]) == binary[:1001]
    with urllib.request.urlopen(f"{own.http_url}/ops/v1/payload/{path_of(topic)}/{text['id']}") as answer:
        assert answer.read() == large.encode()
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Type"] == "application/octet-stream"


def test_a_page_of_large_messages_ends_before_its_bytes_are_too_many(own, client, get):
    topic = unique_topic()
    publish(client, topic, [b"x" * 3_000_000] * 5)
    page = get(f"messages/{path_of(topic)}")
    assert len(page["rows"]) == 2 and page["has_more"]
    assert len(get(f"messages/{path_of(topic)}?from={page['next']}")["rows"]) == 2


def test_chunks_and_messages_without_a_value_are_told(own, client, get):
    topic = unique_topic()
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(b"y" * 6_000_000)
    producer.close()
    parts = get(f"messages/{path_of(topic)}")["rows"]
    assert [row["leftOut"] for row in parts] == ["it is part 1 of 2 of a large message",
                                                "it is part 2 of 2 of a large message"]


@pytest.mark.parametrize("query", ["limit=x", "limit=101", "from=7", "from=a:b", "order=newest", "skip=-1",
                                   "payload=65537", "grep=("])
def test_wrong_parameters_are_refused(own, client, get, query):
    topic = unique_topic()
    publish(client, topic, [b"one"])
    assert get(f"messages/{path_of(topic)}?{query}", 400)["reason"]


def test_partitioned_and_non_persistent_topics_are_refused_with_the_reason(own, client, get):
    topic = partitioned_topic(own.http_url, 2)
    assert "one of its partitions" in get(f"messages/{path_of(topic)}", 405)["reason"]
    live = unique_topic().replace("persistent", "non-persistent")
    client.create_producer(live).close()
    assert "stores no messages" in get(f"messages/{path_of(live)}", 412)["reason"]


# -- the map of a cursor

def test_the_states_of_all_entries_are_counted_in_segments(own, client, get):
    topic = unique_topic()
    consumer = client.subscribe(topic, "map", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=20)
    publish(client, topic, [b"m"] * 40)
    publish(client, topic, [b"later"] * 4, deliver_at=4_000_000_000_000)
    for number in range(10):
        message = consumer.receive(HANG_MS)
        if number != 5:
            consumer.acknowledge(message)

    def counts():
        [told] = get(f"cursor/{path_of(topic)}/map?segments=22")["partitions"]
        return told if told["counts"]["acknowledged"] == 9 else None

    told = eventually(counts)
    states = ("acknowledged", "out", "again", "parked", "delayed", "waiting")
    assert told["entries"] == 44 and len(told["segments"]) == 22 and told["is_exact"]
    assert told["counts"]["delayed"] == 4
    assert told["counts"]["out"] + told["counts"]["waiting"] == 31 and told["counts"]["out"] >= 11
    assert {name: sum(column) for name, column in zip(states, zip(*told["segments"], strict=True), strict=True)} == \
        told["counts"]
    assert told["segments"][0] == [2, 0, 0, 0, 0, 0] and told["segments"][-1] == [0, 0, 0, 0, 2, 0]
    assert told["segments"][2] == [1, 1, 0, 0, 0, 0]      # the sixth message is the hole
    consumer.redeliver_unacknowledged_messages()
    consumer.close()
    eventually(lambda: counts()["counts"]["out"] == 0)


def test_a_partitioned_topic_has_a_map_for_each_partition(own, client, get):
    topic = partitioned_topic(own.http_url, 3)
    client.subscribe(topic, "map").close()
    told = get(f"cursor/{path_of(topic)}/map")
    assert [one["topic"] for one in told["partitions"]] == [f"{topic}-partition-{number}" for number in range(3)]
    assert told["partition_count"] == 3
    assert all(one["segments"] == [] and one["entries"] == 0 for one in told["partitions"])
    assert "not found" in get(f"cursor/{path_of(topic)}/nobody", 404)["reason"].lower()


# -- searches

def lines_of(url):
    with urllib.request.urlopen(url, timeout=HANG_SECONDS) as answer:
        return [json.loads(line) for line in answer]


def test_a_search_answers_with_rows_and_how_it_ended(own, client):
    topic = unique_topic()
    publish(client, topic, [b"apple", b"pear", b"apple pie", b"plum"], partition_key="fruit", properties={"kind": "f"})
    base = f"{own.http_url}/ops/v1/search/{path_of(topic)}"
    lines = lines_of(f"{base}?grep=apple&property=kind=f&key=fr*")
    assert [line["row"]["payload"] for line in lines if "row" in line] == ["apple", "apple pie"]
    assert lines[-1] == {"end": "all"} and any("searched" in line for line in lines)
    lines = lines_of(f"{base}?limit=3")
    assert sum("row" in line for line in lines) == 3 and lines[-1] == {"end": "limit"}
    named = lines_of(f"{own.http_url}/ops/v1/search/public/default?grep=apple%20pie")
    assert [line["row"]["topic"] for line in named if "row" in line] == [topic]


def test_a_wrong_search_is_refused_with_the_reason(own, client, get):
    topic = unique_topic()
    publish(client, topic, [b"one"])
    assert "not a regular expression" in get(f"search/{path_of(topic)}?grep=(", 400)["reason"]
    assert "since" in get(f"search/{path_of(topic)}?since=yesterday", 400)["reason"]
    assert get(f"search/{path_of(unique_topic())}", 404)["reason"]
    assert get("search/public/nowhere", 404)["reason"]


# -- publishing

def post(own, topic, body):
    status, text = request("POST", f"{own.http_url}/ops/v1/messages/{path_of(topic)}", json.dumps(body).encode())
    return status, json.loads(text)


def test_a_message_is_published_with_everything_that_was_said(own, client):
    topic = unique_topic()
    consumer = client.subscribe(topic, "reads")
    status, told = post(own, topic, {"payload": "hällo", "key": "k", "properties": {"a": "b"}, "eventTime": 123_456})
    message = consumer.receive(HANG_MS)
    assert status == 200 and told["topic"] == topic
    assert told["id"] == f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}"
    assert message.data().decode() == "hällo" and message.partition_key() == "k"
    assert message.properties() == {"a": "b"} and message.event_timestamp() == 123_456
    assert post(own, topic, {"payloadBase64": base64.b64encode(b"\0\xff").decode()})[0] == 200
    assert consumer.receive(HANG_MS).data() == b"\0\xff"
    consumer.close()


def test_a_value_is_encoded_by_the_topics_schema(own, client):
    topic = unique_topic()
    consumer = client.subscribe(topic, "reads", schema=AvroSchema(Order))
    assert post(own, topic, {"value": {"number": 3, "name": "x"}})[0] == 200
    assert consumer.receive(HANG_MS).value().number == 3
    status, told = post(own, topic, {"value": {"number": "three", "name": "x"}})
    assert status == 400 and "number" in told["reason"]
    consumer.close()


@pytest.mark.parametrize("body", [None, [], {}, {"payload": 7}, {"payloadBase64": "?"}, {"value": 1},
                                  {"payload": "x", "deliverAfter": "soon"}, {"payload": "x", "properties": []}])
def test_a_wrong_message_is_not_published(own, client, get, body):
    topic = unique_topic()
    client.subscribe(topic, "reads").close()
    assert post(own, topic, body)[0] == 400
    assert get(f"messages/{path_of(topic)}")["rows"] == []


def test_publishing_creates_no_topic(own):
    topic = unique_topic()
    assert post(own, topic, {"payload": "x"})[0] == 404


# -- dead letters

def dead_letters(own, client):
    """Return (topic, its dead letter topic with two letters), as a consumer makes it that gives everything back."""
    topic = unique_topic()
    dead = f"{topic}-work-DLQ"
    consumer = client.subscribe(topic, "work", consumer_type=pulsar.ConsumerType.Shared)
    publish(client, dead, [b"one", b"two"], properties={"REAL_TOPIC": topic, "exception": "Timeout"})
    return consumer, topic, dead


def test_a_redrive_is_looked_at_and_then_done(own, client, get):
    consumer, topic, dead = dead_letters(own, client)
    assert get(f"redrive/{path_of(dead)}")["targets"] == {topic: 2}
    assert get(f"messages/{path_of(topic)}")["rows"] == []      # it was a look
    status, text = request("POST", f"{own.http_url}/ops/v1/redrive/{path_of(dead)}", b'{"count": 1}')
    assert status == 200 and json.loads(text)["targets"] == {topic: 1}
    assert consumer.receive(HANG_MS).data() == b"one"
    status, text = request("POST", f"{own.http_url}/ops/v1/redrive/{path_of(dead)}", b"{}")
    assert status == 200 and json.loads(text)["targets"] == {topic: 1}
    assert consumer.receive(HANG_MS).data() == b"two"
    consumer.close()


@pytest.mark.parametrize("body", [b"[]", b'{"count": "many"}', b'{"rate": 1}', b'{"to": "a\\u0000b"}'])
def test_a_wrong_redrive_is_refused(own, client, body):
    _, _, dead = dead_letters(own, client)
    assert request("POST", f"{own.http_url}/ops/v1/redrive/{path_of(dead)}", body)[0] == 400


def test_a_search_ends_when_its_caller_leaves(own, client):
    topic = unique_topic()
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for _ in range(600):      # more than the buffers of a connection take
        producer.send_async(b"z" * 60_000, lambda *_: None)
    producer.flush()
    jobs = [urllib.request.urlopen(f"{own.http_url}/ops/v1/search/{path_of(topic)}?limit=1000&payload=65536&grep=z")
            for _ in range(2)]
    assert request("GET", f"{own.http_url}/ops/v1/search/{path_of(topic)}?limit=1")[0] == 503
    for job in jobs:
        job.close()
    eventually(lambda: request("GET", f"{own.http_url}/ops/v1/search/{path_of(topic)}?limit=1")[0] == 200)
