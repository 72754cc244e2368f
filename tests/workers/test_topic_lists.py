"""Lists of topics: requests, patterns and watchers."""
import time
import uuid
from types import SimpleNamespace

import pytest

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.names import parse
from geminga.storage.catalogue.catalogue import open_catalogue
from geminga.workers.directory.patterns import LENGTH_MAX, ForeignPattern, Pattern, topics_hash
from geminga.workers.directory.watchers import WATCHERS_MAX, Watcher, Watchers

from ..harness import Broker, partitions_url, request
from ..proto.client_frames import CONNECT, T
from .peer import Peer, error_of

Mode = api.CommandGetTopicsOfNamespace
NAMESPACE = "public/default"
PARTITIONS = ["abp-partition-0", "abp-partition-1"]


@pytest.fixture
def peer(broker):
    with Peer(broker.service_url) as connected:
        yield connected


@pytest.fixture
def prefix():
    """The beginning of the names of this test's topics, with their namespace."""
    return f"{NAMESPACE}/list-{uuid.uuid4().hex[:8]}-"


def create(broker, *topics, partitions=0):
    if partitions:
        for topic in topics:
            assert request("PUT", partitions_url(broker.http_url, topic), b"%d" % partitions)[0] == 204
        return
    with Peer(broker.service_url) as peer:
        for number, topic in enumerate(topics):
            assert peer.ask(T.LOOKUP, topic=topic, request_id=number).type == T.LOOKUP_RESPONSE
            peer.open_producer(topic, number)


def listed(peer, pattern=None, **fields):
    if pattern is not None:
        fields["topics_pattern"] = pattern
    answer = peer.ask(T.GET_TOPICS_OF_NAMESPACE, request_id=1, **{"namespace": NAMESPACE} | fields)
    assert answer.type == T.GET_TOPICS_OF_NAMESPACE_RESPONSE, answer
    return answer.getTopicsOfNamespaceResponse


def watch(peer, pattern, watcher_id=1, **fields):
    answer = peer.ask(T.WATCH_TOPIC_LIST, request_id=1, watcher_id=watcher_id, namespace=NAMESPACE,
                      topics_pattern=pattern, **fields)
    assert answer.type == T.WATCH_TOPIC_LIST_SUCCESS, answer
    return answer.watchTopicListSuccess


def updated(peer):
    answer = peer.hear()
    assert answer.type == T.WATCH_TOPIC_UPDATE, answer
    return answer.watchTopicUpdate


# -- lists

def test_a_hash_is_the_one_that_clients_compute():
    """Expected hashes are from Apache Pulsar; the order of the names does not matter."""
    assert topics_hash([]) == "00000000"
    assert topics_hash(["non-persistent://public/n81510/abn"]) == "001d0d76"
    both = [f"persistent://public/n81510/abp-partition-{number}" for number in (0, 1)]
    assert topics_hash(both) == topics_hash(both[::-1]) == "2b09d008"


@pytest.mark.slow
@pytest.mark.parametrize("pattern, chosen", [
    ("persistent://{}ab.*", ["abc", "abd", *PARTITIONS]), ("{}ab.*", ["abc", "abd", *PARTITIONS]),
    ("^persistent://{}ab.$", ["abc", "abd", *PARTITIONS]), ("^{}abc$", ["abc"]), ("non-persistent://{}abc", ["abc"]),
    ("{}abp", PARTITIONS), ("{}abp-partition-.*", []), ("{}ab", []), ("{}AB.", []), ("ab.*", []), ("", []),
    ("{}x.z|{}abc", ["abc", "xyz"]), ("persistent://{}x.z|persistent://{}abc", ["abc", "xyz"]),
    (r"\Qpersistent://{}abc\E", ["abc"]), (r"^\Qpersistent://{}a.c\E", []), ("{}__own", ["__own"]),
])
def test_a_pattern_is_matched_by_the_whole_name_without_scheme_and_partition(broker, peer, prefix, pattern, chosen):
    create(broker, *(f"persistent://{prefix}{name}" for name in ("abd", "abc", "xyz", "__own")))
    create(broker, f"persistent://{prefix}abp", partitions=2)
    found = listed(peer, pattern.replace("{}", prefix))
    assert sorted(found.topics) == [f"persistent://{prefix}{name}" for name in chosen]
    assert found.filtered and found.changed and found.topics_hash == topics_hash(found.topics)


def test_the_mode_says_which_domain(broker, peer, prefix):
    with Peer(broker.service_url) as user:
        names = [f"{domain}://{prefix}abc" for domain in ("non-persistent", "persistent")]
        for number, name in enumerate(names):
            assert user.ask(T.LOOKUP, topic=name, request_id=number).type == T.LOOKUP_RESPONSE
            user.open_producer(name, number)
        for mode, chosen in ((Mode.PERSISTENT, names[1:]), (Mode.NON_PERSISTENT, names[:1]), (Mode.ALL, names)):
            assert sorted(listed(peer, f"{prefix}.*", mode=mode).topics) == chosen
            assert [name for name in sorted(listed(peer, mode=mode).topics) if prefix in name] == chosen


def test_who_knows_the_list_is_told_that_it_has_not_changed(broker, peer, prefix):
    create(broker, f"persistent://{prefix}abc")
    known = listed(peer, f"{prefix}.*").topics_hash
    again = listed(peer, f"{prefix}.*", topics_hash=known)
    assert (again.changed, list(again.topics), again.topics_hash, again.filtered) == (False, [], known, True)
    create(broker, f"persistent://{prefix}abd")
    changed = listed(peer, f"{prefix}.*", topics_hash=known)
    assert changed.changed and len(changed.topics) == 2


def test_a_namespace_that_is_not_there_has_no_topics(peer):
    found = listed(peer, ".*", namespace="public/missing")
    assert (list(found.topics), found.topics_hash) == ([], "00000000")


@pytest.mark.parametrize("pattern", ["{}(?!x).*", "{}.*" + "|x" * LENGTH_MAX, r"{}\p{Alpha}+", r"{}(a)\1"],
                         ids=["look-ahead", "too long", "Java's classes", "back reference"])
def test_what_the_broker_does_not_evaluate_the_client_does(broker, peer, prefix, pattern):
    """The client gets all names, and is told that they are not filtered."""
    create(broker, *(f"persistent://{prefix}{name}" for name in ("abc", "xyz")))
    found = listed(peer, pattern.replace("{}", prefix))
    assert not found.filtered
    assert {f"persistent://{prefix}{name}" for name in ("abc", "xyz")} <= set(found.topics)


@pytest.mark.parametrize("pattern", ["{}ab(", "{}[a", "{})", "*", "other://{}.*", "(persistent|non-persistent)://{}.*"])
def test_what_is_no_pattern_is_refused(peer, prefix, pattern):
    said = {"namespace": NAMESPACE, "topics_pattern": pattern.replace("{}", prefix), "request_id": 1}
    assert error_of(peer.ask(T.GET_TOPICS_OF_NAMESPACE, **said)) == api.MetadataError
    assert error_of(peer.ask(T.WATCH_TOPIC_LIST, watcher_id=1, **said)) == api.InvalidTopicName
    assert peer.ask(T.PING).type == T.PONG


@pytest.mark.slow
def test_a_slow_pattern_is_given_up():
    """The pattern has a state for nearly every place of every name; without a bound it would take seconds."""
    names = [f"persistent://{NAMESPACE}/{number:060b}".translate({48: "a", 49: "b"})
             for number in range(7, 2**60, 2**46 + 12_345)]
    pattern = Pattern(".*a.{300}|.*b.{300}|.*ab.{200}")
    began = time.thread_time()
    with pytest.raises(ForeignPattern):
        pattern.choose(names)
    assert time.thread_time() - began < 1
    with pytest.raises(ForeignPattern):
        pattern.choose(names[:1])


# -- watchers

def test_connected_says_that_lists_can_be_watched(broker):
    with Peer(broker.service_url, b"") as peer:
        peer.say(CONNECT)
        assert peer.hear().connected.feature_flags.supports_topic_watchers


def test_a_watcher_is_told_what_is_there_and_then_what_comes_and_goes(broker, peer, prefix):
    if not isinstance(broker, Broker):
        pytest.skip("deletes a topic from the broker's own folder")
    topics = [f"persistent://{prefix}{name}" for name in ("aa", "ab-partition-0", "ab-partition-1", "ac")]
    create(broker, topics[0])
    found = watch(peer, f"{prefix}a.*")
    assert (found.watcher_id, list(found.topic), found.topics_hash) == (1, topics[:1], topics_hash(topics[:1]))
    create(broker, f"persistent://{prefix}b")                     # this watcher is not told of it
    create(broker, f"persistent://{prefix}ab", partitions=2)
    update = updated(peer)
    assert (update.watcher_id, sorted(update.new_topics), list(update.deleted_topics)) == (1, topics[1:3], [])
    assert update.topics_hash == topics_hash(topics[:3])
    catalogue = open_catalogue(broker.data_dir / "catalogue.sqlite")
    catalogue.topics.create(parse(topics[3]), 0)
    catalogue.topics.delete(parse(topics[0]))
    catalogue.commit()
    catalogue.close()
    update = updated(peer)
    assert (list(update.new_topics), list(update.deleted_topics)) == (topics[3:], topics[:1])
    assert update.topics_hash == topics_hash(topics[1:])


def test_watchers_of_every_worker_are_told(broker, prefix):
    peers = [Peer(broker.service_url) for _ in range(8)]
    for peer in peers:
        watch(peer, f"{prefix}.*")
    create(broker, f"persistent://{prefix}new")
    for peer in peers:
        assert list(updated(peer).new_topics) == [f"persistent://{prefix}new"]
        peer.socket.close()


def test_a_watcher_that_knows_the_list_is_not_told_it(broker, peer, prefix):
    create(broker, f"persistent://{prefix}old")
    known = watch(peer, f"{prefix}.*").topics_hash
    found = watch(peer, f"{prefix}.*", 2, topics_hash=known)
    assert (list(found.topic), found.topics_hash) == ([], known)
    create(broker, f"persistent://{prefix}new")
    assert {updated(peer).watcher_id, updated(peer).watcher_id} == {1, 2}


def test_a_watchers_id_in_use_stays_what_it_is(broker, peer, prefix):
    create(broker, f"persistent://{prefix}a", f"persistent://{prefix}b")
    assert list(watch(peer, f"{prefix}a").topic) == list(watch(peer, f"{prefix}b").topic) == [f"persistent://{prefix}a"]


def test_a_closed_watcher_is_told_nothing(broker, peer, prefix):
    """Closing a watcher that never existed succeeds as well."""
    for watcher_id in (1, 2):
        watch(peer, f"{prefix}.*", watcher_id)
    for watcher_id in (1, 77):
        assert peer.ask(T.WATCH_TOPIC_LIST_CLOSE, watcher_id=watcher_id, request_id=5).success.request_id == 5
    create(broker, f"persistent://{prefix}new")
    assert updated(peer).watcher_id == 2
    assert peer.ask(T.PING).type == T.PONG


@pytest.mark.usefixtures("unharmed")
def test_a_watcher_ends_with_its_connection(broker, prefix):
    with Peer(broker.service_url) as gone:
        watch(gone, f"{prefix}.*")
    with Peer(broker.service_url) as stays:
        watch(stays, f"{prefix}.*")
        create(broker, f"persistent://{prefix}new")
        assert list(updated(stays).new_topics) == [f"persistent://{prefix}new"]


@pytest.mark.slow
def test_who_cannot_watch_polls(peer, prefix):
    """A client with too many watchers, or with a pattern that only clients understand, has to poll."""
    for watcher_id in range(WATCHERS_MAX):
        watch(peer, f"{prefix}.*", watcher_id)
    for watcher_id, pattern in ((WATCHERS_MAX, f"{prefix}.*"), (1_000, "x" * (LENGTH_MAX + 1))):
        refused = peer.ask(T.WATCH_TOPIC_LIST, watcher_id=watcher_id, namespace=NAMESPACE, topics_pattern=pattern,
                           request_id=9)
        assert error_of(refused) == api.NotAllowedError
    assert peer.ask(T.PING).type == T.PONG


# -- the broker's part of watchers, without connections

class Told:
    """A client that keeps what it is told."""

    def __init__(self, *, is_writable: bool = True):
        self.stream, self.is_writable, self.heard = self, is_writable, []

    def write(self, data: bytes) -> None:
        self.heard.append(api.BaseCommand.FromString(data[8:]).watchTopicUpdate)


def test_a_watcher_is_told_of_what_matches_and_of_nothing_else():
    """Deleted topics are told only if they matched: the client never knew the others."""
    one, other, new = (f"persistent://{NAMESPACE}/{name}" for name in ("abc", "xyz", "abd"))
    client = Told()
    watcher = Watcher(client, 1, NAMESPACE, Pattern(f"{NAMESPACE}/ab.*"), frozenset({one, other}), {one})
    watcher.catch_up(frozenset({one}), [], frozenset({other}))
    assert client.heard == []
    watcher.catch_up(frozenset({new}), [new], frozenset({one, other}))
    told, = client.heard
    assert (list(told.new_topics), list(told.deleted_topics), told.topics_hash) == ([new], [one], topics_hash([new]))


def test_a_watcher_that_does_not_read_is_told_when_it_does():
    """Changes are kept as one difference meanwhile, and told in one update."""
    names = [f"persistent://{NAMESPACE}/{number}" for number in range(3)]
    now, client = [frozenset()], Told(is_writable=False)
    directory = SimpleNamespace(topics=lambda namespace, mode: list(now[0]), topics_version=lambda: len(now[0]))
    watchers = Watchers(SimpleNamespace(directory=directory), None)
    watchers._watchers[client, 1] = Watcher(client, 1, NAMESPACE, Pattern(".*"), frozenset(), set())
    for count in (1, 2, 3):
        now[0] = frozenset(names[:count])
        watchers._tell()
    assert client.heard == []
    client.is_writable = True
    watchers._tell()
    watchers._tell()
    told, = client.heard
    assert list(told.new_topics) == names
