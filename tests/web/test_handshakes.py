"""Paths of the WebSocket API, and the handshake's status for whatever is wrong."""
import json
import uuid

import pytest

from ..harness import partitioned_topic, path_of, request, unique_topic

HANDSHAKE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
             "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg=="}


@pytest.mark.parametrize(("kind", "parameters", "status"), [
    ("producer", {"producerName": ""}, 400), ("producer", {"producerName": "pulsar.repl.far"}, 400),
    ("producer", {"initialSequenceId": "x"}, 400),
    ("producer", {"sendTimeoutMillis": "-1"}, 400), ("producer", {"compressionType": "lz4"}, 400),
    ("producer", {"compressionType": ""}, 400), ("producer", {"messageRoutingMode": "Other"}, 400),
    ("producer", {"hashingScheme": "Other"}, 400), ("producer", {"encryptionKeys": "my-key"}, 400),
    ("producer", {"batchingEnabled": "TRUE", "batchingMaxMessages": "x"}, 400),
    ("producer", {"batchingEnabled": "true", "batchingMaxPublishDelay": "-1"}, 400),
    ("producer", {"batchingEnabled": "true", "batchingMaxPublishDelay": "0"}, 400),
    ("producer", {"batchingEnabled": "true", "batchingMaxMessages": "0"}, 101),
    ("producer", {"batchingEnabled": "true", "maxPendingMessages": "many"}, 400),
    ("producer", {"batchingMaxMessages": "x", "unknown": "1", "messageRoutingMode": "CustomPartition"}, 101),
    ("producer", {"sendTimeoutMillis": "0", "hashingScheme": "Murmur3_32Hash", "initialSequenceId": "-5"}, 101),
    ("consumer", {"subscriptionType": "shared"}, 400), ("consumer", {"subscriptionMode": "durable"}, 400),
    ("consumer", {"subscriptionInitialPosition": "First"}, 400), ("consumer", {"receiverQueueSize": "-1"}, 400),
    ("consumer", {"receiverQueueSize": ""}, 400), ("consumer", {"consumerName": ""}, 400),
    ("consumer", {"priorityLevel": "-1"}, 400), ("consumer", {"ackTimeoutMillis": "999"}, 400),
    ("consumer", {"negativeAckRedeliveryDelay": "-1"}, 400), ("consumer", {"maxRedeliverCount": "0"}, 400),
    ("consumer", {"deadLetterTopic": "x"}, 400),
    ("consumer", {"cryptoFailureAction": "x", "pullMode": "x", "ackTimeoutMillis": "0", "priorityLevel": "2"}, 101),
    ("reader", {"messageId": "!"}, 400), ("reader", {"messageId": " "}, 101),
    ("reader", {"receiverQueueSize": "x"}, 400),
])
def test_each_parameter_takes_what_pulsar_takes(sockets, kind, parameters, status):
    end = "/s" if kind == "consumer" else ""
    assert sockets.status(f"/ws/v2/{kind}/{path_of(unique_topic())}{end}", **parameters) == status


@pytest.mark.parametrize(("path", "status"), [
    ("/ws/v2/producer/persistent/public/default", 400), ("/ws/v2/producer/other/public/default/t", 400),
    ("/ws/v2/producer/persistent/public/default/t/more", 400), ("/ws/v2/producer/persistent/public/default/%ff", 400),
    ("/ws/v2/consumer/persistent/public/default/t", 400), ("/ws/v2/consumer/persistent/public/default/t/", 400),
    ("/ws/v2/consumer/persistent/public/default/t/s/more", 400),
    ("/ws/v3/consumer/s", 400), ("/ws/v3/consumer/s?topics=a&topicsPattern=b", 400), ("/ws/v3/consumer/?topics=a", 400),
    ("/ws/v3/consumer/s?topicsPattern=x", 400), ("/ws/v3/consumer/s?topicsPattern=public/default/(", 400),
    ("/ws/v3/producer/t", 404), ("/ws/v2/ping", 404), ("/ws/producer/persistent/public/standalone/default/t", 404),
    ("/ws/v2/producer/persistent/nobody/default/t", 404), ("/ws/v2/reader/persistent/public/nothing/t", 404),
    ("/ws/v2/consumer/persistent/public/nothing/t/s", 404),
])
def test_wrong_paths_and_missing_places_are_refused(sockets, path, status):
    assert sockets.status(path) == status


def test_a_door_is_for_websocket_only(broker):
    url = f"{broker.http_url}/ws/v2/reader/{path_of(unique_topic())}"
    assert request("GET", url)[0] == 405 and request("POST", url, b"{}")[0] == 405
    assert request("GET", url, **HANDSHAKE | {"Sec-WebSocket-Version": "7"})[0] == 400
    assert request("GET", url, **HANDSHAKE | {"Sec-WebSocket-Key": "short"})[0] == 400
    status, text = request("GET", url + "?receiverQueueSize=x", **HANDSHAKE)
    assert (status, json.loads(text)["reason"].partition(":")[0]) == (400, "Invalid query params")


def test_names_are_percent_decoded(sockets, broker):
    topic = f"persistent://public/default/a b-{uuid.uuid4().hex}"
    sockets.open(f"/ws/v2/consumer/{path_of(topic).replace(' ', '%20')}/a%20b%2Fc")
    subscriptions = request("GET", f"{broker.http_url}/admin/v2/{path_of(topic).replace(' ', '%20')}/subscriptions")[1]
    assert json.loads(subscriptions) == ["a b/c"]


def test_what_is_taken_is_a_conflict(sockets):
    topic = unique_topic()
    sockets.producer(topic, producerName="one")
    assert sockets.status(f"/ws/v2/producer/{path_of(topic)}", producerName="one") == 409
    sockets.consumer(topic, "s")
    assert sockets.status(f"/ws/v2/consumer/{path_of(topic)}/s") == 409
    assert sockets.status(f"/ws/v2/consumer/{path_of(topic)}/s", subscriptionType="Shared") == 409


def test_who_comes_again_at_once_is_let_in(sockets):
    """The connection before it has just ended, and the broker may not have seen that yet."""
    topic = unique_topic()
    for _ in range(5):
        sockets.consumer(topic, "s", consumerName="me").close()
        sockets.producer(topic, producerName="me").close()
    assert sockets.status(f"/ws/v2/consumer/{path_of(topic)}/s") == 101


def test_a_terminated_topic_and_a_full_one_are_unavailable_at_once(sockets, broker):
    topic = unique_topic()
    producer = sockets.producer(topic)
    producer.publish(b"last")
    place = f"{broker.http_url}/admin/v2/{path_of(topic)}"
    assert request("POST", f"{place}/terminate")[0] == 200
    producer.send(payload="eA==", context="7")
    answer = producer.receive()
    assert (answer["result"], answer["context"]) == ("send-error:8", "7")
    assert sockets.status(f"/ws/v2/producer/{path_of(topic)}") == 503
    full = unique_topic("full")
    sockets.consumer(full, "s")
    sockets.producer(full).publish(b"x" * 1000)
    quota = {"limitSize": 10, "limitTime": -1, "policy": "producer_exception"}
    assert request("POST", f"{broker.http_url}/admin/v2/{path_of(full)}/backlogQuota", json.dumps(quota).encode())[0] \
        in (200, 204)
    assert sockets.status(f"/ws/v2/producer/{path_of(full)}") == 503


def test_pages_of_other_sites_need_a_token(sockets, broker):
    door = f"/ws/v2/reader/{path_of(unique_topic())}"
    assert sockets.status(door, {"Origin": "https://example.com"}) == 403
    assert sockets.status(door, {"Origin": broker.http_url}) == 101
    assert sockets.status(door, {"Origin": "http://localhost:3000"}) == 101
    # Nobody asks for tokens here, so any page could write one.
    assert sockets.status(door, {"Origin": "https://example.com"}, token="any") == 403
    tool = {"Origin": "https://example.com", "Authorization": "Bearer any"}      # which no page can add
    assert sockets.status(door, tool) == 101


def test_a_reader_of_partitions_starts_at_an_end(sockets, broker):
    topic = partitioned_topic(broker.http_url, 2)
    place = sockets.producer(topic).publish(b"x")
    assert sockets.status(f"/ws/v2/reader/{path_of(topic)}", messageId=place) == 400
    assert sockets.reader(topic, messageId="earliest").message()["data"] == b"x"
