"""Stats over HTTP, of a broker with real clients, in the shapes that Pulsar's tools read."""
import json

import pulsar
import pytest

from geminga.supervisor.admin.monitoring.stats import together

from ..harness import eventually, partitioned_topic, request, unique_topic

TOPIC = {
    "int": ["bytesInCounter", "msgInCounter", "systemTopicBytesInCounter", "bytesOutCounter", "msgOutCounter",
            "bytesOutInternalCounter", "storageSize", "backlogSize", "backlogQuotaLimitSize", "backlogQuotaLimitTime",
            "oldestBacklogMessageAgeSeconds",
            "publishRateLimitedTimes", "earliestMsgPublishTimeInBacklogs", "offloadedStorageSize",
            "lastOffloadLedgerId",
            "lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp", "ongoingTxnCount", "abortedTxnCount",
            "committedTxnCount", "waitingPublishers", "nonContiguousDeletedMessagesRanges",
            "nonContiguousDeletedMessagesRangesSerializedSize",
            "delayedMessageIndexSizeInBytes", "topicCreationTimeStamp", "lastPublishTimeStamp"],
    "float": ["msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "averageMsgSize"],
    "bool": ["msgChunkPublished"], "str": ["deduplicationStatus", "ownerBroker"], "list": ["publishers"],
    "dict": ["subscriptions", "replication", "compaction"]}
SUBSCRIPTION = {
    "int": ["bytesOutCounter", "msgOutCounter", "msgBacklog", "backlogSize", "earliestMsgPublishTimeInBacklog",
            "msgBacklogNoDelayed",
            "msgDelayed", "msgInReplay", "unackedMessages", "totalMsgExpired", "lastExpireTimestamp",
            "lastConsumedFlowTimestamp",
            "lastConsumedTimestamp", "lastAckedTimestamp", "lastMarkDeleteAdvancedTimestamp", "drainingHashesCount",
            "drainingHashesClearedTotal", "drainingHashesUnackedMessages", "nonContiguousDeletedMessagesRanges",
            "nonContiguousDeletedMessagesRangesSerializedSize", "delayedMessageIndexSizeInBytes",
            "filterProcessedMsgCount", "filterAcceptedMsgCount", "filterRejectedMsgCount", "filterRescheduledMsgCount",
            *(f"dispatchThrottled{what}EventsBy{level}Limit"
              for what in ("Msg", "Bytes") for level in ("Subscription", "Topic", "Broker"))],
    "float": ["msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate", "chunkedMessageRate",
              "msgRateExpired"],
    "bool": ["blockedSubscriptionOnUnackedMsgs", "isDurable", "isReplicated", "allowOutOfOrderDelivery", "durable",
             "replicated"],
    "str": ["type"], "list": ["consumers"], "dict": ["subscriptionProperties", "consumersAfterMarkDeletePosition"]}
CONSUMER = {
    "int": ["bytesOutCounter", "msgOutCounter", "availablePermits", "unackedMessages", "avgMessagesPerEntry",
            "drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages", "lastAckedTimestamp",
            "lastConsumedTimestamp", "lastConsumedFlowTimestamp"],
    "float": ["msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate", "chunkedMessageRate"],
    "bool": ["blockedConsumerOnUnackedMsgs"],
    "str": ["consumerName", "address", "connectedSince", "clientVersion", "lastAckedTime", "lastConsumedTime"],
    "dict": ["metadata"]}
PUBLISHER = {
    "int": ["producerId"], "float": ["msgRateIn", "msgThroughputIn", "averageMsgSize", "chunkedMessageRate"],
    "bool": ["supportsPartialProducer"],
    "str": ["accessMode", "producerName", "address", "connectedSince", "clientVersion"],
    "dict": ["metadata"]}


def check(found, shape):
    assert [(name, type(found.get(name)).__name__) for names in shape.values() for name in names] == [
        (name, kind) for kind, names in shape.items() for name in names]


def url(broker, topic, rest):
    return f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/{rest}"


def get(broker, topic, rest):
    status, text = request("GET", url(broker, topic, rest))
    assert status == 200, text
    return json.loads(text)


@pytest.fixture(scope="module")
def client(broker):
    made = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@pytest.fixture(scope="module")
def busy(broker, client):
    """A topic with producers, and consumers of two kinds."""
    topic = unique_topic("busy")
    consumer = client.subscribe(topic, "exclusive", consumer_name="reading", properties={"team": "a"})
    shared = client.subscribe(topic, "shared", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, producer_name="writing", properties={"host": "b"})
    for number in range(10):
        producer.send(b"%d" % number)
    for _ in range(4):
        consumer.acknowledge(consumer.receive())
    eventually(lambda: get(broker, topic, "stats")["subscriptions"]["exclusive"]["msgBacklog"] == 6)
    eventually(lambda: get(broker, topic, "stats")["subscriptions"]["shared"]["unackedMessages"] == 10)
    yield topic
    for one in (consumer, shared, producer):
        one.close()


def test_stats_have_every_field_with_its_type(broker, busy):
    found = get(broker, busy, "stats?getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true")
    check(found, TOPIC)
    for one in found["subscriptions"].values():
        check(one, SUBSCRIPTION)
        check(one["consumers"][0], CONSUMER)
    check(found["publishers"][0], PUBLISHER)
    assert (
        found["earliestMsgPublishTimeInBacklogs"] > 0 < found["topicCreationTimeStamp"] <= found["lastPublishTimeStamp"]
    )


def test_stats_say_who_is_there(broker, busy):
    found = get(broker, busy, "stats")
    [publisher] = found["publishers"]
    assert (publisher["producerName"], publisher["accessMode"], publisher["metadata"]) == (
        "writing",
        "Shared",
        {"host": "b"},
    )
    exclusive = found["subscriptions"]["exclusive"]
    [consumer] = exclusive["consumers"]
    assert (exclusive["type"], exclusive["activeConsumerName"], consumer["metadata"]) == (
        "Exclusive",
        "reading",
        {"team": "a"},
    )
    for one in (publisher, consumer):
        assert (
            one["address"].startswith("/127.0.0.1:")
            and "CPP" in one["clientVersion"]
            and one["connectedSince"].endswith("Z")
        )
    assert exclusive["messages"] == {"published": 10, "acknowledged": 4, "expired": 0, "skipped": 0, "evicted": 0,
                                     "backlog": 6}
    assert consumer["lastAckedTimestamp"] > 0 < consumer["lastConsumedTimestamp"]


def test_who_is_there_can_be_left_out(broker, busy):
    found = get(broker, busy, "stats?excludePublishers=true&excludeConsumers=true")
    assert found["publishers"] == [] == found["subscriptions"]["shared"]["consumers"]


def test_a_topic_that_nobody_has_used_has_stats(broker):
    topic = unique_topic("idle")
    assert request("PUT", url(broker, topic, "").rstrip("/"))[0] == 204
    found = get(broker, topic, "stats")
    check(found, TOPIC)
    assert (
        found["subscriptions"],
        found["publishers"],
        found["lastPublishTimeStamp"],
        found["oldestBacklogMessageAgeSeconds"],
    ) == ({}, [], 0, -1)
    assert get(broker, topic, "internalStats")["cursors"] == {} == get(broker, topic, "internal-info")["cursors"]


def test_partitions_are_put_together_as_their_fields_demand():
    """Rates and counts are added, averages averaged; the earliest or latest time counts, and one chunk in any
    partition.
    """
    def part(chunked, earliest, published, average, rate):
        consumer = {"consumerName": "c", "avgMessagesPerEntry": average, "msgOutCounter": 1}
        return {"msgChunkPublished": chunked, "earliestMsgPublishTimeInBacklogs": earliest,
                "lastPublishTimeStamp": published, "msgRateIn": rate, "msgThroughputIn": 10 * rate, "publishers": [],
                "subscriptions": {"s": {"consumers": [consumer]}},
                "replication": {"far": {"msgRateIn": rate, "inboundConnection": "/1.2.3.4:5"}}}

    found = together([part(False, 0, 5, 2, 1.0), part(True, 9, 7, 4, 3.0), part(False, 8, 6, 3, 0.0)])
    assert found == {"msgChunkPublished": True, "earliestMsgPublishTimeInBacklogs": 8, "lastPublishTimeStamp": 7,
                     "msgRateIn": 4.0, "msgThroughputIn": 40.0, "averageMsgSize": 10.0, "publishers": [],
                     "subscriptions": {"s": {"consumers": [{"consumerName": "c", "avgMessagesPerEntry": 3,
                                                            "msgOutCounter": 3}]}},
                     "replication": {"far": {"msgRateIn": 4.0}}}


def test_stats_of_partitions_add_up(broker, client):
    topic = partitioned_topic(broker.http_url, 3)
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "sub")
    for number in range(12):
        producer.send(b"x", partition_key=str(number))
    found = get(broker, topic, "partitioned-stats")
    parts = found["partitions"]
    assert (found["metadata"]["partitions"], sorted(parts)) == (3,
                                                                [f"{topic}-partition-{number}" for number in range(3)])
    assert found["msgInCounter"] == sum(part["msgInCounter"] for part in parts.values()) == 12
    assert found["storageSize"] == sum(part["storageSize"] for part in parts.values())
    assert found["lastPublishTimeStamp"] == max(part["lastPublishTimeStamp"] for part in parts.values())
    assert (
        found["subscriptions"]["sub"]["consumers"][0]["consumerName"]
        == parts[f"{topic}-partition-0"]["subscriptions"]["sub"]["consumers"][0]["consumerName"]
    )
    assert get(broker, topic, "partitioned-stats?perPartition=false")["partitions"] == {}
    assert (
        len(get(broker, topic, "partitioned-internalStats")["partitions"])
        == len(get(broker, topic, "internal-info")["partitions"])
        == 3
    )
    for one in (producer, consumer):
        one.close()


def test_internal_stats_tell_how_a_topic_is_stored(broker, busy):
    found = get(broker, busy, "internalStats")
    [ledger] = found["ledgers"]
    assert found["numberOfEntries"] == ledger["entries"] == found["currentLedgerEntries"] == 10
    assert found["totalSize"] == ledger["size"] == get(broker, busy, "stats")["storageSize"]
    cursor = found["cursors"]["exclusive"]
    assert cursor["markDeletePosition"] == f"{ledger['ledgerId']}:3" and cursor["active"]
    assert get(broker, busy, "internal-info")["cursors"]["exclusive"]["markDelete"] == {
        "ledgerId": ledger["ledgerId"],
        "entryId": 3,
    }
    offline = get(broker, busy, "backlog")
    assert (offline["totalMessages"], offline["cursorDetails"]["exclusive"]["cursorBacklog"]) == (10, 6)


def test_cursors_have_the_names_that_pulsar_gives_them(broker):
    topic = unique_topic("cursors")
    assert request("PUT", url(broker, topic, "").rstrip("/"))[0] == 204
    for name in ("a%2Fb%20c+d", "%C3%A9*~.:"):      # the second one's answer of Pulsar 4.0.7: %C3%A9*%7E.%3A
        assert request("PUT", url(broker, topic, f"subscription/{name}"))[0] == 204
    for kind in ("internalStats", "internal-info"):
        assert sorted(get(broker, topic, kind)["cursors"]) == ["%C3%A9*%7E.%3A", "a%2Fb+c+d"]
    assert " " not in request("GET", url(broker, topic, "internal-info"))[1]


@pytest.mark.parametrize(("body", "status"), [
    (b'{"ledgerId": -1, "entryId": -1, "partitionIndex": -1}', 200), (b'{"ledgerId": "x"}', 400), (b"[]", 400),
    (b"{", 400), (b"", 400),
    (b'{"ledgerId": 1e400, "entryId": 1}', 400), (b'{"ledgerId": 99999999999999999999999, "entryId": 1}', 400)])
def test_bytes_behind_a_message(broker, busy, body, status):
    answer, text = request("PUT", url(broker, busy, "backlogSize"), body)
    assert answer == status
    assert int(text) == get(broker, busy, "stats")["storageSize"] if status == 200 else "reason" in json.loads(text)


def test_the_bytes_behind_the_last_acknowledged_message_are_the_backlog_size(broker, busy):
    ledger, entry = get(broker, busy, "internalStats")["cursors"]["exclusive"]["markDeletePosition"].split(":")
    _, text = request("PUT", url(broker, busy, "backlogSize"), b'{"ledgerId": %s, "entryId": %s}' % (
        ledger.encode(), entry.encode()))
    assert int(text) == get(broker, busy, "stats")["subscriptions"]["exclusive"]["backlogSize"] > 0


@pytest.mark.parametrize("rest", ["stats", "internalStats", "internal-info", "backlog", "partitioned-stats",
                                  "partitioned-internalStats"])
def test_what_is_not_there_has_no_stats(broker, busy, rest):
    for topic in ("persistent://public/default/none", "persistent://public/nowhere/t",
                  "non-persistent://public/default/none"):
        status, text = request("GET", url(broker, topic, rest))
        assert (status, rest in ("internal-info", "backlog") and topic.startswith("non")) in (
            (404, False),
            (405, True),
        ), text
    if rest.startswith("partitioned"):
        assert request("GET", url(broker, busy, rest))[0] == 404


def test_a_live_topic_has_stats(broker, client):
    topic = unique_topic("live").replace("persistent", "non-persistent", 1)
    consumer, producer = client.subscribe(topic, "sub"), client.create_producer(topic)
    producer.send(b"x")
    consumer.receive()
    found = get(broker, topic, "stats")
    assert (found["msgInCounter"], found["msgOutCounter"], found["subscriptions"]["sub"]["isDurable"]) == (1, 1, False)
    assert found["publishers"][0]["msgDropRate"] == found["subscriptions"]["sub"]["msgDropRate"] == 0
    assert get(broker, topic, "internalStats")["entriesAddedCounter"] == 1
    for one in (consumer, producer):
        one.close()


def test_the_broker_tells_what_is_loaded(broker, busy):
    status, text = request("GET", broker.http_url + "/admin/v2/broker-stats/topics")
    loaded = json.loads(text)["public/default"]
    [found] = [topics[busy] for bundle in loaded.values() for topics in bundle.values() if busy in topics]
    told = get(broker, busy, "stats")
    assert (status, found["msgInCount"], found["producerCount"]) == (200, 10, 1)
    for name, one in found["subscriptions"].items():
        assert (one["msgBacklog"], one["type"]) == tuple(told["subscriptions"][name][field]
                                                         for field in ("msgBacklog", "type"))
    assert [one["producerName"] for one in found["publishers"]] == ["writing"]
    for rest in ("metrics", "mbeans"):
        assert json.loads(request("GET", f"{broker.http_url}/admin/v2/broker-stats/{rest}")[1])[0]["metrics"]
    report = json.loads(request("GET", f"{broker.http_url}/admin/v2/broker-stats/load-report")[1])
    assert report["numProducers"] >= 1 and report["pulsarServiceUrl"] == broker.service_url
    assert request("GET", f"{broker.http_url}/admin/v2/broker-stats/allocator-stats/none")[0] == 406
