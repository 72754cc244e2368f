"""REST produce: schemas, fields of messages, order, deduplication, partitions, and everything that is refused."""
import gzip
import json
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from urllib.parse import urlsplit

import pulsar
import pytest

from geminga.workers.pulsar_client import key_hashing

from ..harness import (
    LOAD_PAUSE_SECONDS,
    eventually,
    guarded_broker,
    messages_of,
    partitioned_topic,
    path_of,
    unique_topic,
)
from .rest import Rest, schema

RECORD = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}]}
MORE = {**RECORD, "fields": [*RECORD["fields"], {"name": "shop", "type": "string", "default": ""}]}
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def rest(broker):
    return Rest(broker.http_url)


def payloads(sockets, topic, count):
    reader = sockets.reader(topic, messageId="earliest")
    return [reader.message()["data"] for _ in range(count)]


# -- schemas

@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text", "data"), [
    ("STRING", "é", "é".encode()), ("BYTES", "é", "é".encode()), ("NONE", "x", b"x"),
    ("BOOLEAN", "True", b"\x01"), ("BOOLEAN", "false", b"\x00"),
    ("INT8", "-1", b"\xff"), ("INT16", "258", b"\x01\x02"), ("INT32", "1", b"\0\0\0\x01"),
    ("INT64", "-2", struct.pack(">q", -2)), ("FLOAT", "0.5", struct.pack(">f", 0.5)),
    ("DOUBLE", "1e300", struct.pack(">d", 1e300)), ("DOUBLE", "NaN", struct.pack(">d", float("nan"))),
    ("DATE", str(DAY_MS), struct.pack(">q", DAY_MS)), ("DATE", "1970-01-02", struct.pack(">q", DAY_MS)),
    ("TIME", "5", struct.pack(">q", 5)), ("TIME", "00:00:01", struct.pack(">q", 1_000)),
    ("TIMESTAMP", "1700000000000", struct.pack(">q", 1_700_000_000_000)),
    ("INSTANT", "1970-01-01T00:00:02.5Z", struct.pack(">qi", 2, 500_000_000)),
    ("LOCAL_DATE", "1970-01-03", struct.pack(">q", 2)),
    ("LOCAL_TIME", "00:00:01", struct.pack(">q", 1_000_000_000)),
    ("LOCAL_DATE_TIME", "1970-01-02T00:00:01", struct.pack(">qq", 1, 1_000_000_000)),
    ("JSON", '{"id": 1, "note": "n"}', b'{"id":1,"note":"n"}'), ("JSON", {"id": 1}, b'{"id":1}'),
    ("AVRO", '{"id": 1, "note": {"string": "n"}}', b"\x02\x02\x02n"),
    ("AVRO", {"id": 1, "note": "n"}, b"\x02\x02\x02n"),
])
def test_each_type_is_encoded_as_clients_encode_it(rest, sockets, kind, text, data):
    topic = rest.topic()
    rest.publish(topic, text, valueSchema=schema(kind, RECORD if kind in ("JSON", "AVRO") else None))
    assert payloads(sockets, topic, 1) == [data]
    [row] = rest.stored(topic)
    assert row.get("schemaVersion") == (None if kind in ("BYTES", "NONE") else 0)


def test_without_a_schema_payloads_are_strings_and_the_topic_learns_that(rest):
    topic = rest.topic()
    [place] = rest.publish(topic, "hello")
    [row] = rest.stored(topic)
    assert (row["payload"], row["value"], f"{row['id']}:-1") == ("hello", "hello", place)
    status, kept = rest.ask("GET", f"/admin/v2/schemas/{topic.partition('://')[2]}/schema")
    assert (status, kept["type"]) == (200, "STRING")


def test_a_pair_has_its_key_beside_the_payload_each_by_its_schema(rest, sockets):
    topic = rest.topic()
    status, answer = rest.produce(topic, [{"key": '{"id":7}', "payload": "3"}, {"payload": "4"}],
                                  keySchema=schema("AVRO", RECORD), valueSchema=schema("INT32"))
    assert (status, answer["schemaVersion"]) == (200, 0)
    message = sockets.reader(topic, messageId="earliest").message()
    assert (message["key"], message["data"]) == ("DgA=", b"\0\0\0\x03")
    assert [row["value"] for row in rest.stored(topic)] == [
        {"key": {"id": 7, "note": None}, "value": 3}, {"key": None, "value": 4}]


def test_versions_follow_the_schemas_and_may_be_named(rest):
    topic = rest.topic()
    for number, definition in enumerate((RECORD, MORE, RECORD)):
        status, answer = rest.produce(topic, [{"payload": {"id": number}}], valueSchema=schema("AVRO", definition))
        assert (status, answer["schemaVersion"]) == (200, number % 2)
    assert rest.produce(topic, [{"payload": {"id": 3, "shop": "s"}}], schemaVersion=1)[1]["schemaVersion"] == 1
    rows = rest.stored(topic)
    assert [(row["schemaVersion"], row["value"]["id"]) for row in rows] == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert rest.produce(topic, [{"payload": "x"}], schemaVersion=7)[0] == 404
    assert rest.produce(topic, [{"payload": "x"}])[0] == 409      # a STRING
    status, answer = rest.produce(topic, [{"payload": {"id": 1}}],
                                  valueSchema=schema("AVRO", {**RECORD, "fields": [{"name": "id", "type": "string"}]}))
    assert status == 409 and answer["reason"]


def test_a_topic_that_demands_a_schema_takes_what_brings_one(rest):
    topic = rest.topic()
    assert rest.ask("POST", f"/admin/v2/{path_of(topic)}/schemaValidationEnforced", True)[0] == 204
    rest.publish(topic, {"id": 1}, valueSchema=schema("JSON", RECORD))
    rest.publish(topic, {"id": 2}, schemaVersion=0)
    assert len(rest.stored(topic)) == 2


def test_a_definition_may_be_json_as_it_is(rest):
    topic = rest.topic()
    rest.publish(topic, {"id": 5}, valueSchema={"type": "AVRO", "schema": RECORD})
    rest.publish(topic, {"id": 6}, valueSchema={"type": "AVRO", "schema": json.dumps(RECORD)})
    assert [row["value"]["id"] for row in rest.stored(topic)] == [5, 6]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text"), [
    ("INT8", "128"), ("INT32", "x"), ("INT32", "1.5"), ("BOOLEAN", "yes"), ("FLOAT", "x"), ("FLOAT", "1e300"),
    ("DATE", "soon"), ("TIME", "99999999999999999999"), ("INSTANT", "x"), ("LOCAL_TIME", "5"),
    ("JSON", "{"), ("JSON", '{"id":"x"}'), ("AVRO", "{}"), ("AVRO", '{"id":1,"more":2}'), ("STRING", "\ud800"),
])
def test_a_payload_that_does_not_fit_is_refused_with_its_index_and_nothing_is_stored(rest, kind, text):
    topic = rest.topic()
    own = schema(kind, RECORD if kind in ("JSON", "AVRO") else None)
    good = {"JSON": {"id": 1}, "AVRO": {"id": 1}, "BOOLEAN": "true", "STRING": "s", "DATE": "1970-01-01",
            "TIME": "1", "INSTANT": "1970-01-01T00:00:00Z", "LOCAL_TIME": "00:00:01"}.get(kind, "1")
    status, answer = rest.produce(topic, [{"payload": good}, {"payload": text}], valueSchema=own)
    assert status == 422 and answer["reason"].startswith("messages[1].payload: ")
    assert rest.stored(topic) == []


@pytest.mark.parametrize(("said", "status"), [
    ("{", 400), ("[]", 400), ('{"type":5}', 400), ('{"type":"INT32","schema":"!"}', 400), ('{"schema":""}', 400),
    ('{"type":"INT32","properties":{"a":1}}', 400), (5, 400), ('{"type":"OTHER"}', 422),
    (schema("AVRO", {"type": "nothing"}), 422), (schema("INT32", {}), 422), (schema("PROTOBUF", RECORD), 422),
    (schema("AUTO_CONSUME"), 422), (schema("KEY_VALUE"), 422),
])
def test_a_schema_that_cannot_be_used_is_refused(rest, said, status):
    topic = rest.topic()
    found, answer = rest.produce(topic, [{"payload": "1"}], valueSchema=said)
    assert found == status and answer["reason"]
    assert rest.produce(topic, [{"key": "1", "payload": "1"}], keySchema=said)[0] == status


# -- fields of messages

def test_a_message_has_all_that_was_said(rest):
    topic, before = rest.topic(), time.time() * 1000
    status, answer = rest.produce(topic, [
        {"payload": "a", "key": "k", "properties": {"x": "y", "n": 5}, "eventTime": 1_700_000_000_000, "sequenceId": 9,
         "replicationClusters": ["standalone"], "disableReplication": True, "context": "ignored", "unknown": {}},
        {"payload": 5, "eventTime": "1700000000001", "key": 6},
        {"payload": "c", "deliverAt": 1_700_000_000_000, "eventTime": ""},
        {"payload": "d", "deliverAfterMs": 1}], producerName="me", schemaVersion=-1, keySchema="", valueSchema=None)
    assert status == 200 and {one["errorCode"] for one in answer["messagePublishResults"]} == {0}
    first, second, third, fourth = rest.stored(topic)
    assert (first["key"], first["properties"]) == ("k", {"x": "y", "n": "5"})
    assert [row["sequenceId"] for row in (first, second, third, fourth)] == [9, 10, 11, 12]
    assert {row["producer"] for row in (first, second, third, fourth)} == {"me"}
    assert first["eventTime"].startswith("2023-11-14T22:13:20") and second["eventTime"].endswith("20.001Z")
    assert (second["payload"], second["key"]) == ("5", "6") and "eventTime" not in third
    assert third["deliverAt"].startswith("2023-11-14T22:13:20")
    assert fourth["deliverAt"] > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before / 1000))


def test_a_message_says_to_which_clusters_it_goes(rest):
    topic = rest.topic()
    assert rest.ask("PUT", f"/admin/v2/{path_of(topic)}/subscription/s")[0] == 204
    status, _ = rest.produce(topic, [{"payload": "a", "replicationClusters": ["far", "near"]},
                                     {"payload": "b", "disableReplication": True},
                                     {"payload": "c", "replicationClusters": [], "disableReplication": False}])
    assert status == 200
    base = f"{rest.http_url}/admin/v2/{path_of(topic)}/subscription/s/position"
    told = [urllib.request.urlopen(f"{base}/{entry}").headers.get_all("X-Pulsar-replicated-to") for entry in (1, 2, 3)]
    assert told == [["far", "near"], ["__local__"], None]


def test_order_within_a_call_is_kept(rest, sockets):
    topic = rest.topic()
    places = rest.publish(topic, *map(str, range(1_000)))
    assert payloads(sockets, topic, 1_000) == [str(number).encode() for number in range(1_000)]
    assert places == sorted(places, key=lambda place: [int(part) for part in place.split(":")])
    assert rest.produce(topic, []) == (200, {"messagePublishResults": [], "schemaVersion": 0})


def test_calls_with_the_same_numbers_store_a_message_once(rest):
    """Deduplication holds for a producer name, across calls; numbers without a name mean nothing to other calls."""
    topic = rest.topic()
    assert rest.ask("POST", f"/admin/v2/{path_of(topic)}/deduplicationEnabled", True)[0] == 204
    messages = [{"payload": str(number), "sequenceId": number} for number in (3, 4)]
    first, again = (rest.produce(topic, messages, producerName="p")[1]["messagePublishResults"] for _ in range(2))
    assert [one["errorCode"] for one in first + again] == [0] * 4
    assert [one["messageId"] for one in again] == ["-1:-1:-1"] * 2
    rest.produce(topic, [{"payload": "5"}], producerName="p")
    for _ in range(2):
        rest.produce(topic, [{"payload": "unnamed", "sequenceId": 0}])
        rest.publish(topic, "plain")
    assert [row["payload"] for row in rest.stored(topic)] == ["3", "4", "5", "unnamed", "plain", "unnamed", "plain"]


def test_a_name_that_another_producer_has_is_a_conflict(rest, sockets):
    topic = rest.topic()
    sockets.producer(topic, producerName="taken")
    status, answer = rest.produce(topic, [{"payload": "x"}], producerName="taken")
    assert status == 409 and "taken" in answer["reason"]


# -- partitions

def test_messages_go_round_and_keys_go_where_clients_send_them(rest, broker):
    topic = partitioned_topic(broker.http_url, 3)
    places = rest.publish(topic, *"abcdef")
    assert [int(place.split(":")[2]) for place in places] in ([0, 1, 2] * 2, [1, 2, 0] * 2, [2, 0, 1] * 2)
    answer = rest.produce(topic, [{"payload": "x", "key": f"key-{number}"} for number in range(9)])[1]
    for number, one in enumerate(answer["messagePublishResults"]):
        assert int(one["messageId"].split(":")[2]) == key_hashing.java(f"key-{number}") % 3


def test_a_partition_may_be_named(rest, broker):
    topic = partitioned_topic(broker.http_url, 2)
    [one] = rest.produce(topic, [{"payload": "x", "key": "k"}], "/partitions/1")[1]["messagePublishResults"]
    assert one["messageId"].endswith(":1") and rest.stored(f"{topic}-partition-1")[0]["payload"] == "x"
    assert rest.publish(f"{topic}-partition-1", "y")[0].endswith(":1")      # by its full name, too
    for place, number in ((topic, 7), (rest.topic(), 0)):
        status, answer = rest.produce(place, [{"payload": "x"}], f"/partitions/{number}")
        [one] = answer["messagePublishResults"]
        assert (status, one["errorCode"], one["messageId"]) == (200, 2, str(number)) and one["errorMsg"]
    assert rest.produce(topic, [{"payload": "x"}], "/partitions/x")[0] == 404
    single = partitioned_topic(broker.http_url, 1)
    assert rest.publish(single, "x")[0].endswith(":0")


def test_a_name_publishes_to_a_topic_and_to_its_partitions_by_each_path(rest, broker):
    """A partition's full name and its number lead to one producer, also if the topic got partitions meanwhile."""
    topic = partitioned_topic(broker.http_url, 2)
    ways = [(topic, ""), (f"{topic}-partition-1", ""), (topic, "/partitions/1"), (f"{topic}-partition-0", "")]
    answers = [rest.produce(place, [{"payload": "x"}], more, producerName="p") for place, more in ways]
    assert [status for status, _ in answers] == [200] * 4, answers
    assert rest.ask("POST", f"/admin/v2/{path_of(topic)}/partitions", 4)[0] == 204
    for place, more in ((f"{topic}-partition-3", ""), (topic, "/partitions/2")):
        status, answer = rest.produce(place, [{"payload": "y"}], more, producerName="p")
        assert (status, answer["messagePublishResults"][0]["errorCode"]) == (200, 0), answer


# -- errors

@pytest.mark.slow
@pytest.mark.parametrize(("body", "status", "words"), [
    (b"", 400, "object"), (b"x", 400, "JSON"), (b"[]", 400, "object"), (b"{}", 400, "messages"),
    (b'{"producerName":"pulsar.repl.far","messages":[{"payload":"a"}]}', 400, "replicator"),
    (b'{"messages":5}', 400, "messages"), (b'{"messages":[5]}', 400, "messages[0]"),
    (b'{"messages":[{"payload":"a"},{}]}', 400, "messages[1].payload"),
    (b'{"messages":[{"payload":null}]}', 400, "messages[0].payload"),
    (b'{"messages":[{"payload":NaN}]}', 400, "JSON"), (b"[" * 100_000, 400, "JSON"), (b"\xff", 400, "JSON"),
    (b'{"messages":[{"payload":"a","key":[]}]}', 400, "key"),
    (b'{"messages":[{"payload":"a","key":"\\ud800"}]}', 400, "key"),
    (b'{"messages":[{"payload":"a","properties":[1]}]}', 400, "properties"),
    (b'{"messages":[{"payload":"a","properties":[]}]}', 400, "properties"),
    (b'{"messages":[{"payload":"a","properties":{"x":null}}]}', 400, "properties.x"),
    (b'{"messages":[{"payload":"a","eventTime":"soon"}]}', 400, "eventTime"),
    (b'{"messages":[{"payload":"a","eventTime":-1}]}', 400, "eventTime"),
    (b'{"messages":[{"payload":"a","deliverAt":true}]}', 400, "deliverAt"),
    (b'{"messages":[{"payload":"a","deliverAfterMs":1.5}]}', 400, "deliverAfterMs"),
    (b'{"messages":[{"payload":"a","sequenceId":99999999999999999999}]}', 400, "sequenceId"),
    (b'{"messages":[{"payload":"a","replicationClusters":"x"}]}', 400, "replicationClusters"),
    (b'{"messages":[{"payload":"a","disableReplication":"x"}]}', 400, "disableReplication"),
    (b'{"messages":[],"producerName":5}', 400, "producerName"), (b'{"messages":[],"schemaVersion":"x"}', 400, "schema"),
    (b'{"messages":[],"schemaVersion":-2}', 400, "schemaVersion"), (b'{"messages":[],"schemaVersion":true}', 400, "s"),
    (b'{"messages":[' + b'{"payload":"a"},' * 10_000 + b'{"payload":"a"}]}', 413, "10000"),
    (b'{"messages":[' + b"[]," * 1_000_000 + b"[]]}", 413, "lists"),
    (b'{"messages":[{"payload":"' + b"a" * 6_000_000 + b'"}]}', 413, "messages[0]"),
    (b'{"messages":[{"payload":"' + b"a" * (16 << 20) + b'"}]}', 413, "16777216"),
])
def test_a_wrong_body_is_refused_and_says_where_it_is_wrong(rest, body, status, words):
    topic = rest.topic()
    found, answer = rest.ask("POST", f"/topics/{path_of(topic)}", body)
    assert found == status and words in answer["reason"], answer
    rest.publish(topic, "x")
    assert len(rest.stored(topic)) == 1


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "persistent/public/default/missing-{}", 404), ("POST", "persistent/public/nothing/t", 404),
    ("POST", "persistent/nobody/default/t", 404), ("POST", "other/public/default/t", 404),
    ("POST", "persistent/public/default", 404), ("PUT", "persistent/public/default/t/subscription/s", 405),
    ("GET", "persistent/public/default/t", 405), ("PUT", "persistent/public/default/t", 405),
    ("POST", "persistent/public/default/%ff", 400),
])
def test_nothing_is_published_elsewhere_and_no_topic_is_made(rest, method, path, status):
    path = path.format(unique_topic().rpartition("-")[2])
    found, answer = rest.ask(method, f"/topics/{path}", b'{"messages":[{"payload":"x"}]}')
    assert found == status or (status == 405 and found == 404), answer
    assert "missing-" not in json.dumps(rest.ask("GET", "/admin/v2/persistent/public/default")[1])


def test_bodies_that_a_foreign_page_may_send_are_refused(rest):
    topic, good = rest.topic(), b'{"messages":[{"payload":"x"}]}'
    path = f"/topics/{path_of(topic)}"
    for status, headers in ((403, {"Content-Type": "text/plain"}),
                            (403, {"Content-Type": "application/x-www-form-urlencoded"}),
                            (415, {"Content-Type": "application/xml"}), (403, {"Sec-Fetch-Site": "cross-site"}),
                            (403, {"Origin": "https://example.com"}), (403, {"Host": "example.com"}),
                            (400, {"Content-Encoding": "gzip"})):
        assert rest.ask("POST", path, good, **headers)[0] == status, headers
    assert rest.stored(topic) == []
    assert rest.ask("POST", path, gzip.compress(good), **{"Content-Encoding": "gzip"})[0] == 200


def test_a_terminated_topic_and_a_full_one_refuse(rest):
    topic = rest.topic()
    for _ in range(2):      # with a producer that is open, and one that cannot be opened
        rest.ask("POST", f"/admin/v2/{path_of(topic)}/terminate")
        status, answer = rest.produce(topic, [{"payload": "x"}, {"payload": "y"}])
        assert (status, [one["errorCode"] for one in answer["messagePublishResults"]]) == (200, [2, 2])
        assert {one["messageId"] for one in answer["messagePublishResults"]} == {"-1"}
    open_one = rest.topic()
    rest.publish(open_one, "x")
    rest.ask("POST", f"/admin/v2/{path_of(open_one)}/terminate")
    assert rest.produce(open_one, [{"payload": "x"}])[1]["messagePublishResults"][0]["errorCode"] == 2
    full = rest.topic()
    assert rest.ask("PUT", f"/admin/v2/{path_of(full)}/subscription/s")[0] == 204
    rest.publish(full, "x" * 1_000)
    quota = {"limitSize": 10, "limitTime": -1, "policy": "producer_exception"}
    assert rest.ask("POST", f"/admin/v2/{path_of(full)}/backlogQuota", quota)[0] in (200, 204)
    assert eventually(lambda: rest.produce(full, [{"payload": "x"}])[0] in (200, 503))


def test_a_deleted_topic_is_missing_again(rest):
    topic = rest.topic()
    rest.publish(topic, "x")
    assert rest.ask("DELETE", f"/admin/v2/{path_of(topic)}?force=true")[0] == 204
    assert rest.produce(topic, [{"payload": "x"}])[0] == 404


def test_non_persistent_topics_deliver_at_once(rest, sockets):
    topic = unique_topic().replace("persistent", "non-persistent")
    consumer = sockets.consumer(topic, "s")
    rest.publish(topic, "x")
    assert consumer.message()["data"] == b"x"


@pytest.mark.slow
def test_curl_publishes_a_large_body_and_goes_on_with_its_connection(rest, tmp_path):
    topic = rest.topic()
    (tmp_path / "body").write_text(json.dumps({"messages": [{"payload": "x" * 4_000_000}]}))
    done = subprocess.run(
        ["curl", "-sS", "-w", "%{http_code} %{num_connects} ", "-H", "Content-Type: application/json", "-d",
         f"@{tmp_path}/body", *[f"{rest.http_url}/topics/{path_of(topic)}"] * 2], capture_output=True, text=True)
    assert done.returncode == 0 and "200 1 " in done.stdout and "200 0 " in done.stdout, done
    assert [row["size"] for row in rest.stored(topic)] == [4_000_000] * 2


# -- rights, ends

def test_credentials_come_first_then_rights_and_only_refusals_are_audited(start_broker, tmp_path):
    broker, tokens = guarded_broker(start_broker, tmp_path, "admin", "writer", "reader")
    admin = Rest(broker.http_url, Authorization=f"Bearer {tokens['admin']}")
    for role, action in (("writer", "produce"), ("reader", "consume")):
        assert admin.ask("POST", f"/admin/v2/namespaces/public/default/permissions/{role}", [action])[0] == 204
    topic = admin.topic()
    path = f"/topics/{path_of(topic)}"
    body = {"messages": [{"payload": "x"}]}
    for headers, status in (({}, 401), ({"Authorization": "Bearer x"}, 401),
                            ({"Authorization": f"Bearer {tokens['reader']}"}, 403),
                            ({"Authorization": f"Bearer {tokens['writer']}"}, 200)):
        assert Rest(broker.http_url, **headers).ask("POST", path, body)[0] == status, headers
        assert Rest(broker.http_url, **headers).ask("POST", path + "/partitions/0", body)[0] == status, headers
    assert Rest(broker.http_url).ask("POST", f"{path}?token={tokens['writer']}", body)[0] == 200
    assert Rest(broker.http_url).ask("POST", f"{path}?token={tokens['reader']}", body)[0] == 403
    assert Rest(broker.http_url).ask("POST", path.replace(topic.rpartition("/")[2], "missing"), body)[0] == 401
    lines = [json.loads(line) for line in (broker.data_dir / "audit.log").read_text().splitlines()]
    told = [(line["status"], line["request"]) for line in lines if "/topics/" in line["request"]]
    assert sorted(status for status, _ in told) == [401] * 5 + [403] * 3 and tokens["reader"] not in str(told)
    # A producer that is open is closed with the right that it used.
    assert admin.ask("DELETE", "/admin/v2/namespaces/public/default/permissions/writer")[0] == 204
    assert Rest(broker.http_url, Authorization=f"Bearer {tokens['writer']}").ask("POST", path, body)[0] == 403
    assert admin.ask("POST", "/admin/v2/namespaces/public/default/permissions/writer", ["produce"])[0] == 204
    assert Rest(broker.http_url, Authorization=f"Bearer {tokens['writer']}").ask("POST", path, body)[0] == 200


@pytest.mark.parametrize("processes", [1, 2])
def test_what_was_answered_is_stored_whatever_is_killed(start_broker, tmp_path, processes):
    (tmp_path / "geminga.toml").write_text(f"[http]\nweb_processes = {processes}\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    rest, topic = Rest(broker.http_url), ""
    topics = [rest.topic() for _ in range(3)]
    answered: dict[str, list[str]] = {topic: [] for topic in topics}
    is_over, lost = threading.Event(), []

    def publish(topic):
        number = 0
        while not is_over.wait(LOAD_PAUSE_SECONDS):
            status, answer = rest.produce(topic, [{"payload": f"{number}.{part}"} for part in range(5)])
            if status == 200:
                answered[topic] += [f"{number}.{part}" for part, one in enumerate(answer["messagePublishResults"])
                                    if not one["errorCode"]]
            else:
                lost.append((status, answer))
            number += 1

    threads = [threading.Thread(target=publish, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    for role in ("web", "worker", "owner", "web"):
        so_far = sum(map(len, answered.values()))
        eventually(lambda so_far=so_far: sum(map(len, answered.values())) > so_far + 30)
        broker.wait_replaced(role, 0, broker.kill(role))
    so_far = sum(map(len, answered.values()))
    eventually(lambda: sum(map(len, answered.values())) > so_far + 30)
    is_over.set()
    for thread in threads:
        thread.join()
    assert {status for status, _ in lost} <= {503}, lost
    for topic in topics:
        stored = [row["payload"] for row in rest.stored(topic)]
        assert set(answered[topic]) <= set(stored)
        once = list(dict.fromkeys(payload for payload in stored if payload in set(answered[topic])))
        assert once == answered[topic]      # in their order


def test_rest_and_clients_read_each_others_messages(rest, broker):
    topic = rest.topic()
    rest.publish(topic, {"id": 1}, valueSchema=schema("JSON", RECORD))
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    [message] = messages_of(client, topic)
    assert (message.data(), message.schema_version()) == (b'{"id":1}', "\0" * 8)
    client.close()


def test_clients_that_hang_up_in_the_middle_of_a_body_leave_nothing(rest, sockets):
    topic, where = rest.topic(), urlsplit(rest.http_url)
    for _ in range(5):
        with socket.create_connection((where.hostname, where.port), 30) as link:
            link.sendall(f"POST /topics/{path_of(topic)} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: "
                         'application/json\r\nContent-Length: 99\r\n\r\n{"messages":[{"payload":"x"}'.encode())
    rest.publish(topic, "y")
    assert payloads(sockets, topic, 1) == [b"y"]
