"""Watches of a namespace's scalable topics: what opens them, what they are told of changes, and who is refused."""
import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import parse
from geminga.workers.directory import namespace_watches
from geminga.workers.directory.patterns import topics_hash

from ..harness import eventually, request
from ..proto.client_frames import T, command
from .peer import Peer
from .played import PlayedRights, PlayedWorker

LOOK_SECONDS = 2 * namespace_watches.LOOK_SECONDS
NAMESPACE = "public/default"


def topic(name, namespace=NAMESPACE):
    return f"topic://{namespace}/{name}"


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


def create(worker, name, namespace=NAMESPACE, **properties):
    assert worker.catalogue.scalable_topics.create(parse(topic(name, namespace)), 1, properties)
    worker.catalogue.commit()


def delete(worker, name):
    deleted = parse(topic(name))
    worker.catalogue.scalable_topics.begin_deletion(deleted)
    worker.catalogue.scalable_topics.end_deletion(deleted)
    worker.catalogue.commit()


def give(worker, name, **properties):
    worker.catalogue.properties.set(topic(name), properties)
    worker.catalogue.commit()


def watch(client, watch_id=1, namespace=NAMESPACE, filters=None, **fields):
    """Open a watch; return what answers it at once."""
    wanted = [api.KeyValue(key=key, value=value) for key, value in (filters or {}).items()]
    client.say(command(T.WATCH_SCALABLE_TOPICS, watch_id=watch_id, namespace=namespace, property_filters=wanted,
                       **fields))
    return updates(client)


def updates(client):
    """Return (watch, error), (watch, topics) or (watch, added, removed) of each update since the last call."""
    return [shape(heard.watchScalableTopicsUpdate) for heard in client.hear()]


def shape(update):
    if update.HasField("error"):
        assert update.message and not (update.HasField("snapshot") or update.HasField("diff"))
        return update.watch_id, update.error
    if update.HasField("snapshot"):
        return update.watch_id, list(update.snapshot.topics)
    return update.watch_id, list(update.diff.added), list(update.diff.removed)


# -- what opens a watch

def test_a_watch_begins_with_all_scalable_topics(worker, client):
    worker.catalogue.topics.create(parse("persistent://public/default/plain"), 0)
    worker.catalogue.namespaces.create("public/default2")
    create(worker, "other", "public/default2")
    assert watch(client) == [(1, [])]
    for name in "ba":
        create(worker, name)
    assert watch(client, 2) == [(2, [topic("a"), topic("b")])]


def test_a_watch_shows_topics_with_all_wanted_properties(worker, client):
    create(worker, "a", team="x", stage="test")
    create(worker, "b", team="x")
    create(worker, "c", team="y")
    create(worker, "d")
    found = [watch(client, number, filters=filters) for number, filters in
             enumerate([{"team": "x"}, {"team": "x", "stage": "test"}, {"stage": ""}])]
    assert found == [[(0, [topic("a"), topic("b")])], [(1, [topic("a")])], [(2, [])]]


def test_a_client_that_connects_again_is_told_what_it_does_not_know(worker, client):
    create(worker, "a")
    known = topics_hash([topic("a")])
    assert watch(client, current_hash=known) == []
    create(worker, "b")
    worker.turn(LOOK_SECONDS)
    assert updates(client) == [(1, [topic("b")], [])]
    assert watch(worker.client(), current_hash=known) == [(1, [topic("a"), topic("b")])]
    assert watch(worker.client(), current_hash=topics_hash([]), namespace="public/gone") == []
    assert watch(worker.client(), current_hash=known, namespace="public/gone") == [(1, [])]


@pytest.mark.parametrize(("namespace", "error"), [
    ("public/none", api.TopicNotFound), ("none/default", api.TopicNotFound), ("public", api.InvalidTopicName),
    ("", api.InvalidTopicName), ("public/" + "x" * 100_000, api.TopicNotFound)])
def test_what_is_no_namespace_is_refused(client, namespace, error):
    assert watch(client, namespace=namespace) == [(1, error)]
    assert watch(client) == [(1, [])]


def test_a_client_without_the_right_is_refused(worker, client, monkeypatch, rights):
    monkeypatch.setattr(rights, "lost", {NAMESPACE})
    assert watch(client) == [(1, api.AuthorizationError)]


def test_watches_are_bounded(client, monkeypatch):
    monkeypatch.setattr(namespace_watches, "WATCHES_MAX", 2)
    assert watch(client, 1) + watch(client, 2) == [(1, []), (2, [])]
    assert watch(client, 3) == [(3, api.TooManyRequests)]
    assert watch(client, 2) == [(2, [])]
    client.say(command(T.WATCH_SCALABLE_TOPICS_CLOSE, watch_id=1))
    assert watch(client, 3) == [(3, [])]
    assert watch(client, 3, filters={"k": "v" * namespace_watches.FILTERS_MAX}) == [(3, api.NotAllowedError)]


def test_a_long_list_comes_in_parts(worker, client, monkeypatch):
    monkeypatch.setattr(namespace_watches, "UPDATE_MAX", 2 * len(topic("a")))
    for name in "abcde":
        create(worker, name)
    assert watch(client) == [(1, [topic("a"), topic("b")]), (1, [topic("c"), topic("d")], []), (1, [topic("e")], [])]
    for name in "abc":
        delete(worker, name)
    worker.turn(LOOK_SECONDS)
    assert updates(client) == [(1, [], [topic("a"), topic("b")]), (1, [], [topic("c")])]


# -- changes

def test_topics_that_come_and_go_are_told(worker, client):
    assert watch(client, 1) == [(1, [])]
    assert watch(client, 2, filters={"team": "x"}) == [(2, [])]
    create(worker, "a")
    create(worker, "b", team="x")
    worker.turn(LOOK_SECONDS)
    assert sorted(updates(client)) == [(1, [topic("a"), topic("b")], []), (2, [topic("b")], [])]
    delete(worker, "b")
    worker.turn(LOOK_SECONDS)
    assert sorted(updates(client)) == [(1, [], [topic("b")]), (2, [], [topic("b")])]
    worker.catalogue.topics.create(parse("persistent://public/default/plain"), 0)
    worker.catalogue.commit()
    worker.turn(LOOK_SECONDS)
    assert updates(client) == []


def test_properties_make_topics_come_and_go(worker, client):
    create(worker, "a")
    assert watch(client, 1) == [(1, [topic("a")])]
    assert watch(client, 2, filters={"team": "x"}) == [(2, [])]
    give(worker, "a", team="x", more="y")
    worker.turn(LOOK_SECONDS)
    assert updates(client) == [(2, [topic("a")], [])]
    give(worker, "a", team="y")
    worker.turn(LOOK_SECONDS)
    assert updates(client) == [(2, [], [topic("a")])]


def test_of_a_topic_that_is_created_again_at_once_nothing_is_told(worker, client):
    """The consumers of the topic follow its layout; others would get again what these have not acknowledged."""
    create(worker, "a")
    assert watch(client) == [(1, [topic("a")])]
    delete(worker, "a")
    create(worker, "a")
    worker.turn(LOOK_SECONDS)
    assert updates(client) == []


def test_a_client_that_does_not_read_is_told_the_sum_later(worker, client):
    other = worker.client()
    assert watch(client) == watch(other) == [(1, [])]
    client.client.stream.pause_writing()
    create(worker, "a")
    worker.turn(LOOK_SECONDS)
    create(worker, "b")
    delete(worker, "a")
    worker.turn(LOOK_SECONDS)
    assert updates(client) == []
    assert updates(other) == [(1, [topic("a")], []), (1, [], [topic("a")]), (1, [topic("b")], [])]
    client.client.stream.resume_writing()
    worker.turn(LOOK_SECONDS)
    assert updates(client) == [(1, [topic("b")], [])]


def test_a_client_that_lost_the_right_is_told_of_the_end_only(worker, client, monkeypatch, rights):
    """A namespace's deletion takes the rights to it along, and the client has to learn that its topics have gone."""
    create(worker, "a")
    create(worker, "b")
    assert watch(client) == [(1, [topic("a"), topic("b")])]
    with monkeypatch.context() as without:
        without.setattr(rights, "lost", {NAMESPACE})
        create(worker, "c")
        delete(worker, "a")
        worker.turn(LOOK_SECONDS)
        assert updates(client) == [(1, [], [topic("a")])]
    worker.turn(LOOK_SECONDS)
    assert updates(client) == [(1, [topic("c")], [])]


@pytest.mark.parametrize("how", ["closed", "gone"])
def test_a_watch_that_has_ended_costs_nothing(worker, client, how):
    assert watch(client) == [(1, [])]
    client.say(command(T.WATCH_SCALABLE_TOPICS_CLOSE, watch_id=99))      # of no watch
    if how == "closed":
        client.say(command(T.WATCH_SCALABLE_TOPICS_CLOSE, watch_id=1))
    else:
        client.transport.close()
    create(worker, "a")
    worker.turn(LOOK_SECONDS)
    assert how == "gone" or updates(client) == []
    assert worker.worker.namespace_watches._watches == {} and worker.worker.namespace_watches._timer is None


# -- a broker

def test_a_broker_tells_of_topics_however_they_are_created(broker):
    """By REST, by the first use of a client, and with the namespace: a watch outlives the namespace."""
    tenant = f"{broker.http_url}/admin/v2/tenants/watched"
    namespace, url = "watched/all", f"{broker.http_url}/admin/v2/namespaces/watched/all"
    assert request("PUT", tenant, b'{"allowedClusters": ["standalone"]}')[0] == 204
    assert request("PUT", url)[0] == 204
    with Peer(broker.service_url) as peer, Peer(broker.service_url) as other:
        peer.say(command(T.WATCH_SCALABLE_TOPICS, watch_id=7, namespace=namespace,
                         property_filters=[api.KeyValue(key="team", value="x")]))
        other.say(command(T.WATCH_SCALABLE_TOPICS, watch_id=8, namespace=namespace))

        def heard(by):
            return shape(by.hear().watchScalableTopicsUpdate)

        assert (heard(peer), heard(other)) == ((7, []), (8, []))
        scalable = f"{broker.http_url}/admin/v2/scalable/{namespace}"
        assert request("PUT", f"{scalable}/a", b'{"team": "x"}')[0] == 204
        assert (heard(peer), heard(other)) == ((7, [topic("a", namespace)], []), (8, [topic("a", namespace)], []))
        with Peer(broker.service_url) as user:
            user.ask(T.SCALABLE_TOPIC_LOOKUP, session_id=1, topic=topic("b", namespace), create_if_missing=True)
        assert heard(other) == (8, [topic("b", namespace)], [])
        assert request("PUT", f"{scalable}/b/properties", b'{"team": "x"}')[0] == 204
        assert heard(peer) == (7, [topic("b", namespace)], [])
        assert request("DELETE", f"{scalable}/b/properties?key=team")[0] == 204
        assert heard(peer) == (7, [], [topic("b", namespace)])
        for name in "ab":
            assert request("DELETE", f"{scalable}/{name}")[0] == 204
        assert heard(peer) == (7, [], [topic("a", namespace)])
        gone = []
        while len(gone) < 2:
            gone += heard(other)[2]
        assert gone == [topic("a", namespace), topic("b", namespace)]
        eventually(lambda: request("DELETE", url)[0] == 204)
        assert request("PUT", url)[0] == 204
        assert request("PUT", f"{scalable}/c", b'{"team": "x"}')[0] == 204
        assert (heard(peer), heard(other)) == ((7, [topic("c", namespace)], []), (8, [topic("c", namespace)], []))
