"""Metrics of scalable topics: Pulsar 5's own, and series by topic instead of by segment."""
import json

import numpy as np
import pytest

from geminga.storage.statistics.columns import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS
from geminga.supervisor.admin.monitoring.scalable_series import WholeTopics
from geminga.supervisor.admin.monitoring.stats import Measured

from ..harness import eventually, request
from ..proto.client_frames import T, command
from ..workers.peer import Peer
from ..workers.test_scalable_topics import assigned, layout_of, publish, register, segments_of
from .test_metrics import scrape, total, value
from .test_scalable_topics import Rest

pytestmark = pytest.mark.slow

# As /metrics of Pulsar 5.0.1 has them.
NAMES = {
    "leaderless_count": set(), "segment_unwritable_count": set(), "entry_bucket_draining_count": set(),
    "entry_bucket_violation_total": {"entry_bucket_violation"}, "consumer_count": {"consumer_state"},
    "segment_blocked_count": set(), "rebalance_total": {"rebalance_reason"}, "segment_count": {"segment_state"},
    "controller_count": set(), "watch_session_count": {"watch_type"},
    "layout_operation_total": {"operation", "operation_trigger", "operation_status"},
    "layout_operation_duration_seconds_bucket": {"operation", "operation_status", "le"}}
STORAGE = "pulsar_storage_size"


@pytest.fixture
def fresh(fresh_broker):
    return Rest(fresh_broker)


def of(found, name, **labels):
    return value(found, f"pulsar_scalable_topic_{name}", **labels)


def test_scalable_topics_have_pulsars_metrics(fresh):
    """Their numbers follow a topic that splits while a stream consumer has something to acknowledge."""
    broker = fresh.broker
    fresh.set("PUT", "?numInitialSegments=2")
    with Peer(broker.service_url) as peer:
        parent, _ = segments_of(fresh.name, layout_of(peer, fresh.name).dag)
        register(peer, fresh.name, "a")
        assert len(assigned(peer)) == 2
        fresh.set("PUT", "/subscriptions/sub")
        publish(peer, parent, b"x")
        fresh.set("POST", "/split/0")
        found = scrape(broker)
        assert {name: set(found[f"pulsar_scalable_topic_{name}"][0].labels) - {"cluster"} for name in NAMES} == NAMES
        assert [of(found, "segment_count", segment_state=state) for state in ("active", "sealed")] == [3, 1]
        assert [of(found, "consumer_count", consumer_state=state)
                for state in ("active", "idle", "disconnected")] == [1, 0, 0]
        assert of(found, "segment_blocked_count") == 2 and of(found, "controller_count") == 1
        assert of(found, "watch_session_count", watch_type="topic") == 1
        assert of(found, "layout_operation_total", operation="split", operation_trigger="manual") == 1
        assert of(found, "layout_operation_duration_seconds_count", operation="split") == 1
        reasons = "consumer_join", "layout_change"
        assert all(of(found, "rebalance_total", rebalance_reason=reason) >= 1 for reason in reasons)
        peer.say(command(T.SCALABLE_TOPIC_CLOSE, session_id=1))
        eventually(lambda: of(scrape(broker), "watch_session_count", watch_type="topic") == 0)
    eventually(lambda: of(scrape(broker), "consumer_count", consumer_state="disconnected") == 1)


def test_a_scalable_topic_has_one_series_whatever_its_segments(fresh, start_broker, tmp_path):
    """Two owners have its segments.  `metrics.segments` turns to series of each."""
    broker = fresh.broker
    fresh.set("PUT", "?numInitialSegments=4")
    fresh.publish(*(b"%d" % number for number in range(8)))
    fresh.set("PUT", "/subscriptions/sub")
    fresh.set("POST", "/split/0")
    labels = {"namespace": "public/default", "topic": fresh.name}
    eventually(lambda: value(scrape(broker), "pulsar_subscription_back_log", **labels, subscription="sub") == 8)
    found = scrape(broker)
    assert value(found, "pulsar_in_messages_total", **labels) == 8
    assert value(found, "pulsar_subscriptions_count", **labels) == 1
    assert {sample.labels["topic"] for name in ("pulsar_rate_in", STORAGE, "pulsar_subscription_back_log")
            for sample in found[name] if "topic" in sample.labels} == {fresh.name}
    assert total(found, "pulsar_broker_msg_backlog") == total(found, "pulsar_msg_backlog") == 8


def test_segments_have_series_where_that_is_asked_for(start_broker, tmp_path):
    (tmp_path / "geminga.toml").write_text("[metrics]\nsegments = true\n")
    rest = Rest(start_broker("--config", str(tmp_path / "geminga.toml")))
    rest.set("PUT", "?numInitialSegments=2")
    rest.publish(b"0", b"1")
    with Peer(rest.broker.service_url) as peer:
        segments = segments_of(rest.name, layout_of(peer, rest.name).dag)
    eventually(lambda: {sample.labels["topic"] for sample in scrape(rest.broker).get(STORAGE, ())
                        if "topic" in sample.labels} == set(segments))


# -- labels

def test_series_have_labels_of_properties_where_that_is_asked_for(start_broker, tmp_path):
    """As 5.0.1 has them: sorted, and none for a property that the topic lacks.

    The namespace's list of properties replaces the broker's.
    """
    (tmp_path / "broker.conf").write_text(
        "exposeCustomTopicMetricLabelsEnabled=true\nallowedTopicPropertyKeysForMetrics=team,area,topic\n")
    rest = Rest(start_broker("--config", str(tmp_path / "broker.conf")))
    url = f"{rest.broker.http_url}/admin/v2"
    for path, sent in (("persistent/public/default/plain", {"team": 'a"b', "area": "x y", "other": "z", "topic": "t"}),
                       ("persistent/public/default/half", {"team": "h"}), ("persistent/public/default/bare", {})):
        assert request("PUT", f"{url}/{path}", json.dumps(sent).encode())[0] == 204
        assert request("PUT", f"{url}/{path}/subscription/s")[0] == 204
    body = json.dumps({"partitions": 1, "properties": {"team": "p"}}).encode()
    assert request("PUT", f"{url}/persistent/public/default/parted/partitions", body)[0] == 204
    assert request("PUT", f"{url}/persistent/public/default/parted/subscription/s")[0] == 204
    rest.set("PUT", "", {"team": "s"})
    rest.set("PUT", "/subscriptions/s")

    def labels():
        found = {}
        for sample in scrape(rest.broker).get("pulsar_subscription_back_log", ()):
            more = {name: value for name, value in sample.labels.items()
                    if name not in ("cluster", "namespace", "topic", "subscription")}
            found[sample.labels.get("topic", "").rpartition("/")[2]] = more
        return found

    eventually(lambda: labels() == {
        "plain": {"area": "x y", "team": 'a"b'}, "half": {"team": "h"}, "bare": {},
        "parted-partition-0": {"team": "p"}, rest.local: {"team": "s"}})
    policy = f"{url}/namespaces/public/default/allowedTopicPropertyKeysForMetrics"
    for refused in (b'["a-b"]', b'["topic"]', b'["__name__"]', b'[""]'):
        assert request("POST", policy, refused)[0] == 400
    assert request("POST", policy, b'["other"]')[0] == 204
    assert labels()["plain"] == {"other": "z"} and labels()["half"] == {}
    assert request("POST", policy, b"[]")[0] == 204 and labels()["plain"] == {}
    assert request("DELETE", policy)[0] == 204 and labels()["half"] == {"team": "h"}


# -- counters of segments that go

SEGMENTS = [f"segment://a/b/t/{name}" for name in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2")]


def measured(**messages):
    """Return statistics of one owner.  messages: published to a topic, of which one subscription has got all."""
    rows, others = np.zeros((len(messages), len(TOPIC_COLUMNS))), np.zeros((len(messages), len(SUBSCRIPTION_COLUMNS)))
    rows[:, TOPIC_COLUMNS.index("messages_in")] = others[:, SUBSCRIPTION_COLUMNS.index("messages_out")] = list(
        messages.values())
    rows[:, TOPIC_COLUMNS.index("backlog_since_ms")] = range(len(messages))      # 0: it has none
    head = {"topics": list(messages), "subscriptions": [(number, "s") for number in range(len(messages))],
            "consumers": [(number, "s", f"c{number}", 1, 0) for number in range(len(messages))],
            **{name: [] for name in ("namespaces", "loaded", "producers", "replication", "inbound")}, "rolled_up": 0}
    return Measured(json.loads(json.dumps(head)), [
        rows, others, np.zeros((0, rows.shape[1])), *[np.zeros((0, others.shape[1]))] * 2])


def counted(whole, segments, *owners, topics=("topic://a/b/t",)):
    """Return (messages in, messages out) of the topic that is put together."""
    *_, found = whole.together([measured(**owner) for owner in owners], set(segments), set(topics))
    assert found.head["topics"] == ["topic://a/b/t"] and found.head["subscriptions"] == [(0, "s")]
    return (found.topics[0, TOPIC_COLUMNS.index("messages_in")],
            found.subscriptions[0, SUBSCRIPTION_COLUMNS.index("messages_out")])


def test_counters_of_a_topic_do_not_fall_when_its_segments_go():
    whole, (parent, first, second) = WholeTopics(), SEGMENTS
    assert counted(whole, SEGMENTS[:1], {parent: 100}) == (100, 100)
    assert counted(whole, SEGMENTS, {parent: 100, first: 1}, {second: 2}) == (103, 103)
    assert counted(whole, [first, second], {first: 5}, {second: 2}) == (107, 107)      # the parent was pruned
    assert counted(whole, [first, second], {first: 6}) == (108, 108)                   # an owner did not answer
    assert counted(whole, [first, second], {first: 6}, {second: 3}) == (109, 109)
    assert counted(whole, [first, second], {first: 0}, {second: 3}) == (103, 103)      # an owner was started again


def test_a_topic_that_is_created_anew_begins_at_zero():
    whole, (parent, *_) = WholeTopics(), SEGMENTS
    assert counted(whole, [parent], {parent: 100}) == (100, 100)
    assert whole.together([measured(**{SEGMENTS[0].replace("/t/", "/u/"): 1})], set(), {"topic://a/b/u"})
    assert counted(whole, [parent], {parent: 1}) == (1, 1)


def test_other_topics_are_left_as_they_are():
    """Rows, subscriptions and consumers of a table from which segments were taken still belong together."""
    plain = "persistent://a/b/p"
    owner, found = WholeTopics().together(
        [measured(**{SEGMENTS[1]: 1, plain: 7, SEGMENTS[2]: 2})], set(SEGMENTS), {"topic://a/b/t"})
    assert owner.head["topics"] == [plain]
    assert owner.topics[:, TOPIC_COLUMNS.index("messages_in")].tolist() == [7]
    assert owner.head["subscriptions"] == [(0, "s")] and owner.head["consumers"] == [(0, "s", "c1", 1, 0)]
    assert owner.subscriptions[:, SUBSCRIPTION_COLUMNS.index("messages_out")].tolist() == [7]
    assert [line[2] for line in found.head["consumers"]] == ["c0", "c2"]
    assert found.topics[0, TOPIC_COLUMNS.index("backlog_since_ms")] == 2
