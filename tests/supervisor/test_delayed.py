"""Delayed messages over HTTP and by `geminga admin`, with a real broker and clients."""
import json
import time
from urllib.parse import quote

import pulsar
import pytest

from geminga.storage.runtime.units import instant, moment
from geminga.supervisor.main import main

from ..harness import HANG_MS, Broker, eventually, partitioned_topic, path_of, request, unique_topic

HOUR_MS = 3_600_000
SHARED = pulsar.ConsumerType.Shared


def now_ms():
    return int(time.time() * 1_000)


def ask(broker, method, topic, rest="", body=None):
    """Send a request; return status and answer."""
    status, text = request(method, f"{broker.http_url}/ops/v1/delayed/{path_of(topic)}{rest}",
                           body and json.dumps(body).encode())
    return status, json.loads(text) if text else None


def told(broker, topic, query=""):
    status, found = ask(broker, "GET", topic, f"?{query}")
    assert status == 200, found
    return found


def silent(url):
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


@pytest.fixture(scope="module")
def client(broker):
    made = silent(broker.service_url)
    yield made
    made.close()


def send(client, topic, *times_ms):
    """Publish a message for each of these times; 0: without a delay."""
    producer = client.create_producer(topic, batching_enabled=False)
    for number, time_ms in enumerate(times_ms):
        producer.send(b"%d" % number, **({"deliver_at": time_ms} if time_ms else {}))
    producer.close()


def ids(broker, topic):
    return [row["id"] for row in told(broker, topic, "by=message")["rows"]]


# -- lists of delayed messages

def test_what_waits_is_told_by_hour_by_window_and_each(broker, client):
    topic, hour = unique_topic("delayed"), (now_ms() // HOUR_MS + 48) * HOUR_MS
    send(client, topic, hour + 5, 0, hour, hour + 2 * HOUR_MS, hour + 1)
    found = told(broker, topic)
    assert found["rows"] == [{"from": hour, "to": hour + HOUR_MS, "entries": 3},
                             {"from": hour + 2 * HOUR_MS, "to": hour + 3 * HOUR_MS, "entries": 1}]
    assert (found["waiting"], found["next_due_at"], found["by"], found["has_more"]) == (4, hour, "hour", False)
    assert found["memory_bytes"] > 0 and {"windows", "index_bytes"} < found.keys()
    windows = told(broker, topic, "by=window")["rows"]
    assert sum(row["entries"] for row in windows) == 4 and all(row["from"] < row["to"] for row in windows)
    rows = told(broker, topic, "by=message")["rows"]
    assert [row["deliver_at"] for row in rows] == [hour, hour + 1, hour + 5, hour + 2 * HOUR_MS]
    assert all(row.keys() == {"id", "partition", "deliver_at", "publish_time", "messages", "bytes"} for row in rows)


def test_bounds_are_ms_or_iso_8601_or_so_long_from_now(broker, client):
    topic, hour = unique_topic("delayed"), (now_ms() // HOUR_MS + 48) * HOUR_MS
    send(client, topic, *[hour + n for n in range(10)])
    for query, count in ((f"from={hour + 3}", 7), (f"to={hour + 3}", 3),
                         (f"from={quote(instant(hour + 2))}&to={instant(hour + 4)}", 2),
                         ("to=1d", 0), ("from=1d&to=4d", 10), ("from=-1h", 10), ("from=2001-01-01&to=2002-01-01", 0)):
        assert len(told(broker, topic, f"by=message&{query}")["rows"]) == count, query
    cut = told(broker, topic, "by=message&limit=4")
    assert (len(cut["rows"]), cut["has_more"], cut["waiting"]) == (4, True, 10)
    assert told(broker, topic, "by=message&limit=10")["has_more"] is False


def test_partitions_are_told_together(broker, client):
    topic, hour = partitioned_topic(broker.http_url, 3), (now_ms() // HOUR_MS + 48) * HOUR_MS
    for number in range(3):
        send(client, f"{topic}-partition-{number}", hour + number, hour + 10 + number)
    assert told(broker, topic)["rows"] == [{"from": hour, "to": hour + HOUR_MS, "entries": 6}]
    rows = told(broker, topic, "by=message")["rows"]
    assert [(row["deliver_at"] - hour, row["partition"]) for row in rows] == [(0, 0), (1, 1), (2, 2), (10, 0), (11, 1),
                                                                             (12, 2)]
    assert [row["partition"] for row in told(broker, topic, "by=message&limit=2")["rows"]] == [0, 1]
    assert told(broker, f"{topic}-partition-1")["waiting"] == 2 and told(broker, topic)["waiting"] == 6
    # the message is found in whichever partition it is
    assert ask(broker, "DELETE", topic, f"/{rows[4]['id']}")[0] == 204
    assert ask(broker, "DELETE", f"{topic}-partition-0", f"/{rows[5]['id']}")[0] == 404
    assert told(broker, topic)["waiting"] == 5


# -- what is refused

BAD_TIMES = ("", "soon", "-5", "1.5h", "2026-13-01", "10000-01-01", "253402300800000", "9" * 30, "99999999999y",
             "1969-12-31", "NaN")


@pytest.fixture(scope="module")
def refusing(broker, client):
    """A topic with one delayed message."""
    topic = unique_topic("delayed")
    send(client, topic, now_ms() + HOUR_MS)
    return topic


def test_bounds_that_are_none_are_refused(broker, refusing):
    for query in (*(f"{bound}={text}" for bound in ("from", "to") for text in BAD_TIMES), "by=minute", "by=", "limit=x",
                  "limit=-1", "limit=10001", "limit=99999999999999999999", "from=2h&to=1h"):
        status, found = ask(broker, "GET", refusing, f"?{query}")
        assert status == 400 and found["reason"], query


def test_times_that_are_none_are_refused_and_change_nothing(broker, refusing):
    before = told(broker, refusing, "by=message")
    for body in (None, [], 5, {}, {"deliver_at": "1h", "more": 1}, *({"deliver_at": value} for value in (
            None, True, 1.5, [1], -1, 10 ** 300, *BAD_TIMES))):
        status, found = ask(broker, "PATCH", refusing, f"/{before['rows'][0]['id']}", body)
        assert status == 400 and found["reason"], body
    assert told(broker, refusing, "by=message") == before


def test_ids_that_are_none_and_messages_that_are_not_there(broker, refusing):
    none = ("x", "1", "1:", ":1", "1:-1", "-1:-1", "1:2:3:4:5", "9" * 30 + ":1", "%D9%A3:1", "1:2%0A", "%00", "%ff",
            "1%2F2")
    for message, expected in (*((text, 400) for text in none), ("999999999:0", 404), ("0:0", 404)):
        for method, body in (("DELETE", None), ("PATCH", {"deliver_at": "1h"})):
            status, found = ask(broker, method, refusing, f"/{message}", body)
            assert status == expected and found["reason"], (method, message)
    assert told(broker, refusing)["waiting"] == 1


def test_one_message_of_a_batch_is_refused(broker, refusing):
    """Messages of a batch have one delivery time, so an id with a message's or partition's number is refused."""
    [message] = ids(broker, refusing)
    for more in (":0", ":7", ":-1:0"):
        for method, body in (("DELETE", None), ("PATCH", {"deliver_at": "1h"})):
            status, found = ask(broker, method, refusing, f"/{message}{more}", body)
            assert status == 412 and message in found["reason"]
    assert told(broker, refusing)["waiting"] == 1


def test_topics_that_keep_nothing_or_are_not_there(broker, client):
    for topic, status in ((unique_topic("missing"), 404),
                          (unique_topic("live").replace("persistent", "non-persistent"), 405)):
        for method, rest, body in (("GET", "", None), ("DELETE", "/1:0", None),
                                   ("PATCH", "/1:0", {"deliver_at": "1h"})):
            found = ask(broker, method, topic, rest, body)
            assert found[0] == status and found[1]["reason"], (method, found)


# -- cancelled, and given another time

def test_what_is_cancelled_or_moved_survives_a_kill(start_broker):
    """Of messages for the same time one is cancelled, one moved forward, one moved back, and one left as it was."""
    own = start_broker("--owners", "1")
    topic, due_ms = unique_topic("delayed"), now_ms() + HOUR_MS
    client = silent(own.service_url)
    consumer = client.subscribe(topic, "sub", SHARED)
    send(client, topic, due_ms, due_ms, due_ms, due_ms)
    gone, sooner, later, same = ids(own, topic)
    sooner_ms = now_ms() + 2_000
    assert ask(own, "DELETE", topic, f"/{gone}")[0] == 204
    assert ask(own, "PATCH", topic, f"/{sooner}", {"deliver_at": sooner_ms})[0] == 204
    assert ask(own, "PATCH", topic, f"/{later}", {"deliver_at": instant(due_ms + HOUR_MS)})[0] == 204
    pid = own.kill("owner", 0)
    own.wait_replaced("owner", 0, pid)

    def receive():
        """Return the next message that is a new one: messages delivered before the kill come again."""
        while True:
            message = consumer.receive(HANG_MS)
            consumer.acknowledge(message)
            if message.data() not in came:
                came.append(message.data())
                return now_ms()

    came = []
    assert receive() >= sooner_ms
    rows = eventually(lambda: len(rows := told(own, topic, "by=message")["rows"]) == 2 and rows)
    assert [(row["id"], row["deliver_at"]) for row in rows] == [(same, due_ms), (later, due_ms + HOUR_MS)]
    for message in (later, same):
        assert ask(own, "PATCH", topic, f"/{message}", {"deliver_at": 0})[0] == 204
        receive()
    assert came == [b"1", b"2", b"3"]
    found = told(own, topic)
    assert (found["waiting"], found["next_due_at"], found["rows"]) == (0, None, [])
    status, text = request("GET", f"{own.http_url}/ops/v1/why/{path_of(topic)}/sub")
    assert status == 200 and json.loads(text)[0]["messages"]["skipped"] == 1
    for message in (gone, sooner):
        assert (
            ask(own, "DELETE", topic, f"/{message}")[0]
            == ask(own, "PATCH", topic, f"/{message}", {"deliver_at": "1h"})[0]
            == 409
        )
    client.close()


def test_a_change_is_in_the_audit_log_and_a_look_is_not(broker, client):
    if not isinstance(broker, Broker):
        pytest.skip("its data folder is somebody else's")
    topic = unique_topic("delayed")
    send(client, topic, now_ms() + HOUR_MS, now_ms() + HOUR_MS)
    first, second = ids(broker, topic)
    assert (
        ask(broker, "DELETE", topic, f"/{first}")[0]
        == ask(broker, "PATCH", topic, f"/{second}", {"deliver_at": "2h"})[0]
        == 204
    )
    lines = [json.loads(line) for line in (broker.data_dir / "audit.log").read_text().splitlines()]
    assert [(line["request"], line["status"]) for line in lines if topic.rpartition("/")[2] in line["request"]] == [
        (f"{method} /ops/v1/delayed/{path_of(topic)}/{message}", 204)
        for method, message in (("DELETE", first), ("PATCH", second))]


# -- the command

@pytest.fixture
def run(broker, capsys):
    """run(words...): exit status, standard output, standard error"""
    def run(*words):
        status = main([*words[:1], "--admin-url", broker.http_url, *words[1:]])
        printed = capsys.readouterr()
        return status, printed.out, printed.err
    return run


def test_the_command_shows_and_changes_what_waits(broker, client, run):
    topic, hour = unique_topic("delayed"), (now_ms() // HOUR_MS + 48) * HOUR_MS
    send(client, topic, hour, hour + 1, hour + HOUR_MS)
    status, printed, _ = run("admin", "delayed", "list", topic)
    assert status == 0
    assert "waiting       3\n" in printed and f"next_due_at   {instant(hour)}\n" in printed
    ends = [instant(hour + number * HOUR_MS) for number in range(3)]
    assert [line.split() for line in printed.partition("rows\n")[2].splitlines()] == [
        ["from", "to", "entries"], [*ends[:2], "2"], [*ends[1:], "1"]]
    status, printed, _ = run("admin", "-o", "json", "delayed", "list", topic, "--by", "message", "--to", str(hour + 1))
    assert status == 0 and [row["deliver_at"] for row in json.loads(printed)["rows"]] == [hour]
    first, second, third = ids(broker, topic)
    assert run("admin", "delayed", "cancel", topic, first) == (0, "", "")
    assert run("admin", "delayed", "reschedule", topic, second, "--at", "2040-01-01") == (0, "", "")
    before = now_ms()
    assert run("admin", "delayed", "reschedule", topic, third, "--after", "3h") == (0, "", "")
    near, far = told(broker, topic, "by=message")["rows"]
    assert (near["id"], far["id"], far["deliver_at"]) == (third, second, moment("2040-01-01", 0))
    assert before // 1_000 * 1_000 <= near["deliver_at"] - 3 * HOUR_MS <= now_ms()
    status, _, complaint = run("admin", "delayed", "cancel", topic, first)
    assert status == 1 and "(HTTP 409)" in complaint
    for words in (["reschedule", topic, second], ["reschedule", topic, second, "--at", "1h", "--after", "1h"],
                  ["reschedule", topic, second, "--after", "soon"], ["cancel", topic], ["list", "a/b"],
                  ["list", topic, "--by", "day"]):
        assert run("admin", "delayed", *words)[0] == 2, words
    assert run("admin", "delayed", "list", topic, "--from", "soon")[0] == 1


def test_why_tells_when_the_next_is_due(broker, client, run):
    topic, due_ms = unique_topic("delayed"), now_ms() + HOUR_MS
    consumer = client.subscribe(topic, "sub", SHARED)
    send(client, topic, due_ms, due_ms + 1)
    eventually(lambda: f"at {instant(due_ms)}." in run("why", topic, "sub")[1])
    assert "2 messages wait for their delivery times; the next is due in " in run("why", topic, "sub")[1]
    consumer.close()
