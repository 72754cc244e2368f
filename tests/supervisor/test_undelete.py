"""Deleted topics and cleared backlogs are taken back, over HTTP and by `geminga undelete`, with a real broker, real
clients and kills.
"""
import contextlib
import json
import subprocess

import pulsar
import pytest

from geminga.proto import names
from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_to_read
from geminga.supervisor.main import main

from ..harness import (
    COMMAND,
    HANG_MS,
    HANG_SECONDS,
    Broker,
    eventually,
    partitioned_topic,
    path_of,
    request,
    unique_topic,
)
from ..proto.client_frames import T
from ..workers.peer import Peer
from ..workers.test_scalable_topics import layout_of, segments_of
from .test_scalable_topics import Rest

NAMESPACE = "public/default"
DELETED = f"/ops/v1/deleted/{NAMESPACE}"


def ask(broker, method, path, body=None):
    status, text = request(method, broker.http_url + path, None if body is None else json.dumps(body).encode())
    return status, json.loads(text) if text else None


def keep(broker, seconds=86_400):
    assert ask(broker, "POST", f"/admin/v2/namespaces/{NAMESPACE}/deletedRetention", seconds)[0] == 204


def connected(broker):
    return pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def fill(broker, topic, count=20):
    """Publish messages, of which the subscription `s` acknowledges every other one; return what is left."""
    client = connected(broker)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        producer.send(b"%d" % number, partition_key=str(number))
    rest = set()
    for _ in range(count):
        message = consumer.receive(HANG_MS)
        if int(message.data()) % 2:
            consumer.acknowledge(message)
        else:
            rest.add(message.data())
    consumer.close()
    client.close()
    return rest


def left(broker, topic, count):
    client = connected(broker)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    messages = [consumer.receive(HANG_MS) for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)
    client.close()
    return {message.data() for message in messages}


def delete(broker, topic, *, is_partitioned=False):
    rest = "/partitions" if is_partitioned else ""
    assert ask(broker, "DELETE", f"/admin/v2/{path_of(topic)}{rest}?force=true")[0] == 204


def kept(broker, topic):
    return [one for one in ask(broker, "GET", DELETED)[1] if one["topic"] == topic]


def take_back(broker, topic):
    return ask(broker, "POST", f"{DELETED}/{kept(broker, topic)[-1]['id']}/undelete")


def clear(broker, topic):
    assert ask(broker, "POST", f"/admin/v2/{path_of(topic)}/subscription/s/skip_all")[0] == 204


@pytest.fixture
def own(tmp_path):
    made = Broker(tmp_path / "data", "--owners", "2", "--workers", "1")
    made.start()
    keep(made)
    yield made
    made.close()


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_topic_comes_back_over_kills_and_restarts(own, is_partitioned):
    """Owners are killed behind the deletion, the whole broker while the topic is kept, owners behind its return."""
    topic = partitioned_topic(own.http_url, 3) if is_partitioned else unique_topic("kept")
    rest = fill(own, topic)
    assert ask(own, "POST", f"/admin/v2/{path_of(topic)}/retention",
               {"retentionTimeInMinutes": 7, "retentionSizeInMB": 8})[0] == 204
    delete(own, topic, is_partitioned=is_partitioned)
    for index in (0, 1):
        own.kill("owner", index)
    [one] = eventually(lambda: kept(own, topic))
    assert one["partitions"] == (3 if is_partitioned else 0) and one["bytes"] > 0
    assert one["until_ms"] - one["deleted_ms"] == 86_400_000
    assert topic not in ask(own, "GET", f"/admin/v2/persistent/{NAMESPACE}")[1]
    own.kill_supervisor()
    own.start()
    assert eventually(lambda: take_back(own, topic)[0] == 200)
    assert kept(own, topic) == []
    for index in (0, 1):
        own.kill("owner", index)
    assert left(own, topic, len(rest)) == rest
    assert ask(own, "GET", f"/admin/v2/{path_of(topic)}/retention")[1]["retentionTimeInMinutes"] == 7
    client = connected(own)
    assert client.create_producer(topic).send(b"more")
    client.close()


def consumed(own, topic, capsys):
    """Return the payloads that the subscription `sub` has left."""
    assert main(["consume", topic, "-s", "sub", "-o", "jsonl", "--url", own.service_url]) == 0
    return sorted(json.loads(line)["payload"] for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("was_regular", [False, True])
def test_a_scalable_topic_comes_back_over_kills_and_restarts(own, capsys, was_regular):
    """With a sealed segment, while a client is connected; a topic of its name was there meanwhile."""
    rest = Rest(own)
    regular = rest.name.replace("topic:", "persistent:")
    produce = ["produce", "--url", own.service_url, "--quiet"]
    if was_regular:
        assert ask(own, "PUT", f"/admin/v2/{path_of(regular)}")[0] == 204
        assert ask(own, "PUT", f"/admin/v2/{path_of(regular)}/subscription/sub")[0] == 204
        assert main([*produce, regular, "a", "b"]) == 0
        rest.set("POST", "/migrate")
    else:
        rest.set("PUT", "?numInitialSegments=2", {"team": "a"})
        rest.set("PUT", "/subscriptions/sub")
        assert main([*produce, rest.name, "a", "b"]) == 0
    rest.set("POST", "/split/1")
    assert main([*produce, rest.name, "c", "d", "e"]) == 0
    before = rest.get()
    with Peer(own.service_url) as peer:
        segment = segments_of(rest.name, layout_of(peer, rest.name).dag)[-1]
        peer.open_producer(segment)
        rest.set("DELETE")
        while peer.hear().type != T.CLOSE_PRODUCER:
            pass
    assert rest.ask("GET")[0] == 404
    [one] = kept(own, rest.name)
    assert one["bytes"] > 0
    for index in (0, 1):
        own.kill("owner", index)
    own.kill_supervisor()
    own.start()
    eventually(lambda: rest.ask("PUT", "?numInitialSegments=1")[0] == 204)
    assert take_back(own, rest.name)[0] == 409
    rest.set("DELETE")
    assert main(["undelete", "topic", rest.name, "--id", str(one["id"]), "--admin-url", own.http_url]) == 0
    capsys.readouterr()
    for index in (0, 1):
        own.kill("owner", index)
    eventually(lambda: rest.ask("GET", "/stats")[0] == 200)
    after = rest.get()
    assert after["properties"] == before["properties"] and after["epoch"] >= before["epoch"]
    assert [one["hashRange"] for one in after["segments"].values()] == [
        one["hashRange"] for one in before["segments"].values()]
    assert rest.get("/stats")["subscriptions"]["sub"]["msgBacklog"] == 5
    rest.set("POST", "/split/2")
    assert main([*produce, rest.name, "f"]) == 0
    capsys.readouterr()
    assert consumed(own, rest.name, capsys) == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_connected_clients_of_a_deleted_topic_are_closed_and_do_not_touch_what_is_kept(own, is_partitioned):
    """A producer that reconnects makes the topic anew; then the kept one is refused, and comes back behind it."""
    topic = partitioned_topic(own.http_url, 2) if is_partitioned else unique_topic("busy")
    rest = fill(own, topic)
    client = connected(own)
    producer = client.create_producer(topic, batching_enabled=False)
    delete(own, topic, is_partitioned=is_partitioned)
    names = [f"{topic}-partition-{number}" for number in range(2)] if is_partitioned else [topic]
    if is_partitioned:      # its producer makes topics of its own with the partitions' names, or ends
        producer.close()
        client.close()
        for name in names:
            ask(own, "DELETE", f"/admin/v2/{path_of(name)}?force=true")
    else:
        producer.send(b"new")
        status, told = take_back(own, topic)
        assert status == 409 and "again" in told["reason"]
        client.close()
        delete(own, topic)
        assert len(kept(own, topic)) == 2
    oldest = next(one for one in kept(own, topic))
    assert ask(own, "POST", f"{DELETED}/{oldest['id']}/undelete")[0] == 200
    assert left(own, topic, len(rest)) == rest


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_cleared_backlog_comes_back_over_kills_and_restarts(own, is_partitioned):
    """What came meanwhile stays, and what a consumer has acknowledged of it does not come back."""
    topic = partitioned_topic(own.http_url, 3) if is_partitioned else unique_topic("cleared")
    rest = fill(own, topic)
    clear(own, topic)
    [one] = kept(own, topic)
    assert (one["subscription"], one["messages"]) == ("s", len(rest)) and one["bytes"] > 0
    assert one["partitions"] == (3 if is_partitioned else 0) and one["until_ms"] - one["deleted_ms"] == 86_400_000
    for index in (0, 1):
        own.kill("owner", index)
    since = eventually(lambda: fill(own, topic))
    own.kill_supervisor()
    own.start()
    assert eventually(lambda: take_back(own, topic)[0] == 200)
    for index in (0, 1):
        own.kill("owner", index)
    client = connected(own)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert sorted(consumer.receive(HANG_MS).data() for _ in range(20)) == sorted([*rest, *since])
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)
    client.close()
    assert kept(own, topic) == []


@pytest.mark.parametrize("was_regular", [False, True])
def test_cleared_backlogs_of_a_scalable_topic_come_back_over_changes_of_segments_and_kills(own, capsys, was_regular):
    """One is cleared before segments change, the other passed by a seek behind it; sealed segments stay for both."""
    rest = Rest(own)
    regular = rest.name.replace("topic:", "persistent:")
    produce = ["produce", "--url", own.service_url, "--quiet"]
    if was_regular:
        assert ask(own, "PUT", f"/admin/v2/{path_of(regular)}/partitions", 2)[0] == 204
        assert ask(own, "PUT", f"/admin/v2/{path_of(regular)}/subscription/sub")[0] == 204
        assert main([*produce, regular, "a", "b", "c"]) == 0
        assert ask(own, "POST", f"/admin/v2/{path_of(regular)}/subscription/sub/skip_all")[0] == 204
        rest.set("POST", "/migrate")
    else:
        rest.set("PUT", "?numInitialSegments=2")
        rest.set("PUT", "/subscriptions/sub")
        assert main([*produce, rest.name, "a", "b", "c"]) == 0
        rest.set("POST", "/subscriptions/sub/skip-all")
        rest.set("POST", "/split/0")
    active = [int(number) for number, one in rest.get()["segments"].items() if one["active"]]
    assert main([*produce, rest.name, "d", "e"]) == 0
    rest.set("POST", "/merge/{}/{}".format(*active[-2:]))
    assert main([*produce, rest.name, "f"]) == 0
    for index in (0, 1):
        own.kill("owner", index)
    eventually(lambda: rest.ask("GET", "/stats")[0] == 200)
    rest.set("POST", f"/subscriptions/sub/seek?timestamp={1 << 50}")
    assert rest.get("/stats")["subscriptions"]["sub"]["msgBacklog"] == 0
    first, second = kept(own, rest.name)
    assert [(one["messages"], one["partitions"]) for one in (first, second)] == [(3, 0), (3, 0)]
    assert main([*produce, rest.name, "g"]) == 0
    own.kill_supervisor()
    own.start()
    capsys.readouterr()
    assert consumed(own, rest.name, capsys) == ["g"]
    undelete = ["undelete", "backlog", rest.name, "sub", "--admin-url", own.http_url]
    for which in ([], ["--id", str(first["id"])]):
        assert main([*undelete, *which]) == 0
        assert capsys.readouterr().out == "3 messages are there again for sub\n"
        for index in (0, 1):
            own.kill("owner", index)
        eventually(lambda: rest.ask("GET", "/stats")[0] == 200)
    assert consumed(own, rest.name, capsys) == ["a", "b", "c", "d", "e", "f"]
    assert kept(own, rest.name) == []


def test_a_clear_that_was_refused_half_way_and_is_repeated_keeps_one_backlog(own, capsys):
    """The files of a segment are away when it is cleared first.  A short name stands for the scalable topic."""
    rest = Rest(own)
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("PUT", "/subscriptions/sub")
    for number in range(8):
        assert main(["produce", "--url", own.service_url, "--quiet", "--key", f"k{number}", rest.name, "m"]) == 0
    own.stop()
    with contextlib.closing(open_to_read(own.data_dir / "catalogue.sqlite")) as catalogue:
        [number] = [one for one, name in catalogue.partitions.all()
                    if name == str(catalogue.topics.parts(names.parse(rest.name))[1])]
    folder = format.partition_folder(own.data_dir, number)
    folder.rename(own.data_dir / "away")
    own.start()
    assert rest.ask("POST", "/subscriptions/sub/skip-all")[0] == 503
    eventually(lambda: [0 < one["messages"] < 8 for one in kept(own, rest.name)] == [True])
    (own.data_dir / "away").rename(folder)
    for index in (0, 1):
        own.kill("owner", index)
    eventually(lambda: rest.ask("POST", "/subscriptions/sub/skip-all")[0] == 204)
    assert [one["messages"] for one in kept(own, rest.name)] == [8]
    capsys.readouterr()
    assert main(["undelete", "backlog", rest.name.removeprefix("topic://"), "sub", "--admin-url", own.http_url]) == 0
    assert capsys.readouterr().out == "8 messages are there again for sub\n"


def test_a_namespaces_backlog_comes_back_by_subscription_and_connected_consumers_get_it(own):
    topic = unique_topic("queue")
    client = connected(own)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1)
    client.subscribe(topic, "t").close()
    producer = client.create_producer(topic)
    for number in range(9):
        producer.send(b"%d" % number)
    first = consumer.receive(HANG_MS)
    assert ask(own, "POST", f"/admin/v2/namespaces/{NAMESPACE}/clearBacklog")[0] == 204
    consumer.acknowledge(first)
    found = {one["subscription"]: one for one in kept(own, topic)}
    assert {name: one["messages"] for name, one in found.items()} == {"s": 9, "t": 9}

    def stats():
        return ask(own, "GET", f"/admin/v2/{path_of(topic)}/stats")[1]["subscriptions"]

    eventually(lambda: stats()["s"]["consumers"][0]["lastAckedTimestamp"])
    status, told = ask(own, "POST", f"{DELETED}/{found['s']['id']}/undelete")
    assert (status, told["messages"]) == (200, 8)
    assert {name: one["msgBacklog"] for name, one in stats().items()} == {"s": 8, "t": 0}
    given = set()
    while len(given) < 8:
        message = consumer.receive(HANG_MS)
        consumer.acknowledge(message)
        given.add(message.data())
    assert first.data() not in given
    client.close()
    assert ask(own, "POST", f"{DELETED}/{found['s']['id']}/undelete")[0] == 404
    assert ask(own, "DELETE", f"/admin/v2/{path_of(topic)}/subscription/t")[0] == 204
    status, told = ask(own, "POST", f"{DELETED}/{found['t']['id']}/undelete")
    assert status == 404 and "not found" in told["reason"]
    delete(own, topic)
    status, told = ask(own, "POST", f"{DELETED}/{found['t']['id']}/undelete")
    assert status == 409 and "take the topic back first" in told["reason"]


def test_a_discarded_topic_is_gone_and_its_files_too(own):
    topic = unique_topic("gone")
    fill(own, topic)
    folders = {path.name for path in (own.data_dir / "partitions").iterdir()}
    delete(own, topic)
    [one] = kept(own, topic)
    assert ask(own, "DELETE", f"{DELETED}/{one['id']}")[0] == 204
    assert kept(own, topic) == [] and ask(own, "POST", f"{DELETED}/{one['id']}/undelete")[0] == 404
    eventually(lambda: {path.name for path in (own.data_dir / "partitions").iterdir()} < folders)


@pytest.mark.parametrize("end", [delete, clear])
def test_a_backup_has_what_is_kept(own, tmp_path, end):
    topic = unique_topic("backed")
    rest = fill(own, topic)
    end(own, topic)
    made = ask(own, "POST", "/ops/v1/backup", {"folder": str(tmp_path / "backups")})[1]["folder"]
    done = subprocess.run([COMMAND[0], "restore", made, str(tmp_path / "restored")], capture_output=True, text=True,
                          timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([COMMAND[0], "verify", str(tmp_path / "restored")], capture_output=True, text=True,
                          timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout
    restored = Broker(tmp_path / "restored", "--owners", "2", "--workers", "1")
    restored.start()
    try:
        assert take_back(restored, topic)[0] == 200
        assert left(restored, topic, len(rest)) == rest
    finally:
        restored.close()


def test_status_metrics_and_the_command(own, capsys):
    topic = unique_topic("told")
    fill(own, topic)
    delete(own, topic)
    eventually(lambda: ask(own, "GET", "/ops/v1/status")[1]["kept"]["topics"] == 1)
    assert ask(own, "GET", "/ops/v1/status")[1]["kept"]["bytes"] > 0
    metrics = request("GET", f"{own.http_url}/metrics")[1]
    assert "geminga_kept_topics{" in metrics and "geminga_kept_bytes{" in metrics
    at = ("--admin-url", own.http_url)

    def run(*words):
        status = main([*words, *at])
        printed = capsys.readouterr()
        return status or 0, printed.out, printed.err

    assert "can be taken back" in run("status")[1]
    status, out, _ = run("undelete", "list")
    assert status == 0 and topic.rpartition("/")[2] in out
    assert json.loads(run("undelete", "list", NAMESPACE, "-o", "json")[1])[0]["topic"] == topic
    assert run("undelete", "topic", unique_topic())[0] == 2
    status, out, _ = run("undelete", "topic", topic)
    assert status == 0 and "there again" in out
    delete(own, topic)
    assert run("undelete", "topic", topic, "--id", "999")[0] == 2
    assert run("undelete", "discard", topic) == (0, "", "")
    assert ask(own, "GET", DELETED)[1] == []
    topic = unique_topic("cleared")
    fill(own, topic)
    clear(own, topic)
    eventually(lambda: ask(own, "GET", "/ops/v1/status")[1]["kept"]["backlogs"] == 1)
    assert "1 cleared backlogs can be taken back" in run("status")[1]
    place = f"{own.http_url}/console/topics/{topic.replace('://', '/')}/subscriptions/s"
    assert "A backlog of 10 messages (" in request("GET", place)[1]
    dialog = f"{own.http_url}/console/actions/take-backlog-back?topic={topic}&subscription=s&id="
    [one] = kept(own, topic)
    assert f"{DELETED}/{one['id']}/undelete" in request("GET", dialog + str(one["id"]))[1]
    assert "This backlog is not kept any more" in request("GET", dialog + "999")[1]
    assert run("undelete", "backlog", topic, "other")[0] == run("undelete", "topic", topic)[0] == 2
    assert run("undelete", "backlog", topic, "s") == (0, "10 messages are there again for s\n", "")
    status, _, wrong = run("undelete", "backlog", topic, "s")
    assert status == 2 and f"no cleared backlog of s of {topic} is kept" in wrong
    clear(own, topic)
    assert run("undelete", "discard", topic, "s") == (0, "", "")
    assert ask(own, "GET", DELETED)[1] == []
    assert [one for one in ask(own, "GET", "/ops/v1/deleted")[1] if one["topic"] == topic] == []


def test_without_the_policy_nothing_is_kept(own):
    keep(own, 0)
    topic = unique_topic("plain")
    fill(own, topic)
    delete(own, topic)
    assert kept(own, topic) == []
