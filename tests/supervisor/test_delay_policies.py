"""Delay policies over REST, on the command line and in metrics, on a broker of several workers and owners.

The names begin with the rows that they hold; what the policies do is in tests/storage/test_delay_policies.py.
"""
import json
import time
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from geminga.proto import pulsar_api_pb2 as api
from geminga.supervisor.main import main

from ..harness import Broker, request, unique_topic
from ..proto.client_frames import T, command, entry_of, message_metadata, send
from ..workers.peer import Peer

HOUR_MS = 3_600_000
NOTHING = {"active": True, "tickTime": 1_000, "maxDeliveryDelayInMillis": 0}
RULES = Path(__file__).parents[2] / "systemd" / "prometheus" / "geminga.rules.yml"


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A broker of three workers and two owners."""
    made = Broker(tmp_path_factory.mktemp("several") / "data", "--workers", "3", "--owners", "2")
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def place(several):
    """(a namespace of the test's own, a topic in it)"""
    namespace = f"public/{unique_topic('ns').rpartition('/')[2]}"
    assert request("PUT", f"{several.http_url}/admin/v2/namespaces/{namespace}")[0] == 204
    topic = f"persistent://{namespace}/orders"
    assert request("PUT", f"{several.http_url}/admin/v2/{topic.replace('://', '/')}")[0] == 204
    return namespace, topic


@pytest.fixture
def run(several, capsys):
    """run(words...): exit status, standard output, lines of complaint."""
    def run(*words):
        status = main(["admin", "--admin-url", several.http_url, *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err.splitlines()
    return run


@pytest.fixture
def connect():
    """connect(broker, topic): a producer."""
    with ExitStack() as open_ones:
        yield lambda broker, topic: open_ones.enter_context(closing(Producer(broker, topic)))


class Delays:
    """The policy of a namespace or topic over HTTP."""

    def __init__(self, broker, name):
        path = name.replace("://", "/") if "://" in name else f"namespaces/{name}"
        self.url = f"{broker.http_url}/admin/v2/{path}/delayedDelivery"

    def get(self, query=""):
        status, text = request("GET", self.url + query)
        assert status == 200
        return json.loads(text) if text else None

    def post(self, **fields):
        return request("POST", self.url, json.dumps(fields).encode())

    def delete(self):
        return request("DELETE", self.url)


class Producer:
    """A producer on a connection of its own, which any worker may have accepted."""

    def __init__(self, broker, topic):
        self._peer, self._sent = Peer(broker.service_url), 0
        try:
            self._peer.open_producer(topic)
        except BaseException:
            self.close()
            raise

    def send(self, ms=0):
        """Publish a message with this delay; return "stored", or the error's text."""
        self._sent += 1
        now_ms = int(time.time() * 1_000)
        asked = {"deliver_at_time": now_ms + ms} if ms else {}
        entry = entry_of(message_metadata(sequence_id=self._sent, publish_time=now_ms, **asked))
        self._peer.say(send(entry, sequence_id=self._sent))
        answer = self._peer.hear()
        if answer.type == T.SEND_RECEIPT:
            return "stored"
        assert answer.send_error.error == api.NotAllowedError
        return answer.send_error.message

    def close(self):
        self._peer.socket.close()


def delays_of(broker, topic):
    """Return for each message of the topic how long after its publication a consumer is told to get it."""
    with Peer(broker.service_url) as peer:
        peer.subscribe(topic, unique_topic("reader").rpartition("/")[2])
        peer.say(command(T.FLOW, consumer_id=1, messagePermits=1_000))
        status, text = request("GET", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/internalStats")
        assert status == 200
        found = []
        for _ in range(json.loads(text)["numberOfEntries"]):
            _, entry = peer.hear_frame()
            metadata = api.MessageMetadata.FromString(entry[10:10 + int.from_bytes(entry[6:10], "big")])
            found.append(metadata.deliver_at_time - metadata.publish_time if metadata.deliver_at_time else 0)
        return found


def exceeds(ms):
    return f"Exceeds max allowed delivery delay of {ms} milliseconds"


# -- REST

def test_f181_f187_to_f190_the_fields_are_set_and_shown_at_both_levels(several, place):
    """The two fields that Pulsar does not have are shown only if they are configured."""
    assert len(place) == 2
    for name in place:
        delays = Delays(several, name)
        assert delays.get() is None
        assert delays.post(**NOTHING) == (204, "")
        assert delays.get() == NOTHING
        whole = NOTHING | {"maxDeliveryDelayInMillis": 5, "fixedDeliveryDelayInMillis": 60_000,
                           "timePartitionGranularityInMillis": 600_000}
        assert delays.post(**whole) == (204, "") and delays.get() == whole
        assert delays.post(**NOTHING, fixedDeliveryDelayInMillis=0) == (204, "")
        assert delays.get() == NOTHING | {"fixedDeliveryDelayInMillis": 0}
        # a fixed delay implies that delayed delivery is active
        assert delays.post(fixedDeliveryDelayInMillis=5) == (204, "")
        assert delays.get() == {"active": True, "tickTime": 0, "maxDeliveryDelayInMillis": 0,
                                "fixedDeliveryDelayInMillis": 5}
        assert delays.delete() == (204, "") and delays.get() is None


def test_f185_f200_what_holds_is_shown_with_what_is_left_open(several, place):
    namespace, topic = (Delays(several, name) for name in place)
    broker = NOTHING | {"fixedDeliveryDelayInMillis": 0, "timePartitionGranularityInMillis": 300_000}
    assert topic.get("?applied=true") == broker
    namespace.post(**NOTHING | {"tickTime": 500}, fixedDeliveryDelayInMillis=7_000)
    assert topic.get("?applied=true") == broker | {"tickTime": 500, "fixedDeliveryDelayInMillis": 7_000}
    topic.post(active=True, maxDeliveryDelayInMillis=9)
    assert topic.get("?applied=true") == broker | {
        "tickTime": 500, "fixedDeliveryDelayInMillis": 7_000, "maxDeliveryDelayInMillis": 9}
    topic.post(active=True, fixedDeliveryDelayInMillis=0)
    assert topic.get("?applied=true")["fixedDeliveryDelayInMillis"] == 0


@pytest.mark.parametrize(("fields", "reason"), [
    ({"fixedDeliveryDelayInMillis": -1}, "fixedDeliveryDelayInMillis must be 0 or more"),
    ({"fixedDeliveryDelayInMillis": 1 << 60}, "fixedDeliveryDelayInMillis must be 3153600000000 or less"),
    ({"maxDeliveryDelayInMillis": -1}, "maxDeliveryDelayInMillis must be 0 or more"),
    ({"maxDeliveryDelayInMillis": (1 << 63) - 1}, "maxDeliveryDelayInMillis must be 3153600000000 or less"),
    ({"tickTime": -1}, "tickTime must be 0 or more"),
    ({"tickTime": 86_400_001}, "tickTime must be 86400000 or less"),
    ({"timePartitionGranularityInMillis": 999}, "timePartitionGranularityInMillis must be 1000 or more"),
    ({"timePartitionGranularityInMillis": 0}, "timePartitionGranularityInMillis must be 1000 or more"),
    ({"timePartitionGranularityInMillis": 1 << 40}, "timePartitionGranularityInMillis must be 2419200000 or less"),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_what_makes_no_sense_is_refused(several, place, fields, reason):
    assert len(place) == 2
    for name in place:
        delays = Delays(several, name)
        assert delays.post(**NOTHING | fields) == (412, json.dumps({"reason": reason}))
        for wrong in ("x", 1 << 70, [], {}, 1.5, True):
            assert delays.post(**NOTHING | dict.fromkeys(fields, wrong))[0] == 400
        assert delays.get() is None


# -- command line

def test_f191_a_fixed_delay_is_set_alone_or_next_to_the_other_options(several, place, run):
    for group, name in zip(("namespaces", "topicPolicies"), place, strict=True):
        delays = Delays(several, name)
        for words, found in ((["-fd", "10s"], NOTHING | {"fixedDeliveryDelayInMillis": 10_000}),
                             (["--fixed-delay", "1h", "-e", "-t", "2s", "-md", "3h"],
                              {"active": True, "tickTime": 2_000, "maxDeliveryDelayInMillis": 3 * HOUR_MS,
                               "fixedDeliveryDelayInMillis": HOUR_MS}),
                             (["-fd", "0"], NOTHING | {"fixedDeliveryDelayInMillis": 0}),
                             (["-d", "-fd", "5s"], NOTHING | {"active": False, "fixedDeliveryDelayInMillis": 5_000}),
                             (["-e", "-p", "2w"], NOTHING | {"timePartitionGranularityInMillis": 14 * 24 * HOUR_MS}),
                             (["-e"], NOTHING)):
            assert run(group, "set-delayed-delivery", name, *words) == (0, "", [])
            assert delays.get() == found
        # neither --enable nor --disable is given
        assert run(group, "set-delayed-delivery", name, "-t", "2s")[0] == 2
        assert run(group, "set-delayed-delivery", name, "-e", "-d", "-fd", "1s")[0] == 2
        assert run(group, "set-delayed-delivery", name, "-fd", "-1s")[0] in (1, 2)
        assert run(group, "set-delayed-delivery", name, "-fd", "soon")[0] == 2
        assert delays.get() == NOTHING
        status, printed, _ = run(group, "get-delayed-delivery", name, "-o", "json")
        assert status == 0 and json.loads(printed) == NOTHING
        assert run(group, "remove-delayed-delivery", name)[0] == 0 and delays.get() is None


def test_f166_f167_x23_pip_26s_verbs_set_the_wheel_and_leave_the_rest(several, place, run):
    for group, name in zip(("namespaces", "topicPolicies"), place, strict=True):
        delays = Delays(several, name)
        assert run(group, "enable-delayed-message", name) == (0, "", [])
        assert delays.get() == NOTHING | {"timePartitionGranularityInMillis": 300_000}
        for granularity, ms in (("30s", 30_000), ("1h", HOUR_MS), ("3d", 72 * HOUR_MS), ("2w", 14 * 24 * HOUR_MS),
                                ("5m", 300_000)):
            for tick, tick_ms in (("500ms", 500), ("1s", 1_000), ("5m", 300_000)):
                assert run(group, "enable-delayed-message", name, "-p", granularity, "-t", tick)[0] == 0
                assert delays.get() == NOTHING | {"timePartitionGranularityInMillis": ms, "tickTime": tick_ms}
        delays.post(active=False, tickTime=7, maxDeliveryDelayInMillis=8, fixedDeliveryDelayInMillis=9)
        assert run(group, "enable-delayed-message", name, "--time-partition-granularity", "1h")[0] == 0
        found = {"tickTime": 7, "maxDeliveryDelayInMillis": 8, "fixedDeliveryDelayInMillis": 9,
                 "timePartitionGranularityInMillis": HOUR_MS}
        assert delays.get() == found | {"active": True}
        assert run(group, "disable-delayed-message", name)[0] == 0
        assert delays.get() == found | {"active": False}
        assert run(group, "enable-delayed-message", name)[0] == 0
        assert delays.get() == found | {"active": True, "tickTime": 1_000, "timePartitionGranularityInMillis": 300_000}
        assert run(group, "enable-delayed-message", name, "-p", "10ms")[0] == 1
        delays.delete()
        assert run(group, "disable-delayed-message", name)[0] == 0
        assert delays.get()["active"] is False


def test_f197_what_is_lost_by_a_downgrade_is_listed(several, place, run):
    namespace, topic = place
    Delays(several, namespace).post(fixedDeliveryDelayInMillis=60_000)
    Delays(several, topic).post(active=True, timePartitionGranularityInMillis=60_000)
    status, printed, _ = run("brokers", "downgrade-check", "-o", "json")
    found = {row.pop("of"): row for row in json.loads(printed)}
    assert status == 0
    assert found[namespace] == {"fixedDeliveryDelayInMillis": 60_000} and found[topic] == {
        "timePartitionGranularityInMillis": 60_000
    }
    assert run("namespaces", "set-delayed-delivery", namespace, "-fd", "0")[0] == 0
    assert run("topicPolicies", "remove-delayed-delivery", topic)[0] == 0
    _, printed, _ = run("brokers", "downgrade-check", "-o", "json")
    assert not {namespace, topic} & {row["of"] for row in json.loads(printed)}


# -- in force

def test_f198_what_is_set_binds_every_worker_and_owner_before_it_is_answered(several, place, connect):
    """A dozen producers of topics at both owners, on connections of all workers, obey from the next SEND on."""
    namespace, _ = place
    topics = [f"persistent://{namespace}/t{number}" for number in range(4)]
    producers = [(connect(several, topic), topic) for topic in topics * 3]
    delays, expected = Delays(several, namespace), []
    for ms in (1_000, 0, 60_000, 2 * HOUR_MS, 5_000):
        assert delays.post(**NOTHING | {"maxDeliveryDelayInMillis": ms})[0] == 204
        assert {producer.send(HOUR_MS) for producer, _ in producers} == ({exceeds(ms)} if 0 < ms < HOUR_MS
                                                                         else {"stored"})
        expected += [HOUR_MS] * 3 * (not 0 < ms < HOUR_MS)
        fixed = delays.post(**NOTHING, fixedDeliveryDelayInMillis=ms + 10 * HOUR_MS)
        assert fixed[0] == 204 and {producer.send() for producer, _ in producers} == {"stored"}
        expected += [ms + 10 * HOUR_MS] * 3
    for topic in topics:
        found = delays_of(several, topic)
        assert len(found) == len(expected)
        # Earlier messages with a longer delay do not hold later ones up; within one delay the times ascend.
        assert all(0 <= got - wanted <= 60_000 for got, wanted in zip(found, expected, strict=True))


def test_f200_the_brokers_maximum_may_be_set_while_it_runs(several, place, run, connect):
    producer = connect(several, place[1])
    name = "delayedDeliveryMaxDelayInMillis"
    assert run("brokers", "update-dynamic-config", "-c", name, "-v", "1000")[0] == 0
    try:
        assert producer.send(HOUR_MS) == exceeds(1_000) and producer.send(500) == "stored"
        Delays(several, place[0]).post(**NOTHING | {"maxDeliveryDelayInMillis": 2_000})
        assert producer.send(HOUR_MS) == exceeds(2_000)
    finally:
        assert run("brokers", "delete-dynamic-config", "-c", name)[0] == 0
    Delays(several, place[0]).delete()
    assert producer.send(HOUR_MS) == "stored"


def test_f186_who_peeks_sees_the_new_time(several, place, run, connect):
    topic = place[1]
    assert request("PUT", f"{several.http_url}/admin/v2/{topic.replace('://', '/')}/subscription/sub")[0] == 204
    Delays(several, topic).post(fixedDeliveryDelayInMillis=HOUR_MS)
    producer = connect(several, topic)
    assert producer.send(5_000) == "stored"
    status, printed, _ = run("-o", "json", "topics", "peek-messages", topic, "-s", "sub", "-n", "1")
    message = json.loads(printed)
    published, delivered = (datetime.fromisoformat(message[name]) for name in ("publishTime", "deliverAt"))
    assert status == 0 and delivered - published == timedelta(hours=1)


def test_f192_f193_counters_have_the_labels_of_the_proposal(several, place, connect):
    namespace, topic = place
    producer, delays = connect(several, topic), Delays(several, topic)
    delays.post(**NOTHING | {"maxDeliveryDelayInMillis": 1_000})
    assert [producer.send(HOUR_MS) for _ in range(3)] == [exceeds(1_000)] * 3
    delays.post(**NOTHING, fixedDeliveryDelayInMillis=1_000)
    assert [producer.send(ms) for ms in (HOUR_MS, 0, 1, 0)] == ["stored"] * 4
    labels = {"pulsar_cluster": "standalone", "pulsar_namespace": namespace, "pulsar_topic": topic}

    def counted():
        text = request("GET", several.http_url + "/metrics")[1]
        return [sample.value for family in text_string_to_metric_families(text) for sample in family.samples
                if sample.name in ("pulsar_broker_topic_messages_delayed_rejected_total",
                                   "pulsar_broker_topic_messages_fixed_delay_overridden_total")
                and sample.labels == labels]

    assert counted() == [3, 2]


@pytest.mark.slow
def test_f194_alert_rules_watch_both_counters():
    expressions = [line for line in RULES.read_text().splitlines() if " expr: " in line]
    for name in ("pulsar_broker_topic_messages_delayed_rejected_total",
                 "pulsar_broker_topic_messages_fixed_delay_overridden_total"):
        assert sum(name in line for line in expressions) == 1
