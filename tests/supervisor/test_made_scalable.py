"""Regular topics that are made scalable by REST, while clients of Pulsar 4 and 5 use them."""
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.catalogue.catalogue import open_catalogue

from ..harness import eventually, request
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Peer, error_of
from ..workers.test_scalable_topics import assigned, layout_of, publish, register, segments_of
from .test_layout_changes import acknowledge, next_assigned, next_of
from .test_scalable_topics import Rest
from .test_serve import run


class Regular(Rest):
    """A regular topic of a broker, which has two partitions unless it says otherwise, and the scalable one of its name.
    """

    def __init__(self, broker, partitions=2):
        super().__init__(broker)
        self.regular = self.name.replace("topic:", "persistent:")
        self.parts = [f"{self.regular}-partition-{number}" for number in range(partitions)] or [self.regular]
        how = ("/partitions", partitions) if partitions else ()
        status, said = self.by_former_name("PUT", *how)
        assert status == 204, said

    def publish_to_active(self, *payloads):
        """Publish a payload to each segment that takes messages."""
        with Peer(self.broker.service_url) as peer:
            layout = layout_of(peer, self.name).dag
            segments = [segment for segment, one in zip(segments_of(self.name, layout), layout.segments, strict=True)
                        if one.state == api.ACTIVE]
            for number, (segment, payload) in enumerate(zip(segments, payloads, strict=True)):
                publish(peer, segment, payload, producer_id=number)

    def by_former_name(self, method, path="", body=None):
        url = f"{self.broker.http_url}/admin/v2/{self.regular.replace('://', '/')}{path}"
        status, text = request(method, url, None if body is None else json.dumps(body).encode())
        return status, json.loads(text) if text else None


@pytest.fixture
def rest(broker):
    return Regular(broker)


@pytest.fixture
def peer(broker):
    with Peer(broker.service_url) as one:
        yield one


def left_on(peer, part, subscription="sub"):
    """Return the payloads that a subscription has left on a partition."""
    peer.subscribe(part, subscription, consumer_id=90)
    peer.say(command(T.FLOW, consumer_id=90, messagePermits=100))
    payloads = []
    while (heard := peer.hear_frame())[0].type == T.MESSAGE:
        payloads.append(heard[1][-1:])
        peer.say(command(T.ACK, consumer_id=90, ack_type=0, message_id=[heard[0].message.message_id]))
    assert heard[0].type == T.REACHED_END_OF_TOPIC
    assert peer.ask(T.CLOSE_CONSUMER, consumer_id=90, request_id=9).type == T.SUCCESS
    return payloads


def test_partitions_become_sealed_segments_in_front_of_as_many_new_ones(rest):
    """As in Pulsar 5.0.1, which leaves the regular topic beside the scalable one."""
    assert rest.by_former_name("PUT", "/properties", {"team": "a"})[0] == 204
    assert rest.by_former_name("POST", "/messageTTL?messageTTL=777")[0] == 204
    assert rest.by_former_name("POST", "/permissions/someone", ["consume"])[0] == 204
    rest.set("POST", "/migrate")
    said = rest.get()
    ms = said["segments"]["0"]["createdAtMs"]
    assert said == {
        "epoch": 0, "nextSegmentId": 4, "properties": {"team": "a"}, "deleted": False,
        "segments": {
            **{str(number): {
                "segmentId": number, "hashRange": {"start": 0, "end": 65_535}, "state": "SEALED", "parentIds": [],
                "childIds": [2, 3], "createdAtEpoch": 0, "sealedAtEpoch": 0, "createdAtMs": ms, "sealedAtMs": ms,
                "legacyTopicName": rest.parts[number], "entryBucketSplits": [], "sealed": True, "active": False,
                "root": True, "leaf": False, "legacy": True} for number in range(2)},
            **{str(number): {
                "segmentId": number, "hashRange": {"start": first, "end": last}, "state": "ACTIVE",
                "parentIds": [0, 1], "childIds": [], "createdAtEpoch": 0, "sealedAtEpoch": -1, "createdAtMs": ms,
                "sealedAtMs": -1, "entryBucketSplits": [32_768], "sealed": False, "active": True, "root": False,
                "leaf": True, "legacy": False} for number, first, last in ((2, 0, 32_767), (3, 32_768, 65_535))}}}
    assert rest.get("/permissions") == {"someone": ["consume"]}
    assert rest.by_former_name("GET", "/messageTTL") == (200, 777)
    assert rest.by_former_name("GET", "/properties") == (200, {"team": "a"})
    assert rest.by_former_name("GET", "/partitions") == (200, {"partitions": 2, "deleted": False})
    operation = rest.get("/stats")["layout"]["lastOperation"]
    assert (operation["operation"], operation["segmentIds"], operation["status"]) == ("migrate", [0, 1], "success")


def test_lists_and_metrics_have_one_topic_which_shows_all_its_segments(rest, peer):
    publish(peer, rest.parts[0], b"1")
    peer.subscribe(rest.parts[1])
    rest.set("POST", "/migrate?force=true")

    def rows(path, table="topics"):
        status, text = request("GET", f"{rest.broker.http_url}/ops/v1/{table}/{path}&limit=1000")
        assert status == 200, text
        return [row["topic"] for row in json.loads(text)["rows"] if rest.local in row["topic"]]

    for sort in ("topic", "rate_in"):
        assert rows(f"public/default?sort={sort}") == [rest.name]
    assert rows("public/default?sort=topic", "subscriptions") == [rest.name]
    assert len(rows(f"{rest.name.replace('://', '/')}?sort=topic", "subscriptions")) == 3
    lines = request("GET", f"{rest.broker.http_url}/metrics")[1].splitlines()
    assert {re.search(r'topic="([^"]*)"', line)[1] for line in lines if rest.local in line} == {rest.name}
    assert [line.rpartition(" ")[2] for line in lines if rest.local in line
            and line.startswith("pulsar_in_messages_total")] == ["1"]
    segment = f"segment://public/default/{rest.local}"
    assert sorted(rows(f"{rest.name.replace('://', '/')}?sort=topic")) == [
        *rest.parts, f"{segment}/0000-7fff-2", f"{segment}/8000-ffff-3"]
    assert rest.name in json.loads(request("GET", f"{rest.broker.http_url}/admin/v2/scalable/public/default")[1])


def test_a_search_finds_messages_of_partitions_and_segments_once(rest, peer):
    publish(peer, rest.parts[0], b"old 1")
    rest.set("POST", "/migrate?force=true")
    rest.publish_to_active(b"new 2", b"new 3")
    for where in (("--data-dir", rest.broker.data_dir), ("--url", rest.broker.service_url)):
        for place in (rest.name, "public/default"):
            status, said, errors = run("search", *where, place, "-o", "jsonl")
            found = [json.loads(line) for line in said.splitlines()]
            # Other tests leave messages in the namespace that do not fit their topics' schemas.
            assert status == 0 or place == "public/default", errors
            assert sorted(one["payload"] for one in found if rest.local in one["topic"]) == ["new 2", "new 3", "old 1"]


# -- refusals

def test_a_topic_is_made_scalable_once(rest):
    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(lambda _: rest.ask("POST", "/migrate")[0], range(2))) == [204, 409]
    assert rest.ask("POST", "/migrate") == (409, {"reason": f"Topic is already scalable: {rest.name}"})


@pytest.mark.parametrize(("place", "local", "status", "reason"), [
    ("public/default", "nothing", 404, "Topic does not exist: persistent://public/default/nothing"),
    ("public/nowhere", "nothing", 404, "Topic does not exist: persistent://public/nowhere/nothing"),
    ("public/default", "{}-partition-0", 412, "a scalable topic has no partitions, and no name of one"),
])
def test_only_a_regular_topic_is_made_scalable(rest, place, local, status, reason):
    url = f"{rest.broker.http_url}/admin/v2/scalable/{place}/{local.format(rest.local)}/migrate"
    answered, text = request("POST", url)
    assert answered == status and json.loads(text)["reason"].endswith(reason) and "\n" not in json.loads(text)["reason"]


def test_a_topic_with_too_many_partitions_is_refused(broker):
    rest = Regular(broker, 257)
    status, said = rest.ask("POST", "/migrate")
    assert (status, said["reason"]) == (412, "A topic of more than 256 partitions cannot be made scalable")
    assert rest.ask("GET")[0] == 404


def test_a_replicated_topic_is_refused(broker):
    rest = Regular(broker)
    clusters, tenant = f"{broker.http_url}/admin/v2/clusters", f"{broker.http_url}/admin/v2/tenants/public"
    there = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
    assert request("PUT", f"{clusters}/elsewhere", json.dumps(there).encode())[0] == 200
    before = request("GET", tenant)[1]
    [own, other] = sorted(json.loads(request("GET", clusters)[1]), key="elsewhere".__eq__)
    allowed = json.loads(before) | {"allowedClusters": [own, other]}
    assert request("POST", tenant, json.dumps(allowed).encode())[0] == 204
    assert rest.by_former_name("POST", "/replication", [own, other])[0] == 204
    status, said = rest.ask("POST", "/migrate")
    assert status == 412 and "is replicated" in said["reason"]
    assert rest.by_former_name("DELETE", "/replication")[0] == 204
    assert request("POST", tenant, before.encode())[0] == 204
    assert request("DELETE", f"{clusters}/elsewhere")[0] == 204
    rest.set("POST", "/migrate?force=true")


# -- clients of Pulsar 4

def test_clients_of_pulsar_4_are_a_reason_to_refuse(rest, peer):
    peer.open_producer(rest.parts[0], 1)
    peer.subscribe(rest.parts[1], consumer_id=2)
    assert rest.ask("POST", "/migrate") == (409, {
        "reason": f"2 legacy v4 client connection(s) still attached to {rest.regular}; disconnect them (or all clients "
                  "are V5) before migrating, or retry with force=true"})
    assert rest.ask("GET")[0] == 404


def test_forced_producers_are_told_that_their_topic_is_terminated_and_consumers_get_what_is_left(rest, peer):
    peer.open_producer(rest.parts[0], 1)
    peer.subscribe(rest.parts[0], consumer_id=2)
    for payload in (b"1", b"2"):
        peer.say(send(entry_of(message_metadata(), payload), producer_id=1))
        assert peer.hear().type == T.SEND_RECEIPT
    rest.set("POST", "/migrate?force=true")
    error, closed = peer.hear(), peer.hear()
    assert (error.send_error.producer_id, error.send_error.error) == (1, api.TopicTerminatedError)
    assert (closed.type, closed.close_producer.producer_id) == (T.CLOSE_PRODUCER, 1)
    assert error_of(peer.ask(T.PRODUCER, topic=rest.parts[0], producer_id=3, request_id=3)) == api.TopicTerminatedError
    for name, count in ((rest.regular, 2), (rest.parts[1], 0)):
        answer = peer.ask(T.PARTITIONED_METADATA, topic=name, request_id=4).partitionMetadataResponse
        assert answer.partitions == count, answer
    assert peer.ask(T.CLOSE_CONSUMER, consumer_id=2, request_id=5).type == T.SUCCESS
    assert left_on(peer, rest.parts[0]) == [b"1", b"2"]


# -- clients of Pulsar 5

def test_consumers_and_watches_of_pulsar_5_are_none(rest, peer):
    """A checkpoint consumer says nothing of being one, and reads without a durable subscription.  A stream consumer is
    known by its name.  The client's watch of the layout may be on another of its connections.
    """
    assert peer.ask(T.SUBSCRIBE, topic=rest.parts[0], subscription="reader-0123456789", subType=0, durable=False,
                    consumer_id=1, request_id=1, start_message_id=api.MessageIdData(
                        ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)).type == T.SUCCESS
    peer.ask(T.SUBSCRIBE, topic=rest.parts[1], subscription="stream", subType=0, consumer_id=2, request_id=2,
             consumer_name="v5-stream-aXyz-seg-1")
    mark = [api.KeyValue(key="__pulsar.v5.managed", value="true")]
    assert peer.ask(T.PRODUCER, topic=rest.parts[0], producer_id=1, request_id=2, metadata=mark).type == \
        T.PRODUCER_SUCCESS
    assert rest.ask("POST", "/migrate")[1]["reason"].startswith("2 legacy v4 client connection(s)")
    with Peer(rest.broker.service_url) as other:
        layout_of(other, rest.regular)
        rest.set("POST", "/migrate")
        pushed = next_of(other, T.SCALABLE_TOPIC_UPDATE).scalableTopicUpdate
    assert (pushed.resolved_topic_name, pushed.dag.epoch) == (rest.name, 0)
    segments = pushed.dag.segments
    assert [(one.segment_id, one.legacy_topic_name, one.state, list(one.parent_ids)) for one in segments] == [
        (0, rest.parts[0], api.SEALED, []), (1, rest.parts[1], api.SEALED, []), (2, "", api.ACTIVE, [0, 1]),
        (3, "", api.ACTIVE, [0, 1])]


@pytest.mark.parametrize("name", ["regular", "name"])
def test_stream_consumers_go_on_and_get_the_new_segments_when_all_partitions_are_drained(rest, peer, name):
    """One that has been there before, and one that comes later under either name, share them."""
    register(peer, rest.regular, "a")
    assert assigned(peer) == rest.parts
    for number, part in enumerate(rest.parts):
        peer.subscribe(part, consumer_id=20 + number)
        with Peer(rest.broker.service_url) as other:
            publish(other, part, b"x")
    for number in range(2):
        peer.say(command(T.FLOW, consumer_id=20 + number, messagePermits=100))
    messages = [next_of(peer, T.MESSAGE) for _ in rest.parts]
    rest.set("POST", "/migrate?force=true")
    assert next_assigned(peer) == [0, 1]
    by_consumer = {message.message.consumer_id: message for message in messages}
    acknowledge(peer, by_consumer[20], 20)
    while next_assigned(peer) != [1]:
        pass
    with Peer(rest.broker.service_url) as late:
        register(late, getattr(rest, name), "b")
        assert assigned(late) == []
        acknowledge(peer, by_consumer[21], 21)
        while next_assigned(peer) != [2]:
            pass
        while next_assigned(late) != [3]:
            pass


def test_every_subscription_is_on_all_new_segments_before_they_take_a_message(rest, peer):
    """Also one that is only on one partition, without a consumer."""
    publish(peer, rest.parts[0], b"1")
    assert rest.by_former_name("PUT", "-partition-0/subscription/made")[0] == 204
    rest.set("POST", "/migrate?force=true")
    segments = rest.get("/stats")["subscriptions"]["made"]["segments"]
    assert set(segments) == {"0", "2", "3"}


def test_a_topic_without_partitions_becomes_one_segment_in_front_of_another(broker, peer):
    rest = Regular(broker, 0)
    publish(peer, rest.regular, b"1")
    assert rest.by_former_name("PUT", "/subscription/sub", None)[0] == 204
    assert peer.ask(T.CLOSE_PRODUCER, producer_id=7, request_id=9).type == T.SUCCESS
    rest.set("POST", "/migrate")
    said = rest.get()["segments"]
    assert (said["0"]["legacyTopicName"], said["1"]["parentIds"], said["1"]["entryBucketSplits"]) == (
        rest.regular, [0], [16_384, 32_768, 49_152])
    assert peer.ask(T.PARTITIONED_METADATA, topic=rest.regular, request_id=4).partitionMetadataResponse.partitions == 0
    with Peer(broker.service_url) as other:
        left_on(other, rest.regular)


# -- the former name

def test_the_former_name_is_taken_until_the_topic_is_deleted_and_free_then(rest, peer):
    publish(peer, rest.parts[0], b"old")
    rest.set("POST", "/migrate?force=true")
    for method, path, body in (("PUT", "/partitions", 2), ("PUT", "", None), ("DELETE", "-partition-0", None)):
        status, said = rest.by_former_name(method, path, body)
        assert status == 409 and rest.name in said["reason"], (method, path, status, said)
    rest.set("DELETE")
    assert rest.by_former_name("GET", "/partitions")[0] == 404
    assert rest.by_former_name("PUT", "/partitions", 2)[0] == 204
    status, said = rest.by_former_name("GET", "/partitioned-internalStats")
    assert status == 200 and not any(one["numberOfEntries"] for one in said["partitions"].values())


def test_a_topic_that_is_being_made_scalable_is_neither_deleted_nor_given_partitions(fresh_broker):
    """The change is written down, and nothing of it done yet."""
    rest = Regular(fresh_broker)
    fresh_broker.stop()
    catalogue = open_catalogue(fresh_broker.data_dir / "catalogue.sqlite")
    topic = names.parse(rest.name)
    assert catalogue.scalable_topics.begin_migration(topic, 2)
    catalogue.commit()
    for change in (lambda: catalogue.topics.delete(topic.regular), lambda: catalogue.scalable_topics.create(topic, 1),
                   lambda: catalogue.topics.set_partition_count(topic.regular, 3)):
        with pytest.raises(Refusal) as refused:
            change()
        assert refused.value.code == api.ServiceNotReady
    assert not catalogue.scalable_topics.begin_migration(topic, 2)
    catalogue.undo()
    catalogue.close()
    fresh_broker.start()
    eventually(lambda: rest.ask("GET")[0] == 200)
    assert rest.get()["nextSegmentId"] == 4


def test_a_migration_waits_for_owners_that_are_killed(fresh_broker):
    rest = Regular(fresh_broker)
    fresh_broker.kill("owner")
    rest.set("POST", "/migrate?force=true")
    assert rest.get()["nextSegmentId"] == 4
