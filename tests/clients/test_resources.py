"""Topics, subscriptions, messages, namespaces and the broker's configuration over HTTP, with a real client beside it.
"""
import json
import urllib.parse
import urllib.request
import uuid
import zlib
from functools import partial

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import HANG_SECONDS, partitions_url, request, unique_topic
from ..proto.client_frames import T
from ..workers.peer import Peer
from .test_administration import topic_url
from .test_python_client import bodies_of, data_of, earliest, publish, receive

quoted = partial(urllib.parse.quote, safe="")
LATEST = {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}


def put(url, body=None):
    return request("PUT", url, None if body is None else json.dumps(body).encode())[0]


def post(url, body=None):
    return request("POST", url, None if body is None else json.dumps(body).encode())[0]


def got(url):
    status, text = request("GET", url)
    assert status == 200, text
    return json.loads(text)


def shown(url):
    """Return (payload, headers) of a peeked message."""
    with urllib.request.urlopen(url, timeout=HANG_SECONDS) as answer:
        return answer.read(), answer.headers


@pytest.fixture
def namespace(broker):
    """A namespace for this test alone, made by an operator's REST calls."""
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"
    assert (
        put(f"{broker.http_url}/admin/v2/tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["standalone"]})
        == 204
    )
    assert put(f"{broker.http_url}/admin/v2/namespaces/{tenant}/a") == 204
    return f"{tenant}/a"


# -- topics

def test_a_topic_is_deleted_under_its_clients_and_a_new_one_is_empty(broker, client, connect):
    topic = unique_topic("deleted")
    publish(client.create_producer(topic), bodies_of(3))
    consumer = earliest(client, topic)
    receive(consumer, 3)
    url = topic_url(broker, topic, "").rstrip("/")
    assert request("DELETE", url)[0] == 412
    client.close()
    assert request("DELETE", f"{url}?force=true") == (204, "")
    assert request("DELETE", f"{url}?force=true")[0] == 404
    assert request("GET", f"{url}/subscriptions")[0] == 404
    later = connect(broker.service_url)
    publish(later.create_producer(topic), [b"new"])
    assert data_of(receive(earliest(later, topic), 1)) == [b"new"]


def test_topics_are_made_and_listed_with_their_properties(broker, namespace):
    base = f"{broker.http_url}/admin/v2/persistent/{namespace}"
    assert put(f"{base}/plain", {"owner": "me", "level": 3}) == 204
    assert put(f"{base}/plain") == 409
    assert put(f"{base}/plain-partition-0") == 412
    assert put(f"{base}/parted/partitions", {"partitions": 2, "properties": {"a": "b"}}) == 204
    assert got(f"{base}/parted/partitions") == {"partitions": 2, "deleted": False, "properties": {"a": "b"}}
    assert got(base) == [f"persistent://{namespace}/{name}"
                         for name in ("parted-partition-0", "parted-partition-1", "plain")]
    assert got(f"{base}/partitioned") == [f"persistent://{namespace}/parted"]
    assert got(f"{base}/plain/properties") == {"owner": "me", "level": "3"}
    assert put(f"{base}/plain/properties", {"more": "x"}) == 204
    assert request("DELETE", f"{base}/plain/properties?key=owner")[0] == 204
    assert got(f"{base}/plain/properties") == {"level": "3", "more": "x"}
    for name, status in (("plain", 409), ("none", 404)):
        assert request("DELETE", f"{base}/{name}/partitions")[0] == status
    assert request("DELETE", f"{base}/parted")[0] == 409
    assert request("DELETE", f"{base}/parted/partitions")[0] == 204
    assert request("DELETE", f"{base}/plain")[0] == 204
    assert got(base) == []


@pytest.fixture
def by_force(broker):
    """Allow forced deletion of namespaces and tenants during the test."""
    url = f"{broker.http_url}/admin/v2/brokers/configuration/forceDelete"
    for what in ("Namespace", "Tenant"):
        assert request("POST", f"{url}{what}Allowed/true")[0] == 200
    yield
    for what in ("Namespace", "Tenant"):
        assert request("DELETE", f"{url}{what}Allowed")[0] == 200


def test_force_deletes_neither_namespaces_nor_tenants_where_it_is_not_allowed(broker, namespace):
    tenant = namespace.partition("/")[0]
    assert put(f"{broker.http_url}/admin/v2/persistent/{namespace}/t") == 204
    for path in (f"namespaces/{namespace}", f"namespaces/{tenant}/none", f"tenants/{tenant}"):
        what = path.partition("/")[0]
        status, text = request("DELETE", f"{broker.http_url}/admin/v2/{path}?force=true")
        assert (status, json.loads(text)) == (405, {"reason": f"Broker doesn't allow forced deletion of {what}"})
    url = f"{broker.http_url}/admin/v2/brokers/configuration/forceDeleteTenantAllowed"
    assert request("POST", f"{url}/true")[0] == 200
    # of its namespaces
    assert request("DELETE", f"{broker.http_url}/admin/v2/tenants/{tenant}?force=true")[0] == 405
    assert request("DELETE", url)[0] == 200
    assert got(f"{broker.http_url}/admin/v2/persistent/{namespace}") == [f"persistent://{namespace}/t"]


def test_a_tenant_goes_with_its_namespaces_by_force(broker, namespace, by_force):
    assert put(f"{broker.http_url}/admin/v2/persistent/{namespace}/t") == 204
    tenant = f"{broker.http_url}/admin/v2/tenants/{namespace.partition('/')[0]}"
    assert request("DELETE", tenant)[0] == 409
    assert request("DELETE", f"{tenant}?force=true") == (204, "")
    assert request("GET", tenant)[0] == 404


def test_a_namespace_goes_with_all_that_is_in_it_only_by_force(broker, client, namespace, by_force):
    topic = f"persistent://{namespace}/t"
    publish(client.create_producer(topic), bodies_of(2))
    client.close()
    url = f"{broker.http_url}/admin/v2/namespaces/{namespace}"
    assert put(f"{broker.http_url}/admin/v2/non-persistent/{namespace}/np/partitions", 2) == 204
    tenant = f"{broker.http_url}/admin/v2/tenants/{namespace.split('/')[0]}"
    assert request("DELETE", url)[0] == request("DELETE", tenant)[0] == 409
    assert request("DELETE", f"{url}?force=true") == (204, "")
    assert request("GET", url)[0] == 404
    assert request("DELETE", tenant)[0] == 204


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_topics_that_come_to_be_have_as_many_partitions_as_their_namespace_says(broker, client, namespace, domain):
    url = f"{broker.http_url}/admin/v2/namespaces/{namespace}/autoTopicCreation"
    assert post(url, {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}) == 204
    parts = [f"{domain}://{namespace}/t-partition-{number}" for number in range(3)]
    client.create_producer(f"{domain}://{namespace}/t")
    assert client.get_topic_partitions(f"{domain}://{namespace}/t") == parts
    assert (
        got(f"{broker.http_url}/admin/v2/{domain}/{namespace}/other/partitions?checkAllowAutoCreation=true")[
            "partitions"
        ]
        == 3
    )
    assert post(url, {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}) == 204
    client.create_producer(f"{domain}://{namespace}/single")
    assert client.get_topic_partitions(f"{domain}://{namespace}/single") == [f"{domain}://{namespace}/single"]
    assert post(url, {"allowAutoTopicCreation": False}) == 204
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(f"{domain}://{namespace}/none")
    assert (
        request("GET", f"{broker.http_url}/admin/v2/{domain}/{namespace}/none/partitions?checkAllowAutoCreation=true")[
            0
        ]
        == 404
    )


RESERVED = ("__change_events", "__change_events-partition-0", "__transaction_buffer_snapshot",
            "__transaction_buffer_snapshot_segments",
            "__transaction_buffer_snapshot_indexes", "__transaction_pending_ack", "orders-sub__transaction_pending_ack")


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_f148_users_make_no_system_topics(broker, namespace, domain):
    base = f"{broker.http_url}/admin/v2/{domain}/{namespace}"
    places = [(namespace, name) for name in RESERVED] + [
        ("pulsar/system", name) for name in ("transaction_coordinator_assign", "__transaction_log_0", "resource-usage")]
    with Peer(broker.service_url) as peer:
        for number, (place, name) in enumerate(places):
            url = f"{broker.http_url}/admin/v2/{domain}/{place}/{name}"
            assert (put(url), put(f"{url}/partitions", 2)) == ((412, 412) if "-partition-" in name else (400, 400))
            assert put(f"{url}/subscription/s", "earliest") in (400, 409)
            topic = f"{domain}://{place}/{name}"
            answer = peer.ask(T.PRODUCER, topic=topic, producer_id=number, request_id=number)
            assert answer.error.error == api.NotAllowedError
            answer = peer.ask(T.SUBSCRIBE, topic=topic, subscription="s", subType=api.CommandSubscribe.Shared,
                              consumer_id=number, request_id=number)
            assert answer.error.error == api.NotAllowedError
    assert got(f"{base}?includeSystemTopic=true") == []


def test_f148_partitions_of_system_topics_do_not_come_to_be(broker, namespace):
    url = f"{broker.http_url}/admin/v2/namespaces/{namespace}/autoTopicCreation"
    assert post(url, {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}) == 204
    with Peer(broker.service_url) as peer:
        answer = peer.ask(T.PARTITIONED_METADATA, topic=f"persistent://{namespace}/__change_events", request_id=1,
                          metadata_auto_creation_enabled=True)
        assert answer.partitionMetadataResponse.error == api.NotAllowedError
    assert got(f"{broker.http_url}/admin/v2/persistent/{namespace}?includeSystemTopic=true") == []


def test_a_name_that_only_begins_like_a_system_topics_is_a_users(broker, namespace):
    """A topic whose name only begins like a system topic's is listed and counted as a user's topic."""
    base = f"{broker.http_url}/admin/v2/persistent/{namespace}"
    for name in ("__change_events2", "my__change_events", "__transaction_pending_ack_of_mine"):
        assert put(f"{base}/{name}") == 204
    assert len(got(base)) == 3
    assert post(f"{broker.http_url}/admin/v2/namespaces/{namespace}/maxTopicsPerNamespace", 3) == 204
    assert put(f"{base}/one-more") == 412


# -- what the tools of Pulsar 4.0.7 ask for

def test_rights_are_granted_on_several_topics_or_on_none(broker, namespace):
    tenant = namespace.partition("/")[0]
    for name in "tu":
        assert put(f"{broker.http_url}/admin/v2/persistent/{namespace}/{name}") == 204
    one = {"topic": f"persistent://{namespace}/t", "role": "r", "actions": ["produce"]}
    other, missing = ({**one, "topic": f"persistent://{namespace}/{name}"} for name in ("u", "none"))
    url = f"{broker.http_url}/admin/v2/namespaces/grantPermissionsOnTopics"

    def granted():
        return got(f"{broker.http_url}/admin/v2/namespaces/{namespace}")["auth_policies"]["destination_auth"]

    for body, status in (([one, missing], 404), ([], 400), ({}, 400), (None, 400), ([None], 400),
                         ([one, {**other, "actions": ["fly"]}], 400), ([one, {**other, "actions": None}], 400),
                         ([{**one, "role": 5}], 400), ([{**one, "topic": ["t"]}], 400),
                         ([one, {**one, "topic": "persistent://public/default/x"}], 400),
                         ([{**one, "topic": "a://b"}], 412), ([{**one, "topic": f"persistent://{tenant}/none/t"}], 404),
                         ([{**one, "topic": "persistent://nobody/none/t"}], 404), ([{**one, "role": "\ud800"}], 400)):
        assert (post(url, body), granted()) == (status, {}), body
    assert post(url, [one, other]) == 204
    assert granted() == {f"persistent://{namespace}/{name}": {"r": ["produce"]} for name in "tu"}
    revoke = url.replace("grant", "revoke")
    assert post(revoke, [{"topic": one["topic"], "role": "r"}, {"topic": missing["topic"], "role": "r"}]) == 404
    assert len(granted()) == 2
    assert post(revoke, [{"topic": one["topic"], "role": "r"}]) == 204
    assert granted() == {other["topic"]: {"r": ["produce"]}}


def test_where_topics_lie_among_bundles(broker, namespace):
    assert put(f"{broker.http_url}/admin/v2/persistent/{namespace}/pt/partitions", 2) == put(
        f"{broker.http_url}/admin/v2/persistent/{namespace}/t") == 204
    url = f"{broker.http_url}/admin/v2/namespaces/{namespace}/0x00000000_0xffffffff/topicHashPositions"
    topics = [f"persistent://{namespace}/{name}" for name in ("pt-partition-0", "pt-partition-1", "t")]
    assert got(url) == {"namespace": namespace, "bundle": "0x00000000_0xffffffff",
                        "topicHashPositions": {topic: zlib.crc32(topic.encode()) for topic in topics}}
    for query, wanted in ((f"persistent://{namespace}/pt", topics[:2]), (topics[1], topics[1:2]),
                          (f"{topics[0]}&topics={topics[2]}", [topics[0], topics[2]]),
                          (f"persistent://{namespace}/none", [])):
        assert list(got(f"{url}?topics={query}")["topicHashPositions"]) == wanted
    assert (
        request("GET", url.replace("0xffffffff", "0x80000000"))[0]
        == request("GET", url.replace("0x00000000_0xffffffff", "x"))[0]
        == 412
    )
    assert request("GET", url.replace(namespace, "public/none"))[0] == 404


def test_a_namespace_is_shown_with_its_properties_and_its_rate_under_both_names(broker, namespace):
    url = f"{broker.http_url}/admin/v2/namespaces/{namespace}"
    found = got(url)
    assert (found["properties"], found["clusterDispatchRate"], found["topicDispatchRate"]) == ({}, {}, {})
    # as long as nobody sets them
    assert not {"max_topics_per_namespace", "dispatcherPauseOnAckStatePersistentEnabled"} & found.keys()
    rate = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False,
            "ratePeriodInSecond": 1}
    assert post(f"{url}/dispatchRate", rate) == post(f"{url}/maxTopicsPerNamespace", 0) == 204
    assert put(f"{url}/properties", {"a": "b"}) == 204
    found = got(url)
    assert found["properties"] == {"a": "b"} and found["max_topics_per_namespace"] == 0
    assert found["clusterDispatchRate"] == found["topicDispatchRate"] == {"standalone": rate}
    assert put(url + "2", {"properties": {"c": "d"}, "clusterDispatchRate": {"standalone": rate}}) == 204
    assert got(url + "2")["properties"] == {"c": "d"} and got(url + "2/dispatchRate") == rate
    assert put(url + "3", {"properties": ["c"]}) == 400


def test_what_only_several_brokers_or_groups_of_resources_could_do_is_refused(broker, namespace):
    [own] = got(f"{broker.http_url}/admin/v2/brokers")
    health, unload = f"{broker.http_url}/admin/v2/brokers/health", f"{broker.http_url}/admin/v2/namespaces/{namespace}"
    for query, status in ((f"brokerId={own}", 200), ("brokerId=", 200), ("topicVersion=V1", 200),
                          ("brokerId=other:8080", 404), (f"brokerId={own}&topicVersion=V3", 404)):
        assert request("GET", f"{health}?{query}")[0] == status, query
    for path in ("unload", "0x00000000_0xffffffff/unload"):
        for destination, status in ((own, 204), ("", 204), ("other:8080", 409)):
            assert request("PUT", f"{unload}/{path}?destinationBroker={destination}")[0] == status
    for group, status in (("some", 412), (5, 412), (["some"], 412), ("", 204), (None, 409)):
        assert put(f"{broker.http_url}/admin/v2/namespaces/{namespace}2", {"resource_group_name": group}) == status


@pytest.mark.parametrize("path", ["", "/partitions"])
def test_a_shadow_topic_is_refused(broker, namespace, path):
    """Creating a shadow topic is refused: it would be an ordinary, empty topic."""
    url = f"{broker.http_url}/admin/v2/persistent/{namespace}/shadow"
    shadow = {"PULSAR.SHADOW_SOURCE": f"persistent://{namespace}/t"}
    assert put(url + path, {"partitions": 2, "properties": shadow} if path else shadow) == 405
    assert got(url.rpartition("/")[0]) == []
    assert put(url) == 204 and put(url + "/properties", shadow) == 405 and got(url + "/properties") == {}


# -- subscriptions

def test_what_is_said_of_a_subscription_s_replication_is_kept(broker, client):
    """The replicated flag of a subscription is stored and shown for each partition, also for partitions added later."""
    topic = unique_topic("replicated")
    assert put(partitions_url(broker.http_url, topic), 2) == 204
    base, status = topic_url(broker, topic, "subscription/"), "/replicatedSubscriptionStatus"
    assert (
        put(f"{base}s?replicated=true", {"ledgerId": -1, "entryId": -1, "properties": {"k": "v"}})
        == put(f"{base}t")
        == 204
    )
    assert got(base + "s" + status) == dict.fromkeys(
        [f"{topic}-partition-{number}" for number in range(2)], True)
    assert set(got(base + "t" + status).values()) == {False}
    for value in ("5", "null", '"true"', "{}", "x", ""):
        assert request("POST", base + "t" + status, value.encode())[0] == 400
    one = topic_url(broker, f"{topic}-partition-1", "subscription/")
    assert request("POST", one + "s" + status, b"false") == (204, "")
    assert request("POST", partitions_url(broker.http_url, topic), b"3")[0] == 204
    assert got(base + "s" + status) == {f"{topic}-partition-{number}": number != 1 for number in range(3)}
    assert got(topic_url(broker, f"{topic}-partition-2", "subscription/s/properties")) == {"k": "v"}
    told = got(topic_url(broker, f"{topic}-partition-0", "stats"))["subscriptions"]
    assert (
        [told[name]["isReplicated"] for name in ("s", "t")]
        == [told[name]["replicated"] for name in ("s", "t")]
        == [True, False]
    )
    consumer = client.subscribe(f"{topic}-partition-0", "u", replicate_subscription_state_enabled=True)
    assert got(topic_url(broker, f"{topic}-partition-0", "subscription/u" + status)) == {f"{topic}-partition-0": True}
    consumer.close()
    assert request("GET", base + "none" + status)[0] == request("POST", base + "none" + status, b"true")[0] == 404
    volatile = base.replace("persistent", "non-persistent", 1)
    assert request("GET", volatile + "s" + status)[0] == request("POST", volatile + "s" + status, b"true")[0] == 405


@pytest.mark.parametrize("name", ["excluded", "isExcluded"])
def test_a_message_can_be_excluded_as_java_and_as_the_pages_write_it(broker, client, name):
    """With `excluded` a reset or a new subscription begins behind the message, and expiry takes the next one too.

    Pulsar moves the position by one in all three. Expiry includes its position, so it ends one message later.
    """
    topic = unique_topic("excluded")
    producer = client.create_producer(topic)
    ids = [producer.send(body) for body in bodies_of(4)]
    base = topic_url(broker, topic, "subscription/")
    third = {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id(), "partitionIndex": -1, "batchIndex": -1}
    left = lambda: json.loads(request("POST", base + "sub/analyzeBacklog")[1])["messages"]      # noqa: E731
    assert put(base + "sub", third | {name: True, "batchIndex": 0}) == 204
    assert left() == 1
    for is_excluded, messages in ((False, 2), (True, 1)):
        assert request("POST", base + "sub/resetcursor", json.dumps(third | {name: is_excluded}).encode())[0] == 204
        assert left() == messages
    assert request("POST", base + "sub/expireMessages", json.dumps(LATEST).encode())[0] == 409
    assert left() == 1
    assert request("POST", base + "sub/expireMessages", json.dumps(third | {name: True}).encode())[0] == 204
    assert left() == 0
    first = third | {"entryId": ids[0].entry_id()}
    for is_excluded, messages in ((False, 3), (True, 2)):
        assert request("POST", base + "sub/resetcursor", json.dumps(first).encode())[0] == 204
        assert request("POST", base + "sub/expireMessages", json.dumps(first | {name: is_excluded}).encode())[0] == 204
        assert left() == messages
    assert request("POST", base + "sub/resetcursor", json.dumps(third | {"batchIndex": "x"}).encode())[0] == 400


def test_a_subscription_is_made_where_the_operator_says(broker, client):
    topic = unique_topic("made")
    bodies = bodies_of(4)
    producer = client.create_producer(topic)
    ids = [producer.send(body) for body in bodies]
    base = topic_url(broker, topic, "subscription/")
    third = {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id(), "partitionIndex": -1,
             "properties": {"k": "v"}}
    for name, where, left in (("first", "earliest", 4), ("at", third, 2), ("behind", third | {"isExcluded": True}, 1),
                              ("last", LATEST, 0)):
        assert put(base + name, where) == 204
        assert put(base + name, where) == 409
        assert json.loads(request("POST", f"{base}{name}/analyzeBacklog")[1])["messages"] == left
    assert got(base + "at/properties") == {"k": "v"}
    assert put(base + "at/properties", {"x": "y"}) == 204
    assert got(base + "at/properties") == {"x": "y"}
    assert request("POST", base + "at/expireMessages", json.dumps(third).encode())[0] == 204
    assert json.loads(request("POST", base + "at/analyzeBacklog")[1])["messages"] == 1
    consumer = client.subscribe(topic, "at")
    assert data_of(receive(consumer, 1)) == bodies[3:]
    assert request("DELETE", base + "at")[0] == 412
    consumer.close()
    assert request("DELETE", base + "at")[0] == 204
    assert request("DELETE", base + "at")[0] == 404
    assert got(topic_url(broker, topic, "subscriptions")) == ["behind", "first", "last"]


def test_a_name_with_strange_characters_is_one_name(broker, client):
    """Names with special characters, encoded as Pulsar's clients encode them, are one path element each."""
    topic, name = unique_topic("names ä+b%"), "a+b c/d%e"
    client.subscribe(topic, name).close()
    path = topic.replace("://", "/").replace("%", "%25").replace("+", "%2B").replace(" ", "+").replace("ä", "%C3%A4")
    assert got(f"{broker.http_url}/admin/v2/{path}/subscriptions") == [name]
    assert got(f"{broker.http_url}/admin/v2/{path}/subscription/a%252Bb%2Bc%252Fd%2525e/properties") == {}


@pytest.mark.parametrize("name", ["fn/ns/name", "a b", "a:b", "a?b#c", "größe", "a,b", "..", "a+b", "a%41b", "5%",
                                  "%zz"])
def test_a_subscription_is_reached_by_its_name_encoded_twice(broker, name):
    """pulsar-admin and Go's pulsaradmin encode names twice below /subscription/, and Pulsar decodes them twice."""
    topic = topic_url(broker, unique_topic("twice"), "")[:-1]
    path = f"{topic}/subscription/{quoted(quoted(name))}"
    assert (put(topic), put(path, "earliest"), got(f"{topic}/subscriptions")) == (204, 204, [name])
    assert request("GET", f"{path}/properties") == (200, "{}")
    assert request("GET", f"{path}/replicatedSubscriptionStatus")[0] == 200
    assert "ubscription" not in request("GET", f"{path}/position/1")[1]      # it is there, without a message
    assert [post(f"{path}/{what}") for what in ("skip/1", "skip_all", "resetcursor/0", "expireMessages/5",
                                                "analyzeBacklog")] == [204, 204, 204, 204, 200]
    assert request("DELETE", path)[0] == 204
    assert got(f"{topic}/subscriptions") == []


@pytest.mark.parametrize("sent, name", [("a%2541b", "aAb"), ("a%2Bb", "a b"), ("a+b", "a b"), ("5%25", "5%"),
                                        ("a%25ffb", "a%ffb")])
def test_a_name_that_was_encoded_once_is_decoded_as_often_as_it_can_be(broker, sent, name):
    topic = topic_url(broker, unique_topic("once"), "")[:-1]
    assert (put(topic), put(f"{topic}/subscription/{sent}")) == (204, 204)
    assert got(f"{topic}/subscriptions") == [name]


@pytest.mark.parametrize("name", ["a b/c", "a+b", "a%41b"])
def test_other_paths_name_a_subscription_once(broker, namespace, name):
    """Pulsar's tools encode names once in the paths of namespaces and of dispatch rates."""
    topic = f"persistent://{namespace}/t"
    base, once = f"{broker.http_url}/admin/v2/namespaces/{namespace}", quoted(name)
    assert put(topic_url(broker, topic, "")[:-1]) == 204
    assert put(topic_url(broker, topic, f"subscription/{quoted(once)}"), "earliest") == 204
    assert post(f"{base}/permissions/subscription/{once}", ["reader"]) == 204
    assert got(f"{base}/permissions/subscription") == {name: ["reader"]}
    assert request("DELETE", f"{base}/permissions/{once}/reader")[0] == 204
    assert post(topic_url(broker, topic, f"{once}/dispatchRate"), {"dispatchThrottlingRateInMsg": 5}) == 204
    assert post(f"{base}/clearBacklog/{once}") == 204
    assert got(f"{broker.http_url}/ops/v1/why/{topic.replace('://', '/')}/{once}")[0]["topic"] == topic
    assert post(f"{base}/unsubscribe/{once}") == 204
    assert got(topic_url(broker, topic, "subscriptions")) == []


# -- messages

def test_messages_are_shown_as_they_were_published(broker, client):
    topic = unique_topic("shown")
    assert put(topic_url(broker, topic, "").rstrip("/")) == 204
    assert request("GET", topic_url(broker, topic, "examinemessage"))[0] == 412
    producer = client.create_producer(topic, batching_enabled=False, compression_type=pulsar.CompressionType.ZSTD,
                                      producer_name="p")
    first = producer.send(b"x" * 300, properties={"k": "v\u2603"}, partition_key="key\n",
                          event_timestamp=1_700_000_000_000)
    batched = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000,
                                     batching_max_messages=3, compression_type=pulsar.CompressionType.LZ4)
    for body in (b"one", b"two", b"three"):
        batched.send_async(body, lambda *_: None)
    batched.flush()
    url = topic_url(broker, topic, "")
    body, headers = shown(url + "subscription/new/position/1")
    assert got(url + "subscriptions") == []      # none is made to be looked at
    assert body == b"x" * 300 and headers["X-Pulsar-Message-ID"] == f"{first.ledger_id()}:{first.entry_id()}"
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"k": "v\u2603"}
    assert (headers["X-Pulsar-partition-key"], headers["X-Pulsar-producer-name"]) == ("key?", "p")
    assert (headers["X-Pulsar-event-time"], headers["X-Pulsar-compression"]) == ("2023-11-14T22:13:20Z", "ZSTD")
    assert shown(url + f"ledger/{first.ledger_id()}/entry/{first.entry_id()}")[0] == body
    batch, headers = shown(url + "examinemessage")
    assert headers["X-Pulsar-num-batch-message"] == "3" and batch.endswith(b"three")
    assert shown(url + "examinemessage?initialPosition=earliest&messagePosition=2")[0] == batch
    for rest in ("subscription/new/position/3", f"ledger/{first.ledger_id()}/entry/9", "ledger/1/entry/1"):
        assert request("GET", url + rest)[0] == 404
    last = got(url + "lastMessageId")
    assert (last["entryId"], last["batchIndex"], last["batchSize"]) == (1, 2, 3)
    assert [got(url + f"getMessageIdByIndex?index={n}")["entryId"] for n in range(4)] == [0, 1, 1, 1]
    assert got(url + "messageid/1")["entryId"] == 0
    assert got(url + "messageid/99999999999999")["entryId"] == 2


# -- the broker

def test_what_is_changed_of_the_configuration_binds_at_once_and_after_a_restart(fresh_broker):
    base = f"{fresh_broker.http_url}/admin/v2/brokers/configuration"
    subscription = topic_url(fresh_broker, "persistent://public/default/t", "subscription/s")
    name = "allowAutoSubscriptionCreation"
    assert name in got(base) and got(base + "/values") == {}
    for wrong in ("brokerServicePort/1", "nothing/1", "ttlDurationDefaultInSeconds/x",
                  "ttlDurationDefaultInSeconds/-1"):
        assert request("POST", f"{base}/{wrong}")[0] == 412
    odd = '{"key/123":"https://example.com/"}'
    # any text, and it stays as it was
    assert request("POST", f"{base}/{name}/{urllib.parse.quote_plus(odd)}")[0] == 200
    assert got(base + "/values") == {name: odd}
    for one in (name, "allowAutoTopicCreation"):
        assert request("POST", f"{base}/{one}/false")[0] == 200
    assert put(topic_url(fresh_broker, "persistent://public/default/t", "").rstrip("/")) == 204
    for _ in range(2):
        assert (
            got(base + "/values") == {name: "false", "allowAutoTopicCreation": "false"}
            and got(base + "/runtime")[name] == "false"
        )
        # released clients try for so long
        client = pulsar.Client(fresh_broker.service_url, operation_timeout_seconds=1)
        with pytest.raises(pulsar.PulsarException):
            client.subscribe("t", "other")
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("nothing")
        client.close()
        fresh_broker.kill_supervisor()
        fresh_broker.close()
        fresh_broker.start()
    assert put(subscription, "earliest") == 204
    assert request("DELETE", f"{base}/{name}")[0] == 200
    client = pulsar.Client(fresh_broker.service_url)
    client.subscribe("t", "other")
    client.close()
    assert sorted(got(topic_url(fresh_broker, "persistent://public/default/t", "subscriptions"))) == ["other", "s"]


def test_why_tells_of_partitions_that_lack_a_subscription(broker, namespace):
    topic = f"persistent://{namespace}/t"
    why = f"{broker.http_url}/ops/v1/why/{topic.replace('://', '/')}"
    assert put(topic_url(broker, topic, "partitions"), 2) == 204
    assert request("GET", f"{why}/some")[0] == 404
    assert put(topic_url(broker, f"{topic}-partition-1", "subscription/some"), "earliest") == 204
    assert [one["causes"] for one in got(f"{why}/some")] == [[{"cause": "no subscription"}], [{"cause": "no backlog"}]]
