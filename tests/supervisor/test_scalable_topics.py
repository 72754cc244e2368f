"""Scalable topics over REST: the paths, statuses and shapes of Pulsar 5.0.1, and what is left of them after a kill."""
import asyncio
import contextlib
import json
import re
import shlex
import shutil
import uuid
from types import SimpleNamespace

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage import format
from geminga.storage.catalogue.catalogue import open_catalogue, open_to_read
from geminga.storage.options import StorageOptions
from geminga.supervisor.admin.requests.owners import OWNERS
from geminga.supervisor.admin.requests.request_parts import TOPICS
from geminga.supervisor.admin.resources import scalable_deletion
from geminga.supervisor.admin.resources.retries import RETRIES, Retries

from ..harness import HANG_SECONDS, eventually, request
from ..proto.client_frames import T, command
from ..workers.peer import Peer
from ..workers.test_scalable_topics import assigned_to, layout_of, publish, register, segments_of
from .test_serve import run


class Rest:
    """One scalable topic of a broker."""

    def __init__(self, broker):
        self.broker = broker
        self.local = f"s-{uuid.uuid4().hex[:12]}"
        self.name = f"topic://public/default/{self.local}"

    def ask(self, method, path="", body=None, *, place="public/default"):
        """Return (status, JSON of the answer or None)."""
        url = f"{self.broker.http_url}/admin/v2/scalable/{place}/{self.local}{path}"
        status, text = request(method, url, None if body is None else json.dumps(body).encode())
        return status, json.loads(text) if text else None

    def set(self, method, path="", body=None):
        status, said = self.ask(method, path, body)
        assert status == 204, said

    def get(self, path=""):
        status, said = self.ask("GET", path)
        assert status == 200, said
        return said

    def publish(self, *payloads):
        """Publish payloads to the active segments in turn, by clients that have gone at the return."""
        with Peer(self.broker.service_url) as peer:
            dag = layout_of(peer, self.name).dag
            segments = [name for name, segment in zip(segments_of(self.name, dag), dag.segments, strict=True)
                        if segment.state == api.ACTIVE]
            for number, payload in enumerate(payloads):
                publish(peer, segments[number % len(segments)], payload, producer_id=number)


@pytest.fixture
def rest(broker):
    return Rest(broker)


def test_a_topic_is_created_once(rest):
    rest.set("PUT", "?numInitialSegments=2", {"team": "a"})
    assert rest.ask("PUT", "?numInitialSegments=2") == (409, {"reason": f"Scalable topic already exists: {rest.name}"})
    said = rest.get()
    created_ms = said["segments"]["0"]["createdAtMs"]
    assert said == {
        "epoch": 0, "nextSegmentId": 2, "properties": {"team": "a"}, "deleted": False,
        "segments": {str(number): {
            "segmentId": number, "hashRange": {"start": first, "end": last}, "state": "ACTIVE", "parentIds": [],
            "childIds": [], "createdAtEpoch": 0, "sealedAtEpoch": -1, "createdAtMs": created_ms, "sealedAtMs": -1,
            "entryBucketSplits": [32_768], "sealed": False, "active": True, "root": True, "leaf": True, "legacy": False}
            for number, first, last in ((0, 0, 32_767), (1, 32_768, 65_535))}}


@pytest.mark.parametrize("count", ["0", "-1", "70000", "x", "", "1_0", "%202", "%EF%BC%92"])
def test_a_number_of_segments_out_of_range_is_refused(rest, count):
    status, said = rest.ask("PUT", f"?numInitialSegments={count}")
    assert status == 412 and "numInitialSegments must be" in said["reason"]


@pytest.mark.parametrize(("place", "status"), [("public/nowhere", 404), ("nobody/x", 404), ("pub lic/x", 412)])
def test_a_missing_place_is_refused(rest, place, status):
    assert rest.ask("PUT", place=place.replace(" ", "%20"))[0] == status


def test_odd_names_and_bodies_are_refused(rest):
    rest.local = "x-partition-0"
    assert rest.ask("PUT")[0] == 412
    rest.local = "__change_events"
    assert rest.ask("PUT")[0] == 400
    rest.local = "odd"
    assert rest.ask("PUT", body=[1])[0] == 400


def test_what_is_not_there_is_404(rest):
    for method, path in (
            ("GET", ""), ("DELETE", ""), ("GET", "/stats"), ("GET", "/segments/0/stats"), ("PUT", "/subscriptions/s"),
            ("DELETE", "/subscriptions/s"), ("POST", "/subscriptions/s/skip-all"),
            ("POST", "/subscriptions/s/seek?timestamp=0"), ("GET", "/permissions"), ("POST", "/split/0"),
            ("POST", "/merge/0/1"), ("POST", "/migrate"), ("GET", "/autoScalePolicy")):
        status, said = rest.ask(method, path)
        assert status == 404 and said["reason"], (method, path, said)
    assert rest.ask("GET") == (404, {"reason": f"Scalable topic not found: {rest.name}"})


def test_topics_are_listed_by_their_properties(rest):
    rest.set("PUT", "", {"team": rest.local, "tier": "1"})

    def listed(query):
        url = f"{rest.broker.http_url}/admin/v2/scalable/public/default{query}"
        status, text = request("GET", url)
        return status, json.loads(text)

    assert rest.name in listed("")[1]
    assert listed(f"?property=team%3D{rest.local}") == (200, [rest.name])
    assert listed(f"?property=team%3D{rest.local}&property=tier%3D1") == (200, [rest.name])
    assert listed(f"?property=team%3D{rest.local}&property=tier%3D2") == (200, [])
    assert listed("?property=team") == (412, {"reason": "property filter must be in the form key=value, got: team"})


def test_a_regular_topic_of_the_name_is_another_topic(rest):
    url = f"{rest.broker.http_url}/admin/v2/persistent/public/default/{rest.local}"
    rest.set("PUT")
    assert request("PUT", url)[0] == 204
    rest.set("DELETE")
    assert request("GET", f"{url}/stats")[0] == 200 and request("DELETE", url)[0] == 204


# -- subscriptions

def test_a_subscription_is_in_all_segments_from_the_first_message_on(rest):
    rest.set("PUT", "?numInitialSegments=2")
    rest.publish(b"1", b"2", b"3")
    for _ in range(2):
        rest.set("PUT", "/subscriptions/sub?type=QUEUE")
    assert rest.ask("PUT", "/subscriptions/sub?type=x")[0] == 404
    told = rest.get("/stats")["subscriptions"]["sub"]
    assert (told["msgBacklog"], told["uncoveredSegmentIds"]) == (3, [])
    assert {number: one["msgBacklog"] for number, one in told["segments"].items()} == {"0": 2, "1": 1}
    rest.set("POST", "/subscriptions/sub/skip-all")
    assert rest.get("/stats")["subscriptions"]["sub"]["msgBacklog"] == 0
    rest.set("POST", "/subscriptions/sub/seek?timestamp=0")
    assert rest.get("/stats")["subscriptions"]["sub"]["msgBacklog"] == 3
    rest.set("DELETE", "/subscriptions/sub")
    assert rest.get("/stats")["subscriptions"] == {}
    for method, path in (("DELETE", ""), ("POST", "/skip-all"), ("POST", "/seek?timestamp=0")):
        assert rest.ask(method, f"/subscriptions/sub{path}")[0] == 404


def test_the_kind_of_a_subscription_is_shown_before_a_consumer_comes(rest):
    rest.set("PUT", "?numInitialSegments=2")
    for kind in ("QUEUE", "STREAM"):
        rest.set("PUT", f"/subscriptions/{kind}?type={kind}")
    told = rest.get("/stats")["subscriptions"]
    assert {name: one["type"] for name, one in told.items()} == {"QUEUE": "QUEUE", "STREAM": "STREAM"}


@pytest.mark.parametrize(("kind", "left"), [
    (api.CHECKPOINT, None), (api.STREAM, ("STREAM", [("a", False, [0]), ("b", False, [0])]))])
def test_consumers_that_have_registered_are_shown_without_messages_too(rest, kind, left):
    """A group of checkpoint consumers has no subscription on the segments."""
    rest.set("PUT")

    def consumers():
        told = rest.get("/stats")["subscriptions"].get("group")
        return told and (told["type"], [(one["consumerName"], one["connected"], one["segmentIds"])
                                        for one in told["consumers"]])

    if kind == api.STREAM:
        rest.set("PUT", "/subscriptions/group")
    with Peer(rest.broker.service_url) as peer:
        for number, name in enumerate(("a", "b")):
            peer.say(command(T.SCALABLE_TOPIC_SUBSCRIBE, request_id=number, topic=rest.name, subscription="group",
                             consumer_name=name, consumer_id=number, consumer_type=kind))
            assigned_to(peer)
        assert consumers() == ("STREAM", [("a", True, [0]), ("b", True, [0] if kind == api.STREAM else [])])
        assert rest.get("/stats")["subscriptions"]["group"]["uncoveredSegmentIds"] == []
    eventually(lambda: consumers() == left)


@pytest.mark.parametrize("how", ["folder", "state"])
def test_a_subscription_that_cannot_be_made_on_all_segments_is_on_no_sealed_one(fresh_broker, how):
    """A consumer that came to the sealed one would be answered, and miss what is published to the others meanwhile."""
    rest = Rest(fresh_broker)
    rest.set("PUT")
    rest.publish(b"0")
    rest.set("POST", "/split/0")
    rest.publish(b"1", b"2")
    without_second_part(fresh_broker, names.parse(rest.name), how)
    assert rest.ask("PUT", "/subscriptions/sub")[0] >= 500
    made = rest.get("/stats")["subscriptions"].get("sub")
    assert made is None or 0 in made["uncoveredSegmentIds"], made


# -- statistics

def test_statistics_are_of_the_topic_as_a_whole(rest):
    rest.set("PUT", "?numInitialSegments=2")
    with Peer(rest.broker.service_url) as peer:
        segments = segments_of(rest.name, layout_of(peer, rest.name).dag)
        for number, segment in enumerate(segments):
            publish(peer, segment, b"x", producer_id=number)
            peer.subscribe(segment, consumer_id=number)
        said = rest.get("/stats")
        assert set(said) == {
            "controllerBroker", "autoScale", "layout", "msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut",
            "averageMsgSize", "storageSize", "backlogSize", "producers", "subscriptions"}
        first = said["layout"]["segments"]["0"]
        assert (first["name"], first["state"], first["terminated"], first["entryBuckets"]) == (
            segments[0], "ACTIVE", False, 2)
        assert set(first["load"]) == {"msgRateIn", "byteRateIn", "msgRateOut", "byteRateOut", "ageSeconds"}
        assert said["storageSize"] > 0 and said["subscriptions"]["sub"]["type"] == "STREAM"
        of_one = rest.get("/segments/1/stats")
        assert [one["producerName"] for one in of_one["producers"]] and of_one["storageSize"] > 0
        assert of_one["subscriptions"]["sub"]["msgBacklog"] == 1 and of_one["topicCreationTime"].endswith("Z")
    assert rest.ask("GET", "/segments/2/stats") == (
        404, {"reason": f"Segment 2 not found in scalable topic {rest.name}"})


def test_statistics_of_a_segment_have_no_time_of_what_never_happened(rest):
    """Pulsar's clients of administration would show 1970."""
    rest.set("PUT", "?numInitialSegments=1")
    rest.set("PUT", "/subscriptions/sub")

    def times() -> tuple[set[str], list[set[str]]]:
        found = rest.get("/segments/0/stats")["subscriptions"]["sub"]
        fields = {"lastConsumedTime", "lastAckedTime"}
        return fields & set(found), [fields & set(one) for one in found["consumers"]]

    assert times() == (set(), [])
    with Peer(rest.broker.service_url) as peer:
        segment, = segments_of(rest.name, layout_of(peer, rest.name).dag)
        publish(peer, segment, b"x", producer_id=0)
        peer.subscribe(segment, consumer_id=0)
        peer.say(command(T.FLOW, consumer_id=0, messagePermits=1))
        message = peer.hear().message
        assert times() == ({"lastConsumedTime"}, [{"lastConsumedTime"}])
        peer.say(command(T.ACK, consumer_id=0, ack_type=api.CommandAck.Individual, message_id=[message.message_id]))
        both = {"lastConsumedTime", "lastAckedTime"}
        eventually(lambda: times() == (both, [both]))


@pytest.mark.parametrize("how", ["folder", "state"])
def test_what_a_topic_has_is_shown_though_a_segment_cannot_be_opened(fresh_broker, how):
    """The segment is named, with the reason, and the others' numbers are there."""
    rest = Rest(fresh_broker)
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("PUT", "/subscriptions/sub")
    rest.publish(b"one", b"two")
    folder = without_second_part(fresh_broker, names.parse(rest.name), how)
    said = rest.get("/stats")
    assert str(folder) in said["layout"]["segments"]["1"]["error"] and "error" not in said["layout"]["segments"]["0"]
    subscription = said["subscriptions"]["sub"]
    assert subscription["msgBacklog"] == 1 and subscription["uncoveredSegmentIds"] == []
    assert rest.ask("GET", "/segments/1/stats")[0] == 503
    for about in (), ("sub",):
        status, text, errors = run("why", rest.name, *about, "--http-url", fresh_broker.http_url)
        assert status == 0 and str(folder) in text, errors
    for table in "topics", "subscriptions":
        [row] = json.loads(request("GET", f"{fresh_broker.http_url}/ops/v1/{table}")[1])["rows"]
        assert row["topic"] == rest.name and row["backlog"] == 1
    metrics = request("GET", f"{fresh_broker.http_url}/metrics")[1]
    [line] = [line for line in metrics.splitlines() if line.startswith("pulsar_subscription_back_log{")]
    assert rest.name in line and line.endswith(" 1")


def without_second_part(broker, topic, how):
    """Restart a broker with a partition or segment whose files cannot be used; return its folder."""
    broker.stop()
    with contextlib.closing(open_to_read(broker.data_dir / "catalogue.sqlite")) as catalogue:
        damaged = str(catalogue.topics.parts(topic)[1])
        [number] = [one for one, name in catalogue.partitions.all() if name == damaged]
    folder = format.partition_folder(broker.data_dir, number)
    if how == "folder":
        shutil.rmtree(folder)
    else:
        format.state_path(folder).write_bytes(b"no state")
    broker.start()
    return folder


def test_what_a_topic_has_is_shown_though_a_partition_cannot_be_opened(fresh_broker):
    topic, url = "persistent://public/default/p", f"{fresh_broker.http_url}/admin/v2/persistent/public/default/p"
    assert request("PUT", f"{url}/partitions", b"2")[0] == 204
    with Peer(fresh_broker.service_url) as peer:
        for number in range(2):
            peer.subscribe(f"{topic}-partition-{number}", consumer_id=number)
            publish(peer, f"{topic}-partition-{number}", b"x", producer_id=number)
    folder = without_second_part(fresh_broker, names.parse(topic), "folder")
    for how in "?perPartition=false", "":
        status, said = request("GET", f"{url}/partitioned-stats{how}")
        assert status == 200 and json.loads(said)["subscriptions"]["sub"]["msgBacklog"] == 1
        assert str(folder) in json.loads(said)["partitionErrors"][f"{topic}-partition-1"]
    assert list(json.loads(said)["partitions"]) == [f"{topic}-partition-0"]
    for about in (), ("sub",):
        status, text, errors = run("why", topic, *about, "--http-url", fresh_broker.http_url)
        assert status == 0 and str(folder) in text, errors


def test_policies_and_delayed_messages_go_by_the_topics_own_name(rest):
    """Over the command line; a short name stands for it in verbs of policies, as it does over REST."""
    broker = rest.broker
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("PUT", "/subscriptions/sub")

    def admin(*words):
        status, text, errors = run("admin", "--http-url", broker.http_url, *words)
        assert status == 0, errors
        return text

    assert admin("topics", "set-message-ttl", rest.name, "--ttl", "600") == ""
    assert [admin("topicPolicies", "get-message-ttl", name) for name in (rest.name, rest.local)] == ["600\n"] * 2
    assert admin("topicPolicies", "remove-message-ttl", rest.name) == ""
    for key in "k0", "k1":      # of both segments
        words = "--key", key, "--deliver-after", "1h", rest.name, "m"
        assert run("produce", "--url", broker.service_url, *words)[0] == 0
    listed = json.loads(admin("-o", "json", "delayed", "list", rest.name, "--by", "message"))
    assert listed["waiting"] == 2
    first, second = [row["id"] for row in listed["rows"]]
    admin("delayed", "reschedule", rest.name, first, "--after", "2h")
    admin("delayed", "cancel", rest.name, second)
    assert json.loads(admin("-o", "json", "delayed", "list", rest.name))["waiting"] == 1


# -- what there is not

def test_what_the_layout_does_not_have_is_not_changed(rest):
    rest.set("PUT", "?numInitialSegments=2")
    for path in ("/split/7", "/merge/0/7", "/rebucket/x"):
        assert rest.ask("POST", path)[0] == 404
    assert rest.ask("POST", "/migrate")[0] == 409
    assert len(rest.get()["segments"]) == 2


# -- deletion

def test_a_topic_in_use_is_deleted_with_everything(rest):
    rest.set("PUT", "?numInitialSegments=3", {"a": "b"})
    rest.publish(b"1", b"2", b"3")
    with Peer(rest.broker.service_url) as peer:
        register(peer, rest.name, "a")
        assert len(assigned_to(peer)) == 3      # else it might come behind the deletion, and make the topic again
        rest.set("DELETE")
    assert rest.ask("GET")[0] == 404 and rest.ask("DELETE", "?force=true")[0] == 404
    rest.set("PUT", "?numInitialSegments=3")
    said = rest.get("/stats")
    assert said["storageSize"] == 0 and not said["subscriptions"] and rest.get()["properties"] == {}


def test_a_namespace_is_deleted_with_its_scalable_topics(start_broker, tmp_path):
    (tmp_path / "geminga.toml").write_text("[storage]\nforce_delete_namespaces = true\n")
    broker = start_broker("--config", str(tmp_path / "geminga.toml"))
    base = f"{broker.http_url}/admin/v2"
    assert request("PUT", f"{base}/namespaces/public/short")[0] == 204
    assert request("PUT", f"{base}/scalable/public/short/x?numInitialSegments=2")[0] == 204
    assert request("DELETE", f"{base}/namespaces/public/short")[0] == 409
    assert request("DELETE", f"{base}/namespaces/public/short?force=true")[0] == 204
    assert request("GET", f"{base}/scalable/public/short/x")[0] == 404


# -- kills

@pytest.mark.slow
def test_topics_and_messages_outlive_a_kill(fresh_broker):
    rest = Rest(fresh_broker)
    rest.set("PUT", "?numInitialSegments=4", {"a": "b"})
    rest.set("PUT", "/subscriptions/sub")
    rest.publish(*(b"%d" % number for number in range(8)))
    before = rest.get()
    fresh_broker.kill_supervisor()
    fresh_broker.start()
    assert rest.get() == before
    assert rest.get("/stats")["subscriptions"]["sub"]["msgBacklog"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("is_owner", [False, True], ids=["broker", "owner"])
def test_a_deletion_that_a_kill_interrupts_is_finished(fresh_broker, is_owner):
    """The topic is gone with the first transaction; a later start deletes what is left of its segments."""
    rest = Rest(fresh_broker)
    rest.set("PUT", "?numInitialSegments=4")
    rest.publish(*(b"%d" % number for number in range(8)))
    fresh_broker.stop()
    catalogue = open_catalogue_of(fresh_broker)
    catalogue.scalable_topics.begin_deletion(names.parse(rest.name))
    catalogue.commit()
    left = catalogue.scalable_topics.stored_segments(names.parse(rest.name))
    catalogue.close()
    assert len(left) == 4
    fresh_broker.start()
    if is_owner:
        fresh_broker.kill("owner")
    assert rest.ask("GET")[0] == 404
    eventually(lambda: not stored(fresh_broker, rest.name))
    rest.set("PUT", "?numInitialSegments=4")
    eventually(lambda: rest.ask("GET", "/stats")[0] == 200)      # the owner may have been killed behind the deletion
    assert rest.get("/stats")["storageSize"] == 0


def test_a_deletion_that_an_owner_fails_at_is_finished_without_a_restart(tmp_path, monkeypatch):
    """Nobody could ask for it again: the topic is gone."""
    monkeypatch.setattr(scalable_deletion, "_AGAIN_SECONDS", 0)
    topic, catalogue = names.parse("topic://acme/eu/x"), open_catalogue(tmp_path / "catalogue.sqlite")
    catalogue.namespaces.create("acme/eu")
    catalogue.scalable_topics.create(topic, 1)
    [segment] = catalogue.topics.parts(topic)
    catalogue.partitions.create(segment)
    catalogue.commit()

    class Owners:
        failures = 2

        async def ask(self, question):
            self.failures -= 1
            if self.failures >= 0:
                raise Refusal(api.ServiceNotReady, "The topic's owner is being started; try again")
            catalogue.partitions.delete(catalogue.partitions.find(question.topic)[0])

    async def run():
        owners = Owners()
        topics = SimpleNamespace(catalogue=catalogue, storage=StorageOptions())
        app = {TOPICS: topics, OWNERS: owners, scalable_deletion.LEFT: asyncio.Event(), RETRIES: Retries()}
        serving = contextlib.asynccontextmanager(scalable_deletion.serve)
        async with serving(app), asyncio.timeout(HANG_SECONDS):
            await asyncio.sleep(0)      # the first round finds nothing
            with pytest.raises(Refusal):
                await scalable_deletion.delete(app, [topic])
            while catalogue.scalable_topics.is_being_deleted(topic):
                await asyncio.sleep(0)

    asyncio.run(run())
    assert not catalogue.scalable_topics.stored_segments(topic)
    catalogue.close()


def open_catalogue_of(broker):
    return open_catalogue(broker.data_dir / "catalogue.sqlite")


def stored(broker, name):
    """Return what is left of a deleted topic: its segments, and the row that says so."""
    catalogue = open_to_read(broker.data_dir / "catalogue.sqlite")
    try:
        topic = names.parse(name)
        return [*catalogue.scalable_topics.stored_segments(topic), *catalogue.scalable_topics.being_deleted()]
    finally:
        catalogue.close()


# -- tools

@pytest.mark.slow
def test_the_command_takes_a_scalable_topic_as_one(rest):
    """Keys go to the segments that clients of Pulsar 5 choose, and one name stands for all segments."""
    rest.set("PUT", "?numInitialSegments=4")
    rest.set("PUT", "/subscriptions/sub")
    keys = {"k0": 0, "k1": 3, "k2": 3, "k3": 1, "customer-7": 1}
    for key in keys:
        assert run("produce", "--url", rest.broker.service_url, rest.name, key, "--key", key)[0] == 0
    assert run("produce", "--url", rest.broker.service_url, rest.name, "a", "b", "c", "d")[0] == 0
    backlogs = rest.get("/stats")["subscriptions"]["sub"]["segments"]
    assert {number: one["msgBacklog"] for number, one in backlogs.items()} == {"0": 2, "1": 3, "2": 1, "3": 3}
    status, printed, _ = run("consume", "--url", rest.broker.service_url, rest.name)
    assert status == 0 and sorted(printed.split()) == sorted([*keys, "a", "b", "c", "d"])
    status, printed, _ = run("why", "--admin-url", rest.broker.http_url, rest.name, "sub")
    assert "9 messages are not acknowledged" in printed
    status, printed, _ = run("why", "--admin-url", rest.broker.http_url, rest.name)
    assert status == 0 and "sub" in printed
    status, printed, _ = run("topics", "--admin-url", rest.broker.http_url, rest.name, "-o", "json")
    assert status == 0 and len(json.loads(printed)) == 4
    assert run("consume", "--url", rest.broker.service_url, f"{rest.name}x")[0] == 1
    for where in (("--data-dir", str(rest.broker.data_dir)), ("--url", rest.broker.service_url)):
        assert run("search", *where, rest.name, "--key", "k3", "--total")[:2] == (0, "1\n")
    place = f"public/{rest.local}"      # other tests leave damaged and encrypted messages in the default namespace
    assert request("PUT", f"{rest.broker.http_url}/admin/v2/namespaces/{place}")[0] == 204
    assert rest.ask("PUT", "?numInitialSegments=2", place=place)[0] == 204
    assert run("produce", "--url", rest.broker.service_url, f"topic://{place}/{rest.local}", "customer-7")[0] == 0
    assert run("search", "--data-dir", str(rest.broker.data_dir), place, "--grep", "customer-7", "--total")[:2] == \
        (0, "1\n")


def test_the_console_lists_segments_without_links_to_pages_that_are_not_there(rest):
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("PUT", "/subscriptions/sub")
    for page in ("topics", "subscriptions"):
        status, text = request("GET", f"{rest.broker.http_url}/console/{page}?match=*{rest.local}*")
        assert status == 200 and rest.local in text and "/console/topics/segment" not in text


def test_a_table_of_topics_has_one_row_for_a_scalable_topic(rest):
    """Its segments have rows when the topic is named."""
    def table(query, place="public/default"):
        said = json.loads(request("GET", f"{rest.broker.http_url}/ops/v1/topics/{place}?{query}")[1])
        return said["total"], [(row["topic"], row["backlog"], row["subscriptions"]) for row in said["rows"]]

    rest.set("PUT", "?numInitialSegments=3")
    of_it, row = f"match={rest.local}", (rest.name, 4, 1)
    assert table(of_it) == (1, [(rest.name, None, None)]) == table(f"{of_it}&state=not-loaded")
    assert table(f"{of_it}&state=loaded") == (0, [])
    rest.publish(*(b"%d" % number for number in range(4)))
    rest.set("PUT", "/subscriptions/sub")
    for query in ("", "&sort=topic", "&sort=topic&reverse=true", "&sort=backlog", "&state=loaded", "&offset=0&limit=1"):
        eventually(lambda query=query: table(of_it + query) == (1, [row]))
    assert table(f"{of_it}&state=not-loaded") == (0, []) == table(f"{of_it}&state=partitioned")
    assert table("", f"topic/public/default/{rest.local}")[0] == 3
    total, rows = table("limit=1000")
    assert row in rows and total == len({name for name, *_ in rows}) == len(rows)


def test_tables_show_segments_only_where_their_topic_is_named(rest):
    """Also the tables of everything.  A topic has the number of its segments, and one row for a subscription."""
    def table(kind, place="", query="limit=1000"):
        rows = json.loads(request("GET", f"{rest.broker.http_url}/ops/v1/{kind}{place}?{query}")[1])["rows"]
        return [row for row in rows if rest.local in row["topic"]]

    rest.set("PUT", "?numInitialSegments=2")
    rest.set("PUT", "/subscriptions/sub")
    rest.publish(b"0", b"1", b"2")
    rest.set("POST", "/split/0")
    named = f"/topic/public/default/{rest.local}"
    for place in ("", "/public/default"):
        for query in ("limit=1000", f"match=*{rest.local}*"):
            eventually(lambda place=place, query=query: [
                (row["topic"], row["segments"], row["sealed_segments"], row["backlog"])
                for row in table("topics", place, query)] == [(rest.name, 3, 1, 3)])
            (row,) = table("subscriptions", place, query)
            assert (row["topic"], row["subscription"], row["backlog"]) == (rest.name, "sub", 3)
    assert table("subscriptions", query="limit=1000&subscription=other") == []
    for kind in ("topics", "subscriptions"):
        rows = table(kind, named)
        assert len(rows) == 4 and all(row["topic"].startswith("segment://") for row in rows)
    text = request("GET", f"{rest.broker.http_url}/console/topics?match={rest.local}")[1]
    assert "3 segments, one sealed" in text
    status, said, _ = run("topics", "--http-url", rest.broker.http_url, "public/default")
    assert status == 0 and said.splitlines()[0].endswith("SEGMENTS  SEALED")


def test_subscriptions_of_topics_that_are_not_loaded_have_one_row_too(fresh_broker):
    rest = Rest(fresh_broker)
    rest.set("PUT", "?numInitialSegments=2")
    rest.set("PUT", "/subscriptions/sub")
    fresh_broker.kill_supervisor()
    fresh_broker.start()
    for place, topics in (("", [rest.name]), ("/public/default", [rest.name]),
                          (f"/topic/public/default/{rest.local}", ["segment", "segment"])):
        said = json.loads(request("GET", f"{fresh_broker.http_url}/ops/v1/subscriptions{place}")[1])
        assert [row["topic"][:len(topics[0])] for row in said["rows"]] == topics
        assert said["total"] == len(topics)


def test_why_says_which_segments_wait_for_others(rest):
    """For a topic and for one subscription.  A queue's consumers take all segments at once."""
    def why(*about):
        status, said, errors = run("why", rest.name, *about, "--http-url", rest.broker.http_url)
        assert status == 0, errors
        return said

    rest.set("PUT")
    rest.set("PUT", "/subscriptions/sub")
    rest.publish(b"0")
    rest.set("POST", "/split/0")
    rest.publish(b"1", b"2", b"3")
    said = why("sub")
    assert "segments 1 to 2: " in said and "when everything in segment 0 is acknowledged" in said
    assert "partition" not in said and "sub" in why()
    [step] = re.findall("geminga admin (scalable-topics delete-subscription .*)", said)
    rest.set("POST", "/subscriptions/sub/skip-all")
    assert "everything is acknowledged" in why("sub") and "terminated" not in why("sub")
    assert run("admin", "--http-url", rest.broker.http_url, *shlex.split(step)) == (0, "", [])
    assert "sub" not in rest.get("/stats")["subscriptions"]


def test_a_search_finds_what_a_topic_has_that_has_split(rest):
    rest.set("PUT")
    rest.publish(b"0")
    rest.set("POST", "/split/0")
    rest.publish(b"1", b"2")
    for where in (("--data-dir", rest.broker.data_dir), ("--url", rest.broker.service_url)):
        for place in (rest.name, "public/default"):
            status, said, errors = run("search", *where, place, "-o", "jsonl")
            found = [json.loads(line) for line in said.splitlines()]
            assert status == 0 or (status == 4 and rest.local not in "".join(errors)), errors      # 4: of other topics
            assert sorted(one["payload"] for one in found if rest.local in one["topic"]) == ["0", "1", "2"]


def test_a_name_without_its_domain_is_answered_with_the_whole_one(rest):
    rest.set("PUT")
    status, _, errors = run("why", rest.local, "sub", "--http-url", rest.broker.http_url)
    assert status == 1 and f"Did you mean {rest.name}?" in "".join(errors)
