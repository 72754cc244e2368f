"""Every policy of the table over HTTP, at each level: set, shown, removed, refused, and kept over a restart."""
import json
import uuid

import pytest

from geminga.storage.catalogue.policy_declaration import OWN_CLUSTER, Nothing
from geminga.storage.catalogue.policy_table import TABLE

from ..harness import request, unique_topic

EVERY = [pytest.param(policy, level, id=f"{policy.name}-{level}") for policy in TABLE.values()
         for level in policy.levels]
SET = [one for one in EVERY if one.values[0].name != "entryFilters"]
ODD = {     # values of policies whose fields depend on each other
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20},
    "backlogQuota/destination_storage": {"limit": 9, "limitSize": 9, "limitTime": 0, "policy": "producer_exception"},
    "backlogQuota/message_age": {"limit": 0, "limitSize": 0, "limitTime": 9, "policy": "producer_exception"},
    "persistence": {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1,
                    "managedLedgerMaxMarkDeleteRate": 1.5},
    "autoTopicCreation": {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    "replicationClusters": ["standalone"], "allowedClusters": ["standalone"],
    "offloadPolicies": {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "b"},
    "scalableTopicAutoScale": {"enabled": False, "maxSegments": 9, "splitMsgRateInThreshold": 12_000.5},
    "isAllowAutoUpdateSchema": False, "allowedTopicPropertyKeysForMetrics": ["team"],
}


def value_of(policy):
    """Return a value that may be set."""
    if policy.name in ODD:
        return ODD[policy.name]
    values = {}
    for part in policy.parts:
        if part.type.choices:
            values[part.json] = [part.type.choices[-1]] if part.type.name == "list" else part.type.choices[-1]
        else:
            values[part.json] = {"number": max(7, part.least or 0), "decimal": 1.5, "true or false": True, "text": "x"}[
                part.type.name
            ]
    return values.get("", values)


class Place:
    """A namespace of a test's own, or a topic in it, and a policy there."""

    def __init__(self, broker, policy, level, name=None):
        self.policy, self.route, self.name = (
            policy,
            policy.route_at(level),
            name or f"public/{uuid.uuid4().hex[:12]}",
        )
        namespace, topic = (f"{broker.http_url}/admin/v2/{base}"
                            for base in (f"namespaces/{self.name}", f"persistent/{self.name}/orders"))
        self.base = topic if level == "topic" else namespace
        self.url = f"{self.base}/{self.route.path}"
        if name is None:
            assert request("PUT", namespace)[0] == 204
            assert level == "namespace" or request("PUT", topic)[0] == 204

    def get(self, applied=False):
        """Return (status, value); of backlog quotas, which are shown together, only this one."""
        kind = self.route.kind
        url = f"{self.base}/backlogQuotaMap" if kind else self.url
        status, text = request("GET", url + ("?applied=true" if applied else ""))
        if self.route.is_raw and status == 200:
            return status, text
        value = json.loads(text) if text else None
        return (status, value.get(kind)) if kind else (status, value)

    def set(self, value):
        if self.route.query:
            return request(self.route.method, f"{self.url}?{self.route.query}={value}")
        return request(self.route.method, self.url, json.dumps(value).encode())

    @property
    def unset(self):
        unset = ["standalone"] if self.route.unset is OWN_CLUSTER else self.route.unset
        return (unset.status, None) if isinstance(unset, Nothing) else (200, unset)


def test_every_policy_has_routes_and_verbs_where_it_can_be_set():
    assert {policy.name for policy in TABLE.values() if not policy.levels} == set()
    for policy in TABLE.values():
        for level in policy.levels:
            assert policy.verb_at(level) and policy.route_at(level).path
            assert policy.options_at(level) or policy.route_at(level).implied is not None
            assert all(option.flags.startswith("-") for _, option in policy.options_at(level))


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "level"), SET)
def test_a_policy_is_set_shown_and_taken_away(broker, policy, level):
    place, value = Place(broker, policy, level), value_of(policy)
    assert place.get() == place.unset
    assert place.set(value) == (place.route.status, "")
    assert place.get() == (200, value)
    if level == "topic":
        assert place.get(applied=True) == (200, value)
    if place.route.removable:
        path = f"{place.base}/{place.route.remove}" if place.route.remove else place.url
        assert request("DELETE", path) == (204, "")
        assert place.get() == place.unset
    elif place.route.nullable:
        assert request(place.route.method, place.url) == (204, "")
        assert place.get() == place.unset


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "level"),
                         [one for one in EVERY if one.values[0].route_at(one.values[1]).implied is None])
def test_what_is_no_value_is_refused_and_changes_nothing(broker, policy, level):
    place = Place(broker, policy, level)
    bodies = [b"{", b"[" * 100_000, b"\xff", b"[[1]]", b'{"": ' + b"9" * 5_000 + b"}", b"1e400", b"NaN", b"9" * 400]
    bodies += (
        [json.dumps({part.json: wrong for part in policy.parts}).encode() for wrong in ([], {}, [{}], 10**30)]
        if policy.is_object
        else [b"{}", b"[{}]", b'[""]']
    )
    if not place.route.nullable:
        bodies += [b"", b"null"]
    if place.route.is_raw:      # any text is valid
        bodies = [b"[" * 100_000, b"[[1]]", b"{}", b""]
    for body in bodies:
        if place.route.query:
            status, text = request(place.route.method, f"{place.url}?{place.route.query}=x{len(body)}")
        else:
            status, text = request(place.route.method, place.url, body)
        assert status in (400, 403, 412), body[:40]
        assert json.loads(text).keys() == {"reason"}
        assert place.get() == place.unset


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "level"), [one for one in SET if one.values[0].is_object])
def test_fields_that_nobody_knows_are_passed_over(broker, policy, level):
    place, value = Place(broker, policy, level), value_of(policy)
    assert place.set(value | {"nobody": {"knows": 1}}) == (place.route.status, "")
    assert place.get() == (200, value)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "level"),
                         [one for one in EVERY if any(part.least == 0 for part in one.values[0].parts)])
def test_negative_numbers_are_refused(broker, policy, level):
    place = Place(broker, policy, level)
    for part in policy.parts:
        if part.least is not None:
            status, text = place.set(value_of(policy) | {part.json: -1} if policy.is_object else -1)
            assert status == 412
            assert place.route.refusal in text and part.json in text
    assert place.get() == place.unset


def test_entry_filters_are_refused_by_name(broker):
    place = Place(broker, TABLE["entryFilters"], "namespace")
    assert place.set({"entryFilterNames": "a,b"}) == (400, '{"reason": "Entry filter \'a\' not found"}')
    assert place.set(None) == (204, "")


@pytest.mark.parametrize("fields, why", [
    ({"deadLetterTopic": "orders"}, "the topic itself"), ({"deadLetterTopic": "d-partition-1"}, "without a partition"),
    ({"deadLetterTopic": "other/ns/dead"}, "the same namespace"), ({"deadLetterTopic": " "}, "the name of a topic"),
    ({"deadLetterTopic": "__change_events"}, "the broker's own"),
    ({"initialSubscriptionName": "pulsar.repl.far"}, "keeps for itself"), ({"initialSubscriptionName": ""}, "blank")])
def test_dead_letters_that_could_go_nowhere_are_refused(broker, fields, why):
    place = Place(broker, TABLE["deadLetter"], "topic")
    status, text = place.set({"maxRedeliverCount": 1} | fields)
    assert (status, why in text) == (400, True), text
    assert place.get() == place.unset


def test_a_topic_that_gets_dead_letters_has_none_and_says_so(broker):
    place = Place(broker, TABLE["deadLetter"], "topic")
    letters = place.base + "-DLQ"
    assert request("PUT", letters)[0] == 204
    status, text = request("POST", f"{letters}/deadLetter", b'{"maxRedeliverCount": 1}')
    assert (status, "it has none itself" in text) == (400, True), text
    namespace = Place(broker, TABLE["deadLetter"], "namespace", place.name)      # where `orders` is another topic
    assert namespace.set({"maxRedeliverCount": 1, "deadLetterTopic": "orders"})[0] == 204
    exported = json.loads(request("GET", f"{broker.http_url}/ops/v1/definitions")[1])
    [topic] = [one for name, one in exported["topics"].items() if name == f"persistent://{place.name}/orders"]
    topic["policies"] = {"deadLetter": {"maxRedeliverCount": 1, "expired": False, "deadLetterTopic": "orders"}}
    status, text = request("POST", f"{broker.http_url}/ops/v1/definitions", json.dumps(exported).encode())
    assert (status, "the topic itself" in text) == (400, True), text


def test_there_are_no_resource_groups(broker):
    url = f"{Place(broker, TABLE['entryFilters'], 'namespace').base}/resourcegroup"
    assert request("POST", f"{url}/some") == (412, '{"reason": "ResourceGroup does not exist"}')
    assert request("GET", url) == (200, "")
    assert request("DELETE", url) == (204, "")
    assert request("GET", url.replace("/public/", "/nobody/"))[0] == 404


def test_other_clusters_are_refused(broker):
    place = Place(broker, TABLE["replicationClusters"], "namespace")
    assert place.set(["elsewhere"]) == (403, '{"reason": "Invalid cluster id: elsewhere"}')
    assert place.set([])[0] == place.set(["global"])[0] == 412


def test_a_namespace_is_made_with_all_policies_and_shows_them(broker):
    """The object that shows a namespace can be used to create another one like it."""
    url = f"{broker.http_url}/admin/v2/namespaces/public/{uuid.uuid4().hex[:12]}"
    body: dict = {}
    for policy in TABLE.values():
        route = policy.namespace
        if route is None or not route.member or policy.name in ("entryFilters", "allowedClusters"):
            continue
        *outer, name = route.member.split("/") + ["standalone"] * route.by_cluster
        into = body
        for one in outer:
            into = into.setdefault(one, {})
        into[name] = value_of(policy)
    assert request("PUT", url, json.dumps(body).encode()) == (204, "")
    shown = json.loads(request("GET", url)[1])
    assert shown.items() >= body.items()
    again = f"{broker.http_url}/admin/v2/namespaces/public/{uuid.uuid4().hex[:12]}"
    assert request("PUT", again, json.dumps(shown).encode()) == (204, "")
    assert json.loads(request("GET", again)[1]) == shown


def test_a_topics_messages_are_not_larger_than_the_brokers(broker):
    place = Place(broker, TABLE["maxMessageSize"], "topic")
    assert place.set(5_242_880)[0] == 204
    assert place.set(5_242_881)[0] == 412


def test_all_policies_outlast_the_broker(start_broker):
    broker = start_broker()
    name = Place(broker, TABLE["maxProducers"], "topic").name
    places = [Place(broker, *one.values, name) for one in SET]
    assert len(places) > 30
    for place in places:
        assert place.set(value_of(place.policy))[0] == place.route.status
    broker.kill_supervisor()
    broker.start()
    for place in places:
        assert place.get() == (200, value_of(place.policy)), place.policy.name


# -- permissions

def test_permissions_are_granted_shown_and_revoked(broker):
    place = Place(broker, TABLE["maxProducers"], "topic")
    namespace = f"{broker.http_url}/admin/v2/namespaces/{place.name}/permissions"

    def shown(url):
        return json.loads(request("GET", url)[1])

    assert shown(namespace) == shown(f"{place.base}/permissions") == {}
    assert request("POST", f"{namespace}/r%20x", b'["produce", "functions"]') == (204, "")
    assert request("POST", f"{place.base}/permissions/s", b'["consume"]') == (204, "")
    assert shown(namespace) == {"r x": ["functions", "produce"]}
    assert shown(f"{place.base}/permissions") == {"r x": ["functions", "produce"], "s": ["consume"]}
    assert request("POST", f"{namespace}/subscription/sub", b'["r1", "r2"]') == (204, "")
    assert request("DELETE", f"{namespace}/sub/r1") == (204, "")
    assert shown(f"{namespace}/subscription") == {"sub": ["r2"]}
    for body in (b"", b"null", b"{}", b'["fly"]', b"[1]", b'"produce"'):
        assert request("POST", f"{namespace}/r", body)[0] == 400
    assert request("DELETE", f"{namespace}/r%20x") == request("DELETE", f"{place.base}/permissions/nobody") == (204, "")
    assert shown(namespace) == {}
    assert request("DELETE", f"{namespace}/nosub/r1")[0] == request("GET", f"{place.base}x/permissions")[0] == 404


# -- policies in force in workers and in administration

def test_administration_makes_no_more_topics_than_a_namespace_may_have(broker):
    place = Place(broker, TABLE["maxTopicsPerNamespace"], "namespace")
    assert place.set(3)[0] == 204
    topics = f"{broker.http_url}/admin/v2/persistent/{place.name}"
    assert request("PUT", f"{topics}/parts/partitions", b"2")[0] == request("PUT", f"{topics}/one")[0] == 204
    refused = 412, '{"reason": "Exceed maximum number of topics in namespace."}'
    assert request("PUT", f"{topics}/two") == request("PUT", f"{topics}/more/partitions", b"1") == refused
    assert request("POST", f"{topics}/parts/partitions", b"3") == refused
    assert json.loads(request("GET", topics)[1]) == [f"persistent://{place.name}/{name}" for name in (
        "one", "parts-partition-0", "parts-partition-1")]


def test_policies_in_force_say_which_level_set_them(broker):
    name = f"in-force-{uuid.uuid4().hex[:8]}"
    namespace, topic = f"{broker.http_url}/admin/v2/namespaces/public/{name}", f"persistent/public/{name}/orders"
    assert request("PUT", namespace, b"{}")[0] == 204
    assert request("PUT", f"{broker.http_url}/admin/v2/{topic}")[0] == 204

    def row_of(policy):
        status, text = request("GET", f"{broker.http_url}/ops/v1/policies/{topic}")
        assert status == 200, text
        return next(row for row in json.loads(text) if row["policy"] == policy)

    def in_namespace():
        rows = json.loads(request("GET", f"{broker.http_url}/ops/v1/policies/public/{name}")[1])
        return next((row["value"], row["origin"], row["broker"]) for row in rows if row["policy"] == "maxProducers")

    assert (row_of("maxProducers")["value"], row_of("maxProducers")["origin"]) == (0, "broker")
    assert in_namespace() == (0, "broker", 0)
    assert request("POST", f"{namespace}/maxProducersPerTopic", b"7")[0] == 204
    assert (row_of("maxProducers")["value"], row_of("maxProducers")["origin"]) == (7, "namespace")
    assert in_namespace() == (7, "namespace", 0)
    assert request("POST", f"{broker.http_url}/admin/v2/{topic}/maxProducers", b"3")[0] == 204
    row = row_of("maxProducers")
    assert (row["value"], row["origin"], row["topic"], row["namespace"], row["broker"]) == (3, "topic", 3, 7, 0)
    status, text = request("GET", f"{broker.http_url}/ops/v1/policies/{topic}-partition-0")
    assert status in (404, 412), text


def test_a_topic_has_a_time_of_its_own_after_which_subscriptions_expire(broker):
    """Recorded from Apache Pulsar 5.0.1."""
    topic = f"{broker.http_url}/admin/v2/{unique_topic().replace('://', '/')}"
    url = f"{topic}/subscriptionExpirationTime"
    assert request("GET", url)[0] == 404
    assert request("PUT", topic)[0] == 204
    assert request("GET", url) == (200, "")
    assert request("GET", f"{url}?applied=true") == (200, "0")
    assert request("POST", f"{url}?subscriptionExpirationTime=5")[0] == 204
    assert request("GET", url) == request("GET", f"{url}?applied=true") == (200, "5")
    assert request("POST", f"{url}?subscriptionExpirationTime=-1")[0] == 412
    assert request("POST", url, b"7")[0] == 204      # without the parameter: there is no time any more
    assert request("GET", url) == (200, "")
    assert request("POST", f"{url}?subscriptionExpirationTime=5")[0] == request("DELETE", url)[0] == 204
    assert request("GET", url) == (200, "")


def test_what_pulsar_5_asks_for_beside_topics(broker):
    assert request("GET", f"{broker.http_url}/admin/v2/metadata/migration/status") == (200, '{"phase": "NOT_STARTED"}')
    url = f"{broker.http_url}/admin/v2/namespaces/public/default/allowedTopicPropertyKeysForMetrics"
    assert request("GET", url) == (200, "")
    assert request("POST", url, b'["team"]')[0] == 204 and json.loads(request("GET", url)[1]) == ["team"]
    assert request("POST", url, b'"team"')[0] == 400
    assert request("DELETE", url)[0] == 204 and request("GET", url) == (200, "")
    topics = f"{broker.http_url}/admin/v2/persistent/public/default"
    assert request("GET", f"{topics}?properties=team=a") == request("GET", topics)      # Pulsar leaves it to plug-ins
