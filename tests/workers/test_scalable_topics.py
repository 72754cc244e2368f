"""Scalable topics by the protocol: names, layouts and their watches, segments, and stream consumers."""
import json
import uuid

import pytest

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api

from ..harness import guarded_broker, request
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from .peer import Peer, error_of


@pytest.fixture
def peer(broker):
    with Peer(broker.service_url) as one:
        yield one


@pytest.fixture
def name():
    return f"topic://public/default/s-{uuid.uuid4().hex[:12]}"


def url_of(broker, name):
    return f"{broker.http_url}/admin/v2/scalable/{name.removeprefix('topic://')}"


def create(broker, name, segments):
    status, text = request("PUT", f"{url_of(broker, name)}?numInitialSegments={segments}")
    assert status == 204, text


def layout_of(peer, name, session_id=1, *, create_if_missing=True):
    """Open a watch; return its first update."""
    update = peer.ask(T.SCALABLE_TOPIC_LOOKUP, session_id=session_id, topic=name, create_if_missing=create_if_missing)
    assert (update.type, update.scalableTopicUpdate.session_id) == (T.SCALABLE_TOPIC_UPDATE, session_id)
    return update.scalableTopicUpdate


def segments_of(name, layout):
    topic = names.parse(name)
    return [one.legacy_topic_name or str(topic.segment_name(one.segment_id, one.hash_start, one.hash_end))
            for one in layout.segments]


def publish(peer, segment, payload, producer_id=7):
    peer.open_producer(segment, producer_id)
    peer.say(send(entry_of(message_metadata(), payload), producer_id=producer_id))
    assert peer.hear().type == T.SEND_RECEIPT


# -- layouts

def test_the_first_lookup_creates_a_topic_with_one_segment(broker, peer, name):
    update = layout_of(peer, name)
    [segment] = update.dag.segments
    assert (update.resolved_topic_name, update.dag.epoch) == (name, 0)
    assert (segment.segment_id, segment.hash_start, segment.hash_end, segment.state) == (0, 0, 0xffff, api.ACTIVE)
    assert segment.created_at_ms and not segment.HasField("legacy_topic_name")
    assert segment.entry_bucket_splits == [16_384, 32_768, 49_152]
    assert json.loads(request("GET", url_of(broker, name))[1])["nextSegmentId"] == 1


def test_a_lookup_that_may_not_create_is_refused(peer, name):
    update = layout_of(peer, name, create_if_missing=False)
    assert (update.error, update.message) == (api.TopicNotFound, f"Scalable topic not found: {name}")


def test_a_layout_has_the_segments_that_the_topic_was_made_with(broker, peer, name):
    create(broker, name, 3)
    update = layout_of(peer, name)
    assert [(one.hash_start, one.hash_end) for one in update.dag.segments] == [
        (0, 0x5554), (0x5555, 0xaaa9), (0xaaaa, 0xffff)]


def test_a_watch_is_told_of_the_deletion_and_the_new_topic(broker, peer, name):
    create(broker, name, 2)
    layout_of(peer, name)
    assert request("DELETE", url_of(broker, name))[0] == 204
    gone = peer.hear().scalableTopicUpdate
    assert gone.HasField("dag") and not gone.dag.segments
    create(broker, name, 3)
    assert len(peer.hear().scalableTopicUpdate.dag.segments) == 3


def test_a_regular_name_stands_for_the_scalable_topic(broker, peer, name):
    """A client of Pulsar 5 that names no domain finds the scalable topic, one of Pulsar 4 finds no topic."""
    regular = name.replace("topic:", "persistent:")
    before = layout_of(peer, regular, 1)
    assert before.dag.segments[0].legacy_topic_name == regular
    create(broker, name, 2)
    pushed = peer.hear().scalableTopicUpdate
    assert pushed.session_id == 1 and segments_of(name, pushed.dag) == segments_of(name, layout_of(peer, name, 2).dag)
    answer = peer.ask(T.PARTITIONED_METADATA, topic=regular, request_id=5)
    assert error_of(answer) == api.TopicNotFound
    refused = peer.ask(T.PRODUCER, topic=regular, producer_id=1, request_id=6)
    assert error_of(refused) == api.TopicNotFound


def test_producers_of_a_sealed_segment_are_told(broker, peer, name):
    """One that has published gets an error first, so that a client without a watch looks for other segments at once.

    The Java client would lose an error that it reads together with the answer to its PRODUCER.
    """
    create(broker, name, 1)
    [segment] = segments_of(name, layout_of(peer, name).dag)
    peer.say(command(T.SCALABLE_TOPIC_CLOSE, session_id=1))
    publish(peer, segment, b"one", producer_id=7)
    peer.open_producer(segment, 8)
    assert request("POST", f"{url_of(broker, name)}/split/0")[0] == 204
    told = [peer.hear() for _ in range(3)]
    assert sorted(one.close_producer.producer_id for one in told if one.type == T.CLOSE_PRODUCER) == [7, 8]
    [error] = [one.send_error for one in told if one.type == T.SEND_ERROR]
    assert (error.producer_id, error.error) == (7, api.TopicTerminatedError) and "already terminated" in error.message
    answer = peer.ask(T.PRODUCER, topic=segment, producer_id=9, request_id=9)
    assert error_of(answer) == api.TopicTerminatedError


def test_lookups_find_topics_and_segments(broker, peer, name):
    create(broker, name, 2)
    for one in (name, f"{name}-not-there-yet", *segments_of(name, layout_of(peer, name).dag)):
        answer = peer.ask(T.LOOKUP, topic=one, request_id=3).lookupTopicResponse
        assert answer.response == answer.Connect and answer.brokerServiceUrl, one
    status, text = request("GET", f"{broker.http_url}/lookup/v2/topic/{name.replace('://', '/')}")
    assert status == 200 and json.loads(text)["brokerUrl"]


# -- segments

def test_segments_are_published_to_and_consumed_from(broker, peer, name):
    create(broker, name, 2)
    segments = segments_of(name, layout_of(peer, name).dag)
    assert len(segments) == 2
    for number, segment in enumerate(segments):
        publish(peer, segment, b"%d" % number, producer_id=number)
        peer.subscribe(segment, consumer_id=number)
        peer.say(command(T.FLOW, consumer_id=number, messagePermits=10))
        message, rest = peer.hear_frame()
        assert message.type == T.MESSAGE and rest.endswith(b"%d" % number)
        assert message.message.message_id.partition == -1


@pytest.mark.parametrize("made_up", [
    "0000-ffff-0", "0000-7fff-1", "0000-7fff-00", "8000-ffff-2", "0000-7FFF-0", "0000-7fff", "../0000-7fff-0", ""])
def test_a_segment_that_the_topic_does_not_have_is_refused(broker, peer, name, made_up):
    create(broker, name, 2)
    text = f"{name.replace('topic:', 'segment:')}/{made_up}"
    for kind, more in ((T.LOOKUP, {}), (T.PRODUCER, {"producer_id": 1}), (T.PARTITIONED_METADATA, {}),
                       (T.SUBSCRIBE, {"consumer_id": 1, "subscription": "s", "subType": 0}),
                       (T.GET_OR_CREATE_SCHEMA, {"schema": api.Schema(name="s", type=1, schema_data=b"")})):
        answer = peer.ask(kind, topic=text, request_id=4, **more)
        assert error_of(answer) in (api.TopicNotFound, api.InvalidTopicName), answer
    assert peer.ask(T.PING).type == T.PONG
    assert error_of_layout(peer, text) in (api.NotAllowedError, api.InvalidTopicName)
    assert len(json.loads(request("GET", url_of(broker, name))[1])["segments"]) == 2


def error_of_layout(peer, text):
    return peer.ask(T.SCALABLE_TOPIC_LOOKUP, session_id=9, topic=text).scalableTopicUpdate.error


def test_a_scalable_topic_itself_takes_no_producers_and_consumers(broker, peer, name):
    create(broker, name, 1)
    assert error_of(peer.ask(T.PRODUCER, topic=name, producer_id=1, request_id=1)) == api.NotAllowedError
    assert error_of(peer.ask(T.SUBSCRIBE, topic=name, subscription="s", consumer_id=1, request_id=2,
                             subType=0)) == api.NotAllowedError
    assert error_of(peer.ask(T.PARTITIONED_METADATA, topic=name, request_id=3)) == api.TopicNotFound


def test_a_topic_has_one_schema_for_all_segments(broker, peer, name):
    create(broker, name, 2)
    first, second = segments_of(name, layout_of(peer, name).dag)
    string = api.Schema(name="s", type=api.Schema.String, schema_data=b"")
    assert peer.ask(T.PRODUCER, topic=first, producer_id=1, request_id=1, schema=string).type == T.PRODUCER_SUCCESS
    other = api.Schema(name="s", type=api.Schema.Int32, schema_data=b"")
    refused = peer.ask(T.PRODUCER, topic=second, producer_id=2, request_id=2, schema=other)
    assert error_of(refused) == api.IncompatibleSchema


def test_segments_are_in_no_list_of_topics(broker, peer, name):
    create(broker, name, 2)
    publish(peer, segments_of(name, layout_of(peer, name).dag)[0], b"x")
    mode = api.CommandGetTopicsOfNamespace.ALL
    listed = peer.ask(T.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=8, mode=mode)
    assert not [one for one in listed.getTopicsOfNamespaceResponse.topics if "://" in one and not
                one.startswith(("persistent://", "non-persistent://"))]
    for path in ("persistent/public/default", "namespaces/public/default/topics?mode=ALL"):
        assert name.rpartition("/")[2] not in request("GET", f"{broker.http_url}/admin/v2/{path}")[1]


# -- deletion

def test_a_deletion_disconnects_clients_and_leaves_nothing(broker, peer, name):
    create(broker, name, 2)
    segments = segments_of(name, layout_of(peer, name).dag)
    publish(peer, segments[0], b"old", producer_id=1)
    peer.subscribe(segments[0], consumer_id=2)
    assert request("DELETE", url_of(broker, name))[0] == 204
    told = {peer.hear().type for _ in range(3)}
    assert told == {T.CLOSE_PRODUCER, T.CLOSE_CONSUMER, T.SCALABLE_TOPIC_UPDATE}
    assert error_of(peer.ask(T.PRODUCER, topic=segments[0], producer_id=5, request_id=5)) == api.TopicNotFound
    assert request("GET", url_of(broker, name))[0] == 404
    create(broker, name, 2)
    assert peer.hear().scalableTopicUpdate.dag.segments
    peer.subscribe(segments[0], consumer_id=6)
    stats = json.loads(request("GET", f"{url_of(broker, name)}/stats")[1])
    assert stats["subscriptions"]["sub"]["msgBacklog"] == 0 and stats["storageSize"] == 0


# -- stream consumers

def register(peer, name, consumer, consumer_id=1):
    peer.say(command(T.SCALABLE_TOPIC_SUBSCRIBE, request_id=consumer_id, topic=name, subscription="sub",
                     consumer_name=consumer, consumer_id=consumer_id, consumer_type=0))


def assigned_to(peer):
    """Return what the next assignment that comes assigns."""
    heard = peer.hear()
    if heard.type == T.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE:
        assert not heard.scalableTopicSubscribeResponse.HasField("error"), heard
        return heard.scalableTopicSubscribeResponse.assignment.segments
    assert heard.type == T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE, heard
    return heard.scalableTopicAssignmentUpdate.assignment.segments


def assigned(peer):
    """Return the segments of the next assignment that comes."""
    return [one.segment_topic for one in assigned_to(peer)]


def test_stream_consumers_share_the_segments(broker, peer, name):
    create(broker, name, 4)
    segments = segments_of(name, layout_of(peer, name).dag)
    peer.say(command(T.SCALABLE_TOPIC_CLOSE, session_id=1))
    register(peer, name, "a")
    assert assigned(peer) == segments
    with Peer(broker.service_url) as other:
        register(other, name.removeprefix("topic://"), "b")      # by any form of the name
        assert assigned(other) == segments[1::2] and assigned(peer) == segments[::2]
        unregistered = other.ask(T.SCALABLE_TOPIC_UNSUBSCRIBE, request_id=9, consumer_id=1)
        assert unregistered.type == T.SUCCESS and assigned(peer) == segments


def test_stream_consumers_beyond_the_segments_share_these_and_beyond_the_buckets_get_none(broker, peer, name):
    create(broker, name, 1)
    register(peer, name, "a", 1)
    [alone] = assigned_to(peer)
    assert not alone.bucket_ranges
    for number in range(2, 5):
        register(peer, name, "abcd"[number - 1], number)
        for [shared] in [assigned_to(peer) for _ in range(number)]:
            assert shared.segment_topic == alone.segment_topic
            assert [(one.start, one.end) for one in shared.bucket_ranges] == [
                (0, 16_383), (16_384, 32_767), (32_768, 49_151), (49_152, 65_535)]
    register(peer, name, "e", 5)
    assert sorted(len(assigned(peer)) for _ in range(5)) == [0, 1, 1, 1, 1]


def test_stream_consumers_follow_a_topic_that_was_created_anew(broker, peer, name):
    create(broker, name, 1)
    register(peer, name, "a")
    assert len(assigned(peer)) == 1
    assert request("DELETE", url_of(broker, name))[0] == 204
    create(broker, name, 2)
    segments = assigned(peer)
    assert len(segments or assigned(peer)) == 2      # the deletion is told first if there was time for it


def test_a_topic_that_is_created_anew_goes_on_with_its_epochs(broker, peer, name):
    """A stream consumer's client ignores assignments of an epoch below that of its last one."""
    create(broker, name, 1)
    assert layout_of(peer, name).dag.epoch == 0
    peer.say(command(T.SCALABLE_TOPIC_CLOSE, session_id=1))
    register(peer, name, "a")
    assert peer.hear().scalableTopicSubscribeResponse.assignment.layout_epoch == 0
    assert request("POST", f"{url_of(broker, name)}/split/0")[0] == 204
    assert request("DELETE", url_of(broker, name))[0] == 204
    create(broker, name, 3)
    newest = peer.hear().scalableTopicAssignmentUpdate.assignment
    epochs = [newest.layout_epoch]
    while len(newest.segments) < 3:
        newest = peer.hear().scalableTopicAssignmentUpdate.assignment
        epochs.append(newest.layout_epoch)
    assert epochs == sorted(epochs) and epochs[-1] == 2
    assert layout_of(peer, name).dag.epoch == 2


@pytest.mark.parametrize("subscription", ["pulsar.repl.x", "pulsar.dedup"])
def test_brokers_subscriptions_have_no_stream_consumers(broker, peer, name, subscription):
    create(broker, name, 1)
    answer = peer.ask(T.SCALABLE_TOPIC_SUBSCRIBE, request_id=1, topic=name, subscription=subscription,
                      consumer_name="a", consumer_id=1, consumer_type=0)
    assert error_of(answer) == api.ProducerBusy


def test_the_brokers_own_topics_are_not_hidden(broker, peer):
    hiding = "topic://pulsar/system/healthcheck"
    assert layout_of(peer, hiding).error == api.NotAllowedError
    assert request("PUT", url_of(broker, hiding))[0] == 400
    assert request("GET", f"{broker.http_url}/admin/v2/brokers/health")[0] == 200


def test_a_transaction_takes_no_segment_that_is_made_up(broker, peer, name):
    create(broker, name, 2)
    begun = peer.ask(T.NEW_TXN, request_id=1, tc_id=0, txn_ttl_millis=60_000, scalable=True).newTxnResponse
    bits = {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}
    segment = name.replace("topic:", "segment:")
    answers = [peer.ask(T.ADD_PARTITION_TO_TXN, request_id=2, partitions=[text], **bits).addPartitionToTxnResponse
               for text in (f"{segment}/0000-ffff-0", name, f"{segment}/0000-7fff-0")]
    assert [answer.error for answer in answers] == [api.TopicNotFound, api.NotAllowedError, 0]


def test_a_scalable_topic_counts_as_one_of_its_namespace(broker, peer, name):
    """Whatever segments it has, by REST and by first use."""
    namespace = f"public/{name.rpartition('/')[2]}"
    url = f"{broker.http_url}/admin/v2/namespaces/{namespace}"
    assert request("PUT", url)[0] == request("POST", f"{url}/maxTopicsPerNamespace", b"2")[0] == 204
    create(broker, f"topic://{namespace}/a", 4)
    assert len(layout_of(peer, f"topic://{namespace}/b").dag.segments) == 1
    assert request("PUT", url_of(broker, f"topic://{namespace}/c"))[0] == 412
    assert layout_of(peer, f"topic://{namespace}/c", 2).error != 0
    assert request("DELETE", url_of(broker, f"topic://{namespace}/a"))[0] == 204
    create(broker, f"topic://{namespace}/c", 4)


# -- rights

def test_a_right_to_the_topic_is_a_right_to_its_segments(start_broker, tmp_path, name):
    broker, tokens = guarded_broker(start_broker, tmp_path, "admin", "one", "other")
    admin = {"Authorization": f"Bearer {tokens['admin']}"}
    assert request("PUT", f"{url_of(broker, name)}?numInitialSegments=2", **admin)[0] == 204
    path = f"{url_of(broker, name)}/permissions/one"
    assert request("POST", path, b'["produce", "consume"]', **admin)[0] == 204
    said = json.loads(request("GET", f"{url_of(broker, name)}/permissions", **admin)[1])
    assert said == {"one": ["consume", "produce"]}
    connect = {role: command(T.CONNECT, client_version="t", protocol_version=21, auth_method_name="token",
                             auth_data=tokens[role].encode()) for role in ("one", "other")}
    with Peer(broker.service_url, connect["one"]) as one, Peer(broker.service_url, connect["other"]) as other:
        assert one.hear().type == other.hear().type == T.CONNECTED
        segments = segments_of(name, layout_of(one, name).dag)
        publish(one, segments[0], b"x")
        regular = name.replace("topic:", "persistent:")      # clients of Pulsar 5 write it so, or without a domain
        assert one.ask(T.LOOKUP, topic=regular, request_id=5).lookupTopicResponse.error == 0
        assert segments_of(name, layout_of(one, regular, 2).dag) == segments
        register(one, regular, "a")
        assert assigned(one) == segments
        assert layout_of(other, name).error == api.AuthorizationError
        assert layout_of(other, name.replace("topic:", "persistent:")).error == api.AuthorizationError
        refused = other.ask(T.PRODUCER, topic=segments[0], producer_id=1, request_id=1)
        assert error_of(refused) == api.AuthorizationError
        assert request("DELETE", path, **admin)[0] == 204
        told = [one.hear().type for _ in range(2)]
        assert sorted(told) == sorted([T.CLOSE_PRODUCER, T.SCALABLE_TOPIC_ASSIGNMENT_UPDATE])
    refused = request("GET", url_of(broker, name), Authorization=f"Bearer {tokens['other']}")
    assert refused[0] == 401
