"""The effect of each route that changes something: one row for each, which looks for the effect and not for the answer.

A route that is added fails here until it has a row.  Rows of policies are made from the table of policies.
"""
import asyncio
import contextlib
import json
import re
import uuid
from datetime import timedelta
from types import SimpleNamespace

import pulsar
import pytest
from aiohttp.test_utils import TestClient, TestServer

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.admin.questions import Release, Released, Trim
from geminga.storage.catalogue.policy_table import TABLE
from geminga.supervisor.admin.monitoring.alarms import ALARMS_OF

from ..harness import HANG_MS, Broker, eventually, request
from ..proto.client_frames import T
from ..workers.peer import Peer
from ..workers.test_scalable_topics import publish
from .test_bad_requests import made_app

BUNDLE = "0x00000000_0xffffffff"
_N, _T = "/admin/v2/namespaces/{tenant}/{namespace}", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
_S, _SCHEMAS = _T + "/subscription/{subscription}", "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_SCALABLE = "/admin/v2/scalable/{tenant}/{namespace}/{topic}"
_OPS = "/{domain}/{tenant}/{namespace}/{topic}"
_CLUSTER, _BROKERS, _B = "/admin/v2/clusters/{cluster}", "/admin/v2/brokers", _N + "/{bundle}"
STRING = {"type": "STRING", "schema": "", "properties": {}}

# Routes that are always refused: a broker of one host has nothing for them to change.
REFUSED = {
    ("PUT", _B + "/split"): 412,
    ("PUT", _T + "/offload"): 405,
    ("POST", _N + "/resourcegroup/{group}"): 412,
    ("POST", _CLUSTER + "/namespaceIsolationPolicies/{policy}"): 405,
    ("POST", "/admin/v3/transactions/transactionCoordinator/replicas"): 406,
} | {
    ("*", f"/admin/{path}{{rest}}"): status
    for path, status in {
        "v2/bookies": 404,
        "v2/resourcegroups": 405,
        "v2/resource-quotas": 405,
        "v2/metadata/migration/start": 400,
        "v2/worker": 409,
        "v2/functions": 409,
        "v3/functions": 409,
        "v3/sinks": 409,
        "v3/sources": 409,
        "v3/sink": 409,
        "v3/source": 409,
        "v3/packages": 503,
        "v3/transactions": 404,
    }.items()
}
EFFECTS = {}


def effect(method, path):
    def add(function):
        assert (method, path) not in EFFECTS
        EFFECTS[method, path] = function
        return function
    return add


class At:
    """A namespace and a topic of one row's own, and its route."""

    def __init__(self, broker, client, method, path):
        self.broker, self.client, self._method, self._path = broker, client, method, path
        self.tenant, self.namespace, self.topic, self.subscription = "effects", uuid.uuid4().hex[:12], "t", "s"
        self.place, self.calls = f"{self.tenant}/{self.namespace}", 0
        self.name = f"persistent://{self.place}/t"
        self.n, self.t = f"/admin/v2/namespaces/{self.place}", f"/admin/v2/persistent/{self.place}/t"
        self.set("PUT", self.n)

    def raw(self, method, path, body=None):
        return request(method, self.broker.http_url + path, None if body is None else json.dumps(body).encode())

    def set(self, method, path, body=None):
        """Send another request that prepares the row; return its answer."""
        status, text = self.raw(method, path, body)
        assert status < 300, (method, path, status, text)
        return json.loads(text) if text else None

    def get(self, path):
        return self.set("GET", path)

    def go(self, body=None, query="", **parts):
        """Send the request of the row's route; return its answer."""
        self.calls += 1
        known = {"domain": "persistent", "tenant": self.tenant, "namespace": self.namespace, "topic": self.topic,
                 "subscription": self.subscription, "bundle": BUNDLE, "cluster": "standalone"} | parts
        path = re.sub(r"\{(\w+)\}", lambda match: str(known[match[1]]), self._path)
        return self.set(self._method, path + (f"?{query}" if query else ""), body)

    # -- what is there

    def made(self, subscription="", messages=0, topic=None):
        """Make the topic, with subscriptions at its beginning and messages."""
        name = topic or "t"
        path = f"/admin/v2/persistent/{self.place}/{name}"
        if self.raw("GET", path + "/stats")[0] == 404:
            self.set("PUT", path)
        for one in subscription.split():
            self.set("PUT", f"{path}/subscription/{one}", "earliest")
        self.publish(messages, name)
        return path

    def publish(self, count, topic="t", **options):
        if count:
            producer = self.client.create_producer(f"persistent://{self.place}/{topic}", batching_enabled=False)
            ids = [producer.send(b"%d" % number, **options) for number in range(count)]
            producer.close()
            return ids
        return []

    def stats(self, path=None):
        return self.get(f"{path or self.t}/stats")

    def backlogs(self, path=None):
        return {name: one["msgBacklog"] for name, one in self.stats(path)["subscriptions"].items()}

    def topics(self):
        return self.get(f"/admin/v2/persistent/{self.place}")

    def position(self, subscription="s"):
        return self.get(self.t + "/internalStats")["cursors"][subscription]["markDeletePosition"]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    made = Broker(tmp_path_factory.mktemp("effects") / "data", "--owners", "2", "--workers", "1")
    try:
        made.start()
        assert (
            request("PUT", made.http_url + "/admin/v2/tenants/effects", b'{"allowedClusters":["standalone"]}')[0] == 204
        )
        yield made
    finally:
        made.close()


# -- scalable topics

def scalable_of(at, *, count=2):
    """Create the row's scalable topic, with a message in each segment; return its path."""
    path = f"/admin/v2/scalable/{at.place}/t"
    at.set("PUT", f"{path}?numInitialSegments={count}")
    for number, segment in enumerate(segments_of(at)):
        with Peer(at.broker.service_url) as peer:
            publish(peer, segment, b"%d" % number)
    return path


def segments_of(at):
    path = f"/admin/v2/scalable/{at.place}/t"
    return [one["name"] for one in at.get(f"{path}/stats")["layout"]["segments"].values()]


@effect("PUT", _SCALABLE)
def _(at):
    at.go({"a": "b"}, query="numInitialSegments=3")
    said = at.get(f"/admin/v2/scalable/{at.place}/t")
    assert (len(said["segments"]), said["properties"]) == (3, {"a": "b"})


@effect("PUT", _SCALABLE + "/properties")
def _(at):
    path = scalable_of(at)
    at.set("PUT", f"{path}/properties", {"a": "b"})
    at.go({"c": "d"})
    assert at.get(f"{path}/properties") == at.get(path)["properties"] == {"a": "b", "c": "d"}


@effect("DELETE", _SCALABLE + "/properties")
def _(at):
    path = scalable_of(at)
    at.set("PUT", f"{path}/properties", {"a": "b", "c": "d"})
    at.go(query="key=a")
    assert at.get(f"{path}/properties") == {"c": "d"}


@effect("DELETE", _SCALABLE)
def _(at):
    path = scalable_of(at)
    at.go()
    assert at.raw("GET", path)[0] == 404


@effect("PUT", _SCALABLE + "/subscriptions/{subscription}")
def _(at):
    path = scalable_of(at)
    at.go()
    assert at.backlogs(path) == {"s": 2}


@effect("DELETE", _SCALABLE + "/subscriptions/{subscription}")
def _(at):
    path = scalable_of(at)
    at.set("PUT", f"{path}/subscriptions/s")
    at.go()
    assert at.backlogs(path) == {}


@effect("POST", _SCALABLE + "/subscriptions/{subscription}/skip-all")
def _(at):
    path = scalable_of(at)
    at.set("PUT", f"{path}/subscriptions/s")
    at.go()
    assert at.backlogs(path) == {"s": 0}


@effect("POST", _SCALABLE + "/subscriptions/{subscription}/seek")
def _(at):
    path = scalable_of(at)
    at.set("PUT", f"{path}/subscriptions/s")
    at.set("POST", f"{path}/subscriptions/s/skip-all")
    at.go(query="timestamp=0")
    assert at.backlogs(path) == {"s": 2}


@effect("POST", _SCALABLE + "/split/{segment}")
def _(at):
    path = scalable_of(at)
    at.go(segment=1)
    assert active_of(at, path) == ["0", "2", "3"]


@effect("POST", _SCALABLE + "/merge/{segment}/{other}")
def _(at):
    path = scalable_of(at)
    at.go(segment=0, other=1)
    assert active_of(at, path) == ["2"]


@effect("POST", _SCALABLE + "/migrate")
def _(at):
    path = scalable_of(at)
    at.set("DELETE", path)
    at.set("PUT", path.replace("/scalable/", "/persistent/"))
    at.go()
    assert active_of(at, path) == ["1"]


@effect("POST", _SCALABLE + "/rebucket/{segment}")
def _(at):
    path = scalable_of(at)
    at.go(query="bucketCount=4", segment=1)
    assert at.get(path)["segments"]["2"]["entryBucketSplits"] == [0x4000, 0x8000, 0xc000]


@effect("POST", _SCALABLE + "/autoScalePolicy")
def _(at):
    path = scalable_of(at)
    at.go({"maxSegments": 9})
    assert at.get(f"{path}/stats")["autoScale"]["policy"]["maxSegments"] == 9


@effect("DELETE", _SCALABLE + "/autoScalePolicy")
def _(at):
    path = scalable_of(at)
    at.set("POST", f"{path}/autoScalePolicy", {"maxSegments": 9})
    at.go()
    assert at.get(f"{path}/stats")["autoScale"]["policy"]["maxSegments"] == 64


@effect("PUT", _SCALABLE + "/compaction")
def _(at):
    path = scalable_of(at)
    assert at.get(f"{path}/compaction")["status"] == "NOT_RUN"
    at.go()
    eventually(lambda: at.get(f"{path}/compaction")["status"] == "SUCCESS", what="a compaction")


def active_of(at, path):
    return [number for number, one in at.get(path)["segments"].items() if one["active"]]


@effect("POST", _SCALABLE + "/permissions/{role}")
def _(at):
    path = scalable_of(at)
    at.go(["consume"], role="app")
    assert at.get(f"{path}/permissions") == {"app": ["consume"]}


@effect("DELETE", _SCALABLE + "/permissions/{role}")
def _(at):
    path = scalable_of(at)
    at.set("POST", f"{path}/permissions/app", ["consume"])
    at.go(role="app")
    assert at.get(f"{path}/permissions") == {}


# -- the broker

@effect("POST", _BROKERS + "/configuration/{name}/{value}")
def _(at):
    at.made("one")
    try:
        at.go(name="maxSubscriptionsPerTopic", value=1)
        assert at.get(_BROKERS + "/configuration/values")["maxSubscriptionsPerTopic"] == "1"
        assert at.raw("PUT", at.t + "/subscription/two", "earliest")[0] == 409
    finally:
        at.set("DELETE", _BROKERS + "/configuration/maxSubscriptionsPerTopic")


@effect("DELETE", _BROKERS + "/configuration/{name}")
def _(at):
    at.made("one")
    at.set("POST", _BROKERS + "/configuration/maxSubscriptionsPerTopic/1")
    at.go(name="maxSubscriptionsPerTopic")
    assert "maxSubscriptionsPerTopic" not in at.get(_BROKERS + "/configuration/values")
    at.set("PUT", at.t + "/subscription/two", "earliest")


@effect("POST", _BROKERS + "/shutdown")
def _(at):
    with contextlib.closing(
        Broker(at.broker.data_dir.with_name("another"), "--owners", "1", "--workers", "1")
    ) as another:
        another.start()
        at.broker = SimpleNamespace(http_url=another.http_url)
        at.go()
        assert another.ended() == 0


@effect("POST", "/admin/v3/transactions/abortTransaction/{most}/{least}")
def _(at):
    with Peer(at.broker.service_url) as peer:
        begun = peer.ask(T.NEW_TXN, request_id=1, txn_ttl_millis=60_000, tc_id=1).newTxnResponse
        at.go(most=1, least=begun.txnid_least_bits)
        ended = peer.ask(T.END_TXN, request_id=2, txn_action=api.ABORT, txnid_most_bits=1,
                         txnid_least_bits=begun.txnid_least_bits).endTxnResponse
        assert (ended.request_id, ended.HasField("error")) == (2, False)
        assert at.raw("GET", f"/admin/v3/transactions/transactionMetadata/1/{begun.txnid_least_bits}")[0] == 404


# -- clusters

FAR = {"serviceUrl": "http://far:8080", "brokerServiceUrl": "pulsar://far:6650"}


@effect("PUT", _CLUSTER)
def _(at):
    at.go(FAR, cluster=at.namespace)
    assert FAR.items() <= at.get(f"/admin/v2/clusters/{at.namespace}").items()


@effect("POST", _CLUSTER)
def _(at):
    at.set("PUT", f"/admin/v2/clusters/{at.namespace}", FAR)
    at.go(FAR | {"serviceUrl": "http://farther:8080"}, cluster=at.namespace)
    assert at.get(f"/admin/v2/clusters/{at.namespace}")["serviceUrl"] == "http://farther:8080"


@effect("DELETE", _CLUSTER)
def _(at):
    at.set("PUT", f"/admin/v2/clusters/{at.namespace}", FAR)
    at.go(cluster=at.namespace)
    assert at.namespace not in at.get("/admin/v2/clusters")


@effect("POST", _CLUSTER + "/peers")
def _(at):
    at.set("PUT", f"/admin/v2/clusters/{at.namespace}", FAR)
    at.go([at.namespace])
    assert at.get("/admin/v2/clusters/standalone/peers") == [at.namespace]


@effect("POST", _CLUSTER + "/failureDomains/{domain}")
def _(at):
    at.go({"brokers": ["b"]}, domain=at.namespace)
    assert at.get(f"/admin/v2/clusters/standalone/failureDomains/{at.namespace}")["brokers"] == ["b"]


@effect("DELETE", _CLUSTER + "/failureDomains/{domain}")
def _(at):
    for name in (at.namespace, f"{at.namespace}-kept"):
        at.set("POST", f"/admin/v2/clusters/standalone/failureDomains/{name}", {"brokers": [name]})
    at.go(domain=at.namespace)
    found = at.get("/admin/v2/clusters/standalone/failureDomains")
    assert at.namespace not in found and f"{at.namespace}-kept" in found


def moved(at):
    """Return what a producer is told whose namespace is migrated to another cluster."""
    at.made()
    with Peer(at.broker.service_url) as peer:
        peer.open_producer(at.name)
        at.set("POST", at.n + "/migration", True)
        return peer.hear()


@effect("POST", _CLUSTER + "/migrate")
def _(at):
    url = f"pulsar://{at.namespace}:6650"
    at.go({"brokerServiceUrl": url}, "migrated=false")
    assert at.get("/admin/v2/clusters/standalone/migrate") == {"migrated": False,
                                                               "migratedClusterUrl": {"brokerServiceUrl": url}}
    heard = moved(at)
    assert (heard.type, heard.topicMigrated.brokerServiceUrl) == (T.TOPIC_MIGRATED, url)


@effect("POST", _N + "/migration")
def _(at):
    at.set("POST", "/admin/v2/clusters/standalone/migrate?migrated=false", {"brokerServiceUrl": "pulsar://far:6650"})
    at.made()
    with Peer(at.broker.service_url) as peer:
        peer.open_producer(at.name)
        at.go(True)
        assert at.get(at.n)["migrated"] and peer.hear().type == T.TOPIC_MIGRATED
        at.go(False)
        assert not at.get(at.n)["migrated"]


# -- tenants and namespaces

INFO = {"adminRoles": ["a"], "allowedClusters": ["standalone"]}


@effect("PUT", "/admin/v2/tenants/{tenant}")
def _(at):
    at.go(INFO, tenant=at.namespace)
    assert at.get(f"/admin/v2/tenants/{at.namespace}") == INFO


@effect("POST", "/admin/v2/tenants/{tenant}")
def _(at):
    at.set("PUT", f"/admin/v2/tenants/{at.namespace}", INFO)
    at.go(INFO | {"adminRoles": ["b"]}, tenant=at.namespace)
    assert at.get(f"/admin/v2/tenants/{at.namespace}") == INFO | {"adminRoles": ["b"]}


@effect("DELETE", "/admin/v2/tenants/{tenant}")
def _(at):
    at.set("PUT", f"/admin/v2/tenants/{at.namespace}", INFO)
    at.go(tenant=at.namespace)
    assert at.namespace not in at.get("/admin/v2/tenants")


@effect("PUT", _N)
def _(at):
    at.go({"message_ttl_in_seconds": 7}, namespace="new" + at.namespace)
    assert f"effects/new{at.namespace}" in at.get("/admin/v2/namespaces/effects")
    assert at.get(f"/admin/v2/namespaces/effects/new{at.namespace}/messageTTL") == 7


@effect("DELETE", _N)
def _(at):
    at.go()
    assert at.place not in at.get("/admin/v2/namespaces/effects")


@effect("POST", _N + "/permissions/{role}")
def _(at):
    at.go(["produce"], role="r")
    assert at.get(at.n + "/permissions") == {"r": ["produce"]}


@effect("DELETE", _N + "/permissions/{role}")
def _(at):
    for role in "qr":
        at.set("POST", f"{at.n}/permissions/{role}", ["produce"])
    at.go(role="r")
    assert at.get(at.n + "/permissions") == {"q": ["produce"]}


@effect("POST", "/admin/v2/namespaces/grantPermissionsOnTopics")
def _(at):
    at.made()
    at.made(topic="u")
    at.go([{"topic": at.name, "role": "r", "actions": ["produce", "consume"]},
           {"topic": f"persistent://{at.place}/u", "role": "q", "actions": ["consume"]}])
    assert at.get(at.n)["auth_policies"]["destination_auth"] == {
        at.name: {"r": ["consume", "produce"]}, f"persistent://{at.place}/u": {"q": ["consume"]}}


@effect("POST", "/admin/v2/namespaces/revokePermissionsOnTopics")
def _(at):
    at.made()
    for role in "qr":
        at.set("POST", f"{at.t}/permissions/{role}", ["consume"])
    at.go([{"topic": at.name, "role": "r"}, {"topic": at.name, "role": "nobody"}])
    assert at.get(at.t + "/permissions") == {"q": ["consume"]}


@effect("POST", _N + "/permissions/subscription/{subscription}")
def _(at):
    at.go(["r"])
    assert at.get(at.n + "/permissions/subscription") == {"s": ["r"]}


@effect("DELETE", _N + "/permissions/{subscription}/{role}")
def _(at):
    at.set("POST", at.n + "/permissions/subscription/s", ["q", "r"])
    at.go(role="r")
    assert at.get(at.n + "/permissions/subscription") == {"s": ["q"]}


@effect("PUT", _N + "/properties")
def _(at):
    at.go({"a": "b"})
    assert at.get(at.n + "/properties") == {"a": "b"}


@effect("DELETE", _N + "/properties")
def _(at):
    at.set("PUT", at.n + "/properties", {"a": "b"})
    at.go()
    assert at.get(at.n + "/properties") == {}


@effect("PUT", _N + "/property/{key}/{value}")
def _(at):
    at.go(key="a", value="b")
    assert at.get(at.n + "/properties") == {"a": "b"}


@effect("DELETE", _N + "/property/{key}")
def _(at):
    at.set("PUT", at.n + "/properties", {"a": "b", "c": "d"})
    with contextlib.suppress(json.JSONDecodeError):      # this route answers the bare text
        at.go(key="a")
    assert at.get(at.n + "/properties") == {"c": "d"}


@effect("DELETE", _N + "/resourcegroup")
def _(at):
    """There are no resource groups, so nothing is removed."""
    before = at.get(at.n)
    at.go()
    assert at.get(at.n) == before


QUOTA = {"limit": 9, "limitSize": 9, "limitTime": 0, "policy": "producer_exception"}


@effect("POST", _N + "/backlogQuota")
@effect("POST", _T + "/backlogQuota")
def _(at):
    at.made()
    at.go(QUOTA)
    base = at.t if at._path.startswith(_T) else at.n
    assert at.get(base + "/backlogQuotaMap")["destination_storage"]["limitSize"] == 9


@effect("DELETE", _N + "/backlogQuota")
@effect("DELETE", _T + "/backlogQuota")
def _(at):
    at.made()
    base = at.t if at._path.startswith(_T) else at.n
    at.set("POST", base + "/backlogQuota", QUOTA)
    at.set("POST", base + "/backlogQuota?backlogQuotaType=message_age", QUOTA | {"limitTime": 9})
    at.go()
    assert list(at.get(base + "/backlogQuotaMap")) == ["message_age"]


@effect("POST", _N + "/clearBacklog")
@effect("POST", _B + "/clearBacklog")
def _(at):
    paths = [at.made("s other", 3), at.made("s", 2, "u")]
    assert [at.backlogs(path) for path in paths] == [{"s": 3, "other": 3}, {"s": 2}]
    at.go()
    assert [at.backlogs(path) for path in paths] == [{"s": 0, "other": 0}, {"s": 0}]


@effect("POST", _N + "/clearBacklog/{subscription}")
@effect("POST", _B + "/clearBacklog/{subscription}")
@effect("POST", _B + "/clearSubscriptionBacklog/{subscription}")
def _(at):
    paths = [at.made("s other", 3), at.made("s", 2, "u")]
    at.go()
    assert [at.backlogs(path) for path in paths] == [{"s": 0, "other": 3}, {"s": 0}]


@effect("POST", _N + "/unsubscribe/{subscription}")
@effect("POST", _B + "/unsubscribe/{subscription}")
def _(at):
    paths = [at.made("s other"), at.made("s", 0, "u")]
    at.go()
    assert [at.backlogs(path) for path in paths] == [{"other": 0}, {}]


@effect("PUT", _N + "/unload")
@effect("PUT", _B + "/unload")
@effect("PUT", _T + "/unload")
def _(at):
    """Clients are told to reconnect, and the stored messages are still there."""
    at.made("s", 2)
    with Peer(at.broker.service_url) as peer:
        peer.open_producer(at.name)
        peer.subscribe(at.name, "mine")
        at.go()
        assert {peer.hear().type, peer.hear().type} == {T.CLOSE_PRODUCER, T.CLOSE_CONSUMER}
    assert at.backlogs()["s"] == 2


# -- topics

@effect("PUT", _T)
def _(at):
    assert at.topics() == []
    at.go({"a": "b"})
    assert at.topics() == [at.name] and at.get(at.t + "/properties") == {"a": "b"}


@effect("DELETE", _T)
def _(at):
    at.made("s", 2)
    at.go()
    assert at.topics() == [] and at.raw("GET", at.t + "/stats")[0] == 404


@effect("PUT", _T + "/partitions")
def _(at):
    at.go(3)
    assert at.get(at.t + "/partitions")["partitions"] == 3 and len(at.topics()) == 3


@effect("POST", _T + "/partitions")
def _(at):
    at.set("PUT", at.t + "/partitions", 2)
    at.set("PUT", at.t + "/subscription/s", "earliest")
    at.go(3)
    assert at.get(at.t + "/partitions")["partitions"] == 3
    assert at.backlogs(at.t + "-partition-2") == {"s": 0}


@effect("DELETE", _T + "/partitions")
def _(at):
    at.set("PUT", at.t + "/partitions", 2)
    at.set("PUT", at.t + "/subscription/s", "earliest")
    at.go()
    assert at.topics() == [] and at.raw("GET", at.t + "/partitions")[0] == 404


@effect("POST", _T + "/createMissedPartitions")
def _(at):
    """No partition is ever missing."""
    at.set("PUT", at.t + "/partitions", 2)
    before = at.topics()
    at.go()
    assert at.topics() == before and len(before) == 2


@effect("POST", _T + "/permissions/{role}")
def _(at):
    at.made()
    at.go(["consume"], role="r")
    assert at.get(at.t + "/permissions") == {"r": ["consume"]} and at.get(at.n + "/permissions") == {}


@effect("DELETE", _T + "/permissions/{role}")
def _(at):
    at.made()
    for role in "qr":
        at.set("POST", f"{at.t}/permissions/{role}", ["consume"])
    at.go(role="r")
    assert at.get(at.t + "/permissions") == {"q": ["consume"]}


@effect("DELETE", _T + "/policies")
def _(at):
    at.made()
    at.set("POST", at.t + "/maxProducers", 3)
    at.set("POST", at.t + "/permissions/r", ["consume"])
    at.go()
    assert at.get(at.t + "/maxProducers") is None and at.get(at.t + "/permissions") == {"r": ["consume"]}


@effect("PUT", _T + "/properties")
def _(at):
    at.made()
    at.set("PUT", at.t + "/properties", {"a": "b"})
    at.go({"c": "d"})
    assert at.get(at.t + "/properties") == {"a": "b", "c": "d"}


@effect("DELETE", _T + "/properties")
def _(at):
    at.made()
    at.set("PUT", at.t + "/properties", {"a": "b", "c": "d"})
    at.go(query="key=a")
    assert at.get(at.t + "/properties") == {"c": "d"}


@effect("POST", _T + "/terminate")
def _(at):
    at.made("", 2)
    with Peer(at.broker.service_url) as peer:
        peer.open_producer(at.name)
        assert at.go()["entryId"] == 1
        assert peer.hear().type == T.CLOSE_PRODUCER
        assert peer.ask(T.PRODUCER, topic=at.name, producer_id=2, request_id=2).type == T.ERROR


@effect("POST", _T + "/terminate/partitions")
def _(at):
    at.set("PUT", at.t + "/partitions", 2)
    with Peer(at.broker.service_url) as peer:
        for number in range(2):
            peer.open_producer(f"{at.name}-partition-{number}", number)
        assert set(at.go()) == {"0", "1"}
        assert {peer.hear().type, peer.hear().type} == {T.CLOSE_PRODUCER}


@effect("DELETE", _T + "/truncate")
def _(at):
    ids = at.made("s other", 0) and at.publish(4)
    before = at.get(at.t + "/internalStats")["ledgers"]
    at.go()
    assert at.backlogs() == {"s": 0, "other": 0}
    eventually(lambda: not {one["ledgerId"] for one in at.get(at.t + "/internalStats")["ledgers"]} &
               {one["ledgerId"] for one in before}, what="ledgers that are gone")
    assert at.raw("GET", f"{at.t}/ledger/{ids[0].ledger_id()}/entry/0")[0] == 404


@effect("PUT", _T + "/compaction")
def _(at):
    at.made()
    at.publish(3, partition_key="k")
    at.go()
    eventually(lambda: at.get(at.t + "/compaction")["status"] == "SUCCESS", what="a compaction")
    with contextlib.closing(at.client.subscribe(at.name, "read", is_read_compacted=True,
                                                initial_position=pulsar.InitialPosition.Earliest,
                                                consumer_type=pulsar.ConsumerType.Exclusive)) as consumer:
        assert consumer.receive(HANG_MS).data() == b"2"


@effect("DELETE", _T + "/{subscription}/dispatchRate")
@effect("POST", _T + "/{subscription}/dispatchRate")
def _(at):
    at.made("s other")
    rate = {"dispatchThrottlingRateInMsg": 7, "dispatchThrottlingRateInByte": 8, "relativeToPublishRate": False,
            "ratePeriodInSecond": 1}
    if at._method == "POST":
        at.go(rate)
        assert at.get(at.t + "/s/dispatchRate") == rate and at.get(at.t + "/other/dispatchRate") is None
    else:
        for one in ("s", "other"):
            at.set("POST", f"{at.t}/{one}/dispatchRate", rate)
        at.go()
        assert at.get(at.t + "/s/dispatchRate") is None and at.get(at.t + "/other/dispatchRate") == rate


# -- subscriptions

@effect("PUT", _S)
def _(at):
    at.made("", 3)
    at.go("earliest", "replicated=true")
    assert at.backlogs() == {"s": 3} and at.stats()["subscriptions"]["s"]["isReplicated"]


@effect("DELETE", _S)
def _(at):
    at.made("s other", 3)
    at.go()
    assert at.backlogs() == {"other": 3}


@effect("PUT", _S + "/properties")
def _(at):
    at.made("s")
    at.go({"a": "b"})
    assert at.get(at.t + "/subscription/s/properties") == {"a": "b"}


@effect("POST", _S + "/replicatedSubscriptionStatus")
def _(at):
    at.made("s")
    at.go(True)
    assert at.stats()["subscriptions"]["s"]["isReplicated"]
    at.go(False)
    assert not at.stats()["subscriptions"]["s"]["isReplicated"]


@effect("POST", _S + "/skip_all")
def _(at):
    at.made("s other", 3)
    at.go()
    assert at.backlogs() == {"s": 0, "other": 3}


@effect("POST", _S + "/skip/{entries}")
def _(at):
    at.made("s other", 3)
    at.go(entries=2)
    assert at.backlogs() == {"s": 1, "other": 3}


@effect("POST", _S + "/resetcursor/{time_ms}")
def _(at):
    at.made("s other", 3)
    for time_ms in (0, -1):
        for name in ("s", "other"):
            at.set("POST", f"{at.t}/subscription/{name}/skip_all")
        at.go(time_ms=time_ms)
        assert at.backlogs() == {"s": 3, "other": 0}


@effect("POST", _S + "/resetcursor")
def _(at):
    at.made("s other")
    ids = at.publish(3)
    at.go({"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()})
    assert at.backlogs() == {"s": 2, "other": 3}


@effect("POST", _S + "/expireMessages")
def _(at):
    at.made("s other")
    ids = at.publish(3)
    at.go({"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()})
    assert at.backlogs() == {"s": 1, "other": 3}


@effect("POST", _S + "/expireMessages/{seconds}")
def _(at):
    at.made("s other", 3)
    eventually(lambda: at.go(seconds=1) or not at.backlogs()["s"], what="messages that are a second old")
    assert at.backlogs() == {"s": 0, "other": 3}


@effect("POST", _T + "/all_subscription/expireMessages/{seconds}")
def _(at):
    at.made("s other", 3)
    at.go(seconds=3_600)
    assert at.backlogs() == {"s": 3, "other": 3}
    eventually(lambda: at.go(seconds=1) or not any(at.backlogs().values()), what="messages that are a second old")


@effect("POST", _S + "/analyzeBacklog")
def _(at):
    """The route only reads."""
    at.made("s", 3)
    assert at.go()["messages"] == 3 and at.backlogs() == {"s": 3}


@effect("PUT", _T + "/backlogSize")
def _(at):
    """The route only reads."""
    at.made("s")
    ids = at.publish(3)
    sizes = [at.go({"ledgerId": one.ledger_id(), "entryId": one.entry_id()}) for one in ids]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[2] and at.backlogs() == {"s": 3}


# -- schemas

@effect("POST", _SCHEMAS + "/schema")
def _(at):
    at.made()
    at.go(STRING)
    assert at.get(f"/admin/v2/schemas/{at.place}/t/schema")["type"] == "STRING"


@effect("DELETE", _SCHEMAS + "/schema")
def _(at):
    at.made()
    at.set("POST", f"/admin/v2/schemas/{at.place}/t/schema", STRING)
    at.go()
    assert at.raw("GET", f"/admin/v2/schemas/{at.place}/t/schema")[0] == 404


@effect("POST", _SCHEMAS + "/version")
@effect("POST", _SCHEMAS + "/compatibility")
def _(at):
    """The routes only read."""
    at.made()
    assert at.go(STRING) in ({"version": -1}, {"schemaCompatibilityStrategy": "FULL", "compatibility": True})
    assert at.raw("GET", f"/admin/v2/schemas/{at.place}/t/schema")[0] == 404


# -- our own

def delayed(at):
    """Return the path of a delayed message."""
    at.made("s")
    [one] = at.publish(1, deliver_after=timedelta(hours=1))
    where = f"/ops/v1/delayed/persistent/{at.place}/t"
    assert at.get(where)["waiting"] == 1
    return where, {"message": f"{one.ledger_id()}:{one.entry_id()}"}


@effect("DELETE", "/ops/v1/delayed" + _OPS + "/{message}")
def _(at):
    where, message = delayed(at)
    at.go(**message)
    assert at.get(where)["waiting"] == 0


@effect("PATCH", "/ops/v1/delayed" + _OPS + "/{message}")
def _(at):
    where, message = delayed(at)
    at.go({"deliver_at": 4_000_000_000_000}, **message)
    assert at.get(where)["next_due_at"] == 4_000_000_000_000


def deleted(at):
    """Delete a topic that is kept, and return its id."""
    at.made("s", messages=2)
    at.set("POST", f"{at.n}/deletedRetention", 3_600)
    at.set("DELETE", f"{at.t}?force=true")
    [one] = at.get(f"/ops/v1/deleted/{at.place}")
    return one["id"]


@effect("POST", "/ops/v1/deleted/{tenant}/{namespace}/{deleted}/undelete")
def _(at):
    at.go(deleted=deleted(at))
    assert at.backlogs() == {"s": 2} and at.get(f"/ops/v1/deleted/{at.place}") == []


@effect("DELETE", "/ops/v1/deleted/{tenant}/{namespace}/{deleted}")
def _(at):
    at.go(deleted=deleted(at))
    assert at.get(f"/ops/v1/deleted/{at.place}") == [] and at.name not in at.topics()


def scheduled(at, **timing):
    """Give the topic a schedule, and return its path."""
    at.made()
    where = f"/ops/v1/schedules/persistent/{at.place}/t"
    at.set("PUT", f"{where}/tick", {"every": "1d", "message": {"payload": "x"}} | timing)
    return where


_SCHEDULE = "/ops/v1/schedules" + _OPS + "/{schedule}"


@effect("PUT", _SCHEDULE)
def _(at):
    at.made()
    at.go({"cron": "0 7 * * *", "message": {"payload": "x"}}, schedule="tick")
    [one] = at.get(f"/ops/v1/schedules/persistent/{at.place}/t")
    assert (one["name"], one["cron"], one["message"]) == ("tick", "0 7 * * *", {"payload": "x"})


@effect("DELETE", _SCHEDULE)
def _(at):
    where = scheduled(at)
    at.go(schedule="tick")
    assert at.get(where) == []


@effect("POST", _SCHEDULE + "/pause")
def _(at):
    where = scheduled(at)
    at.go(schedule="tick")
    [one] = at.get(where)
    assert one["paused"] and one["next"] == []


@effect("POST", _SCHEDULE + "/resume")
def _(at):
    where = scheduled(at, paused=True)
    at.go(schedule="tick")
    [one] = at.get(where)
    assert not one["paused"] and len(one["next"]) == 1


@effect("POST", _SCHEDULE + "/run")
def _(at):
    scheduled(at)
    at.set("PUT", f"{at.t}/subscription/s", "earliest")
    at.go(schedule="tick")
    assert at.backlogs() == {"s": 1}


@effect("POST", "/ops/v1/backup")
def _(at):
    folder = at.broker.data_dir.with_name("backups")
    made = at.go({"folder": str(folder)})["folder"]
    assert [str(path) for path in folder.iterdir() if path.is_dir()] == [made]


@effect("POST", "/ops/v1/definitions")
def _(at):
    at.go({"version": 1, "namespaces": {f"effects/more{at.namespace}": {}}})
    assert f"effects/more{at.namespace}" in at.get("/admin/v2/namespaces/effects")


@effect("PUT", "/ops/v1/log-level")
def _(at):
    at.go({"level": "debug", "topic": at.name, "seconds": 60})
    assert at.name in [one["topic"] for one in at.get("/ops/v1/log-level")["for_now"]]


@effect("DELETE", "/ops/v1/log-level")
def _(at):
    at.set("PUT", "/ops/v1/log-level", {"level": "debug", "topic": at.name, "seconds": 60})
    at.go()
    assert at.get("/ops/v1/log-level")["for_now"] == []


@effect("DELETE", "/ops/v1/clients/{address}")
def _(at):
    client = pulsar.Client(at.broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(at.name)
    rows = f"/ops/v1/clients/persistent/{at.place}/t"
    [address] = [row["address"] for row in at.get(rows)["rows"]]
    at.go(address=address)
    [again] = eventually(lambda: [row["address"] for row in at.get(rows)["rows"]])
    assert again != address
    producer.send(b"the client has connected again")
    client.close()


# -- keys whose effect is a question to owners: a whole broker asks it sooner or later by itself, so owners are played

class Played:
    """Owners, or alarms, that write down what they are asked."""

    def __init__(self):
        self.asked = []

    async def ask(self, question):
        self.asked.append(question)
        return Released(3)

    def seen_to(self, alarm):
        self.asked.append(alarm)
        return alarm == "damage"


PLAYED = names.parse("persistent://public/default/t")


def played(at, method, path):
    """Send the request to owners that are played; return (status, text, what they were asked)."""
    async def talk(made):
        async with TestClient(TestServer(made)) as client:
            answer = await client.request(method, path)
            return answer.status, await answer.text()

    owners = Played()
    with made_app(at.broker.data_dir.with_name(at.namespace), owners) as made:
        made[ALARMS_OF] = owners
        made.cleanup_ctx.clear()
        at.calls += 1
        return *asyncio.run(talk(made)), owners.asked


@effect("POST", _T + "/trim")
def _(at):
    assert played(at, "POST", "/admin/v2/persistent/public/default/t/trim") == (
        200, "", [Trim(PLAYED)])

@effect("POST", "/ops/v1/messages" + _OPS)
def a_message_is_published(at):
    at.made("s")
    at.go({"payload": "hello", "key": "k"})
    assert at.backlogs() == {"s": 1}
    status, text = at.raw("GET", f"/ops/v1/messages/persistent/{at.place}/t")
    [row] = json.loads(text)["rows"]
    assert (status, row["payload"], row["key"]) == (200, "hello", "k")


@effect("POST", "/ops/v1/redrive" + _OPS)
def dead_letters_go_back(at):
    at.made("s")
    at.made("letters", topic="t-s-DLQ")
    at.publish(2, "t-s-DLQ", properties={"REAL_TOPIC": at.name})
    at.topic = "t-s-DLQ"
    assert at.go({"count": 10})["sent"] == 2
    assert at.backlogs() == {"s": 2}
    assert at.go({"undo": at.name.replace("t-s-DLQ", "t")})["taken_back"] == 2


@effect("POST", "/ops/v1/release" + _OPS + "/{subscription}")
def _(at):
    assert played(at, "POST", "/ops/v1/release/persistent/public/default/t/s") == (
        200, '{"entries": 3}', [Release(PLAYED, subscription="s")])


@effect("POST", "/ops/v1/alarms/{alarm}/seen")
def _(at):
    assert played(at, "POST", "/ops/v1/alarms/damage/seen") == (204, "", ["damage"])
    assert played(at, "POST", "/ops/v1/alarms/memory/seen")[0] == 404


# -- the table

def all_routes(tmp_path):
    with made_app(tmp_path) as made:
        return {(route.method, route.resource.canonical) for route in made.router.routes()
                if route.method not in ("GET", "HEAD")}


def policies():
    """Return {(method, path): (policy, route)} of the routes that the table makes."""
    found = {}
    for policy in TABLE.values():
        for route, prefix in ((policy.namespace, _N), (policy.topic, _T)):
            if route is not None and not route.kind:
                found[route.method, f"{prefix}/{route.path}"] = policy, route
                if route.removable:
                    found["DELETE", f"{prefix}/{route.remove or route.path}"] = policy, route
    return found


def test_every_route_that_changes_something_has_a_row(tmp_path):
    assert all_routes(tmp_path) == EFFECTS.keys() | REFUSED.keys() | policies().keys()
    assert not EFFECTS.keys() & REFUSED.keys() and not policies().keys() & (EFFECTS.keys() | REFUSED.keys())


@pytest.mark.parametrize(("method", "path"), REFUSED)
def test_what_there_is_none_of_is_refused(own, client, method, path):
    at = At(own, client, method, path)
    at.made()
    known = {"domain": "persistent", "tenant": at.tenant, "namespace": at.namespace, "topic": "t", "bundle": BUNDLE,
             "rest": "/x", "cluster": "standalone"}
    url = re.sub(r"\{(\w+)\}", lambda match: known.get(match[1], "x"), path)
    status, text = at.raw("POST" if method == "*" else method, url, {} if method != "PUT" else None)
    assert (status, bool(json.loads(text)["reason"])) == (REFUSED[method, path], True)


@pytest.mark.parametrize(("method", "path"), EFFECTS)
def test_a_route_does_what_it_is_for(own, client, method, path):
    at = At(own, client, method, path)
    EFFECTS[method, path](at)
    assert at.calls
