"""Schedules over HTTP and by `geminga schedule`, with a real broker, real clients and kills."""
import base64
import json
import time
from datetime import datetime

import pulsar
import pytest

from geminga.storage.recurring.recurring import TOPIC_MAX
from geminga.storage.runtime.units import moment
from geminga.supervisor.main import main

from ..harness import HANG_MS, Broker, eventually, partitioned_topic, path_of, request, unique_topic

SECOND_MS = 1_000
EACH_SECOND = {"every": "1s", "missed": "all", "message": {"payload": "tick"}}


def ask(broker, method, topic, rest="", body=None):
    """Send a request about schedules; return status and answer."""
    status, text = request(method, f"{broker.http_url}/ops/v1/schedules/{path_of(topic)}{rest}",
                           None if body is None else json.dumps(body).encode())
    return status, json.loads(text) if text else None


def put(broker, topic, name, **body):
    status, found = ask(broker, "PUT", topic, f"/{name}", {"message": {"payload": "x"}} | body)
    assert status == 200, found
    return found


def make(broker, topic):
    assert request("PUT", f"{broker.http_url}/admin/v2/{path_of(topic)}")[0] == 204
    return topic


@pytest.fixture
def topic(broker):
    return make(broker, unique_topic("scheduled"))


@pytest.fixture
def client(broker):
    made = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def planned_ms(message):
    return round(datetime.fromisoformat(message.properties()["geminga.scheduled-for"]).timestamp() * 1_000)


def receive(consumer, count):
    messages = [consumer.receive(HANG_MS) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return messages


# -- publishing

def test_a_client_gets_each_planned_second_once(broker, topic, client):
    consumer = client.subscribe(topic, "s")
    told = put(broker, topic, "tick", **EACH_SECOND)
    assert (told["every"], told["missed"], told["at_most"], told["paused"]) == (SECOND_MS, "all", 100, False)
    messages = receive(consumer, 3)
    times = [planned_ms(message) for message in messages]
    assert times == [times[0], times[0] + SECOND_MS, times[0] + 2 * SECOND_MS]
    for message, time_ms in zip(messages, times, strict=True):
        assert message.data() == b"tick" and message.properties()["geminga.schedule"] == "tick"
        assert time_ms % SECOND_MS == 0 and message.publish_timestamp() >= time_ms
    assert ask(broker, "DELETE", topic, "/tick") == (204, None)
    assert ask(broker, "GET", topic) == (200, [])


def test_no_second_is_missing_or_there_twice_over_kills_restarts_and_unloads(tmp_path):
    """Owners are killed, all processes are killed, topics are unloaded, while three schedules publish each second."""
    broker = Broker(tmp_path / "data", "--owners", "2")
    broker.start()
    try:
        topics = [make(broker, unique_topic("killed")) for _ in range(3)]
        parted = partitioned_topic(broker.http_url, 3)
        for topic in [*topics, parted]:
            put(broker, topic, "tick", every="1s", missed="all", at_most=1_000)
        for number in range(4):
            broker.kill("owner", number % 2)
            eventually(lambda: request("GET", f"{broker.http_url}/ready")[0] == 200)
            request("PUT", f"{broker.http_url}/admin/v2/{path_of(topics[number % 3])}/unload")
        broker.kill_supervisor()
        broker.start()
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for topic in [*topics, parted]:
            ended = time.time_ns() // 1_000_000
            consumer = client.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
            times = []
            while not times or times[-1] < ended:
                times.append(planned_ms(consumer.receive(HANG_MS)))
            assert times == list(range(times[0], times[-1] + 1, SECOND_MS))
        client.close()
    finally:
        broker.stop()


def test_a_scalable_topic_gets_each_second_once_while_it_is_made_splits_merges_and_is_killed(tmp_path, capsys):
    """An ordinary topic with a schedule is made scalable; then segments change, owners and the broker are killed."""
    broker = Broker(tmp_path / "data", "--owners", "2")
    broker.start()
    try:
        topic = partitioned_topic(broker.http_url, 2)
        scalable, path = topic.replace("persistent", "topic"), path_of(topic).removeprefix("persistent/")
        assert request("PUT", f"{broker.http_url}/admin/v2/{path_of(topic)}/subscription/keeps")[0] == 204
        told = [put(broker, topic, name, every="1s", missed="all", at_most=1_000) for name in "bd"]
        began = time.time_ns() // 1_000_000
        url = f"{broker.http_url}/admin/v2/scalable/{path}"
        for number, change in enumerate(("migrate", "split/2", "merge/4/5", "merge/6/3", "split/7")):
            eventually(lambda: all(one["published"] for one in ask(broker, "GET", topic)[1]), what=change)
            assert request("POST", f"{url}/{change}")[0] in (204, 503), change
            if number % 2:
                broker.kill("owner", number // 2)
            eventually(lambda: request("GET", f"{broker.http_url}/ready")[0] == 200)
        broker.kill_supervisor()
        broker.start()
        assert main(["schedule", "list", scalable, "-o", "json", "--admin-url", broker.http_url]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert {one["topic"] for one in shown} == {scalable} and len(shown) == 2
        layout = json.loads(request("GET", url)[1])["segments"].values()
        names = [one.get("legacyTopicName") or "segment://public/default/{}/{:04x}-{:04x}-{}".format(
            topic.rpartition("/")[2], *one["hashRange"].values(), one["segmentId"]) for one in layout]
        assert {one["partition"] for one in shown} <= set(names) - {one["partition"] for one in told}
        ended = eventually(lambda: (now := time.time_ns() // 1_000_000) > began + 7 * SECOND_MS and now)
        eventually(lambda: all(one["next"] and moment(one["next"][0], 0) > ended
                               for one in ask(broker, "GET", scalable)[1]), what="all that was planned until then")
        assert main(["consume", scalable, "-o", "jsonl", "--url", broker.service_url]) == 0
        messages = [json.loads(line)["properties"] for line in capsys.readouterr().out.splitlines()]
        for name in "bd":      # a second may begin between the two, so each has a first one of its own
            times = sorted(moment(one["geminga.scheduled-for"], 0) for one in messages
                           if one["geminga.schedule"] == name)
            times = [time_ms for time_ms in times if time_ms <= ended]
            assert times == list(range(times[0], times[-1] + 1, SECOND_MS))
            assert times[0] <= began + SECOND_MS and times[-1] > ended - SECOND_MS
    finally:
        broker.stop()


def test_a_key_chooses_the_partition_and_everything_goes_there(broker, client):
    topic = partitioned_topic(broker.http_url, 4)
    told = put(broker, topic, "tick", message={"payload": "x", "key": "k", "properties": {"a": "b"}}, every="1s")
    assert not main(["produce", topic, "-k", "k", "other", "--quiet", "--url", broker.service_url])
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    messages = receive(consumer, 3)
    assert {message.topic_name() for message in messages} == {told["partition"]}
    mine = next(message for message in messages if message.data() == b"x")
    assert mine.partition_key() == "k" and mine.properties()["a"] == "b"


def test_a_schedule_that_moves_to_another_partition_publishes_no_second_twice(broker, client):
    topic = partitioned_topic(broker.http_url, 8)
    consumer = client.subscribe(topic, "s")
    partitions = set()
    for key in ("a", "b", "c", "d"):
        partitions.add(put(broker, topic, "tick", message={"payload": "x", "key": key}, every="1s")["partition"])
        receive(consumer, 1)
    assert len(partitions) > 1
    rest = receive(consumer, 2)
    times = sorted(planned_ms(message) for message in rest)
    assert len(set(times)) == len(times)
    ask(broker, "DELETE", topic, "/tick")


def test_a_value_is_encoded_by_the_topics_schema_and_a_wrong_one_is_refused(broker, topic, client):
    class Job(pulsar.schema.Record):
        what = pulsar.schema.String()
        count = pulsar.schema.Integer()

    consumer = client.subscribe(topic, "s", schema=pulsar.schema.AvroSchema(Job))
    put(broker, topic, "job", every="1s", message={"value": {"what": "clean", "count": 3}})
    message = consumer.receive(HANG_MS)
    assert (message.value().what, message.value().count) == ("clean", 3)
    status, told = ask(broker, "PUT", topic, "/wrong", {"every": "1s", "message": {"value": {"what": 7}}})
    assert status == 400 and told["reason"].startswith("message.")
    base = f"{broker.http_url}/admin/v2/{path_of(topic)}"
    assert request("POST", f"{base}/schemaValidationEnforced", b"true")[0] == 204
    assert ask(broker, "PUT", topic, "/bytes", {"every": "1s", "message": {"payload": "free"}})[0] in (409, 422)
    ask(broker, "DELETE", topic, "/job")


# -- trying, pausing, running

def test_a_dry_run_shows_next_times_and_keeps_nothing(broker, topic):
    status, told = ask(broker, "PUT", topic, "/report?dry-run=true", {
        "cron": "30 2 * * *", "time_zone": "Europe/Berlin", "message": {"payload": "x"}})
    assert status == 200 and len(told["next"]) == 5
    assert all(time_[11:16] in ("02:30", "03:00") for time_ in told["next"])
    assert ask(broker, "GET", topic) == (200, [])


def why(broker, topic, capsys):
    capsys.readouterr()
    assert main(["why", topic, "s", "--admin-url", broker.http_url]) == 0
    return capsys.readouterr().out


def test_pause_resume_run_and_the_account(broker, topic, client, capsys):
    consumer = client.subscribe(topic, "s")
    put(broker, topic, "tick", every="1s", paused=True)
    assert ask(broker, "GET", topic, "/tick")[1]["next"] == []
    status, ran = ask(broker, "POST", topic, "/tick/run")
    assert status == 200 and ran["topic"] == topic
    [message] = receive(consumer, 1)
    assert f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}" == ran["id"]
    assert planned_ms(message) == round(datetime.fromisoformat(ran["scheduled_for"]).timestamp() * 1_000)
    assert ask(broker, "POST", topic, "/tick/resume") == (204, None)
    receive(consumer, 2)
    told = ask(broker, "GET", topic, "/tick?next=3")[1]
    assert told["published"] >= 3 and told["last"] < told["next"][0] < told["next"][1] and len(told["next"]) == 3
    assert "publishes next at" in why(broker, topic, capsys)
    assert ask(broker, "POST", topic, "/tick/pause") == (204, None)
    assert "tick publishes nothing, as it is paused; its last message was for" in why(broker, topic, capsys)
    count = ask(broker, "GET", topic, "/tick")[1]["published"]
    assert ask(broker, "GET", topic, "/tick")[1] | {"next": []} == \
        ask(broker, "GET", topic, "/tick")[1] | {"published": count}


def test_what_cannot_be_published_is_told_with_its_reason(broker, topic, client, capsys):
    client.subscribe(topic, "s").close()
    put(broker, topic, "tick", every="1s")
    request("POST", f"{broker.http_url}/admin/v2/{path_of(topic)}/terminate")
    told = eventually(lambda: (row := ask(broker, "GET", topic, "/tick")[1])["waiting"] and row)
    assert "terminated" in told["waiting"]
    assert f"tick cannot publish, and tries again: {told['waiting']}" in why(broker, topic, capsys)
    for page in (f"schedules?match={topic.rpartition('/')[2]}", f"topics/{path_of(topic)}"):
        status, shown = request("GET", f"{broker.http_url}/console/{page}")
        assert status == 200 and "every 1 s" in shown and told["waiting"] in shown, shown
    state = json.loads(request("GET", f"{broker.http_url}/ops/v1/status")[1])["schedules"]
    assert state["total"] >= 1 and state["waiting"] >= 1
    metrics = request("GET", f"{broker.http_url}/metrics")[1]
    for name in ("geminga_schedules{", "geminga_schedules_waiting{", "geminga_scheduled_published_total{",
                 "geminga_scheduled_missed_total{"):
        assert name in metrics
    ask(broker, "DELETE", topic, "/tick")


# -- refusals

@pytest.mark.parametrize(("body", "reason"), [
    (None, "the body"), ([], "the body"), ({"every": "1s"}, "message"), ({"message": {"payload": "x"}}, "cron, every"),
    ({"every": "0.5s", "message": {"payload": "x"}}, "every"), ({"every": 10, "message": {"payload": "x"}}, "every"),
    ({"cron": "* * * *", "message": {"payload": "x"}}, "cron"),
    ({"cron": "* * * * *", "time_zone": "Nowhere/At_All", "message": {"payload": "x"}}, "time_zone"),
    ({"every": "1s", "message": {}}, "message"), ({"every": "1s", "message": {"payload": 5}}, "message.payload"),
    ({"every": "1s", "message": {"payloadBase64": "?"}}, "message.payloadBase64"),
    ({"every": "1s", "message": {"value": 5}}, "message.value"),
    ({"every": "1s", "message": {"payload": "x", "deliverAfter": "1m"}}, "message.deliverAfter"),
    ({"every": "1s", "message": {"payload": "x", "properties": {"geminga.schedule": "me"}}},
     "message.properties.geminga.schedule"),
    ({"every": "1s", "paused": 1, "message": {"payload": "x"}}, "paused"),
    ({"every": "1s", "what": 1, "message": {"payload": "x"}}, "what"),
])
def test_a_body_that_is_no_schedule_is_refused_by_its_field(broker, topic, body, reason):
    status, told = ask(broker, "PUT", topic, "/tick", body)
    assert status == 400 and told["reason"].startswith(reason), told


def test_places_that_have_no_schedules_are_refused(broker, topic):
    body = {"every": "1s", "message": {"payload": "x"}}
    assert ask(broker, "PUT", unique_topic(), "/tick", body)[0] == 404
    assert ask(broker, "PUT", topic, "/with%20space", body)[0] == 400
    assert ask(broker, "GET", topic, "/none")[0] == 404
    assert ask(broker, "POST", topic, "/none/run")[0] == 404
    parted = partitioned_topic(broker.http_url, 2)
    assert ask(broker, "PUT", f"{parted}-partition-1", "/tick", body)[0] == 412
    assert ask(broker, "PUT", unique_topic().replace("persistent", "topic"), "/tick", body)[0] == 404


def test_a_topic_has_so_many_schedules_and_large_payloads_are_refused(broker, topic):
    for number in range(TOPIC_MAX):
        put(broker, topic, f"s{number}", every="1d")
    body = {"every": "1d", "message": {"payload": "x"}}
    assert ask(broker, "PUT", topic, "/more", body)[0] == 409
    assert ask(broker, "PUT", topic, "/s0", body | {"every": "2d"})[1]["every"] == 2 * 86_400_000
    base = f"{broker.http_url}/admin/v2/{path_of(topic)}"
    assert request("POST", f"{base}/maxMessageSize", b"100")[0] == 204
    status, told = ask(broker, "PUT", topic, "/s1", {"every": "1d", "message": {"payload": "x" * 101}})
    assert status == 400 and "101 bytes" in told["reason"]
    rows = json.loads(request("GET", f"{broker.http_url}/ops/v1/schedules")[1])
    assert sum(row["topic"] == topic for row in rows) == TOPIC_MAX and not any("message" in row for row in rows)
    assert request("DELETE", base)[0] == 204
    assert not [row for row in json.loads(request("GET", f"{broker.http_url}/ops/v1/schedules")[1])
                if row["topic"] == topic]


# -- definitions

def test_definitions_have_schedules_and_an_import_brings_them_back(broker, topic):
    put(broker, topic, "report", cron="0 7 * * *", time_zone="Europe/Berlin",
        message={"payloadBase64": base64.b64encode(bytes(range(256))).decode(), "key": "k"})
    whole = json.loads(request("GET", f"{broker.http_url}/ops/v1/definitions")[1])
    schedules = whole["topics"][topic]["schedules"]
    assert schedules["report"]["time_zone"] == "Europe/Berlin"
    assert ask(broker, "DELETE", topic, "/report")[0] == 204
    wanted = json.dumps({"version": 1, "topics": {topic: {"schedules": schedules}}}).encode()
    url = f"{broker.http_url}/ops/v1/definitions"
    status, text = request("POST", url, wanted)
    assert status == 200 and "schedule report" in text, text
    assert ask(broker, "GET", topic, "/report")[1]["message"]["key"] == "k"
    assert json.loads(request("POST", url, wanted)[1]) == {"changes": []}
    wrong = json.dumps({"version": 1, "topics": {topic: {"schedules": {"x": {"every": 1}}}}}).encode()
    assert request("POST", url, wrong)[0] == 400


# -- the command

def run(capsys, broker, *words):
    status = main(["schedule", *words, "--admin-url", broker.http_url])
    printed = capsys.readouterr()
    return status or 0, printed.out, printed.err


def test_the_command_makes_shows_runs_and_deletes(broker, topic, capsys):
    status, out, _ = run(capsys, broker, "set", topic, "close", "--cron", "0 18 * * MON-FRI", "--time-zone",
                         "Europe/Berlin", "--missed", "all", "--at-most", "3", "-k", "k", "-p", "a=b", "end of day")
    assert status == 0 and "0 18 * * MON-FRI Europe/Berlin" in out and out.count("  next ") == 5
    assert '"payload": "end of day"' in out and "missed     all 3" in out
    status, out, _ = run(capsys, broker, "list", topic)
    assert status == 0 and "close" in out and "active" in out
    status, out, _ = run(capsys, broker, "list", topic, "-o", "json")
    assert json.loads(out)[0]["message"] == {"payload": "end of day", "key": "k", "properties": {"a": "b"}}
    assert run(capsys, broker, "list")[0] == 0
    assert run(capsys, broker, "pause", topic, "close") == (0, "", "")
    assert "paused" in run(capsys, broker, "show", topic, "close")[1]
    assert run(capsys, broker, "resume", topic, "close")[0] == 0
    status, out, _ = run(capsys, broker, "run", topic, "close")
    assert status == 0 and ":" in out
    status, out, _ = run(capsys, broker, "show", topic, "close", "--next", "2", "-o", "json")
    assert len(json.loads(out)["next"]) == 2
    assert run(capsys, broker, "delete", topic, "close")[0] == 0
    assert run(capsys, broker, "show", topic, "close")[0] == 1


def test_the_command_tries_takes_files_and_refuses(broker, topic, capsys, tmp_path):
    file = tmp_path / "payload"
    file.write_bytes(b"\x00\xff")
    status, out, _ = run(capsys, broker, "set", topic, "f", "--every", "90s", "--payload-file", str(file), "--dry-run")
    assert status == 0 and "every " in out and "payloadBase64" in out
    assert run(capsys, broker, "list", topic, "-o", "json")[1].strip() in ("[]", "")
    for words in (("x",), ("--every", "1s"), ("--every", "1s", "--cron", "* * * * *", "x"),
                  ("--every", "1s", "--value", "{", ), ("--every", "1s", "-p", "a", "x"),
                  ("--every", "1s", "--at-most", "5", "x"), ("--every", "soon", "x"),
                  ("--every", "1s", "--value", "1", "x")):
        assert run(capsys, broker, "set", topic, "f", *words)[0] == 2, words
    status, _, err = run(capsys, broker, "set", topic, "f", "--cron", "61 * * * *", "x")
    assert status == 1 and "61 cannot be the minute" in err
