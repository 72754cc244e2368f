"""Policies of namespaces and topics, tenants and namespaces, over HTTP; and what clients see of them."""
import json
import uuid

import pulsar
import pytest

from ..harness import Stopwatch, eventually, partitioned_topic, request, unique_topic
from .test_administration import topic_url
from .test_python_client import RECEIVE_MS, bodies_of, publish


@pytest.fixture
def namespace(broker):
    """A namespace for this test alone."""
    name = f"public/{uuid.uuid4().hex[:12]}"
    assert request("PUT", namespace_url(broker, name)) == (204, "")
    return name


@pytest.fixture
def topic(client, namespace):
    name = f"persistent://{namespace}/orders"
    publish(client.create_producer(name), [b"first"])
    return name


def namespace_url(broker, name, rest=""):
    return f"{broker.http_url}/admin/v2/namespaces/{name}/{rest}".rstrip("/")


def tenant_url(broker, name):
    return f"{broker.http_url}/admin/v2/tenants/{name}"


def sent(method, url, value=None):
    """Send a request, and return (status, JSON of the answer)."""
    status, text = request(method, url, None if value is None else json.dumps(value).encode())
    return status, json.loads(text) if text else None


def reason(text):
    return {"reason": text}


QUOTA = {"limit": 1024, "limitSize": 1024, "limitTime": 0, "policy": "producer_exception"}
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}


def test_a_topics_ttl_is_said_in_the_query(broker, topic):
    url = topic_url(broker, topic, "messageTTL")
    assert sent("GET", f"{url}?applied=true") == (200, 0)
    assert sent("POST", f"{url}?messageTTL=60") == (204, None)
    assert sent("GET", url) == (200, 60)
    assert sent("POST", f"{url}?messageTTL=-1") == (412, reason("Invalid value for message TTL"))


def test_backlog_quotas_are_set_by_type_and_shown_as_a_map(broker, namespace, topic):
    aged = {"limit": 0, "limitSize": 0, "limitTime": 60, "policy": "consumer_backlog_eviction"}
    for of in (lambda rest: namespace_url(broker, namespace, rest), lambda rest: topic_url(broker, topic, rest)):
        assert sent("GET", of("backlogQuotaMap")) == (200, {})
        assert sent("POST", of("backlogQuota"), {"limit": "1024", "policy": "producer_exception"}) == (204, None)
        assert sent("POST", of("backlogQuota?backlogQuotaType=message_age"),
                    {"limitTime": 60, "policy": "consumer_backlog_eviction"}) == (204, None)
        assert sent("GET", of("backlogQuotaMap")) == (200, {"destination_storage": QUOTA, "message_age": aged})
        assert sent("DELETE", of("backlogQuota")) == (204, None)
        assert sent("GET", of("backlogQuotaMap")) == (200, {"message_age": aged})
        assert sent("POST", of("backlogQuota"), {"limitSize": 5})[0] == 400
        assert sent("POST", of("backlogQuota?backlogQuotaType=x"), QUOTA)[0] == 400
    holds = sent("GET", topic_url(broker, topic, "backlogQuotaMap?applied=true"))[1]
    assert {kind: (quota["limitSize"], quota["limitTime"]) for kind, quota in holds.items()} == {
        "destination_storage": (-1, -1), "message_age": (0, 60)}


def test_a_quota_is_smaller_than_the_retention(broker, namespace):
    assert sent("POST", namespace_url(broker, namespace, "retention"), RETENTION) == (204, None)
    quota = namespace_url(broker, namespace, "backlogQuota")
    assert sent("POST", quota, QUOTA | {"limit": None, "limitSize": 20 << 20}) == (
        412, reason("Backlog Quota exceeds configured retention quota for namespace. Please increase retention quota "
                    "and retry"))
    assert sent("POST", quota, QUOTA) == (204, None)
    assert (
        sent(
            "POST", namespace_url(broker, namespace, "retention"), {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}
        )[0]
        == 400
    )


def test_policies_are_of_topics_not_of_their_partitions(broker):
    topic = partitioned_topic(broker.http_url, 2)
    assert sent("POST", topic_url(broker, topic, "retention"), RETENTION) == (204, None)
    assert sent("GET", topic_url(broker, f"{topic}-partition-0", "retention")) == (
        412, reason("Not allowed to set/get topic policy for a partition"))
    missing = unique_topic("missing")
    assert sent("POST", topic_url(broker, missing, "retention"), RETENTION) == (404,
                                                                                reason(f"Topic {missing} not found"))


def test_an_owner_that_dies_meanwhile_is_told_when_it_is_back(start_broker):
    """A change of a policy is answered after all owners have applied it, also an owner that was being restarted."""
    broker = start_broker("--owners", "2")
    old = broker.kill("owner", 1)
    assert sent("POST", namespace_url(broker, "public/default", "messageTTL"), 60) == (204, None)
    assert broker.child("owner", 1) not in (None, old)


# -- what clients see

def set_quota(broker, topic, policy, size=10_000):
    assert sent(
        "POST", topic_url(broker, topic, "backlogQuota"), {"limitSize": size, "limitTime": -1, "policy": policy}
    ) == (204, None)


def test_producers_wait_for_room_and_go_on_when_there_is(broker, client):
    """Under a quota that holds producers nothing is lost or refused: clients keep messages until there is room."""
    topic = unique_topic("held")
    producer, consumer = client.create_producer(topic, max_pending_messages=2_000), client.subscribe(topic, "sub")
    publish(producer, [b"first"])
    set_quota(broker, topic, "producer_request_hold")
    bodies, answered = [body.ljust(1_000) for body in bodies_of(1_000)], []      # a hundred times the quota
    for body in bodies:
        producer.send_async(body, lambda result, _: answered.append(result))
    got = []
    while len(got) < len(bodies) + 1:
        message = consumer.receive(RECEIVE_MS)
        got.append(message.data())
        consumer.acknowledge(message)
    assert got == [b"first", *bodies]
    eventually(lambda: len(answered) == len(bodies), what="the receipts")
    assert set(answered) == {pulsar.Result.Ok}


def test_producers_stand_still_until_there_is_room_and_then_at_once_go_on(broker, client):
    topic = unique_topic("standing")
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "sub")
    set_quota(broker, topic, "producer_request_hold")
    publish(producer, [b"x" * 1_000] * 10)
    answered = []
    producer.send_async(b"more", lambda result, _: answered.append(result))
    messages = [consumer.receive(RECEIVE_MS) for _ in range(10)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(2_000)
    assert answered == []
    watch = Stopwatch()
    consumer.acknowledge_cumulative(messages[-1])
    assert consumer.receive(RECEIVE_MS).data() == b"more"
    eventually(lambda: answered, what="the receipt")
    assert watch.seconds() < 5      # a second, and the client's own pace of coming back
    assert answered == [pulsar.Result.Ok]


def test_producers_get_an_error_where_the_quota_says_so(broker, client, connect):
    topic = unique_topic("refused")
    producer = client.create_producer(topic)
    client.subscribe(topic, "sub")
    set_quota(broker, topic, "producer_exception")
    with pytest.raises(pulsar.PulsarException, match="ProducerBlockedQuotaExceededException"):
        for _ in range(12):
            producer.send(b"x" * 1_000)
    with pytest.raises(pulsar.PulsarException, match="ProducerBlockedQuotaExceededException"):
        connect(broker.service_url, operation_timeout_seconds=1).create_producer(topic)
    assert request("POST", topic_url(broker, topic, "subscription/sub/skip_all")) == (204, "")
    connect(broker.service_url).create_producer(topic).send(b"room")


# -- tenants and namespaces

def test_tenants_are_made_changed_and_deleted(broker):
    name = uuid.uuid4().hex[:12]
    url, info = tenant_url(broker, name), {"adminRoles": ["a"], "allowedClusters": ["standalone"]}
    assert sent("GET", url) == (404, reason("Tenant does not exist"))
    assert sent("PUT", url, info) == (204, None)
    assert sent("PUT", url, info) == (409, reason("Tenant already exist"))
    assert sent("GET", url) == (200, info)
    assert sent("POST", url, info | {"adminRoles": ["b"]}) == (204, None)
    assert sent("GET", url)[1]["adminRoles"] == ["b"]
    assert name in sent("GET", tenant_url(broker, "").rstrip("/"))[1]
    assert sent("PUT", namespace_url(broker, f"{name}/eu")) == (204, None)
    assert sent("DELETE", url) == (409, reason("The tenant still has active namespaces"))
    assert sent("DELETE", namespace_url(broker, f"{name}/eu")) == (204, None)
    assert sent("DELETE", url) == (204, None)
    assert sent("GET", url) == (404, reason("Tenant does not exist"))


@pytest.mark.parametrize(("info", "text"), [
    (None, "TenantInfo is null"),
    ({}, "Clusters cannot be empty or blank"),
    ({"allowedClusters": ["elsewhere"]}, "Clusters do not exist"),
])
def test_a_tenant_is_of_this_cluster(broker, info, text):
    assert sent("PUT", tenant_url(broker, "some"), info) == (412, reason(text))


def test_a_namespace_is_made_with_policies(broker, client):
    name = f"public/{uuid.uuid4().hex[:12]}"
    url = namespace_url(broker, name)
    policies = {"message_ttl_in_seconds": 77, "retention_policies": RETENTION, "deduplicationEnabled": True,
                "backlog_quota_map": {"destination_storage": QUOTA}}
    assert sent("PUT", url, policies | {"bundles": {"numBundles": 4}}) == (204, None)
    assert sent("GET", url)[1].items() >= policies.items()
    assert sent("PUT", url) == (409, reason("Namespace already exists"))
    assert sent("PUT", f"{url}x", {"replication_clusters": ["elsewhere"]})[0] == 403
    assert sent("GET", f"{url}x") == (404, reason("Namespace does not exist"))
    publish(client.create_producer(f"persistent://{name}/t"), [b"x"])
    assert sent("GET", f"{url}/topics") == (200, [f"persistent://{name}/t"])
    assert sent("GET", f"{url}/topics?mode=NON_PERSISTENT") == (200, [])
    assert sent("DELETE", url) == (409, reason("Cannot delete non empty namespace"))
    assert name in sent("GET", namespace_url(broker, "public"))[1]


@pytest.mark.parametrize(("path", "status"), [("public/b%20d", 412), ("nobody/eu", 404), ("public/x%2Fy", 412)])
def test_a_namespace_has_a_valid_name_and_a_tenant(broker, path, status):
    assert sent("PUT", namespace_url(broker, path))[0] == status
