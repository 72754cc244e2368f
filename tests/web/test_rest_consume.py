"""Consuming over plain HTTP: long polls, acknowledgements, server-sent events, and what bounds them."""
import json
import socket
import subprocess
import threading
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

import psutil
import pytest

from ..harness import Stopwatch, eventually, guarded_broker, partitioned_topic, path_of, unique_topic
from .rest import Rest, schema
from .sockets import Sockets

SECONDS = 30
RECORD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def rest(broker):
    return Rest(broker.http_url)


def subscribed(rest, topic=None, *payloads):
    """Return a topic with a subscription s, and these messages."""
    topic = topic or rest.topic()
    assert rest.ask("PUT", f"/admin/v2/{path_of(topic)}/subscription/s")[0] == 204
    if payloads:
        rest.publish(topic, *payloads)
    return topic


def place_of(topic, subscription="s"):
    return f"/topics/{path_of(topic)}/subscription/{quote(subscription, safe='')}"


def take(rest, topic, subscription="s", **parameters):
    """Return the messages of one call."""
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    status, answer = rest.ask("POST", f"{place_of(topic, subscription)}?{query}")
    assert status == 200, answer
    return answer["messages"]


def take_all(rest, topic, count, **parameters):
    """Return messages of as many calls as it takes to have `count`."""
    found = []
    while len(found) < count:
        some = take(rest, topic, wait=SECONDS, **parameters)
        assert some
        found += some
    return found


def ack(rest, topic, *messages, more="", **body):
    if messages:
        body["messageIds"] = [one["messageId"] for one in messages]
    status, answer = rest.ask("POST", f"{place_of(topic)}/ack{more}", body)
    assert status == 204, answer


def nack(rest, topic, *messages, **body):
    status, answer = rest.ask("POST", f"{place_of(topic)}/nack",
                              {"messageIds": [one["messageId"] for one in messages], **body})
    assert status == 204, answer


def backlog(rest, topic, subscription="s"):
    return rest.ask("GET", f"/admin/v2/{path_of(topic)}/stats")[1]["subscriptions"][subscription]["msgBacklog"]


def consumers(rest, topic, subscription="s"):
    return len(rest.ask("GET", f"/admin/v2/{path_of(topic)}/stats")[1]["subscriptions"][subscription]["consumers"])


@contextmanager
def curl(rest, topic, *options, **parameters):
    """Yield a curl that reads the events of a subscription."""
    query = "&".join(f"{name}={value}" for name, value in parameters.items())
    command = ["curl", "-sSN", "-X", "POST", "-H", "Accept: text/event-stream", *options,
               f"{rest.http_url}{place_of(topic)}?{query}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(2 * SECONDS, process.kill)      # so that a test that waits for an event ends
        limit.start()
        try:
            yield process
        finally:
            process.kill()
            limit.cancel()


def event(process):
    """Return the next event of a stream, as a dictionary of its fields; comments are skipped."""
    fields: dict[str, str] = {}
    for line in process.stdout:
        if line == "\n" and fields:
            return fields
        name, _, value = line.rstrip("\n").partition(": ")
        if not line.startswith(":") and line != "\n":
            fields[name] = value
    return fields


# -- polls and acknowledgements

@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_each_type_delivers_until_messages_are_acknowledged(rest, kind):
    topic = subscribed(rest, None, "1", "2", "3")
    found = take_all(rest, topic, 3, subscriptionType=kind)
    assert [one["payload"] for one in found] == ["1", "2", "3"] and backlog(rest, topic) == 3
    ack(rest, topic, *found, more=f"?subscriptionType={kind}")
    assert backlog(rest, topic) == 0      # it is on disk when the answer comes


def test_a_message_has_all_that_its_producer_said(rest, sockets):
    topic = subscribed(rest)
    rest.produce(topic, [{"payload": "é", "key": "k", "properties": {"a": "b"}, "eventTime": 5, "sequenceId": 3}],
                 producerName="me", valueSchema=schema("BYTES"))
    sockets.producer(topic).publish(b"\xff")
    text, raw = take_all(rest, topic, 2)
    assert text.pop("publishTime") > 1_700_000_000_000
    place = text.pop("messageId")
    assert place.endswith(":-1") and place.count(":") == 2
    assert text == {"payload": "é", "encoding": "text", "key": "k", "properties": {"a": "b"}, "eventTime": 5,
                    "producerName": "me", "sequenceId": 3, "redeliveryCount": 0}
    assert (raw["payload"], raw["encoding"]) == ("/w==", "base64")


def test_payloads_are_decoded_by_their_schemas(rest):
    topic = subscribed(rest)
    rest.publish(topic, {"id": 7}, valueSchema=schema("AVRO", RECORD))
    rest.publish(topic, {"id": 8}, schemaVersion=0)
    assert [(one["payload"], one["encoding"], one["schemaVersion"]) for one in take_all(rest, topic, 2)] == [
        ({"id": 7}, "json", 0), ({"id": 8}, "json", 0)]
    topic = subscribed(rest)
    rest.produce(topic, [{"key": "1", "payload": "NaN"}, {"key": "2", "payload": "0.5"}],
                 keySchema=schema("INT32"), valueSchema=schema("DOUBLE"))
    first, second = take_all(rest, topic, 2)
    assert second["payload"] == {"key": 2, "value": 0.5} and (second["key"], second["keyEncoding"]) == (
        "AAAAAg==", "base64")
    assert (first["encoding"], first["payload"]) == ("base64", "f/gAAAAAAAA=")      # JSON cannot say it
    topic = subscribed(rest, None, "text")
    assert [(one["payload"], one["encoding"]) for one in take(rest, topic)] == [("text", "text")]


def test_a_call_waits_until_a_message_comes(rest):
    topic = subscribed(rest)
    assert take(rest, topic, wait=0) == []
    found = []
    waiting = threading.Thread(target=lambda: found.extend(take(rest, topic, wait=SECONDS)))
    waiting.start()
    eventually(lambda: consumers(rest, topic) == 1)
    watch = Stopwatch()
    rest.publish(topic, "now")
    waiting.join()
    assert [one["payload"] for one in found] == ["now"] and watch.seconds() < SECONDS / 2


def test_a_new_subscription_begins_where_the_call_says(rest):
    topic = rest.topic()
    rest.publish(topic, "before")
    assert take(rest, topic, "latest", wait=0) == []
    rest.publish(topic, "after")
    assert [one["payload"] for one in take(rest, topic, "latest", wait=SECONDS)] == ["after"]
    assert take(rest, topic, "a b/c", subscriptionInitialPosition="Earliest")[0]["payload"] == "before"
    assert "a b/c" in rest.ask("GET", f"/admin/v2/{path_of(topic)}/subscriptions")[1]


def test_calls_have_different_messages_and_max_bounds_each(rest):
    topic = subscribed(rest, None, *map(str, range(10)))
    found = [take(rest, topic, max=3, wait=SECONDS) for _ in range(4)]
    assert [len(one) <= 3 for one in found] == [True] * 4
    payloads = [one["payload"] for some in found for one in some]
    assert len(set(payloads)) == len(payloads)


def test_what_is_unacknowledged_is_bounded(rest):
    topic = subscribed(rest, None, *"abcde")
    found = take_all(rest, topic, 3, receiverQueueSize=3)
    assert len(found) == 3 and take(rest, topic, receiverQueueSize=3, wait=0) == []
    ack(rest, topic, found[0])
    assert len(take(rest, topic, receiverQueueSize=3, wait=SECONDS)) == 1


def test_calls_that_wait_together_are_served_in_turn(rest):
    topic, found = subscribed(rest), []
    threads = [threading.Thread(target=lambda: found.extend(take(rest, topic, max=1, wait=SECONDS))) for _ in range(5)]
    for thread in threads:
        thread.start()
    rest.publish(topic, *"abcde")
    for thread in threads:
        thread.join()
    assert sorted(one["payload"] for one in found) == list("abcde")


def test_what_is_not_acknowledged_in_time_comes_again(rest):
    topic = subscribed(rest, None, "x")
    first = take(rest, topic, ackTimeoutMillis=1000)
    again = take(rest, topic, ackTimeoutMillis=1000, wait=SECONDS)
    assert [(one["messageId"], one["redeliveryCount"]) for one in first + again] == [
        (first[0]["messageId"], 0), (first[0]["messageId"], 1)]


@pytest.mark.parametrize("kind", ["Shared", "Exclusive"])
def test_a_negative_acknowledgement_brings_messages_again(rest, kind):
    topic = subscribed(rest, None, "x")
    [first] = take(rest, topic, subscriptionType=kind)
    nack(rest, topic, first, delayMs=0)
    [again] = take(rest, topic, subscriptionType=kind, wait=SECONDS)
    assert (again["messageId"], again["redeliveryCount"]) == (first["messageId"], 1)
    nack(rest, topic, again, delayMs=600_000)
    assert take(rest, topic, subscriptionType=kind, wait=1) == []


def test_everything_up_to_a_message_is_acknowledged_at_once(rest):
    topic = subscribed(rest, None, *"abc")
    found = take_all(rest, topic, 3, subscriptionType="Exclusive")
    ack(rest, topic, upTo=found[1]["messageId"])
    assert backlog(rest, topic) == 1
    shared = subscribed(rest, None, "x")
    [one] = take(rest, shared)
    status, answer = rest.ask("POST", f"{place_of(shared)}/ack", {"upTo": one["messageId"]})
    assert status == 409 and "Exclusive" in answer["reason"] and backlog(rest, shared) == 1


def test_messages_of_a_batch_are_acknowledged_one_by_one(rest, sockets):
    topic = subscribed(rest)
    producer = sockets.producer(topic, batchingEnabled="true", batchingMaxMessages="3", batchingMaxPublishDelay="60000")
    for payload in ("MA==", "MQ==", "Mg=="):
        producer.send(payload=payload)
    for _ in range(3):
        producer.receive()
    found = take_all(rest, topic, 3)
    assert [one["messageId"].split(":")[3:] for one in found] == [["0", "3"], ["1", "3"], ["2", "3"]]
    ack(rest, topic, found[1])
    nack(rest, topic, found[0], found[2])
    assert sorted(one["payload"] for one in take_all(rest, topic, 2)) == ["0", "2"]
    ack(rest, topic, found[0], found[2])
    assert backlog(rest, topic) == 0


def test_partitions_are_read_and_acknowledged_together(rest, broker):
    topic = partitioned_topic(broker.http_url, 3)
    rest.ask("PUT", f"/admin/v2/{path_of(topic)}/subscription/s")
    rest.publish(topic, *"abcdef")
    found = take_all(rest, topic, 6)
    assert sorted(one["payload"] for one in found) == list("abcdef")
    assert {one["messageId"].split(":")[2] for one in found} == {"0", "1", "2"}
    ack(rest, topic, *found)
    stats = rest.ask("GET", f"/admin/v2/{path_of(topic)}/partitioned-stats")[1]
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert rest.ask("POST", f"{place_of(topic)}/ack", {"messageIds": ["99999999:0:7"]})[0] == 400


def test_ids_stay_good_when_the_consumer_that_had_them_is_gone(start_broker):
    broker = start_broker()
    rest = Rest(broker.http_url)
    topic = subscribed(rest, None, "x")
    [one] = take(rest, topic)
    broker.wait_replaced("web", 0, broker.kill("web"))
    ack(rest, topic, one)
    assert backlog(rest, topic) == 0
    topic = subscribed(rest, None, *"ab")
    found = take_all(rest, topic, 2, subscriptionType="Failover")
    broker.wait_replaced("web", 0, broker.kill("web"))
    ack(rest, topic, more="?subscriptionType=Failover", upTo=found[1]["messageId"])
    assert backlog(rest, topic) == 0


def test_a_message_that_failed_too_often_goes_to_another_topic(rest):
    topic = subscribed(rest, None, "x")
    for count in range(2):
        [one] = take(rest, topic, maxRedeliverCount=1, wait=SECONDS)
        assert one["redeliveryCount"] == count
        nack(rest, topic, one)
    assert take(rest, topic, maxRedeliverCount=1, wait=1) == []
    eventually(lambda: backlog(rest, topic) == 0)
    assert [row["payload"] for row in rest.stored(f"{topic}-s-DLQ")] == ["x"]


def test_the_end_of_a_terminated_topic_is_told(rest):
    topic = subscribed(rest, None, "last")
    rest.ask("POST", f"/admin/v2/{path_of(topic)}/terminate")
    ack(rest, topic, *take_all(rest, topic, 1))
    assert eventually(lambda: rest.ask("POST", f"{place_of(topic)}?wait=0")[1].get("endOfTopic"))


@pytest.mark.slow
def test_unused_consumers_end_and_what_they_had_taken_in_advance_is_free(rest, sockets):
    topic = subscribed(rest)
    assert take(rest, topic, wait=0) == [] and consumers(rest, topic) == 1      # it has permits left
    rest.publish(topic, "x")
    eventually(lambda: consumers(rest, topic) == 0)
    assert sockets.consumer(topic, "s").data(1) == [b"x"]


@pytest.mark.slow
def test_a_consumer_whose_messages_are_out_stays_until_they_are_acknowledged(rest):
    topic, unused = subscribed(rest, None, "x"), subscribed(rest)
    [one] = take(rest, topic, ackTimeoutMillis=600_000)
    assert take(rest, unused, wait=0) == []
    eventually(lambda: consumers(rest, unused) == 0)
    assert consumers(rest, topic) == 1
    ack(rest, topic, one)


def test_other_parameters_need_that_no_call_waits(rest):
    topic = subscribed(rest)
    waiting = threading.Thread(target=lambda: take(rest, topic, wait=SECONDS))
    waiting.start()
    # A consumer has permits once the call waits; before that another call may still replace the consumer.
    eventually(lambda: [one["availablePermits"] > 0 for one in rest.ask(
        "GET", f"/admin/v2/{path_of(topic)}/stats")[1]["subscriptions"]["s"]["consumers"]] == [True])
    assert rest.ask("POST", f"{place_of(topic)}?subscriptionType=Exclusive")[0] == 409
    rest.publish(topic, "x")
    waiting.join()
    assert [one["payload"] for one in take(rest, topic, subscriptionType="Exclusive", wait=SECONDS)] == ["x"]


# -- events

def test_events_carry_ids_and_comments_keep_the_stream_alive(rest):
    topic = subscribed(rest, None, "a\nb")
    with curl(rest, topic) as stream:
        first = event(stream)
        rest.publish(topic, "c")
        second = event(stream)
        message = json.loads(first["data"])
        assert (message["payload"], message["messageId"]) == ("a\nb", first["id"])
        assert json.loads(second["data"])["payload"] == "c"
        ack(rest, topic, message, json.loads(second["data"]))
        assert backlog(rest, topic) == 0


def test_a_stream_that_comes_back_goes_on_behind_its_last_event(rest):
    topic = subscribed(rest, None, *"abcd")
    parameters = {"ackTimeoutMillis": 600_000}
    with curl(rest, topic, **parameters) as stream:
        events = [event(stream) for _ in range(4)]
    with curl(rest, topic, "-H", f"Last-Event-ID: {events[1]['id']}", **parameters) as stream:
        assert [json.loads(event(stream)["data"])["payload"] for _ in range(2)] == ["c", "d"]
    assert rest.ask("POST", place_of(topic), None, Accept="text/event-stream", **{"Last-Event-ID": "x"})[0] == 400


def test_a_stream_and_calls_share_a_subscription(rest):
    topic = subscribed(rest)
    with curl(rest, topic) as stream:
        eventually(lambda: consumers(rest, topic) == 1)
        rest.publish(topic, "x")
        assert json.loads(event(stream)["data"])["payload"] == "x"
        assert take(rest, topic, wait=0) == [] and consumers(rest, topic) == 1


def test_a_stream_says_why_it_ends(start_broker):
    broker = start_broker()
    rest = Rest(broker.http_url)
    topic = subscribed(rest)
    with curl(rest, topic) as stream:
        assert stream.stdout.readline() == ":\n"      # it is open
        assert broker.stop() == 0
        assert event(stream).get("event") in ("end", None)
        assert stream.wait(SECONDS) in (0, 18)      # 18: the admin process was quicker


# -- bounds, ends

def test_a_client_that_hangs_up_gives_its_place_to_the_next(rest):
    topic = subscribed(rest)
    where = urlsplit(rest.http_url)
    for _ in range(5):
        with socket.create_connection((where.hostname, where.port), SECONDS) as link:
            link.sendall(f"GET {place_of(topic)}?wait=60 HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
    with curl(rest, topic) as stream:
        eventually(lambda: consumers(rest, topic) == 1)
        stream.kill()
    rest.publish(topic, "x")
    assert [one["payload"] for one in take_all(rest, topic, 1)] == ["x"]


def test_bytes_behind_a_call_for_messages_harm_nobody(rest):
    """A body that never ends, or a request that comes with the call: the connection ends with the answer."""
    topic, where = subscribed(rest, None, "x"), urlsplit(rest.http_url)
    for more in ("Content-Length: 99\r\n\r\n{", f"\r\nGET /status.html HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n"):
        with socket.create_connection((where.hostname, where.port), SECONDS) as link:
            link.sendall(f"POST {place_of(topic)}?wait=0 HTTP/1.1\r\nHost: {where.netloc}\r\n{more}".encode())
            came = b""
            while b'{"messages":[' not in came:
                some = link.recv(65_536)
                assert some, came
                came += some
        assert came.startswith(b"HTTP/1.1 200") and b"Connection: close" in came


@pytest.mark.slow
def test_a_slow_reader_costs_little_and_holds_up_nobody(broker, rest):
    topic, where = subscribed(rest), urlsplit(rest.http_url)
    slow = socket.create_connection((where.hostname, where.port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.sendall(f"POST {place_of(topic)} HTTP/1.1\r\nHost: {where.netloc}\r\nAccept: text/event-stream\r\n\r\n"
                 .encode())
    assert b"200" in slow.recv(20)
    processes = [psutil.Process(broker.child(role)) for role in ("web", "admin")]
    rest.publish(topic, "warm")
    before = [process.memory_full_info().uss for process in processes]
    other = subscribed(rest)
    for _ in range(12):      # 48 MB
        rest.publish(topic, "x" * 4_000_000)
        rest.publish(other, "y")
        ack(rest, other, *take_all(rest, other, 1))
    after = [process.memory_full_info().uss for process in processes]
    assert all(now - then < 60 << 20 for then, now in zip(before, after, strict=True)), (before, after)
    slow.close()


@pytest.mark.parametrize("query", [
    "max=0", "max=1001", "max=x", "wait=-1", "wait=61", "wait=x", "subscriptionType=shared", "ackTimeoutMillis=0",
    "ackTimeoutMillis=999", "ackTimeoutMillis=3600001", "subscriptionInitialPosition=First", "receiverQueueSize=-1",
    "consumerName=", "maxRedeliverCount=0", "deadLetterTopic=x"])
def test_wrong_parameters_are_refused(rest, query):
    topic = subscribed(rest)
    status, answer = rest.ask("POST", f"{place_of(topic)}?{query}")
    assert status == 400 and query.partition("=")[0] in answer["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "body"), [
    ("ack", b""), ("ack", b"x"), ("ack", b"[]"), ("ack", b"{}"), ("ack", b'{"messageIds":"1:0:-1"}'),
    ("ack", b'{"messageIds":[5]}'), ("ack", b'{"messageIds":["x"]}'), ("ack", b'{"messageIds":["1:0"]}'),
    ("ack", b'{"messageIds":["99999999999999999999:0:-1"]}'), ("ack", b'{"messageIds":["9999999999999999999:0:-1"]}'),
    ("ack", b'{"messageIds":["1:0:-1:3:3"]}'), ("ack", b'{"messageIds":["1:0:-1:0:999999"]}'), ("ack", b'{"upTo":5}'),
    ("ack", b'{"messageIds":[' + b'"1:0:-1",' * 10_000 + b'"1:0:-1"]}'),
    ("nack", b"{}"), ("nack", b'{"messageIds":["1:0:-1"],"delayMs":-1}'),
    ("nack", b'{"messageIds":["1:0:-1"],"delayMs":true}'), ("nack", b'{"messageIds":["1:0:-1"],"delayMs":1e3}')])
def test_wrong_acknowledgements_are_refused_and_change_nothing(rest, what, body):
    topic = subscribed(rest, None, "x")
    assert rest.ask("POST", f"{place_of(topic)}/{what}", body)[0] == 400
    assert backlog(rest, topic) == 1


def test_missing_places_and_taken_subscriptions_have_their_status(rest, sockets):
    missing = unique_topic()
    for path in (place_of(missing), "/topics/persistent/public/nothing/t/subscription/s"):
        assert rest.ask("POST", path)[0] == rest.ask("POST", path + "/ack", {"messageIds": []})[0] == 404
    topic = rest.topic()
    sockets.consumer(topic, "s")      # Exclusive
    assert rest.ask("POST", place_of(topic))[0] == 409
    for method, path, status in (("PUT", place_of(topic), 405), ("GET", place_of(topic) + "/ack", 405),
                                 ("GET", f"/topics/{path_of(topic)}/subscription/", 404)):
        assert rest.ask(method, path, None)[0] == status


def test_pages_of_other_sites_take_no_messages(rest):
    topic = subscribed(rest, None, "x")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://example.com"}, {"Host": "example.com"}):
        for method in ("GET", "POST"):
            assert rest.ask(method, place_of(topic), None, **headers)[0] == 403
    assert len(take(rest, topic)) == 1


IMAGE = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Accept": "image/*"}


@pytest.mark.parametrize("more", ["", "?token=any", "?subscriptionMode=NonDurable"])
def test_an_image_of_a_page_takes_no_message_and_makes_no_subscription(rest, more):
    """Over plain HTTP by a name browsers do not say whose page asks, and a GET names no origin."""
    topic = subscribed(rest, None, "x")
    for subscription in ("s", "planted"):
        for headers in (IMAGE, {}, {"Authorization": "Basic eDp5"}, {"Accept": "text/event-stream"}):
            status, answer = rest.ask("GET", place_of(topic, subscription) + more, None, **headers)
            assert status == 403 and "POST" in answer["reason"]
    assert list(rest.ask("GET", f"/admin/v2/{path_of(topic)}/stats")[1]["subscriptions"]) == ["s"]
    assert backlog(rest, topic) == 1


@pytest.mark.parametrize("proof", [
    {"X-Requested-With": "script"}, {"Sec-Fetch-Site": "same-origin"}, {"Authorization": "Bearer any"}])
def test_a_get_that_no_page_of_another_site_can_send_takes_messages(rest, proof):
    topic = subscribed(rest, None, "x")
    status, answer = rest.ask("GET", place_of(topic), None, **proof)
    assert status == 200 and len(answer["messages"]) == 1


def test_a_token_in_the_address_proves_that_a_get_is_asked_for_where_tokens_are(start_broker, tmp_path):
    broker, tokens = guarded_broker(start_broker, tmp_path, "admin")
    admin = Rest(broker.http_url, Authorization=f"Bearer {tokens['admin']}")
    topic = subscribed(admin, None, "x")
    status, answer = Rest(broker.http_url).ask("GET", f"{place_of(topic)}?token={tokens['admin']}")
    assert status == 200 and len(answer["messages"]) == 1


def test_rights_to_consume_are_those_of_the_subscription(start_broker, tmp_path):
    broker, tokens = guarded_broker(start_broker, tmp_path, "admin", "writer", "reader", "other")
    admin = Rest(broker.http_url, Authorization=f"Bearer {tokens['admin']}")
    for role, action in (("writer", "produce"), ("reader", "consume"), ("other", "consume")):
        assert admin.ask("POST", f"/admin/v2/namespaces/public/default/permissions/{role}", [action])[0] == 204
    assert admin.ask("POST", "/admin/v2/namespaces/public/default/permissions/subscription/s", ["reader"])[0] == 204
    topic = subscribed(admin, None, "x")
    by = {role: Rest(broker.http_url, Authorization=f"Bearer {token}") for role, token in tokens.items()}
    for rest, status in ((Rest(broker.http_url), 401), (by["writer"], 403), (by["other"], 403)):
        for method, more, body in (("GET", "", None), ("POST", "/ack", {"messageIds": []}),
                                   ("POST", "/nack", {"messageIds": []})):
            assert rest.ask(method, place_of(topic) + more, body)[0] == status
    found = take(by["reader"], topic)
    ack(by["reader"], topic, *found)
    status, answer = Rest(broker.http_url).ask("GET", f"{place_of(topic)}?wait=0&token={tokens['reader']}")
    assert (status, answer) == (200, {"messages": []})
    with curl(by["reader"], topic, "-H", f"Authorization: Bearer {tokens['reader']}") as stream:
        assert stream.stdout.readline() == ":\n"      # it is open
        assert admin.ask("DELETE", "/admin/v2/namespaces/public/default/permissions/reader")[0] == 204
        assert event(stream)["event"] == "end"


def test_every_message_comes_before_it_is_gone_whatever_is_killed(start_broker):
    broker = start_broker()
    rest = Rest(broker.http_url)
    topic, seen, is_over = subscribed(rest), set(), threading.Event()

    def consume():
        while not is_over.is_set():
            status, answer = rest.ask("POST", f"{place_of(topic)}?max=20&wait=1&ackTimeoutMillis=2000")
            if status == 200 and answer["messages"]:
                seen.update(one["payload"] for one in answer["messages"])
                # An answer that is lost leaves open whether they are acknowledged.
                rest.ask("POST", f"{place_of(topic)}/ack",
                         {"messageIds": [one["messageId"] for one in answer["messages"]]})

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    published = []
    for number in range(30):
        published += [f"{number}.{part}" for part in range(20)]
        while rest.produce(topic, [{"payload": payload} for payload in published[-20:]])[0] != 200:
            pass
        if number in (5, 15):
            broker.wait_replaced("web", 0, broker.kill("web"))
        if number == 10:
            broker.wait_replaced("owner", 0, broker.kill("owner", 0))
    try:
        eventually(lambda: set(published) <= seen and backlog(rest, topic) == 0)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_two_processes_serve_topics_each_of_its_own(start_broker, tmp_path):
    (tmp_path / "geminga.toml").write_text("[http]\nweb_processes = 2\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    rest = Rest(broker.http_url)
    for _ in range(6):
        topic = subscribed(rest, None, "x")
        ack(rest, topic, *take_all(rest, topic, 1))
        assert backlog(rest, topic) == 0 and consumers(rest, topic) == 1
    with Sockets(broker.http_url) as sockets:
        assert sockets.producer(topic).publish(b"x")
