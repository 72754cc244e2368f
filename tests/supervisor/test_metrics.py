"""/metrics, and the dashboards and alert rules that are shipped with it."""
import asyncio
import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from geminga.proto import pulsar_api_pb2 as api
from geminga.proto.errors import Refusal
from geminga.storage.runtime.counters import BOUNDS_S, make_counters
from geminga.supervisor.admin.monitoring.collector import Links, quantiles_ms
from geminga.supervisor.admin.monitoring.metrics import Metrics
from geminga.supervisor.admin.monitoring.topic_families import SUBSCRIPTION_FAMILIES, TOPIC_FAMILIES
from geminga.supervisor.configuration.config import load
from geminga.workers.process.main import begin_counters

from ..harness import eventually, request, unique_topic
from ..proto.client_frames import command
from ..storage.rig import Rig
from ..workers.peer import Peer, T

pytestmark = pytest.mark.slow

SHIPPED = Path(__file__).parents[2] / "systemd" / "prometheus"
STRANGE = 'a"b\\c'


def scrape(broker):
    """Return {name: [sample]}."""
    status, text = request("GET", broker.http_url + "/metrics")
    assert status == 200
    return samples(text)


def samples(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(found, name, **labels):
    """Return the value of the one sample with these labels, and perhaps others."""
    [sample] = [sample for sample in found[name] if labels.items() <= sample.labels.items()]
    return sample.value


def total(found, name):
    return sum(sample.value for sample in found.get(name, ()))


@pytest.fixture(scope="module")
def client(broker):
    made = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def test_a_topic_and_its_subscriptions_have_series(broker, client):
    """The series have Pulsar's labels, whatever characters the names have."""
    topic = unique_topic("series")
    consumers = [client.subscribe(topic, name, pulsar.ConsumerType.Shared) for name in ("plain", STRANGE)]
    producer = client.create_producer(topic)
    for _ in range(7):
        producer.send(b"x" * 100)
    for _ in range(3):
        consumers[0].acknowledge(consumers[0].receive())
    labels = {"cluster": "standalone", "namespace": "public/default", "topic": topic}
    eventually(lambda: value(scrape(broker), "pulsar_subscription_back_log", **labels, subscription="plain") == 4)
    found = scrape(broker)
    assert value(found, "pulsar_in_messages_total", **labels) == 7
    assert value(found, "pulsar_msg_backlog", **labels) == 11
    assert (
        value(found, "pulsar_producers_count", **labels) == 1 and value(found, "pulsar_consumers_count", **labels) == 2
    )
    assert value(found, "pulsar_subscription_back_log", **labels, subscription=STRANGE) == 7
    for name, prefix in {(family.name, family.prefix) for family in TOPIC_FAMILIES}:
        named = {prefix + key: label for key, label in labels.items()}
        assert named in [{key: sample.labels[key] for key in named} for sample in found[name]
                         if prefix + "topic" in sample.labels]
    for family in SUBSCRIPTION_FAMILIES:
        names = {sample.labels["subscription"] for sample in found.get(family.name, ())
                 if sample.labels.get("topic") == topic}
        assert names == (set() if family.only else {"plain", STRANGE}), family.name
    for one in (*consumers, producer):
        one.close()


def test_counters_of_the_broker_only_rise(broker, client):
    before = scrape(broker)
    producer = client.create_producer(unique_topic("counted"))
    for _ in range(5):
        producer.send(b"x")
    after = scrape(broker)
    assert total(after, "pulsar_broker_in_messages_total") >= total(before, "pulsar_broker_in_messages_total") + 5
    for name in ("publish", "sync", "answer"):
        counts = [total(found, f"geminga_{name}_seconds_count") for found in (before, after)]
        assert counts[1] > counts[0] and total(after, f"geminga_{name}_seconds_sum") > 0
    running, known = ({sample.labels["process"] for sample in after[name]}
                      for name in ("process_resident_memory_bytes", "geminga_passes_total"))
    assert running <= known and known - running <= {"web-0", "replicator-0"}      # which nobody may have needed yet
    producer.close()


# Families of Pulsar that do not exist here, or have other labels: the page of differences gives a reason for each.
ABSENT = ("pulsar_ml_", "pulsar_metadata_store_", "pulsar_web_executor_", "pulsar_resource_group_",
          "pulsar_broker_pending_bytes_to_dispatch", "pulsar_delayed_message_index_bucket_op_latency_ms",
          "pulsar_txn_tb_client_commit_", "pulsar_txn_tb_client_abort_", "pulsar_txn_tp_commit_latency",
          "pulsar_txn_tc_bufferedwriter_", "pulsar_txn_pending_ack_store_bufferedwriter_")
PRESENT_OF_THESE = {"pulsar_ml_cache_hits_rate", "pulsar_ml_cache_misses_rate"}
WITHOUT_NAMESPACE = "pulsar_schema_del_ops_latency", "pulsar_schema_get_ops_latency", "pulsar_schema_put_ops_latency"


def test_every_name_of_pulsars_metrics_is_there_with_its_labels_or_is_stated(broker, client):
    topic = unique_topic("names")
    consumer, producer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared), client.create_producer(topic)
    producer.send(b"x", partition_key="k")
    url = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/compaction"
    assert request("PUT", url) == (204, "")
    eventually(
        lambda: (
            topic in {sample.labels.get("topic") for sample in scrape(broker).get("pulsar_compaction_latency_le_1", ())}
        ),
    )
    found, page = scrape(broker), (SHIPPED.parents[1] / "docs" / "compatibility.md").read_text()
    lines = [line.split() for line in (Path(__file__).parent / "pulsar_metrics.txt").read_text().splitlines()
             if not line.startswith("#")]
    assert len(lines) > 200
    missing = []
    for name, labels in lines:
        if name.startswith(ABSENT) and name not in PRESENT_OF_THESE:
            assert name not in found, f"{name} is there: take it off the list"
            continue
        wanted = set(labels.split(",")) - ({"namespace"} if name.startswith(WITHOUT_NAMESPACE) else set())
        if not any(wanted <= sample.labels.keys() for sample in found.get(name, ())):
            missing.append((name, labels))
    assert missing == []
    assert [name for name in (*ABSENT, *PRESENT_OF_THESE, *WITHOUT_NAMESPACE) if name not in page] == []
    consumer.close()
    producer.close()


def test_every_metric_that_a_page_names_is_there_and_every_own_one_is_on_the_page(broker, client):
    """A name on a page is that of a sample or a family, or a prefix of some."""
    topic = unique_topic("pages")
    consumer, producer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared), client.create_producer(topic)
    producer.send(b"x")
    root = SHIPPED.parents[1]
    pages = [page for page in (*root.glob("docs/*.md"), *root.glob("systemd/runbook/*.md"))
             if page.name != "compatibility.md"]
    named = {name for page in pages for name in re.findall(r"\b(?:geminga|pulsar)_[a-z][a-z_]*", page.read_text())}
    named -= {"pulsar_api_pb", "pulsar_api", "pulsar_keys", "pulsar_client"}      # files and folders
    assert len(named) > 15
    _, text = request("GET", broker.http_url + "/metrics")
    known = re.findall(r"^(?:# HELP )?(\w+)", text, re.MULTILINE)
    assert {name for name in named if not any(one.startswith(name) for one in known)} == set()
    own = re.findall(r"^# HELP (geminga_\w+)", text, re.MULTILINE)
    assert len(own) > 40
    page = (root / "docs/monitoring.md").read_text()
    assert [name for name in own if f"`{name}`" not in page] == []
    consumer.close()
    producer.close()


def test_bytes_of_the_broker_are_told_apart_and_so_is_its_health(broker):
    """The message that a health check publishes counts for a system topic."""
    before = scrape(broker)
    assert request("GET", f"{broker.http_url}/admin/v2/brokers/health")[0] == 200
    after = scrape(broker)
    assert value(after, "pulsar_health", metric="broker_health") == 1
    assert risen(before, after, "pulsar_broker_in_bytes_total", system_topic="true") > 0
    assert risen(before, after, "pulsar_broker_in_bytes_total", system_topic="false") == 0


def test_what_is_done_to_files_of_delayed_messages_is_counted(rig):
    producer = rig.producer("t")
    rig.consumer("t", subType=1)
    soon = rig.now_ms + 350_000
    rig.run(rig.sends(*[(producer, b"x", {"deliver_at_time": at}) for at in (soon, soon - 1, soon + 3_000_000)]))
    schedule = rig.partition("t").schedule
    schedule.begin_flush(rig.now_ms)
    schedule.flush(rig.now_ms)

    def counts():
        return {(one.labels["type"], one.labels["state"]): one.value
                for one in told(rig)["pulsar_delayed_message_index_bucket_op_count"]}

    assert counts() == {("create", "all"): 2, ("create", "succeed"): 2, ("load", "all"): 0, ("load", "succeed"): 0,
                        ("load", "failed"): 0, ("delete", "all"): 0, ("delete", "succeed"): 0}
    rig.run(after_ms=400_000)
    assert counts()["load", "succeed"] == counts()["load", "all"] == 1
    for window in list(schedule.store.files.files):
        schedule.store.files.path(window).write_bytes(b"")
    rig.run(after_ms=3_600_000)
    after = counts()
    # the index was made anew
    assert after["load", "failed"] == 1 and after["load", "all"] == after["load", "succeed"] + 1


def risen(before, after, name, **labels):
    """Return by how much the one series of this name has grown."""
    return value(after, name, **labels) - value(before, name, **labels)


def test_lookups_and_topics_that_are_loaded_are_counted_with_how_long_they_took(broker, client):
    before = scrape(broker)
    topic = unique_topic("looked-up")
    client.create_producer(topic).close()
    status, _ = request("GET", f"{broker.http_url}/lookup/v2/topic/{topic.replace('://', '/')}")
    assert status == 200
    after = scrape(broker)
    assert risen(before, after, "pulsar_broker_lookup_answers_total") >= 2
    assert risen(before, after, "pulsar_broker_lookup_count") == risen(before, after,
                                                                       "pulsar_broker_lookup_answers_total")
    assert risen(before, after, "pulsar_topic_load_times_count") >= 1
    for name in ("pulsar_broker_lookup", "pulsar_topic_load_times"):
        assert value(after, name, quantile="0.5") <= value(after, name, quantile="0.99")
        assert value(after, f"{name}_sum") > 0
    assert (
        value(after, "pulsar_broker_lookup_pending_requests")
        == value(after, "pulsar_broker_topic_load_pending_requests")
        == 0
    )


def test_lookups_that_fail_are_counted_and_are_no_answers(broker):
    before = scrape(broker)
    with Peer(broker.service_url) as peer:
        answer = peer.ask(T.LOOKUP, topic="persistent://nobody/nowhere/t", request_id=1)
        assert answer.lookupTopicResponse.response == api.CommandLookupTopicResponse.Failed
    assert request("GET", f"{broker.http_url}/lookup/v2/topic/persistent/nobody/nowhere/t")[0] == 404
    after = scrape(broker)
    assert risen(before, after, "pulsar_broker_lookup_failures_total") == 2
    assert risen(before, after, "pulsar_broker_lookup_answers_total") == 0 == risen(before, after,
                                                                                    "pulsar_broker_lookup_count")


def test_connections_that_a_rate_keeps_waiting_are_counted_while_they_wait(broker):
    topic = unique_topic("throttled")
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic)
    rate = json.dumps({"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}).encode()
    assert request("POST", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/publishRate", rate)[0] == 204
    for _ in range(1_000):
        producer.send_async(b"x", lambda *_: None)
    eventually(lambda: value(scrape(broker), "pulsar_broker_throttled_connections") == 1)
    assert request("DELETE", f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/publishRate")[0] == 204
    eventually(lambda: value(scrape(broker), "pulsar_broker_throttled_connections") == 0)
    client.close()


def test_what_a_worker_had_open_ended_with_it():
    [counters] = make_counters(1)
    counters.add("connections_opened", 5)
    counters.add("connections_closed", 3)
    counters.set("connections_throttled", 1)
    begin_counters(counters)
    found = counters.read()
    assert (found["connections_opened"], found["connections_closed"], found["connections_throttled"]) == (5, 5, 0)


def test_schemas_are_counted(broker):
    """Reading, adding and deleting schemas is counted, and checks of compatibility by their outcome."""
    def schema(*fields):
        text = {"type": "record", "name": "R",
                "fields": [{"name": name, "type": "int", "default": 0} for name in fields]}
        return json.dumps({"type": "AVRO", "schema": json.dumps(text), "properties": {}}).encode()

    path = f"{broker.http_url}/admin/v2/schemas/public/default/{unique_topic('counted').rpartition('/')[2]}/schema"
    enum = json.dumps({"type": "AVRO", "schema": '{"type": "enum", "name": "R", "symbols": ["A"]}',
                       "properties": {}}).encode()
    before = scrape(broker)
    invalid = json.dumps({"type": "AVRO", "schema": '{"type": "record"}', "properties": {}}).encode()
    statuses = [request(method, path, body)[0] for method, body in (
        ("POST", schema("a")), ("POST", schema("a", "b")), ("POST", enum), ("POST", invalid), ("GET", None),
        ("DELETE", None))]
    assert statuses == [200, 200, 409, 422, 200, 200]
    after = scrape(broker)
    told = {name: risen(before, after, f"pulsar_schema_{name}") for name in (
        "put_ops_latency_count", "compatible_total", "incompatible_total", "put_ops_failed_total",
        "get_ops_latency_count", "del_ops_latency_count")}
    assert told == {"put_ops_latency_count": 2, "compatible_total": 1, "incompatible_total": 1,
                    "put_ops_failed_total": 2, "get_ops_latency_count": 1, "del_ops_latency_count": 1}


def test_schemas_that_producers_are_refused_with_are_counted(broker):
    topic = unique_topic("refused")
    fields = [{"name": "a", "type": "int"}]
    before = scrape(broker)
    with Peer(broker.service_url) as peer:
        for number, text in enumerate((json.dumps({"type": "record", "name": "R", "fields": fields}),
                                       '{"type": "enum", "name": "R", "symbols": ["A"]}', '{"type": "record"}')):
            peer.say(command(T.PRODUCER, topic=topic, producer_id=number, request_id=number,
                             schema={"name": "s", "type": api.Schema.Avro, "schema_data": text.encode()}))
            assert (peer.hear().type == T.PRODUCER_SUCCESS) == (number == 0)
    after = scrape(broker)
    assert risen(before, after, "pulsar_schema_put_ops_failed_total") == 2
    assert risen(before, after, "pulsar_schema_incompatible_total") == 1


def test_every_family_is_told_once_and_has_a_type(broker):
    """No family comes in two pieces, and no series comes twice."""
    _, text = request("GET", broker.http_url + "/metrics/")
    types = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(types) == len(set(types))
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


# -- of an owner in this process

class Asked:
    """The owners that Metrics asks: one that answers, or one that does not."""

    count = 1

    def __init__(self, rig, *, answers=True):
        self._rig, self._answers = rig, answers

    async def ask_owner(self, index, question):
        if not self._answers:
            raise Refusal(api.ServiceNotReady, "The owner is being started; try again")
        return self._rig.owner.questions.functions[type(question)](question)


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    made.counters.set("pid", os.getpid())
    for number in range(5):
        producer = made.producer(f"t{number}", producer_name=f"p{number}")
        made.consumer(f"t{number}", consumer_name=f"c{number}")
        made.publish(producer, *[b"x"] * (number + 1))
    yield made
    made.close()


def told(rig, *, answers=True, **environment):
    config, _ = load(None, environment, {})
    return samples(
        asyncio.run(Metrics(config, {("owner", 0): rig.counters}, Asked(rig, answers=answers)).text()).decode()
    )


def test_beyond_the_bound_topics_are_summed_up_by_namespace(rig):
    """Sums over all series are the same as without the bound."""
    found = told(rig, GEMINGA_METRICS_TOPICS_MAX="2")
    for name in ("pulsar_in_messages_total", "pulsar_msg_backlog", "pulsar_subscription_back_log"):
        assert total(found, name) == 15
    assert {sample.labels["topic"][-1] for sample in found["pulsar_in_messages_total"] if "topic" in sample.labels} == {
        "3",
        "4",
    }
    assert (
        value(found, "geminga_series_rolled_up", of="topics")
        == value(found, "geminga_series_rolled_up", of="subscriptions")
        == 3
    )
    assert value(found, "pulsar_topics_count", namespace="public/default") == 5


def test_consumers_and_producers_have_series_where_that_is_asked_for(rig):
    assert "pulsar_consumer_available_permits" not in told(rig)
    rig.run(rig.flow(rig.consumer("t0", "twice", subType=1, consumer_name="same"), 3))
    rig.run(rig.flow(rig.consumer("t0", "twice", subType=1, consumer_name="same"), 4))
    found = told(rig, GEMINGA_METRICS_CONSUMERS="true", PULSAR_PREFIX_exposeProducerLevelMetricsInPrometheus="true")
    permits = {sample.labels["consumer_name"]: sample.value for sample in found["pulsar_consumer_available_permits"]}
    assert permits.keys() == {*(f"c{number}" for number in range(5)), "same"}
    assert {sample.labels["producer_name"] for sample in found["pulsar_producer_msg_rate_in"]} == {
        f"p{number}" for number in range(5)
    }


def test_replicators_have_series_by_cluster_and_are_no_producers(rig):
    assert "pulsar_replication_rate_in" not in told(rig)
    producer = rig.producer("t0", producer_name="pulsar.repl.far-->here")
    rig.publish(producer, *[b"x"] * 30)
    rig.run(after_ms=61_000)
    rig.run(after_ms=1_000)
    found = told(rig, PULSAR_PREFIX_exposeProducerLevelMetricsInPrometheus="true")
    labels = {"topic": "persistent://public/default/t0", "remote_cluster": "far"}
    assert value(found, "pulsar_replication_rate_in", **labels) > 0
    assert value(found, "pulsar_replication_throughput_in", **labels) > 0
    assert value(found, "pulsar_producers_count", topic=labels["topic"]) == 1
    assert "pulsar.repl.far-->here" not in {
        sample.labels["producer_name"] for sample in found["pulsar_producer_msg_rate_in"]}


def test_what_waits_of_each_priority_is_told_where_the_policy_says_so(rig):
    """Other topics have no such series, and those beyond the bound of topics are summed up by namespace."""
    name = "geminga_subscription_waiting"
    rig.owner.catalogue.policies.set("persistent://public/default/t1", "messagePriority", {"active": True})
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope="persistent://public/default/t1"))
    consumer = rig.consumer("t1", "jobs", subType=1)
    producer = rig.producer("t1", producer_name="urgent")
    for priority in ("9", "9", "2"):
        rig.run(rig.sends((producer, b"x", {"properties": [{"key": "geminga.priority", "value": priority}]})))
    before = total(told(rig), name)
    assert before == 3 + value(told(rig), name, subscription="jobs", priority="4")
    rig.run(rig.flow(consumer, 1))
    found = told(rig)
    assert {sample.labels["subscription"] for sample in found[name]} == {"jobs"}
    assert [value(found, name, subscription="jobs", priority=str(each)) for each in (9, 2, 0)] == [1, 1, 0]
    assert total(told(rig, GEMINGA_METRICS_TOPICS_MAX="1"), name) == total(found, name) == before - 1


def test_messages_whose_time_has_not_come_are_told(rig):
    """Delayed messages are told for each subscription, and the memory of the index that these share."""
    rig.run(rig.flow(rig.consumer("t0", "waits", subType=1), 9), rig.flow(rig.consumer("t0", "too", subType=3), 9))
    producer = rig.producer("t0", producer_name="later")
    rig.run(rig.sends(*[(producer, b"x", {"deliver_at_time": rig.now_ms + ms}) for ms in (60_000, 30_000, 10 ** 9)]))
    found = told(rig)
    waiting = {sample.labels["subscription"]: sample.value for sample in found["pulsar_subscription_delayed"]
               if sample.value}
    assert waiting == {"waits": 3, "too": 3}
    assert total(found, "geminga_delayed_entries") == total(found, "pulsar_delayed_message_index_loaded") == 3
    memory = total(found, "pulsar_delayed_message_index_size_bytes")
    assert memory > 0 and total(found, "pulsar_subscription_delayed_message_index_size_bytes") == 2 * memory
    assert [
        total(found, f"pulsar_delayed_message_index_bucket_{name}") for name in ("total", "snapshot_size_bytes")
    ] == [0, 0]
    stats = rig.shown("stats", "t0", earliest=False, publishers=False, consumers=False)
    assert (
        stats["delayedMessageIndexSizeInBytes"]
        == stats["subscriptions"]["waits"]["delayedMessageIndexSizeInBytes"]
        == memory
    )
    rig.run(rig.question("unload", "t0"))        # after an unload the index is in files only
    rig.close_consumer(rig.consumer("t0", "waits", subType=1))
    found = told(rig)
    assert (
        total(found, "pulsar_delayed_message_index_bucket_total") == 2 and total(found, "geminga_delayed_entries") == 3
    )
    assert total(found, "pulsar_delayed_message_index_bucket_snapshot_size_bytes") > 0
    rig.run(after_ms=10 ** 9)
    assert total(told(rig), "geminga_delayed_entries") == total(told(rig), "pulsar_subscription_delayed") == 0


def test_without_topics_there_are_namespaces(rig):
    found = told(rig, PULSAR_PREFIX_exposeTopicLevelMetricsInPrometheus="false")
    [sample] = found["pulsar_msg_backlog"]
    assert sample.labels == {"cluster": "standalone", "namespace": "public/default", "remote_cluster": "local"}
    assert sample.value == total(found, "pulsar_in_messages_total") == 15


def test_an_owner_that_does_not_answer_is_told(rig):
    """The values of all other processes are there."""
    found = told(rig, answers=False)
    assert value(found, "geminga_owner_measured", process="owner-0") == 0 and "pulsar_msg_backlog" not in found
    assert value(told(rig), "geminga_owner_measured", process="owner-0") == 1
    assert total(found, "pulsar_broker_in_messages_total") == 15


def test_quantiles_lie_where_most_entries_do():
    """A quantile lies between the bounds of its bucket."""
    counts = np.zeros(len(BOUNDS_S) + 1, np.int64)
    assert set(quantiles_ms(counts)) == {0}
    counts[[2, 5]] = 90, 10      # 0.5 to 1 ms, and 5 to 10 ms
    assert quantiles_ms(counts) == pytest.approx([0.5, 0.5 + 0.5 * 50 / 90, 0.5 + 0.5 * 75 / 90, 7.5, 9.5, 9.95, 9.995,
                                                  10])


def test_quantiles_are_of_a_minute_at_least(rig, monkeypatch):
    """However often somebody asks, a quantile covers at least what came since the newest look that is a minute old."""
    config, _ = load(None, {}, {})
    metrics, clock, counted = Metrics(config, {("owner", 0): rig.counters}, Asked(rig, answers=True)), [0.0], []
    monkeypatch.setattr("geminga.supervisor.admin.monitoring.collector.time",
                        SimpleNamespace(monotonic=lambda: clock[0]))
    for clock[0] in (0.0, 30.0, 59.0, 61.0, 100.0):
        rig.counters.observe("lookup", 0.001)
        seconds, counts, spent = metrics.collector.lately("lookup")
        counted.append((seconds, int(counts.sum()), round(spent, 3)))
    assert counted == [(0, 0, 0), (30, 1, 0.001), (59, 2, 0.002), (61, 3, 0.003), (70, 3, 0.003)]


def test_names_of_several_lines_stay_on_one(rig):
    rig.consumer("t0", "a\nb")
    assert "a\nb" in {one.labels["subscription"] for one in told(rig)["pulsar_subscription_back_log"]}


def test_the_last_look_at_the_brokers_health_is_told(rig):
    values = []
    for ended in (0, 1, 2):
        rig.counters.set("health", ended)
        values.append(told(rig)["pulsar_health"][0].value)
    assert values == [-1, 1, 0]


def test_small_rates_and_topics_without_a_backlog_are_told_as_they_are(rig):
    rig.run(after_ms=61_000)
    rig.run(after_ms=61_000)
    consumer = rig.consumer("t0", "quick")
    rig.run(rig.acks(consumer, *[position for position, _ in rig.receive(consumer)]))
    rig.run(rig.command("unsubscribe", consumer_id=2, request_id=9))
    rig.publish(rig.producer("t4"), *[b"x"] * 30)
    rig.run(after_ms=60_000)
    found = told(rig)
    rates = {one.labels["topic"].rpartition("/")[2]: one.value for one in found["pulsar_rate_in"]}
    assert 0 < rates["t4"] < 1 and rates["t1"] == 0
    ages = {one.labels["topic"].rpartition("/")[2]: one.value for one in found["pulsar_storage_backlog_age_seconds"]}
    assert ages["t0"] == -1 and ages["t1"] > 100


def test_the_network_s_use_is_of_links_that_say_how_fast_they_are(monkeypatch):
    """The use is that between two scrapes; links without a speed have no series."""
    def links(speed, received):
        link = SimpleNamespace(isup=True, speed=speed)
        monkeypatch.setattr(psutil, "net_if_stats", lambda: {"lo": SimpleNamespace(isup=True, speed=0), "eth0": link})
        monkeypatch.setattr(psutil, "net_io_counters",
                            lambda pernic: {"eth0": SimpleNamespace(bytes_recv=received, bytes_sent=0)})

    clock = iter((10.0, 12.0, 13.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    used = Links()
    links(1_000, 0)
    assert used.used() == {}
    links(1_000, 25_000_000)
    assert used.used() == {"in": pytest.approx(10), "out": 0}
    links(0, 30_000_000)
    assert used.used() == {}


# -- dashboards and rules

def names_in(text):
    """Return the names of metrics in an expression or a query."""
    # labels begin like metrics
    return set(re.findall(r"\b(?:pulsar|geminga|process)_\w+", text)) - {"pulsar_cluster", "pulsar_namespace",
                                                                         "pulsar_topic"}


def shipped():
    for path in sorted(SHIPPED.iterdir()):
        if path.suffix == ".json":
            document = json.loads(path.read_text())
            texts = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
            texts += [variable["query"] for variable in document["templating"]["list"]]
        else:
            texts = re.findall(r"^ +expr: (.*(?:\n {10,}.*)*)", path.read_text(), re.MULTILINE)
        yield pytest.param(texts, id=path.name)


@pytest.mark.parametrize("texts", list(shipped()))
def test_dashboards_and_rules_name_what_there_is(broker, client, texts):
    """Every metric in dashboards and rules is one that /metrics has."""
    _, text = request("GET", broker.http_url + "/metrics")
    told = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) | set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE))
    asked = set().union(*map(names_in, texts))
    assert asked and asked <= told
