"""Every field in the statistics of topics changes when something happens: none is a constant that only looks like a
measurement.
"""
import json
from dataclasses import replace

import pytest

from geminga.proto import envelope
from geminga.proto import pulsar_api_pb2 as api
from geminga.storage.catalogue.policy_declaration import read
from geminga.storage.catalogue.policy_table import TABLE

SHARED, KEY_SHARED, FAILOVER = (
    api.CommandSubscribe.SubType.Value(name) for name in ("Shared", "Key_Shared", "Failover")
)
OUT_OF_ORDER = {"keySharedMode": "AUTO_SPLIT", "allowOutOfOrderDelivery": True}
TOPIC, LIVE = "persistent://public/default/t", "non-persistent://public/default/live"
SLOW = {
    "dispatchThrottlingRateInMsg": 1,
    "dispatchThrottlingRateInByte": 1,
    "ratePeriodInSecond": 100,
    "relativeToPublishRate": False,
}
SYSTEM = "persistent://pulsar/system/healthcheck"
NAMED = {"subscriptions", "cursors", "messages", "cursorDetails"}      # dictionaries by name, except messages

# Fields that never change: reason -> (value, paths).
ALWAYS = {
    "versions of the answer": (1, ("info.version", "info.cursors.*.version")),
    "a cursor has no ledger of its own": (-1, ("info.cursors.*.cursorsLedgerId",)),
    "cursors are never closed while their topic is open": ("Open", ("internal.cursors.*.state",)),
    "cursors have no properties": ("{}", ("internal.cursors.*.properties",)),
    "nothing is offloaded, or kept in several copies": (
        False,
        (
            "info.ledgers[].isOffloaded",
            "internal.ledgers[].offloaded",
            "internal.ledgers[].underReplicated",
            "internal.compactedLedger.offloaded",
            "internal.compactedLedger.underReplicated",
        ),
    ),
    "nothing is offloaded; there are no transactions and no entry filters": (
        0,
        (
            "stats.offloadedStorageSize",
            "stats.lastOffloadLedgerId",
            "stats.lastOffloadSuccessTimeStamp",
            "stats.lastOffloadFailureTimeStamp",
            "stats.ongoingTxnCount",
            "stats.abortedTxnCount",
            "stats.committedTxnCount",
            *(
                f"stats.subscriptions.*.filter{what}MsgCount"
                for what in ("Processed", "Accepted", "Rejected", "Rescheduled")
            ),
        ),
    ),
    "nothing goes to other clusters here, but in test_replication_cursors.py; and hashes drain, so that nobody waits "
    "for a mark-delete position": (
        "{}",
        ("stats.replication", "stats.subscriptions.*.consumersAfterMarkDeletePosition"),
    ),
    "nothing is compacted here, but in test_compaction.py": (
        0,
        tuple(
            f"stats.compaction.lastCompaction{what}"
            for what in ("RemovedEventCount", "SucceedTimestamp", "FailedTimestamp", "DurationTimeInMills")
        ),
    ),
    "likewise": (-1, tuple(f"internal.compactedLedger.{what}" for what in ("ledgerId", "entries", "size"))),
}
# Fields that are not checked: clients' own metadata, and draining hashes, which the tests of Key_Shared check.
NOT_LOOKED_AT = ("stats.publishers[].metadata.", "stats.subscriptions.*.consumers[].metadata.",
                 "stats.subscriptions.*.subscriptionProperties.", "stats.subscriptions.*.consumers[].drainingHashes")


def gather(found, value, path=""):
    """Add all values in nested dictionaries and lists to `found`, {path: values}. Names of subscriptions are "*" in
    a path, and numbers in lists are left out.
    """
    if isinstance(value, dict):
        found.setdefault(path, []).append("{}" if not value else "{...}")
        is_by_name = path.rpartition(".")[2] in NAMED - {"messages"}
        for name, one in value.items():
            gather(found, one, f"{path}.*" if is_by_name else f"{path}.{name}")
    elif isinstance(value, list):
        found.setdefault(path, []).append("[]" if not value else "[...]")
        for one in value:
            gather(found, one, f"{path}[]")
    else:
        found.setdefault(path, []).append(value)


def set_policies(rig, scope, **values):
    for name, value in values.items():
        rig.owner.catalogue.policies.set(scope, name, value and read(TABLE[name], value))
    rig.owner.catalogue.commit()
    rig.run(rig.tell("policies", scope=scope))


def look(rig, found):
    for topic in [str(name) for name in (*rig.owner.topics.by_name, *rig.owner.topics.non_persistent)]:
        gather(found, rig.shown("stats", topic, earliest=True, publishers=True, consumers=True), "stats")
        gather(found, rig.shown("internal", topic), "internal")
        if topic.startswith("persistent"):
            gather(found, rig.shown("info", topic), "info")
            gather(found, rig.shown("offline", topic), "offline")


def later(rig, found, seconds=1):
    """Let seconds pass, each a window of rates, and gather all fields after each."""
    for _ in range(seconds):
        rig.run(after_ms=1_000)
        look(rig, found)


def introduced(rig, connection, *, partial):
    rig.run(rig.happened(envelope.INTRODUCED, connection=connection, data=json.dumps(
        {"address": f"/10.0.0.{connection}:1", "version": f"client {connection}", "partial": partial,
         "positions": False, "superuser": False, "replicator": False, "role": "",
         "connected_ms": 0}).encode()))


def positions(given, consumer):
    return [position for position, _ in given[consumer.number]]


@pytest.mark.slow
def test_nothing_is_told_that_never_changes(rigs):
    """Each field outside the table ALWAYS takes more than one value in the course of this test, and each field in
    ALWAYS has the value given there.
    """
    rig, found = rigs(stats_window_s=1, roll_over_entries=40, max_live_messages_per_connection=4), {}
    for connection, partial in ((1, False), (2, True)):
        introduced(rig, connection, partial=partial)
    rig.producer("idle")
    rig.close_consumer(rig.consumer("idle"))
    look(rig, found)
    # Consumers of each kind, batches, chunks, redelivered and delayed messages.
    producer = rig.producer("t", metadata=[{"key": "host", "value": "b"}], connection=2)
    exclusive = rig.consumer(
        "t",
        "exclusive",
        metadata=[{"key": "team", "value": "a"}],
        consumer_name="e",
        connection=2,
        replicate_subscription_state=True,
        subscription_properties=[{"key": "k", "value": "v"}],
    )
    shared, other = (rig.consumer("t", "shared", subType=SHARED, consumer_name=name) for name in "ab")
    keyed = rig.consumer("t", "keyed", subType=KEY_SHARED, consumer_name="k", keySharedMeta=OUT_OF_ORDER)
    ordered = rig.consumer("t", "ordered", subType=KEY_SHARED, consumer_name="o")
    sticky = rig.consumer("t", "sticky", subType=KEY_SHARED, keySharedMeta={
        "keySharedMode": "STICKY", "hashRanges": [{"start": 0, "end": 65_535}]})
    failover, reader = (
        rig.consumer("t", "failover", subType=FAILOVER, consumer_name="f"),
        rig.consumer("t", "reader", durable=False),
    )
    due = rig.now_ms + 900_000
    rig.run(
        rig.sends(
            *[(producer, b"k", {"partition_key": f"key-{number % 7}"}) for number in range(12)],
            *[
                (producer, b"%d" % number, {"batch": 3, "publish_time": rig.now_ms, "partition_key": f"k{number % 7}"})
                for number in range(30)
            ],
            (producer, b"one", {"num_chunks_from_msg": 2, "total_chunk_msg_size": 6, "chunk_id": 0, "uuid": "u"}),
            (producer, b"two", {"num_chunks_from_msg": 2, "total_chunk_msg_size": 6, "chunk_id": 1, "uuid": "u"}),
            *[(producer, b"late", {"deliver_at_time": at}) for at in (due, due - 1, due + 3_000_000)],
        )
    )
    everybody = exclusive, shared, other, keyed, ordered, sticky, failover, reader
    given = {
        consumer.number: rig.receive(consumer, 500 if consumer in (exclusive, failover) else 30)
        for consumer in everybody
    }
    later(rig, found)
    newcomer = rig.consumer("t", "ordered", subType=KEY_SHARED, consumer_name="n")
    rig.run(rig.flow(newcomer, 50))
    look(rig, found)
    rig.run(rig.acks(ordered, *positions(given, ordered)))
    look(rig, found)
    for consumer in (exclusive, shared, keyed):
        some = positions(given, consumer)
        rig.run(rig.acks(consumer, some[1], some[3]))
        rig.run(rig.redeliver(consumer, some[0]))
        look(rig, found)
    rig.run(rig.acks(exclusive, positions(given, exclusive)[2], cumulative=True))
    rig.run(rig.acks(keyed, *positions(given, keyed)))
    later(rig, found, 2)
    # Limits, rates, deduplication.
    set_policies(rig, TOPIC, maxUnackedMessagesPerConsumer=1, maxUnackedMessagesPerSubscription=1, deduplication=True,
                 delayedDelivery={"active": True, "tickTime": 1_000})
    rig.run(rig.flow(shared, 10))
    look(rig, found)
    set_policies(
        rig,
        TOPIC,
        maxUnackedMessagesPerConsumer=None,
        maxUnackedMessagesPerSubscription=None,
        subscriptionDispatchRate=SLOW,
        publishRate={"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": 1},
    )
    rig.run(rig.sends(*[(producer, b"x" * 100) for _ in range(20)]))
    for name, next_name in (("subscriptionDispatchRate", "dispatchRate"), ("dispatchRate", None)):
        for _ in range(2):
            rig.run(rig.flow(other, 5))
            later(rig, found)
        set_policies(rig, TOPIC, **{name: None}, **({next_name: SLOW} if next_name else {}))
    rig.owner.configure(replace(rig.options, dispatch_messages_per_broker=1, dispatch_bytes_per_broker=1))
    rig.run(rig.flow(other, 5))
    later(rig, found, 2)
    rig.owner.configure(rig.options)
    set_policies(rig, TOPIC, publishRate=None)
    # Time to live, a skip, quotas, waiting producers, termination.
    set_policies(rig, TOPIC, messageTTL=1)
    later(rig, found, 4)
    set_policies(rig, TOPIC, messageTTL=None)
    rig.publish(producer, *[b"y" * 300] * 60)
    rig.asked("skip", TOPIC, subscription="failover", entries=3)
    look(rig, found)
    for kind, limit in (("destination_storage", {"limitSize": 1_000}), ("message_age", {"limitTime": 1})):
        set_policies(rig, TOPIC, **{f"backlogQuota/{kind}": limit | {"policy": "consumer_backlog_eviction"}})
        later(rig, found, 3)
    waiting = [
        rig.command(
            "producer", topic="alone", producer_id=number, request_id=number, producer_access_mode=mode, connection=2
        )
        for number, mode in ((900, api.Exclusive), (901, api.WaitForExclusive))
    ]
    rig.run(*waiting)
    look(rig, found)
    rig.run(rig.command("close_producer", producer_id=900, request_id=902, connection=2))
    look(rig, found)
    rig.asked("terminate", TOPIC)
    # Non-persistent topics, and the broker's own.
    live = rig.producer(LIVE)
    rig.consumer(LIVE, "hungry")
    sated = rig.consumer(LIVE, "sated")
    rig.run(rig.flow(sated, 3))
    look(rig, found)
    rig.run(rig.sends(*[(live, b"z") for _ in range(6)]))
    later(rig, found)
    rig.publish(rig.producer(SYSTEM), b"x")
    look(rig, found)
    same = {path: values[0] for path, values in found.items() if len(set(map(repr, values))) == 1}
    told = {
        path: value
        for path, value in same.items()
        if value not in ("{...}", "[...]") and not path.startswith(NOT_LOOKED_AT)
    }
    assert told == {path: value for value, paths in ALWAYS.values() for path in paths}
