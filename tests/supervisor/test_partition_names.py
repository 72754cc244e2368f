"""A topic of its own keeps its name and its messages, also if the name is that of another topic's partition.

Topics named X-partition-N can be created by use while X is not partitioned. X then cannot become partitioned, nor get a
partition of that name. Each topic is listed once, can be read, and can be deleted, also in folders in which older
versions, or a killed deletion, left partitions without a topic, or two topics for one partition.
"""
import json
import threading

import pulsar
import pytest

from geminga.proto import names
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.supervisor import main

from ..harness import HANG_MS, LOAD_PAUSE_SECONDS, eventually, path_of, request, unique_topic

DOMAINS = "persistent", "non-persistent"
NOT_OURS = b"not for the partitioned topic"


def admin(broker, method, path, body=None):
    """Return (status, what the answer says) of a request to /admin/v2/."""
    status, text = request(method, f"{broker.http_url}/admin/v2/{path}",
                           None if body is None else json.dumps(body).encode())
    return status, json.loads(text) if text[:1] in "[{" and text else text


def listed(broker, topic):
    """Return the listed names of a topic and its partitions, without the topic's own name, in the list's order."""
    found = [name for domain in DOMAINS for name in admin(broker, "GET", f"{domain}/public/default")[1]]
    return [name.removeprefix(topic) for name in found if name.startswith(topic)]


def published(client, topic):
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(NOT_OURS)
    return producer


def read(client, topic):
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    try:
        return reader.read_next(timeout_millis=HANG_MS).data()
    finally:
        reader.close()


def test_a_topic_cannot_take_over_topics_with_the_names_of_its_partitions(own, client):
    """Neither partitions that it would have nor others: the latter would be out of reach."""
    topic = unique_topic()
    for number in (1, 5):
        published(client, f"{topic}-partition-{number}").close()
    status, said = admin(own, "PUT", f"{path_of(topic)}/partitions", 3)
    assert status == 409 and f"{topic}-partition-1" in said["reason"]
    assert listed(own, topic) == ["-partition-1", "-partition-5"]
    assert [read(client, f"{topic}-partition-{number}") for number in (1, 5)] == [NOT_OURS, NOT_OURS]
    for number in (1, 5):
        assert admin(own, "DELETE", f"{path_of(topic)}-partition-{number}?force=true")[0] == 204
    assert admin(own, "PUT", f"{path_of(topic)}/partitions", 3)[0] == 204


def test_a_live_topic_that_keeps_no_messages_holds_its_name_too(own, client):
    topic = unique_topic().replace("persistent", "non-persistent")
    producer = client.create_producer(f"{topic}-partition-1")
    assert admin(own, "PUT", f"{path_of(topic)}/partitions", 3)[0] == 409
    assert listed(own, topic) == ["-partition-1"]
    producer.close()      # such a topic ends with its last client
    eventually(lambda: listed(own, topic) == [])
    assert admin(own, "PUT", f"{path_of(topic)}/partitions", 3)[0] == 204


def test_names_that_only_look_alike_are_free(own, client):
    topic = unique_topic()
    for end in ("-partition-01", "-partition-x", "-partition-", "-partition-1-partition-2", "-partition-1x"):
        published(client, topic + end).close()
    assert admin(own, "PUT", f"{path_of(topic)}/partitions", 3)[0] == 204


def test_a_partition_that_a_topic_lacks_is_not_created_by_use_or_request(own, client):
    topic = unique_topic()
    assert admin(own, "PUT", f"{path_of(topic)}/partitions", 2)[0] == 204
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"{topic}-partition-2")
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(f"{topic}-partition-2", "s")
    assert admin(own, "PUT", f"{path_of(topic)}-partition-2")[0] == 412
    assert admin(own, "POST", f"{path_of(topic)}/createMissedPartitions")[0] == 204
    assert listed(own, topic) == ["-partition-0", "-partition-1"]


def test_requests_about_all_partitions_refuse_the_name_of_one(own):
    """Answers of Pulsar 4.0.7. Termination cannot be undone, so nothing is terminated by mistake."""
    topic = unique_topic()
    assert admin(own, "PUT", f"{path_of(topic)}/partitions", 2)[0] == 204
    for number in (0, 5):
        part = f"{path_of(topic)}-partition-{number}"
        assert [admin(own, method, f"{part}/{rest}", 3)[0] for method, rest in (
            ("POST", "terminate/partitions"), ("POST", "partitions"), ("POST", "createMissedPartitions"),
            ("GET", "partitioned-stats"), ("DELETE", "partitions"))] == [405, 412, 412, 412, 412]
    assert admin(own, "GET", f"{path_of(topic)}-partition-0/internalStats")[1]["state"] == "LedgerOpened"
    assert admin(own, "POST", f"{path_of(unique_topic())}/terminate/partitions")[0] == 405


def test_a_topic_that_use_would_create_with_partitions_does_not_take_over_either(own, client):
    topic = unique_topic()
    published(client, f"{topic}-partition-0").close()
    policy = "namespaces/public/default/autoTopicCreation"
    assert admin(own, "POST", policy, {"allowAutoTopicCreation": True, "topicType": "partitioned",
                                       "defaultNumPartitions": 2})[0] == 204
    try:
        for use in (client.create_producer, lambda name: client.subscribe(name, "s")):
            with pytest.raises(pulsar.PulsarException):
                use(topic)
        assert admin(own, "GET", f"{path_of(topic)}/partitions?checkAllowAutoCreation=true")[0] == 409
    finally:
        admin(own, "DELETE", policy)
    assert listed(own, topic) == ["-partition-0"] and read(client, f"{topic}-partition-0") == NOT_OURS


def test_definitions_do_not_take_over_either(own, client, tmp_path, capsys):
    topic = unique_topic()
    published(client, f"{topic}-partition-1").close()
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"version": 1, "topics": {topic: {"partitions": 2}}}))
    assert main.main(["definitions", "import", str(file), "--http-url", own.http_url]) != 0
    assert f"{topic}-partition-1" in capsys.readouterr().err
    assert listed(own, topic) == ["-partition-1"]


@pytest.fixture
def older(start_broker):
    """A stopped broker on a folder with the topics of older versions: {name: number of partitions}.

    older(topics, used): `used` are topics of which each then has one message.
    """
    def make(topics, used):
        broker = start_broker()
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for name in used:
            published(client, name).close()
        client.close()
        broker.stop()
        catalogue = open_catalogue(broker.data_dir / "catalogue.sqlite")
        for name in map(names.parse, used):
            catalogue.topics.forget_name(name)
        for name, count in topics.items():
            catalogue.write("INSERT INTO topics VALUES (?, 'public/default', ?, 0)", (name, count))
        catalogue.commit()
        catalogue.close()
        return broker.start()
    return make


@pytest.mark.slow
def test_what_older_versions_took_over_or_put_out_of_reach_is_listed_once_read_and_deleted(older):
    adopted, beyond, lost = unique_topic(), unique_topic(), unique_topic()
    own = older({adopted: 3, f"{adopted}-partition-1": 0, beyond: 2, f"{beyond}-partition-3": 0},
                [f"{adopted}-partition-1", f"{beyond}-partition-3", f"{lost}-partition-0"])
    client = pulsar.Client(own.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        assert listed(own, adopted) == [f"-partition-{number}" for number in range(3)]
        assert listed(own, beyond) == ["-partition-0", "-partition-1", "-partition-3"]
        assert listed(own, lost) == ["-partition-0"]
        used = [f"{adopted}-partition-1", f"{beyond}-partition-3", f"{lost}-partition-0"]
        assert [read(client, name) for name in used] == [NOT_OURS] * 3
        published(client, f"{beyond}-partition-3").close()
        # The name is taken until the topic is deleted.
        status, said = admin(own, "POST", f"{path_of(beyond)}/partitions", 4)
        assert status == 409 and f"{beyond}-partition-3" in said["reason"]
        assert admin(own, "POST", f"{path_of(beyond)}/partitions", 3)[0] == 204
        assert admin(own, "DELETE", f"{path_of(beyond)}-partition-3?force=true")[0] == 204
        assert admin(own, "POST", f"{path_of(beyond)}/partitions", 4)[0] == 204
        assert admin(own, "DELETE", f"{path_of(lost)}-partition-0?force=true")[0] == 204
        assert admin(own, "DELETE", f"{path_of(adopted)}/partitions?force=true")[0] == 204
        assert listed(own, lost) == listed(own, adopted) == []
    finally:
        client.close()


def test_a_forced_deletion_under_live_clients_leaves_nothing_that_no_list_has(own, client):
    """Clients that come back may create topics by use: each of these is listed, and can be deleted."""
    topic = unique_topic()
    is_over = threading.Event()

    def use():
        while not is_over.wait(LOAD_PAUSE_SECONDS):
            try:
                for number in range(4):
                    client.create_producer(f"{topic}-partition-{number}").close()
            except pulsar.PulsarException:
                pass

    users = [threading.Thread(target=use) for _ in range(3)]
    for user in users:
        user.start()
    try:
        for _ in range(4):
            status, _ = admin(own, "PUT", f"{path_of(topic)}/partitions", 4)
            if status == 204:
                assert admin(own, "DELETE", f"{path_of(topic)}/partitions?force=true")[0] == 204
            for name in listed(own, topic):
                admin(own, "DELETE", f"{path_of(topic)}{name}?force=true")
    finally:
        is_over.set()
        for user in users:
            user.join()
    catalogue = open_catalogue(own.data_dir / "catalogue.sqlite")
    try:
        stored = [name for name in catalogue.partitions.names() if name.startswith(topic)]
    finally:
        catalogue.close()
    assert set(stored) <= {topic + end for end in listed(own, topic)}
    for name in listed(own, topic):
        assert admin(own, "DELETE", f"{path_of(topic)}{name}?force=true")[0] == 204
    assert admin(own, "PUT", f"{path_of(topic)}/partitions", 4)[0] == 204
