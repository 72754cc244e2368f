"""Replication cursors: what is published to a replicated topic waits for each other cluster, whatever happens."""
import json
from dataclasses import replace

import pytest

from geminga.proto import envelope, names
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.policies import CLUSTERS, policies_of
from geminga.storage.catalogue.policy_declaration import read
from geminga.storage.catalogue.policy_table import TABLE
from geminga.storage.errors import StorageFull

from .rig import Rig

TOPIC, OTHER = "persistent://public/default/t", "persistent://public/default/other"
BOTH, SECOND = ["far", "standalone"], 1_000
REPLICATOR = 77              # the connection of the replicator
ASKED = {"earliest": False, "publishers": False, "consumers": False}      # fields of a question for statistics
SHARED = api.CommandSubscribe.SubType.Value("Shared")


def known(rig, *clusters):
    """Store records of other clusters."""
    for name in clusters:
        rig.owner.catalogue.policies.set(CLUSTERS, name, {"brokerServiceUrl": f"pulsar://{name}:6650"})
    rig.owner.catalogue.commit()


def set_policy(rig, name, value, scope="public/default", *before):
    """Set a policy as administration does; return the answers of the pass.  before: sections of the same envelope."""
    rig.owner.catalogue.policies.set(scope, name, value and read(TABLE[name], value))
    rig.owner.catalogue.commit()
    return rig.run(*before, rig.tell("policies", scope=scope))


def replicated(rigs, **options) -> Rig:
    """Start an owner whose default namespace is replicated to the cluster `far`."""
    rig = rigs(**options)
    known(rig, "far")
    set_policy(rig, "replicationClusters", BOTH)
    return rig


def is_replicator(rig, connection=REPLICATOR):
    """Have a connection be the broker's own replicator."""
    about = {"address": "/local", "version": names.REPLICATOR, "partial": False, "positions": False, "superuser": True,
             "replicator": True, "role": "geminga", "connected_ms": 0}
    rig.run(rig.happened(envelope.INTRODUCED, connection=connection, data=json.dumps(about).encode()))


def reader(rig, topic="t", remote="far", connection=REPLICATOR):
    """Attach the replicator to a cursor."""
    is_replicator(rig, connection)
    return rig.consumer(topic, names.replication_cursor(remote), connection=connection)


def left(rig, topic="t", remote="far"):
    """Return the payloads that the other cluster does not have yet, as the replicator gets them."""
    return [payload for _, payload in rig.receive(reader(rig, topic, remote))]


def cursors(rig, topic="t"):
    return sorted(name for name, _ in rig.partition(topic).subscriptions if names.remote_of(name) is not None)


def error_of(answers):
    [command] = answers.commands(api.BaseCommand.ERROR)
    return api.ServerError.Name(command.error.error)


# -- what goes over

def test_what_is_published_after_the_list_was_set_goes_over(rigs):
    rig = rigs()
    known(rig, "far")
    producer = rig.producer("t")
    rig.publish(producer, b"before")
    set_policy(rig, "replicationClusters", BOTH)
    rig.publish(producer, b"after")
    assert left(rig) == [b"after"]


def test_what_comes_in_the_same_envelope_behind_the_list_goes_over(rigs):
    rig = rigs()
    known(rig, "far")
    producer = rig.producer("t")
    answers = set_policy(rig, "replicationClusters", BOTH, "public/default", rig.sends((producer, b"before")))
    assert len(answers.positions) == 1
    rig.publish(producer, b"after")
    assert left(rig) == [b"after"]


def test_all_goes_over_where_replication_starts_at_the_earliest_message(rigs):
    rig = rigs(replication_start_at="earliest")
    known(rig, "far")
    rig.publish(rig.producer("t"), b"before")
    set_policy(rig, "replicationClusters", BOTH)
    assert left(rig) == [b"before"]


def test_the_first_message_of_a_new_topic_goes_over(rigs):
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"first")
    assert left(rig) == [b"first"]


def test_each_cluster_gets_everything(rigs):
    rig = rigs()
    known(rig, "far", "near")
    set_policy(rig, "replicationClusters", ["far", "near", "standalone"])
    producer = rig.producer("t")
    [first, _] = rig.publish(producer, b"a", b"b")
    consumer = reader(rig)
    rig.receive(consumer)
    rig.run(rig.acks(consumer, first))
    rig.close_consumer(consumer)
    assert (left(rig), left(rig, remote="near")) == ([b"b"], [b"a", b"b"])


def test_a_topic_s_list_is_stronger_than_its_namespace_s(rigs):
    rig = replicated(rigs)
    set_policy(rig, "replicationClusters", ["standalone"], TOPIC)
    rig.producer("t")
    rig.producer("other")
    assert (cursors(rig), cursors(rig, "other")) == ([], ["pulsar.repl.far"])


def test_partitions_have_the_cursors_of_their_topic(rigs):
    rig = rigs()
    known(rig, "far")
    set_policy(rig, "replicationClusters", BOTH, TOPIC)
    rig.producer("t-partition-1")
    assert cursors(rig, "t-partition-1") == ["pulsar.repl.far"]


@pytest.mark.parametrize("topic", ["persistent://pulsar/system/x", "persistent://public/default/__change_events",
                                   "non-persistent://public/default/t"])
def test_topics_of_the_broker_s_own_and_without_files_have_no_remote_clusters(rigs, topic):
    rig = replicated(rigs)
    set_policy(rig, "replicationClusters", BOTH, "pulsar/system")
    policies = policies_of(rig.owner.catalogue, names.parse(topic), rig.owner.options.current)
    assert policies.replication_clusters == tuple(BOTH) and policies.remote_clusters == ()


def test_delayed_messages_go_over_at_once(rigs):
    rig = replicated(rigs)
    producer = rig.producer("t")
    rig.consumer("t", subType=SHARED)
    rig.run(rig.sends((producer, b"late", {"deliver_at_time": rig.now_ms + 3_600_000}), (producer, b"next")))
    assert left(rig) == [b"late", b"next"]


def test_messages_of_an_aborted_transaction_do_not_go_over_and_others_wait_for_the_end(uncoordinated):
    rig = replicated(uncoordinated)
    producer, consumer = rig.producer("t"), reader(rig)
    rig.run(rig.flow(consumer, 100))
    transaction = rig.begin("t")
    answers = rig.run(rig.mixed((transaction, producer, b"aborted"), (0, producer, b"plain")))
    assert rig.delivered(answers, consumer) == []
    [answers] = rig.end(transaction, "t", commits=False)
    assert [payload for _, payload in rig.delivered(answers, consumer)] == [b"plain"]


# -- crashes

def test_a_kill_after_the_answer_loses_nothing(rigs):
    rig = rigs()
    known(rig, "far")
    producer = rig.producer("t")
    rig.publish(producer, b"before")
    set_policy(rig, "replicationClusters", BOTH)
    after = rigs.crash(rig)
    rig.publish(producer, b"after")
    after_that = rigs.crash(rig)
    assert left(after) == [] and left(after_that) == [b"after"]


def test_a_kill_before_the_answer_leaves_a_cursor_for_what_comes_later(rigs):
    """The policy is in the catalogue, and the owner is killed before it has heard of it."""
    rig = rigs()
    known(rig, "far")
    rig.publish(rig.producer("t"), b"before")
    rig.owner.catalogue.policies.set("public/default", "replicationClusters", BOTH)
    rig.owner.catalogue.commit()
    rig = rigs.crash(rig)
    rig.publish(rig.producer("t"), b"after")
    assert left(rig) == [b"after"]


def test_a_kill_between_catalogue_and_journal_leaves_a_cursor_for_what_comes_later(rigs):
    """The catalogue has the new cursor, and the journal has not: the cursor is created again."""
    rig = rigs()
    known(rig, "far")
    rig.publish(rig.producer("t"), b"before")
    rig.owner.catalogue.policies.set("public/default", "replicationClusters", BOTH)
    rig.owner.catalogue.subscriptions.create(rig.partition("t").partition_id, "pulsar.repl.far")
    rig.owner.catalogue.commit()
    rig = rigs.crash(rig)
    rig.publish(rig.producer("t"), b"after")
    rig = rigs.crash(rig)
    assert left(rig) == [b"after"]


@pytest.mark.parametrize("stop", ["crash", "restart"])
def test_what_is_confirmed_stays_so(rigs, stop):
    rig = replicated(rigs)
    producer, consumer = rig.producer("t"), reader(rig)
    [first, _] = rig.publish(producer, b"a", b"b")
    rig.receive(consumer)
    rig.run(rig.acks(consumer, first, cumulative=True, request_id=5))
    rig = getattr(rigs, stop)(rig)
    assert left(rig) == [b"b"]


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_what_was_answered(rigs):
    """After each step the owner is killed, and the next one has what the other cluster does not have at that time."""
    rig, waiting, replicates, number = rigs(roll_over_entries=3), [], False, 0
    known(rig, "far")
    for step in ("p", "on", "p", "p", "ack", "p", "off", "p", "on", "p", "p", "ack", "unload", "p", "on", "off", "p"):
        if step == "p":
            payload, number = b"%d" % number, number + 1
            rig.publish(rig.producer("t"), payload)
            waiting += [payload] * replicates
        elif step in ("on", "off"):
            set_policy(rig, "replicationClusters", BOTH if step == "on" else ["standalone"])
            replicates = step == "on"
            waiting = waiting if replicates else []
        elif step == "ack":
            consumer = reader(rig)
            position, payload = rig.receive(consumer)[0]
            assert payload == waiting.pop(0)
            rig.run(rig.acks(consumer, position, cumulative=True, request_id=9))
            rig.close_consumer(consumer)
        else:
            rig.asked("unload", "t")
        after = rigs.crash(rig)
        after.producer("t")
        assert cursors(after) == ["pulsar.repl.far"] * replicates, step
        assert not replicates or left(after) == waiting, step


@pytest.mark.parametrize("stop", ["crash", "restart"])
def test_a_deleted_cursor_does_not_come_back(rigs, stop):
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"a")
    set_policy(rig, "replicationClusters", ["standalone"])
    rig = getattr(rigs, stop)(rig)
    rig.producer("t")
    assert cursors(rig) == []


# -- when a cursor is deleted, and when it is not

def test_a_cluster_that_leaves_the_list_gives_its_backlog_up(rigs):
    rig = replicated(rigs, roll_over_entries=2)
    known(rig, "near")
    set_policy(rig, "replicationClusters", ["far", "near", "standalone"])
    producer = rig.producer("t")
    for _ in range(3):
        rig.publish(producer, b"a", b"b")
    consumer = reader(rig)
    set_policy(rig, "replicationClusters", ["near", "standalone"])
    assert cursors(rig) == ["pulsar.repl.near"] and len(rig.files("t")) > 1
    assert consumer.number not in rig.owner.clients.consumers.by_handle
    set_policy(rig, "replicationClusters", None)
    assert cursors(rig) == []
    rig.run(after_ms=SECOND)
    assert len(rig.files("t")) == 1


def test_a_cursor_outlives_the_record_of_its_cluster(rigs):
    """Administration refuses to delete a record in use; if it is gone nevertheless, nothing else is."""
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"a")
    rig.owner.catalogue.policies.set(CLUSTERS, "far", None)
    set_policy(rig, "messageTTL", 60)
    assert cursors(rig) == ["pulsar.repl.far"]
    rig = rigs.restart(rig)
    rig.producer("other")
    rig.producer("t")
    assert (cursors(rig), cursors(rig, "other")) == (["pulsar.repl.far"], [])
    known(rig, "far")
    assert left(rig) == [b"a"]


def test_a_broker_with_another_name_keeps_its_cursors_and_sends_nothing_to_its_former_name(rigs):
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"a")
    rig = rigs.restart(rig, cluster_name="edge")
    rig.producer("other")
    assert left(rig) == [b"a"] and cursors(rig) == cursors(rig, "other") == ["pulsar.repl.far"]
    assert rig.partition("t").policies.remote_clusters == ("far",)


def test_a_cursor_for_the_cluster_whose_name_the_broker_takes_is_kept(rigs):
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"a")
    rig = rigs.restart(rig, cluster_name="far")
    rig.producer("t")
    assert cursors(rig) == ["pulsar.repl.far"] and rig.partition("t").policies.remote_clusters == ()


def test_cursors_of_topics_that_nobody_opens_are_made_and_deleted_by_the_scan(rigs):
    rig = rigs()
    known(rig, "far")
    rig.publish(rig.producer("t"), b"a")
    rig = rigs.restart(rig)
    set_policy(rig, "replicationClusters", BOTH)
    rig.run(after_ms=SECOND)
    assert cursors(rig) == ["pulsar.repl.far"]
    rig = rigs.restart(rig)
    set_policy(rig, "replicationClusters", ["standalone"])
    rig.run(after_ms=SECOND)
    assert cursors(rig) == []


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_nobody_publishes_to_a_topic_whose_cursor_cannot_be_made(rigs, monkeypatch, is_open):
    """A message that it took now would be missing at the other cluster."""
    def full(*_):
        raise StorageFull("there is no room")

    rig = rigs()
    known(rig, "far")
    producer = rig.producer("t")
    rig.publish(producer, b"a")
    if not is_open:
        rig = rigs.restart(rig)
    with monkeypatch.context() as patched:
        patched.setattr(rig.owner.catalogue.subscriptions, "create", full)
        assert set_policy(rig, "replicationClusters", BOTH).answered == [{"answer": None}]
        if is_open:
            answers = rig.run(rig.sends((producer, b"lost")))
            assert not answers.receipts and answers.commands(api.BaseCommand.CLOSE_PRODUCER)
        answers = rig.run(rig.command("producer", topic="t", producer_id=91, request_id=91))
        assert error_of(answers) == "ServiceNotReady"
        rig.run(after_ms=SECOND)
        assert cursors(rig) == []
        waiting = rig.command("producer", topic="t", producer_id=92, request_id=92, epoch=1)
        assert not rig.run(waiting).commands(api.BaseCommand.ERROR)
    rig.run(after_ms=SECOND)
    assert rig.run(after_ms=SECOND).commands(api.BaseCommand.PRODUCER_SUCCESS) or rig.partition("t").producers.live
    rig.publish(rig.producer("t"), b"b")
    assert left(rig) == [b"b"]


def test_a_cursor_that_cannot_be_deleted_goes_later_and_keeps_nobody_from_publishing(rigs, monkeypatch):
    def full(*_):
        raise StorageFull("there is no room")

    rig = replicated(rigs)
    producer = rig.producer("t")
    with monkeypatch.context() as patched:
        patched.setattr(rig.owner.catalogue.subscriptions, "delete", full)
        set_policy(rig, "replicationClusters", ["standalone"])
        assert rig.run(rig.sends((producer, b"a"))).receipts and cursors(rig) == ["pulsar.repl.far"]
    rig.run(after_ms=SECOND)
    assert cursors(rig) == []


# -- who reads it

def test_clients_cannot_subscribe_to_it(rigs):
    rig = replicated(rigs)
    rig.producer("t")
    for fields in ({}, {"durable": False}, {"subType": SHARED}):
        section, _ = rig.subscribe("t", "pulsar.repl.far", **fields)
        assert error_of(rig.run(section)) == "ProducerBusy"


def test_the_replicator_gets_no_subscription_that_is_none_of_its_own(rigs):
    rig = replicated(rigs)
    rig.producer("t")
    rig.close_consumer(rig.consumer("t", "sub"))
    is_replicator(rig)
    for topic, name in (("t", "pulsar.repl.elsewhere"), ("t", "sub"), ("nowhere", "pulsar.repl.far")):
        section, _ = rig.subscribe(topic, name, connection=REPLICATOR, force_topic_creation=True)
        assert error_of(rig.run(section)) == "SubscriptionNotFound"
    section, _ = rig.subscribe("t", "pulsar.repl.far", connection=REPLICATOR, subType=SHARED)
    assert error_of(rig.run(section)) == "NotAllowedError"
    assert len(rig.partitions) == 1


def test_a_second_replicator_takes_over_at_once(rigs):
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"a")
    first = reader(rig)
    assert len(rig.receive(first)) == 1
    is_replicator(rig, 78)
    section, number = rig.subscribe("t", "pulsar.repl.far", connection=78)
    answers = rig.run(section)
    [closed] = answers.commands(api.BaseCommand.CLOSE_CONSUMER)
    assert closed.close_consumer.consumer_id == first.object_id
    second = rig.consumer_in(answers, number, "t", connection=78)
    assert [payload for _, payload in rig.receive(second)] == [b"a"]


def test_the_replicator_cannot_unsubscribe(rigs):
    rig = replicated(rigs)
    rig.producer("t")
    consumer = reader(rig)
    answers = rig.run(rig.command("unsubscribe", connection=REPLICATOR, consumer_id=consumer.object_id, request_id=1))
    assert error_of(answers) == "NotAllowedError" and cursors(rig) == ["pulsar.repl.far"]


def test_it_counts_in_no_limit(rigs):
    rig = rigs(max_subscriptions_per_topic=1, max_consumers_per_topic=1, subscription_types=("Shared",))
    known(rig, "far")
    rig.close_consumer(rig.consumer("t", "mine", subType=SHARED))
    set_policy(rig, "replicationClusters", BOTH)
    reader(rig)
    rig.consumer("t", "mine", subType=SHARED)
    section, _ = rig.subscribe("t", "another", subType=SHARED)
    assert error_of(rig.run(section)) in ("ConsumerBusy", "NotAllowedError")
    assert cursors(rig) == ["pulsar.repl.far"]


def test_an_empty_topic_takes_its_first_schema_while_the_replicator_reads_it(rigs):
    rig = replicated(rigs)
    rig.producer("t")
    reader(rig)
    [producer] = rig.partition("t").producers.live.values()
    rig.run(rig.command("close_producer", producer_id=producer.producer_id, request_id=1))
    section, number = rig.subscribe("t", "mine", schema=api.Schema(name="s", schema_data=b"", type=api.Schema.String))
    rig.consumer_in(rig.run(section), number, "t")


def test_a_drain_does_not_wait_for_another_cluster(rigs):
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"a")
    rig.receive(reader(rig))
    rig.owner.drain()
    assert rig.counters.read()["outstanding"] == 0


# -- administration

def test_it_is_no_subscription_for_administration(rigs):
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"a")
    rig.consumer("t", "mine")
    assert rig.asked("subscriptions", "t") == ["mine"]
    for ask, more in (("unsubscribe", {"force": True}), ("reset", {"time_ms": 0}), ("properties", {"properties": {}}),
                      ("replicated", {"replicated": True}), ("analyze", {})):
        [answer] = rig.run(rig.question(ask, "t", subscription="pulsar.repl.far", **more)).answered
        assert answer["refused"] == api.SubscriptionNotFound, ask
    [answer] = rig.run(rig.question("subscribe", "t", subscription="pulsar.repl.near")).answered
    assert answer["refused"] == api.ProducerBusy
    assert left(rig) == [b"a"]


def test_messages_can_be_given_up_for_another_cluster(rigs):
    rig = replicated(rigs)
    producer = rig.producer("t")
    rig.publish(producer, b"a", b"b", b"c", b"d")
    rig.asked("skip", "t", subscription="pulsar.repl.far", entries=1)
    assert left(rig) == [b"b", b"c", b"d"]
    rig.run(after_ms=10 * SECOND)
    rig.publish(producer, b"e")
    rig.asked("expire", "t", subscription="pulsar.repl.far", seconds=5)
    assert left(rig) == [b"e"]
    rig.asked("clear", "t", subscription="pulsar.repl.far")
    assert left(rig) == []


def test_messages_expire_for_another_cluster_too(rigs):
    rig = replicated(rigs, message_ttl_s=5)
    producer = rig.producer("t")
    rig.publish(producer, b"old")
    rig.run(after_ms=10 * SECOND)
    rig.publish(producer, b"new")
    assert left(rig) == [b"new"]
    assert rig.shown("stats", TOPIC, **ASKED)["replication"]["far"]["msgExpiredCount"] == 1


def test_the_backlog_counts_in_the_quota(rigs):
    rig = replicated(rigs, backlog_quota_bytes=3_000, backlog_quota_policy="consumer_backlog_eviction")
    producer = rig.producer("t")
    for number in range(10):
        rig.publish(producer, b"%d" % number + b"x" * 1_000)
    assert [payload[:1] for payload in left(rig)] == [b"8", b"9"] and rig.partition("t").evictions[0]


def test_producers_are_refused_while_the_quota_is_exceeded(rigs):
    rig = replicated(rigs, backlog_quota_bytes=1_000, backlog_quota_policy="producer_exception")
    rig.publish(rig.producer("t"), b"x" * 2_000)
    answers = rig.run(rig.command("producer", topic="t", producer_id=90, request_id=90))
    assert error_of(answers) == "ProducerBlockedQuotaExceededException"
    rig.asked("clear", "t", subscription="pulsar.repl.far")
    rig.producer("t")


def test_a_topic_that_waits_for_another_cluster_is_not_inactive(rigs):
    rig = replicated(rigs, delete_inactive_topics=True, inactive_topic_s=2, discovery_grace_s=0)
    producer, consumer = rig.producer("t"), reader(rig)
    [position] = rig.publish(producer, b"a")
    rig.receive(consumer)
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    for _ in range(6):
        rig.run(after_ms=SECOND)
    assert cursors(rig) == ["pulsar.repl.far"]
    rig.run(rig.acks(consumer, position))
    for _ in range(6):
        rig.run(after_ms=SECOND)
    assert not rig.partitions and consumer.number not in rig.owner.clients.consumers.by_handle


def test_a_cursor_without_the_replicator_does_not_expire(rigs):
    rig = replicated(rigs, subscription_expiration_s=2)
    rig.producer("t")
    rig.close_consumer(rig.consumer("t", "mine"))
    for _ in range(6):
        rig.run(after_ms=SECOND)
    assert {name for name, _ in rig.partition("t").subscriptions} == {"pulsar.repl.far"}


def test_a_topic_is_in_use_by_its_clients_only(rigs):
    rig = replicated(rigs)
    producer = rig.producer("t")
    reader(rig)
    assert rig.asked("is_used", "t") is True
    rig.run(rig.command("close_producer", producer_id=producer.object_id, request_id=1))
    assert rig.asked("is_used", "t") is False


# -- rates

def test_the_replicator_s_rate_holds_for_each_cluster_and_no_other_rate_does(rigs):
    rig = replicated(rigs, dispatch_messages_per_topic=1, dispatch_messages_per_subscription=1,
                     dispatch_messages_per_broker=1)
    set_policy(rig, "replicatorDispatchRate", {"dispatchThrottlingRateInMsg": 100})
    producer = rig.producer("t")
    consumer = reader(rig)
    rig.publish(producer, *[b"x"] * 1_000)
    got = len(rig.receive(consumer, 1_000))
    assert 1 < got <= 100
    for _ in range(50):
        got += len(rig.delivered(rig.run(after_ms=20), consumer))
    assert 90 <= got <= 130
    [cause] = [one for one in rig.asked("why", "t", subscription="pulsar.repl.far")["causes"]
               if one["cause"] == "dispatch rate"]
    assert cause["rule"].startswith("replicatorDispatchRate of namespace public/default: 100 messages")


def test_the_broker_s_rate_of_replicators_holds_where_no_policy_is_set(rigs):
    rig = replicated(rigs, dispatch_messages_per_replicator=10)
    producer, consumer = rig.producer("t"), reader(rig)
    rig.publish(producer, *[b"x"] * 100)
    assert len(rig.receive(consumer, 100)) < 20
    answers = set_policy(rig, "replicatorDispatchRate", {"dispatchThrottlingRateInMsg": 0})
    assert len(rig.delivered(answers, consumer)) > 80


def test_the_replicator_s_rate_may_come_on_top_of_what_is_published(rigs):
    rig = replicated(rigs)
    set_policy(rig, "replicatorDispatchRate", {"dispatchThrottlingRateInMsg": 10, "relativeToPublishRate": True})
    producer, consumer = rig.producer("t"), reader(rig)
    rig.receive(consumer, 1_000)
    got = 0
    for _ in range(50):
        answers = rig.run(rig.sends(*[(producer, b"x")] * 10), after_ms=20)
        got += len(rig.delivered(answers, consumer))
    assert got == 500


# -- what is told

def test_statistics_tell_what_another_cluster_does_not_have(rigs):
    rig = replicated(rigs)
    producer, consumer = rig.producer("t"), reader(rig)
    [first, _] = rig.publish(producer, b"a", b"b")
    rig.receive(consumer)
    rig.run(rig.acks(consumer, first), after_ms=7 * SECOND)
    told = rig.shown("stats", TOPIC, **ASKED)
    assert told["subscriptions"] == {} and told["msgOutCounter"] == 0
    far = told["replication"]["far"]
    assert (far["replicationBacklog"], far["connected"]) == (1, True)
    assert far["replicationDelayInSeconds"] == 7 and far["replicationBacklogSize"] == told["backlogSize"] > 0
    rig.close_consumer(consumer)
    assert rig.shown("stats", TOPIC, **ASKED)["replication"]["far"]["connected"] is False


def test_an_operator_is_told_of_the_clusters_that_are_behind(rigs):
    rig = replicated(rigs)
    rig.publish(rig.producer("t"), b"a")
    rig.producer("other")
    rig.run(after_ms=60 * SECOND)

    def late(seconds):
        while (told := rig.run(rig.tell("list-unreplicated", before_ms=rig.now_ms - seconds * SECOND,
                                        most=5)).answered[0]["answer"])["stale"]:
            pass
        return told

    assert late(90)["rows"] == []
    [row] = late(30)["rows"]
    assert row == {"topic": TOPIC, "remote": "far", "since_ms": rig.now_ms - 60 * SECOND, "is_connected": False}
    assert late(30)["total"] == 1


@pytest.mark.parametrize("publish_time", [1, 1 << 52])
def test_lateness_counts_from_this_broker_s_clock(rigs, publish_time):
    """The clock of a client, or of the cluster from which a message came, may be years apart."""
    rig = replicated(rigs)
    rig.run(rig.sends((rig.producer("t"), b"a", {"publish_time": publish_time})))
    rig.run(after_ms=60 * SECOND)
    assert rig.shown("stats", TOPIC, **ASKED)["replication"]["far"]["replicationDelayInSeconds"] == 60
    while (told := rig.run(rig.tell("list-unreplicated", before_ms=rig.now_ms, most=5)).answered[0]["answer"])["stale"]:
        pass
    assert [row["since_ms"] for row in told["rows"]] == [rig.now_ms - 60 * SECOND]


def test_why_tells_what_is_in_the_way(rigs):
    rig = replicated(rigs)
    producer = rig.producer("t")
    assert [one["cause"] for one in rig.asked("why", "t", subscription="pulsar.repl.far")["causes"]] == ["no backlog"]
    rig.publish(producer, b"a")
    assert rig.asked("why", "t", subscription="pulsar.repl.far")["causes"] == [
        {"cause": "no replicator", "cluster": "far"}]
    rig.receive(reader(rig))
    assert rig.asked("why", "t", subscription="pulsar.repl.far")["causes"] == [
        {"cause": "no answer of the cluster", "cluster": "far"}]


def test_options_of_replication_are_applied_while_the_owner_runs(rigs):
    rig = replicated(rigs)
    producer = rig.producer("t")
    rig.publish(producer, b"a")
    rig.owner.configure(replace(rig.options, replication_start_at="earliest"))
    known(rig, "near")
    set_policy(rig, "replicationClusters", ["far", "near", "standalone"])
    assert left(rig, remote="near") == [b"a"]
