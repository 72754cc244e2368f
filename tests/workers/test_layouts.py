"""Layouts of topics for clients of Pulsar 5: what a lookup answers, what its watch is told, and who is refused."""
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.layouts import Layout
from geminga.proto.names import parse
from geminga.workers.addresses import Addresses
from geminga.workers.directory import layouts

from ..harness import partitioned_topic, partitions_url, request, unique_topic
from ..proto.client_frames import T, command
from .peer import Peer, error_of
from .played import PlayedRights, PlayedWorker

LOOK_SECONDS = 2 * layouts.LOOK_SECONDS
TOPIC = "persistent://public/default/laid"
SCALABLE = "topic://public/default/laid"


@pytest.fixture
def rights():
    return PlayedRights()


@pytest.fixture
def worker(tmp_path, monkeypatch, rights):
    played = PlayedWorker(tmp_path, monkeypatch, rights=rights)
    yield played
    played.close()


@pytest.fixture
def client(worker):
    return worker.client()


def create(worker, topic=TOPIC, partitions=0):
    worker.catalogue.topics.create(parse(topic), partitions)
    worker.catalogue.commit()


def look_up(client, topic=TOPIC, session_id=1, **fields):
    """Ask for a layout; return the update that answers."""
    client.say(command(T.SCALABLE_TOPIC_LOOKUP, session_id=session_id, topic=topic, **fields))
    [update] = updates(client)
    assert update.session_id == session_id
    return update


def updates(client):
    heard = client.hear()
    assert {one.type for one in heard} <= {T.SCALABLE_TOPIC_UPDATE}, heard
    return [one.scalableTopicUpdate for one in heard]


def names(update):
    """Return the topics of the segments; the error if there is no layout."""
    if update.HasField("error"):
        assert update.message and not update.HasField("dag")
        return update.error
    return [segment.legacy_topic_name for segment in update.dag.segments]


def parts(count, topic=TOPIC):
    return [f"{topic}-partition-{number}" for number in range(count)]


# -- answers

def test_a_layout_is_the_one_that_pulsar_gives(worker, client):
    """Recorded from Apache Pulsar 5.0.1, but for the time."""
    create(worker, partitions=3)
    update = look_up(client, create_if_missing=True)
    assert update.resolved_topic_name == "topic://public/default/laid"
    assert {segment.created_at_ms for segment in update.dag.segments} == {
        worker.catalogue.topics.created_ms(parse(TOPIC))}
    for segment in update.dag.segments:
        segment.created_at_ms = 7
    assert update.dag == api.ScalableTopicDAG(epoch=0, segments=[
        api.SegmentInfoProto(segment_id=number, hash_start=first, hash_end=last, state=api.ACTIVE, created_at_epoch=0,
                             created_at_ms=7, legacy_topic_name=f"{TOPIC}-partition-{number}")
        for number, (first, last) in enumerate([(0, 21844), (21845, 43689), (43690, 65535)])])


def test_a_topic_without_partitions_is_one_segment(worker, client):
    create(worker)
    assert names(look_up(client)) == names(look_up(client, "laid", 2)) == [TOPIC]


def test_a_topic_that_its_first_client_creates_has_a_layout_before(worker, client):
    assert names(look_up(client)) == [TOPIC]
    assert worker.catalogue.topics.partition_count(parse(TOPIC)) is None
    assert names(look_up(client, create_if_missing=False)) == api.TopicNotFound


def test_only_an_advertised_address_is_named(worker, client):
    """Without a URL clients register stream consumers with the broker to which they are connected."""
    create(worker)
    assert not look_up(client).dag.HasField("controller_broker_url")
    worker.worker.directory.addresses = Addresses("pulsar://a:1", "pulsar+ssl://a:2", is_advertised=True)
    dag = look_up(client).dag
    assert (dag.controller_broker_url, dag.controller_broker_url_tls) == ("pulsar://a:1", "pulsar+ssl://a:2")


@pytest.mark.parametrize(("topic", "error"), [
    ("persistent://nobody/default/x", api.TopicNotFound), ("persistent://public/none/x", api.TopicNotFound),
    ("topic://public/none/x", api.TopicNotFound), ("topic://public/default/x-partition-0", api.InvalidTopicName),
    ("non-persistent://public/default/x", api.NotAllowedError), ("other://public/default/x", api.InvalidTopicName),
    ("segment://public/default/x/0000-ffff-0", api.NotAllowedError), ("", api.InvalidTopicName),
    ("topic://public", api.InvalidTopicName), (f"{TOPIC}-partition-0", api.TopicNotFound),
    ("persistent://public/default/ ", api.InvalidTopicName), ("x" * 5_000, api.InvalidTopicName),
])
def test_what_has_no_layout_is_refused(worker, client, topic, error):
    create(worker)
    assert names(look_up(client, topic)) == error
    assert names(look_up(client)) == [TOPIC]


def test_a_client_without_the_right_is_refused(worker, client, rights):
    create(worker)
    for topic in (TOPIC, SCALABLE):
        rights.withdraw(topic)
        assert names(look_up(client, topic)) == api.AuthorizationError


def test_a_connection_has_so_many_watches(client, monkeypatch):
    monkeypatch.setattr(layouts, "WATCHES_MAX", 2)
    assert names(look_up(client, session_id=1)) == names(look_up(client, session_id=2)) == [TOPIC]
    assert names(look_up(client, session_id=3)) == api.TooManyRequests
    assert names(look_up(client, session_id=2)) == [TOPIC]
    client.say(command(T.SCALABLE_TOPIC_CLOSE, session_id=1))
    assert names(look_up(client, session_id=3)) == [TOPIC]


def test_a_scalable_name_can_be_looked_up(client, rights):
    """Clients connect to what this answers before they ask for the layout."""
    found = []
    for topic in ("topic://public/default/laid", "topic://public/none/laid"):
        client.say(command(T.LOOKUP, topic=topic, request_id=1))
        found += [(one.lookupTopicResponse.response, one.lookupTopicResponse.error) for one in client.hear()]
    assert found == [(api.CommandLookupTopicResponse.Connect, 0),
                     (api.CommandLookupTopicResponse.Failed, api.TopicNotFound)]
    rights.withdraw(SCALABLE)
    client.say(command(T.LOOKUP, topic=SCALABLE, request_id=1))
    [refused] = client.hear()
    assert refused.lookupTopicResponse.error == api.AuthorizationError


@pytest.mark.parametrize("kind", [T.PRODUCER, T.SUBSCRIBE])
def test_a_scalable_name_has_no_producers_and_consumers(client, kind):
    fields = {"subscription": "s", "subType": 0, "consumer_id": 1} if kind == T.SUBSCRIBE else {"producer_id": 1}
    client.say(command(kind, topic=SCALABLE, request_id=1, **fields))
    assert client.told() == [("ERROR", 1, api.NotAllowedError)]


# -- changes

def test_a_watch_is_told_of_partitions_and_of_a_topic_that_is_created_again(worker, client):
    create(worker, partitions=2)
    assert names(look_up(client)) == parts(2)
    worker.catalogue.topics.set_partition_count(parse(TOPIC), 4)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    create(worker, f"{TOPIC}-other")      # nothing that is watched
    worker.turn(LOOK_SECONDS)
    worker.catalogue.topics.delete(parse(TOPIC))
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    create(worker)
    worker.turn(LOOK_SECONDS)
    assert [names(update) for update in updates(client)] == [parts(4), [TOPIC]]


@pytest.mark.parametrize("looks_between", [True, False])
def test_a_scalable_topic_that_was_deleted_has_no_segments_until_it_is_created_again(worker, client, looks_between):
    """An error would end the client's session, and segments of the same numbers would be no news to it."""
    topic, topics = parse(SCALABLE), worker.catalogue.scalable_topics
    topics.create(topic, 1)
    worker.catalogue.commit()
    first = look_up(client, SCALABLE)
    topics.begin_deletion(topic)
    topics.end_deletion(topic)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS if looks_between else 0.002)      # a creation is told from another one by its time, in ms
    topics.create(topic, 1)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    told = updates(client)
    assert [[segment.segment_id for segment in update.dag.segments] for update in [first, *told]] == [[0], [], [0]]
    assert not any(update.HasField("error") for update in told)


def test_a_topic_that_is_created_as_it_was_shown_is_no_news(worker, client):
    look_up(client)
    create(worker, f"{TOPIC}-other")
    worker.turn(LOOK_SECONDS)
    create(worker)
    worker.turn(LOOK_SECONDS)
    assert updates(client) == []


def test_a_session_that_is_used_again_watches_the_other_topic(worker, client):
    create(worker, partitions=1)
    create(worker, f"{TOPIC}2", partitions=1)
    look_up(client)
    look_up(client, f"{TOPIC}2")
    for topic in (TOPIC, f"{TOPIC}2"):
        worker.catalogue.topics.set_partition_count(parse(topic), 2)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    assert [names(update) for update in updates(client)] == [parts(2, f"{TOPIC}2")]


def test_a_layout_is_written_once_for_all_its_watches(worker, client, monkeypatch):
    """A thousand watches of a topic with many segments would keep the worker's other clients waiting for a second."""
    create(worker, partitions=1)
    for session_id in range(5):
        look_up(client, session_id=session_id)
    written, write = [], Layout.to_wire
    monkeypatch.setattr(Layout, "to_wire", lambda layout, urls: written.append(layout) or write(layout, urls))
    worker.catalogue.topics.set_partition_count(parse(TOPIC), 2)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    assert [(update.session_id, names(update)) for update in updates(client)] == [(one, parts(2)) for one in range(5)]
    assert len(written) == 1


def test_a_client_that_does_not_read_is_told_when_it_reads_again(worker, client):
    create(worker, partitions=1)
    look_up(client)
    client.client.stream.pause_writing()
    worker.catalogue.topics.set_partition_count(parse(TOPIC), 2)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    assert updates(client) == []
    client.client.stream.resume_writing()
    worker.turn(LOOK_SECONDS)
    assert [names(update) for update in updates(client)] == [parts(2)]


def test_a_client_that_lost_the_right_is_told_nothing(worker, client, rights):
    create(worker, partitions=1)
    look_up(client)
    rights.withdraw(TOPIC)
    worker.catalogue.topics.set_partition_count(parse(TOPIC), 2)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    assert updates(client) == []


@pytest.mark.parametrize("how", ["closed", "gone"])
def test_a_watch_that_has_ended_costs_nothing(worker, client, how):
    create(worker, partitions=1)
    look_up(client)
    client.say(command(T.SCALABLE_TOPIC_CLOSE, session_id=99))      # of no watch
    if how == "closed":
        client.say(command(T.SCALABLE_TOPIC_CLOSE, session_id=1))
    else:
        client.transport.close()
    assert worker.worker.layouts._watches == {}
    worker.catalogue.topics.set_partition_count(parse(TOPIC), 2)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    assert how == "gone" or updates(client) == []
    assert worker.worker.layouts._timer is None


# -- a broker

def test_a_broker_tells_of_partitions_that_rest_adds(broker):
    topic = partitioned_topic(broker.http_url, 2)
    with Peer(broker.service_url) as peer:
        first = peer.ask(T.SCALABLE_TOPIC_LOOKUP, session_id=1, topic=topic).scalableTopicUpdate
        assert request("POST", partitions_url(broker.http_url, topic), b"3")[0] == 204
        second = peer.hear().scalableTopicUpdate
        assert (names(first), names(second)) == (parts(2, topic), parts(3, topic))
        assert request("DELETE", partitions_url(broker.http_url, topic) + "?force=true")[0] == 204
        assert request("PUT", partitions_url(broker.http_url, topic), b"2")[0] == 204
        assert names(peer.hear().scalableTopicUpdate) == parts(2, topic)


def test_without_creation_of_topics_a_missing_one_is_refused(broker):
    namespace = f"public/laid-{unique_topic().rpartition('-')[2]}"
    url = f"{broker.http_url}/admin/v2/namespaces/{namespace}"
    assert request("PUT", url)[0] == 204
    assert request("POST", f"{url}/autoTopicCreation", b'{"allowAutoTopicCreation": false}')[0] == 204
    with Peer(broker.service_url) as peer:
        topic = f"persistent://{namespace}/x"
        assert error_of(peer.ask(T.SCALABLE_TOPIC_LOOKUP, session_id=1, topic=topic)) == api.TopicNotFound
        assert error_of(peer.ask(T.SCALABLE_TOPIC_SUBSCRIBE, request_id=1, topic=topic, subscription="s", consumer_id=1,
                                 consumer_name="c", consumer_type=api.STREAM)) == api.TopicNotFound
        assert request("POST", f"{url}/autoTopicCreation", b"""
            {"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 3}""")[0] == 204
        answer = peer.ask(T.SCALABLE_TOPIC_LOOKUP, session_id=1, topic=topic, create_if_missing=True)
        assert names(answer.scalableTopicUpdate) == parts(3, topic)
