"""Exports as administrators and jobs see them: policies, how far a topic is exported, and the alarm when nights lag."""
import contextlib
import json

import pytest

from geminga.storage import format
from geminga.storage.topics import exported
from geminga.supervisor.main import main
from geminga.supervisor.tasks.job_socket import BrokerSocket

from ..harness import Broker, eventually, partitioned_topic, request, unique_topic
from .test_compaction import partition_id
from .test_metrics import samples, value

FIELDS = "exportedPosition", "unexportedSize", "oldestUnexportedMessageAgeSeconds"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A broker in which messages have to be exported within a second."""
    folder = tmp_path_factory.mktemp("exports")
    config = folder / "geminga.toml"
    config.write_text("owners = 2\nworkers = 1\n[alarms]\nexport_s = 1\n")
    made = Broker(folder / "data", "--config", str(config))
    try:
        yield made.start()
    finally:
        made.close()


def place(broker, topic):
    return f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}"


def stats(broker, topic, of="stats"):
    return json.loads(request("GET", f"{place(broker, topic)}/{of}")[1])


def alarms(broker):
    told = json.loads(request("GET", f"{broker.http_url}/ops/v1/status")[1])["alarms"]
    return [alarm["text"] for alarm in told if alarm["alarm"] == "exports"]


def publish(client, topic, count=1):
    """Publish messages; return the position of the last one."""
    producer = client.create_producer(topic)
    for number in range(count):
        last = producer.send(b"%d" % number)
    producer.close()
    return last.ledger_id(), last.entry_id()


# -- policies

@pytest.mark.parametrize("level", ["namespaces", "topicPolicies"])
def test_the_command_sets_shows_and_removes_the_policies(broker, capsys, level):
    topic = unique_topic("exported")
    scope = topic if level == "topicPolicies" else f"public/{topic.rpartition('/')[2]}"
    where = place(broker, topic) if level == "topicPolicies" else f"{broker.http_url}/admin/v2/namespaces/{scope}"
    assert request("PUT", where)[0] == 204

    def run(*words):
        status = main(["admin", "--admin-url", broker.http_url, level, *words, scope])
        printed = capsys.readouterr()
        return status, printed.out.strip(), printed.err
    assert run("set-export", "--content", "compacted")[0] == 0
    assert run("get-export") == (0, "compacted", "")
    status, _, complaint = run("set-export", "--content", "everything")
    assert status == 2 and "messages" in complaint
    assert run("set-export-before-deletion", "--enable")[0] == 0
    assert run("get-export-before-deletion")[:2] == (0, "true")
    assert run("remove-export")[0] == run("remove-export-before-deletion")[0] == 0
    assert run("get-export")[1] == run("get-export-before-deletion")[1] == "not set"
    assert request("DELETE", where)[0] == 204


# -- how far a topic is exported

def test_a_job_tells_how_far_a_topic_is_exported_with_a_broker_and_without(own, client):
    topic = unique_topic("told")
    assert request("PUT", place(own, topic))[0] == 204
    for name, body in (("export", b'"messages"'), ("exportBeforeDeletion", b"true")):
        assert request("POST", f"{place(own, topic)}/{name}", body)[0] == 204
    ledger_id, entry_id = last = publish(client, topic, 5)
    number = partition_id(own, topic)
    folder = format.partition_folder(own.data_dir, number)
    with contextlib.closing(BrokerSocket(own.data_dir)) as job:
        assert job.exported(number, topic, (ledger_id, 1)) is None
        shown = stats(own, topic)
        assert shown["exportedPosition"] == f"{ledger_id}:1" and 0 < shown["unexportedSize"] < shown["storageSize"]
        assert "ends at" in job.exported(number, topic, (ledger_id, entry_id + 1))
        assert "created again" in job.exported(number + 1, topic, last)
        assert "not found" in job.exported(number, unique_topic("none"), last)
        own.stop()
        try:
            assert job.exported(number, topic, (ledger_id, 3)) is None
            assert job.exported(number, topic, (ledger_id, 2)) is None
            assert exported.read(folder).position == (ledger_id, 3)
            assert "No such file" in job.exported(9_999, topic, last)
        finally:
            own.start()
        assert stats(own, topic)["exportedPosition"] == f"{ledger_id}:3"
        assert job.exported(number, topic, last) is None
    assert [stats(own, topic)[name] for name in FIELDS] == [f"{ledger_id}:{entry_id}", 0, -1]


def test_of_all_partitions_the_oldest_message_and_all_bytes_are_told(own, client):
    topic = partitioned_topic(own.http_url, 2, "parts")
    assert request("POST", f"{place(own, topic)}/export", b'"messages"')[0] == 204
    publish(client, topic, 4)
    parts = [stats(own, f"{topic}-partition-{number}") for number in range(2)]
    whole = stats(own, topic, "partitioned-stats")
    assert whole["unexportedSize"] == sum(part["unexportedSize"] for part in parts) > 0
    assert whole["oldestUnexportedMessageAgeSeconds"] >= 0 and "exportedPosition" not in whole
    assert request("DELETE", f"{place(own, topic)}/partitions?force=true")[0] == 204


# -- the alarm

def test_messages_that_are_not_exported_in_time_are_an_alarm_and_a_metric_until_they_are(own, client):
    topic, other = unique_topic("late"), unique_topic("not-exported")
    publish(client, other)
    assert request("PUT", place(own, topic))[0] == 204
    assert request("POST", f"{place(own, topic)}/export", b'"messages"')[0] == 204
    last = publish(client, topic)
    assert eventually(lambda: [text for text in alarms(own) if f"a message of {topic} is " in text])

    def age(name):
        text = request("GET", f"{own.http_url}/metrics")[1]
        return value(samples(text), "geminga_tables_unexported_seconds", topic=name)
    assert age(topic) >= 1 and age(other) == -1
    with contextlib.closing(BrokerSocket(own.data_dir)) as job:
        assert job.exported(partition_id(own, topic), topic, last) is None
    assert eventually(lambda: not alarms(own)) and age(topic) == -1
