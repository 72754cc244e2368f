"""Compaction on demand and by threshold, the jobs that the broker starts for it, and their status after any failure."""
import asyncio
import contextlib
import json
import socket
import time

import psutil
import pulsar
import pytest

from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_to_read
from geminga.storage.ledgers import compacted_ledgers
from geminga.storage.runtime.unix_sockets import short_path
from geminga.storage.statistics.columns import LATENCIES_MS
from geminga.supervisor.admin.resources import compaction
from geminga.supervisor.configuration.config import Config
from geminga.supervisor.tasks import job_socket

from ..harness import HANG_MS, HANG_SECONDS, Broker, eventually, partitioned_topic, request, unique_topic
from .test_metrics import samples, value

KEYS = 5


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A broker that looks at thresholds each second."""
    folder = tmp_path_factory.mktemp("compaction")
    (folder / "geminga.toml").write_text("[nightly]\ncheck_interval_s = 1\n")
    made = Broker(folder / "data", "--config", str(folder / "geminga.toml"))
    yield made.start()
    made.close()


def fill(client, topic, rounds=10, size=10):
    """Publish several messages of each key; the last one has the highest number."""
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(rounds * KEYS):
        producer.send_async(b"%0*d" % (size, number), lambda *_: None, partition_key=f"key-{number % KEYS}")
    producer.flush()
    producer.close()


def url_of(broker, topic):
    return f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/compaction"


def status_of(broker, topic):
    """Return a compaction's status, as soon as the process that answers has been started."""
    def answer():
        with contextlib.suppress(OSError):
            code, text = request("GET", url_of(broker, topic))
            assert code in (200, 503), text
            return code == 200 and json.loads(text)
        return None
    return eventually(answer, what="an answer")


def ended(broker, topic):
    """Wait for the end of a compaction; return its status."""
    found = eventually(lambda: (now := status_of(broker, topic))["status"] != "RUNNING" and now,
                       what=f"the end of {topic}'s compaction")
    return found["status"], found["lastError"]


def partition_id(broker, topic):
    catalogue = open_to_read(broker.data_dir / "catalogue.sqlite")
    found = {name: number for number, name in catalogue.partitions.all()}[topic]
    catalogue.close()
    return found


def views(broker, topic):
    return compacted_ledgers.numbers(format.partition_folder(broker.data_dir, partition_id(broker, topic)))


def compacted_values(client, topic):
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = {}
    while reader.has_message_available():
        message = reader.read_next(HANG_MS)
        assert message.partition_key() not in found, "a key comes once"
        found[message.partition_key()] = int(message.data())
    reader.close()
    return found


# -- on demand

def test_a_topic_is_compacted_when_it_is_asked_for(own, client):
    topic = unique_topic("compacted")
    fill(client, topic)
    assert status_of(own, topic) == {"status": "NOT_RUN", "lastError": ""}
    assert request("PUT", url_of(own, topic)) == (204, "")
    assert ended(own, topic) == ("SUCCESS", "")
    assert views(own, topic) == [1]
    assert compacted_values(client, topic) == {f"key-{number % KEYS}": number for number in range(45, 50)}


def test_one_in_which_there_is_nothing_succeeds_too(own):
    topic = unique_topic("nothing")
    assert request("PUT", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}")[0] == 204
    # the body does not matter, as the route reads none
    assert request("PUT", url_of(own, topic), b"[1") == (204, "")
    assert ended(own, topic) == ("SUCCESS", "")


def test_all_partitions_of_a_topic_are_compacted(own, client):
    topic = partitioned_topic(own.http_url, 3)
    parts = [f"{topic}-partition-{number}" for number in range(3)]
    for part in parts:
        fill(client, part)
    assert request("PUT", url_of(own, topic)) == (204, "")
    assert [ended(own, part) for part in parts] == [("SUCCESS", "")] * 3
    assert [views(own, part) for part in parts] == [[1]] * 3
    # the partitioned topic has no status of its own, as in Pulsar
    status, text = request("GET", url_of(own, topic))
    assert (status, json.loads(text)) == (404, {"reason": f"Topic {topic} not found"})


@pytest.mark.parametrize(("method", "topic", "status"), [
    ("GET", "persistent/public/default/none", 404), ("PUT", "persistent/public/default/none", 404),
    ("GET", "persistent/public/none/none", 404), ("PUT", "persistent/public/none/none", 404),
    ("GET", "persistent/none/none/none", 404), ("PUT", "persistent/none/none/none", 404),
    ("GET", "non-persistent/public/default/live", 405), ("PUT", "non-persistent/public/default/live", 405),
    ("DELETE", "persistent/public/default/none", 405)])
def test_what_there_is_not_is_refused(own, method, topic, status):
    code, text = request(method, f"{own.http_url}/admin/v2/{topic}/compaction")
    assert code == status and json.loads(text)["reason"]


def test_a_threshold_begins_it(own, client):
    """A compaction begins each time that so much was published since the last one."""
    topic = unique_topic("threshold")
    place = f"{own.http_url}/admin/v2/{topic.replace('://', '/')}"
    assert request("PUT", place)[0] == 204
    assert request("POST", f"{place}/compactionThreshold", b"3000")[0] == 204
    fill(client, topic, size=100)
    eventually(lambda: views(own, topic) == [1], what="a first view")
    fill(client, topic, size=100)
    eventually(lambda: views(own, topic)[-1:] == [2], what="a second view")
    assert ended(own, topic) == ("SUCCESS", "")


def test_a_policy_keeps_the_message_with_the_latest_event_time(own, client):
    """Compactions that are asked for follow the policy of the topic; a wrong order is refused and changes nothing."""
    topic = unique_topic("late")
    place = f"{own.http_url}/admin/v2/{topic.replace('://', '/')}"
    assert request("PUT", place)[0] == 204
    assert request("POST", f"{place}/compactionOrder", b'"event_time"')[0] == 204
    assert request("POST", f"{place}/compactionOrder", b'"newest"')[0] == 400
    assert json.loads(request("GET", f"{place}/compactionOrder")[1]) == "event_time"
    producer = client.create_producer(topic)
    for number, event_time in enumerate((5, 7, 6)):
        producer.send(b"%d" % number, partition_key="key", event_timestamp=event_time)
    producer.close()
    assert request("PUT", url_of(own, topic))[0] == 204
    assert ended(own, topic) == ("SUCCESS", "")
    assert compacted_values(client, topic) == {"key": 1}


# -- what jobs say

@contextlib.contextmanager
def job(broker):
    """say(...) -> answer: a job's messages to the broker, sent by the test."""
    with socket.socket(socket.AF_UNIX) as link, short_path(broker.data_dir / job_socket.SOCKET) as path:
        link.settimeout(HANG_SECONDS)
        link.connect(path)
        with link.makefile("rwb") as file:
            def say(what=None, raw=b""):
                file.write(raw or json.dumps(what).encode() + b"\n")
                file.flush()
                line = file.readline()
                return json.loads(line) if line else None
            yield say


def report(number, topic, error=""):
    return {"partition_id": number, "topic": topic, "outcome": "failed" if error else "nothing new", "error": error}


def test_while_a_job_is_at_it_nobody_else_may_and_its_error_is_told(own, client):
    topic = unique_topic("at-it")
    fill(client, topic)
    number, before_ms = partition_id(own, topic), time.time_ns() // 1_000_000
    assert compaction_stats(own, topic)["lastCompactionFailedTimestamp"] == 0
    with job(own) as say:
        assert say({"began": {number: topic}}) == {"answer": None}
        assert status_of(own, topic) == {"status": "RUNNING", "lastError": ""}
        status, text = request("PUT", url_of(own, topic))
        assert (status, json.loads(text)) == (409, {"reason": "Compaction already in progress"})
        assert say({"ended": report(number, topic, "its disk is full")}) == {"answer": None}
        assert status_of(own, topic) == {"status": "ERROR", "lastError": "its disk is full"}
        say({"began": {number: topic}})
    assert ended(own, topic)[0] == "ERROR" and "before it was done" in ended(own, topic)[1]
    failed_ms = compaction_stats(own, topic)["lastCompactionFailedTimestamp"]
    assert before_ms <= failed_ms <= time.time_ns() // 1_000_000
    assert request("PUT", url_of(own, topic))[0] == 204
    assert ended(own, topic) == ("SUCCESS", "")
    told = compaction_stats(own, topic)
    assert told["lastCompactionFailedTimestamp"] == failed_ms <= told["lastCompactionSucceedTimestamp"]


def stats_of(broker, topic):
    status, text = request("GET", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats")
    assert status == 200
    return json.loads(text)


def compaction_stats(broker, topic):
    return stats_of(broker, topic)["compaction"]


def test_what_compactions_have_read_is_told_apart_from_what_consumers_got(own, client):
    topic = unique_topic("read")
    fill(client, topic)
    assert stats_of(own, topic)["bytesOutInternalCounter"] == 0
    assert request("PUT", url_of(own, topic)) == (204, "")
    assert ended(own, topic) == ("SUCCESS", "")
    eventually(lambda: stats_of(own, topic)["bytesOutInternalCounter"] > 0, what="the end of its job")
    found = stats_of(own, topic)
    assert (found["bytesOutInternalCounter"], found["bytesOutCounter"]) == (found["bytesInCounter"], 0)


def test_of_all_partitions_the_last_compaction_is_told(own, client):
    """Times are the latest of all partitions, and not added."""
    topic = partitioned_topic(own.http_url, 2, "together")
    fill(client, topic)
    assert request("PUT", url_of(own, topic))[0] == 204
    parts = [f"{topic}-partition-{number}" for number in range(2)]
    assert [ended(own, part) for part in parts] == [("SUCCESS", "")] * 2
    status, text = request("GET", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}/partitioned-stats")
    each = [compaction_stats(own, part) for part in parts]
    assert status == 200 and json.loads(text)["compaction"] == {
        name: max(one[name] for one in each) for name in each[0]} | {
        "lastCompactionRemovedEventCount": sum(one["lastCompactionRemovedEventCount"] for one in each)}


def test_the_socket_is_for_whoever_may_write_the_folder_and_for_a_few_questions(own):
    assert (own.data_dir / job_socket.SOCKET).stat().st_mode & 0o777 == 0o600
    with job(own) as say:
        assert say({"ask": "delete", "topic": "persistent://public/default/t", "force": True}) == {
            "refused": "There is no question delete", "again": False}
        assert "refused" in say({"ask": "adopt-view", "topic": "persistent://public/default/none", "view": 1})
    admin = own.child("admin")
    for line in (b"no JSON\n", b"[1, 2]\n", b"{}\n", b'{"ask": "enforce", "topic": 7}\n', b'{"ended": 1}\n',
                 b'{"began": [1]}\n'):
        with job(own) as say:
            assert say(raw=line) is None
    with job(own) as say:
        assert say({"ask": "leftovers", "owner": 0})["answer"]["folders"] == 0
    assert own.child("admin") == admin


# -- whatever is killed

def jobs_of(broker, partition):
    """Return the jobs that the broker has started for this partition."""
    def is_of_partition(child):
        words = child.cmdline()
        return "--partitions" in words and str(partition) in words[words.index("--partitions") + 1].split(",")

    with contextlib.suppress(psutil.NoSuchProcess, TypeError):
        return [child for child in psutil.Process(broker.child("admin")).children() if is_of_partition(child)]
    return []


def is_stopped(child):
    return all(psutil.Process(thread.id).status() == psutil.STATUS_STOPPED for thread in child.threads())


def is_held(broker, topic, child):
    """Stop a job; return whether it stands before its end, and has told the broker of no end."""
    child.suspend()
    eventually(lambda: is_stopped(child), what="a job that stands still")
    # What the job had sent until then is read before the second question: the broker reads its sockets by turns.
    return [status_of(broker, topic)["status"] for _ in range(2)] == ["RUNNING"] * 2 and is_stopped(child)


def caught(broker, topic):
    """Return a job of this topic that stands still; the topic is being compacted for as long."""
    number = partition_id(broker, topic)

    def attempt():
        if status_of(broker, topic)["status"] != "RUNNING":
            request("PUT", url_of(broker, topic))
        for child in jobs_of(broker, number):
            with contextlib.suppress(psutil.NoSuchProcess):
                if is_held(broker, topic, child):
                    return child
                child.resume()
        return None
    return eventually(attempt, what="a job that was caught before its end")


def test_a_job_that_is_killed_is_told_of_and_the_next_goes_on(own, client):
    topic, other = unique_topic("killed"), unique_topic("waits")
    fill(client, topic)
    fill(client, other)
    child = caught(own, topic)
    assert request("PUT", url_of(own, other))[0] == 204
    assert status_of(own, other)["status"] == "RUNNING"      # the second topic has to wait, and is not begun twice
    assert request("PUT", url_of(own, other))[0] == 409
    child.kill()
    status, error = ended(own, topic)
    assert status == "ERROR" and "killed by SIGKILL" in error
    before = views(own, topic)      # there is one if the job was killed between two messages
    assert ended(own, other) == ("SUCCESS", "")
    fill(client, topic)
    assert request("PUT", url_of(own, topic))[0] == 204
    assert ended(own, topic) == ("SUCCESS", "")
    assert views(own, topic) == [(before or [0])[-1] + 1]


def test_the_number_of_a_job_that_has_ended_is_not_killed_when_the_admin_process_ends(tmp_path, monkeypatch):
    killed = []
    monkeypatch.setattr(compaction.jobs, "command", lambda *_: ["true"])
    monkeypatch.setattr(compaction.os, "killpg", lambda *about: killed.append(about))
    made = compaction.Compactions(Config(data_dir=tmp_path), None, None)
    assert asyncio.run(made._run_job([1])) == 0
    made._kill()      # as at the end
    assert len(killed) == 1


def test_after_the_admin_process_was_killed_its_job_is_gone_and_the_views_say_how_it_was(own, client):
    done, begun = unique_topic("done"), unique_topic("begun")
    for topic in (done, begun):
        fill(client, topic)
    assert request("PUT", url_of(own, done))[0] == 204
    assert ended(own, done) == ("SUCCESS", "")
    child = caught(own, begun)
    admin = own.kill("admin")
    own.wait_replaced("admin", 0, admin)
    with contextlib.suppress(psutil.NoSuchProcess):
        child.resume()      # the job may have been stopped before it asked the kernel to end it with its parent
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="the end of its job")
    assert status_of(own, done)["status"] == "SUCCESS"
    assert status_of(own, begun)["status"] == ("SUCCESS" if views(own, begun) else "NOT_RUN")
    assert request("PUT", url_of(own, begun))[0] == 204
    assert ended(own, begun) == ("SUCCESS", "")


def test_a_job_goes_on_after_the_admin_process_was_killed(own, client):
    """The job repeats what it is working on."""
    topic = unique_topic("goes-on")
    fill(client, topic)
    number = partition_id(own, topic)
    with contextlib.closing(job_socket.BrokerSocket(own.data_dir)) as served:
        served.began({number: topic})
        admin = own.kill("admin")
        own.wait_replaced("admin", 0, admin)
        assert served.ask("leftovers")["folders"] == 0
        assert status_of(own, topic)["status"] == "RUNNING"
        served.ended(report(number, topic))
        assert status_of(own, topic)["status"] == "SUCCESS"


def test_an_owner_that_is_started_again_is_waited_for(own, client):
    with contextlib.closing(job_socket.BrokerSocket(own.data_dir)) as served:
        owner = own.kill("owner", 0)
        assert served.ask("leftovers", owner=0)["left"] == 0
        own.wait_replaced("owner", 0, owner)


def test_a_broker_that_stops_leaves_no_job(own, client):
    topic = unique_topic("stops")
    fill(client, topic)
    child = caught(own, topic)
    assert own.stop() == 0
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="the end of its job")
    own.start()


# -- numbers

def test_compactions_have_series_by_topic(own, client):
    topic = unique_topic("counted")
    fill(client, topic)
    assert request("PUT", url_of(own, topic))[0] == 204
    assert ended(own, topic) == ("SUCCESS", "")
    labels = {"cluster": "standalone", "namespace": "public/default", "topic": topic}

    def told(name):      # the counters follow a moment after the view is in force
        some = samples(request("GET", f"{own.http_url}/metrics")[1])[f"pulsar_compaction_{name}"]
        return sum(sample.value for sample in some if sample.labels == labels)

    eventually(lambda: told("succeed_count") == 1, what="the end of its job")
    with job(own) as say:
        say({"ended": report(partition_id(own, topic), topic, "something")})
    found = samples(request("GET", f"{own.http_url}/metrics")[1])
    for name, expected in (("removed_event_count", 45), ("succeed_count", 1), ("failed_count", 1)):
        assert value(found, f"pulsar_compaction_{name}", **labels) == expected
    for name in ("compacted_entries_count", "compacted_entries_size", "read_throughput", "write_throughput",
                 "duration_time_in_mills"):
        assert value(found, f"pulsar_compaction_{name}", **labels) > 0
    assert value(found, "geminga_compactions", state="waiting") == 0
    assert request("DELETE", f"{own.http_url}/admin/v2/{topic.replace('://', '/')}?force=true")[0] == 204
    found = samples(request("GET", f"{own.http_url}/metrics")[1])
    assert not [one for one in found["pulsar_compaction_succeed_count"] if one.labels.get("topic") == topic]


def test_a_record_counts_all_compactions_and_shows_the_last():
    record = compaction.Record("t")
    for number, seconds in ((1, 0.004), (2, 0.5)):
        record.add(report(7, "t")
                   | {"outcome": "compacted", "messages_in": 10, "messages_out": 10 - number, "bytes_in": 100 * number,
                                     "bytes_read": 260 // number ** 3,
                                     "bytes_out": 50, "entries_out": 5, "seconds": seconds})
    record.add(report(7, "t", "something"))
    assert (record.bytes_in, record.bytes_read, record.removed, record.succeeded, record.failed) == (200, 132, 3, 2, 1)
    assert (
        record.durations[LATENCIES_MS.index(5)],
        record.durations[LATENCIES_MS.index(1_000)],
        sum(record.durations),
    ) == (1, 1, 2)
    assert record.seconds_sum == 0.504


@pytest.mark.slow
def test_there_is_a_bound_of_topics_with_series(tmp_path):
    made = Broker(tmp_path / "data", "--config", str(tmp_path / "geminga.toml"))
    (tmp_path / "geminga.toml").write_text("[metrics]\ntopics_max = 1\n")
    try:
        made.start()
        topics = [unique_topic("rolled") for _ in range(3)]
        for topic in topics:
            assert request("PUT", f"{made.http_url}/admin/v2/{topic.replace('://', '/')}")[0] == 204
            assert request("PUT", url_of(made, topic))[0] == 204
            assert ended(made, topic)[0] == "SUCCESS"
        found = samples(request("GET", f"{made.http_url}/metrics")[1])["pulsar_compaction_succeed_count"]
        assert {one.labels.get("topic"): one.value for one in found} == {topics[-1]: 1, None: 2}
    finally:
        made.close()
