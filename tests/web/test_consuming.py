"""Consumers and readers over WebSocket: every type, the window, acknowledgements, redelivery, several topics."""
import base64
import json
import uuid

import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import eventually, partitioned_topic, path_of, request, unique_topic
from .sockets import Sockets

SOON = {"negativeAckRedeliveryDelay": "0"}


def backlog(broker, topic, subscription="s"):
    stats = json.loads(request("GET", f"{broker.http_url}/admin/v2/{path_of(topic)}/stats")[1])
    return stats["subscriptions"][subscription]["msgBacklog"]


def publish(sockets, topic, *payloads, **parameters):
    """Publish payloads together, so that batches may be made of them."""
    producer = sockets.producer(topic, **parameters)
    for payload in payloads:
        producer.send(payload=base64.b64encode(payload).decode())
    return [producer.receive()["messageId"] for _ in payloads]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_each_type_delivers_and_acknowledges(sockets, broker, kind):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", subscriptionType=kind)
    publish(sockets, topic, b"1", b"2", b"3")
    assert consumer.data(3) == [b"1", b"2", b"3"]
    eventually(lambda: backlog(broker, topic) == 0)


def two(sockets, topic, kind):
    return [sockets.consumer(topic, "s", subscriptionType=kind, receiverQueueSize="1", consumerName=name)
            for name in ("a", "b")]


def test_shared_consumers_share(sockets):
    topic = unique_topic()
    one, other = two(sockets, topic, "Shared")
    publish(sockets, topic, b"1", b"2")
    assert {one.message()["data"], other.message()["data"]} == {b"1", b"2"}


def test_of_failover_consumers_the_second_waits_for_the_end_of_the_first(sockets):
    topic = unique_topic()
    one, other = two(sockets, topic, "Failover")
    publish(sockets, topic, b"1", b"2")
    assert one.message()["data"] == b"1" and other.is_quiet()
    one.close()
    assert other.data(2) == [b"1", b"2"]


def test_a_new_subscription_begins_where_it_says(sockets):
    topic = unique_topic()
    publish(sockets, topic, b"before")
    latest = sockets.consumer(topic, "latest")
    earliest = sockets.consumer(topic, "earliest", subscriptionInitialPosition="Earliest")
    gone = sockets.consumer(topic, "gone", subscriptionMode="NonDurable", subscriptionInitialPosition="Earliest")
    publish(sockets, topic, b"after")
    assert latest.data(1) == [b"after"] and earliest.data(2) == gone.data(2) == [b"before", b"after"]


def test_the_window_opens_with_each_acknowledgement_and_negative_one(sockets):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", receiverQueueSize="2", negativeAckRedeliveryDelay="600000")
    publish(sockets, topic, *(b"%d" % number for number in range(6)), batchingEnabled="true",
            batchingMaxPublishDelay="100")
    places = [consumer.message()["messageId"] for _ in range(2)]
    assert consumer.is_quiet()
    consumer.send(messageId=places[0])
    assert consumer.message()["data"] == b"2" and consumer.is_quiet()
    consumer.send(type="negativeAcknowledge", messageId=places[1])
    assert consumer.message()["data"] == b"3" and consumer.is_quiet()


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_a_negative_acknowledgement_brings_the_message_again(sockets, kind):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", subscriptionType=kind, **SOON)
    publish(sockets, topic, b"x")
    message = consumer.message()
    consumer.send(type="negativeAcknowledge", messageId=message["messageId"])
    again = consumer.message()
    assert (again["messageId"], again["redeliveryCount"]) == (message["messageId"], 1)


def test_a_time_that_is_far_away_does_not_keep_a_near_one_waiting(sockets):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", subscriptionType="Shared", ackTimeoutMillis="600000", **SOON)
    publish(sockets, topic, b"1", b"2")
    first = consumer.message()["messageId"]
    consumer.message()
    consumer.send(type="negativeAcknowledge", messageId=first)
    assert consumer.message()["messageId"] == first


def test_what_is_not_acknowledged_in_time_comes_again_and_frees_the_window(sockets):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", subscriptionType="Shared", receiverQueueSize="1", ackTimeoutMillis="1000")
    publish(sockets, topic, b"1", b"2")
    first = consumer.message()
    again = consumer.message()
    assert (again["messageId"], again["redeliveryCount"]) == (first["messageId"], 1)
    consumer.send(messageId=again["messageId"])
    assert consumer.message()["data"] == b"2"


def test_messages_of_a_batch_are_acknowledged_one_by_one(sockets, broker):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s")
    publish(sockets, topic, b"0", b"1", b"2", batchingEnabled="true", batchingMaxMessages="3",
            batchingMaxPublishDelay="60000")
    places = [consumer.message()["messageId"] for _ in range(3)]
    consumer.send(messageId=places[1])
    consumer.send(type="isEndOfTopic")
    assert consumer.receive() == {"endOfTopic": False}
    consumer.close()
    again = sockets.consumer(topic, "s")
    assert again.data(2) == [b"0", b"2"]
    eventually(lambda: backlog(broker, topic) == 0)


def test_everything_up_to_a_message_is_acknowledged_at_once(sockets, broker):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", receiverQueueSize="3")
    publish(sockets, topic, b"0", b"1", b"2", b"3")
    places = [consumer.message()["messageId"] for _ in range(3)]
    assert consumer.is_quiet()
    consumer.send(type="acknowledgeCumulative", messageId=places[2])
    assert consumer.message()["data"] == b"3"
    eventually(lambda: backlog(broker, topic) == 1)
    shared = sockets.consumer(unique_topic(), "s", subscriptionType="Shared")
    shared.send(type="acknowledgeCumulative", messageId=places[2])
    assert shared.code() == 1008


def test_an_unknown_type_acknowledges_and_so_does_an_id_from_before(sockets, broker):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s")
    publish(sockets, topic, b"x")
    place = consumer.message()["messageId"]
    consumer.close()
    other = sockets.consumer(topic, "s", pullMode="true")
    other.send(type="whatever", messageId=place)
    eventually(lambda: backlog(broker, topic) == 0)


def test_in_pull_mode_permits_alone_bring_messages(sockets):
    topic = unique_topic()
    consumer = sockets.consumer(topic, "s", pullMode="true", receiverQueueSize="1")
    publish(sockets, topic, *(b"%d" % number for number in range(5)))
    assert consumer.is_quiet()
    consumer.send(type="permit", permitMessages=1)
    consumer.send(type="permit", permitMessages=2)
    places = [consumer.message()["messageId"] for _ in range(3)]
    consumer.send(messageId=places[0])
    consumer.send(type="permit", permitMessages=-3)
    assert consumer.is_quiet()
    consumer.send(type="permit", permitMessages=9)
    assert [consumer.message()["data"] for _ in range(2)] == [b"3", b"4"]


@pytest.mark.parametrize("text", ["", "x", "[]", '{"type":"permit"}', '{"type":"permit","permitMessages":"5"}', "{}",
                                  '{"messageId":"!"}', '{"messageId":""}', '{"messageId":"CAE="}',
                                  '{"messageId":"CAEQASAAMICAgAE="}', '{"messageId":"/////w=="}', '{"messageId":5}'])
def test_a_bad_command_ends_the_connection_with_a_code(sockets, text):
    consumer = sockets.consumer(unique_topic(), "s")
    consumer.text(text)
    assert consumer.code() == 1007


def test_unsubscribing_deletes_the_subscription_unless_others_use_it(sockets, broker):
    topic = unique_topic()
    one, other = (sockets.consumer(topic, "s", subscriptionType="Shared") for _ in range(2))
    one.send(type="unsubscribe")
    assert one.code() == 1008
    other.send(type="unsubscribe")
    subscriptions = f"{broker.http_url}/admin/v2/{path_of(topic)}/subscriptions"
    eventually(lambda: request("GET", subscriptions)[1] == "[]")
    other.send(type="isEndOfTopic")
    assert other.receive() == {"endOfTopic": False}


def test_the_end_of_a_terminated_topic_is_told(sockets, broker):
    topic = unique_topic()
    consumer, reader = sockets.consumer(topic, "s"), sockets.reader(topic)
    publish(sockets, topic, b"last")
    assert request("POST", f"{broker.http_url}/admin/v2/{path_of(topic)}/terminate")[0] == 200
    assert consumer.data(1) == [reader.message()["data"]] == [b"last"]

    def is_end(socket):
        socket.send(type="isEndOfTopic")
        return socket.receive()["endOfTopic"]

    eventually(lambda: is_end(consumer))
    eventually(lambda: is_end(reader))


def test_a_message_redelivered_too_often_is_a_dead_letter(sockets, broker):
    topic = unique_topic()
    dead = sockets.consumer(f"{topic}-s-DLQ", "dead")
    consumer = sockets.consumer(topic, "s", subscriptionType="Shared", maxRedeliverCount="1", **SOON)
    when = "2024-02-03T04:05:06.789Z"
    sockets.producer(topic).publish(b"x", key="k", properties={"a": "b"}, eventTime=when)
    for count in (0, 1):
        message = consumer.message()
        assert message["redeliveryCount"] == count
        consumer.send(type="negativeAcknowledge", messageId=message["messageId"])
    letter, place = dead.message(), api.MessageIdData.FromString(base64.b64decode(message["messageId"]))
    origin = f"{place.ledgerId}:{place.entryId}:-1"
    assert (letter["data"], letter["key"], letter["eventTime"]) == (b"x", "k", when)
    assert letter["properties"] == {"a": "b", "REAL_TOPIC": topic, "REAL_SUBSCRIPTION": "s",
                                    "ORIGIN_MESSAGE_ID": origin, "ORIGIN_MESSAGE_IDY_TIME": origin}
    eventually(lambda: backlog(broker, topic) == 0)


def test_a_letter_that_dies_again_keeps_what_it_says_of_its_origin(sockets):
    """Java's client does so too: redrives find the topic where a message began."""
    topic = unique_topic()
    dead = sockets.consumer(f"{topic}-s-DLQ", "dead")
    consumer = sockets.consumer(topic, "s", subscriptionType="Shared", maxRedeliverCount="1", **SOON)
    sockets.producer(topic).publish(b"x", properties={"REAL_TOPIC": "first", "ORIGIN_MESSAGE_ID": "1:2:-1"})
    for _ in range(2):
        consumer.send(type="negativeAcknowledge", messageId=consumer.message()["messageId"])
    told = dead.message()["properties"]
    assert (told["REAL_TOPIC"], told["REAL_SUBSCRIPTION"], told["ORIGIN_MESSAGE_ID"]) == ("first", "s", "1:2:-1")


def test_partitions_are_consumed_as_one_topic(sockets, broker):
    topic = partitioned_topic(broker.http_url, 3)
    consumer = sockets.consumer(topic, "s")
    publish(sockets, topic, *(b"%d" % number for number in range(6)), messageRoutingMode="RoundRobinPartition")
    assert sorted(consumer.data(6)) == [b"%d" % number for number in range(6)]
    eventually(lambda: all(backlog(broker, f"{topic}-partition-{number}") == 0 for number in range(3)))


def test_several_topics_and_a_pattern_are_consumed_and_later_topics_join(sockets, broker):
    mark = f"p{uuid.uuid4().hex[:10]}"
    topics = [f"persistent://public/default/{mark}-{number}" for number in range(2)]
    listed = sockets.open("/ws/v3/consumer/listed", topics=f"{topics[0]},{mark}-1")
    matching = sockets.open("/ws/v3/consumer/matching", topicsPattern=f"public/default/{mark}-.*")
    for topic in topics:
        publish(sockets, topic, topic.encode())
    assert sorted(listed.data(2)) == sorted(matching.data(2)) == [topic.encode() for topic in topics]
    for topic in topics:
        eventually(lambda topic=topic: backlog(broker, topic, "listed") == 0)
        eventually(lambda topic=topic: backlog(broker, topic, "matching") == 0)
    later = f"persistent://public/default/{mark}-later"
    sockets.consumer(later, "makes-it")
    subscriptions = f"{broker.http_url}/admin/v2/{path_of(later)}/subscriptions"
    eventually(lambda: "matching" in request("GET", subscriptions)[1])
    publish(sockets, later, b"later")
    assert matching.data(1) == [b"later"]


def test_readers_begin_behind_a_message_also_inside_a_batch(sockets):
    topic = unique_topic()
    places = publish(sockets, topic, b"0", b"1", b"2", batchingEnabled="true", batchingMaxMessages="3",
                     batchingMaxPublishDelay="60000")
    places += publish(sockets, topic, b"3", b"4")
    for number, place in enumerate(places[:4]):
        assert sockets.reader(topic, messageId=place).message()["data"] == b"%d" % (number + 1)
    latest = sockets.reader(topic)
    assert latest.is_quiet()
    publish(sockets, topic, b"5")
    assert latest.message()["data"] == b"5"


def test_any_text_of_a_reader_frees_one_place(sockets, broker):
    topic = unique_topic()
    publish(sockets, topic, b"0", b"1", b"2")
    reader = sockets.reader(topic, messageId="earliest", receiverQueueSize="1")
    assert reader.message()["data"] == b"0" and reader.is_quiet()
    reader.text("{}")
    assert reader.message()["data"] == b"1"
    reader.text("x")
    assert reader.code() == 1007
    eventually(lambda: request("GET", f"{broker.http_url}/admin/v2/{path_of(topic)}/subscriptions")[1] == "[]")


def test_a_non_persistent_topic_has_producers_consumers_and_readers(sockets):
    topic = unique_topic().replace("persistent", "non-persistent")
    consumer, reader = sockets.consumer(topic, "s"), sockets.reader(topic)
    publish(sockets, topic, b"x", b"y")
    assert consumer.data(2) == [reader.message()["data"] for _ in range(2)] == [b"x", b"y"]


def test_a_consumer_survives_an_unload_and_follows_a_seek(sockets, broker):
    topic = unique_topic()
    consumer, place = sockets.consumer(topic, "s"), f"{broker.http_url}/admin/v2/{path_of(topic)}"
    publish(sockets, topic, b"1")
    assert consumer.data(1) == [b"1"]
    eventually(lambda: backlog(broker, topic) == 0)
    assert request("PUT", f"{place}/unload")[0] == 204
    publish(sockets, topic, b"2")
    assert consumer.data(1) == [b"2"]
    assert request("POST", f"{place}/subscription/s/resetcursor/0")[0] == 204
    assert consumer.data(2) == [b"1", b"2"]


def test_a_closed_consumer_gives_back_what_it_had(sockets):
    topic = unique_topic()
    one = sockets.consumer(topic, "s", subscriptionType="Shared")
    publish(sockets, topic, b"x")
    assert one.message()["data"] == b"x"
    other = sockets.consumer(topic, "s", subscriptionType="Shared")
    one.close()
    assert other.message()["data"] == b"x"


def test_they_are_seen_as_producers_and_consumers(sockets, broker):
    topic = unique_topic()
    sockets.consumer(topic, "s", consumerName="reads", priorityLevel="3")
    sockets.producer(topic, producerName="writes")
    stats = json.loads(request("GET", f"{broker.http_url}/admin/v2/{path_of(topic)}/stats")[1])
    assert [one["producerName"] for one in stats["publishers"]] == ["writes"]
    assert [one["consumerName"] for one in stats["subscriptions"]["s"]["consumers"]] == ["reads"]


@pytest.mark.slow
def test_a_long_backlog_of_large_messages_comes_once_and_in_order(sockets):
    """More than the window, and more than sockets and queues hold."""
    topic, count = unique_topic(), 1_500
    consumer = sockets.consumer(topic, "s")
    publish(sockets, topic, *(b"%d " % number * 2_000 for number in range(count)))
    assert [data.split()[0] for data in consumer.data(count)] == [b"%d" % number for number in range(count)]


def test_without_acknowledgements_of_parts_a_batch_ends_with_its_last_message(start_broker, tmp_path):
    (tmp_path / "geminga.toml").write_text("[storage]\nbatch_index_acknowledgement = false\n")
    broker, topic = start_broker("--config", str(tmp_path / "geminga.toml")), unique_topic()
    with Sockets(broker.http_url) as sockets:
        consumer = sockets.consumer(topic, "s")
        publish(sockets, topic, *(b"%d" % number for number in range(70)), batchingEnabled="true",
                batchingMaxPublishDelay="100")
        assert len(consumer.data(70)) == 70
        eventually(lambda: backlog(broker, topic) == 0)
