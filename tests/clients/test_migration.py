"""Topics move to another cluster while they are used, from blue to green: nothing is lost, and all is in order."""
import json
import threading
import time

import pulsar
import pytest

from geminga.proto import pulsar_api_pb2 as api

from ..harness import HANG_SECONDS, Broker, request
from ..proto.client_frames import T, command, send
from ..workers.peer import Peer

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
SECONDS = HANG_SECONDS


@pytest.fixture(scope="module")
def green(tmp_path_factory):
    made = Broker(tmp_path_factory.mktemp("green") / "data")
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def namespace(own, green):
    """A namespace that exists on both brokers; the first knows where to move its clients, and has not moved them
    yet.
    """
    name = f"public/moved-{time.time_ns()}"
    for broker in own, green:
        assert request("PUT", f"{broker.http_url}/admin/v2/namespaces/{name}")[0] == 204
    to = json.dumps({"serviceUrl": green.http_url, "brokerServiceUrl": green.service_url}).encode()
    assert request("POST", f"{own.http_url}/admin/v2/clusters/standalone/migrate?migrated=false", to)[0] == 200
    return name


def move(broker, namespace, is_migrated=True):
    assert (
        request(
            "POST", f"{broker.http_url}/admin/v2/namespaces/{namespace}/migration", json.dumps(is_migrated).encode()
        )[0]
        == 204
    )
    assert (
        json.loads(request("GET", f"{broker.http_url}/admin/v2/namespaces/{namespace}")[1])["migrated"] is is_migrated
    )


def producer(number, topic):
    return command(T.PRODUCER, topic=topic, producer_id=number, request_id=number)


def consumer(number, topic):
    return command(T.SUBSCRIBE, topic=topic, subscription=f"s{number}", subType=0, consumer_id=number,
                   request_id=number, initialPosition=api.CommandSubscribe.Earliest)


def test_producers_go_at_once_and_consumers_when_they_have_acknowledged_what_there_is(own, green, namespace):
    topic = f"persistent://{namespace}/orders"
    with Peer(own.service_url) as peer:
        for number, said in ((1, producer), (2, consumer)):
            peer.say(said(number, topic))
            assert peer.hear().type in (T.PRODUCER_SUCCESS, T.SUCCESS)
        peer.say(send())
        place = peer.hear().send_receipt.message_id
        move(own, namespace)
        told, closed = peer.hear(), peer.hear()
        assert (told.topicMigrated.resource_id, told.topicMigrated.resource_type) == (
            1,
            api.CommandTopicMigrated.Producer,
        )
        assert told.topicMigrated.brokerServiceUrl == green.service_url and not told.topicMigrated.HasField(
            "brokerServiceUrlTls"
        )
        assert closed.close_producer.producer_id == 1
        peer.say(producer(3, topic))
        assert [peer.hear().topicMigrated.resource_id, peer.hear().close_producer.producer_id] == [3, 3]
        peer.say(command(T.FLOW, consumer_id=2, messagePermits=10))
        assert peer.hear().type == T.MESSAGE
        peer.say(command(T.ACK, consumer_id=2, ack_type=0, message_id=[place]))
        told, closed = peer.hear(), peer.hear()
        assert (told.topicMigrated.resource_id, told.topicMigrated.resource_type) == (
            2,
            api.CommandTopicMigrated.Consumer,
        )
        assert closed.close_consumer.consumer_id == 2
        peer.say(consumer(2, topic))
        assert [peer.hear().type for _ in range(3)] == [T.SUCCESS, T.TOPIC_MIGRATED, T.CLOSE_CONSUMER]
        move(own, namespace, is_migrated=False)
        peer.say(producer(4, topic))
        assert peer.hear().type == T.PRODUCER_SUCCESS


def test_a_producer_and_a_consumer_move_and_nothing_is_lost_nor_out_of_order(own, green, namespace):
    topic, count = f"persistent://{namespace}/orders", 3_000
    client = pulsar.Client(own.service_url, logger=QUIET)
    consumer = client.subscribe(topic, "work", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic, batching_enabled=False)
    is_half_way = threading.Event()

    def publish():
        for number in range(count):
            producer.send(b"%d" % number)
            if number == count // 2:
                is_half_way.set()

    publishing = threading.Thread(target=publish)
    publishing.start()
    assert is_half_way.wait(SECONDS)
    move(own, namespace)
    found = []
    while len(found) < count:
        message = consumer.receive(SECONDS * 1_000)
        found.append(int(message.data()))
        consumer.acknowledge(message)
    publishing.join(SECONDS)
    stats = json.loads(request("GET", f"{green.http_url}/admin/v2/{topic.replace('://', '/')}/stats")[1])
    assert found == list(range(count)) and stats["publishers"] and stats["subscriptions"]["work"]["consumers"]
    client.close()


def test_a_cluster_that_is_migrated_as_a_whole_tells_so_also_after_a_start(start_broker):
    blue = start_broker()
    to = b'{"brokerServiceUrl": "pulsar://127.0.0.1:1"}'
    assert request("POST", f"{blue.http_url}/admin/v2/clusters/standalone/migrate?migrated=true", b"{}")[0] == 400
    assert request("POST", f"{blue.http_url}/admin/v2/clusters/standalone/migrate?migrated=true", to)[0] == 200
    blue.stop()
    blue.start()
    assert json.loads(request("GET", f"{blue.http_url}/admin/v2/clusters/standalone/migrate")[1]) == {
        "migrated": True, "migratedClusterUrl": json.loads(to)}
    with Peer(blue.service_url) as peer:
        peer.say(producer(1, "persistent://public/default/t"))
        assert [peer.hear().type, peer.hear().type] == [T.TOPIC_MIGRATED, T.CLOSE_PRODUCER]
    assert request("GET", f"{blue.http_url}/admin/v2/brokers/health")[0] == 200     # its own topics stay
