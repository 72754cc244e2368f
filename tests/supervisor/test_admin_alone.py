"""Routes of administration without a broker: one app over a catalogue of its own, with owners that are played."""
import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from multidict import CIMultiDict

from geminga.proto import names
from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.runtime.log import log
from geminga.supervisor.admin import app
from geminga.supervisor.admin.requests import origins
from geminga.supervisor.admin.requests.request_parts import CONTROL
from geminga.supervisor.admin.resources import topics

from .test_bad_requests import made_app

NAMESPACES, TOPICS = "/admin/v2/namespaces/public", "/admin/v2/persistent/public/default"


class Played:
    """Owners that answer each question about a topic as the test says: with a value, or an exception that is raised."""

    def __init__(self):
        self.answers, self.asked = {}, []

    async def ask(self, question):
        self.asked.append(question)
        answer = self.answers[question.name, question.topic.local_name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def tell_all(self, question):
        """Note what all owners were told."""


class Alone:
    """The app under test: `ask` takes requests and returns one (status, JSON) for each."""

    def __init__(self, made, owners):
        self.made, self.owners, self.sent = made, owners, []
        made.cleanup_ctx.clear()
        made[CONTROL] = self

    def send(self, **message):
        """Note a message to the supervisor instead of sending it."""
        self.sent.append(message)

    def ask(self, *requests):
        async def talk():
            async with TestClient(TestServer(self.made)) as client:
                found = []
                for method, path, *body in requests:
                    answer = await client.request(method, path, json=body[0] if body else None)
                    found.append((answer.status,
                                  await answer.json() if answer.content_type == "application/json" else None))
                return found
        return asyncio.run(talk())


@pytest.fixture
def alone(tmp_path):
    owners = Played()
    with made_app(tmp_path, owners) as made:
        yield Alone(made, owners)


# -- requests

def test_a_second_host_counts_as_well(alone):
    """The HTTP parser refuses a second Host already; another parser might not."""
    sent = CIMultiDict([("Host", "localhost"), ("Host", "evil.example")])
    with pytest.raises(web.HTTPForbidden):
        asyncio.run(alone.made[origins.GUARD].check(make_mocked_request("GET", "/admin/v2/clusters", headers=sent,
                                                                        app=alone.made)))


def test_a_request_that_fails_leaves_nothing_half_done_in_the_catalogue(alone):
    catalogue = alone.made[topics.TOPICS].catalogue

    async def fail(request):
        catalogue.tenants.create("half")
        raise web.HTTPConflict(text="too late")

    answer = asyncio.run(app.errors_as_json(make_mocked_request("PUT", "/x", app=alone.made), fail))
    catalogue.commit()
    assert (answer.status, "half" in catalogue.tenants.names()) == (409, False)


# -- namespaces, clusters, topics

def test_force_false_is_no_force(alone):
    assert alone.ask(("PUT", f"{NAMESPACES}/other"), ("DELETE", f"{NAMESPACES}/other?force=false"))[1][0] == 204


def test_properties_of_a_namespace_are_added_to_those_it_has(alone):
    path = f"{NAMESPACES}/default/properties"
    assert alone.ask(("PUT", path, {"a": "b"}), ("PUT", path, {"c": "d"}), ("GET", path))[2] == (
        200,
        {"a": "b", "c": "d"},
    )


@pytest.mark.parametrize("value", [None, ["x"], {"x": "y"}])
def test_a_property_is_a_text_or_a_number(alone, value):
    path = f"{TOPICS}/t"
    assert [status for status, _ in alone.ask(("PUT", path), ("PUT", f"{path}/properties", {"a": value}),
                                              ("PUT", f"{path}/properties", {"a": 1}))] == [204, 400, 204]


def test_a_cluster_that_is_made_again_has_nothing_of_the_one_that_was_deleted(alone):
    far, data = "/admin/v2/clusters/far", {"serviceUrl": "http://far:8080"}
    found = alone.ask(("PUT", far, data), ("POST", f"{far}/peers", ["standalone"]),
                      ("POST", f"{far}/failureDomains/d", {"brokers": ["b"]}),
                      ("DELETE", far), ("PUT", far, data), ("GET", f"{far}/peers"), ("GET", f"{far}/failureDomains"))
    assert [status for status, _ in found[:5]] == [200, 204, 204, 204, 200]
    assert found[5:] == [(200, []), (200, {})]


def test_peers_are_part_of_a_cluster_as_pulsar_admin_sends_and_reads_it(alone):
    """A cluster's data may name peers that are added later, and pulsarctl sends an empty name for none."""
    far, data = "/admin/v2/clusters/far", {"serviceUrl": "http://far:8080"}
    found = alone.ask(("PUT", far, data | {"peerClusterNames": ["near"]}), ("GET", f"{far}/peers"), ("GET", far),
                      ("POST", far, data | {"peerClusterNames": [""]}), ("GET", f"{far}/peers"), ("GET", far),
                      ("POST", far, data | {"peerClusterNames": "near"}), ("POST", f"{far}/peers", ["near"]))
    assert [status for status, _ in found] == [200] * 6 + [400, 412]
    assert found[1][1] == found[2][1]["peerClusterNames"] == ["near"]
    assert found[4][1] == [] and "peerClusterNames" not in found[5][1]


def test_failure_domains_need_their_cluster_and_share_no_broker(alone):
    own, lost, brokers = "/admin/v2/clusters/standalone/failureDomains", "/admin/v2/clusters/lost/failureDomains", {
        "brokers": ["b"]}
    found = alone.ask(("POST", f"{lost}/d", brokers), ("GET", f"{lost}/d"), ("DELETE", f"{lost}/d"),
                      ("POST", f"{own}/d", brokers), ("POST", f"{own}/e", brokers), ("POST", f"{own}/d", brokers))
    assert [status for status, _ in found] == [412, 412, 412, 204, 409, 204]
    assert found[0][1]["reason"] == "Cluster lost does not exist."
    assert found[4][1]["reason"] == "[b] already exists in d"


def test_a_topics_quota_is_smaller_than_the_retention_that_it_has_of_its_namespace(alone):
    """What a topic has of its own comes before its namespace's; other policies of the topic stay free."""
    topic, namespace = f"{TOPICS}/t", f"{NAMESPACES}/default"
    large = {"limitSize": 10 << 20, "policy": "producer_exception"}
    found = alone.ask(("PUT", topic), ("POST", f"{namespace}/retention", {"retentionTimeInMinutes": 9,
                                                                         "retentionSizeInMB": 10}),
                      ("POST", f"{topic}/backlogQuota", large), ("GET", f"{topic}/backlogQuotaMap"),
                      ("POST", f"{topic}/retention", {"retentionTimeInMinutes": 9, "retentionSizeInMB": 11}),
                      ("POST", f"{topic}/backlogQuota", large), ("DELETE", f"{topic}/retention"),
                      ("POST", f"{topic}/maxConsumers", 5),
                      ("POST", f"{topic}/retention", {"retentionTimeInMinutes": 9, "retentionSizeInMB": 9}))
    assert [status for status, _ in found] == [204, 204, 412, 200, 204, 204, 204, 204, 412]
    assert found[3][1] == {}


def test_the_last_message_of_a_non_persistent_topic_is_refused_in_pulsars_words(alone):
    path = f"{TOPICS.replace('persistent', 'non-persistent')}/t"
    (_, (status, told)) = alone.ask(("PUT", path), ("GET", f"{path}/lastMessageId"))
    assert (status, told["reason"]) == (405, "GetLastMessageId on a non-persistent topic is not allowed")


def test_partitions_that_are_added_count_as_topics_of_their_namespace(alone):
    path = f"{TOPICS}/parted/partitions"
    found = alone.ask(("POST", f"{NAMESPACES}/default/maxTopicsPerNamespace", 4), ("PUT", path, 3), ("POST", path, 5),
                      ("POST", path, 4), ("GET", path))
    assert [status for status, _ in found] == [204, 204, 412, 204, 200]
    assert found[4][1]["partitions"] == 4


# -- subscriptions of partitioned topics

NO_SUBSCRIPTION, IS_BUSY = Refusal(api.SubscriptionNotFound, "none"), Refusal(api.ConsumerBusy, "it has consumers")


@pytest.mark.parametrize(("first", "second", "expected"), [
    ({}, {}, 204), ({}, NO_SUBSCRIPTION, 204), (NO_SUBSCRIPTION, {}, 204), (NO_SUBSCRIPTION, NO_SUBSCRIPTION, 404),
    ({}, IS_BUSY, 412),
    (IS_BUSY, {}, 412)])
def test_what_is_done_to_a_subscription_is_done_where_it_is_and_failures_are_told(alone, first, second, expected):
    alone.owners.answers = {("unsubscribe", "t-partition-0"): first, ("unsubscribe", "t-partition-1"): second}
    assert alone.ask(("PUT", f"{TOPICS}/t/partitions", 2), ("DELETE", f"{TOPICS}/t/subscription/s"))[1][0] == expected


@pytest.mark.parametrize("request_line", [
    ("DELETE", f"{TOPICS}/t/subscription/s"), ("POST", f"{NAMESPACES}/default/unsubscribe/s")])
def test_a_subscription_that_has_consumers_somewhere_is_deleted_nowhere(alone, request_line):
    alone.owners.answers = {("unsubscribe", "t-partition-0"): {}, ("unsubscribe", "t-partition-1"): IS_BUSY}
    catalogue, topic = alone.made[topics.TOPICS].catalogue, names.parse("persistent://public/default/t")
    catalogue.topics.create(topic, 2)
    for part in catalogue.topics.parts(topic):
        catalogue.partitions.create(part)
    catalogue.commit()
    assert alone.ask(request_line)[0][0] == 412
    assert len(alone.owners.asked) == 2 and all(question.looks for question in alone.owners.asked)


def test_a_subscription_that_one_partition_refuses_is_made_on_none(alone):
    too_many = Refusal(api.NotAllowedError, "too many")
    alone.owners.answers = {("subscribe", "t-partition-0"): True, ("subscribe", "t-partition-1"): too_many}
    assert alone.ask(("PUT", f"{TOPICS}/t/partitions", 2), ("PUT", f"{TOPICS}/t/subscription/s"))[1][0] == 409
    assert len(alone.owners.asked) == 2 and all(question.looks for question in alone.owners.asked)


@pytest.mark.parametrize(("made", "expected"),
                         [((True, True), 204), ((True, False), 204), ((False, True), 204), ((False, False), 409)])
def test_a_subscription_is_made_on_the_partitions_that_have_none(alone, made, expected):
    alone.owners.answers = {("subscribe", f"t-partition-{number}"): one for number, one in enumerate(made)}
    assert alone.ask(("PUT", f"{TOPICS}/t/partitions", 2), ("PUT", f"{TOPICS}/t/subscription/s"))[1][0] == expected


# -- the log

def test_levels_of_several_topics_hold_beside_each_other_and_the_last_word_on_each(alone):
    one, other = (f"persistent://public/default/{name}" for name in ("one", "other"))
    try:
        found = alone.ask(*(("PUT", "/ops/v1/log-level", {"level": level, "topic": topic})
                            for level, topic in (("debug", one), ("debug", other), ("error", one))))
        assert [(rule["topic"], rule["level"]) for rule in found[2][1]["for_now"]] == [(other, "debug"), (one, "error")]
    finally:
        log.follow([])
