"""Dead letters that the broker makes of messages to WebSockets: given back, not acknowledged in time, or expired."""
import pytest

from ..harness import HANG_SECONDS, eventually, path_of
from .rest import Rest

pytestmark = pytest.mark.slow
SECONDS = HANG_SECONDS


@pytest.fixture(scope="module")
def rest(broker):
    return Rest(broker.http_url)


def set_policy(rest, topic, name, value):
    json_ = {"Content-Type": "application/json"}
    assert rest.ask("POST", f"/admin/v2/{path_of(topic)}/{name}", value, **json_)[0] == 204


def letters(rest, topic):
    """Return the messages of the dead letter topic of the subscription s; [] if there is none yet."""
    dead = f"{topic}-s-DLQ"
    return rest.stored(dead) if rest.ask("GET", f"/admin/v2/{path_of(dead)}/stats")[0] == 200 else []


def backlog(rest, topic):
    return rest.ask("GET", f"/admin/v2/{path_of(topic)}/stats")[1]["subscriptions"]["s"]["msgBacklog"]


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
@pytest.mark.parametrize("mine", [None, 1, 2, 3])
def test_a_websockets_message_that_is_given_back_too_often_is_one_letter(rest, sockets, kind, mine):
    """A WebSocket's own bound works beside the policy: the lower is first; either may be if they are the same."""
    topic = rest.topic("orders")
    set_policy(rest, topic, "deadLetter", {"maxRedeliverCount": 2})
    own = {} if mine is None else {"maxRedeliverCount": mine}
    consumer = sockets.consumer(topic, "s", subscriptionType=kind, negativeAckRedeliveryDelay="50", **own)
    sockets.producer(topic).publish(b"poison", key="k", properties={"a": "b"})
    counts = []
    for _ in range(min(2, mine or 2) + 1):
        message = consumer.message()
        counts.append(message["redeliveryCount"])
        consumer.send(type="negativeAcknowledge", messageId=message["messageId"])
    assert counts == [*range(len(counts))]
    eventually(lambda: letters(rest, topic) and backlog(rest, topic) == 0, SECONDS)
    [letter] = letters(rest, topic)
    assert (letter["payload"], letter["key"], letter["properties"]["a"]) == ("poison", "k", "b")
    if mine != 2:
        assert letter["properties"].get("geminga.dead-letter.reason") == (None if mine == 1 else "deliveries")
    assert consumer.is_quiet()


def test_a_message_that_a_websocket_does_not_acknowledge_in_time_is_a_letter(rest, sockets):
    topic = rest.topic("orders")
    set_policy(rest, topic, "deadLetter", {"maxRedeliverCount": 1})
    consumer = sockets.consumer(topic, "s", subscriptionType="Shared", ackTimeoutMillis="1000")
    sockets.producer(topic).publish(b"poison")
    assert [consumer.message()["redeliveryCount"] for _ in range(2)] == [0, 1]
    eventually(lambda: len(letters(rest, topic)) == 1 and backlog(rest, topic) == 0, SECONDS)


@pytest.mark.parametrize("batching", [False, True])
def test_messages_of_websockets_expire_by_a_time_of_their_own(rest, sockets, batching):
    """What a WebSocket publishes expires by its property, and its consumer's other messages stay."""
    topic = rest.topic("orders")
    set_policy(rest, topic, "ownMessageTTL", True)
    set_policy(rest, topic, "deadLetter", {"expired": True})
    sockets.consumer(topic, "s", subscriptionType="Shared").close()
    pairs = {"batchingEnabled": "true", "batchingMaxMessages": "2", "batchingMaxPublishDelay": "60000"}
    producer = sockets.producer(topic, **(pairs if batching else {}))
    for text in ("1s", "500", "1s", "1h", "1s", None):
        producer.send(payload="eA==", properties={"geminga.ttl": text} if text else {})
    assert [producer.receive()["result"] for _ in range(6)] == ["ok"] * 6
    wanted = 2 if batching else 4
    eventually(lambda: len(letters(rest, topic)) == wanted, SECONDS)
    assert {letter["properties"]["geminga.dead-letter.reason"] for letter in letters(rest, topic)} == {"expired"}
    consumer = sockets.consumer(topic, "s", subscriptionType="Shared")
    assert len(consumer.data(6 - wanted)) == 6 - wanted and consumer.is_quiet()
